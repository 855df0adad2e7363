"""Worlds of networks: who is connected with whom by four kinds of laws, each person of one of three wards.

The even ones are for choosing settings, the odd ones for reporting (:func:`half`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import cKDTree

from shared.mechanisms.grand.counts import simple

__all__ = ["WORLDS", "World", "half"]

Codes = NDArray[np.int64]
WARDS = 3


@dataclass(frozen=True, kw_only=True)
class World:
    """A law of networks.

    Args:
        most: the cap that somebody would plan who knows that kind of network, and not this one: a round number.
        law: (persons, generator) to pairs of places, repetitions and loops allowed, and everybody's ward.
    """

    name: str
    kind: Literal["block", "attachment", "small world", "geometric"]
    most: int
    law: Callable[[int, np.random.Generator], tuple[Codes, Codes]]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Any, Codes]:
        """An (n, n) network and the ward of each person; places mean nothing."""
        pairs, ward = self.law(n, rng)
        place = rng.permutation(n)
        ties = sparse.csr_array((np.ones(len(pairs), np.int8), (place[pairs[:, 0]], place[pairs[:, 1]])), shape=(n, n))
        shuffled = np.empty(n, dtype=np.int64)
        shuffled[place] = ward
        return simple(ties), shuffled


def _block(mean: float, within: float, spread: float) -> Callable[[int, np.random.Generator], tuple[Codes, Codes]]:
    """Edges at random, `within` times as likely in a ward as between two; persons differ by a log-normal factor."""

    def law(n: int, rng: np.random.Generator) -> tuple[Codes, Codes]:
        ward = rng.integers(0, WARDS, n)
        busy = np.exp(spread * rng.standard_normal(n))
        low, high = np.triu_indices(n, k=1)
        chance = busy[low] * busy[high] * np.where(ward[low] == ward[high], within, 1.0)
        chance *= mean * n / 2 / chance.sum()
        met = rng.random(len(low)) < chance
        return np.column_stack([low[met], high[met]]), ward

    return law


def _attachment(each: int, closing: float) -> Callable[[int, np.random.Generator], tuple[Codes, Codes]]:
    """Everybody new meets `each` others in proportion to their edges, or with `closing` one whom the last one knows."""

    def law(n: int, rng: np.random.Generator) -> tuple[Codes, Codes]:
        ends: list[int] = list(range(each + 1))
        near: list[list[int]] = [[] for _ in range(n)]
        pairs = []
        for person in range(each + 1, n):
            last = -1
            for _ in range(each):
                known = near[last] if last >= 0 and rng.random() < closing else ends
                last = known[int(rng.integers(len(known)))]
                if last != person and last not in near[person]:
                    pairs.append((person, last))
                    near[person].append(last)
                    near[last].append(person)
                    ends += [person, last]
        found = np.array(pairs, dtype=np.int64)
        # Wards follow who came first, so that they have something to do with the edges.
        return found, np.minimum(rng.integers(0, WARDS, n), np.arange(n) * WARDS // n)

    return law


def _small_world(each: int, rewired: float) -> Callable[[int, np.random.Generator], tuple[Codes, Codes]]:
    """A ring on which everybody knows `each` on either side, with a share of the edges to somebody at random."""

    def law(n: int, rng: np.random.Generator) -> tuple[Codes, Codes]:
        start = np.repeat(np.arange(n), each)
        end = (start + np.tile(np.arange(1, each + 1), n)) % n
        end = np.where(rng.random(len(end)) < rewired, rng.integers(0, n, len(end)), end)
        return np.column_stack([start, end]), np.arange(n) * WARDS // n

    return law


def _geometric(mean: float, dense: float) -> Callable[[int, np.random.Generator], tuple[Codes, Codes]]:
    """Whoever is near is known, on a square where a share `dense` of the persons lie in a ninth of it."""

    def law(n: int, rng: np.random.Generator) -> tuple[Codes, Codes]:
        at = rng.random((n, 2))
        at[rng.random(n) < dense] /= 3
        pairs = cKDTree(at).query_pairs(np.sqrt(mean / (np.pi * n)), output_type="ndarray")
        return pairs.astype(np.int64), np.minimum(at[:, 0] * WARDS, WARDS - 1).astype(np.int64)

    return law


WORLDS = (
    World(name="block, even", kind="block", most=60, law=_block(20, 3, 0.0)),
    World(name="block, uneven", kind="block", most=150, law=_block(30, 6, 0.5)),
    World(name="attachment, plain", kind="attachment", most=150, law=_attachment(8, 0.0)),
    World(name="attachment, closed", kind="attachment", most=150, law=_attachment(6, 0.8)),
    World(name="small world, ordered", kind="small world", most=40, law=_small_world(8, 0.1)),
    World(name="small world, random", kind="small world", most=60, law=_small_world(12, 0.4)),
    World(name="geometric, even", kind="geometric", most=50, law=_geometric(16, 0.0)),
    World(name="geometric, crowded", kind="geometric", most=150, law=_geometric(16, 0.2)),
    World(name="block, many levels apart", kind="block", most=40, law=_block(10, 12, 0.3)),
    World(name="block, hubs", kind="block", most=150, law=_block(25, 2, 0.9)),
    World(name="attachment, dense", kind="attachment", most=250, law=_attachment(15, 0.3)),
    World(name="attachment, sparse", kind="attachment", most=60, law=_attachment(4, 0.9)),
    World(name="small world, tight", kind="small world", most=40, law=_small_world(5, 0.03)),
    World(name="small world, wide", kind="small world", most=80, law=_small_world(20, 0.2)),
    World(name="geometric, sparse", kind="geometric", most=30, law=_geometric(9, 0.0)),
    World(name="geometric, town", kind="geometric", most=200, law=_geometric(20, 0.3)),
)


def half(which: Literal["choosing", "reporting"]) -> tuple[World, ...]:
    """The worlds that settings were chosen on, or those that are reported.

    >>> [len(half(which)) for which in ("choosing", "reporting")]
    [8, 8]
    """
    return WORLDS[::2] if which == "choosing" else WORLDS[1::2]
