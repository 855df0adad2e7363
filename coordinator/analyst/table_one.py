"""Table 1, cross-table or histogram of a study, by group and site, from privatised releases, as text and as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.shown import Shown
from shared.errors import ParameterError
from shared.terminal import without_formulas

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


__all__ = ["By", "Columns", "TableOne", "TableOut", "check_out", "described", "question_of"]

Columns = Annotated[list[str], typer.Argument(help="Columns, as in age sex sbp.")]
By = Annotated[str, typer.Option("--by", help="A column with levels: each apart, and compared with the first.")]
TableOut = Annotated[Path | None, typer.Option("--out", help="Also write it: .html, .csv, .tex or .json.")]
POOLED = "all sites"
_PRIVATISED = "Privatised rows: estimates from releases, not from records."
_COLUMNS = ("site", "group", "column", "level", "statistic", "estimate", "ci_lb", "ci_ub", "n", "n_missing", "reason")
_SHARES = ("share", "missing")
_RATIOS = ("odds_ratio",)
"""Statistics whose lower end has as many digits as the upper one, however far apart they are."""


def question_of(columns: Sequence[str], by: str = "") -> str:
    """The question that a Table 1 of these columns is.

    >>> question_of(["age", "sex"], "arm")
    'table_one(age, sex, by = arm)'
    """
    return f"table_one({', '.join((*columns, *([f'by = {by}'] if by else [])))})"


class TableOne(Shown):
    """One answer to a question that describes (`DESCRIBED`): a cell per site, group, column and statistic.

    Args:
        document: the whole answer, as the coordinator gives it.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.cells: list[dict[str, Any]] = [dict(cell) for cell in document["cells"]]

    @property
    def id(self) -> str:
        """The result's id; blank if it was computed from the store directly."""
        return str(self.document.get("result", ""))

    @property
    def heading(self) -> str:
        """Heading: the subject, study and wave, and the statement that estimates are from releases, not records."""
        level, subject = 100 * self.document["asked"]["level"], self.document["title"].partition(":")[0]
        return (
            f"{subject} of {self.document['study']}, wave {self.document['wave']}. {_PRIVATISED} "
            f"Intervals ({level:g} %) hold sampling, the flow's fit and the noise."
        )

    @property
    def cautions(self) -> tuple[str, ...]:
        """Cautions on the intervals of its cells, what these may not hold: each once, with all sites it is said of."""
        of_cells = [said for line in self.document["table"] for said in line["cautions"]]
        apart = [site for site in self.sites if site != POOLED]
        return _merged([*self.document.get("doubts", ()), *of_cells], apart)

    @property
    def notes(self) -> tuple[str, ...]:
        """How to read it: notes of an answer are on the one cell that was pooled first, which they name."""
        return tuple(f"{self.document['term']}: {said}" for said in self.document["cautions"])

    def to_frame(self) -> pd.DataFrame:
        """A line per cell, on the scale of the column; shares as shares."""
        import pandas as pd

        return pd.DataFrame([{name: cell[name] for name in _COLUMNS} for cell in self.cells], columns=list(_COLUMNS))

    def wide(self, sites: Sequence[str] = (POOLED,)) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of text: a column for each site and group; by itself the pooled ones."""
        groups = list(dict.fromkeys(cell["group"] for cell in self.cells))
        places = [(site, group) for site in sites for group in groups]
        text = {
            (cell["site"], cell["group"], cell["column"], cell["level"], cell["statistic"]): _shown(cell)
            for cell in self.cells
        }
        lines = list(
            dict.fromkeys(
                (cell["column"], cell["level"], cell["statistic"]) for cell in self.cells if self._tells(cell)
            )
        )
        by = {"": "all"} | {group: group for group in groups if group}
        heads = ["column", "statistic"]
        heads += [by[group] if sites == (POOLED,) else f"{site}: {by[group]}" for site, group in places]
        rows = []
        for column, level, statistic in lines:
            cells = [text.get((site, group, column, level, statistic), "") for site, group in places]
            rows.append([f"{column} = {level}" if level else column, statistic, *cells])
        return heads, rows

    def _tells(self, cell: Mapping[str, Any]) -> bool:
        """False for the missing values of a column of which no row lacks one, and no release could have lacked one."""
        if cell["statistic"] != "missing":
            return True
        own = [one for one in self.cells if (one["statistic"], one["column"]) == ("missing", cell["column"])]
        return any(one["estimate"] is not None or one["n_missing"] for one in own)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site, and all of them pooled last."""
        return tuple(dict.fromkeys(cell["site"] for cell in self.cells))

    def show(self, out: Console) -> None:
        """Draw it, pooled over the sites; a file holds each of them."""
        from coordinator.analyst.show import show_cautions
        from shared.terminal import table

        show_cautions(out, self.cautions)
        out.print(self.heading, style="bold")
        heads, rows = self.wide()
        out.print(table(heads, rows))
        for joint in self.document["joint"]:
            out.print(f"independence: {joint['reason'] or joint['sentence']}")
        apart = [site for site in self.sites if site != POOLED]
        out.print(f"pooled over {len(apart)} sites (random effects); each of them: --out")
        for note in self.notes:
            out.print(f"note  {note}", style="dim")

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """A table of HTML, with its heading and cautions."""
        from html import escape

        heads, rows = self.wide(self.sites)
        said = "".join(f"<p>{escape(text)}</p>\n" for text in (*self.cautions, *self.notes))
        lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
        lines += ["".join(f"<td>{escape(text)}</td>" for text in row) for row in rows]
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        return f"{said}<table>\n<caption>{escape(self.heading)}</caption>\n{body}\n</table>\n"

    def latex(self) -> str:
        """A tabular of LaTeX, in a table with its heading as caption; cautions below."""
        heads, rows = self.wide(self.sites)
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in (heads, *rows)]
        said = "".join(f"\n\n{_tex(text)}" for text in (*self.cautions, *self.notes))
        inside = "\n".join([lines[0], r"\hline", *lines[1:]])
        return (
            f"\\begin{{table}}\n\\caption{{{_tex(self.heading)}}}\n\\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}\n"
            f"{inside}\n\\end{{tabular}}{said}\n\\end{{table}}\n"
        )

    def write(self, path: Path) -> None:
        """Write it as .html, .csv, .tex or .json. Raises: ParameterError: another suffix."""
        check_out(path)
        if path.suffix == ".csv":
            lines = [f"# {line}\n" for line in (self.heading, *self.cautions, *self.notes)]
            rows = without_formulas(self.to_frame()).to_csv(index=False)
            path.write_text("".join(lines) + rows, encoding="utf-8")
        elif path.suffix == ".json":
            data = {"heading": self.heading, "cautions": self.cautions, "notes": self.notes, "cells": self.cells}
            path.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        else:
            path.write_text(self.html() if path.suffix == ".html" else self.latex(), encoding="utf-8")


