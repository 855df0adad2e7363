r"""A question answered from noisy tables: the synthetic rows' answer, and one step from there to the released counts.

A model fitted to noisy counts draws what noise drowns towards "no association": its answer :math:`\theta(P)` is too
small by an amount that no spread of refits shows. But the released counts say how far the model *P* is from them, and
they are not shrunk. With the influence function :math:`\varphi` of the answer,

.. math:: \theta \approx \theta(P) + \int \varphi \, dP_n, \qquad
          \hat\theta = \theta(P) + \sum_t \langle g_t, \; c_t / n - p_t \rangle,

where :math:`g = \sum_t g_t` stands for φ as a sum of functions of the cells of the released tables, :math:`c_t` are
the released counts and :math:`p_t` the model's. The noise of the second part is known exactly:
:math:`\sigma^2 / n^2 \sum g^2`. What g leaves out of φ is left to the model. So g is the solution of

.. math:: \min_g \; s^2 \, E_P (\varphi - g)^2 + \sigma^2 / n^2 \, \|g\|^2

with *s* the relative error that the model is allowed to have in any one direction (0.4: about what is between
independence and a correlation of 0.4). Both parts are counted in the variance: an interval that
is as wide as noise and drowned association together make it.

The part of φ that no function of two cells can follow (products of three columns, differences within a bin) is in no
released count: there the model is taken at its word, with a small relative error (0.05). Where that part is large, the
estimate says so.

**Combining rule.** m synthetic tables of n rows; the point is the mean of the m answers plus the step, with the tables'
own counts as :math:`p_t`, so that the luck of the draw leaves with the step. With v̄ the mean variance that the tables
claim for n persons,

    vi_sampling = v̄ + E(φ − g)² / (m n)          patients, and the draw
    vi_privacy  = σ²/n² ‖g‖²
    vi_common   = s² E(φ₂ − g)² + 0.05² E(φ − φ₂)² + (step / 3)²

with φ₂ what functions of two cells can follow of φ: noise that came through, association that may have drowned, what
lies beyond two columns, and what a straight step misses of a curved way. No number of draws takes v̄ or the noise away.

An answer without an influence function here (a survival curve, a
restricted mean) is the mean of the m, and its vi_privacy is the mean square distance to it of refits to the model's own
tables with fresh noise, widened for being so few.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse, special
from scipy.sparse.linalg import lsmr

from shared.errors import ParameterError, Refusal
from shared.estimands.answer import Estimand, Estimate, Origin, estimate_drawn, influence
from shared.estimands.kinds import TERMWISE
from shared.estimands.questions import INTERCEPT
from shared.mechanisms.base import HIDDEN
from shared.mechanisms.tables.coarse import MORE_BINS, coarse, unspread
from shared.mechanisms.tables.latent_class import LatentClasses, fit
from shared.mechanisms.tables.noise import CountTables
from shared.plans.dictionary import Dictionary

__all__ = [
    "MODEL_ERROR",
    "STEP_ERROR",
    "UNSEEN_ERROR",
    "Drawn",
    "Released",
    "TableMove",
    "answer",
    "combined",
    "correlated",
    "draw",
    "draw_along",
]
__all__ += ["fitted", "hidden", "influences", "synthetic"]

Array = NDArray[np.float64]

DRAWS = 5
REFITS = 12
MODEL_ERROR = 0.4
"""s: relative error that the fitted model may have in one direction, as a share of the direction's own spread."""
STEP_ERROR = 1 / 3
"""Share of a step that is counted as its error: a step is straight, and the answer is not."""
UNSEEN_ERROR = 0.05
"""The same for directions of which no released count speaks: there the model has only been measured, not corrected."""
MOST_ROWS = 20_000
"""Rows of one synthetic table; a larger site's variance is scaled down from there."""
_LOST = 0.25
"""A larger share of what decides an answer, out of the tables' reach, is told."""
_SEED = 20260301


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """Noisy counts of one site, those of several releases of different persons added up.

    Args:
        tables: what was released, and with how much noise each time.
        counts: one array per table.
        releases: how many were added up.
        hiding: variance of the noise on a share of persons by which a step's g is damped, where it is not these counts'
            own: of everybody's, at a site that is read with others.
    """

    tables: CountTables
    counts: tuple[NDArray[np.int64], ...]
    n: int
    releases: int = 1
    hiding: float | None = None

    def __post_init__(self) -> None:
        if [count.shape for count in self.counts] != [table.shape for table in self.tables.tables]:
            raise ParameterError("released counts must have the shapes of the plan's tables", given="others")
        if min(self.n, self.releases) < 1:
            raise ParameterError("released counts must be of persons", given=f"n = {self.n}")

    @cached_property
    def digest(self) -> str:
        """Of everything that a fit to it depends on."""
        digest = hashlib.sha256(repr((self.tables, self.n, self.releases)).encode())
        for count in self.counts:
            digest.update(np.ascontiguousarray(count, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Released) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def variance(self) -> float:
        """Of the noise on each count; 1/12 for rounding it to a whole number, in each release."""
        return self.releases * (self.tables.sigma**2 + 1 / 12)


@lru_cache(maxsize=64)
def fitted(released: Released) -> LatentClasses:
    """The model of a release, the same for every question. Raises: EstimateRefusal."""
    return fit(released.tables, released.counts, released.n, releases=released.releases)


def synthetic(
    model: LatentClasses, dictionary: Dictionary, *, draws: int, rng: np.random.Generator, rows: int | None = None
) -> list[pd.DataFrame]:
    """`draws` synthetic tables, of as many rows as there are persons unless told otherwise.

    Args:
        model: fitted to the released tables.
        dictionary: of the columns, in whose units the rows are.
        draws: tables, 1 or more.
        rng: spawns a stream for each table.
        rows: of a table; as many as the model is of persons if left out.
    Raises: ParameterError: no draw asked for.
    """
    if draws < 1:
        raise ParameterError("draws must be at least 1", given=f"{draws}")
    return [model.rows(rows or model.n, dictionary, stream) for stream in rng.spawn(draws)]


def answer(
    released: Released,
    model: LatentClasses,
    dictionary: Dictionary,
    question: Estimand,
    *,
    draws: int = DRAWS,
    levels: Mapping[str, Sequence[Any]] | None = None,
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """One estimate per term, by the module's combining rule.

    Args:
        model: `fitted` of the release.
        draws: m, at least 5.
        levels: as of `estimate`. origin: its study, site, wave and receipts.
    Raises: ParameterError (m < 5); EstimateRefusal, as `estimate`, and where the bins hide the outcome of a model.
    """
    hides = unspread(question, coarse(released.tables, released.counts, released.n, released.variance))
    drawn = draw(released, model, dictionary, question, draws=draws, levels=levels, **origin)
    spread = None if drawn.moves else _Refits(released, model, dictionary, question, drawn, levels or {})
    rows = [combined(released, question, drawn, k, hides, spread=spread) for k in range(len(drawn.each[0]))]
    return correlated(rows, drawn, released.n)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The answers of m synthetic tables, and the step from there to the counts.

    Args:
        each: of every table one estimate per term. rows: of each table.
        moves: per term; empty where the question has no influence function.
    """

    each: Sequence[Sequence[Estimate]]
    rows: int
    moves: Sequence[TableMove]


def draw(
    released: Released,
    model: LatentClasses,
    dictionary: Dictionary,
    question: Estimand,
    *,
    draws: int = DRAWS,
    levels: Mapping[str, Sequence[Any]] | None = None,
    most_rows: int = MOST_ROWS,
    **origin: Unpack[Origin],
) -> Drawn:
    """Answers of synthetic tables of a model, and the steps from them to the released counts.

    Args:
        most_rows: of one table; all of them at a site that is read with others.
        The others: as of `answer`.
    Raises: ParameterError (m < 5); EstimateRefusal, as `estimate`.
    """
    if draws < 5:
        raise ParameterError("draws must be at least 5 to be combined", given=f"{draws}")
    rows = most_rows if released.hiding is not None else min(released.n, most_rows)
    tables = synthetic(model, dictionary, draws=draws, rng=np.random.default_rng(_SEED), rows=rows)
    each = [estimate_drawn(table, question, levels=levels, **origin) for table in tables]
    pushes = influences(question, tables, each[0], levels or {})
    moves = [*map(_TableStep(released, tables, dictionary), pushes)] if pushes else []
    return Drawn(each=each, rows=rows, moves=moves)


def draw_along(
    released: Released,
    model: LatentClasses,
    dictionary: Dictionary,
    question: Estimand,
    moves: Sequence[TableMove],
    *,
    levels: Mapping[str, Sequence[Any]],
    most_rows: int,
    **origin: Unpack[Origin],
) -> Drawn:
    """`draw`, with the functions g of another draw in place of ones found on these rows.

    Args:
        moves: of the other draw.
        The others: as of `draw`.
    Raises: EstimateRefusal, as `estimate`.
    """
    rows = min(released.n, most_rows)
    tables = synthetic(model, dictionary, draws=DRAWS, rng=np.random.default_rng(_SEED), rows=rows)
    each = [estimate_drawn(table, question, levels=levels, **origin) for table in tables]
    step = _TableStep(released, tables, dictionary)
    return Drawn(each=each, rows=rows, moves=[step.along(move) for move in moves])


def combined(
    released: Released,
    question: Estimand,
    drawn: Drawn,
    k: int,
    hides: Mapping[str, str],
    *,
    spread: _Refits | None = None,
    mean_step: float | None = None,
) -> Estimate:
    """The estimate of the k-th term.

    Args:
        hides: columns whose bins hide them (`unspread`).
        spread: the variance of a question without an influence function.
        mean_step: of several sites whose model is one; what sites' models lack alike is `vi_common` in any case.
    """
    row, draws = drawn.each[0][k], len(drawn.each)
    same = [[other for other in one if other.term == row.term] for one in drawn.each]
    found = [one[0] for one in same if one and one[0].yi is not None]
    without: dict[str, Any] = {"yi": None, "vi_sampling": None, "vi_privacy": 0.0, "vi_sandwich": None}
    if len(found) < draws:
        reasons = Counter(one[0].reason if one else "the term is not in the table" for one in same)
        del reasons[""]
        told_as = f"in {draws - len(found)} of {draws} synthetic tables: {reasons.most_common(1)[0][0]}"
        return replace(row, **without, reason=told_as)
    in_bins = next((f"{name}: {hides[name]}" for name in re.findall(r"\w+", row.term) if name in hides), "")
    if in_bins:
        return replace(row, **without, reason=f"the released bins do not show how it is spread ({in_bins})")
    point = float(np.mean([one.yi for one in found]))
    naive = float(np.mean([one.vi_sampling for one in found]))
    patients = naive * drawn.rows / released.n
    common = 0.0
    warnings = [*_unadjusted(hides), *_unreleased(released.tables, question)]
    if drawn.moves:
        moved = drawn.moves[k]
        point += moved.by
        sampling = patients + moved.left / (drawn.rows * draws)
        lacking = MODEL_ERROR**2 * moved.drowned + UNSEEN_ERROR**2 * moved.beyond
        # What a site's own model lacks other sites' lack alike: no pool must average it away. But no noise draws a mean
        # or a share anywhere.
        alike = moved.by if mean_step is None else mean_step
        privacy = moved.noise + (STEP_ERROR * (moved.by - alike)) ** 2
        common = lacking + (STEP_ERROR * alike) ** 2
        if question.kind in ("mean", "proportion"):
            privacy, common = privacy + common, 0.0
        of = "all sites' tables" if mean_step is not None else "tables"
        how = f"{draws} synthetic {of} and one step to the released counts; noise exact, model error allowed for"
        warnings += _lost(moved, sampling + privacy + common)
    else:
        assert spread is not None
        wide = spread(row.term)
        if isinstance(wide, str):
            return replace(row, **without, reason=wide)
        sampling, privacy = patients * (1 + released.n / drawn.rows / draws), wide
        how = f"{draws} synthetic tables; noise by {REFITS} refits to the model's tables with fresh noise"
    if ":" in row.term:
        warnings.append(
            "An interaction is a matter of three columns together, which tables of two do not count: the model's "
            "error there is not in this interval."
        )
    scale = released.n / drawn.rows
    return replace(
        row,
        yi=point,
        vi_sampling=sampling,
        vi_privacy=privacy,
        vi_common=common,
        vi_naive=naive,
        how=how,
        warnings=tuple(dict.fromkeys(warnings)),
        n=round(float(np.mean([one.n for one in found])) * scale),
        n_missing=round(float(np.mean([one.n_missing for one in found])) * scale),
        n_outside=round(float(np.mean([one.n_outside for one in found])) * scale),
    )


def correlated(rows: Sequence[Estimate], drawn: Drawn, n: int) -> list[Estimate]:
    """The estimates of `combined`, each with its correlations with the others: of patients, and of the counts' noise.

    What the model may have wrong is in every variance by itself, and in no covariance.
    """
    tables = [{one.term: one for one in table} for table in drawn.each]

    def covariance(k: int, other: int) -> float:
        a, b = rows[k], rows[other]
        r = float(np.mean([table[a.term].correlations.get(b.term, 0.0) for table in tables]))
        patients = r * math.sqrt((a.vi_naive or 0.0) * (b.vi_naive or 0.0)) * drawn.rows / n
        one, two = drawn.moves[k], drawn.moves[other]
        own = float(one.g @ one.g)
        return patients + (one.noise / own * float(one.g @ two.g) if own else 0.0)

    known = [k for k, row in enumerate(rows) if row.yi is not None and row.correlations and drawn.moves]
    out = list(rows)
    for k in range(len(rows)):
        spread = math.sqrt(rows[k].vi or 0.0)
        beside = [other for other in known if other != k] if k in known else []
        r = {rows[j].term: covariance(k, j) / (spread * math.sqrt(rows[j].vi or 0.0)) for j in beside}
        out[k] = replace(rows[k], correlations=r)
    return out


def _unadjusted(hides: Mapping[str, str]) -> list[str]:
    """Warning of a coefficient whose model has a covariate that its bins hide: what it does is in the others."""
    if not hides:
        return []
    return [
        f"This coefficient is not adjusted for {' and '.join(hides)}, as the question asks: one released bin holds "
        f"most persons. What {' and '.join(hides)} would explain is left in it. {MORE_BINS}"
    ]


def _lost(moved: TableMove, whole: float) -> list[str]:
    """Warnings of what decides an answer and is in no released count, or drowned in noise."""
    lines = hidden(MODEL_ERROR**2 * moved.drowned, whole)
    if moved.beyond > _LOST * moved.whole:
        lines.append(
            f"About {100 * moved.beyond / moved.whole:.0f} % of what decides this answer lies in three or more columns "
            "together or within the bins, which tables do not count: of the model's error there, the interval "
            "holds only a small part."
        )
    return lines


# -- the step --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class TableMove:
    """by: the step. noise: its variance. whole: Eφ². left: E(φ − g)². drowned: E(φ₂ − g)². beyond: E(φ − φ₂)². g."""

    by: float
    noise: float
    whole: float
    left: float
    drowned: float
    beyond: float
    g: Array


class _TableStep:
    """From influence functions on synthetic rows to steps: the rows' cells in every table, once for all terms."""

    def __init__(self, released: Released, tables: Sequence[pd.DataFrame], dictionary: Dictionary) -> None:
        columns = [column for one in released.tables.attributes for column in one.columns]
        canonical = pd.DataFrame(
            {
                column.name: np.concatenate([_canonical(table[column.name], column.levels) for table in tables])
                for column in columns
            }
        )
        codes = [attribute.codes(canonical) for attribute in released.tables.attributes]
        self.rows = len(canonical)
        at, places = 0, []
        for table in released.tables.tables:
            places.append(at + np.ravel_multi_index([codes[a] for a in table.of], table.shape))
            at += math.prod(table.shape)
        where = np.column_stack(places)
        ends = np.arange(0, where.size + 1, where.shape[1])
        self.cells = sparse.csr_matrix((np.ones(where.size), where.ravel(), ends), shape=(self.rows, at))
        counted = np.concatenate([np.ravel(count) for count in released.counts])
        self.gap = counted / released.n - np.asarray(self.cells.sum(axis=0)).ravel() / self.rows
        self.noise = released.variance / released.n**2
        self.hiding = self.noise if released.hiding is None else released.hiding

    def __call__(self, phi: Array) -> TableMove:
        damp = math.sqrt(self.hiding * self.rows) / MODEL_ERROR
        g = self._solved(phi, damp)
        near = self.cells @ g
        reach = near if damp < 1 else self.cells @ self._solved(phi, 1.0)
        return TableMove(
            by=float(g @ self.gap),
            noise=self.noise * float(g @ g),
            whole=float(phi @ phi) / self.rows,
            left=float(((phi - near) ** 2).mean()),
            drowned=float(((reach - near) ** 2).mean()),
            beyond=float(((phi - reach) ** 2).mean()),
            g=g,
        )

    def along(self, move: TableMove) -> TableMove:
        """The step from these rows by the function of another."""
        return replace(move, by=float(move.g @ self.gap), noise=self.noise * float(move.g @ move.g))

    def _solved(self, phi: Array, damp: float) -> Array:
        return np.asarray(lsmr(self.cells, phi, damp=damp, atol=1e-4, btol=1e-4, maxiter=60)[0])


def _canonical(values: pd.Series, levels: Sequence[Any]) -> Array:
    """A released column's numbers, or the codes of its levels; NaN where missing."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = values.cat.codes.to_numpy(dtype=np.float64)
        return np.where(codes < 0, np.nan, codes)
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    if not levels:
        return numbers
    known = np.asarray(levels, dtype=np.float64)
    places = np.searchsorted(known, np.nan_to_num(numbers, nan=known[0]), sorter=np.argsort(known))
    return np.where(np.isnan(numbers), np.nan, np.argsort(known)[np.minimum(places, len(known) - 1)])


def hidden(drowned: float, whole: float) -> list[str]:
    """A warning where most of a variance is not noise that was seen, but room for what noise hides.

    Args:
        drowned: that room's part of the variance. whole: the variance.
    """
    if drowned <= whole / 2:
        return []
    return [
        f"About {100 * drowned / whole:.0f} % of this variance is {HIDDEN}: the model may "
        f"be off by {MODEL_ERROR:g} of a standard deviation in any direction of which nothing released can tell. More "
        "persons or a larger ε make it smaller; further questions do not."
    ]


def influences(
    question: Estimand, tables: Sequence[pd.DataFrame], rows: Sequence[Estimate], levels: Mapping[str, Sequence[Any]]
) -> list[Array]:
    """φ of each term on all rows of the tables, one after the other; none where the question has no such function.

    Args:
        rows: the estimates of one of the tables: their terms, in order.
    """
    parts: list[list[Array]] = [[] for _ in rows]
    for table in tables:
        try:
            found = _influence(question, table, levels)
        except Refusal:
            return []
        if question.kind in TERMWISE:
            of_terms = [found.get(row.term, np.zeros(len(table))) for row in rows]
        else:
            of_terms = [pushes for label, pushes in found.items() if label != INTERCEPT] or list(found.values())
        if len(of_terms) != len(rows):
            return []
        for part, pushes in zip(parts, of_terms, strict=True):
            part.append(pushes * len(table))
    return [np.concatenate(part) for part in parts]


def _influence(question: Estimand, table: pd.DataFrame, levels: Mapping[str, Sequence[Any]]) -> dict[str, Array]:
    kind, within = question.kind, question.subset
    if kind in TERMWISE:
        return influence(table, replace(question, robust=""), levels=levels)
    if kind in ("mean", "proportion"):
        like = Estimand(kind="ols" if kind == "mean" else "logistic", outcome=question.outcome, subset=within)
        return influence(table, like, levels=levels)
    if kind in ("difference", "ratio", "two_by_two"):
        # Of groups, a log ratio of means is a Poisson coefficient, a log odds ratio a logistic one, exactly.
        measure = {"difference": "RD", "ratio": "RR"}.get(kind, question.measure)
        model = {"RD": "ols", "RR": "poisson", "OR": "logistic"}.get(measure)
        term = question.terms[0]
        if model is None:
            return {}
        grouped = term if term.startswith("C(") else f"C({term})"
        like = Estimand(kind=model, outcome=question.outcome, terms=(grouped,), subset=within)  # type: ignore[arg-type]
        return influence(table, like, levels=levels)
    if kind == "correlation" and question.structure == "pearson" and not within:
        x = table[list(question.terms)].to_numpy(dtype=np.float64, na_value=np.nan)
        used = np.isfinite(x).all(axis=1)
        z = (x[used] - x[used].mean(axis=0)) / x[used].std(axis=0)
        r = float((z[:, 0] * z[:, 1]).mean())
        out = np.zeros(len(x))
        out[used] = (z[:, 0] * z[:, 1] - r * (z**2).sum(axis=1) / 2) / (1 - r * r) / used.sum()
        return {str(question): out}
    return {}


# -- questions without an influence function -------------------------------------------------------------------
class _Refits:
    """Parametric bootstrap: answers of refits to the model's tables with fresh noise, less the model's own."""

    def __init__(
        self,
        released: Released,
        model: LatentClasses,
        dictionary: Dictionary,
        question: Estimand,
        drawn: Drawn,
        levels: Mapping[str, Sequence[Any]],
    ) -> None:
        each, rows = drawn.each, drawn.rows
        rng = np.random.default_rng(_SEED)
        expected = model.expected(released.tables)
        self.apart: dict[str, list[float]] = {}
        streams = np.random.SeedSequence(_SEED).spawn(len(each))
        for b in range(REFITS):
            noisy = [
                np.rint(mean + math.sqrt(released.variance) * rng.standard_normal(mean.shape)) for mean in expected
            ]
            counts = [count.astype(np.int64) for count in noisy]
            refitted = fit(released.tables, counts, released.n, releases=released.releases, start=model.theta)
            # The same draws as of the synthetic table it is held against: only the models differ.
            table = refitted.rows(rows, dictionary, np.random.default_rng(streams[b % len(each)]))
            first = {row.term: row.yi for row in each[b % len(each)]}
            for row in estimate_drawn(table, question, levels=levels):
                before = first.get(row.term)
                if row.yi is not None and before is not None:
                    self.apart.setdefault(row.term, []).append(row.yi - before)

    def __call__(self, term: str) -> float | str:
        apart = self.apart.get(term, [])
        if len(apart) < 0.75 * REFITS:
            return f"with fresh noise the answer does not exist in {REFITS - len(apart)} of {REFITS} refits"
        widened = float(special.stdtrit(len(apart), 0.975) / special.ndtri(0.975)) ** 2
        return widened * float(np.mean(np.square(apart)))


def _unreleased(tables: CountTables, question: Estimand) -> list[str]:
    """A warning of columns of the question of which the plan crosses no table."""
    places = {column.name: a for a, one in enumerate(tables.attributes) for column in one.columns}
    attributes = sorted({places[name] for name in question.columns if name in places})
    crossed = {table.of for table in tables.tables}
    names = [one.name for one in tables.attributes]
    lack = [
        f"{names[i]} × {names[j]}"
        for k, i in enumerate(attributes)
        for j in attributes[k + 1 :]
        if (i, j) not in crossed
    ]
    if not lack:
        return []
    return [f"No table was released of {', '.join(lack)}: that association is as the model guesses it."]
