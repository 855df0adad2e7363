"""Laws of outcomes put right for the covariates that a flow draws.

A law fitted to records is right for the records' covariates. A flow draws covariates of its own, never quite by the
records' law: where effects bend, a straight regression finds something else among them, though the law of the outcome
is the same. So each law's lines are turned until the planned kind of regression, with every covariate in it, has on
tables drawn from the flow the coefficients that it has on the records: a few Newton steps, the same draws throughout.
It is indirect inference (Gourieroux, Monfort and Renault 1993), made of the rows the laws were fitted on. An answer
from a release at weight w lies between the records' and the flow's own, so that it is put right at every w.

The regression is multinomial logistic for levels, least squares for measurements, Poisson for counts, Cox for times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw
from shared.flows.outcomes_last import OutcomesLast
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.outcome_laws.terms import asked_products

__all__ = ["calibrated", "copies_of"]

Array = NDArray[np.float64]
Law = LevelLaw | TiltLaw | HazardLaw

ROWS, LEAST_COPIES, MOST_COPIES = 30_000, 4, 60
"""Simulated rows in all, and the least and the most tables of as many rows as there are records."""
STEPS, _BLOCK = 4, 1024
_RIDGE, _FAR, _NEAR, _NEWTON = 0.05, 4.0, 5e-3, 2
Regression = Callable[[Array, Any, Array | None], tuple[Array, Array]]


def copies_of(n: int) -> int:
    """Simulated tables of n rows each, for n records."""
    return int(np.clip(ROWS // n, LEAST_COPIES, MOST_COPIES)) // 4 * 4


def calibrated(
    laws: OutcomesLast,
    x: Array,
    planned: PlannedOutcomes,
    *,
    to_covariates: Callable[[Array], Array],
    generator: np.random.Generator,
) -> OutcomesLast:
    """The same laws, those of outcomes turned.

    Args:
        x: (n, d) records they were fitted on.
        to_covariates: latents to encoded covariates beside the outcomes' latents: the flow but for the laws.
        generator: draws the simulated tables.
    """
    drawn = to_covariates(_latents(x, planned, generator))
    out: list[Law] = []
    for k, law in enumerate(laws.laws):
        if k < planned.covariates:
            turned = law
            _draw(turned, drawn)
        else:
            turned = _turned(law, planned.groups[k], x, drawn, planned)
        out.append(turned)
    return replace(laws, laws=tuple(out))


def _latents(x: Array, planned: PlannedOutcomes, generator: np.random.Generator) -> Array:
    """Of simulated tables of as many rows as x, one below the other."""
    # Each draw four times, with either sign for covariates and outcomes: what is odd in it cancels out.
    last = np.isin(np.arange(x.shape[1]), planned.drawn)
    signs = np.array([[a if own else b for own in last] for a in (1.0, -1.0) for b in (1.0, -1.0)])
    fresh = generator.standard_normal((copies_of(len(x)) // 4, 1, *x.shape))
    return np.asarray((fresh * signs[None, :, None, :]).reshape(-1, x.shape[1]))


def _draw(law: Law, rows: Array, features: Array | None = None) -> None:
    """In place, some rows at a time: a law's cells take thirty times the room of a row."""
    for first in range(0, len(rows), _BLOCK):
        part = slice(first, first + _BLOCK)
        law.draw(rows[part], None if features is None else features[part])


def _features(law: Law, rows: Array) -> Array:
    out = np.empty((len(rows), law.inputs.width))
    for first in range(0, len(rows), _BLOCK):
        part = slice(first, first + _BLOCK)
        out[part] = law.inputs.features(rows[part])
    return out


def _turned(law: Law, group: tuple[int, ...], x: Array, drawn: Array, planned: PlannedOutcomes) -> Law:
    """The law turned; in place, what it draws in its own columns of the simulated rows."""
    regression, columns = _REGRESSIONS[planned.kind(group)], list(group)
    asked = len(asked_products(law.inputs, planned))
    own = _design(law.inputs, x, planned, asked)
    target = regression(own, _outcome(law, x, planned), None)[0]
    curvature = regression(own, _outcome(law, x, planned), target)[1]
    se = np.sqrt(np.maximum(np.diag(np.linalg.pinv(curvature)), 0.0))
    best, least, before, longer = law, math.inf, np.zeros(0), 1.0
    features = _features(law, drawn)  # a turn changes the law, and nothing that it reads
    latents = values = drawn[:, columns]
    for step in range(STEPS + 1):
        drawn[:, columns] = latents
        _draw(law, drawn, features)
        change = _apart(regression, asked, drawn, law, planned, target, len(x), se)
        # In standard errors of the records' own: what is left of the distance.
        size = float(change @ curvature @ change)
        values = values if step else drawn[:, columns]
        if not size < least:
            break
        best, values, least = law, drawn[:, columns], size
        if step == STEPS or size < _NEAR:
            break
        if len(before):
            # Bent effects answer to a turn by less than a straight model says: each step left this share of the last.
            left = float(change @ curvature @ before) / max(float(before @ curvature @ before), 1e-12)
            longer = float(np.clip(longer / max(1 - left, 0.25), 1.0, 4.0))
        before = change
        law = _moved(law, -longer * change.reshape(target.shape, order="F"), asked, drawn, planned)
    drawn[:, columns] = values
    return best


