"""What an attack finds of a node's ε in a released *network*, edges alone, beside what the receipt says.

python -m tests.benchmarks.grand_network_attack [RUNS]

Two worlds differ in one node's row: in one its coordinates lie below everybody's, in the other above. Its coordinates
are privatised by the plan's mechanism, and a network is drawn by the site's own code. The attacker sees the node's
edges to others whose private coordinates are known to it, and nothing else; it counts edges to two groups of them, and
learns on half of RUNS (10000) runs of each world which counts speak for the first. The other half gives a lower bound
on ε, wrong once in a million (Clopper-Pearson at 5e-7 a side). It must stay below ε, and exceed it with half the noise.

Runs are nodes of few large networks: given the others' private coordinates they are independent, and edges between two
of them are not looked at. The frames:

    two groups    the persons held out lie in two groups along each coordinate, so many of them low as the likeliest
                  event of a low node has in probability: how an attacker would wish them
    even          spread evenly
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from shared.base.randomness import Noise, seeded_rng
from shared.mechanisms.grand.noise import NodePrivate, smoothed_uniform
from site_agent.models.latent_space import LatentSpace
from tests.benchmarks import record

SEED = 717
SIDE = 5e-7
AT_ONCE = 500
EPSILON = 1.0


@dataclass(frozen=True)
class Attack:
    """What the attacker may choose: the model, the frame, and how many others it knows.

    Args:
        model: ``rdpg`` with one coordinate, or ``inner_product`` with two.
        frame: ``two groups`` or ``even``.
        others: known nodes in each of two groups.
    """

    model: str
    frame: str
    others: int = 60

    @property
    def p(self) -> int:
        """Coordinates of a node."""
        return 1 if self.model == "rdpg" else 2

    def space(self, low: float) -> LatentSpace:
        """The model, with its persons held out; of these the share `low` lies low along each coordinate."""
        rng, m = np.random.default_rng(SEED), 2000
        at = rng.random((m, self.p))
        if self.frame == "two groups":
            at = np.where(at < low, 0.02 * at / low, 0.98 + 0.02 * at)
        # Probabilities 0.05 to 0.95 of an edge to a known node; or α of -4 to 4 and Z of -3 to 3.
        spread = 0.05 + 0.9 * at if self.model == "rdpg" else (at - 0.5) * np.array([8.0, 6.0])
        return LatentSpace(model=self.model, d=1, directed=False, positions=spread)

    def known(self) -> np.ndarray:
        """(2 · others, p): what the attacker knows of the others."""
        if self.model == "rdpg":
            return np.ones((2 * self.others, 1))
        return np.column_stack([np.zeros(2 * self.others), np.repeat([1.0, -1.0], self.others)])


def counts(attack: Attack, epsilon: float, world: int, runs: int, rng: Noise) -> np.ndarray:
    """(runs, 2): edges of the node to the two groups of others, in one world.

    Args:
        world: 0, where the node lies below everybody, or 1.
        rng: of noise and edges; a source that scales its noise makes a mechanism with less of it.
    """
    mechanism = NodePrivate(epsilon=epsilon, p=attack.p)
    space = attack.space(float(smoothed_uniform(np.zeros(1), mechanism.scale)[0]))
    row = (space.positions.min(axis=0) - 1, space.positions.max(axis=0) + 1)[world]
    known, found = attack.known(), []
    for start in range(0, runs, AT_ONCE):
        n = min(AT_ONCE, runs - start)
        noise = mechanism.noise([f"{world} {start + k}" for k in range(n)], rng)
        private = mechanism.privatise(np.tile(row, (n, 1)), space.positions, noise)
        # The runs first: pairs among the known ones are drawn as well, and nobody looks at them.
        network = space.draw(np.vstack([private, known]), rng.generator.bytes(32))[:n, n:]
        found.append(
            np.column_stack([network[:, : attack.others].sum(axis=1), network[:, attack.others :].sum(axis=1)])
        )
    return np.concatenate(found)


def bound(first: np.ndarray, second: np.ndarray, most: int) -> float:
    """A lower bound on ε from (runs, 2) counts of two worlds: an event is chosen on one half, and counted on the other.

    Events: at most a edges to one group and at most b to the other.
    """
    half = len(first) // 2
    tables = [np.zeros((most + 1, most + 1)) for _ in range(2)]
    for table, part in zip(tables, (first[:half], second[:half]), strict=True):
        np.add.at(table, (part[:, 0], part[:, 1]), 1)
    hits, alarms = (table.cumsum(axis=0).cumsum(axis=1) for table in tables)
    guess = lower(hits, alarms, half)
    a, b = np.unravel_index(int(np.argmax(guess)), guess.shape)
    seen = [int(((part[half:, 0] <= a) & (part[half:, 1] <= b)).sum()) for part in (first, second)]
    return float(lower(np.array(seen[0]), np.array(seen[1]), len(first) - half))


def lower(hits: Any, alarms: Any, runs: int) -> Any:
    """Logarithm of the least that the one probability can be over the most that the other can."""
    power = stats.beta.ppf(SIDE, np.maximum(hits, 1e-9), runs - hits + 1)
    alarm = stats.beta.isf(SIDE, alarms + 1, np.maximum(runs - alarms, 1e-9))
    with np.errstate(divide="ignore"):
        return np.where(hits > 0, np.log(power) - np.log(alarm), -math.inf)


def found(attack: Attack, epsilon: float, runs: int, worlds: tuple[Noise, Noise]) -> float:
    """The attack's lower bound on ε, with noise from two sources."""
    first, second = (counts(attack, epsilon, world, runs, rng) for world, rng in enumerate(worlds))
    return bound(first, second, attack.others)


class Scaled:
    """A secure source whose noise has `factor` times the scale that is asked for: below 1, a wrong mechanism."""

    def __init__(self, seed: int, factor: float) -> None:
        self._rng, self._factor = seeded_rng(seed), factor

    @property
    def generator(self) -> np.random.Generator:
        return self._rng.generator

    def named(self, names: Any) -> Any:
        for own in self._rng.named(names):
            yield _Own(own, self._factor)


class _Own:
    def __init__(self, rng: Noise, factor: float) -> None:
        self._rng, self._factor = rng, factor

    def lattice_laplace_steps(self, scale: float, count: int, grid: float) -> np.ndarray:
        return self._rng.lattice_laplace_steps(scale * self._factor, count, grid)


def main() -> None:
    """Every attack, with the noise that is charged and with half of it."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(10_000, 20)
    results: dict[str, Any] = {"runs": runs, "epsilon": EPSILON}
    for model in ("rdpg", "inner_product"):
        for frame in ("two groups", "even"):
            attack = Attack(model, frame)
            one: dict[str, Any] = {
                noise: found(attack, EPSILON, runs, (Scaled(SEED, factor), Scaled(SEED + 1, factor)))
                for noise, factor in (("as charged", 1.0), ("half of it", 0.5))
            }
            one |= {"p": attack.p, "below": one["as charged"] <= EPSILON, "above": one["half of it"] > EPSILON}
            results[f"{model}, {frame}"] = one
            print(model, frame, one, flush=True)
            record.write("grand_network_attack", results, SEED, "python -m tests.benchmarks.grand_network_attack")


if __name__ == "__main__":
    main()
