"""The figures beside the forest plot: refits, funnel, Baujat and influence, in its visual language.

As there, a figure takes results and never rows of data. Each has a text alternative: it is written into the file and
returned by `words`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coordinator.figures.canvas import (
    BAND,
    BLUE,
    GAP,
    GREY,
    INK,
    MARGIN,
    ORANGE,
    SMALL,
    TEXT,
    DrawnFigure,
    Page,
    ladder,
    model_name,
    page_style,
    signed,
    significant,
    span_of,
    text_width,
    view_of,
    x_axis,
    y_axis,
)
from coordinator.pooling.diagnostics import Influence, TrimFill, baujat, influence
from coordinator.pooling.pool import PooledResult, cumulative, leave_one_out
from shared.errors import EstimateRefusal, ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["KINDS", "DrawnFigure", "baujat_plot", "draw", "funnel", "influence_panel", "refits"]

KINDS = ("leave-one-out", "cumulative", "funnel", "baujat", "influence")
"""Kinds of figure that `draw` accepts."""


def draw(
    kind: str,
    result: PooledResult,
    *,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    filled: TrimFill | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Draw one of `KINDS`. Raises: ParameterError: another kind or suffix; EstimateRefusal: too few sites for it."""
    options: dict[str, Any] = {"title": title, "note": note, "path": path}
    if kind in ("leave-one-out", "cumulative"):
        return refits(result, kind, ratio=ratio, **options)  # type: ignore[arg-type]
    if kind == "funnel":
        return funnel(result, filled=filled, ratio=ratio, **options)
    if kind == "baujat":
        return baujat_plot(result, **options)
    if kind == "influence":
        return influence_panel(result, **options)
    raise ParameterError(f"the figure must be one of {', '.join(KINDS)}", given=repr(kind))


