"""What waits in the outbox leaves as the bytes a person approved, or not at all, wherever the agent is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from hurry import part_of_today, soak
from stage.hospital_side.agent_life import (
    ADA,
    AGENT,
    BOB,
    PEOPLE,
    assert_nothing_is_undercounted,
    assert_settled,
    contents,
    copied,
    quick_folder,
    reserve,
    run_agent,
)
from stage.hospital_side.ledger import Accepted, acknowledge, forked

from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    ParameterError,
    StateRefusal,
    StorageRefusal,
)
from shared.releases.receipt import Receipt, ReceiptDraft, write_receipt
from shared.releases.statement import STATEMENT_TYPE, Statement
from site_agent.ledger import chain, drawing, files, persons, state
from site_agent.ledger.book import Ledger
from site_agent.release import outbox as outbox_module
from site_agent.release.outbox import Outbox
from site_agent.release.sealed_state import FIT

BYTES = b"the sealed bytes"


@pytest.fixture(scope="module")
def template(plan) -> Receipt:
    return write_receipt(
        plan, ReceiptDraft(wave=1, site="north", release_id="r", agent_version="0.1.0", n=120, previous="0" * 64)
    )


def sealed(outbox: Outbox, receipt: Receipt, release_id="r", *, data=BYTES, approvals=1, held=True):
    ledger = outbox.ledger
    hold = reserve(ledger, receipt, release_id)
    hold = ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)))
    hold = outbox.seal(hold, data, dataclasses.replace(receipt, release_id=release_id), approvals=approvals)
    return outbox.hold(release_id, checks={"rare": "passed"}, audit={"auc": 0.5}) if held else hold


@pytest.fixture
def outbox(tmp_path) -> Outbox:
    ledger = Ledger.create(tmp_path / "ledger.db", AGENT, site="north")
    return Outbox(tmp_path, ledger, approvers=PEOPLE)


# -- approval -----------------------------------------------------------------------------------------------------
def test_approved_bytes_leave_under_the_agents_and_the_approvers_signature(outbox, template):
    hold = sealed(outbox, template)
    assert hold.state == "held"
    envelope = outbox.approve("r", ADA, "ada")
    keys = {key.key_id: key for key in (AGENT.public, ADA.public)}
    statement = Statement.from_bytes(envelope.require(STATEMENT_TYPE, keys, threshold=2))
    assert statement.bundle_sha256 == sha256_hex(BYTES) == sha256_hex(outbox.bundle("r").read_bytes())
    assert (statement.bundle_bytes, statement.recipient, statement.site) == (len(BYTES), "hub", "north")
    seal = next(entry for entry in outbox.ledger.entries() if entry.kind == "seal")
    assert statement.ledger_head == seal.hash
    assert outbox.envelope("r") == envelope
    done = outbox.delivered("r", Accepted("r", statement.bundle_sha256))
    assert done.state == "delivered"
    assert outbox.envelope("r") == envelope
    assert [hold.state for hold in outbox.list()] == ["delivered"]


def test_the_chain_says_who_approved_which_bytes(outbox, template):
    sealed(outbox, template)
    outbox.approve("r", ADA, "ada")
    outbox.delivered("r", Accepted("r", sha256_hex(BYTES)))
    by_kind = {entry.kind: entry for entry in outbox.ledger.entries()}
    body = by_kind["approve"].body
    assert (body["name"], body["key"], body["bundle_sha256"]) == ("ada", ADA.public.hex, sha256_hex(BYTES))
    assert by_kind["seal"].seq < by_kind["hold"].seq < by_kind["approve"].seq < by_kind["commit"].seq


@pytest.mark.fault("I7")
def test_nothing_leaves_before_it_is_approved(outbox, template):
    sealed(outbox, template, held=False)
    with pytest.raises(StateRefusal, match="held"):
        outbox.approve("r", ADA, "ada")
    for _ in range(2):
        with pytest.raises(ApprovalRefusal):
            outbox.envelope("r")
        with pytest.raises(ApprovalRefusal):
            outbox.delivered("r", Accepted("r", sha256_hex(BYTES)))
        outbox.hold("r", checks={}, audit={})


@pytest.mark.fault("I7", offered=1)
def test_only_a_registered_approver_with_the_registered_key_approves(outbox, template):
    sealed(outbox, template)
    outbox.approvers["agent"] = AGENT.public
    for key, name in ((SigningKey.generate(), "ada"), (ADA, "eve"), (BOB, "ada"), (AGENT, "agent")):
        with pytest.raises(ApprovalRefusal):
            outbox.approve("r", key, name)
    assert outbox.get("r").approvals == ()


def test_two_person_approval_needs_two_different_people(outbox, template):
    sealed(outbox, template, approvals=2)
    outbox.approve("r", ADA, "ada")
    with pytest.raises(ApprovalRefusal, match="1"):
        outbox.envelope("r")
    outbox.approvers["ada-again"] = ADA.public
    for name in ("ada", "ada-again"):
        with pytest.raises(ApprovalRefusal, match="different"):
            outbox.approve("r", ADA, name)
    envelope = outbox.approve("r", BOB, "bob")
    assert envelope.verified_by({k.key_id: k for k in PEOPLE.values()}) == {ADA.public.key_id, BOB.public.key_id}
    assert outbox.envelope("r") == envelope


def test_approving_twice_as_the_same_person_changes_nothing(outbox, template):
    sealed(outbox, template)
    first = outbox.approve("r", ADA, "ada")
    entries = outbox.ledger.entries()
    assert outbox.approve("r", ADA, "ada") == first
    assert outbox.ledger.entries() == entries


@pytest.mark.fault("F9", offered=1)
@pytest.mark.parametrize("when", ["before approval", "after approval"])
@pytest.mark.parametrize("data", [BYTES[:-1] + b"x", BYTES + b"x", BYTES[:-1], None])
def test_a_changed_bundle_is_neither_approved_nor_sent(outbox, template, when, data):
    sealed(outbox, template)
    path = outbox.bundle("r")
    if when == "after approval":
        outbox.approve("r", ADA, "ada")
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(IntegrityRefusal):
        outbox.approve("r", ADA, "ada")
    with pytest.raises(IntegrityRefusal if when == "after approval" else ApprovalRefusal):
        outbox.envelope("r")
    with pytest.raises(IntegrityRefusal):
        outbox.bundle("r")


@pytest.mark.parametrize("name", ["checks.json", "audit.json"])
def test_documents_changed_since_they_were_shown_stop_the_approval(outbox, template, name):
    sealed(outbox, template)
    path = outbox.folder("r") / name
    path.write_bytes(path.read_bytes().replace(b"r", b"s", 1))
    with pytest.raises(IntegrityRefusal, match=name):
        outbox.approve("r", ADA, "ada")
    outbox.hold("r", checks={"rare": "passed"}, audit={"auc": 0.5})
    outbox.approve("r", ADA, "ada")


def test_the_documents_name_the_bundle_and_other_ones_void_approvals(outbox, template):
    sealed(outbox, template, approvals=2)
    outbox.approve("r", ADA, "ada")
    checks = json.loads((outbox.folder("r") / "checks.json").read_bytes())
    assert checks == {"release_id": "r", "bundle_sha256": sha256_hex(BYTES), "content": {"rare": "passed"}}
    assert len(outbox.hold("r", checks={"rare": "passed"}, audit={"auc": 0.5}).approvals) == 1
    assert outbox.hold("r", checks={"rare": "warning"}, audit={"auc": 0.5}).approvals == ()


def test_a_rejected_release_is_never_sent_and_stays_paid_for(outbox, template):
    sealed(outbox, template)
    hold = outbox.reject("r", "a rare level", by="ada")
    assert (hold.state, hold.phase, hold.reason) == ("rejected", "burnt", "a rare level")
    for attempt in (
        lambda: outbox.approve("r", ADA, "ada"),
        lambda: outbox.envelope("r"),
        lambda: outbox.send_back("r", "why", by="ada"),
        lambda: outbox.reject("r", "again", by="ada"),
        lambda: outbox.hold("r", checks={}, audit={}),
        lambda: outbox.delivered("r", Accepted("r", sha256_hex(BYTES))),
    ):
        with pytest.raises(StateRefusal):
            attempt()
    assert outbox.ledger.study_total(template.study, template.delta).releases == 1


def test_a_burnt_release_is_not_approved(outbox, template):
    hold = sealed(outbox, template)
    outbox.ledger.burn(hold, "quarantined")
    with pytest.raises(StateRefusal):
        outbox.approve("r", ADA, "ada")
    with pytest.raises(StateRefusal):
        outbox.envelope("r")


def test_sending_back_voids_approvals_and_keeps_the_bytes(outbox, template):
    sealed(outbox, template, approvals=2)
    outbox.approve("r", ADA, "ada")
    hold = outbox.send_back("r", "explain the warning", by="bob")
    assert (hold.state, hold.reason, hold.approvals) == ("sent_back", "explain the warning", ())
    assert outbox.bundle("r").read_bytes() == BYTES
    outbox.approve("r", ADA, "ada")
    outbox.approve("r", BOB, "bob")
    assert outbox.get("r").state == "approved"


def test_an_approved_release_can_no_longer_be_rejected(outbox, template):
    sealed(outbox, template)
    outbox.approve("r", ADA, "ada")
    with pytest.raises(StateRefusal):
        outbox.reject("r", "too late", by="bob")


def test_a_decision_states_its_reason(outbox, template):
    sealed(outbox, template)
    with pytest.raises(ParameterError):
        outbox.reject("r", "  ", by="ada")


def test_a_statement_file_is_only_a_copy(outbox, template):
    sealed(outbox, template)
    envelope = outbox.approve("r", ADA, "ada")
    path = outbox.folder("r") / "statement.json"
    assert Envelope.from_bytes(path.read_bytes()) == envelope
    path.write_bytes(b"{}")
    assert outbox.envelope("r") == envelope
    outbox.recover()
    assert Envelope.from_bytes(path.read_bytes()) == envelope


# -- sealing --------------------------------------------------------------------------------------------------------
def test_a_charge_is_sealed_with_one_set_of_bytes(outbox, template):
    hold = sealed(outbox, template, held=False)
    entries = outbox.ledger.entries()
    receipt = dataclasses.replace(template, release_id="r")
    assert outbox.seal(hold, BYTES, receipt) == hold
    assert outbox.ledger.entries() == entries
    with pytest.raises(IntegrityRefusal):
        outbox.seal(hold, b"a second draw", receipt)
    assert outbox.bundle("r").read_bytes() == BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"study": "other"},
        {"wave": 2},
        {"plan_hash": "f" * 64},
        {"site": "south"},
        {"delta": 1e-5},
        {"release_id": "q"},
    ],
)
def test_a_receipt_of_another_release_is_not_sealed(outbox, template, change):
    ledger = outbox.ledger
    hold = reserve(ledger, template, "r")
    hold = ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)))
    with pytest.raises(IntegrityRefusal):
        outbox.seal(hold, BYTES, dataclasses.replace(template, **change))
    assert not outbox.root.exists()


def test_sealing_before_drawing_is_refused(outbox, template):
    hold = reserve(outbox.ledger, template, "r")
    with pytest.raises(StateRefusal):
        outbox.seal(hold, BYTES, template)
    assert not outbox.root.exists()


def test_a_whole_file_without_its_seal_is_burnt_and_deleted(outbox, template):
    ledger = outbox.ledger
    hold = reserve(ledger, template, "r")
    ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)))
    folder = outbox.folder("r")
    folder.mkdir(parents=True)
    (folder / "bundle.zip").write_bytes(BYTES)
    (folder / "bundle.zip.part").write_bytes(BYTES[:3])
    assert outbox.recover() == []
    assert ledger.hold("r").state == "burnt"
    assert list(folder.iterdir()) == []
    assert ledger.study_total(template.study, template.delta).releases == 1


@pytest.mark.fault("F4")
def test_recovery_keeps_what_is_sealed(outbox, template):
    sealed(outbox, template)
    files = {path.name: path.read_bytes() for path in outbox.folder("r").iterdir()}
    assert set(files) == {"bundle.zip", "statement.json", "checks.json", "audit.json", "outcomes.json"}
    outbox.recover()
    assert {path.name: path.read_bytes() for path in outbox.folder("r").iterdir()} == files


@pytest.mark.fault("F5")
@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_while_sealing_leaves_no_half_file_and_sealing_may_be_tried_again(
    outbox, template, monkeypatch, step
):
    ledger = outbox.ledger
    hold = reserve(ledger, template, "r")
    hold = ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)))
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as broken:
        if step == "write":
            fdopen = os.fdopen

            def full_file(handle, mode):
                out = fdopen(handle, mode)
                os.write(out.fileno(), BYTES[:4])

                class Full:
                    def __enter__(self):
                        return self

                    def __exit__(self, *_):
                        out.close()

                    def write(self, data):
                        raise full

                return Full()

            broken.setattr(files.os, "fdopen", full_file)
        else:

            def fail(*_):
                raise full

            broken.setattr(files.os, step, fail)
        with pytest.raises(StorageRefusal, match="No space left"):
            outbox.seal(hold, BYTES, template)
    assert not list(outbox.root.glob("*/*.part"))
    assert ledger.hold("r").state == "drawing"
    assert ledger.study_total(template.study, template.delta).releases == 1
    assert outbox.seal(hold, BYTES, template).state == "sealed"
    assert outbox.bundle("r").read_bytes() == BYTES


# -- kill -9 anywhere -----------------------------------------------------------------------------------------------
def killed_at(point: str, work) -> int:
    def dying() -> None:
        os.environ["TRIBUTARY_FAILPOINT"] = point
        work()

    return forked(dying)


def passed_failpoints(work, notes: Path) -> Counter:
    """How often each failpoint is passed when `work` runs in a process of its own."""

    def traced() -> None:
        seen: Counter = Counter()
        for module in (chain, drawing, files, persons, state, outbox_module):
            module.reach = lambda name: seen.update([name])
        work()
        notes.write_text(json.dumps(seen))

    assert forked(traced) == 0
    return Counter(json.loads(notes.read_text()))


def written_failpoints() -> set[str]:
    """Every failpoint in the sources, places of `write_whole` filled in."""
    text = "".join(
        Path(module.__file__).read_text() for module in (chain, drawing, files, persons, state, outbox_module)
    )
    names = set(re.findall(r'reach\(f?"([^"]+)"\)', text))
    places = {"ledger.head", "ledger.population", "outbox.statement", "outbox.checks", "outbox.audit"}
    places |= {"seal.bundle", "seal.fit", "seal.rows"}
    # `withdraw` writes as well, and so does a backup; they are no steps of a release: test_waves and test_site_backup.
    assert len(re.findall(r"write_whole\(", text)) == 1 + 8, "a new writer needs its place in this test"
    plain = {name for name in names if "{" not in name}
    return plain | {name.replace("{place}", place) for name in names - plain for place in places}


@pytest.fixture
def quick_disk(tmp_path):
    """Memory instead of a disk where there is some: a killed process loses the same, and fsync costs nothing."""
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.mark.parametrize("name", ["bundle.zip", FIT])
def test_sealed_bytes_that_a_crash_took_are_missed_before_anything_is_recovered(quick_disk, template, name):
    home = quick_disk / "home"
    home.mkdir()
    point = "outbox.statement.before_write"  # the first step after the seal
    assert killed_at(point, lambda: run_agent(home, template)) == -signal.SIGKILL
    assert_nothing_is_undercounted(home, quick_disk / "scratch", template)
    (path,) = home.glob(f"sealed/*/{name}")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(AssertionError, match=f"sealed in the ledger.*{name}"):
        assert_nothing_is_undercounted(home, quick_disk / "scratch", template)
    path.unlink()
    with pytest.raises(AssertionError, match=f"sealed in the ledger.*{name}"):
        assert_nothing_is_undercounted(home, quick_disk / "scratch", template)
    path.write_bytes(data)
    assert forked(lambda: run_agent(home, template)) == 0
    assert_settled(home, template)


@pytest.mark.fault("F1", "F4")
@pytest.mark.parametrize("repeats", [1, pytest.param(13, marks=pytest.mark.soak)])
def test_wherever_the_agent_is_killed_the_same_bytes_leave_once_or_the_charge_is_burnt(
    quick_disk, template, repeats, record_property, tally
):
    if repeats > 1 and not os.environ.get("TRIBUTARY_SOAK"):
        pytest.skip("set TRIBUTARY_SOAK")
    home, crashed, scratch = (quick_disk / name for name in ("home", "crashed", "scratch"))
    hit: Counter = Counter()

    def agent() -> None:
        run_agent(home, template)

    def start_from(saved: Path | None) -> None:
        if saved:
            copied(saved, home)
        else:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()

    def kill(point: str) -> None:
        assert killed_at(point, agent) == -signal.SIGKILL, point
        hit[point.partition(":")[0]] += 1
        assert_nothing_is_undercounted(home, scratch, template)

    def settle() -> None:
        assert forked(agent) == 0, sorted(contents(home))
        assert_settled(home, template)

    start_from(None)
    passed = passed_failpoints(agent, quick_disk / "notes")
    points = []
    for name, count in sorted(passed.items()):
        # In a hurry: around every commit, and once at every other place, early or late.
        every = repeats > 1 or name in ("ledger.before_commit", "ledger.after_commit")
        points += [f"{name}:{k}" for k in (range(1, count + 1) if every else [1 + len(points) % count])]
    rng = random.Random(3)
    for point in part_of_today(points, 12) if repeats == 1 else points * soak(1, repeats):
        start_from(None)
        kill(point)
        copied(home, crashed)
        on_restart = passed_failpoints(agent, quick_disk / "notes")
        assert_settled(home, template)
        # Killed again: at every step of the recovery, and in the soak at some step after it.
        second = [name for name in sorted(on_restart) if ".recover." in name]
        second += rng.sample(sorted(on_restart), min(1, len(on_restart))) if repeats > 1 else []
        for again in second:
            start_from(crashed)
            kill(again)
            settle()
    start_from(None)
    for _ in range(3):
        settle()
    record_property("failpoints", len(hit))
    record_property("kills", hit.total())
    names = {point: "outbox" for point in written_failpoints()}
    tally(cases=hit.total(), sites=1, bundles=hit.total(), failpoints=hit, failpoints_written=names)
    reached = {point.partition(":")[0] for point in points}
    assert set(hit) <= written_failpoints()
    assert {*reached, *(name for name in written_failpoints() if ".recover." in name)} == written_failpoints()
    assert repeats == 1 or set(hit) == written_failpoints()
