"""The forest plot and its table: pooled results in, vector figures out.

A figure takes results, never rows of data, so nothing drawn here could show a record. Squares, whiskers and text of
a row share one baseline. What all figures share (page, palette, words, files) is in `coordinator.figures.canvas`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from coordinator.figures.canvas import page_style
from coordinator.figures.files import save
from coordinator.figures.forest_page import ForestContent, ForestPage
from coordinator.figures.forest_rows import ForestLane, ForestRow, between, limits, rows_of, short_heterogeneity
from coordinator.figures.style import SERIES
from coordinator.figures.wording import heterogeneity_words, interval_words, model_name, view_of
from coordinator.pooling.pool import PooledResult
from shared.base.process import uncollected
from shared.errors import ParameterError, machine_failures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coordinator.pooling.subgroups import Subgroups

__all__ = ["describe", "forest", "forest_table", "save", "sum_of"]


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
        result: the pooled result; its excluded sites are listed below with their reasons.
        title, xlabel: headings; xlabel defaults to the name of the scale.
        note: one line under the title: units, and what a positive value means.
        ratio: show exp(yi) on a log axis; by default as the result's scale says.
        null: position of the line of no effect on the analysis scale; None draws none. ``auto``: 0, and none for
            a mean, a proportion or a network's density.
        columns: heading -> (site label -> text), drawn beside the sites: posture, epsilon.
        compare: name -> result of the same question, drawn beside `result` in another colour and shape.
        name: name of `result` in the legend when there is a comparison.
        groups: `coordinator.pooling.subgroups.subgroups` of `result`: each group stands apart with its own diamond and
            heterogeneity, and the tests for a difference below. A group of one site has no diamond.
        by: name of the factor that defines the groups, as in ``posture``.
        favours: labels left and right of the null line, as in ("Favours drug", "Favours placebo").
        whole: name -> result of one row, of the same question put to all sites' rows in one table: a diamond of its
            own below the pooled ones.
        warnings: sentences below the figure, after its own.
        path: written when given, several of one drawing; the suffix chooses SVG, PDF or PNG.
    A secure sum beside the result (`PooledResult.summed`) has a diamond of its own, as a whole table has.
    Returns: the figure. Its marks carry gids: ``site-0``, ``fixed``, ``random``, ``whole``, ``prediction``,
        ``null``, ``pooled``, ``group-0`` for the groups' diamonds; with a comparison the number of the series follows:
        ``site-0-1``. Sites are numbered as in `result`, whatever group they stand in.
    Raises: ParameterError: too many series, an unknown suffix, a comparison on another scale or with groups, groups
        of another result, or sides of a null line that is not drawn.
    """
    diamonds = {**sum_of(result), **(whole or {})}
    series = {name: result, **(compare or {})}
    named = {*series, *diamonds}
    _require_series(named, count=1 + len(compare or {}) + len(diamonds), rows=[*series.values(), *diamonds.values()])
    results = list(series.values())
    view = view_of(results, ratio, null)
    _require_groups(groups, result, compared=bool(compare))
    if favours is not None and view.null is None:
        raise ParameterError("the sides of a null line must have the line", given="none", next_step="Give null=.")
    headings, rows = rows_of(results, columns or {}, groups, by)
    rows += _whole_rows(diamonds, first=len(series))
    content = ForestContent(
        series=series,
        view=view,
        headings=headings,
        rows=rows,
        title=title,
        xlabel=xlabel,
        note=note,
        groups=groups,
        by=by,
        favours=favours,
        whole=diamonds,
        warnings=warnings,
    )
    with page_style(), uncollected():
        figure = ForestPage(content).draw()
        if path is not None:
            spoken = " ".join(
                f"{called}: {describe(row)}" if len(series) > 1 else describe(row, groups=groups, by=by)
                for called, row in {**series, **(whole or {})}.items()
            )
            for target in [path] if isinstance(path, str | Path) else path:
                save(figure, target, title=title or "Forest plot", description=spoken)
    return figure


def sum_of(result: PooledResult) -> dict[str, PooledResult]:
    """Name of a result's secure sum, to the sum as a pooled result; empty if there is none.

    Its rows are the releases of the same sites by themselves, whose noise is not in the sum. Its τ² is the one of the
    sum's interval, which the prediction interval uses too, not the estimate from the rows.
    """
    total = result.summed
    if total is None:
        return {}
    kept = [i for i, row in enumerate(result.estimates) if row.site in total.sites]
    rows: dict[str, Any] = {
        name: tuple(getattr(result, name)[i] for i in kept) for name in ("labels", "yi", "vi", "weights")
    }
    own: dict[str, Any] = {"beta": total.estimate, "se_model": total.se, "s2w": 1.0, "test": "t", "shared": 0.0}
    own |= {"estimates": (), "notes": (), "doubts": (), "tau2": total.tau2, "summed": None}
    return {f"Secure sum, {len(total.sites)} sites": replace(result, **rows, **own)}


