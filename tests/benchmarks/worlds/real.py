"""Real tables, cut into their sites: read from folders that environment variables name, and never committed.

TRIBUTARY_REAL_DATA names the folder of `flchain.csv`, `nafld.csv` and `rotterdam.csv` (R package survival);
TRIBUTARY_HEART_DATA that of the four hospitals' tables of the UCI heart disease data, which are `heart` in the half
that is reported, and with a second model `hospitals`, of neither half.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld

__all__ = ["APART", "NAMES", "table", "variable"]

NAMES = ("flchain", "nafld", "rotterdam", "heart")
APART = ("hospitals",)
"""Tables of neither half."""
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def table(name: str) -> HardWorld:
    """The real table of that name as a world. Raises: KeyError; FileNotFoundError, where no folder is named."""
    if name not in (*NAMES, *APART):
        raise KeyError(name)
    folder = os.environ.get(variable(name), "")
    if not folder:
        raise FileNotFoundError(f"{variable(name)} must name the folder of {name}")
    made = {"flchain": _flchain, "nafld": _nafld, "rotterdam": _rotterdam, "heart": _heart, "hospitals": _hospitals}
    return made[name](Path(folder))


def variable(name: str) -> str:
    """The environment variable that names the folder of a table."""
    return "TRIBUTARY_HEART_DATA" if name in ("heart", *APART) else "TRIBUTARY_REAL_DATA"


def _sites(frame: pd.DataFrame, columns: list[str]) -> list[pd.DataFrame]:
    whole = frame.dropna(subset=columns)
    return [part[columns].reset_index(drop=True) for _, part in whole.groupby("site", sort=True)]


def _world(name, hard, parts, columns, outcomes, terms, questions=None) -> HardWorld:
    def make(n: int, rng: np.random.Generator, site: int) -> pd.DataFrame:
        part = parts[site]
        return part.iloc[np.sort(rng.permutation(len(part))[:n])].reset_index(drop=True) if n < len(part) else part

    return HardWorld(
        name=name,
        hard=hard,
        columns=columns,
        outcomes=outcomes,
        terms=terms,
        make=make,
        sites=len(parts),
        questions=questions,
    )


def _flchain(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "flchain.csv")
    frame["sex"] = (frame["sex"] == "M").astype(int)
    columns = (
        Column(name="age", kind="integer", lower=40, upper=110),
        Column(name="sex", kind="binary"),
        Column(name="kappa", kind="continuous", lower=0, upper=30, decimals=2),
        Column(name="lambda_", kind="continuous", lower=0, upper=40, decimals=2),
        Column(name="creatinine", kind="continuous", lower=0, upper=15, decimals=1),
    )
    frame = frame.rename(columns={"lambda": "lambda_"})
    frame["years"] = (frame["futime"].clip(lower=1) / 365.25).round(2).clip(lower=0.01)
    names = [*(column.name for column in columns), "death", "years"]
    return _world(
        "flchain",
        "light chains skewed, twice as spread among the dead",
        _sites(frame, names),
        columns,
        {
            "binary": (Column(name="death", kind="binary"),),
            "survival": (
                Column(name="years", kind="time", upper=16, decimals=2, event="death"),
                Column(name="death", kind="event"),
            ),
        },
        "age/10 + sex + kappa + lambda_ + creatinine",
    )


def _nafld(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "nafld.csv")
    columns = (
        Column(name="age", kind="integer", lower=15, upper=110),
        Column(name="male", kind="binary"),
        Column(name="bmi", kind="continuous", lower=8, upper=100, decimals=1),
    )
    frame["years"] = (frame["futime"].clip(lower=1) / 365.25).round(2).clip(lower=0.01)
    frame["bmi"] = frame["bmi"].round(1)
    return _world(
        "nafld",
        "8 % of events",
        _sites(frame, ["age", "male", "bmi", "status", "years"]),
        columns,
        {
            "binary": (Column(name="status", kind="binary"),),
            "survival": (
                Column(name="years", kind="time", upper=25, decimals=2, event="status"),
                Column(name="status", kind="event"),
            ),
        },
        "age/10 + male + bmi",
    )


def _rotterdam(folder: Path) -> HardWorld:
    frame = pd.read_csv(folder / "rotterdam.csv")
    size = frame["size"].astype(str).str.replace(" ", "")
    frame["size"] = np.select([size.str.startswith("<"), size.str.startswith(">")], ["small", "large"], "middle")
    frame["years"] = (frame["dtime"].clip(lower=1) / 365.25).round(2).clip(lower=0.01)
    columns = (
        Column(name="age", kind="integer", lower=15, upper=100),
        Column(name="size", kind="ordered", levels=("small", "middle", "large")),
        Column(name="grade", kind="ordered", levels=(2, 3)),
        Column(name="pgr", kind="integer", lower=0, upper=6000),
    )
    nodes = Column(name="nodes", kind="integer", lower=0, upper=60)
    names = [*(column.name for column in columns), "nodes", "death", "years"]
    return _world(
        "rotterdam",
        "many zeros, long tails, strong drift between sites",
        _sites(frame, names),
        columns,
        {
            "binary": (nodes, Column(name="death", kind="binary")),
            "count": (nodes,),
            "survival": (
                nodes,
                Column(name="years", kind="time", upper=25, decimals=2, event="death"),
                Column(name="death", kind="event"),
            ),
        },
        "age/10 + size + grade",
        {
            "binary": "logistic(death) ~ age/10 + size + nodes + grade",
            "count": "poisson(nodes) ~ age/10 + size + grade",
            "survival": "cox(years, death) ~ age/10 + size + nodes + grade",
        },
    )


def _of_hospitals(folder: Path) -> list[pd.DataFrame]:
    parts = []
    for hospital in HOSPITALS:
        frame = pd.read_csv(folder / f"{hospital}.csv")
        frame["ill"] = (frame["num"] > 0).astype(int)
        columns = ["age", "sex", "exang", "thalach", "ill"]
        parts.append(frame.dropna(subset=columns)[columns].astype(int).reset_index(drop=True))
    return parts


def _hospitals(folder: Path) -> HardWorld:
    return _world(
        "hospitals",
        "four small hospitals that differ much",
        _of_hospitals(folder),
        (
            Column(name="age", kind="integer", lower=20, upper=90),
            Column(name="sex", kind="binary"),
            Column(name="exang", kind="binary"),
        ),
        {
            "binary": (Column(name="ill", kind="binary"),),
            "linear": (Column(name="thalach", kind="integer", lower=50, upper=230),),
        },
        "age/10 + sex + exang",
    )


def _heart(folder: Path) -> HardWorld:
    return _world(
        "heart",
        "four small hospitals that differ much",
        _of_hospitals(folder),
        (
            Column(name="age", kind="integer", lower=20, upper=90),
            Column(name="sex", kind="binary"),
            Column(name="exang", kind="binary"),
            Column(name="thalach", kind="integer", lower=50, upper=230),
        ),
        {"binary": (Column(name="ill", kind="binary"),)},
        "age/10 + sex + exang",
    )
