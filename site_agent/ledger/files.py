"""The ledger's files: written whole or not at all, a list of persons read only as it was bound; errors as refusals."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from shared.base.canonical import canonical_list, is_digest, parse_json, sha256_hex
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.errors import IntegrityRefusal, LedgerRefusal, LockedRefusal, ParameterError, StorageRefusal
from site_agent.records.pseudonyms import in_order

__all__ = [
    "RESTORED",
    "broken",
    "listed",
    "private_folder",
    "require_digest",
    "require_settled",
    "sealed_answer",
    "storage_errors",
    "storage_refusal",
    "write_list",
    "write_whole",
]

LIST_CAP = 1 << 30
"""Bytes of a list of persons: 35 each, so of thirty million."""
RESTORED = "restored.json"
"""Mark of a home that was put back from a backup, beside its ledger, until the ledger is settled."""


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, whatever the umask, and still there after a power cut.

    Raises: OSError.
    """
    # mkdir gives its mode to the last folder only, and takes the umask's bits away from it.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    fsync_folder(path.parent)


def write_whole(path: Path, data: bytes | Iterator[bytes], place: str) -> None:
    """Write `data` to `path`, whole or not at all, and still there after a power cut.

    Args:
        data: or its pieces, one after the other.
        place: prefix of the failpoints passed on the way.
    Raises: StorageRefusal; an earlier file at `path` is then as it was, and no part is left behind.
    """
    part = path.with_name(path.name + ".part")
    try:
        reach(f"{place}.before_write")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            for piece in (data,) if isinstance(data, bytes) else data:
                out.write(piece)
            out.flush()
            reach(f"{place}.before_fsync")
            os.fsync(out.fileno())
        reach(f"{place}.before_rename")
        os.replace(part, path)
        reach(f"{place}.after_rename")
        fsync_folder(path.parent)
        reach(f"{place}.after_fsync")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise storage_refusal(path.name, error) from error


def write_list(path: Path, persons: Collection[str], place: str) -> tuple[str, int]:
    """Write pseudonyms, each once, as `listed` reads them; as of `write_whole`.

    Returns: SHA-256 of the file, and how many they are.
    """
    digest, count = hashlib.sha256(), 0

    def parts() -> Iterator[Sequence[str]]:
        nonlocal count
        for part in in_order(persons):
            count += len(part)
            yield part

    def pieces() -> Iterator[bytes]:
        for piece in canonical_list(parts()):
            digest.update(piece)
            yield piece

    write_whole(path, pieces(), place)
    return digest.hexdigest(), count


def storage_refusal(name: str, error: OSError) -> StorageRefusal:
    """The refusal for a file that cannot be read or written."""
    return StorageRefusal(
        f"{name} must be writable in the state folder",
        given=error.strerror or type(error).__name__,
        next_step="Free space, or restore write permission; then run the command again.",
    )


def broken(must: str, given: str) -> LedgerRefusal:
    """The refusal for a ledger that is not what it must be."""
    return LedgerRefusal(
        must,
        given=given,
        next_step="Nothing is released until this is explained: keep both files, and call the study lead.",
    )


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """SQLite's errors, as refusals."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code; the rest refines it.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise LockedRefusal(
                "the ledger must be free within a minute", given="a longer wait", next_step="Stop the other agent."
            ) from error
        if code in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_NOMEM,
        ):
            raise StorageRefusal(
                "ledger.db must be readable and writable in the state folder",
                given=str(error),
                next_step="Free space, or restore write permission; then run the command again.",
            ) from error
        raise broken("ledger.db must be an intact ledger", str(error)) from error
    except UnicodeDecodeError as error:
        # A damaged schema makes SQLite's own message unreadable.
        raise broken("ledger.db must be an intact ledger", "damaged text") from error


def listed(path: Path, digest: str, what: str, lost: str = "who was charged") -> frozenset[str]:
    """A list of pseudonyms, if it is the one that was bound; without it, what is `lost` is unknown.

    Raises: IntegrityRefusal, StorageRefusal.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise storage_refusal(path.name, error) from error
    if sha256_hex(data) != digest:
        raise IntegrityRefusal(
            f"{what} must be the one that the ledger names",
            given="another list" if data else "no file",
            next_step=f"Restore {path.parent.name}/{path.name} from a backup: without it, {lost} is unknown.",
        )
    return frozenset(parse_json(data, cap=LIST_CAP))


def sealed_answer(path: Path, digest: str, what: str) -> bytes:
    """The site's sealed answer in a round, checked against its digest in the ledger. Raises: IntegrityRefusal.

    Args:
        what: the round, in words.
    """
    content = path.read_bytes() if path.exists() else b""
    if sha256_hex(content) != digest:
        raise IntegrityRefusal(
            f"the answer to {what} must be the bytes that were sealed",
            given="other bytes" if content else "no file",
            next_step="Restore the sealed folder; it is never drawn again.",
        )
    return content


def require_settled(ledger: Path) -> None:
    """Refuse to spend by a ledger that was put back and is not yet settled. Raises: LedgerRefusal."""
    if ledger.with_name(RESTORED).exists():
        raise LedgerRefusal(
            "a ledger that was put back from a backup must be settled before anything is charged, drawn or given up",
            given="one that is not",
            next_step="Run site-agent ledger recover: it counts what the coordinator has seen since as spent.",
        )


def require_digest(text: str, name: str) -> None:
    """Refuse what is no SHA-256 in lower-case hexadecimal digits. Raises: ParameterError."""
    if not is_digest(text):
        raise ParameterError(f"{name} must be a SHA-256, 64 lower-case hexadecimal digits", given=repr(text)[:80])
