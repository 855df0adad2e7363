"""The desk: who stopped, revoked and left, each under a person's signature; and what was refused, in the site's log."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_table
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal
from shared.plans.plan import sign_plan
from shared.privacy.stated import FLOW, shown_price
from shared.wire.site_messages import Reminder
from site_agent import cli
from site_agent.egress import AcknowledgedReplies
from site_agent.ledger.entries import SIGNED, decided_by
from site_agent.lock import StateLock
from site_agent.release import drawing
from site_agent.show import export, refusals, verifier
from site_agent.show.refusals import Refusals
from tests.stage.house.sources import ROOT

CANARY = "CANARY-4711"


@pytest.fixture
def ready(hospital, plan, table, monkeypatch) -> Hospital:
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", PASSPHRASE)
    return hospital.joined("dr-lind", "dr-berg").approved(plan).with_table(table)


@pytest.fixture
def ids(ready) -> Path:
    path = ready.folder / "withdrawn.txt"
    path.write_text("\n".join(make_table(300)["person"].head(3)) + "\n")
    return path


def deciding(ids: Path) -> list[tuple[str, ...]]:
    """Every decision about the site that is not about one release, in an order in which each is possible."""
    return [
        ("pause", "--as", "dr-lind", "--reason", "audit week"),
        ("resume", "--as", "dr-berg"),
        ("withdraw-person", "mini", "--as", "dr-lind", "--id-file", str(ids)),
        ("plan", "revoke", "mini", "--as", "dr-berg", "--reason", "the ethics board asks"),
        ("leave", "mini", "--as", "dr-lind"),
    ]


def log(site: Hospital) -> list[dict]:
    return [row for row in site.json("history", "--last", "0")["entries"] if row["kind"] == "refused"]


def tried(site: Hospital) -> list[tuple[str, str]]:
    return [(row["verb"], row["code"]) for row in log(site)]


# -- who did it -----------------------------------------------------------------------------------------------------
def test_each_decision_about_the_site_is_signed_in_its_entry_by_whom_it_names(ready, ids):
    for words in deciding(ids):
        ready(*words)
    at = cli.open_desk(ready.home)
    decided = {entry.kind: entry for entry in at.ledger.entries() if entry.kind in {*SIGNED, "paused"}}
    assert set(decided) == {*SIGNED, "paused"} - {
        "standing_revoked",
        "persons_confirmed",
        "persons_apart",
        "sum_consented",
    }, "see test_persons"
    for entry in decided.values():
        assert decided_by("north", entry, at.config.signers), entry.kind
        assert not decided_by("south", entry, at.config.signers), "of another site"
        for change in ({"name": "dr-lind" if entry.body["name"] == "dr-berg" else "dr-berg"}, {"reason": "another"}):
            assert not decided_by("north", replace(entry, body={**entry.body, **change}), at.config.signers)
        assert not decided_by("north", replace(entry, previous="ab" * 32), at.config.signers), "at another place"
    assert ready.json("audit", "verify")["decisions"] == 5
    assert {row["kind"]: row["who"] for row in ready.json("history")["entries"]}["resumed"] == "dr-berg"


@pytest.mark.parametrize("kind", ["resumed", "plan_revoked", "persons_withdrew", "left"])
def test_an_entry_that_the_agent_wrote_by_itself_is_found(ready, kind):
    at = cli.open_desk(ready.home)
    plan = at.plans.plan("mini")
    if kind == "resumed":
        at.ledger.resume(name="dr-lind", reason="")
    elif kind == "plan_revoked":
        words = {"version": plan.version, "plan_hash": plan.hash, "approver": "dr-lind", "reason": ""}
        at.ledger.revoke_plan(study="mini", **words, key=SigningKey.generate())
    elif kind == "persons_withdrew":
        at.ledger.note_persons("mini", {"ab" * 32}, name="dr-lind", key=at.release_key)
    else:
        at.ledger.leave(study="mini", name="dr-lind", deleted=[])
    body = ready.refused("audit", "verify", expect=30)
    assert kind.replace("_", " ") in body["must"]
    with pytest.raises(verifier.Wrong, match=kind):
        verifier.examine(export.record(at, "mini"), "mini")


def test_a_signature_is_good_once(ready):
    ready("pause", "--as", "dr-lind")
    ready("resume", "--as", "dr-lind")
    at = cli.open_desk(ready.home)
    old = next(entry for entry in at.ledger.entries() if entry.kind == "resumed")
    ready("pause")
    with at.ledger.transaction(write=True) as book:
        book.append("resumed", {name: old.body[name] for name in ("name", "reason", "key", "signature")})
    ready.refused("audit", "verify", expect=30)


def test_who_cannot_open_the_registered_key_decides_nothing(ready, ids, monkeypatch):
    ready("pause")
    entries = len(ready.json("history")["entries"])
    for words in deciding(ids)[1:]:
        named = [word if word not in ("dr-lind", "dr-berg") else "mallory" for word in words]
        ready(*named, expect=2)
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", "something else")
    for words in deciding(ids)[1:]:
        ready(*words, expect=30)
    for name in ("dr-lind", "dr-berg"):
        path = ready.home / "keys" / "approvers" / f"{name}.pem"
        path.unlink()
        SigningKey.generate().save(path, "something else")
    for words in deciding(ids)[1:]:
        ready(*words, expect=12)
    rows = [row for row in ready.json("history", "--last", "0")["entries"] if row["kind"] != "refused"]
    assert len(rows) == entries
    assert ready.json("status")["paused"] is True


def test_stopping_waits_for_nobody_and_starting_again_is_signed(ready, monkeypatch):
    ready.hub.down = True
    assert ready.json("pause", "--reason", "now")["paused"] is True
    assert ready.json("history", "--last", "1")["entries"][0]["who"] == "not named"
    (ready.home / "paused").unlink()
    assert ready.json("status")["paused"] is True, "no hand unlinks a pause"
    ready.refused("release", "mini", "--wave", "1", expect=10)
    ready("resume", expect=2)
    assert ready.json("resume", "--as", "dr-lind")["paused"] is False
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", "something else")
    ready("pause", "--as", "dr-lind", expect=30)
    assert ready.json("status")["paused"] is True, "the site stops before it asks who stops it"
    ready("resume", "--as", "dr-berg")
    path = ready.home / "ledger.db"
    path.rename(ready.home / "gone.db")
    assert ready.json("pause") == {"site": "north", "paused": True, "by": None, "noted": False, "dry_run": False}
    (ready.home / "gone.db").rename(path)
    assert ready.json("status")["paused"] is True


def copied(site: Hospital, folder: Path) -> Path:
    """The ledger's two files, as a backup has them; an open log is written home first."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(site.home / "ledger.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(site.home / name, folder / name)
    return folder


