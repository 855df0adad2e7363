"""Ten questions as one vector of a secure sum: adjustments, subgroups and windows of time beside the planned question.

Every repetition draws fresh cohorts (`tests.benchmarks.secure_sum`) and takes, at ε = 1, one sum of the planned
coefficient and of nine variants (`QUESTIONS`); beside it a sum of the planned coefficient alone, and of each adjustment
alone, under a plan of its own model with a pilot of its own. A subgroup or a window has no such plan, as the pilot's
table would be another: it is compared with the planned question alone. The distance of each answer to the records' own
is in standard errors of the records' own pooled answer to that question.

Where models fit, in the world that they do not fit, and in one where the effect of pressure is another for the old
(`differing`), which no pilot can tell. `_WIDER_WITH_VARIANTS` of `coordinator.pooling.secure_sum.vectors` was chosen on
seeds 1001 to 1006; what is reported has seeds from 42001 on.

python -m tests.benchmarks.secure_sum_variants [repetitions] [first seed] [--world fits|misfit|differs]
  [--folder FOLDER] [--summary]
"""

import argparse
import json
import math
from functools import partial
from pathlib import Path

import numpy as np

from coordinator.pooling.pool import pool
from shared.base.keys import SigningKey
from shared.estimands.answer import estimate, parse_estimand
from shared.plans.plan import StudyPlan
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables
from tests.benchmarks.honest import misfit
from tests.benchmarks.secure_sum import COLLUDERS, DROP_OUTS
from tests.benchmarks.secure_sum_vector import answered, arm, jackknifed, told
from tests.stage.mechanisms.sums import cohorts_plan

EPSILON, HORIZON, OLD = 1.0, 36.0, 60
PLANNED = "cox(time, cvd) ~ sbp/10 + age + chol + hdl"
ADJUSTMENTS = {
    "crude": "cox(time, cvd) ~ sbp/10",
    "age": "cox(time, cvd) ~ sbp/10 + age",
    "age, cholesterol": "cox(time, cvd) ~ sbp/10 + age + chol",
}
QUESTIONS = ADJUSTMENTS | {
    "60 and older": f"cox(time, cvd, subset = age >= {OLD}) ~ sbp/10 + age + chol + hdl",
    "younger than 60": f"cox(time, cvd, subset = age < {OLD}) ~ sbp/10 + age + chol + hdl",
    "high cholesterol": "cox(time, cvd, subset = chol >= 220) ~ sbp/10 + age + chol + hdl",
    "to 10 years": "cox(time, cvd, stop = 10) ~ sbp/10 + age + chol + hdl",
    "from 10 years": "cox(time, cvd, start = 10) ~ sbp/10 + age + chol + hdl",
    "5 to 15 years": "cox(time, cvd, start = 5, stop = 15) ~ sbp/10 + age + chol + hdl",
}


