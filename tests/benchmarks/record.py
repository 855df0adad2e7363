"""Save what a benchmark measured, with everything needed to measure it again."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

PACKAGES = (
    "numpy",
    "scipy",
    "pandas",
    "torch",
    "cryptography",
    "dp-accounting",
    "opendp",
    "nflows",
    "zuko",
    "grpcio",
    "statsmodels",
    "POT",
    "flwr",
)


def write(name: str, results: Mapping[str, Any], seed: int, command: str = "") -> Path:
    """Write `tests/benchmarks/results/<name>.json` and return its path."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", module.name] if module else [f"tests/benchmarks/{Path(sys.argv[0]).name}"]
    record = {
        "command": command or " ".join(["python", *program, *sys.argv[1:]]),
        "seed": seed,
        "versions": versions,
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "results": dict(results),
    }
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return path
