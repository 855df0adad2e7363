"""A ledger put back from a backup: the coordinator finds it out, and what is counted is never less than was spent."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
from stage.both_sides.service import LEAD, Hub
from stage.hospital_side.ledger import deliver
from stage.hospital_side.recovery import EVENT, PLAN, Agent

from shared.errors import BudgetRefusal, LedgerRefusal, PlanRefusal, StateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, sign_plan
from shared.privacy import accountant as privacy
from shared.releases.receipt import planned_event
from site_agent.decide.recovery import draws_within, recover
from site_agent.ledger.book import Ledger, Lost
from site_agent.ledger.files import RESTORED
from site_agent.ledger.holds import curve_of, price_of

TODAY = dt.date(2026, 5, 1)


class Offering:
    """The coordinator, but for the plan that it offers."""

    def __init__(self, door, plan) -> None:
        self.door, self.plan = door, plan
        self.anchor, self.holdings = door.anchor, door.holdings

    def fetch_plan(self, study: str):
        if self.plan is None or study != "mini":
            raise PlanRefusal("a study must have a plan", given="none")
        return self.plan


class Everywhere(Offering):
    """The same, in more studies than one."""

    def __init__(self, door, plan) -> None:
        super().__init__(door, plan)
        self.holdings = lambda study: door.holdings("mini")


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


@pytest.mark.fault("F17")
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


def test_a_draw_that_was_due_when_the_backup_was_made_is_not_drawn_twice(agent):
    """The coordinator has seen nothing since: by its heads the old ledger is whole."""
    hold = agent.ledger.mark_anchored(agent.reserved(1, "first"), agent.door.anchor(agent.ledger.anchor_envelope()))
    agent.back_up()
    agent.ledger.start_drawing(hold)
    truth = agent.spent()
    agent.put_back()
    (agent.folder / RESTORED).write_text('{"restored": 0}')
    for spend in (lambda: agent.ledger.start_drawing(hold), lambda: agent.reserved(2, "second")):
        with pytest.raises(LedgerRefusal, match="settled"):
            spend()
    assert agent.recover().state == "whole"
    assert not (agent.folder / RESTORED).exists()
    assert (agent.ledger.hold("first").state, agent.spent()) == ("burnt", truth)
    agent.drawn(1, "again")
    assert agent.spent() > truth, "a second draw is a second charge"


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


def test_a_draw_nobody_can_name_costs_at_no_order_less_than_under_any_known_version(agent):
    """Two curves that cross: whichever plan were taken for the dearest, some order would be charged too little."""
    steep = privacy.Gaussian(sigma=1.0, sensitivity=1.0)
    flat = privacy.ExponentialMechanism(epsilon=4.0)
    above = privacy.rdp(steep) > privacy.rdp(flat)
    assert above.any()
    assert not above.all()
    price = price_of(steep.to_canonical(), 1e-6, [flat.to_canonical()])
    assert np.array_equal(curve_of(price), np.maximum(privacy.rdp(steep), privacy.rdp(flat)))
    assert price["epsilon"] == max(privacy.epsilon(steep, 1e-6), privacy.epsilon(flat, 1e-6))
    assert price["epsilon_pure"] is None, "one of them has none"

    agent.back_up()
    agent.drawn(1)
    agent.put_back()
    # By its own δ the first looks dearer than the second, which loses more at every order.
    cheap = replace(PLAN, budget=Budget(epsilon=5000.0, delta=1e-9))
    dear = replace(PLAN, version=2, release=LatentNoisePlan(w=0.52), budget=Budget(epsilon=5000.0, delta=1e-3))
    spent = [privacy.epsilon(planned_event(plan), plan.budget.delta) for plan in (cheap, dear)]
    assert spent[0] > spent[1]
    agent.plans.receive("mini", sign_plan(cheap, [LEAD]), today=TODAY)
    agent.hub.store.add_plan(sign_plan(dear, [LEAD]), dear)
    found = agent.recover()
    (one,) = found.lost
    assert (one.event, found.priced) == (planned_event(dear).to_canonical(), {"mini": (1, 2)})
    for delta in (1e-9, 1e-6, 1e-3):
        least = privacy.epsilon_from_rdp(privacy.rdp(planned_event(dear)), delta)
        assert agent.ledger.study_total("mini", delta).epsilon >= least
        assert agent.ledger.study_total("mini", delta).shown >= least


def test_a_release_is_charged_by_the_plan_that_was_signed_and_by_no_cheaper_one_that_is_offered(agent):
    dear = replace(PLAN, version=2, release=LatentNoisePlan(w=0.9))
    agent.back_up()
    hold = agent.drawn(1)
    sealed = agent.hub.seal("north", release_id=hold.release_id, plan=dear)
    agent.hub.store.add_plan(sign_plan(dear, [LEAD]), dear)
    agent.door.send(sealed.envelope, sealed.path)
    agent.put_back()
    door = Offering(agent.door, sign_plan(PLAN, [LEAD]))
    for begun in (False, True):
        if begun:
            agent.plans.receive("mini", sign_plan(PLAN, [LEAD]), today=TODAY)
        with pytest.raises(StateRefusal, match="version 2") as caught:
            recover(agent.ledger, agent.plans, door, ["mini"])
        assert "plan-2.json" in caught.value.next_step
    assert agent.ledger.recoveries() == 0
    agent.plans.receive("mini", sign_plan(dear, [LEAD]), today=TODAY)
    found = recover(agent.ledger, agent.plans, door, ["mini"])
    named = next(one for one in found.lost if one.release_id)
    assert (named.plan_hash, named.event) == (dear.hash, planned_event(dear).to_canonical())


def test_nothing_is_counted_as_nothing_where_the_plan_and_the_releases_are_hidden(agent):
    """A backup from before the first plan was filed, and a coordinator that knows of no plan and no release."""
    agent.back_up()
    agent.drawn(1)
    agent.put_back()
    with pytest.raises(StateRefusal, match="no plan of mini") as caught:
        recover(agent.ledger, agent.plans, Offering(agent.door, None), ["mini"])
    assert "study lead" in caught.value.next_step
    with pytest.raises(StateRefusal, match="no plan of second"):
        recover(agent.ledger, agent.plans, Everywhere(agent.door, sign_plan(PLAN, [LEAD])), ["mini", "second"])
    assert agent.ledger.recoveries() == 0
    assert agent.recover().lost


@pytest.mark.fault("F17")
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


@pytest.mark.fault("F17")
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
