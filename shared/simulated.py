"""Made-up studies that look like published ones: for the demo, the tests and the benchmarks.

No record of a person is here. The twelve cohorts have the sizes, means, standard deviations and event rates of
Table 3 of the latent-noise-injection paper, and a hazard that follows a Cox model in which 10 mmHg of systolic
pressure multiply it by about 1.17, with age, cholesterol and HDL held fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.errors import ParameterError

__all__ = [
    "COHORTS",
    "CVD_HAZARD_RATIO",
    "PublishedCohort",
    "assay_hospitals",
    "contact_networks",
    "cvd_cohorts",
    "registries",
    "small_hospitals",
]

Array = NDArray[np.float64]

CVD_HAZARD_RATIO = 1.17
"""Hazard ratio of 10 mmHg in `cvd_cohorts`, before the cohorts differ (`cvd_cohorts` says by how much)."""


@dataclass(frozen=True, kw_only=True)
class PublishedCohort:
    """One row of Table 3: (mean, SD) of each column, and the share of persons with an event.

    `leaving` is ours: the rate of leaving the study per longest follow-up, chosen so that the observed time has the SD.
    """

    name: str
    n: int
    events: float
    time: tuple[float, float]
    age: tuple[float, float]
    chol: tuple[float, float]
    hdl: tuple[float, float]
    sbp: tuple[float, float]
    leaving: float


def _cohort(name: str, n: int, percent: float, *pairs: float, leaving: float) -> PublishedCohort:
    time, age, chol, hdl, sbp = ((pairs[k], pairs[k + 1]) for k in range(0, 10, 2))
    return PublishedCohort(
        name=name, n=n, events=percent / 100, time=time, age=age, chol=chol, hdl=hdl, sbp=sbp, leaving=leaving
    )


COHORTS: tuple[PublishedCohort, ...] = (
    _cohort("ARIC-F", 8101, 16, 20, 6, 54, 6, 218, 43, 57, 17, 120, 19, leaving=0.13),
    _cohort("ARIC-M", 6762, 26, 18, 7, 55, 6, 211, 40, 44, 14, 122, 18, leaving=0.20),
    _cohort("CARDIA-F", 2743, 4, 33, 4, 25, 4, 177, 33, 56, 13, 107, 10, leaving=0.01),
    _cohort("CARDIA-M", 2297, 7, 32, 6, 25, 4, 176, 34, 50, 13, 115, 10, leaving=0.05),
    _cohort("CHS-F", 3254, 42, 13, 7, 72, 5, 221, 39, 59, 16, 137, 22, leaving=0.38),
    _cohort("CHS-M", 2413, 50, 10, 7, 73, 6, 198, 36, 48, 13, 136, 21, leaving=0.81),
    _cohort("MESA-F", 3552, 9, 14, 4, 62, 10, 200, 36, 56, 15, 127, 23, leaving=0.17),
    _cohort("MESA-M", 3176, 13, 14, 4, 62, 10, 188, 35, 45, 12, 126, 19, leaving=0.13),
    _cohort("Framingham-F", 1766, 13, 27, 7, 44, 10, 201, 40, 54, 13, 118, 17, leaving=0.09),
    _cohort("Framingham-M", 1608, 22, 25, 9, 44, 10, 204, 37, 43, 11, 126, 16, leaving=0.18),
    _cohort("Jackson-F", 1913, 4, 10, 2, 50, 12, 197, 38, 54, 14, 124, 17, leaving=0.09),
    _cohort("Jackson-M", 1196, 5, 9, 2, 49, 12, 197, 40, 45, 12, 126, 16, leaving=0.11),
)
"""Table 3 of the latent-noise-injection paper: 38,781 persons."""

_CORRELATION = np.array(
    [
        [1.00, 0.20, 0.02, 0.35],
        [0.20, 1.00, 0.08, 0.12],
        [0.02, 0.08, 1.00, -0.06],
        [0.35, 0.12, -0.06, 1.00],
    ]
)
"""Age, cholesterol, HDL, systolic pressure."""
_BOUNDS = {"age": (16.0, 100.0), "chol": (60.0, 600.0), "hdl": (10.0, 200.0), "sbp": (60.0, 280.0)}
_AGE, _CHOL, _HDL = 0.05, 0.004, -0.015
"""Log hazard per year, per mg/dL, per mg/dL."""
_SHAPE = 1.3
"""Weibull shape of the time to the event."""


def cvd_cohorts(rng: np.random.Generator, scale: float = 1.0, *, apart: float = 0.03) -> dict[str, pd.DataFrame]:
    """Twelve cohorts of Table 3: name -> table with `person`, `time`, `cvd`, `age`, `chol`, `hdl`, `sbp`.

    Args:
        rng: draws everything.
        scale: share of the published sizes; 1 gives 38,781 persons in all.
        apart: standard deviation of the true log hazard ratio of 10 mmHg between cohorts.
    Returns: one row per person: `person` text, `time` years to event or censoring (two decimals, at least 0.01 and
        below 60), `cvd` 0 or 1, `age` years (one decimal, 16–100), `chol` mg/dL (60–600), `hdl` mg/dL (10–200) and
        `sbp` mmHg (60–280) as whole numbers.
    Raises: ParameterError, if a cohort would have fewer than 20 persons.
    """
    if not (math.isfinite(scale) and min(c.n for c in COHORTS) * scale >= 20):
        raise ParameterError("scale must leave at least 20 persons in every cohort", given=repr(scale))
    return {cohort.name: _simulate(cohort, round(cohort.n * scale), rng, apart) for cohort in COHORTS}


def _simulate(cohort: PublishedCohort, n: int, rng: np.random.Generator, apart: float) -> pd.DataFrame:
    latent = rng.standard_normal((n, 4)) @ np.linalg.cholesky(_CORRELATION).T
    # Ages of enrolment are bounded: between a normal and a uniform shape.
    columns = {"age": _fit(3 * np.tanh(latent[:, 0] / 2.2), *cohort.age)}
    for name, k in (("chol", 1), ("hdl", 2), ("sbp", 3)):
        mean, sd = getattr(cohort, name)
        columns[name] = _fit(np.exp(math.sqrt(math.log1p((sd / mean) ** 2)) * latent[:, k]), mean, sd)
    for name, decimals in (("age", 1), ("chol", 0), ("hdl", 0), ("sbp", 0)):
        columns[name] = np.clip(columns[name].round(decimals), *_BOUNDS[name])

    log_hr = math.log(CVD_HAZARD_RATIO) + apart * rng.standard_normal()
    predictor = (
        log_hr * (columns["sbp"] - cohort.sbp[0]) / 10
        + _AGE * (columns["age"] - cohort.age[0])
        + _CHOL * (columns["chol"] - cohort.chol[0])
        + _HDL * (columns["hdl"] - cohort.hdl[0])
    )
    time, event = _follow_up(cohort, predictor, rng)
    time = np.maximum((time * cohort.time[0] / time.mean()).round(2), 0.01)
    person = [f"{cohort.name}-{i:05d}" for i in range(n)]
    return pd.DataFrame({"person": person, "time": time, "cvd": event.astype(np.int64), **columns})


def _follow_up(cohort: PublishedCohort, predictor: Array, rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Time (in units of the longest follow-up) and event: staggered entry, people who leave, a Weibull hazard."""
    n = len(predictor)
    end = 1 - 0.2 * rng.beta(1, 3, n)
    censored = np.minimum(end, 0.01 + rng.exponential(1 / cohort.leaving, n))
    exponential = rng.exponential(1, n)
    low, high = -25.0, 10.0
    # The intercept that gives the published share of events in these very persons.
    for _ in range(60):
        level = (low + high) / 2
        failure = (exponential * np.exp(-level - predictor)) ** (1 / _SHAPE)
        low, high = (level, high) if (failure <= censored).mean() < cohort.events else (low, level)
    return np.minimum(failure, censored), failure <= censored


