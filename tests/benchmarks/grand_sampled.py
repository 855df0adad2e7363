"""Large hold-outs fitted by a sample of pairs, beside the fit by all of them: what is drawn, and what was held out.

python -m tests.benchmarks.grand_sampled [NETWORKS]

Networks of 20,000 persons of three kinds, half of them held out, at which both fits can be made; d = 3. Of each network
the held-out are fitted both ways, networks are drawn from the deconvolved frame, and the released are placed by their
ties to the held-out. The logarithms of figures are compared, in standard deviations of one draw (`in spreads`). The log
likelihood, per person, is that of all pairs of released persons, which no fit saw, by their placed positions; its
spread is that of networks drawn from these positions.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from scipy import sparse

from shared.mechanisms.grand.counts import MOTIFS, motifs, simple
from site_agent.models import latent_fit, latent_space
from site_agent.models.latent_space import LatentSpace
from tests.benchmarks import record
from tests.benchmarks.grand_networks import drawn, halves, simulated
from tests.benchmarks.grand_speed import timed
from tests.benchmarks.worlds.networks import WORLDS

SEED = 714
PERSONS = record.sized(20_000, 600)
KINDS = record.sized(("positions", "geometric, even", "attachment, closed"), ("positions",))
DRAWS = record.sized(4, 2)
FIGURES = ("edge", "degree_cv", "triangle", "transitivity")


def network(kind: str, rng: np.random.Generator) -> Any:
    """One network of a kind: of latent positions, with 50 ties a person, or a world that is not of the model."""
    if kind == "positions":
        return drawn(simulated("LSM", PERSONS, 3, 50 / PERSONS, rng), rng)
    world = next(one for one in WORLDS if one.name == kind)
    return sparse.csr_array(world.draw(PERSONS, rng)[0], dtype=np.int32)


def logs(ties: Any) -> Any:
    """Logarithms of the figures of a network."""
    values = motifs(simple(ties)).values
    return np.log([values[MOTIFS.index(name)] for name in FIGURES])


def likelihood(positions: Any, ties: Any) -> float:
    """Log likelihood of all pairs of a network, per person."""
    matrix = sparse.csr_array(ties, dtype=np.float64)
    return -latent_fit._deviance(matrix, positions[None], None)[0] / len(positions)


def one(kind: str, number: int, large: int) -> dict[str, Any]:
    """One network fitted, with so many held out taken for many."""
    latent_fit.LARGE = latent_space.LARGE = large
    rng = np.random.default_rng((SEED, KINDS.index(kind), number))
    inner, across, holdout = halves(network(kind, rng), PERSONS // 2)
    rng = np.random.default_rng((SEED, number))
    took: dict[str, float] = {}
    space: LatentSpace = timed(lambda: latent_fit.fit(holdout, model="inner_product", d=3, rng=rng), took, "fit")
    frame = timed(lambda: space.deconvolved(rng=rng), took, "deconvolve")
    nodes = timed(lambda: space.nodes(across, rng=rng), took, "nodes")
    networks = [space.draw(nodes, bytes([draw]) * 32) for draw in range(DRAWS)]
    return {
        "took": took,
        "figures": np.array([logs(space.draw(frame, bytes([draw]) * 32)) for draw in range(DRAWS)]),
        "likelihood": likelihood(nodes, inner),
        "likelihood_spread": float(np.std([likelihood(nodes, ties) for ties in networks], ddof=1)),
    }


def main() -> None:
    """Fit every network both ways, and save what differs beside what chance differs by."""
    networks = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    results: dict[str, Any] = {}
    for kind in KINDS:
        rows = []
        for number in range(networks):
            whole, some = (one(kind, number, large) for large in (PERSONS, PERSONS // 8))
            over = some["figures"].mean(axis=0) - whole["figures"].mean(axis=0)
            spread = np.sqrt((whole["figures"].var(axis=0, ddof=1) + some["figures"].var(axis=0, ddof=1)) / 2)
            rows.append(
                {
                    **{f"{name} over": float(over[k]) for k, name in enumerate(FIGURES)},
                    **{f"{name} spread": float(spread[k]) for k, name in enumerate(FIGURES)},
                    "likelihood over": some["likelihood"] - whole["likelihood"],
                    "likelihood spread": whole["likelihood_spread"],
                    "likelihood": whole["likelihood"],
                    "fit, all pairs": whole["took"]["fit"],
                    "fit, a sample": some["took"]["fit"],
                }
            )
            print(kind, number, {name: float(f"{value:.3g}") for name, value in rows[-1].items()}, flush=True)
        results[kind] = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        for name in (*FIGURES, "likelihood"):
            results[kind][f"{name} in spreads"] = results[kind][f"{name} over"] / results[kind][f"{name} spread"]
        results[kind]["networks"] = networks
        record.write("grand_sampled", results, SEED, "python -m tests.benchmarks.grand_sampled")


if __name__ == "__main__":
    main()
