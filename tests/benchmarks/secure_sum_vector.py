"""Several coefficients from one secure sum beside each from a sum of its own: twelve cohorts, the same ε for either.

Every repetition draws fresh cohorts (`tests.benchmarks.secure_sum`) and takes, at ε = 1, one sum of all coefficients of
the model, and for each coefficient a sum of it alone with a pilot of its own, as a study would have it that asks one
question and has all of the budget for it. The distance of each answer to the records' own is in standard errors of the
records' own pooled answer. With `--covariates 10` six columns that hang on age and pressure and do nothing to the
hazard are in the model beside the four; of single sums there are then three, because ten would take hours.

`_WIDER` of `coordinator.pooling.secure_sum.vectors` was chosen on seeds from 9001 on; what is reported has seeds from
5001 on. With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.secure_sum_vector [repetitions] [first seed] [--world fits|misfit] [--covariates 4|10]
  [--folder FOLDER] [--summary]
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from coordinator.pooling.pool import pool
from coordinator.pooling.secure_sum import reading
from coordinator.pooling.secure_sum.looks import pilot_places
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.plans.plan import StudyPlan
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables
from tests.benchmarks.honest import misfit
from tests.benchmarks.secure_sum import COLLUDERS, DROP_OUTS, through_messages
from tests.stage.mechanisms import sums
from tests.stage.mechanisms.sums import Parts, cohorts_plan

EPSILON = 1.0
UNITS = {"sbp": 10.0, "age": 3.0, "chol": 20.0, "hdl": 8.0}
"""Of which a standard deviation has about as many of each as of pressure, for which the bounds of one coefficient were
chosen: in other units its records would be held too near or too far. A vector has no unit."""
MORE = {"bmi": 3.0, "glucose": 20.0, "rate": 10.0, "kidney": 15.0, "smokes": 1.0, "treated": 1.0}
LEVELS = ("smokes", "treated")
ALONE = record.sized(("sbp", "age", "bmi"), ("sbp",))
"""Whose single sums are taken beside a sum of ten."""


def further(tables, rng):
    """Six columns more: correlated with age and pressure, and without an effect of their own."""
    out = {}
    for name, table in tables.items():
        age, sbp = (((table[one] - table[one].mean()) / table[one].std()).to_numpy() for one in ("age", "sbp"))

        def by(a, b, age=age, sbp=sbp):
            return a * age + b * sbp + math.sqrt(1 - a**2 - b**2 - 0.5 * a * b) * rng.standard_normal(len(age))

        out[name] = table.assign(
            bmi=np.clip(27 + 5 * by(0.1, 0.3), 12, 60).round(1),
            glucose=np.clip(100 * np.exp(0.2 * by(0.2, 0.2)), 40, 400).round(),
            rate=np.clip(68 + 11 * by(0.0, 0.15), 35, 160).round(),
            kidney=np.clip(85 + 18 * by(-0.5, -0.1), 5, 160).round(),
            smokes=np.where(by(-0.2, 0.0) > 0.8, "yes", "no"),
            treated=np.where(by(0.3, 0.4) > 0.6, "yes", "no"),
        )
    return out


def plan_of(keys, units, first, whole):
    """One sum of these coefficients; of the first alone where not `whole`."""
    release = {
        "drop_outs": DROP_OUTS,
        "colluders": COLLUDERS,
        "coefficient": first,
        "units": units[first],
        "covariates": ["age", "chol", "hdl", "sbp", *(name for name in units if name in MORE)],
    }
    release |= {"further": {name: per for name, per in units.items() if name != first}} if whole else {}
    given = cohorts_plan(keys, EPSILON).to_canonical()
    bounds = {"bmi": (12, 60), "glucose": (40, 400), "rate": (35, 160), "kidney": (5, 160)}
    for name in units:
        if name in LEVELS:
            given["dictionary"]["columns"].append({"name": name, "kind": "binary", "levels": ["no", "yes"]})
        elif name in MORE:
            low, high = bounds[name]
            column = {"name": name, "kind": "continuous", "lower": low, "upper": high, "unit": "units"}
            given["dictionary"]["columns"].append(column)
    return StudyPlan.from_canonical(given | {"estimands": {}, "release": given["release"] | release})


def real(tables, units):
    """Of the records themselves: pooled estimate and standard error of each coefficient."""
    names, found = list(units), []
    for table in tables.values():
        columns = [table[n] == "yes" if n in LEVELS else table[n] / units[n] for n in names]
        x = np.column_stack([np.asarray(one, dtype=float) for one in columns])
        fitted = cox(
            x - x.mean(axis=0), SurvivalOutcome(time=table["time"].to_numpy(float), event=table["cvd"].to_numpy(float))
        )
        found.append((fitted.beta, np.diag(fitted.cov)))
    beta, variance = (np.array(one) for one in zip(*found, strict=True))
    pooled = [pool(list(beta[:, k]), list(variance[:, k]), method="REML", test="adhoc") for k in range(len(names))]
    return {name: (one.beta, one.se) for name, one in zip(names, pooled, strict=True)}


def arm(tables, plan, keys, seed):
    """The answers of one sum, through every message."""
    # Sites and whoever reads find the same places of the same pilots; once is enough here.
    sums.pilot_places = reading.pilot_places = once(plan)
    noise, release = seeded_rng(seed), plan.release
    named = [tables[name] for name in release.members]
    pilots = {
        at: (release.draw(plan, plan.dictionary.check(table), noise), len(table)) for at, table in enumerate(named)
    }
    walk = Parts.of(plan, named, pilots, noise)
    signing = [keys[name] for name in release.members]
    coordinator, cost = through_messages(release.terms(plan), signing, walk.values, noise.spawn(len(keys)))
    found = reading.read_sum(plan, walk.opened(plan, coordinator, {at: f"{at:064x}" for at in pilots}), pilots)
    return dict(zip((*release.coefficients, *release.variants), found, strict=True)), cost


def measured(seed, world, covariates):
    """One repetition, in plain numbers: of each coefficient the distances in the records' own standard errors."""
    rng = np.random.default_rng(10_000 + seed)
    tables = cvd_tables(rng) if world == "fits" else misfit(rng)
    units = UNITS if covariates == 4 else UNITS | MORE
    if covariates > 4:
        tables = further(tables, np.random.default_rng(20_000 + seed))
    theirs, keys = real(tables, units), {name: SigningKey.generate() for name in tables}
    together, cost = arm(tables, plan_of(keys, units, "sbp", True), keys, seed)
    out = {"seed": seed, "cost": cost, "real": theirs, "cells": {}}
    for name, (beta, se) in theirs.items():
        one = {"together": told(together[name], beta, se)}
        if covariates == 4 or name in ALONE:
            alone, _ = arm(tables, plan_of(keys, units, name, False), keys, seed)
            one["alone"] = told(alone[name], beta, se)
        out["cells"][name] = one
    return out


