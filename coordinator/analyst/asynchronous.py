"""The same connection for programs that are asynchronous: every call is awaited, several are under way at once.

    async with connect_async("ada.token.json") as hub:
        heart = hub["heart"]
        cox, mean = await asyncio.gather(heart.cox("Surv(time, event) ~ sbp"), heart.mean("sbp"))

A call is made by a thread and gives what `coordinator.analyst.remote` gives: the same objects, the same refusals. One
that is cancelled here is left alone: it ends by itself, and its question stands in the record.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from coordinator.analyst.questions import KindMethods, with_kinds
from coordinator.analyst.remote import Connection, Pass, Study, connect

if TYPE_CHECKING:
    from coordinator.analyst.result import Result
    from coordinator.analyst.shown import ResultTable

__all__ = ["AsyncConnection", "AsyncStudy", "connect_async"]

AT_ONCE = 4
"""Calls of one connection at once; the coordinator lets a token have no more than a few in the making."""
P = ParamSpec("P")
T = TypeVar("T")


def connect_async(token: str | Path | Pass, *, at_once: int = AT_ONCE) -> AsyncConnection:
    """Connect to the coordinator that a token's file names; nothing is sent yet. Raises: as of `connect`."""
    return AsyncConnection(connect(token), at_once=at_once)


class AsyncConnection:
    """The studies that a token is for.

    Args:
        connection: an open connection; it is closed with this one.
        at_once: calls at once; further ones wait.
    """

    def __init__(self, connection: Connection, *, at_once: int = AT_ONCE) -> None:
        self._connection = connection
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="tributary-analyst")

    async def call(self, work: Callable[P, T], *args: P.args, **how: P.kwargs) -> T:
        """Result of `work`, run in one of this connection's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(work, *args, **how))

    async def studies(self) -> ResultTable:
        """Table of the studies: sites, waves, persons, postures."""
        return await self.call(self._connection.studies)

    def __getitem__(self, study: str) -> AsyncStudy:
        """A study by its name; that the token is for it, the first call finds."""
        return AsyncStudy(self, Study(self._connection, study))

    async def close(self) -> None:
        """Let calls that are under way end, and close the connection."""
        await asyncio.to_thread(self._pool.shutdown)
        self._connection.close()

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _awaited(
    method: Callable[Concatenate[Study, P], T],
) -> Callable[Concatenate[AsyncStudy, P], Coroutine[Any, Any, T]]:
    """A method of `Study`, awaited."""

    @functools.wraps(method)
    async def ask(study: AsyncStudy, *args: P.args, **how: P.kwargs) -> T:
        return await study._call(method, study.study, *args, **how)

    return ask


@with_kinds(lambda kind: _awaited(getattr(Study, kind)))
class AsyncStudy(KindMethods[Awaitable["Result"]]):
    """One study; each method is `Study`'s of the same name, awaited.

    Args:
        connection: an open connection. study: the study.
    """

    def __init__(self, connection: AsyncConnection, study: Study) -> None:
        self._call, self.study = connection.call, study

    query = _awaited(Study.query)
    planned = _awaited(Study.planned)
    glm = _awaited(Study.glm)
    table_one = _awaited(Study.table_one)
    crosstab = _awaited(Study.crosstab)
    histogram = _awaited(Study.histogram)
    monitor = _awaited(Study.monitor)
    harmonise = _awaited(Study.harmonise)
    dictionary = _awaited(Study.dictionary)
    releases = _awaited(Study.releases)
    rows = _awaited(Study.rows)
    result = _awaited(Study.result)
    explain = _awaited(Study.explain)
    log = _awaited(Study.log)
