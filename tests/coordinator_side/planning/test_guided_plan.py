"""A plan by question and answer: whatever is asked, the plan that comes of it passes review."""

from __future__ import annotations

# ruff: noqa: F811  (fixtures are imported by their names)
import datetime as dt
import io
import json
from contextlib import closing

import pytest
from stage.coordinator_side.homes import hub  # noqa: F401

from coordinator.cli import main
from coordinator.planning.interview import OUTCOMES, interview
from coordinator.planning.plan_form import MECHANISMS, first_form, judged, toml_of
from coordinator.planning.review import KnownStudy
from coordinator.store.store import Store
from shared.errors import ParameterError
from shared.plans.plan import StudyPlan

TODAY = dt.datetime.now(dt.UTC).date()
SAID = {
    "Title, one line": "Stroke",
    "Purpose, as the ethics approval has it": "To estimate an odds ratio.",
    "Who is in it, by a rule that needs no judgement": "All adults admitted in 2026.",
    "Highest value that there can be": "110",
    "Adjusted for": ["age", "centre", ""],
    "What it is": "",
    "It is": ["groups", "measurement", "groups"],
    "Its unit": "years",
    "Its groups, the one compared with first": ["no, yes", "1, 2, 3"],
    "How many waves": "3",
}
"""Answers to the questions whose default will not do; of a list one after the other."""


class Person:
    """Answers from a table, else the default; remembers what was asked, and gives a wrong answer first on request."""

    def __init__(self, said, wrong=None):
        self.said = {name: list(text) if isinstance(text, list) else text for name, text in said.items()}
        self.asked, self.wrong, self.refused = [], dict(wrong or {}), []

    def __call__(self, question, default, *, among=None, check=None):
        self.asked.append(question)
        if question in self.wrong:
            with pytest.raises(ParameterError) as refusal:
                check(self.wrong.pop(question))
            self.refused.append(str(refusal.value))
        text = self.said.get(question, default)
        text = text.pop(0) if isinstance(text, list) else text or default
        assert not among or text in among
        if check:
            check(text)
        return text


def filled(person, **first):
    form = {**first_form(coordinator="hub", today=TODAY), "study": "stroke", **first}
    return interview(form, person, lambda _: None)


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@pytest.mark.parametrize("way", list(MECHANISMS))
def test_whatever_is_asked_the_plan_passes_review_and_its_budget_pays_for_all_waves(outcome, way):
    units = {"Its effect is told per how many years": "10"}
    form = filled(Person({**SAID, **units, "The outcome is": outcome, "Mechanism": way}))
    found = judged({"form": form, "today": f"{TODAY}"})
    assert [line for line in found["checks"] if line["state"] == "fail"] == []
    assert found["waves"][-1]["affordable"]
    assert len(found["waves"]) == 3
    plan = StudyPlan.from_toml(found["toml"])
    assert plan.release.mechanism == way
    assert plan.expected.sites == 4
    (formula,) = plan.estimands.values()
    assert formula.endswith("~ treated + age/10 + C(centre)")
    if way == "moments":
        assert set(plan.release.declared) == {"treated", "age", "centre"}


@pytest.mark.parametrize(
    ("question", "text", "why"),
    [
        ("Its column", "two words", "plain word"),
        ("Exposure", "died", "one role"),
        ("Exposure", "", "said"),
        ("Its groups, the one compared with first", "yes", "two groups"),
        ("Its groups, the one compared with first", "a, a, b", "each once"),
        ("Highest value that there can be", "0", "above the lowest"),
        ("Lowest value that there can be", "1,5", "point for decimals"),
        ("How many hospitals", "0", "whole number from 1"),
        ("How many waves", "٣", "whole number"),
        ("The first opens (YYYY-MM-DD)", "31.5.2027", "as 2027-05-31"),
        ("ε of one release", "nan", "a number"),
        ("ε that a person may be charged in all", "-1", "above 0"),
    ],
)
def test_a_wrong_answer_is_told_before_the_next_question(question, text, why):
    person = Person({**SAID, "Its effect is told per how many years": "10"}, {question: text})
    filled(person)
    assert why in person.refused[0]


