"""Twelve full-size cohorts through encoder, flow and latent noise: pooled adjusted HR, released against real.

And the share of events and the Kaplan-Meier curve of every cohort, at a quarter, a half and three quarters of its
longest follow-up.

python -m tests.benchmarks.cohorts_gap [first seed] [seeds] [--carry | --last]

All columns are in one flow, as in the paper. With --carry the true event is carried over (`release.carry`), and the
file is cohorts_gap_carried.json; with --last time and event are drawn last, as the demo's plan has it
(cohorts_gap_last.json).

python -m tests.benchmarks.cohorts_gap 1 100 --events

releases each cohort of one draw so many times at w = 0.8 (cohorts_gap_events.json): how much of a distance of shares of
events is the flow's bias, and how much is the noise that each row's event is drawn with anew.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from shared import simulated
from shared.base.randomness import seeded_rng
from shared.estimands.fits.survival import kaplan_meier
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan
from shared.simulated import cvd_cohorts
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.lni_repeat import dersimonian_laird

WEIGHTS = (0.0, 0.8)
SCALE, COHORTS = record.sized((1.0, simulated.COHORTS), (0.1, simulated.COHORTS[:6]))
"""Share of the cohorts' published sizes, and the cohorts themselves."""
HORIZONS = (0.25, 0.5, 0.75)
PLAN = Path(__file__).resolve().parents[2] / "deploy" / "studies" / "cvd.toml"
ADJUSTED = ["sbp", "age", "chol", "hdl"]


def dictionary() -> Dictionary:
    """The columns of `cvd_cohorts`."""
    return Dictionary(
        name="cvd",
        version=1,
        columns=(
            Column(name="person", kind="person"),
            Column(name="time", kind="time", unit="years", upper=60, event="cvd", decimals=2),
            Column(name="cvd", kind="event"),
            Column(name="age", kind="continuous", unit="years", lower=16, upper=100, decimals=1),
            Column(name="chol", kind="continuous", unit="mg/dL", lower=60, upper=600, decimals=0),
            Column(name="hdl", kind="continuous", unit="mg/dL", lower=10, upper=200, decimals=0),
            Column(name="sbp", kind="continuous", unit="mmHg", lower=60, upper=280, decimals=0),
        ),
    )


def cvd_tables(rng: np.random.Generator, scale: float = 1.0, **more: float) -> dict[str, pd.DataFrame]:
    """`cvd_cohorts`, of those cohorts and sizes that are measured."""
    tables = cvd_cohorts(rng, scale * SCALE, **more)
    return {cohort.name: tables[cohort.name] for cohort in COHORTS}


def log_hr(table) -> tuple[float, float]:
    """Cox, adjusted: log HR of 10 mmHg and its variance."""
    from statsmodels.duration.hazard_regression import PHReg

    x = table[ADJUSTED].to_numpy(dtype=float) / np.array([10.0, 10.0, 40.0, 15.0])
    fit = PHReg(
        table["time"].to_numpy(dtype=float), x - x.mean(axis=0), status=table["cvd"].to_numpy(dtype=float)
    ).fit()
    return float(fit.params[0]), float(fit.bse[0]) ** 2


def still_without(table, times) -> np.ndarray:
    """Kaplan-Meier at `times`."""
    curve = kaplan_meier(table["time"].to_numpy(dtype=float), table["cvd"].to_numpy(dtype=float))
    steps = np.searchsorted(curve.time, times, side="right")
    return np.concatenate([[1.0], curve.survival])[steps]


