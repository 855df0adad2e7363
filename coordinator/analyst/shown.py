"""Views of a document for analysts: tables, records, explanations and figures, each of one JSON answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.pooling.further.sequential import Monitored
    from shared.estimands.kinds import Scale


__all__ = [
    "Explanation",
    "LevelAnswers",
    "Log",
    "Monitoring",
    "Picture",
    "ResultTable",
    "Shown",
    "Terms",
    "answered",
    "caption_of",
    "cell",
    "drawn",
    "effect_of",
    "headed",
    "html",
    "percent",
    "pooled_line",
    "title_of",
]


class Shown(ABC):
    """An object that prints as its table: in a terminal, in a notebook, as a text."""

    @abstractmethod
    def show(self, out: Console) -> None:
        """Draw it."""

    def __repr__(self) -> str:
        from rich.console import Console

        # A page of text, not a terminal: no colours, and one width wherever it is printed. In a notebook rich would
        # show by itself what is only taken here.
        plain: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "color_system": None}
        out = Console(width=100, force_jupyter=False, **plain)
        with out.capture() as taken:
            self.show(out)
        return "\n".join(line.rstrip() for line in taken.get().strip("\n").splitlines())

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


class ResultTable(Shown):
    """Rows that the coordinator sent, with the document they stand in.

    Args:
        title: one line above.
        rows: one mapping per row; the first one's keys are the columns.
        document: all that was sent.
    """

    def __init__(self, title: str, rows: list[dict[str, Any]], document: Mapping[str, Any]) -> None:
        self.title, self.rows, self.document = title, rows, document

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.rows[row]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.rows[0]) if self.rows else None)

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import table

        out.print(self.title, style="bold")
        if self.rows:
            heads = list(self.rows[0])
            numeric = [name for name in heads if all(isinstance(row[name], (int, float)) for row in self.rows)]
            out.print(table(heads, [[cell(row[name]) for name in heads] for row in self.rows], right=numeric))
        else:
            out.print("none yet")

    def _repr_html_(self) -> str:
        return html(self.title, self.to_frame() if self.rows else None)


class Terms(ResultTable):
    """Every term of a question, each pooled by itself, below the cautions on any of them."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """Each once."""
        from coordinator.analyst.show import further_cautions

        return tuple(further_cautions(self.document.get("table", ()), ()))

    def to_frame(self) -> pd.DataFrame:
        """The rows as a DataFrame, the cautions on each in a column of its own."""
        found = [" ".join(row.get("cautions", ())) for row in self.document.get("table", ())]
        return super().to_frame().assign(cautions=found)

    def show(self, out: Console) -> None:
        """Draw it."""
        from coordinator.analyst.show import show_cautions

        show_cautions(out, self.cautions)
        super().show(out)

    def _repr_html_(self) -> str:
        from coordinator.analyst.show import cautions_html

        return cautions_html(self.cautions) + html(self.title, super().to_frame() if self.rows else None)


class LevelAnswers(ResultTable):
    """A question of the rows of each level of a column: read as other answers are, its rows by their names in JSON.

    Args:
        effect: what the estimates are; blank where it is not known. level: coverage of the intervals.
    """

    def __init__(
        self, title: str, rows: list[dict[str, Any]], document: Mapping[str, Any], *, effect: str, level: float
    ) -> None:
        super().__init__(title, rows, document)
        self.effect, self.level = effect, level

    @property
    def text(self) -> tuple[list[str], list[list[str]], list[str]]:
        """Heads, a row for each level, and why a level has no answer."""
        from shared.terminal import number

        heads = [str(self.document["column"]), self.effect.lower() or "estimate", f"{100 * self.level:g} % CI", "sites"]
        cells = []
        for row in self.rows:
            if row["reason"]:
                cells.append([row["level"], "–", "–", "–"])
                continue
            ends = "–" if row["ci_lb"] is None else f"{number(row['ci_lb'])} to {number(row['ci_ub'])}"
            cells.append([row["level"], number(row["estimate"]), ends, f"{row['sites']}"])
        return heads, cells, [f"{row['level']}: {row['reason']}" for row in self.rows if row["reason"]]

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import table

        heads, cells, reasons = self.text
        out.print(self.title, style="bold")
        out.print(table(heads, cells, right=heads[1:]))
        for reason in reasons:
            out.print(f"no answer  {reason}", style="dim")

    def _repr_html_(self) -> str:
        import pandas as pd

        from coordinator.analyst.show import paragraphs

        heads, cells, reasons = self.text
        return html(self.title, pd.DataFrame(cells, columns=heads)) + paragraphs(
            [f"no answer: {one}" for one in reasons]
        )


class Log(ResultTable):
    """The multiplicity record of a study."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of questions: answered (confirmatory and exploratory), distinct, and refused."""
        return dict(self.document["counts"])


