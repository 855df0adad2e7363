"""Atomic and durable file writes: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import StateRefusal

__all__ = ["fsync_folder", "name_once", "own_part"]


def fsync_folder(folder: Path) -> None:
    """Flush a folder to disk: what was renamed into it, or removed from it, survives a power cut. Raises: OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def own_part(path: Path) -> Iterator[tuple[int, Path]]:
    """The file that will take the name `path`, empty, and nobody else's meanwhile; one that a crash left is taken up.

    Returns: its handle, open for writing, and its own name. Raises: OSError.
    """
    import fcntl

    part = path.with_name(path.name + ".part")
    while True:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_still(part, handle):
                os.ftruncate(handle, 0)
                yield handle, part
                return
        finally:
            os.close(handle)


def _is_still(part: Path, handle: int) -> bool:
    """False where somebody gave the file its name while one waited; one with two names is left to the other."""
    here = os.fstat(handle)
    try:
        same = os.path.samestat(here, part.stat())
    except FileNotFoundError:
        return False
    if same and here.st_nlink > 1:  # a crash fell between the new name and the end of this one
        part.unlink()
        return False
    return same


def name_once(part: Path, path: Path) -> None:
    """Give a part the name `path`, unless something has it. Raises: StateRefusal, OSError."""
    try:
        os.link(part, path)
    except FileExistsError:
        there = True
    except OSError:  # a file system without links
        there = path.exists()
        if not there:
            os.replace(part, path)
            return
    else:
        there = False
    part.unlink()
    if there:
        raise StateRefusal(
            f"{path.name} must be new",
            given="one that is there already",
            next_step="It was left as it is. If another command has just made it, wait for that one to end.",
        )