@pytest.mark.parametrize("decision", ["pause", "reject", "plan revoke"])
def test_a_copy_of_the_ledger_that_is_put_back_undoes_no_decision_unnoticed(ready, tmp_path, decision):
    made = ready.json("release", "mini", "--wave", "1")
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    backup = copied(ready, tmp_path / "backup")
    target = {"pause": [], "reject": [made["release_id"]], "plan revoke": ["mini"]}[decision]
    ready(*decision.split(), *target, "--as", "dr-lind", "--reason", "stop")
    assert ready.hub.anchored[-1]["seq"] == len(cli.open_desk(ready.home).ledger.entries())
    (ready.home / "paused").unlink(missing_ok=True)
    for extra in ready.home.glob("ledger.db-*"):
        extra.unlink()
    for path in backup.iterdir():
        shutil.copy(path, ready.home / path.name)
    assert cli.open_desk(ready.home).paused is False, "an old copy knows of nothing"
    assert ready.refused("approve", made["release_id"], "--as", "dr-lind", *ticks, expect=30)["code"] == "E_LEDGER"
    assert ready.hub.sent == []


def test_a_decision_that_could_not_be_witnessed_is_witnessed_by_the_next_round_also_during_the_pause(ready):
    ready.hub.down = True
    assert ready.json("pause")["noted"] is True
    decided = cli.open_desk(ready.home).ledger.entries()[-1]
    assert decided.kind == "paused"
    ready("run", "--once")
    assert ready.hub.anchored == []
    ready.hub.down = False
    assert "paused" in ready("run", "--once")
    assert (ready.hub.anchored[-1]["seq"], ready.hub.anchored[-1]["head"]) == (decided.seq, decided.hash)


