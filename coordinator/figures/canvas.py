"""Common parts of figures: the page, measured text, axes and marks.

A figure takes results, never rows of data. Its page is laid out in inches from measured text: columns are as wide as
their widest cell, so nothing overlaps whatever the names are. Colours are Okabe and Ito's, and series differ in shape
or dashes as well. Every mark carries a gid, so that tests read coordinates and not pixels. The same call gives the
same bytes: no date, no random identifier. Letters stay letters, to be searched and edited. Each file holds its text
alternative. How large, in which font, resolution and greys: `coordinator.figures.style`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coordinator.figures.files import save
from coordinator.figures.style import (
    BAND,
    BLUE,
    GAP,
    GREY,
    INK,
    MARGIN,
    PLOT,
    ROW,
    RULE,
    SMALL,
    TEXT,
    TITLE,
    style,
)
from coordinator.figures.wording import View
from coordinator.pooling.pool import PooledResult
from shared.errors import ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = [
    "DrawnFigure",
    "Page",
    "axis_ticks",
    "darker",
    "draw_effect",
    "effect_axis",
    "ladder",
    "name_axis",
    "page_style",
    "placed",
    "span_of",
    "spread",
    "text_height",
    "text_width",
    "wrap",
    "y_axis",
]


def axis_ticks(low: float, high: float, view: View) -> list[tuple[float, str]]:
    """Places on the axis and their labels: round numbers as shown, none so close that they would touch."""
    first, last = view.show(low), view.show(high)
    place: Callable[[float], float]
    asked = list(style().ticks)
    if view.scale == "log":
        values, place = _rungs(first, last), math.log
    elif view.scale == "logit":
        inside = [value for value in _round(first, last, 6) if 0 < value < 1]
        values = _rungs(first, last) if last < 0.3 else inside
        if first < 0.02 and last > 0.98:  # nearly the whole of it: mirrored about a half
            small = [10.0**-k for k in range(1, 17, max(1, math.ceil(-math.log10(max(first, 1 - last, 1e-16)) / 3)))]
            values = [p for p in (*reversed(small), 0.5, *(1 - one for one in small)) if first <= p <= last]
        place = _logit
    elif view.scale == "fisher_z":
        values, place = [value for value in _round(first, last, 6) if -1 < value < 1], math.atanh
    else:
        values, place = _round(low, high, 5), float
    ticks: list[tuple[float, str]] = []
    free = -math.inf
    inside = [value for value in asked if first <= value <= last]
    for value in inside or values:
        text = _tick(value)
        centre, half = (place(value) - low) / (high - low) * PLOT, text_width(text, SMALL) / 2
        if centre - half > free:
            ticks.append((place(value), text))
            free = centre + half + 0.08
    return ticks


def _tick(value: float) -> str:
    """A number at an axis; decades that are far from 1 as powers."""
    decade = math.log10(abs(value)) if value else 0.0
    if abs(decade) >= 4.5 and abs(decade - round(decade)) < 1e-9:
        return "10" + f"{round(decade)}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return (f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.6g}").replace("-", "−")


def _round(low: float, high: float, count: int) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    # Steps of 1, 2, 2.5 and 5 meet the null of every scale; matplotlib's own 1.5 and 3 pass by a ratio of 1.
    places = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(value) for value in places if low <= value <= high]


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _rungs(first: float, last: float) -> list[float]:
    """Round values for a log axis from `first` to `last`, both positive."""
    low, high = math.log(max(first, 1e-300)), math.log(min(last, 1e300))
    if high - low < 0.8:  # nearly linear
        return [value for value in _round(first, last, 5) if value > 0]
    # Halves and doubles are read at a glance only near 1.
    near_one = [((1.0, 1.5), 2), ((1.0,), 2)] if first > 0.24 and last < 17 else []
    for rungs, base in [*near_one, ((1.0, 2.0, 5.0), 10), ((1.0, 3.0), 10)]:
        powers = range(math.floor(low / math.log(base)) - 1, math.ceil(high / math.log(base)) + 1)
        values = [rung * float(base) ** power for power in powers for rung in rungs]
        values = [value for value in values if first <= value <= last]
        if 3 <= len(values) <= 7:
            return values
    # Very wide: whole decades, so far apart that there are at least three and at most six, 1 among them if it is there.
    least, most = math.ceil(low / math.log(10) - 1e-9), math.floor(high / math.log(10) + 1e-9)
    step = max(1, math.ceil((most - least) / 5))
    start = least + (-least) % step
    return [10.0**decade for decade in range(start, most + 1, step)]


def placed(view: View) -> tuple[float, float] | None:
    """Ends of the axis that were asked for, on the analysis scale. Raises: ParameterError: not on the scale."""
    ends = style().xlim
    if ends is None:
        return None
    ways: dict[str, Callable[[float], float]] = {"log": math.log, "logit": _logit, "fisher_z": math.atanh}
    try:
        low, high = (ways.get(view.scale, float)(end) for end in ends)
    except (ValueError, ZeroDivisionError):
        raise ParameterError(
            f"the ends of an axis must be values that a {view.effect.lower()} can have",
            given=f"{ends[0]:g} and {ends[1]:g}",
        ) from None
    return low, high


def darker(colour: str, factor: float) -> str:
    """A colour of the same hue for text and thin lines."""
    return "#" + "".join(f"{int(int(colour[i : i + 2], 16) * factor):02x}" for i in (1, 3, 5))


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a text in inches."""
    return _width(text, size, bold, style().font) if text else 0.0