def test_rows_without_persons_are_one_wave():
    person = Person(
        {
            **SAID,
            "Column that tells persons apart (none: each row is its own)": "none",
            "How many waves": "1",
        },
        {"How many waves": "2"},
    )
    assert filled(person)["waves"] == "1"
    assert "from 1 to 1" in person.refused[0]


def test_noisy_moments_without_a_regression_say_so_and_not_what_the_form_has_no_field_for():
    form = first_form(coordinator="hub", today=TODAY)
    for formula in ("level = mean(age)", "x = logistic(died) ~ age"):
        found = judged({"form": {**form, "estimands": formula}, "today": f"{TODAY}"})
        (line,) = [line for line in found["checks"] if line["state"] == "fail"]
        assert "a planned regression in which every released column has a role" in line["detail"]
        assert not found["ok"]


def test_the_form_says_of_a_signed_plan_and_of_an_ended_study_what_check_says(hub, tmp_path):
    assert hub("init", "--name", "tributary-hub", "--address", "localhost:9443")[0] == 0
    path, form = tmp_path / "plan.toml", first_form(coordinator="tributary-hub", today=TODAY)
    path.write_text(toml_of(form))
    assert hub("plan", "sign", path)[0] == 0

    def told(**changes):
        with closing(Store.open(hub.home)) as store:
            known = KnownStudy.of(store, "stroke").to_plain()
        given = {**form, **changes}
        found = judged({"form": given, "today": f"{TODAY}", "known": json.loads(json.dumps(known))})
        path.write_text(found["toml"])
        code, checked = hub("plan", "check", path)
        lines = [line for line in found["checks"] if line["name"] in ("signed", "version", "study")]
        assert lines == [line for line in checked["checks"] if line in lines]
        assert found["ok"] is checked["ok"] is (code == 0)
        assert found["waves"], "a price needs no signature"
        return [(line["name"], line["state"]) for line in lines]

    assert told() == [("signed", "warn")]
    assert told(title="Another") == [("version", "fail")]
    assert hub("plan", "retire", "stroke", "--reason", "It is published.")[0] == 0
    assert told() == [("signed", "warn"), ("study", "fail")]


def typed(*lines):
    return io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))


def test_the_command_asks_on_standard_error_and_writes_a_plan_to_sign(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [
        "Stroke",
        "A purpose",
        "Adults",
        "5",
        "1",
        "",
        "",
        "",
        "",
        "",
        "",
        "age",
        "",
        "2",
        "years",
        "18",
        "110",
        "",
    ]
    monkeypatch.setattr("sys.stdin", typed(*lines, *[""] * 20))
    assert main(["plan", "new", "stroke", "--guide", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["ok"], answer["written"]) == (True, True)
    assert "it must be one of event, time, measurement, count, got '5'" in err
    plan = StudyPlan.from_toml((tmp_path / "stroke.toml").read_text())
    assert plan.estimands == {"main": "logistic(died) ~ treated + age/10"}
    assert plan.title == "Stroke"


def test_the_guide_shows_what_all_waves_charge_and_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["Stroke", "A purpose", "Adults", "", "", "", "", "", "", "", "age", "", "2", "years", "18", "110"]
    monkeypatch.setattr("sys.stdin", typed(*lines, *[""] * 20))
    assert main(["plan", "new", "stroke", "--guide"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "All waves together charge a person" in shown
    assert "next: coordinator plan sign stroke.toml" in shown


def test_a_guide_that_is_left_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", typed("Stroke"))
    assert main(["plan", "new", "stroke", "--guide"]) != 0
    assert not (tmp_path / "stroke.toml").exists()
