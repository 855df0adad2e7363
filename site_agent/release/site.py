"""The parts of a site that a release uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shared.errors import PausedRefusal
from shared.plans.plan import StudyPlan
from site_agent.config import SiteBudget, SiteFloors

if TYPE_CHECKING:
    from shared.base.keys import Envelope
    from shared.wire.site_messages import CoordinatorLimits
    from site_agent.ledger.book import AnchoredHead, Ledger
    from site_agent.release.outbox import Outbox

__all__ = ["HeadWitness", "WorkingSite"]


class HeadWitness(Protocol):
    """The part of `Egress` that a release needs."""

    def anchor(self, envelope: Envelope) -> AnchoredHead:
        """Have the coordinator acknowledge the ledger's head."""
        ...


@dataclass(frozen=True, kw_only=True)
class WorkingSite:
    """A site as a release uses it.

    Args:
        name: the site's id.
        witness: has the coordinator acknowledge the ledger's head.
        snapshot_key: secret of the keyed hashes.
        floors: those that this site adds to every plan.
        paused: whether the steward has paused the site; called repeatedly until the draw, and in the audit.
        budget: this site's own caps on a person's privacy loss.
        begun_under: secrets of the studies that began under another one than `snapshot_key`.
        memory_mb: most megabytes that a release may take; None for what the machine has left.
        coordinator_takes: the largest release that the coordinator takes; None where it has not said.
        approved: asked once more right before the draw whether it is still approved, where the plan wants that ahead.
    """

    name: str
    agent_version: str
    ledger: Ledger
    outbox: Outbox
    witness: HeadWitness
    snapshot_key: bytes
    floors: SiteFloors
    paused: Callable[[], bool]
    budget: SiteBudget = field(default_factory=SiteBudget)
    memory_mb: int | None = None
    coordinator_takes: CoordinatorLimits | None = None
    approved: Callable[[StudyPlan], None] = lambda plan: None
    begun_under: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def secret(self, study: str) -> bytes:
        """The secret of a study's keyed hashes: it goes on with the one that it began with."""
        return self.begun_under.get(study, self.snapshot_key)

    def require_running(self) -> None:
        """Raises: PausedRefusal."""
        if self.paused():
            raise PausedRefusal(
                "this site must not be paused",
                given="a pause",
                next_step="Run site-agent resume --as NAME when it may go on.",
            )
