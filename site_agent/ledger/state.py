"""State of a ledger, derived from its entries inside one transaction: holds, plans, standing approvals, the pause.

`Book._fold` derives it entry by entry. Only `Book.append` writes, one entry at a time, and folds the entry before it
is written, so that an invalid one is refused.
"""

from __future__ import annotations

import copy
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import Envelope, SigningKey
from shared.errors import ApprovalRefusal, PausedRefusal, PlanChanged, Refusal, RoleRefusal, StateRefusal, TooLarge
from site_agent.ledger.entries import HEAD_TYPE, Entry, decision_message, head_payload, link_of, tag_proof
from site_agent.ledger.files import broken
from site_agent.ledger.holds import Hold, fold
from site_agent.ledger.membership import KINDS, Membership, folded

__all__ = ["Book", "Noted"]

BODY_CAP = 1 << 20
"""Most bytes of an entry: what `parse_json` reads back."""
_STATE = ("holds", "plans", "gone", "written", "revoked", "left", "deleted", "standing", "paused", "membership")
_FOLDED: dict[str, tuple[int, dict[str, Any]]] = {}
"""Of the last few heads: the number of the entry, and what the ledger amounts to up to it."""
_MOST_FOLDED = 8


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A standing approval in the ledger.

    Args:
        envelope: the document, signed by the approver `name`.
        seq: its entry.
        revoked: by a person, with the plan's approval, or when the site left the study.
        revocation: what the person signed for the coordinator when it was revoked.
        acknowledged: whether the coordinator has acknowledged that.
    """

    digest: str
    study: str
    name: str
    envelope: Envelope
    seq: int
    revoked: bool = False
    revocation: Envelope | None = None
    acknowledged: bool = False


class Book:
    """The entries inside one transaction, and what they amount to."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        signer: SigningKey,
        site: str,
        entries: list[Entry],
        path: Path,
        cached: bool = False,
        tagger: SigningKey | None = None,
    ) -> None:
        self.connection, self.signer, self.site, self.entries, self.path = connection, signer, site, entries, path
        self.tagger = tagger or signer
        self.membership = Membership()
        self.holds: dict[str, Hold] = {}
        self.plans: dict[str, tuple[int, str]] = {}
        self.left: set[str] = set()
        self.gone: dict[str, str] = {}
        self.written: set[str] = set()
        self.revoked: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.standing: dict[str, Noted] = {}
        self.paused = False
        done = self._remembered() if cached else 0
        for entry in entries[done:]:
            try:
                self._fold(entry)
            except (Refusal, KeyError, TypeError, ValueError) as error:
                raise broken(f"entry {entry.seq} must follow from those before it", type(error).__name__) from None
        if cached and done < len(entries):
            _FOLDED[entries[-1].hash] = (len(entries), self._state())
            while len(_FOLDED) > _MOST_FOLDED:
                _FOLDED.pop(next(iter(_FOLDED)), None)

    def _state(self) -> dict[str, Any]:
        """Copy of the state that the entries give: its containers are new, their items immutable."""
        return {name: copy.copy(getattr(self, name)) for name in _STATE}

    def _remembered(self) -> int:
        """Take what the entries up to one of them amounted to before; the number of that entry.

        The chain has just been read: an entry's hash names all before it. Without this the ledger of a training of
        a thousand rounds is folded a thousand times.
        """
        reached = [
            known
            for digest, known in list(_FOLDED.items())
            if self.entries[known[0] - 1 : known[0]] and self.entries[known[0] - 1].hash == digest
        ]
        done, state = max(reached, key=lambda known: known[0], default=(0, {}))
        for name, value in state.items():
            setattr(self, name, copy.copy(value))
        return done

    def hold(self, release_id: str) -> Hold:
        """The hold of a release. Raises: StateRefusal, if there is none."""
        try:
            return self.holds[release_id]
        except KeyError:
            raise StateRefusal(
                "the release must be in the ledger", given=release_id, next_step="See site-agent outbox list."
            ) from None

    def require_running(self) -> None:
        """Refuse while the site is paused. Raises: PausedRefusal."""
        if self.paused:
            raise PausedRefusal(
                "this site must not be paused", given="a pause", next_step="Run site-agent resume when it may go on."
            )

    def require_granted(self, study: str) -> None:
        """Refuse what belongs to a study out of which the study lead has taken this site. Raises: RoleRefusal."""
        if not self.membership.studies.get(study, True):
            raise RoleRefusal(
                "the site must take part in the study",
                given=f"{study}, out of which the study lead has taken it",
                next_step="Nothing more is made or sent of it. Only a new grant, and a new approval of its plan, would "
                f"change that; site-agent leave {study} --as NAME ends it here.",
            )

    def require_plan(self, hold: Hold) -> None:
        """Refuse what is drawn, approved or sent while the plan of a release is not the one approved last here.

        `start_drawing` and `approve` ask it in their own transaction: a revocation stands before them or after them.
        What has no plan noted (a sandbox, a ledger by itself) is not refused.

        Raises: ApprovalRefusal (the approval was taken back), PlanChanged (another plan was approved since).
        """
        hold = self.hold(hold.release_id)
        self.require_granted(hold.study)
        if hold.study in self.revoked:
            raise ApprovalRefusal(
                "the plan must be approved at this site",
                given=f"version {self.revoked[hold.study]}, its approval taken back",
                next_step=f"Run site-agent plan show {hold.study}, then plan approve {hold.study} --as NAME.",
            )
        noted = self.plans.get(hold.study)
        if noted is not None and noted[1] != hold.plan_hash:
            raise PlanChanged(
                "a release must be of the plan that is approved now",
                given="a release of an earlier plan",
                next_step=f"Give it up with site-agent withdraw {hold.release_id[:8]} --as NAME --reason policy, and "
                "release again.",
            )

    def move(
        self, release_id: str, kind: str, body: Mapping[str, Any], record: Mapping[str, Any] | None = None
    ) -> Hold:
        """Append an entry about one release, and return what the release is then. Raises: StateRefusal."""
        self.hold(release_id)
        self.append(kind, {"release_id": release_id, **body}, record=record)
        return self.holds[release_id]

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        person: SigningKey | None = None,
        beside: Mapping[str, SigningKey] | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an entry, signed by the site.

        Args:
            person: who decides, where it is a person's decision: their signature stands in the entry.
            beside: who else has to sign that, by name.
            record: what is told to nobody outside: counts of records.
        Raises: ApprovalRefusal (a key of somebody who approves here no more), TooLarge, and what may not follow.
        """
        seq = len(self.entries) + 1
        time = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {**body, "salt": secrets.token_hex(16), "tags": self._tags(body)}
        if record:
            body["kept"] = {**record, "salt": secrets.token_hex(16)}
        others = beside or {}
        if person is not None:
            if self.membership.ended & {person.public.hex, *(key.public.hex for key in others.values())}:
                # They may have left while a passphrase was typed.
                raise ApprovalRefusal("an approver must approve here by the ledger", given="one who has left")
            message = decision_message(self.site, kind, self.entries[-1].hash, body)
            body |= {"key": person.public.hex, "signature": person.sign(message).hex()}
            also = [{"name": n, "key": k.public.hex, "signature": k.sign(message).hex()} for n, k in others.items()]
            body |= {"beside": also} if also else {}
        data = canonical_json(body)
        if len(data) > BODY_CAP:
            # Written, it could never be read again, and the ledger with it.
            raise TooLarge(
                f"an entry of the ledger must have at most {BODY_CAP} bytes",
                given=f"{len(data)}",
                next_step="Nothing was written. Shorten the reason, or report what was counted.",
            )
        previous = self.entries[-1].hash if self.entries else GENESIS
        head = extend_head(previous, [link_of(seq, time, kind, body)])
        signature = self.signer.sign(Envelope.encoding(HEAD_TYPE, head_payload(self.site, seq, head)))
        entry = Entry(seq=seq, time=time, kind=kind, body=body, previous=previous, hash=head, signature=signature)
        # Folded first: what may not follow is refused before it is written.
        self._fold(entry)
        reach("ledger.before_insert")
        self.connection.execute(
            "INSERT INTO entries (seq, time, kind, body, previous, hash, signature) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (seq, time, kind, data, previous, head, signature),
        )
        reach("ledger.after_insert")
        self.entries.append(entry)

    def _tags(self, body: Mapping[str, Any]) -> list[str]:
        """Tags of the studies that an entry is about; none if it is about the whole site."""
        studies = (
            {str(body["study"])} if "study" in body else {str(charge["study"]) for charge in body.get("charges", ())}
        )
        if not studies and "release_id" in body:
            studies = {self.hold(body["release_id"]).study}
        return sorted(sha256_hex(tag_proof(self.tagger, self.site, study)) for study in studies)

    def _fold(self, entry: Entry) -> None:
        if entry.kind in KINDS or entry.kind == "genesis":
            self._fold_membership(entry)
        if entry.kind == "plan_approved":
            self.plans[entry.body["study"]] = (int(entry.body["version"]), str(entry.body["plan_hash"]))
            self.revoked.pop(entry.body["study"], None)
            self.left.discard(entry.body["study"])
        elif entry.kind == "persons_withdrew":
            self.gone[entry.body["study"]] = str(entry.body["sha256"])
            if "identifiers" not in entry.body:
                self.written.add(entry.body["study"])
        elif entry.kind == "plan_revoked":
            self.revoked[entry.body["study"]] = int(entry.body["version"])
            self._end_standing(entry.body["study"])
        elif entry.kind == "standing":
            body = entry.body
            self.standing[body["standing"]] = Noted(
                digest=body["standing"],
                study=body["study"],
                name=body["name"],
                envelope=Envelope.from_bytes(body["envelope"].encode()),
                seq=entry.seq,
            )
        elif entry.kind == "standing_revoked":
            made, text = self.standing[entry.body["standing"]], entry.body.get("envelope")
            signed = None if text is None else Envelope.from_bytes(text.encode())
            self.standing[made.digest] = replace(made, revoked=True, revocation=signed)
        elif entry.kind == "standing_told":
            made = self.standing[entry.body["standing"]]
            self.standing[made.digest] = replace(made, acknowledged=True)
        elif entry.kind in ("paused", "resumed"):
            self.paused = entry.kind == "paused"
        elif entry.kind == "left":
            self.left.add(entry.body["study"])
            self._end_standing(entry.body["study"])
            self.deleted |= {str(item["release_id"]) for item in entry.body["deleted"]}
        elif entry.kind not in KINDS:
            fold(self.holds, entry)

    def _fold_membership(self, entry: Entry) -> None:
        self.membership = folded(self.membership, entry)
        if entry.kind == "study_ungranted":
            study = str(entry.body["study"])
            self.revoked[study] = self.plans.get(study, (0, ""))[0]
            self._end_standing(study)
        elif entry.kind == "keys_changed" and entry.body["role"] == "approver" and entry.body["action"] != "add":
            for made in self.standing.values():
                if made.name == entry.body["name"]:
                    self.standing[made.digest] = replace(made, revoked=True)

    def _end_standing(self, study: str) -> None:
        for made in self.standing.values():
            if made.study == study:
                self.standing[made.digest] = replace(made, revoked=True)

    def of(self, study: str) -> list[Hold]:
        """Holds of a study in order of reservation."""
        return [hold for hold in self.holds.values() if hold.study == study]
