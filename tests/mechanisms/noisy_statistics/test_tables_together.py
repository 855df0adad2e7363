"""Noisy tables of several sites: one model of all their counts, and a step from it to each one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.tables import together as sites_together
from shared.mechanisms.tables.apart import between, fitted_apart
from shared.mechanisms.tables.latent_class import consistent, fit
from shared.mechanisms.tables.noise import CountTables, Zero, attributes
from shared.mechanisms.tables.one_step import Released, answer, draw, fitted
from shared.mechanisms.tables.together import APART, summed, together
from shared.plans.dictionary import Column, Dictionary

DOSED = Dictionary(
    name="dosed",
    version=1,
    columns=(
        Column(name="dose", kind="continuous", lower=-4, upper=4, decimals=2),
        Column(name="age", kind="continuous", lower=-4, upper=4, decimals=2),
        Column(name="ill", kind="binary"),
    ),
)
SITES, N = 8, 1000
QUESTION = parse_estimand("logistic(ill) ~ dose + age")


def records(seed: int) -> pd.DataFrame:
    """Patients of one site: sites differ in their dose and in how many are ill."""
    rng = np.random.default_rng(seed)
    dose, age = rng.standard_normal((2, N)).clip(-3.9, 3.9)
    ill = rng.random(N) < 1 / (1 + np.exp(1.2 + 0.3 * np.sin(seed) - 0.7 * dose - 0.4 * age))
    return pd.DataFrame({"dose": dose + 0.2 * np.cos(seed), "age": age, "ill": ill.astype(float)})


def released(noise: int) -> dict[str, tuple[pd.DataFrame, Released]]:
    tables = CountTables(attributes=attributes(DOSED), sigma=12.0)
    made = {}
    for seed in range(SITES):
        one = records(seed)
        counts = tuple(tables.release(one, seeded_rng(1000 * noise + seed)))
        made[f"s{seed}"] = (one, Released(tables=tables, counts=counts, n=N))
    return made


def pooled(answers, term="dose"):
    return pool_estimates([row for rows in answers.values() for row in rows if row.term == term])


def answers(sites):
    origins = {site: {"study": "mini", "site": site, "wave": 1} for site in sites}
    return together({s: one for s, (_, one) in sites.items()}, DOSED, QUESTION, levels={}, origins=origins)


@pytest.fixture(scope="module")
def sites() -> dict[str, tuple[pd.DataFrame, Released]]:
    return released(1)


@pytest.fixture(scope="module")
def answered(sites):
    return answers(sites)


def test_the_pool_holds_the_records_where_each_site_alone_has_lost_most_of_an_effect(sites):
    origin = {"study": "mini", "wave": 1}
    own = {site: estimate(one, QUESTION, site=site, **origin) for site, (one, _) in sites.items()}
    truly, found, alone = pooled(own), [], []
    for noise in (1, 2):
        drawn = released(noise)
        apart = {s: answer(r, fitted(r), DOSED, QUESTION, site=s, **origin) for s, (_, r) in drawn.items()}
        alone.append(pooled(apart).beta)
        found.append(pooled(answers(drawn)))
    assert all(one.ci_lb <= truly.beta <= one.ci_ub for one in found)
    assert np.mean(alone) < 0.75 * truly.beta
    assert abs(np.mean([one.beta for one in found]) - truly.beta) < 0.2 * truly.beta


def test_what_the_model_may_lack_is_common_and_no_further_site_makes_it_smaller(answered):
    rows = [row for found in answered.values() for row in found if row.term == "dose"]
    assert len({row.site for row in rows}) == SITES
    assert len({round(row.vi_common, 12) for row in rows}) == 1
    assert rows[0].vi_common > 0
    assert pool_estimates(rows).shared >= rows[0].vi_common * 0.99


def test_the_sum_of_the_counts_has_the_noise_of_all(sites):
    each = [one for _, one in sites.values()]
    whole = summed(each)
    assert whole.n == SITES * N
    assert whole.variance == pytest.approx(sum(one.variance for one in each))
    assert (whole.counts[0] == sum(one.counts[0] for one in each)).all()


def test_a_mean_is_each_sites_own(sites):
    given = {site: one for site, (_, one) in sites.items()}
    assert together(given, DOSED, parse_estimand("mean(dose)"), levels={}, origins={}) == {}


def test_a_model_among_other_margins_has_them_and_keeps_what_nobody_can_be(sites):
    zero = Zero(of=(0, 2), rows=(15,), columns=(1,))
    tables = CountTables(attributes=attributes(DOSED), sigma=1.0, zeros=(zero,))
    model = fit(tables, tables.release(records(1), seeded_rng(3)), N)
    margins, _ = consistent(tables, tables.release(records(2), seeded_rng(4)), N)
    moved = model.among([margin / N for margin in margins], 700)
    assert moved.n == 700
    assert moved.zeros.keys() == model.zeros.keys()
    for a, margin in enumerate(margins):
        assert np.allclose(moved.weights @ moved.profile(a), np.maximum(margin / N, 1e-9), atol=1e-3)
    assert moved.profiles.min() >= 0
    assert moved.weights.sum() == pytest.approx(1)


def test_a_site_that_says_it_has_more_persons_than_all_others_moves_none_of_their_answers(sites):
    """What a site says of its persons nobody can check: its association would have been everybody's."""
    given = {site: one for site, (_, one) in sites.items()}
    rng = np.random.default_rng(99)
    many = 60 * N
    dose, age = rng.standard_normal((2, many)).clip(-3.9, 3.9)
    ill = rng.random(many) < 1 / (1 + np.exp(1.2 + 3 * dose - 0.4 * age))
    claimed = pd.DataFrame({"dose": dose, "age": age, "ill": ill.astype(float)})
    tables = given["s0"].tables
    large = Released(tables=tables, counts=tuple(tables.release(claimed, seeded_rng(5))), n=many)
    origins = {site: {"study": "mini", "site": site, "wave": 1} for site in given}
    del given["s0"]
    asked = {"dictionary": DOSED, "question": QUESTION, "levels": {}, "origins": origins}
    assert together({"s0": large, **given}, **asked) == together(given, **asked)
    assert together({"s0": large, "s1": given["s1"]}, **asked) == {}


