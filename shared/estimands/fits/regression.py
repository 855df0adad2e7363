"""Least squares and generalised linear regression: from a matrix to coefficients and their covariance.

Written out here rather than asked of a library because the question of an analyst needs three things exactly and
every time: a plain statement whether the maximum was reached, sandwich variances, and no warning printed on the way.
Newton's method on a concave likelihood, a step halved as long as it does not rise; convergence is judged by the step
relative to the coefficients, never by the likelihood: where the likelihood has no maximum it flattens while the
coefficients keep walking, and a test on the likelihood would call that convergence.

Matrices come with centred and scaled columns (`shared.estimands.answer` sees to that), and with their intercept if any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.families import FAMILIES, Family, Robust, negative_binomial

__all__ = ["RegressionFit", "Robust", "generalised", "least_squares", "newton", "newton_of_each", "overdispersed"]

Array = NDArray[np.float64]


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


_WELL_APART = 1e-6
"""Least over largest eigenvalue of X'WX from which its inverse, and one step of refinement, is as good as QR."""


def least_squares(x: Array, y: Array, weights: Array, robust: Robust = "") -> RegressionFit:
    """Weighted least squares, R's `lm(y ~ x, weights)`.

    Args:
        x: (n, p) of full rank. y: (n,). weights: (n,), positive.
        robust: a sandwich covariance as R's `sandwich::vcovHC`; empty for σ² (X'WX)⁻¹ with n − p degrees of freedom.
    """
    together = gram(x, weights)
    size = np.linalg.eigvalsh(together)
    if size[0] > _WELL_APART * size[-1]:
        bread = np.asarray(np.linalg.inv(together), dtype=float)
        beta = bread @ (x.T @ (weights * y))
        beta = beta + bread @ (x.T @ (weights * (y - x @ beta)))
    else:
        q, r = np.linalg.qr(x * np.sqrt(weights)[:, None])
        beta = np.asarray(np.linalg.solve(r, q.T @ (y * np.sqrt(weights))), dtype=float)
        inverse = np.asarray(np.linalg.inv(r), dtype=float)
        bread = inverse @ inverse.T
    residual = y - x @ beta
    rss = float(weights @ residual**2)
    if robust:
        leverage = np.einsum("ij,ij->i", scaled_product(x, weights, bread), x)
        cov = _sandwich(x, bread, weights * residual, np.asarray(leverage, dtype=float), robust)
    else:
        cov = bread * rss / (len(y) - x.shape[1])
    influence = scaled_product(x, weights * residual, bread)
    return RegressionFit(beta=beta, cov=cov, converged=True, fitted=x @ beta, loglik=-rss, influence=influence)


def _sandwich(x: Array, bread: Array, score: Array, leverage: Array, robust: Robust) -> Array:
    n, p = x.shape
    room = np.maximum(1 - leverage, 1e-12)
    factor = {"HC0": 1.0, "HC1": n / (n - p), "HC2": 1 / room, "HC3": 1 / room**2}[robust]
    meat = gram(x, score**2 * factor)
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
        if _largest(step) <= 1e-10 * (1 + _largest(beta)):
            beta, converged = beta + step, True
            break
        for _ in range(30):
            there = beta + step
            new = value(there)
            if new >= current - 1e-12 * abs(current):
                break
            step = step / 2
        else:
            break
        beta, current = there, new
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
    return step if all(map(math.isfinite, step.tolist())) else None


def _largest(vector: Array) -> float:
    """Of (p,) coefficients, by size: a few numbers are sooner looked at one by one."""
    return max(map(abs, vector.tolist()), default=0.0)


