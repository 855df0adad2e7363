"""One entry after the other: each is read from its bytes and checked against the hash before it, once.

What an entry amounts to (`site_agent.ledger.state`) stands elsewhere.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn, Protocol

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import GENESIS, head_fingerprint
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import Refusal, SchemaRefusal
from site_agent.ledger.files import broken

__all__ = [
    "DECISION_TYPE",
    "HEAD_TYPE",
    "SIGNED",
    "TABLE",
    "WITNESSED",
    "WITNESSED_AT_ONCE",
    "AnchoredHead",
    "CheckedSignatures",
    "Curve",
    "Entry",
    "agrees",
    "decided_by",
    "decision_message",
    "head_payload",
    "last_witnessed",
    "link_of",
    "orders",
    "read_entries",
    "read_rows",
    "require_receipt",
    "settled_by",
    "signed_digest",
    "signed_part",
    "tag_proof",
]

DECISION_TYPE = "application/vnd.tributary.site-decision+json"
SIGNED = frozenset(
    {
        "plan_revoked",
        "standing_revoked",
        "persons_withdrew",
        "persons_confirmed",
        "persons_apart",
        "sum_consented",
        "left",
        "resumed",
    }
)
"""Kinds of entry that a person signs; one of kind ``paused`` may be signed, because stopping waits for nobody."""
WITNESSED_AT_ONCE = (SIGNED - {"persons_withdrew", "persons_confirmed", "sum_consented"}) | {
    "paused",
    "reject",
    "send_back",
    "withdraw",
    "study_ungranted",
    "keys_changed",
}
"""Kinds of entry by which somebody stops something: an older copy of the ledger must not undo them unnoticed.

Not that a person withdrew from a study: an anchor that came alone would tell of it, and the next one holds it as well.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger. `time` is UTC and for people only.

    `body` is read from canonical JSON. Its ``tags`` say which studies it is about (`Ledger.tag`; none: every study),
    its ``kept`` holds the counts of records that are told to nobody outside.
    """

    seq: int
    time: str
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str
    signature: bytes

    @property
    def link(self) -> str:
        """SHA-256 of the entry without its predecessor; ``hash = SHA-256(previous ‖ link)``, see
        `shared.base.chain`."""
        return link_of(self.seq, self.time, self.kind, self.body)


def signed_part(body: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's body as outsiders may see it: the salted counts of records replaced by their digest, without tags."""
    shown = {name: value for name, value in body.items() if name != "tags"}
    return {**shown, "kept": sha256_hex(canonical_json(body["kept"]))} if "kept" in body else shown


def signed_digest(time: str, kind: str, body: Mapping[str, Any]) -> str:
    """SHA-256 that replaces time, kind and body of an entry not disclosed; the body's salt prevents guessing it."""
    return sha256_hex(canonical_json({"time": time, "kind": kind, "body": signed_part(body)}))


def link_of(seq: int, time: str, kind: str, body: Mapping[str, Any]) -> str:
    """SHA-256 of an entry without its predecessor.

    It covers which studies the entry is about apart from what it says, so that neither can be shown without the other
    (`site_agent.show.export`). Entries of ledgers from before that name no studies.
    """
    if "tags" not in body:
        return sha256_hex(canonical_json({"seq": seq, "time": time, "kind": kind, "body": body}))
    return sha256_hex(canonical_json({"seq": seq, "tags": body["tags"], "told": signed_digest(time, kind, body)}))


def decision_message(site: str, kind: str, previous: str, body: Mapping[str, Any]) -> bytes:
    """The bytes that a person signs under an entry of a kind in `SIGNED`.

    They name the entry before it, so that a signature is good at one place of one ledger and cannot be used again.

    Args:
        body: the entry's; signed is what others may see of it (`signed_part`), without salt, keys and signatures.
    """
    aside = ("salt", "key", "signature", "beside")
    said = {name: value for name, value in signed_part(body).items() if name not in aside}
    payload = canonical_json({"site": site, "kind": kind, "previous": previous, "body": said})
    return Envelope.encoding(DECISION_TYPE, payload)


