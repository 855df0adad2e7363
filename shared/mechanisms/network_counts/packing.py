r"""Largest number of copies under a cap per person: a linear program of any size, solved to a given tolerance.

.. math:: f = \max \sum_A x_A, \quad 0 \le x_A \le c_A, \quad \sum_{A \ni u} x_A \le \Delta \text{ for each person } u,

over sets A of one to three persons, each of which :math:`c_A` copies share. It is solved where it is small, in one
price :math:`y_u \ge 0` a person: by duality f is the least value of :math:`g(y) = \Delta \sum_u y_u + \sum_A c_A (1 -
y(A))^+`. The barrier method (Nesterov & Nemirovskii 1994; Boyd & Vandenberghe 2004, chapter 11) follows, for falling μ,
the least of

.. math:: F(y) = \Delta \sum_u y_u - \mu \sum_u \log y_u + \sum_A \max_{0 < x < c_A}
    [x (1 - y(A)) + \mu \log x + \mu \log(c_A - x)]

by Newton's steps. The x that each set has there are feasible once the least is found, so that every step gives a bound
from either side: g(y), and the sum of x.

*Few of the sets are looked at* (column generation, Gilmore & Gomory 1961). A set whose price y(A) is at least one adds
nothing to g, and a solution that leaves sets out is a solution. So the steps go on with some of the sets of three, and
at the prices where they end those that are cheaper are taken in, until all that are outside are worth less than what
the bounds lie apart. No more than a third of :math:`\Delta` times the persons can be at their upper bound, however
many there are; and what *all* are worth is asked of the network, which need not make them (`triples`). That is asked
of prices a little higher than those found: they cost little, and what lies at a price of one by rounding is not asked.

*It always ends*, with bounds as near as was asked. F/μ is self-concordant: a step either has a decrement
:math:`\lambda < 1/4` and goes on quadratically, or goes far enough to lower it by at least :math:`\lambda - \log(1 +
\lambda)`. So each μ takes finitely many steps, and at its end the bounds lie μ times twice the number of sets and
persons apart. Doubles, and too many sets for the memory, are the limits. What they leave undone is solved with all
sets, gone through anew each time, and at last in decimals of 40 digits, 80 and so on: what is computed comes as near
to the exact steps as one likes, and those end. No value leaves before the bounds have met, because it would have no
proven sensitivity; and a refusal would be a function of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

__all__ = ["Packing", "Sets", "Triples"]

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[Any]
"""Doubles, or decimals as objects."""
Sets: TypeAlias = tuple[tuple[Counts, ...], Floats]
"""Sets of as many persons each: a column of persons for the first, the second, the third; and copies of each set."""
Triples: TypeAlias = Callable[[Floats, "Counts | None"], Iterable[tuple[float, Counts]]]
"""At some prices, part by part: what all sets of three are worth, the sum of (1 − y(A))⁺; and those whose price is
below one, (3, m). Of them a part may give, for a person in the first line, only so many as it is told, by chance."""

DENSE = 2_000
"""Persons up to whom the matrix of second derivatives is dense, and Newton's equation solved by Cholesky's method.

