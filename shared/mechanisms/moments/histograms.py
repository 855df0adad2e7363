r"""Noisy histograms of several sites, each drawn towards what they have in common as far as its error reaches.

At few persons and a small ε a histogram tells little of its own: the standard deviation that is read off it is a half
or the double of the column's, and with it an outcome's unit. What all sites say together tells much more. With shares
:math:`s_k` of site k, their mean error :math:`v_k` in a cell by sampling and noise, and the mean p by precision,

.. math:: s_k + B_k (p - s_k), \qquad B_k = \frac{v_k}{v_k + T},

T what the shares differ by, in a cell on average, beyond their errors (DerSimonian and Laird's, as `together.shrunk`
has it). Where sites differ, each keeps its own, and a large one draws no other to it.
It is post-processing of released figures. Source: C. N. Morris (1983), J. Am. Stat. Assoc. 78, 47.

A smooth margin says nothing of the few persons in far cells whom the noise drowns, and of a column with a long tail
these few make much of a mean. What the noise may hide there is `Tail`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.mechanisms.moments.margins import Margin, fitted_margin, smooth_margin, smooth_share
from shared.mechanisms.moments.noise import Design, MomentsRelease
from shared.mechanisms.moments.spec import sigma_of
from shared.plans.dictionary import NUMERIC, Column

__all__ = ["Tail", "beside_margin", "coarse", "drawn_together", "hidden_tails", "normal_beyond"]

special = deferred("scipy.special")

Array = NDArray[np.float64]

COARSE = 0.7
"""A cell of several values with more than this share of the persons hides how they are spread."""
_DROWNED = 2.0
"""Persons, in standard errors of the noise of a whole histogram, below which noise alone may look like a tail."""

_SKEWED = 0.005
"""Share of a normal law with a column's mean and spread beyond its bounds from which the column may have a tail."""
_PRESSED, _STRIP = 0.08, 1 / 16
"""Share of the persons in so much of a column's range beside its nearer bound from which that bound makes it skewed:
an age of 25 to 59 within 18 to 100 ends before it. In the worlds that settings are chosen by columns with a tail have
.09 and more there, those without one .06 at most."""
_LONG = 1.0
"""Skewness of the smooth margin, away from the nearer bound, from which a column is skewed wherever it begins."""
_HIDDEN = 3.0
"""Persons in a far cell, in standard deviations of its noise, below which the smooth margin alone says how many."""
_STANDS = 3.0
"""Standard deviations by which all far cells together must have more persons than the smooth margin, to have a tail."""
_DROWNS = 0.125
"""Share of a column's range by which one standard deviation of the noise may move its mean: twice that to either side
is half the range, and a mean anywhere in it is no answer."""


def drawn_together(counts: Array, persons: Sequence[int], sigmas: Sequence[float]) -> tuple[Array, Array]:
    """Histograms drawn together, and the standard deviation of what noise and drawing leave on a count of each.

    Args:
        counts: (sites, cells) noisy. persons: at each site. sigmas: of the noise on a count of each.

    >>> alike, sigma = drawn_together(np.array([[60.0, 40.0], [40.0, 60.0]]), [100, 100], [20.0, 20.0])
    >>> alike.round(), sigma.round(1)
    (array([[50., 50.],
           [50., 50.]]), array([14.1, 14.1]))
    """
    n, noise = np.asarray(persons, dtype=float)[:, None], np.asarray(sigmas, dtype=float)[:, None]
    shares, cells = counts / n, counts.shape[1]
    even = 1 / cells
    errors = (noise / n) ** 2 + even * (1 - even) / n
    weights = 1 / errors / (1 / errors).sum()
    # What the shares lie apart from their mean, less what errors make of that; of the rest, what the mean took along.
    apart = ((shares - (weights * shares).sum(axis=0)) ** 2).mean(axis=1, keepdims=True)
    excess = float((weights * (apart - errors * (1 - weights))).sum())
    between = max(excess, 0.0) / max(1 - float((weights**2).sum()), 1e-9)
    weights = 1 / (errors + between) / (1 / (errors + between)).sum()
    mean, drawn = (weights * shares).sum(axis=0), errors / (errors + between)
    # Of the mean a site's own noise is a part; and the mean is not where the site is.
    own, others = 1 - drawn + drawn * weights, drawn * weights.T
    np.fill_diagonal(others, 0.0)
    left = (own * noise / n) ** 2 + (others**2 @ (noise / n) ** 2) + drawn**2 * between
    return np.asarray(n * (shares + drawn * (mean - shares))), np.asarray(n * np.sqrt(left))[:, 0]


