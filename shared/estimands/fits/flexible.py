r"""Flexible parametric survival: log H(t | x) = s(log t) + x'β, s a natural cubic spline (Royston and Parmar 2002).

The spline is their equation 9: with y = log t, inner knots k_j and ends a < b,

.. math:: s(y) = γ_0 + γ_1 y + \sum_j γ_{j+1} \{(y - k_j)^3_+ - λ_j (y - a)^3_+ - (1 - λ_j)(y - b)^3_+\}, \quad
    λ_j = (b - k_j) / (b - a)

An event adds log s'(y) + η − exp(η) to the log-likelihood (but for log t, which no parameter moves), a censored row
− exp(η), and a late entry the cumulative hazard up to it. exp(β) are hazard ratios, as of a Cox model, whose baseline
this one smooths: with one degree of freedom it is Weibull's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["flexible", "spline_of"]

Array = NDArray[np.float64]


def spline_of(y: Array, inner: Array, ends: tuple[float, float]) -> tuple[Array, Array]:
    """The columns of s without γ_0 at log times y, and their derivatives; both (n, 1 + inner knots).

    >>> columns, slopes = spline_of(np.array([0.0, 2.0]), np.array([1.0]), (0.0, 3.0))
    >>> columns.round(3).tolist(), slopes.round(3).tolist()
    ([[0.0, 0.0], [2.0, -4.333]], [[1.0, 0.0], [1.0, -5.0]])
    """
    low, high = ends
    columns, slopes = [y], [np.ones(len(y))]
    for knot in inner:
        share = (high - knot) / (high - low)
        parts = [(1.0, knot), (-share, low), (share - 1, high)]
        columns.append(np.sum([c * np.maximum(y - at, 0.0) ** 3 for c, at in parts], axis=0))
        slopes.append(np.sum([3 * c * np.maximum(y - at, 0.0) ** 2 for c, at in parts], axis=0))
    return np.column_stack(columns), np.column_stack(slopes)


class _SplineLikelihood:
    """Of θ = (γ, β).

    Args:
        whole: (n, q) columns of the spline and of x. steep: (events, r) slopes of the spline's. before: (late, q) as
            `whole`, at the times of entry.
        dead, late: which rows had an event, and which entered late. weights, offset: (n,).
    """

    def __init__(
        self,
        whole: Array,
        steep: Array,
        before: Array,
        dead: NDArray[np.int64],
        late: NDArray[np.int64],
        weights: Array,
        offset: Array,
    ) -> None:
        self._whole, self._steep, self._before = whole, steep, before
        self._dead, self._late, self._weights, self._offset = dead, late, weights, offset
        self._of_dead, self._of_late = weights[dead], weights[late]
        self._known: tuple[Array, tuple[Array, Array, Array, Array]] | None = None

    def parts(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """Log cumulative hazards and their exponentials, those before entry, and the slopes of s at the events."""
        if self._known is None or not np.array_equal(self._known[0], theta):  # a step's value and its derivatives
            eta = self._whole @ theta + self._offset
            earlier = np.exp(self._before @ theta + self._offset[self._late])
            self._known = theta.copy(), (eta, np.exp(eta), earlier, self._steep @ theta[: self._steep.shape[1]])
        return self._known[1]

    def value(self, theta: Array) -> float:
        eta, hazard, earlier, slope = self.parts(theta)
        if (slope <= 0).any():
            return -np.inf
        reached = float(self._of_dead @ (eta[self._dead] + np.log(slope)) - self._weights @ hazard)
        reached += float(self._of_late @ earlier)
        return reached if np.isfinite(reached) else -np.inf

    def _residual(self, hazard: Array) -> Array:
        out = -hazard
        out[self._dead] += 1.0
        out *= self._weights
        return out

    def derivatives(self, theta: Array) -> tuple[Array, Array]:
        _, hazard, earlier, slope = self.parts(theta)
        r = self._steep.shape[1]
        information = gram(self._whole, self._weights * hazard) - gram(self._before, self._of_late * earlier)
        information[:r, :r] += gram(self._steep, self._of_dead / slope**2)
        gradient = self._residual(hazard) @ self._whole + (self._of_late * earlier) @ self._before
        gradient[:r] += (self._of_dead / slope) @ self._steep
        return gradient, information

    def influence(self, theta: Array, inverse: Array) -> Array:
        """(n, …): the rows' scores times (q, …) of the covariance."""
        _, hazard, earlier, slope = self.parts(theta)
        out = scaled_product(self._whole, self._residual(hazard), inverse)
        out[self._dead] += scaled_product(self._steep, self._of_dead / slope, inverse[: self._steep.shape[1]])
        out[self._late] += scaled_product(self._before, self._of_late * earlier, inverse)
        return out


