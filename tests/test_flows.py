"""Every bijection obeys the same laws."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import ParameterError, SchemaRefusal
from shared.flows import Bijection, Composed, Identity, Margins, MaskedAffine, Whitening, from_arrays, to_arrays


def masked(d: int, hidden: tuple[int, ...], seed: int, activation: str = "tanh") -> MaskedAffine:
    rng = np.random.default_rng(seed)
    degrees = [np.arange(d) + 1, *(np.arange(h) % max(1, d - 1) + min(1, d - 1) for h in hidden)]
    out = np.repeat(np.arange(1, d + 1), 2)
    weights = [
        rng.normal(0, 0.6, (len(b), len(a))) * (b[:, None] >= a) for a, b in zip(degrees, degrees[1:], strict=False)
    ]
    weights.append(rng.normal(0, 0.6, (2 * d, len(degrees[-1]))) * (out[:, None] > degrees[-1]))
    return MaskedAffine(
        order=rng.permutation(d),
        weights=tuple(weights),
        biases=tuple(rng.normal(0, 0.3, len(weight)) for weight in weights),
        degrees=tuple(degrees[1:]),
        activation=activation,
    )


def margins(d: int, seed: int) -> Margins:
    rng = np.random.default_rng(seed)
    return Margins(
        knots=tuple(np.cumsum(rng.uniform(0.1, 1, 6)) - 2 for _ in range(d)),
        scores=tuple(np.cumsum(rng.uniform(0.1, 1, 6)) - 2 for _ in range(d)),
    )


def whitening(d: int, seed: int) -> Whitening:
    rng = np.random.default_rng(seed)
    factor = np.tril(rng.normal(0, 0.5, (d, d)), -1) + np.diag(rng.uniform(0.5, 2, d))
    return Whitening(mean=rng.normal(0, 1, d), factor=factor)


FLOWS = {
    "identity": Identity(d=3),
    "whitening": whitening(3, 1),
    "margins": margins(3, 2),
    "masked, one hidden layer": masked(3, (7,), 3),
    "masked, two hidden layers, relu": masked(4, (9, 9), 4, "relu"),
    "masked, one column": masked(1, (4,), 5),
    "composed": Composed(steps=(margins(4, 6), whitening(4, 7), masked(4, (8,), 8), masked(4, (8, 8), 9))),
}


@pytest.fixture(params=FLOWS.values(), ids=FLOWS.keys())
def flow(request) -> Bijection:
    return request.param


def test_forward_and_inverse_undo_each_other(flow):
    z = np.random.default_rng(1).normal(0, 1.5, (200, flow.d))
    before = z.copy()
    x = flow.forward(z)
    np.testing.assert_allclose(flow.inverse(x), z, atol=1e-9)
    np.testing.assert_array_equal(z, before)
    assert isinstance(flow, Bijection)


def test_the_density_has_the_jacobian_of_finite_differences(flow):
    x = flow.forward(np.random.default_rng(2).normal(0, 1, (5, flow.d)))
    step = 1e-6
    for row in x:
        columns = [
            (flow.inverse((row + step * e)[None]) - flow.inverse((row - step * e)[None]))[0] / (2 * step)
            for e in np.eye(flow.d)
        ]
        _, log_det = np.linalg.slogdet(np.column_stack(columns))
        z = flow.inverse(row[None])[0]
        expected = -0.5 * z @ z - 0.5 * flow.d * np.log(2 * np.pi) + log_det
        assert flow.log_prob(row[None])[0] == pytest.approx(expected, abs=1e-5)


def test_rows_do_not_influence_each_other(flow):
    x = flow.forward(np.random.default_rng(3).normal(0, 1, (30, flow.d)))
    np.testing.assert_allclose(flow.inverse(x)[7], flow.inverse(x[7:8])[0], rtol=1e-12)


def test_a_masked_layer_is_autoregressive_in_its_order():
    layer = masked(4, (9, 9), 11)
    x = np.random.default_rng(4).normal(0, 1, (1, 4))
    z = layer.inverse(x)
    for place, column in enumerate(layer.order):
        moved = x.copy()
        moved[0, column] += 0.5
        changed = np.flatnonzero(layer.inverse(moved)[0] != z[0])
        assert changed.min() == place


def test_a_flow_survives_a_file_of_plain_arrays(tmp_path):
    flow = FLOWS["composed"]
    np.savez(tmp_path / "flow.npz", **to_arrays(flow))
    with np.load(tmp_path / "flow.npz", allow_pickle=False) as file:
        again = from_arrays(dict(file))
    z = np.random.default_rng(5).normal(0, 1, (50, 4))
    np.testing.assert_array_equal(again.forward(z), flow.forward(z))


def test_arrays_that_are_no_flow_are_refused():
    arrays = to_arrays(FLOWS["composed"])
    for bad in (
        {},
        {"0.magic.x": np.zeros(1)},
        {"x": np.zeros(1)},
        {**arrays, "0.margins.knots.0": np.full(6, np.nan)},
        {k: v for k, v in arrays.items() if not k.startswith("0.")},
        {k: v for k, v in arrays.items() if k != "2.tanh.order"},
    ):
        with pytest.raises((SchemaRefusal, ParameterError)):
            from_arrays(bad)


def test_steps_that_are_not_bijections_are_refused():
    with pytest.raises(ParameterError):
        Whitening(mean=np.zeros(2), factor=np.array([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ParameterError):
        Whitening(mean=np.zeros(1), factor=np.array([[0.0]]))
    with pytest.raises(ParameterError):
        Margins(knots=(np.array([0.0, 0.0]),), scores=(np.array([0.0, 1.0]),))
    good = masked(3, (5,), 1)
    with pytest.raises(ParameterError, match="masked weight"):
        MaskedAffine(
            order=good.order,
            weights=(np.ones_like(good.weights[0]), good.weights[1]),
            biases=good.biases,
            degrees=good.degrees,
        )
