"""A secure sum over the sites' own channel, whole: real service, real ledgers, real pilots, each site its own process.

Five hospitals of some hundred patients. What is tested is that the opened sum is the sum of what the hospitals' own
tables add, who was charged, in which order the ledger has it, and that a fault anywhere ends in an opened sum or in
nothing opened, never in two openings or in a charge too few.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
import pytest
from stage.mechanisms.summed import BINARY, NAMES, Dies, SumStage, dying, stage
from stage.processes.database_server import database_server

from shared.errors import NetworkRefusal, StateRefusal
from shared.mechanisms.secure_sum.steps import SumStep
from shared.privacy import accountant as privacy
from shared.releases.receipt import planned_event
from site_agent.training.secure_sum.member import PASSED

__all__ = ["stage"]  # the fixture


def require_true(stage, opened):
    """That the opened numbers are the survivors' own, within their noise."""
    distance = np.abs(np.array(opened.total) - stage.exact(opened))
    assert (distance <= 6 * opened.sigma).all(), (distance, opened.sigma)


def test_five_hospitals_give_one_sum_and_each_is_charged_once_before_it(stage):
    before = {name: len(one.ledger.entries()) for name, one in stage.hospitals.items()}
    charged = {name: one.ledger.study_total("hearts", 1e-6).epsilon for name, one in stage.hospitals.items()}
    opened = stage.whole()
    assert list(opened.parts) == [0, 1, 2, 3, 4]
    require_true(stage, opened)
    assert (np.array(opened.total) != stage.exact(opened)).all(), "noise is in it"
    for name, hospital in stage.hospitals.items():
        assert hospital.failed is None
        assert hospital.answered == list(SumStep)
        assert [step for what, step in hospital.said if what == "answered"] == list(SumStep)
        assert hospital.ledger.study_total("hearts", 1e-6).epsilon == charged[name]
        assert charged[name] >= privacy.epsilon(planned_event(stage.plan), 1e-6)
        kinds = [entry.kind for entry in hospital.ledger.entries()[before[name] :]]
        assert kinds == [
            *("round", "witnessed", "answer"),
            "sum_consented",
            *("round", "witnessed", "answer") * 6,
        ]
        assert hospital.ledger.verify() == len(hospital.ledger.entries())
    kept = stage.hub.store.opened_sum(stage.plan.hash)
    assert kept.document == opened
    assert stage.hub.store.verify_log()
    # Again is free: it is opened, and nobody is asked anything.
    assert stage.run() == opened
    entries = [len(one.ledger.entries()) for one in stage.hospitals.values()]
    stage.hospitals[NAMES[0]].give(wait=0)
    assert [len(one.ledger.entries()) for one in stage.hospitals.values()] == entries


def test_of_yes_or_no_beside_a_column_of_levels_and_on_a_database_server_it_is_the_same(tmp_path):
    with database_server("sum") as server:
        made = SumStage(tmp_path, names=(*NAMES, "zeal"), rows=300, url=server.url, **BINARY)
        try:
            opened = made.whole()
            assert len(opened.parts) == 6
            require_true(made, opened)
            assert made.hub.store.verify_log()
            assert made.run() == opened
        finally:
            made.close()


