"""What an estimate is called, and how it is read: its effect measure, and the way back from the analysis scale.

Estimates are pooled on a scale on which their errors are nearly normal. People read the odds ratio and not its
logarithm, the share and not its log odds; so whatever prints an estimate takes it back by `shown`, and names what it is
by `effect_name`. An axis, a heading of standard errors and a file keep the analysis scale, and say which (`SCALES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared.estimands.kinds import KINDS
from shared.estimands.questions import INTERCEPT

if TYPE_CHECKING:
    from shared.estimands.questions import Estimand, Scale

__all__ = ["NNT", "SCALES", "effect_name", "number_needed", "shown"]

SCALES: Mapping[str, str] = {"identity": "", "log": "log", "logit": "logit", "fisher_z": "Fisher z"}
"""What people call each scale; blank where nothing was transformed."""
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
    >>> effect_name(parse_estimand("logistic(died) ~ age"))
    'Odds ratio'
    """
    if question.kind == "network":
        return question.outcome.replace("_", " ").capitalize()
    if question.kind == "two_by_two":
        return _TABLES[question.measure]
    if question.kind == "table_one" and term:
        from shared.estimands.columns import STATISTICS, TableCell

        return STATISTICS[TableCell.read(term).statistic].capitalize()
    if question.kind == "standardised":
        return (_RISKS if question.binary else _MEANS)[question.contrast]
    if term == INTERCEPT and KINDS[question.kind].baseline:
        return KINDS[question.kind].baseline
    name, time = KINDS[question.kind].effect, question.at if question.kind == "km" else question.tau
    if question.kind not in ("km", "rmst") or time is None:
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