def differing(tables, rng):
    """The same cohorts, of whose old half have a pressure that is somebody else's of about their age."""
    out = {}
    for name, table in tables.items():
        pressure, age = table["sbp"].to_numpy().copy(), table["age"].to_numpy()
        old = np.flatnonzero((age >= OLD) & (rng.random(len(age)) < 0.5))
        for part in np.array_split(old[np.argsort(age[old], kind="stable")], max(len(old) // 25, 1)):
            pressure[part] = pressure[rng.permutation(part)]
        out[name] = table.assign(sbp=pressure)
    return out


def plan_of(keys, covariates, variants=()):
    """One sum: of the coefficient of pressure under these covariates, and of these variants."""
    release = {"drop_outs": DROP_OUTS, "colluders": COLLUDERS, "covariates": list(covariates)}
    release |= {"variants": list(variants)} if variants else {}
    given = cohorts_plan(keys, EPSILON).to_canonical()
    columns = [one for one in given["dictionary"]["columns"] if one["name"] in (*covariates, "person", "time", "cvd")]
    dictionary = given["dictionary"] | {"columns": columns}
    return StudyPlan.from_canonical(
        given | {"estimands": {}, "release": given["release"] | release, "dictionary": dictionary}
    )


def real(tables, question):
    """Of the records themselves: pooled estimate, its standard error, and how many cohorts can tell it."""
    asked, rows = parse_estimand(question), []
    for name, table in tables.items():
        late = table["time"] > HORIZON
        followed = table.assign(cvd=np.where(late, 0, table["cvd"]), time=np.minimum(table["time"], HORIZON))
        rows.append(estimate(followed, asked, study="cvd", site=name, wave=1)[0])
    known = [row for row in rows if row.yi is not None]
    pooled = pool([row.yi for row in known], [row.vi_sampling for row in known], method="REML", test="adhoc")
    return pooled.beta, pooled.se, len(known)


def measured(seed, world):
    """One repetition, in plain numbers: of each question the distances in the records' own standard errors."""
    rng = np.random.default_rng(10_000 + seed)
    tables = misfit(rng) if world == "misfit" else cvd_tables(rng)
    if world == "differs":
        tables = differing(tables, np.random.default_rng(30_000 + seed))
    keys = {name: SigningKey.generate() for name in tables}
    whole = ("age", "chol", "hdl", "sbp")
    together, cost = arm(tables, plan_of(keys, whole, QUESTIONS.values()), keys, seed)
    alone = {"planned": plan_of(keys, whole)}
    for name, question in ADJUSTMENTS.items():
        alone[name] = plan_of(keys, sorted(parse_estimand(question).terms))
    out = {"seed": seed, "cost": cost, "cells": {}}
    for name, question in {"planned": PLANNED, **QUESTIONS}.items():
        beta, se, cohorts = real(tables, question)
        answer = together["sbp" if name == "planned" else question]
        one = {"real": [beta, se, cohorts], "together": told(answer, beta, se)}
        one["together"]["covers"] = answer.ci_lb <= beta <= answer.ci_ub
        one["stated"] = (answer.estimate - beta) ** 2 / (answer.noise + answer.cut + answer.pilots + answer.weights)
        if name in alone:
            dropped = sorted({"age", "chol", "hdl"} - set(alone[name].dictionary.names))
            found, _ = arm(
                {name: table.drop(columns=dropped) for name, table in tables.items()}, alone[name], keys, seed
            )
            one["alone"] = told(found["sbp"], beta, se)
        out["cells"][name] = one
    return out


def over_planned_alone(runs, members):
    """Mean distance of these questions over that of the planned one in a sum of its own."""
    away = np.mean([abs(run["cells"][name]["together"]["away"]) for run in runs for name in members])
    return away / np.mean([abs(run["cells"]["planned"]["alone"]["away"]) for run in runs])


def summary(runs):
    """Per question, and over the nine variants."""
    out, one = {}, np.mean([abs(run["cells"]["planned"]["alone"]["away"]) for run in runs])
    for name in runs[0]["cells"]:
        cells = [run["cells"][name] for run in runs]
        for which in ("together", "alone"):
            if which not in cells[0]:
                continue
            away = np.array([cell[which]["away"] for cell in cells])
            out[f"{name} {which}"] = {
                "gap": float(np.abs(away).mean()),
                "gap_standard_error": float(np.abs(away).std(ddof=1) / math.sqrt(len(away))),
                "gap_in_units": float(np.mean([abs(cell[which]["away"]) * cell["real"][1] for cell in cells])),
                "signed": float(away.mean()),
                **{part: float(np.mean([cell[which][part] for cell in cells])) for part in ("noise", "cut", "width")},
            }
        here = out[f"{name} together"]
        here["covers_the_records"] = float(np.mean([cell["together"]["covers"] for cell in cells]))
        here["squared_error_over_stated"] = float(np.mean([cell["stated"] for cell in cells]))
        here["over_planned_alone"] = float(here["gap"] / one)
        if "alone" in cells[0]:
            here["over_alone"] = float(here["gap"] / out[f"{name} alone"]["gap"])
    adjusted = [[out[f"{q} {which}"]["gap"] for q in ADJUSTMENTS] for which in ("together", "alone")]
    groups = {"adjustments": list(ADJUSTMENTS), "variants": list(QUESTIONS), "all": ["planned", *QUESTIONS]}
    out |= {
        name: {
            "gap": float(np.mean([out[f"{q} together"]["gap"] for q in members])),
            "over_planned_alone": float(np.mean([out[f"{q} together"]["gap"] for q in members]) / one),
            "over_planned_alone_standard_error": jackknifed(partial(over_planned_alone, members=members), runs),
            "squared_error_over_stated": float(
                np.mean([out[f"{q} together"]["squared_error_over_stated"] for q in members])
            ),
        }
        for name, members in groups.items()
    }
    out["adjustments"]["over_alone"] = float(np.mean(adjusted[0]) / np.mean(adjusted[1]))
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(24, 1))
    parser.add_argument("first", nargs="?", type=int, default=42001)
    parser.add_argument("--world", choices=("fits", "misfit", "differs"), default="fits")
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    parser.add_argument("--summary", action="store_true", help="print, and write no result")
    given = parser.parse_args()
    runs = []
    for seed in range(given.first, given.first + given.repetitions):
        kept = given.folder / f"{given.world}-{seed}.json" if given.folder else None
        if kept is not None and kept.is_file():
            runs.append(json.loads(kept.read_text()))
            continue
        runs.append(answered(measured, seed, given.world))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(runs[-1]))
    whole = [run for run in runs if "refused" not in run]
    costs = {
        part: max((float(run["cost"][part]) for run in whole), default=0.0) for part in ("bytes_sent", "cpu_seconds")
    }
    results = {
        "repetitions": len(runs),
        "refused": len(runs) - len(whole),
        "world": given.world,
        "epsilon": EPSILON,
        "cost": costs,
        "cells": summary(whole) if whole else {},
    }
    if given.summary:
        print(json.dumps(results, indent=1))
        return
    print(
        record.write(
            "secure_sum_variants" + ("" if given.world == "fits" else f"_{given.world}"), results, seed=given.first
        )
    )


if __name__ == "__main__":
    main()
