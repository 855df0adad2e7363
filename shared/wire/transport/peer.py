"""Caller's identity, by its certificate or token, and the state of one call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from shared.errors import (
    CertificateRefusal,
    Refusal,
)
from shared.plans.invitation import no_certificate

__all__ = ["Call", "Peer", "RetryLater", "peer_of"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Authenticated identity of the other end, by its certificate or token.

    Args:
        role: ``site`` or ``enrol``; of an analyst the token's role.
        site: the site's id; an analyst's name.
        serial: the certificate's serial number, hexadecimal; the token's id.
        certificate_pem: a site's certificate, as it was shown.
    """

    role: str
    site: str
    serial: str
    certificate_pem: str = field(default="", repr=False)


def peer_of(certificate_pem: bytes, now: dt.datetime) -> Peer:
    """Read the peer's role from its certificate. Raises: CertificateRefusal."""
    peer, begins, ends = _named(certificate_pem)
    # TLS checked the dates when the connection was made; it may have lived on.
    if not begins <= now <= ends:
        raise CertificateRefusal(
            "a certificate must be valid now",
            given="an expired one",
            next_step="Set the clock, or renew it late (site-agent renew --late).",
        )
    return peer


@lru_cache(1024)  # of each site's, which comes with each of its calls; a refusal is read anew
def _named(certificate_pem: bytes) -> tuple[Peer, dt.datetime, dt.datetime]:
    """The peer that a certificate names, and from when until when it is good. Raises: CertificateRefusal."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except no_certificate():
        raise CertificateRefusal("a client's certificate must name its site", given="none") from None
    parts = uris[0].split(":") if len(uris) == 1 else []
    if len(parts) != 3 or parts[0] != "tributary" or parts[1] not in ("site", "enrol"):
        raise CertificateRefusal("a client's certificate must name one site", given="another name")
    pem = certificate_pem.decode() if parts[1] == "site" else ""
    peer = Peer(role=parts[1], site=parts[2], serial=f"{certificate.serial_number:x}", certificate_pem=pem)
    return peer, certificate.not_valid_before_utc, certificate.not_valid_after_utc


@dataclass(kw_only=True)
class Call:
    """One call in progress: the caller, and its subject (a digest, set by the handler, for the log's line).

    `left` returns True if the caller has gone or the deadline has passed: further work on the call is wasted.
    `begun` is called when work that waited for a free place starts.
    """

    peer: Peer
    digest: str = ""
    left: Callable[[], bool] = lambda: False
    begun: Callable[[], None] = lambda: None


class RetryLater(Exception):
    """Raised by a handler that has done nothing yet: what it needs is taken, and it is to be run again in a moment.

    It gives its thread back meanwhile. After `PATIENCE` the caller is answered with `refusal`.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal
