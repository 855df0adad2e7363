r"""Density estimates from one site's noisy figures: shares of parts of a range, in whichever way they left.

The noise of each figure is known, so the coefficients of a histogram in a cosine basis are shrunk shell by shell (James
and Stein, positive part) as far as noise and sampling explain them, and the result is projected onto the densities
(non-negative, adding up to 1). Each density can draw its own figures again, with fresh noise: what the uncertainty of
all that is made of it comes from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.densities.groups import Cuts, Histogram, Reports, Smooth, bounds
from shared.mechanisms.densities.noise import rounded_laplace_variance
from shared.mechanisms.densities.quantiles import CELLS

if TYPE_CHECKING:
    from fractions import Fraction

    from shared.mechanisms.densities.groups import Group
    from shared.mechanisms.densities.local import LocalCounts
    from shared.mechanisms.densities.quantiles import Quantiles
    from shared.mechanisms.densities.scaling import Coefficients


__all__ = [
    "Density",
    "Joint",
    "LinearAggregates",
    "Noisy",
    "Quantiled",
    "alike_warnings",
    "case_mix_warning",
    "density_of",
    "distance",
    "joint_warning",
    "on_simplex",
]

Floats = NDArray[np.float64]
ALIKE = 1.0
"""Largest case-mix distance of two sites, in standard deviations, without a warning."""
SPREAD = 1.25
"""Largest ratio of two sites' spreads in a column that is measured alike, without a warning."""
_SMOOTH_BINS = {1: 64, 2: 32, 3: 16}
_QUANTILE_PARTS = 1024
_REDRAWN = 12


@dataclass(frozen=True, kw_only=True)
class Density(ABC):
    """One column at one site, as far as its noisy figures tell: shares of parts of its range.

    Args:
        edges: (parts + 1,) increasing.
        persons: number of persons with a value.
    """

    edges: Floats
    persons: float

    @property
    @abstractmethod
    def shares(self) -> Floats:
        """(parts,) probabilities that add up to 1; none of them is 0, so that a map has neither flats nor jumps."""

    @property
    def cells(self) -> int:
        """Number of equal parts of the range that the figures tell apart."""
        return len(self.edges) - 1

    @abstractmethod
    def redraw(self, rng: np.random.Generator) -> Density:
        """Parametric bootstrap: the density from figures redrawn, persons and noise, from this estimate."""

    @cached_property
    def cumulative(self) -> Floats:
        """(parts + 1,) from 0 to 1, strictly increasing."""
        total = np.concatenate([[0.0], np.cumsum(self.shares)])
        total[-1] = 1.0
        return total

    @property
    def mean(self) -> float:
        """Mean of the estimated density."""
        return float(self.shares @ (self.edges[:-1] + self.edges[1:])) / 2

    @property
    def sd(self) -> float:
        """Standard deviation of the estimated density, uniform within each part."""
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        return math.sqrt(float(self.shares @ ((middle - self.mean) ** 2 + np.diff(self.edges) ** 2 / 12)))

    def quantile(self, u: Floats) -> Floats:
        """Values below which shares `u` lie."""
        return np.interp(u, self.cumulative, self.edges)


