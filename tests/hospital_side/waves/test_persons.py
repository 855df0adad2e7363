"""Persons are told apart by identifiers that a hospital writes: what happens when it writes them otherwise."""

# ruff: noqa: F811
from __future__ import annotations

import json
import os
from dataclasses import replace

import pandas as pd
import pytest
from stage.hospital_side.ledger import KEY, acknowledge, forked, reserve
from stage.hospital_side.pipeline import deliver, kinds, quick, release, site, source  # noqa: F401
from stage.hospital_side.site_desk import PASSPHRASE, hospital  # noqa: F401
from stage.hospital_side.ticks import ticks
from stage.plans.wave_plans import grown, several

from shared.base.canonical import parse_json, sha256_hex
from shared.base.keys import SigningKey
from shared.errors import (
    BudgetRefusal,
    ConfigRefusal,
    DifferencingRefusal,
    IntegrityRefusal,
    ParameterError,
    PolicyRefusal,
    SmallN,
    StateRefusal,
)
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget
from shared.privacy import accountant as privacy
from site_agent import cli
from site_agent.config import SiteFloors
from site_agent.ledger import persons as ledger_persons
from site_agent.ledger.book import Ledger
from site_agent.ledger.entries import decided_by
from site_agent.records import table as records
from site_agent.records.identifiers import normalised
from site_agent.records.pseudonyms import pseudonym
from site_agent.release import fitting, sealed_state
from site_agent.show import export, verifier


def rewritten(table: pd.DataFrame, start: str = "x") -> pd.DataFrame:
    """The same persons, each under another identifier."""
    return table.assign(person=[f"{start}{person}" for person in table["person"]])


def charged(site, many: int) -> float:
    """What somebody has been charged who was in so many releases of the price of the first one."""
    return privacy.epsilon_from_rdp(many * pd.Series(site.ledger.holds()[0].rdp).to_numpy(), 1e-6)


def total(site) -> float:
    return site.ledger.study_total("mini", 1e-6).epsilon


# -- a refresh counts against everybody -----------------------------------------------------------------------------
def test_a_refresh_of_rewritten_identifiers_costs_everybody_and_ends_at_the_cap(quick, tmp_path, plan, site):
    """Six refreshes of the same persons, under other identifiers each time, are six draws of everybody."""
    many = several(plan, 6, returning="refresh", posture="public", release=LatentNoisePlan(epsilon=0.5))
    for wave in (1, 2, 3):
        deliver(site, release(many, site, source(tmp_path, rewritten(grown(300), "x" * wave)), wave=wave))
        assert total(site) == pytest.approx(charged(site, wave), rel=1e-12)
    tight = replace(many, version=2, budget=Budget(epsilon=charged(site, 3)))
    with pytest.raises(BudgetRefusal):
        release(tight, site, source(tmp_path, rewritten(grown(300), "y")), wave=4)


# -- identifiers are normalised -------------------------------------------------------------------------------------
def numbered(*sizes: int) -> pd.DataFrame:
    """Persons whose identifiers have zeros in front."""
    table = grown(*sizes)
    return table.assign(person=[f"{k:05d}" for k in range(len(table))])


def whose(site, made) -> set[str]:
    return set(sealed_state.read_rows(site.ledger.folder(made.hold), made.hold).persons)


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_persons_whose_leading_zeros_were_dropped_are_released_once(quick, tmp_path, plan, site, returning):
    many = several(plan, returning=returning)
    first = release(many, site, source(tmp_path, numbered(300)))
    deliver(site, first)
    again = numbered(300, 80)
    again["person"] = [str(int(person)) for person in again["person"]]
    with pytest.raises(SmallN, match="new persons"):
        release(many, site, source(tmp_path, again.iloc[:300]), wave=2)
    second = release(many, site, source(tmp_path, again), wave=2)
    assert second.receipt.drawn == 80


