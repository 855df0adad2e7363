r"""A small language for questions, written as in R, and read by the parser below: nothing in it is ever run as code.

    Surv(time, cvd) ~ sbp/10 + C(smoking) * age + strata(centre) + offset(log(years))
    sex == 1 & age >= 60

One grammar serves model formulas, filters and arithmetic. From loosest to tightest: ``~``, ``|``, ``&``, ``!``,
comparisons, ``+ -``, ``* /``, ``:``, the sign, ``^``. What a piece means depends on where it stands: in a formula ``+``
joins terms and ``*`` crosses them, inside ``I()`` and in a filter they are arithmetic.

The text comes from anyone who may ask a question, so its cost is bounded before it is read: `LONGEST` characters,
`MOST_TOKENS` tokens, `DEEPEST` brackets, `MOST_TERMS` terms after crossing. Whatever lies outside is an
`EstimandError` of one kind (`ParameterError`), never a crash and never an endless loop.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal, ParameterError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASES", "DEEPEST", "LONGEST", "MOST_TERMS", "MOST_TOKENS", "Node", "QuestionRows", "RightSide"]
__all__ += ["names", "parse", "right_side"]

Array = NDArray[np.float64]

LONGEST = 2000
MOST_TOKENS = 300
DEEPEST = 30
MOST_TERMS = 60

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[^\W\d]\w*(?:\.\w+)*)
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<op>\*\*|==|!=|>=|<=|[-+*/^:(),<>&|!~=])
    )""",
    re.VERBOSE,
)
_BINDING = {"~": 1, "|": 2, "&": 3, "==": 5, "!=": 5, ">=": 5, "<=": 5, ">": 5, "<": 5}
_BINDING |= {"+": 6, "-": 6, "*": 7, "/": 7, ":": 8, "^": 10}
_NOT, _COMPARISON, _SIGN = 4, 5, 9
_TIGHT = {"/", ":", "^"}
_HINT = "Write for example: Surv(time, died) ~ age/10 + C(smoking)."


@dataclass(frozen=True)
class Node:
    """A piece of a formula: a number, a quoted level, a name, a call, a sign, or two pieces and an operator.

    `str` gives the one spelling, which `parse` reads back to an equal node.

    Args:
        kind: number, text, name, call, unary or binary.
        value: the number, the text, the name, the called name, or the operator.
        parts: arguments or operands.
        keys: names of the last arguments of a call that were given by name.

    >>> str(parse("log( x )+I(a^2)*b"))
    'log(x) + I(a^2) * b'
    """

    kind: str
    value: Any
    parts: tuple[Node, ...] = ()
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "number":
            return _number(self.value)
        if self.kind == "text":
            return f"'{self.value}'" if '"' in self.value else f'"{self.value}"'
        if self.kind == "name":
            return str(self.value)
        if self.kind == "call":
            free = len(self.parts) - len(self.keys)
            inside = [str(part) for part in self.parts[:free]]
            inside += [f"{key} = {part}" for key, part in zip(self.keys, self.parts[free:], strict=True)]
            return f"{self.value}({', '.join(inside)})"
        level = self.binding
        if self.kind == "unary":
            return f"{self.value}{self._inside(self.parts[0], level)}"
        left, right = self.parts
        # a ^ b ^ c groups to the right, everything else to the left; comparisons do not chain.
        closer = 0 if self.value == "^" else 1
        first = self._inside(left, level + (1 - closer) + (1 if level == _COMPARISON else 0))
        second = self._inside(right, level + closer)
        return f"{first}{self.value}{second}" if self.value in _TIGHT else f"{first} {self.value} {second}"

    @staticmethod
    def _inside(part: Node, level: int) -> str:
        return str(part) if part.binding >= level else f"({part})"

    @property
    def binding(self) -> int:
        """Precedence of the outermost operator; atoms bind tightest."""
        if self.kind == "unary":
            return _NOT if self.value == "!" else _SIGN
        return _BINDING[self.value] if self.kind == "binary" else 11


