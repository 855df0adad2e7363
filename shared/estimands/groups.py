"""Answers that compare the groups of one column: means, tables of counts, survival, the log-rank statistic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import EstimateRefusal
from shared.estimands.design import levels_of, outcome_of
from shared.estimands.fits.counting import CountedTimes, cumulative_hazard, cumulative_incidence
from shared.estimands.fits.survival import LogRank, SurvivalCurve, kaplan_meier, log_rank, restricted_mean
from shared.estimands.floors import (
    FEW_BEFORE,
    FEW_EVENTS,
    FEW_IN_A_PAIR,
    FEW_UP_TO,
    INCIDENCE_OF_ONE,
    MEAN_OF_NONE,
    NO_EVENTS_IN_BOTH,
    NO_ROWS,
    ONLY_EVENTS_IN_BOTH,
    SURVIVAL_OF_NONE,
    SURVIVAL_OF_ONE,
    Answer,
    LeastRows,
    QuestionResult,
    few,
    one_value,
)
from shared.estimands.formulas import CATEGORY, Node, QuestionRows, is_logical, parse, values
from shared.estimands.kinds import CURVED, KINDS
from shared.estimands.questions import SURVIVAL, Estimand

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["competing_of", "group_answers", "membership", "strata_of"]

Array = NDArray[np.float64]


def group_answers(
    table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: LeastRows
) -> QuestionResult:
    """Kinds that compare the groups of one column; the first level is the reference."""
    kind, survival = estimand.kind, estimand.kind in SURVIVAL
    y = outcome_of(table, estimand.event if survival else estimand.outcome, binary=survival or kind == "two_by_two")
    duration = table.numbers(estimand.duration) if survival else np.zeros(len(table))
    other = competing_of(table, estimand, y)
    strata, strata_used = strata_of(table, estimand)
    if estimand.terms:
        term = estimand.terms[0]
        known, member = membership(parse(term), table, levels)
        column = parse(term)
        text = str(column.parts[0]) if column.kind == "call" and column.value in CATEGORY else term
    else:
        term, text, known, member = str(estimand), "", [""], np.zeros(len(table), dtype=np.int64)
    used = np.isfinite(y) & np.isfinite(duration) & np.isfinite(other) & (member >= 0) & strata_used
    y, duration, other = (_where(used, column) for column in (y, duration, other))
    member, strata = _where(used, member), _where(used, strata)
    counts = np.bincount(member, minlength=len(known))
    result = QuestionResult(answers={}, n=len(y))
    each = "at" in KINDS[kind].options
    alone = kind in CURVED and not estimand.terms
    labels = [term] if alone else [f"{term}[{level}]" for level in known]
    for label, level in zip(labels, known, strict=True):
        prefix = str(column) if not alone else ""
        result.r_names[label] = "(Intercept)" if alone else f"{prefix}{'=' if each else ''}{level}"

    def excluded(reason: str) -> QuestionResult:
        result.answers = dict.fromkeys((labels if each or alone else labels[1:]) or [term], reason)
        return result

    if len(y) == 0:
        return excluded("no complete rows at this site")
    if len(known) < 2 and not alone and not each:
        return excluded(f"{text} has fewer than two levels at this site")
    if survival and (duration < 0).any():
        return excluded(f"{int((duration < 0).sum())} durations are negative")
    if kind == "logrank":
        return _log_rank(result, labels, (duration, y, member, strata), (text, excluded), floors)

    rows_of = partial(_rows_of, member, len(known))
    curve = cache(lambda g: kaplan_meier(duration[rows_of(g)], y[rows_of(g)]))

    def summary(g: int) -> Answer:
        mine = rows_of(g)
        if counts[g] == 0:
            return NO_ROWS
        if counts[g] <= max(floors.residual_df, 1):
            return f"{int(counts[g])} rows in a group: fewer than {floors.residual_df} residual degrees of freedom"
        if kind in ("cumhaz", "cuminc"):
            found, pushes = _counted_number(estimand, CountedTimes.of(duration[mine], y[mine], other[mine]), floors)
            result.influence[labels[g]] = np.bincount(np.flatnonzero(used)[mine], pushes, len(table)).astype(float)
            return found
        if survival:
            return _survival_number(estimand, curve(g), floors)
        return float(y[mine].mean()), float(y[mine].var(ddof=1) / counts[g])

    if each:
        for g, label in enumerate(labels):
            mine = rows_of(g)
            if counts[g] and kind == "km":
                result.curves[result.r_names[label] if not alone else ""] = curve(g)
            result.answers[label] = summary(g) if estimand.at is not None else "the question has no time"
            result.extra[label] = _counted(estimand, y[mine], other[mine])
        return result
    first = summary(0)
    if alone:
        result.answers[term] = first
        return result
    if counts[0] == 0:
        return excluded(f"{text} has no rows at its reference level at this site")
    for g, label in enumerate(labels[1:], start=1):
        if kind == "two_by_two":
            result.answers[label], result.extra[label] = _two_by_two(estimand.measure, y, member, g, floors)
            continue
        result.answers[label] = _compared(kind, first, summary(g))
    return result


def _where(used: NDArray[np.bool_], column: NDArray[Any]) -> NDArray[Any]:
    """The used rows of a column: itself, without a copy, where all are."""
    return column if used.all() else column[used]


def _rows_of(member: NDArray[np.int64], groups: int, g: int) -> slice | NDArray[np.bool_]:
    """Which rows are of group g: all where there is one group, without a copy."""
    return slice(None) if groups == 1 else member == g


def _compared(kind: str, first: Answer, other: Answer) -> Answer:
    """One group against the first: a ratio or a difference, or the reason of the one that has none."""
    if isinstance(first, str) or isinstance(other, str):
        return other if isinstance(other, str) else first
    if kind != "rmst" and other[1] + first[1] == 0:
        alike = other[0] == first[0]  # else each group has one value of its own
        return one_value("outcome", np.array([first[0]])) if alike else "the column is constant at this site"
    if kind == "ratio":
        return _ratio(first, other)
    return other[0] - first[0], other[1] + first[1]


def membership(
    node: Node, table: QuestionRows, levels: dict[str, Sequence[Any]]
) -> tuple[list[Any], NDArray[np.int64]]:
    """Levels of a group column, and each row's place among them; −1 where missing."""
    if node.kind == "call" and node.value in CATEGORY:
        node = node.parts[0]
    if node.kind == "name":
        column = table[str(node.value)]
        known = levels_of(column, levels.get(str(node.value)))
        place = np.full(len(table), -1, dtype=np.int64)
        for k, level in enumerate(known):
            place[(column == level).to_numpy(dtype=bool, na_value=False)] = k
        return known, place
    number = values(node, table)
    if is_logical(node.parts[0] if node.kind == "call" else node):
        known = [0, 1]
    else:
        known = sorted({float(v) for v in number[np.isfinite(number)]})
    if len(known) > 50:
        raise EstimateRefusal("a group column must have few values", given=f"{len(known)} of {node}")
    place = np.full(len(table), -1, dtype=np.int64)
    for k, level in enumerate(known):
        place[number == level] = k
    return known, place


