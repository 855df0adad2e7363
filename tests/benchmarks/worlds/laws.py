"""The simulated hard worlds.

Most draw covariates first and outcomes from a linear predictor; in those whose name begins with ``unequal`` the outcome
comes first, and the covariates have another spread or another shape in each of its groups. Sites differ a little in
their baseline everywhere, and much in ``drifting_sites``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld

__all__ = ["WORLDS"]

Array = NDArray[np.float64]
Rng = np.random.Generator

AGE = Column(name="age", kind="integer", lower=18, upper=105)
MALE = Column(name="male", kind="binary")
SBP = Column(name="sbp", kind="continuous", lower=50, upper=280, decimals=0)
MARKER = Column(name="marker", kind="continuous", lower=0, upper=60, decimals=2)
ARM = Column(name="arm", kind="binary")
USUAL = (AGE, MALE, SBP, MARKER, ARM)
TERMS = "age/10 + male + sbp/10 + marker + arm"
DIED = Column(name="died", kind="binary")
VISITS = Column(name="visits", kind="integer", lower=0, upper=200)
SCORE = Column(name="score", kind="continuous", lower=0, upper=100, decimals=1)
YEARS = Column(name="years", kind="time", upper=12, decimals=2, event="gone")
GONE = Column(name="gone", kind="event")


def _outcomes(years: Column = YEARS, **other: Column) -> dict[str, tuple[Column, ...]]:
    died = other.get("died", DIED)
    return {
        "binary": (died,),
        "count": (other.get("visits", VISITS),),
        "linear": (other.get("score", SCORE),),
        "survival": (years, GONE),
        "groups": (died,),
    }


def _baseline(site: int) -> float:
    return 0.25 * float(np.sin(2.4 * site + 0.7))


def _at_share(eta: Array, share: float) -> float:
    """The intercept at which events have this share."""
    low, high = -15.0, 15.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if special.expit(middle + eta).mean() < share else (low, middle)
    return low


def _usual(n: int, rng: Rng) -> dict[str, Array]:
    z = rng.standard_normal((n, 3))
    age = np.clip(np.floor(62 + 13 * z[:, 0]), 18, 104)
    male = (rng.random(n) < 0.6).astype(float)
    sbp = np.clip(np.round(128 + 0.25 * (age - 62) + 18 * z[:, 1]), 51, 279)
    marker = np.clip(np.round(np.exp(0.5 + 0.012 * (age - 62) + 0.5 * z[:, 2]), 2), 0.01, 59)
    return {"age": age, "male": male, "sbp": sbp, "marker": marker, "arm": (rng.random(n) < 0.5).astype(float)}


def _eta(c: dict[str, Array]) -> Array:
    """The usual linear predictor, centred about 0."""
    return (
        0.045 * (c["age"] - 62)
        + 0.3 * (c["male"] - 0.6)
        - 0.012 * (c["sbp"] - 128)
        + 0.25 * (c["marker"] - 1.9)
        - 0.3 * (c["arm"] - 0.5)
    )


def _with_outcomes(
    c: dict[str, Array],
    eta: Array,
    rng: Rng,
    site: int,
    *,
    share: float = 0.12,
    given: Array | None = None,
    dispersed: float = 0.0,
    empty: float = 0.0,
    uneven: float = 0.0,
    skewed: bool = False,
    step: float = 0.01,
    late: float = 0.0,
) -> pd.DataFrame:
    """A table with every outcome.

    Args:
        share: of events, at an average site.
        given: (n,) the event, where it came before the covariates; the time then follows from it.
        dispersed: variance of a gamma factor on the count. empty: share of counts that are 0 for another reason.
        uneven: how the spread of the score grows with the predictor. skewed: whether its errors are.
        step: of the times. late: how the effect grows (above 0) or wears off with time.
    """
    n, base = len(eta), _baseline(site)
    # Of a standard site, so that the sites' shares differ.
    intercept = _at_share(eta, share) + base
    died = given if given is not None else (rng.random(n) < special.expit(intercept + eta)).astype(float)
    rate = np.exp(0.9 + 0.5 * base + 0.4 * eta)
    if dispersed:
        rate = rate * rng.gamma(1 / dispersed, dispersed, n)
    visits = np.where(rng.random(n) < empty, 0, rng.poisson(np.minimum(rate, 150)))
    error = rng.gamma(1.5, 1, n) - 1.5 if skewed else rng.standard_normal(n)
    score = 50 + 3 * base + 5 * eta + 9 * np.exp(uneven * np.clip(eta, -2, 2)) * error
    if given is None:
        rate_of_time = np.exp(np.clip((base + eta) * (1 if not late else 1 + late), -6, 6))
        failure = (rng.exponential(size=n) / (0.25 * share * rate_of_time)) ** (1 / 1.2)
        left = np.minimum(10 - 4 * rng.random(n), np.where(rng.random(n) < 0.15, 10 * rng.random(n), 99))
        if late:  # the effect of the predictor is other after three years
            second = (rng.exponential(size=n) / (0.25 * share * np.exp(np.clip(base + eta * (1 - late), -6, 6)))) ** (
                1 / 1.2
            )
            failure = np.where(failure < 3, failure, np.maximum(3, second))
        gone, years = (failure <= left).astype(float), np.minimum(failure, left)
    else:
        gone = died
        years = np.where(died == 1, 8 * rng.beta(0.8, 1.8, n), 6 + 4 * rng.random(n))
    years = np.clip(np.ceil(years / step) * step, step, 11.9)
    return pd.DataFrame(
        {
            **c,
            "died": died.astype(int),
            "visits": np.minimum(visits, 200).astype(int),
            "score": np.round(np.clip(score, 0, 100), 1),
            "years": np.round(years, 2),
            "gone": gone.astype(int),
        }
    ).astype({name: int for name in ("age", "male", "arm") if name in c})


# -- the outcome first -------------------------------------------------------------------------------------------
def _unequal_variances(n: int, rng: Rng, site: int) -> pd.DataFrame:
    died = (rng.random(n) < special.expit(special.logit(0.09) + _baseline(site))).astype(float)
    z = rng.standard_normal((n, 3))
    c = {
        "age": np.clip(np.floor(61 + 12 * z[:, 0] + died * (9 - 3 * z[:, 0])), 18, 104),
        "male": (rng.random(n) < 0.68 - 0.12 * died).astype(float),
        "sbp": np.clip(np.round(130 + 22 * z[:, 1] + died * (-11 + 11 * z[:, 1])), 51, 279),
        "marker": np.clip(np.round(7.4 + 1.7 * z[:, 2] + died * (0.9 + 0.9 * z[:, 2] - 0.5 * z[:, 1]), 2), 0.01, 59),
        "arm": (rng.random(n) < 0.5 - 0.06 * died).astype(float),
    }
    return _with_outcomes(c, _eta(c | {"marker": c["marker"] / 4}), rng, site, given=died)


def _unequal_skew(n: int, rng: Rng, site: int) -> pd.DataFrame:
    died = (rng.random(n) < special.expit(special.logit(0.22) + _baseline(site))).astype(float)
    z = rng.standard_normal((n, 3))
    light = 0.7 * z[:, 1] + 0.7 * z[:, 2]
    c = {
        "age": np.clip(np.floor(60 + 10 * z[:, 0] + died * 13), 18, 104),
        "male": (rng.random(n) < 0.45).astype(float),
        "sbp": np.clip(np.round(60 + np.exp(4.1 + 0.25 * z[:, 1] + died * (0.1 + 0.15 * z[:, 1]))), 51, 279),
        "marker": np.clip(np.round(np.exp(0.1 + 0.4 * light + died * (0.25 + 0.3 * light)), 2), 0.01, 59),
        "arm": (rng.random(n) < 0.5).astype(float),
    }
    return _with_outcomes(c, _eta(c), rng, site, given=died)


def _unequal_groups(n: int, rng: Rng, site: int) -> pd.DataFrame:
    died = (rng.random(n) < special.expit(special.logit(0.15) + _baseline(site))).astype(float)
    z = rng.standard_normal((n, 3))
    c = {
        "age": np.clip(np.floor(58 + 14 * z[:, 0] + died * (13 - 6 * z[:, 0])), 18, 104),
        "male": (rng.random(n) < 0.55 + 0.1 * died).astype(float),
        "sbp": np.clip(np.round(126 + 15 * z[:, 1] + 3 * z[:, 0] + died * (5 + 12 * z[:, 1])), 51, 279),
        "marker": np.clip(np.round(np.exp(0.8 + 0.35 * z[:, 2] + died * (0.15 + 0.35 * z[:, 2])), 2), 0.01, 59),
        "arm": (rng.random(n) < 0.5 + 0.05 * died).astype(float),
    }
    return _with_outcomes(c, _eta(c), rng, site, given=died, uneven=0.3)


# -- covariates first --------------------------------------------------------------------------------------------
def _heavy_tails(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    c["sbp"] = np.clip(np.round(130 + 12 * rng.standard_t(2.5, n)), 51, 279)
    c["marker"] = np.clip(np.round(rng.pareto(2.2, n), 2), 0, 60)
    return _with_outcomes(c, _eta(c), rng, site, skewed=True)


def _tails_and_zeros(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    c["marker"] = np.where(rng.random(n) < 0.25, 0, np.round(np.exp(1.1 * rng.standard_normal(n)), 2)).clip(0, 60)
    c["sbp"] = np.clip(np.round(125 + 9 * rng.standard_t(3, n) + 4 * c["marker"].clip(0, 6)), 51, 279)
    table = _with_outcomes(c, _eta(c), rng, site, dispersed=0.8, skewed=True)
    table["score"] = np.where(table["score"] < 44, 0, table["score"])
    return table


def _zeros_and_heaps(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    c["marker"] = np.where(rng.random(n) < 0.35, 0, np.round(rng.exponential(2.0, n), 2)).clip(0, 60)
    smoked = rng.choice([0, 0, 0, 5, 10, 10, 20, 20, 20, 30, 40], n) + np.where(rng.random(n) < 0.1, 3, 0)
    c["cigarettes"] = smoked.astype(float)
    eta = _eta(c) + 0.03 * (c["cigarettes"] - 12)
    return _with_outcomes(c, eta, rng, site, empty=0.3).astype({"cigarettes": int})


def _digit_preference(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    eta = _eta(c)
    c["sbp"] = np.where(rng.random(n) < 0.6, np.round(c["sbp"], -1), c["sbp"]).clip(51, 279)
    c["age"] = np.where(rng.random(n) < 0.3, 5 * np.round(c["age"] / 5), c["age"]).clip(18, 104)
    table = _with_outcomes(c, eta, rng, site, step=0.5)
    table["score"] = np.where(rng.random(n) < 0.5, 5 * np.round(table["score"] / 5), table["score"]).clip(0, 100)
    return table


def _u_shape(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    eta = _eta(c) + 0.5 * ((c["sbp"] - 132) / 20) ** 2 - 0.5
    return _with_outcomes(c, eta, rng, site)


def _threshold(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    eta = _eta(c) + 1.2 * ((c["marker"] > 3) - 0.13) - 0.9 * ((c["age"] < 50) - 0.18)
    return _with_outcomes(c, eta, rng, site)


def _interaction(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    eta = _eta(c) + (c["arm"] - 0.5) * (0.04 * (c["age"] - 62) + 0.5 * (c["male"] - 0.6))
    eta = eta - 0.001 * (c["age"] - 62) * (c["sbp"] - 128)
    return _with_outcomes(c, eta, rng, site, uneven=0.25)


def _rare_event(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    return _with_outcomes(c, _eta(c), rng, site, share=0.025)


WARD = Column(name="ward", kind="nominal", levels=("a", "b", "c", "d", "e", "f"))


def _rare_levels(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    ward = rng.choice(6, n, p=[0.45, 0.3, 0.15, 0.05, 0.03, 0.02])
    c["male"] = (rng.random(n) < 0.94).astype(float)
    eta = _eta(c) + np.array([0, 0.2, -0.3, 0.5, 0.8, -0.5])[ward]
    table = _with_outcomes(c, eta, rng, site)
    return table.assign(ward=np.array(list("abcdef"))[ward])


def _drifting_sites(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    shift = np.sin(np.array([1.3, 2.9, 4.1]) * (site + 1))
    c["age"] = np.clip(np.floor(c["age"] + 9 * shift[0]), 18, 104)
    c["sbp"] = np.clip(np.round(128 + (c["sbp"] - 128) * (1 + 0.5 * shift[1])), 51, 279)
    c["marker"] = np.clip(np.round(c["marker"] * (1.3 + shift[2]), 2), 0.01, 59)
    eta = _eta(c) * (1 + 0.25 * shift[1])
    return _with_outcomes(c, eta, rng, site, share=0.14 + 0.09 * shift[0])


ILLS = ("diabetes", "stroke", "failure", "kidney", "lung")


def _correlated_binaries(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    frail = 0.8 * rng.standard_normal(n) + 0.02 * (c["age"] - 62)
    for k, ill in enumerate(ILLS):
        c[ill] = (rng.random(n) < special.expit(-1.2 - 0.4 * k + 1.3 * frail)).astype(float)
    c["failure"] = np.maximum(c["failure"], (c["kidney"] * (rng.random(n) < 0.6)))
    eta = _eta(c) + sum(0.35 * (c[ill] - 0.2) for ill in ILLS) - 0.5 * c["diabetes"] * c["failure"]
    return _with_outcomes(c, np.asarray(eta), rng, site).astype(dict.fromkeys(ILLS, int))


def _fine_times(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    return _with_outcomes(c, _eta(c), rng, site, share=0.3, late=0.5, uneven=0.4)


def _coarse_times(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    return _with_outcomes(c, _eta(c), rng, site, share=0.25, step=1.0, skewed=True)


def _late_effects(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    return _with_outcomes(c, _eta(c), rng, site, share=0.2, late=0.6, step=0.25)


def _missing_markers(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    eta = _eta(c)
    gone = rng.random(n) < special.expit(-1.6 + 0.5 * (c["marker"] - 1.9) + 0.02 * (c["age"] - 62))
    table = _with_outcomes(c, eta, rng, site)
    return table.assign(marker=table["marker"].where(~gone))


def _wild_counts(n: int, rng: Rng, site: int) -> pd.DataFrame:
    c = _usual(n, rng)
    return _with_outcomes(c, _eta(c), rng, site, dispersed=1.2, empty=0.15, uneven=0.3, skewed=True)


def _made(
    name: str,
    hard: str,
    make: Callable[[int, Rng, int], pd.DataFrame],
    columns: tuple[Column, ...] = USUAL,
    terms: str = TERMS,
    **outcomes: Any,
) -> HardWorld:
    return HardWorld(name=name, hard=hard, make=make, columns=columns, terms=terms, outcomes=_outcomes(**outcomes))


_ONE = Column(name="years", kind="time", upper=12, decimals=0, event="gone")
_HALF = Column(name="years", kind="time", upper=12, decimals=1, event="gone")
_CIGARETTES = Column(name="cigarettes", kind="integer", lower=0, upper=80)
_HOLES = Column(name="marker", kind="continuous", lower=0, upper=60, decimals=2, missing="level")

WORLDS: dict[str, HardWorld] = {
    one.name: one
    for one in (
        _made("unequal_variances", "the dead have other variances", _unequal_variances),
        _made("unequal_skew", "the dead have other spreads of skewed markers", _unequal_skew),
        _made("unequal_groups", "the dead have other variances, some smaller", _unequal_groups),
        _made(
            "tails_and_zeros", "log-normal covariates, a quarter of them 0; a score that is often 0", _tails_and_zeros
        ),
        _made("late_effects", "effects that come late", _late_effects),
        _made("heavy_tails", "t and Pareto covariates", _heavy_tails),
        _made(
            "zeros_and_heaps",
            "a third of a marker is 0, cigarettes by the pack",
            _zeros_and_heaps,
            (*USUAL, _CIGARETTES),
            f"{TERMS} + cigarettes",
        ),
        _made("digit_preference", "pressures in tens, ages in fives", _digit_preference, years=_HALF),
        _made("u_shape", "low and high pressure both harm", _u_shape),
        _made("threshold", "harm begins above a value", _threshold),
        _made("interaction", "the arm works in some, and spreads differ", _interaction),
        _made("rare_event", "2.5 % of events", _rare_event),
        _made("rare_levels", "wards of 2 and 3 %, 6 % women", _rare_levels, (*USUAL, WARD), f"{TERMS} + ward"),
        _made("drifting_sites", "sites differ in means, spreads and effects", _drifting_sites),
        _made(
            "correlated_binaries",
            "five illnesses that come together",
            _correlated_binaries,
            (*USUAL, *(Column(name=ill, kind="binary") for ill in ILLS)),
            " + ".join((TERMS, *ILLS)),
        ),
        _made("fine_times", "hazards that are not proportional", _fine_times),
        _made("coarse_times", "times in whole years", _coarse_times, years=_ONE),
        _made(
            "missing_markers",
            "a marker is missing where it is high",
            _missing_markers,
            (AGE, MALE, SBP, _HOLES, ARM),
        ),
        _made("wild_counts", "counts with too many zeros and a long tail", _wild_counts),
    )
}
