"""What each improvement of the fit bought: latent noise injection with one of them taken away at a time.

Three worlds: simulation 3.1.1 at n = 10,000, simulation 3.1.2, and the twelve cohorts of section 4. The same tables and
the same noise in every variant.

python -m tests.benchmarks.lni_ablation [--correlations 30] [--studies 40] [--cohorts 4] [--folder build/lni_ablation]
"""

import math
import time
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np

from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.encoding import Encoder
from site_agent.models import flow as fits
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables, dictionary
from tests.benchmarks.lni_311 import rho
from tests.benchmarks.lni_312 import slope
from tests.benchmarks.lni_cohorts import log_hr
from tests.benchmarks.lni_repeat import Common, asked, dersimonian_laird, part, repeated
from tests.benchmarks.paper.studies import gaussian_table, linear_studies

SEED = 77
WEIGHTS = (0.0, 0.8)
FREE = 30.0
RECORDS = record.sized(10_000, 500)
EPOCHS = {"epochs": record.sized(FlowSettings().epochs, 1)}
ALONE = EPOCHS | {"margins": "none"}


def z_scores(y):
    """In place of the Gaussian of maximum likelihood: means and standard deviations alone."""
    return AffineAutoregressiveFlow(mean=y.mean(axis=0), scale=np.diag(y.std(axis=0)))


# Name: what of the settings changes, and whether the start is Gaussian.
VARIANTS = {
    "as shipped": ({}, True),
    "no gate": ({"gate": 0.0}, True),
    "z-score start": ({}, False),
    "z-score start, no gate": ({"gate": 0.0}, False),
    "no refit": ({"refit": False}, True),
    "z-score start, no gate, no refit": ({"gate": 0.0, "refit": False}, False),
}
# Theorem 2's: costly where steps are many and small.
SPECTRAL = {"z-score start, spectral norm at most 1": ({"spectral": True}, False)}
# Of columns that are not Gaussian, which the simulations do not have.
MORE = {
    "levels not modelled": ({"modelled_levels": 0}, True),
    "no normal scores": ({"margins": "none"}, True),
    "no normal scores, z-score start, no gate": ({"margins": "none", "gate": 0.0}, False),
}


def fitted(x, settings, gaussian, seed, **more):
    """A fit, and what it cost. The start is replaced where a variant asks for it: no setting of the product does so."""
    began = time.process_time()
    with nullcontext() if gaussian else patch.object(fits, "whitening", z_scores):
        made = fit_flow(x, settings, seeded_rng(seed), **more)
    return made, time.process_time() - began


def correlations(b):
    draws = np.random.default_rng([SEED, 1, b])
    x, z = gaussian_table(draws, RECORDS), draws.standard_normal((RECORDS, 5))
    out = {}
    for name, (changed, gaussian) in (VARIANTS | SPECTRAL).items():
        made, spent = fitted(x, FlowSettings(**ALONE | {"flows": 5, "hidden": 50} | changed), gaussian, b)
        out[name] = {"cpu": spent, "left": float(made.epochs > 0)}
        for w in WEIGHTS:
            out[name][f"w={w:g}"] = rho(LatentNoise(flow=made.flow, w=w, radius=FREE).release(x, Common(z)))
    return out


def studies(b):
    draws = np.random.default_rng([SEED, 2, b])
    tables = linear_studies(draws)
    noise = [draws.standard_normal(table.shape) for table in tables]
    real = dersimonian_laird([slope(table) for table in tables])[0]
    out = {}
    for name, (changed, gaussian) in VARIANTS.items():
        settings = FlowSettings(**ALONE | {"flows": 2, "hidden": 32, "validation": 0.3} | changed)
        made = [fitted(table, settings, gaussian, 100 * b + k) for k, table in enumerate(tables)]
        out[name] = {"cpu": sum(s for _, s in made), "left": float(np.mean([m.epochs > 0 for m, _ in made]))}
        for w in WEIGHTS:
            rows = [
                LatentNoise(flow=m.flow, w=w, radius=FREE).release(table, Common(z))
                for (m, _), table, z in zip(made, tables, noise, strict=True)
            ]
            out[name][f"w={w:g}"] = dersimonian_laird([slope(r) for r in rows])[0] - real
    return out


def cohorts(b):
    encoder = Encoder(dictionary=dictionary())
    draws = np.random.default_rng([SEED, 3, b])
    tables = cvd_tables(draws)
    xs = [encoder.encode(encoder.dictionary.check(table), seeded_rng(b)) for table in tables.values()]
    noise = [draws.standard_normal(x.shape) for x in xs]
    real = [log_hr(table, True) for table in tables.values()]
    events = np.array([table["cvd"].mean() for table in tables.values()])
    out = {}
    for name, (changed, gaussian) in (VARIANTS | SPECTRAL | MORE).items():
        more = {"integer_columns": encoder.integer_columns}
        made = [fitted(x, FlowSettings(**EPOCHS | changed), gaussian, 100 * b + k, **more) for k, x in enumerate(xs)]
        row = {"cpu": sum(s for _, s in made), "left": float(np.mean([m.epochs > 0 for m, _ in made]))}
        for w in WEIGHTS:
            rows = [
                encoder.decode(LatentNoise(flow=m.flow, w=w, radius=default_radius(encoder.d)).release(x, Common(z)))
                for (m, _), x, z in zip(made, xs, noise, strict=True)
            ]
            found = [log_hr(table, True) for table in rows]
            row[f"w={w:g}"] = math.exp(dersimonian_laird(found)[0]) - math.exp(dersimonian_laird(real)[0])
            row[f"site w={w:g}"] = float(np.mean([abs(a[0] - c[0]) for a, c in zip(found, real, strict=True)]))
            row[f"events w={w:g}"] = float(np.abs([t["cvd"].mean() for t in rows] - events).max())
        out[name] = row
    return out


def summed_up(found):
    """Per variant: mean absolute distance and its standard error, and the like."""
    results = {"repetitions": len(found)}
    for name in found[0]:
        if name == "cpu_seconds":
            continue
        rows = [row[name] for row in found]
        results[name] = {
            "cpu_seconds": float(np.mean([row["cpu"] for row in rows])),
            "left_the_start": float(np.mean([row["left"] for row in rows])),
        }
        for w in WEIGHTS:
            gaps = np.array([row[f"w={w:g}"] for row in rows])
            results[name][f"w={w:g}"] = {
                "mad": float(np.abs(gaps).mean()),
                "se": float(np.abs(gaps).std() / math.sqrt(len(gaps))),
                "bias": float(gaps.mean()),
            }
            if f"site w={w:g}" in rows[0]:
                results[name][f"w={w:g}"]["site_gap"] = float(np.mean([row[f"site w={w:g}"] for row in rows]))
                results[name][f"w={w:g}"]["largest_event_gap"] = max(row[f"events w={w:g}"] for row in rows)
        print(name, results[name], flush=True)
    return results


def main() -> None:
    given = asked(__doc__, figures=False, correlations=30, studies=40, cohorts=4)
    settings = {"seed": SEED, "variants": VARIANTS | SPECTRAL | MORE, "weights": WEIGHTS}
    results = {
        world.__name__: summed_up(
            repeated(part(given.folder, world.__name__), getattr(given, world.__name__), settings, world)
        )
        for world in (correlations, studies, cohorts)
    }
    print(record.write("lni_ablation", results, seed=SEED))


if __name__ == "__main__":
    main()
