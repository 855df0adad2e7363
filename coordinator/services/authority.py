"""The coordinator's certificate authority: who may connect, and as what.

Three kinds of certificate come from here, told apart by their URI name: the server's own, a site's
(``tributary:site:<site>``, from a request made at the site, so its key never travels), and the short-lived bootstrap
certificate inside an invitation (``tributary:enrol:<site>``), which may ask to join and nothing else.

Beside it lies the *witness key* (Ed25519): it signs what the coordinator acknowledges, its public half stands in every
invitation, and a site keeps each signed answer, so that no acceptance can be denied later.

The authority vouches for connections only. A site's release key and its approvers' keys are pinned apart from it, so
whoever held this key could knock at the door, but not sign a release.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.base.keys import PublicKey, SigningKey, write_private
from shared.errors import CertificateRefusal, ParameterError, StateRefusal
from shared.plans.invitation import Invitation, certificate_fingerprint
from shared.wire.clocks import utc_now
from shared.wire.transport import SERVER_NAME, Credentials

__all__ = ["Authority", "server_credentials"]

CA_DAYS = 3650
SERVER_DAYS = 397
SITE_DAYS = 397
RENEW_DAYS = 30
# Clocks of hospitals differ: a certificate is valid from a little before it was made.
SKEW = dt.timedelta(hours=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, lock = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, lock)


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The authority in one coordinator's home folder; make one with `create` or `load`.

    Args:
        folder: ``ca/`` of the home folder.
        coordinator: the coordinator's id, as plans name it.
        certificate: the authority's own certificate.
        key: its private key.
        witness: signs acceptances, anchor receipts and withdrawals.
        now: gives the time in UTC.
    """

    folder: Path
    coordinator: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    witness: SigningKey = field(repr=False)
    now: Callable[[], dt.datetime] = utc_now

    @classmethod
    def create(
        cls, home: Path, *, coordinator: str, names: Sequence[str] = (), now: Callable[[], dt.datetime] = utc_now
    ) -> Authority:
        """Make the authority and the server's certificate in `home`/ca.

        Args:
            home: the coordinator's home folder.
            coordinator: its id, a plain word.
            names: DNS names and IP addresses of the server.
            now: gives the time in UTC.
        Raises: StateRefusal, when there is an authority already: a second one would lock out every site.
        """
        folder = home / "ca"
        if (folder / "ca.key").exists():
            raise StateRefusal("a coordinator must be set up once", given="an authority that is there already")
        if not (coordinator.isascii() and coordinator.replace("-", "").replace("_", "").isalnum()):
            raise ParameterError("a coordinator's id must be a plain word", given=repr(coordinator))
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(coordinator)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(name, name, key.public_key(), now() - SKEW, now() + dt.timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        witness = _witness(folder)
        made = cls(folder=folder, coordinator=coordinator, certificate=certificate, key=key, witness=witness, now=now)
        made.renew_server(names)
        write_private(folder / "ca.key", _pem(key))  # last: an interrupted set-up can be started again
        return made

    @classmethod
    def load(cls, home: Path, *, now: Callable[[], dt.datetime] = utc_now) -> Authority:
        """The authority in `home`/ca. Raises: StateRefusal (none there), CertificateRefusal (not readable)."""
        folder = home / "ca"
        try:
            pem, key_pem = (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
        except FileNotFoundError:
            raise StateRefusal(
                "the coordinator must be set up", given="no authority", next_step="Run coordinator init."
            ) from None
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            key = serialization.load_pem_private_key(key_pem, None)
        except (ValueError, TypeError):
            raise CertificateRefusal("the authority's files must be readable", given="other content") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateRefusal("the authority's key must be its certificate's", given="another key")
        coordinator = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        witness = _witness(folder)
        return cls(folder=folder, coordinator=coordinator, certificate=certificate, key=key, witness=witness, now=now)

    @property
    def ca_pem(self) -> str:
        """The authority's certificate, as sites pin it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the authority's certificate."""
        return certificate_fingerprint(self.ca_pem)

    def renew_server(self, names: Sequence[str] = ()) -> None:
        """Write a new server key and certificate. A running server takes them up at the next connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        places: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME)]
        for name in names:
            try:
                places.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                places.append(x509.DNSName(name))
        certificate = self._leaf(
            key.public_key(),
            common=SERVER_NAME,
            names=places,
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            days=SERVER_DAYS,
        )
        # One file, so that a key is never read beside the certificate of another.
        write_private(self.folder / "server.pem", _pem(key) + certificate.encode())

    def server(self, believed: Callable[[], bool] = lambda: True) -> Credentials:
        """The server's credentials, renewed under the same names when they are about to expire.

        Args:
            believed: whether this machine's clock may date a certificate (`coordinator.services.clocks`); asked only
                when it would.
        """
        if self.server_certificate.not_valid_after_utc - self.now() < dt.timedelta(days=RENEW_DAYS) and believed():
            self.renew_server(self.server_names)
        return server_credentials(self.folder.parent)

    @property
    def server_certificate(self) -> x509.Certificate:
        """The server's certificate as it is now."""
        return x509.load_pem_x509_certificate((self.folder / "server.pem").read_bytes())

    @property
    def server_names(self) -> list[str]:
        """The DNS names and IP addresses in it, without the one that all servers have."""
        found = self.server_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in found if isinstance(name, (x509.DNSName, x509.IPAddress))][1:]

    def misdated(self, certificate: x509.Certificate, days: int, now: dt.datetime) -> str:
        """What is wrong with the dates of a certificate that was made here to last `days`; blank if nothing is."""
        if now < certificate.not_valid_before_utc:
            return f"valid from {certificate.not_valid_before_utc:%Y-%m-%d} only: made by a clock that was ahead"
        if now > certificate.not_valid_after_utc:
            return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
        if certificate.not_valid_after_utc > now + dt.timedelta(days=days) + SKEW:
            return f"valid until {certificate.not_valid_after_utc:%Y-%m-%d}: made by a clock that was ahead"
        return ""

    def invite(
        self,
        site: str,
        studies: Sequence[str],
        days: int = 14,
        *,
        address: str,
        leads: Sequence[PublicKey],
        threshold: int = 1,
    ) -> Invitation:
        """A new invitation; the caller keeps its token's hash with `Store.add_invitation`.

        Args:
            site: the site's id.
            studies: the studies it may take part in.
            days: days on which the token may be used, from today.
            address: ``host:port`` that the site will dial.
            leads: public keys that sign plans.
            threshold: lead signatures that a plan must carry.
        """
        if not 0 <= days <= 365:
            raise ParameterError("an invitation must last 0 to 365 days", given=f"{days}")
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._leaf(
            key.public_key(),
            common=f"enrol {site}",
            names=[x509.UniformResourceIdentifier(f"tributary:enrol:{site}")],
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            days=days + 1,
        )
        return Invitation(
            coordinator=self.coordinator,
            address=address,
            server_name=SERVER_NAME,
            ca_pem=self.ca_pem,
            ca_fingerprint=self.fingerprint,
            site=site,
            studies=tuple(studies),
            token=secrets.token_urlsafe(32),
            expires=self.now().date() + dt.timedelta(days=days),
            leads=tuple(leads),
            threshold=threshold,
            witness=self.witness.public,
            bootstrap_cert_pem=certificate,
            bootstrap_key_pem=_pem(key).decode(),
        )

    def issue(self, csr_pem: str, site: str) -> str:
        """A site's certificate for the key of its request; every name in the request is ignored.

        Raises: CertificateRefusal: not a request, not signed by its own key, or not an ECDSA P-256 key.
        """
        return self._leaf(
            requested_key(csr_pem),
            common=site,
            names=[x509.UniformResourceIdentifier(f"tributary:site:{site}")],
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            days=SITE_DAYS,
        )

    def _leaf(
        self,
        public: ec.EllipticCurvePublicKey,
        *,
        common: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        days: int,
    ) -> str:
        # Valid from when the authority was made, whatever the clock says now: if it is ahead, what it dates is valid
        # all the same once it has been set right.
        since, until = self.certificate.not_valid_before_utc, self.now() + dt.timedelta(days=days)
        certificate = (
            _builder(_name(common[:64]), self.certificate.subject, public, since, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _witness(folder: Path) -> SigningKey:
    """The witness key in `folder`; made at set-up, or at the first start after an upgrade."""
    path = folder / "witness.pem"
    if not path.exists():
        SigningKey.generate().save(path)
    return SigningKey.load(path)


def server_credentials(home: Path) -> Credentials:
    """The server's credentials as they are in `home`, without the authority's key."""
    folder = home / "ca"
    key_pem, mark, cert_pem = (folder / "server.pem").read_text().partition("-----BEGIN CERTIFICATE-----")
    return Credentials(ca_pem=(folder / "ca.pem").read_text(), cert_pem=mark + cert_pem, key_pem=key_pem)


def requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """The key in a certificate request that is signed by that key. Raises: CertificateRefusal."""
    rule = "a certificate request must be signed by its own ECDSA P-256 key"
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        valid = request.is_signature_valid
        public = request.public_key()
    except (ValueError, TypeError, InvalidSignature):
        raise CertificateRefusal(rule, given="another text") from None
    if not valid or not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise CertificateRefusal(rule, given="another key or signature")
    return public


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )
