"""A sealed release as its approver sees it, read back from the exact bytes, and what the approver ticked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import Envelope, SigningKey, write_private

if TYPE_CHECKING:
    import pandas as pd

    from shared.releases.receipt import Receipt
    from site_agent.ledger.book import Hold
    from site_agent.release.checks import Check
    from site_agent.release.outbox import Outbox

__all__ = [
    "TABLE_CAP",
    "SealedRelease",
    "open_release",
    "record_decision",
]

TABLE_CAP = 1 << 30
DOCUMENT_CAP = 256 << 20
DECISION_TYPE = "application/vnd.tributary.decision+json"


@dataclass(frozen=True, kw_only=True, repr=False)
class SealedRelease:
    """A sealed release as its approver sees it.

    Args:
        checks: disclosure checks; stay here.
        audit: outcome of the attacks; stays here.
        left_out: source rows without a complete record; None where nobody could count them.
        snapshot: keyed hash of the file that was read.
        read: gives the table inside the bundle; who only signs it needs none.
    """

    hold: Hold
    receipt: Receipt
    checks: tuple[Check, ...]
    audit: Mapping[str, Any]
    left_out: int | None
    snapshot: str = ""
    read: Callable[[], pd.DataFrame] = field(repr=False, compare=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Inside the bundle: the exact rows that would leave. Raises: IntegrityRefusal."""
        return self.read()

    @property
    def holds_figures(self) -> bool:
        """Whether noisy figures leave, and no row of a person."""
        from shared.mechanisms.base import Aggregates
        from shared.mechanisms.kinds import kind

        return issubclass(kind(self.receipt.mechanism), Aggregates)

    @property
    def warnings(self) -> tuple[Check, ...]:
        """Checks that an approver must tick."""
        return tuple(check for check in self.checks if check.outcome == "warning")

    @property
    def notable(self) -> tuple[Check, ...]:
        """Notes whose rule does not hold: for the approver to know."""
        return tuple(check for check in self.checks if check.notable)


def open_release(outbox: Outbox, release_id: str) -> SealedRelease:
    """Everything an approver is shown of a sealed release, read back from the exact bytes.

    Raises: StateRefusal (no such release), IntegrityRefusal (the bytes are not those that were sealed).
    """
    from shared.releases.bundle import read_bundle, read_receipt

    hold = outbox.get(release_id)
    receipt = read_receipt(outbox.bundle(release_id))
    documents: dict[str, Any] = {}
    for name in ("checks", "audit"):
        path = outbox.folder(release_id) / f"{name}.json"
        if path.exists():
            documents[name] = parse_json(path.read_bytes(), cap=DOCUMENT_CAP)["content"]
    checks = documents.get("checks", {})
    return SealedRelease(
        hold=hold,
        receipt=receipt,
        read=lambda: read_bundle(outbox.bundle(release_id), cap=TABLE_CAP).table,
        checks=tuple(_check(given) for given in checks.get("checks", ())),
        audit=documents.get("audit", {}),
        left_out=checks.get("left_out", 0),
        snapshot=str(checks.get("snapshot", "")),
    )


def record_decision(
    outbox: Outbox, release_id: str, *, name: str, key: SigningKey, ticked: Sequence[str], today: dt.date
) -> None:
    """File which warnings an approver ticked, signed by the approver, beside the checks. It stays at the site.

    Args:
        outbox: the sealed releases.
        release_id: which was approved.
        key: of the approver, which signs.
        ticked: names of the warnings.
        today: UTC date of the decision.
    """
    hold = outbox.get(release_id)
    body = {
        "release_id": release_id,
        "bundle_sha256": hold.bundle_sha256,
        "documents": dict(hold.documents),
        "approver": name,
        "ticked": sorted(ticked),
        "day": today.isoformat(),
    }
    envelope = Envelope.sign(DECISION_TYPE, canonical_json(body), [key])
    write_private(outbox.folder(release_id) / f"decision-{name}.json", envelope.to_bytes())


def _check(given: Mapping[str, Any]) -> Check:
    from site_agent.release.checks import Check

    return Check(**given)
