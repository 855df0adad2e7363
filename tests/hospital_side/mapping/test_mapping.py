"""A mapping without code: units, dates, formulas, rows made one, follow-up; refused where it would be a guess."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.mapping import AGE, DATES, FOLLOWED, ROWS, STUDY, VALUES
from stage.hospital_side.records import CANARY, KEY, refused, write
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.base.canonical import sha256_hex
from shared.errors import ConfigRefusal, DictionaryRefusal, MissingRefusal, ReceiptRefusal, UsageRefusal
from shared.plans.dictionary import Column, Dictionary
from shared.releases.bundle import read_bundle
from shared.releases.receipt import Receipt
from site_agent.config import SiteConfig, TableSource
from site_agent.records import table as records
from site_agent.records.mapping import document, editing
from site_agent.records.mapping.declared import Combination, DateForm, Steps
from site_agent.records.mapping.evaluating import evaluate
from site_agent.records.mapping.formulas import columns_of
from site_agent.records.mapping.preparing import dates
from site_agent.records.mapping.suggesting import no_dates, proposed
from site_agent.records.mapping.units import ANALYTES, conversion
from tests.stage.house.sources import ROOT

STEPS = Steps(dates=DATES, derive=AGE, follow_up=FOLLOWED)


def mapped(folder, table=ROWS, steps=STEPS, **how) -> TableSource:
    return replace(write(folder, table, delimiter=";"), values=VALUES, steps=steps, **how)


def test_an_extract_of_dates_and_other_units_becomes_the_study_s_table(tmp_path):
    found = records.read(mapped(tmp_path), STUDY, key=KEY).table
    assert found["age"].tolist() == [57, 50, 49, 60], "a birthday on 29 February, one on the day, one the day after"
    assert found["chol"].tolist()[::2] == pytest.approx([5.2 * 38.6664, 6 * 38.6664])
    # Alive at the last contact; died after two years; seen beyond the horizon; died beyond it.
    assert found["died"].tolist() == [0, 1, 0, 0]
    assert found["time"].tolist() == pytest.approx([365 / 365.25, 731 / 365.25, 5, 5])


@pytest.mark.parametrize(
    ("changes", "rule", "given"),
    [
        ({"geb": f"3.4.19{CANARY}"}, "column 'geb' must hold dates written as %d.%m.%Y", "1 rows"),
        ({"geb": "31.02.1950"}, "column 'geb' must hold dates", "1 rows"),
        ({"tod": "1.1.2009"}, "follow-up must not end before it starts", "1 rows"),
        ({"chol": CANARY}, "column 'chol' must be a number", "1 row"),
        ({"sex": CANARY}, "column 'sex' must be a level", "1 row"),
    ],
)
def test_what_cannot_be_made_is_refused_by_column_rule_and_count(changes, rule, given, tmp_path):
    table = ROWS.copy()
    for name, value in changes.items():
        table.loc[1, name] = value
    found = refused(DictionaryRefusal, mapped(tmp_path, table), STUDY)
    assert rule in found.must
    assert given in found.given


def day(ahead: int) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(days=ahead)).strftime("%d.%m.%Y")


@pytest.mark.parametrize(
    ("changes", "until", "rule"),
    [
        ({"tod": "31.12.9999"}, "", "column 'tod' must hold no date more than 20 years ahead"),
        ({"tod": day(3)}, "", "column 'tod' must hold no date after today"),
        ({"kontakt": day(3)}, "", "column 'kontakt' must hold no date after today"),
        ({"aufnahme": day(-20), "tod": "", "kontakt": ""}, "2999-12-31", "nobody can have been followed beyond today"),
    ],
)
def test_nobody_is_followed_to_a_day_that_has_not_come(changes, until, rule, tmp_path):
    # Else who is alive, and has 31.12.9999 as day of death, would be followed to the horizon, and not to the contact.
    table = ROWS.copy()
    table.loc[1, list(changes)] = list(changes.values())
    how = replace(FOLLOWED, last="", until=until) if until else FOLLOWED
    found = refused(DictionaryRefusal, mapped(tmp_path, table, replace(STEPS, follow_up=how)), STUDY)
    assert rule in found.must
    assert "1 rows" in found.given
    assert until or f"by this machine's clock it is {dt.datetime.now(dt.UTC):%Y-%m-%d}" in found.given


def test_of_a_text_that_means_no_date_follow_up_ends_at_the_contact(tmp_path):
    table = ROWS.assign(tod=ROWS["tod"].replace("", "31.12.9999"))
    steps, others = editing.steps(STEPS, {}, {}, [], ["tod:31.12.9999=", "sex:w=female"])
    assert others == ["sex:w=female"], "levels are not dates'"
    expected = records.read(mapped(tmp_path), STUDY, key=KEY).table
    pd.testing.assert_frame_equal(records.read(mapped(tmp_path, table, steps), STUDY, key=KEY).table, expected)
    again, _ = editing.steps(steps, {"tod": "%d.%m.%Y"}, {}, [])
    assert again.dates["tod"].missing == ("31.12.9999",), "stays where the form is said again"
    with pytest.raises(UsageRefusal, match="can only be missing"):
        editing.steps(STEPS, {}, {}, [], ["tod:31.12.9999=2020"])


def test_a_text_that_anybody_knows_to_be_no_date_is_proposed_as_such():
    table = ROWS.assign(tod=["31.12.9999", "01.07.2012", "00.00.0000", "k.A."], geb=[*ROWS["geb"][:3], "17.05.9999"])
    forms = proposed(table, STUDY, {}).mapped["steps"].dates
    assert forms["tod"].missing == ("00.00.0000", "31.12.9999", "k.A.")
    assert forms["geb"].missing == (), "a day and a month may be a patient's"
    assert no_dates(pd.Series([dt.date(2999, 12, 31), dt.date(2020, 1, 1)])) == ("2999-12-31",)


def test_every_column_is_named_where_the_file_has_others(tmp_path):
    [absent] = records.problems(mapped(tmp_path, ROWS.drop(columns="kontakt")), STUDY)
    assert absent.given == "no 'kontakt'"
    [both] = records.problems(mapped(tmp_path, ROWS.assign(age=50)), STUDY)
    assert "not both" in both.must
    [more] = records.problems(mapped(tmp_path, ROWS.assign(ward=50)), STUDY)
    assert more.given == "'ward'"


# -- a person's rows ----------------------------------------------------------------------------------------------
VISITS = pd.DataFrame(
    {
        "person": ["a", "A ", "a", "b", "b"],
        "day": ["1", "3", "2", "1", "2"],
        "sbp": ["120", "150", "", "140", "141"],
        "high": ["0", "0", "1", "0", ""],
        "sex": ["1", "1.0", "", "0", "0"],
    }
)
PRESSURE = Dictionary(
    name="v",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="sbp", kind="continuous", lower=70, upper=260, missing="level"),
        Column(name="high", kind="binary", missing="level"),
        Column(name="sex", kind="binary"),
    ),
)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("first", [120, 140]), ("last", [150, 141]), ("max", [150, 141]), ("min", [120, 140]), ("mean", [135, 140.5])],
)
def test_rows_of_a_person_become_one(how, expected, tmp_path):
    steps = Steps(persons=Combination(order="day", take={"sbp": how, "high": "any", "day": "max"}))
    for table in (VISITS, VISITS[::-1]):
        source = replace(write(tmp_path, table), steps=steps)
        found = records.read(source, PRESSURE, key=KEY).table.sort_values("person")
        assert found["sbp"].tolist() == expected
        assert found["high"].tolist() == [1, 0]
        assert found["sex"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "steps", "rule", "kind"),
    [
        ({"sex": "0"}, {}, "column 'sex' must say the same", DictionaryRefusal),
        ({"day": "3"}, {"sbp": "last"}, "column 'sbp' must have one last value", DictionaryRefusal),
        ({"day": ""}, {"sbp": "last"}, "column 'day' must be a date or a number", DictionaryRefusal),
        ({"sbp": CANARY}, {"sbp": "mean"}, "column 'sbp' must hold numbers", DictionaryRefusal),
        ({"sbp": "-inf"}, {"sbp": "mean"}, "column 'sbp' must hold numbers", DictionaryRefusal),
        ({"sbp": "1e308"}, {"sbp": "mean"}, "column 'sbp' must hold numbers", DictionaryRefusal),
        ({"person": ""}, {"sbp": "mean"}, "column 'person' must identify every row", MissingRefusal),
    ],
)
def test_rows_that_contradict_each_other_are_refused(change, steps, rule, kind, tmp_path):
    table = VISITS.copy()
    for name, value in change.items():
        table.loc[0, name] = value
    take = {"sbp": "mean", "high": "any", "day": "max"} | steps
    source = replace(write(tmp_path, table), steps=Steps(persons=Combination(order="day", take=take)))
    found = refused(kind, source, PRESSURE)
    assert rule in found.must
    assert "1 " in found.given


def test_a_row_needs_no_place_that_has_nothing_taken_by_it(tmp_path):
    """As REDCap exports a repeating instrument: what is asked once stands in a row of its own, without an instance."""
    export = pd.DataFrame(
        {
            "person": ["a", "a", "a", "b", "b"],
            "redcap_repeat_instance": ["", "2", "1", "", "1"],
            "sex": ["1", "", "", "0", ""],
            "high": ["0", "", "", "1", ""],
            "sbp": ["", "150", "120", "", "140"],
        }
    )
    take = {"sbp": "first", "redcap_repeat_instance": "max"}
    steps = Steps(persons=Combination(order="redcap_repeat_instance", take=take))
    found = records.read(replace(write(tmp_path, export), steps=steps), PRESSURE, key=KEY).table
    assert found[["sbp", "high", "sex"]].to_numpy().tolist() == [[120, 0, 1], [140, 1, 0]]
    [refusal] = records.problems(
        replace(write(tmp_path, export), steps=steps, ignore=("redcap_repeat_instance",)), PRESSURE
    )
    assert "must not be ignored" in refusal.must
    assert "'redcap_repeat_instance'" in refusal.given


# -- dates --------------------------------------------------------------------------------------------------------
def test_a_form_reads_its_own_dates_and_no_other():
    def read(value, form, **more):
        return dates(pd.Series([value], dtype=object), DateForm(form=form, **more), "x")[0]

    day = pd.Timestamp("2024-03-01")
    assert read("2024-03-01T23:59:00", "iso") == read("01/03/2024", "%d/%m/%Y") == read(45352, "excel") == day
    assert read(dt.datetime(2024, 3, 1, 7), "%d.%m.%Y") == read(dt.date(2024, 3, 1), "file") == day
    assert pd.isna(read("00.00.0000", "%d.%m.%Y", missing=("00.00.0000",)))
    mixed = [dt.datetime(2024, 3, 1, 23, tzinfo=dt.UTC), dt.datetime(2024, 3, 1, 1), dt.date(9999, 12, 31)]
    found = dates(pd.Series(mixed, dtype=object), DateForm(form="file"), "x")
    assert found.dt.strftime("%Y-%m-%d").tolist() == ["2024-03-01", "2024-03-01", "9999-12-31"]
    for value, form in (("1.3.24", "%d.%m.%Y"), ("2024-03-01", "file"), ("13/13/2024", "%m/%d/%Y"), ("12", "excel")):
        with pytest.raises(DictionaryRefusal, match="1 rows"):
            read(value, form)
    with pytest.raises(ConfigRefusal, match="two centuries"):
        DateForm(form="%d.%m.%y")


# -- formulas -----------------------------------------------------------------------------------------------------
FRAME = pd.DataFrame({"a": ["2", "", "8"], "b": [4, 5, 0], "c d": ["x", "y", None]})


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("a + b * 2 ^ 2", [18, np.nan, 8]),
        ("-a ^ 2", [-4, np.nan, -64]),
        ("(a + b) / 2 - -1", [4, np.nan, 5]),
        ("a >= 2 and b = 4", [1, 0, 0]),
        ("a >= 2 and b > 4", [0, np.nan, 0]),
        ("known(a) or b > 9", [1, 0, 1]),
        ("not a > 2 or b = 5", [1, 1, 0]),
        ("[c d] = 'x'", [1, 0, np.nan]),
        ("[c d] != 'x' and known([c d])", [0, 1, 0]),
        ("max(a, b) + min(1, b) + floor(sqrt(4.5)) + round(abs(-1.4))", [8, np.nan, 11]),
        ("1e2", [100, 100, 100]),
    ],
)
def test_a_formula_is_what_arithmetic_says(formula, expected):
    assert evaluate(formula, FRAME, "x").tolist() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    "formula",
    [
        *("", "a +", "a b", "(a", "a ** 2", "__import__('os')", "a.b", "a[0]", "completed weeks between a and b"),
        *("max(a)", "years between a", "lambda: 1", "(" * 500 + "a" + ")" * 500, "'x' < 'y'", "a + 1" * 999),
    ],
)
def test_what_is_no_formula_is_refused_and_never_run(formula):
    with pytest.raises(UsageRefusal):
        evaluate(formula, FRAME, "x")


@pytest.mark.parametrize(("formula", "count"), [("1 / b", "1 rows"), ("sqrt(0 - b)", "2 rows"), ("log(b)", "1 rows")])
def test_a_formula_that_gives_no_number_is_refused(formula, count):
    with pytest.raises(DictionaryRefusal, match=count):
        evaluate(formula, FRAME, "x")


def test_a_formula_names_what_it_reads():
    assert columns_of("completed years between [Tag der Geburt] and index", "x") == ("Tag der Geburt", "index")
    with pytest.raises(UsageRefusal, match="a date"):
        evaluate("years between a and b", FRAME, "x")


# -- units --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("unit", "to", "analyte", "factor"),
    [  # printed factors of clinical chemistry (AMA Manual of Style, SI conversion), to their digits
        ("mg/dL", "mmol/L", "cholesterol", 0.0259),
        ("mg/dL", "mmol/L", "triglycerides", 0.0113),
        ("mg/dL", "mmol/L", "glucose", 0.0555),
        ("mg/dL", "µmol/L", "creatinine", 88.4),
        ("mg/dL", "mmol/L", "urea nitrogen", 0.357),
        ("mg/dL", "umol/L", "uric acid", 59.48),
        ("mg/dL", "umol/l", "bilirubin", 17.104),
        ("mg/dL", "mmol/L", "calcium", 0.25),
        ("g/dL", "mmol/L", "hemoglobin", 0.6206),
        ("lb", "kg", "", 0.45359237),
        ("[in_i]", "cm", "", 2.54),
        ("kPa", "mmHg", "", 7.50062),
        ("kPa", "mm[Hg]", "", 7.50062),
        ("g/L", "mg/dl", "", 100),
        ("g/m3", "mg/L", "", 1),
        ("cm3", "mL", "", 1),
        ("months", "years", "", 1 / 12),
        ("kg/m2", "g/cm2", "", 0.1),
    ],
)
def test_units_convert_as_printed_tables_say(unit, to, analyte, factor):
    found = conversion(unit, to, analyte)[0]
    digits = len(f"{factor:.6g}".replace("0.", "").replace(".", "").lstrip("0"))
    assert found == pytest.approx(factor, rel=10.0 ** (1 - max(digits, 2)))
    assert found * conversion(to, unit, analyte)[0] == pytest.approx(1, rel=1e-11)


@pytest.mark.parametrize(
    ("unit", "to", "analyte", "words"),
    [
        ("mmol/L", "mg/dL", "", "name the analyte"),
        ("kg", "cm", "", "do not measure the same"),
        ("mg/dL", "mmHg", "glucose", "do not measure the same"),
        ("furlong", "m", "", "'furlong'"),
        ("mmol/L", "mg/dL", "unobtainium", "'unobtainium'"),
        ("mmol/mol", "mg/dL", "hba1c", "do not"),
    ],
)
def test_units_that_cannot_convert_are_refused(unit, to, analyte, words):
    with pytest.raises(UsageRefusal, match=words):
        conversion(unit, to, analyte)


def test_scales_with_another_zero_convert():
    assert conversion("°F", "Cel") == pytest.approx((1 / 1.8, -32 / 1.8))
    factor, offset = conversion("mmol/mol", "%", "hba1c")
    assert 48 * factor + offset == pytest.approx(6.5, abs=0.05), "the threshold of diabetes in both units"
    assert min(ANALYTES.values()) > 20


# -- the file -----------------------------------------------------------------------------------------------------
def test_the_file_is_read_back_whole_and_its_hash_is_that_of_its_bytes(tmp_path):
    source = replace(mapped(tmp_path), ignore=("x y",), columns={'Küste="1"': "sex"}, salt="5a17" * 8)
    persons = Combination(order="day", take={"sbp": "mean"})
    source = replace(source, steps=replace(source.steps, persons=persons))
    path = tmp_path / "m.toml"
    path.write_text(document.text(source.mapped))
    assert document.read(path) == source.mapped
    assert source.mapping_hash == sha256_hex(path.read_bytes())
    assert replace(source, salt="").mapping_hash == ""
    assert replace(source, salt="ffff" * 8).mapping_hash != source.mapping_hash


@pytest.mark.parametrize(
    "line",
    [
        *("[dates]\ngeb = 3", "[derive]\nage = 'a +'", "[follow_up]\ntime = 'time'"),
        *("[persons]\ntake = {x = 'median'}", "colums = 1", "[values.sex]\nlevel = 1", "ignore = 'x'"),
        "[values.chol]\nunit = 'g/L'\nfactor = 2",
    ],
)
def test_a_file_that_says_something_else_is_refused(line, tmp_path):
    path = tmp_path / "m.toml"
    path.write_text('format = "tributary-mapping/1"\n' + line)
    with pytest.raises((ConfigRefusal, UsageRefusal)):
        document.read(path)


def test_the_mapping_of_the_operators_manual_is_one(tmp_path):
    manual = (ROOT / "docs" / "operators-manual.md").read_text(encoding="utf-8")
    [block] = [text for text in re.findall(r"```toml\n(.*?)```", manual, re.S) if "[follow_up]" in text]
    (tmp_path / "m.toml").write_text(f'format = "{document.FORMAT}"\n{block}')
    assert document.read(tmp_path / "m.toml")["steps"].made == ("age", "bmi", "time", "died")


def test_what_is_made_is_part_of_what_was_read(tmp_path):
    one = records.read(mapped(tmp_path), STUDY, key=KEY).snapshot
    longer = replace(STEPS, follow_up=replace(FOLLOWED, horizon=4.0))
    assert records.read(mapped(tmp_path, steps=longer), STUDY, key=KEY).snapshot != one


# -- proposals ----------------------------------------------------------------------------------------------------
def test_a_mapping_is_proposed_from_names_units_and_levels_without_a_value_of_its_own():
    table = ROWS.rename(columns={"sex": "Geschlecht", "chol": "Cholesterin (mmol/l)", "aufnahme": "Aufnahmetag"})
    table = table.assign(person=[CANARY + k for k in "abcd"], ward=["x", "y", "x", "y"])
    table.loc[3, "Geschlecht"] = CANARY
    found = proposed(table, STUDY, {})
    assert found.mapped["columns"] == {"Geschlecht": "sex", "Cholesterin (mmol/l)": "chol"}
    assert found.mapped["values"]["sex"].levels == {"w": "female", "m": "male"}
    assert found.mapped["values"]["chol"] == VALUES["chol"]
    assert found.mapped["steps"].derive == {"age": "completed years between [geb] and [Aufnahmetag]"}
    assert found.mapped["steps"].dates["geb"].form == "%d.%m.%Y"
    assert "1 row holds a value that is none of female, male" in found.open["sex"]
    assert found.mapped["steps"].follow_up == replace(FOLLOWED, start="Aufnahmetag")
    assert set(found.open) == {"sex", "ward"}
    assert CANARY not in document.text(found.mapped) + str(dict(found.open))


def test_dates_that_could_be_of_two_forms_are_asked_for():
    table = pd.DataFrame({"person": ["a", "b"], "geb": ["01/02/1950", "03/04/1960"], "adm": ["31/12/2020", "1/1/2020"]})
    found = proposed(table, STUDY, {})
    assert found.open["geb"] == "dates, written as %d/%m/%Y or %m/%d/%Y? (--date geb=FORM)"
    assert "adm" not in found.mapped["steps"].dates, "not needed without the other"


# -- at the command line ------------------------------------------------------------------------------------------
def test_the_check_counts_the_values_that_are_missing_also_of_rows_left_out(hospital, plan):
    """What a code of missing values, or a level recoded to nothing, has taken out is seen before a release."""
    how = {"sbp": "complete_case", "sex": "level"}
    columns = tuple(replace(c, missing=how.get(c.name, c.missing)) for c in plan.dictionary.columns)
    at = hospital.joined().approved(replace(plan, dictionary=replace(plan.dictionary, columns=columns)))
    table = make_table(300).astype({"sbp": object, "sex": object})
    table.loc[:3, "sbp"] = ""
    table.loc[2:6, "sex"] = "NA"
    at.with_table(table)
    found = at.json("data", "check", "mini")
    assert (found["rows"], found["left_out"]) == (300, 4)
    codes = int(table["chol"].isin(plan.dictionary.column("chol").missing_codes).sum())
    assert codes > 0
    assert {name: found["missing"][name] for name in ("sbp", "sex", "chol")} == {"sbp": 4, "sex": 5, "chol": codes}
    assert "age" not in found["missing"]
    said = " ".join(at("data", "check", "mini").split())
    assert f"chol {codes}" in said.partition("missing values")[2]


def test_a_mapping_goes_from_a_proposal_to_the_receipt(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300).rename(columns={"sex": "Geschlecht", "sbp": "sbp (kPa)"})
    table["Geschlecht"] = table["Geschlecht"].map({"male": "m", "female": "w"})
    table["sbp (kPa)"] = [f"{value / 7.50061575846!r}".replace(".", ",") for value in table["sbp (kPa)"]]
    table["visits"] = table["visits"] * 2
    path, draft = tmp_path / "auszug.csv", tmp_path / "draft.toml"
    table.rename(columns={"visits": "half"}).to_csv(path, index=False, sep=";")
    at("data", "add", str(path), "--as", "mini")
    settings = (at.home / "site.toml").read_bytes()
    said = at("data", "map", "mini", "--suggest", "--out", str(draft))
    assert "made of others?" in " ".join(said.replace("#", "").split())
    [asked] = [line for line in draft.read_text("utf-8").splitlines() if line.startswith("#   visits: ")]
    assert "made of others?" in asked
    assert (at.home / "site.toml").read_bytes() == settings, "nothing is kept"
    at.refused("data", "map", "mini", "--suggest", "--out", str(draft), expect=2)
    at.refused("data", "map", "mini", "--file", str(draft), "--derive", "visit=half", expect=40)  # no such column
    assert at.json("data", "map", "mini", "--file", str(draft), "--derive", "visits=half / 2", "--dry-run")["dry_run"]
    assert (at.home / "site.toml").read_bytes() == settings
    kept = at.json("data", "map", "mini", "--file", str(draft), "--derive", "visits=half / 2")
    mapping = at.home / "mappings" / "mini.toml"
    assert kept["mapping_hash"] == sha256_hex(mapping.read_bytes())
    assert kept["steps"] == {"derive": {"visits": "half / 2"}}
    assert at.json("data", "check", "mini")["problems"] == []
    release = at.json("release", "mini", "--wave", "1")["release_id"]
    assert f"mappings/mini.toml, {kept['mapping_hash'][:16]}" in " ".join(at("outbox", "show", release).split())
    bundle = next(file for file in at.home.rglob("bundle*") if file.is_file())
    receipt = read_bundle(bundle, cap=1 << 24).receipt
    assert receipt.mapping == kept["mapping_hash"]
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt
    with pytest.raises(ReceiptRefusal, match="mapping"):
        replace(receipt, mapping="0" * 63).require_true(plan)
    assert b'"mapping"' not in replace(receipt, mapping="").to_bytes(), "as on receipts from before"
    mapping.unlink()
    assert "Put it back" in at.refused("data", "check", "mini", expect=2)["next_step"]


def test_settings_of_an_earlier_version_are_read_and_moved_to_their_own_file(tmp_path):
    config = SiteConfig(
        home=tmp_path, site="n", coordinator="h", address="h:1", server_name="h", ca_fingerprint="", leads=()
    )
    inline = f"""
[data.m]
path = "{tmp_path}/t.csv"
encoding = "utf-8"
delimiter = ","
ignore = ["ward"]
[data.m.columns]
"Alter" = "age"
[data.m.values.sex]
levels = {{ "m" = "1" }}
"""
    (tmp_path / "site.toml").write_text(config.to_toml() + inline)
    old = SiteConfig.load(tmp_path)
    assert old.source("m").columns == {"Alter": "age"}
    assert old.source("m").mapping_hash == "", "no salt yet"
    old.with_source("m", old.source("m")).save()
    new = SiteConfig.load(tmp_path)
    assert replace(new.source("m"), salt="") == old.source("m")
    assert len(new.source("m").mapping_hash) == 64
    assert "Alter" not in (tmp_path / "site.toml").read_text()
    text = (tmp_path / "site.toml").read_text().replace("mappings/m.toml", "../m.toml")
    with pytest.raises(ConfigRefusal, match=r"mappings/m\.toml alone"):
        SiteConfig.from_toml(text, home=tmp_path)
