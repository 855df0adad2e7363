"""The forest plot and its table: pooled results in, vector figures out.

A figure takes results, never rows of data, so nothing drawn here could show a record. Squares, whiskers and text of
a row share one baseline. What all figures share (page, palette, words, files) is in `coordinator.figures.canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from coordinator.figures.canvas import (
    BAND,
    GAP,
    GREY,
    INK,
    LANE,
    MARGIN,
    PLOT,
    ROW,
    RULE,
    SERIES,
    SMALL,
    TESTS,
    TEXT,
    TITLE,
    View,
    axis_ticks,
    darker,
    heterogeneity_words,
    interval_words,
    model_name,
    p_words,
    page_style,
    placed,
    save,
    signed,
    significant,
    text_width,
    view_of,
    wrap,
)
from coordinator.pooling.pool import PooledResult
from shared.errors import ParameterError, machine_failures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from coordinator.pooling.subgroups import Subgroups

__all__ = ["describe", "forest", "forest_table", "save"]

ALARM = "#9b1c1c"
_SQUARE = 0.155  # side of the heaviest site's square, inches


@dataclass(frozen=True)
class _Lane:
    """One mark with its text: a site, a diamond or a prediction interval of one series."""

    series: int
    beta: float | None
    lb: float | None
    ub: float | None
    weight: float | None = None
    side: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class _Row:
    """One row of the plot; `gid` names its mark, without the number of the series.

    Kind ``group`` is the head of a subgroup, ``group diamond`` its pooled effect, ``words`` a line of small text.
    """

    kind: Literal["site", "diamond", "prediction", "excluded", "group", "group diamond", "words", "total"]
    label: str
    lanes: tuple[_Lane, ...] = ()
    cells: tuple[str, ...] = ()
    gid: str = ""

    @property
    def height(self) -> float:
        return 0.2 if self.kind == "words" else ROW + LANE * (max(len(self.lanes), 1) - 1)

    @property
    def above(self) -> float:
        """Room above it."""
        return 0.08 if self.kind == "group" else 0.0


@machine_failures()
def forest(
    result: PooledResult,
    *,
    title: str = "",
    xlabel: str = "",
    note: str = "",
    ratio: bool | None = None,
    null: float | Literal["auto"] | None = "auto",
    columns: Mapping[str, Mapping[str, str]] | None = None,
    compare: Mapping[str, PooledResult] | None = None,
    name: str = "released",
    groups: Subgroups | None = None,
    by: str = "",
    favours: tuple[str, str] | None = None,
    whole: Mapping[str, PooledResult] | None = None,
    warnings: Sequence[str] = (),
    path: str | Path | Sequence[Path] | None = None,
) -> Figure:
    """Draw one meta-analysis: sites, both models, prediction interval, heterogeneity, and who is missing.

    Args:
        result: what to draw; its excluded sites are listed below with their reasons.
        title, xlabel: headings; xlabel defaults to what the scale means.
        note: one line under the title: units, and what a positive value means.
        ratio: show exp(yi) on a log axis; by default as the result's scale says.
        null: where the line of no effect stands on the analysis scale; None draws none. ``auto``: 0, and none for
            a mean, a proportion or a network's density.
        columns: heading -> (site label -> text), drawn beside the sites: posture, epsilon.
        compare: name -> result of the same question, drawn beside `result` in another colour and shape.
        name: what `result` is called in the legend when there is a comparison.
        groups: `coordinator.pooling.subgroups.subgroups` of `result`: each group stands apart with its own diamond and
            heterogeneity, and the tests for a difference below. A group of one site has no diamond.
        by: what the groups differ in, as in ``posture``.
        favours: what lies left and right of the null line, as in ("Favours drug", "Favours placebo").
        whole: name -> result of one row, of the same question put to all sites' rows in one table: a diamond of its
            own below the pooled ones.
        warnings: sentences below the figure, after its own.
        path: written when given, several of one drawing; the suffix chooses SVG, PDF or PNG.
    Returns: the figure. Its marks carry gids: ``site-0``, ``fixed``, ``random``, ``whole``, ``prediction``,
        ``null``, ``pooled``, ``group-0`` for the groups' diamonds; with a comparison the number of the series follows:
        ``site-0-1``. Sites are numbered as in `result`, whatever group they stand in.
    Raises: ParameterError: too many series, an unknown suffix, a comparison on another scale or with groups, groups
        of another result, or sides of a null line that is not drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    whole = whole or {}
    series = {name: result, **(compare or {})}
    named = {*series, *whole}
    if len(named) != 1 + len(compare or {}) + len(whole) or len(named) > len(SERIES):
        raise ParameterError(
            f"a forest plot must have up to {len(SERIES)} series with different names", given=", ".join(sorted(named))
        )
    if len({row.scale for row in (*series.values(), *whole.values())}) > 1:
        raise ParameterError("compared results must share one scale", given="several")
    results = list(series.values())
    view = view_of(results, ratio, null)
    if groups is not None:
        if compare:
            raise ParameterError("groups and a comparison must be drawn one by one", next_step="Draw two figures.")
        if not {label for group in groups.groups.values() for label in group.labels} <= set(result.labels):
            raise ParameterError("the groups must be of the same result", given="other sites")
    if favours is not None and view.null is None:
        raise ParameterError("the sides of a null line must have the line", given="none", next_step="Give null=.")
    headings, rows = _rows(results, columns or {}, groups, by)
    for number, (label, row) in enumerate(whole.items(), start=len(series)):
        lane = _Lane(number, row.beta, row.ci_lb, row.ci_ub)
        rows.append(_Row("diamond", label[:1].upper() + label[1:], (lane,), gid="whole"))
    with page_style():
        return _draw(
            Figure,
            FigureCanvasAgg,
            series,
            view,
            headings,
            rows,
            title=title,
            xlabel=xlabel,
            note=note,
            groups=groups,
            by=by,
            favours=favours,
            whole=whole,
            warnings=warnings,
            path=path,
        )


