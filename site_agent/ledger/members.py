"""Verbs of the ledger about who takes part: grants are noted, leads followed, keys and approvers changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import ParameterError, StateRefusal
from shared.membership.authorities import AuthorityReplacement
from shared.membership.grants import Grant
from shared.membership.key_changes import KeyChange
from shared.membership.leads import LeadChange
from site_agent.ledger.entries import tag_proof
from site_agent.ledger.holds import require_word
from site_agent.ledger.membership import Membership
from site_agent.ledger.state import Book

__all__ = [
    "change_keys",
    "forgotten_keys",
    "keys_told",
    "membership",
    "note_authority",
    "note_grant",
    "note_leads",
    "snapshot_marks",
    "tell_apart",
    "told_apart",
]


def membership(book: Book) -> Membership:
    """Studies, leads, keys and separations of persons after all entries."""
    return book.membership


def note_grant(book: Book, envelope: Envelope) -> None:
    """Note a lead's word on a study; it lets nothing happen by itself. Raises: ReplayRefusal (not the next one)."""
    said = Grant.said(envelope)
    kind = "study_granted" if said.granted else "study_ungranted"
    book.append(kind, {"study": said.study, "number": said.number, "envelope": envelope.to_bytes().decode()})


def note_leads(book: Book, envelope: Envelope) -> None:
    """Note a change of leads that this site follows. Raises: ReplayRefusal (not the next one)."""
    said = LeadChange.said(envelope)
    book.append("leads_changed", {"number": said.number, "envelope": envelope.to_bytes().decode()})


def note_authority(book: Book, envelope: Envelope) -> None:
    """Note that another authority of the coordinator is pinned, which the one before did not sign; once."""
    said = AuthorityReplacement.said(envelope)
    if said.digest not in [one.digest for one, _ in book.membership.authorities]:
        body = {"before": said.before, "after": said.after, "envelope": envelope.to_bytes().decode()}
        book.append("authority_replaced", body)


def change_keys(
    book: Book, envelope: Envelope, *, signer: SigningKey | None = None, tagger: SigningKey | None = None
) -> None:
    """Note a change of keys or approvers, made for the entry that follows now.

    Args:
        signer: the new release key, where that is what changes: it signs this entry and all that follow.
        tagger: what makes the tags of studies from here on, where the key that did is lost.
    Raises: ReplayRefusal, StateRefusal (made for another place), SignatureRefusal.
    """
    said = KeyChange.said(envelope)
    body = {"number": said.number, "role": said.role, "action": said.action, "name": said.name}
    body |= {"envelopes": [envelope.to_bytes().decode()]} | ({"new_tags": True} if tagger is not None else {})
    book.signer, book.tagger = signer or book.signer, tagger or book.tagger
    book.append("keys_changed", body)


def forgotten_keys(book: Book, envelopes: Sequence[Envelope], *, signer: SigningKey) -> None:
    """Note changes of keys that a ledger put back has forgotten and the coordinator has kept, as this site signed them.

    Args:
        signer: the release key to which they lead.
    Raises: ReplayRefusal, SignatureRefusal: they do not lead from the keys of this ledger.
    """
    said = KeyChange.said(envelopes[-1])
    texts = [envelope.to_bytes().decode() for envelope in envelopes]
    body = {"number": said.number, "role": said.role, "action": said.action, "name": said.name, "envelopes": texts}
    book.signer = signer
    book.append("keys_changed", {**body, "again": True})


def snapshot_marks(book: Book) -> dict[str, str]:
    """The secret under which each study that has begun tells persons apart, by its mark; blank for the first one.

    A study goes on as it began: who has trained, and who was charged, hangs on its pseudonyms.
    """
    begun: dict[str, int] = {}
    changes: list[tuple[int, str]] = []
    for entry in book.entries:
        if entry.kind in ("drawing", "train") and entry.body.get("persons_sha256"):
            begun.setdefault(book.holds[entry.body["release_id"]].study, entry.seq)
        elif entry.kind == "persons_withdrew":
            begun.setdefault(str(entry.body["study"]), entry.seq)
        elif entry.kind == "keys_changed" and entry.body["role"] == "snapshot":
            said = KeyChange.said(Envelope.from_bytes(str(entry.body["envelopes"][-1]).encode()))
            changes.append((entry.seq, said.old))
    # The first change after a study began names, as the old one, the secret under which it began.
    return {study: next((old for at, old in changes if at > seq), "") for study, seq in begun.items()}


def keys_told(book: Book, number: int) -> None:
    """Note that the coordinator has acknowledged the changes of keys up to this number; again changes nothing."""
    if book.membership.acknowledged < number <= len(book.membership.keys):
        book.append("keys_told", {"number": number})


def tell_apart(
    book: Book,
    study: str,
    other: str,
    *,
    name: str,
    reason: str,
    key: SigningKey,
    beside: Mapping[str, SigningKey] | None = None,
) -> None:
    """Note an approver's word, and of those `beside`, that two studies are about different people.

    Args:
        book: the site's ledger.
        study, other: the two.
        reason: how it is known, in that person's words.
        key: of the approver; it signs both entries.
        beside: name -> key of the others who sign them.
    Raises: StateRefusal (said already).
    """
    for word in (study, other):
        require_word(word, "study")
    if study == other or not reason.strip():
        raise ParameterError("two studies must be told apart, with a reason", given="one" if study == other else "none")
    tags = {word: sha256_hex(tag_proof(book.tagger, book.site, word)) for word in (study, other)}
    if {(study, tags[other]), (other, tags[study])} <= book.membership.apart:
        raise StateRefusal("two studies must be told apart once", given="two that are")
    # One entry in each study: neither names the other to whoever is shown one of them.
    for word, them in ((study, other), (other, study)):
        body = {"study": word, "apart": tags[them], "name": name, "reason": reason}
        book.append("persons_apart", body, person=key, beside=beside)


def told_apart(book: Book, studies: Iterable[str]) -> set[tuple[str, str]]:
    """Pairs of these studies whose persons an approver has told apart; all others are taken to be the same people."""
    if not book.membership.apart:
        return set()
    tags = {sha256_hex(tag_proof(book.tagger, book.site, study)): study for study in studies}
    return {(one, tags[tag]) for one, tag in book.membership.apart if tag in tags and one in tags.values()}