def _number(value: float) -> str:
    text = repr(value)
    return text.removesuffix(".0")


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """Read one expression or formula.

    Raises: ParameterError: too long, too deep, or outside the grammar.

    >>> parse("sex == 1 & age >= 60").value
    '&'
    """
    if len(text) > LONGEST:
        raise ParameterError(f"a formula must be at most {LONGEST} characters", given=f"{len(text)}", next_step=_HINT)
    reader = _Reader(text)
    node = reader.expression(0, 0)
    if reader.kind != "end":
        raise reader.refusal("the formula must end here")
    return node


class _Reader:
    """Recursive descent by binding strength; depth counts brackets, signs and right-grouping operators."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or len(self.tokens) >= MOST_TOKENS:
                must = "the characters must be those of a formula"
                if match is not None:
                    must = f"a formula must have at most {MOST_TOKENS} words and signs"
                raise ParameterError(must, given=repr(text[at : at + 20].strip()), next_step=_HINT)
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind]))
            at = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def word(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def refusal(self, must: str) -> ParameterError:
        found = repr(self.word) if self.kind != "end" else "the end"
        return ParameterError(must, given=f"{found} in {self.text[:80]!r}", next_step=_HINT)

    def expect(self, op: str) -> None:
        if self.kind != "op" or self.word != op:
            raise self.refusal(f"{op!r} must stand here")
        self.at += 1

    def expression(self, least: int, depth: int) -> Node:
        if depth > DEEPEST:
            raise ParameterError(f"brackets must nest at most {DEEPEST} deep", given="more", next_step=_HINT)
        left = self.prefix(depth)
        while self.kind == "op":
            op = "^" if self.word == "**" else self.word
            level = _BINDING.get(op, -1)
            if level < max(least, 1):
                break
            chained = level == _COMPARISON and left.binding == _COMPARISON and not self.closed_before()
            if chained:  # (a < b) < c in brackets is allowed; a < b < c is not what anybody means
                raise self.refusal("comparisons must not be chained")
            self.take()
            right = self.expression(level if op == "^" else level + 1, depth + 1)
            left = Node("binary", op, (left, right))
        return left

    def closed_before(self) -> bool:
        return self.tokens[self.at - 1] == ("op", ")")

    def prefix(self, depth: int) -> Node:
        kind = self.kind
        if kind == "number":
            value = float(self.take())
            if not math.isfinite(value):
                raise ParameterError("a number must be finite", given="one that is not", next_step=_HINT)
            return Node("number", value)
        if kind == "text":
            return Node("text", self.take()[1:-1])
        if kind == "name":
            name = self.take()
            return self.call(name, depth) if (self.kind, self.word) == ("op", "(") else Node("name", name)
        if kind == "op" and self.word == "(":
            self.take()
            inside = self.expression(0, depth + 1)
            self.expect(")")
            return inside
        if kind == "op" and self.word in "+-!~" and len(self.word) == 1:
            op = self.take()
            part = self.expression(_NOT if op == "!" else 2 if op == "~" else _SIGN, depth + 1)
            if op == "~":  # a formula without a left side
                return Node("binary", "~", (Node("number", 1.0), part))
            return part if op == "+" else Node("unary", op, (part,))
        raise self.refusal("a column, a number or a bracket must stand here")

    def call(self, name: str, depth: int) -> Node:
        self.expect("(")
        parts: list[Node] = []
        keys: list[str] = []
        while not (self.kind == "op" and self.word == ")"):
            if parts:
                self.expect(",")
            if self.kind == "name" and self.tokens[self.at + 1] == ("op", "="):
                keys.append(self.take())
                self.take()
            elif keys:
                raise self.refusal("an argument by name must come last")
            parts.append(self.expression(0, depth + 1))
        self.expect(")")
        return Node("call", name, tuple(parts), tuple(keys))


def names(node: Node) -> Iterator[str]:
    """Column names a piece reads, in order, repeats included."""
    if node.kind == "name":
        yield str(node.value)
    for part in node.parts[: 1 if node.kind == "call" and node.value in BASES else None]:
        yield from names(part)


# -- the right-hand side of a model --------------------------------------------------------------------------
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "I": lambda x: x,
}
CATEGORY = ("C", "factor")
BASES = ("ns", "bs", "poly", "by_time")
"""Terms of several columns each, which `shared.estimands.splines` reads: curves, and effects that change with time."""


@dataclass(frozen=True, kw_only=True)
class RightSide:
    """The right-hand side of a formula: what follows ``~``.

    Attributes:
        terms: each a tuple of factors; more than one factor is an interaction. By degree, then as written.
        per: units of a plain column (``sbp/10``), by its text.
        intercept: False after ``- 1`` or ``+ 0``.
        strata: columns of ``strata()``.
        offset: the arithmetic of ``offset()``, summed; None without one.
    """

    terms: tuple[tuple[Node, ...], ...]
    per: dict[str, float]
    intercept: bool
    strata: tuple[str, ...]
    offset: Node | None


def right_side(node: Node) -> RightSide:
    """Sort the right-hand side into terms, units, strata, offset and intercept, as R's `terms` does.

    Raises: ParameterError: something that is no term, a term twice, too many terms.

    >>> [":".join(map(str, term)) for term in right_side(parse("a*b - a + strata(c)")).terms]
    ['b', 'a:b']
    """
    state = _Terms()
    terms = state.walk(node)
    ordered = sorted(terms, key=len)
    return RightSide(
        terms=tuple(ordered),
        per=state.per,
        intercept=state.intercept,
        strata=tuple(state.strata),
        offset=state.offset,
    )


_Term = tuple[Node, ...]


def _same(term: _Term) -> frozenset[str]:
    return frozenset(map(str, term))


class _Terms:
    def __init__(self) -> None:
        self.per: dict[str, float] = {}
        self.intercept = True
        self.strata: list[str] = []
        self.offset: Node | None = None
        self.plain: set[str] = set()

    def walk(self, node: Node) -> list[_Term]:
        if node.kind == "number" and node.value in (0.0, 1.0):
            self.intercept = node.value == 1.0
            return []
        if node.kind == "unary" and node.value == "-":
            return self.without([], node.parts[0])
        if node.kind != "binary":
            return self.single(node)
        left, right = node.parts
        if node.value == "+":
            return self.join(self.walk(left), self.walk(right))
        if node.value == "-":
            return self.without(self.walk(left), right)
        if node.value == "/":
            return self.units(left, right)
        if node.value in (":", "*"):
            if any(part.kind == "number" for part in (left, right)):
                raise self.refusal(node)
            a, b = self.walk(left), self.walk(right)
            crossed = self.cross(a, b)
            return crossed if node.value == ":" else self.join([*a, *(t for t in b if t not in a)], crossed)
        raise self.refusal(node)

    def refusal(self, node: Node) -> ParameterError:
        functions = ", ".join(f"{name}()" for name in (*FUNCTIONS, "C", *BASES, "strata", "offset"))
        return ParameterError(
            "a term must be a column, column/units, a:b, a*b or one of the functions",
            given=repr(str(node)[:60]),
            next_step=f"Arithmetic goes inside I(). Functions: {functions}.",
        )

    def single(self, node: Node) -> list[_Term]:
        if node.kind == "name":
            self.plain.add(str(node))
            if str(node) in self.per:
                raise ParameterError("each term may stand once", given=str(node))
            return [(node,)]
        if node.kind == "call" and node.value in BASES:
            true = node.keys == ("raw",) and str(node.parts[-1]) in ("1", "T")  # one spelling
            return [(replace(node, parts=(*node.parts[:-1], Node("name", "TRUE"))) if true else node,)]
        if node.kind != "call" or node.keys:
            raise self.refusal(node)
        plain = all(part.kind == "name" for part in node.parts)
        if node.value == "strata" and node.parts and plain:
            self.strata += [str(part) for part in node.parts if str(part) not in self.strata]
            return []
        if node.value in CATEGORY and len(node.parts) == 1 and plain:
            return [(node,)]
        if len(node.parts) == 1 and (node.value in FUNCTIONS or node.value == "offset"):
            check_arithmetic(node.parts[0])
            if node.value == "offset":
                part = node.parts[0]
                self.offset = part if self.offset is None else Node("binary", "+", (self.offset, part))
                return []
            if not any(True for _ in names(node)):
                raise self.refusal(node)
            return [(node,)]
        raise self.refusal(node)

    def units(self, column: Node, units: Node) -> list[_Term]:
        if column.kind != "name" or units.kind != "number":
            raise self.refusal(Node("binary", "/", (column, units)))
        if units.value <= 0:
            raise ParameterError(f"units of {column} must be positive", given=str(units))
        if str(column) in self.plain:
            raise ParameterError("each term may stand once", given=str(column))
        self.per[str(column)] = units.value
        return [(column,)]

    def join(self, a: list[_Term], b: list[_Term]) -> list[_Term]:
        out: list[_Term] = []
        known: set[frozenset[str]] = set()
        if len(b) == 1 and len(b[0]) == 1 and b[0] in a:
            raise ParameterError("each term may stand once", given=str(b[0][0]))
        for term in (*a, *b):
            if _same(term) not in known:
                out.append(term)
                known.add(_same(term))
        if len(out) > MOST_TERMS:
            raise ParameterError(f"a model must have at most {MOST_TERMS} terms", given="more")
        return out

    def cross(self, a: list[_Term], b: list[_Term]) -> list[_Term]:
        if len(a) * len(b) > MOST_TERMS:
            raise ParameterError(f"a model must have at most {MOST_TERMS} terms", given="more")
        crossed = [tuple(dict.fromkeys((*left, *right))) for left in a for right in b]
        if any(str(factor) in self.per for term in crossed for factor in term):
            raise ParameterError(
                "a column with units cannot be crossed", given="column/units", next_step="Write I(column / units)."
            )
        return self.join([], crossed)

    def without(self, terms: list[_Term], node: Node) -> list[_Term]:
        if node.kind == "number" and node.value == 1.0:
            self.intercept = False
            return terms
        gone = _Terms()
        away = {_same(term) for term in gone.walk(node)}
        if gone.per or gone.strata or gone.offset is not None:
            raise self.refusal(node)
        missing = away - {_same(term) for term in terms}
        if missing:
            raise ParameterError("a term that is taken out must be in the formula", given=":".join(min(missing)))
        return [term for term in terms if _same(term) not in away]


_ARITHMETIC = {"+", "-", "*", "/", "^"}
_LOGIC = {"&", "|"}


def check_arithmetic(node: Node) -> None:
    """Refuse whatever `values` cannot work out. Raises: ParameterError."""
    good = {"name": True, "number": True}.get(node.kind, False)
    if node.kind == "unary":
        good = True
    elif node.kind == "binary":
        good = node.value in _ARITHMETIC | _LOGIC or node.binding == _COMPARISON
        text = [part.kind == "text" for part in node.parts]
        if any(text):
            if node.value not in ("==", "!=") or text[0] or node.parts[0].kind != "name":
                raise ParameterError("a level can only be compared with == or !=", given=repr(str(node)[:60]))
            return
    elif node.kind == "call":
        good = node.value in FUNCTIONS and len(node.parts) == 1 and not node.keys
    if not good:
        raise ParameterError(
            "arithmetic must be made of columns, numbers, comparisons and functions",
            given=repr(str(node)[:60]),
            next_step=f"Functions: {', '.join(FUNCTIONS)}.",
        )
    for part in node.parts:
        check_arithmetic(part)


def is_logical(node: Node) -> bool:
    """True if an expression yields true or false rather than a number."""
    return node.binding == _COMPARISON or node.value in _LOGIC or (node.kind == "unary" and node.value == "!")


# -- columns --------------------------------------------------------------------------------------------------
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
        part._series, part._known, part._words = {}, {}, {}
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


def values(node: Node, rows: QuestionRows) -> Array:
    """Work out one piece for every row: (n,) float64, NaN where missing; true is 1 and false is 0.

    A missing operand makes the result missing, except where the other operand of ``&`` or ``|`` decides alone.
    The result may be one that `rows` keeps: it is not to be written to.
    Raises: EstimateRefusal: words where numbers must stand, a level that does not exist.
    """
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
    if node.binding == _COMPARISON and left.kind == "name":
        return _compared(str(left.value), node.value, right, rows)
    a, b = _values(left, rows), _values(right, rows)
    if node.value in _LOGIC:
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
    out = (
        column.to_numpy(dtype=float, copy=True) if plain else column.astype("Float64").to_numpy(float, na_value=np.nan)
    )
    out = out if plain else out.copy()
    out[~np.isfinite(out)] = np.nan
    return np.asarray(out)
