r"""Standardised contrasts (g-computation): the outcome that a model predicts if everybody had one level, or another.

With a fitted model's mean μ(x, a; β) of covariates x and an exposure set to a, and the n rows that the model is fitted
on,

.. math:: \psi_a = \tfrac1n \sum_i \mu(x_i, a; \hat\beta), \quad
          \mathrm{IF}_i(\psi_a) = \tfrac1n (\mu(x_i, a; \hat\beta) - \psi_a) + \nabla\psi_a^\top \mathrm{IF}_i(\beta)

The first part is the covariates' distribution, the second the model's fit (Robins 1986; Sjölander 2016, R's `stdReg`).
A contrast of two ψ has the difference of their influences, a ratio that of their logarithms; its variance is the sum
of squares of these. The covariates are those of the rows themselves: sites that differ in them differ in the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import EstimateRefusal
from shared.estimands.design import design_of, levels_of
from shared.estimands.fits.cox import alone
from shared.estimands.fits.families import FAMILIES
from shared.estimands.floors import FEW_OF_EITHER, NO_ROWS, Answer, LeastRows, QuestionResult
from shared.estimands.formulas import QuestionRows, parse, values
from shared.estimands.models import model_answers
from shared.estimands.questions import INTERCEPT, Estimand

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["standardised_answers"]

Array = NDArray[np.float64]
_STEP = 1e-5


def standardised_answers(
    table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: LeastRows
) -> QuestionResult:
    """One contrast of the exposure, or one for each of its levels against the first."""
    model = Estimand(
        kind=estimand.model,
        outcome=estimand.outcome,
        terms=estimand.terms,
        offset=estimand.offset,
        intercept=estimand.intercept,
        weights=estimand.weights,
    )
    fit = alone(model_answers(table, model, levels, floors))
    model = replace(model, terms=_told_apart(table, model, fit, levels, estimand.of))
    if model.terms != estimand.terms:
        fit = alone(model_answers(table, model, levels, floors))
    contrasts = _contrasts(table, estimand, levels)
    result = QuestionResult(answers={}, n=fit.n, r_names={one.label: one.r_name for one in contrasts})
    events = _events(table, estimand, fit)
    for one in contrasts:
        lost = _lost(fit, one, model)
        if not lost and events < floors.events:
            lost = FEW_OF_EITHER(events=events)
        if lost:
            result.answers[one.label] = lost
            continue
        answer, pushes, means = _answer(table, estimand, model, fit, one, levels)
        result.answers[one.label] = answer
        if not isinstance(answer, str):
            result.influence[one.label] = pushes
            result.extra[one.label] = dict(zip(("mean", "mean_reference"), means, strict=True))
    return result if contrasts else replace(result, answers={estimand.of: f"{estimand.of} has fewer than two levels"})


@dataclass(frozen=True, kw_only=True)
class _Contrast:
    """The exposure at one value against another: (n,) columns of the table.

    `piece` is the level's label in the model and `others` those of other levels; of numbers neither.
    """

    label: str
    r_name: str
    high: pd.Series
    low: pd.Series
    piece: str = ""
    others: frozenset[str] = frozenset()
    width: float = 1.0


def _told_apart(
    table: QuestionRows, model: Estimand, fit: QuestionResult, levels: dict[str, Sequence[Any]], of: str
) -> tuple[str, ...]:
    """The terms without those that are one value on all rows: they change no prediction at this site."""
    used = fit.used
    if used is None:
        return model.terms
    kept = []
    for term in model.terms:
        columns = design_of(table, replace(model, terms=(term,)), levels).columns
        if of in replace(model, terms=(term,)).columns or any(np.ptp(column[used]) > 0 for column in columns):
            kept.append(term)
    return tuple(kept)


def _lost(fit: QuestionResult, one: _Contrast, model: Estimand) -> str:
    """Why a contrast cannot be predicted; blank where it can.

    A coefficient that has no estimate hinders it, unless its column is 0 whichever level is set: of a level without
    rows, or of another level of the exposure.
    """
    reasons = {label: answer for label, answer in fit.answers.items() if isinstance(answer, str)}
    if len(reasons) == len(fit.answers) and len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    empty = {label for label, reason in reasons.items() if reason == NO_ROWS}
    for label, reason in reasons.items():
        parts = set(label.split(":"))
        if one.piece in parts or (label != INTERCEPT and not parts & (empty | one.others)):
            return reason if label in (one.piece, one.label) else f"{label}: {reason}"
    return reasons.get(INTERCEPT, "") if model.intercept else ""


def _events(table: QuestionRows, estimand: Estimand, fit: QuestionResult) -> float:
    """The rarer of events and non-events; of other outcomes no bound."""
    if not estimand.binary or fit.used is None:
        return math.inf
    y = values(parse(estimand.outcome), table)[fit.used]
    return int(min((y == 1).sum(), (y == 0).sum()))


def _contrasts(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]]) -> list[_Contrast]:
    of = estimand.of
    column = table[of]
    as_factor = next((term for term in estimand.terms if term in (f"C({of})", f"factor({of})")), "")
    if table.is_category(of) or as_factor:
        if estimand.contrast == "slope":
            raise EstimateRefusal(
                "a slope must be of a column of numbers", given=of, next_step="Leave contrast out: a level has none."
            )
        known = levels_of(column, levels.get(of))
        pieces = [f"{as_factor or of}[{level}]" for level in known]
        return [
            _Contrast(
                label=f"{of}[{level}]",
                r_name=f"{of}{level}",
                high=_everywhere(column, level),
                low=_everywhere(column, known[0]),
                piece=piece,
                others=frozenset(pieces) - {piece},
            )
            for level, piece in zip(known[1:], pieces[1:], strict=True)
        ]
    number = table.numbers(of)
    label, units = estimand.label(of), estimand.per.get(of, 1.0)
    given = [float(level) for level in levels.get(of, ())] or sorted(set(number[np.isfinite(number)]) | {0.0, 1.0})
    if estimand.contrast == "slope":
        width = _STEP * max(float(np.nanstd(number)), 1e-300)
        high, low = pd.Series(number + width), pd.Series(number - width)
        return [_Contrast(label=label, r_name=label, high=high, low=low, width=2 * width / units)]
    if len(given) == 2:
        ends = [pd.Series(np.full(len(table), end)) for end in given]
        return [_Contrast(label=label, r_name=label, high=ends[1], low=ends[0])]
    moved = pd.Series(number + units)
    return [_Contrast(label=label, r_name=label, high=moved, low=pd.Series(number))]


def _everywhere(column: pd.Series, level: Any) -> pd.Series:
    """A column of one level, of the same kind."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.Series(pd.Categorical([level] * len(column), dtype=column.dtype))
    return pd.Series([level] * len(column))


