"""Save what a benchmark measured, with everything needed to measure it again."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

COMMITTED = Path(__file__).parent / "results"
SMALLEST = os.environ.get("TRIBUTARY_SMALLEST", "")
"""A folder: benchmarks only start, at their smallest sizes, and write there what says nothing of the product."""
RESULTS = Path(SMALLEST) if SMALLEST else COMMITTED

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
    "ott-jax",
    "jax",
    "igraph",
    "flwr",
)


def sized(full: T, smallest: T) -> T:
    """One size or several of a benchmark: `full`, but `smallest` where it is only to start (`SMALLEST`)."""
    return smallest if SMALLEST else full


def write(name: str, results: Mapping[str, Any], seed: int, command: str = "") -> Path:
    """Write `<name>.json` into `RESULTS` and return its path."""
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
