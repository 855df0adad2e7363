r"""Histograms under local privacy: every record is noised by itself before anything is added up.

Each record's own report is ε-DP, so the sum is as if every record had reported for itself. Here the hospital's agent
draws the reports and adds them up, and is trusted with the records as always; the noise is that of n reports in place
of one. Two ways to report one of k cells:

*Laplace.* One-hot, with Laplace noise of scale 2/ε on all k; a count's noise has variance 8n/ε².
*Randomised response.* The true cell with probability e^ε / (e^ε + k − 1), else any other; a count is put right by the
known probabilities. Its noise is (e^ε + k − 2) n / (e^ε − 1)² and a little more in full cells: less than Laplace's
where e^ε is large beside k. `better` takes the one with less noise, from ε and k alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.mechanisms.densities.noise import Grid, rounded_laplace_variance
from shared.privacy import calibration
from shared.privacy.accountant import Laplace, RandomisedResponse

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LEAST", "MOST", "LocalCounts", "better"]

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
How = Literal["Laplace", "randomised response"]
LEAST, MOST = 1e-4, 40.0
"""ε of one report."""
_ROWS = 4096


def better(epsilon: float, cells: int) -> How:
    """Name of the local randomiser with the smaller variance.

    >>> better(1.0, 64), better(3.0, 64)
    ('Laplace', 'randomised response')
    """
    more = math.expm1(min(epsilon, 350.0))  # beyond, its square is not a double, and nothing is hidden anyway
    response = (more + cells - 1) / more**2
    return "randomised response" if response <= 2 * _one_hot(epsilon).scale ** 2 else "Laplace"


@dataclass(frozen=True, kw_only=True)
class LocalCounts:
    """The counts of one grid, every record noised by itself.

    Args:
        grid: the cells; that of missing values is one of them.
        epsilon: pure ε of each record's report, replacing one record.
        how: the way of reporting; `better` by default, under its own name.
    Raises: ParameterError.
    """

    grid: Grid
    epsilon: float
    how: How = "Laplace"

    def __post_init__(self) -> None:
        # Below, what is taken off a response's truth for rounding would weigh as much as the price itself.
        if not (math.isfinite(self.epsilon) and LEAST <= self.epsilon <= MOST):
            raise ParameterError(f"epsilon of a report must be in [{LEAST:g}, {MOST:g}]", given=repr(self.epsilon))
        if self.how not in ("Laplace", "randomised response"):
            raise ParameterError("a report must be by Laplace noise or randomised response", given=repr(self.how))
        if self.grid.size < 2:
            raise ParameterError("a report must be of two or more cells", given=f"{self.grid.size}")

    @property
    def event(self) -> Laplace | RandomisedResponse:
        """Privacy event of one record's report."""
        if self.how == "Laplace":
            return _one_hot(self.epsilon)
        return RandomisedResponse(epsilon=self.epsilon)

    @property
    def truth(self) -> float:
        """Probability that a response is true: e^ε / (e^ε + k − 1) less 2⁻⁴⁰ of it, which no rounding makes up for."""
        odds = math.exp(self.epsilon)
        return (1 - 2.0**-40) * odds / (odds + self.grid.size - 1)

    def report(self, codes: Counts, rng: Noise) -> Counts:
        """(size,) sums of the reports of (n,) true cells: responses in their cells, or one-hot rows with noise."""
        codes = np.asarray(codes, dtype=np.int64)
        k = self.grid.size
        if self.how == "randomised response":
            other = (codes + 1 + rng.uniform(k - 1, len(codes))) % k
            return np.bincount(np.where(rng.chosen(self.truth, len(codes)), codes, other), minlength=k).astype(np.int64)
        out = np.bincount(codes, minlength=k).astype(np.int64)
        scale = _one_hot(self.epsilon).scale
        for start in range(0, len(codes), _ROWS):
            rows = min(_ROWS, len(codes) - start)
            out += rng.lattice_laplace_steps(scale, (rows, k), 1.0).sum(axis=0)
        return out

    def release(self, records: pd.DataFrame, rng: Noise) -> Counts:
        """`report` of checked records."""
        return self.report(self.grid.codes(records), rng)

    def counts(self, reports: Counts, persons: int) -> Floats:
        """(size,) the counts put right: unbiased, possibly negative, with the noise of `variance`."""
        sums = np.asarray(reports, dtype=np.float64)
        if self.how == "Laplace":
            return sums
        other = (1 - self.truth) / (self.grid.size - 1)
        return np.asarray((sums - persons * other) / (self.truth - other))

    def variance(self, persons: int, share: float = 0.0) -> float:
        """Of a count's noise, where `share` of the records are in its cell."""
        if self.how == "Laplace":
            return persons * rounded_laplace_variance(_one_hot(self.epsilon).scale)
        other = (1 - self.truth) / (self.grid.size - 1)
        each = share * self.truth * (1 - self.truth) + (1 - share) * other * (1 - other)
        return persons * each / (self.truth - other) ** 2


def _one_hot(epsilon: float) -> Laplace:
    """Noise on a one-hot row, of which another record moves two entries by 1."""
    return calibration.calibrate(Laplace, epsilon, 0.0, sensitivity=1.0, coordinates=2)
