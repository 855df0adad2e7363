"""A price as people are told it: one spelling of ε and δ for every screen, page, table, figure and sentence.

- A printed ε or δ is **never below the true one**: it is rounded up, and what is left of a cap is rounded down.
- An ε that holds for rows **given the flow** alone (posture ``local``: the flow was fitted on the very records that are
  released; posture ``private`` where the flow's training was charged before) never stands by itself: the condition
  stands in its column's heading or right after it. A total has the condition of every price in it (`all_given`), unless
  it holds the training as well.
- Where there is no ε to state, words stand in its place.

So a price travels as two values: ``epsilon``, None where none is stated, and ``given``, what it takes as given (blank:
nothing). Of a price of None, ``given`` says what nothing bounds: rows from a flow alone (w = 0) that was fitted on the
very records hold nothing of a record but what the flow carries.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import TypeVar

__all__ = [
    "CHARGED_BEFORE",
    "FLOW",
    "UNGUARANTEED",
    "all_given",
    "raised",
    "shown_column",
    "shown_delta",
    "shown_epsilon",
    "shown_price",
    "shown_room",
]

FLOW = "the flow"
"""Condition of a price under posture ``local``: the flow."""
CHARGED_BEFORE = "the flow, charged before"
"""Condition of the price of rows drawn through a flow whose noisy training is charged separately: that charge covers
what the rows reveal about the flow."""
UNGUARANTEED = "no formal guarantee"
"""Text in place of an ε where the noise has no guarantee."""

_GIVEN = " given "
_Row = TypeVar("_Row", bound=Hashable)


def shown_epsilon(value: float) -> str:
    """ε to four digits, rounded up.

    >>> shown_epsilon(7.9541), shown_epsilon(0.1), shown_epsilon(174.55), shown_epsilon(12345.6)
    ('7.955', '0.1', '174.6', '12350')
    """
    return _decimal(value, 4, ROUND_CEILING)


def shown_delta(value: float) -> str:
    """δ to three digits, rounded up.

    >>> shown_delta(1e-6), shown_delta(1.4e-6), shown_delta(1.2341e-5)
    ('1e-06', '1.4e-06', '1.24e-05')
    """
    return _decimal(value, 3, ROUND_CEILING)


def shown_room(value: float, digits: int = 4) -> str:
    """Remaining budget below a cap, or a setting with the upper bound `value`: rounded down.

    >>> shown_room(119.4199), shown_room(0.04267, digits=2)
    ('119.4', '0.042')
    """
    return _decimal(value, digits, ROUND_FLOOR)


def shown_price(epsilon: float | None, given: str = "", *, delta: float | None = None) -> str:
    """A price with its condition, or the words in its place; with a δ, as a sentence has it.

    >>> shown_price(2.0), shown_price(2.0, FLOW), shown_price(2.0, FLOW, delta=1e-6)
    ('2', '2 given the flow', 'ε = 2 at δ = 1e-06, given the flow')
    >>> shown_price(None), shown_price(None, FLOW)
    ('no formal guarantee', 'not bounded: the flow')
    """
    if epsilon is None:
        return f"not bounded: {given}" if given else UNGUARANTEED
    if delta is not None:
        return f"ε = {shown_epsilon(epsilon)} at δ = {shown_delta(delta)}" + (f", given {given}" if given else "")
    return shown_epsilon(epsilon) + (f"{_GIVEN}{given}" if given else "")


def shown_column(prices: Mapping[str, tuple[float | None, str]], heading: str = "ε") -> tuple[str, dict[str, str]]:
    """A column of prices: its heading, and each cell. A condition that all of them have stands in the heading.

    Args:
        prices: row to (epsilon, given).

    >>> shown_column({"north": (2.0, FLOW), "south": (3.0, FLOW)})
    ('ε given the flow', {'north': '2', 'south': '3'})
    >>> shown_column({"north": (2.0, FLOW), "south": (3.0, "")})
    ('ε', {'north': '2 given the flow', 'south': '3'})
    """
    return raised(heading, {row: shown_price(*price) for row, price in prices.items()})


def all_given(prices: Iterable[tuple[float | None, str]]) -> str:
    """Conditions of a total of these prices: those of any price in it. One without ε is in no total.

    >>> all_given([(2.0, FLOW), (3.0, "")]), all_given([(None, FLOW), (3.0, "")])
    ('the flow', '')
    """
    return " and ".join(dict.fromkeys(given for epsilon, given in prices if epsilon is not None and given))


def raised(heading: str, cells: Mapping[_Row, str]) -> tuple[str, dict[_Row, str]]:
    """A column as it is drawn: a condition that all of its prices (`shown_price`) have, moved into its heading."""
    parts = {row: text.partition(_GIVEN) for row, text in cells.items()}
    conditions = {given for price, _, given in parts.values() if price[:1].isdigit() or price == "∞"}
    if len(conditions) != 1 or conditions == {""}:
        return heading, dict(cells)
    return f"{heading}{_GIVEN}{conditions.pop()}", {row: price for row, (price, _, _) in parts.items()}


def _decimal(value: float, digits: int, rounding: str) -> str:
    """`value` to so many digits in this direction; a float counts as the shortest decimal that means it."""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    found = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    if found == 0:
        return "0"
    return f"{found.normalize():f}" if -4 <= found.adjusted() < 15 else f"{float(found):.{digits}g}"
