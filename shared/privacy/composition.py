r"""Composition per person: the privacy loss of the worst class of persons, not the sum over all events.

A charge counts against everybody, or against new persons. Before a release of new persons is drawn these are only
bounded (whom no earlier release has touched); from its *drawing* entry on they are a list of keyed pseudonyms. Persons
who took part in the same releases form a class, and have lost the same:

.. math:: \varepsilon(\delta) = \max_{\text{classes } c} \; \min\Bigl( \varepsilon_{\mathrm{RDP}}\Bigl(\sum_{i \in c}
          \rho_i, \delta\Bigr), \; \sum_{i \in c} \varepsilon_i \Bigr)

(the pure sum only where every charge of the class has one). New persons in wave 3 do not pay for wave 1, and disjoint
strata do not add up. Three rules keep the figure from ever being too small:

* a charge against everybody (a refresh, a training) stays one, whoever was drawn: identifiers that are rewritten
  between two of them would make the same persons look like others;
* a charge whose persons are not known (no person column, a ledger that was put back) counts against everybody;
* an undrawn charge for *new* persons is counted beside every person that it may still touch: those in no release at
  all, and those whose every release had been burnt when it was reserved. The ledger lets it draw nobody else.

Across the studies of a site the classes are not matched. Pseudonyms are keyed per site, so equal identifiers give
equal pseudonyms in all studies; but whether two studies identify a patient by the same number nobody here can tell,
and a patient with two numbers would be counted as two. The total of a site therefore adds the worst class of each
study, order by order: an upper bound for whoever took part in all of them. Only where an approver has signed that two
studies are about different people are the two not added up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shared.privacy.accountant import Event

__all__ = ["Charge", "StudyCharges", "composed", "least_total", "site_total", "total_of_gaussians"]


class Redrawn(Protocol):
    """The property of a plan that composition reads."""

    @property
    def redraws(self) -> bool:
        """True if each wave draws the same persons again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The price of one release, and whom it touches.

    Args:
        rdp: Rényi curve on the fixed orders, ∞ where undefined.
        pure: pure ε, or None.
        persons: pseudonyms, once they are known; None before.
        beside: while `persons` is None: None if it may touch everybody; for a release of new persons, the positions
            (in the sequence of charges) of those drawn releases whose persons it may touch again.
    """

    rdp: tuple[float, ...] = field(repr=False)
    pure: float | None
    persons: Collection[str] | None = field(default=None, repr=False)
    beside: frozenset[int] | None = None


class StudyCharges:
    """The charges of one study, sorted into classes of persons.

    >>> gaussian = (0.5,) * 289
    >>> def touched(*persons):
    ...     return Charge(rdp=gaussian, pure=None, persons=persons)
    >>> apart = StudyCharges([touched("a", "b"), touched("c")])
    >>> twice = StudyCharges([touched("a", "b"), touched("b")])
    >>> apart.total(1e-6) < twice.total(1e-6)
    True
    """

    def __init__(self, charges: Sequence[Charge]) -> None:
        self.charges = tuple(charges)
        took: dict[str, int] = {}
        for k, charge in enumerate(self.charges):
            bit = 1 << k
            for person in charge.persons or ():
                took[person] = took.get(person, 0) | bit
        # 0 is whoever took part in nothing yet: somebody may always join.
        self._classes = {0, *took.values()}

    def classes(self, upto: int | None = None) -> set[int]:
        """Each class as a bit pattern over the charges, the first `upto` of them."""
        count = len(self.charges) if upto is None else upto
        known = (1 << count) - 1
        always = sum(1 << k for k, c in enumerate(self.charges[:count]) if c.persons is None and c.beside is None)
        drawn = {mask & known for mask in self._classes}
        out = set(drawn)
        for k, charge in enumerate(self.charges[:count]):
            if charge.persons is None and charge.beside is not None:
                possible = sum(1 << other for other in charge.beside)
                out |= {mask | 1 << k for mask in drawn if not mask & ~possible}
        return {mask | always for mask in out}

    def total(self, delta: float, upto: int | None = None) -> float:
        """ε of the worst class at `delta`, of the first `upto` charges."""
        return max((_epsilon(curve, pure, delta) for curve, pure in self._sums(upto)), default=0.0)

    def bound(self) -> tuple[Any, float | None]:
        """A curve (289,) that no class exceeds at any order, and a pure ε that none exceeds, or None."""
        import numpy as np

        sums = list(self._sums(None))
        pures = [pure for _, pure in sums]
        return np.max([curve for curve, _ in sums], axis=0), None if None in pures else max(p or 0.0 for p in pures)

    def _sums(self, upto: int | None) -> Iterable[tuple[Any, float | None]]:
        """Curve and pure ε of each class; classes that were charged the same prices as often are one."""
        import numpy as np

        names: dict[tuple[tuple[float, ...], float | None], int] = {}
        known: dict[tuple[int, float | None], int] = {}  # most charges hold one curve: it is hashed once
        having: list[int] = []  # of each price, the charges that have it, as bits
        for k, charge in enumerate(self.charges):
            same = (id(charge.rdp), charge.pure)
            if same not in known:
                known[same] = names.setdefault((charge.rdp, charge.pure), len(names))
                having += [0] * (len(names) - len(having))
            having[known[same]] |= 1 << k
        prices = list(names)
        curves = [np.asarray(rdp, dtype=np.float64) for rdp, _ in prices]
        counted = {tuple((mask & bits).bit_count() for bits in having) for mask in self.classes(upto)}
        for times in counted:
            held = [(k, many) for k, many in enumerate(times) if many]
            curve = sum((many * curves[k] for k, many in held), np.zeros(_orders()))
            pures = [(prices[k][1], many) for k, many in held]
            pure = math.fsum(many * value for value, many in pures if value is not None)
            yield curve, None if any(value is None for value, _ in pures) else pure


def site_total(studies: Iterable[StudyCharges], delta: float, apart: Collection[frozenset[int]] = frozenset()) -> float:
    """ε at `delta` of somebody who was in the worst class of every study that one person can have been in.

    Args:
        apart: pairs of positions in `studies` whose persons are different people, by somebody's word; all others are
            taken to be of the same people, whatever they call them.
    """
    import numpy as np

    bounds = [study.bound() for study in studies]
    total = 0.0
    for group in _together(range(len(bounds)), apart):
        pures = [bounds[k][1] for k in group]
        pure = None if None in pures else math.fsum(p for p in pures if p is not None)
        total = max(total, _epsilon(np.sum([bounds[k][0] for k in group], axis=0), pure, delta))
    return total


def _together(
    studies: Iterable[int], apart: Collection[frozenset[int]], chosen: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """Sets of studies of which no two are told apart, every largest one among them.

    >>> sorted(_together(range(3), [frozenset({0, 1})]))
    [(0, 2), (1, 2)]
    """
    left = list(studies)
    pairs = [pair for pair in apart if pair <= set(left)]
    if not pairs:
        if chosen or left:
            yield (*chosen, *left)
        return
    first, second = sorted(pairs[0])
    for without in (second, first):
        yield from _together([study for study in left if study != without], apart, chosen)


def composed(times: Mapping[Event, int], delta: float) -> float:
    """ε at `delta` of somebody who was in each of these events so many times; 0 of none.

    >>> from shared.privacy.events import Laplace
    >>> composed({Laplace(scale=4.0, sensitivity=1.0): 2}, 1e-6)
    0.5
    """
    from shared.privacy import accountant as privacy

    if not times:
        return 0.0
    curve = sum(many * privacy.rdp(event) for event, many in times.items())
    pures = [(privacy.pure_epsilon(event), many) for event, many in times.items()]
    pure = math.fsum(many * value for value, many in pures if value is not None)
    return _epsilon(curve, None if any(value is None for value, _ in pures) else pure, delta)


@lru_cache(maxsize=4096)
def total_of_gaussians(times: int, epsilon: float, delta: float) -> float:
    """ε of somebody who is in so many releases of one ε each, as a ledger composes them: a Gaussian mechanism each.

    >>> total_of_gaussians(4, 1.0, 1e-6) < 4
    True
    """
    from shared.privacy import accountant as privacy
    from shared.privacy import calibration

    event = calibration.calibrate(privacy.Gaussian, epsilon, delta, sensitivity=1.0)
    return composed({event: times}, delta)


def least_total(charges: Sequence[tuple[Redrawn, Event]], delta: float, *, together: bool = False) -> float:
    """The least ε that an honest ledger can have charged its worst-off person for these releases of one site.

    A ledger composes per person, and counts every draw, also one that was refused or never sent. What a release under
    ``refresh`` cost counts against everybody; of two others nobody need be in both, and all that is known is that
    somebody is in the dearest one. No total holds a release without a guarantee.

    Args:
        charges: plan and event of each release.
        delta: δ of the study.
        together: what it would be for somebody who is in all of them; not a bound.
    """
    from shared.privacy import accountant as privacy

    promised = [(plan, event) for plan, event in charges if privacy.guaranteed(event)]
    everybodys = Counter(event for plan, event in promised if plan.redraws or together)
    single = {event for plan, event in promised if not (plan.redraws or together)}
    return max(
        (composed(everybodys + Counter([event]), delta) for event in single), default=composed(everybodys, delta)
    )


def _epsilon(curve: Any, pure: float | None, delta: float) -> float:
    from shared.privacy import accountant as privacy

    total = float(privacy.epsilon_from_rdp(curve, delta))
    return total if pure is None else min(total, pure)


def _orders() -> int:
    from shared.privacy import accountant as privacy

    return len(privacy.ORDERS)
