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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.mechanisms.slicing.noise import RowCode
from shared.mechanisms.slicing.projections import Mixture, ProjectedMoments, fit, of_rows
from shared.mechanisms.tables.one_step import MODEL_ERROR, STEP_ERROR, UNSEEN_ERROR, hidden, influences

if TYPE_CHECKING:
    from shared.estimands.answer import Estimand, Estimate, Origin

__all__ = ["answer", "together"]

Array = NDArray[np.float64]

DRAWS, REFITS = 5, 12
"""Synthetic tables of an answer, and how often it is found again from rows of the model."""
MOST_ROWS = 10_000
"""Of one synthetic table of several sites."""
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
        vi_privacy  = gᵀSg − Var(g·f) / n + s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)² + (step · b)²

    where b² is 1/9 and the doubt about the spread of the question's numbers, and φ₂ what entries and their products
    can follow of φ. What scatters gᵀSg are persons and noise together: the persons' part of it is in v̄ already.

    Args:
        draws: m, at least 5.
        levels: as of `estimate`. origin: its study, site, wave and receipts.
    Raises: ParameterError (m < 5); EstimateRefusal, as `estimate`.
    """
    from shared.estimands.answer import estimate_drawn

    if draws < 5:
        raise ParameterError("draws must be at least 5 to be combined", given=f"{draws}")
    model, rng = fit(code, found), np.random.default_rng(_SEED)
    drawn = [model.rows(found.n, rng) for _ in range(draws)]
    tables = [table for _, table in drawn]
    each = [estimate_drawn(table, question, levels=levels, **origin) for table in tables]
    pushes = influences(question, tables, each[0], levels)
    step = _ProjectionStep(model, found, question, np.concatenate([coded for coded, _ in drawn])) if pushes else None
    refits = [] if pushes else _refits(code, found, model, question, rng, levels=levels, **origin)
    out = []
    for k, row in enumerate(each[0]):
        same, repeated = (
            [one for one in (next((r for r in many if r.term == row.term), None) for many in sets) if one is not None]
            for sets in (each, refits)
        )
        values = [one.yi for one in same if one.yi is not None]
        scatter = [one.yi for one in repeated if one.yi is not None]
        if len(values) < draws or len(scatter) < len(refits):
            reason = f"the term is in {len(values) + len(scatter)} of {draws + len(refits)} synthetic tables only"
            out.append(replace(row, yi=None, vi_sampling=None, vi_privacy=0.0, reason=row.reason or reason))
            continue
        naive = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None]))
        point = float(np.mean(values))
        warnings = ["What a mixture of products cannot say of how columns depend is in no variance."]
        if step is not None:
            moved = step(pushes[k])
            point, sampling, privacy = point + moved.by, naive + moved.drawing, moved.privacy
            warnings = ["Of how three or more columns depend together, only a small error is in the interval."]
            warnings += hidden(moved.drowned, sampling + privacy)
            how = f"{draws} synthetic tables and one step to the lines' moments; noise seen, model error allowed for"
        else:
            whole = (
                float(np.var(scatter, ddof=1)) * (REFITS + 1) / (REFITS - 1)
            )  # a dozen repetitions know it that well
            sampling, privacy = naive, max(whole - 2 * naive, 0.0) + naive / draws
            how = f"{draws} synthetic tables; persons, noise and fit done again {REFITS} times"
        out.append(
            replace(
                row,
                yi=point,
                vi_sampling=sampling,
                vi_privacy=privacy,
                vi_naive=naive,
                how=how,
                warnings=tuple(warnings),
                correlations={},  # what its noise has in common between terms is not known
            )
        )
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

    As in `shared.mechanisms.tables.together`: g is one function for all sites, damped as far as the noise of all lines
    together asks, and what the model lacks it lacks at every site,

        vi_privacy = gᵀS_k g − Var(g·f) / n_k + ((step_k − step) · b)²
        vi_common  = s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)² + (step · b)²

    where step is the mean over persons of the sites' step_k.

    Args:
        sites: what each released. everybody: the same of all of them.
        levels: as of `estimate`. origins: site to study, site, wave and receipts.
    Raises: EstimateRefusal, as `estimate`.
    """
    from shared.estimands.answer import estimate_drawn

    model, rng = fit(code, everybody), np.random.default_rng(_SEED)
    drawn = [model.rows(min(everybody.n, MOST_ROWS), rng) for _ in range(DRAWS)]
    tables = [table for _, table in drawn]
    each = [estimate_drawn(table, question, levels=levels, **next(iter(origins.values()))) for table in tables]
    pushes = influences(question, tables, each[0], levels)
    if not pushes:
        return {}
    step = _ProjectionStep(model, everybody, question, np.concatenate([coded for coded, _ in drawn]))
    moves, gaps = [step(push) for push in pushes], {site: step.gap(found) for site, found in sites.items()}
    out: dict[str, list[Estimate]] = {site: [] for site in sites}
    for row, move in zip(each[0], moves, strict=True):
        same = [one for many in each for one in many if one.term == row.term and one.yi is not None]
        naive = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None] or [0.0]))
        lacking = move.drowned + move.beyond + (step.straight * move.by) ** 2
        for site, (gap, scatter) in gaps.items():
            n, own = sites[site].n, replace(row, **origins[site])
            if len(same) < DRAWS:
                reason = row.reason or f"the term is in {len(same)} of {DRAWS} synthetic tables only"
                out[site].append(replace(own, yi=None, vi_sampling=None, vi_privacy=0.0, reason=reason))
                continue
            fewer = len(tables[0]) / n  # times the rows that this site has
            by, patients = float(move.g @ gap), naive * fewer
            seen = max(float(move.g @ scatter @ move.g) - move.persons / n, 0.0)
            sampling, privacy = patients + move.drawing, seen + (step.straight * (by - move.by)) ** 2
            warnings = ["Of how three or more columns depend together, only a small error is in the interval."]
            out[site].append(
                replace(
                    own,
                    yi=float(np.mean([one.yi for one in same])) + by,
                    vi_sampling=sampling,
                    vi_privacy=privacy,
                    vi_common=lacking,
                    vi_naive=patients,
                    vi_sandwich=None if own.vi_sandwich is None else own.vi_sandwich * fewer,
                    how=f"{DRAWS} synthetic tables of all sites' lines and one step to the site's; noise seen",
                    warnings=(*warnings, *hidden(move.drowned, sampling + privacy + lacking)),
                    correlations={},
                    n=round(own.n / fewer),
                    n_missing=round(own.n_missing / fewer),
                    n_outside=round(own.n_outside / fewer),
                )
            )
    return out


