"""Multinomial logistic regression: log odds of each level of an outcome against its first (McFadden 1974)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["multinomial_logit"]

Array = NDArray[np.float64]


def multinomial_logit(x: Array, y: Array, weights: Array) -> RegressionFit:
    r"""log P(Y = k) / P(Y = 0) = x'β_k for each level k but the first, R's `nnet::multinom`.

    With p_ik the probabilities, the score of β_k is Σ x_i (1{y_i = k} − p_ik), and the information of β_k and β_l is
    Σ x_i x_i' p_ik (1{k = l} − p_il).

    Args:
        x: (n, p) of full rank, the constant included. y: (n,) codes 0, 1, …, each of which occurs. weights: (n,).
    Returns: `beta`, one level's p coefficients after the other's; `fitted` are the (n,) largest absolute predictors.

    >>> x = np.column_stack([np.ones(6), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]])
    >>> fit = multinomial_logit(x, np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]), np.ones(6))
    >>> fit.converged, fit.beta.round(4)
    (True, array([-0.6931,  1.3863]))
    """
    codes = y.astype(np.int64)
    p, others = x.shape[1], int(codes.max())
    is_level = (codes == np.arange(1, others + 1)[:, None]).astype(np.float64)
    across = x.T

    def chances(beta: Array) -> tuple[Array, Array, Array]:
        """(others, n) predictors and their probabilities, and (n,) the log of what all levels' odds sum to."""
        eta = beta.reshape(others, p) @ across
        top = np.maximum(eta.max(axis=0), 0.0)
        grown = np.exp(eta - top)
        whole = np.exp(-top) + grown.sum(axis=0)
        return eta, grown / whole, top + np.log(whole)

    def value(beta: Array) -> float:
        eta, _, whole = chances(beta)
        return float(weights @ ((eta * is_level).sum(axis=0) - whole))

    def derivatives(beta: Array) -> tuple[Array, Array]:
        chance = chances(beta)[1]
        information = np.empty((others, p, others, p))
        for k in range(others):
            for j in range(k, others):
                pull = weights * chance[k] * (float(k == j) - chance[j])
                information[k, :, j, :] = information[j, :, k, :] = gram(x, pull)
        pull = (is_level - chance) * weights
        return np.asarray((pull @ x).ravel()), information.reshape(others * p, others * p)

    with np.errstate(all="ignore"):
        beta, cov, reached, converged = newton(value, derivatives, np.zeros(others * p), iterations=60)
        eta, chance, _ = chances(beta)
        pull = (is_level - chance) * weights
        by_level = [scaled_product(x, pull[k], cov[k * p : (k + 1) * p]) for k in range(others)]
        influence = np.asarray(sum(by_level[1:], by_level[0]))
    largest = np.abs(eta).max(axis=0)
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=largest, loglik=reached, influence=influence)
