"""Secrets in a file that a passphrase opens: scrypt makes the key, ChaCha20-Poly1305 hides and seals the secret.

Whoever has a copy of such a file can guess as often as they like; what stands in their way is the price of one guess.
scrypt (RFC 7914) takes 128·r·N bytes of memory and N·r·p steps for each, which a graphics card cannot do many of at
once. The price stands in the file, so that a dearer one needs no new form, and files of an earlier, cheaper one still
open. Everything beside the hidden secret (form, price, salt) is sealed with it: a file whose price was edited down is
no file at all.

The form is ours because the standard one, PKCS#8, is written by the library with 2,048 rounds of PBKDF2 and no other.
"""

from __future__ import annotations

import base64
import os
import textwrap
from dataclasses import asdict, dataclass, fields

from shared.base.canonical import canonical_json, parse_json
from shared.errors import ParameterError, SchemaRefusal

__all__ = ["KeyCost", "derive", "is_locked", "lock", "unlock"]

FORMAT = "tributary-locked-key/1"
BEGIN, END = "-----BEGIN TRIBUTARY ENCRYPTED KEY-----", "-----END TRIBUTARY ENCRYPTED KEY-----"
FILE_CAP = 16 << 10


@dataclass(frozen=True, kw_only=True)
class KeyCost:
    """Price of one guess at a passphrase: the parameters of scrypt.

    Args:
        n: number of blocks N, a power of two; with r it is the memory, 128·r·n bytes.
        r: size of a block, in units of 128 bytes.
        p: how often the whole is done.
    Raises: ParameterError, at construction: outside what any machine here would open (4 GB, 64 passes).

    >>> KeyCost(n=2**17, r=8, p=2).memory >> 20
    128
    """

    n: int
    r: int = 8
    p: int = 1

    def __post_init__(self) -> None:
        whole = all(type(value) is int and value >= 1 for value in (self.n, self.r, self.p))
        if not (whole and self.n >= 2 and self.n & (self.n - 1) == 0 and self.memory <= 4 << 30 and self.p <= 64):
            raise ParameterError("scrypt must have n, a power of two, r and p of at most 4 GB and 64 passes")

    @property
    def memory(self) -> int:
        """Bytes that one guess takes."""
        return 128 * self.r * self.n

    @property
    def work(self) -> int:
        """Steps of one guess, in units of one block."""
        return self.n * self.r * self.p

    def covers(self, other: KeyCost) -> bool:
        """True if a guess costs at least as much memory and work here as under `other`."""
        return self.memory >= other.memory and self.work >= other.work


def is_locked(data: bytes) -> bool:
    """True if these are the bytes of a file that `lock` made."""
    return data.startswith(BEGIN.encode())


def lock(secret: bytes, passphrase: str, cost: KeyCost) -> bytes:
    """The bytes of a file from which only this passphrase gives `secret` back."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    salt = os.urandom(16)
    head = {"format": FORMAT, "kdf": "scrypt", **asdict(cost), "salt": salt.hex()}
    # The key is used once: a salt of its own makes it, so that the nonce may be fixed.
    hidden = ChaCha20Poly1305(derive(passphrase, salt, cost)).encrypt(bytes(12), secret, canonical_json(head))
    body = base64.b64encode(canonical_json({**head, "hidden": hidden.hex()})).decode()
    return "\n".join([BEGIN, *textwrap.wrap(body, 64), END, ""]).encode()


def unlock(data: bytes, passphrase: str) -> tuple[bytes, KeyCost] | None:
    """The secret in a file's bytes and the price of a guess at it; None if the passphrase does not open it.

    Raises: SchemaRefusal, when these are no such bytes.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        lines = data.decode("ascii").strip().splitlines()
        if len(data) > FILE_CAP or (lines[0], lines[-1]) != (BEGIN, END):
            raise ValueError
        body = parse_json(base64.b64decode("".join(lines[1:-1]), validate=True), cap=FILE_CAP)
        hidden = bytes.fromhex(body.pop("hidden"))
        cost = KeyCost(**{item.name: body[item.name] for item in fields(KeyCost)})
        salt = bytes.fromhex(body["salt"])
        if set(body) != {"format", "kdf", "salt", "n", "r", "p"} or (body["format"], body["kdf"]) != (FORMAT, "scrypt"):
            raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ParameterError):
        raise SchemaRefusal(
            "an encrypted key must be in the form that this version writes",
            given="another",
            next_step="Restore the file from a backup, or update this program.",
        ) from None
    try:
        return ChaCha20Poly1305(derive(passphrase, salt, cost)).decrypt(bytes(12), hidden, canonical_json(body)), cost
    except InvalidTag:
        return None


def derive(passphrase: str, salt: bytes, cost: KeyCost) -> bytes:
    """The 32 bytes that a passphrase makes with a file's salt, at the price of one guess."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=cost.n, r=cost.r, p=cost.p).derive(passphrase.encode())
