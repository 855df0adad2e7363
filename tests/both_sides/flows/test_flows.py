"""One suite of laws for every bijection, and what their array form refuses."""

import io
import itertools

import numpy as np
import pytest
from scipy import special, stats

from shared.errors import ParameterError, SchemaRefusal
from shared.flows.affine import SCALE_FLOOR, AffineAutoregressiveFlow, MaskedLayer
from shared.flows.base import Bijection, Identity
from shared.flows.chain import Beside, Composed, from_arrays, to_arrays
from shared.flows.levels import LevelModel, Levels
from shared.flows.margins import Margins
from shared.flows.strata import Strata, StratumModel

D = 4


def masked_layer(rng, d=D, hidden=(12,), order=None):
    """A random layer with masks as MADE draws them."""
    degrees = [np.arange(1, d + 1), *(np.arange(h) % max(1, d - 1) + min(1, d - 1) for h in hidden)]
    weights, biases = [], []
    for below, above in itertools.pairwise(degrees):
        weights.append(rng.normal(0, 0.7, (above.size, below.size)) * (above[:, None] >= below[None, :]))
        biases.append(rng.normal(0, 0.3, above.size))
    out = np.repeat(np.arange(1, d + 1), 2)
    weights.append(rng.normal(0, 0.4, (2 * d, degrees[-1].size)) * (out[:, None] > degrees[-1][None, :]))
    biases.append(rng.normal(0.3, 0.3, 2 * d))
    order = rng.permutation(d) if order is None else order
    return MaskedLayer(order=order, weights=tuple(weights), biases=tuple(biases))


def autoregressive(hidden=(12,), activation="tanh", layers=3, d=D, seed=1):
    rng = np.random.default_rng(seed)
    scale = np.tril(rng.normal(0, 0.3, (d, d)), -1) + np.diag(rng.uniform(0.5, 2, d))
    return AffineAutoregressiveFlow(
        mean=rng.normal(size=d),
        scale=scale,
        layers=tuple(masked_layer(rng, d, hidden) for _ in range(layers)),
        activation=activation,
    )


def margins():
    scores = np.array([-2.0, -0.5, 0.3, 1.7])
    return Margins(knots=((scores, np.array([1.0, 2.0, 7.0, 7.5])), None, None, (scores * 2, scores**3)))


def levels():
    rng = np.random.default_rng(3)
    two = LevelModel(column=1, given=(0, 3), counts=(0, 0), coefficients=rng.normal(0, 0.5, (13, 2)))
    three = LevelModel(column=2, given=(0, 3, 1), counts=(0, 0, 2), coefficients=rng.normal(0, 0.5, (14, 3)))
    return Levels(d=D, models=(two, three))


def strata():
    rng = np.random.default_rng(4)
    scores = np.array([-1.0, 0.0, 1.0])
    model = StratumModel(
        column=3,
        level_column=1,
        given=(0,),
        knots=((scores, np.array([0.0, 1.0, 4.0])), (scores, np.array([10.0, 10.5, 11.0]))),
        coefficients=rng.normal(0, 0.5, (2, 2)),
        spread=np.array([0.5, 2.0]),
    )
    return Strata(d=D, models=(model,))


ALL = {
    "identity": Identity(d=D),
    "gaussian": autoregressive(layers=0),
    "tanh": autoregressive(),
    "relu": autoregressive(activation="relu"),
    "two hidden layers": autoregressive(hidden=(12, 9)),
    "one column": Composed(first=autoregressive(d=1), second=autoregressive(d=1, seed=2)),
    "margins": margins(),
    "levels": levels(),
    "strata": strata(),
    "beside": Beside(columns=(1, 3), inner=autoregressive(d=2)),
    "chain": Composed(
        first=autoregressive(), second=Composed(first=levels(), second=Composed(first=strata(), second=margins()))
    ),
}
every = pytest.mark.parametrize("flow", ALL.values(), ids=ALL.keys())


def latents(flow, n=50, seed=5):
    return np.random.default_rng(seed).normal(size=(n, flow.d))


@every
def test_inverse_undoes_forward(flow):
    z = latents(flow)
    assert np.allclose(flow.inverse(flow.forward(z)), z, rtol=0, atol=1e-8)


@every
def test_forward_undoes_inverse(flow):
    x = flow.forward(latents(flow))
    assert np.allclose(flow.forward(flow.inverse(x)), x, rtol=0, atol=1e-8)


