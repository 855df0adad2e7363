"""From a table to estimates: the language, the numbers, and the reason when there is no number."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.pooling import pool_estimates
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands import Estimand, Estimate, estimate, parse_estimand


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


def test_origin_receipts_and_privacy_noise_are_carried():
    (row,) = ask(cohort(), "mean(sbp)", receipts=["r1"], vi_privacy={"mean(sbp)": 2.0})
    assert (row.study, row.site, row.wave, row.receipts, row.n) == ("s", "A", 1, ("r1",), 400)
    assert row.vi == pytest.approx(row.vi_sampling + 2.0)


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
    theirs = PHReg(table.years, table[["sbp", "age"]], status=table.cvd, ties="breslow").fit()
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
        ("proportion(flat)", "0 or 1"),
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
