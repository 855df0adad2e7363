"""The store: one release per place and one entry per log index, whatever races; nothing shown that is not whole."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import dataclasses
import datetime as dt
import multiprocessing
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from stage.both_sides.service import LEAD, Hub, anchor_head, small_table
from stage.coordinator_side.mini_store import (
    TODAY,
    plan,  # noqa: F401
    put,
)

import coordinator.store.store as module
from coordinator.store import schema as db
from coordinator.store.engine import append_entry
from coordinator.store.rows import receipt_of
from coordinator.store.store import Store, TableCache
from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.base.merkle.tree import leaf_hash, verify_consistency, verify_inclusion
from shared.errors import (
    CertificateRefusal,
    IntegrityRefusal,
    PlanRefusal,
    PlanRollback,
    ReceiptRefusal,
    ReplayRefusal,
    SignatureRefusal,
    StateRefusal,
    StorageRefusal,
)
from shared.plans.plan import sign_plan
from shared.releases.receipt import ReceiptDraft, write_receipt
from shared.wire.signed_messages import Withdrawal


@pytest.fixture
def hub(tmp_path, plan, database):
    hub = Hub.alike(tmp_path / "hub", plan, "north", "south")
    (hub.home / "bundles").mkdir()
    yield hub
    hub.store.close()


def edited(hub: Hub, change: str | sa.Executable) -> None:
    """Change the database behind the store's back; a change that is text, without regard to what refers to what."""
    raw = sa.create_engine(hub.store.place[0])
    try:
        with raw.begin() as c:
            if not isinstance(change, str):
                c.execute(change)
            elif c.dialect.name == "postgresql":
                c.exec_driver_sql("set session_replication_role = replica")
                c.exec_driver_sql(change.replace("as blob", "as bytea"))
            else:
                c.exec_driver_sql(change)
    finally:
        raw.dispose()


def test_a_release_is_accepted_once_and_always_answered_alike(hub):
    sealed = hub.seal("north")
    first = put(hub, sealed)
    assert (first.log_index, first.accepted_day) == (0, "2026-05-01")
    again = hub.store.accept_release(
        statement=sealed.statement,
        envelope=sealed.envelope.also_signed(SigningKey.generate()),
        receipt=sealed.receipt,
        today=TODAY + dt.timedelta(days=9),
    )
    assert again == first == hub.store.accepted(sealed.statement)
    assert hub.store.release(sealed.statement.release_id).acceptance == first
    assert hub.store.by_bundle(sealed.statement.bundle_sha256).acceptance == first
    assert hub.store.by_bundle("0" * 64) is None
    with pytest.raises(StateRefusal):
        hub.store.release("unknown")


def test_what_was_accepted_is_there_when_the_store_is_opened_again(hub, database):
    first = put(hub, hub.seal("north"))
    again = Store.open(hub.home)
    assert again._engine.dialect.name == database
    assert [release.acceptance for release in again.releases("mini", 1)] == [first]
    assert again.releases("other") == again.releases("mini", 2) == ()
    assert [site.site for site in again.sites()] == ["north", "south"]
    again.close()


def test_the_database_itself_refuses_a_second_release_in_one_place(hub):
    """The rule is a constraint: code that forgot to look could still not break it."""
    put(hub, hub.seal("north"))
    hub.store.add_anchor(anchor_head("north", 1), Envelope.sign("x", b"y", [SigningKey.generate()]))  # log entry 1
    row = dict(hub.store.read(lambda c: c.execute(sa.select(db.releases)).mappings().one()))
    for changes in ({"release_id": "x", "log_index": 1}, {"release_id": "x", "bundle_sha256": "y", "log_index": 1}):
        with pytest.raises(sa.exc.IntegrityError, match=r"(?i)unique"):
            edited(hub, db.releases.insert().values({**row, **changes}))
    other = hub.seal("north", release_id="cd" * 16, table=small_table(seed=3))
    with pytest.raises(ReplayRefusal):
        put(hub, other)
    assert hub.store.verify_log() == 2


def test_sqlite_flushes_every_commit(hub, database):
    if database != "sqlite":
        pytest.skip("PostgreSQL's own settings say so")
    with hub.store._engine.connect() as connection:
        assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("pragma synchronous").scalar() == 2
        assert connection.exec_driver_sql("pragma foreign_keys").scalar() == 1


