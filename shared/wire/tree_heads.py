"""The signed head of the coordinator's log, and how whoever has seen one holds the coordinator to it.

A head says how many entries the log has and what its Merkle root is, under the key that stands in every invitation. Two
heads of one log prove each other (`shared.base.merkle`); two that cannot are two histories, and both are signed.

A coordinator that was put back from a backup has lost entries that others saw. It says so in the log itself: an entry
of kind ``restored`` names the size and root at which the log was taken up again. Such a word excuses what was seen
beyond that size, and nothing before it, and only once: whoever has met it already is shown another one, or a fork.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, is_day, is_digest, parse_json
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.base.merkle import leaf_hash, verify_consistency, verify_inclusion
from shared.errors import IntegrityRefusal, Refusal, SchemaRefusal

if TYPE_CHECKING:
    from shared.wire.site_messages import LoggedEntry, LogView

__all__ = [
    "TREE_HEAD_TYPE",
    "CheckedView",
    "RestoredLog",
    "TreeHead",
    "check_view",
    "checkpoint_note",
    "excused",
    "note_verifier",
    "open_head",
    "proven_release",
    "release_leaf",
    "require_not_before",
]

ED25519_NOTE = b"\x01"
"""The kind of signature in a signed note's key."""
TREE_HEAD_TYPE = "application/vnd.tributary.tree-head+json"


@dataclass(frozen=True, kw_only=True)
class TreeHead:
    """The log's size and root, and the day (ISO date, UTC) on which the coordinator said so.

    >>> key = SigningKey.generate()
    >>> head = TreeHead(coordinator="hub", size=1, root="ab" * 32, day="2026-01-05")
    >>> open_head(head.sign(key).to_bytes(), key.public) == head
    True
    """

    coordinator: str
    size: int
    root: str
    day: str

    def __post_init__(self) -> None:
        texts = all(isinstance(text, str) for text in (self.coordinator, self.root, self.day))
        if not texts or type(self.size) is not int or self.size < 1 or not is_digest(self.root):
            raise SchemaRefusal("a log's head must name the coordinator, a size, a root and a day")

    def sign(self, key: SigningKey) -> Envelope:
        """Sign as the coordinator."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        return Envelope.sign(TREE_HEAD_TYPE, canonical_json(body), [key])


def open_head(data: bytes, key: PublicKey) -> TreeHead:
    """The head in an envelope, if the pinned coordinator's key signed it. Raises: SignatureRefusal, SchemaRefusal."""
    return said_head(Envelope.from_bytes(data).require(TREE_HEAD_TYPE, {key.key_id: key}))


def said_head(payload: bytes) -> TreeHead:
    """The head in an envelope's payload; who signed it is for the caller to find out. Raises: SchemaRefusal."""
    body = parse_json(payload, cap=4096)
    if not isinstance(body, dict) or body.keys() != {item.name for item in fields(TreeHead)}:
        raise SchemaRefusal("a log's head must name the coordinator, a size, a root and a day")
    return TreeHead(**body)


def checkpoint_note(head: TreeHead, key: SigningKey) -> str:
    """A head as a checkpoint that any transparency log's tools read, signed as a note (C2SP tlog-checkpoint).

    The origin names the coordinator; the signature is Ed25519 over the text, as https://c2sp.org/signed-note has it.

    >>> key = SigningKey.generate()
    >>> head = TreeHead(coordinator="hub", size=1, root="ab" * 32, day="2026-01-05")
    >>> checkpoint_note(head, key).splitlines()[:2]
    ['tributary-log/hub', '1']
    """
    origin = f"tributary-log/{head.coordinator}"
    text = f"{origin}\n{head.size}\n{base64.b64encode(bytes.fromhex(head.root)).decode()}\n"
    signed = _note_hash(origin, key.public) + key.sign(text.encode())
    return f"{text}\n\u2014 {origin} {base64.b64encode(signed).decode()}\n"


def note_verifier(coordinator: str, key: PublicKey) -> str:
    """Verifier key (signed note format) of a coordinator's checkpoints: name, hash and key in one line."""
    origin = f"tributary-log/{coordinator}"
    public = base64.b64encode(ED25519_NOTE + bytes.fromhex(key.hex)).decode()
    return f"{origin}+{_note_hash(origin, key).hex()}+{public}"


def _note_hash(name: str, key: PublicKey) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + ED25519_NOTE + bytes.fromhex(key.hex)).digest()[:4]


def release_leaf(envelope: Envelope, bundle: str, site: str, standing: Envelope | None) -> dict[str, str]:
    """Entry of an accepted release in the log: statement, bytes, site, standing approval."""
    leaf = {"kind": "release", "statement": envelope.digest, "bundle": bundle, "site": site}
    return leaf if standing is None else {**leaf, "standing": standing.digest}


@dataclass(frozen=True, kw_only=True)
class RestoredLog:
    """A word in the log that it was taken up again from a backup.

    Args:
        size, root: of the log that the backup held; entries that others saw beyond it are lost.
        archive: SHA-256 of the backup's list of contents; blank where the files were put back by other means.
        reason: in the study lead's words.
        day: ISO date, UTC.
    """

    size: int
    root: str
    archive: str
    reason: str
    day: str

    def to_canonical(self) -> dict[str, Any]:
        """The entry of the log."""
        return {"kind": "restored", **{item.name: getattr(self, item.name) for item in fields(self)}}

    @classmethod
    def from_entry(cls, entry: bytes) -> RestoredLog:
        """Read an entry of the log. Raises: SchemaRefusal."""
        body = parse_json(entry)
        names = {item.name for item in fields(cls)}
        if not isinstance(body, dict) or body.get("kind") != "restored" or body.keys() - {"kind"} != names:
            raise SchemaRefusal("a restoration must be an entry of its kind")
        texts = all(isinstance(body[name], str) for name in names - {"size"})
        if not texts or type(body["size"]) is not int or body["size"] < 0 or not is_digest(body["root"]):
            raise SchemaRefusal("a restoration must name a size and a root")
        return cls(**{name: body[name] for name in names})


