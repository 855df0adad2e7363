"""A hospital's own table, and how it is mapped to a study's dictionary."""

from __future__ import annotations

import pandas as pd

from shared.plans.dictionary import Column, Dictionary
from site_agent.config import Recoding
from site_agent.records.mapping.declared import DateForm, FollowUp

STUDY = Dictionary(
    name="m",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="age", kind="integer", unit="years", lower=18, upper=110),
        Column(name="sex", kind="binary", label="sex as registered", levels=("female", "male")),
        Column(name="chol", kind="continuous", unit="mg/dL", lower=40, upper=800, missing="level"),
        Column(name="time", kind="time", unit="years", upper=5, event="died", missing="complete_case"),
        Column(name="died", kind="event", missing="complete_case"),
    ),
)
DATES = {name: DateForm(form="%d.%m.%Y") for name in ("geb", "aufnahme", "tod", "kontakt")}
FOLLOWED = FollowUp(time="time", event="died", start="aufnahme", end="tod", last="kontakt", unit="years")
AGE = {"age": "completed years between geb and aufnahme"}
ROWS = pd.DataFrame(
    {
        "person": ["a", "b", "c", "d"],
        "geb": ["29.02.1952", "01.07.1960", "02.07.1960", "1.1.1950"],
        "aufnahme": ["28.02.2010", "1.7.2010", "1.7.2010", "01.01.2010"],
        "tod": ["", "01.07.2012", "", "01.01.2020"],
        "kontakt": ["28.02.2011", "", "1.7.2019", "1.6.2010"],
        "sex": ["w", "m", "m", "w"],
        "chol": ["5,2", "", "6,0", "4,9"],
    }
)
VALUES = {
    "sex": Recoding(levels={"w": "female", "m": "male"}),
    "chol": Recoding(decimal=",", unit="mmol/l", analyte="cholesterol"),
}
