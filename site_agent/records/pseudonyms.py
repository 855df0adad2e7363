"""Pseudonyms of a table's persons: keyed hashes, worth nothing without the key, and 16 bytes a person in memory.

As Python's texts those of ten million persons would take 900 MB, and half of it again as a set.
"""

from __future__ import annotations

import hmac
import operator
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

__all__ = ["PERSONS", "Pseudonyms", "in_order", "pseudonym"]

PERSONS = 1 << 16
"""Persons whose pseudonyms are text at once."""
_BYTES = 16


def pseudonym(person: str, *, key: bytes) -> str:
    """The keyed hash of one identifier, as `read` gives it. The key is the site's, the same in every study.

    >>> pseudonym("17", key=b"k" * 32)
    '93b337ea8101b344f7978b7cd5fe885f'
    """
    return _digest(person, key).hex()


class Pseudonyms(Sequence[str]):
    """The pseudonyms of persons, in the order of their rows; each reads as the text that `pseudonym` gives.

    Args:
        digests: (n,) of 16 bytes each.

    >>> made = Pseudonyms(np.array([b"b" * 16, b"a" * 16]))
    >>> len(made), made[-1], list(made[:1])
    (2, '61616161616161616161616161616161', ['62626262626262626262626262626262'])
    """

    __slots__ = ("_digests",)

    def __init__(self, digests: NDArray[np.bytes_]) -> None:
        self._digests = np.ascontiguousarray(digests, dtype=f"S{_BYTES}")

    @classmethod
    def of(cls, persons: pd.Series, *, key: bytes) -> Pseudonyms:
        """Of (n,) identifiers, as `read` gives them."""
        out = np.empty(len(persons), dtype=f"S{_BYTES}")
        for first in range(0, len(persons), PERSONS):
            some = b"".join(_digest(str(person), key) for person in persons.iloc[first : first + PERSONS].tolist())
            out[first : first + PERSONS] = np.frombuffer(some, dtype=out.dtype)
        return cls(out)

    def __len__(self) -> int:
        return len(self._digests)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Pseudonyms: ...

    def __getitem__(self, place: int | slice) -> str | Pseudonyms:
        if isinstance(place, slice):
            return Pseudonyms(self._digests[place])
        # Not the item itself, of which numpy cuts the last bytes that are zero.
        return self._digests[[operator.index(place)]].tobytes().hex()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), PERSONS):
            text = self._digests[first : first + PERSONS].tobytes().hex()
            yield from (text[at : at + 2 * _BYTES] for at in range(0, len(text), 2 * _BYTES))

    def in_order(self) -> Iterator[Pseudonyms]:
        """As of the function `in_order`: as many parts by the first byte as leave some `PERSONS` in each."""
        first = self._digests.view(np.uint8).reshape(-1, _BYTES)[:, 0]
        ends = np.linspace(0, 256, min(len(self) // PERSONS + 1, 256) + 1).astype(int)
        for low, high in pairwise(ends):
            part = np.sort(self._digests[(first - np.uint8(low)) < high - low])
            yield Pseudonyms(np.append(part[:1], part[1:][part[1:] != part[:-1]]))


def in_order(persons: Collection[str]) -> Iterator[Sequence[str]]:
    """Pseudonyms in the order of their texts, each once; a part after the other, so that no second list is held.

    >>> [list(part) for part in in_order(["cc", "aa", "cc"])]
    [['aa', 'cc']]
    """
    if isinstance(persons, Pseudonyms):
        yield from persons.in_order()
    else:
        yield sorted(set(persons))


def _digest(person: str, key: bytes) -> bytes:
    return hmac.digest(key, b"person\0" + person.encode(), "sha256")[:_BYTES]
