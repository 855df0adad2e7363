"""The fast path is nflows: same density, same gradient, same steps, same weights, and the round trip closes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.base.randomness import seeded_rng
from shared.errors import SchemaRefusal
from shared.flows.affine import AffineAutoregressiveFlow, MaskedLayer
from shared.flows.chain import from_arrays, to_arrays
from shared.plans.plan import Training
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers, masks
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.models.flow_trainer import SPLINE_BINS
from site_agent.models.reference_flow import NflowsFlow, torch_session

CASES = [
    # d, hidden, hidden layers, flows, activation
    (1, 4, 1, 2, "tanh"),
    (2, 7, 1, 3, "relu"),
    (5, 32, 1, 5, "tanh"),
    (5, 16, 2, 2, "tanh"),
    (6, 32, 3, 2, "relu"),
    (20, 24, 1, 4, "tanh"),
]
cases = pytest.mark.parametrize(("d", "hidden", "depth", "flows", "activation"), CASES)


@pytest.fixture(autouse=True)
def one_thread():
    with torch_session(1):
        yield


def start(d, hidden=8, depth=1, flows=2, seed=1, moved=0.3, orders=None) -> tuple[MaskedLayer, ...]:
    """Layers away from the identity, their columns read in any orders."""
    rng = np.random.default_rng(seed)
    layers = first_layers(d, flows=flows, hidden=hidden, layers=depth, generator=rng)
    flow = FusedFlow([layers], dtype=np.float64)
    flow.theta[0, flow.used] += moved / np.sqrt(depth) * rng.standard_normal(int(flow.used.sum()))
    orders = orders or [rng.permutation(d) for _ in layers]
    return tuple(replace(layer, order=order) for layer, order in zip(flow.layers(), orders, strict=True))


def pair(layers, activation="tanh") -> tuple[FusedFlow, NflowsFlow]:
    return FusedFlow([layers], activation=activation, dtype=np.float64), NflowsFlow(
        layers, activation=activation, double=True
    )


def records(n, d, seed=2):
    return np.random.default_rng(seed).gamma(2.0, size=(n, d)) - 2


def entries(reference: NflowsFlow, values) -> np.ndarray:
    """A value per parameter of nflows, in the places that `FusedFlow.theta` has for them."""
    layers, given = [], iter(values)
    for order, linears in zip(reference.orders, reference.linears(), strict=True):
        parts = [(next(given).numpy() * linear.mask.numpy(), next(given).numpy()) for linear in linears]
        layers.append(MaskedLayer(order=order, weights=tuple(w for w, _ in parts), biases=tuple(b for _, b in parts)))
    return FusedFlow([tuple(layers)], dtype=np.float64).theta[0]


@cases
def test_density_gradient_and_round_trip_are_those_of_nflows(d, hidden, depth, flows, activation):
    layers, y = start(d, hidden, depth, flows), records(300, d)
    fast, nflows = pair(layers, activation)
    assert np.allclose(fast.nll(y[None])[0], nflows.nll(y), rtol=0, atol=1e-6)

    parameters = [p for linears in nflows.linears() for one in linears for p in (one.weight, one.bias)]
    gradient = torch.autograd.grad(nflows.loss(torch.from_numpy(y)).mean(), parameters)
    assert np.abs(fast.differentiate(y[None])[0] - entries(nflows, gradient)).max() < 1e-6

    flow = AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d), layers=fast.layers(), activation=activation)
    assert np.allclose(-fast.nll(y[None])[0], flow.log_prob(y), rtol=0, atol=1e-6)
    z = np.random.default_rng(3).standard_normal((300, d))
    assert np.allclose(flow.inverse(flow.forward(z)), z, rtol=0, atol=1e-6)


@cases
def test_weights_convert_both_ways_without_loss(d, hidden, depth, flows, activation):
    layers = start(d, hidden, depth, flows)
    fast, nflows = pair(layers, activation)
    for mine, theirs, given in zip(fast.layers(), nflows.layers(), layers, strict=True):
        for one in (mine, theirs):
            assert np.array_equal(one.order, given.order)
            for a, b in zip((*one.weights, *one.biases), (*given.weights, *given.biases), strict=True):
                assert np.array_equal(a, b)


@pytest.mark.parametrize(("d", "hidden", "depth", "flows", "activation"), [CASES[2], CASES[3], CASES[4]])
def test_fifty_steps_of_adam_are_those_of_nflows(d, hidden, depth, flows, activation):
    fast, nflows = pair(start(d, hidden, depth, flows, moved=0.05), activation)
    adam, y = Adam(fast.theta), records(400, d)
    rng = np.random.default_rng(4)
    for step in range(50):
        rows, rate = rng.permutation(400)[:64], 3e-3 * (1 - step / 100)
        adam.step(fast.differentiate(y[rows][None]), rate)
        nflows.step(y[rows], rate)
    assert fast.nll(y[None]).mean() < FusedFlow([start(d, hidden, depth, flows, moved=0.05)]).nll(y[None]).mean()
    # Weights of about 1 that have moved by about 0.1.
    assert np.abs(fast.theta - FusedFlow([nflows.layers()], dtype=np.float64).theta).max() < 1e-6


def test_flows_in_a_stack_are_what_they_are_alone():
    orders = [np.array([2, 0, 1]), np.array([1, 2, 0])]
    members = [start(3, seed=seed, orders=orders) for seed in (1, 2, 3)]
    y = np.stack([records(1500, 3, seed) for seed in (1, 2, 3)])
    stack = FusedFlow(members, dtype=np.float64)
    together = Adam(stack.theta)
    for _ in range(5):
        together.step(stack.differentiate(y), 1e-2)
    for place, member in enumerate(members):
        alone = FusedFlow([member], dtype=np.float64)
        adam = Adam(alone.theta)
        for _ in range(5):
            adam.step(alone.differentiate(y[place][None]), 1e-2)
        assert np.allclose(stack.theta[place], alone.theta[0], rtol=0, atol=1e-9)
        assert np.allclose(stack.nll(y)[place], alone.nll(y[place][None])[0], rtol=0, atol=1e-9)
        for a, b in zip(stack.layers(place), alone.layers(), strict=True):
            assert all(np.allclose(v, w, rtol=0, atol=1e-9) for v, w in zip(a.weights, b.weights, strict=True))


def test_masked_weights_stay_at_nothing():
    flow = FusedFlow([start(5)])
    adam = Adam(flow.theta)
    for _ in range(3):
        adam.step(flow.differentiate(records(50, 5)[None]), 0.1)
    assert not flow.theta[0, ~flow.used].any()
    assert np.count_nonzero(flow.theta[0, flow.used]) == flow.used.sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scales_far_out_neither_overflow_nor_lose_their_gradient(dtype):
    (layer,) = start(2, flows=1)
    for shift in (-80.0, 17.0, 40.0, 900.0):
        biases = (*layer.biases[:-1], layer.biases[-1] + np.tile([shift, 0.0], 2))
        moved = replace(layer, biases=biases)
        flow, y = FusedFlow([(moved,)], dtype=dtype), records(20, 2) / 100
        exact = AffineAutoregressiveFlow(mean=np.zeros(2), scale=np.eye(2), layers=(moved,))
        assert np.allclose(-flow.nll(y[None])[0], exact.log_prob(y), rtol=1e-3)
        assert np.isfinite(flow.differentiate(y[None])).all()


def test_splines_another_mask_and_other_orders_in_a_stack_are_refused():
    (layer,) = start(3, flows=1)
    free = replace(layer, weights=(np.where(layer.weights[0] == 0, 0.0, 1.0)[::-1].copy(), layer.weights[1] * 0))
    with pytest.raises(ValueError, match="masked"):
        FusedFlow([(free,)])
    with pytest.raises(ValueError, match="affine"):
        FusedFlow([spline(3)])
    with pytest.raises(ValueError, match="orders"):
        FusedFlow([(layer,), (replace(layer, order=np.roll(layer.order, 1)),)])


def test_spectral_normalisation_holds_every_matrix_to_one_and_the_flow_still_gains():
    rng = np.random.default_rng(1)
    a = rng.normal(size=800)
    x = np.column_stack([a, a**2 + 0.3 * rng.normal(size=800)])
    settings = FlowSettings(flows=2, hidden=16, epochs=12, margins="none", learning_rate=0.02)
    free, held = (fit_flow(x, replace(settings, spectral=s), seeded_rng(1)) for s in (False, True))
    assert max(_largest(layer) for layer in free.flow.first.layers) > 1.2
    assert max(_largest(layer) for layer in held.flow.first.layers) < 1 + 1e-5
    assert free.report.best_nll < held.report.best_nll < held.report.start_nll - 0.1


def _largest(layer: MaskedLayer) -> float:
    return max(float(np.linalg.norm(weight, 2)) for weight in layer.weights)


def test_the_engine_that_a_plan_chooses_fits_the_same_flow():
    rng = np.random.default_rng(1)
    a = rng.normal(size=800)
    x = np.column_stack([a, a**2 + 0.3 * rng.normal(size=800), rng.normal(size=800)])
    given = Training(flows=2, hidden=16, epochs=8, margins="none")
    fast, nflows = (fit_flow(x, replace(given, engine=e), seeded_rng(1)) for e in ("auto", "nflows"))
    assert FlowSettings.of(replace(given, engine="nflows")).by_hand is False
    assert fast.report.epochs == nflows.report.epochs > 0
    assert fast.report.best_nll == pytest.approx(nflows.report.best_nll, abs=1e-4)
    assert np.allclose(fast.flow.log_prob(x), nflows.flow.log_prob(x), rtol=0, atol=2e-3)


def test_a_fit_loads_no_torch():
    """It would be a second of every release."""
    code = (
        "import sys, numpy as np; from shared.base.randomness import seeded_rng; "
        "from site_agent.models.flow import FlowSettings, fit_flow; "
        "x = np.random.default_rng(1).gamma(2.0, size=(80, 2)); "
        "fit_flow(x, FlowSettings(flows=2, hidden=8, epochs=2), seeded_rng(1)); "
        "assert not {'torch', 'nflows'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[3])


def spline(d=4, seed=1) -> tuple[MaskedLayer, ...]:
    """Spline layers away from the identity."""
    rng = np.random.default_rng(seed)
    layers = first_layers(d, flows=2, hidden=8, layers=1, generator=rng, bins=6)
    out = []
    for layer, mask in zip(layers, [masks(d, 8, 1, 17)[-1]] * 2, strict=True):
        last = mask * rng.normal(0, 0.5, mask.shape)
        bias = layer.biases[-1] + rng.normal(0, 0.5, len(mask))
        out.append(
            replace(layer, order=rng.permutation(d), weights=(layer.weights[0], last), biases=(layer.biases[0], bias))
        )
    return tuple(out)


@pytest.mark.parametrize("d", [1, 4])
def test_a_spline_as_plain_arrays_is_that_of_nflows_both_ways(d):
    layers, y = spline(d), 1.5 * records(400, d)
    assert (np.abs(y) > 5).any()  # where it is the identity
    nflows = NflowsFlow(layers, double=True)
    flow = AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d), layers=nflows.layers())
    assert np.allclose(flow.log_prob(y), -nflows.nll(y), rtol=0, atol=1e-6)
    z = np.random.default_rng(3).normal(0, 2, (400, d))
    assert np.allclose(flow.inverse(flow.forward(z)), z, rtol=0, atol=1e-6)
    assert np.allclose(flow.forward(flow.inverse(y)), y, rtol=0, atol=1e-6)
    again = from_arrays(to_arrays(flow))
    assert np.array_equal(again.forward(z), flow.forward(z))
    with pytest.raises(SchemaRefusal, match="bins"):
        from_arrays({**to_arrays(flow), "bins": np.array([6])})


def test_a_spline_starts_as_the_identity_and_is_trained_by_nflows():
    rng = np.random.default_rng(1)
    start = first_layers(3, flows=2, hidden=8, layers=1, generator=rng, bins=8)
    flow = AffineAutoregressiveFlow(mean=np.zeros(3), scale=np.eye(3), layers=start)
    z = rng.normal(size=(50, 3))
    assert np.allclose(flow.forward(z), z, atol=1e-9)
    a = rng.normal(size=600)
    x = np.column_stack([a, a**2 + 0.3 * rng.normal(size=600)])
    plan = Training(flows=2, hidden=16, epochs=4, learning_rate=0.01, margins="none", family="spline")
    fitted = fit_flow(x, plan, seeded_rng(1))
    assert fitted.report.best_nll < fitted.report.start_nll - 0.1
    assert {layer.bins for layer in fitted.flow.first.layers} == {SPLINE_BINS}
