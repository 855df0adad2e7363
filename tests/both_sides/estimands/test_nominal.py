"""Multinomial and quantile regression: R's numbers, influences, reasons, the release's variance, and the doors."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.models import HERE, LEVELS, agrees, made, reference

from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import joint_of_terms
from coordinator.pooling.pool import Pooling, pool_estimates
from shared.errors import ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand
from shared.estimands.effects import effect_name, in_words
from shared.estimands.fits.quantiles import quantile_regression
from shared.plans.dictionary import Column, Dictionary

NOMINAL = parse_estimand("multinomial(smoking) ~ age/10 + arm")
MEDIAN = parse_estimand("quantile(cost, tau = 0.5) ~ age + arm")
ANSWERS = json.loads((HERE / "nominal.json").read_text(encoding="utf-8"))


def by_term(table, question, **more):
    return {row.term: row for row in estimate(table, question, levels=LEVELS, **more)}


# -- numbers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("case", "options"), [("plain", {}), ("weighted", {"weights": "w"})])
def test_multinomial_coefficients_and_errors_are_those_of_r(case, options):
    table, _ = reference()
    ours = estimate(table, "multinomial", "smoking ~ age + arm + cost", levels=LEVELS, **options)
    agrees(ours, ANSWERS["multinomial"][case], "model")


@pytest.mark.parametrize("share", ["0.25", "0.55", "0.9"])
def test_quantile_coefficients_and_errors_are_those_of_r(share):
    table, _ = reference()
    ours = estimate(table, "quantile", "cost ~ age + arm + smoking", tau=float(share), levels=LEVELS)
    agrees(ours, ANSWERS["quantile"][share], "model")


def test_of_two_levels_a_multinomial_model_is_logistic():
    table = made(300, 3)
    ours = by_term(table.assign(died=np.where(table.died == 1, "yes", "no")), parse_estimand("multinomial(died) ~ age"))
    (plain,) = estimate(table, parse_estimand("logistic(died) ~ age"))
    row = ours["age | yes"]
    assert (row.yi, row.vi) == (pytest.approx(plain.yi, rel=1e-8), pytest.approx(plain.vi, rel=1e-8))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_of_many_rows_the_line_is_that_of_the_whole_programme(share, monkeypatch):
    from shared.estimands.fits import quantiles

    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(9000), rng.normal(size=(9000, 2))])
    y = x @ [1.0, 2.0, -1.0] + (1 + np.abs(x[:, 1])) * rng.standard_t(3, 9000)
    y = y[np.argsort(x[:, 1])]  # the rows of a first look are not like the others
    quick = quantile_regression(x[np.argsort(x[:, 1])], y, share)
    monkeypatch.setattr(quantiles, "_WHOLE", 10**6)
    whole = quantile_regression(x[np.argsort(x[:, 1])], y, share)
    np.testing.assert_allclose(quick.beta, whole.beta, rtol=1e-9)
    np.testing.assert_allclose(quick.influence, whole.influence, atol=1e-12)


def test_a_programme_of_many_rows_takes_in_a_few_thousand_though_levels_are_rare(monkeypatch):
    from shared.estimands.fits import quantiles

    n, sizes, solve = 60_000, [], quantiles._programme
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(n), rng.random((n, 10)) < 3 / math.sqrt(n)]).astype(float)
    y = x @ rng.normal(size=11) + rng.normal(size=n)
    monkeypatch.setattr(quantiles, "_programme", lambda x, *more: sizes.append(len(x)) or solve(x, *more))
    fit = quantile_regression(x, y, 0.5)
    assert fit.converged
    assert max(sizes) < 4000
    # The subgradient of the loss holds 0: scores of rows off the line, and up to a half for each that is on it.
    residual = y - x @ fit.beta
    on = np.abs(residual) < 1e-9
    assert (np.abs(np.sign(residual[~on]) @ x[~on]) <= x[on].sum(axis=0) + 1e-6).all()


# -- influence ---------------------------------------------------------------------------------------------------
def test_the_influence_of_a_row_on_a_multinomial_model_is_what_leaving_it_out_changes():
    table = made(400, 3)
    whole, pushes = by_term(table, NOMINAL), influence(table, NOMINAL, levels=LEVELS)
    for label in ("age/10 | former", "arm | current"):
        assert pushes[label].sum() == pytest.approx(0, abs=1e-7)
        for i in (int(np.argmax(pushes[label])), int(np.argmin(pushes[label])), 7):
            left = by_term(table.drop(index=i), NOMINAL)[label]
            assert whole[label].yi - left.yi == pytest.approx(pushes[label][i], rel=0.1, abs=1e-4)


def test_influences_on_a_quantile_have_its_variance_and_sum_to_none():
    table = made(2000, 5)
    rows, pushes = by_term(table, MEDIAN), influence(table, MEDIAN, levels=LEVELS)
    for label, row in rows.items():
        assert pushes[label].sum() == pytest.approx(0, abs=1e-9)
        assert row.vi_sandwich == pytest.approx(row.vi, rel=0.1)


# -- reasons -----------------------------------------------------------------------------------------------------
def test_a_level_that_a_site_lacks_or_hardly_has_costs_the_others_nothing():
    table = made(400, 3)
    whole = by_term(table, NOMINAL)
    without = by_term(table[table.smoking != "current"].reset_index(drop=True), NOMINAL)
    assert without["arm | current"].reason == "the level has no rows at this site"
    assert without["arm | former"].yi == pytest.approx(whole["arm | former"].yi, abs=0.1)
    few = pd.concat([table[table.smoking != "current"], table[table.smoking == "current"][:3]], ignore_index=True)
    assert by_term(few, NOMINAL)["arm | current"].reason == "3 rows of the level for 3 coefficients: too few"
    assert by_term(few, NOMINAL)["arm | former"].yi == pytest.approx(without["arm | former"].yi, rel=1e-9)
    bare = by_term(table[table.smoking != "never"].reset_index(drop=True), NOMINAL)
    assert all("of the level that all are compared with" in row.reason for row in bare.values())


def test_what_separates_an_outcome_of_levels_leaves_no_number_and_what_is_collinear_its_reason():
    table = made(400, 3).assign(one=1.0)
    apart = table.assign(arm=(table.smoking == "former").astype(int))
    assert all("separate the outcome" in row.reason for row in by_term(apart, NOMINAL).values())
    rows = by_term(table.assign(also=2 * table.age), parse_estimand("multinomial(smoking) ~ age + also + one + arm"))
    assert rows["age | former"].reason == rows["age | current"].reason == "collinear with also at this site"
    assert rows["one | former"].reason == "the column is constant at this site"
    assert rows["arm | former"].reason == ""
    few = by_term(table, NOMINAL, min_residual_df=500)
    assert all("400 complete rows for 6 parameters" in row.reason for row in few.values())


def test_a_quantile_beyond_the_rows_or_in_a_heap_has_a_reason():
    table = made(300, 3).assign(heap=lambda t: np.where(t.cost > t.cost.quantile(0.9), t.cost, 7.0))
    assert (
        "rows beyond the quantile" in by_term(table, parse_estimand("quantile(cost, tau = 0.99) ~ age"))["age"].reason
    )
    heap = by_term(table, parse_estimand("quantile(heap, tau = 0.5) ~ age"))["age"]
    assert "half of the rows or more lie on the quantile" in heap.reason


@pytest.mark.parametrize(
    "wrong",
    [
        "quantile(cost) ~ age",
        "quantile(cost, tau = 1) ~ age",
        "quantile(cost > 3, tau = 0.5) ~ age",
        "multinomial(smoking) ~ age + offset(log(years))",
        "multinomial(smoking, robust = HC0) ~ age",
    ],
)
def test_what_is_no_such_question_is_refused(wrong):
    with pytest.raises(ParameterError):
        parse_estimand(wrong)


# -- releases, pooled ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("question", [NOMINAL, MEDIAN])
def test_the_variance_of_a_release_is_in_every_coefficient(question):
    table = made(600, 8)
    rows = estimate(table, question, levels=LEVELS)
    drawn = with_release_variance(rows, table, question, [Draw(rows=600, w=0.0, fitted_on=600)], levels=LEVELS)
    for row in drawn:
        assert row.vi == pytest.approx(2 * row.vi_naive, rel=0.1)
    kept = with_release_variance(rows, table, question, [Draw(rows=600, w=0.8, fitted_on=600)], levels=LEVELS)
    assert all(1 < row.vi / row.vi_naive < 2.1 for row in kept)


def test_coefficients_of_all_levels_are_pooled_one_by_one_and_together():
    rows = [row for k in range(4) for row in estimate(made(500, k), NOMINAL, site=f"s{k}", levels=LEVELS)]
    pooled = pool_estimates([row for row in rows if row.term == "arm | former"], method="FE", test="z")
    sites = [row for row in rows if row.term == "arm | former"]
    weights = np.array([1 / row.vi for row in sites])
    assert pooled.beta == pytest.approx(float(weights @ [row.yi for row in sites] / weights.sum()))
    found = joint_of_terms(rows, NOMINAL, Pooling(method="FE", test="z"))
    assert [one["terms"] for one in found] == [
        ["age/10 | former", "age/10 | current"],
        ["arm | former", "arm | current"],
    ]
    first = {row.term: row for row in rows if row.site == "s0"}
    cov = first["arm | former"].correlations["arm | current"]
    pushes = influence(made(500, 0), NOMINAL, levels=LEVELS)
    both = np.corrcoef(pushes["arm | former"], pushes["arm | current"])[0, 1]
    assert cov == pytest.approx(both, abs=0.05)
    assert all(one["reason"] == "" for one in found)


def test_words_say_which_level_against_which_and_which_quantile():
    known = Dictionary(
        name="d",
        version=1,
        columns=(
            Column(name="smoking", kind="nominal", label="smoking", levels=LEVELS["smoking"]),
            Column(name="age", kind="continuous", label="age", unit="years", lower=0, upper=100),
            Column(name="cost", kind="continuous", label="cost", unit="EUR", lower=0, upper=1e6),
        ),
    )
    words = "Relative odds ratio for smoking former against never, per 10 years of age"
    assert in_words(NOMINAL, "age/10 | former", known) == words
    assert in_words(MEDIAN, "age", known) == "Difference in median of cost (EUR), per year of age"
    assert effect_name(parse_estimand("quantile(cost, tau = 0.9) ~ age")) == "Difference in 0.9 quantile"
    assert effect_name(NOMINAL, "intercept | former") == "Relative odds"
    assert math.isfinite(estimate(made(300, 1), parse_estimand("multinomial(smoking) ~ 1"), levels=LEVELS)[0].yi)
