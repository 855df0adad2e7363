"""500 hospitals, 10⁸ records, 1,000 analysts: what has to be bought, where it queues, and what it costs.

python -m tests.benchmarks.scale [--core-hour PRICE] [--gb-month PRICE] [--again] [--smallest]

Measures what each step of the product costs (`scale_costs`), puts these costs into a simulation (`scale_model`), holds
that against real runs, and asks it which machines answer new questions in time. Prices are whatever is given: the
defaults are for the arithmetic alone. ``--again`` simulates with the costs and runs of the file that is there;
``--smallest`` only starts, at small sizes, and writes no file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.services.compute.parts import PART as PART_S
from coordinator.services.compute.parts import ROW, SITE
from tests.benchmarks import question_sites, record, scale_costs
from tests.benchmarks.scale_model import (
    CLIENT,
    IN_THE_MAKING,
    KINDS,
    PATIENCE,
    REFUSED,
    Asking,
    Costs,
    Machines,
    Outcome,
    shares,
    simulated,
)

SMALL = bool("--smallest" in sys.argv or os.environ.get("TRIBUTARY_SMALLEST"))
"""Whether it only has to start: small sizes, whose figures say nothing."""
SEED = 24
COMMITTED = Path(__file__).parent / "results"
HOSPITALS, ANALYSTS, COLUMNS = 5 if SMALL else 500, 10 if SMALL else 1000, 6
AT_A_SITE = {500: 2, 1_000: 2} if SMALL else {1_000: 16, 20_000: 8, 200_000: 4}
ROWS = tuple(AT_A_SITE)
SERVED, SERVED_ROWS = (2, 3) if SMALL else (16, 500), ROWS[0]
REAL = {"2 sites": (2, 500)} if SMALL else {"16 sites of 1,000": (16, 1_000), "121 sites of 5,000": (121, 5_000)}
SENT = (3, 2_000) if SMALL else (30, 200_000)  # small bundles that are delivered, and rows of each of the large ones
TASKS, OBJECTS = (5, 2) if SMALL else (200, 20)
TOGETHER, EACH, CORES = (
    2 if SMALL else 10,
    2 if SMALL else 12,
    2,
)  # analysts at once, questions of each, and cores of the machine that measures
ROOM = 1 << 24  # numbers that a worker keeps of tables (`EstimateCache`)
TARGETS = (3.0, 10.0, 60.0)
MIXES = {"course": (0.8, 0.1, 0.1), "mixed": (0.5, 0.2, 0.3), "research": (0.1, 0.2, 0.7)}
MODELS = (("cox", 0.5), ("logistic", 0.3), ("mean", 0.2))
SHOWN = ("ordinary day", "mixed")
DAY, PART = 8 * 3600.0, 600.0 if SMALL else 7200.0  # a working day, and how much of it is simulated
PATTERNS = {
    "ordinary day": Asking(analysts=ANALYSTS, seconds=PART, thinks=600.0, models=MODELS),
    "course": Asking(analysts=ANALYSTS, seconds=3600.0, thinks=300.0, models=MODELS),
}
SERVING = 4  # cores of a machine that serves while others compute
LADDER = (2, 4, 8, 16, 32, 64, 128, 256)
ALONE = 8  # up to so many cores one machine does both
PIECES = (16, 32, 64, 128, 256, 512, 1024)
ANSWERED = 0.999  # of all questions, for a configuration to count as one that answers


# -- from measured costs to those of a size ---------------------------------------------------------------------------
def between(points: dict[float, float], at: float) -> float:
    """Value at a size, on straight lines between measured sizes; beyond the last, on the last line."""
    sizes = sorted(points)
    place = min(max(int(np.searchsorted(sizes, at)), 1), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    return points[low] + (points[high] - points[low]) * (at - low) / (high - low)


def costs_of(measured: dict[str, Any], sites: int, rows: int, *, objects: bool = False) -> Costs:
    """Costs of so many sites of so many rows.

    Args:
        measured: as of `measure`.
        objects: whether bundles lie in an object store.
    """
    by_rows = {int(size): found for size, found in measured["site"].items()}
    served = {int(size): found for size, found in measured["serving"].items()}

    from coordinator.store.store import TABLES_KEPT

    def site(name: str, kind: str = "") -> float:
        return between({n: one[name][kind] if kind else one[name] for n, one in by_rows.items()}, rows)

    def serving(kind: str, process: str) -> float:
        return max(0.0, between({n: one[kind][process] for n, one in served.items()}, sites))

    # What a worker does beside its sites' models: the selection, the pooling, the document.
    beside = between(
        {n: max(0.0, one["new"]["worker_s"] - n * by_rows[SERVED_ROWS]["fit_s"]["cox"]) for n, one in served.items()},
        sites,
    )
    far = between({one["bytes"]: one["cpu_s"] for one in measured["objects"].values()}, site("bundle_bytes"))
    read = sites * far if objects else 0.0
    fit = {kind: sites * site("fit_s", kind) + beside for kind, _ in MODELS}
    cold = {kind: sites * site("cold_s", kind) + beside + read for kind, _ in MODELS}
    # Decoded tables are kept apart, the latest: all of a study's, or none that the next question finds.
    decoded = sites * site("table_bytes") <= TABLES_KEPT
    lost = {kind: sites * site("lost_s", kind) + beside for kind, _ in MODELS} if decoded else cold
    delivery = measured["delivery"]

    def delivered(name: str) -> float:
        return between({one["bundle_bytes"]: one[name] for one in delivery.values()}, site("bundle_bytes"))

    commit = between({n: one["commit_s"] for n, one in served.items()}, sites)
    return Costs(
        fit=fit,
        cold=cold,
        lost=lost,
        reread=not decoded,
        kept=min(1.0, ROOM / (sites * site("cells_kept"))),
        pooled=serving("pooled otherwise", "worker_s"),
        parts=min(sites, int(sites * (SITE + ROW * rows) / PART_S)),
        serving={kind: serving(kind, "serving_s") for kind in KINDS},
        write=min(commit, serving("repeated", "serving_s") / 4),
        bundle=sites * site("bundle_bytes"),
        deliver=delivered("serving_s"),
        open=delivered("opening_s"),
        commit=commit,
    )


def measure() -> dict[str, Any]:
    """All costs that are in no other file."""
    from stage.both_sides.service import small_table
    from stage.coordinator_side.delivered import cohort, cohort_plan

    from tests.benchmarks.front import study
    from tests.benchmarks.load import ROWS as SMALL_ROWS

    found: dict[str, Any] = {"load_average_before": os.getloadavg()[0], "site": {}, "serving": {}}
    # What another file has from a quiet machine, measured beside all this: how much longer everything takes now.
    now, quiet = question_sites.of_sites(SERVED[-1])["new_s"], committed("question_sites")["sites"]["500"]["new_s"]
    found["question_sites"] = {"new_s": now, "times_as_long": 1.0 if SMALL else now / quiet}
    print(found["question_sites"], flush=True)
    for rows, sites in AT_A_SITE.items():
        found["site"][f"{rows}"] = said = scale_costs.of_site(rows, sites)
        print(f"{rows} rows a site", said, flush=True)
    for sites in SERVED:
        found["serving"][f"{sites}"] = served = scale_costs.of_serving(sites, SERVED_ROWS)
        print(f"{sites} sites served", served, flush=True)
    found["delivery"] = {
        "as in load": scale_costs.of_delivery(study(1), [small_table(SMALL_ROWS, seed=k) for k in range(SENT[0])]),
        "200000 rows": scale_costs.of_delivery(cohort_plan(), [cohort(SENT[1], k) for k in range(4)]),
    }
    print(found["delivery"], flush=True)
    found["tasks"] = scale_costs.of_tasks(TASKS)
    found["objects"] = scale_costs.of_objects({"small": 20_000, "large": 1_100_000}, OBJECTS)
    print(found["tasks"], found["objects"], flush=True)
    return found


# -- held against what was measured -----------------------------------------------------------------------------------
def real() -> dict[str, Any]:
    """Ten analysts who ask new questions at once, of the product itself; what one of them costs alone."""
    found = {}
    for name, (sites, rows) in REAL.items():
        with scale_costs.running(sites, rows, TOGETHER) as at:
            # Both workers read the tables and work out the columns first: that is a cost, and no queue.
            scale_costs.at_once(at, 4, start=60)
            alone = scale_costs.one_after_the_other(at, scale_costs.questions(0, 40))
            found[name] = {"sites": sites, "rows": rows, "alone": alone, "at_once": scale_costs.at_once(at, EACH)}
        print(name, found[name], flush=True)
    return found


def ten_at_once(costs: Costs, cores: float, **machine: Any) -> Outcome:
    """Ten analysts at once, simulated, who share the machine with a coordinator whose workers know the tables."""
    return simulated(Machines(cores=cores, **machine), costs, Asking(analysts=TOGETHER, each=EACH), warm=True)


def beside(measured: float, simulated: float) -> dict[str, float]:
    return {"measured": measured, "simulated": simulated, "ratio": simulated / measured}


def compared(measured: dict[str, Any], runs: dict[str, Any]) -> dict[str, Any]:
    """Seconds as they were measured and as they are simulated."""
    found = {}
    older = committed("analysis_load")["rounds"]["cold"]
    each = older["cpu_seconds_each"]
    # The version that was measured there computed in the interpreter that answers.
    known = {"fit": {"cox": each}, "cold": {"cox": each}, "lost": {"cox": each}}
    whole = Costs(**known, kept=1.0, pooled=0.0, serving=dict.fromkeys(KINDS, 0.0))
    seen = ten_at_once(whole, CORES, one_process=True).seconds["new"]
    found["analysis_load"] = {name: beside(older["seconds"][other], seen[name]) for name, other in PAIRS}
    for name, run in runs.items():
        whole, alone, run_at_once = costs_of(measured, run["sites"], run["rows"]), run["alone"], run["at_once"]
        # The queue by the costs of that very run, asked one after the other just before; then the costs themselves.
        ratio = alone["worker_s"] / whole.fit["cox"]
        costs = replace(
            whole,
            fit={"cox": alone["worker_s"]},
            cold={"cox": ratio * whole.cold["cox"]},
            lost={"cox": ratio * whole.lost["cox"]},
            serving=dict.fromkeys(KINDS, alone["serving_s"]),
            client=dict.fromkeys(KINDS, alone["client_s"]),
        )
        seen = ten_at_once(costs, CORES - run_at_once["cores_taken_by_others"]).seconds["new"]
        found[name] = {one: beside(run_at_once[other], seen[one]) for one, other in PAIRS}
        found[name]["worker_s"] = beside(alone["worker_s"], whole.again("cox"))
        found[name]["serving_s"] = beside(alone["serving_s"], whole.serving["new"])
    cases = committed("load")["cases"]
    one = measured["delivery"]["as in load"]
    costs = Costs(
        fit={},
        cold={},
        lost={},
        kept=1.0,
        pooled=0.0,
        serving={},
        deliver=one["serving_s"],
        open=one["opening_s"],
        send=one["hospital_s"],
        commit=measured["serving"][f"{SERVED[0]}"]["commit_s"],
    )
    costs = costs.quicker(measured["question_sites"]["times_as_long"])  # the machine was quiet there
    for case, within in (("sqlite_1", 0.0), ("sqlite_1_within_a_minute", 50.0)):
        seen = simulated(Machines(cores=CORES), costs, bundles=121, within=within).delivered
        found[f"load {case}"] = {name: beside(cases[case][f"{name}_s"], seen[name]) for name in ("p50", "p99")}
    return found


def rounded(found: Any) -> Any:
    """The same with five digits of each number that is not whole."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    return float(f"{found:.5g}") if isinstance(found, float) else found