def decided_by(site: str, entry: Entry, signers: Mapping[str, Collection[PublicKey]]) -> bool:
    """True if every person that an entry names has signed it, with a key that is or was registered for that person."""
    message = decision_message(site, entry.kind, entry.previous, entry.body)

    def signed(one: Mapping[str, Any]) -> bool:
        own = [key for key in signers.get(one.get("name", ""), ()) if key.hex == one.get("key")]
        return any(key.verifies(bytes.fromhex(one.get("signature", "")), message) for key in own)

    return all(map(signed, [entry.body, *entry.body.get("beside", ())]))


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
    """True if a witnessed head is one of these entries: same number, same hash."""
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
        sha256: digest of their heads and signatures.
    """

    entries: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> CheckedSignatures:
        """The digest of these entries; an entry's head covers all that it says, and all before it."""
        digest = hashlib.sha256()
        for entry in entries:
            digest.update(bytes.fromhex(entry.hash) + len(entry.signature).to_bytes(8, "big") + entry.signature)
        return cls(entries=len(entries), sha256=digest.hexdigest())

    def covers(self, entries: Sequence[Entry]) -> bool:
        """True if `entries`, whose hash chain was checked, begin with the entries whose signatures were verified."""
        return 0 < self.entries <= len(entries) and self.of(entries[: self.entries]) == self


TABLE = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, "
    "previous TEXT NOT NULL, hash TEXT NOT NULL, signature BLOB NOT NULL)"
)
_COLUMNS = ("seq", "time", "kind", "body", "previous", "hash", "signature")
_TAIL = 64
"""Most rows that are compared one by one."""
_NAMED_MEMORY = (3, 36)
"""The SQLite from which on two connections may have one database in memory; before it all rows are read each time."""


class _Copy:
    """Rows of a ledger in the memory of this process, for SQLite to compare with those that lie on the disk.

    Its first `count` never change: only further ones come, each time by one who has read as many.
    """

    _number = itertools.count()

    def __init__(self) -> None:
        self.name, self.count, self._adding = f"known_{next(self._number)}", 0, threading.Lock()
        place = f"file:/{self.name}?vfs=memdb"
        self._connection = sqlite3.connect(place, uri=True, timeout=0, check_same_thread=False)
        self._connection.execute(f"CREATE TABLE entries (seq INTEGER PRIMARY KEY, {', '.join(_COLUMNS[1:])})")

    def __del__(self) -> None:
        self._connection.close()

    def add(self, count: int, rows: Sequence[Row]) -> bool:
        """Add rows after the first `count`; not while somebody compares, or where others came after these."""
        with self._adding, suppress(sqlite3.OperationalError):
            if count == self.count:
                with self._connection:
                    self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                self.count += len(rows)
                return True
        return False

    def same(self, connection: sqlite3.Connection, count: int) -> int:
        """Length of the common prefix, at most `count` rows, of this copy and the ledger on disk."""
        if connection.execute("SELECT sql FROM main.sqlite_master WHERE name = 'entries'").fetchall() != [(TABLE,)]:
            return 0  # another table may hold further rows among these: one without the primary key
        if self.name not in {name for _, name, _ in connection.execute("PRAGMA database_list")}:
            connection.execute(f"ATTACH 'file:/{self.name}?vfs=memdb&mode=ro' AS {self.name}")
        # The plus: as the values are, whatever the ledger's own table says that they are compared by.
        differs = " OR ".join(f"k.{name} IS NOT +e.{name}" for name in _COLUMNS[1:])
        query = f"SELECT min(k.seq) FROM {self.name}.entries k LEFT JOIN main.entries e ON e.seq = k.seq "
        query += f"WHERE k.seq <= ? AND (e.seq IS NULL OR {differs})"
        first = connection.execute(query, (count,)).fetchone()[0]
        return count if first is None else int(first) - 1


