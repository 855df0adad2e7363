"""From a table to estimates: the language, the numbers, and the reason when there is no number."""

from __future__ import annotations

import doctest
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.pooling.pool import pool_estimates
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimand, Estimate, estimate, parse_estimand, parse_formula
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.estimands.fits.survival import kaplan_meier, restricted_mean
from shared.estimands.formulas import Node, QuestionRows, parse


def ask(table, text, **more):
    return estimate(table, parse_estimand(text), study="s", site="A", wave=1, **more)


def by_term(rows):
    return {row.term: row for row in rows}


def cohort(n=400, seed=5):
    rng = np.random.default_rng(seed)
    age, sbp = rng.normal(60, 10, n), rng.normal(140, 20, n)
    sex = rng.integers(0, 2, n)
    smoking = pd.Categorical.from_codes(rng.integers(0, 3, n), ["never", "former", "current"])
    risk = 1 / (1 + np.exp(-(0.04 * (age - 60) + 0.02 * (sbp - 140) + 0.5 * sex - 0.3)))
    time = rng.exponential(10 / np.exp(0.03 * (age - 60) + 0.01 * (sbp - 140)))
    return pd.DataFrame(
        {
            "age": age,
            "sbp": sbp,
            "sex": sex,
            "smoking": smoking,
            "died": (rng.random(n) < risk).astype(int),
            "years": np.minimum(time, 12),
            "cvd": (time < 12).astype(int),
        }
    )


# -- the language --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "mean(sbp)",
        "proportion(num > 0)",
        'proportion(sex == "female")',
        "correlation(sbp, age)",
        "ols(sbp) ~ age + C(smoking)",
        "ols(sbp) ~ 1",
        "logistic(num >= 2) ~ age/10 + sex",
        "cox(years, cvd) ~ sbp/10 + age",
        "cox(years, status == 2) ~ age",
    ],
)
def test_a_question_reads_back_as_it_was_written(text):
    assert str(parse_estimand(text)) == text
    assert parse_estimand(str(parse_estimand(text))) == parse_estimand(text)


def test_spaces_do_not_matter_and_single_quotes_are_quotes():
    assert str(parse_estimand(" cox( years,cvd )~sbp / 10+C( smoking ) ")) == "cox(years, cvd) ~ sbp/10 + C(smoking)"
    assert parse_estimand("proportion(sex=='F')") == parse_estimand('proportion(sex == "F")')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "median(x)",
        "ols(y)",
        "ols(y) ~",
        "ols(y) ~ a % b",
        "ols(y) ~ median(a)",
        "ols(y) ~ a - b",
        "ols(y) ~ a + a",
        "ols(y) ~ a + a/10",
        "ols(y) ~ 2",
        "ols(y) ~ a + 3 * b",
        "ols(y) ~ I(2)",
        "ols(y) ~ log(a, 2)",
        "ols(y) ~ a/10 * b",
        "ols(y) ~ strata(a)",
        "ols(y, ties = efron) ~ a",
        "ols(y, subset = a + 1) ~ b",
        "ols(y, weights = w, weights = w) ~ a",
        "cox(years, died, ties = exact) ~ a",
        "cox(years, died, start = 5, stop = 5) ~ a",
        "rmst(years, died) ~ arm",
        "rmst(years, died, tau = -1)",
        "two_by_two(died) ~ a + b",
        "two_by_two(died, measure = HR) ~ a",
        "correlation(a, b, c)",
        "ols(y) ~ (((((((((((((((((((((((((((((((((a)))))))))))))))))))))))))))))))))",
        "ols(y) ~ (a + b + c + d) * (e + f + g + h) * (i + j + k + l) * (m + n)",
        "ols(y > 2) ~ a",
        "ols(y) ~ C(a)/10",
        "ols(y) ~ a/0",
        "ols(y) ~ a/-3",
        "mean(x) ~ a",
        "mean(x, y)",
        "correlation(x)",
        "correlation(x > 1, y)",
        "cox(years) ~ a",
        "cox(years, died) ~ 1",
        "cox(years > 1, died) ~ a",
        "logistic(y > 'a') ~ x",
        "logistic(__import__('os').system('true')) ~ x",
        "ols(y) ~ __import__('os')",
        "ols(y ~ a) ~ b",
        "ols(y) ~ a; b",
        "ols(y) ~ " + "a + " * 1000 + "b",
    ],
)
def test_what_is_outside_the_language_is_refused(text):
    with pytest.raises(ParameterError):
        parse_estimand(text)


@given(st.text(max_size=60))
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text):
    try:
        parse_estimand(text)
    except ParameterError:
        return
    assert str(parse_estimand(text))


def test_an_estimand_checks_its_parts_and_names_its_columns():
    question = parse_estimand("cox(years, status == 2) ~ sbp/10 + C(smoking)")
    assert question.columns == ("status", "years", "sbp", "smoking")
    assert question == Estimand(
        kind="cox", terms=("sbp", "C(smoking)"), duration="years", event="status == 2", per={"sbp": 10}
    )
    assert hash(question) == hash(parse_estimand(str(question)))
    with pytest.raises(ParameterError, match="units"):
        Estimand(kind="ols", outcome="y", terms=("a",), per={"b": 10})


# -- the contract --------------------------------------------------------------------------------------------
def make(**change):
    given = {"study": "s", "site": "A", "wave": 1, "term": "x", "yi": 0.1, "vi_sampling": 0.2, "n": 9}
    return Estimate(**(given | change))


def test_an_estimate_is_a_number_with_a_variance_or_a_reason():
    assert make(vi_privacy=0.1).vi == pytest.approx(0.3)
    assert make(yi=None, vi_sampling=None, reason="no events").vi is None
    wrong = [
        {"yi": None},
        {"vi_sampling": None},
        {"yi": None, "vi_sampling": None},
        {"reason": "why"},
        {"yi": math.nan},
        {"vi_sampling": math.inf},
        {"vi_sampling": -1.0},
        {"vi_privacy": -1.0},
        {"scale": "odds"},
    ]
    for change in wrong:
        with pytest.raises(ParameterError):
            make(**change)


def test_origin_and_receipts_are_carried():
    (row,) = ask(cohort(), "mean(sbp)", receipts=["r1"])
    assert (row.study, row.site, row.wave, row.receipts, row.n) == ("s", "A", 1, ("r1",), 400)


# -- the numbers ---------------------------------------------------------------------------------------------
def test_one_column_summaries_are_the_textbook_ones():
    table = cohort()
    (mean,) = ask(table, "mean(sbp)")
    assert mean.yi == pytest.approx(table.sbp.mean())
    assert mean.vi == pytest.approx(table.sbp.var() / 400)
    (share,) = ask(table, "proportion(died)")
    p = table.died.mean()
    assert share.yi == pytest.approx(math.log(p / (1 - p)))
    assert share.vi == pytest.approx(1 / (400 * p * (1 - p)))
    assert share.scale == "logit"
    (r,) = ask(table, "correlation(sbp, age)")
    assert math.tanh(r.yi) == pytest.approx(np.corrcoef(table.sbp, table.age)[0, 1])
    assert (r.vi, r.scale) == (pytest.approx(1 / 397), "fisher_z")


