"""Nominal covariates of noisy moments: an effect per level, as the regression on records has it, and no other price."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.mechanisms.moments_factors import AGE, DIED, STAGE, N, plan_of, records

from coordinator.answers.waves import draft
from coordinator.planning.review import review
from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import PlanRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.moments.factors import LevelsModel, level_chances, level_coefficients, with_levels
from shared.plans.dictionary import Column
from shared.privacy import accountant as privacy


@pytest.fixture(scope="module")
def plan():
    return plan_of(declared=["age", "stage"])


@pytest.fixture(scope="module")
def tables():
    return {f"s{k}": records(k) for k in range(3)}


@pytest.fixture(scope="module")
def figures(plan, tables):
    checked = {name: plan.dictionary.check(table) for name, table in tables.items()}
    return {
        name: [(plan.release.draw(plan, table, seeded_rng(k)), N)] for k, (name, table) in enumerate(checked.items())
    }


def origins(names):
    return {name: {"study": "trial", "site": name, "wave": 1} for name in names}


def test_a_factor_has_an_effect_per_level_as_the_records_have_it(plan, tables, figures):
    found = {}
    for text in ("logistic(died) ~ age/10 + stage", "logistic(died) ~ C(stage) + age/10"):
        question = parse_estimand(text)
        levels = {"stage": STAGE.levels}
        answer = plan.release.together(plan, figures, question, origins=origins(figures))
        for site, table in tables.items():
            real = {row.term: row for row in estimate(table, question, study="trial", site=site, wave=1, levels=levels)}
            assert {row.term for row in answer[site]} == set(real)
            for row in answer[site]:
                assert abs(row.yi - real[row.term].yi) < 3.5 * math.sqrt(row.vi_privacy + row.vi_common), row.term
                assert not row.warnings
        found[text] = {row.term.replace("C(stage)", "stage"): row.yi for row in answer["s0"]}
    first, second = found.values()
    assert first == second


def test_one_hospital_alone_answers_the_same_terms(plan, figures):
    question = parse_estimand("logistic(died) ~ age/10 + stage")
    rows = plan.release.answer(plan, figures["s0"], question, levels={"stage": STAGE.levels}, **origins(["s0"])["s0"])
    assert [row.term for row in rows] == ["age/10", "stage[II]", "stage[III]"]
    assert rows[1].yi > rows[2].yi + 0.3, "the second stage is the worst"


def test_the_figures_are_those_of_binary_columns_given_by_hand_at_the_same_price(plan, tables, figures):
    hand = (AGE, Column(name="ii", kind="binary"), Column(name="iii", kind="binary"), DIED)
    by_hand = plan_of(hand, ("age", "ii", "iii"), declared=["age", "ii", "iii"])
    table = tables["s0"]
    columns = {"age": table["age"], "ii": table["stage"] == "II", "iii": table["stage"] == "III", "died": table["died"]}
    checked = by_hand.dictionary.check(pd.DataFrame(columns).astype({"ii": int, "iii": int}))
    drawn = by_hand.release.draw(by_hand, checked, seeded_rng(0))
    ours = figures["s0"][0][0]
    assert list(ours["value"]) == list(drawn["value"])
    assert "stage = II × stage = III" in set(ours["figure"])
    plan.release.validate(plan, ours, N)
    prices = [privacy.epsilon(one.release.event(one), 1e-6) for one in (plan, by_hand)]
    assert prices[0] == prices[1] == pytest.approx(3.0, rel=1e-6)


def test_synthetic_rows_have_the_factor_and_each_row_one_level(plan, figures):
    rows = plan.release.synthetic(plan, figures["s0"], draws=1, rng=np.random.default_rng(1))[0]
    plan.dictionary.validate_release(rows)
    shares = rows["stage"].value_counts(normalize=True)
    assert shares["I"] == pytest.approx(0.5, abs=0.06)
    assert shares["III"] == pytest.approx(0.2, abs=0.06)


def test_a_coefficient_that_is_not_declared_is_named_by_its_column(tables):
    plan = plan_of(declared=["age"])
    figures = {"s0": [(plan.release.draw(plan, plan.dictionary.check(tables["s0"]), seeded_rng(1)), N)]}
    question = parse_estimand("logistic(died) ~ age + stage")
    rows = plan.release.answer(plan, figures["s0"], question, levels={}, **origins(["s0"])["s0"])
    assert [len(row.warnings) for row in rows] == [0, 1, 1]
    assert "release.declared names stage asks the records for it" in rows[1].warnings[0]
    assert "stage not declared" in plan.release.doubtful(plan)[0][0]


def test_plan_check_says_which_level_stands_first(plan):
    """Of a real table whose first level a quarter has, three levels' effects were 2.5 of the records' errors off."""
    [(detail, fix)] = plan.release.doubtful(plan)
    assert detail.startswith("stage with a column of its own")
    assert "level first that most persons" in fix


SPEED = Column(name="stage", kind="nominal", levels=("10-24", "25-39", "40-54", "55+", "unknown"))


def effects_of_levels(shares, risks, persons=(N, N, N)):
    """Hospitals at next to no noise: each level but the first to what was pooled and the records' effect."""
    plan = plan_of((SPEED, AGE, DIED), epsilon=30.0, declared=["age", "stage"])
    question, levels = parse_estimand("logistic(died) ~ age/10 + stage"), {"stage": SPEED.levels}
    figures, real = {}, []
    for k, n in enumerate(persons):
        rng = np.random.default_rng(k)
        code = rng.choice(5, n, p=shares)
        died = (rng.random(n) < np.array(risks)[code]).astype(int)
        speed, age = np.array(SPEED.levels, dtype=object)[code], np.clip(rng.normal(60, 10, n), 20, 100).round(1)
        table = pd.DataFrame({"stage": speed, "age": age, "died": died})
        figures[f"s{k}"] = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(k)), n)]
        real += estimate(table, question, study="trial", site=f"s{k}", wave=1, levels=levels)
    answer = plan.release.together(plan, figures, question, origins=origins(figures))
    found = {}
    for term in [f"stage[{level}]" for level in SPEED.levels[1:]]:
        ours, theirs = (
            pool_estimates([row for row in rows if row.term == term])
            for rows in ([row for rows in answer.values() for row in rows], real)
        )
        found[term] = (ours, theirs.beta)
    assert not any(row.warnings for rows in answer.values() for row in rows if row.term == "age/10")
    return found


