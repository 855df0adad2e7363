"""Whether communities are found again in a released network: a stochastic block model, over ε.

python -m tests.benchmarks.grand_communities [TIMES] [SCRATCH]

TIMES (3) networks of 8000 nodes, half of them held out, in three equal communities; a released node's mean degree is
200, and ties within a community are WITHIN times as likely as between two. Spectral clustering of the released network
against the nodes' true labels; chance is 1/3. At ε in all,

    label SHARE    the node's community is told first, by randomised response at that share of ε, and its coordinates
                   within it (`communities = 3` in a plan; a half is its default)
    strict         coordinates alone (a plan without `communities`)
    paper          coordinates alone, at the paper's ε for *each* of them

The curve over ε stands beside the JSON as an SVG. SCRATCH is a folder for partial results.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.clusters import communities as clustered
from shared.mechanisms.grand.labels import LEAST_OF_A_LABEL, LabelPrivate, parted
from shared.mechanisms.grand.noise import Labelled, NodePrivate
from site_agent.models.latent_space import LatentSpace, communities, draw_pairs
from tests.benchmarks import record
from tests.benchmarks.grand_networks import estimated, halves, private, resumed
from tests.benchmarks.paper.bounds import PaperModeAtPTimesEpsilon
from tests.stage.mechanisms.networks import agreement

SEED, GROUPS, WITHIN = 714, 3, 5.0
NODES, DEGREE = record.sized((8000, 200), (400, 40))
EPSILONS = record.sized((1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0), (2.0, 10.0))
SHARES, SHARED = (0.25, 0.5, 0.75), (2.0, 5.0, 10.0)
MODELS = (("inner_product", 2), ("grdpg", 3))
TITLES = {"inner_product": "Inner product", "grdpg": "Generalised random dot product"}


def labelled(space: LatentSpace, latents: Any, frame: Any, epsilon: float, share: float, number: int) -> Any:
    """(n, p) private coordinates, the community told first at `share` of ε."""
    first, rest = parted(epsilon, share)
    places = communities(space, GROUPS, np.random.default_rng(number), least=LEAST_OF_A_LABEL)
    own, held = places.of(latents), places.of(space.positions)
    names = [str(node) for node in range(len(latents))]
    told = LabelPrivate(epsilon=first, counts=tuple(np.bincount(held))).release(own, names, seeded_rng(number))
    mechanism = NodePrivate(epsilon=rest, p=space.p)
    noise = seeded_rng(number + 1).lattice_laplace_steps(mechanism.scale, latents.shape, 2.0**-20) * 2.0**-20
    return mechanism.privatise(latents, space.positions, noise, frame, Labelled(reference=held, own=own, released=told))


def one(number: int) -> dict[str, float]:
    """The shares of labels found in one network's releases."""
    rng = np.random.default_rng([SEED, number])
    label = rng.integers(0, GROUPS, NODES)
    between = DEGREE / (NODES / 2) * GROUPS / (WITHIN + GROUPS - 1)
    chance = np.where(np.eye(GROUPS, dtype=bool), WITHIN * between, between).astype(np.float32)
    ties = draw_pairs(lambda i, j: chance[label[i]][:, label[j]], NODES, rng.bytes(32))
    real, truth = halves(ties, NODES // 2)[0], label[: NODES // 2]
    out = {"original": agreement(clustered(real, GROUPS, rng), truth)}
    for model, d in MODELS:
        space, latents = estimated(ties, NODES // 2, model, d, rng)
        frame = space.deconvolved()

        def found(noisy: Any, space: LatentSpace = space) -> float:
            return agreement(clustered(space.draw(noisy, rng.bytes(32)), GROUPS, rng), truth)

        for epsilon in EPSILONS:
            for share in SHARES:
                if share == 0.5 or epsilon in SHARED:
                    noisy = labelled(space, latents, frame, epsilon, share, number)
                    out[f"{model} label {share:g} {epsilon:g}"] = found(noisy)
            for kind, name in ((NodePrivate, "strict"), (PaperModeAtPTimesEpsilon, "paper")):
                noisy = private(space, latents, epsilon, number, kind, frame)
                out[f"{model} {name} {epsilon:g}"] = found(noisy)
    return out


def drawn(results: dict[str, Any]) -> Path:
    """The shares of labels found again over ε, beside the JSON."""
    from tests.benchmarks.lni_repeat import NONE, OURS, PAPER, finish, sheet

    made, panels = sheet(1, 2, 9.5, 3.9)
    shown = (("label 0.5", OURS, "-", "community told first"), ("strict", NONE, "-", "coordinates alone"))
    for axes, (model, d) in zip(panels[0], MODELS, strict=True):
        for name, colour, style, said in (*shown, ("paper", PAPER, ":", "coordinates alone, ε for each of them")):
            shares = [results["found"][f"{model} {name} {epsilon:g}"] for epsilon in EPSILONS]
            axes.plot(EPSILONS, shares, color=colour, linestyle=style, marker="o", markersize=3, label=said)
        axes.axhline(1 / GROUPS, color=PAPER, linestyle="--", linewidth=0.8)
        axes.plot([10], [0.9], color=OURS, marker="_", markersize=14, linestyle="none", label="asked at ε = 10")
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
        axes.set(xlabel="ε of a person in all", ylabel="labels found again", ylim=(0.0, 1.02))
        axes.set_title(f"{TITLES[model]}, d = {d}", loc="left", weight="bold")
        axes.legend(loc="lower right")
    return finish(
        made,
        "grand_communities",
        "Three communities in a released network",
        f"Spectral clustering of {results['networks']} released networks of {NODES // 2:,} persons.",
        "Dashed: chance. Dotted: the paper's price, ε for each coordinate, so that a person pays d or d + 1 times ε.",
        rect=(0, 0.04, 1, 1),
    )


def main() -> None:
    """Measure what is missing, print, save, draw."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(3, 1)
    scratch = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    found = resumed(scratch / "grand_communities.jsonl", range(times), one)
    results: dict[str, Any] = {
        "networks": times,
        "nodes": NODES,
        "mean_degree": DEGREE,
        "within_to_between": WITHIN,
        "found": {name: float(np.mean([result[name] for result in found])) for name in found[0]},
        "least": {name: float(np.min([result[name] for result in found])) for name in found[0]},
    }
    for name, share in results["found"].items():
        print(f"{name:30s} {share:.3f}")
    print(record.write("grand_communities", results, SEED, f"python -m tests.benchmarks.grand_communities {times}"))
    print(drawn(results))


if __name__ == "__main__":
    main()
