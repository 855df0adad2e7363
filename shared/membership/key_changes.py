"""Changes of a site's keys and approvers, as the site signs them and both sides hold them.

A *rotation* is signed by the old key and by the new one, so that whoever trusts the old key may go on with the new. An
approver who joins shows their own key; approvers who are there sign for everybody. A *replacement* is the one change
that the old key has not signed: it is lost. It counts for the coordinator only once the study lead has compared the new
key's fingerprint with the steward, and it says what it is to everybody who reads the ledger later.

Each change names the ledger entry before the one that holds it, and the change before it: it is good in one place.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shared.base.canonical import is_day, is_digest, is_word, sha256_hex
from shared.base.keys import Envelope, PublicKey
from shared.errors import ApprovalRefusal, SignatureRefusal, TooLarge
from shared.membership.statements import Chained, must_be

__all__ = [
    "ACTIONS",
    "KEY_CHANGE_TYPE",
    "ROLES",
    "KeyChange",
    "SiteKeyring",
    "after",
    "open_key_change",
    "snapshot_mark",
]

KEY_CHANGE_TYPE = "application/vnd.tributary.key-change+json"
ROLES = ("release", "tls", "snapshot", "approver")
ACTIONS = ("rotate", "replace", "add", "retire")
MOST_APPROVERS = 16
MOST_CHANGES = 500
"""Of one site: each is an entry of the coordinator's log for ever, and all are read for the next."""


def snapshot_mark(key: bytes) -> str:
    """Public identifier of a secret key of keyed hashes: the SHA-256 that statements name it by."""
    return sha256_hex(b"tributary snapshot key\0" + key)


@dataclass(frozen=True, kw_only=True)
class SiteKeyring:
    """The keys of a site that are in force.

    Args:
        release: the agent's key.
        approvers: who may approve, by name.
        deputies: of those, who stands in for whom, and until which day: name to (approver, ISO date).
    """

    release: PublicKey
    approvers: Mapping[str, PublicKey]
    deputies: Mapping[str, tuple[str, str]]

    def on(self, day: dt.date) -> dict[str, PublicKey]:
        """Approvers who may approve on a day: a deputy's time may be over."""
        late = {name for name, (_, until) in self.deputies.items() if day.isoformat() > until}
        return {name: key for name, key in self.approvers.items() if name not in late}


@dataclass(frozen=True, kw_only=True)
class KeyChange(Chained):
    """One change of one key of a site.

    Args:
        role: whose key: the agent's (``release``), of its connection (``tls``), of its keyed hashes (``snapshot``), an
            ``approver``'s.
        action: ``rotate`` (old and new sign), ``replace`` (the old one is lost); of approvers also ``add``, ``retire``.
        name: of the approver; blank otherwise.
        old, new: public keys, or the identifier of a secret key (`snapshot_mark`); blank where there is none.
        seq, head: the ledger's last entry before the one that holds this.
        deputy_of, until: of an approver who is added for somebody's absence: whose, and the last day.
    """

    TYPE: ClassVar[str] = KEY_CHANGE_TYPE
    FORMAT: ClassVar[str] = "tributary-key-change/1"
    WHAT: ClassVar[str] = "a change of keys"

    coordinator: str
    site: str
    role: str
    action: str
    name: str
    old: str
    new: str
    seq: int
    head: str
    deputy_of: str = ""
    until: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_be(is_word(self.coordinator) and is_word(self.site), "a change of keys must name coordinator and site")
        texts = all(isinstance(text, str) for text in (self.name, self.old, self.new, self.deputy_of, self.until))
        must_be(texts, "a change of keys must name them by texts")
        must_be(self.role in ROLES and self.action in ACTIONS, "a change of keys must be of a known sort")
        person = self.role == "approver"
        must_be(is_word(self.name) if person else self.name == "", "a change of keys must name an approver, if one's")
        must_be(person or self.action in ("rotate", "replace"), "only approvers are added and retired")
        must_be((self.old == "") == (self.action == "add"), "a change of keys must name the old key, if there was one")
        must_be(
            (self.new == "") == (self.action == "retire"), "a change of keys must name the new key, if there is one"
        )
        keys = [key for key in (self.old, self.new) if key]
        must_be(all(map(is_digest, keys)) and len(set(keys)) == len(keys), "keys must be 64 digits each, and differ")
        must_be(type(self.seq) is int and self.seq >= 1 and is_digest(self.head), "a change must name a ledger entry")
        deputy = bool(self.deputy_of)
        must_be(deputy == bool(self.until), "a deputy must have both: for whom, and until when")
        must_be(not deputy or (self.action == "add" and is_word(self.deputy_of)), "a deputy must be added as one")
        must_be(not deputy or is_day(self.until), "a deputy's last day must be an ISO date")

    @property
    def lost(self) -> bool:
        """True if the old key has not signed the change: the key is replaced, not rotated."""
        return self.action == "replace"


