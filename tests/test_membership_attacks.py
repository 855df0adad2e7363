"""Who takes part, attacked: old words shown again, keys of those who have left, one person signing as two."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from joined import PASSPHRASE, Joined
from test_recovery import PLAN

from shared.base.chain import GENESIS
from shared.base.keys import SigningKey
from shared.errors import ApprovalRefusal, SignatureRefusal
from shared.membership.declined import DeclinedNotice
from shared.membership.key_changes import KeyChange, SiteKeyring, open_key_change
from shared.plans.plan import sign_plan
from shared.wire.messages import MembershipReply
from site_agent.egress import Egress


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


# -- keys and approvers -----------------------------------------------------------------------------------------------
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
