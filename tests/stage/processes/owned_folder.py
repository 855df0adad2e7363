"""A temporary folder that goes with its process: removed on a signal, and after a kill by the next that wants one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.stage.processes.stopping import stopped

__all__ = ["owned_folder"]


@contextmanager
def owned_folder(name: str) -> Iterator[Path]:
    """An empty folder, locked by this process for as long as it has it; those of this name without an owner go first.

    A lock ends with whoever holds it, however that ends, and is not another's who gets the same id later.
    """
    within = Path(tempfile.gettempdir())
    for left in within.glob(f"{name}-*"):
        with suppress(OSError):  # it has an owner, another user's, or another removes it, too
            os.close(_locked(left))
            shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix=f".{name}-"))  # found by nobody until it is locked
    held = _locked(new)
    folder = new.rename(within / new.name[1:])
    try:
        # A signal is an exception then, on which whoever runs a process in the folder ends it before the folder goes.
        with stopped(lambda: None):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _locked(folder: Path) -> int:
    """A descriptor of a folder with its lock. Raises: BlockingIOError, where another process has it."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held
