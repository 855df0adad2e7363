"""Display of a pooled result on the terminal and as a figure, the same for analysts and for the study lead."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from coordinator.figures.style import check_file
from shared.errors import ParameterError
from shared.privacy.stated import raised
from shared.terminal import number, p_shown, table, write_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.console import Console

    from coordinator.pooling.pool import PooledResult
    from coordinator.pooling.secure_sum.answer import SummedAnswer

__all__ = [
    "FigureContent",
    "PooledText",
    "cautions_html",
    "check_figure",
    "draw",
    "further_cautions",
    "html_table",
    "joint_lines",
    "p_shown",
    "paragraphs",
    "pooled_html",
    "pooled_text",
    "show_cautions",
    "show_pooled",
    "show_terms",
    "sides",
    "terms_table",
    "unanswered_terms",
]


def check_figure(path: Path, kind: str) -> None:
    """Refuse a file that no figure of this kind can be written to, with a ParameterError."""
    check_file(path, *([".csv"] if kind == "forest" else []))


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


@dataclass(frozen=True, kw_only=True)
class FigureContent:
    """Content of a figure of a pooled result, apart from the result itself.

    Args:
        title, note: above it, and one line under the title.
        columns: of a forest plot, head -> (label -> cell), beside its rows.
        group: name and (label -> level) of the subgroups of a forest plot.
        favours: labels left and right of its null line.
        sort: order of its rows, or of a cumulative figure's (`coordinator.pooling.further.refits.ordered`); as they are
            when empty.
        ranked: label -> value that the rows are sorted by instead, as by year.
        contours, moderator: of a funnel and a bubble plot (`coordinator.figures.companions.draw`).
    """

    title: str = ""
    note: str = ""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group: tuple[str, Mapping[str, Any]] | None = None
    favours: tuple[str, str] | None = None
    sort: str = ""
    ranked: Mapping[str, Any] | None = None
    contours: bool = False
    moderator: tuple[str, Mapping[str, Any]] | None = None


def draw(result: PooledResult, kind: str, content: FigureContent, *, path: Path | None) -> None:
    """Draw the forest plot or one of its companions.

    Args:
        path: of a forest plot it may end in .csv: then its numbers are written, mark by mark; nothing is written if
            None.
    Raises: ParameterError: an unknown kind or suffix, or subgroups or sides of another figure than the forest plot.
    """
    sort = content.sort
    if (sort or content.ranked) and kind in ("forest", "cumulative"):
        from coordinator.pooling.further.refits import ordered

        result, sort = ordered(result, sort, values=content.ranked), ""
    words: dict[str, Any] = {"title": content.title, "note": content.note, "path": path}
    if kind == "forest":
        from coordinator.figures import forest as figures

        # In one order, whether the columns come from the program or from a document, whose keys are sorted.
        columns = dict(
            raised(head.replace("posture", "Posture"), content.columns[head])
            for head in sorted(content.columns, reverse=True)
        )
        more: dict[str, Any] = {}
        if content.group is not None:
            from coordinator.pooling.subgroups import subgroups

            name, levels = content.group
            more |= {"groups": subgroups(result, [levels.get(label) for label in result.labels]), "by": name}
        if path is not None and path.suffix.lower() == ".csv":
            write_table(figures.forest_table(result, **more), path)
            return
        figures.forest(result, columns=columns, favours=content.favours, **more, **words)
        return
    if content.group is not None or content.favours is not None or sort:
        raise ParameterError("subgroups, favours and an order must be of another figure", given=repr(kind))
    from coordinator.figures import companions as companion_figures
    from coordinator.pooling.rows import require_known

    require_known(kind, ("forest", *companion_figures.KINDS), "the figure")
    options: dict[str, Any] = {"contours": content.contours, "moderator": content.moderator}
    companion_figures.draw(kind, result, **words, **options)


@dataclass(frozen=True, kw_only=True)
class PooledText:
    """A pooled result in words and figures, for a terminal and for a page alike.

    Args:
        heads, rows: a line per row that was pooled; `worded` are the heads of words, the others hold numbers.
        models: name, estimate, interval and p of each model, and the prediction interval.
        sentences: heterogeneity, privacy noise, and what a naive reader would claim.
        left_out: sites that could not be pooled, with the reason.
        cautions: sentences on errors that the interval may not include; a reader sees them before any figure.
        notes: further sentences that a reader must see.
    """

    heads: tuple[str, ...]
    worded: frozenset[str]
    rows: tuple[tuple[str, ...], ...]
    models: tuple[tuple[str, str, str, str], ...]
    sentences: tuple[str, ...]
    left_out: tuple[str, ...]
    cautions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def marked(self) -> tuple[tuple[str, tuple[str, ...], str], ...]:
        """Blocks of lines below the figures: (heading, lines, terminal style) of each."""
        return (("left out", self.left_out, "yellow"), ("note", self.notes, "dim"))


def _decimals(result: PooledResult) -> int:
    """Decimals of estimates and intervals; off a transformed scale three, or more where the narrowest would vanish."""
    from math import floor, log10

    from shared.estimands.effects import SCALES, shown

    narrowest = min(result.vi) ** 0.5
    if not SCALES[result.scale]:
        return min(max(1 - floor(log10(narrowest)), 2), 8)
    above, below = (shown(result.fixed.beta + side * narrowest, result.scale) for side in (1, -1))
    return min(max(3, -floor(log10(max(above - below, 1e-8) / 2))), 8)


def pooled_text(result: PooledResult, *, extra: Mapping[str, Mapping[str, str]] | None = None) -> PooledText:
    """A pooled result as text, off the analysis scale, under the name of its effect.

    Args:
        extra: header to (label to cell): further columns, such as n and ε.
    """
    from shared.estimands.effects import NNT, number_needed, shown

    further = dict(raised(head, dict(cells)) for head, cells in (extra or {}).items())
    percent = f"{100 * result.level:g} % CI"
    half = NormalDist().inv_cdf((1 + result.level) / 2)
    decimals = _decimals(result)

    def read(value: float) -> str:
        return f"{shown(value, result.scale):.{decimals}f}"

    def interval(low: float | None, high: float | None) -> str:
        return "–" if low is None or high is None else f"{read(low)} to {read(high)}"

    rows = []
    for i, label in enumerate(result.labels):
        y, se = result.yi[i], result.row_errors[i]
        cells = (label, read(y), interval(y - half * se, y + half * se), f"{result.weights[i]:.1f}")
        rows.append((*cells, *(column.get(label, "–") for column in further.values())))
    heads = (result.unit, result.effect.lower() or "estimate", percent, "weight %")
    alone = result.k == 1
    models = [("not pooled" if alone else "fixed effect", result.fixed)]
    if result.method != "FE" and not alone:
        models.append((f"random effects ({result.method}, {result.test})", result))
    tests = [f"p {p_shown(fit.pval)}" if fit.compares else "" for _, fit in models]
    lines = [
        (name, read(fit.beta), interval(fit.ci_lb, fit.ci_ub), p) for (name, fit), p in zip(models, tests, strict=True)
    ]
    if (total := result.summed) is not None:
        ends = interval(total.ci_lb, total.ci_ub)
        lines = [(f"releases, {name}", value, where, p) for name, value, where, p in lines]
        lines.insert(
            0, (f"secure sum, {len(total.sites)} sites", read(total.estimate), ends, f"p {p_shown(total.pval)}")
        )
    predicted = result.prediction_interval
    if result.method != "FE" and not alone:
        where = predicted.reason if predicted.empty else interval(predicted.lb, predicted.ub)
        lines.append(("prediction interval", "", where, f"a new {result.unit}'s effect"))
    sentences = [] if total is None else _of_the_sum(total)
    if result.effect == NNT:
        sentences.append(f"number needed, {percent}: {number_needed(result.beta, result.ci_lb, result.ci_ub)}")
    if result.df:
        sentences.append(_between(result))
    if result.pooled_noise_share > 0:
        whose = "estimate" if alone else "pooled estimate" if total is None else "pooled releases"
        sentences.append(f"privacy noise: {result.pooled_noise_share:.0f} % of the variance of the {whose}")
        if result.df:
            hospitals, releases, patients = (max(part, 0.0) for part in result.spread)
            sentences.append(
                f"spread of the sites' estimates: {hospitals:.0f} % between hospitals, {releases:.0f} % between "
                f"releases of one (noise), {patients:.0f} % which patients came"
            )
    if result.naive is not None:
        claimed = interval(result.naive.ci_lb, result.naive.ci_ub)
        sentences.append(f"naive interval, released rows taken for patients: {claimed}")
        if result.naive.ci_ub - result.naive.ci_lb > result.ci_ub - result.ci_lb:
            sentences[-1] += " (wider here: noise that it does not know makes sites look more different than they are)"
    return PooledText(
        heads=(*heads, *further),
        worded=frozenset({heads[0], *(head for head in further if head == "posture")}),
        rows=tuple(rows),
        models=tuple(lines),
        sentences=tuple(sentences),
        left_out=tuple(f"{row.label}: {row.reason}" for row in result.excluded),
        cautions=result.doubts,
        notes=tuple(note for note in result.notes if note not in result.doubts),
    )


def _of_the_sum(total: SummedAnswer) -> list[str]:
    """What the variance of a secure sum is made of, and its τ², which is none of the releases'."""
    noise, cut, pilots = (100 * part / total.variance for part in (total.noise, total.cut, total.pilots))
    return [
        f"variance of the secure sum: {noise:.0f} % privacy noise, {cut:.0f} % bounds on records, {pilots:.0f} % "
        "noise of the releases it was taken over",
        f"between sites, in the variance of the secure sum: τ² {number(total.tau2)}, what is expected of it given "
        "all releases, where the estimate from them may be 0",
    ]


