"""The coordinator's signed answers: verified by the pinned key, held against one log, kept as lines of JSON."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.base.canonical import canonical_json, parse_json
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey
from shared.base.merkle import verify_consistency
from shared.errors import IntegrityRefusal, SignatureRefusal, StorageRefusal
from shared.wire.clocks import ClockReading, open_reading
from shared.wire.rounds import RoundOrder, open_order
from shared.wire.signed_messages import Reply, require_countersigned
from shared.wire.site_messages import Acceptance, AnchorReceipt, LogView, RoundReply
from shared.wire.tree_heads import CheckedView, RestoredLog, check_view, excused, open_head, require_not_before

__all__ = ["AcknowledgedReplies"]

_log = logging.getLogger("tributary.egress")


class AcknowledgedReplies:
    """The coordinator's signed replies, verified by the key that the invitation pins; stored as lines of JSON.

    Args:
        key: the coordinator's pinned key.
        site: this site's id: an answer signed for another site is worth nothing here.
        path: the file, append-only; it holds digests and places in the log, and no value of a record.
    """

    def __init__(self, key: PublicKey, site: str, path: Path) -> None:
        self._key, self._site, self.path = key, site, path

    def keep(
        self,
        reply: Reply,
        grew: Callable[[int, int], Sequence[bytes]],
        look: Callable[[Sequence[int]], LogView | None] = lambda sizes: None,
    ) -> Reply:
        """Check an answer and keep it: signed, and from the one log that this site has seen before.

        The same answer again is kept once. One from another history is kept too, as evidence: two roots that the
        coordinator signed and that no log can both have. Where the log itself says that it was put back from a
        backup, that word is kept, and the log is followed from there.

        Args:
            grew: asks for the proof that the log of the second size only appended to that of the first.
            look: asks for the log's signed head, with proofs from these sizes; None of a coordinator that has none.
        Raises: SignatureRefusal, IntegrityRefusal (another history), StorageRefusal.
        """
        require_countersigned(reply, self._key, self._site)
        if not reply.log_root:
            raise IntegrityRefusal("the coordinator's answer must name its log's root", given="none")
        body: dict[str, Any] = {name: getattr(reply, name) for name in reply.__dataclass_fields__}
        line = canonical_json({"kind": type(reply).__name__, **body, "signature": reply.signature.hex()})
        if line in self.lines():
            return reply
        seen = self.checkpoint()
        index = reply.index if isinstance(reply, AnchorReceipt) else reply.log_index
        at = (index + 1, reply.log_root)
        heads = [at] if seen is None else [at, seen]
        view = look([size for size, _ in heads])
        if view is not None:
            one = self._followed(check_view(view, self._key, heads), look)
        elif seen is not None:
            (old, old_root), (new, new_root) = sorted(heads)
            proof = grew(old, new) if old < new else ()
            one = verify_consistency(old, new, tuple(proof), bytes.fromhex(old_root), bytes.fromhex(new_root))
        else:
            one = True
        if not one:
            self._note_fork(canonical_json({"kind": "Fork", **body, "signature": reply.signature.hex()}))
            raise self._another_history(index + 1)
        self._append(line)
        return reply

    def watch(self, look: Callable[[Sequence[int]], LogView | None]) -> CheckedView | None:
        """Look at the log as it is now, and keep its signed head; None of a coordinator that shows none.

        Raises: SignatureRefusal, IntegrityRefusal (another history), StorageRefusal.
        """
        seen = self.checkpoint()
        heads = [] if seen is None else [seen]
        view = look([size for size, _ in heads])
        if view is None or not view.head:
            return None
        checked = check_view(view, self._key, heads)
        head = {"kind": "TreeHead", "size": checked.head.size, "root": checked.head.root}
        line = canonical_json({**head, "head": checked.envelope.decode()})
        if not self._followed(checked, look):
            self._note_fork(canonical_json({**head, "kind": "Fork", "head": checked.envelope.decode()}))
            raise self._another_history(checked.head.size)
        if seen != (checked.head.size, checked.head.root):
            self._append(line)
        return checked

    def one_log_with(self, head: bytes, look: Callable[[Sequence[int]], LogView | None]) -> int:
        """As of `Egress.one_log_with`; a head of another history is kept beside this site's own, as evidence.

        So is one that may be of the log before it was put back: whether it was is for somebody to tell who has both.
        """
        other = open_head(head, self._key)
        view = look([other.size])
        checked = None if view is None else check_view(view, self._key, [(other.size, other.root)])
        if checked is None or not checked.grew[0]:
            kind, before = "Fork", None
            if checked is not None:
                try:
                    require_not_before(other, checked)
                except IntegrityRefusal as refusal:
                    kind, before = "Before", refusal
            line = canonical_json({"kind": kind, "size": other.size, "root": other.root, "head": head.decode()})
            if before is not None:
                if line not in self.lines():
                    self._append(line)
                raise before
            self._note_fork(line)
            raise self._another_history(other.size)
        return other.size

    def checked(self, view: LogView) -> CheckedView:
        """A look whose head continues from nothing in particular. Raises: SignatureRefusal, IntegrityRefusal."""
        return check_view(view, self._key, [])

    def _followed(self, checked: CheckedView, look: Callable[[Sequence[int]], LogView | None]) -> bool:
        """True if a look shows the log that was seen before, or says why not; what it says of restores is kept."""
        known = {str(said["entry"]).encode() for said in self.replies() if said["kind"] == "Restored"}
        if all(checked.grew):
            for entry, said in checked.restored:
                if entry not in known:
                    self._restored(entry, said, checked, rewound=False)
            return True
        seen = self.heads()
        found = excused(checked, seen, known, look, self._key) if seen and checked.grew[:-1] in ((), (True,)) else None
        if found is None:
            return False
        _log.warning("the coordinator's log was put back to %d entries: %s", found[1].size, found[1].reason)
        for entry, said in checked.restored:
            if entry not in known:
                self._restored(entry, said, checked, rewound=entry == found[0])
        return True

    def _restored(self, entry: bytes, said: RestoredLog, checked: CheckedView, *, rewound: bool) -> None:
        seen = self.checkpoint()
        body = {
            "kind": "Restored",
            "entry": entry.decode(),
            "size": said.size,
            "rewound": rewound,
            "left": None if seen is None or not rewound else list(seen),
            "head": checked.envelope.decode(),
            "head_size": checked.head.size,
            "head_root": checked.head.root,
        }
        self._append(canonical_json(body))

    def _note_fork(self, line: bytes) -> None:
        """Keep an answer of another history: once, and anew where the log has said since that it was put back."""
        if line not in self._unexplained():
            self._append(line)

    def _unexplained(self) -> list[bytes]:
        found: list[bytes] = []
        for line in self.lines():
            if b'"Fork"' in line or b'"Restored"' in line:  # most are neither, and need not be read
                kind = parse_json(line)["kind"]
                found = [] if kind == "Restored" else [*found, line] if kind == "Fork" else found
        return found

    def forks(self) -> int:
        """Number of answers of another history that the log has not explained since by saying it was put back."""
        return len(self._unexplained())

    def require_one_history(self) -> None:
        """Refuse while an answer of another history is unexplained. Raises: IntegrityRefusal."""
        if found := self.forks():
            raise self._forked(f"{found} answer{'s' if found > 1 else ''} of another history")

    def _another_history(self, entries: int) -> IntegrityRefusal:
        _log.error("the coordinator's log of %d entries is not the one seen before", entries)
        return self._forked("another history than the one this site has seen")

    def _forked(self, given: str) -> IntegrityRefusal:
        return IntegrityRefusal(
            "the coordinator's log must only grow",
            given=given,
            next_step=f"From now on no release is sent and no training answered. Call the study lead: if the log was "
            f"put back, it must say so (coordinator log restored). {self.path.name} holds both signed answers.",
        )

    def opened(self, reply: RoundReply) -> RoundOrder:
        """Verify a round's order, signed by the pinned coordinator. Raises: SignatureRefusal, IntegrityRefusal, …"""
        return open_order(reply.envelope, reply.content, self._key)

    def reading(self, envelope: Envelope, question: ClockReading) -> ClockReading:
        """The coordinator's clock reading in reply to `question`. Raises: SignatureRefusal, IntegrityRefusal, …"""
        return open_reading(envelope, self._key, question=question)

    def checkpoint(self) -> tuple[int, str] | None:
        """The longest log that the coordinator has shown: (entries, root)."""
        return max(self.heads(), default=None)

    def heads(self) -> list[tuple[int, str]]:
        """Every log that the coordinator has shown, but for what it said was lost with a restore: (entries, root)."""
        seen: list[tuple[int, str]] = []
        for said in self.replies():
            if said["kind"] == "Restored":
                if said["rewound"]:
                    seen = [one for one in seen if one[0] <= said["size"]]
                seen.append((int(said["head_size"]), str(said["head_root"])))
            elif said["kind"] == "TreeHead":
                seen.append((int(said["size"]), str(said["root"])))
            elif said["kind"] not in ("Fork", "Before"):
                seen.append((int(said["index" if "index" in said else "log_index"]) + 1, str(said["log_root"])))
        return seen

    def restorations(self) -> tuple[RestoredLog, ...]:
        """Every time that the coordinator said its log was taken up again from a backup and this site had seen more."""
        found = [said for said in self.replies() if said["kind"] == "Restored" and said["rewound"]]
        return tuple(RestoredLog.from_entry(str(said["entry"]).encode()) for said in found)

    def restored(self) -> int:
        """Number of all restorations that the coordinator's log told this site of, whether it had seen more or not."""
        return sum(said["kind"] == "Restored" for said in self.replies())

    def acceptances(self) -> tuple[Acceptance, ...]:
        """The acceptances kept, oldest first, each verified by the pinned key; what does not verify is left out."""
        out = []
        for said in self.replies():
            if said["kind"] == "Acceptance":
                values = {name: said[name] for name in Acceptance.__dataclass_fields__ if name != "signature"}
                one = Acceptance(**values, signature=bytes.fromhex(said["signature"]))
                with suppress(SignatureRefusal):
                    require_countersigned(one, self._key, self._site)
                    out.append(one)
        return tuple(out)

    def _append(self, line: bytes) -> None:
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "rb+") as out:
                # A power cut may have left half a line: it must not spoil the next.
                whole = out.seek(0, os.SEEK_END) == 0 or (out.seek(-1, os.SEEK_END) >= 0 and out.read(1) == b"\n")
                reach("egress.before_keep")
                out.write((b"" if whole else b"\n") + line + b"\n")
                out.flush()
                os.fsync(out.fileno())
            reach("egress.after_keep")
        except OSError as error:
            raise StorageRefusal("the coordinator's answer must be kept", given=error.strerror or "an error") from None

    def lines(self) -> tuple[bytes, ...]:
        """The answers kept, as written; half a line is left out."""
        try:
            written = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return ()
        return tuple(line for line in written if line.endswith(b"}"))

    def replies(self) -> tuple[dict[str, Any], ...]:
        """The answers kept, oldest first."""
        return tuple(parse_json(line) for line in self.lines())
