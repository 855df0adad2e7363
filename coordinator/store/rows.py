"""Row models of the store: frozen values, one for each kind of row."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.base.keys import Envelope, PublicKey
from shared.errors import Refusal, refusal_from_code
from shared.plans.plan import StudyPlan
from shared.wire.tree_heads import release_leaf

if TYPE_CHECKING:
    from shared.mechanisms.secure_sum.opened import OpenedSum
    from shared.releases.receipt import Receipt
    from shared.wire.site_messages import Acceptance, Withdrawn

__all__ = [
    "AcceptedRelease",
    "KeyHistory",
    "LogEntry",
    "Quarantined",
    "RegisteredSite",
    "ReleaseLine",
    "Remembered",
    "ResultDraft",
    "Revision",
    "SavedResult",
    "StoredPlan",
    "StoredSum",
    "Tombstone",
    "WaveRecord",
    "envelope_of",
    "receipt_of",
]

T = TypeVar("T")
REMEMBERED = 8192
"""Receipts that are not read again, and signed statements: of the newest sixteen waves of 500 sites."""
_PARTS = 1024
_RECEIPT = ("study", "wave", "site", "release_id", "bundle_sha256", "log_index", "log_root")
"""What the signed reply to a site says of a release that was accepted, or taken back."""
_APART = {float, str, type(None)}  # types no value of which equals one of another


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """One signed version of a study's plan."""

    envelope: Envelope
    plan: StudyPlan


@dataclass(frozen=True, kw_only=True)
class StoredSum:
    """What the sites of a plan opened together.

    Args:
        sha256: of the document. day: on which it was opened, UTC. log_index: place of its entry in the log.
    """

    document: OpenedSum
    sha256: str
    day: str
    log_index: int


@dataclass(frozen=True, kw_only=True)
class RegisteredSite:
    """A site and its pinned keys.

    Args:
        state: pending, accepted, refused or revoked.
        studies: studies it was invited to.
        release_key: the key that signs its ledger heads and releases.
        approvers: its approvers' keys, by name.
        certificate_pem: its client certificate, once issued.
        reason: why it was refused.
    """

    site: str
    state: str
    studies: tuple[str, ...]
    release_key: PublicKey
    approvers: Mapping[str, PublicKey]
    csr_pem: str = field(default="", repr=False)
    certificate_pem: str = field(default="", repr=False)
    reason: str = ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the release key, which lead and steward compare."""
        return self.release_key.fingerprint


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """An accepted release as lists name it, its receipt and signatures unread; `withdrawn` is the reason's code."""

    release_id: str
    study: str
    plan_hash: str
    plan_version: int
    wave: int
    site: str
    bundle_sha256: str
    n: int
    log_index: int
    accepted_day: str
    withdrawn: str = ""


