"""Where accepted bundles are kept, by their digests: a folder of the coordinator's home, or an object store.

A bundle never changes, so that its SHA-256 is its name, and putting it twice is putting it once. It is durable here
before the database names it, and what nobody's row names may be taken back at any time.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

__all__ = ["BundleStore", "bundle_store"]


class BundleStore(Protocol):
    """Accepted bundles by digest. Safe for many threads, and for several processes.

    Each method raises StorageRefusal where the store itself cannot be reached, read or written.
    """

    place: str
    """What `bundle_store` was given: blank for the folder, else a URL without any secret."""

    def put(self, digest: str, path: Path) -> None:
        """Keep the file's bytes under their digest: whole and durable when this returns, or not there at all.

        The file may be moved or stay; whoever put it removes what is left once a row names the bundle.
        """

    def take_back(self, digest: str, path: Path) -> None:
        """Undo `put`: move the bytes back to `path`. Does nothing where they are not stored."""

    def read(self, digest: str) -> AbstractContextManager[Path]:
        """A file with the bytes, which exists until the block ends; the caller checks them against the digest.

        Raises: FileNotFoundError.
        """

    def holds(self, digest: str) -> bool:
        """True if the bytes are stored now; the store is asked each time, and no earlier answer is used."""

    def state(self, digest: str) -> Hashable:
        """A mark that changes when the bytes stored under the digest change, found without reading them.

        Returns: a value to compare with an earlier one of the same store; None where no bytes are stored.
        """

    def delete(self, digest: str) -> bool:
        """Delete the bytes durably. Returns: False where none were stored."""

    def names(self) -> set[str]:
        """Digests of all stored bundles."""

    def claim(self, owner: str, *, dry_run: bool = False) -> None:
        """Mark the place as one coordinator's, so that two never share it by mistake; a second call changes nothing.

        Args:
            owner: a text that the coordinator and its copies have in common, and no other coordinator has.
            dry_run: check the mark, and write none.
        Raises: StateRefusal: the place is marked as another coordinator's.
        """

    def try_out(self) -> tuple[str, str]:
        """Put, read and delete a few bytes. Returns: the place where they were, and a warning (blank for none)."""


def bundle_store(place: str, home: Path) -> BundleStore:
    """The bundles of a coordinator.

    Args:
        place: blank for the folder ``bundles`` of its home, or ``s3://bucket/prefix``, see
            `coordinator.store.bundles.objects.ObjectPlace`.
        home: its home folder.
    Raises: ConfigRefusal.
    """
    if not place:
        from coordinator.store.bundles.folder import BundleFolder

        return BundleFolder(home / "bundles")
    from coordinator.store.bundles.objects import BundleObjects

    return BundleObjects(place)
