r"""A question answered from a slicing release: the model's rows, and one straight step to the lines' moments.

A prior that draws classes together draws every association towards none, and an answer from such rows with it. As with
noisy tables (`shared.mechanisms.tables.one_step`, whose rule this is) the answer is put right by one straight step:
with φ its influence function,

.. math:: \hat\theta = \theta(P) + \langle g, \; \bar f - f_P \rangle, \qquad
          \min_g \; s^2 \, E_P (\varphi - g \cdot f)^2 + g^\top S g

where f are the entries of the question's columns and their products, f̄ their means over the rows that were undone,
freed of the noise and so without bias, and S the covariance of these means, seen in the lines themselves. What noise
drowns of φ stays with the model, and s = 0.4 says how far that may be off.

For an answer without an influence function it is all done again on rows of the model: persons, noise, fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.slicing.noise import Block, RowCode
from shared.mechanisms.slicing.projections import Mixture, ProjectedMoments, fit, margins_of, of_rows
from shared.mechanisms.slicing.shares import Share
from shared.mechanisms.tables.one_step import MODEL_ERROR, STEP_ERROR, UNSEEN_ERROR, hidden, influences

if TYPE_CHECKING:
    from shared.estimands.answer import Estimand, Estimate, Origin

__all__ = ["answer", "together"]

Array = NDArray[np.float64]

DRAWS, REFITS = 5, 12
"""Synthetic tables of an answer, and how often it is found again from rows of the model."""
ROWS_OF_ALL, LEAST_ROWS, MOST_ROWS = 200_000, 1_000, 10_000
"""Rows of all synthetic tables of all sites, and of one table of one site."""
_GUESSED = 1.5
"""A larger room than that is told."""
_SEED = 20241019


def answer(
    code: RowCode,
    found: ProjectedMoments,
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    draws: int = DRAWS,
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """One estimate per term: the mean of m synthetic tables' answers, and one step from there to the lines' moments.

    As in `shared.mechanisms.tables.one_step`, with v̄ the mean variance that tables of n rows claim:

        vi_sampling = v̄ + E(φ − g·f)² / (m n)
        vi_privacy  = gᵀSg − Var(g·f) / n
        vi_common   = r (s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)²) + (step · b)²

    where r is that of `_Allowance`, b² is 1/9 and the doubt about the spread of the question's numbers, and φ₂ what
    entries and their products can follow of φ. What scatters gᵀSg are persons and noise together: the persons' part of
    it is in v̄ already. What the model lacks other sites' models lack alike, so that a pool of such answers must not
    average it away. A mean or a share is the lines' own (`Share`).

    Args:
        draws: m, at least 5.
        levels: as of `estimate`. origin: its study, site, wave and receipts.
    Raises: ParameterError (m < 5); EstimateRefusal, as `estimate`.
    """
    if draws < 5:
        raise ParameterError("draws must be at least 5 to be combined", given=f"{draws}")
    if shares := Share.of(code, question):
        return [shares.alone(found, origin)]
    model, reach = fit(code, found), _Reach(code, question)
    lines = _TargetLines(reach, *reach.released(found), found.n)
    drawn = _Drawn.of(model, found.n, lines, question, levels, origin, m=draws)
    if not drawn.moves:
        return _found_again(code, found, model, drawn, question, levels=levels, origin=origin)
    room, out = _Allowance(model, question), []
    for row, move in zip(drawn.each[0], drawn.moves, strict=True):
        made = drawn.estimate(
            row.term,
            move,
            n=found.n,
            seen=move.seen,
            lacking=room.times(row.term) * (move.drowned + move.beyond) + (room.straight * move.by) ** 2,
            how=f"{draws} synthetic tables and one step to the lines' moments; noise seen, model error allowed for",
        )
        if made.yi is not None:
            drowned = room.times(row.term) * move.drowned
            made = replace(
                made, warnings=(*room.warnings(row.term), *hidden(drowned, (made.vi or 0.0) + made.vi_common))
            )
        out.append(made)
    return out


def together(
    code: RowCode,
    sites: Mapping[str, ProjectedMoments],
    everybody: ProjectedMoments,
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    origins: Mapping[str, Origin],
) -> dict[str, list[Estimate]]:
    """Site to one estimate per term, from one model of all sites' lines; empty without an influence function.

    How columns hang together is one model's (as in `shared.mechanisms.tables.together`); a column's own mean or shares
    are each site's, as far as noise lets sites be told apart (`margins_of`). g is damped as far as the noise of all
    lines together asks, and what the model lacks it lacks at every site,

        vi_privacy = gᵀS_k g − Var(g·f) / n_k + ((step_k − step) · b)²
        vi_common  = r (s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)²) + (step · b)²

    where step is the mean over persons of the sites' step_k, and r as of `_Allowance`. A mean or a share is the lines'
    own (`Share`). A site whose rows have no answer is left out.

    Args:
        sites: what each released. everybody: the same of all of them.
        levels: as of `estimate`. origins: site to study, site, wave and receipts.
    Raises: EstimateRefusal, as `estimate`, where no site has an answer.
    """
    if shares := Share.of(code, question):
        return shares.together(sites, origins)
    model, reach, refused = fit(code, everybody), _Reach(code, question), None
    seen = {site: reach.released(found) for site, found in sites.items()}
    scatter = np.sum([(sites[site].n / everybody.n) ** 2 * own for site, (_, own) in seen.items()], axis=0)
    rows = min(max(ROWS_OF_ALL // (DRAWS * len(sites)), LEAST_ROWS), MOST_ROWS)
    drawn: dict[str, _Drawn] = {}
    for site, own in margins_of(model, everybody, sites).items():
        try:
            lines = _TargetLines(reach, seen[site][0], scatter, sites[site].n)
            drawn[site] = _Drawn.of(own, rows, lines, question, levels, origins[site])
        except EstimateRefusal as refusal:
            refused = refusal
            continue
        if not drawn[site].moves:
            return {}
    if refused is not None and not drawn:
        raise refused
    room = _Allowance(model, question)
    out: dict[str, list[Estimate]] = {site: [] for site in drawn}
    for k, term in _terms(drawn):
        there = {site: one.moves[at] for site, one in drawn.items() if (at := one.place(term, k)) is not None}
        persons = max(sum(sites[site].n for site in there), 1)
        step = sum(sites[site].n * move.by for site, move in there.items()) / persons
        times = room.times(term)
        made = {
            site: drawn[site].estimate(
                term,
                move,
                n=sites[site].n,
                seen=max(float(move.g @ seen[site][1] @ move.g) - move.persons / sites[site].n, 0.0)
                + (room.straight * (move.by - step)) ** 2,
                lacking=times * (move.drowned + move.beyond) + (room.straight * step) ** 2,
                how=f"{DRAWS} synthetic tables of all sites' lines and one step to the site's; noise seen",
            )
            for site, move in there.items()
        }
        answers = [row for row in made.values() if row.yi is not None]
        warnings = room.warnings(term)
        if answers:
            drowned = sum(sites[site].n * times * move.drowned for site, move in there.items()) / persons
            apart = sum(row.vi or 0.0 for row in answers) / len(answers) ** 2
            warnings += hidden(drowned, sum(row.vi_common for row in answers) / len(answers) + apart)
        for site, one in drawn.items():
            row = made.get(site) or one.absent(term)
            out[site].append(row if row.yi is None else replace(row, warnings=tuple(warnings)))
    return out


def _terms(drawn: Mapping[str, _Drawn]) -> list[tuple[int, str]]:
    """Every term of any site, in order, each with its place."""
    return list(enumerate(dict.fromkeys(row.term for one in drawn.values() for row in one.each[0])))


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Answers of m synthetic tables of one model, and the step from there to lines.

    Args:
        each: of every table one estimate per term. moves: of each term; empty without an influence function.
    """

    each: list[list[Estimate]]
    moves: list[_ProjectionMove]
    rows: int

    @classmethod
    def of(
        cls,
        model: Mixture,
        rows: int,
        lines: _TargetLines,
        question: Estimand,
        levels: Mapping[str, Any],
        origin: Origin,
        *,
        m: int = DRAWS,
    ) -> _Drawn:
        """Draw m tables of so many rows; the same model gives the same ones, and sites' models nearly the same.

        Args:
            lines: to which the steps are. levels, origin: as of `estimate`.
        Raises: EstimateRefusal.
        """
        from shared.estimands.answer import estimate_drawn

        rng = np.random.default_rng(_SEED)
        drawn = [model.rows(rows, rng) for _ in range(m)]
        tables = [table for _, table in drawn]
        each = [estimate_drawn(table, question, levels=levels, **origin) for table in tables]
        pushes = influences(question, tables, each[0], levels)
        step = _ProjectionStep(lines, np.concatenate([coded for coded, _ in drawn])) if pushes else None
        return cls(each=each, moves=[step(push) for push in pushes] if step else [], rows=rows)

    def place(self, term: str, near: int) -> int | None:
        """Place of a term among the first table's, most often `near`."""
        terms = [row.term for row in self.each[0]]
        return near if terms[near : near + 1] == [term] else terms.index(term) if term in terms else None

    def same(self, term: str) -> list[Estimate]:
        """A term's estimates in the tables that have one."""
        return [row for many in self.each for row in many if row.term == term and row.yi is not None]

    def absent(self, term: str) -> Estimate:
        """The estimate of a term that not all tables have."""
        row = next((row for many in self.each for row in many if row.term == term), self.each[0][0])
        reason = row.reason or f"the term is in {len(self.same(term))} of {len(self.each)} synthetic tables only"
        return replace(row, term=term, yi=None, vi_sampling=None, vi_privacy=0.0, reason=reason)

    def estimate(self, term: str, move: _ProjectionMove, *, n: int, seen: float, lacking: float, how: str) -> Estimate:
        """The mean of the tables' answers and the step.

        Args:
            n: persons. seen, lacking: privacy's variance, and what every site may be off by alike.
        """
        same = self.same(term)
        if len(same) < len(self.each):
            return self.absent(term)
        fewer, row = self.rows / n, same[0]  # times the rows that this site has
        patients = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None])) * fewer
        return replace(
            row,
            yi=float(np.mean([one.yi for one in same])) + move.by,
            vi_sampling=patients + move.drawing,
            vi_privacy=seen,
            vi_common=lacking,
            vi_naive=patients,
            vi_sandwich=None if row.vi_sandwich is None else row.vi_sandwich * fewer,
            how=how,
            correlations={},  # what its noise has in common between terms is not known
            n=round(row.n / fewer),
            n_missing=round(row.n_missing / fewer),
            n_outside=round(row.n_outside / fewer),
        )