def test_models_agree_with_statsmodels_on_the_raw_columns():
    import statsmodels.api as sm
    from statsmodels.duration.hazard_regression import PHReg

    table = cohort()
    dummies = pd.get_dummies(table.smoking, drop_first=True).astype(float)
    x = pd.concat([table[["age", "sbp"]], dummies], axis=1)
    theirs = sm.OLS(table.years, sm.add_constant(x)).fit()
    ours = by_term(ask(table, "ols(years) ~ age + sbp + C(smoking)"))
    assert list(ours) == ["age", "sbp", "C(smoking)[former]", "C(smoking)[current]"]
    for (_, row), name in zip(ours.items(), x.columns, strict=True):
        assert row.yi == pytest.approx(theirs.params[name], rel=1e-8)
        assert row.vi == pytest.approx(theirs.cov_params().loc[name, name], rel=1e-8)
    theirs = sm.Logit(table.died, sm.add_constant(x)).fit(disp=0, tol=1e-12)
    for row, name in zip(ask(table, "logistic(died) ~ age + sbp + C(smoking)"), x.columns, strict=True):
        assert row.yi == pytest.approx(theirs.params[name], rel=1e-6)
        assert row.vi == pytest.approx(theirs.cov_params().loc[name, name], rel=1e-6)
    theirs = PHReg(table.years, table[["sbp", "age"]], status=table.cvd, ties="efron").fit()
    ours = ask(table, "cox(years, cvd) ~ sbp/10 + age")
    assert [row.term for row in ours] == ["sbp/10", "age"]
    assert ours[0].yi == pytest.approx(10 * theirs.params[0], rel=1e-6)
    assert ours[0].vi == pytest.approx(100 * theirs.cov_params()[0, 0], rel=1e-6)
    assert ours[1].yi == pytest.approx(theirs.params[1], rel=1e-6)


def test_a_term_in_units_of_ten_is_ten_times_the_term():
    table = cohort()
    for kind in ("ols(years)", "logistic(died)", "cox(years, cvd)"):
        one, ten = ask(table, f"{kind} ~ sbp + age")[0], ask(table, f"{kind} ~ sbp/10 + age")[0]
        assert ten.yi == pytest.approx(10 * one.yi)
        assert ten.vi == pytest.approx(100 * one.vi)


def test_an_intercept_is_reported_only_when_it_is_alone():
    table = cohort()
    (alone,) = ask(table, "logistic(died) ~ 1")
    p = table.died.mean()
    assert (alone.term, alone.yi) == ("intercept", pytest.approx(math.log(p / (1 - p))))
    (alone,) = ask(table, "ols(sbp) ~ 1")
    assert alone.yi == pytest.approx(table.sbp.mean())
    assert "intercept" not in by_term(ask(table, "ols(sbp) ~ age"))


def test_incomplete_rows_are_left_out_and_n_says_so():
    table = cohort()
    table.loc[:19, "sbp"] = np.nan
    table.loc[20:24, "sbp"] = np.inf
    table["sex"] = table["sex"].astype("Int64")
    table.loc[25:29, "sex"] = pd.NA
    rows = ask(table, "ols(years) ~ sbp + sex")
    assert {row.n for row in rows} == {370}
    assert rows[0].yi == pytest.approx(ask(table.iloc[30:], "ols(years) ~ sbp + sex")[0].yi)
    assert ask(table, "proportion(sex == 1)")[0].n == 395


def test_comparisons_make_the_outcome_and_keep_missing_missing():
    table = cohort()
    table["grade"] = pd.Categorical(np.where(table.died == 1, "bad", "good")).astype("object")
    table["grade"] = table["grade"].astype("category")
    table["score"] = table.died * 3.0
    plain = ask(table, "logistic(died) ~ age")[0].yi
    assert ask(table, "logistic(score > 0) ~ age")[0].yi == pytest.approx(plain)
    assert ask(table, 'logistic(grade == "bad") ~ age')[0].yi == pytest.approx(plain)
    assert ask(table, 'logistic(grade != "good") ~ age')[0].yi == pytest.approx(plain)
    table.loc[:9, "grade"] = None
    assert ask(table, 'logistic(grade == "bad") ~ age')[0].n == 390


def test_the_table_is_not_changed():
    table = cohort()
    before = table.copy(deep=True)
    ask(table, "logistic(died) ~ age + C(smoking)")
    ask(table, "cox(years, cvd) ~ age")
    pd.testing.assert_frame_equal(table, before)


def test_two_columns_that_are_merely_alike_both_have_their_coefficient():
    rng = np.random.default_rng(3)
    a = rng.normal(size=400)
    table = pd.DataFrame({"a": a, "b": a + 1e-4 * rng.normal(size=400), "y": a + rng.normal(size=400)})
    rows = ask(table, "ols(y) ~ a + b")
    best = np.linalg.lstsq(np.column_stack([np.ones(400), table.a, table.b]), table.y, rcond=None)[0]
    assert [row.yi for row in rows] == pytest.approx(best[1:], rel=1e-6)


# -- exclusions ----------------------------------------------------------------------------------------------
def test_a_separating_term_leaves_and_the_others_stay():
    table = cohort()
    table["treated"] = np.where((table.index % 9 == 0) & (table.died == 1), 1, 0)
    rows = by_term(ask(table, "logistic(died) ~ age + treated + sbp"))
    assert "separates the outcome" in rows["treated"].reason
    left = by_term(ask(table[table.treated == 0], "logistic(died) ~ age + sbp"))
    for name in ("age", "sbp"):
        assert rows[name].yi == pytest.approx(left[name].yi, rel=1e-6)
        assert rows[name].vi == pytest.approx(left[name].vi, rel=1e-6)
        assert rows[name].n == 400


def test_the_limit_is_what_the_likelihood_tends_to():
    # With the separating coefficient held far out, the ordinary fit of the others tends to what we report.
    import statsmodels.api as sm

    table = cohort()
    table["treated"] = np.where((table.index % 9 == 0) & (table.died == 1), 1, 0)
    far = sm.GLM(
        table.died, sm.add_constant(table[["age", "sbp"]]), family=sm.families.Binomial(), offset=25.0 * table.treated
    ).fit(tol=1e-12)
    ours = by_term(ask(table, "logistic(died) ~ age + treated + sbp"))
    assert ours["age"].yi == pytest.approx(far.params["age"], rel=1e-6)
    assert ours["age"].vi == pytest.approx(far.cov_params().loc["age", "age"], rel=1e-6)


def test_a_perfectly_predicting_term_excludes_the_whole_model():
    table = cohort()
    table["marker"] = table.died * 2.0 + np.linspace(0, 1, 400)
    rows = ask(table, "logistic(died) ~ marker + age")
    assert all(row.yi is None and "separate" in row.reason for row in rows)


def test_strong_effects_are_not_mistaken_for_separation():
    rng = np.random.default_rng(1)
    x = rng.normal(0, 4, 2000)
    table = pd.DataFrame({"x": x, "y": (rng.random(2000) < 1 / (1 + np.exp(-3 * x))).astype(int)})
    (row,) = ask(table, "logistic(y) ~ x")
    assert row.yi == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("kind", ["ols(years)", "logistic(died)", "cox(years, cvd)"])
def test_constant_and_collinear_terms_leave_with_their_reason(kind):
    table = cohort()
    table["country"] = 1
    table["months"] = 12 * table.age + 3
    rows = by_term(ask(table, f"{kind} ~ sbp + country + age + months"))
    assert rows["country"].reason == "the column is constant at this site"
    assert rows["age"].reason == "collinear with months at this site"
    assert rows["months"].reason == "collinear with age at this site"
    assert rows["sbp"].yi == pytest.approx(ask(table, f"{kind} ~ sbp + age")[0].yi, rel=1e-6)


