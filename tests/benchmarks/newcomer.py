"""From a checkout to the first forest plot: a new environment, the install, three hospitals; and a wave of sixteen.

python -m tests.benchmarks.newcomer      (needs an index of packages; a few minutes)

What pip keeps of earlier installs is not used. Every hospital, the coordinator and the analyst are on this machine,
each command of theirs a process, with its keys and over TLS. *Sixteen* is the whole of the demo with sixteen hospitals,
from empty folders to the plot; of it, what the wave takes after the last approval of the plan is a part, so that its
bar is held where the whole holds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import record
from tests.benchmarks.installed_size import ROOT

SITES, EXTRAS = record.sized(16, 2), "site,coordinator,client"


def installed(folder: Path) -> Path:
    """The programs of a new environment in this folder."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{ROOT}[{EXTRAS}]"], check=True)
    return folder / "bin"


def shown(programs: Path, out: Path, *options: str) -> float:
    """Seconds of a demo with its forest plot."""
    begun, kept = time.monotonic(), {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    argv = [programs / "tributary", "demo", "--study", "first", "--out", out, *options]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=out.parent, env={**kept, "OMP_NUM_THREADS": "1"})
    seconds = time.monotonic() - begun
    if not [*out.rglob("*forest*.svg")]:
        raise SystemExit(f"no forest plot in {sorted(path.name for path in out.rglob('*'))}")
    return seconds


def measured(folder: Path) -> dict[str, Any]:
    """All steps of a newcomer, with an index of packages or, at the smallest size, what is installed."""
    load, begun = os.getloadavg()[0], time.monotonic()
    programs = Path(sys.executable).parent if record.SMALLEST else installed(folder / "env")
    took = time.monotonic() - begun
    first = shown(programs, folder / "first")
    return {
        "load_before": load,
        "install_s": took,
        "first_s": first,
        "to_the_plot_s": took + first,
        "hospitals_of_the_wave": SITES,
        "wave_whole_s": shown(programs, folder / "wave", "--sites", f"{SITES}"),
    }


def main() -> None:
    """Measure, and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        results = measured(Path(folder))
    print(results)
    print(record.write("newcomer", results, seed=1))


if __name__ == "__main__":
    main()
