"""Latent space models: the likelihood, the node-wise step, the draw by keyed pairs, and networks that fit none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, sparse

from shared.errors import ParameterError
from shared.mechanisms.grand.noise import MODELS
from site_agent.models import latent_fit
from site_agent.models.latent_fit import choose_dimension, fit
from site_agent.models.latent_space import LatentSpace, draw_pairs

EVERY = [(model, directed) for model in MODELS for directed in (False, True)]
KEY = bytes(range(32))


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def truth(model: str, directed: bool, n: int, d: int = 2) -> LatentSpace:
    """Positions whose probabilities are spread over about 0.02 to 0.6."""
    draws = rng(5)
    if model == "inner_product":
        half = np.column_stack([draws.uniform(-1.4, -0.4, n), 0.8 * draws.normal(size=(n, d))])
        other = np.column_stack([draws.uniform(-1.4, -0.4, n), 0.8 * draws.normal(size=(n, d))])
    else:
        half, other = (draws.uniform(0.0, 0.7, (n, d)) for _ in range(2))
    signs = (1, -1) if model == "grdpg" else (1,) * d
    if model == "grdpg":
        half[:, 0] += 0.2
        other[:, 0] += 0.2
    positions = np.hstack([half, other]) if directed else half
    return LatentSpace(model=model, d=d, directed=directed, positions=positions, signs=signs)


@pytest.mark.parametrize(("model", "directed"), EVERY)
def test_probabilities_are_estimated_and_so_are_other_nodes_from_their_own_ties(model, directed):
    space = truth(model, directed, 700)
    p = space.probabilities(space.positions, space.positions)
    ties = space.draw(space.positions, KEY)
    fitted = fit(ties[300:][:, 300:], model=model, d=2, directed=directed, rng=rng())
    held = p[300:, 300:]
    error = fitted.probabilities(fitted.positions, fitted.positions) - held
    assert np.sqrt((error**2).mean()) < 0.5 * held.std()
    across = [ties[:300][:, 300:]] + ([ties[300:][:, :300].T.tocsr()] if directed else [])
    nodes = fitted.nodes(*across)
    assert nodes.shape == (300, fitted.p)
    error = fitted.probabilities(nodes, nodes) - p[:300, :300]
    assert np.sqrt((error**2).mean()) < 0.6 * p[:300, :300].std()


def test_a_direction_that_ties_avoid_keeps_its_sign_only_in_the_generalised_model():
    between = np.kron(np.array([[0.05, 0.35], [0.35, 0.05]]), np.ones((100, 100)))
    ties = draw_pairs(lambda i, j: between[i, j].astype(np.float32), 200, KEY)
    errors = {}
    for model in ("rdpg", "grdpg"):
        space = fit(ties, model=model, d=2, rng=rng())
        errors[model] = float(np.abs(space.probabilities(space.positions, space.positions) - between).mean())
        assert space.signs == ((1, -1) if model == "grdpg" else (1, 1))
    assert errors["grdpg"] < 0.06 < 0.1 < errors["rdpg"]


def test_a_negative_product_is_no_tie_and_not_a_small_probability_of_one():
    space = LatentSpace(model="rdpg", d=1, directed=False, positions=np.array([[1.0], [-1.0], [0.5]]))
    assert space.probabilities(space.positions, space.positions)[0].tolist() == [1.0, 0.0, 0.5]
    many = np.concatenate([np.full((300, 1), 0.9), np.full((300, 1), -0.9)])
    assert space.draw(many, KEY)[:300][:, 300:].nnz == 0


@pytest.mark.parametrize("directed", [False, True])
def test_the_deviance_is_minus_the_log_likelihood_of_every_pair_that_is_not_hidden_and_its_gradient_is_its_slope(
    directed,
):
    m, d = 14, 2
    upper = np.triu(rng().random((m, m)) < 0.4, 1)
    ties = upper | (np.triu(rng(2).random((m, m)) < 0.4, 1).T if directed else upper.T)
    hidden = (np.array([0, 1, 2]), np.array([5, 6, 7]))
    ties[hidden] = False
    if not directed:
        ties[hidden[::-1]] = False
    tables = 0.7 * rng(3).normal(size=(2 if directed else 1, m, d + 1))
    a = sparse.csr_array(ties.astype(np.float64))
    p = 1 / (1 + np.exp(-tables[0][:, :1] - tables[-1][:, 0] - tables[0][:, 1:] @ tables[-1][:, 1:].T))
    each = np.where(ties, np.log(p), np.log1p(-p))
    each[hidden] = 0
    expected = -each[~np.eye(m, dtype=bool)].sum() if directed else -np.triu(each, 1).sum()
    loss, gradients = latent_fit._deviance(a, tables, hidden)
    assert loss == pytest.approx(expected, rel=1e-6)
    step = 1e-2
    for at in [(0, 0, 0), (0, 5, 1), (len(tables) - 1, 6, 0), (len(tables) - 1, 7, 2)]:
        moved = [tables.copy(), tables.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        slope = np.subtract(*(latent_fit._deviance(a, table, hidden)[0] for table in moved)) / (2 * step)
        assert gradients[at[0]][at[1:]] == pytest.approx(slope, abs=2e-3)


def test_the_fit_is_at_the_optimum_and_on_axes_that_do_not_depend_on_the_start():
    space = truth("inner_product", False, 250)
    ties = space.draw(space.positions, KEY)
    first, second = (fit(ties, model="inner_product", d=2, rng=rng(seed)) for seed in (1, 2))
    np.testing.assert_allclose(first.positions, second.positions, atol=0.05)
    z = first.positions[:, 1:]
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-9)
    assert abs((z.T @ z)[0, 1]) < 1e-6 * (z.T @ z)[0, 0]
    true = latent_fit._deviance(sparse.csr_array(ties, dtype=np.float64), space.positions[None], None)[0]
    found = latent_fit._deviance(sparse.csr_array(ties, dtype=np.float64), first.positions[None], None)[0]
    assert found < true


def test_a_coordinate_that_the_spectrum_does_not_show_is_not_lost_for_ever():
    """A column that starts at zero has no gradient: with more dimensions than the spectrum has, all must move."""
    space = truth("inner_product", False, 120, d=1)
    fitted = fit(space.draw(space.positions, KEY), model="inner_product", d=40, rng=rng())
    assert (fitted.positions[:, 1:].std(axis=0) > 0.02).all()


def test_each_node_is_its_own_logistic_regression():
    space = truth("inner_product", False, 260)
    ties = space.draw(space.positions, KEY)
    held = LatentSpace(model="inner_product", d=2, directed=False, positions=space.positions[60:])
    found = held.nodes(ties[:60][:, 60:])
    design, offset = np.column_stack([np.ones(200), held.positions[:, 1:]]), held.positions[:, 0]
    for i in (0, 20, 59):
        y = ties[[i]][:, 60:].toarray().ravel()

        def loss(beta: np.ndarray, y: np.ndarray = y) -> float:
            t = design @ beta + offset
            return float(np.logaddexp(0, t).sum() - y @ t + 0.5e-6 * 200 * beta[0] ** 2 + 0.5 * beta[1:] @ beta[1:])

        expected = optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-7}).x
        np.testing.assert_allclose(found[i], expected, atol=2e-3)


@pytest.mark.parametrize(("model", "directed"), EVERY)
def test_an_isolate_and_a_node_tied_to_everybody_get_finite_coordinates_and_never_move_another_node(model, directed):
    space = truth(model, directed, 300)
    ties = sparse.lil_array(truth(model, directed, 300).draw(space.positions, KEY)[:40])
    before = space.nodes(*[sparse.csr_array(ties)] * (1 + directed))
    ties[3], ties[4] = 0, 1
    ties[5] = np.arange(300) < 150
    after = space.nodes(*[sparse.csr_array(ties)] * (1 + directed))
    assert np.isfinite(after).all()
    assert np.abs(after).max() <= 60
    np.testing.assert_array_equal(np.delete(before, [3, 4, 5], axis=0), np.delete(after, [3, 4, 5], axis=0))
    if model == "inner_product":
        assert space.probabilities(after[[3]], space.positions).max() < 0.01


@pytest.mark.parametrize(("model", "directed"), EVERY)
@pytest.mark.parametrize("nodes", [2, 8, 40])
@pytest.mark.parametrize("full", [False, True])
def test_empty_and_complete_networks_are_fitted_without_a_value_that_is_no_number(model, directed, nodes, full):
    ties = sparse.csr_array((np.ones((nodes, nodes)) - np.eye(nodes)) * full)
    space = fit(ties, model=model, d=1, directed=directed, rng=rng())
    p = space.probabilities(space.positions, space.positions)
    density = (p.sum() - np.trace(p)) / (nodes * (nodes - 1))
    assert density > 0.99 - (model != "inner_product") / nodes if full else density < 0.01
    assert np.isfinite(space.nodes(*[ties] * (1 + directed))).all()


@pytest.mark.parametrize(
    ("ties", "d", "words"),
    [
        (np.zeros((1, 1)), 1, "at least two nodes"),
        (np.zeros((3, 2)), 1, "square"),
        (np.eye(4), 1, "no loops"),
        (2 * (np.ones((4, 4)) - np.eye(4)), 1, "ties of 1"),
        (np.triu(np.ones((4, 4)), 1), 1, "symmetric"),
        (np.ones((4, 4)) - np.eye(4), 4, "below the number"),
        (np.ones((4, 4)) - np.eye(4), 0, "at least 1"),
    ],
)
def test_a_hold_out_block_that_cannot_be_fitted_is_refused(ties, d, words):
    with pytest.raises(ParameterError, match=words):
        fit(sparse.csr_array(ties), model="inner_product", d=d, rng=rng())


def test_ties_of_the_wrong_shape_and_names_that_are_not_one_each_are_refused():
    space = truth("rdpg", True, 30)
    with pytest.raises(ParameterError, match="2 tables of 30 columns"):
        space.nodes(sparse.csr_array((4, 30)))
    with pytest.raises(ParameterError, match="a name of its own"):
        space.draw(space.positions, KEY, names=["a"] * 30)
    with pytest.raises(ParameterError, match="16 to 64 bytes"):
        space.draw(space.positions, b"short")


def test_the_dimension_is_chosen_on_hidden_pairs_of_the_hold_out_block():
    space = truth("rdpg", False, 400, d=2)
    blocks = np.kron(np.array([[0.4, 0.05, 0.05], [0.05, 0.3, 0.05], [0.05, 0.05, 0.2]]), np.ones((120, 120)))
    ties = draw_pairs(lambda i, j: blocks[i, j].astype(np.float32), 360, KEY)
    assert choose_dimension(ties, model="rdpg", rng=rng()) == 3
    flat = draw_pairs(lambda i, j: np.full((i.stop - i.start, j.stop - j.start), 0.1, np.float32), 200, KEY)
    assert choose_dimension(flat, model="rdpg", rng=rng()) == 1
    assert fit(flat, model="inner_product", d=None, rng=rng()).d <= 2
    assert choose_dimension(space.draw(space.positions, KEY)[:3][:, :3], model="rdpg", rng=rng()) == 1


@pytest.mark.parametrize("directed", [False, True])
def test_deconvolved_positions_have_the_laws_spread_and_the_fits_density(directed):
    """Drawing from estimates as they are counts each node's estimation error as if nodes differed that much."""
    space = truth("inner_product", directed, 320)
    ties = space.draw(space.positions, KEY)
    fitted = fit(ties, model="inner_product", d=2, directed=directed, rng=rng())
    free = fitted.deconvolved()

    def logits(positions: np.ndarray) -> float:
        half = positions.shape[1] // 2 if directed else positions.shape[1]
        source, target = positions[:, :half], positions[:, -half:]
        return float(np.std(source[:, :1] + target[:, 0] + source[:, 1:] @ target[:, 1:].T))

    raw, less, true = (logits(one) for one in (fitted.positions, free, space.positions))
    assert raw > 1.05 * true
    assert abs(less / true - 1) < 0.6 * (raw / true - 1)
    density = [fitted.probabilities(one, one).mean() for one in (free, fitted.positions)]
    assert density[0] == pytest.approx(density[1], rel=1e-3)
    isolated = fit(
        sparse.csr_array(sparse.block_diag([ties, np.zeros((5, 5))])),
        model="inner_product",
        d=2,
        directed=directed,
        rng=rng(),
    )
    assert np.isfinite(isolated.deconvolved()).all()
    product = truth("rdpg", directed, 30)
    np.testing.assert_array_equal(product.deconvolved(), product.positions)


