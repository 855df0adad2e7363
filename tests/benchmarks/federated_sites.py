"""200 sites train one flow in one process, through Flower's FedAdam and a grid in memory: CPU time, memory, and price.

python -m tests.benchmarks.federated_sites [sites]

The federated study that ships (20 rounds, here of one step, 696 weights), 300 made-up records each; one site in twenty
never answers. CPU time of one thread; the price is that of one site, whatever their number.
"""

import datetime as dt
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator import federation as hub
from shared import flower
from shared.encoding import Encoder
from shared.plan import StudyPlan
from shared.randomness import seeded_rng
from site_agent.federation import MemorySource, client_app
from tests.benchmarks import record

SITES = int(sys.argv[1]) if len(sys.argv) > 1 else 200
RECORDS, SEED = 300, 7


def main():
    flower.prepare()
    from flwr.app import Context, RecordDict

    text = (Path(__file__).parents[2] / "deploy" / "studies" / "federated.toml").read_text()
    plan = StudyPlan.from_toml(text)
    plan = replace(plan, federated=replace(plan.federated, reference={}, local_steps=1, quorum=SITES * 9 // 10))
    plan.require_current(dt.date(2026, 6, 1))
    d = Encoder(dictionary=plan.dictionary).d
    nodes, apps = {f"site-{k:05d}": 1 + k for k in range(SITES)}, {}
    for k, (site, node) in enumerate(nodes.items()):
        rng = np.random.default_rng([SEED, k])
        app = client_app(
            MemorySource(plan=plan, site=site, encoded=rng.uniform(-1, 1, (RECORDS, d)), rng=seeded_rng(k))
        )
        context = Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})
        apps[node] = (lambda m, app=app, c=context: app(m, c)) if k % 20 else lambda m: None
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        flow = hub.run(hub.memory_grid(apps), plan, nodes, Path(folder))
    results = {
        "sites": SITES,
        "answered": sum(said["answered"] == plan.federated.rounds for said in flow.sites.values()),
        "rounds": plan.federated.rounds,
        "local_steps": plan.federated.local_steps,
        "records": RECORDS,
        "cpu_seconds": time.process_time() - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "epsilon": flow.epsilon,
        "document_bytes": len(flow.canonical),
    }
    print(results)
    print(record.write("federated_sites", results, seed=SEED))


if __name__ == "__main__":
    main()