PAIRS = (("p50", "median"), ("p95", "p95"))


def committed(name: str) -> dict[str, Any]:
    """The results of a file of figures."""
    found: dict[str, Any] = json.loads((COMMITTED / f"{name}.json").read_text())["results"]
    return found


# -- which machines ---------------------------------------------------------------------------------------------------
def machines_of(cores: int, *, in_pieces: bool = False) -> Machines:
    """So many cores that compute: of the machine that serves, or of others beside one of `SERVING` cores."""
    if cores <= ALONE and not in_pieces:
        return Machines(cores=cores, places=cores, threads=64)
    processes = max(1, math.ceil(cores / 32)) if not in_pieces else 2
    places = math.ceil(cores / processes) if not in_pieces else 64
    return Machines(cores=SERVING, elsewhere=cores, processes=processes, places=places, threads=64, in_pieces=in_pieces)


def told(found: Outcome, machines: Machines, costs: Costs, lasted: float, prices: dict[str, float]) -> dict[str, Any]:
    """A configuration's figures."""
    cores = machines.cores + machines.elsewhere
    asked = sum(found.asked.values())
    rates = {kind: found.asked.get(kind, 0) / lasted for kind in KINDS}
    work = sum(share * costs.again(kind) for kind, share in MODELS)
    used = found.core_seconds / max(found.lasted, lasted)
    return {
        "cores": cores,
        "asked": asked,
        "answered_share": found.answered / asked,
        "new_answered_share": found.seconds.get("new", shares([]))["count"] / max(1, found.asked.get("new", 0)),
        "refused": {why: found.refused.get(why, 0) / asked for why in REFUSED},
        "seconds": {kind: found.seconds.get(kind, shares([])) for kind in KINDS},
        "use": found.use,
        "new_a_second": rates["new"],
        "work_s": work,
        "on_paper_cores": rates["new"] * work + sum(rates[kind] * costs.serving[kind] for kind in KINDS),
        "cores_used": used,
        "bottleneck": found.bottleneck,
        "bottleneck_share": found.waited[found.bottleneck] / sum(found.waited.values()) if found.bottleneck else 0.0,
        "moved_gb": found.moved / 1e9,
        "core_hours_used_a_day": used * DAY / 3600,
        "a_month_always_on": cores * 730 * prices["core_hour"] + costs.bundle / 1e9 * prices["gb_month"],
        "delivered": found.delivered,
    }