# -- processes that end -----------------------------------------------------------------------------------------------
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("place", "time", "in_the_sum"),
    [
        ("sum.begun", 1, False),  # the level: nobody can tell whether its noise was drawn
        ("sum.witnessed", 1, False),
        ("sum.sealed", 2, False),  # keys that were never sent
        ("sum.sealed", 4, False),
        ("sum.begun", 5, False),  # masked, by the ledger, and nothing left
        pytest.param("sum.anchored", 5, False, marks=pytest.mark.soak),
        ("sum.witnessed", 5, False),
        pytest.param("sum.answer.before_write", 5, False, marks=pytest.mark.soak),
        pytest.param("sum.answer.before_fsync", 5, False, marks=pytest.mark.soak),
        ("sum.answer.before_rename", 5, False),
        pytest.param("sum.answer.after_rename", 5, False, marks=pytest.mark.soak),
        pytest.param("sum.answer.after_fsync", 5, False, marks=pytest.mark.soak),
        ("sum.sealed", 6, True),  # its numbers are in the sum, its shares are not opened
        ("sum.begun", 7, True),
    ],
)
def test_a_site_that_is_killed_is_a_drop_out_charged_and_the_sum_is_that_of_the_others(
    stage, monkeypatch, place, time, in_the_sum
):
    victim = stage.hospitals["north"]
    charged = victim.ledger.study_total("hearts", 1e-6).epsilon
    dying(monkeypatch, lambda: victim.thread, place, time)
    opened = stage.whole(gone=["north"])
    assert isinstance(victim.failed, Dies), victim.failed
    assert (2 in opened.parts) is in_the_sum
    assert len(opened.parts) == 4 + in_the_sum
    require_true(stage, opened)
    assert victim.ledger.study_total("hearts", 1e-6).epsilon == charged
    # A new process of the site has no secrets: it gives nothing that the first one did not.
    monkeypatch.undo()
    given = {number: one.answer for number, one in victim.hold.begun.items() if one.answer}
    victim.ledger.recover()
    said = nullcontext() if time == SumStep.OPEN else pytest.raises(StateRefusal, match="with which the sum goes on")
    with said as refused:
        victim.give(wait=0)
    if refused is not None:
        masked = SumStep.MASK in given
        assert ("masked numbers were given" in refused.value.next_step) is masked
    assert {number: one.answer for number, one in victim.hold.begun.items() if one.answer} == given
    assert victim.ledger.verify()


@pytest.mark.parametrize("file", ["sum.order.", pytest.param("sum.consent.", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "moment",
    [
        "before_rename",
        *(
            pytest.param(one, marks=pytest.mark.soak)
            for one in ("before_write", "before_fsync", "after_rename", "after_fsync")
        ),
    ],
)
def test_a_site_killed_before_it_offers_keys_is_in_the_sum_when_it_begins_anew(stage, monkeypatch, file, moment):
    """Nothing is lost while the order is put before an approver, or the consent is noted."""
    victim = stage.hospitals["north"]
    dying(monkeypatch, lambda: victim.first, file + moment)

    def again():
        victim.first = victim.start()
        victim.first.join()
        assert isinstance(victim.failed, Dies), victim.failed
        victim.failed = None
        victim.give()

    victim.first = None
    restarted = threading.Thread(target=again)
    restarted.start()
    for name, hospital in stage.hospitals.items():
        if name != "north":
            hospital.start()
    opened = stage.run()
    for thread in (restarted, *(one.thread for one in stage.hospitals.values())):
        thread.join()
    assert len(opened.parts) == 5
    require_true(stage, opened)
    assert victim.answered == list(SumStep)


@pytest.mark.parametrize(
    "moment",
    [
        "before_rename",
        "after_rename",
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("before_write", "before_fsync", "after_fsync")),
    ],
)
def test_a_site_killed_while_it_notes_that_a_sum_went_on_without_it_hears_it_again(stage, monkeypatch, moment):
    victim = stage.hospitals["north"]
    dying(monkeypatch, lambda: victim.thread, "sum.witnessed", 1)
    stage.whole(gone=["north"])
    monkeypatch.undo()
    victim.ledger.recover()
    with monkeypatch.context() as killed:
        dying(killed, threading.current_thread, f"sum.passed.{moment}")
        with pytest.raises(Dies):
            victim.give(wait=0)
    with pytest.raises(StateRefusal, match="with which the sum goes on"):
        victim.give(wait=0)
    assert (victim.ledger.folder(victim.hold) / PASSED).read_bytes()
    assert victim.ledger.verify()


def test_a_process_that_begins_anew_between_keys_and_mask_sends_what_was_sealed_and_says_that_it_is_lost(
    stage, monkeypatch
):
    victim = stage.hospitals["north"]
    dying(monkeypatch, lambda: victim.thread, "sum.sealed", 3)

    def again():
        victim.thread.join()
        victim.ledger.recover()
        victim.give()

    for hospital in stage.hospitals.values():
        hospital.start()
    restarted = threading.Thread(target=again)
    restarted.start()
    opened = stage.run()
    for thread in (restarted, *(one.thread for one in stage.hospitals.values())):
        thread.join()
    assert 2 not in opened.parts
    require_true(stage, opened)
    assert ("sent again", SumStep.SEAL) in victim.said
    assert ("dropped out", SumStep.JOIN) in victim.said
    assert victim.hold.begun[SumStep.JOIN].answer == ""
    lost = [step.lost for step in stage.steps if step.step == SumStep.JOIN]
    assert lost[-1] == {"north": "E_TRAINING"}, "nobody had to wait for it"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("place", "time"),
    [
        *(("sum.asked", number) for number in range(1, 8)),
        ("sum.before_ask", 8),
        ("sum.after_ask", 3),
        ("sum.before_opened", 1),
        ("sum.after_opened", 1),
    ],
)
def test_a_coordinator_killed_at_any_step_goes_on_and_opens_one_sum(stage, monkeypatch, place, time):
    for hospital in stage.hospitals.values():
        hospital.start()
    here = threading.current_thread()
    dying(monkeypatch, lambda: here, place, time)
    with pytest.raises(Dies):
        stage.run()
    monkeypatch.undo()
    opened = stage.run()
    for hospital in stage.hospitals.values():
        hospital.thread.join()
        assert hospital.failed is None
        assert hospital.answered == list(SumStep)
    assert len(opened.parts) == 5
    require_true(stage, opened)
    assert stage.hub.store.opened_sum(stage.plan.hash).document == opened
    assert [b"sum_opened" in one.entry for one in stage.hub.store.log()].count(True) == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("step", list(SumStep))
