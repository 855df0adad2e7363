"""A training by Flower in one process: sources, sites and apps."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
from stage.training.memory_federation import MemorySource, memory_grid

from coordinator.training import federation as hub
from shared.base.randomness import seeded_rng
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.federated import Federated, FederatedFlow
from shared.plans.plan import Budget, StudyPlan, Training, Wave
from shared.wire import flower
from site_agent.training.federation import client_app

NAMES = ("north", "south", "east", "west")
FEDERATED = Federated(rounds=3, local_steps=2, rate=0.5, noise_multiplier=1.2, server_rate=0.05)


def made(federated: Federated | None = FEDERATED, **changed) -> StudyPlan:
    """A small study of two columns and an outcome."""
    columns = (
        Column(name="age", kind="continuous", lower=18, upper=100),
        Column(name="sbp", kind="continuous", lower=70, upper=260),
        Column(name="died", kind="binary"),
    )
    parts = {
        "study": "mini",
        "version": 1,
        "title": "Mini",
        "purpose": "To test.",
        "coordinator": "hub",
        "expires": dt.date(2030, 1, 1),
        "release": LatentNoisePlan(w=0.5),
        "budget": Budget(epsilon=50.0),
        "waves": (Wave(number=1, opens=dt.date(2026, 1, 1), closes=dt.date(2026, 2, 1)),),
        "dictionary": Dictionary(name="mini", version=1, columns=columns),
        "training": Training(flows=2, hidden=6),
        "federated": federated,
    }
    return StudyPlan(**(parts | changed))


PLAN = made()


def records(n: int = 40, seed: int = 1) -> np.ndarray:
    """Encoded, with a dependence between age and pressure."""
    draws = np.random.default_rng(seed)
    age = draws.uniform(-0.6, 0.6, n)
    return np.column_stack([age, 0.5 * age + 0.1 * draws.standard_normal(n), draws.uniform(0, 2, n)])


def source(plan: StudyPlan = PLAN, site: str = "north", n: int = 40, seed: int = 1) -> MemorySource:
    return MemorySource(plan=plan, site=site, encoded=records(n, seed), rng=seeded_rng(seed))


def context(node: int):
    flower.prepare()
    from flwr.app import Context, RecordDict

    return Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})


def answering(one, node: int = 7):
    app = client_app(one)
    return lambda message: app(message, context(node))


def network(plan: StudyPlan = PLAN, names=NAMES, n: int = 40):
    """Sources, sites with their node ids, and apps by node id."""
    sources = {name: source(plan, name, n + 10 * k, seed=k + 1) for k, name in enumerate(names)}
    sites = {name: 100 + k for k, name in enumerate(names)}
    return sources, sites, {sites[name]: answering(one, sites[name]) for name, one in sources.items()}


def trained(tmp_path: Path, plan: StudyPlan = PLAN, names=NAMES) -> FederatedFlow:
    _, sites, apps = network(plan, names)
    return hub.run(memory_grid(apps), plan, sites, tmp_path / "training")
