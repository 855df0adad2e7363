"""How much `pip install 'tributary-meta[…]'` puts on a machine: packages, and megabytes with their byte code.

A client is also installed with the options of docs/installing.md, and measured after it has done what it is for.

python -m tests.benchmarks.installed_size [EXTRAS ...]      (needs an index of packages; a few minutes)
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("site", "coordinator", "client", "client,figures")
TOOLS = ("pip", "setuptools")


def installed(folder: Path, wheel: Path, extras: str, options: Sequence[str] = ()) -> dict[str, float]:
    """Into a new environment: number of packages, and megabytes."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, *options, f"{wheel}[{extras}]"], check=True)
    return measured(folder)


def measured(folder: Path) -> dict[str, float]:
    """What is installed in an environment with the byte code beside it, whoever wrote it; of that the largest five."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    found = [one for one in distributions(path=[str(packages)]) if one.metadata["Name"] not in TOOLS]
    sizes = {one.metadata["Name"]: _megabytes(one) for one in found}
    five = sorted(sizes.values(), reverse=True)[:5]
    return {"packages": len(found), "mb": sum(sizes.values()), "largest_five_mb": sum(five)}


def _megabytes(one: Distribution) -> float:
    files = {Path(file.locate()) for file in one.files or ()}
    files |= {Path(cache_from_source(str(file))) for file in files if file.suffix == ".py"}
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def options_of_the_page() -> list[str]:
    """What docs/installing.md gives pip for an analyst, beside the constraints."""
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    [given] = re.findall(
        r"^\| an analyst \| `pip install (.*) -c constraints.txt '\.\[client", page, flags=re.MULTILINE
    )
    return shlex.split(given)


ALL_IT_IS_FOR = """
import importlib, pkgutil
import coordinator.analyst, coordinator.figures, coordinator.pooling
import grpc, scipy.integrate, scipy.interpolate, scipy.optimize, scipy.stats
import tributary_meta as tm
from pathlib import Path
for room in (coordinator.analyst, coordinator.figures, coordinator.pooling):
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)
table = tm.read_table(Path("estimates.csv"))
found = tm.pool(table["yi"], table["vi"], labels=list(table["study"]))
tm.leave_one_out(found), tm.cumulative(found), table.describe()
"""
"""Every module of a client's is imported, with what it imports on its way, and a table of one's own pooled."""


def used(folder: Path) -> dict[str, float]:
    """Do with a client what it is for, without a server; what is installed then."""
    (folder / "estimates.csv").write_text("study,yi,vi\nnorth,0.21,0.01\nsouth,0.35,0.02\neast,0.12,0.015\n")
    for argv in (["analyst", "pool", "estimates.csv"], ["python", "-c", ALL_IT_IS_FOR]):
        there = [folder / "bin" / argv[0], *argv[1:]]
        subprocess.run(there, cwd=folder, env={"PATH": os.environ["PATH"]}, check=True, stdout=subprocess.DEVNULL)
    return measured(folder)


def main() -> None:
    """Measure every extra that a person installs alone, or those that are named; the others keep their figures."""
    from stage.house.wheel import built

    from tests.benchmarks.record import RESULTS, write

    asked = sys.argv[1:] or EXTRAS
    kept = RESULTS / "installed_size.json"
    results = json.loads(kept.read_text(encoding="utf-8"))["results"] if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder) / "wheel")
        for number, extras in enumerate(asked):
            results[extras] = installed(Path(folder) / str(number), wheel, extras)
            print(extras, results[extras], flush=True)
        if "client" in asked:
            page = Path(folder) / "page"
            results["client, as the page has it"] = installed(page, wheel, "client", options_of_the_page())
            results["client, as the page has it, used"] = used(page)
    print(write("installed_size", results, seed=0))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main()
