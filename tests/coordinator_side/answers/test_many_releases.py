"""Lists of releases: which they name, what they read for it, and how they are paged."""

# ruff: noqa: F811  (a fixture is imported by its name)

from __future__ import annotations

import json
import re

import pytest
from stage.browser.web_stage import stage  # noqa: F401
from stage.coordinator_side.delivered import take_back
from stage.coordinator_side.wave_grid import Study

import coordinator.analyst.remote as remote
import coordinator.answers.release_selection as release_selection
import coordinator.web.workbench.pages as pages
from coordinator.analyst import commands
from coordinator.answers.release_selection import DeliveredSites, holding
from shared.errors import SchemaRefusal
from shared.wire.analyst_messages import ReleasesRequest
from shared.wire.messages import encode
from shared.wire.transport import SERVER_NAME
from tests.benchmarks.many_releases import answered, filled, pages_of, sent


@pytest.fixture
def study(tmp_path):
    """Three sites that delivered two waves each, in an order of their own."""
    made = Study(tmp_path / "home")
    for site, wave in (("beta", 1), ("alpha", 1), ("gamma", 1), ("gamma", 2), ("alpha", 2), ("beta", 2)):
        made.deliver(site, wave)
    yield made
    made.store.close()


def test_what_sites_delivered_is_read_once_and_again_when_the_log_has_grown(study, monkeypatch):
    delivered, store = DeliveredSites(study.store), study.store
    found = delivered.of("cvd")
    sites = found.sites
    assert (sites["alpha"]["waves"], sites["alpha"]["n"]) == ([1, 2], {"1": 301, "2": 302})
    assert found.last_day == "2026-01-05"
    assert sites["alpha"]["epsilon_given"] == "the flow", "the ε of a flow that was fitted on the records"
    [newest] = [one for one in store.releases("cvd", 2) if one.site == "alpha"]
    assert sites["alpha"]["study_epsilon"] == newest.receipt.study_epsilon

    read = []
    lines, bundles = store.release_lines, store.releases_of
    monkeypatch.setattr(store, "release_lines", lambda *args, **more: read.append("lines") or lines(*args, **more))
    monkeypatch.setattr(store, "releases_of", lambda asked: read.append(n := list(asked)) or bundles(n))
    assert delivered.of("cvd") is found
    assert read == []
    study.deliver("alpha", 3)
    assert delivered.of("cvd").sites["alpha"]["waves"] == [1, 2, 3]
    assert sum(len(one) for one in read if one != "lines") == 3 + 1, "each site's newest receipt, and the new price"
    take_back(store, "alpha", study.keys["alpha"], wave=3)
    assert delivered.of("cvd").sites["alpha"]["waves"] == [1, 2]


def test_a_line_of_a_list_is_the_release_without_what_is_read_of_its_receipt(study):
    take_back(study.store, "beta", study.keys["beta"], wave=2)
    for withdrawn in (False, True):
        lines = study.store.release_lines("cvd", withdrawn=withdrawn)
        whole = study.store.releases("cvd", withdrawn=withdrawn)
        names = lines[0].__dataclass_fields__
        assert len(lines) == 5 + withdrawn
        assert [[getattr(one, name) for name in names] for one in lines] == [
            [getattr(one, name) for name in names] for one in whole
        ]
    held = holding(study.store, "cvd")
    assert {site: [one.wave for one in own] for site, own in held.parts.items()} == {
        "alpha": [2],
        "beta": [1],
        "gamma": [2],
    }


@pytest.mark.parametrize("newest", [False, True])
def test_pages_of_the_log_name_every_release_once_in_its_order(study, newest):
    take_back(study.store, "gamma", study.keys["gamma"], wave=1)
    every = [one.release_id for one in study.store.logged_releases("cvd", newest=newest)]
    assert len(every) == len(set(every)) == 6
    found, after = [], None
    while page := study.store.logged_releases("cvd", most=4, after=after, newest=newest):
        found += [one.release_id for one in page]
        after = page[-1].log_index
    assert found == every
    own = study.store.logged_releases("cvd", site="gamma", wave=1)
    assert [(one.site, one.wave, one.withdrawn) for one in own] == [("gamma", 1, "consent")]


# -- by every door --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def token(stage) -> str:
    return stage.admit("pia", ("cvd", "lungs"), "lead")


@pytest.fixture
def mine(stage, token, tmp_path):
    """A connection by the token's file, as an analyst has one."""
    given = remote.Pass(
        address=f"127.0.0.1:{stage.running.analysts_port}",
        server_name=SERVER_NAME,
        ca_pem=stage.authority.ca_pem,
        name="pia",
        role="lead",
        studies=("cvd", "lungs"),
        expires="2999-01-01",
        token=token,
    )
    given.save(tmp_path / "pia.token.json")
    with remote.connect(given) as connection:
        yield connection


def test_a_client_that_knows_no_pages_gets_what_it_got(stage, token):
    """The same bytes on the wire, and every release by wave and site, in one answer that says there is no more."""
    assert encode(ReleasesRequest(study="cvd")) == b"\n\x03cvd"
    with stage.grpc(token) as client:
        whole = json.loads(client.call("Releases", ReleasesRequest(study="cvd"), timeout=60).json)
    assert [one["site"] for one in whole["releases"]] == ["alpha", "beta", "gamma"]
    assert [*whole["held"]] == ["alpha", "beta", "gamma"]
    assert whole["more"] is None
    with stage.web(token) as web:
        assert web.get("/v1/studies/cvd/releases").json() == whole


