"""The generator: margins and outcomes obey their laws, effects come back, and the variances are those one sees."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.mechanisms.moments import COLUMNS, COVARIATES, OUTCOMES, cohort, planned

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised, least_squares
from shared.mechanisms.moments import cohort as cohorts
from shared.mechanisms.moments.cohort import FEW_EVENTS, fit
from shared.mechanisms.moments.copula import POINTS, complete, pilot
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.margins import Margin, bin_edges, fitted_margin, product_moments, project
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.outcomes import Binary, Count, LinearOutcome, Survival, fitted_survival
from shared.mechanisms.moments.spec import MomentsSpec
from shared.plans.dictionary import Column, Dictionary

SD = np.array([11.0, 18.0, 0.5, 0.9])


@pytest.fixture(scope="module")
def people():
    return cohort(4000, np.random.default_rng(100))


def regressed(design, checked):
    """The same regression on the records: coefficients and covariance."""
    x, y = design.matrices(checked)
    x = x - x.mean(axis=0)
    if design.spec.outcome == "survival":
        found = cox(x, SurvivalOutcome(time=y[:, 0], event=y[:, 1]))
        return found.beta, found.cov
    one, with_one = np.ones(len(x)), np.column_stack([np.ones(len(x)), x])
    if design.spec.outcome == "linear":
        found = least_squares(with_one, y[:, 0], one)
    else:
        found = generalised(
            with_one, y[:, 0], FAMILIES[{"binary": "logistic", "count": "poisson"}[design.spec.outcome]], one, 0 * one
        )
    return found.beta[1:], found.cov[1:, 1:]


# -- margins -----------------------------------------------------------------------------------------------------
def test_a_margin_without_noise_has_the_mean_and_spread_of_its_column():
    column, rng = COLUMNS["sbp"], np.random.default_rng(1)
    x = np.clip(120 * np.exp(0.15 * rng.standard_normal(20_000)), 60, 280)
    edges = bin_edges(column, 32)
    margin = fitted_margin(np.histogram(x, edges)[0].astype(float), len(x), 0.1, edges, column)
    assert abs(margin.mean - x.mean()) < 0.1
    assert abs(margin.sd / x.std() - 1) < 0.02
    assert np.abs(margin.at(stats.norm.ppf([0.1, 0.5, 0.9])) - np.quantile(x, [0.1, 0.5, 0.9])).max() < 0.7


def test_a_margin_of_levels_is_their_shares():
    column = COLUMNS["stage"]
    margin = fitted_margin(np.array([100.0, 300, 500, 100]), 1000, 0.01, bin_edges(column, 32), column)
    np.testing.assert_allclose(margin.weights, [0.1, 0.3, 0.5, 0.1], atol=1e-9)
    assert margin.at(np.array([-3.0, 0.0, 3.0])).tolist() == [0.0, 2.0, 3.0]


@pytest.mark.parametrize("sigma", [5.0, 15.0])
def test_a_margin_with_a_heap_and_a_hump_far_from_it_keeps_both(sigma):
    rng = np.random.default_rng(11)
    column = Column(name="paid", kind="continuous", lower=0, upper=6, decimals=2)
    x = np.where(rng.random(2000) < 0.55, 0.0, rng.choice([3.26, 3.93, 4.56], 2000))
    edges = bin_edges(column, 32)
    counts = np.histogram(x, edges)[0] + sigma * rng.standard_normal(32)
    kept = fitted_margin(counts, len(x), sigma, edges, column)
    assert abs(kept.mean - x.mean()) < 0.15
    assert abs(kept.sd / x.std() - 1) < 0.1
    dropped = fitted_margin(counts, len(x), sigma, edges, column, "lognormal")
    assert dropped.mean < 0.4, "as plans from before are read"


def test_counts_that_vary_more_than_a_poisson_law_are_expected_to():
    rng = np.random.default_rng(12)
    eta = 0.5 * rng.standard_normal((4000, 1))
    law = Count(0.7, 6, 200, dispersion=1.5)
    y = law.draw(np.tile(eta, (60, 1)), rng.random((240_000, 3)))
    assert abs(law.features(y).mean() - law.conditional(eta).mean()) < 3e-3
    found = Count(0.7, 6, 200, variance=float(y.var())).among(eta)
    assert abs(found.dispersion - 1.5) < 0.1
    residual = law.residual(y, np.tile(eta, (60, 1))).mean()
    assert abs(residual - law.expected_residual(eta, eta).mean()) < 4e-3
    assert Count(0.7, 6, 200, variance=0.1).among(eta).dispersion == 0, "less varied than a Poisson law is one"


@pytest.mark.parametrize("pair", [("sbp", "male"), ("male", "stage"), ("sbp", "sbp")])
@pytest.mark.parametrize("rho", [-0.7, 0.3])
def test_mehlers_series_is_the_mean_product_of_correlated_columns(pair, rho):
    rng = np.random.default_rng(2)
    margins = []
    for name in pair:
        edges = bin_edges(COLUMNS[name], 32)
        values = {"sbp": 130 + 20 * rng.standard_normal(5000), "male": rng.random(5000) < 0.2}.get(
            name, rng.choice(4, 5000, p=[0.1, 0.2, 0.3, 0.4])
        )
        counts = np.histogram(np.asarray(values, dtype=float), edges)[0].astype(float)
        margins.append(fitted_margin(counts, 5000, 0.1, edges, COLUMNS[name]))
    standard = [(m.values - m.mean) / m.sd for m in margins]
    coefficients = np.array([m.hermite(f) for m, f in zip(margins, standard, strict=True)])
    value, slope = product_moments(coefficients, np.zeros(2), np.array([rho]))
    g = rng.standard_normal((400_000, 2)) @ np.linalg.cholesky([[1, rho], [rho, 1]]).T
    drawn = [(m.at(g[:, k]) - m.mean) / m.sd for k, m in enumerate(margins)]
    assert abs(value[0] - np.mean(drawn[0] * drawn[1])) < 0.012
    ahead, _ = product_moments(coefficients, np.zeros(2), np.array([rho + 1e-6]))
    assert abs((ahead - value)[0] / 1e-6 - slope[0]) < 1e-4


def test_moving_a_margin_moves_its_mean_and_keeps_its_bounds():
    column = COLUMNS["age"]
    edges = bin_edges(column, 32)
    counts = np.histogram(60 + 10 * np.random.default_rng(3).standard_normal(5000), edges)[0].astype(float)
    margin = fitted_margin(counts, 5000, 0.1, edges, column)
    moved = margin.moved(0.2, 0.1, margin.mean, margin.sd, column.span)
    assert abs(moved.mean - margin.mean - 0.2 * margin.sd) < 0.1
    assert abs(moved.sd / margin.sd - math.exp(0.1)) < 0.01
    far = margin.moved(2.0, 1.0, margin.mean, margin.sd, column.span)
    assert far.values.max() <= 100
    tilted = Margin(edges=np.array([-np.inf, 0.0, np.inf]), values=np.array([0.0, 1.0]), smooth=False).moved(
        0.5, 0.0, 0.5, 0.5, (0, 1)
    )
    assert math.isclose(tilted.mean, 1 / (1 + math.exp(-1)), rel_tol=1e-9)


def test_projected_counts_sum_to_n_and_none_is_negative():
    rng = np.random.default_rng(4)
    for _ in range(20):
        out = project(rng.normal(10, 40, (2, 16)), 500)
        assert out.min() >= 0
        assert math.isclose(out.sum(), 500)


# -- outcomes: the closed forms are the means of what is drawn ---------------------------------------------------
def baseline():
    rng = np.random.default_rng(5)
    time, leaves = rng.weibull(1.4, 20_000) * 30, np.minimum(rng.exponential(40, 20_000), 20 - 5 * rng.random(20_000))
    place = np.clip((np.minimum(time, leaves) / 20 * 16).astype(int), 0, 15)
    died = time <= leaves
    counts = np.stack([np.bincount(place[died], minlength=16), np.bincount(place[~died], minlength=16)])
    return fitted_survival(counts.astype(float), 20_000, 0.1, 20.0)


MODELS = {
    "survival": baseline(),
    "binary": Binary(-1.2),
    "count": Count(0.5, 5, 60),
    "linear": LinearOutcome(40.0, 12.0, 0.8, -500.0, 500.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_expectations_are_those_of_draws(name):
    model, rng, n = MODELS[name], np.random.default_rng(6), 60_000
    for start, pilot_at in ((0.0, 0.2), (0.6, -0.3), (-1.0, 0.0)):
        eta, before = np.full((n, model.predictors), start), np.full((n, model.predictors), pilot_at)
        y = model.draw(eta, rng.random((n, 3)))
        features, residual = model.features(y), model.residual(y, before)
        assert np.abs(features).max() <= 0.5
        assert np.abs(residual).max() <= 1.0
        # Within the noise of the draws, and the half interval that times are spread over.
        room = 5 * features.std(axis=0) / math.sqrt(n) + 0.004 * (name == "survival")
        assert (np.abs(features.mean(axis=0) - model.conditional(eta[:1])[0]) < room).all()
        room = 5 * residual.std() / math.sqrt(n) + 0.004 * (name == "survival")
        assert abs(residual.mean() - model.expected_residual(eta[:1], before[:1])[0]) < room


def test_the_baseline_is_the_hazard_behind_the_counts():
    model = MODELS["survival"]
    assert isinstance(model, Survival)
    at = model.cumulative[-1] * model.psi
    np.testing.assert_allclose(at, (model.edges / 30) ** 1.4, atol=0.02)
    assert model.staying[0] == 0
    assert (np.diff(model.staying) <= 0).all()


def test_the_baseline_is_found_behind_persons_of_whom_those_at_risk_leave_first():
    eta = np.random.default_rng(3).normal([0.0, 0.0], [1.2, 0.5], (4000, 2))
    edges, k = np.linspace(0, 30, 17), 40
    fine = np.linspace(0, 30, 16 * k + 1)
    baseline, leaving = 1.5 * (fine / 30) ** 1.3, 0.8 * fine / 30
    there = np.exp(-np.exp(eta[:, :1]) * baseline - np.exp(eta[:, 1:]) * leaving)
    middle = (there[:, 1:] + there[:, :-1]) / 2
    steps = (
        np.diff(one) * (np.exp(eta[:, [q]]) * middle).sum(0) / middle.sum(0)
        for q, one in enumerate((baseline, leaving))
    )
    hazard, censoring = (np.r_[0.0, np.cumsum(step)][::k] for step in steps)
    everybody = Survival(edges, hazard, -censoring, 0.5)
    found = everybody.among(eta, everybody)
    # Unaware of who leaves, too large a share of the hazard is reached early.
    assert np.abs(everybody.psi - baseline[::k] / 1.5).max() > 0.08
    event, other = np.exp(eta).mean(axis=0)
    np.testing.assert_allclose(found.cumulative, event * baseline[::k], rtol=0.03, atol=0.02)
    np.testing.assert_allclose(-found.staying, other * leaving[::k], rtol=0.03, atol=0.02)
    np.testing.assert_array_equal(found.psi, everybody.psi)
    higher = everybody.among(eta + 0.5, everybody)
    np.testing.assert_allclose(higher.cumulative, found.cumulative)


# -- effects -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("declared", [(), ("sbp",)])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_with_next_to_no_noise_the_effects_are_those_of_the_regression(outcome, declared, people):
    design = planned(outcome, declared, epsilon=100.0)
    found = fit(moments(people, design, seeded_rng(1)), design)
    beta, cov = regressed(design, people)
    se = np.sqrt(np.diag(cov))
    # Moments of clipped covariates are not the likelihood: they differ by part of a standard error.
    assert (np.abs(found.effects - beta) < 1.5 * se).all()
    # A column of few levels has a wider one of some releases: it is about the usual release.
    again = [found, *(fit(moments(people, design, seeded_rng(seed)), design) for seed in range(2, 12))]
    np.testing.assert_allclose(np.median([np.sqrt(np.diag(one.sampling)) for one in again], axis=0), se, rtol=0.25)
    assert (np.diag(found.privacy) < 0.1 * np.diag(found.sampling)).all()


def spread(design, people, seeds):
    """Standard deviation of the effects over releases of one table, over the privacy part that each release claims."""
    some = [fit(moments(people, design, seeded_rng(seed)), design) for seed in seeds]
    claimed = np.sqrt(np.mean([np.diag(found.privacy) for found in some], axis=0))
    return np.array([found.effects for found in some]).std(axis=0, ddof=1) / claimed, claimed


def test_the_privacy_variance_is_the_spread_over_releases_of_one_table(people):
    """Level 2 on the estimates: noise of half or twice the claimed size would be seen."""
    ratio, _ = spread(planned(epsilon=2.0), people, range(14))
    assert 0.7 < math.exp(np.log(ratio).mean()) < 1.4


@pytest.mark.soak
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_privacy_variance_is_the_spread_over_many_releases_of_one_table(outcome, people, record_property):
    ratio, claimed = spread(planned(outcome, ("sbp",)), people, range(120))
    record_property("spread_over_claimed", [round(float(r), 3) for r in ratio])
    assert ((ratio > 0.75) & (ratio < 1.33)).all()
    # The declared coefficient is the precise one.
    assert (claimed * SD)[1] < 0.8 * (claimed * SD)[[0, 3]].min()


def test_a_fit_is_the_same_wherever_it_is_made(people):
    design = planned(declared=("sbp",))
    release = moments(people, design, seeded_rng(2))
    one, two = fit(release, design), fit(release, design)
    np.testing.assert_array_equal(one.effects, two.effects)
    np.testing.assert_array_equal(one.sampling, two.sampling)
    pd.testing.assert_frame_equal(one.rows(np.random.default_rng(1), n=50), two.rows(np.random.default_rng(1), n=50))


def test_estimates_carry_both_variances_their_scale_and_where_they_come_from(people):
    for outcome, scale in (("survival", "log"), ("binary", "log"), ("linear", "identity")):
        design = planned(outcome)
        found = fit(moments(people, design, seeded_rng(3)), design)
        rows = found.estimates(study="trial", site="north", wave=2, receipts=("r",))
        assert [row.term for row in rows] == list(COVARIATES)
        assert {(row.site, row.wave, row.n, row.scale, row.receipts) for row in rows} == {
            ("north", 2, 4000, scale, ("r",))
        }
        np.testing.assert_allclose([row.vi for row in rows], np.diag(found.sampling + found.privacy))


def test_few_events_are_bootstrapped_and_never_made_more_certain():
    few = cohort(1000, np.random.default_rng(7), beta=(0.3, 0.25, 0.4, -0.3)).assign(
        died=lambda t: t["died"] * (np.random.default_rng(8).random(len(t)) < 0.12)
    )
    design = planned(declared=("sbp",), epsilon=3.0)
    release = moments(few, design, seeded_rng(4))
    plain, boot = fit(release, design), fit(release, design, rng=seeded_rng(5), bootstrap=4)
    assert plain.events < FEW_EVENTS
    assert (plain.bootstrapped, boot.bootstrapped) == (0, 4)
    assert (np.diag(boot.sampling + boot.privacy) >= np.diag(plain.sampling + plain.privacy)).all()
    np.testing.assert_array_equal(plain.effects, boot.effects)
    many = planned(epsilon=3.0)
    people = cohort(1500, np.random.default_rng(9))
    assert fit(moments(people, many, seeded_rng(4)), many, rng=seeded_rng(5)).bootstrapped == 0


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_refit_of_the_bootstrap_is_a_fit_for_all_its_points_are_fewer(outcome):
    design, people = planned(outcome, declared=("sbp",)), cohort(1000, np.random.default_rng(9))
    release = moments(people, design, seeded_rng(4))
    errors = np.sqrt(np.diag(fit(release, design).privacy))
    whole, coarse = (
        found.theta.effects[0, 1:] * found.model.outcome.unit / found.model.lens.scale
        for found in (complete(release, design, points) for points in (POINTS, cohorts._FEWER))
    )
    assert (coarse != whole).any()
    assert (np.abs(coarse - whole) < 0.2 * errors).all()


@pytest.mark.parametrize(("epsilon", "boots"), [(1.0, 2), (10.0, 0)])
def test_few_records_beside_the_noise_are_bootstrapped(epsilon, boots):
    # Of a measurement every record is an event; it is the noise on the histograms that is not to first order.
    design, people = planned("linear", epsilon=epsilon), cohort(400, np.random.default_rng(9))
    release = moments(people, design, seeded_rng(4))
    assert fit(release, design, rng=np.random.default_rng(5), bootstrap=2).bootstrapped == boots


# -- rows --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_synthetic_rows_are_the_studys_and_their_regression_is_the_fit(outcome, people):
    design = planned(outcome, epsilon=3.0)
    found = fit(moments(people, design, seeded_rng(6)), design)
    table = found.rows(np.random.default_rng(2))
    assert len(table) == len(people)
    design.dictionary.validate_release(table)
    beta, cov = regressed(design, design.dictionary.check(table))
    assert (np.abs(beta - found.effects) < 0.2 * np.sqrt(np.diag(cov))).all()
    plain = found.rows(np.random.default_rng(2), calibrated=False)
    apart, _ = regressed(design, design.dictionary.check(plain))
    assert np.abs((apart - found.effects) / np.sqrt(np.diag(cov))).max() > 0.3
    real = people[list(COVARIATES)]
    levels = design.dictionary.check(table)[list(COVARIATES)]
    assert (np.abs(levels.mean() - real.mean()) < 0.12 * real.std()).all()
    assert np.abs(levels.corr().to_numpy() - real.corr().to_numpy()).max() < 0.12
    with pytest.raises(ParameterError):
        found.rows(np.random.default_rng(2), n=0)


def test_fifteen_covariates_of_every_kind_in_one_release():
    rng = np.random.default_rng(10)
    n, kinds = 6000, ("continuous", "integer", "binary", "ordered", "continuous")
    latent = rng.standard_normal((n, 15)) @ np.linalg.cholesky(0.2 + 0.8 * np.eye(15)).T
    columns, data = [Column(name="cured", kind="binary")], {}
    for k in range(15):
        kind, name = kinds[k % 5], f"x{k}"
        if kind in ("continuous", "integer"):
            columns.append(Column(name=name, kind=kind, lower=-40, upper=80))
            data[name] = np.clip(10 + 9 * latent[:, k], -40, 80).round(0 if kind == "integer" else 2)
        elif kind == "binary":
            columns.append(Column(name=name, kind="binary"))
            data[name] = (latent[:, k] > 0.5).astype(float)
        else:
            columns.append(Column(name=name, kind="ordered", levels=(1, 2, 3)))
            data[name] = np.searchsorted([-0.5, 0.8], latent[:, k]).astype(float)
    truth = 0.25 * (-1.0) ** np.arange(15)
    eta = -0.5 + latent @ truth
    data["cured"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    spec = MomentsSpec(
        outcome="binary", responses=("cured",), covariates=tuple(f"x{k}" for k in range(15)), epsilon=10.0, delta=1e-6
    )
    design = Design(spec=spec, dictionary=Dictionary(name="wide", version=1, columns=tuple(columns)))
    found = fit(moments(pd.DataFrame(data), design, seeded_rng(1)), design)
    beta, _ = regressed(design, pd.DataFrame(data))
    z = (found.effects - beta) / np.sqrt(np.diag(found.sampling + found.privacy))
    assert np.abs(z).max() < 4
    assert (
        np.corrcoef(found.effects / np.sqrt(np.diag(found.privacy)), beta / np.sqrt(np.diag(found.privacy)))[0, 1] > 0.9
    )


def test_a_score_needs_a_declared_coefficient(people):
    design = planned()
    with pytest.raises(ParameterError):
        pilot(moments(people.iloc[:100], design, seeded_rng(1)), design)
