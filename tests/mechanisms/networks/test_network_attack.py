"""What the edges of a released network alone tell of a node: never more than ε, and more with half the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.benchmarks.grand_network_attack import EPSILON, Attack, Scaled, bound, counts, found


def test_the_bound_is_below_the_truth_of_two_known_worlds():
    """At most 9 edges of 30: probabilities by the binomial law, and a bound below their log ratio, not by much."""
    rng = np.random.default_rng(3)
    first, second = (np.column_stack([rng.binomial(30, p, 4000), rng.binomial(30, 0.5, 4000)]) for p in (0.3, 0.5))
    worst = 30 * math.log(0.7 / 0.5)  # of no edge at all, which no run meets
    assert 1.5 < bound(first, second, 30) < worst
    assert bound(first, first[::-1], 30) <= 0.0


def test_edges_alone_keep_epsilon_and_tell_more_than_it_with_half_the_noise():
    """A random dot product graph of d = 1: p = 1, so that half the noise costs exactly twice as much."""
    attack = Attack("rdpg", "two groups")
    bounds = [found(attack, EPSILON, 1600, (Scaled(5, factor), Scaled(6, factor))) for factor in (1.0, 0.5)]
    assert 0.3 < bounds[0] <= EPSILON < bounds[1] <= 2 * EPSILON


def test_two_nodes_that_lie_the_same_cannot_be_told_apart():
    attack = Attack("rdpg", "even")
    first, second = (counts(attack, EPSILON, 1, 400, Scaled(seed, 1.0)) for seed in (7, 8))
    assert bound(first, second, attack.others) <= 0.0


@pytest.mark.soak
@pytest.mark.parametrize("model", ["rdpg", "inner_product"])
@pytest.mark.parametrize("frame", ["two groups", "even"])
def test_edges_alone_keep_epsilon_in_every_model_and_frame(model, frame):
    attack = Attack(model, frame)
    strict, halved = (found(attack, EPSILON, 40_000, (Scaled(9, factor), Scaled(10, factor))) for factor in (1.0, 0.5))
    assert strict <= EPSILON < halved <= 2 * EPSILON
