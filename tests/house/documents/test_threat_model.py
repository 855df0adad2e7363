"""What docs/threat-model.md says is defended names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

from faults.catalogue import FAULTS, INVARIANTS

from tests.stage.house.sources import named_tests

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "threat-model.md").read_text()


def test_every_test_that_the_threat_model_names_is_there():
    named = named_tests(PAGE)
    assert len(named) > 30
    assert [name for name, there in named.items() if not there] == []


def test_every_role_has_what_is_not_defended():
    roles = [part for part in PAGE.split("\n## ")[1:] if part.startswith(("A", "Hospital", "The ", "Whoever"))]
    assert len(roles) == 8 + 1
    assert [role.split("\n")[0] for role in roles if "**Not defended.**" not in role] == []


def test_every_invariant_stands_in_the_threat_model_and_every_fault_is_made_by_some_test():
    for name, invariant in INVARIANTS.items():
        assert f"| {name} | {invariant.what} |" in PAGE
    sources = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    marks = "".join(re.findall(r"mark\.fault\(([^)]*)\)", sources))
    assert [name for name in FAULTS if f'"{name}"' not in marks] == []
