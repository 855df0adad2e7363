"""Processes in which strangers' bytes are read and analysts' questions computed, under limits and fair between owners.

Nothing here knows what a task does: it is the name of a function and plain values, what comes back are plain values, a
refusal, or `Ended`: the worker met a limit, died, or was ended because whoever asked had left. The server goes on.

Who waits for a place is served in turn by owner (a site, a token), not by arrival, and no owner holds more than its
share of the places. So one owner's long tasks delay that owner. Where no place has come free for half a second, an
owner who waits and runs nothing gets a spare one: as long as there are spares, nobody waits for another's long task.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import Any, Protocol

from coordinator.services.compute.fork_server import memory
from shared.base.canonical import canonical_json, parse_json
from shared.errors import CATALOGUE, NetworkRefusal, Refusal

__all__ = ["LOOK", "Busy", "Ended", "Failed", "TaskLimits", "WorkerLine", "Workers"]

REPLY_CAP = 16 << 20
START = 120.0  # seconds that a fork server may take to import and fork
LOOK = 0.2  # seconds between two looks at whether the caller is still there
SPARE_AFTER = 0.5
KEPT = 0.5  # a worker that has kept more than this share of a task's memory is not used again


@dataclass(frozen=True, kw_only=True)
class TaskLimits:
    """Resource limits of one task.

    Args:
        memory: bytes of address space beyond what a worker has when it begins.
        cpu: seconds of CPU time.
        wall: seconds altogether.
    """

    memory: int
    cpu: int
    wall: float


_CRASHES = {-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)}


class Ended(Exception):
    """A task that has no result.

    Args:
        why: ``memory``, ``cpu`` or ``wall`` (its limits), ``crashed`` (the worker broke), ``killed`` (something else
            ended it) or ``left`` (the caller).
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    @property
    def limit(self) -> bool:
        """True if the task itself is the cause and would fail again; not ``wall``, which a slow machine may cause."""
        return self.why in ("memory", "cpu", "crashed")


class Failed(Exception):
    """A task that broke on something unforeseen: the name of its error, and nothing of what it met."""


class Busy(Exception):
    """No place came free in time."""


class WorkerLine(Protocol):
    """One worker, and the line to it."""

    @property
    def well(self) -> bool:
        """True if it waits for a task."""

    def grown(self) -> int:
        """Bytes of memory that it has more than when it began."""

    def do(self, task: str, given: Mapping[str, Any], limits: TaskLimits, left: Callable[[], bool]) -> dict[str, Any]:
        """Reply of the worker to a task: ``gave``, ``refused``, ``failed`` or ``over``. Raises: Ended."""

    def end(self) -> object:
        """End it, or give it back to whom it belongs."""


