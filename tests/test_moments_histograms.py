"""Noisy histograms of several sites, drawn together, and what small hospitals' measurements are read with."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.moments.histograms import drawn_together
from shared.mechanisms.moments.plan import MomentsPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave

DAY = dt.date(2026, 1, 1)
QUESTION = parse_estimand("ols(score) ~ age/10 + sbp/10")


def plan() -> StudyPlan:
    columns = (
        Column(name="score", kind="continuous", lower=0, upper=100),
        Column(name="age", kind="continuous", lower=18, upper=100),
        Column(name="sbp", kind="continuous", lower=60, upper=260),
    )
    release = MomentsPlan(
        epsilon=1.0, outcome="linear", responses=("score",), covariates=("age", "sbp"), declared=("age", "sbp")
    )
    return StudyPlan(
        study="small",
        version=1,
        title="Small hospitals",
        purpose="Read together.",
        coordinator="hub",
        expires=DAY,
        release=release,
        posture="private",
        budget=Budget(epsilon=10.0, delta=1e-6),
        waves=(Wave(number=1, opens=DAY, closes=DAY),),
        dictionary=Dictionary(name="small", version=1, columns=columns),
        estimands={"planned": str(QUESTION)},
    )


def hospital(seed: int, n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(62, 11, n), 18, 100)
    sbp = np.clip(135 + 0.4 * (age - 62) + rng.normal(0, 18, n), 60, 260)
    score = np.clip(40 + 2.5 * (age - 62) / 10 - 1.0 * (sbp - 135) / 10 + rng.normal(0, 6, n), 0, 100)
    return pd.DataFrame({"score": score, "age": age, "sbp": sbp})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_twelve_small_hospitals_read_a_measurement_in_a_unit_that_they_have_in_common(seed):
    """By its own histogram a hospital of 300 takes a measurement's spread for a quarter to the double of what it is."""
    small = plan()
    tables = {f"h{k}": hospital(100 * seed + k) for k in range(12)}
    figures = {
        site: [(small.release.draw(small, small.dictionary.check(table), seeded_rng(10 * seed + k)), len(table))]
        for k, (site, table) in enumerate(tables.items())
    }
    origins = {site: {"study": "small", "site": site, "wave": 1} for site in tables}
    released = small.release.together(small, figures, QUESTION, origins=origins)
    real = [row for site, table in tables.items() for row in estimate(table, QUESTION, **origins[site])]
    for term in ("age/10", "sbp/10"):
        ours = pool_estimates([row for rows in released.values() for row in rows if row.term == term])
        theirs = pool_estimates([row for row in real if row.term == term])
        assert abs(ours.beta - theirs.beta) < 2.5 * ours.se, term
        assert ours.I2 < 50, term


def test_histograms_of_sites_that_are_alike_become_one_and_of_others_stay_their_own():
    rng = np.random.default_rng(4)
    law = np.array([0.05, 0.15, 0.4, 0.3, 0.1])
    n, sigmas = [300] * 8, [25.0] * 8
    alike = rng.multinomial(300, law, 8) + rng.normal(0, 25, (8, 5))
    drawn, left = drawn_together(alike, n, sigmas)
    assert np.abs(drawn / 300 - law).max() < 0.06 < np.abs(alike / 300 - law).max()
    assert (left < 15).all()
    apart = np.array([rng.multinomial(300, np.roll(law, k), 1)[0] for k in range(8)]) + rng.normal(0, 2, (8, 5))
    kept, left = drawn_together(apart, n, [2.0] * 8)
    assert np.abs(kept - apart).max() < 4
    assert left == pytest.approx(2.0, rel=0.05)


def test_what_noise_is_left_on_a_count_is_what_is_said():
    rng = np.random.default_rng(5)
    n, sigmas = [200, 400, 900, 2000], [30.0, 20.0, 20.0, 10.0]
    shares = np.full(10, 0.1)
    persons = np.outer(n, shares)
    found = [drawn_together(persons + rng.normal(0, 1, (4, 10)) * np.c_[sigmas], n, sigmas) for _ in range(400)]
    # Where noise makes sites look unlike by chance less is drawn, so that what is said is said of each draw.
    said = np.sqrt(np.mean([left**2 for _, left in found], axis=0))
    seen = np.sqrt(np.mean([((drawn - persons) ** 2).mean(axis=1) for drawn, _ in found], axis=0))
    assert seen == pytest.approx(said, rel=0.15)
    assert (said < 1.01 * np.array(sigmas)).all()
