"""One way to write a value as bytes, so that a hash means something.

Canonical JSON here: UTF-8, keys sorted, no spaces, no NaN or infinity, floats as the shortest text that reads
back to the same double. Everything hashed or signed in the product (plan, dictionary, receipt, ledger entry,
manifest, envelope) is written by this module and by nothing else. What is read back is told apart here, too: true is
no number, and a text is no list.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeGuard

from shared.errors import Refusal, SchemaRefusal

__all__ = ["CanonicalForm", "canonical_json", "canonical_list", "closed", "parse_json", "sha256_hex"]
__all__ += ["is_day", "is_digest", "is_list", "is_number", "is_whole", "is_word"]

Pairs = list[tuple[str, Any]]
# Made once: `json.dumps` with settings of its own makes an encoder for each value.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """Write `value` (dicts, lists, strings, numbers, booleans, None) as canonical JSON bytes.

    Raises: SchemaRefusal, if the value holds NaN, infinity, or something JSON has no form for.

    >>> canonical_json({"b": 1.50, "a": [True, None, "é"]})
    b'{"a":[true,null,"\\xc3\\xa9"],"b":1.5}'
    """
    try:
        return _CANONICAL.encode(value).encode()
    except (TypeError, ValueError) as error:
        raise SchemaRefusal("a hashed value must be plain JSON without NaN or infinity", given=str(error)) from None


def canonical_list(parts: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    """`canonical_json` of one long list, of which a part after the other is given and written.

    Raises: SchemaRefusal, as `canonical_json`.

    >>> b"".join(canonical_list([["a", "b"], [], ["c"]])), b"".join(canonical_list([]))
    (b'["a","b","c"]', b'[]')
    """
    before = b"["
    for part in parts:
        if part:
            yield before + canonical_json(list(part))[1:-1]
            before = b","
    yield b"[]" if before == b"[" else b"]"


def _unique(pairs: Pairs) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def parse_json(data: bytes, *, cap: int = 1 << 20, made: Callable[[Pairs], dict[str, Any]] = _unique) -> Any:
    """Read JSON bytes of at most `cap` bytes; duplicate keys, NaN, deep nesting and half a character are refused.

    Args:
        made: makes each object from its pairs, and raises ValueError where a key stands twice.
    Raises: SchemaRefusal.

    >>> parse_json(b'{"a":1}')
    {'a': 1}
    """
    if len(data) > cap:
        raise SchemaRefusal(f"a JSON document must have at most {cap} bytes", given=f"{len(data)}")

    try:
        text, decoder = data.decode("utf-8"), _decoder(made)
        # `decode` looks for white space around it as well: a quarter of the time of a short document.
        found, end = decoder.raw_decode(text) if text.startswith("{") else (None, -1)
        if end != len(text):
            found = decoder.decode(text)
        if b"\\u" in data:  # the one way to write half of a character, which no text in UTF-8 can hold
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError) as error:
        raise SchemaRefusal("the document must be JSON", given=type(error).__name__) from None


@lru_cache(maxsize=8)
def _decoder(made: Callable[[Pairs], dict[str, Any]]) -> json.JSONDecoder:
    """Made once as well."""

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.JSONDecoder(object_pairs_hook=made, parse_constant=no_constant)


def sha256_hex(data: bytes) -> str:
    """SHA-256 of `data`, 64 lower-case hexadecimal digits.

    >>> sha256_hex(b"")[:12]
    'e3b0c44298fc'
    """
    return hashlib.sha256(data).hexdigest()


def closed(given: Mapping[str, Any], known: Collection[str], *, where: str, refusal: type[Refusal]) -> None:
    """Refuse a mapping that holds a key nobody reads, naming the nearest known one.

    Raises: `refusal`.

    >>> closed({"w": 0.8}, {"w", "radius"}, where="[release]", refusal=SchemaRefusal)
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1)
            step = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(sorted(known))}."
            raise refusal(f"{where} must hold known keys only", given=repr(key), next_step=step)


class CanonicalForm:
    """A frozen dataclass that is hashed and signed as the canonical JSON of its fields, which are plain values.

    ``WHAT`` is what a refusal calls it, ``CAP`` the most bytes of one: set without a type, so that neither is a field.
    """

    WHAT: ClassVar[str]
    CAP: ClassVar[int]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json({item.name: getattr(self, item.name) for item in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a verified payload. Raises: SchemaRefusal."""
        body = parse_json(data, cap=cls.CAP)
        known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(body, dict) or body.keys() != known:
            raise SchemaRefusal(f"{cls.WHAT} must have {', '.join(sorted(known))}")
        read = cls(**body)
        if read.to_bytes() != data:
            raise SchemaRefusal(f"{cls.WHAT} must be in canonical form")
        return read


def is_number(value: object) -> TypeGuard[float]:
    """True of a whole number or one with a fraction.

    >>> is_number(2), is_number(0.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """True of a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """True of a sequence that is no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_digest(text: object) -> TypeGuard[str]:
    """True of a SHA-256, or a public key: 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def is_word(text: object) -> TypeGuard[str]:
    """True of a name that needs no quoting anywhere: ASCII letters, digits, - and _, at most 64 of them.

    >>> is_word("st-marys"), is_word("St. Mary's"), is_word("")
    (True, False, False)
    """
    plain = isinstance(text, str) and text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    return plain and len(str(text)) <= 64


def is_day(text: object) -> TypeGuard[str]:
    """True of an ISO date in its one spelling, 2026-01-05: such days compare as their texts do."""
    try:
        return isinstance(text, str) and dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
