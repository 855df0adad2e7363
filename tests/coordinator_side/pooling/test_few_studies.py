"""Few sites: the exact interval, Henmi and Copas, the posterior, and pooled likelihoods, each against an oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coordinator.pooling.further.few_studies import bayes, exact_interval, henmi_copas
from coordinator.pooling.further.many import pool_many
from coordinator.pooling.further.two_by_two import TwoByTwoTables, mantel_haenszel, peto
from coordinator.pooling.pool import pool
from coordinator.pooling.rows import ordinary, reason_out, unlike
from shared.errors import ParameterError

ROWS = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-27, 27).map(lambda power: 10.0 ** (power / 9))), min_size=1, max_size=6
)


# -- Bayes -----------------------------------------------------------------------------------------------------
def brute_force(y, v, scale, prior_sd):
    """Posterior mean and sd of mu, and mean of tau, by the trapezoidal rule on a dense grid of (mu, tau)."""
    mu, tau = np.linspace(-8, 9, 3401), np.linspace(0, 8 * scale, 1601)[:, None]
    log = -0.5 * (tau / scale) ** 2 - (0 if prior_sd is None else 0.5 * (mu / prior_sd) ** 2)
    for yi, vi in zip(y, v, strict=True):
        log = log - 0.5 * np.log(vi + tau**2) - 0.5 * (yi - mu) ** 2 / (vi + tau**2)
    mass = np.exp(log - log.max())
    mass[[0, -1]] /= 2
    mass /= mass.sum()
    mean = float((mass * mu).sum())
    return mean, math.sqrt(float((mass * (mu - mean) ** 2).sum())), float((mass * tau).sum())


def test_the_posterior_agrees_with_brute_force_integration():
    y, v = [0.1, 0.3, 0.9], [0.02, 0.03, 0.04]
    for scale, prior_sd in ((0.5, None), (0.3, 2.0)):
        ours = bayes(pool(y, v), scale=scale, prior_sd=prior_sd)
        mean, sd, tau = brute_force(y, v, scale, prior_sd)
        assert (ours.mu.mean, ours.mu.sd, ours.tau.mean) == pytest.approx((mean, sd, tau), rel=1e-4)


def test_with_one_site_and_a_normal_prior_the_posterior_is_the_textbook_one_given_tau():
    ours = bayes(pool([0.4], [0.09]), scale=1e-6, prior_mean=0.0, prior_sd=1.0)
    assert ours.mu.mean == pytest.approx(0.4 / 1.09, rel=1e-6)
    assert ours.mu.sd == pytest.approx(math.sqrt(0.09 / 1.09), rel=1e-6)
    assert ours.positive == pytest.approx(stats.norm.cdf(ours.mu.mean / ours.mu.sd), rel=1e-6)


def test_a_tight_prior_gives_the_fixed_effect_and_full_shrinkage():
    result = pool([0.1, 0.5, 0.9], [0.02, 0.05, 0.03])
    ours = bayes(result, scale=1e-7)
    assert (ours.mu.mean, ours.mu.sd) == pytest.approx((result.fixed.beta, result.fixed.se), rel=1e-6)
    assert max(ours.shrinkage) < 1e-9
    assert ours.effects[0].mean == pytest.approx(ours.mu.mean, rel=1e-6)


@given(ROWS, st.sampled_from([1e-3, 0.5, 100.0]))
@settings(max_examples=60, deadline=None)
def test_no_posterior_is_without_width_or_out_of_order(rows, scale):
    ours = bayes(pool(*zip(*rows, strict=True)), scale=scale)
    for summary in (ours.mu, ours.tau, ours.prediction, *ours.effects):
        assert all(math.isfinite(value) for value in vars(summary).values())
        assert summary.lb < summary.median < summary.ub
        assert summary.sd > 0
    assert all(0 <= share <= 1 for share in ours.shrinkage)
    assert ours.prediction.sd >= ours.mu.sd


def test_wrong_priors_are_refused():
    for change in ({"scale": 0.0}, {"scale": math.inf}, {"prior_sd": -1.0}, {"prior_mean": math.nan}):
        with pytest.raises(ParameterError):
            bayes(pool([0.1, 0.2], [0.1, 0.1]), **change)


# -- the exact interval ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tau2", [0.0, 0.3])
def test_the_exact_interval_covers_in_repeated_sampling(tau2):
    """60 federations of three; at 95 % coverage fewer than 46 hits have a probability below 1e-6."""
    rng, v = np.random.default_rng(7), np.array([0.01, 0.1, 0.12])
    hits = 0
    for _ in range(60):
        y = 0.3 + rng.normal(0, np.sqrt(v + tau2))
        interval = exact_interval(pool(y, v), rng, draws=1000).interval
        hits += interval.lb <= 0.3 <= interval.ub
    assert hits >= 46


def test_the_exact_interval_moves_and_scales_with_the_estimates():
    y, v = np.array([0.1, 0.5, 0.9, 0.2]), np.array([0.02, 0.03, 0.2, 0.04])
    base = exact_interval(pool(y, v), np.random.default_rng(3)).interval
    other = exact_interval(pool(7 + 2 * y, 4 * v), np.random.default_rng(3)).interval
    assert (other.lb, other.ub) == pytest.approx((7 + 2 * base.lb, 7 + 2 * base.ub), rel=1e-9)


def test_the_exact_interval_of_equal_variances_approaches_students_when_sites_differ_strongly():
    # With tau2 far above v the statistic is Student's t with 3 df, whose 95.1 % quantile is 3.21.
    found = exact_interval(pool([0.0, 10.0, 20.0, 31.0], [0.01] * 4), np.random.default_rng(1), draws=20_000)
    assert found.critical == pytest.approx(stats.t.ppf(0.9755, 3), rel=0.05)


def test_one_site_has_no_exact_interval_and_says_why():
    one = pool([0.1], [0.1])
    assert "two sites" in exact_interval(one, np.random.default_rng(1)).interval.reason
    assert "two sites" in henmi_copas(one).interval.reason
    with pytest.raises(ParameterError, match="draws"):
        exact_interval(one, np.random.default_rng(1), draws=10)


@given(ROWS)
@settings(max_examples=25, deadline=None)
def test_intervals_for_few_studies_have_width_or_a_reason(rows):
    result = pool(*zip(*rows, strict=True))
    for interval in (
        exact_interval(result, np.random.default_rng(1), draws=1000).interval,
        henmi_copas(result).interval,
    ):
        assert interval.reason if interval.empty else interval.lb < interval.ub


# -- many at once ----------------------------------------------------------------------------------------------
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-3, 3), st.floats(1e-3, 10)), min_size=1, max_size=6), min_size=1, max_size=6
    ),
    st.sampled_from(["FE", "DL", "HE", "HS", "HSk", "SJ", "ML", "REML", "EB", "PM", "PMM"]),
    st.sampled_from(["z", "t", "knha", "adhoc"]),
)
@settings(max_examples=60, deadline=None)
def test_many_at_once_are_the_same_as_one_by_one(analyses, method, test):
    widest = max(map(len, analyses))
    yi, vi = (np.full((len(analyses), widest), np.nan) for _ in range(2))
    for i, rows in enumerate(analyses):
        yi[i, : len(rows)], vi[i, : len(rows)] = zip(*rows, strict=True)
    many = pool_many(yi, vi, method=method, test=test)
    for i, rows in enumerate(analyses):
        one = pool(*zip(*rows, strict=True), method=method, test=test)
        for name in ("beta", "se", "pval", "ci_lb", "ci_ub", "tau2", "I2", "H2", "QE", "QEp"):
            assert getattr(many, name)[i] == pytest.approx(getattr(one, name), rel=1e-6, abs=1e-9), name


@given(
    st.lists(
        st.tuples(
            st.floats(-1e60, 1e60) | st.just(math.nan), st.floats(0, 1e120, exclude_min=True) | st.just(math.inf)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_rows_that_are_called_ordinary_can_all_be_used(rows):
    y, v = np.array([rows]).transpose(2, 0, 1)
    if ordinary(y, v):
        assert not any(reason_out(*row) for row in rows)
        assert not unlike(y, v, np.ones(y.shape, dtype=bool)).any()


def test_odd_rows_among_many_change_no_other_meta_analysis():
    rng = np.random.default_rng(5)
    vi = rng.uniform(0.01, 0.3, (4000, 12))  # more than are pooled at once
    yi = rng.normal(0, np.sqrt(vi + 0.1))
    plain = pool_many(yi, vi)
    vi[3900, 5] = math.nan
    odd = pool_many(yi, vi)
    assert plain.k.tolist() == [12] * 4000
    assert np.flatnonzero(odd.k != 12).tolist() == [3900]
    assert np.flatnonzero(odd.beta != plain.beta).tolist() == [3900]
    one = pool(np.delete(yi[3900], 5), np.delete(vi[3900], 5))
    assert (odd.beta[3900], odd.se[3900]) == pytest.approx((one.beta, one.se), rel=1e-9)


def test_a_meta_analysis_without_a_usable_row_says_so_among_many():
    many = pool_many([[0.1, 0.2], [np.nan, 0.3]], [[0.1, 0.1], [0.1, 0.0]])
    assert many.reasons == ("", "no row can be used")
    assert many.k.tolist() == [2, 0]


# -- tables and profiles ---------------------------------------------------------------------------------------
def test_a_site_with_an_empty_arm_still_counts():
    counts = TwoByTwoTables(ai=[0, 4], bi=[50, 46], ci=[5, 9], di=[45, 41])
    both, one = mantel_haenszel(counts), mantel_haenszel(TwoByTwoTables(ai=[4], bi=[46], ci=[9], di=[41]))
    assert both.beta < one.beta
    assert both.se < one.se


def test_tables_without_any_event_in_a_group_have_a_reason_and_no_number():
    none = TwoByTwoTables(ai=[0, 0], bi=[50, 40], ci=[5, 3], di=[45, 41])
    result = mantel_haenszel(none)
    assert result.beta is None
    assert result.interval.empty
    assert "infinite" in result.reason
    assert peto(none).beta < 0  # Peto's method has an answer here
    nothing = TwoByTwoTables(ai=[0], bi=[5], ci=[0], di=[5])
    assert peto(nothing).beta is None
    assert mantel_haenszel(nothing, "RD").beta is None
    for measure in ("OR", "RR"):
        assert mantel_haenszel(nothing, measure).beta is None


@given(st.lists(st.tuples(*[st.integers(0, 30)] * 4), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_counts_give_a_finite_answer_or_a_reason(rows):
    counts = TwoByTwoTables(**dict(zip(("ai", "bi", "ci", "di"), zip(*rows, strict=True), strict=True)))
    for result in (*(mantel_haenszel(counts, measure) for measure in ("OR", "RR", "RD")), peto(counts)):
        if result.beta is None:
            assert result.reason
            assert result.interval.empty
        else:
            assert result.ci_lb < result.beta < result.ci_ub
            assert all(math.isfinite(x) for x in (result.se, result.QE, result.QEp, result.I2))
