"""Protocol versions that each side speaks, sent in every call's metadata, which older software ignores.

Within a version fields and messages are only added, so that both sides may be updated in either order; a side that
sends no versions (0.2.0) speaks version 1. Where the two ranges do not overlap, the refusal names the side to update.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import NetworkRefusal

__all__ = ["PROTOCOL_KEY", "SPOKEN", "SpokenVersions", "require_common"]

PROTOCOL_KEY = "tributary-protocol"


@dataclass(frozen=True)
class SpokenVersions:
    """A range of versions of the protocol.

    >>> SpokenVersions(1, 3).text
    '1-3'
    """

    oldest: int
    newest: int

    @property
    def text(self) -> str:
        """As it stands in the metadata."""
        return f"{self.oldest}-{self.newest}"

    @classmethod
    def of(cls, metadata: Iterable[tuple[str, str | bytes]]) -> SpokenVersions:
        """Versions that the other side sent; version 1 where it sent none that can be read."""
        said = next((value for key, value in metadata if key == PROTOCOL_KEY), "")
        found = re.fullmatch(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})", said if isinstance(said, str) else "")
        return cls(int(found[1]), int(found[2])) if found else cls(1, 1)


SPOKEN = SpokenVersions(1, 1)
"""Versions that this software speaks. Raise `newest` for a change that breaks older software, `oldest` to drop one."""


def require_common(metadata: Iterable[tuple[str, str | bytes]], here: SpokenVersions) -> None:
    """Refuse a side with which no version is in common. Raises: NetworkRefusal, naming the side to update."""
    there = SpokenVersions.of(metadata)
    if there.newest < here.oldest or here.newest < there.oldest:
        older = "the other side" if there.newest < here.oldest else "this side"
        raise NetworkRefusal(
            "both sides must speak a version of the protocol in common",
            given=f"{here.text} here, {there.text} there",
            next_step=f"Update {older}: install the newer version in its place, then start it again.",
        )
