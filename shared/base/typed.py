"""What a value is that came from a file: a number, a whole number, a list. True is no number, and a text is no list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

__all__ = ["is_list", "is_number", "is_whole"]


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
