"""What the zoo says of refusing and correcting pools is counted as it says."""

from __future__ import annotations

import pytest

from tests.benchmarks import zoo_doubts


def answer(off: float, world: str = "a", share: float = 0.0, estimate: float = 0.0) -> zoo_doubts.Answer:
    told = {"refuse": {"doubt": share}, "correct": {"again": estimate}}
    return {"off": off, "se": 1.0, "half": 2.0, "records": 0.5, "world": world, **told}


def test_a_refusal_takes_pools_of_which_more_than_half_the_weight_doubts():
    answers = [answer(3.0, share=0.6), answer(3.0, share=0.5), answer(0.1, share=0.9), answer(0.1)]
    found = zoo_doubts.refused(answers, "doubt")
    assert [found[name] for name in ("wrong", "wrong_refused", "right", "right_refused")] == [2, 1, 2, 1]
    assert found["held_before"] == found["held_after"] == 50.0


def test_an_estimate_that_is_the_bias_leaves_no_error_and_one_that_is_none_has_slope_none():
    answers = [answer(off, world, estimate=2 * off) for off, world in ((3.0, "a"), (-1.0, "b"), (0.5, "c"))]
    assert zoo_doubts.slope(answers, "again") == pytest.approx(0.5)
    assert zoo_doubts.slope_error(answers, "again") == pytest.approx(0.0, abs=1e-12)
    found = zoo_doubts.results_of({"tuning": answers, "reporting": answers[1:]})
    assert found["as it is"]["tuning"]["held"] == pytest.approx(66.667)
    assert found["correct"]["again"]["tuning"]["slope"]["held"] == 100.0
    assert found["correct"]["again"]["reporting"]["slope"]["own_rms"] == 0.0
    assert found["correct"]["again"]["tuning"]["whole"]["own_rms"] == found["as it is"]["tuning"]["own_rms"]
    assert zoo_doubts.slope([answer(1.0, estimate=0.0)], "again") == 0.0


def test_slopes_are_of_the_tuning_half_alone():
    tuning, reporting = ([answer(by * 1.0, estimate=1.0)] for by in (0.5, -7.0))
    found = zoo_doubts.results_of({"tuning": tuning, "reporting": reporting})["correct"]["again"]
    assert (found["slope"], found["reporting"]["slope_here"]) == (0.5, -7.0)
    assert found["reporting"]["slope"]["own_rms"] == 7.5
