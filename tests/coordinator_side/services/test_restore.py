"""A coordinator is lost and put back from a backup: what sites delivered since is there again, once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import io
import json
import logging
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.service import LEAD, Hub, small_table
from stage.coordinator_side.collect import refused
from stage.hospital_side.ledger import forked
from stage.hospital_side.recovery import EVENT, PLAN, Agent
from stage.processes.theatre import Theatre, plan_toml

from coordinator import cli
from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.services import backup
from coordinator.services.backup import BackupFacts
from coordinator.services.clocks import restoration_day
from coordinator.services.collect.service import CollectionService
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import Store
from shared.base.archive import BackupHeader, read_archive, read_header, recipient_key, write_archive
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    CertificateRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    ParameterError,
    PassphraseRefusal,
    PlanChanged,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
    StorageRefusal,
)
from shared.plans.plan import sign_plan
from shared.privacy.composition import least_total
from shared.wire.clocks import utc_now
from shared.wire.messages import COLLECTION
from shared.wire.signed_messages import countersigned
from shared.wire.site_messages import Holdings
from shared.wire.tree_heads import open_head
from site_agent.decide import reconciliation
from site_agent.release.outbox import Outbox
from site_agent.show.health import _log
from tests.stage.house.sources import ROOT

TODAY = dt.date(2026, 5, 1)


def made_of(config, out, leads=None, today=TODAY):
    """What a backup for these leads says."""
    return backup.back_up(config, out, leads=leads or {"ada": LEAD.public}, software="0.2.0", today=today)[0]


class Site(Agent):
    """A site whose releases are sealed and approved in its own outbox, before a real coordinator."""

    def __init__(self, hub, folder, plan=PLAN) -> None:
        super().__init__(hub, folder)
        self.home, self.config, self.plan = folder, SimpleNamespace(site="north"), plan
        self.outbox = Outbox(folder, self.ledger, approvers={"steward": self.keys.steward.public})
        self.drawn_waves = []

    @property
    def replies(self):
        return self.hub.witness("north")

    def sealed(self, wave: int):
        """One draw, sealed, shown and approved."""
        hold = self.drawn(wave)
        self.drawn_waves.append(wave)
        made = self.hub.seal("north", wave=wave, release_id=hold.release_id, table=small_table(seed=wave))
        self.outbox.seal(hold, made.path.read_bytes(), made.receipt)
        self.outbox.hold(hold.release_id, checks={"rare": "passed"}, audit={"auc": 0.5})
        self.outbox.approve(hold.release_id, self.keys.steward, "steward")
        return hold.release_id

    def deliver(self, wave: int) -> str:
        release_id = self.sealed(wave)
        acceptance = self.door.send(self.outbox.envelope(release_id), self.outbox.bundle(release_id))
        self.outbox.delivered(release_id, acceptance)
        return release_id

    def withdraw(self, release_id: str) -> None:
        self.outbox.withdraw(release_id, self.keys.steward, "steward", reason_code="consent", reason="")
        told = self.door.withdraw(self.outbox.tombstone(release_id))
        self.ledger.tombstone(self.ledger.hold(release_id), log_index=told.log_index)

    def settle(self):
        return reconciliation.settle(self, self.door, "mini", self.door.held("mini"))

    def watch(self):
        return reconciliation.watch(self, self.door, {"mini": self.door.held("mini")}, TODAY)

    def compare(self):
        return [(one.wave, one.what) for one in reconciliation.compare(self, "mini", self.door.held("mini"))]


class Study:
    """A coordinator that is served, backed up, lost and restored under the feet of its sites."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.hub = Hub.alike(folder / "hub", PLAN, "north", "south")
        self.config = CoordinatorConfig(home=self.hub.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (self.hub.home / FILE_NAME).write_text(self.config.to_toml())
        self.server = self.hub.serve()
        self.site = Site(self.hub, folder / "site")

    def back_up(self, name="backup.tar"):
        return made_of(self.config, self.folder / name)

    def lose(self) -> None:
        self.site.door.close()
        self.server.stop(0)
        self.hub.store.close()
        shutil.rmtree(self.hub.home)

    def restore(self, name="backup.tar", **how):
        made = backup.restore(
            self.folder / name,
            self.hub.home,
            **{"key": LEAD, "reason": "the disk failed", "day": lambda clocks: TODAY, **how},
        )
        self.begin()
        return made

    def begin(self) -> None:
        self.hub.store = Store.open(self.hub.home)
        (self.hub.home / "drafts").mkdir(exist_ok=True)
        self.server = self.hub.serve()
        self.site.door = self.hub.egress("north")

    def close(self) -> None:
        self.site.door.close()
        self.server.stop(0)
        self.hub.store.close()

    def waves(self):
        return [(one.wave, one.bundle_sha256) for one in self.hub.store.releases("mini", site="north")]


@pytest.fixture
def study(tmp_path):
    # What a site keeps of the coordinator's answers lies with the site, not in the folder that is lost.
    made = Study(tmp_path)
    kept = tmp_path / "site" / "acknowledged.jsonl"
    witness = made.hub.witness

    def of(site):
        found = witness(site)
        found.path = kept.with_name(f"acknowledged.{site}.jsonl")
        return found

    made.hub.witness = of
    made.site.door.close()
    made.site.door = made.hub.egress("north")
    yield made
    made.close()


def lost_and_restored(study, first: int, later: int) -> None:
    """Deliver `first` waves, back up, deliver `later` more, lose the coordinator, restore it, mend."""
    site = study.site
    for wave in range(1, first + 1):
        site.deliver(wave)
    made = study.back_up()
    assert made.releases == first
    for wave in range(first + 1, first + later + 1):
        site.deliver(wave)
    before, spent, entries = study.waves(), site.spent(), len(site.ledger.entries())
    drawn = list(site.drawn_waves)
    longest = site.replies.checkpoint()
    study.lose()
    restored = study.restore()
    assert (restored.entry, len(study.waves())) == (made.size, first)
    assert site.compare() == [(wave, "missing at the coordinator") for wave in range(first + 1, first + later + 1)]

    settled = site.settle()
    assert (len(settled.mended), settled.left, settled.proven) == (later, (), True)
    assert study.waves() == before, "the same bytes, in the same waves, and no other"
    assert study.hub.store.verify_log() > made.size
    study.hub.store.verify_signatures()
    # Nothing was charged, drawn or written: the ledger is where it was, and proven to be.
    assert (site.spent(), len(site.ledger.entries()), site.drawn_waves) == (spent, entries, drawn)
    assert site.door.witnessed("mini").seq == entries
    assert site.compare() == []
    # The rewound log is recorded with what was seen of it before, and followed from there.
    [said] = site.replies.restorations()
    assert (said.size, said.root, said.reason) == (made.size, made.root, "the disk failed")
    [line] = [one for one in site.replies.replies() if one["kind"] == "Restored"]
    assert (line["rewound"], tuple(line["left"])) == (True, longest)
    assert not [one for one in site.replies.replies() if one["kind"] == "Fork"]
    assert site.watch() == ()
    assert site.settle().mended == (), "once"
    site.deliver(first + later + 1)  # and the study goes on
    assert study.hub.store.verify_log()


@pytest.mark.fault("F17")
def test_what_was_delivered_after_a_backup_is_there_again_after_a_restore_and_nothing_is_charged_twice(study):
    lost_and_restored(study, 1, 3)


@pytest.mark.soak
def test_thirty_deliveries_after_a_backup_are_there_again(study, monkeypatch):
    waves = tuple(dataclasses.replace(PLAN.waves[0], number=k) for k in range(1, 41))
    plan = dataclasses.replace(PLAN, waves=waves, version=2, budget=dataclasses.replace(PLAN.budget, epsilon=1e6))
    monkeypatch.setattr("stage.hospital_side.recovery.PLAN", plan)
    monkeypatch.setattr(study.hub, "plan", plan)
    study.hub.store.add_plan(sign_plan(plan, [LEAD]), plan)
    lost_and_restored(study, 2, 30)


def test_what_was_decided_after_the_backup_is_told_again(study, monkeypatch):
    """A withdrawal, a plan that has another version by now, and an acknowledgement that the site has lost."""
    site = study.site
    first, second = site.deliver(1), site.deliver(2)
    study.back_up()
    site.withdraw(first)
    third = site.deliver(3)
    study.lose()
    study.restore()
    newer = dataclasses.replace(PLAN, version=2, purpose="Another one.")
    study.hub.store.add_plan(sign_plan(newer, [LEAD]), newer)
    assert site.compare() == [
        (1, "withdrawn here, shown by the coordinator"),
        (3, "missing at the coordinator"),
    ]
    # Without the coordinator's own word for it a release of an old plan is refused, as it always was.
    refused(PlanChanged, lambda: site.door.send(site.outbox.envelope(third), site.outbox.bundle(third)))
    settled = site.settle()
    assert ([one.wave for one in settled.mended], settled.left) == ([1, 3], ())
    assert [(one.wave, one.withdrawn) for one in study.hub.store.releases("mini", withdrawn=True)] == [
        (1, "consent"),
        (2, ""),
        (3, ""),
    ]
    watch = LogWatch(study.hub.store)
    assert (watch.gaps(), watch.returned()) == ((), {"north": 1})
    # The site's own evidence: cut, deleted, and asked for again.
    path = site.replies.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if second.encode() not in line))
    assert [(one.wave, one.what) for one in reconciliation.unacknowledged(site)] == [
        (2, "its acknowledgement is not kept here")
    ]
    path.unlink()
    assert [one.wave for one in reconciliation.noted(site)] == [2, 3]
    assert [one.wave for one in site.settle().mended] == [2, 3]
    assert reconciliation.unacknowledged(site) == ()
    assert len(study.hub.store.releases("mini", withdrawn=True)) == 3
    study.hub.store.verify_log()


