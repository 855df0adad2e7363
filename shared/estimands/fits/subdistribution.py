r"""Regression of a subdistribution hazard: incidence of one event beside competing ones (Fine and Gray 1999).

A row that had a competing event stays at risk of the event, with the weight w_i(t) = G(t−) / G(T_i−) of not having been
censored since; G is the product-limit curve of censoring, in which events precede censorings at the same time. With
θ_i = exp(x_i'β), x̄ the weighted mean of x over those at risk and Λ the baseline's hazard, a row's score is

.. math:: \eta_i = \int (x_i - \bar x(t))\, w_i(t)\, dM_i(t), \qquad \psi_i = \int \frac{q(u)}{\pi(u)}\, dM^c_i(u)

ψ is what the row moves the estimate of G by (their equations 7 and 8), with π(u) rows at risk of censoring and q(u)
what all weights that hold u together add to the score. Ties are Breslow's. Sums over who is at risk are running sums,
so a step costs O(n p²), where rows that are split by time cost n times as many rows as there are censoring times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["fine_gray"]

Array = NDArray[np.float64]


def fine_gray(x: Array, time: Array, event: Array, other: Array) -> RegressionFit:
    """Fine–Gray regression, R's `cmprsk::crr` and `survival::finegray` with `coxph(ties = "breslow")`.

    Args:
        x: (n, p) of full rank, columns centred and scaled. time: (n,).
        event, other: (n,) 1 for the event, and for a competing one; 0 in both is censored.
    Returns: its covariance is the sandwich of η + ψ, as `crr`'s; `converged` is False without a maximum.

    >>> x = np.array([[-1.0], [1.0], [-1.0], [1.0], [-1.0], [1.0]])
    >>> fit = fine_gray(x, np.arange(1.0, 7.0), np.array([1.0, 1, 0, 0, 1, 1]), np.array([0.0, 0, 1, 0, 0, 0]))
    >>> fit.converged, fit.beta.round(3)
    (True, array([-0.039]))
    """
    if not (event > 0).any():
        return _without_a_maximum(x)
    likelihood = _SubdistributionLikelihood(x, time, event, other)
    with np.errstate(all="ignore"):
        start = np.zeros(x.shape[1])
        beta, inverse, reached, converged = newton(likelihood.value, likelihood.derivatives, start, iterations=40)
        scores = likelihood.scores(beta)
        influence = scaled_product(scores, None, inverse, out=scores)
    return RegressionFit(
        beta=beta,
        cov=gram(influence, np.ones(len(time))),
        converged=converged,
        fitted=x @ beta,
        loglik=reached,
        influence=influence,
    )


def _without_a_maximum(x: Array) -> RegressionFit:
    n, p = x.shape
    none = np.full((p, p), np.nan)
    return RegressionFit(
        beta=np.zeros(p), cov=none, converged=False, fitted=np.zeros(n), loglik=0.0, influence=np.zeros((n, p))
    )


class _SubdistributionLikelihood:
    """The weighted partial likelihood, its derivatives, and the scores η + ψ of the rows in the order given."""

    def __init__(self, x: Array, time: Array, event: Array, other: Array) -> None:
        self._order = np.argsort(time, kind="stable")
        self._x, self._time = x.T.take(self._order, axis=1).T, time[self._order]  # column after column in memory
        self._event, self._other = event[self._order], other[self._order]
        self._at, deaths = np.unique(self._time[self._event > 0], return_counts=True)
        self._deaths = deaths.astype(float)
        self._first = np.searchsorted(self._time, self._at, side="left")  # rows at risk begin here
        self._past = np.searchsorted(self._at, self._time, side="right")  # event times up to each row's own
        self._censoring()
        own, then = self._before(self._time), self._before(self._at)
        self._kept = np.where(self._other > 0, 1 / np.where(own > 0, own, 1.0), 0.0)  # 1 / G(T−) of who stays
        self._then = then
        self._stays = np.flatnonzero(self._kept)
        self._stayed = np.searchsorted(self._stays, self._first)  # how many of them before each event time
        until = np.searchsorted(self._time, self._cut, side="right")  # rows up to each time of censoring
        self._stayed_until = np.searchsorted(self._stays, until)
        # Memory that is used again: to be given a million numbers' room takes longer than to add them up.
        self._means, n = np.empty((len(self._at), x.shape[1]), order="F"), len(time)
        self._product, self._running = np.empty(n), np.empty(n)
        self._known: tuple[Array, tuple[Array, Array, Array]] | None = None

    def _censoring(self) -> None:
        """Times of censoring with the rows at risk of it; those that end by an event at the same time have left."""
        ended = (self._event + self._other) > 0
        self._cut, lost = np.unique(self._time[~ended], return_counts=True)
        later = len(self._time) - np.searchsorted(self._time, self._cut, side="left")
        times, count = np.unique(self._time[ended], return_counts=True)
        place = np.searchsorted(times, self._cut)
        here = place < len(times)
        here[here] = times[place[here]] == self._cut[here]
        tied = np.zeros(len(self._cut))
        tied[here] = count[place[here]]
        self._lost, self._open = lost.astype(float), later - tied
        self._censored = np.flatnonzero(~ended)
        self._later = np.searchsorted(self._at, self._cut, side="right")  # event times up to it
        # Times of censoring that each row was there at: an event at one of them has left before it.
        self._cuts_past = np.searchsorted(self._cut, self._time, side="left") + ~ended

    def _before(self, at: Array) -> Array:
        """G just before each time."""
        curve = np.r_[1.0, np.cumprod(1 - self._lost / self._open)]
        return np.asarray(curve[np.searchsorted(self._cut, at, side="left")])

    def _at_risk(self, beta: Array) -> tuple[Array, Array, Array]:
        """η and θ, but for a factor that leaves by itself, and at each event time the sum of θ over those at risk."""
        if self._known is None or not np.array_equal(self._known[0], beta):  # a step's value and its derivatives
            eta = self._x @ beta
            eta -= eta.max()
            theta, inside = np.exp(eta), np.empty(len(self._at))
            self._sums(theta, inside)
            self._known = beta.copy(), (eta, theta, inside)
        return self._known[1]

    def _sums(self, parts: Array, out: Array) -> None:
        """At each event time the weighted sum of (n,) parts over those at risk."""
        np.cumsum(parts[::-1], out=self._running[::-1])
        np.take(self._running, self._first, out=out, mode="clip")
        if len(self._stays):
            stayed = np.append(0.0, np.cumsum(parts[self._stays] * self._kept[self._stays]))
            out += self._then * stayed[self._stayed]

    def _mean(self, beta: Array, j: int, out: Array) -> None:
        """At each event time the mean of a column of x over those at risk."""
        _, theta, inside = self._at_risk(beta)
        self._sums(np.multiply(theta, self._x[:, j], out=self._product), out)
        out /= inside

    def value(self, beta: Array) -> float:
        """Its logarithm."""
        eta, _, inside = self._at_risk(beta)
        return float(self._event @ eta - self._deaths @ np.log(inside))

    def _exposed(self, hazard: Array) -> Array:
        """For each row the hazards (K,) at event times that it was at risk at, by its weight there."""
        out = np.append(0.0, np.cumsum(hazard))[self._past]
        if len(self._stays):
            after = np.append(np.cumsum((hazard * self._then)[::-1])[::-1], 0.0)
            out[self._stays] += self._kept[self._stays] * after[self._past[self._stays]]
        return np.asarray(out)

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        """(p,) and (p, p): its slope, and the information."""
        _, theta, inside = self._at_risk(beta)
        exposure = theta * self._exposed(self._deaths / inside)
        for j in range(self._x.shape[1]):
            self._mean(beta, j, self._means[:, j])
        slope = (self._event - exposure) @ self._x
        return slope, gram(self._x, exposure) - gram(self._means, self._deaths)

    def scores(self, beta: Array) -> Array:
        """(n, p)."""
        _, theta, inside = self._at_risk(beta)
        hazard, mean = self._deaths / inside, np.empty(len(self._means))
        rest = self._event - theta * self._exposed(hazard)
        own = np.flatnonzero(self._event > 0)
        total, ahead = self._so_far(theta), self._ahead(hazard)
        out = np.empty(self._x.shape, order="F")
        for j in range(self._x.shape[1]):
            self._mean(beta, j, mean)
            part = theta * self._exposed(hazard * mean)
            part[own] -= mean[self._past[own] - 1]
            part += self._of_the_weights(self._so_far(self._product) * ahead - total * self._ahead(hazard * mean))
            part += np.multiply(rest, self._x[:, j], out=self._product)
            out[self._order, j] = part
        return out

    def _so_far(self, parts: Array) -> Array:
        """At each time of censoring the weighted sum of (n,) parts over those that stay from before it."""
        stayed = np.append(0.0, np.cumsum(parts[self._stays] * self._kept[self._stays]))
        return np.asarray(stayed[self._stayed_until])

    def _ahead(self, parts: Array) -> Array:
        """At each time of censoring the weighted sum of (K,) parts over the event times after it."""
        return np.asarray(np.append(np.cumsum((parts * self._then)[::-1])[::-1], 0.0)[self._later])

    def _of_the_weights(self, q: Array) -> Array:
        """ψ of a column: what each row moves the score by through the curve of censoring."""
        rate = q / self._open
        out = -np.append(0.0, np.cumsum(rate * (self._lost / self._open)))[self._cuts_past]
        out[self._censored] += rate[self._cuts_past[self._censored] - 1]
        return np.asarray(out)
