"""A Merkle root from all leaves: what the log's own tree, which keeps subtrees, is held to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shared.base.merkle.tree import append, peaks_root


def root(leaves: Sequence[bytes]) -> bytes:
    """Of none, the hash of nothing."""
    if not leaves:
        return hashlib.sha256().digest()
    peaks: tuple[bytes, ...] = ()
    for size, leaf in enumerate(leaves):
        peaks = append(peaks, size, leaf)
    return peaks_root(peaks)
