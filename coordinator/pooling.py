"""Pool one estimate per site into one answer, and say what that answer is worth.

Two models stand side by side in every result: one common effect (inverse variance, ``FE``), and effects that
vary between sites with variance tau2. The default, REML with the ad hoc Knapp-Hartung interval, is chosen for
federations: few sites, one of them large, where the normal interval covers too little and the plain
Knapp-Hartung interval can collapse.

Names follow metafor: ``beta se zval pval ci_lb ci_ub tau2 I2 H2 QE QEp weights``; I2 and weights are
percentages. Three traps shaped the code. Q is a sum of centred squares, because the textbook difference of
sums cancels when estimates share a large offset. tau2 is truncated at 0 and found by a bracketing root finder,
because iterations with an absolute stopping rule stop at their start on small scales. And a row that cannot be
used leaves with its label and its reason in ``excluded``; a NaN or an interval of width zero never gets through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from shared.errors import EstimateRefusal, ParameterError
from shared.estimands import Estimate, Scale

__all__ = [
    "Excluded",
    "Interval",
    "Method",
    "PooledResult",
    "Test",
    "cumulative",
    "leave_one_out",
    "pool",
    "pool_estimates",
    "tau2_dl",
]

Array = NDArray[np.float64]
Method = Literal["FE", "DL", "HE", "HS", "SJ", "ML", "REML", "EB", "PM"]
Test = Literal["z", "t", "knha", "adhoc"]

# Outside this range squares and inverses of the weights would overflow; no effect measure lives there.
_LARGEST_ESTIMATE, _SMALLEST_VARIANCE, _LARGEST_VARIANCE = 1e50, 1e-100, 1e100
_DOMINANT, _HETEROGENEOUS, _FEW = 50.0, 75.0, 5  # percent of weight, percent of variance, sites


@dataclass(frozen=True)
class Interval:
    """A confidence or prediction interval; when it is empty or undefined both ends are None and `reason` says why.

    >>> Interval(0.1, 0.4).empty, Interval(None, None, "needs two sites").empty
    (False, True)
    """

    lb: float | None
    ub: float | None
    reason: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is no interval to show."""
        return self.lb is None or self.ub is None

    def map(self, function: Callable[[float], float]) -> Interval:
        """Both ends through an increasing function; an empty interval stays empty."""
        if self.lb is None or self.ub is None:
            return self
        return Interval(function(self.lb), function(self.ub), self.reason)


