"""Identifiers as persons are told apart by them.

A hospital writes its identifiers as it likes, and otherwise in the next extract: `P1` for `p1`, 17 for 00017. Those are
one person, who must not stand in a table twice, nor look new to a later wave. Whatever differs beyond that is another
person to the program.
"""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["NORMALISED", "compared", "normalised"]

LONGEST = 100
"""Digits of a decimal beyond which it is no identifier to be written out."""
NORMALISED = "normalised-"
"""Prefix of `site_agent.records.table.person_space` where identifiers were normalised before they were compared.

Another normaliser needs another prefix: otherwise persons known under this one would look new, unnoticed."""


# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties beyond category Cf, and U+2800.
_UNSEEN = (
    ("\u034f", "\u034f"),
    ("\u115f", "\u1160"),
    ("\u17b4", "\u17b5"),
    ("\u180b", "\u180f"),
    ("\u2065", "\u2065"),
    ("\u2800", "\u2800"),
    ("\u3164", "\u3164"),
    ("\ufe00", "\ufe0f"),
    ("\uffa0", "\uffa0"),
    ("\ufff0", "\ufff8"),
    ("\U000e0000", "\U000e0fff"),
)


def normalised(identifier: str) -> str:
    """Unicode form NFKC, nothing that nobody sees, one space for any white space within and none around, case folded.

    Dropped are format and control characters (categories Cf and Cc: nearly all are invisible, and the few number signs
    among them tell nobody apart), what Unicode calls default ignorable (a joiner, a variation selector, a filler), and
    the blank Braille pattern.
    An identifier that is all decimal digits, of whatever script, is written in ASCII digits without leading zeros.

    >>> [normalised(text) for text in ("P1", " p1 ", "00017", "A  7", "000", "P\u200b1\ufe0f", "\u0660\u0661\u0667")]
    ['p1', 'p1', '17', 'a 7', '0', 'p1', '17']
    """
    if identifier.isascii() and identifier.isprintable():  # nearly all: nothing in them is unseen, or composes
        text = " ".join(identifier.lower().split())
        return (text.lstrip("0") or "0") if text.isdecimal() else text
    text = _folded(identifier)
    # Without an unseen character between them, two marks may compose, or come in another order: until nothing changes.
    while (folded := _folded(text)) != text:
        text = folded
    if not text.isdecimal():
        return text
    return "".join(str(unicodedata.decimal(digit)) for digit in text).lstrip("0") or "0"


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    seen = "".join(character for character in folded if character.isspace() or not _unseen(character))
    return " ".join(unicodedata.normalize("NFKC", seen).split())


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cf", "Cc") or any(first <= character <= last for first, last in _UNSEEN)


def compared(identifiers: Any, *, as_written: bool) -> Any:
    """A column or an index of identifiers as text, normalised or without white space around them alone.

    A float or a decimal that is a whole number is written as an integer where it is normalised: that is how a column of
    integers is stored as soon as one is missing. The text ``17.0`` is left as it is: somebody may have written it so.
    """
    if as_written:
        return identifiers.astype("string").str.strip()
    if identifiers.dtype.kind in "fO" or "decimal" in str(identifiers.dtype):
        identifiers = identifiers.map(_written, na_action="ignore")
    return identifiers.astype("string").map(normalised, na_action="ignore").astype("string")


def _written(identifier: Any) -> str:
    if isinstance(identifier, Decimal):
        whole = identifier.is_finite() and abs(identifier.adjusted()) < LONGEST
        whole = whole and identifier == identifier.to_integral_value()
    else:
        whole = isinstance(identifier, float | np.floating) and identifier.is_integer()
    return str(int(identifier) if whole else identifier)
