"""The figures beside the forest plot: refits, funnel, Baujat, influence and bubbles, in its visual language.

As there, a figure takes results and never rows of data. Each has a text alternative: it is written into the file and
returned by `words`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coordinator.figures.canvas import (
    DrawnFigure,
    LadderContent,
    Page,
    effect_axis,
    ladder,
    name_axis,
    page_style,
    span_of,
    text_width,
    y_axis,
)
from coordinator.figures.style import BAND, BLUE, GAP, GREY, INK, MARGIN, ORANGE, SMALL, TEXT
from coordinator.figures.wording import View, model_name, p_words, signed, significant, view_of
from coordinator.pooling.diagnostics import Influence, TrimFill, baujat, influence, trim_and_fill
from coordinator.pooling.further.refits import cumulative, leave_one_out
from coordinator.pooling.pool import PooledResult
from coordinator.pooling.rows import require_known
from shared.errors import EstimateRefusal, ParameterError, machine_failures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["KINDS", "DrawnFigure", "baujat_plot", "bubble", "draw", "funnel", "influence_panel", "refits"]

KINDS = ("leave-one-out", "cumulative", "funnel", "baujat", "influence", "bubble")
"""Kinds of figure that `draw` accepts."""


def draw(
    kind: str,
    result: PooledResult,
    *,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    contours: bool = False,
    moderator: tuple[str, Mapping[str, Any]] | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Draw one of `KINDS`.

    Args:
        kind: the kind; a cumulative figure adds the rows in the order of the result, and a funnel shows trim-and-fill.
        result: the pooled result.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
        contours: of a funnel, as of `funnel`.
        moderator: of a bubble plot, its name and label -> value.
    Raises: ParameterError: another kind or suffix, or a bubble plot of nothing; EstimateRefusal: too few sites for it.
    """
    require_known(kind, KINDS, "the figure")
    options: dict[str, Any] = {"title": title, "note": note, "path": path}
    if kind in ("leave-one-out", "cumulative"):
        return refits(result, kind, ratio=ratio, **options)  # type: ignore[arg-type]
    if kind == "funnel":
        return funnel(result, filled=trim_and_fill(result), contours=contours, ratio=ratio, **options)
    if kind == "bubble":
        _at_least(result, 3, "a bubble plot")
        if moderator is None:
            raise ParameterError("a bubble plot must have a moderator", given="none", next_step="Add --mods COLUMN.")
        return bubble(result, moderator[0], moderator[1], ratio=ratio, **options)
    if kind == "baujat":
        return baujat_plot(result, **options)
    return influence_panel(result, **options)


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
        result: the pooled result.
        kind: the kind of refits.
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
    # Of one row nothing is known about differences between rows.
    known = [("–", "–") if m.k == 1 else (significant(m.tau2), f"{m.I2:.0f} %") for m in [*models, result]]
    cells = [pair if random else pair[1:] for pair in known]
    ends = [(m.ci_lb, m.ci_ub) for m in [*models, result]]
    span = span_of([m.beta for m in [*models, result]], ends, view.null)
    how = f"Without one {result.unit}" if kind == "leave-one-out" else f"{result.units.capitalize()} added one by one"
    words = f"{how}: " + "; ".join(
        f"{label} {view.number(m.beta)} ({view.number(m.ci_lb)} to {view.number(m.ci_ub)})"
        for label, m in zip(labels, models, strict=True)
    )
    words += (
        f". All {result.k}: {view.number(result.beta)} ({view.number(result.ci_lb)} to {view.number(result.ci_ub)})."
    )

    foot = [] if kind == "leave-one-out" else [f"Each row pools its {result.unit} and all above it."]
    return ladder(
        LadderContent(
            models=[*models, result],
            labels=[*labels, model_name(result)],
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
        ),
        path=path,
    )


