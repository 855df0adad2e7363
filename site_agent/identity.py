"""TLS identity of a site: its certificate, its private key, and the certificate authorities that it has pinned.

A renewal replaces two files, and a power cut may fall between them. So key, request and certificate of the next
identity are stored together in ``keys/renewal.json``, written atomically before each step that depends on them: the new
key and the signed request before the request is sent, the certificate before any file is replaced. If the certificate
in force does not belong to ``keys/tls.pem``, its key is the one that is still stored in ``renewal.json``.

``certificates/ca.pem`` is the authority that a person pinned: the invitation's, or a replacement that the leads have
signed and a person has compared by its fingerprint on the telephone (`site_agent.decide.joining.renewal`). Later ones
are pinned beside it as the signed statements that lead to them (``certificates/authorities.json``), each verified at
every read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.base.at_rest import private_key
from shared.base.canonical import canonical_json, parse_json
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, write_private
from shared.errors import CertificateRefusal, IntegrityRefusal, Refusal, StateRefusal
from shared.plans.invitation import certificate_fingerprint
from shared.wire.certificates import (
    SITE_DAYS,
    AuthorityStatement,
    CertificateLife,
    RenewalRequest,
    authorities_from,
    require_issued_by,
)

if TYPE_CHECKING:
    from pathlib import Path

    from site_agent.config import SiteConfig

__all__ = [
    "Renewals",
    "WantedIdentity",
    "behind_authority",
    "certificate_life",
    "ending",
    "identity",
    "install",
    "pin",
    "pin_other",
    "pinned",
    "renewals",
    "require_ours",
    "settle",
    "witness_key",
]

_CAP = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WantedIdentity:
    """A key, the signed request for its certificate, and the certificate once there is one."""

    key_pem: str = field(repr=False)
    request: str
    certificate_pem: str = ""

    @property
    def envelope(self) -> Envelope:
        """The request, signed."""
        return Envelope.from_bytes(self.request.encode())

    @property
    def renewal_request(self) -> RenewalRequest:
        """The request."""
        return RenewalRequest.from_bytes(self.envelope.payload)


@dataclass(frozen=True, kw_only=True)
class Renewals:
    """Pending renewals of the site's identity, None where there is none.

    Args:
        asked: requested over the connection, and not answered yet.
        given: issued, and being put in force.
        late: requested by hand, in a file to the study lead.
    """

    asked: WantedIdentity | None = None
    given: WantedIdentity | None = None
    late: WantedIdentity | None = None

    def keep(self, config: SiteConfig) -> Renewals:
        """Write it, whole or not at all. Raises: StorageRefusal."""
        reach("renewal.before_keep")
        write_private(_file(config), canonical_json(asdict(self)))
        reach("renewal.after_keep")
        return self


def _file(config: SiteConfig) -> Path:
    return config.tls_key.with_name("renewal.json")


def _statements(config: SiteConfig) -> Path:
    return config.ca.with_name("authorities.json")


def renewals(config: SiteConfig) -> Renewals:
    """Pending renewals; none if the file is missing or unreadable, so that the certificate is requested anew."""
    try:
        body = parse_json(_file(config).read_bytes(), cap=_CAP)
        return Renewals(**{name: None if one is None else WantedIdentity(**one) for name, one in body.items()})
    except (OSError, Refusal, TypeError, AttributeError):
        return Renewals()


def _same_key(certificate_pem: str, key_pem: str) -> bool:
    from cryptography import x509

    try:
        public = x509.load_pem_x509_certificate(certificate_pem.encode()).public_key()
        return public == private_key(key_pem.encode(), "tls.pem").public_key()
    except ValueError:
        return False


def identity(config: SiteConfig) -> tuple[str, str]:
    """The certificate in force and its key, as PEM."""
    certificate, key = config.certificate.read_text(), config.tls_key.read_text()
    if _file(config).exists() and not _same_key(certificate, key):
        given = renewals(config).given
        if given is not None and _same_key(certificate, given.key_pem):
            return certificate, given.key_pem
    return certificate, key


def install(config: SiteConfig, given: WantedIdentity) -> None:
    """Put an identity in force; `renewals` has it already as given. Raises: StorageRefusal."""
    reach("renewal.before_certificate")
    write_private(config.certificate, given.certificate_pem.encode())
    reach("renewal.before_key")
    write_private(config.tls_key, given.key_pem.encode())
    reach("renewal.before_forget")
    _file(config).unlink(missing_ok=True)
    reach("renewal.after_forget")


def settle(config: SiteConfig) -> bool:
    """End what a crash left half installed; True if there was something."""
    given = renewals(config).given
    if given is None or not config.certificate.exists() or config.certificate.read_text() != given.certificate_pem:
        return False
    install(config, given)
    return True


def certificate_life(config: SiteConfig, now: dt.datetime) -> CertificateLife | None:
    """Lifetime of the certificate in force; None before the site has joined. Raises: CertificateRefusal."""
    return CertificateLife.of(config.certificate.read_text(), now) if config.certificate.exists() else None


def ending(config: SiteConfig, now: dt.datetime) -> str:
    """Warning about the certificate in force, for everybody at the site; blank while it is renewed automatically."""
    try:
        life = certificate_life(config, now)
    except (Refusal, OSError):
        return "it cannot be read"
    return life.words if life is not None and life.state in ("near", "over") else ""


def require_ours(config: SiteConfig, wanted: WantedIdentity, chain: Sequence[str], now: dt.datetime) -> None:
    """Raises: CertificateRefusal, unless the certificate is of this key, this site, now, and a pinned authority."""
    from shared.wire.transport import peer_of

    peer = peer_of(wanted.certificate_pem.encode(), now)
    if (peer.role, peer.site) != ("site", config.site) or not _same_key(wanted.certificate_pem, wanted.key_pem):
        raise CertificateRefusal(
            "the certificate must be of this site and its key",
            given="another's",
            next_step="Nothing was changed. Call the study lead.",
        )
    require_issued_by(wanted.certificate_pem, chain)


# -- the authority ------------------------------------------------------------------------------------------------
def witness_key(config: SiteConfig) -> PublicKey:
    """The key that the invitation pinned. Raises: StateRefusal, where there is none."""
    path = config.ca.with_name("witness.pub")
    if not path.exists():
        raise StateRefusal(
            "the coordinator's key must be pinned to believe what it signs",
            given="no certificates/witness.pub",
            next_step="Restore it from a backup, or ask the study lead for a new invitation.",
        )
    return PublicKey(path.read_text().strip())


def _stored_statements(config: SiteConfig) -> list[bytes]:
    try:
        body: Any = parse_json(_statements(config).read_bytes(), cap=_CAP)
    except FileNotFoundError:
        return []
    except (OSError, Refusal):
        body = None
    if not isinstance(body, list) or not all(isinstance(one, str) for one in body):
        raise IntegrityRefusal(
            "certificates/authorities.json must be as it was written",
            given="another content",
            next_step="Delete it: the next round of site-agent run fetches it again, and checks it.",
        )
    return [one.encode() for one in body]


def pinned(config: SiteConfig) -> tuple[str, ...]:
    """The invitation's authority and those that it leads to, oldest first. Raises: IntegrityRefusal, ….

    What does not verify is as if it were not there: `doctor` says so, and the older pin stands.
    """
    first = config.ca.read_text()
    statements = _stored_statements(config)
    return authorities_from(first, statements, witness_key(config)) if statements else (first,)


def pin(config: SiteConfig, statements: Sequence[bytes], *, dry_run: bool = False) -> tuple[str, ...]:
    """Pin what the coordinator offers, if the pinned authorities have signed it; the new ones, as PEM.

    Raises: CertificateRefusal (one that they have not signed), SignatureRefusal, SchemaRefusal, StateRefusal.
    """
    if not statements:
        return ()
    try:
        before = pinned(config)
    except Refusal:
        before = (config.ca.read_text(),)
    chain = authorities_from(config.ca.read_text(), statements, witness_key(config))
    if chain[: len(before)] != before:
        raise CertificateRefusal(
            "the coordinator must offer every authority that it has offered before",
            given="another line",
            next_step="Nothing was changed: the pinned ones stay. Call the study lead.",
        )
    if len(chain) > len(before) and not dry_run:
        reach("renewal.before_pin")
        write_private(_statements(config), canonical_json([one.decode() for one in statements]))
        reach("renewal.after_pin")
    return chain[len(before) :]


def pin_other(config: SiteConfig, ca_pem: str) -> None:
    """Believe another authority in the place of all that were pinned. Raises: StorageRefusal."""
    reach("authority.before_pin")
    _statements(config).unlink(missing_ok=True)
    write_private(config.ca, ca_pem.encode())
    reach("authority.pinned")
    replace(config, ca_fingerprint=certificate_fingerprint(ca_pem)).save()


def behind_authority(config: SiteConfig) -> bool:
    """True if the newest pinned authority followed after the certificate in force was issued, by an older one.

    One that was issued since by an older one is no reason to ask again: a coordinator that was put back may have lost
    the newer one's key.
    """
    try:
        chain, pem = pinned(config), config.certificate.read_text()
        if len(chain) == 1:
            return False
        with suppress(CertificateRefusal):
            require_issued_by(pem, chain[-1:])
            return False
        day = AuthorityStatement.opened(_stored_statements(config)[-1], witness_key(config)).day
        issued = CertificateLife.of(pem, utc_now()).ends - dt.timedelta(days=SITE_DAYS)
        return issued.date().isoformat() < day
    except Refusal:  # `doctor` says so
        return False
