"""Membership as derived from the ledger's entries: studies granted, leads, keys of this site, persons kept apart.

Nothing here is stored: `folded` derives it from the entries. It also determines the key that must sign each entry: the
first key from the genesis on, each later one from the entry of its change on, which is the first that it signs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shared.base.keys import Envelope, PublicKey
from shared.errors import StateRefusal
from shared.membership.authorities import AuthorityReplacement
from shared.membership.grants import Grant
from shared.membership.key_changes import KEY_CHANGE_TYPE, KeyChange
from shared.membership.leads import LeadChange
from shared.membership.statements import Chained, require_next
from site_agent.ledger.entries import Entry

__all__ = ["KINDS", "Membership", "folded"]

KINDS = frozenset(
    {
        "authority_replaced",
        "keys_changed",
        "keys_told",
        "leads_changed",
        "persons_apart",
        "study_granted",
        "study_ungranted",
    }
)
"""Kinds of entry that are about who takes part."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Membership of a site up to one entry.

    Args:
        grants: grants of further studies, and their withdrawals, oldest first.
        leads: changes of leads that this site has followed.
        keys: changes of this site's keys and approvers.
        acknowledged: number of those that the coordinator has in force.
        release: (first entry that it signs, key) of each release key, oldest first.
        tags: (first entry, key) of each key that makes the tags of studies.
        apart: pairs of (study, tag of another) that approvers have declared to have no person in common.
        authorities: replacements of the coordinator's authority without the old one's signature, as pinned here.
    """

    grants: tuple[tuple[Grant, Envelope], ...] = ()
    leads: tuple[tuple[LeadChange, Envelope], ...] = ()
    keys: tuple[tuple[KeyChange, Envelope], ...] = ()
    acknowledged: int = 0
    release: tuple[tuple[int, PublicKey], ...] = ()
    tags: tuple[tuple[int, PublicKey], ...] = ()
    apart: frozenset[tuple[str, str]] = frozenset()
    authorities: tuple[tuple[AuthorityReplacement, Envelope], ...] = ()

    @property
    def studies(self) -> dict[str, bool]:
        """Each study of which a lead has said something: whether the last word lets this site in."""
        return {said.study: said.granted for said, _ in self.grants}

    @property
    def current(self) -> PublicKey:
        """The release key in force."""
        return self.release[-1][1]

    @property
    def untold(self) -> tuple[Envelope, ...]:
        """Changes of keys that the coordinator has not acknowledged."""
        return tuple(envelope for _, envelope in self.keys[self.acknowledged :])

    @property
    def deputies(self) -> dict[str, tuple[str, str]]:
        """Approvers who stand in for somebody: for whom, and until which day."""
        out: dict[str, tuple[str, str]] = {}
        for said, _ in self.keys:
            if said.deputy_of:
                out[said.name] = (said.deputy_of, said.until)
            elif said.action == "retire":
                out = {name: given for name, given in out.items() if said.name not in (name, given[0])}
        return out

    @property
    def ended(self) -> frozenset[str]:
        """Public keys of approvers who approve here no more; whoever stood in for somebody leaves with them."""
        out, deputies = set[str](), dict[str, tuple[str, str]]()
        for said, _ in self.keys:
            if said.role != "approver":
                continue
            out |= {said.old, *(key for of, key in deputies.values() if said.action == "retire" and of == said.name)}
            out.discard(said.new)
            if said.deputy_of:
                deputies[said.name] = (said.deputy_of, said.new)
        return frozenset(out - {""})

    def signer_of(self, seq: int) -> PublicKey:
        """The release key that signs entry `seq`."""
        return next(key for first, key in reversed(self.release) if first <= seq)


def folded(known: Membership, entry: Entry) -> Membership:
    """`known` from before `entry` to after it. Raises: StateRefusal, ReplayRefusal, SchemaRefusal, SignatureRefusal."""
    body = entry.body
    if entry.kind == "genesis":
        first = ((1, PublicKey(str(body["release_key"]))),)
        return replace(known, release=first, tags=first)
    if entry.kind in ("study_granted", "study_ungranted"):
        envelope = Envelope.from_bytes(str(body["envelope"]).encode())
        said = Grant.said(envelope)
        if (said.study, said.granted) != (body["study"], entry.kind == "study_granted"):
            raise StateRefusal("a grant's entry must say what the grant says", given="something else")
        if known.grants:  # the first follows what stood when this site was invited
            require_next(said, _last(known.grants))
        return replace(known, grants=(*known.grants, (said, envelope)))
    if entry.kind == "leads_changed":
        envelope = Envelope.from_bytes(str(body["envelope"]).encode())
        change = LeadChange.said(envelope)
        if known.leads:
            require_next(change, known.leads[-1][0])
        return replace(known, leads=(*known.leads, (change, envelope)))
    if entry.kind == "authority_replaced":
        envelope = Envelope.from_bytes(str(body["envelope"]).encode())
        other = AuthorityReplacement.said(envelope)
        if (other.before, other.after) != (body["before"], body["after"]):
            raise StateRefusal("an authority's entry must say what its leads have signed", given="something else")
        return replace(known, authorities=(*known.authorities, (other, envelope)))
    if entry.kind == "keys_changed":
        return _keys(known, entry)
    if entry.kind == "keys_told":
        return replace(known, acknowledged=max(known.acknowledged, int(body["number"])))
    return replace(known, apart=known.apart | {(str(body["study"]), str(body["apart"]))})


def _last(said: tuple[tuple[Any, Envelope], ...]) -> Chained | None:
    return said[-1][0] if said else None


def _keys(known: Membership, entry: Entry) -> Membership:
    """The keys after an entry of kind ``keys_changed``: one change, or those that a ledger put back had forgotten."""
    body = entry.body
    envelopes = [Envelope.from_bytes(str(text).encode()) for text in body["envelopes"]]
    if len(envelopes) != 1 and not body.get("again"):
        raise StateRefusal("an entry must hold one change of keys", given=f"{len(envelopes)}")
    for envelope in envelopes:
        said = KeyChange.said(envelope)
        require_next(said, _last(known.keys))
        here = (said.seq, said.head) == (entry.seq - 1, entry.previous)
        if not here and not body.get("again"):
            raise StateRefusal("a change of keys must be for the place where it stands", given="another place")
        agent = [PublicKey(said.new)] if said.role == "release" else [known.current]
        agent += [known.current] if (said.role, said.action) == ("release", "rotate") else []
        for key in agent:
            envelope.require(KEY_CHANGE_TYPE, {key.key_id: key})
        if said.role == "release":
            if said.old != known.current.hex:
                raise StateRefusal("a change of the release key must begin at the key in force", given="another key")
            now = (entry.seq, PublicKey(said.new))
            release = (*[one for one in known.release if one[0] != entry.seq], now)
            known = replace(known, release=release, tags=(*known.tags, now) if body.get("new_tags") else known.tags)
        known = replace(known, keys=(*known.keys, (said, envelope)))
    return replace(known, acknowledged=len(known.keys)) if body.get("again") else known
