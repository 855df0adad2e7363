"""Noisy histograms of several sites, drawn together, and what small hospitals' measurements are read with."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.moments.histograms import drawn_together, normal_beyond
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
    """By their own histograms such hospitals take a measurement's spread for severalfold different ones."""
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
    assert left == pytest.approx(2.0, rel=0.2)


def test_what_noise_is_left_on_a_count_is_what_is_said():
    rng = np.random.default_rng(5)
    n, sigmas = [200, 400, 900, 2000], [30.0, 20.0, 20.0, 10.0]
    shares = np.full(10, 0.1)
    persons = np.outer(n, shares)
    found = [drawn_together(persons + rng.normal(0, 1, (4, 10)) * np.c_[sigmas], n, sigmas) for _ in range(400)]
    # Sites that noise makes look unlike are said to be left with more than they are.
    said = np.sqrt(np.mean([left**2 for _, left in found], axis=0))
    seen = np.sqrt(np.mean([((drawn - persons) ** 2).mean(axis=1) for drawn, _ in found], axis=0))
    assert (seen < 1.05 * said).all()
    assert (said < 1.5 * seen).all()
    assert (said < 1.1 * np.array(sigmas)).all()


def test_a_large_hospital_that_is_unlike_draws_no_small_one_to_it():
    """One of 20,000 beside three of 300: with what sites differ by told too small, all three became the large one."""
    rng = np.random.default_rng(6)
    law = np.exp(-0.5 * ((np.arange(32) - 10) / 3.0) ** 2)
    law /= law.sum()
    n, sigmas = [20_000, 300, 300, 300], [10.0] * 4
    laws = [np.roll(law, shift) for shift in (6, 0, -1, 1)]
    own = drawn = 0.0
    for _ in range(100):
        counts = np.array([rng.multinomial(size, one) for size, one in zip(n, laws, strict=True)], dtype=float)
        counts += rng.normal(0, 10, counts.shape)
        together, _ = drawn_together(counts, n, sigmas)
        for k in (1, 2, 3):
            own += np.square(counts[k] / 300 - laws[k]).sum()
            drawn += np.square(together[k] / 300 - laws[k]).sum()
    assert drawn < 0.9 * own


def test_what_is_left_on_a_count_has_what_drawing_to_a_mean_adds():
    rng = np.random.default_rng(7)
    law = np.exp(-0.5 * ((np.arange(24) - 12) / 3.0) ** 2)
    law /= law.sum()
    laws, n, sigmas = [np.roll(law, shift) for shift in (-3, -2, -1, 1, 2, 3)], [1000] * 6, [30.0] * 6
    squares, said = np.zeros(6), np.zeros(6)
    for _ in range(200):
        counts = np.array([rng.multinomial(1000, one) for one in laws]) + rng.normal(0, 30, (6, 24))
        drawn, left = drawn_together(counts, n, sigmas)
        squares += np.square(drawn - 1000 * np.array(laws)).mean(axis=1) / 200
        said += (left**2 + 1000 / 24) / 200
    assert (squares < 1.2 * said).mean() >= 0.5
    assert squares.mean() < 1.15 * said.mean()


def test_a_hospital_whose_figures_deny_each_other_moves_nobody():
    """Histograms of nobody beside sums of its records, of five thousand persons by its own word."""
    small = plan()
    tables = {f"h{k}": hospital(700 + k, 1000) for k in range(7)}
    figures = {
        site: [(small.release.draw(small, small.dictionary.check(table), seeded_rng(k)), len(table))]
        for k, (site, table) in enumerate(tables.items())
    }
    made = figures["h0"][0][0].copy()
    counts = (made["block"] == "histogram").to_numpy()
    for name in ("age", "sbp", "score"):
        cells = np.flatnonzero(counts & made["figure"].str.startswith(name).to_numpy())
        made.loc[cells, "value"] = 0
        made.loc[cells[[0, -1]], "value"] = 2500
    others = {site: one for site, one in figures.items() if site != "h0"}

    def together(figures):
        origins = {site: {"study": "small", "site": site, "wave": 1} for site in figures}
        return small.release.together(small, figures, QUESTION, origins=origins)

    without, beside = together(others), together({"h0": [(made, 5000)], **others})
    assert {row.yi for row in beside["h0"]} == {None}
    for site in others:
        assert [row.yi for row in beside[site]] == pytest.approx([row.yi for row in without[site]], rel=1e-9)


