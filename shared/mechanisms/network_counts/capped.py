r"""Counts of a network that one person, with all edges, moves by a known amount: Lipschitz extensions.

A person may know everybody, so that no count of a network has a bounded sensitivity by itself. Leaving out whoever has
more than D edges does not help: one more person can carry all others across D, and the count falls by as many as there
are (Kasiviswanathan, Nissim, Raskhodnikova & Smith 2013, section 4, bound such a truncation by its *smooth* sensitivity
alone). Here a count is replaced by one that equals it wherever nobody exceeds a cap that the plan fixes, and moves by
at most the cap *between any two networks* that differ in one person.

Two networks G and G' on the same n persons are neighbours if they differ in the edges and the attributes of one person
v; G − v is the network in which v has no edge.

**Edges kept in an order** (:func:`kept_degrees`). The pairs of places have a public order, and chance gives persons
their places. (Not the table: where it is sorted by what it holds, one person who changes moves others.) Going through
the edges in it, one is kept if both ends have fewer than D kept ones. (Day, Li & Lyu 2016, section 4.1, who show it of
the histogram of degrees.) *Claim:* with d and d' the kept degrees in G − v and in G,

.. math:: \sum_{u \ne v} |d_u - d'_u| \le d'_v \le D.

*Proof*, by induction over the pairs. An edge of v that is kept raises d'_v by one and the sum by at most one. An edge
{u, w} without v that is kept in both, or in neither, changes nothing. If it is kept in one alone, say in G − v, then in
G one end was full, say :math:`d'_u = D > d_u`: that end's difference falls by one, the other's grows by at most one.
Hence for weights :math:`0 \le g(u) \le 1` the sums :math:`\sum_u g(u) d_u` of all levels of a column together move by
at most :math:`2 d'_v \le 2D` in ℓ₁ between G − v and G, and by 4D between neighbours. The number of kept edges, half
the sum of all degrees, lies between that of G − v and D more, so that it moves by at most D between neighbours. *Which*
edges are kept may change along chains without bound: nothing else is read off them.

**Triangles and paths** (:func:`capped_triangles`, :func:`capped_paths`). For a motif whose copies T each have three
nodes, and a cap Δ of copies that one person is part of,

.. math:: f(G) = \max \sum_T x_T, \quad 0 \le x_T \le 1, \quad \sum_{T \ni u} x_T \le \Delta \text{ for each person } u.

(Kasiviswanathan et al. 2013, section 5.1.) f is the count where nobody is part of more than Δ. A solution of G − v is
one of G, and a solution of G without the copies of v, which weigh at most Δ, is one of G − v:
:math:`f(G - v) \le f(G) \le f(G - v) + \Delta`. Neighbours share G − v, so that f moves by at most Δ.

*Which copies are told apart.* Persons below the cap bind nothing, so that all copies without anybody above it count in
full, and the others differ by nothing but whom above the cap they hold: one variable for each such set, between 0 and
its number of copies. *It is exact enough, and never refused.* The program is solved to within a slack of Δ/128, or half
a copy where that is more, between a bound from below and one U from above (`shared.mechanisms.network_counts.packing`),
however many sets there are: that a count could not be found would be a function of records. What is taken is the whole
part of U. It then lies above f − 1 and at most the larger of slack and half above f, and two of them move by at most
:data:`Δ + 1 + slack <sensitivity>`: they are whole numbers that differ by less than Δ + 1 + slack where the slack is
one or more, and by less than Δ + 3/2 where it is none. A quarter of a copy at least is left to what doubles round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.mechanisms.grand.counts import degrees, triangles
from shared.mechanisms.network_counts.packing import Packing, Sets, Triples

__all__ = ["capped_paths", "capped_triangles", "kept_degrees", "paths_of", "sensitivity"]

Matrix: TypeAlias = sparse.csr_array
Counts: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

BLOCK = 1 << 18
"""Copies with three persons above the cap that are looked at together."""


def slack(cap: int) -> int:
    """Gap between the solver's two bounds, in copies, that the sensitivity includes."""
    return cap // 128


