"""Figures over time: Kaplan–Meier with its risk table, the pooled estimate wave by wave, and what the budget has left.

As all figures they take results and hold no row of data. For a survival curve that has to be meant: drawn at its event
times it *is* the rows, since every step stands at one row's time and its height says how many went with it, and a
vector file keeps all digits. A release is privatised and paid for, so that would break no promise of the receipt; but
it would hand two columns of it to everyone who is sent the picture, where the plan may keep rows from analysts. So a
curve comes read off at public times (`shared.estimands.fits.survival.GridCurve`), its steps stand at the ends of the
intervals, and the file grows with the grid and not with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.figures.canvas import (
    DrawnFigure,
    LadderContent,
    Page,
    darker,
    ladder,
    name_axis,
    page_style,
    span_of,
    spread,
    text_width,
    wrap,
    y_axis,
)
from coordinator.figures.style import COLOURS, DASHES, GREY, INK, MARGIN, SMALL
from coordinator.figures.wording import model_name, signed, significant, view_of
from coordinator.pooling.pool import PooledResult
from shared.errors import EstimateRefusal, ParameterError, machine_failures
from shared.estimands.fits.survival import GridCurve
from shared.privacy.stated import shown_delta, shown_epsilon, shown_price, shown_room

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coordinator.answers.spending import BudgetReport, Spending

__all__ = ["MOST_CURVES", "budget_figure", "km_figure", "waves_figure"]

MOST_CURVES = 16
"""Most sites whose curves are drawn in one figure: more could not be told apart."""

_WIDE, _TALL, _LINE, _NAME = 5.2, 3.4, 0.175, 1.9  # inches; names of the risk table are broken at the last


@machine_failures()
def km_figure(
    curves: Sequence[GridCurve],
    *,
    pooled: Sequence[GridCurve] = (),
    title: str = "",
    note: str = "",
    xlabel: str = "Time",
    ylabel: str = "Share without the event",
    left_out: Mapping[str, str] | None = None,
    bands: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """Kaplan–Meier curves with pointwise intervals, and the rows at risk under the ticks of the axis.

    Args:
        curves: one per site or arm, all at the same times (`coordinator.answers.curves.curves` reads them from the
            releases). More than `MOST_CURVES` are left to their pooled ones, and the figure says so.
        pooled: pooled curves at the same times: wide lines in ink, always with their intervals.
        title, note: headings.
        xlabel: label of the times, with their unit.
        ylabel: label of the share.
        left_out: site -> why it has no curve; listed below.
        bands: draw the pointwise intervals of `curves`; by default with up to three of them and none pooled.
        path: written when given; the suffix chooses SVG, PDF or PNG.
    Returns: the figure and its words. Gids: ``curve-0``, ``band-0``; texts ``risk-0-0`` (curve, tick); the pooled ones
        count on from the last curve.
    Raises: EstimateRefusal: no curve; ParameterError: too many and none pooled, or at different times.
    """
    untold = len(curves) if pooled and len(curves) > MOST_CURVES else 0
    sites = len(curves) - untold
    curves = _drawable(curves[:sites], pooled)
    times = curves[0].time
    shaded = (sites <= 3 and not pooled) if bands is None else bands
    shading = [i for i in range(len(curves)) if shaded or i >= sites]
    begins, last, ticks = _km_axis(curves)
    labels = [wrap(curve.label, SMALL, _NAME) for curve in curves]
    rows = [[f"{curve.at_risk[k]:,}" for k in ticks] for curve in curves]
    colours = [COLOURS[i % len(COLOURS)] if i < sites else INK for i in range(len(curves))]
    dashes = [DASHES[(i if i < sites else i - sites) % len(DASHES)] for i in range(len(curves))]
    widths = [1.5 if i < sites else 2.4 for i in range(len(curves))]
    left_out = left_out or {}
    foot = _km_foot(curves, begins, last, bool(pooled), bool(shading), left_out, untold)
    words = "; ".join(_spoken(curve, ticks) for curve in curves)
    words = f"{ylabel} over {xlabel}, {len(curves)} curve{'s' * (len(curves) != 1)}: {words}."
    words += "".join(f" Left out: {site}, {why}." for site, why in left_out.items())

    below = _Below("Privatised rows at risk", labels, rows)
    left, named = below.left, len(curves) > 1
    right = left + _WIDE + (0.16 + below.widest if named else 0.1)
    with page_style():
        page = Page(right + MARGIN, title, note, foot, rows=0, extra=_TALL, below=below.height, headed=False)
        span = (times[begins], times[last])
        axes = page.axes(left, _WIDE, span, (0.0, 1.0))
        looks: list[dict[str, Any]] = [
            {"color": colour, "linestyle": dash, "linewidth": wide}
            for colour, dash, wide in zip(colours, dashes, widths, strict=True)
        ]
        for i, (curve, look) in enumerate(zip(curves, looks, strict=True)):
            xs, ys = _steps(times, curve.survival)
            xs = [max(x, span[0]) for x in xs]  # before, the share is 1
            axes.plot(xs, ys, solid_joinstyle="miter", zorder=4, gid=f"curve-{i}", clip_on=False, **look)
            if len(xs) == 1:
                axes.plot(xs, ys, "o", color=colours[i], markersize=5, clip_on=False, zorder=4)
            if i in shading:
                # All pooled bands are grey: where there are several, each has the dashes of its curve around it.
                edge = dashes[i] if i >= sites and len(pooled) > 1 else None
                _band(axes, times, curve, colours[i], f"band-{i}", edge)
        below.draw(
            page,
            [left + _WIDE * (times[k] - span[0]) / (span[1] - span[0]) for k in ticks],
            looks,
            [f"risk-{{}}-{k}" for k in ticks],
        )
        if named:
            _name_ends(page, curves, labels, colours, left, span)
        axes.set_xticks([times[k] for k in ticks], [f"{times[k]:,g}" for k in ticks])
        name_axis(axes, "x", xlabel)
        y_axis(axes, ylabel)
        return page.finish(words, title or "Kaplan–Meier", path)


def _drawable(curves: Sequence[GridCurve], pooled: Sequence[GridCurve]) -> tuple[GridCurve, ...]:
    """The sites' curves and the pooled ones. Raises: EstimateRefusal, ParameterError."""
    together = (*curves, *pooled)
    if not together:
        raise EstimateRefusal("a survival figure must have a curve", given="none")
    if len(curves) > MOST_CURVES:
        raise ParameterError(
            f"a figure must have at most {MOST_CURVES} curves", given=f"{len(curves)}", next_step="Choose some sites."
        )
    if len({(curve.time, curve.level) for curve in together}) > 1:
        raise ParameterError("the curves of a figure must be at the same times and of one level", given="others")
    return together