def climbed(
    costs: Costs,
    asking: Asking,
    ladder: tuple[int, ...],
    prices: dict[str, float],
    *,
    in_pieces: bool = False,
    least: int = 0,
) -> dict[str, Any]:
    """Configurations from small to large until one answers as fast as any; the smallest within each target.

    Args:
        least: cores that are tried whatever fewer do.
    """
    rungs: dict[str, Any] = {}
    best = math.inf
    for cores in ladder:
        machines = machines_of(cores, in_pieces=in_pieces)
        given = costs if machines.elsewhere else replace(costs, task=0.0)
        if in_pieces:
            given = replace(costs, kept=min(1.0, costs.kept * cores))
        found = simulated(machines, given, asking, bundles=HOSPITALS, within=asking.seconds)
        rungs[f"{cores}"] = said = told(found, machines, given, asking.seconds, prices)
        p95, good = said["seconds"]["new"]["p95"], said["answered_share"] >= ANSWERED
        print("   ", cores, f"{said['answered_share']:.3f} {p95:.1f} s {said['bottleneck']}", flush=True)
        if cores >= least and good and (p95 <= TARGETS[0] or p95 > 0.97 * best):
            break
        best = min(best, p95) if good else best
    smallest = {
        f"{target:g}": next(
            (
                int(cores)
                for cores, said in rungs.items()
                if said["answered_share"] >= ANSWERED and said["seconds"]["new"]["p95"] <= target
            ),
            0,
        )
        for target in TARGETS
    }
    return {"rungs": rungs, "smallest": smallest}


