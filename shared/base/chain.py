"""The arithmetic of a hash chain, for the side that keeps one and the side that witnesses it.

A ledger's head after an entry is ``SHA-256(previous head ‖ link)``, where the link is the digest of the entry without
its predecessor. Whoever kept an old head can therefore check that a new one grew from it, given only the links in
between: they say how often something happened and nothing of what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shared.base.canonical import sha256_hex

__all__ = ["GENESIS", "LINKS_CAP", "extend_head", "head_fingerprint", "heads"]

GENESIS = "0" * 64
# Most entries between two anchors. A release makes fewer than ten, and every release is anchored.
LINKS_CAP = 8192


def heads(head: str, links: Iterable[str]) -> Iterator[str]:
    """The head after each of `links`, in order.

    Args:
        head: 64 hexadecimal digits, the head before the first link.

    >>> a, b = "a" * 64, "b" * 64
    >>> list(heads(GENESIS, [a, b])) == [extend_head(GENESIS, [a]), extend_head(GENESIS, [a, b])]
    True
    """
    for link in links:
        head = sha256_hex(bytes.fromhex(head) + bytes.fromhex(link))
        yield head


def extend_head(head: str, links: Iterable[str]) -> str:
    """The head after appending entries with these links: how anybody holding an old head checks a later one.

    >>> extend_head(GENESIS, []) == GENESIS
    True
    >>> old = extend_head(GENESIS, ["a" * 64])
    >>> extend_head(old, ["b" * 64]) == extend_head(GENESIS, ["a" * 64, "b" * 64])
    True
    >>> extend_head(old, ["b" * 64]) == extend_head(GENESIS, ["b" * 64])
    False
    """
    for later in heads(head, links):
        head = later
    return head


def head_fingerprint(head: str) -> str:
    """Half of a head in groups of four, for two people to compare aloud.

    >>> head_fingerprint("0123456789abcdef" * 4)
    '0123 4567 89ab cdef 0123 4567 89ab cdef'
    """
    return " ".join(head[i : i + 4] for i in range(0, 32, 4))
