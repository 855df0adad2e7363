"""The stages of a release, in order, and how long they take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from shared.plans.plan import StudyPlan
from site_agent.config import TableSource

if TYPE_CHECKING:
    from shared.mechanisms.base import Effort

__all__ = [
    "FIGURES",
    "NETWORK",
    "STAGES",
    "WEIGHTS",
    "Progress",
    "ReleaseClock",
    "ReleaseStage",
    "RunEstimate",
    "estimate",
    "most_memory",
    "persons_of",
    "weights_of",
]


class ReleaseStage(StrEnum):
    """A step of `make_release`; the value is what a person reads."""

    RESERVE = "reserving the budget"
    ANCHOR = "having the ledger witnessed"
    READ = "reading the table"
    ENCODE = "encoding"
    FIT = "fitting the flow"
    PLACE = "fitting the latent space, and placing persons in it"
    MEASURE = "taking the figures"
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
"""Stages of a release of rows."""
# Of a network no flow is fitted: each person has a place among those held out.
NETWORK: dict[ReleaseStage, float] = {
    ReleaseStage.PLACE if stage is ReleaseStage.FIT else stage: share for stage, share in WEIGHTS.items()
}
# Of noisy figures nothing is fitted, decoded or attacked: what is to be noised is taken, and noised.
FIGURES: dict[ReleaseStage, float] = {
    ReleaseStage.RESERVE: 2,
    ReleaseStage.ANCHOR: 2,
    ReleaseStage.READ: 30,
    ReleaseStage.MEASURE: 40,
    ReleaseStage.DRAW: 15,
    ReleaseStage.SEAL: 2,
    ReleaseStage.CHECKS: 8,
    ReleaseStage.HOLD: 1,
}
_ASKED = tuple(ReleaseStage[name] for name in ("READ", "ENCODE", "FIT", "PLACE", "MEASURE", "AUDIT"))
"""Stages before each of which, and within, a pause ends the work."""
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


def weights_of(plan: StudyPlan) -> Mapping[ReleaseStage, float]:
    """The stages of a release under a plan, in order, with rough shares of its time."""
    from shared.mechanisms.base import Aggregates

    if isinstance(plan.release, Aggregates):
        return FIGURES
    return WEIGHTS if plan.release.edges is None else NETWORK


class ReleaseClock:
    """Turns stages into one share of the whole and a guess at the seconds left, and asks whether to go on.

    Args:
        require: refuses while the site is paused. It is not asked from the draw to the seal, where stopping would
            burn the charge.
        weights: stages that are told, with their shares of the time; another one passes without a word.
    """

    def __init__(
        self,
        progress: Progress | None,
        require: Callable[[], None],
        weights: Mapping[ReleaseStage, float] = WEIGHTS,
    ) -> None:
        self.progress, self.require, self.weights = progress, require, weights
        self.total = sum(weights.values())
        self.started = time.monotonic()
        self.before = 0.0
        self.reported = 0.0
        self.stage: ReleaseStage | None = None

    def enter(self, stage: ReleaseStage) -> None:
        """A stage begins, and the one before it is over."""
        if stage is ReleaseStage.FIT and stage not in self.weights:
            stage = next(other for other in (ReleaseStage.MEASURE, ReleaseStage.PLACE) if other in self.weights)
        if stage not in self.weights:
            if stage in _ASKED:
                self.require()
            return
        if self.stage is not None:
            self.before += self.weights[self.stage] / self.total
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
        if self.stage in _ASKED:
            self.require()
        if self.progress is None or self.stage is None:
            return
        share = self.before + inside * self.weights[self.stage] / self.total
        spent = time.monotonic() - self.started
        self.reported = share = max(self.reported, share)
        self.progress(self.stage, share, spent / share * (1 - share) if share > 0.1 else None)