@lru_cache(maxsize=4096)
def _width(text: str, size: float, bold: bool, font: str) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    properties = FontProperties(family=font, size=size, weight="bold" if bold else "normal")
    return float(TextToPath().get_text_width_height_descent(text, properties, False)[0]) / 72


@lru_cache(maxsize=256)
def _heights(letter: str, font: str) -> tuple[float, float]:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    _, height, below = TextToPath().get_text_width_height_descent(letter, FontProperties(family=font, size=72), False)
    return float(height - below), float(below)


def text_height(letter: str) -> tuple[float, float]:
    """How far a letter of 72 points reaches above its line and below it, in points."""
    return _heights(letter, style().font)


def wrap(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Lines of a text that are no wider than `width` inches."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, bold) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@dataclass(frozen=True)
class DrawnFigure:
    """A figure and its text alternative."""

    figure: Figure
    words: str


# -- the page ------------------------------------------------------------------------------------------------
class Page:
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
        below: float = 0.0,
        headed: bool = True,
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width = max(width, 4.5)
        body = self.width - 2 * MARGIN
        heads = [(line, True) for line in (wrap(title, TITLE, body * 0.95, bold=True) if title else [])]
        heads += [(line, False) for line in (wrap(note, TEXT, body) if note else [])]
        start = MARGIN * 0.9
        y = start + sum(0.25 if bold else 0.2 for _, bold in heads) + (0.1 if heads else 0)
        self.top = y + (0.3 if headed else 0.05)
        self._first = self.top + 0.06
        self._extra = extra if rows else 0.0
        self._rows = rows
        self.bottom = self._first + rows * ROW + extra + (0.06 if rows else 0)
        lines = [line for text in foot for line in wrap(text, SMALL, body)]
        self.under = self.bottom + 0.62  # below the axis' label: the room asked for, then the footer
        y_foot = self.under + below
        height = y_foot + 0.175 * len(lines) + MARGIN * 0.75
        self.height = height
        self.figure = Figure(figsize=(self.width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
        self.page = self.figure.add_axes((0, 0, 1, 1))
        self.page.set(xlim=(0, self.width), ylim=(height, 0))
        self.page.axis("off")
        for line, bold in heads:
            step = 0.25 if bold else 0.2
            style: dict[str, Any] = {"fontsize": TITLE, "weight": "bold"} if bold else {"color": GREY}
            self.say(MARGIN, start + step / 2, line, **style)
            start += step
        if headed:
            ends = [MARGIN, self.width - MARGIN]
            self.page.plot(ends, [self.top, self.top], color=INK, linewidth=0.9, solid_capstyle="butt")
        for i, line in enumerate(lines):
            self.say(MARGIN, y_foot + 0.175 * (i + 0.5), line, fontsize=SMALL, color=GREY)

    def say(self, x: float, y: float, text: str, **more: Any) -> None:
        """A text on the page, at inches."""
        style: dict[str, Any] = {"fontsize": TEXT, "color": INK, "va": "center_baseline", "ha": "left"}
        self.page.text(x, y, text, **(style | {"parse_math": False} | more))

    def heading(self, x: float, text: str, **more: Any) -> None:
        """The head of a column."""
        self.say(x, self.top - 0.13, text, **({"weight": "bold"} | more))

    def centre(self, row: int) -> float:
        """Middle of a row; the last one stands apart when the page was given room for it."""
        apart = self._extra if row == self._rows - 1 else 0.0
        return self._first + ROW * (row + 0.5) + apart

    def band(self, row: int, right: float) -> None:
        """A grey band behind a row."""
        middle = self.centre(row)
        ends = (MARGIN / self.width, right / self.width)
        self.page.axhspan(middle - ROW / 2, middle + ROW / 2, *ends, facecolor=BAND, linewidth=0)

    def rule(self, y: float, right: float) -> None:
        """A grey line across the page."""
        self.page.plot([MARGIN, right], [y, y], color=RULE, linewidth=0.8, solid_capstyle="butt")

    def axes(
        self, left: float, width: float, span: tuple[float, float], rise: tuple[float, float] | None = None
    ) -> Axes:
        """Axes over the rows, from `left`, `width` wide; with `rise` they have a vertical scale too."""
        box = (left / self.width, 1 - self.bottom / self.height, width / self.width, 0.0)
        axes = self.figure.add_axes((*box[:3], (self.bottom - self.top) / self.height))
        axes.set(xlim=span, ylim=rise or (self.bottom, self.top))
        axes.patch.set_alpha(0)
        if rise is None:
            axes.set_yticks([])
        for edge in ("top", "right", *(["left"] if rise is None else [])):
            axes.spines[edge].set_visible(False)
        for edge in ("bottom", "left"):
            axes.spines[edge].set(linewidth=0.8, color=INK)
        return axes

    def finish(self, words: str, title: str, path: str | Path | None) -> DrawnFigure:
        """Write the file, if one is asked for."""
        if path is not None:
            save(self.figure, path, title=title, description=words)
        return DrawnFigure(self.figure, words)


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places near those wanted, at least `apart` from each other, between `low` and `high` where there is room.

    >>> spread([1.0, 1.05, 3.0], 0.2, 0.0, 3.0)
    [0.925, 1.125, 3.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # centre, members: those that touch move together
    for i in order:
        groups.append([wanted[i], 1])
        while True:
            for group in groups:
                half = apart * (group[1] - 1) / 2
                group[0] = max(min(group[0], high - half), low + half)
            touching = [
                k
                for k in range(1, len(groups))
                if groups[k][0] - groups[k - 1][0] < apart * (groups[k][1] + groups[k - 1][1]) / 2 - 1e-9
            ]
            if not touching:
                break
            left, right = groups[touching[0] - 1], groups.pop(touching[0])
            left[0] = (left[0] * left[1] + right[0] * right[1]) / (left[1] + right[1])
            left[1] += right[1]
    places = [centre + apart * (j - (count - 1) / 2) for centre, count in groups for j in range(int(count))]
    out = [0.0] * len(wanted)
    for i, place in zip(order, places, strict=True):
        out[i] = round(place, 6)
    return out


def page_style() -> Any:
    """Context: matplotlib settings while a page is drawn."""
    import matplotlib as mpl

    return mpl.rc_context({"font.family": style().font, "axes.unicode_minus": True})


def draw_effect(
    axes: Axes, y: float, model: PooledResult, span: tuple[float, float], *, diamond: bool, gid: str
) -> None:
    """An estimate with its whisker, or a diamond; an arrow where the axis ends before the interval.

    Args:
        y: vertical position, in units of the axes' rows.
        model: the estimate and its interval, on the analysis scale.
        span: ends of the axis, on the same scale.
        diamond: True to draw a diamond in place of a point and its whisker.
        gid: id of the estimate in an SVG; ``-ci`` and ``-clipped`` are added for whisker and arrow.
    """
    from matplotlib.patches import Polygon

    low, high = span
    start, end = max(model.ci_lb, low), min(model.ci_ub, high)
    if diamond:
        corners = [(start, y), (model.beta, y - 0.078), (end, y), (model.beta, y + 0.078)]
        axes.add_patch(Polygon(corners, closed=True, facecolor=BLUE, edgecolor=BLUE, linewidth=1.1, zorder=4, gid=gid))
    else:
        axes.plot([start, end], [y, y], color=INK, linewidth=1.2, solid_capstyle="butt", zorder=3, gid=f"{gid}-ci")
        axes.plot([model.beta], [y], "o", color=BLUE, markersize=6, markeredgewidth=0, zorder=4, gid=gid)
    tip = (high - low) * 0.09 / PLOT
    for clipped, edge, way in ((model.ci_lb < low, low, -1), (model.ci_ub > high, high, 1)):
        if clipped:
            arrow = [(edge, y - 0.042), (edge + way * tip, y), (edge, y + 0.042)]
            face = BLUE if diamond else INK
            axes.add_patch(
                Polygon(arrow, closed=True, facecolor=face, linewidth=0, zorder=5, clip_on=False, gid=f"{gid}-clipped")
            )


@dataclass(frozen=True, kw_only=True)
class LadderContent:
    """Content of a figure of pooled results one below the other.

    Args:
        models, labels: one per row; the last is the result itself.
        first, heads: head of the labels, and of the columns right of the plot; `cells` has one text per row and head.
        span: ends of the axis.
        foot, words: lines below, and the text alternative.
        called: title of the file where the figure has none.
    """

    models: Sequence[PooledResult]
    labels: Sequence[str]
    first: str
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    span: tuple[float, float]
    view: View
    foot: Sequence[str]
    words: str
    title: str
    called: str
    note: str


def ladder(content: LadderContent, path: str | Path | None) -> DrawnFigure:
    """Pooled results under each other, the last one apart and as a diamond.

    Returns: gids ``refit-0`` and ``refit-0-ci`` for each row, ``random``, ``null``, ``pooled``.
    """
    models, labels, view, span = content.models, content.labels, content.view, content.span
    heads, cells = content.heads, content.cells
    last, result = len(models) - 1, models[-1]
    left = max(text_width(text, TEXT) for text in [*labels[:-1], content.first])
    left = max(left, text_width(labels[-1], TEXT, True))
    widths = [max(text_width(h, TEXT, True), *(text_width(row[i], TEXT) for row in cells)) for i, h in enumerate(heads)]
    numbers = [(view.number(m.beta), f"[{view.number(m.ci_lb)},", f"{view.number(m.ci_ub)}]") for m in models]
    parts = [max(text_width(row[i], TEXT) for row in numbers) for i in range(3)]
    estimate = f"{view.effect} [{100 * result.level:g} % CI]"
    block = max(sum(parts) + 0.12, text_width(estimate, TEXT, True))
    plot = MARGIN + left + GAP
    stops, at = [], plot + PLOT + GAP * 0.9  # an arrow at the end of the axis needs room
    for width in widths:
        stops.append(at + width)
        at += width + GAP
    right = at + block
    with page_style():
        page = Page(right + MARGIN, content.title, content.note, content.foot, rows=len(models), extra=0.12)
        page.heading(MARGIN, content.first)
        for stop, head in zip(stops, heads, strict=True):
            page.heading(stop, head, ha="right")
        page.heading(right, estimate, ha="right")
        axes = page.axes(plot, PLOT, span)
        if view.null is not None and span[0] <= view.null <= span[1]:
            axes.plot([view.null] * 2, [page.top, page.bottom], color=GREY, linewidth=0.9, zorder=1, gid="null")
        dots: dict[str, Any] = {"color": BLUE, "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
        axes.plot([result.beta] * 2, [page.top, page.centre(last)], gid="pooled", **dots)
        page.rule(page.centre(last) - ROW / 2 - 0.06, right)
        for i, model in enumerate(models):
            y, own = page.centre(i), i == last
            if i % 2 and not own:
                page.band(i, right)
            page.say(MARGIN, y, labels[i], weight="bold" if own else "normal")
            for stop, cell in zip(stops, cells[i], strict=True):
                page.say(stop, y, cell, ha="right")
            ends_at = (right - parts[2] - parts[1] - 0.12, right - parts[2] - 0.06, right)
            for x, text in zip(ends_at, numbers[i], strict=True):
                page.say(x, y, text, ha="right")
            draw_effect(axes, y, model, span, diamond=own, gid="random" if own else f"refit-{i}")
        effect_axis(axes, "x", span, view)
        return page.finish(content.words, content.title or content.called, path)


def span_of(centres: Sequence[float], ends: Sequence[tuple[float, float]], null: float | None) -> tuple[float, float]:
    """Ends of the axis; a few very wide intervals (two sites left) are clipped rather than squeeze all others."""
    halves = sorted((ub - lb) / 2 for lb, ub in ends)
    typical = halves[len(halves) // 2]
    low, high = min(centres) - 2.2 * typical, max(centres) + 2.2 * typical
    first, last = min(lb for lb, _ in ends), max(ub for _, ub in ends)
    low, high = max(low, first), min(high, last)
    if last - first <= 1.6 * (high - low):  # little would be gained by clipping
        low, high = first, last
    low, high = min(low, ends[-1][0]), max(high, ends[-1][1])  # the last is the result itself: never clipped
    if null is not None and low - 2 * (high - low) < null < high + 2 * (high - low):
        low, high = min(low, null), max(high, null)
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def name_axis(axes: Axes, which: Literal["x", "y"], name: str) -> None:
    """Name an axis, and draw its ticks as all figures have them."""
    axes.tick_params(axis=which, labelsize=SMALL, colors=INK, length=3, width=0.8, pad=3)
    label, pad = (axes.set_xlabel, 4) if which == "x" else (axes.set_ylabel, 6)
    label(name, fontsize=TEXT, color=INK, labelpad=pad, parse_math=False)


def effect_axis(axes: Axes, which: Literal["x", "y"], span: tuple[float, float], view: View) -> None:
    """The axis of effects, with the labels of its scale."""
    ticks = axis_ticks(*span, view)
    places, texts = [place for place, _ in ticks], [text for _, text in ticks]
    _ = axes.set_xticks(places, texts) if which == "x" else axes.set_yticks(places, texts)
    name_axis(axes, which, view.name)


def y_axis(axes: Axes, name: str) -> None:
    """A plain vertical axis."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    name_axis(axes, "y", name)
