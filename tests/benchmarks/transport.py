"""Transport maps between laboratories, and between patients who differ: ``python -m tests.benchmarks.transport``.

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

from coordinator.answers.densities import Noisy, case_mix_warning
from coordinator.answers.maps import Map
from tests.benchmarks import record

Floats = NDArray[np.float64]
EDGES = np.linspace(0.0, 1.0, 65)
SLOPES = np.array([1.0, -0.5])
SITES = 5


def released(values: Floats, scale: float, rng: np.random.Generator, edges: Floats = EDGES) -> Noisy:
    """A density as a site releases it; rounded noise from a fast generator, of the law that the product draws."""
    counts = np.histogram(values, edges)[0] + np.round(rng.laplace(scale=scale, size=len(edges) - 1))
    return Noisy(counts=counts, edges=edges, persons=len(values), scale=scale)


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
    parser.add_argument("--runs", type=int, default=record.sized(20, 1))
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    given = parser.parse_args()
    runs, seed = given.runs, given.seed
    results: dict[str, dict[str, Any]] = {"laboratories": {}, "control": {}}
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