def describe(result: PooledResult, *, ratio: bool | None = None, groups: Subgroups | None = None, by: str = "") -> str:
    """The forest plot in sentences, for those who cannot see it.

    >>> from coordinator.pooling.pool import pool
    >>> print(describe(pool([0.1, 0.3, 0.5], [0.02, 0.03, 0.04], labels=["A", "B", "C"])).split(". ")[0])
    3 studies: A 0.10 (95 % CI −0.18 to 0.38), B 0.30 (95 % CI −0.04 to 0.64), C 0.50 (95 % CI 0.11 to 0.89)
    """
    view = view_of([result], ratio, "auto")
    percent = f"{100 * result.level:g} % CI"

    def words(label: str, beta: float, lb: float, ub: float) -> str:
        return f"{label} {view.number(beta)} ({percent} {view.number(lb)} to {view.number(ub)})"

    limits = _limits(result)
    sites = ", ".join(words(result.labels[i], result.yi[i], *limits[i]) for i in range(result.k))
    models = [model_name(row) for row in (result.fixed, result)]
    pooled = [
        words(label, row.beta, row.ci_lb, row.ci_ub)
        for label, row in dict(zip(models, (result.fixed, result), strict=True)).items()
    ]
    parts = [f"{result.k} {result.units}: {sites}", "; ".join(pooled) if result.k > 1 else "Nothing was pooled"]
    if not result.prediction_interval.empty:
        predicted = result.prediction_interval.map(view.show)
        parts.append(f"Prediction interval {interval_words(predicted, view.decimals)}")
    if result.k > 1:
        parts.append(heterogeneity_words(result))
    if groups is not None:
        for level, model in groups.groups.items():
            named = f"{by} {level}".strip()
            pooled_words = words(f"{named} ({model.k} {result.units})", model.beta, model.ci_lb, model.ci_ub)
            parts.append(pooled_words if model.k > 1 else f"{named}: one {result.unit}, nothing was pooled")
        parts += [text for _, text, aside in _between(groups, by) if not aside]
    parts += [f"Excluded: {row.label}, {row.reason}" for row in result.excluded]
    return ". ".join(parts) + "."


