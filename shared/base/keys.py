"""Ed25519 keys on disk, and signed envelopes over bytes *and their type*.

An envelope follows DSSE: what is signed is the pre-authentication encoding of (type, payload), so a signature on
one kind of document can never be shown as a signature on another. Keys are pinned by whoever verifies; a key that
arrives inside an artefact is never trusted.

A key that a person's passphrase protects lies in a file of `shared.base.locked`. One that an earlier version wrote, or
that costs less to guess at than `COST`, is written anew the next time its passphrase opens it.
"""

from __future__ import annotations

import base64
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shared.base.at_rest import CLEAR_BLOCK, machine_secret, pem_of, private_key
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.durable import fsync_folder, name_once, own_part
from shared.base.locked import KeyCost, is_locked, lock, unlock
from shared.errors import (
    ParameterError,
    PassphraseRefusal,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
    StorageRefusal,
)

__all__ = [
    "PASSPHRASE_LETTERS",
    "Envelope",
    "PublicKey",
    "Signature",
    "SigningKey",
    "encrypt_at_rest",
    "require_length",
    "unencrypted",
    "write_private",
]

ENVELOPE_CAP = 4 << 20
PASSPHRASE_LETTERS = 12
"""Fewest characters of a new passphrase."""
COST = KeyCost(n=1 << 17, r=8, p=2)
"""Scrypt's cost of one guess at a passphrase: 128 MB and about 0.6 s of a core. Only tests set a lower one."""


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key: 32 bytes, written as 64 hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if len(self.hex) != 64 or self.hex.strip("0123456789abcdef"):
            raise SchemaRefusal("a public key must be 64 lower-case hexadecimal digits", given=f"{len(self.hex)}")

    @property
    def key_id(self) -> str:
        """First 16 digits of the SHA-256 of the key: a handle, not a proof."""
        return sha256_hex(bytes.fromhex(self.hex))[:16]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key in groups of four, for two people to compare aloud."""
        digest = sha256_hex(bytes.fromhex(self.hex))[:32]
        return " ".join(digest[i : i + 4] for i in range(0, 32, 4))

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """True if `signature` is this key's over `message`."""
        verifies = _verifies if len(message) <= _REMEMBERED else _verifies.__wrapped__
        return verifies(self.hex, bytes(signature), bytes(message))


_REMEMBERED = 4096
"""Bytes of a message whose verification is remembered: a few thousand heads, not one large document."""


@lru_cache(maxsize=2048)  # every transaction of a ledger asks for its last entry and its head again
def _verifies(public: str, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class SigningKey:
    """An Ed25519 private key. Its text form never shows the secret.

    >>> key = SigningKey.generate()
    >>> key.public.verifies(key.sign(b"text"), b"text")
    True
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = PublicKey(raw.hex())

    def __repr__(self) -> str:
        return f"SigningKey({self.public.key_id})"

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key from the operating system's generator."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature."""
        return self._key.sign(message)

    def openssh(self) -> bytes:
        """The secret itself, unencrypted, in OpenSSH's form; it never reaches a disk."""
        form = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.PEM, *form)

    def save(
        self,
        path: Path,
        passphrase: str | None = None,
        *,
        cost: KeyCost | None = None,
        of_machine: bool = False,
        new: bool = False,
    ) -> None:
        """Write it to a file that its owner alone can read; encrypted when a passphrase is given.

        Args:
            of_machine: a program opens it unattended: the machine's secret encrypts it (`shared.base.at_rest`).
            cost: price of a guess at the passphrase; `COST` if left out.
            new: there must be no key of that name, nor one that somebody makes meanwhile.
        Raises: ParameterError (the passphrase is too short), StateRefusal (a key that had to be new is there).
        """
        if passphrase is not None:
            require_length(passphrase)
        data = pem_of(self._key) if of_machine else self._file(passphrase, cost or COST)
        with _held(path, required=False):
            write_private(path, data, new=new)

    def _file(self, passphrase: str | None, cost: KeyCost) -> bytes:
        if passphrase is None:
            form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            return self._key.private_bytes(serialization.Encoding.PEM, form, none)
        return lock(self._key.private_bytes_raw(), passphrase, cost)

    @classmethod
    def load(cls, path: Path, passphrase: str | None = None) -> SigningKey:
        """Read a key that `save` wrote; one that is too cheap to guess at is written anew in passing.

        Raises: StateRefusal (no such key), StorageRefusal (file readable by others), PassphraseRefusal (wrong or
        missing passphrase), SignatureRefusal (not an Ed25519 key).
        """
        try:
            require_private(path)
            data = path.read_bytes()
        except FileNotFoundError:
            step = "Put it back from a backup; in a new folder, init makes it."
            raise StateRefusal("the key file must exist", given=path.name, next_step=step) from None
        key, cost = _opened(path, data, passphrase)
        made = cls(key)
        if passphrase is not None and not (cost is not None and cost.covers(COST)):
            with suppress(OSError, StorageRefusal):  # on a read-only disk it stays as it is
                made._rewrite(path, data, passphrase)
        return made

    def _rewrite(self, path: Path, old: bytes, passphrase: str) -> None:
        """Encrypt the file at today's price, unless somebody else has changed it meanwhile."""
        data = self._file(passphrase, COST)  # takes its time: what the file holds is compared after it
        with _held(path, required=True):
            if path.read_bytes() == old:
                write_private(path, data)


