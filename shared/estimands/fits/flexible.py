r"""Flexible parametric survival: log H(t | x) = s(log t) + x'β, s a natural cubic spline (Royston and Parmar 2002).

The spline is their equation 9: with y = log t, inner knots k_j and ends a < b,

.. math:: s(y) = γ_0 + γ_1 y + \sum_j γ_{j+1} \{(y - k_j)^3_+ - λ_j (y - a)^3_+ - (1 - λ_j)(y - b)^3_+\}, \quad
    λ_j = (b - k_j) / (b - a)

An event adds log s'(y) + η − exp(η) to the log-likelihood (but for log t, which no parameter moves), a censored row
− exp(η), and a late entry the cumulative hazard up to it. exp(β) are hazard ratios, as of a Cox model, whose baseline
this one smooths: with one degree of freedom it is Weibull's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, kw_only=True)
class _SplineLikelihood:
    """Of θ = (γ, β).

    Args:
        whole: (n, q) columns of the spline and of x. steep: (events, q) those of its slope. before: (late, q) as
            `whole`, at the times of entry.
        dead, late: (n,) who had an event, who entered late. weights, offset: (n,).
    """

    whole: Array
    steep: Array
    before: Array
    dead: NDArray[np.bool_]
    late: NDArray[np.bool_]
    weights: Array
    offset: Array

    def parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """Cumulative hazards, those before entry, and the slopes of s at the events."""
        earlier = np.exp(self.before @ theta + self.offset[self.late])
        return np.exp(self.whole @ theta + self.offset), earlier, self.steep @ theta

    def value(self, theta: Array) -> float:
        hazard, earlier, slope = self.parts(theta)
        if (slope <= 0).any():
            return -np.inf
        w, dead = self.weights, self.dead
        reached = float(w[dead] @ (np.log(hazard[dead]) + np.log(slope)) - w @ hazard + w[self.late] @ earlier)
        return reached if np.isfinite(reached) else -np.inf

    def scores(self, theta: Array) -> Array:
        hazard, earlier, slope = self.parts(theta)
        own = self.whole * (self.dead - hazard)[:, None]
        own[self.dead] += self.steep / slope[:, None]
        own[self.late] += self.before * earlier[:, None]
        return np.asarray(own * self.weights[:, None])

    def derivatives(self, theta: Array) -> tuple[Array, Array]:
        hazard, earlier, slope = self.parts(theta)
        w = self.weights
        information = (self.whole * (w * hazard)[:, None]).T @ self.whole
        information += (self.steep * (w[self.dead] / slope**2)[:, None]).T @ self.steep
        information -= (self.before * (w[self.late] * earlier)[:, None]).T @ self.before
        return self.scores(theta).sum(axis=0), information


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
    y, dead = np.log(time), event > 0
    of_events = y[dead & (w > 0)]
    ends = float(of_events.min()), float(of_events.max())
    inner = np.quantile(of_events, np.arange(1, df) / df)
    # Log times in units of their spread: the cubes of a day and of a decade are fitted equally well.
    middle, spread = float(of_events.mean()), float(of_events.std()) or 1.0
    place = ((ends[0] - middle) / spread, (ends[1] - middle) / spread)

    def columns(at: Array) -> tuple[Array, Array]:
        curve, slope = spline_of((at - middle) / spread, (inner - middle) / spread, place)
        constant = np.ones((len(at), 1))
        return np.hstack([constant, curve]), np.hstack([0 * constant, slope / spread])

    late = np.zeros(n, dtype=bool) if entry is None else entry > 0
    since = np.ones(n) if entry is None else np.where(late, entry, 1.0)
    base, slopes = columns(y)
    likelihood = _SplineLikelihood(
        whole=np.hstack([base, x]),
        steep=np.hstack([slopes, np.zeros((n, p))])[dead],
        before=np.hstack([columns(np.log(since[late]))[0], x[late]]),
        dead=dead,
        late=late,
        weights=w,
        offset=np.zeros(n) if offset is None else offset,
    )
    # From a Weibull law whose slope is that of the times' own spread: every slope is above 0.
    start = np.zeros(2 + len(inner) + p)
    start[1] = 1.0
    with np.errstate(all="ignore"):
        hazard, earlier, _ = likelihood.parts(start)
        start[0] = np.log(float(w @ dead) / float(w @ hazard - w[late] @ earlier))
        theta, inverse, reached, converged = newton(likelihood.value, likelihood.derivatives, start, iterations=100)
        influence = (likelihood.scores(theta) @ inverse)[:, -p:]
    return RegressionFit(
        beta=theta[-p:],
        cov=inverse[-p:, -p:],
        converged=bool(converged and np.isfinite(inverse).all()),
        fitted=x @ theta[-p:],
        loglik=reached,
        influence=influence,
    )