def measured(score):
    """Eight hospitals of 900 whose score is of that law; the cautions beside their pooled answers, and the share."""
    small = plan()
    figures = {}
    for k in range(8):
        table = hospital(800 + k, 900)
        table["score"] = np.clip(score(table, np.random.default_rng(k)), 0, 100)
        figures[f"h{k}"] = [(small.release.draw(small, small.dictionary.check(table), seeded_rng(k)), len(table))]
    origins = {site: {"study": "small", "site": site, "wave": 1} for site in figures}
    found = small.release.together(small, figures, QUESTION, origins=origins)
    releases = [small.release.release(small, table, n) for ((table, n),) in figures.values()]
    doubts = [
        pool_estimates([row for rows in found.values() for row in rows if row.term == term]).doubts
        for term in ("age/10", "sbp/10")
    ]
    return doubts, normal_beyond(releases, small.release.design(small))


def test_a_measurement_with_a_long_tail_is_told_beside_every_coefficient():
    """Weeks off work were answered too near to no effect, in half the width of the records' own, without a word."""
    doubts, share = measured(lambda table, rng: rng.lognormal(1.4 + 0.1 * (table["age"] - 62) / 10, 1.2))
    assert 0.05 < share < 0.5
    for said in doubts:
        (caution,) = said
        assert caution.startswith("score is unlike a measurement with normal residuals")
        assert f"{100 * share:.0f} % would lie beyond its bounds" in caution


def test_a_measurement_without_a_tail_carries_no_such_caution():
    doubts, share = measured(lambda table, rng: table["score"])
    assert share < 0.01
    assert doubts == [(), ()]


def test_a_study_of_another_outcome_has_no_share_beyond_the_bounds():
    small = plan()
    release = replace(small.release, outcome="count")
    count = Column(name="score", kind="integer", lower=0, upper=100)
    counted = replace(
        small,
        release=release,
        dictionary=replace(small.dictionary, columns=(count, *small.dictionary.columns[1:])),
        estimands={"planned": "poisson(score) ~ age/10 + sbp/10"},
    )
    table = hospital(1, 900).round({"score": 0})
    drawn = release.draw(counted, counted.dictionary.check(table), seeded_rng(1))
    assert normal_beyond([release.release(counted, drawn, 900)], release.design(counted)) == 0


def test_one_hospital_and_two_of_unlike_size_are_answered_without_it():
    """No sites are read beside each other there, and an empty sum of histograms was no array."""
    small = plan()
    assert normal_beyond([], small.release.design(small)) == 0
    figures = {}
    for site, n in (("large", 900), ("small", 800)):
        table = hospital(n, n)
        figures[site] = [(small.release.draw(small, small.dictionary.check(table), seeded_rng(n)), n)]
    origins = {site: {"study": "small", "site": site, "wave": 1} for site in figures}
    assert set(small.release.together(small, figures, QUESTION, origins=origins)) == {"large"}
    assert small.release.together(small, {"small": figures["small"]}, QUESTION, origins=origins) == {}


def test_histograms_that_noise_drowns_show_no_tail():
    small = plan()
    releases = []
    for k in range(8):
        table = hospital(900 + k, 60)
        drawn = small.release.draw(small, small.dictionary.check(table), seeded_rng(k))
        release = small.release.release(small, drawn, 60)
        counts = [*release.histograms[:-1], np.zeros_like(release.histograms[-1])]
        releases.append(replace(release, histograms=tuple(counts)))
    assert normal_beyond(releases, small.release.design(small)) == 0