@dataclass(frozen=True, kw_only=True)
class _ProjectionMove:
    """by: the step. drawing: what the draw of rows adds to the variance of patients.

    seen: what scatters the lines' moments, noise and persons, less the persons' part. drowned: the model's error where
    noise hides it. beyond: the same past pairs of entries. g: (features,) the function that is followed. persons: its
    variance.
    """

    by: float
    drawing: float
    seen: float
    drowned: float
    beyond: float
    g: Array
    persons: float


class _Reach:
    """What lines tell of a question: the entries of its columns, and their products."""

    def __init__(self, code: RowCode, question: Estimand) -> None:
        blocks = blocks_of(code, question)
        self._entries = [i for block in blocks for i in range(block.at, block.at + block.size)]
        own = [k for k, block in enumerate(blocks) for _ in range(block.size)]
        number = [block.numeric and i == block.at for block in blocks for i in range(block.at, block.at + block.size)]
        # Within a levelled column a product of two entries is 0 or the entry itself.
        pairs = [
            (i, j) for i in range(len(own)) for j in range(i, len(own)) if own[i] != own[j] or (i == j and number[i])
        ]
        self._left, self._right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))

    def features(self, rows: Array, noise: Array | None = None) -> Array:
        """Entries and their products, the latter less what noise adds to them on average."""
        entries = rows[:, self._entries]
        products = entries[:, self._left] * entries[:, self._right]
        if noise is not None:
            products -= noise[np.ix_(self._entries, self._entries)][self._left, self._right]
        return np.concatenate([entries, products], axis=1)

    def released(self, found: ProjectedMoments) -> tuple[Array, Array]:
        """Mean features of released lines, and the covariance of that mean."""
        total: Any = 0.0
        scatter: Any = 0.0
        for rows, noise in found.parts:
            seen = self.features(rows, noise)
            total = total + seen.sum(axis=0)
            scatter = scatter + np.cov(seen, rowvar=False, ddof=1).reshape(seen.shape[1], -1) * len(rows)
        return np.asarray(total / found.n), np.asarray(scatter / found.n**2)


