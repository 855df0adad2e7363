"""Moments of a plan with factors, and its records."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd

from shared.mechanisms.moments.plan import MomentsPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave

AGE = Column(name="age", kind="continuous", lower=20, upper=100, decimals=1)
STAGE = Column(name="stage", kind="nominal", levels=("I", "II", "III"))
DIED = Column(name="died", kind="binary")
N = 3000


def plan_of(columns=(AGE, STAGE, DIED), covariates=("age", "stage"), **more) -> StudyPlan:
    day = dt.date(2026, 1, 1)
    names = list(covariates)
    release = MomentsPlan(**{"epsilon": 3.0, "outcome": "binary", "responses": ["died"], "covariates": names} | more)
    return StudyPlan(
        study="trial",
        version=1,
        title="Stage and death",
        purpose="To see that a factor has an effect per level.",
        coordinator="hub",
        expires=day,
        release=release,
        posture="private",
        budget=Budget(epsilon=10.0, delta=1e-6),
        waves=(Wave(number=1, opens=day, closes=day),),
        dictionary=Dictionary(name="trial", version=1, columns=tuple(columns)),
        estimands={"planned": f"logistic(died) ~ {' + '.join(names)}"},
    )


def records(seed: int) -> pd.DataFrame:
    """Patients whose second stage is the worst: no effect per step tells it."""
    rng = np.random.default_rng(seed)
    code = rng.choice(3, N, p=[0.5, 0.3, 0.2])
    age = np.clip(rng.normal(60 + 3 * code, 10, N), 20, 100).round(1)
    eta = -1 + 0.03 * (age - 60) + np.array([0.0, 1.2, 0.3])[code]
    died = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"age": age, "stage": np.array(STAGE.levels, dtype=object)[code], "died": died})
