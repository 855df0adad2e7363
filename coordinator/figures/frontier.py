"""Figure of a design: what a person is charged against what it buys, for every way to release."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.figures.canvas import DrawnFigure, Page, name_axis, page_style, y_axis
from coordinator.figures.style import COLOURS, INK, MARGIN, SMALL
from coordinator.figures.wording import significant
from shared.errors import EstimateRefusal, machine_failures
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    from coordinator.planning.design import PlanDesign

__all__ = ["NAMES", "frontier_figure"]

NAMES = {
    "moments": "noisy moments",
    "tables": "noisy tables",
    "latent_noise_holdout": "latent noise, held-out fit",
    "latent_noise_local": "latent noise, fitted on the rows",
}
"""Settings in words."""
_WIDE, _TALL, _GAP, _LEFT = 3.3, 2.7, 0.85, 0.75
_DASHES = {"moments": "-", "tables": "-", "latent_noise_holdout": (0, (5, 2)), "latent_noise_local": (0, (1.5, 1.5))}
"""Solid where ε covers everybody; the less it covers, the more broken."""


@machine_failures()
def frontier_figure(design: PlanDesign, *, path: str | Path | None = None) -> DrawnFigure:
    """Half-width, and power where an effect is given, against ε charged to a person, a line per setting.

    Returns: gids ``half-SETTING`` and ``power-SETTING``, ``wanted``, ``recommended``.
    Raises: EstimateRefusal: no setting has a prediction.
    """
    if not design.points:
        raise EstimateRefusal("a design must have a prediction to be drawn", given="none")
    settings = list(dict.fromkeys(point.setting for point in design.points))
    powered = any(point.power is not None for point in design.points)
    panels = 1 + powered
    ends = [math.log10(point.total) for point in design.points]
    span = (min(ends) - 0.05, max(ends) + 0.05)
    highest = min(max(point.half_width for point in design.points), 6 * design.wanted)
    width = _LEFT + panels * _WIDE + (panels - 1) * _GAP + MARGIN
    foot = [
        f"{NAMES[name]}: ε covers {next(p.covered for p in design.points if p.setting == name)}." for name in settings
    ]
    foot.append("Predicted before any release, from published margins and assumed effects.")
    title = f"{design.study}: {design.question}, {design.term}"
    note = f"{design.sites} sites of {design.persons:,} persons, {design.waves} wave{'s' * (design.waves > 1)}"
    with page_style():
        page = Page(width, title, note, foot, rows=0, extra=_TALL, below=0.2 * len(settings) + 0.1, headed=False)
        for panel in range(panels):
            rise = (0.0, 1.02) if panel else (0.0, 1.05 * highest)
            axes = page.axes(_LEFT + panel * (_WIDE + _GAP), _WIDE, span, rise)
            for i, name in enumerate(settings):
                curve = [point for point in design.points if point.setting == name]
                bought = [(point.power or 0.0) if panel else point.half_width for point in curve]
                axes.plot(
                    [math.log10(point.total) for point in curve],
                    bought,
                    color=COLOURS[i % len(COLOURS)],
                    linestyle=_DASHES[name],
                    linewidth=1.6,
                    gid=f"{'power' if panel else 'half'}-{name}",
                )
            if not panel:
                axes.axhline(design.wanted, color=INK, linewidth=1.0, linestyle=(0, (6, 3)), gid="wanted")
                axes.text(
                    span[0],
                    design.wanted,
                    f" wanted {significant(design.wanted)}",
                    fontsize=SMALL,
                    color=INK,
                    va="bottom",
                )
            taken = design.recommended
            if taken is not None:
                at = (taken.power or 0.0) if panel else taken.half_width
                axes.plot([math.log10(taken.total)], [at], "o", markersize=7, mfc="white", mec=INK, gid="recommended")
            ticks = [x for x in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if span[0] <= math.log10(x) <= span[1]]
            axes.set_xticks([math.log10(x) for x in ticks], [f"{x:g}" for x in ticks])
            name_axis(axes, "x", "ε charged to a person, all waves")
            scale = {"log": ", log scale", "logit": ", logit scale", "fisher_z": ", z scale"}.get(design.scale, "")
            y_axis(axes, "Power" if panel else f"Half-width of the interval{scale}")
        for i, name in enumerate(settings):
            y = page.under + 0.2 * i
            ends_ = [MARGIN, MARGIN + 0.45]
            page.page.plot(ends_, [y, y], color=COLOURS[i % len(COLOURS)], linestyle=_DASHES[name], linewidth=1.6)
            page.say(MARGIN + 0.55, y, NAMES[name], fontsize=SMALL)
        return page.finish(_words(design), title, path)


def _words(design: PlanDesign) -> str:
    taken = design.recommended
    if taken is None:
        return f"No way to release reaches a half-width of {significant(design.wanted)}."
    return (
        f"A half-width of {significant(design.wanted)} needs ε {shown_epsilon(taken.total)} by {NAMES[taken.setting]}, "
        f"which covers {taken.covered}."
    )
