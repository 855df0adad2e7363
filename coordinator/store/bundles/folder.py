"""Bundles in a folder: what is put here is moved, so that a power cut leaves it in one place or the other."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.base.durable import fsync_folder
from shared.base.failpoints import reach

__all__ = ["BundleFolder"]


class BundleFolder:
    """See `coordinator.store.bundles.BundleStore`.

    Args:
        folder: on the file system of whatever is put here; whoever puts the first makes it.
    """

    place = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, digest: str) -> Path:
        """Where a bundle lies, if it does."""
        return self.folder / f"{digest}.zip"

    def put(self, digest: str, path: Path) -> None:
        """Move a file here. Raises: OSError."""
        os.replace(path, self.file(digest))
        reach("ingest.after_move")
        fsync_folder(self.folder)
        fsync_folder(path.parent)

    def take_back(self, digest: str, path: Path) -> None:
        """Move it back. Raises: OSError."""
        if self.holds(digest):
            os.replace(self.file(digest), path)

    @contextmanager
    def read(self, digest: str) -> Iterator[Path]:
        """The file itself. Raises: FileNotFoundError."""
        path = self.file(digest)
        path.stat()
        yield path

    def holds(self, digest: str) -> bool:
        """Whether it is here."""
        return self.file(digest).exists()

    def state(self, digest: str) -> Hashable:
        """Inode, size and times of the bundle's file, as `BundleStore.state`; None where there is no such file."""
        try:
            file = self.file(digest).stat()
        except OSError:
            return None
        return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns

    def delete(self, digest: str) -> bool:
        """Remove it, flushed; False where it is not here. Raises: OSError."""
        if not self.holds(digest):
            return False
        self.file(digest).unlink(missing_ok=True)
        fsync_folder(self.folder)
        return True

    def names(self) -> set[str]:
        """Digests of all that is here."""
        return {path.stem for path in self.folder.glob("*.zip")}

    def claim(self, owner: str, *, dry_run: bool = False) -> None:
        """Nothing is marked: the folder is its home's (`coordinator.services.health.require_home`)."""

    def try_out(self) -> tuple[str, str]:
        """Nothing is tried: the disk is looked at by itself."""
        return f"{self.folder}", ""
