"""Conditions on a release before anything is charged; no record is read for them.

They are checked against the plan, this machine and the coordinator's limits, from the number of the table's rows,
counted as for a dry run. Where only an estimate is known, a release whose estimate exceeds the limit is refused, and
one that may exceed it is warned about: estimates were measured to lie within a factor 1.5. The number of persons is
taken as the fewest that so many rows can belong to: whatever depends on records, such as the number of complete rows,
refuses nothing here and is checked once they are read. So is all that follows from the number of persons where each may
have several rows: how many a person has is part of that person's record, and whether a reservation was made is seen
outside.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.base.process import available_mb
from shared.errors import StorageRefusal, TooLarge, require
from site_agent.release.pipeline.opened import TABLE_CAP
from site_agent.release.pipeline.stages import most_memory, persons_of

if TYPE_CHECKING:
    from shared.mechanisms.base import Effort
    from shared.plans.plan import StudyPlan
    from shared.wire.site_messages import CoordinatorLimits
    from site_agent.config import TableSource
    from site_agent.release.site import WorkingSite

__all__ = ["fewest_persons", "require_able", "require_openable"]

WITHIN = 1.5
"""Factor within which estimates lie (`tests/benchmarks/estimates.py`)."""
_UNCHARGED = "Nothing was charged."
_UNDRAWN = "Nothing was drawn, and the reservation is kept."
_SMALLER = (
    "Ask the study lead for a plan of fewer directions (release.slices) or columns, or for waves of fewer persons"
)


def require_able(plan: StudyPlan, source: TableSource, site: WorkingSite) -> tuple[str, ...]:
    """See that this site can make the release, open it again and deliver it, before anything is charged.

    Returns: what may still stop it, in sentences.
    Raises: PlanRefusal: the site asks for quasi-identifiers, and the plan names none, or it lets sites choose among
        networks, and this one has no earlier flow; PackageRefusal: what fits the flow, adds up or reads the tables is
        not installed; BudgetRefusal: somebody would see more than the site lets anybody; ChecksRefusal: δ is too large
        for so many persons; TooLarge: its approver could not be shown it, or the coordinator would not take it;
        StorageRefusal: it would take more memory than there is.
    """
    from shared.releases.receipt import refits
    from site_agent.records.readers import reader
    from site_agent.release.pipeline.before_draw import require_delta

    site.floors.require_named(plan)
    site.budget.require_worst(plan)
    earlier = any(hold.drawn for hold in site.ledger.holds(plan.study))  # whose flow a wave might go through
    if not earlier:
        plan.training.require_one_network(plan.returning)
    if plan.posture in ("local", "holdout") and plan.training.by_nflows:
        require("torch", "nflows")
    require(*plan.release.needs)
    require(*(module for place in (source, source.edges) if place for module in reader(place).needs))
    if not source.path.exists():  # what is read after the charge refuses it, in words
        return ()
    rows = reader(source).count(source)
    fewest = fewest_persons(plan, rows, len(site.ledger.persons_withdrawn(plan.study)))
    require_delta(plan.budget.delta, 0 if _several_rows(plan, source) else fewest)
    effort = _effort(plan, persons_of(plan, rows))
    passes = earlier and not any(refits(plan, wave) for wave in plan.waves)  # and fits nothing
    return (
        *_delta_noted(plan, rows),
        *_opened_or_noted(plan, source, rows, effort, site.coordinator_takes),
        *_require_memory(effort.memory_mb if passes else most_memory(plan, rows, effort), site.memory_mb),
    )


def fewest_persons(plan: StudyPlan, rows: int, withdrawn: int = 0) -> int:
    """Fewest persons whose records a table of so many rows can hold; 0 where only the records say it.

    Args:
        withdrawn: persons who withdrew and may stand in it.
    """
    if any(column.missing == "complete_case" for column in plan.dictionary.columns):
        return 0
    if plan.dictionary.repeated is not None:
        return 0
    left = rows - withdrawn
    if plan.posture == "holdout":  # who trains is drawn by lot: this many are left but once in a billion tables
        left = math.floor(left * (1 - plan.holdout) - 6 * math.sqrt(rows * plan.holdout * (1 - plan.holdout)))
    return max(left, 0)


def _delta_noted(plan: StudyPlan, rows: int) -> tuple[str, ...]:
    if plan.budget.delta < 1 / (10 * max(rows, 1)):
        return ()
    return (f"The plan's δ must be below 1/(10 n), and is not for all {rows} rows: how many persons they are decides.",)


def require_openable(plan: StudyPlan, source: TableSource, persons: int, takes: CoordinatorLimits | None) -> None:
    """See of the persons whom a release is of what `require_able` sees of rows, where each may have several of these.

    Args:
        persons: n of the release. takes: what the coordinator takes; None where it has not said.
    Raises: TooLarge.
    """
    if _several_rows(plan, source):
        _require_opened(plan, persons, _effort(plan, persons), takes, _UNDRAWN)


def _effort(plan: StudyPlan, persons: int) -> Effort:
    from shared.plans.encoding import Encoder

    return plan.release.effort(plan, persons, Encoder(dictionary=plan.dictionary).d)


def _several_rows(plan: StudyPlan, source: TableSource) -> bool:
    """True if a person may have several rows of the table, which the plan or the mapping makes one."""
    return plan.dictionary.repeated is not None or source.steps.persons is not None


def _opened_or_noted(
    plan: StudyPlan, source: TableSource, rows: int, effort: Effort, takes: CoordinatorLimits | None
) -> tuple[str, ...]:
    """Refuse as `_require_opened` where each row is a person's only one; else say that it may be refused."""
    if not _several_rows(plan, source):
        return _require_opened(plan, rows, effort, takes, _UNCHARGED)
    try:
        return _require_opened(plan, persons_of(plan, rows), effort, takes, _UNDRAWN)
    except TooLarge as refusal:
        return (f"What may stop it once the table is read: {refusal.must}; {refusal.given}.",)


