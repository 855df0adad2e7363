"""Answers of one column, or of several without a model: means, shares, correlations, and a Table 1 of many."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.estimands.design import levels_of
from shared.estimands.floors import NO_ROWS, Answer, LeastRows, QuestionResult, correlations, few, one_value
from shared.estimands.formulas import QuestionRows, parse
from shared.estimands.groups import membership
from shared.estimands.kinds import Scale
from shared.estimands.questions import Estimand
from shared.estimands.splines import edges_of

__all__ = ["OF_A_COLUMN", "TableCell", "compound_symmetry", "correlation", "crosstab", "histogram", "mean"]
__all__ += ["proportion", "table_one"]

Array = NDArray[np.float64]


def mean(x: Array, floors: LeastRows) -> Answer:
    """Mean of a column (n,), and its variance; a reason where there are too few."""
    if len(x) <= max(floors.residual_df, 1):
        return few(len(x), 1, floors)
    if np.ptp(x) == 0:
        return one_value("column", x)
    return float(x.mean()), float(x.var(ddof=1) / len(x))


def proportion(x: Array, floors: LeastRows) -> Answer:
    """Log odds of a share (n,), and their variance; a share of none, or of all, as `table_one` has it."""
    if len(x) <= floors.residual_df:
        return few(len(x), 1, floors)
    found = _share(x == 1, np.ones(len(x), dtype=bool), floors)
    return found if isinstance(found, str) else (found[0], _variance(found[1]))


OF_A_COLUMN = {"mean": mean, "proportion": proportion}
"""Kind of a question about one column to its solver."""


def correlation(x: Array, floors: LeastRows) -> Answer:
    """Fisher's z of two columns (n, 2), and its variance."""
    if len(x) - 2 < max(floors.residual_df, 2):
        return few(len(x), 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    r = float(np.atleast_2d(np.corrcoef(x, rowvar=False))[0, 1])
    if 1 - abs(r) < 1e-12:
        return "the columns are collinear at this site"
    return math.atanh(r), 1 / (len(x) - 3)


def compound_symmetry(x: Array, floors: LeastRows) -> Answer:
    """One correlation for all pairs of p columns of one common variance: mean covariance over mean variance.

    It is the maximum likelihood estimate under compound symmetry, with the variance
    2 (1−ρ)² (1+(p−1)ρ)² / (p (p−1) n) (Fisher 1925, as of an intraclass correlation), here of atanh ρ.
    """
    n, p = x.shape
    if n - 2 < max(floors.residual_df, 2):
        return few(n, 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    cov = np.atleast_2d(np.cov(x, rowvar=False))
    common = float(np.trace(cov)) / p
    rho = float(cov.sum() - np.trace(cov)) / (p * (p - 1)) / common
    if 1 - abs(rho) < 1e-12:
        return "the columns are collinear at this site"
    variance = 2 * (1 - rho) ** 2 * (1 + (p - 1) * rho) ** 2 / (p * (p - 1) * n)
    return math.atanh(rho), variance / (1 - rho**2) ** 2


# -- Table 1 ---------------------------------------------------------------------------------------------------
STATISTICS = {
    "mean": "mean",
    "sd": "standard deviation",
    "q1": "first quartile",
    "median": "median",
    "q3": "third quartile",
    "share": "share",
    "missing": "share missing",
    "smd": "standardised difference",
    "odds_ratio": "odds ratio",
}
_QUARTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
_SCALES: dict[str, Scale] = {"sd": "log", "share": "logit", "missing": "logit", "odds_ratio": "log"}
_Z = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """Cell of a Table 1: its statistic, column, level and group. `label` is the term of its estimate; `read` parses it.

    Args:
        statistic: one of `STATISTICS`.
        column: the column; level: of it, for a share, or for a standardised difference of shares.
        group: the level of the column that the table is by; blank for all rows.

    >>> TableCell(statistic="share", column="sex", level="male", group="drug").label
    'share(sex[male]) | drug'
    >>> TableCell.read("median(age)")
    TableCell(statistic='median', column='age', level='', group='')
    """

    statistic: str
    column: str
    level: str = ""
    group: str = ""

    @property
    def label(self) -> str:
        """The term of its estimates."""
        level, group = f"[{self.level}]" if self.level else "", f" | {self.group}" if self.group else ""
        return f"{self.statistic}({self.column}{level}){group}"

    @property
    def scale(self) -> Scale:
        """The scale of its estimates."""
        return _SCALES.get(self.statistic, "identity")

    @classmethod
    def read(cls, label: str) -> TableCell:
        """The cell of a label. Raises: ParameterError: a label of another question."""
        found = re.fullmatch(r"(\w+)\((\w+)(?:\[(.*)\])?\)(?: \| (.*))?", label)
        if not found or found[1] not in STATISTICS:
            raise ParameterError("a cell of a Table 1 must be named as such", given=repr(label))
        return cls(statistic=found[1], column=found[2], level=found[3] or "", group=found[4] or "")


def table_one(
    table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: LeastRows
) -> QuestionResult:
    """Each column described, over all rows and in each group, and each group compared with the first.

    Of numbers the mean, the standard deviation, the quartiles and the standardised difference of means; of levels the
    share of each, and the standardised difference of shares. Each has the influence of every row, and the sum of its
    squares is its variance. That of a quantile is by Woodruff's interval (1952), turned into a standard error. Of a
    share of none, or of all, half a row more is counted on both sides, as `metafor::escalc` has it: a site without a
    level tells of its share, and a pool without that site would have too large a one.
    """
    groups: list[tuple[str, NDArray[np.bool_]]] = [("", np.ones(len(table), dtype=bool))]
    if estimand.by:
        known, member = membership(parse(estimand.by), table, levels)
        groups += [(str(level), member == k) for k, level in enumerate(known)]
    result = QuestionResult(answers={}, n=len(table))
    for name in estimand.terms:
        levelled = table.is_category(name) or bool(levels.get(name))
        series = table[name]
        values = np.zeros(0) if levelled else table.numbers(name)
        there = (series.notna().to_numpy(dtype=bool)) if levelled else np.isfinite(values)
        given = levels_of(series, levels.get(name)) if levelled else []
        if levelled:
            columns = {str(level): (series == level).to_numpy(dtype=float, na_value=False) for level in given}
        else:
            columns = {"": values}
        first: dict[str, tuple[float, float, Array, Array]] = {}
        for at, (group, inside) in enumerate(groups):
            rows = inside & there
            count = int(rows.sum()), int((inside & ~there).sum())
            gone = _share(inside & ~there, inside, floors)
            _put(result, TableCell(statistic="missing", column=name, group=group), gone, count)
            for level, column in columns.items():
                cell = TableCell(statistic="share" if levelled else "mean", column=name, level=level, group=group)
                shares = [("share", _share(rows & (column == 1), rows, floors))] if levelled else []
                for statistic, found in shares or _described(column, rows, floors):
                    _put(result, TableCell(**{**vars(cell), "statistic": statistic}), found, count)
                if at == 0 or count[0] == 0:
                    continue
                moments = _moments(column, rows, levelled)
                if at == 1:
                    first[level] = moments
                elif level in first:
                    compared = _standardised(first[level], moments, floors)
                    _put(result, TableCell(**{**vars(cell), "statistic": "smd"}), compared, count)
    return result


_Found = tuple[float, Array | float] | str
"""A number and the influence of every row on it, or its variance where a half was counted; or a reason for neither."""


def _put(result: QuestionResult, cell: TableCell, found: _Found, count: tuple[int, int]) -> None:
    label = cell.label
    result.r_names[label], result.scales[label], result.counts[label] = label, cell.scale, count
    if isinstance(found, str):
        result.answers[label] = found
        return
    value, pushes = found
    result.answers[label] = value, _variance(pushes)
    if not isinstance(pushes, float):  # no row tells of a half, so the noise of a release is counted in full
        result.influence[label] = pushes


def _variance(pushes: Array | float) -> float:
    return pushes if isinstance(pushes, float) else float(pushes @ pushes)


def _described(column: Array, rows: NDArray[np.bool_], floors: LeastRows) -> Iterator[tuple[str, _Found]]:
    """Statistic by statistic of a column of numbers (n,) over some of its rows."""
    n, statistics = int(rows.sum()), ("mean", "sd", *_QUARTILES)
    if n <= max(floors.residual_df, 1):
        yield from ((one, few(n, 1, floors) if n else NO_ROWS) for one in statistics)
        return
    x = column[rows]

    def spread(pushes: Array) -> Array:
        out = np.zeros(len(column))
        out[rows] = pushes
        return out

    middle, apart = float(x.mean()), x - x.mean()
    variance = float(x.var(ddof=1))
    if variance == 0:
        yield from ((one, "the column is constant at this site") for one in statistics)
        return
    yield "mean", (middle, spread(apart / math.sqrt(n * (n - 1))))
    yield "sd", (math.log(variance) / 2, spread((apart**2 / apart.var() - 1) / (2 * n)))
    for name, p in _QUARTILES.items():
        half = _Z * math.sqrt(p * (1 - p) / n)
        low, at, high = (float(q) for q in np.quantile(x, (max(p - half, 0.0), p, min(p + half, 1.0))))
        if high == low:
            yield name, f"the rows around it share one value, {at:g}"
            continue
        # Of just the variance p(1 − p)/n at the shares of rows below and above.
        pushes = np.where(x <= at, -1.0, 0.0)
        pushes = (pushes - pushes.mean()) / pushes.std() * math.sqrt(p * (1 - p))
        yield name, (at, spread(pushes / n * (high - low) / (2 * half)))


def _moments(column: Array, rows: NDArray[np.bool_], levelled: bool) -> tuple[float, float, Array, Array]:
    """Mean and variance over some rows, and the influence of every row on each."""
    x, n = column[rows], int(rows.sum())
    middle = float(x.mean())
    by_mean, by_variance = np.zeros(len(column)), np.zeros(len(column))
    by_mean[rows] = (x - middle) / n
    variance = middle * (1 - middle) if levelled else float(x.var(ddof=1)) if n > 1 else 0.0
    by_variance[rows] = (1 - 2 * middle) * (x - middle) / n if levelled else ((x - middle) ** 2 - x.var()) / n
    return middle, variance, by_mean, by_variance


def _standardised(
    one: tuple[float, float, Array, Array], other: tuple[float, float, Array, Array], floors: LeastRows
) -> _Found:
    """Difference of two means over the root of the mean of the variances, R's `tableone` (Austin 2009)."""
    scale = (one[1] + other[1]) / 2
    rows = min(int((part[2] != 0).sum()) for part in (one, other))
    if scale <= 0 or rows <= floors.residual_df:
        return "a group is too small or does not vary" if scale > 0 else "the column is constant at this site"
    d = (other[0] - one[0]) / math.sqrt(scale)
    return d, (other[2] - one[2]) / math.sqrt(scale) - d * (other[3] + one[3]) / (4 * scale)


# -- counts ----------------------------------------------------------------------------------------------------
def histogram(table: QuestionRows, estimand: Estimand, floors: LeastRows) -> QuestionResult:
    """The share of a column's known values in each bin: its lower edge belongs to it, the last one's upper edge, too.

    A bin without rows, or with all of them, counts half a row more in it and outside, as `metafor::escalc` has it.
    """
    (name,) = estimand.terms
    x = table.numbers(name)
    there = np.isfinite(x)
    n = int(there.sum())
    seen = (float(x[there].min()), float(x[there].max())) if n and np.ptp(x[there]) > 0 else (0.0, 1.0)
    edges = edges_of(estimand.breaks, seen)
    result = QuestionResult(answers={}, n=n)
    place = np.where(there & (x == edges[-1]), len(edges) - 2, np.searchsorted(edges, x, side="right") - 1)
    for k, (low, high) in enumerate(pairwise(edges)):
        inside = there & (place == k)
        cell = TableCell(statistic="share", column=name, level=f"{low:g} to {high:g}")
        _put(result, cell, _share(inside, there, floors), (n, len(x) - n))
    return result


def crosstab(
    table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: LeastRows
) -> QuestionResult:
    """Two columns with levels: of each level the share in each group, and its odds against the first of both.

    The odds ratios, with their covariance, hold the whole association; that all are 1 is independence. Where one of the
    four counts of an odds ratio is 0, one half is added to each, as `metafor::escalc` has it. What one column has and
    the other lacks is not used.
    """
    name, other = estimand.terms
    (rows, row), (groups, group) = (membership(parse(one), table, levels) for one in (name, other))
    used = (row >= 0) & (group >= 0)
    n = int(used.sum())
    result = QuestionResult(answers={}, n=n)
    together: dict[str, Array] = {}
    count = np.array(
        [[int((used & (row == i) & (group == g)).sum()) for g in range(len(groups))] for i in range(len(rows))]
    )
    lacks = (n, len(row) - n)
    for i, level in enumerate(map(str, rows)):
        for g, known in enumerate(["", *map(str, groups)]):
            inside = used & ((group == g - 1) if g else True)
            total = int(inside.sum())
            cell = TableCell(statistic="share", column=name, level=level, group=known)
            _put(result, cell, _share(inside & (row == i), inside, floors), (total, lacks[1]))
            if i and g > 1:
                four = [(i, g - 1, 1), (0, g - 1, -1), (i, 0, -1), (0, 0, 1)]
                ratio = _odds_ratio(count, [used & (row == a) & (group == b) for a, b, _ in four], four, floors)
                cell = TableCell(**{**vars(cell), "statistic": "odds_ratio"})
                _put(result, cell, ratio, lacks)
                if not isinstance(ratio, str):
                    by_cell = np.zeros(count.shape)
                    for (a, b, sign), many in zip(four, _halved([count[a, b] for a, b, _ in four]), strict=True):
                        by_cell[a, b] = sign / math.sqrt(many)
                    together[cell.label] = by_cell.ravel()
    if together:
        parts = np.array(list(together.values()))
        result.correlations = correlations(list(together), parts @ parts.T)
    return result


def _share(inside: NDArray[np.bool_], of: NDArray[np.bool_], floors: LeastRows) -> _Found:
    """Log odds of a share of some rows; half a row is added to both sides where one has none."""
    n, cases = int(of.sum()), int(inside.sum())
    if n <= floors.residual_df:
        return few(n, 1, floors) if n else NO_ROWS
    return _counted([inside, of & ~inside], [cases, n - cases], [1, -1])


def _halved(counts: Sequence[float]) -> list[float]:
    """Counts, each and a half where one is 0."""
    return [float(one) + 0.5 * (0 in counts) for one in counts]


def _odds_ratio(
    count: NDArray[np.int64],
    cells: list[NDArray[np.bool_]],
    four: list[tuple[int, int, int]],
    floors: LeastRows,
) -> _Found:
    of_cells = [float(count[a, b]) for a, b, _ in four]
    if (
        sum(of_cells[:2]) == 0
        or sum(of_cells[2:]) == 0
        or of_cells[0] + of_cells[2] == 0
        or of_cells[1] + of_cells[3] == 0
    ):
        return NO_ROWS
    if sum(of_cells) - 2 < floors.residual_df:
        return few(int(sum(of_cells)), 2, floors)
    return _counted(cells, of_cells, [sign for *_, sign in four])


def _counted(cells: Sequence[NDArray[np.bool_]], counts: Sequence[float], signs: Sequence[int]) -> _Found:
    """A contrast of log counts of the rows of each cell; its variance is Σ 1 / count."""
    many = _halved(counts)
    value = sum(sign * math.log(one) for sign, one in zip(signs, many, strict=True))
    if 0 in counts:
        return value, sum(1 / one for one in many)
    return value, np.sum([rows * (sign / one) for rows, sign, one in zip(cells, signs, many, strict=True)], axis=0)
