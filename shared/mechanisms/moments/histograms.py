r"""Noisy histograms of several sites, each drawn towards what they have in common as far as its error reaches.

At few persons and a small ε a histogram tells little of its own: the standard deviation that is read off it is a half
or the double of the column's, and with it an outcome's unit. What all sites say together tells much more. With shares
:math:`s_k` of site k, their mean error :math:`v_k` in a cell by sampling and noise, and the mean p by precision,

.. math:: s_k + B_k (p - s_k), \qquad B_k = \frac{v_k}{v_k + T},

T what the shares differ by, in a cell on average, beyond their errors (DerSimonian and Laird's, as `together.shrunk`
has it). Where sites differ, each keeps its own, and a large one draws no other to it.
It is post-processing of released figures. Source: C. N. Morris (1983), J. Am. Stat. Assoc. 78, 47.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shared.mechanisms.moments.margins import fitted_margin
from shared.mechanisms.moments.noise import Design, MomentsRelease
from shared.mechanisms.moments.spec import sigma_of
from shared.plans.dictionary import NUMERIC

__all__ = ["coarse", "drawn_together", "normal_beyond"]

Array = NDArray[np.float64]

COARSE = 0.7
"""A cell of several values with more than this share of the persons hides how they are spread."""
_DROWNED = 2.0
"""Persons, in standard errors of the noise of a whole histogram, below which noise alone may look like a tail."""


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
