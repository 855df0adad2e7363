"""Interface of every mechanism: from the table as it was read to the bytes to seal, and checks and attacks afterwards.

The pipeline owns the order, the ledger and the stages; a `Drawing` owns what differs between mechanisms. All draw once:
`draw` is called between the witnessed *drawing* entry and the seal, and never again for the same charge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from site_agent.release import sealed_state

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.plans.plan import StudyPlan
    from site_agent.config import Limits
    from site_agent.ledger.book import Hold
    from site_agent.records.table import Records
    from site_agent.release.checks import Check

__all__ = ["Chosen", "Drawing", "Progress", "unread"]

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Chosen:
    """Population of one wave: rows drawn, rows for training, rows copied, and the earlier populations.

    Args:
        rows: places of the records that are drawn, ascending; a range where these are all.
        train: places of the records that may train a flow and are never drawn (posture ``holdout``).
        stayed: persons whose earlier rows are copied.
        copied: those rows, in the order of `stayed`; None for none.
        population: pseudonyms of everybody in the release.
        total: number of persons of the study who will have been released, this release included.
        earlier: populations that this one must not differ from by a few persons: release, or table as of it, to
            pseudonyms.
        withdrawn: number of persons who withdrew and leave with this release.
        leaving: number of all who were in the last release and are not in this one.
        sizes: numbers of rows of the earlier releases, where no column identifies persons.
    """

    rows: Sequence[int]
    train: tuple[int, ...] = ()
    stayed: tuple[str, ...] = ()
    copied: pd.DataFrame | None = None
    population: Collection[str] = frozenset()
    total: int = 0
    earlier: Mapping[str, frozenset[str]] = field(default_factory=dict)
    withdrawn: int = 0
    leaving: int = 0
    sizes: tuple[int, ...] = ()

    def of(self, persons: Sequence[str]) -> Sequence[str]:
        """Those of a table's persons, one a row, who are drawn."""
        return persons if len(self.rows) == len(persons) else tuple(persons[row] for row in self.rows)

    def after(self, fresh: pd.DataFrame) -> pd.DataFrame:
        """The drawn rows, then the copied ones."""
        import pandas as pd

        return fresh if self.copied is None else pd.concat([fresh, self.copied], ignore_index=True)


def unread(n: int) -> Any:
    """Placeholder for `n` records that a release was drawn from and that no longer exist.

    Only their number is known. Any other access raises LookupError, which a check that decides nothing counts as a
    failure of its own.
    """
    return _Unread(n)


class _Unread:
    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getattr__(self, name: str) -> Any:
        raise LookupError("the records are there no more")

    def __getitem__(self, name: object) -> Any:
        raise LookupError("the records are there no more")


class Drawing(ABC):
    """One release's mechanism at work.

    `n` persons are in the release, of whom `drawn` were drawn for it; `flow_of` names the release whose sealed flow
    it used, if any; `rows` says whose each released row, or figure's record, is; `left_out` counts source rows
    without a complete record (None: unknown). `unattacked` is the audit's outcome where `attack` cannot be carried out.
    """

    unattacked: ClassVar[Mapping[str, Any]]
    n: int
    drawn: int
    flow_of: str = ""
    rows: sealed_state.ReleasedRows
    left_out: int | None = None

    def __init__(self, plan: StudyPlan) -> None:
        self.plan = plan

    @abstractmethod
    def take(
        self, table: Records, persons: Sequence[str] | None, chosen: Chosen, base: sealed_state.SealedFlow | None
    ) -> None:
        """Take the records that are drawn. Raises: PlanChanged, where `base` does not serve this plan."""

    @abstractmethod
    def encode(self, rng: Noise) -> None:
        """Records to what the mechanism works on."""

    @abstractmethod
    def fit(self, rng: Noise, progress: Progress) -> None:
        """Whatever is fitted before the draw."""

    @abstractmethod
    def rehearse(self) -> None:
        """Foresee what checks of the sealed table would say, where records may decide (`StudyPlan.records_decide`).

        No noise is drawn for a record here. Raises: ChecksRefusal, if the draw would most likely be refused.
        """

    @abstractmethod
    def draw(self, rng: Noise) -> None:
        """Add the noise: once."""

    @abstractmethod
    def released(self, rng: Noise) -> pd.DataFrame:
        """The table that leaves."""

    @abstractmethod
    def files(self, release_id: str) -> Mapping[str, bytes]:
        """Files that stay at the site with the seal, by name."""

    @abstractmethod
    def resume(self, table: Records, hold: Hold, folder: Any, rng: Noise) -> None:
        """Take up a release that was sealed, from its files and the table it was drawn from."""

    @abstractmethod
    def without_records(self, hold: Hold, folder: Any) -> None:
        """The same if that table no longer exists: checks that would read it are reported as not carried out."""

    @abstractmethod
    def checks(self, table: pd.DataFrame, limits: Limits) -> tuple[Check, ...]:
        """The disclosure checks of the sealed table."""

    @abstractmethod
    def attack(self, limits: Limits, rng: Noise, progress: Progress) -> Mapping[str, Any]:
        """The audit's outcome, with its ``sentences``.

        Raises: AuditRefusal, where what an attack finds in records may decide (`StudyPlan.records_decide`).
        """
