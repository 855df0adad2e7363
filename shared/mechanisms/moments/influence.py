r"""The efficient influence of a declared coefficient: what block 4 of a moments release sums.

For the coefficient of covariate j, with w(x, t) dt the information of a row at time t (for Cox's regression
:math:`e^{\eta} S(t \mid x) P(C > t \mid x) \, d\Lambda(t)`; without time p (1 − p), the mean, or 1) and

.. math:: \bar x(t) = \frac{E[w(x, t) \, x]}{E[w(x, t)]}, \qquad
          I = \int E[w (x - \bar x)(x - \bar x)'] \, dt, \qquad
          d_j = 1, \; d_o = -I_{oo}^{-1} I_{oj}, \qquad a(x, t) = d'(x - \bar x(t)),

o the other covariates, a record's influence is its score along d, which no small error of the others' coefficients
or of the baseline moves:

.. math:: \psi = a(x, T) \, e - \int_0^T a(x, t) \, e^{\eta} d\Lambda(t) \qquad \text{or} \qquad
          \psi = a(x) \, (y - \mu(x)).

At the regression's own estimate on the records it sums to zero whatever their law is, where the score of a model of
everything sums to zero at that model's estimate: risk-set means that follow time make it Cox's coefficient that is
told. η, Λ, x̄ and I are those of the pilot fit to blocks 1 to 3, hence released numbers. What is summed is the vector
of the declared coefficients' influences, each over the standard deviation of its a, drawn in to the length C where it
is longer: one person moves all of them together by 2C at most, so that a further coefficient costs the others little.
C, from `score_clip` on, is as long as leaves the coefficients a variance, of patients and noise, near the smallest
under the pilot's law (`efficient_cut`).

Source: D. Y. Lin, L. J. Wei (1989), J. Am. Stat. Assoc. 84, 1074.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.mechanisms.moments.outcomes import Outcome

__all__ = ["Direction", "direction", "direction_of", "efficient_cut", "held", "kept_share"]

Array = NDArray[np.float64]

_WIDEST = 16.0
"""Largest cut, in standard deviations of a: beyond it there is nobody."""
_WIDER = 0.25
"""Share of the smallest variance that is given for a further cut."""


@dataclass(frozen=True)
class Direction:
    """Direction of the influence of one declared coefficient: a(x, t) = d'(x − x̄(t)).

    Args:
        along: (p,) d. means: (intervals,) d'x̄, one interval where the outcome has no time.
        spread: standard deviation of a among those who carry the information.
    """

    along: Array
    means: Array
    spread: float


def direction(outcome: Outcome, eta: Array, standard: Array, j: int) -> Direction:
    """The direction of covariate j.

    Args:
        eta: (m, predictors) and standard: (m, p), of points that stand for everybody.
    """
    return direction_of(np.maximum(outcome.intensity(eta), 0.0), standard, j)


def direction_of(weight: Array, standard: Array, j: int) -> Direction:
    """The direction of covariate j where points carry so much information.

    Args:
        weight: (m, intervals). standard: (m, p).
    """
    each = np.maximum(weight.sum(axis=0), 1e-12)
    means = weight.T @ standard / each[:, None]
    total = each.sum()
    spread = (standard * weight.sum(axis=1)[:, None]).T @ standard / total - (means * each[:, None]).T @ means / total
    others = np.delete(np.arange(len(spread)), j)
    ridge = 1e-6 * np.trace(spread) / len(spread) * np.eye(len(others))
    along = np.zeros(len(spread))
    along[j] = 1.0
    along[others] = -np.linalg.solve(spread[np.ix_(others, others)] + ridge, spread[others, j])
    return Direction(along, means @ along, math.sqrt(max(float(along @ spread @ along), 1e-6)))


def held(influences: Array, cut: float) -> Array:
    """(declared, …) vectors drawn in to the length `cut` where they are longer.

    >>> held(np.array([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    array([[0.6, 0.3],
           [0.8, 0.4]])
    """
    return np.asarray(influences * kept_share(influences, cut))


def kept_share(influences: Array, cut: float) -> Array:
    """(…) the share of each of (declared, …) vectors that is within the length `cut`."""
    length = np.sqrt(np.einsum("d...,d...->...", influences, influences))
    return np.asarray(np.minimum(1.0, cut / np.maximum(length, 1e-300)))


def efficient_cut(influences: Array, chance: Array, noise: float, least: float) -> float:
    r"""The longest C of which :math:`\sum_j (E[q_j^2] + (C s)^2) / E[q_j \psi_j]^2` is near its least, q held of ψ.

    What is cut off is where a model that lacks something shows: held nearer than need be, the sum is zero elsewhere
    than at the regression's own estimate, at every site alike. So a variance `_WIDER` above the least is taken.

    Args:
        influences: (declared, m, cases), in standard deviations of their directions. chance: (m, cases), sums to 1.
        noise: s, standard deviation of the sum's noise for C = 1, over the root of the number of records.
        least: smallest C.
    """
    cuts = np.geomspace(least, max(_WIDEST, least), 25)
    squares = np.square(influences).reshape(len(influences), -1)
    length = np.maximum(np.sqrt(squares.sum(axis=0)), 1e-300)
    variances = []
    for cut in cuts:
        share = np.minimum(1.0, cut / length)
        weight = chance.ravel() * share
        slope = np.maximum(squares @ weight, 1e-12)
        variances.append(float(((squares @ (weight * share) + (cut * noise) ** 2) / slope**2).sum()))
    worse = np.array(variances) / min(variances) - 1
    best = int(np.argmin(worse))
    beyond = np.flatnonzero(worse[best:] > _WIDER)
    if not len(beyond):
        return float(cuts[-1])
    # Site and coordinator must find the same cut, where their last digits differ too: no choice, a place between two.
    k = best + int(beyond[0])
    share = (_WIDER - worse[k - 1]) / (worse[k] - worse[k - 1])
    return float(cuts[k - 1] * (cuts[k] / cuts[k - 1]) ** share)
