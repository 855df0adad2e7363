"""Certificates: their lifetime, their renewal by the site, and trust in the successor of the authority.

A site requests its next certificate at half the life of the current one, so that a site that is away for half a year
misses nothing. The request is signed with the site's release key: a stolen TLS key renews nothing. It names the
certificate of the connection and the ledger head that the coordinator witnessed last, so that it is valid once, at one
position of the ledger.

An authority expires as well. The older one then signs the certificate of the newer one (both have one name, so that TLS
follows the step by itself: RFC 5280, a self-issued certificate), and the coordinator's witness key signs both with the
fingerprint of the older. A site that pins an authority trusts every one that such statements lead to, and no other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec

from shared.base.canonical import canonical_json, is_digest, is_whole, is_word, parse_json, sha256_hex
from shared.base.clock import utc_now
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import CertificateRefusal
from shared.plans.invitation import certificate_fingerprint, certificate_of, no_certificate
from shared.wire.message_limits import must

__all__ = [
    "AUTHORITY_TYPE",
    "BOTH_GOOD_DAYS",
    "CA_DAYS",
    "LATE_ANSWER_TYPE",
    "LATE_TYPE",
    "RENEWAL_TYPE",
    "RENEW_DAYS",
    "SERVER_DAYS",
    "SITE_DAYS",
    "WARNED_DAYS",
    "AuthorityStatement",
    "CertificateLife",
    "LateAnswer",
    "RenewalRequest",
    "authorities_from",
    "request_fingerprint",
    "requested_key",
    "require_current",
    "require_issued_by",
    "serial_of",
    "trusted",
]

CA_DAYS = 3650
SERVER_DAYS = 397
SITE_DAYS = 397
RENEW_DAYS = SITE_DAYS // 2
"""Days left at which the next certificate is asked for: half of its life."""
BOTH_GOOD_DAYS = 7
"""Days for which an older certificate is good after the newer one was first shown."""
WARNED_DAYS = (90, 30, 7, 1)
"""Days left at which everybody who looks is told: long after a renewal should have been."""

RENEWAL_TYPE = "application/vnd.tributary.renewal+json"
LATE_TYPE = "application/vnd.tributary.late-renewal+json"
LATE_ANSWER_TYPE = "application/vnd.tributary.late-answer+json"
AUTHORITY_TYPE = "application/vnd.tributary.authority+json"
_CAP = 32 << 10
_HEX = frozenset("0123456789abcdef")
T = TypeVar("T")


def _read(kind: type[T], data: bytes, *, cap: int = _CAP) -> dict[str, Any]:
    body = parse_json(data, cap=cap)
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    must(isinstance(body, dict) and body.keys() == known, f"a document must have {', '.join(sorted(known))}")
    return dict(body)


def _texts(value: Any, *names: str) -> bool:
    return all(isinstance(getattr(value, name), str) and len(getattr(value, name)) <= 8192 for name in names)


def serial_of(certificate_pem: str) -> str:
    """A certificate's serial number, hexadecimal."""
    return f"{certificate_of(certificate_pem).serial_number:x}"


