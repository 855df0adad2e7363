"""The statement that people sign: a bundle's SHA-256, and every id of study, plan, wave, site, release and recipient.

The agent and the approvers sign it; a statement for one place is worth nothing in another.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shared.base.canonical import canonical_json
from shared.base.keys import Envelope, SigningKey
from shared.errors import SchemaRefusal
from shared.releases.receipt import DIGEST, WORD, flat_document

__all__ = ["AGENT", "STATEMENT_TYPE", "Statement"]

STATEMENT_TYPE = "application/vnd.tributary.release+json"
AGENT = "agent"
"""Author of a release that no person asked for; no approver can have this name."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Statement that agent and approvers sign: hash, sender, recipient and purpose of one bundle.

    `author` is the approver who had the release made, or `AGENT` where the calendar did.
    """

    study: str
    plan_hash: str
    plan_version: int
    wave: int
    site: str
    release_id: str
    recipient: str
    bundle_sha256: str
    bundle_bytes: int
    receipt_sha256: str
    ledger_head: str
    author: str = AGENT

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Read canonical JSON. Raises: SchemaRefusal."""
        statement = cls(**flat_document(data, cls, "a release statement"))
        digests = (statement.plan_hash, statement.bundle_sha256, statement.receipt_sha256, statement.ledger_head)
        words = (statement.study, statement.site, statement.release_id, statement.recipient, statement.author)
        # Digests and ids become parts of file names on the other side.
        if not all(map(DIGEST.fullmatch, digests)) or not all(map(WORD.fullmatch, words)):
            raise SchemaRefusal("a release statement must have plain ids and digests of 64 hexadecimal digits")
        if not (0 <= statement.wave < 1 << 31 and 0 <= statement.plan_version < 1 << 31):
            raise SchemaRefusal("a release statement's wave and version must be counts", given="other numbers")
        if statement.to_bytes() != data:
            raise SchemaRefusal("a release statement must be in canonical form")
        return statement

    def sign(self, keys: list[SigningKey]) -> Envelope:
        """Sign as the agent (and approvers, see `Envelope.also_signed`)."""
        return Envelope.sign(STATEMENT_TYPE, self.to_bytes(), keys)
