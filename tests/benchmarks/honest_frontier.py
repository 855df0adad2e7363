"""Where the distance of noisy moments from the real data comes from, and what another split of the budget would bring.

Twelve full-size cohorts at ε = 1, released without noise and fitted as if there were noise: what is then off is no
noise's doing. The variance that noise would add is the linearised one, which splits into the blocks of the release and
can be told for any shares; of all shares on a grid the best is told. `from_noise` and the others are parts of the
pooled log hazard ratio's variance, in millionths; `gap` and its parts are in hazard ratios, with no noise at all.

python -m tests.benchmarks.honest_frontier [repetitions] [first seed]
"""

import argparse
import itertools
import math

import numpy as np

from coordinator.pooling.pool import pool
from shared.mechanisms.moments import cohort as generator
from shared.mechanisms.moments import copula
from shared.mechanisms.moments.draw import moments
from tests.benchmarks import honest, record
from tests.benchmarks.cohorts_gap import cvd_tables

BETWEEN = 0.03**2
"""Variance of the sites' own log hazard ratios, as `cvd_cohorts` draws them."""
BLOCKS = ("moments", "products", "score")


class Silent:
    """A source of no noise."""

    def lattice_gaussian_steps(self, sigma, shape, grid):
        return np.zeros(shape, dtype=np.int64)


def site(name, table, declared):
    """The noiseless estimate of a site, and the pieces of its variance."""
    plan = honest.design(name, 1.0, declared)
    release = moments(plan.dictionary.check(table), plan, Silent())
    row = generator.fit(release, plan).estimates(study="cvd", site=name, wave=1)[3]
    fitted = copula.complete(release, plan)
    model, theta, p = fitted.model, fitted.theta, plan.p
    _, slope = model.slope(theta, fitted.score)
    x, y = generator.drawn(model, theta, np.random.default_rng(1).random((3000, p + 3)))
    covariance = np.cov(model.rows(x, y, fitted.score).T) / release.n
    single, pairs = [0] * p + [1] * p, [1] * (p * (p - 1) // 2)
    block = np.array([*single, *pairs, *[0] * (2 * (p + 1)), *[2] * declared])
    at = len(theta.flat) - theta.effects.size + p
    unit = 10 * model.outcome.unit / model.lens.scale[3]
    pieces = (
        slope,
        fitted.noise,
        covariance,
        np.diag(copula.precisions(model)),
        block,
        at,
        unit,
        plan.spec.split.parts[1:],
    )
    return (10 * row.yi, 100 * (row.vi_sampling + row.vi_privacy)), pieces


def variances(pieces, shares):
    """(sampling, noise by block) of a site's log hazard ratio if the three later blocks had these shares."""
    slope, noise, covariance, prior, block, at, unit, usual = pieces
    noise = noise * np.array(usual)[block] / np.array(shares)[block]
    weighted = slope.T / noise
    gain = unit * np.linalg.solve(weighted @ slope + prior, weighted)[at]
    return gain @ covariance @ gain, np.array([(gain**2 * noise)[block == k].sum() for k in range(3)])


def told(sites, shares):
    """Parts of the pooled variance at these shares, in millionths."""
    sampling, blocks = (np.array(part) for part in zip(*(variances(one, shares) for one in sites), strict=True))
    total = sampling + blocks.sum(axis=1) + BETWEEN
    weight = (1 / total) / (1 / total).sum()
    parts = 1e6 * weight**2 @ blocks
    out = {"from_" + name: float(part) for name, part in zip(BLOCKS, parts, strict=True)}
    return {**out, "from_noise": float(parts.sum()), "all": float(1e6 * weight**2 @ total)}


def splits(declared, histograms=0.1):
    """Shares of the three later blocks on a grid of one in forty."""
    for moment, product in itertools.product(range(4, 37), repeat=2):
        score = 36 - moment - product
        if product >= 2 and (score >= 4 if declared else score == 0):
            yield moment / 40, product / 40, (1 - histograms) - (moment + product) / 40


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(10, 1))
    parser.add_argument("first", nargs="?", type=int, default=5001)
    given = parser.parse_args()
    cells = {}
    for seed in range(given.first, given.first + given.repetitions):
        tables = cvd_tables(np.random.default_rng(10_000 + seed))
        real = np.array([honest.real(table) for table in tables.values()])
        theirs = honest.pooled(*real.T)[0]
        weight = 1 / (real[:, 1] + BETWEEN)
        for name, declared in (("plain", False), ("declared", True)):
            found = [site(which, table, declared) for which, table in tables.items()]
            ours, sites = np.array([row for row, _ in found]), [pieces for _, pieces in found]
            usual = told(sites, sites[0][-1] if declared else (*sites[0][-1][:2], 1.0))
            parts = {
                "gap": pool(*ours.T, method="REML", test="adhoc").beta,
                "gap_by_weights": pool(real[:, 0], ours[:, 1], method="REML", test="adhoc").beta,
                "gap_by_fit": pool(ours[:, 0], real[:, 1], method="REML", test="adhoc").beta,
            }
            cell = {key: abs(math.exp(value) - math.exp(theirs)) for key, value in parts.items()}
            cell |= usual | {"all_of_the_real_data": float(1e6 / weight.sum())}
            if seed == given.first:
                grid = {shares: told(sites, shares if declared else (*shares[:2], 1.0)) for shares in splits(declared)}
                best = min(grid, key=lambda shares: grid[shares]["all"])
                cells[name] = {"best": {**grid[best], "shares": list(best)}, "runs": []}
            cells[name]["runs"].append(cell)
        print(seed, flush=True)
    for cell in cells.values():
        runs = cell.pop("runs")
        cell |= {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        cell["usual_at_best_seed"] = {key: runs[0][key] for key in cell["best"] if key != "shares"}
    results = {"repetitions": given.repetitions, "cells": cells}
    print(record.write("honest_frontier", results, seed=given.first))


if __name__ == "__main__":
    main()
