"""The columns and the rows of a model: terms and their levels, crossed and coded, the outcome, and who is asked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.fits.counting import CountedTimes, restricted_mean_moves
from shared.estimands.floors import (
    FEW_BEFORE,
    FEW_FOR_TERMS,
    HANGS,
    NO_ROWS,
    Answer,
    LeastRows,
    QuestionResult,
    few,
    one_value,
)
from shared.estimands.formulas import (
    CATEGORY,
    Node,
    QuestionRows,
    is_logical,
    names,
    order_among,
    parse,
    right_side,
    values,
)
from shared.estimands.kinds import KINDS, REPEATED, SURVIVAL
from shared.estimands.questions import INTERCEPT, Estimand
from shared.estimands.splines import basis_of, steps_of

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["_MOST_COLUMNS", "ModelRows", "TermColumns", "design_of", "episodes", "is_levelled", "levels_of"]
__all__ += ["dispersion", "numeric_columns", "outcome_of", "to_pseudo_values", "unusable", "varying", "whole_curves"]
__all__ += ["clusters_of", "too_little", "window"]

Array = NDArray[np.float64]
_MOST_COLUMNS = 200
MOST_CATEGORIES = 20
"""Values of an outcome with levels, at most: each has parameters of its own."""
RISKS = ("risk_ratio", "log_binomial", "cloglog")
"""Models of a risk that is mostly small: the events tell, whatever the number of rows."""
_Piece = tuple[str, str, Array]


def levels_of(column: pd.Series, given: Sequence[Any] | None) -> list[Any]:
    """The levels of a column: those given, or those that the rows have."""
    if given is not None:
        return list(given)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return list(column.cat.categories)
    known = column.dropna().unique().tolist()
    known.sort(key=str if len({isinstance(level, str) for level in known}) > 1 else None)
    if len(known) > 50:
        raise EstimateRefusal(
            f"column {column.name!r} must have few levels to be a category",
            given=f"{len(known)} different values",
            next_step="Group its values first, or use it as a number.",
        )
    return known


@dataclass(kw_only=True)
class TermColumns:
    """Columns of the terms by label, the names R prints, and reasons better than what the algebra will find.

    `curves` are the labels of each curve, which mean nothing without each other; `windows` the stretches of time to
    which a label's effect belongs.
    """

    labels: list[str] = field(default_factory=list)
    columns: list[Array] = field(default_factory=list)
    r_names: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    levelled: set[str] = field(default_factory=set)
    broken: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    curves: list[list[str]] = field(default_factory=list)
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)


def design_of(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]]) -> TermColumns:
    """The columns of the terms of a question."""
    design = TermColumns()
    terms = [_factors(term) for term in estimand.terms]
    # R's rule: a factor loses its reference level in a term when the term without that factor is in the model too.
    present = {frozenset(map(str, term)) for term in terms}
    if estimand.intercept or not KINDS[estimand.kind].baseline:
        present.add(frozenset())
    for term, text in zip(terms, estimand.terms, strict=True):
        crossed: list[_Piece] = []
        for factor in term:
            rest = frozenset(map(str, term)) - {str(factor)}
            pieces = _factor(factor, table, levels, rest in present, design)
            if len(pieces) * max(len(crossed), 1) + len(design.labels) > _MOST_COLUMNS:
                raise ParameterError(
                    f"a model must have at most {_MOST_COLUMNS} coefficients",
                    given="more",
                    next_step="Cross columns with fewer levels.",
                )
            # The first factor's levels vary fastest, as in R.
            crossed = pieces if not crossed else [_cross(a, b) for b in pieces for a in crossed]
        if any(is_levelled(factor, table) for factor in term) and len(term) == 1:
            present.add(frozenset())  # its full set of levels spans the constant
        if len(term) == 1 and basis_of(term[0]) is not None:
            design.curves.append([label for label, _, _ in crossed])
        for label, r_name, column in crossed:
            named = estimand.label(text) if label == text else label
            design.labels.append(named)
            design.columns.append(column)
            design.r_names[named] = named if label == text and text in estimand.per else r_name
    return design


@functools.lru_cache(maxsize=1024)
def _factors(term: str) -> tuple[Node, ...]:
    """What is crossed in a term: 500 sites are asked of the same."""
    return right_side(parse(term)).terms[0]


def _cross(a: _Piece, b: _Piece) -> _Piece:
    return f"{a[0]}:{b[0]}", f"{a[1]}:{b[1]}", a[2] * b[2]


def is_levelled(node: Node, table: QuestionRows) -> bool:
    """True if a term is of a column with levels."""
    if node.kind == "name":
        return table.is_category(str(node.value))
    return node.kind == "call" and node.value in CATEGORY


def _factor(
    node: Node, table: QuestionRows, levels: dict[str, Sequence[Any]], contrasts: bool, design: TermColumns
) -> list[_Piece]:
    text = str(node)
    steps = steps_of(node)
    if steps is not None:
        made = []
        for base, r_name, column in _factor(steps.of, table, levels, contrasts, design):
            for name, window in steps.windows:
                level = base.removeprefix(str(steps.of)).strip("[]")
                label = f"{text}[{', '.join(filter(None, (level, name)))}]"
                design.windows[label] = window
                if base in design.levelled:
                    design.levelled.add(label)
                if base in design.reasons:
                    design.reasons[label] = design.reasons[base]
                made.append((label, f"{r_name}, {name}", column))
        return made
    basis = basis_of(node)
    if basis is not None:
        x = values(basis.of, table)
        seen = np.isfinite(x)
        if basis.of.kind != "name":
            read = [np.isfinite(table.numbers(name)) for name in numeric_columns(basis.of, table)]
            design.broken[text] = np.asarray(np.all(read, axis=0) & ~seen)
        if seen.any():
            basis = basis.quantiled(lambda shares: np.quantile(x[seen], shares), tails=(0.0, 1.0))
        curve = basis.columns(x) if seen.any() else np.full((len(x), basis.df), np.nan)
        return [(f"{text}[{k}]", f"{text}{k}", curve[:, k - 1]) for k in range(1, basis.df + 1)]
    if not is_levelled(node, table):
        column = values(node, table)
        if node.kind != "name":
            whole: NDArray[np.bool_] = np.all(
                [np.isfinite(table.numbers(name)) for name in numeric_columns(node, table)], axis=0
            )
            design.broken[text] = whole & ~np.isfinite(column)
        truth = node.kind == "call" and node.value == "I" and is_logical(node.parts[0])
        return [(text, text + ("TRUE" if truth else ""), column)]
    name = str(node.value) if node.kind == "name" else str(node.parts[0])
    series = table[name]
    known = levels_of(series, levels.get(name))
    missing = (series.isna() | ~series.isin(known)).to_numpy(dtype=bool)
    dummies = [np.where(missing, np.nan, (series == level).to_numpy(dtype=bool, na_value=False)) for level in known]
    pieces = [(f"{text}[{level}]", f"{text}{level}", dummy) for level, dummy in zip(known, dummies, strict=True)]
    design.levelled.update(piece[0] for piece in pieces)
    if not contrasts and known:
        return pieces
    shown = pieces[1:] or [(text, text, np.where(missing, np.nan, 0.0))]
    if len(known) < 2 or not np.nansum(dummies[0]):
        rule = "fewer than two levels" if len(known) < 2 else "no rows at its reference level"
        design.reasons.update(dict.fromkeys([piece[0] for piece in shown], f"{name} has {rule} at this site"))
    return shown


def numeric_columns(node: Node, table: QuestionRows) -> list[str]:
    """Columns of a piece of arithmetic that hold numbers (others are only compared with a level)."""
    return [name for name in names(node) if not table.is_category(name)]


def outcome_of(table: QuestionRows, text: str, *, binary: bool) -> Array:
    """The outcome of a model or a comparison (n,), as numbers; NaN in rows that lack a column of it.

    Raises: EstimateRefusal: not 0 or 1 where it must be; arithmetic without a result of rows that lack nothing. To
        leave these out would choose rows by the outcome: all whose logarithm is lowest, for example.
    """
    node = parse(text)
    column = values(node, table)
    if read := numeric_columns(node, table) if node.kind != "name" else []:
        whole = np.all([np.isfinite(table.numbers(name)) for name in read], axis=0)
        if lost := int((whole & ~np.isfinite(column)).sum()):
            raise EstimateRefusal(
                f"{text} must be finite in each row that has its columns",
                given=f"{lost} where it is not",
                next_step="Plan it as a column that sites compute.",
            )
    wrong = int((np.isfinite(column) & (column != 0) & (column != 1)).sum())
    if binary and wrong:
        raise EstimateRefusal(
            f"outcome {text!r} must be 0 or 1",
            given=f"{wrong} other values",
            next_step=f"Compare it with a number: {text} > 0.",
        )
    column = column.copy()
    column[~np.isfinite(column)] = np.nan
    return column


# -- rows -------------------------------------------------------------------------------------------------------
@dataclass(kw_only=True)
class ModelRows:
    """Complete rows of a model: x (n, p), the rest (n,); `place` is where each stands in the table.

    `falling` are the rows by falling duration, those that are alike as they stand, where that is known.
    """

    x: Array
    y: Array
    duration: Array
    other: Array
    entry: Array
    weights: Array
    offset: Array
    strata: NDArray[np.int64]
    place: NDArray[np.int64]
    falling: NDArray[np.int64] | None = None

    def rows(self, keep: NDArray[np.bool_]) -> ModelRows:
        """Those of them to keep, (n,)."""
        if keep.all():
            return self
        return ModelRows(
            x=self.x[keep],
            y=self.y[keep],
            duration=self.duration[keep],
            other=self.other[keep],
            entry=self.entry[keep],
            weights=self.weights[keep],
            offset=self.offset[keep],
            strata=self.strata[keep],
            place=self.place[keep],
            falling=None if self.falling is None else order_among(self.falling, keep),
        )


def unusable(data: ModelRows, broken: dict[str, int], estimand: Estimand) -> str:
    """Why no term can have an estimate from these rows; blank where some may."""
    if broken:
        return "; ".join(f"{text} is not finite in {count} rows" for text, count in broken.items())
    if len(data.y) == 0:
        return "no complete rows at this site"
    if (data.duration < 0).any():
        return f"{int((data.duration < 0).sum())} durations are negative"
    logged = (data.duration == 0) & (data.y > 0) if estimand.kind == "schoenfeld" else data.duration == 0
    if logged.any() and (
        estimand.kind in ("aft", "flexible") or (estimand.kind == "schoenfeld" and estimand.transform == "log")
    ):
        return f"{int(logged.sum())} durations are 0: they have no logarithm"
    if (data.weights < 0).any():
        return f"{int((data.weights < 0).sum())} weights are negative"
    return ""


def window(data: ModelRows, estimand: Estimand) -> ModelRows:
    """Persons still at risk just after `start`, followed until `stop`: everyone enters together, so rows are enough."""
    if estimand.start is not None:
        data = data.rows(data.duration > estimand.start)
    if estimand.stop is not None:
        data.y = np.where(data.duration > estimand.stop, 0.0, data.y)
        data.duration, data.falling = np.minimum(data.duration, estimand.stop), None
    return data


def episodes(data: ModelRows, windows: Sequence[tuple[float, float] | None]) -> ModelRows:
    """Each row cut where an effect changes: its columns are 0 outside their window (R's `survSplit`)."""
    cuts = sorted({end for window in windows if window for end in window if np.isfinite(end) and end > 0})
    if not cuts:
        return data
    parts = []
    for start, stop in pairwise([-np.inf, *cuts, np.inf]):
        part = data.rows((data.duration > start) & (data.entry < stop))
        inside = [window is None or (window[0] <= max(start, 0.0) and stop <= window[1]) for window in windows]
        part = replace(part, x=part.x * np.array(inside, dtype=float), entry=np.maximum(part.entry, start))
        ended = part.duration > stop
        parts.append(replace(part, y=np.where(ended, 0.0, part.y), duration=np.minimum(part.duration, stop)))
    names_ = [one.name for one in fields(ModelRows) if one.name != "falling"]
    return ModelRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names_})


