"""The switch: a site stops at once and without a network, and goes on by a person's word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.base.clock import utc_now

if TYPE_CHECKING:
    from site_agent.desk import Desk
from site_agent.decide.airlock.signing import OpenKey, signer, witnessed

__all__ = [
    "pause",
    "resume",
]


# -- the switch ------------------------------------------------------------------------------------------------
def pause(desk: Desk, reason: str, *, name: str = "", open_key: OpenKey | None = None) -> bool:
    """Stop at once: nothing is drawn, approved or sent until `resume`. Works without a network, and without a key.

    Stopping waits for nobody: the site stops first. Then the ledger notes it, signed where a person is named, and the
    coordinator witnesses that if it answers within seconds.

    Returns: whether the ledger could note it; where it could not, the pause holds all the same.
    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `name`); the site is paused by then.
    """
    from shared.base.keys import write_private
    from shared.errors import Refusal

    stamp = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
    write_private(desk.config.pause_file, f"{stamp} {reason}\n".encode())
    key = None
    try:
        if open_key is not None:
            desk.config.approver_key(name)
            key = signer(desk, name, open_key)
    finally:
        try:
            desk.ledger.pause(name=name if key else "", reason=reason, key=key)
            noted = True
        except Refusal:
            noted = False
        if noted:
            witnessed(desk)
    return noted


def resume(desk: Desk, *, name: str, open_key: OpenKey, reason: str = "") -> None:
    """End a pause, as the approver `name`. Nothing changes where there is none.

    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `name`); LedgerRefusal.
    """
    desk.config.approver_key(name)
    if not desk.paused:
        return
    desk.ledger.resume(name=name, reason=reason, key=signer(desk, name, open_key))
    desk.config.pause_file.unlink(missing_ok=True)
    witnessed(desk)
