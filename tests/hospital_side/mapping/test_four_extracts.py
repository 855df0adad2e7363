"""One hospital's records as four extracts, coded as hospitals code them, and mapped without code: one study's table.

The records are made up; where TRIBUTARY_HEART_DATA names the folder of the UCI heart records, they are Cleveland's.
"""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest

from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import StudyPlan
from site_agent.config import TableSource
from site_agent.records import table as records
from site_agent.records.mapping import document
from tests.stage.house.sources import ROOT

KEY = b"k" * 32
HEART = os.environ.get("TRIBUTARY_HEART_DATA", "")
PLAN = StudyPlan.from_toml((ROOT / "deploy" / "studies" / "heart.toml").read_text(encoding="utf-8"))
STUDY = Dictionary(
    name="uci-heart", version=1, columns=(Column(name="person", kind="person"), *PLAN.dictionary.columns)
)
MMOL, KPA = 38.6664, 7.50061575846
"""mg/dL of cholesterol in a mmol/L, mmHg in a kPa."""


def simulated(n: int = 250) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    table = pd.DataFrame(
        {
            "age": rng.integers(29, 78, n),
            "sex": rng.integers(0, 2, n),
            "cp": rng.integers(1, 5, n),
            "trestbps": rng.integers(94, 201, n).astype(float),
            "chol": rng.integers(126, 565, n).astype(float),
            "thalach": rng.integers(71, 203, n),
            "exang": rng.integers(0, 2, n).astype(float),
            "oldpeak": rng.integers(0, 63, n) / 10,
            "num": rng.integers(0, 5, n),
        }
    )
    for name in ("trestbps", "chol", "exang", "oldpeak"):
        table.loc[rng.random(n) < 0.1, name] = np.nan
    return table


RECORDS = pytest.param("heart", marks=pytest.mark.skipif(not HEART, reason="TRIBUTARY_HEART_DATA is not set"))


@pytest.fixture(scope="module", params=["simulated", RECORDS])
def base(request) -> pd.DataFrame:
    """The records as today's studies have them, with a person and two dates that give the age."""
    names = [column.name for column in PLAN.dictionary.columns]
    table = simulated() if request.param == "simulated" else pd.read_csv(Path(HEART) / "cleveland.csv")[names]
    rng = np.random.default_rng(3)
    index = [dt.date(2019, 1, 1) + dt.timedelta(days=int(k)) for k in rng.integers(0, 1400, len(table))]
    birth = []
    for day, age in zip(index, table["age"], strict=True):
        earlier = day - dt.timedelta(days=int(rng.integers(0, day.timetuple().tm_yday)))
        birth.append(earlier.replace(year=day.year - int(age), day=min(earlier.day, 28)))
    persons = [f"{k:05d}" for k in range(len(table))]
    return table.assign(person=persons, index=index, birth=birth)


def plain(folder: Path, base: pd.DataFrame) -> TableSource:
    base.drop(columns=["index", "birth"]).to_csv(folder / "plain.csv", index=False)
    return TableSource(path=folder / "plain.csv")


def comma(value: float) -> str:
    return "k.A." if pd.isna(value) else f"{value!r}".replace(".", ",")


def excel(folder: Path, base: pd.DataFrame) -> TableSource:
    book = openpyxl.Workbook()
    book.active.title = "Hinweise"
    sheet = book.create_sheet("Daten")
    sheet.append(["Fall", "Geburt", "Aufnahme", "Geschlecht", "cp", "RR", "Chol (mmol/l)", "HF", "exang", "ST", "num"])
    for row in base.itertuples():
        sheet.append(
            [
                *(row.person, row.birth, row.index, "mw"[1 - row.sex], row.cp, comma(row.trestbps)),
                *(comma(row.chol / MMOL), row.thalach, {0: "nein", 1: "ja"}.get(row.exang), comma(row.oldpeak)),
                row.num,
            ]
        )
    book.save(folder / "auszug.xlsx")
    return TableSource(path=folder / "auszug.xlsx", table="Daten")


EXCEL = """
[columns]
Fall = "person"
Geschlecht = "sex"
RR = "trestbps"
"Chol (mmol/l)" = "chol"
HF = "thalach"
ST = "oldpeak"

[values.sex]
levels = { m = "1", w = "0" }
[values.exang]
levels = { ja = "1", nein = "0" }
[values.trestbps]
decimal = ","
levels = { "k.A." = "" }
[values.oldpeak]
decimal = ","
levels = { "k.A." = "" }
[values.chol]
decimal = ","
unit = "mmol/l"
analyte = "cholesterol"
levels = { "k.A." = "" }

[dates]
Geburt = "file"
Aufnahme = "file"
[derive]
age = "completed years between Geburt and Aufnahme"
"""


