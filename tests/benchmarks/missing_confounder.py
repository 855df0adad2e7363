"""A confounder that a quarter lack: the treatment's effect in released rows beside the records', latent noise.

The planned regression leaves out who lacks the confounder. `bias` is the mean distance of the released coefficient from
the records' own, in its standard errors there, of fresh hospitals, and `between` that of the confounder's difference in
means between treatments. `mixed` is as it was: without the terms by which laws of outcomes keep apart who is left out
(`PlannedOutcomes.left_out`), the confounder and its stand-ins in the flow. Nothing was chosen on these seeds.

python -m tests.benchmarks.missing_confounder [hospitals]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd

from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan
from site_agent.records.table import Records
from site_agent.release import fitting
from site_agent.release.drawing import drawing_of
from site_agent.release.protocol import Chosen
from tests.benchmarks import record

N, FIRST, LACK = record.sized(1500, 300), 5001, 0.25
QUESTIONS = {
    "measurement": "ols(y ~ treat + lab + age)",
    "event": "logistic(died ~ treat + lab + age)",
    "survival": "cox(years, died) ~ treat + lab + age",
}
PLAN = """
study = "lacking"
version = 1
title = "A confounder that many lack"
purpose = "To measure."
coordinator = "hub"
expires = 2999-12-31
[release]
mechanism = "latent_noise"
w = {w}
[budget]
epsilon = 6000.0
delta = 1e-6
[[waves]]
number = 1
opens = 2000-01-01
closes = 2999-01-01
[estimands]
main = "{question}"
[dictionary]
name = "lacking"
version = 1
[dictionary.columns.person]
kind = "person"
[dictionary.columns.treat]
kind = "binary"
[dictionary.columns.age]
kind = "integer"
lower = 18
upper = 100
[dictionary.columns.lab]
kind = "continuous"
lower = 0
upper = 400
decimals = 2
missing = "level"
"""
OUTCOMES = {
    "measurement": '[dictionary.columns.y]\nkind = "continuous"\nlower = 0\nupper = 100\ndecimals = 1\n',
    "event": '[dictionary.columns.died]\nkind = "binary"\n',
    "survival": '[dictionary.columns.years]\nkind = "time"\nupper = 5\nevent = "died"\n'
    '[dictionary.columns.died]\nkind = "event"\n',
}


def hospital(kind: str, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 3])
    age = np.clip(rng.normal(60, 12, N), 18, 100).round()
    lab = np.exp(rng.normal(2 + 0.01 * (age - 60), 0.4, N)).round(2)
    treat = (rng.random(N) < 1 / (1 + np.exp(-(0.25 * (lab - 8) + 0.02 * (age - 60))))).astype(int)
    risk = 0.5 * treat + 0.1 * (lab - 8) + 0.02 * (age - 60)
    out = {"person": [f"p{k}" for k in range(N)], "treat": treat, "age": age.astype(int)}
    if kind == "measurement":
        out["y"] = np.clip(50 + 5 * risk + rng.normal(0, 5, N), 0, 100).round(1)
    elif kind == "event":
        out["died"] = (rng.random(N) < 1 / (1 + np.exp(1 - risk))).astype(int)
    else:
        failure, end = rng.exponential(1 / (0.15 * np.exp(risk))), rng.uniform(1, 5, N)
        out |= {"years": np.minimum(failure, end), "died": (failure <= end).astype(int)}
    out["lab"] = np.where(rng.random(N) < LACK * (0.5 + (age > 60)), np.nan, lab)
    return pd.DataFrame(out)


def released(plan: StudyPlan, records: pd.DataFrame, seed: int) -> pd.DataFrame:
    rng, every = seeded_rng(seed), tuple(range(len(records)))
    drawing = drawing_of(plan)
    table = Records(table=records, rows=len(records), snapshot="")
    drawing.take(table, [f"{k}" for k in every], Chosen(rows=every), None)
    drawing.encode(rng)
    drawing.fit(rng, lambda share: None)
    drawing.draw(rng)
    return drawing.released(rng)


def mixed(plan: StudyPlan):
    found = planned_outcomes(plan)
    return replace(found, left_out=(), groups=found.outcomes, covariates=0)


def apart(table: pd.DataFrame) -> tuple[float, float]:
    """Difference in means of the confounder between the treatments, among those who have it; its standard error."""
    has = table[table["lab"].notna()]
    groups = [has.loc[has["treat"] == arm, "lab"].astype(float) for arm in (0, 1)]
    return groups[1].mean() - groups[0].mean(), float(np.sqrt(sum(one.var() / len(one) for one in groups)))


def cell(kind: str, w: float, hospitals: int) -> dict[str, float]:
    plan = StudyPlan.from_toml(PLAN.format(w=w, question=QUESTIONS[kind]) + OUTCOMES[kind])
    question, off, between = parse_estimand(QUESTIONS[kind]), [], []
    for seed in range(FIRST, FIRST + hospitals):
        records = plan.dictionary.check(hospital(kind, seed))
        [own] = [row for row in estimate(records, question) if row.term == "treat"]
        now = released(plan, records, seed)
        with mock.patch.object(fitting, "planned_outcomes", mixed):
            before = released(plan, records, seed)
        found = [next(row for row in estimate(rows, question) if row.term == "treat").yi for rows in (now, before)]
        off.append([(one - own.yi) / np.sqrt(own.vi_sampling) for one in found])
        real, error = apart(records)
        between.append([(apart(rows)[0] - real) / error for rows in (now, before)])
    names = ("", "_mixed")
    out = {}
    for name, values in (("bias", off), ("between", between)):
        mean, error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(hospitals)
        out |= {f"{name}{which}": float(mean[k]) for k, which in enumerate(names)}
        out |= {f"{name}{which}_error": float(error[k]) for k, which in enumerate(names)}
    return out


def main() -> None:
    hospitals = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(80, 1)
    cells = {
        f"{kind}, w={w:g}": cell(kind, w, hospitals) for kind in QUESTIONS for w in record.sized((0.0, 0.8), (0.8,))
    }
    print(record.write("missing_confounder", {"hospitals": hospitals, "cells": cells}, seed=FIRST))


if __name__ == "__main__":
    main()
