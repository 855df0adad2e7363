"""One group of columns as it leaves a site: whole figures, a line each, in one of four ways.

`Histogram` counts persons with noise on each count; `Reports` counts what every record said of itself under noise of
its own (local privacy); `Smooth` has sums of scaling functions; `Cuts` has borders of a tree of medians. All four say
what their figures are called, what they are charged as, draw them from checked records, and know which figures nobody's
records could have given: the rest of the product asks them nothing else.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.mechanisms.densities import quantiles
from shared.mechanisms.densities.local import LocalCounts
from shared.mechanisms.densities.noise import Grid, rounded_laplace_variance
from shared.mechanisms.densities.quantiles import Quantiles
from shared.mechanisms.densities.scaling import Basis, Coefficients
from shared.mechanisms.row_blocks import row_blocks
from shared.privacy.accountant import Laplace

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.plans.dictionary import Column
    from shared.privacy.accountant import Event

__all__ = ["Counted", "Cuts", "Group", "Histogram", "Reports", "Smooth", "basis_of", "bounds", "rescaled"]

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Group(ABC):
    """Figures of one to three columns together."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """Of the dictionary, numeric."""

    @property
    def name(self) -> str:
        """``chol``, or ``chol × hdl``."""
        return " × ".join(column.name for column in self.columns)

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Label of each figure, in words."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """Privacy event of the figures."""

    @property
    @abstractmethod
    def noise(self) -> str:
        """Of one figure, in half a line."""

    @abstractmethod
    def draw(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """(len(labels),) noisy whole figures of checked records (`Dictionary.check`)."""

    @abstractmethod
    def possible(self, figures: Counts, n: int) -> bool:
        """True if n persons and this noise can have produced them: a probability of at least e^-100."""


@dataclass(frozen=True, kw_only=True)
class Counted(Group):
    """Common part of central and local histograms: cells, and counts that are linear in the figures."""

    grid: Grid

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the dictionary."""
        return self.grid.columns

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each figure."""
        return self.grid.labels

    @abstractmethod
    def counts(self, figures: Counts, n: int) -> Floats:
        """(size,) unbiased counts of persons."""

    @abstractmethod
    def variance(self, weights: Floats, figures: Counts, n: int) -> float:
        """Of the noise of ``weights @ counts``."""


@dataclass(frozen=True, kw_only=True)
class Histogram(Counted):
    """Counts with Laplace noise on each.

    Args:
        scale: of the noise, in persons.
    """

    scale: float

    @property
    def event(self) -> Event:
        """The price: one count moves down by one and another up, or none does."""
        return Laplace(scale=self.scale, sensitivity=1.0, coordinates=2)

    @property
    def noise(self) -> str:
        """In half a line."""
        return f"noise of {math.sqrt(rounded_laplace_variance(self.scale)):.4g} persons"

    def draw(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """The noisy figures."""
        counts = self.grid.counts(records)
        return counts + rng.lattice_laplace_steps(self.scale, counts.shape, 1.0)

    def possible(self, figures: Counts, n: int) -> bool:
        """See `Group.possible`."""
        reach = 120 * self.scale + 1
        far = reach + 40 * self.scale * math.sqrt(len(figures))
        return bool(figures.min() >= -reach and figures.max() <= n + reach and abs(int(figures.sum()) - n) <= far)

    def counts(self, figures: Counts, n: int) -> Floats:
        """See `Counted.counts`."""
        return figures.astype(np.float64)

    def variance(self, weights: Floats, figures: Counts, n: int) -> float:
        """See `Counted.variance`."""
        return float(rounded_laplace_variance(self.scale) * (weights**2).sum())


@dataclass(frozen=True, kw_only=True)
class Reports(Counted):
    """Sums of what each record reported, as if of itself; the hospital's agent draws the reports and adds them.

    Args:
        local: the way of reporting.
    """

    local: LocalCounts

    @property
    def event(self) -> Event:
        """The price."""
        return self.local.event

    @property
    def noise(self) -> str:
        """In half a line."""
        if self.local.how == "Laplace":
            return f"noise of {math.sqrt(self.local.variance(1)):.4g} on every cell of every record"
        return f"{100 * self.local.truth:.3g} % of the records say their own cell, the others any other"

    def draw(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """The noisy figures."""
        return self.local.release(records, rng)

    def possible(self, figures: Counts, n: int) -> bool:
        """See `Group.possible`."""
        if self.local.how == "randomised response":
            return bool(figures.min() >= 0 and figures.max() <= n and int(figures.sum()) == n)
        # Of a sum of m Laplace deviates: below e^-100 by Chernoff's bound, for few of them and for many.
        scale = math.sqrt(self.local.variance(1)) + 1
        reach = scale * (30 * math.sqrt(n) + 200)
        cells = math.sqrt(len(figures))
        return bool(
            figures.min() >= -reach and figures.max() <= n + reach and abs(int(figures.sum()) - n) <= reach * cells
        )

    def counts(self, figures: Counts, n: int) -> Floats:
        """See `Counted.counts`."""
        return self.local.counts(figures, n)

    def variance(self, weights: Floats, figures: Counts, n: int) -> float:
        """See `Counted.variance`."""
        if self.local.how == "Laplace":
            return float(self.local.variance(n) * (weights**2).sum())
        # Given the true cells, responses are independent: of each person the variance of the weight that is reported.
        truth, k = self.local.truth, self.grid.size
        other = (1 - truth) / (k - 1)
        shares = np.maximum(self.counts(figures, n), 0.0)
        mean = (truth - other) * weights + other * weights.sum()
        square = (truth - other) * weights**2 + other * (weights**2).sum()
        each = float(shares @ (square - mean**2)) / max(float(shares.sum()), 1e-9)
        return n * each / (truth - other) ** 2


@dataclass(frozen=True, kw_only=True)
class Smooth(Group):
    """Sums of scaling functions (`shared.mechanisms.densities.scaling`) over the persons, in whole steps.

    Args:
        of: the columns; each is rescaled by its bounds.
    """

    of: tuple[Column, ...]
    coefficients: Coefficients

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the dictionary."""
        return self.of

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each figure."""
        size = 2**self.coefficients.basis.level
        return tuple(", ".join(map(str, one)) for one in itertools.product(range(1, size + 1), repeat=len(self.of)))

    @property
    def event(self) -> Event:
        """The price."""
        return self.coefficients.event

    @property
    def noise(self) -> str:
        """In half a line."""
        spread = math.sqrt(rounded_laplace_variance(self.coefficients.scale)) * self.coefficients.step
        return f"noise of {spread:.4g} on sums of scaling functions"

    def draw(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """The noisy figures."""
        sums = np.zeros((2**self.coefficients.basis.level,) * len(self.of), dtype=np.int64)
        for block in row_blocks(records):
            points = [rescaled(column, block[column.name].to_numpy(dtype=np.float64)) for column in self.of]
            sums += self.coefficients.sums(np.stack(points, axis=1))
        return self.coefficients.noised(sums, rng).ravel()

    def possible(self, figures: Counts, n: int) -> bool:
        """See `Group.possible`."""
        reach = 120 * self.coefficients.scale + 1
        most = n * int(np.abs(self.coefficients.basis.table(self.coefficients.bits)).max()) ** len(self.of)
        return bool(figures.min() >= -most - reach and figures.max() <= most + reach)

    def mean(self, figures: Counts, n: int, column: str) -> tuple[float, float]:
        """Mean of a column and the variance of its noise: linear in the sums, which hold x exactly.

        n is public and nobody lacks a value, so that only deviations from the middle of the bounds carry noise.
        """
        basis, d = self.coefficients.basis, len(self.of)
        axis = next(i for i, one in enumerate(self.of) if one.name == column)
        lower, upper = bounds(self.of[axis])
        weights = np.ones(())
        for i in range(d):
            one = basis.polynomial(0)
            weights = np.multiply.outer(weights, basis.polynomial(1) - one / 2 if i == axis else one)
        to = (upper - lower) * self.coefficients.step / n
        spread = rounded_laplace_variance(self.coefficients.scale) * float((weights**2).sum())
        return (lower + upper) / 2 + to * float(weights.ravel() @ figures), to**2 * spread


@dataclass(frozen=True, kw_only=True)
class Cuts(Group):
    """Private quantiles of one column (`shared.mechanisms.densities.quantiles`): each the border of one of 2¹² cells.

    Args:
        tree: the mechanism, on [0, 1].
    """

    of: Column
    tree: Quantiles

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the dictionary."""
        return (self.of,)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each figure."""
        parts = 2**self.tree.depth
        return tuple(f"{100 * k / parts:.6g} %" for k in range(1, parts))

    @property
    def event(self) -> Event:
        """The price."""
        return self.tree.event

    @property
    def noise(self) -> str:
        """In half a line."""
        return f"{2**self.tree.depth - 1} quantiles, each chosen with odds that fall by e for {self._fall:.3g} persons"

    @property
    def _fall(self) -> float:
        return float(1 / (2 * self.tree.rate))

    def draw(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """The noisy figures."""
        counts = np.zeros(quantiles.CELLS, dtype=np.int64)
        for block in row_blocks(records):
            counts += self.tree.counts(rescaled(self.of, block[self.of.name].to_numpy(dtype=np.float64)))
        return self.tree.cuts(counts, rng)

    def possible(self, figures: Counts, n: int) -> bool:
        """See `Group.possible`."""
        return bool(figures.min() >= 0 and figures.max() <= quantiles.CELLS and (np.diff(figures) >= 0).all())

    def values(self, figures: Counts) -> Floats:
        """The borders in the column's own unit."""
        lower, upper = bounds(self.of)
        return np.asarray(lower + figures * ((upper - lower) / quantiles.CELLS))


def bounds(column: Column) -> tuple[float, float]:
    """Interval that [0, 1] is mapped to: the public bounds, half a unit beyond those of whole numbers."""
    lower, upper = column.span
    half = 0.5 if column.kind == "integer" else 0.0
    return lower - half, upper + half


def rescaled(column: Column, values: Floats) -> Floats:
    """Values as places in [0, 1]; those outside as the bounds. Raises: ParameterError: a value is missing."""
    if np.isnan(values).any():
        raise ParameterError(f"column {column.name!r} must have no missing values here", given="some")
    lower, upper = bounds(column)
    return np.asarray(np.clip((values - lower) / (upper - lower), 0.0, 1.0))


@cache
def basis_of(order: int, level: int) -> Basis:
    """One object per order and level, whose tables are made once. Raises: ParameterError."""
    return Basis(order=order, level=level)
