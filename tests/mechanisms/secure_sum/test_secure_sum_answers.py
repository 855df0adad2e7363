"""What a secure sum answers: bounded rows whatever a coordinator asks, a pooled estimate near the records' own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from stage.mechanisms.sum_looks import NARROW, SBP, UNIT, cohorts, looks_at, seen

from coordinator.pooling.pool import pool
from coordinator.pooling.secure_sum.summed import Heterogeneity, heterogeneity, summed, weighed
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.outcomes import Survival
from shared.mechanisms.moments.spec import MomentsSpec
from shared.mechanisms.moments.together import places
from shared.mechanisms.secure_sum.influences import Bounds, ModelAt, level_of, look, noisy_level
from shared.plans.dictionary import Column, Dictionary
from shared.simulated import cvd_cohorts

NAMES = tuple("abcdef")
WIDE = Bounds(column=SBP, unit=UNIT, reach=1e6, least=1e6, most=1e6)
NUMBERS = tuple(
    Column(name=name, kind="continuous", unit="units", lower=lower, upper=upper)
    for name, lower, upper in (("age", 16, 100), ("chol", 60, 600), ("hdl", 10, 200), ("sbp", 60, 280))
)


def plan_of(outcome, response, *columns):
    """A pilot's design for one table of these columns."""
    covariates = tuple(column.name for column in columns if column.name != response)
    spec = MomentsSpec(outcome=outcome, responses=(response,), covariates=covariates, epsilon=100.0, delta=1e-6)
    made = Dictionary(name="cvd", version=1, columns=(Column(name="person", kind="person"), *columns))
    return Design(spec=spec, dictionary=made)


def test_a_sum_looks_from_where_the_figures_of_large_sites_answer_from():
    found, _, _, releases = cohorts()
    for place, answering in zip(found, places(releases, alike=True), strict=True):
        assert (place.effects.effects == answering.effects.effects).all()
        assert place.effects.n == answering.effects.n


def test_influences_at_the_records_own_cox_estimate_sum_to_nothing():
    """In standard errors of that estimate: the place is public, noisy at ε = 100, of sixteen intervals."""
    found, data, theirs, _ = cohorts()
    for place, (x, y), (beta, variance) in zip(found, data, theirs, strict=True):
        at = seen(place, beta, WIDE, x, y)
        assert abs(at.rows(x, y)[:, 0].sum() / at.precision) < 0.3 * math.sqrt(variance)
        assert at.precision * variance == pytest.approx(1, abs=0.2)


def test_a_step_from_elsewhere_leads_to_the_records_own_estimate():
    found, data, theirs, _ = cohorts()
    for place, (x, y), (beta, variance) in zip(found, data, theirs, strict=True):
        at = seen(place, beta + 0.03, WIDE, x, y)
        reached = beta + 0.03 + at.rows(x, y)[:, 0].sum() / at.precision
        assert abs(reached - beta) < 0.3 * math.sqrt(variance) + 0.005


def test_no_two_rows_are_further_apart_than_the_bounds_say_and_some_are_that_far():
    at = looks_at(0.15, NARROW)[0].weighing(0.15)
    assert at.cut == NARROW.most
    q = np.linspace(-at.cut, at.cut, 401)
    rows = at.weight * np.column_stack([q, NARROW.bend * q**2])
    assert np.allclose(at.rows(*cohorts()[1][0])[:, 1], NARROW.bend / at.weight * at.rows(*cohorts()[1][0])[:, 0] ** 2)
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    assert apart.max() == pytest.approx(NARROW.sensitivity, rel=1e-9)
    further = at.weight * np.column_stack([q, 1.3 * NARROW.bend * q**2])
    assert np.linalg.norm(further[:, None] - further[None], axis=2).max() > NARROW.sensitivity, "h is at its limit"


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 7.0, -3.0, math.inf])
@pytest.mark.parametrize("cut", [0.0, 1.0, 5.0, 1e9, math.inf])
def test_rows_stay_within_the_plan_s_bounds_whatever_weight_and_cut_and_place_are_sent(weight, cut):
    _, data, _, _ = cohorts()
    at = replace(looks_at(0.15, NARROW)[1], weight=weight, cut=cut)
    for sent in (at, replace(at, along=1e3 * at.along), replace(at, effects=at.effects + 3.0)):
        rows = sent.rows(*data[1])
        assert np.abs(rows[:, 0]).max() <= NARROW.reach * (1 + 1e-12)
        far = np.linalg.norm(rows[rows[:, 0].argmax()] - rows[rows[:, 0].argmin()])
        assert far <= NARROW.sensitivity * (1 + 1e-12)


