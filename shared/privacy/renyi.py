"""Rényi curves of events, which add up under adaptive choices, and the ε at a δ that a curve stands for."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np

from shared.errors import ParameterError
from shared.privacy.events import (
    Event,
    Events,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoGuarantee,
    RandomisedResponse,
    Slicing,
    SubsampledGaussian,
    as_list,
)
from shared.privacy.gaussian import Floats

__all__ = [
    "ORDERS",
    "checked_delta",
    "epsilon_from_rdp",
    "rdp",
]

ORDERS: Floats = np.array(sorted({*(1 + 2.0 ** (np.arange(-96, 136) / 16)).tolist(), *np.arange(2.0, 65.0).tolist()}))
"""The 289 Rényi orders of every curve: 1 + 2^(k/16) for k = -96..135, and the integers 2..64."""
ORDERS.setflags(write=False)


def checked_delta(delta: float) -> float:
    """Raises: ParameterError, unless it is in [0, 1)."""
    if not 0 <= delta < 1:
        raise ParameterError("delta must be in [0, 1)", given=repr(delta))
    return float(delta)


# -- Rényi -------------------------------------------------------------------------------------------------
def rdp(events: Events) -> Floats:
    """Rényi-DP curve at :data:`ORDERS`, (289,), in nats; rounded up to six digits; infinite where undefined.

    Curves add, also when later parameters depend on earlier outputs.

    >>> float(rdp(Gaussian(sigma=2.0, sensitivity=1.0))[ORDERS == 4.0][0]) >= 4 / 8
    True
    """
    total = np.zeros(ORDERS.size)
    for event, times in Counter(as_list(events)).items():
        total = total + times * _rdp(event)
    return total


@lru_cache(maxsize=256)
def _rdp(event: Event) -> Floats:
    a = ORDERS
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if isinstance(event, Gaussian):
            curve = a * event.mu**2 / 2
        elif isinstance(event, Laplace):
            t = event.sensitivity / event.scale
            one = np.logaddexp(np.log(a / (2 * a - 1)) + t * (a - 1), np.log((a - 1) / (2 * a - 1)) - t * a) / (a - 1)
            # Below a loss of 1e-3 the two terms cancel; α t²/2 is an upper bound for every pure mechanism.
            one = np.where(t < 1e-3, a * t * t / 2, one + 1e-15 / (a - 1))
            curve = event.coordinates * np.minimum(t, one)
        elif isinstance(event, Slicing):
            share = (event.distance / event.sigma) ** 2 * (a * a - a) / event.d
            curve = np.where(share < 1, -event.slices / (2 * (a - 1)) * np.log1p(-share), np.inf)
        elif isinstance(event, SubsampledGaussian):
            curve = event.steps * _subsampled_rdp(event.rate, event.noise_multiplier)
        elif isinstance(event, RandomisedResponse):
            # Whatever is ε-DP is ε²/2 zero-concentrated (Bun & Steinke 2016), and never more than ε.
            curve = np.minimum(a * event.epsilon**2 / 2, event.epsilon)
        elif isinstance(event, NoGuarantee):
            curve = np.full(a.size, np.inf)
        else:
            assert isinstance(event, ExponentialMechanism)
            # Bounded range ε: ε²/8 zero-concentrated (Cesar & Rogers 2021), and never more than ε.
            curve = np.minimum(a * event.epsilon**2 / 8, event.epsilon)
    curve = _rounded_up(curve)
    curve.setflags(write=False)
    return curve


def _rounded_up(curve: Floats) -> Floats:
    """Up to six significant digits: short in a receipt, and the same on machines whose last digits differ."""
    result = curve.copy()
    finite = np.isfinite(curve) & (curve > 0)
    digits = 5 - np.floor(np.log10(curve[finite]))
    # Divided by a power of ten, not multiplied by its inverse: the double nearest to the six digits.
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    result[finite] = np.ceil(curve[finite] * (1 + 1e-12) * up / down) / up * down
    return result


def _subsampled_rdp(q: float, s: float) -> Floats:
    """Rényi divergence at all orders between (1−q)N(0) + qN(1) and (1−q)N(0) + qN(−1), standard deviation s.

    The worst replace-one pair of one step: the two records pull in opposite directions. The integrand is
    analytic and falls off like a Gaussian, so the trapezoidal sum is exact to rounding.
    """
    from scipy import special

    if q == 1:
        return ORDERS * (2 / s) ** 2 / 2
    h = min(s, s * s) / 12
    result = np.empty(ORDERS.size)
    for group in np.array_split(np.arange(ORDERS.size), 24):
        top = ORDERS[group[-1]]
        span = 2 * top + 2 + 20 * s
        if span / h > 4e5:
            result[group] = np.inf
            continue
        # The integrand peaks between 0 and 2α − 1 (where q is near 1), with width s.
        x = np.arange(-2 - 12 * s, 2 * top + 1 + 12 * s, h)
        base = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
        up = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s))
        down = np.logaddexp(math.log1p(-q), math.log(q) + (-2 * x - 1) / (2 * s * s))
        for i in group:
            alpha = ORDERS[i]
            log_sum = special.logsumexp(base + alpha * up + (1 - alpha) * down) + math.log(h)
            # Near order 1 the logarithm is of order q², divided by α − 1: allow for rounding before dividing.
            result[i] = (max(log_sum, 0.0) + 1e-13) / (alpha - 1)
    return result


def epsilon_from_rdp(curve: Any, delta: float) -> float:
    r"""ε at δ from a curve over :data:`ORDERS`, never below 0.

    .. math:: \varepsilon = \min_\alpha \rho(\alpha) + \ln\frac{\alpha - 1}{\alpha}
              - \frac{\ln\delta + \ln\alpha}{\alpha - 1}

    Source: Canonne, Kamath & Steinke (2020), Proposition 12.

    >>> round(epsilon_from_rdp(rdp(Gaussian(sigma=2.0, sensitivity=1.0)), 1e-5), 2)
    2.17
    """
    delta = checked_delta(delta)
    curve = np.asarray(curve, dtype=np.float64)
    if curve.shape != ORDERS.shape or np.isnan(curve).any() or (curve < 0).any():
        raise ParameterError("a Rényi curve must hold 289 non-negative values", given=f"shape {curve.shape}")
    if not curve.any():
        return 0.0
    if delta == 0:
        return math.inf
    values = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(values.min()))
