"""Answers of models: which terms a table can support, and the fit of those that it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal
from shared.estimands.design import (
    ModelRows,
    TermColumns,
    clusters_of,
    design_of,
    dispersion,
    episodes,
    numeric_columns,
    outcome_of,
    to_pseudo_values,
    too_little,
    unusable,
    varying,
    whole_curves,
    window,
)
from shared.estimands.fits.accelerated import accelerated
from shared.estimands.fits.blocks import by_column, scaled_product
from shared.estimands.fits.clustered import ClusterSums, estimating_equations, random_intercept
from shared.estimands.fits.cox import CoxRows, Fitting, SurvivalOutcome, cox, ended
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.flexible import flexible
from shared.estimands.fits.identified import determined, independent, unseen, within_strata
from shared.estimands.fits.levelled import multinomial_logit, proportional_odds
from shared.estimands.fits.quantiles import quantile_regression
from shared.estimands.fits.regression import RegressionFit, generalised, least_squares, overdispersed
from shared.estimands.fits.subdistribution import fine_gray
from shared.estimands.floors import (
    FAR,
    HANGS,
    NO_MAXIMUM,
    NO_PARTIAL_MAXIMUM,
    NO_ROWS,
    ONE_SIDE,
    RISK_OF_ONE,
    SEPARATES,
    TERMS_SEPARATE,
    Answer,
    LeastRows,
    Moves,
    QuestionResult,
    correlations,
)
from shared.estimands.formulas import QuestionRows, parse, values
from shared.estimands.groups import competing_of, membership, strata_of
from shared.estimands.kinds import KINDS, REPEATED, SURVIVAL
from shared.estimands.questions import INTERCEPT, Estimand

__all__ = ["model_answers"]

EXACT = "the terms determine the outcome: there is no residual variance"
LEVELLED = ("ordered", "levels")
"""Required outcomes (`QuestionKind.outcome`) whose values are coded by the positions of their levels."""
Array = NDArray[np.float64]


def model_answers(
    table: QuestionRows,
    estimand: Estimand,
    levels: dict[str, Sequence[Any]],
    floors: LeastRows,
    people: NDArray[np.int64] | None = None,
) -> Fitting[QuestionResult]:
    """Answers of a model: an estimate for each term that the table supports, a reason for each other.

    Args:
        people: (n,) whose each row is, where a person has several.
    """
    kind, survival, based = estimand.kind, estimand.kind in SURVIVAL, bool(KINDS[estimand.kind].baseline)
    constant = estimand.intercept and based
    design = design_of(table, estimand, levels)
    data, broken = _model_data(table, estimand, design, levels)
    labels = design.labels
    # Of a nominal outcome each level but the first has coefficients of its own.
    known = membership(parse(estimand.outcome), table, levels)[0] if kind == "multinomial" else []
    equations = [f" | {level}" for level in known[1:]] or [""]
    shown = [(label, label + of) for of in equations for label in ([INTERCEPT] if constant else []) + labels]
    design.curves = [[label + of for label in curve] for curve in design.curves for of in equations]
    result = QuestionResult(answers={}, n=len(data.y))
    r_names = {INTERCEPT: "(Intercept)", **design.r_names}
    result.r_names = {label: r_names[base] + label.removeprefix(base) for base, label in shown}

    def all_for(reason: str) -> QuestionResult:
        result.answers = {label: design.reasons.get(base, reason) for base, label in shown}
        return result

    reason = unusable(data, broken, estimand)
    if reason:
        return all_for(reason)
    data = data.rows(data.weights > 0)
    data = window(data, estimand)
    result.n = n = len(data.y)
    if n == 0:
        return all_for("no rows with a weight, or in the time window, at this site")
    result.used = data.place
    alive = varying(result, design, data, constant=constant, free=not based)
    values_ = len(np.unique(data.y)) if estimand.outcome_kind in LEVELLED else 0
    parameters = len(alive) + (values_ - 1 if kind == "ordinal" else constant)
    parameters *= values_ - 1 if kind == "multinomial" and values_ else 1
    whose = clusters_of(table, estimand) if people is None else people
    if reason := too_little(estimand, data, len(alive), (parameters, values_), floors, whose):
        return all_for(reason)
    data.x = data.x if len(alive) == data.x.shape[1] else data.x[:, alive]
    names_ = [labels[j] for j in alive]
    solve = partial(_multinomial, equations) if kind == "multinomial" else _SOLVERS.get(kind, _generalised)
    moved = Moves(scaled=not survival, clusters=whose)
    if kind in REPEATED:
        solve, moved = _of_clusters(estimand, whose, data)
    if kind == "rmst_regression" and (reason := to_pseudo_values(data, float(estimand.tau or 0), floors)):
        return all_for(reason)
    data = episodes(data, [design.windows.get(name) for name in names_])
    if kind in ("cox", "schoenfeld", "finegray"):
        fitted = (yield from _cox(names_, data, estimand, floors, moved)) if names_ else {}
    else:
        fitted = solve(names_, data, estimand, floors, moved) if names_ or constant else {}
    if kind == "poisson":
        result.dispersion = dispersion(data, [fitted.get(name, "") for name in names_], fitted.get(INTERCEPT))
    for base, label in shown:
        answer = result.answers.get(base) or fitted[label]
        result.answers[label] = design.reasons.get(base, answer) if isinstance(answer, str) else answer
    scale_of = {estimand.label(term) + of: units for term, units in estimand.per.items() for of in equations}
    for label, units in scale_of.items():
        answer = result.answers[label]
        if not isinstance(answer, str):
            result.answers[label] = (answer[0] * units, answer[1] * units**2)
    result.correlations = correlations(moved.labels, moved.cov)
    for label, (place, pushes) in moved.rows.items():
        result.influence[label] = _in_table(place, pushes * scale_of.get(label, 1.0), len(table))
    whole_curves(result, design)
    result.answers = {label: result.answers[label] for _, label in shown}
    result.attrs |= moved.figures
    if survival and kind != "rmst_regression":
        result.attrs = {"events": int(data.y.sum())}
    if kind == "schoenfeld" and moved.labels and np.isfinite(moved.cov).all():
        result.attrs |= _global_test([fitted[label] for label in moved.labels], moved.cov)
    return result


def _in_table(place: NDArray[np.int64], pushes: Array, rows: int) -> Array:
    """(rows,) what each row of the table moves an estimate by: the sum of its parts, 0 where it was not used."""
    return np.asarray(np.bincount(place, pushes, minlength=rows), dtype=float)


def _global_test(answers: Sequence[Answer], cov: Array) -> dict[str, float]:
    """χ² of all coefficients together, its degrees of freedom and its p-value."""
    from scipy.stats import chi2

    theta = np.array([np.nan if isinstance(one, str) else one[0] for one in answers])
    chisq = float(theta @ np.linalg.pinv(cov) @ theta)
    return {"chisq": chisq, "df": len(theta), "p": float(chi2.sf(chisq, len(theta)))}


def _codes(table: QuestionRows, outcome: str, levels: dict[str, Sequence[Any]]) -> Array:
    """An outcome with levels as the places of its levels; NaN where missing."""
    _, place = membership(parse(outcome), table, levels)
    return np.where(place < 0, np.nan, place.astype(float))


def _model_data(
    table: QuestionRows, estimand: Estimand, design: TermColumns, levels: dict[str, Sequence[Any]]
) -> tuple[ModelRows, dict[str, int]]:
    """The complete rows of a model, and in how many of the others each term is not finite."""
    survival, must = estimand.kind in SURVIVAL, estimand.outcome_kind
    if must in LEVELLED:
        y = _codes(table, estimand.outcome, levels)
    else:
        y = outcome_of(table, estimand.event if survival else estimand.outcome, binary=survival or must == "binary")
    wrong = int((y < 0).sum() if must == "count" else (y <= 0).sum() if must == "positive" else 0)
    if wrong:
        raise EstimateRefusal(
            f"outcome {estimand.outcome!r} must be {'a count' if must == 'count' else 'above 0'}",
            given=f"{wrong} {'negative values' if must == 'count' else 'values of 0 or less'}",
        )
    duration = table.numbers(estimand.duration) if survival else np.ones(len(table))
    other = competing_of(table, estimand, y)
    entry = table.numbers(estimand.entry) if estimand.entry else np.full(len(table), -np.inf)
    strata, used = strata_of(table, estimand)
    if estimand.entry:  # as R, which makes such a row missing
        used = used & (entry < duration)
    if estimand.cluster:
        used = used & table[estimand.cluster].notna().to_numpy(dtype=bool)
    data = ModelRows(
        # Column after column in memory: what is done with a column reads it in one go.
        x=np.stack(design.columns).T if design.columns else np.zeros((len(table), 0)),
        y=y,
        duration=duration,
        other=other,
        entry=entry,
        weights=table.numbers(estimand.weights) if estimand.weights else np.ones(len(table)),
        offset=values(parse(estimand.offset), table) if estimand.offset else np.zeros(len(table)),
        strata=strata,
        place=np.arange(len(table)),
        falling=table.falling(estimand.duration) if estimand.kind == "cox" else None,
    )
    others = np.isfinite(y) & np.isfinite(duration) & np.isfinite(other) & np.isfinite(data.weights) & used
    if estimand.offset:
        read = numeric_columns(parse(estimand.offset), table)
        whole: NDArray[np.bool_] = np.all([np.isfinite(table.numbers(name)) for name in read], axis=0)
        design.broken[f"offset({estimand.offset})"] = whole & ~np.isfinite(data.offset)
    broken = {text: int((bad & others).sum()) for text, bad in design.broken.items() if (bad & others).any()}
    for column in data.x.T:
        others &= np.isfinite(column)
    return data.rows(others & np.isfinite(data.offset)), broken


def _of_clusters(
    estimand: Estimand, whose: NDArray[np.int64] | None, data: ModelRows
) -> tuple[Callable[..., dict[str, Answer]], Moves]:
    """Function that fits a model to several rows per person, and the empty `Moves` for its influences."""
    if whose is None:
        raise EstimateRefusal(
            f"{estimand.kind} must know whose rows are one person's",
            given="a table without repeated columns",
            next_step="Name the column that says it: cluster = COLUMN.",
        )
    robust = estimand.kind == "gee" or bool(estimand.robust)
    clusters = ClusterSums.of_labels(whose[data.place])
    return partial(_clustered, clusters), Moves(scaled=False, clusters=whose if robust else None)


class _NoMaximum(Exception):
    """The likelihood has no maximum that could be found."""


def _found(fit: RegressionFit) -> RegressionFit:
    """A fit that has converged, by linear predictors within reason. Raises: _NoMaximum."""
    if not fit.converged or float(np.ptp(fit.fitted)) > 50:
        raise _NoMaximum
    return fit


def _fit_or(
    nowhere: str, names_: list[str], data: ModelRows, run: Callable[[Array], RegressionFit], **more: Any
) -> dict[str, Answer]:
    """`_fit` by `run`, of the model's own matrix; of each term `nowhere` where there is no maximum."""
    try:
        return _fit(names_, data.x, _confounded(names_), run, place=data.place, **more)
    except _NoMaximum:
        return dict.fromkeys([*names_, INTERCEPT], nowhere)


