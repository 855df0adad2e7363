"""The figures beside the forest plot: refits, funnel, Baujat and influence, in its visual language.

As there, a figure takes results and never rows of data, the page is laid out in inches from measured text, series
differ in shape as well as in colour, every mark carries a gid, and the same call gives the same bytes. Each figure has
a text alternative: it is written into the file and returned by `words`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coordinator.diagnostics import Influence, TrimFill, baujat, influence
from coordinator.figures import (
    _BAND,
    _FONT,
    _GREY,
    _INK,
    _RULE,
    _SERIES,
    _SMALL,
    _TEXT,
    _TITLE,
    _model_name,
    _signed,
    _significant,
    _ticks,
    _View,
    _view,
    _width,
    _wrap,
    save,
)
from coordinator.pooling import PooledResult, cumulative, leave_one_out
from shared.errors import EstimateRefusal, ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "Drawn", "baujat_plot", "draw", "funnel", "influence_panel", "refits"]

KINDS = ("leave-one-out", "cumulative", "funnel", "baujat", "influence")
"""What `draw` knows."""

_ROW, _MARGIN, _GAP, _PLOT = 0.27, 0.28, 0.24, 3.5
_BLUE, _ORANGE = _SERIES[0][0], _SERIES[1][0]


@dataclass(frozen=True)
class Drawn:
    """A figure and its text alternative."""

    figure: Figure
    words: str


def draw(
    kind: str,
    result: PooledResult,
    *,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    filled: TrimFill | None = None,
    path: str | Path | None = None,
) -> Drawn:
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
) -> Drawn:
    """The pooled effect without each site in turn, or as sites are added.

    Args:
        result: what was pooled.
        kind: which refits.
        order: for ``cumulative``, positions from 0 in order of arrival; the result's order when None.
        title, note, ratio, path: as in `coordinator.figures.forest`.
    Returns: gids ``refit-0`` and ``refit-0-ci`` for each row, ``random``, ``null``, ``pooled``.
    Raises: EstimateRefusal: one site only.
    """
    _at_least(result, 2, "a refit")
    rows = leave_one_out(result) if kind == "leave-one-out" else cumulative(result, order)
    view = _view([result], ratio, "auto")
    first = "Left out" if kind == "leave-one-out" else "Added"
    labels = [label for label, _ in rows]
    models = [row for _, row in rows]
    random = result.method != "FE"
    heads = ("τ²", "I²") if random else ("I²",)
    cells = [((_significant(m.tau2),) if random else ()) + (f"{m.I2:.0f} %",) for m in [*models, result]]
    ends = [(m.ci_lb, m.ci_ub) for m in [*models, result]]
    span = _span([m.beta for m in [*models, result]], ends, view.null)
    words = f"{'Without one site' if kind == 'leave-one-out' else 'Sites added one by one'}: " + "; ".join(
        f"{label} {view.number(m.beta)} ({view.number(m.ci_lb)} to {view.number(m.ci_ub)})"
        for label, m in zip(labels, models, strict=True)
    )
    words += (
        f". All {result.k}: {view.number(result.beta)} ({view.number(result.ci_lb)} to {view.number(result.ci_ub)})."
    )

    left = max(_width(text, _TEXT) for text in [*labels, first])
    left = max(left, _width(_model_name(result), _TEXT, True))
    widths = [max(_width(h, _TEXT, True), *(_width(row[i], _TEXT) for row in cells)) for i, h in enumerate(heads)]
    numbers = [
        (view.number(m.beta), f"[{view.number(m.ci_lb)},", f"{view.number(m.ci_ub)}]") for m in [*models, result]
    ]
    parts = [max(_width(row[i], _TEXT, True) for row in numbers) for i in range(3)]
    estimate = f"{'Ratio' if view.name.startswith('Ratio') else 'Estimate'} [{100 * result.level:g} % CI]"
    block = max(sum(parts) + 0.12, _width(estimate, _TEXT, True))
    plot = _MARGIN + left + _GAP
    stops, at = [], plot + _PLOT + _GAP * 0.6
    for width in widths:
        stops.append(at + width)
        at += width + _GAP
    right = at + block
    foot = [] if kind == "leave-one-out" else ["Each row pools its site and all above it."]
    foot += list(result.notes)
    with _style():
        page = _Page(right + _MARGIN, title, note, foot, rows=len(rows) + 1, extra=0.12)
        page.heading(_MARGIN, first)
        for stop, head in zip(stops, heads, strict=True):
            page.heading(stop, head, ha="right")
        page.heading(right, estimate, ha="right")
        axes = page.axes(plot, _PLOT, span)
        if view.null is not None and span[0] <= view.null <= span[1]:
            axes.plot([view.null] * 2, [page.top, page.bottom], color=_GREY, linewidth=0.9, zorder=1, gid="null")
        dots: dict[str, Any] = {"color": _BLUE, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
        axes.plot([result.beta] * 2, [page.top, page.centre(len(rows))], gid="pooled", **dots)
        page.rule(page.centre(len(rows)) - _ROW / 2 - 0.06, right)
        for i, model in enumerate([*models, result]):
            y, own = page.centre(i), i == len(rows)
            if i % 2 and not own:
                page.band(i, right)
            label = _model_name(result) if own else labels[i]
            page.say(_MARGIN, y, label, weight="bold" if own else "normal")
            for stop, cell in zip(stops, cells[i], strict=True):
                page.say(stop, y, cell, ha="right")
            ends_at = (right - parts[2] - parts[1] - 0.12, right - parts[2] - 0.06, right)
            for x, text in zip(ends_at, numbers[i], strict=True):
                page.say(x, y, text, ha="right", weight="bold" if own else "normal")
            _effect(axes, y, model, span, diamond=own, gid="random" if own else f"refit-{i}")
        _x_axis(axes, span, view)
        return page.finish(words, title or f"{first}: pooled estimates", path)


def funnel(
    result: PooledResult,
    *,
    filled: TrimFill | None = None,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> Drawn:
    """Estimates against their standard errors, with the region that holds them when sites share one effect.

    Args:
        result: what was pooled.
        filled: mirrored studies of trim-and-fill, drawn hollow; where it is off, its reason stands below.
        title, note, ratio, path: as in `coordinator.figures.forest`.
    Returns: gids ``site-0``, ``filled-0``, ``region``, ``pooled``.
    Raises: EstimateRefusal: one site only.
    """
    _at_least(result, 2, "a funnel plot")
    view = _view([result], ratio, "auto")
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
            f"{label} {view.number(y)}, standard error {_significant(float(s))}"
            for label, y, s in zip(result.labels, result.yi, se, strict=True)
        )
        + ". "
        + " ".join(foot[2:])
    ).strip()
    wide, tall = 5.6, 3.6
    with _style():
        page = _Page(wide + 0.75 + 2 * _MARGIN, title, note, foot, rows=0, extra=tall, headed=False)
        axes = page.axes(_MARGIN + 0.75, wide, span, (bottom, 0.0))
        axes.fill(
            [centre - half * bottom, centre, centre + half * bottom],
            [bottom, 0, bottom],
            facecolor=_BAND,
            edgecolor=_GREY,
            linewidth=0.8,
            linestyle=(0, (4, 3)),
            zorder=1,
            gid="region",
        )
        axes.plot([centre] * 2, [0, bottom], color=_BLUE, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2, gid="pooled")
        for i, (y, s) in enumerate(zip(result.yi, se, strict=True)):
            axes.plot([y], [s], "o", color=_BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=f"site-{i}")
        for i, (y, s) in enumerate(zip(extra, extra_se, strict=True)):
            axes.plot(
                [y], [s], "D", markerfacecolor="white", markeredgecolor=_ORANGE, markersize=5.5, gid=f"filled-{i}"
            )
        _names(axes, list(result.yi), se.tolist(), result.labels, (wide, tall))
        _x_axis(axes, span, view, wide)
        _y_axis(axes, "Standard error")
        return page.finish(words, title or "Funnel plot", path)


def baujat_plot(result: PooledResult, *, title: str = "", note: str = "", path: str | Path | None = None) -> Drawn:
    """Each site's share in heterogeneity against its influence on the pooled effect (Baujat et al. 2002).

    Returns: gids ``site-0``. Raises: EstimateRefusal: fewer than three sites.
    """
    _at_least(result, 3, "a Baujat plot")
    found = baujat(result)
    x, y = np.array(found.x), np.array(found.y)
    words = f"Baujat plot of {result.k} sites: " + "; ".join(
        f"{label}: share in heterogeneity {_significant(a)}, influence {_significant(b)}"
        for label, a, b in zip(found.labels, found.x, found.y, strict=True)
    )
    wide, tall = 5.6, 3.6
    foot = ["Sites at the upper right differ from the others and move the pooled effect."]
    with _style():
        page = _Page(wide + 0.75 + 2 * _MARGIN, title, note, foot, rows=0, extra=tall, headed=False)
        span, rise = (0.0, 1.12 * max(float(x.max()), 1e-12)), (0.0, 1.1 * max(float(y.max()), 1e-12))
        axes = page.axes(_MARGIN + 0.75, wide, (span[0] - 0.02 * span[1], span[1]), (rise[0] - 0.02 * rise[1], rise[1]))
        for i in range(result.k):
            axes.plot([x[i]], [y[i]], "o", color=_BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=f"site-{i}")
        _names(axes, x.tolist(), y.tolist(), found.labels, (wide, tall))
        axes.tick_params(axis="x", labelsize=_SMALL, colors=_INK, length=3, width=0.8, pad=3)
        axes.set_xlabel("Share in heterogeneity (squared Pearson residual)", fontsize=_TEXT, color=_INK, labelpad=4)
        _y_axis(axes, "Influence on the pooled effect")
        return page.finish(words + ".", title or "Baujat plot", path)


def influence_panel(result: PooledResult, *, title: str = "", note: str = "", path: str | Path | None = None) -> Drawn:
    """What leaving each site out would change, one column per measure; influential sites in orange, with a diamond.

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
        f"{label}: residual {_signed(found.rstudent[i], 2)}, Cook's distance {_significant(found.cook_d[i])}"
        for i, label in enumerate(found.labels)
    )
    panel = 1.12
    left = max(_width(label, _TEXT, True) for label in (*found.labels, "Site"))
    right = _MARGIN + left + len(columns) * (panel + _GAP)
    foot = [
        "Influential (orange diamonds): |DFFITS| > 3√(1/(K − 1)), Cook's distance beyond the median of its χ², "
        "leverage > 3/K, or a change of more than one standard error.",
        "Dotted: no influence, or the value with all sites.",
    ]
    with _style():
        page = _Page(right + _MARGIN, title, note, foot, rows=result.k)
        page.heading(_MARGIN, "Site")
        for i, (label, flag) in enumerate(zip(found.labels, found.influential, strict=True)):
            if i % 2:
                page.band(i, right)
            page.say(_MARGIN, page.centre(i), label, weight="bold" if flag else "normal")
        for j, (name, head, base) in enumerate(columns):
            start = _MARGIN + left + _GAP + j * (panel + _GAP)
            values = list(getattr(found, name))
            low, high = min([*values, base or 0.0]), max([*values, base or 0.0])
            pad = 0.1 * (high - low) or 0.1 * max(abs(high), 1e-12)
            page.heading(start + panel / 2, head, ha="center")
            axes = page.axes(start, panel, (low - pad, high + pad))
            if base is not None:
                dots: dict[str, Any] = {"color": _GREY, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
                axes.plot([base] * 2, [page.top, page.bottom], **dots)
            _dots(page, axes, found, name, values)
            _few_ticks(axes)
        return page.finish(words + ".", title or "Influence", path)


# -- the page ------------------------------------------------------------------------------------------------
class _Page:
    """A page in inches, y downwards: headings, a ruled table of rows, an axis below, and a footer."""

    def __init__(
        self,
        width: float,
        title: str,
        note: str,
        foot: Sequence[str],
        *,
        rows: int,
        extra: float = 0.0,
        headed: bool = True,
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width = max(width, 4.5)
        body = self.width - 2 * _MARGIN
        heads = [(line, True) for line in (_wrap(title, _TITLE, body * 0.95, bold=True) if title else [])]
        heads += [(line, False) for line in (_wrap(note, _TEXT, body) if note else [])]
        start = _MARGIN * 0.9
        y = start + sum(0.25 if bold else 0.2 for _, bold in heads) + (0.1 if heads else 0)
        self.top = y + (0.3 if headed else 0.05)
        self._first = self.top + 0.06
        self._extra = extra if rows else 0.0
        self._rows = rows
        self.bottom = self._first + rows * _ROW + extra + (0.06 if rows else 0)
        lines = [line for text in foot for line in _wrap(text, _SMALL, body)]
        y_foot = self.bottom + 0.62
        height = y_foot + 0.175 * len(lines) + _MARGIN * 0.75
        self.height = height
        self.figure = Figure(figsize=(self.width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
        self.page = self.figure.add_axes((0, 0, 1, 1))
        self.page.set(xlim=(0, self.width), ylim=(height, 0))
        self.page.axis("off")
        for line, bold in heads:
            step = 0.25 if bold else 0.2
            style: dict[str, Any] = {"fontsize": _TITLE, "weight": "bold"} if bold else {"color": _GREY}
            self.say(_MARGIN, start + step / 2, line, **style)
            start += step
        if headed:
            ends = [_MARGIN, self.width - _MARGIN]
            self.page.plot(ends, [self.top, self.top], color=_INK, linewidth=0.9, solid_capstyle="butt")
        for i, line in enumerate(lines):
            self.say(_MARGIN, y_foot + 0.175 * (i + 0.5), line, fontsize=_SMALL, color=_GREY)

    def say(self, x: float, y: float, text: str, **more: Any) -> None:
        style: dict[str, Any] = {"fontsize": _TEXT, "color": _INK, "va": "center_baseline", "ha": "left"}
        self.page.text(x, y, text, **(style | {"parse_math": False} | more))

    def heading(self, x: float, text: str, **more: Any) -> None:
        self.say(x, self.top - 0.13, text, **({"weight": "bold"} | more))

    def centre(self, row: int) -> float:
        """Middle of a row; the last one stands apart when the page was given room for it."""
        apart = self._extra if row == self._rows - 1 else 0.0
        return self._first + _ROW * (row + 0.5) + apart

    def band(self, row: int, right: float) -> None:
        middle = self.centre(row)
        ends = (_MARGIN / self.width, right / self.width)
        self.page.axhspan(middle - _ROW / 2, middle + _ROW / 2, *ends, facecolor=_BAND, linewidth=0)

    def rule(self, y: float, right: float) -> None:
        self.page.plot([_MARGIN, right], [y, y], color=_RULE, linewidth=0.8, solid_capstyle="butt")

    def axes(
        self, left: float, width: float, span: tuple[float, float], rise: tuple[float, float] | None = None
    ) -> Axes:
        box = (left / self.width, 1 - self.bottom / self.height, width / self.width, 0.0)
        axes = self.figure.add_axes((*box[:3], (self.bottom - self.top) / self.height))
        axes.set(xlim=span, ylim=rise or (self.bottom, self.top))
        axes.patch.set_alpha(0)
        if rise is None:
            axes.set_yticks([])
        for edge in ("top", "right", *(["left"] if rise is None else [])):
            axes.spines[edge].set_visible(False)
        for edge in ("bottom", "left"):
            axes.spines[edge].set(linewidth=0.8, color=_INK)
        return axes

    def finish(self, words: str, title: str, path: str | Path | None) -> Drawn:
        if path is not None:
            save(self.figure, path, title=title, description=words)
        return Drawn(self.figure, words)


def _style() -> Any:
    import matplotlib as mpl

    return mpl.rc_context({"font.family": _FONT, "axes.unicode_minus": True})


def _effect(axes: Axes, y: float, model: PooledResult, span: tuple[float, float], *, diamond: bool, gid: str) -> None:
    from matplotlib.patches import Polygon

    low, high = span
    start, end = max(model.ci_lb, low), min(model.ci_ub, high)
    if diamond:
        corners = [(start, y), (model.beta, y - 0.078), (end, y), (model.beta, y + 0.078)]
        axes.add_patch(
            Polygon(corners, closed=True, facecolor=_BLUE, edgecolor=_BLUE, linewidth=1.1, zorder=4, gid=gid)
        )
    else:
        axes.plot([start, end], [y, y], color=_INK, linewidth=1.2, solid_capstyle="butt", zorder=3, gid=f"{gid}-ci")
        axes.plot([model.beta], [y], "o", color=_BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=gid)
    tip = (high - low) * 0.09 / _PLOT
    for clipped, edge, way in ((model.ci_lb < low, low, -1), (model.ci_ub > high, high, 1)):
        if clipped:
            arrow = [(edge, y - 0.042), (edge + way * tip, y), (edge, y + 0.042)]
            face = _BLUE if diamond else _INK
            axes.add_patch(
                Polygon(arrow, closed=True, facecolor=face, linewidth=0, zorder=5, clip_on=False, gid=f"{gid}-clipped")
            )


def _span(centres: Sequence[float], ends: Sequence[tuple[float, float]], null: float | None) -> tuple[float, float]:
    """Ends of the axis; a few very wide intervals (two sites left) are clipped rather than squeeze all others."""
    halves = sorted((ub - lb) / 2 for lb, ub in ends)
    typical = halves[len(halves) // 2]
    low, high = min(centres) - 2.2 * typical, max(centres) + 2.2 * typical
    low, high = max(low, min(lb for lb, _ in ends)), min(high, max(ub for _, ub in ends))
    if null is not None and low - 2 * (high - low) < null < high + 2 * (high - low):
        low, high = min(low, null), max(high, null)
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def _x_axis(axes: Axes, span: tuple[float, float], view: _View, wide: float = _PLOT) -> None:
    ticks = _ticks(*span, view)
    axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="x", labelsize=_SMALL, colors=_INK, length=3, width=0.8, pad=3)
    axes.set_xlabel(view.name, fontsize=_TEXT, color=_INK, labelpad=4, parse_math=False)


def _y_axis(axes: Axes, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="y", labelsize=_SMALL, colors=_INK, length=3, width=0.8, pad=3)
    axes.set_ylabel(name, fontsize=_TEXT, color=_INK, labelpad=6, parse_math=False)


def _few_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(3, prune=None))
    axes.tick_params(axis="x", labelsize=_SMALL - 1, colors=_INK, length=3, width=0.8, pad=3)


def _dots(page: _Page, axes: Axes, found: Influence, name: str, values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        colour, marker = (_ORANGE, "D") if found.influential[i] else (_BLUE, "o")
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
        width = _width(label, _SMALL)
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

            axes.text(*place(bx, by), label, fontsize=_SMALL, color=_INK, va="center", parse_math=False, zorder=6)
            if abs(by - py) > 0.2:  # far from its point: a thin line shows whose name it is
                end = bx if bx > px else bx + width
                (xa, ya), (xb, yb) = place(px, py), place(end, by)
                axes.plot([xa, xb], [ya, yb], color=_GREY, linewidth=0.6, zorder=2)
            break


def _normal_quantile(p: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(p))


def _at_least(result: PooledResult, least: int, what: str) -> None:
    if result.k < least:
        raise EstimateRefusal(
            f"{what} must have at least {least} sites", given=f"{result.k}", next_step="Wait for more releases."
        )
