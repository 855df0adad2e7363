"""A site that lies in a secure sum: what is no message of its step is not taken, and a false share opens nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from stage.mechanisms.summed import stage

from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, ReplayRefusal, RoleRefusal, SchemaRefusal, StateRefusal
from shared.mechanisms.secure_sum.messages import KeyOffer, ToldLevel
from shared.mechanisms.secure_sum.site import SumSite
from shared.mechanisms.secure_sum.steps import SumStep
from shared.wire.rounds import Answered
from shared.wire.site_messages import RoundAnswer

__all__ = ["stage"]  # the fixture


def sent(stage, name, order, content):
    """What a site that has its keys, and keeps no rule, sends to an order."""
    said = Answered(
        study=order.study,
        plan_hash=order.plan_hash,
        site=name,
        round=order.round,
        asked=order.digest,
        content_sha256=sha256_hex(content),
        content_bytes=len(content),
    )
    envelope = said.sign(stage.hub.sites[name].release).to_bytes()
    with stage.hub.client(name) as client:
        return client.call("UploadRound", RoundAnswer(envelope=envelope, content=content), timeout=20.0)


def test_what_is_no_message_of_that_site_in_that_step_is_not_taken_and_another_after_the_first_neither(stage):
    with pytest.raises(StateRefusal):
        stage.run(timeout=0.0)  # asks the level, and waits for nobody
    terms = stage.plan.release.terms(stage.plan)
    order, other = stage.order("north", SumStep.LEVEL)[0], stage.order("south", SumStep.LEVEL)[0]
    level = ToldLevel(sender=2, events=80.0, charges=75.0)
    wrong = [
        (order, b"{}", SchemaRefusal),
        (order, level.to_bytes(terms).replace(b"80.0", b"1e999"), SchemaRefusal),
        (order, level.to_bytes(terms) + b" ", SchemaRefusal),
        (order, replace(level, sender=3).to_bytes(terms), SchemaRefusal),
        (order, level.to_bytes(replace(terms, sigma=terms.sigma / 2)), ReplayRefusal),
        (other, replace(level, sender=3).to_bytes(terms), RoleRefusal),
        (replace(order, round=order.round + 128), level.to_bytes(terms), SchemaRefusal),  # never asked
    ]
    for asked, content, refusal in wrong:
        with pytest.raises(refusal):
            sent(stage, "north", asked, content)
    sent(stage, "north", order, level.to_bytes(terms))
    sent(stage, "north", order, level.to_bytes(terms))  # the same again changes nothing
    with pytest.raises(ReplayRefusal, match="answer a round once"):
        sent(stage, "north", order, replace(level, events=81.0).to_bytes(terms))


@pytest.mark.parametrize("lie", ["signed by another", "a weak key for shares", "a weak key for masks"])
def test_a_site_whose_keys_are_none_of_its_own_or_weak_is_lost_and_the_others_go_on(stage, monkeypatch, lie):
    stranger, make = SigningKey.generate(), SumSite.offer

    def offer(site):
        honest = make(site)
        if site.place != 0:
            return honest
        cipher = bytes(32) if lie == "a weak key for shares" else os.urandom(32)
        masks = bytes(32) if lie == "a weak key for masks" else os.urandom(32)
        key = stranger if lie == "signed by another" else site._key
        return KeyOffer.signed(site.terms, 0, (cipher, masks, bytes(32)), key)

    monkeypatch.setattr(SumSite, "offer", offer)
    opened = stage.whole(ended=["east"])
    assert list(opened.parts) == [1, 2, 3, 4]
    lost = [step.lost for step in stage.steps if step.step == SumStep.OFFER]
    assert lost[-1] == {"east": "E_INTEGRITY"}


@pytest.fixture
def false_shares(monkeypatch):
    """Sites whose shares are no shares, by their places."""
    make, liars = SumSite.open, set()

    def opening(site, agreement):
        honest = make(site, agreement)
        return replace(honest, shares=dict.fromkeys(honest.shares, bytes(32))) if site.place in liars else honest

    monkeypatch.setattr(SumSite, "open", opening)
    return liars


def test_one_site_s_false_shares_are_left_out(stage, false_shares):
    false_shares.add(0)
    opened = stage.whole()
    assert list(opened.parts) == [0, 1, 2, 3, 4]
    assert (np.abs(np.array(opened.total) - stage.exact(opened)) <= 6 * opened.sigma).all()


def test_of_two_sites_false_shares_nothing_is_opened_and_it_is_said(stage, false_shares):
    false_shares |= {0, 3}
    with pytest.raises(IntegrityRefusal, match="opened shares must give the secret"):
        stage.whole()
    assert stage.hub.store.opened_sum(stage.plan.hash) is None
    with pytest.raises(IntegrityRefusal, match="opened shares must give the secret"):
        stage.run()
