"""Pooling against metafor, its laws, and the data that break other implementations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.figures.forest_rows import limits
from coordinator.pooling.cautions import in_common
from coordinator.pooling.document import pooled_data
from coordinator.pooling.further.few_studies import bayes, henmi_copas
from coordinator.pooling.further.many import pool_many
from coordinator.pooling.further.refits import cumulative, leave_one_out
from coordinator.pooling.pool import pool, pool_estimates, tau2_dl
from coordinator.pooling.subgroups import subgroups
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate
from shared.mechanisms.base import HIDDEN
from shared.terminal import plain

REFERENCE = json.loads((Path(__file__).parents[2] / "reference" / "metafor_public.json").read_text())
DATASETS = REFERENCE["datasets"]
METHODS = ("DL", "HE", "HS", "SJ", "ML", "REML", "EB", "PM")
TESTS = ("z", "t", "knha", "adhoc")
CLOSED = {"FE", "DL", "HE", "HS", "SJ"}
EDGES = {case["name"]: case for case in REFERENCE["edge_cases"]}


def tolerance(method):
    return {"rel": 1e-10 if method in CLOSED else 1e-7, "abs": 1e-9}


def close(ours, theirs, method):
    # The absolute part is only for what is 0 or rounding noise, never for a small quantity.
    if theirs == 0 or abs(theirs) < 1e-12:
        return ours == pytest.approx(0, abs=1e-9)
    return ours == pytest.approx(theirs, rel=tolerance(method)["rel"], abs=0)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("method", METHODS)
def test_heterogeneity_matches_metafor(name, method):
    data = DATASETS[name]
    theirs = data["RE"][method]
    ours = pool(data["yi"], data["vi"], method=method)
    for quantity in ("tau2", "tau", "I2", "H2", "QE", "QEp", "typical_v"):
        assert close(getattr(ours, quantity), theirs[quantity], method), quantity
    assert ours.df == theirs["QE_df"]
    assert all(close(a, b, method) for a, b in zip(ours.weights, theirs["weights_pct"], strict=True))


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("method", ["FE", *METHODS])
@pytest.mark.parametrize("test", TESTS)
def test_the_pooled_effect_and_its_test_match_metafor(name, method, test):
    data = DATASETS[name]
    theirs = (data["FE"] if method == "FE" else data["RE"][method])["tests"][test]
    ours = pool(data["yi"], data["vi"], method=method, test=test)
    pairs = {"beta": "beta", "se": "se", "zval": "stat", "pval": "pval", "ci_lb": "ci_lb", "ci_ub": "ci_ub"}
    for mine, name_there in pairs.items():
        assert close(getattr(ours, mine), theirs[name_there], method), mine
    if "s2w" in theirs:
        assert close(max(1.0, ours.s2w) if test == "adhoc" else ours.s2w, theirs["s2w"], method)
    if method != "FE":
        predicted = theirs["pred_interval"]["default"]
        assert close(ours.prediction_interval.lb, predicted["lb"], method)
        assert close(ours.prediction_interval.ub, predicted["ub"], method)


@pytest.mark.parametrize("name", DATASETS)
def test_the_fixed_effect_companion_matches_metafor(name):
    data = DATASETS[name]
    ours = pool(data["yi"], data["vi"]).fixed
    for quantity in ("I2", "H2", "QE", "QEp"):
        assert close(getattr(ours, quantity), data["FE"][quantity], "FE"), quantity
    assert all(close(a, b, "FE") for a, b in zip(ours.weights, data["FE"]["weights_pct"], strict=True))
    assert ours.ci_ub == pytest.approx(data["FE"]["tests"]["z"]["ci_ub"], rel=1e-10)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("key", "level"), [("QP_95", 0.95), ("QP_90", 0.90)])
def test_the_q_profile_interval_matches_metafor(name, key, level):
    data = DATASETS[name]
    theirs = data["tau2_ci"][key]
    ours = pool(data["yi"], data["vi"], level=level)
    if theirs.get("empty"):
        assert ours.tau2_interval.empty
        assert "empty" in " ".join(ours.notes)
        return
    for interval, quantity in ((ours.tau2_interval, "tau2"), (ours.I2_interval, "I2"), (ours.H2_interval, "H2")):
        assert interval.lb == pytest.approx(theirs[quantity]["lb"], rel=1e-6, abs=1e-12)
        assert interval.ub == pytest.approx(theirs[quantity]["ub"], rel=1e-6)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("which", ["leave_one_out", "cumulative"])
@pytest.mark.parametrize("model", ["FE_z", "DL_z", "DL_knha", "REML_z", "REML_knha"])
def test_refits_match_metafor(name, which, model):
    data = DATASETS[name]
    theirs = data[which][model]
    method, test = model.split("_")
    whole = pool(data["yi"], data["vi"], method=method, test=test)
    if which == "cumulative":
        rows = cumulative(whole, [i - 1 for i in data["cumulative"]["order"]])
    else:
        rows = leave_one_out(whole)
    names = {"beta": "estimate", "se": "se", "pval": "pval", "ci_lb": "ci_lb", "ci_ub": "ci_ub", "QE": "Q"}
    names |= {"QEp": "Qp", "I2": "I2", "H2": "H2", "tau2": "tau2", "zval": "zval" if test == "z" else "tval"}
    for mine, there in names.items():
        for (_, ours), value in zip(rows, theirs.get(there, []), strict=there in theirs):
            if value is not None:
                assert close(getattr(ours, mine), value, method), (mine, ours.k)


def test_a_large_common_shift_changes_nothing_but_the_effect():
    base = pool([0.1, 0.5, 0.9, 1.3], [0.02, 0.03, 0.04, 0.05])
    shifted = pool([1e6 + y for y in (0.1, 0.5, 0.9, 1.3)], [0.02, 0.03, 0.04, 0.05])
    for quantity in ("QE", "tau2", "se"):
        assert getattr(shifted, quantity) == pytest.approx(getattr(base, quantity), rel=1e-8)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-3, 10)), min_size=2, max_size=8),
    st.sampled_from(METHODS),
    st.sampled_from([1e-6, 1e-3, 1e4]),
)
@settings(max_examples=150, deadline=None)
def test_rescaling_and_reordering_change_nothing_else(rows, method, factor):
    yi, vi = (np.array(column) for column in zip(*rows, strict=True))
    one = pool(yi, vi, method=method)
    other = pool((factor * yi)[::-1], (factor**2 * vi)[::-1], method=method)
    # A flat likelihood near tau2 = 0 magnifies rounding; compare on the scale of the variances.
    assert other.tau2 / factor**2 == pytest.approx(one.tau2, rel=1e-6, abs=1e-7 * vi.min())
    assert other.beta / factor == pytest.approx(one.beta, rel=1e-5, abs=1e-6)
    assert one.ci_lb < one.beta < one.ci_ub
    assert sum(one.weights) == pytest.approx(100)
    if not one.tau2_interval.empty:
        assert 0 <= one.tau2_interval.lb <= one.tau2_interval.ub


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-3, 10)), min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_iterated_estimators_solve_their_equation_or_stand_at_zero(rows):
    yi, vi = (np.array(column) for column in zip(*rows, strict=True))
    result = pool(yi, vi, method="PM")
    w = 1 / (vi + result.tau2)
    q = float(np.sum(w * (yi - np.sum(w * yi) / w.sum()) ** 2))
    assert q == pytest.approx(len(yi) - 1, rel=1e-7) if result.tau2 > 0 else q <= len(yi) - 1


def restricted_log_likelihood(yi, vi, tau2):
    """(G,) values on a grid of tau2, written independently of the module."""
    w = 1 / (vi + tau2[:, None])
    mean = (w * yi).sum(1) / w.sum(1)
    return 0.5 * (np.log(w).sum(1) - np.log(w.sum(1)) - (w * (yi - mean[:, None]) ** 2).sum(1))


@pytest.mark.parametrize(
    ("yi", "vi", "low", "high"),
    [
        ([-1.68, 0.43, 0.39], [0.36, 0.0012, 0.012], 0.9, 1.3),  # the other maximum is at 0
        ([0.44, 0.17, 1.2, 0.65, 0.36], [9.1e-05, 4.7, 0.09, 0.11, 0.0012], 0.05, 0.07),  # the other near 0.003
        ([0.27, 0.21, 0.93], [0.0016, 0.0012, 0.081], 0.0005, 0.002),  # the other near 0.06
    ],
)
def test_reml_takes_the_highest_of_several_maxima_and_says_so(yi, vi, low, high):
    yi, vi = np.array(yi), np.array(vi)
    grid = np.concatenate([[0], np.geomspace(1e-8, 100, 20000)])
    value = restricted_log_likelihood(yi, vi, grid)
    inner = (value[1:-1] > value[:-2]) & (value[1:-1] >= value[2:])
    assert inner.sum() + (value[0] > value[1]) == 2
    result = pool(yi, vi)
    assert low < result.tau2 < high
    assert result.tau2 == pytest.approx(grid[value.argmax()], rel=2e-3)
    assert any("more than one maximum" in note for note in result.notes)


def test_reml_is_never_below_the_likelihood_on_a_grid():
    rng = np.random.default_rng(20)
    grid = np.concatenate([[0], np.geomspace(1e-9, 50, 2000)])
    for _ in range(300):
        yi, vi = rng.normal(0, 1, 5), np.exp(rng.normal(-3, 3, 5))
        ours = restricted_log_likelihood(yi, vi, np.array([pool(yi, vi).tau2]))[0]
        assert ours >= restricted_log_likelihood(yi, vi, grid).max() - 1e-9


def test_many_meta_analyses_are_fitted_in_one_call():
    rng = np.random.default_rng(3)
    yi, vi = rng.normal(0, 0.5, (200, 12)), rng.uniform(0.01, 0.3, (200, 12))
    batch = tau2_dl(yi, vi)
    assert batch.shape == (200,)
    assert (batch == 0).any()
    for i in (0, 57, 199):
        assert batch[i] == pytest.approx(pool(yi[i], vi[i], method="DL").tau2, rel=1e-12, abs=1e-15)


# -- edge cases ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["FE", *METHODS])
def test_one_site_pooled_is_that_site_and_says_so(method):
    result = pool([0.4], [0.09], method=method, labels=["Aachen"])
    assert result.beta == 0.4
    assert result.se == pytest.approx(0.3)
    assert result.test == "z"
    assert result.ci_lb == pytest.approx(-0.18798919536201614)
    assert (result.tau2, result.QE, result.QEp, result.H2) == (0, 0, 1, 1)
    assert result.prediction_interval.empty
    assert result.tau2_interval.empty
    assert any("Aachen" in note and "nothing was pooled" in note for note in result.notes)
    assert leave_one_out(result) == ()


def test_two_sites_come_with_a_warning_and_without_a_prediction_interval():
    result = pool([0.1, 0.9], [0.02, 0.03])
    assert result.prediction_interval.empty
    assert "three" in result.prediction_interval.reason
    assert any("side by side" in note for note in result.notes)
    assert result.fixed.beta == pytest.approx(0.42)


def test_two_agreeing_sites_never_show_the_narrow_interval_alone():
    yi, vi = EDGES["k2_homogeneous"]["yi"], EDGES["k2_homogeneous"]["vi"]
    adhoc, narrow = pool(yi, vi), pool(yi, vi, test="knha")
    z = pool(yi, vi, test="z")
    assert narrow.se < z.se
    assert adhoc.se == z.se
    assert any("narrower" in note for note in narrow.notes)
    assert {row.test for row in narrow.sensitivity} == {"z", "knha", "adhoc"}


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("method", ["FE", *METHODS])
def test_identical_estimates_give_no_interval_of_width_zero(method, test):
    result = pool([0.3, 0.3, 0.3], [0.1, 0.2, 0.3], method=method, test=test)
    assert result.ci_ub - result.ci_lb > 0.1
    assert result.test != "knha"
    assert all(row.se > 0 for row in result.sensitivity)
    assert result.tau2_interval.empty
    assert math.isfinite(result.pval)


@pytest.mark.parametrize(
    ("yi", "vi"),
    [([0.0, 1.0], [5e34, 1.0]), ([0.0, 2.6e-145], [1.0, 3e34]), ([1.0, 1.0, 1.0 + 1e-15], [1e-3, 1e-3, 1e-3])],
)
@pytest.mark.parametrize("method", ["FE", *METHODS])
def test_residuals_of_rounding_noise_give_no_width_either(yi, vi, method):
    result = pool(yi, vi, method=method, test="knha")
    assert result.ci_lb < result.beta < result.ci_ub
    if result.k > 1 and result.tau2 == 0:
        assert result.test == "adhoc"


def test_a_fixed_effect_result_speaks_only_of_itself():
    notes = pool([0, 1, 2, 3], [0.01] * 4, method="FE", test="z").notes
    assert not any("τ²" in note or "I²" in note for note in notes)


def test_nearly_identical_estimates_are_identical():
    result = pool([0.1 + 0.2, 0.3, 0.3], [0.1, 0.2, 0.3], test="knha")
    assert result.test == "adhoc"


def test_an_empty_interval_of_tau2_is_empty():
    result = pool([0.3, 0.3001, 0.2999, 0.3], [0.1, 0.2, 0.3, 0.1])
    assert result.tau2_interval.empty
    assert result.I2_interval.empty
    assert result.tau2_interval.lb is None
    assert any("empty" in note for note in result.notes)


@pytest.mark.parametrize(
    ("yi", "vi", "reason"),
    [
        (0.5, 0.0, "variance is zero"),
        (0.5, -0.1, "variance is negative"),
        (0.5, math.nan, "variance is missing"),
        (0.5, math.inf, "variance is missing or infinite"),
        (math.nan, 0.1, "estimate is missing"),
        (None, 0.1, "estimate is missing"),
        (math.inf, 0.1, "no finite estimate at this site"),
        (-math.inf, 0.1, "no finite estimate at this site"),
        (1e60, 0.1, "beyond any effect measure"),
        (0.5, 1e-310, "beyond any effect measure"),
        (1.0, 1e-40, "rounding error"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_reason(yi, vi, reason):
    clean = pool([0.1, 0.2, 0.6], [0.02, 0.03, 0.04])
    result = pool([0.1, yi, 0.2, 0.6], [0.02, vi, 0.03, 0.04], labels=["A", "Bern", "C", "D"])
    assert [row.label for row in result.excluded] == ["Bern"]
    assert reason in result.excluded[0].reason
    assert (result.beta, result.se, result.df) == (clean.beta, clean.se, clean.df)
    assert any("1 of 4 rows" in note for note in result.notes)


def test_no_usable_row_is_a_refusal_that_names_every_row():
    with pytest.raises(EstimateRefusal, match="A: the variance is zero; B: the estimate is missing"):
        pool([0.1, None], [0.0, 1.0], labels=["A", "B"])
    with pytest.raises(EstimateRefusal, match="no rows"):
        pool([], [])


def test_a_dominant_site_is_named():
    result = pool([0.1, 0.5, 0.4], [0.0001, 0.1, 0.1], labels=["Giant", "B", "C"], method="FE")
    assert any(note.startswith("Giant carries 100 %") for note in result.notes)


def test_strong_heterogeneity_is_said():
    assert any("differ strongly" in note for note in pool([0, 1, 2, 3, 4], [0.01] * 5).notes)


def told(value):
    """Every number of a document, and every pair of interval ends in it, by its place."""
    if isinstance(value, dict):
        ends = [name for name in (("ci_lb", "ci_ub"), ("lb", "ub")) if set(name) <= value.keys()]
        yield from ((float(value[lb]), float(value[ub])) for lb, ub in ends if value[lb] is not None)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from told(part)
    elif isinstance(value, float):
        yield value


SIZES = st.tuples(st.integers(-60, 60), st.floats(-9.9, 9.9)).map(lambda parts: parts[1] * 10.0 ** parts[0])
EVEN = st.tuples(SIZES, st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-6, 10)), max_size=5)).map(
    lambda made: [(made[0] * y, made[0] ** 2 * v) for y, v in made[1]]
)


@given(
    st.lists(st.tuples(st.floats() | st.none() | SIZES, st.floats() | SIZES.map(abs)), max_size=6)
    | EVEN
    | st.tuples(SIZES, st.lists(SIZES.map(abs), max_size=4)).map(lambda made: [(made[0], v) for v in made[1]]),
    st.sampled_from(["FE", *METHODS]),
    st.sampled_from(TESTS),
)
@example([(0.0, 1.0), (1.2835664535557851e-157, 1.0)], "FE", "z")  # a Q whose inverse overflows
@settings(max_examples=400, deadline=None)
def test_whatever_comes_in_no_nan_and_no_empty_width_comes_out(rows, method, test):
    yi, vi = [y for y, _ in rows], [v for _, v in rows]
    try:
        result = pool(yi, vi, method=method, test=test)
    except EstimateRefusal:
        return
    document = plain(pooled_data(result))
    for name in ("tau2_interval", "I2_interval", "H2_interval"):  # that of tau2 may be [0, small]
        ends = document.pop(name)
        assert ends["lb"] is None or 0 <= ends["lb"] <= ends["ub"] < math.inf
    for found in told(document):
        assert math.isfinite(found) if isinstance(found, float) else found[0] < found[1]
    assert result.ci_lb < result.beta < result.ci_ub
    assert len(result.excluded) + result.k == len(rows)
    assert all(row.reason for row in result.excluded)
    many = pool_many([[math.nan if y is None else y for y in yi]], [vi], method=method, test=test)
    assert many.k.tolist() == [result.k]


def test_a_site_that_reports_in_another_unit_by_mistake_is_left_out_with_the_reason():
    result = pool([0.1, 0.2, 3e14], [0.01, 0.02, 1e28], labels=["A", "B", "C"])
    assert result.labels == ("A", "B")
    assert "check its unit" in result.excluded[0].reason
    assert result.beta == pool([0.1, 0.2], [0.01, 0.02]).beta
    with pytest.raises(EstimateRefusal, match="check its unit"):
        pool([1e13, 0.0], [1.0, 1e18])


def test_estimates_that_claim_no_variance_have_no_naive_result():
    rows = [
        Estimate(study="s", site=site, wave=1, term="t", yi=0.1, vi_sampling=0.1, vi_naive=0.0, n=9) for site in "AB"
    ]
    assert pool_estimates(rows).naive is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "reml"}, "method must be one of"),
        ({"test": "hksj"}, "test must be one of"),
        ({"level": 95}, r"level must be in \(0, 1\)"),
        ({"level": 1e-9}, r"level must be at least 0.5"),
        ({"labels": ["A"]}, "labels must name every row"),
    ],
)
def test_a_wrong_argument_is_refused(change, message):
    with pytest.raises(ParameterError, match=message):
        pool([0.1, 0.2], [0.1, 0.1], **change)


def test_lengths_must_agree_and_values_must_be_numbers():
    with pytest.raises(ParameterError, match="same length"):
        pool([0.1, 0.2], [0.1])
    with pytest.raises(ParameterError, match="must hold numbers"):
        pool(["a"], [0.1])
    with pytest.raises(ParameterError, match="every row once"):
        cumulative(pool([0.1, 0.2], [0.1, 0.1]), [0, 0])


# -- estimates ---------------------------------------------------------------------------------------------
def row(site, yi=0.1, vi=0.02, **more):
    given = {"study": "s", "site": site, "wave": 1, "term": "age", "yi": yi, "vi_sampling": vi, "n": 100}
    return Estimate(**(given | more))


def test_an_excluded_estimate_keeps_its_own_reason():
    rows = [row("A"), row("B", None, None, reason="separates the outcome"), row("C", 0.4), row("D", 0.3, 0.0)]
    result = pool_estimates(rows)
    assert [(e.label, e.reason) for e in result.excluded] == [
        ("B", "separates the outcome"),
        ("D", "the variance is zero"),
    ]
    assert result.labels == ("A", "C")
    assert sum("2 of 4 rows" in note for note in result.notes) == 1
    assert not any("1 of 3" in note for note in result.notes)


def test_privacy_noise_widens_the_interval_and_is_shown_apart():
    quiet = pool_estimates([row("A"), row("B", 0.3)])
    noisy = pool_estimates([row("A", vi_privacy=0.06), row("B", 0.3, receipts=("r1", "r2"))])
    assert noisy.vi[0] == pytest.approx(0.08)
    assert noisy.noise_share == pytest.approx((75.0, 0.0))
    assert noisy.fixed.se > quiet.fixed.se
    assert noisy.receipts == ("r1", "r2")
    assert quiet.noise_share == (0.0, 0.0)


def test_estimates_of_different_questions_are_not_pooled():
    with pytest.raises(ParameterError, match="share one term"):
        pool_estimates([row("A"), row("B", term="sex")])
    with pytest.raises(ParameterError, match="share one scale"):
        pool_estimates([row("A"), row("B", scale="log")])
    with pytest.raises(ParameterError, match="once per wave, got A"):
        pool_estimates([row("A"), row("A")])


def test_two_waves_of_a_site_are_labelled_and_warned_about():
    result = pool_estimates([row("A"), row("A", 0.3, wave=2), row("B")])
    assert result.labels == ("A, wave 1", "A, wave 2", "B, wave 1")
    assert any("not independent" in note for note in result.notes)


def test_when_every_site_is_excluded_the_refusal_lists_them_all():
    with pytest.raises(EstimateRefusal, match="A: no events; B: the variance is zero"):
        pool_estimates([row("A", None, None, reason="no events"), row("B", 0.3, 0.0)])


@pytest.mark.parametrize("name", ["k2_heterogeneous", "k2_homogeneous", "k3_low_Q", "giant_study", "shift_1e6"])
@pytest.mark.parametrize("model", ["FE_z", "DL_z", "DL_knha", "REML_z", "REML_adhoc", "PM_z", "SJ_z", "HE_knha"])
def test_edge_cases_that_metafor_survives_match_it(name, model):
    case = EDGES[name]
    theirs = case[model]
    method, test = model.split("_")
    ours = pool(case["yi"], case["vi"], method=method, test=test)
    for mine, there in {"beta": "beta", "se": "se", "ci_lb": "ci_lb", "tau2": "tau2", "QE": "QE"}.items():
        # After a shift by 1e6 the inputs themselves carry only ten digits of the differences.
        assert getattr(ours, mine) == pytest.approx(theirs[there], rel=1e-6, abs=1e-9), mine


def test_the_spread_of_estimates_is_split_between_hospitals_releases_and_patients():
    noisy = [
        Estimate(study="s", site=f"s{k}", wave=1, term="x", yi=y, vi_sampling=0.01, vi_privacy=0.03, n=500)
        for k, y in enumerate((0.1, 0.3, 0.2, 0.25, 0.15))
    ]
    alike = pool_estimates(noisy)
    assert alike.tau2 == 0
    assert alike.spread == pytest.approx((0, 75, 25))
    apart = pool_estimates([replace(row, yi=10 * row.yi) for row in noisy])
    hospitals, releases, patients = apart.spread
    assert hospitals == pytest.approx(apart.I2)
    assert releases == pytest.approx(3 * patients)
    assert pooled_data(apart)["spread"]["releases"] == releases


def test_what_every_site_may_be_off_by_alike_is_not_divided_by_the_number_of_sites():
    rows = [
        Estimate(
            study="s", site=f"s{k}", wave=1, term="x", yi=0.2, vi_sampling=0.01, vi_common=0.04, n=500, scale="log"
        )
        for k in range(16)
    ]
    found = pool_estimates(rows)
    assert found.shared == pytest.approx(0.04)
    assert found.se == pytest.approx(math.sqrt(0.01 / 16 + 0.04))
    assert found.tau2 == 0
    (caution,) = [note for note in found.notes if "doubt about the planned model" in note]
    assert "interval of x" in caution
    assert "a factor of up to 1.53" in caution
    few = pool_estimates([replace(row, vi_common=1e-5) for row in rows])
    assert not any("doubt" in note for note in few.notes)
    said = (f"About 90 % of this variance is {HIDDEN}: more persons make it smaller.",)
    hidden = pool_estimates([replace(row, warnings=said) for row in rows])
    assert not any("doubt about the planned model" in note for note in hidden.notes), "it is said already"


def test_what_rows_may_be_off_by_alike_is_weighted_as_each_fit_weighs_them_and_is_in_each_rows_own_interval():
    how = {"study": "s", "wave": 1, "term": "x", "n": 500}
    rows = [
        Estimate(site=f"s{k}", yi=y, vi_sampling=v, vi_common=alike, **how)
        for k, (y, v, alike) in enumerate(((0.0, 0.01, 0.04), (0.9, 0.04, 0.0), (0.2, 0.02, 0.09)))
    ]
    pooled = pool_estimates(rows)
    assert pooled.tau2 > 0
    assert pooled.fixed.shared == pytest.approx(in_common(rows, pooled.fixed.weights))
    assert pooled.shared == pytest.approx(in_common(rows, pooled.weights))
    assert pooled.fixed.shared != pytest.approx(pooled.shared)
    (_, first), *_ = cumulative(pooled)
    assert first.shared == pytest.approx(0.04)
    mapped = replace(pooled, shared=pooled.shared + 0.5)  # as by a map onto one site's scale
    assert mapped.fixed.shared == pytest.approx(pooled.fixed.shared + 0.5)
    assert cumulative(mapped)[0][1].shared == pytest.approx(0.54)
    assert pooled.row_errors == pytest.approx([0.05**0.5, 0.2, 0.11**0.5])
    ends = pooled_data(pooled)["rows"][0]
    assert ends["ci_ub"] - ends["ci_lb"] == pytest.approx(2 * 1.959964 * 0.05**0.5)
    assert limits(pooled)[0] == pytest.approx((ends["ci_lb"], ends["ci_ub"]))


def test_what_all_rows_may_be_off_by_alike_is_in_each_subgroup_and_in_no_difference():
    how = {"study": "s", "wave": 1, "term": "x", "n": 900, "scale": "log", "vi_sampling": 1e-4}
    effects = {"a": 0.1, "b": 0.12, "c": 0.3, "d": 0.32}
    rows = [Estimate(site=site, yi=effect, vi_common=0.01, **how) for site, effect in effects.items()]
    whole = pool_estimates(rows, method="FE", test="z")
    found = subgroups(whole, ["u", "u", "v", "v"])
    assert [group.shared for group in found.groups.values()] == pytest.approx([0.01, 0.01])
    assert min(group.se for group in found.groups.values()) > 0.1
    assert found.Q_between == pytest.approx((0.31 - 0.11) ** 2 / 1e-4)
    for interval in (henmi_copas, bayes):
        with pytest.raises(EstimateRefusal, match="no variance in common"):
            interval(whole)
