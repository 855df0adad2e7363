r"""A linear model's coefficients from noisy sums of products: the posterior over the sums that the noise hides.

With v = (1, u) a person's columns, centred and scaled, the release is :math:`\tilde G = \sum v v' + E`, E symmetric
normal noise of known variance. With a flat prior on what is possible, the sums G behind it are :math:`\tilde G - E`,
for the E that leave a matrix of positive eigenvalues. Each gives a regression, and what patients vary is added to it:

.. math:: b = G_{xx}^{-1} G_{xy}, \qquad s^2 = \frac{G_{yy} - b' G_{xy}}{n - p}, \qquad
          Var = Var(b) + E[s^2 (G_{xx}^{-1})_{jj}].

A regression of the noisy sums themselves would take the noise in :math:`\tilde G_{xx}` for spread of the covariates,
and be drawn towards zero by it. A weak prior (`_PRIOR`) keeps the few draws that are nearly singular from deciding.

Persons who were drawn in to the length R lie along the columns' main axis, so that coefficients are drawn towards zero
by that, too. It is put right as far as the columns are normal: of the normal law whose persons, drawn in, have these
sums, the coefficients less those of its drawn-in sums are added.

Sources: G. Bernstein, D. Sheldon (2019), Differentially private Bayesian linear regression, NeurIPS 32 (the sums as
unknowns, noise of known law); C. Dwork, K. Talwar, A. Thakurta, L. Zhang (2014), Analyze Gauss, STOC (the release).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal

__all__ = ["NoisyProducts", "RegressionPosterior", "regression"]

Array = NDArray[np.float64]

_DRAWS = 4000
_LEAST_KEPT = 0.02
"""Share of the draws that must be possible sums: with fewer, the noise says more of them than the release."""
_LEAST_EIGENVALUE = 0.02
"""Of possible sums, per person: nearly equal columns, or a column that hardly varies, are no model."""
_PRIOR = 1.0
"""Standard deviation of a coefficient, in scales of the outcome per scale of the covariate."""
_MATCHES, _AGAIN = 12, 24
"""Steps to the law whose drawn-in persons have the sums, and samples of persons over which that is taken again."""
_MOST_DRAWN = 20_000
"""Persons in each of these samples, at most: by what factor a variance is larger hangs no more on n then."""
_RESIDUAL = (0.01, 4.0)
"""Possible residual variances, in squared scales of the outcome."""


@dataclass(frozen=True, kw_only=True)
class NoisyProducts:
    """Sums of products of (1, u) over persons, with noise.

    Args:
        n: public number of persons, the sum of 1 · 1.
        sums: (1 + q, 1 + q) symmetric. sigma: of the noise on a square; on a product it is this over √2.
        radius: length to which the measured columns were drawn in. measured: (q,) which they are; all if empty.
    """

    n: int
    sums: Array
    sigma: float
    radius: float = math.inf
    measured: tuple[bool, ...] = ()

    @staticmethod
    def added(parts: Sequence[NoisyProducts]) -> NoisyProducts:
        """Of different persons: their sums, and the noise of all."""
        return NoisyProducts(
            n=sum(part.n for part in parts),
            sums=np.sum([part.sums for part in parts], axis=0),
            sigma=float(np.sqrt(sum(part.sigma**2 for part in parts))),
            radius=parts[0].radius,
            measured=parts[0].measured,
        )


@dataclass(frozen=True, kw_only=True)
class RegressionPosterior:
    """Coefficients in scales of the outcome per scale of each covariate.

    Args:
        effects: (p,) posterior means. sampling, noise: (p,) variances of patients and of the noise.
        kept: share of the draws of noise that leave possible sums.
    """

    effects: Array
    sampling: Array
    noise: Array
    kept: float


def regression(found: NoisyProducts, outcome: int, covariates: Sequence[int]) -> RegressionPosterior:
    """The linear model of one column on others, with an intercept; the same at every call.

    Args:
        outcome, covariates: places among the columns.
    Raises: EstimateRefusal: nearly all that the sums may be is no regression; no more persons than coefficients.

    >>> x = np.random.default_rng(1).normal(size=2000)
    >>> v = np.column_stack([np.ones(2000), x, 0.5 * x + np.random.default_rng(2).normal(size=2000)])
    >>> one = regression(NoisyProducts(n=2000, sums=v.T @ v, sigma=1e-6), 1, [0])
    >>> one.effects.round(2), np.sqrt(one.sampling).round(3), bool(one.noise[0] < 1e-9), one.kept
    (array([0.51]), array([0.022]), True, 1.0)
    """
    at, p = [0, *(1 + place for place in covariates), 1 + outcome], len(covariates)
    if found.n <= p + 1:
        raise EstimateRefusal("there must be more persons than coefficients", given=f"{found.n}")
    sums = np.asarray(found.sums)[np.ix_(at, at)]
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(sums.tobytes()).digest()[:8], "big"))
    drawn = sums - _noise(rng, _DRAWS, len(at), found.sigma)
    drawn = drawn[np.linalg.eigvalsh(drawn)[:, 0] > _LEAST_EIGENVALUE * found.n]
    inverse = np.linalg.inv(drawn[:, :-1, :-1])
    products = drawn[:, :-1, -1]
    effects = np.einsum("dij,dj->di", inverse, products)
    residual = (drawn[:, -1, -1] - (effects * products).sum(axis=1)) / (found.n - p - 1)
    possible = (residual > _RESIDUAL[0]) & (residual < _RESIDUAL[1])
    kept = float(possible.sum()) / _DRAWS
    if kept < _LEAST_KEPT:
        raise EstimateRefusal(
            "the sums must be larger than their noise",
            given=f"{kept:.1%} of what they may be is a regression",
            next_step="Too few persons for the plan's ε, columns that say the same, or typical values that are far "
            "off: plan fewer columns, a larger ε, or other typical values.",
        )
    effects, inverse, residual = effects[possible, 1:], inverse[possible], residual[possible]
    patients = residual[:, None] * np.diagonal(inverse, axis1=1, axis2=2)[:, 1:]
    weights = np.exp(((effects**2).min(axis=0) - effects**2) / (2 * _PRIOR**2))
    weights /= weights.sum(axis=0)
    mean = (weights * effects).sum(axis=0)
    taken, wider = _drawn_in(found, outcome, covariates)
    return RegressionPosterior(
        effects=mean + taken,
        sampling=wider * (weights * patients).sum(axis=0),
        noise=(weights * (effects - mean) ** 2).sum(axis=0),
        kept=kept,
    )


def _drawn_in(found: NoisyProducts, outcome: int, covariates: Sequence[int]) -> tuple[Array, Array]:
    """(p,) what drawing persons in took from the coefficients, of a normal law with these sums; (p,) by what factor
    the variance of a coefficient that has it back is larger than of one that lacks it, over `_AGAIN` samples of that.
    """
    nothing = np.zeros(len(covariates)), np.ones(len(covariates))
    q = len(found.sums) - 1
    points, measured = _normal_points(q), np.array(found.measured or [True] * q)
    if not (math.isfinite(found.radius) and measured.any()):
        return nothing

    def both(wanted: Array) -> tuple[Array, Array]:
        law = wanted = _possible(wanted)
        for _ in range(_MATCHES):
            law = _possible(law + wanted - _held(points, law, found.radius, measured)[0])
        return _slopes(law, outcome, covariates), _slopes(wanted, outcome, covariates)

    wanted = _possible(np.asarray(found.sums) / found.n)
    whole, held = both(wanted)
    v, rng = _held(points, wanted, math.inf, measured)[1], np.random.default_rng(20260101)
    samples = []
    for _ in range(_AGAIN):
        some = v[rng.integers(0, len(v), min(found.n, _MOST_DRAWN))]
        samples.append(both(some.T @ some / len(some)))
    spread = np.var(samples, axis=0)
    return whole - held, np.maximum(spread[0] / np.maximum(spread[1], 1e-300), 1.0)


def _noise(rng: np.random.Generator, draws: int, size: int, sigma: float) -> Array:
    """(draws, size, size) symmetric, σ on squares and σ / √2 on products, nothing on the number of persons."""
    noise = np.triu(rng.normal(0.0, sigma / np.sqrt(2), (draws, size, size)), 1)
    noise = noise + np.swapaxes(noise, 1, 2)
    noise[:, range(size), range(size)] = rng.normal(0.0, sigma, (draws, size))
    noise[:, 0, 0] = 0.0
    return np.asarray(noise)


def _possible(moments: Array) -> Array:
    """Second moments of (1, u), the covariance of u brought to the nearest with positive eigenvalues."""
    mean = moments[0, 1:]
    values, vectors = np.linalg.eigh(moments[1:, 1:] - np.outer(mean, mean))
    covariance = (vectors * np.maximum(values, 0.05)) @ vectors.T
    out = moments.copy()
    out[0, 0] = 1.0
    out[1:, 1:] = covariance + np.outer(mean, mean)
    return np.asarray(out)


def _held(points: Array, law: Array, radius: float, measured: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Second moments of (1, u) of a normal law, its persons' measurements drawn in; and (points, 1 + q) these."""
    mean = law[0, 1:]
    u = mean + points @ np.linalg.cholesky(law[1:, 1:] - np.outer(mean, mean)).T
    u[:, measured] *= np.minimum(1.0, radius / np.sqrt((u[:, measured] ** 2).sum(axis=1, keepdims=True)))
    v = np.column_stack([np.ones(len(u)), u])
    return np.asarray(v.T @ v / len(v)), v


def _slopes(moments: Array, outcome: int, covariates: Sequence[int]) -> Array:
    at = [0, *(1 + place for place in covariates)]
    return np.asarray(np.linalg.solve(moments[np.ix_(at, at)], moments[at, 1 + outcome])[1:])


@lru_cache(maxsize=8)
def _normal_points(q: int) -> Array:
    """Evenly spread standard normal points of mean 0 and covariance 1, the same everywhere."""
    from scipy.stats import norm, qmc

    points = norm.ppf(np.clip(qmc.Sobol(q, seed=1).random(4096), 1e-9, 1 - 1e-9))
    points -= points.mean(axis=0)
    points = points @ np.linalg.inv(np.linalg.cholesky(points.T @ points / len(points))).T
    points.setflags(write=False)
    return np.asarray(points)