def _require_opened(
    plan: StudyPlan, rows: int, effort: Effort, takes: CoordinatorLimits | None, charge: str
) -> tuple[str, ...]:
    """Refuse a table that nobody could open, or a bundle that the coordinator would not take.

    Args:
        charge: what a refusal says of the charge.
    """
    extent = plan.release.extent(plan, rows)
    if extent.bytes > TABLE_CAP:
        raise TooLarge(
            f"a release must be at most {TABLE_CAP >> 20} MB when it is opened",
            given=f"{extent.bytes >> 20} MB of {rows} rows",
            next_step=f"{charge} {_SMALLER}.",
        )
    from shared.wire.site_messages import CoordinatorLimits

    said = takes or CoordinatorLimits()
    sizes = (  # a number takes eight bytes and more where it is opened: this many it takes surely
        ("as a bundle", effort.bundle_mb * 1e6, said.max_bundle, WITHIN),
        ("when the coordinator opens it", 8.0 * extent.numbers * extent.rows, said.max_table, 1.0),
    )
    notes = []
    for where, size, most, within in sizes:
        if size > most and takes is not None:
            raise TooLarge(
                f"a release must take at most {most >> 20} MB {where}, or the coordinator refuses it",
                given=f"about {size / 2**20:.0f} MB of {rows} rows",
                next_step=f"{charge} {_SMALLER}, or to raise max_bundle_mb in coordinator.toml.",
            )
        if size > most / within:
            whose = "takes" if takes is not None else "has not said what it takes, by default"
            about = f"about {size / 2**20:.0f} MB {where}"
            notes.append(f"The release takes {about}; the coordinator {whose} {most >> 20} MB at most.")
    return tuple(notes)


def _require_memory(needed: float, configured: int | None) -> tuple[str, ...]:
    """Refuse a run that takes more memory than site.toml gives it, or than this machine has left."""
    most = available_mb() if configured is None else float(configured)
    if most is None:
        return ()
    whose = "that this machine has left now" if configured is None else "of memory_mb in site.toml"
    if needed > most:
        raise StorageRefusal(
            f"a release must be made within the {most:.0f} MB of memory {whose}",
            given=f"about {needed:.0f} MB",
            next_step=f"{_UNCHARGED} End other programs or take a larger machine; memory_mb in site.toml says how much "
            f"a release may take. {_SMALLER}.",
        )
    if needed > most / WITHIN:
        return (f"It may take more than the {most:.0f} MB of memory {whose}: about {needed:.0f} MB.",)
    return ()
