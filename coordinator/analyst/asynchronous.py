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
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from coordinator.analyst.questions import KindMethods, with_kinds
from coordinator.analyst.remote import Connection, Pass, Study, connect

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.analyst.harmonised import HarmonisedResult
    from coordinator.analyst.result import Result
    from coordinator.analyst.shown import Explanation, Log, Monitoring, ResultTable
    from coordinator.analyst.table_one import TableOne

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


def _asking(kind: str) -> Callable[..., Awaitable[Result]]:
    @functools.wraps(getattr(Study, kind))
    async def ask(study: AsyncStudy, *said: str, **how: Any) -> Result:
        found: Result = await study._call(getattr(study.study, kind), *said, **how)
        return found

    return ask


@with_kinds(_asking)
class AsyncStudy(KindMethods[Awaitable["Result"]]):
    """One study; each method is `Study`'s of the same name, awaited.

    Args:
        connection: an open connection. study: the study.
    """

    def __init__(self, connection: AsyncConnection, study: Study) -> None:
        self._call, self.study = connection.call, study

    async def query(self, kind: str, formula: str, *, term: str = "", **how: Any) -> Result:
        """Ask one question."""
        return await self._call(self.study.query, kind, formula, term=term, **how)

    async def planned(self, name: str, *, term: str = "", **how: Any) -> Result:
        """Ask a planned analysis by its name."""
        return await self._call(self.study.planned, name, term=term, **how)

    async def glm(self, formula: str, *, family: str = "binomial", link: str = "", **how: Any) -> Result:
        """A generalised linear model, by its family and link as R calls them."""
        return await self._call(self.study.glm, formula, family=family, link=link, **how)

    async def table_one(self, *columns: str, by: str = "", **how: Any) -> TableOne:
        """Columns described by group and site."""
        return await self._call(self.study.table_one, *columns, by=by, **how)

    async def crosstab(self, column: str, by: str, **how: Any) -> TableOne:
        """Two columns with levels: shares in each group, odds ratios, a test of independence."""
        return await self._call(self.study.crosstab, column, by, **how)

    async def histogram(self, column: str, **how: Any) -> TableOne:
        """The share of rows in each bin of a column."""
        return await self._call(self.study.histogram, column, **how)

    async def monitor(self, formula: str, *, spending: str = "obrien-fleming", **how: Any) -> Monitoring:
        """A question as of each wave, against a boundary that allows for all looks."""
        return await self._call(self.study.monitor, formula, spending=spending, **how)

    async def harmonise(self, column: str, *, to: str, **how: Any) -> HarmonisedResult:
        """A question as it stands, and with a column mapped onto one site's scale."""
        return await self._call(self.study.harmonise, column, to=to, **how)

    async def dictionary(self, column: str = "") -> ResultTable:
        """Meaning, unit and the share of missing values per site."""
        return await self._call(self.study.dictionary, column)

    async def releases(self, *, site: str = "", wave: int = 0, most: int = 0) -> ResultTable:
        """The study's releases with their receipts; of one site or wave, or the newest, where that is asked."""
        return await self._call(self.study.releases, site=site, wave=wave, most=most)

    async def rows(self, release_id: str) -> pd.DataFrame:
        """The privatised rows of one release, where the plan lets analysts have them."""
        return await self._call(self.study.rows, release_id)

    async def result(self, result_id: str) -> Result:
        """An answer that was given before."""
        return await self._call(self.study.result, result_id)

    async def explain(self, result_id: str) -> Explanation:
        """Provenance of an answer."""
        return await self._call(self.study.explain, result_id)

    async def log(self) -> Log:
        """The record of the study's questions."""
        return await self._call(self.study.log)