def _fit(
    names_: list[str],
    x: Array,
    why: Callable[[int, list[int]], str],
    run: Callable[[Array], RegressionFit],
    **more: Any,
) -> dict[str, Answer]:
    """`_fitting` by `run`, of a matrix."""
    work = _fitting(names_, x, why, **more)
    return ended(work, run(next(work)))


def _fitting(
    names_: list[str],
    x: Array,
    why: Callable[[int, list[int]], str],
    *,
    constant: bool,
    moved: Moves,
    place: NDArray[np.int64],
    seen: Array | None = None,
    groups: list[list[int]] | None = None,
    equations: Sequence[str] = ("",),
) -> Generator[Array, RegressionFit, dict[str, Answer]]:
    """Fit the identified columns, the span of the others kept as nuisance; `why` words a column's exclusion.

    Args:
        moved: takes what each row moves the estimates by, and the covariance of these.
        place: where the rows of x stand in the table.
        seen: what the likelihood sees of x, where that is less (a Cox model within strata).
        groups: `unseen` of that, where the caller knows it already.
        equations: what each name ends in, of an outcome with a linear predictor for each.
    Yields: the matrix, whose columns are centred (with a constant) and scaled, the constant first if there is one.
    """
    look = x if seen is None else seen
    see_constant = constant or seen is not None
    groups = unseen(look, see_constant) if groups is None else groups
    lost = {names_[j]: why(j, group) for j, group in enumerate(groups) if group}
    answers: dict[str, Answer] = {name + of: reason for of in equations for name, reason in lost.items()}
    supported = [j for j, group in enumerate(groups) if not group]
    basis = independent(look, supported, see_constant)
    # Centred and scaled columns: a blood pressure in mmHg and a rate per day fit equally well.
    chosen = x if len(basis) == x.shape[1] else x[:, basis]
    centre = chosen.mean(axis=0) if see_constant else np.zeros(len(basis))
    squares = ((chosen[:, j] - centre[j]) ** 2 for j in range(len(basis)))
    scale = np.array([math.sqrt(float(square.sum()) / len(x)) for square in squares])
    fit = yield by_column(chosen, centre, scale, constant=constant)
    each = len(basis) + constant
    back: Array = np.eye(each)
    back[range(constant, each), range(constant, each)] = 1 / scale
    if constant:
        back[0, 1:] = -centre / scale
    if len(equations) > 1:
        back = np.asarray(np.kron(np.eye(len(equations)), back), dtype=float)
    pushes = scaled_product(fit.influence, None, back.T, out=fit.influence)
    cov = back @ fit.cov @ back.T if moved.clusters is None else moved.clustered(pushes, place)
    beta, variance = back @ fit.beta, cov.diagonal()
    placed = [(position, names_[j]) for position, j in enumerate(basis, start=int(constant)) if j in supported]
    placed = [(0, INTERCEPT), *placed] if constant else placed
    placed = [(k * each + position, name + of) for k, of in enumerate(equations) for position, name in placed]
    for position, name in placed:
        answers[name] = (float(beta[position]), float(variance[position]))
        moved.rows[name] = place, pushes[:, position]
    if constant and len(supported) < x.shape[1]:
        answers |= {INTERCEPT + of: HANGS for of in equations}
    at = [position for position, _ in placed]
    moved.labels, moved.cov = tuple(name for _, name in placed), cov[at][:, at]
    return answers


