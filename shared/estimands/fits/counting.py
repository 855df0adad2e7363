r"""Cumulative hazards and cumulative incidence, and what each row moves a curve of survival by.

At each distinct time t_l let n_l rows be at risk, of which d_l have the event, c_l a competing event. Curves are
functions of these counts, so a row moves one by what it adds to its own counts, less what it adds to the risk sets
that it is in: a running sum over times, for all rows at once. With S the product-limit curve of every event,

.. math:: \hat H(t) = \sum_{t_l \le t} d_l / n_l, \quad \hat F(t) = \sum_{t_l \le t} \hat S(t_l-) d_l / n_l

(Nelson 1972; Aalen 1978; Aalen and Johansen 1978). The influences are the infinitesimal jackknife's: derivatives by
the weight of a row at weight 1, whose squares sum to the variance that R's `survival` gives for several states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CountedTimes", "cumulative_hazard", "cumulative_incidence", "restricted_mean_moves"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CountedTimes:
    """Rows counted at their distinct times, rising.

    Args:
        time: (m,) distinct times. place: (n,) each row's among them.
        event, other: (n,) 1 for the event, and for a competing one.
        events, others, at_risk: (m,) counts at each time; whoever leaves at it is still at risk.
    """

    time: Array
    place: NDArray[np.int64]
    event: Array
    other: Array
    events: Array
    others: Array
    at_risk: Array

    @classmethod
    def of(cls, time: Array, event: Array, other: Array | None = None) -> CountedTimes:
        """Count (n,) rows."""
        times, place = np.unique(time, return_inverse=True)
        other = np.zeros(len(time)) if other is None else other
        events, others = (np.bincount(place, weights=one, minlength=len(times)) for one in (event, other))
        leaving = np.bincount(place, minlength=len(times))
        return cls(
            time=times,
            place=place,
            event=event,
            other=other,
            events=events.astype(float),
            others=others.astype(float),
            at_risk=len(time) - np.r_[0.0, np.cumsum(leaving)[:-1]],
        )

    @property
    def before(self) -> Array:
        """(m,) product-limit share without any event just before each time."""
        left = 1 - (self.events + self.others) / self.at_risk
        return np.r_[1.0, np.cumprod(left)[:-1]]

    def moves(self, own: Array, others: Array, exposure: Array) -> Array:
        """(n,) influences: `own` and `others` (m,) of an event at a time, less `exposure` (m,) of the times at risk."""
        exposed = np.cumsum(exposure)[self.place]
        return np.asarray(self.event * own[self.place] + self.other * others[self.place] - exposed)

    def product_moves(self, weight: Array) -> Array:
        """(n,) −Σ_l weight_l × what each row moves the product-limit factor at t_l by, relative to it."""
        d, n = self.events + self.others, self.at_risk
        some = (d > 0) & (n > d)  # where all leave by events the curve ends at 0, whatever one row weighs
        gap = np.where(some, n * (n - d), 1.0)
        own = np.where(some, -weight * n / gap, 0.0)
        return self.moves(own, own, np.where(some, -weight * d / gap, 0.0))


def cumulative_hazard(counts: CountedTimes, at: float) -> tuple[float, float, Array]:
    """The Nelson–Aalen estimate at a time, its variance Σ d / n² and the influences of the rows.

    R's `survfit(Surv(time, event) ~ 1)`: `cumhaz` and `std.chaz`.

    >>> rows = CountedTimes.of(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 1.0, 0.0, 1.0]))
    >>> [round(float(one), 4) for one in cumulative_hazard(rows, 2.0)[:2]]
    [0.5833, 0.1736]
    """
    d, n = np.where(counts.time <= at, counts.events, 0.0), counts.at_risk
    inside = np.where(counts.time <= at, 1.0, 0.0)
    pushes = counts.moves(inside / n, np.zeros(len(n)), d / n**2)
    return float((d / n).sum()), float((d / n**2).sum()), pushes


def cumulative_incidence(counts: CountedTimes, at: float) -> tuple[float, float, Array]:
    """The Aalen–Johansen estimate of the event at a time, its variance and the influences, whose squares that sums.

    R's `survfit(Surv(time, factor(state)) ~ 1, id = id)`: `pstate` and `std.err`.

    >>> rows = CountedTimes.of(np.arange(1.0, 5.0), np.array([1.0, 0, 0, 1]), np.array([0.0, 1, 0, 0]))
    >>> round(cumulative_incidence(rows, 4.0)[0], 3)
    0.75
    """
    before, n = counts.before, counts.at_risk
    inside = np.where(counts.time <= at, before / n, 0.0)
    steps = inside * counts.events
    value = float(steps.sum())
    later = value - np.cumsum(steps)  # incidence still to come after each time
    pushes = counts.moves(inside, np.zeros(len(n)), steps / n) + counts.product_moves(later)
    return value, float(pushes @ pushes), pushes


def restricted_mean_moves(counts: CountedTimes, tau: float) -> tuple[float, Array]:
    """The restricted mean to `tau`, and the influence of each row on it.

    Their sum of squares is `shared.estimands.fits.survival.restricted_mean`'s variance.

    >>> restricted_mean_moves(CountedTimes.of(np.array([1.0, 2.0]), np.ones(2)), 3.0)
    (1.5, array([-0.25,  0.25]))
    """
    edges = np.r_[0.0, np.minimum(counts.time, tau), tau]
    survival = np.r_[counts.before, 0.0]
    survival[-1] = survival[-2] * (1 - (counts.events[-1] + counts.others[-1]) / counts.at_risk[-1])
    pieces = survival * np.diff(edges)
    after = float(pieces.sum()) - np.cumsum(pieces)[:-1]  # area from each time on
    return float(pieces.sum()), counts.product_moves(np.where(counts.time < tau, after, 0.0))
