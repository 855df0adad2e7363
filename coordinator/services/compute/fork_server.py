"""The process that workers are forked from: it has imported what they need, runs one thread, and reads nothing.

A server with threads must not fork, and a fresh interpreter takes seconds to import what a table is read with. So
`workers`, beside it, starts this program once; it imports, and forks a worker whenever it is asked. A worker
takes one task at a time from its own line, under limits of memory and CPU time, and dies with this process. What goes
over the lines is JSON: nothing that a worker says is ever unpickled.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

from shared.base.canonical import canonical_json
from shared.base.process import keep_freed
from shared.errors import Refusal

__all__ = ["main", "memory"]

TASK_CAP = 16 << 20
MOMENT = 2.0
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def memory(of: int | str = "self") -> int:
    """Bytes of address space of a process; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{of}/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def main(arguments: list[str]) -> None:
    """Import what is asked for, then fork and end workers until the line closes.

    Args:
        arguments: the line's file descriptor, and a JSON list of modules; after a colon, a function to call.
    """
    line = Connection(int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the server ends this line
    keep_freed()
    for name in json.loads(arguments[1]):
        module, _, first = name.partition(":")
        found = importlib.import_module(module)
        if first:
            getattr(found, first)()
    gc.collect()
    gc.freeze()  # what was imported stays shared with the workers
    alive: set[int] = set()
    with contextlib.suppress(EOFError, OSError):
        while True:
            asked = json.loads(line.recv_bytes(TASK_CAP))
            if "end" in asked:
                line.send_bytes(json.dumps(_end(asked["end"], asked["gone"], alive)).encode())
                continue
            own = Connection(recv_handle(line))
            pid = os.fork()
            if not pid:
                line.close()
                _work(own)
            own.close()
            alive.add(pid)
            line.send_bytes(json.dumps(pid).encode())
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _end(pid: int, gone: bool, alive: set[int]) -> int | None:
    """End a worker; its exit code (negative: the signal) if it had ended by itself, else None.

    One that is `gone` has closed its line: it is given a moment to end, so that its exit code is known.
    """
    if pid not in alive:
        return None
    alive.discard(pid)
    until = time.monotonic() + (MOMENT if gone else 0.0)
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            break
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _work(line: Connection) -> None:
    """Do tasks until the line closes; never returns."""
    try:
        _alone()
        with contextlib.suppress(EOFError, OSError):
            while True:
                line.send_bytes(_done(json.loads(line.recv_bytes(TASK_CAP))))
    finally:
        os._exit(0)


def _alone() -> None:
    """Die with the fork server, before the server when memory is short, and without a word about what was read."""
    with contextlib.suppress(OSError, AttributeError, ImportError):
        import ctypes

        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for place in range(3):
        os.dup2(nowhere, place)


def _done(asked: Mapping[str, Any]) -> bytes:
    """The reply to a task: what it gave, its refusal, the limit it met, or the name of its fault."""
    module, _, name = asked["task"].partition(":")
    try:
        task: Callable[..., Any] = getattr(importlib.import_module(module), name)
        if memory():
            _limit(resource.RLIMIT_AS, memory() + asked["memory"])
        _limit(resource.RLIMIT_CPU, int(sum(os.times()[:2])) + 1 + asked["cpu"])
        reply: dict[str, Any] = {"gave": task(asked["given"])}
        return canonical_json(reply)
    except (MemoryError, ImportError):
        # What a task needs was loaded before its limit was set, or is loaded within it: there a library that cannot be
        # mapped fails as an import.
        reply = {"over": "memory"}
    except Refusal as caught:
        refusal = caught.outside  # what is this side's own, as the database's place, does not survive as such
        reply = {"refused": [refusal.code, refusal.must, refusal.given, refusal.next_step]}
    except Exception as error:
        reply = {"failed": type(error).__name__}
    _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    return canonical_json(reply)


def _limit(what: int, most: int) -> None:
    """Set a limit that may be raised again: the next task has its own."""
    with contextlib.suppress(OSError, ValueError):  # a system that limits no address space
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
