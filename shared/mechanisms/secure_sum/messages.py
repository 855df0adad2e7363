"""Messages between sites and coordinator in a secure sum: frozen values, each with one encoding in bytes.

The encoding is canonical JSON, bytes as base64, with the message's kind and the digest of the sum's terms. A message is
refused if it is longer than its terms allow, or differs from its own canonical encoding.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from shared.base.canonical import canonical_json, is_whole, parse_json
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import IntegrityRefusal, ReplayRefusal, SchemaRefusal, SignatureRefusal
from shared.mechanisms.secure_sum.masks import require_full
from shared.mechanisms.secure_sum.terms import SumTerms

__all__ = [
    "BOX",
    "Agreement",
    "KeyOffer",
    "Lists",
    "MaskedValue",
    "Opening",
    "Roster",
    "SealedShares",
    "SumAssent",
    "Survivors",
    "ToldLevel",
]

BOX = 80
"""Bytes of a sealed box: one share of each of two secrets of 32 bytes, and 16 bytes that tell whether it is whole."""
_HEAD, _EACH = 1024, 512
"""Bytes that a message may have, and beside them for each site."""
_MOST_EVENTS = 1e9


class Lists:
    """The lists of a secure sum that each site signs once: the members, and the survivors whose numbers are in it."""

    MEMBERS = "members"
    SURVIVORS = "survivors"


# -- what reads a field ---------------------------------------------------------------------------------------------
def _place(value: Any, terms: SumTerms) -> int:
    if not is_whole(value) or not 0 <= value < len(terms.members):
        raise ValueError
    return value


def _figure(value: Any, terms: SumTerms) -> float:
    if not isinstance(value, float) or not abs(value) < _MOST_EVENTS:
        raise ValueError
    return value


def _about(value: Any, terms: SumTerms) -> str:
    if value not in (Lists.MEMBERS, Lists.SURVIVORS):
        raise ValueError
    return str(value)


def _raw(value: Any, length: int) -> bytes:
    found = base64.b64decode(value, validate=True)
    if len(found) != length:
        raise ValueError
    return found


def _bytes(length: int) -> Callable[[Any, SumTerms], bytes]:
    return lambda value, terms: _raw(value, length)


def _words(value: Any, terms: SumTerms) -> bytes:
    return _raw(value, 8 * terms.coordinates)


def _short(value: Any, terms: SumTerms) -> list[Any]:
    if not isinstance(value, list) or len(value) > len(terms.members):
        raise ValueError
    return value


def _offers(value: Any, terms: SumTerms) -> tuple[KeyOffer, ...]:
    return tuple(KeyOffer.of(item, terms) for item in _short(value, terms))


def _ascending(value: Any, terms: SumTerms) -> tuple[int, ...]:
    sites = tuple(_place(item, terms) for item in _short(value, terms))
    if list(sites) != sorted(set(sites)):
        raise ValueError
    return sites


def _by_place(length: int) -> Callable[[Any, SumTerms], dict[int, bytes]]:
    """Of a mapping of places to so many bytes each."""

    def read(value: Any, terms: SumTerms) -> dict[int, bytes]:
        if not isinstance(value, dict):
            raise ValueError
        return {_place(int(key), terms): _raw(item, length) for key, item in value.items()}

    return read


class _Message:
    """A message: its fields are whole numbers, texts, bytes, other messages, and tuples or mappings of these."""

    kind: ClassVar[str]
    reads: ClassVar[Mapping[str, Callable[[Any, SumTerms], Any]]]
    """Field to what reads it from a plain value. Each raises: KeyError, TypeError, ValueError."""

    def body(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    def to_bytes(self, terms: SumTerms) -> bytes:
        """Canonical JSON, bound to the terms."""
        return canonical_json({"kind": self.kind, "sum": terms.digest.hex(), **self.body()})

    @classmethod
    def from_bytes(cls, data: bytes, terms: SumTerms) -> Self:
        """The message of this kind in these bytes.

        Raises: SchemaRefusal (another kind, too long, not as it would be written), ReplayRefusal (of another sum).
        """
        body = parse_json(data, cap=_HEAD + _EACH * len(terms.members) + 16 * terms.coordinates)
        if not isinstance(body, dict) or body.pop("kind", None) != cls.kind:
            raise SchemaRefusal(f"the message must be of kind {cls.kind}", given="another kind")
        if body.pop("sum", None) != terms.digest.hex():
            raise ReplayRefusal("a message must be of the sum that is under way", given="one of another sum")
        try:
            made = cls.of(body, terms)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SchemaRefusal(f"a message of kind {cls.kind} must have the form of its kind") from None
        if made.to_bytes(terms) != data:
            raise SchemaRefusal("a message must be in canonical form", given="other bytes of the same meaning")
        return made

    @classmethod
    def of(cls, body: Any, terms: SumTerms) -> Self:
        """From plain values. Raises: KeyError, TypeError, ValueError."""
        if not isinstance(body, dict) or body.keys() != cls.reads.keys():
            raise ValueError
        return cls(**{name: read(body[name], terms) for name, read in cls.reads.items()})


@dataclass(frozen=True, kw_only=True)
class ToldLevel(_Message):
    """A site's level before the sum: events, and events expected under the model (`charges`), each with noise."""

    kind: ClassVar[str] = "level"
    reads: ClassVar = {"sender": _place, "events": _figure, "charges": _figure}
    sender: int
    events: float
    charges: float


