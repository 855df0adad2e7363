"""The attack of somebody who holds the flow: the likelihood ratio of each released row, and its trade-off curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from shared.flows.base import Bijection
from shared.mechanisms.latent_noise.noise import LatentNoise
from site_agent.release.audit.rates import Array, auc_of, binomial_rate
from site_agent.release.audit.report import FALSE_ALARMS, LikelihoodAttack

__all__ = ["latents_of", "likelihood_ratios", "signals", "trade_off", "weighed"]

_AT_ONCE = 1 << 17
"""Pairs of a candidate and a released row: they stay in a core's own cache while they are weighed."""


def weighed(
    mechanism: LatentNoise, *, members: Array, held_back: Array, released: Array, bounded: bool = False
) -> LikelihoodAttack:
    """Weigh members and records held back as somebody who knows everything about a mechanism but its noise.

    Args:
        members, held_back, released: (n, d) rows as they are seen, encoded (`recoded`).
        bounded: whether the report says what no attacker could exceed.
    """
    flow, carried = mechanism.flow, mechanism.carried
    others = [j for j in range(flow.d) if j not in carried]
    (inside, own_w), (outside, their_w) = (_centred(mechanism, rows, others) for rows in (members, held_back))
    y = mechanism.unrestored(latents_of(flow, released)[:, others])
    # What is carried over is seen as it is: a record can only be behind a row that has its own.
    own, theirs, there = (np.floor(rows[:, list(carried)]) for rows in (members, held_back, released))
    ratios = [np.full(len(signal), -np.inf) for signal in (inside, outside)]
    for level in np.unique(there, axis=0) if carried else there[:1]:
        rows = y[(there == level).all(axis=1)]
        for ratio, signal, w, given in zip(ratios, (inside, outside), (own_w, their_w), (own, theirs), strict=True):
            here = (given == level).all(axis=1)
            ratio[here] = likelihood_ratios(signal[here], rows, w=w if isinstance(w, float) else w[here])
    promised = bounded and not carried and not mechanism.vary
    return _attacked(*ratios, bound=trade_off(mechanism.plain_event.mu, FALSE_ALARMS) if promised else 1.0)


def _centred(mechanism: LatentNoise, rows: Array, others: Sequence[int]) -> tuple[Array, float | Array]:
    """Latent mean of each row's release, (n, d), and 1 − the variance of its noise: one number, or (n,).

    Where `vary` is ``rotation``, to first order: the noise of a row at clipped radius r has variance (1 − w) r² / d.
    """
    w = mechanism.w
    if not mechanism.vary:
        how: dict[str, float] = {"w": w, "radius": mechanism.radius, "shrink": mechanism.shrink}
        return signals(mechanism.flow, rows, **how, others=others), w
    z = latents_of(mechanism.flow, rows)[:, list(others)]
    norm = np.linalg.norm(z, axis=1)
    inside = np.minimum(1.0, mechanism.radius / np.where(norm > 0, norm, 1.0))
    if mechanism.vary == "weight":
        weight = w * inside**4
        return np.sqrt(weight)[:, None] * z, weight
    signal = math.sqrt(w) * inside[:, None] * z
    if mechanism.vary == "rotation":
        # Never quite without noise, or a record in the middle would have a density of its own.
        return signal, 1 - (1 - w) * np.maximum((norm * inside) ** 2 / z.shape[1], 1e-3)
    return signal, w


def signals(
    flow: Bijection,
    rows: Array,
    *,
    w: float,
    radius: float,
    shrink: float = 1.0,
    others: Sequence[int] | None = None,
) -> Array:
    """√w a(|z|) z with z = f⁻¹(x), (n, d): where the release of each row is centred; of the columns `others` alone.

    a(r) = min(1, radius/r)^shrink: rows far out are drawn in.

    Args:
        flow: f, from latents to encoded rows.
        rows: (n, d) encoded rows x.
        w: weight of a row's own latent in its release, in [0, 1); the noise has the weight 1 − w.
        radius: distance from the centre beyond which rows are drawn in.
        shrink: how much: 0 not at all, 1 onto the radius.
        others: columns of z that are released; all when None.
    """
    z = latents_of(flow, rows)
    z = z if others is None else z[:, list(others)]
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(math.sqrt(w) * z * np.minimum(1.0, radius / np.where(norm > 0, norm, 1.0)) ** shrink)