@dataclass(frozen=True)
class Excluded:
    """A row that was not pooled, and why."""

    label: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """What pooling K estimates gave; immutable, and every derived quantity is a property.

    Attributes:
        labels, yi, vi: the K rows used: label, estimate on the analysis scale, its variance.
        method, test, level: how; `test` is the one applied (with one row it is always ``z``).
        beta: pooled estimate on the analysis scale.
        se_model: standard error from the weights alone, before any Knapp-Hartung scaling.
        s2w: weighted mean square of the residuals, the Knapp-Hartung factor (1 when K = 1).
        tau2: variance between sites, in squared units of yi; 0 under ``FE``.
        QE: Cochran's Q with fixed-effect weights, K - 1 degrees of freedom.
        typical_v: the typical within-site variance that I2 and H2 compare tau2 with.
        weights: percent, summing to 100, of the chosen model.
        excluded: rows that were not used, each with its reason.
        notes: sentences a reader of the result must see.
        term, scale, estimates: set when the rows came from `shared.estimands`.
    """

    labels: tuple[str, ...]
    yi: tuple[float, ...]
    vi: tuple[float, ...]
    method: Method
    test: Test
    level: float
    beta: float
    se_model: float
    s2w: float
    tau2: float
    QE: float
    typical_v: float
    weights: tuple[float, ...]
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()
    term: str = ""
    scale: Scale = "identity"
    estimates: tuple[Estimate, ...] = ()

    @property
    def k(self) -> int:
        """Number of rows pooled."""
        return len(self.yi)

    @property
    def df(self) -> int:
        """Degrees of freedom of Q, and of t where it is used."""
        return self.k - 1

    @property
    def tau(self) -> float:
        """Standard deviation between sites, in units of yi."""
        return math.sqrt(self.tau2)

    @property
    def se(self) -> float:
        """Standard error under `test`."""
        factor = {"knha": self.s2w, "adhoc": max(1.0, self.s2w)}.get(self.test, 1.0)
        return self.se_model * math.sqrt(factor)

    @property
    def zval(self) -> float:
        """The test statistic beta / se, whichever the reference distribution."""
        return self.beta / self.se

    @property
    def pval(self) -> float:
        """Two-sided p-value of no effect."""
        below = -abs(self.zval)
        return float(2 * (special.ndtr(below) if self.test == "z" else special.stdtr(self.df, below)))

    @property
    def ci_lb(self) -> float:
        """Lower confidence limit of beta."""
        return self.beta - self._critical * self.se

    @property
    def ci_ub(self) -> float:
        """Upper confidence limit of beta."""
        return self.beta + self._critical * self.se

    @property
    def QEp(self) -> float:
        """p-value of Q: chi-square with K - 1 degrees of freedom (1 when K = 1)."""
        return float(special.chdtrc(self.df, self.QE)) if self.df else 1.0

    @property
    def I2(self) -> float:
        """Percent of the total variance that lies between sites."""
        if self.method == "FE":
            return 100 * max(0.0, 1 - self.df / self.QE) if self.QE > 0 else 0.0
        return _i2(self.tau2, self.typical_v)

    @property
    def H2(self) -> float:
        """Total variance over typical within-site variance (Q / df under FE)."""
        if self.method == "FE":
            return self.QE / self.df if self.df else 1.0
        return _h2(self.tau2, self.typical_v)

    @cached_property
    def tau2_interval(self) -> Interval:
        """Q-profile interval of tau2 (Viechtbauer 2007): where Q(tau2) stays between its chi-square quantiles."""
        if self.df == 0:
            return Interval(None, None, "needs at least two sites")
        if self.method == "FE":
            return Interval(None, None, "the fixed-effect model has no variance between sites")
        return _q_profile(np.array(self.yi), np.array(self.vi), self.level)

    @property
    def I2_interval(self) -> Interval:
        """I2 at both ends of `tau2_interval`."""
        return self.tau2_interval.map(lambda tau2: _i2(tau2, self.typical_v))

    @property
    def H2_interval(self) -> Interval:
        """H2 at both ends of `tau2_interval`."""
        return self.tau2_interval.map(lambda tau2: _h2(tau2, self.typical_v))

    @property
    def prediction_interval(self) -> Interval:
        """Where the effect of a new site is expected: t with K - 1 df (normal for ``z``), this test's se, tau2."""
        if self.method == "FE":
            return Interval(None, None, "the fixed-effect model has no variance between sites")
        if self.k < 3:
            return Interval(None, None, "needs at least three sites")
        half = self._critical * math.hypot(self.se, self.tau)
        return Interval(self.beta - half, self.beta + half)

    @cached_property
    def fixed(self) -> PooledResult:
        """The fixed-effect result on the same rows, with its normal interval."""
        return self if self.method == "FE" else _fit(self, method="FE", test="z")

    @property
    def sensitivity(self) -> tuple[PooledResult, ...]:
        """The same fit under z, Knapp-Hartung and its ad hoc floor, those that give an interval with width."""
        tests: tuple[Test, ...] = ("z",) if self.k == 1 else ("z", "knha", "adhoc")
        rows = (replace(self, test=test) for test in tests)
        return tuple(row for row in rows if row.test != "knha" or not _collapses(row))

    @property
    def noise_share(self) -> tuple[float, ...]:
        """Percent of each row's variance that is privacy noise (0 where the rows did not come as estimates)."""
        if not self.estimates:
            return (0.0,) * self.k
        return tuple(100 * row.vi_privacy / vi for row, vi in zip(self.estimates, self.vi, strict=True))

    @property
    def receipts(self) -> tuple[str, ...]:
        """Every receipt behind the rows used, in order, each once."""
        return tuple(dict.fromkeys(receipt for row in self.estimates for receipt in row.receipts))

    @property
    def _critical(self) -> float:
        tail = (1 - self.level) / 2
        return -float(special.ndtri(tail) if self.test == "z" else special.stdtrit(self.df, tail))