def forest_table(
    result: PooledResult, *, ratio: bool | None = None, groups: Subgroups | None = None, by: str = ""
) -> pd.DataFrame:
    """Every number of the forest plot, one line per mark, for CSV export.

    Args:
        result, ratio, groups, by: as in `forest`.
    Returns: columns ``row`` (site, fixed, random, prediction, excluded; with groups also group and between), ``label``,
        ``n``, ``estimate ci_lb ci_ub`` as shown on the plot, ``yi se`` on the analysis scale, ``weight`` and
        ``noise_share`` in percent, ``reason`` (of a group its heterogeneity, of ``between`` the tests for a
        difference), and with groups ``group``. Sites stand in the order of the plot.

    >>> from coordinator.pooling.pool import pool
    >>> forest_table(pool([0.1, 0.3, 0.5], [0.02, 0.03, 0.04]))["row"].tolist()
    ['site', 'site', 'site', 'fixed', 'random', 'prediction']
    """
    show = view_of([result], ratio, "auto").show
    ends = _limits(result)
    rows: list[dict[str, Any]] = []
    for i in range(result.k):
        rows.append(
            {
                "row": "site",
                "label": result.labels[i],
                "n": result.estimates[i].n if result.estimates else None,
                "estimate": show(result.yi[i]),
                "ci_lb": show(ends[i][0]),
                "ci_ub": show(ends[i][1]),
                "yi": result.yi[i],
                "se": math.sqrt(result.vi[i]),
                "weight": result.weights[i],
                "noise_share": result.noise_share[i],
            }
        )
    models = [("fixed", result.fixed)] + ([("random", result)] if result.method != "FE" else [])
    for row, model in models if result.k > 1 else []:
        numbers = {"estimate": show(model.beta), "ci_lb": show(model.ci_lb), "ci_ub": show(model.ci_ub)}
        rows.append({"row": row, "label": model_name(model), **numbers, "yi": model.beta, "se": model.se})
    predicted = result.prediction_interval
    if predicted.lb is not None and predicted.ub is not None:
        ends_shown = {"ci_lb": show(predicted.lb), "ci_ub": show(predicted.ub)}
        rows.append({"row": "prediction", "label": "Prediction interval", **ends_shown})
    rows += [{"row": "excluded", "label": row.label, "reason": row.reason} for row in result.excluded]
    names = ["row", "label", "n", "estimate", "ci_lb", "ci_ub", "yi", "se", "weight", "noise_share", "reason"]
    if groups is not None:
        own = {row["label"]: row for row in rows if row["row"] == "site"}
        grouped: list[dict[str, Any]] = []
        for level, model in groups.groups.items():
            grouped += [{**own.pop(label), "group": level} for label in model.labels]
            found: dict[str, Any] = {"row": "group", "label": f"{by} {level}".strip(), "group": level}
            if model.k == 1:
                grouped.append({**found, "reason": "one site: nothing was pooled"})
                continue
            numbers = {"estimate": show(model.beta), "ci_lb": show(model.ci_lb), "ci_ub": show(model.ci_ub)}
            found |= {**numbers, "yi": model.beta, "se": model.se, "reason": _short_heterogeneity(model)}
            grouped.append(found)
        between = [{"row": "between", "label": by, "reason": text} for _, text, _ in _between(groups, by)]
        rows = [*grouped, *own.values(), *(row for row in rows if row["row"] != "site"), *between]
        names.append("group")
    table = pd.DataFrame([{"reason": ""} | row for row in rows], columns=names)
    table["n"] = table["n"].astype("Int64")
    if groups is not None:
        table["group"] = table["group"].fillna("")
    return table


# -- words and numbers ---------------------------------------------------------------------------------------
def _overall(result: PooledResult) -> str:
    def words(row: PooledResult, model: str) -> str:
        if row.test == "z":
            return f"z = {signed(row.zval, 2)}, {p_words(row.pval)} ({model})"
        return f"t = {signed(row.zval, 2)}, df = {row.df}, {p_words(row.pval)} ({model})"

    models = [words(result.fixed, "fixed effect")] if result.method == "FE" else [words(result, "random effects")]
    if result.method != "FE":
        models.append(words(result.fixed, "fixed effect"))
    return "Overall effect: " + "; ".join(models)


def _limits(result: PooledResult) -> list[tuple[float, float]]:
    from scipy.special import ndtri

    z = -float(ndtri((1 - result.level) / 2))
    return [(y - z * math.sqrt(v), y + z * math.sqrt(v)) for y, v in zip(result.yi, result.vi, strict=True)]


