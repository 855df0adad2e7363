r"""Several coefficients from one secure sum: how its noise is shared out among them, and what is read from it.

Each coefficient is weighed and read as one alone is (`coordinator.pooling.secure_sum.summed`): of its own pilots come
its weights a and τ̄², and :math:`\hat\theta = \theta_0 + (F - B) / (S G / H)` with F and G of the sums of vectors and of
their products, taken back by the inverse of M. Where a site's vectors are drawn in about a point c, n c is in F again,
and products are of what is left beside c, at the records as under the models.

With P the variances of the answers and Σ what the public models expect of
:math:`\sum_i n_i E[(a \circ \psi)(a \circ \psi)']`, each coefficient in units of its √P,

.. math:: M \propto \Sigma^{-1/4} P^{-1/2}

leaves the answers the least noise, in the mean of squared standard errors, for vectors of one mean squared length: of
tr(S⁻¹) where tr(SΣ) is 1 the least is at S = M'M ∝ Σ^{-1/2}. Its size says how near a record's vector is drawn in: as
little as leaves what drawing in and noise do to the answers near its least under the public models.

An influence is insensitive to errors of its place one by one, not to two at once, and a pilot has several. What that
leaves of an answer grows with the pilots' noise, and faster where there is much of it. With v_i their variances from
it, at most a hundred times the u_i that the records alone would leave, and w_i the implied weights,

.. math:: c(R) \sum_i (w_i / \textstyle\sum w)^2 v_i, \quad R = \frac{\sum_i w_i^2 v_i}{\sum_i w_i^2 u_i}, \quad
          c(R) = \min(1, ONE\_STEP \, (1 + (R / FAR)^8)),

is stated beside noise and cut, and is in the variance.

At a site where by its pilot nobody is in a subgroup influences are 0: it is not among the sites of that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coordinator.pooling.pool import PooledResult
from coordinator.pooling.secure_sum.answer import SummedAnswer
from coordinator.pooling.secure_sum.summed import LEAST_SLOPE, Heterogeneity, heterogeneity
from shared.errors import EstimateRefusal
from shared.estimands.floors import MIN_EVENTS
from shared.mechanisms.secure_sum.vectors import VectorLook, products

__all__ = ["summed_vector", "weighed_vectors"]

Array = NDArray[np.float64]
_LEAST_KNOWN = 1e-3
"""Least eigenvalue of Σ as a share of the largest: directions without information in the records are raised to it."""
_NOTHING = 1e-6
"""Least precision of a site as a share of the largest: where nobody is in a subgroup there is none."""
_SIZES = np.geomspace(0.3, 60, 40)
"""Candidate bounds on a vector's length, in standard deviations of one of its coordinates over all records."""
ONE_STEP = 0.025
"""Share of the pilots' own noise that one step from them leaves, as simulated networks of twelve cohorts have it
(docs/decisions/0046)."""
FAR = 50.0
"""R at which one step leaves twice that share, beyond which it soon leaves all (docs/decisions/0046)."""
_SAYS_NOTHING = 100.0
"""Times its records' own variance: a pilot as noisy as this says nothing, and a noisier one no less."""
_WIDER = 0.25
"""Share of the least that is given for a further reach: where much is drawn in, a model that lacks something shows."""
_WIDER_WITH_VARIANTS = 1.0
"""The same where a sum has variants of the planned model: of how their influences are spread the pilots' model says
less, and at `_WIDER` squared distances to the records' own answers were half as large again as is stated, or more (on
seeds from 1001 on; no file holds that look)."""


