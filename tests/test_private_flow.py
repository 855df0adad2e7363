"""DP-SGD: clipping is exact, a record moves a sum by no more than it may, the noise has the size that is charged."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from shared.errors import TrainingRefusal
from shared.flows import AffineAutoregressiveFlow
from shared.plan import PrivateTraining, Training
from shared.randomness import seeded_rng
from site_agent.models import private_flow
from site_agent.models.flow import FlowSettings, Trainer, torch_session
from site_agent.models.private_flow import ROOM, clipped_sum, noisy, private_layers

ALPHA = 1e-6
PRIVATE = PrivateTraining(rate=0.2, noise_multiplier=1.3, steps=5, clip=0.7)
SMALL = Training(flows=2, hidden=8, layers=1)


@pytest.fixture(autouse=True)
def one_thread():
    with torch_session(1):
        yield


def trainer(d=4, layers=1, activation="tanh", moved=0.3) -> Trainer:
    """Masked layers away from the identity, where all gradients are alive."""
    made = Trainer(d, FlowSettings(flows=2, hidden=8, layers=layers, activation=activation), 3)
    made.modules.double()
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.modules.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=draws, dtype=torch.float64))
    return made


def rows(n, d=4, spread=1.0, seed=1):
    return torch.from_numpy(spread * np.random.default_rng(seed).standard_normal((n, d)))


def one_by_one(made: Trainer, y, clip):
    """The reference: each record's gradient by autograd, clipped and added."""
    parameters = list(made.modules.parameters())
    total, norms = [torch.zeros_like(p) for p in parameters], []
    for row in y:
        each = torch.autograd.grad(made.nll(row[None]).sum(), parameters)
        norm = torch.sqrt(sum((g**2).sum() for g in each))
        norms.append(norm)
        for sum_, g in zip(total, each, strict=True):
            sum_ += g * min(1.0, clip / float(norm))
    return total, torch.stack(norms)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_ghost_clipping_is_the_clipped_sum_of_per_record_gradients(layers, activation):
    made, y = trainer(layers=layers, activation=activation), rows(40, spread=2.0)
    expected, expected_norms = one_by_one(made, y, 8.0)
    total, norms = clipped_sum(made, y, 8.0)
    assert norms.min() < 8.0 < norms.max()  # some are clipped, some are not
    assert torch.allclose(norms, expected_norms, rtol=1e-9, atol=0)
    for a, b in zip(total, expected, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max() + 1e-12


def test_it_agrees_with_vmap_of_torch_func():
    made, y = trainer(layers=2), rows(30)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = made.modules

        def forward(self, row):
            return made.nll(row[None])[0]

    loss = Loss()
    values = {name: p.detach() for name, p in loss.named_parameters()}
    each = torch.func.vmap(
        torch.func.grad(lambda given, row: torch.func.functional_call(loss, given, (row,))), in_dims=(None, 0)
    )(values, y)
    norms = torch.sqrt(sum((g.flatten(1) ** 2).sum(1) for g in each.values()))
    total, ours = clipped_sum(made, y, 1.0)
    assert torch.allclose(norms, ours, rtol=1e-9, atol=0)
    for name, sum_ in zip(values, total, strict=True):
        weighted = torch.einsum("i,i...->...", (1.0 / norms).clamp(max=1.0), each[name])
        assert torch.allclose(sum_, weighted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 1.0, 1e3, 1e80])
def test_no_record_adds_more_than_the_clip_to_the_sum(spread):
    made = trainer()
    shape = private_flow._Shape(made)
    for row in rows(20, spread=spread):
        alone = shape.flat(clipped_sum(made, row[None], 0.7)[0])
        assert np.linalg.norm(alone) <= 0.7 * (1 + 1e-9)


def test_exchanging_one_record_moves_the_rounded_sum_by_at_most_twice_the_clip():
    """The sensitivity that the receipt is computed from, rounding and all."""
    made, y = trainer(), rows(25, spread=30.0)
    shape, rng = private_flow._Shape(made), seeded_rng(1)

    class Silent:
        def lattice_gaussian_steps(self, sigma, shape, grid):
            return np.zeros(shape, dtype=np.int64)

    def rounded(batch):
        return noisy(shape.flat(clipped_sum(made, batch, PRIVATE.clip * (1 - ROOM))[0]), PRIVATE, Silent())

    base, largest = rounded(y), 0.0
    for k, row in enumerate(rows(25, spread=100.0, seed=int(rng.generator.integers(100)))):
        other = y.clone()
        other[k] = -y[k] if k % 2 else row
        largest = max(largest, float(np.linalg.norm(rounded(other) - base)))
    assert 0.5 * PRIVATE.clip < largest <= 2 * PRIVATE.clip


