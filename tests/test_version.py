"""The version stands in pyproject.toml alone, and the changelog's newest release is that one."""

from __future__ import annotations

import re
import tomllib

from tests.sources import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_newest_release_of_the_changelog_is_the_version():
    headings = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == VERSION
    assert headings[1:] == sorted(headings[1:], key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def test_no_other_file_says_which_version_this_is():
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for package in ("shared", "site_agent", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            assert "__version__" not in path.read_text(encoding="utf-8"), path


def test_a_line_of_a_release_is_short():
    released = CHANGELOG.split(f"## {VERSION}")[1]
    assert [line for line in released.splitlines() if len(re.sub(r"\]\([^)]*\)", "]", line)) > 320] == []
