r"""Several rows of one person, or one cluster: marginal regression (GEE), and a linear one with an intercept for each.

With Pearson residuals :math:`r_i = A_i^{-1/2}(y_i - \mu_i)` of cluster i and a working correlation R, the coefficients
of a generalised estimating equation solve (Liang and Zeger 1986)

.. math:: \sum_i D_i^\top A_i^{-1/2} R_i^{-1} r_i = 0

An exchangeable R has 1 on its diagonal and α beside it; α is the mean of :math:`r_{ij} r_{ik}` over all pairs within
clusters, over the mean of :math:`r_{ij}^2`, each with p degrees of freedom less, as R's `gee` and statsmodels have it.
What a row moves the coefficients by takes α as known; a cluster's sum of that, squared, is the robust variance.

The linear mixed model has :math:`V_i = \sigma^2 (I + \lambda 1 1^\top)`; λ is found by restricted maximum likelihood
(Patterson and Thompson 1971), and the coefficients are those of generalised least squares at it. Both are worked out
of sums over clusters, so a million rows cost no more than a few passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.families import Family
from shared.estimands.fits.regression import RegressionFit, generalised, least_squares

__all__ = ["ClusterSums", "estimating_equations", "random_intercept"]

Array = NDArray[np.float64]
_STEPS = 100
_ALIKE = 1 - 1e-9
"""The largest α: rows of one cluster that are all alike leave no error of what differs within it."""


@dataclass(frozen=True)
class ClusterSums:
    """Cluster membership of n rows: `of` (n,) is each row's cluster, 0 … G − 1, and `size` (G,) the rows per cluster.

    >>> sums = ClusterSums.of_labels(np.array([7, 7, 3]))
    >>> sums.size, sums.over(np.array([1.0, 2.0, 5.0]))
    (array([1, 2]), array([5., 3.]))
    """

    of: NDArray[np.int64]
    size: NDArray[np.int64]

    @classmethod
    def of_labels(cls, labels: NDArray[np.int64]) -> ClusterSums:
        """Of (n,) whole numbers, equal within a cluster."""
        _, of, size = np.unique(labels, return_inverse=True, return_counts=True)
        return cls(np.asarray(of, dtype=np.int64), np.asarray(size, dtype=np.int64))

    def over(self, values: Array) -> Array:
        """(G,) or (G, p): sums of (n,) or (n, p) over each cluster."""
        if values.ndim == 1:
            return np.asarray(np.bincount(self.of, values, minlength=len(self.size)), dtype=float)
        return np.column_stack([self.over(column) for column in values.T]).reshape(len(self.size), values.shape[1])

    @property
    def pairs(self) -> float:
        """Pairs of rows within clusters."""
        return float((self.size * (self.size - 1)).sum() / 2)


def estimating_equations(
    x: Array,
    y: Array,
    clusters: ClusterSums,
    family: Family | None = None,
    offset: Array | None = None,
    *,
    exchangeable: bool = True,
) -> tuple[RegressionFit, float]:
    """Generalised estimating equations, R's `gee(y ~ x, id, family, corstr)`, with a canonical link.

    Args:
        x: (n, p) of full rank. y: (n,). clusters: of the n rows.
        family: None for a linear model. offset: (n,).
        exchangeable: one correlation of all pairs within a cluster, of which there must be more than p; else the rows
            work as independent ones.
    Returns: the fit, whose `cov` is the robust one, and α. It has not converged where there is no root, or where α is
        outside what a correlation of the largest cluster can be.

    >>> x, y = np.ones((6, 1)), np.array([1.0, 2.0, 4.0, 5.0, 2.0, 4.0])
    >>> fit, alpha = estimating_equations(x, y, ClusterSums.of_labels(np.array([0, 0, 1, 1, 2, 2])))
    >>> fit.beta.round(6).tolist(), round(alpha, 3), fit.cov.round(3).tolist()
    ([3.0], 0.625, [[0.5]])
    """
    n, p = x.shape
    offset = np.zeros(n) if offset is None else offset
    if family is None:
        beta, converged = least_squares(x, y - offset, np.ones(n)).beta, True
    else:
        start = generalised(x, y, family, np.ones(n), offset)
        beta, converged = start.beta, start.converged
    alpha, most = 0.0, int(clusters.size.max())
    influence, mu = np.zeros((n, p)), np.zeros(n)
    with np.errstate(all="ignore"):
        solved = False
        for _ in range(_STEPS if converged else 0):
            eta = offset + x @ beta
            mu = eta if family is None else family.mean(eta)
            root = np.ones(n) if family is None else np.sqrt(family.slope(eta))
            residual = (y - mu) / root
            if exchangeable:
                alpha = _alpha(residual, clusters, p)
            if not -1 / (most - 1 or 1) < alpha < _ALIKE:
                break
            pulled = x * root[:, None]
            bread = np.linalg.pinv(pulled.T @ _decorrelated(pulled, clusters, alpha))
            influence = (pulled * _decorrelated(residual, clusters, alpha)[:, None]) @ bread
            moved = influence.sum(axis=0)
            beta = beta + moved
            if float(np.abs(moved).max()) <= 1e-11 * (1 + float(np.abs(beta).max())):
                solved = bool(np.isfinite(beta).all())
                break
    sums = clusters.over(influence)
    fit = RegressionFit(beta=beta, cov=sums.T @ sums, converged=solved, fitted=mu, loglik=math.nan, influence=influence)
    return fit, alpha


def _alpha(residual: Array, clusters: ClusterSums, p: int) -> float:
    """The moment estimate of the correlation within clusters."""
    scale = float(residual @ residual) / (len(residual) - p)
    total = float((clusters.over(residual) ** 2).sum() - residual @ residual) / 2
    return total / scale / (clusters.pairs - p) if scale else 0.0


def _decorrelated(values: Array, clusters: ClusterSums, alpha: float) -> Array:
    """R⁻¹ times (n,) or (n, p), cluster by cluster."""
    share = alpha / (1 + (clusters.size - 1) * alpha)
    sums = clusters.over(values)
    pulled = (sums * (share if values.ndim == 1 else share[:, None]))[clusters.of]
    return np.asarray((values - pulled) / (1 - alpha))


def random_intercept(x: Array, y: Array, clusters: ClusterSums) -> tuple[RegressionFit, float]:
    """A linear mixed model with an intercept for each cluster, R's `lme4::lmer(y ~ x + (1 | id))`.

    Args: as of `estimating_equations`.
    Returns: the fit, whose `cov` is the model's, and the intraclass correlation λ / (1 + λ).

    >>> x, y = np.ones((4, 1)), np.array([1.0, 2.0, 4.0, 5.0])
    >>> fit, icc = random_intercept(x, y, ClusterSums.of_labels(np.array([0, 0, 1, 1])))
    >>> fit.beta.round(6).tolist(), round(icc, 3), fit.cov.round(3).tolist()
    ([3.0], 0.895, [[2.25]])
    """
    from scipy.optimize import minimize_scalar

    n, p = x.shape
    both = np.column_stack([x, y])
    gram, sums, size = both.T @ both, clusters.over(both), clusters.size

    def solved(lam: float) -> tuple[Array, Array, float, float]:
        """Coefficients, inverse information, residual sum of squares, and minus twice the criterion."""
        inner = gram - (sums * (lam / (1 + lam * size))[:, None]).T @ sums
        information = inner[:p, :p]
        bread = np.linalg.inv(information)
        beta = bread @ inner[:p, p]
        rss = float(inner[p, p] - inner[:p, p] @ beta)
        apart = float(np.log1p(lam * size).sum() + np.linalg.slogdet(information)[1])
        return beta, np.asarray(bread), rss, (n - p) * math.log(max(rss, 1e-300)) + apart

    found = minimize_scalar(
        lambda theta: solved(math.exp(2 * theta))[3], bounds=(-12.0, 8.0), method="bounded", options={"xatol": 1e-10}
    )
    lam = math.exp(2 * float(found.x))
    if solved(0.0)[3] <= solved(lam)[3] + 1e-9:
        lam = 0.0
    beta, bread, rss, _ = solved(lam)
    residual = y - x @ beta
    pulled = residual - (clusters.over(residual) * (lam / (1 + lam * size)))[clusters.of]
    sigma2 = rss / (n - p)
    converged = bool(found.success and np.isfinite(beta).all() and found.x < 7.99)
    fit = RegressionFit(
        beta=beta,
        cov=bread * sigma2,
        converged=converged,
        fitted=x @ beta,
        loglik=-float(found.fun) / 2,
        influence=np.asarray((x * pulled[:, None]) @ bread),
    )
    return fit, lam / (1 + lam)
