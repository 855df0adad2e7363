"""Outcomes drawn last: their laws are bijections, and a regression on what they draw is the records' regression."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import integrate, special
from statsmodels.duration.hazard_regression import PHReg

from shared.base.randomness import seeded_rng
from shared.errors import SchemaRefusal, TrainingRefusal
from shared.flows.cells import mean_exponential
from shared.flows.chain import from_arrays, to_arrays
from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw
from shared.flows.outcomes_last import OutcomesLast
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.models.outcome_laws import terms
from site_agent.models.outcome_laws.calibrated import calibrated, copies_of
from site_agent.models.outcome_laws.laws import fit_laws

N = 1500
SMALL = FlowSettings(flows=2, hidden=8, epochs=3)
BINARY, COUNT, SCORE, TIME, EVENT = 2, 2, 2, 2, 3


def planned(d, groups, levels, whole=(), bounds=None):
    return PlannedOutcomes(
        d=d, groups=groups, levels=levels, whole=frozenset(whole), gates={}, bounds=bounds or {0: (-9.0, 9.0)}
    )


def covariates(n=N, seed=1):
    rng = np.random.default_rng(seed)
    first = rng.normal(size=n)
    return rng, first, (rng.random(n) < special.expit(0.5 * first)).astype(float)


def binary(n=N):
    rng, a, b = covariates(n)
    died = rng.random(n) < special.expit(-1.5 + 0.8 * a + 0.5 * b)
    x = np.column_stack([a, b + rng.random(n), died + rng.random(n)])
    return x, planned(3, ((BINARY,),), {1: 2, 2: 2})


def count(n=N):
    rng, a, b = covariates(n)
    visits = rng.poisson(np.exp(0.5 + 0.5 * a - 0.3 * b))
    x = np.column_stack([a, b + rng.random(n), visits + rng.random(n)])
    return x, planned(3, ((COUNT,),), {1: 2}, whole=(2,))


def score(n=N):
    rng, a, b = covariates(n)
    y = 0.4 * a + 0.2 * b + 0.3 * np.exp(0.4 * a) * rng.normal(size=n)
    x = np.column_stack([a, b + rng.random(n), y])
    return x, planned(3, ((SCORE,),), {1: 2})


def survival(n=N):
    rng, a, b = covariates(n)
    failure = rng.exponential(size=n) / (0.15 * np.exp(0.6 * a - 0.4 * b))
    end = 3 + 5 * rng.random(n)
    x = np.column_stack([a, b + rng.random(n), np.minimum(failure, end), (failure <= end) + rng.random(n)])
    return x, planned(4, ((TIME, EVENT),), {1: 2, 3: 2})


def partly(n=N):
    """A measurement that three in ten lack; in its place stands what the encoder draws."""
    rng, a, b = covariates(n)
    y = (0.1 * a + 0.1 * b + 0.1 * rng.normal(size=n)).clip(-1, 1)
    gone = rng.random(n) < special.expit(-1 + 0.5 * a)
    x = np.column_stack([a, b + rng.random(n), gone + rng.random(n), np.where(gone, rng.uniform(-0.5, 0.5, n), y)])
    outcomes = planned(4, ((2,), (3,)), {1: 2, 2: 2}, bounds={0: (-9.0, 9.0), 3: (-1.0, 1.0)})
    return x, replace(outcomes, gates={3: 2})


WORLDS = pytest.mark.parametrize("made", [binary, count, score, survival, partly])


def many(x, laws, times=40, seed=7):
    """The same covariates, outcomes drawn anew."""
    big = np.tile(x, (times, 1))
    drawn = [column for law in laws.laws for column in law.columns]
    big[:, drawn] = np.random.default_rng(seed).standard_normal((len(big), len(drawn)))
    return laws.forward(big)


@WORLDS
def test_records_come_back_from_their_latents(made):
    x, outcomes = made()
    laws = fit_laws(x, outcomes)
    z = laws.inverse(x)
    assert np.allclose(laws.forward(z), x, atol=1e-9)
    other = np.random.default_rng(3).standard_normal(x.shape)
    other[:, :2] = x[:, :2]
    assert np.allclose(laws.inverse(laws.forward(other)), other, atol=1e-6)
    assert np.array_equal(z[:, :2], x[:, :2]), "covariates are left as they are"


@WORLDS
def test_latents_of_records_are_standard_normal_and_follow_no_covariate(made):
    x, outcomes = made()
    b = fit_laws(x, outcomes).inverse(x)[:, 2:]
    assert np.allclose(b.mean(axis=0), 0, atol=0.09)
    assert np.allclose(b.std(axis=0), 1, atol=0.1)
    assert np.abs(np.corrcoef(np.column_stack([x[:, 0], b]).T)[0, 1:]).max() < 0.06


@WORLDS
def test_the_log_determinant_is_that_of_differences(made):
    x, outcomes = made()
    laws = fit_laws(x, outcomes)
    rows, step = x[:60].copy(), 1e-7
    told = laws.inverse_with_log_det(rows)[1]
    jacobian = np.empty((60, x.shape[1] - 2, x.shape[1] - 2))
    for j in range(2, x.shape[1]):
        moved = [rows.copy(), rows.copy()]
        moved[0][:, j] -= step
        moved[1][:, j] += step
        jacobian[:, :, j - 2] = (laws.inverse(moved[1]) - laws.inverse(moved[0]))[:, 2:] / (2 * step)
    found = np.log(np.abs(np.linalg.det(jacobian)))
    # A record within a step of an edge has another slope on either side.
    assert np.median(np.abs(found - told)) < 1e-4
    assert (np.abs(found - told) < 1e-2).mean() > 0.95


def test_half_the_records_kept_change_neither_who_lacks_a_value_nor_the_values():
    """What stands in the place of a missing value is no value: its latent is one like any other, and no extreme one."""
    x, outcomes = partly(6000)
    laws = fit_laws(x, outcomes)
    z = laws.inverse(x)
    assert np.abs(z[x[:, 2] >= 1, 3]).max() < 4.5
    noised = z.copy()
    noised[:, 2:] = np.sqrt(0.5) * z[:, 2:] + np.sqrt(0.5) * np.random.default_rng(4).standard_normal((len(z), 2))
    drawn = laws.forward(noised)
    kept, known = drawn[:, 2] < 1, x[:, 2] < 1
    assert kept.mean() == pytest.approx(known.mean(), abs=0.02)
    assert drawn[kept, 3].mean() == pytest.approx(x[known, 3].mean(), abs=0.01)
    assert drawn[kept, 3].std() == pytest.approx(x[known, 3].std(), rel=0.05)


@WORLDS
def test_a_row_depends_on_no_other_row(made):
    x, outcomes = made()
    laws = fit_laws(x, outcomes)
    z = np.random.default_rng(2).standard_normal(x.shape)
    z[:, :2] = x[:, :2]
    assert np.array_equal(laws.forward(z)[5:9], laws.forward(z[5:9]))
    assert np.array_equal(laws.inverse(x)[5:9], laws.inverse(x[5:9]))


def test_terms_are_products_hinges_and_atoms_themselves():
    inputs = OutcomeInputs(
        columns=(0, 1),
        counts=(3, 3),
        whole=(False, False),
        gates=(-1, -1),
        centre=np.zeros(2),
        scale=np.ones(2),
        knots=(None, None),
        extras=np.zeros((0, 3)),
    )
    atoms = np.array([[2.0, -1.0, 0.5, 3.0], [0.0, 4.0, 1.0, -2.0]])
    terms = inputs.made(atoms, np.array([[0, 3, 0.0], [1, -1, 1.5], [3, -2, 0.0]]))
    assert terms.tolist() == [[6.0, 0.0, 3.0], [0.0, 2.5, -2.0]]


@WORLDS
def test_laws_are_stored_without_pickle(made):
    x, outcomes = made()
    laws = fit_laws(x, outcomes)
    sink = io.BytesIO()
    np.savez(sink, allow_pickle=False, **to_arrays(laws))
    sink.seek(0)
    again = from_arrays(dict(np.load(sink, allow_pickle=False)))
    assert np.array_equal(again.inverse(x), laws.inverse(x))


@pytest.mark.parametrize("wrong", [{"laws": np.array([9])}, {"edges0": np.zeros(3)}, {"more": np.zeros(1)}])
def test_laws_that_no_fit_wrote_are_refused(wrong):
    x, outcomes = score()
    with pytest.raises(SchemaRefusal):
        from_arrays(to_arrays(fit_laws(x, outcomes)) | wrong)


def test_a_law_that_reads_an_outcome_before_it_is_drawn_is_refused():
    x, outcomes = binary()
    law = fit_laws(x, outcomes).laws[0]
    assert isinstance(law, LevelLaw)
    with pytest.raises(SchemaRefusal, match="earlier outcomes only"):
        OutcomesLast(d=3, laws=(LevelLaw(column=0, inputs=law.inputs, coefficients=law.coefficients),))


# -- against other programs -----------------------------------------------------------------------------------------
def design(x):
    return np.column_stack([np.ones(len(x)), x[:, 0], np.floor(x[:, 1])])


def test_a_logistic_regression_on_drawn_events_is_that_on_the_records():
    x, outcomes = binary()
    real = sm.Logit(x[:, 2] >= 1, design(x)).fit(disp=False)
    out = many(x, fit_laws(x, outcomes))
    drawn = sm.Logit(out[:, 2] >= 1, design(out)).fit(disp=False)
    assert np.abs((drawn.params - real.params) / real.bse).max() < 0.3


def test_a_straight_logistic_world_gives_the_coefficients_of_statsmodels():
    x, outcomes = binary()
    law = fit_laws(x, outcomes).laws[0]
    assert isinstance(law, LevelLaw)
    assert len(law.inputs.extras) == 0, "nothing bends, and nothing is taken in"
    found = (law.coefficients[:, 1] - law.coefficients[:, 0])[1] / law.inputs.scale[0]
    assert found == pytest.approx(sm.Logit(x[:, 2] >= 1, design(x)).fit(disp=False).params[1], rel=2e-3)


def lacking(seed, levelled, n=900):
    """(records, outcomes, pairs): a death, a treatment, and a confounder that a third lack."""
    rng = np.random.default_rng(seed)
    c = (rng.random(n) < 0.5) * 2.0 if levelled else rng.normal(size=n)
    treated = (rng.random(n) < special.expit(1.2 * c)).astype(float)
    died = rng.random(n) < special.expit(-1 + 0.5 * treated + 0.9 * c)
    gone = rng.random(n) < 0.35
    ends = [treated + rng.random(n), died + rng.random(n)]
    if levelled:
        x = np.column_stack([np.where(gone, 2, c / 2) + rng.random(n), *ends])
        return x, planned(3, ((2,),), {0: 3, 1: 2, 2: 2}, bounds={}), ((0, 1),)
    x = np.column_stack([np.where(gone, rng.uniform(-0.5, 0.5, n), c), gone + rng.random(n), *ends])
    return x, replace(planned(4, ((3,),), {1: 2, 2: 2, 3: 2}), gates={0: 1}), ((1, 0), (1, 2))


@pytest.mark.parametrize("levelled", [False, True])
def test_a_confounder_that_many_lack_is_not_in_the_effect_among_those_who_have_it(levelled):
    """A planned regression leaves out who lacks it, and whose treatment carries what the confounder does."""

    def effect(x):
        kept = x[x[:, 0] < 2] if levelled else x[x[:, 1] < 1]
        seen = np.floor(kept[:, 0]) if levelled else kept[:, 0]
        given = np.column_stack([np.ones(len(kept)), np.floor(kept[:, -2]), seen])
        return sm.Logit(kept[:, -1] >= 1, given).fit(disp=False)

    mixed, apart = [], []
    for seed in range(6):
        x, outcomes, pairs = lacking(seed, levelled)
        real = effect(x)
        for off, one in ((mixed, outcomes), (apart, replace(outcomes, left_out=pairs))):
            off.append((effect(many(x, fit_laws(x, one))).params[1] - real.params[1]) / real.bse[1])
    assert np.mean(mixed) > 0.35, "a world in which it matters"
    assert abs(np.mean(apart)) < 0.2


def test_a_curve_that_is_planned_is_in_the_law_though_records_would_not_ask_for_it():
    """Bent by two to three standard errors: too little for a score test among many, and what the question is about."""

    def square(x):
        given = np.column_stack([design(x), x[:, 0] ** 2])
        return sm.Logit(x[:, 2] >= 1, given).fit(disp=False)

    off, kept = [], []
    for seed in range(6):
        rng, a, b = covariates(seed=seed)
        died = rng.random(N) < special.expit(-0.7 + 0.3 * a + 0.5 * b - 0.13 * a**2)
        x = np.column_stack([a, b + rng.random(N), died + rng.random(N)])
        real = square(x)
        for found, curves in ((off, ()), (kept, (0,))):
            law = fit_laws(x, replace(planned(3, ((BINARY,),), {1: 2, 2: 2}), curves=curves))
            found.append((square(many(x, law)).params[3] - real.params[3]) / real.bse[3])
    assert np.mean(off) > 0.7, "a world in which it matters"
    assert np.abs(kept).max() < 0.35


def test_a_poisson_regression_on_drawn_counts_is_that_on_the_records():
    x, outcomes = count()
    real = sm.GLM(np.floor(x[:, 2]), design(x), family=sm.families.Poisson()).fit()
    out = many(x, fit_laws(x, outcomes))
    drawn = sm.GLM(np.floor(out[:, 2]), design(out), family=sm.families.Poisson()).fit()
    assert np.abs((drawn.params - real.params) / real.bse).max() < 0.35
    assert np.floor(out[:, 2]).var() == pytest.approx(np.floor(x[:, 2]).var(), rel=0.08)


def test_least_squares_on_drawn_scores_are_those_on_the_records_and_so_is_the_spread():
    x, outcomes = score()
    real = sm.OLS(x[:, 2], design(x)).fit()
    out = many(x, fit_laws(x, outcomes))
    drawn = sm.OLS(out[:, 2], design(out)).fit()
    assert np.abs((drawn.params - real.params) / real.bse).max() < 0.3
    for rows in (lambda v: v[:, 0] < -0.7, lambda v: v[:, 0] > 0.7):
        ours, theirs = (np.std(v[rows(v), 2]) for v in (out, x))
        assert ours == pytest.approx(theirs, rel=0.12)


def test_a_cox_model_of_drawn_times_is_that_of_the_records():
    x, outcomes = survival()
    real = PHReg(x[:, 2], design(x)[:, 1:], status=(x[:, 3] >= 1).astype(float)).fit()
    laws = fit_laws(x, outcomes)
    law = laws.laws[0]
    assert isinstance(law, HazardLaw)
    assert law.coefficients[1, 0, :2] == pytest.approx(real.params * [law.inputs.scale[0], 1.0], rel=0.01)
    out = many(x, laws, times=10)
    drawn = PHReg(out[:, 2], design(out)[:, 1:], status=(out[:, 3] >= 1).astype(float)).fit()
    assert np.abs((drawn.params - real.params) / real.bse).max() < 1, "ten draws have a third of a standard error"
    assert (out[:, 3] >= 1).mean() == pytest.approx((x[:, 3] >= 1).mean(), abs=0.01)


@pytest.mark.parametrize("steep", [-40.0, -3.0, -1e-5, 0.0, 1e-5, 2.0, 40.0])
def test_means_of_an_exponential_are_those_of_quadrature(steep):
    top = max(steep, 0.0)
    whole = integrate.quad(lambda t: np.exp(steep * t - top), 0, 1)[0]
    mean = integrate.quad(lambda t: t * np.exp(steep * t - top), 0, 1)[0] / whole
    log_mean, middle = mean_exponential(np.array([steep]))
    assert log_mean[0] == pytest.approx(np.log(whole) + top, abs=1e-9)
    assert middle[0] == pytest.approx(mean, abs=1e-7)


def test_the_distribution_of_a_tilted_score_is_that_of_its_density():
    x, outcomes = score(400)
    law = fit_laws(x, outcomes).laws[0]
    assert isinstance(law, TiltLaw)
    row = x[:1].copy()

    def density(value):
        at = row.copy()
        at[0, 2] = value
        z = np.zeros_like(at)
        slope = law.undraw(at, z)
        return float(np.exp(slope[0] - 0.5 * z[0, 2] ** 2) / np.sqrt(2 * np.pi))

    mean = float(law.cells(row)[0][0])
    for v in (-1.0, 0.3, 1.4):
        at = row.copy()
        at[0, 2] = v
        law.draw(at)
        edges = [mean + e for e in law.edges if e < at[0, 2] - mean] + [float(at[0, 2])]
        below = sum(integrate.quad(density, a + 1e-12, b - 1e-12)[0] for a, b in itertools.pairwise(edges))
        assert below == pytest.approx(special.ndtr(v), abs=1e-4)


# -- in a flow -------------------------------------------------------------------------------------------------------
def test_the_dead_keep_their_variances():
    rng = np.random.default_rng(1)
    n = 3000
    died = rng.random(n) < 0.15
    pulse = rng.normal(size=n) * np.where(died, 1.8, 1.0) + 0.3 * died
    x = np.column_stack([rng.normal(size=n), pulse, died + rng.random(n)])
    outcomes = planned(3, ((2,),), {2: 2}, bounds={0: (-9.0, 9.0), 1: (-9.0, 9.0)})
    flow = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(2,), outcomes=outcomes).flow
    out = flow.forward(np.random.default_rng(2).normal(size=(120_000, 3)))
    gone = out[:, 2] >= 1
    assert out[gone, 1].std() / out[~gone, 1].std() == pytest.approx(1.8, rel=0.1)
    real, drawn = (
        sm.Logit(v[:, 2] >= 1, np.column_stack([np.ones(len(v)), v[:, :2]])).fit(disp=False) for v in (x, out)
    )
    assert np.abs((drawn.params - real.params) / real.bse)[1:].max() < 0.6


@WORLDS
def test_a_flow_with_outcomes_last_is_a_bijection_with_a_density(made):
    x, outcomes = made(600)
    integers = tuple(sorted({*outcomes.levels, *outcomes.whole}))
    flow = fit_flow(x, SMALL, seeded_rng(1), integer_columns=integers, outcomes=outcomes).flow
    assert np.allclose(flow.forward(flow.inverse(x)), x, atol=1e-8)
    assert np.isfinite(flow.log_prob(x)).all()
    again = from_arrays(to_arrays(flow))
    assert np.array_equal(again.inverse(x), flow.inverse(x))


def test_an_outcome_that_follows_from_the_rest_is_refused():
    x, outcomes = score(300)
    x[:, 2] = 2 * x[:, 0] + 1
    with pytest.raises(TrainingRefusal, match="function of the others") as refusal:
        fit_flow(x, SMALL, seeded_rng(1), integer_columns=(1,), outcomes=outcomes)
    assert refusal.value.next_step


def test_terms_are_counted_before_a_law_is_fitted_as_many_as_it_then_tries():
    rng = np.random.default_rng(8)
    x = np.column_stack([rng.normal(size=(N, 3)), rng.integers(0, 4, (N, 2)), rng.integers(0, 2, N)])
    asked = planned(6, ((5,),), {3: 4, 4: 4, 5: 2})
    inputs = terms.inputs_of(x, range(5), asked)
    base, most = terms.widths(range(5), asked)
    assert base == inputs.base == 3 + 2 * 3
    tried = terms._candidates(inputs)
    assert len(tried) == most - 2 * 3  # two levels of one column are never there at once


def test_of_many_records_terms_are_tried_some_rows_at_a_time_and_the_same_are_taken(monkeypatch):
    rng, a, b = covariates()
    died = rng.random(N) < special.expit(-1 + a**2)
    x = np.column_stack([a, b + rng.random(N), died + rng.random(N)])
    asked, rows, made = planned(3, ((BINARY,),), {1: 2, 2: 2}), [], OutcomeInputs.made

    def seen(inputs, atoms, extras):
        rows.append(len(atoms) if len(extras) > 2 else 0)
        return made(inputs, atoms, extras)

    monkeypatch.setattr(OutcomeInputs, "made", seen)
    whole = fit_laws(x, asked).laws[0]
    assert len(whole.inputs.extras)
    assert max(rows) == N
    rows.clear()
    monkeypatch.setattr(terms, "AT_ONCE", 400)
    some = fit_laws(x, asked).laws[0]
    assert max(rows) == 400
    np.testing.assert_array_equal(some.inputs.extras, whole.inputs.extras)
    np.testing.assert_allclose(some.coefficients, whole.coefficients, rtol=1e-9)


def test_putting_laws_right_holds_the_simulated_rows_and_what_one_law_reads_of_them_once():
    n, d = 6000, 12
    rng = np.random.default_rng(6)
    x = rng.normal(size=(n, d))
    x[:, -1] = (rng.random(n) < special.expit(x[:, :3].sum(axis=1))) + rng.random(n)
    asked = planned(d, ((d - 1,),), {d - 1: 2})
    laws = fit_laws(x, asked)
    tracemalloc.start()
    calibrated(laws, x, asked, to_covariates=lambda u: u, generator=rng)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * copies_of(n) * 4 * d


def test_the_same_records_and_seed_give_the_same_laws():
    x, outcomes = survival(500)
    one, other = (fit_flow(x, SMALL, seeded_rng(5), integer_columns=(1, 3), outcomes=outcomes).flow for _ in range(2))
    assert np.array_equal(one.inverse(x), other.inverse(x))
