"""Layout and drawing of the rows of a forest plot. Lengths are inches, from the upper left corner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from coordinator.figures.canvas import axis_ticks, darker, placed, text_height, text_width, wrap
from coordinator.figures.forest_rows import ForestLane, ForestRow, between, footer, meanings
from coordinator.figures.style import BAND, GAP, GREY, INK, LANE, MARGIN, PLOT, RULE, SERIES, SMALL, TEXT, TITLE
from coordinator.figures.wording import View
from coordinator.pooling.pool import PooledResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from coordinator.pooling.subgroups import Subgroups

__all__ = ["ForestContent", "ForestPage"]

ALARM = "#9b1c1c"
_PARAGRAPH = 0.07
_LINE = 0.175
_DIGITS = frozenset("0123456789.,−[] %")
"""Letters of numbers: each stands as high alone as among others."""
_OVER_COLUMNS = ("diamond", "group diamond", "prediction", "group")
"""Rows whose label runs over the columns; "total" has cells."""


@dataclass(frozen=True)
class ForestContent:
    """All that a forest plot shows; the arguments of `coordinator.figures.forest.forest`, rows made of them."""

    series: Mapping[str, PooledResult]
    view: View
    headings: tuple[str, ...]
    rows: Sequence[ForestRow]
    title: str
    xlabel: str
    note: str
    groups: Subgroups | None
    by: str
    favours: tuple[str, str] | None
    whole: Mapping[str, PooledResult]
    warnings: Sequence[str]

    @property
    def results(self) -> list[PooledResult]:
        """One of each series, in order."""
        return list(self.series.values())

    @property
    def several(self) -> bool:
        """True if it compares several results, each with a colour and a lane of its own."""
        return len(self.series) > 1

    @property
    def lanes(self) -> list[ForestLane]:
        """Lanes of all rows, from top to bottom."""
        return [lane for row in self.rows for lane in row.lanes]

    @cached_property
    def estimate(self) -> str:
        """Heading of the estimates."""
        return f"{self.view.effect} [{100 * self.results[0].level:g} % CI]"

    @cached_property
    def site(self) -> str:
        """Heading of the sites."""
        return self.results[0].unit.capitalize()

    @cached_property
    def weight(self) -> str:
        """Heading of the weights: of which model they are."""
        first = self.results[0]
        if self.several or first.k == 1:
            return "Weight"
        return f"Weight ({'fixed' if first.method == 'FE' else 'random'})"


@dataclass(frozen=True)
class _Columns:
    """Columns from left to right, each as wide as its widest cell.

    Attributes:
        anchors, sides: position of the cells of each column of text, and their alignment to it.
        plot: left end of the axis.
        weights, right: right ends of the weights and of the estimates.
        parts, space: widths of an estimate, its lower and its upper end, and of what lies between them.
        size: of the letters of weights and estimates.
    """

    anchors: list[float]
    sides: list[str]
    plot: float
    weights: float
    right: float
    parts: list[float]
    space: float
    size: float

    @property
    def width(self) -> float:
        return self.right + MARGIN

    @classmethod
    def of(cls, content: ForestContent) -> _Columns:
        rows, headings = content.rows, content.headings
        size = SMALL if content.several else TEXT
        left = max(text_width(row.label, TEXT) for row in rows if row.kind in ("site", "excluded", "total"))
        left = max(left, text_width(content.site, TEXT, True))
        summary = max(text_width(row.label, TEXT, True) for row in rows if row.kind in _OVER_COLUMNS)
        summary = max([summary, *(text_width(row.label, SMALL) for row in rows if row.kind == "words")])
        widths = [
            max([text_width(h, TEXT, True), *(text_width(row.cells[i], TEXT) for row in rows if row.cells)])
            for i, h in enumerate(headings)
        ]
        table = left + sum(GAP + width for width in widths)
        if table < summary:  # pooled labels run over the whole table, so it is widened once
            left += summary - table
            table = summary
        starts = list(np.cumsum([MARGIN + left + GAP, *(width + GAP for width in widths)]))[: len(widths)]
        numeric = [all(_is_number(row.cells[i]) for row in rows if row.cells) for i in range(len(headings))]
        texts = [_three(lane, content.view) for lane in content.lanes if lane.lb is not None]
        parts = [max(text_width(text[i], size) for text in texts) for i in range(3)]
        space = text_width("0", size) * 0.5
        block = max(sum(parts) + 2 * space, text_width(content.estimate, TEXT, True))
        weight = max(text_width(content.weight, TEXT, True), text_width("100.0 %", size))
        plot = MARGIN + table + GAP
        weights = plot + PLOT + GAP * 0.8 + weight
        return cls(
            anchors=[x + wide if number else x for x, wide, number in zip(starts, widths, numeric, strict=True)],
            sides=["right" if number else "left" for number in numeric],
            plot=plot,
            weights=weights,
            right=weights + GAP + block,
            parts=parts,
            space=space,
            size=size,
        )


@dataclass(frozen=True)
class _Lines:
    """Vertical positions of the parts of the page from top to bottom, and the text that fills them.

    Attributes:
        heads: title and note: text, size, True if bold, colour.
        legend, rule: positions of the names of the series, and of the line under the headings.
        centres: of the rows. pooled_from: where the pooled rows begin.
        axis, foot: positions of the axis, and of the first line under it.
        favoured: labels of the sides of the null line, in lines. under: their height.
        notes: lines of the foot: label, text, True if an aside. indent: of their text.
    """

    heads: list[tuple[str, float, bool, str]]
    legend: float
    rule: float
    centres: list[float]
    pooled_from: float
    axis: float
    favoured: list[list[str]]
    under: float
    foot: float
    notes: list[tuple[str, str, bool]]
    indent: float
    height: float

    @classmethod
    def of(cls, content: ForestContent, width: float) -> _Lines:
        body = width - 2 * MARGIN
        notes, indent = _notes(content, body)
        title = wrap(content.title, TITLE, body * 0.95, bold=True) if content.title else []
        heads = [(line, TITLE, True, INK) for line in title]
        heads += [(line, TEXT, False, GREY) for line in (wrap(content.note, TEXT, body) if content.note else [])]
        legend = MARGIN * 0.9 + sum(0.25 if bold else 0.2 for _, _, bold, _ in heads) + (0.1 if heads else 0)
        rule = legend + (0.26 if content.several else 0.0) + 0.3
        centres, pooled_from, end = _stacked(content.rows, rule + 0.06)
        favoured = [wrap(text, SMALL, PLOT / 2 - 0.2) for text in content.favours or ()]
        under = 0.16 * max(map(len, favoured), default=0) + (0.04 if favoured else 0.0)
        axis = end + 0.06
        foot = axis + 0.62 + under
        gaps = _PARAGRAPH * (len(content.series) - 1 + len(content.warnings))
        return cls(
            heads=heads,
            legend=legend,
            rule=rule,
            centres=centres,
            pooled_from=pooled_from,
            axis=axis,
            favoured=favoured,
            under=under,
            foot=foot,
            notes=notes,
            indent=indent,
            height=foot + _LINE * len(notes) + gaps + MARGIN * 0.75,
        )


def _stacked(rows: Sequence[ForestRow], y: float) -> tuple[list[float], float, float]:
    """Centres of the rows from y on, where the pooled ones begin, and where the last one ends."""
    centres: list[float] = []
    pooled_from = 0.0
    for i, row in enumerate(rows):
        if (row.kind == "total") or (row.kind == "diamond" and rows[i - 1].kind not in ("diamond", "total")):
            y += 0.12
            pooled_from = y - 0.06
        y += row.above
        centres.append(y + row.height / 2)
        y += row.height
    return centres, pooled_from, y


def _notes(content: ForestContent, body: float) -> tuple[list[tuple[str, str, bool]], float]:
    """The lines under the axis, broken to the width of the page, and the indent of their text."""
    foot = [*(between(content.groups, content.by) if content.groups else []), *footer(content.series, content.view)]
    explained = meanings(content.headings, content.series)
    foot += [("", explained, True)] if explained else []
    foot += [("Warning", text, False) for text in content.warnings]
    indent = max([0.0, *(text_width(called, SMALL, True) + 0.12 for called, _, _ in foot if called)])
    wrapped: list[tuple[str, str, bool]] = []
    for called, text, aside in foot:
        pieces = wrap(text, SMALL, body - indent)
        wrapped += [(called if i == 0 else "", piece, aside) for i, piece in enumerate(pieces)]
    return wrapped, indent


@cache
def _text_class() -> type[Text]:
    """A text that is laid out once for all numbers that stand alike, where a reader's own letters are set: in SVG."""
    from matplotlib import rcParams
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.text import Text

    known: WeakKeyDictionary[Any, dict[Any, float]] = WeakKeyDictionary()

    class PageText(Text):
        def draw(self, renderer: Any) -> None:
            """As any text is drawn; a number in SVG where another was laid out, whose width that does not ask for."""
            text, figure = self.get_text(), cast("Figure", self.get_figure())
            set_alike = isinstance(figure.canvas, FigureCanvasSVG) and rcParams["svg.fonttype"] == "none"
            usual = (self.get_fontstyle(), self.get_fontweight()) == ("normal", "normal") and self.get_visible()
            if not (set_alike and usual and text and _DIGITS.issuperset(text)):
                super().draw(renderer)
                return
            key = (self.get_fontsize(), self.get_verticalalignment(), *_reach(text))
            above = known.setdefault(renderer, {})
            if key not in above:
                above[key] = _baseline(self, figure, renderer)
            x, y = self.get_transform().transform(self.get_unitless_position())
            _, height = renderer.get_canvas_width_height()
            renderer.open_group("text", self.get_gid())
            ink = renderer.new_gc()
            ink.set_foreground(self.get_color())
            ink.set_alpha(self.get_alpha())
            place, font, angle = (x, height - (y + above[key])), self.get_fontproperties(), self.get_rotation()
            renderer.draw_text(ink, *place, text, font, angle, mtext=self)
            ink.restore()
            renderer.close_group("text")

    return PageText


