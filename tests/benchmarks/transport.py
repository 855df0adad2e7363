"""Transport maps from noisy densities against what else could be done: ``python -m tests.benchmarks.transport``.

*One map.* Mean squared error of the map between two distributions on [0, 1]: ours, and private quantiles joined by
straight lines (the exponential mechanism down a tree of medians, charged as replacing a person costs: one quantile at
the root, two on every level below), with the number of quantiles that turns out best.

*Five laboratories.* Two covariates, each on another nonlinear scale at every site, and slopes of an outcome on both,
pooled with an intercept per site: on the true scale, on the scales as they are, on z-scores from noisy moments, and on
scales mapped onto the first site's. Three densities share ε (the two, and an age that is measured alike).

*Patients who differ.* The same without any distortion, sites shifted evenly between -s and s standard deviations: what
harmonising then does to the slopes, and how often the warning speaks.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.harmonise import Map, Noisy, case_mix_warning
from tests.benchmarks import record

Floats = NDArray[np.float64]
EDGES = np.linspace(0.0, 1.0, 65)
SLOPES = np.array([1.0, -0.5])
SITES = 5


def released(values: Floats, scale: float, rng: np.random.Generator, edges: Floats = EDGES) -> Noisy:
    """A density as a site releases it; rounded noise from a fast generator, of the law that the product draws."""
    counts = np.histogram(values, edges)[0] + np.round(rng.laplace(scale=scale, size=len(edges) - 1))
    return Noisy(counts=counts, edges=edges, persons=len(values), scale=scale)


# -- one map ---------------------------------------------------------------------------------------------------------
def mixture(u: Floats, rng: np.random.Generator) -> Floats:
    return np.where(u < 0.6, rng.normal(0.35, 0.08, len(u)), rng.normal(0.7, 0.1, len(u))).clip(0, 1)


def uniform(n: int, rng: np.random.Generator) -> Floats:
    return rng.random(n)


def skewed(n: int, rng: np.random.Generator) -> Floats:
    return rng.beta(2, 5, n)


def target(n: int, rng: np.random.Generator) -> Floats:
    return mixture(rng.random(n), rng)


def noisy_quantiles(values: Floats, depth: int, epsilon: float, rng: np.random.Generator) -> Floats:
    """(2^depth - 1,) quantiles in order, by medians of halves; Kaplan, Schnapp & Stemmer (2022)."""
    each = epsilon * (1 / (2 * depth - 1))

    def split(part: Floats, low: float, high: float, levels: int) -> list[float]:
        if not levels:
            return []
        points = np.concatenate([[low], part, [high]])
        score = -np.abs(np.arange(len(part) + 1) - len(part) / 2) * each / 2
        weight = np.log(np.maximum(np.diff(points), 1e-300)) + score
        chosen = int(np.argmax(weight + rng.gumbel(size=len(weight))))
        cut = float(rng.uniform(points[chosen], points[chosen + 1]))
        at = int(np.searchsorted(part, cut))
        return [*split(part[:at], low, cut, levels - 1), cut, *split(part[at:], cut, high, levels - 1)]

    return np.array(split(np.sort(values), 0.0, 1.0, depth))


def one_map(runs: int, sizes: tuple[int, ...], epsilon: float, seed: int) -> list[dict[str, Any]]:
    points = (np.arange(2000) + 0.5) / 2000
    out = []
    for source in (uniform, skewed):
        rng = np.random.default_rng(seed)
        many = np.sort(source(1_000_000, rng))
        onto = np.sort(target(1_000_000, rng))
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
                maps["not private"] = np.quantile(b, np.searchsorted(np.sort(a), at) / n)
                for depth in (3, 4, 5, 6, 7):
                    q, r = (noisy_quantiles(v, depth, epsilon, rng) for v in (a, b))
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
            out.append(row)
    return out


# -- five laboratories -----------------------------------------------------------------------------------------------
SCALES = (
    lambda z: z,
    lambda z: np.log1p(25 * z) / math.log(26),
    lambda z: np.expm1(3.5 * z) / math.expm1(3.5),
    lambda z: 1.064 * z**3 / (z**3 + 0.4**3),
    lambda z: np.where(z < 0.5, 0.35 * z, 0.175 + 1.65 * (z - 0.5)),
)
ORDER = ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1))


def site(k: int, n: int, shift: float, distorted: bool, rng: np.random.Generator) -> dict[str, Floats]:
    """True and measured covariates, outcome and age of one site."""
    away = shift * (k - (SITES - 1) / 2) / ((SITES - 1) / 2)
    common = rng.normal(size=n)
    latent = np.stack([math.sqrt(0.4) * common + math.sqrt(0.6) * rng.normal(size=n) for _ in range(2)], axis=1) + away
    true = 0.08 + 0.84 / (1 + np.exp(-0.9 * latent))
    outcome = true @ SLOPES + 0.3 * rng.normal(size=n)
    measured = np.stack([SCALES[ORDER[j][k]](true[:, j]) if distorted else true[:, j] for j in (0, 1)], axis=1)
    age = (0.5 + 0.1 * (0.5 * common + math.sqrt(0.75) * rng.normal(size=n) + away)).clip(0, 1)
    return {"true": true, "measured": measured.clip(0, 1), "outcome": outcome, "age": age}


def slopes(covariates: list[Floats], outcomes: list[Floats], *, intercepts: bool = True) -> Floats:
    """Common slopes over the sites: each site centred by itself, or all together."""
    if intercepts:
        x = np.concatenate([c - c.mean(axis=0) for c in covariates])
        y = np.concatenate([o - o.mean() for o in outcomes])
    else:
        x, y = np.concatenate(covariates), np.concatenate(outcomes)
        x, y = x - x.mean(axis=0), y - y.mean()
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0])


def z_scores(measured: list[Floats], epsilon: float, rng: np.random.Generator) -> list[Floats]:
    """Onto the first site's mean and spread: four noisy sums per site share ε."""
    moments = []
    for x in measured:
        scale = 4 / (len(x) * epsilon)
        mean = x.mean(axis=0) + rng.laplace(scale=scale, size=2)
        square = (x**2).mean(axis=0) + rng.laplace(scale=scale, size=2)
        moments.append((mean, np.sqrt(np.maximum(square - mean**2, 1e-3))))
    to = moments[0]
    return [(x - mean) / sd * to[1] + to[0] for x, (mean, sd) in zip(measured, moments, strict=True)]


