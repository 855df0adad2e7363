r"""Survival: Cox regression, Kaplan–Meier, restricted mean survival time, log-rank.

With θ_i = w_i exp(x_i'β) the partial likelihood needs, at each event time, the sum of θ over those still at risk.
Sorted by falling time within a stratum these sums are cumulative sums, so one Newton step costs O(n p²) without a
loop over event times. Breslow's likelihood uses the same risk set for each of d tied deaths; Efron's takes away
l/d of the tied deaths themselves from the l-th (l = 0 … d−1), so both are one formula with the shares l/d set to 0
or not (Therneau and Grambsch 2000, chapter 3). With weights, each tied death counts with their mean weight, as in R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = [
    "GridCurve",
    "LogRank",
    "SurvivalCurve",
    "Ties",
    "cox",
    "kaplan_meier",
    "log_rank",
    "public_times",
    "restricted_mean",
]

Array = NDArray[np.float64]
Ties = Literal["efron", "breslow"]


def cox(
    x: Array,
    time: Array,
    event: Array,
    *,
    ties: Ties = "efron",
    strata: NDArray[np.int64] | None = None,
    weights: Array | None = None,
    offset: Array | None = None,
    entry: Array | None = None,
    trend: Callable[[Array], Array] | None = None,
    iterations: int = 40,
) -> RegressionFit:
    """Cox regression, R's `coxph(Surv(time, event) ~ x + strata(s) + offset(o), weights, ties)`.

    Args:
        x: (n, p) of full rank, columns centred and scaled. time, event: (n,), event 0 or 1.
        strata: (n,) integers; baseline hazards are apart, coefficients are shared.
        entry: (n,) times after which each row is at risk (left truncation), before its time.
        trend: of times what each coefficient is asked to change by (`_drift`), instead of the coefficients.
    Returns: `converged` is False when the partial likelihood has no maximum.
    """
    if entry is not None:
        how: dict[str, Any] = {"strata": strata, "weights": weights, "offset": offset, "ties": ties, "trend": trend}
        return _truncated(x, time, event, entry, **how)
    n, p = x.shape
    if strata is None or not strata.any():
        order, group = np.argsort(-time, kind="stable"), np.zeros(n, dtype=np.int64)
    else:
        order = np.lexsort((-time, strata))
        group = strata[order]
    across = x.T.take(order, axis=1)  # sums run along its rows, which lie together in memory
    x, time, event = np.ascontiguousarray(across.T), time[order], event[order]
    w = np.ones(n) if weights is None else weights[order]
    shift = np.zeros(n) if offset is None else offset[order]
    if not (event > 0).any():
        none, nowhere = np.full((p, p), np.nan), np.zeros((n, p))
        return RegressionFit(
            beta=np.zeros(p), cov=none, converged=False, fitted=np.zeros(n), loglik=0.0, influence=nowhere
        )
    likelihood = _PartialLikelihood(x, across, w, shift, _RiskSets(time, event, group, w, ties))
    with np.errstate(all="ignore"):
        beta, cov, reached, converged = newton(
            likelihood.value, likelihood.derivatives, np.zeros(p), iterations=iterations
        )
        residual = likelihood.scores(beta).T
        drift = _drift(likelihood, beta, cov, residual, trend(time)) if trend is not None else None
    eta, influence = np.empty(n), np.empty((n, p))
    eta[order], influence[order] = x @ beta, residual @ cov
    if drift is not None:
        beta, cov, influence[order] = drift
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=eta, loglik=reached, influence=influence)


def _drift(
    likelihood: _PartialLikelihood, beta: Array, inverse: Array, residual: Array, g: Array
) -> tuple[Array, Array, Array]:
    r"""One step from β(t) = β to β_j(t) = β_j + θ_j g(t): θ, its covariance, and the influences of sorted rows.

    For each coefficient by itself, the others constant: the efficient score U_j over its information V_jj, where

    .. math:: U = \sum_i g_i (x_i - \bar x_i), \quad V = I_{gg} - I_{g1} I_{11}^{-1} I_{1g}

    so that θ_j² V_jj is the score test of Grambsch and Therneau (1994) as R's `cox.zph` has it since version 3; of the
    covariance V_jl / (V_jj V_ll) all together have its global test.

    Args:
        g: (n,), of sorted rows; that of events counts.
    """
    g = g[likelihood.deaths]
    g = g - g.mean()
    cross, own = likelihood.information(beta, g), likelihood.information(beta, g * g)
    spread = own - cross @ inverse @ cross
    scores = likelihood.scores(beta, g).T - residual @ inverse @ cross
    size = np.diag(spread)
    theta = scores.sum(axis=0) / size
    influence = scores / size
    influence[likelihood.deaths] -= np.outer(g * g / float(g @ g), theta)  # what a death adds to V, about
    return theta, spread / np.outer(size, size), influence


def _truncated(x: Array, time: Array, event: Array, entry: Array, **how: Any) -> RegressionFit:
    """Cox regression of rows that enter late: `coxph(Surv(entry, time, event) ~ x)`.

    A row that has not entered is taken out of each risk set by a shadow of itself that leaves at its entry, without an
    event and with the negative weight: sums over risk sets stay running sums.
    """
    late = np.flatnonzero(np.isfinite(entry))

    def with_shadows(values: Array | None, fill: float = 0.0, sign: float = 1.0) -> Array:
        own = np.full(len(time), fill) if values is None else values
        return np.concatenate([own, sign * own[late]])

    how["weights"] = with_shadows(how["weights"], 1.0, -1.0)
    how["offset"] = with_shadows(how["offset"])
    if how["strata"] is not None:
        how["strata"] = np.concatenate([how["strata"], how["strata"][late]])
    fit = cox(
        np.concatenate([x, x[late]]),
        np.concatenate([time, entry[late]]),
        np.concatenate([event, np.zeros(len(late))]),
        **how,
    )
    influence = fit.influence[: len(time)].copy()
    influence[late] += fit.influence[len(time) :]
    return replace(fit, fitted=fit.fitted[: len(time)], influence=influence)


class _RiskSets:
    """Sums over who is still at risk, of rows sorted by falling time within their stratum.

    A block is the deaths at one time in one stratum. Between the last rows of two blocks lies a stretch of rows that
    enter both blocks' sums alike, so a sum over a risk set is a running sum of stretches, within the stratum.

    Args:
        time, event, group: (n,), sorted; event 0 or 1, and one at least; group the stratum.
        weights: (n,).
        ties: whether tied deaths leave their risk set one by one (Efron) or together (Breslow).
    """

    def __init__(self, time: Array, event: Array, group: NDArray[np.int64], weights: Array, ties: Ties) -> None:
        n = len(time)
        new_stratum = np.append(True, group[1:] != group[:-1])
        new_time = new_stratum.copy()
        new_time[1:] |= time[1:] != time[:-1]
        self.deaths = np.flatnonzero(event > 0)
        at = (np.cumsum(new_time) - 1)[self.deaths]
        self._heads = np.flatnonzero(np.append(True, at[1:] != at[:-1]))  # where a block's deaths begin
        last = np.append(np.flatnonzero(new_time)[1:], n)[at[self._heads]] - 1
        blocks = len(self._heads)
        count = np.diff(np.append(self._heads, len(self.deaths)))
        self._block = block = np.repeat(np.arange(blocks), count)  # of each death
        self.weights = weights[self.deaths]
        self.mass = (np.add.reduceat(self.weights, self._heads) / count)[block]
        self.tied = np.flatnonzero(count[block] > 1)  # deaths that share their time
        if ties == "breslow":
            self.tied = self.tied[:0]
        self.tied_count = count[block[self.tied]]
        self.share = (self.tied - self._heads[block[self.tied]]) / self.tied_count
        self.thins = len(self.tied) > 0
        if self.thins:
            of = block[self.tied]
            self._knots = np.flatnonzero(np.append(True, of[1:] != of[:-1]))  # where tied blocks begin
            sizes = np.diff(np.append(self._knots, len(self.tied)))
            self._knot = np.repeat(np.arange(len(self._knots)), sizes)  # of each tied death
        self._lay_stretches(n, new_stratum, last, blocks)

    def _lay_stretches(self, n: int, new_stratum: NDArray[np.bool_], last: NDArray[np.int64], blocks: int) -> None:
        # Summed stratum by stratum: one total over all would lose a small stratum's digits behind a large one's.
        self.row_edges = np.append(np.flatnonzero(new_stratum), n)
        self.one = len(self.row_edges) == 2
        self._blocks, self._block_edges = blocks, np.searchsorted(last, self.row_edges)
        starts = np.append(0, last[:-1] + 1)
        filled = self._block_edges[:-1] < self._block_edges[1:]
        starts[self._block_edges[:-1][filled]] = self.row_edges[:-1][filled]
        # Rows that leave before the first death of their stratum are in no risk set: they end what stands before them.
        ends = last + 1
        self._end = ends[-1]
        self._stretch = np.searchsorted(last, np.arange(n))  # of each row; `blocks` for such a row
        self._own: slice | NDArray[np.int64] = slice(None)
        if self.one:
            self._cuts = starts
            self._stretch[self._end :] = blocks
        else:
            self._stretch[self._stretch >= self._block_edges[1:][np.cumsum(new_stratum) - 1]] = blocks
            self._cuts = np.unique(np.concatenate([starts, ends[ends < n]]))
            self._own = np.searchsorted(self._cuts, starts)

    def _running(self, values: Array, edges: NDArray[np.int64]) -> Array:
        if self.one:
            return np.asarray(values.cumsum(axis=-1))
        out = np.empty_like(values)
        for a, b in pairwise(edges):
            values[..., a:b].cumsum(axis=-1, out=out[..., a:b])
        return out

    def at_deaths(self, values: Array) -> Array:
        """(…, deaths): sums over the risk set of each death's time, of (…, n) values."""
        cut = values[..., : self._end] if self.one else values
        sums = self._running(np.add.reduceat(cut, self._cuts, axis=-1)[..., self._own], self._block_edges)
        return np.asarray(sums.take(self._block, axis=-1))

    def onwards(self, values: Array) -> Array:
        """For each row the sum over deaths at or before its time, in its stratum, of (…, deaths) values."""
        by_block = np.add.reduceat(values, self._heads, axis=-1)
        sums = self._running(by_block[..., ::-1], self._blocks - self._block_edges[::-1])[..., ::-1]
        none = np.zeros((*sums.shape[:-1], 1))
        return np.asarray(np.concatenate([sums, none], axis=-1).take(self._stretch, axis=-1))

    def by_knot(self, values: Array) -> Array:
        """For each tied death the sum over those it is tied with, of (…, tied) values."""
        return np.asarray(np.add.reduceat(values, self._knots, axis=-1).take(self._knot, axis=-1))


