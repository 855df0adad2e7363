"""A flow that was trained with noise is paid for once: k releases through it cost T ∘ Lᵏ, by the site, lead and hub."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from stage.both_sides.service import LEAD
from stage.coordinator_side.collect import hub, refused  # noqa: F401
from stage.coordinator_side.collect import plan as delivered_plan  # noqa: F401
from stage.hospital_side.shipped import Bench
from stage.mechanisms.postures import cohort
from stage.mechanisms.postures import study as posture_study
from stage.plans.wave_plans import ALWAYS

from coordinator.answers.spending import _planned, spending
from coordinator.planning import price as pricing
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import ReceiptRefusal, StateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, PrivateTraining, StudyPlan, Wave, sign_plan
from shared.privacy import accountant as privacy
from shared.privacy.composition import least_total
from shared.privacy.stated import CHARGED_BEFORE
from shared.releases.receipt import Receipt, ReceiptDraft, coverage, planned_event, planned_events, write_receipt
from site_agent.decide import plan_facts
from site_agent.decide import waves as calendars
from site_agent.models import private_flow
from site_agent.release import drawing
from site_agent.release.pipeline import making

TRAINING = privacy.SubsampledGaussian(rate=0.2, noise_multiplier=2.0, steps=3)


def study(refit: tuple[int, ...] = (), count: int = 4, **changes) -> StudyPlan:
    private = PrivateTraining(rate=0.2, noise_multiplier=2.0, steps=3)
    calendar = tuple(Wave(number=k, refit=k in refit, **ALWAYS) for k in range(1, count + 1))
    settings = {"private": private, "waves": calendar, "returning": "refresh", "budget": Budget(epsilon=1e4)}
    return posture_study("private", **{**settings, **changes})


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    monkeypatch.setattr(drawing, "_attack", lambda *_, **__: {"membership_auc": 0.5})
    return Bench(tmp_path / "north")


def made(bench: Bench, plan: StudyPlan, wave: int, n: int = 300):
    one = bench.release(plan, cohort(n), seeded_rng(wave), wave=wave)
    bench.deliver(one)
    return one


def rows(plan: StudyPlan) -> privacy.Event:
    """L: the noise on the rows alone."""
    return planned_event(plan).events[1]


def composed(plan: StudyPlan, trainings: int, draws: int) -> float:
    events = [TRAINING] * trainings + [rows(plan)] * draws
    return privacy.epsilon_from_rdp(privacy.rdp(events), plan.budget.delta)


def charged(bench: Bench) -> float:
    return bench.site.ledger.study_total("small", 1e-6).epsilon


# -- the site ---------------------------------------------------------------------------------------------------
def test_waves_through_one_private_flow_are_charged_its_training_once_and_one_that_refits_again(bench, monkeypatch):
    plan = study(refit=(4,))
    trained = []
    monkeypatch.setattr(
        private_flow, "clipped_sum", lambda *given, real=private_flow.clipped_sum: trained.append(1) or real(*given)
    )
    seen = []
    for wave, (trainings, draws) in enumerate(((1, 1), (1, 2), (1, 3), (2, 4)), start=1):
        one = made(bench, plan, wave)
        assert charged(bench) == pytest.approx(composed(plan, trainings, draws), rel=1e-9)
        seen.append(len(trained))
        again = wave in (2, 3)
        assert one.receipt.epsilon == privacy.epsilon(planned_event(plan, reused=again), 1e-6)
        assert (one.receipt.model, "for an earlier release" in one.receipt.conditional_on) == (
            "local" if again else "central",
            again,
        )
        assert one.receipt.covered == coverage(plan, reused=again)[0]
        one.receipt.require_true(plan)
    assert seen[0] == seen[1] == seen[2] < seen[3], "a wave through the first flow trains on nobody"
    assert composed(plan, 1, 3) < composed(plan, 3, 3)


def test_what_a_wave_costs_ahead_is_what_it_is_charged_at_the_site_and_by_the_lead(bench):
    plan = study(refit=(3,), count=3)
    ahead = calendars.cost(plan, planned_events(plan)).totals
    lead = [wave.total for wave in pricing.cost(plan).waves]
    assert lead == pytest.approx(ahead, rel=1e-9)
    for wave, total in enumerate(ahead, start=1):
        at = SimpleNamespace(ledger=bench.site.ledger)
        forecast = plan_facts._ahead(at, plan, [w.number for w in plan.waves if w.number >= wave])
        assert forecast == pytest.approx(ahead[wave - 1 :], rel=1e-9)
        made(bench, plan, wave)
        assert charged(bench) == pytest.approx(total, rel=1e-9)
    beyond = pricing.cost(plan, waves=6).waves
    assert beyond[5].total == pytest.approx(composed(plan, 2, 6), rel=1e-9)


def test_the_last_affordable_wave_counts_the_training_once():
    plan = study(count=2)
    plan = replace(plan, budget=Budget(epsilon=1.000001 * composed(plan, 1, 5)))
    price = pricing.cost(plan, waves=8)
    assert price.last_affordable == sum(wave.affordable for wave in price.waves) == 5


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_new_persons_are_charged_the_rows_alone_and_the_study_what_the_first_ones_were(bench, returning):
    plan = study(returning=returning)
    first, second = made(bench, plan, 1), made(bench, plan, 2, n=420)
    assert first.hold.event == planned_event(plan).to_canonical()
    assert second.hold.event == rows(plan).to_canonical()
    assert charged(bench) == pytest.approx(composed(plan, 1, 1), rel=1e-9)


def withdraw(bench: Bench, one) -> None:
    person = SigningKey.generate()
    ledger = bench.site.ledger
    signed = {"key": person.public, "signature": b"s" * 64, "reason_code": "policy", "reason": "policy"}
    ledger.tombstone(ledger.withdraw(one.hold, name="ada", **signed), log_index=8)


def test_a_flow_that_was_taken_back_is_not_used_and_the_next_wave_is_charged_a_training(bench):
    plan = study()
    withdraw(bench, made(bench, plan, 1))
    second = made(bench, plan, 2)
    assert second.hold.event == planned_event(plan).to_canonical()
    assert second.receipt.flow_of == second.hold.release_id
    assert charged(bench) == pytest.approx(composed(plan, 2, 2), rel=1e-9)


def test_a_flow_of_a_release_without_a_training_is_charged_one(bench, monkeypatch):
    plan = study()
    with monkeypatch.context() as patch:
        patch.setattr(making, "_reused", lambda *_: True)  # a ledger that holds the price of rows alone
        patch.setattr(Receipt, "require_true", lambda *_: None)
        made(bench, plan, 1)
    second = made(bench, plan, 2)
    assert second.hold.event == planned_event(plan).to_canonical()


def interrupted(bench: Bench, monkeypatch, place: str, plan: StudyPlan, wave: int) -> None:
    """A run that ends at a failpoint."""

    def stop(reached: str) -> None:
        if reached == place:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(making, "reach", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.release(plan, cohort(300), seeded_rng(9), wave=wave)


def test_a_reservation_at_the_price_of_rows_never_fits_a_flow(bench, monkeypatch):
    plan = study()
    first = made(bench, plan, 1)
    interrupted(bench, monkeypatch, "pipeline.anchored", plan, 2)
    withdraw(bench, first)
    with pytest.raises(StateRefusal, match="same plan and event"):
        made(bench, plan, 2)


def test_a_release_that_was_sealed_is_taken_up_at_its_price_whatever_became_of_the_first(bench, monkeypatch):
    plan = study()
    first = made(bench, plan, 1)
    interrupted(bench, monkeypatch, "pipeline.sealed", plan, 2)
    withdraw(bench, first)
    second = made(bench, plan, 2)
    assert second.hold.event == rows(plan).to_canonical()
    assert charged(bench) == pytest.approx(composed(plan, 1, 2), rel=1e-9)


def test_a_release_that_was_sealed_is_taken_up_where_the_flow_it_was_drawn_through_is_lost(bench, monkeypatch):
    plan = study()
    first = made(bench, plan, 1)
    interrupted(bench, monkeypatch, "pipeline.sealed", plan, 2)
    (bench.site.ledger.folder(first.hold) / "fit.npz").unlink()
    assert made(bench, plan, 2).hold.event == rows(plan).to_canonical()


def test_a_reservation_of_an_earlier_version_at_the_full_price_is_gone_on_with(bench, monkeypatch):
    plan = study()
    made(bench, plan, 1)
    with monkeypatch.context() as patch:
        patch.setattr(making, "_reused", lambda *_: False)
        interrupted(bench, monkeypatch, "pipeline.anchored", plan, 2)
    second = made(bench, plan, 2)
    assert second.hold.event == planned_event(plan).to_canonical()
    assert second.receipt.flow_of != second.hold.release_id
    second.receipt.require_true(plan)


# -- receipts, and the coordinator ------------------------------------------------------------------------------
def receipt(plan: StudyPlan, **changes):
    said = {"wave": 2, "site": "north", "release_id": "b" * 32, "agent_version": "0.1.0", "n": 400}
    return write_receipt(
        plan, ReceiptDraft(previous="0" * 64, **{**said, "flow_of": "a" * 32, "reused": True, **changes})
    )


def test_a_receipt_at_the_price_of_rows_is_true_only_of_another_releases_flow():
    plan = study()
    receipt(plan).require_true(plan)
    for wrong in (receipt(plan, flow_of=""), replace(receipt(plan), covered=coverage(plan)[0])):
        with pytest.raises(ReceiptRefusal):
            wrong.require_true(plan)
    public = posture_study("public")
    assert receipt(public) == receipt(public, reused=False), "where no training is charged nothing is left out"


def test_what_a_reused_flow_costs_alone_says_so_and_the_total_of_the_study_does_not():
    plan = study(release=LatentNoisePlan(w=0.0))
    said = receipt(plan)
    assert (said.stated_epsilon, said.given, said.given_in_total) == (0.0, CHARGED_BEFORE, "")
    assert said.translation.startswith("Given the flow, whose training was charged before")
    assert "whatever the attacker knows" not in said.translation


@pytest.fixture
def private(hub, delivered_plan) -> StudyPlan:
    plan = replace(
        delivered_plan,
        version=2,
        posture="private",
        private=PrivateTraining(rate=0.2, noise_multiplier=2.0, steps=3),
        release=LatentNoisePlan(w=0.02),
    )
    hub.store.add_plan(sign_plan(plan, [LEAD]), plan)
    return plan


def offered(hub, plan: StudyPlan, wave: int, flow_of: int, *, reused: bool):
    said = receipt(plan, wave=wave, release_id=f"{wave:02d}" * 16, flow_of=f"{flow_of:02d}" * 16, reused=reused)
    taken = (
        "flow_of",
        "event",
        "epsilon",
        "epsilon_pure",
        "rdp",
        "translation",
        "covered",
        "not_covered",
        "conditional_on",
        "model",
    )
    changes = {name: getattr(said, name) for name in taken}
    return hub.seal("north", wave=wave, release_id=said.release_id, plan=plan, receipt_changes=changes)


def test_the_coordinator_takes_the_price_of_rows_only_beside_the_release_that_was_charged_the_training(hub, private):
    with hub.egress("north", sleep=lambda seconds: None) as egress:

        def send(wave: int, flow_of: int, *, reused: bool) -> None:
            sealed = offered(hub, private, wave, flow_of, reused=reused)
            egress.send(sealed.envelope, sealed.path)

        missing = refused(StateRefusal, lambda: send(2, 1, reused=True))
        assert "must arrive before it" in str(missing)
        assert not hub.store.quarantined()  # its bytes are whole: they may be sent again
        send(3, 3, reused=False)
        send(4, 3, reused=True)
        uncharged = refused(ReceiptRefusal, lambda: send(5, 4, reused=True))
        assert "not charged for this training" in str(uncharged)
        send(6, 3, reused=True)
    course = spending(hub.store, "mini").courses[0].spent
    assert [wave for wave, _ in course] == [3, 4, 6]
    totals = [privacy.epsilon_from_rdp(privacy.rdp([TRAINING] + [rows(private)] * k), 1e-6) for k in (1, 2, 3)]
    assert [epsilon for _, epsilon in course] == pytest.approx(totals, rel=1e-6)


def test_what_arrived_is_counted_at_the_price_on_its_receipt():
    plan = study(count=3)
    events = planned_events(plan)
    assert least_total([(plan, event) for event in events], 1e-6) == pytest.approx(composed(plan, 1, 3), rel=1e-9)


def test_a_further_wave_is_forecast_with_the_training_where_no_arrived_release_was_charged_it():
    plan = study(count=3)
    trains, reuses = planned_event(plan), planned_event(plan, reused=True)
    (_, second), *_ = _planned(plan, [(plan, trains)], after=1)
    assert second == pytest.approx(least_total([(plan, trains), (plan, reuses)], 1e-6))
    # Its first wave was of a public version: the flow is fitted with noise in the second.
    (_, second), (_, third) = _planned(plan, [(plan, reuses)], after=1)
    assert second == pytest.approx(least_total([(plan, reuses), (plan, trains)], 1e-6))
    assert third == pytest.approx(least_total([(plan, reuses), (plan, trains), (plan, reuses)], 1e-6))