def once(plan):
    """`pilot_places` of whatever pilots come first."""
    found = []
    return lambda _, pilots: found[0] if found else found.append(pilot_places(plan, pilots)) or found[0]


def answered(measure, seed, *given):
    """One repetition; its seed and the reason where the pilots know too little for one of its questions."""
    try:
        return measure(seed, *given)
    except EstimateRefusal as refusal:
        return {"seed": seed, "refused": str(refusal)}


def told(answer, beta, se):
    if isinstance(answer, EstimateRefusal):
        raise answer
    return {
        "away": (answer.estimate - beta) / se,
        "noise": math.sqrt(answer.noise) / se,
        "cut": math.sqrt(max(answer.cut, 0.0)) / se,
        "width": answer.se / se,
    }


def jackknifed(figure, runs):
    """Standard error of a figure of all repetitions, by how it changes where one of them is left out."""
    if len(runs) < 2:
        return math.nan
    without = np.array([figure([*runs[:k], *runs[k + 1 :]]) for k in range(len(runs))])
    return float(np.sqrt((len(runs) - 1) * without.var()))


def over_alone(runs):
    """Mean distance over that of single sums, of the coefficients of which there is one."""
    named = [name for name, one in runs[0]["cells"].items() if "alone" in one]
    together, alone = (
        sum(abs(run["cells"][name][which]["away"]) for run in runs for name in named) for which in ("together", "alone")
    )
    return together / alone


def summary(runs):
    """Per coefficient and over all of which there is a single sum."""
    out, ratios = {}, []
    for name in runs[0]["cells"]:
        cells = [run["cells"][name] for run in runs]
        for which in cells[0]:
            away = np.array([cell[which]["away"] for cell in cells])
            out[f"{name} {which}"] = {
                "gap": float(np.abs(away).mean()),
                "gap_standard_error": float(np.abs(away).std(ddof=1) / math.sqrt(len(away))),
                "signed": float(away.mean()),
                **{part: float(np.mean([cell[which][part] for cell in cells])) for part in ("noise", "cut", "width")},
            }
        if "alone" in cells[0]:
            ratios.append(out[f"{name} together"]["gap"] / out[f"{name} alone"]["gap"])
            out[f"{name} together"]["over_alone"] = ratios[-1]
    gaps = {which: np.mean([out[one]["gap"] for one in out if one.endswith(which)]) for which in ("together", "alone")}
    compared = [name for name, one in runs[0]["cells"].items() if "alone" in one]
    both = [np.mean([out[f"{name} {which}"]["gap"] for name in compared]) for which in ("together", "alone")]
    return out | {
        "all": {
            "coefficients": len(runs[0]["cells"]),
            "gap": float(gaps["together"]),
            "over_alone": float(both[0] / both[1]),
            "over_alone_standard_error": jackknifed(over_alone, runs),
            "mean_over_alone": float(np.mean(ratios)),
            "bytes_sent": float(np.max([run["cost"]["bytes_sent"] for run in runs])),
            "cpu_seconds": float(np.max([run["cost"]["cpu_seconds"] for run in runs])),
        }
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(30, 1))
    parser.add_argument("first", nargs="?", type=int, default=5001)
    parser.add_argument("--world", choices=("fits", "misfit"), default="fits")
    parser.add_argument("--covariates", type=int, choices=(4, 10), default=4)
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    parser.add_argument("--summary", action="store_true", help="print, and write no result")
    given = parser.parse_args()
    runs = []
    for seed in range(given.first, given.first + given.repetitions):
        kept = given.folder / f"{given.world}-{given.covariates}-{seed}.json" if given.folder else None
        if kept is not None and kept.is_file():
            runs.append(json.loads(kept.read_text()))
            continue
        runs.append(answered(measured, seed, given.world, given.covariates))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(runs[-1]))
    whole = [run for run in runs if "refused" not in run]
    results = {
        "repetitions": len(runs),
        "refused": len(runs) - len(whole),
        "world": given.world,
        "epsilon": EPSILON,
        "cells": summary(whole) if whole else {},
    }
    if given.summary:
        print(json.dumps(results, indent=1))
        return
    name = "secure_sum_vector" + ("_misfit" if given.world == "misfit" else "")
    name += f"_{given.covariates}" if given.covariates > 4 else ""
    print(record.write(name, results, seed=given.first))


if __name__ == "__main__":
    main()
