"""The flow that nothing but public knowledge gives: the dictionary's bounds and levels, and published figures.

Where a plan's posture lets nothing look at a record, this is the flow; where a flow is trained with noise, it is the
start. It follows from the plan, so whoever has the plan has it: a site that draws rows through it, and a coordinator
that asks what drawing did to them (`coordinator.pooling.gaps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Composed
from shared.flows.levels import LevelModel, Levels
from shared.flows.margins import Margins
from shared.plans.dictionary import NUMERIC, Column
from shared.plans.encoding import Encoder, scaled
from shared.plans.plan import Reference

__all__ = ["MISSING_SHARE", "public_start"]

special = deferred("scipy.special")

Array = NDArray[np.float64]

MISSING_SHARE = 0.1
"""Share of missing values that a public start assumes for a column that may be missing."""


def public_start(encoder: Encoder, reference: Mapping[str, Reference]) -> Composed:
    """The flow that the dictionary and published figures give: independent columns, no record read.

    A numeric column follows the beta law on its public bounds that has the reference's mean and standard deviation;
    without a reference the middle and a quarter of the range. A binary column has the reference's share of ones, any
    other levelled column equal shares. Values at the very bounds are 4.5 to 5 standard deviations out, not more.

    Returns: latents to encoded records; three parts, as `site_agent.models.flow.fit_flow` gives them.
    """
    knots: list[tuple[Array, Array] | None] = []
    models: list[LevelModel] = []
    for column in encoder.dictionary.released:
        known = reference.get(column.name)
        if column.kind in NUMERIC:
            knots.append(_margin(column, known))
            if column.missing == "level":
                models.append(_shares(len(knots), [1 - MISSING_SHARE, MISSING_SHARE]))
                knots.append(None)
            continue
        shares = np.full(len(column.levels), 1 / len(column.levels))
        if known is not None:
            shares = np.array([1 - known.mean, known.mean])
        if column.missing == "level":
            shares = np.append(shares * (1 - MISSING_SHARE), MISSING_SHARE)
        models.append(_shares(len(knots), shares))
        knots.append(None)
    d = encoder.d
    return Composed(
        first=AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d)),
        second=Composed(first=Levels(d=d, models=tuple(models)), second=Margins(knots=tuple(knots))),
    )


def _shares(column: int, shares: Sequence[float] | Array) -> LevelModel:
    return LevelModel(column=column, given=(), counts=(), coefficients=np.log(np.asarray(shares))[None, :])


def _margin(column: Column, known: Reference | None) -> tuple[Array, Array]:
    """Normal scores of a beta law on the public bounds, as knots (scores, encoded values)."""
    lower, upper = column.span
    width = upper - lower
    mean, sd = (0.5, 0.25) if known is None else ((known.mean - lower) / width, known.sd / width)
    # Moments of Beta(a, b): mean a/(a+b), variance mean (1 - mean) / (a + b + 1).
    total = mean * (1 - mean) / sd**2 - 1
    scores = np.linspace(-4.5, 4.5, 61)
    share = special.betaincinv(mean * total, (1 - mean) * total, special.ndtr(scores))
    # An outlier by the reference is still a possible value: the last piece reaches the bound, however steeply, and no
    # latent within the bounds is longer than 5 in any column.
    scores = np.concatenate([[-5.0], scores, [5.0]])
    share = np.concatenate([[0.0], np.clip(share, 1e-9, 1 - 1e-9), [1.0]])
    keep = np.concatenate([[True], np.diff(share) > 0])
    scores, share = scores[keep], share[keep]
    if column.kind == "integer":
        return scores, share * (width + 1)  # codes are value - lower + U(0, 1)
    return scores, scaled(column, share)