def _confounded(names_: list[str]) -> Callable[[int, list[int]], str]:
    def why(j: int, group: list[int]) -> str:
        others = ", ".join(names_[i] for i in group if i != j)
        return f"collinear with {others} at this site" if others else "the column is constant at this site"

    return why


def _ols(names_: list[str], data: ModelRows, estimand: Estimand, _: LeastRows, moved: Moves) -> dict[str, Answer]:
    constant = estimand.intercept
    y, robust = data.y - data.offset, "HC0" if estimand.kind == "rmst_regression" else estimand.robust
    spread = float(y.std()) or 1.0
    exact = False

    def run(matrix: Array) -> RegressionFit:
        nonlocal exact
        fit = least_squares(matrix, y / spread, data.weights, robust)
        exact = -fit.loglik <= 1e-18 * float(data.weights.sum())
        influence = fit.influence
        influence *= spread
        return replace(fit, beta=fit.beta * spread, cov=fit.cov * spread**2, influence=influence)

    answers = _fit(names_, data.x, _confounded(names_), run, constant=constant, moved=moved, place=data.place)
    if exact:
        return dict.fromkeys([*names_, INTERCEPT], EXACT)
    return answers


def _generalised(
    names_: list[str], data: ModelRows, estimand: Estimand, floors: LeastRows, moved: Moves
) -> dict[str, Answer]:
    """Generalised linear models."""
    constant, family = estimand.intercept, FAMILIES[estimand.kind]
    counts = family.edge == "zero"
    sure = False

    def run(rows: NDArray[np.bool_]) -> Callable[[Array], RegressionFit]:
        def fit(matrix: Array) -> RegressionFit:
            nonlocal sure
            part = data.rows(rows)
            if estimand.kind == "negbin":
                out = overdispersed(matrix, part.y, part.weights, part.offset, estimand.robust)
            else:
                out = generalised(matrix, part.y, family, part.weights, part.offset, estimand.robust)
            edge = out.fitted.min() if counts else np.minimum(out.fitted, 1 - out.fitted).min()
            sure = bool(not family.edge or (out.converged and edge > 1e-6))
            if not out.converged and rows is not every:
                raise _NoMaximum
            converged.append(out.converged)
            return out

        return fit

    every = np.ones(len(data.y), dtype=bool)
    rows = every
    converged: list[bool] = []
    before = unseen(data.x, constant)
    why = _confounded(names_)
    answers = _fit(names_, data.x, why, run(rows), constant=constant, moved=moved, place=data.place, groups=before)
    nowhere = NO_MAXIMUM()
    if estimand.kind == "log_binomial":
        nowhere = RISK_OF_ONE()
    if not sure and names_:  # fitted means at the edge: perhaps separation, perhaps only strong effects
        rows = every.copy()
        while rows.any():
            sure_of = determined(data.x[rows], data.y[rows], constant=constant, counts=counts)
            if not sure_of.any():
                break
            rows[np.flatnonzero(rows)[sure_of]] = False
        if not rows.all():
            separated = SEPARATES()
            lost = sum(bool(group) for group in unseen(data.x[rows], constant)) if rows.any() else 0
            left = int(rows.sum()) - (data.x.shape[1] + constant - lost if rows.any() else 0)
            if left < max(floors.residual_df, 1):
                return dict.fromkeys([*names_, INTERCEPT], TERMS_SEPARATE())

            def word(j: int, group: list[int]) -> str:
                return why(j, before[j]) if before[j] else separated

            moved.clear()
            try:
                part = data.place[rows]
                return _fit(names_, data.x[rows], word, run(rows), constant=constant, moved=moved, place=part)
            except _NoMaximum:
                return dict.fromkeys([*names_, INTERCEPT], nowhere)
    if not converged[-1]:
        return {
            name: answers[name] if before_ else nowhere
            for name, before_ in zip([*names_, INTERCEPT], [*before, []], strict=True)
        }
    return answers