def _between(result: PooledResult) -> str:
    """Heterogeneity in a sentence."""
    from shared.estimands.effects import SCALES

    parts = [f"Q {result.QE:.2f} on {result.df} df, p {p_shown(result.QEp)}", f"I² {result.I2:.0f} %"]
    if result.method != "FE":
        ends = result.tau2_interval
        bounds = "" if ends.empty else f" ({number(ends.lb or 0.0)} to {number(ends.ub or 0.0)})"
        parts.insert(0, f"τ² {number(result.tau2)}{bounds}")
    on = f" (on the {SCALES[result.scale]} scale)" if SCALES[result.scale] else ""
    whose = result.units if result.summed is None else "the releases of sites"
    return f"between {whose}{on}: " + "   ".join(parts)


def show_pooled(out: Console, result: PooledResult, *, extra: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Draw a pooled result: cautions, a line per row, then both models, heterogeneity, and what was left out.

    Args:
        extra: as of `pooled_text`.
    """
    from rich.table import Table
    from rich.text import Text

    text = pooled_text(result, extra=extra)
    show_cautions(out, text.cautions)
    out.print(table(text.heads, text.rows, right=set(text.heads) - text.worded))
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for line in text.models:
        first = ("random",) if result.summed is None else ("secure sum",)
        style = "bold" if line[0].startswith(first) or (result.method == "FE" and result.summed is None) else ""
        aside = "dim" if line[0].startswith("prediction") else style
        grid.add_row(*(Text(cell, style=style) for cell in line[:3]), Text(line[3], style=aside))
    out.print()
    out.print(grid)
    for sentence in text.sentences:
        out.print(sentence, style="dim" if sentence.startswith("naive") else None)
    for word, lines, style in text.marked:
        if lines:
            out.print()
        for sentence in lines:
            out.print(f"{word}  {sentence}", style=style)


def show_cautions(out: Console, sentences: Sequence[str]) -> None:
    """Draw cautions, which stand before the figures that they are about."""
    for sentence in sentences:
        out.print(f"caution  {sentence}", style="yellow")
    if sentences:
        out.print()


def cautions_html(sentences: Sequence[str]) -> str:
    """The same for a notebook."""
    return paragraphs([f"caution: {sentence}" for sentence in sentences])


def pooled_html(result: PooledResult, *, line: str = "", extra: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The same for a notebook: two tables, and every sentence of the printed text.

    Args:
        line: the result in one line, which stands below the cautions and above the tables.
    """
    text = pooled_text(result, extra=extra)
    models = html_table(("model", *text.heads[1:3], ""), text.models)
    notes = [*text.sentences, *(f"{word}: {line}" for word, lines, _ in text.marked for line in lines)]
    first = cautions_html(text.cautions) + paragraphs([line] if line else [])
    return first + html_table(text.heads, text.rows, worded=text.worded) + models + paragraphs(notes)


def html_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], *, worded: Collection[str] = ()) -> str:
    """A table whose cells are only text; columns of numbers are aligned to the right."""
    from html import escape

    right = [' style="text-align: right"' if head not in worded else ' style="text-align: left"' for head in heads]
    top = "".join(f"<th{how}>{escape(head)}</th>" for head, how in zip(heads, right, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{how}>{escape('–' if x is None else str(x))}</td>" for x, how in zip(row, right, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(sentences: Sequence[str]) -> str:
    """Sentences as paragraphs; what others wrote is only text."""
    from html import escape

    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def terms_table(rows: Sequence[Mapping[str, Any]], level: float) -> tuple[tuple[str, ...], list[list[str | None]]]:
    """Heads and cells of the table of all terms of a question (`coordinator.answers.queries.PooledAnswer.table`)."""
    effects = {row["effect"] for row in rows if row["effect"]}
    head = next(iter(effects)).lower() if len(effects) == 1 else "estimate"
    cells: list[list[str | None]] = []
    for row in rows:
        if row["reason"]:
            cells.append([row["term"], None, None, None, None, None, None])
            continue
        named = f"{number(row['estimate'])}" + ("" if len(effects) == 1 else f" ({row['effect'].lower()})")
        ends = f"{number(row['ci_lb'])} to {number(row['ci_ub'])}"
        # Of a secure sum's term these are of the releases, beside which it stands.
        apart = row["k"] > 1 and not row.get("summed")
        between = [number(row["tau2"]), f"{row['I2']:.0f} %"] if apart else [None, None]
        cells.append([row["term"], named, ends, p_shown(row["pval"]), f"{row['k']}", *between])
    return ("term", head, f"{100 * level:g} % CI", "p", "sites", "τ²", "I²"), cells


def unanswered_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Terms of a question without an answer, or without some sites that others have, each with the reasons.

    They stand below the table, which has a dash for the first, and of the second says of how many sites they are.
    """
    pooled = [row.get("left_out", {}) for row in rows if not row["reason"]]
    nowhere = set.intersection(*map(set, pooled)) if pooled else set()
    lines = []
    for row in rows:
        if row["reason"]:
            lines.append(f"{row['term']}: {row['reason']}")
            continue
        why: dict[str, list[str]] = {}
        for label, reason in row.get("left_out", {}).items():
            if label not in nowhere:
                why.setdefault(reason, []).append(label)
        if why:
            said = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in why.items())
            lines.append(f"{row['term']}: of {row['k']} site{'s' * (row['k'] != 1)} only ({said})")
    return lines


def further_cautions(rows: Sequence[Mapping[str, Any]], said: Collection[str]) -> list[str]:
    """Cautions on the terms of a question that do not stand by the one that was asked for, each once.

    One that is not of all terms, and names none, is told with those that it is of.

    >>> further_cautions([{"term": "a"}, {"term": "b", "cautions": ["1 of 3 sites is left out"]}], ())
    ['b: 1 of 3 sites is left out']
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        for one in dict.fromkeys(row.get("cautions", ())):
            found.setdefault(one, []).append(row["term"])
    return [
        one if len(terms) == len(rows) or any(term in one for term in terms) else f"{', '.join(terms)}: {one}"
        for one, terms in found.items()
        if one not in said
    ]


def joint_lines(document: Mapping[str, Any]) -> list[str]:
    """Lines on the joint test of every term with several coefficients in an answer, or why there is none."""
    return [f"{one['term']}: {one['reason'] or one['sentence']}" for one in document.get("joint", ())]


def show_terms(
    out: Console,
    rows: Sequence[Mapping[str, Any]],
    level: float,
    *,
    said: Collection[str] = (),
    joint: Sequence[str] = (),
) -> None:
    """Draw the table of all terms of a question.

    Args:
        said: cautions that were drawn already.
        joint: `joint_lines` of the answer.
    """
    heads, cells = terms_table(rows, level)
    out.print("all terms, each pooled by itself", style="bold")
    show_cautions(out, further_cautions(rows, said))
    out.print(table(heads, cells, right=heads[1:]))
    for line in (*unanswered_terms(rows), *joint):
        out.print(line)
