r"""Standard errors from a released table: of the patients behind the rows, not of the rows.

The rows of a release look like patients, and a program that takes them for patients finds the variance of a table of
so many patients: too small, because the same patients also shaped the flow the rows were drawn from, and because the
rows are noise in part. The coordinator has neither the patients nor, in general, the flow. It has the rows, w and the
numbers of the receipt, and that is enough to first order.

Let φ be the influence function of the estimate, in latents: θ̃ ≈ θ + the mean of φ over what it is computed from.
Latent noise blends z with fresh noise, √w z + √(1−w) Z: an Ornstein-Uhlenbeck step, whose eigenfunctions are the
Hermite polynomials. The part φ_k of order k keeps the share w^{k/2} of itself. So, with a = w^{k/2}, V = Var φ, N rows
of as many patients and a flow that m persons were fitted on,

.. math:: \tilde\theta - \theta = (1 - a) F + a S + E, \quad
          \mathrm{Var}\,F = V/m, \; \mathrm{Var}\,S = V/N, \; \mathrm{Var}\,E = (1 - a^2) V/N

F is the flow's error (an efficient fit errs by the mean of φ over its persons), S the patients', E the noise of the
release. E is the **privacy** part. The rest is the **sampling** part: patients, and flow fit. If the flow was fitted on
the very persons released (posture `local`), F = S, and the whole is V/N (2 − w^k): at w = 0 twice what the rows claim.
If on others (`holdout`), F and S are independent: V/N + (1 − a)² V/m. The term V/m does not depend on the rows, so no
number of rows or of copies brings the variance below it.

The **order** k is a matter of the question. A mean of a normal column is of order 1; a regression coefficient, a
product of two columns, of order 2, exactly so in the linear Gaussian case. A threshold (an event) has parts of every
order, and forgets faster. `effective_order` finds it by a parametric bootstrap: a Gaussian copula with the released
table's own margins stands in for the flow, two tables are drawn whose latents correlate by r, and the influences of
their rows correlate by about r^k.

V is the variance of what rows move the estimate by, and not what the question's model says it is: E is counted with the
rows' sandwich where that is larger (`Estimate.sandwich_ratio`). The patients' part stays the question's own, as it is
for a reader of the records.

What this does not hold: a flow that does not draw the law of the data. That error is not random, does not shrink with
the rows, and at the sites of one study often has one sign. Where it is known to matter, the estimate says so.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import ParameterError, Refusal
from shared.estimands.answer import Estimand, Estimate, influence, influences
from shared.estimands.design import numeric_columns
from shared.estimands.fits.cox import Fitting, alone
from shared.estimands.formulas import QuestionRows, is_logical, parse, values
from shared.estimands.kinds import REPEATED, TERMWISE
from shared.estimands.questions import INTERCEPT, Kind
from shared.estimands.splines import CURVES
from shared.plans.outcomes import between_covariates

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

special = deferred("scipy.special")

__all__ = [
    "BENT",
    "Draw",
    "SurrogateSampler",
    "effective_order",
    "inflation",
    "kept_shares",
    "parts",
    "releasing",
    "with_release_variance",
]

Array = NDArray[np.float64]

SURROGATE_ROWS, MORE_ROWS = 512, 2048
"""Rows of each of the two tables by which the order of a question is found; and where these are too few for it."""
_SEED = 20260105
_LEAST_R = 0.5
COX_ATTENUATION = 0.08
"""Share by which a flow at w = 0 drew the pooled log hazard ratio of the twelve full-size cohorts towards zero:
`mean_absolute_gap/w=0.0` of tests/benchmarks/results/cohorts_gap.json, 0.0137 of 1.17, is 7.5 % of log 1.17; one sign
on every draw. At other w it is taken to be in proportion to the noise (tests/benchmarks/interval_coverage.py)."""
_HAZARD_RATIOS = ("cox", "flexible", "logrank")
"""Kinds that this was measured of."""
_PAIRS_KEPT = 16
_EVERY_ORDER = math.inf
"""Order of what forgets at once: its noise is counted in full."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Rows that were drawn through one flow.

    Args:
        rows: number of rows of the table that were drawn so.
        w: weight of the data in their latents, in [0, 1).
        flow: name of the flow; draws through one flow share its error.
        fitted_on: persons the flow was fitted on; None if it was fitted on no record.
        among: True if those persons are among the table's.
        outcomes_last: True if the outcomes were drawn from a law given the covariates, not by the flow.
        last: names of these outcomes; None where they are not known.
    """

    rows: int
    w: float
    flow: str = ""
    fitted_on: int | None
    among: bool = True
    outcomes_last: bool = False
    last: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or not 0 <= self.w < 1 or (self.fitted_on is not None and self.fitted_on < 1):
            raise ParameterError(
                "a draw must have rows, a w in [0, 1) and persons its flow was fitted on",
                given=f"rows = {self.rows}, w = {self.w}, fitted_on = {self.fitted_on}",
            )


def parts(naive: float, draws: Sequence[Draw], order: float, *, copies: bool = False) -> tuple[float, float]:
    """(sampling, privacy) variance of an estimate from a released table.

    Args:
        naive: variance that the table's own standard error claims; all its rows together.
        draws: the draws that the rows came from.
        order: k; infinite for "at most".
        copies: True if the draws may be of the same persons (several waves put together). Nobody outside the site knows
            who is in both, nor how alike a person's waves are, so the errors of patients and of the flows fitted on
            them are taken to be one and the same in all draws; those of flows of others, and the noise, average out.

    The linear Gaussian case, posture `local`: 2 − w² times what the rows claim.

    >>> [round(sum(parts(1.0, [Draw(rows=500, w=w, fitted_on=500)], 2)), 3) for w in (0.0, 0.5, 0.8)]
    [2.0, 1.75, 1.36]

    A million rows drawn from the flow of 500 persons: the variance of 500 persons, 2000 times what the rows claim.

    >>> round(sum(parts(1.0, [Draw(rows=10**6, w=0.0, fitted_on=500)], 2)))
    2001
    """
    total = sum(draw.rows for draw in draws)
    row = naive * total
    share = [draw.rows / total for draw in draws]
    weights = [_weight(draw.w, order) for draw in draws]
    privacy = row / total * sum(p * (1 - a * a) for p, a in zip(share, weights, strict=True))
    flows: dict[str, list[tuple[Draw, float, float]]] = {}
    for draw, p, a in zip(draws, share, weights, strict=True):
        flows.setdefault(draw.flow, []).append((draw, p, a))
    # The flow's own error enters with the weight of all the rows drawn through it.
    fits = [(group[0][0], sum(p * (1 - a) for _, p, a in group), group[0][2]) for group in flows.values()]
    known = [(draw, weight, a, float(draw.fitted_on)) for draw, weight, a in fits if draw.fitted_on is not None]
    if copies:
        patients = sum(p * a / math.sqrt(draw.rows) for draw, p, a in zip(draws, share, weights, strict=True))
        own = sum(weight / math.sqrt(m) for draw, weight, _, m in known if draw.among)
        others = sum(weight / math.sqrt(m) for draw, weight, _, m in known if not draw.among)
        return row * ((patients + own) ** 2 + others**2), privacy
    sampling = sum(p * a * a for p, a in zip(share, weights, strict=True)) / total
    sampling += sum(weight**2 / m for _, weight, _, m in known)
    sampling += sum(2 * weight * a / total for draw, weight, a, _ in known if draw.among)
    return row * sampling, privacy


def inflation(draws: Sequence[Draw], *, copies: bool = False) -> float:
    """Variance inflation of an estimate of unknown order: its noise counted in full.

    >>> inflation([Draw(rows=500, w=0.5, fitted_on=500)])
    2.0
    """
    return sum(parts(1.0, draws, _EVERY_ORDER, copies=copies))


def _weight(w: float, order: float) -> float:
    """a = w^{k/2}: share of itself that the patients' part keeps."""
    return 0.0 if w == 0 or math.isinf(order) else float(w ** (order / 2))