@every
def test_log_determinant_agrees_with_finite_differences(flow):
    x = flow.forward(latents(flow, n=12))
    _, log_det = flow.inverse_with_log_det(x)
    step = 1e-6
    for row, value in zip(x, log_det, strict=True):
        moves = np.vstack([row + step * np.eye(flow.d), row - step * np.eye(flow.d)])
        z = flow.inverse(moves)
        # A difference that straddles a knot or an integer measures the jump: such rows are skipped.
        jacobian = (z[: flow.d] - z[flow.d :]) / (2 * step)
        other = flow.inverse(np.vstack([row + 0.1 * step * np.eye(flow.d), row - 0.1 * step * np.eye(flow.d)]))
        finer = (other[: flow.d] - other[flow.d :]) / (0.2 * step)
        if np.allclose(jacobian, finer, rtol=1e-3, atol=1e-4):
            assert np.isclose(np.linalg.slogdet(jacobian)[1], value, atol=2e-4)


@every
def test_log_prob_is_the_normal_density_of_the_latents_and_the_log_determinant(flow):
    x = flow.forward(latents(flow))
    z, log_det = flow.inverse_with_log_det(x)
    assert np.allclose(flow.log_prob(x), stats.norm.logpdf(z).sum(axis=1) + log_det)


@every
def test_arrays_round_trip_through_a_file_without_pickle(flow):
    file = io.BytesIO()
    np.savez(file, **to_arrays(flow))
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        again = from_arrays(dict(stored))
    z = latents(flow)
    assert type(again) is type(flow)
    assert np.array_equal(again.forward(z), flow.forward(z))
    assert np.array_equal(again.log_prob(z), flow.log_prob(z))


@every
def test_input_is_untouched_and_output_is_new(flow):
    z = latents(flow)
    kept = z.copy()
    flow.forward(z)[:] = 0
    flow.inverse(z)[:] = 0
    flow.log_prob(z)
    assert np.array_equal(z, kept)


@every
def test_rows_are_treated_one_by_one(flow):
    z = latents(flow)
    changed = z.copy()
    changed[7] += 1
    rows = np.arange(len(z)) != 7
    assert np.allclose(flow.forward(z)[rows], flow.forward(changed)[rows], rtol=0, atol=1e-12)
    assert np.allclose(flow.forward(z[3:4]), flow.forward(z)[3:4], rtol=0, atol=1e-12)


@every
def test_an_empty_matrix_stays_empty_and_a_wrong_width_is_refused(flow):
    assert flow.forward(np.zeros((0, flow.d))).shape == (0, flow.d)
    assert flow.log_prob(np.zeros((0, flow.d))).shape == (0,)
    with pytest.raises(ParameterError, match="columns"):
        flow.forward(np.zeros((2, flow.d + 1)))


@every
def test_every_bijection_follows_the_protocol(flow):
    assert isinstance(flow, Bijection)


def test_blocks_of_rows_do_not_show():
    flow = autoregressive()
    z = latents(flow, n=8200)
    assert np.allclose(flow.forward(z)[8190:8195], flow.forward(z[8190:8195]), rtol=0, atol=1e-12)
    assert np.allclose(flow.inverse(flow.forward(z)), z, rtol=0, atol=1e-9)


def test_density_of_a_flow_integrates_to_the_share_of_its_draws():
    flow = autoregressive(d=2, layers=2, seed=8)
    grid = np.linspace(-25, 25, 801)
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    draws = flow.forward(np.random.default_rng(0).normal(size=(200_000, 2)))
    inside = (np.abs(draws) < 25).all(axis=1).mean()
    assert np.exp(flow.log_prob(points)).sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(inside, abs=1e-3)


@pytest.mark.parametrize("hidden", [(12,), (12, 9)])
def test_each_output_of_a_layer_depends_on_earlier_columns_alone(hidden):
    rng = np.random.default_rng(2)
    layer = masked_layer(rng, hidden=hidden, order=np.array([2, 0, 3, 1]))
    v = rng.normal(size=(D, 1))
    base, _ = layer.to_noise(v, "tanh")
    for place, column in enumerate(layer.order):
        moved = v.copy()
        moved[column] += 0.5
        changed = {int(c) for c in np.flatnonzero(np.abs(layer.to_noise(moved, "tanh")[0] - base)[:, 0] > 1e-12)}
        assert changed <= {int(c) for c in layer.order[place:]}
        assert int(column) in changed


def test_a_network_that_looks_ahead_is_refused():
    layer = masked_layer(np.random.default_rng(2))
    weights = [w.copy() for w in layer.weights]
    weights[0][:] = 1.0
    with pytest.raises(SchemaRefusal, match="autoregressive"):
        MaskedLayer(order=layer.order, weights=tuple(weights), biases=layer.biases)


def test_scale_is_softplus_plus_a_floor():
    zero = MaskedLayer(
        order=np.array([0]), weights=(np.zeros((1, 1)), np.zeros((2, 1))), biases=(np.zeros(1), np.array([0.4, 3.0]))
    )
    flow = AffineAutoregressiveFlow(mean=np.zeros(1), scale=np.eye(1), layers=(zero,))
    scale = np.log1p(np.exp(0.4)) + SCALE_FLOOR
    assert flow.inverse(np.array([[2.0]]))[0, 0] == pytest.approx(2 * scale + 3)


