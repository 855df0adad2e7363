"""The fast path beside nflows and zuko: training steps, inverses, twelve cohorts, memory, spectral normalisation.

One process, one thread, CPU seconds; what is compared is run in turn, so that a busy moment of the machine falls on
all. Same data, same network (tanh, MADE masks), same number of Adam steps on the same mini-batches (256; 1,024).

OMP_NUM_THREADS=1 python -m tests.benchmarks.flow_speed [wide]

With ``wide`` the mini-batches of 1,024 alone are measured; all else stays as it stands in the file.
"""

import json
import os
import resource
import subprocess
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

from shared.base.randomness import seeded_rng
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Composed
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.models.reference_flow import NflowsFlow
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables

SEED, BATCH = 7, 256
STEPS, REPEATS = record.sized((20, 9), (1, 1))
SIZES = record.sized(((2500, 5), (8000, 10), (20_000, 20)), ((300, 5),))
WIDER = 1024
NETWORKS = {"5 flows of 64": (5, 64), "4 flows of 48": (4, 48)}
MANY, WIDE = record.sized((50_000, 20), (300, 5))
EPOCHS = record.sized(FlowSettings().epochs, 2)
PERSONS, TRAINED = record.sized((12_000, 4000), (600, 300))


def records(n: int, d: int) -> np.ndarray:
    """Correlated, skewed columns, standardised."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((n, d)) @ (np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d)).T
    x[:, 0] = np.sinh(0.5 * x[:, 0])
    x[:, -1] += 0.3 * x[:, 0] ** 2
    return (x - x.mean(axis=0)) / x.std(axis=0)


def in_turn(calls: dict, repeats: int) -> dict:
    """Smallest, median and largest CPU seconds of each call, one after another, `repeats` times."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return {
        name: {"min": min(spent), "median": float(np.median(spent)), "max": max(spent)} for name, spent in times.items()
    }


def over(times: dict, ours: str = "ours") -> dict:
    """Medians beside ours."""
    return {name: spent["median"] / times[ours]["median"] for name, spent in times.items() if name != ours}


def nflows_flow(d: int, flows: int, hidden: int):
    """nflows as its own examples use it: one hidden layer, reversed between layers."""
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    steps = []
    for _ in range(flows):
        layer = MaskedAffineAutoregressiveTransform(
            d, hidden, num_blocks=0, use_residual_blocks=False, activation=torch.tanh
        )
        steps += [ReversePermutation(d), layer]
    return Flow(CompositeTransform(steps), StandardNormal([d]))


def zuko_flow(d: int, flows: int, hidden: int):
    import zuko

    return zuko.flows.MAF(d, transforms=flows, hidden_features=[hidden], activation=torch.nn.Tanh)


def training(n: int, d: int, flows: int, hidden: int, batch: int = BATCH) -> dict:
    """CPU seconds of STEPS steps, mini-batches drawn included."""
    x = records(n, d).astype(np.float32)
    data = torch.from_numpy(x)
    order = np.random.default_rng(SEED)

    def by_torch(model, loss):
        optimiser = torch.optim.Adam(model.parameters(), 1e-3)

        def steps():
            for _ in range(STEPS):
                rows = torch.from_numpy(order.integers(0, n, batch))
                optimiser.zero_grad(set_to_none=True)
                loss(model, data[rows]).backward()
                optimiser.step()

        return steps

    flow = FusedFlow([first_layers(d, flows=flows, hidden=hidden, layers=1, generator=np.random.default_rng(SEED))])
    adam = Adam(flow.theta)

    def ours():
        for _ in range(STEPS):
            adam.step(flow.differentiate(x[order.integers(0, n, batch)][None]), 1e-3)

    calls = {
        "ours": ours,
        "nflows": by_torch(nflows_flow(d, flows, hidden), lambda model, y: -model.log_prob(y).mean()),
        "zuko": by_torch(zuko_flow(d, flows, hidden), lambda model, y: -model().log_prob(y).mean()),
    }
    times = in_turn(calls, REPEATS)
    return {"seconds": times, "over_ours": over(times)}


def moved(d: int, flows: int, hidden: int):
    """Layers away from the identity."""
    rng = np.random.default_rng(SEED)
    flow = FusedFlow([first_layers(d, flows=flows, hidden=hidden, layers=1, generator=rng)], dtype=np.float64)
    flow.theta[0, flow.used] += 0.03 * rng.standard_normal(int(flow.used.sum()))
    return flow.layers()


