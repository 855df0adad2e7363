"""Twelve full-size cohorts, each behind one ε: pooled adjusted hazard ratio from noisy moments against the real data's.

Printed beside it: how often the intervals hold the truth, pooled (REML, Knapp-Hartung) and per site, and how wide they
are beside those of the real data. Fresh cohorts in every repetition. In the world `misfit` nothing the generator
assumes holds: a t copula, curved and interacting effects, a hazard that is not proportional in age, and censoring that
hangs on the covariates; the Cox coefficient there has no agreed truth, so only the gap to the real data is told.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.honest [repetitions] [first seed] [--epsilon 0.5,1,3] [--world fits|misfit]
  [--bootstrap 30] [--bootstrap-at 1] [--folder FOLDER] [--together] [--summary]
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from coordinator.pooling.pool import pool
from shared.base.randomness import seeded_rng
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.mechanisms.moments.cohort import fit
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.spec import MomentsSpec
from shared.mechanisms.moments.together import places
from shared.simulated import CVD_HAZARD_RATIO
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import COHORTS, SCALE, cvd_tables, dictionary

COVARIATES = ("age", "chol", "hdl", "sbp")
UNITS = np.array([10.0, 40.0, 15.0, 10.0])
TRUTH = math.log(CVD_HAZARD_RATIO)
CLOSE = 0.02
HORIZONS = {"ARIC": 30, "CARDIA": 36, "CHS": 28, "MESA": 18, "Framingham": 36, "Jackson": 12}
"""Planned follow-up, years: public, and fixed before any record is read."""
CORRELATION = np.array(
    [[1.0, 0.2, 0.02, 0.35], [0.2, 1.0, 0.08, 0.12], [0.02, 0.08, 1.0, -0.06], [0.35, 0.12, -0.06, 1.0]]
)


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


def misfit(rng):
    """Cohorts of the same sizes, means and event rates, in a world that the generator does not have."""
    out = {}
    for c in COHORTS:
        n = round(c.n * SCALE)
        latent = rng.standard_normal((n, 4)) @ np.linalg.cholesky(CORRELATION).T
        heavy = latent * np.sqrt(5 / rng.chisquare(5, n))[:, None]
        z = stats.norm.ppf(np.clip(stats.t.cdf(heavy, 5), 1e-6, 1 - 1e-6))
        columns = {"age": np.clip(c.age[0] + c.age[1] * 2.4 * np.tanh(z[:, 0] / 2.2), 16, 100).round(1)}
        for name, k, low, high in (("chol", 1, 60, 600), ("hdl", 2, 10, 200), ("sbp", 3, 60, 280)):
            mean, sd = getattr(c, name)
            spread = math.sqrt(math.log1p((sd / mean) ** 2))
            columns[name] = np.clip(mean * np.exp(spread * z[:, k] - spread**2 / 2), low, high).round()
        age, x = (columns["age"] - c.age[0]) / c.age[1], (columns["sbp"] - c.sbp[0]) / 10
        log_hr = TRUTH + 0.03 * rng.standard_normal()
        predictor = log_hr * x + 0.05 * c.age[1] * age + 0.004 * (columns["chol"] - c.chol[0])
        predictor += -0.015 * (columns["hdl"] - c.hdl[0])
        predictor += -0.012 * (x**2 - (c.sbp[1] / 10) ** 2) - 0.015 * x * age * c.age[1] / 5 + 0.15 * age**2
        shape = 1.3 * np.exp(0.12 * age)
        leaving = rng.exponential(1 / (c.leaving * np.exp(np.clip(0.04 * c.age[1] * age + 0.08 * x, -3, 3))), n)
        end = np.minimum(1 - 0.2 * rng.beta(1, 3, n), 0.01 + leaving)
        exponential, low, high = rng.exponential(1, n), -25.0, 10.0
        for _ in range(60):
            level = (low + high) / 2
            failure = (exponential * np.exp(-level - predictor)) ** (1 / shape)
            low, high = (level, high) if (failure <= end).mean() < c.events else (low, level)
        observed = np.minimum(failure, end)
        longest = HORIZONS[c.name.split("-")[0]]
        scale = min(c.time[0] / observed.mean(), longest)
        person = [str(k) for k in range(n)]
        time_ = np.maximum((observed * scale).round(2), 0.01)
        event = (failure <= end).astype(np.int64)
        out[c.name] = pd.DataFrame({"person": person, "time": time_, "cvd": event, **columns})
    return out


def log_hrs(seed):
    """The true log hazard ratio of each site, as `cvd_cohorts` drew it: its generator is followed step by step."""
    rng = np.random.default_rng(10_000 + seed)
    found = []
    for cohort in COHORTS:
        n = round(cohort.n * SCALE)
        rng.standard_normal((n, 4))
        found.append(TRUTH + 0.03 * rng.standard_normal())
        rng.beta(1, 3, n)
        rng.exponential(1 / cohort.leaving, n)
        rng.exponential(1, n)
    return np.array(found)


def real(table):
    """Cox on the records: log HR of 10 mmHg, and its variance."""
    x = table[list(COVARIATES)].to_numpy(float) / UNITS
    found = cox(
        x - x.mean(axis=0), SurvivalOutcome(time=table["time"].to_numpy(float), event=table["cvd"].to_numpy(float))
    )
    return found.beta[3], found.cov[3, 3]


def one(tables, epsilon, declared, rng, bootstrap, beside=False, **more):
    """(12, 3) log HR of 10 mmHg and its variances (sampling, privacy); sites bootstrapped; CPU of release and fit."""
    rows, boots, cpu = [], 0, 0.0
    if beside:
        began = time.process_time()
        plans = {name: design(name, epsilon, declared, **more) for name in tables}
        given = [(moments(plan.dictionary.check(tables[name]), plan, rng), plan) for name, plan in plans.items()]
        found = [place.effects for place in places(given, alike=True)]
        rows = [(10 * site.effects[3], 100 * site.sampling[3], 100 * site.privacy[3]) for site in found]
        return np.array(rows), 0, time.process_time() - began
    for name, table in tables.items():
        plan = design(name, epsilon, declared, **more)
        checked = plan.dictionary.check(table)
        began = time.process_time()
        cohort = fit(moments(checked, plan, rng), plan)
        cpu += time.process_time() - began
        if bootstrap and cohort.few:
            cohort = cohort.bootstrap(np.random.default_rng(rng.generator.integers(2**63)), bootstrap)
            boots += 1
        estimate = cohort.estimates(study="cvd", site=name, wave=1)[3]
        rows.append((10 * estimate.yi, 100 * estimate.vi_sampling, 100 * estimate.vi_privacy))
    return np.array(rows), boots, cpu


def measured(seed, epsilons, bootstrap, world="fits", **more):
    """One repetition: real and released estimates of every site, as plain numbers.

    Args:
        bootstrap: refits of a site of few events, by ε; none where it is not named.
    """
    rng = np.random.default_rng(10_000 + seed)
    tables = cvd_tables(rng) if world == "fits" else misfit(rng)
    out = {"seed": seed, "truth": log_hrs(seed).tolist() if world == "fits" else None, "cells": {}}
    out["real"] = [[float(value) for value in real(table)] for table in tables.values()]
    for epsilon in epsilons:
        for declared in (False, True):
            rows, boots, cpu = one(tables, epsilon, declared, seeded_rng(seed), bootstrap.get(epsilon, 0), **more)
            name = f"epsilon={epsilon:g} {'declared' if declared else 'plain'}"
            out["cells"][name] = {"sites": rows.tolist(), "bootstrapped": boots, "cpu": cpu}
    return out


def pooled(y, v):
    found = pool(y, v, method="REML", test="adhoc")
    return found.beta, found.ci_lb, found.ci_ub


def _weights(y, v):
    """Of sites in their random-effects answer."""
    w = 1 / (v + pool(y, v, method="REML", test="adhoc").tau2)
    return w / w.sum()


def summary(runs):
    theirs = [pooled(*np.array(run["real"]).T) for run in runs]
    out = {"real": {"coverage": float(np.mean([low <= TRUTH <= high for _, low, high in theirs]))}}
    for name in runs[0]["cells"]:
        sites = np.array([run["cells"][name]["sites"] for run in runs])
        total = sites[:, :, 1] + sites[:, :, 2]
        ours = [pooled(y, v) for y, v in zip(sites[:, :, 0], total, strict=True)]
        gaps = np.array([math.exp(a[0]) - math.exp(b[0]) for a, b in zip(ours, theirs, strict=True)])
        widths = [(a[2] - a[1]) / (b[2] - b[1]) for a, b in zip(ours, theirs, strict=True)]
        cell = {
            "gap": float(np.abs(gaps).mean()),
            "gap_standard_error": float(np.abs(gaps).std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else None,
            "signed_gap": float(gaps.mean()),
            "within_0.02": float((np.abs(gaps) < CLOSE).mean()),
            "gap_90_percent": float(np.quantile(np.abs(gaps), 0.9)),
            "width": float(np.mean(widths)),
            "width_median": float(np.median(widths)),
            "site_gap": float(np.abs(sites[:, :, 0] - np.array([run["real"] for run in runs])[:, :, 0]).mean()),
            "bootstrapped": float(np.mean([run["cells"][name]["bootstrapped"] for run in runs])),
            "cpu_seconds_12_sites": float(np.median([run["cells"][name]["cpu"] for run in runs])),
        }
        theirs_of = np.array([run["real"] for run in runs])[:, :, 0]
        # Released less real is the noise alone, of a site and of a pool of the same weights.
        cell["squared_error_over_stated_site"] = float(np.mean((sites[:, :, 0] - theirs_of) ** 2 / sites[:, :, 2]))
        share = np.array([_weights(y, v) for y, v in zip(sites[:, :, 0], total, strict=True)])
        squared = np.array([(a[0] - b[0]) ** 2 for a, b in zip(ours, theirs, strict=True)])
        cell["squared_error_over_stated"] = float(squared.mean() / (share**2 * sites[:, :, 2]).sum(axis=1).mean())
        if runs[0]["truth"] is not None:
            held = np.abs(sites[:, :, 0] - np.array([run["truth"] for run in runs])) <= 1.959964 * np.sqrt(total)
            cell["coverage"] = float(np.mean([low <= TRUTH <= high for _, low, high in ours]))
            cell["site_coverage"] = float(held.mean())
            cell["site_coverage_each"] = dict(zip([c.name for c in COHORTS], held.mean(axis=0).tolist(), strict=True))
        out[name] = cell
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(100, 1))
    parser.add_argument("first", nargs="?", type=int, default=1)
    parser.add_argument("--epsilon", default=record.sized("0.5,1,3", "1"))
    parser.add_argument(
        "--bootstrap", type=int, default=0, help="refits of sites of few events; 0: linearised variances"
    )
    parser.add_argument("--bootstrap-at", default="1", help="the ε at which: a refit takes as long as a fit")
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    parser.add_argument("--world", choices=("fits", "misfit"), default="fits")
    parser.add_argument("--together", action="store_true", help="sites beside each other, as the coordinator answers")
    parser.add_argument("--summary", action="store_true", help="print, and write no result")
    given = parser.parse_args()
    epsilons = [float(text) for text in given.epsilon.split(",")]
    bootstrap = {float(text): given.bootstrap for text in given.bootstrap_at.split(",")}
    runs = []
    for seed in range(given.first, given.first + given.repetitions):
        kept = given.folder / f"{given.world}-{seed}.json" if given.folder else None
        if kept is not None and kept.is_file():
            runs.append(json.loads(kept.read_text()))
            continue
        runs.append(measured(seed, epsilons, bootstrap, given.world, beside=given.together))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(runs[-1]))
        if len(runs) % 10 == 0 or seed == given.first:
            print(len(runs), json.dumps(summary(runs)), flush=True)
    results = {"repetitions": len(runs), "bootstrap": bootstrap, "world": given.world, "cells": summary(runs)}
    if given.summary:
        print(json.dumps(results))
        return
    name = "honest" if given.world == "fits" else "honest_misfit"
    name += "_bootstrap" if given.bootstrap else ""
    name += "_together" if given.together else ""
    print(record.write(name, results, seed=given.first))


if __name__ == "__main__":
    main()
