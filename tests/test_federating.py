"""A training over the sites' own channel, whole: real service, real ledgers, Flower's strategy and app, real DP-SGD.

Three hospitals of sixty patients and a flow of a few weights: what is tested is who was charged, what left, and that a
fault anywhere ends in a trained flow or in a typed reason, never in a charge too few.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from service import SMALL, Hub, small_table

from coordinator.dialled import dialled_grid, nodes, train
from coordinator.rounds import LetterBoxes
from shared import privacy
from shared.canonical import sha256_hex
from shared.dictionary import Column
from shared.errors import NetworkRefusal, PlanRefusal, ReplayRefusal, RoundsRefusal, StateRefusal
from shared.federated import Federated, FederatedFlow
from shared.plan import Budget, LatentNoisePlan, StudyPlan, Training, Wave
from shared.randomness import seeded_rng
from shared.rounds import Asked, unpack
from site_agent import rounds
from site_agent.config import SiteFloors, Source
from site_agent.ledger import Ledger
from site_agent.outbox import Outbox
from site_agent.pipeline import Site

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

    def site(self, door) -> Site:
        return Site(
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
                plan=plan,
                source=Source(path=self.table),
                site=self.site(egress),
                door=egress if door is None else door(egress),
                home=self.home,
                today=TODAY,
                locked=nullcontext,
                wait=wait,
                told=lambda what, round_: self.said.append((what, round_)),
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
    hub = Hub(tmp_path / "hub", PLAN, *NAMES)
    with hub.serve():
        yield hub
    hub.store.close()


@pytest.fixture
def hospitals(hub):
    return [Hospital(hub, name) for name in NAMES]


def coordinate(hub: Hub, timeout: float = 20.0) -> FederatedFlow:
    return train(home=hub.home, store=hub.store, plan=PLAN, key=hub.authority.witness, timeout=timeout)


def together(hub: Hub, hospitals: list[Hospital], **settings) -> FederatedFlow:
    threads = [hospital.start(**settings) for hospital in hospitals]
    try:
        return coordinate(hub)
    finally:
        for thread in threads:
            thread.join()


def test_three_hospitals_train_one_flow_and_each_is_charged_once_before_it(hub, hospitals):
    flow = together(hub, hospitals)
    flow.require_true(PLAN)
    assert {site: (said["n"], said["answered"]) for site, said in flow.sites.items()} == dict.fromkeys(NAMES, (60, 3))
    for hospital in hospitals:
        assert hospital.failed is None
        assert hospital.said == [("charged", 0), ("answered", 1), ("answered", 2), ("answered", 3), ("finished", 3)]
        assert hospital.charged >= WHOLE
        assert hospital.hold.state == "trained"
        assert hospital.hold.flow == flow.digest
        assert hospital.hold.persons == 60
        assert hospital.ledger.verify() == len(hospital.ledger.entries())
        assert rounds.kept_flow(hospital.home, flow.name).canonical == flow.canonical
        kinds = [entry.kind for entry in hospital.ledger.entries()]
        assert kinds == ["genesis", "reserve", "anchor", "train", *["round", "answer"] * 3, "trained"]
        # What left is what the ledger names, and nothing was sent that it does not.
        sealed = {number: one.answer for number, one in hospital.hold.begun.items()}
        boxes = LetterBoxes(hub.store)
        left = {k: boxes.answers(PLAN.study, PLAN.hash, k)[hospital.name].content for k in (1, 2, 3)}
        assert {k: sha256_hex(content) for k, content in left.items()} == sealed
        assert hospital.ledger.holds()[0].begun[3].asked
    # Again is free: the coordinator has its flow, and a site has nothing to do.
    assert coordinate(hub).digest == flow.digest
    before = [len(hospital.ledger.entries()) for hospital in hospitals]
    hospitals[0].take_part(wait=0)
    assert [len(hospital.ledger.entries()) for hospital in hospitals] == before


class Dies(Exception):
    """As if the process had been killed here: nothing after it runs."""


def dying(monkeypatch, hospital: Hospital, place: str, time: int = 1) -> None:
    """Stop one hospital's thread at a failpoint, like a kill: no handler of ours knows the exception."""
    import site_agent.egress
    import site_agent.ledger

    seen: list[str] = []

    def reach(name: str) -> None:
        if threading.current_thread() is hospital.thread:
            seen.append(name)
            if name == place and seen.count(name) == time:
                raise Dies(name)

    for module in (rounds, site_agent.egress, site_agent.ledger):
        monkeypatch.setattr(module, "reach", reach)


@pytest.mark.parametrize(
    ("place", "time", "lost"),
    [
        ("federate.reserved", 1, ()),
        ("federate.anchored", 1, ()),
        ("federate.bound", 1, ()),
        ("federate.begun", 2, (2,)),
        ("federate.witnessed", 2, (2,)),
        ("federate.answer.before_fsync", 2, (2,)),
        ("federate.answer.after_fsync", 2, (2,)),
        ("federate.sealed", 2, ()),
        ("federate.before_send", 2, ()),
        ("federate.after_send", 2, ()),
        ("federate.ended", 1, ()),
    ],
)
def test_a_site_killed_anywhere_answers_with_the_same_bytes_or_not_at_all(
    monkeypatch, hub, hospitals, place, time, lost
):
    victim, *others = hospitals
    threads = [other.start() for other in others]
    runner = threading.Thread(target=lambda: flows.append(coordinate(hub)))
    flows: list[FederatedFlow] = []
    runner.start()
    victim.thread = threading.Thread(target=lambda: _die(victim))
    dying(monkeypatch, victim, place, time)
    victim.thread.start()
    victim.thread.join()
    assert isinstance(victim.failed, Dies), place
    assert victim.charged >= WHOLE  # from the first moment on, whatever becomes of it
    monkeypatch.undo()
    left = _answers(hub, victim)
    victim.ledger.recover()
    victim.take_part()
    for thread in (*threads, runner):
        thread.join()
    [flow] = flows
    assert flow.sites[victim.name]["answered"] == 3 - len(lost)
    assert victim.hold.state == "trained"
    assert tuple(k for k, one in victim.hold.begun.items() if not one.answer) == lost
    after = _answers(hub, victim)
    assert {k: after[k] for k in left} == left  # nothing that had left was changed
    assert victim.charged == pytest.approx(others[0].charged)
    assert victim.ledger.verify()


def _die(hospital: Hospital) -> None:
    try:
        hospital.take_part()
    except Exception as error:
        hospital.failed = error


def _answers(hub: Hub, hospital: Hospital) -> dict[int, bytes]:
    boxes = LetterBoxes(hub.store)
    given = {k: boxes.answers(PLAN.study, PLAN.hash, k).get(hospital.name) for k in (1, 2, 3)}
    return {k: answer.content for k, answer in given.items() if answer is not None}
