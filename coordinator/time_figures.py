"""Figures over time: Kaplan–Meier with its risk table, the pooled estimate wave by wave, and what the budget has left.

As all figures they take results and hold no row of data. For a survival curve that has to be meant: drawn at its event
times it *is* the rows, since every step stands at one row's time and its height says how many went with it, and a
vector file keeps all digits. A release is privatised and paid for, so that would break no promise of the receipt; but
it would hand two columns of it to everyone who is sent the picture, where the plan may keep rows from analysts. So a
curve comes read off at public times (`shared.survival.GridCurve`), its steps stand at the ends of the intervals, and
the file grows with the grid and not with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.drawing import (
    COLOURS,
    DASHES,
    GREY,
    INK,
    MARGIN,
    SMALL,
    TEXT,
    Drawn,
    Page,
    darker,
    page_style,
    signed,
    spread,
    text_width,
    wrap,
    y_axis,
)
from shared.errors import EstimateRefusal, ParameterError
from shared.survival import GridCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_CURVES", "km_figure"]

MOST_CURVES = 16
"""More curves in one figure are refused: nobody could tell them apart."""

_WIDE, _TALL, _LINE, _NAME = 5.2, 3.4, 0.175, 1.9  # inches; names of the risk table are broken at the last


def km_figure(
    curves: Sequence[GridCurve],
    *,
    title: str = "",
    note: str = "",
    xlabel: str = "Time",
    ylabel: str = "Share without the event",
    left_out: Mapping[str, str] | None = None,
    bands: bool | None = None,
    path: str | Path | None = None,
) -> Drawn:
    """Kaplan–Meier curves with pointwise intervals, and the rows at risk under the ticks of the axis.

    Args:
        curves: one per site or arm, all at the same times (`coordinator.curves.curves` reads them from the releases).
        title, note: headings.
        xlabel: what the times are, with their unit.
        ylabel: what the share is of.
        left_out: site -> why it has no curve; listed below.
        bands: draw the pointwise intervals; by default with up to three curves.
        path: written when given; the suffix chooses SVG, PDF or PNG.
    Returns: the figure and its words. Gids: ``curve-0``, ``band-0``; texts ``risk-0-0`` (curve, tick).
    Raises: EstimateRefusal: no curve; ParameterError: too many, or at different times.
    """
    if not curves:
        raise EstimateRefusal("a survival figure must have a curve", given="none")
    if len(curves) > MOST_CURVES:
        raise ParameterError(
            f"a figure must have at most {MOST_CURVES} curves", given=f"{len(curves)}", next_step="Choose some sites."
        )
    if len({(curve.time, curve.level) for curve in curves}) > 1:
        raise ParameterError("the curves of a figure must be at the same times and of one level", given="others")
    times, level = curves[0].time, curves[0].level
    shaded = len(curves) <= 3 if bands is None else bands
    last = max(
        1, *(max((k for k, value in enumerate(curve.survival) if value is not None), default=0) for curve in curves)
    )
    ticks = _grid_ticks(times[: last + 1])
    if last % ticks[1] and ticks[-1] + ticks[1] < len(times):  # the axis ends at a tick
        ticks.append(ticks[-1] + ticks[1])
        last = ticks[-1]
    labels = [wrap(curve.label, SMALL, _NAME) for curve in curves]
    rows = [[f"{curve.at_risk[k]:,}" for k in ticks] for curve in curves]
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(curves))]
    foot = [
        f"Steps stand at the ends of intervals of {times[1]:g}; the curve is read off at those times and holds no row.",
    ]
    if shaded:
        foot.append(
            f"Shaded: pointwise {100 * level:g} % intervals (logit scale), which take the rows as real: the noise of "
            "the release is not in them."
        )
    still = [curve.label for curve in curves if curve.survival[1] is None]
    foot += [f"{label}: no row is followed beyond {times[1]:g}." for label in still]
    foot += [f"{curve.label}: no event." for curve in curves if curve.label not in still and not curve.events[last]]
    foot += [f"Left out: {site} ({why})." for site, why in (left_out or {}).items()]
    words = "; ".join(_spoken(curve, ticks) for curve in curves)
    words = f"{ylabel} over {xlabel}, {len(curves)} curve{'s' * (len(curves) != 1)}: {words}."
    words += "".join(f" Left out: {site}, {why}." for site, why in (left_out or {}).items())

    heading = "Rows at risk"
    sample = 0.34  # inches of line before a name of the risk table
    widest = max(text_width(line, SMALL) for label in labels for line in label)
    names = max(sample + widest, text_width(heading, SMALL, bold=True))
    # The first number of a row is centred under the first tick, and half of it lies left of the axis.
    left = MARGIN + max(names + 0.14 + max(text_width(row[0], SMALL) for row in rows) / 2, 0.75)
    named = len(curves) > 1
    right = left + _WIDE + (0.16 + widest if named else 0.1)
    below = _LINE * (1 + sum(map(len, labels))) + 0.02 * len(labels) + 0.02
    with page_style():
        page = Page(right + MARGIN, title, note, foot, rows=0, extra=_TALL, below=below, headed=False)
        span = (0.0, times[last])
        axes = page.axes(left, _WIDE, span, (0.0, 1.0))
        at = page.under - 0.1 + _LINE / 2
        page.say(MARGIN, at, heading, fontsize=SMALL, weight="bold")
        for i, curve in enumerate(curves):
            style: dict[str, Any] = {"color": colours[i], "linestyle": DASHES[i % len(DASHES)]}
            xs, ys = _steps(times, curve.survival)
            axes.plot(
                xs, ys, linewidth=1.5, solid_joinstyle="miter", zorder=4, gid=f"curve-{i}", clip_on=False, **style
            )
            if len(xs) == 1:
                axes.plot(xs, ys, "o", color=colours[i], markersize=5, clip_on=False, zorder=4)
            if shaded:
                _band(axes, times, curve, colours[i], f"band-{i}")
            at += _LINE + 0.02
            page.page.plot([MARGIN, MARGIN + sample - 0.08], [at, at], linewidth=1.5, **style)
            for k, cell in zip(ticks, rows[i], strict=True):
                x = left + _WIDE * times[k] / times[last]
                page.say(x, at, cell, fontsize=SMALL, ha="center", gid=f"risk-{i}-{k}")
            for j, line in enumerate(labels[i]):
                at += _LINE if j else 0.0
                page.say(MARGIN + sample, at, line, fontsize=SMALL)
        if named:
            _name_ends(page, curves, labels, colours, left, times[last])
        axes.set_xticks([times[k] for k in ticks], [f"{times[k]:,g}" for k in ticks])
        axes.tick_params(axis="x", labelsize=SMALL, colors=INK, length=3, width=0.8, pad=3)
        axes.set_xlabel(xlabel, fontsize=TEXT, color=INK, labelpad=4, parse_math=False)
        y_axis(axes, ylabel)
        return page.finish(words, title or "Kaplan–Meier", path)


def _grid_ticks(times: Sequence[float]) -> list[int]:
    """Places in the grid for some six ticks: round times that the grid has, so that counts under them are exact."""
    step = times[1]
    for every in range(1, len(times)):
        digits = round(every * step / 10 ** math.floor(math.log10(every * step)), 9)
        if (len(times) - 1) / every <= 7 and digits in (1, 2, 2.5, 5):
            return list(range(0, len(times), every))
    return [0, len(times) - 1]


def _steps(times: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The corners of a step function that keeps its value until the next time; only where it changes."""
    xs, ys = [times[0]], [float(values[0] or 0.0)]
    for time, value in zip(times[1:], values[1:], strict=True):
        if value is None:
            break
        if value != ys[-1]:
            xs, ys = [*xs, time, time], [*ys, ys[-1], value]
        end = time
    else:
        value = None
    if len(times) > 1 and values[1] is not None and xs[-1] != end:
        xs, ys = [*xs, end], [*ys, ys[-1]]
    return xs, ys


