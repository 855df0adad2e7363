"""Figures that stay at the site: the curve of w, the attackers' hits, and the released margins beside the real ones.

Each takes results, or two tables of which one is real, and returns a figure; `figure_bytes` writes it as SVG, PNG or
PDF, the same figure giving the same bytes. Colours are Okabe and Ito's, series differ in dash as well, and every line
carries its name at its end instead of a legend. What is drawn from records is for the steward and the approver alone:
the file says so in its corner, and the commands write it so that only its owner can read it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from shared.errors import ParameterError
from shared.plans.dictionary import Column, Dictionary
from shared.privacy.stated import FLOW, shown_delta, shown_epsilon
from shared.terminal import inert
from site_agent.show.preview import margin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from site_agent.release.audit.report import LikelihoodAttack
    from site_agent.show.curve import PriceCurve

__all__ = ["attack_figure", "curve_figure", "figure_bytes", "margins_figure"]

_INK, _GREY, _RULE, _BAND = "#1b1f24", "#667080", "#c9d0d8", "#f0f2f5"
_BLUE, _ORANGE, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_TEXT, _SMALL, _TITLE = 9.0, 8.0, 12.0
_STYLE: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same outlines on every machine
    "font.size": _TEXT,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _GREY,
    "ytick.labelcolor": _GREY,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SMALL,
    "text.color": _INK,
    "text.parse_math": False,  # a unit or a level with two dollar signs is no formula
}
_STAYS = "stays at the site"
NOT_MEANINGFUL = 10.0
"""ε above which the receipt says that it is no meaningful formal guarantee."""


def _page(width: float, height: float, title: str, detail: str) -> Figure:
    """An empty page in inches, with its title at the upper left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.text(0.3 / width, 1 - 0.34 / height, inert(title), size=_TITLE, weight="bold", va="center")
    figure.text(0.3 / width, 1 - 0.60 / height, inert(detail), size=_SMALL, color=_GREY, va="center")
    figure.text(1 - 0.3 / width, 0.16 / height, _STAYS, size=_SMALL - 1, color=_GREY, ha="right", va="center")
    return figure


def _panel(axes: Axes, heading: str) -> None:
    axes.set_title(heading, loc="left", size=_TEXT, color=_INK, pad=8)
    axes.tick_params(length=3, width=0.8)
    axes.grid(axis="y", color=_BAND, lw=0.8)
    axes.set_axisbelow(True)


def _percent(axis: Any, decimals: int = 0) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))