def one(seed: int, settings: FlowSettings, carry: bool = False, last: bool = False) -> dict:
    """One draw of the twelve cohorts."""
    rng = seeded_rng(seed)
    encoder = Encoder(dictionary=dictionary())
    outcomes = planned_outcomes(StudyPlan.from_toml(PLAN.read_text(encoding="utf-8"))) if last else None
    carried = encoder.columns.index("cvd") if carry else None
    cohorts = cvd_tables(np.random.default_rng(seed))
    real, released = [], {w: [] for w in WEIGHTS}
    sites = {}
    cpu = 0.0
    for name, table in cohorts.items():
        checked = encoder.dictionary.check(table)
        x = encoder.encode(checked, rng)
        began = time.process_time()
        whole = encoder.integer_columns
        fitted = fit_flow(x, settings, rng, integer_columns=whole, carried=carried, outcomes=outcomes)
        spent = time.process_time() - began
        cpu += spent
        real.append(log_hr(table))
        site = {
            "n": len(table),
            "events": float(table["cvd"].mean()),
            "log_hr": real[-1][0],
            "curve": still_without(table, times := table["time"].max() * np.array(HORIZONS)).tolist(),
            "epochs": fitted.report.epochs,
            "gain": fitted.report.gain,
            "cpu_seconds": spent,
        }
        for w in WEIGHTS:
            mechanism = LatentNoise(
                flow=fitted.flow,
                w=w,
                radius=default_radius(encoder.d - carry),
                carried=() if carried is None else (carried,),
            )
            out = encoder.decode(mechanism.release(x, rng))
            released[w].append(log_hr(out))
            site[f"events w={w}"] = float(out["cvd"].mean())
            site[f"curve w={w}"] = still_without(out, times).tolist()
            site[f"log_hr w={w}"] = released[w][-1][0]
        sites[name] = site
    pooled = {"real": dersimonian_laird(real)[0], **{f"w={w}": dersimonian_laird(released[w])[0] for w in WEIGHTS}}
    hr = {key: math.exp(value) for key, value in pooled.items()}
    return {
        "seed": seed,
        "hr": hr,
        "gap": {f"w={w}": hr[f"w={w}"] - hr["real"] for w in WEIGHTS},
        "site_gap": {
            f"w={w}": float(np.mean([abs(s[f"log_hr w={w}"] - s["log_hr"]) for s in sites.values()])) for w in WEIGHTS
        },
        "event_share_gap": {
            f"w={w}": max(abs(s[f"events w={w}"] - s["events"]) for s in sites.values()) for w in WEIGHTS
        },
        "curve_gap": {
            f"w={w}": max(float(np.abs(np.subtract(s[f"curve w={w}"], s["curve"])).max()) for s in sites.values())
            for w in WEIGHTS
        },
        "training_cpu_seconds": cpu,
        "sites": sites,
    }


def shares(seed: int, releases: int, w: float = 0.8) -> dict:
    """Of every cohort of one draw: mean and standard deviation of the released share of events, less the real one."""
    rng, encoder = seeded_rng(seed), Encoder(dictionary=dictionary())
    event = encoder.columns.index("cvd")
    sites = {}
    for name, table in cvd_tables(np.random.default_rng(seed)).items():
        x = encoder.encode(encoder.dictionary.check(table), rng)
        flow = fit_flow(x, FlowSettings(), rng, integer_columns=encoder.integer_columns).flow
        mechanism = LatentNoise(flow=flow, w=w, radius=default_radius(encoder.d))
        real = float(table["cvd"].mean())
        found = np.array([(mechanism.release(x, rng)[:, event] >= 1).mean() for _ in range(releases)]) - real
        sites[name] = {
            "n": len(table),
            "events": real,
            "bias": float(found.mean()),
            "bias_se": float(found.std(ddof=1) / math.sqrt(releases)),
            "sd": float(found.std(ddof=1)),
            "beyond_1.5_points": float((np.abs(found) > 0.015).mean()),
        }
        print(name, sites[name], flush=True)
    return {
        "releases": releases,
        "w": w,
        "sites": sites,
        "largest_bias": max(abs(site["bias"]) for site in sites.values()),
        "largest_sd": max(site["sd"] for site in sites.values()),
        "cohorts_beyond_in_a_draw": sum(site["beyond_1.5_points"] for site in sites.values()),
    }


def main() -> None:
    numbers = [int(given) for given in sys.argv[1:] if not given.startswith("--")]
    carry, last = "--carry" in sys.argv, "--last" in sys.argv
    first, seeds = (*numbers, *(1, record.sized(10, 1))[len(numbers) :])
    if "--events" in sys.argv:
        print(record.write("cohorts_gap_events", shares(first, seeds), seed=first))
        return
    runs = []
    for seed in range(first, first + seeds):
        runs.append(one(seed, FlowSettings(), carry, last))
        print({k: v for k, v in runs[-1].items() if k != "sites"}, flush=True)
    gaps = {f"w={w}": [run["gap"][f"w={w}"] for run in runs] for w in WEIGHTS}

    def largest(name: str) -> dict[str, float]:
        return {w: max(run[name][w] for run in runs) for w in gaps}

    print(
        record.write(
            "cohorts_gap" + ("_carried" if carry else "_last" if last else ""),
            {
                "runs": runs,
                "mean_absolute_gap": {w: float(np.mean(np.abs(g))) for w, g in gaps.items()},
                "largest_event_share_gap": largest("event_share_gap"),
                "largest_curve_gap": largest("curve_gap"),
                "mean_largest_curve_gap": {w: float(np.mean([run["curve_gap"][w] for run in runs])) for w in gaps},
                "largest_absolute_gap": {w: float(np.max(np.abs(g))) for w, g in gaps.items()},
            },
            seed=first,
        )
    )


if __name__ == "__main__":
    main()
