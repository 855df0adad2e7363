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

from shared.estimands.fits.blocks import gram, scaled_product
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
    known, p = LAWS[law], x.shape[1]
    w = np.ones(len(x)) if weights is None else weights
    y = np.log(time) - (0.0 if offset is None else offset)
    likelihood = _TimeLikelihood(x, y, event > 0, w, known)
    mean, spread = known.start
    # Somewhere to begin, so normal equations are good enough.
    first: Array = np.asarray(np.linalg.lstsq(gram(x, w), (w * (y - mean)) @ x, rcond=None)[0], dtype=float)
    start = np.append(first, np.log(max(float((y - x @ first).std()) / spread, 1e-3))) if known.free else first
    with np.errstate(all="ignore"):
        theta, inverse, reached, converged = newton(likelihood.value, likelihood.derivatives, start, iterations=100)
        influence = likelihood.influence(theta, inverse)
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


class _TimeLikelihood:
    """Of (β, log σ), or of β where the law's σ is 1.

    Args:
        x: (n, p). y: (n,) log times less their offset. dead: (n,). w: (n,) weights.
    """

    def __init__(self, x: Array, y: Array, dead: NDArray[np.bool_], w: Array, law: TimeLaw) -> None:
        self._x, self._y, self._w, self._law, self._size = x, y, w, law, x.shape[1] + law.free
        self._dead, self._alive = np.flatnonzero(dead), np.flatnonzero(~dead)
        self._deaths = float(w[self._dead].sum())
        # Memory that is used again: to be given a million numbers' room takes longer than to fill it.
        self._z, self._terms = np.empty(len(y)), np.empty((3, len(y)))
        self._known: Array = np.full(self._size, np.nan)

    def _parts(self, theta: Array) -> tuple[Array, Array, float]:
        """z; (3, n) the log-likelihood's terms and their first and second derivative by z; σ."""
        p = self._x.shape[1]
        sigma = float(np.exp(theta[p])) if self._law.free else 1.0
        if not np.array_equal(self._known, theta):  # a step's value and its derivatives
            self._known = theta.copy()
            np.subtract(self._y, self._x @ theta[:p], out=self._z)
            self._z /= sigma
            for rows, law in ((self._dead, self._law.density), (self._alive, self._law.survival)):
                for into, part in zip(self._terms, law(self._z[rows]), strict=True):
                    into[rows] = part
        return self._z, self._terms, sigma

    def value(self, theta: Array) -> float:
        _, terms, sigma = self._parts(theta)
        reached = float(self._w @ terms[0]) - self._deaths * float(np.log(sigma))
        return reached if np.isfinite(reached) else -np.inf

    def _scores(self, theta: Array) -> tuple[Array, Array]:
        """(n,) of each row by its linear predictor, and by log σ."""
        z, (_, first, _), sigma = self._parts(theta)
        by_scale = -first * z
        by_scale[self._dead] -= 1.0
        return -self._w * first / sigma, self._w * by_scale

    def derivatives(self, theta: Array) -> tuple[Array, Array]:
        z, (_, first, second), sigma = self._parts(theta)
        x, w, p = self._x, self._w, self._x.shape[1]
        information = np.zeros((self._size, self._size))
        information[:p, :p] = -gram(x, w * second / sigma**2)
        if self._law.free:
            information[:p, p] = information[p, :p] = -((w * (second * z + first) / sigma) @ x)
            information[p, p] = -float(w @ (second * z**2 + first * z))
        by_eta, by_scale = self._scores(theta)
        return np.append(by_eta @ x, by_scale.sum())[: self._size], information

    def influence(self, theta: Array, inverse: Array) -> Array:
        """(n, p): the rows' scores times the covariance, of β."""
        p = self._x.shape[1]
        by_eta, by_scale = self._scores(theta)
        out = scaled_product(self._x, by_eta, inverse[:p, :p])
        for j in range(p if self._law.free else 0):
            out[:, j] += by_scale * inverse[p, j]
        return out
