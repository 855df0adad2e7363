"""Outcomes with levels: proportional odds of ordered ones (McCullagh 1980), log odds of others (McFadden 1974)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton

__all__ = ["multinomial_logit", "proportional_odds"]

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
    likelihood = _CumulativeLikelihood(x, codes, weights, offset)
    cuts, p = likelihood.cuts, x.shape[1]
    shares = np.cumsum(np.bincount(codes, weights=weights, minlength=cuts + 1))[:-1] / weights.sum()
    with np.errstate(all="ignore"):
        start = np.concatenate([np.log(shares / (1 - shares)) + float(offset.mean()), np.zeros(p)])
        beta, cov, reached, converged = newton(likelihood.value, likelihood.derivatives, start, iterations=60)
        influence = likelihood.influence(beta, cov)
    return RegressionFit(
        beta=beta[cuts:],
        cov=cov[cuts:, cuts:],
        converged=converged,
        fitted=offset + x @ beta[cuts:],
        loglik=reached,
        influence=influence,
    )


class _CumulativeLikelihood:
    """Of (θ, β): a row in category k has log P = log(F(θ_k − η) − F(θ_{k−1} − η)), with θ_{−1} = −∞ and the last ∞.

    Args: as of `proportional_odds`, of codes 0 … `cuts` that all occur.
    """

    def __init__(self, x: Array, codes: NDArray[np.int64], weights: Array, offset: Array) -> None:
        self._x, self._codes, self._weights, self._offset = x, codes, weights, offset
        self.cuts = int(codes.max(initial=0))
        self._known: tuple[Array, tuple[Array, ...]] | None = None

    def _parts(self, beta: Array) -> tuple[Array, ...]:
        """P, and F' and F'' at the upper and the lower end of each row's category, all over P."""
        if self._known is None or not np.array_equal(self._known[0], beta):  # a step's value and its derivatives
            eta = self._offset + self._x @ beta[self.cuts :]
            ends = np.concatenate([[-np.inf], beta[: self.cuts], [np.inf]])
            above, below = (1 / (1 + np.exp(eta - ends[self._codes + k])) for k in (1, 0))
            chance = above - below
            upper, lower = above * (1 - above) / chance, below * (1 - below) / chance
            self._known = beta.copy(), (chance, upper, lower, upper * (1 - 2 * above), lower * (1 - 2 * below))
        return self._known[1]

    def value(self, beta: Array) -> float:
        chance = self._parts(beta)[0]
        return float(self._weights @ np.log(chance)) if (chance > 0).all() else -np.inf

    def _by_cut(self, upper: Array, lower: Array) -> Array:
        """(cuts, …): of each θ what rows below it (n,) add by their upper end, and rows above it by their lower one."""
        sums = [np.bincount(self._codes, part, minlength=self.cuts + 1) for part in (upper, lower)]
        return np.asarray(sums[0][:-1] + sums[1][1:])

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        w, x, cuts = self._weights, self._x, self.cuts
        _, upper, lower, bent, under = self._parts(beta)
        mixed = -w * upper * lower
        above, below = w * (upper**2 - bent) + mixed, w * (lower**2 + under) + mixed
        information = np.empty((len(beta), len(beta)))
        information[cuts:, cuts:] = gram(x, above + below)
        for j, column in enumerate(x.T, start=cuts):
            information[:cuts, j] = information[j, :cuts] = -self._by_cut(above * column, below * column)
        beside = np.bincount(self._codes, mixed, minlength=cuts + 1)[1:-1]
        own = np.diag(self._by_cut(above - mixed, below - mixed))
        information[:cuts, :cuts] = own + np.diag(beside, 1) + np.diag(beside, -1)
        gradient = np.concatenate([self._by_cut(w * upper, -w * lower), (w * (lower - upper)) @ x])
        return gradient, information

    def influence(self, beta: Array, cov: Array) -> Array:
        """(n, p): the rows' scores times the covariance, of β."""
        _, upper, lower, *_ = self._parts(beta)
        of_cuts = np.vstack([np.zeros(self._x.shape[1]), cov[: self.cuts, self.cuts :], np.zeros(self._x.shape[1])])
        out = scaled_product(self._x, self._weights * (lower - upper), cov[self.cuts :, self.cuts :])
        for j in range(out.shape[1]):
            of = of_cuts[:, j]
            out[:, j] += self._weights * (upper * of[self._codes + 1] - lower * of[self._codes])
        return out


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
