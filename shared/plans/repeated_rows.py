"""Several rows of a person in the source, made one row of the release: what a plan says of them.

A lead writes in a plan's TOML

    [dictionary.repeated]
    rows = 3                # of a person, at most
    order = "visit"         # planned visits, or a number: then the first rows by it

    [dictionary.columns.visit]
    kind = "ordered"
    levels = [0, 6, 12]

    [dictionary.columns.sbp]
    kind = "continuous"
    lower = 70
    upper = 260
    missing = "level"       # at a visit that did not take place
    repeated = true

and what is signed has the columns that are released: ``sbp_1``, ``sbp_2``, ``sbp_3``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.base.canonical import closed
from shared.errors import DictionaryRefusal

__all__ = ["MOST_ROWS", "RepeatedRows", "released_columns"]

MOST_ROWS = 12
"""Rows of one person, at most: each has columns of its own in the release."""
_STEP = 'Write [dictionary.repeated] with rows = 3 and order = "visit".'


@dataclass(frozen=True, kw_only=True)
class RepeatedRows:
    """Several rows of a person in the source, which are one row of the release.

    Args:
        rows: rows of a person, at most: m, in 2..12.
        columns: columns of the source that may differ between a person's rows.
        order: the column that tells which row is which.
        visits: its levels, one for each of the m rows, where it is the planned visit: row k is that of level k, and the
            visit itself is not released. Empty where it is a number: then it is one of `columns`, and the first m rows
            by it are kept.
    Raises: DictionaryRefusal, at construction.

    >>> RepeatedRows(rows=2, columns=("sbp",), order="visit", visits=(0, 6)).names("sbp")
    ('sbp_1', 'sbp_2')
    """

    rows: int
    columns: tuple[str, ...]
    order: str
    visits: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        def must(holds: bool, rule: str, given: object) -> None:
            if not holds:
                raise DictionaryRefusal(f"repeated: {rule}", given=f"{given}", next_step=_STEP)

        whole = type(self.rows) is int and 2 <= self.rows <= MOST_ROWS
        must(whole, f"rows must be a whole number in 2..{MOST_ROWS}", repr(self.rows)[:40])
        must(bool(self.columns), "some column must have repeated = true", "none")
        must(len(set(self.columns)) == len(self.columns), "each column must be named once", f"{len(self.columns)}")
        must(
            bool(self.visits) != (self.order in self.columns),
            "order must be the planned visit (kind = 'ordered', not repeated), or a number with repeated = true",
            repr(self.order),
        )
        must(len(self.visits) in (0, self.rows), "order must have one level for each row", f"{len(self.visits)} levels")

    @property
    def words(self) -> str:
        """Rule by which a person's rows are selected, in words.

        >>> RepeatedRows(rows=3, columns=("sbp", "week"), order="week").words
        "at most 3 rows of a person, the first ones by 'week'"
        """
        kept = f"one for each level of {self.order!r}" if self.visits else f"the first ones by {self.order!r}"
        return f"at most {self.rows} rows of a person, {kept}"

    def names(self, column: str) -> tuple[str, ...]:
        """The columns of the release that a repeated column becomes, row by row."""
        return tuple(f"{column}_{row}" for row in range(1, self.rows + 1))

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        out = {"rows": self.rows, "columns": list(self.columns), "order": self.order}
        return {**out, "visits": list(self.visits)} if self.visits else out

    @classmethod
    def from_canonical(cls, given: Any) -> RepeatedRows:
        """Read plain values; an unknown key is refused."""
        if not isinstance(given, Mapping):
            raise DictionaryRefusal("repeated must be a table", given=type(given).__name__, next_step=_STEP)
        closed(given, {"rows", "columns", "order", "visits"}, where="[dictionary.repeated]", refusal=DictionaryRefusal)
        columns, visits, order = given.get("columns"), given.get("visits", []), given.get("order")
        lists = isinstance(columns, list) and isinstance(visits, list)
        if not lists or not all(isinstance(name, str) for name in [order, *(columns or ())]):
            raise DictionaryRefusal("repeated must have rows, columns and order", given=f"{sorted(given)}")
        if not all(type(visit) in (str, int) for visit in visits):
            raise DictionaryRefusal("repeated: visits must be levels", given="something else")
        return cls(rows=given.get("rows", 0), columns=tuple(columns or ()), order=str(order), visits=tuple(visits))


def released_columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """A dictionary as it was written, with the columns that are released; itself where nothing is repeated.

    Args:
        given: plain values: ``columns`` a list of settings, each with its name; ``repeated`` with ``rows`` and
            ``order``.
    Raises: DictionaryRefusal.
    """
    columns = [dict(one) for one in given["columns"]]
    marks = {one["name"]: one.pop("repeated", False) for one in columns}
    for name, mark in marks.items():
        if not isinstance(mark, bool):
            raise DictionaryRefusal(f"column {name!r}: repeated must be true or false", given=repr(mark)[:40])
    repeated = given.get("repeated")
    names = [name for name, mark in marks.items() if mark]
    if repeated is None and not names:
        return {**given, "columns": columns}
    if not isinstance(repeated, Mapping):
        raise DictionaryRefusal("repeated columns must have [dictionary.repeated]", given="none", next_step=_STEP)
    closed(repeated, {"rows", "order"}, where="[dictionary.repeated]", refusal=DictionaryRefusal)
    order = next((one for one in columns if one["name"] == repeated.get("order")), None)
    if order is None:
        near = difflib.get_close_matches(str(repeated.get("order")), list(marks), n=1)
        raise DictionaryRefusal(
            "repeated: order must name a column of the dictionary",
            given=repr(repeated.get("order"))[:80],
            next_step=f"Did you mean {near[0]!r}?" if near else _STEP,
        )
    planned = order.get("kind") == "ordered" and order["name"] not in names
    visits = {"visits": list(order.get("levels", ()))} if planned else {}
    how = RepeatedRows.from_canonical({**repeated, "columns": names, **visits})
    ends = [f"{how.order} {visit}" for visit in how.visits] or [f"row {row + 1}" for row in range(how.rows)]
    made: list[dict[str, Any]] = []
    for one in columns:
        if one["name"] in names:
            label = one.get("label")
            for name, end in zip(how.names(one["name"]), ends, strict=True):
                made.append({**one, "name": name} | ({"label": f"{label}, {end}"} if label else {}))
        elif one is not order:
            made.append(one)
    return {**given, "columns": made, "repeated": how.to_canonical()}