def _ordinal(names_: list[str], data: ModelRows, estimand: Estimand, _: LeastRows, moved: Moves) -> dict[str, Answer]:
    def run(standard: Array) -> RegressionFit:
        return _found(proportional_odds(standard, data.y, data.weights, data.offset - data.offset.mean()))

    groups = unseen(data.x)
    if all(groups):
        return {name: _confounded(names_)(j, groups[j]) for j, name in enumerate(names_)}
    nowhere = TERMS_SEPARATE()
    return _fit_or(nowhere, names_, data, run, constant=False, moved=moved, seen=data.x, groups=groups)


def _multinomial(
    equations: Sequence[str], names_: list[str], data: ModelRows, estimand: Estimand, floors: LeastRows, moved: Moves
) -> dict[str, Answer]:
    count = np.bincount(data.y.astype(np.int64), minlength=len(equations) + 1)
    wanted = len(names_) + estimand.intercept
    least = max(floors.events, wanted, 1)
    reasons = {
        of: NO_ROWS if not rows else f"{rows} rows of the level for {wanted} coefficients: too few"
        for of, rows in zip(("", *equations), count.tolist(), strict=True)
        if rows < least
    }
    answers: dict[str, Answer] = {}
    for of in equations:
        why = f"of the level that all are compared with: {reasons['']}" if "" in reasons else reasons.get(of, "")
        answers |= {name + of: why for name in [*names_, INTERCEPT] if why}
    there = [k for k, of in enumerate(("", *equations)) if of not in reasons]
    if "" in reasons or len(there) < 2:
        return answers
    part = data.rows(np.isin(data.y, there))

    def run(matrix: Array) -> RegressionFit:
        fit = multinomial_logit(matrix, np.searchsorted(there, part.y).astype(np.float64), part.weights)
        if not fit.converged or float(fit.fitted.max()) > 50:
            raise _NoMaximum
        return fit

    fitted = [equations[k - 1] for k in there[1:]]
    more: dict[str, Any] = {"constant": estimand.intercept, "moved": moved, "place": part.place, "equations": fitted}
    try:
        return answers | _fit(names_, part.x, _confounded(names_), run, **more)
    except _NoMaximum:
        far = TERMS_SEPARATE()
        return answers | {name + of: far for of in fitted for name in [*names_, INTERCEPT]}


