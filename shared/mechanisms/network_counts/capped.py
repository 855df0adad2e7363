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

*It is a small program.* Persons below the cap bind nothing, so that all copies without anybody above it count in full,
and the others are told apart by nothing but whom above the cap they hold: one variable for each such set A, between 0
and its number of copies. *It is exact enough.* The solver's dual solution y, as multiples of 2⁻³⁰ in whole numbers, is
a bound :math:`U = \Delta \sum_u y_u + \sum_A c_A (1 - y(A))^+ \ge f`, its primal solution, made feasible, one from
below. What is taken is the whole part of U; where the two are further apart than a slack of Δ/128 the count is refused,
before anything is charged. It then lies above f − 1 and at most the slack above f, and two of them move by at most
:data:`Δ + 1 + slack <sensitivity>`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from shared.errors import TrainingRefusal
from shared.mechanisms.grand.counts import degrees, triangles

__all__ = ["capped_paths", "capped_triangles", "kept_degrees", "paths_of", "sensitivity"]

Matrix: TypeAlias = sparse.csr_array
Counts: TypeAlias = NDArray[np.int64]

MOST_SETS = 500_000
"""Variables of a program: sets of persons above the cap who share copies. Beyond it a count is refused, which is a
function of records that no ε covers; the receipt says so."""
_UNIT = 1 << 30
"""Steps of a solution between 0 and 1."""


def slack(cap: int) -> int:
    """How far the solver's two bounds may lie apart."""
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
    """The number of triangles where nobody counts in more than `cap`. Raises: TrainingRefusal.

    >>> full = sparse.csr_array(1 - np.eye(5, dtype=np.int64))
    >>> capped_triangles(full, 6), capped_triangles(full, 3)
    (10, 5)
    """
    of_node = triangles(ties)
    total = int(of_node.sum()) // 3
    above = np.flatnonzero(of_node > cap)
    if not len(above):
        return total
    rows, inner = _above(ties, above)
    shared = sparse.csr_array((rows @ rows.T - inner @ inner.T).multiply(inner))
    return _program(total, of_node[above], shared, _closed_triples(inner), cap)


