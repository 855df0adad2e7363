"""What processes hold, for benchmarks: by the kernel's own word, in megabytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

__all__ = ["below", "held", "peaks", "reset_peak", "resident", "spent", "watched"]

T = TypeVar("T")


def resident(pid: int | str = "self", name: str = "VmRSS") -> float:
    """A line of a process's status; its peak is ``VmHWM``, what no file backs ``RssAnon``; 0 once it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def reset_peak() -> float:
    """Let the kernel's high-water mark of this process start from now; what it holds."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident()


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    try:
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for task in os.listdir(f"/proc/{pid}/task"):
            children += [int(one) for one in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []
    children = sorted(set(children))
    return children + [further for child in children for further in below(child)]


def held(pid: int) -> tuple[float, float]:
    """What a process and those below it hold: the sum of RSS, and of PSS."""
    rss = pss = 0.0
    for one in (pid, *below(pid)):
        with suppress(OSError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:])
            rss += int(lines["Rss"].split()[0]) / 1024
            pss += int(lines["Pss"].split()[0]) / 1024
    return rss, pss


def spent(pid: int) -> float:
    """CPU seconds of a process, of those below it, and of those that it has seen end; 0 once it has gone."""
    total = 0.0
    for one in (pid, *below(pid)):
        with suppress(OSError):
            after_name = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def watched(look: Callable[[], T], every: float = 1.0) -> Iterator[list[T]]:
    """What was seen at each look while this lasts.

    Args:
        every: seconds between two looks.
    """
    seen, ended = list[T](), threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            seen.append(look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@contextmanager
def peaks(pid: int) -> Iterator[dict[str, float]]:
    """The most that one process below another holds at once while this lasts: by high-water marks, and without files.

    A process that ends within a fiftieth of a second may be missed.
    """
    most = {"resident_mb": 0.0, "anonymous_mb": 0.0}

    def look() -> None:
        for one in below(pid):
            most["resident_mb"] = max(most["resident_mb"], resident(one, "VmHWM"))
            most["anonymous_mb"] = max(most["anonymous_mb"], resident(one, "RssAnon"))

    with watched(look, 0.02):
        yield most
