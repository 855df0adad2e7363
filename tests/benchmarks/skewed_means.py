"""Means of skewed covariates, asked of noisy moments: how often the interval holds the records' own mean.

python -m tests.benchmarks.skewed_means [--half reporting|tuning] [--n 1000,4000] [--epsilon 1,3] [--sites 12]
    [--rounds 2]

One covariate of the planned model is drawn from a shape, the plan's bounds are wide, as they are written for a
laboratory value, and its mean is asked of every site and pooled. The shapes that the rule was chosen by are the
*tuning* half. Released less real is counted in the standard error of the noise alone, since both are of the same
patients: `vi_privacy`. A site whose noise hides too much has no answer, and is left out of its pool.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.moments.plan import MomentsPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave
from tests.benchmarks import record

Draw = Callable[[np.random.Generator, int], Any]
TUNING: Mapping[str, tuple[float, float, Draw]] = {
    "log-normal, 1.5": (0, 300, lambda rng, n: np.exp(rng.normal(math.log(8), 1.5, n))),
    "log-normal, 1": (0, 100, lambda rng, n: np.exp(rng.normal(math.log(10), 1.0, n))),
    "log-normal, 0.6": (0, 150, lambda rng, n: np.exp(rng.normal(math.log(35), 0.6, n))),
    "half zeros": (0, 80, lambda rng, n: np.where(rng.random(n) < 0.5, 0, rng.gamma(2, 8, n))),
    "three in a hundred far out": (
        *(0, 300),
        lambda rng, n: np.where(rng.random(n) < 0.03, rng.uniform(100, 300, n), rng.normal(40, 8, n)),
    ),
    "normal": (0, 100, lambda rng, n: rng.normal(50, 12, n)),
}
REPORTING: Mapping[str, tuple[float, float, Draw]] = {
    "gamma": (0, 60, lambda rng, n: rng.gamma(1.5, 6, n)),
    "exponential": (0, 150, lambda rng, n: rng.exponential(12, n)),
    "detection limit": (0, 200, lambda rng, n: np.where(rng.random(n) < 0.35, 0.6, np.exp(rng.normal(2.2, 1.2, n)))),
    "power law": (0, 500, lambda rng, n: 5 * (1 + rng.pareto(1.8, n))),
    "to the left": (0, 100, lambda rng, n: 100 - np.exp(rng.normal(math.log(6), 1.1, n))),
    "log-normal, 0.5": (0, 100, lambda rng, n: np.exp(rng.normal(math.log(30), 0.5, n))),
    "two humps": (
        *(0, 100),
        lambda rng, n: np.where(rng.random(n) < 0.4, rng.normal(25, 6, n), rng.normal(70, 8, n)),
    ),
    "even": (0, 100, lambda rng, n: rng.uniform(0, 100, n)),
    "normal, wide bounds": (0, 400, lambda rng, n: rng.normal(60, 15, n)),
}


def plan_of(lower: float, upper: float, epsilon: float) -> StudyPlan:
    """A plan whose second covariate has these bounds."""
    day = dt.date(2026, 1, 1)
    columns = (
        Column(name="age", kind="continuous", lower=20, upper=100, decimals=1),
        Column(name="x", kind="continuous", lower=lower, upper=upper, decimals=1),
        Column(name="died", kind="binary"),
    )
    return StudyPlan(
        study="skewed",
        version=1,
        title="A skewed covariate",
        purpose="To see whether its mean is answered truly.",
        coordinator="hub",
        expires=day,
        release=MomentsPlan(
            epsilon=epsilon, outcome="binary", responses=["died"], covariates=["age", "x"], declared=["age", "x"]
        ),
        posture="private",
        budget=Budget(epsilon=100.0, delta=1e-6),
        waves=(Wave(number=1, opens=day, closes=day),),
        dictionary=Dictionary(name="skewed", version=1, columns=columns),
        estimands={"planned": "logistic(died) ~ age + x"},
    )


def table(shape: tuple[float, float, Draw], n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Records of one site."""
    lower, upper, draw = shape
    x = np.clip(draw(rng, n), lower, upper).round(1)
    age = np.clip(rng.normal(60, 10, n), 20, 100).round(1)
    return pd.DataFrame({"age": age, "x": x, "died": (rng.random(n) < 0.3).astype(int)})