class Workers:
    """A pool of worker processes. Safe for many threads; starts nothing before `start` or the first task.

    Args:
        imports: modules that every worker has imported when it is forked, ``module:function`` where one is called.
        places: tasks that run at the same time.
        limits: of one task.
        spares: further places, for owners who have waited and run nothing.
        fresh: True if every task gets a process of its own, forked for it, so that data of one sender never meets
            another's. Else a worker serves further tasks with the data it has cached.
    """

    def __init__(
        self, *, imports: Sequence[str], places: int, limits: TaskLimits, spares: int = 0, fresh: bool = False
    ) -> None:
        self.limits = limits
        self._imports, self._places, self._spares, self._fresh = tuple(imports), places, spares, fresh
        self._each = max(1, places - 1)
        self._turns = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._running: list[str] = []
        self._served: dict[str, int] = {}
        self._number, self._last = 0, 0.0
        self._idle: list[WorkerLine] = []
        self._closed = False
        self._era = 0  # a worker of an earlier one is not used again

    @property
    def each(self) -> int:
        """Places that one owner may hold at once."""
        return self._each

    def start(self) -> None:
        """Begin to import, so that the first task need not wait for it."""
        _fork_server(self._imports)

    def run(
        self,
        task: str,
        given: Mapping[str, Any],
        *,
        owner: str,
        patience: float = math.inf,
        left: Callable[[], bool] = lambda: False,
        begun: Callable[[], None] = lambda: None,
        limits: TaskLimits | None = None,
    ) -> Any:
        """Result of ``module:function`` for `given`, run in a worker; plain values in and out.

        Args:
            owner: owner of the task, for fairness.
            patience: seconds to wait for a place.
            left: returns True once the caller has gone; the task is then ended.
            begun: called when the task has its place and worker, before the worker is told of it.
            limits: of this task, if not the pool's.
        Raises: what the task refuses; Ended, Failed, Busy.
        """
        kept, era = False, self._era
        worker = self._take(owner, patience, left)
        try:
            worker = worker or self._new()
            begun()
            reply = worker.do(task, given, limits or self.limits, left)
            kept = not self._fresh and "gave" in reply and worker.grown() < KEPT * self.limits.memory
            kept = kept and era == self._era
        finally:
            self._leave(owner, worker, kept)
        if "refused" in reply:
            code, must, shown, step = reply["refused"]
            raise CATALOGUE.get(code, Refusal)(must, given=shown, next_step=step)
        if "failed" in reply:
            raise Failed(reply["failed"])
        if "over" in reply:
            raise Ended(reply["over"])
        return reply["gave"]

    def close(self) -> None:
        """End the workers that wait for a task; those that run end with theirs."""
        with self._turns:
            self._closed = True
        Workers.forget(self)

    def forget(self) -> None:
        """Leave nothing in memory of what tasks have read until now."""
        with self._turns:
            self._era += 1
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def _new(self) -> WorkerLine:
        """A worker. Raises: NetworkRefusal (none can be had)."""
        return _Worker(_fork_server(self._imports))

    # -- turns --------------------------------------------------------------------------------------------------
    def _take(self, owner: str, patience: float, left: Callable[[], bool]) -> WorkerLine | None:
        """Wait for a place; a worker that waits for a task, if one does. Raises: Busy, Ended."""
        with self._turns:
            self._number += 1
            ticket = _Ticket(number=self._number, owner=owner)
            self._waiting.append(ticket)
            try:
                while self._next() is not ticket:
                    waited = time.monotonic() - ticket.since
                    if waited > patience:
                        raise Busy
                    self._turns.wait(min(LOOK, max(0.0, patience - waited) + 0.001))
                    if left():
                        raise Ended("left")
            finally:
                self._waiting.remove(ticket)
                self._turns.notify_all()
            self._running.append(owner)
            self._number += 1
            self._served[owner], self._last = self._number, time.monotonic()
            while self._idle:
                worker = self._idle.pop()  # the last one used: it knows most of what is asked now
                if worker.well:
                    return worker
                worker.end()
            return None

    def _next(self) -> _Ticket | None:
        """Next ticket to be served: of the owners who may have a place, the one served longest ago; None if nobody."""
        free = self._places - len(self._running)
        for ticket in sorted(self._waiting, key=lambda one: (self._served.get(one.owner, 0), one.number)):
            mine = self._running.count(ticket.owner)
            # Places that come free in turn need no spare one: it would know nothing yet.
            spare = mine == 0 and time.monotonic() - max(ticket.since, self._last) > SPARE_AFTER
            if (free > 0 and mine < self._each) or (free > -self._spares and spare):
                return ticket
        return None

    def _leave(self, owner: str, worker: WorkerLine | None, kept: bool) -> None:
        with self._turns:
            self._running.remove(owner)
            kept = kept and not self._closed and len(self._idle) < self._places
            if worker is not None and kept:
                self._idle.append(worker)
            if owner not in self._running and all(one.owner != owner for one in self._waiting):
                # Nobody is remembered for ever: who comes back after a while is as good as new.
                self._served.pop(owner, None)
            self._turns.notify_all()
        if worker is not None and not kept:
            worker.end()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ticket:
    number: int
    owner: str
    since: float = field(default_factory=time.monotonic)


