"""DP-SGD: clipping is exact, a record moves a sum by no more than it may, the noise has the size that is charged."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from shared.base.randomness import seeded_rng
from shared.errors import TrainingRefusal
from shared.flows.affine import AffineAutoregressiveFlow, MaskedLayer
from shared.plans.plan import PrivateTraining, Training
from site_agent.models import private_flow
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers, masks
from site_agent.models.private_flow import ROOM, Ahead, clipped_sum, noisy, private_layers
from site_agent.models.reference_flow import NflowsFlow, torch_session

ALPHA = 1e-6
PRIVATE = PrivateTraining(rate=0.2, noise_multiplier=1.3, steps=5, clip=0.7)
SMALL = Training(flows=2, hidden=8, layers=1)


@pytest.fixture(autouse=True)
def one_thread():
    with torch_session(1):
        yield


def made(d=4, layers=1, activation="tanh", moved=0.3) -> FusedFlow:
    """Masked layers away from the identity, where all gradients are alive."""
    draws = np.random.default_rng(5)
    start = first_layers(d, flows=2, hidden=8, layers=layers, generator=draws)
    flow = FusedFlow([start], activation=activation, dtype=np.float64)
    flow.theta[0, flow.used] += moved * draws.standard_normal(int(flow.used.sum()))
    return flow


def nflows(flow: FusedFlow) -> NflowsFlow:
    return NflowsFlow(flow.layers(), activation=flow.activation, double=True)


def in_place(flow: FusedFlow, reference: NflowsFlow, gradients) -> np.ndarray:
    """Gradients of nflows' parameters as entries of the flow's own vector."""
    layers = []
    values = iter(gradients)
    for order, linears in zip(reference.orders, reference.linears(), strict=True):
        parts = [(next(values).numpy() * linear.mask.numpy(), next(values).numpy()) for linear in linears]
        layers.append(MaskedLayer(order=order, weights=tuple(w for w, _ in parts), biases=tuple(b for _, b in parts)))
    return FusedFlow([tuple(layers)], dtype=np.float64).theta[0, flow.used]


def rows(n, d=4, spread=1.0, seed=1):
    return spread * np.random.default_rng(seed).standard_normal((n, d))


def one_by_one(flow: FusedFlow, y, clip):
    """The reference: each record's gradient by nflows and autograd, clipped and added."""
    reference = nflows(flow)
    parameters = [p for linears in reference.linears() for one in linears for p in (one.weight, one.bias)]
    total, norms = np.zeros(int(flow.used.sum())), []
    for row in torch.from_numpy(y):
        each = in_place(flow, reference, torch.autograd.grad(reference.loss(row[None]).sum(), parameters))
        norms.append(np.linalg.norm(each))
        total += each * min(1.0, clip / norms[-1])
    return total, np.array(norms)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_ghost_clipping_is_the_clipped_sum_of_per_record_gradients(layers, activation):
    flow, y = made(layers=layers, activation=activation), rows(40, spread=2.0)
    expected, expected_norms = one_by_one(flow, y, 8.0)
    total, norms = clipped_sum(flow, y, 8.0)
    assert norms.min() < 8.0 < norms.max()  # some are clipped, some are not
    assert np.allclose(norms, expected_norms, rtol=1e-9, atol=0)
    assert np.abs(total - expected).max() <= 1e-9 * np.abs(expected).max()


def test_a_large_batch_is_the_sum_of_its_parts():
    flow, y = made(), rows(private_flow._CHUNK + 30)
    together, norms = clipped_sum(flow, y, 1.0)
    apart = [clipped_sum(flow, part, 1.0) for part in (y[:500], y[500:])]
    assert np.allclose(together, apart[0][0] + apart[1][0], rtol=1e-9, atol=1e-9)
    assert np.allclose(norms, np.concatenate([apart[0][1], apart[1][1]]), rtol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1.0, 1e3, 1e80])
def test_no_record_adds_more_than_the_clip_to_the_sum(spread):
    flow = made()
    for row in rows(20, spread=spread):
        alone = clipped_sum(flow, row[None], 0.7)[0]
        assert np.linalg.norm(alone) <= 0.7 * (1 + 1e-9)