class _PartialLikelihood:
    """The partial likelihood of sorted rows, its derivatives and its score residuals.

    Args:
        x: (n, p). across: its transpose, contiguous.
        w, shift: (n,) weights and offsets.
        sets: who is at risk when.
    """

    def __init__(self, x: Array, across: Array, w: Array, shift: Array, sets: _RiskSets) -> None:
        self._x, self._across, self._w, self._shift, self._sets = x, across, w, shift, sets
        self._target = across.take(sets.deaths, axis=1) @ sets.weights
        self._known: tuple[Array, tuple[Array, Array, Array, Array]] | None = None

    def _at_risk(self, beta: Array) -> tuple[Array, Array, Array, Array]:
        """θ, the logarithm it was divided by, and at each death its risk set's sum of θ and mean of x."""
        if self._known is None or not np.array_equal(self._known[0], beta):
            # A step's value and its derivatives are one sum.
            sets = self._sets
            eta = self._shift + self._x @ beta
            if sets.one:
                eta -= eta.max()
            else:
                eta -= np.repeat(np.maximum.reduceat(eta, sets.row_edges[:-1]), np.diff(sets.row_edges))
            theta = self._w * np.exp(eta)
            summed = np.empty((self._x.shape[1] + 1, len(theta)))
            summed[0] = theta
            np.multiply(theta, self._across, out=summed[1:])
            sums = sets.at_deaths(summed)
            if sets.thins:
                sums[:, sets.tied] -= sets.share * sets.by_knot(summed.take(sets.deaths[sets.tied], axis=1))
            self._known = beta.copy(), (theta, eta[sets.deaths], sums[0], sums[1:] / sums[0])
        return self._known[1]

    @property
    def deaths(self) -> NDArray[np.int64]:
        """Which of the sorted rows have an event."""
        return self._sets.deaths

    def value(self, beta: Array) -> float:
        """Its logarithm."""
        _, eta, inside, _ = self._at_risk(beta)
        return float(self._sets.weights @ eta - self._sets.mass @ np.log(inside))

    def _exposed(self, beta: Array, weight: Array) -> Array:
        """(…, n): what each row was exposed to, of (…, deaths) weights of its hazard at each death."""
        sets = self._sets
        theta, _, inside, _ = self._at_risk(beta)
        hazards = sets.mass / inside * weight
        hazard = sets.onwards(hazards)
        if sets.thins:  # of its own time a tied death is there in part
            hazard[..., sets.deaths[sets.tied]] -= sets.by_knot(sets.share * hazards.take(sets.tied, axis=-1))
        return np.asarray(theta * hazard)

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        """(p,) and (p, p): its slope, and the information."""
        mean, exposure = self._at_risk(beta)[3], self._exposed(beta, np.ones(1))
        information = (self._across * exposure) @ self._x - (mean * self._sets.mass) @ mean.T
        return self._target - self._across @ exposure, information

    def information(self, beta: Array, g: Array) -> Array:
        """(p, p): the information of the deaths, each times its g (deaths,)."""
        mean = self._at_risk(beta)[3]
        return np.asarray((self._across * self._exposed(beta, g)) @ self._x - (mean * (self._sets.mass * g)) @ mean.T)

    def scores(self, beta: Array, g: Array | None = None) -> Array:
        """(p, n) score residuals: w_i (x_i - mean at its event) less what it was exposed to, (x_i - mean) dH summed.

        Args:
            g: (deaths,) by which each death counts; once if None.
        """
        sets, mean = self._sets, self._at_risk(beta)[3]
        by = np.ones(1) if g is None else g
        out = self._exposed(beta, mean * by) - self._exposed(beta, by) * self._across
        if sets.thins:  # tied deaths share the means of their block: each takes the mean of them
            mean = mean.copy()
            mean[:, sets.tied] = sets.by_knot(mean.take(sets.tied, axis=1)) / sets.tied_count
        out[:, sets.deaths] += sets.weights * by * (self._across.take(sets.deaths, axis=1) - mean)
        return np.asarray(out)


