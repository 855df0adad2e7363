"""What a node-private network keeps of its attributes: intervals of means and closure, and assortativity.

python -m tests.benchmarks.network_attributes
python -m tests.benchmarks.network_attributes labelled

With `labelled` fewer repetitions of plans that tell the ward first.

Fresh persons, contacts, roles and noise each time, through the very drawing that a site uses. The truth of each
question is the mean of the real networks' answers over all repetitions.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.grand.answer import figure
from shared.mechanisms.grand.edges import adjacency, held_out
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.plan import StudyPlan
from shared.simulated import contact_networks
from site_agent.records.contacts import Contacts
from site_agent.records.table import Records
from site_agent.release import networks
from site_agent.release.protocol import Chosen
from tests.benchmarks import record

EPSILONS = (1.0, 4.0, 20.0)
TIMES, LABELLED_TIMES, N = record.sized((40, 12, 1000), (2, 2, 200))
LABELLED = {"by ward": {"by": "ward"}}
QUESTIONS = {
    "mean age": "mean(age)",
    "share of staff": "proportion(staff == 1)",
    "transitivity": "network(transitivity)",
    "assortativity by ward": "network(assortativity) ~ ward",
    "assortativity by age": "network(assortativity) ~ age",
}
RECOVERY = {"recovery of ward": "network(recovery) ~ ward"}
STUDY = Path(__file__).parents[2] / "deploy" / "studies" / "network.toml"


def real(question, nodes, matrix, plan):
    """The answer of all persons."""
    if question.kind == "network":
        return figure(matrix, nodes, question, plan.dictionary)[0]
    return estimate(nodes, question)[0].yi


def told(plan, released, question):
    """Estimate, variance and naive variance of a release; a mean as if the rows were drawn from m persons' law."""
    if question.kind == "network":
        # The figure itself: of a released network some are refused, because of what is measured here.
        [(table, n)] = released
        value, naive = figure(adjacency(table, directed=False), table, question, plan.dictionary)
        return value, naive * (1 + n / held_out(plan, n)), naive
    [(table, n)] = released
    [row] = estimate(table, question)
    return row.yi, row.vi * (1 + n / held_out(plan, n)), row.vi


def main():
    study = StudyPlan.from_toml(STUDY.read_text())
    labelled = sys.argv[1:] == ["labelled"]
    times = LABELLED_TIMES if labelled else TIMES
    kinds = {f"{name}, ": settings for name, settings in LABELLED.items()} if labelled else {"": {}}
    plans = {
        f"{name}epsilon={e:g}": replace(study, release=GrandPlan(epsilon=e, d=2, **settings))
        for name, settings in kinds.items()
        for e in EPSILONS
    }
    asked = {name: parse_estimand(text) for name, text in (QUESTIONS | (RECOVERY if labelled else {})).items()}
    truths = {name: [] for name in asked}
    found = {epsilon: {name: [] for name in asked} for epsilon in plans}
    for k in range(times):
        rng = np.random.default_rng(k)
        nodes, edges = contact_networks(rng, sites=1, n=N)["harbour"]
        places = [nodes.index[nodes["person"].searchsorted(edges[end])] for end in ("from", "to")]
        both = np.concatenate([places[0], places[1]]), np.concatenate([places[1], places[0]])
        matrix = csr_array((np.ones(len(both[0]), dtype=np.int8), both), shape=(N, N))
        for name, question in asked.items():
            truths[name].append(real(question, nodes, matrix, study))
        held = rng.random(N) < study.holdout
        table = Records(
            table=study.dictionary.check(nodes),
            rows=N,
            snapshot="",
            contacts=Contacts(matrix=matrix, directed=False, lines=len(edges)),
        )
        chosen = Chosen(rows=tuple(np.flatnonzero(~held)), train=tuple(np.flatnonzero(held)))
        for epsilon, plan in plans.items():
            noise = seeded_rng(k)
            drawing = networks.drawing(plan, plan.release)
            drawing.take(table, list(nodes["person"]), chosen, None)
            drawing.encode(noise)
            drawing.fit(noise, lambda share: None)
            drawing.draw(noise)
            released = [(drawing.released(noise), drawing.n)]
            for name, question in asked.items():
                found[epsilon][name].append(told(plan, released, question))
    results = {"times": times, "n": N, "holdout": study.holdout, "d": 2}
    for epsilon in plans:
        here = results[epsilon] = {}
        for name in asked:
            truth = float(np.mean(truths[name]))
            yi, vi, naive = np.array(found[epsilon][name]).T
            here[name] = {
                "truth": truth,
                "mean": float(yi.mean()),
                "sd": float(yi.std()),
                "mean_se": float(np.sqrt(vi).mean()),
                "covered": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(vi))),
                "covered_naive": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(naive))),
            }
            print(epsilon, name, here[name], flush=True)
    print(record.write("network_attributes_labelled" if labelled else "network_attributes", results, seed=0))


if __name__ == "__main__":
    main()
