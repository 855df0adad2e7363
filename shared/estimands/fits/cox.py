r"""Cox regression: the partial likelihood, its maximum, and what each row moves that by.

With θ_i = w_i exp(x_i'β) the partial likelihood needs, at each event time, the sum of θ over those still at risk.
Sorted by falling time within a stratum these sums are cumulative sums, so one Newton step costs O(n p²) without a
loop over event times. Breslow's likelihood uses the same risk set for each of d tied deaths; Efron's takes away
l/d of the tied deaths themselves from the l-th (l = 0 … d−1), so both are one formula with the shares l/d set to 0
or not (Therneau and Grambsch 2000, chapter 3). With weights, each tied death counts with their mean weight, as in R.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["SurvivalOutcome", "Ties", "cox"]

Array = NDArray[np.float64]
Ties = Literal["efron", "breslow"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SurvivalOutcome:
    """Follow-up time and event indicator of each row: R's `Surv(time, event)`, or `Surv(entry, time, event)`.

    Args:
        time: (n,), end of follow-up.
        event: (n,), 1 where follow-up ends with the event, 0 where it is censored.
        entry: (n,) times after which each row is at risk (left truncation), before its time; None for the beginning.
    """

    time: Array
    event: Array
    entry: Array | None = None


def cox(
    x: Array,
    outcome: SurvivalOutcome,
    *,
    ties: Ties = "efron",
    strata: NDArray[np.int64] | None = None,
    weights: Array | None = None,
    offset: Array | None = None,
    trend: Callable[[Array], Array] | None = None,
) -> RegressionFit:
    """Cox regression, R's `coxph(Surv(time, event) ~ x + strata(s) + offset(o), weights, ties)`.

    Args:
        x: (n, p) of full rank, columns centred and scaled.
        outcome: of each row.
        ties: whose partial likelihood, where several events are at one time.
        strata: (n,) integers; baseline hazards are apart, coefficients are shared.
        weights, offset: (n,); 1 and 0 if left out.
        trend: of times what each coefficient is asked to change by (`_drift`), instead of the coefficients.
    Returns: `converged` is False when the partial likelihood has no maximum.
    """
    (n, p), time, event, entry = x.shape, outcome.time, outcome.event, outcome.entry
    if not (event > 0).any():
        none, nowhere = np.full((p, p), np.nan), np.zeros((n, p))
        return RegressionFit(
            beta=np.zeros(p), cov=none, converged=False, fitted=np.zeros(n), loglik=0.0, influence=nowhere
        )
    w = np.ones(n) if weights is None else weights
    whose = np.arange(n)
    if entry is not None:
        # A row that has not entered is taken out of each risk set by a shadow of itself that leaves at its entry,
        # without an event and with the negative weight: sums over risk sets stay running sums.
        late = np.flatnonzero(np.isfinite(entry))
        whose, w = np.concatenate([whose, late]), np.concatenate([w, -w[late]])
        time, event = np.concatenate([time, entry[late]]), np.concatenate([event, np.zeros(len(late))])
    if strata is None or not strata.any():
        order, group = np.argsort(-time, kind="stable"), np.zeros(len(time), dtype=np.int64)
    else:  # strata of one size lie together: their sums are of one array
        _, group, size = np.unique(strata[whose], return_inverse=True, return_counts=True)
        order = np.lexsort((-time, group, size[group]))
        group = group[order]
    whose, w, time = whose[order], w[order], time[order]
    sets = _RiskSets(time, event[order], group, w, ties)
    shift = np.zeros(len(w)) if offset is None else offset[whose]
    likelihood = _PartialLikelihood(x.T.take(whose, axis=1).T, w, shift, sets)
    with np.errstate(all="ignore"):
        beta, cov, reached, converged = newton(likelihood.value, likelihood.derivatives, np.zeros(p), iterations=40)
        residual = likelihood.scores(beta)
        fitted = x @ beta
        if trend is not None:
            beta, cov, pushes = _drift(likelihood, beta, cov, residual, trend(time))
        else:
            pushes = scaled_product(residual, None, cov, out=residual)
    for j in range(p):
        pushes[:n, j] = np.bincount(whose, pushes[:, j], minlength=n)
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=fitted, loglik=reached, influence=pushes[:n])


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
    scores = likelihood.scores(beta, g) - residual @ inverse @ cross
    size = np.diag(spread)
    theta = scores.sum(axis=0) / size
    influence = scores / size
    influence[likelihood.deaths] -= np.outer(g * g / float(g @ g), theta)  # what a death adds to V, about
    return theta, spread / np.outer(size, size), influence


class _RiskSets:
    """Sums over who is still at risk, of rows sorted by falling time within their stratum: running sums of its rows.

    Args:
        time, event, group: (n,), sorted; event 0 or 1, and one at least; group the stratum.
        weights: (n,).
        ties: whether tied deaths leave their risk set one by one (Efron) or together (Breslow).
    """

    def __init__(self, time: Array, event: Array, group: NDArray[np.int64], weights: Array, ties: Ties) -> None:
        n = len(time)
        new_stratum = _begins(group)
        new_time = new_stratum | _begins(time)
        self.deaths = np.flatnonzero(event > 0)
        at = (np.cumsum(new_time) - 1)[self.deaths]
        self._last = np.concatenate([np.flatnonzero(new_time)[1:], [n]])[at] - 1  # of those at risk at each death
        heads = np.flatnonzero(_begins(at))  # where the deaths at one time begin
        count = np.concatenate([heads[1:], [len(at)]]) - heads
        self.weights = weights[self.deaths]
        self.mass = np.repeat(np.add.reduceat(self.weights, heads) / count, count)
        count, first = np.repeat(count, count), np.repeat(heads, count)
        self.tied = np.flatnonzero(count > 1)  # deaths that share their time
        if ties == "breslow":
            self.tied = self.tied[:0]
        self.tied_count = count[self.tied]
        self._share = (self.tied - first[self.tied]) / self.tied_count
        apart = _begins(first[self.tied])
        self._knots, self._knot = np.flatnonzero(apart), np.cumsum(apart) - 1  # where those of one time begin
        self._of_tied = self.deaths[self.tied]
        # Summed stratum by stratum: one total over all would lose a small stratum's digits behind a large one's.
        edges = np.append(np.flatnonzero(new_stratum), n)
        size = np.diff(edges)
        cuts = np.append(edges[:-1][_begins(size)], n)
        self._runs = [(a, b, int(size[np.searchsorted(edges, a)])) for a, b in pairwise(cuts.tolist())]
        self._sums = np.empty(n)

    def _running(self, values: Array, back: int = 1) -> Array:
        """(n,) within each stratum from its first row, or from its last with `back` -1; until it is called again."""
        for a, b, size in self._runs:
            part, sums = values[a:b], self._sums[a:b]
            if size < b - a:
                part, sums = part.reshape(-1, size), sums.reshape(-1, size)
            np.add.accumulate(part[..., ::back], axis=-1, out=sums[..., ::back])
        return self._sums

    def less_largest(self, values: Array) -> None:
        """Take from (n,) values the largest of their stratum."""
        for a, b, size in self._runs:
            table = values[a:b].reshape(-1, size)
            table -= np.maximum.reduce(table, axis=1, keepdims=True)

    def at_deaths(self, values: Array, out: Array) -> None:
        """(deaths,): sums over the risk set at each death of (n,) values; of tied ones, what is left of it."""
        self._running(values).take(self._last, out=out, mode="clip")
        if len(self.tied):
            out[self.tied] -= self._share * self.by_knot(values[self._of_tied])

    def onwards(self, values: Array) -> Array:
        """(n,): of each row the sum over deaths whose risk set it is in, or is left in, of (deaths,) values.

        Until any sum is asked for again.
        """
        at = np.asarray(np.bincount(self._last, values, minlength=len(self._sums)), dtype=float)
        sums = self._running(at, back=-1)
        if len(self.tied):
            sums[self._of_tied] -= self.by_knot(self._share * values[self.tied])
        return sums

    def by_knot(self, values: Array) -> Array:
        """For each tied death the sum over those it is tied with, of (tied,) values."""
        return np.asarray(np.add.reduceat(values, self._knots)[self._knot])


def _begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) whether a value is another one than that before it; the first is."""
    out = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


