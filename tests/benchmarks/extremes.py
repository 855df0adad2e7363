"""Unusual records: how many are linked to their own row, what pulling them in costs in moments, and what it saves in ε.

Simulation 3.1.1 (five columns, correlation 0.9, 2,500 rows) at w = 0.8, through the product's own fit: not clipped, as
in the paper; clipped at the default radius; pulled in beyond the 0.9 quantile, with lengths put back and without; and
with noise that depends on records (`release.vary`), of which no ε holds.

python -m tests.benchmarks.extremes [repetitions]
"""

import sys

import numpy as np
from scipy import stats

from shared.base.randomness import seeded_rng
from shared.mechanisms.latent_noise.noise import INSIDE_SHRUNK, LatentNoise, default_radius, kept_weight
from shared.privacy.accountant import epsilon, guaranteed
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.release.audit.attacks import AttackedRows, run_audit
from site_agent.release.audit.likelihood import weighed
from tests.benchmarks import record
from tests.benchmarks.paper.studies import gaussian_table

SEED, N, D, RHO, W, DELTA = 2711, record.sized(2500, 300), 5, 0.9, 0.8, 1e-5
SETTINGS = FlowSettings(flows=5, hidden=50, margins="none")


class Short(LatentNoise):
    """Lengths are left as shrinking and noise make them: what `restored` is worth."""

    def restored(self, y):
        return y

    unrestored = restored


def kinds(flow) -> dict[str, LatentNoise]:
    near = default_radius(D, inside=INSIDE_SHRUNK)
    return {
        "not clipped": LatentNoise(flow=flow, w=W, radius=30.0),
        "clipped": LatentNoise(flow=flow, w=W, radius=default_radius(D)),
        "clipped at the smaller radius": LatentNoise(flow=flow, w=W, radius=near),
        "shrink 2": LatentNoise(flow=flow, w=W, radius=near, shrink=2.0),
        "shrink 2, lengths not put back": Short(flow=flow, w=W, radius=near, shrink=2.0),
        "shrink 3": LatentNoise(flow=flow, w=W, radius=near, shrink=3.0),
        "vary weight": LatentNoise(flow=flow, w=W, radius=near, vary="weight"),
        "vary rotation": LatentNoise(flow=flow, w=W, radius=default_radius(D), vary="rotation"),
        "vary rotation, w = 0.4": LatentNoise(flow=flow, w=0.4, radius=default_radius(D), vary="rotation"),
        "vary matched": LatentNoise(flow=flow, w=W, radius=default_radius(D), vary="matched"),
    }


def moments(x: np.ndarray) -> dict[str, float]:
    """Of whitened columns, against the true law: 1 and 3 for normal ones, and the mean correlation."""
    true = np.full((D, D), RHO) + (1 - RHO) * np.eye(D)
    z = np.linalg.solve(np.linalg.cholesky(true), x.T).T
    return {
        "second": float((z**2).mean()),
        "fourth": float((z**4).mean()),
        "correlation": float(np.corrcoef(x.T)[np.tril_indices(D, -1)].mean()),
    }


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(20, 2)
    found: dict[str, dict[str, list[float]]] = {}
    for b in range(repetitions):
        rng, draws = seeded_rng(1000 * SEED + b), np.random.default_rng(1000 * SEED + b)
        x, fresh = gaussian_table(draws, N, D, RHO), gaussian_table(draws, N, D, RHO)
        flow = fit_flow(x, SETTINGS, rng).flow
        real = moments(x)
        for name, mechanism in kinds(flow).items():
            rows = mechanism.release(x, rng)
            report = run_audit(
                AttackedRows(x=x, released=rows, latents=flow.inverse(x), fitted_on=x, held_back=fresh, probe=rows)
            )
            attack = weighed(mechanism, members=x, held_back=fresh, released=rows)
            now = moments(rows)
            for what, value in (
                ("own_row_linkage", report.own_row.value),
                ("own_row_linkage_of_extremes", report.extreme.value),
                ("auc_whitened", report.membership.value),
                ("auc_of_likelihood_ratio", attack.auc.value),
                ("second_moment_bias", now["second"] / real["second"] - 1),
                ("fourth_moment_bias", now["fourth"] / real["fourth"] - 1),
                ("correlation_gap", abs(now["correlation"] - real["correlation"])),
                ("correlation_bias", now["correlation"] - real["correlation"]),
            ):
                found.setdefault(name, {}).setdefault(what, []).append(value)
    results = {}
    for name, mechanism in kinds(flow).items():
        results[name] = {what: float(np.mean(v)) for what, v in found[name].items()}
        results[name]["se_of_extreme_linkage"] = float(stats.sem(found[name]["own_row_linkage_of_extremes"]))
        results[name]["radius"] = mechanism.radius
        results[name]["epsilon"] = float(epsilon(mechanism.event, DELTA)) if guaranteed(mechanism.event) else None
        results[name]["kept_weight"] = kept_weight(mechanism.w, mechanism.radius, mechanism.shrink, D, mechanism.vary)
        print(name, {what: v if v is None else round(v, 4) for what, v in results[name].items()}, flush=True)
    print(
        record.write(
            "extremes",
            {"repetitions": repetitions, "n": N, "d": D, "rho": RHO, "w": W, "delta": DELTA, **results},
            seed=SEED,
        )
    )


if __name__ == "__main__":
    main()
