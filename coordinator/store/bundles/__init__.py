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
        """Undo `put`: the bytes lie at `path` again, and here no more. Nothing where they are not here."""

    def read(self, digest: str) -> AbstractContextManager[Path]:
        """A file with the bytes, for as long as the block lasts; the caller holds them against the digest.

        Raises: FileNotFoundError.
        """

    def holds(self, digest: str) -> bool:
        """Whether the bytes are here now; nothing remembered answers this."""

    def state(self, digest: str) -> Hashable:
        """What is another when other bytes have this name, without reading them; None where there are none."""

    def delete(self, digest: str) -> bool:
        """Remove the bytes, durably; False where there are none."""

    def names(self) -> set[str]:
        """Digests of all that is here."""

    def claim(self, owner: str, *, dry_run: bool = False) -> None:
        """Mark the place as one coordinator's, so that two never share it by mistake. Again changes nothing.

        Args:
            owner: what the coordinator and its copies have in common, and no other has.
            dry_run: look, and mark nothing.
        Raises: StateRefusal (another's).
        """

    def try_out(self) -> tuple[str, str]:
        """Put, read and delete a few bytes: where they were, and a warning, blank for none."""


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
