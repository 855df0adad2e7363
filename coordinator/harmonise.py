r"""What hospitals measure differently, mapped onto one hospital's scale: from noisy densities, and never silently.

Two laboratories report the same quantity on different scales. Where their patients are alike, the increasing map that
carries one laboratory's distribution onto the other's is the conversion between them. Each site releases its noisy
histogram once (`shared.mechanisms.density`); everything here is made of those figures, so it costs nothing more.

*Density.* The noise of each count is known, so the coefficients of the histogram in a cosine basis are shrunk shell by
shell (James and Stein, positive part) as far as noise and sampling explain them, and the result is projected onto the
densities (non-negative, adding up to 1). *Map.* On one axis the map is exact: one cumulative sum, then the other's
quantiles; of two or three columns together it is entropic transport on a grid. *Uncertainty.* On one axis, all of it
is repeated on figures drawn anew from the estimate, with fresh noise.

A map made of two distributions cannot tell a laboratory's scale from its patients. Where the patients really differ it
does harm: it takes the difference away. So the view says what it did beside what would have come out without it, and
warns where columns that no laboratory distorts, such as age, differ between the sites by more than can be ignored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from coordinator import queries
from coordinator.intervals import with_release_variance
from coordinator.pooling import Method, PooledResult, Test, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands import Estimate, estimate
from shared.mechanisms.density import rounded_laplace_variance
from shared.mechanisms.groups import Cuts, Histogram, Reports, Smooth, bounds
from shared.mechanisms.quantiles import CELLS
from shared.prescriptions import Answering
from shared.prescriptions.densities import DensitiesPlan

if TYPE_CHECKING:
    from fractions import Fraction
    from pathlib import Path

    import pandas as pd

    from coordinator.store import Release, Store
    from shared.mechanisms.groups import Group
    from shared.mechanisms.local import LocalCounts
    from shared.mechanisms.quantiles import Quantiles
    from shared.mechanisms.scaling import Coefficients
    from shared.questions import Estimand

__all__ = [
    "ARMS",
    "ColumnsMap",
    "Density",
    "GridMap",
    "Harmonised",
    "Joint",
    "Known",
    "Linear",
    "Map",
    "Noisy",
    "Quantiled",
    "beside",
    "bootstrap",
    "case_mix_warning",
    "densities",
    "density_of",
    "distance",
    "draw",
    "harmonised",
    "named",
    "on_simplex",
    "said_of",
]

Floats = NDArray[np.float64]
ALIKE = 1.0
"""How far apart two sites' patients may lie, in standard deviations, before harmonising them is warned of."""
FINE = 5000
"""Persons from which a map on a grid is solved finely."""
_AGAIN = 5
_EARLY = 0.5
_OVER = 1.5  # each step of Sinkhorn's iteration goes so much further
_SMOOTH_BINS = {1: 64, 2: 32, 3: 16}
_QUANTILE_PARTS = 1024