def test_threads_that_accept_at_once_build_one_chain(hub):
    sealed = [
        hub.seal(site, wave=wave, release_id=f"{site[0]}{wave:02d}" * 8, table=small_table(seed=wave))
        for wave in range(1, 9)
        for site in ("north", "south")
    ]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda item: put(hub, item), sealed * 3))
    assert sorted({answer.log_index for answer in answers}) == list(range(16))
    assert len(set(answers)) == len(hub.store.releases()) == 16
    assert hub.store.verify_log() == 16


def _race(home: str, site: str, start: int) -> None:
    store = Store.open(module.Path(home))
    envelope = Envelope.sign("x", b"y", [SigningKey.generate()])
    for seq in range(start, start + 15):
        store.add_anchor(anchor_head(site, seq), envelope)
    store.close()


def test_processes_that_write_at_once_build_one_chain(hub):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_race, args=(str(hub.home), f"site-{k}", 1)) for k in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert hub.store.verify_log() == 45


def test_plans_grow_and_never_change(hub, plan):
    second = dataclasses.replace(plan, version=3)
    hub.store.add_plan(sign_plan(second, [LEAD]), second)
    assert hub.store.plan("mini").plan == second
    assert hub.store.plan("mini", 1).plan == plan
    more = sign_plan(second, [LEAD, SigningKey.generate()])
    hub.store.add_plan(more, second)
    assert hub.store.plan("mini").envelope == more
    assert [stored.plan.version for stored in hub.store.plans()] == [1, 3]
    skipped = dataclasses.replace(plan, version=2)
    with pytest.raises(PlanRollback):
        hub.store.add_plan(sign_plan(skipped, [LEAD]), skipped)
    changed = dataclasses.replace(second, title="Another")
    with pytest.raises(PlanRefusal, match="one plan"):
        hub.store.add_plan(sign_plan(changed, [LEAD]), changed)
    with pytest.raises(SignatureRefusal):
        hub.store.add_plan(sign_plan(plan, [LEAD]), second)
    for study, version in (("other", None), ("mini", 2)):
        with pytest.raises(PlanRefusal):
            hub.store.plan(study, version)


def test_only_the_hash_of_a_token_is_kept(hub):
    token = hub.invite("west").token
    rows = [
        row for table in db.meta.sorted_tables for row in hub.store.read(lambda c, t=table: c.execute(t.select()).all())
    ]
    assert sha256_hex(token.encode()) in str(rows)
    assert token not in str(rows)
    assert all(token.encode() not in path.read_bytes() for path in hub.home.glob("store.db*"))


def test_a_site_is_accepted_by_fingerprint_only_and_refused_only_while_pending(hub):
    site = hub.store.enrolment("north")
    assert site.state == "accepted"
    assert hub.store.accept_site("north", site.fingerprint.upper()) == site
    with pytest.raises(SignatureRefusal):
        hub.store.accept_site("north", "0000 0000")
    with pytest.raises(StateRefusal):
        hub.store.refuse_site("north", "late")
    with pytest.raises(StateRefusal, match="join"):
        hub.store.accept_site("nowhere", "0000")
    assert hub.store.require_site("north", "1").site == "north"
    with pytest.raises(CertificateRefusal):
        hub.store.require_site("nowhere", "1")


def test_a_revocation_stands_in_the_log_and_ends_the_certificate(hub):
    from cryptography import x509

    site = hub.store.enrolment("north")
    serial = f"{x509.load_pem_x509_certificate(site.certificate_pem.encode()).serial_number:x}"
    assert hub.store.revoke_site("north").state == "revoked"
    hub.store.revoke_site("north")
    assert hub.store.verify_log() == 1
    hub.join("north")
    with pytest.raises(CertificateRefusal):
        hub.store.require_site("north", serial)
    with pytest.raises(StateRefusal):
        hub.store.revoke_site("nowhere")


def test_a_quarantined_release_keeps_its_first_reason_and_is_not_read(hub):
    sealed = hub.seal("north")
    common = {"statement": sealed.statement, "envelope": sealed.envelope, "today": TODAY}
    first = hub.store.quarantine(refusal=ReceiptRefusal("ε must be what its event gives", given="another"), **common)
    again = hub.store.quarantine(refusal=IntegrityRefusal("something else"), **common)
    assert first == again
    assert (type(first.refusal), str(first.refusal)) == (
        ReceiptRefusal,
        "ε must be what its event gives, got another.",
    )
    assert hub.store.releases() == ()
    assert list(hub.store.tables("mini", 1)) == []
    [held] = hub.store.holdings("mini", "north")
    assert held.code == "E_RECEIPT"
    assert hub.store.holdings("mini", "south") == hub.store.holdings("other", "north") == ()


