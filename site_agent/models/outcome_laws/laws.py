"""Fitting the laws of outcomes given everything else: `shared.flows.outcomes`.

Covariates enter each law in their own unit, next to unpenalised: its score equations then hold on the records, and what
a planned regression finds in rows drawn from it is what it finds in the records, but for noise. What else a law reads
is in `terms`.

Deterministic: nothing is drawn. No guarantee covers what is fitted; on which records it may be fitted is
`site_agent.release.fitting`'s rule, as of the rest of the flow.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw
from shared.flows.outcomes_last import OutcomesLast
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.outcome_laws.calibrated import copies_of
from site_agent.models.outcome_laws.hazards import hazard_law
from site_agent.models.outcome_laws.terms import (
    AT_ONCE,
    ROUNDS,
    Array,
    Codes,
    chosen_terms,
    inputs_of,
    least,
    ridge_of,
    widths,
)
from site_agent.models.outcome_laws.tilts import tilt_law

__all__ = ["fit_laws", "laws_cost"]

Law: TypeAlias = LevelLaw | TiltLaw | HazardLaw

# Constants of `tests/benchmarks/estimates.py`, at 5,000 to 40,000 records of 8 to 15 columns.
_A_CANDIDATE = 5e-8
"""Seconds per record of a term that may be taken in, over all rounds."""
_COSTS = {
    "levels": (1e-6, 3.3e-7, 0),
    "linear": (55e-6, 2.6e-7, 24),
    "count": (28e-6, 3.5e-7, 24),
    "hazard": (9e-6, 5.8e-7, 24),
}
"""Kind of outcome to seconds per record of the fit, per simulated row and term of the calibration, and bins."""


def fit_laws(x: Array, planned: PlannedOutcomes) -> OutcomesLast:
    """The laws of a plan's outcomes, fitted to encoded records.

    Args:
        x: (n, d) encoded records.
        planned: which columns are outcomes, in which order, and what the columns are.
    Raises: TrainingRefusal, where an outcome is a function of the others.
    """
    covariates = [j for j in range(planned.d) if j not in planned.drawn]
    known, laws = list(covariates), []
    for group in planned.groups:
        inputs = inputs_of(x, known, planned)
        law: Law
        kind = planned.kind(group)
        if kind == "hazard":
            law = hazard_law(x, group, inputs)
        elif kind == "levels":
            law = level_law(x, group[0], planned.levels[group[0]], inputs)
        else:
            law = tilt_law(x, group[0], inputs, planned)
        laws.append(law)
        known += group
    return OutcomesLast(d=planned.d, laws=tuple(laws))


def laws_cost(n: int, planned: PlannedOutcomes) -> tuple[float, float]:
    """Cost of fitting and calibrating laws on n records: (seconds, megabytes of arrays).

    A number that may be missing is not put right, which takes most of the time of a law of levels.
    """
    seconds, megabytes = 0.0, 0.0
    known = [j for j in range(planned.d) if j not in planned.drawn]
    simulated = n * copies_of(n)
    for k, group in enumerate(planned.groups):
        base, candidates = widths(known, planned)
        fitted, turned, bins = _COSTS[planned.kind(group)]
        seconds += n * (fitted + _A_CANDIDATE * candidates) + (k >= planned.covariates) * simulated * turned * base
        tables = max(4 * candidates * min(n, AT_ONCE), 12 * bins * n, simulated * (2 * planned.d + base))
        megabytes = max(megabytes, 8e-6 * tables)
        known += group
    return seconds, megabytes + 8e-6 * 15 * n * planned.d


def level_law(x: Array, column: int, levels: int, inputs: OutcomeInputs) -> LevelLaw:
    level = np.clip(np.floor(x[:, column]), 0, levels - 1).astype(np.int64)
    atoms = inputs.all_atoms(x)
    start: Array | None = None
    for _ in range(ROUNDS):
        features = inputs.features(x)
        law = LevelLaw(column=column, inputs=inputs, coefficients=_multinomial(features, level, levels, inputs, start))
        share = law.shares(x)
        channels = [(level == k) - share[:, k] for k in (range(1, 2) if levels == 2 else range(levels))]
        more = chosen_terms(inputs, atoms, channels)
        if more is inputs:
            break
        start = np.vstack([law.coefficients, np.zeros((more.width - inputs.width, levels))])
        inputs = more
    else:
        features = inputs.features(x)
        law = LevelLaw(column=column, inputs=inputs, coefficients=_multinomial(features, level, levels, inputs, start))
    return law


def _multinomial(features: Array, level: Codes, levels: int, inputs: OutcomeInputs, start: Array | None) -> Array:
    """Of the levels but the first; the ridge is on what is estimated, so the first is a reference by name alone."""
    n, width, free = len(features), features.shape[1], levels - 1
    ridge = np.repeat(np.concatenate([[1e-3], ridge_of(inputs)])[:, None], free, axis=1)
    target = np.zeros((n, levels))
    target[np.arange(n), level] = 1.0
    if start is None:
        start = np.zeros((width, levels))
        start[0] = np.log((target.sum(axis=0) + 0.1) / (n + 0.1 * levels))
    start = start[:, 1:] - start[:, :1]

    def parts(flat: Array) -> tuple[float, Array, Array]:
        beta = flat.reshape(width, free)
        logits = np.hstack([np.zeros((n, 1)), features @ beta])
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(axis=1)
        share = odds / total[:, None]
        value = (np.log(total) - (logits * target).sum(axis=1)).sum() + 0.5 * (ridge * beta**2).sum()
        gradient = features.T @ (share - target)[:, 1:] + ridge * beta
        curvature = np.empty((width, free, width, free))
        for j in range(free):
            for k in range(j + 1):
                weight = share[:, j + 1] * ((j == k) - share[:, k + 1])
                curvature[:, j, :, k] = curvature[:, k, :, j] = features.T @ (features * weight[:, None])
        size = width * free
        return float(value), gradient.ravel(), curvature.reshape(size, size) + np.diag(ridge.ravel())

    found = least(parts, start.ravel(), "a levelled outcome").reshape(width, free)
    return np.hstack([np.zeros((width, 1)), found])