# -- what a fit needs, and what it leaves -------------------------------------------------------------------------
def to_pseudo_values(data: ModelRows, horizon: float, floors: LeastRows) -> str:
    """Make of each row's outcome its pseudo-value of the restricted mean, or say why the rows have none.

    The mean of all rows and n times what the row moves it by, as R's `survival::pseudo` (Andersen, Klein 2003).
    """
    counts = CountedTimes.of(data.duration, data.y)
    if counts.time[-1] < horizon and counts.at_risk[-1] > counts.events[-1]:
        return f"follow-up ends before {horizon:g} at this site"
    if counts.events[counts.time < horizon].sum() < max(floors.events, 1):
        return FEW_BEFORE(least=max(floors.events, 1), at=f"{horizon:g}")
    mean, moves = restricted_mean_moves(counts, horizon)
    data.y = mean + len(moves) * moves
    return ""


def whole_curves(result: QuestionResult, design: TermColumns) -> None:
    """Leave no coefficient of a curve that lacks another."""
    for curve in design.curves:
        lost = next((f"{one}: {result.answers[one]}" for one in curve if isinstance(result.answers[one], str)), "")
        result.answers |= dict.fromkeys(curve if lost else [], f"its curve has no estimate ({lost})")


def dispersion(data: ModelRows, terms: Sequence[Answer], level: Answer | None) -> float:
    """Mean squared Pearson residual of counts; 1 where a term has no answer, so that no mean is known.

    Source: P. McCullagh, J. A. Nelder (1989), Generalized Linear Models, section 6.2.
    """
    if isinstance(level, str) or any(isinstance(one, str) for one in terms):
        return 1.0
    eta = data.offset + (level[0] if level else 0.0)
    for column, one in zip(data.x.T, terms, strict=True):
        eta = eta + float(one[0]) * column
    mean = np.exp(np.clip(eta, -30, 30))
    left = float(data.weights.sum()) - len(terms) - bool(level)
    return float(data.weights @ ((data.y - mean) ** 2 / mean)) / max(left, 1.0)