# -- the page ------------------------------------------------------------------------------------------------
def _rows(
    results: Sequence[PooledResult],
    columns: Mapping[str, Mapping[str, str]],
    groups: Subgroups | None = None,
    by: str = "",
) -> tuple[tuple[str, ...], list[_Row]]:
    first = results[0]
    sites = list(dict.fromkeys(label for row in results for label in row.labels))
    counts = {
        label: f"{e.n:,}" for row in reversed(results) for label, e in zip(row.labels, row.estimates, strict=False)
    }
    shares = {
        label: f"{share:.0f} %" for label, share in zip(first.labels, first.noise_share, strict=True) if share > 0
    }
    cells: dict[str, Mapping[str, str]] = {"n": counts} if counts else {}
    cells |= columns
    if shares:
        cells["Noise"] = {label: shares.get(label, "0 %") for label in first.labels}
    heaviest = max(weight for row in results for weight in row.weights)
    by_site: dict[str, _Row] = {}
    for number, label in enumerate(sites):
        lanes = []
        for s, row in enumerate(results):
            if label not in row.labels:
                lanes.append(_Lane(s, None, None, None, note="excluded" if _is_excluded(row, label) else "no estimate"))
                continue
            i = row.labels.index(label)
            side = _SQUARE * math.sqrt(row.weights[i] / heaviest)
            lanes.append(_Lane(s, row.yi[i], *_limits(row)[i], weight=row.weights[i], side=side))
        texts = tuple(column.get(label, "") for column in cells.values())
        by_site[label] = _Row("site", label, tuple(lanes), texts, gid=f"site-{number}")
    rows = list(by_site.values()) if groups is None else _grouped(by_site, groups, by)
    listed = [e.label for row in results for e in row.excluded if e.label not in sites]
    if groups is not None and listed:
        rows.append(_Row("group", "No estimate"))
    for label in dict.fromkeys(listed):
        lane = _Lane(0, None, None, None, note="excluded")
        rows.append(_Row("excluded", label, (lane,), tuple(column.get(label, "") for column in cells.values())))

    alone = len(results) == 1 and first.k > 1
    total = f"{sum(e.n for e in first.estimates):,}" if alone and first.estimates else ""

    def diamonds(label: str, chosen: Sequence[PooledResult]) -> None:
        own = alone and chosen[0] is first  # the model whose weights stand above
        lanes = tuple(
            _Lane(s, row.beta, row.ci_lb, row.ci_ub, weight=100.0 if own else None) for s, row in enumerate(chosen)
        )
        gid = "random" if label.startswith("Random") else "fixed" if label.startswith("Fixed") else "own"
        rows.append(_Row("diamond", label, lanes, gid=gid))

    if all(row.k == 1 for row in results):
        diamonds("Not pooled: one site only", results)
        return tuple(cells), rows
    if total:
        rows.append(_Row("total", f"All {first.k}", cells=tuple(total if head == "n" else "" for head in cells)))
    diamonds(model_name(first.fixed), [row.fixed for row in results])
    if first.method != "FE":
        diamonds(model_name(first), results)
        predicted = [row.prediction_interval for row in results]
        if any(not interval.empty for interval in predicted):
            bars = tuple(_Lane(s, None, each.lb, each.ub) for s, each in enumerate(predicted))
            rows.append(_Row("prediction", f"Prediction interval, a new {first.unit}", bars, gid="prediction"))
    return tuple(cells), rows


def _grouped(by_site: Mapping[str, _Row], groups: Subgroups, by: str) -> list[_Row]:
    """The sites under the heads of their groups, each group with its diamond and its own heterogeneity."""
    rows: list[_Row] = []
    left = dict(by_site)
    by = by[:1].upper() + by[1:]
    for number, (level, model) in enumerate(groups.groups.items()):
        rows.append(_Row("group", f"{by}: {level}" if by else level))
        rows += [left.pop(label) for label in model.labels]
        if model.k == 1:
            rows.append(_Row("words", f"One {model.unit}: nothing was pooled"))
            continue
        lane = _Lane(0, model.beta, model.ci_lb, model.ci_ub)
        short = "Fixed effect" if model.method == "FE" else "Random effects"
        rows.append(_Row("group diamond", f"{short}, {model.k} {model.units}", (lane,), gid=f"group-{number}"))
        rows.append(_Row("words", _short_heterogeneity(model)))
    if left:
        rows += [_Row("group", f"{by}: not known" if by else "No group"), *left.values()]
    return rows


def _short_heterogeneity(model: PooledResult) -> str:
    tau2 = "" if model.method == "FE" else f"τ² = {significant(model.tau2)}, "
    return f"{tau2}I² = {model.I2:.0f} %, Q = {model.QE:.2f}, df = {model.df}, {p_words(model.QEp)}"


def _is_excluded(result: PooledResult, label: str) -> bool:
    return any(row.label == label for row in result.excluded)


def _span(results: Sequence[PooledResult], rows: Sequence[_Row], null: float | None) -> tuple[float, float]:
    """Ends of the axis. A few very wide intervals must not squeeze all others: they are clipped, with an arrow."""
    lanes = [lane for row in rows for lane in row.lanes if lane.lb is not None and lane.ub is not None]
    half = [math.sqrt(v) * 1.96 for row in results for v in row.vi]
    middle = float(np.median(half))
    near = [y for row in results for y, v in zip(row.yi, row.vi, strict=True) if math.sqrt(v) * 1.96 <= 5 * middle]
    near += [row.beta for row in results] + [row.fixed.beta for row in results]
    low, high = min(near), max(near)
    # The null belongs on the axis unless it is so far that the sites would become dots.
    if null is not None and min(abs(null - low), abs(null - high)) < 4 * (high - low + 2 * middle):
        low, high = min(low, null), max(high, null)
    reach = 1.8 * middle
    first = min([low, *(lane.lb for lane in lanes if lane.lb is not None)])
    last = max([high, *(lane.ub for lane in lanes if lane.ub is not None)])
    low, high = max(low - reach, first), min(high + reach, last)
    # What the figure is about is never cut: the diamonds, and the prediction interval unless it dwarfs all else.
    message = [lane for row in rows if row.kind.endswith("diamond") for lane in row.lanes]
    message += [lane for row in rows if row.kind == "prediction" for lane in row.lanes]
    for lane in message:
        if lane.lb is None or lane.ub is None or (lane.beta is None and lane.ub - lane.lb > 6 * (high - low)):
            continue
        low, high = min(low, lane.lb), max(high, lane.ub)
    if last - first <= 1.6 * (high - low):  # little would be gained by clipping
        low, high = first, last
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def _weighted(result: PooledResult) -> str:
    """Of which model the weights are."""
    return "fixed" if result.method == "FE" else "random"


