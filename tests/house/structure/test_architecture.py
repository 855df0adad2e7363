"""The map of the house in docs/architecture.md: every room and every file, each with the first line of its docstring.

`python -m tests.house.structure.test_architecture` writes it anew.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.stage.house.sources import PACKAGES, ROOT, parsed

PAGE = ROOT / "docs" / "architecture.md"
MOST = 13
"""Rooms on one floor, at most: a reader must take in a folder at a glance."""
BEGIN, END = "<!-- rooms -->", "<!-- end of rooms -->"


@cache
def first_line(path: Path) -> str:
    doc = ast.get_docstring(parsed(path)) or ""
    return re.sub(r"\s+", " ", doc.split("\n\n")[0]).replace("|", "\\|").rstrip(".")


def modules(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__") and "_pb2" not in path.stem
    )


def folders(package: str) -> list[Path]:
    found = {path.parent for path in (ROOT / package).rglob("*.py")}
    return sorted(found, key=lambda path: (len(path.parts) > len((ROOT / package).parts), path))


def rooms() -> str:
    lines = []
    for package in PACKAGES:
        lines += [f"### {package}", ""]
        for folder in folders(package):
            here = folder.relative_to(ROOT).as_posix()
            lines += [f"**`{here}/`** {first_line(folder / '__init__.py')}.", ""]
            if modules(folder):
                lines += ["| file | its one idea |", "|---|---|"]
                lines += [f"| `{path.name}` | {first_line(path)} |" for path in modules(folder)]
                lines += [""]
    return "\n".join(lines)


def written(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{rooms()}{END}{rest.split(END)[1]}"


def test_the_map_names_every_room_and_every_file_in_the_words_of_its_docstring():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "python -m tests.house.structure.test_architecture writes it anew"


def test_every_file_and_every_room_says_what_it_is():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.stem]
    assert [path.relative_to(ROOT).as_posix() for path in files if not first_line(path)] == []


def test_no_floor_has_more_rooms_than_a_reader_takes_in():
    for package in PACKAGES:
        for folder in folders(package):
            inside = [path for path in folder.iterdir() if (path / "__init__.py").exists() or path in modules(folder)]
            assert len(inside) <= MOST, f"{folder.relative_to(ROOT)}: {len(inside)}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
