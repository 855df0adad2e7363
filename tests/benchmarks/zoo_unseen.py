"""Real tables that the project had never used, through latent noise, noisy moments and noisy tables, by one command.

The tables, their parts and their questions (`tests.benchmarks.worlds.unseen`) were written down before the first run.
Each part of the record has the shape that `tests.benchmarks.zoo` and `zoo_moments` give theirs:

* latent: outcomes last, w = 0.8 and 0; the planned questions, squares and products among them;
* declared, none: noisy moments at ε = 1, every coefficient declared, and none;
* tables: noisy tables at ε = 1; planned: what noisy moments say to a question with a square or a product;
* nominal: noisy moments with next to no noise (ε = 30), every coefficient declared, of tables with nominal covariates,
  whose binary outcomes alone; what they are wrong by there no ε mends;
* curves_tuning, curves: latent noise again, asked polynomials and splines; on two tables it was seen what to mend, the
  others were looked at after;
* rows: the equal-rows check on every part of a table, two draws a weight.

A cell that takes ten minutes is stopped, and listed as such.

python -m tests.benchmarks.zoo_unseen [--parts latent,declared,…] [--worlds a,b] [--draws 3] [--seed 20261128]
    [--name zoo_unseen]
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shared.errors import Refusal
from shared.estimands.questions import parse_estimand
from shared.mechanisms.base import Aggregates
from shared.plans.plan import Training
from tests.benchmarks import equal_rows, record, worlds, zoo, zoo_moments
from tests.benchmarks.worlds.unseen import BENT, BENT_TUNING, CURVES, NAMES, STRAIGHT

SEED = 20261128
WHOLE = 10**9
"""More patients than a table has: all of them."""
LIMIT = 600
"""Seconds of one cell."""
WEIGHTS, EPSILON, LITTLE_NOISE = (0.8, 0.0), 1.0, 30.0
PARTS = ("latent", "declared", "none", "tables", "planned", "nominal", "curves_tuning", "curves", "rows")
OF_ROWS = ("latent", "curves_tuning", "curves")


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def cell(part: str, name: str, kind: str, draws: int, seed: int) -> dict[str, Any]:
    """One table and type of outcome through one part."""
    if part in OF_ROWS:
        training = Training(outcomes="last")
        return zoo.cell(name + (CURVES if part != "latent" else ""), kind, WHOLE, (0,), WEIGHTS, draws, training)[0]
    if part == "rows":
        counts: Counter[str] = Counter()
        for site in range(worlds.world(name).sites):
            counts += equal_rows.table(name, kind, WHOLE, site, 2) or Counter({"refused before a fit": 1})
        return {"counts": dict(counts)}
    if part == "planned":
        plan = zoo_moments.plan_of(worlds.world(name + STRAIGHT), kind, EPSILON)
        assert isinstance(plan.release, Aggregates)
        try:
            plan.release.require_shapes(parse_estimand(worlds.world(name).question(kind)))
        except Refusal as refusal:
            return {"refused": str(refusal)}
        return {}
    mechanism = "tables" if part == "tables" else "moments"
    declared, asked = part in ("declared", "nominal"), name + STRAIGHT
    return zoo_moments.cell(asked, kind, WHOLE, 0, (_epsilon(part),), draws, mechanism, declared, seed=seed)


def _epsilon(part: str) -> float:
    return LITTLE_NOISE if part == "nominal" else EPSILON


def measured(part: str, names: Sequence[str], draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """The cells of a part, from small tables to large ones."""
    for name in names:
        world = worlds.world(name)
        kinds = world.kinds
        if part.startswith("curves"):
            kinds = (BENT[name][0],) if name in BENT and (name in BENT_TUNING) == (part == "curves_tuning") else ()
        if part == "nominal":
            nominal = any(column.kind == "nominal" for column in world.columns)
            kinds = ("binary",) if nominal and "binary" in world.outcomes else ()
        for kind in kinds:
            if part == "planned" and "I(" not in world.question(kind) and "*" not in world.question(kind):
                continue
            told = {"world": name, "kind": kind, "n": WHOLE, "sites": world.sites}
            began = time.process_time()
            try:
                with within(LIMIT):
                    found = told | cell(part, name, kind, draws, seed)
            except TimeoutError:
                found = told | {"refused": f"stopped after {LIMIT} seconds"}
            yield found | {"seconds": round(time.process_time() - began, 1)}


def results_of(part: str, cells: Sequence[dict[str, Any]], draws: int) -> dict[str, Any]:
    """A part as it is kept."""
    if part in ("rows", "planned"):
        return {"cells": list(cells)}
    brief: Callable[[dict[str, Any]], dict[str, Any]] = zoo.brief if part in OF_ROWS else zoo_moments.brief
    summaries = zoo.summaries(cells, WEIGHTS) if part in OF_ROWS else zoo_moments.summaries(cells, (_epsilon(part),))
    mechanism = "latent noise" if part in OF_ROWS else "tables" if part == "tables" else "moments"
    kept = {"draws": draws, "sites": 0, "mechanism": mechanism, "summaries": summaries}
    return kept | {"cells": [brief(one) for one in cells]}


def main() -> None:
    """Measure parts, and put each into the record as it is done."""
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_unseen")
    asked.add_argument("--parts", type=zoo.listed(str), default=PARTS)
    asked.add_argument("--worlds", type=zoo.listed(str), default=NAMES)
    asked.add_argument("--draws", type=int, default=3)
    asked.add_argument("--seed", type=int, default=SEED, help="of the noise of figures; tables are what they are")
    asked.add_argument("--name", default="zoo_unseen")
    given = asked.parse_args()
    names = []
    for name in given.worlds:
        try:
            names += [worlds.world(name).name]
        except FileNotFoundError as absent:
            print(f"left out: {absent}")
    path = record.RESULTS / f"{given.name}.json"
    for part in given.parts if names else ():
        cells = []
        for one in measured(part, names, given.draws, given.seed):
            cells.append(one)
            kept = results_of(part, [one], given.draws)
            said = kept.get("summaries", {"": one.get("counts")})
            told = {at: found["all"] if found and "all" in found else found for at, found in said.items()}
            print(part, one["world"], one["kind"], one["seconds"], one.get("refused", ""), json.dumps(told), flush=True)
        before = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
        found = before | {part: results_of(part, cells, given.draws)}
        print(record.write(given.name, found, seed=given.seed, command="python -m tests.benchmarks.zoo_unseen"))


if __name__ == "__main__":
    main()
