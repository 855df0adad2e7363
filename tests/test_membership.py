"""Who takes part changes over the years: studies are granted, leads, approvers and keys change, and nothing is lost."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading

import pytest
import site_desk
from joined import Joined
from test_recovery import PLAN

from shared.base.chain import GENESIS
from shared.base.keys import Envelope, SigningKey
from shared.errors import BudgetRefusal, ReplayRefusal, SignatureRefusal, StateRefusal
from shared.plans.grants import Grant, open_grant
from shared.privacy import accountant as privacy
from shared.wire.messages import AnchorReceipt
from site_agent.decide import membership
from site_agent.ledger.book import Ledger

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
            study=study,
            plan_hash="ab" * 32,
            wave=wave,
            release_id=f"{study}{wave}",
            event=EVENT.to_canonical(),
            delta=DELTA,
            cap_epsilon=100.0,
            touches="new",
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
        ledger.reserve(**more)
    ledger.tell_apart("b", "a", name="dr-lind", reason="another clinic's patients", key=key)
    assert ledger.reserve(**more).state == "reserved"


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