def test_pages_of_a_program_put_together_are_the_whole_list(stage, token, mine, monkeypatch):
    whole = mine["cvd"].releases()
    monkeypatch.setattr(remote, "RELEASES_PAGE", 1)
    asked = []
    ask = mine.ask
    monkeypatch.setattr(mine, "ask", lambda method, request: asked.append(method) or ask(method, request))
    paged = mine["cvd"].releases()
    assert asked.count("Releases") == 3
    assert (paged.rows, paged.document["held"], paged.document["plans"]) == (
        whole.rows,
        whole.document["held"],
        whole.document["plans"],
    )
    assert [row["site"] for row in mine["cvd"].releases(most=2)] == ["beta", "gamma"], "the newest two"
    assert [row["site"] for row in mine["cvd"].releases(site="beta", wave=1)] == ["beta"]
    assert len(mine["cvd"].releases(wave=2)) == 0


def test_a_page_is_smaller_than_a_megabyte_whatever_was_asked_for(stage, token, monkeypatch):
    with stage.web(token) as web:
        one = len(web.get("/v1/studies/cvd/releases?most=1").content)
        monkeypatch.setattr(release_selection, "PAGE_BYTES", one)
        page = web.get("/v1/studies/cvd/releases?most=3").json()
        assert 1 <= len(page["releases"]) < 3
        assert page["more"] == page["releases"][-1]["log_index"]
        monkeypatch.setattr(release_selection, "PAGE_BYTES", 1)
        page = web.get("/v1/studies/cvd/receipts?most=3&newest=true").json()
        assert [one["site"] for one in page["receipts"]] == ["gamma"], "one at least, or no page would be the last"
        assert web.get("/v1/studies/cvd/releases?most=100000").json()["code"] == "E_SCHEMA"
        assert web.get("/v1/studies/cvd/releases?newest=perhaps").json()["code"] == "E_SCHEMA"


def test_a_coordinator_from_before_there_were_pages_is_asked_for_all(mine, monkeypatch):
    whole, ask = mine["cvd"].releases(), mine.ask

    def before(method, request):
        if method == "Releases" and request != ReleasesRequest(study="cvd"):
            raise SchemaRefusal("a message must hold known fields only", given="another")
        document = ask(method, request)
        return {name: value for name, value in document.items() if name != "more"}

    monkeypatch.setattr(mine, "ask", before)
    assert mine["cvd"].releases().rows == whole.rows
    with pytest.raises(SchemaRefusal):
        mine["cvd"].releases(site="beta")


def test_a_page_of_releases_leads_to_older_ones_and_back(stage, token, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 2)

    def named(page) -> list[str]:
        return re.findall(r"<h2>(\w+), wave", page.text)

    def link(page, name: str) -> str:
        return re.search(f'href="([^"]+)">{name}</a>', page.text)[1].replace("&amp;", "&")

    with stage.web() as web:
        web.post("/sign-in", data={"token": token})
        first = web.get("/studies/cvd/releases")
        assert named(first) == ["gamma", "beta"]
        assert ">newer</a>" not in first.text
        second = web.get(f"/studies/cvd/releases{link(first, 'older')}")
        assert named(second) == ["alpha"]
        assert ">older</a>" not in second.text
        assert named(web.get(f"/studies/cvd/releases{link(second, 'newer')}")) == ["gamma", "beta"]
        own = web.get("/studies/cvd/releases?site=beta&wave=1")
        assert named(own) == ["beta"]
        assert "<option selected>beta</option>" in own.text
        assert "No such release has arrived" in web.get("/studies/cvd/releases?site=beta&wave=7").text
        waves = web.get("/studies/cvd/waves?page=2").text
        assert re.findall(r'<th scope="row">(\w+)</th>', waves)[:-1] == ["gamma"]
        assert "page 2 of 2" in waves


def test_releases_are_chosen_on_the_command_line(mine, tmp_path, capsys):
    words = ["releases", "cvd", "--token", f"{tmp_path / 'pia.token.json'}", "--json"]
    for options, found in ((["--site", "beta"], ["beta"]), (["--most", "2"], ["beta", "gamma"]), (["--wave", "2"], [])):
        commands.main([*words, *options])
        assert [one["site"] for one in json.loads(capsys.readouterr().out)["releases"]] == found


# -- answers of many sites --------------------------------------------------------------------------------------------
PAGE_CAP = 1_000_000


def test_pages_of_five_hundred_sites_and_of_their_answers_are_less_than_a_megabyte_with_their_figures(tmp_path):
    """As they are sent: a page with the pictures that stand on it."""
    many = filled(tmp_path / "hub", 500, 1)
    token = many.admit("lea", role="lead")
    many.start()
    try:
        with many.web(token) as web:
            ids, _ = answered(web)
        with many.web() as web:
            web.post("/sign-in", data={"token": token})
            sizes = {name: sent(web, path)[1] for name, path in pages_of(ids, 500).items()}
        assert {name: size for name, size in sizes.items() if size >= PAGE_CAP} == {}
    finally:
        many.running.stop(0.2)
        many.store.close()
