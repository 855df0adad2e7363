"""Reasons why a site's outcome leaves a term without an estimate: a kind, and the words that say it.

A reason travels as text alone: on the wire, in a kept estimate, in an exported table. It is written here and nowhere
else, each in one form of words with its kind, and `kind_of` reads the kind back by the same form: so words may change
and no other place has to follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from string import Formatter

__all__ = [
    "COLUMN_OF_NONE",
    "COLUMN_OF_ONE",
    "FAR",
    "FEW_BEFORE",
    "FEW_EVENTS",
    "FEW_FOR_TERMS",
    "FEW_IN_A_PAIR",
    "FEW_OF_EITHER",
    "FEW_UP_TO",
    "FORMS",
    "INCIDENCE_OF_ONE",
    "MEAN_OF_NO_EVENTS",
    "NO_EVENTS",
    "NO_EVENTS_IN_BOTH",
    "NO_MAXIMUM",
    "NO_PARTIAL_MAXIMUM",
    "ONE_SIDE",
    "ONLY_EVENTS",
    "ONLY_EVENTS_IN_BOTH",
    "RISK_OF_ONE",
    "SEPARATES",
    "SURVIVAL_OF_NONE",
    "SURVIVAL_OF_ONE",
    "TERMS_SEPARATE",
    "OutcomeLoss",
    "ReasonForm",
    "kind_of",
]

FAR = "no finite estimate at this site"


class OutcomeLoss(Enum):
    """Kinds of reasons by which a site's outcome leaves it out; which sites those are is no chance."""

    EDGE = "all risks are below 1 at no maximum of a log-binomial likelihood"
    SEPARATED = "terms separate the outcome"
    NO_MAXIMUM = "no maximum of the likelihood was found"
    FEW = "too few events, or none"
    FEW_BY_A_TIME = "too few events by the time asked, or none"
    ALL = "the outcome is 1 in every row"
    ALL_BY_A_TIME = "everybody had had the event by the time asked"
    NONE_OF_A_COLUMN = "a column is 0 in every row"
    ALL_OF_A_COLUMN = "a column is 1 in every row"


@dataclass(eq=False)
class ReasonForm:
    """A reason's words, with fields in braces, and its kind.

    >>> FEW_EVENTS(events=3), kind_of("3 events: too few") is OutcomeLoss.FEW
    ('3 events: too few', True)
    """

    words: str
    kind: OutcomeLoss

    def __call__(self, **fields: object) -> str:
        """The reason with these numbers, each without a space in it."""
        return self.words.format(**fields)

    def says(self, reason: str) -> bool:
        """True if a reason is of this form, by itself or behind the label of the term that it is of."""
        return _pattern(self.words).fullmatch(reason) is not None


@cache
def _pattern(words: str) -> re.Pattern[str]:
    parts = [re.escape(text) + (r"\S+" if name is not None else "") for text, name, *_ in Formatter().parse(words)]
    return re.compile(r"(?:.*: )?" + "".join(parts), re.DOTALL)


RISK_OF_ONE = ReasonForm(
    f"the likelihood has no maximum with all risks below 1 (risk_ratio asks for none): {FAR}", OutcomeLoss.EDGE
)
SEPARATES = ReasonForm(f"separates the outcome: {FAR}", OutcomeLoss.SEPARATED)
TERMS_SEPARATE = ReasonForm(f"the terms together separate the outcome: {FAR}", OutcomeLoss.SEPARATED)
ONE_SIDE = ReasonForm(f"all events lie on one side: {FAR}", OutcomeLoss.SEPARATED)
NO_MAXIMUM = ReasonForm(f"the likelihood has no maximum: {FAR}", OutcomeLoss.NO_MAXIMUM)
NO_PARTIAL_MAXIMUM = ReasonForm(f"the partial likelihood has no maximum: {FAR}", OutcomeLoss.NO_MAXIMUM)
SURVIVAL_OF_ONE = ReasonForm("survival at {at} is 1 at this site: its logit is not finite", OutcomeLoss.FEW_BY_A_TIME)
SURVIVAL_OF_NONE = ReasonForm("survival at {at} is 0 at this site: its logit is not finite", OutcomeLoss.ALL_BY_A_TIME)
INCIDENCE_OF_ONE = ReasonForm("incidence at {at} is 1 at this site: its logit is not finite", OutcomeLoss.ALL_BY_A_TIME)
FEW_UP_TO = ReasonForm("fewer than {least} events up to {at} at this site", OutcomeLoss.FEW_BY_A_TIME)
FEW_BEFORE = ReasonForm("fewer than {least} events before {at} at this site", OutcomeLoss.FEW)
FEW_EVENTS = ReasonForm("{events} events: too few", OutcomeLoss.FEW)
FEW_FOR_TERMS = ReasonForm("{events} events for {terms} terms: too few", OutcomeLoss.FEW)
FEW_IN_A_PAIR = ReasonForm("{events} events in the level and the reference: too few", OutcomeLoss.FEW)
FEW_OF_EITHER = ReasonForm("{events} events or non-events: too few", OutcomeLoss.FEW)
NO_EVENTS = ReasonForm("the outcome is constant at this site: 0 in every row", OutcomeLoss.FEW)
NO_EVENTS_IN_BOTH = ReasonForm(f"no events in both groups: {FAR}", OutcomeLoss.FEW)
MEAN_OF_NO_EVENTS = ReasonForm("a mean is 0, of no events, at this site: its logarithm is not finite", OutcomeLoss.FEW)
ONLY_EVENTS = ReasonForm("the outcome is constant at this site: 1 in every row", OutcomeLoss.ALL)
ONLY_EVENTS_IN_BOTH = ReasonForm(f"only events in both groups: {FAR}", OutcomeLoss.ALL)
COLUMN_OF_NONE = ReasonForm("the column is constant at this site: 0 in every row", OutcomeLoss.NONE_OF_A_COLUMN)
COLUMN_OF_ONE = ReasonForm("the column is constant at this site: 1 in every row", OutcomeLoss.ALL_OF_A_COLUMN)

FORMS = tuple(one for one in tuple(globals().values()) if isinstance(one, ReasonForm))


def kind_of(reason: str) -> OutcomeLoss | None:
    """The kind of a reason, however it came here; None for a reason that is not of a site's outcome.

    >>> kind_of("no rows") is None
    True
    """
    return next((form.kind for form in FORMS if form.says(reason)), None)
