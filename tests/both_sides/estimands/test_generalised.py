"""Generalised linear models: R's numbers on plain data, a reason where there is none, and the doors they are asked by.

`python -m tests.both_sides.estimands.test_generalised` writes the table that tests/reference/generalised_make.R reads.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.models import HERE, LEVELS, agrees, made, reference

from coordinator.planning.price import prices
from coordinator.planning.review import review
from coordinator.planning.template import template
from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand
from shared.estimands.effects import number_needed
from shared.estimands.fits.families import FAMILIES, negative_binomial
from shared.estimands.kinds import KINDS

ALL = "age + arm + smoking"
RIGHT = {
    "risk_ratio": f"died ~ {ALL}",
    "log_binomial": "died ~ age + arm",
    "quasipoisson": f"k ~ {ALL} + offset(log(years))",
    "negbin": f"k ~ {ALL} + offset(log(years))",
    "probit": f"died ~ {ALL}",
    "cloglog": f"died ~ {ALL}",
    "gamma": f"cost ~ {ALL}",
    "logistic": f"died ~ {ALL}",
    "poisson": f"k ~ {ALL} + offset(log(years))",
    "ols": f"cost ~ {ALL}",
}


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", RIGHT)
def test_coefficients_and_errors_are_those_of_r(kind):
    table, answers = reference()
    ours = estimate(table, kind, RIGHT[kind], levels=LEVELS)
    agrees(ours, answers["fits"][kind], FAMILIES[kind].robust or "model" if kind != "ols" else "model")
    for errors in ("HC0", "HC1", "HC2", "HC3"):
        ours = estimate(table, kind, RIGHT[kind], levels=LEVELS, robust=errors)
        agrees(ours, answers["fits"][kind], errors)


def test_weights_are_those_of_r():
    table, answers = reference()
    agrees(estimate(table, "probit", "died ~ age + arm", weights="w"), answers["weighted_probit"], "model")


def test_every_family_is_the_derivative_of_its_likelihood():
    eta, step = np.array([-2.5, -1.0, -0.2]), 1e-5
    families = {**FAMILIES, "negbin": negative_binomial(1.7)}
    for name, family in families.items():
        binary, mu = KINDS[name].outcome == "binary" and FAMILIES[name].start is not FAMILIES["poisson"].start, 0.0
        for y in (np.zeros(3), np.ones(3)) if name != "gamma" else (np.full(3, 0.4),):
            up, down = eta + step, eta - step
            (_, score, observed), above, below = (family.at(y, at) for at in (eta, up, down))
            slope, curve = (above[0] - below[0]) / (2 * step), (below[1] - above[1]) / (2 * step)
            np.testing.assert_allclose(score, slope, rtol=1e-6, atol=1e-8, err_msg=name)
            np.testing.assert_allclose(observed, curve, rtol=1e-6, atol=1e-8, err_msg=name)
            mu = family.mean(eta)
        if binary:  # the expected information is the mean of the observed one
            mixed = mu * family.at(np.ones(3), eta)[2] + (1 - mu) * family.at(np.zeros(3), eta)[2]
            np.testing.assert_allclose(family.expected(eta), mixed, rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(
            family.slope(eta), (family.mean(eta + step) - family.mean(eta - step)) / (2 * step), rtol=1e-8
        )
        np.testing.assert_allclose(family.link(family.mean(eta)), eta, rtol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in RIGHT if kind not in ("ols", "logistic", "poisson")])
def test_the_influence_of_a_row_is_what_leaving_it_out_changes(kind):
    table = made(400, 3)
    question = parse_estimand(f"{kind}({RIGHT[kind].split(' ~ ')[0]}) ~ age + arm")
    whole, pushes = estimate(table, question)[1], influence(table, question)["arm"]
    assert pushes.sum() == pytest.approx(0, abs=1e-7)
    for i in (int(np.argmax(pushes)), int(np.argmin(pushes)), 7):
        left = estimate(table.drop(index=i), question)[1]
        assert whole.yi - left.yi == pytest.approx(pushes[i], rel=0.1, abs=1e-4)


def test_counts_that_vary_no_more_than_poisson_have_the_poisson_answer():
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"x": np.arange(200.0), "k": rng.binomial(6, 0.5, 200)})
    ours, plain = (estimate(table, kind, "k ~ x", term="x") for kind in ("negbin", "poisson"))
    assert (ours.yi, ours.vi) == (plain.yi, plain.vi)


# -- ordered -----------------------------------------------------------------------------------------------------
def staged(table: pd.DataFrame) -> pd.DataFrame:
    edges = [-np.inf, 52, 58, 66, np.inf]
    return table.assign(stage=pd.cut(table.age + 6 * table.arm, edges, labels=["I", "II", "III", "IV"]))


def test_proportional_odds_are_those_of_r():
    table, answers = reference()
    ours = estimate(staged(table), "ordinal", "stage ~ cost + smoking + arm", levels=LEVELS)
    agrees(ours, answers["ordinal"], "model")


def test_of_two_categories_proportional_odds_are_logistic_and_a_category_without_rows_counts_for_nothing():
    table = made(300, 3)
    (ours,), (plain,) = (estimate(table, parse_estimand(f"{kind}(died) ~ age")) for kind in ("ordinal", "logistic"))
    assert (ours.yi, ours.vi) == (pytest.approx(plain.yi, rel=1e-8), pytest.approx(plain.vi, rel=1e-8))
    words = table.assign(died=np.where(table.died == 1, "yes", "no"))
    (again,) = estimate(words, parse_estimand("ordinal(died) ~ age"), levels={"died": ["never", "no", "yes"]})
    assert again.yi == pytest.approx(plain.yi, rel=1e-8)


def test_an_ordered_model_has_an_influence_and_reasons():
    table = staged(made(400, 3)).assign(one=1.0, also=lambda t: 2 * t.cost)
    question = parse_estimand("ordinal(stage) ~ cost + k")
    (whole, _), pushes = estimate(table, question), influence(table, question)["cost"]
    assert pushes.sum() == pytest.approx(0, abs=1e-7)
    for i in (int(np.argmax(pushes)), int(np.argmin(pushes)), 7):
        left = estimate(table.drop(index=i), question)[0]
        assert whole.yi - left.yi == pytest.approx(pushes[i], rel=0.1, abs=1e-4)
    rows = {row.term: row.reason for row in estimate(table, parse_estimand("ordinal(stage) ~ cost + also + one + k"))}
    assert rows["one"] == "the column is constant at this site"
    assert rows["cost"] == "collinear with also at this site"
    assert rows["k"] == ""
    cut = table.assign(stage=(table.age > 58).astype(int) + (table.age > 66))
    (row,) = estimate(cut, parse_estimand("ordinal(stage) ~ age"))
    assert "separate the outcome" in row.reason
    (row,) = estimate(
        table,
        parse_estimand(
            "ordinal(stage) ~ cost",
        ),
        min_residual_df=500,
    )
    assert "400 complete rows for 4 parameters" in row.reason
    with pytest.raises(ParameterError, match="at least one term"):
        parse_estimand("ordinal(stage) ~ 1")


# -- standardised ------------------------------------------------------------------------------------------------
STANDARDISED = (
    "standardised(died, of = arm) ~ arm + age + smoking + arm:age",
    "standardised(died, of = smoking, contrast = OR) ~ age + arm + smoking",
    "standardised(died, of = age, contrast = RR) ~ age/10 + arm + smoking",
    "standardised(cost, of = arm, model = gamma) ~ age + arm + smoking",
    "standardised(died, of = age, contrast = slope) ~ age + arm + smoking",
)


@pytest.mark.parametrize("text", STANDARDISED)
def test_standardised_contrasts_are_the_sandwich_of_the_stacked_equations(text):
    table, answers = reference()
    question = parse_estimand(text)
    assert str(question) == text
    ours = {row.term: row for row in estimate(table, question, levels=LEVELS)}
    assert ours.keys() == answers["standardised"][text].keys()
    for term, theirs in answers["standardised"][text].items():
        assert ours[term].yi == pytest.approx(theirs["beta"], rel=1e-6)
        assert ours[term].vi == pytest.approx(theirs["se"] ** 2, rel=1e-6)


def test_without_covariates_a_standardised_difference_is_that_of_the_shares():
    table = made(400, 3)
    for contrast, measure in (("RD", "RD"), ("NNT", "RD"), ("RR", "RR"), ("OR", "OR")):
        ours = estimate(table, "standardised", "died ~ arm", of="arm", contrast=contrast, term="arm")
        plain = estimate(table, "two_by_two", "died ~ arm", measure=measure, term="arm[1]")
        assert (ours.yi, ours.vi) == (pytest.approx(plain.yi, rel=1e-9), pytest.approx(plain.vi, rel=1e-6))


@pytest.mark.parametrize("model", ["probit", "negbin", "log_binomial", "ols"])
def test_the_influence_on_a_standardised_contrast_is_what_leaving_a_row_out_changes(model):
    table = made(400, 3)
    outcome = "k" if model == "negbin" else "died"
    question = parse_estimand(f"standardised({outcome}, of = arm, model = {model}) ~ age + arm")
    (whole,), pushes = estimate(table, question), influence(table, question)["arm"]
    assert pushes.sum() == pytest.approx(0, abs=1e-7)
    for i in (int(np.argmax(pushes)), int(np.argmin(pushes)), 7):
        (left,) = estimate(table.drop(index=i), question)
        assert whole.yi - left.yi == pytest.approx(pushes[i], rel=0.1, abs=1e-5)


def test_a_covariate_that_is_constant_at_a_site_does_not_hinder_its_contrast():
    table = made(300, 3).assign(ward="a")
    text = "standardised(died, of = arm) ~ arm + age{}"
    (with_it,) = estimate(table, parse_estimand(text.format(" + ward")), levels={"ward": ["a", "b"]})
    (without,) = estimate(table, parse_estimand(text.format("")))
    assert (with_it.yi, with_it.vi) == (without.yi, without.vi)


def test_an_exposure_that_a_site_does_not_tell_apart_has_a_reason():
    table = made(300, 3)
    table = table[table.smoking != "former"].assign(also=lambda t: t.arm)
    rows = estimate(table, parse_estimand("standardised(died, of = smoking) ~ smoking + age"), levels=LEVELS)
    assert [row.reason for row in rows] == ["the level has no rows at this site", ""]
    rows = estimate(table, parse_estimand("standardised(died, of = smoking) ~ smoking * arm"), levels=LEVELS)
    assert [row.reason for row in rows] == ["the level has no rows at this site", ""]
    (row,) = estimate(table, parse_estimand("standardised(died, of = arm) ~ arm + also + age"))
    assert row.reason == "collinear with also at this site"
    (row,) = estimate(table.assign(arm=1), parse_estimand("standardised(died, of = arm) ~ arm + age"))
    assert row.reason == "the column is constant at this site"
    (row,) = estimate(table.assign(died=table.arm), parse_estimand("standardised(died, of = arm) ~ arm + age"))
    assert "separate" in row.reason
    few = table.assign(died=(np.arange(len(table)) < 3).astype(int))
    (row,) = estimate(few, parse_estimand("standardised(died, of = arm) ~ arm + age"))
    assert row.reason == "3 events or non-events: too few"


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("standardised(died) ~ arm + age", "must name its exposure"),
        ("standardised(died, of = sex) ~ arm + age", "must name its exposure"),
        ("standardised(died, of = arm, contrast = HR) ~ arm", "contrast must be one of"),
        ("standardised(died, of = arm, model = cox) ~ arm", "model must be one of"),
        ("standardised(cost, of = arm, model = ols, contrast = NNT) ~ arm", "must be of a model of risks"),
        ("standardised(k > 1, of = arm, model = poisson) ~ arm", "takes a column, not a comparison"),
    ],
)
def test_a_contrast_that_cannot_be_asked_is_refused(text, must):
    with pytest.raises(ParameterError, match=must):
        parse_estimand(text)
    with pytest.raises(EstimateRefusal, match="a slope must be of a column of numbers"):
        estimate(made(), parse_estimand("standardised(died, of = smoking, contrast = slope) ~ smoking"))


def test_a_number_needed_goes_through_infinity_where_the_difference_may_be_none():
    assert (
        number_needed(0.0, -0.1, 0.2)
        == "one event more or fewer per ∞ (one fewer per 10.0, through ∞, to one more per 5.0)"
    )
    assert "through" not in number_needed(-0.2, -0.3, -0.001)
    assert "fewer per 1000" in number_needed(-0.2, -0.3, -0.001)


# -- reasons ---------------------------------------------------------------------------------------------------
BINARY = [kind for kind in RIGHT if KINDS[kind].outcome == "binary"]
COUNTS = [kind for kind in RIGHT if KINDS[kind].outcome == "count"]


@pytest.mark.parametrize("kind", [*BINARY, *COUNTS])
def test_a_separating_term_leaves_and_the_others_stay(kind):
    table = made(400, 11)
    outcome = "died" if kind in BINARY else "k"
    table["closed"] = (np.arange(400) < 60).astype(int)
    table.loc[table.closed == 1, outcome] = 0
    rows = {row.term: row for row in estimate(table, parse_estimand(f"{kind}({outcome}) ~ age + closed"))}
    assert rows["closed"].reason == "separates the outcome: no finite estimate at this site"
    (alone,) = estimate(table[table.closed == 0], parse_estimand(f"{kind}({outcome}) ~ age"))
    assert rows["age"].yi == pytest.approx(alone.yi, rel=1e-6)


@pytest.mark.parametrize("kind", RIGHT)
def test_constant_collinear_and_absent_leave_with_their_reason(kind):
    table = made(300, 4).assign(one=1.0)
    table = table[table.smoking != "former"].assign(twice=lambda t: 2 * t.age)
    outcome = RIGHT[kind].split(" ~ ")[0]
    question = parse_estimand(f"{kind}({outcome}) ~ age + twice + one + smoking + arm")
    reasons = {row.term: row.reason for row in estimate(table, question, levels=LEVELS)}
    assert reasons == {
        "age": "collinear with twice at this site",
        "twice": "collinear with age at this site",
        "one": "the column is constant at this site",
        "smoking[former]": "the level has no rows at this site",
        "smoking[current]": "",
        "arm": "",
    }


def test_a_risk_needs_events():
    table = made(300, 4).assign(died=lambda t: (t.index < 4).astype(int))
    for kind in ("risk_ratio", "log_binomial", "cloglog"):
        (row,) = estimate(table, parse_estimand(f"{kind}(died) ~ age"))
        assert row.reason == "4 events for 1 terms: too few"


def test_a_log_binomial_maximum_at_a_risk_of_one_has_a_reason_and_names_the_way_round():
    x = np.repeat([0.0, 1.0, 2.0, 3.0], 25)
    died = np.r_[np.arange(25) < 5, np.arange(25) < 15, np.arange(25) < 24, np.ones(25, bool)].astype(int)
    table = pd.DataFrame({"x": x, "died": died})
    (row,) = estimate(table, parse_estimand("log_binomial(died) ~ x"))
    assert "no maximum with all risks below 1 (risk_ratio asks for none)" in row.reason
    (row,) = estimate(table, parse_estimand("risk_ratio(died) ~ x"))
    assert row.yi > 0


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("probit(k) ~ age", "must be 0 or 1"),
        ("risk_ratio(k) ~ age", "must be 0 or 1"),
        ("gamma(k) ~ age", "must be above 0"),
        ("negbin(below) ~ age", "must be a count"),
    ],
)
def test_an_outcome_that_the_family_cannot_have_is_refused(text, must):
    table = made().assign(below=lambda t: -t.k)
    with pytest.raises(EstimateRefusal, match=must):
        estimate(table, parse_estimand(text))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_table_every_term_has_a_number_or_a_reason(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    table = pd.DataFrame({"x": rng.normal(size=n) * 10.0 ** rng.integers(-6, 7), "g": rng.integers(0, 2, n)})
    table["b"] = (rng.random(n) < rng.random()).astype(int)
    table["k"], table["c"] = rng.poisson(10.0 ** rng.integers(-1, 4), n), rng.gamma(0.1, 10.0, n) + 1e-9
    for kind in RIGHT:
        outcome = {"binary": "b", "count": "k", "positive": "c", "number": "c"}[KINDS[kind].outcome]
        for row in estimate(table, parse_estimand(f"{kind}({outcome}) ~ x * g")):
            assert (row.yi is None) == bool(row.reason)


def test_sites_without_a_log_binomial_answer_are_said_before_the_pooled_one():
    x = np.repeat([0.0, 1.0, 2.0, 3.0], 25)
    died = np.r_[np.arange(25) < 5, np.arange(25) < 15, np.arange(25) < 24, np.ones(25, bool)].astype(int)
    question, rows = parse_estimand("log_binomial(died) ~ x"), []
    tables = [made(300, seed).assign(x=lambda table: table.age / 10) for seed in (7, 9)]
    for k, table in enumerate((pd.DataFrame({"x": x, "died": died}), *tables)):
        rows += estimate(table, question, site=f"{k}")
    assert [bool(row.reason) for row in rows] == [True, False, False]
    result = pool_estimates(rows)
    assert any(text.startswith("1 of 3 sites is left out") for text in result.doubts)
    assert not any("left out because" in text for text in pool_estimates(rows[1:]).doubts)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{kind}(died) ~ treated + age/10" for kind in BINARY if kind != "logistic"),
        "standardised(died, of = treated) ~ treated + age/10",
        "logistic(died) ~ treated + ns(age, df = 3)",
        "risk_ratio(died) ~ treated + poly(age, 2, raw = TRUE)",
    ],
)
def test_a_plan_that_names_any_of_them_is_checked_and_priced_by_every_mechanism(text):
    draft = template("stroke", coordinator="hub", today=dt.date(2026, 1, 1))
    planned = draft.replace("logistic(died) ~ treated + age/10 + C(sex)", text)
    assert planned != draft
    plan, lines = review(planned, today=dt.date(2026, 1, 1))
    assert [line.state for line in lines if line.name == "estimand treatment"] == ["ok"]
    assert plan is not None
    columns = tuple(one for one in plan.dictionary.columns if one.name in ("person", "died", "treated", "age"))
    plan = replace(plan, dictionary=replace(plan.dictionary, columns=columns))
    asked = replace(plan, estimands={"one": text})
    logistic = replace(plan, estimands={"one": "logistic(died) ~ treated + age/10"})
    assert prices(asked) == prices(logistic)
    assert prices(replace(asked, estimands={"one": "ordinal(died) ~ age"}))
    assert prices(asked) != prices(replace(plan, estimands={"one": "mean(age)"}))


# -- every mechanism that answers models ------------------------------------------------------------------------
@pytest.mark.parametrize("mechanism", ["tables", "moments"])
def test_figures_answer_the_new_questions_with_their_noise(mechanism):
    from tests.benchmarks import worlds, zoo_moments

    world = worlds.world("late_effects")
    plan = zoo_moments.plan_of(world, "binary", 3.0, mechanism)
    records = world(1500, np.random.default_rng(3), 0)[list(plan.dictionary.names)]
    lines = plan.release.draw(plan, plan.dictionary.check(records), seeded_rng(5))
    right, levels = "age/10 + male + arm", {one.name: one.levels for one in plan.dictionary.released if one.levels}
    for text in (
        f"risk_ratio(died) ~ {right}",
        f"probit(died) ~ {right}",
        f"standardised(died, of = arm) ~ {right}",
        "table_one(age, by = male)",
    ):
        question = parse_estimand(text)
        theirs = {row.term: row for row in estimate(records, question, levels=levels)}
        origin = {"study": "s", "site": "a", "wave": 1, "levels": levels}
        for row in plan.release.answer(plan, [(lines, 1500)], question, **origin):
            own = theirs[row.term]
            if row.term.startswith("missing("):
                assert "no drawn row has it" in row.reason
            elif own.yi is not None:
                assert row.vi > own.vi
                assert abs(row.yi - own.yi) < 4 * row.vi**0.5


if __name__ == "__main__":
    made().to_csv(HERE / "generalised.csv", index=False)
