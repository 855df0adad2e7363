"""What `pip install` puts on a machine: one wheel, built once from this tree, that works in an empty folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from stage.house.wheel import built

from coordinator.demo import main as demo
from shared import DISTRIBUTION
from tests.stage.house.sources import PACKAGES, ROOT, parsed

MODULE = ROOT / "tributary_meta.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The wheel's files, as an installer lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(built(folder)) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def ran(installed: Path, *argv: str, at: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *argv], cwd=at, env=env, capture_output=True, text=True)


def test_whatever_the_code_reads_beside_itself_travels(installed):
    for package in PACKAGES:
        of_the_tree = {
            path.relative_to(ROOT)
            for path in (ROOT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {path for path in of_the_tree if not (installed / path).is_file()} == set()
        assert (installed / package / "py.typed").exists()
    shipped = {path.name for path in (ROOT / "deploy" / "studies").glob("*.toml")}
    assert {path.name for path in (installed / "coordinator" / "demo" / "studies").iterdir()} == shipped


def test_type_checkers_are_told_the_types_of_the_analysts_module(installed):
    """`py.typed` counts in packages alone: of a module of one file mypy takes every name for Any."""
    import tributary_meta

    stubs = ast.parse((installed / "tributary_meta-stubs" / "__init__.pyi").read_text(encoding="utf-8")).body
    assert [ast.unparse(one) for one in stubs] == [ast.unparse(one) for one in parsed(MODULE).body[-len(stubs) :]]
    named = {name.name for one in stubs if isinstance(one, ast.ImportFrom) for name in one.names}
    assert named == set(tributary_meta.__all__)


def test_the_page_of_the_index_links_nothing_that_is_not_there(installed):
    (info,) = installed.glob("tributary_meta-*.dist-info")
    said = (info / "METADATA").read_text(encoding="utf-8")
    assert "Hospitals that may not share records" in said
    assert not re.search(r"\]\((?!https?:)", said)
    assert "the first ten minutes" in said
    assert (info / "licenses" / "LICENSE").exists()


def test_the_first_command_of_the_first_ten_minutes_needs_no_checkout(installed, tmp_path):
    made = ran(installed, "-m", "coordinator.demo", "example", "first", "--json", at=tmp_path)
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["east.csv", "first.toml", "north.csv", "south.csv"]


def test_an_example_overwrites_nothing_and_can_be_tried(tmp_path, capsys):
    argv = ["example", "registry", "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as tried:
        demo([*argv, "--dry-run"])
    assert tried.value.code == 0
    assert list(tmp_path.iterdir()) == []
    for code in (0, 2):
        with pytest.raises(SystemExit) as left:
            demo(argv)
        assert left.value.code == code
    assert '"E_STATE"' in capsys.readouterr().out
    assert "registry.toml" in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["shared", "coordinator"])
def test_a_file_beside_the_notebook_that_hides_ours_is_named(installed, tmp_path, name):
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    said = ran(installed, "-c", "import tributary_meta", at=tmp_path)
    assert f"ImportError: {name} must be Tributary's own package, got {tmp_path / name}.py." in said.stderr
    # Also where the notebook has imported it already.
    said = ran(installed, "-c", f"import {name}, tributary_meta", at=tmp_path)
    assert f"got {tmp_path / name}.py" in said.stderr


def test_the_analysts_module_is_what_it_says():
    import tributary_meta

    assert all(getattr(tributary_meta, name) is not None for name in tributary_meta.__all__)
    assert {"connect", "pool", "forest", "Result"} <= set(tributary_meta.__all__)


def test_no_page_installs_a_strangers_package():
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"))
    for path in (*pages, *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        if "decisions" not in path.parts and path != ROOT / "shared" / "__init__.py":
            assert not re.search(r"pip install (-\S+ )*'?tributary(?!-meta)", text), path
    assert PROJECT["name"] == DISTRIBUTION == "tributary-meta"