def test_no_head_is_witnessed_beside_an_agent_that_draws(ready):
    with StateLock(ready.home):
        assert ready.json("pause")["noted"] is True
    assert ready.hub.anchored == []


def test_a_pause_whose_file_was_unlinked_stops_a_fit_under_way(ready, monkeypatch):
    fit = drawing._fit

    def fitting(*words):
        at = cli.open_desk(ready.home)
        assert at.stopped()() is False
        at.ledger.pause(name="", reason="now")
        return fit(*words)

    monkeypatch.setattr(drawing, "_fit", fitting)
    assert ready.refused("release", "mini", "--wave", "1", expect=10)["code"] == "E_PAUSED"
    assert "drawing" not in [entry.kind for entry in cli.open_desk(ready.home).ledger.entries()]


# -- what was refused -----------------------------------------------------------------------------------------------
def test_every_refused_attempt_leaves_one_line_that_says_what_and_who(ready, ids, monkeypatch):
    attempts = [
        (("release", "mini", "--wave", "7"), 10, ("release", "E_PLAN")),
        (("approve", "0000", "--as", "dr-lind"), 2, ("approve", "E_STATE")),
        (("reject", "0000", "--as", "dr-lind", "--reason", CANARY), 2, ("reject", "E_STATE")),
        (("send-back", "0000", "--as", "dr-lind", "--reason", CANARY), 2, ("send-back", "E_STATE")),
        (("withdraw", "0000", "--as", "dr-lind", "--reason", "error"), 2, ("withdraw", "E_STATE")),
        (("plan", "approve", "mini", "--as", CANARY), 2, ("plan approve", "E_CONFIG")),
        (("standing", "revoke", "0000", "--as", "dr-berg"), 2, ("standing revoke", "E_STATE")),
        (("leave", CANARY, "--as", "dr-lind"), 2, ("leave", "E_STATE")),
        (("resume", "--as", CANARY), 2, ("resume", "E_CONFIG")),
        (("withdraw-person", "mini", "--as", CANARY, "--id-file", str(ids)), 2, ("withdraw-person", "E_CONFIG")),
    ]
    for words, code, _ in attempts:
        ready(*words, expect=code)
        ready(*words, "--dry-run", expect=code)
    rows = log(ready)
    assert [(row["verb"], row["code"]) for row in rows] == [line for _, _, line in attempts]
    assert {row["who"] for row in rows} == {"dr-lind", "dr-berg", "not named"}
    assert {row["study"] for row in rows} == {"mini", ""}
    assert CANARY not in (ready.home / "refused.jsonl").read_text()
    assert (ready.home / "refused.jsonl").stat().st_mode & 0o077 == 0
    text = " ".join(ready("history").split())
    assert "refused" in text
    assert "plan approve mini: The configuration" in text
    assert "(E_CONFIG)" in text
    assert ready.json("audit", "verify")["refused"] == len(attempts)


def test_what_a_coordinator_asks_for_in_vain_is_noted_once_a_day(ready, plan):
    ready.hub.envelopes["mini"] = sign_plan(replace(plan, version=2), [SigningKey.generate()])
    for _ in range(3):
        ready("run", "--once", expect=30)
    assert tried(ready).count(("plan fetch", "E_SIGNATURE")) == 1
    ready.hub.down = True
    before = len(log(ready))
    ready("run", "--once", expect=20)
    assert len(log(ready)) == before, "that nobody answers refuses nothing"
    ready.hub.down = False
    ready("plan", "fetch", "mini", expect=30)
    ready("plan", "fetch", "mini", expect=30)
    assert tried(ready).count(("plan fetch", "E_SIGNATURE")) == 3, "a person's attempts are noted each time"


