"""Jobs of questions that take long: each has a state that can be watched, and its owner may end it.

A job is the same call of the same handler, with the same line of the record. It lives in memory: when the coordinator
is started again it is gone, and the question, asked again, gives the same answer under the same id.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import NetworkRefusal, RateRefusal, Refusal, StateRefusal

if TYPE_CHECKING:
    from coordinator.services.analysts import Analyst

__all__ = ["ENDED", "Job", "Jobs"]

ENDED = ("done", "refused", "cancelled")
EACH = 8  # jobs of one token that have not ended
KEPT = 64  # and of those that have
SECONDS = 900.0  # for which one that has ended is kept
BEAT = 15.0  # seconds after which a watcher is told that nothing has changed


@dataclass(kw_only=True)
class Job:
    """One question in the making; on one event loop only, but for `gone`.

    Args:
        state: ``waiting`` (for a place), ``computing``, ``done``, ``refused`` or ``cancelled``.
        answer: the document of the answer, as bytes. refusal: reason why there is none.
    """

    id: str
    owner: str
    study: str
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    state: str = "waiting"
    answer: bytes | None = None
    refusal: Refusal | None = None
    gone: threading.Event = field(default_factory=threading.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Since it was begun, until it ended."""
        return round((self.ended or time.monotonic()) - self.begun, 1)

    def become(self, state: str) -> None:
        """Change its state, unless it has ended, and wake its watchers."""
        if self.state in ENDED or self.state == state:
            return
        self.state = state
        if state in ENDED:
            self.ended = time.monotonic()
        self.changed.set()
        self.changed = asyncio.Event()


class Jobs:
    """The jobs of all tokens."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def begin(self, who: Analyst, study: str, work: Callable[[Job], Any]) -> Job:
        """A new job; `work` is awaited, and gives the document. Raises: RateRefusal: the token has too many."""
        self._forget()
        mine = [job for job in self._jobs.values() if job.owner == who.serial]
        if sum(job.state not in ENDED for job in mine) >= EACH:
            raise RateRefusal(f"a token may have {EACH} jobs at once", given=f"{EACH}", next_step="End one, or wait.")
        for job in [job for job in mine if job.state in ENDED][: max(0, len(mine) - KEPT)]:
            del self._jobs[job.id]
        job = Job(id=secrets.token_hex(16), owner=who.serial, study=study)
        self._jobs[job.id] = job

        async def run() -> None:
            try:
                job.answer = await work(job)
                job.become("done")
            except Refusal as refusal:
                job.refusal = refusal
                job.become("cancelled" if job.gone.is_set() else "refused")
            except BaseException:
                job.refusal = Refusal(
                    "The coordinator could not answer", next_step="Ask the study lead to look at its log."
                )
                job.become("refused")
                raise

        job.task = asyncio.get_running_loop().create_task(run())
        return job

    def of(self, who: Analyst, job_id: str) -> Job:
        """The job, if it is this token's. Raises: StateRefusal."""
        self._forget()
        job = self._jobs.get(job_id)
        if job is None or job.owner != who.serial:
            raise StateRefusal(
                "a job must be one that this token began",
                given=repr(job_id),
                next_step="One that ended long ago is forgotten, as all are at a restart: ask the question again.",
            )
        return job

    def cancel(self, job: Job) -> None:
        """End it: what is computed for it is ended within a moment."""
        job.gone.set()
        if job.refusal is None and job.state not in ENDED:
            job.refusal = NetworkRefusal(
                "a job must be let end", given="one that was cancelled", next_step="Ask again."
            )
        job.become("cancelled")

    async def watched(self, job: Job) -> AsyncIterator[str]:
        """Its states as they come, until it has ended; blank where nothing has changed for a while."""
        while True:
            state, changed = job.state, job.changed
            yield state
            if state in ENDED:
                return
            while True:
                try:
                    await asyncio.wait_for(changed.wait(), BEAT)
                    break
                except TimeoutError:
                    yield ""

    def _forget(self) -> None:
        late = time.monotonic() - SECONDS
        self._jobs = {name: job for name, job in self._jobs.items() if job.ended is None or job.ended > late}

    async def close(self) -> None:
        """End all."""
        for job in self._jobs.values():
            self.cancel(job)
        await asyncio.gather(*(job.task for job in self._jobs.values() if job.task), return_exceptions=True)
