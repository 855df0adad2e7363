"""Several small hospitals as one site: the floor holds for all of them together, and how many they are is signed."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.coordinator_side.delivered import STUDIES
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.processes.theatre import Theatre

from shared.errors import ConfigRefusal, ReceiptRefusal
from shared.releases.bundle import read_bundle
from shared.releases.receipt import Receipt
from shared.simulated import contact_networks
from site_agent.config import SiteConfig, TableSource

NAMES = ("St Anne", "Valley", "Lakeside")
OF = ("--hospitals", "house", *(word for name in NAMES for word in ("--of", name)))


def together(*sizes: int) -> pd.DataFrame:
    """Extracts of so many persons each, one under the other, with a column that says whose row it is."""
    made = make_table(sum(sizes))
    made["house"] = np.repeat(NAMES[: len(sizes)], sizes)
    return made


def added(hospital, plan, extract: pd.DataFrame, *how: str):
    hospital.joined().approved(plan)
    path = hospital.folder / "together.csv"
    extract.to_csv(path, index=False)
    hospital("data", "add", str(path), "--as", "mini", *how)
    return hospital


def test_a_small_hospital_alone_is_told_the_way_in(hospital, plan):
    hospital.joined().approved(plan).with_table(make_table(20))
    body = hospital.refused("release", "mini", "--wave", "1", expect=10)
    assert (body["code"], body["given"]) == ("E_SMALL_N", "20")
    assert "site-agent data add --hospitals" in body["next_step"]


def test_three_small_hospitals_release_as_one_site_and_the_receipt_says_that_they_are_three(hospital, plan):
    site = added(hospital, plan, together(22, 18, 20), *OF)
    counted = site.json("data", "check", "mini")
    assert counted["problems"] == []
    assert counted["hospitals"] == {"St Anne": 22, "Valley": 18, "Lakeside": 20}
    release = site.json("release", "mini", "--wave", "1")["release_id"]
    assert "3 hospitals under one steward's agreement" in site("outbox", "show", release)
    [path] = site.home.rglob("*.tributary") if list(site.home.rglob("*.tributary")) else site.home.rglob("bundle*")
    bundle = read_bundle(path, cap=1 << 24)
    assert (bundle.receipt.hospitals, bundle.receipt.n) == (3, 60)
    assert Receipt.from_bytes(bundle.receipt.to_bytes()) == bundle.receipt
    bundle.receipt.require_true(plan)
    assert "house" not in bundle.table.columns
    # Their names are in the settings of the site, and in nothing that it keeps of records or sends.
    kept = {file.name for file in site.home.rglob("*") if file.is_file() and b"Lakeside" in file.read_bytes()}
    assert kept == {"site.toml"}
    again = SiteConfig.load(site.home).source("mini")
    assert (again.hospital, again.hospitals, "house" in again.ignore) == ("house", NAMES, True)


def test_the_floor_holds_for_all_of_them_together_and_is_no_lower(hospital, plan):
    site = added(hospital, plan, together(16, 16, 16), *OF)
    assert site.refused("release", "mini", "--wave", "1", expect=10)["given"] == "48"


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda t: t.assign(house=t["house"].where(t.index > 1)), "E_MISSING", "2 blank"),
        (lambda t: t.assign(house=t["house"].replace("Valley", "Hill")), "E_DICTIONARY", "20 rows that do not"),
        (lambda t: t[t["house"] != "Lakeside"], "E_DICTIONARY", "1 without"),
        (lambda t: t.drop(columns="house"), "E_DICTIONARY", "no 'house'"),
        (lambda t: t.assign(person=[*t["person"][:-1], t["person"].iloc[0]]), "E_DUPLICATE_PERSON", "1"),
    ],
)
def test_rows_that_the_agreement_does_not_have_are_refused_by_column_rule_and_count(hospital, plan, change, code, said):
    site = added(hospital, plan, change(together(25, 20, 25)), *OF)
    problems = site.json("data", "check", "mini", expect=40)["problems"]
    assert any(one["code"] == code and said in one["given"] for one in problems)
    body = site.refused("release", "mini", "--wave", "1", expect=40)
    assert body["code"] == code
    assert "Hill" not in json.dumps(problems) + json.dumps(body)


def test_a_newer_extract_is_held_against_the_same_agreement(hospital, plan):
    site = added(hospital, plan, together(22, 18, 20), *OF)
    newer = site.folder / "newer.csv"
    together(30, 20, 20).to_csv(newer, index=False)
    assert site.json("data", "add", str(newer), "--as", "mini")["hospitals"] == list(NAMES)
    assert site.json("data", "check", "mini")["hospitals"]["St Anne"] == 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hospital": "house"}, "given together"),
        ({"hospitals": ("a", "b")}, "given together"),
        ({"hospital": "house", "hospitals": ("a",)}, "2 to 1000 different names"),
        ({"hospital": "house", "hospitals": ("a", "a")}, "2 to 1000 different names"),
        ({"hospital": "house", "hospitals": ("a", " ")}, "2 to 1000 different names"),
        ({"hospital": "house", "hospitals": ("a", "b"), "columns": {"house": "ward"}}, "not be one of the study"),
    ],
)
def test_an_agreement_names_its_column_and_all_its_hospitals(tmp_path, settings, words):
    with pytest.raises(ConfigRefusal, match=words):
        TableSource(path=(tmp_path / "a.csv").resolve(), **settings)


@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    yield stage
    stage.close()


def test_the_lead_and_who_asks_see_how_many_hospitals_stand_behind_a_site(theatre, tmp_path):
    text = (STUDIES / "network-counts.toml").read_text()
    nodes, edges = contact_networks(np.random.default_rng(3), sites=1, n=240, mean_degree=24)["harbour"]
    files = {name: tmp_path / f"{name}.csv" for name in ("nodes", "contacts")}
    nodes[["person", "ward"]].assign(house=np.tile(NAMES, 80)).to_csv(files["nodes"], index=False)
    edges.to_csv(files["contacts"], index=False)
    theatre.open(text.replace("epsilon = 3.0 ", "epsilon = 30.0 ").replace("epsilon = 3.5", "epsilon = 40.0"))
    made = theatre.agent(
        "north", "init", "--invitation", theatre.invite("north", "network_counts"), "--approver", "steward"
    ).json
    theatre.agent("north", "join")
    theatre.coordinator("accept", "north", "--fingerprint", made["fingerprint"])
    theatre.agent("north", "join")
    theatre.agent("north", "plan", "fetch", "network_counts")
    add = ("data", "add", files["nodes"], "--as", "network_counts", "--edges", files["contacts"])
    theatre.agent("north", *add, *OF)
    theatre.agent("north", "plan", "approve", "network_counts", "--as", "steward")
    release = theatre.agent("north", "release", "network_counts", "--wave", 1).json
    ticks = [word for warning in release.get("warnings", []) for word in ("--tick", warning["name"])]
    theatre.agent("north", "approve", release["release_id"], "--as", "steward", *ticks)
    shown = theatre.coordinator("release", "show", release["release_id"]).json
    assert shown["receipt"]["hospitals"] == 3
    pooled = theatre.coordinator("pool", "network_counts", "--wave", 1, "--estimand", "contacts").json
    [source] = pooled["sources"]
    assert source["hospitals"] == 3


def test_a_receipt_of_one_hospital_is_what_it_was_and_one_of_too_many_is_none(hospital, plan, table):
    site = hospital.joined().approved(plan).with_table(table)
    site("release", "mini", "--wave", "1")
    [path] = site.home.rglob("*.tributary") if list(site.home.rglob("*.tributary")) else site.home.rglob("bundle*")
    receipt = read_bundle(path, cap=1 << 24).receipt
    assert receipt.hospitals == 0
    assert b'"hospitals"' not in receipt.to_bytes()
    for wrong in (1, 1001, -2):
        with pytest.raises(ReceiptRefusal, match="speak for itself"):
            replace(receipt, hospitals=wrong).require_true(plan)