def test_the_tables_that_were_read_last_are_kept_as_far_as_there_is_room(monkeypatch):
    monkeypatch.setattr(module, "TABLES_KEPT", 2000)
    kept, table = TableCache(), pd.DataFrame({"sbp": np.zeros(100)})
    for digest in ("0" * 64, "1" * 64, "1" * 64, "2" * 64):
        kept.keep(digest, "state", table)
    assert [kept.get(f"{one}" * 64, "state") is not None for one in range(3)] == [False, True, True]
    kept.forget("1" * 64)
    kept.keep("3" * 64, "state", table)
    assert kept.get("2" * 64, "state").equals(table)
    assert kept.get("2" * 64, "touched since") is None


def test_a_bundle_changed_or_lost_on_disk_is_found_when_it_is_read(hub):
    sealed = hub.seal("north")
    put(hub, sealed)
    path = hub.home / "bundles" / f"{sealed.statement.bundle_sha256}.zip"
    other = hub.seal("north", table=small_table(seed=4), release_id=sealed.statement.release_id)
    path.write_bytes(other.path.read_bytes())
    with pytest.raises(IntegrityRefusal):
        list(hub.store.tables("mini", 1))
    path.unlink()
    with pytest.raises(IntegrityRefusal, match="where bundles are kept"):
        list(hub.store.tables("mini", 1))


@pytest.mark.fault("I8", log_lies=1)
@pytest.mark.parametrize(
    "edit",
    [
        "update log set entry = cast('{}' as blob) where \"index\" = 1",
        "update log set root = '" + "0" * 64 + '\' where "index" = 2',
        'delete from log where "index" = 0',
        "update releases set log_index = 2 where log_index = 0",
        "update releases set log_index = 17 where log_index = 0",
    ],
)
def test_an_edited_log_does_not_verify(hub, edit):
    put(hub, hub.seal("north"))
    envelope = Envelope.sign("x", b"y", [SigningKey.generate()])
    for seq in (1, 2):
        hub.store.add_anchor(anchor_head("north", seq), envelope)
    assert hub.store.verify_log() == 3
    edited(hub, edit)
    with pytest.raises(IntegrityRefusal):
        hub.store.verify_log()


def test_a_site_can_prove_that_its_release_is_in_a_log_that_only_grew(hub):
    acceptance = put(hub, hub.seal("north"))
    envelope = Envelope.sign("x", b"y", [SigningKey.generate()])
    for seq in range(1, 6):
        hub.store.add_anchor(anchor_head("north", seq), envelope)
    entries = hub.store.log()
    size, last = len(entries), bytes.fromhex(entries[-1].root)
    leaf = leaf_hash(entries[acceptance.log_index].entry)
    assert verify_inclusion(leaf, acceptance.log_index, size, hub.store.prove(acceptance.log_index), last)
    old = acceptance.log_index + 1
    growth = hub.store.prove_growth(old)
    assert verify_consistency(old, size, growth, bytes.fromhex(acceptance.log_root), last)


def test_a_database_that_cannot_be_opened_is_a_refusal_without_its_path(tmp_path):
    with pytest.raises(StorageRefusal) as caught:
        Store(f"sqlite:///{tmp_path}/missing/folder/store.db")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.fault("F5")
def test_a_database_that_is_full_is_a_refusal_and_changes_nothing(hub, database):
    if database != "sqlite":
        pytest.skip("PostgreSQL has no such limit")
    put(hub, hub.seal("north"))
    pages = "pragma max_page_count = 1"  # no page may be added: the database's own form of a full disk
    sa.event.listen(hub.store._engine, "begin", lambda connection: connection.exec_driver_sql(pages))

    def fill() -> None:
        for wave in range(2, 100):
            put(hub, hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave)))
            accepted.append(wave)

    accepted = [1]
    with pytest.raises(StorageRefusal):
        fill()
    hub.store.close()
    again = Store.open(hub.home)
    assert [release.wave for release in again.releases()] == accepted
    assert again.verify_log() == len(accepted) < 99
    again.close()


