"""Signed statements that follow each other: who may take part, who leads, whose key is whose.

Each names its number and the SHA-256 of the one before it, so that one which is shown again, left out or put in another
place follows from nothing. They are known by type, format and the party that they are about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from shared.base.canonical import canonical_json, is_day, is_digest, parse_json, sha256_hex
from shared.base.chain import GENESIS
from shared.base.keys import Envelope, SigningKey
from shared.errors import ReplayRefusal, SchemaRefusal

__all__ = ["STATEMENT_CAP", "ChainPlace", "Chained", "must_be", "require_next"]

STATEMENT_CAP = 64 << 10
"""Most bytes of one statement."""


def must_be(holds: bool, rule: str) -> None:
    """Raises: SchemaRefusal."""
    if not holds:
        raise SchemaRefusal(rule, given="another form")


@dataclass(frozen=True, kw_only=True)
class ChainPlace:
    """Position in a chain of statements, for a reader who starts there: the last statement's number and digest.

    >>> place = ChainPlace.read(f"3 {'ab' * 32}")
    >>> place.number, str(place) == f"3 {'ab' * 32}", ChainPlace.read("")
    (3, True, None)
    """

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number} {self.digest}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """As it was written; None for a blank text: a chain that has not begun. Raises: SchemaRefusal."""
        if not text:
            return None
        number, _, digest = text.partition(" ")
        good = number.isascii() and number.isdigit() and len(number) < 10 and is_digest(digest)
        must_be(good and str(int(number)) == number != "0", "the place of a chain must be its number and its SHA-256")
        return cls(number=int(number), digest=digest)


@dataclass(frozen=True, kw_only=True)
class Chained:
    """A statement in a chain of its party.

    Args:
        number: 1, 2, … in its chain.
        previous: SHA-256 of the statement before it; 64 zeros for the first.
        day: ISO date, UTC, for people.
    """

    TYPE: ClassVar[str] = ""
    FORMAT: ClassVar[str] = ""
    WHAT: ClassVar[str] = "a statement"

    number: int
    previous: str
    day: str

    def __post_init__(self) -> None:
        must_be(type(self.number) is int and 1 <= self.number < 1 << 31, f"{self.WHAT} must have a number from 1 on")
        must_be(is_digest(self.previous), f"{self.WHAT} must name the one before it by its SHA-256")
        must_be((self.previous == GENESIS) == (self.number == 1), f"{self.WHAT} must follow another, but for the first")
        must_be(is_day(self.day), f"{self.WHAT} must have an ISO date")

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes: what the next one names."""
        return sha256_hex(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        body = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return canonical_json({"format": self.FORMAT, **body})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a payload. Raises: SchemaRefusal."""
        body = parse_json(data, cap=STATEMENT_CAP)
        known = {item.name for item in fields(cls)}
        must_be(
            isinstance(body, dict) and body.keys() == {*known, "format"} and body["format"] == cls.FORMAT,
            f"{cls.WHAT} must be of format {cls.FORMAT}",
        )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k != "format"}
        read = cls(**values)
        must_be(read.to_bytes() == data, f"{cls.WHAT} must be in canonical form")
        return read

    @classmethod
    def said(cls, envelope: Envelope) -> Self:
        """Statement in an envelope, signatures not verified: the statement itself may decide whose are needed.

        Raises: SchemaRefusal.
        """
        must_be(envelope.payload_type == cls.TYPE, f"{cls.WHAT} must be of type {cls.TYPE}")
        return cls.from_bytes(envelope.payload)

    def signed(self, keys: Iterable[SigningKey]) -> Envelope:
        """Sign it with every key."""
        return Envelope.sign(self.TYPE, self.to_bytes(), list(keys))


def require_next(said: Chained, last: Chained | ChainPlace | None) -> None:
    """Refuse what does not follow `last`: it was shown before, or something before it is missing.

    Raises: ReplayRefusal.
    """
    number, previous = (1, GENESIS) if last is None else (last.number + 1, last.digest)
    if (said.number, said.previous) != (number, previous):
        given = f"number {said.number}" if said.number != number else "one that follows another history"
        raise ReplayRefusal(
            f"{said.WHAT} must be number {number} of its chain, and follow the one before it",
            given=given,
            next_step="Nothing was changed. It was shown before, or one is missing: ask the study lead.",
        )
