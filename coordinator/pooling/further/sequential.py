r"""Looks at accumulating results: boundaries that spend one error rate over all of them (Lan and DeMets 1983).

By time t of a plan, alpha(t) of the two-sided error rate may be spent; the boundary c_k of look k is where

.. math:: P(|Z_1| < c_1, …, |Z_{k-1}| < c_{k-1}, |Z_k| \ge c_k) = α(t_k) - α(t_{k-1}), \quad
    corr(Z_j, Z_k) = \sqrt{I_j / I_k}

with I_k = 1 / se² the information of look k. Time is what the plan fixes beforehand (waves of those planned),
information what was found. Where looks have no independent increments, as where released persons are privatised anew at
each wave, c_k is the quantile of the increment of alpha alone: the union bound holds whatever the correlation is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from coordinator.pooling.pool import PooledResult
from coordinator.pooling.rows import require_known
from shared.errors import EstimateRefusal, ParameterError

__all__ = ["SPENDING", "Look", "Monitored", "Spending", "boundaries", "monitored", "require_spending", "spent"]

Array = NDArray[np.float64]
Spending = Literal["obrien-fleming", "pocock"]
SPENDING: Mapping[str, str] = {
    "obrien-fleming": "little at first: the last look has nearly the whole of it",
    "pocock": "nearly alike at every look",
}
_POINTS = 24  # Gauss-Legendre points in each unit of z
_FAR = 8.5  # beyond it, no normal probability counts


def require_spending(spending: str) -> None:
    """Raises: ParameterError: not one of `SPENDING`."""
    require_known(spending, SPENDING, "spending")


def spent(t: ArrayLike, alpha: float, spending: Spending) -> Array:
    """The two-sided error rate that may be spent by time t in (0, 1].

    Source: Lan and DeMets 1983, Biometrika 70:659.

    >>> spent([0.5, 1.0], 0.05, "obrien-fleming").round(5)
    array([0.00305, 0.05   ])
    """
    require_spending(spending)
    at = np.minimum(np.asarray(t, dtype=float), 1.0)
    if spending == "pocock":
        return np.asarray(alpha * np.log1p((math.e - 1) * at))
    return np.asarray(4 * special.ndtr(special.ndtri(alpha / 4) / np.sqrt(at)))


def boundaries(t: ArrayLike, information: ArrayLike | None = None, *, alpha: float, spending: Spending) -> Array:
    """(K,) boundaries of |z|: a look at or beyond its own ends the study.

    Args:
        t: (K,) increasing times in (0, 1]. information: (K,) of each look, in any unit; `t` where left out.
        alpha: the two-sided error rate. spending: the boundary.
    Raises: ParameterError.

    >>> boundaries([0.2, 0.4, 0.6, 0.8, 1], alpha=0.05, spending="obrien-fleming").round(3)
    array([4.877, 3.357, 2.68 , 2.29 , 2.031])
    """
    times = np.asarray(t, dtype=float)
    info = times if information is None else np.asarray(information, dtype=float)
    if times.ndim != 1 or not len(times) or not (np.diff(times, prepend=0.0) > 0).all() or times[-1] > 1 + 1e-9:
        raise ParameterError("times of looks must increase within (0, 1]", given=f"{times.tolist()}")
    if info.shape != times.shape or not (np.isfinite(info) & (info > 0)).all():
        raise ParameterError("each look must have information above 0", given=f"{info.tolist()}")
    if not 0 < alpha < 1:
        raise ParameterError("alpha must be in (0, 1)", given=f"{alpha:g}")
    steps = np.diff(spent(times, alpha, spending), prepend=0.0)
    found = np.full(len(times), np.inf)
    # Of sqrt(I) Z, a sum of independent parts: where it may be after the last look that continued, and how likely.
    place, weight, before = np.zeros(1), np.ones(1), 0.0
    for k, (step, now) in enumerate(zip(steps, info, strict=True)):
        alone = -float(special.ndtri(step / 2))
        grown = now - before
        if grown <= 1e-9 * now:
            found[k] = min(alone, _FAR)
            continue
        root, spread = math.sqrt(now), math.sqrt(grown)
        found[k] = _bound(place, weight, root, spread, step)
        at, area = np.polynomial.legendre.leggauss(max(_POINTS, math.ceil(_POINTS * found[k])))
        edge = found[k] * root
        inner, share = edge * at, edge * area
        density = np.exp(-0.5 * ((inner[:, None] - place) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
        place, weight, before = inner, share * (density @ weight), now
    return found


def _bound(place: Array, weight: Array, root: float, spread: float, step: float) -> float:
    """Boundary that |z| first exceeds at this look with probability `step`; before it √I z has `weight` at `place`."""

    def beyond(c: float) -> float:
        up, down = (c * root - place) / spread, (-c * root - place) / spread
        return float(weight @ (special.ndtr(-up) + special.ndtr(down))) - step

    return float(optimize.brentq(beyond, 0.0, _FAR + 1, xtol=1e-12)) if step > 1e-15 else _FAR


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look.

    Attributes:
        label: name of the look. time: in (0, 1]. information: 1 / se².
        z: the estimate in standard errors, of the normal quantile that has its p-value.
        boundary: of |z|. alpha_spent: two-sided, up to here. nominal: the p-value at the boundary.
        beta: pooled. ci_lb, ci_ub: its repeated confidence interval, which holds at all looks together.
        crossed: True if this look is at or beyond its boundary.
    """

    label: str
    time: float
    information: float
    z: float
    boundary: float
    alpha_spent: float
    nominal: float
    beta: float
    ci_lb: float
    ci_ub: float
    crossed: bool


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """All looks so far; `stopped` is the first that crossed, blank where none has."""

    looks: tuple[Look, ...]
    alpha: float
    spending: str
    stopped: str
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Result of the looks in a sentence: the first beyond its boundary, or that none is."""
        last = self.looks[-1]
        how = f"{self.spending} spending, two-sided {100 * self.alpha:g} %"
        if self.stopped:
            return f"{self.stopped} is beyond its boundary ({how})"
        left = "; all of the error rate is spent" if last.time >= 1 else ""
        return f"no look is beyond its boundary ({how}): |z| {abs(last.z):.2f} against {last.boundary:.2f}{left}"


def monitored(
    results: Sequence[tuple[str, float, PooledResult]],
    *,
    spending: Spending,
    independent: bool = True,
) -> Monitored:
    """Boundaries and repeated intervals of looks at pooled results.

    Args:
        results: label, time and pooled result of each look, in their order; alpha is 1 less the level of the last.
        spending: the boundary.
        independent: True if each look adds independent patients to the one before; else the union bound is used.
    Raises: EstimateRefusal: no look, or of a share or mean, which has no value of no effect; ParameterError.
    Source: repeated confidence intervals: Jennison and Turnbull 1989, JRSS B 51:305; t tests by their p-values.

    >>> from coordinator.pooling.pool import pool
    >>> looks = [(f"wave {k}", k / 2, pool([0.4] * k, [0.02] * k, test="z")) for k in (1, 2)]
    >>> monitored(looks, spending="pocock").stopped
    'wave 1'
    """
    if not results:
        raise EstimateRefusal("a monitored study must have a look", given="none")
    models = [result for _, _, result in results]
    if not all(result.compares for result in models):
        raise EstimateRefusal(
            "a monitored question must have a value of no effect", given="a share, a mean or what else compares nothing"
        )
    alpha = 1 - models[-1].level
    info = np.array([result.se**-2 for result in models])
    grown = np.diff(info, prepend=0.0) > 1e-9 * info
    notes = []
    if independent and not grown.all():
        late = ", ".join(label for (label, _, _), more in zip(results, grown, strict=True) if not more)
        notes.append(f"No more is known than at the look before: {late}. Its boundary is that of a look by itself.")
    if not independent:
        notes.append(
            "Looks have the same persons anew, so their correlation is not known: each spends its part of the error "
            "rate by itself, which holds whatever it is."
        )
    times = [time for _, time, _ in results]
    if independent:
        bound = boundaries(times, np.maximum.accumulate(info), alpha=alpha, spending=spending)
    else:
        boundaries(times, alpha=alpha, spending=spending)  # refuses what it cannot take
        bound = np.minimum(-special.ndtri(np.diff(spent(times, alpha, spending), prepend=0.0) / 2), _FAR)
    total = spent(times, alpha, spending)
    looks = []
    for (label, time, result), c, so_far, known in zip(results, bound, total, info, strict=True):
        nominal = 2 * float(special.ndtr(-c))
        wide = replace(result, level=1 - nominal)
        z = math.copysign(-float(special.ndtri(max(result.pval, 1e-300) / 2)), result.beta)
        looks.append(
            Look(
                label=label,
                time=float(time),
                information=float(known),
                z=z,
                boundary=float(c),
                alpha_spent=float(so_far),
                nominal=nominal,
                beta=result.beta,
                ci_lb=wide.ci_lb,
                ci_ub=wide.ci_ub,
                crossed=bool(abs(z) >= c),
            )
        )
    stopped = next((look.label for look in looks if look.crossed), "")
    return Monitored(looks=tuple(looks), alpha=alpha, spending=spending, stopped=stopped, notes=tuple(notes))
