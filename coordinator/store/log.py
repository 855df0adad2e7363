"""The coordinator's append-only log, as a Merkle tree (RFC 6962, section 2.1; verification as in RFC 9162).

Every anchor and every acceptance is a leaf. A site that kept one root can later ask for proof that its entry is still
there (inclusion) and that the log only grew (consistency); a coordinator that hid, reordered or replaced an entry
cannot give it. All functions are pure and work on leaf hashes.

>>> leaves = [leaf_hash(text) for text in (b"a", b"b", b"c")]
>>> verify_inclusion(leaves[2], 2, 3, inclusion_proof(leaves, 2), root(leaves))
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shared.base.merkle import leaf_hash, node_hash, verify_consistency, verify_inclusion
from shared.errors import ParameterError

__all__ = [
    "append",
    "consistency_proof",
    "inclusion_proof",
    "leaf_hash",
    "peaks_root",
    "root",
    "verify_consistency",
    "verify_inclusion",
]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def root(leaves: Sequence[bytes]) -> bytes:
    """Merkle root of leaf hashes; of none, the hash of nothing."""
    if not leaves:
        return hashlib.sha256().digest()
    peaks: tuple[bytes, ...] = ()
    for size, leaf in enumerate(leaves):
        peaks = append(peaks, size, leaf)
    return peaks_root(peaks)


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


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Audit path of leaf `index` (PATH in RFC 6962). Raises: ParameterError, when there is no such leaf."""
    if not 0 <= index < len(leaves):
        raise ParameterError("the entry must be in the log", given=f"{index} of {len(leaves)}")
    if len(leaves) == 1:
        return ()
    k = _split(len(leaves))
    if index < k:
        return (*inclusion_proof(leaves[:k], index), root(leaves[k:]))
    return (*inclusion_proof(leaves[k:], index - k), root(leaves[:k]))


def consistency_proof(leaves: Sequence[bytes], size: int) -> tuple[bytes, ...]:
    """Proof that the log's first `size` leaves are still its first (PROOF in RFC 6962). Raises: ParameterError."""
    if not 0 < size <= len(leaves):
        raise ParameterError("the earlier size must be in 1..log size", given=f"{size} of {len(leaves)}")
    return _subproof(leaves, size, True)


def _subproof(leaves: Sequence[bytes], size: int, whole: bool) -> tuple[bytes, ...]:
    if size == len(leaves):
        return () if whole else (root(leaves),)
    k = _split(len(leaves))
    if size <= k:
        return (*_subproof(leaves[:k], size, whole), root(leaves[k:]))
    return (*_subproof(leaves[k:], size - k, False), root(leaves[:k]))
