"""Answers of one table (an estimate with its variance, or a reason for having none) and the fewest rows and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.survival import SurvivalCurve
from shared.estimands.kinds import Scale
from shared.estimands.reasons import COLUMN_OF_NONE, COLUMN_OF_ONE, FAR, NO_EVENTS, ONLY_EVENTS

__all__ = [
    "FAR",
    "HANGS",
    "MIN_EVENTS",
    "MIN_RESIDUAL_DF",
    "NO_ROWS",
    "Answer",
    "LeastRows",
    "Moves",
    "QuestionResult",
    "correlations",
    "few",
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
