"""From where a secure sum looks at each site's records: at all pilots together, then at the level the site told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import EstimateRefusal
from shared.mechanisms.secure_sum.influences import SumLook, level_of, look
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.sent_look import SentLook

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.pooling.pool import PooledResult
    from shared.mechanisms.moments.together import SitePlace
    from shared.plans.plan import StudyPlan

__all__ = ["PilotPlaces", "pilot_places"]

_UNSETTLED = 1e3
"""Variance beside that of a pilot that tells nothing: its site is in the sum as all others are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PilotPlaces:
    """Where the pilots have each site, by its place among the plan's members.

    Args:
        effects: (estimate, variance) of the coefficient, per unit of the bounds.
        start: their pooled coefficient, from which all records are looked at.
    """

    plan: StudyPlan
    places: Mapping[int, SitePlace]
    effects: Mapping[int, tuple[float, float]]
    start: float

    def pooled(self, sites: tuple[int, ...]) -> PooledResult:
        """The pilots' own random-effects answer of these sites, in this order."""
        from coordinator.pooling.pool import pool

        release = _release(self.plan)
        names = tuple(release.members)
        yi, vi = zip(*(self.effects[site] for site in sites), strict=True)
        return pool(list(yi), list(vi), labels=[names[site] for site in sites], method="REML", test="adhoc")

    def before(self) -> dict[int, SentLook]:
        """Each site's look before it has told its level."""
        bounds = _release(self.plan).bounds(self.plan)
        return {
            site: SentLook.of(look(place, self.start, 0.0, bounds), self.start, 0.0)
            for site, place in self.places.items()
        }

    def looks(self, levels: Mapping[int, tuple[float, float]]) -> dict[int, SumLook]:
        """Each site's look at the level that it told, without a weight.

        Args:
            levels: events and charges, as told.
        """
        release = _release(self.plan)
        bounds, sigma = release.bounds(self.plan), release.level_event(self.plan).sigma
        return {
            site: look(self.places[site], self.start, level_of(*levels[site], sigma), bounds) for site in sorted(levels)
        }

    def after(self, levels: Mapping[int, tuple[float, float]]) -> dict[int, SentLook]:
        """Each site's look, with its weight among the sites that told their level."""
        from coordinator.pooling.secure_sum.summed import weighed

        sigma = _release(self.plan).level_event(self.plan).sigma
        found = self.looks(levels)
        sites = tuple(found)
        looks, _ = weighed([found[site] for site in sites], self.pooled(sites))
        return {
            site: SentLook.of(one, self.start, level_of(*levels[site], sigma))
            for site, one in zip(sites, looks, strict=True)
        }


def pilot_places(plan: StudyPlan, tables: Mapping[int, tuple[pd.DataFrame, int]]) -> PilotPlaces:
    """The places of the pilots with these tables and numbers of records, drawn together.

    Raises: EstimateRefusal, SchemaRefusal: what the pilots' own answer refuses.
    """
    from coordinator.pooling.pool import pool

    release = _release(plan)
    first, bounds = release.first(plan.budget.delta), release.bounds(plan)
    sites = sorted(tables)
    try:
        found = dict(zip(sites, first.places(plan, [tables[site] for site in sites]), strict=True))
    except np.linalg.LinAlgError:
        raise EstimateRefusal(
            "the pilots of a secure sum must determine effects", given="figures that do not"
        ) from None
    effects = {}
    for site, place in found.items():
        seen, column = place.effects, bounds.column
        variance = float(seen.sampling[column] + seen.privacy[column]) * bounds.unit**2
        effects[site] = (bounds.unit * float(seen.effects[column]), variance + (_UNSETTLED if seen.lost else 0.0))
    yi, vi = zip(*effects.values(), strict=True)
    start = pool(list(yi), list(vi), method="REML", test="adhoc").beta
    return PilotPlaces(plan=plan, places=found, effects=effects, start=float(start))


def _release(plan: StudyPlan) -> SecureSumPlan:
    assert isinstance(plan.release, SecureSumPlan)
    return plan.release
