"""One price, five ways to spend it: the pooled adjusted hazard ratio of twelve cohorts beside the real data's.

Noisy moments (plain, and with the coefficient declared), noisy tables, latent noise through a flow trained with noise,
and latent noise through a flow that knows public figures only, all covering everybody at the same ε and δ = 1e-6; and
latent noise at a w of that ε whose flow was fitted on the records and is not covered. Each as the product makes it.
With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.honest_comparison [repetitions] [first seed] [--epsilon 1,3] [--folder FOLDER]
"""

import argparse
import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.pool import pool
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.encoding import Encoder
from shared.plans.plan import PrivateTraining, Reference, StudyPlan, Training
from shared.privacy import accountant as privacy
from site_agent.release.fitting import fit
from tests.benchmarks import honest, record
from tests.benchmarks.cohorts_gap import COHORTS, cvd_tables

QUESTION = parse_estimand("cox(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15")
SHIPPED = StudyPlan.from_toml((Path(__file__).parents[2] / "deploy" / "studies" / "cvd.toml").read_text())
DELTA, TRAINED = 1e-6, 0.7
"""δ, and the share of ε that trains the flow where one is trained with noise."""
RATE, STEPS = 0.1, record.sized(150, 2)
OUTCOMES = {"time": Reference(mean=15, sd=8), "cvd": Reference(mean=0.1)}


def reference():
    """What a published table of the twelve cohorts says: means over cohorts, and a usual spread."""
    out = dict(OUTCOMES)
    for name in ("age", "chol", "hdl", "sbp"):
        pairs = np.array([getattr(cohort, name) for cohort in COHORTS])
        out[name] = Reference(mean=float(pairs[:, 0].mean().round()), sd=float(pairs[:, 1].mean().round()))
    return out


def training(epsilon):
    """DP-SGD whose price is `TRAINED` of ε."""
    low, high = 0.5, 100.0
    for _ in range(record.sized(40, 4)):
        middle = math.sqrt(low * high)
        paid = privacy.epsilon(privacy.SubsampledGaussian(rate=RATE, noise_multiplier=middle, steps=STEPS), DELTA)
        low, high = (middle, high) if paid > TRAINED * epsilon else (low, middle)
    return PrivateTraining(rate=RATE, noise_multiplier=round(high + 5e-4, 3), steps=STEPS)


def plans(epsilon):
    bare = {"private": None, "reference": {}, "budget": replace(SHIPPED.budget, epsilon=500.0, delta=DELTA)}
    rows = LatentNoisePlan(epsilon=epsilon)
    # Laws of outcomes are fitted to records: those of the shipped plan stay with the flow that is fitted on them.
    usual = Training(epochs=record.sized(Training().epochs, 2))
    small = replace(usual, flows=2, hidden=16, learning_rate=0.02)
    return {
        "noisy tables": replace(
            SHIPPED, **bare, posture="private", release=TablesPlan(epsilon=epsilon), training=usual
        ),
        "latent noise, flow trained with noise": replace(
            SHIPPED,
            **{**bare, "private": training(epsilon), "reference": reference()},
            posture="private",
            release=rows,
            training=small,
        ),
        "latent noise, public flow": replace(
            SHIPPED, **{**bare, "reference": reference()}, posture="public", release=rows, training=usual
        ),
        "latent noise, flow not covered": replace(SHIPPED, **bare, posture="local", release=rows),
    }


