"""What a site gives to a secure sum, pilot, level and sum at once: no attack proves more than is charged for who looks.

The same attack proves more with half the noise, of all three parts or of one of them: it would find what is not drawn.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.base.randomness import seeded_rng
from shared.mechanisms.secure_sum.influences import noisy_level
from shared.privacy.accountant import epsilon
from tests.benchmarks.secure_sum_attack import LEVEL_GRID, PARTS, attacked_site, bound, noise_of, proved

RUNS = 20_000


@pytest.fixture(scope="module")
def site():
    return attacked_site()


def test_the_bound_is_below_the_truth_of_two_known_worlds():
    rng = np.random.default_rng(4)
    found = rng.standard_normal((2, 100_000)) + np.array([[0.25], [-0.25]])
    assert 0.4 < bound(found) < 0.5
    assert bound(found[::-1]) == 0.0


def test_the_two_records_move_every_part_by_all_that_is_charged_for_it(site):
    """But for the pilot, of which they are within a thirtieth: an attack that looks elsewhere proves nothing."""
    for part, event in zip(PARTS, site.release.event(site.plan).events, strict=True):
        blocks = noise_of(site, part, 9, seeded_rng(1))
        moved = math.sqrt(sum(np.square((steps[0] - steps[1]) / sigma).sum() for steps, _, sigma in blocks))
        assert 0.97 * event.sensitivity / event.sigma < moved <= event.sensitivity / event.sigma, part


def test_the_level_is_drawn_as_a_site_draws_it(site):
    [(steps, drawn, sigma)] = noise_of(site, "level", 0, seeded_rng(3))
    told = noisy_level(site.look(), site.x[:1], site.y[:1], sigma * LEVEL_GRID, seeded_rng(3))
    assert tuple((steps[0] + drawn) * LEVEL_GRID) == told


def test_whoever_looks_at_all_that_a_site_gives_proves_no_more_than_is_charged_and_more_with_half_the_noise(site):
    alone, colluder, half, others = [
        (proved(site, row.colluders, RUNS), row.epsilon, proved(site, row.colluders, RUNS, PARTS)) for row in site.rows
    ]
    for found, charged, halved in (alone, colluder, half, others):
        assert charged / 3 < found <= charged < halved
    assert alone[1] < colluder[1] <= 1.0  # the plan's
    assert 1.0 < others[0] <= 2.3, "the attack sees who looks"


@pytest.mark.parametrize(("part", "runs"), [("pilot", RUNS), ("level", 200_000), ("sum", RUNS)])
def test_half_the_noise_of_one_part_is_found(part, runs, site):
    """By itself, beside what is charged for it alone: the level is a twentieth of the budget."""
    one, events = site.terms.colluders, dict(zip(PARTS, site.release.event(site.plan).events, strict=True))
    charged = epsilon(events[part], site.plan.budget.delta)
    assert proved(site, one, runs, (), (part,)) <= charged < proved(site, one, runs, (part,), (part,))
