"""A ledger put back from a backup: the coordinator finds it out, and what is counted is never less than was spent."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from service import LEAD, SMALL, Hub, small_table
from test_ledger import deliver

from shared import privacy
from shared.errors import BudgetRefusal, LedgerRefusal, StateRefusal
from shared.plan import Budget, LatentNoisePlan, StudyPlan, Wave, sign_plan
from shared.release import planned_event
from site_agent.ledger import Ledger, Lost
from site_agent.plans import Plans
from site_agent.recovery import draws_within, recover, survey

TODAY = dt.date(2026, 5, 1)
PLAN = StudyPlan(
    study="mini",
    version=1,
    title="A small study",
    purpose="To test recovery.",
    coordinator="hub",
    expires=dt.date(2999, 1, 1),
    release=LatentNoisePlan(w=0.5),
    budget=Budget(epsilon=5000.0),
    waves=tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in range(1, 13)),
    dictionary=SMALL,
    returning="refresh",
)
EVENT = planned_event(PLAN)


class Agent:
    """A site whose releases are made by hand, before a real coordinator."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder, self.keys = hub, folder, hub.sites["north"]
        self.ledger = Ledger.create(folder / "ledger.db", self.keys.release, site="north")
        self.plans = Plans(
            folder=folder / "plans",
            coordinator="hub",
            leads={LEAD.public.key_id: LEAD.public},
            threshold=1,
            approvers={"steward": self.keys.steward.public},
            memory=self.ledger,
        )
        self.door = hub.egress("north")

    def reserved(self, wave: int, release_id: str):
        return self.ledger.reserve(
            study="mini",
            plan_hash=PLAN.hash,
            wave=wave,
            release_id=release_id,
            event=EVENT.to_canonical(),
            delta=PLAN.budget.delta,
            cap_epsilon=PLAN.budget.epsilon,
        )

    def drawn(self, wave: int, name: str = ""):
        hold = self.reserved(wave, name or f"{wave:032d}")
        return self.ledger.start_drawing(
            self.ledger.mark_anchored(hold, self.door.anchor(self.ledger.anchor_envelope()))
        )

    def delivered(self, wave: int):
        hold = self.drawn(wave)
        sealed = self.hub.seal("north", wave=wave, release_id=hold.release_id, table=small_table(seed=wave))
        self.door.send(sealed.envelope, sealed.path)
        return deliver(self.ledger, hold, sealed.statement.bundle_sha256)

    def back_up(self) -> Path:
        return Path(shutil.copytree(self.folder, self.folder.with_name("backup"), dirs_exist_ok=True))

    def put_back(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name("backup"), self.folder)

    def recover(self):
        return recover(self.ledger, self.plans, self.door, ["mini"])

    def spent(self) -> float:
        return self.ledger.study_total("mini", PLAN.budget.delta).epsilon


@pytest.fixture
def agent(tmp_path):
    hub = Hub(tmp_path / "hub", PLAN, "north")
    with hub.serve():
        made = Agent(hub, tmp_path / "site")
        yield made
        made.door.close()
    hub.store.close()


def test_the_bound_on_missing_draws_holds_for_every_way_to_fill_the_gap(agent):
    """Burnt, delivered and half-made releases, put back to every earlier state: never fewer charges than draws."""
    draws = []
    for wave, end in ((1, "burn"), (1, "deliver"), (2, "burn"), (2, "burn"), (3, "deliver"), (4, "leave")):
        hold = agent.drawn(wave, f"draw-{len(draws)}")
        draws.append(agent.ledger.anchored())
        if end == "burn":
            agent.ledger.burn(hold, "power cut")
        elif end == "deliver":
            deliver(agent.ledger, hold)
    last = agent.door.witnessed("mini").seq
    for known in range(last + 1):
        assert draws_within(last - known) >= sum(seq > known for seq in draws)


def test_a_ledger_that_was_not_put_back_has_nothing_to_recover(agent):
    assert agent.recover().state == "whole"
    agent.delivered(1)
    assert agent.recover().state == "whole"
    with pytest.raises(StateRefusal):
        agent.ledger.count_lost(agent.door.witnessed("mini"), (), accepted={})


