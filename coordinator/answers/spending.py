"""Privacy loss of the accepted releases against a study's budget, wave by wave, and of further waves.

The coordinator holds no ledger, and no receipt tells what one holds: how often a draw was burnt or rejected is the
site's own. What is known here is the price of each release that arrived, withdrawn since or not, and it is a lower
bound of what its persons were charged; the plan's cap is the upper one. A further wave adds what it would be charged:
through the flow that the site has, unless it refits. A site with a release without a formal guarantee has no ε to
draw: it is named beside the figure.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shared.base.canonical import canonical_json, parse_json
from shared.errors import StateRefusal
from shared.privacy.composition import least_total
from shared.privacy.stated import all_given, shown_epsilon, shown_price

if TYPE_CHECKING:
    from coordinator.figures.canvas import DrawnFigure
    from coordinator.store.rows import ReleaseLine
    from coordinator.store.store import Store
    from shared.plans.plan import StudyPlan
    from shared.privacy.accountant import Event

__all__ = ["BudgetReport", "ReleasePrices", "Spending", "StatedPrice", "spending"]

Points = tuple[tuple[int, float], ...]
PRICES_KEPT, READ_AT_ONCE = 1 << 17, 1000


class StatedPrice(NamedTuple):
    """Price of a release, as stated in its receipt: ε, the condition that ε takes as given for the release itself and
    in the study's total, and the event as canonical JSON."""

    epsilon: float | None
    given: str
    given_in_total: str
    event: str


class ReleasePrices:
    """Prices of releases. A receipt is read once: a bundle's bytes never change. Safe for many threads."""

    def __init__(self, store: Store) -> None:
        self._store, self._guard = store, threading.Lock()
        self._known: OrderedDict[str, StatedPrice] = OrderedDict()

    def of(self, lines: Sequence[ReleaseLine]) -> dict[str, StatedPrice]:
        """SHA-256 of the bundle of each release to its price."""
        with self._guard:
            prices = {one.bundle_sha256: self._known.get(one.bundle_sha256) for one in lines}
        new = [digest for digest, price in prices.items() if price is None]
        for start in range(0, len(new), READ_AT_ONCE):
            for digest, found in self._store.releases_of(new[start : start + READ_AT_ONCE]).items():
                own = found.receipt
                event = sys.intern(canonical_json(own.event).decode())
                prices[digest] = StatedPrice(own.stated_epsilon, own.given, own.given_in_total, event)
        known = {digest: price for digest, price in prices.items() if price is not None}
        with self._guard:
            self._known.update((digest, known[digest]) for digest in new)
            while len(self._known) > PRICES_KEPT:
                self._known.popitem(last=False)
        return known


@dataclass(frozen=True, kw_only=True)
class Spending:
    """One site, or several with the same course.

    Args:
        sites: their names.
        given: conditions that those ε take as given, of all releases in them; blank for none.
        spent: (wave, ε of what had arrived of the study by then) for every release that was accepted, rising.
        planned: the same for the plan's further waves, up to the first that the cap does not allow.
    """

    sites: tuple[str, ...]
    spent: Points
    planned: Points
    given: str = ""


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """A study's budget.

    Args:
        cap, delta: of the newest plan.
        waves: numbers of its waves.
        courses: sites with the same course together.
        open: sites without a course, because no total holds their releases, and what stands in place of their price.
    """

    study: str
    version: int
    cap: float
    delta: float
    waves: tuple[int, ...]
    courses: tuple[Spending, ...]
    open: Mapping[str, str] = field(default_factory=dict)

    def figure(self, path: Path | None = None, *, title: str = "") -> DrawnFigure:
        """Draw it (`coordinator.figures.over_time.budget_figure`)."""
        from coordinator.figures.over_time import budget_figure

        return budget_figure(self, title=title, path=path)


