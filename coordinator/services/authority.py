"""The coordinator's certificate authority: who may connect, and as what.

Three kinds of certificate come from here, told apart by their URI name: the server's own, a site's
(``tributary:site:<site>``, from a request made at the site, so its key never travels), and the short-lived bootstrap
certificate inside an invitation (``tributary:enrol:<site>``), which may ask to join and nothing else.

Beside it lies the *witness key* (Ed25519): it signs what the coordinator acknowledges, its public half stands in every
invitation, and a site keeps each signed answer, so that no acceptance can be denied later.

An authority ends too: `coordinator ca rotate` makes the next one, signed by the one before
(`rotate`), and both are believed until the older one's own end. One whose key is in other hands is replaced
(`replace_authority`): the next one begins a line of its own, and nothing of before is believed.

The authority vouches for connections only. A site's release key and its approvers' keys are pinned apart from it, so
whoever held this key could knock at the door, but not sign a release.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.base import keys as key_files
from shared.base.at_rest import machine_secret, named_or_new, pem_of, private_key
from shared.base.chain import GENESIS
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey, encrypt_at_rest, unencrypted, write_private
from shared.errors import CertificateRefusal, ParameterError, StateRefusal
from shared.membership.authorities import AUTHORITY_REPLACEMENT_TYPE, AuthorityReplacement, open_replacement
from shared.membership.leads import Leads
from shared.plans.invitation import Invitation, certificate_fingerprint
from shared.wire.certificates import CA_DAYS, SERVER_DAYS, SITE_DAYS, AuthorityStatement, requested_key, trusted
from shared.wire.transport import SERVER_NAME, Credentials

__all__ = [
    "WARNED_BEFORE_END",
    "Authority",
    "encrypt_keys",
    "replace_authority",
    "rotate",
    "server_credentials",
    "unattended",
]

RENEW_DAYS = SERVER_DAYS // 2
WARNED_BEFORE_END = 2 * SITE_DAYS
"""Days before an authority's end at which its lead is warned: after half of them sites can no longer be renewed."""
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
        number: its place among all authorities here.
        statements: the changes that lead to this one, as signed, oldest first: since the last replacement.
        before: certificates of the authorities before this one, oldest first, since the last replacement.
        replaced: every replacement, as signed, oldest first.
        now: gives the time in UTC.
    """

    folder: Path
    coordinator: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    witness: SigningKey = field(repr=False)
    number: int = 1
    statements: tuple[bytes, ...] = field(default=(), repr=False)
    before: tuple[str, ...] = field(default=(), repr=False)
    replaced: tuple[bytes, ...] = field(default=(), repr=False)
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
        if not (coordinator.isascii() and coordinator.replace("-", "").replace("_", "").isalnum()):
            raise ParameterError("a coordinator's id must be a plain word", given=repr(coordinator))
        folder = home / "ca"
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if (folder / "ca.key").exists() and (folder / "ca.pem").exists():
                raise StateRefusal("a coordinator must be set up once", given="an authority that is there already")
            key = named_or_new(folder / "ca.key")
            since, until = now() - SKEW, now() + dt.timedelta(days=CA_DAYS)
            certificate = authority_certificate(_name(coordinator), key.public_key(), key, since, until)
            write_private(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
            if not (folder / "witness.pem").exists():
                SigningKey.generate().save(folder / "witness.pem", of_machine=True, new=True)
            made = cls(
                folder=folder,
                coordinator=coordinator,
                certificate=certificate,
                key=key,
                witness=_witness(folder),
                now=now,
            )
            made.renew_server(names)
            write_private(folder / "ca.key", pem_of(key))  # last: an interrupted set-up can be started again
            return made

    @classmethod
    def load(cls, home: Path, *, now: Callable[[], dt.datetime] = utc_now) -> Authority:
        """The authority in `home`/ca.

        Raises: StateRefusal (none, or no witness key), StorageRefusal (others may read it), CertificateRefusal.
        """
        folder = home / "ca"
        key_files.require_private(*folder.glob("*.key"), *folder.glob("server.pem"))
        try:
            witness = _witness(folder) if (folder / "ca.pem").exists() else None
            line = _line(folder, witness)
            key_pem = (folder / key_name(line.number)).read_bytes()
        except FileNotFoundError:
            raise StateRefusal(
                "the coordinator must be set up", given="no authority", next_step="Run coordinator init."
            ) from None
        try:
            certificate = x509.load_pem_x509_certificate(line.certificates[-1].encode())
            key = private_key(key_pem, key_name(line.number))
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
            number=line.number,
            statements=line.statements,
            before=line.certificates[:-1],
            replaced=line.replaced,
            now=now,
        )

    def current(self) -> Authority:
        """This authority, or the one that has followed it since it was read."""
        if (self.folder / statement_name(self.number + 1)).exists():
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
            believed: returns True if this machine's clock may date a certificate (`coordinator.services.clocks`);
                called only before a renewal.
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
        """Fault in the dates of a certificate that was made here to last `days`; blank if there is none."""
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
        leads_since: str = "",
        grants_since: str = "",
    ) -> Invitation:
        """A new invitation; the caller keeps its token's hash with `Store.add_invitation`.

        Args:
            site, studies: the site's id, and the studies it may take part in.
            days: days on which the token may be used, from today.
            address: ``host:port`` that the site will dial.
            leads: public keys that sign plans.
            threshold: lead signatures that a plan must carry.
            leads_since, grants_since: last places of those chains (`coordinator.services.membership.Members.places`).
        Raises: ParameterError: days out of range.
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
            leads_since=leads_since,
            grants_since=grants_since,
        )

    def issue(self, csr_pem: str, site: str, *, serial: int = 0) -> str:
        """A site's certificate for the key of its request; every name in the request is ignored.

        Args:
            serial: its number (`coordinator.store.site_certificates.new_serial`); drawn where none is given.
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
    path = folder / "witness.pem"
    if not path.exists():
        raise StateRefusal(
            "the key that signs what this coordinator acknowledges must be in ca/",
            given="no witness.pem",
            next_step="Put it back from a copy of ca/: every site has pinned its public half, and believes no other.",
        )
    return SigningKey.load(path)


def unattended(home: Path) -> list[Path]:
    """Files that may hold a private key which is opened unattended: those of ``ca/``."""
    return sorted((home / "ca").glob("*"))


def encrypt_keys(home: Path) -> list[Path]:
    """Encrypt what lies in the clear of `unattended`, where this machine has a secret; the files that changed."""
    if machine_secret() is None or not unencrypted(unattended(home)):
        return []
    with _alone(home / "ca"):
        return encrypt_at_rest(unattended(home))


def key_name(number: int) -> str:
    """File of an authority's private key; the first one is number 1."""
    return "ca.key" if number == 1 else f"ca-{number}.key"


