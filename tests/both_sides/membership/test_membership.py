"""Who takes part changes over the years: studies are granted, leads, approvers and keys change, and nothing is lost."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import random
import signal
import threading

import pytest
from stage.both_sides.joined import PASSPHRASE, Joined
from stage.both_sides.membership import kinds, verified
from stage.both_sides.service import Hub, anchor_head, small_table
from stage.hospital_side import site_desk
from stage.hospital_side.recovery import PLAN
from stage.processes.theatre import exit_code

from coordinator.cli import main as coordinator
from coordinator.services.membership import Members
from coordinator.store.rows import ResultDraft
from shared.base.chain import GENESIS
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
)
from shared.membership.declined import DECLINED_TYPE, DeclinedNotice, open_notice
from shared.membership.grants import Grant, open_grant
from shared.membership.key_changes import KeyChange, open_key_change
from shared.plans.plan import open_plan, sign_plan
from shared.privacy import accountant as privacy
from shared.wire.site_messages import AnchorReceipt, Chunk, OfferRequest
from site_agent.config import SiteFloors
from site_agent.decide import keys, membership
from site_agent.desk import Desk
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.records.table import person_space

hospital = site_desk.hospital


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as made:
        yield made


def grant(number: int, previous: Grant | None, **changes) -> Grant:
    values = {"coordinator": "hub", "site": "north", "study": "stroke", "granted": True, "day": "2026-05-01"}
    return Grant(number=number, previous=previous.digest if previous else GENESIS, **{**values, **changes})


# -- more studies -----------------------------------------------------------------------------------------------------
def test_an_accepted_site_enters_a_second_study_and_nothing_acts_before_its_steward_approves_the_plan(hub):
    north = hub.site("north")
    hub.publish("stroke")
    north.refused("plan", "fetch", "stroke", expect=10)
    dry = hub.lead("grant", "north", "--study", "stroke", "--dry-run")
    assert (dry["signed"], hub.members().grants("north")) == (False, ())
    said = hub.lead("grant", "north", "--study", "stroke")
    assert hub.store.verify_log() == hub.store.entries() == said["log_index"] + 1
    hub.lead("grant", "north", "--study", "stroke", expect=2)
    assert north("grants", "--dry-run")["studies"] == ["mini"], "a dry run notes nothing"
    assert north("grants")["studies"] == ["mini", "stroke"]
    row = next(row for row in north("status")["studies"] if row["study"] == "stroke")
    assert (row["granted"], row["plan"], row["approved"]) == (True, None, False)
    north("plan", "fetch", "stroke")
    north.with_table("stroke")
    assert north.refused("release", "stroke", "--wave", "1", expect=12)["code"] == "E_NOT_APPROVED"
    assert not north.desk.ledger.holds("stroke"), "nothing was charged"
    north("plan", "approve", "stroke", "--as", "dr-lind", "--understood", "local")
    assert next(row for row in north("status")["studies"] if row["study"] == "stroke")["approved"]
    assert [entry.kind for entry in north.desk.ledger.entries()][1:] == ["study_granted", "plan_approved"]
    assert north.desk.ledger.in_force("stroke")


def test_a_study_that_was_taken_away_stops_and_a_new_grant_asks_for_a_new_approval(hub):
    north = hub.site("north")
    hub.publish("stroke")
    hub.lead("grant", "north", "--study", "stroke")
    north("run", "--once")
    north.approve_plan("stroke")
    north.with_table("stroke")
    hub.lead("ungrant", "north", "--study", "stroke")
    north("run", "--once")
    assert north.desk.config.studies == ("mini",)
    row = next(row for row in north("status")["studies"] if row["study"] == "stroke")
    assert (row["granted"], row["approved"]) == (False, False)
    assert north.refused("plan", "approve", "stroke", "--as", "dr-lind", "--understood", "local", expect=10)
    assert north.refused("release", "stroke", "--wave", "1", expect=12)["code"] == "E_NOT_APPROVED"
    with north.desk.egress() as egress:
        assert egress.held("stroke").holdings == (), "what it holds of a study that it left stays to be asked for"
    hub.lead("grant", "north", "--study", "stroke")
    north("grants")
    assert not next(row for row in north("status")["studies"] if row["study"] == "stroke")["approved"]
    north("plan", "approve", "stroke", "--as", "dr-lind", "--understood", "local")
    assert north("audit", "verify")["ok"]
    assert hub.store.verify_log() == hub.store.entries()


def test_a_forged_grant_or_one_shown_again_after_its_end_is_refused_by_the_site(hub):
    lead = SigningKey.generate()
    first = grant(1, None)
    over = grant(2, first, granted=False)
    leads = {lead.public.key_id: lead.public}

    def opened(said: Grant, last: Grant | None, key: SigningKey = lead, site: str = "north") -> Grant:
        return open_grant(said.signed([key]), last=last, leads=leads, threshold=1, coordinator="hub", site=site)

    assert opened(first, None) == first
    assert opened(over, first) == over
    for said, last in ((first, first), (first, over), (grant(3, first), over), (grant(3, over), first)):
        with pytest.raises(ReplayRefusal):
            opened(said, last)
    for said in (grant(1, None, site="south"), grant(1, None, coordinator="other")):
        with pytest.raises(ReplayRefusal):
            opened(said, None)
    with pytest.raises(SignatureRefusal):
        opened(first, None, SigningKey.generate())
    other = Envelope.sign("text/plain", first.to_bytes(), [lead])
    with pytest.raises(SignatureRefusal):
        open_grant(other, last=None, leads=leads, threshold=1, coordinator="hub", site="north")


def test_a_coordinator_that_shows_a_site_a_grant_of_its_own_making_or_an_old_one_changes_nothing_there(
    hub, monkeypatch
):
    north = hub.site("north")
    hub.publish("stroke")
    hub.lead("grant", "north", "--study", "stroke")
    north("grants")
    hub.lead("ungrant", "north", "--study", "stroke")
    north("grants")
    (one, first), (_, second) = hub.members().grants("north")
    forged = grant(3, one, study="other")
    third = Grant.said(second)
    again = grant(3, third, study="stroke").signed([SigningKey.generate()])
    entries = len(north.desk.ledger.entries())
    real = type(north.desk.egress()).membership

    def showing(*envelopes):
        def shown(self, statements=()):
            reply = real(self, statements)
            return dataclasses.replace(reply, grants=tuple(given.to_bytes() for given in envelopes))

        return shown

    lead = hub.lead_key()
    for chain in ((first, second, again), (first, first), (second, first), (first, second, forged.signed([lead]))):
        monkeypatch.setattr("site_agent.egress.Egress.membership", showing(*chain))
        assert north.refused("grants", expect=30)["code"] in ("E_SIGNATURE", "E_REPLAY", "E_INTEGRITY")
    monkeypatch.setattr("site_agent.egress.Egress.membership", showing(first))
    north("grants")  # a coordinator that was put back knows less, and brings nothing back
    assert north.desk.config.studies == ("mini",)
    assert [entry.kind for entry in north.desk.ledger.entries()[entries:]] == []


def test_of_a_grant_and_its_end_at_once_each_stands_in_the_log_once_and_in_order(hub):
    hub.site("north")
    hub.publish("stroke")
    lead, leads = hub.lead_key(), hub.members().leads(hub.home)
    first = grant(1, None)
    rivals = [first, grant(1, None, day="2026-05-02"), grant(2, first, granted=False)] * 4
    out: list[object] = []

    def tell(said: Grant) -> None:
        try:
            out.append(hub.members().grant(said.signed([lead]), leads))
        except (ReplayRefusal, StateRefusal) as refusal:
            out.append(refusal.code)

    threads = [threading.Thread(target=tell, args=(said,)) for said in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = [said for said, _ in hub.members().grants("north")]
    assert [said.number for said in known] == list(range(1, len(known) + 1))
    assert len(known) in (1, 2)
    assert hub.store.verify_log() == hub.store.entries() == len(known)
    assert ("stroke" in hub.store.enrolment("north").studies) == known[-1].granted


def test_what_a_restored_coordinator_has_forgotten_of_a_site_its_site_shows_it_again(hub):
    from coordinator.store import membership as tables

    north = hub.site("north")
    hub.publish("stroke")
    hub.lead("grant", "north", "--study", "stroke")
    north("grants")
    hub.store.write(lambda c: c.execute(tables.grants.delete()))  # as a backup of before would be
    with north.desk.egress() as egress:
        membership.look(north.desk, egress)
    assert [said.study for said, _ in hub.members().grants("north")] == ["stroke"]


# -- what studies that came at different times cost together -----------------------------------------------------------
DELTA = 1e-6
EVENT = privacy.Gaussian(sigma=4.0, sensitivity=1.0)


def charged(folder, order, key, people):
    """A ledger that was charged for these (study, wave) in this order, waves of new persons, studies granted as met."""
    ledger = Ledger.create(folder / "ledger.db", key, site="north")
    last = None
    for study, wave in order:
        if study != "a" and study not in ledger.membership().studies:
            last = grant(len(ledger.membership().grants) + 1, last, study=study)
            ledger.note_grant(last.signed([key]))
        hold = ledger.reserve(
            Reservation(
                study=study,
                plan_hash="ab" * 32,
                wave=wave,
                release_id=f"{study}{wave}",
                event=EVENT.to_canonical(),
                delta=DELTA,
                cap_epsilon=100.0,
                touches="new",
            )
        )
        entry = ledger.entries()[-1]
        hold = ledger.mark_anchored(hold, AnchorReceipt(seq=entry.seq, head=entry.hash, index=0))
        ledger.start_drawing(hold, people[study, wave], space="normalised-x")
    return ledger


def test_the_total_over_studies_is_the_same_in_every_order_of_grants_and_waves_and_bounds_each_person(tmp_path):
    key, rng = SigningKey.generate(), random.Random(3)
    everybody = [f"{k:032x}" for k in range(12)]
    people = {}
    for study in "abc":
        shuffled = rng.sample(everybody, 12)
        people |= {(study, 1): shuffled[:6], (study, 2): shuffled[6:9]}
    turns = [
        turn for turn in itertools.permutations(people) if all(turn.index((s, 1)) < turn.index((s, 2)) for s in "abc")
    ]
    totals, apart = set(), set()
    curve = privacy.rdp(EVENT)
    worst = max(sum(person in drawn for drawn in people.values()) for person in everybody)
    for number, order in enumerate(rng.sample(turns, 12)):
        folder = tmp_path / str(number)
        ledger = charged(folder, order, key, people)
        totals.add(ledger.site_total(DELTA))
        ledger.tell_apart("a", "c", name="dr-lind", reason="children and adults", key=key)
        apart.add(ledger.site_total(DELTA))
        assert ledger.verify() == len(ledger.entries())
    assert len(totals) == len(apart) == 1
    assert max(totals) >= privacy.epsilon_from_rdp(worst * curve, DELTA) * (1 - 1e-12)
    assert max(totals) == pytest.approx(privacy.epsilon_from_rdp(3 * curve, DELTA))
    assert max(apart) == pytest.approx(privacy.epsilon_from_rdp(2 * curve, DELTA))


def test_a_cap_on_all_studies_holds_over_a_study_that_was_granted_later(tmp_path):
    key = SigningKey.generate()
    people = {(study, 1): [f"{study}{k:031x}" for k in range(6)] for study in "ab"}
    ledger = charged(tmp_path, [("a", 1)], key, people)
    ledger.note_grant(grant(1, None, study="b").signed([key]))
    once = ledger.site_total(DELTA)
    more = {
        "study": "b",
        "plan_hash": "ab" * 32,
        "wave": 1,
        "release_id": "b1",
        "event": EVENT.to_canonical(),
        "delta": DELTA,
        "cap_epsilon": 100.0,
        "touches": "new",
        "site_cap_epsilon": 1.2 * once,
        "site_delta": DELTA,
    }
    with pytest.raises(BudgetRefusal):
        ledger.reserve(Reservation(**more))
    ledger.tell_apart("b", "a", name="dr-lind", reason="another clinic's patients", key=key)
    assert ledger.reserve(Reservation(**more)).state == "reserved"


@pytest.mark.parametrize("fewer_first", [False, True])
def test_two_local_studies_of_all_but_one_and_the_same_people_are_not_both_released(
    hospital,
    plan,
    table,
    fewer_first,
):
    site = hospital.joined().approved(plan)
    second = dataclasses.replace(plan, study="second")
    lead = grant(1, None, study="second").signed([hospital.lead])
    hospital.hub.grants.append(lead.to_bytes())
    hospital.publish(second)
    site("grants")
    site.approved(second)
    tables = {"mini": table, "second": table[1:]}
    order = ("second", "mini") if fewer_first else ("mini", "second")
    for study in order:
        path = hospital.folder / f"{study}.csv"
        tables[study].to_csv(path, index=False)
        site("data", "add", str(path), "--as", study)
    first = site.json("release", order[0], "--wave", "1")
    refused = site.refused("release", order[1], "--wave", "1", expect=10)
    assert refused["code"] == "E_DIFFERENCING"
    assert first["release_id"][:8] in refused["given"]
    dry = site.json("data", "apart", "mini", "second", "--as", "dr-lind", "--reason", "other clinics", "--dry-run")
    assert dry["total"] == dry["total_before"] > 0
    site.refused("release", order[1], "--wave", "1", expect=10)
    site("data", "apart", "mini", "second", "--as", "dr-lind", "--reason", "other clinics")
    site.refused("data", "apart", "mini", "second", "--as", "dr-lind", "--reason", "other clinics", expect=2)
    assert site.json("release", order[1], "--wave", "1")["release_id"]
    assert site.json("audit", "verify")["decisions"] == 2, "one signed entry in each of the two studies"


# -- people and keys --------------------------------------------------------------------------------------------------


def test_a_release_key_is_rotated_again_and_again_and_everything_reads_through_it(hub):
    north = hub.site("north")
    north.approve_plan("mini")
    first = north("status")["fingerprint"]
    seen = {first}
    for _ in range(3):
        done = north("rotate-key", "release", "--as", "dr-lind")
        assert done["in_force"]
        assert north("status")["fingerprint"] == done["fingerprint"] not in seen
        seen.add(done["fingerprint"])
        assert hub.store.enrolment("north").fingerprint == done["fingerprint"]
        north("pause", "--as", "dr-lind", "--reason", "an inspection")
        north("resume", "--as", "dr-lind", "--reason", "it is over")
    assert north("audit", "verify")["ok"]
    assert kinds(north).count("keys_changed") == kinds(north).count("keys_told") == 3
    said = verified(north)
    assert "3 changes of keys and approvers are signed by the key before" in said
    assert "was lost" not in said
    assert hub.store.verify_log() == hub.store.entries()
    assert hub.store.verify_signatures() >= 3
    north("ledger", "verify")


def test_an_approver_is_added_and_retired_by_those_who_approve_and_nobody_twice(hub, monkeypatch):
    north = hub.site("north", "dr-lind")
    north.approve_plan("mini")
    done = north("approver", "add", "dr-okoye", "--as", "dr-lind")
    assert done["in_force"]
    assert set(hub.store.enrolment("north").approvers) == {"dr-lind", "dr-okoye"}
    assert north.refused("approver", "add", "dr-okoye", "--as", "dr-lind", expect=12)["code"] == "E_NOT_APPROVED"
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    assert set(hub.store.enrolment("north").approvers) == {"dr-okoye"} == set(north.desk.config.approvers)
    row = north("status")["studies"][0]
    assert not row["approved"], "what the retired one approved stays in the record, and is confirmed anew"
    north("plan", "approve", "mini", "--as", "dr-okoye", "--understood", "local")
    assert north.refused("approver", "retire", "dr-okoye", "--as", "dr-okoye", expect=12)
    assert north.refused("approver", "add", "dr-lind", "--as", "dr-lind", expect=2)
    assert north("audit", "verify")["ok"]
    assert "2 changes of keys" in verified(north)


def test_where_two_must_sign_one_alone_adds_and_retires_nobody(hub, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")
    for name in ("LEAD", "A", "B", "C", "D"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", f"{name} {PASSPHRASE}" if name != "LEAD" else PASSPHRASE)
    north = hub.site("north", "a", "b")
    config = dataclasses.replace(north.desk.config, floors=SiteFloors(approvals=2))
    config.save()
    refused = north.refused("approver", "add", "c", "--as", "a", expect=12)
    assert "2 approver(s)" in refused["message"] if "message" in refused else True
    assert north.refused("approver", "add", "c", "--as", "a", "--as", "a", expect=12)
    assert north.refused("approver", "retire", "b", "--as", "a", expect=12)
    assert north("approver", "add", "c", "--as", "a", "--as", "b")["in_force"]
    assert north("approver", "retire", "a", "--as", "b", "--as", "c")["in_force"]
    assert north.refused("approver", "retire", "b", "--as", "b", "--as", "c", expect=12), "two must be left"


def test_a_new_key_counts_only_with_the_words_it_needs_and_no_word_is_good_twice(hub):
    north = hub.site("north")
    ring = keys.keyring(north.desk)
    agent, person, new = north.desk.release_key, hub_key(north, "dr-lind"), SigningKey.generate()
    last = north.desk.ledger.entries()[-1]

    def change(**values) -> KeyChange:
        given = {"role": "approver", "action": "add", "name": "dr-okoye", "old": "", "new": new.public.hex, **values}
        place = {"coordinator": "hub", "site": "north", "seq": last.seq, "head": last.hash, "day": "2026-05-01"}
        return KeyChange(number=1, previous=GENESIS, **place, **given)

    said = change()
    assert open_key_change(said.signed([agent, person, new]), ring, needed=1) == said
    for signers in ([agent, person], [agent, new], [person, new], [agent, new, SigningKey.generate()]):
        with pytest.raises((SignatureRefusal, ApprovalRefusal)):
            open_key_change(said.signed(signers), ring, needed=1)
    twice = change(new=person.public.hex, name="dr-lind-again")
    with pytest.raises(ApprovalRefusal, match="nobody's yet"):
        open_key_change(twice.signed([agent, person]), ring, needed=1)
    rotation = change(role="release", action="rotate", name="", old=agent.public.hex)
    for signers in ([agent, person], [new, person], [agent, new]):
        with pytest.raises((SignatureRefusal, ApprovalRefusal)):
            open_key_change(rotation.signed(signers), ring, needed=1)
    with north.desk.egress() as egress:
        egress.membership([said.signed([agent, person, new])])
        with pytest.raises(ReplayRefusal):
            egress.membership(
                [dataclasses.replace(said, name="dr-x", new=agent.public.hex).signed([agent, person, new])]
            )
        assert egress.membership([said.signed([agent, person, new])]).keys, "the same again changes nothing"
    south = hub.site("south")
    with south.desk.egress() as egress, pytest.raises(ReplayRefusal):
        egress.membership([said.signed([agent, person, new])])


def hub_key(site, name: str) -> SigningKey:
    return SigningKey.load(site.desk.config.approver_key(name), PASSPHRASE)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "place",
    ["keys.made", "keys.noted", "keys.before_replace", "keys.replaced", "keys.told", "ledger.head.before_rename"],
)
def test_killed_on_its_way_a_rotation_is_brought_to_an_end_or_was_none(hub, place):
    north = hub.site("north")
    before = north("status")["fingerprint"]
    argv = ("rotate-key", "release", "--as", "dr-lind", "--home", north.home)
    assert exit_code("site_agent.cli", *argv, place=place) == -signal.SIGKILL
    north("run", "--once")
    noted = kinds(north).count("keys_changed")
    assert (north("status")["fingerprint"] == before) == (noted == 0)
    assert hub.store.enrolment("north").fingerprint == north("status")["fingerprint"]
    assert north("rotate-key", "release", "--as", "dr-lind")["in_force"]
    assert north("audit", "verify")["ok"]
    assert hub.store.verify_signatures() >= 1


def test_a_lost_release_key_is_replaced_on_the_leads_word_and_every_export_says_so(hub):
    north = hub.site("north")
    north.approve_plan("mini")
    north("pause", "--as", "dr-lind", "--reason", "an inspection")
    north("resume", "--as", "dr-lind", "--reason", "it is over")
    assert north.refused("rotate-key", "release", "--lost", "--as", "dr-lind", expect=2)
    north.desk.config.release_key.unlink()
    said = north.refused("history", expect=2)
    assert "site-agent rotate-key release --lost" in said["next_step"], "init would begin a site anew"
    done = north("rotate-key", "release", "--lost", "--as", "dr-lind")
    assert (done["in_force"], done["waits_for_lead"]) == (False, True)
    asked = f'coordinator rekey north --fingerprint "{done["fingerprint"]}"'
    status, doctor = north("status"), north("doctor")
    assert status["keys_waiting"] == [{"role": "release", "name": "", "fingerprint": done["fingerprint"]}]
    assert status["next"] == [f"telephone the study lead, who runs: {asked}"]
    (line,) = (one for one in doctor["checks"] if one["name"] == "keys in force")
    assert line["state"] == "warn"
    assert asked in line["fix"]
    hub.lead("rekey", "north", "--fingerprint", "ab " * 16, expect=30)
    assert hub.lead("rekey", "north", "--fingerprint", done["fingerprint"])["in_force"]
    north("run", "--once")
    assert north.desk.ledger.membership().acknowledged == 1
    assert north("status")["keys_waiting"] == []
    assert "waits for the study lead" not in f"{north('doctor')}"
    assert north("audit", "verify")["ok"]
    assert "the key of the site was lost, and another took its place without its word" in verified(north)
    assert hub.store.verify_log() == hub.store.entries()


def test_a_ledger_from_before_two_rotations_is_recovered_through_both(hub):
    north = hub.site("north")
    north.approve_plan("mini")
    north("pause", "--as", "dr-lind", "--reason", "an inspection")
    north("resume", "--as", "dr-lind", "--reason", "it is over")
    kept = {name: (north.home / name).read_bytes() for name in ("ledger.db", "ledger.head")}
    for _ in range(2):
        north("rotate-key", "release", "--as", "dr-lind")
        north("approver", "add", f"dr-{_}", "--as", "dr-lind")
    for path in north.home.glob("ledger.db-*"):
        path.unlink()
    for name, data in kept.items():
        (north.home / name).write_bytes(data)
    assert north.refused("status", expect=30)["code"] == "E_LEDGER", "the key here is newer than the ledger"
    argv = ("ledger", "recover", "--home", north.home)
    assert exit_code("site_agent.cli", *argv, place="keys.adopted") == -signal.SIGKILL
    assert kinds(north).count("keys_changed") == 1, "all four in one entry, noted once"
    found = north("ledger", "recover")
    assert found["state"] == "counted"
    hub.lead("reanchor", "north", "--fingerprint", found["fingerprint"])
    assert north("ledger", "recover")["state"] == "done"
    assert north("audit", "verify")["ok"]
    assert "4 changes of keys and approvers" in verified(north)
    assert north("rotate-key", "release", "--as", "dr-lind")["in_force"]
    assert hub.store.verify_signatures() >= 3


def test_studies_go_on_under_the_secret_that_they_began_with(hospital, plan, table):
    second = dataclasses.replace(plan, study="second")
    site = hospital.joined().approved(plan).with_table(table)
    site.json("release", "mini", "--wave", "1")
    space = desk_of(site).ledger.holds("mini")[0].space
    site.json("rotate-key", "snapshot", "--as", "dr-lind")
    site.json("rotate-key", "snapshot", "--as", "dr-lind")
    hospital.hub.grants.append(grant(1, None, study="second").signed([hospital.lead]).to_bytes())
    site("grants")
    site.approved(second).with_table(table, "second")
    desk = desk_of(site)
    assert set(desk.begun_under) == {"mini"}
    assert desk.snapshot_key("mini") != desk.snapshot_key("second") == desk.config.snapshot_key.read_bytes()
    source = desk.config.source("mini")
    assert person_space(source, plan.dictionary, key=desk.snapshot_key("mini")) == space
    assert site.json("audit", "verify")["ok"]


def desk_of(site):
    return Desk(site.home)


def test_killed_when_an_approver_was_noted_a_site_has_that_person_on_both_sides(hub):
    north = hub.site("north")
    argv = ("approver", "add", "dr-ames", "--as", "dr-lind", "--home", north.home)
    assert exit_code("site_agent.cli", *argv, place="approver.noted") == -signal.SIGKILL
    north("run", "--once")
    assert set(north.desk.config.approvers) == {"dr-lind", "dr-ames"} == set(hub.store.enrolment("north").approvers)
    assert north("audit", "verify")["ok"]


def test_killed_minus_nine_a_grant_is_in_the_log_once_or_not_at_all(hub):
    hub.site("north")
    hub.publish("stroke")
    argv = ("--home", hub.home, "grant", "north", "--study", "stroke")
    for place in ("grant.before_log", "grant.before_commit"):
        assert exit_code("coordinator.cli", *argv, place=place) == -signal.SIGKILL
        assert hub.members().grants("north") == ()
    assert exit_code("coordinator.cli", *argv, place="grant.committed") == -signal.SIGKILL
    assert [said.study for said, _ in hub.members().grants("north")] == ["stroke"]
    hub.lead("grant", "north", "--study", "stroke", expect=2)
    assert hub.store.verify_log() == hub.store.entries() == 1


def test_a_rotation_while_an_upload_is_half_done_lets_the_same_bytes_go_on_under_the_new_key(tmp_path):
    hub = Hub(tmp_path / "hub", PLAN, "north")
    north, members = hub.sites["north"], Members(hub.store, "hub")
    sealed, last = hub.seal("north"), anchor_head("north", 3)
    data, new = sealed.path.read_bytes(), SigningKey.generate()
    place = {"coordinator": "hub", "site": "north", "seq": 3, "head": last.head, "day": "2026-05-01"}
    said = KeyChange(
        number=1,
        previous=GENESIS,
        role="release",
        action="rotate",
        name="",
        old=north.release.public.hex,
        new=new.public.hex,
        **place,
    )
    with hub.serve(), hub.client("north") as client:
        client.call("Offer", OfferRequest(envelope=sealed.envelope.to_bytes()), timeout=60)

        def chunks():
            digest = sealed.statement.bundle_sha256
            yield Chunk(bundle_sha256=digest, offset=0, data=data[:100])
            members.change_key("north", said.signed([north.release, new, north.steward]), dt.date(2026, 5, 1))
            yield Chunk(bundle_sha256=digest, offset=100, data=data[100:])

        with pytest.raises((SignatureRefusal, RoleRefusal)):
            client.call("Upload", chunks(), timeout=60)
        assert hub.store.releases() == ()
        again = sealed.statement.sign([new, north.steward])
        with hub.egress("north") as egress:
            egress.send(again, sealed.path)
    assert len(hub.store.releases()) == 1
    assert hub.store.verify_signatures() == 1
    assert hub.store.verify_log() == hub.store.entries() == 2


# -- leads ------------------------------------------------------------------------------------------------------------
def test_leads_come_and_go_by_the_signatures_of_those_who_lead_and_sites_follow(hub):
    north = hub.site("north")
    hub.publish("stroke")
    assert not hub.lead("lead", "add", "b", "--dry-run")["added"]
    assert hub.lead("lead", "add", "b", "--threshold", "2")["to_sign_anew"] == ["mini", "stroke"]
    for study in ("mini", "stroke"):
        hub.lead("plan", "cosign", study, "--key", "b")
    hub.lead("lead", "add", "b", expect=2)
    hub.lead("grant", "north", "--study", "stroke", "--key", "lead", expect=10)
    hub.lead("grant", "north", "--study", "stroke", "--key", "lead", "--key", "b")
    north("run", "--once")
    assert (len(north.desk.config.leads), north.desk.config.threshold) == (2, 2)
    assert north.desk.config.studies == ("mini", "stroke")
    hub.lead("lead", "retire", "lead", "--key", "lead", "--key", "b", expect=2)
    hub.lead("lead", "add", "c", "--key", "lead", "--key", "b")
    hub.capsys.readouterr()
    assert coordinator(["--home", str(hub.home), "lead", "retire", "lead", "--dry-run"]) == 0
    shown = " ".join(hub.capsys.readouterr().out.split())
    assert "coordinator plan cosign mini; no site is asked again" in shown
    gone = hub.lead("lead", "retire", "lead", "--key", "c", "--key", "b")
    assert gone["to_sign_anew"] == ["mini", "stroke"], "signed by one who has left, alone"
    hub.publish("mini", version=2)
    north("run", "--once")
    desk = north.desk
    assert len(desk.config.leads) == 2
    assert len(desk.config.retired_leads) == 1
    assert [desk.plans.plan("mini", version).version for version in (1, 2)] == [1, 2], "what was taken stays theirs"
    old = sign_plan(dataclasses.replace(PLAN, version=3), [hub_lead(hub, "retired/lead")])
    with pytest.raises(SignatureRefusal):
        desk.plans.receive("mini", old, today=dt.date(2026, 5, 1))
    assert north("audit", "verify")["ok"]
    assert hub.store.verify_log() == hub.store.entries()
    assert [row["name"] for row in hub.lead("lead", "list")["changes"]] == ["b", "c", "lead"]


def hub_lead(hub, name: str) -> SigningKey:
    return SigningKey.load(hub.home / "keys" / f"{name}.pem", PASSPHRASE)


def test_a_plan_that_asks_for_two_leads_is_not_opened_with_one_and_others_keep_their_hash():
    a, b = SigningKey.generate(), SigningKey.generate()
    leads = {key.public.key_id: key.public for key in (a, b)}
    plan = dataclasses.replace(PLAN, floors=dataclasses.replace(PLAN.floors, leads=2))
    assert "leads" not in PLAN.to_canonical()["floors"]
    assert plan.to_canonical()["floors"]["leads"] == 2
    assert open_plan(sign_plan(plan, [a, b]), leads) == plan
    with pytest.raises(SignatureRefusal):
        open_plan(sign_plan(plan, [a]), leads)
    with pytest.raises(SignatureRefusal):
        open_plan(sign_plan(plan, [a, a]), leads)


# -- keys that were in other hands ------------------------------------------------------------------------------------
def test_what_was_accepted_after_a_day_counts_for_nothing_and_results_on_it_are_stale(tmp_path):
    hub = Hub(tmp_path / "hub", PLAN, "north", "south")
    with hub.serve():
        for site in ("north", "south"):
            for wave in (1, 2):
                one = hub.seal(
                    site, wave=wave, release_id=f"{wave}{site[0] == 'n':d}" * 16, table=small_table(seed=wave)
                )
                with hub.egress(site) as egress:
                    egress.send(one.envelope, one.path)
    second = [release for release in hub.store.releases() if release.wave == 2]
    used = {release.bundle_sha256: release.site for release in second}
    hub.store.save_result(
        ResultDraft(study="mini", wave=2, kind="mean", question={"q": 1}, used=used, numbers={"x": 1.0}),
        today=dt.date(2026, 5, 2),
    )
    assert [bool(result.withdrawn) for result in hub.store.results()] == [False]
    day = dt.date.fromisoformat(second[0].accepted_day)
    members = Members(hub.store, "hub")
    assert members.distrust("north", day + dt.timedelta(days=1), day) == ()
    assert len(members.distrust("north", day, day)) == 2
    assert members.distrust("north", day, day) == (), "again changes nothing"
    assert {release.site for release in hub.store.releases()} == {"south"}
    assert len(hub.store.releases(withdrawn=True)) == 4
    assert [len(result.withdrawn) for result in hub.store.results()] == [1]
    assert len(list((hub.home / "bundles").glob("*.zip"))) == 4, "evidence stays"
    assert {one.state for one in hub.store.holdings("mini", "north")} == {"accepted"}, "the site has not withdrawn it"
    assert hub.store.verify_log() == hub.store.entries()
    assert hub.store.verify_signatures() == 4
    with hub.serve():
        assert len(list((hub.home / "bundles").glob("*.zip"))) == 4


# -- reasons and deputies ---------------------------------------------------------------------------------------------
def test_a_reason_travels_to_the_lead_only_where_it_is_ticked_and_once(hub):
    north = hub.site("north")
    person = hub_key(north, "dr-lind")
    said = {"coordinator": "hub", "site": "north", "study": "mini", "wave": 1, "release_id": "ab" * 16}
    notice = DeclinedNotice(**said, decision="send_back", reason="Units of chol?", approver="dr-lind")
    with north.desk.egress() as egress:
        for _ in range(2):
            egress.membership([notice.signed(person)])
        for signer, other in ((SigningKey.generate(), notice), (person, dataclasses.replace(notice, site="south"))):
            with pytest.raises((SignatureRefusal, ReplayRefusal)):
                egress.membership([other.signed(signer)])
    told = hub.lead("declined")["declined"]
    assert [(one["site"], one["wave"], one["reason"]) for one in told] == [("north", 1, "Units of chol?")]
    with pytest.raises(SchemaRefusal):
        dataclasses.replace(notice, reason="x" * 501)


def test_what_is_sent_back_says_nothing_outside_unless_its_person_ticks_it(hospital, plan, table):
    site = hospital.joined().approved(plan).with_table(table)
    full = site.json("release", "mini", "--wave", "1")["release_id"]
    site("send-back", full[:8], "--as", "dr-lind", "--reason", "who is this")
    site("grants")
    assert not [one for one in hospital.hub.shown if one.payload_type == DECLINED_TYPE]
    site("send-back", full[:8], "--as", "dr-lind", "--reason", "units of chol", "--tell-lead")
    (notice,) = [one for one in hospital.hub.shown if one.payload_type == DECLINED_TYPE]
    approvers = {name: PublicKey(key) for name, key in desk_of(site).config.approvers.items()}
    assert open_notice(notice, approvers, coordinator="hub", site="north").reason == "units of chol"
    assert site.json("audit", "verify")["ok"]


def test_a_deputy_approves_in_somebodys_absence_until_a_day_and_never_beside_them(hub, monkeypatch):
    north = hub.site("north")
    with_day = ("--deputy-of", "dr-lind", "--until", "2999-01-01")
    assert north.refused("approver", "add", "dr-ames", "--as", "dr-lind", "--deputy-of", "dr-lind", expect=30)
    assert north.refused(
        "approver", "add", "dr-ames", "--as", "dr-lind", "--deputy-of", "nobody", "--until", "2999-01-01", expect=12
    )
    north("approver", "add", "dr-ames", "--as", "dr-lind", *with_day)
    assert hub.members().stands_in("north") == {"dr-ames": "dr-lind"}
    site = hub.store.enrolment("north")
    assert set(hub.members().in_force(site, dt.date(2998, 1, 1)).approvers) == {"dr-lind", "dr-ames"}
    assert set(hub.members().in_force(site, dt.date(2999, 1, 2)).approvers) == {"dr-lind"}
    monkeypatch.setenv("TRIBUTARY_TODAY", "2999-01-02")
    assert north.refused("pause", "--as", "dr-ames", "--reason", "late", expect=12)
    monkeypatch.delenv("TRIBUTARY_TODAY")
    refused = north.refused("approver", "add", "dr-more", "--as", "dr-ames", expect=12)
    assert refused["code"] == "E_NOT_APPROVED", "a deputy approves releases and names nobody"
    north("approver", "retire", "dr-ames", "--as", "dr-lind")
    assert hub.members().stands_in("north") == {}


def test_the_key_of_the_connection_changes_with_its_certificate_under_a_rotated_release_key(hub):
    north = hub.site("north")
    before = north.desk.config.tls_key.read_bytes()
    north("rotate-key", "release", "--as", "dr-lind")
    north("rotate-key", "tls", "--as", "dr-lind")
    assert north.desk.config.tls_key.read_bytes() != before
    north("run", "--once")
    assert north("rotate-key", "release", "--as", "dr-lind")["in_force"]
