"""Masks and the secrets they come from: X25519 between two sites, HKDF, ChaCha20; secrets in Shamir's shares.

A mask's seed has 256 bits and serves one sum. Shares are those of pycryptodome, over GF(2¹²⁸): a secret of 32 bytes is
shared as two halves (A. Shamir 1979, Commun. ACM 22, 612).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from shared.errors import IntegrityRefusal
from shared.mechanisms.secure_sum.terms import SumTerms

__all__ = [
    "SECRET",
    "Words",
    "combined",
    "commitment",
    "mask",
    "opened",
    "pair_mask",
    "require_full",
    "sealed",
    "shares_of",
]

Words = NDArray[np.uint64]
SECRET = 32
"""Bytes of a secret, and of a share of it."""
_ANY = X25519PrivateKey.from_private_bytes(bytes(SECRET))
"""A private key for trying public ones: every private key is a multiple of 8, so that all fail with the same points."""


def mask(secret: bytes, count: int) -> Words:
    """(count,) uniform words: the key stream of ChaCha20 under a secret that is used once."""
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def pair_mask(own: X25519PrivateKey, place: int, other: tuple[int, bytes], terms: SumTerms) -> Words:
    """(coordinates,) the mask of two sites as the one with `own` adds it: what the other adds is its negative.

    Args:
        place: of the site with `own`. other: place and public key.
    """
    low, high = sorted((place, other[0]))
    words = mask(_agreed(own, other[1], b"mask", (low, high), terms), terms.coordinates)
    return words if place == low else np.uint64(0) - words


def sealed(own: X25519PrivateKey, public: bytes, way: tuple[int, int], text: bytes, terms: SumTerms) -> bytes:
    """Shares for another site that it alone can read; the key is used this once.

    Args:
        own: this site's private key of this sum.
        public: the other site's key of this sum, 32 bytes.
        way: from which place to which.
        text: the shares.
        terms: of the sum, which are bound to the box.
    Raises: IntegrityRefusal: a key of small order.
    """
    return ChaCha20Poly1305(_agreed(own, public, b"shares", way, terms)).encrypt(bytes(12), text, terms.digest)


def opened(own: X25519PrivateKey, public: bytes, way: tuple[int, int], box: bytes, terms: SumTerms) -> bytes:
    """Plaintext of a sealed box; the inverse of `sealed`.

    Args:
        own: this site's private key of this sum.
        public: the key of the site that sealed it, 32 bytes.
        way, terms: as given to `sealed`.
        box: returned by `sealed`.
    Raises: IntegrityRefusal: other keys, another way or other terms, or a box that was modified.
    """
    try:
        return ChaCha20Poly1305(_agreed(own, public, b"shares", way, terms)).decrypt(bytes(12), box, terms.digest)
    except InvalidTag:
        raise IntegrityRefusal(
            "a box of shares must open with the two sites' keys", given=f"site {way[0]}'s does not"
        ) from None


def _agreed(own: X25519PrivateKey, public: bytes, use: bytes, way: tuple[int, int], terms: SumTerms) -> bytes:
    secret = _exchanged(own, public)
    info = b"tributary secure sum " + use + bytes(way) + terms.digest
    return HKDF(algorithm=hashes.SHA256(), length=SECRET, salt=None, info=info).derive(secret)


def _exchanged(own: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise IntegrityRefusal("a site's key of a sum must be a full point", given="one of small order") from None


def require_full(public: bytes) -> None:
    """Refuse a key with which anybody would know the secret: its exchange with any other key gives zeros.

    Raises: IntegrityRefusal: a key of small order.
    """
    _exchanged(_ANY, public)


def shares_of(secret: bytes, terms: SumTerms) -> list[bytes]:
    """A share of the secret for each member, of which the threshold together give it back, and fewer tell nothing.

    >>> from shared.mechanisms.secure_sum.terms import SumTerms
    >>> five = tuple(f"{k:064x}" for k in range(5))
    >>> rest = dict(coordinates=1, sensitivity=1.0, sigma=1.0, largest=1.0)
    >>> terms = SumTerms(plan="0" * 64, wave=1, label="a", members=five, drop_outs=1, colluders=1, **rest)
    >>> shares = shares_of(bytes(range(32)), terms)
    >>> combined({k: shares[k] for k in (0, 1, 3, 4)}, terms) == bytes(range(32))
    True
    """
    from Crypto.Protocol.SecretSharing import Shamir

    halves = [Shamir.split(terms.threshold, len(terms.members), half, False) for half in (secret[:16], secret[16:])]
    return [first[1] + second[1] for first, second in zip(*halves, strict=True)]


def combined(shares: Mapping[int, bytes], terms: SumTerms) -> bytes:
    """The secret of the first `terms.threshold` shares, by the place of their holder."""
    from Crypto.Protocol.SecretSharing import Shamir

    some = sorted(shares.items())[: terms.threshold]
    halves = (
        Shamir.combine([(place + 1, share[part : part + 16]) for place, share in some], False) for part in (0, 16)
    )
    return b"".join(halves)


def commitment(secret: bytes) -> bytes:
    """SHA-256 of a secret of 256 bits: tells nobody the secret, and anybody whether one is it."""
    return hashlib.sha256(secret).digest()