def statement_name(number: int) -> str:
    """File of the signed word by which authority `number` follows the one before: with it, it is the authority."""
    return f"ca-{number}.json"


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The authorities of a folder: fields as of `Authority`, and the certificates of those that may be believed."""

    certificates: tuple[str, ...]
    number: int = 1
    statements: tuple[bytes, ...] = ()
    replaced: tuple[bytes, ...] = ()


def _line(folder: Path, witness: SigningKey | None) -> _Line:
    """Every authority that may be believed, oldest first, and the words that lead to it.

    Raises: FileNotFoundError (no authority), CertificateRefusal (one that the one before has not signed), ….
    """
    line = _Line(certificates=((folder / "ca.pem").read_text(),))
    while witness is not None and (path := folder / statement_name(line.number + 1)).exists():
        data = path.read_bytes()
        if Envelope.from_bytes(data).payload_type == AUTHORITY_REPLACEMENT_TYPE:
            line = _begun_anew(line, data, witness)
            continue
        said = AuthorityStatement.opened(data, witness.public)
        said.require_signed_by(line.certificates[-1])
        line = replace(
            line,
            certificates=(*line.certificates, said.ca_pem),
            number=line.number + 1,
            statements=(*line.statements, data),
        )
    return line


def _begun_anew(line: _Line, data: bytes, witness: SigningKey) -> _Line:
    """The line after a replacement, which was held against the leads before it was written here."""
    payload = Envelope.from_bytes(data).require(AUTHORITY_REPLACEMENT_TYPE, {witness.public.key_id: witness.public})
    said = AuthorityReplacement.from_bytes(payload)
    if said.before != certificate_fingerprint(line.certificates[-1]):
        raise CertificateRefusal("a replacement must be of the authority before it", given="of another")
    return _Line(certificates=(said.ca_pem,), number=line.number + 1, replaced=(*line.replaced, data))


def server_credentials(home: Path, *, now: Callable[[], dt.datetime] = utc_now) -> Credentials:
    """The server's credentials as they are in `home`, without the authority's key."""
    folder = home / "ca"
    key_pem, mark, cert_pem = (folder / "server.pem").read_text().partition("-----BEGIN CERTIFICATE-----")
    line = _line(folder, SigningKey.load(folder / "witness.pem") if (folder / statement_name(2)).exists() else None)
    return Credentials(ca_pem=trusted(line.certificates, now()), cert_pem=mark + cert_pem, key_pem=key_pem)


def authority_certificate(
    name: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.Certificate:
    """The certificate of an authority, signed by itself or by the one before.

    Args:
        name: of subject and issuer. public: key that is certified. signer: key of the issuer.
        since, until: from when to when it is in force, UTC.
    """
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
    handle = os.open(folder / "ca.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def rotate(authority: Authority, *, dry_run: bool = False) -> tuple[Authority, AuthorityStatement | None]:
    """Make the next authority; (the one in force, the word that it follows; None in a dry run).

    It has this one's name and, like all that is made here, its first day. This one signs its key once: a server shows
    that certificate beside its own, so that whoever pins this one still connects, and sites take it as the word by
    which they pin the next one. The word's file is written last: before it nothing has changed, with it everything has.

    Raises: StateRefusal (another has followed meanwhile, or is being made), CertificateRefusal (it has ended: nothing
        that it signs is believed).
    """
    now, said = authority.now(), list[AuthorityStatement]()
    _require_newest(authority)
    if now >= authority.ends:
        raise CertificateRefusal(
            "an authority must still last to sign the next one",
            given=f"one that ended on {authority.ends:%Y-%m-%d}",
            next_step="Make another that it does not sign: coordinator ca replace.",
        )

    def word(made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
        cross = authority_certificate(
            made.subject, key.public_key(), authority.key, made.not_valid_before_utc, authority.ends
        )
        said.append(
            AuthorityStatement(
                coordinator=authority.coordinator,
                before=authority.fingerprint,
                ca_pem=made.public_bytes(serialization.Encoding.PEM).decode(),
                cross_pem=cross.public_bytes(serialization.Encoding.PEM).decode(),
                day=now.date().isoformat(),
            )
        )
        return said[0].signed(authority.witness).to_bytes()

    return (authority, None) if dry_run else (_followed(authority, word), said[0])


def replace_authority(
    authority: Authority, *, reason: str, leads: Leads, keys: Sequence[SigningKey], dry_run: bool = False
) -> Authority:
    """Make another authority that this one does not sign, because its key may be in other hands; the one in force.

    The leads sign it instead (`shared.membership.authorities`). From the next connection on nothing that an authority
    of before has signed opens a door here. What is made is of this one's name and first day, as in `rotate`.

    Args:
        keys: of the leads who sign; as many as must.
    Raises: StateRefusal (another has followed meanwhile), SignatureRefusal (too few leads), SchemaRefusal.
    """
    previous = [AuthorityReplacement.said(Envelope.from_bytes(data)) for data in authority.replaced]

    def word(made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
        said = AuthorityReplacement(
            number=len(previous) + 1,
            previous=previous[-1].digest if previous else GENESIS,
            day=authority.now().date().isoformat(),
            coordinator=authority.coordinator,
            before=authority.fingerprint,
            ca_pem=made.public_bytes(serialization.Encoding.PEM).decode(),
            reason=reason,
        )
        envelope = said.signed([*keys, authority.witness])
        open_replacement(envelope, leads=leads, witness=authority.witness.public, coordinator=authority.coordinator)
        return envelope.to_bytes()

    _require_newest(authority)
    return authority if dry_run else _followed(authority, word)


def _require_newest(authority: Authority) -> None:
    if authority.current() is not authority:
        raise StateRefusal("an authority must be the newest to be followed", given="one that was followed already")


def _followed(authority: Authority, word: Callable[[x509.Certificate, ec.EllipticCurvePrivateKey], bytes]) -> Authority:
    """Make the next authority, and write the word by which it is one."""
    folder, number = authority.folder, authority.number + 1
    with _alone(folder):
        _require_newest(authority)
        key = ec.generate_private_key(ec.SECP256R1())
        name, since = authority.certificate.subject, authority.certificate.not_valid_before_utc
        until = authority.now() + dt.timedelta(days=CA_DAYS)
        data = word(authority_certificate(name, key.public_key(), key, since, until), key)
        reach("authority.before_key")
        write_private(folder / key_name(number), pem_of(key))  # of no authority yet: a crash here is tried again
        reach("authority.before_statement")
        write_private(folder / statement_name(number), data)
        reach("authority.after_statement")
        return authority.current()


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