@dataclass(frozen=True)
class _LastRead:
    """A ledger as it was read last.

    Args:
        copy: the rows of the first `copied`.
        rows: those of the others.
    """

    entries: tuple[Entry, ...] = ()
    copy: _Copy | None = None
    copied: int = 0
    rows: tuple[Row, ...] = ()

    def gathered(self) -> _LastRead:
        """The same, with a few rows outside its copy at most."""
        if len(self.rows) <= _TAIL or sqlite3.sqlite_version_info < _NAMED_MEMORY:
            return self
        copy = self.copy or _Copy()
        added = copy.add(self.copied, self.rows)
        return replace(self, copy=copy, copied=len(self.entries), rows=()) if added else self


_READ: dict[str, _LastRead] = {}
"""The last few ledgers, by the hash of their genesis."""
_MOST_READ = 8


class Rows(list[Row]):
    """Rows of a ledger after the first `same`, which are byte for byte those of the entries in `known`."""

    known = _LastRead()
    same = 0


def read_rows(connection: sqlite3.Connection, cached: bool = True) -> Rows:
    """All rows of a ledger, in their order; where they may be `cached`, without those that are as they were last time.

    SQLite compares these itself, each value of each row: in a third of the time that it takes to hand them over.
    """
    found = Rows()
    first = connection.execute("SELECT hash FROM entries ORDER BY seq LIMIT 1").fetchone() if cached else None
    if first and first[0] in _READ:
        found.known = _READ[first[0]] = _READ[first[0]].gathered()
    copied = found.known.copied
    if found.known.copy is not None:
        found.same = found.known.copy.same(connection, copied)
    for where in ("seq < 1", f"seq > {found.same}"):
        query = f"SELECT {', '.join(_COLUMNS)} FROM entries WHERE {where} ORDER BY seq"
        found.extend(connection.execute(query).fetchall())
    if found.same == copied:
        more = _common(found.known.rows, found)
        del found[:more]
        found.same += more
    return found


def read_entries(rows: list[Row], cached: bool = True) -> list[Entry]:
    """The entries in these rows, and those before them that were known, the chain checked.

    An entry is a function of its row and of the entries before it: the rows that are byte for byte those of the last
    time are not looked at twice. Entries cannot be changed. Raises: LedgerRefusal.
    """
    known, same = (rows.known, rows.same) if isinstance(rows, Rows) else (_LastRead(), 0)
    entries = list(known.entries[:same])
    for row in rows:
        entries.append(_entry(len(entries) + 1, entries[-1].hash if entries else GENESIS, *row))
    if cached and rows:
        _READ.pop(entries[0].hash, None)
        if same >= known.copied:
            tail = (*known.rows[: same - known.copied], *rows)
            _READ[entries[0].hash] = replace(known, entries=tuple(entries), rows=tail)
        while len(_READ) > _MOST_READ:
            _READ.pop(next(iter(_READ)), None)
    return entries


def _common(before: Sequence[Row], rows: Sequence[Row]) -> int:
    """Length of the common prefix of both."""
    differs = (k for k, (old, new) in enumerate(zip(before, rows, strict=False)) if old != new)
    return next(differs, min(len(before), len(rows)))


def _entry(
    number: int, previous: str, seq: int, time: str, kind: str, raw: bytes, before: str, digest: str, signature: bytes
) -> Entry:
    """One row, checked against the hash before it. Raises: LedgerRefusal."""
    try:
        raw, signature = bytes(raw), bytes(signature)
        body = _body(kind, raw)
        head = bytes.fromhex(previous)
        quick = "tags" in body and list(body) == sorted(body)
        whole = quick and hashlib.sha256(head + _link_as_written(seq, time, kind, raw, body)).hexdigest() == digest
        if not whole:
            link = bytes.fromhex(link_of(seq, time, kind, body))
            whole = hashlib.sha256(head + link).hexdigest() == digest and canonical_json(body) == raw
    except (Refusal, TypeError, ValueError):
        raise broken(f"entry {number} must be readable", "damaged bytes") from None
    if seq != number or before != previous or not whole:
        raise broken(f"entry {number} must follow from the one before it", "another hash")
    made = object.__new__(Entry)  # a frozen dataclass sets each field by name: a tenth of the time of opening a ledger
    made.__dict__.update(seq=seq, time=time, kind=kind, body=body, previous=before, hash=digest, signature=signature)
    return made


