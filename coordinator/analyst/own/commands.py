"""`analyst pool`, `tables`, `forest`: what a spreadsheet holds, pooled without a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.options import Favours, FurtherOptions, PoolingOptions
from coordinator.analyst.own.table import OwnTable, counts, read_table
from coordinator.analyst.own.together import TogetherOptions
from coordinator.analyst.show import check_figure, draw, p_shown, show_pooled, sides
from coordinator.figures.options import FigureOptions
from shared.errors import ParameterError
from shared.terminal import VerbAnswer, number

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.pooling.sparse.two_by_two import TwoByTwoTables

__all__ = ["forest", "pool", "tables"]

Mods = Annotated[list[str] | None, typer.Option("--mods", help="A moderator of a meta-regression; repeat for several.")]
Subgroup = Annotated[str, typer.Option("--subgroup", help="Pool each of its levels apart, and compare them.")]
Profiles = Annotated[
    bool, typer.Option("--profiles", help="The table holds likelihoods, as EvidenceSynthesis writes them: add them.")
]


def pool(
    own: OwnTable,
    pooling: PoolingOptions,
    further: FurtherOptions,
    together: TogetherOptions,
    mods: Mods = None,
    subgroup: Subgroup = "",
    profiles: Profiles = False,
) -> VerbAnswer:
    """Pool: fixed effect and random effects, heterogeneity, prediction interval, and what was left out."""
    from coordinator.pooling import analyses
    from coordinator.pooling.pool import pooled_data

    if profiles or together.terms:
        if profiles and together.terms:
            raise ParameterError("a table must be of likelihoods or of several coefficients", given="both")
        if mods or subgroup or further.exact or further.diagnostics or (together.terms and further.bayes):
            what = "of likelihoods (--profiles)" if profiles else "of several coefficients (--terms)"
            raise ParameterError("further analyses must be of one estimate for each study", given=f"a table {what}")
        return _likelihoods(own, pooling, further) if profiles else _together(own, pooling, together)
    result = own.pooled(**pooling.how)
    facts = own.facts([*(mods or []), *([subgroup] if subgroup else [])])
    by = {name: facts[name] for name in mods or []}
    request = analyses.AnalysisRequest(
        mods=by, group=(subgroup, facts[subgroup]) if subgroup else None, **asdict(further)
    )
    answers = analyses.analyse(result, request)
    return VerbAnswer(
        {**pooled_data(result), **answers},
        lambda out: show_pooled(out, result),
        lambda out: analyses.show(out, result, answers),
    )


def tables(
    file: Annotated[Path, typer.Argument(help="Table with one row per study: .csv, .tsv or .parquet.")],
    measure: Annotated[str, typer.Option("--measure", help="OR, RR or RD.")] = "OR",
    method: Annotated[
        str, typer.Option("--method", help="MH (Mantel-Haenszel), Peto or likelihood (odds ratio).")
    ] = "MH",
    cells: Annotated[str, typer.Option("--cells", help="Columns: events, none; the same in the second group.")] = (
        "ai,bi,ci,di"
    ),
    labels: Annotated[str, typer.Option("--labels", help="Column that names the rows.")] = "",
    level: Annotated[float, typer.Option("--level", help="Coverage of every interval.")] = 0.95,
) -> VerbAnswer:
    """Pool 2×2 tables of counts; nothing is added to a zero. Rows and random effects: `analyst pool --cells`."""
    from coordinator.pooling.sparse.two_by_two import mantel_haenszel, peto

    given = read_table(file)
    found = counts(given, cells, OwnTable(file=file, labels=labels).names(given))
    if method not in ("MH", "Peto", "likelihood"):
        raise ParameterError("method must be one of MH, Peto, likelihood", given=repr(method))
    if method != "MH" and measure != "OR":
        raise ParameterError(f"the method {method} must have the measure OR", given=measure)
    if method == "likelihood":
        return _conditional(found, level)
    result = peto(found, level=level) if method == "Peto" else mantel_haenszel(found, measure, level=level)  # type: ignore[arg-type]

    def show(out: Console) -> None:
        from math import exp

        if result.beta is None or result.ci_lb is None or result.ci_ub is None:
            out.print(result.reason, style="yellow")
        else:
            back = exp if measure != "RD" else float
            ends = f"{number(back(result.ci_lb))} to {number(back(result.ci_ub))}"
            effect = f"{result.measure} {number(back(result.beta))}"
            out.print(f"{effect} ({100 * level:g} % CI {ends}), p {p_shown(result.pval or 0.0)}", style="bold")
            out.print(f"{result.k} tables; Q {result.QE:.2f}, p {p_shown(result.QEp or 0.0)}, I² {result.I2:.0f} %")
        for note in result.notes:
            out.print(f"note  {note}", style="dim")

    return VerbAnswer(result, show)


def forest(
    own: OwnTable,
    pooling: PoolingOptions,
    look: FigureOptions,
    out: Annotated[
        Path, typer.Option("--out", help="Figure to write: .svg, .pdf, .png, .eps or .tif; its numbers: .csv.")
    ],
    title: Annotated[str, typer.Option("--title", help="Title of the figure.")] = "",
    kind: Annotated[
        str, typer.Option("--kind", help="forest, leave-one-out, cumulative, funnel, baujat, influence or bubble.")
    ] = "forest",
    subgroup: Subgroup = "",
    favours: Favours = "",
    sort: Annotated[str, typer.Option("--sort", help="Rows by name, estimate, weight, or a column such as year.")] = "",
    column: Annotated[
        list[str] | None, typer.Option("--column", help="A column to show beside the rows; repeatable.")
    ] = None,
    mods: Annotated[str, typer.Option("--mods", help="Of a bubble plot: the column of the moderator.")] = "",
    contours: Annotated[bool, typer.Option("--contours", help="Of a funnel: shade by the p-value of a study.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Pool, but write no file.")] = False,
) -> VerbAnswer:
    """Draw the forest plot of a table, or one of the figures beside it."""
    result = own.pooled(**pooling.how)
    check_figure(out, kind)
    by = [] if sort in ("", "name", "estimate", "weight") else [sort]
    facts = own.facts([*([subgroup] if subgroup else []), *(column or []), *by, *([mods] if mods else [])])
    more: dict[str, Any] = {"favours": sides(favours), "sort": sort, "contours": contours}
    more["group"] = (subgroup, facts[subgroup]) if subgroup else None
    more["ranked"] = facts[sort] if by else None
    more["moderator"] = (mods, facts[mods]) if mods else None
    more["columns"] = {name: {row: str(value) for row, value in facts[name].items()} for name in column or []}
    with look.drawing():
        draw(result, kind, title=title, path=None if dry_run else out, **more)
    made = {"figure": str(out), "kind": kind, "rows": result.k, "written": not dry_run}
    return VerbAnswer(made, f"{'would write' if dry_run else 'wrote'} {out}")


def _likelihoods(own: OwnTable, pooling: PoolingOptions, further: FurtherOptions) -> VerbAnswer:
    """Likelihood profiles added, and with ``--bayes`` effects that vary between them."""
    from math import exp

    from coordinator.analyst.own.profiles import profiles_of, show_profiles
    from coordinator.pooling.sparse.profiles import pool_profiles, pool_profiles_random
    from shared.terminal import plain

    given = read_table(own.file)
    form, found, lost = profiles_of(given, own.names(given), own.labels)
    result = pool_profiles(found, level=pooling.level, excluded=lost)
    posterior = pool_profiles_random(found, scale=further.scale, level=pooling.level) if further.bayes else None
    data = {"form": form, "scale": "log", **plain(result)}
    if posterior is not None:
        data["bayes"] = plain(posterior)
    return VerbAnswer(data, lambda out: show_profiles(out, form, result, posterior, lambda x: f"{exp(x):.3f}"))


def _together(own: OwnTable, pooling: PoolingOptions, together: TogetherOptions) -> VerbAnswer:
    """Several coefficients of each study pooled together."""
    from coordinator.analyst.own.together import joint_rows_of, show_joint
    from coordinator.pooling.multivariate import pool_joint

    given = read_table(own.file)
    yi, vi = own.estimates(given, variances=together.rho is not None)
    rows, terms = joint_rows_of(given, own.named_by(given), yi, vi, together)
    found = pool_joint(
        rows,
        terms,
        method=pooling.method,
        structure=together.structure,  # type: ignore[arg-type]
        test=pooling.test,  # type: ignore[arg-type]
        level=pooling.level,
    )
    scale, effect = own.scale(given)
    return VerbAnswer(
        {**found.data, "scale": scale, "effect": effect}, lambda out: show_joint(out, found, ratio=scale == "log")
    )


def _conditional(tables: TwoByTwoTables, level: float) -> VerbAnswer:
    """The conditional likelihoods of 2×2 tables added: the exact counterpart of Mantel and Haenszel's odds ratio."""
    from math import exp

    import numpy as np

    from coordinator.analyst.own.profiles import show_profiles
    from coordinator.pooling.sparse.profiles import counts_profile, pool_profiles
    from shared.terminal import plain

    cells = np.array([tables.ai, tables.bi, tables.ci, tables.di], dtype=int).T
    rows = [counts_profile(label, *map(int, row)) for label, row in zip(tables.labels, cells, strict=True)]
    found = pool_profiles(rows, level=level)
    data = {"measure": "OR", "scale": "log", **plain(found)}
    return VerbAnswer(data, lambda out: show_profiles(out, "2×2, conditional", found, None, lambda x: f"{exp(x):.3f}"))
