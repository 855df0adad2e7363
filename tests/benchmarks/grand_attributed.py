"""A friendship network with four attributes and two communities, released with its attributes: the paper's Appendix G.

python -m tests.benchmarks.grand_attributed [TIMES]

The paper's school is not public; TIMES (20) schools like it are simulated: 653 students of three grades, with sex,
language and a workshop, in two communities that hang together with grade and language; half of them are released,
through the very drawing that a site uses. As in the paper's Figure 6, two communities are found in the real network of
the released students and in the released one, each by spectral clustering, and the shares of students by community and
level are compared: total variation distance (half the sum of absolute differences over the cells, communities named to
fit best). Beside it: the network of the other half of the school, which is what chance alone leaves; and the real
network with the attributes shuffled between students, which is what keeping margins alone would give.

Arms at each ε in all: coordinates alone (the paper's way, at its true price); community told first; grade told first.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.clusters import communities
from shared.mechanisms.grand.counts import simple
from shared.mechanisms.grand.edges import adjacency
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan
from site_agent.records.contacts import Contacts
from site_agent.records.table import Records
from site_agent.release import networks
from site_agent.release.protocol import Chosen
from tests.benchmarks import record

SEED, STUDENTS, FRIENDS, EPSILONS = 731, record.sized(653, 200), 16, (1.0, 5.0, 10.0)
STUDY = Path(__file__).parents[2] / "deploy" / "studies" / "network.toml"
COLUMNS = (
    Column(name="sex", kind="binary"),
    Column(name="grade", kind="ordered", levels=("1", "2", "3")),
    Column(name="language", kind="binary"),
    Column(name="workshop", kind="binary"),
)
ARMS: dict[str, dict[str, Any]] = {
    "coordinates alone": {},
    "community first": {"communities": 2},
    "grade first": {"by": "grade"},
}


def school(rng: np.random.Generator) -> tuple[pd.DataFrame, Any]:
    """A node table and a symmetric matrix: grade 1 keeps to itself, and the others with it in part."""
    grade = rng.integers(0, 3, STUDENTS)
    apart = rng.random(STUDENTS) < np.choose(grade, [0.95, 0.1, 0.05])
    table = pd.DataFrame(
        {
            "person": [f"student {number}" for number in range(STUDENTS)],
            "sex": (rng.random(STUDENTS) < 0.5).astype(int),
            "grade": np.array(["1", "2", "3"])[grade],
            "language": (rng.random(STUDENTS) < np.where(apart, 0.85, 0.6)).astype(int),
            "workshop": (rng.random(STUDENTS) < np.where(grade == 2, 0.4, 0.2)).astype(int),
        }
    )
    liked = rng.lognormal(0, 0.4, STUDENTS)
    same = (apart[:, None] == apart) * 1.0
    chance = (
        np.outer(liked, liked)
        * (0.2 + 0.8 * same)
        * (0.6 + 0.4 * (table["sex"].to_numpy()[:, None] == table["sex"].to_numpy()))
    )
    np.fill_diagonal(chance, 0)
    met = np.triu(rng.random((STUDENTS, STUDENTS)) < np.minimum(chance * FRIENDS * STUDENTS / chance.sum(), 0.9), 1)
    return table, csr_array((met | met.T).astype(np.int8))


def shares(network: Any, codes: pd.DataFrame, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Column to a (2, levels) table: shares of students by community and level."""
    found = communities(simple(network), 2, rng)
    out = {}
    for column in COLUMNS:
        cells = np.zeros((2, len(column.levels)))
        np.add.at(cells, (found, codes[column.name].to_numpy(dtype=np.int64)), 1 / len(codes))
        out[column.name] = cells
    return out


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """Column to the total variation distance of its table, under the names of communities that fit all columns best."""
    orders = [
        {name: float(np.abs(one[name][list(order)] - other[name]).sum() / 2) for name in one}
        for order in permutations(range(2))
    ]
    return min(orders, key=lambda found: sum(found.values()))


def main() -> None:
    """Measure, print, save."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(20, 1)
    dictionary = Dictionary(name="school", version=1, columns=(Column(name="person", kind="person"), *COLUMNS))
    study = replace(
        StudyPlan.from_toml(STUDY.read_text()),
        dictionary=dictionary,
        estimands={},
        budget=Budget(epsilon=12.0, delta=1e-6),
    )
    found: dict[str, list[dict[str, float]]] = {}
    for k in range(times):
        rng = np.random.default_rng([SEED, k])
        nodes, matrix = school(rng)
        held = rng.permutation(STUDENTS) < STUDENTS // 2
        table = Records(
            table=dictionary.check(nodes),
            rows=STUDENTS,
            snapshot="",
            contacts=Contacts(matrix=matrix, directed=False, lines=matrix.nnz // 2),
        )
        chosen = Chosen(rows=tuple(np.flatnonzero(~held)), train=tuple(np.flatnonzero(held)))
        real, other = ((matrix[who][:, who], table.table[who].reset_index(drop=True)) for who in (~held, held))
        truth = shares(*real, rng)
        shuffled = real[1].iloc[rng.permutation(len(real[1]))].reset_index(drop=True)
        here = {
            "the other half of the school": apart(shares(*other, rng), truth),
            "attributes shuffled": apart(shares(real[0], shuffled, rng), truth),
        }
        for arm, settings in ARMS.items():
            for epsilon in EPSILONS:
                plan = replace(study, release=GrandPlan(epsilon=epsilon, d=2, **settings))
                noise = seeded_rng(k)
                drawing = networks.drawing(plan, plan.release)
                drawing.take(table, list(nodes["person"]), chosen, None)
                drawing.encode(noise)
                drawing.fit(noise, lambda share: None)
                drawing.draw(noise)
                made = drawing.released(noise)
                codes = pd.DataFrame({one.name: one.check(made[one.name]) for one in COLUMNS})
                here[f"{arm}, epsilon={epsilon:g}"] = apart(shares(adjacency(made, directed=False), codes, rng), truth)
        for arm, distances in here.items():
            found.setdefault(arm, []).append(distances | {"mean": float(np.mean(list(distances.values())))})
    results: dict[str, Any] = {"times": times, "students": STUDENTS, "mean_degree": FRIENDS, "distance": {}}
    for arm, rows in found.items():
        results["distance"][arm] = {
            name: {
                "mean": float(np.mean([row[name] for row in rows])),
                "sd": float(np.std([row[name] for row in rows])),
            }
            for name in rows[0]
        }
        print(f"{arm:32s}", {name: round(one["mean"], 3) for name, one in results["distance"][arm].items()})
    print(record.write("grand_attributed", results, SEED))


if __name__ == "__main__":
    main()
