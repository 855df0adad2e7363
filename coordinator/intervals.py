r"""What a standard error from a released table must be: not of its rows, but of the patients behind them.

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

What this does not hold: a flow that does not draw the law of the data. That error is not random, does not shrink with
the rows, and at the sites of one study often has one sign. Where it is known to matter, the estimate says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from shared.errors import ParameterError, Refusal
from shared.estimands import Estimand, Estimate, influence
from shared.questions import INTERCEPT, MODELS, SURVIVAL, Kind

__all__ = ["Draw", "combine_draws", "effective_order", "parts", "stand_in", "with_release_variance"]

Array = NDArray[np.float64]

STAND_IN_ROWS = 2000
"""Rows of each of the two tables by which the order of a question is found."""
_SEED = 20260105
_LEAST_R = 0.5
COX_ATTENUATION = 0.08
"""Share by which a flow at w = 0 drew the pooled log hazard ratio of the twelve full-size cohorts towards zero:
`mean_absolute_gap/w=0.0` of tests/benchmarks/results/cohorts_gap.json, 0.0137 of 1.17, is 7.5 % of log 1.17; one sign
on every draw. What the patients' part keeps in the rows is not affected."""
TOO_MUCH = 0.5
"""A bias beyond so many standard errors brings a 95 % interval below 92 %."""
_EVERY_ORDER = math.inf
"""Order of what forgets at once: its noise is counted in full."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Rows that were drawn through one flow.

    Args:
        rows: how many of the table's.
        w: weight of the data in their latents, in [0, 1).
        flow: name of the flow; draws through one flow share its error.
        fitted_on: persons the flow was fitted on; None if it was fitted on no record.
        among: whether those persons are among the table's.
    """

    rows: int
    w: float
    flow: str = ""
    fitted_on: int | None
    among: bool = True

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
        draws: where the rows came from.
        order: k; infinite for "at most".
        copies: whether the draws are copies of the same persons (refreshes put together): then nothing of patients
            and flows averages out, and only the noise does.

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
    kept = [_kept(draw.w, order) for draw in draws]
    privacy = row / total * sum(p * (1 - a * a) for p, a in zip(share, kept, strict=True))
    flows: dict[str, list[tuple[Draw, float, float]]] = {}
    for draw, p, a in zip(draws, share, kept, strict=True):
        flows.setdefault(draw.flow, []).append((draw, p, a))
    # The flow's own error enters with the weight of all the rows drawn through it.
    fits = [(group[0][0], sum(p * (1 - a) for _, p, a in group), group[0][2]) for group in flows.values()]
    known = [(draw, weight, a, float(draw.fitted_on)) for draw, weight, a in fits if draw.fitted_on is not None]
    if copies:
        persons = max(draw.rows for draw in draws)
        patients = sum(p * a for p, a in zip(share, kept, strict=True)) / math.sqrt(persons)
        own = sum(weight / math.sqrt(m) for draw, weight, _, m in known if draw.among)
        others = sum(weight / math.sqrt(m) for draw, weight, _, m in known if not draw.among)
        return row * ((patients + own) ** 2 + others**2), privacy
    sampling = sum(p * a * a for p, a in zip(share, kept, strict=True)) / total
    sampling += sum(weight**2 / m for _, weight, _, m in known)
    sampling += sum(2 * weight * a / total for draw, weight, a, _ in known if draw.among)
    return row * sampling, privacy


def _kept(w: float, order: float) -> float:
    """a = w^{k/2}: share of itself that the patients' part keeps."""
    return 0.0 if w == 0 or math.isinf(order) else float(w ** (order / 2))


def combine_draws(
    estimates: Sequence[float], variances: Sequence[float], *, rows: int, persons: int
) -> tuple[float, float, float]:
    """Combining rule for m synthetic tables drawn from one fitted generator: (estimate, sampling, privacy variance).

    .. math:: T = \\bar v \\, rows / persons + b / m

    with b the variance between the draws (for m = 1 the v of the draw itself). The first part is the patients', and
    no number of draws or rows takes it away: with v about V/rows it is V/persons.
    Source: Raab, Nowok and Dibben (2016), with the variance between draws in place of its expectation where m > 1.

    Args:
        estimates, variances: (m,) of the draws, each with its rows' own variance.
        rows: rows of each draw. persons: records the generator was fitted on.

    >>> estimate, sampling, privacy = combine_draws([1.0, 1.2], [0.01, 0.01], rows=1000, persons=500)
    >>> round(estimate, 3), round(sampling, 3), round(privacy, 3)
    (1.1, 0.02, 0.01)
    """
    m = len(estimates)
    if m < 1 or len(variances) != m or min(rows, persons) < 1 or min(variances) < 0:
        raise ParameterError("draws must have an estimate and a variance each, rows and persons", given=f"{m} draws")
    mean = float(np.mean(variances))
    between = float(np.var(estimates, ddof=1)) if m > 1 else mean
    return float(np.mean(estimates)), mean * rows / persons, between / m