@dataclass(frozen=True, kw_only=True)
class KeyOffer(_Message):
    """A site's keys of one sum, signed with the key that the plan knows it by.

    Args:
        cipher, mask: (32 bytes) X25519 public keys, for shares and for masks.
        commitment: SHA-256 of the seed of the mask that it will add for itself.
    """

    kind: ClassVar[str] = "offer"
    reads: ClassVar = {
        "sender": _place,
        "cipher": _bytes(32),
        "mask": _bytes(32),
        "commitment": _bytes(32),
        "signature": _bytes(64),
    }
    sender: int
    cipher: bytes
    mask: bytes
    commitment: bytes
    signature: bytes

    @staticmethod
    def signed(terms: SumTerms, sender: int, public: tuple[bytes, bytes, bytes], key: SigningKey) -> KeyOffer:
        """Signed by the site. public: cipher, mask and commitment."""
        bare = KeyOffer(sender=sender, cipher=public[0], mask=public[1], commitment=public[2], signature=bytes(64))
        return KeyOffer(**{**vars(bare), "signature": key.sign(bare._said(terms))})

    def _said(self, terms: SumTerms) -> bytes:
        body = {"sum": terms.digest.hex(), **self.body()}
        del body["signature"]
        return Envelope.encoding("application/vnd.tributary.sum-offer+json", canonical_json(body))

    def require(self, terms: SumTerms) -> None:
        """Raises: SignatureRefusal (not by the key of that member, for this sum), IntegrityRefusal (of small order)."""
        _verified(terms, self.sender, self.signature, self._said(terms))
        for public in (self.cipher, self.mask):
            require_full(public)


@dataclass(frozen=True, kw_only=True)
class Roster(_Message):
    """Everybody who offered keys, as the coordinator tells each site."""

    kind: ClassVar[str] = "roster"
    reads: ClassVar = {"offers": _offers}
    offers: tuple[KeyOffer, ...]


@dataclass(frozen=True, kw_only=True)
class SealedShares(_Message):
    """Boxes of shares: from one site to the others, or from the others to one.

    Args:
        site: whose they are, or whom they are for. boxes: by the other site's place.
    """

    kind: ClassVar[str] = "shares"
    reads: ClassVar = {"site": _place, "boxes": _by_place(BOX)}
    site: int
    boxes: Mapping[int, bytes]


