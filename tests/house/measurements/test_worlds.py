"""The hard worlds are what they say, and each belongs to one half."""

from __future__ import annotations

import numpy as np
import pytest

from shared.estimands.answer import estimate, parse_estimand
from tests.benchmarks import worlds
from tests.benchmarks.worlds import laws


@pytest.mark.parametrize("name", laws.WORLDS)
def test_a_world_answers_every_question_that_its_plan_asks(name):
    world = worlds.world(name)
    table = world(2000, np.random.default_rng(1), 3)
    for kind in world.kinds:
        dictionary = world.dictionary(kind)
        dictionary.check(table[list(dictionary.names)])
        levels = {column.name: column.levels for column in dictionary.columns if column.levels}
        rows = estimate(table, parse_estimand(world.question(kind)), levels=levels)
        assert [row.term for row in rows if row.yi is None] == []


def test_a_world_depends_on_nothing_but_its_generator():
    for name, world in laws.WORLDS.items():
        first, again = (world(200, np.random.default_rng(5), 2) for _ in range(2))
        assert first.equals(again), name


def test_every_world_is_of_one_half_and_real_tables_are_reported():
    assert set(worlds.TUNING).isdisjoint(worlds.REPORTING)
    assert {*worlds.TUNING, *worlds.REPORTING} >= set(laws.WORLDS)
    assert {"flchain", "nafld", "rotterdam", "heart"} <= set(worlds.REPORTING)


def test_the_dead_of_an_unequal_world_have_another_spread():
    table = worlds.world("unequal_variances")(20_000, np.random.default_rng(1), 0)
    spread = table.groupby("died")["sbp"].std()
    assert spread[1] > 1.3 * spread[0]
