"""Attacks by the distance to released rows: membership, and whether the nearest row is a person's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from site_agent.release.audit.rates import Array, Rate, auc_of

__all__ = ["linkage", "membership_auc", "standardising", "twins", "whitening"]

_AT_ONCE = 1 << 17
"""Pairs: their distances stay in a core's own cache while they are looked at."""
_WIDE = 4096  # rows at a time


def membership_auc(inside: Array, outside: Array, release: Array) -> Rate:
    """AUC of "the nearest released row is nearer for records the flow was fitted on", ties one half.

    Args:
        inside: (n1, d) records the flow was fitted on; outside: (n0, d) records held back; release: (n1, d).
    Returns: the AUC with DeLong's interval; chance is 0.5.
    Source: latent-noise-injection, eq. 24-25; DeLong, DeLong and Clarke-Pearson (1988).

    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.normal(size=(300, 2)), rng.normal(size=(100, 2))
    >>> membership_auc(a, b, a).value
    1.0
    """
    return auc_of(-_nearest(inside, release), -_nearest(outside, release))


def linkage(x: Array, released: Array, looked_for: NDArray[np.int_] | None = None) -> NDArray[np.bool_]:
    """For each record looked for, all without a list of them: is its nearest released row its own?

    Ties count for the attacker.

    Args:
        x, released: (n, d), row i of one belonging to row i of the other.

    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> linkage(x, x + 0.6).tolist(), linkage(x, x + 0.6, np.array([0, 2])).tolist()
    ([True, False, False], [True, False])
    """
    left = np.arange(len(x)) if looked_for is None else looked_for
    own = np.linalg.norm(x[left] - released[left], axis=1)
    linked, at = np.ones(len(left), dtype=bool), np.arange(len(left))
    for first in range(0, len(released), _WIDE):
        # Whoever has another row nearer is done: most are, among the first few thousand rows.
        linked[at] = own[at] <= _nearest(x[left[at]], released[first : first + _WIDE]) * (1 + 1e-12)
        at = at[linked[at]]
    return linked


def twins(x: Array, released: Array, ranked: NDArray[np.int_]) -> tuple[float, float]:
    """Twin probability (eq. 22) and median rank (eq. 26) of the records at `ranked`."""
    own = np.square(x[ranked] - released[ranked]).sum(axis=1)
    closer = np.concatenate(
        [
            (apart < (own[part] - rounding)[:, None]).sum(axis=1) - 1  # not oneself
            for part, apart, rounding in _apart(x[ranked], x)
        ]
    )
    closer = np.maximum(closer, 0)
    return float(closer.mean() / (len(x) - 1)), float(np.median(closer))


def _nearest(x: Array, rows: Array) -> Array:
    """(n,) distance of each record from the row nearest to it."""
    # One product holds what tells rows apart: |r|² − 2 x·r. A record's own square is the same for all of them.
    turned = np.ascontiguousarray(np.column_stack([-2 * rows, np.square(rows).sum(axis=1)]).T)
    known = np.column_stack([x, np.ones(len(x))])
    at, least = np.zeros(len(x), dtype=int), np.full(len(x), np.inf)
    wide = min(len(rows), _WIDE)
    size = _AT_ONCE // wide
    room = np.empty((min(size, len(x)), wide))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        for first in range(0, len(rows), wide):
            block = turned[:, first : first + wide]
            apart = np.matmul(known[part], block, out=room[: len(known[part]), : block.shape[1]])
            found = apart.argmin(axis=1)
            value = apart[np.arange(len(found)), found]
            nearer = value < least[part]
            least[part][nearer], at[part][nearer] = value[nearer], found[nearer] + first
    nearest: Array = np.linalg.norm(x - rows[at], axis=1)
    return nearest


def _apart(x: Array, rows: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Parts of x, their squared distances from all rows, (m, k), and what these may be off by, (m,).

    As products of matrices: a tree of points looks at every row as soon as there are a dozen columns, one by one. The
    distances of a part lie where those of the part before it lay.
    """
    squares, turned = np.square(rows).sum(axis=1), np.ascontiguousarray(-2 * rows.T)
    size = max(4, _AT_ONCE // len(rows))
    room = np.empty((min(size, len(x)), len(rows)))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        own = np.square(x[part]).sum(axis=1)
        apart = np.matmul(x[part], turned, out=room[: len(own)])
        apart += squares
        apart += own[:, None]
        yield part, apart, 1e-13 * (own + squares.max())


def whitening(x: Array) -> Any:
    """Map to coordinates in which x has unit covariance; a ridge keeps a constant column harmless."""
    mean = x.mean(axis=0)
    covariance = np.atleast_2d(np.cov(x, rowvar=False, bias=True))
    scale = np.where(np.diag(covariance) > 0, np.diag(covariance), 1.0)
    factor = np.linalg.cholesky(covariance + np.diag(1e-9 * scale))
    return lambda values: solve_triangular(factor, (values - mean).T, lower=True).T


def standardising(x: Array) -> Any:
    """Map to coordinates in which each column of x has mean 0 and variance 1; a constant one stays 0."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return lambda values: (values - mean) / scale
