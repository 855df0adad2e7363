"""What docs/found-in-use.md says is mended names a test, and the test is there."""

from __future__ import annotations

import re

from shared.releases.synthetic import versions
from tests.stage.house.sources import ROOT, named_tests

PAGE = (ROOT / "docs" / "found-in-use.md").read_text()


def test_every_test_that_the_page_names_is_there():
    named = named_tests(PAGE)
    assert len(named) > 80
    assert [name for name, there in named.items() if not there] == []


def test_every_fault_of_use_and_of_reading_stands_in_it():
    said = {name for line in re.findall(r"^\| ([FB][\dFB, ]+) \|", PAGE, re.M) for name in line.split(", ")}
    assert said == {*(f"F{i}" for i in range(1, 45)), *(f"B{i}" for i in range(1, 8))}


def test_provenance_names_no_library_that_computes_nothing():
    assert "statsmodels" not in versions()
