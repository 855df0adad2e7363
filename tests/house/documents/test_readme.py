"""The README's code runs as it stands, and its two commands are the ones that exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_three_hospitals_become_a_forest_plot(tmp_path):
    (block,) = blocks("python")
    assert len(block.splitlines()) <= 34, "one screen"
    (tmp_path / "first.toml").write_bytes((ROOT / "deploy" / "studies" / "first.toml").read_bytes())
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert re.search(r"odds ratio per 10 mmHg \d\.\d\d \[\d\.\d\d, \d+\.\d\d\]", ran.stdout)
    assert "<svg" in (tmp_path / "forest.svg").read_text(encoding="utf-8")


PROGRAMS = {
    "analyst": [sys.executable, "-m", "coordinator.analyst.commands"],
    "coordinator": [sys.executable, "-m", "coordinator.cli"],
    "tributary": [sys.executable, "-m", "coordinator.demo"],
}


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[-1][:20])
def test_first_results_are_what_the_commands_print(block, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    printed = ""
    for line in re.findall(r"^\$ (.*)$", block, flags=re.MULTILINE):
        name, _, rest = line.partition(" ")
        command = " ".join([shlex.join(PROGRAMS[name]), rest]) if name in PROGRAMS else line
        ran = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-2000:]
        printed += ran.stdout
    shown = [line.strip() for line in printed.splitlines()]
    assert [line for line in block.splitlines() if line[:1] != "$" and line.strip() not in shown] == []


def test_the_page_is_short():
    assert len(README.splitlines()) <= 200


def test_the_commands_are_targets_of_the_makefile():
    (block,) = blocks("sh")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", block, flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_table_of_packages_names_each_with_the_extras_that_bring_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = {name: lines for name, lines in extras.items() if name not in ("rivals", "notebooks", "docs", "dev")}
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", README.split("The next table lists the libraries")[1], re.MULTILINE
    )
    said = {
        package: brought for names, brought in rows for package in re.findall(r"[\w-]+", re.sub(r"\(.*?\)", "", names))
    }
    for line in project["dependencies"]:
        assert said[re.split(r"[^\w-]", line)[0]] == "always", line
    for extra, lines in users.items():
        for line in lines:
            assert f"`{extra}`" in said[re.split(r"[^\w-]", line)[0]], (extra, line)


def test_every_linked_page_exists():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
