"""The switch: a site stops at once and without a network, and goes on by a person's word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.base.clock import utc_now

if TYPE_CHECKING:
    from site_agent.desk import Desk
from site_agent.decide.airlock.signing import Approver, witnessed

__all__ = [
    "pause",
    "resume",
]


# -- the switch ------------------------------------------------------------------------------------------------
def pause(desk: Desk, reason: str, *, by: Approver | None = None) -> bool:
    """Stop at once: nothing is drawn, approved or sent until `resume`. Works without a network, and without a key.

    Stopping waits for nobody: the site stops first. Then the ledger notes it, signed where a person is named, and the
    coordinator witnesses that if it answers within seconds.

    Returns: whether the ledger could note it; where it could not, the pause holds all the same.
    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `by`); the site is paused by then.
    """
    from shared.base.keys import write_private
    from shared.errors import Refusal

    stamp = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
    write_private(desk.config.pause_file, f"{stamp} {reason}\n".encode())
    key = None
    try:
        if by is not None:
            desk.config.approver_key(by.name)
            key = by.key(desk)
    finally:
        try:
            desk.ledger.pause(name=by.name if by and key else "", reason=reason, key=key)
            noted = True
        except Refusal:
            noted = False
        if noted:
            witnessed(desk)
    return noted


def resume(desk: Desk, *, by: Approver, reason: str = "") -> None:
    """End a pause, as the approver `by`. Nothing changes where there is none.

    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `by`); LedgerRefusal.
    """
    desk.config.approver_key(by.name)
    if not desk.paused:
        return
    desk.ledger.resume(name=by.name, reason=reason, key=by.key(desk))
    desk.config.pause_file.unlink(missing_ok=True)
    witnessed(desk)
