"""A site that was revoked joins anew with another folder: what it was is of the log, and nothing of it is followed."""

from __future__ import annotations

import dataclasses

import pytest
from stage.both_sides.joined import Joined
from stage.hospital_side.recovery import PLAN

from shared.errors import SchemaRefusal
from shared.membership.statements import ChainPlace
from shared.plans.invitation import Invitation
from shared.wire.site_messages import MembershipReply
from site_agent.egress import Egress


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as made:
        yield made


def test_a_site_whose_keys_had_changed_joins_anew_and_its_old_changes_stay_in_the_log(hub):
    north = hub.site("north")
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    north("rotate-key", "release", "--as", "dr-lind")
    hub.lead("revoke", "north")
    anew = hub.site("north")
    anew("run", "--once")
    assert anew("grants")["studies"] == ["mini"], "it is no old copy: its chain of keys begins anew"
    found = anew("ledger", "recover")
    assert (found["state"], found["unknown_draws"]) == ("counted", 2), "what nobody here can know counts as drawn"
    hub.lead("reanchor", "north", "--fingerprint", found["fingerprint"])
    assert anew("ledger", "recover")["state"] == "done"
    assert anew("approver", "add", "dr-roe", "--as", "dr-lind")["in_force"]
    assert hub.members().key_changes("north")[0][0].number == 1
    assert anew("audit", "verify")["ok"]
    assert hub.store.verify_log() >= 3
    hub.store.verify_signatures()


def test_a_replacement_that_waited_ends_with_the_membership_that_asked_for_it(hub):
    north = hub.site("north", "dr-lind", "dr-okoye")
    fingerprint = north("approver", "replace", "dr-lind", "--as", "dr-okoye")["fingerprint"]
    hub.lead("revoke", "north")
    hub.site("north")
    assert hub.members().waiting("north") == ()
    hub.lead("rekey", "north", "--fingerprint", fingerprint, expect=2)


def test_a_site_that_is_invited_after_a_change_of_leads_follows_only_what_comes_after_it(hub, monkeypatch):
    hub.lead("lead", "add", "b")
    hub.lead("lead", "retire", "b", "--key", "lead")
    north = hub.site("north")
    assert north.desk.config.leads_since.startswith("2 ")
    whole = Egress.membership

    def only_the_first(self, *args) -> MembershipReply:
        reply = whole(self, *args)
        return dataclasses.replace(reply, leads=reply.leads[:1])

    with monkeypatch.context() as patch:
        patch.setattr(Egress, "membership", only_the_first)
        north("run", "--once")
        assert len(north.desk.config.leads) == 1, "the lead who had left before the invitation leads nothing here"
    hub.lead("lead", "add", "c")
    north("run", "--once")
    assert len(north.desk.config.leads) == 2
    assert north("audit", "verify")["ok"]


def test_an_invitation_names_a_chain_that_is_not_the_coordinators(hub, monkeypatch):
    hub.lead("lead", "add", "b")
    north = hub.site("north")
    config = dataclasses.replace(north.desk.config, leads_since=f"1 {'ab' * 32}")
    config.save()
    said = north.refused("grants", expect=30)
    assert "another history" in said["given"]


def test_a_site_that_joins_anew_takes_no_grant_of_before_and_every_one_of_after(hub):
    north = hub.site("north")
    for study in ("stroke", "later"):
        hub.publish(study)
        hub.lead("grant", "north", "--study", study)
    north("run", "--once")
    hub.lead("ungrant", "north", "--study", "stroke")
    hub.lead("lead", "add", "b")
    hub.lead("lead", "retire", "lead", "--key", "b")  # whoever signed the grants of before leads no more
    hub.lead("revoke", "north")
    anew = hub.site("north")
    assert set(anew("grants")["studies"]) == {"mini", "later"}
    assert anew.desk.ledger.membership().grants == ()
    assert set(hub.store.enrolment("north").studies) == {"mini", "later"}
    hub.lead("grant", "north", "--study", "stroke", "--key", "b")
    assert set(anew("grants")["studies"]) == {"mini", "later", "stroke"}
    assert [said.number for said, _ in anew.desk.ledger.membership().grants] == [4]
    hub.lead("plan", "cosign", "stroke", "--key", "b")
    anew.approve_plan("stroke")
    assert anew("audit", "verify")["ok"]


def test_an_invitation_of_a_coordinator_without_changes_is_as_it_was_before(hub):
    hub.lead("invite", "west", "--study", "mini", "--out", hub.folder / "west.invitation")
    data = (hub.folder / "west.invitation").read_bytes()
    assert b"_since" not in data
    assert Invitation.from_bytes(data).to_bytes() == data
    for wrong in ("3", "0 " + "ab" * 32, "x " + "ab" * 32, "1 " + "AB" * 32, "01 " + "ab" * 32):
        with pytest.raises(SchemaRefusal):
            ChainPlace.read(wrong)
