"""What a fit promises: the Gaussian start, the gate, exact levels, determinism, arrays that agree with nflows."""

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
from stage.both_sides.flows import banana, same

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError, TrainingRefusal
from shared.plans.plan import Training
from site_agent.models import flow_shape, flow_trainer
from site_agent.models.flow import FlowSettings, fit_flow, fit_megabytes, fit_seconds, refit_flow, smallest_n
from site_agent.models.flow_trainer import Trainer
from tests.benchmarks.paper.studies import gaussian_table

os.environ.setdefault("OMP_NUM_THREADS", "1")
SMALL = FlowSettings(flows=2, hidden=16, epochs=12, patience=4, final_steps=5)
PLAIN = FlowSettings(flows=2, hidden=16, epochs=12, patience=4, final_steps=5, margins="none")


def cohort(n=1500, share=0.04, seed=1):
    """A smooth column, a rare event that depends on it, and a time that depends on the event."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    event = rng.random(n) < share * np.exp(0.6 * a - 0.18)
    time = np.where(event, rng.uniform(0, 8, n), rng.uniform(7, 10, n))
    return np.column_stack([a, event + rng.random(n), time]), event


def test_gaussian_records_keep_the_gaussian_start():
    x = gaussian_table(np.random.default_rng(1), 800, 4, 0.9)
    fitted = fit_flow(x, PLAIN, seeded_rng(1))
    assert fitted.report.epochs == 0
    z = fitted.flow.inverse(x)
    assert np.allclose(z.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(np.cov(z, rowvar=False, ddof=0), np.eye(4), atol=1e-6)


def test_records_no_gaussian_fits_leave_it_and_held_back_records_gain():
    report = fit_flow(banana(), PLAIN, seeded_rng(1)).report
    assert report.epochs > 0
    assert report.gain > 2 * report.gain_se
    assert report.best_nll < report.start_nll - 0.1
    assert report.start_nll - report.best_nll == pytest.approx(report.gain, abs=1e-6)


def test_a_fitted_flow_beats_its_start_on_fresh_records():
    start = fit_flow(banana(), FlowSettings(epochs=0, margins="none"), seeded_rng(1)).flow
    fitted = fit_flow(banana(), PLAIN, seeded_rng(1)).flow
    fresh = banana(seed=2)
    assert fitted.log_prob(fresh).mean() > start.log_prob(fresh).mean() + 0.1


def test_the_gate_can_hold_a_real_gain_back():
    strict = FlowSettings(flows=2, hidden=16, epochs=3, margins="none", gate=1e6)
    assert fit_flow(banana(), strict, seeded_rng(1)).report.epochs == 0


def test_training_stops_when_held_back_records_stop_improving():
    x = gaussian_table(np.random.default_rng(1), 400, 3, 0.5)
    settings = FlowSettings(flows=2, hidden=32, epochs=200, patience=3, learning_rate=0.02, margins="none")
    assert fit_flow(x, settings, seeded_rng(1)).report.epochs_run < 60


def test_the_same_seed_gives_the_same_flow_and_another_seed_another():
    assert same(fit_flow(banana(), PLAIN, seeded_rng(5)).flow, fit_flow(banana(), PLAIN, seeded_rng(5)).flow)
    assert not same(fit_flow(banana(), PLAIN, seeded_rng(5)).flow, fit_flow(banana(), PLAIN, seeded_rng(6)).flow)


def test_torch_is_left_as_it_was():
    import torch

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        nflows = replace(PLAIN, engine="nflows", epochs=2)
        fit_flow(banana(300), nflows, seeded_rng(1))
        assert torch.get_num_threads() == 2
        with pytest.raises(TrainingRefusal):
            fit_flow(np.column_stack([banana(300), banana(300)[:, 0]]), nflows, seeded_rng(1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("layers", [1, 2])
def test_plain_arrays_agree_with_nflows(activation, layers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from nflows.distributions.normal import StandardNormal
        from nflows.flows.base import Flow
        from nflows.transforms.base import CompositeTransform
        from nflows.transforms.permutations import Permutation
    import torch

    from shared.flows.affine import AffineAutoregressiveFlow
    from site_agent.models.reference_flow import torch_session

    d = 5
    settings = FlowSettings(flows=3, hidden=16, layers=layers, epochs=4, activation=activation, engine="nflows")
    with torch_session(1):
        trainer = flow_trainer.Trainer(d, settings, 4)
        trainer.run(np.random.default_rng(1).gamma(2.0, size=(400, d)) - 2, 64, 20, 5, None)
        steps = []
        for order, module in zip(trainer.engine.orders, trainer.engine.modules, strict=True):
            steps += [
                Permutation(torch.tensor(order.copy())),
                module.double(),
                Permutation(torch.tensor(np.argsort(order))),
            ]
        reference = Flow(CompositeTransform(steps), StandardNormal([d]))
        ours = AffineAutoregressiveFlow(
            mean=np.zeros(d), scale=np.eye(d), layers=trainer.layers(), activation=activation
        )
        x = np.random.default_rng(2).normal(size=(200, d))
        with torch.no_grad():
            z, _ = reference._transform(torch.tensor(x))
            log_prob = reference.log_prob(torch.tensor(x)).numpy()
            back = reference._transform.inverse(torch.tensor(x))[0].numpy()
    assert np.allclose(ours.inverse(x), z.numpy(), rtol=0, atol=1e-6)
    assert np.allclose(ours.log_prob(x), log_prob, rtol=0, atol=1e-6)
    assert np.allclose(ours.forward(x), back, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ["auto", "nflows"])
def test_the_trainers_own_likelihood_is_the_flows(engine):
    from shared.flows.affine import AffineAutoregressiveFlow

    settings = FlowSettings(flows=3, hidden=16, epochs=4, engine=engine)
    y = np.random.default_rng(1).gamma(2.0, size=(300, 3)) - 2
    trainer = flow_trainer.Trainer(3, settings, 4)
    trainer.run(y, 64, 20, 5, None)
    flow = AffineAutoregressiveFlow(mean=np.zeros(3), scale=np.eye(3), layers=trainer.layers())
    assert np.allclose(-trainer.engine.nll(y), flow.log_prob(y), rtol=1e-4, atol=1e-4)


def test_without_a_step_the_masked_layers_are_the_identity():
    layers = flow_trainer.Trainer(3, FlowSettings(), 1).layers()
    v = np.random.default_rng(1).normal(size=(3, 20))
    for layer in layers:
        assert np.allclose(layer.to_noise(v, "tanh")[0], v, atol=1e-6)


def test_a_rare_event_keeps_its_share_and_its_association():
    x, event = cohort(n=4000)
    flow = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(1,)).flow
    drawn = flow.forward(np.random.default_rng(2).normal(size=(200_000, 3)))
    released = drawn[:, 1] >= 1
    assert released.mean() == pytest.approx(event.mean(), abs=0.004)
    # Log odds ratio per unit of the smooth column, from the means of a normal covariate.
    ours = drawn[released, 0].mean() - drawn[~released, 0].mean()
    real = x[event, 0].mean() - x[~event, 0].mean()
    assert ours == pytest.approx(real, abs=0.08)


def test_a_time_keeps_its_law_with_and_without_the_event():
    x, event = cohort(n=4000, share=0.2)
    flow = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(1,)).flow
    drawn = flow.forward(np.random.default_rng(2).normal(size=(50_000, 3)))
    for mine, theirs in ((drawn[:, 1] >= 1, event), (drawn[:, 1] < 1, ~event)):
        ours, real = (np.quantile(v, [0.1, 0.5, 0.9]) for v in (drawn[mine, 2], x[theirs, 2]))
        assert np.allclose(ours, real, atol=0.35)


@pytest.mark.parametrize("modelled", [0, 12])
def test_levels_keep_their_frequencies(modelled):
    rng = np.random.default_rng(1)
    level = rng.choice(5, 3000, p=[0.7, 0.2, 0.06, 0.03, 0.01])
    x = np.column_stack([rng.normal(size=3000) + level, level + rng.random(3000)])
    settings = FlowSettings(flows=0, modelled_levels=modelled)
    flow = fit_flow(x, settings, seeded_rng(1), integer_columns=(1,)).flow
    drawn = np.floor(flow.forward(rng.normal(size=(100_000, 2))))[:, 1]
    assert drawn.min() >= 0
    assert drawn.max() <= 4
    share = np.bincount(drawn.astype(int), minlength=5) / len(drawn)
    assert np.allclose(share, np.bincount(level) / 3000, atol=0.012)


@pytest.mark.parametrize("levels", [2, 5])
def test_the_law_of_a_level_is_the_same_by_either_method_of_fitting(levels, monkeypatch):
    rng = np.random.default_rng(1)
    a = rng.normal(size=(500, 2))
    level = np.clip(np.floor(a[:, 0] + rng.normal(size=500) + levels / 2), 0, levels - 1)
    y = np.column_stack([a, level + rng.random(500)])
    newton = flow_shape.level_model(y, 2, levels, (0, 1), (0, 0))
    monkeypatch.setattr(flow_shape, "_NEWTON", 0)
    other = flow_shape.level_model(y, 2, levels, (0, 1), (0, 0))
    assert np.allclose(newton.cumulative(y), other.cumulative(y), rtol=0, atol=1e-3)
    # The intercept is hardly penalised: every level is as frequent as it is.
    assert np.allclose(np.diff(newton.cumulative(y).mean(axis=0)), np.bincount(level.astype(int)) / 500, atol=1e-4)


@pytest.mark.parametrize("rare", [False, True])
def test_the_law_of_a_level_is_the_same_from_wherever_its_fit_begins(rare, monkeypatch):
    """A part of many records says where to begin; one that has not all the levels says it wrongly."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(2_000, 2))
    level = np.clip(np.floor(a[:, 0] + rng.normal(size=2_000) + 1.5), 0, 2)
    if rare:
        level = np.minimum(level, 1)
        level[1:40:2] = 2  # none of every tenth
    y = np.column_stack([a, level + rng.random(2_000)])
    cold = flow_shape.level_model(y, 2, 3, (0, 1), (0, 0))
    monkeypatch.setattr(flow_shape, "_FEW", 200)
    warm = flow_shape.level_model(y, 2, 3, (0, 1), (0, 0))
    assert np.allclose(warm.cumulative(y), cold.cumulative(y), rtol=0, atol=1e-7)


