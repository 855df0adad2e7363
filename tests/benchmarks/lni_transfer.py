"""A shared flow at small sites: pooled and per-site adjusted hazard ratios, released against real, with and without it.

And the mean log-likelihood of up to 1,000 other persons of the cohort under each flow.

The twelve simulated cohorts, of each 300, 700 or 1,400 persons (all of a cohort that has fewer). Two worlds: the
cohorts as they are, whose columns depend on one another as Gaussian scores do, so that there is little for anybody to
transfer; and the same with blood pressure and cholesterol that bend upwards at both ends of age. In each world the
shared flow was trained with noise by the twelve full-size cohorts, on other persons, behind each one's public start.

python -m tests.benchmarks.lni_transfer [--draws 10] [--folder build/lni_transfer]
"""

import math
from functools import cache

import numpy as np

from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Composed
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.encoding import Encoder
from shared.plans.plan import PrivateTraining, Reference, Training
from shared.plans.public_start import public_start
from shared.privacy import accountant as privacy
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.models.private_flow import private_layers
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables, dictionary
from tests.benchmarks.lni_cohorts import log_hr
from tests.benchmarks.lni_repeat import Common, asked, dersimonian_laird, repeated

SEED = 61
SIZES = record.sized((300, 700, 1400), (300,))
WEIGHTS = (0.0, 0.8)
DELTA = 1e-6
# World: how far two columns bend with age, in standard deviations; and the noise of the shared flow's training.
SETTINGS = {
    "as simulated": {"bend": 0.0, "noise": 1.0},
    "bent": {"bend": 0.8, "noise": 1.0},
}
TRAINING = {"rate": 0.02, "steps": record.sized(200, 2), "clip": 1.0}
STEP = 0.02
NETWORK = {"flows": 2, "hidden": 32}
ENCODER = Encoder(dictionary=dictionary())


def cohorts(draws, bend):
    """The twelve tables of a world."""
    tables = cvd_tables(draws)
    for table in tables.values() if bend else ():
        age = (table["age"] - table["age"].mean()) / table["age"].std()
        for name, (lower, upper) in {"sbp": (60, 280), "chol": (60, 600)}.items():
            moved = table[name] + bend * table[name].std() * (age**2 - 1) / math.sqrt(2)
            table[name] = moved.round().clip(lower, upper)
    return tables


def encoded(table, seed):
    return ENCODER.encode(ENCODER.dictionary.check(table), seeded_rng(seed))


@cache
def shared_flows(bend, noise):
    """Site to the shared flow as the site uses it."""
    tables = cohorts(np.random.default_rng([SEED, 99]), bend)
    known = {
        name: {
            column: Reference(mean=round(float(table[column].mean()), 2), sd=round(float(table[column].std()), 2))
            for column in ("time", "age", "chol", "hdl", "sbp", "cvd")
        }
        for name, table in tables.items()
    }
    starts = {name: public_start(ENCODER, reference) for name, reference in known.items()}
    y = np.concatenate([starts[name].inverse(encoded(table, 1)) for name, table in tables.items()])
    private = PrivateTraining(noise_multiplier=noise, **TRAINING)
    layers = private_layers(y, Training(learning_rate=STEP, **NETWORK), private, seeded_rng(2))
    smooth = AffineAutoregressiveFlow(mean=np.zeros(ENCODER.d), scale=np.eye(ENCODER.d), layers=layers)
    return {name: Composed(first=smooth, second=start.second) for name, start in starts.items()}


