"""What a small site may take from a flow that others trained; and no search among networks any more."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
from stage.both_sides.flows import banana, same
from stage.mechanisms.postures import cohort, encoded, study

from coordinator.planning.review import review
from coordinator.planning.template import template
from shared.base.randomness import seeded_rng
from shared.errors import PlanRefusal
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.base import Identity
from shared.mechanisms.latent_noise.plan import CONDITIONAL_ON
from shared.plans.plan import StudyPlan, Training
from shared.plans.public_start import public_start
from shared.releases.receipt import coverage, planned_event
from site_agent.models.flow import FlowSettings, fit_flow, network_of
from site_agent.release import fitting
from site_agent.release.sealed_state import fitted_by

ALONE = FlowSettings(flows=2, hidden=16, epochs=40, patience=6, final_steps=5)
BEGUN = replace(ALONE, transfer=True)
DIGEST = "federated:" + "a" * 64
SMALL = Training(flows=2, hidden=16, epochs=3, patience=2)


@pytest.fixture(scope="module")
def shared():
    """A flow that many records taught what a banana is."""
    return fit_flow(banana(4000, seed=7), ALONE, seeded_rng(1)).flow


def elsewhere(x):
    """The same dependence in a hospital with other margins."""
    return 2.0 * x + 5.0


# -- transfer -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [100, 300])
def test_a_small_site_gains_on_records_that_nobody_has_seen(shared, n):
    x, fresh = elsewhere(banana(n, seed=11)), elsewhere(banana(3000, seed=4))
    alone, begun = (fit_flow(x, settings, seeded_rng(2), shared=shared) for settings in (ALONE, BEGUN))
    assert begun.report.transferred
    assert not alone.report.transferred
    assert begun.report.best_nll < alone.report.best_nll
    assert begun.flow.log_prob(fresh).mean() > alone.flow.log_prob(fresh).mean() + 0.1
    assert begun.flow.log_prob(fresh).mean() > shared.log_prob(fresh).mean()
    np.testing.assert_allclose(begun.flow.forward(begun.flow.inverse(x)), x, atol=1e-6)


def test_a_start_that_fits_as_it_is_is_not_tuned(shared):
    """Records of the very law that it was trained on, whose margins it knows better than 160 records tell."""
    x = banana(160, seed=11)
    alone, begun = (fit_flow(x, settings, seeded_rng(2), shared=shared) for settings in (ALONE, BEGUN))
    assert not begun.report.transferred
    assert same(begun.flow, alone.flow)


@pytest.mark.parametrize("flow", [Identity(d=2), AffineAutoregressiveFlow(mean=np.ones(2), scale=np.eye(2))])
def test_a_start_that_knows_nothing_changes_nothing(flow):
    x = elsewhere(banana(200))
    alone, begun = (fit_flow(x, settings, seeded_rng(2), shared=flow) for settings in (ALONE, BEGUN))
    assert not begun.report.transferred
    assert same(begun.flow, alone.flow)


def test_a_start_that_is_wrong_here_changes_nothing(shared):
    x = np.random.default_rng(3).normal(size=(300, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    alone, begun = (fit_flow(x, settings, seeded_rng(2), shared=shared) for settings in (ALONE, BEGUN))
    assert not begun.report.transferred
    assert same(begun.flow, alone.flow)


def test_a_start_that_draws_what_no_flow_fits_changes_nothing():
    flat = AffineAutoregressiveFlow(mean=np.zeros(2), scale=np.array([[1.0, 0.0], [1.0, 1e-9]]))
    x = banana(200)
    assert same(*(fit_flow(x, settings, seeded_rng(2), shared=flat).flow for settings in (ALONE, BEGUN)))


def test_a_site_with_many_records_learns_by_itself(shared):
    x = elsewhere(banana(1500))
    settings = (replace(one, epochs=2) for one in (ALONE, BEGUN))
    assert same(*(fit_flow(x, one, seeded_rng(2), shared=shared).flow for one in settings))


def transferring(**changes) -> StudyPlan:
    return study("local", **{"flow": DIGEST, "training": replace(SMALL, transfer=True), **changes})


def test_a_plan_that_asks_for_neither_keeps_the_hash_it_was_approved_by():
    plan = study("local")
    assert {"search", "transfer"}.isdisjoint(plan.to_canonical()["training"])
    for asked in (transferring(), study("local", training=replace(SMALL, search=True))):
        assert StudyPlan.from_bytes(asked.canonical) == asked
        assert fitted_by(asked) != fitted_by(plan)


@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
def test_transfer_is_refused_under_every_other_posture(posture):
    private = {"private": None} if posture == "private" else {}
    with pytest.raises(PlanRefusal, match=r"transfer must go with posture 'local'|flow must be given"):
        study(posture, flow=DIGEST, training=replace(SMALL, transfer=True), **private)


def test_transfer_needs_a_flow_and_a_flow_under_local_needs_transfer():
    with pytest.raises(PlanRefusal, match="no flow"):
        transferring(flow="")
    with pytest.raises(PlanRefusal, match=r"training\.transfer = true"):
        transferring(training=SMALL)
    with pytest.raises(PlanRefusal, match="true or false"):
        Training(transfer="yes")


def test_the_receipt_says_where_it_began_and_still_promises_nothing_of_the_fit():
    plan, plain = transferring(), study("local")
    covered, not_covered = coverage(plan)
    assert covered == coverage(plain)[0]
    assert any("trained it before, with noise" in one and "not in this price" in one for one in not_covered)
    assert any("is not bounded by this ε" in one for one in not_covered)
    assert plan.release.facts(plan).conditional_on == CONDITIONAL_ON["local"]
    assert planned_event(plan) == planned_event(plain)


def test_a_site_fits_its_own_flow_and_an_attack_is_tried_on_another_such_fit():
    plan = transferring()
    encoder, x, persons = encoded(plan, cohort(300))
    begin = public_start(encoder, {})
    made = fitting.fit(plan, encoder, x, persons, seeded_rng(5), trained=begin)
    assert made.trained == len(made.released) == 300
    assert made.mechanism.flow is not begin
    other = made.shadow(x[:200], seeded_rng(6), lambda share: None)
    assert not same(other.flow, made.mechanism.flow)
    with pytest.raises(PlanRefusal, match="must be used"):
        fitting.fit(plan, encoder, x, persons, seeded_rng(5))


# -- search -------------------------------------------------------------------------------------------------------
def test_a_plan_signed_with_a_search_is_read_and_fits_no_flow_and_a_new_one_is_red_at_the_lead():
    plan = study("local", training=replace(SMALL, search=True))
    assert StudyPlan.from_bytes(plan.canonical).hash == plan.hash
    with pytest.raises(PlanRefusal, match=r"training\.search must be left out"):
        FlowSettings.of(plan.training)
    assert fitting.estimate_seconds(plan, 300, 2) > 0, "what is asked before every wave refuses none"
    toml = template("flu", coordinator="hub", today=dt.date(2026, 1, 5)) + "\n[training]\nsearch = true\n"
    _, lines = review(toml, today=dt.date(2026, 1, 5))
    assert [line.state for line in lines if line.name == "training"] == ["fail"]


def test_an_attack_is_tried_on_the_network_that_was_fitted():
    plan = study("local", training=Training(epochs=2, patience=2, margins="none"))
    encoder, x, _ = encoded(plan, cohort(300))
    flow = fit_flow(x, FlowSettings(flows=3, hidden=20, layers=2, epochs=1, gate=0.0), seeded_rng(1)).flow
    assert network_of(flow) == {"flows": 3, "hidden": 20, "layers": 2}
    kept = fitting.sealed(plan, encoder, flow, n=len(x), epochs=2, fresh=True)
    assert network_of(kept.shadow(x, seeded_rng(2), lambda share: None).flow) == network_of(flow)