@dataclass(frozen=True, kw_only=True)
class SurvivalCurve:
    """A Kaplan–Meier curve with its risk table: one entry per distinct time, rising.

    Args:
        time: (m,) times of events and censorings.
        at_risk, events, censored: (m,) counts at each time.
        survival: (m,) probability to be free of the event just after each time.
        log_variance: (m,) Greenwood's sum: the variance of log survival.
    """

    time: Array
    at_risk: Array
    events: Array
    censored: Array
    survival: Array
    log_variance: Array

    @property
    def se(self) -> Array:
        """(m,) standard error of `survival`, as R prints it; 0 where survival is 0."""
        return np.where(
            self.survival > 0, self.survival * np.sqrt(np.where(self.survival > 0, self.log_variance, 0)), 0
        )

    def at(self, time: float) -> tuple[float, float]:
        """Survival and the variance of its logarithm at a time; 1 and 0 before the first entry."""
        k = int(np.searchsorted(self.time, time, side="right"))
        return (1.0, 0.0) if k == 0 else (float(self.survival[k - 1]), float(self.log_variance[k - 1]))

    def read_off(
        self, times: Sequence[float], *, label: str = "", level: float = 0.95, inflation: float = 1.0
    ) -> GridCurve:
        """The curve at given times, which must not come from its rows (`public_times`).

        Args:
            times: (g,), rising.
            label: what the curve is called.
            level: coverage of the pointwise intervals.
            inflation: how many times the variance that the rows claim the curve has: 1 for patients.
        Raises: ParameterError: times that do not rise from 0, or a level outside (0, 1).
        """
        from scipy.special import expit, logit, ndtri

        grid = np.asarray(times, dtype=float)
        if len(grid) < 2 or grid[0] != 0 or not (np.diff(grid) > 0).all():
            raise ParameterError("times must rise from 0", given=f"{len(grid)} times")
        if not 0 < level < 1:
            raise ParameterError("level must be in (0, 1)", given=f"{level}")
        z = -float(ndtri((1 - level) / 2))
        risk = np.searchsorted(self.time, grid, side="left")
        left = [int(self.at_risk[k]) if k < len(self.time) else 0 for k in risk]
        past = np.r_[0.0, np.cumsum(self.events)][np.searchsorted(self.time, grid, side="right")]
        last = float(self.time[-1]) if len(self.time) else -math.inf
        survival: list[float | None] = []
        ends: list[tuple[float | None, float | None]] = []
        for k, time in enumerate(grid):
            value, variance = self.at(float(time))
            # Beyond the last row nothing is known; where the last row had its event, the curve ends at 0.
            known = time <= last or (value == 0 and k > 0 and grid[k - 1] < last)
            survival.append(value if known else None)
            if known and 0 < value < 1:
                half = z * math.sqrt(inflation * variance) / (1 - value)
                ends.append((float(expit(logit(value) - half)), float(expit(logit(value) + half))))
            else:
                ends.append((None, None))
        return GridCurve(
            label=label,
            level=level,
            time=tuple(grid.tolist()),
            survival=tuple(survival),
            lower=tuple(low for low, _ in ends),
            upper=tuple(high for _, high in ends),
            at_risk=tuple(left),
            events=tuple(int(count) for count in past),
            inflation=inflation,
        )


