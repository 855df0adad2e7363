"""Texts of others at a hospital: on every page of the airlock, in both its languages, and in every file that it writes.

Each place where somebody else's text can stand has a mark of its own; what is looked at must show every mark, as
letters. Another side's files and pages are in `test_hostile_texts.py` and `test_workbench.py`.
"""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import html
import json
import re
import tomllib
from dataclasses import replace
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from conftest import make_table
from stage.browser.page import decision, ended, posted, released, served
from stage.browser.web_stage import HOSTILE
from stage.browser.workbench import Read
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401
from stage.hospital_side.small_curve import quick

from shared.plans.plan import Budget
from shared.plans.retention import Retention
from site_agent import cli
from site_agent.show.page.access import Gate
from site_agent.show.page.language import COOKIE, NAMES
from site_agent.show.page.pages import AirlockPages

WHO = {"name": "dr-lind", "passphrase": PASSPHRASE}
MARKUP = re.compile(r"(?<!\\)(<[a-zA-Z/!]|\[[^\]]*\][(:\[])")
"""What a reader of Markdown hands on to a browser, or makes a link of."""


def marked(place: str) -> str:
    """A text that would act, with the mark of its place: as mark-up, an attribute, mathematics, and on a terminal."""
    return f"<script>{place}()</script>\"' onload=x $\\frac{{$ \u202e\x1b]0;x\x07[{place}](javascript:x)"


LEVELS = (marked("level"), "=HYPERLINK(1)", "west")
COLUMN, FREE, VALUE = (marked(one).replace("\x1b", "").replace("\x07", "") for one in ("column", "free", "value"))
"""Of the hospital's own file."""


@pytest.fixture
def ready(hospital: Hospital, plan) -> Hospital:
    """A site whose second plan, table and mapping are full of such texts, and its first plan is approved."""
    columns = [
        replace(
            one,
            label=marked("label"),
            unit=marked("unit") if one.name == "sbp" else one.unit,
            levels=LEVELS if one.name == "clinic" else one.levels,
        )
        for one in plan.dictionary.columns
    ]
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2))
    plain = replace(plan, budget=Budget(epsilon=5000.0), waves=waves, returning="refresh")
    hostile = replace(
        plain,
        version=2,
        title=marked("title"),
        purpose=marked("purpose"),
        eligibility=marked("eligibility"),
        retention=Retention(until=dt.date(2999, 12, 31), keep=marked("keep"), readers=marked("readers")),
        dictionary=replace(plan.dictionary, columns=tuple(columns)),
        estimands={"pressure": "mean(sbp)", "ward": "cox(time, cvd) ~ C(clinic) + sbp"},
    )
    site = hospital.joined("dr-lind", "dr-berg").approved(plain)
    site.publish(hostile)
    site("plan", "fetch", "mini")
    table = make_table(300).rename(columns={"sbp": COLUMN}).assign(**{FREE: "x"})
    table["sex"] = table["sex"].replace("female", VALUE)
    table["clinic"] = [*[LEVELS[0]] * 200, *[LEVELS[1]] * 98, *[LEVELS[2]] * 2]
    path = site.folder / f"{marked('file').replace('/', '')}.csv"
    table.to_csv(path, index=False)
    site("data", "add", str(path), "--as", "mini")
    site("data", "map", "mini", f"{COLUMN}=sbp", "--level", f"sex:{VALUE}=female", "--ignore", FREE)
    return site


def pages() -> set[str]:
    """The addresses of all pages."""
    made = AirlockPages(lambda: None, gate=Gate(announce=print), hosts=(), agent_version="", today=cli.today)
    return {route.path for route in made.application().routes if "GET" in route.methods} - {"/style.css"}


def walked(browser, release_id: str = "none") -> str:
    """What all pages say in each language; none holds anything that could act."""
    held, words, odd = browser.cookie, "", quote(HOSTILE, safe="")
    addresses = [path.format(study="mini", release_id=release_id) for path in sorted(pages())]
    addresses += [
        "/data/mini?proposals=yes",
        "/data/mini?names=yes&proposals=yes",
        "/data/mini?check=yes",
        f"/data/{odd}",
        f"/release/{odd}",
        f"/{odd}",
    ]
    for code in NAMES:
        browser.cookie = f"{held}; {COOKIE}={code}"
        for address in addresses:
            words += looked_at(browser.get(address), address)
    browser.cookie = held
    return words


def looked_at(answer, address: str) -> str:
    """The words of an answer in which nothing acts, those of its fields with them."""
    assert answer.status in (200, 303, 403, 404, 409), (address, answer.status, answer.text[:400])
    assert Read(answer.text).acting == [], address
    assert not set(answer.text) & set("\u202e\x1b\x07"), address
    fields = " ".join(re.findall(r'="([^"]*)"', answer.text))
    return html.unescape(f"{fields} {re.sub(r'<[^>]+>', ' ', answer.text)}")


def seen(words: str) -> set[str]:
    """The marks that stand in words as letters."""
    return {*re.findall(r"<script>(\w+)\(\)</?script>", words)}


