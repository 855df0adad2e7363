r"""Noisy contingency tables: the counts of all one-way tables and of chosen two-way tables, with Gaussian noise.

Every column of the dictionary becomes an *attribute* with finitely many cells, by public rules alone: levels as they
are, numbers in bins between their public bounds, a missing value as a cell of its own, and a follow-up time together
with its event as one attribute (a time without its event says nothing).

Replacing one person moves one count down and another up in each of T tables, so the vector of all counts moves by at
most :math:`\sqrt{2T}` in ℓ₂, and one Gaussian mechanism with that sensitivity releases them all. Counts are whole
numbers and the noise is drawn exactly on whole numbers (`Noise.lattice_gaussian_steps`), so that a released figure is a
whole number again, possibly negative, and nothing of the guarantee rests on floating-point arithmetic.

Cells that no person can be in (a *structural zero*: nobody is male and pregnant) may be declared. They are public
knowledge, declared before a record is read, and such a cell is released as 0 whatever is in it: a record that
contradicts the declaration is counted wherever else it belongs, and nothing that leaves tells of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.mechanisms.row_blocks import row_blocks
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.privacy.accountant import Gaussian

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Attribute", "CountTable", "CountTables", "Zero", "attributes", "bin_edges", "sensitivity"]

Counts = NDArray[np.int64]
Codes = NDArray[np.int64]
MOST_CELLS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One finite variable made of one column, or of a follow-up time and its event.

    Args:
        columns: its columns; with two, the cells are all pairs, the last one running fastest.
        bins: of each column, how many equal bins its bounds are cut into; 0 for a levelled column.
    """

    columns: tuple[Column, ...]
    bins: tuple[int, ...]

    @property
    def name(self) -> str:
        """``sbp``, or ``time and event``."""
        return " and ".join(column.name for column in self.columns)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each of its columns."""
        return tuple(map(_size, self.columns, self.bins))

    @property
    def labels(self) -> tuple[str, ...]:
        """Its cells in words, in order."""
        return tuple(", ".join(parts) for parts in itertools.product(*map(_labels, self.columns, self.bins)))

    def codes(self, records: pd.DataFrame) -> Codes:
        """(n,) cells of checked records (`Dictionary.check`)."""
        out = np.zeros(len(records), dtype=np.int64)
        for column, bins in zip(self.columns, self.bins, strict=True):
            out = out * _size(column, bins) + _codes(column, bins, records[column.name].to_numpy(dtype=np.float64))
        return out

    def within(self, name: str, given: Sequence[object]) -> tuple[int, ...]:
        """Its cells in which column `name` has one of the given levels, or a number between the two given ones.

        A bin counts where all of it lies between them; ``"missing"`` is a level. Raises: ParameterError (no such level,
        not two numbers, no such cell).
        """
        at = [column.name for column in self.columns].index(name)
        column, bins = self.columns[at], self.bins[at]
        wanted = set()
        left = [level for level in given if not (level == "missing" and column.missing == "level")]
        if len(left) < len(given):
            wanted.add(_size(column, bins) - 1)
        if bins and left:
            if len(left) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in left):
                raise ParameterError(f"zeros of {name!r} must be its least and its largest value", given="others")
            low, high = (float(str(end)) for end in left)
            edges = bin_edges(column, bins)
            ends = edges[1:] - (1 if column.kind == "integer" else 0)
            wanted |= {k for k in range(bins) if low <= edges[k] and ends[k] <= high}
        elif not bins:
            unknown = [level for level in left if level not in column.levels]
            if unknown:
                raise ParameterError(f"zeros of {name!r} must be of its levels", given=f"{unknown[0]}"[:60])
            wanted |= {column.levels.index(level) for level in left}
        if not wanted:
            raise ParameterError(f"zeros of {name!r} must hold at least one of its cells", given="none")
        places = np.unravel_index(np.arange(self.size), self.shape)[at]
        return tuple(np.flatnonzero(np.isin(places, list(wanted))).tolist())

    def values(
        self,
        codes: Codes,
        draws: np.random.Generator,
        shares: NDArray[np.float64] | None = None,
        groups: Codes | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """Canonical values of each column for (n,) cells: level codes, numbers in the bin, NaN for missing.

        Args:
            shares: (G, cells) probabilities in each group; within its bin, a number then follows the straight line that
                they suggest. Uniform without them.
            groups: (n,) which of them is each person's.
        """
        places = np.unravel_index(codes, self.shape)
        out: dict[str, NDArray[np.float64]] = {}
        for axis, (column, bins) in enumerate(zip(self.columns, self.bins, strict=True)):
            within = draws.random(len(codes))
            if bins and shares is not None and groups is not None:
                # A histogram along this column, for each group and each cell of the other column.
                lines = np.moveaxis(shares.reshape(-1, *self.shape), axis + 1, -1)[..., :bins]
                line = np.ravel_multi_index((groups, *(p for k, p in enumerate(places) if k != axis)), lines.shape[:-1])
                density = lines.reshape(-1, bins) / np.diff(bin_edges(column, bins))
                within = _within(density, line, np.minimum(places[axis], bins - 1), within)
            out[column.name] = _values(column, bins, places[axis], within)
        return out


def attributes(dictionary: Dictionary, bins: int | Mapping[str, int] = 16) -> tuple[Attribute, ...]:
    """The attributes of a dictionary, in its order; an event stands with its time.

    Args:
        bins: of every numeric column, or by name (others get 16); an integer column has no more bins than values.
    Raises: ParameterError (not in 2..1000).

    >>> columns = (Column(name="years", kind="time", upper=10, event="died"), Column(name="died", kind="event"))
    >>> [a.name for a in attributes(Dictionary(name="mini", version=1, columns=columns), 2)]
    ['years and died']
    """
    columns = {column.name: column for column in dictionary.released}
    joined = {column.event for column in columns.values() if column.kind == "time" and column.event}
    out = []
    for column in columns.values():
        if column.name in joined:
            continue
        group = (column, columns[column.event]) if column.kind == "time" and column.event else (column,)
        counts = tuple(_bins(each, bins if isinstance(bins, int) else bins.get(each.name, 16)) for each in group)
        out.append(Attribute(columns=group, bins=counts))
    return tuple(out)


@dataclass(frozen=True, kw_only=True)
class CountTable:
    """One table: the attributes it crosses, by place, and its size; one of them for a one-way table."""

    of: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Zero:
    """Cells of two attributes that no person can have together: each of `rows` with each of `columns`.

    Args:
        of: places of the attributes, the first one first. rows, columns: cells of the first and of the second.
    """

    of: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def cells(self, attributes: Sequence[Attribute]) -> NDArray[np.bool_]:
        """(k, m) where nobody can be."""
        first, second = (attributes[place].size for place in self.of)
        return np.isin(np.arange(first), self.rows)[:, None] & np.isin(np.arange(second), self.columns)


def sensitivity(tables: int) -> float:
    """√(2T), rounded up: the ℓ₂ distance between the counts of two neighbouring sets of records.

    >>> sensitivity(2)
    2.0
    """
    root = math.sqrt(2 * tables)
    return root if root * root == 2 * tables else math.nextafter(root, math.inf)


@dataclass(frozen=True, kw_only=True)
class CountTables:
    """The counts of all one-way tables, then of the two-way tables of `pairs`, with noise of standard deviation σ.

    Args:
        attributes: see `attributes`.
        pairs: places of the attributes that are crossed; None for every pair.
        sigma: standard deviation of the noise of each count, in persons.
        zeros: declared structural zeros, of crossed pairs or others.
    Raises: ParameterError: an unknown or repeated pair, more than 2²⁰ cells, σ not positive, zeros of unknown cells or
        such that nobody could have some cell of an attribute.

    >>> from shared.base.randomness import seeded_rng
    >>> mini = Dictionary(name="mini", version=1, columns=(Column(name="a", kind="binary"),))
    >>> mechanism = CountTables(attributes=attributes(mini), sigma=2.0)
    >>> [t.shape for t in mechanism.tables], mechanism.event.sensitivity == sensitivity(1)
    ([(2,)], True)
    >>> import pandas as pd
    >>> mechanism.release(pd.DataFrame({"a": [0.0, 1.0, 1.0]}), seeded_rng(3))[0].shape
    (2,)
    """

    attributes: tuple[Attribute, ...]
    sigma: float
    pairs: tuple[tuple[int, int], ...] | None = None
    zeros: tuple[Zero, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ParameterError("sigma must be positive and finite", given=repr(self.sigma))
        known = set(itertools.combinations(range(len(self.attributes)), 2))
        if self.pairs is not None and (not set(self.pairs) <= known or len(set(self.pairs)) < len(self.pairs)):
            raise ParameterError("pairs must be different pairs of attributes, the first one first", given="others")
        if self.cells > MOST_CELLS:
            raise ParameterError(
                f"the tables must have at most {MOST_CELLS} cells", given=f"{self.cells}", next_step="Plan fewer bins."
            )
        sizes = [attribute.size for attribute in self.attributes]
        for zero in self.zeros:
            if zero.of not in known or any(
                not cells or not set(cells) <= set(range(sizes[place]))
                for place, cells in zip(zero.of, (zero.rows, zero.columns), strict=True)
            ):
                raise ParameterError("structural zeros must be of cells of two attributes", given="others")
        for of, cells in self.impossible.items():
            if cells.all(axis=0).any() or cells.all(axis=1).any():
                names = " and ".join(self.attributes[place].name for place in of)
                raise ParameterError("structural zeros must leave every level possible", given=f"one of {names} is not")

    @property
    def impossible(self) -> dict[tuple[int, int], NDArray[np.bool_]]:
        """Places of two attributes to the (k, m) cells that are declared impossible, where any are."""
        out: dict[tuple[int, int], NDArray[np.bool_]] = {}
        for zero in self.zeros:
            here = zero.cells(self.attributes)
            out[zero.of] = out[zero.of] | here if zero.of in out else here
        return out

    @property
    def tables(self) -> tuple[CountTable, ...]:
        """One-way tables in the order of the attributes, then the two-way ones."""
        size = [attribute.size for attribute in self.attributes]
        pairs = itertools.combinations(range(len(size)), 2) if self.pairs is None else iter(self.pairs)
        one = tuple(CountTable(of=(i,), shape=(m,)) for i, m in enumerate(size))
        return one + tuple(CountTable(of=(i, j), shape=(size[i], size[j])) for i, j in pairs)

    @property
    def cells(self) -> int:
        """Number of released figures."""
        return sum(math.prod(table.shape) for table in self.tables)

    @property
    def event(self) -> Gaussian:
        """One Gaussian mechanism on all counts together."""
        return Gaussian(sigma=self.sigma, sensitivity=sensitivity(len(self.tables)))

    def counts(self, records: pd.DataFrame) -> list[Counts]:
        """The true counts of checked records, one array per table: never released."""
        tables = self.tables
        out = [np.zeros(table.shape, dtype=np.int64) for table in tables]
        for block in row_blocks(records):
            codes = [attribute.codes(block) for attribute in self.attributes]
            for count, table in zip(out, tables, strict=True):
                count += _tally([codes[i] for i in table.of], table.shape)
        return out

    def release(self, records: pd.DataFrame, rng: Noise) -> list[Counts]:
        """The noisy counts: whole numbers, one array per table; 0 in cells that are declared impossible."""
        # On a grid of 1, rounded Gaussian noise is post-processing of the continuous mechanism: counts are whole.
        noisy = [count + rng.lattice_gaussian_steps(self.sigma, count.shape, 1.0) for count in self.counts(records)]
        nowhere = self.impossible
        return [
            np.where(nowhere[table.of], 0, count) if table.of in nowhere else count  # type: ignore[index]
            for table, count in zip(self.tables, noisy, strict=True)
        ]


def _tally(codes: Sequence[Codes], shape: tuple[int, ...]) -> Counts:
    flat = np.ravel_multi_index(tuple(codes), shape)
    return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.int64)


def _bins(column: Column, wanted: int) -> int:
    if column.kind not in NUMERIC:
        return 0
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 2 <= wanted <= 1000:
        raise ParameterError("bins must be in 2..1000", given=f"{wanted!r} of {column.name}")
    lower, upper = column.span
    return min(wanted, round(upper - lower) + 1) if column.kind == "integer" else wanted


def _size(column: Column, bins: int) -> int:
    return (bins or len(column.levels)) + (column.missing == "level")


def bin_edges(column: Column, bins: int) -> NDArray[np.float64]:
    """(bins + 1,) the bins' edges; those of an integer column are whole numbers, the last one past the upper bound."""
    lower, upper = column.span
    if column.kind == "integer":
        return lower + np.round(np.linspace(0, upper - lower + 1, bins + 1))
    return np.linspace(lower, upper, bins + 1)