def test_weights_and_cuts_go_together():
    at = looks_at(0.15, NARROW)[0]
    large, small, between = at.weighing(0.01), at.weighing(1.0), at.weighing(0.3)
    assert large.cut == NARROW.most
    assert small.cut == NARROW.least
    assert small.weight == pytest.approx(NARROW.reach / NARROW.least)
    assert between.weight * between.cut == pytest.approx(NARROW.reach)


def test_what_the_model_expects_of_a_cut_is_what_records_say_of_it():
    """Over all sites, within four standard errors of the records' own mean."""
    _, data, _, _ = cohorts()
    expected, found, variance = 0.0, 0.0, 0.0
    for at, (x, y) in zip(looks_at(0.15, NARROW), data, strict=True):
        cut, wide = replace(at, cut=2.0), replace(at, cut=1e6, bounds=WIDE)
        lost = cut.rows(x, y)[:, 0] - wide.rows(x, y)[:, 0]
        # Rows of `cut` are held at reach / weight: of weight 1 at 1.2.
        expected += replace(at, cut=NARROW.reach).beyond
        found += lost.sum()
        variance += len(x) * lost.var()
    assert abs(found - expected) < 4 * math.sqrt(variance)


def test_the_pooled_step_is_the_random_effects_estimate_of_the_records():
    """Without noise and nearly without cut; τ² of the records in the weights, and then none of their estimates seen."""
    _, data, theirs, _ = cohorts()
    yi, vi = map(np.array, zip(*theirs, strict=True))
    exact = pool(yi, vi, method="REML", test="adhoc")
    looks = looks_at(exact.beta + 0.02, WIDE)
    w = 1 / (vi + exact.tau2)
    looks = [replace(one, weight=float(a), cut=1e6) for one, a in zip(looks, w * vi / (w * vi).max(), strict=True)]
    total = sum(one.rows(x, y).sum(axis=0) for one, (x, y) in zip(looks, data, strict=True))
    known = Heterogeneity(weights=w / w.sum(), tau2=exact.tau2, apart=np.zeros((1, len(w))), more=0 * w)
    answer = summed(looks, total, 1e-9, exact.beta + 0.02, known, sites=NAMES)
    assert answer.estimate == pytest.approx(exact.beta, abs=0.15 * exact.se)
    assert answer.ci_ub - answer.ci_lb == pytest.approx(2 * stats.t.ppf(0.975, 5) * math.sqrt(1 / w.sum()), rel=0.15)


def test_the_noise_and_the_cut_are_in_the_interval():
    _, data, theirs, _ = cohorts()
    pilots = pool(*zip(*theirs, strict=True), method="REML", test="adhoc")
    looks, between = weighed(looks_at(pilots.beta, NARROW), pilots)
    total = sum(one.rows(x, y).sum(axis=0) for one, (x, y) in zip(looks, data, strict=True))
    quiet, loud = (summed(looks, total, sigma, pilots.beta, between, sites=NAMES) for sigma in (1.0, 100.0))
    assert loud.noise == pytest.approx(1e4 * quiet.noise)
    assert loud.variance - quiet.variance == pytest.approx(loud.noise - quiet.noise)
    assert quiet.cut > 0
    assert loud.ci_ub - loud.ci_lb > quiet.ci_ub - quiet.ci_lb
    # Four hundred draws of the noise spread the estimate as the variance says.
    rng = np.random.default_rng(5)
    drawn = [
        summed(looks, total + 100 * rng.standard_normal(2) * [1, 0], 100.0, pilots.beta, between, sites=NAMES).estimate
        for _ in range(400)
    ]
    assert np.var(drawn) / loud.noise == pytest.approx(1, abs=0.25)


