"""Four real hospitals of a hundred to three hundred patients, beside what their own records say, many draws each.

The UCI heart disease tables of Cleveland, Budapest, Switzerland and Long Beach (TRIBUTARY_HEART_DATA names their
folder; they are in no repository): a logistic model of the disease and a linear one of the highest pulse, on age, sex
and angina. Latent noise has w = 0.8 and posture `local`, outcomes last; noisy moments ε = 1, every coefficient
declared. Both parts of the record have the shape that `tests.benchmarks.zoo` and `zoo_moments` give theirs.

python -m tests.benchmarks.zoo_heart [--draws 20] [--name zoo_heart]
"""

from __future__ import annotations

import argparse
from typing import Any

from shared.plans.plan import Training
from tests.benchmarks import record, worlds, zoo, zoo_moments

WORLD, WHOLE = "hospitals", 10**9
W, EPSILON = 0.8, 1.0


def main() -> None:
    """Measure both mechanisms."""
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_heart")
    asked.add_argument("--draws", type=int, default=20)
    asked.add_argument("--name", default="zoo_heart")
    given = asked.parse_args()
    try:
        world = worlds.world(WORLD)
    except FileNotFoundError as absent:
        print(f"left out: {absent}")
        return
    rows, figures = [], []
    for kind in world.kinds:
        rows += zoo.cell(WORLD, kind, WHOLE, (0,), (W,), given.draws, Training(outcomes="last"))
        settings = ("moments", True, False, zoo.SEED)
        figures.append(zoo_moments.cell(WORLD, kind, WHOLE, 0, (EPSILON,), given.draws, *settings))
    kept: dict[str, Any] = {"draws": given.draws}
    parts: dict[str, Any] = {
        "latent": {"summaries": zoo.summaries(rows, (W,)), "cells": [zoo.brief(one) for one in rows]},
        "moments": {
            "mechanism": "moments",
            "sites": 0,
            "summaries": zoo_moments.summaries(figures, (EPSILON,)),
            "cells": [zoo_moments.brief(one) for one in figures],
        },
    }
    sizes = [len(world(WHOLE, None, site)) for site in range(world.sites)]  # type: ignore[arg-type]
    found = {name: kept | part for name, part in parts.items()}
    print(record.write(given.name, {"patients": sizes, **found}, seed=zoo.SEED))


if __name__ == "__main__":
    main()
