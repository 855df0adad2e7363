"""How often the pooled 95 % interval of released tables holds the truth, and the naive one beside it.

Two designs, each through the product's own fit, release, estimate, variance and pooling: simulation 3.1.2 of the
paper (ten studies, linear model, fresh noise at every w), and twelve cohorts of Table 3 at two fifths of their size
(Cox, adjusted). A repetition fits one flow per site and releases through it at each w. Naive is what somebody does who
takes the rows for patients. Run by `make soak`, not by `make test`.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.interval_coverage [repetitions] [folder]
"""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from coordinator.pooling.intervals import COX_ATTENUATION, Draw, with_release_variance
from coordinator.pooling.pool import pool
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.encoding import Encoder
from shared.simulated import CVD_HAZARD_RATIO
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables, dictionary
from tests.benchmarks.paper.studies import linear_studies

SEED, REPETITIONS = 4040, record.sized(400, 2)
WEIGHTS = (0.0, 0.5, 0.8)
SCALE = 0.4
# Small and brief: on these data nearly every fit keeps its Gaussian start anyway, and the margins are not affected.
SETTINGS = FlowSettings(flows=2, hidden=16, epochs=record.sized(10, 1), patience=3)
LINEAR = parse_estimand("ols(y) ~ x1 + x2 + x3 + x4")
COX = parse_estimand("cox(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15")
NAMES = ["x1", "x2", "x3", "x4", "y"]
LOW, HIGH = 92.0, 98.0


def linear_sites(b):
    """(table, table at each w) of ten studies."""
    rng = seeded_rng(1000 * SEED + b)
    for x in linear_studies(np.random.default_rng(1000 * SEED + b)):
        flow = fit_flow(x, SETTINGS, rng).flow
        out = {w: LatentNoise(flow=flow, w=w, radius=default_radius(5)).release(x, rng) for w in WEIGHTS}
        yield pd.DataFrame(x, columns=NAMES), {w: pd.DataFrame(table, columns=NAMES) for w, table in out.items()}


def cox_sites(b):
    """(table, table at each w) of twelve cohorts."""
    rng = seeded_rng(2000 * SEED + b)
    encoder = Encoder(dictionary=dictionary())
    for table in cvd_tables(np.random.default_rng(2000 * SEED + b), SCALE).values():
        x = encoder.encode(encoder.dictionary.check(table), rng)
        flow = fit_flow(x, SETTINGS, rng, integer_columns=encoder.integer_columns).flow
        radius = default_radius(encoder.d)
        yield table, {w: encoder.decode(LatentNoise(flow=flow, w=w, radius=radius).release(x, rng)) for w in WEIGHTS}


DESIGNS = {
    "linear": (linear_sites, LINEAR, "x2", 1.0, 1e-4, 0.0),
    "cox": (cox_sites, COX, "sbp/10", math.log(CVD_HAZARD_RATIO), 0.03**2, COX_ATTENUATION),
}
"""Sites, question, term, its true mean over sites, its true variance between them, the known bias of its flows."""


def one(sites, question, term):
    """Of one federation: (sites, 1 + weights, 4): yi, sampling, privacy and naive variance; NaN where left out."""
    out = []
    for table, released in sites:
        rows = []
        for w, made in {1.0: table, **released}.items():
            found = estimate(made, question)
            if w < 1:
                draws = [Draw(rows=len(made), w=w, fitted_on=len(made))]
                found = with_release_variance(found, made, question, draws)
            (row,) = [row for row in found if row.term == term]
            rows.append([row.yi, row.vi_sampling, row.vi_privacy, row.naive])
        out.append(rows)
    return np.array(out, dtype=float)


def covered(y, v, truth, method, test, lost=None):
    """Coverage of the pooled interval; with `lost` (known bias of each site), in what share it carries the note."""
    held = there = warned = 0
    widths = []
    for i, (some, spread) in enumerate(zip(y, v, strict=True)):
        known = np.isfinite(some)
        result = pool(list(some[known]), list(spread[known]), method=method, test=test)
        if lost is not None:
            warned += np.array(result.weights) / 100 @ lost[i][known] > 0.5 * result.se
        held += result.ci_lb <= truth <= result.ci_ub
        there += 1
        widths.append(result.ci_ub - result.ci_lb)
    low, high = stats.binomtest(held, there).proportion_ci(method="exact")
    return {
        "percent": 100 * held / there,
        "from": 100 * float(low),
        "to": 100 * float(high),
        "width": float(np.mean(widths)),
        "warned": 100 * int(warned) / there,
    }