def sensitivity(cap: int) -> int:
    """The most that one person moves a capped count of paths or triangles, as it is computed.

    >>> sensitivity(100), sensitivity(1280)
    (101, 1291)
    """
    return cap + 1 + slack(cap)


# -- edges ---------------------------------------------------------------------------------------------------------
def kept_degrees(ties: Matrix, cap: int) -> Counts:
    """(n,) degrees of the edges that are kept where nobody may have more than `cap`.

    Args:
        ties: (n, n) symmetric, without loops; rows are persons, whose places give the order: by chance, or for life.

    >>> star = sparse.csr_array(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    >>> kept_degrees(star, 3).tolist(), int(kept_degrees(star, 2).sum())
    ([3, 1, 1, 1], 4)
    """
    degree = degrees(ties)
    over = degree > cap
    if not over.any():
        return degree
    upper = sparse.coo_array(sparse.triu(ties, k=1))
    low, high = upper.row.astype(np.int64), upper.col.astype(np.int64)
    # Whoever has no more than the cap is never full: only edges of the others can be left out.
    asked = np.flatnonzero(over[low] | over[high])
    low, high = low[asked], high[asked]
    order = np.lexsort((high, low, _priority(low, high)))
    left = np.full(len(degree), cap, dtype=np.int64)
    left[~over] = len(degree)
    room, lost = left.tolist(), np.zeros(len(degree), dtype=np.int64)
    for a, b in zip(low[order].tolist(), high[order].tolist(), strict=True):
        if room[a] and room[b]:
            room[a] -= 1
            room[b] -= 1
        else:
            lost[a] += 1
            lost[b] += 1
    return degree - lost


def _priority(low: Counts, high: Counts) -> NDArray[np.uint64]:
    """The public order of pairs: their places, mixed, so that nobody is kept for standing early in the table."""
    with np.errstate(over="ignore"):
        x = (low.astype(np.uint64) << np.uint64(32)) + high.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


# -- triangles and paths -------------------------------------------------------------------------------------------
def capped_triangles(ties: Matrix, cap: int) -> int:
    """The number of triangles where nobody counts in more than `cap`.

    >>> full = sparse.csr_array(1 - np.eye(5, dtype=np.int64))
    >>> capped_triangles(full, 6), capped_triangles(full, 3)
    (10, 5)
    """
    of_node = triangles(ties)
    total = int(of_node.sum()) // 3
    above = np.flatnonzero(of_node > cap)
    if not len(above):
        return total
    inner, below = _above(ties, above)
    shared = sparse.csr_array((below @ below.T).multiply(inner))
    return _packed(total, of_node[above], shared, triangles(inner), partial(_closed_triples, inner), cap)