@pytest.mark.parametrize(
    ("shares", "risks"),
    [
        ([0.52, 0.3, 0.09, 0.05, 0.04], [0.01, 0.05, 0.2, 0.4, 0.3]),
        ([0.1, 0.35, 0.25, 0.2, 0.1], [0.6, 0.05, 0.08, 0.05, 0.08]),
    ],
)
def test_effects_of_levels_are_the_records_own_whatever_the_risk_at_the_first(shares, risks):
    """A person could be at two levels, and died at each: deaths by speed were far too near the first one's."""
    for term, (ours, real) in effects_of_levels(shares, risks).items():
        assert abs(ours.beta - real) < 0.8 * ours.se, term
        assert ours.shared < 0.1 * ours.se**2, "no room is needed for levels that overlap"
        assert ours.doubts == ()


def test_what_the_model_may_lack_is_not_taken_for_outcomes_of_the_first_level():
    """A moment of outcome and level counts its outcomes: with a doubt of its own all levels were too low alike."""
    found = effects_of_levels([0.05, 0.3, 0.25, 0.25, 0.15], [0.02, 0.3, 0.35, 0.4, 0.3], [2500] * 6)
    assert abs(np.mean([(ours.beta - real) / ours.se for ours, real in found.values()])) < 0.6
    assert all(ours.se < 0.42 for ours, _ in found.values()), "and intervals were half as wide again"


def test_effects_of_levels_are_the_records_own_where_one_hospital_has_most_persons():
    """It is looked at beside the others and they without it."""
    shares, risks = [0.52, 0.3, 0.09, 0.05, 0.04], [0.01, 0.05, 0.2, 0.4, 0.3]
    for term, (ours, real) in effects_of_levels(shares, risks, (1000, 1000, 9000)).items():
        assert abs(ours.beta - real) < 0.8 * ours.se, term
        assert ours.doubts == ()


