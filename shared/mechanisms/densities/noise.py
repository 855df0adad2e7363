r"""Noisy densities: one-, two- and three-dimensional histograms of numeric columns, with Laplace noise on whole counts.

Every column of a *grid* is rescaled by its public bounds and cut into 2^J equal bins; the cells of the grid are all
combinations, and a record that lacks one of its values falls into one further cell, so that everybody is counted
exactly once. These counts are the coefficients of the density in the Haar basis at level J, in units of a person.

Replacing one person moves one count of each grid down by one and another up by one, or none at all: of c grids, at most
2c counts move, each by 1. That is the exact sensitivity, and not only a bound: the release is charged as 2c values that
move by 1 each, whose pure ε is 2c/b for Laplace noise of scale b. Hence ε of all grids together asks for b = 2c/ε.
Counts are whole numbers and the noise is drawn exactly on whole numbers (`Noise.lattice_laplace_steps`): a rounding of
the continuous mechanism's output, so that nothing of the guarantee rests on floating-point arithmetic.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.mechanisms.row_blocks import row_blocks
from shared.plans.dictionary import NUMERIC, Column

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MOST_CELLS", "MOST_COLUMNS", "Grid", "rounded_laplace_variance"]

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST_CELLS = 1 << 20
MOST_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells of one to three numeric columns.

    Args:
        columns: of the dictionary, numeric.
        level: J; each column has 2^J equal bins, an integer column no more than it has values.
    Raises: ParameterError: another number of columns, one of them not numeric, or more than 2²⁰ cells.

    >>> grid = Grid(columns=(Column(name="dose", kind="continuous", lower=0, upper=4, missing="level"),), level=2)
    >>> grid.shape, grid.size, grid.labels[0], grid.labels[-1]
    ((4,), 5, 'dose 0 to 1', 'missing')
    >>> import pandas as pd
    >>> grid.codes(pd.DataFrame({"dose": [0.0, 1.0, 4.0, 9.0, np.nan]})).tolist()
    [0, 1, 3, 3, 4]
    """

    columns: tuple[Column, ...]
    level: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MOST_COLUMNS:
            raise ParameterError(
                f"a density must be of 1 to {MOST_COLUMNS} columns",
                given=f"{len(self.columns)}",
                next_step="In four dimensions a grid has more cells than a study has persons: split the columns.",
            )
        wrong = [column.name for column in self.columns if column.kind not in NUMERIC]
        if wrong:
            raise ParameterError(
                "a density must be of numeric columns",
                given=", ".join(wrong),
                next_step='Levels have no order to transport along: release their counts by mechanism = "tables".',
            )
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ParameterError("a density must be of different columns", given="the same column twice")
        if isinstance(self.level, bool) or not isinstance(self.level, int) or not 1 <= self.level <= 20:
            raise ParameterError("a level must be in 1..20", given=repr(self.level))
        if self.size > MOST_CELLS:
            raise ParameterError(
                f"a density must have at most {MOST_CELLS} cells", given=f"{self.size}", next_step="Plan a lower level."
            )

    @property
    def name(self) -> str:
        """``chol``, or ``chol × hdl``."""
        return " × ".join(column.name for column in self.columns)

    @property
    def edges(self) -> tuple[Floats, ...]:
        """Of each column, its (bins + 1,) edges; those of an integer column lie halfway between whole numbers."""
        return tuple(_edges(column, 2**self.level) for column in self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Bins of each column."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def missing(self) -> bool:
        """True if there is a cell for records that lack a value."""
        return any(column.missing == "level" for column in self.columns)

    @property
    def size(self) -> int:
        """Number of cells, with that of missing values, which is the last one."""
        return math.prod(self.shape) + self.missing

    @property
    def labels(self) -> tuple[str, ...]:
        """Its cells in words, the last column running fastest."""
        parts = [
            [f"{column.name} {low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges)]
            for column, edges in zip(self.columns, self.edges, strict=True)
        ]
        return tuple(", ".join(one) for one in itertools.product(*parts)) + (("missing",) if self.missing else ())

    def codes(self, records: pd.DataFrame) -> Counts:
        """(n,) cells of checked records (`Dictionary.check`); what lies outside the bounds counts at its bound."""
        absent = np.zeros(len(records), dtype=bool)
        flat = np.zeros(len(records), dtype=np.int64)
        for column, edges in zip(self.columns, self.edges, strict=True):
            value = records[column.name].to_numpy(dtype=np.float64)
            missing = np.isnan(value)
            absent |= missing
            bins = len(edges) - 1
            flat = flat * bins + np.searchsorted(edges[1:-1], np.where(missing, edges[0], value), side="right")
        return np.where(absent, self.size - 1, flat).astype(np.int64)

    def counts(self, records: pd.DataFrame) -> Counts:
        """(size,) true counts: never released."""
        out = np.zeros(self.size, dtype=np.int64)
        for block in row_blocks(records):
            out += np.bincount(self.codes(block), minlength=self.size)
        return out


def rounded_laplace_variance(scale: float) -> float:
    r"""Variance of Laplace noise of scale b rounded to whole numbers: what a released count carries.

    .. math:: 2 \sinh(1/2b) \sum_{k \ge 1} k^2 e^{-k/b} = 2 \sinh(1/2b)\, q (1 + q) / (1 - q)^3, \quad q = e^{-1/b}

    >>> round(rounded_laplace_variance(10.0) / 200, 4)              # 2b², and 1/12 of the rounding
    1.0004
    """
    gap = -math.expm1(-1 / scale)
    q = 1 - gap
    return 2 * math.sinh(0.5 / scale) * q * (1 + q) / gap**3 if scale > 1e-2 else 0.0


def _edges(column: Column, bins: int) -> Floats:
    lower, upper = column.span
    if column.kind == "integer":
        values = round(upper - lower) + 1
        return lower - 0.5 + np.round(np.linspace(0, values, min(bins, values) + 1))
    return np.linspace(lower, upper, bins + 1)