def test_below_the_threshold_nothing_is_opened_and_it_is_said(stage, monkeypatch, step):
    """Two of five are lost where one may be."""
    gone = [stage.hospitals[name] for name in ("east", "west")]
    for hospital in gone:
        monkeypatch.setattr(hospital, "site", dies_in(hospital, step))
    with pytest.raises(StateRefusal, match="4 of 5 sites must give") as refused:
        stage.whole(gone=["east", "west"])
    assert "Nothing is opened" in refused.value.next_step
    assert [isinstance(one.failed, Dies) for one in gone] == [True, True]
    assert stage.hub.store.opened_sum(stage.plan.hash) is None
    charged = {one.ledger.study_total("hearts", 1e-6).epsilon for one in stage.hospitals.values()}
    assert len(charged) == 1


def dies_in(hospital, step):
    """The site as before, whose ledger ends its process when this step is to begin."""
    make = hospital.site

    def site(door):
        found = make(door)
        begin = found.ledger.begin_round

        def begun(hold, number, order):
            if number == step:
                raise Dies(f"{step}")
            return begin(hold, number, order)

        found.ledger.begin_round = begun
        return found

    return site


# -- lost replies -----------------------------------------------------------------------------------------------------
class LosesReplies:
    """A door whose first reply to each answer is lost after the coordinator has taken it."""

    def __init__(self, door) -> None:
        self._door, self._lost = door, set()

    def __getattr__(self, name):
        return getattr(self._door, name)

    def answer_round(self, answer, content, key):
        given = self._door.answer_round(answer, content, key)
        if answer.digest not in self._lost:
            self._lost.add(answer.digest)
            raise NetworkRefusal("the coordinator must answer", given="a reply that was lost")
        return given


class LosesAnswers(LosesReplies):
    """The first attempt never reaches the coordinator."""

    def answer_round(self, answer, content, key):
        if answer.digest not in self._lost:
            self._lost.add(answer.digest)
            raise NetworkRefusal("the coordinator must be reached", given="a lost connection")
        return self._door.answer_round(answer, content, key)


class LosesWitnesses(LosesReplies):
    """Every second acknowledgement of a head is lost: the beginning of a step is witnessed at the next attempt."""

    def __init__(self, door) -> None:
        super().__init__(door)
        self._asked = 0

    def anchor(self, envelope):
        found = self._door.anchor(envelope)
        self._asked += 1
        if self._asked % 2:
            raise NetworkRefusal("the coordinator must answer", given="a reply that was lost")
        return found

    def answer_round(self, answer, content, key):
        return self._door.answer_round(answer, content, key)


@pytest.mark.parametrize("door", [LosesReplies, LosesAnswers, LosesWitnesses])
def test_after_a_lost_reply_the_same_bytes_go_out_and_nothing_is_drawn_twice(stage, door):
    opened = stage.whole(doors=dict.fromkeys(NAMES, door), ended=NAMES)
    assert len(opened.parts) == 5
    require_true(stage, opened)
    for hospital in stage.hospitals.values():
        assert hospital.answered == list(SumStep)
        assert [entry.kind for entry in hospital.ledger.entries()].count("answer") == 7
