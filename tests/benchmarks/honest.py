"""Twelve full-size cohorts, each behind one ε: pooled adjusted hazard ratio from noisy moments against the real data's.

Printed beside it: how often the intervals hold the truth, pooled (REML, Knapp-Hartung) and per site, and how wide they
are beside those of the real data. Fresh cohorts in every repetition.

python -m tests.benchmarks.honest [repetitions] [first seed] [epsilon ...]
"""

import json
import math
import sys
import time

import numpy as np

from coordinator.pooling import pool
from shared.generators.cohort import FEW_EVENTS, fit
from shared.mechanisms.moments import Design, MomentsSpec, moments
from shared.randomness import seeded_rng
from shared.simulated import COHORTS, CVD_HAZARD_RATIO, cvd_cohorts
from shared.survival import cox
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import dictionary

COVARIATES = ("age", "chol", "hdl", "sbp")
UNITS = np.array([10.0, 40.0, 15.0, 10.0])
TRUTH = math.log(CVD_HAZARD_RATIO)
CLOSE = 0.02
EPSILONS = (0.5, 1.0, 3.0)
HORIZONS = {"ARIC": 30, "CARDIA": 36, "CHS": 28, "MESA": 18, "Framingham": 36, "Jackson": 12}
"""Planned follow-up, years: public, and fixed before any record is read."""


def design(cohort, epsilon, declared, **more):
    spec = MomentsSpec(
        outcome="survival",
        responses=("time", "cvd"),
        covariates=COVARIATES,
        exposures=("sbp",),
        declared=("sbp",) if declared else (),
        epsilon=epsilon,
        delta=1e-6,
        horizon=HORIZONS[cohort.split("-")[0]],
        **more,
    )
    return Design(spec=spec, dictionary=dictionary())


def real(table):
    """Cox on the records: log HR of 10 mmHg, and its variance."""
    x = table[list(COVARIATES)].to_numpy(float) / UNITS
    found = cox(x - x.mean(axis=0), table["time"].to_numpy(float), table["cvd"].to_numpy(float))
    return found.beta[3], found.cov[3, 3]


def one(tables, epsilon, declared, rng, bootstrap, **more):
    """Estimates, variances (sampling, privacy) and how many sites were bootstrapped; CPU of release and fit."""
    rows, boots, cpu = [], 0, 0.0
    for name, table in tables.items():
        plan = design(name, epsilon, declared, **more)
        checked = plan.dictionary.check(table)
        began = time.process_time()
        cohort = fit(moments(checked, plan, rng), plan)
        cpu += time.process_time() - began
        if bootstrap and cohort.events < FEW_EVENTS:
            cohort = cohort.bootstrap(rng, bootstrap)
            boots += 1
        estimate = cohort.estimates(study="cvd", site=name, wave=1)[3]
        rows.append((10 * estimate.yi, 100 * estimate.vi_sampling, 100 * estimate.vi_privacy))
    return np.array(rows), boots, cpu


def half(result):
    return (result.ci_ub - result.ci_lb) / 2


def run(seed, epsilons, bootstrap, **more):
    rng = np.random.default_rng(10_000 + seed)
    tables = cvd_cohorts(rng)
    truths = log_hrs(seed)
    records = np.array([real(table) for table in tables.values()])
    theirs = pool(records[:, 0], records[:, 1], method="REML", test="adhoc")
    out = {"real": {"hr": math.exp(theirs.beta), "held": theirs.ci_lb <= TRUTH <= theirs.ci_ub}}
    for epsilon in epsilons:
        for declared in (False, True):
            found, boots, cpu = one(tables, epsilon, declared, seeded_rng(seed), bootstrap, **more)
            total = found[:, 1] + found[:, 2]
            pooled = pool(found[:, 0], total, method="REML", test="adhoc")
            out[f"epsilon={epsilon:g} {'declared' if declared else 'plain'}"] = {
                "gap": math.exp(pooled.beta) - math.exp(theirs.beta),
                "held": pooled.ci_lb <= TRUTH <= pooled.ci_ub,
                "width": half(pooled) / half(theirs),
                "sites_held": (np.abs(found[:, 0] - truths) <= 1.959964 * np.sqrt(total)).tolist(),
                "site_gap": float(np.abs(found[:, 0] - records[:, 0]).mean()),
                "bootstrapped": boots,
                "cpu": cpu,
            }
    return out


def log_hrs(seed):
    """The true log hazard ratio of each site, as `cvd_cohorts` drew it: its generator is followed step by step."""
    rng = np.random.default_rng(10_000 + seed)
    found = []
    for cohort in COHORTS:
        rng.standard_normal((cohort.n, 4))
        found.append(math.log(CVD_HAZARD_RATIO) + 0.03 * rng.standard_normal())
        rng.beta(1, 3, cohort.n)
        rng.exponential(1 / cohort.leaving, cohort.n)
        rng.exponential(1, cohort.n)
    return np.array(found)


def summary(runs):
    out = {"real": {"coverage": float(np.mean([one["real"]["held"] for one in runs]))}}
    for key in runs[0]:
        if key == "real":
            continue
        rows = [one[key] for one in runs]
        gaps = np.array([row["gap"] for row in rows])
        sites = np.array([row["sites_held"] for row in rows])
        out[key] = {
            "gap": float(np.abs(gaps).mean()),
            "signed_gap": float(gaps.mean()),
            "within_0.02": float((np.abs(gaps) < CLOSE).mean()),
            "gap_p90": float(np.quantile(np.abs(gaps), 0.9)),
            "coverage": float(np.mean([row["held"] for row in rows])),
            "width_median": float(np.median([row["width"] for row in rows])),
            "width": float(np.mean([row["width"] for row in rows])),
            "site_coverage": float(sites.mean()),
            "site_coverage_each": dict(zip([c.name for c in COHORTS], sites.mean(axis=0).tolist(), strict=True)),
            "site_gap": float(np.mean([row["site_gap"] for row in rows])),
            "cpu_seconds": float(np.median([row["cpu"] for row in rows])),
        }
    return out


def main():
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    epsilons = tuple(float(text) for text in sys.argv[3:]) or EPSILONS
    runs = []
    for seed in range(first, first + repetitions):
        runs.append(run(seed, epsilons, bootstrap=30))
        if (seed - first) % 10 == 9:
            print(seed, json.dumps({k: v for k, v in summary(runs).items()}), flush=True)
    print(record.write("honest", {"repetitions": repetitions, "cells": summary(runs)}, seed=first))


if __name__ == "__main__":
    main()