def newton_of_each(
    value: Callable[[Array], Array],
    derivatives: Callable[[Array], tuple[Array, Array]],
    beta: Array,
    *,
    iterations: int,
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """`newton` of t likelihoods side by side: each takes the steps that it would take alone, and waits for the others.

    Args:
        value: the (t,) log-likelihoods at (t, p) coefficients, finite where they start.
        derivatives: their gradients (t, p) and information (t, p, p) there.
        beta: (t, p) where to start.
        iterations: most steps.
    Returns: what `newton` does of each: (t, p), (t, p, p), (t,) and (t,).
    """
    current, (t, p) = value(beta), beta.shape
    going, converged, known = np.ones(t, dtype=bool), np.zeros(t, dtype=bool), np.full((t, p, p), np.nan)
    for _ in range(iterations):
        gradient, information = derivatives(beta)
        step = _of_each(np.linalg.solve, information, gradient[:, :, None])[:, :, 0]
        going &= np.isfinite(step).all(axis=1)
        last = going & (np.abs(step).max(axis=1) <= 1e-10 * (1 + np.abs(beta).max(axis=1)))
        if last.any():
            known[last], converged[last], going[last] = information[last], True, False
            beta = beta + np.where(last[:, None], step, 0.0)
        if not going.any():
            break
        step[~going] = 0.0
        for _ in range(30):
            there = beta + step
            new = value(there)
            low = going & ~(new >= current - 1e-12 * np.abs(current))
            if not low.any():
                break
            step[low] /= 2
        else:
            going &= ~low
            there = np.where(low[:, None], beta, there)
        beta, current = there, np.where(going, new, current)
    if not converged.all():
        known[~converged] = derivatives(beta)[1][~converged]
    return beta, _of_each(np.linalg.inv, known), current, converged


def _of_each(solve: Callable[..., Array], *given: Array) -> Array:
    """(t, …) what `solve` makes of each of t matrices; NaN of a singular one."""
    try:
        return np.asarray(solve(*given), dtype=float)
    except np.linalg.LinAlgError:
        if len(given[0]) == 1:
            return np.full_like(given[-1], np.nan)
        return np.concatenate([_of_each(solve, *(one[k : k + 1] for one in given)) for k in range(len(given[0]))])


def generalised(
    x: Array,
    y: Array,
    family: Family,
    weights: Array,
    offset: Array,
    robust: Robust = "",
    *,
    start: Array | None = None,
) -> RegressionFit:
    """Regression in a generalised linear family, R's `glm(y ~ x, family, weights, offset)`.

    Args:
        x: (n, p) of full rank. y: (n,) such as the family has. weights, offset: (n,).
        robust: the family's own variance if blank.
        start: (p,) where to begin, if that is known.
    Returns: `converged` is False when the likelihood has no maximum (or none was found).
    """
    robust = robust or family.robust
    with np.errstate(all="ignore"):
        if start is None:
            mu = family.start(y, weights)
            mu = np.full(len(y), float(weights @ mu / weights.sum())) if family.flat else mu
            first = family.link(mu)
            square = weights * family.expected(first)
            # Somewhere to begin, so normal equations are good enough, and a fifth of the work of a decomposition.
            start = np.asarray(
                np.linalg.lstsq(gram(x, square), x.T @ (square * (first - offset)), rcond=None)[0], float
            )

        seen: tuple[Array, Array, Array] = (np.full(x.shape[1], np.nan), x[:0], x[:0])

        def value(beta: Array) -> float:
            nonlocal seen
            loglik, score, observed = family.at(y, offset + x @ beta)
            seen = beta, score, observed
            return float(weights @ loglik)

        def derivatives(beta: Array) -> tuple[Array, Array]:
            if seen[0] is not beta:
                value(beta)
            return x.T @ (weights * seen[1]), gram(x, weights * seen[2])

        beta, inverse, reached, converged = newton(value, derivatives, start, iterations=60)
        eta = offset + x @ beta
        score, expected = weights * family.at(y, eta)[1], weights * family.expected(eta)
        influence = scaled_product(x, score, inverse)
        try:
            cov = np.asarray(np.linalg.inv(gram(x, expected)), dtype=float)
        except np.linalg.LinAlgError:
            cov, converged = np.full_like(inverse, np.nan), False
        if robust:
            cov = _sandwich(x, cov, score, np.einsum("ij,ij->i", scaled_product(x, expected, cov), x), robust)
        elif family.dispersion:
            some = expected > 0
            cov = cov * float((score[some] ** 2 / expected[some]).sum()) / (len(y) - x.shape[1])
        fitted = family.mean(eta)
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=fitted, loglik=reached, influence=influence)


