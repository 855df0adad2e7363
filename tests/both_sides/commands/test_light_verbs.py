"""A command that holds no table loads none of the libraries that tables are read, fitted and drawn with."""

from __future__ import annotations

import pytest
from stage.house.light_verbs import HEAVY, STORED, VERBS, environment, loaded, study


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with study(tmp_path_factory.mktemp("verbs")) as (stage, made):
        lines = [(verb.module, verb.argv(made)) for verb in VERBS]
        return dict(zip(VERBS, loaded(lines, environment(stage)), strict=True))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_command_that_holds_no_table_loads_nothing_that_it_has_no_use_for(found, verb):
    assert found[verb]["code"] == 0
    needless = set(found[verb]["heavy"]) - set(verb.may)
    assert not needless, f"{verb.name} loads {', '.join(sorted(needless))}"


def test_the_measure_finds_what_a_command_loads():
    [read] = loaded([("pandas", [])], {})
    assert read["heavy"][:2] == ["numpy", "pandas"]
    assert set(HEAVY).isdisjoint(STORED)