# -- drawing -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("directed", [False, True])
def test_every_pair_is_tied_with_its_probability_independently_over_keys(directed):
    space = truth("inner_product", directed, 40)
    p = space.probabilities(space.positions, space.positions)
    times = 400
    tied = sum(space.draw(space.positions, key.to_bytes(16, "big")).toarray() for key in range(times))
    assert (np.diag(tied) == 0).all()
    if not directed:
        np.testing.assert_array_equal(tied, tied.T)
    free = ~np.eye(40, dtype=bool) if directed else np.triu(np.ones((40, 40), bool), 1)
    z = (tied - times * p)[free] / np.sqrt(times * p * (1 - p))[free]
    assert np.abs(z).max() < 6.5
    assert z.var() == pytest.approx(1, abs=0.3 if not directed else 0.22)
    one = space.draw(space.positions, KEY)
    assert set(np.unique(one.data)) == {1}


def test_the_number_of_ties_has_the_binomial_law_in_a_large_flat_network():
    """Numbers of pairs that were not independent would show in the spread of the nodes' degrees."""
    n, p = 3000, 0.05
    ties = draw_pairs(lambda i, j: np.full((i.stop - i.start, j.stop - j.start), p, np.float32), n, KEY)
    pairs = n * (n - 1) / 2
    assert abs(ties.nnz / 2 - pairs * p) < 5 * np.sqrt(pairs * p * (1 - p))
    k = np.diff(ties.indptr)
    assert k.var() == pytest.approx(n * p * (1 - p), rel=0.15)