def test_one_hospital_alone_has_effects_of_levels_as_its_records_have_them():
    """Its own fit held them towards the first level, too: five levels at next to no noise were 1 and more too low."""
    plan, table = plan_of((SPEED, AGE, DIED), epsilon=30.0, declared=["age", "stage"]), unlike(6000, 0.12)
    question, levels = parse_estimand("logistic(died) ~ age/10 + stage"), {"stage": SPEED.levels}
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(4)), len(table))]
    origin = {"study": "trial", "site": "s", "wave": 1}
    real = {row.term: row for row in estimate(table, question, levels=levels, **origin)}
    for row in plan.release.answer(plan, figures, question, levels=levels, **origin):
        assert abs(row.yi - real[row.term].yi) < 0.8 * math.sqrt(real[row.term].vi), row.term


def test_derivatives_at_points_with_one_level_each_are_those_of_what_they_predict():
    """Of two factors that hang together, one with a rare level: by differences, of all points."""
    other = Column(name="ward", kind="nominal", levels=("a", "b", "c"))
    plan = plan_of((AGE, STAGE, other, DIED), ("age", "stage", "ward"), epsilon=30.0, declared=["age", "stage", "ward"])
    table, rng = records(3), np.random.default_rng(8)
    worse = rng.random(N) < np.where(table["stage"] == "II", 0.5, 0.2)
    table["ward"] = np.where(worse, "b", np.where(rng.random(N) < 0.06, "c", "a"))
    figures = plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(1))
    fitted = with_levels(plan.release.release(plan, figures, N), plan.release.design(plan))
    model, theta, score = fitted.model, fitted.theta, fitted.score
    x = model.points([model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(5)], theta.z)
    assert set(x[:, 1:3].sum(axis=1)) == set(x[:, 3:].sum(axis=1)) == {0.0, 1.0}
    x = model.points(
        [model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(5)], theta.z, rng.standard_normal((N, 5))
    )
    y = model.outcome.draw(model.predictor(theta.effects, x), rng.random((N, 3)))
    spread = model.rows(x, y, score).std(axis=0)[20:]
    slope = model.slope(theta, score)[1][20:] / spread[:, None]
    for k, flat in enumerate(np.eye(len(theta.flat))):
        size = 0.1 if k < 20 else 1e-3
        above, below = (model.predict(theta.like(theta.flat + by * flat), score)[20:] for by in (size, -size))
        found = (above - below) / (2 * size) / spread
        assert np.abs(slope[:, k] - found).max() < 0.05 + 0.05 * np.abs(found).max(), k


def test_a_secure_sum_starts_from_where_it_did(plan, figures):
    """What was opened is read again: these places have levels that overlap, as they had when it was looked at."""
    pilots = [figures[name][0] for name in sorted(figures)]
    found = [place.model for place in plan.release.places(plan, pilots, alike=True)]
    assert not any(isinstance(model, LevelsModel) for model in found)


@pytest.mark.parametrize(("levels", "refused"), [(15, False), (16, True)])
def test_levels_count_as_covariates_before_anything_is_read(levels, refused):
    column = replace(STAGE, levels=tuple(f"ward {k}" for k in range(levels)))
    if not refused:
        assert plan_of((AGE, column, DIED)).release.facts(plan_of((AGE, column, DIED))).d == 3
        return
    with pytest.raises(PlanRefusal, match="each level of a nominal one"):
        plan_of((AGE, column, DIED))


def test_a_column_that_has_a_level_s_name_already_keeps_it():
    other = Column(name="stage_2", kind="binary")
    plan = plan_of((AGE, STAGE, other, DIED), ("age", "stage", "stage_2"))
    assert plan.release.design(plan).spec.covariates == ("age", "stage_2_", "stage_3", "stage_2")


def test_levels_that_are_numbers_are_a_factor_where_the_question_says_so():
    codes = replace(STAGE, levels=(1, 2, 3))
    plan = plan_of((AGE, codes, DIED))
    table = records(5).assign(stage=lambda t: t["stage"].map({"I": 1, "II": 2, "III": 3}))
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(1)), N)]
    for text, how in (("C(stage)", "fit to the released moments"), ("stage", "synthetic tables")):
        question = parse_estimand(f"logistic(died) ~ age + {text}")
        rows = plan.release.answer(plan, figures, question, levels={"stage": (1, 2, 3)}, **origins(["s0"])["s0"])
        assert how in rows[0].how


