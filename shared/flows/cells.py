"""Cells on a line whose probabilities follow from what is read: from normal scores to places in them, and back.

With y in a cell of probability p, below which there is F, and a share t of the cell below y, the score of y is
:math:`b = \\Phi^{-1}(F + p t)`: standard normal where the probabilities are the law's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["EDGE", "LEAST", "OfCell", "mean_exponential", "normalised", "score_of", "value_of"]

Array = NDArray[np.float64]
OfCell = Callable[[NDArray[np.int64]], Array]
"""A figure of one cell of each row, (n,) to (n,)."""

EDGE = 8.0
"""Score at which the outermost cell ends; beyond it the map goes on as a line."""
LEAST = 1e-12
"""Least probability of a cell: keeps the map strictly increasing."""
_HALF_LOG_2PI = 0.9189385332046727


def normalised(mass: Array) -> Array:
    """Probabilities of cells with none below the least, (n, cells).

    >>> normalised(np.array([[3.0, 1.0]]))
    array([[0.75, 0.25]])
    """
    mass = np.maximum(mass, LEAST)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _score(mass: Array, cell: NDArray[np.int64], part: Array) -> Array:
    """Normal score of a place in a cell; from whichever side loses no digits."""
    from scipy import special

    rows = np.arange(len(mass))
    own = mass[rows, cell]
    below = np.cumsum(mass, axis=1)[rows, cell] - own + own * part
    above = np.cumsum(mass[:, ::-1], axis=1)[rows, mass.shape[1] - 1 - cell] - own + own * (1 - part)
    tiny = 1e-300
    low = special.ndtri(np.clip(below, tiny, 0.6))
    high = -special.ndtri(np.clip(above, tiny, 0.6))
    return np.clip(np.where(below < 0.5, low, high), -EDGE, EDGE)


def _cell_of(mass: Array, v: Array) -> tuple[NDArray[np.int64], Array]:
    """The reverse: (cell, part of it) of normal scores."""
    from scipy import special

    left, last = v < 0, mass.shape[1] - 1
    # Counted from the end that is nearer, where no digits are lost.
    tail = special.ndtr(-np.abs(v))
    if last == 1:
        near, far = np.where(left, mass.T, mass.T[::-1])
        first = tail < near
        own = np.where(first, near, far)
        found, passed = 1 - first.astype(np.int64), np.where(first, near, near + far)
    else:
        there, rows = np.where(left[:, None], mass, mass[:, ::-1]), np.arange(len(mass))
        so_far = np.cumsum(there, axis=1)
        reached = tail[:, None] < so_far
        reached[:, -1] = True
        found = reached.argmax(axis=1)
        own, passed = there[rows, found], so_far[rows, found]
    within = np.clip((tail - (passed - own)) / own, 0.0, 1.0)
    return np.where(left, found, last - found), np.where(left, within, 1 - within)


def _within(t: Array, steep: Array) -> Array:
    """Share of a cell below t in [0, 1] where its density grows like exp(steep t)."""
    up = steep > 0
    g = -np.abs(steep)
    flat = g > -1e-6
    safe = np.where(flat, -1.0, g)
    # Growing upwards is falling downwards: exp of a negative number cannot overflow.
    at = np.where(up, 1 - t, t)
    share = np.where(flat, at, np.expm1(safe * at) / np.expm1(safe))
    return np.where(up, 1 - share, share)


def _within_back(part: Array, steep: Array) -> Array:
    up = steep > 0
    g = -np.abs(steep)
    flat = g > -1e-6
    safe = np.where(flat, -1.0, g)
    share = np.where(up, 1 - part, part)
    at = np.where(flat, share, np.log1p(np.maximum(share * np.expm1(safe), -1 + 1e-16)) / safe)
    return np.clip(np.where(up, 1 - at, at), 0.0, 1.0)


def mean_exponential(steep: Array) -> tuple[Array, Array]:
    """(log of the mean of exp(steep t), mean of t under it), t uniform in [0, 1]."""
    g = -np.abs(steep)
    flat = g > -1e-4
    safe = np.where(flat, -1.0, g)
    log_mean = np.where(flat, g / 2 + g**2 / 24, np.log(np.expm1(safe) / safe))
    mean = np.where(flat, 0.5 + g / 12, 1 / -np.expm1(-safe) - 1 / safe)
    return log_mean + np.maximum(steep, 0.0), np.where(steep > 0, 1 - mean, mean)


def value_of(v: Array, mass: Array, low: Array, high: Array, steep: OfCell | None) -> Array:
    """Values of normal scores v, (n,); beyond `EDGE` as many units beyond the outermost cells.

    Args:
        mass: (n, cells), probabilities of the cells for each row.
        low, high: (cells,) their ends, rising.
        steep: how steeply a row's log density grows within a cell, per cell; None where it is even.

    >>> value_of(np.array([0.0, 9.0]), np.full((2, 2), 0.5), np.array([0.0, 1.0]), np.array([1.0, 2.0]), None)
    array([1., 3.])
    """
    inside = np.abs(v) < EDGE
    cell, part = _cell_of(mass, np.where(inside, v, 0.0))
    if steep is not None:
        part = _within_back(part, steep(cell))
    value = low[cell] + part * (high[cell] - low[cell])
    # A value at the very end of its cell would be read as one of the next.
    value = np.clip(value, low[cell], np.nextafter(high[cell], -np.inf))
    return np.where(inside, value, np.where(v < 0, low[0] + v + EDGE, high[-1] + v - EDGE))


def score_of(
    value: Array, mass: Array, low: Array, high: Array, steep: OfCell | None
) -> tuple[Array, Array, NDArray[np.int64]]:
    """(scores, log slope, cell) of values, each (n,): the reverse of `value_of`.

    Args:
        value: (n,) in the unit of the cells' ends.
        mass, low, high, steep: as of `value_of`.

    >>> ends = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    >>> score_of(np.array([1.0, 3.0]), np.full((2, 2), 0.5), *ends, None)[0]
    array([-0.,  9.])
    """
    inside = (value >= low[0]) & (value < high[-1])
    cell = np.clip(np.searchsorted(low, value, side="right") - 1, 0, len(low) - 1)
    size = (high - low)[cell]
    t = np.clip((value - low[cell]) / size, 0.0, 1.0)
    own = mass[np.arange(len(mass)), cell]
    log_slope = np.log(own) - np.log(size)
    part = t
    if steep is not None:
        g = steep(cell)
        part = _within(t, g)
        log_slope += g * t - mean_exponential(g)[0]
    v = _score(mass, cell, part)
    outside = np.where(value < low[0], value - low[0] - EDGE, value - high[-1] + EDGE)
    return (
        np.where(inside, v, outside),
        np.where(inside, log_slope + 0.5 * v**2 + _HALF_LOG_2PI, 0.0),
        cell,
    )
