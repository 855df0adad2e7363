"""Bundles on their way in: the folders they lie in, room for them, their bytes received and flushed, and recovery."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary, finalize

from coordinator.config import Quotas
from coordinator.services.quotas import erase, expire_refused, staged_files
from coordinator.store.bundles.folder import BundleFolder
from coordinator.store.store import RegisteredSite, Store
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.errors import (
    IntegrityRefusal,
    NetworkRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.releases.statement import Statement
from shared.wire.site_messages import (
    Chunk,
)
from shared.wire.transport import RetryLater

__all__ = ["STAGED_PER_SITE", "Staging", "no_room", "size_of"]

STAGED_PER_SITE = 8


class Staging:
    """The folders of bundles: staged, accepted, and set apart. Safe for many threads.

    Args:
        home: the coordinator's home folder.
        store: its store.
        quotas: quotas of one site.
    """

    def __init__(self, home: Path, store: Store, quotas: Quotas) -> None:
        self._home, self._store, self._quotas = home, store, quotas
        self.folder, self.quarantine = home / "staging", home / "quarantine"
        for folder in (home / "bundles", self.folder, self.quarantine):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(folder.parent)  # else a power cut may take the folder, with all that was flushed into it
        self._apart = BundleFolder(self.quarantine)
        self._locks: WeakValueDictionary[str, UploadLock] = WeakValueDictionary()
        self._locks_guard = threading.Lock()
        self._among = os.open(home / "uploads.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.close = finalize(self, os.close, self._among)

    def part_of(self, site: RegisteredSite, digest: str) -> Path:
        """Path of an unfinished upload."""
        # The site's name is part of the file's: no site can touch what another one has staged.
        return self.folder / f"{site.site}.{digest}.part"

    def turn(self, part: Path) -> UploadLock:
        """The lock of one upload."""
        with self._locks_guard:
            return self._locks.setdefault(part.name, UploadLock(self._among, part.name))

    def make_room(self, site: RegisteredSite, part: Path, size: int) -> None:
        """Refuse what the disk cannot hold; forget the oldest of a site's unfinished uploads."""
        free = shutil.disk_usage(self.folder).free
        if free < size + (64 << 20):
            raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        others = [found for found in staged_files(self._home, site.site) if found[0].stem != part.stem]
        total = size + sum(taken for _, taken in others)
        for place, (path, taken) in enumerate(others):
            if len(others) - place < STAGED_PER_SITE and total <= self._quotas.staging:
                break
            path.with_suffix(".part").unlink(missing_ok=True)
            path.unlink(missing_ok=True)  # how often it was opened stays known
            total -= taken

    def expire_refused(self, now: float | None = None) -> int:
        """`coordinator.services.quotas.expire_refused` for this home and its quotas."""
        return expire_refused(self._home, self._store, self._quotas, now)

    def receive(self, part: Path, statement: Statement, first: Chunk) -> Generator[None, Chunk | None, None]:
        """Write the chunks to `part`, from a place that it already reaches, until it is whole and flushed."""
        chunk: Chunk | None = first
        total, place = statement.bundle_bytes, first.offset
        have = size_of(part)
        if place > have:
            raise IntegrityRefusal(
                "an upload must go on where the last one stopped", given="a gap", next_step="Offer the release again."
            )
        try:
            with part.open("r+b" if part.exists() else "x+b") as out:
                out.truncate(place)
                out.seek(place)
                while chunk is not None:
                    if chunk.bundle_sha256 != statement.bundle_sha256 or chunk.offset != place:
                        raise IntegrityRefusal("the chunks of an upload must follow each other", given="a gap")
                    if place + len(chunk.data) > total:
                        raise TooLarge("a bundle must have the size that was signed", given="more bytes")
                    reach("ingest.before_chunk")
                    _write(out, chunk.data)
                    reach("ingest.after_chunk")
                    place += len(chunk.data)
                    chunk = yield
                if place < total:
                    raise IntegrityRefusal("an upload must carry the whole bundle", given=f"{place} of {total} bytes")
                out.flush()
                reach("ingest.before_flush")
                os.fsync(out.fileno())
                out.seek(0)
                digest = hashlib.file_digest(out, "sha256").hexdigest()
            reach("ingest.received")
        except TooLarge:
            part.unlink(missing_ok=True)
            raise
        except OSError as error:
            part.unlink(missing_ok=True)
            raise no_room(error) from None
        if digest != statement.bundle_sha256:
            part.unlink(missing_ok=True)
            raise IntegrityRefusal("the bundle must be the one that was signed", given="other bytes")

    def delete(self, digest: str) -> None:
        """Remove the bytes of a withdrawn release from everywhere, flushed."""
        for store in (self._store.bundles, self._apart):
            store.delete(digest)
        for kind in ("part", "json", "opened"):
            for path in self.folder.glob(f"*.{digest}.{kind}"):
                path.unlink(missing_ok=True)

    def recover(self) -> int:
        """Bring the folders in line with the database after a crash; how many bundles went back to staging.

        A bundle that no transaction names was never acknowledged: it goes back to staging when its offer is there.
        Without an offer it is none of this database's deliveries: among accepted bundles it is left, because an object
        store, or a home that was put back, may hold what another database has acknowledged. What is staged for a
        release that is settled is deleted.
        """
        erase(self._store, self._home)
        withdrawn = {stone.bundle_sha256 for stone in self._store.withdrawals(distrusted=False)}
        offers = {path.stem.split(".", 1)[1]: path for path in self.folder.glob("*.*.json")}
        moved = 0
        for store in (self._store.bundles, self._apart):
            there = store.names()
            for digest in sorted(withdrawn & there):
                self.delete(digest)
            for digest in sorted(there - withdrawn):
                if self._is_settled(digest):
                    continue
                reach("ingest.before_recovery")
                if digest in offers:
                    store.take_back(digest, offers[digest].with_suffix(".part"))
                    moved += 1
                elif store is self._apart:
                    store.delete(digest)
                reach("ingest.recovered")
        for digest, path in offers.items():
            if self._is_settled(digest):
                path.with_suffix(".part").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        for path in self.folder.glob("*.opened"):
            if self._is_settled(path.stem.split(".", 1)[1]):
                path.unlink(missing_ok=True)
        for path in self.folder.glob("*.json.part"):  # a half-written offer
            path.unlink(missing_ok=True)
        return moved

    def _is_settled(self, digest: str) -> bool:
        return self._store.by_bundle(digest) is not None or bool(self._store.quarantined(bundle_sha256=digest))


