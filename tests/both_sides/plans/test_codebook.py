"""A codebook (CSV, workbook, DDI) becomes a plan's dictionary: what it says is taken, what it lacks is said."""

from __future__ import annotations

import json

import pytest

from coordinator.cli import main
from shared.errors import DataFileRefusal, DictionaryRefusal
from shared.plans.codebook import from_codebook
from shared.plans.plan import StudyPlan

TABLE = """\ufeffVariable;Type;Description;Unit;Min;Max;Values;Missing codes;LOINC
pid;identifier;Patient;;;;;;
age;integer;Age at admission;years;18;110;;;
sbp;numeric;Systolic pressure;mmHg;50;300;;999;LOINC:8480-6
sex;categorical;Sex;;;;1=male; 2=female;;
smoke;categorical;Smoking;;;;never|former|current;9;
fup;time;Follow-up;days;;730;;;
lab;numeric;Laboratory number;;;;;;
ward;categorical;Ward;;;;;;
day;date;Admission;;;;;;
age;integer;Age again;;0;120;;;
"""
ROWS = [line.split(";") for line in TABLE.lstrip("\ufeff").splitlines()]
DDI = """<?xml version="1.0" encoding="UTF-8"?>
<codeBook xmlns="ddi:codebook:2_5"><dataDscr>
<var name="age" intrvl="contin" dcml="1"><labl>Age</labl><valrng><range UNITS="REAL" min="18" max="110"/></valrng>
<invalrng><item VALUE="-9"/></invalrng></var>
<var name="sex" intrvl="discrete"><labl>Sex</labl><catgry><catValu>1</catValu><labl>male</labl></catgry>
<catgry><catValu>2</catValu><labl>female</labl></catgry>
<catgry missing="Y"><catValu>9</catValu><labl>unknown</labl></catgry></var>
<var name="visits" intrvl="discrete"><labl>Visits</labl><valrng><range min="0" max="50"/></valrng></var>
<var name="note"><labl>Free text</labl></var>
</dataDscr></codeBook>"""


def table_of(tmp_path, text=TABLE, name="book.csv"):
    # Values that hold the separator are quoted, as a spreadsheet would.
    path = tmp_path / name
    path.write_text(text.replace("1=male; 2=female", '"1=male; 2=female"'), encoding="utf-8")
    return path


def check(found):
    columns = {column.name: column for column in found.dictionary.columns}
    assert list(columns) == ["pid", "age", "sbp", "sex", "smoke", "fup"]
    assert columns["pid"].kind == "person"
    assert (columns["age"].span, columns["age"].unit) == ((18, 110), "years")
    assert (columns["sbp"].missing, columns["sbp"].missing_codes) == ("level", (999.0,))
    assert columns["sbp"].codes == ("LOINC:8480-6",)
    assert (columns["sex"].kind, columns["sex"].levels) == ("binary", (1, 2))
    assert columns["sex"].label == "Sex (1 male, 2 female)"
    assert (columns["smoke"].levels, columns["smoke"].missing) == (("never", "former", "current"), "level")
    assert columns["fup"].span == (0, 730)
    assert set(found.left_out) == {"lab", "ward", "day", "age"}
    assert "least and a greatest" in found.left_out["lab"]
    assert "without its values" in found.left_out["ward"]
    assert "type is none" in found.left_out["day"]


def test_a_table_becomes_the_plan_s_dictionary(tmp_path):
    check(from_codebook(table_of(tmp_path), name="ward"))


def test_a_workbook_says_the_same(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in ROWS:
        cells = [*row[:6], "; ".join(row[6:8]), *row[8:]] if row[0] == "sex" else row
        book.active.append([int(cell) if cell.isdigit() else cell or None for cell in cells])
    book.save(tmp_path / "book.xlsx")
    check(from_codebook(tmp_path / "book.xlsx", name="ward"))


def test_ddi_is_read_by_its_elements(tmp_path):
    (tmp_path / "book.xml").write_text(DDI, encoding="utf-8")
    found = from_codebook(tmp_path / "book.xml", name="ward")
    columns = {column.name: column for column in found.dictionary.columns}
    assert (columns["age"].kind, columns["age"].span, columns["age"].decimals) == ("continuous", (18, 110), 1)
    assert columns["age"].missing_codes == (-9.0,)
    assert (columns["sex"].levels, columns["sex"].missing_codes) == ((1, 2), (9.0,))
    assert (columns["visits"].kind, columns["visits"].span) == ("integer", (0, 50))
    assert set(found.left_out) == {"note"}


WRONG = {
    "book.csv": ["", "a,b\n1,2\n", "name,type\n", "name;type\n\x00;\x00\n"],
    "book.xml": ["<codeBook>", "<!DOCTYPE x [<!ENTITY a 'b'>]><codeBook/>", "<codeBook/>", "no xml"],
    "book.xlsx": ["PK no workbook"],
    "book.pdf": ["%PDF"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_another_file_is_no_codebook(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises((DataFileRefusal, DictionaryRefusal)):
        from_codebook(tmp_path / name, name="x")


def test_a_plan_is_made_of_a_codebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table_of(tmp_path)
    assert main(["plan", "new", "ward", "--codebook", "book.csv", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["left_out"]) == {"lab", "ward", "day", "age"}
    plan = StudyPlan.from_toml((tmp_path / "ward.toml").read_text())
    assert plan.dictionary.person == "pid"
    assert main(["plan", "new", "w2", "--codebook", "book.csv", "--redcap", "book.csv", "--json"]) != 0
