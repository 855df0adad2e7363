r"""Maps that carry one site's distribution onto another's, by optimal transport.

On one axis the map is exact: one cumulative sum, then the other's quantiles. Of two or three columns together it is
entropic transport on a grid, one small matrix per axis: Sinkhorn's iteration with a blur that is halved, over-relaxed,
by plain kernels where they hold and by logarithms where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.answers.densities import Density, Joint
from shared.errors import EstimateRefusal, ParameterError

__all__ = ["ColumnsMap", "GridMap", "Map", "mixed_scales", "require_another", "require_told_apart"]

Floats = NDArray[np.float64]
FEW, LEAST, TWICE = 4.0, 2.0, 2.0
"""Cells that the middle 80 % of a density spans: below the first a map onto one that spans `TWICE` as many has a slope
that is off by more than 5 %; below the second the figures of one column say nothing of its slope.
tests/benchmarks/pages/benchmarks/densities.md has the errors by cells."""
APART = 1.5
"""Slope of a map, or its inverse, from which two sites are said to measure on different scales."""
FINE = 5000
"""Persons from which a map on a grid is solved finely."""
_AGAIN = 5
_EARLY = 0.5
_OVER = 1.5  # each step of Sinkhorn's iteration goes so much further


@dataclass(frozen=True)
class Map:
    """The increasing map that carries one density onto another; a site onto itself stays where it is.

    >>> from coordinator.answers.densities import Noisy
    >>> flat = Noisy(counts=np.full(4, 25.0), edges=np.linspace(0, 1, 5), persons=100)
    >>> twice = Noisy(counts=np.full(4, 25.0), edges=np.linspace(0, 2, 5), persons=100)
    >>> Map(flat, twice)(np.array([0.25, 1.0])).round(12).tolist(), Map(flat, twice).slope
    ([0.5, 2.0], 2.0)
    """

    source: Density
    target: Density

    def __call__(self, values: Floats) -> Floats:
        """(n,) values on the target's scale; outside the source's bounds as at them, missing ones stay missing."""
        values = np.asarray(values, dtype=np.float64)
        share = np.interp(values, self.source.edges, self.source.cumulative)
        return np.where(np.isnan(values), np.nan, self.target.quantile(share))

    @property
    def inverse(self) -> Map:
        """The way back."""
        return Map(self.target, self.source)

    @property
    def slope(self) -> float:
        """Width of the middle 80 % of the target over that of the source: roughly the ratio of their units."""
        low, high = self.source.quantile(np.array([0.1, 0.9]))
        to = self.target.quantile(np.array([0.1, 0.9]))
        return float((to[1] - to[0]) / (high - low))

    def outside(self, values: Floats) -> int:
        """Number of values outside the source's bounds; they are mapped as the bounds."""
        values = np.asarray(values, dtype=np.float64)
        return int(((values < self.source.edges[0]) | (values > self.source.edges[-1])).sum())


class GridMap:
    """The transport map between two densities of two or three columns together, on a grid of the unit square or cube.

    Entropic transport for the squared distance of rescaled columns, its blur made smaller step by step, read off as the
    mean place to which a place's mass goes, less what the same does from the source to itself: so that a site mapped
    onto itself stays where it is. Below `FINE` persons the noise of the figures is far larger than what a finer grid
    and a smaller blur would tell, and a coarse grid does (`_Detail`): the numbers of
    persons decide it, never the data.

    Args:
        source, target: of the same number of columns.
    Raises: ParameterError: another number in the target.
    """

    def __init__(self, source: Joint, target: Joint) -> None:
        if source.counts.ndim != target.counts.ndim:
            raise ParameterError(
                "a map on a grid must be of two or three columns on both sides",
                given=f"{source.counts.ndim} and {target.counts.ndim}",
                next_step="One column has an exact map (Map); four have more cells than a study has persons.",
            )
        self.source, self.target = source, target
        self._solve(source.shares, target.shares, min(source.persons, target.persons))

    @classmethod
    def between(cls, source: Floats, target: Floats, *, persons: float = math.inf) -> GridMap:
        """The map between two densities as they are: positive cells of one grid, each adding up to 1.

        Args:
            persons: behind each; they say how fine the map is to be.
        """
        made = cls.__new__(cls)
        made._solve(np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64), persons)
        return made

    def _solve(self, source: Floats, target: Floats, persons: float) -> None:
        there, stay = _barycentric(source, target, persons)
        self._moves = there - stay

    def __call__(self, points: Floats) -> Floats:
        """(n, d) places in [0, 1]^d to where they go, within it; linear between the cells' centres and beyond them."""
        points = np.clip(np.asarray(points, dtype=np.float64), 0.0, 1.0)
        d, *sides = self._moves.shape
        at = points * sides[0] - 0.5
        low = np.clip(np.floor(at).astype(np.int64), 0, sides[0] - 2)
        part = at - low
        flat = self._moves.reshape(d, -1).T
        strides = sides[0] ** np.arange(d - 1, -1, -1)
        cell, moves = low @ strides, np.zeros_like(points)
        for corner in np.ndindex(*(2,) * d):
            weight = np.ones(len(points))
            for axis, up in enumerate(corner):
                weight *= part[:, axis] if up else 1 - part[:, axis]
            moves += weight[:, None] * flat[cell + np.array(corner) @ strides]
        return np.asarray(np.clip(points + moves, 0.0, 1.0))