@dataclass(frozen=True, kw_only=True)
class Density(ABC):
    """One column at one site, as far as its noisy figures tell: shares of parts of its range.

    Args:
        edges: (parts + 1,) increasing.
        persons: how many have a value.
    """

    edges: Floats
    persons: float

    @property
    @abstractmethod
    def shares(self) -> Floats:
        """(parts,) probabilities that add up to 1; none of them is 0, so that a map has neither flats nor jumps."""

    @abstractmethod
    def again(self, rng: np.random.Generator) -> Density:
        """As it might have come out: persons and noise drawn anew from the estimate."""

    @cached_property
    def cumulative(self) -> Floats:
        """(parts + 1,) from 0 to 1, strictly increasing."""
        total = np.concatenate([[0.0], np.cumsum(self.shares)])
        total[-1] = 1.0
        return total

    @property
    def mean(self) -> float:
        """Of the estimated density."""
        return float(self.shares @ (self.edges[:-1] + self.edges[1:])) / 2

    @property
    def sd(self) -> float:
        """Of the estimated density, its parts spread evenly."""
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        return math.sqrt(float(self.shares @ ((middle - self.mean) ** 2 + np.diff(self.edges) ** 2 / 12)))

    def quantile(self, u: Floats) -> Floats:
        """Values below which shares `u` lie."""
        return np.interp(u, self.cumulative, self.edges)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Noisy figures that are linear in the persons, of one to three columns, and what is known of their noise.

    Args:
        counts: noisy counts of persons by cell, those of missing values left out; or sums of smooth functions.
        persons: how many have a value: n where none may be missing, else n less the noisy count of those without.
        scale: of the Laplace noise on each; 0 for none.
        releases: how many releases were added up.
        local: the way of reporting, where every record was noised by itself.
        smooth: the mechanism, where the figures are its sums.
    """

    counts: Floats
    persons: float
    scale: float = 0.0
    releases: int = 1
    local: LocalCounts | None = None
    smooth: Coefficients | None = None

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts, dtype=np.float64)
        if not (1 <= counts.ndim <= 3 and min(counts.shape) >= 2 and np.isfinite(counts).all()):
            raise ParameterError("a histogram must have finite counts in two or more bins", given=f"{counts.shape}")
        if not (self.scale >= 0 and math.isfinite(self.scale)):
            raise ParameterError(
                "the noise of a histogram must have a finite scale of at least 0", given=f"{self.scale}"
            )
        if not (math.isfinite(self.persons) and self.persons >= 1):
            raise EstimateRefusal(
                "a density must have somebody with a value, as far as the noise lets see",
                given=f"{self.persons:g} persons",
                next_step="Ask the site whether it measures the column at all.",
            )
        object.__setattr__(self, "counts", counts)

    @property
    def noise(self) -> float:
        """Variance of the noise of each count."""
        if self.local is not None:
            return self.local.variance(round(self.persons), 1 / self.counts.size)
        return self.releases * rounded_laplace_variance(self.scale) if self.scale else 0.0

    @cached_property
    def shares(self) -> Floats:
        """The estimated probabilities of equal cells: shrunk, on the simplex, and none of them 0.

        Half a person of the uniform law is added, so that a map has neither flat pieces nor jumps.
        """
        if self.smooth is not None:
            return _smooth_shares(self.counts * self.smooth.step, self.persons, self.noise, self.smooth)
        return _shares(self.counts, self.persons, self.noise)

    def _redrawn(self, rng: np.random.Generator) -> dict[str, Any]:
        whole = max(1, round(self.persons))
        flat = rng.multinomial(whole, (self.shares / self.shares.sum()).ravel()).astype(np.float64)
        counts = flat.reshape(self.shares.shape)
        if self.smooth is not None:
            for _ in range(counts.ndim):
                counts = np.tensordot(counts, self.smooth.basis.cells(len(self.shares)), axes=(0, 1))
            counts = counts / self.smooth.step
        if self.local is not None:
            # A sum over so many reports is nearly normal.
            each = [self.local.variance(whole, float(share)) for share in self.shares.ravel()]
            counts = counts + rng.normal(scale=np.sqrt(each)).reshape(counts.shape)
        elif self.scale:
            for _ in range(self.releases):
                counts = counts + np.round(rng.laplace(scale=self.scale, size=counts.shape))
        return {"counts": counts, "persons": float(whole)}


@dataclass(frozen=True, kw_only=True)
class Noisy(Linear, Density):
    """A released histogram of one column, or its smooth density: what is known before anything is made of it.

    Args:
        counts: (bins,) noisy counts, those of missing values left out; or sums of smooth functions.
        edges: (bins + 1,) increasing; of smooth functions 65.
    Raises: ParameterError (shapes, no number), EstimateRefusal (nobody has a value).
    """

    edges: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = np.asarray(self.edges, dtype=np.float64)
        bins = _SMOOTH_BINS[1] if self.smooth is not None else len(self.counts)
        if self.counts.ndim != 1 or edges.shape != (bins + 1,):
            raise ParameterError("a histogram must have two or more bins, and an edge more", given=f"{edges.shape}")
        if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise ParameterError("a histogram must have finite counts and increasing edges", given="others")
        object.__setattr__(self, "edges", edges)

    def again(self, rng: np.random.Generator) -> Noisy:
        """Figures as they might have come out: persons and noise drawn anew from the estimate."""
        return replace(self, **self._redrawn(rng))


@dataclass(frozen=True, kw_only=True)
class Quantiled(Density):
    """Private quantiles of one column, as many of each release as its tree has borders: straight lines between them.

    Args:
        cuts: each release's borders, in whole cells of the range, and its number of persons.
        tree: the mechanism, on [0, 1].
    """

    cuts: tuple[tuple[Floats, int], ...]
    tree: Quantiles

    @classmethod
    def of(cls, group: Cuts, figures: Sequence[tuple[Floats, int]]) -> Quantiled:
        """The density of released borders."""
        lower, upper = bounds(group.of)
        edges = np.linspace(lower, upper, _QUANTILE_PARTS + 1)
        return cls(edges=edges, persons=sum(n for _, n in figures), cuts=tuple(figures), tree=group.tree)

    @cached_property
    def shares(self) -> Floats:
        """Mass of equal parts of the range: each release's lines, weighted by its persons."""
        at, total = np.linspace(0, CELLS, _QUANTILE_PARTS + 1), np.zeros(_QUANTILE_PARTS + 1)
        for borders, n in self.cuts:
            x = np.concatenate([[0.0], np.asarray(borders, dtype=np.float64), [CELLS]])
            # Borders may coincide, at a bound too: half a part between two of them lets lines be drawn.
            x = x + np.arange(len(x)) * 1e-6
            total += n * np.interp(at, x * (CELLS / x[-1]), np.linspace(0, 1, len(x)))
        shares = np.diff(total / total[-1])
        little = min(0.1, max(1e-5, 0.5 / self.persons))
        return np.asarray((1 - little) * shares / shares.sum() + little / len(shares))

    def again(self, rng: np.random.Generator) -> Quantiled:
        """Persons drawn anew from the estimate, and borders chosen among them with the odds of the mechanism."""
        drawn = []
        for _, n in self.cuts:
            values = np.interp(rng.random(n), self.cumulative, np.linspace(0, 1, _QUANTILE_PARTS + 1))
            drawn.append((self.tree.borders(values, _Chance(rng)).astype(np.float64), n))
        return replace(self, cuts=tuple(drawn))