@pytest.fixture
def of_before(monkeypatch):
    """An agent of before identifiers were normalised, until it is updated."""

    def update() -> None:
        monkeypatch.setattr(Ledger, "as_written", now)
        monkeypatch.setattr(ledger_persons, "as_written", inside)

    now, inside = Ledger.as_written, ledger_persons.as_written
    monkeypatch.setattr(Ledger, "as_written", lambda *_: True)
    monkeypatch.setattr(ledger_persons, "as_written", lambda *_: True)
    return update


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_a_study_goes_on_telling_persons_apart_as_it_began(quick, tmp_path, plan, site, of_before, returning):
    many = several(plan, returning=returning)
    first = release(many, site, source(tmp_path, numbered(300)))
    deliver(site, first)
    of_before()
    assert site.ledger.as_written("mini")
    assert not site.ledger.as_written("another")
    with pytest.raises(SmallN, match="new persons"):
        release(many, site, source(tmp_path, numbered(300)), wave=2)
    second = release(many, site, source(tmp_path, numbered(300, 80)), wave=2)
    assert second.receipt.drawn == 80
    assert second.hold.space == first.hold.space
    assert whose(site, first) == {pseudonym(f"{k:05d}", key=b"k" * 32) for k in range(300)}


def test_who_withdrew_from_a_study_before_the_update_is_not_drawn_after_it(quick, tmp_path, plan, site, of_before):
    """Nothing but the entry of the withdrawal tells by then how its pseudonyms were made."""
    gone = {pseudonym(f"{k:05d}", key=b"k" * 32) for k in range(20)}
    site.ledger.note_persons("mini", gone)
    of_before()
    made = release(several(plan), site, source(tmp_path, numbered(300)))
    assert made.receipt.n == 280
    assert not whose(site, made) & gone


def test_who_withdraws_from_a_new_study_is_known_however_written(quick, tmp_path, plan, site):
    gone = {pseudonym(normalised(name), key=b"k" * 32) for name in (" 00001", "2", "０００３")}
    site.ledger.note_persons("mini", gone)
    made = release(several(plan), site, source(tmp_path, numbered(300)))
    assert made.receipt.n == 297


# -- who trains is never released -----------------------------------------------------------------------------------
def holdout(plan, returning="append", **more):
    return several(plan, returning=returning, posture="holdout", release=LatentNoisePlan(epsilon=0.5), **more)


def bound(site, made, name: str) -> set[str]:
    return set(parse_json((site.ledger.folder(made.hold) / f"{name}.json").read_bytes()))


def test_who_trained_is_bound_at_the_drawing_like_who_is_released(quick, tmp_path, plan, site):
    many = holdout(plan)
    made = release(many, site, source(tmp_path, grown(600)))
    roles = {name: fitting.trains(many, pseudonym(name, key=b"k" * 32)) for name in grown(600)["person"]}
    expected = {pseudonym(name, key=b"k" * 32) for name, trains in roles.items() if trains}
    assert bound(site, made, "trained") == expected
    assert not bound(site, made, "population") & expected
    [entry] = [entry for entry in site.ledger.entries() if entry.kind == "drawing"]
    assert entry.body["kept"]["trained"] == len(expected)
    path = site.ledger.folder(made.hold) / "trained.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert entry.body["trained_sha256"] == sha256_hex(path.read_bytes()) == made.hold.trained_sha256
    deliver(site, made)
    later = release(many, site, source(tmp_path, grown(600, 200)), wave=2)
    assert later.receipt.flow_of == made.hold.release_id
    assert bound(site, later, "trained") == set(), "nobody trains for a wave that uses a sealed flow"


