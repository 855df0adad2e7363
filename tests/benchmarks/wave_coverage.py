"""How often the pooled 95 % interval of two waves put together holds the truth, where persons are in both waves.

Two sites of 200 patients in a first wave and 400 in a second, who are the first 200 again and 200 more. Covariates
stay; of the outcome's residual a share `alike` of the variance stays, too: all of it (the same record released twice),
half, or nothing. Both waves are drawn through the first wave's flow at every w, as waves that refresh are, and
`--combine` puts them together. `together` is the product's interval, which takes persons' errors to be the same in both
waves; `apart` takes the waves for samples of different persons. Fixed effects with z, the sharp test.

python -m tests.benchmarks.wave_coverage [repetitions]
"""

import sys

import numpy as np
import pandas as pd

from coordinator.pooling.intervals import Draw, with_release_variance
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from site_agent.models.flow import fit_flow
from tests.benchmarks import record
from tests.benchmarks.model_coverage import START, covered

SEED, REPETITIONS, SITES, FIRST, SECOND = 5151, record.sized(400, 2), 2, 200, 400
WEIGHTS, ALIKE = (0.95, 0.8, 0.0), (1.0, 0.5, 0.0)
TERMS = {"x": 0.3, "arm": -0.4}
"""With their true coefficients."""
QUESTION = parse_estimand("ols(y) ~ x + arm")
DICTIONARY = Dictionary(
    name="waves",
    version=1,
    columns=(
        Column(name="x", kind="continuous", lower=-5, upper=5),
        Column(name="arm", kind="binary", levels=(0, 1)),
        Column(name="y", kind="continuous", lower=-8, upper=8),
    ),
)


def waves(alike: float, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A hospital's patients as of both waves."""
    x, arm = rng.standard_normal(SECOND).clip(-3, 3), rng.integers(0, 2, SECOND)
    stays, changes = rng.standard_normal(SECOND), rng.standard_normal((2, SECOND))
    residuals = np.sqrt(alike) * stays + np.sqrt(1 - alike) * changes
    y = TERMS["x"] * x + TERMS["arm"] * arm + residuals
    first, second = (pd.DataFrame({"x": x, "arm": arm, "y": one.clip(-8, 8)}) for one in y)
    return first[:FIRST], second


def one(b: int, alike: float) -> np.ndarray:
    """(w, together or apart, sites, terms, 2): estimates and variances."""
    seed = 1000 * (10 * SEED + int(10 * alike)) + b
    rng, generator = seeded_rng(seed), np.random.default_rng(seed)
    out = np.empty((len(WEIGHTS), 2, SITES, len(TERMS), 2))
    for s in range(SITES):
        tables = waves(alike, generator)
        encoder = Encoder(dictionary=DICTIONARY)
        encoded = [encoder.encode(DICTIONARY.check(table), rng) for table in tables]
        flow = fit_flow(encoded[0], START, rng, integer_columns=encoder.integer_columns).flow
        for k, w in enumerate(WEIGHTS):
            noise = LatentNoise(flow=flow, w=w, radius=default_radius(encoder.d))
            drawn = [encoder.decode(noise.release(wave, rng)) for wave in encoded]
            rows = pd.concat(drawn, ignore_index=True)
            draws = [Draw(rows=len(wave), w=w, flow="first", fitted_on=FIRST) for wave in drawn]
            for j, copies in enumerate((True, False)):
                found = with_release_variance(estimate(rows, QUESTION), rows, QUESTION, draws, copies=copies)
                by_term = {row.term.removesuffix("[1]"): row for row in found}
                out[k, j, s] = [(by_term[term].yi, by_term[term].vi) for term in TERMS]
    return out


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    cells: dict[str, dict[str, object]] = {}
    for alike in ALIKE:
        raw = np.array([one(b, alike) for b in range(repetitions)])
        for k, w in enumerate(WEIGHTS):
            for t, (term, truth) in enumerate(TERMS.items()):
                y, v = raw[:, k, ..., t, 0], raw[:, k, ..., t, 1]
                cell: dict[str, object] = {
                    name: covered(y[:, j], v[:, j], truth, "FE", "z") for j, name in enumerate(("together", "apart"))
                }
                cell["variance"] = {
                    "measured": float(y[:, 0].var(ddof=1) / v[:, 0].mean()),
                    "bias": float(y[:, 0].mean() - truth),
                }
                cells.setdefault(f"alike={alike:g}: {term}", {})[f"w={w:g}"] = cell
                print(alike, term, w, cell, flush=True)
    results = {"repetitions": repetitions, "sites": SITES, "first": FIRST, "second": SECOND, "cells": cells}
    print(record.write("wave_coverage", results, SEED))


if __name__ == "__main__":
    main()
