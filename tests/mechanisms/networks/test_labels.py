"""A label told by randomised response: its exact odds, that nodes are separate; communities.

That labels are drawn by these odds is worked out in tests/both_sides/privacy/test_choices.py.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse, stats
from stage.mechanisms.networks import agreement

from shared.base.randomness import secure_rng, seeded_rng
from shared.errors import ParameterError
from shared.mechanisms.grand.labels import LabelPrivate, parted
from shared.mechanisms.grand.noise import MODELS, Labelled, NodePrivate, smoothed_uniform
from shared.privacy import accountant as privacy
from site_agent.models.latent_fit import fit
from site_agent.models.latent_space import LatentSpace, communities, draw_pairs

ALPHA = 1e-6
COUNTS = ((100, 100, 100), (400, 80, 20), (1, 1), (10_000, 1), (5,), tuple(range(20, 40)))


def below_e(x: float) -> Fraction:
    """A fraction below e^x, for x of at most 40: so many terms of the exponential series, all positive, exactly."""
    total = term = Fraction(1)
    for k in range(1, 200):
        term *= Fraction(x) / k
        total += term
    return total


# -- the price -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.5, 1.0, 5.0, 20.0, 40.0])
def test_no_label_s_odds_are_above_the_price_and_the_rarest_attains_it(counts, epsilon):
    made = LabelPrivate(epsilon=epsilon, counts=counts)
    k = len(counts)
    table = [[made.probability(label, given) for label in range(k)] for given in range(k)]
    assert all(sum(row) == 1 for row in table)
    ratios = [max(column) / min(column) for column in zip(*table, strict=True)]
    assert max(ratios) <= below_e(epsilon)
    assert privacy.pure_epsilon(made.event) == epsilon
    if k > 1:
        assert ratios.index(max(ratios)) == counts.index(min(counts))
        # ρ stops at 1 − 2⁻⁵³, and below 2⁻⁵³ it is 0: between them the price is used up.
        if 1e-6 < epsilon < 30:
            assert math.log(max(ratios)) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-12, 700.0, 1e6])
def test_extreme_prices_are_possible_and_the_odds_still_below_them(epsilon):
    made = LabelPrivate(epsilon=epsilon, counts=(30, 20))
    rho = made.keep_probability
    assert 0 <= rho < 1
    odds = rho / (1 - rho) / Fraction(2, 5)
    assert odds <= Fraction(math.expm1(min(epsilon, 700.0)))
    told = made.release(np.zeros(50, dtype=np.int64), [str(n) for n in range(50)], seeded_rng(1))
    assert (told == 0).all() if epsilon > 1 else 0 < told.sum() < 50


def test_the_shares_of_the_hold_out_are_those_of_what_is_released():
    made = LabelPrivate(epsilon=1.3, counts=(400, 80, 20))
    shares = [Fraction(count, 500) for count in made.counts]
    for label in range(3):
        assert sum(shares[given] * made.probability(label, given) for given in range(3)) == shares[label]


@pytest.mark.parametrize("total", [1e-3, 0.3, 1.0, 10 / 3, 10.0, 1e3])
@pytest.mark.parametrize("share", [0.05, 0.1, 1 / 3, 0.5, 0.95])
def test_two_parts_add_up_to_the_whole_exactly_and_so_does_the_price_of_both(total, share):
    first, rest = parted(total, share)
    assert Fraction(first) + Fraction(rest) == Fraction(total)
    assert first == pytest.approx(share * total, rel=1e-12)
    for p in (1, 2, 7):
        both = privacy.Composition(
            events=(LabelPrivate(epsilon=first, counts=(3, 4)).event, NodePrivate(epsilon=rest, p=p).event)
        )
        assert total * (1 - 1e-12) < privacy.pure_epsilon(both) <= total


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan, 1, "half"])
def test_a_share_that_leaves_nothing_for_one_of_them_is_refused(share):
    with pytest.raises(ParameterError):
        parted(1.0, share)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"epsilon": True},
        {"counts": ()},
        {"counts": (10, 0)},
        {"counts": (10, -1)},
    ],
)
def test_a_label_that_cannot_be_told_is_refused_at_construction(wrong):
    with pytest.raises(ParameterError):
        LabelPrivate(**{"epsilon": 1.0, "counts": (5, 5), **wrong})


def test_labels_that_nobody_in_the_hold_out_has_are_refused():
    made = LabelPrivate(epsilon=1.0, counts=(5, 5))
    for labels in ([0, 2], [-1, 0], [0]):
        with pytest.raises(ParameterError):
            made.release(np.array(labels), ["a", "b"], seeded_rng(1))
    with pytest.raises(ParameterError, match="once"):
        made.release(np.array([0, 1]), ["a", "a"], seeded_rng(1))


# -- what is drawn ------------------------------------------------------------------------------------------------
def test_a_label_is_its_node_s_own_whoever_else_is_there_and_no_draw_is_used_twice():
    made = LabelPrivate(epsilon=1.0, counts=(30, 20, 10))
    names = [f"node {number}" for number in range(60)]
    own = np.arange(60) % 3
    told = made.release(own, names, seeded_rng(5))
    np.testing.assert_array_equal(made.release(own[3:40:2], names[3:40:2], seeded_rng(5)), told[3:40:2])
    moved = own.copy()
    moved[17] = (own[17] + 1) % 3
    np.testing.assert_array_equal(np.delete(made.release(moved, names, seeded_rng(5)), 17), np.delete(told, 17))
    source = seeded_rng(5)
    assert not np.array_equal(made.release(own, names, source), made.release(own, names, source))
    assert not np.array_equal(made.release(own, names, secure_rng()), made.release(own, names, secure_rng()))


# -- level 2: the best attacker on label and coordinates together --------------------------------------------------
FRAME = np.random.default_rng(1).normal(size=(120, 1)) + np.repeat([[0.0], [4.0]], [90, 30], axis=0)
HELD = np.repeat([0, 1], [90, 30])


def log_ratio(label: LabelPrivate, mechanism: NodePrivate, times: int) -> tuple[float, float]:
    """Bounds, wrong once in a million, of the log ratio of the worst event for two nodes that differ most.

    The event is that the rarer label is released and the noisy rank is at most G(0). The node that has that label and
    the lowest place meets it with probability (ρ + (1 − ρ) π) / 2; one of the other label in the highest place with
    (1 − ρ) π e^(-1/b) / 2: a log ratio of exactly the two prices' sum.
    """
    hits = []
    for number, (place, own) in enumerate(((-50.0, 1), (50.0, 0))):
        names = [f"{number} {time}" for time in range(times)]
        told = label.release(np.full(times, own), names, seeded_rng(3 + number))
        # One stream for all: the law is that of one for each, at a hundredth of the time.
        noise = seeded_rng(30 + number).lattice_laplace_steps(mechanism.scale, (times, 1), 2.0**-20) * 2.0**-20
        v = mechanism.ranks(np.full((times, 1), place), FRAME, noise, np.full(times, own), HELD)[:, 0]
        hits.append(int(((told == 1) & (v <= smoothed_uniform(np.zeros(1), mechanism.scale))).sum()))
    low, high = (stats.beta.ppf([5e-7, 1 - 5e-7], [h, h + 1], [times - h + 1, times - h]) for h in hits)
    return float(np.log(low[0] / high[1])), float(np.log(low[1] / high[0]))


def test_an_attack_on_label_and_rank_together_finds_the_stated_sum_and_more_where_either_is_cheaper_than_said():
    first, rest = parted(1.6, 0.5)
    label, mechanism = LabelPrivate(epsilon=first, counts=(90, 30)), NodePrivate(epsilon=rest, p=1)
    honest = log_ratio(label, mechanism, 2500)
    assert honest[0] <= 1.6 <= honest[1]
    # A half of the flips, or a half of the noise: more than is charged is found.
    flips = float(1 - label.keep_probability) / 2
    half = LabelPrivate(epsilon=math.log1p((1 - flips) / flips / 0.25), counts=(90, 30))
    assert float(half.keep_probability) == pytest.approx(1 - flips)
    assert log_ratio(half, mechanism, 2500)[0] > 1.6
    assert log_ratio(label, NodePrivate(epsilon=2 * rest, p=1), 2500)[0] > 1.6


# -- coordinates within a label ------------------------------------------------------------------------------------
def test_coordinates_follow_the_law_of_the_released_label_and_keep_their_rank_from_the_true_one():
    rng = np.random.default_rng(2)
    held = np.repeat([0, 1], 600)
    frame = rng.normal(size=(1200, 2)) + 10 * held[:, None]
    own = np.repeat([0, 1], 200)
    latents = rng.normal(size=(400, 2)) + 10 * own[:, None]
    told = 1 - own
    mechanism = NodePrivate(epsilon=200.0, p=2)
    noise = mechanism.noise([str(n) for n in range(400)], seeded_rng(1))
    out = mechanism.privatise(latents, frame, noise, None, Labelled(reference=held, own=own, released=told))
    assert ((out[:, 0] > 5) == (told == 1)).all()
    for label in (0, 1):
        assert stats.ks_2samp(out[told == label, 0], frame[held == label, 0]).pvalue > ALPHA
        kept = stats.spearmanr(out[told == label, 0], latents[told == label, 0]).statistic
        assert kept > 0.99
    # One label for all is no label.
    none = Labelled(reference=0 * held, own=0 * own, released=0 * own)
    np.testing.assert_array_equal(
        mechanism.privatise(latents, frame, noise, None, none), mechanism.privatise(latents, frame, noise)
    )


def test_a_label_without_a_hold_out_node_and_labels_of_another_shape_are_refused():
    mechanism = NodePrivate(epsilon=1.0, p=1)
    noise = mechanism.noise(["a", "b"], seeded_rng(1))
    for frame, own, told in (
        (HELD, [0, 2], [0, 0]),
        (HELD, [0, 0], [2, 0]),
        (HELD[:4], [0, 0], [0, 0]),
        (HELD, [0], [0, 0]),
    ):
        labelled = Labelled(reference=frame, own=np.array(own), released=np.array(told))
        with pytest.raises(ParameterError):
            mechanism.privatise(np.zeros((2, 1)), FRAME, noise, None, labelled)


@pytest.fixture(scope="module")
def blocks() -> tuple[np.ndarray, np.ndarray]:
    """A network of 300 in three communities, and whose is whose."""
    rng = np.random.default_rng(8)
    label = rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    chance = np.where(label[:, None] == label, 0.5, 0.08)
    upper = np.triu(rng.random((300, 300)) < chance, 1)
    return (upper | upper.T).astype(np.float64), label


def released(ties: np.ndarray, n: int, model: str, directed: bool) -> tuple[np.ndarray, np.ndarray]:
    """The whole way to released communities and private coordinates of the first n nodes."""
    space = fit(sparse.csr_array(ties[n:, n:]), model=model, d=3, directed=directed, rng=np.random.default_rng(1))
    across = [sparse.csr_array(ties[:n, n:])] + ([sparse.csr_array(ties[n:, :n].T)] if directed else [])
    latents = space.nodes(*across)
    found = communities(space, 3, np.random.default_rng(2), least=20)
    own, held = found.of(latents), found.of(space.positions)
    first, rest = parted(10.0, 0.5)
    names = [str(i) for i in range(n)]
    told = LabelPrivate(epsilon=first, counts=tuple(np.bincount(held))).release(own, names, seeded_rng(9))
    mechanism = NodePrivate(epsilon=rest, p=space.p)
    labelled = Labelled(reference=held, own=own, released=told)
    noise = seeded_rng(10).lattice_laplace_steps(mechanism.scale, latents.shape, 2.0**-20) * 2.0**-20
    return told, mechanism.privatise(latents, space.positions, noise, None, labelled)


@pytest.mark.parametrize(("model", "directed"), [("inner_product", True), ("rdpg", False), ("grdpg", False)])
def test_changing_a_node_s_ties_leaves_every_other_label_and_coordinate_the_same_to_the_last_bit(
    blocks, model, directed
):
    ties, label = blocks
    told, before = released(ties, 150, model, directed)
    node, other = np.flatnonzero(label[:150] == 0)[0], np.flatnonzero(label[:150] == 2)[0]
    # One that is tied to nobody, to everybody, and one that moves into another community.
    for row in (np.zeros(150), np.ones(150), ties[other, 150:]):
        changed = ties.copy()
        changed[node, 150:] = changed[150:, node] = row
        told_after, after = released(changed, 150, model, directed)
        np.testing.assert_array_equal(np.delete(told, node), np.delete(told_after, node))
        np.testing.assert_array_equal(np.delete(before, node, axis=0), np.delete(after, node, axis=0))
        assert not np.array_equal(before[node], after[node])
    poisoned = ties.copy()
    poisoned[:150, :150] = np.nan
    np.testing.assert_array_equal(before, released(poisoned, 150, model, directed)[1])


# -- communities ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("directed", [False, True])
def test_communities_of_the_hold_out_are_found_and_other_nodes_told_apart_by_them(blocks, model, directed):
    ties, label = blocks
    space = fit(sparse.csr_array(ties[150:, 150:]), model=model, d=3, directed=directed, rng=np.random.default_rng(1))
    found = communities(space, 3, np.random.default_rng(2), least=20)
    assert found.k == 3
    assert agreement(found.of(space.positions), label[150:]) > 0.95
    across = [sparse.csr_array(ties[:150, 150:])] * (1 + directed)
    latents = space.nodes(*across)
    own = found.of(latents)
    assert agreement(own, label[:150]) > 0.9
    np.testing.assert_array_equal(found.of(latents[5:9]), own[5:9])
    # Attributes after the coordinates, and values that are none, say nothing.
    assert found.of(np.column_stack([latents, np.full(150, 1e9)])).tolist() == own.tolist()
    assert found.of(np.full((1, space.p), np.nan)).shape == (1,)


def test_a_community_of_a_few_is_joined_with_its_neighbours():
    rng = np.random.default_rng(1)
    centres = np.repeat([[0.0, 0], [10, 0], [10, 9]], [60, 55, 5], axis=0)
    space = LatentSpace(
        model="inner_product",
        d=2,
        directed=False,
        positions=np.column_stack([np.zeros(120), centres + 0.1 * rng.normal(size=(120, 2))]),
    )
    assert sorted(np.bincount(communities(space, 3, rng).of(space.positions))) == [5, 55, 60]
    found = communities(space, 3, rng, least=20)
    assert np.bincount(found.of(space.positions)).tolist() == [60, 60]
    # All alike: one community is left, and everybody has it.
    alike = LatentSpace(model="rdpg", d=1, directed=False, positions=np.ones((50, 1)))
    assert communities(alike, 2, rng, least=20).of(np.array([[1.0], [-1.0], [0.0]])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("k", [1, 0, True, 2.0, 7, 121])
def test_communities_that_the_hold_out_cannot_fill_are_refused(k):
    space = LatentSpace(model="rdpg", d=1, directed=False, positions=np.linspace(0, 1, 120)[:, None])
    with pytest.raises(ParameterError):
        communities(space, k, np.random.default_rng(1), least=20)


def test_communities_that_are_told_first_are_found_again_in_the_released_network():
    """What `communities` in a plan is for: at ε = 10 in all nine labels in ten, where coordinates alone keep six."""
    from shared.mechanisms.grand.clusters import communities as clustered

    rng = np.random.default_rng(3)
    label = rng.integers(0, 3, 1200)
    chance = np.where(np.eye(3, dtype=bool), 0.25, 0.05).astype(np.float32)
    ties = draw_pairs(lambda i, j: chance[label[i]][:, label[j]], 1200, rng.bytes(32))
    space = fit(ties[600:][:, 600:], model="grdpg", d=3, rng=rng)
    latents = space.nodes(ties[:600][:, 600:])
    names = [str(n) for n in range(600)]

    def again(epsilon: float, share: float | None) -> float:
        first, rest = (None, epsilon) if share is None else parted(epsilon, share)
        mechanism, labelled = NodePrivate(epsilon=rest, p=3), None
        if first is not None:
            places = communities(space, 3, rng, least=20)
            own, held = places.of(latents), places.of(space.positions)
            made = LabelPrivate(epsilon=first, counts=tuple(np.bincount(held)))
            labelled = Labelled(reference=held, own=own, released=made.release(own, names, seeded_rng(1)))
        noise = seeded_rng(2).lattice_laplace_steps(mechanism.scale, latents.shape, 2.0**-20) * 2.0**-20
        z = mechanism.privatise(latents, space.positions, noise, None, labelled)
        return agreement(clustered(space.draw(z, bytes(32)), 3, rng), label[:600])

    assert again(10.0, 0.5) > 0.9
    assert again(10.0, None) < 0.75
