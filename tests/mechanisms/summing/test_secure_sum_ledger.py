"""The rounds that follow a release's delivery under its charge: in turn, once, witnessed, consented to, and told."""

from __future__ import annotations

import numpy as np
import pytest
from stage.hospital_side.ledger import DIGEST, PERSON, acknowledge, deliver, drawing, ledger
from stage.mechanisms.sum_looks import NARROW, cohorts, looks_at

from shared.base.keys import SigningKey
from shared.errors import LedgerRefusal, PausedRefusal, ReplayRefusal, RoundsRefusal, SchemaRefusal, StateRefusal
from shared.mechanisms.secure_sum.sent_look import SentLook
from shared.wire.rounds import number_of, place_of, step_of
from site_agent.ledger.drawing import SealTerms
from site_agent.ledger.entries import decided_by
from site_agent.show import verifier

__all__ = ["ledger"]  # the fixture
ASKED = "a" * 64


def delivered(ledger, follow=7, approvals=1):
    hold = drawing(ledger, follow=follow)
    return deliver(ledger, hold) if approvals == 1 else hold


def taken(ledger, hold, number, asked=ASKED, answer=DIGEST):
    ledger.begin_round(hold, number, asked)
    ledger.witness_round(hold, number, acknowledge(ledger))
    return ledger.seal_round(hold, number, answer)


def consented(ledger, hold, asked=ASKED, name="ada", key=PERSON):
    return ledger.consent(hold, asked=asked, document_sha256="d" * 64, name=name, key=key)


def record_of(ledger):
    return [{"seq": one.seq, "kind": one.kind, "body": dict(one.body)} for one in ledger.entries()]


def test_all_rounds_that_follow_stand_under_the_one_charge(ledger):
    hold = delivered(ledger)
    before = ledger.study_total("heart", 1e-6).epsilon
    assert hold.follow == 7
    taken(ledger, hold, 1)
    consented(ledger, hold)
    for number in range(2, 8):
        hold = taken(ledger, hold, number, answer=f"{number}" * 64)
        assert hold.state == "delivered"
        assert ledger.sealed_round("a" * 64, number_of(number, 3)) == f"{number}" * 64
    assert ledger.study_total("heart", 1e-6).epsilon == before
    assert ledger.verify() == len(ledger.entries())
    assert verifier.lives(record_of(ledger)) == []
    with pytest.raises(RoundsRefusal, match="at most the 7 rounds"):
        ledger.begin_round(hold, 8, ASKED)


def test_a_release_without_them_has_no_rounds_and_one_that_is_not_delivered_none_yet(ledger):
    with pytest.raises(StateRefusal):
        ledger.begin_round(delivered(ledger, follow=0), 1, ASKED)
    waiting = drawing(ledger, 2, follow=7)
    with pytest.raises(StateRefusal, match="must be delivered or training"):
        ledger.begin_round(waiting, 1, ASKED)


def test_each_follows_the_answer_to_the_one_before_it(ledger):
    hold = delivered(ledger)
    with pytest.raises(StateRefusal, match="answer to round 1"):
        ledger.begin_round(hold, 2, ASKED)
    ledger.begin_round(hold, 1, ASKED)
    with pytest.raises(StateRefusal, match="witnessed"):
        ledger.seal_round(hold, 1, DIGEST)
    with pytest.raises(StateRefusal, match="answer to round 1"):
        ledger.begin_round(hold, 2, ASKED)
    ledger.witness_round(hold, 1, acknowledge(ledger))
    ledger.seal_round(hold, 1, DIGEST)
    with pytest.raises(ReplayRefusal):
        ledger.begin_round(hold, 1, ASKED)
    consented(ledger, hold)
    taken(ledger, hold, 2)
    with pytest.raises(StateRefusal, match="answer to round 3"):
        ledger.begin_round(hold, 4, ASKED)


def test_the_second_needs_a_person_s_consent_to_the_very_question(ledger):
    hold = delivered(ledger)
    with pytest.raises(StateRefusal, match="consent must come after round 1"):
        consented(ledger, hold)
    taken(ledger, hold, 1)
    with pytest.raises(StateRefusal, match="1 approvers must consent"):
        ledger.begin_round(hold, 2, ASKED)
    consented(ledger, hold, "b" * 64)
    with pytest.raises(StateRefusal, match="1 approvers must consent"):
        ledger.begin_round(hold, 2, ASKED)
    hold = consented(ledger, hold)
    assert (hold.consent, hold.consents) == (ASKED, ("ada",))
    signed = ledger.entries()[-1]
    assert decided_by("north", signed, {"ada": [PERSON.public]})
    assert not decided_by("north", signed, {"ada": [SigningKey.generate().public]})
    with pytest.raises(StateRefusal, match="second time"):
        consented(ledger, hold)
    ledger.begin_round(hold, 2, ASKED)
    with pytest.raises(StateRefusal, match="before round 2"):
        consented(ledger, hold, name="bob", key=SigningKey.generate())


