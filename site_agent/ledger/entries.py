"""One entry after the other: each is read from its bytes and checked against the hash before it, once.

What an entry is (`site_agent.ledger.holds.Entry`) and what it amounts to (`site_agent.ledger.state`) stand elsewhere.
"""

from __future__ import annotations

import copy
import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from shared.base.canonical import canonical_json, parse_json
from shared.base.chain import GENESIS, head_fingerprint
from shared.base.keys import Envelope, SigningKey
from shared.errors import Refusal
from site_agent.ledger.files import broken
from site_agent.ledger.holds import Entry, link_of

__all__ = [
    "HEAD_TYPE",
    "WITNESSED",
    "AnchoredHead",
    "CheckedSignatures",
    "agrees",
    "head_payload",
    "last_witnessed",
    "read_entries",
    "read_rows",
    "require_receipt",
    "settled_by",
    "tag_proof",
]

HEAD_TYPE = "application/vnd.tributary.ledger-head+json"
TAG_TYPE = "application/vnd.tributary.study-tag+json"
WITNESSED = ("anchor", "witnessed")
"""Kinds of entry that name a head which the coordinator has acknowledged: of a reservation, of a round."""


Row = tuple[int, str, str, bytes, str, str, bytes]
"""Number, time, kind, body, hash before, hash and signature of an entry, as the table holds them."""


class AnchoredHead(Protocol):
    """The coordinator's word that it has seen a head."""

    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def head(self) -> str: ...  # noqa: D102
    @property
    def index(self) -> int: ...  # noqa: D102


def tag_proof(signer: SigningKey, site: str, study: str) -> bytes:
    """The signature behind a study's tag. Ed25519 is deterministic: the same each time, and nobody else can make it."""
    return signer.sign(Envelope.encoding(TAG_TYPE, canonical_json({"site": site, "study": study})))


def last_witnessed(entries: Sequence[Entry]) -> int:
    """The last entry of which these entries say that the coordinator has acknowledged it; 0 for none."""
    return next((int(entry.body["seq"]) for entry in reversed(entries) if entry.kind in WITNESSED), 0)


def agrees(entries: Sequence[Entry], receipt: AnchoredHead) -> bool:
    """Whether a witnessed head is one of these entries."""
    return 1 <= receipt.seq <= len(entries) and entries[receipt.seq - 1].hash == receipt.head


def settled_by(entries: Sequence[Entry], receipt: AnchoredHead) -> str:
    """Fingerprint of the head after this witnessed head was counted as lost; blank if it never was."""
    for entry in reversed(entries):
        if entry.kind == "recovered" and (entry.body["seq"], entry.body["head"]) == (receipt.seq, receipt.head):
            return head_fingerprint(entry.hash)
    return ""


def require_receipt(entries: Sequence[Entry], receipt: AnchoredHead) -> None:
    """Refuse an acknowledged head that is not one of these entries. Raises: LedgerRefusal."""
    if not 1 <= receipt.seq <= len(entries):
        raise broken(f"the ledger must reach the anchored entry {receipt.seq}", f"{len(entries)}: an old copy")
    if entries[receipt.seq - 1].hash != receipt.head:
        raise broken(f"the ledger must agree with the anchor on entry {receipt.seq}", "two histories")


def head_payload(site: str, seq: int, head: str) -> bytes:
    """The bytes of a head that the site signs."""
    return canonical_json({"site": site, "seq": seq, "head": head})


@dataclass(frozen=True, kw_only=True)
class CheckedSignatures:
    """The entries of a ledger from the first on whose signatures were once verified.

    Args:
        entries: how many.
        sha256: digest of their heads and signatures.
    """

    entries: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> CheckedSignatures:
        """The digest of these entries; an entry's head covers all that it says, and all before it."""
        digest = hashlib.sha256()
        for entry in entries:
            digest.update(bytes.fromhex(entry.hash) + bytes([len(entry.signature)]) + entry.signature)
        return cls(entries=len(entries), sha256=digest.hexdigest())

    def covers(self, entries: Sequence[Entry]) -> bool:
        """Whether the first of `entries`, whose chain was checked, are those."""
        return 0 < self.entries <= len(entries) and self.of(entries[: self.entries]) == self


_READ: dict[str, tuple[list[Row], tuple[Entry, ...]]] = {}
"""Of the last few ledgers, by the hash of their genesis: the rows that were read last, and their entries."""
_MOST_READ = 8


def read_rows(connection: sqlite3.Connection) -> list[Row]:
    """All rows of a ledger, in their order."""
    query = "SELECT seq, time, kind, body, previous, hash, signature FROM entries ORDER BY seq"
    return connection.execute(query).fetchall()


def read_entries(rows: list[Row], cached: bool = True) -> list[Entry]:
    """The entries in these rows, the chain checked.

    An entry is a function of its row and of the entries before it: where it may be `cached`, the rows that are byte
    for byte those of the last time are not looked at twice. Entries cannot be changed. Raises: LedgerRefusal.
    """
    before, known = _READ.get(rows[0][5], ([], ())) if cached and rows else ([], ())
    same = _common(before, rows)
    entries = list(known[:same])
    for row in rows[same:]:
        entries.append(_entry(len(entries) + 1, entries[-1].hash if entries else GENESIS, *row))
    if cached and same < len(rows):
        _READ[rows[0][5]] = (rows, tuple(entries))
        while len(_READ) > _MOST_READ:
            _READ.pop(next(iter(_READ)), None)
    return entries


def _common(before: Sequence[Row], rows: Sequence[Row]) -> int:
    """How many rows at the beginning of both are the same."""
    if before == rows[: len(before)]:
        return len(before)
    return next((k for k, (old, new) in enumerate(zip(before, rows, strict=False)) if old != new), len(rows))


def _entry(
    number: int, previous: str, seq: int, time: str, kind: str, raw: bytes, before: str, digest: str, signature: bytes
) -> Entry:
    """One row, checked against the hash before it. Raises: LedgerRefusal."""
    try:
        body = parse_json(bytes(raw))
        head = hashlib.sha256(bytes.fromhex(previous) + bytes.fromhex(link_of(seq, time, kind, body))).hexdigest()
        whole = canonical_json(body) == bytes(raw)
        signature = bytes(signature)
    except (Refusal, TypeError, ValueError):
        raise broken(f"entry {number} must be readable", "damaged bytes") from None
    if seq != number or before != previous or digest != head or not whole:
        raise broken(f"entry {number} must follow from the one before it", "another hash")
    return Entry(seq=seq, time=time, kind=kind, body=_frozen(body), previous=before, hash=digest, signature=signature)


def _unchangeable(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("what stands in the ledger cannot be changed")


class _FrozenDict(dict[str, Any]):
    """A dict for JSON, `==` and `|`, and a plain one once copied, that nobody changes."""

    __setitem__ = __delitem__ = __ior__ = _unchangeable
    clear = pop = popitem = setdefault = update = _unchangeable

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(value, memo) for name, value in self.items()}


class _FrozenList(list[Any]):
    """The same of a list."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _unchangeable
    append = clear = extend = insert = pop = remove = reverse = sort = _unchangeable

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return _FrozenDict({name: _frozen(item) for name, item in value.items()})
    if isinstance(value, list):
        # A price holds 289 numbers: no call for each.
        return _FrozenList([_frozen(item) if isinstance(item, dict | list) else item for item in value])
    return value
