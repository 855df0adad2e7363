"""The layout of the source paper's Table 1, of all methods here, on the census-like table of `tables_quality`.

python -m tests.benchmarks.slicing_table1 --folder runs/slicing [--seeds 2]

The paper's data (ACS) cannot be had offline, and its DP-SGD and PATE were other networks: what can be compared with its
table is the order of methods, not a figure. Slicing is priced by the paper's neighbours (rows at distance 1), with the
same at replace-one for the default fit; every other method by replace-one, which asks for more noise.

slicing, moments               the default fit to a slicing release
slicing, f-divergence          the paper's Algorithm 1, at the setting that `slicing_quality` chose
slicing, sliced Wasserstein    the paper's comparator on a slicing release
tables and latent classes      all one- and two-way tables
DP-SGD                         this project's private flow: masked autoregressive layers, posture ``private``
mean embedding                 random Fourier features of coded rows, their mean with Gaussian noise once, and the same
                               network as above fitted to it (after Harder, Adamczewski & Park 2021, who take a product
                               kernel by class: here the outcome is an entry of the row as any other)
fresh                          as many other persons
"""

import argparse
import datetime as dt
import math
import time
from functools import partial
from pathlib import Path

import numpy as np

from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Composed
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.slicing.noise import ROW_STEP
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.one_step import Released, fitted, synthetic
from shared.plans.encoding import Encoder
from shared.plans.plan import Budget, PrivateTraining, StudyPlan, Training, Wave
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from site_agent.models.private_flow import private_layers
from site_agent.release.fitting import public_flow
from tests.benchmarks import record
from tests.benchmarks.paper.network import GeneratorNetwork, Trained, VectorAdam
from tests.benchmarks.slicing_quality import CODE, EPSILONS, METRICS, MOMENTS, STEPS, Cells, cell, chosen, tables
from tests.benchmarks.tables_quality import DELTA, DICTIONARY, N, census_like, quality, summary

WASSERSTEIN = {"slices": MOMENTS["slices"], "fit": "sliced_wasserstein", "steps": STEPS, "batch": 256, "rate": 3e-3}
FEATURES, BATCH = 500, 256
SGD = {"rate": 0.02, "steps": record.sized(300, 3)}
TRAINING = Training(flows=4, hidden=32, layers=1, learning_rate=1e-2)


def scored(seed, rows, seconds):
    """The metrics of rows, beside their CPU seconds."""
    real, others = tables(seed)
    return {**quality(real, rows, others), "cpu_seconds": seconds}


def by_tables(seed, epsilon):
    """Rows from all one- and two-way tables."""
    columns = attributes(DICTIONARY)
    count = len(CountTables(attributes=columns, sigma=1.0).tables)
    sigma = calibration.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(count)).sigma
    mechanism = CountTables(attributes=columns, sigma=sigma)
    released = Released(
        tables=mechanism, counts=tuple(mechanism.release(DICTIONARY.check(tables(seed)[0]), seeded_rng(seed))), n=N
    )
    start = time.process_time()
    [rows] = synthetic(fitted(released), DICTIONARY, draws=1, rng=np.random.default_rng(seed))
    return scored(seed, rows, time.process_time() - start)


def by_dp_sgd(seed, epsilon):
    """Rows from a flow trained with noise on its gradients."""
    noise = calibration.calibrate(privacy.SubsampledGaussian, epsilon, DELTA, **SGD).noise_multiplier
    plan = StudyPlan(
        study="census",
        version=1,
        title="Census-like",
        purpose="To measure.",
        coordinator="hub",
        expires=dt.date(2030, 1, 1),
        release=LatentNoisePlan(w=0.0),
        posture="private",
        private=PrivateTraining(noise_multiplier=noise, clip=1.0, **SGD),
        training=TRAINING,
        budget=Budget(epsilon=1000.0, delta=DELTA),
        waves=(Wave(number=1, opens=dt.date(2026, 1, 1), closes=dt.date(2026, 2, 1)),),
        dictionary=DICTIONARY,
    )
    encoder, rng = Encoder(dictionary=DICTIONARY), seeded_rng(seed)
    x = encoder.encode(DICTIONARY.check(tables(seed)[0]), rng)
    start = time.process_time()
    begin = public_flow(plan, encoder)
    layers = private_layers(begin.inverse(x), TRAINING, plan.private, rng)
    d = encoder.d
    flow = Composed(
        first=AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d), layers=layers), second=begin.second
    )
    rows = encoder.decode(flow.forward(np.random.default_rng(seed).standard_normal((N, d))))
    return scored(seed, rows, time.process_time() - start)


