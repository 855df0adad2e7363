"""How often the bands of a pooled curve hold the whole of it, and its value at one place, by how many sites there are.

Sites' coefficients of a natural spline of two columns are drawn from their own covariance, as a logistic regression of
400 patients has it, and from one between sites, so many times that of a typical site. What is measured is the pooling
alone; `curve_coverage` goes through releases. Default: REML, ad hoc; beside it fixed effects with z.

python -m tests.benchmarks.band_coverage
"""

import itertools

import numpy as np
from scipy import special

from coordinator.pooling.multivariate import JointRow, pool_joint
from shared.estimands.formulas import parse
from shared.estimands.splines import basis_of
from tests.benchmarks import record

SEED, REPETITIONS, PERSONS = 5151, record.sized(1000, 2), 400
SITES, BETWEEN = (4, 8, 16), (0.0, 1.0)
TERM = "ns(x, knots = 0, Boundary.knots = c(-1.5, 1.5))"
TERMS = (f"{TERM}[1]", f"{TERM}[2]")
WAYS = {"default": ("REML", "adhoc"), "fixed_z": ("FE", "z")}


def main() -> None:
    rng = np.random.default_rng(SEED)
    basis = basis_of(parse(TERM))
    assert basis is not None
    x = np.linspace(*basis.ends, 61)
    along = basis.columns(x) - basis.columns(np.zeros(1))
    truth = np.linalg.lstsq(along, 0.3 * x, rcond=None)[0]

    def site() -> np.ndarray:
        """The covariance of a site's coefficients."""
        values = rng.standard_normal(PERSONS)
        matrix = np.column_stack([np.ones(PERSONS), basis.columns(values)])
        chance = special.expit(0.3 * values - 0.5)
        return np.linalg.inv((matrix * (chance * (1 - chance))[:, None]).T @ matrix)[1:, 1:]

    typical = np.mean([site() for _ in range(200)], axis=0)
    cells = {}
    for k, share in itertools.product(SITES, BETWEEN):
        held: dict[str, list[list[bool]]] = {name: [] for name in WAYS}
        for _ in range(REPETITIONS):
            covs = [site() for _ in range(k)]
            rows = [
                JointRow(label=f"{i}", yi=rng.multivariate_normal(truth, cov + share * typical), cov=cov)
                for i, cov in enumerate(covs)
            ]
            for name, (method, test) in WAYS.items():
                found = pool_joint(rows, TERMS, method=method, test=test)
                far = np.abs(along @ (found.beta - truth))
                se = np.sqrt(np.einsum("ij,jk,ik->i", along, found.vcov, along)) + 1e-12
                held[name].append(
                    [
                        bool(far[-1] <= found.critical * se[-1]),
                        bool((far <= found.critical * se).all()),
                        bool((far <= found.critical_together * se).all()),
                    ]
                )
        names = ("at_one_place", "whole_pointwise", "whole_simultaneous")
        row = {way: dict(zip(names, (100 * np.mean(of, axis=0)).tolist(), strict=True)) for way, of in held.items()}
        cells[f"{k} sites, between {share:g}"] = row
        print(k, share, row, flush=True)
    results = {"repetitions": REPETITIONS, "persons": PERSONS, "cells": cells}
    print(record.write("band_coverage", results, SEED))


if __name__ == "__main__":
    main()
