"""Proportional odds: an ordered outcome whose cumulative log odds are one linear predictor apart (McCullagh 1980)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["proportional_odds"]

Array = NDArray[np.float64]


def proportional_odds(x: Array, y: Array, weights: Array, offset: Array) -> RegressionFit:
    r"""logit P(Y ≤ k) = θ_k − η with a θ for each category but the last, R's `MASS::polr` and `ordinal::clm`.

    The log-likelihood is concave in θ and β together (Pratt 1981). A positive β raises the outcome.

    Args:
        x: (n, p) of full rank, without a constant. y: (n,) codes; those that do not occur count for nothing.
        weights, offset: (n,).
    Returns: the coefficients of x; `fitted` is the linear predictor.

    >>> x = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    >>> fit = proportional_odds(x, np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]), np.ones(6), np.zeros(6))
    >>> fit.converged, fit.beta.round(4)
    (True, array([1.3863]))
    """
    _, codes = np.unique(y, return_inverse=True)
    cuts, (n, p) = int(codes.max(initial=0)), x.shape
    shares = np.cumsum(np.bincount(codes, weights=weights, minlength=cuts + 1))[:-1] / weights.sum()
    # The ends of each row's category: rows of (θ, β), 0 where there is no cut below or above.
    upper, lower = np.zeros((n, cuts + p)), np.zeros((n, cuts + p))
    top, bottom = codes == cuts, codes == 0
    upper[~top, codes[~top]] = lower[~bottom, codes[~bottom] - 1] = 1.0
    upper[:, cuts:] = lower[:, cuts:] = -x
    upper[top] = lower[bottom] = 0.0

    def parts(beta: Array) -> tuple[Array, Array, Array, Array, Array]:
        """P, and F' and F'' at both ends."""
        a, b = upper @ beta - offset, lower @ beta - offset
        above, below = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
        above[top], below[bottom] = 1.0, 0.0
        first, second = above * (1 - above), below * (1 - below)
        return above - below, first, second, first * (1 - 2 * above), second * (1 - 2 * below)

    def value(beta: Array) -> float:
        chance = parts(beta)[0]
        return float(weights @ np.log(chance)) if (chance > 0).all() else -np.inf

    def scores(beta: Array) -> Array:
        chance, first, second, *_ = parts(beta)
        return (upper * (first / chance)[:, None] - lower * (second / chance)[:, None]) * weights[:, None]

    def derivatives(beta: Array) -> tuple[Array, Array]:
        chance, first, second, bent, under = parts(beta)
        a, b = weights * (bent / chance - (first / chance) ** 2), weights * (-under / chance - (second / chance) ** 2)
        mixed = (upper * (weights * first * second / chance**2)[:, None]).T @ lower
        information = -((upper * a[:, None]).T @ upper + (lower * b[:, None]).T @ lower + mixed + mixed.T)
        return scores(beta).sum(axis=0), information

    with np.errstate(all="ignore"):
        start = np.concatenate([np.log(shares / (1 - shares)) + float(offset.mean()), np.zeros(p)])
        beta, cov, reached, converged = newton(value, derivatives, start, iterations=60)
        influence = (scores(beta) @ cov)[:, cuts:]
    return RegressionFit(
        beta=beta[cuts:],
        cov=cov[cuts:, cuts:],
        converged=converged,
        fitted=offset + x @ beta[cuts:],
        loglik=reached,
        influence=influence,
    )
