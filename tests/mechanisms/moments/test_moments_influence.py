"""The influence that a declared coefficient's score sums: the regression's own, bounded, and the same on both sides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from stage.mechanisms.moments import COVARIATES, OUTCOMES, cohort, planned

from shared.base.randomness import seeded_rng
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised, least_squares
from shared.mechanisms.moments.cohort import drawn, fit
from shared.mechanisms.moments.copula import complete, pilot
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.influence import direction, efficient_cut, held
from shared.mechanisms.moments.noise import score_steps
from shared.mechanisms.moments.together import places
from tests.benchmarks import worlds

J = COVARIATES.index("sbp")


@pytest.fixture(scope="module")
def people():
    return cohort(4000, np.random.default_rng(12))


def regression(table, outcome):
    """The regression's own coefficients on the records, per unit."""
    x = table[list(COVARIATES)].to_numpy(float)
    centred, y = x - x.mean(axis=0), table[list(OUTCOMES[outcome])].to_numpy(float)
    if outcome == "survival":
        return cox(centred, SurvivalOutcome(time=y[:, 0], event=y[:, 1])).beta
    one, weights = np.column_stack([np.ones(len(x)), centred]), np.ones(len(x))
    if outcome == "linear":
        return least_squares(one, y[:, 0], weights).beta[1:]
    return generalised(
        one, y[:, 0], FAMILIES["logistic" if outcome == "binary" else "poisson"], weights, 0 * weights
    ).beta[1:]


def looked_at(people, outcome, **more):
    design = planned(outcome, ("sbp",), covariates=COVARIATES, **more)
    release = moments(people, design, seeded_rng(5))
    return design, release, pilot(release, design)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_influence_has_the_mean_that_its_law_gives_it(outcome, people):
    design, release, score = looked_at(people, outcome)
    fitted = complete(release, design)
    x, y = drawn(fitted.model, fitted.theta, np.random.default_rng(1).random((40_000, design.p + 3)))
    rows = score.rows(x, y)[:, 0]
    expected = score.expected(fitted.model.outcome, fitted.model.predictor(fitted.theta.effects, x), x)[0]
    assert abs(rows.mean() - expected) < 4 * rows.std() / np.sqrt(len(rows)) + 2e-4
    assert np.abs(rows).max() <= 1 + 1e-12


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_with_little_noise_the_score_tells_the_regression_s_own_coefficient(outcome, people):
    design = planned(outcome, ("sbp",), covariates=COVARIATES, epsilon=100.0)
    own = regression(people, outcome)[J]
    sites = [fit(moments(people, design, seeded_rng(seed)), design) for seed in range(6)]
    apart = np.mean([site.effects[J] for site in sites]) - own
    patients = np.mean([site.sampling[J, J] for site in sites]) ** 0.5
    assert abs(apart) < 0.2 * patients


def fading(n, rng):
    """An exposure whose hazard ratio halves with time: no proportional hazards, and Cox has an answer."""
    table = cohort(n, rng)
    z = (table["sbp"].to_numpy() - 128) / 18
    early = rng.exponential(1, n) * 20 * np.exp(-0.6 * z)
    late = 5 + rng.exponential(1, n) * 20 * np.exp(-0.1 * z)
    failure = np.where(early < 5, early, late)
    leaving = np.minimum(20 - 6 * rng.random(n), rng.exponential(60, n))
    return table.assign(time=np.clip(np.minimum(failure, leaving), 0.01, 20).round(2), died=(failure <= leaving) * 1.0)


def test_where_a_hazard_ratio_fades_cox_s_coefficient_is_told():
    table = fading(6000, np.random.default_rng(3))
    own = regression(table, "survival")[J]
    design = planned("survival", ("sbp",), covariates=COVARIATES, epsilon=100.0)
    site = fit(moments(table, design, seeded_rng(2)), design)
    assert abs(site.effects[J] - own) < 0.5 * site.sampling[J, J] ** 0.5


def cases_of(design, release, jitter=0.0):
    """Influences of all cases at the pilot, with their probabilities; predictors moved by `jitter` of themselves."""
    fitted = complete(release, design)
    model, outcome = fitted.model, fitted.model.outcome
    x = model.points([model.margin(j, 0.0, 0.0) for j in range(design.p)], fitted.theta.z)
    eta, standard = model.predictor(fitted.theta.effects, x), model.lens.standard(x)
    eta = eta * (1 + jitter * np.random.default_rng(8).standard_normal(eta.shape))
    to = direction(outcome, eta, standard, J)
    chance, cases = outcome.cases(eta)
    return outcome.influence(cases, eta, (standard @ to.along)[None], to.means[None]) / to.spread, chance / len(x)


