"""Slicing's privacy loss: given U a Gaussian mechanism whose sensitivity is random, hence an integral over χ²."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from shared.privacy.events import Slicing
from shared.privacy.gaussian import Floats, gaussian_epsilon, gaussian_log_delta, root

__all__ = [
    "BINS",
    "PLD_BINS",
    "slicing_bins",
    "slicing_delta",
    "slicing_epsilon",
    "slicing_pld",
]

# -- slicing -----------------------------------------------------------------------------------------------
BINS = 32768


def slicing_bins(event: Slicing, tail: float, bins: int) -> tuple[Floats, Floats]:
    """Upper edges of μ and the bins' probabilities; above the last edge lies the probability `tail`."""
    from scipy import special

    k = event.slices  # degrees of freedom of χ²
    low, high = math.sqrt(2 * special.gammaincinv(k / 2, 1e-13)), math.sqrt(special.chdtri(k, tail))
    edges = np.linspace(low, high, bins + 1)[1:]
    below, above = special.chdtr(k, edges**2), special.chdtrc(k, edges**2)
    # Differences of the smaller tail, or the far bins would be noise; the first bin takes all below it.
    mass = np.diff(below, prepend=0.0)
    upper = np.concatenate([[False], above[:-1] < 0.5])
    mass[upper] = -np.diff(above)[upper[1:]]
    return edges * (event.distance / (event.sigma * math.sqrt(event.d))), mass


def slicing_delta(event: Slicing, delta: float, mu0: float = 0.0, bins: int = BINS) -> Callable[[Any], Floats]:
    r"""The curve δ(ε) of one slicing release beside a μ₀-Gaussian one: a bound, not an estimate.

    .. math:: \delta(\varepsilon) = E\,\delta_{Gauss}(\varepsilon; \mu),
              \quad \mu^2 = \mu_0^2 + D^2 \chi^2_{m'} / (d \sigma^2)

    δ_Gauss rises with μ, so every bin is charged at its upper edge, and the tail above the last edge is
    charged in full: less than a millionth of `delta`.
    """
    tail = delta * 1e-7
    edges, mass = slicing_bins(event, tail, bins)
    mu = np.sqrt(edges**2 + mu0**2)

    def curve(eps: Any) -> Floats:
        eps = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        step = max(1, 2_000_000 // mu.size)
        parts = [np.exp(gaussian_log_delta(mu, e[:, None])) @ mass for e in np.split(eps, range(step, eps.size, step))]
        return np.minimum(np.concatenate(parts) + tail, 1.0)

    return curve


@lru_cache(maxsize=256)  # an integral at each step of a root, and a plan asks for it again and again
def slicing_epsilon(event: Slicing, delta: float, mu0: float = 0.0) -> float:
    """ε at `delta` of slicing beside Gaussian mechanisms whose sensitivities over σ make `mu0` together."""
    if event.distance == 0:
        return gaussian_epsilon(mu0, delta)
    if delta == 0:
        return math.inf
    curve = slicing_delta(event, delta, mu0)
    if curve(0.0)[0] <= delta:
        return 0.0
    top = gaussian_epsilon(math.hypot(mu0, slicing_bins(event, delta * 1e-7, 2)[0][-1]), delta)
    return root(lambda eps: math.log(curve(eps)[0] / delta), 0.0, top)


PLD_BINS = 512


def slicing_pld(event: Slicing, delta: float, step: float, pld: Any, pld_pmf: Any) -> Any:
    """Slicing's privacy loss distribution, rounded up, in steps of `step`.

    Args:
        event: of one release.
        delta: the least at which ε will be asked; the tail is cut where it holds less than 10⁻⁷ of it.
        step: between two losses, in units of ε.
        pld, pld_pmf: the modules of `dp_accounting` of these names, which are loaded where they are needed.
    Returns: a `dp_accounting.pld.PrivacyLossDistribution`.
    """
    curve = slicing_delta(event, delta, bins=PLD_BINS)
    top = math.ceil(gaussian_epsilon(slicing_bins(event, delta * 1e-7, 2)[0][-1], delta * 1e-7) / step)
    positive = curve(np.arange(top + 1) * step)
    positive = np.minimum.accumulate(positive)
    # A slicing release is its own mirror image: δ(−ε) = 1 − e^{−ε}(1 − δ(ε)).
    negative = 1 - np.exp(-np.arange(top, 0, -1) * step) * (1 - positive[:0:-1])
    deltas = np.clip(np.concatenate([negative, positive]), 0, 1)
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -top, top, np.minimum.accumulate(deltas))
    )
