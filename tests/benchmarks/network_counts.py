"""How often intervals of a network's figures hold the real network's, by capped counts and by GRAND.

python -m tests.benchmarks.network_counts [reporting|choosing] [DRAWS] [--counts]

Worlds of `tests.benchmarks.worlds.networks`; the settings of capped counts (weights of the blocks, caps that are left
out, what is put back and what is refused) were chosen on the one half and are reported on the other. A figure that is
refused is in no share; how many were answered stands beside. A release of capped counts is of all N persons. GRAND's
holds half of them out, through the very drawing that a site uses; its answers are the released network's figures with
the jackknife's variance times 1 + n/m, as they are before any of them is refused, against all N persons' network. With
``--counts`` what the file holds of GRAND stays, and only capped counts are measured anew.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import triu

from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal
from shared.estimands.answer import parse_estimand
from shared.mechanisms.grand.answer import figure
from shared.mechanisms.grand.edges import NEIGHBOURS, adjacency
from shared.mechanisms.grand.plan import GrandPlan
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.plans.plan import StudyPlan
from site_agent.records.contacts import Contacts
from site_agent.records.table import Records
from site_agent.release import networks
from site_agent.release.protocol import Chosen
from tests.benchmarks import record
from tests.benchmarks.worlds.networks import half

STUDIES = Path(__file__).parents[2] / "deploy" / "studies"
SEED = 2019
SIZES, EPSILONS = record.sized(((700, 2000), (1.0, 3.0, 10.0)), ((300,), (3.0,)))
NETWORKS, DRAWS = record.sized((3, 20), (1, 1))
GRAND_SIZE, GRAND_NETWORKS = record.sized((1000, 2), (200, 1))
QUESTIONS = {
    "edges": "network(edge)",
    "V-shapes": "network(v_shape)",
    "triangles": "network(triangle)",
    "transitivity": "network(transitivity)",
    "mixing by ward": "network(assortativity) ~ ward",
}


def counting(world, epsilon):
    study = StudyPlan.from_toml((STUDIES / "network-counts.toml").read_text())
    return replace(study, release=NetworkCountsPlan(epsilon=epsilon, most_contacts=world.most, by=("ward",)))


def truths(ties, ward, plan):
    """Question to the real network's figure; None where it has none."""
    names = pd.DataFrame({"ward": pd.Categorical.from_codes(ward, plan.dictionary.column("ward").levels)})
    out = {}
    for name, text in QUESTIONS.items():
        try:
            out[name] = figure(ties, names, parse_estimand(text), plan.dictionary)[0]
        except EstimateRefusal:
            out[name] = None
    return out


def with_edges(ties, ward):
    upper = triu(ties, k=1, format="csr")
    upper.sort_indices()
    table = pd.DataFrame({"ward": ward.astype(float)})
    table[NEIGHBOURS] = np.split(upper.indices.astype(np.int32), upper.indptr[1:-1])
    return table


def by_counts(world, n, epsilon, draws, rng):
    """Question to (error, standard error) of each answer, or None."""
    plan = counting(world, epsilon)
    found = {name: [] for name in QUESTIONS}
    for number in range(NETWORKS):
        ties, ward = world.draw(n, rng)
        real = truths(ties, ward, plan)
        exact = plan.release.measure(plan, with_edges(ties, ward), seeded_rng(0))
        for draw in range(draws):
            table = plan.release.draw(plan, exact, seeded_rng(SEED + 1000 * number + draw))
            for name, text in QUESTIONS.items():
                if real[name] is None:
                    continue
                try:
                    [row] = plan.release.answer(
                        plan, [(table, n)], parse_estimand(text), levels={}, study="s", site="a", wave=1
                    )
                except EstimateRefusal:
                    found[name].append(None)
                else:
                    found[name].append((row.yi - real[name], math.sqrt(row.vi)))
    return found