def _apart(
    regression: Regression,
    asked: int,
    rows: Array,
    law: Law,
    planned: PlannedOutcomes,
    target: Array,
    n: int,
    se: Array,
) -> Array:
    """Mean difference between the regression coefficients of simulated tables and those of the records.

    Each table is fitted by itself, and its difference limited to `_FAR` standard errors: an outlying row would distort
    a regression on all of them, and so distorts only that of its own table. A table's design is made anew at each step,
    so that those of all are never held.
    """
    found = []
    for first in range(0, len(rows), n):
        part = slice(first, first + n)
        design = _design(law.inputs, rows[part], planned, asked)
        outcome, away = _outcome(law, rows[part], planned), np.zeros(target.size)
        for _ in range(_NEWTON):
            at = target + away.reshape(target.shape, order="F")
            score, curvature = regression(design, outcome, at)
            floor = 1e-9 * np.trace(curvature) / len(curvature) * np.eye(len(curvature))
            away = np.clip(away + np.nan_to_num(np.linalg.solve(curvature + floor, score)), -_FAR * se, _FAR * se)
        found.append(away)
    return np.mean(found, axis=0)


def _design(inputs: OutcomeInputs, x: Array, planned: PlannedOutcomes, asked: int) -> Array:
    """(n, 1 + base + asked): an intercept, the covariates as a release shows them, and the products a plan asks for."""
    bounded = x.copy()
    for column, (lower, upper) in planned.bounds.items():
        bounded[:, column] = np.clip(bounded[:, column], lower, upper)
    atoms = inputs.lines(bounded)
    return np.hstack([np.ones((len(x), 1)), atoms, inputs.made(atoms, inputs.extras[:asked])])


def _outcome(law: Law, x: Array, planned: PlannedOutcomes) -> Any:
    if isinstance(law, LevelLaw):
        levels = law.coefficients.shape[1]
        return np.clip(np.floor(x[:, law.column]), 0, levels - 1).astype(np.int64), levels
    if isinstance(law, HazardLaw):
        return x[:, law.time], x[:, law.event] >= 1
    value = x[:, law.column]
    gate = planned.gates.get(law.column, -1)
    there = np.ones(len(x)) if gate < 0 else (x[:, gate] < 1).astype(np.float64)
    if law.column in planned.bounds:
        value = np.clip(value, *planned.bounds[law.column])
    return np.floor(value) if law.column in planned.whole else value, there


# -- regressions: (coefficients, ·) of records, (score, curvature) of simulated rows at given ones -------------------
def _multinomial(design: Array, outcome: Any, at: Array | None) -> tuple[Array, Array]:
    level, levels = outcome
    n, width, free = len(design), design.shape[1], levels - 1
    target = (level[:, None] == np.arange(1, levels)).astype(np.float64)
    beta = np.zeros((width, free)) if at is None else at

    def score(beta: Array) -> tuple[Array, Array]:
        logits = np.hstack([np.zeros((n, 1)), np.clip(design @ beta, -30, 30)])
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        share = (odds / odds.sum(axis=1, keepdims=True))[:, 1:]
        gradient = design.T @ (target - share)
        curvature = np.empty((free, width, free, width))
        for j in range(free):
            for k in range(j + 1):
                weight = share[:, j] * ((j == k) - share[:, k])
                block = design.T @ (design * weight[:, None])
                curvature[j, :, k, :] = curvature[k, :, j, :] = block
        return gradient, curvature.reshape(free * width, -1) + _RIDGE * np.eye(free * width)

    return _solved(score, design, beta, at)


def _poisson(design: Array, outcome: Any, at: Array | None) -> tuple[Array, Array]:
    value, there = outcome
    start = np.zeros((design.shape[1], 1))
    start[0] = math.log(max(float(np.average(value, weights=there)), 1e-3))

    def score(beta: Array) -> tuple[Array, Array]:
        mean = np.exp(np.clip(design @ beta[:, 0], -20, 12)) * there
        return (design.T @ (value * there - mean))[:, None], design.T @ (design * mean[:, None]) + _RIDGE * np.eye(
            design.shape[1]
        )

    return _solved(score, design, start if at is None else at, at)


