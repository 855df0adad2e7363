r"""The slicing mechanism: every row seen through random directions, with noise on each sum.

A row *x* of the dictionary is a vector of norm at most 1 (`RowCode`). The release is :math:`(U, X U + V)` with
:math:`U \in R^{d \times m'}, U_{ij} \sim N(0, 1/d)` and :math:`V_{ij} \sim N(0, \sigma^2)`. The directions U depend on
no record and are released; the noise is on each row by itself, so that nobody downstream ever holds a clean one.

What it costs. Given U, replacing a row by another moves its line by :math:`\|(x - x')U\|` and nothing else: a Gaussian
mechanism whose sensitivity is random, :math:`D^2 \chi^2_{m'} / d` at rows that are D apart. `privacy.Slicing`
integrates over that law, so U must have it. Two things are not as in the formula, and both are in the price:

* *Arithmetic.* Rows are whole multiples of `ROW_STEP`, directions of the step `SlicingMechanism.direction_step`, and V
  is drawn on their product's grid by the exact sampler: XU + V is a sum of whole numbers below 2⁵³, without any
  rounding. What leaves is that sum rounded to a coarser grid (`SlicingMechanism.grid`), which is post-processing.
* *U is rounded.* Each entry is exactly a normal deviate rounded to a step *u*, at most u/2 away from it, so that a line
  moves by at most :math:`r + c`, where r is of the unrounded law and :math:`c = \|x - x'\|_1 \sqrt{m'} u / 2 \le
  D \sqrt{d m'}\, u / 2`. As :math:`(r + c)^2 \le (1 + \eta) r^2 + (1 + 1/\eta) c^2` for every η, the release costs at
  most what slicing at distance :math:`D \sqrt{1 + \eta}` together with one Gaussian mechanism of sensitivity
  :math:`c \sqrt{1 + 1/\eta}` costs. That composition is the event; it asks for noise larger by less than a thousandth.

D is the largest distance between two rows that the dictionary allows (`RowCode.distance`): neighbours are replace-one
with n public, because as many lines leave as there are rows. The source paper takes D = 1, rows replaced by nothing;
(`tests/benchmarks/paper/bounds.py` has its bound, for its tables). There is no subsampling: n lines show how many rows
were taken, so that it would amplify nothing.

Source: Greenewald, Yu, Wang & Xu (2024), Privacy without noisy gradients: slicing mechanism for generative model
training; the integral replaces its Theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from shared.privacy.accountant import Composition
from shared.privacy.grids import grid_for

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["ROW_STEP", "Block", "RowCode", "SlicingMechanism", "event", "noise_for"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROW_STEP = 2.0**-12
"""Rows are whole multiples of it: a number keeps about a thousand different values between its bounds."""
_FINEST, _COARSEST = 2.0**-20, 2.0**-12
_CHUNK = 1 << 20
"""Values drawn at a time."""


# -- rows --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Block:
    """The entries of one column in a coded row: `size` of them from place `at`.

    A levelled column has one entry per level, missing among them, of which one is on. A numeric column has its value
    between its public bounds, from -1 to 1, and a second entry that is on where it is missing, the value then 0.
    """

    column: Column
    at: int
    size: int

    @property
    def numeric(self) -> bool:
        """True if its first entry is a number."""
        return self.column.kind in NUMERIC

    @property
    def place(self) -> slice:
        """Its entries."""
        return slice(self.at, self.at + self.size)


@dataclass(frozen=True, kw_only=True)
class RowCode:
    """Records of a dictionary as rows of norm at most 1, by public bounds alone. A time stands beside its event.

    Every column has the same weight, so that a level that is on is `unit`, and a number lies within ±`unit`.

    >>> columns = (Column(name="a", kind="binary"), Column(name="x", kind="continuous", lower=0, upper=10))
    >>> code = RowCode(dictionary=Dictionary(name="mini", version=1, columns=columns))
    >>> code.d, round(code.unit, 2)
    (3, 0.71)
    >>> (code.encode(pd.DataFrame({"a": [0.0, 1.0], "x": [10.0, 5.0]})) * ROW_STEP / code.unit).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """

    dictionary: Dictionary

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One per released column, in order."""
        out, at = [], 0
        for column in self.dictionary.released:
            size = (1 if column.kind in NUMERIC else len(column.levels)) + (column.missing == "level")
            out.append(Block(column=column, at=at, size=size))
            at += size
        return tuple(out)

    @property
    def d(self) -> int:
        """Entries of a row."""
        return sum(block.size for block in self.blocks)

    @property
    def unit(self) -> float:
        """1/√columns, down to a multiple of `ROW_STEP`. Raises: ParameterError, beyond 65,536 columns."""
        steps = math.isqrt(int(ROW_STEP**-2) // len(self.dictionary.released))
        if steps < 16:
            raise ParameterError(
                "a row must have at most 65536 columns to be sliced", given=f"{len(self.dictionary.released)}"
            )
        return steps * ROW_STEP

    @property
    def distance(self) -> float:
        """The diameter: √2 units in a levelled column, 2 in a numeric one, put together in ℓ₂ and rounded up."""
        numeric = sum(block.numeric for block in self.blocks)
        squared = (2 * (len(self.blocks) - numeric) + 4 * numeric) * self.unit**2  # exact: a whole number of 2⁻²⁴
        root = math.sqrt(squared)
        return root if root * root == squared else math.nextafter(root, math.inf)

    def encode(self, records: pd.DataFrame) -> Integers:
        """(n, d) whole numbers of `ROW_STEP` of checked records (`Dictionary.check`).

        A value past its bounds is taken at the bound, one that is no level is refused: the diameter holds whatever
        comes in. Raises: ParameterError.
        """
        steps = round(self.unit / ROW_STEP)
        out = np.zeros((len(records), self.d), dtype=np.int64)
        for block in self.blocks:
            value = records[block.column.name].to_numpy(dtype=np.float64)
            absent = np.isnan(value)
            if absent.any() and block.column.missing != "level":
                raise ParameterError(
                    f"column {block.column.name!r} must have no missing value", given=f"{int(absent.sum())} missing"
                )
            if block.numeric:
                lower, upper = block.column.span
                share = np.clip((np.where(absent, lower, value) - lower) / (upper - lower), 0.0, 1.0)
                out[:, block.at] = np.where(absent, 0, np.rint((2 * share - 1) * steps)).astype(np.int64)
                if block.column.missing == "level":
                    out[:, block.at + 1] = absent * steps
                continue
            level = np.where(absent, block.size - 1, value)
            known = np.isin(level, np.arange(block.size))
            if not known.all():
                raise ParameterError(
                    f"column {block.column.name!r} must hold level codes", given=f"{int((~known).sum())} others"
                )
            out[np.arange(len(records)), block.at + level.astype(np.int64)] = steps
        return out


# -- the mechanism -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SlicingMechanism:
    """Rows of norm at most 1 through random directions, with noise of standard deviation `sigma` on every sum.

    Args:
        d: entries of a row.
        slices: m', how many directions.
        distance: largest distance between two rows. 2, the default, holds whatever comes in; a smaller one is the
            claim of a `RowCode`, and rows that are none of a code (off its grid, or longer than 1) are then refused.
    Raises: ParameterError.

    >>> from shared.base.randomness import seeded_rng
    >>> mechanism = SlicingMechanism(d=3, slices=24, sigma=4.0)
    >>> directions, lines = mechanism.release(np.eye(3), seeded_rng(1))
    >>> directions.shape, lines.shape
    ((3, 24), (3, 24))
    """

    d: int
    slices: int
    sigma: float
    distance: float = 2.0

    def __post_init__(self) -> None:
        for name, value in (("d", self.d), ("slices", self.slices)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 16:
                raise ParameterError(f"{name} must be a whole number in 1..65536", given=repr(value))
        if self.slices < self.d:
            raise ParameterError(
                "there must be at least as many slices as entries of a row, or moments cannot be read from them",
                given=f"{self.slices} for {self.d}",
                next_step=f"Plan {8 * self.d} slices, eight for each entry.",
            )
        if not 0 < self.distance <= 2:
            raise ParameterError("distance must be in (0, 2]: rows have norm at most 1", given=repr(self.distance))
        if not (math.isfinite(self.sigma) and 2.0**-10 <= self.sigma <= 2.0**14):
            raise ParameterError("sigma must be in [2^-10, 2^14]", given=repr(self.sigma))

    @property
    def direction_step(self) -> float:
        """u: entries of U are whole multiples of it, and the noise's own step is u · `ROW_STEP`."""
        return _direction_step(self.sigma)

    @property
    def grid(self) -> float:
        """Released sums are whole multiples of it."""
        return max(grid_for(self.sigma), self.direction_step * ROW_STEP)

    @property
    def event(self) -> Composition:
        """Privacy event of a release: slicing, and one Gaussian mechanism for the rounding of U."""
        return event(d=self.d, slices=self.slices, sigma=self.sigma, distance=self.distance)

    def clip(self, rows: Floats) -> tuple[Integers, int]:
        """((n, d) multiples of `ROW_STEP`, how many rows were longer than 1): never released.

        Longer rows are scaled to length 1; then every entry is rounded towards zero, which makes none longer.
        Raises: ParameterError (a shape, an entry that is not finite).
        """
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d or not np.isfinite(rows).all():
            raise ParameterError(f"rows must be finite and have {self.d} entries", given=f"shape {rows.shape}")
        most = np.abs(rows).max(axis=1, initial=0.0)
        scaled = rows / np.where(most > 2, most, 1.0)[:, None]  # so that no square overflows
        length = np.where(most > 2, most, 1.0) * np.sqrt((scaled**2).sum(axis=1))
        over = length > 1
        rows = np.where(over[:, None], rows / np.where(over, length, 1.0)[:, None], rows)
        steps = np.trunc(rows / ROW_STEP).astype(np.int64)
        # The squares add up to a whole number of steps: a length that is 1 but for the last digits of a division
        # cannot reach the next one above.
        return steps, int(over.sum())

    def directions(self, rng: Noise) -> Integers:
        """(d, slices) of U in whole numbers of `direction_step`: one group of them serves all rows of a release."""
        # A standard deviation that is rounded down: a shorter direction costs less.
        shortened = math.nextafter(1 / math.sqrt(self.d), 0.0)
        return rng.lattice_gaussian_steps(shortened, (self.d, self.slices), self.direction_step)

    @property
    def block(self) -> int:
        """Rows to give `lines` at a time: of any more each number on the way would take another megabyte."""
        return max(1, _CHUNK // self.slices)

    def lines(self, rows: Floats | Integers, directions: Integers, rng: Noise) -> Floats:
        """(n, slices) of XU + V on the release's grid.

        Args:
            rows: as of `release`.
            directions: of the release, as `directions` drew them.
            rng: draws V.
        Raises: ParameterError, as `release`.
        """
        given = np.asarray(rows)
        exact = np.issubdtype(given.dtype, np.integer)
        steps, _ = self.clip(given.astype(np.float64) * (ROW_STEP if exact else 1.0))
        if self.distance < 2 and not (exact and np.array_equal(steps, given)):
            raise ParameterError(
                "rows must be of a code, of length at most 1, where the distance is its diameter",
                given="rows that clipping would change",
            )
        fine, grid = self.direction_step * ROW_STEP, self.grid
        # Whole numbers whose sums stay below 2^53: the product of floats is exact, in whatever order it is added.
        signal = (steps.astype(np.float64) @ directions.astype(np.float64)).astype(np.int64)
        noisy = signal + rng.lattice_gaussian_steps(self.sigma, signal.shape, fine)
        coarse = round(grid / fine)
        return np.multiply((noisy + coarse // 2) // coarse, grid, dtype=np.float64)

    def release(self, rows: Floats | Integers, rng: Noise) -> tuple[Floats, Floats]:
        """(U, XU + V): (d, slices) directions and (n, slices) noisy sums.

        Args:
            rows: (n, d) floats, or whole numbers of `ROW_STEP` as a `RowCode` gives them.
            rng: draws directions and noise, both by the exact sampler.
        Raises: ParameterError: rows of the wrong shape; with a distance below 2, rows that are none of a code.
        """
        given: NDArray[Any] = np.asarray(rows)
        directions = self.directions(rng)
        out = np.empty((len(given), self.slices))
        for at in range(0, len(given), self.block):
            out[at : at + self.block] = self.lines(given[at : at + self.block], directions, rng)
        return np.multiply(directions, self.direction_step, dtype=np.float64), out


def _direction_step(sigma: float) -> float:
    """2⁻²⁰, or as coarse as the sampler's finest grid asks for when there is much noise."""
    return min(max(_FINEST, 2.0 ** math.ceil(math.log2(sigma)) * 2.0**-27), _COARSEST)


def event(*, d: int, slices: int, sigma: float, distance: float) -> Composition:
    """The event of a release: see the module's text for where its second part comes from."""
    # c relative to a typical r = D √(m'/d) is d u / 2: that η makes the whole as cheap as it can be.
    eta = d * _direction_step(sigma) / 2
    reach = distance * math.sqrt(d * slices) * _direction_step(sigma) / 2
    return Composition(
        events=(
            privacy.Slicing(slices=slices, d=d, sigma=sigma, distance=_up(distance * math.sqrt(1 + eta))),
            privacy.Gaussian(sigma=sigma, sensitivity=_up(reach * math.sqrt(1 + 1 / eta))),
        )
    )


def _up(value: float) -> float:
    """Past what a few roundings of doubles can have taken away."""
    return value * (1 + 2.0**-48)


@lru_cache(maxsize=64)
def noise_for(epsilon: float, delta: float, *, d: int, slices: int, distance: float) -> float:
    """The sigma at which a release costs at most `epsilon` at `delta`, six digits, rounded up.

    Args:
        epsilon, delta: the price that is not exceeded.
        d: columns of a record.
        slices: directions that are drawn.
        distance: in ℓ₂, by which two records may be apart.
    Raises: ParameterError (no such noise within what can be drawn).

    >>> sigma = noise_for(5.1, 1e-5, d=50, slices=400, distance=1.0)
    >>> cost = privacy.epsilon(event(d=50, slices=400, sigma=sigma, distance=1.0), 1e-5)
    >>> round(sigma, 2), 5.09 < cost <= 5.1
    (2.51, True)
    """
    stretched = distance
    for _ in range(40):
        found = calibration.calibrate(privacy.Slicing, epsilon, delta, d=d, slices=slices, distance=stretched).sigma
        digits = 5 - math.floor(math.log10(found))
        sigma = math.ceil(found * 10.0**digits) / 10.0**digits
        if not 2.0**-10 <= sigma <= 2.0**14:
            break
        if privacy.epsilon(event(d=d, slices=slices, sigma=sigma, distance=distance), delta) <= epsilon:
            return sigma
        # U's rounding is not in what was solved: ask for as much more distance as it is worth, or a little more.
        stretched *= 1 + max(d * _direction_step(sigma) / 2, 1e-6)
    raise ParameterError(
        "the noise of a price must be within what can be drawn", given=f"epsilon {epsilon!r} at delta {delta!r}"
    )
