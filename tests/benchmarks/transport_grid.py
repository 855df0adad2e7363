"""Transport maps of several columns together: ``python -m tests.benchmarks.transport_grid``.

The paper's own setting (Lalanne et al., 2026, Appendix D): from the uniform law on the unit square or cube to the
uniform law, or to independent mixtures of it with Beta(3, 3). Errors are mean squared distances of the map to the true
one at fresh places, noise of a release that of the ε named, replacing one person.

*Resampling.* The same noisy coefficients (N = 2, J = 2, our sensitivity) mapped two ways: on the grid, and as the paper
does: points drawn from both densities by rejection, entropic transport between them at the same blur, and its map. The
solver is POT's, in the log domain as the paper's is and, as a faster way where it does not overflow, with plain
kernels; both give the same map. CPU time, one thread.

*Level.* Ours (Haar at the level that a plan's rule takes, shrunk) against the paper's release (N = 2, J = 2, its bound)
and against the same Haar release as it comes. The rule looks at the number of persons and ε, never at the data.

*Figure 1.* Redrawn for d = 2 and 3, with ours beside it: transport_figure1.svg.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.answers.densities import _shares
from coordinator.answers.maps import GridMap, _refined
from shared.mechanisms.densities.noise import rounded_laplace_variance
from shared.mechanisms.densities.plan import level_for
from shared.mechanisms.densities.scaling import Basis, Coefficients
from tests.benchmarks import record
from tests.benchmarks.paper.bounds import paper_sensitivity

Floats = NDArray[np.float64]
SMOOTH = Basis(order=2, level=2)
SIDE = {2: 64, 3: 32}
PLACES = 2000


def mixture(u: Floats) -> Floats:
    """The quantile of 1/5 uniform and 4/5 Beta(3, 3): the map from the uniform law."""
    from scipy.stats import beta

    y = np.linspace(0, 1, 20_001)
    return np.asarray(np.interp(u, 0.2 * y + 0.8 * beta(3, 3).cdf(y), y))


def beta_like(u: Floats) -> Floats:
    """The quantile of Beta(2, 2), for a source that is not uniform."""
    from scipy.stats import beta

    return np.asarray(beta(2, 2).ppf(u))


def uniform(u: Floats) -> Floats:
    return u


# -- releases: of the laws that the mechanisms draw, from a fast generator --------------------------------------------
def smooth(points: Floats, epsilon: float, bound: float, rng: np.random.Generator) -> Floats:
    """Cells of the clipped density from noisy coefficients with ℓ₁ sensitivity `bound`; the paper's estimator."""
    n, d = points.shape
    made = Coefficients(basis=SMOOTH, columns=d, scale=1.0)
    noise = rng.laplace(scale=bound / epsilon, size=(4,) * d) if np.isfinite(epsilon) else np.zeros((4,) * d)
    sums = made.sums(points) * made.step + noise
    return positive(made.density(np.asarray(sums / made.step), n, SIDE[d]))  # type: ignore[arg-type]


def positive(density: Floats) -> Floats:
    """Clipped, with a little everywhere, adding up to 1."""
    cells = np.maximum(density, 0.0)
    cells = cells / cells.sum()
    return np.asarray((1 - 1e-6) * cells + 1e-6 / cells.size)


def histogram(points: Floats, level: int, epsilon: float, rng: np.random.Generator) -> Floats:
    edges = [np.linspace(0, 1, 2**level + 1)] * points.shape[1]
    counts = np.histogramdd(points, bins=edges)[0]
    return counts + (np.round(rng.laplace(scale=2 / epsilon, size=counts.shape)) if np.isfinite(epsilon) else 0.0)


def ours(points: Floats, epsilon: float, rng: np.random.Generator, *, shrink: bool = True) -> Floats:
    n, d = points.shape
    counts = histogram(points, level_for(d, n, 2 / epsilon if np.isfinite(epsilon) else 1e-9), epsilon, rng)
    if not shrink:
        return positive(_refined(np.maximum(counts, 0.0) / np.maximum(counts, 0.0).sum(), SIDE[d]))
    noise = rounded_laplace_variance(2 / epsilon) if np.isfinite(epsilon) else 0.0
    return _refined(_shares(counts, float(n), noise), SIDE[d])


def error(mapped: Floats, truth: Floats) -> float:
    return float(((mapped - truth) ** 2).sum(axis=1).mean())