def _km_axis(curves: Sequence[GridCurve]) -> tuple[int, int, list[int]]:
    """Places in the grid where the axis begins and ends, and of its ticks."""
    times = curves[0].time
    last = max(
        1, *(max((k for k, value in enumerate(curve.survival) if value is not None), default=0) for curve in curves)
    )
    ticks = _grid_ticks(times[: last + 1])
    if last % ticks[1] and ticks[-1] + ticks[1] < len(times):  # the axis ends at a tick
        ticks.append(ticks[-1] + ticks[1])
        last = ticks[-1]
    quiet = min(next((k for k, count in enumerate(curve.events) if count), last) - 1 for curve in curves)
    begins = max((k for k in ticks if k <= quiet), default=0)
    begins = begins if begins > 0.3 * last else 0  # a third of the axis and more, on which nothing happens
    return begins, last, [k for k in ticks if k >= begins]


def _km_foot(
    curves: Sequence[GridCurve],
    begins: int,
    last: int,
    pooled: bool,
    shaded: bool,
    left_out: Mapping[str, str],
    untold: int,
) -> list[str]:
    """Explanatory lines under survival curves: how to read them, what is shaded, and which sites are left out."""
    times, level = curves[0].time, curves[0].level
    foot = [
        f"Steps stand at the ends of intervals of {times[1]:g}; the curve is read off at those times and holds no row.",
    ]
    if begins:
        foot.append(f"The axis begins at {times[begins]:g}: no event was before.")
    if pooled:
        foot.append(
            "Pooled: random effects (REML, Knapp-Hartung not below the model) of the logits at each time, to the end "
            "of the shortest follow-up; a site without an event so far counts with half an event."
        )
    if shaded:
        most = max(curve.inflation for curve in curves)
        held = "which take the rows as real: the noise of the release is not in them."
        if most > 1:
            least = min(curve.inflation for curve in curves)
            times_ = f"{most:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
            held = (
                f"with the noise of the release counted in full and the fit of its flow: {times_} times the variance "
                "that the rows claim. The flow's bias is not in them."
            )
        foot.append(f"Shaded: pointwise {100 * level:g} % intervals (logit scale), {held}")
    still = [curve.label for curve in curves if curve.survival[1] is None]
    foot += [f"{label}: no row is followed beyond {times[1]:g}." for label in still]
    foot += [f"{curve.label}: no event." for curve in curves if curve.label not in still and not curve.events[last]]
    foot += [f"Left out: {site} ({why})." for site, why in left_out.items()]
    foot += [f"The curves of the sites, {untold} of them, are not drawn: nobody could tell them apart."] * bool(untold)
    return foot


