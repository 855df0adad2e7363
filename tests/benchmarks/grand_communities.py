"""Whether communities are found again in a released network: a stochastic block model, over ε.

python -m tests.benchmarks.grand_communities [TIMES]

TIMES (3) networks of 8000 nodes, half of them held out, in three equal communities; a released node's mean degree is
200, and ties within a community are WITHIN times as likely as between two. Spectral clustering of the released network
against the nodes' true labels, at ε in all (strict) and at the paper's ε per coordinate; chance is 1/3.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from shared.mechanisms.grand import NodePrivate, PaperModeAtPTimesEpsilon
from shared.networks import agreement, communities
from site_agent.models.latent_space import draw_pairs
from tests.benchmarks import record
from tests.benchmarks.grand_networks import estimated, halves, private

SEED, NODES, GROUPS, DEGREE, WITHIN = 714, 8000, 3, 200, 5.0
EPSILONS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
MODELS = (("inner_product", 2), ("grdpg", 3))


def one(number: int) -> dict[str, float]:
    """The shares of labels found in one network's releases."""
    rng = np.random.default_rng([SEED, number])
    label = rng.integers(0, GROUPS, NODES)
    between = DEGREE / (NODES / 2) * GROUPS / (WITHIN + GROUPS - 1)
    chance = np.where(np.eye(GROUPS, dtype=bool), WITHIN * between, between).astype(np.float32)
    ties = draw_pairs(lambda i, j: chance[label[i]][:, label[j]], NODES, rng.bytes(32))
    real, truth = halves(ties, NODES // 2)[0], label[: NODES // 2]
    out = {"original": agreement(communities(real, GROUPS, rng), truth)}
    for model, d in MODELS:
        space, latents = estimated(ties, NODES // 2, model, d, rng)
        frame = space.deconvolved()
        for kind, name in ((NodePrivate, "strict"), (PaperModeAtPTimesEpsilon, "paper")):
            for epsilon in EPSILONS:
                noisy = private(space, latents, epsilon, number, kind, frame)
                found = communities(space.draw(noisy, rng.bytes(32)), GROUPS, rng)
                out[f"{model} {name} {epsilon:g}"] = agreement(found, truth)
    return out


def main() -> None:
    """Measure, print, save."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found = [one(number) for number in range(times)]
    results: dict[str, Any] = {
        "networks": times,
        "nodes": NODES,
        "mean_degree": DEGREE,
        "within_to_between": WITHIN,
        "found": {name: float(np.mean([result[name] for result in found])) for name in found[0]},
    }
    for name, share in results["found"].items():
        print(f"{name:30s} {share:.3f}")
    print(record.write("grand_communities", results, SEED))


if __name__ == "__main__":
    main()