@dataclass(frozen=True, kw_only=True)
class SumAssent(_Message):
    """A site's signature under a list; it signs one of each kind in a sum, and no second."""

    kind: ClassVar[str] = "assent"
    reads: ClassVar = {"sender": _place, "about": _about, "digest": _bytes(32), "signature": _bytes(64)}
    sender: int
    about: str
    digest: bytes
    signature: bytes

    @staticmethod
    def signed(terms: SumTerms, sender: int, about: str, digest: bytes, key: SigningKey) -> SumAssent:
        """Signed by the site.

        Args:
            terms: of the sum.
            sender: the site's place in it.
            about: which list it is under, of `Lists`.
            digest: SHA-256 of the list.
            key: the site's own.
        """
        signature = key.sign(_agreed(terms, about, digest))
        return SumAssent(sender=sender, about=about, digest=digest, signature=signature)


@dataclass(frozen=True, kw_only=True)
class Survivors(_Message):
    """Sites whose masked numbers the coordinator has received: the list that it sends them to sign."""

    kind: ClassVar[str] = "survivors"
    reads: ClassVar = {"sites": _ascending}
    sites: tuple[int, ...]

    def digest(self, members: bytes) -> bytes:
        """Of this list among those members."""
        return hashlib.sha256(canonical_json({"members": members.hex(), "survivors": list(self.sites)})).digest()


@dataclass(frozen=True, kw_only=True)
class Agreement(_Message):
    """One list with everybody's signatures under it."""

    kind: ClassVar[str] = "agreement"
    reads: ClassVar = {"about": _about, "digest": _bytes(32), "signatures": _by_place(64)}
    about: str
    digest: bytes
    signatures: Mapping[int, bytes]

    def verify(self, terms: SumTerms, about: str, digest: bytes) -> None:
        """Raises: IntegrityRefusal (of another list than the one given), SignatureRefusal."""
        if (self.about, self.digest) != (about, digest):
            raise IntegrityRefusal(
                f"the sites must agree to the {about} that this site was shown", given="another list"
            )
        for sender, signature in self.signatures.items():
            _verified(terms, sender, signature, _agreed(terms, about, digest))

    def require(self, terms: SumTerms, about: str, digest: bytes) -> None:
        """Raises: as `verify`, and IntegrityRefusal where fewer than the threshold of members signed it."""
        self.verify(terms, about, digest)
        if len(self.signatures) < terms.threshold:
            raise IntegrityRefusal(
                f"{terms.threshold} sites must sign one list of {about}", given=f"{len(self.signatures)}"
            )


@dataclass(frozen=True, kw_only=True)
class MaskedValue(_Message):
    """A site's numbers with its share of the noise under all masks: 8 bytes each, little-endian, modulo 2⁶⁴."""

    kind: ClassVar[str] = "masked"
    reads: ClassVar = {"sender": _place, "words": _words}
    sender: int
    words: bytes


@dataclass(frozen=True, kw_only=True)
class Opening(_Message):
    """One share of each member: of its own mask's seed if it is a survivor, else of its key for masks."""

    kind: ClassVar[str] = "opening"
    reads: ClassVar = {"sender": _place, "shares": _by_place(32)}
    sender: int
    shares: Mapping[int, bytes]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, _Message):
        return value.body()
    if isinstance(value, Mapping):
        return {f"{key}": _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _agreed(terms: SumTerms, about: str, digest: bytes) -> bytes:
    body = {"sum": terms.digest.hex(), "about": about, "digest": digest.hex()}
    return Envelope.encoding("application/vnd.tributary.sum-assent+json", canonical_json(body))


def _verified(terms: SumTerms, sender: int, signature: bytes, message: bytes) -> None:
    if not (0 <= sender < len(terms.members) and PublicKey(terms.members[sender]).verifies(signature, message)):
        raise SignatureRefusal(
            "a message of a secure sum must be signed by the member that it names",
            given="another signature",
            next_step="Ask the study lead whether that site's key changed since the plan was signed.",
        )
