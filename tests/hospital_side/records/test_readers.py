"""Workbooks, files of statistics packages, Arrow, JSON lines: all give the records that CSV gives, or say why not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import openpyxl
import pandas as pd
import pyarrow as pa
import pyreadstat
import pytest
from stage.hospital_side.records import CANARY, KEY, refused, write
from stage.house.lacking import without

from shared.errors import ConfigRefusal, DataFileRefusal, DictionaryRefusal, PackageRefusal, UsageRefusal
from shared.plans.dictionary import Column, Dictionary
from site_agent.config import Recoding, TableSource
from site_agent.records import table as records
from site_agent.records.readers.statistics import READERS

SMALL = Dictionary(
    name="s",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="chol", kind="continuous", lower=40, upper=800, missing="level", missing_codes=(-9,)),
        Column(name="sex", kind="binary", missing="level"),
    ),
)


def workbook(path, rows, *, sheets=()):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in sheets:
        book.create_sheet(name).append(["nothing"])
    book.save(path)
    return TableSource(path=path)


def written(path, table) -> TableSource:
    """The table in the format of an ending, gaps as the format has them."""
    gaps = table.astype(object).where(table.notna(), None)
    kind = path.suffix
    if kind == ".xlsx":
        return workbook(path, [list(table.columns), *gaps.to_numpy(dtype=object).tolist()])
    if kind == ".sav":
        pyreadstat.write_sav(table.assign(clinic=table["clinic"].fillna("")), path)
    if kind == ".dta":
        pyreadstat.write_dta(table.assign(clinic=table["clinic"].fillna("")), path)
    if kind == ".xpt":
        pyreadstat.write_xport(table.assign(clinic=table["clinic"].fillna("")), path)
    if kind == ".feather":
        table.to_feather(path)
    if kind == ".arrow":
        arrow = pa.Table.from_pandas(table)
        with pa.ipc.new_stream(path, arrow.schema) as stream:
            stream.write_table(arrow)
    if kind == ".jsonl":
        known = [{k: v for k, v in row.items() if v is not None} for row in gaps.to_dict("records")]
        path.write_text("\n".join(map(json.dumps, known)))
    return TableSource(path=path)


KINDS = (".xlsx", ".sav", ".dta", ".xpt", ".feather", ".arrow", ".jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_records_of_a_csv_file(kind, tmp_path, table, dictionary):
    # openpyxl writes sixteen digits, and SAS transport in base 16: both may lose the last bit of a long fraction.
    given = table.assign(time=table["time"].round(3)) if kind in (".xlsx", ".xpt") else table
    plain = records.read(write(tmp_path, given), dictionary, key=KEY)
    source = written(tmp_path / f"cohort{kind}", given)
    found = records.read(source, dictionary, key=KEY)
    pd.testing.assert_frame_equal(plain.table, found.table, check_dtype=False, check_exact=True)
    assert records.count(source) == found.rows == 300


def test_a_sas_data_set_gives_the_records_of_a_csv_file(tmp_path, table, dictionary):
    """Nothing in Python writes one; R's haven does, where it is installed."""
    script = "args <- commandArgs(TRUE); suppressWarnings(haven::write_sas(read.csv(args[1]), args[2]))"
    plain = write(tmp_path, table)
    path = tmp_path / "cohort.sas7bdat"
    if (
        shutil.which("Rscript") is None
        or subprocess.run(["Rscript", "-e", 'library("haven")'], capture_output=True).returncode
    ):
        pytest.skip("R's haven is not installed")
    subprocess.run(["Rscript", "-e", script, str(plain.path), str(path)], check=True, capture_output=True)
    found = records.read(TableSource(path=path), dictionary, key=KEY)
    pd.testing.assert_frame_equal(
        records.read(plain, dictionary, key=KEY).table, found.table, check_dtype=False, check_exact=True
    )
    assert records.count(TableSource(path=path)) == found.rows == 300


@pytest.mark.parametrize("kind", [*KINDS, ".sas7bdat"])
def test_a_damaged_file_is_refused_without_a_word_of_it(kind, tmp_path, table, dictionary):
    path = tmp_path / f"cohort{kind}"
    if kind == ".sas7bdat":
        path.write_bytes(CANARY.encode() * 50)
    else:
        written(path, table.assign(person=CANARY + table["person"]))
        path.write_bytes(path.read_bytes()[:-333])
    refused(DataFileRefusal, TableSource(path=path), dictionary)


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [("xlsx", "openpyxl", "excel"), ("sav", "pyreadstat", "statistics")]
)
def test_a_format_whose_library_lacks_is_refused_with_the_command(kind, module, extra, tmp_path, monkeypatch):
    path = tmp_path / f"t.{kind}"
    path.write_bytes(b"PK")
    without(monkeypatch, module)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageRefusal) as caught:
        records.read(TableSource(path=path), SMALL, key=KEY)
    assert caught.value.next_step == f"pip install 'tributary-meta[site,{extra}]'"


# -- workbooks ----------------------------------------------------------------------------------------------------
ROWS = [["person", "chol", "sex"], ["a", 5.25, 1], ["b", "5,5", 0], ["c", -9, None]]