def test_of_many_records_a_part_chooses_how_long_to_train_and_all_are_trained_on(monkeypatch):
    rng = np.random.default_rng(4)
    a = rng.normal(size=(2_000, 2))
    x = np.column_stack([a[:, 0], a[:, 0] ** 2 + 0.3 * a[:, 1], rng.random(2_000) + (rng.random(2_000) < 0.3)])
    whole = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(2,))
    monkeypatch.setattr("site_agent.models.flow._SEARCHED", 500)
    taken = []
    run = Trainer.run

    def counted(self, train, batch, steps, *others, **named):
        taken.append((len(train), batch, steps))
        return run(self, train, batch, steps, *others, **named)

    monkeypatch.setattr(Trainer, "run", counted)
    part = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(2,))
    assert (whole.report.held_back, part.report.held_back) == (500, 125)
    ((rows, batch, steps),) = taken
    assert (rows, steps) == (2_000, part.report.epochs * (375 // batch))
    assert steps > 0
    taken.clear()
    fit_flow(x, replace(SMALL, validation=0.0), seeded_rng(1), integer_columns=(2,))
    assert taken[0][2] == SMALL.epochs * (2_000 // taken[0][1])  # nothing chooses, so that all passes are taken
    # Levels, margins and whitening are those of all records either way.
    for one, other in zip(*(flow.flow.second.first.models for flow in (whole, part)), strict=True):
        assert np.array_equal(one.coefficients, other.coefficients)


def test_how_the_likelihood_of_levels_bends_is_summed_over_every_block_of_records(monkeypatch):
    rng = np.random.default_rng(3)
    features, odds = rng.normal(size=(500, 3)), rng.exponential(size=(500, 4))
    share = odds / odds.sum(axis=1, keepdims=True)
    weights = share[:, :, None] * (np.eye(4) - share[:, None, :])
    monkeypatch.setattr(flow_shape, "_AT_ONCE", 64)
    found = flow_shape._curvature(features, share)
    assert np.allclose(found, np.einsum("nkj,na,nb->kajb", weights, features, features) / 500, rtol=0, atol=1e-12)


def test_a_levelled_column_with_one_level_keeps_it():
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=200), rng.random(200)])
    flow = fit_flow(x, SMALL, seeded_rng(1), integer_columns=(1,)).flow
    assert (np.floor(flow.forward(rng.normal(size=(20_000, 2)))[:, 1]) == 0).all()


