"""The bundle: one file of a receipt and a table, with fixed contents and the same bytes for the same release.

An uncompressed zip of `manifest.json`, `receipt.json` and `table.parquet`: any tool opens it, and nothing can inflate.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from shared.base.canonical import canonical_json, parse_json
from shared.errors import IntegrityRefusal, SchemaRefusal
from shared.mechanisms.base import Extent
from shared.releases.metadata import LABEL
from shared.releases.receipt import Receipt
from shared.releases.table_file import read_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Bundle", "read_bundle", "read_receipt", "write_bundle"]

BUNDLE_FORMAT = "tributary-bundle/1"
MEMBERS = ("manifest.json", "receipt.json", "table.parquet")
DOCUMENT_CAP = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A sealed release, read back: its receipt and its table."""

    digest: str
    receipt: Receipt
    table: pd.DataFrame


def write_bundle(receipt: Receipt, table: pd.DataFrame) -> bytes:
    """The bundle's bytes: deterministic for a receipt and a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"label": LABEL.encode()})
    pq.write_table(arrow, sink, compression="zstd", write_statistics=False)
    del arrow  # of many small columns it is a second table
    parts = {"receipt.json": receipt.to_bytes(), "table.parquet": sink.getvalue()}
    out = io.BytesIO()
    _write_archive(
        out, {"manifest.json": _manifest(receipt, list(table.columns), len(table), _digests(parts)), **parts}
    )
    return out.getvalue()


def _digests(files: Mapping[str, bytes | memoryview]) -> dict[str, Any]:
    return {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}


def _manifest(receipt: Receipt, columns: list[str], rows: int, digests: Mapping[str, Any]) -> bytes:
    """The one manifest that a receipt, the table's columns and the files' digests have."""
    return canonical_json(
        {
            "format": BUNDLE_FORMAT,
            "label": LABEL,
            "release_id": receipt.release_id,
            "rows": rows,
            "columns": columns,
            "files": dict(digests),
        }
    )


def _write_archive(out: Any, members: Mapping[str, bytes | memoryview]) -> None:
    """The one zip file that holds these members, in this order."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same bytes on every system
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, cast(bytes, data))


def read_bundle(path: Path, *, cap: int, before: Callable[[Receipt], Extent] | None = None) -> Bundle:
    """Open a bundle whose signature and digest have *already* been verified.

    The file is mapped, not read: a 50 MB bundle costs little more memory than its table.

    Args:
        cap: most bytes the table may take once it is decoded.
        before: asked with the receipt before anything of the table is decoded; it may refuse, and gives how large the
            table is. A stranger's bundle is read with it.
    Raises: IntegrityRefusal, SchemaRefusal: anything but the exact form; caught before a large table is made. What
        `before` raises.
    """
    with _members_of(path) as (mapped, digest, receipt, columns, rows, table_at):

        def forget() -> None:
            mapped.madvise(mmap.MADV_DONTNEED)

        extent = before(receipt) if before is not None else None
        table = read_table(memoryview(mapped)[table_at], columns, rows, cap, extent, forget=forget)
        return Bundle(digest=digest, receipt=receipt, table=table)


def read_receipt(path: Path) -> Receipt:
    """The receipt of a bundle of our own, whose table is left as it lies. Raises: as `read_bundle`, of all but that."""
    with _members_of(path) as (_, _, receipt, _, _, _):
        return receipt


@contextmanager
def _members_of(path: Path) -> Iterator[tuple[mmap.mmap, str, Receipt, list[str], int, slice]]:
    """The mapped file, its digest and receipt, and the table's columns, rows and place, held against each other."""
    try:
        with path.open("rb") as file:
            # Closed when nothing points into it any more: a refusal's traceback may still hold a view.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        digest = hashlib.sha256(mapped).hexdigest()
        manifest_at, receipt_at, table_at = _members(mapped)
        receipt, columns, rows = _agreed(mapped[manifest_at], mapped[receipt_at], memoryview(mapped)[table_at])
        _require_exact(mapped, table_at, mapped[manifest_at], mapped[receipt_at])
        yield mapped, digest, receipt, columns, rows, table_at
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise IntegrityRefusal("a bundle must be a readable zip file", given=type(error).__name__) from None


