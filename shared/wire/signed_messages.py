"""Signed documents other than releases: ledger heads, requests to join, withdrawals; and countersigned replies.

They travel as signed JSON documents inside a message, so that they can be stored and verified as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from shared.base.canonical import CanonicalForm, canonical_json, closed, is_digest, is_whole, is_word, parse_json
from shared.base.chain import LINKS_CAP, extend_head
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import SchemaRefusal, SignatureRefusal, TooLarge
from shared.wire.message_limits import must

if TYPE_CHECKING:
    from shared.wire.site_messages import Acceptance, AnchorReceipt, Withdrawn

__all__ = [
    "ANCHOR_TYPE",
    "ENROLMENT_TYPE",
    "REASONS",
    "WITHDRAWAL_TYPE",
    "AnchorHead",
    "EnrolmentRequest",
    "Reply",
    "Withdrawal",
    "countersigned",
    "require_countersigned",
]

ANCHOR_TYPE = "application/vnd.tributary.anchor+json"
ENROLMENT_TYPE = "application/vnd.tributary.enrolment+json"
WITHDRAWAL_TYPE = "application/vnd.tributary.withdrawal+json"
REASONS = ("consent", "error", "policy", "other")


# -- what is signed ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class AnchorHead:
    """Payload of an anchor (`ANCHOR_TYPE`): where the site's ledger stands, and the proof that it got there.

    Args:
        seq: number of the last entry.
        after: the last entry that the site knows to be witnessed; 0 for none.
        links: of the entries `after` + 1 to `seq` (`shared.base.chain`).
    """

    site: str
    seq: int
    head: str
    after: int
    links: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for value in (self.seq, self.after):
            must(is_whole(value), "an anchor's numbers must be whole")
        must(0 <= self.after <= self.seq < 1 << 53, "an anchor's seq must be a count, and not before what it is after")
        must(isinstance(self.head, str) and is_digest(self.head), "an anchor's head must be a SHA-256")
        must(isinstance(self.site, str) and is_word(self.site), "an anchor's site must be a plain word")
        if self.seq - self.after > LINKS_CAP:
            raise TooLarge(
                f"a ledger must grow by at most {LINKS_CAP} entries between two anchors",
                given=f"{self.seq - self.after}",
                next_step="Call the study lead: the site's ledger begins anew under another name.",
            )
        must(len(self.links) == self.seq - self.after, "an anchor must have one link per entry since the last one")
        must(all(isinstance(link, str) and is_digest(link) for link in self.links), "a link must be a SHA-256")

    def extends(self, seq: int, head: str) -> bool:
        """True if this ledger continues entry `seq` with the hash `head`."""
        return self.after <= seq < self.seq and extend_head(head, self.links[seq - self.after :]) == self.head

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        body = {"site": self.site, "seq": self.seq, "head": self.head, "after": self.after, "links": list(self.links)}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> AnchorHead:
        """Read a verified payload. Raises: SchemaRefusal, TooLarge."""
        body = parse_json(data)
        known = {"site", "seq", "head", "after", "links"}
        must(isinstance(body, dict) and body.keys() == known, "an anchor must have site, seq, head, after and links")
        must(isinstance(body["links"], list), "an anchor's links must be a list")
        return cls(**{**body, "links": tuple(body["links"])})


@dataclass(frozen=True, kw_only=True)
class EnrolmentRequest:
    """Payload of an enrolment (`ENROLMENT_TYPE`), signed by `release_key` itself.

    The signature shows that whoever sends it holds the release key, so the one fingerprint that the lead compares
    vouches for the certificate request and for the approvers' keys too.
    """

    site: str
    csr_pem: str
    release_key: PublicKey
    approvers: Mapping[str, PublicKey]

    def __post_init__(self) -> None:
        must(is_word(self.site), "a site must be a plain word")
        must(1 <= len(self.approvers) <= 16, "an enrolment must name 1 to 16 approvers")
        must(all(0 < len(name) <= 64 and name.isprintable() for name in self.approvers), "approvers must have names")
        keys = [self.release_key.hex, *(key.hex for key in self.approvers.values())]
        must(len(set(keys)) == len(keys), "the release key and the approvers' keys must all differ")

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return {
            "site": self.site,
            "csr_pem": self.csr_pem,
            "release_key": self.release_key.hex,
            "approvers": {name: key.hex for name, key in self.approvers.items()},
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> EnrolmentRequest:
        """Read a payload. Raises: SchemaRefusal."""
        body = parse_json(data, cap=64 << 10)
        must(isinstance(body, dict), "an enrolment must be a JSON object")
        known = {"site", "csr_pem", "release_key", "approvers"}
        closed(body, known, where="an enrolment", refusal=SchemaRefusal)
        texts = [body.get("site"), body.get("csr_pem"), body.get("release_key")]
        named = body.get("approvers")
        must(all(isinstance(text, str) for text in texts) and isinstance(named, dict), "an enrolment must be complete")
        must(all(isinstance(key, str) for key in named.values()), "an approver's key must be text")
        return cls(
            site=body["site"],
            csr_pem=body["csr_pem"],
            release_key=PublicKey(body["release_key"]),
            approvers={name: PublicKey(key) for name, key in named.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Withdrawal(CanonicalForm):
    """Payload of a withdrawal (`WITHDRAWAL_TYPE`), signed by the site's release key and one of its approvers.

    Args:
        reason_code: one of `REASONS`; the reason itself stays at the site.
    """

    WHAT = "a withdrawal"
    CAP = 64 << 10

    study: str
    site: str
    wave: int
    release_id: str
    bundle_sha256: str
    reason_code: str

    def __post_init__(self) -> None:
        texts = (self.study, self.site, self.release_id, self.bundle_sha256, self.reason_code)
        must(all(isinstance(text, str) for text in texts), "a withdrawal's ids must be text")
        must(all(map(is_word, texts[:3])), "study, site and release id must be plain words")
        must(is_digest(self.bundle_sha256), "a withdrawal must name its bundle's SHA-256")
        # A site's part in a training has no wave; its withdrawal stays at the site.
        must(type(self.wave) is int and 0 <= self.wave < 1 << 31, "a withdrawal's wave must be a count")
        must(self.reason_code in REASONS, f"a withdrawal's reason must be one of {', '.join(REASONS)}")

    def sign(self, keys: list[SigningKey]) -> Envelope:
        """Sign as the agent (and an approver, see `Envelope.also_signed`)."""
        return Envelope.sign(WITHDRAWAL_TYPE, self.to_bytes(), keys)


# -- what the coordinator signs -------------------------------------------------------------------------------------
Reply = TypeVar("Reply", "AnchorReceipt", "Acceptance", "Withdrawn")


def _countersigned_bytes(reply: AnchorReceipt | Acceptance | Withdrawn, site: str) -> bytes:
    from shared.wire.site_messages import Acceptance, AnchorReceipt, Withdrawn

    kind = {AnchorReceipt: "anchor-receipt", Acceptance: "acceptance", Withdrawn: "withdrawn"}[type(reply)]
    body = {item.name: getattr(reply, item.name) for item in fields(reply) if item.name != "signature"}
    return Envelope.encoding(f"application/vnd.tributary.{kind}+json", canonical_json({**body, "site": site}))


def countersigned(reply: Reply, key: SigningKey, site: str) -> Reply:
    """The reply with the coordinator's signature, for one site: what it cannot deny later.

    >>> from shared.wire.site_messages import AnchorReceipt
    >>> key, receipt = SigningKey.generate(), AnchorReceipt(seq=3, head="a" * 64, index=0, log_root="b" * 64)
    >>> require_countersigned(countersigned(receipt, key, "north"), key.public, "north")
    """
    return replace(reply, signature=key.sign(_countersigned_bytes(reply, site)))


def require_countersigned(reply: AnchorReceipt | Acceptance | Withdrawn, key: PublicKey, site: str) -> None:
    """Refuse a reply that the pinned coordinator's key did not sign for this site. Raises: SignatureRefusal."""
    if not key.verifies(reply.signature, _countersigned_bytes(reply, site)):
        raise SignatureRefusal(
            "the coordinator's answer must be signed by the key in the invitation",
            given="none or another signature",
            next_step="Call the study lead before anything else is sent.",
        )
