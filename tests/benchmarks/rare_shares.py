"""How often the pooled 95 % interval of a rare share holds the truth, with and without the sites where nobody has it.

Eight sites of one size, on the patients' own rows. Truth is the share of a typical site, which is what a mean of logits
is of. Beside the answer of the product (half a row more on both sides of a share of none) stands the pool that leaves
such sites out. Both by default: REML, ad hoc Knapp-Hartung.

python -m tests.benchmarks.rare_shares
"""

import math
import sys

import numpy as np
from scipy import special

from coordinator.pooling.pool import pool
from shared.estimands.columns import proportion
from shared.estimands.floors import LeastRows
from tests.benchmarks import record

SEED, REPETITIONS, SITES = 4141, record.sized(2000, 2), 8
CELLS = ((100, 0.01, 0.0), (300, 0.01, 0.0), (100, 0.03, 0.0), (300, 0.03, 0.0), (300, 0.03, 0.5), (100, 0.2, 0.5))
"""Patients of a site, share, and standard deviation of the sites' logits."""


def main(repetitions: int = REPETITIONS) -> None:
    rng = np.random.default_rng(SEED)
    cells = {}
    for n, share, tau in CELLS:
        truth = special.logit(share)
        held: dict[str, list[tuple[bool, float]]] = {"kept": [], "left_out": []}
        empty = 0
        for _ in range(repetitions):
            cases = rng.binomial(n, special.expit(truth + tau * rng.standard_normal(SITES)))
            empty += int((cases == 0).sum())
            found = np.array(
                [proportion(np.repeat([1.0, 0.0], [k, n - k]), LeastRows(residual_df=10, events=5)) for k in cases]
            )
            for name, used in (("kept", found), ("left_out", found[cases > 0])):
                if len(used) > 1:
                    pooled = pool(*used.T)
                    held[name].append((pooled.ci_lb <= truth <= pooled.ci_ub, pooled.beta - truth))
        row = {"cases_per_site": n * share, "empty_percent": 100 * empty / repetitions / SITES}
        for name, of in held.items():
            inside, off = np.array(of, dtype=float).T
            row |= {f"{name}_percent": 100 * inside.mean(), f"{name}_times_too_high": math.exp(off.mean())}
        cells[f"n={n} share={share:g} tau={tau:g}"] = row
        print(n, share, tau, {name: round(value, 2) for name, value in row.items()}, flush=True)
    print(record.write("rare_shares", {"repetitions": repetitions, "sites": SITES, "cells": cells}, SEED))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