@dataclass(frozen=True, kw_only=True)
class AcceptedRelease(ReleaseLine):
    """An accepted release; its table is in `Store.table`, unless it is `withdrawn`."""

    bundle_bytes: int
    receipt: Receipt
    envelope: Envelope
    log_root: str
    standing: Envelope | None = None

    @property
    def leaf(self) -> dict[str, str]:
        """Its leaf in the transparency log."""
        return release_leaf(self.envelope, self.bundle_sha256, self.site, self.standing)

    @property
    def acceptance(self) -> Acceptance:
        """The signed reply to the site; returned unchanged on retries."""
        from shared.wire.site_messages import Acceptance

        names = (*_RECEIPT, "accepted_day")
        return Acceptance(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A release with valid signatures and wrong content: kept apart, never shown to analysts."""

    bundle_sha256: str
    release_id: str
    study: str
    wave: int
    site: str
    code: str
    reason: str
    day: str

    @property
    def refusal(self) -> Refusal:
        """The refusal that the site was answered."""
        return refusal_from_code(self.code, self.reason)


@dataclass(frozen=True, kw_only=True)
class Tombstone:
    """A release that its site took back; of its bytes the digest is left."""

    bundle_sha256: str
    release_id: str
    study: str
    wave: int
    site: str
    reason_code: str
    log_index: int
    log_root: str
    day: str

    @property
    def withdrawn(self) -> Withdrawn:
        """The signed reply to the site; returned unchanged on retries."""
        from shared.wire.site_messages import Withdrawn

        return Withdrawn(**{name: getattr(self, name) for name in _RECEIPT}, withdrawn_day=self.day)


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One state of a closed wave: what stood in the log up to and including entry `log_index`.

    Args:
        number: 0 is what had been delivered when the wave was first closed.
        cause: ``closed``, ``late`` (a release after the close) or ``withdrawn``.
        site: whose release it was (late, withdrawn).
        missing: sites that had not delivered (closed).
        reason: why it was closed before its deadline, or below its quorum.
        day: ISO date, UTC.
    """

    number: int
    log_index: int
    cause: str
    site: str = ""
    missing: tuple[str, ...] = ()
    reason: str = ""
    day: str = ""


@dataclass(frozen=True, kw_only=True)
class WaveRecord:
    """A wave by the log: whether it is closed now, and its revisions, oldest first."""

    study: str
    wave: int
    closed: bool
    revisions: tuple[Revision, ...]

    @property
    def revision(self) -> int | None:
        """The revision in force; None while the wave is open."""
        return self.revisions[-1].number if self.closed else None


@dataclass(frozen=True, kw_only=True)
class ResultDraft:
    """A pooled answer or a figure that is handed out, as it is remembered.

    Args:
        question, used, numbers, figure: as of `SavedResult`.
    """

    study: str
    wave: int
    kind: str
    question: Mapping[str, Any]
    used: Mapping[str, str]
    numbers: Mapping[str, Any]
    figure: str = ""


@dataclass(frozen=True, kw_only=True)
class SavedResult:
    """A pooled answer or a figure that was handed out.

    Args:
        question: what was asked, as plain values.
        used: SHA-256 of every bundle it rests on, with its site.
        numbers: the pooled figures.
        figure: the file that was written, or blank.
        withdrawn: the bundles among `used` that were withdrawn since: not empty means stale.
    """

    id: int
    study: str
    wave: int
    kind: str
    question: Mapping[str, Any]
    used: Mapping[str, str]
    numbers: Mapping[str, Any]
    figure: str
    day: str
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One leaf of the log."""

    index: int
    entry: bytes
    root: str


@dataclass(frozen=True)
class KeyHistory:
    """Every key that a site has had: rows of (site, until, role, key), `until` None for those in force."""

    rows: tuple[tuple[str, int | None, str, PublicKey], ...]

    def at(self, site: str, index: int) -> tuple[dict[str, PublicKey], dict[str, PublicKey]]:
        """(release keys, approvers' keys), by handle, that could sign entry `index` of the log."""
        own = [row for row in self.rows if row[0] == site]
        ends = sorted({until for _, until, _, _ in own if until is not None and until > index})
        term = ends[0] if ends else None
        found = [(role, key) for _, until, role, key in own if until == term]
        release = {key.key_id: key for role, key in found if role == "release"}
        return release, {key.key_id: key for role, key in found if role == "approver"}


class Remembered(Generic[T]):
    """What documents say, of the last that were asked for. Safe for many threads.

    Their bytes are not held, only the SHA-256 of them.

    Args:
        read: what one says.
        most: documents.

    >>> numbers = Remembered(int, most=2)
    >>> [numbers.of(one) for one in (b"1", b"2", b"1", b"3")], len(numbers)
    ([1, 2, 1, 3], 2)
    """

    def __init__(self, read: Callable[[bytes], T], most: int) -> None:
        self._read, self.most = read, most
        self._known: OrderedDict[bytes, T] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, data: bytes) -> T:
        """What a document says. Raises: what reading it raises."""
        digest = hashlib.sha256(data).digest()
        with self._guard:
            if digest in self._known:
                self._known.move_to_end(digest)
                return self._known[digest]
        found = self._read(data)
        with self._guard:
            found = self._known.setdefault(digest, found)
            if len(self._known) > self.most:
                self._known.popitem(last=False)
        return found


_parts: dict[Hashable, Any] = {}


def _one(part: Any) -> Any:
    """The one object for equal parts of receipts: hundreds of sites have the same sentences and curves."""
    if isinstance(part, str):
        return sys.intern(part)
    if not isinstance(part, (tuple, dict)):
        return part
    if len(_parts) >= _PARTS:
        _parts.clear()
    # 1 equals 1.0, and 0.0 equals -0.0: what is written otherwise is another part.
    exact = isinstance(part, tuple) and 0 not in part and {*map(type, part)} <= _APART
    key: Any = part if exact else repr(part)
    return _parts.setdefault(key, part)


def _receipt(data: bytes) -> Receipt:
    from shared.releases.receipt import Receipt

    return Receipt.from_bytes(data, one=_one)


receipts = Remembered(_receipt, REMEMBERED)
envelopes = Remembered(Envelope.from_bytes, REMEMBERED)


def receipt_of(data: bytes) -> Receipt:
    """The receipt in these bytes; of the last releases from memory. Raises: SchemaRefusal."""
    return receipts.of(data)


def envelope_of(data: bytes) -> Envelope:
    """The signed statement in these bytes; the same."""
    return envelopes.of(data)
