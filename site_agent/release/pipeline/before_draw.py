"""Conditions on a table before anything is fitted or drawn: a refusal here costs nothing.

There must be enough persons, a δ small enough for their number, and no population that differs from an earlier
release's by a few persons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import (
    ChecksRefusal,
    DifferencingRefusal,
    SmallN,
)
from shared.privacy.stated import shown_delta
from site_agent.config import Limits
from site_agent.records.quasi_identifiers import sharing
from site_agent.release.checks import level_counts

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan

__all__ = ["Counts", "before_draw", "counted", "require_apart", "require_delta"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Exact counts in the rows to draw, where they may decide: under posture ``local`` alone.

    Args:
        carried: number of rows with each value of the column that is released without noise, absent values included.
        sharing: fewest persons who share a combination of the plan's quasi-identifiers; None where it names none.
    """

    carried: tuple[int, ...] = ()
    sharing: int | None = None


_NONE = Counts()


def before_draw(
    *,
    n: int,
    delta: float,
    limits: Limits,
    total: int | None = None,
    waits: bool = False,
    held: int | None = None,
    counts: Counts = _NONE,
) -> None:
    """Refuse a table of too few persons, or a δ that does not fit their number, before anything is fitted or drawn.

    Args:
        n: checked rows to draw, one per person.
        delta: δ of the study.
        total: persons of the study who will have been released; `n` where it is None.
        waits: whether this is a later wave of new persons, which may wait for more of them.
        held: persons held out of a network, who are what its released persons are drawn from; None of other releases.
        counts: `counted` in the rows to draw.
    Raises: SmallN, ChecksRefusal.
    """
    _require_enough(n, limits, waits=waits, held=held, counts=counts)
    require_delta(delta, n if total is None else total)


def require_apart(
    n: int,
    limits: Limits,
    *,
    persons: Collection[str] = (),
    earlier: Mapping[str, Collection[str]] | None = None,
    withdrawn: int = 0,
    leaving: int = 0,
    sizes: Collection[int] = (),
) -> None:
    """Refuse a population that differs from an earlier release's by a handful, before anything is fitted or drawn.

    Args:
        n: checked rows to draw, one per person.
        persons: pseudonyms of everybody in this release.
        earlier: release, or table as of a release, to its pseudonyms, same study.
        withdrawn: persons who withdrew and would leave the table with this release.
        leaving: all who would.
        sizes: rows of the study's earlier releases, where persons cannot be told apart.
    Raises: DifferencingRefusal.
    """
    if withdrawn and leaving <= limits.difference:
        raise DifferencingRefusal(
            f"a person who withdrew must leave together with at least {limits.difference} others",
            given=f"{leaving} who leave",
            next_step="The wave waits and merges with the next one; the reservation is kept. Nobody who withdrew is "
            "released anew meanwhile.",
        )
    near = [before for before in sizes if 0 < abs(n - before) < limits.difference]
    if near:
        raise DifferencingRefusal(
            f"without a person column two releases must hold as many rows, or differ by at least {limits.difference}",
            given=f"{n} rows, {near[0]} in an earlier release",
            next_step="Wait until more persons have joined or left; the reservation is kept.",
        )
    now = set(persons) if earlier else set[str]()
    for release_id, before in (earlier or {}).items():
        differ = len(now ^ set(before))
        if now and before and 0 < differ < limits.difference:
            raise DifferencingRefusal(
                f"populations of two releases must be the same or differ by at least {limits.difference} persons",
                given=f"{differ} beside release {release_id[:8]}",
                next_step="Wait until more persons have joined or left; the reservation is kept.",
            )


def require_delta(delta: float, persons: int) -> None:
    """Refuse a δ that is no small share of so many persons; of none it refuses nothing. Raises: ChecksRefusal."""
    if persons and not delta < 1 / (10 * persons):
        raise ChecksRefusal(
            "the plan's δ must be below 1/(10 n)",
            given=f"δ = {shown_delta(delta)} with {persons} persons",
            next_step="Ask the study lead for a plan with a smaller budget.delta.",
        )


def _require_enough(n: int, limits: Limits, *, waits: bool, held: int | None, counts: Counts) -> None:
    """Refuse too few persons to draw, to draw from, behind one exact count, or who are alike. Raises: SmallN."""
    if n < limits.persons:
        if waits:
            raise SmallN(
                f"a wave must bring at least {limits.persons} new persons",
                given=f"{n}",
                next_step="The wave waits and merges with the next one, which takes over its reservation: nobody is "
                "charged twice, and nothing was drawn.",
            )
        raise SmallN(
            f"a release must hold at least {limits.persons} persons",
            given=f"{n}",
            next_step="Wait until the table has grown; the reservation is kept and nothing was drawn. Several small "
            "hospitals can be one site under one steward: site-agent data add --hospitals (docs/operators-manual.md).",
        )
    if held is not None and held < limits.persons:
        raise SmallN(
            f"at least {limits.persons} persons must be held out of a network, as many as must be released",
            given=f"{held}",
            next_step="Wait until the table has grown, or ask the study lead for a larger holdout; the reservation is "
            "kept and nothing was drawn.",
        )
    if counts.carried and min(counts.carried) < limits.rare_level:
        # How many it is stays unsaid: an absent value is as exact a figure as a rare one.
        raise SmallN(
            f"each value of a column that is carried over must stand in at least {limits.rare_level} rows to draw",
            given="a value with fewer",
            next_step="Wait until the table has grown, or ask the study lead to leave release.carry out; the "
            "reservation is kept and nothing was drawn.",
        )
    if counts.sharing is not None and counts.sharing < limits.minimum_k:
        raise SmallN(
            f"each combination of the plan's quasi-identifiers must be shared by at least {limits.minimum_k} persons "
            "to draw",
            given="a combination of fewer",
            next_step="Wait until the table has grown, or ask the study lead for wider bands in [quasi_identifiers]; "
            "the reservation is kept and nothing was drawn. site-agent data check counts the whole table.",
        )


def counted(plan: StudyPlan, table: pd.DataFrame, places: Sequence[int]) -> Counts:
    """Counts in the rows to draw of a canonical table; empty where the plan promises everybody an ε.

    Args:
        places: of the rows to draw.
    """
    if not plan.records_decide or not places:
        return _NONE
    rows = table.iloc[list(places)]
    carried: tuple[int, ...] = ()
    if name := getattr(plan.release, "carry", ""):
        column = plan.dictionary.column(name)
        carried = level_counts(rows[name], range(len(column.levels)), column)
    named = plan.quasi_identifiers
    return Counts(carried=carried, sharing=int(sharing(rows, named).min()) if named else None)