def pool(
    yi: ArrayLike | Sequence[float | None],
    vi: ArrayLike | Sequence[float | None],
    *,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    labels: Sequence[str] | None = None,
) -> PooledResult:
    """Pool one meta-analysis.

    Args:
        yi: (K,) estimates on the analysis scale (log for ratios). None, NaN and infinities are rows to exclude.
        vi: (K,) variances of the estimates, in squared units of yi.
        method: ``FE``, or the estimator of tau2: DL, HE, HS, SJ, ML, REML, EB, PM.
        test: ``z``, ``t`` (K - 1 df), ``knha`` (Knapp-Hartung), ``adhoc`` (Knapp-Hartung, never below the model).
        level: coverage of every interval.
        labels: (K,) names of the rows, used in messages and figures.
    Raises:
        ParameterError: unknown method or test, level outside (0, 1), or arguments of different lengths.
        EstimateRefusal: no row can be used.
    Source: metafor's ``rma.uni``; DerSimonian and Laird 1986; Paule and Mandel 1982; Sidik and Jonkman 2005;
        Knapp and Hartung 2003; Roever, Knapp and Friede 2015 (the ad hoc floor).

    >>> result = pool([0.10, 0.30, 0.35, 0.65], [0.03, 0.03, 0.05, 0.01], labels=["A", "B", "C", "D"])
    >>> round(result.beta, 3), round(result.tau2, 4), result.test, round(result.fixed.beta, 3)
    (0.377, 0.0429, 'adhoc', 0.457)
    """
    _check(method, test, level)
    estimates, variances = _vector(yi, "yi"), _vector(vi, "vi")
    if len(estimates) != len(variances):
        raise ParameterError("yi and vi must have the same length", given=f"{len(estimates)} and {len(variances)}")
    names = [f"study {i + 1}" for i in range(len(estimates))] if labels is None else [str(name) for name in labels]
    if len(names) != len(estimates):
        raise ParameterError("labels must name every row", given=f"{len(names)} labels for {len(estimates)} rows")
    reasons = [_reason(y, v) for y, v in zip(estimates, variances, strict=True)]
    keep = [i for i, reason in enumerate(reasons) if not reason]
    excluded = tuple(Excluded(names[i], reason) for i, reason in enumerate(reasons) if reason)
    if not keep:
        raise _nothing_left(excluded)
    blank = PooledResult(
        labels=tuple(names[i] for i in keep),
        yi=tuple(estimates[keep].tolist()),
        vi=tuple(variances[keep].tolist()),
        excluded=excluded,
        method=method,
        test=test,
        level=level,
        beta=0.0,
        se_model=1.0,
        s2w=1.0,
        tau2=0.0,
        QE=0.0,
        typical_v=1.0,
        weights=(),
    )
    return _announce(_fit(blank, method=method, test=test))


def pool_estimates(
    estimates: Sequence[Estimate], *, method: Method = "REML", test: Test = "adhoc", level: float = 0.95
) -> PooledResult:
    """Pool the estimates of one term; a site that has none is listed with its own reason.

    Args:
        estimates: one per site, of one term on one scale; vi is sampling plus privacy noise.
        method, test, level: as in `pool`.
    Raises:
        ParameterError: several terms or scales, or the same site twice in a wave.
        EstimateRefusal: no estimate can be used.
    """
    _check(method, test, level)
    for what in ("term", "scale"):
        values = sorted({str(getattr(row, what)) for row in estimates})
        if len(values) > 1:
            raise ParameterError(f"all estimates must share one {what}", given=", ".join(values))
    seen = [(row.site, row.wave) for row in estimates]
    if len(set(seen)) < len(seen):
        raise ParameterError(
            "each site may appear once per wave",
            given=", ".join(sorted({site for site, _ in seen if sum(s == site for s, _ in seen) > 1})),
            next_step="Pooling one site's persons twice would understate the error.",
        )
    waves = len({row.wave for row in estimates}) > 1
    labels = [f"{row.site}, wave {row.wave}" if waves else row.site for row in estimates]
    absent = {i: Excluded(labels[i], row.reason) for i, row in enumerate(estimates) if row.yi is None}
    present = [i for i in range(len(estimates)) if i not in absent]
    if not present:
        raise _nothing_left(tuple(absent.values()))
    chosen = [estimates[i] for i in present]
    try:
        result = pool(
            [row.yi for row in chosen],
            [row.vi for row in chosen],
            method=method,
            test=test,
            level=level,
            labels=[labels[i] for i in present],
        )
    except EstimateRefusal:
        rejected = [Excluded(labels[i], _reason(estimates[i].yi, estimates[i].vi)) for i in present]
        raise _nothing_left((*absent.values(), *rejected)) from None
    used = dict(zip(labels, estimates, strict=True))
    order = {label: i for i, label in enumerate(labels)}
    notes = [note for note in result.notes if note not in _announcement(result)]
    if waves and len({row.site for row in chosen}) < len(chosen):
        notes.append("A site contributes more than one wave: the rows are not independent if they share persons.")
    return _announce(
        replace(
            result,
            excluded=tuple(sorted((*absent.values(), *result.excluded), key=lambda row: order[row.label])),
            notes=tuple(notes),
            term=estimates[0].term,
            scale=estimates[0].scale,
            estimates=tuple(used[label] for label in result.labels),
        )
    )