def spss(folder: Path, base: pd.DataFrame) -> TableSource:
    table = base[["person", "cp", "thalach", "num", "birth", "index", "exang", "oldpeak"]].rename(
        columns={"index": "visit"}
    )
    table["gender"] = 2 - base["sex"]  # 1 male, 2 female
    table["bp_kpa"] = base["trestbps"] / KPA
    table["chol"] = base["chol"].fillna(-99)
    labels = {"gender": {1: "male", 2: "female"}, "chol": {-99: "not measured"}}
    pyreadstat.write_sav(table, folder / "extract.sav", variable_value_labels=labels, missing_ranges={"chol": [-99]})
    return TableSource(path=folder / "extract.sav")


SPSS = """
[columns]
gender = "sex"
bp_kpa = "trestbps"

[values.sex]
levels = { "1" = "1", "2" = "0" }
[values.trestbps]
unit = "kPa"

[dates]
birth = "file"
visit = "file"
[derive]
age = "completed years between birth and visit"
"""


def sql(folder: Path, base: pd.DataFrame) -> TableSource:
    """Two visits of each person, the values of the first; the dates as ISO text, in no order."""
    first = base.assign(visit=[f"{day}T08:00:00" for day in base["index"]], birth=base["birth"].astype(str))
    second = first.assign(
        visit=[f"{day + dt.timedelta(days=40)}" for day in base["index"]], thalach=first["thalach"] - 20, num=0
    )
    both = pd.concat([second, first]).drop(columns=["index", "age"]).rename(columns={"num": "vessels"})
    with sqlite3.connect(folder / "ward.sqlite") as db:
        both.to_sql("visits", db, index=False)
    db.close()
    return TableSource(path=folder / "ward.sqlite", table="visits")


SQL = """
[columns]
vessels = "num"
[dates]
birth = "iso"
visit = "iso"
[persons]
order = "visit"
take = { thalach = "first", num = "max", visit = "first" }
[derive]
age = "completed years between birth and visit"
"""


def csv(folder: Path, base: pd.DataFrame) -> TableSource:
    table = pd.DataFrame(
        {
            "Nº": base["person"],
            "né": [f"{day:%d/%m/%Y}" for day in base["birth"]],
            "entrée": [f"{day:%d/%m/%Y}" for day in base["index"]],
            "sexe": base["sex"].map({1: "homme", 0: "femme"}),
            "cp": base["cp"],
            "trestbps": [comma(value) for value in base["trestbps"]],
            "chol_g_l": base["chol"] / 100,
            "thalach": base["thalach"],
            "exang": base["exang"].map({1: "oui", 0: "non"}),
            "oldpeak": base["oldpeak"] / 10,
            "num": base["num"],
            "service": "cardio",
        }
    )
    table.to_csv(folder / "extrait.csv", index=False, sep=";", encoding="cp1252")
    encoding, delimiter = records.dialect(folder / "extrait.csv")
    return TableSource(path=folder / "extrait.csv", encoding=encoding, delimiter=delimiter)


CSV = """
ignore = ["service"]
[columns]
"Nº" = "person"
sexe = "sex"
chol_g_l = "chol"

[values.sex]
levels = { homme = "1", femme = "0" }
[values.exang]
levels = { oui = "1", non = "0" }
[values.trestbps]
decimal = ","
levels = { "k.A." = "" }
[values.chol]
unit = "g/L"
[values.oldpeak]
unit = "cm"

[dates]
"né" = "%d/%m/%Y"
"entrée" = "%d/%m/%Y"
[derive]
age = "completed years between [né] and [entrée]"
"""


@pytest.mark.parametrize(("made", "mapping"), [(excel, EXCEL), (spss, SPSS), (sql, SQL), (csv, CSV)])
def test_four_extracts_of_the_same_records_are_the_same_table_to_the_last_bit(made, mapping, base, tmp_path):
    today = records.read(plain(tmp_path, base), STUDY, key=KEY).table
    path = tmp_path / "mapping.toml"
    path.write_text('format = "tributary-mapping/1"\n' + mapping.lstrip(), encoding="utf-8")
    source = replace(made(tmp_path, base), **document.read(path))
    assert records.problems(source, STUDY) == ()
    found = records.read(source, STUDY, key=KEY).table
    assert len(found) == len(base)
    by = {"by": "person", "ignore_index": True}
    pd.testing.assert_frame_equal(found.sort_values(**by), today.sort_values(**by), check_exact=True)