def by_grand(world, n, rng):
    """ε to question to (error, standard error) of a GRAND release's figures."""
    found = {epsilon: {name: [] for name in QUESTIONS} for epsilon in EPSILONS}
    study = StudyPlan.from_toml((STUDIES / "network.toml").read_text())
    for number in range(GRAND_NETWORKS):
        ties, ward = world.draw(n, rng)
        held = rng.random(n) < 0.5
        for epsilon in EPSILONS:
            plan = replace(study, release=GrandPlan(epsilon=epsilon, d=2))
            real = truths(ties, ward, plan)
            table = pd.DataFrame(
                {"person": [str(k) for k in range(n)], "ward": ward.astype(float), "staff": 0.0, "age": 50.0}
            )
            contacts = Contacts(matrix=ties.astype(np.int8), directed=False, lines=ties.nnz // 2)
            noise = seeded_rng(SEED + number)
            drawing = networks.drawing(plan, plan.release)
            chosen = Chosen(rows=tuple(np.flatnonzero(~held)), train=tuple(np.flatnonzero(held)))
            drawing.take(
                Records(table=table, rows=n, snapshot="", contacts=contacts), list(table["person"]), chosen, None
            )
            drawing.encode(noise)
            drawing.fit(noise, lambda share: None)
            drawing.draw(noise)
            released = drawing.released(noise)
            for name, text in QUESTIONS.items():
                try:
                    value, variance = figure(
                        adjacency(released, directed=False), released, parse_estimand(text), plan.dictionary, whole=n
                    )
                except EstimateRefusal:
                    continue
                if real[name] is not None:
                    more = 1 + len(released) / int(held.sum())
                    found[epsilon][name].append((value - real[name], math.sqrt(variance * more)))
    return found


def summary(answers):
    said = np.array([one for one in answers if one is not None])
    out = {"asked": len(answers), "answered": len(said)}
    if len(said):
        out |= {
            "covered": float(np.mean(np.abs(said[:, 0]) < 1.959964 * said[:, 1])),
            "mean_error": float(said[:, 0].mean()),
            "median_se": float(np.median(said[:, 1])),
        }
    return out


def both(worlds):
    """All worlds together, and each."""
    names = {name: [one for found in worlds.values() for one in found[name]] for name in QUESTIONS}
    each = {world: {name: summary(found[name]) for name in QUESTIONS} for world, found in worlds.items()}
    return {"all": {name: summary(found) for name, found in names.items()}, "worlds": each}


def by_grand_of(chosen):
    """Size and ε to the summary of GRAND's figures."""
    rng = np.random.default_rng(SEED + 1)
    grand = {world.name: by_grand(world, GRAND_SIZE, rng) for world in chosen}
    told = {
        f"N={GRAND_SIZE}, epsilon={epsilon:g}": both({name: found[epsilon] for name, found in grand.items()})
        for epsilon in EPSILONS
    }
    for name, one in told.items():
        print("GRAND", name, one["all"], flush=True)
    return told


def main():
    given = [one for one in sys.argv[1:] if one != "--counts"]
    which = given[0] if given else "reporting"
    draws = int(given[1]) if len(given) > 1 else DRAWS
    name = "network_counts" if which == "reporting" else f"network_counts_{which}"
    chosen = half(which)
    counts = {}
    for n in SIZES:
        for epsilon in EPSILONS:
            rng = np.random.default_rng(SEED)
            found = {world.name: by_counts(world, n, epsilon, draws, rng) for world in chosen}
            counts[f"N={n}, epsilon={epsilon:g}"] = both(found)
            print(n, epsilon, counts[f"N={n}, epsilon={epsilon:g}"]["all"], flush=True)
    if "--counts" in sys.argv:
        told = json.loads((record.RESULTS / f"{name}.json").read_text())["results"]["grand"]
    else:
        told = by_grand_of(chosen)
    results = {"half": which, "networks": NETWORKS, "draws": draws, "counts": counts, "grand": told}
    print(record.write(name, results, seed=SEED))


if __name__ == "__main__":
    main()