# -- the order of a question -----------------------------------------------------------------------------------
def effective_order(
    table: pd.DataFrame, question: Estimand, w: float, *, levels: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, float]:
    """Term -> k such that estimates from two tables whose latents correlate by r correlate by about r^k, at r = w.

    A term that is not in the answer has none: its noise must be counted in full. Other kinds than models are asked
    about through the model that has their influence (a difference of means through least squares), and have one order
    for all terms, under the blank name; kinds that have none (km, rmst) have no order.
    Raises: nothing of the question: a stand-in that does not support it answers nothing.
    """
    asked = _as_model(question)
    if asked is None or not len(table):
        return {}
    r = max(w, _LEAST_R)
    try:
        first, second = (influence(made, asked, levels=levels) for made in stand_in(table[list(asked.columns)], r))
    except Refusal:
        return {}
    out = {}
    for label in first.keys() & second.keys():
        size = math.sqrt(float((first[label] ** 2).sum() * (second[label] ** 2).sum()))
        if size > 0:
            correlation = float(first[label] @ second[label]) / size
            out[label] = math.log(min(max(correlation, 0.01), r)) / math.log(r)
    slopes = [order for label, order in out.items() if label != INTERCEPT] or list(out.values())
    return out if question.kind in MODELS or not slopes else {"": max(slopes)}


def _as_model(question: Estimand) -> Estimand | None:
    """The model whose coefficients have the influence of the question."""
    kind = question.kind
    if kind in MODELS:
        return replace(question, robust="")
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


def stand_in(table: pd.DataFrame, r: float, rows: int = STAND_IN_ROWS) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two tables like the given one, whose rows' latents correlate by r: a Gaussian copula with its margins.

    A missing value is drawn as often as the table has one. The draws are the same at every call: an answer that is
    asked for twice is the same answer.
    """
    n, d = table.shape
    jitter, z, fresh = _fixed_draws(n, d, rows)
    order = np.empty((n, d), dtype=np.int64)
    scores = np.empty((n, d))
    middle = special.ndtri((np.arange(n) + 0.5) / n)
    for j, name in enumerate(table.columns):
        order[:, j] = np.lexsort((jitter[:, j], _key(table[name])))
        scores[order[:, j], j] = middle
    correlation = np.atleast_2d(np.corrcoef(scores, rowvar=False))
    root = np.linalg.cholesky(0.999 * np.nan_to_num(correlation, nan=1.0) + 0.001 * np.eye(d))
    made = []
    for latents in (z, r * z + math.sqrt(1 - r * r) * fresh):
        place = np.minimum((special.ndtr(latents @ root.T) * n).astype(np.int64), n - 1)
        columns = {
            name: table[name].take(order[place[:, j], j]).reset_index(drop=True) for j, name in enumerate(table.columns)
        }
        made.append(pd.DataFrame(columns))
    return made[0], made[1]


@functools.lru_cache(maxsize=4)
def _fixed_draws(n: int, d: int, rows: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(_SEED)
    return rng.random((n, d)), rng.standard_normal((rows, d)), rng.standard_normal((rows, d))


def _key(column: pd.Series) -> Array:
    """What a column is sorted by: levels in their order, words by name, missing values last."""
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
_BIAS = (
    "Flows draw such an answer towards zero by more than half of this standard error; the flow's bias is not in this "
    "interval."
)


# -- estimates ---------------------------------------------------------------------------------------------------
def with_release_variance(
    estimates: Sequence[Estimate],
    table: pd.DataFrame,
    question: Estimand,
    draws: Sequence[Draw],
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    copies: bool = False,
    postures: Sequence[str] = (),
) -> list[Estimate]:
    """The same estimates with the variance of the patients behind the rows; the rows' own stays as `vi_naive`.

    Args:
        estimates: of one released table, `vi_sampling` as the rows claim.
        draws: where its rows came from.
        copies: as in `parts`.
        postures: of the releases: some have an error that no variance holds.
    """
    weights = {draw.w for draw in draws if draw.w > 0}
    total = sum(draw.rows for draw in draws)
    asked = any(row.yi is not None for row in estimates)
    orders = effective_order(table, question, max(weights), levels=levels) if weights and asked else {}
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
            how = f"latent noise propagated at order {order:.1f} (parametric bootstrap through a stand-in)"
        lost = 0.0
        if question.kind in SURVIVAL and row.scale == "log":
            lost = COX_ATTENUATION * (1 - sum(draw.rows * _kept(draw.w, order) for draw in draws) / total)
        warnings = [_OPEN[posture] for posture in sorted(set(postures)) if posture in _OPEN]
        if ":" in row.term or "^" in row.term:
            warnings.append(_SHAPE)
        if too_much(lost, row.yi or 0.0, math.sqrt(sampling + privacy)):
            warnings.append(_BIAS)
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


def too_much(attenuation: float, estimate: float, se: float) -> bool:
    """Whether the flow's known bias is so large beside the standard error that the interval cannot hold what it says.

    >>> too_much(0.08, 0.157, 0.02), too_much(0.08, 0.157, 0.05)
    (True, False)
    """
    return attenuation * abs(estimate) > TOO_MUCH * se
