"""Answers computed on other machines: a Dask cluster in the place of this machine's worker processes.

A task goes to the cluster as it goes to a process here: the name of a function and plain values, fair between owners
(`coordinator.services.compute.workers`). On the machine that gets it, it runs in a process forked for it, under the
same limits, and rests on the same bundles by their digests, so that the answer is the same to the last bit. Dask finds
a worker, and gives the task to another one where that is lost.

A cluster's machines are trusted as the coordinator is: Dask's messages are pickles, so whoever may speak to its
scheduler runs code on all of them. Beyond this machine the coordinator therefore speaks TLS only, by the certificates
of Dask's own settings (``distributed.comm.tls``), and they need read access to the same store. Each runs Dask's own
worker, one task at a time, with the coordinator's home folder there::

    TRIBUTARY_COORDINATOR_HOME=/etc/tributary dask worker tls://scheduler:8786 --nthreads 1 --nworkers 8 --no-dashboard
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.services.compute.tasks import ANSWERING
from coordinator.services.compute.workers import LOOK, Busy, Ended, Failed, TaskLimits, WorkerLine, Workers
from shared.base.canonical import canonical_json, parse_json
from shared.errors import ConfigRefusal, NetworkRefusal, Refusal, lacking

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["HOME", "Cluster", "cluster_address", "perform"]

HOME = "TRIBUTARY_COORDINATOR_HOME"
"""Environment variable of a cluster's worker: the coordinator's home folder on that machine."""
CONNECT = 10.0  # seconds to reach the scheduler
WITHOUT = 15.0  # seconds that a task waits for a first worker to be there
GRACE = 10.0  # seconds beyond a task's own, for its way there and back
_CAP = 16 << 20


def cluster_address(compute: str) -> str:
    """The scheduler's address as Dask writes it. Raises: ConfigRefusal; PackageRefusal.

    >>> cluster_address("dask://127.0.0.1:8786")
    'tcp://127.0.0.1:8786'
    """
    found = re.fullmatch(r"dask://(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+):(\d{1,5})", compute)
    if found is None:
        raise ConfigRefusal("compute must be dask://host:port, or empty", given=repr(compute)[:80])
    try:
        from distributed.security import Security
    except ImportError:
        raise lacking("distributed") from None
    place = f"{found[1]}:{found[2]}"
    if Security().get_connection_args("client").get("ssl_context"):
        return f"tls://{place}"
    if found[1] not in ("127.0.0.1", "localhost", "[::1]"):
        raise ConfigRefusal(
            "a scheduler on another machine must be spoken to by TLS",
            given="no certificate in Dask's settings",
            next_step="Set distributed.comm.tls (ca-file, client.cert, client.key) in Dask's configuration.",
        )
    return f"tcp://{place}"


class Cluster(Workers):
    """A cluster's workers as a pool: see `Workers`.

    Args:
        compute: ``dask://host:port`` of the scheduler.
        places: tasks that are given to it at the same time.
        limits: of one task, held on the machine that computes it.
    Raises: ConfigRefusal; PackageRefusal.
    """

    def __init__(self, compute: str, *, places: int, limits: TaskLimits) -> None:
        super().__init__(imports=(), places=places, limits=limits, spares=places)
        self._address = cluster_address(compute)
        self._guard = threading.Lock()
        self._known: Client | None = None

    def start(self) -> None:
        """Look for the scheduler; what is asked before it is there is refused."""
        try:
            self._client()
        except NetworkRefusal as refusal:
            logging.getLogger("tributary.compute").warning("no cluster yet: %s", refusal)

    def close(self) -> None:
        """Give nothing more to the cluster."""
        super().close()
        with self._guard:
            if self._known is not None:
                self._known.close(timeout=2)
                self._known = None

    def forget(self) -> None:
        """Have all its workers leave nothing in memory of what tasks have read until now."""
        super().forget()
        try:
            self._client().run(forget)
        except (NetworkRefusal, OSError, TimeoutError, RuntimeError) as error:
            logging.getLogger("tributary.compute").error(
                "the cluster's workers must be restarted, they could not be told to forget: %s", type(error).__name__
            )

    def _new(self) -> WorkerLine:
        return _ClusterLine(self._client())

    def _client(self) -> Client:
        from distributed import Client

        with self._guard:
            if self._known is not None and self._known.status == "running":
                return self._known
            if self._known is not None:
                self._known.close(timeout=1)
                self._known = None
            try:
                self._known = Client(self._address, timeout=CONNECT, set_as_default=False, name="tributary")
            except (OSError, TimeoutError, ValueError):
                raise NetworkRefusal(
                    "the cluster that computes answers must be there",
                    given="no scheduler",
                    next_step="Try again later, or ask the study lead.",
                ) from None
            return self._known


class _ClusterLine:
    """The way of one task to the cluster and back."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def well(self) -> bool:
        return bool(self._client.status == "running")

    def grown(self) -> int:
        return 0

    def end(self) -> None:
        """Do nothing: the worker is the cluster's."""

    def do(self, task: str, given: Mapping[str, Any], limits: TaskLimits, left: Callable[[], bool]) -> dict[str, Any]:
        """As of `WorkerLine`. Raises: Ended; NetworkRefusal (no scheduler, or no worker)."""
        asked = canonical_json({"task": task, "given": given})
        bounds = (limits.memory, limits.cpu, limits.wall)
        began = time.monotonic()
        future = self._client.submit(perform, asked, bounds, pure=False)
        try:
            while not future.done():
                time.sleep(min(LOOK, 0.002 + (time.monotonic() - began) / 10))
                waited = time.monotonic() - began
                if left():
                    raise Ended("left")
                if self._client.status != "running" or (waited > WITHOUT and not self._client.ncores()):
                    raise _gone()
                if waited > limits.wall + GRACE:
                    raise Ended("wall")
            if future.status != "finished":
                raise _gone()
            return dict(parse_json(future.result(), cap=_CAP))
        except (OSError, TimeoutError):
            raise _gone() from None
        finally:
            future.cancel()