def _labels(column: Column, bins: int) -> list[str]:
    if not bins:
        names = [f"{column.name} = {level}" for level in column.levels]
    elif column.kind == "integer":
        ends = [(low, high - 1) for low, high in itertools.pairwise(bin_edges(column, bins))]
        names = [f"{column.name} {low:g}" + (f" to {high:g}" if high > low else "") for low, high in ends]
    else:
        names = [f"{column.name} {low:.6g} to {high:.6g}" for low, high in itertools.pairwise(bin_edges(column, bins))]
    return names + ([f"{column.name} missing"] if column.missing == "level" else [])


def _codes(column: Column, bins: int, values: NDArray[np.float64]) -> Codes:
    absent = np.isnan(values)
    if bins:
        inner = bin_edges(column, bins)[1:-1]
        code = np.searchsorted(inner, np.where(absent, 0.0, values), side="right")
    else:
        code = np.where(absent, 0.0, values).astype(np.int64)
    return np.where(absent, _size(column, bins) - 1, code).astype(np.int64)


def _values(column: Column, bins: int, codes: Codes, within: NDArray[np.float64]) -> NDArray[np.float64]:
    absent = (codes == _size(column, bins) - 1) & (column.missing == "level")
    if not bins:
        return np.where(absent, np.nan, codes.astype(np.float64))
    edges = bin_edges(column, bins)
    at = np.minimum(codes, bins - 1)
    value = edges[at] + within * (edges[at + 1] - edges[at])
    if column.kind == "integer":
        value = np.minimum(np.floor(value), edges[at + 1] - 1)
    return np.where(absent, np.nan, value)


def _within(
    density: NDArray[np.float64], line: Codes, bins: Codes, uniforms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(n,) places in [0, 1) within a bin, by a density that is straight there and meets its neighbours half-way.

    Args:
        density: (lines, bins) histograms. line, bins: (n,) the histogram and the bin of each number.
    """
    between = (density[:, 1:] + density[:, :-1]) / 2
    first = np.maximum(1.5 * density[:, :1] - 0.5 * density[:, 1:2], 0.0)
    last = np.maximum(1.5 * density[:, -1:] - 0.5 * density[:, -2:-1], 0.0)
    ends = np.concatenate([first, between, last], axis=1) + 1e-12
    left, right = ends[line, bins], ends[line, bins + 1]
    left, right = 2 * left / (left + right), 2 * right / (left + right)
    # The inverse of left·u + (right − left)·u²/2, in the form that does not cancel where the line is flat.
    return np.minimum(2 * uniforms / (left + np.sqrt(left**2 + 2 * (right - left) * uniforms)), 1 - 2.0**-53)