class Explanation(Shown):
    """Provenance of a result: releases, receipts, plan, code, who asked."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    @property
    def stale(self) -> tuple[str, ...]:
        """Reasons why the same question has other releases behind it today; empty where it has not."""
        return tuple(self.document["stale"])

    def to_frame(self) -> pd.DataFrame:
        """One row per release."""
        import pandas as pd

        rows = [{k: v for k, v in row.items() if k != "receipt"} for row in self.document["releases"]]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        document = self.document["answer"]
        plan, code = document["provenance"]["plan"], document["provenance"]["code"]
        notes = [f"stale: {why}" for why in self.stale] + [
            *(f"caution: {sentence}" for sentence in document.get("doubts", ())),
            pooled_line(document),
            *(f"note: {sentence}" for sentence in document.get("cautions", ())),
            f"plan version {plan['version']}, {plan['hash']}",
        ]
        notes.append(", ".join(f"{name} {version}" for name, version in code.items()))
        return html(f"result {self.document['result']}: {title_of(document)}", self.to_frame(), *notes)

    def show(self, out: Console) -> None:
        """Draw it."""
        from coordinator.analyst.show import show_cautions
        from shared.terminal import number, table

        document = self.document["answer"]
        out.print(f"result {self.document['result']}: {title_of(document)}", style="bold")
        out.print(caption_of(document), style="dim")
        for why in self.stale:
            out.print(f"stale: {why}", style="bold red")
        doubts = document.get("doubts", ())
        show_cautions(out, doubts)
        out.print(pooled_line(document))
        found = [row for row in document["estimates"] if row.get("vi_naive") is not None]
        for how in dict.fromkeys(row["how"] for row in found):
            out.print(f"variance by {how}")
        parts = [
            [row["site"], *(number(row[name] ** 0.5) for name in ("vi_sampling", "vi_privacy", "vi_naive"))]
            for row in found
        ]
        heads = ["site", "se of patients and flow", "of noise", "naive"]
        out.print(table(heads, parts, right=heads[1:]))
        for note in (note for note in document["notes"] if note not in doubts):
            out.print(f"note    {note}", style="dim")
        plan, code = document["provenance"]["plan"], document["provenance"]["code"]
        out.print(f"plan    version {plan['version']}, {plan['hash']}")
        out.print(f"code    {', '.join(f'{name} {version}' for name, version in code.items())}")
        rows = [
            [row["site"], row["wave"], row["n"], row["bundle_sha256"][:16], row["receipt_hash"][:16], row["log_index"]]
            for row in self.document["releases"]
        ]
        heads = ["site", "wave", "n", "bundle", "receipt", "log entry"]
        out.print(table(heads, rows, right=["wave", "n", "log entry"]))
        for line in self.document["asked_by"]:
            out.print(f"asked by {line['analyst']} on {line['day']}, {line['label']}")


class Monitoring(Shown):
    """Looks at one question as of each wave, and the boundaries that spend one error rate over all of them.

    Args:
        found: the looks. of: the answer of the last. results: wave to the id of its answer.
        missing: wave to why it has no look.
    """

    def __init__(
        self, found: Monitored, *, of: Mapping[str, Any], results: Mapping[int, str], missing: Mapping[int, str]
    ) -> None:
        self.found, self.results, self.missing = found, results, missing
        self.study, self.title, self.effect = of["study"], of["title"], of.get("effect", "")
        self.scale: Scale = of["scale"]
        self.asked = {name: of["asked"][name] for name in ("estimand", "term", "method", "test", "level")}

    @property
    def document(self) -> dict[str, Any]:
        """Looks and their title, scale and result, as plain values for JSON."""
        from shared.terminal import plain

        more = {"title": self.title, "scale": self.scale, "effect": self.effect, "sentence": self.found.sentence}
        more |= {
            "study": self.study,
            "asked": self.asked,
            "results": {str(wave): one for wave, one in self.results.items()},
        }
        return {**plain(self.found), **more, "missing": {str(wave): why for wave, why in self.missing.items()}}

    @property
    def text(self) -> tuple[list[str], list[list[str]]]:
        """Its table as a person reads it: heads, and a row for each look."""
        from coordinator.analyst.show import p_shown
        from shared.estimands.effects import shown
        from shared.terminal import number

        def read(value: float) -> str:
            return number(shown(value, self.scale))

        heads = ["as of", self.effect.lower() or "estimate", "repeated interval", "z", "boundary", "p at it"]
        rows = [
            [
                one.label,
                read(one.beta),
                f"{read(one.ci_lb)} to {read(one.ci_ub)}",
                f"{one.z:.2f}",
                f"{one.boundary:.2f}",
                p_shown(one.nominal),
            ]
            for one in self.found.looks
        ]
        return heads, rows

    def to_frame(self) -> pd.DataFrame:
        """One row per look, on the analysis scale."""
        import pandas as pd

        return pd.DataFrame(self.document["looks"])

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import table

        heads, rows = self.text
        out.print(self.title, style="bold")
        out.print(table(heads, rows, right=heads[1:]))
        out.print(self.found.sentence, style="bold")
        for wave, why in self.missing.items():
            out.print(f"left out  wave {wave}: {why}", style="yellow")
        for sentence in self.found.notes:
            out.print(f"note  {sentence}", style="dim")

    @overload
    def figure(self, path: str | Path) -> Path: ...
    @overload
    def figure(self, path: None = None) -> Picture: ...
    def figure(self, path: str | Path | None = None) -> Path | Picture:
        """Draw the looks and their boundaries; a picture where no file is named. Raises: ParameterError."""
        from coordinator.figures.monitoring import monitoring_figure

        return drawn(lambda to: monitoring_figure(self.found, title=self.title, path=to), self.title, path)


class Picture:
    """A figure that a notebook shows.

    Args:
        title: its title.
        svg: the drawing.
    """

    def __init__(self, title: str, svg: str) -> None:
        self.title, self.svg = title, svg

    def __repr__(self) -> str:
        return f"figure: {self.title}"

    def _repr_svg_(self) -> str:
        return self.svg


def drawn(draw: Callable[[Path], object], title: str, path: str | Path | None, kind: str = "") -> Path | Picture:
    """The figure that `draw` writes: a file, or without one a picture. Raises: ParameterError: another suffix."""
    from tempfile import TemporaryDirectory

    from coordinator.analyst.show import check_figure

    if path is None:
        with TemporaryDirectory() as folder:
            draw(Path(folder) / "figure.svg")
            return Picture(title, (Path(folder) / "figure.svg").read_text(encoding="utf-8"))
    path = Path(path)
    check_figure(path, kind)
    draw(path)
    return path


def effect_of(document: Mapping[str, Any]) -> str:
    """Name of the effect measure, in lower case; by the scale in documents of version 0.1, which do not name it."""
    return str(document.get("effect", "")).lower() or ("ratio" if document["scale"] == "log" else "estimate")


def title_of(document: Mapping[str, Any]) -> str:
    """The title of an answer."""
    return str(document["title"])


def caption_of(document: Mapping[str, Any]) -> str:
    """Caption below the title; composed of study, wave and provenance for answers stored by an earlier version."""
    return str(document.get("caption") or f"{document['study']}, wave {document['wave']}. {document['told']}")


def headed(out: Console, document: Mapping[str, Any]) -> None:
    """Draw an answer's title and what stands under it."""
    out.print(title_of(document), style="bold")
    out.print(caption_of(document), style="dim")


