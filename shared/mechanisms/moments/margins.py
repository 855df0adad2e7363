r"""From a noisy histogram to the distribution of one column: smooth where it is numeric, a tilt where it has levels.

A column is the image of a standard normal latent G: value k holds where G lies in the k-th latent interval. Numeric
columns have many narrow intervals, binary and ordered ones as many as they have levels, and one set of formulas
serves both: a mean is a sum over intervals, and the mean product of two columns whose latents have correlation ρ is
Mehler's series

.. math:: E[f(G_1) h(G_2)] = \sum_k \rho^k a_k b_k, \qquad
          a_k = E[f(G) He_k(G)] / \sqrt{k!}
              = \sum_l f_l \, [He_{k-1}(t_{l-1}) \phi(t_{l-1}) - He_{k-1}(t_l) \phi(t_l)] / \sqrt{k!},

smooth in ρ and in the intervals' ends t even for a column with two values.

The noise of a histogram is known, and so is how rough a distribution can be. A numeric column is fitted by a shifted
log-normal; what the histogram says beyond it is kept in the proportion in which it exceeds noise (James and Stein), and
whole where a cell stands out of its noise by itself: a heap, or a second hump.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.plans.dictionary import NUMERIC, Column

__all__ = [
    "Margin",
    "MarginShape",
    "bin_edges",
    "fitted_margin",
    "product_moments",
    "project",
    "shrunken",
    "smooth_margin",
    "smooth_share",
]

special = deferred("scipy.special")

Array = NDArray[np.float64]
MarginShape = Literal["cells", "lognormal"]

_CELLS = 256
_REACH = 4.5
"""Latent range of the intervals of a numeric column, in standard deviations."""
_ORDER = 12
"""Terms of Mehler's series."""
_LIKELY = 0.002
"""Share of the persons from which on the log-normal has them in a cell."""
_STANDS, _APART = 3.5, 5.0
"""A cell this many standard deviations from the log-normal is believed, where that has persons and where it has none.
By chance the first is in 1 of 70 histograms, and moves a few persons by a little; the second is in 1 of 50,000: a
hundred persons at a value that nobody has make the scale of the column, and every effect of that site, a wild one."""


def bin_edges(column: Column, bins: int) -> Array:
    """Edges of a column's public histogram: equal steps over its bounds, one bin per level or whole number.

    >>> bin_edges(Column(name="sex", kind="binary"), 32)
    array([-0.5,  0.5,  1.5])
    """
    if column.kind not in NUMERIC:
        return np.arange(len(column.levels) + 1, dtype=np.float64) - 0.5
    lower, upper = column.span
    if column.kind == "integer" and upper - lower + 1 <= bins:
        return np.arange(lower, upper + 2, dtype=np.float64) - 0.5
    return np.linspace(lower, upper, bins + 1)


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The distribution of a column, over a standard normal latent.

    Args:
        edges: (k + 1,) latent interval ends, rising, the outer two infinite.
        values: (k,) value of the column in each interval, rising.
        smooth: whether values between the intervals' middles are interpolated (a numeric column, in even intervals).
    """

    edges: Array
    values: Array
    smooth: bool

    @property
    def weights(self) -> Array:
        """(k,) probabilities."""
        return _even_cells()[0] if self.smooth else np.asarray(np.diff(special.ndtr(self.edges)))

    @property
    def mean(self) -> float:
        """Its mean."""
        return float(self.weights @ self.values)

    @property
    def sd(self) -> float:
        """Its standard deviation."""
        return math.sqrt(max(float(self.weights @ (self.values - self.mean) ** 2), 0.0))

    def at(self, latent: Array) -> Array:
        """The column at latent values."""
        if self.smooth:
            # The middles are evenly spaced, so that the cell needs no search.
            middles = _middles()
            place = np.clip(
                (latent - middles[0]) * ((len(middles) - 1) / (middles[-1] - middles[0])), 0, len(middles) - 1
            )
            cell = np.minimum(place.astype(np.intp), len(middles) - 2)
            below = self.values[cell]
            return np.asarray(below + (place - cell) * (self.values[cell + 1] - below))
        return self.values[np.searchsorted(self.edges[1:-1], latent)]

    def moved(self, shift: float, log_scale: float, centre: float, scale: float, span: tuple[float, float]) -> Margin:
        """Moved by `shift` scales and stretched about `centre`; levels are tilted by both, exponentially.

        Args:
            shift: in units of `scale`; at most 2, of levels 8, either way.
            log_scale: logarithm of the stretch; at most 1, of levels 4, either way.
            centre: the value that a stretch leaves where it is.
            scale: a unit of the column.
            span: between which values stay; levels stay as they are.
        """
        z = (self.values - centre) / scale
        if self.smooth:
            stretch = math.exp(float(np.clip(log_scale, -1, 1)))
            values = np.clip(centre + scale * (np.clip(shift, -2, 2) + stretch * z), *span)
            return replace(self, values=np.maximum.accumulate(values))
        logits = np.log(self.weights) + np.clip(shift, -8, 8) * z + np.clip(log_scale, -4, 4) * z**2
        return _levels(special.softmax(logits), self.values)

    def hermite(self, f: Array) -> Array:
        """(12,) coefficients a_1 … a_12 of a function that takes the values f (k,) in the intervals."""
        return (_even_cells()[1] if self.smooth else _in_cells(self.edges)) @ f


def _in_cells(edges: Array) -> Array:
    """(12, k) what each interval adds to the coefficients of a function that is 1 there."""
    at_edges = np.zeros((_ORDER, len(edges)))
    at_edges[:, 1:-1] = _hermite(edges[1:-1])
    return np.asarray(at_edges[:, :-1] - at_edges[:, 1:])


def _hermite(t: Array) -> Array:
    """He_{k−1}(t) φ(t) / √k!, k = 1 … 12."""
    out = np.empty((_ORDER, len(t)))
    previous, current = np.zeros_like(t), np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    for k in range(1, _ORDER + 1):
        out[k - 1] = current / math.sqrt(math.factorial(k))
        previous, current = current, t * current - (k - 1) * previous
    return out


@lru_cache(maxsize=1)
def _even_cells() -> tuple[Array, Array]:
    """Probabilities of a smooth margin's intervals, and what they add to its coefficients."""
    edges = _latent_edges()
    out = np.diff(special.ndtr(edges)), _in_cells(edges)
    for one in out:
        one.setflags(write=False)
    return out