@dataclass(frozen=True, kw_only=True)
class LinearAggregates:
    """Noisy figures that are linear in the persons, of one to three columns, and what is known of their noise.

    Args:
        counts: noisy counts of persons by cell, those of missing values left out; or sums of smooth functions.
        persons: number with a value: n where none may be missing, else n less the noisy count of those without.
        scale: of the Laplace noise on each; 0 for none.
        releases: number of releases that were added up.
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
class Noisy(LinearAggregates, Density):
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

    @property
    def cells(self) -> int:
        """Its bins, or as many as it has smooth functions."""
        return len(self.counts)

    def redraw(self, rng: np.random.Generator) -> Noisy:
        """Parametric bootstrap: figures redrawn, persons and noise, from the estimate."""
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

    def redraw(self, rng: np.random.Generator) -> Quantiled:
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
        """Index drawn with probability ∝ exp(−rate · short), by the Gumbel-max trick."""
        return int(np.argmax(self.rng.gumbel(size=len(short)) - float(rate) * short))


@dataclass(frozen=True, kw_only=True)
class Joint(LinearAggregates):
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

    def redraw(self, rng: np.random.Generator) -> Joint:
        """Parametric bootstrap: figures redrawn, persons and noise, from the estimate."""
        return replace(self, **self._redrawn(rng))

    def places(self, values: Floats) -> Floats:
        """(n, d) values as places in [0, 1]^d, those outside as the bounds; the bins are equally wide there."""
        parts = [np.interp(values[:, i], edges, np.linspace(0, 1, len(edges))) for i, edges in enumerate(self.edges)]
        return np.stack(parts, axis=1)

    def values(self, places: Floats) -> Floats:
        """The way back."""
        parts = [np.interp(places[:, i], np.linspace(0, 1, len(edges)), edges) for i, edges in enumerate(self.edges)]
        return np.stack(parts, axis=1)


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
    """Distance of two densities: the mean distance of their quantiles, in their common standard deviation."""
    u = (np.arange(400) + 0.5) / 400
    spread = math.sqrt((one.sd**2 + other.sd**2) / 2)
    return float(np.abs(one.quantile(u) - other.quantile(u)).mean()) / spread


def density_of(group: Group, figures: Sequence[tuple[NDArray[np.int64], int]]) -> Density | Joint:
    """Density of one group of columns, from all its releases. Raises: EstimateRefusal: nobody has a value."""
    n = sum(persons for _, persons in figures)
    if isinstance(group, Cuts):
        return Quantiled.of(group, [(one.astype(np.float64), persons) for one, persons in figures])
    source: dict[str, Any] = {"persons": float(n), "releases": len(figures)}
    if isinstance(group, Smooth):
        d = len(group.of)
        sums = np.sum([one for one, _ in figures], axis=0).reshape((2**group.coefficients.basis.level,) * d)
        source |= {"counts": sums, "smooth": group.coefficients, "scale": group.coefficients.scale}
        edges = tuple(np.linspace(*bounds(column), _SMOOTH_BINS[d] + 1) for column in group.of)
    else:
        assert isinstance(group, Histogram | Reports)
        counts = np.sum([group.counts(one, persons) for one, persons in figures], axis=0)
        source["persons"] = float(n - counts[-1]) if group.grid.missing else float(n)
        source["counts"] = counts[: math.prod(group.grid.shape)].reshape(group.grid.shape)
        source |= {"local": group.local} if isinstance(group, Reports) else {"scale": group.scale}
        edges = group.grid.edges
    return Noisy(edges=edges[0], **source) if len(edges) == 1 else Joint(edges=edges, **source)


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


def case_mix_warning(
    densities: Mapping[str, Mapping[str, Density]], column: str, to: str, *, limit: float = ALIKE
) -> tuple[str, ...]:
    """Warning against harmonising `column` to the site `to`, in sentences; empty where nothing is seen.

    Args:
        densities: site to column to density: the column itself, and columns that no laboratory distorts.
        limit: distance (see `distance`) from which patients count as different. A spread that differs by a factor of
            `SPREAD` counts, too.

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


def alike_warnings(
    densities: Mapping[str, Mapping[str, Density]], name: str, to: str, *, limit: float = ALIKE
) -> tuple[str, ...]:
    """The same for a column that is measured alike, whatever is harmonised."""
    out = []
    for site in sorted(densities):
        if site != to:
            out += _apart(densities, site, name, to, limit, alike=True)
    return tuple(out)


def joint_warning(question: Sequence[str], columns: Sequence[str], to: str) -> tuple[str, ...]:
    """Warning that a question's columns are those that were mapped together alone, so that one site answers it."""
    if set(question) != set(columns):
        return ()
    said = " and ".join(columns)
    return (
        f"The question is about nothing but {said}, and a map of them together carries how they go with each other, "
        f"too: the harmonised answer of every site is drawn towards that of {to}, and sites that differ no longer show "
        "it. Map the columns one by one, or ask it with another column beside them.",
    )


def _apart(
    densities: Mapping[str, Mapping[str, Density]], site: str, name: str, to: str, limit: float, *, alike: bool
) -> list[str]:
    if name not in densities[site]:
        return []
    spread = _spread(densities[site][name], densities[to][name], site, name, to) if alike else []
    apart = distance(densities[site][name], densities[to][name])
    if apart <= limit:
        return spread
    why = (
        f"{name} is measured alike, so its patients differ: harmonising takes away a part of what is real"
        if alike
        else "this may be its laboratory or its patients: no column that should not differ was released to tell"
    )
    return [f"{site} and {to} lie {apart:.1f} standard deviations apart in {name}; {why}.", *spread]


def _spread(here: Density, there: Density, site: str, name: str, to: str) -> list[str]:
    """Warning that a column measured alike spreads otherwise at two sites, by more than its noise and persons may."""

    def ratio(one: Density, other: Density) -> float:
        widths = [float(np.diff(each.quantile(np.array([0.1, 0.9])))[0]) for each in (one, other)]
        return math.log(widths[0] / widths[1])

    wider = ratio(here, there)
    if abs(wider) <= math.log(SPREAD):
        return []
    rng = np.random.default_rng(1)  # public: the noise that is drawn here hides nothing
    error = float(np.std([ratio(here.redraw(rng), there.redraw(rng)) for _ in range(_REDRAWN)]))
    if abs(wider) <= 3 * error:
        return []
    factor, more = math.exp(abs(wider)), "more" if wider > 0 else "less"
    covariate, outcome = ("too large", "too small")[:: 1 if wider > 0 else -1]
    return [
        f"{name} is measured alike and spreads {factor:.2f} times {more} at {site} than at {to}, so its patients "
        f"differ in spread: where the mapped column does too, harmonising makes {site}'s coefficient of it {covariate} "
        f"by about this factor, and one of it as the outcome {outcome}. Read {site}'s answer as released beside it."
    ]
