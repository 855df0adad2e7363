"""Who takes part, attacked: old words shown again, keys of those who have left, one person signing as two."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
from joined import PASSPHRASE, Joined
from test_recovery import PLAN

from shared.base.keys import SigningKey
from shared.errors import SignatureRefusal
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