def test_a_standing_approval_that_is_over_is_told_again_where_the_backup_lacks_nothing_else(study, monkeypatch):
    """Its revocation makes no entry of the log: the restored log is all that the site has seen, and goes on."""
    site = study.site
    site.deliver(1)
    site.watch()
    study.back_up()
    over = Envelope.sign("application/x", b"{}", [site.keys.steward])
    study.hub.store.revoke_standing("north", "ab" * 32, over, TODAY)
    study.lose()
    study.restore()
    assert not study.hub.store.standing_revoked("north", "ab" * 32)
    noted, told = SimpleNamespace(revocation=over, acknowledged=True, digest="ab" * 32), []
    monkeypatch.setattr(type(site.ledger), "standing", lambda self, study=None: (noted,))
    monkeypatch.setattr(type(site.door), "revoke_standing", lambda self, envelope: told.append(envelope))
    assert site.settle().mended == ()
    site.watch()
    assert told == [over]
    assert site.replies.restorations() == (), "it had seen no more than was put back"
    site.watch()
    assert (told, reconciliation.looked(site, TODAY)) == ([over], True), "once"


def test_a_site_that_left_a_study_buries_its_releases_again_the_last_first(study):
    site = study.site
    ids = [site.deliver(1), site.deliver(2)]
    study.back_up()
    for release_id in reversed(ids):
        site.withdraw(release_id)
    gone = [{"release_id": one, "name": "bundle.zip", "sha256": "ab" * 32, "bytes": 3} for one in ids]
    site.ledger.leave(study="mini", name="steward", key=site.keys.steward, deleted=gone)
    shutil.rmtree(site.home / "sealed")
    study.lose()
    study.restore()
    assert [one.wave for one in study.hub.store.releases("mini")] == [1, 2]
    settled = site.settle()
    assert ([one.wave for one in settled.mended], settled.left) == ([2, 1], ())
    assert study.hub.store.releases("mini") == ()
    assert site.compare() == []