def leave_one_out(result: PooledResult) -> tuple[tuple[str, PooledResult], ...]:
    """Refit without each row in turn: ``(label left out, result)``, K pairs; none when K = 1.

    >>> rows = leave_one_out(pool([0.1, 0.3, 0.6], [0.03, 0.03, 0.01], method="DL", labels=["A", "B", "C"]))
    >>> [(label, round(row.beta, 2)) for label, row in rows]
    [('A', 0.48), ('B', 0.37), ('C', 0.2)]
    """
    if result.k == 1:
        return ()
    everyone = range(result.k)
    return tuple((result.labels[i], _subset(result, [j for j in everyone if j != i])) for i in everyone)


def cumulative(result: PooledResult, order: Sequence[int] | None = None) -> tuple[tuple[str, PooledResult], ...]:
    """Refit as rows arrive: ``(label added, result so far)``, K pairs.

    Args:
        result: any pooled result; its method, test and level are kept.
        order: (K,) row positions from 0; by default the order of the result.
    Raises: ParameterError: order is not a permutation of the rows.
    """
    arrival = list(range(result.k)) if order is None else [int(i) for i in order]
    if sorted(arrival) != list(range(result.k)):
        raise ParameterError("order must name every row once", given=f"{arrival}")
    return tuple((result.labels[row], _subset(result, arrival[: i + 1])) for i, row in enumerate(arrival))


def tau2_dl(yi: Array, vi: Array) -> Array:
    r"""DerSimonian-Laird variance between sites, for many meta-analyses at once.

    .. math:: \hat\tau^2 = \max\{0, (Q - (K-1)) / (\sum w_i - \sum w_i^2 / \sum w_i)\}, \quad w_i = 1/v_i

    Args:
        yi: (..., K) estimates, K >= 2.
        vi: (..., K) variances, positive.
    Returns: (...,) tau2, truncated at 0.
    Source: DerSimonian and Laird 1986, eq. 8.

    >>> tau2_dl(np.array([[0.1, 0.9], [0.4, 0.4]]), np.array([[0.02, 0.03], [0.02, 0.03]])).round(3).tolist()
    [0.295, 0.0]
    """
    w = 1 / np.asarray(vi, dtype=float)
    return np.maximum(0.0, (_q(yi, w) - (w.shape[-1] - 1)) / _trace(w))


# -- the variance between sites ----------------------------------------------------------------------------
# Everything here takes (..., K) arrays; w are weights, and the mean is subtracted before anything is squared.
def _mean(y: Array, w: Array) -> Array:
    origin = np.asarray(y)[..., :1]
    return np.asarray(origin[..., 0] + np.sum(w * (y - origin), axis=-1) / np.sum(w, axis=-1))


def _q(y: Array, w: Array) -> Array:
    return np.asarray(np.sum(w * (y - _mean(y, w)[..., None]) ** 2, axis=-1))


def _trace(w: Array) -> Array:
    total = np.sum(w, axis=-1)
    # sum w - sum w^2 / sum w, written without the subtraction that cancels when one weight dwarfs the others
    return np.asarray(np.sum(w * ((total[..., None] - w) / total[..., None]), axis=-1))


def _tau2_he(y: Array, v: Array) -> Array:
    ones = np.ones_like(v)
    return np.maximum(0.0, _q(y, ones) / (v.shape[-1] - 1) - v.mean(axis=-1))


def _tau2_hs(y: Array, v: Array) -> Array:
    w = 1 / v
    return np.maximum(0.0, (_q(y, w) - v.shape[-1]) / w.sum(axis=-1))


def _tau2_sj(y: Array, v: Array) -> Array:
    crude = _q(y, np.ones_like(v)) / v.shape[-1]
    return np.asarray(crude * _q(y, 1 / (v + crude[..., None])) / (v.shape[-1] - 1))


def _score(y: Array, v: Array, tau2: Array, method: Method) -> Array:
    """The estimating equation, falling through 0 at a maximum: (G,) values of tau2 in, (G,) out."""
    w = 1 / (v + tau2[..., None])
    if method in ("PM", "EB"):  # the two have the same fixed point: Q(tau2) = K - 1
        return _q(y, w) - (v.shape[-1] - 1)
    residual = w * (y - _mean(y, w)[..., None])
    return np.asarray(np.sum(residual**2, axis=-1) - (_trace(w) if method == "REML" else w.sum(axis=-1)))