@pytest.mark.parametrize("grown", [0, 1, 40])
def test_a_ledger_put_back_is_refused_however_long_it_grows_and_goes_on_only_by_the_leads_word(agent, grown):
    agent.delivered(1)
    agent.back_up()
    agent.delivered(2)
    agent.ledger.burn(agent.drawn(3), "power cut")
    truth = agent.spent()
    agent.put_back()
    if grown:
        hold = agent.reserved(5, "again")
        for k in range(grown - 1):
            agent.ledger.approve_plan(study="other", version=1 + k, plan_hash="a" * 64, approver="steward")
        with pytest.raises(LedgerRefusal, match="ledger recover"):
            agent.door.anchor(agent.ledger.anchor_envelope())
        assert agent.ledger.hold(hold.release_id).state == "reserved"
    found = agent.recover()
    assert found.state == "counted"
    # Entry 2 is the last one known to be anchored; waves 2 and 3 were reserved at entries 9 and 16.
    assert (found.known, found.missing, found.unknown) == (2, 14, 4)
    assert [(one.release_id, one.wave, one.count) for one in found.lost] == [(f"{2:032d}", 2, 1), ("", 0, 4)]
    assert agent.spent() >= truth
    assert agent.recover().fingerprint == found.fingerprint
    with pytest.raises(LedgerRefusal):
        agent.door.anchor(agent.ledger.anchor_envelope())
    agent.hub.store.allow_reanchor("north", found.fingerprint)
    agent.delivered(4)  # the next release brings the head along
    assert agent.recover().state == "whole"
    with pytest.raises(StateRefusal, match="wave 2"):
        agent.reserved(2, "second")
    assert agent.ledger.verify() == Ledger(agent.ledger.path, agent.keys.release, site="north").verify()
    agent.ledger.verify(agent.door.witnessed("mini"))


def test_what_was_open_in_the_backup_is_closed_and_a_delivered_release_is_known_as_delivered(agent):
    first, second = agent.drawn(1), None
    agent.back_up()
    sealed = agent.hub.seal("north", wave=1, release_id=first.release_id)
    agent.door.send(sealed.envelope, sealed.path)
    deliver(agent.ledger, first, sealed.statement.bundle_sha256)
    second = agent.drawn(2)
    agent.put_back()
    agent.reserved(7, "open")
    found = agent.recover()
    assert agent.ledger.hold(first.release_id).state == "delivered"
    assert agent.ledger.hold("open").state == "burnt"
    assert found.state == "counted"
    assert second.release_id not in {hold.release_id for hold in agent.ledger.holds()}
    assert agent.ledger.study_total("mini", PLAN.budget.delta).releases == 2 + draws_within(found.missing)


def test_the_dearest_known_version_of_the_plan_is_the_price(agent):
    agent.back_up()
    agent.drawn(1)
    dearer = replace(PLAN, version=2, release=LatentNoisePlan(w=0.8))
    agent.put_back()
    agent.plans.receive("mini", sign_plan(PLAN, [LEAD]), today=TODAY)
    agent.hub.store.add_plan(sign_plan(dearer, [LEAD]), dearer)
    (one,) = survey(agent.ledger, agent.plans, agent.door, ["mini"]).lost
    assert one.plan_hash == dearer.hash
    delta = PLAN.budget.delta
    assert privacy.epsilon(privacy.from_canonical(one.event), delta) > privacy.epsilon(EVENT, delta)


def test_lost_charges_stand_beyond_the_cap_and_then_nothing_more_is_released(agent):
    agent.back_up()
    receipt = agent.door.anchor(agent.ledger.anchor_envelope())
    cap = privacy.epsilon_from_rdp(2 * privacy.rdp(EVENT), 1e-6)
    many = Lost(study="mini", plan_hash=PLAN.hash, event=EVENT.to_canonical(), delta=1e-6, cap_epsilon=cap, count=500)
    named = [replace(many, count=1, release_id=f"lost-{k}", wave=k, log_index=k) for k in range(1, 501)]
    gone = replace(receipt, seq=9000)
    fingerprint = agent.ledger.count_lost(gone, [many, *named], accepted={})
    spent = agent.ledger.study_total("mini", 1e-6)
    assert (spent.releases, spent.burnt) == (1000, 500)
    assert spent.epsilon > cap
    with pytest.raises(BudgetRefusal):
        agent.reserved(1001, "more")
    assert agent.ledger.count_lost(gone, [many], accepted={}) == fingerprint
    assert agent.ledger.verify() == 3


def test_a_backup_from_before_an_earlier_recovery_is_refused(agent):
    agent.delivered(1)
    agent.back_up()
    agent.delivered(2)
    agent.put_back()
    agent.hub.store.allow_reanchor("north", agent.recover().fingerprint)
    assert agent.recover().state == "done"
    agent.delivered(5)
    agent.put_back()
    with pytest.raises(LedgerRefusal, match="last recovery"):
        agent.recover()


def test_a_coordinator_put_back_is_brought_up_to_date_by_the_site(agent):
    agent.drawn(1)
    agent.ledger.burn(agent.ledger.hold(f"{1:032d}"), "power cut")
    old = agent.door.witnessed("mini")
    agent.drawn(2)
    with agent.hub.store._engine.begin() as connection:
        connection.exec_driver_sql(f"delete from anchors where seq > {old.seq}")
    with pytest.raises(LedgerRefusal, match="proof from entry"):
        agent.door.anchor(agent.ledger.anchor_envelope())
    assert agent.recover().state == "whole"
    assert agent.door.witnessed("mini").seq == len(agent.ledger.entries())
