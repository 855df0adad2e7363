"""A mapping by question and answer: whatever the extract, what comes of it is the study's table; no value is shown."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import io
import json
from dataclasses import replace

import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.mapping import ROWS, STUDY
from stage.hospital_side.records import CANARY, KEY, write
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.errors import DictionaryRefusal, Refusal, UsageRefusal
from shared.terminal.prompts import terminal_prompt
from site_agent.records import table as records
from site_agent.records.mapping.asking import guided
from site_agent.records.mapping.declared import Combination, DateForm, Recoding, Steps


class Steward:
    """Answers by what the question begins with, else the default; remembers all that was shown."""

    def __init__(self, answers, wrong=None):
        self.answers = {start: list(text) if isinstance(text, list) else [text] for start, text in answers.items()}
        self.wrong, self.shown, self.refused = dict(wrong or {}), [], []

    def __call__(self, question, default, *, among=None, check=None):
        self.shown += [question, *(among or {})]
        key = next((start for start in self.answers if question.startswith(start)), None)
        for text in self.wrong.pop(key, []):
            with pytest.raises(Refusal) as refusal:
                check(text)
            self.refused.append(str(refusal.value))
        text = (
            default if key is None else self.answers[key].pop(0) if len(self.answers[key]) > 1 else self.answers[key][0]
        )
        assert not among or text in among, question
        if check:
            check(text)
        return text

    def say(self, text):
        self.shown.append(text)


def asked(folder, table, steward, dictionary=STUDY):
    source = write(folder, table, delimiter=";")
    return replace(source, **guided(records.whole(source), dictionary, {}, (), steward, steward.say))


GERMAN = ROWS.rename(columns={"sex": "Geschlecht", "chol": "Cholesterin (mmol/l)", "aufnahme": "Aufnahmetag"})


def test_where_all_can_be_proposed_yes_is_enough(tmp_path):
    steward = Steward({})
    source = asked(tmp_path, GERMAN, steward)
    assert records.problems(source, STUDY) == ()
    found = records.read(source, STUDY, key=KEY).table
    assert found["age"].tolist() == [57, 50, 49, 60]
    assert found["died"].tolist() == [0, 1, 0, 0]
    assert any("is it the file's 'Geschlecht'?" in text for text in steward.shown)


def test_what_could_not_be_guessed_is_asked_and_a_wrong_answer_is_asked_again(tmp_path):
    """Dates of two forms under names that say nothing, levels of the hospital's own, a column under another name."""
    slashes = {name: GERMAN[name].str.replace(".", "/") for name in ("geb", "Aufnahmetag", "tod", "kontakt")}
    slashes["geb"] = pd.Series(["01/07/1952", "01/07/1960", "02/07/1960", "1/1/1950"])
    slashes["Aufnahmetag"] = pd.Series(["01/02/2010", "1/7/2010", "1/7/2010", "01/01/2010"])
    table = GERMAN.assign(**slashes).rename(columns={"geb": "d1", "Aufnahmetag": "d2", "tod": "d3", "kontakt": "d4"})
    table["Geschlecht"] = [f"{CANARY}1", "b", "b", f"{CANARY}1"]
    table = table.rename(columns={"Cholesterin (mmol/l)": "Wert"}).assign(ward=["x", "y", "x", "y"])
    steward = Steward(
        {
            "Its name in the file": ["= completed years between d1 and d2", "Wert"],
            "d1 writes": "%d/%m/%Y",
            "d2 writes": "%d/%m/%Y",
            "Column of the date from": "d2",
            "Column of the date of the event": "d3",
            "Column of the last date": "d4",
            "d4 writes": "%d/%m/%Y",
            "d3 writes": "%d/%m/%Y",
            "VALUE=LEVEL": [f"{CANARY}1=female", "b=male"],
            "The file's unit": "mmol/L",
        },
        wrong={
            "Its name in the file": ["= completed years between d1", "=[d9] + 1", "Werte"],
            "Column of the date from": ["ward", "d9"],
            "VALUE=LEVEL": ["b", "b=males"],
            "The file's unit": ["furlong"],
        },
    )
    source = asked(tmp_path, table, steward)
    assert {name: form.form for name, form in source.steps.dates.items()} == dict.fromkeys(
        ("d1", "d2", "d3", "d4"), "%d/%m/%Y"
    )
    assert source.steps.derive == {"age": "completed years between d1 and d2"}
    assert source.steps.follow_up.unit == "years"
    assert dict(source.values["sex"].levels) == {f"{CANARY}1": "female", "b": "male"}
    assert (source.values["chol"].unit, source.values["chol"].analyte) == ("mmol/L", "cholesterol")
    assert source.ignore == ("ward",)
    assert records.problems(source, STUDY) == ()
    assert records.read(source, STUDY, key=KEY).table["age"].tolist() == [57, 50, 49, 60]
    assert len(steward.refused) == 8
    assert CANARY not in "".join(steward.shown), "a count is shown, and no value"
    assert "4 rows hold 2 values that are not one of female, male" in " ".join(steward.shown)