def by_mean_embedding(seed, epsilon):
    """Rows from a network whose features have the released mean."""
    rng = np.random.default_rng(seed)
    x = (CODE.encode(DICTIONARY.check(tables(seed)[0])) * ROW_STEP).astype(np.float32)
    start = time.process_time()
    # Frequencies of a Gaussian kernel as wide as half the diameter: public.
    through = (rng.standard_normal((CODE.d, FEATURES)) / (CODE.distance / 2)).astype(np.float32)

    def features(rows):
        angle = rows @ through
        return np.hstack([np.cos(angle), np.sin(angle)]) / np.float32(math.sqrt(FEATURES))

    # Every feature vector has norm 1: replacing a row moves the sum by at most 2.
    sigma = calibration.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=2.0).sigma
    wanted = (features(x).sum(axis=0) + sigma * rng.standard_normal(2 * FEATURES)) / N
    network = GeneratorNetwork(CODE)
    theta, adam = network.start(rng), VectorAdam(network.size)
    for step in range(STEPS):
        tape = network.forward(theta, BATCH, rng)
        rows = tape.rows * np.float32(CODE.unit)
        seen = features(rows)
        # Two halves, so that the product of their gaps has no bias from the luck of one.
        gaps = [seen[half].mean(axis=0) - wanted for half in (slice(None, BATCH // 2), slice(BATCH // 2, None))]
        push = np.vstack([np.tile(gap, (BATCH // 2, 1)) for gap in reversed(gaps)]) / (BATCH // 2)
        cos, sin = seen[:, :FEATURES], seen[:, FEATURES:]
        by_rows = (cos * push[:, FEATURES:] - sin * push[:, :FEATURES]) @ through.T * CODE.unit
        gradient = network.backward(theta, tape, by_rows.astype(np.float32))
        theta = adam.step(
            theta, gradient, 1e-3 * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / STEPS))), step + 1
        )
    rows = Trained(network=network, theta=theta).rows(N, np.random.default_rng(seed))[1]
    return scored(seed, rows, time.process_time() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", type=int, default=record.sized(2, 1))
    asked = parser.parse_args()
    cells = Cells(asked.folder)
    label, settings, _ = chosen(cells)
    results = {"n": N, "delta": DELTA, "seeds": asked.seeds, "f_divergence": label}
    for epsilon in EPSILONS:
        sliced = {
            "slicing, moments": ("distance 1", "moments", MOMENTS),
            "slicing, moments, replace-one": ("replace-one", "moments", MOMENTS),
            "slicing, f-divergence": ("distance 1", label, settings),
            "slicing, sliced Wasserstein": ("distance 1", "sliced Wasserstein", WASSERSTEIN),
        }
        others = {
            "tables and latent classes": by_tables,
            "DP-SGD": by_dp_sgd,
            "mean embedding": by_mean_embedding,
        }
        found = {}
        for name, make in others.items():
            found[name] = [
                cells(f"{epsilon:g} {name} {seed}", partial(make, seed, epsilon)) for seed in range(asked.seeds)
            ]
        for name, (world, kept, how) in sliced.items():
            found[name] = [cell(cells, seed, epsilon, world, kept, how) for seed in range(asked.seeds)]
        found["fresh"] = [
            cells(f"fresh {seed}", lambda seed=seed: scored(seed, census_like(N, 3 * seed + 1), 0.0))
            for seed in range(asked.seeds)
        ]
        results[f"epsilon={epsilon:g}"] = {
            name: summary([{k: one[k] for k in (*METRICS, "cpu_seconds")} for one in each])
            for name, each in found.items()
        }
    for epsilon in EPSILONS:
        print(f"\nepsilon = {epsilon:g}, {asked.seeds} seeds")
        print(f"{'':32}" + "".join(f"{name:>13}" for name in (*METRICS, "cpu_seconds")))
        for name, row in results[f"epsilon={epsilon:g}"].items():
            print(f"{name:32}" + "".join(f"{row[k]['mean']:13.3f}" for k in (*METRICS, "cpu_seconds")))
    print(record.write("slicing_table1", results, seed=0))


if __name__ == "__main__":
    main()
