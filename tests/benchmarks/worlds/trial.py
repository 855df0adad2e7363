"""Two simulated trials of heart attacks in sixteen regions: what a large trial's table looks like, and no flow likes.

Regions of 500 to 5,000 patients, of whom 7 % die within 30 days, half of them within two; pulse and pressure are heaped
at even and round numbers and both harm at either end; two of four Killip classes are rare; regions differ in rates,
means and (in the second) effects. In `infarct` the outcome comes first, and the dead have other means, spreads and
skews; in `infarct_bent` it follows from a predictor with bends, interactions and heavy-tailed covariates. The same with
Killip's class in the model are `infarct_killip` and `infarct_bent_killip`. They belong to neither half of the zoo.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld

__all__ = ["REGIONS", "WORLDS"]

Array = NDArray[np.float64]
Rng = np.random.Generator

REGIONS = (5000, 4700, 4300, 3900, 3600, 3200, 2900, 2500, 2200, 1900, 1600, 1300, 1000, 800, 600, 500)
"""Patients of each region."""
KILLIP = ("I", "II", "III", "IV")


def _heaped(values: Array, rng: Rng, round_to: int, share: float) -> Array:
    """Even numbers, and of a share of the persons the nearest round ones."""
    return np.where(rng.random(len(values)) < share, round_to * np.round(values / round_to), 2 * np.round(values / 2))


def _killip(severity: Array, rng: Rng) -> Array:
    """(n,) classes 0 to 3: 86, 12, 1.3 and .8 % where severity is standard normal."""
    return np.digitize(severity, [1.09, 2.02, 2.4]).astype(float)


def _outcomes(c: dict[str, Array], died: Array, risk: Array, rng: Rng, region: int) -> pd.DataFrame:
    n = len(died)
    soon = rng.random(n) < special.expit(0.5 * risk)
    days = np.where(soon, rng.exponential(0.8, n), 30 * rng.beta(0.9, 2.2, n))
    lost = rng.random(n) < 0.02
    days = np.where(died == 1, days, np.where(lost, 30 * rng.random(n), 30.0))
    nights = rng.poisson(rng.gamma(1.6, np.exp(2.0 + 0.18 * risk + 0.15 * np.sin(region)) / 1.6))
    nights = np.where(rng.random(n) < 0.25, 7 * np.maximum(np.round(nights / 7), 1), nights)
    fraction = (
        54
        - 3.2 * risk
        - 2.5 * c["prior"]
        + (9 + 1.5 * np.clip(risk, -1, 3)) * (rng.standard_normal(n) - 0.5 * (rng.gamma(1.2, 1, n) - 1.2))
    )
    return pd.DataFrame(
        {
            "age": np.round(np.clip(c["age"], 19, 104), 1),
            "pulse": np.clip(_heaped(c["pulse"], rng, 10, 0.25), 20, 220).astype(int),
            "sysbp": np.clip(_heaped(c["sysbp"], rng, 10, 0.5), 40, 280).astype(int),
            "female": c["female"].astype(int),
            "diabetes": c["diabetes"].astype(int),
            "prior": c["prior"].astype(int),
            "killip": np.array(KILLIP)[c["killip"].astype(int)],
            "day30": died.astype(int),
            "days": np.round(np.clip(days, 0.01, 30), 2),
            "dead": died.astype(int),
            "nights": np.minimum(nights, 120).astype(int),
            "fraction": np.clip(5 * np.round(fraction / 5), 5, 85).astype(int),
        }
    )


def _infarct(n: int, rng: Rng, region: int) -> pd.DataFrame:
    n = REGIONS[region]
    drift = np.sin(np.array([1.7, 0.6, 2.3, 3.1]) * (region + 1))
    died = (rng.random(n) < special.expit(special.logit(0.068) + 0.25 * drift[0])).astype(float)
    z = rng.standard_normal((n, 4))
    skew = rng.gamma(2.0, 1.0, (n, 2)) - 2
    age = np.where(died == 1, 71 + 9.5 * z[:, 0] - 1.5 * skew[:, 0], 60.5 + 11.6 * z[:, 0]) + 2 * drift[1]
    pulse = np.where(died == 1, 81 + 13 * z[:, 1] + 11 * skew[:, 1], 72.5 + 12 * z[:, 1] + 6 * skew[:, 1])
    part = rng.random(n)
    of_dead = np.where(part < 0.2, 88 + 16 * z[:, 2], np.where(part < 0.88, 124 + 24 * z[:, 2], 168 + 20 * z[:, 2]))
    sysbp = np.where(died == 1, of_dead, 131 + 21 * z[:, 2] + 2 * z[:, 0]) + 4 * drift[2]
    ill = 0.35 * (pulse - 73) / 15 + 0.93 * z[:, 3] + died * (0.85 + 0.3 * z[:, 3])
    c = {
        "age": age,
        "pulse": np.where(rng.random(n) < 0.015 + 0.03 * died, 36 + 5 * z[:, 1], pulse),
        "sysbp": sysbp,
        "female": (rng.random(n) < 0.23 + 0.15 * died).astype(float),
        "diabetes": (rng.random(n) < 0.14 + 0.08 * died + 0.03 * drift[3]).astype(float),
        "prior": (rng.random(n) < 0.16 + 0.11 * died).astype(float),
        "killip": _killip(ill, rng),
    }
    risk = 0.05 * (age - 61) + 0.02 * (pulse - 73) + 0.6 * c["killip"]
    return _outcomes(c, died, np.clip(risk, -3, 4), rng, region)


def _infarct_bent(n: int, rng: Rng, region: int) -> pd.DataFrame:
    n = REGIONS[region]
    drift = np.sin(np.array([2.2, 0.9, 1.4, 2.7]) * (region + 1))
    z = rng.standard_normal((n, 4))
    age = 61 + 12 * special.ndtri(rng.beta(1.2, 1.05, n)) * 0.9 + 3 * drift[1]
    shock = (rng.random(n) < 0.02 + 0.01 * drift[2]).astype(float)
    pulse = 71 + 11 * z[:, 1] + 3.5 * rng.standard_t(3, n) + 5 * rng.exponential(1, n) + 18 * shock
    sysbp = 129 + 0.2 * (age - 61) + 19 * z[:, 2] + 6 * rng.standard_t(4, n) - 38 * shock
    ill = 0.25 * (pulse - 75) / 15 + 0.02 * (age - 61) + 0.9 * z[:, 3] + 1.6 * shock
    c = {
        "age": age,
        "pulse": pulse,
        "sysbp": np.maximum(sysbp, 45),
        "female": (rng.random(n) < special.expit(-1.2 + 0.03 * (age - 61))).astype(float),
        "diabetes": (rng.random(n) < 0.15 + 0.04 * drift[3]).astype(float),
        "prior": (rng.random(n) < special.expit(-1.7 + 0.02 * (age - 61))).astype(float),
        "killip": _killip(ill, rng),
    }
    low, high = np.maximum(115 - c["sysbp"], 0), np.maximum(c["sysbp"] - 165, 0)
    eta = (
        (0.075 + 0.015 * drift[0]) * (age - 61)
        - 0.0009 * (age - 61) ** 2 * (age < 61)
        + 0.022 * np.maximum(pulse - 66, 0)
        + 0.02 * np.maximum(55 - pulse, 0)
        + 0.03 * low
        + 0.008 * high
        + 0.25 * c["female"]
        + 0.3 * c["diabetes"]
        + 0.45 * c["prior"]
        + np.array([0, 0.55, 1.0, 1.9])[c["killip"].astype(int)]
        - 0.02 * (age - 61) * (c["killip"] > 0)
    )
    died = (rng.random(n) < special.expit(-3.75 + 0.3 * drift[0] + eta)).astype(float)
    return _outcomes(c, died, np.clip(eta - 0.8, -3, 4), rng, region)


_COLUMNS = (
    Column(name="age", kind="continuous", lower=18, upper=110, decimals=1),
    Column(name="pulse", kind="integer", lower=0, upper=250),
    Column(name="sysbp", kind="integer", lower=0, upper=300),
    Column(name="female", kind="binary"),
    Column(name="diabetes", kind="binary"),
    Column(name="prior", kind="binary"),
)
_CLASS = Column(name="killip", kind="nominal", levels=KILLIP)
_TERMS = "age/10 + pulse/10 + sysbp/10 + female + diabetes + prior"
_OUTCOMES = {
    "binary": (Column(name="day30", kind="binary"),),
    "count": (Column(name="nights", kind="integer", lower=0, upper=120),),
    "linear": (Column(name="fraction", kind="integer", lower=0, upper=100),),
    "survival": (
        Column(name="days", kind="time", upper=31, decimals=2, event="dead"),
        Column(name="dead", kind="event"),
    ),
}

WORLDS: dict[str, HardWorld] = {
    f"{name}{more}": HardWorld(
        name=f"{name}{more}",
        hard=f"{hard}{', with Killip classes' if more else ''}",
        columns=(*_COLUMNS, _CLASS) if more else _COLUMNS,
        outcomes=_OUTCOMES,
        terms=f"{_TERMS} + killip" if more else _TERMS,
        make=make,
        sites=len(REGIONS),
    )
    for name, hard, make in (
        ("infarct", "the dead of a trial have other means, spreads and skews", _infarct),
        ("infarct_bent", "pulse and pressure harm at both ends, regions differ", _infarct_bent),
    )
    for more in ("", "_killip")
}