def test_what_a_coordinator_has_forgotten_is_not_sent_again_while_the_plans_approval_is_taken_back(study):
    site = study.site
    study.back_up()
    site.deliver(1)
    plan = {"study": "mini", "version": 1, "plan_hash": PLAN.hash, "approver": "steward"}
    site.ledger.approve_plan(**plan)
    site.ledger.revoke_plan(**plan, reason="no more", key=site.keys.steward)
    study.lose()
    study.restore()
    settled = site.settle()
    assert settled.mended == ()
    [left] = settled.left
    assert "its approval taken back" in left.why
    assert study.waves() == []
    site.ledger.approve_plan(**plan)
    assert [one.wave for one in site.settle().mended] == [1]


def test_what_was_acknowledged_before_counts_with_what_its_site_has_delivered_since(request, monkeypatch):
    """An old copy of a ledger first, then what the coordinator had acknowledged: past the cap by its own word."""
    two = least_total([(PLAN, EVENT)] * 2, PLAN.budget.delta)
    plan = dataclasses.replace(PLAN, budget=dataclasses.replace(PLAN.budget, epsilon=two * 1.001))
    monkeypatch.setattr("test_restore.PLAN", plan)
    monkeypatch.setattr("stage.hospital_side.recovery.PLAN", plan)
    study = request.getfixturevalue("study")
    site = study.site
    study.back_up()
    first, second = site.deliver(1), site.deliver(2)
    acknowledged = site.replies.acceptances()
    study.lose()
    study.restore()
    site.door.report_gap("mini", acknowledged)
    site.door.send(site.outbox.envelope(first), site.outbox.bundle(first))
    made = study.hub.seal("north", wave=5, release_id="5" * 32, table=small_table(seed=5))
    site.door.send(made.envelope, made.path)
    said = refused(BudgetRefusal, lambda: site.door.send(site.outbox.envelope(second), site.outbox.bundle(second)))
    assert "3 releases" in str(said)
    assert [wave for wave, _ in study.waves()] == [1, 5]


def test_what_cannot_be_sent_again_is_named_on_both_sides_until_it_can(study):
    site = study.site
    study.back_up()
    site.deliver(1)
    second = site.deliver(2)
    bundle = site.home / "sealed" / second / "bundle.zip"
    data = bundle.read_bytes()
    bundle.unlink()
    study.lose()
    study.restore()
    settled = site.settle()
    assert [one.wave for one in settled.mended] == [1]
    [left] = settled.left
    assert (left.wave, "bundle.zip" in left.why) == (2, True)
    assert [one.wave for one in reconciliation.noted(site)] == [2], "known without asking"
    assert "wave 2): missing at the coordinator" in reconciliation.sentence(reconciliation.noted(site))
    [gap] = LogWatch(study.hub.store).gaps()
    assert (gap.site, gap.wave, gap.release_id) == ("north", 2, second)
    bundle.write_bytes(data)
    assert [one.wave for one in site.settle().mended] == [2]
    assert (reconciliation.noted(site), LogWatch(study.hub.store).gaps()) == ((), ())


def test_only_what_the_coordinator_signed_for_this_site_is_taken_again_unasked(study):
    site, key = study.site, study.hub.authority.witness
    release_id = site.deliver(1)
    [said] = site.replies.acceptances()
    for lie in (
        dataclasses.replace(said, wave=2),
        dataclasses.replace(said, signature=b"s" * 64),
        countersigned(said, key, "south"),
    ):
        refused(SignatureRefusal, lambda lie=lie: site.door.report_gap("mini", [lie]))
    assert site.door.report_gap("mini", [said]) == 0, "it is there"
    assert LogWatch(study.hub.store).gaps() == ()
    invented = countersigned(dataclasses.replace(said, bundle_sha256="ab" * 32, release_id="cd" * 16), key, "north")
    assert site.door.report_gap("mini", [invented]) == 1
    # Its place in the wave is taken, and its bytes are nobody's: the report itself makes no release.
    assert [one.release_id for one in study.hub.store.releases("mini")] == [release_id]
    [gap] = LogWatch(study.hub.store).gaps("north")
    assert (gap.wave, gap.bundle_sha256) == (1, "ab" * 32)


