"""Twelve cohorts train one flow together with noise: held-out likelihood, pooled hazard ratio, time; for several ε.

python -m tests.benchmarks.federated [first seed] [seeds]

Every cohort is simulated at twice its size; one half trains, the other is held out. The flow is compared with each
site's own non-private fit, with the same shared layers trained on all records in one place without noise, and with the
public start that all of them begin from. The settings were chosen on another seed (901); the published figures are
those of Table 3 of the paper, from which the cohorts are simulated.
"""

import datetime as dt
import math
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from coordinator.training import federation as hub
from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.base import Identity
from shared.flows.chain import Composed
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.encoding import Encoder
from shared.plans.federated import Federated, Shape, first_weights, unpack
from shared.plans.plan import Budget, Reference, StudyPlan, Training, Wave
from shared.privacy.accountant import SubsampledGaussian, epsilon
from shared.privacy.calibration import calibrate
from shared.wire import flower
from site_agent.models.fast_flow import Adam, FusedFlow
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.models.private_flow import Ahead, noisy_gradient
from site_agent.release.trained_flow import federated_flow
from site_agent.training.federation import client_app, start_of
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import COHORTS, cvd_tables, dictionary, log_hr
from tests.benchmarks.lni_repeat import dersimonian_laird
from tests.stage.training.memory_federation import MemorySource, memory_grid

DELTA, WEIGHTS, SMALL = 1e-6, (0.0, 0.8), 2000
EPSILONS, DRAWS = record.sized(((1.0, 3.0, 10.0), 3), ((3.0,), 1))
TRAINING = Training(flows=4, hidden=16)
SETTINGS = {
    "rounds": record.sized(200, 2),
    "local_steps": 1,
    "rate": 0.25,
    "step_size": 1.0,
    "server_rate": 0.06,
    "floor": 1e-4,
}
SHORT = {"rounds": record.sized(20, 2), "local_steps": 10, "rate": 0.25, "step_size": 1.0, "strategy": "fedavg"}


def published():
    """Table 3 of the paper as public figures of each site."""
    return {
        c.name: {
            "cvd": Reference(mean=float(c.events)),
            **{
                n: Reference(mean=float(m), sd=float(s))
                for n in ("time", "age", "chol", "hdl", "sbp")
                for m, s in [getattr(c, n)]
            },
        }
        for c in COHORTS
    }


def study(price, settings):
    """A plan whose training costs `price` at DELTA."""
    steps = settings["rounds"] * settings["local_steps"]
    noise = calibrate(SubsampledGaussian, price, DELTA, rate=settings["rate"], steps=steps).noise_multiplier
    return StudyPlan(
        study="cvd",
        version=1,
        title="Twelve cohorts",
        purpose="To measure.",
        coordinator="hub",
        expires=dt.date(2030, 1, 1),
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1000.0, delta=DELTA),
        waves=(Wave(number=1, opens=dt.date(2026, 1, 1), closes=dt.date(2026, 2, 1)),),
        dictionary=dictionary(),
        training=TRAINING,
        federated=Federated(
            noise_multiplier=math.ceil(1e4 * noise) / 1e4, quorum=len(COHORTS), reference=published(), **settings
        ),
    )


def together(plan, x, seed):
    """The real thing over a grid in memory: the trained flow, and the CPU seconds of all sites and the coordinator."""
    flower.prepare()
    from flwr.app import Context, RecordDict

    sites = {name: k + 1 for k, name in enumerate(x)}
    apps = {}
    for name, node in sites.items():
        source = MemorySource(plan=plan, site=name, encoded=x[name], rng=seeded_rng(1000 * seed + node))
        app = client_app(source)
        context = Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})
        apps[node] = lambda message, app=app, context=context: app(message, context)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        flow = hub.run(memory_grid(apps), plan, sites, Path(folder))
        return flow, time.process_time() - began


def in_one_place(y, seed, steps=record.sized(2000, 5), batch=1024, rate=5e-3):
    """The same layers on all records in one place, by Adam, without clipping and noise."""
    shape = Shape.of(y.shape[1], TRAINING)
    flow = FusedFlow([unpack(first_weights(shape, seed), shape)], dtype=np.float64)
    adam, draws = Adam(flow.theta), np.random.default_rng(seed)
    for step in range(steps):
        flow.differentiate(y[draws.integers(len(y), size=batch)][None])
        adam.step(flow.gradient, rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))))
    return AffineAutoregressiveFlow(mean=np.zeros(y.shape[1]), scale=np.eye(y.shape[1]), layers=flow.layers())


def pooled_gap(flows, x, tables, encoder, rng):
    """Mean over draws of |HR of released rows - HR of the records|, pooled and adjusted, per w."""
    real = math.exp(dersimonian_laird([log_hr(table) for table in tables.values()])[0])
    out = {}
    for w in WEIGHTS:
        gaps = []
        for _ in range(DRAWS):
            found = []
            for name, flow in flows.items():
                mechanism = LatentNoise(flow=flow, w=w, radius=default_radius(encoder.d))
                found.append(log_hr(encoder.decode(mechanism.release(x[name], rng))))
            gaps.append(math.exp(dersimonian_laird(found)[0]) - real)
        out[f"w={w}"] = {"mean_absolute": float(np.mean(np.abs(gaps))), "mean": float(np.mean(gaps))}
    return {"real": real, **out}


