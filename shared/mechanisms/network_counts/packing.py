r"""How many copies fit under a cap of each person: a linear program of any size, to within a room that is asked for.

.. math:: f = \max \sum_A x_A, \quad 0 \le x_A \le c_A, \quad \sum_{A \ni u} x_A \le \Delta \text{ for each person } u,

over sets A of one to three persons, each of which :math:`c_A` copies share. There can be far more sets than fit into
memory, so that the program is solved where it is small, in one price :math:`y_u \ge 0` a person: by duality f is the
least value of :math:`g(y) = \Delta \sum_u y_u + \sum_A c_A (1 - y(A))^+`. The barrier method (Nesterov & Nemirovskii
1994; Boyd & Vandenberghe 2004, chapter 11) follows, for falling μ, the least of

.. math:: \Delta \sum_u y_u - \mu \sum_u \log y_u + \sum_A \max_{0 < x < c_A}
    [x (1 - y(A)) + \mu \log x + \mu \log(c_A - x)]

by Newton's steps. The x that each set has there are feasible once the least is found, so that every step gives a bound
from either side: g(y), and the sum of x. A set is one term of the gradient and nine of the matrix: they are gone
through and need not be kept.

It always ends: the function is self-concordant, so that each μ takes finitely many steps, and the bounds lie
:math:`\mu` times twice the number of sets and persons apart. Doubles are the limit, and were it in none of the
programs that the tests try; should they be one day, the last bounds are returned as they are. A refusal in their place
would be a function of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

__all__ = ["Packing", "Sets"]

Floats: TypeAlias = NDArray[np.float64]
Sets: TypeAlias = tuple[tuple[NDArray[np.int64], ...], Floats]
"""Sets of as many persons each: a column of persons for the first, the second, the third; and copies of each set."""

DENSE = 6_000
"""Persons up to whom the matrix of second derivatives is dense, and Newton's equation solved by Cholesky's method."""
CENTRED = 0.1
"""Newton decrement below which the next μ is begun."""
_FOUND = 1e-3
_SMALLER = 0.1
_MOST_STEPS = 1_000


@dataclass(frozen=True)
class _Place:
    """What is known of one y and μ."""

    load: Floats
    taken: float
    above: float
    sets: int
    bends: Any


@dataclass(frozen=True)
class Packing:
    """Copies that persons share, under one cap.

    Args:
        persons: how many. cap: Δ, at least 1.
        sets: gives all sets anew each time, in blocks; a set without copies may be among them.

    >>> both = (np.array([0]), np.array([1])), np.array([5.0])
    >>> low, high = Packing(persons=2, cap=3, sets=lambda: [both]).bounds(0.01)
    >>> bool(2.99 <= low <= 3 <= high <= 3.01)
    True
    """

    persons: int
    cap: int
    sets: Callable[[], Iterable[Sets]]

    def bounds(self, room: float) -> tuple[float, float]:
        """A number at most f and one at least f, no further apart than `room`."""
        y, mu = np.full(self.persons, 0.25), 0.25 * self.cap
        low, high = -np.inf, np.inf
        for _ in range(_MOST_STEPS):
            at = self._at(y, mu)
            # What is too much of somebody is too much of all: smaller by one factor, the x are feasible.
            low = max(low, at.taken * min(1.0, self.cap / max(float(at.load.max()), 1e-300)))
            high = min(high, at.above)
            if high - low <= room:
                break
            slope = self.cap - mu / y - at.load
            step = _newton(at.bends, mu / y**2, slope)
            fall = -float(slope @ step)
            # Near enough to the least; once μ is small enough, nearer still: there the bounds meet.
            if fall <= (CENTRED if mu * (2 * at.sets + self.persons) > room / 2 else _FOUND) ** 2 * mu:
                mu *= _SMALLER
                continue
            y = self._along(y, mu, step, fall)
        return low, high

    def _along(self, y: Floats, mu: float, step: Floats, fall: float) -> Floats:
        """As far along a step as y stays positive and the function has not begun to rise steeply again."""
        down = step < 0
        far = min(1.0, 0.95 * float((-y[down] / step[down]).min())) if down.any() else 1.0
        for _ in range(40):
            tried = y + far * step
            rise = float((self.cap - mu / tried - self._at(tried, mu, matrix=False).load) @ step)
            if rise <= fall / 2:
                break
            far /= 2
        return y + far * step

    def _at(self, y: Floats, mu: float, *, matrix: bool = True) -> _Place:
        """Gradient and, where asked, half the matrix of second derivatives of what the sets add, and both bounds."""
        k = self.persons
        load, dense = np.zeros(k), k <= DENSE
        bends: Any = (np.zeros(k * k) if dense else sparse.csr_array((k, k))) if matrix else None
        taken, above, sets = 0.0, self.cap * float(y.sum()), 0
        for members, copies in self.sets():
            left = 1.0 - sum(y[one] for one in members)
            half = copies / 2
            # x solves left + μ/x − μ/(c − x) = 0; `both` is x (c − x), in which nothing cancels.
            root = mu + np.hypot(mu, left * half)
            both = 2 * mu * half**2 / root
            larger = half + np.abs(left) * half**2 / root
            x = np.where(left > 0, larger, both / np.maximum(larger, 1e-300))
            sets += len(copies)
            taken += float(x.sum())
            above += float((copies * np.maximum(left, 0.0)).sum())
            for one in members:
                load += np.bincount(one, x, k)
            if matrix:
                change = both**2 / np.maximum(mu * (copies**2 - 2 * both), 1e-300)
                for place, one in enumerate(members):
                    for other in members[place:]:
                        added = change / 2 if other is one else change
                        if dense:
                            np.add.at(bends, one * k + other, added)
                        else:
                            bends = bends + sparse.coo_array((added, (one, other)), shape=(k, k)).tocsr()
        return _Place(load=load, taken=taken, above=above, sets=sets, bends=bends)


def _newton(half: Any, diagonal: Floats, slope: Floats) -> Floats:
    """Newton's step for the matrix half + halfᵀ + diag, its diagonal made one."""
    k = len(slope)
    if sparse.issparse(half):
        matrix = half + half.T + sparse.diags_array(diagonal)
        unit = 1 / np.sqrt(matrix.diagonal())
        scaled = LinearOperator((k, k), matvec=lambda v: unit * (matrix @ (unit * v)), dtype=np.float64)
        # Wherever it stops it is a way down, because it begins at nought; but only where it is solved is it Newton's
        # step, of which there are few. Exactly it takes at most k rounds, and k lies in thousands.
        return np.asarray(-unit * cg(scaled, unit * slope, rtol=1e-5, maxiter=10 * k)[0])
    matrix = half.reshape(k, k) + half.reshape(k, k).T
    matrix[np.diag_indices(k)] += diagonal
    unit = 1 / np.sqrt(np.diag(matrix))
    matrix *= unit
    matrix *= unit[:, None]
    more = 0.0
    while True:
        try:
            factor = cho_factor(matrix, lower=True, check_finite=False)
            break
        except LinAlgError:  # by rounding alone: a little more on the diagonal is still a way down
            added, more = more, max(10 * more, 1e-13)
            matrix[np.diag_indices(k)] += more - added
    return np.asarray(-unit * cho_solve(factor, unit * slope, check_finite=False))


def kept(blocks: Callable[[], Iterator[Sets]], most: int) -> Callable[[], Iterable[Sets]]:
    """The same blocks, remembered where all of them hold at most `most` sets, and else made anew each time."""
    found: list[Sets] = []
    for block in blocks():
        found.append(block)
        if sum(len(copies) for _, copies in found) > most:
            return blocks
    return lambda: found
