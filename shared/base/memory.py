"""What the C library does with memory that was freed: keep some of it for what is asked for next."""

from __future__ import annotations

__all__ = ["keep_freed"]

KEPT, LARGE = 16 << 20, 4 << 20
"""Bytes that stay with the process once they were freed, and a piece from which on each is the system's own again."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of ``mallopt``, as ``malloc.h`` of the GNU C library has them."""


def keep_freed() -> None:
    """Keep freed pieces of up to `LARGE` bytes at hand, `KEPT` in all; nothing where the C library is another.

    A numeric loop asks for the same hundreds of kilobytes thousands of times. Left to itself the library hands them
    back to the system after each, which clears every page before it gives it out again.
    """
    import ctypes

    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no such library, or none without a name
        return
    change(_TRIM_THRESHOLD, KEPT)
    change(_MMAP_THRESHOLD, LARGE)