def _link_as_written(seq: int, time: str, kind: str, raw: bytes, body: Mapping[str, Any]) -> bytes:
    """`link_of`, from the bytes of the body as they lie there: these are decoded once, and not encoded again.

    What was hashed is the body without its tags, and with a digest in the place of what it keeps. Where both are cut
    out and the rest has that hash, they stood among the body's own names, where they were looked up: elsewhere they
    would be in no body of this rest. Where the names are in order, too, the bytes are the canonical form. Bytes of
    which this is another link may still be good ones, where a part of the body holds the same text.
    """
    if "kept" in body:
        kept = canonical_json(body["kept"])
        raw = raw.replace(b'"kept":' + kept, b'"kept":"' + sha256_hex(kept).encode() + b'"', 1)
    tags = _as_written(tuple(body["tags"]))
    raw = raw.replace(b',"tags":' + tags, b"", 1)  # the salt stands before them
    stamp = b'"%s"' % time.encode() if _PLAIN_TIME(time) else canonical_json(time)
    said = hashlib.sha256(b'{"body":%s,"kind":%s,"time":%s}' % (raw, _as_written(kind), stamp)).hexdigest()
    return hashlib.sha256(b'{"seq":%d,"tags":%s,"told":"%s"}' % (seq, tags, said.encode())).digest()


_PLAIN_TIME = re.compile(r"[0-9TZ:-]*").fullmatch
_as_written = lru_cache(maxsize=256)(canonical_json)
"""Kinds and tags: the same few in all entries."""
_CURVE = b',"rdp":['
"""The curve of a price (`site_agent.ledger.holds.price_of`): 289 numbers, the same ones for each wave of a study."""


def _body(kind: str, raw: bytes) -> Any:
    """The body in these bytes; a curve is read once for all charges that have it. Raises: SchemaRefusal."""
    start = raw.find(_CURVE) if kind == "reserve" else -1
    end = raw.find(b"]", start) + 1
    if start > 0 and end and raw.count(_CURVE[:6]) == 1 and b"\\" not in raw:
        with suppress(SchemaRefusal):
            body = parse_json(raw[:start] + b',"rdp":null' + raw[end:], made=_frozen)
            if "rdp" in body:  # it stands there once, whatever goes before and after: so the curve is the body's own
                dict.__setitem__(body, "rdp", _curve(raw[start + len(_CURVE) - 1 : end]))
                return body
    return parse_json(raw, made=_frozen)


@lru_cache(maxsize=64)
def _curve(text: bytes) -> Curve:
    return Curve(_frozen_list(parse_json(text, made=_frozen)))


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


class Curve(_FrozenList):
    """Rényi curve of a price, one object for all charges that have it."""

    @cached_property
    def orders(self) -> tuple[float, ...]:
        """Its values, ∞ where undefined."""
        return orders(self)


def orders(values: Iterable[float | None]) -> tuple[float, ...]:
    """The values of a Rényi curve, ∞ where undefined."""
    return tuple(math.inf if value is None else float(value) for value in values)


def _frozen(pairs: list[tuple[str, Any]]) -> _FrozenDict:
    """An object of JSON whose own objects are made by this already. Raises: ValueError (a key twice)."""
    made = _FrozenDict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    for name, value in pairs:
        if type(value) is list:
            dict.__setitem__(made, name, _frozen_list(value))
    return made


def _frozen_list(values: list[Any]) -> _FrozenList:
    return _FrozenList([_frozen_list(value) if type(value) is list else value for value in values])
