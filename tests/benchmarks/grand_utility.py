"""How far a released network's node statistics are from the real one's: the paper's Figure 8, with three comparators.

python -m tests.benchmarks.grand_utility [NETWORKS] [NODES] [DENSITY] [SCRATCH]
python -m tests.benchmarks.grand_utility --grid [NETWORKS] [NODES:DENSITY ...]

NETWORKS (10) networks of NODES (4000) nodes, half of them held out, at DENSITY (0.05), for both models and d = 3, 6.
SCRATCH is a folder for partial results: a run that was stopped goes on from there. ``--grid`` is the paper's Appendix
I: NETWORKS (10) networks of each size and density there (all by default), saved as each is done, beside those that
stand in the file already. Mean 1-Wasserstein distances of

    hat            a network drawn from the hold-out fit against the hold-out network (no privacy)
    refit          one drawn from the released nodes' own estimates against their network (no privacy)
    grand          the release at ε in all, Lap(p/ε) on each coordinate
    paper_mode     the release at pε in all, as the paper prints it, ε = 1
    laplace        the estimates plus Lap(max|Z| p/ε): no guarantee, as its scale is taken from the data; a straw man
    undeconvolved  the release at ε = 1 placed in the raw frame, as the paper has it
    synthetic      one drawn from hold-out positions (deconvolved) resampled with replacement: costs no released node
    sampling       the hold-out network against the released nodes' one: two samples of nodes
    floor          a second draw of the true probabilities against the first
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from shared.mechanisms.grand.counts import STATISTICS, compare, node_statistics
from tests.benchmarks import record
from tests.benchmarks.grand_networks import FAMILIES, drawn, estimated, halves, private, resumed, simulated
from tests.benchmarks.paper.bounds import PaperModeAtPTimesEpsilon

SEED = 711
GRID = ("4000:0.025", "4000:0.1", "8000:0.025", "8000:0.1")
"""Appendix I: n = m = 2000 or 4000, at two densities; half of the nodes are held out."""
EPSILONS = (1.0, 2.0, 5.0, 10.0)
PAPER = {
    # Columns: hat, then GRAND at ε = 1, 2, 5, 10, then Laplace at the same; the paper's Figure 8 and Appendix I.
    "degree LSM 3": (0.017, (0.050, 0.047, 0.036, 0.030), (2.334, 2.264, 1.924, 1.300)),
    "degree LSM 6": (0.019, (0.051, 0.046, 0.038, 0.033), (2.347, 2.332, 2.227, 1.928)),
    "degree RDPG 3": (0.017, (0.031, 0.030, 0.028, 0.028), (2.037, 1.408, 0.554, 0.508)),
    "degree RDPG 6": (0.018, (0.025, 0.024, 0.023, 0.023), (2.269, 2.082, 1.179, 0.524)),
    "v_shape LSM 3": (0.034, (0.102, 0.097, 0.074, 0.061), (4.700, 4.559, 3.877, 2.624)),
    "triangle LSM 3": (0.029, (0.132, 0.126, 0.100, 0.090), (6.768, 6.622, 5.899, 4.449)),
    "triangle LSM 6": (0.034, (0.102, 0.092, 0.085, 0.084), (6.781, 6.750, 6.531, 5.890)),
    "triangle RDPG 3": (0.037, (0.078, 0.076, 0.066, 0.058), (6.530, 5.105, 2.135, 1.373)),
    "eigenvector LSM 3": (0.010, (0.041, 0.040, 0.041, 0.039), (0.250, 0.199, 0.108, 0.048)),
    "harmonic LSM 3": (3.62, (6.63, 6.34, 4.68, 3.38), (453.0, 428.0, 319.0, 171.0)),
    "harmonic RDPG 3": (1.63, (3.13, 2.99, 2.87, 2.89), (333.0, 169.0, 76.0, 81.0)),
}
BARS = {
    "LSM 3": dict(zip(STATISTICS, (0.05, 0.10, 0.14, 0.045, 6.6), strict=True)),
    "RDPG 3": dict(zip(STATISTICS, (0.035, 0.07, 0.09, 0.05, 3.5), strict=True)),
    "LSM 6": {"triangle": 0.14},
}


def one(family: str, d: int, number: int, nodes: int, density: float) -> dict[str, dict[str, float]]:
    """Distances of every arm for one simulated network."""
    rng = np.random.default_rng([SEED, number, d, family == "RDPG", nodes])
    truth = simulated(family, nodes, d, density, rng)
    ties = drawn(truth, rng)
    real, _, holdout = halves(ties, nodes // 2)
    space, latents = estimated(ties, nodes // 2, FAMILIES[family], d, rng)
    n = len(latents)
    frame = space.deconvolved()
    released, held = node_statistics(real), node_statistics(holdout)

    def arm(coordinates: np.ndarray, against: dict[str, np.ndarray] = released) -> dict[str, float]:
        return compare(node_statistics(space.draw(coordinates, rng.bytes(32))), against)

    out = {
        "hat": arm(space.positions, held),
        "refit": arm(latents),
        "synthetic": arm(frame[rng.integers(0, space.m, n)]),
        "sampling": compare(held, released),
        "floor": compare(node_statistics(truth.draw(truth.positions[:n], rng.bytes(32))), released),
    }
    seed = 100 * number + d
    for epsilon in EPSILONS:
        out[f"grand {epsilon:g}"] = arm(private(space, latents, epsilon, seed, placed=frame))
        noise = rng.laplace(0, 1, latents.shape) * np.abs(latents).max(axis=0) * space.p / epsilon
        out[f"laplace {epsilon:g}"] = arm(latents + noise)
    out["paper_mode 1"] = arm(private(space, latents, 1.0, seed, PaperModeAtPTimesEpsilon, frame))
    out["undeconvolved 1"] = arm(private(space, latents, 1.0, seed, placed=space.positions))
    return out


Table = dict[str, dict[str, dict[str, float]]]


def measured(networks: int, nodes: int, density: float, scratch: Path) -> Table:
    """Mean and standard error of every arm's distance, by statistic, family and dimension."""
    kinds = [(family, d) for family in FAMILIES for d in (3, 6)]
    tasks = [[family, d, number, nodes, density] for number in range(networks) for family, d in kinds]
    found = resumed(scratch / "grand_utility.jsonl", tasks, lambda task: one(*task))
    table: Table = {}
    for family, d in kinds:
        mine = [result for task, result in zip(tasks, found, strict=True) if task[:2] == [family, d]]
        for statistic in STATISTICS:
            values = {arm: np.array([result[arm][statistic] for result in mine]) for arm in mine[0]}
            table[f"{statistic} {family} {d}"] = {
                arm: {"mean": float(v.mean()), "se": float(v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else 0.0}
                for arm, v in values.items()
            }
    arms = list(next(iter(table.values())))
    print(f"{'':20s}" + "".join(f"{arm:>16s}" for arm in arms))
    for name, row in table.items():
        print(f"{name:20s}" + "".join(f"{row[arm]['mean']:16.3f}" for arm in arms), flush=True)
    return table


def grid(networks: int, chosen: list[str]) -> None:
    """Appendix I's sizes and densities, each saved when it is done."""
    path = record.RESULTS / "grand_utility_grid.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for which in chosen or GRID:
        nodes, density = int(which.partition(":")[0]), float(which.partition(":")[2])
        table = measured(networks, nodes, density, Path(tempfile.mkdtemp()))
        settings = {"networks": networks, "released": nodes // 2, "held_out": nodes // 2, "density": density}
        results[f"n={nodes // 2}, density {density:g}"] = {"settings": settings, "table": table}
        command = f"python -m tests.benchmarks.grand_utility --grid {networks}"
        print(record.write("grand_utility_grid", results, SEED, command), flush=True)


def main() -> None:
    """Run what is missing, print the table beside the paper's, save it."""
    if sys.argv[1:2] == ["--grid"]:
        grid(int(sys.argv[2]) if len(sys.argv) > 2 else 10, sys.argv[3:])
        return
    networks, nodes = (int(value) for value in (sys.argv[1:] + ["10", "4000"][len(sys.argv) - 1 :])[:2])
    density = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
    table = measured(networks, nodes, density, Path(sys.argv[4] if len(sys.argv) > 4 else tempfile.mkdtemp()))
    bars = {
        f"{statistic} {kind}": {
            "bar": bar,
            "mean": table[f"{statistic} {kind}"]["grand 1"]["mean"],
            "met": table[f"{statistic} {kind}"]["grand 1"]["mean"] <= bar,
        }
        for kind, figures in BARS.items()
        for statistic, bar in figures.items()
    }
    for name, bar in bars.items():
        print(f"{name:20s} {bar['mean']:.3f} against {bar['bar']}: {'met' if bar['met'] else 'NOT met'}")
    name = "grand_utility" if (nodes, density) == (4000, 0.05) else f"grand_utility_{nodes}_{density:g}"
    settings = {"networks": networks, "nodes": nodes, "held_out": nodes // 2, "density": density}
    # The scratch folder is no part of the command that measures it again.
    command = f"python -m tests.benchmarks.grand_utility {networks} {nodes} {density:g}"
    results = {"settings": settings, "table": table, "paper_figure_8": PAPER, "bars_at_epsilon_1": bars}
    print(record.write(name, results, SEED, command))


if __name__ == "__main__":
    main()