class ColumnsMap:
    """The map of one column, or of two or three together, from one site's scale to another's, on a table's values."""

    def __init__(self, source: Density | Joint, target: Density | Joint) -> None:
        self.source, self.target = source, target
        if isinstance(source, Joint) and isinstance(target, Joint):
            self._grid: GridMap | None = GridMap(source, target)
        else:
            assert not isinstance(source, Joint)
            assert not isinstance(target, Joint)
            self._grid, self.line = None, Map(source, target)

    @property
    def edges(self) -> tuple[Floats, ...]:
        """Edges of the source's cells, for each of its columns."""
        return self.source.edges if isinstance(self.source, Joint) else (self.source.edges,)

    def __call__(self, values: Floats) -> Floats:
        """(n, d) values on the target's scale; a row that lacks one of several has none of them afterwards."""
        values = np.asarray(values, dtype=np.float64)
        if self._grid is None:
            return self.line(values[:, 0])[:, None]
        assert isinstance(self.source, Joint)
        assert isinstance(self.target, Joint)
        whole = ~np.isnan(values).any(axis=1)
        out = np.full_like(values, np.nan)
        out[whole] = self.target.values(self._grid(self.source.places(values[whole])))
        return out

    def outside(self, values: Floats) -> int:
        """Number of rows with a value outside the source's bounds; they are mapped as if it were there."""
        ends = [(edges[0], edges[-1]) for edges in self.edges]
        beyond = [(values[:, i] < low) | (values[:, i] > high) for i, (low, high) in enumerate(ends)]
        return int(np.any(beyond, axis=0).sum())

    def line_of(self, axis: int, parts: int) -> Floats:
        """(parts, d) values along one column, the others in the middle of the source's density."""
        at = np.linspace(self.edges[axis][0], self.edges[axis][-1], parts)
        if not isinstance(self.source, Joint):
            return at[:, None]
        out = np.empty((parts, len(self.edges)))
        for i, edges in enumerate(self.edges):
            share = self.source.shares.sum(axis=tuple(j for j in range(len(self.edges)) if j != i))
            total = np.concatenate([[0.0], np.cumsum(share)])
            out[:, i] = np.interp(0.5, total / total[-1], edges)
        out[:, axis] = at
        return out


def require_told_apart(source: Density | Joint, target: Density | Joint, columns: Sequence[str], between: str) -> None:
    """Refuse a map between densities of which one lies in so few cells that these hide its scale.

    Args:
        columns: of the map, in their order. between: both sites, in words.
    Raises: EstimateRefusal.
    """
    for axis, name in enumerate(columns):
        (narrow, cells), (wide, _) = sorted([_spanned(source, axis), _spanned(target, axis)])
        if narrow < FEW and (wide > TWICE * narrow or (narrow < LEAST and len(columns) == 1)):
            raise EstimateRefusal(
                f"the middle 80 % of {name} must lie in at least {FEW:g} cells of a density, or alike at both sites: "
                "within a cell a map is a guess",
                given=f"{narrow:.1f} of {cells} cells and {wide:.1f}, between {between}",
                next_step="Most likely the sites have it in different units: convert it where the unit is known, and "
                'release it anew; or plan narrower bounds, or basis = "quantiles", whose cells follow the patients.',
            )


