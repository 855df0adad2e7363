"""What a site gives in a secure sum: the noise it was charged for, its pilot's records, in time, and opened once."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.mechanisms.summed import Dies, Hospital, SumStage, stage

from coordinator.services.collect.round_queue import RoundQueue
from coordinator.services.collect.sum_queue import SumQueue
from shared.errors import PlanRefusal, ReplayRefusal, StateRefusal
from shared.mechanisms.secure_sum.steps import LookOrder, SumStep
from shared.wire.rounds import PASSED_BY
from site_agent.cli import federating
from site_agent.ledger.holds import Round
from site_agent.training.secure_sum import giving
from site_agent.training.secure_sum.member import OwnRecords, awaited, member_of, part_in_sum

__all__ = ["stage"]  # the fixture


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Pilots delivered, and the level asked."""
    made = SumStage(tmp_path_factory.mktemp("asked"))
    with pytest.raises(StateRefusal):
        made.run(timeout=0.0)
    yield made
    made.close()


def work_of(hospital, egress):
    return giving.SumWork(hospital.plan, hospital.source, hospital.site(egress), egress, None, hospital.hears)


def test_the_level_that_a_site_tells_has_the_noise_that_its_plan_is_charged_for(asked):
    hospital = asked.hospitals["north"]
    member = member_of(hospital.ledger, "north", asked.plan)
    sigma = asked.plan.release.level_event(asked.plan).sigma
    _, content = asked.order("north", SumStep.LEVEL)
    with hospital.hub.egress("north") as egress:
        draw = work_of(hospital, egress)._verified(member, SumStep.LEVEL, content)
        levels = [draw() for _ in range(600)]
        records = OwnRecords.read(member, hospital.source, hospital.site(egress))
    look = LookOrder.from_bytes(content, asked.plan.release.terms(asked.plan)).look
    counted = records.look(look).level(records.x, records.y)[:, 0].sum()
    for told in (np.array([one.events for one in levels]), np.array([one.charges for one in levels])):
        share = 599 * (told.std(ddof=1) / sigma) ** 2
        assert 0.0001 < stats.chi2.cdf(share, 599) < 0.9999, told.std(ddof=1) / sigma
    table = pd.read_csv(hospital.source.path)
    events = np.array([one.events for one in levels])
    assert events.mean() == pytest.approx(counted, abs=5 * sigma / 24)
    # Who had the event after more than one was expected of them is not counted: by these pilots hardly anybody.
    there = table.cvd[table.time <= 25].sum()
    assert 0.95 * there <= counted <= there


def test_whoever_has_withdrawn_since_the_pilot_adds_nothing_and_the_number_of_records_stays(asked):
    hospital = asked.hospitals["south"]
    look = LookOrder.from_bytes(asked.order("south", SumStep.LEVEL)[1], asked.plan.release.terms(asked.plan)).look
    member = member_of(hospital.ledger, "south", asked.plan)
    with hospital.hub.egress("south") as egress:
        site = hospital.site(egress)
        before = OwnRecords.read(member, hospital.source, site)
        from site_agent.release.sealed_state import read_rows

        persons = read_rows(hospital.ledger.folder(hospital.hold), hospital.hold).persons
        hospital.ledger.note_persons("hearts", persons[:3])
        after = OwnRecords.read(member, hospital.source, site)
    gone = before.look(look).rows(before.x, before.y)[:3]
    assert len(after.x) == len(before.x) - 3
    assert after.n == before.n == 400
    grid = member.terms.grid
    left = (before.steps(look) - after.steps(look)) * grid
    assert left == pytest.approx(gone.sum(axis=0), abs=10 * grid)


def test_whoever_has_withdrawn_since_the_pilot_says_nothing_where_records_are_drawn_in_about_a_point(asked):
    hospital = asked.hospitals["south"]
    look = LookOrder.from_bytes(asked.order("south", SumStep.LEVEL)[1], asked.plan.release.terms(asked.plan)).look
    aside = replace(look, offset=(0.7,))
    member = member_of(hospital.ledger, "south", asked.plan)
    with hospital.hub.egress("south") as egress:
        here = OwnRecords.read(member, hospital.source, hospital.site(egress))
    centred = replace(asked.plan, release=replace(asked.plan.release, held="centred"))
    left = replace(here, member=replace(member, plan=centred, release=centred.release), x=here.x[50:], y=here.y[50:])
    rows, grid = left.look(aside).rows(left.x, left.y), member.terms.grid
    # As the sum is read: n c is added again, for all that the pilot had.
    read = left.steps(aside)[0] * grid + left.n * 0.7
    assert read == pytest.approx((rows[:, 0] + 0.7).sum(), abs=400 * grid)


def test_of_another_table_than_the_pilot_s_nothing_is_begun(asked):
    hospital = asked.hospitals["west"]
    kept = hospital.source.path.read_text()
    hospital.source.path.write_text(kept.replace("west-0,", "west-x,"))
    try:
        with pytest.raises(StateRefusal, match="the table that the pilot was of"):
            hospital.answer(*asked.order("west", SumStep.LEVEL))
    finally:
        hospital.source.path.write_text(kept)
    assert not hospital.hold.begun