def test_collinearity_among_three_excludes_all_three():
    table = cohort()
    table["total"] = table.age + table.sbp
    rows = ask(table, "ols(years) ~ age + sbp + total + sex")
    assert [row.yi is None for row in rows] == [True, True, True, False]


def test_a_level_without_rows_leaves_and_so_do_all_without_a_reference():
    table = cohort()
    empty = by_term(ask(table[table.smoking != "former"], "ols(years) ~ age + C(smoking)"))
    assert empty["C(smoking)[former]"].reason == "the level has no rows at this site"
    assert empty["C(smoking)[current]"].yi is not None
    headless = by_term(ask(table[table.smoking != "never"], "ols(years) ~ age + C(smoking)"))
    assert "reference" in headless["C(smoking)[former]"].reason
    assert "reference" in headless["C(smoking)[current]"].reason
    assert headless["age"].yi is not None


def test_levels_can_be_given_where_the_column_does_not_know_them():
    table = cohort()
    table["grade"] = np.where(table.sex == 1, 2, 3)
    rows = ask(table, "ols(years) ~ C(grade)", levels={"grade": [1, 2, 3]})
    assert [row.term for row in rows] == ["C(grade)[2]", "C(grade)[3]"]
    assert all("reference" in row.reason for row in rows)


def test_a_cox_model_needs_events():
    table = cohort()
    none = ask(table.assign(cvd=0), "cox(years, cvd) ~ age + sbp")
    assert [row.reason for row in none] == ["0 events for 2 terms: too few"] * 2
    few = ask(table.assign(cvd=(table.index < 4).astype(int)), "cox(years, cvd) ~ age")
    assert "4 events" in few[0].reason


def test_a_cox_term_whose_events_lie_on_one_side_leaves_alone():
    table = cohort()
    table["arm"] = np.where((table.cvd == 0) & (table.index % 3 == 0), 1, 0)
    rows = by_term(ask(table, "cox(years, cvd) ~ age + arm"))
    assert "one side" in rows["arm"].reason
    assert rows["age"].yi == pytest.approx(ask(table[table.arm == 0], "cox(years, cvd) ~ age")[0].yi, rel=1e-6)


def test_a_monotone_partial_likelihood_has_no_estimate():
    table = pd.DataFrame({"t": np.arange(1.0, 41), "e": 1, "x": np.arange(40.0, 0, -1)})
    (row,) = ask(table, "cox(t, e) ~ x")
    assert row.yi is None


def test_negative_durations_are_counted_not_shown():
    table = cohort()
    table.loc[:2, "years"] = -1.0
    assert ask(table, "cox(years, cvd) ~ age")[0].reason == "3 durations are negative"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mean(flat)", "constant"),
        ("correlation(flat, age)", "constant"),
        ("correlation(age, age2)", "collinear"),
        ("logistic(flat) ~ age", "outcome is constant"),
        ("ols(age) ~ age2", "determine the outcome"),
        ("ols(age) ~ nowhere", "no column nowhere"),
        ("mean(gone)", "fewer than 10"),
        ("ols(gone) ~ age", "no complete rows"),
    ],
)
def test_data_that_do_not_support_the_question_give_a_reason(text, reason):
    table = cohort()
    table["flat"], table["age2"], table["gone"] = 1, 2 * table.age, np.nan
    (row,) = ask(table, text)
    assert row.yi is None
    assert reason in row.reason


@pytest.mark.parametrize("text", ["mean(sbp)", "correlation(sbp, age)", "ols(sbp) ~ age", "logistic(died) ~ age"])
def test_a_handful_of_rows_is_too_few(text):
    (row,) = ask(cohort().iloc[:9], text)
    assert "fewer than 10 residual" in row.reason
    assert ask(cohort().iloc[:0], text)[0].yi is None


def test_words_enter_a_model_as_levels_against_the_first_one():
    table = cohort()
    plain = ask(table, "ols(years) ~ smoking + age")
    wrapped = ask(table, "ols(years) ~ C(smoking) + age")
    assert [row.term for row in plain] == ["smoking[former]", "smoking[current]", "age"]
    assert [row.yi for row in plain] == [row.yi for row in wrapped]
    text = table.assign(smoking=table.smoking.astype(str))  # no dictionary: sorted
    assert [row.term for row in ask(text, "ols(years) ~ smoking")] == ["smoking[former]", "smoking[never]"]
    given = ask(text, "ols(years) ~ smoking + age", levels={"smoking": ["never", "former", "current"]})
    assert [(row.term, row.yi) for row in given] == [(row.term, row.yi) for row in plain]


def test_words_are_no_numbers_and_outcomes_must_be_what_the_kind_needs():
    table = cohort()
    for text in ("mean(smoking)", "ols(smoking) ~ age", "ols(age) ~ log(smoking)", "correlation(smoking, age)"):
        with pytest.raises(EstimateRefusal, match=r"Write C\(smoking\)"):
            ask(table, text)
    with pytest.raises(EstimateRefusal, match="must be a count, got 400 negative values"):
        ask(table.assign(age=-table.age), "poisson(age) ~ sbp")
    with pytest.raises(EstimateRefusal, match="must be 0 or 1, got 400 other values"):
        ask(table, "logistic(age) ~ sbp")


def test_numeric_levels_compare_as_numbers_and_only_ordered_ones_enter_a_model():
    table = cohort()
    codes = np.arange(400) % 4
    table["ordered"] = pd.Categorical(codes, categories=range(4), ordered=True)
    table["nominal"] = pd.Categorical(codes, categories=range(4))
    assert ask(table, "proportion(ordered > 0)")[0].yi == pytest.approx(math.log(3))
    assert ask(table, "proportion(nominal == 2)")[0].yi == pytest.approx(-math.log(3))
    assert ask(table, "mean(ordered)")[0].yi == pytest.approx(1.5)
    assert [row.term for row in ask(table, "ols(years) ~ ordered")] == ["ordered"]
    assert [row.term for row in ask(table, "ols(years) ~ nominal")] == ["nominal[1]", "nominal[2]", "nominal[3]"]


def test_truth_values_are_zero_and_one():
    table = cohort()
    table["yes"] = table.died == 1
    table["maybe"] = table["yes"].astype("boolean")
    table.loc[0, "maybe"] = pd.NA
    assert ask(table, "proportion(yes)")[0].yi == ask(table, "proportion(died)")[0].yi
    assert ask(table, "logistic(maybe) ~ age")[0].n == 399


def test_a_level_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(EstimateRefusal, match="never, former, current"):
        ask(cohort(), 'proportion(smoking == "Never")')


@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from(["ols(y)", "logistic(b)", "cox(t, b)"]))
@settings(max_examples=60, deadline=None)
def test_whatever_the_table_every_term_has_a_number_or_a_reason(seed, n, kind):
    rng = np.random.default_rng(seed)
    pick = rng.integers(1, 4)
    table = pd.DataFrame(
        {
            "y": rng.normal(size=n).round(pick),
            "b": rng.integers(0, 2, n),
            "t": rng.exponential(size=n).round(1),
            "a": rng.integers(0, pick, n),
            "c": pd.Categorical.from_codes(rng.integers(0, 2, n), ["u", "v", "w"]),
            "x": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
        }
    )
    rows = ask(table, f"{kind} ~ a + C(c) + x")
    assert [row.term for row in rows] == ["a", "C(c)[v]", "C(c)[w]", "x"]
    assert all((row.yi is None) == bool(row.reason) for row in rows)
    assert all(row.vi > 0 for row in rows if row.yi is not None)


