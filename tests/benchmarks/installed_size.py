"""How much `pip install 'tributary-meta[…]'` puts on a machine: packages, and megabytes with their byte code.

python -m tests.benchmarks.installed_size      (needs an index of packages; a few minutes)
"""

import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("site", "coordinator", "client", "client,figures")
TOOLS = ("pip", "setuptools")


def installed(folder: Path, wheel: Path, extras: str) -> dict[str, float]:
    """Into a new environment: number of packages, megabytes, and whether what is on top was left out."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[{extras}]"], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    found = [one for one in distributions(path=[str(packages)]) if one.metadata["Name"] not in TOOLS]
    files = {Path(file.locate()) for one in found for file in one.files or ()}
    return {"packages": len(found), "mb": sum(file.stat().st_size for file in files if file.is_file()) / 1e6}


def main() -> None:
    """Measure every extra that a person installs alone."""
    from tests.benchmarks.record import write
    from tests.test_wheel import built

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder) / "wheel")
        for number, extras in enumerate(EXTRAS):
            results[extras] = installed(Path(folder) / str(number), wheel, extras)
            print(extras, results[extras])
    print(write("installed_size", results, seed=0))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main()
