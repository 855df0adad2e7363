"""Settings of a site's calls: timeouts and retries, and the rules checked before a byte is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from shared.errors import IntegrityRefusal

if TYPE_CHECKING:
    from shared.base.keys import Envelope
    from shared.wire.site_messages import Acceptance

__all__ = ["Retries", "RetryPolicy", "SendingRules", "require_named"]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Timeout of a call, and number of attempts when no connection is made.

    Args:
        timeout: seconds for one short call; an upload gets more, by its size.
        attempts: most attempts of a call.
        sleep: waits the given seconds between attempts; a test's may return at once.
    """

    timeout: float = 30.0
    attempts: int = 6
    sleep: Callable[[float], None] = time.sleep


class Retries(TypedDict, total=False):
    """Overrides of `RetryPolicy` for one connection."""

    timeout: float
    attempts: int


@dataclass(frozen=True, kw_only=True)
class SendingRules:
    """Rules checked before each attempt to send, and before each piece of a bundle.

    Args:
        paused: whether the steward has paused the site.
        allowed: raises a refusal if sending is no longer allowed (the plan's approval was revoked).
        sealed: SHA-256 of the answer that the ledger names for a training's plan hash and round; blank for none. No
            other answer is sent. None: any signed answer.
    """

    paused: Callable[[], bool] = lambda: False
    allowed: Callable[[], None] = lambda: None
    sealed: Callable[[str, int], str] | None = None


def require_named(acceptance: Acceptance, envelope: Envelope) -> Acceptance:
    """An acknowledgement of the release that a signed statement names. Raises: IntegrityRefusal (of another)."""
    from shared.releases.statement import Statement

    statement = Statement.from_bytes(envelope.payload)
    for name in ("study", "wave", "site", "release_id", "bundle_sha256"):
        if getattr(acceptance, name) != getattr(statement, name):
            raise IntegrityRefusal(f"the acceptance must name this release's {name}", given="another")
    return acceptance
