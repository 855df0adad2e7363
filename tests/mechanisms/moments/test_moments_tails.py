"""Means of skewed covariates: what noise hides in far cells is counted as the histogram shows it, with its error."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.mechanisms.moments_factors import plan_of

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.mechanisms.moments import histograms
from shared.mechanisms.moments.histograms import Tail, beside_margin, hidden_tails
from shared.mechanisms.moments.margins import smooth_share
from shared.mechanisms.moments.noise import read
from shared.mechanisms.moments.plan import _tails
from shared.mechanisms.moments.spec import sigma_of
from shared.plans.dictionary import Column

AGE = Column(name="age", kind="continuous", lower=20, upper=100, decimals=1)
CRP = Column(name="crp", kind="continuous", lower=0, upper=300, decimals=1)
SEX = Column(name="sex", kind="binary")
DIED = Column(name="died", kind="binary")
ORIGIN = {"study": "trial", "site": "north", "wave": 1}


def study(epsilon: float):
    names = ("age", "crp", "sex")
    return plan_of((AGE, CRP, SEX, DIED), names, declared=list(names), epsilon=epsilon)


def records(seed: int, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    crp = np.clip(np.exp(rng.normal(math.log(8), 1.5, n)), 0, 300).round(1)
    age = np.clip(rng.normal(60, 10, n), 20, 100).round(1)
    return pd.DataFrame({"age": age, "crp": crp, "sex": rng.integers(0, 2, n), "died": rng.integers(0, 2, n)})


def released(plan, seed: int, n: int):
    """A release, as it is read, and its records."""
    checked = plan.dictionary.check(records(seed, n))
    figures, design = plan.release.draw(plan, checked, seeded_rng(seed)), plan.release.design(plan)
    return figures, read(plan.release.release(plan, figures, n).to_bytes(), design), checked


def test_pooled_means_of_a_skewed_covariate_hold_those_of_the_records():
    """A smooth margin alone has next to nobody far out: at every site too few, so that a pool is the surer of it."""
    plan, question = study(3.0), parse_estimand("mean(crp)")
    ours, theirs = [], []
    for seed in range(12):
        figures, _, checked = released(plan, seed, 4000)
        ours += plan.release.answer(plan, [(figures, 4000)], question, levels={}, **ORIGIN | {"site": f"h{seed}"})
        theirs += estimate(checked, question, **ORIGIN | {"site": f"h{seed}"})
    apart = [(a.yi - b.yi) / math.sqrt(a.vi_privacy) for a, b in zip(ours, theirs, strict=True)]
    assert np.abs(apart).max() < 3.5
    assert abs(np.mean(apart)) < 1
    pooled, real = pool_estimates(ours), pool_estimates(theirs)
    assert pooled.ci_lb < real.beta < pooled.ci_ub
    assert pooled.ci_ub - pooled.ci_lb < 0.75 * real.beta
    assert all("crp is skewed" in row.warnings[1] and row.vi_common > 0 for row in ours)


def test_what_a_histogram_shows_of_a_tail_is_without_bias_and_has_the_noise_s_own_error():
    plan = study(3.0)
    design = plan.release.design(plan)
    _, first, checked = released(plan, 1, 2000)
    tail = hidden_tails(first, design, 1)[0]
    assert isinstance(tail, Tail)
    sigma, rng = sigma_of(design.spec, 0), np.random.default_rng(7)
    exact = np.histogram(checked["crp"].astype(float), tail.edges)[0]
    along = tail.more / np.linalg.norm(tail.more)
    assert np.linalg.norm(tail.more) * 2000 == pytest.approx(sigma)
    wrong = []
    for _ in range(300):
        noisy = np.rint(exact + rng.normal(0, sigma, len(exact))).astype(np.int64)
        other = hidden_tails(replace(first, histograms=(first.histograms[0], noisy, *first.histograms[2:])), design, 1)[
            0
        ]
        # What the smooth margin and the steps beside it make of the column's mean, and what its cells say.
        middles = (other.edges[1:] + other.edges[:-1]) / 2
        mean = other.share @ middles + other.seen * (other.more @ middles - other.more.sum() * (other.share @ middles))
        wrong.append((mean - exact @ middles / 2000) / abs(other.more @ middles))
    assert abs(np.mean(wrong)) < 0.35
    assert 0.7 < np.std(wrong) < 1.2
    assert along @ (exact / 2000 - tail.share) > 0


def test_a_column_with_levels_or_without_a_tail_is_answered_as_before():
    plan = study(3.0)
    design = plan.release.design(plan)
    figures, release, _ = released(plan, 3, 2000)
    assert hidden_tails(release, design, 0) == ()
    assert hidden_tails(release, design, 2) == ()
    for question in ("mean(age)", "proportion(sex)"):
        levels = {"sex": SEX.levels}
        (row,) = plan.release.answer(plan, [(figures, 2000)], parse_estimand(question), levels=levels, **ORIGIN)
        assert len(row.warnings) == 1
        assert row.vi_common == 0


WORKING = Column(name="age", kind="continuous", lower=18, upper=100, decimals=1)


@pytest.mark.parametrize(
    ("law", "upside_down", "tailed"),
    [("working", False, False), ("working", True, False), ("late", False, True), ("late", True, True)],
)
def test_a_column_that_ends_before_its_nearer_bound_has_a_tail_only_where_persons_lie_far_from_it(
    law, upside_down, tailed
):
    """Ages of 25 to 59 lie near the lower bound, as a skewed column does, and have none."""
    names = ("age", "crp", "sex")
    plan = plan_of((WORKING, CRP, SEX, DIED), names, declared=list(names), epsilon=10.0)
    rng, n = np.random.default_rng(6), 4000
    age = rng.uniform(25, 59, n) if law == "working" else (27 + np.exp(rng.normal(1.9, 0.9, n))).clip(18, 100)
    age = 118 - age if upside_down else age
    checked = plan.dictionary.check(records(6, n).assign(age=age.round(1)))
    design = plan.release.design(plan)
    figures = plan.release.draw(plan, checked, seeded_rng(6))
    release = read(plan.release.release(plan, figures, n).to_bytes(), design)
    assert bool(hidden_tails(release, design, 0)) == tailed
    assert hidden_tails(release, design, 1)
    (row,) = plan.release.answer(plan, [(figures, n)], parse_estimand("mean(age)"), levels={}, **ORIGIN)
    assert any("age is skewed" in said for said in row.warnings) == tailed


def test_persons_far_out_of_a_column_that_is_not_skewed_are_seen_where_they_stand_out_of_the_noise():
    plan = study(100.0)
    rng, n = np.random.default_rng(5), 4000
    odd = records(5, n).assign(crp=np.where(rng.random(n) < 0.03, rng.uniform(100, 300, n), rng.normal(120, 8, n)))
    odd["crp"] = odd["crp"].clip(0, 300).round(1)
    checked = plan.dictionary.check(odd)
    figures = plan.release.draw(plan, checked, seeded_rng(5))
    (row,) = plan.release.answer(plan, [(figures, n)], parse_estimand("mean(crp)"), levels={}, **ORIGIN)
    assert abs(row.yi - checked["crp"].astype(float).mean()) < 3 * math.sqrt(row.vi_privacy + row.vi_common)


def test_a_mean_has_no_answer_where_noise_hides_all_that_it_is_made_of_and_what_else_is_asked_has():
    plan = study(1.0)
    figures, _, _ = released(plan, 2, 200)

    def asked(question: str) -> list[Estimate]:
        levels = {"sex": SEX.levels, "died": DIED.levels}
        return plan.release.answer(plan, [(figures, 200)], parse_estimand(question), levels=levels, **ORIGIN)

    (mean,) = asked("mean(crp)")
    assert mean.yi is None
    assert "the far values of crp" in mean.reason
    described = {row.term: row for row in asked("table_one(age, crp)")}
    assert described["mean(crp)"].yi is None
    assert described["mean(age)"].yi is not None
    (effect,) = asked("logistic(died) ~ crp/10")
    assert effect.yi is not None
    assert effect.vi_privacy > 0


def held(column: Column, epsilon: float, draw, n: int = 4000, waves: int = 1, sites: int = 8) -> tuple[bool, float]:
    """Whether the pooled interval of the column's mean holds the records', and how far off it is, as a share."""
    names = ("age", "crp", "sex")
    plan = plan_of((AGE, column, SEX, DIED), names, declared=list(names), epsilon=epsilon)
    ours, theirs = [], []
    for site in range(sites):
        figures, tables = [], []
        for wave in range(waves):
            rng = np.random.default_rng([site, wave])
            values = np.clip(draw(rng, n), 0, column.upper).round(column.decimals or 0)
            checked = plan.dictionary.check(records(100 * site + wave, n).assign(crp=values))
            figures.append((plan.release.draw(plan, checked, seeded_rng(100 * site + wave)), n))
            tables.append(checked)
        origin = ORIGIN | {"site": f"h{site}"}
        ours += plan.release.answer(plan, figures, parse_estimand("mean(crp)"), levels={}, **origin)
        theirs += estimate(pd.concat(tables, ignore_index=True), parse_estimand("mean(crp)"), **origin)
    pooled, real = pool_estimates(ours), pool_estimates(theirs)
    return pooled.ci_lb < real.beta < pooled.ci_ub, abs(pooled.beta / real.beta - 1)


@pytest.mark.parametrize(("upper", "spread"), [(64, 5.0), (32, 2.5)], ids=["two in a cell", "two in the last cell"])
def test_whole_numbers_are_where_they_lie_in_their_cells(upper, spread):
    column = Column(name="crp", kind="integer", lower=0, upper=upper)
    right, off = held(column, 10.0, lambda rng, n: np.floor(rng.gamma(2, spread, n)))
    assert right
    assert off < 0.03


def test_values_at_the_edge_of_every_cell_are_within_what_sites_may_be_off_by_alike():
    column = replace(CRP, upper=320)
    assert held(column, 10.0, lambda rng, n: 10 * np.rint(rng.gamma(1.5, 40, n) / 10))[0]


def test_persons_far_out_on_both_sides_are_counted_on_both():
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        which = rng.random(n)
        low, high = which < 0.02, which > 0.98
        return np.where(low, rng.uniform(0, 60, n), np.where(high, rng.uniform(220, 300, n), rng.normal(140, 25, n)))

    right, off = held(CRP, 10.0, draw)
    assert right
    assert off < 0.01


def test_releases_of_one_site_are_read_alike():
    """Where one of its waves shows a tail: else the others would have neither their sums' noise nor their cells'."""
    column = replace(CRP, upper=100)
    names = ("age", "crp", "sex")
    plan = plan_of((AGE, column, SEX, DIED), names, declared=list(names), epsilon=3.0)
    design, found = plan.release.design(plan), {}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        values = np.clip(np.exp(rng.normal(math.log(40), 0.4, 2000)), 0, 100).round(1)
        checked = plan.dictionary.check(records(seed, 2000).assign(crp=values))
        given = plan.release.release(plan, plan.release.draw(plan, checked, seeded_rng(seed)), 2000)
        found.setdefault(bool(hidden_tails(given, design, 1)), given.to_bytes())
    assert _tails((found[False],), design) == ({},)
    assert [[*one] for one in _tails((found[False], found[True]), design)] == [[1], [1]]
    assert all(one[1] for one in _tails((found[False], found[True]), design))


def test_a_slope_is_not_held_against_the_range_of_a_column():
    column = replace(CRP, upper=1, decimals=2)
    names = ("age", "crp", "sex")
    plan = plan_of((AGE, column, SEX, DIED), names, declared=list(names), epsilon=3.0)
    values = np.random.default_rng(3).beta(1.2, 8, 2000).round(2)
    checked = plan.dictionary.check(records(3, 2000).assign(crp=values))
    figures = plan.release.draw(plan, checked, seeded_rng(3))
    (slope,) = plan.release.answer(plan, [(figures, 2000)], parse_estimand("ols(age) ~ crp"), levels={}, **ORIGIN)
    assert slope.yi is not None
    assert len(slope.warnings) == 2


def test_a_mean_counts_what_its_smooth_margin_is_seen_to_be_off_by(monkeypatch):
    """Of years at school in a survey the margin lay .1 too high at every site, in intervals of less."""
    plan = study(10.0)
    design = plan.release.design(plan)
    figures, release, _ = released(plan, 3, 3000)
    sigma, fitted = sigma_of(design.spec, 0), smooth_share

    def too_high(counts, n, sigma, edges, shape):
        share = fitted(counts, n, sigma, edges, shape)
        return np.append(0.0, 0.9 * share[:-1]) + 0.1 * share  # nine in ten are a cell further up

    monkeypatch.setattr(histograms, "smooth_share", too_high)
    found = beside_margin([release], design, "age")
    width = design.edges[0][1] - design.edges[0][0]
    middles = (design.edges[0][1:] + design.edges[0][:-1]) / 2
    noise = (sigma / 3000) ** 2 * float(((middles - middles.mean()) ** 2).sum())
    assert math.sqrt(found) == pytest.approx(0.9 * width, abs=4 * math.sqrt(noise))
    assert beside_margin([release, release], design, "age") > found, "of two releases the noise is less"
    assert beside_margin([release], design, "sex") == 0, "a level has no margin"

    def common(text: str) -> float:
        levels = {"sex": SEX.levels}
        (row,) = plan.release.answer(plan, [(figures, 3000)], parse_estimand(text), levels=levels, **ORIGIN)
        return row.vi_common

    assert common("mean(age)") == pytest.approx(found)
    assert common("ols(age) ~ sex") == common("proportion(sex)") == 0
