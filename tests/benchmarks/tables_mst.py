"""Noisy tables with latent classes beside MST, the same persons, the same price, in one run.

python -m tests.benchmarks.tables_mst [--seeds 5]        (pip install tributary[rivals])

MST (McKenna, Miklau & Sheldon 2021) measures all one-way tables, chooses a spanning tree of two-way tables by the
exponential mechanism, measures those, and fits a graphical model. Selection and measurement are written here after the
paper, each a third of the price; the inference and the rows are private-pgm's own (the package `mbi`), with its mirror
descent. Neighbours are replace-one for both: a table moves by √2, a score of selection by 2. The same bins for both.

CPU seconds are told twice, for each table is fitted twice by both. The first time is what a person waits for who fits a
table, with what jax compiles for a tree that it has not met. The second time it is the same tree, and nothing is left
to compile: jax's arithmetic alone.
"""

import argparse
import itertools
import time

import numpy as np
import pandas as pd

from shared.base.randomness import seeded_rng
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.one_step import Released, fitted, synthetic
from shared.plans.encoding import typed
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from tests.benchmarks import record
from tests.benchmarks.tables_quality import DELTA, DICTIONARY, N, census_like, quality, summary

EPSILON = 5.1
COLUMNS = attributes(DICTIONARY)
NAMES = tuple(one.name for one in COLUMNS)
ITERATIONS = record.sized(1000, 2)


def rho_of(epsilon, delta):
    """The largest zCDP whose price at δ is at most ε: the same conversion as of everything else here."""
    low, high = 0.0, epsilon
    for _ in range(60):
        rho = (low + high) / 2
        cost = privacy.epsilon_from_rdp(rho * privacy.ORDERS, delta)
        low, high = (rho, high) if cost <= epsilon else (low, rho)
    return low


def mst(codes, rng):
    """A graphical model on a tree of two-way tables."""
    from mbi import Domain, LinearMeasurement, estimation

    domain = Domain(list(NAMES), [one.size for one in COLUMNS])
    third = rho_of(EPSILON, DELTA) / 3

    def counted(*places):
        shape = tuple(COLUMNS[a].size for a in places)
        return np.bincount(np.ravel_multi_index([codes[a] for a in places], shape), minlength=int(np.prod(shape)))

    def measured(cliques):
        sigma = np.sqrt(2.0) * np.sqrt(len(cliques) / (2 * third))
        return [
            LinearMeasurement(c + sigma * rng.standard_normal(c.size), tuple(NAMES[a] for a in clique), stddev=sigma)
            for clique in cliques
            for c in [counted(*clique).astype(float)]
        ]

    singles = measured([(a,) for a in range(len(NAMES))])
    # Of one-way tables the graphical model is independence, in closed form.
    margins = [np.maximum(np.asarray(one.noisy_measurement), 0) for one in singles]
    margins = [margin / margin.sum() for margin in margins]
    scores = {
        (a, b): float(np.abs(counted(a, b) - N * np.outer(margins[a], margins[b]).ravel()).sum())
        for a, b in itertools.combinations(range(len(NAMES)), 2)
    }
    tree, part = [], list(range(len(NAMES)))
    each = np.sqrt(8 * third / (len(NAMES) - 1))  # exponential mechanism at ε costs ε²/8 of zCDP
    while len(tree) < len(NAMES) - 1:
        open_ = [edge for edge in scores if part[edge[0]] != part[edge[1]]]
        noisy = [each * scores[edge] / (2 * 2.0) + rng.gumbel() for edge in open_]
        tree.append(open_[int(np.argmax(noisy))])
        old, new = part[tree[-1][0]], part[tree[-1][1]]
        part = [new if one == old else one for one in part]
    return estimation.MirrorDescent().estimate(domain, singles + measured(tree), known_total=N, iters=ITERATIONS)


def rows_of(model, seed):
    """A synthetic table of the dictionary: numbers evenly within their bins."""
    drawn = model.synthetic_data(rows=N)
    rng = np.random.default_rng(seed)
    values = {}
    for one in COLUMNS:
        values |= one.values(np.asarray(drawn.to_dict()[one.name], dtype=np.int64), rng)
    return pd.DataFrame({column.name: typed(column, values[column.name]) for column in DICTIONARY.released})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=record.sized(5, 1))
    seeds = parser.parse_args().seeds
    import jax

    jax.config.update("jax_enable_x64", True)
    found = {"tables and latent classes": [], "MST": []}
    count = len(CountTables(attributes=COLUMNS, sigma=1.0).tables)
    sigma = calibration.calibrate(privacy.Gaussian, EPSILON, DELTA, sensitivity=sensitivity(count)).sigma
    again = {name: [] for name in found}
    for seed in range(seeds):
        real, others = (census_like(n, 3 * seed + k) for k, n in ((0, N), (2, N // 2)))
        checked = DICTIONARY.check(real)
        mechanism = CountTables(attributes=COLUMNS, sigma=sigma)
        released = Released(tables=mechanism, counts=tuple(mechanism.release(checked, seeded_rng(seed))), n=N)
        codes = [one.codes(checked) for one in COLUMNS]

        def ours(released=released, seed=seed):
            fitted.cache_clear()
            return synthetic(fitted(released), DICTIONARY, draws=1, rng=np.random.default_rng(seed))[0]

        def theirs(codes=codes, seed=seed):
            return rows_of(mst(codes, np.random.default_rng(seed)), seed)

        for name, make in (("tables and latent classes", ours), ("MST", theirs)):
            start = time.process_time()
            rows = make()
            first = time.process_time() - start
            make()
            again[name].append(time.process_time() - start - first)
            found[name].append({**quality(real, rows, others), "cpu_seconds": first})
        for name, each in found.items():
            print(seed, name, " ".join(f"{k} {v:.3f}" for k, v in each[-1].items()), flush=True)
    results = {name: summary(each) for name, each in found.items()}
    ours, theirs = (results[name] for name in found)
    results |= {"n": N, "delta": DELTA, "epsilon": EPSILON, "seeds": seeds, "neighbours": "replace-one"}
    first = {name: [one["cpu_seconds"] for one in each] for name, each in found.items()}
    results["cpu_seconds"] = {name: {"first": first[name], "again": again[name]} for name in found}
    results["mst"] = {"iterations": ITERATIONS}
    mine, other = found

    def share(seconds):
        return sum(seconds[mine]) / sum(seconds[other])

    results["ratio"] = {
        "contingency_error": (1 - ours["contingency"]["mean"]) / (1 - theirs["contingency"]["mean"]),
        "cpu": share(first),
        "cpu_first": first[mine][0] / first[other][0],
        "cpu_again": share(again),
    }
    print(record.write("tables_mst", results, seed=0))


if __name__ == "__main__":
    main()