def test_the_author_who_approves_and_the_second_person_who_is_the_first_are_noted_with_the_release(ready):
    toml = ready.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", "[floors]\nauthor_apart = true\n"))
    ready("release", "mini", "--wave", "1", expect=12)
    made = ready.json("release", "mini", "--wave", "1", "--by", "dr-lind")
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    ready("approve", made["release_id"], "--as", "dr-lind", *ticks, expect=12)
    rows = log(ready)
    assert [(row["verb"], row["code"], row["who"]) for row in rows] == [
        ("release", "E_NOT_APPROVED", "not named"),
        ("approve", "E_NOT_APPROVED", "dr-lind"),
    ]
    assert (rows[1]["study"], rows[1]["release_id"]) == ("mini", made["release_id"])
    kinds = [row["kind"] for row in ready.json("history", "--last", "0")["entries"]]
    assert kinds.index("refused") < kinds.index("reserve") < len(kinds) - 1 - kinds[::-1].index("refused")


def test_an_agent_that_waits_for_its_next_round_ends_well_when_it_is_told_to(ready):
    """As the first process of a container it would not end at all: the kernel shields that from what nobody handles."""
    ready("pause", "--as", "dr-lind", "--reason", "audit week")
    words = [sys.executable, "-m", "site_agent.cli", "run", "--home", f"{ready.home}"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}"}
    ) as agent:
        try:
            assert "paused" in agent.stdout.readline()
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            agent.kill()


@pytest.fixture
def book(tmp_path) -> Refusals:
    return Refusals(tmp_path / "refused.jsonl", SigningKey.generate(), site="north")


def test_the_log_finds_a_changed_a_missing_and_a_foreign_line(book):
    for after in range(4):
        book.note("approve", "E_NOT_APPROVED", study="mini", after=after)
    assert [line.after for line in book.lines()] == [0, 1, 2, 3]
    whole = book.path.read_bytes()
    for place in range(0, len(whole), 97):
        book.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(IntegrityRefusal, match="as this site wrote it"):
            book.lines()
    lines = whole.splitlines(keepends=True)
    for other in (lines[:1] + lines[2:], lines[1:], [*lines[:2], lines[1], *lines[2:]], lines[::-1]):
        book.path.write_bytes(b"".join(other))
        with pytest.raises(IntegrityRefusal):
            book.lines()
    book.path.write_bytes(whole)
    with pytest.raises(IntegrityRefusal):
        Refusals(book.path, SigningKey.generate(), site="north").lines()


def test_what_a_crash_left_of_a_line_is_written_over(book):
    book.note("release", "E_BUDGET")
    with book.path.open("ab") as out:
        out.write(b'{"seq":2,"time')
    assert len(book.lines()) == 1
    book.note("release", "E_SMALL_N")
    assert [line.code for line in book.lines()] == ["E_BUDGET", "E_SMALL_N"]


def test_a_loop_writes_no_more_than_a_day_may_hold(book, monkeypatch):
    monkeypatch.setattr(refusals, "A_DAY", 15)
    for _ in range(12):
        book.note("approve", "E_SIGNATURE", who="dr-lind")
    assert len(book.lines()) == refusals.SAME
    for number in range(12):
        book.note("release", "E_PLAN", after=number, release_id=f"r{number}")
    assert len(book.lines()) == 15


def test_a_refusal_is_told_also_where_it_cannot_be_noted(ready):
    (ready.home / "refused.jsonl").mkdir()
    assert ready.json("approve", "0000", "--as", "dr-lind", expect=2)["refused"]["code"] == "E_STATE"
    (ready.home / "refused.jsonl").rmdir()
    (ready.home / "ledger.db").unlink()
    assert ready.json("release", "mini", "--wave", "1", expect=30)["refused"]["code"] == "E_LEDGER"