def capped_paths(ties: Matrix, cap: int) -> int:
    """The number of paths of two edges where nobody counts in more than `cap`. Raises: TrainingRefusal.

    >>> star = sparse.csr_array(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    >>> capped_paths(star, 3), capped_paths(star, 2)
    (3, 2)
    """
    degree, of_node = degrees(ties), paths_of(ties)
    total = int((degree * (degree - 1) // 2).sum())
    above = np.flatnonzero(of_node > cap)
    if not len(above):
        return total
    rows, inner = _above(ties, above)
    outside = degree[above] - degrees(inner)
    # Two above the cap and one below it: the one below in the middle, or at an end next to either.
    near = inner.multiply(outside[:, None]) + inner.multiply(outside[None, :])
    shared = sparse.csr_array(rows @ rows.T - inner @ inner.T + near)
    return _program(total, of_node[above], shared, _open_triples(inner), cap)


def paths_of(ties: Matrix) -> Counts:
    """(n,) paths of two edges that each person is part of: in the middle, or at an end."""
    degree = degrees(ties)
    return np.asarray(degree * (degree - 1) // 2 + ties.astype(np.int64) @ np.maximum(degree - 1, 0), dtype=np.int64)


def _above(ties: Matrix, above: Counts) -> tuple[Matrix, Matrix]:
    """Rows of the persons above the cap, and the network among them."""
    rows = sparse.csr_array(ties[above].astype(np.int64))
    inner = sparse.csr_array(rows[:, above])
    inner.sort_indices()
    return rows, inner


def _closed_triples(inner: Matrix) -> Counts:
    """(k, 3) triangles of a network, a < b < c."""
    upper = sparse.csr_array(sparse.triu(inner, k=1))
    upper.sort_indices()
    after = [upper.indices[upper.indptr[a] : upper.indptr[a + 1]] for a in range(upper.shape[0])]
    found = [np.empty((0, 3), np.int64)]
    for a, ends in enumerate(after):
        for b in ends.tolist():
            last = np.intersect1d(ends, after[b], assume_unique=True)
            found.append(np.column_stack([np.full(len(last), a), np.full(len(last), b), last]))
    return np.concatenate(found).astype(np.int64)


def _open_triples(inner: Matrix) -> Counts:
    """(k, 3) paths of a network, each three persons in ascending order; three who are all connected stand thrice."""
    found = [np.empty((0, 3), np.int64)]
    for middle in range(inner.shape[0]):
        ends = inner.indices[inner.indptr[middle] : inner.indptr[middle + 1]]
        one, other = np.triu_indices(len(ends), k=1)
        found.append(np.column_stack([np.full(len(one), middle), ends[one], ends[other]]))
        if sum(map(len, found)) > MOST_SETS:
            _too_many()
    return np.sort(np.concatenate(found), axis=1).astype(np.int64)


def _program(total: int, of_above: Counts, shared: Matrix, triples: Counts, cap: int) -> int:
    """The whole part of an upper bound of f that is nearer to it than the slack.

    Args:
        total: copies.
        of_above: (k,) copies that each person above the cap is part of.
        shared: (k, k) copies with exactly two persons above the cap.
        triples: (·, 3) copies with three.
    """
    k = len(of_above)
    pairs = sparse.coo_array(sparse.triu(shared, k=1))
    pairs.eliminate_zeros()
    triples, times = np.unique(triples, axis=0, return_counts=True) if len(triples) else (triples, np.empty(0))
    alone = of_above - np.bincount(pairs.row, pairs.data, k) - np.bincount(pairs.col, pairs.data, k)
    alone = alone - np.bincount(triples.ravel(), np.repeat(times, 3), k)
    copies = np.concatenate([alone, pairs.data, times]).astype(np.int64)
    if len(copies) > MOST_SETS:
        _too_many()
    at = [np.arange(k), pairs.row, pairs.col, *triples.T]
    number = [np.arange(k), *[k + np.arange(pairs.nnz)] * 2, *[k + pairs.nnz + np.arange(len(triples))] * 3]
    member = sparse.csr_array(
        (np.ones(sum(map(len, at))), (np.concatenate(at), np.concatenate(number))), shape=(k, len(copies))
    )
    solved = optimize.linprog(
        -np.ones(len(copies)),
        A_ub=member,
        b_ub=np.full(k, float(cap)),
        bounds=np.column_stack([np.zeros(len(copies)), copies]),
        method="highs",
    )
    if solved.x is None:
        _unsolved()
    below = total - int(copies.sum())
    y = np.clip(np.round(-solved.ineqlin.marginals * _UNIT), 0, _UNIT).astype(np.int64)
    whole = member.astype(np.int64)
    # In whole numbers without end: the copies of a few hundred persons at a large cap are more than 63 bits of steps.
    dual = cap * int(y.sum()) + int((copies.astype(object) * np.maximum(0, _UNIT - whole.T @ y)).sum())
    # Feasible: parts of whole numbers, in each person's own proportion of what is too much.
    primal = np.minimum(np.floor(np.maximum(solved.x, 0) * (1 << 20)).astype(np.int64), copies << 20)
    most = int((whole @ primal).max(initial=0))
    share = min(Fraction(1), Fraction(cap << 20, most)) if most else Fraction(1)
    least = Fraction(int(primal.sum()), 1 << 20) * share
    upper = Fraction(dual, _UNIT)
    if not 0 <= upper - least <= max(Fraction(1, 2), Fraction(slack(cap))):
        _unsolved()
    return below + int(upper)


def _too_many() -> None:
    raise TrainingRefusal(
        f"persons above the plan's caps must share at most {MOST_SETS} sets of three",
        given="more",
        next_step="Ask the study lead for a larger release.most_contacts: too many persons are above it here.",
    )


def _unsolved() -> None:
    raise TrainingRefusal(
        "a capped count must be found to within its slack",
        given="bounds that lie further apart",
        next_step="Ask the study lead for a larger release.most_contacts; report it with the plan's text.",
    )