class _TargetLines(NamedTuple):
    """Lines that a step is to: mean of their features, covariance of a mean by which it is damped, and persons."""

    reach: _Reach
    mean: Array
    scatter: Array
    n: int


class _ProjectionStep:
    """From an influence function on synthetic rows to a step: of one question, for all its terms.

    Args:
        coded: (rows, d) of all synthetic tables.
    """

    def __init__(self, lines: _TargetLines, coded: Array) -> None:
        features = lines.reach.features(coded)
        own = features.mean(axis=0)
        self._centred = features - own
        self._square = self._centred.T @ self._centred / len(features)
        self._rows, self._n, self._gap, self._scatter = len(features), lines.n, lines.mean - own, lines.scatter

    def __call__(self, phi: Array) -> _ProjectionMove:
        along = self._centred.T @ phi / self._rows
        g = np.linalg.solve(self._square + self._scatter / MODEL_ERROR**2, along)
        reach = self._centred @ np.linalg.lstsq(self._square, along, rcond=1e-10)[0]
        near = self._centred @ g
        persons = float(near @ near) / self._rows
        return _ProjectionMove(
            by=float(g @ self._gap),
            drawing=float(((phi - near) ** 2).mean()) / self._rows,
            seen=max(float(g @ self._scatter @ g) - persons / self._n, 0.0),
            drowned=MODEL_ERROR**2 * float(((reach - near) ** 2).mean()),
            beyond=UNSEEN_ERROR**2 * float(((phi - reach) ** 2).mean()),
            g=g,
            persons=persons,
        )