def test_on_every_page_of_the_airlock_texts_of_others_are_letters(ready):
    assert Read(marked("this")).acting, "this test could not fail"
    with served(ready.home) as browser:
        browser.login()
        found = seen(walked(browser))
        assert found >= {"title", "purpose", "eligibility", "keep", "readers", "level", "label", "unit"}
        assert found >= {"value", "column", "file"}
        agreed = {**WHO, "plan_hash": ready.json("plan", "show", "mini")["hash"], "understood": "local"}
        posted(browser, "/plans/mini/approve", {**agreed, "reason": marked("approved")}, at="/plans")
        posted(browser, "/plans/mini/rehearse", {}, at="/plans")
        looked_at(ended(browser), "/work")
        first = released(ready)
        found |= seen(walked(browser, first))
        sent_back = {**WHO, "verb": "send-back", "reason": marked("back")}
        posted(browser, f"/release/{first}/decline", sent_back, at="/")
        found |= seen(walked(browser, first))
        posted(browser, f"/release/{first}/approve", decision(ready, first), at="/")
        taken = {**WHO, "reason": "other", "note": marked("note")}
        assert "Withdrawn" in posted(browser, f"/release/{first}/withdraw", taken, at="/").words
        second = released(ready, wave=2)
        posted(browser, f"/release/{second}/decline", {**WHO, "verb": "reject", "reason": marked("rejected")}, at="/")
        posted(browser, "/plans/mini/revoke", {**WHO, "reason": marked("revoked")}, at="/plans")
        ready("pause", "--reason", marked("paused"))
        found |= seen(walked(browser, second))
    assert found >= {"back", "note", "rejected", "revoked", "paused"}


def test_a_form_of_such_texts_is_refused_in_letters_and_stands_so_in_the_audit(ready):
    names = ("reason", "note", "path", "table", "study", "wave", "invitation", "name1", "back", "verb", "plan_hash")
    names += ("bundle_sha256", "until", "max_epsilon", "tick", "language", "levels sex", "unit sbp", "analyte sbp")
    ready("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    release_id, odd = released(ready), quote(HOSTILE, safe="")
    with served(ready.home) as browser:
        browser.login()
        made = AirlockPages(lambda: None, gate=Gate(announce=print), hosts=(), agent_version="", today=cli.today)
        forms = {route.path for route in made.application().routes if "POST" in route.methods}
        # A plan is asked for by the names of studies that the page offers; this coordinator knows no other.
        for path in sorted(forms - {"/logout", "/login", "/plans/fetch", "/plans/{study}/rehearse"}):
            for study, who in (("mini", "dr-lind"), ("mini", HOSTILE), (odd, HOSTILE)):
                address = path.format(study=study, release_id=release_id, digest=odd)
                fields = {one: HOSTILE for one in names} | {"name": who, "passphrase": PASSPHRASE, "from sbp": HOSTILE}
                looked_at(posted(browser, address, fields, at="/budget"), address)
        assert "<script>alert(1)</script>" in walked(browser, release_id)


def test_in_every_file_that_a_site_writes_they_are_letters(ready, monkeypatch):
    quick(monkeypatch)
    ready("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local", "--reason", marked("approved"))
    release_id, out = released(ready), ready.folder / "out"
    ready("send-back", release_id, "--as", "dr-lind", "--reason", marked("back"))
    ready("audit", "export", "mini", "--out", str(out / "record"))
    ready("ig-pack", "--out", str(out / "pack"))
    ready("outbox", "figures", release_id, "--out", str(out / "figures"))
    ready("curve", "mini", "--made-up")
    ready("data", "quality", "mini")
    ready("data", "map", "mini", "--suggest", "--out", str(out / "mapping.toml"))
    files = [one for folder in (out, ready.home / "figures", ready.home / "quality") for one in folder.rglob("*.*")]
    kinds = {".svg": drawn, ".html": summed_up, ".md": paragraphs, ".mmd": paragraphs}
    kinds |= {".json": json.loads, ".toml": tomllib.loads, ".py": str}
    found = seen("".join(f"{kinds[file.suffix](file.read_text(encoding='utf-8'))}" for file in files))
    assert {file.suffix for file in files} == set(kinds)
    assert found >= {"title", "purpose", "eligibility", "keep", "readers", "file", "unit", "level"}
    source = cli.open_desk(ready.home).config.source("mini")
    assert (source.columns, source.ignore) == ({COLUMN: "sbp"}, (FREE,))


def drawn(text: str) -> str:
    """What a figure shows, and its title for those who hear it."""
    tree = ElementTree.fromstring(text)
    names = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert not names & {"script", "foreignObject", "image", "a", "iframe"}
    assert not [name for element in tree.iter() for name in element.attrib if name.lower().startswith("on")]
    return "".join(html.unescape(one) for one in re.findall(r"<!--(.*?)-->", text))  # its letters are drawn


def summed_up(text: str) -> str:
    """A page that is opened as a file, with its style in it."""
    assert [one for one in Read(text).acting if one != "style"] == []
    assert "default-src 'none'" in text
    assert not set(text) & set("\u202e\x1b\x07")
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def paragraphs(text: str) -> str:
    """A page of Markdown."""
    assert MARKUP.findall(text) == []
    assert not set(text) & set("\u202e\x1b\x07")
    return text.replace("\\", "")
