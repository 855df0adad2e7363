"""What this process may use: memory, the C library's allocator, processors, libraries, a temporary folder."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["available_cores", "available_mb", "deferred", "give_back", "keep_freed", "owned_folder", "uncollected"]

KEPT, LARGE = 16 << 20, 4 << 20
"""Bytes that stay with the process once they were freed, and a piece from which on each is the system's own again."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of ``mallopt``, as ``malloc.h`` of the GNU C library has them."""


def keep_freed() -> None:
    """Keep freed pieces of up to `LARGE` bytes at hand, `KEPT` in all; nothing where the C library is another.

    A numeric loop asks for the same hundreds of kilobytes thousands of times. Left to itself the library hands them
    back to the system after each, which clears every page before it gives it out again.
    """
    import ctypes

    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no such library, or none without a name
        return
    change(_TRIM_THRESHOLD, KEPT)
    change(_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Give the system the pages that nothing lies on any more; nothing where the C library is another.

    The library keeps a heap for every few threads, and gives back only what lies at its end: threads that took much at
    once, each a little later than the others, leave heaps that are mostly holes.
    """
    import ctypes

    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def available_mb(root: Path = Path("/")) -> float | None:
    """Megabytes that this process may take in all: what is left without swapping, and what it has already.

    By the kernel's own word (``MemAvailable``) and that of the container it runs in (control groups of version 2 and
    1), whichever is less.

    Args:
        root: of the file system in which ``proc`` and ``sys`` lie.
    Returns: None where neither says it, as on macOS.

    >>> available_mb(Path("/nowhere"))
    """
    left = []
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        left.append(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:")))
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, StopIteration, ValueError, IndexError):  # "max" is no number: there is no limit
            group = root / "sys/fs/cgroup"
            most, taken = (int((group / name).read_text()) for name in (limit, used))
            stat = (group / limit).with_name("memory.stat").read_text().splitlines()
            given_back = next((int(line.split()[1]) for line in stat if line.split()[0] == cache), 0)
            left.append((most - taken + given_back) / 2**20)
    if not left:
        return None
    own = 0.0
    with suppress(OSError, ValueError, IndexError):
        own = int((root / "proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return max(min(left), 0.0) + own


def available_cores(root: Path = Path("/")) -> int:
    """Processors that this process may keep busy: those it may run on, and no more than its container's share of time.

    A share is a quota over a period (control groups of version 2 and 1); part of a processor counts as one.

    Args:
        root: as of `available_mb`.

    >>> available_cores(Path("/nowhere")) >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    group = root / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # "max" and -1: there is no quota
            quota, period = map(int, " ".join((group / name).read_text() for name in files).split())
            if quota > 0 < period:
                cores = min(cores, -(-quota // period))
    return cores


class _Deferred:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)  # threads wait for one another at the import's own lock
        setattr(self, attribute, found)
        return found


def deferred(name: str) -> Any:
    """The module `name`, imported when an attribute of it is first read: for a module that a command may not need.

    The standard library's `LazyLoader` is not safe where two threads read first, as those of a coordinator may.

    >>> fractions = deferred("fractions")
    >>> str(fractions.Fraction(2, 4))
    '1/2'
    """
    return _Deferred(name)


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage where many objects are made that all stay: each look walks all that there are.

    Of several at once the first to begin says when it goes on, and none leaves it off.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def owned_folder(name: str) -> Iterator[Path]:
    """A temporary folder for this user alone, locked as long as the process has it; what a kill left goes first.

    A lock ends with whoever holds it, however that ends, and no process that gets the same id later has it.

    Args:
        name: first letters of the folder's name, of one use alone: an unlocked folder ``name-…`` of this user is
            deleted.

    >>> with owned_folder("tributary-doctest") as folder:
    ...     folder.is_dir(), folder.name.startswith("tributary-doctest-")
    (True, True)
    >>> folder.exists()
    False
    """
    within = Path(tempfile.gettempdir())
    for left in within.glob(f"{name}-*"):
        with suppress(OSError):  # it has an owner, or is another user's, or another process deletes it too
            held = _locked(left)
            try:
                shutil.rmtree(left)
            finally:
                os.close(held)
    new = Path(tempfile.mkdtemp(prefix=f".{name}-"))  # found by nobody until it is locked
    held = _locked(new)
    folder, owner = new.rename(within / new.name[1:]), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:  # not one forked from it, which ends earlier
            shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _locked(folder: Path) -> int:
    """A descriptor of a folder of this user with its lock. Raises: OSError, where another process has it."""
    import fcntl

    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid != os.geteuid():
            raise PermissionError(f"{folder.name} is another user's")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
