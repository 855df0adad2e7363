"""Notice to the study lead that a release was declined, with the reason; sent only if the steward ticks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from shared.base.canonical import canonical_json, is_word, parse_json
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import ReplayRefusal
from shared.membership.statements import STATEMENT_CAP, must_be

__all__ = ["DECLINED_TYPE", "REASON_CAP", "DeclinedNotice", "open_notice"]

DECLINED_TYPE = "application/vnd.tributary.declined-notice+json"
REASON_CAP = 500
"""Most letters of a reason: it is a sentence to a person, and no place for a table."""


@dataclass(frozen=True, kw_only=True)
class DeclinedNotice:
    """A person's word on a release that they rejected or sent back.

    Args:
        decision: ``reject`` or ``send_back``.
        reason: in the person's words, as they chose to have them told.
    """

    FORMAT: ClassVar[str] = "tributary-declined/1"

    coordinator: str
    site: str
    study: str
    wave: int
    release_id: str
    decision: str
    reason: str
    approver: str

    def __post_init__(self) -> None:
        words = (self.coordinator, self.site, self.study, self.approver, self.release_id)
        must_be(all(map(is_word, words)), "a notice must name site, study, release and approver by plain words")
        must_be(type(self.wave) is int and self.wave >= 1, "a notice must name a wave")
        must_be(self.decision in ("reject", "send_back"), "a notice must be of a decision that was taken")
        short = isinstance(self.reason, str) and 0 < len(self.reason) <= REASON_CAP and self.reason.isprintable()
        must_be(short, f"a reason must be a line of at most {REASON_CAP} letters")

    def signed(self, key: SigningKey) -> Envelope:
        """Sign it as the approver."""
        return Envelope.sign(DECLINED_TYPE, canonical_json({"format": self.FORMAT, **asdict(self)}), [key])


def open_notice(
    envelope: Envelope, approvers: Mapping[str, PublicKey], *, coordinator: str, site: str
) -> DeclinedNotice:
    """A notice that the approver whom it names has signed. Raises: SignatureRefusal, SchemaRefusal, ReplayRefusal."""
    body = parse_json(envelope.require(DECLINED_TYPE, {k.key_id: k for k in approvers.values()}), cap=STATEMENT_CAP)
    known = {item.name for item in fields(DeclinedNotice)} | {"format"}
    must_be(
        isinstance(body, dict) and body.keys() == known and body["format"] == DeclinedNotice.FORMAT,
        f"a notice must be of format {DeclinedNotice.FORMAT}",
    )
    said = DeclinedNotice(**{name: value for name, value in body.items() if name != "format"})
    own = approvers.get(said.approver)
    envelope.require(DECLINED_TYPE, {} if own is None else {own.key_id: own})
    if (said.coordinator, said.site) != (coordinator, site):
        raise ReplayRefusal("a notice must be of the calling site", given="another's")
    return said
