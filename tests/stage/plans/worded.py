"""Plans whose receipts' words are kept."""

from __future__ import annotations

import datetime as dt

from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, PrivateTraining, StudyPlan, Wave


def study(posture: str, *, person: bool = True, complete_case: bool = False) -> StudyPlan:
    """A small plan; a column of each sort that changes a sentence."""
    columns = (Column(name="person", kind="person"),) if person else ()
    missing = "complete_case" if complete_case else "refuse"
    columns += (
        Column(name="age", kind="continuous", lower=18, upper=100, missing=missing),
        Column(name="died", kind="event"),
    )
    private = PrivateTraining(rate=0.1, noise_multiplier=3.0, steps=100) if posture == "private" else None
    return StudyPlan(
        study="wording",
        version=1,
        title="Words",
        purpose="To hold the words of a receipt.",
        coordinator="hub",
        expires=dt.date(2999, 12, 31),
        posture=posture,
        private=private,
        holdout=0.4,
        release=LatentNoisePlan(epsilon=6.0),
        budget=Budget(epsilon=10.0),
        waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
        dictionary=Dictionary(name="wording", version=1, columns=columns),
    )
