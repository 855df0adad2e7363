"""A sum that was opened: its bytes read back, and every change of it that its plan or its members do not bear out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from stage.mechanisms.opened_sum import opened_by, part_of
from stage.mechanisms.ring import Ring
from stage.mechanisms.sums import hearts

from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, SchemaRefusal, SignatureRefusal
from shared.mechanisms.secure_sum.messages import Survivors
from shared.mechanisms.secure_sum.opened import OpenedSum
from shared.plans.plan import StudyPlan

SITES = 6
KEYS = tuple(SigningKey.generate() for _ in range(SITES))


def planned(**changed):
    members = {f"site-{k}": key.public.hex for k, key in enumerate(KEYS)}
    plan = StudyPlan.from_toml(hearts(members, epsilon=1.0, budget=1.2))
    given = plan.to_canonical()
    return StudyPlan.from_canonical(given | {"release": given["release"] | {"places": "apart"} | changed})


def opened_of(plan, lost=()):
    """Whoever is lost is gone before it would have masked its numbers."""
    ring = Ring(plan.release.terms(plan), keys=KEYS, lost=dict.fromkeys(lost, "masked"))
    return opened_by(ring, plan.release.level_event(plan).sigma)


@pytest.mark.parametrize("lost", [(), (2,)])
def test_what_was_opened_is_verified_and_the_same_read_back(lost):
    plan = planned()
    opened = opened_of(plan, lost)
    opened.verify(plan)
    again = OpenedSum.from_bytes(opened.to_bytes())
    assert again == opened
    assert again.sha256 == opened.sha256
    assert again.survivors == Survivors(sites=tuple(k for k in range(SITES) if k not in lost))


def test_the_noise_is_that_of_all_who_are_in_it():
    plan = planned()
    whole, less = opened_of(plan), opened_of(plan, lost=(0,))
    # One of six may be lost and one may tell its share: the terms' σ is of four shares.
    assert whole.sigma == pytest.approx(whole.terms.sigma * math.sqrt(6 / 4))
    assert less.sigma == pytest.approx(whole.terms.sigma * math.sqrt(5 / 4))


def test_another_plan_s_sum_is_refused():
    opened = opened_of(planned())
    for other in (planned(drop_outs=0), planned(pilot=0.5), planned(epsilon=0.9)):
        with pytest.raises(IntegrityRefusal, match="the plan's terms"):
            opened.verify(other)


def test_fewer_survivors_than_the_threshold_and_survivors_who_did_not_sign_are_refused():
    plan = planned()
    opened = opened_of(plan)
    without = {k: part for k, part in opened.parts.items() if k > 1}
    with pytest.raises(IntegrityRefusal, match="5 sites must be in the sum"):
        replace(opened, parts=without).verify(plan)
    with pytest.raises(IntegrityRefusal, match="survivors must sign"):
        replace(opened, parts={k: part for k, part in opened.parts.items() if k > 0}).verify(plan)
    few = dict(list(opened.signatures.items())[:4])
    with pytest.raises(IntegrityRefusal, match="5 sites must sign one list"):
        replace(opened, signatures=few).verify(plan)
    forged = opened.signatures | {3: opened.signatures[4]}
    with pytest.raises(SignatureRefusal):
        replace(opened, signatures=forged).verify(plan)
    with pytest.raises(SignatureRefusal):
        replace(opened, members=bytes(32)).verify(plan)


def test_signatures_of_one_list_are_none_under_another():
    plan = planned()
    whole, less = opened_of(plan), opened_of(plan, lost=(5,))
    five = {k: one for k, one in whole.signatures.items() if k < 5}
    with pytest.raises(SignatureRefusal):
        replace(less, signatures=five).verify(plan)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"start": 0.2}, "from one place"),
        ({"level": 0.0}, "level must be the one told"),
        ({"cut": 9.0}, "within the plan's bounds"),
        ({"weight": 0.9}, "within the plan's bounds"),
    ],
)
def test_a_look_that_no_answer_can_be_read_from_is_refused(changed, rule):
    plan = planned()
    opened = opened_of(plan)
    with pytest.raises(IntegrityRefusal, match=rule):
        replace(opened, parts=opened.parts | {3: part_of(plan.release.level_event(plan).sigma, **changed)}).verify(plan)


@pytest.mark.parametrize("total", [(1e9, 0.0), (0.0, -1e9), (0.0,), (0.0, 0.0, 0.0)])
def test_a_number_that_no_sum_of_these_sites_can_have_is_refused(total):
    plan = planned()
    with pytest.raises(IntegrityRefusal, match="2 numbers of their size"):
        replace(opened_of(plan), total=total).verify(plan)


def test_bytes_that_are_none_of_an_opened_sum_are_refused():
    opened = opened_of(planned())
    body = parse_json(opened.to_bytes())
    wrong = [
        body | {"more": 1},
        body | {"type": "sum"},
        body | {"total": [1, 2.0]},
        body | {"total": [1e400]},
        body | {"pilots": {"0": "0" * 64}},
        body | {"pilots": body["pilots"] | {"9": "0" * 64}},
        body | {"parts": {}},
        body | {"parts": body["parts"] | {"+1": body["parts"]["1"]}},
        body | {"members": "00"},
        body | {"signatures": {"0": "00"}},
        body | {"terms": body["terms"] | {"sigma": -1.0}},
        body | {"terms": body["terms"] | {"members": "a" * 64}},
        [],
        None,
    ]
    for one in wrong:
        try:
            data = canonical_json(one)
        except SchemaRefusal:  # what JSON has no form for, as a stranger may write it all the same
            data = b'{"total":[1e400]}'
        with pytest.raises(SchemaRefusal):
            OpenedSum.from_bytes(data)
    for data in (opened.to_bytes() + b" ", b"", b"{", b"[" * 10_000, b" " * (5 << 20)):
        with pytest.raises(SchemaRefusal):
            OpenedSum.from_bytes(data)
