"""Synthetic rows from a slicing release: the same from the same record, by whoever holds the figures, for nothing."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.service import SMALL, Hub
from stage.coordinator_side.analysis import Desk
from stage.coordinator_side.delivered import deliver, join, take_back
from stage.hospital_side.pipeline import release, site, source  # noqa: F401
from stage.hospital_side.site_desk import hospital  # noqa: F401

from coordinator.analyst import commands as client
from coordinator.analyst.commands import connect
from coordinator.answers.synthesis import synthesis
from coordinator.cli import main
from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.store.store import Store
from shared.base.randomness import seeded_rng
from shared.errors import StateRefusal
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.plans.plan import Budget
from shared.releases.bundle import read_bundle
from shared.releases.synthetic import Synthesis


def test_fits_of_a_site_s_release_leave_its_ledger_where_it_was(tmp_path, plan, site, table):  # noqa: F811
    study = replace(plan, release=SlicingPlan(sigma=6.0), posture="private", budget=Budget(epsilon=50.0, delta=1e-6))
    made = release(study, site, source(tmp_path, table))
    before = list(site.ledger.entries())
    assert [entry.kind for entry in before].count("seal") == 1
    held = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).table
    for number in (0, 1):
        drawn = Synthesis(study, [(held, 300)], about={}, number=number, rows=20).draw()
        study.dictionary.validate_release(drawn.tables[0])
    assert list(site.ledger.entries()) == before


# -- at the coordinator ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def homes(tmp_path_factory, plan):
    """A coordinator with a site's slicing release, under a plan that lets rows leave and under one that does not."""
    out = {}
    for name, leave in (("open", True), ("closed", False)):
        study = replace(
            plan, dictionary=SMALL, release=SlicingPlan(sigma=1.0), posture="private", estimands={}, row_download=leave
        )
        hub = Hub(tmp_path_factory.mktemp("hub") / name, study)
        records = pd.DataFrame({"sbp": np.linspace(80, 200, 50), "sex": [0.0, 1.0] * 25})
        invitation = hub.invite("north")
        key = join(hub.store, invitation)
        deliver(hub.store, study, "north", key, study.release.draw(study, records, seeded_rng(2)), n=50)
        hub.store.close()
        settings = CoordinatorConfig(home=hub.home, name="hub", address="localhost:9443")
        (hub.home / FILE_NAME).write_text(settings.to_toml())
        out[name] = (hub.home, key)
    return out


