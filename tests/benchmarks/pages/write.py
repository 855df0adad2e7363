"""Write the pages of figures from the JSON that benchmarks left: ``python -m tests.benchmarks.pages.write``.

Each template beside this file becomes the page of the same name in docs/. A template is the page itself, but for

- ``{moments:cells/plain/gap:.3f}``: the number at ``cells/plain/gap`` of ``results/moments.json``, in Python's format;
- a table under ``<!-- cells moments:{row}/{column}/gap -->``: what stands in backticks at the end of the head of a row
  or column (else the head itself) is its name in the place, and ``.3f`` in a cell is the number there. With several
  places in the comment, joined by ``and``, the k-th format of a cell is for the k-th place;
- ``? ≤ 60`` in a format's place: "reached" where the number is so, else "missed", so that words follow their figures.

Where a file counts repetitions that were refused, ``{moments:repetitions:.0f}`` says how many of them.

Each section with figures ends in the files that they are from, with the command that wrote each; one with the line
``<!-- files are named elsewhere -->`` does not. Where a file says that places in it were measured with older code (its
field ``older``, which a new measurement writes over), each figure from there carries a dagger and the section says why.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RESULTS = HERE.parent / "results"
DOCS = ROOT / "docs"

FIGURE = re.compile(r"\{(\w+):([^{}]+):([^{}:]*)\}")
CELLS = re.compile(r"<!-- cells (.+) -->")
FORMAT = re.compile(r"(?<![\w.])(\.\d[f%]|,\.\df|\? [<≤≥>] [\d.]+)(?!\w)")
ASKED = {"<": operator.lt, "≤": operator.le, "≥": operator.ge, ">": operator.gt}
NAMED = re.compile(r"\s*`([^`]+)`\s*$")
ELSEWHERE = "<!-- files are named elsewhere -->"
NOTICE = "<!-- Written by `make docs` from tests/benchmarks/pages/{}: edit that. -->"


@cache
def record(file: str) -> dict[str, Any]:
    """All that a benchmark left: command, seed, versions, results, and what of it is of older code."""
    found: dict[str, Any] = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    return found


def number(file: str, place: str) -> float:
    """The number at a place such as ``cells/plain/gap``. Raises KeyError with file and place where there is none."""
    value: Any = record(file)["results"]
    for key in place.split("/"):
        try:
            value = value[int(key) if isinstance(value, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise KeyError(f"{file}.json has no {place} (at {key})") from None
    if not isinstance(value, int | float):
        raise KeyError(f"{file}.json has no number at {place}")
    return value


def older(file: str, place: str) -> str:
    """Why the number at a place is one of older code; empty where it is of today's."""
    said = record(file).get("older", [])
    return next((why["why"] for why in said if fnmatchcase(place, why["places"])), "")


@dataclass
class Section:
    """One section while it is written, with the files that its figures are from."""

    to_root: str
    files: list[str] = field(default_factory=list)
    outdated: dict[str, None] = field(default_factory=dict)
    elsewhere: bool = False

    def figure(self, file: str, place: str, form: str) -> str:
        value = number(file, place)
        if file not in self.files:
            self.files.append(file)
        if form.startswith("? "):
            _, relation, asked = form.split()
            shown = "reached" if ASKED[relation](value, float(asked)) else "**missed**"
        else:
            shown = format(value, form).replace("%", " %")
        if not shown.strip("-0. %"):
            shown = shown.removeprefix("-")
        if place == "repetitions" and (refused := record(file)["results"].get("refused")):
            shown = f"{shown} ({refused} of them not answered)"
        if why := older(file, place):
            self.outdated[why] = None
            return f"{shown} †"
        return shown

    def row(self, line: str, places: list[tuple[str, str]], columns: list[str]) -> str:
        """A row of a table whose places are made of the names of row and column."""
        first, *cells = line.strip().strip("|").split("|")
        row = name(first).replace("&#124;", "|")
        written = []
        for column, cell in zip(columns, cells, strict=True):
            which = iter(places)

            def shown(form: re.Match[str], column: str = column, which: Any = which) -> str:
                file, place = next(which)
                return self.figure(file, place.replace("{row}", row).replace("{column}", column), form[1])

            written.append(FORMAT.sub(shown, cell))
        return "|".join(["", title(first), *written, ""])

    def lines(self, template: str) -> list[str]:
        written: list[str] = []
        places: list[tuple[str, str]] = []
        columns: list[str] = []
        for line in template.split("\n"):
            if line == ELSEWHERE:
                self.elsewhere = True
            elif found := CELLS.fullmatch(line):
                places = [(file, place) for file, _, place in (one.partition(":") for one in found[1].split(" and "))]
                columns = []
            elif places and not line.startswith("|"):
                places = []
                written.append(line)
            elif places and not columns:
                columns = [name(head) for head in line.strip("|").split("|")[1:]]
                written.append("|".join(["", *(title(head) for head in line.strip("|").split("|")), ""]))
            elif places and not line.startswith("|---"):
                written.append(self.row(line, places, columns))
            else:
                written.append(FIGURE.sub(lambda found: self.figure(*found.groups()), line))
        return written

    def sources(self) -> list[str]:
        """The lines under a section: what is of older code, and which command wrote each file."""
        said = [line for why in self.outdated for line in (f"† Measured with older code: {why}", "")]
        if not self.files or self.elsewhere:
            return said
        files = [
            f"- [{file}.json]({self.to_root}tests/benchmarks/results/{file}.json), by `{record(file)['command']}`"
            for file in self.files
        ]
        return [*said, "Figures from:", "", *files, ""]


def name(head: str) -> str:
    """What a row or column is called in the file: the backticks at the end of its head, else the head."""
    found = NAMED.search(head)
    return found[1] if found else head.strip()


def title(head: str) -> str:
    """What a reader sees of it: the head without the name in backticks, where anything else is left."""
    plain = NAMED.sub(" ", head)
    return plain if plain.strip() else head


def page(template: Path) -> str:
    """The page that a template becomes."""
    where = template.relative_to(HERE)
    to_root = os.path.relpath(ROOT, (DOCS / where).parent) + "/"
    head, *sections = re.split(r"(?m)^(?=## )", template.read_text(encoding="utf-8"))
    written = []
    for text in (head, *sections):
        section = Section(to_root)
        lines = section.lines(text.rstrip("\n"))
        written.append("\n".join([*lines, "", *section.sources()]))
    heading, _, rest = "\n".join(written).replace("\n\n\n", "\n\n").rstrip("\n").partition("\n")
    return f"{heading}\n\n{NOTICE.format(where)}\n{rest}\n"


def pages() -> dict[Path, str]:
    """Every page of figures and its text."""
    return {DOCS / template.relative_to(HERE): page(template) for template in sorted(HERE.rglob("*.md"))}


def main() -> None:
    """Write every page of figures, and say which changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
