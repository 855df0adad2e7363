"""A sealed release beside the records it was made of, for its approver alone: columns, and the planned analyses.

The planned analyses are run twice, on the real rows and on *these sealed rows*: how far the release moves what the
study wants to know, before it leaves. Both are looks at the records; what a person decides by them is in no price, as
the receipt says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.plans.dictionary import NUMERIC, Column

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk
    from site_agent.release.pipeline.opened import SealedRelease

__all__ = ["PlannedTerm", "RealRows", "ReleasedMargin", "answers", "margin", "planned_terms", "real_rows"]

BINS = 24


@dataclass(frozen=True, kw_only=True)
class ReleasedMargin:
    """One column, real and released, as shares of its known values.

    Args:
        edges: of the bins of a numeric column; None for one of levels.
        labels: of its levels; empty for a numeric column.
        real, released: share of each bin or level.
        missing: share of missing values, real and released.
    """

    column: Column
    edges: tuple[float, ...] | None
    labels: tuple[str, ...]
    real: tuple[float, ...]
    released: tuple[float, ...]
    missing: tuple[float, float]

    @property
    def ends(self) -> tuple[float, ...]:
        """Least and largest value of a numeric column; empty where no value is known, and for one of levels."""
        if not self.edges:
            return ()
        half = 0.5 if self.column.kind == "integer" and self.edges[0] % 1 == 0.5 else 0.0  # a bin for each number
        return self.edges[0] + half, self.edges[-1] - half


@dataclass(frozen=True, kw_only=True)
class PlannedTerm:
    """One term of a planned analysis on real rows and on the sealed ones, on the analysis scale.

    Args:
        name: of the analysis, as the plan has it.
        real, released: estimate and its table's standard error; None where there is none.
        reason: why one of them is lacking; blank where both are there.
    """

    name: str
    term: str
    real: tuple[float, float] | None
    released: tuple[float, float] | None
    reason: str = ""

    @property
    def moved(self) -> float | None:
        """Difference in standard errors of the real estimate."""
        if self.real is None or self.released is None or self.real[1] <= 0:
            return None
        return (self.released[0] - self.real[0]) / self.real[1]


@dataclass(frozen=True, kw_only=True)
class RealRows:
    """The records of a release in the released form.

    Args:
        same: whether the table is the one that the release was drawn from; else it is that of today.
    """

    table: pd.DataFrame
    same: bool


def real_rows(desk: Desk, made: SealedRelease, plan: StudyPlan) -> RealRows:
    """The persons behind a release, as they stand in the table now. Raises: DataRefusal and its kinds."""
    from shared.base.randomness import secure_rng
    from shared.plans.encoding import Encoder
    from site_agent.records import table as records
    from site_agent.release import sealed_state

    study = made.hold.study
    read = records.read(
        desk.config.source(study),
        plan.dictionary,
        key=desk.snapshot_key(study),
        rules=plan.release.edges,
        as_written=desk.ledger.as_written(study),
    )
    persons, same = read.table, not made.snapshot or made.snapshot == read.snapshot
    if plan.release.edges is not None and same:
        # Whoever is held out stands in the table and was never to be released.
        persons = persons.iloc[list(sealed_state.read_rows(desk.ledger.folder(made.hold), made.hold).source)]
    encoder = Encoder(dictionary=plan.dictionary)
    encoded = encoder.encode(persons.reset_index(drop=True), secure_rng())
    return RealRows(table=encoder.decode(encoded), same=same)


def margin(column: Column, real: pd.Series, released: pd.Series) -> ReleasedMargin:
    """One column of two tables in the released form.

    >>> import pandas as pd
    >>> from shared.plans.dictionary import Column
    >>> arm = Column(name="arm", kind="binary")
    >>> margin(arm, pd.Series([0, 1, 1, 1]), pd.Series([0, 0, 1, 1])).released
    (0.5, 0.5)
    >>> visits = Column(name="visits", kind="integer", lower=0, upper=90)
    >>> margin(visits, pd.Series([0, 3]), pd.Series([1, 10])).ends
    (0.0, 10.0)
    >>> margin(visits, pd.Series([None]), pd.Series([None])).ends
    ()
    """
    missing = (float(real.isna().mean()), float(released.isna().mean()))
    if column.kind in NUMERIC:
        both = [part.dropna().to_numpy(dtype=np.float64) for part in (real, released)]
        every = np.concatenate(both)
        if not len(every):
            return ReleasedMargin(column=column, edges=(), labels=(), real=(), released=(), missing=missing)
        low, high = float(every.min()), float(every.max())
        if column.kind == "integer" and high - low <= 40:
            edges = np.arange(low - 0.5, high + 1)
        else:
            edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
        shares = [np.histogram(part, edges)[0] / max(1, len(part)) for part in both]
        ends: tuple[float, ...] | None = tuple(map(float, edges))
        labels: tuple[str, ...] = ()
    else:
        shares = [
            np.array([float((part == level).fillna(False).sum()) for level in column.levels]) / max(1, len(part))
            for part in (real, released)
        ]
        ends, labels = None, tuple(map(str, column.levels))
    return ReleasedMargin(
        column=column,
        edges=ends,
        labels=labels,
        real=tuple(map(float, shares[0])),
        released=tuple(map(float, shares[1])),
        missing=missing,
    )


def answers(plan: StudyPlan, table: pd.DataFrame) -> dict[tuple[str, str], Estimate | str]:
    """Every term of every planned analysis of one table, or why a question has no answer (its term is blank then)."""
    out: dict[tuple[str, str], Estimate | str] = {}
    for name, text in plan.estimands.items():
        try:
            question = parse_estimand(text).with_rows(plan.dictionary.repeated)
            found = estimate(table, question, study=plan.study, site="here", wave=1)
        except (EstimateRefusal, ParameterError) as refusal:
            out[name, ""] = refusal.must
            continue
        out |= {(name, one.term): one for one in found}
    return out


def planned_terms(plan: StudyPlan, real: pd.DataFrame, released: pd.DataFrame) -> tuple[PlannedTerm, ...]:
    """The planned analyses on both tables, term by term, in the plan's order."""
    here, there = answers(plan, real), answers(plan, released)
    return tuple(
        PlannedTerm(
            name=name,
            term=term,
            real=_known(here.get((name, term))),
            released=_known(there.get((name, term))),
            reason=next((why for side in (here, there) if (why := _lacking(side, name, term))), ""),
        )
        for name, term in dict.fromkeys([*here, *there])
    )


# -- inside -----------------------------------------------------------------------------------------------------
def _known(found: Estimate | str | None) -> tuple[float, float] | None:
    """Estimate and the table's own standard error; a released table's says what its rows say."""
    if not isinstance(found, Estimate) or found.yi is None:
        return None
    variance = found.vi_sampling
    return None if variance is None else (found.yi, math.sqrt(variance))


def _lacking(side: Mapping[tuple[str, str], Estimate | str], name: str, term: str) -> str:
    found = side.get((name, term))
    if isinstance(found, Estimate):
        return found.reason if found.yi is None else ""
    return found or f"{side.get((name, ''), 'no such term in one of the tables')}"
