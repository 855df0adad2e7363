"""Background jobs of the page, and their progress: one rehearsal or one release at a time.

A job does not depend on the page: a browser may be closed, and a server that is stopped waits for the job to end. A
machine that fails in the middle leaves the same state as the command would: a charge that is resumed, or burnt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.errors import LockedRefusal, Refusal, machine_failures

__all__ = ["Work", "Works"]

Tell = Callable[[Any, float, float | None], None]
"""Called with the stage, the share that is done, and the seconds left (None while unknown)."""


@dataclass
class Work:
    """One background job.

    Attributes:
        kind: ``rehearsal`` or ``release``.
        stage: in the words of `ReleaseStage`; blank before the first.
        share: completed share of the job.
        left: seconds left, None while unknown.
        outcome: its result; None while it runs, or after a refusal.
        refusal: reason why it ended without a result.
    """

    kind: str
    study: str
    stage: str = ""
    share: float = 0.0
    left: float | None = None
    outcome: Any = None
    refusal: Refusal | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def tell(self, stage: Any, share: float, left: float | None) -> None:
        """Note its progress; the pipeline calls it."""
        self.stage, self.share, self.left = str(stage.value), share, left


class Works:
    """The one job that runs, or ran last."""

    def __init__(self) -> None:
        self.last: Work | None = None
        self._lock = threading.Lock()

    @property
    def running(self) -> Work | None:
        """The job that runs; None where none does."""
        last = self.last
        return None if last is None or last.over.is_set() else last

    def start(self, kind: str, study: str, run: Callable[[Tell], Any]) -> Work:
        """Begin a work. Raises: LockedRefusal, while another one runs."""
        with self._lock:
            if (other := self.running) is not None:
                raise LockedRefusal(
                    "one work must end before another begins",
                    given=f"a {other.kind} of {other.study} that runs",
                    next_step="Wait until it is done.",
                )
            work = self.last = Work(kind=kind, study=study)

        def through() -> None:
            try:
                with machine_failures():
                    work.outcome = run(work.tell)
            except Refusal as refusal:
                work.refusal = refusal
            except Exception as error:  # nobody else waits for this thread: without a word it would look done
                work.refusal = Refusal(
                    "a work must come to its end",
                    given=f"an unexpected {type(error).__name__}",
                    next_step="Look at outbox and budget: what was charged stays charged. Then begin it again.",
                )
            finally:
                work.over.set()

        # No daemon: a server that is stopped waits for what is charged to be sealed.
        threading.Thread(target=through, name=f"{kind} of {study}").start()
        return work