def test_a_skewed_margin_is_reproduced():
    x = np.random.default_rng(1).lognormal(0, 1, (2000, 2))
    flow = fit_flow(x, SMALL, seeded_rng(1)).flow
    drawn = flow.forward(np.random.default_rng(2).normal(size=(50_000, 2)))
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    assert np.allclose(np.quantile(drawn[:, 0], levels), np.quantile(x[:, 0], levels), rtol=0.06)


@pytest.mark.parametrize("modelled", [0, 12])
def test_a_level_no_record_has_gets_a_latent_that_is_large_but_not_absurd(modelled):
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=300), rng.integers(0, 4, 300) + rng.random(300)])
    settings = FlowSettings(flows=0, modelled_levels=modelled)
    flow = fit_flow(x, settings, seeded_rng(1), integer_columns=(1,)).flow
    beyond = np.array([[0.0, 4.5], [0.0, 6.5], [0.0, -0.5]])
    assert np.abs(flow.inverse(beyond)).max() < 20
    assert np.allclose(flow.forward(flow.inverse(beyond)), beyond)


def test_a_value_beyond_nearly_tied_extremes_gets_a_latent_that_is_not_absurd():
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=300), rng.normal(size=300)])
    x[np.argsort(x[:, 0])[-8:], 0] = 3 + 1e-9 * np.arange(8)
    flow = fit_flow(x, FlowSettings(flows=0), seeded_rng(1)).flow
    assert np.abs(flow.inverse(np.array([[3.5, 0.0]]))).max() < 20


