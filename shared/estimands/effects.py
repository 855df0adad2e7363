"""Presentation of an estimate: its effect measure, its label in words, the transformation from the analysis scale.

Estimates are pooled on a scale on which their errors are nearly normal. People read the odds ratio and not its
logarithm, the share and not its log odds; so whatever prints an estimate transforms it by `shown`, and names its effect
measure by `effect_name`. An axis, a heading of standard errors and a file keep the analysis scale, and name it
(`SCALES`).

The formula is exact; beside it are the words of the study's dictionary, for headings and titles of figures. A label is
cut at its first comma, bracket, colon or semicolon: the rest explains it, and would make a title of two lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared.errors import Refusal
from shared.estimands.formulas import Node, names, parse
from shared.estimands.kinds import CURVED, DESCRIBED, KINDS, REPEATED
from shared.estimands.questions import INTERCEPT, MODELS

if TYPE_CHECKING:
    from shared.estimands.questions import Estimand, Scale
    from shared.plans.dictionary import Dictionary, Level

__all__ = [
    "NNT",
    "SCALES",
    "asked_of",
    "effect_name",
    "exact_question",
    "in_words",
    "number_needed",
    "shown",
    "time_unit",
]

SCALES: Mapping[str, str] = {"identity": "", "log": "log", "logit": "logit", "fisher_z": "Fisher z"}
"""Displayed name of each analysis scale; blank where nothing was transformed."""
_BACK: Mapping[str, Callable[[float], float]] = {
    "identity": float,
    "log": lambda y: math.exp(min(y, 700.0)),
    "logit": lambda y: 1 / (1 + math.exp(-max(min(y, 700.0), -700.0))),
    "fisher_z": math.tanh,
}
NNT = "Risk difference (number needed)"
"""Effect of a question whose answer is read as a number needed, too."""
_MEANS = {"RD": "Mean difference", "RR": "Ratio of means", "slope": "Average marginal effect"}
_RISKS = {"RD": "Risk difference", "RR": "Risk ratio", "OR": "Marginal odds ratio", "NNT": NNT}
_RISKS |= {"slope": "Average marginal effect"}
_NETWORKS = {
    "edge": "Share of pairs connected",
    "v_shape": "Share of possible V-shapes",
    "star3": "Share of possible 3-stars",
    "triangle": "Share of possible triangles",
    "degree_cv": "Coefficient of variation of degrees",
}
_TABLES = {"OR": "Odds ratio", "RR": "Risk ratio", "RD": "Risk difference"}


def shown(value: float, scale: Scale) -> float:
    """An estimate, or an end of its interval, taken back from the analysis scale.

    >>> shown(0.0, "logit"), round(shown(0.25, "fisher_z"), 3), shown(0.0, "log"), shown(-2.0, "identity")
    (0.5, 0.245, 1.0, -2.0)
    """
    return _BACK[scale](value)


def effect_name(question: Estimand, term: str = "", unit: str = "") -> str:
    """The effect measure of a question's answers, as a reader of its table is told.

    Args:
        term: of a model with several: its intercept is no ratio.
        unit: of the follow-up, where the question names a time.

    >>> from shared.estimands.answer import parse_estimand
    >>> effect_name(parse_estimand("km(age, num > 0, at = 60)"), unit="years")
    'Survival at 60 years'
    >>> effect_name(parse_estimand("rmst(age, num > 0, tau = 60) ~ sex"), unit="years")
    'Difference in restricted mean survival time to 60 years'
    >>> effect_name(parse_estimand("logistic(died) ~ age"))
    'Odds ratio'
    >>> effect_name(parse_estimand("network(edge)"))
    'Share of pairs connected'
    """
    if question.kind == "network":
        return _NETWORKS.get(question.outcome) or question.outcome.replace("_", " ").capitalize()
    if question.kind == "two_by_two":
        return _TABLES[question.measure]
    if question.kind in DESCRIBED and term:
        from shared.estimands.columns import STATISTICS, TableCell

        return STATISTICS[TableCell.read(term).statistic].capitalize()
    if question.kind == "standardised":
        return (_RISKS if question.binary else _MEANS)[question.contrast]
    if question.kind == "schoenfeld":
        by = "log time" if question.transform == "log" else unit or "unit of time"
        return f"Change of the log hazard ratio per {by}"
    if question.kind == "quantile":
        named = "median" if question.tau == 0.5 else f"{question.tau:g} quantile"
        return named.capitalize() if term == INTERCEPT else f"Difference in {named}"
    kind = question.like if question.kind in REPEATED else question.kind
    if term.partition(" | ")[0] == INTERCEPT and KINDS[kind].baseline:
        return KINDS[kind].baseline
    name, time = KINDS[kind].effect, question.tau if question.at is None else question.at
    if kind == "rmst" and question.terms:  # its answers are differences to the first level
        name = KINDS["rmst_regression"].effect
    if time is None or question.kind not in (*CURVED, "rmst_regression"):
        return name
    return " ".join(filter(None, (name, "at" if question.kind == "km" else "to", f"{time:g}", unit)))


def number_needed(difference: float, lower: float, upper: float) -> str:
    """A risk difference and its interval as numbers needed; through ∞ where the interval holds 0 (Altman 1998).

    How many must be exposed for one event fewer, or for one more. No difference is an infinite number, so an interval
    that holds none runs from the one, through ∞, to the other: never from a larger to a smaller number.

    >>> number_needed(-0.04, -0.1, 0.02)
    'one event fewer per 25.0 (one fewer per 10.0, through ∞, to one more per 50.0)'
    >>> number_needed(0.1, 0.05, 0.2)
    'one event more per 10.0 (one more per 20.0 to one more per 5.0)'
    """

    def needed(value: float) -> str:
        if value == 0:
            return "more or fewer per ∞"
        size = 1 / abs(value)
        return (
            f"{'fewer' if value < 0 else 'more'} per {size:.0f}"
            if size >= 100
            else f"{'fewer' if value < 0 else 'more'} per {size:.1f}"
        )

    between = ", through ∞, to" if lower < 0 < upper else " to"
    return f"one event {needed(difference)} (one {needed(lower)}{between} one {needed(upper)})"


# -- a question in words ---------------------------------------------------------------------------------------
_OF_MEANS = {
    "ols": "Difference in",
    "difference": "Difference in mean",
    "ratio": "Ratio of mean",
    "gamma": "Ratio of mean",
}
_SIGNS = {"==": "=", "!=": "≠", ">=": "≥", "<=": "≤"}


def exact_question(term: str, estimand: str) -> str:
    """Term and question in their exact spelling, each once.

    >>> exact_question("mean(age)", "mean(age)"), exact_question("age", "ols(sbp) ~ age")
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
    >>> in_words(parse_estimand("logistic(died) ~ sbp * sex"), "sbp", known)
    'Odds ratio for death, per 1 mmHg of systolic pressure, at sex female'
    >>> in_words(parse_estimand("mean(sbp)"), "mean(sbp)", known)
    'Mean systolic pressure (mmHg)'
    """
    words = _Words(dictionary)
    kind, effect = question.kind, effect_name(question, term, time_unit(question, dictionary))
    if kind == "network":
        return effect + "".join(f" by {words.called(name)}" for name in question.terms)
    if kind in DESCRIBED:
        return f"{KINDS[kind].effect if kind != 'histogram' else 'Histogram'}: {term}"
    if kind == "correlation":
        return f"{effect} of {' and '.join(map(words.called, question.terms))}"
    if kind in ("mean", "proportion"):
        return f"{'Share with' if kind == 'proportion' else effect} {words.side(question.outcome)}"
    term, _, level = term.partition(" | ")
    contrast = ", ".join(filter(None, (words.contrast(question, term), words.held(question, term))))
    if kind in ("cumhaz", "cuminc"):
        subject = f"{effect} of {words.side(question.event)}"
        if question.competing:
            subject += f" beside {words.side(question.competing)}"
    elif kind in ("km", "rmst", "rmst_regression"):
        name, at, time = effect.partition(" at " if kind == "km" else " to ")
        subject = f"{name} without {words.side(question.event)}{at}{time}"
    elif kind == "standardised" and not question.binary:
        subject = f"Standardised {effect[0].lower()}{effect[1:]} of {words.side(question.outcome)}"
    elif kind == "standardised":
        subject = f"Standardised {effect[0].lower()}{effect[1:]} for {words.side(question.outcome)}"
    elif kind == "quantile":
        subject = f"{effect} of {words.side(question.outcome)}"
    elif (question.like if kind in REPEATED else kind) in _OF_MEANS:
        named = _OF_MEANS[question.like]
        named = "Intercept of" if term == INTERCEPT else named
        subject = f"{named} {words.side(question.outcome)}"
    else:
        subject = f"{effect} for {words.side(question.event or question.outcome)}"
    if level:
        subject += f" {level} against {words.first_level(question.outcome)}"
    return f"{subject}, {contrast}" if contrast else subject


def asked_of(question: Estimand, term: str, dictionary: Dictionary) -> str:
    """Adjustment, strata and subset of a question, in words; blank where there are none."""
    words = _Words(dictionary)
    own = set(_columns(term.partition(" | ")[0].partition("[")[0].partition("/")[0]))
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
        self._columns = {column.name: column for column in (*dictionary.source.columns, *dictionary.columns)}

    def called(self, name: str) -> str:
        """A column by its label, or by its name without one."""
        column = self._columns.get(name)
        return (re.split(r"[,(:;]", column.label)[0].strip() if column else "") or name

    def first_level(self, name: str) -> str:
        """The level that others of a column are compared with."""
        return str(next(iter(getattr(self._columns.get(name), "levels", ())), "the first"))

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
        """Contrast that a term estimates, in words: per so many units of a column, or one level against the first."""
        if term in (INTERCEPT, str(question)):
            return ""
        if ":" in term:
            return " × ".join(self._piece(part) for part in term.split(":"))
        found = re.fullmatch(r"(?:C\()?(\w+)\)?\[(.+)\]", term)
        if found:
            name, level = found.groups()
            levels = [str(one) for one in getattr(self._columns.get(name), "levels", ())]
            alone = (question.kind in CURVED and question.kind != "rmst") or not levels or level == levels[0]
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

    def held(self, question: Estimand, term: str) -> str:
        """Where a term holds that others of its model modify: at their first level, or at 0; blank where none does."""
        if question.kind not in MODELS or question.kind == "standardised" or term == INTERCEPT:
            return ""  # a standardised contrast is over everybody's own values
        own = {_base(part) for part in term.split(":")}
        whole = [list(map(_base, other.split(":"))) for other in question.terms]
        others = dict.fromkeys(name for parts in whole if own < set(parts) for name in parts if name not in own)
        places = []
        for name in others:
            column = name[2:-1] if name.startswith("C(") else name
            levels: tuple[Level, ...] = getattr(self._columns.get(column), "levels", ())
            words = bool(levels) and isinstance(levels[0], str)  # a column of words has levels without C(), too
            first = levels[0] if levels and (words or column != name) else 0
            places.append(f"{self.called(column)} {first}" if column.isidentifier() else f"{column} = 0")
        return f"at {' and '.join(places)}" if places else ""

    def _piece(self, part: str) -> str:
        found = re.fullmatch(r"(?:C\()?(\w+)\)?(?:\[(.+)\])?", part)
        return f"{self.called(found[1])}{f' {found[2]}' if found[2] else ''}" if found else part


def _base(part: str) -> str:
    """A part of a term without its level.

    >>> _base("C(sex)[male]"), _base("sbp")
    ('C(sex)', 'sbp')
    """
    return re.sub(r"\[.*\]$", "", part)


def _bare(node: Node) -> str:
    return str(node.value) if node.kind == "text" else str(node)