def spending(store: Store, study: str, prices: ReleasePrices | None = None) -> BudgetReport:
    """Privacy loss of every site's releases in a study, in the order of their arrival.

    Args:
        prices: those that were read before.
    Raises: PlanRefusal (no such study), StateRefusal (no release, or none with a formal guarantee).
    """
    plan = store.plan(study).plan
    numbers = tuple(sorted(wave.number for wave in plan.waves))
    lines = store.release_lines(study, withdrawn=True)  # by wave
    known = (prices or ReleasePrices(store)).of(lines)
    courses: dict[tuple[tuple[tuple[int, str], ...], str], dict[str, Points]] = {}
    by_site: dict[str, list[tuple[int, int, StatedPrice]]] = {}
    open_: dict[str, str] = {}
    for line in lines:
        price = known[line.bundle_sha256]
        if price.epsilon is None:
            open_[line.site] = shown_price(None, price.given)
        else:
            by_site.setdefault(line.site, []).append((line.wave, line.plan_version, price))
    if not by_site and not open_:
        raise StateRefusal("a study must have an accepted release", given="none", next_step="See coordinator releases.")
    if not by_site.keys() - open_.keys():
        raise StateRefusal(
            "a site must have releases with a formal guarantee, or there is no ε to draw",
            given="; ".join(f"{site}: {words}" for site, words in sorted(open_.items())),
            next_step="See coordinator releases.",
        )
    versions = {version: store.plan(study, version).plan for version in {line.plan_version for line in lines}}
    charged: dict[tuple[tuple[int, int, StatedPrice], ...], tuple[Points, list[tuple[StudyPlan, Event]]]] = {}
    charges: dict[str, list[tuple[StudyPlan, Event]]] = {}
    for site, found in sorted(by_site.items()):
        if site in open_:  # the ε of a part of what left the site would pass for that of all of it
            continue
        own = tuple(found)
        if own not in charged:  # hundreds of sites have the same releases at the same prices
            charged[own] = _spent(own, versions, plan.budget.delta)
        points, charges[site] = charged[own]
        alike = tuple((wave, shown_epsilon(epsilon)) for wave, epsilon in points)  # two machines differ in last digits
        given = all_given((price.epsilon, price.given_in_total) for _, _, price in own)
        courses.setdefault((alike, given), {})[site] = points
    return BudgetReport(
        study=study,
        version=plan.version,
        cap=plan.budget.epsilon,
        delta=plan.budget.delta,
        waves=numbers,
        courses=tuple(_course(sites, given, plan, charges[next(iter(sites))]) for (_, given), sites in courses.items()),
        open=dict(sorted(open_.items())),
    )


def _spent(
    releases: Sequence[tuple[int, int, StatedPrice]], versions: Mapping[int, StudyPlan], delta: float
) -> tuple[Points, list[tuple[StudyPlan, Event]]]:
    """The total after each release of a site, (wave, version of the plan, price); and what all were charged as."""
    from shared.privacy import accountant as privacy

    arrived: list[tuple[StudyPlan, Event]] = []
    points = []
    for wave, version, price in releases:
        arrived.append((versions[version], privacy.from_canonical(parse_json(price.event.encode()))))
        points.append((wave, least_total(arrived, delta)))
    return tuple(points), arrived


def _course(
    sites: Mapping[str, Points], condition: str, plan: StudyPlan, arrived: Sequence[tuple[StudyPlan, Event]]
) -> Spending:
    """The course of sites that print alike: what the dearest of them spent."""
    from shared.releases.receipt import given

    spent = tuple(max(points) for points in zip(*sites.values(), strict=True))
    planned = _planned(plan, arrived, after=spent[-1][0])
    conditions = [(spent[-1][1], condition), *((epsilon, given(plan)) for _, epsilon in planned)]
    return Spending(sites=tuple(sites), spent=spent, planned=planned, given=all_given(conditions))


def _planned(plan: StudyPlan, arrived: Sequence[tuple[StudyPlan, Event]], *, after: int) -> Points:
    """Totals after each further wave, to the first beyond the cap, for somebody drawn as often as the plan may.

    Args:
        arrived: plan and event of the site's releases, in the order of their arrival.
        after: number of the newest wave of these.
    """
    from shared.releases.receipt import charged_training, planned_event, refits

    charges = [*arrived, *([] if plan.federated is None else [(plan, plan.federated.event)])]
    training, points = charged_training(plan), list[tuple[int, float]]()
    fitted = training is None or any(training in event.to_canonical().get("events", ()) for _, event in arrived)
    for wave in sorted(plan.waves, key=lambda wave: wave.number):
        if wave.number <= after:
            continue
        charges.append((plan, planned_event(plan, reused=fitted and not refits(plan, wave))))
        fitted = True
        points.append((wave.number, least_total(charges, plan.budget.delta)))
        if points[-1][1] > plan.budget.epsilon:
            break
    return tuple(points)