def test_what_is_left_open_stays_open_and_is_told_by_the_check(tmp_path):
    table = ROWS.drop(columns=["kontakt", "tod"]).assign(sex=["w", "q", "q", "w"])
    no = {"time (": "no", "Its name in the file": "", "VALUE=LEVEL": "", "Not in the study": "no"}
    source = asked(tmp_path, table, Steward(no))
    assert {*source.steps.made} == {"age"}
    assert source.ignore == ()
    told = " ".join(f"{one.must} {one.given}" for one in records.problems(source, STUDY))
    for name in ("'time'", "'died'"):
        assert name in told


def test_a_time_without_dates_can_be_left_at_each_of_its_questions(tmp_path):
    for said in ({}, {"Column of the date from": "tod"}, {"Column of the date": "tod", "Column of the last": ""}):
        table = ROWS.rename(columns={"aufnahme": "x"}).assign(x="?")
        source = asked(tmp_path, table, Steward(said))
        assert source.steps.follow_up is None


def test_what_was_mapped_before_is_asked_about_and_stays(tmp_path):
    """A factor, a formula and which rows of a person count: all of it the steward's, none of it proposed."""
    source = write(tmp_path, pd.concat([ROWS, ROWS]).assign(chol="5,1"), delimiter=";")
    values = {"chol": Recoding(decimal=",", factor=40)}
    dates = {"kontakt": DateForm(form="%d.%m.%Y")}
    persons = Combination(order="kontakt", take={"kontakt": "last"})
    steps = Steps(persons=persons, dates=dates, derive={"age": "50", "time": "1"})
    steward = Steward({})
    made = guided(records.whole(source), STUDY, {}, (), steward, steward.say, values=values, steps=steps)
    assert made["values"]["chol"] == values["chol"]
    assert made["steps"].persons == persons
    assert made["steps"].dates["kontakt"].form == "%d.%m.%Y"
    assert dict(made["steps"].derive) == {"age": "50", "time": "1"}
    assert made["steps"].follow_up is None
    assert "chol: decimal comma, times 40. Is that so? yes or no" in steward.shown


def test_a_choice_is_no_number_where_it_is_no_decimal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("²\n2\n"))
    assert terminal_prompt("Which", "", among={"a": "", "b": ""}) == "b"

    assert "must be one of a, b" in capsys.readouterr().err


def test_a_question_that_nobody_answers_is_a_refusal_with_a_next_step(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UsageRefusal, match="must be answered") as refused:
        terminal_prompt("Which", "", among={"a": "", "b": ""})
    assert "at a terminal" in refused.value.next_step


def test_an_event_that_befell_nobody_has_no_form_to_ask_for(tmp_path):
    steward = Steward(
        {
            "Column of the date from": "aufnahme",
            "Column of the date of the event": "ende",
            "Column of the last": "kontakt",
        }
    )
    source = asked(tmp_path, ROWS.rename(columns={"tod": "ende"}).assign(ende="", chol="200"), steward)
    assert source.steps.follow_up.end == "ende"
    assert records.read(source, STUDY, key=KEY).table["died"].tolist() == [0, 0, 0]


def test_a_text_that_means_no_date_is_one_where_the_steward_says_so(tmp_path):
    table = ROWS.assign(tod=ROWS["tod"].replace("", "31.12.9999"), chol="200")
    source = asked(tmp_path, table, Steward({}))
    assert source.steps.dates["tod"].missing == ("31.12.9999",)
    assert records.read(source, STUDY, key=KEY).table["died"].tolist() == [0, 1, 0, 0]


