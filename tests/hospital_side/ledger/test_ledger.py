"""The ledger never spends more than the cap, never forgets a charge, and finds out whatever was done to its files."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import copy
import datetime as dt
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hurry import soak
from stage.hospital_side.ledger import (
    DELTA,
    DIGEST,
    GAUSSIAN,
    KEY,
    PERSON,
    Accepted,
    Anchored,
    acknowledge,
    at_once,
    deliver,
    drawing,
    forked,
    ledger,  # noqa: F401
    reserve,
)

from shared.base.canonical import canonical_json
from shared.base.chain import GENESIS, extend_head
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    ParameterError,
    Refusal,
    StateRefusal,
    StorageRefusal,
    UnknownEvent,
)
from shared.privacy import accountant as privacy
from shared.wire.signed_messages import ANCHOR_TYPE, AnchorHead
from site_agent.ledger import chain, charge, state
from site_agent.ledger import entries as entries_module
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.ledger.drawing import SealTerms
from site_agent.lock import StateLock

LAPLACE = privacy.Laplace(scale=2.0, sensitivity=1.0)


def reopened(ledger: Ledger) -> Ledger:
    return Ledger(ledger.path, KEY, site="north")


# -- the life of a hold ---------------------------------------------------------------------------------------------
def test_a_release_walks_from_reserve_to_commit_and_every_step_is_an_entry(ledger):
    hold = deliver(ledger, drawing(ledger))
    assert (hold.state, hold.phase, hold.bundle_sha256, hold.log_index) == ("delivered", "delivered", DIGEST, 7)
    kinds = [entry.kind for entry in ledger.entries()]
    assert kinds == ["genesis", "reserve", "anchor", "drawing", "seal", "hold", "approve", "commit"]
    assert ledger.verify() == len(kinds)
    assert reopened(ledger).hold(hold.release_id) == hold


def test_the_statement_lists_every_charge_with_the_running_total(ledger):
    deliver(ledger, drawing(ledger, 1, uncovered=("the flow",)))
    ledger.burn(drawing(ledger, 2), "power cut")
    reserve(ledger, 3)
    reserve(ledger, 1, study="other")
    lines = ledger.statement("heart")
    assert [(line.wave, line.state) for line in lines] == [(1, "delivered"), (2, "burnt"), (3, "held")]
    assert lines[0].uncovered == ("the flow",)
    assert lines[1].detail == "power cut"
    assert [line.epsilon for line in lines] == [privacy.epsilon(GAUSSIAN, DELTA)] * 3
    totals = [privacy.epsilon_from_rdp(k * privacy.rdp(GAUSSIAN), DELTA) for k in (1, 2, 3)]
    assert [line.total for line in lines] == pytest.approx(totals, rel=1e-12)
    assert len(ledger.statement()) == 4


def test_a_study_is_charged_the_composed_renyi_curve(ledger):
    for wave in (1, 2, 3):
        reserve(ledger, wave)
    spent = ledger.study_total("heart", DELTA)
    assert spent.epsilon == pytest.approx(privacy.epsilon_from_rdp(3 * privacy.rdp(GAUSSIAN), DELTA), rel=1e-12)
    assert (spent.releases, spent.burnt, spent.cap) == (3, 0, 1000.0)
    assert ledger.study_total("unknown", DELTA).epsilon == 0.0


def test_pure_releases_are_charged_their_sum_when_that_is_less(ledger):
    reserve(ledger, 1, event=LAPLACE)
    reserve(ledger, 2, event=LAPLACE)
    assert ledger.study_total("heart", DELTA).epsilon == 1.0
    reserve(ledger, 3, event=GAUSSIAN)
    curve = 2 * privacy.rdp(LAPLACE) + privacy.rdp(GAUSSIAN)
    total = ledger.study_total("heart", DELTA).epsilon
    assert total == pytest.approx(privacy.epsilon_from_rdp(curve, DELTA), rel=1e-12)


def test_a_single_release_shows_its_exact_epsilon_and_is_enforced_by_renyi(ledger):
    exact = privacy.epsilon(GAUSSIAN, DELTA)
    enforced = privacy.epsilon_from_rdp(privacy.rdp(GAUSSIAN), DELTA)
    assert exact < enforced
    with pytest.raises(BudgetRefusal, match="cap"):
        reserve(ledger, cap=(exact + enforced) / 2)
    reserve(ledger, cap=enforced)
    spent = ledger.study_total("heart", DELTA)
    assert (spent.shown, spent.epsilon) == pytest.approx((exact, enforced), rel=1e-12)


@pytest.mark.fault("F16")
def test_a_release_beyond_the_cap_is_refused_and_leaves_no_entry(ledger):
    cap = privacy.epsilon_from_rdp(2 * privacy.rdp(GAUSSIAN), DELTA)
    reserve(ledger, 1, cap=cap)
    reserve(ledger, 2, cap=cap)
    before = ledger.entries()
    with pytest.raises(BudgetRefusal) as refusal:
        reserve(ledger, 3, cap=cap)
    assert refusal.value.exit_code == 11
    assert ledger.entries() == before
    assert ledger.study_total("heart", DELTA).epsilon <= cap


def test_the_site_may_cap_all_its_studies_together(ledger):
    cap = privacy.epsilon_from_rdp(2 * privacy.rdp(GAUSSIAN), DELTA)
    reserve(ledger, study="a", site_cap_epsilon=cap)
    reserve(ledger, study="b", site_cap_epsilon=cap)
    with pytest.raises(BudgetRefusal, match="site"):
        reserve(ledger, study="c", site_cap_epsilon=cap)


@pytest.mark.parametrize("end", ["burn", "reject"])
def test_a_burnt_charge_stays_spent_and_a_second_draw_is_a_second_charge(ledger, end):
    hold = drawing(ledger)
    if end == "reject":
        hold = ledger.reject(ledger.show(ledger.seal(hold, DIGEST), {}), "a rare level", by="ada")
    else:
        hold = ledger.burn(hold, "power cut")
    assert hold.phase == "burnt"
    again = reserve(ledger, 1, release_id="second")
    assert again.release_id == "second"
    assert ledger.study_total("heart", DELTA).releases == 2
    cap = privacy.epsilon_from_rdp(2 * privacy.rdp(GAUSSIAN), DELTA)
    assert ledger.study_total("heart", DELTA).epsilon == pytest.approx(cap, rel=1e-12)
    with pytest.raises(BudgetRefusal):
        reserve(ledger, 2, cap=cap)


def test_an_open_reservation_is_resumed_and_charged_once(ledger):
    first = reserve(ledger, 1, release_id="first")
    assert reserve(ledger, 1, release_id="later") == first
    ledger.mark_anchored(first, acknowledge(ledger))
    assert reserve(ledger, 1, release_id="later").state == "anchored"
    sealed = ledger.seal(ledger.start_drawing(first), DIGEST)
    assert reserve(ledger, 1, release_id="later") == sealed
    assert ledger.study_total("heart", DELTA).releases == 1


def test_an_open_reservation_is_not_resumed_under_another_plan_or_event(ledger):
    reserve(ledger)
    with pytest.raises(StateRefusal, match="same plan"):
        reserve(ledger, plan_hash="d" * 64)
    with pytest.raises(StateRefusal, match="same plan"):
        reserve(ledger, event=privacy.Gaussian(sigma=1.0, sensitivity=1.0))


def test_a_delivered_wave_is_never_released_again(ledger):
    deliver(ledger, drawing(ledger))
    with pytest.raises(StateRefusal, match="delivered"):
        reserve(ledger, release_id="again")


def test_drawing_needs_an_anchor_and_starts_once(ledger):
    hold = reserve(ledger)
    with pytest.raises(StateRefusal, match="anchored"):
        ledger.start_drawing(hold)
    ledger.mark_anchored(hold, acknowledge(ledger))
    assert ledger.start_drawing(hold).state == "drawing"
    with pytest.raises(StateRefusal):
        ledger.start_drawing(hold)
    with pytest.raises(StateRefusal):
        ledger.start_drawing(reserve(ledger))


def test_an_anchor_of_another_history_or_from_before_the_reservation_is_refused(ledger):
    before = acknowledge(ledger)
    hold = reserve(ledger)
    for receipt in (before, Anchored(2, "e" * 64), Anchored(99, acknowledge(ledger).head)):
        with pytest.raises(LedgerRefusal):
            ledger.mark_anchored(hold, receipt)
    assert ledger.hold(hold.release_id).state == "reserved"


def test_the_anchor_is_signed_and_names_site_number_and_head(ledger):
    reserve(ledger)
    payload = ledger.anchor_envelope().require(ANCHOR_TYPE, {KEY.public.key_id: KEY.public})
    last = ledger.entries()[-1]
    said = AnchorHead.from_bytes(payload)
    assert (said.site, said.seq, said.head, said.after) == ("north", last.seq, last.hash, 0)
    assert said.extends(0, GENESIS)
    assert ledger.anchor_payload() == payload


def test_links_prove_that_a_head_grew_from_an_older_one(ledger):
    reserve(ledger)
    old = acknowledge(ledger)
    drawing(ledger, 2)
    new = acknowledge(ledger)
    assert extend_head(old.head, ledger.links(old.seq)) == new.head
    assert extend_head(GENESIS, ledger.links(0)) == new.head
    assert extend_head(old.head, ledger.links(old.seq + 1)) != new.head


def test_a_seal_binds_one_digest_and_a_commit_only_that(ledger):
    hold = ledger.seal(drawing(ledger), DIGEST)
    entries = ledger.entries()
    assert ledger.seal(hold, DIGEST) == hold
    assert ledger.entries() == entries
    with pytest.raises(IntegrityRefusal):
        ledger.seal(hold, "d" * 64)
    with pytest.raises(ApprovalRefusal):
        ledger.commit(hold, Accepted(hold.release_id))
    ledger.show(hold, {})
    hold = ledger.approve(hold, name="ada", key=PERSON.public, signature=b"s" * 64, bundle_sha256=DIGEST)
    with pytest.raises(IntegrityRefusal):
        ledger.commit(hold, Accepted(hold.release_id, "d" * 64))
    with pytest.raises(IntegrityRefusal):
        ledger.commit(hold, Accepted("another"))
    done = ledger.commit(hold, Accepted(hold.release_id))
    assert ledger.commit(hold, Accepted(hold.release_id)) == done


def test_what_the_ledger_hands_out_changes_no_total_and_no_proof(ledger):
    hold = reserve(ledger)
    before = ledger.study_total("heart", DELTA)
    body = ledger.entries()[-1].body
    for change in (
        lambda: body["rdp"].__setitem__(slice(None), [0.0] * 289),
        lambda: body["rdp"].clear(),
        lambda: body.update(epsilon=0.0),
        lambda: ledger.hold(hold.release_id).event.update(sigma=1e9),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert ledger.study_total("heart", DELTA) == before
    mine = copy.deepcopy(body)
    mine["rdp"].clear()
    assert json.loads(json.dumps(body)) == body, "as any other JSON"
    # By force all the same: what was read before is not believed where the ledger is verified.
    last = ledger.entries()[-1]
    object.__setattr__(last, "signature", b"")
    with pytest.raises(LedgerRefusal):
        ledger.holds()
    assert ledger.verify() == last.seq


def test_recovery_burns_what_was_drawing_and_resumes_the_rest(ledger):
    reserve(ledger, 1)
    drawing(ledger, 2)
    ledger.seal(drawing(ledger, 3), DIGEST)
    still_open = ledger.recover()
    assert [(hold.wave, hold.state) for hold in still_open] == [(1, "reserved"), (3, "sealed")]
    assert ledger.hold("heart-2").state == "burnt"
    entries = ledger.entries()
    assert ledger.recover() == still_open
    assert ledger.entries() == entries


def test_an_unknown_event_is_refused_before_anything_is_charged(ledger):
    with pytest.raises(UnknownEvent):
        ledger.reserve(
            Reservation(
                study="heart",
                plan_hash="a" * 64,
                wave=1,
                release_id="r",
                event={"event": "telepathy"},
                delta=DELTA,
                cap_epsilon=1.0,
            )
        )
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "bad", [{"release_id": "../x"}, {"wave": 0}, {"delta": 0.0}, {"cap_epsilon": float("nan")}, {"study": ""}]
)
def test_impossible_parameters_are_refused(ledger, bad):
    with pytest.raises(ParameterError):
        reserve(ledger, **bad)


def test_the_receipt_chain_begins_with_zeros_and_follows_the_seals_of_a_study(ledger):
    assert ledger.last_receipt("heart") == "0" * 64
    ledger.seal(drawing(ledger, 1), DIGEST, SealTerms(receipt_sha256="1" * 64))
    ledger.seal(drawing(ledger, 1, study="other"), DIGEST, SealTerms(receipt_sha256="2" * 64))
    assert ledger.last_receipt("heart") == "1" * 64


@pytest.mark.fault("F15")
def test_order_does_not_depend_on_the_clock(ledger, monkeypatch):
    reserve(ledger, 1)

    monkeypatch.setattr(state, "utc_now", lambda: dt.datetime(1999, 1, 1, tzinfo=dt.UTC))
    reserve(ledger, 2)
    entries = reopened(ledger).entries()
    assert entries[-1].time < entries[-2].time
    assert [hold.wave for hold in ledger.holds()] == [1, 2]


def test_a_folder_may_have_any_name(tmp_path):
    path = tmp_path / "Haus 1? #é%20" / "ledger.db"
    reserve(Ledger.create(path, KEY, site="north"))
    assert sorted(found.name for found in path.parent.iterdir()) == ["ledger.db", "ledger.head"]


# -- what finds out a touched ledger --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET time = 'x' WHERE seq = 2",
        "DELETE FROM entries",
        "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)",
        "INSERT INTO entries SELECT seq + 5, time, kind, body, hash, hash, signature FROM entries WHERE seq = 2",
        "INSERT INTO entries SELECT seq + 1, time, kind, body, 'zz', hash, signature FROM entries WHERE seq = 2",
        "INSERT OR REPLACE INTO entries SELECT seq, 'x', kind, body, previous, hash, signature FROM entries",
    ],
)
def test_the_database_itself_refuses_to_change_an_entry(ledger, statement):
    reserve(ledger)
    connection = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|only grows"):
        connection.execute(statement)
    connection.close()
    assert ledger.verify() == 2


def tampered(ledger: Ledger, *statements: str, without_triggers: bool = True) -> None:
    """Edit the database as somebody would who owns the file: triggers away, edit, triggers back."""
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers if without_triggers else ():
        connection.execute(sql)
    connection.close()


@pytest.mark.fault("F17")
@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)"],
        ["DELETE FROM entries WHERE seq > 1"],
        ["DELETE FROM entries"],
        ["DELETE FROM entries WHERE seq = 2"],
        ["UPDATE entries SET time = '2000-01-01T00:00:00Z' WHERE seq = 2"],
        ["UPDATE entries SET body = replace(CAST(body AS TEXT), '1000.0', '9999.0') WHERE seq = 2"],
        ["UPDATE entries SET kind = 'burn' WHERE seq = 5"],
        [f"UPDATE entries SET seq = {new} WHERE seq = {old}" for old, new in ((3, 99), (4, 3), (99, 4))],
        ["UPDATE entries SET signature = (SELECT signature FROM entries WHERE seq = 2) WHERE seq = 3"],
        ["DROP TABLE entries"],
    ],
)
def test_an_edited_ledger_is_found_out(ledger, statements):
    deliver(ledger, drawing(ledger))
    tampered(ledger, *(s for s in statements if "DROP TABLE" not in s))
    if "DROP TABLE entries" in statements:
        connection = sqlite3.connect(ledger.path)
        connection.execute("DROP TABLE entries")
        connection.close()
    with pytest.raises(LedgerRefusal):
        reopened(ledger)
    with pytest.raises(LedgerRefusal):
        ledger.verify()


@pytest.mark.fault("F17")
def test_a_ledger_without_its_triggers_is_found_out(ledger):
    tampered(ledger, without_triggers=False)
    with pytest.raises(LedgerRefusal, match="triggers"):
        reopened(ledger)


@pytest.mark.fault("F17")
def test_a_chain_rebuilt_without_the_release_key_is_found_out(ledger, tmp_path):
    drawing(ledger)
    forger = SigningKey.generate()
    forged = Ledger.create(tmp_path / "forged" / "ledger.db", forger, site="north")
    shutil.copy(forged.path, ledger.path)
    with pytest.raises(LedgerRefusal):
        reopened(ledger)
    shutil.copy(forged.head_path, ledger.head_path)
    with pytest.raises(LedgerRefusal):
        reopened(ledger)


@pytest.mark.fault("F17", cases=400)
def test_every_flipped_byte_is_found_out_or_changes_nothing(ledger, tmp_path):
    hold = drawing(ledger)
    ledger.seal(hold, DIGEST)
    entries = ledger.entries()
    data = ledger.path.read_bytes()
    must = set()
    for entry in entries:
        for text in (entry.kind.encode(), entry.time.encode(), entry.hash.encode(), entry.signature):
            must.add(data.index(text))
        must.add(data.index(b'"release_id"' if entry.seq > 1 else b'"site"'))
    anywhere = random.Random(1).sample(range(len(data)), min(len(data), soak(400, len(data))))
    copy = tmp_path / "copy" / "ledger.db"
    copy.parent.mkdir()
    shutil.copy(ledger.head_path, copy.parent)
    found = 0
    for position in [*sorted(must), *anywhere]:
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        copy.write_bytes(flipped)
        for rest in copy.parent.glob("ledger.db-*"):
            rest.unlink()
        try:
            read = Ledger(copy, KEY, site="north").entries()
        except Refusal:
            found += 1
        else:
            assert position not in must, f"byte {position}"
            assert read == entries, f"byte {position}"
    assert found >= len(must)


def saved(ledger: Ledger, folder: Path) -> Path:
    shutil.copytree(ledger.path.parent, folder)
    return folder


@pytest.mark.fault("F17")
def test_an_old_copy_of_the_database_is_found_out_by_the_second_file(ledger, tmp_path):
    reserve(ledger, 1)
    backup = saved(ledger, tmp_path / "backup")
    reserve(ledger, 2)
    shutil.copy(backup / "ledger.db", ledger.path)
    with pytest.raises(LedgerRefusal, match="old copy"):
        ledger.study_total("heart", DELTA)
    with pytest.raises(LedgerRefusal, match="old copy"):
        reopened(ledger)


@pytest.mark.fault("F17")
def test_an_old_copy_that_went_on_is_found_out_by_the_second_file(ledger, tmp_path):
    reserve(ledger, 1)
    backup = saved(ledger, tmp_path / "backup")
    reserve(ledger, 2)
    head = ledger.head_path.read_bytes()
    shutil.copytree(backup, ledger.path.parent, dirs_exist_ok=True)
    for wave in (3, 4, 5):
        reserve(ledger, wave)
    ledger.head_path.write_bytes(head)
    with pytest.raises(LedgerRefusal, match="two histories"):
        reopened(ledger)


@pytest.mark.fault("F17", cases=2)
def test_both_files_from_an_old_copy_are_found_out_by_the_anchor(ledger, tmp_path):
    reserve(ledger, 1)
    backup = saved(ledger, tmp_path / "backup")
    hold = reserve(ledger, 2)
    receipt = acknowledge(ledger)
    ledger.mark_anchored(hold, receipt)
    assert ledger.verify(receipt) == 4
    shutil.copytree(backup, ledger.path.parent, dirs_exist_ok=True)
    with pytest.raises(LedgerRefusal, match="old copy"):
        reopened(ledger).verify(receipt)
    for wave in (3, 4, 5):
        reserve(ledger, wave)
    with pytest.raises(LedgerRefusal, match="two histories"):
        reopened(ledger).verify(receipt)


@pytest.mark.fault("F17")
@pytest.mark.parametrize("gone", [["ledger.db"], ["ledger.head"], ["ledger.db", "ledger.head"]])
def test_a_deleted_file_is_found_out(ledger, gone):
    reserve(ledger)
    for name in gone:
        (ledger.path.parent / name).unlink()
    with pytest.raises(LedgerRefusal):
        reopened(ledger)


@pytest.mark.fault("F17", cases=2)
def test_a_new_ledger_is_not_made_over_the_traces_of_an_old_one(ledger):
    ledger.path.unlink()
    with pytest.raises(LedgerRefusal):
        Ledger.create(ledger.path, KEY, site="north")
    ledger.head_path.unlink()
    (ledger.path.parent / "sealed" / "x").mkdir(parents=True)
    with pytest.raises(LedgerRefusal, match="sealed"):
        Ledger.create(ledger.path, KEY, site="north")


@pytest.mark.fault("F17", cases=3)
def test_a_head_file_that_says_something_else_is_found_out(ledger):
    reserve(ledger)
    whole = ledger.head_path.read_bytes()
    for data in (b"", whole[:-1], whole.replace(b'"sig":"', b'"sig":"A')):
        ledger.head_path.write_bytes(data)
        with pytest.raises(LedgerRefusal):
            reopened(ledger)


def test_a_head_file_that_lags_by_a_crash_is_brought_up(ledger):
    reserve(ledger, 1)
    old = ledger.head_path.read_bytes()
    reserve(ledger, 2)
    new = ledger.head_path.read_bytes()
    ledger.head_path.write_bytes(old)
    reopened(ledger)
    assert ledger.head_path.read_bytes() == new


def test_the_ledger_of_another_site_or_key_is_refused(ledger):
    with pytest.raises(LedgerRefusal):
        Ledger(ledger.path, KEY, site="south")
    with pytest.raises(LedgerRefusal):
        Ledger(ledger.path, SigningKey.generate(), site="north")


# -- races ----------------------------------------------------------------------------------------------------------
def race_of_threads(path: Path, first_wave: int, count: int, cap: float, start=lambda: None) -> list[str]:
    """All threads ask at once; the ids of those that were charged, and any error but the expected refusal."""
    results: list[str] = []
    ledger = Ledger(path, KEY, site="north")  # it keeps nothing between calls: each is its own connection
    gate = threading.Barrier(count + 1, timeout=300)

    def attempt(wave: int) -> None:
        gate.wait()
        try:
            results.append(reserve(ledger, wave, cap=cap).release_id)
        except BudgetRefusal:
            pass
        except BaseException as error:
            results.append(repr(error))

    threads = [threading.Thread(target=attempt, args=(first_wave + i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    start()
    gate.wait()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def last_unit(tmp_path, monkeypatch):
    """A cap for two charges, and makes ledgers on which one of them stands already."""
    # What is raced for is the charge; its price is the same number each time.
    monkeypatch.setattr(charge, "price_of", cache_of(charge.price_of))
    cap = privacy.epsilon_from_rdp(2 * privacy.rdp(GAUSSIAN), DELTA)
    first = Ledger.create(tmp_path / "first" / "ledger.db", KEY, site="north")
    reserve(first, 1, cap=cap)
    before = {path.name: path.read_bytes() for path in first.path.parent.iterdir()}

    def made(turn: int) -> Path:
        (tmp_path / f"{turn}").mkdir(mode=0o700)
        for name, data in before.items():
            (tmp_path / f"{turn}" / name).write_bytes(data)
        return tmp_path / f"{turn}" / "ledger.db"

    return cap, made


def cache_of(price):
    known: dict = {}

    def cached(event, delta):
        key = (json.dumps(event, sort_keys=True), delta)
        if key not in known:
            known[key] = price(event, delta)
        return known[key]

    return cached


def rounds_of(rounds: int) -> int:
    if rounds == 500 and not os.environ.get("TRIBUTARY_SOAK"):
        pytest.skip("set TRIBUTARY_SOAK")
    return soak(8, rounds) if rounds == 500 else soak(rounds, rounds, usual=50)


def assert_one_more_charge(path: Path, cap: float) -> None:
    """Read anew from the file: the chain is whole, and holds the first charge and one of those that raced."""
    ledger = Ledger(path, KEY, site="north")
    spent = ledger.study_total("heart", DELTA)
    assert (spent.releases, len(ledger.entries())) == (2, 3)
    assert spent.epsilon <= cap
    shutil.rmtree(path.parent)


LANES = 4  # rounds at the same time, each on its own ledger: whoever waits for a lock mostly sleeps


@pytest.mark.fault("F16")
@pytest.mark.parametrize("rounds", [8, pytest.param(500, marks=pytest.mark.soak)])
def test_of_64_threads_that_want_the_last_unit_exactly_one_gets_it(last_unit, rounds, record_property, tally):
    cap, made = last_unit

    def play(turn: int) -> None:
        path = made(turn)
        winners = race_of_threads(path, 2, 64, cap)
        assert len(winners) == 1
        assert winners[0].startswith("heart-")
        assert_one_more_charge(path, cap)

    total = rounds_of(rounds)

    def lane(number: int) -> None:
        for turn in range(number, total, LANES):
            play(turn)

    # Each lane a process: 64 threads of one process have one core between them.
    assert at_once(*(partial(lane, number) for number in range(LANES))) == [0] * LANES
    record_property("rounds", total)
    tally(cases=total, overspends=0)


@pytest.mark.fault("F16")
@pytest.mark.parametrize("rounds", [8, pytest.param(500, marks=pytest.mark.soak)])
def test_of_8_processes_with_8_threads_each_exactly_one_gets_the_last_unit(last_unit, rounds, record_property, tally):
    cap, made = last_unit
    reserve(Ledger(made(0), KEY, site="north"), 2, cap=cap)  # priced once, for all that are forked
    total, workers = rounds_of(rounds), []
    for number in range(8 * LANES):
        (their_ask, ask), (tell, their_tell) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(ask)
                for _, other, _ in workers:  # else the pipe of an earlier one never ends
                    os.close(other)
                race_when_asked(2 + 8 * (number % 8), their_ask, their_tell, cap)
            finally:
                os._exit(0)
        os.close(their_ask)
        os.close(their_tell)
        workers.append((child, ask, tell))

    def play(lane: int) -> int:
        mine, turns = workers[8 * lane : 8 * lane + 8], range(1 + lane, total + 1, LANES)
        for turn in turns:
            path = made(turn)
            for _, ask, _ in mine:
                os.write(ask, f"{path}\n".encode())
            assert [os.read(tell, 1) for _, _, tell in mine] == [b"r"] * 8, "ready, every thread on its way"
            for _, ask, _ in mine:
                os.write(ask, b"g")
            wins = [os.read(tell, 1)[0] for _, _, tell in mine]
            assert sorted(wins) == [0] * 7 + [1]
            assert_one_more_charge(path, cap)
        return len(turns)

    try:
        with ThreadPoolExecutor(LANES) as pool:
            played = sum(pool.map(play, range(LANES)))
        record_property("rounds", played)
        tally(cases=played, overspends=0)
    finally:
        for child, ask, tell in workers:
            os.close(ask)
            os.close(tell)
            os.waitpid(child, 0)


def race_when_asked(first_wave: int, ask: int, tell: int, cap: float) -> None:
    """In a forked process: race on each ledger that is named, and say how many of its threads were charged."""

    def start() -> None:
        os.write(tell, b"r")
        assert os.read(ask, 1) == b"g"

    while line := os.read(ask, 4096):
        results = race_of_threads(Path(line.decode().strip()), first_wave, 8, cap, start)
        right = all(result.startswith("heart-") for result in results)
        os.write(tell, bytes([len(results) if right else 99]))


@pytest.mark.fault("F16")
def test_of_many_agents_that_reserve_the_same_wave_all_get_the_same_hold(ledger):
    found = set()

    def attempt(number: int) -> None:
        found.add(reserve(Ledger(ledger.path, KEY, site="north"), 1, release_id=f"id-{number}").release_id)

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1
    assert ledger.study_total("heart", DELTA).releases == 1


@pytest.mark.fault("F16")
def test_processes_that_create_the_ledger_at_once_make_one(tmp_path):
    path = tmp_path / "ledger.db"
    results = []

    def create() -> None:
        results.append(Ledger.create(path, KEY, site="north").entries()[0].hash)

    threads = [threading.Thread(target=lambda: results.append(forked(create))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 4
    assert Ledger(path, KEY, site="north").verify() == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.db", "ledger.head"]


# -- the state folder -----------------------------------------------------------------------------------------------
@pytest.mark.fault("F6")
def test_a_second_agent_is_refused_and_told_which_file_and_process(tmp_path):
    code = (
        "import sys, pathlib, site_agent.lock as l\n"
        "with l.StateLock(pathlib.Path(sys.argv[1])):\n print('held', flush=True); sys.stdin.read()"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert agent.stdout.readline() == "held\n"
        with (
            pytest.raises(LockedRefusal, match=rf"lock file agent\.lock.*process id {agent.pid}"),
            StateLock(tmp_path),
        ):
            pass
        # A killed agent leaves its file behind, and no lock.
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        assert (tmp_path / "agent.lock").exists()
        with StateLock(tmp_path):
            pass
    finally:
        agent.kill()
        agent.wait()
        agent.stdin.close()
        agent.stdout.close()


@pytest.mark.fault("F6")
def test_a_lock_can_be_taken_again_after_it_was_given_back(tmp_path):
    for _ in range(2):
        with StateLock(tmp_path):
            pass


@pytest.mark.fault("F5", cases=18)
def test_a_full_disk_is_refused_and_nothing_is_lost_or_half_written(ledger):
    reserve(ledger, 1)
    whole = ledger.path.stat().st_size

    def attempt(limit: int) -> None:
        # The kernel stops every file at `limit` bytes, which is what a full disk looks like to a writer.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        refused = False
        try:
            reserve(ledger, 2)
        except StorageRefusal:
            refused = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert refused or len(ledger.entries()) == 3

    seen = set()
    for limit in [0, 1, 100, 300, 512, 4096, *range(0, whole + 8192, max(1, whole // soak(12, 30)))]:
        before = len(ledger.entries())
        assert forked(lambda limit=limit: attempt(limit)) == 0
        now = reopened(ledger)
        assert now.verify() >= before
        assert not list(ledger.path.parent.glob("*.part"))
        seen.add(now.verify())
    # With room again the same reservation goes through, once.
    assert reserve(ledger, 2).wave == 2
    assert ledger.verify() == 3
    assert 2 in seen


@pytest.mark.fault("F5", cases=7)
def test_a_disk_that_fills_up_while_the_ledger_is_made_leaves_none_or_a_whole_one(tmp_path):
    def attempt(path: Path, limit: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(StorageRefusal):
            Ledger.create(path, KEY, site="north")

    for limit in (0, 100, 600, 4096, 8192, 12288, 16384):
        path = tmp_path / f"{limit}" / "ledger.db"
        assert forked(lambda path=path, limit=limit: attempt(path, limit)) == 0
        assert not list(path.parent.glob("*.part*"))
        assert Ledger.create(path, KEY, site="north").verify() == 1
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


@pytest.mark.fault("F6", cases=2)
def test_a_folder_without_write_permission_is_refused(tmp_path):
    # Root writes everywhere, so as root the attempt is made by a user who does not.
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        ledger = Ledger.create(home / "ledger.db", KEY, site="north")
        reserve(ledger, 1)
        Path(name).chmod(0o755)
        for path in home.iterdir():
            path.chmod(0o444)
        home.chmod(0o555)

        def attempt() -> None:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            for refused in (lambda: reserve(ledger, 2), lambda: StateLock(home).__enter__()):
                with pytest.raises(StorageRefusal, match=r"ledger\.db|agent\.lock"):
                    refused()

        try:
            assert forked(attempt) == 0
        finally:
            home.chmod(0o755)
            for path in home.iterdir():
                path.chmod(0o644)
        assert reopened(ledger).verify() == 2


def test_keys_of_approvers_are_kept_with_their_signatures(ledger):
    hold = ledger.show(ledger.seal(drawing(ledger), DIGEST, SealTerms(approvals=2)), {"checks.json": "1" * 64})
    hold = ledger.approve(hold, name="ada", key=PERSON.public, signature=b"s" * 64, bundle_sha256=DIGEST)
    assert hold.state == "held"
    with pytest.raises(ApprovalRefusal):
        ledger.approve(hold, name="bob", key=PERSON.public, signature=b"s" * 64, bundle_sha256=DIGEST)
    bob = SigningKey.generate().public
    hold = ledger.approve(hold, name="bob", key=bob, signature=b"t" * 64, bundle_sha256=DIGEST)
    assert hold.state == "approved"
    assert [given.key for given in hold.approvals] == [PublicKey(PERSON.public.hex), bob]


def test_ten_thousand_entries_are_checked_once_and_read_from_memory_then(monkeypatch):
    connection, previous = sqlite3.connect("file::memory:", uri=True), GENESIS
    connection.execute(entries_module.TABLE)
    for k in range(1, 10_001):
        body = {"study": "mini", "wave": k}
        head = extend_head(previous, [entries_module.link_of(k, "2026-01-01T00:00:00Z", "charged", body)])
        row = (k, "2026-01-01T00:00:00Z", "charged", canonical_json(body), previous, head, b"0")
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        previous = head
    checked, whole = [], entries_module._entry
    monkeypatch.setattr(entries_module, "_entry", lambda number, *row: checked.append(number) or whole(number, *row))

    def read():
        return entries_module.read_entries(entries_module.read_rows(connection))

    first = read()
    assert first[-1].hash == previous
    assert read() == first
    assert checked == [*range(1, 10_001)]
    # An edit in the middle is looked at, and nothing after it is believed; so it is where the last rows are gone.
    connection.execute("DELETE FROM entries WHERE seq = 10000")
    assert read() == first[:-1]
    connection.execute("UPDATE entries SET body = ? WHERE seq = 5000", (canonical_json({"study": "mini", "wave": 1}),))
    with pytest.raises(LedgerRefusal, match="entry 5000 must follow"):
        read()
    assert checked == [*range(1, 10_001), 5000]
    connection.close()


@pytest.fixture(scope="module")
def long_ledger(tmp_path_factory):
    """Of a site that has made many releases."""
    made = Ledger.create(tmp_path_factory.mktemp("long") / "ledger.db", KEY, site="north")
    for wave in range(1, 13):
        deliver(made, drawing(made, wave))
    return made


@pytest.mark.fault("F17")
@pytest.mark.parametrize("old_sqlite", [False, True])
@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET time = '2000-01-01T00:00:00Z' WHERE seq = 3",
        "UPDATE entries SET kind = 'burn' WHERE seq = 3",
        "UPDATE entries SET kind = CAST(kind AS BLOB) WHERE seq = 3",
        "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), '4.0', '9.0') AS BLOB) WHERE seq = 2",
        "UPDATE entries SET body = CAST(body AS TEXT) WHERE seq = 3",
        "UPDATE entries SET body = x'00' || body WHERE seq = 3",
        "UPDATE entries SET previous = upper(previous) WHERE seq = 3",
        "UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 4) WHERE seq = 3",
        "UPDATE entries SET signature = zeroblob(64) WHERE seq = (SELECT max(seq) FROM entries)",
        "UPDATE entries SET seq = 0 WHERE seq = 3",
        "INSERT INTO entries SELECT 0, time, kind, body, previous, hash, signature FROM entries WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 3",
        "DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)",
        "DELETE FROM entries WHERE seq > 9",
        "DELETE FROM entries",
        "UPDATE entries SET body = x'7b7d' WHERE seq = (SELECT max(seq) FROM entries)",
    ],
)
def test_an_edit_under_a_running_agent_is_refused_at_its_next_transaction(
    long_ledger, tmp_path, monkeypatch, edit, old_sqlite
):
    monkeypatch.setattr(entries_module, "_NAMED_MEMORY", (99,) if old_sqlite else (3, 36))
    monkeypatch.setattr(entries_module, "_READ", {})
    long_ledger.copy_to(tmp_path)
    running = Ledger(tmp_path / "ledger.db", KEY, site="north")
    assert running.holds() == long_ledger.holds()
    assert running.entries()[-1].seq > 80
    reserve(running, 99)
    tampered(running, edit)
    for asked in (running.holds, partial(reserve, running, 100)):
        with pytest.raises(LedgerRefusal):
            asked()


@pytest.mark.fault("F17")
def test_no_edit_of_how_the_table_compares_its_values_hides_another(long_ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(entries_module, "_READ", {})
    long_ledger.copy_to(tmp_path)
    running = Ledger(tmp_path / "ledger.db", KEY, site="north")
    assert running.holds() == long_ledger.holds()
    loose = "replace(sql, 'hash TEXT NOT NULL', 'hash TEXT NOT NULL COLLATE NOCASE')"
    tampered(
        running,
        "UPDATE entries SET hash = upper(hash) WHERE seq = 3",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = {loose} WHERE name = 'entries'",
    )
    with pytest.raises(LedgerRefusal):
        running.holds()


@pytest.mark.fault("F17")
@pytest.mark.parametrize("seq", ["seq", "seq + 0.5"])
def test_no_row_hides_between_others_where_the_table_has_lost_its_key(long_ledger, tmp_path, monkeypatch, seq):
    monkeypatch.setattr(entries_module, "_READ", {})
    long_ledger.copy_to(tmp_path)
    running = Ledger(tmp_path / "ledger.db", KEY, site="north")
    assert running.holds() == long_ledger.holds()
    assert running.holds() == long_ledger.holds()
    tampered(
        running,
        "CREATE TABLE loose AS SELECT * FROM entries",
        f"INSERT INTO loose SELECT {seq}, time, kind, body, previous, hash, signature FROM entries WHERE seq = 3",
        "DROP TABLE entries",
        "ALTER TABLE loose RENAME TO entries",
    )
    with pytest.raises(LedgerRefusal):
        running.holds()


def test_threads_that_read_and_write_a_long_ledger_see_each_entry_once(long_ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(entries_module, "_READ", {})
    long_ledger.copy_to(tmp_path)
    ledger, before = Ledger(tmp_path / "ledger.db", KEY, site="north"), len(long_ledger.entries())

    def work(place):
        for wave in range(20):
            reserve(ledger, 1000 + 20 * place + wave)
            found = ledger.entries()
            assert [entry.seq for entry in found] == [*range(1, len(found) + 1)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(ledger.entries()) == before + 80 == ledger.verify()
    assert next(iter(entries_module._READ.values())).copied >= before, "some were compared in memory"


def opened_anew(ledger, monkeypatch) -> tuple[Ledger, list[int]]:
    """The ledger as a new process opens it, and the entries whose signature it verified."""
    monkeypatch.setattr(entries_module, "_READ", {})
    monkeypatch.setattr(state, "_FOLDED", {})
    signed, verifies = [], Ledger._require_signed
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_require_signed", lambda self, book, e: signed.append(e.seq) or verifies(self, book, e))
        return reopened(ledger), signed


def noted(ledger: Ledger, key: SigningKey = KEY, site: str = "north") -> bytes:
    """A note, signed by a key, that all signatures of a ledger as it lies there were verified."""
    with sqlite3.connect(ledger.path) as connection:
        rows = connection.execute("SELECT hash, signature FROM entries ORDER BY seq").fetchall()
    told = hashlib.sha256(
        b"".join(bytes.fromhex(head) + len(by).to_bytes(8, "big") + by for head, by in rows)
    ).hexdigest()
    body = canonical_json({"site": site, "entries": len(rows), "sha256": told})
    return Envelope.sign(chain.CHECKED_TYPE, body, [key]).to_bytes()


def of_five(ledger: Ledger) -> Ledger:
    """Five releases, delivered and opened once since, so that there is a note of what was checked."""
    for wave in range(1, 6):
        deliver(ledger, drawing(ledger, wave))
    assert reopened(ledger).checked_path.read_bytes() == noted(ledger)
    return ledger


def test_opening_a_ledger_verifies_each_signature_once_and_never_again(ledger, monkeypatch):
    for wave in range(1, 6):
        deliver(ledger, drawing(ledger, wave))
    entries = ledger.entries()
    last = len(entries)
    assert opened_anew(ledger, monkeypatch)[1] == [last, *range(1, last + 1)]
    again, signed = opened_anew(ledger, monkeypatch)
    assert signed == [last], "the last one's signature is looked at in each transaction"
    assert (again.entries(), again.holds()) == (entries, ledger.holds())
    reserve(ledger, 6)
    assert opened_anew(ledger, monkeypatch)[1] == [last + 1, last + 1]
    assert ledger.verify() == last + 1


@pytest.mark.fault("F17")
@pytest.mark.parametrize("key", [KEY, SigningKey.generate()], ids=["an-edit", "forged"])
def test_what_was_checked_is_believed_byte_for_byte_and_on_this_sites_word(ledger, monkeypatch, key):
    of_five(ledger)
    tampered(ledger, "UPDATE entries SET signature = (SELECT signature FROM entries WHERE seq = 2) WHERE seq = 3")
    if key is not KEY:
        ledger.checked_path.write_bytes(noted(ledger, key))
    with pytest.raises(LedgerRefusal, match="entry 3 must be signed"):
        opened_anew(ledger, monkeypatch)
    with pytest.raises(LedgerRefusal, match="entry 3 must be signed"):
        ledger.verify()


@pytest.mark.fault("F17")
def test_no_note_makes_a_past_charge_smaller_whoever_signed_it(ledger, monkeypatch):
    """Whoever has the release key could write another ledger, but none with the heads that were witnessed."""
    of_five(ledger)
    charge_of = "(SELECT min(seq) FROM entries WHERE kind = 'reserve')"
    edit = "CAST(replace(CAST(body AS TEXT), '\"sigma\":4.0', '\"sigma\":9.0') AS BLOB)"
    tampered(ledger, f"UPDATE entries SET body = {edit} WHERE seq = {charge_of}")
    ledger.checked_path.write_bytes(noted(ledger))
    with sqlite3.connect(ledger.path) as connection:
        assert b'"sigma":9.0' in connection.execute("SELECT body FROM entries WHERE seq = 2").fetchone()[0]
    with pytest.raises(LedgerRefusal, match="entry 2 must follow from the one before it"):
        opened_anew(ledger, monkeypatch)


@pytest.mark.fault("F17")
@pytest.mark.parametrize("whose", ["a longer one", "another site's", "another key's", "another ledger's"])
def test_a_note_of_another_ledger_has_every_signature_verified(ledger, tmp_path, monkeypatch, whose):
    """A note that is newer than a ledger put back, of a site of the same key, of the key before, of another history."""
    copy_of = tmp_path / "before"
    copy_of.mkdir()
    ledger.copy_to(copy_of)
    of_five(ledger)
    other = ledger.checked_path.read_bytes()
    if whose == "a longer one":
        for name in ("ledger.db", "ledger.head"):
            shutil.copy(copy_of / name, ledger.path.with_name(name))
        for beside in ledger.path.parent.glob("ledger.db-*"):
            beside.unlink()
        assert ledger.checked_path.exists()
    elif whose == "another ledger's":
        second = Ledger.create(tmp_path / "second" / "ledger.db", KEY, site="north")
        for wave in range(1, 7):
            deliver(second, drawing(second, wave))
        ledger = second
    else:
        other = noted(ledger, site="south") if whose == "another site's" else noted(ledger, SigningKey.generate())
    ledger.checked_path.write_bytes(other)
    last = len(ledger.entries())
    assert opened_anew(ledger, monkeypatch)[1] == [last, *range(1, last + 1)]


@pytest.mark.fault("F17")
def test_no_flipped_bit_of_the_note_is_believed_or_stops_a_ledger(ledger, monkeypatch):
    of_five(ledger)
    whole, last = ledger.checked_path.read_bytes(), len(ledger.entries())
    for place in range(0, len(whole), soak(29, 1, usual=7)):
        bit = 1 << place % 8
        ledger.checked_path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        assert opened_anew(ledger, monkeypatch)[1] == [last, *range(1, last + 1)], place
        assert ledger.checked_path.read_bytes() == whole


@pytest.mark.fault("F17")
def test_a_signature_of_any_length_is_refused_and_ends_nothing(ledger):
    """Signatures are in no head: a row with another one is found by the note, which has to be able to read it."""
    of_five(ledger)
    tampered(ledger, "UPDATE entries SET signature = zeroblob(300) WHERE seq = 2")
    with pytest.raises(LedgerRefusal):
        reopened(ledger).entries()


@pytest.mark.fault("F17")
def test_an_end_between_the_note_and_the_next_entry_leaves_both(ledger, monkeypatch):
    """The note is written apart from the ledger: killed on either side of an entry, either is as good as before."""
    of_five(ledger)
    known = len(ledger.entries())
    for wave, point in enumerate(("ledger.before_insert", "ledger.before_commit", "ledger.after_commit"), 6):

        def killed(reached, point=point):
            if reached == point:
                os._exit(9)

        monkeypatch.setattr(chain, "reach", killed)
        monkeypatch.setattr(state, "reach", killed)
        assert at_once(partial(reserve, ledger, wave)) == [9]
        monkeypatch.undo()
        again, signed = opened_anew(ledger, monkeypatch)
        known += point == "ledger.after_commit"
        assert len(again.entries()) == known
        assert set(signed) == {known}, "what the note covers is verified no second time"


@pytest.mark.parametrize("damage", [b"", b"{}", b"\x00" * 99])
def test_a_note_of_what_was_checked_that_is_damaged_or_away_costs_time_alone(ledger, monkeypatch, damage):
    whole = of_five(ledger).checked_path.read_bytes()
    ledger.checked_path.write_bytes(damage) if damage else ledger.checked_path.unlink()
    assert set(opened_anew(ledger, monkeypatch)[1]) == set(range(1, len(ledger.entries()) + 1))
    assert ledger.checked_path.read_bytes() == whole
