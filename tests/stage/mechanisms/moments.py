"""A trial's columns, its cohort and plans of noisy moments."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.spec import MomentsSpec
from shared.plans.dictionary import Column, Dictionary

COLUMNS = {
    "time": Column(name="time", kind="time", upper=20, event="died", decimals=2),
    "died": Column(name="died", kind="event"),
    "cured": Column(name="cured", kind="binary"),
    "visits": Column(name="visits", kind="integer", lower=0, upper=40),
    "score": Column(name="score", kind="continuous", lower=-50, upper=150),
    "age": Column(name="age", kind="continuous", lower=16, upper=100, decimals=1),
    "sbp": Column(name="sbp", kind="integer", lower=60, upper=280),
    "male": Column(name="male", kind="binary"),
    "stage": Column(name="stage", kind="ordered", levels=("I", "II", "III", "IV")),
}
OUTCOMES = {"survival": ("time", "died"), "binary": ("cured",), "count": ("visits",), "linear": ("score",)}
COVARIATES = ("age", "sbp", "male", "stage")


def planned(outcome="survival", declared=(), epsilon=1.0, **more):
    covariates = more.pop("covariates", COVARIATES)
    spec = MomentsSpec(
        outcome=outcome,
        responses=OUTCOMES[outcome],
        covariates=covariates,
        declared=declared,
        epsilon=epsilon,
        delta=1e-6,
        **more,
    )
    columns = tuple(COLUMNS[name] for name in (*OUTCOMES[outcome], *covariates))
    return Design(spec=spec, dictionary=Dictionary(name="trial", version=1, columns=columns))


def cohort(n, rng, beta=(0.3, 0.25, 0.4, -0.3)):
    """Every outcome of the same people, levels as codes: what `Dictionary.check` returns."""
    latent = rng.standard_normal((n, 4)) @ np.linalg.cholesky(0.25 + 0.75 * np.eye(4)).T
    age = np.clip(58 + 11 * latent[:, 0], 16, 100).round(1)
    sbp = np.clip(128 * np.exp(0.14 * latent[:, 1]), 60, 280).round()
    male = (latent[:, 2] > 0.2).astype(float)
    stage = np.searchsorted([-0.7, 0.4, 1.3], latent[:, 3]).astype(float)
    x = np.column_stack([(age - 58) / 11, (sbp - 128) / 18, male, stage])
    eta = x @ np.array(beta)
    failure = rng.exponential(1, n) * 25 * np.exp(-eta)
    leaving = np.minimum(20 - 6 * rng.random(n), rng.exponential(60, n))
    return pd.DataFrame(
        {
            "time": np.clip(np.minimum(failure, leaving), 0.01, 20).round(2),
            "died": (failure <= leaving).astype(float),
            "cured": (rng.random(n) < 1 / (1 + np.exp(0.8 - eta))).astype(float),
            "visits": np.minimum(rng.poisson(np.exp(0.6 + 0.5 * eta)), 40).astype(float),
            "score": np.clip(50 + 12 * eta + 15 * rng.standard_normal(n), -50, 150),
            "age": age,
            "sbp": sbp,
            "male": male,
            "stage": stage,
        }
    )
