"""Weighted products of a tall matrix, some rows at a time: what a block makes stays in a core's cache.

Whole, each of them writes a second matrix to memory and reads it back, which takes longer than the product itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_column", "gram", "scaled_product"]

Array = NDArray[np.float64]
ROWS = 4096
"""Of a block: with a dozen columns a third of a megabyte."""


def gram(x: Array, weights: Array) -> Array:
    """(p, p) X' diag(w) X of (n, p) x and (n,) weights.

    >>> gram(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 0.5]))
    array([[ 5.5,  8. ],
           [ 8. , 12. ]])
    """
    if len(x) <= ROWS:
        return np.asarray((x * weights[:, None]).T @ x)
    out = np.zeros((x.shape[1], x.shape[1]))
    for k in range(0, len(x), ROWS):
        out += (x[k : k + ROWS] * weights[k : k + ROWS, None]).T @ x[k : k + ROWS]
    return out


def scaled_product(x: Array, scale: Array | None, by: Array, out: Array | None = None) -> Array:
    """(n, q) diag(s) X B of (n, p) x and (p, q) `by`, column by column in memory, or in `out`, which may be x itself.

    Without s, X B.

    >>> scaled_product(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 0.5]), np.eye(2))
    array([[1. , 2. ],
           [1.5, 2. ]])
    """
    out = np.empty((len(x), by.shape[1]), order="F") if out is None else out
    for k in range(0, len(x), ROWS):
        product = x[k : k + ROWS] @ by
        out[k : k + ROWS] = product if scale is None else product * scale[k : k + ROWS, None]
    return out


def by_column(x: Array, centre: Array, scale: Array, *, constant: bool) -> Array:
    """(n, p) columns less their centre, over their scale, after one of 1 if `constant`; column by column in memory.

    >>> by_column(np.array([[1.0], [3.0]]), np.array([2.0]), np.array([0.5]), constant=True)
    array([[ 1., -2.],
           [ 1.,  2.]])
    """
    out = np.empty((len(x), x.shape[1] + constant), order="F")
    if constant:
        out[:, 0] = 1.0
    for j in range(x.shape[1]):
        column = out[:, j + constant]
        np.subtract(x[:, j], centre[j], out=column)
        column /= scale[j]
    return out
