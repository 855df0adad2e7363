"""Hospitals of a hub that train a flow together, round by round."""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
import threading
from contextlib import nullcontext

import pytest
from stage.both_sides.service import SMALL, Hub, small_table

from coordinator.services.collect.round_queue import RoundQueue
from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column
from shared.plans.federated import Federated
from shared.plans.plan import Budget, StudyPlan, Training, Wave
from shared.privacy import accountant as privacy
from shared.wire.rounds import RoundOrder, pack
from site_agent.config import SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.release.outbox import Outbox
from site_agent.release.site import WorkingSite
from site_agent.training import rounds

TODAY = dt.date(2026, 6, 1)
DELTA = 1e-4
PERSONS = dataclasses.replace(SMALL, columns=(Column(name="person", kind="person"), *SMALL.columns))
PLAN = StudyPlan(
    study="shared-flow",
    version=1,
    title="A flow of all",
    purpose="To test a training.",
    coordinator="hub",
    expires=dt.date(2999, 1, 1),
    release=LatentNoisePlan(w=0.8),
    budget=Budget(epsilon=1e5, delta=DELTA),
    waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
    dictionary=PERSONS,
    posture="public",
    training=Training(flows=1, hidden=4, layers=1),
    federated=Federated(rounds=3, local_steps=2, rate=0.2, noise_multiplier=1.0, quorum=2),
)
WHOLE = privacy.epsilon(PLAN.federated.event, DELTA)
NAMES = ("north", "south", "west")


class Hospital:
    """One site of a hub, with a folder of its own."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.home = hub.home.parent / f"site-{name}"
        self.home.mkdir()
        self.keys = hub.sites[name]
        self.ledger = Ledger.create(self.home / "ledger.db", self.keys.release, site=name)
        table = small_table(60, seed=len(name))
        table.insert(0, "person", [f"{name}-{k}" for k in range(60)])
        self.table = self.home / "cohort.csv"
        table.to_csv(self.table, index=False)
        self.secret = secrets.token_bytes(32)
        self.said: list[tuple[str, int]] = []
        self.failed: Exception | None = None

    def site(self, door) -> WorkingSite:
        return WorkingSite(
            name=self.name,
            agent_version="0",
            ledger=self.ledger,
            outbox=Outbox(self.home, self.ledger),
            witness=door,
            snapshot_key=self.secret,
            floors=SiteFloors(),
            paused=self.ledger.paused,
        )

    def take_part(self, plan: StudyPlan = PLAN, *, wait: float = 20.0, door=None, attempts: int = 2) -> None:
        with self.hub.egress(self.name, attempts=attempts, sleep=lambda _: None) as egress:
            rounds.take_part(
                rounds.Participant(
                    plan=plan,
                    source=TableSource(path=self.table),
                    site=self.site(egress),
                    door=egress if door is None else door(egress),
                    today=TODAY,
                    locked=nullcontext,
                ),
                home=self.home,
                wait=wait,
                progress=lambda what, round_: self.said.append((what, round_)),
            )

    def start(self, **settings) -> threading.Thread:
        def run() -> None:
            try:
                self.take_part(**settings)
            except Exception as error:
                self.failed = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    @property
    def hold(self):
        [hold] = self.ledger.holds()
        return hold

    @property
    def charged(self) -> float:
        return self.ledger.study_total(PLAN.study, DELTA).epsilon


@pytest.fixture
def hub(tmp_path):
    hub = Hub.alike(tmp_path / "hub", PLAN, *NAMES)
    with hub.serve():
        yield hub
    hub.store.close()


def ask(hub: Hub, number: int = 1, *, seed: int = 0, key: SigningKey | None = None) -> RoundOrder:
    """A question as a coordinator would ask it, or a stranger with its database."""
    from shared.plans.encoding import Encoder
    from shared.plans.federated import Shape, first_weights

    content = pack(first_weights(Shape.of(Encoder(dictionary=PERSONS).d, PLAN.training), seed), {})
    said = RoundOrder(
        study=PLAN.study,
        plan_hash=PLAN.hash,
        kind="train",
        round=number,
        content_sha256=sha256_hex(content),
        content_bytes=len(content),
    )
    RoundQueue(hub.store).ask(said, content, NAMES, key or hub.authority.witness)
    return said