def test_a_site_under_another_key_than_the_plan_s_is_no_member(asked):
    release, names = asked.plan.release, list(asked.plan.release.members)
    release.require_site(names[0], release.members[names[0]])
    with pytest.raises(PlanRefusal, match="a new key needs an amended plan"):
        release.require_site(names[0], release.members[names[1]])
    with pytest.raises(PlanRefusal, match="among the members"):
        release.require_site("elsewhere", release.members[names[0]])


def test_a_site_that_the_sum_went_on_without_is_told_so_and_what_it_costs(stage):
    """It heard that the sum has not begun or went on without it; a consent to its old order was taken as any other."""
    silent, asked = stage.hospitals["north"], stage.hospitals["south"]
    silent.start = lambda **_: setattr(silent, "thread", ended()) or silent.thread
    silent.give(wait=0)
    assert not silent.said, "not begun"
    before = len(silent.ledger.entries())
    stage.whole(gone=["north"])
    with pytest.raises(StateRefusal, match="with which the sum goes on") as refused:
        silent.give(wait=0)
    assert refused.value.must == PASSED_BY
    assert "Nothing of its records was given" in refused.value.next_step
    assert "nothing more" in refused.value.next_step
    assert len(silent.ledger.entries()) == before
    own = part_in_sum(silent.ledger, stage.plan)
    assert (own.passed_by, own.finished, own.waits) == (True, True, False)
    assert not awaited(silent.ledger, stage.plan)
    with pytest.raises(StateRefusal) as consent:
        silent.consent()
    assert (consent.value.must, consent.value.next_step) == (PASSED_BY, refused.value.next_step)
    asked.give(wait=0)
    assert not part_in_sum(asked.ledger, stage.plan).passed_by, "it is in the sum"


def test_a_site_that_consents_too_late_is_told_so_and_gives_no_keys(stage):
    late = stage.hospitals["north"]
    late.consent = lambda: (_ for _ in ()).throw(Dies("nobody is there"))
    opened = stage.whole(gone=["north"])
    assert (late.answered, 2 in opened.parts) == ([SumStep.LEVEL], False)
    assert part_in_sum(late.ledger, stage.plan).waits
    with pytest.raises(StateRefusal, match="with which the sum goes on") as refused:
        late.give(wait=0)
    assert "two noisy counts" in refused.value.next_step
    with pytest.raises(StateRefusal, match="with which the sum goes on"):
        Hospital.consent(late)
    assert SumStep.OFFER not in late.hold.begun


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (0, "site-agent federate hearts --wait 60 goes on"),
        (SumStep.LEVEL, "site-agent federate hearts --wait 60 goes on"),
        (SumStep.OFFER, "Their secrets went with this process"),
        (SumStep.OPEN, "had given all its part"),
    ],
)
def test_ctrl_c_says_where_the_site_stands_in_the_sum_and_how_it_goes_on(stage, capsys, steps, words):
    """It ended without a word."""
    hospital = stage.hospitals["north"]
    begun = {number: Round(asked="a", answer="b") for number in range(1, steps + 1)}
    hold = replace(hospital.hold, begun=begun)
    ledger = SimpleNamespace(signer=hospital.ledger.signer, holds=lambda study: [hold])
    desk = SimpleNamespace(ledger=ledger, config=SimpleNamespace(site="north"))
    with pytest.raises(KeyboardInterrupt), federating._heard_on_stop(lambda: federating._stopped_sum(desk, stage.plan)):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert said.startswith("Stopped")
    assert words in said


def test_a_sum_begins_without_a_pilot_only_where_that_is_said(tmp_path):
    made = SumStage(tmp_path, late=["north"])
    try:
        with pytest.raises(StateRefusal, match="north has delivered no pilot") as refused:
            made.run(timeout=0.0)
        assert "--without north" in refused.value.next_step
        assert not SumQueue(made.hub.store, made.plan).order_contents(SumStep.LEVEL)
        with pytest.raises(StateRefusal, match="4 of 5 sites must give"):
            made.run(timeout=0.0, without=["north"])
        assert sorted(SumQueue(made.hub.store, made.plan).order_contents(SumStep.LEVEL)) == [0, 1, 3, 4]
    finally:
        made.close()


def test_what_comes_after_the_next_step_was_asked_is_too_late_and_another_opening_is_refused(stage):
    victim = stage.hospitals["north"]
    victim.start = lambda **_: setattr(victim, "thread", ended()) or victim.thread
    opened = stage.whole(gone=["north"])
    assert 2 not in opened.parts
    victim.answer(*stage.order("north", SumStep.LEVEL))
    assert ("too late", SumStep.LEVEL) in victim.said
    store = stage.hub.store
    other = replace(opened, total=tuple(one + 1.0 for one in opened.total))
    with pytest.raises(ReplayRefusal, match="opened once"):
        store.keep_opened("hearts", other, today=giving.dt.date(2026, 6, 1))
    store.keep_opened("hearts", opened, today=giving.dt.date(2026, 6, 1))
    assert store.opened_sum(stage.plan.hash).document == opened
    assert RoundQueue(store).progress("hearts") is None, "a sum is no training"


def ended():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return thread
