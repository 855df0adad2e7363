"""What the sites' receipts say was spent of a study's budget, wave by wave, and what its further waves would cost.

The coordinator holds no ledger. What it knows is what each receipt says: the ε of the study so far for the site's
worst-off person, that release and everything before it included, be it released, burnt in a crash or withdrawn since
(nothing is ever refunded). So a site that was charged and never delivered shows that with its next receipt only, and
the figure says so. Further waves are priced as `coordinator plan cost` prices them. A site with a release without a
formal guarantee has no ε to draw: it is named beside the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.planning import Cost, cost
from shared.errors import StateRefusal
from shared.stated import shown_epsilon, shown_price

if TYPE_CHECKING:
    from coordinator.drawing import Drawn
    from coordinator.store import Store

__all__ = ["Budget", "Spending", "spending"]

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Spending:
    """One site, or several with the same course.

    Args:
        sites: their names.
        given: what those ε take as given; blank for nothing.
        spent: (wave, ε of the study after it) for every release that was accepted, rising.
        planned: the same for the plan's further waves, up to the first that the cap does not allow.
    """

    sites: tuple[str, ...]
    spent: Points
    planned: Points
    given: str = ""


@dataclass(frozen=True, kw_only=True)
class Budget:
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

    def figure(self, path: Path | None = None, *, title: str = "") -> Drawn:
        """Draw it (`coordinator.time_figures.budget_figure`)."""
        from coordinator.time_figures import budget_figure

        return budget_figure(self, title=title, path=path)


def spending(store: Store, study: str) -> Budget:
    """What every site of a study spent, as its receipts say.

    Raises: PlanRefusal (no such study), StateRefusal (no release, or none with a formal guarantee).
    """
    plan = store.plan(study).plan
    price = cost(plan, waves=2 * len(plan.waves))  # a crash burns a charge: more of them than waves
    numbers = tuple(sorted(wave.number for wave in plan.waves))
    courses: dict[tuple[tuple[tuple[int, str], ...], str], dict[str, Points]] = {}
    by_site: dict[str, list[tuple[int, float]]] = {}
    given: dict[str, str] = {}
    open_: dict[str, str] = {}
    for release in store.releases(study, withdrawn=True):  # by wave
        stated = release.receipt.stated_study_epsilon
        if stated is None:
            open_[release.site] = shown_price(None, release.receipt.given)
        else:
            given[release.site] = given.get(release.site) or release.receipt.given
            by_site.setdefault(release.site, []).append((release.wave, stated))
    if not by_site and not open_:
        raise StateRefusal("a study must have an accepted release", given="none", next_step="See coordinator releases.")
    if not by_site.keys() - open_.keys():
        raise StateRefusal(
            "a site must have releases with a formal guarantee, or there is no ε to draw",
            given="; ".join(f"{site}: {words}" for site, words in sorted(open_.items())),
            next_step="See coordinator releases.",
        )
    for site, found in sorted(by_site.items()):
        if site in open_:  # the ε of a part of what left the site would pass for that of all of it
            continue
        alike = tuple((wave, shown_epsilon(epsilon)) for wave, epsilon in found)  # two machines differ in last digits
        courses.setdefault((alike, given[site]), {})[site] = tuple(found)
    return Budget(
        study=study,
        version=plan.version,
        cap=plan.budget.epsilon,
        delta=plan.budget.delta,
        waves=numbers,
        courses=tuple(_course(sites, told, price, numbers, plan.redraws) for (_, told), sites in courses.items()),
        open=dict(sorted(open_.items())),
    )


def _course(sites: Mapping[str, Points], given: str, price: Cost, numbers: Sequence[int], redraws: bool) -> Spending:
    """The course of sites that print alike: what the dearest of them spent."""
    spent = tuple(max(points) for points in zip(*sites.values(), strict=True))
    further = [number for number in numbers if number > spent[-1][0]]
    planned = _planned(price, spent[-1][1], further, redraws)
    return Spending(sites=tuple(sites), spent=spent, planned=planned, given=given)


def _planned(price: Cost, spent: float, further: list[int], redraws: bool) -> Points:
    """Totals after each further wave for somebody who is in all; an odd total is rounded up to whole charges."""
    totals = [wave.total for wave in price.waves]
    charged = next((i + 1 for i, total in enumerate(totals) if total >= spent * (1 - 1e-6)), len(totals))
    points: list[tuple[int, float]] = []
    for j, number in enumerate(further[: len(totals) - charged], start=1):
        # Under append and frozen nobody is drawn twice, so a further wave is paid by others.
        total = totals[charged + j - 1] if redraws else max(spent, totals[0])
        points.append((number, total))
        if total > price.cap:
            break
    return tuple(points)
