"""How a pooled result is shown: on the terminal, and as a figure, alike for analysts and for the study lead."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from shared.errors import ParameterError
from shared.privacy.stated import raised
from shared.terminal import number, table, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from coordinator.pooling.pool import PooledResult

__all__ = ["check_figure", "draw", "p_shown", "show_pooled", "sides"]


def check_figure(path: Path, kind: str) -> None:
    """Refuse a file that no figure of this kind can be written to, with a ParameterError."""
    if path.suffix.lower() not in (".svg", ".pdf", ".png", *([".csv"] if kind == "forest" else [])):
        raise ParameterError(
            "a figure must end in .svg, .pdf or .png",
            given=repr(path.name),
            next_step="The numbers of a forest plot are written as .csv.",
        )


def sides(text: str) -> tuple[str, str] | None:
    """Labels left and right of a null line. Raises: ParameterError: not two texts.

    >>> sides("Favours drug | Favours placebo")
    ('Favours drug', 'Favours placebo')
    """
    if not text:
        return None
    left, bar, right = (part.strip() for part in text.partition("|"))
    if not (left and bar and right) or "|" in right:
        raise ParameterError("--favours must name both sides", given=repr(text), next_step='As in "left|right".')
    return left, right


def draw(
    result: PooledResult,
    kind: str,
    *,
    title: str = "",
    note: str = "",
    ratio: bool | None = None,
    columns: dict[str, dict[str, str]] | None = None,
    group: tuple[str, Mapping[str, Any]] | None = None,
    favours: tuple[str, str] | None = None,
    sort: str = "",
    path: Path | None = None,
) -> None:
    """Draw the forest plot or one of its companions.

    Args:
        group: name and (label -> level) of the subgroups of a forest plot.
        favours: what lies left and right of its null line.
        sort: order of its rows (`coordinator.pooling.pool.ordered`); as they are when empty.
        path: of a forest plot it may end in .csv: then its numbers are written, mark by mark.
    Raises: ParameterError: an unknown kind or suffix, or subgroups or sides of another figure than the forest plot.
    """
    if kind == "forest":
        from coordinator.figures import forest as figures
        from coordinator.pooling.pool import ordered

        result = ordered(result, sort) if sort else result
        # In one order, whether the columns come from the program or from a document, whose keys are sorted.
        columns = dict(
            raised(head.replace("posture", "Posture"), (columns or {})[head])
            for head in sorted(columns or {}, reverse=True)
        )
        more: dict[str, Any] = {"favours": favours}
        if group is not None:
            from coordinator.pooling.subgroups import subgroups

            name, levels = group
            more |= {"groups": subgroups(result, [levels.get(label) for label in result.labels]), "by": name}
        if path is not None and path.suffix.lower() == ".csv":
            shown = {name: more[name] for name in ("groups", "by") if name in more}
            write_table(figures.forest_table(result, ratio=ratio, **shown), path)
            return
        figures.forest(result, title=title, note=note, ratio=ratio, columns=columns, path=path, **more)
        return
    if group is not None or favours is not None or sort:
        raise ParameterError("subgroups, favours and an order must be of a forest plot", given=repr(kind))
    from coordinator.figures import companions as companion_figures
    from coordinator.pooling.diagnostics import trim_and_fill

    if kind not in companion_figures.KINDS:
        known = ", ".join(("forest", *companion_figures.KINDS))
        raise ParameterError(f"the figure must be one of {known}", given=repr(kind))
    filled = trim_and_fill(result) if kind == "funnel" else None
    companion_figures.draw(kind, result, title=title, note=note, ratio=ratio, filled=filled, path=path)


def show_pooled(out: Console, result: PooledResult, *, extra: dict[str, dict[str, str]] | None = None) -> None:
    """Draw a pooled result: a line per row, then both models, heterogeneity, and what was left out.

    Args:
        out: the console.
        result: what to draw; its numbers are shown off the analysis scale, under the name of its effect.
        extra: header to (label to cell): further columns, such as n and ε.
    """
    from math import floor, log10

    from rich.table import Table
    from rich.text import Text

    from shared.estimands.effects import SCALES, shown

    further = dict(raised(head, cells) for head, cells in (extra or {}).items())
    percent = f"{100 * result.level:g} % CI"
    half = NormalDist().inv_cdf((1 + result.level) / 2)

    narrowest = min(result.vi) ** 0.5
    decimals = 3 if SCALES[result.scale] else min(max(1 - floor(log10(narrowest)), 2), 8)

    def read(value: float) -> str:
        return f"{shown(value, result.scale):.{decimals}f}"

    def interval(low: float | None, high: float | None) -> str:
        return "–" if low is None or high is None else f"{read(low)} to {read(high)}"

    rows: list[list[Any]] = []
    for i, label in enumerate(result.labels):
        y, se = result.yi[i], result.vi[i] ** 0.5
        cells = [label, read(y), interval(y - half * se, y + half * se), f"{result.weights[i]:.1f}"]
        rows.append([*cells, *(column.get(label, "–") for column in further.values())])
    heads = ["site" if result.estimates else "study", result.effect.lower() or "estimate", percent]
    heads += ["weight %", *further]
    words = {head for head in further if head == "posture"}
    out.print(table(heads, rows, right=set(heads[1:]) - words))

    random = f"random effects ({result.method}, {result.test})"
    models = [("fixed effect", result.fixed)]
    if result.method != "FE":
        models.append((random, result))
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, fit in models:
        last = fit is models[-1][1]
        line = (name, read(fit.beta), interval(fit.ci_lb, fit.ci_ub), f"p {p_shown(fit.pval)}")
        grid.add_row(*(Text(cell, style="bold" if last else "") for cell in line))
    predicted = result.prediction_interval
    where = interval(predicted.lb, predicted.ub) if not predicted.empty else predicted.reason
    if result.method != "FE":
        grid.add_row(Text("prediction interval"), Text(""), Text(where), Text("a new site's effect", style="dim"))
    out.print()
    out.print(grid)
    if result.df:
        parts = [f"Q {result.QE:.2f} on {result.df} df, p {p_shown(result.QEp)}", f"I² {result.I2:.0f} %"]
        if result.method != "FE":
            between = result.tau2_interval
            bounds = "" if between.empty else f" ({number(between.lb or 0.0)} to {number(between.ub or 0.0)})"
            parts.insert(0, f"τ² {number(result.tau2)}{bounds}")
        on = f" (on the {SCALES[result.scale]} scale)" if SCALES[result.scale] else ""
        out.print(f"between sites{on}: " + "   ".join(parts))
    if result.pooled_noise_share > 0:
        out.print(f"privacy noise: {result.pooled_noise_share:.0f} % of the variance of the pooled estimate")
        if result.df:
            hospitals, releases, patients = result.spread
            out.print(
                f"spread of the sites' estimates: {hospitals:.0f} % between hospitals, {releases:.0f} % between "
                f"releases of one (noise), {patients:.0f} % which patients came"
            )
    if result.naive is not None:
        claimed = interval(result.naive.ci_lb, result.naive.ci_ub)
        out.print(f"naive interval, released rows taken for patients: {claimed}", style="dim")
    if result.excluded:
        out.print()
        for row in result.excluded:
            out.print(f"left out  {row.label}: {row.reason}", style="yellow")
    if result.notes:
        out.print()
        for note in result.notes:
            out.print(f"note  {note}", style="dim")


def p_shown(value: float) -> str:
    """A p-value in three decimals, or that it is below the least of these."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
