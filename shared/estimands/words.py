"""A question in words: what an answer is of, as the study's dictionary calls it, for headings and titles of figures.

The formula says the same and is exact; it stands beside these words wherever they stand. A label is cut at its first
comma, bracket, colon or semicolon: what follows there explains it, and would make a title of two lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shared.errors import Refusal
from shared.estimands.effects import effect_name
from shared.estimands.formulas import Node, names, parse
from shared.estimands.questions import INTERCEPT, MODELS

if TYPE_CHECKING:
    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Dictionary

__all__ = ["asked", "asked_of", "in_words", "time_unit"]

_OF_MEANS = {
    "ols": "Difference in",
    "difference": "Difference in mean",
    "ratio": "Ratio of mean",
    "gamma": "Ratio of mean",
}
_SIGNS = {"==": "=", "!=": "≠", ">=": "≥", "<=": "≤"}


def asked(term: str, estimand: str) -> str:
    """Term and question in their exact spelling, each once.

    >>> asked("mean(age)", "mean(age)"), asked("age", "ols(sbp) ~ age")
    ('mean(age)', 'age in ols(sbp) ~ age')
    """
    return estimand if term == estimand else f"{term} in {estimand}"


def time_unit(question: Estimand, dictionary: Dictionary) -> str:
    """Unit of a question's follow-up, blank where it has none or no unit is known."""
    return next((column.unit for column in dictionary.columns if column.name == question.duration), "")


def in_words(question: Estimand, term: str, dictionary: Dictionary) -> str:
    """Effect, outcome and contrast of one answer.

    >>> from shared.estimands.questions import parse_estimand
    >>> from shared.plans.dictionary import Column, Dictionary
    >>> known = Dictionary(name="d", version=1, columns=(
    ...     Column(name="sbp", kind="continuous", label="systolic pressure, first reading", unit="mmHg", lower=50,
    ...            upper=300),
    ...     Column(name="sex", kind="binary", label="sex", levels=("female", "male")),
    ...     Column(name="died", kind="event", label="death")))
    >>> in_words(parse_estimand("logistic(died) ~ sbp/10 + sex"), "sbp/10", known)
    'Odds ratio for death, per 10 mmHg of systolic pressure'
    >>> in_words(parse_estimand("logistic(died) ~ sbp/10 + sex"), "sex[male]", known)
    'Odds ratio for death, sex: male against female'
    >>> in_words(parse_estimand("mean(sbp)"), "mean(sbp)", known)
    'Mean systolic pressure (mmHg)'
    """
    words = _Words(dictionary)
    kind, effect = question.kind, effect_name(question, term, time_unit(question, dictionary))
    if kind == "network":
        return effect + "".join(f" by {words.called(name)}" for name in question.terms)
    if kind == "table_one":
        return f"Table 1: {term}"
    if kind == "correlation":
        return f"{effect} of {' and '.join(map(words.called, question.terms))}"
    if kind in ("mean", "proportion"):
        return f"{'Share with' if kind == 'proportion' else effect} {words.side(question.outcome)}"
    contrast = words.contrast(question, term)
    if kind in ("km", "rmst"):
        name, at, time = effect.partition(" at " if kind == "km" else " to ")
        subject = f"{name} without {words.side(question.event)}{at}{time}"
    elif kind == "standardised" and not question.binary:
        subject = f"Standardised {effect[0].lower()}{effect[1:]} of {words.side(question.outcome)}"
    elif kind == "standardised":
        subject = f"Standardised {effect[0].lower()}{effect[1:]} for {words.side(question.outcome)}"
    elif kind in _OF_MEANS:
        named = _OF_MEANS[kind]
        named = "Intercept of" if term == INTERCEPT else named
        subject = f"{named} {words.side(question.outcome)}"
    else:
        subject = f"{effect} for {words.side(question.event or question.outcome)}"
    return f"{subject}, {contrast}" if contrast else subject


def asked_of(question: Estimand, term: str, dictionary: Dictionary) -> str:
    """What else stands in the model, and of whom it was asked; blank for neither."""
    words = _Words(dictionary)
    own = set(_columns(term.partition("[")[0].partition("/")[0]))
    others = dict.fromkeys(name for other in question.terms for name in _columns(other) if not own & {name})
    said = []
    if others and question.kind in MODELS:
        said.append(f"adjusted for {', '.join(map(words.called, others))}")
    if question.strata:
        said.append(f"stratified by {', '.join(map(words.called, question.strata))}")
    if question.subset:
        said.append(f"only where {words.side(question.subset)}")
    text = "; ".join(said)
    return text[:1].upper() + text[1:]


def _columns(text: str) -> list[str]:
    try:
        return list(names(parse(text)))
    except Refusal:
        return []


class _Words:
    """Names of a dictionary's columns for people."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._columns = {column.name: column for column in dictionary.columns}

    def called(self, name: str) -> str:
        """A column by its label, or by its name without one."""
        column = self._columns.get(name)
        return (re.split(r"[,(:;]", column.label)[0].strip() if column else "") or name

    def side(self, text: str) -> str:
        """A column, a comparison, or an expression as it stands."""
        node = parse(text)
        if node.kind == "name":
            column = self._columns.get(str(node.value))
            unit = f" ({column.unit})" if column and column.unit else ""
            return self.called(str(node.value)) + unit
        if node.kind == "binary" and node.value in ("&", "|"):
            return f" {'and' if node.value == '&' else 'or'} ".join(self.side(str(part)) for part in node.parts)
        if node.kind == "binary" and node.parts[0].kind == "name":
            left, right = node.parts
            sign = _SIGNS.get(str(node.value), str(node.value))
            return f"{self.called(str(left.value))} {sign} {_bare(right)}"
        return text

    def contrast(self, question: Estimand, term: str) -> str:
        """What is compared: so many units more of a column, or one level against the first."""
        if term in (INTERCEPT, str(question)):
            return ""
        if ":" in term:
            return " × ".join(self._piece(part) for part in term.split(":"))
        found = re.fullmatch(r"(?:C\()?(\w+)\)?\[(.+)\]", term)
        if found:
            name, level = found.groups()
            levels = [str(one) for one in getattr(self._columns.get(name), "levels", ())]
            alone = question.kind in ("km", "rmst") or not levels or level == levels[0]
            return f"{self.called(name)}: {level}" + ("" if alone else f" against {levels[0]}")
        name, _, units = term.partition("/")
        column = self._columns.get(name)
        if column is None:
            return term
        if column.levels:
            two = f": {column.levels[-1]} against {column.levels[0]}"
            return f"per level of {self.called(name)}" if len(column.levels) > 2 else f"{self.called(name)}{two}"
        unit = column.unit
        if not units and unit.isalpha() and unit.endswith("s") and len(unit) > 2:
            return f"per {unit[:-1]} of {self.called(name)}"
        amount = " ".join(filter(None, (units or "1", unit)))
        return f"per {amount} of {self.called(name)}"

    def _piece(self, part: str) -> str:
        found = re.fullmatch(r"(?:C\()?(\w+)\)?(?:\[(.+)\])?", part)
        return f"{self.called(found[1])}{f' {found[2]}' if found[2] else ''}" if found else part


def _bare(node: Node) -> str:
    return str(node.value) if node.kind == "text" else str(node)