def grid(measured: dict[str, Any], prices: dict[str, float], times: float) -> dict[str, Any]:
    """Every size, pattern and mix; as the product is, and with questions cut in pieces, which it does not do.

    Args:
        times: how many times as long everything took where it was measured, beside others.
    """
    found: dict[str, Any] = {}
    for rows in ROWS:
        costs = costs_of(measured, HOSPITALS, rows, objects=True).quicker(times)
        costs = replace(costs, task=measured["tasks"]["dask_s"])
        cells: dict[str, Any] = {}
        for pattern, asking in PATTERNS.items():
            for mix, parts in MIXES.items():
                print(rows, pattern, mix, flush=True)
                least = 32 if (pattern, mix) == SHOWN else 0
                cells[f"{pattern}, {mix}"] = climbed(costs, replace(asking, mix=parts), LADDER, prices, least=least)
        print(rows, "in pieces", flush=True)
        asking = replace(PATTERNS[SHOWN[0]], seconds=1800.0, mix=MIXES[SHOWN[1]])
        pieces = climbed(costs, asking, PIECES, prices, in_pieces=True)
        alone = replace(asking, analysts=1, each=5)
        one = simulated(machines_of(ALONE), replace(costs, task=0.0), alone)
        found[f"{rows}"] = {"costs": asdict(costs), "cells": cells, "in pieces": pieces, "alone": one.seconds}
    return found


