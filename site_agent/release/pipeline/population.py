"""Choice of the persons drawn in a wave, and of the earlier releases that its population is compared with.

The plan says what a later wave does with a person already released (`StudyPlan.returning`): ``append`` draws new
persons only, through the flow that the first release sealed; ``refresh`` draws everybody anew; ``frozen`` draws new
persons and copies the earlier rows as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from shared.errors import StateRefusal
from shared.plans.plan import StudyPlan
from site_agent.release.protocol import Chosen

if TYPE_CHECKING:
    from site_agent.ledger.book import Hold, Ledger
    from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.opened import TABLE_CAP

__all__ = [
    "base_of",
    "choose",
    "of_other_studies",
]


def choose(
    plan: StudyPlan, ledger: Ledger, outbox: Outbox, hold: Hold, persons: Sequence[str] | None, n: int
) -> Chosen:
    """Population of this wave, chosen from the n rows of a table: see `StudyPlan.returning`.

    Under ``holdout`` persons who train are in the table and not in the release: floors and populations count the
    release's persons.

    Args:
        plan: the study's plan.
        ledger: lists the persons released before, and those who have withdrawn.
        outbox: holds the earlier releases, from which rows are copied.
        hold: the release's reservation; it says whom it touches.
        persons: pseudonym of each row; None where no column identifies persons.
        n: number of rows of the table.
    Raises: PlanRefusal (no person column under ``holdout``).
    """
    from shared.releases.bundle import read_bundle
    from site_agent.release.fitting import released_rows
    from site_agent.release.sealed_state import read_rows

    eligible: Sequence[int] = released_rows(plan, n, persons).tolist() if plan.posture == "holdout" else range(n)
    if persons is None:
        # Nobody can be told apart: two releases of nearly as many rows may be of all but one and the same persons.
        sizes = [
            len(read_rows(ledger.folder(other), other).source)
            for other in ledger.holds(plan.study)
            if other.may_be_out and other.release_id != hold.release_id and other.files
        ]
        return Chosen(rows=eligible, total=len(eligible), sizes=tuple(sizes))
    withdrawn = ledger.persons_withdrawn(plan.study)
    taken = ledger.taken(hold) if hold.touches == "new" else frozenset[str]()
    rows, train = eligible, tuple[int, ...]()
    population: Collection[str] = persons  # as it is: of ten million persons a set would be of 1.4 GB
    if taken or withdrawn or len(eligible) < len(persons):
        rows = tuple(i for i in eligible if persons[i] not in taken and persons[i] not in withdrawn)
        train = tuple(i for i in sorted({*range(len(persons))} - set(eligible)) if persons[i] not in withdrawn)
        population = frozenset(persons[i] for i in rows)
    earlier: dict[str, frozenset[str]] = {}
    table: frozenset[str] = frozenset()
    last: Hold | None = None
    for other in ledger.holds(plan.study):
        if other.may_be_out and other.release_id != hold.release_id and other.files:
            own = frozenset(read_rows(ledger.folder(other), other).persons)
            # An appended release adds to the table as of its wave; any other one replaces it.
            table = own if own & table else own | table
            earlier |= {other.release_id: own, f"{other.release_id} and before": table}
            last = other if other.state == "delivered" else last
    if hold.touches == "everybody":
        left = table.difference(population)
        return Chosen(
            rows=rows,
            train=train,
            population=population,
            total=len(population),
            earlier=earlier,
            withdrawn=len(left & withdrawn),
            leaving=len(left),
        )
    # Nobody who was taken is drawn.
    if plan.returning == "append" or last is None:
        total = len(taken) + len(population)
        return Chosen(rows=rows, train=train, population=population, total=total, earlier=earlier)
    before = read_rows(ledger.folder(last), last).persons
    leaving = withdrawn & set(before)
    stays = [k for k, person in enumerate(before) if person not in leaving]
    copied = read_bundle(outbox.bundle(last.release_id), cap=TABLE_CAP).table.iloc[stays]
    stayed = tuple(before[k] for k in stays)
    return Chosen(
        rows=rows,
        stayed=stayed,
        copied=copied,
        population=frozenset(stayed).union(population),
        total=len(taken) + len(population),
        earlier=earlier,
        withdrawn=len(leaving),
        leaving=len(leaving),
    )


def of_other_studies(plan: StudyPlan, ledger: Ledger, space: str) -> tuple[dict[str, frozenset[str]], list[int]]:
    """Releases of this site's other studies with which a release must not be compared too closely.

    Where neither has a price for everybody, nothing but this guard stands between the two: two tables of all but one
    and the same persons would show the one. Two studies are of the same people unless an approver has told them apart.

    Returns: release to pseudonyms; and the sizes of those that tell persons apart by something else, who may all the
        same be the same people.
    """
    from site_agent.release.sealed_state import read_rows

    if not plan.records_decide:
        return {}, []
    holds = [hold for hold in ledger.holds() if hold.study != plan.study and hold.may_be_out and hold.files]
    gone, apart = ledger.deleted(), ledger.told_apart({plan.study, *(hold.study for hold in holds)})
    persons: dict[str, frozenset[str]] = {}
    sizes = []
    for hold in holds:
        bounded = hold.epsilon is not None and not hold.given
        if bounded or hold.release_id in gone or (plan.study, hold.study) in apart:
            continue
        rows = read_rows(ledger.folder(hold), hold)
        persons[hold.release_id] = frozenset(rows.persons)
        if not space or hold.space != space:
            sizes.append(len(rows.source))
    return persons, sizes


def base_of(ledger: Ledger, plan: StudyPlan, wave: int) -> Hold | None:
    """The release whose sealed flow a later wave uses, the latest that fitted one; None where this is the first.

    Raises: StateRefusal, when the wave is out of turn. Turns follow the ledger's order, never a clock.
    """
    own = [
        hold
        for hold in ledger.holds(plan.study)
        if hold.phase != "burnt" and hold.state != "withdrawn" and not hold.rounds
    ]
    later = [hold for hold in own if hold.wave > wave]
    if later:
        raise StateRefusal(
            f"waves must be released in turn: wave {wave} before wave {later[0].wave}",
            given=f"wave {later[0].wave}, {later[0].state}",
            next_step=f"Whoever belongs to wave {wave} takes part in the next one.",
        )
    done = [hold for hold in own if hold.phase == "delivered" and hold.wave < wave and hold.files]
    open_now = [hold for hold in own if hold.drawn and hold.phase != "delivered" and hold.wave < wave]
    alone = plan.returning == "refresh" and plan.wave(wave).refit
    if open_now and not alone and (not done or plan.returning == "frozen" or plan.release.sealed):
        first = open_now[0]
        raise StateRefusal(
            f"wave {first.wave} must be delivered, or rejected, before wave {wave} builds on it",
            given=first.state,
            next_step=f"Run site-agent outbox show {first.release_id[:8]}.",
        )
    return done[-1] if done else None