def _predicted(
    table: QuestionRows, model: Estimand, levels: dict[str, Sequence[Any]], used: NDArray[np.int64], exposed: Any
) -> dict[str, Array]:
    """Columns of the model by label where the exposure is what it is not, on the rows that were fitted."""
    name, column = exposed
    changed = pd.DataFrame({one: table[one].reset_index(drop=True) for one in model.columns})
    changed[name] = column
    design = design_of(QuestionRows(changed), model, levels)
    out = {label: values_[used] for label, values_ in zip(design.labels, design.columns, strict=True)}
    return {INTERCEPT: np.ones(len(used)), **out} if model.intercept else out


def _answer(
    table: QuestionRows,
    estimand: Estimand,
    model: Estimand,
    fit: QuestionResult,
    one: _Contrast,
    levels: dict[str, Sequence[Any]],
) -> tuple[Answer, Array, tuple[float, float]]:
    """The contrast and its variance, its influences (n,), and the two means."""
    used = fit.used
    assert used is not None
    beta = {label: answer[0] for label, answer in fit.answers.items() if not isinstance(answer, str)}
    offset = values(parse(model.offset), table)[used] if model.offset else np.zeros(len(used))
    weights = table.numbers(model.weights)[used] if model.weights else np.ones(len(used))
    weights = weights / weights.sum()
    family = FAMILIES.get(model.kind)
    sides = []
    with np.errstate(all="ignore"):
        for column in (one.high, one.low):
            x = _predicted(table, model, levels, used, (estimand.of, column))
            eta = offset + sum((beta[label] * x[label] for label in beta), np.zeros(len(used)))
            mu, slope = (family.mean(eta), family.slope(eta)) if family else (eta, np.ones(len(used)))
            if family and model.kind in ("risk_ratio", "log_binomial") and (mu > 1).any():
                return f"{int((mu > 1).sum())} predicted risks are above 1 at this site", eta, (0.0, 0.0)
            psi = float(weights @ mu)
            moved = np.zeros(len(table))
            moved[used] = weights * (mu - psi)
            for label in beta:
                moved = moved + float((weights * slope) @ x[label]) * fit.influence[label]
            sides.append((psi, moved))
    (first, up), (second, down) = sides
    value, pushes = _compared(estimand.contrast, (first, up), (second, down))
    if isinstance(value, str):
        return value, pushes, (first, second)
    value, pushes = value / one.width, pushes / one.width
    return (value, float(pushes @ pushes)), pushes, (first, second)


def _compared(contrast: str, one: tuple[float, Array], other: tuple[float, Array]) -> tuple[float | str, Array]:
    """A contrast of two means and its influences."""
    (first, up), (second, down) = one, other
    if contrast in ("RD", "NNT", "slope"):
        return first - second, up - down
    if not (first > 0 and second > 0) or (contrast == "OR" and not (first < 1 and second < 1)):
        return "a standardised mean is outside its range at this site: no ratio", up
    if contrast == "RR":
        return math.log(first / second), up / first - down / second
    odds = math.log(first / (1 - first)) - math.log(second / (1 - second))
    return odds, up / (first * (1 - first)) - down / (second * (1 - second))