def _clustered(
    clusters: ClusterSums, names_: list[str], data: ModelRows, estimand: Estimand, _: LeastRows, moved: Moves
) -> dict[str, Answer]:
    """Models of several rows of a person."""
    exchangeable, wanted = estimand.corstr == "exchangeable", len(names_) + estimand.intercept
    if estimand.kind == "gee" and exchangeable and clusters.pairs <= wanted:
        reason = f"{clusters.pairs:.0f} pairs of rows of one person: corstr = independence needs none"
        return dict.fromkeys([*names_, INTERCEPT], reason)

    exact = False

    def run(matrix: Array) -> RegressionFit:
        nonlocal exact
        if estimand.kind == "mixed":
            fit, share = random_intercept(matrix, data.y - data.offset, clusters)
        else:
            family = FAMILIES.get(estimand.like)
            fit, share = estimating_equations(matrix, data.y, clusters, family, data.offset, exchangeable=exchangeable)
        moved.figures["correlation"] = share
        left = data.y - fit.fitted - (data.offset if estimand.kind == "mixed" else 0.0)
        exact = bool(np.square(left).mean() <= 1e-18 * np.var(data.y - data.offset))
        edge = np.ptp(fit.fitted) if estimand.family == "gaussian" else 1 - np.ptp(fit.fitted)
        if exact or not fit.converged or (estimand.family == "binomial" and edge < 1e-9):
            raise _NoMaximum
        return fit

    more: dict[str, Any] = {"constant": estimand.intercept, "moved": moved, "place": data.place}
    try:
        return _fit(names_, data.x, _confounded(names_), run, **more)
    except _NoMaximum:
        moved.clear()
        if exact:
            return dict.fromkeys([*names_, INTERCEPT], EXACT)
        return dict.fromkeys([*names_, INTERCEPT], f"the equations have no solution that was found: {FAR}")


