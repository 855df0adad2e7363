"""CPU seconds and memory of GRAND's four stages, of drawing 100,000 nodes, and of triangles beside igraph's.

python -m tests.benchmarks.grand_speed [STAGE ...]

Stages are named N=4000, N=20000, N=100000, draw=100000 and triangles; all by default, and those that are not asked for
keep the figures that stand in the result file, from which `exponents` follow each time: of n, by which a stage's time
grows from the smallest size to the largest. One thread; each stage of a size is measured once, after one small warm-up,
in a process of its own, so that its peak memory is that of the stage. igraph is of the extra of rivals alone: without
it `triangles` is refused, and what is committed of it stays.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.counts import degrees, triangles
from shared.mechanisms.grand.noise import NodePrivate
from site_agent.models.latent_fit import fit
from tests.benchmarks import record
from tests.benchmarks.grand_networks import drawn, halves, simulated

SEED = 713
STAGES = record.sized(("N=4000", "N=20000", "N=100000", "draw=100000", "triangles"), ("N=4000", "triangles"))
BARS = {
    "N=4000": (3.0, None),
    "N=20000": (60.0, 2000.0),
    "N=100000": (90.0, 2000.0),
    "draw=100000": (90.0, 2000.0),
}


def peak() -> float:
    """Most memory this process has had resident, in megabytes: of the whole process, its libraries included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def timed(call: Callable[[], Any], into: dict[str, float], name: str) -> Any:
    """The call's result; its CPU seconds go under `name`."""
    start = time.process_time()
    result = call()
    into[name] = time.process_time() - start
    return result


def release(nodes: int, d: int, density: float) -> dict[str, float]:
    """Hold-out fit, node-wise estimates, privatisation and draw of the latent space model."""
    rng = np.random.default_rng(SEED)
    out: dict[str, float] = {}
    m = nodes // 2
    ties = drawn(simulated("LSM", nodes, d, density, rng), rng)
    _, across, holdout = halves(ties, m)
    out["ties"] = float(ties.nnz // 2)
    del ties
    space = timed(lambda: fit(holdout, model="inner_product", d=d, rng=rng), out, "fit")
    frame = timed(lambda: space.deconvolved(rng=rng), out, "deconvolve")
    latents = timed(lambda: space.nodes(across, rng=rng), out, "nodes")
    mechanism = NodePrivate(epsilon=1.0, p=space.p)
    names = [str(node) for node in range(m)]
    noise = timed(lambda: mechanism.noise(names, seeded_rng(SEED)), out, "noise")
    private = timed(lambda: mechanism.privatise(latents, space.positions, noise, into=frame), out, "privatise")
    timed(lambda: space.draw(private, bytes(32), names), out, "draw")
    out["sum"] = sum(out[name] for name in ("fit", "deconvolve", "nodes", "noise", "privatise", "draw"))
    out["peak_mb"] = peak()
    return out


def large(nodes: int, mean_degree: float) -> dict[str, float]:
    """Drawing a large sparse network of the latent space model."""
    rng = np.random.default_rng(SEED)
    space = simulated("LSM", nodes, 3, mean_degree / nodes, rng)
    out: dict[str, float] = {}
    ties = timed(lambda: space.draw(space.positions, bytes(32)), out, "sum")
    out["mean_degree"] = ties.nnz / nodes
    out["peak_mb"] = peak()
    return out


def counted(nodes: int, density: float, times: int = 15) -> dict[str, float]:
    """Triangles of every node by us, by a sparse product and by igraph, in turn, the smallest of several."""
    rng = np.random.default_rng(SEED)
    ties = drawn(simulated("LSM", nodes, 3, density, rng), rng)
    out: dict[str, float] = {"ties": float(ties.nnz // 2)}
    graph = None
    if importlib.util.find_spec("igraph"):
        igraph = importlib.import_module("igraph")
        graph = igraph.Graph(n=nodes, edges=np.column_stack(sparse.triu(ties).nonzero()))
    seconds: dict[str, list[float]] = {"ours": [], "product": [], "igraph": []}
    for _ in range(times):
        one: dict[str, float] = {}
        mine = timed(lambda: triangles(ties), one, "ours")
        product = timed(lambda: ((ties @ ties) * ties).sum(axis=1) // 2, one, "product")
        assert (product == mine).all()
        if graph is not None:
            local = timed(lambda: np.array(graph.transitivity_local_undirected(mode="zero")), one, "igraph")
            k = degrees(ties)
            assert (np.round(local * k * (k - 1) / 2) == mine).all()
        for name, value in one.items():
            seconds[name].append(value)
    for name, values in seconds.items():
        if values:
            out[name] = min(values)
            out[f"{name}_median"] = float(np.median(values))
    if seconds["igraph"]:
        out["ratio"] = out["ours"] / out["igraph"]
    return out


def stage(name: str) -> dict[str, Any]:
    """One stage's figures."""
    release(200, 2, 0.1)
    if name == "N=4000":
        return release(record.sized(4000, 200), 3, 0.05)
    if name == "N=20000":
        return release(20_000, 3, 50 / 20_000)
    if name == "N=100000":
        return release(100_000, 3, 50 / 100_000)
    if name == "draw=100000":
        return large(100_000, 50)
    sizes = {"N=2000": (2000, 0.05), "N=4000": (4000, 0.05), "N=10000, density 0.005": (10_000, 0.005)}
    sizes["N=20000, density 0.00125"] = (20_000, 0.00125)
    sizes = record.sized(sizes, {"N=200": (200, 0.05)})
    return {size: counted(*settings) for size, settings in sizes.items()}


def main() -> None:
    """Measure the stages that are asked for, each in its own process, and save all."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(stage(sys.argv[2])))
        return
    asked = sys.argv[1:] or STAGES
    if "triangles" in asked and not record.SMALLEST and not importlib.util.find_spec("igraph"):
        sys.exit("triangles are measured beside igraph: pip install -e '.[rivals]', or name the other stages")
    path = record.RESULTS / "grand_speed.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in asked:
        if name == "exponents":
            continue
        command = [sys.executable, "-m", "tests.benchmarks.grand_speed", "--one", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        if name in BARS:
            seconds, memory = BARS[name]
            found["bar_seconds"], found["bar_mb"] = seconds, memory
            found["met"] = found["sum"] <= seconds and (memory is None or found["peak_mb"] < memory)
        results[name] = found
        print(name, found, flush=True)
        written(results)
    written(results)


def written(results: dict[str, Any]) -> None:
    """Save the stages, and what follows from them."""
    few, many = results.get("N=4000"), results.get("N=100000")
    if few and many:
        results["exponents"] = {
            name: float(np.log(many[name] / few[name]) / np.log(100_000 / 4000)) for name in ("fit", "noise", "sum")
        }
    record.write("grand_speed", results, SEED, "python -m tests.benchmarks.grand_speed")


if __name__ == "__main__":
    main()
