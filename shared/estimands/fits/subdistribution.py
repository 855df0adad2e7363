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

from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["fine_gray"]

Array = NDArray[np.float64]


def fine_gray(x: Array, time: Array, event: Array, other: Array, *, iterations: int = 40) -> RegressionFit:
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
        beta, inverse, reached, converged = newton(
            likelihood.value, likelihood.derivatives, np.zeros(x.shape[1]), iterations=iterations
        )
        influence = likelihood.scores(beta) @ inverse
    return RegressionFit(
        beta=beta,
        cov=influence.T @ influence,
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
        self._x, self._time = x[self._order], time[self._order]
        self._event, self._other = event[self._order], other[self._order]
        self._at, deaths = np.unique(self._time[self._event > 0], return_counts=True)
        self._deaths = deaths.astype(float)
        self._first = np.searchsorted(self._time, self._at, side="left")  # rows at risk begin here
        self._past = np.searchsorted(self._at, self._time, side="right")  # event times up to each row's own
        self._censoring()
        own, then = self._before(self._time), self._before(self._at)
        self._kept = np.where(self._other > 0, 1 / np.where(own > 0, own, 1.0), 0.0)  # 1 / G(T−) of who stays
        self._then = then

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

    def _before(self, at: Array) -> Array:
        """G just before each time."""
        curve = np.r_[1.0, np.cumprod(1 - self._lost / self._open)]
        return np.asarray(curve[np.searchsorted(self._cut, at, side="left")])

    def _linear(self, beta: Array) -> tuple[Array, Array]:
        """η and θ, but for a factor that leaves by itself."""
        eta = self._x @ beta
        eta -= eta.max()
        return eta, np.exp(eta)

    def _sums(self, parts: Array) -> Array:
        """At each event time the weighted sum of rows (n, …) over those at risk."""
        rest = np.cumsum(parts[::-1], axis=0)[::-1][self._first]
        wide = (-1, *(1,) * (parts.ndim - 1))
        stayed = np.cumsum(parts * self._kept.reshape(wide), axis=0)[self._first - 1]
        stayed[self._first == 0] = 0.0
        return np.asarray(rest + self._then.reshape(wide) * stayed)

    def _at_risk(self, beta: Array) -> tuple[Array, Array, Array]:
        """θ, and at each event time the sum of θ and the mean of x over those at risk."""
        _, theta = self._linear(beta)
        inside = self._sums(theta)
        return theta, inside, self._sums(theta[:, None] * self._x) / inside[:, None]

    def value(self, beta: Array) -> float:
        """Its logarithm."""
        eta, theta = self._linear(beta)
        return float(self._event @ eta - self._deaths @ np.log(self._sums(theta)))

    def _exposed(self, hazard: Array) -> Array:
        """For each row the hazards (K, …) at event times that it was at risk at, by its weight there."""
        none = np.zeros((1, *hazard.shape[1:]))
        own = np.concatenate([none, np.cumsum(hazard, axis=0)])[self._past]
        weighted = hazard * self._then.reshape(-1, *(1,) * (hazard.ndim - 1))
        after = np.concatenate([np.cumsum(weighted[::-1], axis=0)[::-1], none])[self._past]
        return np.asarray(own + self._kept.reshape(-1, *(1,) * (hazard.ndim - 1)) * after)

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        """(p,) and (p, p): its slope, and the information."""
        theta, inside, mean = self._at_risk(beta)
        exposure = theta * self._exposed(self._deaths / inside)
        slope = self._event @ self._x - exposure @ self._x
        return slope, (self._x * exposure[:, None]).T @ self._x - (mean * self._deaths[:, None]).T @ mean

    def scores(self, beta: Array) -> Array:
        """(n, p)."""
        theta, inside, mean = self._at_risk(beta)
        hazard = self._deaths / inside
        out = self._exposed(hazard[:, None] * mean) - self._x * self._exposed(hazard)[:, None]
        out *= theta[:, None]
        dead = self._event > 0
        out[dead] += self._x[dead] - mean[self._past[dead] - 1]
        out += self._of_the_weights(theta, hazard, mean)
        back = np.empty_like(out)
        back[self._order] = out
        return back

    def _of_the_weights(self, theta: Array, hazard: Array, mean: Array) -> Array:
        """ψ: what each row moves the score by through the curve of censoring."""
        stays = theta * self._kept
        so_far = np.searchsorted(self._time, self._cut, side="right")
        total = np.r_[0.0, np.cumsum(stays)][so_far]
        along = np.vstack([np.zeros((1, mean.shape[1])), np.cumsum(stays[:, None] * self._x, axis=0)])[so_far]
        weighted, later = hazard * self._then, np.searchsorted(self._at, self._cut, side="right")
        ahead = np.r_[np.cumsum(weighted[::-1])[::-1], 0.0][later]
        shifted = np.vstack([np.cumsum((weighted[:, None] * mean)[::-1], axis=0)[::-1], np.zeros((1, mean.shape[1]))])
        q = along * ahead[:, None] - total[:, None] * shifted[later]
        rate = q / self._open[:, None]
        running = np.vstack(
            [np.zeros((1, mean.shape[1])), np.cumsum(rate * (self._lost / self._open)[:, None], axis=0)]
        )
        ended = (self._event + self._other) > 0
        own = np.searchsorted(self._cut, self._time, side="left")  # an event at a time of censoring has left before it
        out = -running[np.where(ended, own, own + 1)]
        out[~ended] += rate[own[~ended]]
        return np.asarray(out)
