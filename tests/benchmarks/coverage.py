"""How often a nominal 95 % interval holds the truth: REML with z, Knapp-Hartung and its ad hoc floor, and others.

Two kinds of federation: hospitals of like size, and one whose variance is about a tenth of the others'. I2 is the
share of variance between hospitals. Run by `make soak`, not by `make test`.

python -m tests.benchmarks.coverage
"""

import numpy as np

from coordinator.pooling.further.few_studies import exact_interval
from coordinator.pooling.further.many import pool_many
from coordinator.pooling.pool import pool
from tests.benchmarks import record

SEED = 2026
REPLICATES, EXACT = record.sized((20_000, 400), (20, 1))
SITES, SHARES, TRUTH = (3, 4, 5, 6, 8, 10, 12), (0.0, 0.2, 0.4, 0.6, 0.8), 0.3
LOW, HIGH = 93.0, 97.0


def variances(kind, k):
    v = 0.1 * np.geomspace(0.6, 1.7, k)
    if kind == "one_large":
        v[0] = 0.01
    return v


def tau2_for(v, share):
    typical = (len(v) - 1) / (np.sum(1 / v) - np.sum(1 / v**2) / np.sum(1 / v))
    return share / (1 - share) * typical


def coverage(y, v, method, test):
    found = pool_many(y, np.broadcast_to(v, y.shape), method=method, test=test)
    return float(100 * np.mean((found.ci_lb <= TRUTH) & (found.ci_ub >= TRUTH)))


def main():
    rng = np.random.default_rng(SEED)
    cells = {}
    for kind in ("like_sizes", "one_large"):
        for k in SITES:
            for share in SHARES:
                v = variances(kind, k)
                y = TRUTH + rng.normal(0, np.sqrt(v + tau2_for(v, share)), (REPLICATES, k))
                row = {f"REML_{test}": coverage(y, v, "REML", test) for test in ("adhoc", "knha", "z")}
                row["FE_z"] = coverage(y, v, "FE", "z")
                if k <= 4 and share in (0.0, 0.4, 0.8):
                    held = 0
                    for some in y[:EXACT]:
                        interval = exact_interval(pool(some, v), rng, draws=2000).interval
                        held += interval.lb <= TRUTH <= interval.ub
                    row["exact"] = 100 * held / EXACT
                cells[f"{kind}/K={k}/I2={share:g}"] = row
        print(kind, "done")
    main_cells = [row["REML_adhoc"] for name, row in cells.items() if is_main(name)]
    every = [row["REML_adhoc"] for row in cells.values()]
    results = {
        "replicates": REPLICATES,
        "exact_replicates": EXACT,
        "asked": [LOW, HIGH],
        "main_cells": "like sizes, K of 5 and more, I2 of 0.4 and more",
        "cells": {name.replace("/", " "): row for name, row in cells.items()},
        "REML_adhoc": {
            "main_lowest": min(main_cells),
            "main_highest": max(main_cells),
            "main_within": sum(LOW <= value <= HIGH for value in main_cells),
            "main_count": len(main_cells),
            "lowest": min(every),
            "highest": max(every),
            "below": sum(value < LOW for value in every),
            "count": len(every),
        },
        "REML_z_lowest": min(row["REML_z"] for row in cells.values()),
        "REML_knha_lowest": min(row["REML_knha"] for row in cells.values()),
        "exact_lowest": min(row["exact"] for row in cells.values() if "exact" in row),
    }
    print(results["REML_adhoc"])
    print(record.write("coverage", results, SEED))


def is_main(name):
    kind, k, share = name.split("/")
    return kind == "like_sizes" and int(k[2:]) >= 5 and float(share[3:]) >= 0.4


if __name__ == "__main__":
    main()
