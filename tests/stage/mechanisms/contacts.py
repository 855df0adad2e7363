"""A hospital's network of contacts, its plan and its agent."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.hospital_side.shipped import study
from stage.hospital_side.site_desk import Hub

from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.simulated import contact_networks
from site_agent.config import Edges, SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.records.pseudonyms import pseudonym
from site_agent.release import fitting
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.site import WorkingSite

TODAY = dt.date(2026, 1, 5)
KEY = b"k" * 32
DAYS = {"opens": dt.date(2000, 1, 1), "closes": dt.date(2999, 1, 1)}


def contacts_plan(**changes: object) -> StudyPlan:
    settings: dict[str, object] = {
        "study": "contacts",
        "version": 1,
        "title": "Contacts on the wards",
        "purpose": "To see how contacts differ between hospitals.",
        "coordinator": "hub",
        "expires": dt.date(2999, 12, 31),
        "release": GrandPlan(epsilon=2.0, d=2),
        "posture": "holdout",
        "budget": Budget(epsilon=8.0, delta=1e-6),
        "waves": (Wave(number=1, **DAYS),),
        "dictionary": Dictionary(
            name="contacts",
            version=1,
            columns=(
                Column(name="person", kind="person"),
                Column(name="ward", kind="nominal", levels=("medicine", "surgery", "maternity")),
                Column(name="staff", kind="binary"),
                Column(name="age", kind="integer", lower=18, upper=110),
            ),
        ),
    }
    return StudyPlan(**{**settings, **changes})


@dataclass(frozen=True)
class Ward:
    """A hospital's two files and its agent."""

    folder: Path
    nodes: pd.DataFrame
    edges: pd.DataFrame

    @property
    def source(self) -> TableSource:
        self.nodes.to_csv(self.folder / "nodes.csv", index=False)
        self.edges.to_csv(self.folder / "edges.csv", index=False)
        return TableSource(path=self.folder / "nodes.csv", edges=Edges(path=self.folder / "edges.csv"))

    def site(self, name: str = "home") -> WorkingSite:
        ledger = Ledger.create(self.folder / name / "ledger.db", SigningKey.generate(), site="north")
        return WorkingSite(
            name="north",
            agent_version="0.1.0",
            ledger=ledger,
            outbox=Outbox(self.folder / name, ledger),
            witness=Hub(),
            snapshot_key=KEY,
            floors=SiteFloors(),
            paused=lambda: False,
        )

    def release(self, plan: StudyPlan, site: WorkingSite | None = None, wave: int = 1, seed: int | None = None):
        rng = None if seed is None else seeded_rng(seed)
        site = site or self.site()
        return make_release(plan=plan, wave=wave, source=self.source, site=site, today=TODAY, rng=rng)

    def roles(self, plan: StudyPlan) -> np.ndarray:
        """Whether each person is held out."""
        return np.array([fitting.trains(plan, pseudonym(name, key=KEY)) for name in self.nodes["person"]])


@pytest.fixture
def ward(tmp_path) -> Ward:
    return Ward(tmp_path, *contact_networks(np.random.default_rng(1), sites=1, n=300, mean_degree=14)["harbour"])


CONTACTS = Dictionary(
    name="contacts",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="ward", kind="nominal", levels=("medicine", "surgery", "maternity")),
        Column(name="staff", kind="binary"),
        Column(name="age", kind="integer", lower=18, upper=110),
    ),
)


def contacts(n: int = 180) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Persons in the order of age, and their contacts."""
    nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=n, mean_degree=14)["harbour"]
    return nodes.sort_values("age", kind="stable").reset_index(drop=True), edges


def contacts_study(release: GrandPlan) -> StudyPlan:
    return study(release, CONTACTS, posture="holdout")