# -- the order of a question -----------------------------------------------------------------------------------
def effective_order(
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    w: float,
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    surrogate: SurrogateSampler | None = None,
) -> dict[str, float]:
    """Term -> k such that estimates from two tables whose latents correlate by r correlate by about r^k, at r = w.

    A term that is not in the answer has none: its noise must be counted in full. Other kinds than models are asked
    about through the model that has their influence (a difference of means through least squares), and have one order
    for all terms, under the blank name; kinds that have none (km, rmst) have no order.

    Args:
        surrogate: of this very table, from an earlier question; the orders are the same without it.
    Raises: nothing of the question: a surrogate that does not support it answers nothing.
    """
    return alone(_effective_order(table, question, w, levels, surrogate))


def _effective_order(
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    w: float,
    levels: Mapping[str, Sequence[Any]] | None,
    surrogate: SurrogateSampler | None,
) -> Fitting[dict[str, float]]:
    """`effective_order`, as work that waits for its fits.

    Args: as of `effective_order`.
    """
    model = _as_model(question)
    if model is None or not len(table):
        return {}
    r = max(w, _LEAST_R)
    surrogate = surrogate or SurrogateSampler()
    out: dict[str, float] = {}
    for rows in (SURROGATE_ROWS, MORE_ROWS):
        with contextlib.suppress(Refusal):
            pushes = yield from influences(surrogate.rows(table, model.columns, r, rows), model, levels)
            shares = {label: _share(push, len(model.columns), r) for label, push in pushes.items() if push.any()}
            out = {label: math.log(min(max(share, 0.01), r)) / math.log(r) for label, share in shares.items()}
        if set(model.labels) <= out.keys():
            break
    slopes = [order for label, order in out.items() if label != INTERCEPT] or list(out.values())
    return out if question.kind in TERMWISE or not slopes else {"": max(slopes)}