@dataclass(frozen=True, kw_only=True)
class _ProjectionMove:
    """by: the step. drawing: what the draw of rows adds to the variance of patients. The rest is privacy's variance.

    seen: what scatters the lines' moments, noise and persons, less the persons' part. drowned: the model's error where
    noise hides it. beyond: the same past pairs of entries. bent: of the step, which is straight.
    g: (features,) the function that is followed. persons: its variance.
    """

    by: float
    drawing: float
    seen: float
    drowned: float
    beyond: float
    bent: float
    g: Array
    persons: float

    @property
    def privacy(self) -> float:
        return self.seen + self.drowned + self.beyond + self.bent


class _ProjectionStep:
    """From an influence function on synthetic rows to a step: of one question, for all its terms.

    Args:
        coded: (rows, d) of all synthetic tables, in order.
    """

    def __init__(self, model: Mixture, found: ProjectedMoments, question: Estimand, coded: Array) -> None:
        blocks = [block for block in model.code.blocks if block.column.name in question.columns]
        # An answer per unit of a number is as wrong as the model's spread of that number, however straight the step.
        self.straight = math.hypot(STEP_ERROR, max((float(model.doubt[block.at]) for block in blocks), default=0.0))
        self._entries = [i for block in blocks for i in range(block.at, block.at + block.size)]
        own = [k for k, block in enumerate(blocks) for _ in range(block.size)]
        number = [block.numeric and i == block.at for block in blocks for i in range(block.at, block.at + block.size)]
        # Within a levelled column a product of two entries is 0 or the entry itself.
        pairs = [
            (i, j) for i in range(len(own)) for j in range(i, len(own)) if own[i] != own[j] or (i == j and number[i])
        ]
        self._left, self._right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
        features = self._features(coded)
        self._centred = features - features.mean(axis=0)
        self._square = self._centred.T @ self._centred / len(coded)
        self._rows, self._n, self._mean = len(coded), found.n, features.mean(axis=0)
        self._gap, self._scatter = self.gap(found)

    def gap(self, found: ProjectedMoments) -> tuple[Array, Array]:
        """Mean features of released lines less those of the model's rows, and the covariance of that mean."""
        total, scatter = np.zeros_like(self._mean), np.zeros_like(self._square)
        for rows, noise in found.parts:
            seen = self._features(rows, noise)
            total += seen.sum(axis=0)
            scatter += np.cov(seen, rowvar=False, ddof=1).reshape(scatter.shape) * len(rows)
        return total / found.n - self._mean, scatter / found.n**2

    def _features(self, rows: Array, noise: Array | None = None) -> Array:
        """Entries and their products, the latter less what noise adds to them on average."""
        entries = rows[:, self._entries]
        products = entries[:, self._left] * entries[:, self._right]
        if noise is not None:
            products -= noise[np.ix_(self._entries, self._entries)][self._left, self._right]
        return np.concatenate([entries, products], axis=1)

    def __call__(self, phi: Array) -> _ProjectionMove:
        along = self._centred.T @ phi / self._rows
        g = np.linalg.solve(self._square + self._scatter / MODEL_ERROR**2, along)
        reach = self._centred @ np.linalg.lstsq(self._square, along, rcond=1e-10)[0]
        near = self._centred @ g
        by, persons = float(g @ self._gap), float(near @ near) / self._rows
        seen = float(g @ self._scatter @ g) - persons / self._n
        return _ProjectionMove(
            by=by,
            drawing=float(((phi - near) ** 2).mean()) / self._rows,
            seen=max(seen, 0.0),
            drowned=MODEL_ERROR**2 * float(((reach - near) ** 2).mean()),
            beyond=UNSEEN_ERROR**2 * float(((phi - reach) ** 2).mean()),
            bent=(self.straight * by) ** 2,
            g=g,
            persons=persons,
        )


def _refits(
    code: RowCode,
    found: ProjectedMoments,
    model: Mixture,
    question: Estimand,
    rng: np.random.Generator,
    *,
    levels: Mapping[str, Any],
    **origin: Unpack[Origin],
) -> list[list[Estimate]]:
    """The answers of `REFITS` repetitions of all that happened, on rows of the model."""
    from shared.estimands.answer import estimate_drawn

    root = np.linalg.cholesky(found.noise)
    out = []
    for _ in range(REFITS):
        rows, _ = model.rows(found.n, rng)
        drawn = of_rows(rows + rng.standard_normal(rows.shape) @ root.T, found.noise)
        other = fit(code, drawn, start=model.theta)
        out.append(estimate_drawn(other.rows(found.n, rng)[1], question, levels=levels, **origin))
    return out