def capped_paths(ties: Matrix, cap: int) -> int:
    """The number of paths of two edges where nobody counts in more than `cap`.

    >>> star = sparse.csr_array(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    >>> capped_paths(star, 3), capped_paths(star, 2)
    (3, 2)
    """
    degree, of_node = degrees(ties), paths_of(ties)
    total = int((degree * (degree - 1) // 2).sum())
    above = np.flatnonzero(of_node > cap)
    if not len(above):
        return total
    inner, below = _above(ties, above)
    outside = degrees(below)
    # Two above the cap and one below it: the one below in the middle, or at an end next to either.
    near = inner.multiply(outside[:, None]) + inner.multiply(outside[None, :])
    shared = sparse.csr_array(below @ below.T + near)
    return _packed(total, of_node[above], shared, paths_of(inner), partial(_open_triples, inner), cap)


def paths_of(ties: Matrix) -> Counts:
    """(n,) paths of two edges that each person is part of: in the middle, or at an end."""
    degree = degrees(ties)
    return np.asarray(degree * (degree - 1) // 2 + ties.astype(np.int64) @ np.maximum(degree - 1, 0), dtype=np.int64)


def _above(ties: Matrix, above: Counts) -> tuple[Matrix, Matrix]:
    """The network among the persons above the cap, and their edges to everybody else: who has few there, as a rule."""
    rows = sparse.csr_array(ties[above].astype(np.int64))
    inner = sparse.csr_array(rows[:, above])
    inner.sort_indices()
    return inner, sparse.csr_array(rows[:, np.setdiff1d(np.arange(ties.shape[0]), above)])


def _closed_triples(inner: Matrix, prices: Floats, most: Counts | None) -> Iterator[tuple[float, Counts]]:
    """Triangles whose price is below one, by the cheapest of the three, whom chance puts into an order."""
    order = np.argsort(prices, kind="stable")
    upper = sparse.csr_array(sparse.triu(sparse.csr_array(inner[order][:, order]), k=1))
    upper.sort_indices()
    p = prices[order]
    for a in np.random.default_rng(0).permutation(np.flatnonzero(3 * p < 1)):
        ends = upper.indices[upper.indptr[a] : upper.indptr[a + 1]].astype(np.int64)
        ends = ends[p[ends] < 1 - 2 * p[a]]
        rows = max(1, BLOCK // max(1, len(ends)))
        for some in (ends[at : at + rows] for at in range(0, len(ends), rows)):
            met = sparse.coo_array(upper[some][:, ends])
            b, c = some[met.row], ends[met.col]
            left = 1 - p[a] - p[b] - p[c]
            cheap = left > 0
            if cheap.any():
                three = np.stack([np.full(len(b), a), b, c])[:, cheap]
                yield float(left[cheap].sum()), np.sort(order[three], axis=0)


def _open_triples(inner: Matrix, prices: Floats, most: Counts | None) -> Iterator[tuple[float, Counts]]:
    """Paths whose price is below one, by their middle, which stands first; of three who are all connected, three.

    With the ends in the order of their prices, those that go with one stand beside each other: they are counted, and
    their prices added up, without a look at each. Of a middle with more than `most` so many are drawn, by their ranks.
    """
    for middle in np.flatnonzero(np.diff(inner.indptr) > 1):
        ends = inner.indices[inner.indptr[middle] : inner.indptr[middle + 1]].astype(np.int64)
        ends = ends[np.argsort(prices[ends], kind="stable")]
        p = prices[ends]
        left = 1 - prices[middle] - p
        after = np.arange(1, len(ends) + 1)
        many = np.maximum(np.searchsorted(p, left) - after, 0)
        upto = np.cumsum(many)
        if not many.any():
            continue
        total, below = int(upto[-1]), np.concatenate([[0.0], np.cumsum(p)])
        worth = float((many * left - (below[after + many] - below[after])).sum())
        few = total if most is None else int(most[middle])
        for at in range(0, min(total, few), BLOCK):
            ranks = np.arange(at, min(total, few, at + BLOCK))
            if few < total:
                ranks = np.unique(_priority(np.full_like(ranks, middle), ranks) % np.uint64(total)).astype(np.int64)
            one = np.searchsorted(upto, ranks, side="right")
            both = ends[np.stack([one, after[one] + ranks - (upto[one] - many[one])])]
            yield worth, np.stack([np.full(len(one), middle), both.min(axis=0), both.max(axis=0)])
            worth = 0.0


def _packed(total: int, of_above: Counts, shared: Matrix, in_triples: Counts, triples: Triples, cap: int) -> int:
    """The whole part of an upper bound of f that is nearer to it than the slack.

    Args:
        total: copies.
        of_above: (k,) copies that each person above the cap is part of.
        shared: (k, k) copies with exactly two persons above the cap.
        in_triples: (k,) copies with three, of each person.
        triples: gives those whose price is below one.
    """
    k = len(of_above)
    pairs = sparse.coo_array(sparse.triu(shared, k=1))
    pairs.eliminate_zeros()
    alone = of_above - np.bincount(pairs.row, pairs.data, k) - np.bincount(pairs.col, pairs.data, k) - in_triples
    one = np.flatnonzero(alone > 0)
    two = tuple(side.astype(np.int64) for side in (pairs.row, pairs.col))
    few: list[Sets] = [((one,), alone[one].astype(float)), (two, pairs.data.astype(float))]
    number = int(in_triples.sum()) // 3
    _, high = Packing(persons=k, cap=cap, few=few, triples=triples, number=number).bounds(max(0.5, slack(cap)))
    copies = int(alone.sum()) + int(pairs.data.sum()) + number
    return total - copies + math.floor(high + 2**-20)
