"""Fitting: the Gaussian start, early stopping, rare levels, and the same density as nflows gives."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import ParameterError, TrainingRefusal
from shared.plan import Training
from shared.randomness import seeded_rng
from site_agent.models import flow as flow_module
from site_agent.models.flow import estimate_cost, fit_flow, refit_flow

SMALL = Training(flows=2, hidden=16, epochs=30, patience=5, learning_rate=5e-3)


def banana(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.normal(0, 1, n)
    return np.column_stack([a, 0.8 * a**2 + 0.3 * rng.normal(0, 1, n)])


def test_the_plain_arrays_give_the_density_that_nflows_gives(monkeypatch):
    import torch

    caught = {}

    def keep(flow, settings):
        caught["flow"] = flow
        return original(flow, settings)

    original = flow_module._plain
    monkeypatch.setattr(flow_module, "_plain", keep)
    x = banana(400, 1)
    settings = Training(flows=3, hidden=12, layers=2, epochs=4, margins="none")
    fitted = refit_flow(x, settings, seeded_rng(1), epochs=4)
    y = fitted.flow.steps[0].inverse(x)
    with torch.no_grad():
        reference = caught["flow"].double().log_prob(torch.from_numpy(y)).numpy()
        latent = caught["flow"].transform_to_noise(torch.from_numpy(y)).numpy()
    jacobian = -np.log(np.diag(fitted.flow.steps[0].factor)).sum()
    np.testing.assert_allclose(fitted.flow.log_prob(x), reference + jacobian, atol=1e-6)
    np.testing.assert_allclose(fitted.flow.inverse(x), latent, atol=1e-6)
    np.testing.assert_allclose(fitted.flow.forward(latent), x, atol=1e-6)


def test_gaussian_records_keep_the_gaussian_fit():
    rng = np.random.default_rng(2)
    x = rng.multivariate_normal([1, 2], [[1, 0.9], [0.9, 1]], 600)
    fitted = fit_flow(x, Training(flows=2, hidden=16, epochs=8, patience=3, margins="none"), seeded_rng(2))
    assert fitted.epochs == 0
    z = fitted.flow.inverse(x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(z, rowvar=False, bias=True), np.eye(2), atol=1e-4)


def test_curved_records_are_explained_better_than_by_a_gaussian():
    fitted = fit_flow(banana(1500, 3), SMALL, seeded_rng(3))
    gaussian = refit_flow(banana(1500, 3), SMALL, seeded_rng(3), epochs=0)
    fresh = banana(3000, 4)
    assert fitted.epochs > 0
    assert fitted.flow.log_prob(fresh).mean() > gaussian.flow.log_prob(fresh).mean() + 0.2


def test_the_same_rng_gives_the_same_flow_and_leaves_torch_as_it_was():
    import torch

    x = banana(300, 5)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two = (refit_flow(x, SMALL, seeded_rng(9), epochs=3) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(one.flow.inverse(x), two.flow.inverse(x))


def test_a_rare_level_keeps_its_frequency():
    rng = np.random.default_rng(6)
    event = (rng.random(2000) < 0.04).astype(float)
    x = np.column_stack([event + rng.random(2000), rng.normal(0, 1, 2000) + event])
    fitted = fit_flow(x, SMALL, seeded_rng(6), integer_columns=(0,))
    drawn = fitted.flow.forward(rng.normal(0, 1, (40_000, 2)))[:, 0]
    assert (drawn >= 1).mean() == pytest.approx(event.mean(), abs=0.01)


@pytest.mark.parametrize("integer", [False, True])
def test_a_constant_column_is_released_as_the_constant(integer):
    rng = np.random.default_rng(7)
    constant = 1 + rng.random(200) if integer else np.full(200, 0.25)
    x = np.column_stack([constant, rng.normal(0, 1, 200)])
    fitted = fit_flow(x, SMALL, seeded_rng(7), integer_columns=(0,) if integer else ())
    drawn = fitted.flow.forward(rng.normal(0, 1, (500, 2)))[:, 0]
    if integer:
        assert (np.floor(drawn) == 1).mean() > 0.98
    else:
        np.testing.assert_allclose(drawn, 0.25, atol=1e-3)


def test_progress_goes_from_start_to_end_and_the_cost_is_told_before():
    told = []
    fit_flow(banana(300, 8), SMALL, seeded_rng(8), progress=lambda *what: told.append(what))
    shares = [share for stage, share, _ in told if stage == "training"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(left is None or left >= 0 for _, _, left in told)
    small, large = estimate_cost(500, 5, SMALL), estimate_cost(50_000, 5, SMALL)
    assert small[0] < large[0]
    assert small[1] < large[1]


def test_too_few_rows_and_values_that_are_not_finite_are_refused():
    with pytest.raises(TrainingRefusal, match="at least 20 rows"):
        fit_flow(banana(19, 1), SMALL, seeded_rng(1))
    with pytest.raises(ParameterError, match="finite"):
        fit_flow(np.full((50, 2), np.nan), SMALL, seeded_rng(1))


def test_a_loss_that_runs_away_is_a_refusal(monkeypatch):
    def explode(*_):
        return np.full((300, 2), np.float32(np.nan))

    monkeypatch.setattr(flow_module, "_latents", explode)
    with pytest.raises(TrainingRefusal, match="stay finite"):
        refit_flow(banana(300, 1), SMALL, seeded_rng(1), epochs=2)