def test_ties_in_a_smooth_column_are_no_obstacle():
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(120, 15, 500).round(-1), rng.normal(size=500)])
    flow = fit_flow(x, SMALL, seeded_rng(1)).flow
    assert np.allclose(flow.forward(flow.inverse(x)), x, atol=1e-8)


@pytest.mark.parametrize("margins", ["normal_scores", "none"])
def test_one_column_is_enough(margins):
    x = np.random.default_rng(1).normal(5, 2, (200, 1))
    settings = FlowSettings(flows=2, hidden=8, epochs=2, margins=margins)
    flow = fit_flow(x, settings, seeded_rng(1)).flow
    assert np.allclose(flow.forward(flow.inverse(x)), x)


def test_records_are_untouched():
    x, _ = cohort(n=200)
    kept = x.copy()
    fit_flow(x, SMALL, seeded_rng(1), integer_columns=(1,))
    assert np.array_equal(x, kept)


@pytest.mark.fault("F22")
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[: smallest_n(2) - 1], "at least 40 records"),
        (lambda x: np.where(np.arange(len(x))[:, None] == 3, np.nan, x), "finite, got 1 that are not"),
        (lambda x: x * [1, 0] + [0, 7], "must vary, got one value throughout in column 1"),
        (lambda x: np.column_stack([x, 2 * x[:, 0] + 1]), "function of the others"),
    ],
)
@pytest.mark.parametrize("settings", [SMALL, PLAIN], ids=["normal scores", "none"])
def test_what_cannot_be_fitted_is_refused_with_a_next_step(spoil, message, settings):
    with pytest.raises(TrainingRefusal, match=message) as refusal:
        fit_flow(spoil(banana(300)), settings, seeded_rng(1))
    assert refusal.value.next_step
    assert refusal.value.code == "E_TRAINING"