# -- the curve of w ---------------------------------------------------------------------------------------------
def curve_figure(curve: PriceCurve) -> Figure:
    """Price, attackers' success and the planned estimates against w, in four panels that share the axis.

    A vertical line marks the plan's w. Bands are 95 % intervals.
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        whose = "made-up values" if curve.made_up else f"{curve.n:,} records"
        figure = _page(
            9.4,
            6.9,
            f"{curve.study}: what a weight w buys, and what it costs",
            f"{whose}, {curve.d} encoded columns; {curve.held_back:,} records held back, {curve.draws} draws per "
            "weight, none of them a release",
        )
        grid = figure.add_gridspec(2, 2, left=0.065, right=0.845, bottom=0.085, top=0.835, hspace=0.42, wspace=0.56)
        price, success, auc, utility = (figure.add_subplot(grid[k // 2, k % 2]) for k in range(4))
        w = np.array([point.w for point in curve.points])
        _price_panel(price, curve, w)
        _success_panel(success, curve, w)
        _auc_panel(auc, curve, w)
        _utility_panel(utility, curve, w)
        for axes in (price, success, auc, utility):
            axes.set_xlim(0, 1)
            axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"])
            axes.axvline(curve.planned, color=_INK, lw=0.8, ls=(0, (1, 2)), zorder=1)
        price.annotate(
            f"plan: w = {curve.planned:.3g}",
            (curve.planned, 1.0),
            (-4 if curve.planned > 0.3 else 4, -2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if curve.planned > 0.3 else "left",
            va="top",
            size=_SMALL,
            color=_INK,
        )
        for axes in (auc, utility):
            axes.set_xlabel("weight w of the data", size=_SMALL)
        return figure


def _price_panel(axes: Axes, curve: PriceCurve, w: NDArray[np.float64]) -> None:
    _panel(axes, f"True ε, given {FLOW}, at δ = {shown_delta(curve.delta)}")
    eps = np.array([0.0 if point.epsilon is None else point.epsilon for point in curve.points])
    paid = eps > 0
    axes.set_yscale("log")
    low, high = min(0.5, float(eps[paid].min()) / 1.5), max(20.0, float(eps[paid].max()) * 1.6)
    axes.set_ylim(low, high)
    axes.set_yticks(
        [t for t in (0.1, 1, 10, 100, 1000, 10000) if low <= t <= high],
        [f"{t:g}" for t in (0.1, 1, 10, 100, 1000, 10000) if low <= t <= high],
    )
    axes.minorticks_off()
    axes.axhspan(NOT_MEANINGFUL, high, color=_BAND, zorder=0, lw=0)
    axes.text(
        0.985,
        NOT_MEANINGFUL * 1.12,
        "above 10: no meaningful guarantee",
        size=_SMALL - 0.5,
        color=_GREY,
        ha="right",
        bbox={"facecolor": _BAND, "edgecolor": "none", "pad": 1.5},
    )
    axes.plot(w[paid], eps[paid], color=_INK, lw=1.8, marker="o", ms=3.2)
    _label(axes, w[-1], eps[-1], f"ε = {shown_epsilon(eps[-1])}", _INK)


def _success_panel(axes: Axes, curve: PriceCurve, w: NDArray[np.float64]) -> None:
    _panel(axes, "Patients whom an attack recognises")
    series = (
        ("own row nearest", [p.own_row for p in curve.points], _ORANGE, "-"),
        ("holder of the flow,\nat 1 % false alarms", [p.hits for p in curve.points], _BLUE, (0, (5, 1.5))),
    )
    fine = np.linspace(0, 1, 400, endpoint=False)
    bound = special.ndtr(special.ndtri(0.01) + 2 * curve.radius * np.sqrt(fine / (1 - fine)))
    axes.plot(fine, bound, color=_GREY, lw=1.2, ls=(0, (1, 1.5)))
    ends = [("at most, by the\nexact bound given\nthe flow", float(bound[-1]), _GREY)]
    for name, rates, colour, dash in series:
        axes.fill_between(w, [r.low for r in rates], [r.high for r in rates], color=colour, alpha=0.16, lw=0)
        axes.plot(w, [r.value for r in rates], color=colour, lw=1.8, ls=dash, marker="o", ms=3.2)
        ends.append((name, rates[-1].value, colour))
    axes.set_ylim(-0.02, 1.04)
    _percent(axes.yaxis)
    _labels(axes, float(w[-1]), ends)


def _auc_panel(axes: Axes, curve: PriceCurve, w: NDArray[np.float64]) -> None:
    _panel(axes, "Telling members from others: AUC")
    ends = []
    for name, rates, colour, dash in (
        ("nearest row", [p.distance_auc for p in curve.points], _GREEN, "-"),
        ("holder of the flow", [p.flow_auc for p in curve.points], _BLUE, (0, (5, 1.5))),
    ):
        axes.fill_between(w, [r.low for r in rates], [r.high for r in rates], color=colour, alpha=0.16, lw=0)
        axes.plot(w, [r.value for r in rates], color=colour, lw=1.8, ls=dash, marker="o", ms=3.2)
        ends.append((name, rates[-1].value, colour))
    low = min(0.45, *(p.distance_auc.low for p in curve.points), *(p.flow_auc.low for p in curve.points))
    axes.set_ylim(low - 0.01, 1.02)
    axes.axhline(0.5, color=_GREY, lw=0.8)
    axes.text(0.985, 0.497, "guessing", size=_SMALL - 0.5, color=_GREY, ha="right", va="top")
    _labels(axes, float(w[-1]), ends)


def _utility_panel(axes: Axes, curve: PriceCurve, w: NDArray[np.float64]) -> None:
    _panel(axes, "Planned estimates: relative error of the release")
    names = list(curve.points[0].errors)
    if not names:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no planned estimate has a relative\nerror on this table", ha="center", va="center",
                  transform=axes.transAxes, color=_GREY, size=_TEXT)  # fmt: skip
        return
    for name in names:
        line = np.array([p.errors[name] for p in curve.points], dtype=np.float64)  # None becomes NaN
        axes.plot(w, line, color=_PINK, lw=0.8, alpha=0.55)
    middle = np.array([p.error for p in curve.points], dtype=np.float64)
    axes.plot(w, middle, color=_PINK, lw=2.0, marker="o", ms=3.2)
    shown = [p.errors[n] for p in curve.points for n in names]
    known = np.array([v for v in shown if v is not None and v > 0])
    if len(known):
        # One term that is nearly unknown must not flatten all others.
        top = 1.08 * max(float(np.quantile(known, 0.95)), 1.05 * float(np.nanmax(middle)))
        axes.set_ylim(0, top)
        if known.max() > top:
            axes.text(0.985, 0.985, "some terms lie above", transform=axes.transAxes, size=_SMALL - 0.5, color=_GREY,
                      ha="right", va="top", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
    else:
        axes.set_ylim(0, 1)
    _percent(axes.yaxis, 0 if axes.get_ylim()[1] > 0.06 else 1)
    last = max((k for k, v in enumerate(middle) if not math.isnan(v)), default=0)
    many = f"median of\n{len(names)} terms" if len(names) > 1 else names[0]
    _label(axes, float(w[last]), float(middle[last]), many, _PINK)


def _label(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    _labels(axes, x, [(text, y, colour)])


def _labels(axes: Axes, x: float, ends: Sequence[tuple[str, float, str]]) -> None:
    """Names at the ends of lines, moved apart so that none covers another."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"

    def place(y: float) -> float:
        if log:
            return (math.log(y) - math.log(low)) / (math.log(high) - math.log(low))
        return (y - low) / (high - low)

    height = axes.get_position().height * axes.figure.get_figheight()  # type: ignore[union-attr]
    line = 0.145 / height
    ordered = sorted(((place(y), text, colour) for text, y, colour in ends), key=lambda end: end[0])
    tall = [line * (text.count("\n") + 1) + 0.02 for _, text, _ in ordered]
    at = [y for y, _, _ in ordered]
    for _ in range(50):
        for k in range(len(at) - 1):
            overlap = (tall[k] + tall[k + 1]) / 2 - (at[k + 1] - at[k])
            if overlap > 0:
                at[k] -= overlap / 2
                at[k + 1] += overlap / 2
        at = [min(max(y, tall[k] / 2 - 0.05), 1.06 - tall[k] / 2) for k, y in enumerate(at)]
    for y, (_, text, colour) in zip(at, ordered, strict=True):
        style: dict[str, Any] = {"color": colour, "size": _SMALL, "va": "center", "linespacing": 1.15}
        axes.text(1.03, y, inert(text), transform=axes.transAxes, **style)