@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
@pytest.mark.parametrize("refit", [False, True])
def test_no_wave_is_released_under_another_key_where_some_train_for_life(quick, tmp_path, plan, site, returning, refit):
    """Another key makes other roles: half of those who trained the flow were released through it."""
    many = holdout(plan, returning)
    many = replace(many, waves=(many.waves[0], replace(many.waves[1], refit=refit and returning == "refresh")))
    deliver(site, release(many, site, source(tmp_path, grown(600))))
    with pytest.raises(DifferencingRefusal, match="train and are never released"):
        release(many, replace(site, snapshot_key=b"z" * 32), source(tmp_path, grown(600, 200)), wave=2)
    assert kinds(site).count("drawing") == 1
    assert site.ledger.holds()[-1].state == "anchored", "the reservation is kept"


@pytest.mark.parametrize("returning", ["append", "refresh"])
@pytest.mark.parametrize("trained_first", [True, False], ids=["trained, then released", "released, then trains"])
def test_nobody_changes_roles_whatever_the_derivation_of_roles_says(
    quick, tmp_path, plan, site, monkeypatch, returning, trained_first
):
    """The lists decide: here the rule by which roles are drawn has changed between two waves."""
    many = holdout(plan, returning)
    many = replace(many, waves=(many.waves[0], replace(many.waves[1], refit=returning == "refresh")))
    names = [pseudonym(name, key=b"k" * 32) for name in grown(600, 200)["person"]]
    first = set(names[:300])
    monkeypatch.setattr(fitting, "trains", lambda plan, person: person in first)
    deliver(site, release(many, site, source(tmp_path, grown(600))))
    then = first - {names[0]} if trained_first else first | {names[400]}
    monkeypatch.setattr(fitting, "trains", lambda plan, person: person in then)
    if returning == "append" and not trained_first:
        deliver(site, release(many, site, source(tmp_path, grown(600, 200)), wave=2))  # nobody is fitted on
        return
    with pytest.raises(PolicyRefusal, match="stay as it was") as caught:
        release(many, site, source(tmp_path, grown(600, 200)), wave=2)
    assert caught.value.given == "1 persons who would change"
    assert kinds(site).count("drawing") == 1


def test_the_ledger_itself_draws_nobody_who_trained_a_flow_that_is_used_again(tmp_path):
    ledger = Ledger.create(tmp_path / "home" / "ledger.db", KEY, site="north")

    def begun(wave, **more):
        hold = reserve(ledger, wave, touches="new", release_id=f"wave-{wave}")
        return ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)), space="s", **more)

    ledger.burn(begun(1, persons=["a"], trained=["t"]), "given up")
    with pytest.raises(PolicyRefusal, match="stay as it was"):
        begun(2, persons=["t"], trained=[], flow_of="wave-1")
    assert begun(2, persons=["a", "b"], trained=["t", "u"]).trained_sha256
    with pytest.raises(PolicyRefusal, match="stay as it was"):
        begun(3, persons=["u"], trained=["t"])
    with pytest.raises(PolicyRefusal, match="stay as it was"):
        begun(3, persons=["c"], trained=["b"])
    with pytest.raises(PolicyRefusal, match="stay as it was"):
        begun(3, persons=["u"])
    assert Ledger(ledger.path, KEY, site="north").verify() == len(ledger.entries())


def test_a_ledger_from_before_goes_on_only_where_roles_are_derived_as_they_were(
    quick, tmp_path, plan, site, monkeypatch
):
    many = holdout(plan)
    start = Ledger.start_drawing
    monkeypatch.setattr(Ledger, "start_drawing", lambda *args, trained, flow_of, **more: start(*args, **more))
    first = release(many, site, source(tmp_path, grown(600)))
    deliver(site, first)
    monkeypatch.setattr(Ledger, "start_drawing", start)
    assert not first.hold.trained_sha256
    with pytest.raises(DifferencingRefusal):
        release(many, replace(site, snapshot_key=b"z" * 32), source(tmp_path, grown(600, 200)), wave=2)
    made = release(many, site, source(tmp_path, grown(600, 200)), wave=2)
    trained = {p for p in (pseudonym(n, key=b"k" * 32) for n in grown(600)["person"]) if fitting.trains(many, p)}
    assert not whose(site, made) & trained


