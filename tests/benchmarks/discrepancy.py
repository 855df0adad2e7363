"""How far released estimates are from the records' own, predicted without the records, beside how far they were.

Twelve cohorts, adjusted log hazard ratio per 10 mmHg at every site, w = 0.8, in four settings: the paper's
preprocessing (an affine flow on everything), normal-score margins, the product's own fit, and the event carried over.
Two predictions: by releasing the release again through its own flow (`reperturbed`), and by linearisation, without a
flow (`gap`). Predicted and actual are root mean squares over sites and draws.

python -m tests.benchmarks.discrepancy [seeds]
"""

import math
import sys

import numpy as np

from coordinator.gaps import gap, reperturbed
from coordinator.intervals import Draw, with_release_variance
from shared.encoding import Encoder
from shared.estimands import estimate, parse_estimand
from shared.mechanisms.latent_noise import LatentNoise, default_radius
from shared.randomness import seeded_rng
from shared.simulated import cvd_cohorts
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import dictionary

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
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    encoder = Encoder(dictionary=dictionary())
    found = {name: {"actual": [], "released again": [], "linearised": [], "inside": []} for name in SETTINGS}
    for seed in range(1, seeds + 1):
        cohorts = cvd_cohorts(np.random.default_rng(seed))
        for name, (settings, carry) in SETTINGS.items():
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
                real, released = log_hr(table)[0], log_hr(rows)
                draw = Draw(rows=len(rows), w=W, fitted_on=len(rows))
                told = with_release_variance(released, rows, QUESTION, [draw])[0]
                again = reperturbed(mechanism, encoder, rows, QUESTION, number=seed)[told.term]
                distance = abs(told.yi - real.yi)
                found[name]["actual"].append(distance)
                found[name]["released again"].append(again.rms)
                found[name]["linearised"].append(gap(told).rms)
                low, high = again.interval
                found[name]["inside"].append(float(low <= distance <= high))
        print(seed, flush=True)
    results = {}
    for name, of in found.items():
        rms = {what: math.sqrt(float(np.mean(np.square(values)))) for what, values in of.items() if what != "inside"}
        results[name] = {
            "rms": rms,
            "predicted_over_actual": {what: rms[what] / rms["actual"] for what in ("released again", "linearised")},
            "share_within_the_90_percent_interval": float(np.mean(of["inside"])),
        }
        print(name, results[name], flush=True)
    print(record.write("discrepancy", {"seeds": seeds, "w": W, "sites": 12, **results}, seed=1))


if __name__ == "__main__":
    main()
