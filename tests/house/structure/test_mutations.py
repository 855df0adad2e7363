"""The mutations fit the source they break; by night, every one of them is killed."""

from __future__ import annotations

import ast

import mutations
import pytest
from mutations import MUTATIONS, ROOT, Edit, Mutation, copied, run, run_all

from tests.benchmarks.suite_time import power
from tests.stage.house.sources import parsed
from tests.unseen_edits import EDITS


@pytest.mark.parametrize("one", [*MUTATIONS, *EDITS], ids=lambda one: one.name)
def test_each_mutation_finds_its_line_and_leaves_a_program(one):
    """When a line is rewritten, its mutation has to be rewritten with it, or it would no longer test anything."""
    texts = {}
    for edit in one.edits:
        text = texts.get(edit.path, (ROOT / edit.path).read_text())
        assert text.count(edit.old) == 1, f"{edit.path}: {text.count(edit.old)} places for {edit.old!r}"
        assert edit.old != edit.new
        texts[edit.path] = text.replace(edit.old, edit.new)
    for text in texts.values():
        ast.parse(text)


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_each_mutation_names_tests_that_exist(one):
    assert one.tests
    for test in one.tests:
        path, _, name = test.partition("::")
        functions = {node.name for node in parsed(ROOT / path).body if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in functions, test


def test_no_two_mutations_have_one_name():
    every = [one.name for one in (*MUTATIONS, *EDITS)]
    assert len({*every}) == len(every)
    assert len(MUTATIONS) >= 14


def test_four_edits_in_five_are_noticed_by_a_test_that_is_tried_every_day():
    found = power()
    assert found["edits"] >= 230
    assert found["noticed_each_day"] >= 0.8 * found["edits"]


@pytest.mark.soak
def test_an_edit_that_breaks_nothing_survives_and_one_that_cannot_be_imported_kills_nothing():
    """The judge can say no."""
    tests = ("tests/both_sides/base/test_randomness.py::test_two_secure_sources_never_agree",)
    line = "return Noise(_key=None)"
    harmless = Mutation("harmless", (Edit(mutations.RANDOM, line, line + "  # as before"),), tests)
    broken = Mutation("no program", (Edit(mutations.RANDOM, line, "return Noise(_key="),), tests)
    real = next(one for one in MUTATIONS if one.name == "a fixed seed for every source")
    with copied() as root:
        before = (root / mutations.RANDOM).read_text()
        assert [run(root, one).killed for one in (harmless, broken, real)] == [False, False, True]
        assert (root / mutations.RANDOM).read_text() == before


@pytest.mark.soak
def test_every_mutation_is_killed(record_property):
    outcomes = run_all()
    record_property("mutations", len(outcomes))
    record_property("killed", sum(outcome.killed for outcome in outcomes))
    assert [outcome.name for outcome in outcomes if not outcome.killed] == []
