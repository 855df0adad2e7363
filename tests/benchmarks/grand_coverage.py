"""Whether intervals for a log triangle density hold the truth: five sites' released networks, pooled.

python -m tests.benchmarks.grand_coverage [TIMES] [SCRATCH] [sparse]

TIMES (200) studies of five sites, each with a network of 800 nodes of one law (the paper's latent space model, d = 2,
density 0.1), half of them held out; each releases at ε = 1 in all. Pooled are log densities with the node jackknife's
variance times (1 + n/m), as a common effect and as `pool` does by default; beside it the same without the factor, the
same for the networks as they were, and single sites. The truth is the law's, from 4 million quadruples of nodes.
SCRATCH is a folder for partial results: a run that was stopped goes on from there. `sparse` asks it of networks as
sparse as the demo's: 1000 nodes, mean degree 24, ε = 4, where positions are hard to learn.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from coordinator.pooling.pool import pool
from shared.mechanisms.grand.counts import MOTIFS, motifs
from site_agent.models.latent_space import LatentSpace
from tests.benchmarks import record
from tests.benchmarks.grand_networks import drawn, estimated, halves, private, resumed

SPARSE = sys.argv[3:] == ["sparse"]
NAME = "grand_coverage_sparse" if SPARSE else "grand_coverage"
SEED, SITES, D = 712, 5, 2
N, M, DENSITY, EPSILON = (500, 500, 0.024, 4.0) if SPARSE else (400, 400, 0.1, 1.0)
N, M = record.sized((N, M), (120, 120))
CENTRES = np.random.default_rng(SEED).uniform(-1, 1, (3, D))
ARMS = ("original", "released")


def law(nodes: int, shift: float, rng: np.random.Generator) -> LatentSpace:
    """Independent nodes of the one law that all sites share: nothing is centred or scaled by the sample."""
    noise = rng.standard_normal((2 * nodes + 100, D))
    noise = noise[(np.abs(noise) <= 2).all(axis=1)][:nodes]
    z = 0.8 * (CENTRES[rng.integers(0, 3, nodes)] - CENTRES.mean(axis=0) + noise)
    alpha = -rng.uniform(0.5, 1.5, nodes) + shift / 2
    return LatentSpace(model="inner_product", d=D, directed=False, positions=np.column_stack([alpha, z]))


def truth() -> tuple[float, np.ndarray]:
    """The α's shift that gives DENSITY, and the law's (5,) edge, V, triangle and 3-star densities and transitivity."""
    rng = np.random.default_rng(SEED + 1)
    space = law(record.sized(3000, 500), 0.0, rng)
    p = space.probabilities(space.positions, space.positions)
    logit, shift = np.log(p / (1 - p)), 0.0
    for _ in range(30):
        shift += np.log(DENSITY / (1 / (1 + np.exp(-logit - shift))).mean())
    # Independent quadruples of nodes: a law's densities need no network.
    total, rounds = np.zeros(4), record.sized(40, 1)
    for _ in range(rounds):
        z = [law(record.sized(100_000, 1000), shift, rng).positions for _ in range(4)]
        tie = {
            (i, j): 1 / (1 + np.exp(-z[i][:, 0] - z[j][:, 0] - (z[i][:, 1:] * z[j][:, 1:]).sum(axis=1)))
            for i, j in ((0, 1), (0, 2), (0, 3), (1, 2))
        }
        path = tie[0, 1] * tie[0, 2]
        total += [one.mean() for one in (tie[0, 1], path, path * tie[1, 2], path * tie[0, 3])]
    edge, v, triangle, star = total / rounds
    return shift, np.array([edge, v, triangle, star, triangle / v])


def study(number: int, shift: float) -> dict[str, Any]:
    """Log densities and their variances, (sites, motifs), of the networks and of what is released of them."""
    out: dict[str, Any] = {arm: {"yi": [], "vi": []} for arm in ARMS}
    for site in range(SITES):
        rng = np.random.default_rng([SEED, number, site])
        ties = drawn(law(N + M, shift, rng), rng)
        space, latents = estimated(ties, M, "inner_product", D, rng)
        release = space.draw(private(space, latents, EPSILON, SITES * number + site), rng.bytes(32))
        for arm, found in (("original", motifs(halves(ties, M)[0])), ("released", motifs(release, reference_size=M))):
            moments = [found.log(name) for name in MOTIFS[:5]]
            out[arm]["yi"].append([moment.yi for moment in moments])
            out[arm]["vi"].append([moment.vi for moment in moments])
    return out


def covered(yi: np.ndarray, vi: np.ndarray, true: float) -> dict[str, float]:
    """Coverage of 95 % intervals of (studies, sites) estimates, pooled as a common effect."""
    weight = 1 / vi
    mean, se = (weight * yi).sum(axis=1) / weight.sum(axis=1), np.sqrt(1 / weight.sum(axis=1))
    return {
        "coverage": float((np.abs(mean - true) <= 1.959964 * se).mean()),
        "bias": float(mean.mean() - true),
        "sd": float(mean.std(ddof=1)),
        "mean_se": float(se.mean()),
    }


def main() -> None:
    """Run what is missing, print, save."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(200, 2)
    scratch = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    shift, densities = truth()
    found = resumed(scratch / f"{NAME}.jsonl", list(range(times)), lambda number: study(number, shift))
    results: dict[str, Any] = {"studies": times, "sites": SITES, "n": N, "m": M, "epsilon": EPSILON, "d": D}
    results["truth"] = dict(zip(MOTIFS[:5], densities.tolist(), strict=True))
    for at, name in enumerate(MOTIFS[:5]):
        true = float(np.log(densities[at]))
        here = results[name] = {}
        for arm in ARMS:
            yi, vi = (np.array([result[arm][part] for result in found])[:, :, at] for part in ("yi", "vi"))
            here[f"{arm}, pooled"] = covered(yi, vi, true)
            here[f"{arm}, one site"] = covered(yi.reshape(-1, 1), vi.reshape(-1, 1), true)
            if arm == "released":
                here["released, pooled, without the factor"] = covered(yi, vi / (1 + N / M), true)
                here["released, one site, without the factor"] = covered(
                    yi.reshape(-1, 1), vi.reshape(-1, 1) / (1 + N / M), true
                )
                intervals = [pool(y, v) for y, v in zip(yi, vi, strict=True)]
                inside = [one.ci_lb <= true <= one.ci_ub for one in intervals]
                here["released, pooled by default"] = {"coverage": float(np.mean(inside))}
        for arm, row in here.items():
            print(f"{name:14s}{arm:42s}" + "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    command = f"python -m tests.benchmarks.grand_coverage {times}" + (" SCRATCH sparse" if SPARSE else "")
    print(record.write(NAME, results, SEED, command))


if __name__ == "__main__":
    main()
