"""Large hold-outs: samples of pairs whose sums are right on average, and what is fitted and read off by them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from shared.errors import ParameterError
from site_agent.models import controls, latent_fit, latent_space
from site_agent.models.controls import NodeStrata
from site_agent.models.latent_fit import PairSample, fit
from site_agent.models.latent_space import LatentSpace

KEY = bytes(range(32))


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def small(monkeypatch):
    """What is done for large hold-outs, at two hundred nodes and more."""
    monkeypatch.setattr(latent_fit, "LARGE", 100)
    monkeypatch.setattr(latent_space, "LARGE", 100)
    monkeypatch.setattr(controls, "_CONTROLS", 64)
    monkeypatch.setattr(controls, "_PER_TIE", 32)


def world(directed: bool, m: int = 48, d: int = 2):
    """Ties, hidden pairs and tables of positions."""
    upper = np.triu(rng().random((m, m)) < 0.15, 1)
    ties = upper | (np.triu(rng(2).random((m, m)) < 0.15, 1).T if directed else upper.T)
    hidden = (np.array([0, 1, 2]), np.array([5, 6, 7]))
    ties[hidden] = False
    if not directed:
        ties[hidden[::-1]] = False
    tables = 0.7 * rng(3).normal(size=(2 if directed else 1, m, d + 1))
    return sparse.csr_array(ties.astype(np.float64)), hidden, tables


@pytest.mark.parametrize("m", [48, 50])
def test_every_node_is_in_a_sample_as_often_as_its_weight_says_and_one_of_every_stratum_is(m):
    made = NodeStrata(rng().normal(size=(m, 3)), 12)
    assert made.c == 4
    offsets = made.offsets(rng(2), 4000)
    samples = [made.sample(one) for one in offsets]
    counts = np.bincount(np.concatenate(samples), minlength=m)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(4000 * 0.25 * 0.75)
    assert {len(one) for one in samples} == ({12} if m == 48 else {12, 13})
    everybody = np.arange(m)
    for number in range(20):
        is_in = made.has(offsets, np.full(m, number), everybody)
        assert set(np.flatnonzero(is_in)) == set(samples[number])


def test_nodes_of_a_stratum_are_alike():
    line = rng().permutation(60).astype(float)
    made = NodeStrata(line[:, None], 20)
    for _ in range(5):
        assert (np.sort(line[made.draw(rng())]) // 3 == np.arange(20)).all()


@pytest.mark.parametrize("directed", [False, True])
def test_a_sample_of_pairs_has_the_likelihood_and_the_slopes_of_all_pairs_on_average(directed):
    """Of weights that are wrong by a tenth the sums would be off by a dozen standard errors."""
    ties, hidden, tables = world(directed)
    full, slopes = latent_fit._deviance(ties, tables, hidden)
    found = [PairSample(ties, tables, hidden, rng(seed), controls=24).deviance(tables) for seed in range(1500)]
    losses = np.array([loss for loss, _ in found])
    assert losses.std() > 0.005 * full
    assert abs(losses.mean() - full) < 4 * losses.std() / np.sqrt(1500) < 0.01 * full
    gradients = np.array([np.array(own) for _, own in found])
    z = (gradients.mean(axis=0) - np.array(slopes)) / (gradients.std(axis=0) / np.sqrt(1500))
    assert np.abs(z).max() < 4.8
    assert z.std() == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("directed", [False, True])
def test_a_sample_of_everybody_is_no_sample(directed):
    """What is met of tied and of hidden pairs, and of a node with itself, is gone to the last digit."""
    ties, hidden, tables = world(directed)
    full, slopes = latent_fit._deviance(ties, tables, hidden)
    loss, gradients = PairSample(ties, tables, hidden, rng(), controls=96).deviance(tables)
    assert loss == pytest.approx(full, rel=1e-6)
    np.testing.assert_allclose(np.array(gradients), np.array(slopes), atol=2e-4)


@pytest.mark.parametrize("directed", [False, True])
def test_a_samples_gradient_is_the_slope_of_its_likelihood(directed):
    ties, hidden, tables = world(directed)
    sample = PairSample(ties, tables, hidden, rng(), controls=16)
    _, gradients = sample.deviance(tables)
    step = 1e-2
    for at in [(0, 0, 0), (0, 5, 1), (len(tables) - 1, 6, 0), (len(tables) - 1, 40, 2)]:
        moved = [tables.copy(), tables.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        slope = np.subtract(*(sample.deviance(table)[0] for table in moved)) / (2 * step)
        assert gradients[at[0]][at[1:]] == pytest.approx(slope, abs=5e-3)


def network(directed: bool, n: int = 2000, d: int = 2) -> tuple[LatentSpace, sparse.csr_array]:
    """A law of about 25 ties a node, and one network of it."""
    draws = rng(5)
    sides = [
        np.column_stack([draws.uniform(-3.2, -2.0, n), 0.9 * draws.normal(size=(n, d))]) for _ in range(1 + directed)
    ]
    space = LatentSpace(model="inner_product", d=d, directed=directed, positions=np.hstack(sides))
    return space, space.draw(space.positions, KEY)


@pytest.mark.parametrize("directed", [False, True])
def test_a_large_hold_out_is_fitted_as_well_as_by_all_its_pairs(small, directed, monkeypatch):
    """Nearly: and without the advantage that the best positions for one sample take of it."""
    _, ties = network(directed)
    matrix = sparse.csr_array(ties, dtype=np.float64)

    def deviance(space: LatentSpace) -> float:
        tables = np.array(np.split(space.positions, 1 + directed, axis=1))
        ridge = float((space.positions[:, 1:3] ** 2).sum() + (space.positions[:, 4:] ** 2).sum()) / 2
        return latent_fit._deviance(matrix, tables, None)[0] + ridge

    def tied(space: LatentSpace) -> float:
        chances = space.probabilities(space.positions, space.positions)
        return float((chances.sum() - np.trace(chances)) / ties.nnz)

    sampled = fit(ties, model="inner_product", d=2, directed=directed, rng=rng())
    monkeypatch.setattr(latent_fit, "_settled", lambda ties, tables, *rest: tables)
    once = fit(ties, model="inner_product", d=2, directed=directed, rng=rng())
    monkeypatch.setattr(latent_fit, "LARGE", 2000)
    whole = fit(ties, model="inner_product", d=2, directed=directed, rng=rng())
    assert np.abs(sampled.positions - whole.positions).max() > 1e-3
    excess = [deviance(one) / deviance(whole) - 1 for one in (sampled, once)]
    assert -1e-4 < excess[0] < 0.1 * excess[1]
    assert abs(tied(sampled) - tied(whole)) < 0.01 < abs(tied(once) - tied(whole))


def test_a_fit_by_a_sample_follows_from_the_generator_alone(small):
    _, ties = network(False, 300)
    first, same, other = (fit(ties, model="inner_product", d=2, rng=rng(seed)).positions for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("directed", [False, True])
def test_nodes_are_read_off_a_sample_as_off_everybody_on_average_and_each_by_itself(small, directed, monkeypatch):
    space, ties = network(directed)
    held = LatentSpace(model="inner_product", d=2, directed=directed, positions=space.positions[100:])
    across = [ties[:100][:, 100:].tocsr()] + ([ties[100:][:, :100].T.tocsr()] if directed else [])
    found = np.array([held.nodes(*across, rng=rng(seed)) for seed in range(20)])
    # Whoever else is there, and whatever they are tied to: the same to the last bit.
    others = [sparse.csr_array(sparse.vstack([one[:40], one[40:][:, ::-1]])) for one in across]
    np.testing.assert_array_equal(held.nodes(*others, rng=rng(0))[:40], found[0][:40])
    monkeypatch.setattr(latent_space, "LARGE", 2000)
    exact = held.nodes(*across)
    spread = found.std(axis=0)
    assert np.median(spread) > 5e-3
    # Controls that counted a tenth too much would move every α by a tenth.
    assert np.abs((found.mean(axis=0) - exact).mean(axis=0)).max() < 0.02
    assert np.median(np.abs(found.mean(axis=0) - exact) / spread) < 0.5


@pytest.mark.parametrize("directed", [False, True])
def test_errors_and_positions_without_them_are_those_of_all_pairs_nearly(small, directed, monkeypatch):
    space, _ = network(directed)
    sampled = [np.mean([space.errors(rng(seed)) for seed in range(20)], axis=0), space.deconvolved(rng=rng())]
    monkeypatch.setattr(latent_space, "LARGE", 2000)
    whole = [space.errors(), space.deconvolved()]
    ratio = np.diagonal(sampled[0], axis1=1, axis2=2) / np.diagonal(whole[0], axis1=1, axis2=2)
    assert np.median(ratio) == pytest.approx(1, abs=0.02)
    density = [space.probabilities(one, one).mean() for one in (sampled[1], whole[1])]
    assert density[0] == pytest.approx(density[1], rel=2e-3)
    np.testing.assert_allclose(sampled[1].std(axis=0), whole[1].std(axis=0), rtol=0.02)


def test_a_hold_out_that_is_not_large_asks_nothing_of_the_generator_and_a_large_one_needs_it(small, monkeypatch):
    space, ties = network(False, 300)
    for call in (lambda: space.nodes(ties), space.deconvolved):
        with pytest.raises(ParameterError, match="chosen by a generator"):
            call()
    monkeypatch.setattr(latent_space, "LARGE", 300)
    draws = rng()
    before = draws.bit_generator.state
    np.testing.assert_array_equal(space.nodes(ties, rng=draws), space.nodes(ties))
    np.testing.assert_array_equal(space.deconvolved(rng=draws), space.deconvolved())
    assert draws.bit_generator.state == before


@pytest.mark.parametrize("m", [10_000, 80_000])
def test_a_node_without_ties_is_expected_to_have_next_to_none_however_many_are_held_out(m):
    design, offset = np.zeros((m, 1)), np.zeros(m)
    (alpha, _), *_ = latent_space._logistic(sparse.csr_array((1, m)), design, offset)
    assert 0 < m / (1 + np.exp(-alpha)) < 0.2
