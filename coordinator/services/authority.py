"""The coordinator's certificate authority: who may connect, and as what.

Three kinds of certificate come from here, told apart by their URI name: the server's own, a site's
(``tributary:site:<site>``, from a request made at the site, so its key never travels), and the short-lived bootstrap
certificate inside an invitation (``tributary:enrol:<site>``), which may ask to join and nothing else.

Beside it lies the *witness key* (Ed25519): it signs what the coordinator acknowledges, its public half stands in every
invitation, and a site keeps each signed answer, so that no acceptance can be denied later.

An authority ends too: `coordinator ca rotate` makes the next one, signed by the one before
(`coordinator.services.membership.authority_change`), and both are believed until the older one's own end.

The authority vouches for connections only. A site's release key and its approvers' keys are pinned apart from it, so
whoever held this key could knock at the door, but not sign a release.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.base.at_rest import pem_of, private_key
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import PublicKey, SigningKey, encrypt_at_rest, unencrypted, write_private
from shared.errors import CertificateRefusal, ParameterError, StateRefusal
from shared.plans.invitation import Invitation, certificate_fingerprint
from shared.wire.certificates import CA_DAYS, SERVER_DAYS, SITE_DAYS, AuthorityStatement, trusted
from shared.wire.transport import SERVER_NAME, Credentials

__all__ = ["WARNED_BEFORE_END", "Authority", "encrypt_keys", "keys_in_clear", "rotate", "server_credentials"]

RENEW_DAYS = SERVER_DAYS // 2
WARNED_BEFORE_END = 2 * SITE_DAYS
"""Days before an authority's end at which its lead is told: half of them before sites can no longer be renewed."""
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
        statements: every change of the authority before this one, as signed, oldest first.
        before: certificates of the authorities before this one, oldest first.
        now: gives the time in UTC.
    """

    folder: Path
    coordinator: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    witness: SigningKey = field(repr=False)
    statements: tuple[bytes, ...] = field(default=(), repr=False)
    before: tuple[str, ...] = field(default=(), repr=False)
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
        since, until = now() - SKEW, now() + dt.timedelta(days=CA_DAYS)
        certificate = authority_certificate(_name(coordinator), key.public_key(), key, since, until)
        write_private(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
        witness = _witness(folder)
        made = cls(folder=folder, coordinator=coordinator, certificate=certificate, key=key, witness=witness, now=now)
        made.renew_server(names)
        write_private(folder / "ca.key", pem_of(key))  # last: an interrupted set-up can be started again
        return made

    @classmethod
    def load(cls, home: Path, *, now: Callable[[], dt.datetime] = utc_now) -> Authority:
        """The authority in `home`/ca. Raises: StateRefusal (none there), CertificateRefusal (not readable)."""
        folder = home / "ca"
        try:
            witness = _witness(folder) if (folder / "ca.pem").exists() else None
            statements, line = _line(folder, witness)
            pem = line[-1].encode()
            key_pem = (folder / key_name(len(line))).read_bytes()
        except FileNotFoundError:
            raise StateRefusal(
                "the coordinator must be set up", given="no authority", next_step="Run coordinator init."
            ) from None
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            key = private_key(key_pem, key_name(len(line)))
        except (ValueError, TypeError):
            raise CertificateRefusal("the authority's files must be readable", given="other content") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateRefusal("the authority's key must be its certificate's", given="another key")
        coordinator = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        assert witness is not None  # ca.pem was there
        return cls(
            folder=folder,
            coordinator=coordinator,
            certificate=certificate,
            key=key,
            witness=witness,
            statements=statements,
            before=line[:-1],
            now=now,
        )

    def current(self) -> Authority:
        """This authority, or the one that has followed it since it was read."""
        if (self.folder / statement_name(len(self.before) + 2)).exists():
            return Authority.load(self.folder.parent, now=self.now)
        return self

    @property
    def ca_pem(self) -> str:
        """The authority's certificate, as sites pin it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the authority's certificate."""
        return certificate_fingerprint(self.ca_pem)

    @property
    def trusted_pem(self) -> str:
        """Every authority whose certificates are believed here: this one, and those before it until they end."""
        return trusted((*self.before, self.ca_pem), self.now())

    @property
    def ends(self) -> dt.datetime:
        """The authority's own last moment."""
        return self.certificate.not_valid_after_utc

    def renew_server(self, names: Sequence[str] = ()) -> None:
        """Write a new server key and certificate. A running server takes them up at the next connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        places: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME)]
        for name in names:
            try:
                places.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                places.append(x509.DNSName(name))
        left = (self.ends - self.now()) / dt.timedelta(days=1)
        certificate = self._leaf(
            key.public_key(),
            common=SERVER_NAME,
            names=places,
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            days=min(float(SERVER_DAYS), left),
        )
        # For whoever pins an earlier authority: what each signed of the next, newest first.
        crosses = [AuthorityStatement.opened(data, self.witness.public).cross_pem for data in self.statements]
        # One file, so that a key is never read beside the certificate of another.
        reach("authority.before_server")
        write_private(self.folder / "server.pem", pem_of(key) + (certificate + "".join(reversed(crosses))).encode())
        reach("authority.after_server")

    def server(self, believed: Callable[[], bool] = lambda: True) -> Credentials:
        """The server's credentials, renewed under the same names when they are about to expire.

        Args:
            believed: whether this machine's clock may date a certificate (`coordinator.services.clocks`); asked only
                when it would.
        """
        here = self.current()
        if here.server_due and believed():
            with _alone(self.folder):
                if here.server_due:  # else another connection has just renewed it
                    here.renew_server(here.server_names)
        return server_credentials(self.folder.parent, now=self.now)

    @property
    def server_due(self) -> bool:
        """True if the server's certificate is past half its life, or not of this authority."""
        shown, day = self.server_certificate, dt.timedelta(days=1)
        # One that ends with its authority cannot be made to last longer.
        if shown.not_valid_after_utc - self.now() < RENEW_DAYS * day and self.ends - shown.not_valid_after_utc > day:
            return True
        try:
            shown.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return True
        return False

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

    def issue(self, csr_pem: str, site: str, *, serial: int = 0) -> str:
        """A site's certificate for the key of its request; every name in the request is ignored.

        Args:
            serial: its number (`coordinator.services.membership.renewal.new_serial`); drawn where none is given.
        Raises: CertificateRefusal: not a request, not signed by its own key, not an ECDSA P-256 key, or it would
            outlive this authority.
        """
        return self._leaf(
            requested_key(csr_pem),
            common=site,
            names=[x509.UniformResourceIdentifier(f"tributary:site:{site}")],
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            days=SITE_DAYS,
            serial=serial,
        )

    def _leaf(
        self,
        public: ec.EllipticCurvePublicKey,
        *,
        common: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        days: float,
        serial: int = 0,
    ) -> str:
        # Valid from when the authority was made, whatever the clock says now: if it is ahead, what it dates is valid
        # all the same once it has been set right.
        since, until = self.certificate.not_valid_before_utc, self.now() + dt.timedelta(days=days)
        if until > self.ends:
            raise CertificateRefusal(
                "a certificate must end before its authority",
                given=f"one until {until:%Y-%m-%d}, where the authority ends on {self.ends:%Y-%m-%d}",
                next_step="The study lead makes the next authority: coordinator ca rotate. No site has to do anything.",
            )
        certificate = (
            _builder(_name(common[:64]), self.certificate.subject, public, since, until, serial)
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
        SigningKey.generate().save(path, of_machine=True)
    return SigningKey.load(path)


def keys_in_clear(home: Path) -> list[Path]:
    """Files of ``ca/`` that hold a private key unencrypted."""
    return unencrypted(sorted((home / "ca").glob("*")))


def encrypt_keys(home: Path) -> list[Path]:
    """Encrypt what `keys_in_clear` names, where this machine has a secret; the files that changed."""
    with _alone(home / "ca"):
        return encrypt_at_rest(keys_in_clear(home))


def key_name(number: int) -> str:
    """File of an authority's private key; the first one is number 1."""
    return "ca.key" if number == 1 else f"ca-{number}.key"


def statement_name(number: int) -> str:
    """File of the signed word by which authority `number` follows the one before: with it, it is the authority."""
    return f"ca-{number}.json"


def _line(folder: Path, witness: SigningKey | None) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """Every change of the authority as signed, and all authorities' certificates, oldest first.

    Raises: FileNotFoundError (no authority), CertificateRefusal (one that the one before has not signed).
    """
    line, statements = [(folder / "ca.pem").read_text()], list[bytes]()
    while witness is not None and (path := folder / statement_name(len(line) + 1)).exists():
        statements.append(path.read_bytes())
        said = AuthorityStatement.opened(statements[-1], witness.public)
        said.require_signed_by(line[-1])
        line.append(said.ca_pem)
    return tuple(statements), tuple(line)


def server_credentials(home: Path, *, now: Callable[[], dt.datetime] = utc_now) -> Credentials:
    """The server's credentials as they are in `home`, without the authority's key."""
    folder = home / "ca"
    key_pem, mark, cert_pem = (folder / "server.pem").read_text().partition("-----BEGIN CERTIFICATE-----")
    _, line = _line(folder, SigningKey.load(folder / "witness.pem") if (folder / statement_name(2)).exists() else None)
    return Credentials(ca_pem=trusted(line, now()), cert_pem=mark + cert_pem, key_pem=key_pem)


def authority_certificate(
    name: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.Certificate:
    """The certificate of an authority, signed by itself or by the one before."""
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    return (
        _builder(name, name, public, since, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time in ``ca/``, of the threads of a server and of commands beside it."""
    with (folder / "ca.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def rotate(authority: Authority, *, dry_run: bool = False) -> tuple[Authority, AuthorityStatement | None]:
    """Make the next authority; (the one in force, the word that it follows; None in a dry run).

    It has this one's name and, like all that is made here, its first day. This one signs its key once: a server shows
    that certificate beside its own, so that whoever pins this one still connects, and sites take it as the word by
    which they pin the next one. The word's file is written last: before it nothing has changed, with it everything has.

    Raises: StateRefusal (another has followed meanwhile, or is being made), CertificateRefusal (it has ended: nothing
        that it signs is believed).
    """
    now = authority.now()
    if authority.current() is not authority:
        raise StateRefusal("an authority must be the newest to be followed", given="one that was followed already")
    if now >= authority.ends:
        raise CertificateRefusal(
            "an authority must still last to sign the next one",
            given=f"one that ended on {authority.ends:%Y-%m-%d}",
            next_step="Set a new coordinator up and invite its sites anew.",
        )
    if dry_run:
        return authority, None
    folder, number = authority.folder, len(authority.before) + 2
    with _alone(folder):
        if authority.current() is not authority:
            raise StateRefusal("an authority must be the newest to be followed", given="one that was followed already")
        key = ec.generate_private_key(ec.SECP256R1())
        name, since = authority.certificate.subject, authority.certificate.not_valid_before_utc
        made = authority_certificate(name, key.public_key(), key, since, now + dt.timedelta(days=CA_DAYS))
        cross = authority_certificate(name, key.public_key(), authority.key, since, authority.ends)
        said = AuthorityStatement(
            coordinator=authority.coordinator,
            before=authority.fingerprint,
            ca_pem=made.public_bytes(serialization.Encoding.PEM).decode(),
            cross_pem=cross.public_bytes(serialization.Encoding.PEM).decode(),
            day=now.date().isoformat(),
        )
        reach("authority.before_key")
        write_private(folder / key_name(number), pem_of(key))  # of no authority yet: a crash here is tried again
        reach("authority.before_statement")
        write_private(folder / statement_name(number), said.signed(authority.witness).to_bytes())
        reach("authority.after_statement")
        return authority.current(), said


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
    serial: int = 0,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )
