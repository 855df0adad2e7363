"""What a test or a benchmark has started ends with it, also where a signal ends it: by its own id, nothing by name."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["started", "stopped"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPS: list[Callable[[], None]] = []
"""What is to be stopped, the oldest first."""
_BEFORE: dict[int, Any] = {}
"""From a signal to who was called by it before; one that was ignored stays so."""
_OWNER: list[int] = []
"""The process whose list this is: one forked from it has started none of these."""


@contextmanager
def stopped(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the block ends, and where SIGTERM or SIGINT ends this process, before anything else is left.

    Blocks are left slowly where threads are waited for that ask the very server; so it is stopped first.

    Args:
        stop: may be called twice.
    """
    # Not by what is stopped: a thread, which may set no handler, may have been the first.
    if not _BEFORE and threading.current_thread() is threading.main_thread():
        _OWNER[:] = [os.getpid()]
        heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        _BEFORE.update((number, signal.signal(number, _asked)) for number in heard)
    _STOPS.append(stop)
    try:
        yield
    finally:
        if stop in _STOPS:
            stop()
            _STOPS.remove(stop)
        if not _STOPS and threading.current_thread() is threading.main_thread():
            for number in list(_BEFORE):
                signal.signal(number, _BEFORE.pop(number))


def _asked(number: int, frame: FrameType | None) -> None:
    mine, before = os.getpid() in _OWNER, _BEFORE.get(number)
    while mine and _STOPS:
        with suppress(Exception):  # the others are stopped still
            _STOPS.pop()()
    if callable(before):
        before(number, frame)
    elif not mine:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    raise KeyboardInterrupt(signal.Signals(number).name)  # not SystemExit: to pytest that is a failed test, and no end


@contextmanager
def started(argv: Sequence[str | Path], *, within: float = 30.0, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A running process, asked to end when the block does.

    Args:
        within: seconds after which it is killed.
        options: of `subprocess.Popen`.
    """
    process = subprocess.Popen(argv, **options)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(within)

    try:
        with stopped(stop):
            yield process
    finally:
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()