def test_where_two_approved_the_release_two_consent(ledger):
    hold = ledger.seal(drawing(ledger, follow=7), DIGEST, SealTerms(approvals=2))
    hold = ledger.show(hold, {})
    other = SigningKey.generate()
    for name, key in (("ada", PERSON), ("bob", other)):
        ledger.approve(hold, name=name, key=key.public, signature=b"s" * 64, bundle_sha256=DIGEST)
    from stage.hospital_side.ledger import Accepted

    hold = ledger.commit(hold, Accepted(hold.release_id))
    taken(ledger, hold, 1)
    consented(ledger, hold)
    with pytest.raises(StateRefusal, match="2 approvers"):
        ledger.begin_round(hold, 2, ASKED)
    consented(ledger, hold, name="bob", key=other)
    taken(ledger, hold, 2)


def test_a_pause_or_a_withdrawal_ends_them_and_the_charge_stays(ledger):
    hold = delivered(ledger)
    ledger.pause(name="", reason="stop")
    with pytest.raises(PausedRefusal):
        ledger.begin_round(hold, 1, ASKED)
    ledger.resume(name="", reason="go on")
    taken(ledger, hold, 1)
    ledger.withdraw(hold, name="ada", key=PERSON.public, signature=b"s" * 64, reason_code="policy", reason="enough")
    assert ledger.sealed_round("a" * 64, number_of(1, 0)) == "", "nothing of it leaves any more"
    with pytest.raises(StateRefusal):
        consented(ledger, hold)


def test_an_older_acknowledgement_witnesses_no_round(ledger):
    hold = delivered(ledger)
    earlier = acknowledge(ledger)
    ledger.begin_round(hold, 1, ASKED)
    with pytest.raises(LedgerRefusal, match="include the beginning of round 1"):
        ledger.witness_round(hold, 1, earlier)


def test_a_stranger_with_the_record_finds_a_round_without_consent_out_of_turn_or_without_an_answer_before_it(ledger):
    hold = delivered(ledger)
    taken(ledger, hold, 1)
    consented(ledger, hold)
    taken(ledger, hold, 2)
    whole = record_of(ledger)
    assert verifier.lives(whole) == []
    without = [one for one in whole if one["kind"] != "sum_consented"]
    skipped = [*whole, {"seq": 99, "kind": "round", "body": {"release_id": hold.release_id, "number": 4}}]
    twice = [*whole, {"seq": 99, "kind": "round", "body": {"release_id": hold.release_id, "number": 2, "asked": ASKED}}]
    unanswered = [one for one in whole if (one["kind"], one["body"].get("number")) != ("answer", 1)]
    uncharged = [{**one, "body": {**one["body"], "follow": 1}} if one["kind"] == "reserve" else one for one in whole]
    for wrong in (without, skipped, twice, unanswered, uncharged):
        with pytest.raises(verifier.Wrong):
            verifier.lives(wrong)


def test_an_order_s_number_says_step_and_place():
    numbers = [number_of(step, place) for step in range(1, 8) for place in range(128)]
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    assert [(step_of(n), place_of(n)) for n in numbers] == [
        (step, place) for step in range(1, 8) for place in range(128)
    ]


# -- what a site is sent of its look ----------------------------------------------------------------------------------
def test_a_sent_look_makes_the_same_rows_and_level_to_the_last_bit():
    [(x, y), *_], at = cohorts()[1], looks_at(0.15, NARROW)[0].weighing(0.3)
    design = cohorts()[3][0][1]
    sent = SentLook.of(at, 0.15, 0.2)
    back = SentLook.from_canonical(sent.to_canonical())
    assert back == sent
    again = back.look(at.n, NARROW, design)
    assert np.array_equal(again.rows(x, y), at.rows(x, y))
    assert np.array_equal(again.level(x, y), at.level(x, y))


@pytest.mark.parametrize(
    "change",
    [
        {"along": (1.0,)},
        {"means": ()},
        {"effects": ((1.0,),)},
        {"scale": (0.0, 1.0, 1.0, 1.0)},
        {"weight": 2.0},
        {"weight": float("nan")},
        {"cut": -1.0},
        {"start": 1},
        {"edges": (), "cumulative": ()},
    ],
)
def test_a_look_that_is_none_of_the_plan_s_is_refused(change):
    at, design = looks_at(0.15, NARROW)[0], cohorts()[3][0][1]
    given = vars(SentLook.of(at, 0.15, 0.0)) | change
    with pytest.raises(SchemaRefusal):
        SentLook(**given).look(at.n, NARROW, design)
