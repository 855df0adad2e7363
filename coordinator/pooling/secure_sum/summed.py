r"""The pooled answer of a secure sum: one step from the pilots' pooled estimate, weighed as random effects are.

With a_i the weights, F = Σ a_i Σ q and G = Σ a_i Σ q² as the sum has them (`shared.mechanisms.secure_sum.influences`),
and B, H and S what the sites' public models expect of Σ a_i n_i E[q - ψ], Σ a_i n_i E[q²] and Σ a_i n_i E[q ψ],

.. math:: \hat\theta = \theta_0 + \frac{F - B}{S \, G / H}.

The implied weights are a_i J_i with the records' own J_i, though no site's estimate is seen. The a_i are those of which
a_i J_i is 1 / (τ² + 1 / J_i), averaged over what the pilots say of τ: nothing but they tells how sites differ, and one
value of τ² from noisy estimates is often 0. The prior of τ is s / (s + τ)², s² the harmonic mean of the sites' own
variances (W. DuMouchel 1994, Bayesian Statistics 5). Q, I², τ² of the answer, and the forest plot, are the pilots'.

The interval is Student's with K - 1 degrees of freedom, on the variance

.. math:: \frac{\sum w_i^2 (v_i + \bar\tau^2)}{(\sum w_i)^2} + \frac{\sigma^2}{(S G / H)^2},
          \qquad v_i = \frac{n_i E[q^2]}{(n_i E[q \psi])^2},

v_i with what the cut costs, and τ̄² the mean of τ² under its posterior law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.pooling.pool import PooledResult
from coordinator.pooling.secure_sum.answer import SummedAnswer
from shared.errors import EstimateRefusal
from shared.mechanisms.secure_sum.influences import SumLook

__all__ = ["LEAST_SLOPE", "heterogeneity", "summed", "weighed"]

Array = NDArray[np.float64]
LEAST_SLOPE = 0.5
"""Share of the expected squares that the sum is taken to have at least, whatever its noise says."""


def heterogeneity(estimates: Array, own: Array, more: Array) -> tuple[Array, float]:
    """(K,) normalised random-effects weights and τ̄², averaged over what estimates with more noise say of τ.

    Args:
        estimates: (K,) of the pilots. own: (K,) variances that the records alone would leave.
        more: (K,) variances of the pilots beside these.

    >>> weights, tau2 = heterogeneity(np.array([0.1, 0.1, 0.1]), np.array([0.01, 0.01, 0.04]), np.zeros(3))
    >>> weights.round(2), tau2 < 0.02
    (array([0.43, 0.43, 0.15]), True)
    """
    typical = math.sqrt(1 / float((1 / own).mean()))
    grid = typical * np.geomspace(0.02, 50, 120)
    logs, weights = [], []
    for tau in grid:
        w = 1 / (own + more + tau**2)
        mean = (w * estimates).sum() / w.sum()
        fit = np.log(w).sum() - math.log(w.sum()) - (w * (estimates - mean) ** 2).sum()
        logs.append(fit / 2 + math.log(tau / (typical + tau) ** 2))  # the grid is even in log τ
        exact = 1 / (own + tau**2)
        weights.append(exact / exact.sum())
    law = np.exp(np.array(logs) - max(logs))
    law /= law.sum()
    return law @ np.array(weights), float(law @ grid**2)


def weighed(looks: Sequence[SumLook], pilots: PooledResult) -> tuple[tuple[SumLook, ...], float]:
    """The looks with their weights, the largest 1, and τ̄².

    Args:
        pilots: of the same sites, in the same order and the same unit.
    """
    own = np.array([1 / look.precision for look in looks])
    estimates, variances = np.array(pilots.yi), np.array(pilots.vi)
    weights, tau2 = heterogeneity(estimates, own, np.maximum(variances - own, 0.1 * variances))
    a = weights * own
    return tuple(look.weighing(float(one)) for look, one in zip(looks, a / a.max(), strict=True)), tau2


def summed(
    looks: Sequence[SumLook],
    total: Array,
    sigma: float,
    start: float,
    tau2: float,
    *,
    sites: Sequence[str],
    level: float = 0.95,
) -> SummedAnswer:
    """The answer of a sum that is opened.

    Args:
        looks: of the survivors. total: (2,) F, and G times the bounds' bend. sigma: of the noise in it.
        start: the coefficient that all looks are at. tau2: of `weighed`. sites: names of the survivors.
        level: coverage of the interval.
    Raises: EstimateRefusal, where the looks expect nothing of the records.
    """
    a = np.array([look.weight for look in looks])
    held, slope = np.array([look.held for look in looks]), np.array([look.slope for look in looks])
    if not (slope > 0).all():
        raise EstimateRefusal("every site's records must say something of the coefficient", given="a site's do not")
    beyond = float(sum(look.weight * look.beyond for look in looks))
    squares = float(total[1]) / looks[0].bounds.bend / float((a * held).sum())
    w = a * slope
    information = float(w.sum()) * max(squares, LEAST_SLOPE)
    estimate = start + (float(total[0]) - beyond) / information
    share, own = w / w.sum(), np.array([1 / look.precision for look in looks])
    noise, cut = (sigma / information) ** 2, float((share**2 * (held / slope**2 - own)).sum())
    variance = float((share**2 * (own + tau2)).sum()) + cut + noise
    return SummedAnswer(
        estimate=estimate, variance=variance, noise=noise, cut=cut, tau2=tau2, sites=tuple(sites), level=level
    )
