r"""The outcome given the covariates: survival with censoring, yes or no, a count, a measurement.

Each class is one answer to the same questions: which bounded features of an outcome the mechanism sums (`features`,
every one in [-½, ½]) and what their expectation is given a linear predictor (`conditional`); how much a row says about
a coefficient, and when (`information`, `intensity`); what a record's influence on it is, and what outcomes there may be
(`influence`, `cases`); what the residual was that plans from before sum (`residual`, `expected_residual`, both in
[-1, 1]); and how an outcome is drawn (`draw`). The expectations are closed forms in time, so that
fitting needs no simulation of outcomes:

.. math:: E[e \mid x] = \sum_k P(C \in k \mid x) \, (1 - S(m_k \mid x)), \qquad
          E[\psi(T) \mid x] = \sum_k \Delta\psi_k \, S(m_k \mid x) \, P(C > m_k \mid x)

with ψ the share of the baseline's cumulative hazard reached by a time, m_k the middle of the k-th interval, and both
hazards proportional.

Everything is made from noisy histograms, hence free of budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.mechanisms.moments.margins import Margin, project, shrunken

__all__ = ["MOST_HAZARD", "Binary", "Count", "LinearOutcome", "Outcome", "Survival", "fitted_survival", "from_margin"]

special = deferred("scipy.special")

Array = NDArray[np.float64]
MOST_HAZARD = 8.0
"""Largest linear predictor of a hazard: e⁸ is beyond any hazard ratio of two patients."""
_MOST_DISPERSED = 10.0
"""Largest dispersion of counts: nine tenths of such patients, and more, would have none."""


@cache
def _normal_parts() -> Array:
    """Means of 48 equally likely parts of a standard normal law."""
    edges = np.concatenate([[-np.inf], special.ndtri(np.arange(1, 48) / 48), [np.inf]])
    return np.asarray(48 * -np.diff(np.exp(-(edges**2) / 2)) / math.sqrt(2 * math.pi))


class Outcome(Protocol):
    """Interface of the kinds of outcome: features, residuals, and their expectations given the predictor η."""

    @property
    def predictors(self) -> int:
        """Number of linear predictors: 2 for survival (event and censoring), else 1."""

    @property
    def unit(self) -> float:
        """Factor of coefficients: the outcome's own scale for a measurement, else 1."""

    @property
    def weights(self) -> Array:
        """(a,) how much the mechanism stresses each feature."""

    @property
    def imbalance(self) -> float:
        """Distance of the first feature's mean from 0."""

    def features(self, y: Array) -> Array:
        """(n, outcome columns) -> (n, a), each in [-½, ½]."""

    def conditional(self, eta: Array) -> Array:
        """(m, predictors) -> (m, a): expectation of the features, given the linear predictors."""

    def residual(self, y: Array, eta: Array) -> Array:
        """(n, columns), (n, predictors) -> (n,), each in [-1, 1]."""

    def expected_residual(self, eta: Array, pilot: Array) -> Array:
        """Expectation, under `eta`, of the residual from `pilot`."""

    def information(self, eta: Array) -> Array:
        """(m,) weight of each row in the score of a coefficient."""

    def intensity(self, eta: Array) -> Array:
        """(m, intervals) `information` by interval of time; one interval where there is no time."""

    def cases(self, eta: Array) -> tuple[Array, Array]:
        """(m, c) probabilities of c outcomes of each row, and (m or 1, c, columns) these outcomes."""

    def influence(self, y: Array, eta: Array, along: Array, means: Array) -> Array:
        """(directions, m) or (directions, m, c) influences of outcomes y, (m, columns) or (m or 1, c, columns).

        Args:
            eta: (m, predictors) of the rows. along: (directions, m) d'x of the rows.
            means: (directions, intervals) d'x̄.
        """

    def draw(self, eta: Array, uniforms: Array) -> Array:
        """(n, predictors), (n, 3) uniforms -> (n, columns)."""