class UploadLock:
    """A lock that nobody waits for in a thread: a stalled upload holds up the next one of its bytes, and no more.

    Held against this process's threads, and by one byte of a file against other processes that serve the same home;
    the system gives that back where a process dies.

    Args:
        among: the file, open in this process for as long as it serves.
        name: name of the lock; a digest of it chooses the byte, one of 2⁶⁰.
    """

    def __init__(self, among: int, name: str) -> None:
        self._lock, self._among = threading.Lock(), among
        self._place = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)

    def __enter__(self) -> None:
        taken = self._lock.acquire(blocking=False)
        if taken:
            try:
                fcntl.lockf(self._among, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
                return
            except OSError:
                self._lock.release()
        raise RetryLater(NetworkRefusal("one upload of a bundle must end before the next", given="one that has not"))

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # closed: what is no longer open is no longer held
            fcntl.lockf(self._among, fcntl.LOCK_UN, 1, self._place)
        self._lock.release()


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)


def no_room(error: OSError) -> StorageRefusal:
    """The refusal of a bundle that a full or broken disk cannot keep."""
    return StorageRefusal(
        "the coordinator must be able to keep the bundle",
        given=error.strerror or "an error",
        next_step="Ask the study lead; the release stays sealed and can be sent later.",
    )


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0
