"""Simple slopes: those of the model coded anew, off the scale in words, and in an answer through its doors."""

from __future__ import annotations

from math import exp

import pytest
from stage.both_sides.models import made

from coordinator.analyst import commands as client
from coordinator.pooling.further.simple_slopes import simple_slopes
from coordinator.pooling.pool import Pooling
from shared.estimands.answer import estimate, parse_estimand
from shared.plans.dictionary import Column, Dictionary
from tests.stage.coordinator_side.analysis import desk, study  # noqa: F401

SMOKING = ("never", "former", "current")
LEVELS = {"smoking": SMOKING, "arm": (0, 1)}
DICTIONARY = Dictionary(
    name="slopes",
    version=1,
    columns=(
        Column(name="age", kind="continuous", lower=20, upper=100),
        Column(name="smoking", kind="nominal", levels=SMOKING),
        Column(name="arm", kind="binary", levels=(0, 1)),
        Column(name="died", kind="binary", levels=(0, 1)),
    ),
)
POOLING = Pooling(method="FE", test="z")


def slopes(table, text):
    question = parse_estimand(text)
    rows = estimate(table, question, site="A", levels=LEVELS)
    return {one["term"]: one for one in simple_slopes(rows, question, DICTIONARY, POOLING)}


def test_a_slope_at_a_level_is_the_coefficient_where_that_level_is_the_reference():
    table = made(800, 4)
    found = slopes(table, "logistic(died) ~ age * smoking")["age by smoking"]["slopes"]
    assert [one["at"] for one in found] == [f"smoking = {level}" for level in SMOKING]
    for one, level in zip(found, SMOKING, strict=True):
        turned = {"smoking": (level, *(other for other in SMOKING if other != level))}
        theirs = estimate(table, "logistic", "died ~ age * smoking", term="age", levels=turned)
        assert (one["estimate"], one["se"]) == (
            pytest.approx(theirs.yi, rel=1e-6),
            pytest.approx(theirs.vi**0.5, rel=1e-6),
        )
        assert one["ci_ub"] == pytest.approx(theirs.yi + 1.959964 * theirs.vi**0.5, rel=1e-5)


def test_a_slope_at_a_number_is_the_coefficient_where_the_column_starts_there():
    table = made(800, 4)
    found = slopes(table, "ols(cost) ~ arm * age + k")["arm by age"]["slopes"]
    assert [one["at"] for one in found] == ["age = 40", "age = 60", "age = 80"]
    for one, at in zip(found, (40, 60, 80), strict=True):
        theirs = estimate(table, "ols", f"cost ~ arm * I(age - {at}) + k", term="arm")
        assert (one["estimate"], one["se"]) == (
            pytest.approx(theirs.yi, rel=1e-6),
            pytest.approx(theirs.vi**0.5, rel=1e-6),
        )


def test_words_are_off_the_scale_and_say_the_test_of_no_effect_anywhere():
    (one, _) = slopes(made(800, 4), "logistic(died) ~ age * arm").values()
    first = one["slopes"][0]
    assert f"at arm = 0 {exp(first['estimate']):.4g} ({exp(first['ci_lb']):.4g} to " in one["sentence"]
    assert one["sentence"].startswith("odds ratio at arm = 0")
    assert "No effect anywhere: 2 coefficients pooled together" in one["sentence"]


@pytest.mark.parametrize(
    "text",
    [
        "logistic(died) ~ age + arm",  # no interaction
        "logistic(died) ~ age * arm + age:smoking",  # the effect of age hangs on two columns
        "logistic(died) ~ age:arm",  # no effect of its own
        "logistic(died) ~ age * arm * smoking",
    ],
)
def test_what_has_no_simple_slope_has_none(text):
    found = slopes(made(800, 4), text)
    assert not [name for name in found if name.startswith("age")]


@pytest.mark.parametrize(
    "text",
    [
        "logistic(died) ~ smoking + age:smoking",
        "logistic(died) ~ age:smoking + smoking",
        "logistic(died) ~ age * smoking - 1",
        "logistic(died) ~ 0 + smoking + smoking:age",
    ],
)
def test_levels_that_are_coded_in_full_have_no_effect_that_is_one_coefficient(text):
    """The effect of a level is the difference to the reference level's own coefficients, which no contrast here has."""
    assert not [name for name in slopes(made(800, 4), text) if name.startswith("smoking")]


def test_an_answer_has_them_in_python_and_on_the_command_line(desk, study, capsys):  # noqa: F811
    answer = study.logistic("cvd ~ age * sbp", term="age")
    found = {one["term"]: one for one in answer.document["joint"]}
    assert [one["at"] for one in found["age by sbp"]["slopes"]] == ["sbp = 125", "sbp = 200", "sbp = 275"]
    file = str(desk.save(desk.admit("slopes")))
    assert client.main(["logistic", "cvd", "cvd ~ age * sbp", "--term", "age", "--token", file]) == 0
    assert "age by sbp: odds ratio at sbp = 125" in " ".join(capsys.readouterr().out.split())
