r"""The pooled answer of a secure sum: one step from the pilots' pooled estimate, weighed as random effects are.

With a_i the weights, F = Σ a_i Σ q and G = Σ a_i Σ q² as the sum has them (`shared.mechanisms.secure_sum.influences`),
and B, H and S what the sites' public models expect of Σ a_i n_i E[q - ψ], Σ a_i n_i E[q²] and Σ a_i n_i E[q ψ],

.. math:: \hat\theta = \theta_0 + \frac{F - B}{S \, G / H}.

The implied weights are a_i J_i with the records' own J_i, though no site's estimate is seen. The a_i are those of which
a_i J_i is 1 / (τ² + 1 / J_i), at the τ at which the answer is expected nearest to the records' own. That follows
another τ, of their own estimates (`pool`, REML), which nobody sees; but pilots say what estimates there may be. Drawn
given them, each draw with its own pooled answer, the best τ is the one whose weights are least far from these answers,
in the mean square. One value from noisy estimates is often 0; and weights averaged over what pilots say of τ are a
little nearer where sites are alike, and where they differ much farther away. The prior of τ is s / (s + τ)², s² the
harmonic mean of the sites' own variances (W. DuMouchel 1994, Bayesian Statistics 5). Q, I², τ² of the answer, and the
forest plot, are the pilots'.

The interval is Student's with K - 1 degrees of freedom, on the variance

.. math:: \frac{\sum w_i^2 (v_i + \bar\tau^2)}{(\sum w_i)^2} + \frac{\sigma^2}{(S G / H)^2},
          \qquad v_i = \frac{n_i E[q^2]}{(n_i E[q \psi])^2},

v_i with what the cut costs, and τ̄² the mean of τ² under its posterior law.

From the records' own pooled answer it lies by the noise, by what the cut costs, and by its weights: the mean square
that these draws give. An answer tells the three parts beside its variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.pooling.further.many import pool_many
from coordinator.pooling.pool import PooledResult
from coordinator.pooling.secure_sum.answer import SummedAnswer
from shared.errors import EstimateRefusal
from shared.mechanisms.secure_sum.influences import SumLook

__all__ = ["LEAST_SLOPE", "Heterogeneity", "heterogeneity", "summed", "weighed"]

Array = NDArray[np.float64]
LEAST_SLOPE = 0.5
"""Least sum of squares as a share of its expectation; a noisy sum below it is raised to it."""
_LEVELS = (np.arange(400) + 0.5) / 400
"""Quantile levels of the posterior of τ: one draw at each."""
_SEED = 20261129
"""Public seed: the draws are for an expectation alone, and protect nobody."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Heterogeneity:
    """Heterogeneity of one coefficient between sites, inferred from the pilots.

    Args:
        weights: (K,) normalised random-effects weights, at the τ with the least expected distance to the records' own
            answer.
        tau2: τ̄², the posterior mean of τ².
        apart: (draws, K) draws of the records' estimates given the pilots, less their own pooled value.
        more: (K,) variances of the pilots in excess of those that the records alone would leave.
    """

    weights: Array
    tau2: float
    apart: Array
    more: Array

    def expected_loss(self, share: Array) -> float:
        """The expected squared distance that weights (K,), which sum to 1, make to the records' own answer."""
        return float(np.square(self.apart @ share).mean())


def heterogeneity(estimates: Array, own: Array, more: Array) -> Heterogeneity:
    """Random-effects weights by what estimates with more noise say of τ.

    Args:
        estimates: (K,) of the pilots. own: (K,) variances that the records alone would leave.
        more: (K,) variances of the pilots beside these.

    >>> found = heterogeneity(np.array([0.1, 0.1, 0.1]), np.array([0.01, 0.01, 0.04]), np.zeros(3))
    >>> found.weights.round(2), found.tau2 < 0.02
    (array([0.44, 0.44, 0.11]), True)
    """
    typical = math.sqrt(1 / float((1 / own).mean()))
    grid = typical * np.geomspace(0.02, 50, 120)
    logs = []
    for tau in grid:
        w = 1 / (own + more + tau**2)
        mean = (w * estimates).sum() / w.sum()
        fit = np.log(w).sum() - math.log(w.sum()) - (w * (estimates - mean) ** 2).sum()
        logs.append(fit / 2 + math.log(tau / (typical + tau) ** 2))  # the grid is even in log τ
    law = np.exp(np.array(logs) - max(logs))
    law /= law.sum()
    apart = _apart(estimates, own, more, np.interp(_LEVELS, np.cumsum(law), grid))
    weights = 1 / (own + grid[:, None] ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    best = int(np.square(apart @ weights.T).mean(axis=0).argmin())
    return Heterogeneity(weights=weights[best], tau2=float(law @ grid**2), apart=apart, more=more)


def _apart(estimates: Array, own: Array, more: Array, tau: Array) -> Array:
    """(draws, K) estimates that records may have, given noisier ones and τ, less what they then pool to.

    Args:
        tau: (draws,).
    """
    draws = np.random.default_rng(_SEED).standard_normal((len(tau), 1 + len(own)))
    between = own + tau[:, None] ** 2
    w = 1 / (between + more)
    mean = (w @ estimates) / w.sum(axis=1) + draws[:, 0] / np.sqrt(w.sum(axis=1))
    known = between / (between + more)
    drawn = mean[:, None] + known * (estimates - mean[:, None]) + np.sqrt(known * more) * draws[:, 1:]
    pooled = pool_many(drawn, np.broadcast_to(own, drawn.shape), method="REML").beta
    return np.asarray((drawn - pooled[:, None])[np.isfinite(pooled)])


def weighed(looks: Sequence[SumLook], pilots: PooledResult) -> tuple[tuple[SumLook, ...], Heterogeneity]:
    """The looks with their weights, the largest 1, and how sites differ.

    Args:
        pilots: of the same sites, in the same order and the same unit.
    """
    own = np.array([1 / look.precision for look in looks])
    estimates, variances = np.array(pilots.yi), np.array(pilots.vi)
    between = heterogeneity(estimates, own, np.maximum(variances - own, 0.1 * variances))
    a = between.weights * own
    return tuple(look.weighing(float(one)) for look, one in zip(looks, a / a.max(), strict=True)), between


def summed(
    looks: Sequence[SumLook],
    total: Array,
    sigma: float,
    start: float,
    between: Heterogeneity,
    *,
    sites: Sequence[str],
    level: float = 0.95,
) -> SummedAnswer:
    """The answer of a sum that is opened.

    Args:
        looks: of the survivors. total: (2,) F, and G times the bounds' bend. sigma: of the noise in it.
        start: the coefficient that all looks are at. between: of `weighed`. sites: names of the survivors.
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
    variance = float((share**2 * (own + between.tau2)).sum()) + cut + noise
    parts = {"noise": noise, "cut": cut, "weights": between.expected_loss(share), "tau2": between.tau2}
    return SummedAnswer(estimate=estimate, variance=variance, **parts, sites=tuple(sites), level=level)