def _band(axes: Axes, times: Sequence[float], curve: GridCurve, colour: str, gid: str) -> None:
    """The pointwise intervals, each kept until the next time; nothing where there is none."""
    from matplotlib.patches import Polygon

    known = [k for k, low in enumerate(curve.lower) if low is not None and curve.survival[k] is not None]
    runs: list[list[int]] = []
    for k in known:
        if runs and runs[-1][-1] == k - 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    for run in runs:
        end = run[-1] + 1
        xs = [times[k] for k in run]
        xs.append(times[end] if end < len(times) and curve.survival[end] is not None else times[run[-1]])
        corners: list[tuple[float, float]] = []
        for k, start, stop in zip(run, xs, xs[1:], strict=False):
            corners += [(start, float(curve.upper[k] or 0)), (stop, float(curve.upper[k] or 0))]
        for k, start, stop in reversed(list(zip(run, xs, xs[1:], strict=False))):
            corners += [(stop, float(curve.lower[k] or 0)), (start, float(curve.lower[k] or 0))]
        axes.add_patch(Polygon(corners, closed=True, facecolor=colour, alpha=0.16, linewidth=0, zorder=2, gid=gid))


def _name_ends(
    page: Page,
    curves: Sequence[GridCurve],
    labels: Sequence[Sequence[str]],
    colours: Sequence[str],
    left: float,
    last: float,
) -> None:
    """Names at the right, each joined to the end of its curve by a thin line."""
    ends = [[(t, v) for t, v in zip(c.time, c.survival, strict=True) if v is not None][-1] for c in curves]
    wanted = [page.bottom - value * (page.bottom - page.top) for _, value in ends]
    apart = 0.155 * max(map(len, labels))
    places = spread(wanted, apart, page.top + apart / 2, page.bottom - apart / 2)
    edge = left + _WIDE
    for label, colour, (time, _), y, at in zip(labels, colours, ends, wanted, places, strict=True):
        x = left + _WIDE * time / last
        far = x < edge - 0.05 * _WIDE  # a line across the figure must not look like a curve
        thin: dict[str, Any] = {"color": GREY if far else colour, "linewidth": 0.6, "alpha": 0.8}
        page.page.plot([x, edge, edge + 0.11], [y, y, at], linestyle=(0, (1, 3)) if far else "-", **thin)
        for j, line in enumerate(label):
            offset = 0.145 * (j - (len(label) - 1) / 2)
            page.say(edge + 0.14, at + offset, line, fontsize=SMALL, color=darker(colour, 0.72))


def _spoken(curve: GridCurve, ticks: Sequence[int]) -> str:
    """One curve in words: how many, and the shares at the ticks."""
    parts = []
    for k in ticks[1:]:
        value, low, high = curve.survival[k], curve.lower[k], curve.upper[k]
        if value is not None:
            ends = "" if low is None or high is None else f" ({signed(low, 2)} to {signed(high, 2)})"
            parts.append(f"{signed(value, 2)}{ends} at {curve.time[k]:g}")
    return f"{curve.label}: {curve.n:,} rows, {curve.events[-1]:,} events, {', '.join(parts) or 'no time reached'}"