def _least_squares(design: Array, outcome: Any, at: Array | None) -> tuple[Array, Array]:
    value, there = outcome
    curvature = design.T @ (design * there[:, None]) + 1e-9 * np.eye(design.shape[1])
    if at is None:
        return np.linalg.solve(curvature, design.T @ (value * there))[:, None], curvature
    rest = (value - design @ at[:, 0]) * there
    # In units in which a coefficient's own variance is the inverse of the curvature.
    scale = max(float((rest**2).sum() / there.sum()), 1e-12)
    return (design.T @ rest) / scale, curvature / scale


def _cox(design: Array, outcome: Any, at: Array | None) -> tuple[Array, Array]:
    time, event = outcome
    order = np.argsort(-time, kind="stable")
    read, event = design[order, 1:], event[order]
    width = read.shape[1]

    def score(beta: Array) -> tuple[Array, Array]:
        risk = np.exp(np.clip(read @ beta[:, 0], -30, 30))
        total = np.cumsum(risk)
        mean = np.cumsum(read * risk[:, None], axis=0) / total[:, None]
        gradient = (read[event] - mean[event]).sum(axis=0)
        # Sum over events of the mean product: each person enters with the events before its own end.
        before = np.cumsum(np.where(event, 1 / total, 0.0)[::-1])[::-1]
        curvature = read.T @ (read * (risk * before)[:, None]) - mean[event].T @ mean[event]
        return gradient[:, None], curvature + _RIDGE * np.eye(width)

    return _solved(score, read, np.zeros((width, 1)) if at is None else at, at)


def _solved(
    score: Callable[[Array], tuple[Array, Array]], design: Array, beta: Array, at: Array | None
) -> tuple[Array, Array]:
    if at is not None:
        found, curvature = score(at)
        # A ridge on the coefficients themselves is the records' too: it is taken off on both sides.
        return (found - _RIDGE * at).ravel(order="F"), curvature
    for _ in range(60):
        gradient, curvature = score(beta)
        step = np.linalg.solve(curvature, (gradient - _RIDGE * beta).ravel(order="F")).reshape(beta.shape, order="F")
        # A record far out would be thrown beyond where a curvature says anything.
        step /= max(1.0, float(np.abs(design @ step).max()) / 1.5)
        beta = beta + step
        if np.abs(step).max() < 1e-8:
            break
    return beta, curvature


_REGRESSIONS: dict[str, Regression] = {
    "levels": _multinomial,
    "count": _poisson,
    "linear": _least_squares,
    "hazard": _cox,
}


# -- what a change of coefficients is in a law -----------------------------------------------------------------------
def _moved(law: Law, change: Array, asked: int, rows: Array, planned: PlannedOutcomes) -> Law:
    """The law whose regression coefficients are about so much larger; `change` is (1 + base + asked, equations)."""
    if isinstance(law, LevelLaw):
        coefficients = law.coefficients.copy()
        coefficients[: len(change), 1:] += change
        return replace(law, coefficients=coefficients)
    if isinstance(law, HazardLaw):
        hazards = law.coefficients.copy()
        hazards[1, :, : len(change)] += change[:, 0]
        return replace(law, coefficients=hazards)
    if law.column not in planned.whole and law.shift.any():
        shift = law.shift.copy()
        shift[: len(change)] += change[:, 0]
        return replace(law, shift=shift)
    # A tilt by the value moves the mean by the variance; a Poisson mean on its log scale by variance over mean.
    value, there = _outcome(law, rows, planned)
    design = _design(law.inputs, rows, planned, asked)
    fitted = design @ np.linalg.lstsq(design, value, rcond=None)[0]
    variance = float(np.average((value - fitted) ** 2, weights=there))
    mean = float(np.average(value, weights=there)) if law.column in planned.whole else 1.0
    far = law.high[0] - law.low[0]
    unit = _unit(law)
    theta = change[:, 0] * mean / max(variance, 1e-9) * unit
    coefficients = law.coefficients.copy()
    coefficients[: len(theta) - 1, 0] += theta[1:]
    return replace(
        law,
        coefficients=coefficients,
        base=law.base + theta[0] * law.low[0],
        slope=np.clip(law.slope + theta[0] * far, -20.0, 20.0),
    )


def _unit(law: TiltLaw) -> float:
    """Change in the value per unit of its tilt: the tilt is the value, centred and scaled, bin by bin."""
    middle = (law.low[0] + law.high[0]) / 2
    at = (law.edges[1:] + law.edges[:-1]) / 2
    inner = slice(1, -1)
    slope = np.polyfit(at[inner], middle[inner], 1)[0] if len(at) > 3 else 1.0
    return 1 / max(float(slope), 1e-9)
