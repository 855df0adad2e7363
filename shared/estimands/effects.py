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

__all__ = ["SCALES", "effect_name", "shown"]

SCALES: Mapping[str, str] = {"identity": "", "log": "log", "logit": "logit", "fisher_z": "Fisher z"}
"""What people call each scale; blank where nothing was transformed."""
_BACK: Mapping[str, Callable[[float], float]] = {
    "identity": float,
    "log": lambda y: math.exp(min(y, 700.0)),
    "logit": lambda y: 1 / (1 + math.exp(-max(min(y, 700.0), -700.0))),
    "fisher_z": math.tanh,
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
    >>> effect_name(parse_estimand("logistic(died) ~ age"))
    'Odds ratio'
    """
    if question.kind == "network":
        return question.outcome.replace("_", " ").capitalize()
    if question.kind == "two_by_two":
        return _TABLES[question.measure]
    if term == INTERCEPT and KINDS[question.kind].baseline:
        return KINDS[question.kind].baseline
    name, time = KINDS[question.kind].effect, question.at if question.kind == "km" else question.tau
    if question.kind not in ("km", "rmst") or time is None:
        return name
    return " ".join(filter(None, (name, "at" if question.kind == "km" else "to", f"{time:g}", unit)))