# -- the attackers' hits ----------------------------------------------------------------------------------------
def attack_figure(found: LikelihoodAttack, *, title: str, detail: str = "") -> Figure:
    """Hits against false alarms of who holds the flow, with a pointwise 95 % band and the exact bound.

    Both axes are logarithmic where it matters: an attack that is right about a few patients and falsely accuses
    nobody is what a hospital has to fear, and a linear plot hides it in its corner.
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure = _page(6.6, 5.4, title, detail)
        axes = figure.add_axes((0.11, 0.13, 0.68, 0.66))
        least = max(1e-4, 1 / found.n_held_back)
        points = np.array([p for p in found.roc if p[0] >= least] or [(1.0, 1.0)])
        alarms, hits = points.T
        counts = np.round(hits * found.n_members)
        low = np.where(counts > 0, special.betaincinv(np.maximum(counts, 1), found.n_members - counts + 1, 0.025), 0)
        upper = special.betaincinv(counts + 1, np.maximum(found.n_members - counts, 1), 0.975)
        high = np.where(counts < found.n_members, upper, 1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        floor = least / 2
        axes.set_xlim(least, 1.0)
        axes.set_ylim(floor, 1.15)
        fine = np.geomspace(least, 1, 300)
        axes.plot(fine, fine, color=_GREY, lw=0.9)
        mu = float(special.ndtri(found.bound) - special.ndtri(0.01)) if 0 < found.bound < 1 else math.inf
        bound = np.ones_like(fine) if math.isinf(mu) else special.ndtr(special.ndtri(fine) + mu)
        axes.plot(fine, bound, color=_INK, lw=1.1, ls=(0, (1, 1.5)))
        axes.fill_between(alarms, np.maximum(low, floor), np.maximum(high, floor), color=_BLUE, alpha=0.16, lw=0)
        axes.plot(alarms, np.maximum(hits, floor), color=_BLUE, lw=1.8)
        if found.false_alarms.value >= least:
            axes.plot([found.false_alarms.value], [max(found.hits.value, floor)], "o", color=_BLUE, ms=6, mec="white")
        ticks = [t for t in (0.0001, 0.001, 0.01, 0.1, 1.0) if t >= floor]
        axes.set_yticks(ticks, [f"{100 * t:g} %" for t in ticks])
        axes.set_xticks([t for t in ticks if t >= least], [f"{100 * t:g} %" for t in ticks if t >= least])
        axes.minorticks_off()
        axes.grid(axis="both", color=_BAND, lw=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel("false alarms: records held back that are taken for members", size=_SMALL)
        axes.set_title("Members recognised, against false alarms", loc="left", size=_TEXT, pad=8)
        _labels(axes, 1.0, [("at most, by the\nexact bound given\nthe flow", 1.0, _INK)])
        near = float(np.max(high, where=alarms < 8 * alarms[0], initial=floor))
        axes.text(
            float(alarms[0]),
            min(0.5, 1.15 * near),
            f"holder of the flow,\nAUC {found.auc.value:.2f}",
            color=_BLUE,
            size=_SMALL,
            linespacing=1.15,
        )
        axes.text(least * 2.6, least * 1.35, "guessing", color=_GREY, size=_SMALL)
        return figure


# -- margins ----------------------------------------------------------------------------------------------------
def margins_figure(real: pd.DataFrame, released: pd.DataFrame, dictionary: Dictionary, *, title: str) -> Figure:
    """Every released column beside the real one, shares of rows, for the approver.

    Args:
        real, released: tables in the released form (`Encoder.decode`), any number of rows each.
    """
    import matplotlib as mpl

    columns = dictionary.released
    if tuple(real.columns) != dictionary.names or tuple(released.columns) != dictionary.names:
        raise ParameterError("both tables must have the dictionary's columns", given=f"{real.shape[1]} columns")
    across = min(4, len(columns))
    down = -(-len(columns) // across)
    with mpl.rc_context(_STYLE):
        height = 1.25 + 1.72 * down
        figure = _page(10.0, height, title, f"{len(real):,} real records and {len(released):,} released rows")
        figure.text(0.7, 1 - 0.34 / height, "■ real", color=_GREY, size=_TEXT, va="center", ha="left")
        figure.text(0.77, 1 - 0.34 / height, "— released (synthetic)", color=_BLUE, size=_TEXT, va="center", ha="left")
        grid = figure.add_gridspec(
            down, across, left=0.055, right=0.975, bottom=0.55 / height, top=1 - 1.1 / height, hspace=0.75, wspace=0.32
        )
        for k, column in enumerate(columns):
            axes = figure.add_subplot(grid[k // across, k % across])
            _margin(axes, column, real[column.name], released[column.name])
        return figure


def _margin(axes: Axes, column: Column, real: pd.Series, released: pd.Series) -> None:
    from matplotlib.ticker import MaxNLocator

    unit = f", {column.unit}" if column.unit else ""
    found = margin(column, real, released)
    axes.set_title(inert(f"{column.name}{unit}"), loc="left", size=_TEXT, color=_INK, pad=5)
    if any(found.missing):
        before, after = found.missing
        axes.set_title(f"missing {before:.0%} → {after:.0%}", loc="right", size=_SMALL - 1, color=_GREY, pad=5)
    axes.tick_params(length=2, width=0.8)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_BAND, lw=0.8)
    shares = [np.array(part) for part in (found.real, found.released)]
    if found.edges is not None:
        if not found.edges:
            axes.set_yticks([])
            return
        axes.stairs(shares[0], found.edges, fill=True, color=_RULE)
        axes.stairs(shares[1], found.edges, color=_BLUE, lw=1.4)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=column.kind == "integer"))
    else:
        place = np.arange(len(found.labels))
        axes.bar(place, shares[0], width=0.72, color=_RULE)
        axes.hlines(shares[1], place - 0.42, place + 0.42, color=_BLUE, lw=1.8)
        names = [_short(level, 60 // max(1, len(place))) for level in found.labels]
        if len(place) > 12:
            axes.set_xticks([])
        else:
            axes.set_xticks(place, names)
    top = max(float(part.max()) for part in shares)
    axes.set_ylim(0, 1.12 * top if top else 1)
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    _percent(axes.yaxis)


def _short(text: str, most: int) -> str:
    text = inert(text)
    return text if len(text) <= max(3, most) else text[: max(2, most - 1)] + "…"


# -- bytes ------------------------------------------------------------------------------------------------------
def figure_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as ``svg``, ``png`` or ``pdf``: no date, no random identifier.

    Raises: ParameterError: another kind.
    """
    import matplotlib as mpl

    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None},
        "png": {"Software": None},
    }
    if kind not in metadata:
        raise ParameterError("a figure must be written as .svg, .pdf or .png", given=repr(kind))
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "tributary", "svg.fonttype": "path", "pdf.fonttype": 42}):
        figure.savefig(stream, format=kind, metadata=metadata[kind], dpi=160)
    return stream.getvalue()
