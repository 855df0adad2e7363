"""Worlds of what outside readers found false and no row of the zoo asked: `tests.benchmarks.zoo_apart` asks it.

Two of each sort, made by other laws: one whose name tunes, to try things on, and one that is reported. They are in
neither of the lists of the two halves, whose records do not have them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import special

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld
from tests.benchmarks.worlds.others import binary, integer, number

__all__ = ["WORLDS"]

Rng = np.random.Generator
AGE = integer("age", 18, 105)
(DIED,) = binary("died")
SCORE = number("score", 0, 100, 1)


def _level(shares: list[float], names: str, n: int, rng: Rng) -> np.ndarray:
    """(n,) of these levels, named by letters."""
    p = np.array(shares)
    return np.array(list(names), dtype=object)[rng.choice(len(p), n, p=p / p.sum())]


def _yes(eta: np.ndarray, rng: Rng) -> np.ndarray:
    """(n,) of 0 and 1 with these log odds."""
    return (rng.random(len(eta)) < special.expit(eta)).astype(int)


def _ages(n: int, rng: Rng, mean: float = 62.0) -> np.ndarray:
    return np.clip(np.floor(rng.normal(mean, 13, n)), 18, 104).astype(int)


# -- means of long tails, and shares of levels -------------------------------------------------------------------
def _costly_care(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at = np.sin(1.9 * site + 0.4)
    stay = np.clip(np.floor(1 + np.exp(rng.normal(1.2 + 0.15 * at, 0.9, n))), 0, 365).astype(int)
    return pd.DataFrame(
        {
            "stay": stay,
            "crp": np.clip(np.exp(rng.normal(2 + 0.2 * at, 1.3, n)), 0, 400).round(1),
            "icu": _yes(np.full(n, -2 + 0.3 * at), rng),
            "ward": _level([0.5, 0.3, 0.15 + 0.05 * at, 0.05], "abcd", n, rng),
            "cost": np.clip(0.4 * stay + 2 * (1 + rng.pareto(1.8, n)), 0, 500).round(1),
        }
    )


def _care_costs(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at = np.cos(2.3 * site + 1.1)
    frail = rng.standard_normal(n)
    dear = rng.random(n) < 0.04
    bill = rng.gamma(0.8, 7 + at, n) * np.exp(0.3 * frail) + np.where(dear, 40 * (1 + rng.pareto(1.6, n)), 0)
    visits = np.where(rng.random(n) < 0.35, 0, rng.poisson(3 * np.exp(0.2 * at) * rng.gamma(0.6, 1 / 0.6, n)))
    return pd.DataFrame(
        {
            "ferritin": np.clip(np.exp(rng.normal(4.5 + 0.15 * at + 0.3 * frail, 1.1, n)), 1, 6000).round(0),
            "visits": np.clip(visits, 0, 120).astype(int),
            "readmitted": _yes(-2.4 + 0.3 * at + 0.3 * frail, rng),
            "smoker": _yes(np.full(n, -0.85 - 0.2 * at), rng),
            "region": _level([0.42, 0.28 + 0.1 * at, 0.16, 0.1, 0.04], "abcde", n, rng),
            "bill": np.clip(bill, 0, 800).round(1),
        }
    )


# -- hospitals that lie apart in both columns --------------------------------------------------------------------
DOSE, LOAD = number("dose", -6, 6, 2), number("load", 0, 120, 1)
REPLY = number("reply", -8, 8, 2)


def _lying_apart(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at, age = np.sin(3 * site), _ages(n, rng)
    beyond = rng.gamma(4, 0.5, n) - 2
    old = (age - 62) / 13
    reply = 0.5 * beyond - 1.5 * at + 0.3 * old + 0.8 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "dose": np.clip(beyond + 1.5 * at, -6, 6).round(2),
            "age": age,
            "reply": np.clip(reply, -8, 8).round(2),
            "died": _yes(-1.5 + 0.6 * beyond - 1.2 * at + 0.3 * old, rng),
        }
    )


def _own_centres(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at, age = (1 if site % 2 else -1) * (0.7 + 0.3 * np.cos(1.7 * site)), _ages(n, rng, 62 + 2 * np.sin(site))
    beyond, old = 8 * rng.standard_normal(n), age - 62
    score = 50 + 0.35 * beyond - 9 * at + 0.1 * old + 8 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "load": np.clip(60 + 14 * at + beyond, 0, 120).round(1),
            "age": age,
            "score": np.clip(score, 0, 100).round(1),
            "died": _yes(-1.4 + 0.06 * beyond - 0.7 * at + 0.03 * old, rng),
        }
    )


# -- numbers within bounds of sixteen standard deviations and more -----------------------------------------------
SODIUM, PULSE = number("sodium", 100, 180, 1), number("pulse", 0, 300, 0)
GLUCOSE, WEIGHT = number("glucose", 0, 32, 2), number("weight", 0, 300, 1)
INDEX, POINTS = number("index", -50, 150, 1), number("points", -100, 200, 1)


def _far_bounds(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at, z = 0.3 * np.sin(2.1 * site), rng.standard_normal((3, n))
    sodium, glucose = 139 + 4.5 * (z[0] + at), 6 + 1.6 * (0.4 * z[0] + 0.9 * z[1])
    return pd.DataFrame(
        {
            "sodium": np.clip(sodium, 100, 180).round(1),
            "glucose": np.clip(glucose, 0, 32).round(2),
            "index": np.clip(50 + 4 * z[0] + 3 * z[1] + 9 * z[2] + 4 * at, -50, 150).round(1),
            "died": _yes(-1.3 + 0.5 * z[0] - 0.4 * z[1] + at, rng),
        }
    )


def _wide_bounds(n: int, rng: Rng, site: int) -> pd.DataFrame:
    at, z, old = 0.3 * np.cos(1.3 * site), rng.standard_normal((3, n)), rng.gamma(9, 1 / 3, n) - 3
    return pd.DataFrame(
        {
            "pulse": np.clip(np.round(78 + 13 * (0.5 * z[0] + 0.87 * old + at)), 0, 300),
            "weight": np.clip(79 + 17 * z[0], 0, 300).round(1),
            "male": _yes(0.4 + 0.8 * z[0], rng),
            "points": np.clip(50 + 6 * old - 5 * z[0] + 12 * z[2] + 5 * at, -100, 200).round(1),
            "died": _yes(-1.6 + 0.6 * old + 0.3 * z[0] - at, rng),
        }
    )


# -- covariates that go together strongly ------------------------------------------------------------------------
MARRIED, SMOKED = integer("married", 0, 80), integer("smoked", 0, 90)
CHILDREN, WAIST = integer("children", 0, 15), number("waist", 40, 180, 1)


def _married_years(n: int, rng: Rng, site: int) -> pd.DataFrame:
    age = np.clip(np.floor(rng.normal(40 + np.sin(site), 12, n)), 18, 90).astype(int)
    married = np.maximum(0, age - np.floor(17 + rng.gamma(3, 2.2, n))).astype(int)
    children = np.minimum(rng.poisson(0.3 + 0.08 * married), 15)
    eta = -2.2 + 0.03 * (age - 40) + 0.02 * married + 0.1 * np.cos(site)
    return pd.DataFrame({"age": age, "married": married, "children": children, "died": _yes(eta, rng)})


def _body_measures(n: int, rng: Rng, site: int) -> pd.DataFrame:
    age, male = _ages(n, rng, 58 + np.cos(site)), (rng.random(n) < 0.5).astype(int)
    weight = 68 + 12 * male + 13 * rng.standard_normal(n) + rng.gamma(1.5, 4, n) + np.sin(2 * site)
    waist = 30 + 0.72 * weight + 3 * male + 0.08 * (age - 58) + 3.2 * rng.standard_normal(n)
    since = np.maximum(age - 17, 0) * rng.beta(2.5, 0.9, n)
    smoked = np.where(rng.random(n) < 0.4 + 0.1 * (1 - male), 0, np.floor(since)).astype(int)
    eta = -2 + 0.04 * (age - 58) + 0.02 * (waist - 88) + 0.02 * smoked
    return pd.DataFrame(
        {
            "age": age,
            "male": male,
            "weight": np.clip(weight, 30, 250).round(1),
            "waist": np.clip(waist, 40, 180).round(1),
            "smoked": smoked,
            "died": _yes(eta, rng),
        }
    )


# -- whole numbers that are heaped -------------------------------------------------------------------------------
SCHOOL = integer("school", 0, 25)


def _years_of_school(n: int, rng: Rng, site: int) -> pd.DataFrame:
    age = _ages(n, rng, 50)
    most = np.where(rng.random(n) < 0.45 - 0.004 * (age - 50), 10, 13)
    school = np.where(rng.random(n) < 0.75, most, rng.integers(7, 22, n)).astype(int)
    return _schooled(age, school, 0.12, 2.0, site, rng)


def _schooling(n: int, rng: Rng, site: int) -> pd.DataFrame:
    age = _ages(n, rng, 47)
    years = np.array([6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20])
    shares = np.array([2, 4, 3, 5, 4, 36, 6, 9, 3, 19, 2, 5, 2], dtype=float)
    tilt = np.exp(-0.006 * np.outer(age - 47, years - 13) + 0.03 * np.sin(site) * (years - 13))
    p = np.cumsum(shares * tilt, axis=1)
    school = years[(rng.random(n)[:, None] * p[:, -1:] > p).sum(axis=1)]
    return _schooled(age, school, 0.1, 1.6, site, rng)


def _schooled(age: np.ndarray, school: np.ndarray, risk: float, gain: float, site: int, rng: Rng) -> pd.DataFrame:
    """Outcomes of persons who went to school so long: the more, the fewer die and the higher a score."""
    n, at = len(age), 0.25 * np.sin(2.4 * site + 0.7)
    male = (rng.random(n) < 0.5).astype(int)
    score = 45 + gain * (school - 12) + 0.05 * (age - 50) + 2 * male + 3 * at + 10 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "school": school,
            "age": age,
            "male": male,
            "score": np.clip(score, 0, 100).round(1),
            "died": _yes(-1.5 - risk * (school - 12) + 0.04 * (age - 50) + 0.3 * male + at, rng),
        }
    )


# -- nominal covariates, one level rare --------------------------------------------------------------------------
GRADE, CLINIC = (
    Column(name=name, kind="nominal", levels=tuple("abcde"[:k])) for name, k in (("grade", 3), ("clinic", 5))
)
STAGE, WARD = (Column(name=name, kind="nominal", levels=tuple("abcde"[:k])) for name, k in (("stage", 3), ("ward", 5)))


def _named_levels(n: int, rng: Rng, site: int) -> pd.DataFrame:
    grade, clinic = rng.choice(3, n, p=[0.5, 0.45, 0.05]), rng.choice(5, n, p=[0.35, 0.25, 0.2, 0.16, 0.04])
    age = np.clip(np.floor(rng.normal(58 + 3 * grade, 12, n)), 18, 104).astype(int)
    eta = 0.03 * (age - 60) + np.array([0, 0.5, 1.0])[grade] + np.array([0, 0.3, -0.3, 0.2, 0.8])[clinic]
    names = {
        "grade": np.array(list("abc"), dtype=object)[grade],
        "clinic": np.array(list("abcde"), dtype=object)[clinic],
    }
    return _levelled(names, age, -1.6 + eta, site, rng)


def _stage_ward(n: int, rng: Rng, site: int) -> pd.DataFrame:
    z = rng.standard_normal(n)
    stage = (z[:, None] > special.ndtri([0.56, 0.96])).sum(axis=1)
    ward = rng.choice(5, n, p=[0.4, 0.27, 0.18, 0.12, 0.03])
    age = np.clip(np.floor(rng.normal(60 + 5 * z - 2 * (ward == 1), 11)), 18, 104).astype(int)
    eta = 0.025 * (age - 60) + np.array([0, 0.9, 0.4])[stage] + np.array([0, -0.4, 0.3, 0.5, 1.1])[ward]
    names = {"stage": np.array(list("abc"), dtype=object)[stage], "ward": np.array(list("abcde"), dtype=object)[ward]}
    return _levelled(names, age, -1.8 + eta, site, rng)


def _levelled(names: dict[str, np.ndarray], age: np.ndarray, eta: np.ndarray, site: int, rng: Rng) -> pd.DataFrame:
    """Outcomes by these log odds."""
    eta = eta + 0.25 * np.sin(2.4 * site + 0.7)
    score = np.clip(55 + 6 * eta + 9 * rng.standard_normal(len(eta)), 0, 100).round(1)
    return pd.DataFrame({**names, "age": age, "score": score, "died": _yes(eta, rng)})


def _made(
    name: str,
    hard: str,
    make: Callable[[int, Rng, int], pd.DataFrame],
    columns: tuple[Column, ...],
    terms: str,
    **outcomes: Column,
) -> HardWorld:
    kinds = {kind: (column,) for kind, column in outcomes.items()}
    return HardWorld(name=name, hard=hard, make=make, columns=columns, terms=terms, outcomes=kinds)


_REGION = Column(name="region", kind="nominal", levels=tuple("abcde"))
_COSTLY = (
    integer("stay", 0, 365),
    number("crp", 0, 400, 1),
    *binary("icu"),
    Column(name="ward", kind="nominal", levels=tuple("abcd")),
)
_COSTS = (number("ferritin", 1, 6000, 0), integer("visits", 0, 120), *binary("readmitted", "smoker"), _REGION)
WORLDS: dict[str, HardWorld] = {
    one.name: one
    for one in (
        _made(
            "costly_care",
            "stays, a protein and costs with long tails; wards",
            _costly_care,
            _COSTLY,
            "stay + crp + icu + ward",
            linear=number("cost", 0, 500, 1),
        ),
        _made(
            "care_costs",
            "bills, ferritin and visits with long tails; regions",
            _care_costs,
            _COSTS,
            "ferritin + visits + readmitted + smoker + region",
            linear=number("bill", 0, 800, 1),
        ),
        _made(
            "lying_apart",
            "hospitals lie apart in dose and reply",
            _lying_apart,
            (DOSE, AGE),
            "dose + age/10",
            linear=REPLY,
            binary=DIED,
        ),
        _made(
            "own_centres",
            "hospitals of two sorts lie apart in load and score",
            _own_centres,
            (LOAD, AGE),
            "load/10 + age/10",
            linear=SCORE,
            binary=DIED,
        ),
        _made(
            "far_bounds",
            "bounds of 18 to 20 standard deviations",
            _far_bounds,
            (SODIUM, GLUCOSE),
            "sodium + glucose",
            linear=INDEX,
            binary=DIED,
        ),
        _made(
            "wide_bounds",
            "bounds of 17 to 23 standard deviations",
            _wide_bounds,
            (PULSE, WEIGHT, *binary("male")),
            "pulse/10 + weight/10 + male",
            linear=POINTS,
            binary=DIED,
        ),
        _made(
            "married_years",
            "years of marriage rise with age",
            _married_years,
            (AGE, MARRIED, CHILDREN),
            "age/10 + married/10 + children",
            binary=DIED,
        ),
        _made(
            "body_measures",
            "waist rises with weight, years of smoking with age",
            _body_measures,
            (AGE, *binary("male"), number("weight", 30, 250, 1), WAIST, SMOKED),
            "age/10 + male + weight/10 + waist/10 + smoked/10",
            binary=DIED,
        ),
        _made(
            "years_of_school",
            "10 or 13 years of school for three in four",
            _years_of_school,
            (SCHOOL, AGE, *binary("male")),
            "school + age/10 + male",
            linear=SCORE,
            binary=DIED,
        ),
        _made(
            "schooling",
            "12 or 16 years of school for more than half",
            _schooling,
            (SCHOOL, AGE, *binary("male")),
            "school + age/10 + male",
            linear=SCORE,
            binary=DIED,
        ),
        _made(
            "named_levels",
            "grades and clinics, one of 5 and one of 4 %",
            _named_levels,
            (AGE, GRADE, CLINIC),
            "age/10 + grade + clinic",
            linear=SCORE,
            binary=DIED,
        ),
        _made(
            "stage_ward",
            "stages and wards, one of 4 and one of 3 %",
            _stage_ward,
            (AGE, STAGE, WARD),
            "age/10 + stage + ward",
            linear=SCORE,
            binary=DIED,
        ),
    )
}