def test_margins_go_on_as_straight_lines():
    flow = margins()
    far = flow.forward(np.array([[10.0, 0, 0, 0], [11.0, 0, 0, 0], [12.0, 0, 0, 0]]))[:, 0]
    assert np.diff(far) == pytest.approx([0.5 / 1.4] * 2)


def test_columns_without_knots_are_left_alone():
    z = latents(margins())
    assert np.array_equal(margins().forward(z)[:, 1:3], z[:, 1:3])


def test_levels_have_exactly_the_modelled_frequencies():
    share = np.array([0.9, 0.06, 0.04])
    model = LevelModel(column=0, given=(), counts=(), coefficients=np.log(share)[None, :])
    flow = Levels(d=1, models=(model,))
    u = (np.arange(100_000) + 0.5) / 100_000
    drawn = np.floor(flow.forward(special.ndtri(u)[:, None]))[:, 0]
    assert np.allclose(np.bincount(drawn.astype(int)) / u.size, share, atol=2e-5)


def test_no_draw_of_a_level_leaves_its_range():
    flow = levels()
    z = np.random.default_rng(1).normal(0, 2, (20_000, D))
    y = flow.forward(z[(np.abs(z) < 8).all(axis=1)])
    assert y[:, 1].min() >= 0
    assert y[:, 1].max() < 2
    assert y[:, 2].min() >= 0
    assert y[:, 2].max() < 3


def test_codes_outside_the_known_levels_still_have_a_latent():
    x = np.array([[0.0, 2.4, 0.5, 0.0], [0.0, -0.3, 0.5, 0.0]])
    assert np.allclose(levels().forward(levels().inverse(x)), x)


def test_scores_of_a_rightly_modelled_level_are_standard_normal():
    flow = levels()
    rng = np.random.default_rng(9)
    y = flow.forward(rng.normal(size=(4000, D)))
    # Fractions drawn afresh, as an encoder does: the scores must not notice.
    y[:, 1] = np.floor(y[:, 1]) + rng.random(len(y))
    assert stats.kstest(flow.inverse(y)[:, 1], "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(kind=np.frombuffer(b"pickle", dtype=np.uint8)), "kind"),
        (lambda a: a.pop("kind"), "kind"),
        (lambda a: a.update(extra=np.zeros(1)), "exactly"),
        (lambda a: a.pop("bias0_0"), "exactly"),
        (lambda a: a.update(mean=np.full(D, np.nan)), "finite"),
        (lambda a: a.update(scale=np.ones((D, D))), "triangular"),
        (lambda a: a.update(scale=np.diag([1.0, 1, 1, 0])), "positive"),
        (lambda a: a.update(order0=np.array([0, 0, 1, 2])), "permutation"),
        (lambda a: a.update(activation=np.array(7)), "activation"),
        (lambda a: a.update(depths=np.array([2, 2, 99])), "layers"),
        (lambda a: a.update(weight1_0=np.zeros((3, 3))), "fit"),
        (lambda a: a.update(weight1_0=np.full((12, D), 0.5)), "autoregressive"),
    ],
)
def test_arrays_no_fit_could_have_written_are_refused(change, message):
    arrays = dict(to_arrays(autoregressive()))
    change(arrays)
    with pytest.raises(SchemaRefusal, match=message):
        from_arrays(arrays)


def test_knots_that_do_not_increase_are_refused():
    with pytest.raises(SchemaRefusal, match="increase"):
        Margins(knots=((np.array([0.0, 0.0]), np.array([0.0, 1.0])),))
    with pytest.raises(SchemaRefusal, match="two knots"):
        Margins(knots=((np.array([0.0]), np.array([0.0])),))


def test_models_that_would_read_themselves_are_refused():
    two = LevelModel(column=1, given=(2,), counts=(0,), coefficients=np.zeros((7, 2)))
    three = LevelModel(column=2, given=(), counts=(), coefficients=np.zeros((1, 2)))
    with pytest.raises(SchemaRefusal, match="earlier"):
        Levels(d=3, models=(two, three))
    model = strata().models[0]
    with pytest.raises(SchemaRefusal, match="other columns"):
        StratumModel(
            column=0, level_column=0, given=(), knots=model.knots, coefficients=np.zeros((2, 1)), spread=np.ones(2)
        )
    loop = StratumModel(
        column=1, level_column=3, given=(), knots=model.knots, coefficients=np.zeros((2, 1)), spread=np.ones(2)
    )
    with pytest.raises(SchemaRefusal, match="no stratum model changes"):
        Strata(d=D, models=(model, loop))


def test_a_chain_of_unequal_widths_is_refused():
    with pytest.raises(ParameterError, match="as many columns"):
        Composed(first=Identity(d=2), second=Identity(d=3))
