"""Identifiers as persons are told apart by them.

A hospital writes its identifiers as it likes, and otherwise in the next extract: `P1` for `p1`, 17 for 00017. Those are
one person, who must not stand in a table twice, nor look new to a later wave. Whatever differs beyond that is another
person to the program.
"""

from __future__ import annotations

import unicodedata
from typing import Any

__all__ = ["NORMALISED", "compared", "normalised"]

NORMALISED = "normalised-"
"""How `site_agent.records.person_space` begins where identifiers were normalised before they were compared."""


def normalised(identifier: str) -> str:
    """Unicode form NFKC, one space for any white space within and none around, case folded.

    An identifier that is all digits has no leading zeros.

    >>> [normalised(text) for text in ("P1", " p1 ", "00017", "A  7", "000")]
    ['p1', 'p1', '17', 'a 7', '0']
    """
    folded = unicodedata.normalize("NFKC", identifier).casefold()
    text = " ".join(unicodedata.normalize("NFKC", folded).split())
    return text.lstrip("0") or "0" if text.isascii() and text.isdigit() else text


def compared(identifiers: Any, *, as_written: bool) -> Any:
    """A column or an index of identifiers as text, normalised or without white space around them alone."""
    text = identifiers.astype("string")
    return text.str.strip() if as_written else text.map(normalised, na_action="ignore").astype("string")