@pytest.mark.parametrize("levels", [(0, 1), ("female", "male")])
def test_a_column_of_two_levels_is_the_planned_one_also_as_a_factor(levels):
    sex = Column(name="sex", kind="binary", levels=levels)
    plan = plan_of((AGE, sex, DIED), ("age", "sex"))
    rng = np.random.default_rng(11)
    table = records(5)[["age", "died"]].assign(sex=np.array(levels, dtype=object)[rng.integers(0, 2, N)])
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(1)), N)]
    first, second = (
        plan.release.answer(
            plan,
            figures,
            parse_estimand(f"logistic(died) ~ age + {text}"),
            levels={"sex": levels},
            **origins(["s0"])["s0"],
        )
        for text in ("sex", "C(sex)")
    )
    assert [row.term for row in second] == ["age", f"C(sex)[{levels[1]}]"]
    assert [(row.yi, row.vi, row.how) for row in second] == [(row.yi, row.vi, row.how) for row in first]


def test_plan_check_says_what_is_fitted_and_which_question_is_of_another_model(plan):
    more = {
        "crude": "logistic(died) ~ stage",
        "age": "ols(age) ~ stage",
        "again": "logistic(died) ~ C(stage) + age/10",
    }
    plan = replace(plan, estimands={**plan.estimands, **more})
    _, lines = review(draft(plan), today=dt.date(2025, 12, 1))
    found = {line.name: line for line in lines}
    assert "trained" not in found["posture"].detail
    assert {name: found[f"estimand {name}"].state for name in plan.estimands} == {
        "planned": "ok",
        "again": "ok",
        "crude": "warn",
        "age": "warn",
    }


def unlike(persons: int, level: float) -> pd.DataFrame:
    """Patients who differ in age and in death by speed, the first of which few have: a factor in every table."""
    rng, shares = np.random.default_rng(3), (level, 0.75 - level, 0.15, 0.07, 0.03)
    code = rng.choice(5, persons, p=shares)
    age = np.clip(rng.normal(55 + 4 * code, 10, persons), 20, 100).round(1)
    eta = np.array([-2.0, -1.0, 0.0, 0.5, -2.5])[code] + 0.03 * (age - 60)
    died = (rng.random(persons) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"stage": np.array(SPEED.levels, dtype=object)[code], "age": age, "died": died})


@pytest.mark.parametrize("declared", [["age", "stage"], []])
@pytest.mark.parametrize("first", [0.42, 0.12])
def test_rows_have_each_level_s_share_and_what_differs_between_levels(first, declared):
    """A row could be at two levels: the first one's share was 3 % too high, and differences were far too near none."""
    plan, table = plan_of((SPEED, AGE, DIED), epsilon=30.0, declared=declared), unlike(6000, first)
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(4)), len(table))]
    origin, levels = {"study": "trial", "site": "s", "wave": 1}, {"stage": SPEED.levels}
    for text in (
        'proportion(stage == "10-24")',
        'proportion(stage == "unknown")',
        "logistic(died) ~ C(stage)",
        "logistic(died) ~ age/10",
        "ols(age) ~ C(stage)",
    ):
        question = parse_estimand(text)
        real = {row.term: row for row in estimate(table, question, levels=levels, **origin)}
        for row in plan.release.answer(plan, figures, question, levels=levels, **origin):
            assert abs(row.yi - real[row.term].yi) < 1.5 * math.sqrt(real[row.term].vi), (row.term, text)
            assert len(row.warnings) == 1, "the general one about rows"


def test_the_noise_of_a_level_s_share_is_in_its_variance():
    """Rows have the share that was released: how far that is off is in no draw of the rows."""
    plan, question = plan_of(epsilon=0.5, declared=["age", "stage"]), parse_estimand('proportion(stage == "II")')
    table, how = plan.dictionary.check(records(1)), {"study": "trial", "site": "s", "wave": 1}
    found = []
    for seed in range(6):
        figures = [(plan.release.draw(plan, table, seeded_rng(seed)), N)]
        found += plan.release.answer(plan, figures, question, levels={"stage": STAGE.levels}, **how)
    spread = np.var([row.yi for row in found], ddof=1)
    assert 0.4 * spread < np.mean([row.vi_privacy for row in found]) < 3 * spread