class _Worker:
    """One process, and the line to it."""

    def __init__(self, fork_server: _ForkServer) -> None:
        self._fork_server = fork_server
        self._line, theirs = Pipe()
        with theirs:
            self._pid = fork_server.fork(theirs)
        self._began = memory(self._pid)

    @property
    def well(self) -> bool:
        """True if it waits for a task: one that has died has closed its line."""
        return not self._line.poll()

    def grown(self) -> int:
        """Bytes of address space that it has more than when it was forked."""
        return memory(self._pid) - self._began

    def do(self, task: str, given: Mapping[str, Any], limits: TaskLimits, left: Callable[[], bool]) -> dict[str, Any]:
        """Reply of the worker to a task. Raises: Ended."""
        asked = {"task": task, "given": given, "memory": limits.memory, "cpu": limits.cpu}
        until = time.monotonic() + limits.wall
        try:
            self._line.send_bytes(canonical_json(asked))
            while not self._line.poll(LOOK):
                if left():
                    raise Ended("left")
                if time.monotonic() > until:
                    raise Ended("wall")
            reply = parse_json(self._line.recv_bytes(REPLY_CAP), cap=REPLY_CAP)
        except (EOFError, OSError, Refusal):
            raise Ended(self._why()) from None
        return dict(reply)

    def _why(self) -> str:
        status = self.end(gone=True)
        if status == -signal.SIGXCPU:
            return "cpu"
        return "crashed" if status == 0 or status in _CRASHES else "killed"

    def end(self, *, gone: bool = False) -> int | None:
        """End the process; how it ended (negative: by which signal), if it had before, as one that is `gone` has."""
        self._line.close()
        return self._fork_server.end(self._pid, gone)


class _ForkServer:
    """The process that workers are forked from (`coordinator.services.compute.fork_server`)."""

    def __init__(self, imports: Sequence[str]) -> None:
        self.owner = os.getpid()
        self._turn = threading.Lock()
        self._line, theirs = Pipe()
        # One thread each: what computes must not fork with threads, and the machine is shared.
        env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
        env["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # reserves no more than it is asked for
        env["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with theirs:
            argv = [
                sys.executable,
                "-m",
                "coordinator.services.compute.fork_server",
                str(theirs.fileno()),
                json.dumps(imports),
            ]
            self.process = subprocess.Popen(
                argv, pass_fds=(theirs.fileno(),), env=env, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def lives(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, line: Connection) -> int:
        """A new worker at the other end of `line`; its process id. Raises: NetworkRefusal (none can be had)."""
        with self._turn:
            try:
                self._line.send_bytes(b"{}")
                send_handle(self._line, line.fileno(), self.process.pid)
                return int(self._reply())
            except (EOFError, OSError):
                self.stop()
                raise NetworkRefusal(
                    "the coordinator must be able to start a worker process", given="none", next_step="Try again."
                ) from None

    def end(self, pid: int, gone: bool) -> int | None:
        """End a worker; how it ended, if it had before."""
        with self._turn, contextlib.suppress(EOFError, OSError):
            self._line.send_bytes(json.dumps({"end": pid, "gone": gone}).encode())
            status: int | None = self._reply()
            return status
        return None

    def _reply(self) -> Any:
        if not self._line.poll(START):
            raise EOFError
        return json.loads(self._line.recv_bytes(REPLY_CAP))

    def stop(self) -> None:
        """End it, and with it its workers."""
        self._line.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


_fork_servers: dict[tuple[str, ...], _ForkServer] = {}
_guard = threading.Lock()


def _fork_server(imports: tuple[str, ...]) -> _ForkServer:
    """The fork server of this process with these modules; started where there is none, or none any more."""
    with _guard:
        known = _fork_servers.get(imports)
        if known is None or not known.lives:
            if not _fork_servers:
                atexit.register(_stop)
            known = _fork_servers[imports] = _ForkServer(imports)
        return known


def _stop() -> None:
    for fork_server in _fork_servers.values():
        if fork_server.owner == os.getpid():
            fork_server.stop()
