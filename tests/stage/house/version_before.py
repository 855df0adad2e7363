"""The tree of the version before."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.stage.house.sources import ROOT

BEFORE = "3c53b2e"
"""0.2.0."""


def tree_of_before(folder: Path) -> Path:
    """The tree of the version before, as it was committed, unpacked into a folder; skips where a clone lacks it."""
    done = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True)
    if done.returncode:
        pytest.skip(f"this clone has no commit {BEFORE}")
    (folder / "before.tar").write_bytes(done.stdout)
    with tarfile.open(folder / "before.tar") as archive:
        archive.extractall(folder / "before", filter="data")
    # A plan is approved for a version of the agent: it has to know its own, as where it is installed.
    described = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"]
    subprocess.run(described, cwd=folder / "before", check=True, capture_output=True)
    return folder / "before"
