"""Forks a coordinator's fork servers from a process that has imported what they are made of.

Whoever serves starts two of them, each an interpreter that imports for a second or two; tests start a hundred servers.
What is forked here is the product's own `fork_server.main`, on the product's own line.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
from types import SimpleNamespace

__all__ = ["plant"]


class _Grown:
    """What `subprocess.Popen` offers of a process that is no child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._watched = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int | None:
        return self._ended(timeout)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watched, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._watched], [], [], timeout)[0]:
            self.returncode = 0
            os.close(self._watched)
            self._watched = -1
        return self.returncode


def plant() -> None:
    """From now on this process, which has no threads yet, has its fork servers forked instead of started anew."""
    from coordinator.services.compute import workers

    ours, theirs = socket.socketpair()
    if not os.fork():
        try:
            ours.close()
            _grow(theirs)
        finally:
            os._exit(0)
    theirs.close()
    turn = threading.Lock()

    def popen(argv: list[str], *, pass_fds: tuple[int, ...], env: dict[str, str], **_: object) -> _Grown:
        with turn:
            socket.send_fds(ours, [json.dumps([argv[-1], env]).encode() + b"\n"], list(pass_fds))
            return _Grown(int(ours.recv(64)))

    workers.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]


def _grow(line: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, handles, _, _ = socket.recv_fds(line, 1 << 16, 1)
        if not order:
            return
        while not order.endswith(b"\n"):
            order += line.recv(1 << 16)
        imports, env = json.loads(order)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            line.close()
            os.setsid()
            os.environ.clear()
            os.environ.update(env)
            from coordinator.services.compute import fork_server

            fork_server.main([str(handles[0]), imports])
            os._exit(0)
        os.close(handles[0])
        line.sendall(b"%d" % pid)
