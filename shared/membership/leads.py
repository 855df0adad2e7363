"""Changes of leads: who may sign plans and grants, from one set of keys to the next.

A change says which keys led before and which lead from then on, and enough of those before have signed it. Whoever has
pinned one set follows the chain from the change that begins there; a chain that does not is not believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shared.base.canonical import is_digest, is_word
from shared.base.keys import Envelope, PublicKey
from shared.errors import Refusal, ReplayRefusal, SignatureRefusal
from shared.membership.statements import Chained, must_be, require_next

__all__ = ["LEAD_CHANGE_TYPE", "LeadChange", "Leads", "follow", "follow_from", "open_lead_change"]

LEAD_CHANGE_TYPE = "application/vnd.tributary.lead-change+json"


@dataclass(frozen=True, kw_only=True)
class Leads:
    """The keys of those who lead, and how many of them must sign."""

    keys: tuple[str, ...]
    threshold: int

    @property
    def trusted(self) -> dict[str, PublicKey]:
        """By handle, as envelopes are verified."""
        return {key.key_id: key for key in map(PublicKey, self.keys)}


@dataclass(frozen=True, kw_only=True)
class LeadChange(Chained):
    """One lead joins, or one leaves.

    Args:
        name: the lead who joins or leaves.
        before, after: public keys of all who lead, sorted.
        threshold_before, threshold: how many of them must sign.
    """

    TYPE: ClassVar[str] = LEAD_CHANGE_TYPE
    FORMAT: ClassVar[str] = "tributary-lead-change/1"
    WHAT: ClassVar[str] = "a change of leads"

    coordinator: str
    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    threshold_before: int
    threshold: int

    def __post_init__(self) -> None:
        super().__post_init__()
        must_be(is_word(self.coordinator) and is_word(self.name), "a change of leads must name them by plain words")
        for keys, threshold in ((self.before, self.threshold_before), (self.after, self.threshold)):
            whole = isinstance(keys, tuple) and all(map(is_digest, keys)) and list(keys) == sorted(set(keys))
            must_be(whole and len(keys) <= 16, "a change of leads must list public keys, sorted, at most 16")
            count = type(threshold) is int and 1 <= threshold <= len(keys)
            must_be(count, "a change of leads must ask for as many signatures as there are leads at most")
        must_be(len(set(self.before) ^ set(self.after)) <= 1, "a change of leads must be of one lead at a time")
        must_be(
            (self.before, self.threshold_before) != (self.after, self.threshold), "a change of leads must change them"
        )

    @property
    def joins(self) -> str:
        """The key that leads from now on; blank where none joins."""
        return next(iter(set(self.after) - set(self.before)), "")

    @property
    def leaves(self) -> str:
        """The key that leads no more; blank where none leaves."""
        return next(iter(set(self.before) - set(self.after)), "")


def open_lead_change(envelope: Envelope, *, leads: Leads, coordinator: str) -> LeadChange:
    """A change that begins at these leads, signed by enough of them, and by the key that joins.

    Raises: SignatureRefusal; SchemaRefusal; ReplayRefusal (it begins at other leads). Nothing is parsed before enough
        of these leads have signed it.
    """
    said = LeadChange.from_bytes(envelope.require(LEAD_CHANGE_TYPE, leads.trusted, threshold=leads.threshold))
    if said.coordinator != coordinator:
        raise ReplayRefusal("a change of leads must be of this coordinator", given="another's")
    if (said.before, said.threshold_before) != (tuple(sorted(leads.keys)), leads.threshold):
        raise ReplayRefusal("a change of leads must begin at those who lead now", given="others")
    if said.joins:
        joins = PublicKey(said.joins)
        if not envelope.verified_by({joins.key_id: joins}):
            raise SignatureRefusal("a lead who joins must show their key", given="no signature of it")
    return said


def follow(envelopes: Sequence[Envelope], *, leads: Leads, coordinator: str) -> list[tuple[LeadChange, Envelope]]:
    """Lead changes that lead on from the pinned `leads`, out of a whole chain; empty where the chain ends at them.

    Raises: SignatureRefusal, SchemaRefusal, ReplayRefusal: the chain is broken after the pinned leads.
    """
    place = next((k for k, envelope in enumerate(envelopes) if _begins(envelope, leads)), None)
    if place is None:
        return []
    said = open_lead_change(envelopes[place], leads=leads, coordinator=coordinator)
    return [(said, envelopes[place]), *follow_from(said, envelopes[place + 1 :], coordinator=coordinator)]


def follow_from(
    last: LeadChange, envelopes: Sequence[Envelope], *, coordinator: str
) -> list[tuple[LeadChange, Envelope]]:
    """Lead changes after `last`, each verified against the one before it. Raises: as `follow`."""
    out: list[tuple[LeadChange, Envelope]] = []
    for envelope in envelopes:
        leads = Leads(keys=last.after, threshold=last.threshold)
        said = open_lead_change(envelope, leads=leads, coordinator=coordinator)
        require_next(said, last)
        out.append((said, envelope))
        last = said
    return out


def _begins(envelope: Envelope, leads: Leads) -> bool:
    try:
        said = LeadChange.said(envelope)
    except Refusal:
        return False
    return (said.before, said.threshold_before) == (tuple(sorted(leads.keys)), leads.threshold)