def _baseline(one: Text, figure: Figure, renderer: Any) -> float:
    """How far above its place the baseline of a text of one line is, in dots."""
    from matplotlib.text import Text

    lowest = []
    for side in (one.get_verticalalignment(), "baseline"):
        alike = Text(0, 0, one.get_text(), va=side, fontproperties=one.get_fontproperties(), parse_math=False)
        alike.set_figure(figure)
        lowest.append(alike.get_window_extent(renderer).y0)
    return float(lowest[0] - lowest[1])


def _reach(text: str) -> tuple[float, float]:
    """How far the letters of a number reach above its line and below it, in points of one size."""
    heights = [text_height(letter) for letter in {*text}]
    return max(up for up, _ in heights), max(down for _, down in heights)


class ForestPage:
    """A forest plot on its page; `draw` gives the figure.

    The order of drawing is part of the bytes: what is drawn first lies below, and stands first in an SVG. Marks of
    which there are many are plain artists: `plot` and `axhspan` seek the ends of the axes anew with each.
    """

    def __init__(self, content: ForestContent) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.transforms import TransformedPatchPath

        self.content = content
        self.columns = columns = _Columns.of(content)
        self.lines = lines = _Lines.of(content, columns.width)
        width, height = columns.width, lines.height
        self.figure: Figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
        self.page: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.page.set(xlim=(0, width), ylim=(height, 0))
        self.page.axis("off")
        box = (columns.plot / width, 1 - lines.axis / height, PLOT / width, (lines.axis - lines.rule) / height)
        self.axes: Axes = self.figure.add_axes(box)
        drawn = [*content.results, *content.whole.values()]
        self.span = placed(content.view) or _span(drawn, content.rows, content.view.null)
        self.axes.set(xlim=self.span, ylim=(lines.axis, lines.rule))
        self.axes.patch.set_alpha(0)
        self._cut = TransformedPatchPath(self.page.patch)

    def draw(self) -> Figure:
        """Draw everything, once."""
        self._heads()
        self._headings()
        self._bands()
        self._guides()
        self._cells()
        self._marks()
        self._axis()
        self._foot()
        return self.figure

    def _say(self, x: float, at: float, text: str, **more: Any) -> None:
        style: dict[str, Any] = {"fontsize": TEXT, "color": INK, "va": "center_baseline", "ha": "left"}
        style |= {"parse_math": False, "clip_path": self._cut, "clip_on": False} | more
        self.page.add_artist(_text_class()(x, at, text, **style))

    def _rule(self, at: float, colour: str, wide: float) -> None:
        ends = [MARGIN, self.columns.right]
        self.page.plot(ends, [at, at], color=colour, linewidth=wide, solid_capstyle="butt")

    def _heads(self) -> None:
        """Title, note, and the names of the series."""
        at = MARGIN * 0.9
        for line, points, bold, colour in self.lines.heads:
            step = 0.25 if bold else 0.2
            self._say(MARGIN, at + step / 2, line, fontsize=points, color=colour, weight="bold" if bold else "normal")
            at += step
        if not self.content.several:
            return
        x, at = MARGIN, self.lines.legend + 0.1
        for s, called in enumerate((*self.content.series, *self.content.whole)):
            colour, marker = SERIES[s]
            self.page.plot([x + 0.06], [at], marker, color=colour, markersize=6.5)
            self._say(x + 0.18, at, called, color=darker(colour, 0.78), weight="bold")
            x += 0.18 + text_width(called, TEXT, True) + 0.3

    def _headings(self) -> None:
        columns, at = self.columns, self.lines.rule - 0.13
        self._say(MARGIN, at, self.content.site, weight="bold")
        for x, heading, side in zip(columns.anchors, self.content.headings, columns.sides, strict=True):
            self._say(x, at, heading, weight="bold", ha=side)
        self._say(columns.weights, at, self.content.weight, weight="bold", ha="right")
        self._say(columns.right, at, self.content.estimate, weight="bold", ha="right")
        self._rule(self.lines.rule, INK, 0.9)
        self._rule(self.lines.pooled_from, RULE, 0.8)

    def _bands(self) -> None:
        """Every other site on a grey band; counted anew in each group. All are one patch."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path
        from matplotlib.transforms import Bbox, BboxTransformTo

        bands, striped = [], 0
        for i, (row, centre) in enumerate(zip(self.content.rows, self.lines.centres, strict=True)):
            striped = 0 if row.kind == "group" else striped + 1
            if row.kind in ("site", "excluded") and (striped if self.content.groups else i) % 2:
                box = Bbox([(MARGIN, centre - row.height / 2), (self.columns.right, centre + row.height / 2)])
                bands.append(Path.unit_rectangle().transformed(BboxTransformTo(box)))
        self.page.add_artist(PathPatch(Path.make_compound_path(*bands), facecolor=BAND, linewidth=0))

    def _guides(self) -> None:
        """The line of no effect, and one down to each pooled estimate."""
        content, lines, (low, high) = self.content, self.lines, self.span
        null = content.view.null
        if null is not None and low <= null <= high:
            self.axes.plot([null] * 2, [lines.rule, lines.axis], color=GREY, linewidth=0.9, zorder=1, gid="null")
        own = max(i for i, row in enumerate(content.rows) if row.kind == "diamond" and row.gid != "whole")
        first = lines.centres[own] - LANE * (len(content.series) - 1) / 2
        for s, row in enumerate(content.results):
            if row.k > 1 and low <= row.beta <= high:
                style: dict[str, Any] = {"color": SERIES[s][0], "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 1}
                ends = [lines.rule, first + LANE * s]
                self.axes.plot([row.beta] * 2, ends, gid="pooled" if not s else f"pooled-{s}", **style)

    def _cells(self) -> None:
        """Labels of the rows, and the columns beside them."""
        for row, centre in zip(self.content.rows, self.lines.centres, strict=True):
            colour = GREY if row.kind in ("excluded", "prediction", "words") else INK
            weight = "bold" if row.kind in ("diamond", "group", "group diamond") else "normal"
            size = SMALL if row.kind == "words" else TEXT
            self._say(MARGIN, centre, row.label, fontsize=size, weight=weight, color=colour)
            for x, side, cell in zip(self.columns.anchors, self.columns.sides, row.cells, strict=False):
                self._say(x, centre, cell, ha=side, color=colour)

    def _marks(self) -> None:
        """Squares, diamonds and intervals, each with its numbers."""
        several = self.content.several
        for row, centre in zip(self.content.rows, self.lines.centres, strict=True):
            for j, lane in enumerate(row.lanes):
                at = centre + LANE * (j - (len(row.lanes) - 1) / 2)
                colour, marker = SERIES[lane.series]
                gid = row.gid or row.kind
                if several and row.kind != "excluded" and row.gid != "whole":
                    gid += f"-{lane.series}"
                _mark(self.axes, row.kind, lane, at, colour, marker, self.span, gid)
                muted = GREY if row.kind in ("excluded", "prediction") else INK
                self._numbers(lane, at, darker(colour, 0.78) if several else muted)

    def _numbers(self, lane: ForestLane, at: float, colour: str) -> None:
        columns, words = self.columns, _three(lane, self.content.view)
        style = {"fontsize": columns.size, "color": colour, "ha": "right"}
        if lane.lb is None:
            self._say(columns.right, at, words[2], **(style | {"color": GREY, "style": "italic"}))
        else:
            _, lower, upper = columns.parts
            self._say(columns.right, at, words[2], **style)
            self._say(columns.right - upper - columns.space, at, words[1], **style)
            self._say(columns.right - upper - lower - 2 * columns.space, at, words[0], **style)
        if lane.weight is not None:
            self._say(columns.weights, at, f"{lane.weight:.1f} %", **style)

    def _axis(self) -> None:
        axes, view, lines = self.axes, self.content.view, self.lines
        ticks = axis_ticks(*self.span, view)
        axes.set_xticks([tick for tick, _ in ticks], [text for _, text in ticks])
        axes.set_yticks([])
        axes.tick_params(axis="x", labelsize=SMALL, colors=INK, length=3, width=0.8, pad=3)
        for edge in ("top", "left", "right"):
            axes.spines[edge].set_visible(False)
        axes.spines["bottom"].set(linewidth=0.8, color=INK)
        below = 4 + 72 * lines.under
        axes.set_xlabel(self.content.xlabel or view.name, fontsize=TEXT, color=INK, labelpad=below, parse_math=False)
        plot = self.columns.plot
        for words, x, hand in zip(lines.favoured, (plot, plot + PLOT), ("left", "right"), strict=False):
            for j, line in enumerate(words):
                arrowed = (
                    f"← {line}" if (hand, j) == ("left", 0) else f"{line} →" if (hand, j) == ("right", 0) else line
                )
                self._say(x, lines.axis + 0.3 + 0.16 * j, arrowed, fontsize=SMALL, ha=hand, gid=f"favours-{hand}")

    def _foot(self) -> None:
        tints = {called: darker(SERIES[s][0], 0.78) for s, called in enumerate(self.content.series)}
        tints["Warning"] = ALARM
        start = self.lines.foot
        for number, (called, text, aside) in enumerate(self.lines.notes):
            if called and number:
                start += _PARAGRAPH
            at = start + _LINE * (number + 0.5)
            if called:
                self._say(MARGIN, at, called, fontsize=SMALL, color=tints[called], weight="bold")
            self._say(MARGIN + self.lines.indent, at, text, fontsize=SMALL, color=GREY if aside else INK)


def _span(results: Sequence[PooledResult], rows: Sequence[ForestRow], null: float | None) -> tuple[float, float]:
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


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789.,%−- ∞") or cell in ("inf", "n/a")


def _three(lane: ForestLane, view: View) -> tuple[str, str, str]:
    """Estimate and both ends as three right-aligned pieces, so that decimals stand under each other."""
    if lane.lb is None or lane.ub is None:
        return "", "", lane.note
    beta = "" if lane.beta is None else view.number(lane.beta)
    return beta, f"[{view.number(lane.lb)},", f"{view.number(lane.ub)}]"


def _mark(
    axes: Axes, kind: str, lane: ForestLane, y: float, colour: str, marker: str, span: tuple[float, float], gid: str
) -> None:
    from matplotlib.lines import Line2D
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
        whisker: dict[str, Any] = {"color": dark, "linewidth": 1.2, "solid_capstyle": "butt"}
        axes.add_artist(Line2D([start, end], [y, y], zorder=5, gid=f"{gid}-ci", **whisker))
    if kind == "site" and lane.beta is not None and low <= lane.beta <= high:
        points = lane.side * 72
        mark: dict[str, Any] = {"linestyle": "none", "color": colour, "markersize": points, "markeredgewidth": 0}
        axes.add_artist(Line2D([lane.beta], [y], marker=marker, zorder=4, gid=gid, **mark))
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
