"""How a site's calls are made, and what they are held to before a byte leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

__all__ = ["Retries", "RetryPolicy", "SendingRules"]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long an answer is waited for, and how often a call is made that finds no connection.

    Args:
        timeout: seconds for one short call; an upload is given more by its size.
        attempts: how often a call is tried before it is given up.
        sleep: waits so many seconds between attempts; a test's may return at once.
    """

    timeout: float = 30.0
    attempts: int = 6
    sleep: Callable[[float], None] = time.sleep


class Retries(TypedDict, total=False):
    """What one opening of the door may have otherwise than `RetryPolicy` has it."""

    timeout: float
    attempts: int


@dataclass(frozen=True, kw_only=True)
class SendingRules:
    """What is asked before each attempt to send, and before each piece of a bundle.

    Args:
        paused: whether the steward has paused the site.
        allowed: refuses what must not be sent any more (the plan's approval was taken back).
        sealed: SHA-256 of the answer that the ledger names for a training's plan and round; blank for none. No other
            answer leaves. None: any answer that is signed.
    """

    paused: Callable[[], bool] = lambda: False
    allowed: Callable[[], None] = lambda: None
    sealed: Callable[[str, int], str] | None = None
