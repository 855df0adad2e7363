"""docs/zoo.md is what the recorded figures say, and the zoo counts right and wrong answers as it says."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from shared.estimands.answer import Estimate
from shared.plans.plan import Training
from tests.benchmarks import worlds, zoo, zoo_moments, zoo_page, zoo_sizes_page, zoo_targets_page


def test_the_page_is_what_its_command_writes_from_the_recorded_figures():
    assert zoo_page.PAGE.read_text(encoding="utf-8") == zoo_page.page(), "run python -m tests.benchmarks.zoo_page"


def test_what_is_said_to_be_run_after_a_choice_is_of_reported_worlds_and_of_a_seed_that_no_other_record_has():
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in zoo_page.RESULTS.glob("*.json")}
    arms = [records[name] for name in zoo_page.DECLARED_AFTER]
    assert not {one["seed"] for one in arms} & {
        one.get("seed") for name, one in records.items() if name not in zoo_page.DECLARED_AFTER
    }
    cells = [[(one["world"], one["kind"]) for one in arm["results"]["cells"]] for arm in arms]
    assert cells[0] == cells[1]
    assert {world for world, _ in cells[0]} <= set(worlds.REPORTING)


def test_a_signal_that_tells_all_wrong_answers_has_area_one_and_one_that_tells_none_a_half():
    wrong = [False] * 10 + [True] * 4
    found = zoo.told_apart([*range(10), 20, 30, 40, 50], wrong)
    assert found == {"roc_area": 1.0, "caught_at_10": 100.0, "caught_at_20": 100.0}
    assert zoo.told_apart([1.0] * 14, wrong)["roc_area"] == pytest.approx(0.5)
    assert zoo.told_apart([1.0] * 10, [False] * 10) == {}


def test_two_types_of_outcome_of_each_world_are_others_from_world_to_world():
    given = argparse.Namespace(half="reporting", worlds=worlds.TUNING[:5], kinds=worlds.KINDS, n=(300,), some=1)
    chosen = [(name, kind) for name, kind, _ in zoo.cells_of(given)]
    assert all(sum(name == world for name, _ in chosen) == 2 for world in given.worlds)
    assert {kind for _, kind in chosen} == set(worlds.KINDS)


def test_fewer_sites_are_the_first_of_the_many(monkeypatch):
    monkeypatch.setattr(zoo, "LAW", 2000)
    few, many = zoo.cell("rare_event", "groups", 150, (2, 3), (0.8,), 1, Training(outcomes="last"))
    (alone,) = zoo.cell("rare_event", "groups", 150, (2,), (0.8,), 1, Training(outcomes="last"))
    assert few["terms"] == alone["terms"] != many["terms"]
    assert [few["sites"], many["sites"]] == [2, 3]


def test_an_answer_is_right_where_its_interval_holds_the_records_and_a_caution_is_no_note():
    def pooled(yi, **more):
        rows = [
            Estimate(study="z", site=f"s{k}", wave=1, term="x", yi=yi, vi_sampling=0.01, n=90, **more) for k in range(3)
        ]
        return zoo_moments.pooled(rows, "x")

    truly = pooled(0.2)
    assert truly.notes != ()  # three sites are few
    found = zoo_moments.held_against([pooled(0.2), pooled(0.25, warnings=("The flow …",)), pooled(9.0)], truly)
    assert [found[name] for name in ("right", "wrong", "right_cautioned", "wrong_cautioned")] == [2, 1, 1, 0]
    assert found["missed"] == [False, False, True]
    assert np.isclose(found["held"], 2 / 3)


def answers(held, where="at n = 300, K = 4", width=2.0):
    """Ten coefficients of one draw, of which so many hold the records' answer."""
    terms = [("u shape, count", {"held": k < held, "width": width, "bias_own": 0.1 * k}) for k in range(10)]
    return zoo_targets_page.Some(where=where, found={"held": 10.0 * held}, terms=terms, draws=1)


def test_a_share_reaches_its_target_or_says_how_far_it_is_and_of_what():
    assert zoo_targets_page._percent("it", answers(10))[1:] == ["≥ 92", "100.0 (72 to 100)", "yes"]
    assert zoo_targets_page._percent("it", answers(8))[-1] == "no, within chance; 2 of 10 outside: u shape, count 2"
    assert zoo_targets_page._percent("it", answers(3))[-1] == "no; 7 of 10 outside: u shape, count 7"