def overdispersed(x: Array, y: Array, weights: Array, offset: Array, robust: Robust = "") -> RegressionFit:
    """Negative binomial regression, its θ by maximum likelihood with the coefficients, R's `MASS::glm.nb`.

    The covariance takes θ as known, as R's; the influence does not. Where no θ explains the rows better than infinity
    does, the Poisson fit is the maximum.

    Args: as of `generalised`.
    """
    fit = generalised(x, y, FAMILIES["poisson"], weights, offset, robust)
    with np.errstate(all="ignore"):
        excess = float(weights @ ((y - fit.fitted) ** 2 - y))
        if not fit.converged or excess <= 0:
            return fit
        theta = float(weights @ fit.fitted**2) / excess
        counts = np.unique(y, return_inverse=True)  # a million rows have a few dozen: what is slow is of these alone
        for _ in range(100):
            before, theta = theta, _theta(y, counts, fit.fitted, weights, theta)
            if not theta < _NO_THETA:
                return fit
            fit = generalised(x, y, negative_binomial(theta), weights, offset, robust, start=fit.beta)
            if abs(math.log(theta / before)) < 1e-10:
                break
        else:
            return replace(fit, converged=False)
        mu, family, p = fit.fitted, negative_binomial(theta), x.shape[1]
        eta = np.log(mu)
        joint = np.zeros((p + 1, p + 1))
        _, score, observed = family.at(y, eta)
        joint[:p, :p] = gram(x, weights * observed)
        joint[:p, p] = joint[p, :p] = -x.T @ (weights * mu * (y - mu) / (theta + mu) ** 2)
        by_theta, curved = _theta_derivatives(y, counts, mu, theta)
        joint[p, p] = -float(weights @ curved)
        scores = np.column_stack([x * score[:, None], by_theta]) * weights[:, None]
        moved = np.linalg.solve(joint, scores.T).T[:, :p]
    return replace(fit, influence=np.asarray(moved, dtype=float))


_NO_THETA = 1e7
"""From here on a negative binomial law is a Poisson law to seven digits."""


_Counts = tuple[Array, NDArray[np.int64]]
"""The counts that there are, and which of them each row has."""


def _theta_derivatives(y: Array, counts: _Counts, mu: Array, theta: float) -> tuple[Array, Array]:
    """First and second derivative of each row's log-likelihood by θ."""
    from scipy.special import digamma, polygamma

    values, place = counts
    grown = (digamma(values + theta) - digamma(theta) + math.log(theta) + 1)[place]
    bent = (polygamma(1, values + theta) - polygamma(1, theta) + 1 / theta)[place]
    total = theta + mu
    share = (y + theta) / total
    return grown - np.log(total) - share, bent + (share - 2) / total


def _theta(y: Array, counts: _Counts, mu: Array, weights: Array, theta: float) -> float:
    """θ of most likelihood at these means, from a first guess; infinite where it walks away."""
    for _ in range(50):
        first, second = (float(weights @ part) for part in _theta_derivatives(y, counts, mu, theta))
        gradient, curvature = theta * first, theta * first + theta**2 * second  # by log θ
        step = -gradient / curvature if curvature < 0 else math.copysign(1.0, gradient)
        theta *= math.exp(min(max(step, -2.0), 2.0))
        if abs(step) < 1e-12:
            break
        if not 1e-8 < theta < _NO_THETA:
            return math.inf
    return theta
