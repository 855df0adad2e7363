"""CPU seconds that the forest plot of many sites takes, written as an SVG file.

python -m tests.benchmarks.forest_speed

Pooled results in, a file out, in one process; imports and fonts are read before, by a figure of three sites.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from coordinator.figures.forest import forest
from coordinator.pooling.pool import pool
from tests.benchmarks import record

SEED, REPEATS = 24, 3
SITES = record.sized((16, 121, 500), (3,))


def main() -> None:
    """Draw each, and write the JSON."""
    rng = np.random.default_rng(SEED)
    v = rng.uniform(0.01, 0.3, max(SITES))
    y = rng.normal(0.2, np.sqrt(v + 0.05))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forest.svg"
        forest(pool(y[:3], v[:3]), path=path)
        for sites in SITES:
            result, times = pool(y[:sites], v[:sites], labels=[f"site {k:03}" for k in range(sites)]), []
            for _ in range(REPEATS):
                begun = time.process_time()
                forest(result, title="Readmission", path=path)
                times.append(time.process_time() - begun)
            found[f"{sites}"] = {"svg_s": float(np.median(times)), "bytes": path.stat().st_size}
            print(sites, found[f"{sites}"], flush=True)
    print(record.write("forest_speed", {"sites": found}, SEED))


if __name__ == "__main__":
    main()