def flexible(
    x: Array,
    time: Array,
    event: Array,
    *,
    df: int = 3,
    weights: Array | None = None,
    offset: Array | None = None,
    entry: Array | None = None,
) -> RegressionFit:
    """Log hazard ratios beside a smooth baseline, R's `flexsurv::flexsurvspline(k = df - 1, scale = "hazard")`.

    The inner knots are quantiles of the log event times, the ends the first and the last of them.

    Args:
        x: (n, p) of full rank beside a constant, and without one. time: (n,), above 0. event: (n,) 0 or 1.
        df: degrees of freedom of the baseline but for its constant. weights: (n,) case weights.
        offset: (n,), added to x'β. entry: (n,), from when a row is at risk; 0 or less, from the beginning.
    Returns: its covariance is that of β, of the inverse of the observed information of all parameters.

    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((4000, 1))
    >>> times = (rng.exponential(np.exp(-0.5 * x[:, 0]))) ** 0.7
    >>> fit = flexible(x, np.minimum(times, 1.5), (times <= 1.5).astype(float))
    >>> fit.converged, round(float(fit.beta[0]), 1)
    (True, 0.5)
    """
    n, p = x.shape
    w = np.ones(n) if weights is None else weights
    y, dead = np.log(time), np.flatnonzero(event > 0)
    of_events = y[dead][w[dead] > 0]
    ends = float(of_events.min()), float(of_events.max())
    inner = np.quantile(of_events, np.arange(1, df) / df)
    # Log times in units of their spread: the cubes of a day and of a decade are fitted equally well.
    middle, spread = float(of_events.mean()), float(of_events.std()) or 1.0
    place = ((ends[0] - middle) / spread, (ends[1] - middle) / spread)

    def columns(at: Array) -> tuple[Array, Array]:
        curve, slope = spline_of((at - middle) / spread, (inner - middle) / spread, place)
        return np.column_stack([np.ones(len(at)), curve]), np.column_stack([np.zeros(len(at)), slope / spread])

    late = np.flatnonzero(np.zeros(n) if entry is None else entry > 0)
    since = columns(np.log(entry[late]) if entry is not None else y[:0])[0]
    likelihood = _SplineLikelihood(
        whole=np.hstack([columns(y)[0], x]),
        steep=columns(y[dead])[1],
        before=np.hstack([since, x[late]]),
        dead=dead,
        late=late,
        weights=w,
        offset=np.zeros(n) if offset is None else offset,
    )
    # From a Weibull law whose slope is that of the times' own spread: every slope is above 0.
    start = np.zeros(2 + len(inner) + p)
    start[1] = 1.0
    with np.errstate(all="ignore"):
        _, hazard, earlier, _ = likelihood.parts(start)
        start[0] = np.log(float(w[dead].sum()) / float(w @ hazard - w[late] @ earlier))
        theta, inverse, reached, converged = newton(likelihood.value, likelihood.derivatives, start, iterations=100)
        influence = likelihood.influence(theta, inverse[:, -p:])
    return RegressionFit(
        beta=theta[-p:],
        cov=inverse[-p:, -p:],
        converged=bool(converged and np.isfinite(inverse).all()),
        fitted=x @ theta[-p:],
        loglik=reached,
        influence=influence,
    )
