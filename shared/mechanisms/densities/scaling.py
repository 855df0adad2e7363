r"""Smooth densities: coefficients in Daubechies' scaling functions on [0, 1], with boundary functions made exactly.

A density of order N and level J is a combination of 2^J functions: 2^{J/2} φ(2^J x − k) where the whole function lies
inside [0, 1], and N more at each end, made of the cut-off ones so that polynomials of degree below N are still
combinations of all. The construction is exact: inner products of cut-off functions solve a finite linear system (the
refinement equation on a half line), so nothing is integrated numerically, and the values on a dyadic grid follow from
those at the integers.

*Sensitivity.* A value is snapped to the middle of one of 2¹² cells of [0, 1] first, and the functions are tabled there
in whole steps of 2⁻¹² (2⁻⁸ for three columns): no smoothness constant, no floating point. Let S be the largest ℓ₁ norm
of a cell's values and D the largest ℓ₁ distance of two cells' values, both finite maxima of integers. Replacing one
person moves the sums of one column by D at most. Over tensor products of d columns it moves them by S^(d−1) D at most:

- Two persons in different cells x, x' of *one* column: the others multiply ‖x − x'‖ ≤ D by norms, each S at most. It is
  reached where D is, with everything else in the cell of norm S.
- In *several*: of each of these let a, b be the norms of x and x', M the sum of min(|x_i|, |x'_i|) where both have the
  same sign, N the same where they have not. Of two numbers of the same sign |s − t| = |s| + |t| − 2 min(|s|, |t|);
  products have the same sign where an even number of their factors has not; and the least of two products of sizes is
  no less than the product of the least ones. So

  .. math:: \left\| \bigotimes x - \bigotimes x' \right\|_1 \le \prod a + \prod b - \prod (M + N) - \prod (M - N).

  Where a + b ≤ D for one column, this is S^(d−1) D at most. Of all other pairs of cells it is computed: it is
  linear in the (a, b, M, N) of each column, hence largest at corners of their convex hull. Of every basis here it is
  below S^(d−1) D; were it not, it would be charged in its place.

Source: Cohen, Daubechies and Vial (1993) for the space; Lalanne et al. (2026), §2 and Appendix D, for its use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.privacy.accountant import Laplace

__all__ = ["CELLS", "Basis", "Coefficients", "Sensitivity", "diameter", "filter_of"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Sensitivity = Literal["diameter", "norms"]
CELLS = 1 << 12
"""Cells of [0, 1] that a value is snapped to before anything is computed of it."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """2^J orthonormal functions on [0, 1], which hold all polynomials of degree below N.

    Args:
        order: N, 2 to 4; the Haar basis (N = 1) is a histogram (`shared.mechanisms.densities.noise`).
        level: J, with 2N <= 2^J <= 2⁸.
    Raises: ParameterError.

    >>> basis = Basis(order=2, level=2)
    >>> basis.values.shape, bool(abs(basis.gram - np.eye(4)).max() < 1e-12)
    ((4, 4096), True)
    """

    order: int
    level: int

    def __post_init__(self) -> None:
        if self.order not in (2, 3, 4):
            raise ParameterError("the order of scaling functions must be 2, 3 or 4", given=repr(self.order))
        if not (2 * self.order <= 2**self.level <= 256):
            raise ParameterError(
                "a level must leave room for both ends and be at most 8",
                given=f"order {self.order}, level {self.level}",
                next_step=f"The lowest level is {math.ceil(math.log2(2 * self.order))}.",
            )

    @cached_property
    def values(self) -> Floats:
        """(2^J, 2¹²) at the middles of the cells."""
        step = 2 ** (12 - self.level) * 2  # points of a unit of φ, so that the cells' middles are among them
        phi = _dyadic(self.order, step)
        size, width = 2**self.level, 2 * self.order - 1
        places = 2 * np.arange(CELLS) + 1  # in units of 1/step, on [0, 2^J]
        out = np.zeros((size, CELLS))
        for start in range(1 - width, size):
            at = places - start * step
            inside = (at > 0) & (at < width * step)
            out += np.outer(self._weights[:, start + width - 1], np.where(inside, phi[np.where(inside, at, 0)], 0.0))
        return np.asarray(2 ** (self.level / 2) * out)

    @cached_property
    def gram(self) -> Floats:
        """(2^J, 2^J) inner products on [0, 1], from those of the cut-off functions: exact but for rounding."""
        return np.asarray(self._weights @ _cut(self.order, 2**self.level) @ self._weights.T)

    @cached_property
    def _weights(self) -> Floats:
        """(2^J, 2^J + 2N - 2) of the functions, over the translates φ(y - k), k from 2 - 2N to 2^J - 1, on [0, 2^J]."""
        n, size = self.order, 2**self.level
        width = 2 * n - 1
        out = np.zeros((size, size + width - 1))
        left = np.arange(1 - width, 1)  # all that begin at or before 0
        right = np.arange(-width, 0)  # all that end at or after the other end, counted from there
        half = _half(n)
        whole = np.eye(width)
        out[:n, left + width - 1] = _orthonormal(_moments(n, left), half)
        out[size - n :, right + size + width - 1] = _orthonormal(_moments(n, right), whole - _half(n, right))
        for row, start in enumerate(range(1, size - 2 * n + 1), start=n):
            out[row, start + width - 1] = 1.0
        return out

    def polynomial(self, degree: int) -> Floats:
        """(2^J,) coefficients of x^degree, degree < N: its inner products with the functions, exactly."""
        translates = np.arange(2 - 2 * self.order, 2**self.level)
        scaled = _moments(self.order, translates)[degree] / 2 ** (self.level * (degree + 0.5))
        return np.asarray(self._weights @ _cut(self.order, 2**self.level) @ scaled)

    def table(self, bits: int) -> Counts:
        """(2^J, 2¹²) the values in whole steps of 2^-bits."""
        return np.rint(np.ldexp(self.values, bits)).astype(np.int64)

    def cells(self, bins: int) -> Floats:
        """(2^J, bins) mean value over each of `bins` equal parts of [0, 1]; a divisor of 2¹²."""
        return np.asarray(self.values.reshape(len(self.values), bins, -1).mean(axis=2))


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Noisy sums of tensor products of a basis over the persons: the coefficients of a smooth density, times n.

    Args:
        basis: of each column.
        columns: d, 1 to 3.
        scale: b of the Laplace noise on each sum, in steps (`step`).
        charge: the ``diameter`` of all persons' parts, which is exact; or the ``norms`` of two of them, 2 S^d, by
            which plans were charged before the diameter was known.
    Raises: ParameterError.

    >>> made = Coefficients(basis=Basis(order=2, level=2), columns=2, scale=1e9)
    >>> made.event.coordinates
    1
    """

    basis: Basis
    columns: int
    scale: float
    charge: Sensitivity = "diameter"

    def __post_init__(self) -> None:
        if self.columns not in (1, 2, 3):
            raise ParameterError("a smooth density must be of 1 to 3 columns", given=repr(self.columns))
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ParameterError("scale must be positive and finite", given=repr(self.scale))

    @property
    def bits(self) -> int:
        """Binary digits of a table's entry: fewer for three columns, whose products must stay exact in 63 bits."""
        return 12 if self.columns < 3 else 8

    @property
    def step(self) -> float:
        """One step of a sum, in the basis' own units."""
        return 2.0 ** (-self.bits * self.columns)

    @property
    def sensitivity(self) -> int:
        """In steps: the ℓ₁ distance by which replacing one person can move the sums."""
        table = self.basis.table(self.bits)
        if self.charge == "norms":
            return 2 * int(np.abs(table).sum(axis=0).max()) ** self.columns
        return _diameter(self.basis, self.bits, self.columns)

    @property
    def event(self) -> Laplace:
        """One value that moves by the whole ℓ₁ sensitivity: the worst that replacing a person can do."""
        return Laplace(scale=self.scale, sensitivity=float(self.sensitivity), coordinates=1)

    def sums(self, points: Floats) -> Counts:
        """(2^J, …) true sums in steps of (n, d) places in [0, 1]; what lies outside counts at its end. Never released.

        Raises: ParameterError: another number of columns, or a place that is no number.
        """
        points = np.asarray(points, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.columns or not np.isfinite(points).all():
            raise ParameterError(f"places must have {self.columns} finite columns", given=f"{points.shape}")
        cells = np.clip(np.floor(points * CELLS), 0, CELLS - 1).astype(np.int64)
        table = self.basis.table(self.bits)
        size = len(table)
        out = np.zeros((size,) * self.columns, dtype=np.int64)
        for block in np.array_split(cells, max(1, -(-len(cells) // 8192))):
            parts = [table[:, block[:, axis]] for axis in range(self.columns)]
            letters = "ijk"[: self.columns]
            out += np.einsum(",".join(f"{letter}n" for letter in letters) + f"->{letters}", *parts, optimize=True)
        return out

    def release(self, points: Floats, rng: Noise) -> Counts:
        """The noisy sums, in whole steps."""
        return self.noised(self.sums(points), rng)

    def noised(self, sums: Counts, rng: Noise) -> Counts:
        """The sums with noise, in whole steps."""
        return sums + rng.lattice_laplace_steps(self.scale, (2**self.basis.level,) * self.columns, 1.0)

    def density(self, sums: Counts, persons: float, bins: int) -> Floats:
        """(bins, …) the density's mean over each cell of a grid, as the sums say: it may be negative."""
        out = np.asarray(sums, dtype=np.float64) * (self.step / persons)
        cells = self.basis.cells(bins)
        for _ in range(self.columns):
            out = np.tensordot(out, cells, axes=(0, 0))
        return np.asarray(out)


def diameter(table: Counts, columns: int) -> int:
    """The largest ℓ₁ distance of two tensor products of `columns` columns of a table: exact where it is S^(d−1) D.

    Else a bound, as the text of this module proves it.

    Args:
        table: (functions, cells) whole numbers.

    >>> diameter(np.array([[3, 0, 2], [0, 1, -2]]), 1), diameter(np.array([[3, 0, 2], [0, 1, -2]]), 2)
    (5, 20)
    """
    norms = np.abs(table).sum(axis=0)
    order = np.argsort(-norms, kind="stable")
    most, apart, pairs = int(norms.max()), 0, []
    for i, cell in enumerate(order):
        # By falling norm: two cells are no further apart than both norms together.
        others = order[i + 1 :]
        others = others[norms[others] > apart - norms[cell]]
        if not len(others):
            break
        one, other = table[:, [cell]], table[:, others]
        apart = max(apart, int(np.abs(one - other).sum(axis=0).max()))
        smaller = np.minimum(np.abs(one), np.abs(other))
        same, opposite = (np.where(side * one * other > 0, smaller, 0).sum(axis=0) for side in (1, -1))
        pairs.append(np.stack([np.full(len(others), norms[cell]), norms[others], same, opposite]))
    within = most ** (columns - 1) * apart
    if columns == 1:
        return within
    further = max(most ** (columns - k) * _bound(np.concatenate(pairs, axis=1), k) for k in range(2, columns + 1))
    return max(within, math.floor(further))


# -- inside ----------------------------------------------------------------------------------------------------------
@cache
def _diameter(basis: Basis, bits: int, columns: int) -> int:
    return diameter(basis.table(bits), columns)


def _bound(pairs: Counts, columns: int) -> float:
    """The largest ∏a + ∏b − ∏(M + N) − ∏(M − N) over a pair (a, b, M, N) for each column, either way round."""
    from scipy.spatial import ConvexHull

    points = np.concatenate([pairs, pairs[[1, 0, 2, 3]]], axis=1).astype(np.float64).T
    # Four points that a pair is never below, so that the hull is not flat.
    below = np.tile(points[0], (4, 1))
    np.fill_diagonal(below, [0.0, 0.0, 4 * points.max(), 4 * points.max()])
    points = np.concatenate([points, below])
    a, b, same, opposite = points[ConvexHull(points).vertices].T
    plus, minus = same + opposite, same - opposite
    two = [np.multiply.outer(one, one) for one in (a, b, plus, minus)]
    if columns == 2:
        found = float((two[0] + two[1] - two[2] - two[3]).max())
    else:
        found = max(
            float((a[k] * two[0] + b[k] * two[1] - plus[k] * two[2] - minus[k] * two[3]).max()) for k in range(len(a))
        )
    return found * (1 + 1e-9)  # what the hull rounds away


@cache
def filter_of(order: int) -> Floats:
    """(2N,) Daubechies' filter of least phase: h with φ(x) = √2 Σ h_k φ(2x − k).

    >>> h = filter_of(2)
    >>> bool(np.abs(h * 4 * math.sqrt(2) - [1 + 3**0.5, 3 + 3**0.5, 3 - 3**0.5, 1 - 3**0.5]).max() < 1e-12)
    True
    """
    # |m|² = (1 - y)^N Σ_k C(N - 1 + k, k) y^k with y = (2 - z - 1/z)/4: take the root of each pair that lies inside.
    found = np.roots([math.comb(order - 1 + k, k) for k in range(order - 1, -1, -1)])
    inside = []
    for y in found:
        pair = np.roots([1, 4 * y - 2, 1])
        inside.append(pair[np.argmin(np.abs(pair))])
    h = np.real(np.poly(inside)) if inside else np.ones(1)
    for _ in range(order):
        h = np.convolve(h, [1.0, 1.0])
    return np.asarray(h * math.sqrt(2) / h.sum())


@cache
def _dyadic(order: int, step: int) -> Floats:
    """((2N - 1) step + 1,) values of φ at multiples of 1/step, a power of two."""
    h, width = filter_of(order), 2 * order - 1
    refine = np.zeros((width + 1, width + 1))
    for i in range(width + 1):
        for j in range(width + 1):
            if 0 <= 2 * i - j <= width:
                refine[i, j] = math.sqrt(2) * h[2 * i - j]
    # At the integers φ is the fixed vector of the refinement, and adds up to 1.
    system = np.vstack([refine - np.eye(width + 1), np.ones(width + 1)])
    phi = np.linalg.lstsq(system, np.append(np.zeros(width + 1), 1.0), rcond=None)[0]
    now = 1
    while now < step:
        finer = np.zeros(2 * now * width + 1)
        for k, value in enumerate(h):
            # φ(x) at x = i / (2 now) takes φ(2x - k) = φ((i - k now) / now).
            finer[k * now : k * now + len(phi)] += math.sqrt(2) * value * phi
        phi, now = finer, 2 * now
    return phi


def _moments(order: int, translates: NDArray[np.int64]) -> Floats:
    """(N, len(translates)) integrals of x^a φ(x − k), a < N: the weights by which translates make up x^a."""
    h = filter_of(order)
    mu = [1.0]
    for a in range(1, order):
        terms = (
            math.comb(a, b) * mu[b] * float((h * np.arange(2 * order, dtype=float) ** (a - b)).sum()) for b in range(a)
        )
        mu.append(sum(terms) / math.sqrt(2) / (2**a - 1))
    k = translates.astype(np.float64)
    return np.stack([sum(math.comb(a, b) * mu[b] * k ** (a - b) for b in range(a + 1)) for a in range(order)])


@cache
def _straddling(order: int) -> Floats:
    """(2N - 2, 2N - 2) integrals over [0, ∞) of φ(x − k) φ(x − l) for the k, l below 0 that reach beyond 0.

    By the refinement equation each is a sum of others of the same kind, and of those of whole functions: a finite
    linear system.
    """
    h, width = filter_of(order), 2 * order - 1
    below = list(range(1 - width, 0))
    at = {(k, m): i for i, (k, m) in enumerate((k, m) for k in below for m in below)}
    system, known = np.eye(len(at)), np.zeros(len(at))
    for (k, m), row in at.items():
        for a, one in enumerate(h):
            for b, other in enumerate(h):
                left, right = 2 * k + a, 2 * m + b
                if (left, right) in at:
                    system[row, at[left, right]] -= one * other
                elif left == right and left >= 0:  # whole functions are orthonormal; what ends before 0 is nothing
                    known[row] += one * other
    size = len(below)
    return np.asarray(np.linalg.solve(system, known).reshape(size, size), dtype=np.float64)


def _half(order: int, translates: NDArray[np.int64] | None = None) -> Floats:
    """(2N - 1, 2N - 1) integrals over [0, ∞) of translates k = 2 - 2N .. 0, or of those named (none above 0)."""
    width = 2 * order - 1
    named = np.arange(1 - width, 1) if translates is None else translates
    out = np.zeros((len(named), len(named)))
    known = _straddling(order)
    for i, k in enumerate(named):
        for j, m in enumerate(named):
            if 1 - width <= k < 0 and 1 - width <= m < 0:
                out[i, j] = known[k + width - 1, m + width - 1]
            elif k == m == 0:
                out[i, j] = 1.0
    return out


def _cut(order: int, size: int) -> Floats:
    """Inner products on [0, size] of all translates that reach into it."""
    width = 2 * order - 1
    out = np.eye(size + width - 1)
    inner = slice(0, width - 1)
    out[inner, inner] = _straddling(order)
    outer = slice(size, size + width - 1)
    out[outer, outer] = np.eye(width - 1) - _straddling(order)
    return out


def _orthonormal(weights: Floats, inner: Floats) -> Floats:
    """The same span, orthonormal in the inner product.

    By the root first, which loses fewer digits where functions are nearly dependent; what that leaves is taken away by
    the inner products themselves.
    """
    values, vectors = np.linalg.eigh(inner)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    triangle = np.linalg.qr(root @ weights.T)[1]
    weights = np.linalg.solve(triangle.T, weights)
    for _ in range(2):
        weights = np.linalg.solve(np.linalg.cholesky(weights @ inner @ weights.T), weights)
    return np.asarray(weights, dtype=np.float64)