def answered(plan, table, seed):
    """log HR of 10 mmHg and its variance, as the coordinator finds them."""
    checked = plan.dictionary.check(table)
    told = {"study": "cvd", "site": "site", "wave": 1}
    if isinstance(plan.release, TablesPlan):
        released = plan.release.draw(plan, checked, seeded_rng(seed))
        try:
            rows = plan.release.answer(plan, [(released, len(table))], QUESTION, levels={}, **told)
        except EstimateRefusal:
            return math.nan, math.nan
    else:
        encoder = Encoder(dictionary=plan.dictionary)
        x = encoder.encode(checked, seeded_rng(seed))
        fitted = fit(plan, encoder, x, tuple(table["person"]), seeded_rng(seed + 1))
        made = encoder.decode(fitted.mechanism.release(x[fitted.released], seeded_rng(seed + 2)))
        draw = Draw(rows=len(made), w=fitted.mechanism.w, fitted_on=fitted.trained or None)
        rows = with_release_variance(estimate(made, QUESTION, **told), made, QUESTION, [draw], postures=[plan.posture])
    row = next(row for row in rows if row.term == "sbp/10")
    return (math.nan, math.nan) if row.yi is None else (row.yi, row.vi)


def measured(seed, epsilon, folder=None):
    """(sites, 2) of the records and of every method, and CPU seconds of each."""
    kept = folder / f"{epsilon:g}-{seed}.json" if folder else None
    if kept is not None and kept.is_file():
        out, cpu = json.loads(kept.read_text())
        return {name: np.array(rows) for name, rows in out.items()}, cpu
    tables = cvd_tables(np.random.default_rng(10_000 + seed))
    tables = dict(itertools.islice(tables.items(), record.sized(len(tables), 2)))
    out, cpu = {"real": np.array([honest.real(table) for table in tables.values()])}, {}
    for name, declared in (("noisy moments", False), ("noisy moments, sbp declared", True)):
        rows, _, cpu[name] = honest.one(tables, epsilon, declared, seeded_rng(seed), 0)
        out[name] = np.column_stack([rows[:, 0], rows[:, 1] + rows[:, 2]])
    for name, plan in plans(epsilon).items():
        began = time.process_time()
        out[name] = np.array([answered(plan, table, 1000 * seed + 10 * k) for k, table in enumerate(tables.values())])
        cpu[name] = time.process_time() - began
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([{name: rows.tolist() for name, rows in out.items()}, cpu]))
        print(kept.name, flush=True)
    return out, cpu


def pooled(rows):
    known = np.isfinite(rows[:, 0])
    return pool(rows[known, 0], rows[known, 1], method="REML", test="adhoc")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(10, 1))
    parser.add_argument("first", nargs="?", type=int, default=1)
    parser.add_argument("--epsilon", default=record.sized("1,3", "3"))
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    given = parser.parse_args()
    results = {"repetitions": given.repetitions, "delta": DELTA, "share_of_training": TRAINED}
    for epsilon in (float(text) for text in given.epsilon.split(",")):
        seeds = range(given.first, given.first + given.repetitions)
        runs = [measured(seed, epsilon, given.folder) for seed in seeds]
        cells = {}
        for name in runs[0][1]:
            ours, theirs = [pooled(run[name]) for run, _ in runs], [pooled(run["real"]) for run, _ in runs]
            gap = np.array([math.exp(a.beta) - math.exp(b.beta) for a, b in zip(ours, theirs, strict=True)])
            cells[name] = {
                "hazard_ratio": float(np.mean([math.exp(one.beta) for one in ours])),
                "gap": float(np.abs(gap).mean()),
                "signed_gap": float(gap.mean()),
                "within_0.02": float((np.abs(gap) < honest.CLOSE).mean()),
                "coverage": float(np.mean([one.ci_lb <= honest.TRUTH <= one.ci_ub for one in ours])),
                "width": float(
                    np.median([(a.ci_ub - a.ci_lb) / (b.ci_ub - b.ci_lb) for a, b in zip(ours, theirs, strict=True)])
                ),
                "cpu_seconds": float(np.median([cpu[name] for _, cpu in runs])),
            }
            print(epsilon, name, cells[name], flush=True)
        results[f"epsilon={epsilon:g}"] = cells
    print(record.write("honest_comparison", results, seed=given.first))


if __name__ == "__main__":
    main()
