"""Tables with several rows of a person, and plans for them."""

from __future__ import annotations

from dataclasses import replace

from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import StudyPlan

HEAD = """
study = "pressure"
version = 1
title = "Pressure over a year"
purpose = "Whether the drug lowers pressure over a year."
coordinator = "hub"
expires = 2999-12-31

[release]
mechanism = "latent_noise"
w = 0.8

[budget]
epsilon = 600.0
delta = 1e-6

[[waves]]
number = 1
opens = 2000-01-01
closes = 2999-01-01

[dictionary]
name = "pressure"
version = 1

[dictionary.columns.person]
kind = "person"

[dictionary.columns.arm]
kind = "nominal"
label = "treatment"
levels = ["control", "drug"]
"""
VISITS = """
[dictionary.repeated]
rows = 3
order = "visit"

[dictionary.columns.visit]
kind = "ordered"
levels = [0, 6, 12]

[dictionary.columns.sbp]
kind = "continuous"
label = "systolic pressure"
unit = "mmHg"
lower = 70
upper = 270
decimals = 0
missing = "level"
repeated = true
"""
FIRST = VISITS.replace('kind = "ordered"\nlevels = [0, 6, 12]', 'kind = "integer"\nlower = 0\nupper = 60').replace(
    "[dictionary.columns.visit]", '[dictionary.columns.visit]\nrepeated = true\nmissing = "level"'
)
KEY = b"k" * 32


def planned(text: str = VISITS) -> StudyPlan:
    return StudyPlan.from_toml(HEAD + text)


def counted(text: str = VISITS) -> StudyPlan:
    plan = planned(text)
    joint = replace(plan.training, outcomes="joint")
    return replace(plan, release=TablesPlan(epsilon=1.0), posture="private", training=joint)