def test_calibrated_rows_have_the_effects_of_levels_that_the_records_have():
    """Of levels that overlap the planned model's own were 2 errors of the records nearer the first level."""
    plan, table = plan_of((SPEED, AGE, DIED), epsilon=30.0, declared=["age", "stage"]), unlike(6000, 0.12)
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(4)), len(table))]
    [rows] = plan.release.synthetic(plan, figures, draws=1, rng=np.random.default_rng(1))
    question = parse_estimand("logistic(died) ~ age/10 + C(stage)")
    of_rows, real = (
        {row.term: row for row in estimate(one, question, levels={"stage": SPEED.levels}, study="t", site="s", wave=1)}
        for one in (rows, table)
    )
    for term, row in real.items():
        assert abs(of_rows[term].yi - row.yi) < 1.0 * math.sqrt(row.vi), term


def test_rows_of_a_column_whose_first_level_noise_leaves_nobody_are_still_rows():
    plan, table = plan_of((SPEED, AGE, DIED), epsilon=0.3, declared=["age", "stage"]), unlike(400, 0.02)
    checked = plan.dictionary.check(table)
    for k in range(3):
        figures = [(plan.release.draw(plan, checked, seeded_rng(k)), len(table))]
        [rows] = plan.release.synthetic(plan, figures, draws=1, rng=np.random.default_rng(k))
        plan.dictionary.validate_release(rows)
        assert len(rows) == len(table)


def test_an_effect_that_is_known_better_stays_in_rows_with_levels(plan, figures):
    [rows] = plan.release.synthetic(plan, figures["s0"], draws=1, rng=np.random.default_rng(1), effects={1: 2.0})
    question = parse_estimand("logistic(died) ~ age/10 + stage")
    found = estimate(rows, question, levels={"stage": STAGE.levels}, study="t", site="s", wave=1)
    assert {row.term: row for row in found}["stage[II]"].yi == pytest.approx(2.0, abs=0.02)


def test_levels_are_drawn_by_the_logits_that_their_shares_and_products_ask_for():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((4000, 2))
    wide = np.clip(z / 1.72, -1, 1)
    wanted = np.array([[-1.0, 0.8, 0.0], [-2.0, -0.5, 1.5], [-0.5, 0.0, -0.3]])
    chances = level_chances(wanted, z)[:, 1:]
    products = chances.T @ wide / len(z)
    found = level_coefficients(z, wide, chances.mean(axis=0), products, np.full((3, 2), 1e-9))
    assert found == pytest.approx(wanted, abs=1e-3)
    # Products that no law has: held, and the shares are met all the same.
    held = level_coefficients(z, wide, np.array([0.1]), np.array([[0.3, 0.0]]), np.full((1, 2), 1e-3))
    assert np.isfinite(held).all()
    assert level_chances(held, z)[:, 1].mean() == pytest.approx(0.1, abs=1e-4)


def test_rows_of_a_plan_with_nothing_but_two_nominal_columns_have_both_as_they_hang_together():
    ward = Column(name="ward", kind="nominal", levels=("a", "b", "c"))
    plan = plan_of((STAGE, ward, DIED), ("stage", "ward"), epsilon=30.0, declared=["stage", "ward"])
    rng = np.random.default_rng(8)
    code = rng.choice(3, N, p=[0.3, 0.4, 0.3])
    near = np.where(rng.random(N) < 0.6, code, rng.choice(3, N))
    died = (rng.random(N) < np.array([0.1, 0.4, 0.2])[near]).astype(int)
    names = [np.array(column.levels, dtype=object) for column in (STAGE, ward)]
    table = pd.DataFrame({"stage": names[0][code], "ward": names[1][near], "died": died})
    figures = [(plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(1)), N)]
    [rows] = plan.release.synthetic(plan, figures, draws=1, rng=np.random.default_rng(1))
    found, real = (pd.crosstab(one["stage"], one["ward"], normalize=True) for one in (rows, table))
    assert float((found - real).abs().to_numpy().max()) < 0.02
    of_wards = [one.groupby("ward", observed=True)["died"].mean() for one in (rows, table)]
    assert float((of_wards[0] - of_wards[1]).abs().max()) < 0.03