def varying(result: QuestionResult, design: TermColumns, data: ModelRows, *, constant: bool, free: bool) -> list[int]:
    """Columns of the design that tell rows apart; those that do not get their reason in `result`.

    Args:
        result: takes the reason of each term that is left out, under its label.
        design: labels of the columns, which of them are levels, and reasons that are known already.
        data: the rows of the model; its `x` is (n, p).
        constant: the model has an intercept.
        free: what lies in for an intercept, such as a baseline hazard or cutpoints, takes every constant.
    Returns: places of the columns in `x`, rising.
    """
    alive = []
    for j, label in enumerate(design.labels):
        if (data.x[:, j] == data.x[0, j]).all() and (constant or free or data.x[0, j] == 0):
            empty_level = label in design.levelled and data.x[0, j] == 0
            default = NO_ROWS if empty_level else "the column is constant at this site"
            result.answers[label] = design.reasons.get(label, default)
            if constant and data.x[0, j] != 0:
                result.answers[INTERCEPT] = HANGS
        else:
            alive.append(j)
    return alive


def too_little(
    estimand: Estimand,
    data: ModelRows,
    terms: int,
    sizes: tuple[int, int],
    floors: LeastRows,
    whose: NDArray[np.int64] | None,
) -> str:
    """Why rows, events, values of the outcome or clusters are too few, or too many; blank where they will do.

    Args:
        sizes: the model's parameters, and the values of an outcome with levels.
    """
    parameters, values_ = sizes
    kind, survival, events = estimand.kind, estimand.kind in SURVIVAL, data.y.sum()
    if len(data.y) - parameters < max(floors.residual_df, 1):
        return few(len(data.y), parameters, floors)
    least = max(floors.events, terms, 1) if survival else floors.events if kind in RISKS else -np.inf
    if not survival and (data.y == data.y[0]).all():
        return one_value("outcome", data.y)
    if events < least:
        return FEW_FOR_TERMS(events=int(events), terms=terms)
    if values_ > MOST_CATEGORIES:
        return f"the outcome has more than {MOST_CATEGORIES} values at this site"
    if whose is None:
        return ""
    groups, apart = len(np.unique(whose[data.place])), parameters if kind in REPEATED else 0
    for_, more = (f" for {apart} parameters", " more") if apart else ("", "")
    few_ = groups - apart < max(floors.residual_df, 2)
    return f"{groups} clusters{for_}: fewer than {floors.residual_df}{more} tell no error" if few_ else ""


def clusters_of(table: QuestionRows, estimand: Estimand) -> NDArray[np.int64] | None:
    """Of each row what it is summed with for a sandwich variance; None where the errors are of another kind."""
    if estimand.cluster:
        return np.asarray(pd.factorize(table[estimand.cluster])[0], dtype=np.int64)
    return np.arange(len(table)) if estimand.kind == "cox" and estimand.robust else None
