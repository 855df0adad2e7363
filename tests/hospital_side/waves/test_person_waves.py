"""Sequences of waves in which a hospital rewrites, withdraws and adds persons, against the true persons behind them."""

# ruff: noqa: F811
from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from stage.hospital_side.pipeline import deliver, quick, release, source  # noqa: F401
from stage.hospital_side.site_desk import Hub
from stage.plans.wave_plans import several

from shared.base.keys import SigningKey
from shared.errors import DifferencingRefusal, Refusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget
from shared.privacy import accountant as privacy
from site_agent.config import SiteFloors
from site_agent.ledger.book import Ledger
from site_agent.records import table as records
from site_agent.records.identifiers import normalised
from site_agent.records.pseudonyms import pseudonym
from site_agent.release import fitting, sealed_state
from site_agent.release.outbox import Outbox
from site_agent.release.site import WorkingSite

KEY = b"k" * 32
EVERYBODY = make_table(1200)
HOW = ("as before", "other spelling", "a third anew", "two thirds anew", "all anew")
"""What becomes of the identifiers between two extracts."""


def wave():
    return st.fixed_dictionaries(
        {
            "how": st.sampled_from(HOW),
            "joined": st.sampled_from([0, 80, 200]),
            "withdrawn": st.sampled_from([0, 0, 20]),
            "signed": st.booleans(),
        }
    )


class Life:
    """A hospital whose persons are known by their places in `EVERYBODY`, whatever it calls them."""

    def __init__(self, folder: Path, plan) -> None:
        self.folder, self.plan = folder, plan
        ledger = Ledger.create(folder / "home" / "ledger.db", SigningKey.generate(), site="north")
        self.site = WorkingSite(
            name="north",
            agent_version="0.1.0",
            ledger=ledger,
            outbox=Outbox(folder / "home", ledger),
            witness=Hub(),
            snapshot_key=KEY,
            floors=SiteFloors(),
            paused=lambda: False,
        )
        self.names = {place: f"P{place:05d}" for place in range(400)}
        self.gone: set[int] = set()
        self.renamed: dict[int, int] = dict.fromkeys(range(len(EVERYBODY)), 0)
        """How often a person's identifier has changed beyond its spelling."""
        self.released: Counter[int] = Counter()
        self.trained: set[int] = set()
        self.signed = 0

    def pseudonyms(self) -> dict[str, int]:
        return {pseudonym(normalised(name), key=KEY): place for place, name in self.names.items()}

    def turn(self, number: int, what: dict, rng: np.random.Generator) -> None:
        """What happens at the hospital before a wave."""
        places = list(self.names)
        share = {"a third anew": 1 / 3, "two thirds anew": 2 / 3, "all anew": 1.0}.get(what["how"], 0.0)
        for place in rng.permutation(places)[: round(share * len(places))]:
            self.names[int(place)] = f"anew-{number}-{place}"
            self.renamed[int(place)] += 1
        if what["how"] == "other spelling":
            self.names = {place: f" {name.lower()} " for place, name in self.names.items()}
        for place in range(len(self.names), len(self.names) + what["joined"]):
            self.names[place] = f"P{place:05d}"
        if what["withdrawn"]:
            known = self.pseudonyms()
            leaving = [int(k) for k in rng.permutation(list(self.names))[: what["withdrawn"]]]
            self.gone |= set(leaving)
            self.site.ledger.note_persons("mini", [p for p, place in known.items() if place in set(leaving)])

    def make(self, number: int, *, sign: bool) -> bool:
        """Make a wave, and a steward's signature where one is asked for; whether it was released."""
        rows = EVERYBODY.iloc[list(self.names)].assign(person=list(self.names.values()))
        where = source(self.folder, pd.DataFrame(rows))
        try:
            made = release(self.plan, self.site, where, wave=number)
        except DifferencingRefusal as refusal:
            if not (sign and "confirm-persons" in (refusal.next_step or "")):
                return False
            waiting = self.site.ledger.holds()[-1]
            snapshot = records.read(where, self.plan.dictionary, key=self.site.snapshot_key).snapshot
            word = {"there": 0, "earlier": 1, "snapshot": snapshot, "name": "ada", "reason": "other persons"}
            self.site.ledger.confirm_persons(waiting, **word)
            self.signed += 1
            try:
                made = release(self.plan, self.site, where, wave=number)
            except Refusal as again:
                note(str(again))
                return False
        except Refusal as refusal:
            note(str(refusal))
            return False
        deliver(self.site, made)
        known, folder = self.pseudonyms(), self.site.ledger.folder(made.hold)
        rows_of = sealed_state.read_rows(folder, made.hold)
        drawn = [known[p] for p, row in zip(rows_of.persons, rows_of.source, strict=True) if row >= 0]
        self.released.update(drawn)
        if self.plan.posture == "holdout" and made.receipt.flow_of == made.hold.release_id:
            self.trained |= {known[p] for p in known if fitting.trains(self.plan, p)} - self.gone
        return True


def held(life: Life, price: np.ndarray) -> None:
    """What the receipts promise, of the true persons."""
    ledger, delta = life.site.ledger, life.plan.budget.delta
    total = ledger.study_total("mini", delta).epsilon
    assert total <= life.plan.budget.epsilon
    for place, times in life.released.items():
        # Under an identifier of their own somebody is charged as a person of their own: what is promised is for each.
        apart = 1 if life.plan.redraws else 1 + life.renamed[place]
        assert privacy.epsilon_from_rdp(-(-times // apart) * price, delta) <= total * (1 + 1e-9)
        if not life.plan.redraws:
            assert times <= 1 + life.renamed[place]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("lives", [2, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("posture", ["public", "holdout"])
@pytest.mark.parametrize("returning", ["append", "refresh", "frozen"])
def test_whatever_a_hospital_does_to_its_identifiers_the_promises_hold_or_a_steward_has_signed(
    quick, plan, returning, posture, lives
):
    many = several(plan, 5, returning=returning, posture=posture, release=LatentNoisePlan(epsilon=0.5))
    many = replace(many, budget=Budget(epsilon=2.0))

    @settings(
        max_examples=lives,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # a life is read sooner than it is made smaller
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(waves=st.lists(wave(), min_size=2, max_size=4), seed=st.integers(0, 99))
    def promises_hold(waves: list[dict[str, object]], seed: int) -> None:
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), many)
            assert life.make(1, sign=False)
            price = np.asarray(life.site.ledger.holds()[0].rdp)
            for number, what in enumerate(waves, start=2):
                before = {pseudonym(normalised(name), key=KEY) for name in life.names.values()} - {
                    pseudonym(normalised(life.names[place]), key=KEY) for place in life.gone
                }
                life.turn(number, what, rng)
                signed = life.signed
                there = len(before & set(life.pseudonyms())) / len(before)
                made = life.make(number, sign=what["signed"])
                held(life, price)
                if made and there < 0.45 and (posture == "holdout" or not many.redraws):
                    assert life.signed > signed, "nobody goes on without the earlier persons unless somebody has signed"
                known = {place for place in life.trained if not life.renamed[place]}
                assert not known & set(life.released), "whoever trained is never released under the same identifier"

    promises_hold()