def weighed_vectors(
    looks: Sequence[VectorLook], pilots: Sequence[PooledResult], sigma: float, *, centred: bool = False
) -> tuple[tuple[VectorLook, ...], tuple[Heterogeneity, ...]]:
    """The looks with their weights, the largest of each coefficient 1, and with M; how sites differ in each.

    Args:
        pilots: of each coefficient, of the same sites, in the same order and the same unit.
        sigma: of the sum's noise in each number.
        centred: draw vectors in about where each site's model expects nothing to be taken by it, in place of 0.
    """
    own = _alone(looks)
    weights, differing = np.empty_like(own), []
    for k, of in enumerate(pilots):
        more = np.maximum(np.array(of.vi) - own[:, k], 0.1 * np.array(of.vi))
        differing.append(heterogeneity(np.array(of.yi), own[:, k], more))
        weights[:, k] = differing[-1].weights * own[:, k]
    # The largest of those that say anything is 1; what a site that does not is given is no matter.
    most = np.where([look.precision > 0 for look in looks], weights, 0.0).max(axis=0)
    weights = np.minimum(weights / np.where(most > 0, most, 1.0), 1.0)
    given = [replace(look, weights=one) for look, one in zip(looks, weights, strict=True)]
    whitening = _whitening(given, np.array([one.tau2 for one in differing]), sigma)
    white = (replace(look, whitening=whitening) for look in given)
    return tuple(look.centred() if centred else look for look in white), tuple(differing)


def _alone(looks: Sequence[VectorLook]) -> Array:
    """(sites, coefficients) variances that the records alone would leave; large where they say nothing of one."""
    precision = np.array([look.precision for look in looks])
    most = precision.max(axis=0)
    return np.asarray(1 / np.maximum(precision, np.where(most > 0, _NOTHING * most, 1.0)))


def _whitening(looks: Sequence[VectorLook], tau2: Array, sigma: float) -> Array:
    """(coefficients, coefficients) M; a coefficient of which no site's records say anything is left by itself."""
    covered = np.flatnonzero(np.max([look.precision for look in looks], axis=0) > 0)
    if not {*range(len(looks[0].bounds.columns))} <= {*covered.tolist()}:
        raise EstimateRefusal("the records must say something of every coefficient", given="nothing of one")
    out = np.eye(len(tau2))
    out[np.ix_(covered, covered)] = _shared_out([_part(look, covered) for look in looks], tau2[covered], sigma)
    return out


def _part(look: VectorLook, covered: NDArray[np.int64]) -> VectorLook:
    """A look at some of its coefficients alone, for expectations."""
    return replace(look, psi=look.psi[covered], weights=look.weights[covered])


def _shared_out(looks: Sequence[VectorLook], tau2: Array, sigma: float) -> Array:
    reach, several = looks[0].bounds.reach, len(looks[0].weights)
    covariance, between = np.zeros((several, several)), np.zeros(several)
    for look in looks:
        psi = (look.weights[:, None, None] * look.psi).reshape(several, -1)
        covariance += (psi * look.chance.ravel()) @ psi.T * look.n / len(look.chance)
        between += tau2 * (look.weights * look.precision) ** 2
    patients = np.diag(covariance) + between
    values, vectors = np.linalg.eigh(covariance / np.sqrt(np.outer(patients, patients)))
    rooted = (vectors * np.maximum(values, _LEAST_KNOWN * values[-1]) ** -0.25) @ vectors.T
    # So that a coordinate has the mean square of 1 over all records, as the sizes have it.
    unit = rooted / np.sqrt(patients)
    unit *= np.sqrt(several * sum(look.n for look in looks) / np.trace(unit @ covariance @ unit.T))
    noise = np.square(np.linalg.inv(unit)).sum(axis=1) * (sigma / reach) ** 2
    # In squares of F: what drawing in takes, for each size.
    lost = np.zeros((several, len(_SIZES)))
    for look in looks:
        weighted = np.square(look.weights[:, None, None] * look.psi) * look.chance * look.n / len(look.chance)
        length = np.sqrt(np.square(np.tensordot(unit * look.weights, look.psi, 1)).sum(axis=0)).ravel()
        for at, size in enumerate(_SIZES):  # one after the other: all at once are gigabytes
            gone = 1 - np.minimum(1.0, size / np.maximum(length, 1e-300))
            lost[:, at] += weighted.reshape(several, -1) @ gone**2
    worse = ((lost + noise[:, None] * np.square(_SIZES)) / patients[:, None]).mean(axis=0)
    wider = _WIDER_WITH_VARIANTS if looks[0].models else _WIDER
    near = np.flatnonzero(worse <= (1 + wider) * worse.min())
    return np.asarray(unit * reach / _SIZES[near[-1]])


