"""A FHIR Bulk export: from a definition and NDJSON files to a prepared table."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from shared.errors import DataFileRefusal
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import TableSource
from site_agent.records import table as records
from site_agent.records.mapping.suggesting import proposed

KEY = b"k" * 32
LOINC, SNOMED = "http://loinc.org", "http://snomed.info/sct"
DEFINITION = """
folder = "export"

[cohort]
resource = "Condition"
codes = ["http://snomed.info/sct|38341003"]
from = 2010-01-01
to = 2015-12-31
end = 2018-01-01

[covariates.sbp]
resource = "Observation"
codes = ["http://loinc.org|8480-6"]
take = "last"
days = [-365, 0]
unit = "mm[Hg]"

[covariates.highest]
resource = "Observation"
codes = ["8480-6"]
take = "max"
unit = "mm[Hg]"

[covariates.diabetes]
resource = "Condition"
codes = ["http://snomed.info/sct|44054006"]
days = [-3650, 0]

[event]
resource = "Patient"
"""


def patient(name, birth, gender, **more):
    return {"resourceType": "Patient", "id": name, "birthDate": birth, "gender": gender, **more}


def condition(of, code, day, **more):
    coded = {"coding": [{"system": SNOMED, "code": code}]}
    base = {"resourceType": "Condition", "code": coded, "subject": {"reference": f"Patient/{of}"}}
    return base | {"onsetDateTime": day} | more


def pressure(of, day, value, unit="mm[Hg]", **more):
    coded = {"coding": [{"system": LOINC, "code": "8480-6"}]}
    part = {"code": coded, "valueQuantity": {"value": value, "unit": "mmHg", "code": unit}}
    whole = {"coding": [{"system": LOINC, "code": "85354-9"}]}
    base = {"resourceType": "Observation", "status": "final", "code": whole, "component": [part]}
    return base | {"subject": {"reference": f"https://fhir.example/Patient/{of}"}, "effectiveDateTime": day} | more


FILES = {
    "Patient": [
        patient("1", "1950-03-02", "male", deceasedDateTime="2012-03-01"),
        patient("2", "1960-01-01", "female"),
        patient("3", "1970-01-01", "male"),
        patient("5", "1945-06-30", "male"),
    ],
    "Condition": [
        condition("1", "38341003", "2012-05-01"),
        condition("1", "38341003", "2011-03-01T10:00:00+01:00"),
        condition("1", "44054006", "2010-01-01"),
        condition("2", "38341003", "2013-01-01"),
        condition("3", "38341003", "2009-12-31"),  # before the cohort begins
        condition("5", "44054006", "2014-01-02"),  # after the index date
        condition("5", "38341003", "2014-01-01"),
        condition("5", "38341003", "2011-01-01", verificationStatus={"coding": [{"code": "refuted"}]}),
    ],
    "Observation.000": [
        pressure("1", "2011-02-01", 150.0),
        pressure("1", "2011-02-01", 151.0),
        pressure("1", "2010-12-01", 160),
        pressure("1", "2011-03-02", 199.0),  # after the index date
        pressure("1", "2011-02-20", 20.0, unit="kPa"),
        pressure("2", "2011-12-01", 140.0),  # more than a year before
        pressure("5", "2013-06-01", 120.0),
        pressure("5", "2013-12-31", 999.0, status="entered-in-error"),
    ],
}
ROWS = [
    ("1", "2011-03-01", "1950-03-02", "male", 151.0, 160.0, 1, "2012-03-01", "2018-01-01"),
    ("2", "2013-01-01", "1960-01-01", "female", None, None, 0, None, "2018-01-01"),
    ("5", "2014-01-01", "1945-06-30", "male", 120.0, 120.0, 0, None, "2018-01-01"),
]
STUDY = Dictionary(
    name="f",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="integer", unit="years", lower=18, upper=110),
        Column(name="sex", kind="binary", levels=("female", "male")),
        Column(name="sbp", kind="continuous", unit="mmHg", lower=50, upper=300, missing="level"),
        Column(name="diabetes", kind="binary"),
        Column(name="time", kind="time", unit="days", upper=730, event="died"),
        Column(name="died", kind="event"),
    ),
)


def export(folder, files=FILES, definition=DEFINITION) -> TableSource:
    (folder / "export").mkdir(exist_ok=True)
    for name, resources in files.items():
        text = "\n".join(map(json.dumps, resources))
        (folder / "export" / f"{name}.ndjson").write_text(text + "\n")
    path = folder / "ward.fhir"
    path.write_text(definition)
    return TableSource(path=path)


def test_an_export_is_one_row_for_each_patient_who_enters(tmp_path):
    found = records.whole(export(tmp_path)).astype(object)
    rows = [tuple(None if pd.isna(value) else value for value in row) for row in found.itertuples(index=False)]
    assert rows == ROWS


def test_an_export_goes_from_a_definition_to_the_prepared_table(tmp_path):
    """By the mapping that is proposed; the age is derived of two dates, as the steward says."""
    from site_agent.records.mapping import document

    source = export(tmp_path)
    found = proposed(records.whole(source), STUDY, {}, ["highest"])
    text = document.text(found.mapped)
    assert set(found.open) <= {"age"}, text
    source = replace(source, **found.mapped)
    if "age" in found.open:
        steps = replace(
            source.steps, derive={**source.steps.derive, "age": "completed years between birth_date and index_date"}
        )
        source = replace(source, steps=steps)
    assert records.problems(source, STUDY) == ()
    table = records.read(source, STUDY, key=KEY).table
    assert table["age"].tolist() == [60, 53, 68]
    assert table["sex"].tolist() == ["male", "female", "male"] or table["sex"].tolist() == [1, 0, 1]
    assert table["time"].tolist() == [366, 730, 730]
    assert table["died"].tolist() == [1, 0, 0]


def test_the_snapshot_is_of_the_rows_and_not_of_the_definition_or_the_order_of_the_lines(tmp_path):
    columns = (Column(name="person", kind="person"), Column(name="diabetes", kind="binary"))
    study = Dictionary(name="f", version=1, columns=columns)

    def snapshot(files):
        source = export(tmp_path, files)
        rest = tuple(name for name in records.header(source) if name not in ("person", "diabetes"))
        return records.read(replace(source, ignore=rest), study, key=KEY).snapshot

    first = snapshot(FILES)
    assert snapshot({name: rows[::-1] for name, rows in FILES.items()}) == first
    more = [*FILES["Condition"], condition("2", "44054006", "2012-06-01")]
    assert snapshot({**FILES, "Condition": more}) != first


def refused(folder, files=FILES, definition=DEFINITION) -> DataFileRefusal:
    with pytest.raises(DataFileRefusal) as caught:
        records.whole(export(folder, files, definition))
    return caught.value


def test_what_an_export_cannot_be_is_refused_without_a_value(tmp_path):
    secret = "Secretname"
    twice = {**FILES, "Patient.001": [patient("1", "1950-01-01", secret)]}
    found = refused(tmp_path, twice)
    assert (found.given, secret in str(found)) == ("1 patients again", False)


def test_a_resource_without_a_day_is_counted_and_left_out_only_where_the_definition_says_so(tmp_path):
    files = {**FILES, "Condition.001": [condition("2", "38341003", "2012")]}
    assert refused(tmp_path, files).given.startswith("1 of ")
    source = export(tmp_path, files, 'undated = "leave_out"\n' + DEFINITION)
    assert len(records.whole(source)) == 3


@pytest.mark.parametrize(
    "death", [{"deceasedBoolean": True}, {"deceasedDateTime": "2014"}, {"deceasedDateTime": "2012-12-31"}]
)
def test_nobody_who_died_without_a_day_that_can_be_right_is_read_as_a_survivor(death, tmp_path):
    first, second, *rest = FILES["Patient"]
    files = {**FILES, "Patient": [first, second | death, *rest]}  # patient 2 enters on 2013-01-01
    assert refused(tmp_path, files).given == "1 of 3 who enter have not"
    source = export(tmp_path, files, 'undated = "leave_out"\n' + DEFINITION)
    assert records.whole(source)["person"].tolist() == ["1", "5"]
    alive = {**FILES, "Patient": [first, second | {"deceasedBoolean": False}, *rest]}
    assert len(records.whole(export(tmp_path, alive))) == 3
    # Whoever does not enter may have died at any time, and a death that is not the event may lack its day.
    early = {**FILES, "Patient": [*FILES["Patient"], patient("9", "1930-01-01", "male", deceasedBoolean=True)]}
    assert len(records.whole(export(tmp_path, early))) == 3
    other = DEFINITION.replace('"Patient"', f'"Condition"\ncodes = ["{SNOMED}|44054006"]')
    assert len(records.whole(export(tmp_path, files, other))) == 3


def test_values_of_several_units_are_refused_where_none_is_named(tmp_path):
    found = refused(tmp_path, definition=DEFINITION.replace('unit = "mm[Hg]"\n', ""))
    assert found.given == "2 units"


def test_a_whole_number_that_no_double_holds_lies_beyond_all_bounds(tmp_path):
    files = {
        **FILES,
        "Observation.000": [pressure("1", "2011-02-01", 10**400), pressure("5", "2013-12-31", -(10**400))],
    }
    pressures = records.whole(export(tmp_path, files)).iloc[:, 4].tolist()
    assert (pressures[0], pressures[2]) == (math.inf, -math.inf)


@pytest.mark.parametrize("line", ["{", "[]", '"text"', '{"id": 3}', "\x00", '{"resourceType": 7}'])
def test_a_line_that_is_no_resource_is_refused(tmp_path, line):
    source = export(tmp_path)
    with (tmp_path / "export" / "Patient.ndjson").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataFileRefusal, match="NDJSON"):
        records.whole(source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[cohort]", "[cohorts]"), "cohort"),
        (('resource = "Patient"', 'resource = "Encounter"'), "one of"),
        (("from = 2010-01-01", 'from = "2010"'), "from to a day"),
        (('take = "last"', 'take = "median"'), "take one of"),
        (("days = [-365, 0]", "days = [0, -365]"), "first and a last day"),
        (("[covariates.sbp]", "[covariates.person]"), "name of its own"),
        (('folder = "export"', 'folder = "elsewhere"'), "NDJSON files"),
        (('codes = ["8480-6"]', "codes = [8480]"), "list codes"),
    ],
)
def test_a_definition_that_says_something_else_is_refused(change, words, tmp_path):
    assert change[0] in DEFINITION
    with pytest.raises(DataFileRefusal, match=words):
        records.whole(export(tmp_path, definition=DEFINITION.replace(change[0], change[1])))
