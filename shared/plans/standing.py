"""Standing approval: one approver's signature, given once and in advance, for later releases within limits.

The document names what it is good for: one study of one site, one plan by its hash, one agent version, the dearest
release, the last day, and the release whose size the approver saw. It is signed with the approver's own key when it is
made; the agent cannot open that key, so that a release approved by it carries the agent's signature, and this envelope
beside it. Site and coordinator hold it against the same `broken_limit`, each with what it can know.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from shared.base.canonical import CanonicalForm, is_day, is_digest
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import SchemaRefusal
from shared.privacy.stated import shown_epsilon

__all__ = [
    "NO_RELEASE",
    "REVOCATION_TYPE",
    "SIZE_CHANGE",
    "STANDING_CAP",
    "STANDING_TYPE",
    "Revocation",
    "Standing",
    "broken_limit",
    "open_revocation",
    "open_standing",
]

STANDING_TYPE = "application/vnd.tributary.standing+json"
REVOCATION_TYPE = "application/vnd.tributary.standing-revocation+json"
STANDING_CAP = 16 << 10
NO_RELEASE = "none"
"""In the place of a release, where the plan wants its releases approved before they are drawn: there is no earlier one
that somebody must have seen."""
SIZE_CHANGE = 0.2
"""A release whose n differs from the last one that a person approved by this share or more is for a person."""


@dataclass(frozen=True, kw_only=True)
class Standing(CanonicalForm):
    """Standing approval: signed by an approver in advance, for later releases within limits.

    Args:
        max_epsilon: ε of the dearest single release that it is good for.
        until: last day, ISO date, UTC.
        n: rows of `release_id`, the last approved release when it was made: a first one always needs a person.
        number: 1, 2, …: the how manieth of the study at its site, so that one made again is another one.
        day: ISO date, UTC, for people.
    """

    WHAT = "a standing approval"
    CAP = STANDING_CAP

    study: str
    site: str
    plan_hash: str
    agent_version: str
    max_epsilon: float
    until: str
    n: int
    release_id: str
    approver: str
    number: int
    day: str

    def __post_init__(self) -> None:
        texts = [getattr(self, item.name) for item in fields(self) if item.type == "str"]
        if not all(isinstance(text, str) and 0 < len(text) <= 128 for text in texts):
            raise SchemaRefusal("a standing approval's names, digests and days must be short text")
        if not all(type(count) is int and count >= 1 for count in (self.n, self.number)):
            raise SchemaRefusal("a standing approval's n and number must be counts")
        if not (isinstance(self.max_epsilon, float) and math.isfinite(self.max_epsilon) and self.max_epsilon > 0):
            raise SchemaRefusal("a standing approval's largest ε must be a positive number")
        if not (is_day(self.until) and is_day(self.day)):
            raise SchemaRefusal("a standing approval's days must be ISO dates")

    def sign(self, key: SigningKey) -> Envelope:
        """Sign as the approver it names."""
        return Envelope.sign(STANDING_TYPE, self.to_bytes(), [key])


def open_standing(envelope: Envelope, approvers: Mapping[str, PublicKey]) -> Standing:
    """The standing approval inside an envelope that the approver whom it names has signed.

    Args:
        approvers: pinned keys by name.
    Raises: SignatureRefusal; SchemaRefusal. Nothing is parsed before a pinned key's signature holds.
    """
    standing = Standing.from_bytes(envelope.require(STANDING_TYPE, {key.key_id: key for key in approvers.values()}))
    own = approvers.get(standing.approver)
    envelope.require(STANDING_TYPE, {} if own is None else {own.key_id: own})
    return standing


@dataclass(frozen=True, kw_only=True)
class Revocation(CanonicalForm):
    """Revocation of a standing approval, signed by its approver and delivered to the coordinator.

    Args:
        standing: digest of the document.
        approver: who ends it; any approver of the site may.
    """

    WHAT = "a revocation"
    CAP = STANDING_CAP

    study: str
    site: str
    standing: str
    approver: str

    def __post_init__(self) -> None:
        texts = list(asdict(self).values())
        if not all(isinstance(text, str) and 0 < len(text) <= 128 for text in texts):
            raise SchemaRefusal("a revocation's names and digest must be short text")
        if not is_digest(self.standing):
            raise SchemaRefusal("a revocation must name a standing approval by its SHA-256")

    def sign(self, key: SigningKey) -> Envelope:
        """Sign as the approver it names."""
        return Envelope.sign(REVOCATION_TYPE, self.to_bytes(), [key])


def open_revocation(envelope: Envelope, approvers: Mapping[str, PublicKey]) -> Revocation:
    """The revocation inside an envelope that the approver whom it names has signed. Raises: as `open_standing`."""
    said = Revocation.from_bytes(envelope.require(REVOCATION_TYPE, {key.key_id: key for key in approvers.values()}))
    own = approvers.get(said.approver)
    envelope.require(REVOCATION_TYPE, {} if own is None else {own.key_id: own})
    return said


def broken_limit(
    standing: Standing, *, plan_hash: str, today: dt.date, epsilon: float | None, n: int | None, last_n: int | None
) -> str:
    """The first limit that a release does not keep, in words; blank when it keeps all.

    Args:
        epsilon: of this release; infinite where it has no formal guarantee, None where it is not known yet.
        n: rows of this release; None where they are not known yet.
        last_n: rows of the site's last release of the study that a person approved with their own signature; None
            where there is none.

    >>> made = Standing(
    ...     study="heart", site="north", plan_hash="ab", agent_version="1", max_epsilon=2.0, until="2026-03-01", n=100,
    ...     release_id="r1", approver="dr-lind", number=1, day="2026-01-05",
    ... )
    >>> within = {"plan_hash": "ab", "today": dt.date(2026, 3, 1), "epsilon": 2.0, "n": 119, "last_n": 100}
    >>> broken_limit(made, **within)
    ''
    >>> broken_limit(made, **{**within, "n": 120})
    'n must change by less than 20 % (120 rows after 100)'
    """
    if plan_hash != standing.plan_hash:
        return "the plan must be the one it was signed for"
    if today > dt.date.fromisoformat(standing.until):
        return f"it must not have ended (it did on {standing.until})"
    if epsilon is not None and not epsilon <= standing.max_epsilon:
        costs = f"costs ε = {shown_epsilon(epsilon)}" if epsilon < math.inf else "has no price"
        return f"one release must cost at most ε = {shown_epsilon(standing.max_epsilon)} (this one {costs})"
    if n is not None:
        if last_n is None:
            return "an earlier release must have been approved by a person"
        if not 5 * abs(n - last_n) < last_n:  # whole numbers: exactly 20 % is too much
            return f"n must change by less than {100 * SIZE_CHANGE:g} % ({n} rows after {last_n})"
    return ""