def summed_vector(
    looks: Sequence[VectorLook],
    total: Array,
    sigma: float,
    start: Sequence[float],
    differing: Sequence[Heterogeneity],
    *,
    sites: Sequence[str],
    level: float = 0.95,
) -> tuple[SummedAnswer | EstimateRefusal, ...]:
    """The answer of each coefficient of a sum that is opened, or of a variant's why there is none.

    Args:
        looks: of the survivors. total: (coordinates,) as `shared.mechanisms.secure_sum.vectors` has them.
        sigma: of the noise in each. start: the coefficients that all looks are at. differing: of `weighed_vectors`.
        sites: names of the survivors. level: coverage of the intervals.
    Raises: EstimateRefusal, where the looks expect nothing of the records, or M cannot be taken back.
    """
    several, reach = len(start), looks[0].bounds.reach
    try:
        back = np.linalg.inv(looks[0].whitening)
    except np.linalg.LinAlgError:
        raise EstimateRefusal("a sum's coefficients must be told apart by its whitening", given="not") from None
    a, drawn = np.array([look.weights for look in looks]), [look.drawn_in() for look in looks]
    slope, kept, expected, beyond = (
        np.array([getattr(one, name) for one in drawn]) for name in ("slope", "kept", "squares", "beyond")
    )
    own, known = _alone(looks), slope > 0
    planned = len(looks[0].bounds.columns)
    if not known[:, :planned].all():
        raise EstimateRefusal("every site's records must say something of each coefficient", given="a site's do not")
    # Of a variant that fewer than two sites say anything of there is no answer: numbers in its place say nothing.
    answered = known.sum(axis=0) > 1
    expected, slope = np.where(answered, expected, 1.0), np.where(answered, slope, 1.0)
    moved = back @ (total[:several] + sum(look.n * look.offset for look in looks)) - (a * beyond).sum(axis=0)
    squares = np.diag(back @ products(total, several, reach) @ back.T) / (a**2 * expected).sum(axis=0)
    w = a * slope
    information = w.sum(axis=0) * np.maximum(squares, LEAST_SLOPE)
    share = w / w.sum(axis=0)
    noise = np.square(back).sum(axis=1) * (sigma / information) ** 2
    cut = np.where(known, share**2 * (kept / np.where(known, slope, 1.0) ** 2 - own), 0.0).sum(axis=0)
    tau2 = np.array([one.tau2 for one in differing])
    noisy = np.minimum(np.transpose([one.more for one in differing]), _SAYS_NOTHING * own)
    pilots = _left(noisy, own, share)
    variance = (share**2 * (own + tau2)).sum(axis=0) + cut + noise + pilots

    def answer(k: int) -> SummedAnswer | EstimateRefusal:
        if not answered[k]:
            question = looks[0].models[k - planned].variant.question
            return EstimateRefusal(
                f"two sites' releases must expect {MIN_EVENTS} events or more of {question}",
                given=f"{int(known[:, k].sum())} of {len(sites)} sites that do",
            )
        return SummedAnswer(
            estimate=float(start[k] + moved[k] / information[k]),
            variance=float(variance[k]),
            noise=float(noise[k]),
            cut=float(cut[k]),
            pilots=float(pilots[k]),
            weights=differing[k].expected_loss(share[:, k]),
            tau2=float(tau2[k]),
            sites=tuple(name for name, there in zip(sites, known[:, k], strict=True) if there),
            level=level,
        )

    return tuple(map(answer, range(several)))


def _left(noisy: Array, own: Array, share: Array) -> Array:
    """(coefficients,) variance that the pilots' errors leave of one step.

    Args:
        noisy: (sites, coefficients) variances of the pilots from noise. own: those that the records alone would leave.
        share: weights, which sum to 1 over the sites.
    """
    noise, alone = (share**2 * noisy).sum(axis=0), (share**2 * own).sum(axis=0)
    return np.asarray(np.minimum(ONE_STEP * (1 + (noise / alone / FAR) ** 8), 1.0) * noise)
