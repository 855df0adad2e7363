"""Survival without a model: Kaplan–Meier, restricted mean survival time, log-rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError

__all__ = [
    "GridCurve",
    "LogRank",
    "SurvivalCurve",
    "kaplan_meier",
    "log_rank",
    "public_times",
    "restricted_mean",
]

Array = NDArray[np.float64]


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

    Args:
        time: (n,) not negative.
        event: (n,) 1 for an event, 0 for the end of follow-up.

    >>> kaplan_meier(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 1.0, 0.0, 1.0])).survival
    array([0.75, 0.5 , 0.  ])
    """
    n = len(time)
    # A time that is not negative has a sign bit to spare: with the event in it, one sort of numbers does for both.
    keys = (time + 0.0).view(np.uint64)
    keys <<= np.uint64(1)
    keys |= event > 0
    keys.sort()
    events = (keys & np.uint64(1) != 0).astype(float)
    keys >>= np.uint64(1)
    times, at_risk, censored = keys.view(np.float64), np.arange(n, 0.0, -1.0), 1 - events
    new = np.ones(n, dtype=bool)
    np.not_equal(times[1:], times[:-1], out=new[1:])
    if not new.all():  # several rows at one time
        first = np.flatnonzero(new)
        times, at_risk = times[first], at_risk[first]
        events, censored = np.add.reduceat(events, first), np.add.reduceat(censored, first)
    survival, variance = events / at_risk, at_risk - events
    variance *= at_risk
    with np.errstate(all="ignore"):
        np.divide(events, variance, out=variance)
    variance[events == 0] = 0.0
    np.subtract(1, survival, out=survival)
    return SurvivalCurve(
        time=times,
        at_risk=at_risk,
        events=events,
        censored=censored,
        survival=np.cumprod(survival, out=survival),
        log_variance=np.cumsum(variance, out=variance),
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
    """Compare groups 0 … groups − 1, within strata, R's `survdiff(Surv(time, event) ~ group + strata(s))`.

    Args:
        time: (n,) until the event or the end of follow-up, in any unit.
        event: (n,) 1 for an event, 0 for the end of follow-up.
        group: (n,) numbers of the groups, from 0.
        groups: how many groups there are.
        strata: (n,) numbers of the strata; None for one.
    """
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
