"""Noisy cross-products: their price, what a plan of them refuses, and the linear models in them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.mechanisms.cross_products import COLUMNS, TYPICAL, people, study

from coordinator.planning.price import cost
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, MissingRefusal, PlanRefusal, SchemaRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.cross_products.posterior import NoisyProducts, regression
from shared.plans.plan import Budget, StudyPlan
from shared.privacy.accountant import epsilon

QUESTION = "ols(sbp ~ age/10 + C(sex) + drug)"


# -- the price ------------------------------------------------------------------------------------------------------
def apart(one, other):
    """Euclidean distance of two persons' squares and √2 times their products."""
    v, w = np.r_[1.0, one], np.r_[1.0, other]
    return float(np.linalg.norm(np.outer(v, v) - np.outer(w, w)))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1.75, 4.0))
def test_no_two_persons_are_further_apart_than_is_charged(seed, radius):
    rng = np.random.default_rng(seed)
    plan = study(radius=radius)
    charged = plan.release.event(plan).sensitivity
    pair = rng.normal(size=(2, 4)) * rng.choice([0.1, 1.0, 100.0], size=(2, 1))
    pair *= np.minimum(1.0, radius / np.linalg.norm(pair, axis=1, keepdims=True))
    assert apart(*pair) <= charged


def test_two_persons_there_are_who_are_as_far_apart():
    radius, plan = 2.0, study(radius=2.0)
    one = np.array([radius, 0.0, 0.0, 0.0])
    other = np.array([-1 / radius, math.sqrt(radius**2 - 1 / radius**2), 0.0, 0.0])
    charged = plan.release.event(plan).sensitivity
    assert 0 <= charged - apart(one, other) < 1e-4
    # Of records the same: from the table to the sums that are noised.
    scale, centre = np.array(plan.release.scales(plan)).T[::-1]
    records = pd.DataFrame(np.vstack([one, other]) * scale + centre, columns=list(plan.release.columns))
    records["sex"], records["drug"] = 0.0, 1.0  # of two levels: always one scale from the middle
    sums = [plan.release.products(plan, records.iloc[[k]]) * 2.0**-20 for k in (0, 1)]
    weights = np.array([1.0 if i == j else math.sqrt(2) for i, j in plan.release._places()])
    assert np.linalg.norm((sums[0] - sums[1]) * weights) <= charged


@pytest.mark.parametrize("typical", [(50.0, 1e-320), (50.0, 1e-200), (1e308, 1e-10)])
def test_no_scale_of_a_plan_lets_a_person_move_more_than_is_charged(typical):
    plan = study(typical={**TYPICAL, "age": typical})
    records = people(2, 1).assign(age=[50.0, 51.0])
    sums = [plan.release.products(plan, records.iloc[[k]]) * 2.0**-20 for k in (0, 1)]
    weights = np.array([1.0 if i == j else math.sqrt(2) for i, j in plan.release._places()])
    assert np.linalg.norm((sums[0] - sums[1]) * weights) <= plan.release.event(plan).sensitivity


def test_the_price_is_the_plans_epsilon_and_noise_is_what_it_charges():
    plan = study()
    event = plan.release.event(plan)
    assert math.isclose(epsilon(event, plan.budget.delta), 1.0, rel_tol=1e-6)
    assert cost(plan).waves[0].affordable
    records = people(40, 1)
    exact = plan.release.products(plan, records) * 2.0**-20
    found = [plan.release.draw(plan, records, seeded_rng(k))["value"].to_numpy() * 2.0**-20 - exact for k in range(300)]
    square = np.array([i == j for i, j in plan.release._places()])
    spread = np.array(found)
    assert 0.97 < np.sqrt(np.mean(spread[:, square] ** 2)) / event.sigma < 1.03
    assert 0.97 < np.sqrt(2 * np.mean(spread[:, ~square] ** 2)) / event.sigma < 1.03


