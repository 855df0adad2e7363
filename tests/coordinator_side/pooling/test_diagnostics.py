"""Diagnostics, moderators and subgroups: laws, edges, and the reasons given where there is no number."""

from __future__ import annotations

import io
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from coordinator.pooling.diagnostics import begg, egger, influence, shrunken, trim_and_fill
from coordinator.pooling.document import pooled_data
from coordinator.pooling.further.analyses import AnalysisRequest, analyse, show
from coordinator.pooling.further.refits import leave_one_out
from coordinator.pooling.moderators import regress
from coordinator.pooling.pool import pool, pool_estimates
from coordinator.pooling.subgroups import regressed, subgroups
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate
from shared.terminal import plain

EFFECT = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 0.3]))
# Precisions that differ by a factor of up to 1e12, and equal ones.
VARIANCE = st.one_of(st.floats(-9, 3).map(lambda power: 10.0**power), st.just(0.1))
ROWS = st.lists(st.tuples(EFFECT, VARIANCE), min_size=1, max_size=12)
METHODS = ("FE", "DL", "HE", "HS", "HSk", "SJ", "ML", "REML", "EB", "PM", "PMM")


def numbers(tree):
    if isinstance(tree, dict):
        for value in tree.values():
            yield from numbers(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from numbers(value)
    elif isinstance(tree, float):
        yield tree
    elif hasattr(tree, "__dataclass_fields__"):
        for item in fields(tree):
            yield from numbers(getattr(tree, item.name))


@given(ROWS, st.sampled_from(METHODS), st.sampled_from(["z", "t", "knha", "adhoc"]))
@settings(max_examples=25, deadline=None)
def test_whatever_the_rows_every_further_answer_is_finite_or_has_a_reason(rows, method, test):
    result = pool(*zip(*rows, strict=True), method=method, test=test)
    group = {label: "ab"[i % 2] for i, label in enumerate(result.labels)}
    year = {label: 1990 + i * i for i, label in enumerate(result.labels)}
    asked = AnalysisRequest(mods={"year": year}, group=("group", group), diagnostics=True)
    answers = analyse(result, asked)
    assert all(math.isfinite(number) for number in numbers(answers))
    assert all(math.isfinite(number) for number in numbers(pooled_data(result)))
    regression = answers["regression"]
    if "reason" not in regression:
        assert all(lb < ub for lb, ub in zip(regression["ci_lb"], regression["ci_ub"], strict=True))
    for name in ("influence", "egger", "begg"):
        assert answers[name].reason or getattr(answers[name], "stat", 0.0) is not None
    plain(answers)


@given(ROWS, st.sampled_from(METHODS))
@settings(max_examples=40, deadline=None)
def test_intervals_of_heterogeneity_hold_in_order_and_their_reasons_when_empty(rows, method):
    result = pool(*zip(*rows, strict=True), method=method)
    found = (result.tau2_interval, result.I2_interval, result.H2_interval, result.tau_interval)
    for interval in (*found, result.tau2_likelihood_interval, *map(result.prediction, ("default", "riley", "simple"))):
        if interval.empty:
            assert interval.reason
        else:
            assert interval.lb <= interval.ub
            assert math.isfinite(interval.ub)
    likely = result.tau2_likelihood_interval
    if not likely.empty:
        assert likely.lb <= result.tau2 * (1 + 1e-9)
        assert result.tau2 <= likely.ub


def test_influence_is_what_leaving_out_does():
    result = pool([0.1, 0.2, 0.15, 0.9, 0.4], [0.01, 0.02, 0.03, 0.02, 0.05], test="z")
    found = influence(result)
    for i, (_, without) in enumerate(leave_one_out(result)):
        assert found.tau2_del[i] == pytest.approx(without.tau2)
        assert found.QE_del[i] == pytest.approx(without.QE)
        assert found.cook_d[i] == pytest.approx((result.beta - without.beta) ** 2 / result.se**2)
        assert found.cov_r[i] == pytest.approx(without.se**2 / result.se**2)
    assert sum(found.hat) == pytest.approx(1)


def test_two_sites_have_no_influence_but_a_reason():
    assert "three rows" in influence(pool([0.1, 0.2], [0.1, 0.1])).reason


@pytest.mark.parametrize("what", [egger, begg, trim_and_fill])
def test_asymmetry_is_off_below_ten_studies_and_says_so(what):
    nine = pool(np.linspace(0, 1, 9), np.linspace(0.01, 0.3, 9))
    assert "off below 10 studies" in what(nine).reason
    ten = pool(np.linspace(0, 1, 10) ** 2, np.linspace(0.01, 0.3, 10))
    assert what(ten).reason == ""
    equal = pool(np.linspace(0, 1, 10), [0.1] * 10)
    assert "equally precise" in what(equal).reason


def test_trim_and_fill_undoes_a_trimmed_corner():
    vi = np.tile(np.linspace(0.01, 0.3, 12), 5)
    yi = 0.2 + np.sqrt(vi) * np.repeat([-1.6, -0.8, 0.0, 0.7, 1.5], 12)
    kept = (yi > -0.3) | (vi < 0.1)
    seen = pool(yi[kept], vi[kept], method="FE", test="z")
    found = trim_and_fill(seen)
    assert found.side == "left"
    assert found.k0 >= 3
    assert found.result.k == seen.k + found.k0
    assert found.result.beta < seen.beta
    with pytest.raises(ParameterError, match="L0, R0, Q0"):
        trim_and_fill(seen, estimator="L1")


def test_shrunken_effects_lie_between_the_estimate_and_the_pooled_one():
    result = pool([0.1, 0.2, 0.9], [0.01, 0.05, 0.03])
    for y, pred in zip(result.yi, shrunken(result).pred, strict=True):
        assert min(y, result.beta) <= pred <= max(y, result.beta)


def test_a_regression_on_nothing_but_indicator_columns_is_the_subgroup_model():
    yi, vi, group = [0.1, 0.3, 0.8, 0.9, 0.2], [0.02, 0.03, 0.02, 0.04, 0.05], ["a", "a", "b", "b", "a"]
    whole = pool(yi, vi, test="z")
    found = subgroups(whole, group)
    assert found.common.terms == ("intercept", "group=b")
    assert {level: row.k for level, row in found.groups.items()} == {"a": 3, "b": 2}
    fixed = subgroups(pool(yi, vi, method="FE", test="z"), group)
    assert pytest.approx(fixed.Q_between) == fixed.common.QM
    # Heterogeneity parts: within the groups and between them.
    assert pytest.approx(sum(row.QE for row in fixed.groups.values()) + fixed.Q_between) == whole.QE


def test_a_moderator_that_says_nothing_is_dropped_by_name_and_a_missing_one_excludes_its_row():
    yi, vi = [0.1, 0.3, 0.8, 0.9, 0.5], [0.02, 0.03, 0.02, 0.04, 0.03]
    found = regress(yi, vi, {"year": [1990, 2000, 2010, 1995, 1999], "country": ["x"] * 5, "age": [1, 2, None, 4, 3]})
    assert [row.label for row in found.dropped] == ["country"]
    assert [(row.label, row.reason) for row in found.excluded] == [("study 3", "a moderator is missing")]
    with pytest.raises(ParameterError, match="every row"):
        regress(yi, vi, {"year": [1, 2]})
    with pytest.raises(EstimateRefusal, match="all moderators"):
        regress(yi, vi, {"year": [None] * 5})


def test_rescaling_a_moderator_rescales_its_coefficient_alone():
    rng = np.random.default_rng(5)
    yi, vi, x = rng.normal(0, 1, 9), rng.uniform(0.01, 0.3, 9), rng.normal(0, 1, 9)
    base, other = regress(yi, vi, x), regress(yi, vi, 1e6 + 1e-3 * x)
    assert other.beta[1] == pytest.approx(1e3 * base.beta[1], rel=1e-6)
    assert (other.tau2, other.QM) == pytest.approx((base.tau2, base.QM), rel=1e-6)


def test_predictions_of_a_regression_widen_away_from_the_sites():
    fit = regress([0.1, 0.3, 0.5, 0.9, 1.0], [0.02] * 5, {"decade": [0, 1, 2, 3, 4]})
    middle, far = fit.predict(decade=2), fit.predict(decade=12)
    assert far[1].ub - far[1].lb > middle[1].ub - middle[1].lb
    assert middle[2].ub - middle[2].lb >= middle[1].ub - middle[1].lb
    with pytest.raises(ParameterError, match="decade"):
        fit.predict(year=3)


def test_the_test_of_one_common_tau2_is_told_before_that_of_each_groups_own():
    """Of two groups alike of two sites each, the second called 14 % different at 5 %, the first 1 % (400 draws)."""
    rng = np.random.default_rng(2)
    result = pool(rng.normal(0.2, 0.2, 6), [0.01] * 6)
    answers = analyse(result, AnalysisRequest(group=("ward", dict(zip(result.labels, "ababab", strict=True)))))
    out = Console(file=io.StringIO(), width=200)
    show(out, result, answers)
    line = next(one for one in out.file.getvalue().splitlines() if one.startswith("between groups"))
    found, common = answers["subgroups"], answers["subgroups"]["common"]
    assert line.split("   ") == [
        f"between groups, one common τ²: F {common['QM']:.2f} on 1, 4 df, p {common['QMp']:.3f}",
        f"each with its own τ² (χ²): Q {found['Q_between']:.2f} on 1 df, p {found['p_between']:.3f}",
    ]


def off_alike(common):
    names = {"study": "s", "wave": 1, "term": "x", "n": 50, "vi_privacy": 0.0}
    return pool_estimates(
        [Estimate(site=f"s{i}", yi=0.1 * (i % 3), vi_sampling=0.02, vi_common=c, **names) for i, c in enumerate(common)]
    )


def test_a_meta_regression_holds_what_all_sites_may_be_off_by_alike_in_its_intercept_and_predictions():
    alike, without = off_alike([0.09] * 6), off_alike([0.0] * 6)
    year = {label: float(i) for i, label in enumerate(alike.labels)}
    found, bare = (analyse(one, AnalysisRequest(mods={"year": year}))["regression"] for one in (alike, without))
    assert found["se"][0] ** 2 - bare["se"][0] ** 2 == pytest.approx(0.09)
    assert (found["se"][1], found["QMp"]) == pytest.approx((bare["se"][1], bare["QMp"]))
    fit, plain_fit = (regressed(one, {"year": list(year.values())}) for one in (alike, without))
    for place in (1, 2):
        ends, narrow = fit.predict(year=9)[place], plain_fit.predict(year=9)[place]
        more = (ends.ub - ends.lb) ** 2 - (narrow.ub - narrow.lb) ** 2
        assert more == pytest.approx((2 * fit._critical) ** 2 * 0.09)
    mapped = regressed(replace(alike, shared=alike.shared + 0.01), {"year": list(year.values())})
    assert mapped.se[0] ** 2 - fit.se[0] ** 2 == pytest.approx(0.01)
    of_a, bare_a = (subgroups(one, list("ababab")).common.vcov[0, 0] for one in (alike, without))
    assert of_a - bare_a == pytest.approx(0.09)


def test_sites_that_may_be_off_by_more_or_less_move_the_slope_too():
    uneven = off_alike([0.0, 0.0, 0.0, 0.09, 0.09, 0.09])
    late = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    found, bare = (regressed(one, {"late": late}) for one in (uneven, off_alike([0.0] * 6)))
    assert np.diagonal(found.vcov - bare.vcov).tolist() == pytest.approx([0.0, 0.09], abs=1e-12)


@pytest.mark.parametrize("model", ["lm", "rma"])
def test_the_limit_of_eggers_test_holds_what_all_sites_may_be_off_by_alike(model):
    """Its interval was as if every site were off by its own: an infinitely precise study is off by the same."""

    def asymmetry(common, beside=0.0):
        rng = np.random.default_rng(4)
        names = {"study": "s", "wave": 1, "term": "x", "n": 50}
        rows = [
            Estimate(site=f"s{i}", yi=rng.normal(0.1, 0.2), vi_sampling=0.01 * (i + 1), vi_common=common, **names)
            for i in range(12)
        ]
        result = pool_estimates(rows)
        return egger(replace(result, shared=result.shared + beside), model=model)

    found, bare, mapped = asymmetry(0.09), asymmetry(0.0), asymmetry(0.09, beside=0.01)
    assert found.coef_se[0] ** 2 - bare.coef_se[0] ** 2 == pytest.approx(0.09)
    assert mapped.coef_se[0] ** 2 - found.coef_se[0] ** 2 == pytest.approx(0.01)
    width, narrow = (one.limit_ub - one.limit_lb for one in (found, bare))
    assert width / narrow == pytest.approx(found.coef_se[0] / bare.coef_se[0])
    assert (found.limit, found.coef_se[1], found.pval) == pytest.approx((bare.limit, bare.coef_se[1], bare.pval))


def test_the_share_of_the_pooled_variance_that_is_noise_lies_between_that_of_the_sites():
    def row(site, yi, noise):
        names = {"study": "s", "wave": 1, "term": "x", "n": 50}
        return Estimate(site=site, yi=yi, vi_sampling=0.02, vi_privacy=noise, **names)

    fixed = pool_estimates([row("A", 0.1, 0.02), row("B", 0.2, 0.02)], method="FE", test="z")
    assert fixed.pooled_noise_share == pytest.approx(50)
    mixed = pool_estimates([row("A", 0.1, 0.06), row("B", 0.2, 0.0)], method="FE", test="z")
    assert 0 < mixed.pooled_noise_share < 75
    random = pool_estimates([row("A", 0.1, 0.02), row("B", 0.9, 0.02)])
    assert random.pooled_noise_share < 50
    assert pool([0.1, 0.2], [0.1, 0.1]).pooled_noise_share == 0