def test_weights_are_near_the_records_own_whatever_tau_is_and_tell_how_near():
    """Of 8 sites whose own variances differ by more than a hundred, pilots ten times as noisy, τ of 0 to 4 typical SD.

    Weights averaged over what the pilots say of τ are nearer where sites are alike, and at their worst much farther.
    """
    rng = np.random.default_rng(12)
    own = np.array([0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.1, 0.12]) ** 2
    typical, worst, averaged, told = math.sqrt(1 / (1 / own).mean()), [], [], []
    grid = typical * np.geomspace(0.02, 50, 60)
    at = 1 / (own + grid[:, None] ** 2)
    at /= at.sum(axis=1, keepdims=True)
    for tau in typical * np.array([0.0, 1.5, 4.0]):
        lost = []
        for _ in range(70):
            records = rng.standard_normal(8) * np.sqrt(own + tau**2)
            pilots, w = records + rng.standard_normal(8) * np.sqrt(10 * own), 1 / (11 * own + grid[:, None] ** 2)
            theirs = pool(list(records), list(own), method="REML", test="adhoc").beta
            found = heterogeneity(pilots, own, 10 * own)
            mean = (w @ pilots) / w.sum(axis=1)
            fit = (np.log(w).sum(axis=1) - np.log(w.sum(axis=1)) - (w * (pilots - mean[:, None]) ** 2).sum(axis=1)) / 2
            law = np.exp(fit - fit.max()) * grid / (typical + grid) ** 2
            lost.append([found.weights @ records - theirs, (law @ at / law.sum()) @ records - theirs])
            told.append(found.expected_loss(found.weights))
            assert found.expected_loss(np.full(8, 1 / 8)) > told[-1]
        ours, theirs = np.square(lost).mean(axis=0)
        worst, averaged = [*worst, ours], [*averaged, theirs]
    assert max(worst) < 0.75 * max(averaged)
    assert 0.5 < np.mean(told) / np.mean(worst) < 2


def test_heterogeneity_is_averaged_and_not_set_to_nothing_by_noise():
    rng = np.random.default_rng(11)
    own, more, tau = np.full(12, 0.02**2), np.full(12, 0.04**2), 0.03
    found = []
    for _ in range(300):
        estimates = 0.15 + rng.standard_normal(12) * np.sqrt(own + more + tau**2)
        one = heterogeneity(estimates, own, more)
        assert one.weights.sum() == pytest.approx(1)
        found.append(one.tau2)
    assert np.quantile(found, 0.02) > 0.01**2
    assert 0.5 * tau**2 < np.median(found) < 2 * tau**2


def test_with_no_heterogeneity_seen_large_sites_weigh_more_and_with_much_all_alike():
    own = np.array([0.01, 0.01, 0.04, 0.04, 0.01]) ** 2
    alike = heterogeneity(np.full(5, 0.1), own, np.zeros(5)).weights
    apart = heterogeneity(np.array([-1.0, 1.0, 0.0, 2.0, -2.0]), own, np.zeros(5)).weights
    assert alike[0] / alike[2] > 4
    assert apart[0] / apart[2] == pytest.approx(1, abs=0.05)


def test_a_noisy_level_has_noise_of_the_scale_that_is_charged_and_a_record_moves_it_by_no_more():
    found, data, theirs, _ = cohorts()
    x, y = data[0][0][:300], data[0][1][:300]
    at = look(found[0], theirs[0][0], 0.0, WIDE)
    exact = at.level(x, y).sum(axis=0)
    drawn = np.array([noisy_level(at, x, y, 9.0, noise) for noise in seeded_rng(2).spawn(3000)])
    assert drawn.mean(axis=0) == pytest.approx(exact, abs=0.8)
    for column in drawn.T:
        assert stats.chi2.cdf(2999 * column.var(ddof=1) / 81, 2999) == pytest.approx(0.5, abs=0.4999)
    # At a place that is far off both are within 0 and 1 all the same, and no event is beyond the first expected.
    far = replace(at, effects=at.effects + 5.0).level(x, y)
    assert far.min() >= 0
    assert far[:, 1].max() == 1.0
    assert not far[far[:, 1] == 1.0, 0].any()