def one(seed):
    """One draw of the twelve cohorts."""
    encoder = Encoder(dictionary=dictionary())
    x, held, tables = {}, {}, {}
    for k, (name, table) in enumerate(cvd_tables(np.random.default_rng(seed), 2.0).items()):
        rows = encoder.encode(encoder.dictionary.check(table), seeded_rng(seed + k))
        half = len(rows) // 2
        x[name], held[name], tables[name] = rows[:half], rows[half:], encoder.decode(rows[:half])
    plans = {price: study(price, SETTINGS) for price in EPSILONS}
    starts = {name: start_of(plans[3.0], encoder, name) for name in x}
    own = {
        name: fit_flow(rows, FlowSettings(), seeded_rng(seed), integer_columns=encoder.integer_columns).flow
        for name, rows in x.items()
    }
    shared = in_one_place(np.concatenate([starts[name].inverse(rows) for name, rows in x.items()]), seed)
    arms = {
        "public start": starts,
        "own, without noise": own,
        "shared, without noise": {n: Composed(first=shared, second=starts[n].second) for n in x},
    }
    cpu = {}
    for price, plan in plans.items():
        trained, cpu[f"epsilon={price:g}"] = together(plan, x, seed)
        assert trained.epsilon <= price
        arms[f"federated, epsilon={price:g}"] = {name: federated_flow(trained, encoder, name) for name in x}
    trained, cpu["20 rounds of 10 steps, epsilon=3"] = together(study(3.0, SHORT), x, seed)
    arms["federated, 20 rounds of 10 steps, epsilon=3"] = {name: federated_flow(trained, encoder, name) for name in x}
    small = [name for name in x if len(x[name]) < SMALL]
    out = {"seed": seed, "small_sites": small, "cpu_seconds": cpu, "held_out": {}, "hr": {}}
    for arm, flows in arms.items():
        each = {name: float(flows[name].log_prob(held[name]).mean()) for name in x}
        out["held_out"][arm] = {
            "sites": each,
            "small": float(np.mean([each[name] for name in small])),
            "all": float(np.mean(list(each.values()))),
            "small_at_least_own": sum(each[name] >= own_each(own, held, name) for name in small),
        }
        print(seed, arm, {k: v for k, v in out["held_out"][arm].items() if k != "sites"}, flush=True)
        if arm != "public start":
            out["hr"][arm] = pooled_gap(flows, x, tables, encoder, seeded_rng(seed + 77))
            print("   ", out["hr"][arm], flush=True)
    return out


def own_each(own, held, name):
    """Held-out likelihood of a site's own flow."""
    return float(own[name].log_prob(held[name]).mean())


def step_times():
    """CPU seconds of a step of DP-SGD with its noise, and of a plain one, of a site of 3,000 records."""
    plan, y = study(3.0, SETTINGS), np.random.default_rng(1).standard_normal((3000, 6))
    federated, shape = plan.federated, Shape.of(6, TRAINING)
    flow = FusedFlow([unpack(first_weights(shape, 1), shape)], dtype=np.float64)
    rng, repeats = seeded_rng(1), record.sized(100, 2)
    noise, batch = Ahead(rng, repeats + 1), y[: round(federated.rate * 3000)][None]
    spent = {"plain": [], "private": []}
    noisy_gradient(flow, y, federated.private, rng, noise)
    for _ in range(repeats):
        for name, call in (
            ("plain", lambda: flow.differentiate(batch)),
            ("private", lambda: noisy_gradient(flow, y, federated.private, rng, noise)),
        ):
            began = time.process_time()
            call()
            spent[name].append(time.process_time() - began)
    plain, private = float(np.mean(spent["plain"])), float(np.mean(spent["private"]))
    return {
        "records": batch.shape[1],
        "weights": shape.weights,
        "plain": plain,
        "private": private,
        "ratio": private / plain,
    }


def main():
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else record.sized(2, 1)
    fixed = {"step": step_times()}
    print(fixed, flush=True)
    runs = []
    for seed in range(first, first + seeds):
        runs.append(one(seed))
        arms = list(runs[0]["held_out"])
        results = {
            **fixed,
            "delta": DELTA,
            "rows_epsilon_at_w=0.8": epsilon(
                LatentNoise(flow=Identity(d=6), w=0.8, radius=default_radius(6)).event, DELTA
            ),
            "settings": {**SETTINGS, "flows": TRAINING.flows, "hidden": TRAINING.hidden},
            "noise_multiplier": {f"epsilon={p:g}": study(p, SETTINGS).federated.noise_multiplier for p in EPSILONS},
            "held_out": {
                arm: {
                    k: float(np.mean([run["held_out"][arm][k] for run in runs]))
                    for k in ("small", "all", "small_at_least_own")
                }
                for arm in arms
            },
            "hr_gap": {
                arm: {
                    f"w={w}": float(np.mean([run["hr"][arm][f"w={w}"]["mean_absolute"] for run in runs]))
                    for w in WEIGHTS
                }
                for arm in arms
                if arm != "public start"
            },
            "cpu_seconds": {k: float(np.mean([run["cpu_seconds"][k] for run in runs])) for k in runs[0]["cpu_seconds"]},
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "runs": runs,
        }
        for price in EPSILONS:
            gaps = results["hr_gap"]
            results.setdefault("gap_to_shared", {})[f"epsilon={price:g}"] = {
                f"w={w}": gaps[f"federated, epsilon={price:g}"][f"w={w}"] / gaps["shared, without noise"][f"w={w}"]
                for w in WEIGHTS
            }
        print(record.write("federated", results, first), flush=True)


if __name__ == "__main__":
    main()
