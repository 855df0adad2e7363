"""Least squares, logistic and Poisson regression: from a matrix to coefficients and their covariance.

Written out here rather than asked of a library because the question of an analyst needs three things exactly and
every time: a plain statement whether the maximum was reached, sandwich variances, and no warning printed on the way.
Newton's method on a concave likelihood, a step halved as long as it does not rise; convergence is judged by the step
relative to the coefficients, never by the likelihood: where the likelihood has no maximum it flattens while the
coefficients keep walking, and a test on the likelihood would call that convergence.

Matrices come with centred and scaled columns (`shared.estimands.answer` sees to that), and with their intercept if any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["RegressionFit", "Robust", "generalised", "least_squares", "newton"]

Array = NDArray[np.float64]
Robust = Literal["", "HC0", "HC1", "HC2", "HC3"]


@dataclass(frozen=True, kw_only=True)
class RegressionFit:
    """A fitted model.

    Args:
        beta: (p,) coefficients.
        cov: (p, p) their covariance.
        converged: whether the maximum was reached.
        fitted: (n,) fitted means, or linear predictors of a Cox model.
        loglik: log-likelihood at `beta`, up to a constant that depends on the data only.
        influence: (n, p): what each row moves `beta` by, to first order; the columns add up to 0.
    """

    beta: Array
    cov: Array
    converged: bool
    fitted: Array
    loglik: float
    influence: Array


def least_squares(x: Array, y: Array, weights: Array, robust: Robust = "") -> RegressionFit:
    """Weighted least squares, R's `lm(y ~ x, weights)`.

    Args:
        x: (n, p) of full rank. y: (n,). weights: (n,), positive.
        robust: a sandwich covariance as R's `sandwich::vcovHC`; empty for σ² (X'WX)⁻¹ with n − p degrees of freedom.
    """
    root = np.sqrt(weights)
    q, r = np.linalg.qr(x * root[:, None])
    beta = np.asarray(np.linalg.solve(r, q.T @ (y * root)), dtype=float)
    inverse = np.asarray(np.linalg.inv(r), dtype=float)
    bread = inverse @ inverse.T
    residual = y - x @ beta
    rss = float(weights @ residual**2)
    if robust:
        cov = _sandwich(x, bread, weights * residual, np.asarray((q**2).sum(axis=1), dtype=float), robust)
    else:
        cov = bread * rss / (len(y) - x.shape[1])
    influence = (x * (weights * residual)[:, None]) @ bread
    return RegressionFit(beta=beta, cov=cov, converged=True, fitted=x @ beta, loglik=-rss, influence=influence)


def _sandwich(x: Array, bread: Array, score: Array, leverage: Array, robust: Robust) -> Array:
    n, p = x.shape
    room = np.maximum(1 - leverage, 1e-12)
    factor = {"HC0": 1.0, "HC1": n / (n - p), "HC2": 1 / room, "HC3": 1 / room**2}[robust]
    meat = (x * (score**2 * factor)[:, None]).T @ x
    return np.asarray(bread @ meat @ bread)


def newton(
    value: Callable[[Array], float],
    derivatives: Callable[[Array], tuple[Array, Array]],
    beta: Array,
    *,
    iterations: int,
) -> tuple[Array, Array, float, bool]:
    """Maximise a concave likelihood. Overflows on the way are expected: the caller silences them (`np.errstate`).

    Args:
        value: the log-likelihood at (p,) coefficients.
        derivatives: its gradient (p,) and information (p, p) there.
        beta: (p,) where to start; from 0 where the value is not finite there.
        iterations: most steps.
    Returns: the coefficients, their covariance, the value up to the last step, and whether the maximum was reached;
        a covariance of NaN where the information at the end is singular.

    >>> beta, cov, _, converged = newton(
    ...     lambda b: -float(b @ b - 4 * b[0]), lambda b: (4 - 2 * b, 2 * np.eye(1)), np.zeros(1), iterations=5
    ... )
    >>> beta, cov, converged
    (array([2.]), array([[0.5]]), True)
    """
    current, converged, information = value(beta), False, None
    if not np.isfinite(current):
        beta = np.zeros(len(beta))
        current = value(beta)
    for _ in range(iterations):
        gradient, information = derivatives(beta)
        step = _solved(information, gradient)
        if step is None:
            break
        if float(np.abs(step).max(initial=0.0)) <= 1e-10 * (1 + float(np.abs(beta).max(initial=0.0))):
            beta, converged = beta + step, True
            break
        for _ in range(30):
            new = value(beta + step)
            if new >= current - 1e-12 * abs(current):
                break
            step = step / 2
        else:
            break
        beta, current = beta + step, new
    if not converged or information is None:  # else that of a step ago, which was the smallest that counts
        _, information = derivatives(beta)
    try:
        cov = np.asarray(np.linalg.inv(information), dtype=float)
    except np.linalg.LinAlgError:
        cov, converged = np.full_like(information, np.nan), False
    return beta, cov, current, converged


def _solved(information: Array, gradient: Array) -> Array | None:
    """The step; None when the information is singular."""
    try:
        step = np.asarray(np.linalg.solve(information, gradient), dtype=float)
    except np.linalg.LinAlgError:
        return None
    return step if np.isfinite(step).all() else None


def generalised(
    x: Array,
    y: Array,
    family: Literal["binomial", "poisson"],
    weights: Array,
    offset: Array,
    robust: Robust = "",
    *,
    iterations: int = 60,
) -> RegressionFit:
    """Logistic or Poisson regression with the canonical link, R's `glm(y ~ x, family, weights, offset)`.

    Args:
        x: (n, p) of full rank. y: (n,) 0/1, or counts. weights, offset: (n,).
    Returns: `converged` is False when the likelihood has no maximum (or none was found).
    """
    binomial = family == "binomial"

    def mean(eta: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-eta)) if binomial else np.exp(eta))

    def loglik(eta: Array) -> float:
        cumulant = np.logaddexp(0.0, eta) if binomial else np.exp(eta)
        return float(weights @ (y * eta - cumulant))

    with np.errstate(all="ignore"):
        mu = (weights * y + 0.5) / (weights + 1) if binomial else y + 0.1
        start = np.log(mu / (1 - mu)) if binomial else np.log(mu)
        pull = np.sqrt(weights * (mu * (1 - mu) if binomial else mu))
        begin = np.linalg.lstsq(x * pull[:, None], (start - offset) * pull, rcond=None)[0]

        def value(beta: Array) -> float:
            return loglik(offset + x @ beta)

        def derivatives(beta: Array) -> tuple[Array, Array]:
            mu = mean(offset + x @ beta)
            curvature = weights * (mu * (1 - mu) if binomial else mu)
            return x.T @ (weights * (y - mu)), (x * curvature[:, None]).T @ x

        beta, cov, reached, converged = newton(value, derivatives, np.asarray(begin, float), iterations=iterations)
        mu = mean(offset + x @ beta)
        influence = (x * (weights * (y - mu))[:, None]) @ cov
        if robust:
            curvature = weights * (mu * (1 - mu) if binomial else mu)
            leverage = curvature * np.einsum("ij,jk,ik->i", x, cov, x)
            cov = _sandwich(x, cov, weights * (y - mu), leverage, robust)
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=mu, loglik=reached, influence=influence)