def test_at_a_terminal_the_mapping_is_kept_at_the_end_and_not_before(hospital, plan, tmp_path, monkeypatch):
    at = hospital.joined().approved(plan)
    table = make_table(300).rename(columns={"sex": "Geschlecht"})
    table["Geschlecht"] = table["Geschlecht"].map({"male": "m", "female": "w"})
    path = tmp_path / "auszug.csv"
    table.assign(ward="a").to_csv(path, index=False)
    at("data", "add", str(path), "--as", "mini")
    settings = (at.home / "site.toml").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"yes\n")))
    at("data", "map", "mini", "--guide", expect=2)
    assert (at.home / "site.toml").read_bytes() == settings, "whoever leaves has said nothing"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"maybe\ny\n\n\n\n\n\n")))
    kept = json.loads(at("data", "map", "mini", "--guide", "--json").partition("\nFound by name")[0])
    assert kept["values"] == {"sex": {"levels": {"m": "male", "w": "female"}}}
    assert kept["ignored"] == ["ward"]
    assert at.json("data", "check", "mini")["problems"] == []
    assert "must stand alone" in at("data", "map", "mini", "--guide", "--ignore", "ward", expect=2)


@pytest.fixture
def without_header(hospital, plan, tmp_path):
    """A site whose table may have a patient in its first line, one of whose values happens to be a planned name."""
    at = hospital.joined().approved(plan)
    table = make_table(300)
    names = [f"{CANARY}{k}" for k in range(table.shape[1] - 1)]
    table.set_axis([*names, "grade"], axis=1).to_csv(tmp_path / "without.csv", index=False)
    at("data", "add", str(tmp_path / "without.csv"), "--as", "mini")
    return at


def test_no_verb_shows_a_name_of_a_first_line_that_may_be_a_patient(without_header):
    at, code = without_header, DictionaryRefusal.exit_code
    for verb in (("check",), ("quality",), ("map",), ("map", "--accept-suggestions", "--ignore-rest")):
        for json_too in ((), ("--json",)):
            shown = at("data", verb[0], "mini", *verb[1:], *json_too, expect=0 if verb[0] == "map" else code)
            assert CANARY not in shown, verb
    assert CANARY not in at("release", "mini", "--wave", "1", expect=code)


def test_a_proposal_is_made_of_such_a_file_once_it_is_said_that_the_line_holds_names(without_header, monkeypatch):
    at = without_header
    for answer in (b"\n", b"no\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(answer)))
        shown = at("data", "map", "mini", "--suggest", expect=2)
        assert "must hold the names of its columns" in " ".join(shown.split())
        assert CANARY not in shown
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"yes\n")))
    assert f"{CANARY}0: not in the study" in " ".join(at("data", "map", "mini", "--suggest").split())


def test_no_name_is_shown_of_a_first_line_that_may_be_a_patient(without_header, monkeypatch):
    at = without_header
    settings = (at.home / "site.toml").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    shown = at("data", "map", "mini", "--guide", expect=2)
    assert "must hold the names of its columns" in " ".join(shown.split())
    assert CANARY not in shown
    assert (at.home / "site.toml").read_bytes() == settings
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"yes\n" + b"\n" * 40)))
    assert f"Columns left: {CANARY}0" in at("data", "map", "mini", "--guide", "--dry-run")


def test_a_planned_column_that_the_mapping_ignores_is_shown_as_that_and_can_be_taken(hospital, plan, tmp_path):
    """An amended plan had a column that was ignored before: it was shown as mapped, and could not be."""
    at = hospital.joined().approved(plan)
    make_table(300).to_csv(tmp_path / "table.csv", index=False)
    at("data", "add", str(tmp_path / "table.csv"), "--as", "mini")
    shown = " ".join(at("data", "map", "mini", "--ignore", "grade").split())
    assert "the file has one, which this mapping ignores" in shown
    assert "next site-agent data map mini grade=grade" in shown
    (problem,) = at.json("data", "check", "mini", expect=DictionaryRefusal.exit_code)["problems"]
    assert problem["next_step"] == "Take it: site-agent data map mini grade=grade"
    at("data", "map", "mini", "grade=grade")
    assert at.json("data", "check", "mini")["problems"] == []
