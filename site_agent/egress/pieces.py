"""A file as it was when it was hashed, so that never another byte of it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from shared.errors import StorageRefusal
from shared.wire.message_limits import CHUNK_BYTES

__all__ = ["FilePieces", "file_pieces"]


@dataclass(frozen=True, kw_only=True)
class FilePieces:
    """A file as it was when it was hashed: the whole, and each `CHUNK_BYTES` of it."""

    digest: str
    total: int
    digests: list[bytes]


def file_pieces(path: Path) -> FilePieces:
    """Read a file once, piece by piece, so that a bundle of any size takes little memory. Raises: StorageRefusal."""
    whole, digests, total = sha256(), [], 0
    try:
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                whole.update(data)
                digests.append(sha256(data).digest())
                total += len(data)
    except OSError as error:
        raise StorageRefusal("the sealed bundle must be readable", given=error.strerror or "an error") from None
    return FilePieces(digest=whole.hexdigest(), total=total, digests=digests)