def mixed_scales(maps: Mapping[str, ColumnsMap], column: str, to: str) -> tuple[str, ...]:
    """The note that all rows in one table are of several scales, where a map's slope is `APART` or more.

    Args:
        maps: of each site, of one column; of several together nothing is said. to: the reference.
    """
    slopes = {site: one.line.slope for site, one in maps.items() if not isinstance(one.source, Joint)}
    far = [f"1 at {site} is about {slope:.3g}" for site, slope in slopes.items() if not 1 / APART < slope < APART]
    if not far:
        return ()
    return (
        f"All rows in one table mix scales of {column}: by the spread of the densities {', '.join(far)} at {to}. Read "
        "the harmonised answer, or each site's own.",
    )


def require_another(
    known: Mapping[str, Density | Joint], others: Sequence[str], to: str, columns: Sequence[str]
) -> None:
    """Refuse a reference onto which no other site's map is told apart: its own answer would stand for all.

    Raises: EstimateRefusal, that of the last of them.
    """
    refused = []
    having = [site for site in others if site in known]
    for site in having:
        try:
            require_told_apart(known[site], known[to], columns, f"{site} and {to}")
        except EstimateRefusal as refusal:
            refused.append(refusal)
    if having and len(refused) == len(having):
        raise refused[-1]


def _spanned(density: Density | Joint, axis: int) -> tuple[float, int]:
    """Cells that the middle 80 % spans along a column, and how many its figures tell apart."""
    if isinstance(density, Joint):
        share = density.shares.sum(axis=tuple(j for j in range(density.counts.ndim) if j != axis))
        edges, cells = density.edges[axis], density.counts.shape[axis]
        total = np.concatenate([[0.0], np.cumsum(share)])
        low, high = np.interp([0.1, 0.9], total / total[-1], edges)
    else:
        edges, cells = density.edges, density.cells
        low, high = density.quantile(np.array([0.1, 0.9]))
    return float((high - low) / (edges[-1] - edges[0])) * cells, cells


def _refined(shares: Floats, side: int) -> Floats:
    """Probabilities on a grid of `side` cells along each axis, spread evenly within each cell."""
    for axis, bins in enumerate(shares.shape):
        if bins == side:
            continue
        edges, cells = np.linspace(0, bins, side + 1)[:, None], np.arange(bins)
        part = np.clip(np.minimum(edges[1:], cells + 1) - np.maximum(edges[:-1], cells), 0, None)
        shares = np.moveaxis(np.tensordot(part, shares, axes=(1, axis)), 0, axis)
    return np.asarray(shares / shares.sum())


@dataclass(frozen=True, kw_only=True)
class _Detail:
    """Resolution and schedule of the solver of a map on a grid.

    Args:
        side: cells along a column.
        blur, first: the last one and the first, in squared units of a rescaled column.
        rounds, last: at each blur and at the last one; as many again, up to `_AGAIN` times, while a part of the mass
            of more than `off` (at the last blur) is not yet where the target has it.
    """

    side: int
    blur: float
    first: float
    rounds: int
    last: int
    off: float

    @property
    def centres(self) -> Floats:
        """(side,) of the cells along a column."""
        return (np.arange(self.side) + 0.5) / self.side

    def enough(self, step: float, off: float) -> bool:
        """True if this blur has converged: early ones need only be near."""
        return off <= (self.off if step == self.blur else _EARLY)


_COARSE = {
    2: _Detail(side=32, blur=1e-3, first=0.25, rounds=2, last=10, off=0.02),
    3: _Detail(side=16, blur=2e-3, first=0.25, rounds=2, last=10, off=0.02),
}
_FINE = {d: _Detail(side=64 if d == 2 else 32, blur=5e-4, first=1.0, rounds=4, last=40, off=1e-3) for d in (2, 3)}


def _barycentric(source: Floats, target: Floats, persons: float) -> tuple[Floats, Floats]:
    """(d, ...) the mean place where mass of each cell of the source goes, onto the target and onto itself.

    Source: Sinkhorn's iteration, over-relaxed, with a blur that is halved from the first to the last; one small matrix
    per axis. With plain kernels where they hold; where a mass lies so far off that a kernel is 0 there, on the coarse
    grid after all, and at last by logarithms, which cost ten times as much and always hold.
    """
    d = source.ndim
    ways = [(_FINE[d], _by_kernels)] if persons >= FINE else []
    for detail, way in (*ways, (_COARSE[d], _by_kernels), (_COARSE[d], _by_logarithms)):
        a, b = (_refined(one, detail.side) for one in (source, target))
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            found = way(a, np.stack([b, a]), detail)
        if found is not None:
            break
    assert found is not None  # logarithms always end somewhere
    return found[0], found[1]


