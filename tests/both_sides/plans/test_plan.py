"""The study plan: one byte changed is another plan; nothing unknown, unsigned or expired is acted upon."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from stage.plans.plan_text import TOML

from shared.base.canonical import canonical_json
from shared.base.keys import Envelope, SigningKey
from shared.errors import DictionaryRefusal, PlanExpired, PlanRefusal, Refusal, SignatureRefusal
from shared.plans.plan import Floors, StudyPlan, open_plan, sign_plan


def test_a_plan_written_by_hand_has_one_canonical_form():
    plan = StudyPlan.from_toml(TOML)
    assert plan.budget.delta == 1e-6
    assert plan.waves[0].closes == dt.date(2026, 3, 31)
    assert StudyPlan.from_bytes(plan.canonical) == plan
    shuffled = "\n".join(reversed(TOML.split("\n\n")[0].strip().splitlines()))
    assert StudyPlan.from_toml(TOML.replace(TOML.split("\n\n")[0], shuffled)).hash == plan.hash


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("w = 0.8", "w = 1.0", "[0, 1)"),
        ("w = 0.8", "w = true", "number"),
        ("w = 0.8", "radiuss = 3", "Did you mean 'radius'"),
        ("version = 2", "version = 0", "at least 1"),
        ("version = 2", "versoin = 2", "Did you mean 'version'"),
        ("study = ", "studdy = ", "Did you mean 'study'"),
        ("epsilon = 300", "epsilon = -1", "positive"),
        ("closes = 2026-03-31", "closes = 2025-03-31", "open before"),
        ("number = 1", "number = 2", "numbered 1, 2"),
        ('coordinator = "hub"', "", "coordinator"),
        ('study = "mini"', 'study = "../mini"', "plain word"),
        ('purpose = "To', 'posture = "private"\npurpose = "To', "[private] must be given"),
        ('purpose = "To', 'training = {family = "spline", spectral = true}\npurpose = "To', "must go with affine"),
        ('purpose = "To', 'training = {family = "cubic"}\npurpose = "To', "'affine' or 'spline'"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_reason(old, new, says):
    assert old in TOML
    with pytest.raises(PlanRefusal) as caught:
        StudyPlan.from_toml(TOML.replace(old, new, 1))
    assert says in str(caught.value)


def test_training_with_noise_knows_affine_layers_only():
    section = 'posture = "private"\nprivate = {rate = 0.1, noise_multiplier = 1.0, steps = 5}\npurpose = "To'
    private = TOML.replace('purpose = "To', section)
    assert StudyPlan.from_toml(private).training.family == "affine"
    with pytest.raises(PlanRefusal, match="knows no other"):
        StudyPlan.from_toml('training = {family = "spline"}\n' + private)


def test_a_dictionary_error_names_its_column():
    with pytest.raises(DictionaryRefusal, match="sbp"):
        StudyPlan.from_toml(TOML.replace("upper = 270", "upper = 60"))


def test_floors_can_only_be_tightened():
    with pytest.raises(PlanRefusal, match="tightened"):
        Floors(persons=49)
    assert Floors(persons=80).persons == 80


@pytest.mark.fault("F10", offered=1)
def test_only_pinned_leads_open_a_plan(plan):
    lead, other, stranger = (SigningKey.generate() for _ in range(3))
    pinned = {key.public.key_id: key.public for key in (lead, other)}
    envelope = sign_plan(plan, [lead])
    assert open_plan(envelope, pinned) == plan
    with pytest.raises(SignatureRefusal):
        open_plan(envelope, pinned, threshold=2)
    assert open_plan(envelope.also_signed(other), pinned, threshold=2) == plan
    with pytest.raises(SignatureRefusal):
        open_plan(sign_plan(plan, [stranger]), pinned)


@pytest.mark.fault("F9")
def test_a_plan_changed_by_any_byte_no_longer_opens(plan):
    lead = SigningKey.generate()
    pinned = {lead.public.key_id: lead.public}
    data = sign_plan(plan, [lead]).to_bytes()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Refusal):
            open_plan(Envelope.from_bytes(bytes(changed)), pinned)


def test_another_kind_of_document_is_not_a_plan(plan):
    lead = SigningKey.generate()
    envelope = Envelope.sign("application/vnd.tributary.release+json", plan.canonical, [lead])
    with pytest.raises(SignatureRefusal, match="type"):
        open_plan(envelope, {lead.public.key_id: lead.public})


def test_a_plan_that_is_not_canonical_is_refused(plan):
    with pytest.raises(PlanRefusal, match="canonical"):
        StudyPlan.from_bytes(plan.canonical + b" ")
    with pytest.raises(PlanRefusal):
        StudyPlan.from_bytes(canonical_json([1, 2]))


@pytest.mark.fault("F8", offered=1)
def test_an_expired_plan_is_refused(plan):
    old = replace(plan, expires=dt.date(2026, 1, 1))
    old.require_current(dt.date(2026, 1, 1))
    with pytest.raises(PlanExpired):
        old.require_current(dt.date(2026, 1, 2))