@pytest.mark.fault("F19", log_lies=1)
def test_a_log_put_back_without_a_word_is_a_fork_until_it_says_so_and_an_old_word_excuses_nothing(study, caplog):
    site = study.site
    site.deliver(1)
    study.back_up()
    site.deliver(2)
    waiting = site.sealed(3)
    data = opened(study.folder / "backup.tar", LEAD, study.folder / "opened")["store.db"]

    def send():
        return site.door.send(site.outbox.envelope(waiting), site.outbox.bundle(waiting))

    def put_back_by_hand():
        site.door.close()
        study.server.stop(0)
        study.hub.store.close()
        for path in study.hub.home.glob("store.db*"):
            path.unlink()
        (study.hub.home / "store.db").write_bytes(data)
        study.begin()

    put_back_by_hand()
    with caplog.at_level(logging.ERROR, logger="tributary.egress"):
        refused(IntegrityRefusal, site.watch)
        # It has grown by another's anchor meanwhile, so that only a proof of growth tells it from what was seen.
        with study.hub.egress("south") as south:
            south.anchor(study.hub.anchor("south", 1))
        for work in (send, site.settle, send):
            said = refused(IntegrityRefusal, work)
            assert "no release is sent" in str(said)
    assert "not the one seen before" in caplog.text
    assert [wave for wave, _ in study.waves()] == [1], "refused before a byte has left, not by what is answered to it"
    assert (site.replies.forks(), reconciliation.looked(site, TODAY)) == (2, False)
    refused(IntegrityRefusal, lambda: _log(site, TODAY))
    # The word names the size that it was put back to.
    size = study.hub.store.entries()
    study.hub.store.verify_log()
    LogWatch(study.hub.store, coordinator="hub", key=study.hub.authority.witness).restore(
        {"archive": "", "reason": "a snapshot of the machine", "size": size - 1}, TODAY
    )
    assert [one.wave for one in site.settle().mended] == [2]
    assert (site.replies.forks(), _log(site, TODAY)[0]) == (0, "ok")
    assert [one.reason for one in site.replies.restorations()] == ["a snapshot of the machine"]
    site.outbox.delivered(waiting, send())
    # Put back once more, and the same word is shown again: it was met before.
    entry = study.hub.store.log()[size].entry
    put_back_by_hand()
    with study.hub.egress("south") as south:
        south.anchor(study.hub.anchor("south", 1))
    study.hub.store.note_restoration(json.loads(entry))
    refused(IntegrityRefusal, site.watch)
    assert len(site.replies.restorations()) == 1