def shipped(measured: dict[str, Any], prices: dict[str, float], times: float) -> dict[str, Any]:
    """A machine of `ALONE` cores with the settings that a new coordinator has."""
    costs, machines = costs_of(measured, HOSPITALS, ROWS[0]).quicker(times), Machines(cores=ALONE)
    asking = replace(PATTERNS[SHOWN[0]], mix=MIXES["research"])
    return told(simulated(machines, costs, asking), machines, costs, asking.seconds, prices)


def wide(measured: dict[str, Any], prices: dict[str, float], times: float) -> dict[str, Any]:
    """The larger sizes with the largest cluster and a line ten times as wide."""
    machines, asking = (
        replace(machines_of(LADDER[-1]), network=1.25e9),
        replace(PATTERNS[SHOWN[0]], mix=MIXES[SHOWN[1]]),
    )
    found = {}
    for rows in ROWS[1:]:
        costs = costs_of(measured, HOSPITALS, rows, objects=True).quicker(times)
        found[f"{rows}"] = told(simulated(machines, costs, asking), machines, costs, asking.seconds, prices)
    return found


def waves(measured: dict[str, Any], times: float) -> dict[str, Any]:
    """How long 500 bundles wait on machines of some sizes."""
    found: dict[str, Any] = {}
    for rows in ROWS:
        costs = costs_of(measured, HOSPITALS, rows).quicker(times)
        for name, within in (("at once", 0.0), ("within an hour", 3600.0), ("within a day", 86_400.0)):
            for cores in (2, 4, 8):
                seen = simulated(Machines(cores=cores), costs, bundles=HOSPITALS, within=within)
                found.setdefault(f"{rows}", {}).setdefault(name, {})[f"{cores}"] = {
                    **seen.delivered,
                    "most": seen.bottleneck,
                }
    return found


def main() -> None:
    """Measure, simulate, and write the JSON."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--core-hour", type=float, default=0.05)
    asked.add_argument("--gb-month", type=float, default=0.02)
    asked.add_argument("--again", action="store_true", help="with the costs and runs of the file that is there")
    asked.add_argument("--smallest", action="store_true", help="only start, at small sizes")
    given = asked.parse_args()
    prices = {"core_hour": given.core_hour, "gb_month": given.gb_month}
    if given.again:
        before = committed("scale")
        measured, runs = before["costs"], before["runs"]
    else:
        measured, runs = measure(), real()
    times = measured["question_sites"]["times_as_long"]
    checked = compared(measured, runs)
    for name, one in checked.items():
        print(
            name, {key: f"{two['measured']:.3f} {two['simulated']:.3f} {two['ratio']:.2f}" for key, two in one.items()}
        )
    results = {
        "hospitals": HOSPITALS,
        "analysts": ANALYSTS,
        "columns": COLUMNS,
        "prices": prices,
        "limits": {"client_s": CLIENT, "patience_s": PATIENCE, "in_the_making": IN_THE_MAKING},
        "mixes": {name: dict(zip(KINDS, parts, strict=True)) for name, parts in MIXES.items()},
        "costs": measured,
        "runs": runs,
        "compared": checked,
        "sizes": grid(measured, prices, times),
        "waves": waves(measured, times),
        "wide": wide(measured, prices, times),
        "shipped": shipped(measured, prices, times),
        "busy": {
            rows: {name: cell["smallest"] for name, cell in {**found["cells"], "in pieces": found["in pieces"]}.items()}
            for rows, found in grid(measured, prices, 1.0).items()
        },
    }
    if SMALL and record.RESULTS == COMMITTED:
        return
    record.write("scale", rounded(results), seed=SEED, command="python -m tests.benchmarks.scale")


if __name__ == "__main__":
    main()