def _log_likelihood(y: Array, v: Array, tau2: float, method: Method) -> float:
    w = 1 / (v + tau2)
    restricted = math.log(w.sum()) if method == "REML" else 0.0
    return float(-0.5 * (np.sum(np.log(v + tau2)) + restricted + _q(y, w)))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    # The absolute tolerance is switched off: variances of order 1e-12 are as good as any.
    return float(optimize.brentq(function, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=1000))


def _tau2_iterated(y: Array, v: Array, method: Method) -> tuple[float, bool]:
    """ML, REML, EB or PM: tau2, and whether the likelihood has more than one maximum.

    Beyond max v + 2 sum (y - mean)^2 every score is negative (the quadratic term falls as tau2^-2, the trace as
    tau2^-1), so all roots lie on the grid's span. A grid finds each fall through 0; among several the likelihood
    decides. An iteration from one start finds the nearest one, which need not be the best.
    """
    spread = float(_q(y, np.ones_like(v)))
    grid = np.concatenate([[0.0], np.geomspace(v.min() * 1e-6, v.max() + 2 * spread, 160)])
    score = _score(y, v, grid, method)

    def at(tau2: float) -> float:
        return float(_score(y, v, np.array(tau2), method))

    found = [0.0] if score[0] <= 0 else []
    found += [_root(at, grid[i], grid[i + 1]) for i in np.flatnonzero((score[:-1] > 0) & (score[1:] <= 0))]
    if len(found) < 2 or method in ("PM", "EB"):  # Q falls monotonically: one root
        return found[0], False
    return max(found, key=lambda tau2: _log_likelihood(y, v, tau2, method)), True


def _q_profile(y: Array, v: Array, level: float) -> Interval:
    df = len(y) - 1
    upper, lower = (float(special.chdtri(df, tail)) for tail in ((1 - level) / 2, (1 + level) / 2))
    spread = float(_q(y, np.ones_like(v)))

    def excess(quantile: float) -> Callable[[float], float]:
        return lambda tau2: float(_q(y, 1 / (v + tau2))) - quantile

    if excess(lower)(0.0) < 0:
        return Interval(None, None, "estimates agree more closely than their variances allow")
    high = v.max() + 2 * spread / lower
    lb = 0.0 if excess(upper)(0.0) <= 0 else _root(excess(upper), 0.0, high)
    return Interval(lb, _root(excess(lower), 0.0, high))


def _i2(tau2: float, typical_v: float) -> float:
    return 100 * tau2 / (tau2 + typical_v)


def _h2(tau2: float, typical_v: float) -> float:
    return tau2 / typical_v + 1


# -- one fit -----------------------------------------------------------------------------------------------
_MOMENTS: dict[str, Callable[[Array, Array], Array]] = {
    "DL": tau2_dl,
    "HE": _tau2_he,
    "HS": _tau2_hs,
    "SJ": _tau2_sj,
}


def _fit(rows: PooledResult, *, method: Method, test: Test) -> PooledResult:
    """Fit the rows of `rows`; its other numbers are ignored."""
    y, v = np.array(rows.yi), np.array(rows.vi)
    k, several = len(y), False
    if k == 1 or method == "FE":
        tau2 = 0.0
    elif method in _MOMENTS:
        tau2 = float(_MOMENTS[method](y, v))
    else:
        tau2, several = _tau2_iterated(y, v, method)
    w = 1 / (v + tau2)
    result = replace(
        rows,
        method=method,
        test=test,
        beta=float(_mean(y, w)),
        se_model=float(1 / math.sqrt(w.sum())),
        s2w=float(_q(y, w)) / (k - 1) if k > 1 else 1.0,
        tau2=tau2,
        QE=float(_q(y, 1 / v)) if k > 1 else 0.0,
        typical_v=float((k - 1) / _trace(1 / v)) if k > 1 else float(v[0]),
        weights=tuple((100 * w / w.sum()).tolist()),
        notes=(),
    )
    notes = []
    if k == 1:
        result = replace(result, test="z")
    elif test == "knha" and _collapses(result):
        result = replace(result, test="adhoc")
        notes.append("Knapp-Hartung would give an interval without width: its ad hoc floor is used.")
    if several:
        notes.append("The likelihood of τ² has more than one maximum; the highest is reported.")
    return replace(result, notes=tuple(_notes(result) + notes))


