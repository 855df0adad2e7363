"""The recipes of docs/recipes/ are true: each is followed in a copy of the packages, and its last block runs there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage.house.sources import ROOT

RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
PACKAGES = ("shared", "site_agent", "coordinator")


def blocks(recipe: Path) -> list[tuple[str, str, str]]:
    """(language, file, text) of each block with a title: a new file, a change to one, or what is tried at the end."""
    return BLOCK.findall(recipe.read_text(encoding="utf-8"))


def changed(before: str, change: str) -> str:
    """A file after a change: lines with + are added, lines with - go, the others must be there, once."""
    lines = [(line[:1], line[1:]) for line in change.splitlines()]
    old = "".join(f"{text}\n" for sign, text in lines if sign != "+")
    new = "".join(f"{text}\n" for sign, text in lines if sign != "-")
    assert before.count(old) == 1, f"{before.count(old)} places for\n{old}"
    return before.replace(old, new)


def follow(recipe: Path, folder: Path) -> None:
    """Do in a copy of the packages what a recipe says."""
    for language, name, text in blocks(recipe):
        path = folder / name
        if language == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), text), encoding="utf-8")
        elif name != "try":
            assert not path.exists(), "a recipe writes new files whole, and changes others by diff"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """A copy of the packages with what is compiled of them."""
    folder = tmp_path_factory.mktemp("packages")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_that_is_followed_works(recipe, copied, tmp_path):
    folder = tmp_path / "packages"
    shutil.copytree(copied, folder, copy_function=os.link)
    for name in {name for language, name, _ in blocks(recipe) if language == "diff"}:
        text = (folder / name).read_bytes()
        (folder / name).unlink()  # a link: the copy of the others must stay as it is
        (folder / name).write_bytes(text)
    follow(recipe, folder)
    (tried,) = (text for _, name, text in blocks(recipe) if name == "try")
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", tried], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    says = re.findall(r"^ *print\(.*  # (.+)$", tried, flags=re.MULTILINE)
    assert ran.stdout.splitlines() == says


def test_the_table_of_changes_counts_what_the_recipes_touch():
    table = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
    said = {name: int(count) for name, count in re.findall(r"\(recipes/([\w-]+)\.md\) \| (\d+) \|", table)}
    assert said == {path.stem: len({name for _, name, _ in blocks(path) if name != "try"}) for path in RECIPES}


def test_the_table_of_changes_counts_what_its_commits_touched():
    table = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w{8})` \| .* \| \d? ?\| (\d+) \| (\d+) \|", table, flags=re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `", table, flags=re.MULTILINE)) >= 15
    for commit, changed, new in rows:
        asked = ["git", "show", "--format=", "--name-status", commit, "--"]
        asked += ["shared", "site_agent", "coordinator", "tributary_meta.py"]
        shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
        if shown.returncode:
            pytest.skip(f"git has no history here with {commit}")
        touched = [line.split("\t") for line in shown.stdout.splitlines() if "_pb2" not in line]
        kinds = [kind for kind, *_ in touched]
        assert (kinds.count("M"), kinds.count("A")) == (int(changed), int(new)), commit


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_file_that_a_recipe_names_is_there_or_is_made_by_it(recipe):
    text, made = recipe.read_text(encoding="utf-8"), {name for _, name, _ in blocks(recipe)}
    named = set(re.findall(r"`((?:shared|site_agent|coordinator|tests|docs|deploy)/[\w./-]+)`", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists() and name not in made] == []


FOLDERS = (*PACKAGES, "tests", "docs", "deploy")
FILE = re.compile(r"[\w-]+\.(?:py|md|json|toml|proto)")
NOT_OF_THE_REPOSITORY = {"coordinator.toml"}  # in a coordinator's home


def lacking(text: str) -> list[str]:
    """Paths between backticks that are not there, and names of files that no folder has."""
    inside = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    inside |= {path.name for path in ROOT.iterdir()}
    named = {name for name in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(r"[\w./-]+", name)}
    paths = {name for name in named if "/" in name}
    files = {name for name in named - paths if FILE.fullmatch(name)}
    return sorted({name for name in paths if not (ROOT / name).exists()} | (files - inside - NOT_OF_THE_REPOSITORY))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/changes.md"])
def test_every_path_that_a_page_for_contributors_names_is_there(page):
    assert lacking((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_path_that_is_gone_is_found():
    assert lacking("`site_agent/egress/`, `kinds.py`, `.ci/run`, `make test`") == []
    gone = ["config_of_old.py", "coordinator/client.py", "site_agent/egress.py"]
    assert lacking(" ".join(f"`{name}`" for name in gone)) == gone