def _quantile(
    names_: list[str], data: ModelRows, estimand: Estimand, floors: LeastRows, moved: Moves
) -> dict[str, Answer]:
    share, y = float(estimand.tau or 0), data.y - data.offset
    beyond = int(min(share, 1 - share) * len(y))
    if beyond < max(floors.events, 1):
        return dict.fromkeys([*names_, INTERCEPT], f"{beyond} rows beyond the quantile: too few")

    def run(matrix: Array) -> RegressionFit:
        fit = quantile_regression(matrix, y, share)
        if not fit.converged:
            raise _NoMaximum
        return fit

    nowhere = "half of the rows or more lie on the quantile: no error is known"
    return _fit_or(nowhere, names_, data, run, constant=estimand.intercept, moved=moved)


def _aft(names_: list[str], data: ModelRows, estimand: Estimand, _: LeastRows, moved: Moves) -> dict[str, Answer]:
    def run(standard: Array) -> RegressionFit:
        fit = accelerated(standard, data.duration, data.y, estimand.dist, data.weights, data.offset)
        return _found(fit.regression)

    return _fit_or(NO_MAXIMUM(), names_, data, run, constant=estimand.intercept, moved=moved)


def _flexible(names_: list[str], data: ModelRows, estimand: Estimand, _: LeastRows, moved: Moves) -> dict[str, Answer]:
    df, entry = int(estimand.df), data.entry if np.isfinite(data.entry).any() else None
    times = len(np.unique(data.duration[data.y > 0]))
    if times < df + 1:
        return dict.fromkeys(names_, f"{times} distinct event times for {df} degrees of freedom: too few")

    def run(standard: Array) -> RegressionFit:
        more: dict[str, Any] = {"weights": data.weights, "offset": data.offset, "entry": entry}
        return _found(flexible(standard, data.duration, data.y, df=df, **more))

    # The baseline has a constant, which is no answer.
    nowhere = NO_MAXIMUM()
    return _fit_or(nowhere, names_, data, run, constant=False, seen=data.x, moved=moved)