def _require_exact(mapped: mmap.mmap, table_at: slice, manifest: bytes, receipt: bytes) -> None:
    """Refuse every archive but the one that `write_bundle` makes of these members: nothing before, between or after.

    It is written again into a sink that holds each write against the file, so the table is never copied.
    """
    sink = _Mirror(mapped, table_at)
    table = memoryview(mapped)[table_at]
    _write_archive(sink, {"manifest.json": manifest, "receipt.json": receipt, "table.parquet": table})
    if not sink.same():
        raise SchemaRefusal("a bundle must hold its members and not one byte more", given="other bytes")


class _Mirror:
    """A file to write to, which remembers the small writes and holds them against `mapped` at the end.

    The table itself is a part of `mapped`: of it only the place can be wrong.
    """

    def __init__(self, mapped: mmap.mmap, table_at: slice) -> None:
        self._mapped, self._table_at = mapped, table_at
        self._small: dict[int, bytes] = {}
        self._placed = False
        self._at = self._end = 0

    def write(self, data: bytes | memoryview) -> int:
        if isinstance(data, memoryview):
            self._placed = self._table_at == slice(self._at, self._at + len(data))
        else:
            self._small[self._at] = bytes(data)
        self._at += len(data)
        self._end = max(self._end, self._at)
        return len(data)

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = place + {0: 0, 1: self._at, 2: self._end}[whence]
        return self._at

    def flush(self) -> None:
        """Nothing waits."""

    def same(self) -> bool:
        """True if the bytes written equal the file."""
        agree = all(self._mapped[at : at + len(data)] == data for at, data in self._small.items())
        return agree and self._placed and self._end == len(self._mapped)


def _members(mapped: mmap.mmap) -> list[slice]:
    """Byte offsets of each member; refuses any archive that `write_bundle` would not have written."""
    with zipfile.ZipFile(cast(IO[bytes], mapped)) as archive:  # a mapping reads like a file
        entries = archive.infolist()
    if tuple(entry.filename for entry in entries) != MEMBERS:
        raise SchemaRefusal(f"a bundle must hold exactly {', '.join(MEMBERS)}", given=f"{len(entries)} files")
    places: list[slice] = []
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise SchemaRefusal("a bundle must not be compressed")
        start = entry.header_offset + 30 + len(entry.filename)  # a local header is 30 bytes and the name
        places.append(slice(start, start + entry.file_size))
    if any(place.stop - place.start > DOCUMENT_CAP for place in places[:2]):
        raise SchemaRefusal(f"manifest and receipt must have at most {DOCUMENT_CAP} bytes")
    if places[-1].stop > len(mapped):
        raise SchemaRefusal("a bundle must hold all bytes of its members")
    return places


def _agreed(manifest_bytes: bytes, receipt_bytes: bytes, table_bytes: memoryview) -> tuple[Receipt, list[str], int]:
    """The receipt, the table's columns and its rows, when the manifest is exactly what the files beside it give."""
    manifest = parse_json(manifest_bytes)
    if not isinstance(manifest, dict) or manifest.get("format") != BUNDLE_FORMAT or manifest.get("label") != LABEL:
        raise SchemaRefusal(f"a manifest must have format {BUNDLE_FORMAT} and the label")
    files: dict[str, bytes | memoryview] = {"receipt.json": receipt_bytes, "table.parquet": table_bytes}
    digests = _digests(files)
    if manifest.get("files") != digests:
        raise IntegrityRefusal("the manifest's digests must be those of the bundle's files")
    receipt = Receipt.from_bytes(receipt_bytes)
    rows = manifest.get("rows")
    if manifest.get("release_id") != receipt.release_id or type(rows) is not int or not 0 <= rows < 1 << 31:
        raise SchemaRefusal("manifest and receipt must agree on the release id, and the manifest count the rows")
    given = manifest.get("columns")
    columns = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if _manifest(receipt, columns, rows, digests) != manifest_bytes:
        raise SchemaRefusal("a manifest must say what the bundle holds and nothing else", given="another text")
    return receipt, columns, rows
