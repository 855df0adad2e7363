"""The coordinator's append-only log, as a Merkle tree (RFC 6962, section 2.1; verification as in RFC 9162).

Every anchor and every acceptance is a leaf. A site that kept one root can later ask for proof that its entry is still
there (inclusion) and that the log only grew (consistency); a coordinator that hid, reordered or replaced an entry
cannot give it. All of it works on leaf hashes, and reads no database.

>>> tree = MerkleTree([leaf_hash(text) for text in (b"a", b"b", b"c")])
>>> verify_inclusion(leaf_hash(b"c"), 2, 3, tree.inclusion(2, 3), tree.root(3))
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from shared.base.merkle import leaf_hash, node_hash, verify_consistency, verify_inclusion
from shared.errors import ParameterError

__all__ = [
    "MerkleTree",
    "append",
    "leaf_hash",
    "peaks_root",
    "verify_consistency",
    "verify_inclusion",
]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def append(peaks: Sequence[bytes], size: int, leaf: bytes) -> tuple[bytes, ...]:
    """Roots of the full subtrees of a log of `size` + 1 leaves, from those of the log of `size`.

    They are all that appending needs, so an acceptance costs the logarithm of the log's length.
    """
    if size.bit_count() != len(peaks):
        raise ParameterError("a log of this size must have one peak per binary digit 1", given=f"{len(peaks)} peaks")
    grown = [*peaks, leaf]
    while size & 1:
        right, left = grown.pop(), grown.pop()
        grown.append(node_hash(left, right))
        size >>= 1
    return tuple(grown)


def peaks_root(peaks: Sequence[bytes]) -> bytes:
    """The Merkle root, from the roots of the full subtrees, largest first."""
    if not peaks:
        return hashlib.sha256().digest()
    found = peaks[-1]
    for peak in reversed(peaks[:-1]):
        found = node_hash(peak, found)
    return found


class MerkleTree:
    """The hashes of a log's full subtrees, level by level, as far as its leaves have been told: 64 bytes a leaf.

    With them a proof takes the logarithm of the log's length, and nothing is hashed but what lies at its right edge.

    >>> tree = MerkleTree([leaf_hash(text) for text in (b"a", b"b", b"c")])
    >>> tree.size, tree.root(3) == node_hash(node_hash(*tree.leaves()[:2]), tree.leaves()[2])
    (3, True)
    """

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels = [bytearray()]  # level k: the roots of 2^k leaves each
        for leaf in leaves:
            self.append(leaf)

    @property
    def size(self) -> int:
        """Number of leaves."""
        return len(self._levels[0]) // 32

    def leaves(self) -> list[bytes]:
        """The leaf hashes, in order."""
        return [self._node(0, place) for place in range(self.size)]

    def append(self, leaf: bytes) -> None:
        """Add the next leaf, and each full subtree that it ends."""
        place, node = self.size, leaf
        for level in range(place.bit_length() + 1):
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += node
            if not place & 1:
                return
            node = node_hash(self._node(level, place - 1), node)
            place >>= 1

    def root(self, size: int) -> bytes:
        """Merkle root of the first `size` leaves."""
        return self._range(0, size) if size else hashlib.sha256().digest()

    def inclusion(self, index: int, size: int) -> tuple[bytes, ...]:
        """Audit path of leaf `index` in the log of `size` (PATH in RFC 6962). Raises: ParameterError."""
        if not 0 <= index < size <= self.size:
            raise ParameterError("the entry must be in the log", given=f"{index} of {min(size, self.size)}")
        path, begin, end = list[bytes](), 0, size
        while end - begin > 1:
            middle = begin + _split(end - begin)
            if index < middle:
                path.append(self._range(middle, end))
                end = middle
            else:
                path.append(self._range(begin, middle))
                begin = middle
        return tuple(reversed(path))

    def growth(self, old: int, size: int) -> tuple[bytes, ...]:
        """Proof that the first `old` leaves are still the first of `size` (PROOF in RFC 6962).

        Raises: ParameterError.
        """
        if not 0 < old <= size <= self.size:
            raise ParameterError("the earlier size must be in 1..log size", given=f"{old} of {min(size, self.size)}")
        path, begin, end = list[bytes](), 0, size
        while old != end:
            middle = begin + _split(end - begin)
            if old <= middle:
                path.append(self._range(middle, end))
                end = middle
            else:
                path.append(self._range(begin, middle))
                begin = middle
        own = () if begin == 0 else (self._range(begin, end),)
        return (*own, *reversed(path))

    def _node(self, level: int, place: int) -> bytes:
        return bytes(self._levels[level][32 * place : 32 * place + 32])

    def _range(self, begin: int, end: int) -> bytes:
        """Root of the leaves from `begin` to before `end`; `begin` is where a subtree of such a size may begin."""
        found, last = b"", end
        while last > begin:
            # From the right: the largest full subtree that ends here and lies within.
            level = min((last & -last).bit_length() - 1, (last - begin).bit_length() - 1)
            node = self._node(level, (last >> level) - 1)
            found = node_hash(node, found) if found else node
            last -= 1 << level
        return found