def test_a_pair_is_decided_by_its_names_and_the_key_alone():
    space = truth("inner_product", False, 60)
    names = [f"person {number}" for number in range(60)]
    ties = space.draw(space.positions, KEY, names).toarray()
    order = rng().permutation(60)[:45]
    again = space.draw(space.positions[order], KEY, [names[i] for i in order]).toarray()
    np.testing.assert_array_equal(again, ties[order][:, order])
    moved = space.positions.copy()
    moved[7] += 0.3
    changed = np.flatnonzero((space.draw(moved, KEY, names).toarray() != ties).any(axis=1))
    assert set(changed) <= {7} | set(np.flatnonzero((space.draw(moved, KEY, names).toarray() != ties)[7]))
    assert not np.array_equal(space.draw(space.positions, KEY[::-1], names).toarray(), ties)


def test_attributes_after_the_coordinates_do_not_move_a_tie():
    space = truth("inner_product", False, 30)
    wide = np.column_stack([space.positions, np.full(30, 1e9)])
    np.testing.assert_array_equal(space.draw(wide, KEY).toarray(), space.draw(space.positions, KEY).toarray())


def test_taking_away_the_spread_of_estimates_keeps_what_lies_between_known_groups():
    """Two groups and a weak hold-out: towards one mean for all, a part of what sets them apart would go with it."""
    n, draws = 300, rng(11)
    group = np.repeat([0, 1], n // 2)
    true = np.column_stack([np.full(n, -1.6), np.where(group, 1.0, -1.0) + 0.3 * draws.normal(size=n)])
    space = LatentSpace(model="inner_product", d=1, directed=False, positions=true)
    fitted = fit(space.draw(true, KEY), model="inner_product", d=1, rng=rng())

    def between(positions: np.ndarray) -> float:
        return abs(float(positions[group == 1, 1].mean() - positions[group == 0, 1].mean()))

    def within(positions: np.ndarray) -> float:
        return float(np.sqrt(np.mean([positions[group == one, 1].var() for one in (0, 1)])))

    raw, alike, apart = fitted.positions, fitted.deconvolved(), fitted.deconvolved(group)
    assert between(apart) == pytest.approx(between(raw), rel=0.03)
    assert between(alike) < 0.97 * between(apart)
    assert within(apart) < within(alike) < within(raw)
    assert within(apart) == pytest.approx(0.3, abs=0.15)
    # Of one group it is what it was.
    np.testing.assert_allclose(fitted.deconvolved(0 * group), alike, atol=1e-9)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("first", [0, 700])
def test_a_network_of_some_nodes_has_the_ties_that_these_have_in_the_whole_one(directed, first):
    n, rng = 1500, np.random.default_rng(3)
    places = rng.normal(size=(n, 2)).astype(np.float32)
    some = np.sort(rng.permutation(n)[:200])

    def near(i, j):
        return 1 / (1 + np.exp(-places[i] @ places[j].T))

    drawn = [draw_pairs(near, n, KEY, directed=directed, first=first, among=among) for among in (None, some)]
    assert drawn[1].shape == (200, 200)
    assert drawn[1].nnz > 100
    assert (drawn[0][some][:, some] != drawn[1]).nnz == 0
