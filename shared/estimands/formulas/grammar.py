"""The grammar: a formula's text as a tree of pieces, within what it may cost to read."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError

__all__ = ["BASES", "COMPARISON", "DEEPEST", "LONGEST", "MOST_TERMS", "MOST_TOKENS", "Node", "names", "parse"]

Array = NDArray[np.float64]

LONGEST = 2000
MOST_TOKENS = 300
DEEPEST = 30
MOST_TERMS = 60
BASES = ("ns", "bs", "poly", "by_time")
"""Terms of several columns each, which `shared.estimands.splines` reads: curves, and effects that change with time."""

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
_NOT, COMPARISON, _SIGN = 4, 5, 9
_TIGHT = {"/", ":", "^"}
HINT = "Write for example: Surv(time, died) ~ age/10 + C(smoking)."


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
        first = self._inside(left, level + (1 - closer) + (1 if level == COMPARISON else 0))
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
        raise ParameterError(f"a formula must be at most {LONGEST} characters", given=f"{len(text)}", next_step=HINT)
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
                raise ParameterError(must, given=repr(text[at : at + 20].strip()), next_step=HINT)
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
        return ParameterError(must, given=f"{found} in {self.text[:80]!r}", next_step=HINT)

    def expect(self, op: str) -> None:
        if self.kind != "op" or self.word != op:
            raise self.refusal(f"{op!r} must stand here")
        self.at += 1

    def expression(self, least: int, depth: int) -> Node:
        if depth > DEEPEST:
            raise ParameterError(f"brackets must nest at most {DEEPEST} deep", given="more", next_step=HINT)
        left = self.prefix(depth)
        while self.kind == "op":
            op = "^" if self.word == "**" else self.word
            level = _BINDING.get(op, -1)
            if level < max(least, 1):
                break
            chained = level == COMPARISON and left.binding == COMPARISON and not self.closed_before()
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
                raise ParameterError("a number must be finite", given="one that is not", next_step=HINT)
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
