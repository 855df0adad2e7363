"""The notebooks of docs/notebooks, run by a kernel against a coordinator that has a study.

python -m tests.stage.house.notebooks      runs them, and writes what they gave into them
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the other tests' modules are read as pytest reads them
    sys.path.insert(0, str(Path(__file__).parents[2]))

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "docs" / "notebooks"
NAMES = ("analyst", "lead")
STYLES = re.compile(r"\x1b\[[0-9;]*m")
VARYING = (
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "…"),  # ids and digests hold keys, which are new each time
    (re.compile(r"\b(?:[0-9a-f]{4} ){7}[0-9a-f]{4}\b"), "…"),
    (re.compile(r"\b(numpy|pandas|python|scipy|tributary) \d[\w.]*"), r"\1"),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "DAY"),
    (re.compile(r"\b\d+ days?\b"), "N days"),
    (re.compile(r"[─━┈╌]+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)


@contextmanager
def stage(folder: Path) -> Iterator[dict[str, str]]:
    """A coordinator with a study of three sites, and tokens of an analyst and a lead in `folder`; the environment."""
    from stage.coordinator_side.analysis import Desk
    from stage.coordinator_side.delivered import STUDIES
    from stage.coordinator_side.doors import COLUMNS, SITES, table

    from shared.plans.plan import StudyPlan

    desk = Desk(folder / "hub")
    desk.publish(StudyPlan.from_toml((STUDIES / "cvd.toml").read_text() + COLUMNS))
    for seed, (site, n) in enumerate(SITES.items()):
        desk.add("cvd", site, table(n, seed))
    desk.start()
    try:
        for name, role in (("ada", "analyst"), ("lea", "lead")):
            given = dataclasses.replace(desk.admit(name, role=role), witness=desk.authority.witness.public.hex)
            given.save(folder / f"{name}.token.json")
        yield {
            **os.environ,
            "PYTHONPATH": f"{ROOT}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TRIBUTARY_COORDINATOR_HOME": "hub",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PYTHONWARNINGS": "ignore",
            "IPYTHONDIR": f"{folder / 'ipython'}",
        }
    finally:
        desk.stop()


def executed(name: str, folder: Path, environment: dict[str, str]) -> Any:
    """A notebook as it is after each of its cells was run in `folder`. Raises: CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": f"{folder}"}})
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:  # a command believes that it writes to a terminal
                output.text = STYLES.sub("", output.text)
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


def printed(notebook: Any) -> list[tuple[str, str]]:
    """Each cell of code with what it printed and showed as text, without what varies from run to run."""

    def plain(text: str) -> str:
        for pattern, other in VARYING:
            text = pattern.sub(other, text)
        return "\n".join(line.strip() for line in text.strip().splitlines())

    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs]
            found.append((cell.source, plain("".join(texts))))
    return found


def main() -> None:
    """Run them, and write what they gave."""
    from tempfile import TemporaryDirectory

    import nbformat

    for name in NAMES:
        with TemporaryDirectory() as folder, stage(Path(folder)) as environment:
            nbformat.write(executed(name, Path(folder), environment), NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    main()