# -- the plan -------------------------------------------------------------------------------------------------------
def test_a_plan_is_the_same_read_back():
    plan = study(radius=2.5)
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert plan.release.reach == 2.5
    assert math.isclose(study().release.reach, math.sqrt(5.0))


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 0.0},
        {"epsilon": True},
        {"epsilon": 1e-9},  # noise that could not be drawn once the release is charged
        {"epsilon": 0.001, "radius": 100},
        {"columns": ("age",)},
        {"columns": "age"},
        {"columns": ("age", "age")},
        {"columns": ("age", "height")},
        {"columns": ("age", "ward")},
        {"columns": ("age", "person")},
        {"columns": ("age", "sex", "sbp", "dose")},
        {"typical": {"age": (50.0, 15.0)}},
        {"typical": {**TYPICAL, "age": (50.0, 0.0)}},
        {"typical": {**TYPICAL, "age": (50.0,)}},
        {"typical": {**TYPICAL, "dose": (20.0, 5.0)}},
        {"radius": 0.5},
        {"radius": 1.7},
        {"radius": math.nan},
    ],
)
def test_what_cannot_be_planned_is_refused(changed):
    with pytest.raises(PlanRefusal):
        study(**changed)


def test_a_record_without_a_value_is_refused_before_the_draw():
    plan = study()
    records = people(30, 2)
    records.loc[3, "sbp"] = np.nan
    with pytest.raises(MissingRefusal, match="1 rows"):
        plan.release.draw(plan, records, seeded_rng(1))


def test_a_released_table_must_be_the_plans():
    plan = study()
    records = people(300, 2)
    table = plan.release.draw(plan, records, seeded_rng(1))
    plan.release.validate(plan, table, 300)
    assert len(table) == plan.release.extent(plan, 300).rows
    wrong = [
        table.iloc[:-1],
        table.iloc[::-1].reset_index(drop=True),
        table.rename(columns={"value": "sum"}),
        table.assign(value=table["value"].astype(float)),
        table.assign(value=1 << 50),
    ]
    for other in wrong:
        with pytest.raises(SchemaRefusal):
            plan.release.validate(plan, other, 300)


# -- what the sums tell ---------------------------------------------------------------------------------------------
def answered(plan, tables, question=QUESTION):
    parsed = parse_estimand(question)
    return {
        row.term: row
        for row in plan.release.answer(plan, tables, parsed, levels={}, study="pressure", site="north", wave=1)
    }


def test_with_little_noise_and_nobody_drawn_in_they_are_the_regressions_own():
    plan = study(epsilon=50.0, radius=8.0)
    records = people(20_000, 3)
    half = [records.iloc[:12_000], records.iloc[12_000:]]
    tables = [(plan.release.draw(plan, part, seeded_rng(k)), len(part)) for k, part in enumerate(half)]
    found = answered(plan, tables)
    decoded = records.assign(sex=np.where(records["sex"] == 1, "male", "female"))
    for row in estimate(decoded, parse_estimand(QUESTION), levels={"sex": ("female", "male")}):
        if row.term in found:
            own = found[row.term]
            assert abs(own.yi - row.yi) < 0.35 * math.sqrt(row.vi_sampling), row.term
            assert 0.9 < own.vi_sampling / row.vi_sampling < 1.1
            assert own.n == 20_000
    assert set(found) == {"age/10", "C(sex)[male]", "drug"}


def test_intervals_of_three_hundred_persons_hold_the_truth():
    """At ε = 1 the noise of every sum is several persons' whole part: no answer is drawn towards zero by that."""
    plan, terms = study(), {"age/10": 5.0, "C(sex)[male]": 5.0, "drug": -6.0}
    held, off = [], []
    for seed in range(60):
        records = people(300, 100 + seed)
        found = answered(plan, [(plan.release.draw(plan, records, seeded_rng(seed)), 300)])
        for term, truth in terms.items():
            row = found[term]
            se = math.sqrt(row.vi_sampling + row.vi_privacy)
            held.append(abs(row.yi - truth) < 1.96 * se)
            off.append((row.yi - truth) / se * math.copysign(1, truth))
            assert row.vi_privacy > row.vi_sampling
    assert np.mean(held) > 0.93
    assert abs(np.mean(off)) < 0.25


def test_columns_of_two_levels_alone_are_never_drawn_in_and_are_answered():
    plan = study(columns=("sex", "drug"), typical={}, epsilon=8.0)
    rng = np.random.default_rng(3)
    sex = rng.integers(0, 2, 2_000)
    records = pd.DataFrame({"sex": sex, "drug": (rng.random(2_000) < 0.3 + 0.3 * sex).astype(int)})
    table = plan.release.draw(plan, records, seeded_rng(1))
    found = answered(plan, [(table, 2_000)], "ols(drug ~ C(sex))")["C(sex)[male]"]
    assert abs(found.yi - 0.3) < 4 * math.sqrt(found.vi_sampling + found.vi_privacy)
    assert plan.release.doubt(plan, table, 2_000) == ""