def _notes(result: PooledResult) -> list[str]:
    notes = []
    if result.k == 1:
        return [f"Only {result.labels[0]} has an estimate: nothing was pooled, this is its own result."]
    if result.k == 2:
        notes.append("Two sites cannot tell how sites vary: read fixed and random effects side by side.")
    elif result.k < _FEW and result.method != "FE":
        notes.append(f"With {result.k} sites τ² and the prediction interval are approximate.")
    heaviest = int(np.argmax(result.weights))
    if result.weights[heaviest] > max(_DOMINANT, 150 / result.k):  # of two sites one always has half
        share = f"{result.weights[heaviest]:.0f} %"
        notes.append(f"{result.labels[heaviest]} carries {share} of the weight: this is mostly its answer.")
    if result.method == "FE":
        return notes
    if result.test == "knha" and result.s2w < 1:
        notes.append("The Knapp-Hartung interval is narrower than the model's; test adhoc does not allow that.")
    if result.I2 > _HETEROGENEOUS:
        notes.append(f"Sites differ strongly (I² {result.I2:.0f} %): the pooled value describes an average site only.")
    least = float(special.chdtri(result.df, (1 + result.level) / 2))
    if least > result.QE:
        notes.append("Sites agree more closely than their variances allow: the interval of τ² is empty.")
    return notes


def _announcement(result: PooledResult) -> tuple[str, ...]:
    if not result.excluded:
        return ()
    total = len(result.excluded) + result.k
    return (f"{len(result.excluded)} of {total} rows are excluded; each is listed with its reason.",)


def _announce(result: PooledResult) -> PooledResult:
    return replace(result, notes=_announcement(result) + result.notes)


def _subset(result: PooledResult, rows: list[int]) -> PooledResult:
    chosen = replace(
        result,
        labels=tuple(result.labels[i] for i in rows),
        yi=tuple(result.yi[i] for i in rows),
        vi=tuple(result.vi[i] for i in rows),
        excluded=(),
        estimates=tuple(result.estimates[i] for i in rows) if result.estimates else (),
    )
    return _fit(chosen, method=result.method, test=result.test)


def _collapses(result: PooledResult) -> bool:
    """Whether the residuals are rounding noise, so that the Knapp-Hartung interval would have no width."""
    noise = 8 * float(np.finfo(float).eps) * max(abs(y) for y in result.yi)
    return bool(result.se_model * math.sqrt(result.s2w) <= noise)


def _reason(y: float | None, v: float | None) -> str:
    """Why a row cannot be pooled; empty when it can."""
    if y is None or math.isnan(y):
        return "the estimate is missing"
    if math.isinf(y):
        return "no finite estimate at this site"
    if v is None or math.isnan(v) or math.isinf(v):
        return "the variance is missing or infinite"
    if v <= 0:
        return "the variance is negative" if v < 0 else "the variance is zero"
    if abs(y) > _LARGEST_ESTIMATE or not _SMALLEST_VARIANCE <= v <= _LARGEST_VARIANCE:
        return "the estimate or its variance is beyond any effect measure"
    if math.sqrt(v) <= 8 * np.finfo(float).eps * abs(y):
        return "the standard error is below the rounding error of the estimate"
    return ""


def _nothing_left(excluded: tuple[Excluded, ...]) -> EstimateRefusal:
    listed = "; ".join(f"{row.label}: {row.reason}" for row in excluded) or "no rows"
    return EstimateRefusal(
        "at least one site must have a usable estimate",
        given=listed,
        next_step="Ask for a simpler model, or wait for more releases.",
    )


def _check(method: str, test: str, level: float) -> None:
    if method not in get_args(Method):
        raise ParameterError(f"method must be one of {', '.join(get_args(Method))}", given=repr(method))
    if test not in get_args(Test):
        raise ParameterError(f"test must be one of {', '.join(get_args(Test))}", given=repr(test))
    if not 0 < level < 1:
        raise ParameterError("level must be in (0, 1)", given=f"{level}", next_step="A 95 % interval is 0.95.")


def _vector(values: ArrayLike | Sequence[float | None], name: str) -> Array:
    try:
        vector = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ParameterError(f"{name} must hold numbers", given="something else") from None
    if vector.ndim != 1:
        raise ParameterError(f"{name} must have one dimension", given=f"shape {vector.shape}")
    return vector
