"""Communities of a network: found, how strong they are, and how far they agree with a column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from shared.errors import ParameterError
from shared.mechanisms.grand.counts import Array, Counts, Matrix, degrees

__all__ = ["adjusted_rand", "clusters", "communities", "left_out", "modularity"]

PARTS = 20
"""In how many parts nodes are left out where nothing says in closed form what a single one changes."""


def communities(ties: Matrix, k: int, rng: np.random.Generator) -> Counts:
    """(n,) labels 0 … k − 1 by spectral clustering: k-means on the leading eigenvectors, rows of length one.

    Raises: ParameterError, unless 1 ≤ k < n.
    """
    n = ties.shape[0]
    if not 1 <= k < n:
        raise ParameterError("the number of communities must be at least 1 and below the nodes'", given=f"{k} of {n}")
    if k == 1 or ties.nnz == 0:
        return np.zeros(n, dtype=np.int64)
    root = 1 / np.sqrt(degrees(ties) + degrees(ties).mean())
    scaled = sparse.csr_array(sparse.diags_array(root) @ ties @ sparse.diags_array(root))
    if k >= n - 1 or n <= 32:
        vectors = np.linalg.eigh(scaled.toarray())[1][:, -k:]
    else:
        vectors = eigsh(scaled, k=k, which="LA", v0=rng.standard_normal(n), tol=1e-6)[1]
    vectors = vectors / np.maximum(np.sqrt((vectors**2).sum(axis=1, keepdims=True)), 1e-12)
    return clusters(vectors, k, rng)


def clusters(points: Array, k: int, rng: np.random.Generator) -> Counts:
    """(n,) labels 0 … k − 1 of (n, d) points by k-means, the best of eight runs; fewer where points are too few.

    >>> clusters(np.array([[0.0], [0.1], [5.0]]), 2, np.random.default_rng(1)).tolist() in ([0, 0, 1], [1, 1, 0])
    True
    """
    best, labels = np.inf, np.zeros(len(points), dtype=np.int64)
    for _ in range(8):
        loss, found = _clusters(points, k, rng)
        if loss < best:
            best, labels = loss, found
    return labels


def _clusters(points: Array, k: int, rng: np.random.Generator) -> tuple[float, Counts]:
    """One run of k-means from spread-out points: (sum of squares, labels)."""
    centres = points[rng.integers(len(points))][None]
    while len(centres) < k:
        far = _squares(points, centres).min(axis=1) + 1e-12
        centres = np.vstack([centres, points[rng.choice(len(points), p=far / far.sum())]])
    labels = np.full(len(points), -1)
    for _ in range(100):
        distance = _squares(points, centres)
        new = distance.argmin(axis=1)
        if (new == labels).all():
            break
        labels = new
        for c in range(k):
            if (labels == c).any():
                centres[c] = points[labels == c].mean(axis=0)
    return float(distance.min(axis=1).sum()), labels.astype(np.int64)


def _squares(points: Array, centres: Array) -> Array:
    return np.asarray(((points[:, None, :] - centres[None]) ** 2).sum(axis=2))


def modularity(ties: Matrix, labels: Counts) -> float:
    r"""The share of ties within communities above what degrees alone give: Newman's Q; NaN without ties.

    .. math:: Q = \sum_c \frac{m_c}{m} - \Bigl( \frac{k_c}{2 m} \Bigr)^2

    with m ties, of which m_c lie within community c, whose degrees add up to k_c.

    >>> from shared.mechanisms.grand.counts import simple
    >>> two = simple(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> modularity(two, np.repeat([0, 1], 4)), modularity(two, np.zeros(8, dtype=np.int64))
    (0.5, 0.0)
    """
    member = sparse.csr_array((np.ones(len(labels)), (np.arange(len(labels)), labels)))
    mixing = (member.T @ ties @ member).toarray()
    ends = mixing.sum()
    if not ends:
        return float("nan")
    return float(np.trace(mixing) / ends - ((mixing.sum(axis=0) / ends) ** 2).sum())


def adjusted_rand(labels: Counts, truth: Counts) -> float:
    """Adjusted Rand index of two partitions: 1 if they are the same, 0 on average by chance.

    Source: Hubert & Arabie (1985). NaN where neither partition parts anything.

    >>> adjusted_rand(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
    1.0
    >>> round(adjusted_rand(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])), 3)
    -0.5
    """
    table = _crossed(labels, truth).astype(np.float64)
    both, one, other = ((x * (x - 1) / 2).sum() for x in (table, table.sum(axis=1), table.sum(axis=0)))
    pairs = len(labels) * (len(labels) - 1) / 2
    if pairs == 0 or one + other in (0.0, 2 * pairs):
        return float("nan")
    chance = one * other / pairs
    return float((both - chance) / ((one + other) / 2 - chance))


def left_out(statistic: Callable[[Counts], float], n: int) -> tuple[float, float]:
    r"""A statistic of all of n nodes, and its variance by leaving out one part of twenty after another.

    .. math:: v = \frac{g - 1}{g} \sum_j (\theta_{(j)} - \bar\theta)^2, \quad g = 20

    Nodes must stand in no order: a part is every twentieth. Whatever the statistic looks for, it looks for anew
    without each part. Returns: value and variance, NaN where one of the values is.
    """
    place = np.arange(n)
    left = np.array([statistic(np.flatnonzero(place % PARTS != part)) for part in range(PARTS)])
    return statistic(place), float((PARTS - 1) / PARTS * ((left - left.mean()) ** 2).sum())


def _crossed(labels: Counts, truth: Counts) -> Counts:
    names, found = np.unique(labels, return_inverse=True)
    known, true = np.unique(truth, return_inverse=True)
    table = np.zeros((len(names), len(known)), dtype=np.int64)
    np.add.at(table, (found, true), 1)
    return table