# -- survival ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Survival:
    """Two proportional hazards on common intervals of [0, horizon].

    Args:
        edges: (k + 1,) interval ends. cumulative: (k + 1,) baseline cumulative hazard of the event at them.
        staying: (k + 1,) log probability, at the baseline, of not having been censored; the last is practically -∞.
        events: share of persons with an event.
        reached: (k + 1,) ψ at the edges; None takes it from `cumulative`.
    """

    edges: Array
    cumulative: Array
    staying: Array
    events: float
    reached: Array | None = None

    predictors = 2
    unit = 1.0

    @cached_property
    def psi(self) -> Array:
        """(k + 1,) share of the cumulative hazard reached at each edge."""
        return self.cumulative / self.cumulative[-1] if self.reached is None else self.reached

    def among(self, eta: Array, everybody: Survival) -> Survival:
        r"""The shape of the baselines behind the hazards of everybody: who is at higher risk leaves earlier.

        A hazard of everybody still there is the baseline's times their mean relative hazard, which falls with time:

        .. math:: d\Lambda_0(t) \propto d\Lambda(t) \, \frac{\sum_i S_i(t) G_i(t)}{\sum_i e^{\eta_i} S_i(t) G_i(t)}

        with S and G the probabilities of no event and of no censoring, interval by interval from the first, where the
        factor is 1. The level is for the moments to tell: a baseline that followed it would leave it undetermined.

        Args:
            eta: (m, 2) linear predictors of points that stand for everybody; their levels do not matter.
            everybody: with the hazards of everybody, whose ψ stays.
        """
        eta = np.clip(eta, -MOST_HAZARD, MOST_HAZARD)
        relative = np.exp(eta)
        relative /= relative.mean(axis=0)
        steps = np.diff(np.column_stack([everybody.cumulative, -everybody.staying]), axis=0)
        own, out = np.zeros(2), np.zeros((len(steps) + 1, 2))
        for k, step in enumerate(steps):
            # Half of an interval's hazard is behind who is at risk in its middle.
            after = own
            for _ in range(2):
                there = np.exp(-(relative @ ((own + after) / 2)))
                after = own + step * there.sum() / np.maximum(there @ relative, 1e-300)
            own = out[k + 1] = after
        return replace(self, cumulative=out[:, 0], staying=-out[:, 1], reached=everybody.psi)

    def finer(self) -> Survival:
        """On intervals of half the width: hazards that change smoothly, and the censored leaving evenly within each.

        >>> coarse = Survival(np.array([0.0, 1, 2]), np.array([0.0, 0.1, 0.4]), np.array([0.0, -0.7, -60]), 0.2)
        >>> coarse.finer().edges.tolist(), coarse.finer().cumulative.round(3).tolist()
        ([0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 0.031, 0.1, 0.219, 0.4])
        """
        from scipy.interpolate import PchipInterpolator

        every = np.arange(len(self.edges))
        half = np.arange(2 * len(self.edges) - 1) / 2
        staying = np.interp(half, every, np.exp(self.staying))
        staying[::2] = np.exp(self.staying)
        return replace(
            self,
            edges=np.interp(half, every, self.edges),
            cumulative=np.maximum.accumulate(PchipInterpolator(every, self.cumulative)(half)),
            staying=np.log(np.maximum(staying, math.exp(-60))),
            reached=np.interp(half, every, self.psi),
        )

    def split(self, times: Sequence[float]) -> Survival:
        """With edges at these times, too, of those within its own."""
        far = [time for time in times if np.abs(self.edges - time).min() > 1e-9 * self.edges[-1]]
        edges = np.sort(np.r_[self.edges, [time for time in far if self.edges[0] < time < self.edges[-1]]])
        staying = np.interp(edges, self.edges, np.exp(self.staying))
        return replace(
            self,
            edges=edges,
            cumulative=np.interp(edges, self.edges, self.cumulative),
            staying=np.log(np.maximum(staying, math.exp(-60))),
            reached=np.interp(edges, self.edges, self.psi),
        )

    @property
    def weights(self) -> Array:
        """The event counts fully; ψ in proportion to what it says, which grows with the cumulative hazard."""
        level = 0.25 + 0.55 * max(self.imbalance, 0.05)
        late = (4 * level / 1.3) ** 0.25 * math.sqrt(min(float(self.cumulative[-1]), 1.5))
        return np.array([1.0, float(np.clip(late, 0.1, 1.3))])

    @property
    def imbalance(self) -> float:
        """Distance of the event rate from one half."""
        return abs(0.5 - float(np.clip(self.events, 0.02, 0.98)))

    def features(self, y: Array) -> Array:
        """Event and ψ(time), less one half each."""
        return np.column_stack([y[:, 1], np.interp(y[:, 0], self.edges, self.psi)]) - 0.5

    def _curves(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Relative event hazard, probability to stay at the edges, survival in the middles; (m, 1), (m, k + 1), …"""
        relative, stays, present = self._present(eta)
        middles = (self.cumulative[1:] + self.cumulative[:-1]) / 2
        return relative, stays, np.exp(-relative * middles), present

    def _present(self, eta: Array) -> tuple[Array, Array, Array]:
        """Relative event hazard, probability to stay at the edges, and in the middles; (m, 1), (m, k + 1), (m, k)."""
        eta = np.clip(eta, -MOST_HAZARD, MOST_HAZARD)
        stays = np.exp(np.exp(eta[:, 1:]) * self.staying)
        return np.exp(eta[:, :1]), stays, (stays[:, 1:] + stays[:, :-1]) / 2

    def conditional(self, eta: Array) -> Array:
        """Expected event and ψ(time), less one half each."""
        _, stays, survives, present = self._curves(eta)
        event = ((stays[:, :-1] - stays[:, 1:]) * (1 - survives)).sum(axis=1)
        late = (survives * present) @ np.diff(self.psi)
        return np.column_stack([event, late]) - 0.5

    def residual(self, y: Array, eta: Array) -> Array:
        """Event less expected events, the latter at most 1."""
        reached = np.interp(y[:, 0], self.edges, self.cumulative)
        return np.asarray(y[:, 1] - np.minimum(reached * np.exp(np.clip(eta[:, 0], -MOST_HAZARD, MOST_HAZARD)), 1.0))

    def expected_residual(self, eta: Array, pilot: Array) -> Array:
        """Expectation, under `eta`, of the residual from `pilot`."""
        _, stays, survives, present = self._curves(eta)
        event = ((stays[:, :-1] - stays[:, 1:]) * (1 - survives)).sum(axis=1)
        charged = np.minimum(np.exp(np.clip(pilot[:, :1], -MOST_HAZARD, MOST_HAZARD)) * self.cumulative, 1.0)
        return np.asarray(event - (np.diff(charged, axis=1) * survives * present).sum(axis=1))

    def information(self, eta: Array) -> Array:
        """The probability of an event."""
        return np.asarray(self.conditional(eta)[:, 0] + 0.5)

    def intensity(self, eta: Array) -> Array:
        """Expected events in each interval."""
        relative, _, survives, present = self._curves(eta)
        return np.asarray(relative * survives * present * np.diff(self.cumulative))

    def cases(self, eta: Array) -> tuple[Array, Array]:
        """An event, and a censoring, in the middle of each interval."""
        relative, stays, present = self._present(eta)
        survives = np.exp(-relative * self.cumulative)
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        chance = np.empty((len(eta), 2 * len(middles)))
        np.multiply(survives[:, :-1] - survives[:, 1:], present, out=chance[:, : len(middles)])
        np.multiply(
            (stays[:, :-1] - stays[:, 1:]) / 2, survives[:, :-1] + survives[:, 1:], out=chance[:, len(middles) :]
        )
        cases = np.column_stack([np.tile(middles, 2), np.repeat([1.0, 0.0], len(middles))])
        return chance, cases[None]

    def influence(self, y: Array, eta: Array, along: Array, means: Array) -> Array:
        """Along the risk-set means at the time of an event, less what the hazard lived through expects."""
        time, event = y[..., 0], y[..., 1]
        k = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, means.shape[1] - 1)
        steps = np.cumsum(means * np.diff(self.cumulative), axis=1)
        passed = np.array([np.interp(time, self.edges, np.concatenate([[0.0], step])) for step in steps])
        relative = np.exp(np.clip(eta[:, 0], -MOST_HAZARD, MOST_HAZARD))
        reached = np.interp(time, self.edges, self.cumulative)
        if time.ndim == 1:
            return np.asarray(along * (event - relative * reached) - means[:, k] * event + relative * passed)
        # The same outcomes of every row: four products of what is the row's and what is the outcome's.
        own = np.stack([along, np.ones_like(along), np.broadcast_to(relative, along.shape), along * relative], axis=2)
        shape = means[:, k[0]].shape
        theirs = [
            np.broadcast_to(event, shape),
            -means[:, k[0]] * event,
            passed[:, 0],
            np.broadcast_to(-reached, shape),
        ]
        return np.asarray(own @ np.stack(theirs, axis=1))

    def draw(self, eta: Array, uniforms: Array) -> Array:
        """Time and event: the earlier of two draws by inversion."""
        eta = np.clip(eta, -MOST_HAZARD, MOST_HAZARD)
        reached = -np.log(uniforms[:, 0]) * np.exp(-eta[:, 0])
        time = np.where(reached < self.cumulative[-1], np.interp(reached, self.cumulative, self.edges), np.inf)
        stayed = -np.log(uniforms[:, 1]) * np.exp(-eta[:, 1])
        interval = np.clip(np.searchsorted(-self.staying, stayed, side="right") - 1, 0, len(self.edges) - 2)
        width = np.diff(self.edges)[interval]
        leaves = self.edges[interval] + uniforms[:, 2] * width
        return np.column_stack([np.minimum(time, leaves), time <= leaves])


def fitted_survival(counts: Array, n: int, sigma: float, horizon: float) -> Survival:
    """Baseline hazards behind noisy (event, censored) × time counts: a Weibull shape, and what stands out of noise.

    Args:
        counts: (2, k), events first. sigma: of the noise on each. horizon: public end of follow-up.
    """
    k = counts.shape[1]
    edges = np.linspace(0, horizon, k + 1)
    total = project(counts, n).sum(axis=0)
    at_risk = np.maximum(n - np.r_[0.0, np.cumsum(total)[:-1]] - total / 2, 1e-3 * n)
    variance = sigma**2 + np.maximum(project(counts, n)[0], 1.0)
    best, best_loss = np.zeros(k), math.inf
    for shape in np.linspace(0.5, 2.6, 43):
        one = np.diff((edges / horizon) ** shape) * at_risk
        level = max(float((one * counts[0] / variance).sum() / (one**2 / variance).sum()), 4 / float(one.sum()))
        loss = float(((counts[0] - level * one) ** 2 / variance).sum()) + ((shape - 1.2) / 0.4) ** 2
        if loss < best_loss:
            best, best_loss = level * one, loss
    # Not more events than persons, whatever the noise says.
    best = best * min(1.0, 0.97 * n / float(best.sum()))
    shrunk = shrunken(counts[0] - best, np.sqrt(sigma**2 + best), np.ones(k, dtype=bool))
    events = np.maximum(best + shrunk, 0.05 * best)
    hazard = np.minimum(events / at_risk, 3.0)
    cumulative = np.r_[0.0, np.cumsum(hazard)]
    survives = np.exp(-(cumulative[1:] + cumulative[:-1]) / 2)
    leaving = project(counts[1], max(n - float(events.sum()), 1.0)) / np.maximum(survives, 0.02)
    leaving = leaving / leaving.sum() + 1e-6
    remaining = np.cumsum(leaving[::-1])[::-1]
    staying = np.r_[0.0, np.cumsum(np.log1p(-np.minimum(leaving[:-1] / remaining[:-1], 1 - 1e-9))), -60.0]
    staying[:-1] = np.maximum(staying[:-1], -50.0)
    return Survival(edges, cumulative, staying, float(np.clip(events.sum() / n, 0.0, 1.0)))


# -- yes or no, counts, measurements -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Binary:
    """Logistic: the log odds are `level` plus the predictor."""

    level: float

    predictors = 1
    unit = 1.0
    weights = np.ones(1)

    @property
    def imbalance(self) -> float:
        """Distance of the rate from one half."""
        return abs(0.5 - float(special.expit(self.level)))

    def features(self, y: Array) -> Array:
        """The outcome less one half."""
        return y[:, :1] - 0.5

    def _mean(self, eta: Array) -> Array:
        return np.asarray(special.expit(self.level + eta[:, 0]))

    def conditional(self, eta: Array) -> Array:
        """(m, predictors) -> (m, a): expectation of the features, given the linear predictors."""
        return self._mean(eta)[:, None] - 0.5

    def residual(self, y: Array, eta: Array) -> Array:
        """Outcome less its probability."""
        return np.asarray(y[:, 0] - self._mean(eta))

    def expected_residual(self, eta: Array, pilot: Array) -> Array:
        """Expectation, under `eta`, of the residual from `pilot`."""
        return self._mean(eta) - self._mean(pilot)

    def information(self, eta: Array) -> Array:
        """p (1 − p)."""
        mean = self._mean(eta)
        return mean * (1 - mean)

    def intensity(self, eta: Array) -> Array:
        """`information`, in one column."""
        return self.information(eta)[:, None]

    def cases(self, eta: Array) -> tuple[Array, Array]:
        """No and yes."""
        mean = self._mean(eta)
        return np.column_stack([1 - mean, mean]), np.array([[[0.0], [1.0]]])

    def influence(self, y: Array, eta: Array, along: Array, means: Array) -> Array:
        """a (y − μ)."""
        return _residual_along(y[..., 0], self._mean(eta), along - means)

    def draw(self, eta: Array, uniforms: Array) -> Array:
        """(n, predictors), (n, 3) uniforms -> (n, columns)."""
        return (uniforms[:, :1] < self._mean(eta)[:, None]).astype(float)


@dataclass(frozen=True)
class Count:
    """Poisson or negative binomial: the log mean is `level` plus the predictor. Sums are of min(y, cap).

    Args:
        level: log mean where the predictor is 0.
        cap: counts beyond it count as it.
        most: the largest count there may be.
        variance: of the counts of everybody, as their histogram has it.
        dispersion: α of the variance μ + α μ² of counts with the same predictor; 0 for Poisson.
    """

    level: float
    cap: int
    most: int
    variance: float = 0.0
    dispersion: float = 0.0

    predictors = 1
    unit = 1.0
    weights = np.ones(1)

    @property
    def imbalance(self) -> float:
        """Distance of the mean, in caps, from one half."""
        return abs(0.5 - min(math.exp(self.level), self.cap) / self.cap)

    @property
    def _reach(self) -> float:
        return 1.0 + 2.5 * math.exp(self.level / 2)

    def _mean(self, eta: Array) -> Array:
        return np.exp(np.minimum(self.level + eta[:, 0], math.log(self.most + 1.0)))

    def features(self, y: Array) -> Array:
        """The capped count over the cap, less one half."""
        return np.minimum(y[:, :1], self.cap) / self.cap - 0.5

    def among(self, eta: Array) -> Count:
        """With the dispersion that explains the variance of everybody, whose predictors `eta` stands for.

        >>> Count(0.0, 5, 50, variance=3.0).among(np.zeros((9, 1))).dispersion
        2.0
        """
        mean = self._mean(eta)
        beyond = self.variance - float(mean.mean()) - float(mean.var())
        return replace(self, dispersion=float(np.clip(beyond / float((mean**2).mean()), 0.0, _MOST_DISPERSED)))

    def _shares(self, mean: Array, k: Array) -> Array:
        """P(Y = k)."""
        if self.dispersion == 0:
            return np.asarray(np.exp(special.xlogy(k, mean) - mean - special.gammaln(k + 1)))
        size = 1 / self.dispersion
        ways = special.gammaln(k + size) - special.gammaln(size) - special.gammaln(k + 1)
        return np.asarray(np.exp(ways - size * np.log1p(mean / size) + special.xlogy(k, mean / (size + mean))))

    def conditional(self, eta: Array) -> Array:
        """E min(Y, c) = c − Σ (c − k) P(Y = k), k < c."""
        mean, k = self._mean(eta)[:, None], np.arange(float(self.cap))
        share = self._shares(mean, k)
        return np.asarray(0.5 - (share @ (self.cap - k))[:, None] / self.cap)

    def residual(self, y: Array, eta: Array) -> Array:
        """Count less its mean, in units of a public reach, cut at 1."""
        return np.clip((y[:, 0] - self._mean(eta)) / self._reach, -1, 1)

    def expected_residual(self, eta: Array, pilot: Array) -> Array:
        """Expectation, under `eta`, of the residual from `pilot`: a sum over the values a count may have."""
        mean, before = self._mean(eta)[:, None], self._mean(pilot)[:, None]
        k = np.arange(self._largest(mean) + 1.0)
        share = self._shares(mean, k)
        cut = np.clip((k - before) / self._reach, -1, 1)
        return np.asarray((share * cut).sum(axis=1) + np.maximum(1 - share.sum(axis=1), 0.0))

    def information(self, eta: Array) -> Array:
        """The mean."""
        return self._mean(eta)

    def intensity(self, eta: Array) -> Array:
        """`information`, in one column."""
        return self.information(eta)[:, None]

    def cases(self, eta: Array) -> tuple[Array, Array]:
        """The counts that there may be, the last for all beyond it."""
        mean = self._mean(eta)[:, None]
        k = np.arange(self._largest(mean) + 1.0)
        share = self._shares(mean, k)
        share[:, -1] += np.maximum(1 - share.sum(axis=1), 0.0)
        return share, k[None, :, None]

    def influence(self, y: Array, eta: Array, along: Array, means: Array) -> Array:
        """a (y − μ)."""
        return _residual_along(y[..., 0], self._mean(eta), along - means)

    def _largest(self, mean: Array) -> int:
        greatest = float(mean.max())
        return int(min(self.most, greatest + 8 * math.sqrt(greatest + self.dispersion * greatest**2) + 12))

    def draw(self, eta: Array, uniforms: Array) -> Array:
        """By inversion."""
        from scipy.stats import nbinom, poisson

        mean = self._mean(eta)[:, None]
        if self.dispersion == 0:
            return np.minimum(poisson.ppf(uniforms[:, :1], mean), self.most)
        size = 1 / self.dispersion
        return np.minimum(nbinom.ppf(uniforms[:, :1], size, size / (size + mean)), self.most)


@dataclass(frozen=True)
class LinearOutcome:
    """A measurement: mean `centre` + `unit`·predictor, normal residuals with standard deviation `spread`·`unit`.

    `total` is the measurement's standard deviation over all persons, in units: 1, or what more is known of it.
    """

    centre: float
    unit: float
    spread: float
    lower: float
    upper: float
    total: float = 1.0

    predictors = 1
    weights = np.ones(1)
    imbalance = 0.0
    _CUT = 2.0

    def features(self, y: Array) -> Array:
        """The measurement in its own units, cut at 2, over 4."""
        return np.clip((y[:, :1] - self.centre) / self.unit, -self._CUT, self._CUT) / (2 * self._CUT)

    def conditional(self, eta: Array) -> Array:
        """(m, predictors) -> (m, a): expectation of the features, given the linear predictors."""
        return _cut_mean(eta[:, :1], self.spread, self._CUT) / (2 * self._CUT)

    def beside(self, eta: Array) -> LinearOutcome:
        """With the spread that predictors (m, 1) of points that stand for everybody leave of the whole."""
        left = (self.total**2 - float(np.var(eta[:, 0]))) / self.total**2
        return replace(self, spread=self.total * math.sqrt(min(max(left, 0.05), 1.0)))

    def residual(self, y: Array, eta: Array) -> Array:
        """Measurement less its mean, in units of two residual standard deviations, cut at 1."""
        return np.clip(((y[:, 0] - self.centre) / self.unit - eta[:, 0]) / (2 * self.spread), -1, 1)

    def expected_residual(self, eta: Array, pilot: Array) -> Array:
        """Expectation, under `eta`, of the residual from `pilot`."""
        return _cut_mean((eta - pilot)[:, 0], self.spread, 2 * self.spread) / (2 * self.spread)

    def information(self, eta: Array) -> Array:
        """The same for every row."""
        return np.ones(len(eta))

    def intensity(self, eta: Array) -> Array:
        """`information`, in one column."""
        return self.information(eta)[:, None]

    def cases(self, eta: Array) -> tuple[Array, Array]:
        """Means of equally likely parts of the normal law of a measurement."""
        parts = _normal_parts()
        cases = self.centre + self.unit * (eta[:, :1] + self.spread * parts)
        return np.full(cases.shape, 1 / len(parts)), cases[:, :, None]

    def influence(self, y: Array, eta: Array, along: Array, means: Array) -> Array:
        """a (y − μ), in the measurement's own unit."""
        return _residual_along((y[..., 0] - self.centre) / self.unit, eta[:, 0], along - means)

    def draw(self, eta: Array, uniforms: Array) -> Array:
        """(n, 1) linear predictors, (n, 3) uniforms -> (n, 1) values within the public bounds."""
        y = self.centre + self.unit * (eta[:, :1] + self.spread * special.ndtri(uniforms[:, :1]))
        return np.clip(y, self.lower, self.upper)


def _residual_along(y: Array, mean: Array, along: Array) -> Array:
    """a (y − μ) of y, (m or 1, …), with μ (m,) and a (directions, m)."""
    shape = (-1, *[1] * (y.ndim - 1))
    return np.asarray((y - mean.reshape(shape)) * along.reshape(len(along), *shape))


def _cut_mean(mean: Array, sd: float, cut: float) -> Array:
    """E clip(N(mean, sd²), −cut, cut)."""
    a, b = (-cut - mean) / sd, (cut - mean) / sd
    density = np.exp(-(np.stack([a, b]) ** 2) / 2) / math.sqrt(2 * math.pi)
    inside = special.ndtr(b) - special.ndtr(a)
    value = mean * inside + sd * (density[0] - density[1]) - cut * special.ndtr(a) + cut * special.ndtr(-b)
    return np.asarray(value)


def from_margin(kind: str, margin: Margin, lower: float, upper: float) -> Outcome:
    """The outcome's own distribution, before any covariate: levels, cap and scale come from it."""
    if kind == "binary":
        return Binary(float(special.logit(np.clip(margin.mean, 0.003, 0.997))))
    mean, sd = margin.mean, max(margin.sd, 1e-6 * (upper - lower))
    if kind == "count":
        mean = max(mean, 0.02)
        cap = int(np.clip(math.ceil(mean + 2.5 * max(sd, math.sqrt(mean))), 1, max(upper, 1)))
        return Count(math.log(mean), cap, int(upper), variance=sd**2)
    return LinearOutcome(mean, sd, 0.9, lower, upper)
