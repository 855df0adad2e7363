"""Looks of a secure sum at each site's records: first by all pilots, then by the level that the site reported."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal
from shared.mechanisms.moments.outcomes import Survival
from shared.mechanisms.secure_sum.influences import Bounds, SumLook, level_of, look
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.sent_look import AnySentLook, sent
from shared.mechanisms.secure_sum.variants import Variant, pilot_effects
from shared.mechanisms.secure_sum.vectors import VectorBounds, VectorLook, vector_look

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.pooling.pool import PooledResult
    from coordinator.pooling.secure_sum.summed import Heterogeneity
    from shared.mechanisms.moments.together import SitePlace
    from shared.plans.plan import StudyPlan

__all__ = ["PilotPlaces", "pilot_places"]

_UNSETTLED = 1e3
"""Variance added to that of a pilot without information: its site is in the sum as all others are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PilotPlaces:
    """Estimates of each site from the pilots, keyed by the site's place among the plan's members.

    Args:
        effects: of each summed coefficient (estimate, variance), per unit of the bounds; of variants of the planned
            model what the pilot's model makes of it.
        start: pooled coefficients of the pilots, at which the influences of all records are evaluated.
    """

    plan: StudyPlan
    places: Mapping[int, SitePlace]
    effects: Mapping[int, tuple[tuple[float, float], ...]]
    start: tuple[float, ...]

    def pooled(self, sites: tuple[int, ...], coefficient: int = 0) -> PooledResult:
        """The pilots' own random-effects answer of these sites, in this order, of a summed coefficient by its place."""
        from coordinator.pooling.pool import pool

        release = _release(self.plan)
        names = tuple(release.members)
        yi, vi = zip(*(self.effects[site][coefficient] for site in sites), strict=True)
        return pool(list(yi), list(vi), labels=[names[site] for site in sites], method="REML", test="adhoc")

    @property
    def deviations(self) -> dict[int, NDArray[np.float64]]:
        """Of each site: (coefficients,) its model's standard deviation of each's covariate, in its units.

        Of yes or no it is one half, however many say yes.
        """
        columns, units, variants = _coefficients(_release(self.plan).bounds(self.plan))
        columns, units = (*columns, *(one.column for one in variants)), (*units, *(one.unit for one in variants))
        scales = {site: place.model.lens.scale[list(columns)] for site, place in self.places.items()}
        return {site: np.asarray(scale / np.array(units)) for site, scale in scales.items()}

    def start_errors(self) -> NDArray[np.float64]:
        """(coefficients,) standard error of each start per standard deviation of its covariate, the sites' median."""
        errors = [self.pooled(tuple(self.places), at).se for at in range(len(self.start))]
        return np.array(errors) * np.median(list(self.deviations.values()), axis=0)

    def before(self) -> dict[int, AnySentLook]:
        """Each site's look before it has reported its level."""
        return {site: sent(self._look(site, 0.0), self.start, 0.0) for site in self.places}

    def looks(self, levels: Mapping[int, tuple[float, float]]) -> dict[int, SumLook | VectorLook]:
        """Each site's look at the level that it reported, without a weight.

        Args:
            levels: events and charges, as reported.
        """
        sigma = _release(self.plan).level_event(self.plan).sigma
        return {site: self._look(site, level_of(*levels[site], sigma)) for site in sorted(levels)}

    def weighed(
        self, looks: Mapping[int, SumLook | VectorLook]
    ) -> tuple[dict[int, SumLook | VectorLook], tuple[Heterogeneity, ...]]:
        """The looks with what goes over all of them; how sites differ in each summed coefficient."""
        from coordinator.pooling.secure_sum.summed import weighed
        from coordinator.pooling.secure_sum.vectors import weighed_vectors

        release, sites = _release(self.plan), tuple(looks)
        single = [one for one in looks.values() if isinstance(one, SumLook)]
        if single:
            found, differing = weighed(single, self.pooled(sites))
            return dict(zip(sites, found, strict=True)), (differing,)
        several = [one for one in looks.values() if isinstance(one, VectorLook)]
        pilots = [self.pooled(sites, at) for at in range(len(self.start))]
        vectors, between = weighed_vectors(
            several, pilots, release.terms(self.plan).sigma, centred=release.held == "centred"
        )
        return dict(zip(sites, vectors, strict=True)), between

    def after(self, levels: Mapping[int, tuple[float, float]]) -> dict[int, AnySentLook]:
        """Each site's look, with its weight among the sites that reported their level."""
        sigma = _release(self.plan).level_event(self.plan).sigma
        looks, _ = self.weighed(self.looks(levels))
        return {site: sent(one, self.start, level_of(*levels[site], sigma)) for site, one in looks.items()}

    def _look(self, site: int, level: float) -> SumLook | VectorLook:
        bounds = _release(self.plan).bounds(self.plan)
        if isinstance(bounds, VectorBounds):
            return vector_look(self.places[site], self.start, level, bounds)
        return look(self.places[site], self.start[0], level, bounds)


