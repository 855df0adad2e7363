"""Answers of one table (an estimate with its variance, or a reason for having none) and the fewest rows and events.

A reason by which a site's outcome leaves a term without an estimate travels as text alone: on the wire, in a kept
estimate, in an exported table. It is written here and nowhere else, each in one form of words with its kind, and
`kind_of` reads the kind back by the same form: so words may change and no other place has to follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from string import Formatter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.survival import SurvivalCurve
from shared.estimands.kinds import Scale

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
    "HANGS",
    "INCIDENCE_OF_ONE",
    "MEAN_OF_NONE",
    "MIN_EVENTS",
    "MIN_RESIDUAL_DF",
    "NO_EVENTS",
    "NO_EVENTS_IN_BOTH",
    "NO_MAXIMUM",
    "NO_PARTIAL_MAXIMUM",
    "NO_ROWS",
    "ONE_SIDE",
    "ONLY_EVENTS",
    "ONLY_EVENTS_IN_BOTH",
    "RISK_OF_ONE",
    "SEPARATES",
    "SURVIVAL_OF_NONE",
    "SURVIVAL_OF_ONE",
    "TERMS_SEPARATE",
    "Answer",
    "LeastRows",
    "Moves",
    "OutcomeLoss",
    "QuestionResult",
    "ReasonForm",
    "correlations",
    "few",
    "kind_of",
]

Array = NDArray[np.float64]
Answer = tuple[float, float] | str
"""Estimate and variance, or the reason for having none."""
MIN_RESIDUAL_DF = 10
"""Fewer rows than parameters plus this, and no term of the model is reported: its variance would be a guess."""
MIN_EVENTS = 5
"""Fewer events than this, or than terms, and no term of a Cox model is reported."""
NO_ROWS = "the level has no rows at this site"
HANGS = "its meaning hangs on excluded terms"

FAR = "no finite estimate at this site"


class OutcomeLoss(Enum):
    """Kinds of reasons by which a site's outcome leaves it out; which sites those are is no chance."""

    EDGE = "all risks are below 1 at no maximum of a log-binomial likelihood"
    SEPARATED = "terms separate the outcome"
    NO_MAXIMUM = "no maximum of the likelihood was found"
    FEW = "too few events, or none"
    NONE = "the outcome is 0 in every row"
    NONE_OF_A_GROUP = "the outcome is 0 in every row of a group"
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
NO_EVENTS = ReasonForm("the outcome is constant at this site: 0 in every row", OutcomeLoss.NONE)
NO_EVENTS_IN_BOTH = ReasonForm(f"no events in both groups: {FAR}", OutcomeLoss.FEW)
MEAN_OF_NONE = ReasonForm("a mean is 0 at this site: its logarithm is not finite", OutcomeLoss.NONE_OF_A_GROUP)
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


@dataclass(frozen=True)
class LeastRows:
    """Fewest residual degrees of freedom, and fewest events."""

    residual_df: int
    events: int


@dataclass(kw_only=True)
class Moves:
    """Influences of a fit's rows on its estimates, and the covariance of the estimates.

    Attributes:
        rows: label -> (n,) positions of the rows in the table, and (n,) their influences on the estimate.
        labels, cov: (p,) and (p, p): covariance of the estimates, of the kind that the question asks for.
        clusters: cluster of each row of the table; None where standard errors are not clustered.
        scaled: True if the clustered covariance is scaled by G / (G - 1), G clusters.
        figures: further results of the fit, by name.
    """

    rows: dict[str, tuple[NDArray[np.int64], Array]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    cov: Array = field(default_factory=lambda: np.zeros((0, 0)))
    clusters: NDArray[np.int64] | None = None
    scaled: bool = True
    figures: dict[str, float] = field(default_factory=dict)

    def clustered(self, influence: Array, place: NDArray[np.int64]) -> Array:
        """(p, p) sandwich of the clusters' sums of (n, p) influences of the rows at `place`."""
        assert self.clusters is not None
        _, codes = np.unique(self.clusters[place], return_inverse=True)
        sums = np.zeros((int(codes.max()) + 1, influence.shape[1]))
        np.add.at(sums, codes, influence)
        return np.asarray(sums.T @ sums * (len(sums) / (len(sums) - 1) if self.scaled else 1.0))

    def clear(self) -> None:
        """Forget a fit that another takes the place of."""
        self.rows, self.labels, self.cov = {}, (), np.zeros((0, 0))


def correlations(labels: Sequence[str], cov: Array) -> dict[str, dict[str, float]]:
    """label -> other label -> correlation, of a (p, p) covariance; of labels without a variance none."""
    variance = cov.diagonal()
    spread = np.sqrt(np.where(variance > 0, variance, 0.0))
    return {
        a: {b: float(cov[j, k] / (spread[j] * spread[k])) for k, b in enumerate(labels) if k != j and spread[k] > 0}
        for j, a in enumerate(labels)
        if spread[j] > 0
    }


@dataclass(kw_only=True)
class QuestionResult:
    """Answers by label in the question's order, the names R prints, and the rows behind them.

    `dispersion` is that of a count's rows about its model, 1 for what is no count or is not known.
    `used` are the places in the table of the rows that a model was fitted on, where one was.
    `correlations` are those of a model's estimates with each other, by label.
    `scales` and `counts` (rows used, rows left out) are those of answers that differ in them.
    """

    answers: dict[str, Answer]
    n: int
    missing: int = 0
    outside: int = 0
    r_names: dict[str, str] = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    attrs: dict[str, float] = field(default_factory=dict)
    curves: dict[str, SurvivalCurve] = field(default_factory=dict)
    influence: dict[str, Array] = field(default_factory=dict)
    dispersion: float = 1.0
    used: NDArray[np.int64] | None = None
    correlations: dict[str, dict[str, float]] = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)


def few(n: int, parameters: int, floors: LeastRows) -> str:
    """The reason why so few rows are too few; blank where they are enough."""
    return f"{n} complete rows for {parameters} parameters: fewer than {floors.residual_df} residual degrees of freedom"


def one_value(what: Literal["outcome", "column"], values: Array) -> str:
    """The reason of values that are all one; of 0 and 1 it says which: a site without an event is not so by chance.

    >>> one_value("outcome", np.zeros(9)), one_value("column", np.full(9, 37.5))
    ('the outcome is constant at this site: 0 in every row', 'the column is constant at this site')
    """
    found = float(values[0])
    if found not in (0.0, 1.0):
        return f"the {what} is constant at this site"
    none, every = (NO_EVENTS, ONLY_EVENTS) if what == "outcome" else (COLUMN_OF_NONE, COLUMN_OF_ONE)
    return every() if found else none()