def open_key_change(envelope: Envelope, ring: SiteKeyring, *, needed: int) -> KeyChange:
    """A change that may follow these keys: signed by all who must.

    Args:
        needed: approvers who must sign a release here; as many must sign this, and be left after it.
    Raises: SignatureRefusal, ApprovalRefusal, SchemaRefusal, TooLarge (beyond `MOST_CHANGES`, which a site must know
        before it notes one). Whether it is the next of its chain is for the caller.
    """
    said = KeyChange.said(envelope)
    if said.number > MOST_CHANGES:
        raise TooLarge(
            f"a site may change its keys at most {MOST_CHANGES} times",
            given=f"{said.number}",
            next_step="Ask the study lead to revoke the site and to invite it anew.",
        )
    in_force = ring.on(dt.date.fromisoformat(said.day))
    approvers = {key.key_id: key for name, key in in_force.items() if name not in ring.deputies}
    agent = {said.new: PublicKey(said.new)} if said.role == "release" else {ring.release.hex: ring.release}
    if said.role == "release" and said.action == "rotate":
        agent |= {ring.release.hex: ring.release}
    for key in agent.values():
        envelope.require(KEY_CHANGE_TYPE, {key.key_id: key})
    if said.role == "release" and said.old != ring.release.hex:
        raise SignatureRefusal("a change of the release key must begin at the key in force", given="another key")
    known = {ring.release.hex, *(key.hex for key in ring.approvers.values())}
    if said.role in ("release", "approver") and said.new in known:
        raise ApprovalRefusal(
            "a new key must be nobody's yet: one person has one key, and one key is one person's",
            given="a key that is in force here",
            next_step="Nobody can be added twice. Make a new key for another person.",
        )
    if said.role == "approver":
        _require_person(said, envelope, ring)
    signers = envelope.verified_by(approvers)
    if said.role == "approver" and said.new:
        signers -= {PublicKey(said.new).key_id}
    enough = needed
    if said.role == "approver" and said.lost:
        # Whoever lost the key cannot sign: the others do, as far as there are any. A deputy is not one of those.
        enough = min(needed, len(approvers) - (ring.approvers[said.name].key_id in approvers))
    if len(signers) < enough:
        raise ApprovalRefusal(
            f"a change of keys must be signed by {enough} approver(s) of the site",
            given=f"{len(signers)}",
            next_step="Repeat --as for each of them; each types their own passphrase.",
        )
    left = after(said, ring)
    if said.action == "retire" and len(set(left.approvers) - set(left.deputies)) < needed:
        raise ApprovalRefusal(
            f"at least {needed} approver(s) must be left",
            given=f"{len(set(left.approvers) - set(left.deputies))} without {said.name}",
            next_step="Add another person first: site-agent approver add NAME --as NAME.",
        )
    return said


def _require_person(said: KeyChange, envelope: Envelope, ring: SiteKeyring) -> None:
    known = ring.approvers.get(said.name)
    if said.action == "add" and known is not None:
        raise ApprovalRefusal(
            "an approver must be added once", given=f"{said.name}, who approves here", next_step="Name another person."
        )
    if said.action != "add" and (known is None or known.hex != said.old):
        raise ApprovalRefusal("the approver must be registered at this site with this key", given=repr(said.name))
    if said.action == "add" and len(ring.approvers) >= MOST_APPROVERS:
        raise ApprovalRefusal(f"a site may have at most {MOST_APPROVERS} approvers", given="one more")
    if said.deputy_of and (said.deputy_of not in ring.approvers or said.deputy_of in ring.deputies):
        raise ApprovalRefusal("a deputy must stand in for an approver of this site", given=repr(said.deputy_of))
    own = [key for key in (said.new, said.old if said.action == "rotate" else "") if key]
    for key in map(PublicKey, own):
        if not envelope.verified_by({key.key_id: key}):
            raise SignatureRefusal("whoever has a key must show it", given="no signature of it")


def after(said: KeyChange, ring: SiteKeyring) -> SiteKeyring:
    """The keys in force after a change."""
    if said.role == "release":
        return SiteKeyring(release=PublicKey(said.new), approvers=ring.approvers, deputies=ring.deputies)
    if said.role != "approver":
        return ring
    approvers = {name: key for name, key in ring.approvers.items() if name != said.name}
    deputies = {name: given for name, given in ring.deputies.items() if name != said.name or said.new}
    if said.action == "retire":
        # Whoever stood in for somebody does so no longer when that person has left.
        deputies = {name: given for name, given in deputies.items() if given[0] != said.name}
        approvers = {name: key for name, key in approvers.items() if name not in ring.deputies or name in deputies}
    if said.new:
        approvers[said.name] = PublicKey(said.new)
    if said.deputy_of:
        deputies[said.name] = (said.deputy_of, said.until)
    return SiteKeyring(release=ring.release, approvers=approvers, deputies=deputies)