def kept_shares(
    table: pd.DataFrame | QuestionRows,
    redrawn: pd.DataFrame | QuestionRows,
    question: Estimand,
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, float]:
    """Term -> a, the share of itself that each row's influence keeps from a table to its release: a correlation.

    Where rows can be released again nothing need be assumed of columns or noise: a column that is carried over keeps
    what is its own, and a flow that draws badly keeps less. Kinds that are asked about through a model have one share
    for all terms, under the blank name; a term without an answer in either table has none.

    Args:
        table, redrawn: (n, …) rows, and the same rows released again, in their order.
    """
    model = _as_model(question)
    if model is None:
        return {}
    with contextlib.suppress(Refusal):
        before, after = (influence(rows, model, levels=levels) for rows in (table, redrawn))
        out = {}
        for label in before.keys() & after.keys():
            if before[label].any() and after[label].any():
                out[label] = float(np.corrcoef(before[label], after[label])[0, 1])
        slopes = [share for label, share in out.items() if label != INTERCEPT] or list(out.values())
        return out if question.kind in TERMWISE or not slopes else {"": min(slopes)}
    return {}


def _share(push: Array, d: int, r: float) -> float:
    """Correlation of the influences of the rows of two tables, (2m,) one below the other, whose latents correlate by r.

    On the polynomials of orders 1 and 2 in the latents it is r and r² without error; what is left over is counted.
    """
    m = len(push) // 2
    _, basis, dual, degree = _latents(d, m, r)
    found = dual @ push
    rest = push - basis @ found
    together = float(found**2 @ r**degree) + float(rest[:m] @ rest[m:]) / m
    return together / (float(found @ found) + float(rest @ rest) / (2 * m))


def _as_model(question: Estimand) -> Estimand | None:
    """The model whose coefficients have the influence of the question."""
    kind = question.kind
    if kind in REPEATED:  # which rows are one person's makes the model
        return replace(question, robust="") if question.robust else question
    if kind in TERMWISE:
        return replace(question, robust="", cluster="") if question.robust or question.cluster else question
    within = question.subset
    if kind in ("mean", "proportion"):
        return Estimand(kind="ols" if kind == "mean" else "logistic", outcome=question.outcome, subset=within)
    if kind in ("difference", "ratio", "two_by_two"):
        like: Kind = "logistic" if kind == "two_by_two" else "ols"
        return Estimand(kind=like, outcome=question.outcome, terms=question.terms, subset=within)
    if kind == "correlation":
        return Estimand(kind="ols", outcome=question.terms[0], terms=(question.terms[1],), subset=within)
    if kind == "logrank":
        return Estimand(
            kind="cox",
            duration=question.duration,
            event=question.event,
            terms=question.terms,
            strata=question.strata,
            subset=within,
        )
    return None


