"""The README's code runs as it stands, and its two commands are the ones that exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_three_hospitals_become_a_forest_plot(tmp_path):
    (block,) = blocks("python")
    assert len(block.splitlines()) <= 34, "one screen"
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert re.search(r"odds ratio per 10 mmHg \d\.\d\d \[\d\.\d\d, \d+\.\d\d\]", ran.stdout)
    assert "<svg" in (tmp_path / "forest.svg").read_text(encoding="utf-8")


def test_the_commands_are_targets_of_the_makefile():
    (block,) = blocks("sh")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", block, flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_linked_page_exists():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def figures() -> list[tuple[str, str, str]]:
    """(printed figure, file, place in it) of every line of a page of figures that has them."""
    line = r"^\|[^|]*\| (-?[\d.]+) \|[^|]*\| `(tests/benchmarks/results/\w+\.json)` \| `([^`]+)` \|$"
    return re.findall(line, page("benchmarks") + page("experiments"), flags=re.MULTILINE)


def is_at(printed: str, file: str, place: str) -> bool:
    value = json.loads((ROOT / file).read_text())["results"]
    for key in place.split("/"):
        value = value[key]
    return round(value, len(printed.partition(".")[2])) == float(printed)


@pytest.mark.parametrize(("printed", "file", "place"), figures())
def test_every_figure_of_the_pages_of_figures_is_the_one_in_its_file(printed, file, place):
    assert is_at(printed, file, place)


def test_the_benchmarks_page_has_its_figures():
    of_page = re.findall(r"^\|.*results/", page("benchmarks") + page("experiments"), flags=re.MULTILINE)
    assert len(figures()) == len(of_page) > 10


def crossed() -> list[tuple[str, str, str]]:
    """(file, place, table) of the tables whose place is made of what a row and a column are called."""
    table = r"`(tests/benchmarks/results/\w+\.json)` at `([^`]*\{column\}[^`]*)`[^|]*?\n\n((?:\|.*\|\n)+)"
    return re.findall(table, page("benchmarks") + page("experiments"))


@pytest.mark.parametrize(("file", "place", "table"), crossed())
def test_every_cell_of_a_crossed_table_is_the_one_in_its_file(file, place, table):
    def called(cell: str) -> str:
        return (re.findall(r"`([^`]+)`", cell) or [cell.strip()])[0]

    header, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
    cells = 0
    for first, *values in rows:
        for column, cell in zip(header[1:], values, strict=True):
            if found := re.match(r" (-?[\d.]+)\b", cell):
                where = place.replace("{row}", called(first)).replace("{column}", called(column))
                assert is_at(found[1], file, where), (where, found[1])
                cells += 1
    assert cells >= len(rows)


def test_the_experiments_page_shows_pictures_that_exist():
    pictures = re.findall(r"\]\((\.\./tests/benchmarks/results/[^)]+\.svg)\)", page("experiments"))
    assert len(pictures) >= 14
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)
    assert len(crossed()) >= 5