def latents_of(flow: Bijection, rows: Array) -> Array:
    """f⁻¹ of rows, (n, d), finite whatever the rows are."""
    with np.errstate(all="ignore"):
        z = np.asarray(flow.inverse(rows), dtype=np.float64)
    # A row that the flow cannot place is the centre; far out a latent only needs its direction.
    return np.clip(np.where(np.isnan(z).any(axis=1, keepdims=True), 0.0, z), -1e3, 1e3)


def likelihood_ratios(candidates: Array, released: Array, *, w: float | Array) -> Array:
    r"""Log-likelihood ratio of a release with each candidate in it to one without, (k,).

    .. math:: \log \frac1n \sum_j \frac{N(y_j; s, (1-w) I)}{N(y_j; 0, I)}

    Args:
        candidates: (k, d) signals s of the candidates.
        released: (n, d) latents y of the released rows, in any order.
        w: weight of the data, in [0, 1); or (k,) 1 − the variance of the noise of each candidate.

    By Neyman and Pearson's lemma no test is better when the other rows are draws from the flow and the candidate's
    place is unknown.

    >>> likelihood_ratios(np.zeros((1, 2)), np.ones((5, 2)), w=0.0)
    array([0.])
    """
    if isinstance(w, float) and not w:
        return np.zeros(len(candidates))
    variance = np.broadcast_to(1 - np.asarray(w, dtype=np.float64), len(candidates))
    square = (released**2).sum(axis=1)
    out = np.empty(len(candidates))
    step = max(4, _AT_ONCE // len(released))
    for at in range(0, len(candidates), step):
        s, v = candidates[at : at + step], variance[at : at + step, None]
        terms = (s @ released.T) / v + square * (0.5 - 0.5 / v)
        most = terms.max(axis=1, keepdims=True)
        terms -= most
        np.exp(terms, out=terms)
        out[at : at + step] = np.log(terms.sum(axis=1)) + most[:, 0] - (s**2).sum(axis=1) / (2 * v[:, 0])
    return out - 0.5 * released.shape[1] * np.log(variance) - math.log(len(released))


def _attacked(inside: Array, outside: Array, *, bound: float) -> LikelihoodAttack:
    """Attack result from the likelihood ratios of members (n1,) and of records held back (n0,)."""
    n1, n0 = len(inside), len(outside)
    threshold = np.sort(outside)[-1 - int(FALSE_ALARMS * n0)]
    return LikelihoodAttack(
        auc=auc_of(inside, outside),
        hits=binomial_rate(int((inside > threshold).sum()), n1, chance=FALSE_ALARMS),
        false_alarms=binomial_rate(int((outside > threshold).sum()), n0, chance=FALSE_ALARMS),
        bound=bound,
        roc=_roc(inside, outside),
        n_members=n1,
        n_held_back=n0,
    )


def _roc(inside: Array, outside: Array) -> tuple[tuple[float, float], ...]:
    """(false alarms, hits) from (0, 0) to (1, 1) over every threshold among the records held back, thinned."""
    thresholds = np.sort(outside)[::-1]
    if len(thresholds) > 100:
        # Even steps of the logarithm: the corner that matters is where nearly nobody is falsely accused.
        thresholds = thresholds[np.unique(np.geomspace(1, len(thresholds), 100).astype(int) - 1)]
    ordered_in, ordered_out = np.sort(inside), np.sort(outside)
    alarms = 1 - np.searchsorted(ordered_out, thresholds, side="right") / len(outside)
    hits = 1 - np.searchsorted(ordered_in, thresholds, side="right") / len(inside)
    return tuple(dict.fromkeys([*((float(a), float(h)) for a, h in zip(alarms, hits, strict=True)), (1.0, 1.0)]))


def trade_off(mu: float, false_alarms: float) -> float:
    """Most hits that any attacker of a μ-Gaussian-DP mechanism can have at a rate of false alarms.

    Source: Dong, Roth & Su (2022), eq. 6.

    >>> round(trade_off(1.0, 0.01), 3)
    0.092
    """
    return float(special.ndtr(special.ndtri(false_alarms) + mu))