def _ratio(first: tuple[float, float], other: tuple[float, float]) -> Answer:
    if first[0] <= 0 or other[0] <= 0:
        if (0.0, 0.0) in (first, other):
            return MEAN_OF_NONE()
        return "a mean is not positive at this site: its logarithm is not finite"
    return math.log(other[0] / first[0]), first[1] / first[0] ** 2 + other[1] / other[0] ** 2


def _two_by_two(
    measure: str, y: Array, member: NDArray[np.int64], g: int, floors: LeastRows
) -> tuple[Answer, dict[str, float]]:
    """Odds ratio, risk ratio or risk difference of level g against the reference.

    As `metafor::escalc`: one half is added to all four cells when, and only when, one of them is 0.
    """
    a, b = float(y[member == g].sum()), float((1 - y[member == g]).sum())
    c, d = float(y[member == 0].sum()), float((1 - y[member == 0]).sum())
    cells = {"n": a + b + c + d, "a": a, "b": b, "c": c, "d": d, "added": 0.0}
    if a + b == 0:
        return NO_ROWS, cells
    if a + b + c + d - 2 < floors.residual_df:
        return few(int(a + b + c + d), 2, floors), cells
    if a + c == 0 or b + d == 0:
        return NO_EVENTS_IN_BOTH() if a + c == 0 else ONLY_EVENTS_IN_BOTH(), cells
    if 0 in (a, b, c, d):
        a, b, c, d, cells["added"] = a + 0.5, b + 0.5, c + 0.5, d + 0.5, 0.5
    p, q = a / (a + b), c / (c + d)
    if measure == "OR":
        return (math.log(a * d / (b * c)), 1 / a + 1 / b + 1 / c + 1 / d), cells
    if measure == "RR":
        return (math.log(p / q), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)), cells
    return (p - q, p * (1 - p) / (a + b) + q * (1 - q) / (c + d)), cells