def _whole_rows(whole: Mapping[str, PooledResult], *, first: int) -> list[ForestRow]:
    """A diamond of its own for each result of all sites' rows in one table; their series are numbered from `first`."""
    return [
        ForestRow(
            "diamond",
            label[:1].upper() + label[1:],
            (ForestLane(number, row.beta, row.ci_lb, row.ci_ub),),
            gid="whole",
        )
        for number, (label, row) in enumerate(whole.items(), start=first)
    ]


def _require_groups(groups: Subgroups | None, result: PooledResult, *, compared: bool) -> None:
    """Refuse groups of another result, or beside a comparison. Raises: ParameterError."""
    if groups is None:
        return
    if compared:
        raise ParameterError("groups and a comparison must be drawn one by one", next_step="Draw two figures.")
    if not {label for group in groups.groups.values() for label in group.labels} <= set(result.labels):
        raise ParameterError("the groups must be of the same result", given="other sites")


def _require_series(named: Collection[str], *, count: int, rows: Sequence[PooledResult]) -> None:
    """Refuse series that share a name, are too many, or are on several scales. Raises: ParameterError."""
    if len(named) != count or len(named) > len(SERIES):
        raise ParameterError(
            f"a forest plot must have up to {len(SERIES)} series with different names", given=", ".join(sorted(named))
        )
    if len({row.scale for row in rows}) > 1:
        raise ParameterError("compared results must share one scale", given="several")


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

    ends = limits(result)
    sites = ", ".join(words(result.labels[i], result.yi[i], *ends[i]) for i in range(result.k))
    models = [model_name(row) for row in (result.fixed, result)]
    pooled = [
        words(label, row.beta, row.ci_lb, row.ci_ub)
        for label, row in dict(zip(models, (result.fixed, result), strict=True)).items()
    ]
    parts = [f"{result.k} {result.units}: {sites}", "; ".join(pooled) if result.k > 1 else "Nothing was pooled"]
    if (total := result.summed) is not None:
        parts.insert(1, words(f"Secure sum of {len(total.sites)} sites", total.estimate, total.ci_lb, total.ci_ub))
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
        parts += [text for _, text, aside in between(groups, by) if not aside]
    parts += [f"Excluded: {row.label}, {row.reason}" for row in result.excluded]
    return ". ".join(parts) + "."


def forest_table(
    result: PooledResult, *, ratio: bool | None = None, groups: Subgroups | None = None, by: str = ""
) -> pd.DataFrame:
    """Every number of the forest plot, one line per mark, for CSV export.

    Args:
        result, ratio, groups, by: as in `forest`.
    Returns: columns ``row`` (site, fixed, random, sum, prediction, excluded; with groups also group and between),
        ``label``, ``n``, ``estimate ci_lb ci_ub`` as shown on the plot, ``yi se`` on the analysis scale, ``weight`` and
        ``noise_share`` in percent, ``reason`` (of a group its heterogeneity, of ``between`` the tests for a
        difference), and with groups ``group``. Sites stand in the order of the plot.

    >>> from coordinator.pooling.pool import pool
    >>> forest_table(pool([0.1, 0.3, 0.5], [0.02, 0.03, 0.04]))["row"].tolist()
    ['site', 'site', 'site', 'fixed', 'random', 'prediction']
    """
    show = view_of([result], ratio, "auto").show
    ends = limits(result)
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
                "se": result.row_errors[i],
                "weight": result.weights[i],
                "noise_share": result.noise_share[i],
            }
        )
    models = [("fixed", result.fixed)] + ([("random", result)] if result.method != "FE" else [])
    for row, model in models if result.k > 1 else []:
        numbers = {"estimate": show(model.beta), "ci_lb": show(model.ci_lb), "ci_ub": show(model.ci_ub)}
        rows.append({"row": row, "label": model_name(model), **numbers, "yi": model.beta, "se": model.se})
    if (total := result.summed) is not None:
        numbers = {"estimate": show(total.estimate), "ci_lb": show(total.ci_lb), "ci_ub": show(total.ci_ub)}
        label = f"Secure sum, {len(total.sites)} sites"
        rows.append({"row": "sum", "label": label, **numbers, "yi": total.estimate, "se": total.se})
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
            found |= {**numbers, "yi": model.beta, "se": model.se, "reason": short_heterogeneity(model)}
            grouped.append(found)
        tests = [{"row": "between", "label": by, "reason": text} for _, text, _ in between(groups, by)]
        rows = [*grouped, *own.values(), *(row for row in rows if row["row"] != "site"), *tests]
        names.append("group")
    table = pd.DataFrame([{"reason": ""} | row for row in rows], columns=names)
    table["n"] = table["n"].astype("Int64")
    if groups is not None:
        table["group"] = table["group"].fillna("")
    return table
