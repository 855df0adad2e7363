"""What an opened sum answers, read from the pilots that it was taken over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.pooling.secure_sum.answer import SummedAnswer
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.summed import summed, weighed
from shared.errors import IntegrityRefusal
from shared.mechanisms.secure_sum.sent_look import SentLook

if TYPE_CHECKING:
    import pandas as pd

    from shared.mechanisms.secure_sum.opened import OpenedSum
    from shared.plans.plan import StudyPlan

__all__ = ["read_sum"]

_CLOSE = 1e-5
"""Relative distance of two figures that another computer's arithmetic may make of the same pilots."""


def read_sum(
    plan: StudyPlan, opened: OpenedSum, tables: Mapping[int, tuple[pd.DataFrame, int]], *, level: float = 0.95
) -> SummedAnswer:
    """The pooled coefficient, per unit of the plan's bounds.

    Args:
        plan: under which the sum was opened.
        tables: of every pilot that the opened sum names, by the place of its site, each with its number of records.
        level: coverage of the interval.
    Raises: IntegrityRefusal (not a sum of this plan, or looks that these pilots do not give), SignatureRefusal, and
        EstimateRefusal and SchemaRefusal where the pilots' own answer is refused.
    """
    opened.verify(plan)
    if tables.keys() != opened.pilots.keys():
        raise IntegrityRefusal("a sum must be read from the pilots that it was taken over", given="others")
    places, sites = pilot_places(plan, tables), opened.survivors.sites
    found = places.looks({site: (part.events, part.charges) for site, part in opened.parts.items()})
    looks = []
    for site in sites:
        sent = opened.parts[site].look
        looks.append(replace(found[site], weight=sent.weight, cut=sent.cut))
        if not _same(SentLook.of(looks[-1], places.start, sent.level), sent):
            raise IntegrityRefusal("a look must be the one that the pilots give", given=f"another of site {site}")
    _, tau2 = weighed(looks, places.pooled(sites))
    names = tuple(plan.release.members)  # type: ignore[attr-defined]
    return summed(
        looks,
        np.array(opened.total),
        opened.sigma,
        opened.start,
        tau2,
        sites=[names[site] for site in sites],
        level=level,
    )


def _same(one: SentLook, other: SentLook) -> bool:
    """Whether two looks have the same numbers, but for the last digits."""
    parts = zip(astuple(one), astuple(other), strict=True)
    return all(np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE) for a, b in parts)