@machine_failures()
def funnel(
    result: PooledResult,
    *,
    filled: TrimFill | None = None,
    contours: bool = False,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Estimates against their standard errors, with the region that holds them when sites share one effect.

    Args:
        result: the pooled result.
        contours: shade by the p-value against no effect instead (Peters et al. 2008): sites that are missing where
            nothing is significant speak for a bias of publication, those missing elsewhere against it.
        filled: mirrored studies of trim-and-fill, drawn hollow; where it is off, its reason stands below.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
    Returns: gids ``site-0``, ``filled-0``, ``region``, ``contour-0``, ``pooled``, ``random``.
    Raises: EstimateRefusal: one site only; ParameterError: contours of an effect without a value of no effect.
    """
    _at_least(result, 2, "a funnel plot")
    view = view_of([result], ratio, "auto")
    if contours and view.null is None:
        raise ParameterError("contours must be of an effect that can be none", given=view.effect.lower())
    se = np.sqrt(np.array(result.vi))
    centre = result.fixed.beta
    half = -float(_normal_quantile((1 - result.level) / 2))
    extra = list(filled.filled_yi) if filled and filled.result else []
    extra_se = [math.sqrt(value) for value in filled.filled_vi] if filled and filled.result else []
    bottom = 1.08 * max([*se, *extra_se])
    reach = 1.06 * max([half * bottom, *(abs(y - centre) * 1.03 for y in [*result.yi, *extra])])
    span = (centre - reach, centre + reach)
    outside = [abs(y - centre) > half * s for y, s in zip(result.yi, se, strict=True)]
    named = [i for i in range(result.k) if result.k <= MANY or outside[i]]
    foot = _funnel_foot(result, view, filled, contours=contours, named=len(named))
    words = (
        f"Funnel plot of {result.k} {result.units} around {view.number(centre)}: "
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
        if contours and view.null is not None:
            _contours(axes, view.null, bottom, span)
        axes.fill(
            [centre - half * bottom, centre, centre + half * bottom],
            [bottom, 0, bottom],
            facecolor="none" if contours else BAND,
            edgecolor=GREY,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
            zorder=1,
            gid="region",
        )
        axes.plot([centre] * 2, [0, bottom], color=BLUE, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2, gid="pooled")
        if result.method != "FE":
            upright: dict[str, Any] = {"color": BLUE, "linewidth": 0.9, "linestyle": (0, (5, 3)), "zorder": 2}
            axes.plot([result.beta] * 2, [0, bottom], gid="random", **upright)
        for i, (y, s) in enumerate(zip(result.yi, se, strict=True)):
            axes.plot([y], [s], "o", color=BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=f"site-{i}")
        for i, (y, s) in enumerate(zip(extra, extra_se, strict=True)):
            axes.plot([y], [s], "D", markerfacecolor="white", markeredgecolor=ORANGE, markersize=5.5, gid=f"filled-{i}")
        _names(axes, list(result.yi), se.tolist(), result.labels, (wide, tall), only=named)
        effect_axis(axes, "x", span, view)
        y_axis(axes, "Standard error")
        return page.finish(words, title or "Funnel plot", path)


MANY = 20
"""Sites up to which a funnel names them all."""


def _funnel_foot(result: PooledResult, view: View, filled: TrimFill | None, *, contours: bool, named: int) -> list[str]:
    """Explanatory lines under a funnel plot, in which `named` of the sites are labelled."""
    region = f"{100 * result.level:g} %"
    what = "Within the dashed lines" if contours else "Shaded"
    foot = [
        f"{what}: where {region} of {result.units} would lie around the fixed effect (dotted) if nothing but chance "
        "parted them. Dashed upright: the random effect.",
        "With random effects more lie outside; an empty corner can have other causes than missing studies.",
    ]
    if contours:
        foot.insert(0, "Shaded by the p-value of a site against no effect: darker below 0.01, then 0.05, then 0.1.")
    if named < result.k:
        foot.append(f"Of {result.k} {result.units} those outside the lines are named.")
    if filled is not None:
        if filled.result is None:
            foot.append(f"Trim-and-fill: {filled.reason}.")
        else:
            m = filled.result
            foot.append(
                f"Trim-and-fill adds {filled.k0} on the {filled.side} (hollow): {view.number(m.beta)} "
                f"[{view.number(m.ci_lb)}, {view.number(m.ci_ub)}]. A sensitivity analysis, not a correction."
            )
    return foot


def _contours(axes: Axes, null: float, bottom: float, span: tuple[float, float]) -> None:
    """Bands of the p-value against no effect, lightest next to it."""
    for number, (p, shade) in enumerate(((0.1, "#dfe5eb"), (0.05, "#c8d1da"), (0.01, "#aebbc8"))):
        z = -float(_normal_quantile(p / 2))
        for way in (-1, 1):
            edge = span[0] if way < 0 else span[1]
            ends = [null, null + way * z * bottom, edge, edge]
            axes.fill(ends, [0, bottom, bottom, 0], facecolor=shade, linewidth=0, zorder=0.5, gid=f"contour-{number}")


@machine_failures()
def bubble(
    result: PooledResult,
    name: str,
    values: Mapping[str, Any],
    *,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Estimates against a moderator, bubbles by weight, with the line of the meta-regression and its interval.

    Args:
        name, values: the moderator: what it is called, and label -> number.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
    Returns: gids ``site-0``, ``line``, ``band``.
    Raises: ParameterError: values that are no numbers; EstimateRefusal: fewer than three sites with one.
    """
    from coordinator.pooling.subgroups import regressed

    try:
        known = {label: float(values[label]) for label in result.labels if values.get(label) is not None}
    except (TypeError, ValueError):
        raise ParameterError(
            "a bubble plot must have a moderator of numbers", given=repr(name), next_step="Pool levels by --subgroup."
        ) from None
    rows = [i for i, label in enumerate(result.labels) if label in known]
    if len(rows) < 3:
        raise EstimateRefusal("a bubble plot must have at least three sites with the moderator", given=f"{len(rows)}")
    x = np.array([known[result.labels[i]] for i in rows])
    y, v = np.array(result.yi)[rows], np.array(result.vi)[rows]
    labels = [result.labels[i] for i in rows]
    fit = regressed(result, {name: [known.get(label) for label in result.labels]}, rows)
    view = view_of([result], ratio, "auto")
    pad = 0.06 * (float(np.ptp(x)) or 1.0)
    span = (float(x.min()) - pad, float(x.max()) + pad)
    grid = np.linspace(*span, 60)
    if len(fit.terms) < 2:
        raise EstimateRefusal(
            "the moderator must differ between sites", given="; ".join(one.reason for one in fit.dropped)
        )
    drawn = [fit.predict(**{fit.terms[1]: float(at)}) for at in grid]
    line = [centre for centre, _, _ in drawn]
    lower = [centre if ends.lb is None else ends.lb for centre, ends, _ in drawn]
    upper = [centre if ends.ub is None else ends.ub for centre, ends, _ in drawn]
    ends = [*(y - 1.2 * np.sqrt(v).min()), *(y + 1.2 * np.sqrt(v).min()), *lower, *upper]
    rise = (min(ends), max(ends))
    slope = fit.beta[1]
    foot = [
        f"Line: meta-regression on {name}, {len(rows)} of {result.k} {result.units}; shaded: its "
        f"{100 * result.level:g} % interval. Area of a bubble: weight of its {result.unit}.",
        f"Per unit of {name}: {signed(slope, 4)} (on the scale of the analysis), {p_words(fit.pval[1])}.",
    ]
    words = f"Bubble plot of {len(rows)} sites against {name}: " + "; ".join(
        f"{label} at {significant(float(at))}: {view.number(float(one))}"
        for label, at, one in zip(labels, x, y, strict=True)
    )
    wide, tall = 5.6, 3.6
    with page_style():
        page = Page(wide + 0.95 + 2 * MARGIN, title, note, foot, rows=0, extra=tall, headed=False)
        axes = page.axes(MARGIN + 0.95, wide, span, rise)
        axes.fill_between(grid, lower, upper, facecolor=BAND, edgecolor="none", zorder=1, gid="band")
        axes.plot(grid, line, color=BLUE, linewidth=1.2, zorder=2, gid="line")
        if view.null is not None and rise[0] < view.null < rise[1]:
            axes.plot(span, [view.null] * 2, color=GREY, linewidth=0.9, zorder=1, gid="null")
        heaviest = max(result.weights[i] for i in rows)
        sizes = [max(4.0, 20.0 * math.sqrt(result.weights[i] / heaviest)) for i in rows]
        for place, (i, size) in enumerate(zip(rows, sizes, strict=True)):
            style: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": BLUE, "markeredgewidth": 1.3}
            axes.plot([x[place]], [y[place]], "o", markersize=size, zorder=4, gid=f"site-{i}", **style)
        _names(axes, x.tolist(), y.tolist(), labels, (wide, tall), radii=[size / 144 for size in sizes])
        name_axis(axes, "x", name)
        effect_axis(axes, "y", rise, view)
        return page.finish(words + ".", title or f"Bubble plot on {name}", path)


@machine_failures()
def baujat_plot(
    result: PooledResult, *, title: str = "", note: str = "", path: str | Path | None = None
) -> DrawnFigure:
    """Each site's share in heterogeneity against its influence on the pooled effect (Baujat et al. 2002).

    Returns: gids ``site-0``. Raises: EstimateRefusal: fewer than three sites.
    """
    _at_least(result, 3, "a Baujat plot")
    found = baujat(result)
    x, y = np.array(found.x), np.array(found.y)
    words = f"Baujat plot of {result.k} {result.units}: " + "; ".join(
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
        name_axis(axes, "x", "Share of a site in the heterogeneity Q")
        y_axis(axes, "Change of the pooled effect without it, squared")
        return page.finish(words + ".", title or "Baujat plot", path)


@machine_failures()
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
    words = f"Influence of {result.k} {result.units}. Influential: {', '.join(flagged) or 'none'}. " + "; ".join(
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
            pad = 0.1 * (high - low) or 0.1 * abs(high) or 0.5  # all 0: an axis that shows nothing else
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
    axes: Axes,
    xs: Sequence[float],
    ys: Sequence[float],
    labels: Sequence[str],
    inches: tuple[float, float],
    only: Sequence[int] | None = None,
    radii: Sequence[float] | None = None,
) -> None:
    """Names beside their points, each where it touches no point and no other name; left out where there is no room.

    Args:
        only: positions of the points that are named; all by default.
        radii: of the points, in inches.
    """
    from matplotlib.patheffects import withStroke

    wide, tall = inches
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    places = [((x - x0) / (x1 - x0) * wide, (y - y0) / (y1 - y0) * tall) for x, y in zip(xs, ys, strict=True)]
    wide_of = list(radii or [0.055] * len(places))
    taken = [(px - r, py - r, px + r, py + r) for (px, py), r in zip(places, wide_of, strict=True)]
    high = 0.13

    def free(box: tuple[float, float, float, float]) -> bool:
        if box[0] < 0 or box[2] > wide or box[1] < 0 or box[3] > tall:
            return False
        return not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)

    chosen = [(places[i], labels[i], wide_of[i] + 0.025) for i in (range(len(labels)) if only is None else only)]
    for (px, py), label, off in sorted(chosen, key=lambda item: -item[0][1]):
        width = text_width(label, SMALL)
        options: list[tuple[float, float]] = []
        for dy in (0.0, 0.1, -0.1, 0.17, -0.17, 0.28, -0.28, 0.4, -0.4):
            options += [(px + off, py + dy), (px - off - width, py + dy)]
        options[10:10] = [(px - width / 2, py + off + 0.07), (px - width / 2, py - off - 0.07)]
        for bx, by in options:
            box = (bx, by - high / 2, bx + width, by + high / 2)
            if not free(box):
                continue
            taken.append(box)

            def place(x: float, y: float) -> tuple[float, float]:
                return x0 + x / wide * (x1 - x0), y0 + y / tall * (y1 - y0)

            halo = [withStroke(linewidth=2.2, foreground="white")]  # lines that pass behind a name do not cross it
            style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "va": "center", "parse_math": False}
            axes.text(*place(bx, by), label, zorder=6, path_effects=halo, **style)
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
