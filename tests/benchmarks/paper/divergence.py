r"""Distance of drawn rows from a slicing release along its own directions: two objectives with their gradients.

A row *x* of a generator is put through the release's directions and gets fresh noise of the release's own law, so that
both sides of a comparison are noised alike, and they agree when the generator's law is the records'.

**Smoothed-sliced f-divergence** (`Divergence`). The m' columns are taken k at a time. In slice *s*, with real lines
:math:`o_i`, drawn lines :math:`y_j` and Gaussian kernels, the density ratio at the real lines is

.. math:: r_s = \frac1H \sum_h \left( (K_{s,h} + \tau I)^{-1} K_{s,h}^{o y} 1 \right), \qquad
          L = \frac{1}{m b} \sum_{s,i} f\left( (r_{s,i})_+ \right),

averaged over H = 3 bandwidths: twice, once and half the median distance of real lines. The inverses depend on the
release alone and are computed once for each batch. The gradient needs no graph: with
:math:`g = f'(r_+) 1_{r > 0} / (m b)` and :math:`u_h = (K_{s,h} + \tau I)^{-1} g / H`,

.. math:: \frac{\partial L}{\partial y_j} = \sum_i A_{ij} (o_i - y_j), \qquad
          A_{ij} = \sum_h u_{h,i} \, K^{oy}_{h,ij} / w_h^2 .

As bandwidths halve, kernels are fourth powers of each other, so that one exponential per pair of lines is enough.

`kl` is :math:`f(r) = r \ln r - r + 1`: the same divergence as :math:`r \ln r` wherever the mean of r is 1, but least at
r = 1, which the estimated ratio does not have to average to; `chi2` is :math:`(r - 1)^2`.

**Sliced Wasserstein** (`Wasserstein`): k = 1, the mean squared distance of sorted drawn sums to the real lines'
quantiles.

Source: Greenewald, Yu, Wang & Xu (2024), equations 5 and 6, Remark 3 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Divergence", "Kind", "Wasserstein"]

Single = NDArray[np.float32]
Kind = Literal["chi2", "kl"]

_RIDGE = 0.1
"""τ: the kernel of a line with itself is 1."""
_BANDWIDTHS = 3
_LEAST = 1e-6
"""Lower bound of a ratio before its logarithm is taken."""
CACHE = 3 << 29
"""Bytes of inverses that are kept; those of further batches are computed anew each time."""


class Divergence:
    """The smoothed-sliced f-divergence to batches of one release.

    Args:
        lines: (n, m') of the release. batches: which of them are compared at a time.
        k: dimension of a slice. groups: how many slices are looked at, from the first.
    """

    def __init__(
        self, lines: NDArray[np.float64], batches: Sequence[NDArray[np.int64]], *, k: int, groups: int, kind: Kind
    ) -> None:
        self.k, self.groups, self.kind = k, groups, kind
        self.used = k * groups
        self._batches = [
            np.ascontiguousarray(
                lines[batch, : self.used].reshape(len(batch), groups, k).transpose(1, 0, 2), dtype=np.float32
            )
            for batch in batches
        ]
        some = self._grouped(lines[np.concatenate([np.asarray(b) for b in batches])[:200], : self.used])
        apart = np.sqrt(np.maximum(_squares(some, some), 0))
        upper = np.triu_indices(apart.shape[1], 1)
        median = np.median(apart[:, *upper], axis=1) if len(upper[0]) else np.ones(groups)
        scale = float(np.abs(lines).mean()) or 1.0
        self._c = (1 / (8 * np.maximum(median, 1e-3 * scale) ** 2)).astype(np.float32)[:, None, None]
        # [o, 1, |o|²] against [2c y, −c |y|², −c] is the exponent in one product.
        self._beside = [_with(real, np.ones((), np.float32), (real**2).sum(axis=2)) for real in self._batches]
        self._cache: dict[int, Single] = {}
        self._room = CACHE
        self._work: dict[tuple[int, ...], list[Single]] = {}

    def _grouped(self, seen: NDArray[np.float64] | Single) -> Single:
        parts = seen[:, : self.used].reshape(len(seen), self.groups, self.k)
        return np.ascontiguousarray(parts.transpose(1, 0, 2), dtype=np.float32)

    def inverses(self, batch: int) -> Single:
        """(H, m, b, b) of (K + τI)⁻¹, the widest bandwidth first."""
        known = self._cache.get(batch)
        if known is not None:
            return known
        real = self._batches[batch]
        wide = np.exp(-self._c * np.maximum(_squares(real, real), 0))
        kernels = np.stack([wide, wide**4, wide**16])
        kernels += _RIDGE * np.eye(real.shape[1], dtype=np.float32)
        found: Single = np.linalg.inv(kernels)
        if found.nbytes <= self._room:
            self._room -= found.nbytes
            self._cache[batch] = found
        return found

    def real(self, batch: int) -> tuple[Single, Single]:
        """((m, b, k) lines of a batch, (m, 1, 1) 1/8 median²): what the objective compares with."""
        return self._batches[batch], self._c

    def __call__(self, batch: int, seen: Single) -> tuple[float, Single]:
        """(L, its gradient in `seen`): of (b, m') noisy sums of drawn rows."""
        real, y, inverses = self._batches[batch], self._grouped(seen), self.inverses(batch)
        m, b, n = self.groups, real.shape[1], len(seen)
        wide, middle, narrow = self._work.setdefault(
            (m, b, n), [np.empty((m, b, n), dtype=np.float32) for _ in range(3)]
        )
        c = self._c
        against = _with(2 * c * y, -c[..., 0] * (y**2).sum(axis=2), -c[..., 0])
        np.matmul(self._beside[batch], against.transpose(0, 2, 1), out=wide)
        np.exp(wide, out=wide)
        for low, high in ((wide, middle), (middle, narrow)):
            np.multiply(low, low, out=high)
            np.multiply(high, high, out=high)
        sums = np.stack([kernel.sum(axis=2) for kernel in (wide, middle, narrow)])[..., None]
        # Batches of unequal size: a kernel mean of the drawn stands for as many as there are real lines.
        r = (inverses @ sums).mean(axis=0)[..., 0] * (b / n)
        loss, slope = self._f(np.maximum(r, 0))
        g = np.where(r > 0, slope, 0) / (m * b)
        u = (inverses @ g.astype(np.float32)[None, ..., None]) * np.float32(b / n / _BANDWIDTHS)
        wide *= u[0]
        middle *= 4 * u[1]
        narrow *= 16 * u[2]
        wide += middle
        wide += narrow
        pulls = wide.transpose(0, 2, 1) @ self._beside[batch]
        by = 2 * c * (pulls[..., : self.k] - y * pulls[..., self.k : self.k + 1])
        out = np.zeros_like(seen)
        out[:, : self.used] = by.transpose(1, 0, 2).reshape(n, self.used)
        return loss, out

    def _f(self, r: Single) -> tuple[float, Single]:
        if self.kind == "chi2":
            return float(((r - 1) ** 2).mean()), 2 * (r - 1)
        log = np.log(np.maximum(r, _LEAST))
        return float((r * log - r + 1).mean()), log


class Wasserstein:
    """The squared sliced Wasserstein distance to the batches of one release: see `Divergence` for the arguments."""

    def __init__(self, lines: NDArray[np.float64], batches: Sequence[NDArray[np.int64]]) -> None:
        # One batch's quantiles scatter as much as the drawn ones: those of all its batches together do not.
        together = np.concatenate([np.asarray(batch) for batch in batches])
        self._sorted = np.sort(lines[together].astype(np.float32), axis=0)
        self._known: dict[int, Single] = {}

    def __call__(self, batch: int, seen: Single) -> tuple[float, Single]:
        """(distance, its gradient in `seen`); the batch does not matter."""
        wanted = self._known.get(len(seen))
        if wanted is None:
            given = self._sorted
            at = ((np.arange(len(seen)) + 0.5) / len(seen) * len(given) - 0.5).clip(0, len(given) - 1)
            low = np.floor(at).astype(np.int64)
            share = (at - low).astype(np.float32)[:, None]
            wanted = (1 - share) * given[low] + share * given[np.minimum(low + 1, len(given) - 1)]
            self._known[len(seen)] = wanted
        order = np.argsort(seen, axis=0)
        apart = np.take_along_axis(seen, order, axis=0) - wanted
        out = np.empty_like(seen)
        np.put_along_axis(out, order, 2 * apart / apart.size, axis=0)
        return float((apart**2).mean()), out


def _with(lines: Single, one: Single, other: Single) -> Single:
    """(m, b, k + 2): two more columns beside (m, b, k)."""
    out = np.empty((*lines.shape[:2], lines.shape[2] + 2), dtype=np.float32)
    out[..., :-2], out[..., -2], out[..., -1] = lines, one, other
    return out


def _squares(one: Single, other: Single) -> Single:
    """(m, b, n) squared distances of (m, b, k) and (m, n, k), without cancellation."""
    return np.asarray(((one[:, :, None] - other[:, None]) ** 2).sum(axis=3), dtype=np.float32)
