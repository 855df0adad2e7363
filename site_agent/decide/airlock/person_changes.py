"""Decisions about persons: who withdrew consent, and that a table without earlier persons is one of others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import (
    StateRefusal,
)

if TYPE_CHECKING:
    from site_agent.desk import Desk
    from site_agent.ledger.book import Hold
from site_agent.decide.airlock.signing import Approver

__all__ = [
    "Vanished",
    "confirm_persons",
    "consent_withdrawn",
    "vanished",
]


def consent_withdrawn(desk: Desk, study: str, persons: Collection[str], *, by: Approver) -> int:
    """Note, as the approver `by`, that persons withdrew from a study.

    The coordinator witnesses it with the next anchor that something else asks for: a head that came alone, at that
    minute, would tell of it.

    Returns: how many were not noted before.
    Raises: SignatureRefusal; ApprovalRefusal (not the registered key); IntegrityRefusal; StorageRefusal.
    """
    desk.config.approver_key(by.name)
    key = by.key(desk)
    with desk.locked():
        return desk.ledger.note_persons(study, persons, name=by.name, key=key)


@dataclass(frozen=True, kw_only=True)
class Vanished:
    """A reservation that waits because earlier persons are not in the table.

    Args:
        there: of the persons of earlier releases, how many the table has.
        earlier: how many there are.
        snapshot: keyed hash of the table.
    """

    hold: Hold
    there: int
    earlier: int
    snapshot: str


def vanished(desk: Desk, study: str) -> Vanished:
    """Read the study's table, and find that earlier persons are not in it.

    Raises: StateRefusal (no reservation waits, or they are in it); DifferencingRefusal (told apart by something else);
        DataRefusal; IntegrityRefusal.
    """
    from site_agent.config import Limits
    from site_agent.records import table as records

    plan, source, key = desk.plans.plan(study), desk.config.source(study), desk.snapshot_key(study)
    waiting = [hold for hold in desk.ledger.holds(study) if hold.state in ("reserved", "anchored") and not hold.rounds]
    if not waiting:
        raise StateRefusal(
            "a release must wait for its persons to be confirmed",
            given="no reservation that waits",
            next_step=f"Run site-agent release {study} first: it says whether earlier persons have vanished.",
        )
    as_written = desk.ledger.as_written(study)
    table = records.read(source, plan.dictionary, key=key, rules=plan.release.edges, as_written=as_written)
    space = records.person_space(source, plan.dictionary, key=key, as_written=as_written)
    roles = plan.posture == "holdout"
    desk.ledger.require_same_persons(waiting[-1], space, roles=roles)
    persons = records.row_pseudonyms(table, plan.dictionary, key=key) or ()
    there, earlier = desk.ledger.still_present(waiting[-1], persons)
    must_confirm = roles or waiting[-1].touches == "new"
    if not must_confirm or there >= Limits.of(plan.floors, desk.config.floors).still_present * earlier:
        raise StateRefusal(
            "persons must be confirmed only where those of earlier releases have vanished from the table, and matter",
            given=f"{there} of {earlier} who are there",
            next_step=f"Run site-agent release {study}.",
        )
    return Vanished(hold=waiting[-1], there=there, earlier=earlier, snapshot=table.snapshot)


def confirm_persons(desk: Desk, found: Vanished, *, by: Approver, reason: str) -> Hold:
    """Sign, as the approver `by`, that this table holds other persons than earlier releases: for this wave alone.

    Raises: SignatureRefusal; ApprovalRefusal (not the registered key); ParameterError; StateRefusal; StorageRefusal.
    """
    desk.config.approver_key(by.name)
    key = by.key(desk)
    with desk.locked():
        return desk.ledger.confirm_persons(
            found.hold,
            there=found.there,
            earlier=found.earlier,
            snapshot=found.snapshot,
            name=by.name,
            reason=reason,
            key=key,
        )