@pytest.mark.parametrize("step", ["before_write", "before_fsync", "before_rename", "after_rename", "after_fsync"])
def test_a_drawing_that_is_killed_while_it_binds_who_trained_has_not_begun(tmp_path, step):
    ledger = Ledger.create(tmp_path / "home" / "ledger.db", KEY, site="north")
    hold = ledger.mark_anchored(reserve(ledger, 1, touches="new"), acknowledge(ledger))

    def begin() -> None:
        os.environ["TRIBUTARY_FAILPOINT"] = f"ledger.trained.{step}"
        ledger.start_drawing(hold, ["a"], space="s", trained=["t"])

    assert forked(begin) == -9
    assert ledger.holds()[0].state == "anchored"
    assert ledger.start_drawing(hold, ["a"], space="s", trained=["t"]).state == "drawing"


def test_a_lost_list_of_who_trained_stops_the_next_wave(quick, tmp_path, plan, site):
    many = holdout(plan, "refresh")
    made = release(many, site, source(tmp_path, grown(600)))
    deliver(site, made)
    (site.ledger.folder(made.hold) / "trained.json").unlink()
    with pytest.raises(IntegrityRefusal, match="list of persons"):
        release(many, site, source(tmp_path, grown(600)), wave=2)


# -- earlier persons who have vanished ------------------------------------------------------------------------------
def confirmed(site, plan, where):
    """A steward's word for the reservation that waits, on the table that lies there."""
    waiting = site.ledger.holds()[-1]
    snapshot = records.read(where, plan.dictionary, key=site.snapshot_key).snapshot
    told = {"there": 0, "earlier": 300, "snapshot": snapshot, "name": "ada", "reason": "another ward"}
    return site.ledger.confirm_persons(waiting, **told)


@pytest.mark.parametrize("returning", ["append", "frozen"])
@pytest.mark.parametrize("posture", ["public", "holdout"])
def test_a_table_of_rewritten_identifiers_is_refused_before_the_draw(quick, tmp_path, plan, site, returning, posture):
    """Whoever pseudonymises each extract anew would release everybody again, those who trained too."""
    many = several(plan, returning=returning, posture=posture, release=LatentNoisePlan(epsilon=0.5))
    deliver(site, release(many, site, source(tmp_path, grown(600))))
    with pytest.raises(DifferencingRefusal, match="still be in the table") as caught:
        release(many, site, source(tmp_path, rewritten(grown(600))), wave=2)
    assert caught.value.given == "0 of 600", "who trained counts as who was released"
    assert "confirm-persons mini" in caught.value.next_step
    assert kinds(site).count("drawing") == 1
    assert site.ledger.holds()[-1].state == "anchored", "the reservation is kept"


@pytest.mark.parametrize("refit", [False, True])
def test_a_refresh_is_held_to_it_where_some_train_for_life_and_nowhere_else(quick, tmp_path, plan, site, refit):
    many = holdout(plan, "refresh")
    many = replace(many, waves=(many.waves[0], replace(many.waves[1], refit=refit)))
    deliver(site, release(many, site, source(tmp_path, grown(600))))
    with pytest.raises(DifferencingRefusal, match="still be in the table"):
        release(many, site, source(tmp_path, rewritten(grown(600))), wave=2)


@pytest.mark.parametrize(("share", "there", "refused"), [(None, 150, False), (None, 149, True), (0.9, 269, True)])
def test_the_share_is_half_and_a_site_may_tighten_it(quick, tmp_path, plan, site, share, there, refused):
    many, strict = several(plan), replace(site, floors=SiteFloors(still_present=share))
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    table = grown(300, 80)
    mixed = pd.concat([table.iloc[:there], rewritten(table.iloc[there:])], ignore_index=True)
    if refused:
        with pytest.raises(DifferencingRefusal, match=f"at least {100 * (share or 0.5):g} %"):
            release(many, strict, source(tmp_path, mixed), wave=2)
        return
    assert release(many, strict, source(tmp_path, mixed), wave=2).receipt.drawn == 380 - there