def test_what_a_site_alone_may_lack_of_an_effect_is_common_and_of_a_mean_is_its_own(sites):
    _, released_ = sites["s0"]
    origin = {"study": "mini", "site": "s0", "wave": 1}
    for text, common in (("logistic(ill) ~ dose + age", True), ("mean(dose)", False), ("proportion(ill)", False)):
        rows = answer(released_, fitted(released_), DOSED, parse_estimand(text), **origin)
        assert {row.vi_common > 0 for row in rows} == {common}, text


MODEL = parse_estimand("ols(reply) ~ dose + age")
REPLIES = Dictionary(
    name="replies",
    version=1,
    columns=(
        *DOSED.columns[:2],
        Column(name="reply", kind="continuous", lower=-6, upper=6, decimals=2),
    ),
)


def lying_apart(k: int) -> pd.DataFrame:
    """Patients of one of two sorts of sites: who gives more also sees worse replies, and more dose does good."""
    rng, at = np.random.default_rng(500 + k), 1.2 if k % 2 else -1.2
    dose, age, rest = rng.standard_normal((3, N))
    reply = 0.5 * dose + 0.3 * age - 1.5 * at + 0.8 * rest
    table = pd.DataFrame({"dose": 0.8 * dose + at, "age": age, "reply": reply})
    return table.clip([-3.9, -3.9, -5.9], [3.9, 3.9, 5.9], axis=1)


@pytest.fixture(scope="module")
def far() -> dict[str, tuple[pd.DataFrame, Released]]:
    tables = CountTables(attributes=attributes(REPLIES), sigma=4.0)
    made = {}
    for k in range(6):
        one = lying_apart(k)
        made[f"s{k}"] = (one, Released(tables=tables, counts=tuple(tables.release(one, seeded_rng(k))), n=N))
    return made


def test_what_lies_between_sites_is_not_read_as_an_association_within_them(far, monkeypatch):
    origins = {site: {"study": "mini", "site": site, "wave": 1} for site in far}
    truly = pooled({site: estimate(one, MODEL, **origins[site]) for site, (one, _) in far.items()})
    given = {site: one for site, (_, one) in far.items()}
    found = pooled(together(given, REPLIES, MODEL, levels={}, origins=origins))
    assert found.ci_lb <= truly.beta <= found.ci_ub
    assert found.ci_lb > 0
    monkeypatch.setattr(sites_together, "APART", 1.0)
    alike = pooled(together(given, REPLIES, MODEL, levels={}, origins=origins))
    assert alike.ci_ub < truly.beta


def test_sites_that_lie_apart_are_told_from_others_by_the_columns_that_are_asked_about(sites, far):
    near, apart = ([one for _, one in several.values()] for several in (sites, far))
    assert between(near, summed(near), QUESTION.columns) < APART / 2
    assert between(apart, summed(apart), MODEL.columns) > 0.5
    assert between(apart, summed(apart), ("age", "reply")) < 0.1  # noise and chance of six sites
    assert between(apart, summed(apart), ("dose",)) == 0


def test_models_of_sites_have_their_margins_and_one_set_of_classes(far):
    each = [one for _, one in far.values()]
    models = fitted_apart(each, summed(each))
    for one, model in zip(each, models, strict=True):
        margins, _ = consistent(one.tables, one.counts, one.n)
        for a, margin in enumerate(margins):
            assert abs(model.weights @ model.profile(a) - margin / N).max() < 0.02
    assert all((model.weights == models[0].weights).all() for model in models)


def test_the_g_of_a_site_that_is_read_with_others_is_damped_for_the_noise_of_all(far):
    each = [one for _, one in far.values()]
    everybody, model = summed(each), fitted_apart(each, summed(each))[0]
    hiding = everybody.variance / everybody.n**2
    assert hiding < each[0].variance / each[0].n ** 2 / 2

    def left(one: Released) -> float:
        origin = {"study": "s", "site": "A", "wave": 1}
        return draw(one, model, REPLIES, MODEL, levels={}, most_rows=1000, **origin).moves[0].left

    assert left(replace(each[0], hiding=hiding)) < 0.95 * left(each[0])
