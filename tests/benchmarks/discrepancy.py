"""How far released estimates are from the records' own, predicted without the records, beside how far they were.

Twelve cohorts, adjusted log hazard ratio per 10 mmHg at every site, w = 0.8, in four settings: the paper's
preprocessing (an affine flow on everything), normal-score margins, the product's own fit, and the event carried over.
Two predictions: by releasing the release again through its own flow (`reperturbed`), and by linearisation, without a
flow (`gap`). Predicted and actual are root mean squares over sites and draws: as they are, where the two cohorts with
a hundred events have nearly all the weight, and in standard errors of each site's own estimate, where all weigh alike.

python -m tests.benchmarks.discrepancy [seeds] [setting]

With a setting, that one alone (discrepancy_one.json).
"""

import math
import sys

import numpy as np

from coordinator.pooling.gaps import gap, reperturbed
from coordinator.pooling.intervals import Draw, with_release_variance
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.encoding import Encoder
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables, dictionary

W = 0.8
QUESTION = parse_estimand("cox(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15")
SETTINGS = {
    "paper preprocessing": (FlowSettings(margins="none"), False),
    "normal scores": (FlowSettings(modelled_levels=0), False),
    "product": (FlowSettings(), False),
    "event carried over": (FlowSettings(), True),
}


def log_hr(table):
    """The first term's estimate."""
    return estimate(table, QUESTION, study="s", site="a", wave=1)


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(6, 1)
    only = " ".join(sys.argv[2:])
    settings_of = {name: how for name, how in SETTINGS.items() if only in ("", name)}
    encoder = Encoder(dictionary=dictionary())
    kinds = ("actual", "released again", "linearised", "inside", "se")
    found = {name: {kind: [] for kind in kinds} for name in settings_of}
    for seed in range(1, seeds + 1):
        cohorts = cvd_tables(np.random.default_rng(seed))
        for name, (settings, carry) in settings_of.items():
            rng = seeded_rng(100 * seed)
            carried = encoder.columns.index("cvd") if carry else None
            for table in cohorts.values():
                x = encoder.encode(encoder.dictionary.check(table), rng)
                flow = fit_flow(x, settings, rng, integer_columns=encoder.integer_columns, carried=carried).flow
                mechanism = LatentNoise(
                    flow=flow,
                    w=W,
                    radius=default_radius(encoder.d - carry),
                    carried=() if carried is None else (carried,),
                )
                rows = encoder.decode(mechanism.release(x, rng))
                real, released = log_hr(table)[0], log_hr(rows)[0]
                draw = Draw(rows=len(rows), w=W, fitted_on=len(rows))
                told = with_release_variance([released], rows, QUESTION, [draw])[0]
                again = reperturbed(mechanism, encoder, rows, QUESTION, number=seed)[told.term]
                distance = abs(told.yi - real.yi)
                found[name]["actual"].append(distance)
                found[name]["se"].append(math.sqrt(released.vi_sampling))
                found[name]["released again"].append(again.rms)
                found[name]["linearised"].append(gap(told).rms)
                low, high = again.interval
                found[name]["inside"].append(float(low <= distance <= high))
        print(seed, flush=True)
    results = {}
    for name, of in found.items():
        results[name] = {}
        for scale, unit in (("", 1.0), ("_in_se", np.array(of["se"]))):
            rms = {what: float(np.sqrt(np.mean(np.square(np.array(of[what]) / unit)))) for what in kinds[:3]}
            told = {what: rms[what] / rms["actual"] for what in kinds[1:3]}
            results[name] |= {f"rms{scale}": rms, f"predicted_over_actual{scale}": told}
        results[name] |= {
            "share_within_the_90_percent_interval": float(np.mean(of["inside"])),
        }
        print(name, results[name], flush=True)
    name = "discrepancy_one" if only else "discrepancy"
    print(record.write(name, {"seeds": seeds, "w": W, "sites": 12, **results}, seed=1))


if __name__ == "__main__":
    main()
