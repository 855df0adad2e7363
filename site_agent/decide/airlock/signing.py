"""Common steps of every decision: opening the key of a registered person, and witnessing by the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk

__all__ = [
    "Approver",
    "author_must_differ",
    "witnessed",
]

WITNESS_SECONDS = 2.0
"""Longest wait for one answer when a decision is witnessed: a person waits, and the next round of `run` tries again."""


def author_must_differ(desk: Desk, plan: StudyPlan) -> bool:
    """True if whoever has a release made must not approve it, by the plan's floors or the site's."""
    from site_agent.config import Limits

    return Limits.of(plan.floors, desk.config.floors).author_apart


@dataclass(frozen=True)
class Approver:
    """A person who decides: name, and a function that opens their key, called only when a signature is needed."""

    name: str
    open_key: Callable[[], SigningKey]

    @classmethod
    def at(cls, desk: Desk, name: str, *, beside: Iterable[str] = ()) -> Approver:
        """The approver who enters a passphrase at this desk; `beside`: see `Desk.approver`."""
        return cls(name, lambda: desk.approver(name, beside=beside))

    def key(self, desk: Desk) -> SigningKey:
        """The opened key. Raises: ApprovalRefusal, unless it is the registered one."""
        from site_agent.ledger.decisions import require_registered

        key = self.open_key()
        require_registered(desk.outbox.approvers, self.name, key.public)
        return key


def witnessed(desk: Desk) -> bool:
    """Have the coordinator witness the last decision, if it can be reached within seconds; also during a pause.

    What was witnessed, no older copy of the ledger can undo unnoticed. It sends the ledger's head, digests alone, and
    decides nothing: the decision holds either way, and `site-agent run` asks again. Never while another agent holds the
    folder, or a head could overtake the one that a draw is about to have witnessed, and burn its charge.

    Returns: whether no decision waits to be witnessed.
    """
    from shared.errors import Refusal

    try:
        require_witnessed(desk)
    except (Refusal, OSError):
        return False
    return True


def require_witnessed(desk: Desk) -> None:
    """Have the coordinator witness the ledger's head, or refuse.

    Raises: NetworkRefusal, LedgerRefusal (this ledger is an old copy), LockedRefusal, StateRefusal (not joined).
    """
    from site_agent.ledger.entries import WITNESSED_AT_ONCE
    from site_agent.lock import StateLock

    entries = desk.ledger.entries()
    last = max((entry.seq for entry in entries if entry.kind in WITNESSED_AT_ONCE), default=0)
    # By its hash: a ledger that was put back has other entries of the same numbers.
    seen = desk.acknowledged()
    if last <= max((entry.seq for entry in entries if entry.hash in seen), default=0):
        return
    with StateLock(desk.home), desk.egress(timeout=WITNESS_SECONDS, attempts=1) as egress:
        egress.anchor(desk.ledger.anchor_envelope())
