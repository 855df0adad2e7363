"""A draft of a plan is told all that is wrong with it at once, each fault with its place and its fix."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from stage.coordinator_side.delivered import STUDIES, TODAY

from coordinator.planning.drafts import faults
from coordinator.planning.review import review
from coordinator.planning.template import template

BAD = """
study = "first study"
version = "1"
title = "t"
purpos = "p"
expires = "soon"
posture = "locall"
[release]
mechanism = "latent noise"
w = 1.5
[budget]
epsilo = 2
[floors]
persons = 5
aprovals = 1
[[waves]]
number = 1
opens = 2026-01-01
[estimands]
a = "logistic(sex) ~ agee"
b = "sum(x)"
[dictionary]
name = "x"
version = 1
[dictionary.columns.age]
type = "numeric"
min = 18
max = 90
[dictionary.columns.sex]
kind = "categorical"
[dictionary.columns.sbp]
kind = "continuous"
lower = 300
upper = 70
[dictionary.columns.num]
kind = "integer"
transform = "log"
"""


def told(text: str) -> list[tuple[str, str, str]]:
    plan, lines = review(text, today=TODAY, recipient="hub")
    assert plan is None
    assert all(line.state == "fail" and line.fix for line in lines)
    return [(line.name, line.detail, line.fix) for line in lines]


@pytest.mark.parametrize(
    ("name", "detail", "fix"),
    [
        ("plan", "'purpos'", "'purpose'"),
        ("plan", "coordinator is missing", "tributary-hub"),
        ("plan", "version must be a whole number", "version = 1"),
        ("plan", "expires must be a date", "without quotes"),
        ("plan", "study must be a plain word", ""),
        ("plan", "posture must be one of", "'local'"),
        ("column age", "'type' is no setting", "'kind'"),
        ("column age", "'min' is no setting", "'lower'"),
        ("column age", "'max' is no setting", "'upper'"),
        ("column age", "kind must be one of", "'continuous'"),
        ("column sex", "kind must be one of", "'nominal'"),
        ("column sex", "at least two levels", "levels = ["),
        ("column sbp", "lower must be below upper", ""),
        ("column num", "'transform'", "Leave it out"),
        ("column num", "bounds lower and upper", "never a look at the records"),
        ("[release]", "release.mechanism must be one of", "'latent_noise'"),
        ("[release]", "release.w must be in", "Lower w"),
        ("[budget]", "'epsilo'", "'epsilon'"),
        ("[floors]", "'aprovals'", "'approvals'"),
        ("[floors]", "at least 50", "tightened"),
        ("wave 1", "closes must be a date", "closes = 20"),
        ("estimand a", "'agee'", "'age'"),
        ("estimand b", "kind(columns)", "logistic"),
        ("retention", "does not say", "[retention]"),
    ],
)
def test_all_faults_are_told_at_once_each_with_its_fix(name, detail, fix):
    found = [line for line in told(BAD) if line[0] == name and detail in line[1]]
    assert len(found) == 1, (name, detail)
    assert fix in found[0][2]


def test_nothing_else_is_told_and_nothing_twice():
    lines = told(BAD)
    assert len(lines) == len(set(lines)) == 24


@pytest.mark.parametrize("study", sorted(path.name for path in STUDIES.glob("*.toml")))
def test_a_good_plan_has_no_fault(study):
    plan, lines = faults((STUDIES / study).read_text(), today=TODAY)
    assert (plan is not None, lines) == (True, ())


def test_a_draft_with_no_line_but_one_is_told_what_every_plan_must_say():
    missing = [line for line in told("version = 1") if "is missing" in line[1]]
    assert {line[1].split()[0] for line in missing} == {
        *("study", "title", "purpose", "coordinator", "expires", "release", "budget", "waves", "dictionary")
    }


def test_whatever_line_of_a_plan_is_lost_or_spoiled_there_is_an_answer():
    text = template("stroke", coordinator="hub", today=dt.date(2026, 1, 1)).splitlines()
    settings = [i for i, line in enumerate(text) if line.strip() and not line.startswith("#")]
    rng = random.Random(7)
    for _ in range(60):
        spoiled = list(text)
        for place in rng.sample(settings, 3):
            name, sign, _value = spoiled[place].partition(" = ")
            spoiled[place] = rng.choice(["", f"{name}x{sign}1", f'{name}{sign}"odd"', f"{name}{sign}[1]"])
        plan, lines = review("\n".join(spoiled), today=TODAY, recipient="hub")
        assert plan is not None or lines, spoiled
        assert all(line.fix for line in lines if line.state != "ok")


def test_a_file_that_is_no_toml_names_the_place():
    [line] = told('study = "x\n')
    assert line[0] == "file"
    assert "line 1" in line[1]


@pytest.mark.parametrize("column", ["visits", "an"])  # "an" stands in "plan", the name of the line
def test_a_column_that_a_mechanism_does_not_take_is_named(column):
    """The whole plan was refused for "of a moments release must count from 0", and nothing said which column."""
    text = (STUDIES / "cohorts.toml").read_text(encoding="utf-8")
    text = text.replace('outcome = "survival"', 'outcome = "count"').replace('["time", "cvd"]', f'["{column}"]')
    text = text.replace("horizon = 36.0", "").replace("cox(time, cvd)", f"poisson({column})")
    text = text[: text.index("[dictionary.columns.time]")] + text[text.index("[dictionary.columns.age]") :]
    text += f'\n[dictionary.columns.{column}]\nkind = "integer"\nlower = 1\nupper = 60\n'
    ((name, detail, _),) = told(text)
    assert name == "plan"
    assert detail == f"column '{column}' of a moments release must count from 0 (got 1)"


@pytest.mark.parametrize(
    ("column", "told_of"),
    [("log(sbp)", None), ("log(crp)", "has none"), ("log1p(crp)", "not in intervals"), ("crp/10", None)],
)
def test_a_logarithm_of_drawn_rows_is_warned_of_where_the_bounds_let_it_spread_what_is_small(column, told_of):
    """Four hospitals of five then had no answer, or one from which the lowest outcomes were missing."""
    text = template("stroke", coordinator="hub", today=dt.date(2026, 1, 1))
    text = text.replace("logistic(died) ~ treated", f"logistic(died) ~ {column} + treated")
    text += '\n[dictionary.columns.crp]\nkind = "continuous"\nunit = "mg/L"\nlower = 0\nupper = 600\n'
    plan, lines = review(text, today=dt.date(2026, 1, 1), recipient="hub")
    assert plan is not None
    (line,) = [line for line in lines if line.name == "estimand treatment"]
    assert line.state == ("ok" if told_of is None else "warn")
    if told_of is not None:
        assert told_of in line.detail
        assert "log_crp = 'log(crp)'" in line.fix


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (('label = "sex"', 'label = "sex as registered"'), ["the columns changed"]),
        (('pressure = "mean(sbp)"', 'band = "mean(smoking == 1)"'), ["how a flow is fitted"]),
        (('title = "One', 'title = "Another'), []),
        (('title = "One', 'returning = "refresh"\ntitle = "One'), ["wave 2, 3, 4"]),
    ],
)
def test_an_amendment_that_no_site_with_a_release_could_follow_is_warned_of_before_it_is_signed(change, warned):
    """A covariate was added after wave 1: signed, approved at six sites, and refused at each release."""
    text = template("stroke", coordinator="hub", today=dt.date(2026, 1, 1))
    first, _ = review(text, today=dt.date(2026, 1, 1), recipient="hub")
    assert change[0] in text
    second = text.replace(*change).replace("version = 1", "version = 2", 1)
    if "refresh" in change[1]:
        second = second.replace('label = "sex"', 'label = "sex as registered"')
        anew = second.replace("\ncloses = ", "\nrefit = true\ncloses = ")
        _, lines = review(anew, today=dt.date(2026, 1, 1), recipient="hub", signed=lambda study: first)
        assert "sealed flow" not in [line.name for line in lines]
    plan, lines = review(second, today=dt.date(2026, 1, 1), recipient="hub", signed=lambda study: first)
    assert plan is not None
    found = [line for line in lines if line.name == "sealed flow"]
    assert len(found) == len(warned)
    assert all(said in line.detail and line.state == "warn" for said, line in zip(warned, found, strict=True))
