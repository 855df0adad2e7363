"""A secure sum of simulated cohorts in one process, through every message: a plan, its pilots, and what was opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coordinator.pooling.secure_sum.looks import pilot_places
from shared.base.keys import SigningKey
from shared.base.randomness import Noise
from shared.mechanisms.secure_sum.coordinator import SumCoordinator
from shared.mechanisms.secure_sum.influences import noisy_level
from shared.mechanisms.secure_sum.messages import Lists
from shared.mechanisms.secure_sum.opened import OpenedSum, SumPart
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.sent_look import AnySentLook, look_sent
from shared.plans.plan import StudyPlan
from shared.simulated import cvd_cohorts

__all__ = ["Parts", "cohorts", "cohorts_plan", "hearts"]

PLAN = """
study = "cvd"
version = 1
title = "Blood pressure and cardiovascular disease"
purpose = "To pool an adjusted hazard ratio."
coordinator = "hub"
expires = 2030-01-01
posture = "private"
budget = {epsilon = 1000.0, delta = 1e-6}
waves = [{number = 1, opens = 2026-01-01, closes = 2029-01-01}]

[estimands]
main = "cox(time, cvd) ~ sbp/10 + age + chol + hdl"

[release]
mechanism = "secure_sum"
epsilon = EPSILON
outcome = "survival"
responses = ["time", "cvd"]
covariates = ["age", "chol", "hdl", "sbp"]
coefficient = "sbp"
units = 10.0
horizon = 36.0

[release.members]
MEMBERS

[dictionary]
name = "cvd"
version = 1
columns.person = {kind = "person"}
columns.age = {kind = "continuous", lower = 16, upper = 100, unit = "years"}
columns.chol = {kind = "continuous", lower = 60, upper = 600, unit = "mg/dL"}
columns.hdl = {kind = "continuous", lower = 10, upper = 200, unit = "mg/dL"}
columns.sbp = {kind = "continuous", lower = 60, upper = 280, unit = "mmHg"}
columns.time = {kind = "time", upper = 60, event = "cvd", unit = "years"}
columns.cvd = {kind = "event"}
"""

HEARTS = """
study = "hearts"
version = 1
title = "Hearts"
purpose = "To test."
coordinator = "hub"
expires = 2999-01-01
posture = "private"
budget = {epsilon = BUDGET, delta = 1e-6}
waves = [{number = 1, opens = 2026-01-01, closes = 2999-01-01}]

[release]
mechanism = "secure_sum"
epsilon = EPSILON
outcome = "survival"
responses = ["time", "cvd"]
covariates = ["age", "sbp"]
coefficient = "sbp"
units = 10.0
FURTHER
[release.members]
MEMBERS

[dictionary]
name = "hearts"
version = 1
columns.person = {kind = "person"}
columns.age = {kind = "continuous", lower = 20, upper = 100}
columns.sbp = {kind = "continuous", lower = 60, upper = 280}
columns.time = {kind = "time", upper = 30, event = "cvd"}
columns.cvd = {kind = "event"}
"""


def hearts(members: Mapping[str, str], *, epsilon: float, budget: float, further: str = "") -> str:
    """A plan of a secure sum over these sites, each with its key; `further` has more lines of its release."""
    listed = "\n".join(f'{name} = "{key}"' for name, key in members.items())
    values = {"MEMBERS": listed, "EPSILON": f"{epsilon}", "BUDGET": f"{budget}", "FURTHER": further}
    text = HEARTS
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def cohorts(seed: int, share: float = 0.34, sites: int = 6) -> dict[str, pd.DataFrame]:
    """Tables of so many simulated cohorts, in the order of their names."""
    found = dict(list(cvd_cohorts(np.random.default_rng(seed), share).items())[:sites])
    return {name.lower().replace(" ", "-"): table for name, table in sorted(found.items())}


YES_NO = (
    ("cox(time, cvd)", "logistic(cvd)"),
    ('"survival"', '"binary"'),
    ('["time", "cvd"]', '["cvd"]'),
    ("horizon = 36.0\n", ""),
    ('columns.time = {kind = "time", upper = 60, event = "cvd", unit = "years"}\n', ""),
    ('{kind = "event"}', '{kind = "binary"}'),
)
"""What a plan of the same covariates has otherwise where the outcome is a yes or no."""


def cohorts_plan(
    keys: Mapping[str, SigningKey], epsilon: float, *, outcome: str = "survival", **release: Any
) -> StudyPlan:
    """A plan of a secure sum over these sites; `release` has further settings of it."""
    members = "\n".join(f'"{name}" = "{key.public.hex}"' for name, key in keys.items())
    text = PLAN
    for before, after in YES_NO if outcome == "binary" else ():
        text = text.replace(before, after)
    plan = StudyPlan.from_toml(text.replace("MEMBERS", members).replace("EPSILON", f"{float(epsilon)}"))
    given = plan.to_canonical()
    return StudyPlan.from_canonical(given | {"release": given["release"] | release}) if release else plan


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What each site adds to a sum, by its place: its look, the level that it gave, and its numbers in whole steps."""

    looks: Mapping[int, AnySentLook]
    levels: Mapping[int, tuple[float, float]]
    values: Sequence[NDArray[np.int64]]

    @staticmethod
    def of(
        plan: StudyPlan, tables: Sequence[pd.DataFrame], pilots: Mapping[int, tuple[pd.DataFrame, int]], noise: Noise
    ) -> Parts:
        """Over the pilots of these records.

        Args:
            tables: of the sites in the plan's order. pilots: their releases, by place.
        """
        release: Any = plan.release
        design, bounds = release.first(plan.budget.delta).design(plan), release.bounds(plan)
        data = {at: design.matrices(plan.dictionary.check(table)) for at, table in enumerate(tables)}
        places, sigma = pilot_places(plan, pilots), release.level_event(plan).sigma
        first = {at: look_sent(look, len(data[at][0]), bounds, design) for at, look in places.before().items()}
        levels = {at: noisy_level(look, *data[at], sigma, noise) for at, look in first.items()}
        looks, terms = places.after(levels), release.terms(plan)
        rows = {at: look_sent(look, len(data[at][0]), bounds, design).rows(*data[at]) for at, look in looks.items()}
        return Parts(looks=looks, levels=levels, values=[terms.whole_steps(rows[at]) for at in sorted(rows)])

    def opened(self, plan: StudyPlan, coordinator: SumCoordinator, digests: Mapping[int, str]) -> OpenedSum:
        """What the coordinator keeps, by the digests of the pilots' bundles."""
        agreed, release = coordinator.agreement(Lists.SURVIVORS), cast("SecureSumPlan", plan.release)
        return OpenedSum(
            terms=release.terms(plan),
            pilots=digests,
            parts={
                at: SumPart(look=self.looks[at], events=self.levels[at][0], charges=self.levels[at][1])
                for at in coordinator.survivors().sites
            },
            members=coordinator.members_digest,
            signatures=agreed.signatures,
            total=tuple(float(one) for one in coordinator.total()),
        )