def five_sites(runs: int, n: int, epsilon: float, shift: float, distorted: bool, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found: dict[str, list[Floats]] = {}
    warned = alone = 0
    for _ in range(runs):
        all_of = [site(k, n, shift, distorted, rng) for k in range(SITES)]
        outcomes, measured = [one["outcome"] for one in all_of], [one["measured"] for one in all_of]
        scale = 6 / epsilon
        known = {
            f"site {k}": {
                "first": released(one["measured"][:, 0], scale, rng),
                "second": released(one["measured"][:, 1], scale, rng),
                "age": released(one["age"], scale, rng),
            }
            for k, one in enumerate(all_of)
        }
        mapped = []
        for k, x in enumerate(measured):
            to = [Map(known[f"site {k}"][name], known["site 0"][name]) for name in ("first", "second")]
            mapped.append(np.stack([to[j](x[:, j]) for j in (0, 1)], axis=1))
        answers = {
            "oracle": slopes([one["true"] for one in all_of], outcomes),
            "raw": slopes(measured, outcomes, intercepts=False),
            "site intercepts": slopes(measured, outcomes),
            "z-scores": slopes(z_scores(measured, epsilon, rng), outcomes),
            "harmonised": slopes(mapped, outcomes),
        }
        for name, value in answers.items():
            found.setdefault(name, []).append(value - SLOPES)
        for name in ("first", "second"):
            judged = {s: {name: has[name], "age": has["age"]} for s, has in known.items()}
            warned += bool(case_mix_warning(judged, name, "site 0"))
            alone += bool(case_mix_warning({s: {name: has[name]} for s, has in known.items()}, name, "site 0"))
    rmse = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in found.items()}
    out = {"n": n, "epsilon": epsilon, "shift": shift, "distorted": distorted, "runs": runs, "rmse": rmse}
    out |= {"to_oracle": rmse["harmonised"] / rmse["oracle"], "to_z_scores": rmse["harmonised"] / rmse["z-scores"]}
    return out | {"warned": warned / (2 * runs), "warned_without_age": alone / (2 * runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    given = parser.parse_args()
    runs, seed = given.runs, given.seed
    results: dict[str, dict[str, Any]] = {"one map": {}, "laboratories": {}, "control": {}}
    for row in one_map(runs, (1000, 10_000, 100_000), 1.0, seed):
        results["one map"][f"{row['source']}, n={row['n']}"] = row
    for n, shift in ((20_000, 0.0), (2000, 0.0), (20_000, 0.4)):
        results["laboratories"][f"n={n}, shift={shift}"] = five_sites(2 * runs, n, 1.0, shift, True, seed)
    for n in (2000, 5000):
        for shift in (0.0, 0.4, 0.8, 1.5):
            results["control"][f"n={n}, shift={shift}"] = five_sites(3 * runs, n, 1.0, shift, False, seed)
    for name, rows in results.items():
        for place, row in rows.items():
            print(name, place, row, flush=True)
    if not given.dry:
        print(record.write("transport", results, seed=seed))


if __name__ == "__main__":
    main()
