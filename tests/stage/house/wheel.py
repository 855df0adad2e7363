"""The wheel of this tree, built in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stage.house.sources import PACKAGES, ROOT

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tributary_meta.py", *PACKAGES)


def built(folder: Path) -> Path:
    """The wheel of this tree, built in `folder`."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tree / name)
    backend = "from setuptools.build_meta import build_wheel; print(build_wheel('..'))"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.run([sys.executable, "-c", backend], cwd=tree, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    return folder / made.stdout.split()[-1]