def inverse(n: int, d: int, flows: int, hidden: int) -> dict:
    """From latents to records. nflows in single precision, its default, and in doubles, which is what ours uses."""
    z = np.random.default_rng(SEED).standard_normal((n, d))
    flow = AffineAutoregressiveFlow(mean=np.zeros(d), scale=np.eye(d), layers=moved(d, flows, hidden))
    single, double, zuko = (
        nflows_flow(d, flows, hidden),
        nflows_flow(d, flows, hidden).double(),
        zuko_flow(d, flows, hidden),
    )
    z32, z64 = torch.tensor(z, dtype=torch.float32), torch.tensor(z)

    def quietly(call):
        def run():
            with torch.no_grad():
                call()

        return run

    calls = {
        "ours": lambda: flow.forward(z),
        "nflows": quietly(lambda: single._transform.inverse(z32)),
        "nflows in doubles": quietly(lambda: double._transform.inverse(z64)),
        "zuko": quietly(lambda: zuko().transform.inv(z32)),
    }
    times = in_turn(calls, 5)
    return {"seconds": times, "over_ours": over(times)}


class ByNflows:
    """A fitted flow whose masked layers nflows runs, in both directions."""

    def __init__(self, fitted: Composed) -> None:
        self.first, self.second, self.d = fitted.first, fitted.second, fitted.d
        self.layers = NflowsFlow(self.first.layers) if self.first.layers else None

    def inverse(self, x):
        y = np.linalg.solve(self.first.scale, (self.second.inverse(x) - self.first.mean).T).T
        return y if self.layers is None else self._run(y, back=False)

    def forward(self, z):
        y = z if self.layers is None else self._run(z, back=True)
        return self.second.forward(y @ self.first.scale.T + self.first.mean)

    def _run(self, rows, back):
        y = torch.tensor(rows, dtype=torch.float32)
        parts = list(zip(self.layers._index, self.layers._back, self.layers.modules, strict=True))
        with torch.no_grad():
            for index, undo, module in reversed(parts) if back else parts:
                y = (module.inverse if back else module)(y[:, index])[0][:, undo]
        return y.double().numpy()


def cohorts() -> dict:
    """Twelve cohorts, each encoded, fitted (search and refit), released at w = 0.8 and decoded.

    `same steps`: all of it left to the flow, 60 epochs, by either engine. `demo`: the demo's settings, which begin at
    margins and levels and mostly need no network, beside nflows alone as above.
    """
    from shared.plans.encoding import Encoder
    from tests.benchmarks.cohorts_gap import dictionary

    encoder = Encoder(dictionary=dictionary())
    tables = cvd_tables(np.random.default_rng(SEED))
    alone = {"margins": "none", "modelled_levels": 0, "patience": 1000, "epochs": EPOCHS}
    ways = {
        "fast": FlowSettings(**alone),
        "nflows": FlowSettings(**alone, engine="nflows"),
        "demo": FlowSettings(),
    }
    out: dict = {name: {"whole": 0.0, "fit": 0.0, "release": 0.0, "passes": 0} for name in ways}
    for place, table in enumerate(tables.values()):
        for name, settings in ways.items():
            rng, spent = seeded_rng(SEED + place), out[name]
            began = time.process_time()
            x = encoder.encode(encoder.dictionary.check(table), rng)
            start = time.process_time()
            fitted = fit_flow(x, settings, rng, integer_columns=encoder.integer_columns)
            middle = time.process_time()
            flow = ByNflows(fitted.flow) if name == "nflows" else fitted.flow
            released = LatentNoise(flow=flow, w=0.8, radius=default_radius(encoder.d)).release(x, rng)
            end = time.process_time()
            encoder.decode(released)
            spent["whole"] += time.process_time() - began
            spent["fit"] += middle - start
            spent["release"] += end - middle
            spent["passes"] += fitted.report.epochs_run
    over_ours = {name: out["nflows"]["whole"] / out[name]["whole"] for name in ("fast", "demo")}
    return {"seconds": out, "records": sum(map(len, tables.values())), "nflows_over": over_ours}


def stack() -> dict:
    """Steps of twelve flows in a stack, beside one after another: 64 records, the paper's 2 flows of 32."""
    d, count, batch = 6, 12, 64
    start = first_layers(d, flows=2, hidden=32, layers=1, generator=np.random.default_rng(SEED))
    y = records(batch * count, d).astype(np.float32).reshape(count, batch, d)
    together = FusedFlow([start] * count)
    apart = [FusedFlow([start]) for _ in range(count)]
    adam, adams = Adam(together.theta), [Adam(flow.theta) for flow in apart]

    def one_by_one():
        for _ in range(STEPS):
            for flow, own, rows in zip(apart, adams, y, strict=True):
                own.step(flow.differentiate(rows[None]), 1e-3)

    def stacked():
        for _ in range(STEPS):
            adam.step(together.differentiate(y), 1e-3)

    times = in_turn({"stack": stacked, "one by one": one_by_one}, REPEATS)
    return {"seconds": times, "one_by_one_over_stack": over(times, "stack")["one by one"]}


