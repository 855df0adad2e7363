"""The other way round: the noise that an ε at a δ allows, and what the paper's theorem would say of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shared.errors import ParameterError, UnknownEvent
from shared.privacy.accountant import epsilon
from shared.privacy.events import (
    REGISTRY,
    Composition,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoGuarantee,
    RandomisedResponse,
    Slicing,
    SubsampledGaussian,
)
from shared.privacy.gaussian import gaussian_log_delta, root
from shared.privacy.renyi import checked_delta
from shared.privacy.slicing_loss import BINS, slicing_bins

__all__ = [
    "calibrate",
    "theorem2_epsilon",
    "w_for_epsilon",
]


# -- calibration -------------------------------------------------------------------------------------------
def calibrate(family: str | type[Event], epsilon: float, delta: float, **fixed: Any) -> Any:
    """The event of `family` that costs `epsilon` at `delta`; `fixed` gives all but the noise.

    Args:
        family: an event class or its kind; what is solved for is sigma (Gaussian, Slicing), scale (Laplace,
            for the pure ε, whatever δ), noise_multiplier (SubsampledGaussian) or epsilon
            (ExponentialMechanism).
        epsilon: target, positive and finite.
        delta: in (0, 1); may be 0 for Laplace and ExponentialMechanism.
    Raises: ParameterError.

    >>> calibrate("laplace", 0.5, 0.0, sensitivity=1.0, coordinates=2).scale
    4.0
    >>> round(calibrate(Gaussian, 1.0, 1e-5, sensitivity=1.0).sigma, 3)
    3.731
    """
    kind = REGISTRY.get(family) if isinstance(family, str) else family
    if kind not in REGISTRY.values() or kind is Composition or kind is NoGuarantee:
        raise UnknownEvent("a family must be one this version can account for", given=repr(family)[:60])
    delta = checked_delta(delta)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ParameterError("a target epsilon must be positive and finite", given=repr(epsilon))
    if kind is ExponentialMechanism or kind is RandomisedResponse:
        return kind(epsilon=epsilon, **fixed)
    if kind is Laplace:
        unit = Laplace(scale=1.0, **fixed)
        return Laplace(scale=unit.coordinates * unit.sensitivity / epsilon, **fixed)
    if delta == 0:
        raise ParameterError("delta must be positive for a mechanism without a pure guarantee", given="0")
    if kind is Gaussian:
        unit_gaussian = Gaussian(sigma=1.0, **fixed)
        return Gaussian(sigma=unit_gaussian.sensitivity / _mu_for_epsilon(epsilon, delta), **fixed)
    if kind is Slicing:
        return Slicing(sigma=_slicing_sigma(Slicing(sigma=1.0, **fixed), epsilon, delta), **fixed)

    def cost(log_noise: float) -> float:
        return _cost(SubsampledGaussian(noise_multiplier=math.exp(log_noise), **fixed), delta)

    low = high = 0.0
    while cost(high) > epsilon and high < 40:
        low, high = high, high + 1.0
    while cost(low) <= epsilon and low > -40:
        low, high = low - 1.0, low
    if not cost(high) <= epsilon < cost(low):
        raise ParameterError("the target epsilon must be within reach of some noise", given=repr(epsilon))
    # The distribution is on a grid, so the cost has tiny steps: halve, and keep the side that honours the
    # target.
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return SubsampledGaussian(noise_multiplier=math.exp(high), **fixed)


_cost = epsilon


def _slicing_sigma(unit: Slicing, target: float, delta: float) -> float:
    """The sigma at which the curve passes through (target, delta); `unit` is the event at sigma 1."""
    if unit.distance == 0:
        raise ParameterError("distance must be positive to be calibrated", given="0")
    edges, mass = slicing_bins(unit, delta * 1e-7, BINS)

    def excess(log_sigma: float) -> float:
        inside = float(np.exp(gaussian_log_delta(edges / math.exp(log_sigma), target)) @ mass)
        return math.log(max(inside + delta * 1e-7, 1e-300) / delta)

    # Between the noise for the median row length and that for the longest one, with room to spare.
    high = math.log(edges[-1] / _mu_for_epsilon(target, delta))
    low = high - 1.0
    while excess(low) <= 0:
        low -= 1.0
    return math.exp(root(excess, low, high + 1e-6))


def _mu_for_epsilon(target: float, delta: float) -> float:
    log_delta = math.log(delta)
    # From ε = μ²/2 + μ √(2 ln 1/δ) as a bound downwards, and ε ≥ μ²/2 − μ z upwards.
    low = high = math.sqrt(2 * target - 2 * log_delta) - math.sqrt(-2 * log_delta)
    if not low > 0:  # the two are the same double, and nothing doubled is nothing
        low = high = max(target / math.sqrt(-2 * log_delta), 1e-300)
    while float(gaussian_log_delta(high, target)) < log_delta:
        high *= 2
    while float(gaussian_log_delta(low, target)) > log_delta:
        low /= 2
    return root(lambda mu: log_delta - float(gaussian_log_delta(mu, target)), low, high)


def w_for_epsilon(epsilon: float, delta: float, radius: float) -> float:
    """The data weight w at which latent noise injection costs `epsilon` at `delta`, clipped to `radius`.

    >>> round(w_for_epsilon(1.0, 1e-5, 3.0), 4)
    0.002
    """
    mu = 1 / calibrate(Gaussian, epsilon, delta, sensitivity=1.0).sigma
    if not (math.isfinite(radius) and radius > 0):
        raise ParameterError("radius must be positive and finite", given=repr(radius))
    return mu * mu / (mu * mu + 4 * radius * radius)


def theorem2_epsilon(w: float, C: float, delta: float) -> float:
    r"""The paper's own value, for its tables; :func:`epsilon` is what a release is charged.

    .. math:: \varepsilon^* = \frac{w C^2}{2(1 - w)} + C \sqrt{\frac{2 w \ln(1/\delta)}{1 - w}}

    Source: latent-noise-injection, Theorem 2.

    >>> round(theorem2_epsilon(0.5, 6.0, 1e-5), 1)
    46.8
    """
    if not (0 <= w < 1 and C >= 0 and 0 < delta < 1):
        raise ParameterError("w must be in [0, 1), C at least 0 and delta in (0, 1)", given=f"{w!r}, {C!r}, {delta!r}")
    return w * C**2 / (2 * (1 - w)) + C * math.sqrt(2 * w * math.log(1 / delta) / (1 - w))
