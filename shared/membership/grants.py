"""Grants: a study lead lets an accepted site into a further study, or takes it out again.

A grant says who is invited, and nothing more: no plan comes into force by it, and nothing is read or drawn before the
site's own approver has approved that study's plan. Each site has one chain of grants, so that one from before an
`ungrant` cannot be shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from shared.base.canonical import is_word
from shared.base.keys import Envelope, PublicKey
from shared.errors import ReplayRefusal
from shared.membership.statements import Chained, ChainPlace, must_be, require_next

__all__ = ["GRANT_TYPE", "Grant", "open_grant"]

GRANT_TYPE = "application/vnd.tributary.grant+json"


@dataclass(frozen=True, kw_only=True)
class Grant(Chained):
    """A lead's word on one site and one study.

    Args:
        coordinator: id of the coordinator whose lead speaks.
        granted: whether the site is let in; else it is taken out.
    """

    TYPE: ClassVar[str] = GRANT_TYPE
    FORMAT: ClassVar[str] = "tributary-grant/1"
    WHAT: ClassVar[str] = "a grant"

    coordinator: str
    site: str
    study: str
    granted: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        words = all(map(is_word, (self.coordinator, self.site, self.study)))
        must_be(words, "a grant must name coordinator, site and study by plain words")
        must_be(isinstance(self.granted, bool), "a grant must say whether the study is granted")


def open_grant(
    envelope: Envelope,
    *,
    last: Grant | ChainPlace | None,
    leads: Mapping[str, PublicKey],
    threshold: int,
    coordinator: str,
    site: str,
) -> Grant:
    """The next grant of a site, if `threshold` of its pinned leads signed it. Nothing is parsed before they did.

    Args:
        last: the one before it, or its place; None for the first.
    Raises: SignatureRefusal; SchemaRefusal; ReplayRefusal (another site's, or not the next one).
    """
    said = Grant.from_bytes(envelope.require(GRANT_TYPE, leads, threshold=threshold))
    if (said.coordinator, said.site) != (coordinator, site):
        raise ReplayRefusal("a grant must be of this site and its coordinator", given="another's")
    require_next(said, last)
    return said