# -- resampling --------------------------------------------------------------------------------------------------------
def resampled(cells: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Points of the density by rejection; the same cells as the grid has, evenly within each."""
    d, side = cells.ndim, len(cells)
    out: list[Floats] = []
    while sum(map(len, out)) < count:
        tried = rng.random((20_000, d))
        at = tuple((tried * side).astype(int).T)
        out.append(tried[rng.random(len(tried)) * cells.max() < cells[at]])
    return np.concatenate(out)[:count]


def entropic(x: Floats, y: Floats, places: Floats, reg: float, *, log: bool) -> Floats:
    """The entropic map between two samples, read off at other places by its potential."""
    import ot

    a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
    cost = ot.dist(x, y)
    how: dict[str, Any] = {"numItermax": 2000, "stopThr": 1e-3, "log": True, "warn": False}
    if log:
        _, told = ot.bregman.sinkhorn_log(a, b, cost, reg, **how)
        potential = np.asarray(told["log_v"])
    else:
        _, told = ot.bregman.sinkhorn_knopp(a, b, cost, reg, **how)
        potential = np.log(np.maximum(told["v"], 1e-300))
    score = potential[None, :] - ot.dist(places, y) / reg
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(weight @ y / weight.sum(axis=1, keepdims=True))


def resampling(draws: int, timed: int, seed: int) -> dict[str, Any]:
    errors: dict[str, list[float]] = {"grid": [], "resampling": []}
    cpu: dict[str, list[float]] = {"grid": [], "plain": [], "log": []}
    apart = 0.0
    made = Coefficients(basis=SMOOTH, columns=2, scale=1.0)
    for k in range(draws):
        rng = np.random.default_rng((seed, k))
        sensitivity = made.sensitivity * made.step
        source = smooth(rng.random((1000, 2)), 3.0, sensitivity, rng)
        target = smooth(mixture(rng.random((1000, 2))), 3.0, sensitivity, rng)
        places = rng.random((PLACES, 2))
        begun = time.process_time()
        found = GridMap.between(source, target, persons=1000)(places)
        cpu["grid"].append(time.process_time() - begun)
        errors["grid"].append(error(found, mixture(places)))
        begun = time.process_time()
        x, y = resampled(source, 2000, rng), resampled(target, 2000, rng)
        drawn = time.process_time() - begun
        begun = time.process_time()
        other = entropic(x, y, places, 1e-3, log=False)
        cpu["plain"].append(drawn + time.process_time() - begun)
        errors["resampling"].append(error(other, mixture(places)))
        if k < timed:
            begun = time.process_time()
            again = entropic(x, y, places, 1e-3, log=True)
            cpu["log"].append(drawn + time.process_time() - begun)
            apart = max(apart, float(np.abs(again - other).max()))
    mse = {name: float(np.mean(values)) for name, values in errors.items()}
    seconds = {name: float(np.median(values)) for name, values in cpu.items()}
    return {
        "draws": draws,
        "timed_log": timed,
        "samples": 2000,
        "n": 1000,
        "epsilon": 3.0,
        "mse": mse,
        "mse_ratio": mse["grid"] / mse["resampling"],
        "cpu_seconds": seconds,
        "log_to_grid": seconds["log"] / seconds["grid"],
        "plain_to_grid": seconds["plain"] / seconds["grid"],
        "log_and_plain_apart": apart,
    }


# -- the level, and the paper's release --------------------------------------------------------------------------------
def levels(runs: int, seed: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    paper = paper_sensitivity(SMOOTH, 2)
    quantiles: dict[str, Callable[[Floats], Floats]] = {"uniform": uniform, "beta": beta_like}
    for source, quantile in quantiles.items():
        for n in record.sized((1000, 10_000, 100_000), (1000,)):
            for epsilon in (1.0, 3.0):
                errors: dict[str, list[float]] = {"ours": [], "plain": [], "paper": []}
                for k in range(runs):
                    rng = np.random.default_rng((seed, n, int(epsilon), k))
                    x, y = quantile(rng.random((n, 2))), mixture(rng.random((n, 2)))
                    u = rng.random((PLACES, 2))
                    at, truth = quantile(u), mixture(u)
                    maps = {
                        "ours": (ours(x, epsilon, rng), ours(y, epsilon, rng)),
                        "plain": tuple(ours(z, epsilon, rng, shrink=False) for z in (x, y)),
                        "paper": tuple(smooth(z, epsilon, paper, rng) for z in (x, y)),
                    }
                    for name, (one, other) in maps.items():
                        errors[name].append(error(GridMap.between(one, other, persons=n)(at), truth))
                mse = {name: float(np.mean(values)) for name, values in errors.items()}
                row: dict[str, Any] = {"n": n, "epsilon": epsilon, "runs": runs, "mse": mse}
                row |= {"level": level_for(2, n, 2 / epsilon)}
                row |= {"to_paper": mse["ours"] / mse["paper"], "to_plain": mse["ours"] / mse["plain"]}
                out[f"{source}, n={n}, epsilon={epsilon:g}"] = row
    return out


# -- figure 1 ----------------------------------------------------------------------------------------------------------
def figure(runs: int, seed: int) -> dict[str, Any]:
    import ot

    out: dict[str, Any] = {}
    budgets = {2: (1.0, 3.0, 5.0, 10.0, np.inf), 3: (5.0, 10.0, 30.0, np.inf)}
    for d, epsilons in budgets.items():
        bound = paper_sensitivity(SMOOTH, d)
        for n in record.sized((100, 300, 1000, 3000, 10_000, 30_000, 100_000), (100, 300)):
            found: dict[str, list[float]] = {}
            for k in range(runs):
                rng = np.random.default_rng((seed, d, n, k))
                x, y, places = rng.random((n, d)), rng.random((n, d)), rng.random((PLACES, d))
                for epsilon in epsilons:
                    pair = [smooth(z, epsilon, bound, rng) for z in (x, y)]
                    name = f"paper, epsilon={epsilon:g}"
                    found.setdefault(name, []).append(error(GridMap.between(*pair, persons=n)(places), places))
                first = epsilons[0]
                pair = [ours(z, first, rng) for z in (x, y)]
                name = f"ours, epsilon={first:g}"
                found.setdefault(name, []).append(error(GridMap.between(*pair, persons=n)(places), places))
                if n <= 3000:
                    weight = np.full(n, 1 / n)
                    plan = ot.emd(weight, weight, ot.dist(x, y), numItermax=10**7)
                    found.setdefault("OT", []).append(error(n * plan @ y, x))
                    mapped = entropic(x, y, places, 1e-3 if n > 300 else 1e-2, log=False)
                    found.setdefault("EOT", []).append(error(mapped, places))
            out[f"d={d}, n={n}"] = {name: float(np.mean(values)) for name, values in found.items()}
            print(f"d={d}, n={n}", out[f"d={d}, n={n}"], flush=True)
    return out


def draw(told: dict[str, Any], path: Path) -> None:
    """The figure: mean squared error by n, a line per ε."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from coordinator.figures.files import save

    mpl.rcParams["font.family"] = "DejaVu Sans"
    made, both = plt.subplots(1, 2, figsize=(9.2, 4.2))
    shades = ("#08306b", "#2171b5", "#4a9bd1", "#85bcdc", "#8c96a3")
    for axes, d in zip(both, (2, 3), strict=True):
        rows = {int(place.split("n=")[1]): row for place, row in told.items() if place.startswith(f"d={d},")}
        ns = sorted(rows)
        papers = sorted({name for row in rows.values() for name in row if "paper" in name}, key=_epsilon)
        [mine] = {name for row in rows.values() for name in row if "ours" in name}
        lines: list[tuple[str, str, dict[str, Any]]] = []
        for name, shade in zip(papers, (*shades[: len(papers) - 1], shades[-1]), strict=True):
            value = _epsilon(name)
            label = f"paper, ε = {value:g}" if np.isfinite(value) else "the same, not private"
            lines.append((name, label, {"color": shade, "marker": ".", "linewidth": 1.3}))
        lines.append(("OT", "empirical OT, not private", {"color": "#1b1f24", "linestyle": "--", "linewidth": 1.1}))
        lines.append(("EOT", "entropic OT, not private", {"color": "#9b1c1c", "linestyle": "--", "linewidth": 1.1}))
        bold = {"color": "#D55E00", "linewidth": 2.2, "marker": "o", "markersize": 4}
        lines.append((mine, f"ours, ε = {_epsilon(mine):g}", bold))
        for name, label, style in lines:
            known = [n for n in ns if name in rows[n]]
            axes.plot(known, [rows[n][name] for n in known], label=label, **style)
        axes.set(xscale="log", yscale="log", xlabel="persons per site", ylabel="mean squared error of the map")
        axes.set_title(f"d = {d}, uniform to uniform", fontsize=10, loc="left", weight="bold")
        axes.legend(fontsize=7, frameon=False)
        for edge in ("top", "right"):
            axes.spines[edge].set_visible(False)
    made.text(
        0.01,
        0.005,
        "N = 2, J = 2 with the paper's sensitivity; ours: Haar at the level of the rule, shrunk "
        "(towards the uniform law, which here is the truth).",
        fontsize=7.5,
    )
    made.tight_layout(rect=(0, 0.03, 1, 1))
    save(made, path, title="Error of private transport maps", description="The paper's Figure 1, redrawn.")


def _epsilon(name: str) -> float:
    return float(name.split("=")[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=record.sized(5, 1))
    parser.add_argument("--draws", type=int, default=record.sized(20, 1))
    parser.add_argument("--timed", type=int, default=record.sized(3, 0))
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    parser.add_argument("--figure", action="store_true", help="only draw the figure again, from what was measured")
    given = parser.parse_args()
    if given.figure:
        told = json.loads((record.RESULTS / "transport_grid.json").read_text())["results"]["figure 1"]
        draw(told, record.RESULTS / "transport_figure1.svg")
        return
    results: dict[str, Any] = {"resampling": resampling(given.draws, given.timed, given.seed)}
    print(results["resampling"], flush=True)
    results["level"] = levels(given.runs, given.seed)
    for place, row in results["level"].items():
        print(place, row, flush=True)
    results["figure 1"] = figure(given.runs, given.seed)
    if not given.dry:
        print(record.write("transport_grid", results, seed=given.seed))
        draw(results["figure 1"], record.RESULTS / "transport_figure1.svg")


if __name__ == "__main__":
    main()