def expansion(flow, x: np.ndarray) -> float:
    """Largest singular value of the Jacobian of f⁻¹ at the records: 1 is what Lemma 2 would have."""
    step = 1e-5
    sides = [
        np.stack([flow.inverse(x + sign * step * row) for row in np.eye(x.shape[1])], axis=2) for sign in (1.0, -1.0)
    ]
    return float(np.linalg.norm((sides[0] - sides[1]) / (2 * step), 2, axis=(1, 2)).max())


def spectral() -> dict:
    """What spectral normalisation costs and changes: fresh records' negative log-likelihood, expansion of f⁻¹."""
    rng = np.random.default_rng(SEED)
    everything = rng.standard_normal((PERSONS, 5)) @ (np.eye(5) + 0.5 * rng.standard_normal((5, 5)) / np.sqrt(5)).T
    everything[:, 0] = np.sinh(0.5 * everything[:, 0])
    everything[:, -1] += 0.6 * everything[:, 0] ** 2
    train, fresh = everything[:TRAINED], everything[TRAINED:]
    out = {}
    for name, settings in (
        ("free", FlowSettings(margins="none", epochs=EPOCHS)),
        ("held", FlowSettings(margins="none", spectral=True, epochs=EPOCHS)),
        ("gaussian", FlowSettings(flows=0, margins="none")),
    ):
        began = time.process_time()
        fitted = fit_flow(train, settings, seeded_rng(SEED))
        out[name] = {
            "cpu_seconds": time.process_time() - began,
            "epochs": fitted.epochs,
            "nll_of_fresh_records": float(-fitted.flow.log_prob(fresh).mean()),
            "expansion": expansion(fitted.flow, fresh[:2000]),
        }
    return out


def large() -> None:
    """In a process of its own: fit and release MANY records of WIDE columns, print peak memory and CPU seconds."""
    x = records(MANY, WIDE)
    began = time.process_time()
    fitted = fit_flow(x, FlowSettings(epochs=3, gate=0.0), seeded_rng(SEED))
    LatentNoise(flow=fitted.flow, w=0.8, radius=default_radius(WIDE)).release(x, seeded_rng(SEED))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, "cpu_seconds": time.process_time() - began, "epochs": fitted.epochs}))


def memory() -> dict:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.flow_speed", "large"], check=True, capture_output=True, text=True
    )
    return {"n": MANY, "d": WIDE, **json.loads(ran.stdout)}


def wide() -> dict:
    """Training steps of the first network on larger mini-batches."""
    network, shape = next(iter(NETWORKS.items()))
    found = {f"{network}, d={d}": training(n, d, *shape, batch=WIDER) for n, d in SIZES}
    for key, one in found.items():
        print(f"{key}, {WIDER} records a step", one["over_ours"], flush=True)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if sys.argv[1:] == ["wide"]:
        held = json.loads((record.RESULTS / "flow_speed.json").read_text())["results"]
        record.write("flow_speed", held | {"training at 1024": wide()}, SEED, "python -m tests.benchmarks.flow_speed")
        return
    results: dict = {"batch": BATCH, "steps": STEPS, "repeats": REPEATS, "unit": "CPU seconds", "memory": memory()}
    print("memory", results["memory"], flush=True)
    for network, shape in NETWORKS.items():
        for n, d in SIZES:
            key = f"{network}, d={d}"
            results.setdefault("training", {})[key] = training(n, d, *shape)
            results.setdefault("inverse", {})[key] = inverse(min(n, 5000), d, *shape)
            ratios = {kind: results[kind][key]["over_ours"] for kind in ("training", "inverse")}
            print(key, {kind: {k: round(v, 1) for k, v in r.items()} for kind, r in ratios.items()}, flush=True)
    results["training at 1024"] = wide()
    results["stack"] = stack()
    print("stack", results["stack"]["one_by_one_over_stack"], flush=True)
    results["spectral"] = spectral()
    print("spectral", results["spectral"], flush=True)
    results["cohorts"] = cohorts()
    print("cohorts", results["cohorts"]["nflows_over"], flush=True)
    print(record.write("flow_speed", results, SEED))


if __name__ == "__main__":
    large() if sys.argv[1:] == ["large"] else main()
