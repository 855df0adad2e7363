r"""Latent noise injection: each record becomes a blend of itself and fresh noise, in a flow's latent space.

The guarantee is that of a Gaussian mechanism, and four decisions make it a fact instead of an assumption.
Latents are clipped to a ball, so the sensitivity does not rest on how a trained flow behaves far out. The
blend is done on a grid, where the noise is sampled exactly. Signals are rounded *towards zero*, which never
lengthens a vector, so rounding adds nothing to the sensitivity. And the flow runs after the noise, so its
rounding errors are post-processing.

What is *not* covered: flow, w and radius are taken as given. If they were fitted on the released records,
the receipt has to say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shared.errors import ParameterError
from shared.flows import Bijection
from shared.privacy import Gaussian
from shared.randomness import Noise, grid_for

__all__ = ["LatentNoise", "default_radius"]

Array = NDArray[np.float64]


def default_radius(d: int) -> float:
    """The radius that holds 99 % of a standard normal latent: the root of the χ²_d quantile.

    >>> round(default_radius(2), 3)
    3.035
    """
    if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
        raise ParameterError("d must be a whole number of at least 1", given=repr(d))
    return float(np.sqrt(stats.chi2.ppf(0.99, d)))


@dataclass(frozen=True, kw_only=True)
class LatentNoise:
    r"""Blend each clipped latent with fresh Gaussian noise: (n, d) records in, (n, d) records out.

    .. math:: \tilde x_i = f( \sqrt{w} clip_R(f^{-1}(x_i)) + \sqrt{1-w} Z_i ), \quad Z_i \sim N(0, I_d)

    Args:
        flow: bijection x = f(z) between encoded records and latents, both (n, d) and dimensionless.
        w: weight of the data, in [0, 1); 0 is plain sampling from the flow.
        radius: R > 0. Latents are clipped to norm R, so two records differ by at most C = 2R.
    Raises: ParameterError, at construction: w outside [0, 1), or radius not positive and finite.
    Source: latent-noise-injection, eq. 12 and Theorem 2. The clipping is ours: it makes C a fact.

    Row i of the release comes from row i of the data and from fresh noise alone, so long as the flow treats
    rows one by one; the noise depends on the shape of x and on rng alone. The finest detail of a latent,
    below 1/1024 of the noise, is dropped.

    >>> from shared.flows import Identity
    >>> from shared.randomness import seeded_rng
    >>> mechanism = LatentNoise(flow=Identity(d=2), w=0.5, radius=2.0)
    >>> mechanism.release(np.zeros((3, 2)), seeded_rng(7)).shape
    (3, 2)
    >>> round(mechanism.event.sensitivity / mechanism.event.sigma, 12)        # C √(w / (1 − w))
    4.0
    """

    flow: Bijection
    w: float
    radius: float

    def __post_init__(self) -> None:
        for name in ("w", "radius"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise ParameterError(f"{name} must be a number", given=type(value).__name__)
            object.__setattr__(self, name, float(value))
        if not 0 <= self.w < 1:
            raise ParameterError(
                "w must be in [0, 1)", given=repr(self.w), next_step="Lower w, or solve it from a target ε."
            )
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ParameterError(
                "radius must be positive and finite",
                given=repr(self.radius),
                next_step="Use default_radius(d).",
            )
        # Beyond this the squared norm in grid steps could overflow, and nothing would be hidden anyway.
        if self._reach > 2.0**16 * self._sigma:
            raise ParameterError(
                "the noise must be visible beside the clipped latents",
                given=f"R √(w / (1 − w)) = {self._reach / self._sigma:.3g}",
                next_step="Lower w or the radius.",
            )

    @property
    def _sigma(self) -> float:
        return math.sqrt(1 - self.w)

    @property
    def _reach(self) -> float:
        """L = R √w, the largest norm a signal may have; the double itself is the bound that is enforced."""
        return self.radius * math.sqrt(self.w)

    @property
    def event(self) -> Gaussian:
        """Noise √(1 − w) on a signal of sensitivity 2R√w: known before anything runs."""
        return Gaussian(sigma=self._sigma, sensitivity=2 * self._reach)

    def release(self, x: Array, rng: Noise) -> Array:
        """Privatise encoded records: (n, d) to (n, d), a new array.

        A latent that holds NaN (a record the flow cannot place) becomes the centre, 0. A latent with ±∞
        becomes the point of the clipping ball in that direction. Both rules look at the one row alone.

        Raises: ParameterError, if x is not (n, d).
        """
        grid = grid_for(self._sigma)
        steps = self._signal_steps(self._latents(x), grid)
        steps += rng.lattice_gaussian_steps(self._sigma, steps.shape, grid)
        return np.asarray(self.flow.forward(np.multiply(steps, grid, dtype=np.float64)), dtype=np.float64)

    def clipped_count(self, x: Array) -> int:
        """How many records lie outside the ball (or nowhere): a fact about the data, kept at the site."""
        z = self._latents(x)
        return int(np.count_nonzero(~(_norms(z) <= self.radius)))

    def _latents(self, x: Array) -> Array:
        x = np.array(x, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.flow.d:
            raise ParameterError(f"records must be a matrix with {self.flow.d} columns", given=f"shape {x.shape}")
        # A warning about one record's overflow would be a data-dependent event outside the release.
        with np.errstate(all="ignore"):
            return np.array(self.flow.inverse(x), dtype=np.float64)

    def _signal_steps(self, z: Array, grid: float) -> NDArray[np.int64]:
        """√w clip_R(z) in grid steps, truncated towards zero; its norm is at most L / grid, exactly."""
        z[np.isnan(z).any(axis=1)] = 0.0
        with np.errstate(all="ignore"):
            largest = np.abs(z).max(axis=1, keepdims=True, initial=0.0)
            infinite = np.isinf(largest)
            # Dividing by the largest entry first: squares of large latents would overflow.
            unit = np.where(infinite, np.isinf(z) * np.sign(z), z / np.where(largest > 0, largest, 1.0))
            unit_norm = np.sqrt((unit**2).sum(axis=1, keepdims=True))
            norm = largest * unit_norm
            length = np.minimum(norm, self.radius)
            signal = unit * (length / np.where(unit_norm > 0, unit_norm, 1.0)) * math.sqrt(self.w)
        steps = np.trunc(signal / grid).astype(np.int64)
        # The doubles above may overshoot the ball by their rounding error. The bound is enforced where it
        # can be checked exactly; a row outside it (by a step or two at most) gives up its longest coordinate
        # step by step.
        most = math.floor((Fraction(self._reach) / Fraction(grid)) ** 2)
        rows = np.flatnonzero((steps**2).sum(axis=1) > most)
        while rows.size:
            longest = np.abs(steps[rows]).argmax(axis=1)
            steps[rows, longest] -= np.sign(steps[rows, longest])
            rows = rows[(steps[rows] ** 2).sum(axis=1) > most]
        return steps


def _norms(z: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.sqrt((z**2).sum(axis=1))
