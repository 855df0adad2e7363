r"""Samples of a large hold-out that stand for all of it: sums over pairs of nodes without going through every pair.

Both the likelihood of a logistic model and a node's own Newton step hold a sum over nodes j, of which those that are
tied to i are few, and cost little; the others are as many as there are nodes:

.. math:: \ell_i = \sum_{j : y_{ij} = 1} \bigl( t_{ij} - \log(1 + e^{t_{ij}}) \bigr)
                 - \sum_{j : y_{ij} = 0} \log(1 + e^{t_{ij}})

The case-control likelihood keeps the first sum, and takes the second over a stratified sample of the nodes that are
not tied (*controls*), each with the weight of those it stands for: one over the probability that it is drawn. The sum
is then right on average over samples, and so are its gradients.

Here a stratum is c nodes whose coordinates are alike, neighbours in the order of a k-d tree, and a sample has one node
of each, drawn evenly: every node is in it with probability 1/c, and its weight is c (for a node's own step, and for
errors, nodes over sample, which is c but for a stratum that is not full). Because strata are made of
coordinates, a sample misses by what nodes differ within a stratum alone: a small room in which everybody knows
everybody is in it with its share of persons, and not by luck.

*What a guarantee asks.* A sample is made of the coordinates of hold-out nodes and of a generator that is passed in,
before any tie of a released node is looked at, and is one and the same for all released nodes. Given hold-out and
sample, a released node's coordinates are still a function of that node's own ties to hold-out nodes, and of nothing of
other released nodes. The proof in `shared.mechanisms.grand.noise` takes no more of them than that: ranks lie in [0, 1]
whatever the function, so that the price holds given each sample, and therefore over all.

Source: Raftery, Niu, Hoff & Yeung (2012), Fast inference for the latent space network model using a case-control
approximate likelihood; their strata are of path lengths, which would take all pairs to find.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

__all__ = ["LARGE", "NodeStrata", "controls_of", "reaches"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]
Offsets = NDArray[np.uint16]

LARGE = 10_000
"""Hold-out nodes up to which every pair is gone through, and nothing is drawn at random."""
_CONTROLS, _PER_TIE = 4096, 64
"""Other nodes that a node meets in a larger hold-out: at least, and for each that it is tied to. With r controls for
each case the variance is (1 + 1/r) times what all controls would leave, more where cases are unevenly spread."""


def controls_of(degree: float) -> int:
    """Other nodes that a node of a larger hold-out meets, where nodes have so many ties on average.

    >>> controls_of(25.0), controls_of(500.0)
    (4096, 32000)
    """
    return max(_CONTROLS, math.ceil(_PER_TIE * degree))


class NodeStrata:
    """Nodes in strata of c that are alike; the last one may have fewer.

    Args:
        coordinates: (m, k) by which nodes are alike.
        size: nodes of a sample, at least 1; c is how often they go into m.

    >>> strata = NodeStrata(np.arange(12.0)[:, None], 4)
    >>> strata.c, (strata.draw(np.random.default_rng(1)) // 3).tolist()
    (3, [0, 1, 2, 3])
    """

    def __init__(self, coordinates: Array, size: int) -> None:
        m = len(coordinates)
        self.c = max(1, min(m // size, np.iinfo(np.uint16).max))
        self._order = cKDTree(coordinates, leafsize=1).indices.astype(np.int64)
        self._place = np.empty(m, np.int64)
        self._place[self._order] = np.arange(m)

    def offsets(self, rng: np.random.Generator, times: int) -> Offsets:
        """(times, strata) so many samples, each by which node of every stratum is in it."""
        return rng.integers(0, self.c, (times, -(-len(self._order) // self.c)), dtype=np.uint16)

    def sample(self, offsets: Offsets) -> Places:
        """The nodes of one sample."""
        at = np.arange(len(offsets)) * self.c + offsets
        # Of a stratum that is not full, with the probability that it is due.
        return self._order[at[at < len(self._order)]]

    def draw(self, rng: np.random.Generator) -> Places:
        """One sample."""
        return self.sample(self.offsets(rng, 1)[0])

    def has(self, offsets: Offsets, number: Places, nodes: Places) -> NDArray[np.bool_]:
        """Whether each node is in the sample of that number."""
        stratum, slot = np.divmod(self._place[nodes], self.c)
        return np.asarray(offsets[number, stratum] == slot)


def reaches(own: Array, other: Array) -> Array:
    """(m, d + 1) intercepts and positions in units of what they change logits by: `other` is what they are met with."""
    return np.column_stack([own[:, 0], own[:, 1:] * np.sqrt((other[:, 1:] ** 2).mean(axis=0))])
