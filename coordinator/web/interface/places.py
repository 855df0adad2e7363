"""Threads for what the web's callers ask, shared out as on the analysts' port: no caller has more than a quarter.

Who calls is looked up by threads that no handler ever holds, as `shared.wire.transport.Server` does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from shared.errors import RateRefusal
from shared.wire.door import CallLimits

__all__ = ["Places"]

T = TypeVar("T")
FORGET = 10_000


class Places:
    """Threads, and who has how many of them; on one event loop only.

    Args:
        workers: threads that answer.
        waiting: calls that may be in the making at once.
        limits: `CallLimits.calls` is what one caller may have in the making.
    """

    def __init__(self, workers: int, waiting: int, limits: CallLimits) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tributary-web")
        self._porters = ThreadPoolExecutor(2, thread_name_prefix="tributary-web-porter")
        self._share, self._waiting, self._limits = max(1, workers // 4), waiting, limits
        self._callers: dict[str, _Caller] = {}
        self._running = 0

    @contextmanager
    def room(self, key: str) -> Iterator[_Caller]:
        """Room for one call of a caller. Raises: RateRefusal: it, or all together, have too many at once."""
        if len(self._callers) > FORGET:
            self._callers = {name: one for name, one in self._callers.items() if one.calls}
        caller = self._callers.setdefault(key, _Caller(self._share))
        if caller.calls >= self._limits.calls or self._running >= self._waiting:
            mine = caller.calls >= self._limits.calls
            raise RateRefusal(
                "the coordinator must have room for a call",
                given="too many of this caller at once" if mine else "too many at once",
                next_step="Try again.",
            )
        caller.calls += 1
        self._running += 1
        try:
            yield caller
        finally:
            caller.calls -= 1
            self._running -= 1

    async def worked(self, caller: _Caller, work: Callable[[], T]) -> T:
        """Result of `work`, run in a thread once this caller's share and the pool have one free."""
        async with caller.places:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def looked_up(self, work: Callable[[], T]) -> T:
        """Result of `work`, which must be short, run in a thread reserved for such look-ups."""
        return await asyncio.get_running_loop().run_in_executor(self._porters, work)

    def close(self, *, wait: bool = True) -> None:
        """End the threads."""
        for pool in (self._pool, self._porters):
            pool.shutdown(wait=wait, cancel_futures=True)


class _Caller:
    """Calls in progress of one caller, and its share of the threads."""

    def __init__(self, share: int) -> None:
        self.calls, self.places = 0, asyncio.Semaphore(share)