@dataclass(frozen=True, kw_only=True)
class CheckedView:
    """A look at the log whose proofs have been verified.

    Args:
        envelope: as it came.
        grew: of each size and root that was seen before, whether it is the beginning of this log.
        restored: (entry, what it says) of each restoration, oldest first.
    """

    head: TreeHead
    envelope: bytes
    grew: tuple[bool, ...]
    restored: tuple[tuple[bytes, RestoredLog], ...]

    def holds(self, logged: LoggedEntry) -> bool:
        """True if an entry is proven to stand in this log."""
        root = bytes.fromhex(self.head.root)
        return verify_inclusion(leaf_hash(logged.entry), logged.index, self.head.size, logged.proof, root)


def check_view(view: LogView, key: PublicKey, seen: Sequence[tuple[int, str]]) -> CheckedView:
    """Verify a look at the log.

    Args:
        view: asked for with the sizes of `seen`, in that order.
        key: the coordinator's pinned key.
        seen: (size, root) of logs that the coordinator has shown before.
    Raises: SignatureRefusal (the head), IntegrityRefusal (a restoration that the log does not hold, that does not
        continue from what it names, or that is of a later day than the head).
    """
    head = open_head(view.head, key)
    found = [(one.entry.entry, RestoredLog.from_entry(one.entry.entry), one) for one in view.restored]
    proofs = [*view.growth, *[()] * len(seen)]
    checked = CheckedView(
        head=head,
        envelope=view.head,
        grew=tuple(_grew(one, head, proof) for one, proof in zip(seen, proofs, strict=False)),
        restored=tuple((entry, said) for entry, said, _ in found),
    )
    for _, said, one in found:
        begins = said.size == 0 or _grew((said.size, said.root), head, one.growth)
        if not (begins and said.size <= one.entry.index and checked.holds(one.entry)):
            raise IntegrityRefusal(
                "a restored log must hold the word that it was restored, and continue from what that names",
                given="one that does not",
                next_step="Nothing is sent. Call the study lead.",
            )
        # Heads from before it are excused by its day: one dated ahead would excuse those that are still to come.
        if not (is_day(said.day) and is_day(head.day) and said.day <= head.day):
            raise IntegrityRefusal(
                "a log must have been put back on a day, and no later than its head is of",
                given=f"a restoration dated {said.day!r} in a head of {head.day!r}",
                next_step="Nothing is sent. Call the study lead: the coordinator's clock may have been wrong then.",
            )
    return checked


def excused(
    checked: CheckedView,
    seen: Collection[tuple[int, str]],
    known: Collection[bytes],
    look: Callable[[Sequence[int]], LogView | None],
    key: PublicKey,
) -> tuple[bytes, RestoredLog] | None:
    """The restoration that explains why the log does not continue from the longest one that was seen, if one does.

    Args:
        seen: every (size, root) that the coordinator has shown of its log.
        known: entries of restorations that were met before: they excuse nothing any more.
        look: asks for the log again, with a proof from a size.
    """
    for entry, said in sorted(checked.restored, key=lambda one: -one[1].size):
        if entry in known:
            continue
        before = max((one for one in seen if one[0] <= said.size), default=None)
        if before is None:
            return entry, said
        view = look([before[0]])
        again = check_view(view, key, [before]) if view is not None else None
        if again is not None and again.grew[0] and (entry, said) in again.restored:
            return entry, said
    return None


def require_not_before(head: TreeHead, checked: CheckedView) -> None:
    """Refuse to take a head that may be of the log before it was put back for one of another history.

    Raises: IntegrityRefusal.
    """
    for _, said in checked.restored:
        if head.size > said.size and head.day <= said.day:
            raise IntegrityRefusal(
                "a head to compare must be of the log as it was taken up again",
                given=f"one of {head.size} entries from {head.day}; it was put back to {said.size} on {said.day}",
                next_step="Nothing can be told from it: compare a newer head.",
            )


def proven_release(log: Mapping[str, Any], bundle: str, head: TreeHead) -> dict[str, Any]:
    """The entry of the release with this bundle, proven to stand in the log of a head.

    Args:
        log: as it stands in an answer: ``entries`` (bundle to ``index``, ``entry`` and ``proof``) and ``nodes``, the
            hashes that proofs name by their places.
    Raises: IntegrityRefusal.
    """
    try:
        logged = log["entries"][bundle]
        entry, proof = str(logged["entry"]).encode(), [bytes.fromhex(log["nodes"][part]) for part in logged["proof"]]
        body: Any = parse_json(entry)
        whole = verify_inclusion(leaf_hash(entry), int(logged["index"]), head.size, proof, bytes.fromhex(head.root))
    except (Refusal, ValueError, TypeError, LookupError):
        body, whole = None, False
    if not whole or not isinstance(body, dict) or (body.get("kind"), body.get("bundle")) != ("release", bundle):
        raise IntegrityRefusal(
            "a release that an answer rests on must be proven to stand in the coordinator's log",
            given="a proof that does not verify",
            next_step="Do not use the answer. Tell the study lead and a site.",
        )
    return body


def _grew(seen: tuple[int, str], head: TreeHead, proof: Sequence[bytes]) -> bool:
    size, root = seen
    return verify_consistency(size, head.size, tuple(proof), bytes.fromhex(root), bytes.fromhex(head.root))