class _Below:
    """A table under the axis: a row per line of the figure, its numbers centred under the ticks."""

    _SAMPLE = 0.34  # inches of line before a name

    def __init__(self, heading: str, labels: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> None:
        self._heading, self._labels, self._rows = heading, labels, rows
        self.widest = max(text_width(line, SMALL) for label in labels for line in label)
        names = max(self._SAMPLE + self.widest, text_width(heading, SMALL, bold=True))
        # The first number of a row is centred under the first tick, and half of it lies left of the axis.
        self.left = MARGIN + max(names + 0.14 + max(text_width(row[0], SMALL) for row in rows) / 2, 0.75)
        self.height = _LINE * (1 + sum(map(len, labels))) + 0.02 * len(labels) + 0.02

    def draw(self, page: Page, xs: Sequence[float], looks: Sequence[Mapping[str, Any]], gids: Sequence[str]) -> None:
        """Draw it under the page's axis; `gids` have a place for the row's number."""
        at = page.under - 0.1 + _LINE / 2
        page.say(MARGIN, at, self._heading, fontsize=SMALL, weight="bold")
        for i, (label, row, look) in enumerate(zip(self._labels, self._rows, looks, strict=True)):
            at += _LINE + 0.02
            sample = [MARGIN + (self._SAMPLE - 0.08) * share for share in (0, 0.5, 1)]  # a mark stands in the middle
            style: dict[str, Any] = {"linewidth": 1.5, "markevery": [1], **look}
            page.page.plot(sample, [at] * 3, **style)
            for x, cell, gid in zip(xs, row, gids, strict=True):
                page.say(x, at, cell, fontsize=SMALL, ha="center", gid=gid.format(i))
            for j, line in enumerate(label):
                at += _LINE if j else 0.0
                page.say(MARGIN + self._SAMPLE, at, line, fontsize=SMALL)


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


def _band(axes: Axes, times: Sequence[float], curve: GridCurve, colour: str, gid: str, edge: Any = None) -> None:
    """The pointwise intervals, each kept until the next time; nothing where there is none. Edged by dashes if given."""
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
        if edge is not None:
            around: dict[str, Any] = {"edgecolor": colour, "linestyle": edge, "linewidth": 0.7, "alpha": 0.7}
            axes.add_patch(Polygon(corners, closed=True, fill=False, zorder=2, **around))


def _name_ends(
    page: Page,
    curves: Sequence[GridCurve],
    labels: Sequence[Sequence[str]],
    colours: Sequence[str],
    left: float,
    span: tuple[float, float],
) -> None:
    """Names at the right, each joined to the end of its curve by a thin line."""
    ends = [[(t, v) for t, v in zip(c.time, c.survival, strict=True) if v is not None][-1] for c in curves]
    wanted = [page.bottom - value * (page.bottom - page.top) for _, value in ends]
    apart = 0.155 * max(map(len, labels))
    places = spread(wanted, apart, page.top + apart / 2, page.bottom - apart / 2)
    edge = left + _WIDE
    for label, colour, (time, _), y, at in zip(labels, colours, ends, wanted, places, strict=True):
        x = left + _WIDE * max(0.0, time - span[0]) / (span[1] - span[0])
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


@machine_failures()
def waves_figure(
    results: Mapping[int, PooledResult],
    *,
    missing: Mapping[int, str] | None = None,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    path: str | Path | None = None,
) -> DrawnFigure:
    """The pooled effect as of each wave: cumulative meta-analysis in the order of the waves.

    Args:
        results: wave -> what its table pools to, of one question.
        missing: wave -> why it has no result; listed below.
        title, note, ratio, path: as in `coordinator.figures.forest.forest`.
    Returns: gids ``refit-0`` and ``refit-0-ci`` for the earlier waves, ``random`` for the newest, ``null``, ``pooled``.
    Raises: EstimateRefusal: no result; ParameterError: results of several scales.
    """
    if not results:
        raise EstimateRefusal("a figure of waves must have a wave with a result", given="none")
    waves = sorted(results)
    models = [results[wave] for wave in waves]
    if len({model.scale for model in models}) > 1:
        raise ParameterError("the results of all waves must share one scale", given="several")
    newest = models[-1]
    view = view_of([newest], ratio, "auto")
    random = newest.method != "FE"
    persons = [sum(row.n for row in model.estimates if row.yi is not None) for model in models]
    heads = ["Sites", *(["n"] if all(persons) else []), *(["τ²"] if random else []), "I²"]
    cells = [
        [f"{m.k}", *([f"{n:,}"] if all(persons) else []), *([significant(m.tau2)] if random else []), f"{m.I2:.0f} %"]
        for m, n in zip(models, persons, strict=True)
    ]
    foot = [f"Each row: {_lower(model_name(newest))} over the table as of that wave, earlier waves in it."]
    if len(waves) > 1:
        foot.append(
            "The rows share persons, so they are not independent; and no interval allows for having looked "
            f"{len(waves)} times."
        )
    foot += [f"Wave {w}: one site, nothing was pooled." for w, m in zip(waves, models, strict=True) if m.k == 1]
    foot += [f"Wave {wave}: {why}." for wave, why in sorted((missing or {}).items())]
    foot += [text for text in newest.notes if newest.k > 1]
    words = "Pooled estimate as of each wave: " + "; ".join(
        f"wave {w}, {m.k} sites, {view.number(m.beta)} ({view.number(m.ci_lb)} to {view.number(m.ci_ub)})"
        for w, m in zip(waves, models, strict=True)
    )
    return ladder(
        LadderContent(
            models=models,
            labels=[*(f"Wave {wave}" for wave in waves[:-1]), f"Wave {waves[-1]}, the newest"],
            first="As of",
            heads=heads,
            cells=cells,
            span=span_of([m.beta for m in models], [(m.ci_lb, m.ci_ub) for m in models], view.null),
            view=view,
            foot=foot,
            words=f"{words}.",
            title=title,
            called="Estimates by wave",
            note=note,
        ),
        path=path,
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


_MARKERS = ("s", "o", "^", "D", "v", "P", "X")


@machine_failures()
def budget_figure(
    budget: BudgetReport, *, title: str = "", note: str = "", path: str | Path | None = None
) -> DrawnFigure:
    """ε spent over the waves against the cap, a line per course of sites; further waves dashed; what is left below.

    Args:
        budget: `coordinator.answers.spending.spending` reads it from the receipts.
    Returns: gids ``spent-0``, ``planned-0``, ``cap``; texts ``left-0-1`` (course, wave).
    Raises: ParameterError: more courses than `MOST_CURVES`.
    """
    courses = budget.courses
    if len(courses) > MOST_CURVES:
        raise ParameterError(f"a figure must have at most {MOST_CURVES} courses", given=f"{len(courses)}")
    first, last = 0, max([*budget.waves, *(wave for course in courses for wave, _ in course.spent)])
    ticks = list(range(first, last + 1))
    if len(ticks) > 13:
        every = math.ceil(last / 12)
        ticks = [wave for wave in ticks if wave % every == 0]
    names = [
        ", ".join(c.sites) if len(c.sites) <= 3 else f"{len(c.sites)} sites: {', '.join(c.sites)}" for c in courses
    ]
    labels = [wrap(name, SMALL, _NAME) for name in names]
    labels = [label if len(label) <= 3 else [*label[:2], f"{label[2]} …"] for label in labels]
    rows = [[_left(budget.cap, course, wave) for wave in ticks] for course in courses]
    highest = max([epsilon for c in courses for _, epsilon in (*c.spent, *c.planned)], default=0.0)
    top = max(1.06 * budget.cap, min(1.05 * highest, 1.3 * budget.cap))
    foot, words, given = _budget_words(budget, names)
    below = _Below("ε left after", labels, rows)
    left = below.left
    right = left + _WIDE + 0.2
    with page_style():
        shown = note or f"Cap {_cap(budget)}, plan version {budget.version}."
        heading = title or f"{budget.study}: budget by wave"
        page = Page(right + MARGIN, heading, shown, foot, rows=0, extra=_TALL * 0.85, below=below.height, headed=False)
        reach = 0.25 if last > first else 0.5
        axes = page.axes(left, _WIDE, (first - reach, last + reach), (0.0, top))
        axes.axhline(budget.cap, color=INK, linewidth=1.2, linestyle=(0, (6, 3)), zorder=2, gid="cap")
        axes.text(
            first - reach * 0.8,
            budget.cap + 0.008 * top,
            f"cap {shown_epsilon(budget.cap)}",
            fontsize=SMALL,
            color=INK,
            va="bottom",
        )
        looks = []
        for i, course in enumerate(courses):
            colour, marker = COLOURS[i % len(COLOURS)], _MARKERS[(i + i // len(COLOURS)) % len(_MARKERS)]
            looks.append({"color": colour, "marker": marker, "markersize": 4.5})
            line = {"color": colour, "drawstyle": "steps-post", "marker": marker, "markersize": 5}
            _course(axes, i, len(courses), course, (first, last + reach), line)
        under = [left + _WIDE * (wave - first + reach) / (last - first + 2 * reach) for wave in ticks]
        below.draw(page, under, looks, [f"left-{{}}-{wave}" for wave in ticks])
        axes.set_xticks(ticks, ["start" if wave == 0 else f"{wave}" for wave in ticks])
        name_axis(axes, "x", "Wave")
        y_axis(axes, f"ε spent, given {given}" if given else "ε spent")
        return page.finish(f"{words}.", heading, path)


def _budget_words(budget: BudgetReport, names: Sequence[str]) -> tuple[list[str], str, str]:
    """Lines below a budget figure, its text alternative, and the condition that all courses share (blank if none)."""
    courses = budget.courses
    foot = [
        "Filled marks: the study's ε after a release, for the site's worst-off person, as its receipt says; what a "
        "site was charged without delivering shows with its next receipt.",
    ]
    if any(course.planned for course in courses):
        foot.append("Dashed, hollow: somebody who is in every further wave of the plan.")
    over = [c for c in courses if c.planned and c.planned[-1][1] > budget.cap]
    for course, name in zip(courses, names, strict=True):
        if course in over:
            foot.append(f"Wave {course.planned[-1][0]} does not fit: {name}. The site's ledger will refuse it.")
    if budget.open:
        apart = "; ".join(f"{site} ({words})" for site, words in budget.open.items())
        foot.append(f"Not drawn, because no total holds its releases: {apart}.")
    words = f"Budget of {budget.study}: {_cap(budget)}. " + "; ".join(
        f"{name}: "
        + ", ".join(f"{shown_price(epsilon, course.given)} after wave {wave}" for wave, epsilon in course.spent)
        for course, name in zip(courses, names, strict=True)
    )
    conditions = {course.given for course in courses}
    given = " and ".join(sorted(conditions - {""}))
    if given and len(conditions) > 1:
        foot.append(
            f"Given {given}: {', '.join(name for course, name in zip(courses, names, strict=True) if course.given)}."
        )
    return foot, words, given if len(conditions) == 1 else ""


def _cap(budget: BudgetReport) -> str:
    return f"ε {shown_epsilon(budget.cap)} at δ {shown_delta(budget.delta)}"


def _course(axes: Axes, number: int, of: int, course: Spending, ends: tuple[int, float], line: dict[str, Any]) -> None:
    """One line of a budget: what is spent as steps, what is planned dashed. Courses that meet stand side by side.

    Args:
        number, of: which course of how many. ends: first wave, and where a level ends. line: its colour and mark.
    """
    first, last = ends
    aside = min(0.09, 0.5 / of) * (number - (of - 1) / 2)
    points = [(first, 0.0), *course.spent]
    xs, ys = [wave + aside * (wave > 0) for wave, _ in points], [epsilon for _, epsilon in points]
    if not course.planned:  # what is spent stays spent: a level, not the end of a bar
        xs, ys = [*xs, last], [*ys, ys[-1]]
    axes.plot(xs, ys, linewidth=1.5, zorder=4, gid=f"spent-{number}", markevery=slice(1, len(points)), **line)
    if course.planned:
        ahead = [course.spent[-1], *course.planned]
        xs, ys = [wave + aside for wave, _ in ahead], [epsilon for _, epsilon in ahead]
        hollow = {"markerfacecolor": "white", "linestyle": (0, (4, 2)), "markevery": slice(1, None)}
        axes.plot(xs, ys, linewidth=1.1, zorder=3, gid=f"planned-{number}", **(line | hollow))


def _left(cap: float, course: Spending, wave: int) -> str:
    """Remaining budget of a course after a wave, as text; empty where the receipts do not say it yet."""
    spent = [epsilon for at, epsilon in course.spent if at <= wave]
    if wave > course.spent[-1][0]:
        return ""
    return shown_room(max(cap - (spent[-1] if spent else 0.0), 0.0))
