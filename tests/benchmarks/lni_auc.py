"""Simulation 3.1.1's membership attack against fresh records, and how often a released row gives its person away.

python -m tests.benchmarks.lni_auc [repetitions]
"""

import sys

import numpy as np

from shared.base.randomness import seeded_rng
from shared.mechanisms.latent_noise.noise import LatentNoise
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.release.audit.attacks import AttackedRows, run_audit
from tests.benchmarks import record
from tests.benchmarks.paper.studies import gaussian_table

SEED, N, D, RHO = 311, record.sized(2500, 300), 5, 0.9
WEIGHTS = (0.0, 0.5, 0.75, 0.8, 0.9, 0.975)
# The paper's five flows of 50 units; not clipped, as there.
SETTINGS = FlowSettings(flows=5, hidden=50, margins="none")
RADIUS = 30.0


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(10, 1)
    figures = {w: {} for w in WEIGHTS}
    for b in range(repetitions):
        rng = seeded_rng(1000 * SEED + b)
        draws = np.random.default_rng(1000 * SEED + b)
        x, fresh = gaussian_table(draws, N, D, RHO), gaussian_table(draws, N, D, RHO)
        flow = fit_flow(x, SETTINGS, rng).flow
        for w in WEIGHTS:
            released = LatentNoise(flow=flow, w=w, radius=RADIUS).release(x, rng)
            report = run_audit(
                AttackedRows(
                    x=x, released=released, latents=flow.inverse(x), fitted_on=x, held_back=fresh, probe=released
                )
            )
            for name, value in (
                ("auc_standardised", report.membership_plain.value),
                ("auc_whitened", report.membership.value),
                ("own_row_linkage", report.own_row.value),
                ("own_row_linkage_of_extremes", report.extreme.value),
                ("twin_probability", report.twin_probability),
                ("median_rank", report.median_rank),
            ):
                figures[w].setdefault(name, []).append(value)
    results = {
        f"w={w}": {name: {"mean": float(np.mean(v)), "sd": float(np.std(v))} for name, v in of.items()}
        for w, of in figures.items()
    }
    for w, of in results.items():
        print(w, {name: round(v["mean"], 4) for name, v in of.items()}, flush=True)
    print(record.write("lni_auc", {"repetitions": repetitions, "n": N, "d": D, "rho": RHO, **results}, seed=SEED))


if __name__ == "__main__":
    main()