_MEANINGS = {
    "n": "n: rows that the answer rests on",
    "Noise": "Noise: part of a site's variance that is noise of its release",
    "Map SE": "Map SE: standard error that its map adds to a site's harmonised estimate",
    "Posture": "Posture: what a site's flow may be fitted on (local: on the released records)",
}


def _meanings(headings: Sequence[str], series: Mapping[str, PooledResult]) -> str:
    """What the columns beside the sites mean, and of which series they are."""
    said = [text for head, text in _MEANINGS.items() if head in headings]
    own = [head for head in headings if head not in ("Posture", "Map SE")]
    if len(series) > 1 and own:
        said.append(f"{', '.join(own)}: of {next(iter(series))!r} alone, unless a cell has several")
    return "; ".join(said)


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789.,%−- ∞") or cell in ("inf", "n/a")


def _draw(
    new_figure: Any,
    new_canvas: Any,
    series: Mapping[str, PooledResult],
    view: View,
    headings: tuple[str, ...],
    rows: list[_Row],
    *,
    title: str,
    xlabel: str,
    note: str,
    groups: Subgroups | None,
    by: str,
    favours: tuple[str, str] | None,
    whole: Mapping[str, PooledResult],
    warnings: Sequence[str],
    path: str | Path | Sequence[Path] | None,
) -> Figure:
    results = list(series.values())
    several = len(results) > 1
    size = SMALL if several else TEXT
    estimate = f"{view.effect} [{100 * results[0].level:g} % CI]"

    # Columns, left to right, each as wide as its widest cell.
    left = max(text_width(row.label, TEXT) for row in rows if row.kind in ("site", "excluded", "total"))
    pooled = ("diamond", "group diamond", "prediction", "group")  # these run over the columns; "total" has cells
    summary = max(text_width(row.label, TEXT, True) for row in rows if row.kind in pooled)
    summary = max([summary, *(text_width(row.label, SMALL) for row in rows if row.kind == "words")])
    widths = [
        max([text_width(h, TEXT, True), *(text_width(row.cells[i], TEXT) for row in rows if row.cells)])
        for i, h in enumerate(headings)
    ]
    first = results[0].unit.capitalize()
    weighted = "Weight" if several or results[0].k == 1 else f"Weight ({_weighted(results[0])})"
    left = max(left, text_width(first, TEXT, True))
    table = left + sum(GAP + width for width in widths)
    if table < summary:  # pooled labels run over the whole table, so it is widened once
        left += summary - table
        table = summary
    starts = list(np.cumsum([MARGIN + left + GAP, *(width + GAP for width in widths)]))[: len(widths)]
    plot = MARGIN + table + GAP
    texts = [_three(lane, view) for row in rows for lane in row.lanes if lane.lb is not None]
    parts = [max(text_width(text[i], size) for text in texts) for i in range(3)]
    space = text_width("0", size) * 0.5
    block = max(sum(parts) + 2 * space, text_width(estimate, TEXT, True))
    weight = max(text_width(weighted, TEXT, True), text_width("100.0 %", size))
    weight_right = plot + PLOT + GAP * 0.8 + weight
    right = weight_right + GAP + block
    width = right + MARGIN

    body = width - 2 * MARGIN
    foot = [*(_between(groups, by) if groups else []), *_footer(series, view)]
    meanings = _meanings(headings, series)
    foot += [("", meanings, True)] if meanings else []
    foot += [("Warning", text, False) for text in warnings]
    indent = max([0.0, *(text_width(called, SMALL, True) + 0.12 for called, _, _ in foot if called)])
    wrapped: list[tuple[str, str, bool]] = []
    for called, text, aside in foot:
        pieces = wrap(text, SMALL, body - indent)
        wrapped += [(called if i == 0 else "", piece, aside) for i, piece in enumerate(pieces)]
    top = MARGIN * 0.9
    heads: list[tuple[str, float, bool, str]] = []
    heads += [(line, TITLE, True, INK) for line in (wrap(title, TITLE, body * 0.95, bold=True) if title else [])]
    heads += [(line, TEXT, False, GREY) for line in (wrap(note, TEXT, body) if note else [])]
    y_head = top + sum(0.25 if bold else 0.2 for _, _, bold, _ in heads) + (0.1 if heads else 0)
    y_legend = y_head + (0.26 if several else 0.0)
    y_rule = y_legend + 0.3
    y = y_rule + 0.06
    centres: list[float] = []
    pooled_from = 0.0
    for i, row in enumerate(rows):
        if (row.kind == "total") or (row.kind == "diamond" and rows[i - 1].kind not in ("diamond", "total")):
            y += 0.12
            pooled_from = y - 0.06
        y += row.above
        centres.append(y + row.height / 2)
        y += row.height
    y_axis = y + 0.06
    favoured = [wrap(text, SMALL, PLOT / 2 - 0.2) for text in favours or ()]
    under = 0.16 * max(map(len, favoured), default=0) + (0.04 if favoured else 0.0)
    y_foot = y_axis + 0.62 + under
    paragraph = 0.07
    height = y_foot + 0.175 * len(wrapped) + paragraph * (len(series) - 1 + len(warnings)) + MARGIN * 0.75

    figure: Figure = new_figure(figsize=(width, height), facecolor="white")
    new_canvas(figure)
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, width), ylim=(height, 0))
    page.axis("off")
    axes = figure.add_axes((plot / width, 1 - y_axis / height, PLOT / width, (y_axis - y_rule) / height))
    low, high = placed(view) or _span([*results, *whole.values()], rows, view.null)
    axes.set(xlim=(low, high), ylim=(y_axis, y_rule))
    axes.patch.set_alpha(0)

    def say(x: float, at: float, text: str, **more: Any) -> None:
        style: dict[str, Any] = {"fontsize": TEXT, "color": INK, "va": "center_baseline", "ha": "left"}
        page.text(x, at, text, **(style | {"parse_math": False} | more))

    cursor = top
    for line, points, bold, colour in heads:
        step = 0.25 if bold else 0.2
        say(MARGIN, cursor + step / 2, line, fontsize=points, color=colour, weight="bold" if bold else "normal")
        cursor += step
    if several:
        x = MARGIN
        for s, called in enumerate((*series, *whole)):
            colour, marker = SERIES[s]
            page.plot([x + 0.06], [y_head + 0.1], marker, color=colour, markersize=6.5)
            say(x + 0.18, y_head + 0.1, called, color=darker(colour, 0.78), weight="bold")
            x += 0.18 + text_width(called, TEXT, True) + 0.3

    y_heading = y_rule - 0.13
    say(MARGIN, y_heading, first, weight="bold")
    numeric = [all(_is_number(row.cells[i]) for row in rows if row.cells) for i in range(len(headings))]
    anchors = [x + column if right_hand else x for x, column, right_hand in zip(starts, widths, numeric, strict=True)]
    sides = ["right" if right_hand else "left" for right_hand in numeric]
    for x, heading, side in zip(anchors, headings, sides, strict=True):
        say(x, y_heading, heading, weight="bold", ha=side)
    say(weight_right, y_heading, weighted, weight="bold", ha="right")
    say(right, y_heading, estimate, weight="bold", ha="right")
    page.plot([MARGIN, right], [y_rule, y_rule], color=INK, linewidth=0.9, solid_capstyle="butt")
    page.plot([MARGIN, right], [pooled_from, pooled_from], color=RULE, linewidth=0.8, solid_capstyle="butt")

    striped = 0
    for i, row in enumerate(rows):
        striped = 0 if row.kind == "group" else striped + 1
        if row.kind in ("site", "excluded") and (striped if groups else i) % 2:
            page.axhspan(
                centres[i] - row.height / 2,
                centres[i] + row.height / 2,
                xmin=MARGIN / width,
                xmax=right / width,
                facecolor=BAND,
                linewidth=0,
            )
    lanes_of = [
        (row, lane, centres[i] + LANE * (j - (len(row.lanes) - 1) / 2))
        for i, row in enumerate(rows)
        for j, lane in enumerate(row.lanes)
    ]
    own_diamond = max(i for i, row in enumerate(rows) if row.kind == "diamond" and row.gid != "whole")
    own = centres[own_diamond] - LANE * (len(results) - 1) / 2
    if view.null is not None and low <= view.null <= high:
        axes.plot([view.null] * 2, [y_rule, y_axis], color=GREY, linewidth=0.9, zorder=1, gid="null")
    for s, pooled_row in enumerate(results):
        if pooled_row.k > 1 and low <= pooled_row.beta <= high:
            dotted: dict[str, Any] = {"color": SERIES[s][0], "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
            stop = own + LANE * s
            axes.plot([pooled_row.beta] * 2, [y_rule, stop], gid="pooled" if not s else f"pooled-{s}", **dotted)

    for row, centre in zip(rows, centres, strict=True):
        muted = row.kind in ("excluded", "prediction", "words")
        heavy = row.kind in ("diamond", "group", "group diamond")
        size_here = SMALL if row.kind == "words" else TEXT
        weight_here = "bold" if heavy else "normal"
        say(MARGIN, centre, row.label, fontsize=size_here, weight=weight_here, color=GREY if muted else INK)
        for x, side, cell in zip(anchors, sides, row.cells, strict=False):
            say(x, centre, cell, ha=side, color=GREY if muted else INK)
    for row, lane, at in lanes_of:
        colour, marker = SERIES[lane.series]
        gid = row.gid or row.kind
        if several and row.kind != "excluded" and row.gid != "whole":
            gid += f"-{lane.series}"
        _mark(axes, row.kind, lane, at, colour, marker, (low, high), gid)
        words = _three(lane, view)
        tint = darker(colour, 0.78) if several else GREY if row.kind in ("excluded", "prediction") else INK
        style = {"fontsize": size, "color": tint, "ha": "right"}
        if lane.lb is None:
            say(right, at, words[2], **(style | {"color": GREY, "style": "italic"}))
        else:
            say(right, at, words[2], **style)
            say(right - parts[2] - space, at, words[1], **style)
            say(right - parts[2] - parts[1] - 2 * space, at, words[0], **style)
        if lane.weight is not None:
            say(weight_right, at, f"{lane.weight:.1f} %", **style)

    ticks = axis_ticks(low, high, view)
    axes.set_xticks([tick for tick, _ in ticks], [text for _, text in ticks])
    axes.set_yticks([])
    axes.tick_params(axis="x", labelsize=SMALL, colors=INK, length=3, width=0.8, pad=3)
    for edge in ("top", "left", "right"):
        axes.spines[edge].set_visible(False)
    axes.spines["bottom"].set(linewidth=0.8, color=INK)
    axes.set_xlabel(xlabel or view.name, fontsize=TEXT, color=INK, labelpad=4 + 72 * under, parse_math=False)
    for lines, x, hand in zip(favoured, (plot, plot + PLOT), ("left", "right"), strict=False):
        for j, line in enumerate(lines):
            arrowed = f"← {line}" if (hand, j) == ("left", 0) else f"{line} →" if (hand, j) == ("right", 0) else line
            say(x, y_axis + 0.3 + 0.16 * j, arrowed, fontsize=SMALL, ha=hand, gid=f"favours-{hand}")

    tints = {called: darker(SERIES[s][0], 0.78) for s, called in enumerate(series)} | {"Warning": ALARM}
    for line_number, (called, text, aside) in enumerate(wrapped):
        if called and line_number:
            y_foot += paragraph
        at = y_foot + 0.175 * (line_number + 0.5)
        if called:
            say(MARGIN, at, called, fontsize=SMALL, color=tints[called], weight="bold")
        say(MARGIN + indent, at, text, fontsize=SMALL, color=GREY if aside else INK)
    if path is not None:
        description = " ".join(
            f"{called}: {describe(row)}" if several else describe(row, groups=groups, by=by)
            for called, row in {**series, **whole}.items()
        )
        for target in [path] if isinstance(path, str | Path) else path:
            save(figure, target, title=title or "Forest plot", description=description)
    return figure


def _three(lane: _Lane, view: View) -> tuple[str, str, str]:
    """Estimate and both ends as three right-aligned pieces, so that decimals stand under each other."""
    if lane.lb is None or lane.ub is None:
        return "", "", lane.note
    beta = "" if lane.beta is None else view.number(lane.beta)
    return beta, f"[{view.number(lane.lb)},", f"{view.number(lane.ub)}]"


def _mark(
    axes: Axes, kind: str, lane: _Lane, y: float, colour: str, marker: str, span: tuple[float, float], gid: str
) -> None:
    from matplotlib.patches import Polygon, Rectangle

    if lane.lb is None or lane.ub is None:
        return
    dark = darker(colour, 0.55 if marker == "s" and "-" not in gid.removeprefix("site-") else 0.85)
    low, high = span
    start, end = max(lane.lb, low), min(lane.ub, high)
    tip = (high - low) * 0.09 / PLOT  # 0.09 inch
    if kind.endswith("diamond") and lane.beta is not None:
        solid = not gid.startswith("fixed")
        shape = _diamond(lane.lb, lane.beta, lane.ub, y, span, tip)
        style: dict[str, Any] = {"facecolor": colour if solid else "white", "edgecolor": colour, "linewidth": 1.1}
        axes.add_patch(Polygon(shape, closed=True, joinstyle="miter", zorder=4, gid=gid, clip_on=False, **style))
        return
    if kind == "prediction":
        tall = 0.03
        corner = (start, y - tall)
        axes.add_patch(Rectangle(corner, end - start, 2 * tall, facecolor=colour, alpha=0.45, linewidth=0, gid=gid))
    elif start < end:
        axes.plot([start, end], [y, y], color=dark, linewidth=1.2, solid_capstyle="butt", zorder=5, gid=f"{gid}-ci")
    if kind == "site" and lane.beta is not None and low <= lane.beta <= high:
        points = lane.side * 72
        axes.plot([lane.beta], [y], marker, color=colour, markersize=points, markeredgewidth=0, zorder=4, gid=gid)
        if points < 2.6:  # a light site is still seen: a tick, whose size says nothing
            axes.plot([lane.beta], [y], "|", color=dark, markersize=5, markeredgewidth=1.1, zorder=5)
    for clipped, edge, way in ((lane.lb < low, low, -1), (lane.ub > high, high, 1)):
        if clipped:
            arrow = [(edge, y - 0.042), (edge + way * tip, y), (edge, y + 0.042)]
            face = colour if kind == "prediction" else dark
            style = {"facecolor": face, "linewidth": 0, "alpha": 0.6 if kind == "prediction" else 1.0}
            axes.add_patch(Polygon(arrow, closed=True, zorder=5, clip_on=False, gid=f"{gid}-clipped", **style))


def _diamond(
    lb: float, beta: float, ub: float, y: float, span: tuple[float, float], tip: float
) -> list[tuple[float, float]]:
    """Outline of a diamond; a side that leaves the axis ends in an arrowhead there."""
    low, high = span
    tall, head = 0.078, 0.105

    def side(end: float, edge: float, way: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        if way * (end - edge) <= 0:
            return [(end, y)], []
        here = tall * (end - edge) / (end - beta)  # half height of the diamond where it crosses the edge
        upper = [(edge, y - here), (edge, y - head), (edge + way * tip, y)]
        return upper, [(edge, y + head), (edge, y + here)]

    left, left_below = side(lb, low, -1)
    right, right_below = side(ub, high, 1)
    return [*reversed(left), (beta, y - tall), *right, *right_below, (beta, y + tall), *reversed(left_below)]


def _between(groups: Subgroups, by: str) -> list[tuple[str, str, bool]]:
    """The tests for a difference between the groups, and what must be said of them; as lines of the footer."""
    lines: list[tuple[str, str, bool]] = []
    if groups.df:
        text = f"Difference between groups{f' ({by})' if by else ''}: Q = {groups.Q_between:.2f}, df = {groups.df}, "
        text += (
            f"{p_words(groups.p_between)}, each group with its own τ²" if groups.common else p_words(groups.p_between)
        )
        if groups.common is not None:
            df = groups.common.QM_df
            name = f"Q = {groups.common.QM:.2f}, df = {df[0]}"
            if len(df) > 1:
                name = f"F = {groups.common.QM:.2f}, df = {df[0]} and {df[1]}"
            text += f"; with one common τ²: {name}, {p_words(groups.common.QMp)}"
        lines.append(("", text, False))
    return lines + [("", note, True) for note in groups.notes if not note.startswith("One row only")]


def _footer(series: Mapping[str, PooledResult], view: View) -> list[tuple[str, str, bool]]:
    """Lines under the axis: the series they speak of (when there are several), the text, whether it is an aside."""
    lines: list[tuple[str, str, bool]] = []
    for called, result in series.items():
        name = called if len(series) > 1 else ""
        found = [(heterogeneity_words(result), False), (_overall(result), False)] if result.k > 1 else []
        if view.null is None:  # nobody asks whether a mortality or a mean is 0
            found = found[:1]
        if result.pooled_noise_share >= 0.5:
            share = f"{result.pooled_noise_share:.0f} %"
            whose = "pooled estimate" if result.k > 1 else "estimate"
            found.append((f"Privacy noise: {share} of the variance of the {whose}", True))
        others = [row for row in result.sensitivity if row.test != result.test] if result.method != "FE" else []
        if others:
            given = "; ".join(
                f"{TESTS[row.test]} {view.number(row.ci_lb)} to {view.number(row.ci_ub)}" for row in others
            )
            found.append((f"Other intervals of the random effect: {given}", True))
        found += [(f"Excluded: {row.label} ({row.reason}).", True) for row in result.excluded]
        found += [(note, True) for note in result.notes if "rows are excluded" not in note]
        lines += [(name if i == 0 else "", text, aside) for i, (text, aside) in enumerate(found)]
    return lines
