"""A small hospital begins at the flow that others have trained, and its release goes all the way to the coordinator.

Real parts throughout: the training over the sites' own channel, plan, ledger, fit, outbox, approval, egress, service.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.service import LEAD, Hub
from stage.training.shared_flow import Hospital

from coordinator.training.dialled import train
from shared.base.randomness import seeded_rng
from shared.errors import PlanChanged, StateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.federated import Federated
from shared.plans.plan import Budget, Floors, Reference, StudyPlan, Training, Wave, sign_plan
from shared.releases.receipt import planned_event
from site_agent.config import TableSource
from site_agent.models.flow import fit_flow
from site_agent.release import trained_flow
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.sealed_state import read_fit
from site_agent.release.trained_flow import federated_flow
from site_agent.training import rounds

TODAY = dt.date(2026, 6, 1)
BENT = Dictionary(
    name="bent",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="continuous", lower=0, upper=100, decimals=2),
        Column(name="sbp", kind="continuous", lower=0, upper=300, decimals=2),
    ),
)
KNOWN = {"age": Reference(mean=50.0, sd=10.0), "sbp": Reference(mean=130.0, sd=20.0)}
PLAN = StudyPlan(
    study="shared-flow",
    version=1,
    title="A flow of all",
    purpose="To begin at it.",
    coordinator="hub",
    expires=dt.date(2999, 1, 1),
    release=LatentNoisePlan(w=0.5),
    budget=Budget(epsilon=1e6, delta=1e-4),
    waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
    dictionary=BENT,
    posture="public",
    reference=KNOWN,
    training=Training(flows=2, hidden=16, layers=1),
    federated=Federated(
        rounds=2, local_steps=100, rate=0.2, noise_multiplier=0.3, clip=2.0, step_size=0.1, strategy="fedavg", quorum=2
    ),
)
TUNED = dataclasses.replace(PLAN.training, transfer=True, epochs=40, patience=8)


def later(flow: str) -> StudyPlan:
    """The study's next plan: rows, for which a site with few records may begin at the flow."""
    return dataclasses.replace(
        PLAN,
        version=2,
        posture="local",
        reference={},
        federated=None,
        flow=flow,
        training=TUNED,
        floors=Floors(membership_auc=1.0, own_row_linkage=1.0, extreme_linkage=1.0),
    )


def bent(n: int, seed: int) -> pd.DataFrame:
    """Blood pressure that bends upwards at both ends of age."""
    rng = np.random.default_rng(seed)
    z, fresh = rng.normal(size=(2, n))
    sbp = 130 + 20 * (0.9 * (z**2 - 1) / np.sqrt(2) + 0.45 * fresh)
    columns = {"age": (50 + 10 * z).clip(0, 100).round(2), "sbp": sbp.clip(0, 300).round(2)}
    return pd.DataFrame({"person": [f"{seed}-{k}" for k in range(n)], **columns})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(hub, flow, hospital): two hospitals of 600 patients trained the flow; this is one of them."""
    hub = Hub(tmp_path_factory.mktemp("transfer") / "hub", PLAN, "north", "south")
    with hub.serve():
        others = []
        for seed, name in enumerate(("north", "south")):
            others.append(Hospital(hub, name))
            bent(600, seed).to_csv(others[-1].table, index=False)
        threads = [one.start(plan=PLAN, wait=300.0) for one in others]
        flow = train(home=hub.home, store=hub.store, plan=PLAN, key=hub.authority.witness, timeout=300.0)
        for thread in threads:
            thread.join()
        yield hub, flow, others[0]
    hub.store.close()


@pytest.fixture(scope="module")
def plan(trained):
    hub, flow, _ = trained
    made = later(flow.name)
    hub.store.add_plan(sign_plan(made, [LEAD]), made)
    return made


def test_a_small_hospital_that_took_no_part_begins_at_the_flow_and_delivers(trained, plan):
    hub, flow, _ = trained
    keys = hub.join("guest")
    guest = Hospital(hub, "guest")
    bent(150, 9).to_csv(guest.table, index=False)
    outbox = Outbox(guest.home, guest.ledger, approvers={"steward": keys.steward.public})
    with hub.egress("guest") as egress:
        site = dataclasses.replace(guest.site(egress), outbox=outbox)

        def release():
            return make_release(
                plan=plan, wave=1, source=TableSource(path=guest.table), site=site, today=TODAY, rng=seeded_rng(3)
            )

        # The flow has to be here before anything is charged, and it is the one that the plan names.
        with pytest.raises(StateRefusal, match="federate"):
            release()
        assert guest.ledger.holds() == []
        assert rounds.fetch(plan, egress, guest.home)
        path = trained_flow.flow_path(guest.home, flow.digest)
        kept = path.read_bytes()
        path.write_bytes(kept.replace(b'"rounds":2', b'"rounds":3'))
        with pytest.raises(PlanChanged):
            release()
        assert guest.ledger.holds() == []
        path.write_bytes(kept)

        made = release()
        outbox.approve(made.hold.release_id, keys.steward, "steward")
        envelope = outbox.envelope(made.hold.release_id)
        outbox.delivered(made.hold.release_id, egress.send(envelope, outbox.bundle(made.hold.release_id)))

    # Charged as the rows are and no more: it took no part in the training.
    [hold] = guest.ledger.holds()
    assert hold.state == "delivered"
    assert hold.event == planned_event(plan).to_canonical()
    assert not made.receipt.trained
    assert any("several sites trained it before" in one for one in made.receipt.not_covered)
    guest.ledger.verify()
    [taken] = [one for one in hub.store.releases(plan.study) if one.site == "guest"]
    assert taken.receipt == made.receipt
    plan.dictionary.validate_release(made.table)

    # What it sealed is a flow of its own, tuned from the shared one: better than either on patients nobody has seen.
    encoder = Encoder(dictionary=BENT)
    x, fresh = (encoder.encode(BENT.check(bent(n, seed)), seeded_rng(1)) for n, seed in ((150, 9), (3000, 10)))
    shared = federated_flow(flow, encoder, "guest")
    own = read_fit(guest.ledger.folder(hold), hold).flow
    alone = fit_flow(x, dataclasses.replace(TUNED, transfer=False), seeded_rng(2)).flow
    reached = [part.log_prob(fresh).mean() for part in (shared, alone, own)]
    assert reached[2] > max(reached[:2]) + 0.1


def test_a_hospital_that_trained_begins_at_it_too_and_its_receipt_names_the_charge(trained, plan):
    hub, _, north = trained
    with hub.egress("north") as egress:
        made = make_release(
            plan=plan,
            wave=1,
            source=TableSource(path=north.table),
            site=north.site(egress),
            today=TODAY,
            rng=seeded_rng(4),
        )
    assert made.receipt.trained["rounds"] == 2
    assert north.ledger.study_total(plan.study, plan.budget.delta).epsilon > made.receipt.epsilon
