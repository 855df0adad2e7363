"""What is read off a network, against the same by brute force, and its standard errors against leaving nodes out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.csgraph import shortest_path
from stage.mechanisms.networks import agreement, arc_figures

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.grand import counts as networks
from shared.mechanisms.grand.clusters import communities
from shared.mechanisms.grand.counts import MOTIFS, assortativity, motifs, simple


def random(n: int, p: float, seed: int = 1) -> sparse.csr_array:
    """Ties of uneven probability: some nodes have few."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.3, 1.5, n)
    return simple(sparse.csr_array(np.triu(rng.random((n, n)) < p * np.outer(weight, weight), 1)))


@pytest.mark.parametrize(("n", "p"), [(5, 0.9), (60, 0.3), (256, 0.1), (257, 0.05), (600, 0.15), (900, 0.004)])
def test_node_statistics_are_those_of_brute_force(n, p):
    ties = random(n, p)
    dense = ties.toarray().astype(np.float64)
    k = dense.sum(axis=0)
    np.testing.assert_array_equal(networks.degrees(ties), k)
    np.testing.assert_array_equal(networks.v_shapes(ties), k * (k - 1) / 2)
    np.testing.assert_array_equal(networks.triangles(ties), np.diag(dense @ dense @ dense) / 2)
    distance = shortest_path(ties, unweighted=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(np.eye(n, dtype=bool), 0, 1 / distance)
    np.testing.assert_allclose(networks.harmonic(ties), inverse.sum(axis=1), atol=1e-9)
    leading = np.linalg.eigh(dense)[1][:, -1]
    np.testing.assert_allclose(networks.eigenvector(ties), np.abs(leading) / np.abs(leading).max(), atol=1e-4)


@pytest.mark.parametrize(("n", "p"), [(60, 0.3), (300, 0.02), (700, 0.004), (2000, 0.005)])
def test_triangles_are_the_same_by_paths_and_by_bits_in_blocks_of_any_size(n, p, monkeypatch):
    ties = random(n, p)
    found = []
    for paths, steps, table in ((10**9, 1, 1), (0, 1 << 18, 1 << 21), (0, 500, 20 * n), (0, 1, 1)):
        if n > 1000 and steps == 1 and not paths:
            continue  # node by node: slow, and no other than below
        monkeypatch.setattr(networks, "_PATHS", paths)
        monkeypatch.setattr(networks, "_STEPS", steps)
        monkeypatch.setattr(networks, "_TABLE", table)
        found.append(networks.triangles(ties))
    assert found[0].sum() > 0
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("n", [1, 2, 300])
def test_empty_and_complete_networks_have_their_exact_statistics(n):
    empty, full = sparse.csr_array((n, n), dtype=np.int32), simple(sparse.csr_array(np.ones((n, n))))
    for ties, expected in ((empty, 0), (full, (n - 1) * (n - 2) // 2)):
        found = networks.node_statistics(ties)
        assert all(np.isfinite(values).all() and values.shape == (n,) for values in found.values())
        assert (networks.triangles(ties) == expected).all()
        np.testing.assert_allclose(found["eigenvector"], 1)
        assert set(networks.compare(found, found).values()) == {0.0}


def test_distances_are_between_distributions_so_that_the_order_of_nodes_does_not_count():
    ties = random(80, 0.2)
    order = np.random.default_rng(2).permutation(80)
    one, other = networks.node_statistics(ties), networks.node_statistics(simple(ties[order][:, order]))
    assert max(networks.compare(one, other).values()) < 1e-6
    assert networks.compare(one, networks.node_statistics(random(80, 0.4)))["degree"] > 0.2


def test_a_simple_network_has_no_loops_repetitions_or_directions():
    rows, columns = np.array([0, 0, 0, 1, 2, 3]), np.array([1, 1, 0, 0, 2, 1])
    ties = simple(sparse.coo_array((np.ones(6), (rows, columns)), shape=(4, 4)))
    assert ties.toarray().tolist() == [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(ParameterError, match="square"):
        simple(sparse.csr_array((2, 3)))


# -- motifs --------------------------------------------------------------------------------------------------------
def densities_by_hand(dense: np.ndarray) -> list[float]:
    """By going through all sets of nodes."""
    n = len(dense)
    triples = [dense[np.ix_(s, s)].sum() / 2 for s in itertools.combinations(range(n), 3)]
    v = sum({2: 1, 3: 3}.get(int(count), 0) for count in triples)
    triangle = sum(count == 3 for count in triples)
    stars = sum(
        all(dense[centre, other] for other in s if other != centre)
        for s in itertools.combinations(range(n), 4)
        for centre in s
    )
    k = dense.sum(axis=0)
    quads = len(triples) * (n - 3) / 4
    return [
        dense.sum() / (n * (n - 1)),
        v / (3 * len(triples)),
        triangle / len(triples),
        stars / (4 * quads),
        3 * triangle / v,
        k.std() / k.mean(),
    ]


def test_motif_densities_are_those_of_going_through_all_sets_of_nodes():
    ties = random(14, 0.4)
    np.testing.assert_allclose(motifs(ties).values, densities_by_hand(ties.toarray()), rtol=1e-12)


def without(ties: sparse.csr_array, i: int) -> sparse.csr_array:
    keep = np.delete(np.arange(ties.shape[0]), i)
    return sparse.csr_array(ties[keep][:, keep])


def jackknife(values: np.ndarray) -> np.ndarray:
    """(leave-outs, figures) to their covariance."""
    n = len(values)
    return np.atleast_2d(np.cov(values.T)) * (n - 1) ** 2 / n


def test_the_closed_form_is_the_jackknife_of_leaving_every_node_out_and_grows_with_the_frame():
    ties = random(50, 0.2)
    found = motifs(ties)
    left = np.array([motifs(without(ties, i)).values for i in range(50)])
    np.testing.assert_allclose(found.covariance, jackknife(left), rtol=1e-9)
    np.testing.assert_allclose(motifs(ties, reference_size=25).covariance, 3 * found.covariance, rtol=1e-12)
    for name in MOTIFS:
        moment = motifs(ties, reference_size=50).log(name)
        at = MOTIFS.index(name)
        assert moment.yi == pytest.approx(np.log(found.values[at]))
        assert moment.vi == pytest.approx(2 * found.covariance[at, at] / found.values[at] ** 2)


def test_a_motif_that_does_not_occur_is_refused_and_never_a_zero():
    path = simple(sparse.csr_array(np.diag(np.ones(9), 1)))
    assert np.isfinite(motifs(path).log("edge").yi)
    for name, ties in (
        ("triangle", path),
        ("edge", sparse.csr_array((9, 9), dtype=np.int32)),
        ("degree_cv", simple(sparse.csr_array(np.ones((9, 9))))),
    ):
        with pytest.raises(EstimateRefusal, match="positive and vary"):
            motifs(ties).log(name)
    with pytest.raises(EstimateRefusal, match="5 nodes"):
        motifs(simple(sparse.csr_array(np.ones((4, 4)))))
    with pytest.raises(ParameterError, match="one of"):
        motifs(path).log("squares")
    with pytest.raises(ParameterError, match="at least one"):
        motifs(path, reference_size=0)


# -- attributes and communities ------------------------------------------------------------------------------------
def test_assortativity_is_the_correlation_over_ends_and_newmans_coefficient_with_their_jackknives():
    ties = random(40, 0.25)
    rng = np.random.default_rng(3)
    number, level = rng.normal(size=40), rng.integers(0, 3, 40).astype(float)

    def by_hand(ties: sparse.csr_array, x: np.ndarray, levels: int | None) -> float:
        i, j = ties.nonzero()
        if levels is None:
            return float(np.corrcoef(x[i], x[j])[0, 1])
        e = np.zeros((levels, levels))
        np.add.at(e, (x[i].astype(int), x[j].astype(int)), 1 / len(i))
        chance = (e.sum(axis=0) * e.sum(axis=1)).sum()
        return float((np.trace(e) - chance) / (1 - chance))

    for x, levels in ((number, None), (level, 3)):
        found = assortativity(ties, x, levels=levels)
        assert found.yi == pytest.approx(by_hand(ties, x, levels))
        left = np.array([[by_hand(without(ties, i), np.delete(x, i), levels)] for i in range(40)])
        assert found.vi == pytest.approx(jackknife(left)[0, 0], rel=1e-9)
        assert assortativity(ties, x, levels=levels, reference_size=20).vi == pytest.approx(3 * found.vi)
    missing = number.copy()
    missing[4] = np.nan
    assert assortativity(ties, missing).yi == pytest.approx(by_hand(without(ties, 4), np.delete(number, 4), None))


def test_assortativity_of_nothing_is_refused():
    ties = random(30, 0.3)
    for given, x in (
        (sparse.csr_array((30, 30), dtype=np.int32), np.arange(30.0)),
        (ties, np.zeros(30)),
        (ties, np.full(30, np.nan)),
    ):
        with pytest.raises(EstimateRefusal, match="varies"):
            assortativity(given, x)


def test_communities_that_are_there_are_found():
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(3), 80)
    p = np.where(labels[:, None] == labels, 0.3, 0.03)
    ties = simple(sparse.csr_array(np.triu(rng.random((240, 240)) < p, 1)))
    assert agreement(communities(ties, 3, rng), labels) > 0.97
    assert agreement(communities(ties, 1, rng), labels) == pytest.approx(1 / 3)
    assert agreement(rng.permutation(labels), labels) < 0.5
    assert (communities(sparse.csr_array((9, 9), dtype=np.int32), 2, rng) == 0).all()
    with pytest.raises(ParameterError, match="below the nodes"):
        communities(ties, 240, rng)


# -- networks with directions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [None, 20])
def test_figures_of_arcs_and_their_jackknife_are_those_of_leaving_every_node_out(frame, monkeypatch):
    monkeypatch.setattr(networks, "_WORK", 100)  # several blocks
    rng = np.random.default_rng(3)
    n, weight = 40, rng.uniform(0.3, 1.6, (2, 40))
    dense = (rng.random((n, n)) < 0.2 * np.outer(*weight)).astype(float)
    dense = np.maximum(dense, (dense.T > 0) & (rng.random((n, n)) < 0.5)) * (1 - np.eye(n))
    found = networks.arcs(sparse.csr_array(dense + np.eye(n)), reference_size=frame)  # loops do not count
    np.testing.assert_allclose(found.values, arc_figures(dense), rtol=1e-12)
    left = np.array([arc_figures(np.delete(np.delete(dense, i, 0), i, 1)) for i in range(n)]).T
    left = left - left.mean(axis=1, keepdims=True)
    expected = (n - 1) / n * left @ left.T * (1 if frame is None else 1 + n / frame)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-9, atol=1e-15)
    assert found.log("reciprocity").yi == pytest.approx(np.log(found.values[1]))
    with pytest.raises(ParameterError, match="one of arc"):
        found.at("edge")


def test_arcs_of_networks_without_any_returned_or_without_nodes_are_refused():
    one_way = sparse.csr_array(np.triu(np.ones((8, 8)), 1))
    with pytest.raises(EstimateRefusal, match="must be positive"):
        networks.arcs(one_way).log("reciprocity")
    with pytest.raises(EstimateRefusal, match="at least 5 nodes"):
        networks.arcs(sparse.csr_array((4, 4)))
    with pytest.raises(ParameterError, match="square"):
        networks.arcs(sparse.csr_array((6, 4)))