def _gone() -> NetworkRefusal:
    return NetworkRefusal(
        "the cluster that computes answers must have a scheduler and a worker",
        given="none that took the question to its end",
        next_step="Ask again later, or ask the study lead.",
    )


# -- on the machine that computes -----------------------------------------------------------------------------------
def perform(asked: bytes, bounds: tuple[int, int, float]) -> bytes:
    """Reply to a task, as of `WorkerLine.do`, from a worker process of this machine; canonical JSON."""
    memory, cpu, wall = bounds
    said = parse_json(asked, cap=_CAP)
    given = said["given"]
    home = os.environ.get(HOME, "")
    if home and "store" in given:
        given = {**given, "store": _own(home)}
    limits = TaskLimits(memory=memory, cpu=cpu, wall=wall)
    reply: dict[str, Any]
    try:
        reply = {"gave": _pool().run(said["task"], given, owner="cluster", limits=limits, left=_left())}
    except Refusal as caught:
        refusal = caught.outside
        reply = {"refused": [refusal.code, refusal.must, refusal.given, refusal.next_step]}
    except Failed as failed:
        reply = {"failed": str(failed)}
    except Ended as ended:
        reply = {"over": ended.why}
    except Busy:
        reply = {"over": "wall"}
    return canonical_json(reply)


def _left() -> Callable[[], bool]:
    """Function that is true once nobody waits for this task; Dask itself lets a task that has begun run to its end."""
    from distributed import get_worker

    worker = get_worker()
    tasks, key = worker.state.tasks, worker.get_current_task()
    return lambda: key not in tasks or tasks[key].state == "cancelled"


def forget() -> None:
    """Leave nothing in memory of what tasks have read here."""
    _pool().forget()


@functools.cache
def _pool() -> Workers:
    return Workers(imports=ANSWERING, places=2, limits=TaskLimits(memory=2 << 30, cpu=240, wall=300.0))


@functools.cache
def _own(home: str) -> tuple[str, str, str]:
    """The store as this machine reaches it."""
    from coordinator.config import CoordinatorConfig

    config = CoordinatorConfig.load(Path(home))
    return config.store or f"sqlite:///{config.home / 'store.db'}", str(config.home), config.bundles