def test_where_many_are_expected_to_have_more_than_one_event_the_true_level_is_told_as_true():
    """Of records drawn of the model itself, most have their event: all events and at most one expected differ."""
    edges, rng = np.linspace(0.0, 10.0, 9), np.random.default_rng(8)
    staying = np.r_[np.zeros(8), -60.0]
    outcome = Survival(edges=edges, cumulative=0.3 * edges, staying=staying, events=0.8)
    at = ModelAt(
        n=20_000,
        outcome=outcome,
        centre=np.zeros(1),
        scale=np.ones(1),
        effects=np.array([[0.0, 0.5], [0.0, 0.0]]),
        chance=np.zeros((0, 0)),
    )
    x = rng.standard_normal((at.n, 1))
    y = outcome.draw(np.column_stack([0.5 * x[:, 0], np.zeros(at.n)]), rng.random((at.n, 3)))
    found = at.level(x, y)
    events, expected = found.sum(axis=0)
    assert events == pytest.approx(expected, abs=4 * math.sqrt(expected))
    assert y[:, 1].sum() > 1.2 * expected
    assert found.min() >= 0
    assert found.max() <= 1


def test_a_level_that_is_wrong_in_a_release_is_put_right():
    """Charged with seven times too much, the sum of a site would be somewhere else."""
    found, data, theirs, _ = cohorts()
    (x, y), beta = data[0], theirs[0][0]
    moved = replace(found[0].theta, effects=found[0].theta.effects + np.array([[math.log(7), 0, 0, 0, 0], [0] * 5]))
    wrong = replace(found[0], theta=moved)
    at = look(wrong, beta, 0.0, WIDE)
    shown = noisy_level(at, x, y, 20.0, seeded_rng(1))
    level = level_of(*shown, 20.0)
    assert shown[1] > 2 * shown[0]
    right = seen(found[0], beta, WIDE, x, y)
    again = look(wrong, beta, level, WIDE)
    events, expected = again.level(x, y).sum(axis=0)
    assert abs(expected / events - 1) < 0.5
    errors = [abs(one.rows(x, y)[:, 0].sum() - right.rows(x, y)[:, 0].sum()) for one in (at, again)]
    assert errors[1] < errors[0] / 2


def test_a_yes_or_no_outcome_is_summed_too():
    """Against the logistic regression of the records."""
    tables = dict(list(cvd_cohorts(np.random.default_rng(4), 0.5).items())[:5])
    plan = plan_of("binary", "cvd", Column(name="cvd", kind="binary", levels=("no", "yes")), *NUMBERS)
    recoded = [
        table.assign(cvd=np.where(table["cvd"] == 1, "yes", "no")).drop(columns="time") for table in tables.values()
    ]
    checked = [plan.dictionary.check(table) for table in recoded]
    noise = seeded_rng(1)
    found = places([(moments(one, plan, noise), plan) for one in checked])
    for place, one in zip(found, checked, strict=True):
        x, y = plan.matrices(one)
        columns = np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / np.array([10.0, 40.0, 15.0, 10.0])])
        fitted = generalised(columns, y[:, 0], FAMILIES["logistic"], np.ones(len(x)), np.zeros(len(x)))
        beta, variance = fitted.beta[4], fitted.cov[4, 4]
        at = seen(place, beta, WIDE, x, y)
        assert abs(at.rows(x, y)[:, 0].sum() / at.precision) < 0.2 * math.sqrt(variance)


def test_other_outcomes_and_bounds_that_are_none_are_refused():
    plan = plan_of("linear", "sbp", *NUMBERS)
    table = next(iter(cvd_cohorts(np.random.default_rng(4), 0.2).values())).drop(columns=["time", "cvd"])
    checked = plan.dictionary.check(table)
    noise = seeded_rng(1)
    place = places([(moments(checked, plan, noise), plan)])[0]
    with pytest.raises(ParameterError, match="survival or yes or no"):
        look(place, 0.1, 0.0, replace(NARROW, column=0))
    for wrong in ({"reach": 0.0}, {"least": 9.0}, {"most": math.inf}, {"unit": 0.0}, {"column": -1}):
        with pytest.raises(ParameterError, match="bounds"):
            replace(NARROW, **wrong)
    looks = [replace(one, chance=0 * one.chance) for one in looks_at(0.15, NARROW)]
    with pytest.raises(EstimateRefusal):
        summed(looks, np.zeros(2), 1.0, 0.15, 0.0, sites=NAMES)