def described(
    study: Any, kind: str, columns: Sequence[str], *, out: Path | None, **how: Any
) -> tuple[Mapping[str, Any], Callable[[Console], None]]:
    """The document of a question that describes, and what draws it.

    Args:
        study: a `coordinator.analyst.remote.Study`.
        kind: table_one, crosstab or histogram.
        columns: those described.
        out: file to which the table is written as well; its suffix chooses the format.
        how: as of `coordinator.analyst.remote.Study.query`.
    Raises: ParameterError: a suffix that is not known; the coordinator's refusals.
    """
    if any("~" in column for column in columns):
        raise ParameterError(
            "columns must be given as words of their own, without a formula",
            given=repr(" ".join(columns)),
            next_step=f"As in: analyst {kind.replace('_', '-')} STUDY died ward.",
        )
    if out is not None:
        check_out(out)
    found = TableOne(study.query(kind, f"~ {' + '.join(columns)}", **how).document)
    if out is not None:
        found.write(out)
    return found.document, found.show


def _merged(said: Sequence[str], sites: Sequence[str]) -> tuple[str, ...]:
    """Each sentence once, before it the sites that it was said of; without them where it was said of all."""
    of: dict[str, set[str]] = {}
    for text in said:
        before, _, sentence = text.partition(": ")
        who = set(before.split(", "))
        if who <= set(sites):
            of.setdefault(sentence, set()).update(who)
        else:
            of.setdefault(text, set()).update(sites)
    every = set(sites)
    return tuple(
        text if who == every else f"{', '.join(site for site in sites if site in who)}: {text}"
        for text, who in of.items()
    )


def check_out(path: Path) -> None:
    """Refuse a file of another form, before anything is asked. Raises: ParameterError."""
    if path.suffix not in (".html", ".csv", ".tex", ".json"):
        raise ParameterError("the table must end in .html, .csv, .tex or .json", given=repr(path.name))


def _shown(cell: Mapping[str, Any]) -> str:
    """A number with its interval; shares in percent; the reason where there is none."""
    if cell["estimate"] is None:
        return str(cell["reason"])
    if cell["statistic"] == "missing" and not cell["n_missing"]:
        return f"none of {cell['n']:,}"  # the share with its interval is what half a row more beside none makes of it
    percent = cell["statistic"] in _SHARES
    middle, low, high = (100 * cell[name] if percent else cell[name] for name in ("estimate", "ci_lb", "ci_ub"))
    if cell["statistic"] in _RATIOS:
        from shared.terminal import number

        return f"{number(middle)} ({number(low)} to {number(high)})"
    digits = 1 if percent else _digits(high - low)
    return f"{middle:.{digits}f}{' %' if percent else ''} ({low:.{digits}f} to {high:.{digits}f})"


def _digits(width: float) -> int:
    """Decimals that show a tenth of an interval."""
    from math import floor, log10

    return min(max(1 - floor(log10(width)), 0), 8) if width > 0 else 2


def _tex(text: str) -> str:
    out = text.replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        out = out.replace(sign, f"\\{sign}")
    return out.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