# -- the grammar as in R -------------------------------------------------------------------------------------
_LEAF = st.one_of(
    st.sampled_from(["a", "b", "cvd", "sbp"]).map(lambda name: Node("name", name)),
    st.floats(0, 1e12, allow_nan=False).map(lambda number: Node("number", number)),
    st.sampled_from(["x", "it's", 'a "b"', ""]).map(lambda text: Node("text", text)),
)


def _grow(inner):
    operators = st.sampled_from([op for op in ["+", "-", "*", "/", ":", "^", "&", "|", "~", "==", "!=", "<", ">="]])
    return st.one_of(
        st.builds(lambda op, a, b: Node("binary", op, (a, b)), operators, inner, inner),
        st.builds(lambda op, a: Node("unary", op, (a,)), st.sampled_from(["-", "!"]), inner),
        st.builds(lambda name, parts: Node("call", name, tuple(parts)), st.sampled_from(["log", "C"]), st.lists(inner)),
    )


@given(st.recursive(_LEAF, _grow, max_leaves=12))
@settings(max_examples=150, deadline=None)
def test_every_piece_of_a_formula_reads_back_as_itself(node):
    assert parse(str(node)) == node


@given(
    st.lists(
        st.sampled_from([*"ab+-*/:^()~!&|<>,='\"1. ", "==", "log(", "C(", "strata(", "offset(", "I("]), max_size=40
    )
)
@settings(max_examples=250, deadline=None)
def test_no_formula_does_anything_but_be_read_or_refused(pieces):
    formula = "".join(pieces)
    for kind in ("ols", "cox", "mean", "correlation", "km", "two_by_two"):
        try:
            question = parse_formula(kind, formula)
        except ParameterError:
            continue
        assert parse_estimand(str(question)) == question


@pytest.mark.parametrize(
    "text",
    [
        "difference(sbp) ~ arm",
        "ratio(sbp) ~ C(arm)",
        "two_by_two(num > 0, measure = RR) ~ arm",
        "correlation(a, b, c, structure = cs)",
        "poisson(k) ~ age + offset(log(years))",
        "ols(log(sbp), weights = w, robust = HC3) ~ age * C(arm) - 1",
        "cox(years, cvd, ties = breslow, start = 1, stop = 5) ~ sbp/10 + strata(centre)",
        'cox(years, cvd, subset = sex == "f" & age >= 60) ~ sbp/10',
        "km(years, cvd, at = 5) ~ arm",
        "km(years, cvd)",
        "cumhaz(years, cvd, at = 5)",
        'cuminc(years, cause == "cvd", competing = cause == "other", at = 5) ~ arm',
        "rmst(years, cvd, tau = 8)",
        "rmst_regression(years, cvd, tau = 8, cluster = ward) ~ sbp/10 + arm",
        "schoenfeld(years, cvd, entry = start_age, transform = identity) ~ sbp/10 + strata(centre)",
        "finegray(years, cvd, competing = died) ~ sbp/10 + arm",
        "aft(years, cvd, weights = w, dist = lognormal) ~ sbp/10 - 1",
        "flexible(years, cvd, entry = age, df = 4) ~ sbp/10 + arm",
        "logrank(years, cvd) ~ arm + strata(centre)",
    ],
)
def test_the_longer_questions_read_back_too(text):
    question = parse_estimand(text)
    assert parse_estimand(str(question)) == question
    assert hash(question) == hash(parse_estimand(str(question)))


def test_two_spellings_are_one_question():
    there = parse_estimand("cox(years, cvd, subset = sex == 1) ~ sbp/10 + strata(centre)")
    assert parse_formula("cox", "Surv(years, cvd) ~ sbp/10 + strata(centre)", subset="sex==1") == there
    assert parse_estimand("cox(Surv(years, cvd) ~ sbp/10 + strata(centre), subset = sex == 1)") == there
    assert parse_formula("mean", "sbp") == parse_formula("mean", "~ sbp") == parse_formula("mean", "sbp ~ 1")
    assert parse_formula("correlation", "a ~ b") == parse_formula("correlation", "~ a + b")
    assert parse_formula("ols", "y ~ factor(arm)").terms == ("factor(arm)",)


@pytest.mark.parametrize(
    ("right", "terms"),
    [
        ("a*b", ["a", "b", "a:b"]),
        ("a*b - a", ["b", "a:b"]),
        ("a:b + c", ["c", "a:b"]),
        ("(a + b):c", ["a:c", "b:c"]),
        ("a*b*c", ["a", "b", "c", "a:b", "a:c", "b:c", "a:b:c"]),
        ("a*b + a*c", ["a", "b", "c", "a:b", "a:c"]),
        ("a:b + b:a", ["a:b"]),
        ("a + I(a^2) + log(b)", ["a", "I(a^2)", "log(b)"]),
    ],
)
def test_terms_expand_as_in_r(right, terms):
    assert list(parse_formula("ols", f"y ~ {right}").terms) == terms


def test_a_megabyte_of_formula_is_refused_before_it_is_read():
    for text in ("y ~ " + "a + " * 250_000 + "b", "(" * 10**6, "y ~ " + "x" * 10**6):
        with pytest.raises(ParameterError, match="at most 2000 characters"):
            parse_formula("ols", text)
    for text in ("y ~ " + "(" * 900 + "a", "y ~ " + "-" * 900 + "a", "y ~ I(" + "a^" * 140 + "a)", "y ~ " + "!" * 299):
        with pytest.raises(ParameterError):
            parse_formula("ols", text)