class _PartialLikelihood:
    """The partial likelihood of sorted rows, its derivatives and its score residuals.

    Coefficients must not be written to afterwards: that they are the same array says that they are the same.

    Args:
        x: (n, p), column after column in memory: sums over risk sets are of one column at a time.
        w, shift: (n,) weights and offsets.
        sets: who is at risk when.
    """

    def __init__(self, x: Array, w: Array, shift: Array, sets: _RiskSets) -> None:
        self._x, self._w, self._shift, self._sets = x, w, shift, sets
        self._target = sets.weights @ x[sets.deaths]
        # Memory that is used again: to be given a million numbers' room takes longer than to add them up.
        self._means, self._product = np.empty((len(sets.deaths), x.shape[1]), order="F"), np.empty(len(x))
        self._known: tuple[Array, tuple[Array, Array, Array]] | None = None

    def _at_risk(self, beta: Array) -> tuple[Array, Array, Array]:
        """θ, the logarithm it was divided by, and at each death its risk set's sum of θ."""
        if self._known is None or self._known[0] is not beta:
            # A step's value and its derivatives are one sum.
            eta = self._x @ beta
            eta += self._shift
            self._sets.less_largest(eta)
            of_deaths, theta, inside = eta[self._sets.deaths], np.exp(eta, out=eta), np.empty(len(self._sets.deaths))
            theta *= self._w
            self._sets.at_deaths(theta, inside)
            self._known = beta, (theta, of_deaths, inside)
        return self._known[1]

    def _mean(self, beta: Array, j: int, out: Array) -> None:
        """(deaths,): means of a column of x over risk sets."""
        theta, _, inside = self._at_risk(beta)
        self._sets.at_deaths(np.multiply(theta, self._x[:, j], out=self._product), out)
        out /= inside

    def _information(self, beta: Array, exposure: Array, mass: Array) -> Array:
        for j in range(self._x.shape[1]):
            self._mean(beta, j, self._means[:, j])
        return gram(self._x, exposure) - gram(self._means, mass)

    @property
    def deaths(self) -> NDArray[np.int64]:
        """Indices of the sorted rows that have an event."""
        return self._sets.deaths

    def value(self, beta: Array) -> float:
        """Its logarithm."""
        _, eta, inside = self._at_risk(beta)
        return float(self._sets.weights @ eta - self._sets.mass @ np.log(inside))

    def _exposed(self, beta: Array, weight: Array | float) -> Array:
        """(n,): what each row was exposed to, of (deaths,) weights of its hazard at each death."""
        theta, _, inside = self._at_risk(beta)
        return theta * self._sets.onwards(self._sets.mass / inside * weight)

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        """(p,) and (p, p): its slope, and the information."""
        exposure = self._exposed(beta, 1.0)
        return self._target - exposure @ self._x, self._information(beta, exposure, self._sets.mass)

    def information(self, beta: Array, g: Array) -> Array:
        """(p, p): the information of the deaths, each times its g (deaths,)."""
        return self._information(beta, self._exposed(beta, g), self._sets.mass * g)

    def scores(self, beta: Array, g: Array | float = 1.0) -> Array:
        """(n, p) score residuals: w_i (x_i - mean at its event) less what it was exposed to, (x_i - mean) dH summed.

        Args:
            g: (deaths,) by which each death counts.
        """
        sets, own = self._sets, self._sets.weights * g
        rest = -self._exposed(beta, g)
        rest[sets.deaths] += own
        theta, _, inside = self._at_risk(beta)
        hazard, mean = sets.mass / inside * g, np.empty(len(self._means))
        out = np.empty(self._x.shape, order="F")
        for j, part in enumerate(out.T):
            self._mean(beta, j, mean)
            np.multiply(theta, sets.onwards(hazard * mean), out=part)
            if len(sets.tied):  # tied deaths share the means of their time: each takes the mean of them
                mean[sets.tied] = sets.by_knot(mean[sets.tied]) / sets.tied_count
            part[sets.deaths] -= own * mean
            part += np.multiply(rest, self._x[:, j], out=self._product)
        return out
