"""The map of the house in docs/architecture.md: every room and every file, each with the first line of its docstring.

`python -m tests.house.structure.test_architecture` writes it anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from importlib.metadata import packages_distributions
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


TESTS = ROOT / "tests"


def rooms_of_tests() -> dict[str, list[str]]:
    """The modules of each folder of tests, and of what they share, by the folder's path below ``tests``."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        where = path.relative_to(TESTS).parent
        if where.parts[:1] not in ((), ("benchmarks",), ("reference",)) and not path.stem.startswith("__"):
            found.setdefault(where.as_posix(), []).append(path.stem)
    return found


def test_no_folder_of_tests_has_more_modules_than_a_reader_takes_in():
    assert [path.name for path in TESTS.glob("test_*.py")] == [], "it belongs in the folder of what it is about"
    for where, names in rooms_of_tests().items():
        tests = [name for name in names if name.startswith("test_")]
        assert max(len(tests), len(names) - len(tests)) <= MOST, where


def test_every_folder_of_tests_says_what_belongs_there():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Where a test belongs\n")[2]
    said = re.findall(r"^\| `tests/([\w/]+)/` \|", page.partition("\n## ")[0], re.M)
    there = [where for where, names in rooms_of_tests().items() if any(name.startswith("test_") for name in names)]
    assert len(said) == len({*said})
    assert {*said} == {*there}


def test_no_two_test_modules_have_one_name_and_none_hides_a_library():
    """Each folder of tests is a place that Python looks for modules in, before the libraries and the product."""
    rooms = rooms_of_tests()
    names = Counter(name for inside in rooms.values() for name in inside if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    importable = {*PACKAGES, *sys.stdlib_module_names, *packages_distributions()}
    beside = {name for where, inside in rooms.items() if not where.startswith(("stage/", "faults")) for name in inside}
    folders = {part for where in rooms for part in where.split("/")}
    assert (beside | folders) & importable == set()
    assert [name for name in sorted(beside) if not name.startswith("test_")] == [], "what tests share is in tests/stage"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