def test_a_record_whose_gradient_overflows_adds_nothing_and_spoils_nothing():
    made, y = trainer(), rows(6)
    broken = y.clone()
    broken[2] = 1e200
    broken[4, 1] = math.nan
    total, _ = clipped_sum(made, broken, 1.0)
    expected, _ = clipped_sum(made, y[[0, 1, 3, 5]], 1.0)
    for a, b in zip(total, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_an_empty_batch_is_a_zero_sum_and_still_gets_its_noise():
    made = trainer()
    shape = private_flow._Shape(made)
    total = shape.flat(clipped_sum(made, rows(0), 1.0)[0])
    assert not total.any()
    assert np.count_nonzero(noisy(total, PRIVATE, seeded_rng(1))) > 0.9 * total.size


def test_the_noise_has_the_standard_deviation_that_is_charged_and_lies_on_the_grid():
    """A tenth more or less would be found: 40,000 draws, both tails at 1e-6."""
    noise = noisy(np.zeros(40_000), PRIVATE, seeded_rng(2))
    sigma = PRIVATE.noise_multiplier * PRIVATE.clip
    square = float(((noise / sigma) ** 2).sum())
    assert ALPHA < stats.chi2.cdf(square, noise.size) < 1 - ALPHA
    assert stats.chi2.cdf(square / 1.1**2, noise.size) < ALPHA
    assert stats.chi2.sf(square * 1.1**2, noise.size) < ALPHA
    assert np.array_equal(np.rint(noise * 2.0**30), noise * 2.0**30)


def test_noise_goes_on_every_weight_that_is_used_and_on_no_masked_one():
    layers = private_layers(np.zeros((50, 3)), SMALL, replace(PRIVATE, steps=1), seeded_rng(4))
    flow = AffineAutoregressiveFlow(mean=np.zeros(3), scale=np.eye(3), layers=layers)  # refuses what is not masked
    assert flow.d == 3
    assert all(np.count_nonzero(layer.weights[-1]) == np.count_nonzero(_mask(3)) for layer in layers)


def _mask(d):
    return Trainer(d, FlowSettings.of(SMALL), 0).modules[0].autoregressive_net.final_layer.mask.numpy()


def test_a_poisson_sample_takes_each_person_at_the_planned_rate_on_their_own():
    draws = np.array([seeded_rng(seed).chosen(0.2, 400) for seed in range(100)])
    low, high = stats.binom.ppf([ALPHA / 2, 1 - ALPHA / 2], draws.size, 0.2)
    assert low <= draws.sum() <= high
    sizes = draws.sum(axis=1)
    # A fixed batch size would have no variance: the size itself must be binomial.
    assert 0.4 < sizes.var() / (400 * 0.2 * 0.8) < 2.0
    assert seeded_rng(1).chosen(1.0, 7).all()
    assert not seeded_rng(1).chosen(0.0, 7).any()


def test_the_divisor_is_the_expected_batch_not_the_drawn_one(monkeypatch):
    """A step on an empty sample moves weights exactly as far as the noise says."""
    seen = []
    monkeypatch.setattr(private_flow, "noisy", lambda total, private, rng: seen.append(total.copy()) or total + 1.0)
    put = private_flow._Shape.put
    means = []
    monkeypatch.setattr(private_flow._Shape, "put", lambda self, mean: means.append(mean.copy()) or put(self, mean))
    y = np.random.default_rng(1).standard_normal((60, 3))
    private_layers(y, SMALL, PRIVATE, seeded_rng(4))
    assert len(means) == PRIVATE.steps
    for total, mean in zip(seen, means, strict=True):
        assert np.allclose(mean, (total + 1.0) / (0.2 * 60))


def test_every_step_is_taken_whatever_the_records_look_like():
    told = []
    private_layers(np.full((40, 3), 1e6), SMALL, PRIVATE, seeded_rng(4), progress=told.append)
    assert told == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_the_same_seed_trains_the_same_layers_and_another_seed_others():
    def trained(seed):
        layers = private_layers(rows(50, 3).numpy(), SMALL, PRIVATE, seeded_rng(seed))
        return np.concatenate([w.ravel() for layer in layers for w in layer.weights])

    assert np.array_equal(trained(1), trained(1))
    assert not np.array_equal(trained(1), trained(2))


def test_training_with_hardly_any_noise_finds_a_dependence():
    rng = np.random.default_rng(1)
    a = rng.standard_normal(600)
    y = np.column_stack([a, 0.8 * a + 0.6 * rng.standard_normal(600)])
    private = PrivateTraining(rate=0.5, noise_multiplier=0.01, steps=150, clip=5.0)
    layers = private_layers(y, replace(SMALL, learning_rate=0.02), private, seeded_rng(1))
    flow = AffineAutoregressiveFlow(mean=np.zeros(2), scale=np.eye(2), layers=layers)
    start = AffineAutoregressiveFlow(mean=np.zeros(2), scale=np.eye(2))
    # The mutual information is 0.51 nats.
    assert flow.log_prob(y).mean() - start.log_prob(y).mean() == pytest.approx(0.51, abs=0.1)


def test_a_step_of_more_records_than_the_room_for_rounding_was_calculated_for_is_refused():
    y = np.zeros((private_flow.LARGEST_BATCH * 2, 2))
    private = PrivateTraining(rate=0.6, noise_multiplier=1.0, steps=1)
    with pytest.raises(TrainingRefusal, match="at most 40000 records"):
        private_layers(y, Training(), private, seeded_rng(1))