def test_the_lowest_size_stands_with_how_many_others_are_below():
    sizes = [answers(10), answers(8), answers(3, "at n = 300, K = 48")]
    ((what, *_, reached),) = zoo_targets_page._least("it", sizes)
    assert what.endswith("lowest: at n = 300, K = 48")
    assert reached.endswith("; 2 of 3 are below")
    assert "below" not in zoo_targets_page._least("it", sizes[::2])[0][-1]


def test_noise_alone_is_less_in_the_mean_of_several_draws_and_nothing_where_the_interval_is_the_records():
    one, exact = answers(10, width=2**0.5), answers(10, width=1.0)
    assert one.noise(own=False) == pytest.approx((0.674, 1.96), abs=0.001)
    assert one.noise(own=True)[1] == pytest.approx(1.96 / 2**0.5, abs=0.001)
    four = zoo_targets_page.Some(where="", found={}, terms=one.terms, draws=4)
    assert four.noise(own=False)[1] == pytest.approx(0.98, abs=0.001)
    assert exact.noise(own=False) == (0.0, 0.0)


def test_an_answer_that_two_records_have_counts_once(monkeypatch):
    line = "held=0 width=2 right_cautioned=0 wrong_cautioned=1"
    cell = {"world": "u_shape", "kind": "count", "n": 300, "sites": 4, "terms": {"arm, epsilon=3": line}}
    records = {"few": [cell], "many": [cell, cell | {"n": 1000}]}
    monkeypatch.setattr(zoo_page, "results", lambda name: {"draws": 1, "cells": records[name]})
    found = zoo_page.reach(["few", "many"])
    assert (found["right"], found["wrong"], found["wrong_cautioned"]) == (0, 2, 2)


def test_heterogeneity_that_a_release_hides_is_said_beside_that_which_it_adds():
    def sizes(*excess):
        terms = answers(10).terms
        return [
            zoo_targets_page.Some(where=f"at n = {k}", found={"I2_excess": one}, terms=terms, draws=1)
            for k, one in enumerate(excess)
        ]

    (added,) = zoo_targets_page._apart("it", sizes(-3.0, 12.5, 4.0))
    assert added[2:] == ["−3.0 at n = 0; +12.5 at n = 1", "no: 1 of 3 above"]
    (hidden,) = zoo_targets_page._apart("it", sizes(-38.5, -11.0, 4.0))
    assert hidden[2:] == [
        "−38.5 at n = 0; +4.0 at n = 2",
        "yes; 2 of 3 below −10, where differences are hidden",
    ]
    assert zoo_targets_page._apart("it", []) == []


def test_a_type_of_which_every_model_is_refused_says_why():
    refused = {
        "refused": "the released bins must show an outcome, got visits: 99 % of the persons in one bin of 8. Do …"
    }
    assert zoo_page.refusal([refused, refused]) == ": all 2 refused, the released bins must show an outcome"
    assert zoo_page.refusal([refused, {"terms": {}}]) == ""


def test_counts_beside_a_heavy_tail_say_how_many_are_false_and_carry_a_caution(monkeypatch):
    def cell(kind, held, right, wrong):
        figures = f"bias=-3 flow=1 told=0 held={held} right_cautioned={right} wrong_cautioned={wrong}"
        terms = {
            f"age, w={w}": figures if w == "0.8" or held else figures.replace("held=0", "held=1") for w in ("0.8", "0")
        }
        return {"kind": kind, "n": 5000, "sites": 12, "terms": terms}

    cells = [cell("count", 0, 0, 1), cell("count", 1, 0, 0), cell("binary", 1, 0, 0)]
    monkeypatch.setattr(zoo_page, "results", lambda name: {"cells": cells})
    page = zoo_sizes_page.heavy_tails()
    assert "| count | 5,000 | 12 | 0.8 | 1 of 1 | age −3.0 | 1.0 | 0 of 1 | 1 of 1; 0 of 0 |" in page
    assert (
        "Of counts 1 of 2 answers are outside their interval at 5,000 patients a hospital and w = 0.8, 0 of 2" in page
    )
    assert "A caution stands by 1 of the 1 wrong answers at w = 0.8, and by 0 of the 1 right ones" in page
    monkeypatch.setattr(zoo_page, "results", lambda name: None)
    assert zoo_sizes_page.heavy_tails() == ""
