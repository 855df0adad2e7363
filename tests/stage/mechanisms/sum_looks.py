"""Places that a secure sum looks from at cohorts, and its bounds."""

from __future__ import annotations

from functools import cache

import numpy as np

from shared.base.randomness import seeded_rng
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.together import places
from shared.mechanisms.secure_sum.influences import Bounds, level_of, look
from shared.simulated import cvd_cohorts
from tests.benchmarks.honest import design, real

SBP, UNIT = 3, 10.0
NARROW = Bounds(column=SBP, unit=UNIT, reach=1.2, least=2.0, most=8.0)


@cache
def cohorts(epsilon=100.0):
    """Five cohorts of a third of their size: places, covariates and outcomes, the records' own estimates."""
    tables = dict(list(cvd_cohorts(np.random.default_rng(3), 0.34).items())[:6])
    plans = {name: design(name, epsilon, False) for name in tables}
    checked = {name: plan.dictionary.check(tables[name]) for name, plan in plans.items()}
    noise = seeded_rng(1)
    releases = [(moments(checked[name], plan, noise), plan) for name, plan in plans.items()]
    data = [plans[name].matrices(checked[name]) for name in tables]
    return places(releases), data, [real(table) for table in tables.values()], releases


def seen(place, coefficient, bounds, x, y):
    """The look at the level that the site's own records have."""
    events, expected = look(place, coefficient, 0.0, bounds).level(x, y).sum(axis=0)
    return look(place, coefficient, level_of(events, expected, 0.0), bounds)


def looks_at(coefficient, bounds):
    found, data, _, _ = cohorts()
    return [seen(place, coefficient, bounds, *both) for place, both in zip(found, data, strict=True)]
