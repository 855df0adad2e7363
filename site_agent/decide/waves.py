"""The plan's calendar, lived by: which wave is due, once each, and where each wave stands.

What is due follows from three things only: the plan, the ledger's holds, and the UTC date. No state is kept beside the
ledger, so there is nothing that could disagree with it after a crash, a month without power or a restored folder. Two
rules make that safe under a clock that lies:

* a wave that has a hold of its own, whatever became of it, is never due again; drawing it anew is a person's decision
  (`site-agent release`) and another charge. Only an open reservation and an unaudited seal are taken up again;
* waves go forward: once a later wave has a hold, an earlier one without has merged into it. What came first is the
  ledger's order; a date only opens and closes.

So a clock that is wrong may make a wave early or leave it out, and never makes one twice. A date is a day in UTC: a
plan's day does not begin earlier in another time zone, nor twice in a year of summer time.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import (
    SmallN,
)
from shared.plans.plan import StudyPlan, Wave

if TYPE_CHECKING:
    from site_agent.ledger.book import Hold, Ledger

__all__ = ["PlanTotals", "Planned", "by_lot", "calendar", "cost", "due"]

_OPEN = {
    "reserved": "reserved",
    "anchored": "reserved",
    "drawing": "being drawn",
    "sealed": "sealed, not yet checked",
    "held": "waits for a person",
    "sent_back": "sent back",
    "approved": "approved, not yet sent",
    "delivered": "delivered",
    "withdrawn": "withdrawn",
    "burnt": "burnt",
    "rejected": "rejected",
}
_RESUMED = ("due", "reserved", "sealed, not yet checked")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One wave of a plan and where it stands.

    Args:
        state: ``not yet open``, ``due``, ``missed``, ``merged``, or what became of its release.
        release_id: of its last hold; blank while it has none.
        into: the wave that took it over, where it is merged.
    """

    number: int
    opens: dt.date
    closes: dt.date
    state: str
    release_id: str = ""
    into: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanTotals:
    """Privacy loss of a plan's waves for the person who is charged most.

    Args:
        totals: ε after 1, 2, … waves, as the cap is held against it.
        affordable: the last wave whose total is within the cap; 0 for none.
    """

    totals: tuple[float, ...]
    affordable: int


def calendar(plan: StudyPlan, holds: Iterable[Hold], today: dt.date) -> tuple[Planned, ...]:
    """Every planned wave and where it stands on a day.

    Args:
        plan: whichever version holds now; waves are known by their number.
        holds: the ledger's holds of this study, in its order.
    """
    own = [hold for hold in holds if hold.study == plan.study and hold.wave > 0]
    last = {hold.wave: hold for hold in own}
    taken_over = {number: hold.wave for hold in own for number in hold.merged}
    latest = max(last, default=0)
    out = []
    for wave in plan.waves:
        hold, into = last.get(wave.number), None
        if hold is not None:
            state = _OPEN[hold.state]
        elif wave.number < latest:
            state, into = "merged", taken_over.get(wave.number, min(n for n in last if n > wave.number))
        elif today < wave.opens:
            state = "not yet open"
        else:
            state = "due" if today <= wave.closes else "missed"
        out.append(
            Planned(
                number=wave.number,
                opens=wave.opens,
                closes=wave.closes,
                state=state,
                release_id=hold.release_id if hold is not None else "",
                into=into,
            )
        )
    return tuple(out)


def due(plan: StudyPlan, holds: Iterable[Hold], today: dt.date) -> Wave | None:
    """The one wave to work on today, the earliest first; None where there is none.

    After days off the waves that closed meanwhile are not made up for: under ``append`` and ``frozen`` whoever would
    have been in them is new in the next one, and under ``refresh`` it draws everybody anyway.
    """
    lines = calendar(plan, holds, today)
    latest = max((line.number for line in lines if line.release_id), default=0)
    for line in lines:
        if line.number >= latest and line.opens <= today <= line.closes and line.state in _RESUMED:
            return plan.wave(line.number)
    return None


def cost(plan: StudyPlan, events: Sequence[Any]) -> PlanTotals:
    """Total ε after each wave of a plan: the smaller of Rényi composition and the sum of pure ε.

    A person is drawn in every wave under ``refresh``, and in one at most under ``append`` and ``frozen``. A training
    that the plan asks for comes before the waves, and is charged to everybody.

    Args:
        events: the event that each wave is charged as (`shared.releases.receipt.planned_events`).
    """
    from shared.privacy import accountant as privacy
    from shared.privacy.composition import Charge, StudyCharges
    from site_agent.ledger.holds import curve_of, price_of
    from site_agent.release.pipeline.making import touches

    prices = {event: price_of(event.to_canonical(), plan.budget.delta) for event in set(events)}
    before = []
    if plan.federated is not None:
        training = plan.federated.event
        before = [Charge(rdp=tuple(float(v) for v in privacy.rdp(training)), pure=privacy.pure_epsilon(training))]
    beside = frozenset(range(len(before))) if touches(plan) == "new" else None
    charges = {
        event: Charge(rdp=curve_of(price), pure=price["epsilon_pure"], beside=beside) for event, price in prices.items()
    }
    composed = StudyCharges([*before, *(charges[event] for event in events)])
    totals = tuple(composed.total(plan.budget.delta, len(before) + k) for k in range(1, len(events) + 1))
    return PlanTotals(totals=totals, affordable=_within(totals, plan.budget.epsilon))


def by_lot(ledger: Ledger, study: str, leaving: Collection[str], *, others: int, floor: int) -> frozenset[str]:
    """Persons drawn by lot to leave with those who withdrew, so that a wave need not wait until enough have.

    The lot looks at pseudonyms only: who goes along depends on no record. They stay away like those who withdrew, or
    the table without them would be compared with the one that has both.

    Args:
        leaving: pseudonyms of all who withdrew.
        others: with how many others each of them must leave the table as of the last release.
        floor: fewest persons that a release may hold.
    Returns: nobody where no person of that table leaves, or enough do already.
    Raises: SmallN, when too few would stay; IntegrityRefusal (whose the released rows are is lost).
    """
    from site_agent.release.sealed_state import read_rows

    table = frozenset[str]()
    for hold in ledger.holds(study):
        if hold.may_be_out and hold.files:
            own = frozenset(read_rows(ledger.folder(hold), hold).persons)
            table = own if own & table else own | table
    withdrawn = table & frozenset(leaving)
    if not withdrawn or len(withdrawn) > others:
        return frozenset()
    stay = sorted(table - withdrawn)
    more = others + 1 - len(withdrawn)
    if len(stay) - more < floor:
        raise SmallN(
            f"at least {floor} persons must stay in the table",
            given=f"{len(stay)} others, of whom {more} would leave by lot",
            next_step="Let the wave wait, or take the earlier releases back: site-agent withdraw --reason consent.",
        )
    return frozenset(secrets.SystemRandom().sample(stay, more))


def _within(totals: Sequence[float], cap: float) -> int:
    # Totals never fall, so that the ones within the cap come first.
    return sum(math.isfinite(total) and total <= cap for total in totals)