def coarse(releases: Sequence[tuple[MomentsRelease, Design]]) -> str:
    """A covariate of whose persons more than `COARSE` lie in one cell of several values, in words; "" for none.

    Such a margin is guesswork, and every coefficient of a model with it is off by more than its interval. Twice the
    noise on the count is allowed for.
    """
    design = releases[0][1]
    n = sum(release.n for release, _ in releases)
    noise = math.sqrt(sum(sigma_of(each.spec, 0) ** 2 for _, each in releases))
    for j, (column, edges) in enumerate(zip(design.covariates, design.edges[: design.p], strict=True)):
        most = float(np.sum([release.histograms[j] for release, _ in releases], axis=0).max())
        single = column.kind == "integer" and edges[1] - edges[0] <= 1
        if column.kind in NUMERIC and not single and most - 2 * noise > COARSE * n:
            return f"{column.name}: {100 * most / n:.0f} % of the persons in one cell of {edges[1] - edges[0]:.3g}"
    return ""


def normal_beyond(releases: Sequence[MomentsRelease], design: Design) -> float:
    """Of a normal law as a measurement's histograms show it, all together: the share beyond the bounds.

    A planned model of a measurement has normal residuals, and nobody is beyond the bounds: where many would be, the
    column is skewed. 0 for another outcome, and where noise may make as much: no release, or few persons for it.
    """
    if design.spec.outcome != "linear" or not releases:
        return 0.0
    counts = np.sum([release.histograms[-1] for release in releases], axis=0).astype(float)
    persons, noise = sum(release.n for release in releases), sigma_of(design.spec, 0) * math.sqrt(len(releases))
    if persons < _DROWNED * noise * math.sqrt(len(counts)):
        return 0.0
    column, shape = design.response, design.spec.margins
    margin = fitted_margin(counts, persons, noise, design.outcome_edges, column, shape)
    ends = (np.array(column.span) - margin.mean) / max(margin.sd, 1e-12)
    return float(special.ndtr(ends[0]) + special.ndtr(-ends[1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tail:
    """What noise hides in the far cells of a column's histogram.

    Args:
        share: (bins,) of the persons, as the smooth margin has them.
        more: (bins,) further persons, as a share of all, in the direction in which the noise moves the column's mean
            most, and by as much as one standard deviation of it does.
        seen: how many times `more` the noisy histogram shows: with a standard error of 1, and without bias.
        edges: (bins + 1,) of the values in its cells.
        column: whose histogram it is.
    """

    share: Array
    more: Array
    seen: float
    edges: Array
    column: Column

    @property
    def _step(self) -> float:
        """By how much `more` moves the column's mean."""
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        return abs(float(self.more @ middles - self.more.sum() * (self.share @ middles)))

    @property
    def inside(self) -> float:
        """How many steps a mean may be off because nobody knows where in their cells persons are, all of them alike.

        None where each cell holds one value.
        """
        width = float(np.diff(self.edges).max())
        return 0.0 if self.column.kind == "integer" and width <= 1 else width / math.sqrt(12) / self._step

    @property
    def most(self) -> float:
        """By how much one step may move a mean, for that to be an answer."""
        low, high = self.column.span
        return _DROWNS * (high - low)

    def margin(self, steps: int = 1) -> Margin:
        """The column's distribution with so many times `more`."""
        share = np.maximum(self.share + steps * self.more, 0.0)
        return smooth_margin(share / share.sum(), self.edges, self.column)


def hidden_tails(release: MomentsRelease, design: Design, j: int, *, alike: bool = False) -> tuple[Tail, ...]:
    """Of covariate j, one to either side where cells are hidden.

    None where it has levels, or is neither skewed nor has more persons far out than noise makes.

    Args:
        alike: another release of the site has such a tail, which this one is read alike with.
    """
    column, edges, n = design.covariates[j], design.edges[j], release.n
    if column.kind not in NUMERIC:
        return ()
    sigma, counts = sigma_of(design.spec, 0), release.histograms[j].astype(float)
    share = smooth_share(counts, n, sigma, edges, design.spec.margins)
    margin, (low, high) = smooth_margin(share, edges, column), column.span
    nearest = min(high - margin.mean, margin.mean - low)
    within = _within(edges, column)
    skewed = special.ndtr(-nearest / max(margin.sd, 1e-12)) > _SKEWED and _has_tail(counts / n, share, within)
    hidden, away = n * share < _HIDDEN * sigma, (within[1:] + within[:-1]) / 2 - margin.mean
    sides = [mask for mask in (hidden & (away > 0), hidden & (away < 0)) if mask.any()]
    stands = any(float((counts - n * share)[mask].sum()) > _STANDS * sigma * math.sqrt(mask.sum()) for mask in sides)
    if not sides or not (alike or skewed or stands):
        return ()
    longer = max(sides, key=lambda mask: float(np.linalg.norm(away[mask])))
    found = []
    for mask in sides:
        # Cells that are not hidden are counted once, with the longer side.
        along = np.where(mask | ~hidden if mask is longer else mask, away, 0.0)
        along *= math.copysign(1.0, away[mask][0]) / np.linalg.norm(along)
        seen = float(along @ (counts - n * share)) / sigma
        found.append(Tail(share=share, more=along * (sigma / n), seen=seen, edges=within, column=column))
    return tuple(found)


def _has_tail(seen: Array, share: Array, edges: Array) -> bool:
    """True if persons lie at the nearer bound, or far from it.

    Args:
        seen: (bins,) shares as the noisy histogram has them. share: as the smooth margin has. edges: (bins + 1,).
    """
    middles = (edges[1:] + edges[:-1]) / 2
    away, strip = middles - share @ middles, max(float(edges[1] - edges[0]), _STRIP * float(edges[-1] - edges[0]))
    low = away[0] + away[-1] > 0  # the mean is nearer to the lower bound
    beside = (edges[1:] if low else -edges[:-1]) <= (edges[0] if low else -edges[-1]) + strip * (1 + 1e-9)
    skewness = float(share @ away**3) / max(float(share @ away**2), 1e-300) ** 1.5
    return float(seen[beside].sum()) >= _PRESSED or (skewness if low else -skewness) > _LONG


def beside_margin(releases: Sequence[MomentsRelease], design: Design, name: str) -> float:
    """Squared distance of a covariate's mean by its histograms to that by its smooth margins, beyond their noise.

    Persons lie in the middle of their cells in both. What noise alone makes of it is taken off: 0 where it is no more,
    and of what is no numeric covariate. Most often margins are off by it at all sites alike.
    """
    j = design.spec.covariates.index(name) if name in design.spec.covariates else -1
    if j < 0 or design.covariates[j].kind not in NUMERIC:
        return 0.0
    column, edges, far, noise = design.covariates[j], design.edges[j], 0.0, 0.0
    within, sigma = _within(edges, column), sigma_of(design.spec, 0)
    middles, persons = (within[1:] + within[:-1]) / 2, sum(release.n for release in releases)
    for release in releases:
        counts = release.histograms[j].astype(float)
        share = smooth_share(counts, release.n, sigma, edges, design.spec.margins)
        away = middles - share @ middles
        far += float(away @ (counts - release.n * share)) / persons
        noise += (sigma / persons) ** 2 * float(away @ away)
    return max(far**2 - noise, 0.0)


def _within(edges: Array, column: Column) -> Array:
    """Edges of the values that each cell may hold: of whole numbers, half a number about those that lie in it."""
    if column.kind != "integer" or edges[0] % 1:  # half numbers: a cell is one value already
        return edges
    found = np.ceil(edges) - 0.5
    found[-1] = edges[-1] + 0.5
    return np.asarray(found)
