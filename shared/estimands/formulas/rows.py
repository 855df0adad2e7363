"""The rows that a formula is worked out on, and what its pieces are worth there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal
from shared.estimands.formulas.grammar import COMPARISON, Array, Node
from shared.estimands.formulas.right_side import FUNCTIONS, LOGIC

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["QuestionRows", "is_category", "numbers", "order_among", "values"]


class QuestionRows:
    """Columns of one table for the evaluation of questions, each looked up and turned into numbers once.

    A filtered part shares that with the whole, so a second question to the same rows, or to others of them, finds it.
    Safe for many threads; nothing of it may be written to, and the arrays refuse.

    Args:
        table: (n, …); it must not change afterwards.

    >>> import pandas as pd
    >>> rows = QuestionRows(pd.DataFrame({"age": [40, 50, 60]}))
    >>> rows.part(np.array([True, False, True])).numbers("age")
    array([40., 60.])
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self.columns: tuple[str, ...] = tuple(str(name) for name in table.columns)
        self._table, self._size = table, len(table)
        self._whole: QuestionRows | None = None
        self._inside: NDArray[np.bool_] | None = None
        self._series: dict[str, pd.Series] = {}
        self._known: dict[str, Array] = {}
        self._words: dict[str, bool] = {}
        self._falling: dict[str, NDArray[np.int64]] = {}

    @classmethod
    def of(cls, table: pd.DataFrame | QuestionRows) -> QuestionRows:
        """The rows of a table; itself where it is that already."""
        return table if isinstance(table, QuestionRows) else cls(table)

    def __len__(self) -> int:
        return self._size

    @property
    def cells(self) -> int:
        """Rows times columns."""
        return self._size * len(self.columns)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> pd.Series:
        """One column as the table has it."""
        found = self._series.get(name)
        if found is None:
            whole = self._whole
            found = self._table[name] if whole is None or self._inside is None else whole[name].loc[self._inside]
            self._series[name] = found
        return found

    def part(self, inside: NDArray[np.bool_]) -> QuestionRows:
        """The rows for which the (n,) mask holds; all of them are the rows themselves."""
        if inside.all():
            return self
        part = QuestionRows.__new__(QuestionRows)
        part.columns, part._table, part._size = self.columns, self._table, int(np.count_nonzero(inside))
        part._whole, part._inside = self, inside
        part._series, part._known, part._words, part._falling = {}, {}, {}, {}
        return part

    def is_category(self, name: str) -> bool:
        """`is_category` of a column."""
        found = self._words.get(name)
        if found is None:
            found = (self._whole is None or self._whole.is_category(name)) and is_category(self[name])
            self._words[name] = found
        return found

    def numbers(self, name: str) -> Array:
        """`numbers` of a column, read-only. Raises: EstimateRefusal: a column of words."""
        found = self._known.get(name)
        if found is None:
            whole = self._whole
            if whole is None or self._inside is None or whole.is_category(name):
                found = numbers(self[name])
            else:
                found = whole.numbers(name)[self._inside]
            found.flags.writeable = False
            self._known[name] = found
        return found

    def falling(self, name: str) -> NDArray[np.int64]:
        """(n,) the rows by falling numbers of a column, those alike as they stand: the whole is sorted once."""
        found = self._falling.get(name)
        if found is None:
            if self._whole is None or self._inside is None:
                found = np.argsort(-self.numbers(name), kind="stable")
            else:
                found = order_among(self._whole.falling(name), self._inside)
            self._falling[name] = found
        return found