def test_a_model_of_thousands_of_coefficients_is_refused_before_it_is_built():
    table = pd.DataFrame({"a": np.arange(400) % 40, "b": np.arange(400) // 10, "y": np.arange(400.0)})
    with pytest.raises(ParameterError, match="at most 200 coefficients"):
        estimate(table, "ols", "y ~ C(a):C(b)")
    with pytest.raises(EstimateRefusal, match="few levels to be a category, got 400 different values"):
        estimate(table, "ols", "y ~ C(y)")
    with pytest.raises(EstimateRefusal, match="few values"):
        estimate(table, "difference", "b ~ I(y * 2)")


def test_a_formula_is_never_run(tmp_path):
    mark = tmp_path / "ran"
    for text in (f"__import__('os').system('touch {mark}')", f"I(open('{mark}', 'w'))", "y ~ a.__class__", "y ~ [a]"):
        for kind in ("mean", "ols"):
            with pytest.raises((ParameterError, EstimateRefusal)):
                estimate(cohort(), kind, text)
    assert not mark.exists()


def test_mistakes_name_what_was_meant():
    table = cohort()
    with pytest.raises(ParameterError, match="Nearest: smoking"):
        estimate(table, "logistic", "died ~ smokin")
    with pytest.raises(ParameterError, match="Did you mean 'logistic'"):
        estimate(table, "logistc", "died ~ age")
    with pytest.raises(ParameterError, match=r"Arithmetic goes inside I\(\)"):
        estimate(table, "ols", "sbp ~ median(age)")
    with pytest.raises(ParameterError, match=r"Terms: .*age"):
        estimate(table, "ols", "sbp ~ age + sex", term="agee")
    with pytest.raises(ParameterError, match="one of several"):
        estimate(table, "ols", "sbp ~ smoking", term="smoking")
    with pytest.raises(ParameterError, match=r"Surv\(time, event\)"):
        estimate(table, "cox", "years ~ age")
    with pytest.raises(ParameterError, match="ols takes the options subset, weights, robust"):
        estimate(table, "ols", "sbp ~ age", ties="efron")


def test_a_formula_gives_every_term_as_a_table_and_one_term_as_an_estimate():
    table = cohort()
    frame = estimate(table, "cox", "Surv(years, cvd) ~ sbp/10 + smoking*age")
    assert list(frame.index) == [
        "sbp/10",
        "smokingformer",
        "smokingcurrent",
        "age",
        "smokingformer:age",
        "smokingcurrent:age",
    ]
    assert list(frame.columns) == ["beta", "se", "n", "reason"]
    for term in ("sbp/10", "sbp"):
        one = estimate(table, "cox", "Surv(years, cvd) ~ sbp/10 + smoking*age", term=term, site="A")
        assert (one.yi, math.sqrt(one.vi)) == (frame.beta["sbp/10"], pytest.approx(frame.se["sbp/10"]))
    assert (
        estimate(table, "ols", "sbp ~ age", term="(Intercept)").yi
        == estimate(table, "ols", "sbp ~ age").beta["(Intercept)"]
    )
    assert estimate(table, "mean", "sbp", term="sbp").yi == pytest.approx(table.sbp.mean())
    table["flat"] = 1
    frame = estimate(table, "logistic", "died ~ age + flat")
    assert frame.reason["flat"]
    assert frame[["beta", "se"]].loc["flat"].isna().all()
    assert estimate(table, "logistic", "died ~ age + flat", term="flat").yi is None


def test_every_answer_counts_the_rows_it_left_out():
    table = cohort()
    table.loc[:19, "sbp"] = np.nan
    row = estimate(table, "ols", "years ~ sbp", subset="sex == 1", term="sbp")
    women = int((table.sex == 1).sum())
    assert (row.n + row.n_missing, row.n_outside) == (women, 400 - women)
    assert row.n_missing == int((table.sex[:20] == 1).sum())
    assert row.yi == pytest.approx(estimate(table[table.sex == 1], "ols", "years ~ sbp", term="sbp").yi)


def test_numbers_of_a_column_are_its_own_and_nobody_writes_to_them():
    table = pd.DataFrame({"sbp": [120.0, 140.0], "age": [50.0, np.inf], "sex": [0, 1]})
    rows = QuestionRows(table)
    assert np.shares_memory(rows.numbers("sbp"), table.sbp.to_numpy()), "or a table took room twice"
    np.testing.assert_array_equal(rows.numbers("age"), [50.0, np.nan])
    np.testing.assert_array_equal(rows.numbers("sex"), [0.0, 1.0])
    assert not any(rows.numbers(name).flags.writeable for name in table)
    table.loc[0, "sbp"] = 121.0
    assert table.age[1] == np.inf, "what a question reads as missing stands in the table as it did"


def test_a_filter_leaves_out_what_it_does_not_know():
    table = cohort()
    table.loc[:9, "age"] = np.nan
    for text, expected in (
        ("age >= 60", table.age >= 60),
        ("!(age >= 60)", table.age < 60),
        ("age < 60 | sex == 1", (table.age < 60) | (table.sex == 1)),
        ("sex == 1 & age / 10 > 6", (table.sex == 1) & (table.age > 60)),
        ("smoking != 'never'", table.smoking != "never"),
    ):
        row = estimate(table, "mean", "sbp", subset=text, term="sbp")
        assert (row.n, row.yi) == (int(expected.sum()), pytest.approx(table.sbp[expected].mean())), text


def test_arithmetic_that_is_not_finite_is_counted():
    table = cohort()
    table.loc[:2, "age"] = -1.0
    rows = ask(table, "ols(years) ~ log(age) + sbp")
    assert {row.reason for row in rows} == {"log(age) is not finite in 3 rows"}


@pytest.mark.parametrize("text", ["ols(log(age)) ~ sbp", "mean(log(age))", "difference(log(age)) ~ sex"])
def test_rows_are_not_chosen_by_whether_the_outcome_has_a_logarithm(text):
    """They were left out as if a value were missing, the lowest ones of the outcome alone."""
    table = cohort()
    table.loc[:2, "age"] = np.nan
    assert {row.n_missing for row in ask(table, text)} == {3}
    table.loc[3:6, "age"] = 0.0
    with pytest.raises(EstimateRefusal, match=r"log\(age\) must be finite in each row .*, got 4 where it is not"):
        ask(table, text)
    assert ask(table, "proportion(log(age) > 4)")[0].n == len(table) - 3, "a comparison has an answer in each row"


# -- agreement -----------------------------------------------------------------------------------------------
def close(ours, theirs, rel=1e-7):
    """Our table against statsmodels' result, names matched by what they are made of."""
    plain = {
        str(name).replace("[T.", "").replace("[", "").replace("]", "").replace("Intercept", "(Intercept)"): k
        for k, name in enumerate(theirs.params.index)
    }
    assert len(plain) == len(ours)
    beta, se = np.asarray(theirs.params), np.asarray(theirs.bse)
    for name in ours.index:
        k = plain[name]
        assert ours.beta[name] == pytest.approx(beta[k], rel=rel)
        assert ours.se[name] == pytest.approx(se[k], rel=rel)


def wider(n=500, seed=3):
    rng = np.random.default_rng(seed)
    table = cohort(n, seed)
    table["arm"] = pd.Categorical.from_codes(rng.integers(0, 2, n), ["u", "v"])
    table["w"], table["py"] = rng.uniform(0.5, 3, n), rng.uniform(1, 9, n)
    table["k"] = rng.poisson(table.py * np.exp(0.02 * (table.age - 60) - 1))
    return table


@pytest.mark.parametrize(
    "right", ["age + smoking*arm", "age:sbp + smoking", "smoking + arm - 1", "smoking:age", "arm + smoking:arm"]
)
def test_designs_are_coded_as_in_r(right):
    import statsmodels.formula.api as smf

    table = wider()
    close(estimate(table, "ols", f"years ~ {right}"), smf.ols(f"years ~ {right}", table).fit())


@pytest.mark.parametrize("robust", ["", "HC0", "HC1", "HC2", "HC3"])
def test_weighted_and_robust_models_agree_with_statsmodels(robust):
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    table, cov = wider(), {"cov_type": robust or "nonrobust"}
    close(
        estimate(table, "ols", "years ~ age + smoking", robust=robust),
        smf.ols("years ~ age + smoking", table).fit(**cov),
    )
    weighted = smf.wls("years ~ age + smoking", table, weights=table.w).fit(**cov)
    close(estimate(table, "ols", "years ~ age + smoking", robust=robust, weights="w"), weighted)
    if robust in ("", "HC0"):  # its HC1 of a GLM leaves out the n / (n − p) that R's has
        logit = smf.glm("died ~ age + smoking", table, family=sm.families.Binomial()).fit(tol=1e-14, **cov)
        close(estimate(table, "logistic", "died ~ age + smoking", robust=robust), logit)
        poisson = smf.glm("k ~ age + arm", table, family=sm.families.Poisson(), offset=np.log(table.py))
        close(
            estimate(table, "poisson", "k ~ age + arm + offset(log(py))", robust=robust), poisson.fit(tol=1e-14, **cov)
        )
        one, zero = (estimate(table, "logistic", "died ~ age", robust=kind, term="age") for kind in ("HC1", "HC0"))
        assert one.vi == pytest.approx(zero.vi * 500 / 498, rel=1e-9)
    if not robust:
        logit = smf.glm("died ~ age + arm", table, family=sm.families.Binomial(), freq_weights=table.w).fit(tol=1e-14)
        close(estimate(table, "logistic", "died ~ age + arm", weights="w"), logit)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("strata", [False, True])
def test_cox_models_with_many_ties_agree_with_statsmodels(ties, strata):
    from statsmodels.duration.hazard_regression import PHReg

    table = wider()
    table["months"] = np.ceil(table.years * 3)
    more = {"strata": table.sex.to_numpy()} if strata else {}
    theirs = PHReg(table.months, table[["sbp", "age"]], status=table.cvd, ties=ties, **more).fit()
    ours = estimate(table, "cox", "Surv(months, cvd) ~ sbp + age" + (" + strata(sex)" if strata else ""), ties=ties)
    assert ours.beta.to_numpy() == pytest.approx(np.asarray(theirs.params), rel=1e-7)
    assert ours.se.to_numpy() == pytest.approx(np.asarray(theirs.bse), rel=1e-7)


def written_out(beta, x, time, event, weights, strata, ties):
    """The partial log-likelihood, one death at a time, as the textbook writes it."""
    total, eta = 0.0, x @ beta
    for s in np.unique(strata):
        for t in np.unique(time[(event == 1) & (strata == s)]):
            risk, dead = (strata == s) & (time >= t), (strata == s) & (time == t) & (event == 1)
            all_, tied = (weights * np.exp(eta))[risk].sum(), (weights * np.exp(eta))[dead].sum()
            d = int(dead.sum())
            total += weights[dead] @ eta[dead]
            for death in range(d):
                total -= weights[dead].mean() * np.log(all_ - (death / d if ties == "efron" else 0.0) * tied)
    return total


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_with_weights_strata_and_ties_is_the_maximum_of_the_likelihood_written_out(ties):
    rng = np.random.default_rng(8)
    n = 60
    x, time = rng.normal(size=(n, 2)), rng.integers(1, 8, n).astype(float)
    event, weights, strata = rng.integers(0, 2, n).astype(float), rng.uniform(0.5, 2, n), rng.integers(0, 3, n)
    fit = cox(x, SurvivalOutcome(time=time, event=event), ties=ties, strata=strata, weights=weights)

    def at(beta):
        return written_out(np.asarray(beta), x, time, event, weights, strata, ties)

    assert fit.converged
    assert fit.loglik == pytest.approx(at(fit.beta), rel=1e-12)
    h, unit = 1e-4, np.eye(2)
    slope = [(at(fit.beta + h * e) - at(fit.beta - h * e)) / (2 * h) for e in unit]
    assert slope == pytest.approx([0, 0], abs=1e-6)
    curve = [
        [
            (
                at(fit.beta + h * (a + b))
                - at(fit.beta + h * (a - b))
                - at(fit.beta - h * (a - b))
                + at(fit.beta - h * (a + b))
            )
            / (4 * h * h)
            for a in unit
        ]
        for b in unit
    ]
    assert np.linalg.inv(-np.array(curve)) == pytest.approx(fit.cov, rel=1e-4)


def leukaemia():
    """Weeks of remission, 6-mercaptopurine against placebo (Freireich 1963; `gehan` in R's MASS)."""
    drug = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    control = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    return pd.DataFrame(
        {"time": [*drug, *control], "cens": [1] * 9 + [0] * 12 + [1] * 21, "treat": [0] * 21 + [1] * 21}
    )


def test_the_leukaemia_trial_gives_the_published_values():
    table = leukaemia()
    for ties, beta, se in (("efron", 1.5721251, 0.4123967), ("breslow", 1.5091914, 0.4095644)):
        row = estimate(table, "cox", "Surv(time, cens) ~ treat", ties=ties, term="treat")
        assert (row.yi, math.sqrt(row.vi)) == (pytest.approx(beta, abs=5e-8), pytest.approx(se, abs=5e-8))
    test = estimate(table, "logrank", "Surv(time, cens) ~ treat")
    assert round(test.attrs["chisq"], 2) == 16.79
    assert test.attrs["df"] == 1
    curve = estimate(table, "km", "Surv(time, cens) ~ 1", subset="treat == 0")
    deaths = curve[curve.n_event > 0]
    assert deaths.beta.round(3).tolist() == [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448]
    assert deaths.se.round(4).tolist() == [0.0764, 0.0869, 0.0963, 0.1068, 0.1141, 0.1282, 0.1346]
    assert deaths.n_risk.tolist() == [21, 17, 15, 12, 11, 7, 6]


def test_the_small_case_that_can_be_solved_by_hand_gives_its_solution():
    # Therneau and Grambsch 2000, appendix E.1: six usable rows, Breslow's maximum is log((3 + √33) / 2).
    table = pd.DataFrame({"t": [9, 3, 1, 1, 6, 6, 8], "e": [1, np.nan, 1, 0, 1, 1, 0], "x": [0, 2, 1, 1, 1, 0, 0]})
    low = {"min_residual_df": 0, "min_events": 0, "term": "x"}
    breslow = estimate(table, "cox", "Surv(t, e) ~ x", ties="breslow", **low)
    assert breslow.yi == pytest.approx(math.log((3 + math.sqrt(33)) / 2), rel=1e-12)
    assert estimate(table, "cox", "Surv(t, e) ~ x", **low).yi == pytest.approx(1.676857, abs=5e-7)
    assert (breslow.n, breslow.n_missing) == (6, 1)


REFERENCE = json.loads((Path(__file__).parents[2] / "reference" / "metafor_public.json").read_text())


@pytest.mark.parametrize("measure", ["OR", "RR", "RD"])
def test_two_by_two_tables_agree_with_escalc(measure):
    bcg = REFERENCE["datasets"]["bcg"]["two_by_two"]
    theirs = bcg["escalc"][measure]
    for k in (0, 1, 2, 5):  # trials that are small enough to write out as rows
        cells = [bcg[name][k] for name in ("ai", "bi", "ci", "di")]
        table = pd.DataFrame({"arm": np.repeat([1, 1, 0, 0], cells), "died": np.repeat([1, 0, 1, 0], cells)})
        row = estimate(table, "two_by_two", "died ~ arm", measure=measure, term="arm")
        assert row.yi == pytest.approx(theirs["yi"][k], rel=1e-10)
        assert row.vi == pytest.approx(theirs["vi"][k], rel=1e-10)
        assert row.scale == ("identity" if measure == "RD" else "log")


@pytest.mark.parametrize("measure", ["OR", "RR", "RD"])
def test_tables_with_a_zero_agree_with_escalc_that_drops_double_zeros(measure):
    zero = REFERENCE["zero_cells"]
    theirs = zero["rules"][f"{measure}_only0_drop00"]
    for a, n1, c, n2, yi, vi in zip(*(zero[k] for k in ("ai", "n1i", "ci", "n2i")), *theirs.values(), strict=True):
        died = np.repeat([1, 0, 1, 0], [a, n1 - a, c, n2 - c])
        table = pd.DataFrame({"arm": np.repeat([1, 0], [n1, n2]), "died": died})
        row = estimate(table, "two_by_two", "died ~ arm", measure=measure, term="arm")
        assert (row.yi, row.vi) == ((None, None) if yi is None else (pytest.approx(yi), pytest.approx(vi)))


def test_a_zero_cell_gets_a_half_and_says_so_and_no_events_at_all_get_a_reason():
    table = pd.DataFrame({"arm": np.repeat([0, 1], 20), "died": [0] * 35 + [1] * 5})
    frame = estimate(table, "two_by_two", "died ~ arm")
    assert frame.beta["arm1"] == pytest.approx(math.log(5.5 * 20.5 / (15.5 * 0.5)))
    assert frame.added["arm1"] == 0.5
    (row,) = ask(table.assign(died=0), "two_by_two(died) ~ arm")
    assert "no events in both groups" in row.reason


def test_a_log_odds_ratio_is_the_logistic_coefficient_and_a_difference_welchs():
    table = wider()
    table["male"] = table.sex
    cross = estimate(table, "two_by_two", "died ~ male", term="male")
    model = estimate(table, "logistic", "died ~ male", term="male")
    assert (cross.yi, cross.vi) == (pytest.approx(model.yi, rel=1e-9), pytest.approx(model.vi, rel=1e-9))
    a, b = table.sbp[table.sex == 0], table.sbp[table.sex == 1]
    row = estimate(table, "difference", "sbp ~ sex", term="sex")
    assert (row.yi, row.vi) == (pytest.approx(b.mean() - a.mean()), pytest.approx(a.var() / len(a) + b.var() / len(b)))
    row = estimate(table, "ratio", "sbp ~ sex", term="sex")
    assert row.yi == pytest.approx(math.log(b.mean() / a.mean()))
    assert row.vi == pytest.approx(a.var() / len(a) / a.mean() ** 2 + b.var() / len(b) / b.mean() ** 2)


def test_compound_symmetry_finds_the_one_correlation_and_its_spread():
    rng = np.random.default_rng(4)
    p, n, rho = 4, 300, 0.3
    root = np.linalg.cholesky(np.full((p, p), rho) + (1 - rho) * np.eye(p))
    found = []
    for _ in range(200):
        table = pd.DataFrame(rng.normal(size=(n, p)) @ root.T, columns=list("abcd"))
        found.append(estimate(table, "correlation", "~ a + b + c + d", structure="cs", term=""))
    z = np.array([row.yi for row in found])
    assert np.tanh(z.mean()) == pytest.approx(rho, abs=0.01)
    assert np.mean([row.vi for row in found]) == pytest.approx(z.var(), rel=0.35)


# -- laws ----------------------------------------------------------------------------------------------------
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_scaling_a_column_scales_its_coefficient(seed, by):
    table = cohort(150, seed)
    table["scaled"] = table.age * by
    for kind, left in (("ols", "years"), ("logistic", "died"), ("cox", "Surv(years, cvd)")):
        one = estimate(table, kind, f"{left} ~ age + sbp", term="age")
        other = estimate(table, kind, f"{left} ~ scaled + sbp", term="scaled")
        assert other.yi * by == pytest.approx(one.yi, rel=1e-6)
        assert other.vi * by**2 == pytest.approx(one.vi, rel=1e-6)


def test_one_stratum_is_none_and_the_order_of_rows_does_not_matter():
    table = wider()
    table["everyone"] = "same"
    plain = estimate(table, "cox", "Surv(years, cvd) ~ age")
    assert estimate(table, "cox", "Surv(years, cvd) ~ age + strata(everyone)").equals(plain)
    mixed = estimate(table.sample(frac=1, random_state=1), "cox", "Surv(years, cvd) ~ age")
    assert mixed.beta.to_numpy() == pytest.approx(plain.beta.to_numpy(), rel=1e-10)


def test_what_is_constant_in_a_stratum_cancels_however_large_it_is():
    rng = np.random.default_rng(1)
    x, time, strata = rng.normal(size=(900, 2)), rng.integers(1, 60, 900).astype(float), rng.integers(0, 3, 900)
    event = rng.integers(0, 2, 900).astype(float)
    plain = cox(x, SurvivalOutcome(time=time, event=event), strata=strata)
    for s in range(3):
        other = cox(x, SurvivalOutcome(time=time, event=event), strata=strata, offset=np.where(strata == s, 40.0, 0.0))
        assert other.beta == pytest.approx(plain.beta, rel=1e-9)
        assert other.cov == pytest.approx(plain.cov, rel=1e-9)


def test_a_column_that_is_constant_within_strata_leaves_with_that_reason():
    table = wider()
    table["centre"] = table.index % 4
    table["beds"] = table.centre * 3.7 + 100
    rows = by_term(ask(table, "cox(years, cvd) ~ age + beds + strata(centre)"))
    assert rows["beds"].reason == "the column is constant within every stratum"
    assert rows["age"].yi == pytest.approx(ask(table, "cox(years, cvd) ~ age + strata(centre)")[0].yi, rel=1e-8)


def test_a_time_window_is_the_model_on_the_rows_of_that_window():
    table = wider()
    left = table[table.years > 1].copy()
    left["cvd"] = left.cvd * (left.years <= 5)
    left["years"] = left.years.clip(upper=5)
    ours = estimate(table, "cox", "Surv(years, cvd) ~ age", start=1, stop=5, term="age")
    theirs = estimate(left, "cox", "Surv(years, cvd) ~ age", term="age")
    assert (ours.yi, ours.vi, ours.n) == (theirs.yi, theirs.vi, theirs.n)


@given(st.integers(0, 10**6), st.integers(12, 80))
@settings(max_examples=30, deadline=None)
def test_without_censoring_survival_is_what_is_left_and_rmst_the_mean_of_what_was_lived(seed, n):
    rng = np.random.default_rng(seed)
    time = rng.exponential(size=n).round(1) + 0.1
    curve = kaplan_meier(time, np.ones(n))
    assert curve.survival == pytest.approx([(time > t).mean() for t in curve.time], abs=1e-12)
    area, variance = restricted_mean(curve, 1.0)
    lived = np.minimum(time, 1.0)
    assert area == pytest.approx(lived.mean(), abs=1e-12)
    assert variance == pytest.approx(lived.var() / n, abs=1e-10)


def test_the_restricted_mean_is_the_area_under_the_curve():
    table = wider()
    curve = estimate(table, "km", "Surv(years, cvd) ~ 1")
    grid = np.linspace(0, 8, 400_001)[:-1]
    heights = np.r_[1.0, curve.beta.to_numpy()][np.searchsorted(curve.index.to_numpy(), grid, side="right")]
    row = estimate(table, "rmst", "Surv(years, cvd) ~ 1", tau=8, term="")
    assert row.yi == pytest.approx(heights.mean() * 8, abs=1e-4)
    arms = estimate(table, "rmst", "Surv(years, cvd) ~ arm", tau=8, term="arm")
    u, v = (estimate(table, "rmst", "Surv(years, cvd) ~ 1", tau=8, subset=f"arm == '{arm}'", term="") for arm in "uv")
    assert (arms.yi, arms.vi) == (pytest.approx(v.yi - u.yi), pytest.approx(v.vi + u.vi))


def test_survival_at_a_time_is_the_curve_there_on_the_logit_scale():
    table = wider()
    curve = estimate(table, "km", "Surv(years, cvd) ~ 1")
    there = curve[curve.index <= 5].iloc[-1]
    row = estimate(table, "km", "Surv(years, cvd) ~ 1", at=5, term="")
    assert 1 / (1 + math.exp(-row.yi)) == pytest.approx(there.beta, abs=1e-12)
    assert math.sqrt(row.vi) == pytest.approx(there.se / (there.beta * (1 - there.beta)), rel=1e-9)
    assert row.scale == "logit"


def test_log_rank_is_the_score_test_of_a_cox_model_without_ties():
    table = wider().query("years < 12").drop_duplicates("years")
    test = estimate(table, "logrank", "Surv(years, cvd) ~ sex")
    x = table[["sex"]].to_numpy(dtype=float)
    time, event = table.years.to_numpy(), table.cvd.to_numpy(dtype=float)
    zero = written_out(np.zeros(1), x, time, event, np.ones(len(x)), np.zeros(len(x)), "breslow")
    h = 1e-4
    up, down = (
        written_out(np.array([s * h]), x, time, event, np.ones(len(x)), np.zeros(len(x)), "breslow") for s in (1, -1)
    )
    score, information = (up - down) / (2 * h), -(up - 2 * zero + down) / h**2
    assert test.attrs["chisq"] == pytest.approx(score**2 / information, rel=1e-4)


def test_a_poisson_level_without_events_leaves_and_the_others_stay():
    table = wider()
    table["closed"] = (table.index % 5 == 0).astype(int)
    table.loc[table.closed == 1, "k"] = 0
    rows = by_term(ask(table, "poisson(k) ~ age + closed + offset(log(py))"))
    assert "separates the outcome" in rows["closed"].reason
    (left,) = ask(table[table.closed == 0], "poisson(k) ~ age + offset(log(py))")
    assert rows["age"].yi == pytest.approx(left.yi, rel=1e-7)
    assert rows["age"].vi == pytest.approx(left.vi, rel=1e-7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("km(years, cvd, at = 99)", "follow-up ends before 99"),
        ("km(years, cvd, at = 0)", "survival at 0 is 1"),
        ("rmst(years, cvd, tau = 99)", "follow-up ends before 99"),
        ("rmst(years, none, tau = 5)", "fewer than 5 events"),
        ("logrank(years, none) ~ sex", "0 events: too few"),
        ("difference(sbp) ~ flat", "fewer than two levels"),
        ("ratio(below) ~ sex", "not positive"),
        ("two_by_two(died) ~ flat", "fewer than two levels"),
        ("cox(years, cvd, start = 50) ~ age", "time window"),
        ("ols(sbp, weights = below) ~ age", "400 weights are negative"),
        ("mean(sbp, subset = age > 900)", "fewer than 10"),
    ],
)
def test_what_a_site_cannot_answer_has_a_reason(text, reason):
    table = cohort()
    table["none"], table["flat"], table["below"] = 0, 1, -table.sbp
    rows = ask(table, text)
    assert rows
    assert all(row.yi is None and reason in row.reason for row in rows), [row.reason for row in rows]


@given(st.integers(0, 10**6), st.integers(0, 40))
@settings(max_examples=12, deadline=None)
def test_whatever_the_table_the_other_kinds_have_a_number_or_a_reason_too(seed, n):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "y": rng.normal(size=n).round(1),
            "b": rng.integers(0, 2, n) * rng.integers(0, 2),
            "t": rng.exponential(size=n).round(1),
            "g": rng.integers(0, rng.integers(1, 4), n),
            "s": rng.integers(0, 3, n),
            "id": np.arange(n) // 3,
        }
    )
    for text in (
        "difference(y) ~ g",
        "ratio(y) ~ g",
        "two_by_two(b) ~ g",
        "poisson(b) ~ y + C(g)",
        "km(t, b, at = 0.5) ~ g",
        "cumhaz(t, b, at = 0.5) ~ g",
        "cuminc(t, b, competing = y > 0, at = 0.5) ~ g",
        "rmst(t, b, tau = 0.5) ~ g",
        "rmst_regression(t, b, tau = 0.5) ~ y * C(g)",
        "schoenfeld(t, b) ~ y * C(g) + strata(s)",
        "multinomial(s) ~ y * C(g)",
        "quantile(y, tau = 0.3) ~ t + C(g)",
        "gee(y, cluster = id) ~ t * C(g)",
        "gee(b, family = binomial, corstr = independence, cluster = id) ~ y * C(g)",
        "gee(s, family = poisson, cluster = id) ~ y + C(g)",
        "mixed(y, cluster = id, robust = HC0) ~ t * C(g)",
        "finegray(t, b, competing = s > 1) ~ y * C(g)",
        "aft(t, b, dist = lognormal) ~ y * C(g)",
        "flexible(t, b, df = 2) ~ y * C(g)",
        "logrank(t, b) ~ g + strata(s)",
        "cox(t, b) ~ y * C(g) + strata(s)",
        "ols(y, robust = HC3) ~ C(g):t - 1",
        "correlation(y, t, b, structure = cs)",
    ):
        rows = ask(table, text, min_residual_df=2, min_events=1)
        assert rows
        assert all((row.yi is None) == bool(row.reason) for row in rows)


