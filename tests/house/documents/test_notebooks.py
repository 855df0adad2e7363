"""The notebooks of docs/notebooks are what a kernel gives: each cell is run again, and prints what stands there."""

from __future__ import annotations

import pytest
from stage.house.notebooks import NAMES, NOTEBOOKS, executed, printed, stage

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_what_a_kernel_gives(name, tmp_path):
    there = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    with stage(tmp_path) as environment:
        found = executed(name, tmp_path, environment)
    assert printed(found) == printed(there), "python -m tests.stage.house.notebooks runs them anew"
    shown = [[one for one in cell.get("outputs", []) if "data" in one] for cell in found.cells]
    assert max(map(len, shown)) == 1, "an object is shown once"
    pictures = [one.data.keys() for ones in shown for one in ones]
    assert any("image/svg+xml" in kinds for kinds in pictures) == (name == "analyst")
    assert not [one for cell in found.cells for one in cell.get("outputs", []) if one.output_type == "error"]