@pytest.mark.fault("I8", log_lies=1)
@pytest.mark.parametrize(
    ("hide", "what"),
    [
        ("delete from releases", "release"),
        ("delete from withdrawals", "withdrawal"),
        ("delete from revoked", "revocation"),
        ("delete from wave_events where kind = 'wave_reopened'", "wave_reopened"),
        ("delete from anchors where seq = 1", "anchor"),
    ],
)
def test_a_row_that_was_hidden_is_missed_by_its_entry(hub, hide, what):
    put(hub, hub.seal("north"))
    gone = hub.seal("south", release_id="cd" * 16)
    put(hub, gone)
    said = {name: getattr(gone.statement, name) for name in ("study", "site", "wave", "release_id", "bundle_sha256")}
    back = Withdrawal(**said, reason_code="consent")
    hub.store.withdraw(withdrawal=back, envelope=back.sign([hub.sites["south"].release]), today=TODAY)
    envelope = Envelope.sign("x", b"y", [SigningKey.generate()])
    for seq in (1, 2):
        hub.store.add_anchor(anchor_head("north", seq), envelope)
    hub.store.close_wave("mini", 1, expected=["north"], reason="late", today=TODAY)
    hub.store.reopen_wave("mini", 1, reason="after all", today=TODAY)
    hub.store.revoke_site("south")
    whole = hub.store.verify_log()
    edited(hub, hide)
    with pytest.raises(IntegrityRefusal, match="what it is about") as caught:
        hub.store.verify_log()
    assert f", {what}, and no such {what} in the database" in caught.value.given
    assert hub.store.entries() == whole


def test_what_a_reading_asks_further_is_of_the_same_moment(hub):
    store = hub.store

    def work(c):
        before = store.entries()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.write, lambda own: append_entry(own, {"kind": "test"})).result()
        assert store.read(lambda own: own) is c
        assert store.entries() == before
        assert store.tree().size == before + 1, "the log's tree is of what is committed"
        return before

    before = store.read(work)
    assert store.entries() == before + 1


def test_what_is_asked_while_writing_is_as_that_will_leave_it_and_goes_where_it_is_given_up(hub):
    store, before = hub.store, hub.store.entries()

    def work(c):
        append_entry(c, {"kind": "test"})
        assert store.read(lambda own: own) is c
        assert store.entries() == before + 1
        assert store.tree().size == before, "what may yet be given up is in no proof"
        raise StateRefusal("a test must be given up", given="one that is")

    with pytest.raises(StateRefusal):
        store.write(work)
    assert store.entries() == before == store.tree().size
    assert store.verify_log() == before


def test_a_delivery_asks_the_database_in_few_transactions(hub):
    begun = []
    with hub.serve():
        sa.event.listen(hub.running.store._engine, "begin", begun.append)
        for wave in (1, 2):
            begun.clear()  # the first says more: which head is the newest, that the site's certificate has arrived
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:032x}", table=small_table(seed=wave))
            with hub.egress("north") as egress:
                egress.send(sealed.envelope, sealed.path)
    assert 0 < len(begun) <= 16, "50 where each question was a transaction of its own"


def test_a_transaction_that_writes_is_none_within_another(hub):
    """It would wait for the other's end, and all who write after it."""

    def twice(connection):
        return hub.store.read(lambda c: hub.store.write(lambda inner: None))

    with pytest.raises(RuntimeError, match="within another"):
        hub.store.write(twice)
    assert hub.store.write(lambda connection: 1) == 1, "and the next one is as before"


# -- what is remembered ---------------------------------------------------------------------------------------------
def receipt_bytes(plan, number, **change):
    draft = ReceiptDraft(
        wave=1, site="north", release_id=f"{number:032x}", agent_version="0.1.0", n=100, previous=f"{number:064x}"
    )
    return dataclasses.replace(write_receipt(plan, draft), **change).to_bytes()


def test_remembered_receipts_share_what_is_alike_and_stay_what_they_are_to_the_last_byte(plan):
    one, two = (receipt_of(receipt_bytes(plan, number)) for number in (1, 2))
    assert one != two
    assert receipt_of(receipt_bytes(plan, 1)) is one
    for name in ("rdp", "covered", "not_covered", "event", "parameters", "translation", "plan_hash"):
        assert getattr(one, name) is getattr(two, name)
    alike = [receipt_bytes(plan, 3, parameters={"w": number}) for number in (1, 1.0, 0, 0.0, -0.0)]
    alike += [receipt_bytes(plan, 3, rdp=(number, None)) for number in (1, 1.0, 0, 0.0, -0.0)]
    assert len({*alike}) == 10, "numbers that compare equal, and bytes that differ"
    for data in alike:
        assert receipt_of(data).to_bytes() == data
        assert receipt_of(data).hash == sha256_hex(data)


def test_a_remembered_release_takes_a_few_kilobytes(plan):
    """Of a hundred releases an hour that must be less than a megabyte."""
    many = 200
    receipt_of(receipt_bytes(plan, 100))
    tracemalloc.start()
    for number in range(many):
        receipt_of(receipt_bytes(plan, 1000 + number))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / many < len(receipt_bytes(plan, 100))