# -- the page ------------------------------------------------------------------------------------------------
def test_the_code_of_the_page_runs_and_prints_what_it_says():
    page = (Path(__file__).parents[3] / "docs" / "estimands.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    room: dict[str, object] = {}
    for block in blocks:
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        test = doctest.DocTestParser().get_doctest(block, room, "estimands.md", None, 0)
        assert runner.run(test, clear_globs=False).failed == 0
        room = test.globs
    for question in re.findall(r"^\| `(\w+\([^`]*)` \|", page, flags=re.MULTILINE):
        assert str(parse_estimand(question)) == question


# -- real records --------------------------------------------------------------------------------------------
HEART = os.environ.get("TRIBUTARY_HEART_DATA", "")


@pytest.mark.skipif(not HEART, reason="TRIBUTARY_HEART_DATA does not name the folder of the UCI heart disease data")
def test_four_hospitals_give_the_published_pooled_values():
    question = parse_estimand("logistic(num > 0) ~ age + sex + exang")
    rows = []
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        table = pd.read_csv(Path(HEART) / f"{site}.csv")
        rows += estimate(table, question, study="heart", site=site, wave=1)
    pooled = {
        term: pool_estimates([row for row in rows if row.term == term], method="DL", test="z")
        for term in ("age", "sex", "exang")
    }
    for term, decimals, numbers in (
        ("age", 4, (0.0430, 0.0110, 0.0396, 0.0156)),
        ("exang", 4, (2.1176, 0.1969, 2.0619, 0.3461)),
    ):
        row = pooled[term]
        assert row.k == 4
        assert tuple(round(x, decimals) for x in (row.fixed.beta, row.fixed.se, row.beta, row.se)) == numbers
    assert round(pooled["exang"].I2) == 60
    assert [(e.label, "separates" in e.reason) for e in pooled["sex"].excluded] == [("switzerland", True)]


def test_a_column_whose_squares_are_beyond_what_a_number_holds_costs_its_own_term_alone():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"x": draw.normal(size=200) * 1e200, **{name: draw.normal(size=200) for name in "zwuy"}})
    with np.errstate(all="ignore"):
        rows = by_term(ask(table, "ols(y) ~ x + z + w + u"))
    assert rows["x"].reason == "the column is constant at this site"
    assert [rows[name].yi for name in "zwu"] == pytest.approx(
        [row.yi for row in ask(table, "ols(y) ~ z + w + u")], abs=1e-9
    )