@pytest.mark.parametrize("share", [0.49, 1.01, True, "half"])
def test_a_site_cannot_loosen_the_share(share):
    with pytest.raises(ConfigRefusal, match="still_present"):
        SiteFloors(still_present=share)


def test_who_withdrew_has_not_vanished_nor_who_was_in_a_release_that_never_left(quick, tmp_path, plan, site):
    many = several(plan, budget=Budget(epsilon=5000.0))
    burnt = release(many, site, source(tmp_path, rewritten(grown(300), "burnt")))
    site.outbox.reject(burnt.hold.release_id, "wrong table", by="ada")
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    left = {pseudonym(name, key=b"k" * 32) for name in grown(300)["person"][:200]}
    site.ledger.note_persons("mini", left)
    table = grown(300, 80)
    assert release(many, site, source(tmp_path, table.iloc[250:]), wave=2).receipt.drawn == 80


def test_who_was_in_a_release_that_may_have_left_is_remembered_though_it_was_burnt(quick, tmp_path, plan, site):
    """Once approved its bytes may be anywhere; to burn it calls nothing back."""
    many = several(plan, budget=Budget(epsilon=5000.0))
    made = release(many, site, source(tmp_path, grown(300)))
    key = SigningKey.generate()
    hold = made.hold
    site.ledger.approve(hold, name="ada", key=key.public, signature=b"s" * 64, bundle_sha256=hold.bundle_sha256)
    site.ledger.burn(hold, "the folder was lost")
    with pytest.raises(DifferencingRefusal, match="still be in the table") as caught:
        release(many, site, source(tmp_path, rewritten(grown(300))))
    assert caught.value.given == "0 of 300"


def test_a_signature_lets_one_wave_of_other_persons_through(quick, tmp_path, plan, site):
    many = several(plan)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    other = source(tmp_path, rewritten(grown(300)))
    with pytest.raises(DifferencingRefusal):
        release(many, site, other, wave=2)
    assert confirmed(site, many, other).confirmed == 2
    with pytest.raises(DifferencingRefusal):
        release(many, site, source(tmp_path, rewritten(grown(300), "z")), wave=2)
    other = source(tmp_path, rewritten(grown(300)))
    made = release(many, site, other, wave=2)
    assert made.receipt.drawn == 300
    deliver(site, made)
    third = source(tmp_path, rewritten(grown(300), "y"))
    with pytest.raises(DifferencingRefusal):
        release(many, site, third, wave=3)


def test_a_signature_is_not_carried_over_to_the_next_wave(quick, tmp_path, plan, site):
    many = several(plan)
    deliver(site, release(many, site, source(tmp_path, grown(300))))
    other = source(tmp_path, rewritten(grown(300)))
    with pytest.raises(DifferencingRefusal):
        release(many, site, other, wave=2)
    first = confirmed(site, many, other)
    with pytest.raises(DifferencingRefusal):
        release(many, site, source(tmp_path, rewritten(grown(300), "y")), wave=3)
    carried = site.ledger.hold(first.release_id)
    assert (carried.wave, carried.merged, carried.confirmed) == (3, (2,), 2)


def test_only_a_reservation_that_waits_is_confirmed_and_with_a_reason(quick, tmp_path, plan, site):
    made = release(several(plan), site, source(tmp_path, grown(300)))
    entries = site.ledger.entries()
    with pytest.raises(StateRefusal, match="persons_confirmed"):
        site.ledger.confirm_persons(made.hold, there=0, earlier=1, snapshot="", name="ada", reason="others")
    with pytest.raises(ParameterError, match="reason"):
        site.ledger.confirm_persons(made.hold, there=0, earlier=1, snapshot="", name="ada", reason=" ")
    assert site.ledger.entries() == entries


# -- the steward's word ---------------------------------------------------------------------------------------------
CONFIRM = ("data", "confirm-persons", "mini", "--as", "dr-lind", "--reason", "the other ward")