def refits(
    result: PooledResult,
    kind: Literal["leave-one-out", "cumulative"] = "leave-one-out",
    *,
    order: Sequence[int] | None = None,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """The pooled effect without each site in turn, or as sites are added.

    Args:
        result: what was pooled.
        kind: which refits.
        order: for ``cumulative``, positions from 0 in order of arrival; the result's order when None.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
    Returns: gids ``refit-0`` and ``refit-0-ci`` for each row, ``random``, ``null``, ``pooled``.
    Raises: EstimateRefusal: one site only.
    """
    _at_least(result, 2, "a refit")
    rows = leave_one_out(result) if kind == "leave-one-out" else cumulative(result, order)
    view = view_of([result], ratio, "auto")
    first = "Left out" if kind == "leave-one-out" else "Added"
    labels = [label for label, _ in rows]
    models = [row for _, row in rows]
    random = result.method != "FE"
    heads = ("τ²", "I²") if random else ("I²",)
    cells = [((significant(m.tau2),) if random else ()) + (f"{m.I2:.0f} %",) for m in [*models, result]]
    ends = [(m.ci_lb, m.ci_ub) for m in [*models, result]]
    span = span_of([m.beta for m in [*models, result]], ends, view.null)
    words = f"{'Without one site' if kind == 'leave-one-out' else 'Sites added one by one'}: " + "; ".join(
        f"{label} {view.number(m.beta)} ({view.number(m.ci_lb)} to {view.number(m.ci_ub)})"
        for label, m in zip(labels, models, strict=True)
    )
    words += (
        f". All {result.k}: {view.number(result.beta)} ({view.number(result.ci_lb)} to {view.number(result.ci_ub)})."
    )

    foot = [] if kind == "leave-one-out" else ["Each row pools its site and all above it."]
    return ladder(
        [*models, result],
        [*labels, model_name(result)],
        first=first,
        heads=heads,
        cells=cells,
        span=span,
        view=view,
        foot=[
            *foot,
            *(f"Excluded: {row.label} ({row.reason})." for row in result.excluded),
            *(text for text in result.notes if "rows are excluded" not in text),
        ],
        words=words,
        title=title,
        called=f"{first}: pooled estimates",
        note=note,
        path=path,
    )


def funnel(
    result: PooledResult,
    *,
    filled: TrimFill | None = None,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Estimates against their standard errors, with the region that holds them when sites share one effect.

    Args:
        result: what was pooled.
        filled: mirrored studies of trim-and-fill, drawn hollow; where it is off, its reason stands below.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
    Returns: gids ``site-0``, ``filled-0``, ``region``, ``pooled``.
    Raises: EstimateRefusal: one site only.
    """
    _at_least(result, 2, "a funnel plot")
    view = view_of([result], ratio, "auto")
    se = np.sqrt(np.array(result.vi))
    centre = result.fixed.beta
    half = -float(_normal_quantile((1 - result.level) / 2))
    extra = list(filled.filled_yi) if filled and filled.result else []
    extra_se = [math.sqrt(value) for value in filled.filled_vi] if filled and filled.result else []
    bottom = 1.08 * max([*se, *extra_se])
    reach = max([half * bottom, *(abs(y - centre) * 1.08 for y in [*result.yi, *extra])])
    span = (centre - reach, centre + reach)
    region = f"{100 * result.level:g} %"
    foot = [
        f"Shaded: where {region} of sites would lie around the fixed effect if nothing but chance parted them.",
        "With random effects more lie outside; an empty corner can have other causes than missing studies.",
    ]
    if filled is not None:
        if filled.result is None:
            foot.append(f"Trim-and-fill: {filled.reason}.")
        else:
            m = filled.result
            foot.append(
                f"Trim-and-fill adds {filled.k0} on the {filled.side} (hollow): {view.number(m.beta)} "
                f"[{view.number(m.ci_lb)}, {view.number(m.ci_ub)}]. A sensitivity analysis, not a correction."
            )
    words = (
        f"Funnel plot of {result.k} sites around {view.number(centre)}: "
        + "; ".join(
            f"{label} {view.number(y)}, standard error {significant(float(s))}"
            for label, y, s in zip(result.labels, result.yi, se, strict=True)
        )
        + ". "
        + " ".join(foot[2:])
    ).strip()
    wide, tall = 5.6, 3.6
    with page_style():
        page = Page(wide + 0.75 + 2 * MARGIN, title, note, foot, rows=0, extra=tall, headed=False)
        axes = page.axes(MARGIN + 0.75, wide, span, (bottom, 0.0))
        axes.fill(
            [centre - half * bottom, centre, centre + half * bottom],
            [bottom, 0, bottom],
            facecolor=BAND,
            edgecolor=GREY,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
            zorder=1,
            gid="region",
        )
        axes.plot([centre] * 2, [0, bottom], color=BLUE, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2, gid="pooled")
        for i, (y, s) in enumerate(zip(result.yi, se, strict=True)):
            axes.plot([y], [s], "o", color=BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=f"site-{i}")
        for i, (y, s) in enumerate(zip(extra, extra_se, strict=True)):
            axes.plot([y], [s], "D", markerfacecolor="white", markeredgecolor=ORANGE, markersize=5.5, gid=f"filled-{i}")
        _names(axes, list(result.yi), se.tolist(), result.labels, (wide, tall))
        x_axis(axes, span, view, wide)
        y_axis(axes, "Standard error")
        return page.finish(words, title or "Funnel plot", path)


def baujat_plot(
    result: PooledResult, *, title: str = "", note: str = "", path: str | Path | None = None
) -> DrawnFigure:
    """Each site's share in heterogeneity against its influence on the pooled effect (Baujat et al. 2002).

    Returns: gids ``site-0``. Raises: EstimateRefusal: fewer than three sites.
    """
    _at_least(result, 3, "a Baujat plot")
    found = baujat(result)
    x, y = np.array(found.x), np.array(found.y)
    words = f"Baujat plot of {result.k} sites: " + "; ".join(
        f"{label}: share in heterogeneity {significant(a)}, influence {significant(b)}"
        for label, a, b in zip(found.labels, found.x, found.y, strict=True)
    )
    wide, tall = 5.6, 3.6
    foot = ["Sites at the upper right differ from the others and move the pooled effect."]
    with page_style():
        page = Page(wide + 0.75 + 2 * MARGIN, title, note, foot, rows=0, extra=tall, headed=False)
        span, rise = (0.0, 1.12 * max(float(x.max()), 1e-12)), (0.0, 1.1 * max(float(y.max()), 1e-12))
        axes = page.axes(MARGIN + 0.75, wide, (span[0] - 0.02 * span[1], span[1]), (rise[0] - 0.02 * rise[1], rise[1]))
        for i in range(result.k):
            axes.plot([x[i]], [y[i]], "o", color=BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=f"site-{i}")
        _names(axes, x.tolist(), y.tolist(), found.labels, (wide, tall))
        axes.tick_params(axis="x", labelsize=SMALL, colors=INK, length=3, width=0.8, pad=3)
        axes.set_xlabel("Share in heterogeneity (squared Pearson residual)", fontsize=TEXT, color=INK, labelpad=4)
        y_axis(axes, "Influence on the pooled effect")
        return page.finish(words + ".", title or "Baujat plot", path)


def influence_panel(
    result: PooledResult, *, title: str = "", note: str = "", path: str | Path | None = None
) -> DrawnFigure:
    """Leave-one-out panel, one column per measure; influential sites in orange, with a diamond.

    Returns: gids ``rstudent-0`` and so on, one for each measure and site.
    Raises: EstimateRefusal: fewer than three sites.
    """
    _at_least(result, 3, "an influence panel")
    found = influence(result)
    columns: list[tuple[str, str, float | None]] = [
        ("rstudent", "Residual", 0.0),
        ("dffits", "DFFITS", 0.0),
        ("cook_d", "Cook's distance", 0.0),
        ("cov_r", "Covariance ratio", 1.0),
        ("tau2_del", "τ² without it", result.tau2),
        ("QE_del", "Q without it", result.QE),
        ("hat", "Leverage", 1 / result.k),
    ]
    if result.method == "FE":
        columns = [column for column in columns if column[0] != "tau2_del"]
    flagged = [label for label, flag in zip(found.labels, found.influential, strict=True) if flag]
    words = f"Influence of {result.k} sites. Influential: {', '.join(flagged) or 'none'}. " + "; ".join(
        f"{label}: residual {signed(found.rstudent[i], 2)}, Cook's distance {significant(found.cook_d[i])}"
        for i, label in enumerate(found.labels)
    )
    panel = 1.12
    left = max(text_width(label, TEXT, True) for label in (*found.labels, "Site"))
    right = MARGIN + left + len(columns) * (panel + GAP)
    foot = [
        "Influential (orange diamonds): |DFFITS| > 3√(1/(K − 1)), Cook's distance beyond the median of its χ², "
        "leverage > 3/K, or a change of more than one standard error.",
        "Dotted: no influence, or the value with all sites.",
    ]
    with page_style():
        page = Page(right + MARGIN, title, note, foot, rows=result.k)
        page.heading(MARGIN, "Site")
        for i, (label, flag) in enumerate(zip(found.labels, found.influential, strict=True)):
            if i % 2:
                page.band(i, right)
            page.say(MARGIN, page.centre(i), label, weight="bold" if flag else "normal")
        for j, (name, head, base) in enumerate(columns):
            start = MARGIN + left + GAP + j * (panel + GAP)
            values = list(getattr(found, name))
            low, high = min([*values, base or 0.0]), max([*values, base or 0.0])
            pad = 0.1 * (high - low) or 0.1 * max(abs(high), 1e-12)
            page.heading(start + panel / 2, head, ha="center")
            axes = page.axes(start, panel, (low - pad, high + pad))
            if base is not None:
                dots: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
                axes.plot([base] * 2, [page.top, page.bottom], **dots)
            _dots(page, axes, found, name, values)
            _few_ticks(axes, panel)
        return page.finish(words + ".", title or "Influence", path)


def _few_ticks(axes: Axes, wide: float) -> None:
    """Up to four ticks; fewer where their labels would touch on an axis of `wide` inches."""
    from matplotlib.ticker import MaxNLocator

    axes.tick_params(axis="x", labelsize=SMALL - 1, colors=INK, length=3, width=0.8, pad=3)
    low, high = axes.get_xlim()
    for most in (3, 2, 1):
        axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
        places = [place for place in axes.get_xticks() if low <= place <= high]
        texts = axes.xaxis.get_major_formatter().format_ticks(places)
        widest = max((text_width(text, SMALL - 1) for text in texts), default=0.0)
        if len(places) < 2 or widest + 0.1 < (places[1] - places[0]) / (high - low) * wide:
            break


def _dots(page: Page, axes: Axes, found: Influence, name: str, values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        colour, marker = (ORANGE, "D") if found.influential[i] else (BLUE, "o")
        axes.plot([value], [page.centre(i)], marker, color=colour, markersize=5, markeredgewidth=0, gid=f"{name}-{i}")


def _names(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], labels: Sequence[str], inches: tuple[float, float]
) -> None:
    """Names beside their points, each where it touches no point and no other name; left out where there is no room."""
    wide, tall = inches
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    places = [((x - x0) / (x1 - x0) * wide, (y - y0) / (y1 - y0) * tall) for x, y in zip(xs, ys, strict=True)]
    taken = [(px - 0.055, py - 0.055, px + 0.055, py + 0.055) for px, py in places]
    high = 0.13

    def free(box: tuple[float, float, float, float]) -> bool:
        if box[0] < 0 or box[2] > wide or box[1] < 0 or box[3] > tall:
            return False
        return not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)

    for (px, py), label in sorted(zip(places, labels, strict=True), key=lambda item: -item[0][1]):
        width = text_width(label, SMALL)
        options: list[tuple[float, float]] = []
        for dy in (0.0, 0.1, -0.1, 0.17, -0.17, 0.28, -0.28, 0.4, -0.4):
            options += [(px + 0.08, py + dy), (px - 0.08 - width, py + dy)]
        options[10:10] = [(px - width / 2, py + 0.15), (px - width / 2, py - 0.15)]
        for bx, by in options:
            box = (bx, by - high / 2, bx + width, by + high / 2)
            if not free(box):
                continue
            taken.append(box)

            def place(x: float, y: float) -> tuple[float, float]:
                return x0 + x / wide * (x1 - x0), y0 + y / tall * (y1 - y0)

            axes.text(*place(bx, by), label, fontsize=SMALL, color=INK, va="center", parse_math=False, zorder=6)
            if abs(by - py) > 0.2:  # far from its point: a thin line shows whose name it is
                end = bx if bx > px else bx + width
                (xa, ya), (xb, yb) = place(px, py), place(end, by)
                axes.plot([xa, xb], [ya, yb], color=GREY, linewidth=0.6, zorder=2)
            break


def _normal_quantile(p: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(p))


def _at_least(result: PooledResult, least: int, what: str) -> None:
    if result.k < least:
        raise EstimateRefusal(
            f"{what} must have at least {least} sites", given=f"{result.k}", next_step="Wait for more releases."
        )
