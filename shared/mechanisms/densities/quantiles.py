r"""Private quantiles of one column: a tree of medians by the exponential mechanism, exact in its randomness.

The median of all, then those of the two halves, and so on: 2^depth − 1 quantiles (ApproximateQuantiles). A value is
snapped to one of 2¹² cells between public bounds first; a median is a border between cells, drawn with probability
proportional to exp(−ρ |2 · (records below) − (all records of the part)|).

*The charge, replacing one person.* Within a part that only loses or only gains the person, the score moves by 1; within
one that does both, by 2. On every level the person is in one part before and in one after, the same or two: either way
the level costs 4ρ. (Charged as adding or removing a person it would look like half of that.) So ε over `depth` levels
asks for ρ = ε / (4 depth).

Source: Kaplan, Schnapp & Stemmer (2022), Differentially private approximate quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.privacy.accountant import Composition, ExponentialMechanism

__all__ = ["CELLS", "Chooser", "Quantiles"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
CELLS = 1 << 12


class Chooser(Protocol):
    """Source of randomness: a site's `shared.base.randomness.Noise`; for figures drawn anew from released ones, any
    other.
    """

    def likeliest(self, short: Counts, rate: Fraction) -> int:
        """A place k with probability proportional to exp(−rate · short[k])."""


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """2^depth − 1 private quantiles between public bounds.

    Args:
        lower, upper: the bounds; what lies outside counts at its bound.
        depth: levels of the tree, 1 to 8.
        epsilon: pure ε of all of them together, replacing one person.
    Raises: ParameterError.

    >>> from shared.base.randomness import seeded_rng
    >>> made = Quantiles(lower=0.0, upper=1.0, depth=2, epsilon=50.0)
    >>> np.allclose(made.release(np.linspace(0, 1, 1001), seeded_rng(1)), [0.25, 0.5, 0.75], atol=0.05)
    True
    """

    lower: float
    upper: float
    depth: int
    epsilon: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise ParameterError("bounds must be finite and in order", given=f"{self.lower!r}, {self.upper!r}")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or not 1 <= self.depth <= 8:
            raise ParameterError("a tree of medians must have 1 to 8 levels", given=repr(self.depth))
        if not (math.isfinite(self.epsilon) and 1e-4 <= self.epsilon <= 1000):
            raise ParameterError("epsilon must be in [0.0001, 1000]", given=repr(self.epsilon))

    @property
    def rate(self) -> Fraction:
        """ρ, cut to a multiple of 2⁻³⁰: never above it."""
        return Fraction(math.floor(Fraction(self.epsilon) / (4 * self.depth) * 2**30), 2**30)

    @property
    def event(self) -> Composition | ExponentialMechanism:
        """One choice per level: its two halves together move as far as the whole."""
        each = ExponentialMechanism(epsilon=float(4 * self.rate))
        return each if self.depth == 1 else Composition(events=(each,) * self.depth)

    def release(self, values: Floats, rng: Chooser) -> Floats:
        """(2^depth − 1,) borders, in order. Raises: ParameterError: a value that is no number."""
        return np.asarray(self.lower + self.borders(values, rng) * ((self.upper - self.lower) / CELLS))

    def borders(self, values: Floats, rng: Chooser) -> Counts:
        """The same as whole cells from the lower bound: 0 to 2¹²."""
        return self.cuts(self.counts(values), rng)

    def counts(self, values: Floats) -> Counts:
        """(2¹²,) true counts of the cells: never released. Raises: as of `release`."""
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 1 or np.isnan(values).any():
            raise ParameterError("quantiles must be of numbers in one column", given=f"{values.shape}")
        cells = np.floor((values - self.lower) / (self.upper - self.lower) * CELLS)
        codes = np.clip(cells, 0, CELLS - 1).astype(np.int64)
        return np.bincount(codes, minlength=CELLS).astype(np.int64)

    def cuts(self, counts: Counts, rng: Chooser) -> Counts:
        """`borders` of values that were counted."""
        return np.array(self._split(counts, 0, CELLS, self.depth, rng), dtype=np.int64)

    def _split(self, histogram: Counts, low: int, high: int, levels: int, rng: Chooser) -> list[int]:
        if not levels:
            return []
        if high - low < 2:  # no border left between: told by what was drawn before
            cut = low
        else:
            part = histogram[low:high]
            score = np.abs(2 * np.cumsum(part)[:-1] - part.sum())
            cut = low + 1 + rng.likeliest(score - score.min(), self.rate)
        left = self._split(histogram, low, cut, levels - 1, rng)
        return [*left, cut, *self._split(histogram, cut, high, levels - 1, rng)]