def _fit(draws: Array, mean: float, sd: float) -> Array:
    """The draws with this very mean and standard deviation."""
    return mean + sd * (draws - draws.mean()) / draws.std()


def small_hospitals(rng: np.random.Generator, sites: int = 3, n: int = 400) -> dict[str, pd.DataFrame]:
    """A first example: hospitals with `person`, `age` (years), `sex`, `sbp` (mmHg) and `died` (0 or 1).

    The log odds of death rise by 0.5 per 10 years of age and by 0.2 per 10 mmHg.

    >>> tables = small_hospitals(np.random.default_rng(1), sites=2, n=50)
    >>> list(tables), list(tables["north"].columns)
    (['north', 'south'], ['person', 'age', 'sex', 'sbp', 'died'])
    """
    compass = ("north", "south", "east", "west")
    names = [compass[k] if k < len(compass) else f"hospital-{k + 1}" for k in range(sites)]
    out = {}
    for k, name in enumerate(names):
        age = np.clip(rng.normal(62 + 2 * k, 11, n), 18, 100).round()
        male = rng.random(n) < 0.5
        sbp = np.clip(rng.normal(112 + 0.35 * age + 3 * male, 15), 70, 260).round()
        odds = np.exp(-1.6 + 0.05 * (age - 62) + 0.02 * (sbp - 135) + 0.1 * rng.standard_normal())
        out[name] = pd.DataFrame(
            {
                "person": [f"{name}-{i:04d}" for i in range(n)],
                "age": age,
                "sex": np.where(male, "male", "female"),
                "sbp": sbp,
                "died": (rng.random(n) < odds / (1 + odds)).astype(np.int64),
            }
        )
    return out