# -- what a steward sees --------------------------------------------------------------------------------------------
def test_the_price_of_a_new_plan_stands_beside_what_was_charged_already(ready, plan):
    first = ready.json("release", "mini", "--wave", "1")["epsilon"]
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2, 3, 4))
    second = replace(
        plan, version=2, waves=waves, returning="refresh", budget=replace(plan.budget, epsilon=2.2 * first)
    )
    ready.publish(second)
    ready("plan", "fetch", "mini")
    page = ready.json("plan", "show", "mini")
    assert page["price"]["affordable"] == 2, "for whoever was never charged"
    charged = page["charged"]
    spent = ready.json("budget")["totals"][0]["epsilon"]
    assert charged["epsilon"] == spent >= first
    assert (charged["to_come"], charged["last_affordable"]) == ([2, 3, 4], 2)
    assert charged["with_waves_to_come"] > page["price"]["all_waves"] * 0.99
    text = " ".join(ready("plan", "show", "mini").split())
    assert f"charged so far {shown_price(spent, FLOW, delta=1e-6)}, by every version of the plan" in text
    assert "once waves 2 to 4 are drawn; the budget allows them up to wave 2" in text
    ready.publish(replace(second, version=3, budget=replace(plan.budget, epsilon=1.1 * first)))
    ready("plan", "fetch", "mini")
    assert ready.json("plan", "show", "mini")["charged"]["last_affordable"] is None
    # Nor does the calendar name a release as the next step that the budget would refuse.
    [held] = ready.json("outbox", "list")["releases"]
    text = " ".join(ready("waves", "mini").split())
    assert "The budget allows none of the waves to come: that needs an amended plan" in text
    assert text.endswith(f"next site-agent outbox show {held['release_id'][:8]}")
    ready("reject", held["release_id"][:8], "--as", "dr-lind", "--reason", "another extract")
    assert " ".join(ready("waves", "mini").split()).endswith("next site-agent budget mini")
    assert "allows none of the waves to come: nothing more" in " ".join(ready("plan", "show", "mini").split())


def test_a_wave_that_is_not_yet_open_is_still_to_come(ready, plan):
    later = replace(plan.waves[0], number=2, opens=dt.date(2500, 1, 1))
    ready.publish(replace(plan, version=2, waves=(plan.waves[0], later), returning="refresh"))
    ready("plan", "fetch", "mini")
    assert ready.json("plan", "show", "mini")["charged"]["to_come"] == [1, 2]


def test_the_lead_s_reminder_is_shown_and_silence_is_said(ready):
    assert ready.json("status")["reminders"] == []
    ready.hub.reminders = (Reminder(wave=1, day="2026-05-01"),)
    assert ready.json("status")["reminders"] == [{"study": "mini", "wave": 1, "day": "2026-05-01"}]
    assert "The study lead reminds you of mini, wave 1 (on 2026-05-01)." in ready("status")
    ready.hub.down = True
    assert ready.json("status")["reminders"] is None
    assert "does not answer now" in ready("status")


def test_a_fork_of_the_coordinators_log_fails_doctor_and_is_named_by_status(ready, monkeypatch):
    kept = AcknowledgedReplies(SigningKey.generate().public, "north", ready.home / "acknowledged.jsonl")
    monkeypatch.setattr("site_agent.desk.kept_replies", lambda config: kept)
    assert (ready.json("status")["forks"], "not the one" in ready("status")) == (0, False)
    kept.path.write_text('{"head":"","kind":"Fork","root":"","size":3}\n')
    text = " ".join(ready("doctor", expect=30).split())
    assert "✗ coordinator's log" in text
    assert "1 answer of another history" in text
    assert ready.json("status")["forks"] == 1
    assert "no release is sent" in " ".join(ready("status").split())


def test_doctor_misses_the_key_that_checks_what_the_coordinator_says(ready):
    assert "✓ coordinator's key" in ready("doctor")
    (ready.home / "certificates" / "witness.pub").unlink()
    text = " ".join(ready("doctor").split())
    assert "! coordinator's key certificates/witness.pub is missing" in text
