"""A study from the invitation to the delivered release on the page alone, without a command."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from stage.browser.page import (
    decision,
    ended,
    fresh,  # noqa: F401
    posted,
    served,
)
from stage.hospital_side.mapping import AGE, DATES, FOLLOWED, ROWS, STUDY, VALUES
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from site_agent.cli import open_desk

WHO = {"name": "dr-lind", "passphrase": PASSPHRASE}


def made(site: Hospital, browser) -> None:
    again = {"name1": "dr-lind", "passphrase1": PASSPHRASE, "again1": PASSPHRASE}
    answer = posted(browser, "/start/make", {"invitation": str(site.invitation), **again})
    assert site.json("status")["fingerprint"] in answer.words
    assert "has joined hub" in posted(browser, "/start/join", {}).words


def test_a_site_is_made_joins_and_delivers_without_a_command(fresh, table):
    site, browser = fresh
    assert browser.get("/").headers["Location"] == "/start"
    made(site, browser)
    assert "Fetched and verified" in posted(browser, "/plans/fetch", {"study": "mini"}, at="/plans").words
    path = site.folder / "cohort.csv"
    table.rename(columns={"sbp": "Blutdruck"}).assign(ward="a").to_csv(path, index=False)
    shown = posted(browser, "/data/mini/file", {"path": str(path)}, at="/data/mini")
    assert "Nothing gives yet: sbp" in shown.words
    assert "In the file, not in the study: Blutdruck, ward" in shown.words
    site("data", "map", "mini", "--ignore", "grade")  # as an earlier version of the plan let it be
    names = [column for column in table.columns if column != "sbp"]
    form = {f"from {name}": name for name in names} | {"from sbp": "Blutdruck", "ignore": "yes"}
    checked = posted(browser, "/data/mini/map", form, at="/data/mini")
    assert "300 rows within the dictionary" in checked.words
    source = site.json("data", "map", "mini", "--dry-run")
    assert (source["columns"]["Blutdruck"], source["ignored"], source["missing"]) == ("sbp", ["ward"], [])

    hash_ = site.json("plan", "show", "mini")["hash"]
    refused = posted(browser, "/plans/mini/approve", {**WHO, "plan_hash": hash_}, at="/plans")
    assert (refused.status, "E_NOT_APPROVED" in refused.words) == (409, True)
    other = posted(browser, "/plans/mini/approve", {**WHO, "plan_hash": "0", "understood": "local"}, at="/plans")
    assert "E_PLAN_CHANGED" in other.words
    ticked = {**WHO, "plan_hash": hash_, "understood": "local"}
    assert "The plan is approved" in posted(browser, "/plans/mini/approve", ticked, at="/plans").words
    assert site.json("plan", "show", "mini")["approved_by"] == "dr-lind"

    wrong = posted(
        browser, "/plans/mini/release", {**WHO, "wave": "1", "passphrase": "not the passphrase"}, at="/plans"
    )
    assert "E_PASSPHRASE" in wrong.words
    assert site.json("budget")["totals"] == []
    posted(browser, "/plans/mini/release", {**WHO, "wave": "1"}, at="/plans")
    location = ended(browser).headers["Location"]
    assert location.endswith("?done=made")
    release_id = location.split("/")[2].partition("?")[0]
    assert "nothing has been sent" in browser.get(location).words
    posted(browser, f"/release/{release_id}/approve", decision(site, release_id), at=f"/release/{release_id}")
    assert len(site.hub.sent) == 1


def test_the_preview_has_the_planned_analyses_of_these_sealed_rows(fresh, table):
    site, browser = fresh
    made(site, browser)
    site("plan", "fetch", "mini")
    site("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    site.with_table(table)
    release_id = site.json("release", "mini", "--wave", "1")["release_id"]
    found = site.json("outbox", "figures", release_id)["planned"]
    assert found
    words = browser.get(f"/release/{release_id}/preview").words
    for one in found:
        assert one["name"] in words
        for side in (one["real"], one["released"]):
            if side is not None:
                assert f"{side[0]:.3f}" in words
    assert "300 real records, 300 released rows" in words
    assert browser.get(f"/release/{release_id}/preview").text.count("<figure>") == 12


def test_a_rehearsal_runs_in_the_background_and_costs_nothing(fresh):
    site, browser = fresh
    made(site, browser)
    site("plan", "fetch", "mini")
    posted(browser, "/plans/mini/rehearse", {}, at="/plans")
    assert "nothing about how your table will fare" in ended(browser).words
    assert site.json("budget")["totals"] == []
    assert site.hub.sent == []


@pytest.fixture
def ready(fresh, table):
    """A site whose plan is approved and whose table is in place, and its page."""
    site, browser = fresh
    made(site, browser)
    site("plan", "fetch", "mini")
    site("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    site.with_table(table)
    return site, browser


def test_no_name_is_shown_of_a_first_line_that_may_be_a_patient(ready, table):
    site, browser = ready
    names = [f"CANARY-{k}" for k in range(table.shape[1] - 1)]
    table.set_axis([*names, "grade"], axis=1).to_csv(site.folder / "without.csv", index=False)
    site("data", "add", str(site.folder / "without.csv"), "--as", "mini")
    for ask in ("", "?proposals=yes", "?check=yes"):
        answer = browser.get(f"/data/mini{ask}")
        assert answer.status == 200
        assert "Names are not shown" in answer.words
        assert "CANARY" not in answer.text, ask


class Form(HTMLParser):
    """What a browser would send of the form that goes to `action`, were nothing typed."""

    def __init__(self, text: str, action: str) -> None:
        super().__init__()
        self.action, self.inside, self.fields, self.select = action, False, {}, ""
        self.feed(text)

    def handle_starttag(self, tag, given):
        given = dict(given)
        if tag == "form":
            self.inside = given["action"] == self.action
        if not self.inside:
            return
        if tag == "input" and given.get("type") != "checkbox":
            self.fields[given["name"]] = given.get("value", "")
        elif tag == "input" and "checked" in given:
            self.fields[given["name"]] = given["value"]
        elif tag == "select":
            self.select, self.first, self.chosen = given["name"], None, None
        elif tag == "option" and self.select:
            self.option, self.taken = given.get("value"), "selected" in given

    def handle_data(self, data):
        if self.select and self.inside and data.strip():
            value = data.strip() if self.option is None else self.option
            self.first = value if self.first is None else self.first
            self.chosen = value if self.taken else self.chosen

    def handle_endtag(self, tag):
        if tag == "select" and self.select:
            self.fields[self.select] = (self.first if self.chosen is None else self.chosen) or ""
            self.select = ""


@pytest.fixture
def of_dates(hospital, plan):
    """A page at a site whose extract has dates, and names of its own."""
    hospital.publish(replace(plan, dictionary=STUDY, estimands={}))
    with served(hospital.home) as browser:
        browser.login()
        made(hospital, browser)
        hospital("plan", "fetch", "mini")
        hospital("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
        path = hospital.folder / "auszug.csv"
        ROWS.rename(columns={"person": "Fall", "sex": "Geschlecht", "chol": "Wert"}).to_csv(path, index=False, sep=";")
        hospital("data", "add", str(path), "--as", "mini")
        yield hospital, browser


def test_a_mapping_of_dates_and_formulas_is_made_on_the_page(of_dates):
    """Names are asked for first; what is proposed stands in the form, and what is typed there is the mapping."""
    site, browser = of_dates
    assert "Fall" not in browser.get("/data/mini?proposals=yes").text
    address = "/data/mini?names=yes&amp;proposals=yes"
    assert address in browser.get("/data/mini").text
    form = Form(browser.get(address.replace("&amp;", "&")).text, "/data/mini/map").fields
    assert form["formula age"] == AGE["age"].replace("geb", "[geb]").replace("aufnahme", "[aufnahme]")
    assert (form["follow start"], form["follow end"], form["follow last"]) == ("aufnahme", "tod", "kontakt")
    form |= {"from person": "Fall", "from chol": "Wert", "unit chol": "mmol/l", "analyte chol": "cholesterol"}
    form |= {"comma chol": "yes"}
    checked = posted(browser, "/data/mini/map", form, at="/data/mini")
    assert "4 rows within the dictionary" in checked.words
    source = open_desk(site.home).config.source("mini")
    assert dict(source.columns) == {"Fall": "person", "Geschlecht": "sex", "Wert": "chol"}
    assert dict(source.values) == VALUES
    assert (dict(source.steps.dates), source.steps.follow_up) == (DATES, FOLLOWED)
    assert dict(source.steps.derive) == {"age": form["formula age"]}

    # As it stands in the form it is what it is: sent once more, nothing changes; and what is emptied is gone.
    form = Form(browser.get("/data/mini").text, "/data/mini/map").fields
    posted(browser, "/data/mini/map", form, at="/data/mini")
    assert open_desk(site.home).config.source("mini") == source
    posted(browser, "/data/mini/map", form | {"follow start": "", "date 0": ""}, at="/data/mini")
    steps = open_desk(site.home).config.source("mini").steps
    assert steps.follow_up is None
    assert len(steps.dates) == 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"date 4": "nowhere", "form 4": "iso"}, "a date must be one of the file's columns"),
        ({"date 0": "geb", "form 0": "%d.%m.%y"}, "a year of two digits"),
        ({"formula chol": "geb +"}, "formula"),
        ({"follow start": "nowhere"}, "a date must be one of the file's columns"),
        ({"follow last": "", "follow until": ""}, "the last date that is known"),
        ({"formula died": "1"}, "must be made once"),
    ],
)
def test_what_the_form_cannot_mean_is_refused_and_nothing_is_kept(of_dates, typed, said):
    site, browser = of_dates
    before = (site.home / "site.toml").read_bytes()
    form = Form(browser.get("/data/mini?names=yes&proposals=yes").text, "/data/mini/map").fields
    answer = posted(browser, "/data/mini/map", form | typed, at="/data/mini")
    assert answer.status == 409
    assert said in answer.words
    assert (site.home / "site.toml").read_bytes() == before


def test_a_work_that_breaks_off_does_not_look_done(ready, monkeypatch):
    from site_agent.decide.airlock import drawing

    def broken(*_, **__):
        raise KeyError("a patient's name")

    site, browser = ready
    monkeypatch.setattr(drawing, "draw", broken)
    posted(browser, "/plans/mini/release", {**WHO, "wave": "1"}, at="/plans")
    answer = ended(browser)
    assert (answer.status, "an unexpected KeyError" in answer.words, "patient" in answer.words) == (409, True, False)
    assert site.json("budget")["totals"] == []


def test_a_first_run_refuses_what_the_command_refuses_and_leaves_no_folder(fresh):
    site, browser = fresh
    right = {"invitation": str(site.invitation), "name1": "dr-lind", "passphrase1": PASSPHRASE, "again1": PASSPHRASE}
    for change, code in (
        ({"invitation": "/none"}, "E_DATA_FILE"),
        ({"name1": "Dr. Lind"}, "E_USAGE"),
        ({"again1": "another passphrase"}, "E_PASSPHRASE"),
        ({"passphrase1": "short", "again1": "short"}, "E_PARAMETER"),
        ({"name2": "dr-lind", "passphrase2": PASSPHRASE, "again2": PASSPHRASE}, "E_USAGE"),
    ):
        answer = posted(browser, "/start/make", {**right, **change})
        assert (answer.status, code in answer.words) == (409, True), (change, answer.words)
        assert not (site.home / "site.toml").exists()