@lru_cache(maxsize=1)
def _latent_edges() -> Array:
    """(k + 1,) latent interval ends of every smooth margin."""
    out = np.r_[-np.inf, np.linspace(-_REACH, _REACH, _CELLS + 1)[1:-1], np.inf]
    out.setflags(write=False)
    return out


@lru_cache(maxsize=1)
def _middles() -> Array:
    inner = np.linspace(-_REACH, _REACH, _CELLS + 1)
    return (inner[1:] + inner[:-1]) / 2


def product_moments(coefficients: Array, means: Array, rho: Array) -> tuple[Array, Array]:
    """Mean products of all pairs of columns, and their derivatives in ρ.

    Args:
        coefficients: (p, 12) of `Margin.hermite`. means: (p,). rho: (pairs,) in the order of `np.triu_indices(p, 1)`.
    Returns: (pairs,), (pairs,).
    """
    i, j = np.triu_indices(len(means), 1)
    both = coefficients[i] * coefficients[j]
    k = np.arange(1, _ORDER + 1)
    powers = rho[:, None] ** (k - 1)
    return means[i] * means[j] + rho * (both * powers).sum(axis=1), (both * k * powers).sum(axis=1)


def _levels(probabilities: Array, values: Array) -> Margin:
    inner = special.ndtri(np.clip(np.cumsum(probabilities)[:-1], 1e-12, 1 - 1e-12))
    return Margin(edges=np.r_[-np.inf, np.maximum.accumulate(inner), np.inf], values=values, smooth=False)


def fitted_margin(
    counts: Array, n: int, sigma: float, edges: Array, column: Column, shape: MarginShape = "cells"
) -> Margin:
    """The distribution behind a noisy histogram.

    Args:
        counts: (bins,) noisy. n: their public sum. sigma: of the noise on each. edges: (bins + 1,).
        shape: a numeric column's is a shifted log-normal, corrected where it is likely; with ``cells`` a cell whose
            count stands out of its noise keeps it wherever it lies, so that a heap at 0 with a hump beyond keeps both.
    """
    if column.kind not in NUMERIC:
        # A level nobody may have keeps a little weight: the next block tilts weights, and cannot tilt nothing.
        floor = min(0.5 / len(counts), max(1.0, 0.25 * sigma) / n)
        share = np.maximum(project(counts, n) / n, floor)
        return _levels(share / share.sum(), np.arange(len(counts), dtype=float))
    return smooth_margin(smooth_share(counts, n, sigma, edges, shape), edges, column)