def _kernels(detail: _Detail) -> Iterator[tuple[float, Floats, int]]:
    """Each blur in turn, its kernel along an axis, and its rounds."""
    centres = detail.centres
    apart = (centres[:, None] - centres[None, :]) ** 2 / 2
    step = detail.first
    while True:
        kernel = np.exp(-apart / step)
        kernel[kernel < 1e-290] = 0.0  # numbers that are nearly none are slow
        yield step, kernel, detail.last if step == detail.blur else detail.rounds
        if step == detail.blur:
            return
        step = max(detail.blur, step / 2)


def _by_kernels(a: Floats, onto: Floats, detail: _Detail) -> Floats | None:
    """(m, d, ...) mean places onto each of `onto`; None where kernels do not hold, or mass stays off."""
    u, v = np.ones_like(onto), np.ones_like(onto)
    now, off, kernel = detail.first, 0.0, np.ones(())
    for step, kernel, rounds in _kernels(detail):
        if step != now:
            u, v = u ** (now / step), v ** (now / step)
        now = step
        for _ in range(_AGAIN):
            for _ in range(rounds):
                # Half a step beyond the one that Sinkhorn takes, by a root in place of logarithms.
                total = _spread(u * a, kernel)
                before, v = v, 1 / (total * np.sqrt(total * v))
                spread = _spread(v * onto, kernel)
                u = 1 / (spread * np.sqrt(spread * u))
            off = float((np.abs(before * total - 1) * onto).sum()) / len(onto)
            if not math.isfinite(off):
                return None
            if detail.enough(step, off):
                break
    mass = v * onto
    kernels = [[kernel * detail.centres if i == k else kernel for i in range(a.ndim)] for k in range(a.ndim)]
    found = np.stack([u * _spread(mass, *each) for each in kernels], axis=1)
    return found if detail.enough(now, off) and np.isfinite(found).all() else None


def _spread(mass: Floats, *kernels: Floats) -> Floats:
    """(m, ...) sums over all cells of a mass times one kernel per axis, or the same for all."""
    d = mass.ndim - 1
    each = kernels if len(kernels) == d else kernels * d
    out = mass @ each[-1].T
    out = each[-2] @ out
    if d == 3:
        out = (each[0] @ out.reshape(len(mass), mass.shape[1], -1)).reshape(mass.shape)
    return np.asarray(out)


def _smeared(logs: Floats, kernel: Floats) -> Floats:
    """log of the sum over all cells of exp(logs) times a product of one kernel per axis, line by line from its top."""
    for axis in range(logs.ndim):
        top = logs.max(axis=axis, keepdims=True)
        total = np.moveaxis(np.tensordot(kernel, np.exp(logs - top), axes=(1, axis)), 0, axis)
        logs = np.log(np.maximum(total, 1e-300)) + top
    return logs


def _by_logarithms(a: Floats, onto: Floats, detail: _Detail) -> Floats:
    """(m, d, ...) the same by logarithms, for each of `onto` by itself."""
    return np.stack([_one_by_logarithms(a, b, detail) for b in onto])


def _one_by_logarithms(a: Floats, b: Floats, detail: _Detail) -> Floats:
    log_a, log_b = np.log(a), np.log(b)
    f, g = np.zeros_like(a), np.zeros_like(b)
    now, kernel = detail.first, np.ones(())
    for step, kernel, rounds in _kernels(detail):
        f, g, now = f * (now / step), g * (now / step), step
        for _ in range(_AGAIN):
            for _ in range(rounds):
                total = _smeared(f + log_a, kernel)
                before, g = g, (1 - _OVER) * g - _OVER * total
                f = (1 - _OVER) * f - _OVER * _smeared(g + log_b, kernel)
            if detail.enough(step, float((np.abs(np.expm1(np.minimum(before + total, 50.0))) * b).sum())):
                break
    place = [np.reshape(np.log(detail.centres), [-1 if i == k else 1 for i in range(a.ndim)]) for k in range(a.ndim)]
    return np.stack([np.exp(f + _smeared(g + log_b + where, kernel)) for where in place])