@contextmanager
def _held(path: Path, *, required: bool) -> Iterator[None]:
    """Nobody else that asks for it writes the key file meanwhile; the lock is on the file that now has this name.

    Args:
        required: raise OSError where it cannot be locked. Else one goes on: where there are no locks, or no file yet,
            nobody encrypts it anew in passing either.
    """
    import fcntl

    file = None
    try:
        while file is None:
            file = path.open("rb")
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):  # replaced while one waited
                file.close()
                file = None
    except OSError:
        if required:
            if file is not None:
                file.close()
            raise
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _opened(path: Path, data: bytes, passphrase: str | None) -> tuple[Ed25519PrivateKey, KeyCost | None]:
    """The key in a file's bytes, and what a guess at it costs where it is in our own form."""
    if is_locked(data):
        found = None if passphrase is None else unlock(data, passphrase)
        if found is None:
            raise _not_open(path, passphrase)
        return Ed25519PrivateKey.from_private_bytes(found[0]), found[1]
    try:
        if passphrase is None:
            key = private_key(data, path.name)
        else:
            key = serialization.load_pem_private_key(data, passphrase.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _not_open(path, passphrase) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureRefusal(f"the key file {path.name} must hold an Ed25519 key")
    return key, None


def require_length(passphrase: str) -> None:
    """Raises: ParameterError, when a new passphrase is too short."""
    if len(passphrase) < PASSPHRASE_LETTERS:
        raise ParameterError(
            f"a passphrase must have at least {PASSPHRASE_LETTERS} characters",
            given=f"{len(passphrase)}",
            next_step="Four or five words that nobody would guess are easier to keep than signs.",
        )


def _not_open(path: Path, passphrase: str | None) -> PassphraseRefusal:
    return PassphraseRefusal(
        f"the passphrase must open the key file {path.name}",
        given="none" if passphrase is None else "one that does not",
        next_step="Type it once more: capitals, spaces and the keyboard's language count. One that is lost cannot be "
        "recovered; the operators' manual says under Passphrases how another key takes its place.",
    )


def require_private(*paths: Path) -> None:
    """Refuse a key's file that anybody but its owner may read. Raises: StorageRefusal, FileNotFoundError."""
    for path in paths:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise StorageRefusal(
                f"the key file {path.name} must be readable by its owner only",
                given=oct(mode & 0o777),
                next_step=f"chmod 600 {path.name}",
            )


def write_private(path: Path, data: bytes, *, new: bool = False) -> None:
    """Write `data` to `path` so that the owner alone can read it, whole or not at all; of several at once one by one.

    Args:
        new: nothing may have that name, of whoever writes it at the same moment either.
    Raises: StateRefusal (what had to be new is there; it stays as it is), StorageRefusal.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with own_part(path) as (handle, part):
            with os.fdopen(handle, "wb", closefd=False) as out:
                out.write(data)
                out.flush()
                os.fsync(handle)
            if new:
                name_once(part, path)
            else:
                os.replace(part, path)
        fsync_folder(path.parent)
    except OSError as error:
        step = "Free space, or restore write permission; then run the command again."
        given = error.strerror or "an error"
        raise StorageRefusal(f"{path.name} must be writable", given=given, next_step=step) from error


def unencrypted(files: Iterable[Path]) -> list[Path]:
    """Those of the files that hold a private key as PEM in the clear."""
    return [path for path in files if path.is_file() and CLEAR_BLOCK.search(path.read_bytes())]


def encrypt_at_rest(files: Iterable[Path]) -> list[Path]:
    """Encrypt the private keys in these files with the machine's secret, where it has one; the files that changed.

    Nobody else may write them meanwhile: the caller holds its program's lock. A copy of a file from before stays as it
    was. Raises: StorageRefusal, and whatever `machine_secret` raises.
    """
    if machine_secret() is None:
        return []
    changed = unencrypted(files)
    for path in changed:
        data = path.read_bytes()
        write_private(path, CLEAR_BLOCK.sub(lambda found: pem_of(private_key(found[0], path.name)), data))  # noqa: B023
    return changed


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature of an envelope, with the handle of the key that made it."""

    key_id: str
    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """Bytes, their type, and who signed both.

    >>> lead = SigningKey.generate()
    >>> envelope = Envelope.sign("text/plain", b"plan", [lead])
    >>> sorted(envelope.verified_by({lead.public.key_id: lead.public})) == [lead.public.key_id]
    True
    """

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @staticmethod
    def encoding(payload_type: str, payload: bytes) -> bytes:
        """DSSE's pre-authentication encoding of (type, payload)."""
        kind = payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)

    @classmethod
    def sign(cls, payload_type: str, payload: bytes, keys: Sequence[SigningKey]) -> Envelope:
        """Sign `payload` as `payload_type` with every key."""
        message = cls.encoding(payload_type, payload)
        made = tuple(Signature(key.public.key_id, key.sign(message)) for key in keys)
        return cls(payload_type=payload_type, payload=payload, signatures=made)

    def also_signed(self, key: SigningKey) -> Envelope:
        """The same envelope with one more signature."""
        more = Signature(key.public.key_id, key.sign(self.encoding(self.payload_type, self.payload)))
        others = tuple(signature for signature in self.signatures if signature.key_id != more.key_id)
        return Envelope(payload_type=self.payload_type, payload=self.payload, signatures=(*others, more))

    def verified_by(self, trusted: Mapping[str, PublicKey]) -> set[str]:
        """Handles of the *trusted* keys whose signature here verifies; signatures of other keys count for nothing."""
        message = self.encoding(self.payload_type, self.payload)
        return {
            signature.key_id
            for signature in self.signatures
            if (key := trusted.get(signature.key_id)) is not None and key.verifies(signature.value, message)
        }

    def require(self, payload_type: str, trusted: Mapping[str, PublicKey], *, threshold: int = 1) -> bytes:
        """The payload, if it has the expected type and `threshold` trusted signatures.

        Raises: SignatureRefusal. Nothing of the payload is parsed before this returns.
        """
        if self.payload_type != payload_type:
            raise SignatureRefusal(f"the signed document must be of type {payload_type}", given="another type")
        good = self.verified_by(trusted)
        if len(good) < threshold:
            raise SignatureRefusal(
                f"the document must carry {threshold} signature(s) of pinned keys",
                given=f"{len(good)}",
                next_step="Compare key fingerprints with the sender.",
            )
        return self.payload

    @property
    def digest(self) -> str:
        """SHA-256 of the payload."""
        return sha256_hex(self.payload)

    def to_bytes(self) -> bytes:
        """Canonical JSON form."""
        body: dict[str, Any] = {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": [{"keyid": s.key_id, "sig": base64.b64encode(s.value).decode()} for s in self.signatures],
        }
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read the JSON form, at most `ENVELOPE_CAP` bytes. Raises: SchemaRefusal."""
        body = parse_json(data, cap=ENVELOPE_CAP)
        try:
            if set(body) != {"payloadType", "payload", "signatures"} or not 1 <= len(body["signatures"]) <= 16:
                raise ValueError
            signatures = []
            for item in body["signatures"]:
                if set(item) != {"keyid", "sig"}:
                    raise ValueError
                signatures.append(
                    Signature(sys.intern(str(item["keyid"])), base64.b64decode(item["sig"], validate=True))
                )
            payload = base64.b64decode(body["payload"], validate=True)
            envelope = cls(payload_type=str(body["payloadType"]), payload=payload, signatures=tuple(signatures))
            # Base64 has spare bits at its end: without this, other bytes would read as the same envelope.
            if envelope.to_bytes() != data:
                raise ValueError
            return envelope
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SchemaRefusal("an envelope must be payloadType, payload and signatures in canonical form") from None
