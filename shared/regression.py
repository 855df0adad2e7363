"""Least squares, logistic and Poisson regression: from a matrix to coefficients and their covariance.

Written out here rather than asked of a library because the question of an analyst needs three things exactly and
every time: a plain statement whether the maximum was reached, sandwich variances, and no warning printed on the way.
Newton's method on a concave likelihood, a step halved as long as it does not rise; convergence is judged by the step
relative to the coefficients, never by the likelihood: where the likelihood has no maximum it flattens while the
coefficients keep walking, and a test on the likelihood would call that convergence.

Matrices come with centred and scaled columns (`shared.estimands` sees to that), and with their intercept if any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "Robust", "generalised", "least_squares", "newton_step"]

Array = NDArray[np.float64]
Robust = Literal["", "HC0", "HC1", "HC2", "HC3"]


@dataclass(frozen=True, kw_only=True)
class Fit:
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


def least_squares(x: Array, y: Array, weights: Array, robust: Robust = "") -> Fit:
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
    return Fit(beta=beta, cov=cov, converged=True, fitted=x @ beta, loglik=-rss, influence=influence)


def _sandwich(x: Array, bread: Array, score: Array, leverage: Array, robust: Robust) -> Array:
    n, p = x.shape
    room = np.maximum(1 - leverage, 1e-12)
    factor = {"HC0": 1.0, "HC1": n / (n - p), "HC2": 1 / room, "HC3": 1 / room**2}[robust]
    meat = (x * (score**2 * factor)[:, None]).T @ x
    return np.asarray(bread @ meat @ bread)


def newton_step(hessian: Array, gradient: Array) -> Array | None:
    """Solve for the step; None when the information is singular."""
    try:
        step = np.asarray(np.linalg.solve(hessian, gradient), dtype=float)
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
) -> Fit:
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
        beta = np.asarray(begin, dtype=float)
        value, converged = loglik(offset + x @ beta), False
        if not np.isfinite(value):
            beta = np.zeros(x.shape[1])
            value = loglik(offset)
        information = np.eye(x.shape[1])
        for _ in range(iterations):
            mu = mean(offset + x @ beta)
            curvature = weights * (mu * (1 - mu) if binomial else mu)
            information = (x * curvature[:, None]).T @ x
            step = newton_step(information, x.T @ (weights * (y - mu)))
            if step is None:
                break
            if float(np.abs(step).max(initial=0.0)) <= 1e-10 * (1 + float(np.abs(beta).max(initial=0.0))):
                beta, converged = beta + step, True
                break
            for _ in range(30):
                new = loglik(offset + x @ (beta + step))
                if new >= value - 1e-12 * abs(value):
                    break
                step = step / 2
            else:
                break
            beta, value = beta + step, new
        mu = mean(offset + x @ beta)
        curvature = weights * (mu * (1 - mu) if binomial else mu)
        information = (x * curvature[:, None]).T @ x
        try:
            cov = np.asarray(np.linalg.inv(information), dtype=float)
        except np.linalg.LinAlgError:
            cov, converged = np.full_like(information, np.nan), False
        influence = (x * (weights * (y - mu))[:, None]) @ cov
        if robust:
            leverage = curvature * np.einsum("ij,jk,ik->i", x, cov, x)
            cov = _sandwich(x, cov, weights * (y - mu), leverage, robust)
    return Fit(beta=beta, cov=cov, converged=converged, fitted=mu, loglik=value, influence=influence)
