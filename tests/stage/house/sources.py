"""The product's sources, parsed once in a process: a dozen tests walk them, and parsing takes longer than walking."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

__all__ = ["PACKAGES", "ROOT", "located", "named_tests", "parsed", "production"]

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("shared", "site_agent", "coordinator")


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, which nobody may change."""
    gc.disable()  # it would look at each node again and again, which takes three times as long as parsing
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def production() -> tuple[tuple[str, ast.Module], ...]:
    """(path below the root, syntax tree) of every module that is not generated, in order of their paths."""
    gc.collect()
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    found = tuple((path.relative_to(ROOT).as_posix(), parsed(path)) for path in paths if "_pb2" not in path.name)
    gc.freeze()  # a million nodes that stay, and that it need not look at while the other tests run
    return found


def named_tests(page: str) -> dict[str, bool]:
    """The tests (``file::test``) that a page of the documents names, each with whether it is there."""
    named = re.findall(r"`((?:faults/)?test_\w+\.py)::(test_\w+)`", page)
    return {f"{file}::{test}": f"\ndef {test}(" in (ROOT / located(file)).read_text() for file, test in named}


@cache
def _test_modules() -> dict[str, str]:
    return {path.name: path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}


def located(test: str) -> str:
    """Where a test lies, from the root: of ``test_x.py`` or ``test_x.py::test_y``, as no two files have one name."""
    file, colons, name = test.partition("::")
    return f"{_test_modules()[file.rpartition('/')[2]]}{colons}{name}"
