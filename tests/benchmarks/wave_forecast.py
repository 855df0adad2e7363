"""How true `coordinator wave forecast` is: of hard worlds' studies after one wave, against what the next two gave.

Every wave draws everybody anew: wave 2 has twice, wave 3 three times the persons of wave 1, others of the same sites.
A forecast sees the released answers of its own study's first wave, and no record. Nothing was chosen by these figures.

python -m tests.benchmarks.wave_forecast [--n 600] [--jobs 1]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.planning.forecast import term_ahead
from coordinator.planning.predicted import Setting, plan_of
from coordinator.pooling.pool import pool_estimates
from shared.errors import Refusal
from shared.plans.dictionary import Column
from shared.plans.plan import StudyPlan, Training
from tests.benchmarks import record
from tests.benchmarks.design_accuracy import SEED, SETTINGS, TERM, cells, site_estimates
from tests.benchmarks.worlds.laws import WORLDS
from tests.benchmarks.zoo import plan_of as world_plan

WAVES = (2, 3)
K, SITES, STUDIES = record.sized(((5, 10), 12, 200), ((2,), 3, 2))
WITHIN = 0.15


def later_waves(plan: StudyPlan) -> StudyPlan:
    """The plan with two further waves in which everybody is drawn anew, through a flow of all who are there then."""
    waves = [replace(plan.waves[0], number=k, refit=k > 1) for k in (1, *WAVES)]
    return replace(plan, waves=tuple(waves), returning="refresh")


def cell(name: str, kind: str, n: int, setting: Setting) -> list[dict[str, Any]]:
    """Of one world, outcome and mechanism: forecasts of studies of K of its sites beside what came."""
    world = WORLDS[name]
    plan = world_plan(world, kind, 0.5, Training())
    columns = (Column(name="person", kind="person"), *plan.dictionary.columns)
    plan = replace(plan, dictionary=replace(plan.dictionary, columns=columns))
    said = {"world": name, "kind": kind, "n": n, "mechanism": setting.name, "epsilon": setting.epsilon}
    try:
        by_wave = {
            wave: site_estimates(world, plan, setting, kind, wave * n, sites=SITES, sizes=(SITES,))[SITES]
            for wave in (1, *WAVES)
        }
        ahead = later_waves(plan_of(plan, setting, {"planned": world.question(kind)}))
    except Refusal as refusal:
        return [said | {"refused": str(refusal)[:160]}]
    released = n * (1 - ahead.holdout) if ahead.posture == "holdout" else n
    rng = np.random.default_rng(SEED + 1)
    out = []
    for sites in K:
        ratios: dict[int, list[float]] = {wave: [] for wave in WAVES}
        inside: dict[int, list[bool]] = {wave: [] for wave in WAVES}
        for _ in range(STUDIES):
            chosen = rng.choice(SITES, sites, replace=False)
            try:
                pooled = {wave: pool_estimates([rows[k] for k in chosen]) for wave, rows in by_wave.items()}
            except Refusal:
                continue
            told = term_ahead(ahead, 1, "planned", TERM, pooled[1], released, {})
            for one in told.waves:
                came = pooled[one.number].critical * pooled[one.number].se
                ratios[one.number].append(one.half_width / came)
                inside[one.number].append(one.alike * (1 - WITHIN) <= came <= one.half_width * (1 + WITHIN))
        for wave in WAVES:
            near = [abs(ratio - 1) <= WITHIN for ratio in ratios[wave]]
            out.append(
                said
                | {
                    "sites": sites,
                    "wave": wave,
                    "studies": len(near),
                    "ratio": round(float(np.median(ratios[wave])), 3),
                    "within": round(float(np.mean(near)), 3),
                    "between": round(float(np.mean(inside[wave])), 3),
                }
            )
    return out


def _cell(asked: tuple[str, str, int, Setting]) -> list[dict[str, Any]]:
    return cell(*asked)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all, and by mechanism, sites and wave: the median ratio, and shares in percent."""

    def of(rows: list[dict[str, Any]]) -> dict[str, float]:
        return {
            "cells": len(rows),
            "ratio_median": float(np.median([row["ratio"] for row in rows])),
            "cells_within": 100 * float(np.mean([abs(row["ratio"] - 1) <= WITHIN for row in rows])),
            "within": 100 * float(np.mean([row["within"] for row in rows])),
            "between": 100 * float(np.mean([row["between"] for row in rows])),
        }

    have = [row for row in found if "ratio" in row]
    out: dict[str, Any] = {"all": of(have), "refused": len(found) - len(have)}
    for key in ("mechanism", "sites", "wave"):
        for value in dict.fromkeys(row[key] for row in have):
            out[f"{key}={value}"] = of([row for row in have if row[key] == value])
    return out


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.wave_forecast")
    asked.add_argument("--n", type=int, default=record.sized(600, 300))
    asked.add_argument("--jobs", type=int, default=1, help="processes")
    given = asked.parse_args()
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for several in pool.map(_cell, cells("reporting", [given.n])):
            found += several
            print(several, flush=True)
    told = summary(found)
    print(told)
    print(record.write("wave_forecast", {"settings": SETTINGS, "summary": told, "cells": found}, seed=SEED))


if __name__ == "__main__":
    main()
