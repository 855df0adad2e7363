"""The check of a fresh clone on a machine that lacks programs: what it does not test, it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / ".ci" / "run"
NEEDED = ("bash", "dirname", "id", "ls", "mktemp", "rm", "tail", "timeout")


@pytest.fixture
def bare(tmp_path):
    """A folder of programs: a shell's own, a `make` that ends well, and an apt-get that reaches nobody."""
    for name in NEEDED:
        (tmp_path / name).symlink_to(shutil.which(name))
    program(tmp_path / "make", "exit 0")
    program(tmp_path / "apt-get", "echo 'E: Unable to fetch some archives'; exit 100")
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)


def run(bare: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN], env={**os.environ, "PATH": f"{bare}"}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("user", [0, 1000])
def test_what_cannot_be_installed_is_said_with_the_reason_and_again_before_the_suite(bare, user):
    program(bare / "make", '[ "$1" != test ] || { echo 1 passed >&2; }')
    (bare / "id").unlink()
    program(bare / "id", f"echo {user}")
    said = run(bare)
    assert said.returncode == 0
    reason = "Unable to fetch some archives" if user == 0 else "only root installs packages"
    assert reason in said.stderr
    begun, _, last = said.stderr.partition("==== NOT TESTED in this run, for lack of programs ====")
    assert last.rstrip().endswith("1 passed"), "a run's last line is the suite's own"
    for words in ("every page in a real browser", "the R package", "axe-core"):
        assert words in begun
        assert words in last


def test_they_are_the_last_words_of_a_run_that_fails_before_the_suite(bare):
    program(bare / "make", "exit 3")
    said = run(bare)
    assert said.returncode == 3
    assert said.stderr.rstrip().endswith("the same numbers from R as from Python")


def test_the_site_is_built_where_its_packages_come_and_said_to_be_untried_where_not(bare):
    program(bare / "make", '[ "$1" != .venv/.site-installed ] || { echo no index; exit 2; }; echo made "$@"')
    said = run(bare)
    assert said.returncode == 0
    assert "no index" in said.stderr
    assert said.stderr.rstrip().endswith("the documents as a site")
    assert said.stdout.split("\n")[:3] == ["made check", "made demo", "made test"]
    program(bare / "make", "exit $([ $1 != site ]; echo $?)")
    assert run(bare).returncode == 1, "a site that cannot be built fails the check"


def test_where_everything_is_there_nothing_is_said(bare):
    for name in ("initdb", "strace", "haproxy", "nginx", "softhsm2-util", "go", "chromium", "npm", "dpkg"):
        program(bare / name, "exit 0")
    (bare / "ls").unlink()
    program(bare / "ls", "exit 0")
    said = run(bare)
    assert said.returncode != 0, "the package's own check has no R here"
    assert "NOT TESTED" not in said.stderr
