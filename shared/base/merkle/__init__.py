"""Verification of an append-only log against one remembered root (RFC 6962; verification as in RFC 9162).

The side that keeps the log makes the proofs (`shared.base.merkle.tree`); here is what the other side needs. All
functions are pure and work on hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

__all__ = ["leaf_hash", "node_hash", "verify_consistency", "verify_inclusion"]


def leaf_hash(entry: bytes) -> bytes:
    """SHA-256 of an entry, marked as a leaf so that it can never pass for an inner node."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256 of two nodes, marked as an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected: bytes) -> bool:
    """True if `proof` shows that `leaf` stands at `index` of the log of `size` leaves with root `expected`.

    Args:
        leaf: `leaf_hash` of the entry, 32 bytes.
        index: of the entry, from 0.
        size: entries of the log.
        proof: the audit path, from the leaf upwards; 32 bytes each.
        expected: the root that is remembered.
    """
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(step, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, step)
        place, last = place >> 1, last >> 1
    return last == 0 and found == expected


def verify_consistency(old_size: int, size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """True if `proof` shows that the log of `size` leaves only appended to the one of `old_size`.

    Args:
        old_size, old_root: the log that is remembered; of none nothing is shown.
        size, new_root: the log of today.
        proof: hashes in the order of RFC 9162, 32 bytes each; none where the two are of one size.
    """
    if not 0 < old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == new_root
    steps = [old_root, *proof] if old_size.bit_count() == 1 else list(proof)
    if not steps:
        return False
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, step)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root
