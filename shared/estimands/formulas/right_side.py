"""The right-hand side of a model: its terms, strata, weights and offset, and what its arithmetic may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shared.errors import ParameterError
from shared.estimands.formulas.grammar import BASES, COMPARISON, MOST_TERMS, Array, Node, names

__all__ = ["CATEGORY", "FUNCTIONS", "LOGIC", "RightSide", "check_arithmetic", "is_logical", "right_side"]

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

    >>> from shared.estimands.formulas.grammar import parse
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
        scaled = next((str(factor) for term in crossed for factor in term if str(factor) in self.per), "")
        if scaled:
            given = f"{scaled}/{self.per[scaled]:.15g}"
            raise ParameterError("a column with units cannot be crossed", given=given, next_step=f"Write I({given}).")
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


ARITHMETIC = {"+", "-", "*", "/", "^"}
LOGIC = {"&", "|"}


def check_arithmetic(node: Node) -> None:
    """Refuse whatever `values` cannot work out. Raises: ParameterError."""
    good = {"name": True, "number": True}.get(node.kind, False)
    if node.kind == "unary":
        good = True
    elif node.kind == "binary":
        good = node.value in ARITHMETIC | LOGIC or node.binding == COMPARISON
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
    return node.binding == COMPARISON or node.value in LOGIC or (node.kind == "unary" and node.value == "!")