@pytest.fixture
def waits(hospital, plan, monkeypatch):
    """A hospital whose second wave finds nobody of the first."""
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", PASSPHRASE)
    desk = hospital.joined("dr-lind").approved(several(plan)).with_table(grown(300))
    desk("release", "mini", "--wave", "1")
    [made] = desk.json("outbox", "list")["releases"]
    desk("approve", made["release_id"], "--as", "dr-lind", *ticks(desk, made["release_id"]))
    desk.with_table(rewritten(grown(300)))
    assert desk.refused("release", "mini", "--wave", "2", expect=10)["given"] == "0 of 300"
    return desk


def test_a_steward_signs_that_these_are_other_persons_and_the_wave_goes_on(waits):
    would = waits.json(*CONFIRM, "--dry-run")
    assert (would["wave"], would["earlier"], would["in_the_table"], would["dry_run"]) == (2, 300, 0, True)
    said = waits(*CONFIRM, "--dry-run")
    assert "Sign only if the table holds other persons" in " ".join(said.split())
    waits.refused("release", "mini", "--wave", "2", expect=10)
    said = " ".join(waits(*CONFIRM).split())
    assert said.index("map them back") < said.index("signed by dr-lind") or "map them back" in said
    at = cli.open_desk(waits.home)
    [entry] = [entry for entry in at.ledger.entries() if entry.kind == "persons_confirmed"]
    assert decided_by("north", entry, at.config.signers)
    assert entry.body["reason"] == "the other ward"
    waits("release", "mini", "--wave", "2")
    rows = {row["kind"]: row for row in waits.json("history", "--last", "0")["entries"]}
    assert rows["persons_confirmed"]["step"] == "other persons confirmed"
    assert rows["persons_confirmed"]["who"] == "dr-lind"
    assert waits.json("audit", "verify")["decisions"] == 1
    files = export.record(at, "mini")
    assert verifier.examine(files, "mini")["decisions"] == 1
    told = str(next(one for one in json.loads(files["ledger.json"]) if one.get("kind") == "persons_confirmed"))
    assert "'earlier'" not in told, "counts of records are told to nobody outside"


def test_it_is_refused_where_nothing_waits_and_where_nobody_has_vanished(waits):
    waits.with_table(grown(300, 80))
    assert "vanished" in waits.refused(*CONFIRM, expect=2)["must"]
    waits("release", "mini", "--wave", "2")
    assert "no reservation" in waits.refused(*CONFIRM, expect=2)["given"]
    waits.refused("data", "confirm-persons", "mini", "--as", "mallory", "--reason", "x", expect=2)


def test_a_confirmation_that_nobody_signed_is_found(waits):
    at = cli.open_desk(waits.home)
    [_, hold] = at.ledger.holds()
    at.ledger.confirm_persons(hold, there=0, earlier=300, snapshot="", name="dr-lind", reason="other persons")
    waits.refused("audit", "verify", expect=30)
    with pytest.raises(verifier.Wrong, match="persons_confirmed"):
        verifier.examine(export.record(at, "mini"), "mini")


@pytest.mark.parametrize(("place", "wave"), [(1, 3), (0, 1)], ids=["of another wave", "after the draw"])
def test_agent_and_stranger_both_refuse_a_confirmation_where_none_may_stand(waits, place, wave):
    ledger = cli.open_desk(waits.home).ledger
    body = {"release_id": ledger.holds()[place].release_id, "wave": wave, "name": "dr-lind", "reason": "x"}
    told = [{"seq": one.seq, "kind": one.kind, "body": one.body} for one in ledger.entries()]
    assert verifier.lives(told) == []
    with pytest.raises(verifier.Wrong):
        verifier.lives([*told, {"seq": len(told) + 1, "kind": "persons_confirmed", "body": body}])
    with pytest.raises(StateRefusal), ledger.transaction(write=True) as book:
        book.append("persons_confirmed", body)
