"""Orders of a secure sum that no honest coordinator sends: the site gives nothing, and begins nothing for them."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from stage.mechanisms.summed import as_order, stage

from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, ReplayRefusal, SignatureRefusal, StateRefusal
from shared.mechanisms.secure_sum.messages import Agreement, KeyOffer, Roster, Survivors
from shared.mechanisms.secure_sum.steps import LookOrder, SumStep
from shared.wire.rounds import number_of, step_of

__all__ = ["stage"]  # the fixture
WILD = {"weights": (1.0,), "whitening": ((1e9,),), "along": ((1e9, 1e9),), "start": (1e6,), "level": 40.0}


class Hostile:
    """A door behind which a coordinator with its true key asks something else in one step.

    Args:
        change: of the content; after so many `honest` orders of the step.
    """

    def __init__(self, door, plan, step, change, honest=0) -> None:
        self._door, self._plan, self._step, self._change, self._honest = door, plan, step, change, honest

    def __getattr__(self, name):
        return getattr(self._door, name)

    def next_round(self, study, flow=""):
        found = self._door.next_round(study, flow)
        if found is None or step_of(found[0].round) != self._step:
            return found
        if self._honest:
            self._honest -= 1
            return found
        content = self._change(found[1])
        return as_order(self._plan, found[0].round, content), content


def hostile(stage, step, change, honest=0):
    return {"north": lambda door: Hostile(door, stage.plan, step, change, honest)}


def terms_of(stage):
    return stage.plan.release.terms(stage.plan)


def look_with(stage, **change):
    def work(content):
        order = LookOrder.from_bytes(content, terms_of(stage))
        return replace(order, look=replace(order.look, **change)).to_bytes(terms_of(stage))

    return work


def half_the_noise(stage):
    """A sum of the same plan under other terms."""
    terms = terms_of(stage)
    return lambda content: LookOrder.from_bytes(content, terms).to_bytes(replace(terms, sigma=terms.sigma / 2))


def keys_of_its_own(stage):
    """The coordinator's in the place of a site's."""

    def work(content):
        terms = terms_of(stage)
        own = KeyOffer.signed(terms, 0, (os.urandom(32), os.urandom(32), bytes(32)), SigningKey.generate())
        roster = Roster.from_bytes(content, terms)
        return replace(roster, offers=(own, *roster.offers[1:])).to_bytes(terms)

    return work


def fewer_signatures(stage):
    def work(content):
        agreed = Agreement.from_bytes(content, terms_of(stage))
        return replace(agreed, signatures=dict(list(agreed.signatures.items())[:3])).to_bytes(terms_of(stage))

    return work


def without_the_site(stage):
    def work(content):
        survivors = Survivors.from_bytes(content, terms_of(stage))
        return replace(survivors, sites=(0, 1, 3, 4)).to_bytes(terms_of(stage))

    return work


@pytest.mark.parametrize(
    ("step", "change", "refusal"),
    [
        (SumStep.LEVEL, half_the_noise, ReplayRefusal),
        (SumStep.OFFER, half_the_noise, ReplayRefusal),
        (SumStep.SEAL, keys_of_its_own, SignatureRefusal),
        (SumStep.MASK, fewer_signatures, IntegrityRefusal),
        (SumStep.AGREE, without_the_site, IntegrityRefusal),
    ],
)
def test_a_site_gives_nothing_to_it_and_the_others_go_on(stage, step, change, refusal):
    victim = stage.hospitals["north"]
    opened = stage.whole(gone=["north"], doors=hostile(stage, step, change(stage)))
    assert isinstance(victim.failed, refusal), victim.failed
    assert step not in victim.hold.begun
    assert (2 in opened.parts) is (step > SumStep.MASK)


class NobodyConsents(Exception):
    """Ends a process that waits for an approver."""


def test_under_another_look_than_was_consented_to_no_keys_are_offered(stage):
    victim, asked = stage.hospitals["north"], []

    def consents_once(what, step):
        victim.said.append((what, step))
        if what == "waits for consent" and not asked:
            asked.append(step)
            victim.consent()
        elif what == "waits for consent":
            raise NobodyConsents  # to another one

    victim.hears = consents_once
    doors = hostile(stage, SumStep.OFFER, look_with(stage, start=(3.0,)), honest=1)
    opened = stage.whole(gone=["north"], doors=doors)
    assert isinstance(victim.failed, NobodyConsents)
    assert victim.said.count(("waits for consent", SumStep.OFFER)) == 2
    assert SumStep.OFFER not in victim.hold.begun
    assert 2 not in opened.parts


def test_a_step_is_not_asked_again_with_other_contents(stage):
    """A second look at the level, and a second list of survivors, under the same number."""
    opened = stage.whole()
    victim = stage.hospitals["north"]
    before = len(victim.ledger.entries())
    for step, change in ((SumStep.LEVEL, look_with(stage, start=(3.0,))), (SumStep.AGREE, without_the_site(stage))):
        said, content = stage.order("north", step)
        other = change(content)
        with pytest.raises(ReplayRefusal, match="what it was asked with before"):
            victim.answer(as_order(stage.plan, said.round, other), other)
    assert len(victim.ledger.entries()) == before
    assert len(opened.parts) == 5


def test_whatever_look_is_sent_a_site_adds_no_more_than_the_plan_s_bounds(stage):
    with pytest.raises(StateRefusal):
        stage.run(timeout=0.0)  # asks the level, and waits for nobody
    content = look_with(stage, **WILD)(stage.order("north", SumStep.LEVEL)[1])
    sent = LookOrder.from_bytes(content, terms_of(stage)).look
    bounds = stage.plan.release.bounds(stage.plan)
    added = np.abs(stage.hospitals["north"].exact(sent))
    assert (added <= 400 * bounds.sensitivity).all(), "of four hundred records, each within the bounds"
    assert added[1] > 0.99 * 400 * bounds.reach / math.sqrt(2), "and nearly all of them at their ends"


def test_an_order_for_another_site_or_a_step_too_early_is_refused(stage):
    with pytest.raises(StateRefusal):
        stage.run(timeout=0.0)  # asks the level, and waits for nobody
    victim = stage.hospitals["north"]
    _, content = stage.order("north", SumStep.LEVEL)
    with pytest.raises(IntegrityRefusal, match="for this site"):
        victim.answer(as_order(stage.plan, number_of(SumStep.LEVEL, 0), content), content)
    with pytest.raises(IntegrityRefusal, match="one of its steps"):
        victim.answer(as_order(stage.plan, number_of(8, 2), content), content)
    with pytest.raises(StateRefusal, match="follow an answer to round 4"):
        victim.answer(as_order(stage.plan, number_of(SumStep.MASK, 2), content), content)
    assert not victim.hold.begun