def test_a_cut_grows_as_noise_falls_and_is_never_below_the_plan_s(people):
    design, release, _ = looked_at(people, "survival")
    cuts = [efficient_cut(*cases_of(design, release), noise, 1.0) for noise in (1.0, 0.1, 0.01, 1e-3)]
    assert cuts == sorted(cuts)
    assert cuts[0] >= 1
    assert cuts[-1] > 2 * cuts[0]


def test_both_sides_find_the_same_cut_where_their_last_digits_differ(people):
    design, release, _ = looked_at(people, "survival")
    ours, theirs = cases_of(design, release), cases_of(design, release, 1e-10)
    for noise in np.geomspace(1e-3, 1.0, 40):
        assert efficient_cut(*ours, noise, 1.0) == pytest.approx(efficient_cut(*theirs, noise, 1.0), rel=1e-7)


def test_where_groups_differ_in_spread_a_cut_leaves_the_regression_s_own_estimate_nearly_where_it_is():
    """At the records' own estimate whole influences sum to 0, and those cut for the smallest variance do not."""
    n, noise = 8000, 0.11  # that of 2,000 patients at ε = 3
    rng = np.random.default_rng(1)
    died, z = rng.random(n) < 0.15, rng.standard_normal((n, 2))
    one = np.column_stack([np.ones(n), z[:, 0] + died * (1 - 0.45 * z[:, 0]), z[:, 1] * (1 + 0.8 * died) + 0.3 * died])
    mean = generalised(one, died * 1.0, FAMILIES["logistic"], np.ones(n), np.zeros(n)).fitted
    weight = mean * (1 - mean)
    along = one @ np.linalg.inv((one * weight[:, None]).T @ one)[:, 1:]
    along /= np.sqrt(weight @ along**2 / weight.sum())
    whole = along.T * (died - mean)
    cases = along.T[:, :, None] * np.stack([-mean, 1 - mean], axis=1)
    chance = np.stack([1 - mean, mean], axis=1) / n

    def told(cut):
        """Distance from the records' own estimate, and variance."""
        slope = (chance * held(cases, cut) * cases).sum(axis=(1, 2))
        variance = (chance * held(cases, cut) ** 2).sum(axis=(1, 2)) + (cut * noise) ** 2
        return np.abs(held(whole, cut).mean(axis=1) / slope).max(), (variance / slope**2).sum()

    assert np.abs(whole.mean(axis=1)).max() < 1e-9
    least = min((told(cut) for cut in np.geomspace(1, 16, 100)), key=lambda found: found[1])
    away, variance = told(efficient_cut(cases, chance, noise, 1.0))
    assert away < 0.4 * least[0]
    assert variance < 1.3 * least[1], "and it costs an eighth of an interval's width"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_slope_is_how_the_prediction_moves_with_each_parameter(outcome, people):
    """By differences of the prediction itself, at steps that the levels of stage and sex notice."""
    design = planned(outcome, ("age", "sbp"), covariates=COVARIATES)
    fitted = complete(moments(people, design, seeded_rng(5)), design)
    model, at, score = fitted.model, fitted.theta, fitted.score
    few, flat = model.latents[:1024], at.flat
    slope = model.slope(at, score)[1]
    steps = np.full(len(flat), 1e-3)
    steps[: len(flat) - at.effects.size] = 0.08
    smooth = [0, 1, 4, 5, 8]  # shift and stretch of age and sbp, and their correlation
    steps[smooth] = 2e-3
    for k, step in enumerate(steps):
        moved = flat.copy()
        moved[k] += step
        found = (model.predict(at.like(moved), score, few) - model.predict(at, score, few)) / step
        size = np.abs(found).max()
        assert np.abs(slope[:, k] - found).max() <= (0.02 if step < 0.01 else 0.12) * size + 1e-9, k


def test_declaring_every_coefficient_costs_each_less_than_the_root_of_their_number(people):
    noise = {}
    for declared in (("sbp",), COVARIATES):
        design = planned("survival", declared, covariates=COVARIATES)
        noise[declared] = fit(moments(people, design, seeded_rng(4)), design).privacy[J, J] ** 0.5
    assert noise[COVARIATES] < 0.9 * len(COVARIATES) ** 0.5 * noise[("sbp",)]


@pytest.mark.parametrize("declared", [("sbp",), COVARIATES])
def test_no_score_is_longer_than_its_ball_in_whole_steps(declared, people):
    design = planned("survival", declared, covariates=COVARIATES)
    score = pilot(moments(people, design, seeded_rng(4)), design)
    x, y = design.matrices(people)
    steps = score_steps(score.rows(x, y), "influence")
    assert 2**41 < (steps**2).sum(axis=1).max() <= 2**42


