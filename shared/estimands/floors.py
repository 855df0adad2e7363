"""What every answer of a table is: a number with its variance or a reason, and how few rows or events are too few."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.survival import SurvivalCurve
from shared.estimands.kinds import Scale

__all__ = [
    "FAR",
    "HANGS",
    "MIN_EVENTS",
    "MIN_RESIDUAL_DF",
    "NO_ROWS",
    "RISK_OF_ONE",
    "Answer",
    "LeastRows",
    "QuestionResult",
    "few",
]

Array = NDArray[np.float64]
Answer = tuple[float, float] | str
"""Estimate and variance, or the reason for having none."""
MIN_RESIDUAL_DF = 10
"""Fewer rows than parameters plus this, and no term of the model is reported: its variance would be a guess."""
MIN_EVENTS = 5
"""Fewer events than this, or than terms, and no term of a Cox model is reported."""
FAR = "no finite estimate at this site"
NO_ROWS = "the level has no rows at this site"
RISK_OF_ONE = "the likelihood has no maximum with all risks below 1"
HANGS = "its meaning hangs on excluded terms"


@dataclass(frozen=True)
class LeastRows:
    """Fewest residual degrees of freedom, and fewest events."""

    residual_df: int
    events: int


@dataclass(kw_only=True)
class QuestionResult:
    """Answers by label in the question's order, the names R prints, and the rows behind them.

    `dispersion` is that of a count's rows about its model, 1 for what is no count or is not known.
    `used` are the places in the table of the rows that a model was fitted on, where one was.
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
    scales: dict[str, Scale] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)


def few(n: int, parameters: int, floors: LeastRows) -> str:
    """The reason why so few rows are too few; blank where they are enough."""
    return f"{n} complete rows for {parameters} parameters: fewer than {floors.residual_df} residual degrees of freedom"