@dataclass(frozen=True, kw_only=True)
class GridCurve:
    """A Kaplan–Meier curve read off at public times: what is drawn of it, and sent.

    A curve with a step at each event time is the rows' times and events in another form: every step is a row. Read
    off at times that the dictionary gives (at most a hundred), it has one value per interval however many rows there
    are, and the same times for every site and every release.

    Args:
        label: the site, the arm, or both.
        level: coverage of the pointwise intervals.
        time: (g,) rising from 0.
        survival: (g,) share without the event just after each time; None beyond the last row's time.
        lower, upper: (g,) pointwise limits on the logit scale, those of the question ``km(…, at = time)``; None where
            survival is 0, 1 or unknown.
        at_risk: (g,) rows still followed just before each time.
        events: (g,) events up to and including each time.
        inflation: how many times the variance that the rows claim stands behind the limits.
    Raises: ParameterError: parts of different lengths.
    """

    label: str
    level: float
    time: tuple[float, ...]
    survival: tuple[float | None, ...]
    lower: tuple[float | None, ...]
    upper: tuple[float | None, ...]
    at_risk: tuple[int, ...]
    events: tuple[int, ...]
    inflation: float = 1.0

    def __post_init__(self) -> None:
        for name in ("time", "survival", "lower", "upper", "at_risk", "events"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a document brings lists
            if len(getattr(self, name)) != len(self.time):
                raise ParameterError("all parts of a curve must be as long as its times", given=name)

    @property
    def n(self) -> int:
        """Rows behind it."""
        return self.at_risk[0]


def public_times(upper: float, *, most: int = 100) -> tuple[float, ...]:
    """Round times from 0 to a public bound of follow-up (the dictionary's), at most `most` intervals.

    Raises: ParameterError: a bound that is not positive and finite.

    >>> public_times(25.0)[:3], len(public_times(25.0)), public_times(365, most=12)[-3:]
    ((0.0, 0.25, 0.5), 101, (300.0, 350.0, 400.0))
    """
    if not 0 < upper < math.inf or most < 1:
        raise ParameterError("the bound of follow-up must be positive and finite", given=f"{upper}")
    power = 10.0 ** (math.floor(math.log10(upper / most)) - 1)
    step = next(
        factor * power
        for factor in (1, 2, 2.5, 5, 10, 20, 25, 50, 100)
        if math.ceil(round(upper / (factor * power), 9)) <= most
    )
    count = math.ceil(round(upper / step, 9))
    return tuple(round(step * k, 12) for k in range(count + 1))


def kaplan_meier(time: Array, event: Array) -> SurvivalCurve:
    """The product-limit estimate, R's `survfit(Surv(time, event) ~ 1)`; deaths precede censorings at the same time.

    >>> kaplan_meier(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 1.0, 0.0, 1.0])).survival
    array([0.75, 0.5 , 0.  ])
    """
    times, place = np.unique(time, return_inverse=True)
    events = np.bincount(place, weights=event, minlength=len(times)).astype(float)
    leaving = np.bincount(place, minlength=len(times)).astype(float)
    at_risk = len(time) - np.r_[0.0, np.cumsum(leaving)[:-1]]
    with np.errstate(all="ignore"):
        survival = np.cumprod(1 - events / at_risk)
        variance = np.cumsum(np.where(events > 0, events / (at_risk * (at_risk - events)), 0.0))
    return SurvivalCurve(
        time=times,
        at_risk=at_risk,
        events=events,
        censored=leaving - events,
        survival=survival,
        log_variance=variance,
    )


def restricted_mean(curve: SurvivalCurve, tau: float) -> tuple[float, float]:
    """Area under the curve up to `tau`, and its variance Σ A_i² d_i / (n_i (n_i − d_i)), A_i the area from time i on.

    R's `survRM2::rmst1`. The last risk set wholly lost to events adds 0, since no area lies behind it.
    """
    inside = curve.time < tau
    edges = np.r_[0.0, curve.time[inside], tau]
    heights = np.r_[1.0, curve.survival[inside]]
    pieces = heights * np.diff(edges)
    after = np.cumsum(pieces[::-1])[::-1][1:]
    d, n = curve.events[inside], curve.at_risk[inside]
    with np.errstate(all="ignore"):
        terms = np.where((after > 0) & (d > 0), after**2 * d / (n * (n - d)), 0.0)
    return float(pieces.sum()), float(terms.sum())


@dataclass(frozen=True, kw_only=True)
class LogRank:
    """The log-rank test: counts per group, and the covariance of observed minus expected.

    Args:
        n, observed, expected: (g,).
        covariance: (g, g), hypergeometric.
    """

    n: Array
    observed: Array
    expected: Array
    covariance: Array

    @property
    def chisq(self) -> float:
        """The statistic, on `df` degrees of freedom."""
        difference = (self.observed - self.expected)[1:]
        return float(difference @ np.linalg.pinv(self.covariance[1:, 1:]) @ difference)

    @property
    def df(self) -> int:
        """Groups with anyone expected to have an event, less one."""
        return int((self.expected > 0).sum()) - 1

    @property
    def p(self) -> float:
        """Its p-value."""
        from scipy.stats import chi2

        return float(chi2.sf(self.chisq, self.df)) if self.df > 0 else 1.0


def log_rank(
    time: Array, event: Array, group: NDArray[np.int64], groups: int, strata: NDArray[np.int64] | None = None
) -> LogRank:
    """Compare groups 0 … groups − 1, within strata, R's `survdiff(Surv(time, event) ~ group + strata(s))`."""
    stratum = np.zeros(len(time), dtype=np.int64) if strata is None else strata
    observed, expected = np.zeros(groups), np.zeros(groups)
    covariance = np.zeros((groups, groups))
    for s in np.unique(stratum):
        inside = stratum == s
        times, place = np.unique(time[inside], return_inverse=True)
        leaving = np.zeros((len(times), groups))
        np.add.at(leaving, (place, group[inside]), 1.0)
        deaths = np.zeros((len(times), groups))
        np.add.at(deaths, (place, group[inside]), event[inside])
        at_risk = np.cumsum(leaving[::-1], axis=0)[::-1]
        total, died = at_risk.sum(axis=1), deaths.sum(axis=1)
        share = at_risk / total[:, None]
        observed += deaths.sum(axis=0)
        expected += died @ share
        scale = died * np.where(total > 1, (total - died) / np.maximum(total - 1, 1), 0.0)
        covariance += np.diag(scale @ share) - (share * scale[:, None]).T @ share
    return LogRank(
        n=np.bincount(group, minlength=groups).astype(float),
        observed=observed,
        expected=expected,
        covariance=covariance,
    )