def test_influences_are_drawn_in_as_one_vector_and_keep_their_direction():
    found = held(np.array([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    np.testing.assert_allclose(found, [[0.6, 0.3], [0.8, 0.4]])


@pytest.mark.parametrize("j", range(len(COVARIATES)))
def test_a_direction_is_blind_to_the_other_covariates(j, people):
    """Σ w a x_o = 0 for every other covariate: an error of its coefficient moves the score to second order only."""
    design, release, _ = looked_at(people, "survival")
    fitted = complete(release, design)
    x = fitted.model.points([fitted.model.margin(k, 0.0, 0.0) for k in range(design.p)], fitted.theta.z)
    eta, standard = fitted.model.predictor(fitted.theta.effects, x), fitted.model.lens.standard(x)
    found = direction(fitted.model.outcome, eta, standard, j)
    weight = fitted.model.outcome.intensity(eta)
    a = (standard @ found.along)[:, None] - found.means
    each = np.einsum("mk,mk,mp->p", weight, a, standard) / weight.sum()
    assert np.abs(np.delete(each, j)).max() < 1e-4 * each[j]
    assert found.spread == pytest.approx(np.sqrt(each[j]), rel=1e-3)


def test_records_far_outside_move_a_score_by_no_more_than_its_box(people):
    design, _, score = looked_at(people, "survival")
    far = pd.DataFrame(people.iloc[:6]).assign(sbp=[60, 280, 60, 280, 60, 280], time=[0.01, 0.01, 20, 20, 20, 20.0])
    x, y = design.matrices(far)
    assert np.abs(score.rows(x, y)).max() == pytest.approx(1.0)


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf, 3.0, 1e300])
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_whatever_arithmetic_made_of_a_record_its_steps_lie_in_the_ball(lost, others):
    steps = score_steps(np.array([[lost, others], [0.6, 0.8]]), "influence")
    assert (np.square(steps.astype(object)).sum(axis=1) <= 2**42).all()
    assert np.square(steps[1]).sum() > 2**42 - 2**24


def unequal(n, rng):
    """Those who are cured are older and more alike in age: no linear predictor has that."""
    cured, z = (rng.random(n) < 0.2) * 1.0, rng.standard_normal((n, 2))
    age = np.clip(54 + 12 * z[:, 0] + cured * (12 - 6 * z[:, 0]), 16, 100).round(1)
    return pd.DataFrame({"cured": cured, "age": age, "sbp": np.clip(128 + 18 * z[:, 1], 60, 280).round()})


@pytest.mark.parametrize(("world", "denied"), [(cohort, [False, False]), (unequal, [True, False])])
def test_two_figures_of_an_effect_that_contradict_each_other_deny_the_model_and_nothing_else_does(world, denied):
    design = planned("binary", ("age", "sbp"), covariates=("age", "sbp"), epsilon=3.0)
    tables = [world(3000, np.random.default_rng(seed)) for seed in (1, 2)]
    releases = [(moments(table, design, seeded_rng(seed)), design) for seed, table in enumerate(tables)]
    found = [place.effects for place in places(releases, alike=True)]
    assert [bool(apart) for apart in found[0].apart] == denied
    assert all((one.apart == found[0].apart).all() for one in found), "it is said of all sites together"
    wider = found[0].common > found[0].misfit
    assert list(wider) == denied, "more hospitals made such an interval narrower, and its error no smaller"


def test_without_a_score_an_effect_is_told_once_and_nothing_contradicts_it():
    design = planned("binary", (), covariates=("age", "sbp"), epsilon=3.0)
    release = moments(unequal(3000, np.random.default_rng(1)), design, seeded_rng(1))
    found = places([(release, design)] * 2, alike=True)
    assert not found[0].effects.apart.any()


def test_where_a_world_is_missed_at_every_epsilon_one_patient_in_a_hundred_makes_the_records_own_answer():
    world = worlds.world("unequal_groups")
    table = world(8000, np.random.default_rng(3), 0)
    x, y = table[["age", "male", "sbp", "marker", "arm"]].to_numpy(float), table[["years", "gone"]].to_numpy(float)
    held_in = x.copy()
    held_in[:, 3] = np.minimum(x[:, 3], np.quantile(x[:, 3], 0.99))
    own, near = (cox(one - one.mean(axis=0), SurvivalOutcome(time=y[:, 0], event=y[:, 1])).beta for one in (x, held_in))
    assert near[3] > 1.5 * own[3] > 0
    assert np.abs(near - own)[[0, 2]].max() < 0.01, "and those of age and pressure stay"
