"""A curve of a model: the pooled effect along a column against its reference value, with its band."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.figures.canvas import DrawnFigure, Page, effect_axis, name_axis, page_style
from coordinator.figures.style import COLOURS, INK, MARGIN
from coordinator.figures.wording import View
from shared.errors import ParameterError, machine_failures
from shared.estimands.effects import SCALES, shown

__all__ = ["curve_figure", "curve_of"]

_WIDE, _TALL, _LEFT = 5.2, 3.4, 0.75  # inches


def curve_of(joint: Any, term: str = "") -> Mapping[str, Any]:
    """The entry of an answer's ``joint`` that has a curve: of a term, or the only one.

    Raises: ParameterError: none, or several.
    """
    found = [one for one in joint if one.get("curve") and term in ("", one["term"], one["curve"]["of"])]
    if len(found) != 1:
        offered = [one["term"] for one in joint if one.get("curve")]
        raise ParameterError(
            "a dose-response figure must be of one curve of the question",
            given=f"{len(found)}",
            next_step=f"Name its term: {', '.join(offered)}." if offered else 'Ask one: "died ~ ns(age, df = 3)".',
        )
    return found[0]


@machine_failures()
def curve_figure(
    entry: Mapping[str, Any],
    *,
    scale: Any,
    effect: str,
    title: str = "",
    note: str = "",
    xlabel: str = "",
    path: str | Path | None = None,
) -> DrawnFigure:
    """The pooled curve with its pointwise band and its simultaneous one, on the effect's own axis.

    Args:
        entry: `curve_of` an answer. scale, effect: of its estimates.
        title, note: headings. xlabel: the column in words.
        path: written when given; the suffix chooses SVG, PDF or PNG.
    Returns: the figure and its words. Gids: ``curve``, ``band``, ``simultaneous`` (of newer answers).
    """
    curve = entry["curve"]
    x, y, low, high = (curve[name] for name in ("x", "estimate", "ci_lb", "ci_ub"))
    wide = curve.get("band_lb", low), curve.get("band_ub", high)
    of = xlabel or curve["of"]
    name = f"{effect or 'Effect'} against {curve['reference']:g}"
    view = View(
        show=lambda value: shown(value, scale),
        decimals=2,
        null=0.0,
        name=f"{name} ({SCALES[scale]} scale)" if SCALES[scale] else name,
        scale=scale,
        ratio=scale == "log",
    )
    pad = 0.06 * (max(wide[1]) - min(wide[0]) or 1.0)
    span = (min(wide[0]) - pad, max(wide[1]) + pad)
    middle = len(x) // 2
    words = f"{name} along {of}: " + "; ".join(
        f"{view.number(y[k])} ({view.number(low[k])} to {view.number(high[k])}) at {x[k]:g}"
        for k in (0, middle, len(x) - 1)
    )
    foot = [
        entry["sentence"] + ".",
        f"Dark band: pointwise {100 * entry['level']:g} % intervals, of no width at the reference.",
    ]
    if "band_lb" in curve:
        foot.append(f"Light band: simultaneous; {100 * entry['level']:g} % of such bands hold the whole curve.")
    with page_style():
        page = Page(
            _LEFT + _WIDE + 0.1 + MARGIN, title, note, [*foot, *entry["notes"]], rows=0, extra=_TALL, headed=False
        )
        axes = page.axes(_LEFT, _WIDE, (x[0], x[-1]), span)
        axes.axhline(0.0, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=2)
        if "band_lb" in curve:
            axes.fill_between(x, *wide, color=COLOURS[0], alpha=0.1, linewidth=0, zorder=2.5, gid="simultaneous")
        axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, zorder=3, gid="band")
        axes.plot(x, y, color=COLOURS[0], linewidth=1.8, zorder=4, gid="curve")
        name_axis(axes, "x", of)
        effect_axis(axes, "y", span, view)
        return page.finish(f"{words}.", title or "Dose-response curve", path)