def test_a_number_of_two_values_may_be_asked_for_in_other_units():
    other = tuple(replace(one, levels=(0, 5)) if one.name == "drug" else one for one in COLUMNS.columns)
    plan = replace(study(), dictionary=replace(COLUMNS, columns=other))
    records = people(400, 1)
    records["drug"] *= 5
    table = plan.release.draw(plan, records, seeded_rng(1))
    one, five = (answered(plan, [(table, 400)], f"ols(sbp ~ age + {term})")[term] for term in ("drug", "drug/5"))
    assert math.isclose(five.yi, 5 * one.yi)
    assert math.isclose(five.vi_privacy, 25 * one.vi_privacy)
    # As an outcome, too: the same sums, read with the levels 0 and 1, are a fifth of it.
    outcome = "ols(drug ~ age)"
    plain = answered(study(), [(table, 400)], outcome)["age"]
    assert math.isclose(answered(plan, [(table, 400)], outcome)["age"].yi, 5 * plain.yi)


def test_an_answer_is_the_same_at_every_call():
    plan = study()
    table = plan.release.draw(plan, people(400, 1), seeded_rng(1))
    assert answered(plan, [(table, 400)]) == answered(plan, [(table, 400)])


@pytest.mark.parametrize(
    "question",
    [
        "ols(sbp ~ age + dose)",
        "ols(sbp ~ log(age))",
        "ols(sbp ~ age:drug)",
        "ols(sbp ~ sbp + age)",
        "ols(sex ~ age)",
        "ols(sbp ~ age, robust=HC1)",
        "logistic(drug ~ age)",
        "mean(age)",
    ],
)
def test_other_questions_are_refused_and_say_what_may_be_asked(question):
    plan = study()
    table = plan.release.draw(plan, people(400, 1), seeded_rng(1))
    parsed = parse_estimand(question)
    assert not plan.release.plans(plan, parsed)
    with pytest.raises(EstimateRefusal, match="linear model"):
        plan.release.answer(plan, [(table, 400)], parsed, levels={}, study="pressure", site="north", wave=1)


def test_sums_that_the_noise_drowns_are_no_answer():
    plan = study(epsilon=0.05)
    table = plan.release.draw(plan, people(100, 1), seeded_rng(1))
    with pytest.raises(EstimateRefusal, match="larger than their noise"):
        answered(plan, [(table, 100)])
    assert "Too few persons" in plan.release.doubt(plan, table, 100)


def test_scales_that_are_too_small_are_said():
    records = people(2_000, 5)
    for scale, said in ((20.0, ""), (4.0, "drawn in")):
        plan = study(epsilon=8.0, typical={**TYPICAL, "sbp": (130.0, scale)})
        table = plan.release.draw(plan, records, seeded_rng(1))
        assert said in plan.release.doubt(plan, table, 2_000)
        assert bool(said) == bool(plan.release.doubt(plan, table, 2_000))
    assert plan.release.clipped(plan, records) > 1_000


@pytest.mark.parametrize(
    ("typical", "said"),
    [
        ({}, ""),
        ({"age": (54.0, 130.0)}, "spread of age is far below"),
        ({"sbp": (126.0, 5.0)}, "drawn in"),
        ({"age": (80.0, 13.0), "sbp": (92.0, 17.0)}, "drawn in"),
    ],
)
def test_answers_say_where_typical_values_are_so_far_off_that_they_miss_the_truth(typical, said):
    plan = study(epsilon=3.0, typical={"age": (54.0, 13.0), "sbp": (126.0, 17.0), **typical})
    table = plan.release.draw(plan, people(1_000, 5), seeded_rng(2))
    assert said in plan.release.doubt(plan, table, 1_000)
    for row in answered(plan, [(table, 1_000)]).values():
        assert bool(row.warnings) == bool(said)
        assert not said or any(said in one for one in row.warnings)