def test_numbers_of_a_workbook_have_no_comma_and_text_beside_them_has(tmp_path):
    source = replace(workbook(tmp_path / "t.xlsx", ROWS), values={"chol": Recoding(decimal=",", factor=40)})
    assert records.read(source, SMALL, key=KEY).table["chol"].tolist()[:2] == [210, 220]
    three = [ROWS[0], ["a", 5.125, 1], ["b", "5.125", 0]]  # 5125 or five and an eighth: as text nobody knows
    assert refused(
        DictionaryRefusal, replace(workbook(tmp_path / "u.xlsx", three), values=source.values), SMALL
    ).given == ("1 row that does not")


def test_blank_rows_of_a_sheet_are_none(tmp_path):
    source = workbook(tmp_path / "t.xlsx", [*ROWS, [None, None, None], ["d", 200, 1], [None, None, None]])
    source = replace(source, values={"chol": Recoding(decimal=",", factor=40, levels={"200": "5"})})
    assert records.read(source, SMALL, key=KEY).rows == 4


def test_of_several_sheets_one_is_named(tmp_path):
    source = workbook(tmp_path / "t.xlsx", ROWS, sheets=["notes"])
    assert "--table" in refused(UsageRefusal, source, SMALL).next_step
    refused(UsageRefusal, replace(source, table=CANARY), SMALL)
    values = {"chol": Recoding(decimal=",", factor=40)}
    assert records.read(replace(source, table="Sheet", values=values), SMALL, key=KEY).n == 3


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([["person", "chol", "sex"], ["a", "=100+100", 1]], "formula"),
        ([["person", "chol", "sex"], [9007199254740993, 200, 1]], "15 digits"),
        ([["person", "chol", "sex"], ["a", 200, 1, None, CANARY]], "3 cells"),
        ([["person", None, "chol", "sex"], ["a", 1, 200, 1]], "have a name"),
        ([[None], ["person", "chol", "sex"]], "first row"),
    ],
)
def test_what_a_workbook_would_lose_in_silence_is_refused(rows, rule, tmp_path):
    kind = DictionaryRefusal if "digits" in rule else DataFileRefusal
    assert rule in refused(kind, workbook(tmp_path / "t.xlsx", rows), SMALL).must


def test_a_locked_or_older_workbook_says_what_it_is(tmp_path):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + CANARY.encode() * 99)
    assert "password" in refused(DataFileRefusal, TableSource(path=path), SMALL).given
    with pytest.raises(DataFileRefusal, match="is open"):
        TableSource(path=tmp_path / "~$t.xlsx")
    with pytest.raises(DataFileRefusal, match=r"Save as, \.xlsx"):
        TableSource(path=tmp_path / "t.xls")


def test_a_sheet_that_is_a_chart_holds_no_table(tmp_path):
    from openpyxl.chart import BarChart

    book = openpyxl.Workbook()
    book.create_chartsheet("C").add_chart(BarChart())
    book.save(tmp_path / "t.xlsx")
    assert "chart" in refused(DataFileRefusal, TableSource(path=tmp_path / "t.xlsx", table="C"), SMALL).given


# -- statistics packages ------------------------------------------------------------------------------------------
def test_spss_gives_codes_and_what_it_declares_missing_is_missing(tmp_path):
    table = pd.DataFrame({"person": ["a", "b", "c"], "chol": [200.0, 999.0, 210.0], "sex": [0.0, 1.0, 9.0]})
    labels = {"sex": {0: "female", 1: "male", 9: "not asked"}}
    pyreadstat.write_sav(
        table, tmp_path / "t.sav", variable_value_labels=labels, missing_ranges={"chol": [999], "sex": [9]}
    )
    found = records.read(TableSource(path=tmp_path / "t.sav"), SMALL, key=KEY).table
    assert (found["sex"].tolist()[:2], int(found["sex"].isna().sum())) == ([0, 1], 1)
    assert found["chol"].isna().tolist() == [False, True, False]