def answered(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures that an answer is: those of its secure sum, where it has one, else those pooled from its rows."""
    return document.get("summed") or document["pooled"]


def pooled_line(document: Mapping[str, Any]) -> str:
    """The pooled result in one line, off the analysis scale; of one site, that it is this one's own."""
    from shared.estimands.effects import shown
    from shared.terminal import number

    pooled = answered(document)
    value, low, high = (number(shown(pooled[name], document["scale"])) for name in ("beta", "ci_lb", "ci_ub"))
    count = len(pooled["sites"]) if "sites" in pooled else document["k"]
    ends = f"{value} ({100 * document['level']:g} % CI {low} to {high}"
    if count == 1:
        return f"{effect_of(document)} {ends}; one site, not pooled)"
    return f"pooled {effect_of(document)} {ends}; {pooled['method']}, {pooled['test']}, {count} sites)"


def html(title: str, frame: pd.DataFrame | None, *notes: str) -> str:
    """HTML for a notebook: a heading, a table, sentences below it. Names and texts of others are only text."""
    from html import escape

    shown = "<p>none yet</p>" if frame is None else frame.to_html(index=frame.index.name is not None, na_rep="–")
    return f"<p><b>{escape(title)}</b></p>{shown}{''.join(f'<p>{escape(note)}</p>' for note in notes)}"


def cell(value: Any) -> Any:
    """A value of a table, short."""
    return f"{value:.4g}" if isinstance(value, float) else value if value != "" else None


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.3g} %"