@pytest.mark.fault("F19", log_lies=1)
def test_a_hidden_release_is_found_by_its_site_and_by_the_log(study):
    site = study.site
    site.deliver(1)
    site.deliver(2)
    assert site.watch() == ()
    assert reconciliation.looked(site, TODAY)
    database = study.hub.home / "store.db"

    def hack(*statements):
        with closing(sqlite3.connect(database)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    hack("PRAGMA foreign_keys=OFF", "UPDATE releases SET log_index = -log_index WHERE wave = 1")
    hack("UPDATE releases SET log_index = 1 WHERE wave = 2", "UPDATE releases SET log_index = 3 WHERE wave = 1")
    assert [(one.wave, one.what) for one in site.watch()] == [
        (1, "not proven to stand in the coordinator's log"),
        (2, "not proven to stand in the coordinator's log"),
    ]
    hack("UPDATE releases SET log_index = -log_index WHERE wave = 1")
    hack("UPDATE releases SET log_index = 3 WHERE wave = 2", "UPDATE releases SET log_index = 1 WHERE wave = 1")
    study.hub.store.verify_log()
    # Moved to another study, where nobody looks for it; then gone.
    hack("UPDATE releases SET study = 'other' WHERE wave = 2")
    assert site.compare() == [(2, "missing at the coordinator")]
    refused(IntegrityRefusal, study.hub.store.verify_log)
    hack("UPDATE releases SET study = 'mini' WHERE wave = 2", "DELETE FROM releases WHERE wave = 1")
    assert site.compare() == [(1, "missing at the coordinator")]
    refused(IntegrityRefusal, study.hub.store.verify_log)


@pytest.mark.fault("F23")
def test_a_coordinator_of_an_older_version_is_followed_as_before(study, monkeypatch):
    honest = CollectionService.handlers.fget
    older = {name: method for name, method in COLLECTION.items() if name not in ("Watch", "ReportGap")}
    monkeypatch.setattr("coordinator.services.collect.server.COLLECTION", older)
    monkeypatch.setattr(
        CollectionService, "handlers", property(lambda self: {name: honest(self)[name] for name in older})
    )
    site = study.site
    site.door.close()
    study.server.stop(0)
    study.begin()
    site.deliver(1)
    study.back_up()
    site.deliver(2)
    assert site.watch() == ()
    assert site.replies.checkpoint() is not None
    study.lose()
    study.restore()
    # It cannot say that it was restored: the agent says that histories differ, and to update both sides is the way on.
    refused(IntegrityRefusal, site.settle)


def test_both_put_back_at_once_the_site_is_held_to_what_the_coordinator_signed(study):
    site = study.site
    site.deliver(1)
    study.back_up()
    site.back_up()
    site.deliver(2)
    kept = site.replies.path.read_bytes()
    study.lose()
    site.put_back()
    site.replies.path.write_bytes(kept)  # the one file that somebody thought of
    study.restore()
    site.reserved(3, "again")
    hold = site.ledger.mark_anchored(site.ledger.hold("again"), site.door.anchor(site.ledger.anchor_envelope()))
    assert hold.state == "anchored", "the restored coordinator alone does not know better"
    said = refused(LedgerRefusal, lambda: reconciliation.settle(site, site.door, "mini", Holdings()))
    assert "old copy" in str(said)


@pytest.mark.soak
def test_real_processes_go_on_after_a_coordinator_was_lost_and_restored(tmp_path):
    theatre = Theatre(tmp_path)
    try:
        theatre.open(plan_toml(waves=4))
        rng = np.random.default_rng(7)
        columns = {"sbp": rng.uniform(100, 200, 120), "chol": rng.uniform(150, 300, 120)}
        table = tmp_path / "cohort.csv"
        frame = pd.DataFrame({"person": [f"p{i}" for i in range(120)], **columns, "died": rng.integers(0, 2, 120)})
        frame.to_csv(table, index=False)
        theatre.join("north", table, "storm")

        def deliver(wave):
            made = theatre.agent("north", "release", "storm", "--wave", wave, "--by", "steward").json
            ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
            theatre.agent("north", "approve", made["release_id"], "--as", "steward", *ticks)
            return made["bundle_sha256"]

        sent = [deliver(1)]
        told = theatre.coordinator("backup", tmp_path / "backup.tar", "--dry-run").json
        assert (told["written"], (tmp_path / "backup.tar").exists()) == (False, False)
        assert theatre.coordinator("backup", tmp_path / "backup.tar").json["releases"] == 1
        sent += [deliver(2), deliver(3)]
        entries = theatre.entries("north")
        theatre.stop()
        shutil.rmtree(theatre.hub)
        assert theatre.agent("north", "status").json["discrepancies"] == []
        theatre.coordinator("restore", tmp_path / "backup.tar", "--as", "lead", "--reason", "a fire")
        theatre.serve()
        status = theatre.agent("north", "status").json
        assert ([one["wave"] for one in status["discrepancies"]], status["next"]) == ([2, 3], ["site-agent resend"])
        assert [one["wave"] for one in theatre.agent("north", "resend", "--dry-run").json["left"]] == [2, 3]
        lines = theatre.agent("north", "run", "--once").out.splitlines()
        events = [json.loads(line) for line in lines]
        assert [(one["what"], one["wave"]) for one in events if "mended" in one["what"]] == [
            ("mended: missing at the coordinator", 2),
            ("mended: missing at the coordinator", 3),
        ]
        assert next(one["detail"] for one in events if "put back" in one["what"]).endswith("a fire")
        assert theatre.entries("north")[: len(entries)] == entries
        assert [kind for kind, _ in theatre.entries("north")].count("reserve") == 4, "wave 4 is due, and no other"
        assert theatre.coordinator("log", "verify").json["verified"]
        [row] = theatre.coordinator("sites").json
        assert (row["lacking"], row["returned"]) == ([], 2)
        assert {path.stem for path in (theatre.hub / "bundles").iterdir()} == set(sent)
        assert theatre.agent("north", "status").json["discrepancies"] == []
        head = tmp_path / "head.json"
        theatre.coordinator("log", "head", "--out", head)
        assert theatre.agent("north", "log", "--against", head).json["against"] > 0
        found = theatre.agent("north", "doctor").json["checks"]
        [line] = [one for one in found if one["name"] == "coordinator's log"]
        assert "put back from a backup 1 times" in line["detail"]
        out, listed = tmp_path / "record", tmp_path / "list.json"
        theatre.agent("north", "audit", "export", "storm", "--out", out)
        theatre.coordinator("log", "list", "north", "storm", "--out", listed)
        argv = [sys.executable, "-I", str(out / "verify.py"), "--coordinator-list", str(listed)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 of 3 deliveries are acknowledged" in done.stdout
    finally:
        theatre.close()


# -- the archive ----------------------------------------------------------------------------------------------------
@pytest.fixture
def home(tmp_path):
    """A coordinator's home with two releases, without a server."""
    hub = Hub(tmp_path / "hub", PLAN, "north")
    config = CoordinatorConfig(home=hub.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
    (hub.home / FILE_NAME).write_text(config.to_toml())
    hub.store.bundles.folder.mkdir(exist_ok=True)
    for wave in (1, 2):
        sealed = hub.seal("north", wave=wave, release_id=f"{wave:032d}", table=small_table(seed=wave))
        shutil.copy(sealed.path, hub.store.bundles.folder / f"{sealed.statement.bundle_sha256}.zip")
        hub.store.accept_release(
            statement=sealed.statement, envelope=sealed.envelope, receipt=sealed.receipt, today=TODAY
        )
    hub.config = config
    yield hub
    hub.store.close()


def opened(archive, key, folder):
    """Every file of a backup, by name."""
    folder.mkdir()
    read_archive(archive, key, folder, lambda name: True)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_backup_holds_what_is_in_the_write_ahead_log_and_opens_for_who_leads_alone(home, tmp_path):
    """A copy of the file alone held none of it."""
    bob, gone = SigningKey.generate(), SigningKey.generate()
    (home.home / "keys" / "retired").mkdir(parents=True)
    LEAD.save(home.home / "keys" / "ada.pem", "correct horse battery")
    bob.save(home.home / "keys" / "bob.pem")
    gone.save(home.home / "keys" / "retired" / "cyd.pem", "correct horse battery")
    (home.home / "notify.toml").write_text('webhook = "https://chat.example.org/hook"\n')
    copied = tmp_path / "copy.db"
    shutil.copy(home.home / "store.db", copied)
    with closing(sqlite3.connect(copied)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'releases'").fetchone()[0]
        alone = connection.execute("SELECT count(*) FROM releases").fetchone()[0] if tables else 0
    assert alone == 0
    archive, leads = tmp_path / "b.tar", {"ada": LEAD.public, "bob": bob.public}
    made = made_of(home.config, archive, leads)
    assert (made.releases, made.size) == (2, home.store.entries())
    assert archive.stat().st_mode & 0o077 == 0
    inside = opened(archive, bob, tmp_path / "inside")
    assert inside == opened(archive, LEAD, tmp_path / "again")
    assert b"BEGIN PRIVATE KEY" in inside["ca/ca.key"]
    assert {"keys/ada.pem", "keys/bob.pem", "keys/retired/cyd.pem", "notify.toml"} <= inside.keys()
    # Encrypted to keys: nothing of it shows, and a key in clear does not lie before the lock that it opens.
    seen = archive.read_bytes()
    assert not [name for name, data in inside.items() if data in seen]
    header = read_header(archive)
    assert (set(header.recipients), set(header.locked)) == ({"ada", "bob"}, {"ada"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_PASSPHRASE_ADA", "correct horse battery")
        assert recipient_key(archive, "ada", None).public == LEAD.public
        patch.setenv("TRIBUTARY_PASSPHRASE_ADA", "another horse battery")
        refused(PassphraseRefusal, lambda: recipient_key(archive, "ada", None))
    refused(StateRefusal, lambda: recipient_key(archive, "bob", None))
    assert recipient_key(archive, "bob", home.home / "keys" / "bob.pem").public == bob.public
    assert "retired" in str(refused(ApprovalRefusal, lambda: recipient_key(archive, "cyd", None)))
    assert "retired" in str(refused(ApprovalRefusal, lambda: opened(archive, gone, tmp_path / "none")))
    assert list((tmp_path / "none").iterdir()) == []
    assert [*tmp_path.glob("**/.backup-*"), *tmp_path.glob("*.part")] == []
    refused(StateRefusal, lambda: made_of(home.config, archive))


def test_a_backup_of_a_coordinator_that_is_not_whole_is_refused(home, tmp_path):
    out = tmp_path / "b.tar"
    [bundle, _] = sorted(home.store.bundles.folder.iterdir())
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-1] + b"x")
    refused(IntegrityRefusal, lambda: made_of(home.config, out))
    bundle.unlink()
    refused(IntegrityRefusal, lambda: made_of(home.config, out))
    bundle.write_bytes(data)
    with closing(sqlite3.connect(home.home / "store.db")) as connection, connection:
        connection.execute("DELETE FROM releases WHERE wave = 1")
    refused(IntegrityRefusal, lambda: made_of(home.config, out))
    assert [path.name for path in tmp_path.iterdir() if "b.tar" in path.name] == []


def test_a_restore_verifies_before_it_is_in_place_and_never_writes_over_anything(home, tmp_path):
    archive, place = tmp_path / "b.tar", tmp_path / "new"
    made = made_of(home.config, archive)

    def restore(where=place, **how):
        return backup.restore(archive, where, **{"key": LEAD, "day": lambda clocks: TODAY, **how})

    tried = restore(dry_run=True)
    assert (tried.entry, place.exists()) == (None, False)
    refused(StateRefusal, lambda: restore(home.home))
    refused(ApprovalRefusal, lambda: restore(key=SigningKey.generate()))
    other = tmp_path / "other"
    Hub(other, PLAN).store.close()
    assert "own backup" in str(refused(IntegrityRefusal, lambda: restore(other, replace=True)))
    assert not place.exists()
    done = restore(reason="a trial")
    assert (done.entry, done.moved) == (made.size, "")
    with closing(Store.open(place)) as store:
        assert store.verify_log() == made.size + 1
        assert len([store.table(one) for one in store.releases()]) == 2
        size, head = LogWatch(store).head(TODAY)
        assert (size, json.loads(head)["payloadType"]) == (made.size + 1, "application/vnd.tributary.tree-head+json")
    assert {path.stat().st_mode & 0o077 for path in place.rglob("*")} == {0}
    # A home that holds something is put aside, whole.
    home.store.close()
    again = restore(home.home, replace=True)
    assert {path.name for path in (tmp_path / "hub.before-restore-1").iterdir()} >= {"bundles", "ca", "store.db"}
    assert again.moved == str(tmp_path / "hub.before-restore-1")
    with home.serve():
        refused(LockedRefusal, lambda: restore(home.home, replace=True))
    home.store = Store.open(home.home)


def test_a_restore_into_an_empty_mount_point_names_a_folder_below_it(home, tmp_path, monkeypatch):
    archive, place = tmp_path / "b.tar", tmp_path / "mounted"
    made_of(home.config, archive)
    place.mkdir()

    def busy(folder):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    said = refused(StorageRefusal, lambda: backup.restore(archive, place, key=LEAD, day=lambda clocks: TODAY))
    assert "no mount point" in str(said)
    assert f"--home {place / 'home'}" in str(said)


def test_a_damaged_or_foreign_archive_is_refused_by_the_name_of_the_file(home, tmp_path, monkeypatch):
    archive = tmp_path / "b.tar"
    made_of(home.config, archive)
    whole = archive.read_bytes()

    def parts():
        lines, code = backup.drill(archive, home.home, key=LEAD)
        assert list(tmp_path.glob(".restore-*")) == []
        return {line.name: (line.state, line.detail) for line in lines}, code

    found, code = parts()
    assert (code, [state for state, _ in found.values()]) == (0, ["ok"] * 5)
    assert found["log that is served"][1] == "goes on from the backup, 0 entries since"
    first = len(read_header(archive).to_line())
    for at in (first + 60, len(whole) // 2, len(whole) - 9):
        data = bytearray(whole)
        data[at] ^= 1
        archive.write_bytes(data)
        found, code = parts()
        assert (list(found), code) == (["archive"], 30)
        assert "(got another " in found["archive"][1]
    for cut in (first // 2, first, first + 10, len(whole) // 2, len(whole) - 1):
        archive.write_bytes(whole[:cut])
        found, code = parts()
        assert (list(found), found["archive"][0], code) == (["archive"], "fail", 30)
    # Whoever knows the leads' public keys can write one: not with another's first line, nor with names of their own.
    header = dataclasses.replace(read_header_of(whole), day="2020-01-01")
    archive.write_bytes(header.to_line() + whole[first:])
    assert "first line" in str(refused(IntegrityRefusal, lambda: opened(archive, LEAD, tmp_path / "line")))
    archive.unlink()
    evil = {"coordinator.toml": b"x", "ca/../../outside": b"x"}
    write_archive(archive, read_header_of(whole), home.authority.witness, {}, evil, scratch=tmp_path)
    refused(SchemaRefusal, lambda: restored(archive, tmp_path / "new"))
    assert not (tmp_path / "outside").exists()
    archive.unlink()
    facts = asdict(BackupFacts(coordinator="hub", day="", size=0, root="", head="", witness="0" * 64, releases=0))
    plain = {name: b"x" for name in ("coordinator.toml", "store.db", "ca/ca.pem")}
    write_archive(archive, read_header_of(whole), SigningKey.generate(), facts, plain, scratch=tmp_path)
    refused(IntegrityRefusal, lambda: restored(archive, tmp_path / "new"))
    # Of other versions: each says which software reads it.
    archive.write_bytes(b"manifest.json" + bytes(600))
    assert "the version that wrote it" in refused(SchemaRefusal, lambda: restored(archive, tmp_path / "new")).next_step
    archive.write_bytes(whole.replace(b"tributary-backup/2", b"tributary-backup/3", 1))
    assert "Update" in refused(SchemaRefusal, lambda: restored(archive, tmp_path / "new")).next_step


def test_a_file_that_is_larger_on_the_disk_than_in_the_archive_is_refused(home, tmp_path, monkeypatch):
    """Anybody can encrypt to public keys, and the signature stands only after what is read: a page may fill no disk."""
    made_of(home.config, tmp_path / "b.tar")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 32 << 20)

    def packed(out, listed, sources):
        with tarfile.open(fileobj=out, mode="w") as archive:
            info = tarfile.TarInfo("contents.json")
            info.size = len(listed)
            archive.addfile(info, io.BytesIO(listed))
            info = tarfile.TarInfo("store.db")
            info.type, info.size = tarfile.GNUTYPE_SPARSE, 1
            head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
            head[386:410], head[483:495] = b"%011o\0%011o\0" % (0, 1), b"%011o\0" % (32 << 20)
            head[148:156] = b" " * 8
            head[148:156] = b"%06o\0 " % sum(head)
            archive.fileobj.write(bytes(head) + bytes(512))
            archive.offset += 1024

    monkeypatch.setattr("shared.base.archive._packed", packed)
    header, out = read_header(tmp_path / "b.tar"), tmp_path / "evil.tar"
    said = {"store.db": tmp_path / "large"}
    assert "store.db" in str(
        refused(IntegrityRefusal, lambda: write_archive(out, header, LEAD, {}, said, scratch=tmp_path))
    )


def restored(archive, place):
    return backup.restore(archive, place, key=LEAD, day=lambda clocks: TODAY)


def read_header_of(data):
    return BackupHeader.from_line(data[: data.index(b"\n") + 1])


@pytest.mark.parametrize("room", [100_000, 390_000])
def test_a_backup_that_finds_no_room_leaves_nothing(home, tmp_path, room):
    """A disk that is full, for real: no file grows beyond what the kernel allows. First the copy, then the archive."""

    def filling() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        with pytest.raises(StorageRefusal):
            made_of(home.config, tmp_path / "b.tar")

    home.store.close()
    assert forked(filling) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]
    assert list(home.home.glob(".backup-*")) == []


def test_the_lead_backs_up_restores_and_publishes_a_head_by_commands(home, tmp_path, capsys, monkeypatch):
    (home.home / "keys").mkdir()

    def run(*argv, where=None, code=0):
        assert cli.main(["--home", str(where or home.home), *map(str, argv)]) == code
        return " ".join(capsys.readouterr().out.split())

    def answer(*argv, **how):
        return json.loads(run(*argv, "--json", **how))

    archive, place = tmp_path / "b.tar", tmp_path / "new"
    LEAD.save(home.home / "keys" / "ada.pem", "correct horse battery")
    (home.home / "keys" / "ada.pub").write_text(LEAD.public.hex)
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_ADA", "correct horse battery")
    assert "opened by ada" in run("backup", archive)
    assert answer("backup", archive, code=2)["refused"]["code"] == "E_STATE"
    tried = answer("restore", archive, "--as", "ada", "--check", where=place)
    assert (tried["restored"], tried["entries"], place.exists()) == (False, 2, False)
    assert answer("restore", archive, "--as", "bob", where=place, code=12)["refused"]["code"] == "E_NOT_APPROVED"
    assert answer("drill", archive, "--as", "ada")["whole"] is True
    said = run("restore", archive, "--as", "ada", "--reason", "a fire", where=place)
    assert (place / "keys" / "ada.pem").read_bytes() == (home.home / "keys" / "ada.pem").read_bytes()
    assert "Log entry 2 says so" in said
    assert "Decide again" in said
    assert "Not compared yet since the restore" in run("sites", where=place)
    assert answer("log", "verify", where=place)["size"] == 3
    head = answer("log", "head", "--out", tmp_path / "head.json", where=place)
    assert (tmp_path / "head.json").read_text().strip() == head["head"]
    assert open_head(head["head"].encode(), home.authority.witness.public).size == 3
    assert answer("log", "restored", "--reason", "a snapshot", "--dry-run", where=place)["written"] is False
    assert answer("log", "restored", "--reason", " ", where=place, code=2)["refused"]["code"] == "E_PARAMETER"
    assert answer("log", "restored", "--reason", "a snapshot", "--size", "9", where=place, code=2)
    assert answer("log", "restored", "--reason", "a snapshot", where=place)["log_index"] == 3
    assert answer("log", "verify", where=place)["size"] == 4


@pytest.mark.fault("F15", cases=6)
def test_a_restoration_is_dated_by_a_clock_that_others_see_or_by_a_date_that_a_person_read(home, tmp_path):
    """Dated ahead it would stop every site until that day; an old backup goes in all the same, by a person's word."""
    archive, now = tmp_path / "b.tar", utc_now()
    made_of(home.config, archive, today=now.date())

    def attempt(ahead: dt.timedelta, said: dt.date | None = None):
        return backup.restore(
            archive,
            tmp_path / "new",
            key=LEAD,
            day=lambda clocks: restoration_day(clocks, now + ahead, said),
            dry_run=True,
        )

    year, day = dt.timedelta(days=365), dt.timedelta(days=1)
    assert attempt(dt.timedelta()).entry is None  # set up lately: believed as it is
    for ahead in (year, -400 * day):
        wrong = refused(CertificateRefusal, lambda ahead=ahead: attempt(ahead))
        assert not (tmp_path / "new").exists()
        # Whoever types the true date is told which of the two is wrong.
        refused(ParameterError, lambda ahead=ahead: attempt(ahead, now.date()))
    assert "--date" in refused(CertificateRefusal, lambda: attempt(90 * day)).next_step
    assert "nobody else has seen" in refused(CertificateRefusal, lambda: attempt(90 * day)).given
    assert wrong.given
    assert (
        attempt(90 * day, (now + 90 * day).date()).entry is None
    )  # a backup of three months ago, a clock that is right


@pytest.mark.fault("F4")
@pytest.mark.parametrize("point", ["backup.copied", "backup.written", "restore.before_place"])
def test_killed_on_its_way_a_backup_or_restore_leaves_nothing_that_passes_for_one_and_can_be_run_again(
    home, tmp_path, point
):
    archive, place = tmp_path / "b.tar", tmp_path / "new"

    def work() -> None:
        made_of(home.config, archive)
        backup.restore(archive, place, key=LEAD, day=lambda clocks: TODAY)

    def dying() -> None:
        os.environ["TRIBUTARY_FAILPOINT"] = point
        work()

    home.store.close()
    assert forked(dying) == -signal.SIGKILL
    assert not place.exists()
    assert archive.exists() == point.startswith("restore")
    archive.unlink(missing_ok=True)
    work()
    assert (place / "store.db").exists()
    assert not list(tmp_path.glob(".new.restore-*"))


class OnServer(Study):
    """The same with its store in PostgreSQL."""

    def __init__(self, folder, url) -> None:
        self.folder, self.url = folder, url
        self.hub = Hub(folder / "home", PLAN, "north", "south", url=url)
        self.config = CoordinatorConfig(home=self.hub.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (self.hub.home / FILE_NAME).write_text(self.config.to_toml())
        self.server = self.hub.serve()
        self.site = Site(self.hub, folder / "site")

    def begin(self) -> None:
        self.hub.store = Store.open(self.hub.home, self.hub.url)
        self.server = self.hub.serve()
        self.site.door = self.hub.egress("north")


def of_the_manual(server, study, url) -> list[str]:
    """The manual's two blocks, for a shell: as they are printed but for the folder and the way to our program."""
    page = (ROOT / "docs" / "operators-manual.md").read_text(encoding="utf-8")
    part = page.partition("*A store in PostgreSQL.*\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", part)
    before = f"set -eu\numask 022\nPATH={server.tools}:$PATH\nTRIBUTARY_STORE='{url}'\nexport TRIBUTARY_STORE\n"
    before += f'coordinator() {{ "{sys.executable}" -m coordinator.cli "$@"; }}\n'
    return [before + text.replace("/var/lib/tributary-coordinator", f"{study.folder}") for text in blocks]


def test_a_coordinator_on_postgresql_is_put_back_by_the_manuals_commands_and_its_log_says_so(tmp_path, postgres):
    """Its own tools make and restore the copy; the word in the log, and what sites send again, are as with SQLite."""
    first, second = (postgres.database(f"drill_{name}") for name in ("before", "after"))
    study = OnServer(tmp_path, first)
    witness, kept = study.hub.witness, tmp_path / "acknowledged.jsonl"

    def of(site):
        found = witness(site)
        found.path = kept
        return found

    study.hub.witness = of
    study.site.door.close()
    study.site.door = study.hub.egress("north")

    def run(text: str) -> str:
        said = subprocess.run(["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert said.returncode == 0, said.stdout + said.stderr
        return said.stdout

    saving, putting_back = of_the_manual(postgres, study, first)
    site = study.site
    site.deliver(1)
    run(saving)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("store.dump", "home.tar")] == ["0o600"] * 2
    size = study.hub.store.entries()
    site.deliver(2)
    before, spent, entries = study.waves(), site.spent(), len(site.ledger.entries())
    study.lose()
    study.hub.url = second

    silent = putting_back.replace(first, second).replace(" && coordinator log restored", "; : coordinator log restored")
    run(silent)
    study.begin()
    refused(IntegrityRefusal, site.watch)  # put back without a word it is another log
    study.lose()
    study.hub.url = third = postgres.database("drill_again")
    run(putting_back.replace(first, third))
    study.begin()
    [said] = [one.entry for one in study.hub.store.log() if json.loads(one.entry)["kind"] == "restored"]
    assert (json.loads(said)["size"], json.loads(said)["reason"]) == (size, "the database's disk failed")
    assert site.compare() == [(2, "missing at the coordinator")]
    settled = site.settle()
    assert ([one.wave for one in settled.mended], settled.left) == ([2], ())
    assert study.waves() == before
    assert (site.spent(), len(site.ledger.entries())) == (spent, entries)
    assert [one.reason for one in site.replies.restorations()] == ["the database's disk failed"]
    assert site.watch() == ()
    assert study.hub.store.verify_log() > size
    study.close()