def one(b):
    """One draw of both worlds' cohorts, subsampled to each size."""
    out = {}
    for setting, given in SETTINGS.items():
        draws = np.random.default_rng([SEED, b])
        tables = cohorts(draws, given["bend"])
        flows = shared_flows(given["bend"], given["noise"])
        for n in SIZES:
            sites, real = [], []
            released = {(way, w): [] for way in ("alone", "transfer") for w in WEIGHTS}
            for k, (name, whole) in enumerate(tables.items()):
                order = draws.permutation(len(whole))
                table, others = (whole.iloc[part].reset_index(drop=True) for part in (order[:n], order[n : n + 1000]))
                fresh = encoded(others, b) if len(others) >= 50 else None
                x, z = encoded(table, b), draws.standard_normal((len(table), ENCODER.d))
                real.append(log_hr(table, True))
                site = {"site": name, "n": len(table), "events": int(table["cvd"].sum())}
                made = {}
                for way in ("transfer", "alone"):
                    if way == "alone" and not made["transfer"].report.transferred:
                        made[way] = made["transfer"]  # the very same flow: test_transfer.py
                    else:
                        made[way] = fit_flow(
                            x,
                            FlowSettings(transfer=way == "transfer", **NETWORK),
                            seeded_rng(1000 * b + k),
                            integer_columns=ENCODER.integer_columns,
                            shared=flows[name],
                        )
                    site[way] = {"epochs": made[way].epochs, "transferred": made[way].report.transferred}
                    if fresh is not None:
                        site[way]["held_out"] = float(made[way].flow.log_prob(fresh).mean())
                    for w in WEIGHTS:
                        noisy = LatentNoise(flow=made[way].flow, w=w, radius=default_radius(ENCODER.d))
                        found = log_hr(ENCODER.decode(noisy.release(x, Common(z))), True)
                        released[way, w].append(found)
                        site[way][f"w={w:g}"] = abs(found[0] - real[-1][0])
                sites.append(site)
            centre = math.exp(dersimonian_laird(real)[0])
            pooled = {
                way: {f"w={w:g}": abs(math.exp(dersimonian_laird(released[way, w])[0]) - centre) for w in WEIGHTS}
                for way in ("alone", "transfer")
            }
            out[f"{setting}, n={n}"] = {"sites": sites, "pooled": pooled}
    return out


def compared(alone, begun):
    """A mean without and with, and the paired difference with its standard error. Of a distance, below 0 is better."""
    difference = np.subtract(begun, alone)
    return {
        "alone": float(np.mean(alone)),
        "transfer": float(np.mean(begun)),
        "difference": float(difference.mean()),
        "difference_se": float(difference.std(ddof=1) / math.sqrt(len(difference))) if len(difference) > 1 else 0.0,
    }


def summed_up(found):
    results = {"draws": len(found), "cpu_seconds": sum(run["cpu_seconds"] for run in found)}
    for name, given in SETTINGS.items():
        event = privacy.SubsampledGaussian(
            rate=TRAINING["rate"], noise_multiplier=given["noise"], steps=TRAINING["steps"]
        )
        results[name] = {"epsilon_of_the_training": privacy.epsilon(event, DELTA), "delta": DELTA}
        for n in SIZES:
            runs = [run[f"{name}, n={n}"] for run in found]
            sites = [site for run in runs for site in run["sites"]]
            results[name][f"n={n}"] = {
                "sites": len(sites),
                "held_out_log_likelihood": compared(
                    *([s[way]["held_out"] for s in sites if "held_out" in s[way]] for way in ("alone", "transfer"))
                ),
                "transferred": sum(site["transfer"]["transferred"] for site in sites),
                **{
                    f"w={w:g}": {
                        "site_log_hr": compared(
                            *([s[way][f"w={w:g}"] for s in sites] for way in ("alone", "transfer"))
                        ),
                        "pooled_hr": compared(
                            *([run["pooled"][way][f"w={w:g}"] for run in runs] for way in ("alone", "transfer"))
                        ),
                    }
                    for w in WEIGHTS
                },
            }
            print(name, n, results[name][f"n={n}"], flush=True)
    return results


def main() -> None:
    given = asked(__doc__, figures=False, draws=10)
    settings = {
        "seed": SEED,
        "settings": SETTINGS,
        "training": TRAINING,
        "network": NETWORK,
        "sizes": SIZES,
        "weights": WEIGHTS,
    }
    found = repeated(given.folder, given.draws, settings, one)
    print(record.write("lni_transfer", summed_up(found), seed=SEED))


if __name__ == "__main__":
    main()