def test_a_column_that_two_of_an_spss_file_are_called_is_refused(tmp_path):
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(pd.DataFrame({"pressure_one": [1.0], "pressure_two": [2.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"=pressure_two", b"=pressure_one"))
    with pytest.raises(DataFileRefusal, match="a name of its own"):
        READERS["spss"].columns(TableSource(path=path))


def test_no_room_is_made_for_columns_that_a_stata_file_only_claims(tmp_path, monkeypatch):
    path = tmp_path / "t.dta"
    pyreadstat.write_dta(pd.DataFrame({"sbp": [1.0, 2.0]}), path, version=15)
    whole = path.read_bytes()
    assert READERS["stata"].columns(TableSource(path=path)) == ("sbp",)
    monkeypatch.setattr(pyreadstat, "read_dta", lambda *_, **__: pytest.fail("the library makes the room"))
    for claimed in (3 | 1 << 30, 200_000):
        path.write_bytes(whole.replace(b"<K>\x01\x00\x00\x00</K>", b"<K>" + claimed.to_bytes(4, "little") + b"</K>"))
        with pytest.raises(DataFileRefusal, match="whole Stata file"):
            READERS["stata"].columns(TableSource(path=path))


def test_a_double_holds_no_identifier_of_17_digits(tmp_path):
    table = pd.DataFrame({"person": [90071992547409931.0, 2.0], "chol": [200.0, 210.0], "sex": [0, 1]})
    pyreadstat.write_dta(table, tmp_path / "t.dta")
    assert "15 digits" in refused(DictionaryRefusal, TableSource(path=tmp_path / "t.dta"), SMALL).must


# -- JSON lines ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    ['{"person": "b", "person": "c"}', '{"person": "b", "chol": NaN}', '{"person": {"x": 1}}', '["b"]', "[" * 90000],
)
def test_a_line_that_could_be_read_in_two_ways_is_refused(line, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"person": "a", "chol": 200, "sex": 1}\n' + line)
    refused(DataFileRefusal, TableSource(path=path), SMALL)


def test_only_the_encodings_that_are_known_are_taken(tmp_path):
    with pytest.raises(ConfigRefusal, match="encoding"):
        TableSource(path=tmp_path / "t.sav", encoding="klingon")


def test_an_edge_list_may_be_a_workbook(tmp_path):
    from shared.mechanisms.base import EdgeRules
    from site_agent.config import Edges
    from site_agent.records.contacts import read

    workbook(tmp_path / "e.xlsx", [["from", "to"], ["a", "b"], ["b", "c"], ["a", "a"]])
    edges = Edges(path=tmp_path / "e.xlsx")
    found = read(edges, ["a", "b", "c"], ["a", "b", "c"], EdgeRules(strangers="refuse", directed=False))
    assert (found.edges, found.loops) == (2, 1)
    edges = Edges(path=tmp_path / "e.xlsx")
    found = read(edges, ["a", "b", "c"], ["a", "b", "c"], EdgeRules(strangers="refuse", directed=False))
    assert (found.edges, found.loops) == (2, 1)


def test_what_pandas_wrote_beside_an_arrow_table_is_not_read_and_may_be_damaged(tmp_path):
    table = pa.Table.from_pandas(pd.DataFrame({"age": [50.0, 61.0]}))
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    damaged = (tmp_path / "x.arrow").read_bytes().replace(b'"pandas_type"', b'\xff"andas_type"')
    (tmp_path / "x.arrow").write_bytes(damaged)
    assert records.whole(TableSource(path=tmp_path / "x.arrow"))["age"].tolist() == [50.0, 61.0]


@pytest.mark.parametrize("kind", ["sav", "zsav", "dta"])
def test_a_file_that_claims_more_rows_than_it_has_bytes_is_refused_before_room_is_made(kind, tmp_path, monkeypatch):
    """Half a kilobyte of SPSS that claimed 538 million rows took 4 GB before it was refused, 2.5 kB of Stata 21 GB."""
    path = tmp_path / f"t.{kind.removeprefix('z')}"
    table = pd.DataFrame({"age": [float(age) for age in range(2000)]})
    if kind == "dta":
        pyreadstat.write_dta(table, path)
    else:
        pyreadstat.write_sav(table, path, compress=kind == "zsav")
    assert records.count(TableSource(path=path)) == 2000
    data = path.read_bytes()
    at = data.index(b"<N>") + 3 if kind == "dta" else 80
    assert int.from_bytes(data[at : at + 4], "little") == 2000
    path.write_bytes(data[:at] + b"\x20\x20\x20\x20" + data[at + 4 :])
    reader, asked = getattr(pyreadstat, f"read_{path.suffix[1:]}"), []

    def about(*given, **how):
        asked.append(how["metadataonly"])
        return reader(*given, **how)

    monkeypatch.setattr(pyreadstat, reader.__name__, about)
    for ask in (records.count, records.whole):
        with pytest.raises(DataFileRefusal, match=r"a whole (SPSS|Stata) file"):
            ask(TableSource(path=path))
    assert asked == [True, True]


@pytest.mark.parametrize(("kind", "style"), [("sav", "DATE11"), ("dta", "%td")])
def test_a_date_beyond_the_calendar_is_refused_as_that(kind, style, tmp_path):
    path = tmp_path / f"t.{kind}"
    table = pd.DataFrame({"age": [50.0, 61.0], "seen": [0.0, 2e18]})
    getattr(pyreadstat, f"write_{kind}")(table, path, variable_format={"seen": style})
    with pytest.raises(DataFileRefusal, match="the years 1 to 9999"):
        records.whole(TableSource(path=path))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_name_that_is_no_text_is_a_damaged_file(kind, tmp_path):
    path, table = tmp_path / f"x.{kind}", pd.DataFrame({"weight": [50.0, 61.0], "person": ["a", "b"]})
    table.to_feather(path) if kind == "arrow" else table.to_parquet(path)
    path.write_bytes(path.read_bytes().replace(b"weight", b"weig\xb6t"))
    with pytest.raises(DataFileRefusal, match="must be text in utf-8"):
        records.whole(TableSource(path=path))