def smooth_margin(share: Array, edges: Array, column: Column) -> Margin:
    """The distribution of a numeric column with these shares (bins,) between `edges` (bins + 1,)."""
    cumulative = np.maximum.accumulate(np.clip(np.r_[0.0, np.cumsum(share)], 0, 1))
    grid = np.linspace(edges[0], edges[-1], 769)
    from scipy.interpolate import PchipInterpolator

    curve = np.maximum.accumulate(np.clip(PchipInterpolator(edges, cumulative / cumulative[-1])(grid), 0, 1))
    rising = curve + np.arange(len(grid)) * 1e-10
    values = np.interp(special.ndtr(_middles()), rising / rising[-1], grid)
    return Margin(edges=_latent_edges(), values=np.clip(values, *column.span), smooth=True)


def _log_normal(edges: Array, middle: float, spread: float, skew: float, shape: MarginShape) -> Array:
    """Bin probabilities of a shifted log-normal; skew 0 is a normal."""
    z = (edges - middle) / spread
    if abs(skew) > 1e-4:
        z = np.log(np.maximum(1 + skew * z, 1e-13)) / skew
    inside = np.diff(special.ndtr(z))
    if shape == "cells":
        # Of what lies between the bounds: where that is next to nothing, a floor beside it would be a flat tail.
        inside /= max(float(inside.sum()), 1e-300)
    share = np.maximum(inside, 1e-9)
    return np.asarray(share / share.sum())


def smooth_share(counts: Array, n: int, sigma: float, edges: Array, shape: MarginShape) -> Array:
    """(bins,) shares of the persons that a numeric column's noisy histogram shows.

    Args: as of `fitted_margin`.
    """
    low, width = edges[0], edges[-1] - edges[0]
    unit, middles = (edges - low) / width, ((edges[1:] + edges[:-1]) / 2 - low) / width
    # A start: where three neighbours together stand out of the noise.
    smoothed = np.convolve(counts, [0.25, 0.5, 0.25])[1:-1]
    standing = np.where(smoothed > max(1.3 * sigma, 0.2 * smoothed.max()), smoothed, 0.0)
    if not standing.any():
        standing = np.ones_like(smoothed)
    centre = float(standing @ middles / standing.sum())
    spread = math.sqrt(float(standing @ (middles - centre) ** 2 / standing.sum()))
    least = 0.5 / len(counts)
    spread = float(np.clip(1.2 * spread, 1.2 * least, 0.9))
    expected = n * _log_normal(unit, centre, spread, 0.0, shape)
    scale = 1 / np.sqrt(sigma**2 + np.maximum(expected, 1.0))

    def misfit(q: Array) -> Array:
        model = n * _log_normal(unit, q[0], math.exp(q[1]), q[2], shape)
        return np.r_[(model - counts) * scale, q[2] / 0.3]

    from scipy import optimize

    # Site and coordinator look through what this finds: another way there would be another lens for older releases.
    bounds = ([-0.3, math.log(least), -0.7], [1.3, 0.0, 0.7])
    found = optimize.least_squares(misfit, [centre, math.log(spread), 0.05], bounds=bounds, max_nfev=25)
    share = _log_normal(unit, found.x[0], math.exp(found.x[1]), found.x[2], shape)
    likely = share > _LIKELY
    residual, sd = counts / n - share, np.sqrt((sigma / n) ** 2 + share / n)
    if shape == "cells":
        standing = np.abs(residual) > np.where(likely, _STANDS, _APART) * sd
        shrunk = np.where(standing, residual, shrunken(residual, sd, likely & ~standing))
    else:
        shrunk = shrunken(residual, sd, likely)
    kept = np.maximum(share + shrunk, 0.0)
    # Figures that are all far below 0 tell nothing that could be kept.
    return np.asarray(kept / kept.sum() if kept.any() else share)


def shrunken(residual: Array, sd: Array, where: NDArray[np.bool_]) -> Array:
    """Residuals in the proportion in which their energy exceeds what noise of `sd` explains; 0 elsewhere."""
    if not where.any():
        return np.zeros_like(residual)
    energy = float((residual[where] ** 2).mean())
    factor = max(0.0, 1 - float((sd[where] ** 2).mean()) / max(energy, 1e-300))
    return np.where(where, factor * residual, 0.0)


def project(counts: Array, total: float) -> Array:
    """The nearest counts that are not negative and sum to `total`.

    >>> project(np.array([3.0, 2.0, -1.0]), 4)
    array([2.5, 1.5, 0. ])
    """
    falling = np.sort(counts, axis=None)[::-1]
    surplus = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    last = np.flatnonzero(falling > surplus)[-1]
    return np.asarray(np.maximum(counts - surplus[last], 0.0))
