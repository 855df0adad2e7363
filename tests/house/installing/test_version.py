"""The version stands in pyproject.toml; the changelog's newest release and the citation are of that one."""

from __future__ import annotations

import re
import tomllib

from tests.stage.house.sources import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_newest_release_of_the_changelog_is_the_version():
    headings = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == VERSION
    assert headings[1:] == sorted(headings[1:], key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def test_who_cites_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [VERSION]


def test_no_package_says_which_version_this_is():
    for package in ("shared", "site_agent", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            assert "__version__" not in path.read_text(encoding="utf-8"), path


def test_a_line_of_the_changelog_is_short():
    bullets = [line for line in CHANGELOG.splitlines() if line.lstrip().startswith("- ")]
    assert len(bullets) > 400
    assert [line for line in bullets if len(line) > 200] == []


def test_a_line_of_the_changelog_is_not_continued_below_it():
    assert [line for line in CHANGELOG.splitlines() if line.startswith("  ")] == []