class SurrogateSampler:
    """Draws tables like a given one: a Gaussian copula with its margins. Safe for many threads.

    The order of the rows by each column, and the tables drawn last, are kept for the next question to the same table.
    """

    def __init__(self) -> None:
        self._orders: dict[str, NDArray[np.int32]] = {}
        self._drawn: OrderedDict[tuple[tuple[str, ...], float, int], tuple[pd.DataFrame, QuestionRows]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def cells(self) -> int:
        """Numbers that are kept, of eight bytes."""
        orders, drawn = list(self._orders.values()), list(self._drawn.values())
        return sum(order.nbytes // 8 for order in orders) + sum(rows.cells for _, rows in drawn)

    def forget_drawn(self) -> None:
        """Keep no tables that were drawn: they are drawn again sooner than the columns are worked out."""
        with self._lock:
            self._drawn.clear()

    def draw(
        self, table: pd.DataFrame | QuestionRows, columns: Sequence[str], r: float, rows: int = SURROGATE_ROWS
    ) -> pd.DataFrame:
        """Two tables of `rows` rows, one below the other, whose latents correlate by r, row by row.

        A missing value is drawn as often as the table has one. The draws are the same at every call: an answer that
        is asked for twice is the same answer.

        Args:
            table: (n, …); the same at every call.
        """
        return self._pair(table, (tuple(columns), r, rows))[0]

    def rows(
        self, table: pd.DataFrame | QuestionRows, columns: Sequence[str], r: float, rows: int = SURROGATE_ROWS
    ) -> QuestionRows:
        """`draw`, as questions read it."""
        return self._pair(table, (tuple(columns), r, rows))[1]

    def _pair(
        self, table: pd.DataFrame | QuestionRows, place: tuple[tuple[str, ...], float, int]
    ) -> tuple[pd.DataFrame, QuestionRows]:
        with self._lock:
            if place not in self._drawn:
                drawn = self._draw(table, *place)
                self._drawn[place] = drawn, QuestionRows(drawn)
                while len(self._drawn) > _PAIRS_KEPT:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(place)
            return self._drawn[place]

    def _draw(self, table: pd.DataFrame | QuestionRows, columns: tuple[str, ...], r: float, rows: int) -> pd.DataFrame:
        n, d = len(table), len(columns)
        normal, scores = special.ndtri((np.arange(n) + 0.5) / n), np.empty((d, n))
        for name, score in zip(columns, scores, strict=True):
            if name not in self._orders:
                self._orders[name] = _order(table, name)
            score[self._orders[name]] = normal
        with np.errstate(all="ignore"):
            correlation = np.atleast_2d(np.corrcoef(scores))
        root = np.linalg.cholesky(0.999 * np.nan_to_num(correlation, nan=1.0) + 0.001 * np.eye(d))
        uniform = special.ndtr(_latents(d, rows, r)[0] @ root.T)
        at = np.minimum((uniform * n).astype(np.int64), n - 1)
        drawn = {name: table[name].array.take(self._orders[name][at[:, j]]) for j, name in enumerate(columns)}
        return pd.DataFrame(drawn, copy=False)


def _order(table: pd.DataFrame | QuestionRows, name: str) -> NDArray[np.int32]:
    """The rows of the table by a column, rising; ties are broken by lot, for each column anew."""
    lots = np.random.default_rng([_SEED, list(table.columns).index(name)]).random(len(table))
    return np.lexsort((lots, _key(table[name]))).astype(np.int32)


@functools.lru_cache(maxsize=32)
def _latents(d: int, rows: int, r: float) -> tuple[Array, Array, Array, Array]:
    """Latents (2 rows, d) of two tables; Hermite polynomials of orders 1 and 2 at them, the least-squares map, orders.

    Of so many columns that a coefficient would have fewer than ten rows, order 1 alone, or none.
    """
    rng = np.random.default_rng(_SEED)
    z, fresh = rng.standard_normal((2, rows, d))
    latents = np.concatenate([z, r * z + math.sqrt(1 - r * r) * fresh])
    i, j = np.tril_indices(d, -1)
    first, second = latents, np.hstack([(latents**2 - 1) / math.sqrt(2), latents[:, i] * latents[:, j]])
    parts_ = [part for most, part in ((d, first), (d + second.shape[1], second)) if 10 * most <= 2 * rows]
    basis = np.hstack([np.ones((2 * rows, 1)), *parts_])
    degree = np.repeat(np.arange(1.0, 1 + len(parts_)), [part.shape[1] for part in parts_])
    return latents, basis[:, 1:], np.linalg.pinv(basis)[1:], degree


def _key(column: pd.Series) -> Array:
    """Sort key of a column: levels in their order, words by name, missing values last."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy(dtype=np.float64)
        return np.where(codes < 0, np.inf, codes)
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.nan_to_num(column.to_numpy(dtype=np.float64, na_value=np.nan), nan=np.inf)
    codes = pd.factorize(column, sort=True)[0].astype(np.float64)
    return np.where(codes < 0, np.inf, codes)


_OPEN = {
    "public": "The flow was fitted on no record of the site, so the released rows hold an association only as far as w "
    "keeps it; the flow's bias is not in this interval.",
    "private": "The flow was trained with noise from a public start; that noise and the flow's bias are not in this "
    "interval.",
}
_SHAPE = (
    "An interaction or a curve is in the released rows only as far as the fitted flow draws it; the flow's bias is not "
    "in this interval."
)
BENT = (
    "The outcome is a curved function of a column that is drawn by a law straight in it: effects can lie further from "
    "the records' own than this interval says. Release the function as a column of its own, which sites derive."
)
BENT_TERM = (
    "The model has a curved function of a column, such as its logarithm: what it does is drawn by laws straight in "
    "the column itself, and was seen too near none by more than this interval says. Release the function as a column "
    "of its own, which sites derive."
)
BETWEEN = "the flow alone says how they hang together"
_BETWEEN = (
    "No planned question has {} as its outcome, so that {}: its error is not in this interval, and was seen to be many "
    "times its width between columns that go together strongly. Plan a model with one of them as its outcome, which "
    "is drawn last then."
)
UNMEASURED = (BENT, BENT_TERM, BETWEEN)
"""In the cautions of an answer whose distance to the records' own is not known."""
_STRAIGHT = 0.95
"""Least correlation of an outcome with the drawn column that it is a function of, for no caution."""
_SKEWED = (
    "The outcome of a Gamma model is drawn by a law that the flow fits to it, not by the model's: with little of the "
    "records in the rows its coefficients were measured 5 % too far from none, which is not in this interval."
)
"""Cell `gamma(cost) ~ x + arm: x`, w = 0, of tests/benchmarks/results/model_coverage.json; at w = 0.8 none is seen."""
_TIMES = (
    "Times are drawn by a hazard that the flow fits to them, not by this model's law: with little of the records in "
    "the rows its coefficients were measured up to 10 % too far from none, which is not in this interval."
)
"""Cell `aft(years, died) ~ x + arm: x`, w = 0, of tests/benchmarks/results/survival_coverage.json."""
_CHANGES = (
    "How an effect changes with time is in the released rows only as far as the kept share of the records holds it: "
    "that no change is found says little of the records where that share is small."
)
_ALIKE = (
    "Rows are released one by one: how alike the rows of a cluster are is in them only as far as its column and the "
    "kept share of the records hold it, so errors by cluster are those of what was released."
)
_WAVES = (
    "Rows of several waves are put together here, and persons may be in more than one: the interval takes their errors "
    "to be the same in every wave, so that further waves of the same persons make it hardly narrower."
)
_LITTLE = 0.5
_CURVES = tuple(f"{name}(" for name in CURVES)


# -- estimates ---------------------------------------------------------------------------------------------------
def releasing(
    estimates: Sequence[Estimate],
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    draws: Sequence[Draw],
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    copies: bool = False,
    postures: Sequence[str] = (),
    surrogate: SurrogateSampler | None = None,
) -> Fitting[list[Estimate]]:
    """The same estimates with the variance of the patients behind the rows; the rows' own stays as `vi_naive`.

    It is work that waits for its fits.

    Args:
        estimates: of one released table, `vi_sampling` as the rows claim.
        draws: the draws that its rows came from.
        copies: as in `parts`.
        postures: of the releases: some have an error that no variance holds.
        surrogate: as in `effective_order`.
    """
    weights = {draw.w for draw in draws if draw.w > 0}
    answered = any(row.yi is not None for row in estimates)
    orders = {}
    if weights and answered:
        orders = yield from _effective_order(table, question, max(weights), levels, surrogate)
    by_laws = answered and any(draw.outcomes_last for draw in draws)
    beside = _of_straight_laws(QuestionRows.of(table), question, draws) if by_laws else []
    out = []
    for row in estimates:
        if row.vi_sampling is None:
            out.append(row)
            continue
        order = orders.get(row.term, orders.get("", _EVERY_ORDER))
        sampling, privacy = parts(row.vi_sampling, draws, order, copies=copies)
        if not weights:
            how = "drawn from the fitted flow: noise of the draw known, flow fit by linearisation"
        elif math.isinf(order):
            how = "latent noise, counted in full: an upper bound"
        else:
            how = "latent noise and flow fit by linearisation, its order by parametric bootstrap"
        lost = 0.0
        if question.kind in _HAZARD_RATIOS and not all(draw.outcomes_last for draw in draws):
            # What the flow misses is of high order, so the rows keep little of it: the noise's share, as measured.
            lost = COX_ATTENUATION * privacy / row.vi_sampling
        privacy *= row.sandwich_ratio
        warnings = [_OPEN[posture] for posture in sorted(set(postures)) if posture in _OPEN]
        # A standardised answer is predicted from every term of its model.
        shapes = question.terms if question.kind == "standardised" else (row.term,)
        if any(":" in term or "^" in term or term.startswith(_CURVES) for term in shapes):
            warnings.append(_SHAPE)
        if "gamma" in (question.kind, question.model) and any(draw.w < _LITTLE for draw in draws):
            warnings.append(_SKEWED)
        if question.kind == "aft" and any(draw.w < _LITTLE for draw in draws):
            warnings.append(_TIMES)
        warnings += beside
        if question.kind == "schoenfeld" or row.term.startswith("by_time("):
            warnings.append(_CHANGES)
        if question.cluster:
            warnings.append(_ALIKE)
        if copies:
            warnings.append(_WAVES)
        out.append(
            replace(
                row,
                vi_sampling=sampling,
                vi_privacy=privacy,
                vi_naive=row.vi_sampling,
                how=how,
                attenuation=lost,
                warnings=tuple(warnings),
            )
        )
    return out


def _of_straight_laws(rows: QuestionRows, question: Estimand, draws: Sequence[Draw]) -> list[str]:
    """Cautions of a question about rows whose outcomes were drawn last, by laws straight in the columns."""
    found = [BENT] if question.outcome and _bent(rows, question.outcome) else []
    found += [BENT_TERM] if any(_bent(rows, term) for term in set(question.terms) - set(question.shapes)) else []
    last = [draw.last for draw in draws if draw.last is not None]
    loose = between_covariates(question, frozenset.intersection(*last)) if last else ()
    return [*found, *([_BETWEEN.format(" or ".join(loose), BETWEEN)] if loose else [])]


def _bent(rows: QuestionRows, text: str) -> bool:
    """True if an outcome or a term is a function of one column, and no nearly straight one where the rows are."""
    node = parse(text)
    if node.kind == "name" or is_logical(node):
        return False
    try:
        (column,) = numeric_columns(node, rows)
        x, y = rows.numbers(column), values(node, rows)
    except (KeyError, ValueError, Refusal):  # of none, of several, of a repeated one, or no arithmetic
        return False
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any() or min(np.ptp(x[there]), np.ptp(y[there])) <= 0:
        return False
    return bool(abs(np.corrcoef(x[there], y[there])[0, 1]) < _STRAIGHT)


def with_release_variance(
    estimates: Sequence[Estimate],
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    draws: Sequence[Draw],
    **how: Any,
) -> list[Estimate]:
    """`releasing`, its fits made one by one.

    Args: as there.
    """
    return alone(releasing(estimates, table, question, draws, **how))
