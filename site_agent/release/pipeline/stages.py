"""The stages of a release, in order, and how long they take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shared.plans.plan import StudyPlan
from site_agent.config import TableSource

if TYPE_CHECKING:
    from shared.mechanisms.base import Effort

__all__ = [
    "STAGES",
    "WEIGHTS",
    "Progress",
    "ReleaseClock",
    "ReleaseStage",
    "RunEstimate",
    "estimate",
    "most_memory",
    "persons_of",
]


class ReleaseStage(StrEnum):
    """A step of `make_release`; the value is what a person reads."""

    RESERVE = "reserving the budget"
    ANCHOR = "having the ledger witnessed"
    READ = "reading the table"
    ENCODE = "encoding"
    FIT = "fitting the flow"
    DRAW = "adding the noise"
    DECODE = "decoding and shuffling"
    SEAL = "sealing"
    CHECKS = "checking for disclosure"
    AUDIT = "attacking the release"
    HOLD = "placing it in the outbox"


# Rough shares of the time, for the bar only; fitting and attacking take nearly all of it.
WEIGHTS: dict[ReleaseStage, float] = {
    ReleaseStage.RESERVE: 1,
    ReleaseStage.ANCHOR: 1,
    ReleaseStage.READ: 2,
    ReleaseStage.ENCODE: 1,
    ReleaseStage.FIT: 58,
    ReleaseStage.DRAW: 3,
    ReleaseStage.DECODE: 1,
    ReleaseStage.SEAL: 1,
    ReleaseStage.CHECKS: 2,
    ReleaseStage.AUDIT: 29,
    ReleaseStage.HOLD: 1,
}
STAGES: tuple[ReleaseStage, ...] = tuple(WEIGHTS)
Progress = Callable[[ReleaseStage, float, float | None], None]
"""Called with the stage, the share of the whole that is done, and the seconds left (None while unknown)."""


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """Estimated cost of a run before it starts: time, memory and size of the bundle, for n rows in d dimensions."""

    seconds: float
    memory_mb: float
    bundle_mb: float
    n: int
    d: int


def estimate(plan: StudyPlan, source: TableSource) -> RunEstimate:
    """Time and memory of a run on a table, before it starts; the table's rows are counted, not checked."""
    from site_agent.records import table as records

    rows = records.count(source)
    n, d = persons_of(plan, rows), _columns(plan)
    own = plan.release.effort(plan, n, d)
    seconds = own.seconds
    if _fits(plan):
        from site_agent.release.fitting import estimate_seconds

        seconds += estimate_seconds(plan, n, d)
    return RunEstimate(seconds=seconds, memory_mb=most_memory(plan, rows, own), bundle_mb=own.bundle_mb, n=rows, d=d)


def most_memory(plan: StudyPlan, rows: int, own: Effort) -> float:
    """Peak memory in megabytes of a run on so many rows, before it starts: of fitting, or of all else.

    Args:
        own: cost of the release but for fitting.
    """
    if not _fits(plan):
        return own.memory_mb
    from site_agent.release.fitting import estimate_megabytes

    return max(own.memory_mb, estimate_megabytes(plan, persons_of(plan, rows), _columns(plan)))


def persons_of(plan: StudyPlan, rows: int) -> int:
    """Persons that estimates are made for: each row is one, but where a person has several."""
    repeated = plan.dictionary.repeated
    return rows if repeated is None else math.ceil(rows / repeated.rows)


def _columns(plan: StudyPlan) -> int:
    from shared.plans.encoding import Encoder

    return Encoder(dictionary=plan.dictionary).d


def _fits(plan: StudyPlan) -> bool:
    return plan.release.draws_rows and plan.release.edges is None


class ReleaseClock:
    """Turns stages into one share of the whole and a guess at the seconds left, and asks whether to go on.

    Args:
        progress: who is told.
        require: refuses while the site is paused. It is not asked from the draw to the seal, where stopping would
            burn the charge.
    """

    def __init__(self, progress: Progress | None, require: Callable[[], None]) -> None:
        self.progress, self.require = progress, require
        self.total = sum(WEIGHTS.values())
        self.started = time.monotonic()
        self.before = 0.0
        self.reported = 0.0
        self.stage: ReleaseStage | None = None

    def enter(self, stage: ReleaseStage) -> None:
        """A stage begins, and the one before it is over."""
        if self.stage is not None:
            self.before += WEIGHTS[self.stage] / self.total
        self.stage = stage
        self._report(0.0)

    def within(self, share: float) -> None:
        """A share of the stage is done."""
        self._report(min(max(float(share), 0.0), 1.0))

    def done(self) -> None:
        """The release is held, and nothing is left to do."""
        if self.progress is not None and self.stage is not None:
            self.progress(self.stage, 1.0, 0.0)

    def _report(self, inside: float) -> None:
        if self.stage in (ReleaseStage.READ, ReleaseStage.ENCODE, ReleaseStage.FIT, ReleaseStage.AUDIT):
            self.require()
        if self.progress is None or self.stage is None:
            return
        share = self.before + inside * WEIGHTS[self.stage] / self.total
        spent = time.monotonic() - self.started
        self.reported = share = max(self.reported, share)
        self.progress(self.stage, share, spent / share * (1 - share) if share > 0.1 else None)
