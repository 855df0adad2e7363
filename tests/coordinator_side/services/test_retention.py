"""A study ends: nothing more is made of it, its releases are deleted on the day its plan names, and stay deleted."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import shutil
import signal
import threading
from contextlib import closing

import pytest
import sqlalchemy as sa
from stage.both_sides.joined import Joined
from stage.both_sides.membership import Clock
from stage.both_sides.service import LEAD, Hub
from stage.hospital_side.recovery import PLAN
from stage.plans.retention import AFTER, ENDS, KEPT, LAST, TODAY
from stage.processes.theatre import exit_code

from coordinator.cli import main
from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.planning.review import review
from coordinator.planning.template import template
from coordinator.services import backup
from coordinator.services.analysts import Analysts
from coordinator.services.quotas import delete_due, deleted, end_study, erase
from coordinator.store import schema
from coordinator.store.engine import append_entry
from coordinator.store.rows import ResultDraft
from coordinator.store.store import Store
from shared.base.canonical import sha256_hex
from shared.base.chain import GENESIS
from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, PlanRefusal, SchemaRefusal, SignatureRefusal, StateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.membership.leads import Leads
from shared.membership.study_ends import StudyEnd
from shared.plans.federated import PREFIX
from shared.plans.plan import StudyPlan, sign_plan

SECRET = b"an answer that nobody may read afterwards"


# -- the plan ---------------------------------------------------------------------------------------------------------
def test_a_plan_says_what_becomes_of_its_releases_and_older_plans_keep_their_hash():
    assert b"retention" not in PLAN.canonical
    assert StudyPlan.from_bytes(ENDS.canonical) == ENDS
    assert ENDS.hash != PLAN.hash
    with pytest.raises(PlanRefusal, match="until"):
        dataclasses.replace(ENDS, retention=dataclasses.replace(KEPT, until=LAST - dt.timedelta(days=1)))
    for wrong in ({"keep": " "}, {"readers": ""}, {"readers": "x" * 501}, {"until": "2031-12-31"}):
        with pytest.raises(PlanRefusal):
            dataclasses.replace(KEPT, **wrong)


def test_a_new_study_without_retention_is_red_and_a_later_version_of_an_older_one_is_warned():
    text = template("stroke", coordinator="hub", today=TODAY)
    start, rest = text.split("[retention]")
    bare = start + rest[rest.index("# Latent Noise") :]

    def state(written: str) -> str:
        return next(line.state for line in review(written, today=TODAY)[1] if line.name == "retention")

    assert state(text) == "ok"
    assert state(bare) == "fail"
    assert state(bare.replace("version = 1 ", "version = 2 ")) == "warn"


# -- deletion ---------------------------------------------------------------------------------------------------------
class Held:
    """A coordinator with one release of a study, and an answer made of it."""

    def __init__(self, folder) -> None:
        self.hub = Hub.alike(folder / "hub", ENDS, "north")
        self.home = self.hub.home
        self.config = CoordinatorConfig(home=self.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (self.home / FILE_NAME).write_text(self.config.to_toml())
        shutil.copytree(self.home / "ca", folder / "apart")
        sealed = self.hub.seal("north")
        with self.hub.serve(), self.hub.egress("north") as egress:
            egress.send(sealed.envelope, sealed.path)
        self.digest, self.bytes = sealed.statement.bundle_sha256, sealed.path.read_bytes()
        sealed.path.unlink()  # the site's own
        values = {"result_id": "ab" * 32, "study": "mini", "document": SECRET, "day": "2026-05-01"}
        self.hub.store.write(lambda c: c.execute(schema.answers.insert().values(**values)))
        kept = {"question": b"q" * 32, "study": "mini", "bytes": 400, "day": "2026-05-01"}
        self.hub.store.write(lambda c: c.execute(schema.kept_questions.insert().values(**kept)))
        kept = {"question": b"q" * 32, "place": b"p" * 32, "site": "north", "estimates": SECRET * 2}
        self.hub.store.write(lambda c: c.execute(schema.kept_estimates.insert().values(**kept)))

    def found(self) -> list[str]:
        """Files of the home folder in which the release's bytes or the answer's are."""
        self.hub.store.close()
        inside = self.bytes[100:400]
        files = [path for path in self.home.rglob("*") if path.is_file()]
        return [path.name for path in files if any(part in path.read_bytes() for part in (inside, SECRET))]


@pytest.fixture
def held(tmp_path):
    made = Held(tmp_path)
    yield made
    made.hub.store.close()


def test_what_is_kept_no_longer_is_deleted_and_log_and_receipt_stay(held):
    store = held.hub.store
    assert delete_due(store, held.home, LAST) == ()
    assert len(store.releases()) == 1
    assert delete_due(store, held.home, AFTER) == ("mini",)
    assert delete_due(store, held.home, AFTER) == (), "once"
    (one,) = deleted(store)
    assert (one.bundles, one.answers, one.until) == ((held.digest,), 1, LAST.isoformat())
    assert store.releases() == ()
    assert Analysts(store).answer("mini", "ab" * 32) is None
    assert store.verify_log() == store.entries()
    store.verify_signatures()
    assert store.release(store.releases(withdrawn=True)[0].release_id).receipt.study == "mini"
    assert held.found() == []


def test_killed_while_it_deletes_a_coordinator_has_not_begun_or_brings_it_to_its_end(held):
    for place, files in (("before_commit", True), ("logged", True), ("erased", False)):
        step = ("steps", "delete what is due", held.home, AFTER)
        assert exit_code(*step, place=f"retention.{place}") == -signal.SIGKILL
        assert len(deleted(held.hub.store)) == (place != "before_commit")
        assert (held.home / "bundles" / f"{held.digest}.zip").exists() == files
        assert held.hub.store.verify_log() == held.hub.store.entries()
    with held.hub.serve():
        pass
    assert held.found() == []


def test_a_backup_of_before_does_not_bring_back_what_was_deleted(held, tmp_path):
    lead = SigningKey.generate()
    given = {"leads": {"lead": lead.public}, "software": "0"}
    made, _, _ = backup.back_up(held.config, tmp_path / "backup.tar", today=TODAY, **given)
    assert made.releases == 1
    assert delete_due(held.hub.store, held.home, AFTER) == ("mini",)
    backup.restore(tmp_path / "backup.tar", held.home, key=lead, replace=True, reason="a fire", day=lambda _: AFTER)
    with closing(Store.open(held.home)) as store:
        assert [one.study for one in deleted(store)] == ["mini"]
        assert store.verify_log() == store.entries()
    assert held.found() == []
    again, _, _ = backup.back_up(held.config, tmp_path / "after.tar", today=AFTER, **given)
    assert again.releases == 0


def test_what_was_deleted_at_the_home_that_is_replaced_comes_not_back_before_its_day_in_the_backup(held, tmp_path):
    """A later version may have brought the day forward since."""
    lead = SigningKey.generate()
    backup.back_up(held.config, tmp_path / "backup.tar", leads={"lead": lead.public}, software="0", today=TODAY)
    assert delete_due(held.hub.store, held.home, AFTER) == ("mini",)
    held.hub.store.close()
    backup.restore(tmp_path / "backup.tar", held.home, key=lead, replace=True, reason="a fire", day=lambda _: TODAY)
    with closing(Store.open(held.home)) as store:
        assert store.releases() == ()
        assert [one.bundles for one in deleted(store)] == [(held.digest,)]
    assert held.found() == []


def test_the_day_comes_by_itself_and_the_proof_is_of_the_log(held, tmp_path, monkeypatch, capsys):
    clock = Clock(tmp_path, monkeypatch)
    assert main(["--home", str(held.home), "plan", "delete", "mini", "--json"]) == 2
    capsys.readouterr()
    clock.turn((AFTER - dt.datetime.now(dt.UTC).date()).days)
    assert delete_due(held.hub.store, held.home, AFTER, dry_run=True) == ("mini",)
    monkeypatch.setattr("coordinator.services.clocks.SeenClocks.verdict", lambda *_: type("V", (), {"require": int}))
    assert main(["--home", str(held.home), "plan", "delete", "mini", "--json"]) == 0
    proof = json.loads(capsys.readouterr().out)
    from shared.base.merkle.tree import leaf_hash, verify_inclusion
    from shared.wire.tree_heads import open_head

    head = open_head(proof["head"].encode(), held.hub.authority.witness.public)
    entry = proof["entry"].encode()
    from base64 import b64decode

    nodes = [b64decode(node) for node in proof["inclusion"]]
    assert verify_inclusion(leaf_hash(entry), proof["log_index"], head.size, nodes, bytes.fromhex(head.root))
    assert json.loads(entry)["bundles"] == [held.digest] == proof["bundles"]
    assert erase(held.hub.store, held.home) == 0


def test_a_later_version_keeps_nothing_longer_than_was_said_when_it_was_given(held):
    """Sites approved that day; leads alone bring it forward, and put it off for nothing that has come."""
    store = held.hub.store
    longer = dataclasses.replace(KEPT, until=LAST + dt.timedelta(days=900))
    for version, retention in ((2, longer), (3, None)):
        newer = dataclasses.replace(ENDS, version=version, retention=retention)
        store.add_plan(sign_plan(newer, [LEAD]), newer)
        assert delete_due(store, held.home, LAST, dry_run=True) == ()
        assert delete_due(store, held.home, AFTER, dry_run=True) == ("mini",)
    assert delete_due(store, held.home, AFTER) == ("mini",)
    (one,) = deleted(store)
    assert (one.plan_hash, one.bundles, one.until) == (ENDS.hash, (held.digest,), LAST.isoformat())
    assert store.verify_log() == store.entries()
    assert held.found() == []


def test_a_flow_that_a_later_version_uses_is_kept_until_that_ones_day_and_what_trained_it_is_not(held):
    store, flow = held.hub.store, b"weights that many sites have trained"
    later = dataclasses.replace(KEPT, until=LAST + dt.timedelta(days=900))
    named = {"posture": "private", "flow": PREFIX + sha256_hex(flow)}
    uses = dataclasses.replace(ENDS, version=2, retention=later, release=LatentNoisePlan(w=0.1), **named)
    store.add_plan(sign_plan(uses, [LEAD]), uses)
    row = {"study": "mini", "plan_hash": ENDS.hash, "digest": "ab" * 32, "envelope": b"order"}
    rows = [("train", 1, b"a question"), ("finished", 1, flow)]
    asked = [{**row, "kind": kind, "round": number, "content": content} for kind, number, content in rows]
    store.write(lambda c: c.execute(schema.round_asked.insert(), asked))
    given = {"asked": 1, "site": "north", "envelope": b"said", "content": SECRET, "key": "ab" * 32}
    store.write(lambda c: c.execute(schema.round_of.insert().values(**given)))

    def kept() -> list[bytes]:
        asked = sa.select(schema.round_asked.c.content).order_by(schema.round_asked.c.number)
        answers = sa.select(schema.round_of.c.content)
        return store.read(lambda c: [bytes(one) for query in (asked, answers) for one in c.execute(query).scalars()])

    assert delete_due(store, held.home, AFTER) == ("mini",)
    assert kept() == [b"", flow, b""]
    assert delete_due(store, held.home, later.until) == ()
    assert delete_due(store, held.home, later.until + dt.timedelta(days=1)) == ("mini",)
    assert kept() == [b"", b"", b""]
    assert store.verify_log() == store.entries()


def test_what_sites_answered_to_a_version_that_only_trained_is_deleted_with_the_study(held):
    trained = dataclasses.replace(ENDS, study="trained")
    newer = dataclasses.replace(trained, version=2)
    store = held.hub.store
    for plan in (trained, newer):
        store.add_plan(sign_plan(plan, [LEAD]), plan)
    row = {"study": "trained", "plan_hash": trained.hash, "kind": "finished", "round": 1, "digest": "ab" * 32}
    store.write(lambda c: c.execute(schema.round_asked.insert().values(**row, envelope=b"order", content=SECRET)))
    assert set(delete_due(store, held.home, AFTER)) == {"mini", "trained"}
    assert delete_due(store, held.home, AFTER) == ()
    assert held.found() == []


def test_nothing_is_taken_or_made_of_what_was_deleted_meanwhile(held):
    """An upload or a question that had begun before ends after; so do deliveries of what a restore forgot."""
    store, late = held.hub.store, held.hub.seal("north", wave=2, release_id="cd" * 16)
    said = held.hub.store.releases()[0]
    question = {"study": "mini", "wave": 1, "kind": "analysis", "question": {"a": 1}, "numbers": {}}
    assert delete_due(store, held.home, AFTER) == ("mini",)
    with pytest.raises(StateRefusal, match="retention"):
        store.save_result(ResultDraft(used={held.digest: "north"}, **question), today=AFTER)
    with pytest.raises(StateRefusal, match="retention"):
        store.accept_release(
            statement=late.statement, envelope=late.envelope, receipt=said.receipt, today=AFTER, recheck=lambda: None
        )
    with held.hub.serve(), held.hub.egress("north") as egress, pytest.raises(StateRefusal, match="retention"):
        egress.send(late.envelope, late.path)
    assert not list((held.home / "staging").glob("*.part"))
    assert store.results() == ()


def test_a_deletion_that_hides_another_versions_releases_is_no_deletion_of_the_log(held):
    store = held.hub.store
    assert delete_due(store, held.home, AFTER) == ("mini",)
    assert store.verify_log() == store.entries()
    store.write(lambda c: c.execute(schema.deletions.update().values(plan_hash="ab" * 32)))
    with pytest.raises(IntegrityRefusal):
        store.verify_log()


def test_bytes_of_another_study_under_a_deleted_name_stay_and_staged_ones_go(held):
    store, late = held.hub.store, held.hub.seal("north", wave=2, release_id="cd" * 16)
    staged = held.home / "staging" / f"north.{late.statement.bundle_sha256}.json"
    staged.write_bytes(late.envelope.to_bytes())
    staged.with_suffix(".part").write_bytes(late.path.read_bytes()[:100])
    refused = {"wave": 1, "site": "north", "release_id": "ab", "code": "E", "reason": "", "day": "2026-05-01"}
    envelope = dataclasses.replace(late.statement, study="mini", bundle_sha256="cd" * 32)
    row = {**refused, "study": "mini", "bundle_sha256": "cd" * 32}
    row["envelope"] = envelope.sign([held.hub.sites["north"].release]).to_bytes()
    store.write(lambda c: c.execute(schema.quarantine.insert().values(**row)))
    other = held.home / "bundles" / f"{'cd' * 32}.zip"
    other.write_bytes(b"of another study")
    same = {**store.read(lambda c: c.execute(schema.releases.select()).mappings().one())}
    plan = dataclasses.replace(PLAN, study="other")
    store.add_plan(sign_plan(plan, [LEAD]), plan)
    same |= {"release_id": "other", "study": "other", "plan_hash": plan.hash, "bundle_sha256": "cd" * 32}
    index, _ = store.write(lambda c: append_entry(c, {"kind": "test"}))
    store.write(lambda c: c.execute(schema.releases.insert().values(**{**same, "log_index": index})))
    old = held.home / ".backup-killed" / "1"
    old.mkdir(parents=True)
    (old / "store.db").write_bytes(SECRET)
    os.utime(old.parent, (1, 1))
    assert delete_due(store, held.home, AFTER) == ("mini",)
    assert other.exists()
    assert not staged.exists()
    assert not staged.with_suffix(".part").exists()
    assert not old.exists()


def test_what_another_process_deletes_leaves_the_memory_of_those_who_answer(held, monkeypatch):
    monkeypatch.setattr("coordinator.services.analysts_port.LOOK", 0.02)
    forgotten = threading.Event()
    monkeypatch.setattr("coordinator.services.compute.workers.Workers.forget", lambda self: forgotten.set())
    with held.hub.serve(analysts="127.0.0.1:0"):
        assert not forgotten.wait(0.1)
        assert delete_due(held.hub.store, held.home, AFTER) == ("mini",)
        assert forgotten.wait(30)


# -- the end of a study -----------------------------------------------------------------------------------------------
def ended(**changes) -> StudyEnd:
    values = {
        "number": 1, "previous": GENESIS, "day": "2026-05-01", "coordinator": "hub", "study": "mini",
        "plan_hash": ENDS.hash, "reason": "It is published.",
    }  # fmt: skip
    return StudyEnd(**{**values, **changes})


def test_only_leads_end_a_study_and_once(held):
    lead = SigningKey.generate()
    leads = Leads(keys=(lead.public.hex,), threshold=1)
    with pytest.raises(SignatureRefusal):
        end_study(held.hub.store, ended().signed([SigningKey.generate()]), leads, "hub")
    with pytest.raises(StateRefusal, match="a version of its plan"):
        end_study(held.hub.store, ended(plan_hash="ab" * 32).signed([lead]), leads, "hub")
    index = end_study(held.hub.store, ended().signed([lead]), leads, "hub")
    assert end_study(held.hub.store, ended().signed([lead]), leads, "hub") == index
    with pytest.raises(StateRefusal):
        end_study(held.hub.store, ended(reason="Again.").signed([lead]), leads, "hub")
    newer = dataclasses.replace(ENDS, version=2)  # of another lead, who had begun before
    with pytest.raises(StateRefusal, match="retired"):
        held.hub.store.add_plan(sign_plan(newer, [LEAD]), newer)
    held.hub.store.add_plan(sign_plan(ENDS, [LEAD]), ENDS)
    for wrong in ({"number": 2, "previous": "ab" * 32}, {"reason": ""}, {"reason": "two\nlines"}, {"study": "a b"}):
        with pytest.raises(SchemaRefusal):
            ended(**wrong)
    assert held.hub.store.verify_log() == held.hub.store.entries()


def test_a_retired_study_leaves_every_site_and_nobody_is_let_in_again(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as hub:
        north = hub.site("north")
        north.approve_plan("mini")
        assert hub.lead("plan", "retire", "mini", "--reason", "over", "--dry-run")["sites"] == ["north"]
        words = ("plan", "retire", "mini", "--reason", "It is published.")
        assert exit_code("coordinator.cli", "--home", hub.home, *words, place="retention.ended") == -signal.SIGKILL
        assert north("grants")["studies"] == ["mini"], "not yet taken out: the verb is run again"
        done = hub.lead(*words)
        assert (done["sites"], done["kept_until"]) == (["north"], None)
        assert north("grants")["studies"] == []
        assert north("audit", "verify")["ok"]
        hub.lead("grant", "north", "--study", "mini", expect=2)
        hub.lead("invite", "west", "--study", "mini", "--out", tmp_path / "west.invitation", expect=2)
        assert hub.lead("plan", "retire", "mini", "--reason", "It is published.")["sites"] == [], "again: nothing"
        hub.lead("plan", "delete", "mini", expect=2)
        assert hub.store.verify_log() == hub.store.entries()