# -- a site's certificate -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class CertificateLife:
    """Remaining life of a site's or the server's certificate.

    Args:
        ends: its last moment.
        days: whole days left; negative where it is over.
    """

    ends: dt.datetime
    days: int

    @classmethod
    def of(cls, certificate_pem: str, now: dt.datetime) -> CertificateLife:
        """Read it off a certificate. Raises: CertificateRefusal."""
        try:
            ends = certificate_of(certificate_pem).not_valid_after_utc
        except no_certificate():
            raise CertificateRefusal("a certificate must be readable", given="another text") from None
        return cls(ends=ends, days=(ends - now) // dt.timedelta(days=1))

    @property
    def renews(self) -> dt.date:
        """Day from which the next one is asked for."""
        return (self.ends - dt.timedelta(days=RENEW_DAYS)).date()

    @property
    def due(self) -> bool:
        """True from half-life on."""
        return self.days < RENEW_DAYS

    @property
    def state(self) -> Literal["good", "due", "near", "over"]:
        """``good``, ``due`` for renewal, ``near`` its end (so renewal is late), or ``over``: after its end."""
        if self.days < 0:
            return "over"
        return "near" if self.days <= WARNED_DAYS[0] else "due" if self.due else "good"

    @property
    def warned(self) -> int | None:
        """The one of `WARNED_DAYS` that was reached; None before the first."""
        return next((days for days in reversed(WARNED_DAYS) if self.days <= days), None)

    @property
    def facts(self) -> dict[str, Any]:
        """It as JSON tells it."""
        return {"ends": self.ends, "days": self.days, "state": self.state, "warned": self.warned}

    @property
    def words(self) -> str:
        """As people say it."""
        if self.state == "over":
            return f"ended on {self.ends:%Y-%m-%d}"
        left = f"{self.days} day{'' if self.days == 1 else 's'} left"
        if self.state == "near":
            return f"{left}: it ends on {self.ends:%Y-%m-%d}, and should have been renewed since {self.renews}"
        return f"{left}; the next one is {'due since' if self.due else 'asked for from'} {self.renews}"


@dataclass(frozen=True, kw_only=True)
class RenewalRequest:
    """Payload of a request for a site's next certificate, signed by its release key.

    Under `RENEWAL_TYPE` it travels over the certificate that it names; under `LATE_TYPE`, where that one is over, by
    hand, and two people compare its fingerprint.

    Args:
        serial: of the certificate that is to be followed.
        seq, head: where the ledger stood when it was witnessed last; 0 and zeros before the first time.
        csr_pem: request for the key of the next one.
        day: on which it was made (UTC).
    """

    site: str
    serial: str
    seq: int
    head: str
    csr_pem: str
    day: str

    def __post_init__(self) -> None:
        must(_texts(self, "site", "serial", "head", "csr_pem", "day"), "a request's fields must be texts")
        must(is_word(self.site), "a request's site must be a plain word")
        must(0 < len(self.serial) <= 40 and set(self.serial) <= _HEX, "a request's serial must be hexadecimal")
        must(is_whole(self.seq) and 0 <= self.seq < 1 << 53, "a request's seq must be a count")
        must(is_digest(self.head), "a request's head must be a SHA-256")

    def signed(self, key: SigningKey, *, late: bool = False) -> Envelope:
        """This request, signed."""
        return Envelope.sign(LATE_TYPE if late else RENEWAL_TYPE, canonical_json(asdict(self)), [key])

    @classmethod
    def from_bytes(cls, data: bytes) -> RenewalRequest:
        """Read a verified payload. Raises: SchemaRefusal."""
        return cls(**_read(cls, data))


def request_fingerprint(envelope: Envelope) -> str:
    """Fingerprint of a signed request, in groups of four, for two people to compare aloud."""
    digest = sha256_hex(envelope.to_bytes())[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


@dataclass(frozen=True, kw_only=True)
class LateAnswer:
    """Payload of what a site is given by hand (`LATE_ANSWER_TYPE`), signed by the coordinator's witness key.

    Args:
        request: SHA-256 of the request that it answers.
        statements: every change of the authority, as signed.
    """

    site: str
    request: str
    certificate_pem: str
    statements: tuple[str, ...]

    def __post_init__(self) -> None:
        must(_texts(self, "site", "request", "certificate_pem"), "an answer's fields must be texts")
        must(all(isinstance(one, str) for one in self.statements), "an answer's statements must be texts")

    def signed(self, key: SigningKey) -> Envelope:
        """This answer, signed."""
        body = {**asdict(self), "statements": list(self.statements)}
        return Envelope.sign(LATE_ANSWER_TYPE, canonical_json(body), [key])

    @classmethod
    def from_bytes(cls, data: bytes) -> LateAnswer:
        """Read a verified payload. Raises: SchemaRefusal."""
        body = _read(cls, data, cap=1 << 20)
        must(isinstance(body["statements"], list), "an answer's statements must be a list")
        return cls(**{**body, "statements": tuple(body["statements"])})


def requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """The key in a certificate request that is signed by that key. Raises: CertificateRefusal."""
    from cryptography import x509

    rule = "a certificate request must be signed by its own ECDSA P-256 key"
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        valid = request.is_signature_valid
        public = request.public_key()
    except no_certificate():
        raise CertificateRefusal(rule, given="another text") from None
    if not valid or not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise CertificateRefusal(rule, given="another key or signature")
    return public


# -- the authority ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class AuthorityStatement:
    """Payload of the word that one authority follows another (`AUTHORITY_TYPE`), signed by the witness key.

    Args:
        before: fingerprint of the older authority's certificate.
        ca_pem: the newer one's, signed by itself.
        cross_pem: the same name and key, signed by the older one: its word, and what TLS follows.
        day: on which it was made (UTC).
    """

    coordinator: str
    before: str
    ca_pem: str
    cross_pem: str
    day: str

    def __post_init__(self) -> None:
        must(_texts(self, *(item.name for item in fields(self))), "a statement's fields must be texts")

    def signed(self, key: SigningKey) -> Envelope:
        """This statement, signed."""
        return Envelope.sign(AUTHORITY_TYPE, canonical_json(asdict(self)), [key])

    @classmethod
    def opened(cls, data: bytes, witness: PublicKey) -> AuthorityStatement:
        """The statement in an envelope. Raises: SignatureRefusal (not the coordinator's), SchemaRefusal."""
        envelope = Envelope.from_bytes(data)
        return cls(**_read(cls, envelope.require(AUTHORITY_TYPE, {witness.key_id: witness})))

    def require_signed_by(self, older_pem: str) -> None:
        """Raises: CertificateRefusal, unless the older authority has signed this very newer one."""
        from cryptography import x509

        rule = "a new authority must be signed by the one that is pinned"
        try:
            older = certificate_of(older_pem)
            newer = certificate_of(self.ca_pem)
            cross = certificate_of(self.cross_pem)
            newer.verify_directly_issued_by(newer)
            cross.verify_directly_issued_by(older)
            vouched = all(
                one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for one in (newer, cross)
            )
        except no_certificate():
            vouched = False
        if not vouched or (cross.public_key(), cross.subject) != (newer.public_key(), newer.subject):
            raise CertificateRefusal(
                rule,
                given="one that it has not signed",
                next_step="Nothing was changed: the pinned one stays. Call the study lead.",
            )


def authorities_from(ca_pem: str, statements: Sequence[bytes], witness: PublicKey) -> tuple[str, ...]:
    """The pinned authority and every one that it leads to, oldest first.

    Args:
        ca_pem: the pinned one.
        statements: what the coordinator offers; those of before the pinned one are passed over.
    Raises: SignatureRefusal, SchemaRefusal; CertificateRefusal, where one is offered that the pinned one leads nowhere
        near, or that it has not signed.
    """
    said = [AuthorityStatement.opened(data, witness) for data in statements]
    chain = [ca_pem]
    while True:
        here = certificate_fingerprint(chain[-1])
        step = next((one for one in said if one.before == here), None)
        if step is None:
            break
        step.require_signed_by(chain[-1])
        must(step.ca_pem not in chain, "authorities must follow one another")
        chain.append(step.ca_pem)
    known = {certificate_fingerprint(pem) for pem in chain}
    earlier = {certificate_fingerprint(ca_pem)}
    for one in reversed(said):  # what came before the pinned one leads to it
        if certificate_fingerprint(one.ca_pem) in earlier:
            earlier.add(one.before)
    if any(not {certificate_fingerprint(one.ca_pem), one.before} & (known | earlier) for one in said):
        raise CertificateRefusal(
            "a new authority must be signed by the one that is pinned",
            given="one that the pinned one does not lead to",
            next_step="Nothing was changed: the pinned one stays. Call the study lead.",
        )
    return tuple(chain)


def trusted(chain: Sequence[str], now: dt.datetime) -> str:
    """Those of a line of authorities that have not ended, as one PEM text; the newest is always there."""
    lasting = [pem for pem in chain[:-1] if certificate_of(pem).not_valid_after_utc > now]
    return "".join(pem if pem.endswith("\n") else pem + "\n" for pem in [*lasting, chain[-1]])


def require_issued_by(certificate_pem: str, chain: Sequence[str]) -> None:
    """Raises: CertificateRefusal, unless one of the authorities has issued the certificate."""
    try:
        certificate = certificate_of(certificate_pem)
    except no_certificate():
        raise CertificateRefusal("a certificate must be readable", given="another text") from None
    for pem in chain:
        try:
            certificate.verify_directly_issued_by(certificate_of(pem))
        except no_certificate():
            continue
        return
    raise CertificateRefusal(
        "a certificate must be of a pinned authority", given="another's", next_step="Call the study lead."
    )


def require_current(pem: str, whose: str) -> None:
    """Refuse a certificate, as PEM text, that is not valid now; `whose` names it. Raises: CertificateRefusal."""
    try:
        certificate = certificate_of(pem)
    except no_certificate():
        raise CertificateRefusal(f"{whose} must be readable", given="another text") from None
    now = utc_now()
    if now > certificate.not_valid_after_utc:
        raise CertificateRefusal(
            f"{whose} must not be expired",
            given=f"last day {certificate.not_valid_after_utc.date()}",
            next_step="Set the clock, or run site-agent renew --late.",
        )
    if now < certificate.not_valid_before_utc:
        raise CertificateRefusal(
            f"{whose} must be valid already",
            given=f"first day {certificate.not_valid_before_utc.date()}",
            next_step="Set the clock.",
        )
