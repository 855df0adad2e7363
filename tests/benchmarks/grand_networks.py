"""The paper's two families of simulated networks, and the steps of a release that the benchmarks of GRAND share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.noise import NodePrivate
from site_agent.models.latent_fit import fit
from site_agent.models.latent_space import LatentSpace

FAMILIES = {"LSM": "inner_product", "RDPG": "rdpg"}


def simulated(
    family: str, nodes: int, d: int, density: float, rng: np.random.Generator, groups: int = 3
) -> LatentSpace:
    """True positions of `nodes` nodes: truncated Gaussians around three centres with uniform α, or uniform positions.

    As in section 6 of the paper: the positions are scaled so that ‖ZᵀZ‖ = N and the α are shifted together (LSM), or
    the positions are scaled (RDPG), until the expected density is `density`.
    """
    if family == "RDPG":
        z = rng.random((nodes, d))
        z *= np.sqrt(density * nodes**2 / (z.sum(axis=0) ** 2).sum())
        return LatentSpace(model="rdpg", d=d, directed=False, positions=z)
    noise = rng.standard_normal((4 * nodes, d))
    centres = rng.uniform(-1, 1, (groups, d))
    kept = noise[(np.abs(noise) <= 2).all(axis=1)]
    while len(kept) < nodes:
        noise = rng.standard_normal((4 * nodes, d))
        kept = np.vstack([kept, noise[(np.abs(noise) <= 2).all(axis=1)]])
    z = centres[rng.integers(0, groups, nodes)] + kept[:nodes]
    z -= z.mean(axis=0)
    z *= np.sqrt(nodes / np.linalg.norm(z.T @ z))
    alpha = -rng.uniform(0.5, 1.5, nodes)
    some = rng.permutation(nodes)[:1500]
    logit = alpha[some][:, None] + alpha[some] + z[some] @ z[some].T
    shift = 0.0
    for _ in range(12):
        shift += np.log(density / (1 / (1 + np.exp(-logit - shift))).mean())
    return LatentSpace(model="inner_product", d=d, directed=False, positions=np.column_stack([alpha + shift / 2, z]))


def drawn(space: LatentSpace, rng: np.random.Generator) -> Any:
    """A network of a model's own nodes."""
    return space.draw(space.positions, rng.bytes(32))


def halves(ties: Any, m: int) -> tuple[Any, Any, Any]:
    """A¹¹, A¹² and A²² of a network whose last m nodes are held out: which is random, for nodes come in no order."""
    n = ties.shape[0] - m
    return ties[:n][:, :n], ties[:n][:, n:], ties[n:][:, n:]


def estimated(ties: Any, m: int, model: str, d: int, rng: np.random.Generator) -> tuple[LatentSpace, Any]:
    """The hold-out fit and the released nodes' coordinates."""
    _, across, holdout = halves(ties, m)
    space = fit(holdout, model=model, d=d, rng=rng)
    return space, space.nodes(across)


def private(
    space: LatentSpace,
    latents: Any,
    epsilon: float,
    seed: int,
    kind: type[NodePrivate] = NodePrivate,
    placed: Any = None,
) -> Any:
    """(n, p) private coordinates at `epsilon`, placed in the deconvolved frame, or the one given."""
    mechanism = kind(epsilon=epsilon, p=space.p)
    # One stream for all nodes: the law is that of a substream for each, at a hundredth of the time.
    noise = seeded_rng(seed).lattice_laplace_steps(mechanism.scale, latents.shape, 2.0**-20) * 2.0**-20
    return mechanism.privatise(latents, space.positions, noise, into=space.deconvolved() if placed is None else placed)


def resumed(path: Path, tasks: Iterable[Any], work: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of `work` for each task, one line of a file each: what stands there already is not done again."""
    done: dict[str, dict[str, Any]] = {}
    if path.exists():
        done = {entry["task"]: entry["result"] for entry in map(json.loads, path.read_text().splitlines())}
    path.parent.mkdir(parents=True, exist_ok=True)
    out = []
    for task in tasks:
        name = json.dumps(task)
        if name not in done:
            done[name] = work(task)
            with path.open("a") as file:
                file.write(json.dumps({"task": name, "result": done[name]}) + "\n")
        out.append(done[name])
    return out