def ask(capsys, home, *more):
    code = main(["--home", str(home), "synthetic", "mini", "--site", "north", *map(str, more), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_coordinator_draws_the_same_rows_from_a_seed_in_the_record(homes, tmp_path, capsys):
    home, _ = homes["open"]
    out, more = tmp_path / "rows.csv", ("--rows", 30)
    assert ask(capsys, home, "--out", out, *more, "--dry-run")[1]["written"] is False
    assert not out.exists()
    code, told = ask(capsys, home, "--out", out, *more)
    assert (code, told["rows"], told["seed"]) == (0, 30, 0)
    assert set(pd.read_csv(out)["sex"]) <= {"female", "male"}
    record = json.loads(out.with_name("rows.csv.record.json").read_text())
    assert record["csv_sha256"] == [hashlib.sha256(out.read_bytes()).hexdigest()]
    assert [len(one["bundle_sha256"]) for one in record["releases"]] == [64]
    again = ask(capsys, home, "--out", out, *more)[1]
    other = ask(capsys, home, "--out", out, *more, "--draw", 1)[1]
    assert again["csv_sha256"] == record["csv_sha256"] != other["csv_sha256"]
    # Nor is a table overwritten that this command has not written, or its record.
    for kept in (out, out.with_name("rows.csv.record.json")):
        before = kept.read_bytes()
        kept.write_bytes(b"the only copy")
        for last in ((), ("--dry-run",)):
            code, told = ask(capsys, home, "--out", out, *more, *last)
            assert (code, told["refused"]["code"]) == (2, "E_PARAMETER")
            assert kept.name in told["refused"]["given"]
        assert kept.read_bytes() == b"the only copy"
        kept.write_bytes(before)


def test_several_tables_of_one_fit_are_numbered_and_say_how_they_are_combined(homes, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    code, told = ask(capsys, homes["open"][0], "--out", out, "--m", 5, "--rows", 30)
    tables = [tmp_path / f"rows.{k}.csv" for k in range(1, 6)]
    assert (code, told["files"], told["draws"], told["persons"]) == (0, [str(file) for file in tables], 5, 50)
    assert told["csv_sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in tables]
    assert len(set(told["csv_sha256"])) == 5
    assert "v rows / persons + b / tables" in json.loads((tmp_path / "rows.csv.record.json").read_text())["combining"]
    # One table is the first of the five, and says that it stands alone.
    alone = ask(capsys, homes["open"][0], "--out", out, "--rows", 30)[1]
    assert alone["csv_sha256"] == told["csv_sha256"][:1]
    assert "at least 5" in alone["combining"]


@pytest.mark.parametrize(
    ("which", "more", "code"),
    [
        ("closed", (), "E_POLICY"),
        ("open", ("--site", "south"), "E_ESTIMATE"),
        ("open", ("--draw", -1), "E_PARAMETER"),
        ("open", ("--rows", -1), "E_PARAMETER"),
        ("open", ("--m", 2), "E_PARAMETER"),
        ("open", ("--wave", 9), "E_PLAN"),
        ("open", ("--out", "rows.txt"), "E_PARAMETER"),
    ],
)
def test_rows_that_must_not_or_cannot_be_drawn_are_refused(which, more, code, homes, tmp_path, capsys):
    exit_code, told = ask(capsys, homes[which][0], "--out", tmp_path / "rows.csv", *more)
    assert exit_code
    assert told["refused"]["code"] == code
    assert not list(tmp_path.iterdir())


def test_a_release_that_is_taken_back_before_its_rows_are_drawn_gives_none(homes):
    home, key = homes["open"]
    with closing(Store.open(home)) as store:
        planned = synthesis(store, "mini", "north")
        take_back(store, "north", key)
        with pytest.raises(StateRefusal, match="stay the same"):
            planned.draw()
        with pytest.raises(StateRefusal, match="accepted release"):
            synthesis(store, "mini", "north")


# -- at the site, and on an analyst's machine ----------------------------------------------------------------------
def test_a_site_draws_rows_from_its_sealed_release_and_its_ledger_does_not_move(hospital, plan, table, tmp_path):  # noqa: F811
    """From the bytes that would leave; nothing is sent."""
    study = replace(plan, release=SlicingPlan(sigma=6.0), posture="private", budget=Budget(epsilon=50.0, delta=1e-6))
    hospital.joined().approved(study).with_table(table)
    made = hospital.json("release", "mini", "--wave", "1")["release_id"]
    budget = hospital.json("budget")
    history = hospital.json("history", "--last", "0")
    out = tmp_path / "rows.csv"
    how = ("--out", str(out), "--rows", "20")
    assert hospital.json("synthetic", "mini", *how, "--dry-run")["written"] is False
    first = hospital.json("synthetic", made[:8], *how)
    again = hospital.json("synthetic", "mini", *how)
    assert first["csv_sha256"] == again["csv_sha256"]
    assert [one["release_id"] for one in first["releases"]] == [made]
    assert len(pd.read_csv(out)) == 20
    assert "The ledger did not move" in hospital("synthetic", "mini", "--out", str(out), "--m", "5")
    assert hospital.json("budget") == budget
    assert hospital.json("history", "--last", "0") == history
    assert not hospital.hub.sent
    assert hospital.refused("synthetic", "other", "--out", str(out), expect=2)["code"] == "E_STATE"
    assert hospital.refused("synthetic", "mini", "--out", "rows.txt", expect=2)["code"] == "E_PARAMETER"
    # What was rejected is not fitted, by its study's name or its own.
    hospital("reject", made[:8], "--as", "dr-lind", "--reason", "other")
    for name in ("mini", made[:8]):
        refused = hospital.refused("synthetic", name, "--out", str(tmp_path / "no.csv"), expect=2)
        assert (refused["code"], refused["given"]) == ("E_STATE", f"{made[:8]}, which is rejected")
    assert not (tmp_path / "no.csv").exists()


def test_an_analyst_draws_the_rows_that_the_coordinator_draws(tmp_path, capsys, plan):
    """Over the network, from figures fetched once: the same bytes, and a line of the record for the download."""
    hub = Desk(tmp_path / "hub")
    for name, leave in (("mini", True), ("shut", False)):
        shape = {"dictionary": SMALL, "release": SlicingPlan(sigma=1.0), "posture": "private", "estimands": {}}
        study = replace(plan, study=name, coordinator="tributary-hub", row_download=leave, **shape)
        hub.publish(study)
        records = pd.DataFrame({"sbp": np.linspace(80, 200, 50), "sex": [0.0, 1.0] * 25})
        north = f"{name}-north"
        invitation = hub.authority.invite(north, [name], address="localhost:1", leads=[hub.lead.public], days=300)
        hub.store.add_invitation(invitation)
        hub.keys[north] = join(hub.store, invitation)
        deliver(hub.store, study, north, hub.keys[north], study.release.draw(study, records, seeded_rng(2)), n=50)
    file = hub.start().save(hub.admit(studies=("mini", "shut")))
    try:
        out, common = tmp_path / "mine.csv", ("--m", "5", "--json")
        mine = ["synthetic", "mini", "--site", "mini-north", "--token", str(file), "--out"]
        assert client.main([*mine, str(out), *common]) == 0
        told = json.loads(capsys.readouterr().out)
        theirs = [
            "--home",
            str(hub.home),
            "synthetic",
            "mini",
            "--site",
            "mini-north",
            "--out",
            str(tmp_path / "t.csv"),
        ]
        assert main([*theirs, *common]) == 0
        lead = json.loads(capsys.readouterr().out)
        assert told["csv_sha256"] == lead["csv_sha256"]
        assert (told["releases"], told["wave"]) == (lead["releases"], lead["wave"])
        assert len(pd.read_csv(tmp_path / "mine.5.csv")) == 50
        lines = hub.analysts.record("mini")
        assert [(one.kind, one.subject) for one in lines] == [("rows", told["releases"][0]["release_id"])]
        # Where rows may not leave, and of a site that released nothing.
        shut = ["synthetic", "shut", "--site", "shut-north", "--token", str(file), "--out", str(out), "--json"]
        assert client.main(shut) == 10
        assert json.loads(capsys.readouterr().out)["refused"]["code"] == "E_POLICY"
        assert client.main([*mine[:3], "south", *mine[4:], str(out), "--json"]) == 40
        assert json.loads(capsys.readouterr().out)["refused"]["code"] == "E_ESTIMATE"
        # A release that is taken back while its copy is fitted gives no rows here either.
        with connect(file) as connection:
            planned = connection["mini"].synthetic("mini-north")
            take_back(hub.store, "mini-north", hub.keys["mini-north"])
            with pytest.raises(StateRefusal, match="stay the same"):
                planned.draw()
    finally:
        hub.stop()
