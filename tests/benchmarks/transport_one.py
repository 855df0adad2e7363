"""One column's map from noisy densities, and what else could be released: ``python -m tests.benchmarks.transport_one``.

*Quantiles.* Mean squared error of the map between two distributions on [0, 1]: ours, and private quantiles joined by
straight lines (`shared.mechanisms.densities.quantiles`, the product's own, charged as replacing a person costs), with
the number of quantiles that turns out best. Over all patients, and over the middle 90 % of them; with the 64 bins of
the default and with the 32 of level = 5, and beside what records without any noise give.

*Local.* Error of a density of 64 bins where every record is noised by itself: Laplace, randomised response, and the
one that the rule takes; beside the central release.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coordinator.answers.densities import Noisy
from coordinator.answers.maps import Map
from shared.base.randomness import seeded_rng
from shared.mechanisms.densities.local import LocalCounts, better
from shared.mechanisms.densities.noise import Grid
from shared.mechanisms.densities.quantiles import Quantiles
from shared.plans.dictionary import Column
from tests.benchmarks import record

Floats = NDArray[np.float64]
EDGES = np.linspace(0.0, 1.0, 65)
LAW = record.sized(1_000_000, 10_000)


def released(values: Floats, scale: float, rng: np.random.Generator, edges: Floats = EDGES) -> Noisy:
    """A density as a site releases it; rounded noise from a fast generator, of the law that the product draws."""
    counts = np.histogram(values, edges)[0] + np.round(rng.laplace(scale=scale, size=len(edges) - 1))
    return Noisy(counts=counts, edges=edges, persons=len(values), scale=scale)


def uniform(n: int, rng: np.random.Generator) -> Floats:
    return rng.random(n)


def skewed(n: int, rng: np.random.Generator) -> Floats:
    return rng.beta(2, 5, n)


def target(n: int, rng: np.random.Generator) -> Floats:
    u = rng.random(n)
    return np.where(u < 0.6, rng.normal(0.35, 0.08, n), rng.normal(0.7, 0.1, n)).clip(0, 1)


def one_map(runs: int, sizes: tuple[int, ...], epsilon: float, seed: int) -> dict[str, Any]:
    points = (np.arange(2000) + 0.5) / 2000
    out: dict[str, Any] = {}
    for source in (uniform, skewed):
        rng, exact = np.random.default_rng(seed), seeded_rng(seed)
        many = np.sort(source(LAW, rng))
        onto = np.sort(target(LAW, rng))
        # Where the source has patients; its own tails beyond the last thousandth are nobody's error.
        at = np.quantile(many, 0.001 + 0.998 * points)
        truth = np.quantile(onto, 0.001 + 0.998 * points)
        for n in sizes:
            # All patients, and the middle 90 %: lines drawn to the bounds are poor beyond the outermost quantile.
            parts = {"all": slice(None), "middle": (points > 0.05) & (points < 0.95)}
            errors: dict[str, dict[str, list[float]]] = {part: {} for part in parts}
            for _ in range(runs):
                a, b = source(n, rng), target(n, rng)
                maps = {"ours": Map(released(a, 2 / epsilon, rng), released(b, 2 / epsilon, rng))(at)}
                # The same release with half the bins, which a plan asks for by level = 5: drawn apart from the rest.
                own, half = np.random.default_rng((seed, n, len(errors["all"].get("ours", [])))), EDGES[::2]
                maps["level 5"] = Map(released(a, 2 / epsilon, own, half), released(b, 2 / epsilon, own, half))(at)
                maps["not private"] = np.quantile(b, np.searchsorted(np.sort(a), at) / n)
                for depth in (3, 4, 5, 6, 7):
                    made = Quantiles(lower=0.0, upper=1.0, depth=depth, epsilon=epsilon)
                    q, r = made.release(a, exact), made.release(b, exact)
                    q = np.maximum.accumulate(q + 1e-9 * np.arange(len(q)))  # lines need places that differ
                    maps[f"{2**depth - 1} quantiles"] = np.interp(at, [0.0, *q, 1.0], [0.0, *r, 1.0])
                for name, mapped in maps.items():
                    for part, of in parts.items():
                        errors[part].setdefault(name, []).append(float(np.mean((mapped - truth)[of] ** 2)))
            row: dict[str, Any] = {"source": source.__name__, "n": n, "epsilon": epsilon, "runs": runs}
            for part, by_name in errors.items():
                mse = {name: float(np.mean(values)) for name, values in by_name.items()}
                best = min((name for name in mse if "quantiles" in name), key=lambda name: mse[name])
                row[part] = {"mse": mse["ours"], "quantiles": best, "mse_quantiles": mse[best]}
                row[part] |= {"mse_not_private": mse["not private"], "ratio": mse["ours"] / mse[best]}
                row[part] |= {"mse_level_5": mse["level 5"], "ratio_level_5": mse["level 5"] / mse[best]}
                row[part] |= {"not_private_to_quantiles": mse["not private"] / mse[best]}
            out[f"{source.__name__}, n={n}"] = row
            print(f"{source.__name__}, n={n}", row, flush=True)
    return out


def local(runs: int, n: int, seed: int) -> dict[str, Any]:
    grid = Grid(columns=(Column(name="x", kind="continuous", lower=0, upper=1),), level=6)
    out: dict[str, Any] = {}
    for epsilon in (1.0, 3.0):
        rng, exact = np.random.default_rng(seed), seeded_rng(seed)
        errors: dict[str, list[float]] = {}
        for _ in range(runs):
            values = target(n, rng)
            true = grid.counts(pd.DataFrame({"x": values})) / n
            codes = grid.codes(pd.DataFrame({"x": values}))
            for how in ("Laplace", "randomised response"):
                made = LocalCounts(grid=grid, epsilon=epsilon, how=how)  # type: ignore[arg-type]
                found = made.counts(made.report(codes, exact), n) / n
                errors.setdefault(how, []).append(float(((found - true) ** 2).sum()))
            central = released(values, 2 / epsilon, rng).counts / n
            errors.setdefault("central", []).append(float(((central - true) ** 2).sum()))
        row: dict[str, Any] = {name: float(np.mean(values)) for name, values in errors.items()}
        row |= {"n": n, "epsilon": epsilon, "runs": runs, "rule": better(epsilon, grid.size)}
        row["rule_to_best"] = row[row["rule"]] / min(row["Laplace"], row["randomised response"])
        out[f"epsilon={epsilon:g}"] = row
        print(epsilon, row, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=record.sized(20, 1))
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    given = parser.parse_args()
    results = {"local": local(2, record.sized(5000, 500), given.seed)}
    results["one map"] = one_map(given.runs, record.sized((1000, 10_000, 100_000), (1000,)), 1.0, given.seed)
    if not given.dry:
        print(record.write("transport_one", results, seed=given.seed))


if __name__ == "__main__":
    main()