def _survival_number(estimand: Estimand, curve: SurvivalCurve, floors: LeastRows) -> Answer:
    if estimand.kind == "rmst":
        horizon = float(estimand.tau or 0)
        if curve.time[-1] < horizon and curve.survival[-1] > 0:
            return f"follow-up ends before {horizon:g} at this site"
        if curve.events[curve.time < horizon].sum() < max(floors.events, 1):
            return FEW_BEFORE(least=max(floors.events, 1), at=f"{horizon:g}")
        return restricted_mean(curve, horizon)
    at = float(estimand.at or 0)
    if curve.time[-1] < at and curve.survival[-1] > 0:
        return f"follow-up ends before {at:g} at this site"
    survival, variance = curve.at(at)
    if survival in (0.0, 1.0):
        return (SURVIVAL_OF_ONE if survival else SURVIVAL_OF_NONE)(at=f"{at:g}")
    if curve.events[curve.time <= at].sum() < floors.events:
        return FEW_UP_TO(least=floors.events, at=f"{at:g}")
    return math.log(survival / (1 - survival)), variance / (1 - survival) ** 2


def _counted(estimand: Estimand, event: Array, other: Array) -> dict[str, float]:
    """Rows and events of a group, and competing events where the question names some."""
    found: dict[str, float] = {"n": len(event), "events": int(event.sum())}
    return {**found, "competing": int(other.sum())} if estimand.competing else found


def _counted_number(estimand: Estimand, counts: CountedTimes, floors: LeastRows) -> tuple[Answer, Array]:
    """A cumulative hazard or incidence at a time on its scale, and what each row moves it by."""
    at, none = float(estimand.at or 0), np.zeros(len(counts.place))
    events = counts.events[counts.time <= at].sum()
    left = counts.at_risk[-1] - counts.events[-1] - counts.others[-1]
    if counts.time[-1] < at and left > 0:
        return f"follow-up ends before {at:g} at this site", none
    if events < max(floors.events, 1):
        return FEW_UP_TO(least=max(floors.events, 1), at=f"{at:g}"), none
    if estimand.kind == "cumhaz":
        value, variance, pushes = cumulative_hazard(counts, at)
        return (math.log(value), variance / value**2), pushes / value
    value, variance, pushes = cumulative_incidence(counts, at)
    if value > 1 - 1e-9:  # a sum of so many terms may miss 1 by rounding
        return INCIDENCE_OF_ONE(at=f"{at:g}"), none
    slope = 1 / (value * (1 - value))
    return (math.log(value / (1 - value)), variance * slope**2), pushes * slope


def competing_of(table: QuestionRows, estimand: Estimand, event: Array) -> Array:
    """1 where a competing event came first, (n,); a row that has both has had the event. NaN where unknown."""
    if not estimand.competing:
        return np.zeros(len(table))
    return np.where(event == 1, 0.0, outcome_of(table, estimand.competing, binary=True))


def _log_rank(
    result: QuestionResult,
    labels: list[str],
    data: tuple[Array, Array, NDArray[np.int64], NDArray[np.int64]],
    without: tuple[str, Callable[[str], QuestionResult]],
    floors: LeastRows,
) -> QuestionResult:
    """The test of all groups at once, and each level's log hazard ratio against the first."""
    duration, y, member, strata = data
    column, excluded = without
    if y.sum() < floors.events:
        return excluded(FEW_EVENTS(events=int(y.sum())))
    test = log_rank(duration, y, member, len(labels), strata)
    result.attrs = {"chisq": test.chisq, "df": test.df, "p": test.p}
    for g, label in enumerate(labels):
        result.extra[label] = {"n": test.n[g], "observed": test.observed[g], "expected": test.expected[g]}
    if test.n[0] == 0:
        return excluded(f"{column} has no rows at its reference level at this site")
    for g, label in enumerate(labels[1:], start=1):
        if test.n[g] == 0:
            result.answers[label] = NO_ROWS
            continue
        pair = test
        if len(labels) > 2:
            rows = (member == 0) | (member == g)
            if y[rows].sum() < floors.events:
                result.answers[label] = FEW_IN_A_PAIR(events=int(y[rows].sum()))
                continue
            pair = log_rank(duration[rows], y[rows], (member[rows] == g).astype(np.int64), 2, strata[rows])
        result.answers[label] = _peto(pair)
    return result


def _peto(pair: LogRank) -> Answer:
    """Peto's one-step log hazard ratio (O − E) / V of the second of two groups against the first, and 1 / V."""
    spread = float(pair.covariance[1, 1])
    if spread <= 1e-12:
        return "no event could tell the groups apart at this site"
    return float(pair.observed[1] - pair.expected[1]) / spread, 1 / spread


def strata_of(table: QuestionRows, estimand: Estimand) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Strata of each row, and which rows have them."""
    if not estimand.strata:
        return np.zeros(len(table), dtype=np.int64), np.ones(len(table), dtype=bool)
    columns = pd.DataFrame({name: table[name] for name in estimand.strata})
    codes = columns.groupby(list(estimand.strata), observed=True, sort=True).ngroup()
    whole: NDArray[np.bool_] = np.asarray(columns.notna().all(axis=1), dtype=bool)
    return np.asarray(codes, dtype=np.int64), whole
