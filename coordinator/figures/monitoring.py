"""Looks at a study as its waves come in: each |z| against the boundary that spends the error rate over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.figures.canvas import DrawnFigure, Page, name_axis, page_style, y_axis
from coordinator.figures.style import COLOURS, INK, MARGIN
from coordinator.figures.wording import signed
from shared.errors import machine_failures

if TYPE_CHECKING:
    from coordinator.pooling.further.sequential import Monitored

__all__ = ["monitoring_figure"]

_WIDE, _TALL, _LEFT = 5.2, 3.2, 0.75  # inches
_REACH = 6.0
"""Boundaries further from 0 are drawn at the edge, as arrows."""


@machine_failures()
def monitoring_figure(
    found: Monitored, *, title: str = "", note: str = "", path: str | Path | None = None
) -> DrawnFigure:
    """The looks so far and their boundaries, over the time of the plan.

    Args:
        title, note: headings. path: written when given; the suffix chooses SVG, PDF or PNG.
    Returns: the figure and its words. Gids: ``looks``, ``upper``, ``lower``.
    """
    times = [look.time for look in found.looks]
    bound = [look.boundary for look in found.looks]
    z = [look.z for look in found.looks]
    top = 1.12 * max(3.0, max(map(abs, z)), min(_REACH, max(bound)))
    words = "; ".join(
        f"{look.label}: z {signed(look.z, 2)}, boundary {signed(look.boundary, 2)}" for look in found.looks
    )
    foot = [
        f"{found.sentence[:1].upper()}{found.sentence[1:]}.",
        "Time: waves so far of those that the plan has.",
        *found.notes,
    ]
    line: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.2, "linestyle": (0, (4, 2)), "marker": "_"}
    with page_style():
        page = Page(_LEFT + _WIDE + 0.1 + MARGIN, title, note, foot, rows=0, extra=_TALL, headed=False)
        axes = page.axes(_LEFT, _WIDE, (0.0, 1.04), (-top, top))
        axes.axhline(0.0, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=2)
        for sign, gid in ((1, "upper"), (-1, "lower")):
            axes.plot(times, [sign * min(c, top) for c in bound], markersize=14, zorder=3, gid=gid, **line)
            for time, c in zip(times, bound, strict=True):
                if c > top:
                    axes.plot([time], [sign * top * 0.97], "^" if sign > 0 else "v", color=COLOURS[1], markersize=6)
        axes.plot(times, z, color=COLOURS[0], linewidth=1.2, marker="o", markersize=6, zorder=4, gid="looks")
        axes.set_xticks(times, [look.label for look in found.looks])
        name_axis(axes, "x", "As of")
        y_axis(axes, "z")
        return page.finish(f"{words}. {found.sentence}.", title or "Looks and their boundaries", path)
