"""Noisy moments of a yes or no, a count and a measurement: bias, coverage and width beside the real data's own.

One hospital of 300 (as large as those of the heart disease records), 3,000 or 40,000 patients, three covariates, fresh
patients in every repetition; the coefficient of systolic pressure per 10 mmHg. `width` is the interval's, over that of
the same model on the records; `bias` is in units of the records' standard error.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.honest_outcomes [repetitions] [first seed] [--small REPETITIONS] [--epsilon 0.5,1,3]
  [--folder FOLDER]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd

from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.moments.cohort import fit
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.spec import MomentsSpec
from shared.plans.dictionary import Column, Dictionary
from tests.benchmarks import record

SIZES, BOOTSTRAP = record.sized(((300, 3000, 40_000), 40), ((3000,), 2))
BETA = {"binary": 0.15, "count": 0.08, "linear": 1.2}
"""True coefficients of 10 mmHg: log odds, log rate, points."""
KINDS = {"binary": "logistic", "count": "poisson", "linear": "ols"}
RESPONSES = {
    "binary": Column(name="y", kind="binary"),
    "count": Column(name="y", kind="integer", lower=0, upper=12),
    "linear": Column(name="y", kind="continuous", lower=0, upper=100, decimals=1),
}
COVARIATES = (
    Column(name="age", kind="integer", lower=18, upper=100),
    Column(name="sbp", kind="continuous", lower=60, upper=260, decimals=0),
    Column(name="male", kind="binary"),
)


def patients(outcome, n, rng):
    """A table, canonical as `Dictionary.check` returns it."""
    age = np.clip(rng.normal(60, 12, n), 18, 100).round()
    male = (rng.random(n) < 0.5).astype(float)
    sbp = np.clip(112 + 0.35 * age + 3 * male + rng.normal(0, 16, n), 60, 260).round()
    eta = BETA[outcome] * (sbp - 135) / 10
    if outcome == "binary":
        y = (rng.random(n) < 1 / (1 + np.exp(-(eta - 1 + 0.03 * (age - 60) + 0.3 * male)))).astype(float)
    elif outcome == "count":
        y = np.minimum(rng.poisson(np.exp(eta + 0.2 + 0.01 * (age - 60) + 0.1 * male)), 12).astype(float)
    else:
        y = np.clip(50 + eta + 0.2 * (age - 60) + 3 * male + rng.normal(0, 9, n), 0, 100).round(1)
    return pd.DataFrame({"person": np.arange(n).astype(str), "age": age, "sbp": sbp, "male": male, "y": y})


def design(outcome, epsilon, declared):
    dictionary = Dictionary(
        name="outcomes", version=1, columns=(Column(name="person", kind="person"), *COVARIATES, RESPONSES[outcome])
    )
    spec = MomentsSpec(
        outcome=outcome,
        responses=("y",),
        covariates=("age", "sbp", "male"),
        exposures=("sbp",),
        declared=("sbp",) if declared else (),
        epsilon=epsilon,
        delta=1e-6,
    )
    return Design(spec=spec, dictionary=dictionary)


def real(outcome, table):
    question = parse_estimand(f"{KINDS[outcome]}(y) ~ sbp/10 + age + male")
    [row] = [one for one in estimate(table, question, study="s", site="a", wave=1) if one.term == "sbp/10"]
    return row.yi, row.vi_sampling


def measured(outcome, n, epsilons, seed):
    """One repetition: (truth missed, variance) of the records and of each release."""
    table = patients(outcome, n, np.random.default_rng([seed, n]))
    out = {"real": real(outcome, table)}
    for epsilon in epsilons:
        for declared in (False, True):
            plan = design(outcome, epsilon, declared)
            began = time.process_time()
            cohort = fit(moments(table, plan, seeded_rng(seed)), plan)
            if cohort.few:
                cohort = cohort.bootstrap(np.random.default_rng(seed + 1), BOOTSTRAP)
            row = next(one for one in cohort.estimates(study="s", site="a", wave=1) if one.term == "sbp")
            name = f"epsilon={epsilon:g} {'declared' if declared else 'plain'}"
            told = None if row.yi is None else (10 * row.yi, 100 * row.vi)
            out[name] = (told, time.process_time() - began)
    return out


def summary(outcome, runs):
    theirs = np.array([run["real"] for run in runs])
    se = np.sqrt(theirs[:, 1])
    cells = {"repetitions": len(runs)}
    cells["real"] = {"coverage": float((np.abs(theirs[:, 0] - BETA[outcome]) <= 1.959964 * se).mean())}
    for name in list(runs[0])[1:]:
        told = [(run[name][0], own) for run, own in zip(runs, theirs, strict=True) if run[name][0] is not None]
        ours, own = np.array([one for one, _ in told]), np.array([two for _, two in told])
        off = ours[:, 0] - BETA[outcome]
        cells[name] = {
            "answered": len(told) / len(runs),
            "bias": float(off.mean() / se.mean()),
            "bias_standard_error": float(off.std(ddof=1) / len(off) ** 0.5 / se.mean()),
            "coverage": float((np.abs(off) <= 1.959964 * np.sqrt(ours[:, 1])).mean()),
            "width": float(np.median(np.sqrt(ours[:, 1] / own[:, 1]))),
            "gap": float(np.abs(ours[:, 0] - own[:, 0]).mean()),
            "cpu_seconds": float(np.median([run[name][1] for run in runs])),
        }
    return cells


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(100, 2))
    parser.add_argument("first", nargs="?", type=int, default=1)
    parser.add_argument("--small", type=int, help="repetitions of 300 patients, where every variance is a bootstrap")
    parser.add_argument("--epsilon", default=record.sized("0.5,1,3", "1"))
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    given = parser.parse_args()
    epsilons = [float(text) for text in given.epsilon.split(",")]
    results = {"repetitions": given.repetitions, "truth": BETA}
    runs = {(outcome, n): [] for outcome in BETA for n in SIZES}
    for seed in range(given.first, given.first + given.repetitions):
        for (outcome, n), found in runs.items():
            if given.small is not None and n == SIZES[0] and len(found) >= given.small:
                continue
            kept = given.folder / f"{outcome}-{n}-{seed}.json" if given.folder else None
            if kept is not None and kept.is_file():
                found.append(json.loads(kept.read_text()))
                continue
            found.append(measured(outcome, n, epsilons, seed))
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(found[-1]))
        print(f"seed {seed}: {sum(map(len, runs.values()))} tables", flush=True)
    for (outcome, n), found in runs.items():
        results[f"{outcome} n={n}"] = summary(outcome, found)
        print(outcome, n, results[f"{outcome} n={n}"], flush=True)
    print(record.write("honest_outcomes", results, seed=given.first))


if __name__ == "__main__":
    main()
