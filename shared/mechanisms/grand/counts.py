r"""Network statistics: statistics of nodes, and densities of its motifs with standard errors.

A network here is an (n, n) sparse matrix of 0 and 1 without loops, symmetric where ties have no direction. All of it is
computed from a *released* network (or, at the site, from the real one to compare with): post-processing, no cost.

*Node statistics.* Degree k, V-shapes k(k − 1)/2, triangles, eigenvector centrality (largest 1) and harmonic centrality
:math:`\sum_j 1/d(i, j)`. Two networks are compared by the 1-Wasserstein distance of a statistic's distribution over
nodes, counts on the scale log(1 + x). (The paper prints 1/Σd for the harmonic centrality; its figures are of Σ 1/d.)

*Motifs.* Densities of ties, V-shapes, triangles and 3-stars, transitivity, and the degrees' coefficient of variation.
Each is a function of a few counts, and what a count loses when node i is removed is known from i and its neighbours:

.. math:: C = \frac{n - 1}{n} \sum_i (\theta_{(-i)} - \bar\theta)(\theta_{(-i)} - \bar\theta)^T

is the node jackknife of all of them together, without leaving any node out. A network drawn by GRAND follows the law
of its *frame* of m hold-out nodes, so that two samples stand behind it: its covariance is (1 + n/m) C. Densities are
pooled on the log scale, where the covariance is :math:`C_{ab} / (\theta_a \theta_b)`.

*Arcs.* Of a network with directions, the density of arcs, the share that is returned, the coefficients of variation of
in- and out-degrees, and the share of paths i → j → k with an arc i → k, with the same jackknife in closed form.

*Triangles* are counted in one of two ways, whichever has less to do. In the order of degrees every triangle has a
lowest, a middle and a highest node. In a dense network, nodes are taken in sets of 256, as bits: common neighbours of
two nodes are four words and a population count; one pass over the ties counts the first two roles, and the same pass in
reverse order the third. In a sparse one, every path from a node to a higher one and on to a higher one is looked at,
and whether it closes is looked up in a table of a few nodes' ties, small enough to stay in the processor's cache.

Sources: Liu, Bi & Li, GRAND, section 6; Newman (2003) for assortativity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import ArpackError, eigsh

from shared.errors import EstimateRefusal, ParameterError

__all__ = [
    "ARCS",
    "MOTIFS",
    "STATISTICS",
    "Moment",
    "Motifs",
    "arcs",
    "assortativity",
    "compare",
    "degrees",
    "eigenvector",
    "harmonic",
    "motifs",
    "node_statistics",
    "simple",
    "triangles",
    "v_shapes",
]

Matrix: TypeAlias = sparse.csr_array
Array = NDArray[np.float64]
Counts = NDArray[np.int64]

STATISTICS = ("degree", "v_shape", "triangle", "eigenvector", "harmonic")
"""The node statistics, in the order of the tables."""
MOTIFS = ("edge", "v_shape", "triangle", "star3", "transitivity", "degree_cv")
"""Estimands of :func:`motifs`, in the order of its values and covariance."""
ARCS = ("arc", "reciprocity", "in_degree_cv", "out_degree_cv", "directed_transitivity")
"""Estimands of :func:`arcs` for directed networks, in the order of its values and covariance."""
_SET, _CHUNK = 256, 1 << 13
_WORK = 1 << 22
"""Terms of a sparse product that are added up at once."""
_LANES = np.uint32(0x00FF00FF)
_PATHS, _STEPS, _TABLE = 128, 1 << 18, 1 << 22
"""Paths are followed where they are fewer than ties × n / 128; so many at once, on tables of so many bytes."""


def simple(ties: Matrix) -> Matrix:
    """The undirected network underneath: a tie in either direction counts, loops and repetitions do not.

    Returns: (n, n) int32, symmetric, rows sorted. Raises: ParameterError, if the matrix is not square.

    >>> simple(sparse.csr_array(np.array([[1, 2, 0], [0, 0, 0], [0, 1, 0]]))).toarray()
    array([[0, 1, 0],
           [1, 0, 1],
           [0, 1, 0]], dtype=int32)
    """
    ties = sparse.coo_array(ties)
    if ties.shape[0] != ties.shape[1]:
        raise ParameterError("a network must be a square matrix", given=f"shape {ties.shape}")
    keep = (ties.row != ties.col) & (ties.data != 0)
    row, col = ties.row[keep], ties.col[keep]
    made = sparse.csr_array(
        (np.ones(2 * len(row), np.int32), (np.concatenate([row, col]), np.concatenate([col, row]))), shape=ties.shape
    )
    made.sum_duplicates()
    made.data[:] = 1
    return made


# -- statistics of nodes -------------------------------------------------------------------------------------------
def degrees(ties: Matrix) -> Counts:
    """(n,) numbers of ties."""
    return np.diff(ties.indptr).astype(np.int64)


def v_shapes(ties: Matrix) -> Counts:
    """(n,) pairs of neighbours: k (k − 1) / 2."""
    k = degrees(ties)
    return k * (k - 1) // 2


def triangles(ties: Matrix) -> Counts:
    """(n,) triangles that each node is part of, exactly.

    >>> triangles(simple(sparse.csr_array(np.ones((4, 4))))).tolist()
    [3, 3, 3, 3]
    """
    n, k = ties.shape[0], np.diff(ties.indptr)
    order = np.argsort(k, kind="stable")
    rank = np.empty(n, np.int32)
    rank[order] = np.arange(n, dtype=np.int32)
    low, high = np.repeat(rank, k), np.take(rank, ties.indices)
    keep = np.flatnonzero(low < high)
    low, high = np.take(low, keep), np.take(high, keep)
    above = np.bincount(low, minlength=n)
    if int(above[high].sum()) * _PATHS < len(low) * n:
        found = _closed_paths(low, high, n)
    else:
        by_low, by_high, common = _common_above(low, high, n)
        found = np.bincount(by_low, common, n) + np.bincount(by_high, common, n)
        # In reverse order the node that was the highest of its triangles is the lowest.
        by_low, _, common = _common_above(n - 1 - high, n - 1 - low, n)
        found += np.bincount(by_low, common, n)[::-1]
    out = np.empty(n, np.int64)
    out[order] = found
    return out


def _closed_paths(low: NDArray[np.int32], high: NDArray[np.int32], n: int) -> Counts:
    """(n,) triangles of each node, by following ties upwards twice: low to high, and from there on."""
    lengths = np.bincount(low, minlength=n)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    middle = high[np.argsort(low, kind="stable")]
    # Its rows are copied by compiled code; made by hand, because they need not be sorted.
    upward = sparse.csr_array((np.ones(len(low), np.int8), middle, starts.astype(np.int32)), shape=(n, n))
    # How many paths begin before each node; a block ends where they, or its nodes' tables, would grow too large.
    begun = np.concatenate([[0], np.cumsum(lengths[middle])])[starts]
    widest = min(n, max(1, _TABLE // n))
    flat = np.zeros(widest * n, bool)
    found: list[NDArray[np.int32]] = []
    start = 0
    while start < n:
        stop = min(start + widest, max(start + 1, int(np.searchsorted(begun, begun[start] + _STEPS, side="right")) - 1))
        stop = min(stop, n)
        if begun[stop] > begun[start]:
            mine = middle[starts[start] : starts[stop]]
            row = np.repeat(np.arange(0, (stop - start) * n, n), lengths[start:stop])
            ties = row + mine
            flat[ties] = True
            ends = upward[mine]
            at = np.repeat(row, lengths[mine])
            at += ends.indices
            hit = np.flatnonzero(flat.take(at))
            tie = np.searchsorted(ends.indptr, hit, side="right") - 1
            found += [(row[tie] // n + start).astype(np.int32), mine[tie], ends.indices[hit]]
            flat[ties] = False
        start = stop
    return np.bincount(np.concatenate([np.empty(0, np.int32), *found]), minlength=n).astype(np.int64)


def _common_above(low: NDArray[np.int32], high: NDArray[np.int32], n: int) -> tuple[Counts, Counts, Counts]:
    """Ties (low < high), sorted by their higher end, with the number of common neighbours above that end."""
    key = high.astype(np.uint16) if n <= 1 << 16 else high
    order = np.argsort(key, kind="stable")
    low, high = np.take(low, order), np.take(high, order)
    # Integers of the platform's index type: `take` would convert any other at every call.
    a, b = low.astype(np.intp), high.astype(np.intp)
    word, bit = a * 4 + ((b >> 6) & 3), np.uint64(1) << (b & 63).astype(np.uint64)
    sets = -(-n // _SET)
    ends = np.searchsorted(high, np.arange(1, sets + 1) * _SET)
    common = np.zeros(len(a), np.uint32)
    for number in range(sets):
        # Only ties whose higher end lies within or before this set have anything above it here: a prefix.
        begin, end = int(ends[number - 1]) if number else 0, int(ends[number])
        if begin == end:
            continue
        bits = np.zeros((min(n, _SET * (number + 1)), 4), np.uint64)
        np.add.at(bits.reshape(-1), word[begin:end], bit[begin:end])
        busy = bits.any(axis=1)
        chosen: NDArray[np.intp] | None = None
        if busy.mean() < 0.5:
            chosen = np.flatnonzero(np.take(busy, a[:end]) & np.take(busy, b[:end]))
        for start in range(0, end if chosen is None else len(chosen), _CHUNK):
            if chosen is None:
                at: slice | NDArray[np.intp] = slice(start, min(end, start + _CHUNK))
                x, y = np.take(bits, a[at], axis=0), np.take(bits, b[at], axis=0)
            else:
                at = chosen[start : start + _CHUNK]
                x, y = np.take(bits, np.take(a, at), axis=0), np.take(bits, np.take(b, at), axis=0)
            x &= y
            # Four counts of at most 64 stand in four bytes; their sum may need nine bits, hence two lanes.
            count = np.bitwise_count(x).view(np.uint32).ravel()
            odd = count >> np.uint32(8)
            odd &= _LANES
            count &= _LANES
            count += odd
            np.right_shift(count, np.uint32(16), out=odd)
            count += odd
            count &= np.uint32(0x3FF)
            common[at] += count
    return a, b, common.astype(np.int64)


def eigenvector(ties: Matrix) -> Array:
    """(n,) eigenvector centralities, the largest 1; all 1 in a network without ties."""
    n = ties.shape[0]
    if ties.nnz == 0 or n == 1:
        return np.ones(n)
    if n <= 32:
        vector = np.linalg.eigh(ties.toarray().astype(np.float64))[1][:, -1]
    else:
        start = np.sqrt(degrees(ties)) + 1e-3
        try:
            vector = eigsh(ties.astype(np.float64), k=1, which="LA", v0=start, tol=1e-8)[1][:, 0]
        except ArpackError:
            # Two components with one eigenvalue: what iteration from the degrees would settle at.
            vector = start
            for _ in range(1000):
                vector = ties @ vector + vector
                vector /= np.abs(vector).max()
    vector = np.abs(vector)
    return vector / vector.max()


def harmonic(ties: Matrix) -> Array:
    """(n,) harmonic centralities Σ_j 1/d(i, j), 0 for pairs that are not connected."""
    n = ties.shape[0]
    total = np.zeros(n)
    for start in range(0, n, 1 << 14):
        slab = np.arange(start, min(n, start + (1 << 14)))
        number = np.arange(len(slab))
        reached = np.zeros((n, -(-len(slab) // 64)), np.uint64)
        reached[slab, number // 64] |= np.uint64(1) << (number % 64).astype(np.uint64)
        count, distance = np.bitwise_count(reached).sum(axis=1, dtype=np.int64), 0
        growing = np.flatnonzero(np.diff(ties.indptr))
        while growing.size:
            distance += 1
            grown = reached.copy()
            # A loop over nodes: `reduceat` on all of them at once takes ten times as long.
            for node in growing.tolist():
                around = np.take(reached, ties.indices[ties.indptr[node] : ties.indptr[node + 1]], axis=0)
                grown[node] |= np.bitwise_or.reduce(around, axis=0)
            now = np.bitwise_count(grown).sum(axis=1, dtype=np.int64)
            if (now == count).all():
                break
            total += (now - count) / distance
            reached, count = grown, now
            growing = growing[count[growing] < len(slab)]
    return total


def node_statistics(ties: Matrix) -> dict[str, Array]:
    """The five statistics of every node, on the scale they are compared on: (n,) each, by name."""
    return {
        "degree": np.log1p(degrees(ties)),
        "v_shape": np.log1p(v_shapes(ties)),
        "triangle": np.log1p(triangles(ties)),
        "eigenvector": eigenvector(ties),
        "harmonic": harmonic(ties),
    }


def compare(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """1-Wasserstein distances of two networks' :func:`node_statistics`, by name.

    >>> full = node_statistics(simple(sparse.csr_array(np.ones((4, 4)))))
    >>> compare(full, full)["triangle"]
    0.0
    """
    from scipy import stats

    return {name: float(stats.wasserstein_distance(one[name], other[name])) for name in STATISTICS}


# -- motifs --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Moment:
    """An estimate and its variance, as they are pooled."""

    yi: float
    vi: float
    n: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Motifs:
    """Densities of a network's motifs, with the joint covariance of the node jackknife.

    Args:
        values: (k,) in the order of `names`; NaN where a ratio has no denominator.
        covariance: (k, k), the factor (1 + n/m) included.
        names: :data:`MOTIFS`, or :data:`ARCS` of a network with directions.
    """

    n: int
    values: Array
    covariance: Array
    names: tuple[str, ...] = MOTIFS

    def log(self, name: str) -> Moment:
        """One density on the log scale.

        Raises: EstimateRefusal, where the network has none of the motif or too few nodes for a standard error.
        """
        at = self.at(name)
        value, variance = float(self.values[at]), float(self.covariance[at, at])
        if not (value > 0 and variance > 0 and np.isfinite(variance)):
            raise EstimateRefusal(
                "a density must be positive and vary between nodes to be pooled on the log scale",
                given=f"{name} in a network of {self.n} nodes",
                next_step="Leave the site out of this estimand.",
            )
        return Moment(yi=float(np.log(value)), vi=variance / value**2, n=self.n)

    def at(self, name: str) -> int:
        """The place of a figure in values and covariance. Raises: ParameterError."""
        if name not in self.names:
            raise ParameterError(f"a motif must be one of {', '.join(self.names)}", given=repr(name)[:40])
        return self.names.index(name)


def motifs(ties: Matrix, *, reference_size: int | None = None) -> Motifs:
    """Motif densities of an undirected network with the covariance of the node jackknife, in closed form.

    Args:
        ties: (n, n), n ≥ 5.
        reference_size: m, the hold-out nodes behind a network released by GRAND; None for a network as observed.
    Raises: EstimateRefusal, for fewer nodes; ParameterError, for a frame without nodes.

    >>> found = motifs(simple(sparse.csr_array(np.ones((6, 6)))))
    >>> found.values.round(3).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    """
    n = ties.shape[0]
    if n < 5:
        raise EstimateRefusal("a network must have at least 5 nodes for motif densities", given=f"{n}")
    k, t = degrees(ties).astype(np.float64), triangles(ties).astype(np.float64)
    two, three = k * (k - 1) / 2, k * (k - 1) * (k - 2) / 6
    edge, v, triangle, star, square = k.sum() / 2, two.sum(), t.sum() / 3, three.sum(), (k**2).sum()
    # What goes with node i: itself as a centre, and what its neighbours lose as centres.
    lost_v = two + ties @ (k - 1)
    lost_star = three + ties @ ((k - 1) * (k - 2) / 2)
    lost_square = k**2 + 2 * (ties @ k) - k
    values = _densities(edge, v, triangle, star, square, n)
    left = _densities(edge - k, v - lost_v, triangle - t, star - lost_star, square - lost_square, n - 1)
    return Motifs(n=n, values=values, covariance=_jackknife(left, n) * _factor(n, reference_size))


def _densities(edge: Array, v: Array, triangle: Array, star: Array, square: Array, n: int) -> Array:
    """(6,) or (6, n): the densities from counts, and from every count with one node left out."""
    pairs, triples = n * (n - 1) / 2, n * (n - 1) * (n - 2) / 6
    with np.errstate(all="ignore"):
        mean = 2 * edge / n
        spread = np.sqrt(np.maximum(square / n - mean**2, 0)) / mean
        return np.array(
            [
                edge / pairs,
                v / (3 * triples),
                triangle / triples,
                star / (4 * triples * (n - 3) / 4),
                3 * triangle / v,
                spread,
            ]
        )


def arcs(ties: Matrix, *, reference_size: int | None = None) -> Motifs:
    """Figures of a network with directions, with the covariance of the node jackknife, in closed form.

    Args:
        ties: (n, n), n ≥ 5: 1 where i has an arc to j; loops and repetitions do not count.
        reference_size: as in :func:`motifs`.
    Raises: EstimateRefusal, for fewer nodes; ParameterError, for a frame without nodes.

    >>> cycle = sparse.csr_array(np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), 2, axis=1))
    >>> dict(zip(ARCS, arcs(cycle).values.round(3).tolist()))["directed_transitivity"]
    0.25
    """
    ties = sparse.coo_array(ties)
    n = ties.shape[0]
    if ties.shape[0] != ties.shape[1]:
        raise ParameterError("a network must be a square matrix", given=f"shape {ties.shape}")
    if n < 5:
        raise EstimateRefusal("a network must have at least 5 nodes for motif densities", given=f"{n}")
    keep = (ties.row != ties.col) & (ties.data != 0)
    out = sparse.csr_array((np.ones(int(keep.sum()), np.int64), (ties.row[keep], ties.col[keep])), shape=(n, n))
    out.sum_duplicates()
    out.data[:] = 1
    back = sparse.csr_array(out.T)
    sent, got = np.diff(out.indptr).astype(np.float64), np.diff(back.indptr).astype(np.float64)
    both = np.asarray(out.multiply(back).sum(axis=1), dtype=np.float64).ravel()
    first, last = _closed(out, out)
    middle, _ = _closed(back, out)
    closed, paths = first.sum(), (got * sent - both).sum()
    # What goes with node i: its own arcs, and what the nodes at their other ends lose.
    lost_paths = got * sent + out @ sent + back @ got - 3 * both
    counts = np.array([sent.sum(), both.sum(), (got**2).sum(), (sent**2).sum(), closed, paths])
    lost = np.array(
        [
            sent + got,
            2 * both,
            got**2 + 2 * (out @ got) - sent,
            sent**2 + 2 * (back @ sent) - got,
            first + middle + last,
            lost_paths,
        ]
    )
    values, left = _arc_figures(counts, n), _arc_figures(counts[:, None] - lost, n - 1)
    return Motifs(n=n, values=values, covariance=_jackknife(left, n) * _factor(n, reference_size), names=ARCS)


def _arc_figures(counts: Array, n: int) -> Array:
    """(5,) or (5, n): the figures from counts, and from every count with one node left out.

    Args:
        counts: arcs, arcs that are returned, squares of in- and of out-degrees, closed paths, paths.
    """
    sent, both, got2, sent2, closed, paths = counts
    with np.errstate(all="ignore"):
        mean = sent / n
        spreads = [np.sqrt(np.maximum(square / n - mean**2, 0)) / mean for square in (got2, sent2)]
        return np.array([sent / (n * (n - 1)), both / sent, *spreads, closed / paths])


def _closed(left: Matrix, right: Matrix) -> tuple[Array, Array]:
    """Row and column sums of (left @ right) where `right` has an arc, block by block of rows.

    With the network twice: how many closed paths begin, and end, at each node. With its transpose first: how many go
    through each.
    """
    n = left.shape[0]
    # A row of the product costs what the rows of `right` that it adds up hold.
    work = np.cumsum(np.concatenate([[0], left @ np.diff(right.indptr)]))
    rows, columns = np.zeros(n), np.zeros(n)
    start = 0
    while start < n:
        stop = max(start + 1, int(np.searchsorted(work, work[start] + _WORK, side="right")) - 1)
        found = (left[start:stop] @ right).multiply(right[start:stop])
        rows[start:stop] = found.sum(axis=1)
        columns += found.sum(axis=0)
        start = stop
    return rows, columns


def _jackknife(left: Array, n: int) -> Array:
    centred = left - left.mean(axis=-1, keepdims=True)
    return np.asarray((n - 1) / n * (centred @ centred.T))


def _factor(n: int, reference_size: int | None) -> float:
    if reference_size is None:
        return 1.0
    if reference_size < 1:
        raise ParameterError("a frame must have at least one node", given=repr(reference_size))
    return 1 + n / reference_size


def assortativity(
    ties: Matrix, attribute: Array, *, levels: int | None = None, reference_size: int | None = None
) -> Moment:
    """Newman's assortativity coefficient with its jackknife variance.

    Args:
        ties: (n, n), undirected.
        attribute: (n,) numbers, or with `levels` codes 0 … levels − 1; nodes where it is NaN are left out.
        levels: number of levels of a levelled attribute; None for a number, whose coefficient is a correlation.
        reference_size: as in :func:`motifs`.
    Raises: EstimateRefusal, where it is not defined: no ties, or an attribute that does not vary over them.

    >>> two = simple(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> assortativity(two, np.repeat([0.0, 1.0], 4), levels=2).yi
    1.0
    """
    attribute = np.asarray(attribute, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(attribute))
    ties, x = sparse.csr_array(ties[known][:, known]), attribute[known]
    n, k = len(x), np.diff(ties.indptr).astype(np.float64)
    if levels is None:
        x = x - (x.mean() if n else 0.0)
        around, around2 = ties @ x, ties @ x**2
        ends, first, second, product = k.sum(), k @ x, k @ x**2, x @ around
        value = _correlation(ends, first, second, product)
        left = _correlation(ends - 2 * k, first - k * x - around, second - k * x**2 - around2, product - 2 * x * around)
    else:
        member = np.zeros((n, levels))
        member[np.arange(n), x.astype(np.int64)] = 1
        near = ties @ member
        alike = (near * member).sum(axis=1)
        ends, own = k.sum(), k @ member
        value = _newman(ends, own, alike.sum())
        left = _newman((ends - 2 * k)[:, None], own - k[:, None] * member - near, alike.sum() - 2 * alike)
    variance = float(_jackknife(np.atleast_2d(left), n)[0, 0]) * _factor(n, reference_size) if n > 1 else np.nan
    if not (np.isfinite(value) and np.isfinite(variance)):
        raise EstimateRefusal(
            "assortativity must be of an attribute that varies over the ends of ties, whichever node is left out",
            given=f"{int(k.sum()) // 2} ties of {n} nodes",
        )
    return Moment(yi=float(value), vi=variance, n=n)


def _correlation(ends: Array, first: Array, second: Array, product: Array) -> Array:
    with np.errstate(all="ignore"):
        mean = first / ends
        return (product / ends - mean**2) / (second / ends - mean**2)


def _newman(ends: Array, own: Array, alike: Array) -> Array:
    with np.errstate(all="ignore"):
        chance = ((own / ends) ** 2).sum(axis=-1)
        return (alike / np.squeeze(ends) - chance) / (1 - chance)
