"""The grammar of formulas: a column of a mapping made of others, row by row.

A small grammar of our own, because a formula comes from a file and is never run as code::

    age   = "completed years between birth and index"
    bmi   = "weight / (height / 100) ^ 2"
    obese = "weight / (height / 100) ^ 2 >= 30"
    died  = "known(death) and death <= until"

Names are columns, by their dictionary's or the file's name; one that is no plain word stands in brackets. Numbers,
texts in single quotes, ``+ - * / ^``, ``= != < <= > >=``, ``and or not``, ``min max abs sqrt log exp floor round``,
``known(x)``, and days, weeks, months, years or completed years ``between A and B``. What is missing makes the result
missing, but where ``and`` or ``or`` is decided without it. A truth is 1 or 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import UsageRefusal

__all__ = ["SPANS", "FormulaPart", "columns_of", "parsed"]

SPANS = {"days": 1.0, "weeks": 7.0, "months": 365.25 / 12, "years": 365.25}
"""Days in each unit of time."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<name>\w+)|\[(?P<column>[^\]]+)\]|'(?P<text>[^']*)'"
    r"|(?P<sign><=|>=|!=|[-+*/^()=<>,]))"
)
_WORDS = {"and", "or", "not", "between", "completed", *SPANS}
FUNCTIONS = ("min", "max", "abs", "sqrt", "log", "exp", "floor", "round")
MOST = 2000
"""Characters of a formula; a longer one is a program."""
DEEP = 40
"""Parentheses in each other."""


@dataclass(frozen=True)
class FormulaPart:
    """A part of a formula: `kind` is number, text, column, not, call, between or binary; `word` says which, of what."""

    kind: str
    word: str = ""
    parts: tuple[FormulaPart, ...] = ()


def parsed(formula: str, name: str) -> FormulaPart:
    """A formula as a tree.

    Args:
        name: of the column that is made, for refusals.
    Raises: UsageRefusal.
    """
    return _Parser(formula, name).whole()


def columns_of(formula: str, name: str) -> tuple[str, ...]:
    """The columns that a formula reads, in order. Raises: UsageRefusal (not a formula).

    >>> columns_of("years between birth and [Tag der Aufnahme]", "age")
    ('birth', 'Tag der Aufnahme')
    """
    found: dict[str, None] = {}

    def walk(node: FormulaPart) -> None:
        if node.kind == "column":
            found[node.word] = None
        for part in node.parts:
            walk(part)

    walk(parsed(formula, name))
    return tuple(found)


# -- inside -----------------------------------------------------------------------------------------------------
class _Parser:
    """Recursive descent, one method for each binding strength."""

    def __init__(self, formula: str, name: str) -> None:
        self.name, place = name, 0
        self.tokens: list[tuple[str, str]] = []
        if len(formula) > MOST:
            raise self._wrong(f"more than {MOST} characters")
        while place < len(formula.rstrip()):
            found = _TOKEN.match(formula, place)
            if found is None:
                raise self._wrong(f"something else at character {place + 1}")
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind]))
            place = found.end()
        self.tokens.append(("end", ""))
        self.at, self.depth = 0, 0

    def whole(self) -> FormulaPart:
        node = self._or()
        if self.tokens[self.at][0] != "end":
            raise self._wrong(f"something more at word {self.at + 1}")
        return node

    def _wrong(self, given: str) -> UsageRefusal:
        return UsageRefusal(
            f"the formula of {self.name!r} must be one",
            given=given,
            next_step="As in 'completed years between birth and [date of admission]', or 'weight / (height/100) ^ 2'.",
        )

    def _take(self, *words: str) -> str:
        kind, word = self.tokens[self.at]
        if word in words and kind in ("sign", "name"):
            self.at += 1
            return word
        return ""

    def _must(self, word: str) -> None:
        if not self._take(word):
            raise self._wrong(f"no {word!r} at word {self.at + 1}")

    def _left(self, below: Callable[[], FormulaPart], *words: str) -> FormulaPart:
        node = below()
        while word := self._take(*words):
            node = FormulaPart("binary", word, (node, below()))
        return node

    def _or(self) -> FormulaPart:
        return self._left(self._and, "or")

    def _and(self) -> FormulaPart:
        return self._left(self._not, "and")

    def _not(self) -> FormulaPart:
        if self._take("not"):
            return FormulaPart("not", "", (self._not(),))
        node = self._sum()
        if word := self._take("=", "!=", "<", "<=", ">", ">="):
            return FormulaPart("binary", word, (node, self._sum()))
        return node

    def _sum(self) -> FormulaPart:
        return self._left(self._product, "+", "-")

    def _product(self) -> FormulaPart:
        return self._left(self._power, "*", "/")

    def _power(self) -> FormulaPart:
        node = self._atom()
        return FormulaPart("binary", "^", (node, self._power())) if self._take("^") else node

    def _atom(self) -> FormulaPart:
        self.depth += 1
        if self.depth > DEEP:
            raise self._wrong("too many parentheses")
        try:
            return self._inner()
        finally:
            self.depth -= 1

    def _inner(self) -> FormulaPart:
        if self._take("-"):
            return FormulaPart("binary", "-", (FormulaPart("number", "0"), self._power()))
        if self._take("("):
            node = self._or()
            self._must(")")
            return node
        kind, word = self.tokens[self.at]
        following = self.tokens[self.at + 1][1] if self.at + 1 < len(self.tokens) else ""
        if kind == "name" and (word == "completed" or (word in SPANS and following == "between")):
            return self._between()
        if kind == "name" and following == "(" and (word in FUNCTIONS or word == "known"):
            self.at += 2
            parts = [self._or()]
            while self._take(","):
                parts.append(self._or())
            self._must(")")
            if len(parts) != (2 if word in ("min", "max") else 1):
                raise self._wrong(f"{len(parts)} values in {word}")
            return FormulaPart("call", word, tuple(parts))
        if kind in ("number", "text", "column") or (kind == "name" and word not in _WORDS - set(SPANS)):
            self.at += 1
            return FormulaPart("column" if kind == "name" else kind, word)
        raise self._wrong(f"something else at word {self.at + 1}")

    def _between(self) -> FormulaPart:
        whole = bool(self._take("completed"))
        unit = self._take(*(("years", "months") if whole else SPANS))
        if not unit:
            raise self._wrong("no unit of time after 'completed'")
        self._must("between")
        start = self._sum()
        self._must("and")
        return FormulaPart("between", f"completed {unit}" if whole else unit, (start, self._sum()))