def order_among(order: NDArray[np.int64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The (n,) order of rows as one of those alone for which the mask holds.

    >>> order_among(np.array([2, 0, 1]), np.array([True, False, True]))
    array([1, 0])
    """
    return np.asarray((inside.cumsum() - 1).take(order[inside.take(order)]))


def values(node: Node, rows: QuestionRows) -> Array:
    """Work out one piece for every row: (n,) float64, NaN where missing; true is 1 and false is 0.

    A missing operand makes the result missing, except where the other operand of ``&`` or ``|`` decides alone.
    The result may be one that `rows` keeps: it is not to be written to.
    Raises: EstimateRefusal: words where numbers must stand, a level that does not exist.
    """
    if node.kind == "name":
        return rows.numbers(str(node.value))
    with np.errstate(all="ignore"):
        return _values(node, rows)


def _values(node: Node, rows: QuestionRows) -> Array:
    if node.kind == "number":
        return np.full(len(rows), node.value)
    if node.kind == "name":
        return rows.numbers(str(node.value))
    if node.kind == "call":
        return np.asarray(FUNCTIONS[node.value](_values(node.parts[0], rows)), dtype=float)
    if node.kind == "unary":
        part = _values(node.parts[0], rows)
        return -part if node.value == "-" else np.where(np.isnan(part), np.nan, (part == 0).astype(float))
    left, right = node.parts
    if node.binding == COMPARISON and left.kind == "name":
        return _compared(str(left.value), node.value, right, rows)
    a, b = _values(left, rows), _values(right, rows)
    if node.value in LOGIC:
        decided = 0.0 if node.value == "&" else 1.0
        result = ((a != 0) & (b != 0)) if node.value == "&" else ((a != 0) | (b != 0))
        known = (a == decided) | (b == decided) | ~(np.isnan(a) | np.isnan(b))
        return np.where(known, np.where((a == decided) | (b == decided), decided, result.astype(float)), np.nan)
    return _apply(node.value, a, b)


def _apply(op: str, a: Array, b: Array) -> Array:
    arithmetic: dict[str, Callable[[Array, Array], Any]] = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": np.divide,
        "^": np.power,
    }
    if op in arithmetic:
        return np.asarray(arithmetic[op](a, b), dtype=float)
    compare: dict[str, Callable[[Array, Array], Any]] = {
        "==": np.equal,
        "!=": np.not_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "<": np.less,
        "<=": np.less_equal,
    }
    return np.where(np.isnan(a) | np.isnan(b), np.nan, compare[op](a, b).astype(float))


def _compared(name: str, op: str, right: Node, rows: QuestionRows) -> Array:
    """A column compared with a quoted level or with numbers; numeric levels compare as numbers."""
    import pandas as pd

    column = rows[name] if right.kind == "text" or rows.is_category(name) else None
    category = column.dtype if column is not None and isinstance(column.dtype, pd.CategoricalDtype) else None
    if column is not None and right.kind == "text":
        if category is not None and right.value not in [str(level) for level in category.categories]:
            raise EstimateRefusal(
                f"column {name!r} must have the level it is compared with",
                given=repr(right.value),
                next_step=f"Its levels are {', '.join(str(level) for level in category.categories)}.",
            )
        same = (column.astype("string") == right.value).fillna(False).to_numpy(dtype=float)
        return np.where(column.isna().to_numpy(), np.nan, same if op == "==" else 1 - same)
    if column is not None and category is not None and pd.api.types.is_numeric_dtype(category.categories):
        return _apply(op, numbers(column.astype("float64")), _values(right, rows))
    return _apply(op, rows.numbers(name), _values(right, rows))


def is_category(column: pd.Series) -> bool:
    """True if a column holds categories: words, or levels that are not numbers in order."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return not (column.dtype.ordered and pd.api.types.is_numeric_dtype(column.dtype.categories))
    return not pd.api.types.is_numeric_dtype(column) and bool(column.notna().any())


def numbers(column: pd.Series) -> Array:
    """(n,) float64, NaN where missing or infinite; ordered levels that are numbers count as numbers.

    Not to be written to: of a column that is such numbers already, they are the column's own.
    Raises: EstimateRefusal: a column of words.
    """
    import pandas as pd

    if is_category(column):
        raise EstimateRefusal(
            f"column {column.name!r} must hold numbers",
            given=f"{column.dtype}",
            next_step=f'Write C({column.name}), or compare it with a level: {column.name} == "level".',
        )
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.dtype.categories.dtype if column.notna().all() else "float64")
    plain = isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub"  # most columns, without a detour
    out = column.to_numpy(dtype=float) if plain else column.astype("Float64").to_numpy(float, na_value=np.nan)
    whole = np.isfinite(out)
    return np.ascontiguousarray(out if whole.all() else np.where(whole, out, np.nan)).view()