def _cox(
    names_: list[str], data: ModelRows, estimand: Estimand, floors: LeastRows, moved: Moves
) -> Fitting[dict[str, Answer]]:
    x, y = data.x, data.y
    rows, separated = np.ones(len(y), dtype=bool), set[int]()
    found = True
    while found:  # a level without events: its rows leave every risk set in the limit
        found = False
        for j in (j for j in range(x.shape[1]) if j not in separated):
            column = x[:, j] if rows.all() else x[rows, j]
            distinct = column.min(initial=np.inf), column.max(initial=-np.inf)
            two = distinct[0] < distinct[1] and bool(((column == distinct[0]) | (column == distinct[1])).all())
            events = [int(y[rows & (x[:, j] == value)].sum()) for value in distinct] if two else []
            if 0 in events:
                rows &= x[:, j] != distinct[events.index(0)]
                separated.add(j)
                found = True
    part = data.rows(rows)

    seen, before = within_strata(part.x, part.strata), unseen(within_strata(x, data.strata))
    why = _confounded(names_)

    def exclusion(j: int, group: list[int]) -> str:
        if before[j]:
            inside = estimand.strata and before[j] == [j]
            return "the column is constant within every stratum" if inside else why(j, before[j])
        return ONE_SIDE() if j in separated else why(j, group)

    groups = before if rows.all() else unseen(seen)
    if all(groups):
        return {name: exclusion(j, groups[j]) for j, name in enumerate(names_)}
    work = _fitting(names_, part.x, exclusion, constant=False, moved=moved, place=part.place, seen=seen, groups=groups)
    standard = next(work)
    if estimand.kind == "finegray":
        fit = fine_gray(standard, part.duration, part.y, part.other)
    else:
        entry = part.entry if np.isfinite(part.entry).any() else None
        outcome = SurvivalOutcome(time=part.duration, event=part.y, entry=entry)
        more: dict[str, Any] = {"ties": estimand.ties, "strata": part.strata}
        more["weights"] = part.weights if estimand.weights else None
        more["offset"] = part.offset - part.offset.mean() if estimand.offset else None
        if estimand.kind == "schoenfeld":
            fit = cox(standard, outcome, trend=_TRENDS[estimand.transform], **more)
        else:
            fit = yield CoxRows(x=standard, outcome=outcome, falling=part.falling, **more)
    if not fit.converged or float(fit.fitted.max() - fit.fitted.min()) > 50:
        return dict.fromkeys(names_, NO_PARTIAL_MAXIMUM())
    return ended(work, fit)


_TRENDS: Mapping[str, Callable[[Array], Array]] = {"log": np.log, "identity": np.asarray}
_SOLVERS: Mapping[str, Callable[[list[str], ModelRows, Estimand, LeastRows, Moves], dict[str, Answer]]] = {
    "ols": _ols,
    "rmst_regression": _ols,
    "ordinal": _ordinal,
    "quantile": _quantile,
    "aft": _aft,
    "flexible": _flexible,
}