def stays(n, seed):
    """Lengths of stay, which grow by factors: the world in which drawing persons in takes most."""
    rng = np.random.default_rng(seed)
    age, drug = rng.normal(50, 15, n), rng.integers(0, 2, n)
    days = 5 * np.exp(0.35 * (age - 50) / 15 + 0.3 * drug + 0.6 * rng.normal(size=n))
    return pd.DataFrame({"age": age, "sex": rng.integers(0, 2, n), "drug": drug, "sbp": days})


def test_a_long_tail_that_is_drawn_in_is_said_at_planning_and_beside_answers_that_miss_by_it():
    dictionary = replace(
        COLUMNS, columns=tuple(replace(c, lower=0, upper=365) if c.name == "sbp" else c for c in COLUMNS.columns)
    )
    records = stays(6_000, 3)
    typical = {**TYPICAL, "sbp": (float(records["sbp"].mean()), float(records["sbp"].std()))}
    plan = replace(study(epsilon=20.0, typical=typical), dictionary=dictionary, budget=Budget(epsilon=40.0, delta=1e-6))
    [line] = plan.release.review(plan)
    assert (line.name, line.state) == ("skewed", "warn")
    assert line.detail.startswith("sbp: less than 2 typical scales to one bound")
    found = answered(plan, [(plan.release.draw(plan, records, seeded_rng(1)), 6_000)], "ols(sbp ~ age/10 + drug)")
    own = {row.term: row for row in estimate(records, parse_estimand("ols(sbp ~ age/10 + drug)"))}
    assert found["age/10"].yi < 0.93 * own["age/10"].yi
    for row in found.values():
        assert [said for said in row.warnings if "sbp lies within 2 typical scales" in said and "towards zero" in said]
    # As a covariate it is said otherwise; a model that has it nowhere says nothing.
    table = [(plan.release.draw(plan, records, seeded_rng(1)), 6_000)]
    assert "too large where" in " ".join(answered(plan, table, "ols(age ~ sbp + drug)")["sbp"].warnings)
    assert "typical scales" not in " ".join(answered(plan, table, "ols(age ~ drug)")["drug"].warnings)


@pytest.mark.parametrize(
    ("bounds", "typical", "said"),
    [
        ((0, 365), (130.0, 20.0), False),  # a normal column whose bounds are far
        ((0, 365), (41.0, 20.0), False),
        ((0, 365), (39.0, 20.0), True),
        ((0, 100), (75.0, 20.0), True),  # a tail to the left
        ((0, 10), (5.0, 2.9), False),  # evenly spread between its bounds, as grades are
    ],
)
def test_a_column_is_taken_for_skewed_by_its_bounds_and_typical_values_alone(bounds, typical, said):
    low, high = bounds
    columns = tuple(replace(c, lower=low, upper=high) if c.name == "sbp" else c for c in COLUMNS.columns)
    plan = replace(study(typical={**TYPICAL, "sbp": typical}), dictionary=replace(COLUMNS, columns=columns))
    assert plan.release.skewed(plan) == (("sbp",) if said else ())
    assert bool(plan.release.review(plan)) == said


def test_any_number_of_persons_that_a_site_says_is_answered():
    sums = 10**12 * np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.5, 1.0]])
    found = regression(NoisyProducts(n=10**12, sums=sums, sigma=1.0, radius=2.0), 1, [0])
    assert 0.5 < found.effects[0] < 0.6


def test_columns_that_say_the_same_are_no_model():
    x = np.random.default_rng(1).normal(size=(4_000, 1))
    v = np.column_stack([np.ones(4_000), x, x, x + 1])
    with pytest.raises(EstimateRefusal):
        regression(NoisyProducts(n=4_000, sums=v.T @ v, sigma=1.0), 2, [0, 1])
    with pytest.raises(EstimateRefusal, match="more persons"):
        regression(NoisyProducts(n=3, sums=v.T @ v, sigma=1.0), 2, [0, 1])


def test_a_wave_of_other_persons_is_added_and_its_noise_is_too():
    one = NoisyProducts(n=100, sums=np.eye(3), sigma=3.0)
    both = NoisyProducts.added([one, replace(one, n=50, sigma=4.0)])
    assert (both.n, both.sigma) == (150, 5.0)
    assert np.array_equal(both.sums, 2 * np.eye(3))
