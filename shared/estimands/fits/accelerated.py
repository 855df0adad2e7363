r"""Accelerated failure time: log T = x'β + σ ε, with ε of a standard law (Kalbfleisch and Prentice 2002, chapter 3).

With z = (log t − x'β) / σ an event adds log f(z) − log σ to the log-likelihood, a censored row log S(z). exp(β) is the
ratio of times. Of a Weibull law, whose ε has the smallest extreme value's, −β/σ is a log hazard ratio, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["LAWS", "AcceleratedFit", "Law", "TimeLaw", "accelerated"]

Array = NDArray[np.float64]
Law = Literal["weibull", "exponential", "lognormal", "loglogistic"]


@dataclass(frozen=True, kw_only=True)
class TimeLaw:
    """A standard law: of z the log density and the log survival, each with its first and second derivative.

    Args:
        start: mean and standard deviation of ε. free: whether σ is estimated; else it is 1.
    """

    density: Callable[[Array], tuple[Array, Array, Array]]
    survival: Callable[[Array], tuple[Array, Array, Array]]
    start: tuple[float, float]
    free: bool = True


def _extreme(z: Array) -> tuple[Array, Array, Array]:
    growth = np.exp(z)
    return z - growth, 1 - growth, -growth


def _extreme_survival(z: Array) -> tuple[Array, Array, Array]:
    growth = -np.exp(z)
    return growth, growth, growth


def _normal(z: Array) -> tuple[Array, Array, Array]:
    return -(z**2) / 2 - 0.5 * np.log(2 * np.pi), -z, -np.ones(len(z))


def _normal_survival(z: Array) -> tuple[Array, Array, Array]:
    from scipy.special import log_ndtr

    tail = log_ndtr(-z)
    ratio = np.exp(-(z**2) / 2 - 0.5 * np.log(2 * np.pi) - tail)
    return tail, -ratio, -ratio * (ratio - z)


def _logistic(z: Array) -> tuple[Array, Array, Array]:
    share = 1 / (1 + np.exp(-z))
    return z - 2 * np.logaddexp(0, z), 1 - 2 * share, -2 * share * (1 - share)


def _logistic_survival(z: Array) -> tuple[Array, Array, Array]:
    share = 1 / (1 + np.exp(-z))
    return -np.logaddexp(0, z), -share, -share * (1 - share)


_EXTREME = (-0.5772156649015329, np.pi / 6**0.5)
LAWS: Mapping[str, TimeLaw] = {
    "weibull": TimeLaw(density=_extreme, survival=_extreme_survival, start=_EXTREME),
    "exponential": TimeLaw(density=_extreme, survival=_extreme_survival, start=_EXTREME, free=False),
    "lognormal": TimeLaw(density=_normal, survival=_normal_survival, start=(0.0, 1.0)),
    "loglogistic": TimeLaw(density=_logistic, survival=_logistic_survival, start=(0.0, np.pi / 3**0.5)),
}


@dataclass(frozen=True, kw_only=True)
class AcceleratedFit:
    """A fit of the coefficients, and log σ with its standard error; that is 0 where σ is not estimated."""

    regression: RegressionFit
    log_scale: float
    log_scale_se: float


def accelerated(
    x: Array, time: Array, event: Array, law: Law = "weibull", weights: Array | None = None, offset: Array | None = None
) -> AcceleratedFit:
    """Parametric regression of times, R's `survival::survreg(Surv(time, event) ~ x, dist)`.

    Args:
        x: (n, p) of full rank, its constant first if it has one. time: (n,), above 0. event: (n,) 0 or 1.
        weights: (n,) case weights. offset: (n,), added to x'β.
    Returns: its covariance is the inverse of the observed information, of β and log σ together.

    >>> fit = accelerated(np.ones((4, 1)), np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1, 1, 0]), "exponential")
    >>> fit.regression.beta.round(4), round(float(np.log(10 / 3)), 4)
    (array([1.204]), 1.204)
    """
    known, (n, p) = LAWS[law], x.shape
    w = np.ones(n) if weights is None else weights
    y = np.log(time) - (0.0 if offset is None else offset)
    dead = event > 0

    def parts(theta: Array) -> tuple[Array, Array, Array, Array, float]:
        """z; the log-likelihood's terms and their first and second derivative by z; σ."""
        sigma = float(np.exp(theta[p])) if known.free else 1.0
        z = (y - x @ theta[:p]) / sigma
        terms = np.empty((3, n))
        terms[:, dead] = known.density(z[dead])
        terms[:, ~dead] = known.survival(z[~dead])
        return z, *terms, sigma

    def value(theta: Array) -> float:
        _, term, _, _, sigma = parts(theta)
        reached = float(w @ term) - float(w @ dead) * float(np.log(sigma))
        return reached if np.isfinite(reached) else -np.inf

    def scores(theta: Array) -> Array:
        z, _, first, _, sigma = parts(theta)
        by_beta = -x * (first / sigma)[:, None]
        own = np.column_stack([by_beta, -first * z - dead]) if known.free else by_beta
        return np.asarray(own * w[:, None])

    def derivatives(theta: Array) -> tuple[Array, Array]:
        z, _, first, second, sigma = parts(theta)
        size = p + known.free
        information = np.zeros((size, size))
        information[:p, :p] = -(x * (w * second / sigma**2)[:, None]).T @ x
        if known.free:
            information[:p, p] = information[p, :p] = -x.T @ (w * (second * z + first) / sigma)
            information[p, p] = -float(w @ (second * z**2 + first * z))
        return scores(theta).sum(axis=0), information

    mean, spread = known.start
    first: Array = np.asarray(
        np.linalg.lstsq(x * np.sqrt(w)[:, None], (y - mean) * np.sqrt(w), rcond=None)[0], dtype=float
    )
    start = np.append(first, np.log(max(float((y - x @ first).std()) / spread, 1e-3))) if known.free else first
    with np.errstate(all="ignore"):
        theta, inverse, reached, converged = newton(value, derivatives, start, iterations=100)
        influence = (scores(theta) @ inverse)[:, :p]
    # With a handful of rows a step can end where the likelihood is flat in the scale: no maximum, and no error of it.
    spared = float(inverse[p, p]) if known.free else 0.0
    converged = converged and spared >= 0
    return AcceleratedFit(
        regression=RegressionFit(
            beta=theta[:p],
            cov=inverse[:p, :p],
            converged=converged,
            fitted=x @ theta[:p],
            loglik=reached,
            influence=influence,
        ),
        log_scale=float(theta[p]) if known.free else 0.0,
        log_scale_se=max(spared, 0.0) ** 0.5,
    )
