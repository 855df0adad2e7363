"""The steps of a secure sum between coordinator and sites: the level of a site's events, then six messages.

Each order goes to one site. Of the first two steps it holds the site's look, and by which pilots it was found; of the
others a message of `shared.mechanisms.secure_sum.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from shared.base.canonical import canonical_json, is_digest, parse_json
from shared.errors import ReplayRefusal, SchemaRefusal
from shared.mechanisms.secure_sum.messages import (
    KeyOffer,
    MaskedValue,
    Opening,
    SealedShares,
    SumAssent,
    ToldLevel,
)
from shared.mechanisms.secure_sum.sent_look import AnySentLook, read_look
from shared.mechanisms.secure_sum.terms import SumTerms

__all__ = ["LookOrder", "SiteAnswer", "SumStep", "site_answer"]

_LOOK_CAP = 1 << 20
SiteAnswer = ToldLevel | KeyOffer | SealedShares | SumAssent | MaskedValue | Opening


class SumStep(IntEnum):
    """A step, as orders and ledgers number it. Approvers consent before `OFFER`; with `MASK` a site gives its part."""

    LEVEL = 1
    OFFER = 2
    SEAL = 3
    JOIN = 4
    MASK = 5
    AGREE = 6
    OPEN = 7

    @property
    def title(self) -> str:
        """In a few words, for people.

        >>> SumStep(5).title
        'masked numbers'
        """
        return _TITLES[self - 1]


_TITLES = (
    "level of the events",
    "keys",
    "shares of secrets",
    "list of members",
    "masked numbers",
    "list of survivors",
    "opening",
)
_ANSWERS: Mapping[SumStep, type[SiteAnswer]] = {
    SumStep.LEVEL: ToldLevel,
    SumStep.OFFER: KeyOffer,
    SumStep.SEAL: SealedShares,
    SumStep.JOIN: SumAssent,
    SumStep.MASK: MaskedValue,
    SumStep.AGREE: SumAssent,
    SumStep.OPEN: Opening,
}


def site_answer(step: SumStep, place: int, content: bytes, terms: SumTerms) -> SiteAnswer:
    """A site's message in a step. Raises: SchemaRefusal (none of this step, or another site's), ReplayRefusal."""
    found = _ANSWERS[step].from_bytes(content, terms)
    sender = found.site if isinstance(found, SealedShares) else found.sender
    if sender != place:
        raise SchemaRefusal("a site's message must name the site itself", given="another")
    return found


@dataclass(frozen=True, kw_only=True)
class LookOrder:
    """Content of an order in the first two steps.

    Args:
        look: of this site. pilots: place to the SHA-256 of its pilot release, of all from which the looks were made.
    """

    look: AnySentLook
    pilots: Mapping[int, str]

    def to_bytes(self, terms: SumTerms) -> bytes:
        """Canonical JSON, bound to the terms."""
        pilots = {f"{place}": digest for place, digest in sorted(self.pilots.items())}
        return canonical_json({"sum": terms.digest.hex(), "look": self.look.to_canonical(), "pilots": pilots})

    @staticmethod
    def from_bytes(data: bytes, terms: SumTerms) -> LookOrder:
        """The reverse of `to_bytes`. Raises: SchemaRefusal, ReplayRefusal (under other terms)."""
        body = parse_json(data, cap=_LOOK_CAP)
        if not isinstance(body, dict) or body.keys() != {"sum", "look", "pilots"}:
            raise SchemaRefusal("an order with a look must have sum, look and pilots", given="others")
        if body["sum"] != terms.digest.hex():
            raise ReplayRefusal("an order must be of the sum that the plan has", given="one under other terms")
        pilots = body["pilots"]
        places = {f"{place}": place for place in range(len(terms.members))}
        if not isinstance(pilots, dict) or not all(
            place in places and is_digest(digest) for place, digest in pilots.items()
        ):
            raise SchemaRefusal("pilots must be named by their site's place and their SHA-256", given="others")
        found = LookOrder(
            look=read_look(body["look"]),
            pilots={places[place]: digest for place, digest in pilots.items()},
        )
        if found.to_bytes(terms) != data:
            raise SchemaRefusal("an order must be in canonical form", given="other bytes of the same meaning")
        return found