def pilot_places(plan: StudyPlan, tables: Mapping[int, tuple[pd.DataFrame, int]]) -> PilotPlaces:
    """The places of the pilots with these tables and numbers of records, drawn together.

    Raises: EstimateRefusal, SchemaRefusal: what the pilots' own answer refuses.
    """
    from coordinator.pooling.pool import pool

    release = _release(plan)
    first, bounds = release.first(plan.budget.delta), release.bounds(plan)
    sites = sorted(tables)
    try:
        together = release.places == "together"
        placed = first.places(plan, [tables[site] for site in sites], alike=together)
        columns, units, variants = _coefficients(bounds)
        times = _times(variants)
        found = dict(zip(sites, (_finer(one, times) for one in placed) if together else placed, strict=True))
    except np.linalg.LinAlgError:
        raise EstimateRefusal(
            "the pilots of a secure sum must determine effects", given="figures that do not"
        ) from None
    effects = {site: _effects(place, columns, units, variants) for site, place in found.items()}
    start = []
    for at in range(len(columns) + len(variants)):
        yi, vi = zip(*(one[at] for one in effects.values()), strict=True)
        start.append(float(pool(list(yi), list(vi), method="REML", test="adhoc").beta))
    return PilotPlaces(plan=plan, places=found, effects=effects, start=tuple(start))


def _coefficients(
    bounds: Bounds | VectorBounds,
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[Variant, ...]]:
    """Covariates of the planned coefficients, the unit of each, and the variants that are summed beside them."""
    if isinstance(bounds, VectorBounds):
        return bounds.columns, bounds.units, bounds.variants
    return (bounds.column,), (bounds.unit,), ()


def _times(variants: tuple[Variant, ...]) -> list[float]:
    """At which windows begin and end."""
    return sorted({time for one in variants for time in one.window if 0 < time < math.inf})


def _finer(place: SitePlace, times: Sequence[float]) -> SitePlace:
    """A place with smoother hazards: of few intervals a regression is a little flatter than Cox's.

    Args:
        times: at which intervals begin, too.
    """
    outcome = place.model.outcome
    if not isinstance(outcome, Survival):
        return place
    model = copy.copy(place.model)
    model.outcome = outcome.finer().split(times) if times else outcome.finer()
    return replace(place, model=model)


def _effects(
    place: SitePlace, columns: tuple[int, ...], units: tuple[float, ...], variants: tuple[Variant, ...]
) -> tuple[tuple[float, float], ...]:
    seen, more = place.effects, _UNSETTLED if place.effects.lost else 0.0
    planned = (
        (unit * float(seen.effects[at]), float(seen.sampling[at] + seen.privacy[at]) * unit**2)
        for at, unit in zip(columns, units, strict=True)
    )
    return tuple((estimate, variance + more) for estimate, variance in (*planned, *pilot_effects(place, variants)))


def _release(plan: StudyPlan) -> SecureSumPlan:
    assert isinstance(plan.release, SecureSumPlan)
    return plan.release