def test_a_refusal_names_no_value():
    x = banana(300)
    x[:, 1] = 86.753
    with pytest.raises(TrainingRefusal) as refusal:
        fit_flow(x, SMALL, seeded_rng(1))
    assert "86" not in str(refusal.value)


@pytest.mark.fault("F22")
def test_a_diverging_likelihood_is_refused(monkeypatch):
    monkeypatch.setattr(flow_trainer.Trainer, "_cosine", lambda self, epoch: 1e30)
    with pytest.raises(TrainingRefusal, match="stay finite"):
        fit_flow(banana(300), PLAIN, seeded_rng(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"flows": -1},
        {"hidden": 0},
        {"epochs": 1.5},
        {"learning_rate": 0.0},
        {"validation": 0.95},
        {"gate": -1.0},
        {"margins": "kernel"},
        {"activation": "sine"},
        {"batch": 0},
        {"threads": 0},
        {"engine": "zuko"},
        {"family": "cubic"},
        {"spectral": True, "engine": "nflows"},
    ],
)
def test_settings_outside_their_domain_are_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        FlowSettings(**wrong)


def test_a_matrix_is_asked_for():
    with pytest.raises(ParameterError, match="matrix"):
        fit_flow(np.zeros(5), SMALL, seeded_rng(1))
    with pytest.raises(ParameterError, match="integer_columns"):
        fit_flow(banana(100), SMALL, seeded_rng(1), integer_columns=(2,))


def test_progress_rises_from_nothing_to_everything():
    seen = []
    fit_flow(banana(), PLAIN, seeded_rng(1), progress=lambda *told: seen.append(told))
    shares = [share for _, share, _ in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert [stage for k, (stage, _, _) in enumerate(seen) if k == 0 or seen[k - 1][0] != stage] == [
        "margins",
        "train",
        "refit",
        "done",
    ]
    assert all(left is None or left >= 0 for _, _, left in seen)


def test_a_refit_takes_the_chosen_passes_and_holds_nothing_back():
    fitted = fit_flow(banana(), PLAIN, seeded_rng(1))
    again = refit_flow(banana(seed=3), PLAIN, seeded_rng(2), epochs=fitted.epochs).report
    assert again.epochs == fitted.epochs
    assert again.held_back == 0
    assert again.gain is None
    with pytest.raises(ParameterError, match="epochs"):
        refit_flow(banana(), PLAIN, seeded_rng(1), epochs=-1)


def test_a_refit_follows_the_same_schedule_as_the_fit():
    fitted = fit_flow(banana(), PLAIN, seeded_rng(1))
    again = refit_flow(banana(), PLAIN, seeded_rng(1), epochs=fitted.epochs)
    assert same(fitted.flow, again.flow)


def test_a_plans_training_is_settings_enough():
    plan = Training(flows=2, hidden=16, epochs=3)
    assert same(
        fit_flow(banana(), plan, seeded_rng(1)).flow,
        fit_flow(banana(), FlowSettings(flows=2, hidden=16, epochs=3), seeded_rng(1)).flow,
    )


def test_without_refit_the_flow_is_the_one_that_was_validated():
    settings = FlowSettings(flows=2, hidden=16, epochs=12, margins="none", refit=False)
    fitted = fit_flow(banana(), settings, seeded_rng(1))
    order = seeded_rng(1).generator
    order.integers(2**62)
    held = order.permutation(1200)[: fitted.report.held_back]
    assert -fitted.flow.log_prob(banana()[held]).mean() == pytest.approx(fitted.report.best_nll, abs=1e-4)


def test_cost_grows_with_records_and_epochs():
    few, more = (FlowSettings(flows=2, hidden=16, epochs=e) for e in (5, 500))
    assert fit_seconds(500, 4, more) > fit_seconds(500, 4, few) > 0
    assert fit_megabytes(10**6, 4, few) > fit_megabytes(500, 4, few) > 0
    for cost in (fit_seconds, fit_megabytes):
        with pytest.raises(ParameterError, match="at least 1"):
            cost(0, 4, few)
