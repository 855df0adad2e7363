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
from site_agent.models.outcome_laws.hazards import hazard_law
from site_agent.models.outcome_laws.terms import ROUNDS, Array, Codes, chosen_terms, inputs_of, least, ridge_of
from site_agent.models.outcome_laws.tilts import tilt_law

__all__ = ["fit_laws", "laws_cost"]

Law: TypeAlias = LevelLaw | TiltLaw | HazardLaw


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
        if len(group) == 2:
            law = hazard_law(x, group, inputs)
        elif group[0] in planned.levels:
            law = level_law(x, group[0], planned.levels[group[0]], inputs)
        else:
            law = tilt_law(x, group[0], inputs, planned)
        laws.append(law)
        known += group
    return OutcomesLast(d=planned.d, laws=tuple(laws))


def laws_cost(n: int, planned: PlannedOutcomes) -> tuple[float, float]:
    """Upper bounds of the cost of fitting and calibrating laws on n records: (seconds, megabytes)."""
    # As measured for counts, the slowest, at 300 and 20,000 records; about a dozen tables of records by bins. A number
    # that may be missing is not put right, and took a tenth, as whether it is missing.
    groups = len(planned.outcomes) + planned.covariates / 10
    return groups * (1.0 + 7e-4 * n), 8e-6 * 26 * (12 * n + 40_000) + 8e-6 * 4 * max(n, 7_500) * planned.d


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