@dataclass(frozen=True)
class _Chance:
    """Choices as a tree of medians makes them, for figures that hide nothing: any generator will do."""

    rng: np.random.Generator

    def likeliest(self, short: NDArray[np.int64], rate: Fraction) -> int:
        """By Gumbel's trick."""
        return int(np.argmax(self.rng.gumbel(size=len(short)) - float(rate) * short))


@dataclass(frozen=True, kw_only=True)
class Joint(Linear):
    """Released figures of two or three columns together.

    Args:
        edges: of each column, increasing; its bins are taken to be equally wide, as nearly all are.
    Raises: as of `Noisy`.
    """

    edges: tuple[Floats, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts.ndim not in (2, 3) or len(self.edges) != self.counts.ndim:
            raise ParameterError(
                "a map on a grid must be of two or three columns on both sides",
                given=f"{self.counts.ndim}",
                next_step="One column has an exact map (Map); four have more cells than a study has persons.",
            )

    def again(self, rng: np.random.Generator) -> Joint:
        """Figures as they might have come out: persons and noise drawn anew from the estimate."""
        return replace(self, **self._redrawn(rng))

    def places(self, values: Floats) -> Floats:
        """(n, d) values as places in [0, 1]^d, those outside as the bounds; the bins are equally wide there."""
        parts = [np.interp(values[:, i], edges, np.linspace(0, 1, len(edges))) for i, edges in enumerate(self.edges)]
        return np.stack(parts, axis=1)

    def values(self, places: Floats) -> Floats:
        """The way back."""
        parts = [np.interp(places[:, i], np.linspace(0, 1, len(edges)), edges) for i, edges in enumerate(self.edges)]
        return np.stack(parts, axis=1)


@dataclass(frozen=True)
class Map:
    """The increasing map that carries one density onto another; a site onto itself stays where it is.

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
        """From the middle 80 % of the source to that of the target: a change of unit, roughly."""
        low, high = self.source.quantile(np.array([0.1, 0.9]))
        to = self.target.quantile(np.array([0.1, 0.9]))
        return float((to[1] - to[0]) / (high - low))

    def outside(self, values: Floats) -> int:
        """How many values lie outside the source's bounds, and are mapped as its bounds are."""
        values = np.asarray(values, dtype=np.float64)
        return int(((values < self.source.edges[0]) | (values > self.source.edges[-1])).sum())


class GridMap:
    """The transport map between two densities of two or three columns together, on a grid of the unit square or cube.

    Entropic transport for the squared distance of rescaled columns, its blur made smaller step by step, read off as the
    mean place to which a place's mass goes, less what the same does from the source to itself: so that a site mapped
    onto itself stays where it is. Below `FINE` persons the noise of the figures is far larger than what a finer grid
    and a smaller blur would tell, and a coarse grid does (`coordinator.harmonise._Detail`): the numbers of persons
    decide it, never the data.

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


def bootstrap(source: Density, target: Density, *, draws: int, rng: np.random.Generator) -> list[Map]:
    """Maps as they might have come out, both densities drawn anew (`Noisy.again`).

    Raises: ParameterError: fewer than two draws.
    """
    if draws < 2:
        raise ParameterError("a bootstrap must have at least two draws", given=f"{draws}")
    return [Map(source.again(rng), target.again(rng)) for _ in range(draws)]


def on_simplex(values: Floats) -> Floats:
    """The nearest point (Euclidean) that is nowhere negative and adds up to 1.

    Source: Held, Wolfe & Crowder (1974). Whatever finite numbers go in, a probability comes out.

    >>> on_simplex(np.array([0.9, 0.4, -0.3])).round(12).tolist(), on_simplex(np.array([-5.0, -5.0])).tolist()
    ([0.75, 0.25, 0.0], [0.5, 0.5])
    """
    down = np.sort(np.ravel(values))[::-1]
    above = (np.cumsum(down) - 1) / np.arange(1, len(down) + 1)
    last = int(np.flatnonzero(down > above)[-1])
    out = np.maximum(values - above[last], 0.0)
    return np.asarray(out / out.sum())


def distance(one: Density, other: Density) -> float:
    """How far apart two densities lie: the mean distance of their quantiles, in their common standard deviation."""
    u = (np.arange(400) + 0.5) / 400
    spread = math.sqrt((one.sd**2 + other.sd**2) / 2)
    return float(np.abs(one.quantile(u) - other.quantile(u)).mean()) / spread


def case_mix_warning(
    densities: Mapping[str, Mapping[str, Density]], column: str, to: str, *, limit: float = ALIKE
) -> tuple[str, ...]:
    """What speaks against harmonising `column` to the site `to`, in sentences; empty where nothing is seen.

    Args:
        densities: site to column to density: the column itself, and columns that no laboratory distorts.
        limit: distance (see `distance`) from which patients count as different.

    Where other columns are given, they judge: they are measured alike everywhere, so that a difference in them is one
    of patients. Where none is, the column itself does, and the sentence says that its scale may be the reason.
    """
    if to not in densities or column not in densities[to]:
        raise ParameterError(f"the reference must have a density of {column}", given=to)
    out = []
    for site, has in sorted(densities.items()):
        if site == to:
            continue
        alike = sorted(name for name in has if name != column and name in densities[to])
        for name in alike or [column]:
            out += _apart(densities, site, name, to, limit, alike=bool(alike))
    return tuple(out)


def _alike_warnings(
    densities: Mapping[str, Mapping[str, Density]], name: str, to: str, *, limit: float
) -> tuple[str, ...]:
    """The same for a column that is measured alike, whatever is harmonised."""
    out = []
    for site in sorted(densities):
        if site != to:
            out += _apart(densities, site, name, to, limit, alike=True)
    return tuple(out)


def _apart(
    densities: Mapping[str, Mapping[str, Density]], site: str, name: str, to: str, limit: float, *, alike: bool
) -> list[str]:
    if name not in densities[site]:
        return []
    apart = distance(densities[site][name], densities[to][name])
    if apart <= limit:
        return []
    why = (
        f"{name} is measured alike, so its patients differ: harmonising takes away a part of what is real"
        if alike
        else "this may be its laboratory or its patients: no column that should not differ was released to tell"
    )
    return [f"{site} and {to} lie {apart:.1f} standard deviations apart in {name}; {why}."]


@dataclass(frozen=True, kw_only=True)
class Harmonised:
    """One question three times, side by side: nothing is harmonised without showing what it changed.

    Args:
        densities: the study that the densities came from.
        columns, to: what was mapped, onto which site's scale.
        answer: the question as it stands, each site by itself, then pooled: every site has an intercept and its own
            scale. Also who asked what of which releases.
        raw: all rows in one table, as if one laboratory had measured them.
        estimates: one per site with its rows mapped first, excluded ones with their reason.
        harmonised: those pooled; the variance of the maps is in its interval.
        map_variance: of the pooled estimate, by the densities' noise and size (bootstrap).
        site_map_variance: the same of each site's estimate.
        maps: site to its map.
        bands: site to column to (4, points): values on its scale, where they go, and between what that lies (95 %);
            of several columns mapped together, the others in their middle.
        outside: site to how many rows were mapped as its bounds are.
        warnings: what speaks against harmonising (`case_mix_warning`).
        notes: what a reader must know of the way it was made.
        used: SHA-256 of the bundles with densities, with their site.
    """

    densities: str
    columns: tuple[str, ...]
    to: str
    answer: queries.Answer
    raw: Estimate
    estimates: tuple[Estimate, ...]
    harmonised: PooledResult
    map_variance: float
    site_map_variance: Mapping[str, float]
    maps: Mapping[str, ColumnsMap]
    bands: Mapping[str, Mapping[str, Floats]]
    outside: Mapping[str, int]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    used: Mapping[str, str]

    @property
    def column(self) -> str:
        """What was mapped, as it was asked for: ``chol``, or ``chol,hdl``."""
        return ",".join(self.columns)

    @property
    def _said(self) -> str:
        return " and ".join(self.columns)

    @property
    def intercepts(self) -> PooledResult:
        """The answer as released, site by site."""
        return self.answer.result

    @property
    def asked(self) -> dict[str, Any]:
        """The question as plain values."""
        return {**self.answer.asked, "harmonised": self.column, "to": self.to, "densities": self.densities}

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer: that of the question as released, and beside it what harmonising makes of it."""
        from coordinator.client import pooled_data
        from shared.terminal import plain

        told = {name: getattr(self, name) for name in ("densities", "column", "to", "raw", "outside", "used")}
        told |= {"warnings": self.warnings, "about": self.notes, "lines": self.lines, "estimates": self.estimates}
        told |= {"map_variance": self.map_variance, "site_map_variance": self.site_map_variance}
        told |= pooled_data(self.harmonised)
        names = ("value", "mapped", "lower", "upper")
        bands = {
            site: {name: dict(zip(names, band, strict=True)) for name, band in by_column.items()}
            for site, by_column in self.bands.items()
        }
        # Of one column the band stands by itself; of several, each under its name.
        told["maps"] = bands if len(self.columns) > 1 else {s: band[self.column] for s, band in bands.items()}
        return {**self.answer.document, "harmonised": plain(told)}

    @property
    def lines(self) -> tuple[str, ...]:
        """The three answers, the warnings and the notes, in words."""
        said = said_of(self.raw, self.intercepts, self.harmonised)
        return (
            f"{self.answer.term} in {self.answer.estimand}, {self._said} mapped onto the scale of {self.to}",
            *(f"{what}: {words}" for what, words in said.items()),
            f"of the last one's standard error {math.sqrt(self.map_variance):.2g} is the maps'",
            *(f"warning: {text}" for text in self.warnings),
            *self.notes,
        )

    def figure(self, path: str | Path, *, title: str = "") -> None:
        """Draw the three answers in one forest plot. Raises: ParameterError: an unknown suffix."""
        draw(
            self.intercepts,
            self.harmonised,
            self.raw,
            title=title or f"{self.answer.study}: {self.answer.term}, {self._said} on the scale of {self.to}",
            question=self.answer.estimand,
            map_variance=self.site_map_variance,
            warnings=self.warnings,
            path=path,
        )


ARMS = ("all rows in one table", "site by site", "harmonised")
"""The three answers, in the order in which they are told."""


def said_of(raw: Estimate, intercepts: PooledResult, mapped: PooledResult) -> dict[str, str]:
    """The three answers on the scale that people read, each with its interval, by the name of its arm."""
    view: Callable[[float], float] = math.exp if mapped.scale == "log" else float
    said = {ARMS[0]: f"none: {raw.reason}"}
    results = {ARMS[1]: intercepts, ARMS[2]: mapped}
    if raw.yi is not None:
        results = {ARMS[0]: pool_estimates([raw], level=mapped.level), **results}
    for what, row in results.items():
        said[what] = f"{view(row.beta):.4g} ({view(row.ci_lb):.4g} to {view(row.ci_ub):.4g})"
    return said


def draw(
    intercepts: PooledResult,
    mapped: PooledResult,
    raw: Estimate,
    *,
    title: str,
    question: str,
    map_variance: Mapping[str, float],
    warnings: tuple[str, ...],
    path: str | Path,
) -> None:
    """One forest plot: every site as released and harmonised, both pooled, and all rows in one table below them.

    Args:
        map_variance: site to the variance that its map adds to its harmonised estimate: a column beside the sites.
        warnings: stand under the figure.
    Raises: ParameterError: an unknown suffix.
    """
    from coordinator import figures

    shown = {site: f"{math.sqrt(value):.2g}" for site, value in map_variance.items()}
    figures.forest(
        intercepts,
        title=title,
        note=f"{question}; the pooled harmonised intervals hold the maps' uncertainty",
        name=ARMS[1],
        compare={ARMS[2]: mapped},
        columns={"Map SE": shown},
        whole={} if raw.yi is None else {ARMS[0]: pool_estimates([raw], level=mapped.level)},
        warnings=warnings,
        path=path,
    )


def beside(study: str) -> str:
    """What the study of densities is called that stands beside a study with rows."""
    return f"{study}-densities"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of one site: densities of single columns by name, of several together by their names in order."""

    single: Mapping[str, Density]
    joint: Mapping[tuple[str, ...], Joint]


def densities(
    store: Store, study: str, held: queries.Holding | None = None
) -> tuple[dict[str, Known], tuple[str, ...]]:
    """Site to densities of the accepted releases of a study of densities, and the columns measured alike.

    Args:
        held: what `queries.holding` gave for it, when it was asked already.
    Raises: EstimateRefusal: the study releases something else.
    """
    held = held or queries.holding(store, study)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    out: dict[str, Known] = {}
    alike: tuple[str, ...] = ()
    for site, releases in held.parts.items():
        plan = store.plan(study, releases[-1].plan_version).plan
        if not isinstance(plan.release, DensitiesPlan):
            raise EstimateRefusal(
                f"study {study} must release densities",
                given=plan.release.title,
                next_step='Plan a study of its own with release.mechanism = "densities" beside the one with rows.',
            )
        alike = tuple(plan.release.alike)
        tables = [queries.rows_of(store, [release], taken) for release in releases]
        persons = [release.receipt.n for release in releases]
        single: dict[str, Density] = {}
        joint: dict[tuple[str, ...], Joint] = {}
        for i, group in enumerate(plan.release.groups(plan)):
            figures = [(plan.release.figures(plan, table)[i], n) for table, n in zip(tables, persons, strict=True)]
            try:
                found = density_of(group, figures)
            except EstimateRefusal:
                continue  # nobody there has a value: as if it were not measured
            if isinstance(found, Joint):
                joint[tuple(column.name for column in group.columns)] = found
            else:
                single[group.columns[0].name] = found
        out[site] = Known(single=single, joint=joint)
    return out, alike


def density_of(group: Group, figures: Sequence[tuple[NDArray[np.int64], int]]) -> Density | Joint:
    """What released figures of one group, of all its releases, say. Raises: EstimateRefusal: nobody has a value."""
    n = sum(persons for _, persons in figures)
    if isinstance(group, Cuts):
        return Quantiled.of(group, [(one.astype(np.float64), persons) for one, persons in figures])
    told: dict[str, Any] = {"persons": float(n), "releases": len(figures)}
    if isinstance(group, Smooth):
        d = len(group.of)
        sums = np.sum([one for one, _ in figures], axis=0).reshape((2**group.coefficients.basis.level,) * d)
        told |= {"counts": sums, "smooth": group.coefficients, "scale": group.coefficients.scale}
        edges = tuple(np.linspace(*bounds(column), _SMOOTH_BINS[d] + 1) for column in group.of)
    else:
        assert isinstance(group, Histogram | Reports)
        counts = np.sum([group.counts(one, persons) for one, persons in figures], axis=0)
        told["persons"] = float(n - counts[-1]) if group.grid.missing else float(n)
        told["counts"] = counts[: math.prod(group.grid.shape)].reshape(group.grid.shape)
        told |= {"local": group.local} if isinstance(group, Reports) else {"scale": group.scale}
        edges = group.grid.edges
    return Noisy(edges=edges[0], **told) if len(edges) == 1 else Joint(edges=edges, **told)


def named(column: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a question to be harmonised: one, or several parted by commas.

    >>> named("chol"), named("chol, hdl"), named(["chol", "hdl"])
    (('chol',), ('chol', 'hdl'), ('chol', 'hdl'))
    """
    parts = column.split(",") if isinstance(column, str) else column
    return tuple(str(part).strip() for part in parts)


def harmonised(
    store: Store,
    study: str,
    column: str | Sequence[str],
    *,
    to: str,
    estimand: str | Estimand,
    term: str = "",
    source: str = "",
    wave: int = 0,
    held: queries.Holding | None = None,
    kept: queries.Kept | None = None,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    draws: int = 20,
) -> Harmonised:
    """Put a question to the released rows as they are, and with `column` mapped onto the scale of the site `to`.

    Args:
        study: with released rows.
        column: one column, or two or three whose density was released together: then they are mapped together.
        source: the study of densities; `beside` the study if it is not given.
        held, kept: as of `queries.ask`.
        draws: of the bootstrap of the maps.
    Raises: EstimateRefusal (no density of the column at the reference, no site with both), ParameterError,
        and what `queries.ask` raises.
    """
    if draws < 2:
        raise ParameterError("the bootstrap of the maps must have at least two draws", given=f"{draws}")
    columns = named(column)
    if not 1 <= len(set(columns)) == len(columns) <= 3 or not all(columns):
        raise ParameterError("one to three different columns must be harmonised together", given=", ".join(columns))
    what = " and ".join(columns)
    source = source or beside(study)
    drawn = queries.holding(store, source)
    known, alike = densities(store, source, drawn)
    here_known = {site: found_ for site, has in known.items() if (found_ := _of(has, columns)) is not None}
    if to not in here_known:
        having = ", ".join(sorted(here_known)) or "none"
        raise EstimateRefusal(
            f"the reference must have released a density of {what}", given=to, next_step=f"Sites that have: {having}."
        )
    held = held or queries.holding(store, study, wave)
    plan = store.plan(study).plan
    question, _ = queries.resolve(plan, estimand, lack=lambda name: queries.lacking(store, study, name))
    if not set(columns) <= set(question.columns):
        raise ParameterError(f"the question must be about the mapped {_columns(columns)}", given=str(question))
    pooling: dict[str, Any] = {"method": method, "test": test, "level": level}
    answer = queries.ask(store, study, held.wave, question, held=held, kept=kept, term=term, **pooling)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    levels = {one.name: one.levels for one in plan.dictionary.released if one.levels}
    rng = np.random.default_rng(1)  # public: the noise that is drawn here hides nothing
    target = here_known[to]
    targets = [target.again(rng) for _ in range(draws)]
    maps: dict[str, ColumnsMap] = {}
    bands: dict[str, dict[str, Floats]] = {}
    outside: dict[str, int] = {}
    tables: dict[str, pd.DataFrame] = {}
    found: list[Estimate] = []
    moved: list[list[Estimate]] = [[] for _ in range(draws)]
    spreads: dict[str, float] = {}
    for site, releases in held.parts.items():
        told: dict[str, Any] = {"study": study, "site": site, "wave": held.wave, "levels": levels}
        told["receipts"] = tuple(release.receipt.hash for release in releases)
        try:
            tables[site] = rows = _rows(store, releases, taken, columns)
            if site not in here_known:
                raise EstimateRefusal(f"{site} must have released a density of {what}", given=f"none in {source}")
            mine = here_known[site]
            here = ColumnsMap(mine, target)
            # The reference is its own scale, whatever the noise.
            again = [here if site == to else ColumnsMap(mine.again(rng), one) for one in targets]
            through = partial(_mapped, columns=columns, through=here)
            how: dict[str, Any] = {"behind": held.behind[site], "combined": held.combined, "stand_in": None}
            mapped = queries.site_answer(store, releases, taken, question, **how, told=told, through=through)
        except Refusal as refusal:
            found.append(_lacks(study, site, held.wave, answer.term, question, str(refusal).rstrip(".")))
            continue
        maps[site], outside[site] = here, here.outside(_values(rows, columns))
        bands[site] = _bands(here, again, columns)
        row_here = next(row for row in mapped if row.term == answer.term)
        found.append(row_here)
        if row_here.yi is None:
            continue
        values: list[float] = []
        for row, other in zip(moved, again, strict=True):
            redone = estimate(_mapped(rows, columns=columns, through=other), question, levels=levels)
            value = next(each.yi for each in redone if each.term == row_here.term)
            values.append(row_here.yi if value is None else value)
            row.append(replace(row_here, yi=values[-1]))
        spreads[site] = 0.0 if site == to else float(np.var(values, ddof=1))
    pools = [pool_estimates(row, **pooling).beta for row in moved if row]
    variance = float(np.var(pools, ddof=1)) if pools else 0.0
    if not {stone.bundle_sha256 for stone in store.withdrawals(source)}.isdisjoint(drawn.used):
        raise queries.moved()
    return Harmonised(
        densities=source,
        columns=columns,
        to=to,
        answer=answer,
        raw=_stacked(held, tables, question, answer.term, study, levels),
        estimates=tuple(found),
        harmonised=replace(pool_estimates(found, **pooling), shared=variance),
        map_variance=variance,
        site_map_variance=spreads,
        maps=maps,
        bands=bands,
        outside=outside,
        warnings=_warned(known, columns, alike, to),
        notes=_notes(columns, to, source, alike, outside),
        used=drawn.used,
    )


def _columns(columns: Sequence[str]) -> str:
    return "column" if len(columns) == 1 else "columns"


def _of(has: Known, columns: tuple[str, ...]) -> Density | Joint | None:
    """The density of these columns, in the order in which they were asked for."""
    if len(columns) == 1:
        return has.single.get(columns[0])
    for names, found in has.joint.items():
        if set(names) == set(columns) and len(names) == len(columns):
            order = [names.index(name) for name in columns]
            edges = tuple(found.edges[i] for i in order)
            return replace(found, counts=np.transpose(found.counts, order), edges=edges)
    return None


def _warned(known: Mapping[str, Known], columns: tuple[str, ...], alike: tuple[str, ...], to: str) -> tuple[str, ...]:
    """The warnings of each column, once; where no column has a density of its own, those measured alike speak."""
    out: dict[str, None] = {}
    for column in columns:
        named_ = (column, *alike)
        judged = {
            site: {name: has.single[name] for name in named_ if name in has.single} for site, has in known.items()
        }
        if column in judged[to]:
            out |= dict.fromkeys(case_mix_warning(judged, column, to))
        else:
            for name in judged[to]:
                out |= dict.fromkeys(_alike_warnings(judged, name, to, limit=ALIKE))
    return tuple(out)


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
        """Of the source's columns."""
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
        """How many rows have a value outside the source's bounds, and are mapped as if it were there."""
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


def _bands(here: ColumnsMap, again: Sequence[ColumnsMap], columns: tuple[str, ...]) -> dict[str, Floats]:
    """Column to (4, points): its values, where they go, and between what that lies (95 %)."""
    out = {}
    for axis, name in enumerate(columns):
        points = here.line_of(axis, 65)
        spread = np.quantile([one(points)[:, axis] for one in again], [0.025, 0.975], axis=0)
        out[name] = np.vstack([points[:, axis], here(points)[:, axis], spread])
    return out


def _rows(store: Store, releases: tuple[Release, ...], taken: set[str], columns: tuple[str, ...]) -> pd.DataFrame:
    plan = store.plan(releases[-1].study, releases[-1].plan_version).plan
    if isinstance(plan.release, Answering):
        raise EstimateRefusal("only released rows can be mapped", given=plan.release.title)
    lacking = [name for name in columns if name not in plan.dictionary.names]
    if lacking:
        raise EstimateRefusal(f"the released rows must have the column {', '.join(lacking)}", given="none")
    return queries.rows_of(store, releases, taken)


def _values(table: pd.DataFrame, columns: tuple[str, ...]) -> Floats:
    return np.stack([table[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in columns], axis=1)


def _mapped(table: pd.DataFrame, *, columns: tuple[str, ...], through: ColumnsMap) -> pd.DataFrame:
    return table.assign(**dict(zip(columns, through(_values(table, columns)).T, strict=True)))


def _lacks(study: str, site: str, wave: int, term: str, question: Estimand, reason: str) -> Estimate:
    return Estimate(
        study=study,
        site=site,
        wave=wave,
        term=term,
        yi=None,
        vi_sampling=None,
        n=0,
        reason=reason,
        scale=question.scale,
    )


def _stacked(
    held: queries.Holding,
    tables: Mapping[str, pd.DataFrame],
    question: Estimand,
    term: str,
    study: str,
    levels: Mapping[str, Any],
) -> Estimate:
    """The answer of all sites' rows in one table, with the variance of the patients behind them."""
    import pandas as pd

    try:
        rows = pd.concat(list(tables.values()), ignore_index=True)
        naive = estimate(rows, question, study=study, site=ARMS[0], wave=held.wave, levels=levels)
        draws = [one for site in tables for one in queries.draws_of(held.parts[site], held.behind[site])]
        known = with_release_variance([row for row in naive if row.term == term], rows, question, draws, levels=levels)
        return known[0]
    except Refusal as refusal:
        return _lacks(study, ARMS[0], held.wave, term, question, str(refusal).rstrip("."))


def _notes(
    columns: tuple[str, ...], to: str, source: str, alike: tuple[str, ...], outside: Mapping[str, int]
) -> tuple[str, ...]:
    judged = f"Patients are compared by {', '.join(alike)}" if alike else "No column was named that is measured alike"
    beyond = ", ".join(f"{count} rows of {site}" for site, count in sorted(outside.items()) if count)
    said, are = " and ".join(columns), "was" if len(columns) == 1 else "were"
    it = "it" if len(columns) == 1 else "them"
    return (
        f"{said} {are} mapped onto the scale of {to} by the noisy densities of {source}: made of releases that are "
        f"charged already. It assumes that the sites' patients are alike in {it}; where they are not, harmonising "
        "harms.",
        f"{judged}.",
        *(["They were mapped together: a row that lacks one of them has lost the others too."] if it == "them" else []),
        *([f"Outside the bounds of the densities, and mapped as the bounds are: {beyond}."] if beyond else []),
    )


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
    """How finely a map on a grid is solved.

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
        """Whether to go on to the next blur: early ones need only be near."""
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


def _shares(counts: Floats, persons: float, noise: float) -> Floats:
    """Noisy counts of any shape to probabilities of that shape: shrunk by shells, projected, none of them 0."""
    even = np.full(counts.shape, 1 / counts.size)
    shares = _shrunk(counts / persons, even, noise / persons**2 + 1 / (counts.size * persons))
    return _some(on_simplex(shares), persons)


def _smooth_shares(sums: Floats, persons: float, noise: float, of: Coefficients) -> Floats:
    """Noisy sums of scaling functions to probabilities of equal cells, in the same way."""
    even, one = np.ones(()), of.basis.polynomial(0)
    for _ in range(of.columns):
        even = np.multiply.outer(even, one)
    found = _shrunk(sums / persons, even, noise * of.step**2 / persons**2 + 1 / persons)
    bins = _SMOOTH_BINS[of.columns]
    for _ in range(of.columns):
        found = np.tensordot(found, of.basis.cells(bins), axes=(0, 0)) / bins
    return _some(on_simplex(found), persons)


def _shrunk(raw: Floats, even: Floats, variance: float) -> Floats:
    """Coefficients drawn towards those of the uniform law, shell by shell of a cosine basis (James and Stein)."""
    # What is known is worth more than what is noised: the density adds up to 1.
    raw = raw + (1 - float((raw * even).sum() / (even**2).sum())) * even
    waves = fft.dctn(raw - even, norm="ortho")
    frequency = sum(np.square(np.indices(raw.shape), dtype=np.float64))
    order = np.argsort(np.ravel(frequency), kind="stable")
    sorted_ = waves.ravel()[order]
    for start, stop in _shells(raw.size):
        size = stop - start
        energy = float((sorted_[start:stop] ** 2).sum())
        reach = (size - 2 if size > 2 else size / 2) * variance
        sorted_[start:stop] *= max(0.0, 1 - reach / energy) if energy > 0 else 0.0
    waves.ravel()[order] = sorted_
    return np.asarray(even + fft.idctn(waves, norm="ortho"))


def _some(shares: Floats, persons: float) -> Floats:
    little = min(0.1, max(1e-5, 0.5 / persons))
    return np.asarray((1 - little) * shares + little / shares.size)


def _shells(bins: int) -> list[tuple[int, int]]:
    """Frequencies 1.. in shells of 1, 2, 3, … : low ones, which carry a smooth density, are judged nearly alone."""
    out, start, size = [], 1, 1
    while start < bins:
        out.append((start, min(start + size, bins)))
        start, size = start + size, size + 1
    return out
