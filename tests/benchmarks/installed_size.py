"""How much `pip install 'tributary-meta[…]'` puts on a machine: packages, and megabytes with their byte code.

Of a client also how much is left without the libraries' own tests (docs/installing.md), with which it then pools.

python -m tests.benchmarks.installed_size      (needs an index of packages; a few minutes)
"""

import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("site", "coordinator", "client", "client,figures")
TOOLS = ("pip", "setuptools")


def installed(folder: Path, wheel: Path, extras: str) -> dict[str, float]:
    """Into a new environment: number of packages, and megabytes."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[{extras}]"], check=True)
    return measured(folder)


def measured(folder: Path) -> dict[str, float]:
    """What is installed in an environment."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    found = [one for one in distributions(path=[str(packages)]) if one.metadata["Name"] not in TOOLS]
    files = {Path(file.locate()) for one in found for file in one.files or ()}
    return {"packages": len(found), "mb": sum(file.stat().st_size for file in files if file.is_file()) / 1e6}


def without_tests(folder: Path) -> dict[str, float]:
    """Leave the libraries' own tests out of a client, as docs/installing.md has it, and pool with what is left."""
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^find /opt/tributary .*", page, flags=re.MULTILINE)
    subprocess.run(line.replace("/opt/tributary", str(folder)), shell=True, check=True)
    (folder / "estimates.csv").write_text("study,yi,vi\nnorth,0.21,0.01\nsouth,0.35,0.02\neast,0.12,0.015\n")
    for argv in (["analyst", "pool", "estimates.csv"], ["python", "-c", "import tributary_meta, grpc, pandas.testing"]):
        subprocess.run([folder / "bin" / argv[0], *argv[1:]], cwd=folder, check=True, capture_output=True)
    return measured(folder)


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
            if extras == "client":
                results["client, without tests"] = without_tests(Path(folder) / str(number))
    print(write("installed_size", results, seed=0))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    main()
