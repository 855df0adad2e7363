"""Engine that computes questions, in processes of this machine or on a cluster, and reports failures as refusals."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coordinator.services.compute.tasks import ANSWERING
from coordinator.services.compute.workers import Busy, Ended, Failed, TaskLimits, Workers
from shared.errors import EstimateRefusal, NetworkRefusal, RateRefusal, Refusal

__all__ = ["PATIENCE", "ComputeEngine"]

WORK_OUT = "coordinator.services.compute.parts:work_out"
PATIENCE = 30.0  # seconds that a question waits for a free place


class ComputeEngine:
    """Engine that runs the tasks of analysts' questions in workers, here or on a cluster.

    Args:
        compute: ``dask://host:port`` of a cluster; blank for processes of this machine.
        places: questions that are computed at the same time.
        limits: of one question.
    Raises: ConfigRefusal; PackageRefusal.
    """

    def __init__(self, compute: str, *, places: int, limits: TaskLimits) -> None:
        self.here = Workers(imports=ANSWERING, places=places, spares=places, limits=limits)
        self.elsewhere: Workers | None = None
        if compute:
            from coordinator.services.compute.cluster import Cluster

            self.elsewhere = Cluster(compute, places=places, limits=limits)

    def start(self) -> None:
        """Begin what the first question would have to wait for."""
        (self.elsewhere or self.here).start()

    def close(self) -> None:
        """End the processes that wait for a question."""
        for one in filter(None, (self.here, self.elsewhere)):
            one.close()

    def forget(self) -> None:
        """Leave nothing in memory of what releases held until now."""
        for one in filter(None, (self.here, self.elsewhere)):
            one.forget()

    @property
    def each(self) -> int:
        """Questions, or parts of one, that are computed for one token at once."""
        return (self.elsewhere or self.here).each

    def run_in_parts(
        self,
        task: str,
        given: Mapping[str, Any],
        parts: Sequence[Sequence[str]],
        *,
        owner: str,
        left: Callable[[], bool] = lambda: False,
        begun: Callable[[], None] = lambda: None,
    ) -> Any:
        """As `run`, once each part's sites have been worked out by a worker of its own, at the same time.

        Args:
            parts: sites of each (`coordinator.services.compute.parts.dealt`); none for a task that is run whole.
        """

        def work_out(sites: Sequence[str]) -> None:
            with contextlib.suppress(Refusal):  # the task does without, and says what is the matter
                self.run(WORK_OUT, {**given, "sites": list(sites)}, owner=owner, left=left, begun=begun)

        if parts:
            with ThreadPoolExecutor(len(parts)) as pool:
                list(pool.map(work_out, parts))
        return self.run(task, given, owner=owner, left=left, begun=begun)

    def run(
        self,
        task: str,
        given: Mapping[str, Any],
        *,
        owner: str,
        left: Callable[[], bool] = lambda: False,
        begun: Callable[[], None] = lambda: None,
    ) -> Any:
        """Result of a task.

        Args: as of `coordinator.services.compute.workers.Workers.run`.
        Raises: what it refuses, RateRefusal, EstimateRefusal, NetworkRefusal; Refusal for an unforeseen error.
        """
        # What writes a file for this server is done on its machine.
        workers = self.here if self.elsewhere is None or "path" in given else self.elsewhere
        try:
            return workers.run(task, given, owner=owner, patience=PATIENCE, left=left, begun=begun)
        except Busy:
            raise RateRefusal(
                "the coordinator must have a free place for a question", given="none", next_step="Try again later."
            ) from None
        except Ended as ended:
            if not ended.limit:
                raise NetworkRefusal(
                    "a question must be computed to the end", given="a process that was ended", next_step="Ask again."
                ) from None
            raise EstimateRefusal(
                f"a question must be answered within {workers.limits.memory >> 20} MB of memory and "
                f"{workers.limits.cpu} s of computing",
                given="one that takes more",
                next_step="Ask for fewer terms, or of fewer rows.",
            ) from None
        except Failed as failed:
            logging.getLogger("tributary.analysis").error("unexpected %s in a question", failed)
            raise Refusal(
                "The coordinator could not answer", next_step="Ask the study lead to look at its log."
            ) from None
