"""Who takes part, attacked: old words shown again, keys of those who have left, one person signing as two."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from stage.both_sides.joined import PASSPHRASE, Joined, JoinedSite
from stage.both_sides.membership import Clock, verified
from stage.hospital_side.recovery import PLAN

from shared.base.chain import GENESIS
from shared.base.clock import utc_now
from shared.base.keys import Envelope, SigningKey
from shared.errors import ApprovalRefusal, SignatureRefusal, StateRefusal, TooLarge
from shared.membership import key_changes
from shared.membership.declined import DeclinedNotice
from shared.membership.grants import Grant
from shared.membership.key_changes import KeyChange, SiteKeyring, open_key_change
from shared.membership.leads import LeadChange
from shared.plans.plan import sign_plan
from shared.wire.site_messages import MembershipReply
from site_agent.decide.keys import add_approver
from site_agent.desk import Desk
from site_agent.egress import Egress
from site_agent.ledger.membership import Membership
from site_agent.show import verifier
from site_agent.show.export import record


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as made:
        yield made


def lead_key(hub: Joined, name: str) -> SigningKey:
    return SigningKey.load(hub.home / "keys" / f"{name}.pem", PASSPHRASE)


# -- leads ------------------------------------------------------------------------------------------------------------
def test_a_coordinator_that_shows_an_old_change_of_leads_again_brings_no_retired_lead_back(hub, monkeypatch):
    north = hub.site("north")
    hub.lead("lead", "add", "b")
    north("run", "--once")
    hub.lead("lead", "retire", "b", "--key", "lead")
    north("run", "--once")
    (only,) = north.desk.config.leads
    whole = Egress.membership

    def rolled_back(self, *args) -> MembershipReply:
        reply = whole(self, *args)
        return dataclasses.replace(reply, leads=reply.leads[:1])

    monkeypatch.setattr(Egress, "membership", rolled_back)
    north("run", "--once")
    assert north.desk.config.leads == (only,)
    theirs = sign_plan(dataclasses.replace(PLAN, version=2), [lead_key(hub, "retired/b")])
    with pytest.raises(SignatureRefusal):
        north.desk.plans.receive("mini", theirs, today=dt.date(2026, 5, 1))


def test_a_site_that_was_away_takes_a_grant_of_a_lead_who_has_left_since(hub):
    north = hub.site("north")
    hub.publish("stroke")
    hub.publish("later")
    hub.lead("grant", "north", "--study", "stroke")
    hub.lead("lead", "add", "b")
    hub.lead("lead", "retire", "lead", "--key", "b")
    hub.lead("grant", "north", "--study", "later", "--key", "b")
    assert set(north("grants")["studies"]) == {"mini", "stroke", "later"}
    kinds = [entry.kind for entry in north.desk.ledger.entries()][1:]
    assert (kinds[0], kinds.count("leads_changed")) == ("study_granted", 2), "noted while its lead led"
    assert north("audit", "verify")["ok"]


def test_a_crash_between_the_ledger_and_the_settings_leaves_the_leads_that_the_ledger_names(hub, monkeypatch):
    north = hub.site("north")
    hub.lead("lead", "add", "b")
    before = (north.home / "site.toml").read_bytes()
    north("run", "--once")
    (north.home / "site.toml").write_bytes(before)
    north("run", "--once")
    assert len(north.desk.config.leads) == 2


def test_one_lead_alone_does_not_end_that_a_study_asks_for_two(hub):
    north = hub.site("north")
    hub.lead("lead", "add", "b")
    both = [lead_key(hub, name) for name in ("lead", "b")]
    strict = dataclasses.replace(PLAN, version=2, floors=dataclasses.replace(PLAN.floors, leads=2))
    hub.store.add_plan(sign_plan(strict, both), strict)
    north("run", "--once")
    north("plan", "fetch", "mini")
    loose = dataclasses.replace(PLAN, version=3)
    today = dt.date(2026, 5, 1)
    with pytest.raises(SignatureRefusal):
        north.desk.plans.receive("mini", sign_plan(loose, both[:1]), today=today)
    assert north.desk.plans.receive("mini", sign_plan(loose, both), today=today) == loose


def test_a_coordinator_that_was_put_back_is_told_of_its_leads_by_a_site_and_by_nobody_elses_word(hub):
    north = hub.site("north")
    hub.lead("backup", hub.folder / "backup.tar")
    hub.lead("lead", "add", "b", "--threshold", "2")
    hub.lead("lead", "add", "c", "--key", "lead", "--key", "b")
    hub.lead("lead", "retire", "lead", "--key", "c", "--key", "b")
    north("grants")
    changes = [envelope for _, envelope in hub.members().lead_changes()]
    (_, first), *_ = hub.members().lead_changes()
    site = hub.store.enrolment("north")
    hub.put_back(hub.folder / "backup.tar")
    members, today = hub.members(), dt.date(2026, 5, 1)
    assert members.lead_changes() == ()
    forged = dataclasses.replace(LeadChange.said(first), threshold=1).signed([SigningKey.generate()])
    for wrong, refusal in ((forged, SignatureRefusal), (changes[2], SignatureRefusal)):
        with pytest.raises(refusal):
            members.exchange(site, [wrong], hub.home, today)
    assert members.lead_changes() == ()
    north("grants")
    assert [said.number for said, _ in members.lead_changes()] == [1, 2, 3]
    assert set(hub.lead("lead", "list")["leads"]) == {"b", "c"}
    assert (hub.home / "keys" / "retired" / "lead.pem").exists()
    assert hub.lead("lead", "list")["threshold"] == 2
    north("grants")
    assert len(members.lead_changes()) == 3, "again changes nothing"
    hub.store.verify_log()


def test_nobody_leaves_without_whom_a_study_could_not_be_signed(hub):
    hub.lead("lead", "add", "b")
    both = [lead_key(hub, name) for name in ("lead", "b")]
    strict = dataclasses.replace(PLAN, version=2, floors=dataclasses.replace(PLAN.floors, leads=2))
    hub.store.add_plan(sign_plan(strict, both), strict)
    assert "mini asks for 2" in hub.lead("lead", "retire", "b", "--key", "lead", expect=2)["refused"]["given"]
    hub.lead("lead", "add", "c")
    assert hub.lead("lead", "retire", "b", "--key", "lead")["retired"]


# -- keys and approvers -----------------------------------------------------------------------------------------------
def test_a_site_fills_no_log_with_changes_of_its_keys_and_notes_none_that_would_be_refused_for_ever(hub, monkeypatch):
    monkeypatch.setattr(key_changes, "MOST_CHANGES", 2)
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    north("approver", "add", "dr-roe", "--as", "dr-lind")
    entries = hub.store.entries()
    assert "at most 2 times" in north.refused("approver", "add", "dr-chen", "--as", "dr-lind", expect=30)["must"]
    assert hub.store.entries() - entries <= 1, "the head of its ledger"
    assert len(hub.members().key_changes("north")) == 2
    known = north.desk.ledger.membership()
    assert known.acknowledged == len(known.keys) == 2
    said = dataclasses.replace(known.keys[-1][0], number=3, previous=known.keys[-1][0].digest)
    with pytest.raises(TooLarge):
        hub.members().change_key("north", said.signed([SigningKey.generate()]), dt.date(2026, 5, 1))


def test_the_lost_key_of_a_deputy_is_replaced_by_no_fewer_approvers(hub):
    agent, new, *people = (SigningKey.generate() for _ in range(5))
    a, b, deputy = people
    ring = SiteKeyring(
        release=agent.public,
        approvers={"a": a.public, "b": b.public, "d": deputy.public},
        deputies={"d": ("a", "2999-01-01")},
    )
    place = {"coordinator": "hub", "site": "north", "seq": 1, "head": "ab" * 32, "day": "2026-05-01"}
    said = KeyChange(
        number=1, previous=GENESIS, role="approver", action="replace", name="d", old=deputy.public.hex,
        new=new.public.hex, **place,
    )  # fmt: skip
    with pytest.raises(ApprovalRefusal):
        open_key_change(said.signed([agent, new, b]), ring, needed=2)
    alone = SiteKeyring(release=agent.public, approvers={"a": a.public, "d": deputy.public}, deputies=ring.deputies)
    with pytest.raises(ApprovalRefusal):
        open_key_change(said.signed([agent, new]), alone, needed=1)
    assert open_key_change(said.signed([agent, new, a, b]), ring, needed=2) == said


def test_a_lost_release_key_is_replaced_by_as_many_as_the_plans_here_ask_for(hub, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")
    for name in ("LEAD", "A", "B"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", f"{name} {PASSPHRASE}" if name != "LEAD" else PASSPHRASE)
    north = hub.site("north", "a", "b")
    hub.publish("mini", version=2, floors=dataclasses.replace(PLAN.floors, approvals=2))
    north("plan", "fetch", "mini")
    north.desk.config.release_key.unlink()
    assert north.refused("rotate-key", "release", "--lost", "--as", "a", expect=12)
    done = north("rotate-key", "release", "--lost", "--as", "a", "--as", "b")
    assert done["waits_for_lead"]
    assert hub.lead("rekey", "north", "--fingerprint", done["fingerprint"])["in_force"]


def test_a_plan_that_was_not_fetched_yet_is_asked_how_many_must_sign_before_anything_is_noted(hub, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")
    for name in ("LEAD", "A", "B", "C"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", f"{name} {PASSPHRASE}" if name != "LEAD" else PASSPHRASE)
    north = hub.site("north", "a", "b")
    hub.publish("mini", version=2, floors=dataclasses.replace(PLAN.floors, approvals=2))
    assert north.refused("approver", "add", "c", "--as", "a", expect=12)
    assert [entry.kind for entry in north.desk.ledger.entries()] == ["genesis"]
    assert north("approver", "add", "c", "--as", "a", "--as", "b")["in_force"]


def test_a_reason_of_somebody_who_approves_no_more_stops_no_later_look(hub):
    north = hub.site("north")
    person = SigningKey.load(north.desk.config.approver_key("dr-lind"), PASSPHRASE)
    said = {"coordinator": "hub", "site": "north", "study": "mini", "wave": 1, "release_id": "ab" * 16}
    notice = DeclinedNotice(**said, decision="reject", reason="Units?", approver="dr-lind").signed(person)
    with north.desk.egress() as egress:
        egress.membership([notice])
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    with north.desk.egress() as egress:
        egress.membership([notice])
    assert len(hub.lead("declined")["declined"]) == 1


def test_a_key_that_the_ledger_has_ended_opens_nothing_whatever_the_settings_say(hub):
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    before = (north.home / "site.toml").read_bytes()
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    (north.home / "site.toml").write_bytes(before)  # as a crash before the settings were written leaves it
    assert north.refused("pause", "--as", "dr-lind", "--reason", "an old grudge", expect=12)
    assert north.refused("approver", "add", "puppet", "--as", "dr-lind", expect=2)
    north("pause", "--as", "dr-okoye", "--reason", "an inspection")
    assert north("audit", "verify")["ok"]


def test_of_two_who_add_a_person_of_one_name_at_once_one_does_and_the_other_is_refused(hub, monkeypatch):
    """A passphrase takes its time: what was read before it was typed may be of yesterday when it is signed."""
    north = hub.site("north")

    def typed(name: str) -> str:
        monkeypatch.undo()
        monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
        north("approver", "add", "dr-okoye", "--as", "dr-lind")
        return PASSPHRASE

    monkeypatch.setattr("shared.base.passphrases.chosen", typed)
    assert "there already" in north.refused("approver", "add", "dr-okoye", "--as", "dr-lind", expect=2)["given"]
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    assert set(north.desk.config.approvers) == set(hub.store.enrolment("north").approvers) == {"dr-okoye"}
    assert north("audit", "verify")["ok"]


def test_what_was_read_before_another_change_is_read_anew_before_anything_is_signed(hub):
    north, new = hub.site("north"), SigningKey.generate()
    desk = Desk(north.home)
    person = SigningKey.load(desk.config.approver_key("dr-lind"), PASSPHRASE)

    def typed() -> SigningKey:
        north("approver", "add", "dr-okoye", "--as", "dr-lind")
        return new

    openers = {"dr-lind": lambda: person}
    with pytest.raises(StateRefusal, match="while a command runs"):
        add_approver(desk, "dr-okoye", by=openers, new=typed, today=dt.date(2026, 5, 1))
    assert north("approver", "add", "dr-ames", "--as", "dr-okoye")["in_force"]


def test_of_two_leads_who_add_one_of_a_name_at_once_neither_writes_over_the_others_key(hub, monkeypatch):
    def typed(name: str, **_: object) -> str:
        monkeypatch.undo()
        monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
        hub.lead("lead", "add", "b")
        return PASSPHRASE

    monkeypatch.setattr("shared.base.passphrases.chosen", typed)
    assert "there already" in hub.lead("lead", "add", "b", expect=2)["refused"]["given"]
    assert lead_key(hub, "b").public.hex in hub.members().leads(hub.home).keys
    assert hub.lead("lead", "retire", "lead", "--key", "b")["retired"]


def test_a_person_who_was_retired_while_their_passphrase_was_typed_decides_nothing(hub):
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    north("approver", "add", "dr-ames", "--as", "dr-lind", "--deputy-of", "dr-lind", "--until", "2999-01-01")
    desk = Desk(north.home)
    people = {name: SigningKey.load(desk.config.approver_key(name), PASSPHRASE) for name in ("dr-lind", "dr-ames")}
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    for name, key in people.items():  # whoever stood in for somebody has left with them
        with pytest.raises(ApprovalRefusal, match="by the ledger"):
            desk.ledger.pause(name=name, reason="an old grudge", key=key)
    assert [entry.kind for entry in north.desk.ledger.entries()].count("paused") == 0


# -- what a stranger is shown -----------------------------------------------------------------------------------------
class Liar:
    """A site that writes its ledger as it likes: every entry under its own keys, exported and signed anew."""

    def __init__(self, site: JoinedSite) -> None:
        self.desk = site.desk

    def change(self, signers: list[SigningKey], **values: str) -> None:
        """Note a change of keys that these have signed."""
        known, last = self.desk.ledger.membership().keys, self.desk.ledger.entries()[-1]
        given = {"role": "approver", "old": "", "new": "", "name": "", **values}
        said = KeyChange(
            number=len(known) + 1, previous=known[-1][0].digest if known else GENESIS, day="2026-05-01",
            coordinator="hub", site="north", seq=last.seq, head=last.hash, **given,
        )  # fmt: skip
        self.desk.ledger.change_keys(said.signed([self.desk.release_key, *signers]))

    def settings(self, **changes: object) -> None:
        dataclasses.replace(self.desk.config, **changes).save()
        self.desk.forget()

    def found(self, study: str = "mini") -> str:
        """What the script finds in its record; blank for nothing."""
        try:
            verifier.examine(record(self.desk, study), study)
        except verifier.Wrong as wrong:
            return str(wrong)
        return ""


def test_a_change_of_approvers_that_the_newcomer_alone_signed_is_found_whatever_their_name(hub):
    liar, new = Liar(hub.site("north")), SigningKey.generate()
    assert liar.found() == ""
    liar.settings(approvers={"before": liar.desk.config.approvers["dr-lind"]})
    liar.change([new], action="add", name="puppet", new=new.public.hex)
    liar.settings(approvers={**liar.desk.config.approvers, "puppet": new.public.hex})
    assert "signed by somebody who approves here" in liar.found()


def test_a_key_that_has_left_signs_nothing_later_and_one_that_joins_nothing_before(hub):
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    north.approve_plan("mini", "dr-okoye")
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    liar = Liar(north)
    assert liar.found() == ""
    retired = SigningKey.load(north.home / "keys" / "approvers" / "dr-lind.pem", PASSPHRASE)
    new = SigningKey.generate()
    liar.change([new, retired], action="add", name="puppet", new=new.public.hex)
    liar.settings(approvers={**liar.desk.config.approvers, "puppet": new.public.hex})
    assert "signed by somebody who approves here" in liar.found()


def test_a_retired_person_pauses_nothing_and_a_stranger_sees_it(hub, monkeypatch):
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    retired = SigningKey.load(north.desk.config.approver_key("dr-lind"), PASSPHRASE)
    north("approver", "retire", "dr-lind", "--as", "dr-okoye")
    liar = Liar(north)
    monkeypatch.setattr(Membership, "ended", frozenset())
    liar.desk.ledger.pause(name="dr-lind", reason="an old grudge", key=retired)
    assert "(paused) must be signed by the person it names" in liar.found()


def test_where_a_plan_asks_for_two_one_approver_alone_changes_no_key_unseen(hub, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")
    for name in ("LEAD", "A", "B"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", f"{name} {PASSPHRASE}" if name != "LEAD" else PASSPHRASE)
    north = hub.site("north", "a", "b")
    hub.publish("mini", version=2, floors=dataclasses.replace(PLAN.floors, approvals=2))
    north.approve_plan("mini", "a")
    liar = Liar(north)
    alone, new = SigningKey.load(north.desk.config.approver_key("a"), f"A {PASSPHRASE}"), SigningKey.generate()
    assert liar.found() == ""
    liar.change([new, alone], action="add", name="c", new=new.public.hex)
    liar.settings(approvers={**liar.desk.config.approvers, "c": new.public.hex})
    assert "must be signed by 2 who approve here" in liar.found()


def test_that_two_studies_are_of_different_people_is_signed_by_as_many_as_a_release(hub, monkeypatch):
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")
    for name in ("LEAD", "A", "B", "D"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", f"{name} {PASSPHRASE}" if name != "LEAD" else PASSPHRASE)
    north = hub.site("north", "a", "b")
    hub.publish("mini", version=2, floors=dataclasses.replace(PLAN.floors, approvals=2))
    hub.publish("stroke")
    hub.lead("grant", "north", "--study", "stroke")
    north("grants")
    north.approve_plan("mini", "a")
    north("approver", "add", "d", "--as", "a", "--as", "b", "--deputy-of", "b", "--until", "2999-01-01")
    words = ("data", "apart", "mini", "stroke", "--reason", "children and adults")
    for too_few in (("--as", "a"), ("--as", "a", "--as", "a"), ("--as", "a", "--as", "d")):
        assert north.refused(*words, *too_few, expect=12)["given"] == "1"
    liar = Liar(north)
    ledger, alone = liar.desk.ledger, SigningKey.load(liar.desk.config.approver_key("a"), f"A {PASSPHRASE}")
    assert north(*words, "--as", "a", "--as", "b")["by"] == ["a", "b"]
    assert north("audit", "verify")["ok"]
    assert liar.found() == ""
    ledger.tell_apart("mini", "later", name="a", reason="an old grudge", key=alone)
    assert "(persons_apart) must be signed by 2 who approve here" in liar.found()


def test_a_deputy_signs_nothing_after_their_last_day_whatever_the_site_notes(hub, monkeypatch, tmp_path):
    clock = Clock(tmp_path, monkeypatch)
    north = hub.site("north")
    until = utc_now().date().isoformat()
    north("approver", "add", "dr-ames", "--as", "dr-lind", "--deputy-of", "dr-lind", "--until", until)
    deputy = SigningKey.load(north.desk.config.approver_key("dr-ames"), PASSPHRASE)
    liar = Liar(north)
    liar.desk.ledger.pause(name="dr-ames", reason="an inspection", key=deputy)
    assert liar.found() == ""
    clock.turn(1)
    liar.desk.ledger.resume(name="dr-ames", reason="it is over", key=deputy)
    assert "(resumed) must be signed by the person it names" in liar.found()


def test_a_stranger_follows_the_leads_from_change_to_change(hub):
    north = hub.site("north")
    hub.publish("stroke")
    north.approve_plan("mini")
    hub.lead("lead", "add", "b", "--threshold", "2")
    for study in ("mini", "stroke"):
        hub.lead("plan", "cosign", study, "--key", "b")
    hub.lead("grant", "north", "--study", "stroke", "--key", "lead", "--key", "b")
    north("run", "--once")
    assert north.desk.plans.plan("mini").version == 1, "taken when one had to sign"
    assert north("audit", "verify")["ok"]
    hub.publish("mini", version=2)
    north.approve_plan("mini")
    hub.lead("lead", "add", "c", "--key", "lead", "--key", "b")
    hub.lead("lead", "retire", "b", "--key", "lead", "--key", "c")
    north("run", "--once")
    assert "3 changes of leads are signed by those who led before" in verified(north, "stroke")
    files = record(north.desk, "mini")
    verifier.examine(files, "mini")
    one = lead_key(hub, "lead")
    second = Envelope.from_bytes(files["plans/plan-2.json"])
    alone = Envelope(payload_type=second.payload_type, payload=second.payload, signatures=()).also_signed(one)
    told = verifier.examine({**files, "plans/plan-2.json": alone.to_bytes()}, "mini")["keys"]["lead_chain"].open
    assert told == ["plans/plan-2.json is signed by enough of those who led before, not when it was approved here"]
    early = Envelope.from_bytes(files["plans/plan-1.json"])
    later = Envelope(payload_type=early.payload_type, payload=early.payload, signatures=())
    late = later.also_signed(lead_key(hub, "c")).also_signed(lead_key(hub, "retired/b"))
    with pytest.raises(verifier.Wrong, match=r"plan-1\.json must be signed by the study lead"):
        verifier.examine({**files, "plans/plan-1.json": late.to_bytes()}, "mini")


def test_a_grant_or_a_change_of_leads_that_the_site_made_up_is_found(hub):
    north = hub.site("north")
    hub.publish("stroke")
    hub.lead("grant", "north", "--study", "stroke")
    north("run", "--once")
    north.approve_plan("stroke")
    liar, made_up = Liar(north), SigningKey.generate()
    assert liar.found("stroke") == ""
    (_, first), *_ = liar.desk.ledger.membership().grants
    said = Grant(
        number=2, previous=first.digest, day="2026-05-01", coordinator="hub", site="north", study="stroke",
        granted=False,
    )  # fmt: skip
    liar.desk.ledger.note_grant(said.signed([made_up]))
    assert "a grant must be signed by the study lead" in liar.found("stroke")
    (led,) = liar.desk.config.leads
    change = LeadChange(
        number=1, previous=GENESIS, day="2026-05-01", coordinator="hub", name="eve", before=(led,),
        after=tuple(sorted({led, made_up.public.hex})), threshold_before=1, threshold=1,
    )  # fmt: skip
    liar.desk.ledger.note_leads(change.signed([made_up]))
    assert "a change of leads must be signed by those who led before" in liar.found("mini")