def test_exchanging_one_record_moves_the_rounded_sum_by_at_most_twice_the_clip():
    """The sensitivity that the receipt is computed from, rounding and all."""
    flow, y, rng = made(), rows(25, spread=30.0), seeded_rng(1)

    class Silent:
        def lattice_gaussian_steps(self, sigma, shape, grid):
            return np.zeros(shape, dtype=np.int64)

    def rounded(batch):
        return noisy(clipped_sum(flow, batch, PRIVATE.clip * (1 - ROOM))[0], PRIVATE, Silent())

    base, largest = rounded(y), 0.0
    for k, row in enumerate(rows(25, spread=100.0, seed=int(rng.generator.integers(100)))):
        other = y.copy()
        other[k] = -y[k] if k % 2 else row
        largest = max(largest, float(np.linalg.norm(rounded(other) - base)))
    assert 0.5 * PRIVATE.clip < largest <= 2 * PRIVATE.clip


@pytest.mark.parametrize("multiplier", [0.5, 4.0, 100.0])
@pytest.mark.parametrize("weights", [3, 5_000])
def test_rounding_takes_no_more_than_the_room_that_clipping_leaves_it(multiplier, weights):
    """Two sums, each off by at most half a step in every weight: together half of what the clip gives up on both.

    The grid that noise alone would ask for grows with the noise, and would round by more than the clip.
    """
    asked = []

    class Half:
        def lattice_gaussian_steps(self, sigma, shape, grid):
            asked.append(grid)
            return np.zeros(shape, dtype=np.int64)

    private = replace(PRIVATE, noise_multiplier=multiplier)
    noisy(np.zeros(weights), private, Half())
    worst = np.full(weights, 0.4999 * asked[0])
    moved = float(np.linalg.norm(noisy(worst, private, Half()) - worst))
    assert moved == pytest.approx(0.4999 * asked[0] * math.sqrt(weights))
    assert 2 * moved <= 0.5 * (2 * private.clip * ROOM)


def test_a_record_whose_gradient_overflows_adds_nothing_and_spoils_nothing():
    flow, y = made(), rows(9)
    broken = y.copy()
    broken[2] = 1e200  # too long to have a norm, with finite entries
    broken[4, 1] = math.nan
    broken[6] = 1e308  # an infinite gradient: none of it times infinity is not none
    broken[7, 2] = -math.inf
    total, _ = clipped_sum(flow, broken, 1.0)
    expected, _ = clipped_sum(flow, y[[0, 1, 3, 5, 8]], 1.0)
    assert np.allclose(total, expected, rtol=1e-12, atol=1e-15)
    assert np.array_equal(clipped_sum(flow, y, 1.0)[0], clipped_sum(made(), y, 1.0)[0])


def test_an_empty_batch_is_a_zero_sum_and_still_gets_its_noise():
    total = clipped_sum(made(), rows(0), 1.0)[0]
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


def test_noise_drawn_ahead_is_handed_out_once_each_value_and_no_more_is_drawn(monkeypatch):
    monkeypatch.setattr(private_flow, "_BLOCK", 3000)
    asked = []

    class Counting:
        def lattice_gaussian_steps(self, sigma, shape, grid):
            asked.append(shape)
            first = sum(math.prod(before) for before in asked[:-1])
            return first + np.arange(math.prod(shape)).reshape(shape)

    ahead = Ahead(Counting(), 7)
    values = np.concatenate([ahead.lattice_gaussian_steps(1.0, (1000,), 2.0**-10) for _ in range(7)])
    assert asked == [(3, 1000), (3, 1000), (1, 1000)]
    assert np.array_equal(np.sort(values), np.arange(7000))
    assert np.array_equal(
        Ahead(seeded_rng(1), 1).lattice_gaussian_steps(1.0, (9000,), 2.0**-10),
        seeded_rng(1).lattice_gaussian_steps(1.0, (9000,), 2.0**-10),
    )


def test_noise_goes_on_every_weight_that_is_used_and_on_no_masked_one():
    layers = private_layers(np.zeros((50, 3)), SMALL, replace(PRIVATE, steps=1), seeded_rng(4))
    flow = AffineAutoregressiveFlow(mean=np.zeros(3), scale=np.eye(3), layers=layers)  # refuses what is not masked
    assert flow.d == 3
    assert all(np.count_nonzero(layer.weights[-1]) == np.count_nonzero(_mask(3)) for layer in layers)


def _mask(d):
    return masks(d, SMALL.hidden, SMALL.layers)[-1]


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
    seen, means = [], []
    monkeypatch.setattr(private_flow, "noisy", lambda total, private, rng: seen.append(total.copy()) or total + 1.0)
    step = Adam.step
    monkeypatch.setattr(Adam, "step", lambda self, g, rate: means.append(g[g != 0]) or step(self, g, rate))
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
        layers = private_layers(rows(50, 3), SMALL, PRIVATE, seeded_rng(seed))
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
