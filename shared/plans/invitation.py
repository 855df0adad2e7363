"""The invitation: one file that a hospital receives out of band, and the root of all its trust.

It pins the coordinator's certificate authority and the leads' public keys, and holds a single-use token and a
short-lived *bootstrap* certificate that may ask to join and nothing else (decision 0001). Whoever holds the file can
ask to join in the site's name, so it is kept like a password; the lead's comparison of fingerprints decides.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

from shared.base.canonical import canonical_json, closed, is_whole, is_word, parse_json
from shared.base.keys import PublicKey
from shared.errors import CertificateRefusal, SchemaRefusal, TokenRefusal

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "Invitation",
    "certificate_fingerprint",
    "certificate_of",
    "no_certificate",
    "plain_word_of",
]

FORMAT = "tributary-invitation/1"
CHAINS = ("leads_since", "grants_since")
"""Left out where the chain has not begun: agents of before know no such key."""


def certificate_of(pem: str) -> x509.Certificate:
    """The certificate in a PEM text. Raises: those of `no_certificate`."""
    from cryptography import x509  # only here: most commands read none

    return x509.load_pem_x509_certificate(pem.encode())


def no_certificate() -> tuple[type[Exception], ...]:
    """Exceptions that `cryptography` raises while it reads an untrusted certificate or certificate request."""
    from cryptography import x509

    return (
        *(ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion),
        *(x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType),
    )


def certificate_fingerprint(pem: str) -> str:
    """SHA-256 of a certificate (its DER form) in groups of four digits, for two people to compare aloud.

    Raises: CertificateRefusal, when `pem` is not one certificate.
    """
    try:
        digest = certificate_of(pem).fingerprint(hashes.SHA256()).hex()
    except no_certificate():
        raise CertificateRefusal("the certificate must be readable", given="another text") from None
    return " ".join(digest[i : i + 4] for i in range(0, 64, 4))


def plain_word_of(name: str) -> str:
    """A plain word made of a name, for a proposal; ``north`` where nothing of it is left.

    >>> plain_word_of("Dr. Eva Müller"), plain_word_of("St. Mary's Hospital")
    ('dr-eva-mueller', 'st-marys-hospital')
    """
    text = name.lower()
    for letter, spelled in (("ä", "ae"), ("ö", "oe"), ("ü", "ue"), ("ß", "ss"), ("'", ""), ("’", "")):
        text = text.replace(letter, spelled)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "-".join(filter(None, re.split(r"[^a-z0-9_]+", text)))[:64] or "north"


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """Everything a site needs in order to ask to join.

    Args:
        coordinator: id of the coordinator, the only recipient that plans may name.
        address: ``host:port`` to dial; the one outbound rule of the firewall.
        server_name: name that must stand in the server's certificate.
        ca_pem: certificate of the coordinator's authority.
        ca_fingerprint: its fingerprint; must agree with `ca_pem`.
        site: the site's id.
        studies: studies the site is invited to.
        token: single-use, bound to the site; the coordinator keeps only its SHA-256.
        expires: last day on which the token may be used (UTC).
        leads: public keys that sign plans.
        threshold: lead signatures that a plan must carry.
        witness: public key with which the coordinator signs what it acknowledges.
        bootstrap_cert_pem: certificate that may call Enrol and nothing else.
        bootstrap_key_pem: its private key.
        leads_since: where the chain of changes of leads stood (`shared.membership.statements.ChainPlace`); blank before
            the first: whoever joins follows what comes after it, and nothing that led here before.
        grants_since: where the site's chain of grants stood; `studies` already holds what those before it granted.
    Raises: SchemaRefusal or CertificateRefusal, at construction.
    """

    coordinator: str
    address: str
    server_name: str
    ca_pem: str
    ca_fingerprint: str
    site: str
    studies: tuple[str, ...]
    token: str = field(repr=False)
    expires: dt.date
    leads: tuple[PublicKey, ...]
    threshold: int = 1
    witness: PublicKey
    bootstrap_cert_pem: str = field(repr=False)
    bootstrap_key_pem: str = field(repr=False)
    leads_since: str = ""
    grants_since: str = ""

    def __post_init__(self) -> None:
        def must(holds: bool, rule: str) -> None:
            if not holds:
                raise SchemaRefusal(rule, given="another", next_step="Ask the study lead for a new invitation.")

        for name in (self.coordinator, self.site, *self.studies):
            must(is_word(name), "coordinator, site and studies must be plain words (letters, digits, - and _)")
        must(bool(self.studies), "an invitation must name at least one study")
        must(len(self.token) >= 32, "an invitation's token must have at least 32 characters")
        must(1 <= self.threshold <= len(self.leads), "an invitation must name at least `threshold` leads")
        must(self.ca_fingerprint == certificate_fingerprint(self.ca_pem), "the fingerprint must be its certificate's")

    @property
    def token_sha256(self) -> str:
        """SHA-256 of the token: all that the coordinator keeps of it."""
        return hashlib.sha256(self.token.encode()).hexdigest()

    @property
    def trusted(self) -> Mapping[str, PublicKey]:
        """The leads' keys by their handles, as `shared.plans.plan.open_plan` takes them."""
        return {key.key_id: key for key in self.leads}

    def require_current(self, today: dt.date) -> None:
        """Refuse an invitation whose last day has passed. Raises: TokenRefusal."""
        if today > self.expires:
            raise TokenRefusal(
                "an invitation must not be expired",
                given=f"last day {self.expires}",
                next_step="Ask the study lead for a new one (coordinator invite).",
            )

    def to_bytes(self) -> bytes:
        """Canonical JSON. It holds secrets: write it with `shared.base.keys.write_private`."""
        body: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        body |= {"expires": self.expires.isoformat(), "leads": [key.hex for key in self.leads]}
        body |= {"witness": self.witness.hex}
        body = {name: value for name, value in body.items() if value or name not in CHAINS}
        return canonical_json({"format": FORMAT, **body, "studies": list(self.studies)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Invitation:
        """Read an invitation file. Raises: SchemaRefusal, CertificateRefusal."""
        try:
            body = parse_json(data, cap=64 << 10)
        except SchemaRefusal:
            body = None
        known = {item.name for item in fields(cls)} | {"format"}
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise SchemaRefusal(
                "an invitation must be the file that coordinator invite wrote",
                given="another file",
                next_step="Name that file with --invitation; the study lead hands it over (NAME.invitation).",
            )
        closed(body, known, where="an invitation", refusal=SchemaRefusal)
        body = {**dict.fromkeys(CHAINS, ""), **body}
        texts = known - {"threshold", "studies", "leads"}
        lists = all(
            isinstance(body.get(name), list) and all(isinstance(item, str) for item in body[name])
            for name in ("studies", "leads")
        )
        whole = is_whole(body.get("threshold"))
        if not (lists and whole and all(isinstance(body.get(name), str) for name in texts)):
            raise SchemaRefusal("an invitation must have every field, each of its type", given="another form")
        try:
            expires = dt.date.fromisoformat(body["expires"])
        except ValueError:
            raise SchemaRefusal("an invitation's expiry must be an ISO date") from None
        del body["format"]
        return cls(
            **{
                **body,
                "expires": expires,
                "studies": tuple(body["studies"]),
                "leads": tuple(PublicKey(key) for key in body["leads"]),
                "witness": PublicKey(body["witness"]),
            }
        )