def cell(
    name: str, shape: tuple[float, float, Draw], n: int, epsilon: float, sites: int, rounds: int
) -> dict[str, Any]:
    """One shape at one size and ε: sites and pools, in standard errors of the noise and by their intervals."""
    plan, question = plan_of(shape[0], shape[1], epsilon), parse_estimand("mean(x)")
    apart, widths, held, refused, means = [], [], [], 0, []
    for round_ in range(rounds):
        released, real = [], []
        for site in range(sites):
            seed = [round_, site, n, round(100 * epsilon), *name.encode()]
            records = plan.dictionary.check(table(shape, n, np.random.default_rng(seed)))
            origin: dict[str, Any] = {"study": "skewed", "site": f"s{site}", "wave": 1}
            truly = estimate(records, question, **origin)[0]
            figures = plan.release.draw(plan, records, seeded_rng(hash_of(seed)))
            one = plan.release.answer(plan, [(figures, n)], question, levels={}, **origin)[0]
            if one.yi is None:
                refused += 1
                continue
            released.append(one)
            real.append(truly)
            apart.append((one.yi - truly.yi) / math.sqrt(one.vi_privacy))
            widths.append(math.sqrt((one.vi_sampling + one.vi_privacy) / truly.vi_sampling))
        if len(released) > 2:
            pooled, truth = pool_estimates(released), pool_estimates(real)
            held.append(pooled.ci_lb <= truth.beta <= pooled.ci_ub)
            means.append((pooled.beta - truth.beta) / truth.beta)
    found = {
        "sites": sites * rounds,
        "refused": refused,
        "pools": len(held),
        "pools_held": int(sum(held)),
        "pooled_off": float(np.mean(means)) if means else 0.0,
    }
    if apart:
        found |= {
            "within_1.96": float(np.mean(np.abs(apart) < 1.96)),
            "mean_in_errors": float(np.mean(apart)),
            "width": float(np.median(widths)),
        }
    return found


def hash_of(seed: list[int]) -> int:
    """One number of several."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def main() -> None:
    """Every shape of a half."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--half", choices=("reporting", "tuning"), default="reporting")
    asked.add_argument("--n", default=record.sized("1000,4000", "1000"))
    asked.add_argument("--epsilon", default=record.sized("1,3", "3"))
    asked.add_argument("--sites", type=int, default=record.sized(12, 3))
    asked.add_argument("--rounds", type=int, default=record.sized(2, 1))
    given = asked.parse_args()
    half = TUNING if given.half == "tuning" else REPORTING
    half = record.sized(half, dict([*half.items()][:1]))
    cells: dict[str, dict[str, Any]] = {}
    for name, shape in half.items():
        for n in map(int, given.n.split(",")):
            for epsilon in map(float, given.epsilon.split(",")):
                found = cell(name, shape, n, epsilon, given.sites, given.rounds)
                cells.setdefault(name, {})[f"n={n} epsilon={epsilon:g}"] = found
                print(name, n, epsilon, found, flush=True)
    every = [one for several in cells.values() for one in several.values()]
    total = {key: sum(one[key] for one in every) for key in ("sites", "refused", "pools", "pools_held")}
    right = sum(one.get("within_1.96", 0.0) * (one["sites"] - one["refused"]) for one in every)
    share = right / max(total["sites"] - total["refused"], 1)
    results = {"half": given.half, "cells": cells, "all": {**total, "within_1.96": share}}
    print(results["all"])
    name = "skewed_means" if given.half == "reporting" else "skewed_means_tuning"
    command = f"python -m tests.benchmarks.skewed_means --half {given.half} --n {given.n} --epsilon {given.epsilon} "
    record.write(name, results, seed=0, command=f"{command}--sites {given.sites} --rounds {given.rounds}")


if __name__ == "__main__":
    main()
