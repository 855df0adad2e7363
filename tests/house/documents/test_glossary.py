"""The glossary is spelled as the code is, and no name means two things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.stage.house.sources import production

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^- `(\w+)`: ", GLOSSARY, flags=re.MULTILINE)


@cache
def names() -> frozenset[str]:
    """Every identifier of the product."""
    found: set[str] = set()
    for tree in (tree for _, tree in production()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return frozenset(found)


@pytest.mark.parametrize("term", TERMS)
def test_each_term_is_in_the_code_as_it_is_spelled(term):
    assert term in names()


def test_every_other_name_in_the_glossary_is_in_the_code_too():
    lines = [line.partition(": ")[2] for line in GLOSSARY.splitlines() if line.startswith("- `")]
    values = {"local", "holdout", "public", "private"}  # of a posture
    said = {word for line in lines for word in re.findall(r"`(\w+)`", line)} - values
    assert not said - names()


def test_the_readme_lists_the_page():
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_glossary_is_short_and_has_each_term_once():
    assert 30 <= len(TERMS) <= 50
    assert len(set(TERMS)) == len(TERMS)
    assert len(TERMS) == sum(line.startswith("- ") for line in GLOSSARY.splitlines())


def test_no_two_classes_of_the_product_have_the_same_name():
    places = defaultdict(list)
    for path, tree in production():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_words_that_meant_many_things_are_gone():
    many = {"told", "Told", "Asked", "Kept", "StandIn", "Prescription", "Figures", "LetterBoxes", "Vault", "Keeping"}
    assert not many & names()


def test_no_function_is_named_asked_kept_again_or_told():
    bare = {"asked", "kept", "again", "told"}
    found = [
        f"{path}: {node.name}"
        for path, tree in production()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in bare
    ]
    assert found == []