def summary(raw, truth, between, attenuation):
    """raw (repetitions, sites, 1 + weights, 4)."""
    cells = {}
    for k, w in enumerate((1.0, *WEIGHTS)):
        y, sampling, privacy, naive = (raw[:, :, k, j] for j in range(4))
        v = sampling + privacy
        fits = np.isfinite(y)
        error = np.where(fits, y - truth, np.nan)
        measured = np.nanmean(error**2 / naive) - np.nanmean(between / naive)
        name = "patients themselves" if w == 1 else f"w={w:g}"
        weights = np.where(fits, 1 / (np.where(fits, v, 1.0) + between), 0.0)
        pooled = (weights * np.where(fits, y, 0.0)).sum(axis=1) / weights.sum(axis=1)
        cells[name] = {
            "ours": covered(y, v, truth, "REML", "adhoc", attenuation * privacy / naive * np.abs(y)),
            "ours_z": covered(y, v, truth, "REML", "z"),
            "naive": covered(y, naive, truth, "REML", "adhoc"),
            "naive_z": covered(y, naive, truth, "REML", "z"),
            "naive_DL_z": covered(y, naive, truth, "DL", "z"),
            "naive_FE_z": covered(y, naive, truth, "FE", "z"),
            "site_ours": 100 * float(np.nanmean(np.abs(error[fits]) <= 1.96 * np.sqrt(v + between)[fits])),
            "site_naive": 100 * float(np.nanmean(np.abs(error[fits]) <= 1.96 * np.sqrt(naive + between)[fits])),
            "measured_over_naive_variance": float(measured),
            "ours_over_naive_variance": float(np.nanmean(v / naive)),
            "privacy_over_naive_variance": float(np.nanmean(privacy / naive)),
            "pooled_bias": float(np.mean(pooled - truth)),
            "pooled_bias_se": float(np.std(pooled, ddof=1) / math.sqrt(len(pooled))),
            "pooled_sd": float(np.std(pooled, ddof=1)),
            "left_out": int((~fits).sum()),
        }
    return cells


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    raw: dict[str, list] = {name: [] for name in DESIGNS}
    if folder is not None and (folder / "raw.npz").exists():
        with np.load(folder / "raw.npz") as kept:
            raw = {name: list(kept[name]) for name in DESIGNS}
    for b in range(min(len(rows) for rows in raw.values()), repetitions):
        for name, (sites, question, term, *_) in DESIGNS.items():
            del raw[name][b:]
            raw[name].append(one(sites(b), question, term))
        if folder is not None:
            np.savez(folder / "raw.npz", **{name: np.array(rows) for name, rows in raw.items()})
        if b % 50 == 49:
            show(raw)
    results = {"asked": [LOW, HIGH], "repetitions": len(raw["cox"]), **show(raw)}
    print(record.write("interval_coverage", results, SEED, "python -m tests.benchmarks.interval_coverage"))


def show(raw):
    results = {}
    for name, (*_, truth, between, attenuation) in DESIGNS.items():
        results[name] = summary(np.array(raw[name]), truth, between, attenuation)
        for cell, row in results[name].items():
            print(name, len(raw[name]), cell, shown(row), flush=True)
    return results


def shown(row):
    def interval(key):
        return f"{row[key]['percent']:.1f} ({row[key]['from']:.1f} to {row[key]['to']:.1f})"

    return (
        f"ours {interval('ours')} naive {interval('naive')} ours z {interval('ours_z')} naive z {interval('naive_z')} "
        f"sites {row['site_ours']:.1f} naive {row['site_naive']:.1f} "
        f"variance/naive measured {row['measured_over_naive_variance']:.2f} ours {row['ours_over_naive_variance']:.2f} "
        f"warned {row['ours']['warned']:.0f} % bias {row['pooled_bias']:.4f} ± {row['pooled_bias_se']:.4f}"
    )


if __name__ == "__main__":
    main()
