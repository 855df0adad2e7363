"""A cohort under each posture: fitted once, released as its plan says."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
from stage.hospital_side.site_desk import Hub

from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.flows.chain import to_arrays
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import Budget, Floors, PrivateTraining, Reference, StudyPlan, Training, Wave
from site_agent.config import SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.records import table as records
from site_agent.release.fitting import fit
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.site import WorkingSite

TODAY = dt.date(2026, 1, 5)
DICTIONARY = Dictionary(
    name="small",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="continuous", lower=18, upper=100, decimals=1),
        Column(name="sbp", kind="continuous", lower=60, upper=260, decimals=1),
        Column(name="visits", kind="integer", lower=0, upper=40),
        Column(name="died", kind="event"),
    ),
)
PUBLIC = {
    "age": Reference(mean=60, sd=15),
    "sbp": Reference(mean=135, sd=20),
    "visits": Reference(mean=5, sd=4),
    "died": Reference(mean=0.2),
}


def study(posture: str, **changes) -> StudyPlan:
    """A small study of one posture."""
    more: dict = {
        "study": "small",
        "version": 1,
        "title": "A small study",
        "purpose": "To hold the postures against their promises.",
        "coordinator": "hub",
        "expires": dt.date(2999, 12, 31),
        "release": LatentNoisePlan(w=0.02),
        "training": Training(flows=2, hidden=16, epochs=3, patience=2),
        "budget": Budget(epsilon=60.0),
        "floors": Floors(membership_auc=0.8, own_row_linkage=0.5, extreme_linkage=1.0),
        "waves": (Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
        "dictionary": DICTIONARY,
    }
    if posture == "private":
        more["private"] = PrivateTraining(rate=0.2, noise_multiplier=2.0, steps=40)
    if posture in ("public", "private"):
        more["reference"] = PUBLIC
    return StudyPlan(**{**more, "posture": posture, **changes})


def cohort(n: int = 600, seed: int = 1) -> pd.DataFrame:
    """A table of the small study."""
    rng = np.random.default_rng(seed)
    age = rng.normal(58, 11, n).clip(18, 100).round(1)
    sbp = (95 + 0.6 * age + rng.normal(0, 14, n)).clip(60, 260).round(1)
    odds = np.exp(-1.6 + 0.05 * (age - 58))
    return pd.DataFrame(
        {
            "person": [f"p{i}" for i in range(n)],
            "age": age,
            "sbp": sbp,
            "visits": rng.poisson(4, n).clip(0, 40),
            "died": (rng.random(n) < odds / (1 + odds)).astype(int),
        }
    )


def encoded(plan: StudyPlan, table: pd.DataFrame, seed: int = 3):
    """(encoder, x, pseudonyms) of a table, as the agent makes them."""
    encoder = Encoder(dictionary=plan.dictionary)
    checked = plan.dictionary.check(table)
    held = records.Records(table=checked, rows=len(checked), snapshot="")
    return encoder, encoder.encode(checked, seeded_rng(seed)), records.row_pseudonyms(held, plan.dictionary, key=b"k")


def fitted(plan: StudyPlan, table: pd.DataFrame, seed: int = 5):
    encoder, x, persons = encoded(plan, table)
    return fit(plan, encoder, x, persons, seeded_rng(seed))


def strange(table: pd.DataFrame, rows) -> pd.DataFrame:
    """The table with the records of `rows` exchanged for the most unusual ones the dictionary allows."""
    out = table.copy()
    out.loc[rows, ["age", "sbp", "visits", "died"]] = [100.0, 60.0, 40, 1]
    return out


def site(folder) -> WorkingSite:
    ledger = Ledger.create(folder / "home" / "ledger.db", SigningKey.generate(), site="north")
    return WorkingSite(
        name="north",
        agent_version="0.1.0",
        ledger=ledger,
        outbox=Outbox(folder / "home", ledger),
        witness=Hub(),
        snapshot_key=b"k" * 32,
        floors=SiteFloors(),
        paused=lambda: False,
    )


def released(plan, folder, table):
    folder.mkdir(exist_ok=True)
    table.to_csv(folder / "cohort.csv", index=False)
    at = site(folder)
    source = TableSource(path=folder / "cohort.csv")
    return at, make_release(plan=plan, wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))


def same(one, two) -> bool:
    """Whether two fits have byte-identical flows."""
    a, b = to_arrays(one.mechanism.flow), to_arrays(two.mechanism.flow)
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
