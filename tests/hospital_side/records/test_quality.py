"""The quality report: what is possible and still unlikely to be true, counted; it stays at the site."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import re
import stat
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.errors import UsageRefusal
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import TableSource
from site_agent.records.mapping.declared import DateForm, Steps
from site_agent.records.quality import assess, drift
from site_agent.records.table import days
from site_agent.show.quality_page import page

STUDY = Dictionary(
    name="q",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="integer", unit="years", lower=18, upper=110),
        Column(name="sbp", kind="integer", unit="mmHg", lower=50, upper=300),
        Column(name="dbp", kind="integer", unit="mmHg", lower=20, upper=200, missing="level"),
        Column(name="chol", kind="continuous", unit="mg/dL", lower=40, upper=800, missing="level"),
        Column(name="sex", kind="binary", levels=("female", "male")),
    ),
)


def clean(n: int = 400) -> pd.DataFrame:
    """Canonical values without anything to find."""
    rng = np.random.default_rng(5)
    sbp = rng.integers(100, 180, n)
    return pd.DataFrame(
        {
            "person": [f"p{k}" for k in range(n)],
            "age": rng.integers(30, 90, n).astype(float),
            "sbp": sbp.astype(float),
            "dbp": (sbp - rng.integers(20, 60, n)).astype(float),
            "chol": rng.normal(220, 30, n),
            "sex": rng.integers(0, 2, n).astype(float),
        }
    )


def unlikely(table: pd.DataFrame, **how) -> dict[str, int]:
    report = assess(table, STUDY, **how)
    return {f"{finding.column}: {finding.rule}": finding.count for finding in report.findings if finding.state != "ok"}


def test_a_clean_table_has_nothing_to_tell():
    for seed in range(3):
        report = assess(clean().sample(frac=1, random_state=seed), STUDY)
        assert [finding.rule for finding in report.findings if finding.state != "ok"] == []
        assert report.state == "ok"
    assert report.patterns == {(): 400}


@pytest.mark.parametrize(
    ("change", "words", "count"),
    [
        (lambda t: t.assign(sbp=(t["sbp"] / 10).round() * 10), "sbp: last digits that are equally frequent", 400),
        (
            lambda t: t.assign(age=t["age"].where(t.index > 30, 18.0)),
            "age: few values at the least possible one, 18",
            31,
        ),
        (lambda t: t.assign(chol=t["chol"].where(t.index > 2, 790.0)), "chol: no value further than 6 robust SDs", 3),
        (lambda t: t.assign(dbp=t["dbp"].where(t.index > 4, t["sbp"] + 5)), ": systolic above diastolic pressure", 5),
        (lambda t: t.assign(sex=0.0), "sex: more than one value", 400),
        (lambda t: t.assign(sex=(t.index < 3).astype(float)), "sex: no level of fewer than 10 rows: 1 are", 3),
        (
            lambda t: pd.concat([t, t[:7].assign(person=list("abcdefg"))]),
            ": no two persons who agree in every column",
            7,
        ),
        (lambda t: t.assign(dbp=np.nan), "dbp: at least one value", 400),
    ],
)
def test_what_is_unlikely_is_told_by_column_rule_and_count(change, words, count):
    [(said, found)] = unlikely(change(clean())).items()
    assert said.startswith(words)
    assert found == count


@pytest.mark.parametrize("heap", [120.0, 175.0])
def test_a_heap_at_one_value_is_no_preference_for_digits(heap):
    digits = "sbp: last digits that are equally frequent: 0 and 5 are preferred"
    limit = clean().assign(sbp=lambda t: t["sbp"].where(t.index > 150, heap))
    assert int(limit["sbp"].isin(range(0, 300, 5)).sum()) > 0.35 * len(limit), "of all values more than chance gives"
    assert digits not in unlikely(limit)
    both = limit.assign(sbp=lambda t: t["sbp"].where(t.index < 250, (t["sbp"] / 5).round() * 5))
    assert unlikely(both)[digits] == int(both["sbp"].isin(range(0, 300, 5)).sum())


def test_a_rule_of_the_steward_is_held_against_every_row_that_has_its_values():
    table = clean().assign(dbp=lambda t: t["dbp"].where(t.index > 9))
    found = unlikely(table, rules={"men under 80": "sex = 'female' or age < 80"})
    assert found == {": men under 80": int(((table["sex"] == 1) & (table["age"] >= 80)).sum())}
    with pytest.raises(UsageRefusal):
        assess(table, STUDY, rules={"x": "import os"})
    assert assess(table, STUDY).patterns == {(): 390, ("dbp",): 10}


def test_dates_out_of_order_are_counted():
    days = {
        "birth": pd.Series(pd.to_datetime(["1950-01-01", "1960-01-01", "2030-01-01"])),
        "visit": pd.Series(pd.to_datetime(["1949-12-31", "2020-01-01", None])),
    }
    found = unlikely(clean(), dates=days, today=dt.date(2026, 1, 1))
    assert found == {"birth: no date after today": 1, "visit: no date before birth": 1}


def test_the_page_has_no_script_and_says_that_it_stays(tmp_path):
    names = replace(STUDY.columns[4], label="<script>alert(1)</script>")
    study = replace(STUDY, columns=(*STUDY.columns[:4], names, STUDY.columns[5]))
    report = assess(clean(), study, rules={"<script>": "age > 50"})
    text = page(report, study="q", file="<script>.csv", day="2026-01-01")
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert "It stays at the site" in text
    assert text.count("<svg") == 5
    assert not re.search(r"p\d+", text), "no person"
    assert "https:" not in text


def test_the_command_writes_a_page_that_only_its_owner_reads(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300)
    table.loc[:20, "sbp"] = 70.0
    table.to_csv(tmp_path / "t.csv", index=False)
    at("data", "add", str(tmp_path / "t.csv"), "--as", "mini")
    before = {path for path in at.home.rglob("*") if path.is_file()}
    assert at.json("data", "quality", "mini", "--dry-run")["page"] is None
    found = at.json("data", "quality", "mini", "--rule", "few visits=visits < 3")
    assert {path.name for path in at.home.rglob("*") if path.is_file() and path not in before} == {"mini.html"}
    path = at.home / "quality" / "mini.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert found["state"] == "fail"
    [bound] = [one for one in found["findings"] if one["column"] == "sbp" and "least possible" in one["rule"]]
    assert bound["count"] == 21
    shown = " ".join(at("data", "quality", "mini").split())
    assert "It stays here" in shown
    assert f"expected few values at the least possible one, 70; not so in 21 of {len(table)} rows" in shown
    table.assign(sbp="x").to_csv(tmp_path / "t.csv", index=False)
    broken = at.json("data", "quality", "mini", expect=40)
    assert [one["state"] for one in broken["findings"]] == ["fail"]


def test_of_a_workbook_only_the_dates_of_the_mapping_are_read_for_their_order(tmp_path):
    """A number of 17 digits in a column that is no part of the study is no fault of it: `data check` passes it by."""
    path = tmp_path / "t.xlsx"
    seen = pd.DataFrame({"seen": ["1.2.2020", "3.4.2020"], "long": [12345678901234567, 1]})
    seen.to_excel(path, index=False)
    mapped = TableSource(path=path, ignore=("long",), steps=Steps(dates={"seen": DateForm(form="%d.%m.%Y")}))
    assert days(mapped)["seen"].dt.month.tolist() == [2, 4]
    assert days(replace(mapped, steps=Steps())) == {}


# -- between waves --------------------------------------------------------------------------------------------------
def later(table: pd.DataFrame, change) -> dict[str, int]:
    """What is told of a table whose second half came later, and was changed."""
    earlier = np.arange(len(table)) < len(table) // 2
    table = table.copy()
    change(table, ~earlier)
    return {name for name in unlikely(table, earlier=earlier) if "new persons" in name}


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("sbp", lambda values: values + 15),
        ("chol", lambda values: values / 38.67 + 40),  # mmol/l, where mg/dl were
        ("sex", lambda values: 1.0),
        ("dbp", lambda values: values.where(np.arange(len(values)) % 3 > 0)),
    ],
)
def test_new_persons_who_differ_from_those_released_before_are_told_by_column(column, change):
    def make(table, new):
        table.loc[new, column] = change(table.loc[new, column])

    (told,) = later(clean(600), make)
    assert told.startswith(f"{column}: new persons are like those released before")
    assert re.search(r"index is \d+\.\d\d, not below 0\.1", told)


def test_chance_is_told_as_drift_in_less_than_one_column_of_a_hundred():
    told = 0
    for seed in range(120):
        rng = np.random.default_rng((seed, 25))
        table = clean(int(rng.integers(120, 2000)))
        table = table.sample(frac=1, random_state=seed)
        new = np.arange(len(table)) < 60
        for column in STUDY.released:
            values = table[column.name]
            values = values.where(rng.uniform(size=len(values)) > 0.1) if column.missing == "level" else values
            told += drift(values[~new], values[new], column) is not None
    assert told <= 6, "of 600"


def test_few_persons_tell_nothing():
    column = STUDY.column("sbp")
    assert drift(pd.Series([100.0] * 49), pd.Series([180.0] * 500), column) is None
    assert drift(pd.Series([100.0] * 50), pd.Series([180.0] * 50), column) is not None


def test_the_command_holds_new_persons_against_those_of_the_last_release(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300)
    table.to_csv(tmp_path / "t.csv", index=False)
    at("data", "add", str(tmp_path / "t.csv"), "--as", "mini")

    def told() -> list[str]:
        findings = at.json("data", "quality", "mini", "--dry-run")["findings"]
        return [one["column"] for one in findings if "new persons" in one["rule"]]

    assert told() == []
    at("release", "mini", "--wave", "1")
    more = make_table(200, seed=9).assign(person=[f"new{k}" for k in range(200)])
    pd.concat([table, more]).to_csv(tmp_path / "t.csv", index=False)
    assert told() == []
    pd.concat([table, more.assign(sbp=more["sbp"] + 25)]).to_csv(tmp_path / "t.csv", index=False)
    assert told() == ["sbp"]