class _Allowance:
    """How much more than the model says an answer may be off, where lines do not show how spread a number is.

    An effect per unit of a number has an influence function in inverse proportion to the number's spread. Where that is
    the model's guess it may be smaller, down to `Mixture.least`, and the room is larger by the square of their ratio.
    """

    def __init__(self, model: Mixture, question: Estimand) -> None:
        blocks = blocks_of(model.code, question)
        # However straight the step, an answer per unit is as wrong as the model's spread of that number.
        self.straight = math.hypot(STEP_ERROR, max((float(model.doubt[block.at]) for block in blocks), default=0.0))
        self._numbers = {
            block.column.name: (*model.spread_of(block), block)
            for block in blocks
            if block.numeric and block.column.name != question.outcome
        }

    def times(self, term: str) -> float:
        """Factor of the variance of what the model may lack."""
        return max((_times(*self._numbers[name][:2]) for name in self._in(term)), default=1.0)

    def warnings(self, term: str) -> list[str]:
        """Sentences that stand beside a term's answer."""
        said = ["Of how three or more columns depend together, only a small error is in the interval."]
        for name in self._in(term):
            guess, floor, block = self._numbers[name]
            low, high = block.column.span
            if _times(guess, floor) > _GUESSED:
                least = floor * (high - low) / 2
                said.append(
                    f"The lines do not show how {name} is spread within its bounds of {low:g} to {high:g}. The "
                    f"interval holds where its standard deviation is {least:.2g} or more; with a smaller one it may be "
                    "far off."
                )
        return said

    def _in(self, term: str) -> list[str]:
        return [name for name in self._numbers if name in re.findall(r"\w+", term)]


def _times(guess: float, least: float) -> float:
    """Variance of an influence function at the least spread, over that at the guess."""
    return (guess / least) ** 2


def blocks_of(code: RowCode, question: Estimand) -> list[Block]:
    """The columns of a question, in the order of the row."""
    return [block for block in code.blocks if block.column.name in question.columns]


def _found_again(
    code: RowCode,
    found: ProjectedMoments,
    model: Mixture,
    drawn: _Drawn,
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    origin: Origin,
) -> list[Estimate]:
    """Estimates of a question without an influence function: `REFITS` repetitions of all that happened say how sure."""
    from shared.estimands.answer import estimate_drawn

    rng, root = np.random.default_rng(_SEED + 1), np.linalg.cholesky(found.noise)
    refits = []
    for _ in range(REFITS):
        rows, _ = model.rows(found.n, rng)
        again = of_rows(rows + rng.standard_normal(rows.shape) @ root.T, found.noise)
        other = fit(code, again, start=model.theta)
        refits.append(estimate_drawn(other.rows(found.n, rng)[1], question, levels=levels, **origin))
    out = []
    for row in drawn.each[0]:
        same = drawn.same(row.term)
        scatter = [one.yi for many in refits for one in many if one.term == row.term and one.yi is not None]
        if len(same) < len(drawn.each) or len(scatter) < REFITS:
            reason = f"the term is in {len(same) + len(scatter)} of {len(drawn.each) + REFITS} synthetic tables only"
            out.append(replace(row, yi=None, vi_sampling=None, vi_privacy=0.0, reason=row.reason or reason))
            continue
        naive = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None]))
        # A dozen repetitions know it that well.
        whole = float(np.var(scatter, ddof=1)) * (REFITS + 1) / (REFITS - 1)
        out.append(
            replace(
                row,
                yi=float(np.mean([one.yi for one in same])),
                vi_sampling=naive,
                vi_privacy=max(whole - 2 * naive, 0.0) + naive / len(drawn.each),
                vi_naive=naive,
                how=f"{len(drawn.each)} synthetic tables; persons, noise and fit done again {REFITS} times",
                warnings=("What a mixture of products cannot say of how columns depend is in no variance.",),
                correlations={},
            )
        )
    return out
