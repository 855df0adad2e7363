"""A study of cross-products, and its persons."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd

from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave

COLUMNS = Dictionary(
    name="pressure",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="continuous", lower=16, upper=100, unit="years"),
        Column(name="sex", kind="binary", levels=("female", "male")),
        Column(name="drug", kind="binary"),
        Column(name="sbp", kind="continuous", lower=60, upper=280, unit="mmHg"),
        Column(name="ward", kind="nominal", levels=("a", "b", "c")),
        Column(name="dose", kind="integer", lower=0, upper=40, missing="complete_case"),
    ),
)
TYPICAL = {"age": (50.0, 15.0), "sbp": (130.0, 20.0)}


def release(**changed):
    fields = {"epsilon": 1.0, "columns": ("age", "sex", "drug", "sbp"), "typical": TYPICAL}
    return CrossProductsPlan(**{**fields, **changed})


def study(**changed) -> StudyPlan:
    return StudyPlan(
        study="pressure",
        version=1,
        title="Pressure",
        purpose="To test.",
        coordinator="hub",
        expires=dt.date(2999, 1, 1),
        posture="private",
        release=release(**changed),
        budget=Budget(epsilon=4.0, delta=1e-6),
        waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2998, 1, 1)),),
        dictionary=COLUMNS,
    )


def people(n, seed):
    rng = np.random.default_rng(seed)
    age, sex, drug = rng.normal(54, 13, n), rng.integers(0, 2, n), rng.integers(0, 2, n)
    sbp = 100 + 0.5 * age + 5.0 * sex - 6.0 * drug + rng.normal(0, 14, n)
    return pd.DataFrame({"age": age, "sex": sex, "drug": drug, "sbp": sbp})
