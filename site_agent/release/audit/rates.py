"""Shares and areas with their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = ["Array", "Flags", "Rate", "auc_half_width", "auc_of", "binomial_rate", "rate", "wilson_interval"]


Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A measured rate with its 95 % interval and what chance alone would give."""

    value: float
    low: float
    high: float
    chance: float


def auc_of(inside: Array, outside: Array) -> Rate:
    """AUC of scores that are larger for members, (n1,) and (n0,), with DeLong's interval."""
    n1, n0 = len(inside), len(outside)
    ranks = _ranks(np.concatenate([inside, outside]))
    # Share of outside scores that are smaller, for each inside one, and the reverse (ties one half).
    above = (ranks[:n1] - _ranks(inside)) / n0
    below = 1 - (ranks[n1:] - _ranks(outside)) / n1
    auc = float(above.mean())
    variance = float(above.var(ddof=1) / n1 + below.var(ddof=1) / n0)
    half = auc_half_width(auc, variance, n1, n0)
    return Rate(value=auc, low=max(0.0, auc - half), high=min(1.0, auc + half), chance=0.5)


def _ranks(scores: Array) -> Array:
    """Their ranks from 1, (n,); those that are equal share the middle one. NaN where one is not a number."""
    inorder = np.sort(scores)
    below, upto = (np.searchsorted(inorder, scores, side) for side in ("left", "right"))
    return (below + upto + 1) / 2 if not np.isnan(inorder[-1:]).any() else np.full(len(scores), np.nan)


def auc_half_width(auc: float, variance: float, n1: int, n0: int) -> float:
    """Of the 95 % interval."""
    if auc in (0.0, 1.0):
        # Perfect separation has a variance of 0. It is no surer than that many successes in a row, one for each
        # record of the smaller group: Clopper and Pearson's bound.
        return float(1 - 0.025 ** (1 / min(n1, n0)))
    # All scores equal give 0 as well; half a discordant pair is the least that can be told apart.
    return float(special.ndtri(0.975)) * math.sqrt(max(variance, 1 / (12 * n1 * n0)))


def rate(flags: Flags, *, chance: float) -> Rate:
    """A share with its Clopper-Pearson interval."""
    return binomial_rate(int(flags.sum()), len(flags), chance=chance)


def binomial_rate(k: int, n: int, *, chance: float, level: float = 0.95) -> Rate:
    """k of n with Clopper and Pearson's interval; of none, nothing is known."""
    tail = (1 - level) / 2
    low = float(special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Rate(value=k / n if n else 0.0, low=low, high=high, chance=chance)


def wilson_interval(k: int, n: int, level: float) -> tuple[float, float]:
    """Wilson's interval: of two of them Newcombe (1998, method 10) makes one for a difference."""
    z = float(special.ndtri(0.5 + level / 2))
    p = k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))