def contact_networks(
    rng: np.random.Generator, sites: int = 3, n: int = 1200, mean_degree: float = 24.0
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Contact networks, one per hospital: a node table and an edge list, undirected.

    Three wards; people of one ward meet more often, younger ones a little more than older ones, and staff more than
    patients: σ(α_i + α_j + Z_i · Z_j) with positions Z around their ward's, degrees α, and α_0 for the mean degree.

    Args:
        n: persons of the first hospital; each further one has a fifth fewer.
        mean_degree: expected contacts of a person in the first hospital; the others have the same share of pairs.
    Returns: name to (nodes, edges): `person`, `ward`, `staff` (0 or 1), `age` (18 to 95); `from`, `to`.

    >>> nodes, edges = contact_networks(np.random.default_rng(1), sites=1, n=200)["harbour"]
    >>> list(nodes.columns), list(edges.columns), len(nodes)
    (['person', 'ward', 'staff', 'age'], ['from', 'to'], 200)
    """
    names = ("harbour", "valley", "forest", "meadow", "coast")
    wards = np.array(["medicine", "surgery", "maternity"])
    centres = 1.1 * np.array([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])
    density = mean_degree / (n - 1)
    out = {}
    for k in range(sites):
        count = round(n * 0.8**k)
        name = names[k] if k < len(names) else f"hospital-{k + 1}"
        ward = rng.choice(3, count, p=[0.45, 0.35, 0.2])
        staff = rng.random(count) < 0.25
        age = np.where(staff, rng.normal(42, 11, count), rng.normal(61, 17, count)).clip(18, 95).round()
        z = centres[ward] + 0.45 * rng.standard_normal((count, 2))
        alpha = 0.35 * staff - 0.008 * (age - 55) + 0.35 * rng.standard_normal(count)
        logit = z @ z.T + alpha[:, None] + alpha[None, :]
        i, j = np.triu_indices(count, 1)
        low, high = -20.0, 10.0
        for _ in range(40):
            level = (low + high) / 2
            share = 1 / (1 + np.exp(-(level + logit[i, j])))
            low, high = (level, high) if share.mean() < density else (low, level)
        met = rng.random(len(i)) < share
        person = np.array([f"{name}-{row:04d}" for row in range(count)], dtype=object)
        nodes = pd.DataFrame({"person": person, "ward": wards[ward], "staff": staff.astype(np.int64), "age": age})
        nodes["age"] = nodes["age"].astype(np.int64)
        out[name] = (nodes, pd.DataFrame({"from": person[i[met]], "to": person[j[met]]}))
    return out


def registries(rng: np.random.Generator, scale: float = 1.0) -> dict[str, pd.DataFrame]:
    """Four admission registries: `person`, `age` (years), `sex`, `sbp` (mmHg), `smoker`, `ward` and `died` (0 or 1).

    The log odds of death rise by 0.5 per 10 years of age, fall by 0.15 per 10 mmHg, and are higher by 0.4 in smokers.

    Args:
        scale: share of the sizes 16,000, 12,000, 8,000 and 5,000.

    >>> tables = registries(np.random.default_rng(1), scale=0.01)
    >>> {name: len(table) for name, table in tables.items()}
    {'north': 160, 'south': 120, 'east': 80, 'west': 50}
    """
    out = {}
    for k, (name, size) in enumerate({"north": 16_000, "south": 12_000, "east": 8_000, "west": 5_000}.items()):
        n = round(size * scale)
        age = np.clip(rng.normal(63 + k, 13, n), 18, 100).round()
        male = rng.random(n) < 0.52
        smoker = rng.random(n) < np.where(male, 0.3, 0.2) - 0.002 * (age - 63)
        sbp = np.clip(rng.normal(114 + 0.3 * age + 3 * male + 3 * smoker, 17), 60, 260).round()
        ward = rng.choice(3, n, p=(0.5, 0.3, 0.2))
        odds = -2.0 + 0.05 * (age - 63) - 0.015 * (sbp - 135) + 0.4 * smoker + np.array([0.0, -0.3, 0.5])[ward]
        died = rng.random(n) < 1 / (1 + np.exp(-(odds + 0.1 * rng.standard_normal())))
        out[name] = pd.DataFrame(
            {
                "person": [f"{name}-{i:05d}" for i in range(n)],
                "age": age,
                "sex": np.where(male, "male", "female"),
                "sbp": sbp,
                "smoker": smoker.astype(np.int64),
                "ward": np.array(["medical", "surgical", "emergency"])[ward],
                "died": died.astype(np.int64),
            }
        )
    return out


def assay_hospitals(rng: np.random.Generator, n: int = 2500) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Three hospitals with like patients, one of which measures cholesterol by another assay.

    Columns are `person`, `age` (years), `chol` (mg/dL) and `sbp` (mmHg), which rises by 6 per 40 mg/dL and by 4 per 10
    years. The assay of Budapest reads 210 (x / 210)^1.8 where the others read x.

    Returns: the tables as the hospitals have them, and the same persons with the cholesterol of one assay everywhere.

    >>> tables, truth = assay_hospitals(np.random.default_rng(1), n=100)
    >>> list(tables), tables["zurich"].equals(truth["zurich"])
    (['cleveland', 'budapest', 'zurich'], True)
    >>> bool(truth["budapest"]["chol"].std() < tables["budapest"]["chol"].std())
    True
    """
    tables, truth = {}, {}
    for k, name in enumerate(("cleveland", "budapest", "zurich")):
        persons = n + 200 * k
        age = np.clip(rng.normal(58, 9, persons), 20, 100).round(1)
        chol = np.clip(210 + 0.6 * (age - 58) + rng.normal(0, 34, persons), 90, 380).round()
        sbp = np.clip(130 + 0.15 * (chol - 210) + 0.4 * (age - 58) + rng.normal(0, 15, persons), 70, 260).round()
        person = [f"{name}-{i:05d}" for i in range(persons)]
        truth[name] = pd.DataFrame({"person": person, "age": age, "chol": chol, "sbp": sbp})
        read = (210 * (chol / 210) ** 1.8).round() if name == "budapest" else chol
        tables[name] = truth[name].assign(chol=read)
    return tables, truth