Three times as many where sets are gone through anew, which conjugate gradients do at each of their rounds."""
FEW = 1 << 20
"""Sets of three up to which all are looked at; and no more are taken in at once."""
MOST = 1 << 24
"""Sets of three that are kept in memory; where more are needed, all are gone through anew each time."""
STEPS = 500
_BLOCK = 1 << 18
_SMALLER = 10
_CENTRED, _FOUND = 10, 1000
"""One over the Newton decrement below which the next μ is begun, and where the bounds are to meet at this one."""


class _Working:
    """The sets that the steps see, with copies as numbers of the kind that is used."""

    def __init__(self, of: Packing) -> None:
        self.of = of
        self.number: type[float] | type[Decimal] = float
        self.all = of.number <= FEW
        """True if every set of three takes part; `held`: True if they are in memory, False if enumerated each time."""
        self.held = True
        self.three = _beside(())
        self.cheap = self.three
        """Those outside whose price is below one, after :meth:`outside`."""
        if self.all:
            self.three = _beside(some for _, some in of.triples(np.zeros(of.persons), None))
        else:
            self.outside(np.full(of.persons, 0.25))
            self.take_in()

    def __call__(self) -> Iterator[tuple[tuple[Counts, ...], Numbers]]:
        for members, copies in self.of.few:
            yield members, copies if self.number is float else _decimals(copies)
        for some in self._threes():
            ones = np.ones(some.shape[1])
            yield tuple(some), ones if self.number is float else _decimals(ones)

    def _threes(self) -> Iterator[Counts]:
        if self.held:
            yield from (self.three[:, at : at + _BLOCK] for at in range(0, self.three.shape[1], _BLOCK))
        else:
            yield from (some for _, some in self.of.triples(np.zeros(self.of.persons), None))

    def outside(self, y: Floats) -> float:
        """Σ (1 − y(A))⁺ over the sets left out; infinite if too many have a price below one, and the search stops.

        Stores those found, or an even selection of them, in `cheap`.
        """
        if self.all:
            return 0.0
        k, cap, within = self.of.persons, min(self.of.cap, 1 << 16), self.three.shape[1]
        most = 4 * cap + 2 * np.bincount(self.three[0], minlength=k)
        worth, found, size = 0.0, [self.three[:, :0]], 0
        for value, some in self.of.triples(y, most):
            worth += value
            found.append(some)
            size += some.shape[1]
            if size > 4 * k * cap + 2 * within:
                worth = np.inf
                break
        new = _beside(found)
        new = new[:, np.isin(self._key(new), self._key(self.three), invert=True)]
        room = min(k * cap, FEW)
        self.cheap = new if new.shape[1] <= room else new[:, np.arange(room) * new.shape[1] // room]
        own = sum(float(np.maximum(1 - y[some].sum(axis=0), 0).sum()) for some in self._threes())
        return max(0.0, worth - own)

    def _key(self, three: Counts) -> Counts:
        k = self.of.persons
        return np.asarray((three[0] * k + three[1]) * k + three[2])

    def take_in(self) -> bool:
        """Add the sets in `cheap` to those that take part. Returns: True if there were any."""
        self.three = np.concatenate([self.three, self.cheap], axis=1)
        return bool(self.cheap.shape[1])


@dataclass(frozen=True)
class _Place:
    """Sums over the sets at one y and μ: x by person (`load`), all x (`taken`), g(y) (`above`), and number of sets."""

    load: Numbers
    taken: Any
    above: Any
    sets: int


@dataclass(frozen=True)
class Packing:
    """Copies that persons share, under one cap.

    Args:
        persons: how many. cap: Δ, at least 1.
        few: sets that are all kept in memory, each with at least one copy.
        triples: gives sets of three persons with one copy each. number: how many there are.

    >>> both = (np.array([0]), np.array([1])), np.array([5.0])
    >>> low, high = Packing(persons=2, cap=3, few=[both]).bounds(0.01)
    >>> bool(2.99 <= low <= 3 <= high <= 3.01)
    True
    """

    persons: int
    cap: int
    few: Sequence[Sets]
    triples: Triples = lambda prices, most: ()
    number: int = 0

    def bounds(self, room: float) -> tuple[float, float]:
        """A number at most f and one at least f, no further apart than `room`."""
        sets = _Working(self)
        low, high = self._followed(sets, room, STEPS)
        if not high - low <= room and not sets.all:
            sets.held, sets.all, sets.three = False, True, sets.three[:, :0]
            low, high = self._followed(sets, room, STEPS)
        digits = 20
        while not high - low <= room:
            digits *= 2
            sets.number = Decimal
            with localcontext(Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)):
                low, high = self._followed(sets, room, digits * STEPS, tolerance=10**digits)
        return low, high

    def _followed(self, sets: _Working, room: float, steps: int, tolerance: int = 10**6) -> tuple[float, float]:
        """The bounds, or others that lie further apart, where so many steps or doubles were not enough."""
        k, cap, number = self.persons, self.cap, sets.number
        y: Numbers = np.full(k, number(1) / 4)
        mu: Any = number(1) / 4 * cap
        low, high = -np.inf, np.inf
        for _ in range(steps):
            at = self._at(sets, y, mu)
            # What is too much of somebody is too much of all: smaller by one factor, the x are feasible.
            low = max(low, float(at.taken * min(1, cap / at.load.max())))
            apart = float(at.above) - low
            slope = cap - mu / y - at.load
            step = self._newton(sets, y, mu, slope, tolerance)
            fall = -(slope @ step)
            if not np.isfinite(float(fall)) or (not sets.all and sets.three.shape[1] > MOST):
                break
            # Near enough to the least; once μ is small enough, nearer still: there the bounds meet.
            near = _CENTRED if float(mu) * (2 * at.sets + k) > room / 2 else _FOUND
            if fall * near**2 > mu and apart > room / 2:
                y = self._along(sets, y, mu, step, fall)
                continue
            gap = max(room, apart)
            prices = y.astype(float)
            prices *= 1 + gap / (8 * cap * prices.sum())
            outside = sets.outside(prices)
            high = min(high, self._worth(sets, prices) + outside)
            if high - low <= room:
                break
            if outside <= gap / 4 or not sets.take_in():
                mu /= _SMALLER
        return low, high

    def _worth(self, sets: _Working, prices: Floats) -> float:
        """g of the sets that are looked at."""
        each = (copies.astype(float) @ np.maximum(1 - _of(members, prices), 0) for members, copies in sets())
        return float(self.cap * prices.sum() + sum(each))

    def _along(self, sets: _Working, y: Numbers, mu: Any, step: Numbers, fall: Any) -> Numbers:
        """As far along a step as lowers F at least as much as the step of 1/(1 + λ) that self-concordance allows."""
        decrement = np.sqrt(fall / mu)
        if decrement < 0.25:
            return y + step
        down, sure = step < 0, 1 / (1 + decrement)
        far = min(1, (-y[down] / step[down]).min() * 19 / 20) if down.any() else 1
        while far > sure and (self.cap - mu / (y + far * step) - self._at(sets, y + far * step, mu).load) @ step > 0:
            far = sets.number(far) / 2
        return y + max(far, sure) * step

    def _at(self, sets: _Working, y: Numbers, mu: Any) -> _Place:
        """Gradient of what the sets add, and both bounds."""
        load = np.full(self.persons, sets.number(0))
        taken, above, many = sets.number(0), self.cap * y.sum(), 0
        for members, copies in sets():
            left = 1 - _of(members, y)
            x, _ = _filled(left, copies, mu)
            many += len(copies)
            taken += x.sum()
            above += (copies * np.maximum(left, 0)).sum()
            for one in members:
                load += _spread(one, x, self.persons)
        return _Place(load=load, taken=taken, above=above, sets=many)

    def _newton(self, sets: _Working, y: Numbers, mu: Any, slope: Numbers, tolerance: int) -> Numbers:
        """Newton's step, its matrix's diagonal made one."""

        def bends() -> Iterator[tuple[tuple[Counts, ...], Numbers]]:
            for members, copies in sets():
                both = _filled(1 - _of(members, y), copies, mu)[1]
                yield members, both**2 / (mu * (copies**2 - 2 * both))

        kept = list(bends()) if sets.held else None
        diagonal = mu / y**2
        if sets.number is float and self.persons <= (DENSE if sets.held else 3 * DENSE):
            return _by_cholesky(kept or bends(), diagonal, slope)
        return _by_gradients(lambda: kept or bends(), diagonal, slope, tolerance)


def _of(members: Sequence[Counts], y: Numbers) -> Numbers:
    """The price of each set."""
    return np.asarray(sum(y[one] for one in members))


def _filled(left: Numbers, copies: Numbers, mu: Any) -> tuple[Numbers, Numbers]:
    """The x that solves left + μ/x − μ/(c − x) = 0; and x (c − x), in which nothing cancels."""
    half = copies / 2
    root = mu + np.sqrt(mu**2 + (left * half) ** 2)
    both = 2 * mu * half**2 / root
    larger = half + np.abs(left) * half**2 / root
    return np.where(left > 0, larger, both / larger), both


def _spread(to: Counts, values: Numbers, persons: int) -> Numbers:
    """The sum of the values of each person."""
    if values.dtype != object:
        return np.bincount(to, values, persons)
    out = np.full(persons, Decimal(0))
    np.add.at(out, to, values)
    return out


def _decimals(values: Floats) -> Numbers:
    return np.array([Decimal(value) for value in values.tolist()], dtype=object)


def _beside(found: Iterable[Counts]) -> Counts:
    return np.concatenate([np.zeros((3, 0), dtype=np.int64), *found], axis=1)


def _by_cholesky(bends: Iterable[tuple[tuple[Counts, ...], Floats]], diagonal: Floats, slope: Floats) -> Floats:
    k = len(slope)
    half = np.zeros(k * k)
    for members, change in bends:
        for place, one in enumerate(members):
            for other in members[place:]:
                np.add.at(half, one * k + other, change / 2 if other is one else change)
    matrix = half.reshape(k, k) + half.reshape(k, k).T
    matrix[np.diag_indices(k)] += diagonal
    unit = 1 / np.sqrt(np.diag(matrix))
    matrix *= unit
    matrix *= unit[:, None]
    # By rounding alone it may have no root: a little more on the diagonal is still a way down.
    for more in (0.0, 1e-13, 1e-11, 1e-9):
        try:
            factor = cho_factor(matrix + more * np.eye(k) if more else matrix, lower=True, check_finite=False)
        except LinAlgError:
            continue
        return np.asarray(-unit * cho_solve(factor, unit * slope, check_finite=False))
    return np.full(k, np.nan)


def _by_gradients(
    bends: Callable[[], Iterable[tuple[tuple[Counts, ...], Numbers]]],
    diagonal: Numbers,
    slope: Numbers,
    tolerance: int,
) -> Numbers:
    """By conjugate gradients, whose every iterate is a way down, until the squared rest is so many times smaller.

    Exactly it takes at most as many rounds as there are persons.
    """
    k = len(slope)
    whole = diagonal + sum(_spread(one, change, k) for members, change in bends() for one in members)
    unit = 1 / np.sqrt(whole)

    def times(v: Numbers) -> Numbers:
        scaled = unit * v
        out = diagonal * scaled
        for members, change in bends():
            flow = change * _of(members, scaled)
            for one in members:
                out = out + _spread(one, flow, k)
        return unit * out

    x, left = 0 * slope, unit * slope
    way, size = left, left @ left
    stop = size / tolerance
    for _ in range(10 * k):
        if not size > stop:
            break
        turned = times(way)
        far = size / (way @ turned)
        x, left = x + far * way, left - far * turned
        before, size = size, left @ left
        way = left + size / before * way
    return np.asarray(-unit * x)
