"""Repeated rows of a person, read off a table that has one row for each: ``sbp_1``, ``sbp_2`` become ``sbp``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.estimands.formulas.grammar import Node, parse
from shared.estimands.formulas.rows import QuestionRows

__all__ = ["LongRows"]


@dataclass(frozen=True, kw_only=True)
class LongRows:
    """Repeated columns of a table, as named in a question.

    Args:
        columns: repeated columns that the question reads, by their names in long format (one row per visit).
        rows: of a person, at most.
        visit: the column of the planned visit, which is in no table; blank where the question does not read it.
        levels: of that column, one for each row.
    Raises: ParameterError, by `read`.

    >>> long = LongRows.read('c(sbp, visit = c(0, 6))')
    >>> long.rows, long.wide("sbp"), long.text
    (2, ('sbp_1', 'sbp_2'), 'c(sbp, visit = c(0, 6))')
    >>> LongRows.read("c(sbp, week, 3)").rows
    3
    """

    columns: tuple[str, ...]
    rows: int
    visit: str = ""
    levels: tuple[str | int, ...] = ()

    @classmethod
    def read(cls, text: str) -> LongRows:
        """Of ``c(sbp, week, 3)``, or ``c(sbp, visit = c(0, 6, 12))``."""
        node = parse(text)
        free = len(node.parts) - len(node.keys)
        named, levels = list(node.parts[:free]), list(node.parts[free:])
        count = int(named.pop().value) if named and named[-1].kind == "number" else 0
        values = tuple(_level(one) for one in levels[0].parts) if levels else ()
        rows = len(values) or count
        fits = (node.kind, node.value) == ("call", "c") and named and all(one.kind == "name" for one in named)
        if not fits or len(levels) > 1 or not 2 <= rows <= 100:
            raise ParameterError(
                "repeated must be c(columns, rows) or c(columns, visit = c(…))",
                given=repr(text[:80]),
                next_step="Leave it out: a study's plan says it.",
            )
        visit = node.keys[0] if levels else ""
        return cls(columns=tuple(str(one.value) for one in named), rows=rows, visit=visit, levels=values)

    @property
    def text(self) -> str:
        """Text form in a question; the inverse of `read`."""
        if not self.visit:
            return f"c({', '.join(self.columns)}, {self.rows})"
        levels = [str(Node("text", one) if isinstance(one, str) else Node("number", float(one))) for one in self.levels]
        return f"c({', '.join(self.columns)}, {self.visit} = c({', '.join(levels)}))"

    def wide(self, column: str) -> tuple[str, ...]:
        """The columns of the table that a column is read off; itself where it is not repeated, none for the visit."""
        if column == self.visit:
            return ()
        return tuple(f"{column}_{row + 1}" for row in range(self.rows)) if column in self.columns else (column,)

    def of(
        self, table: QuestionRows, columns: Sequence[str], levels: Mapping[str, Sequence[Any]]
    ) -> tuple[QuestionRows, NDArray[np.int64], dict[str, Sequence[Any]]]:
        """The rows of all persons, one below the other; whose each is, (rows,) places in the table; and levels by name.

        A row of which nothing that is repeated is known is none.

        Args:
            columns: those that are read.
            levels: of the table's columns.
        """
        import pandas as pd

        n = len(table)
        person = np.repeat(np.arange(n), self.rows)
        row = np.tile(np.arange(self.rows), n)
        place = row * n + person
        out, known, named = {}, np.zeros(len(person), dtype=bool), dict(levels)
        for name in columns:
            if name == self.visit:
                out[name] = pd.Series(self._visit().take(row))
                named[name] = list(self.levels)
                continue
            wide = self.wide(name)
            if name in self.columns:
                whole = pd.concat([table[one] for one in wide], ignore_index=True)
                out[name] = whole.take(place).reset_index(drop=True)
                known |= out[name].notna().to_numpy(dtype=bool)
                named |= {name: levels[wide[0]]} if wide[0] in levels else {}
            else:
                out[name] = table[name].take(person).reset_index(drop=True)
        rows = pd.DataFrame(out)[known]
        return QuestionRows(rows.reset_index(drop=True)), person[known], named

    def _visit(self) -> Any:
        import pandas as pd

        if isinstance(self.levels[0], str):
            return pd.Categorical(list(self.levels), categories=list(self.levels), ordered=True)
        return np.asarray(self.levels)


def _level(node: Node) -> str | int:
    if node.kind == "text":
        return str(node.value)
    sign = -1 if node.kind == "unary" else 1
    inside = node.parts[0] if node.kind == "unary" else node
    if inside.kind != "number" or inside.value != int(inside.value):
        raise ParameterError("a visit must be a level in quotes or a whole number", given=repr(str(node)[:40]))
    return sign * int(inside.value)
