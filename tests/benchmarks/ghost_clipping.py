"""Time of a ghost-clipped step, alone and with its noise, beside plain ones and vmap's gradients: doubles, one thread.

python -m tests.benchmarks.ghost_clipping
"""

import time

import numpy as np
import torch

from shared.base.randomness import seeded_rng
from shared.plans.plan import PrivateTraining, Training
from site_agent.models import private_flow
from site_agent.models.reference_flow import NflowsFlow
from tests.benchmarks import record

SEED, D, BATCH, CLIP, REPEATS = 4, 10, 256, 1.0, record.sized(60, 1)
TRAINING = Training(flows=3, hidden=64, layers=3)


def by_vmap(reference, y):
    """The clipped sum from per-record gradients: what Opacus and torch.func offer."""
    values = {name: p.detach() for name, p in reference.modules.named_parameters()}

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.modules_ = reference.modules

        def forward(self, row):
            return reference.loss(row[None])[0]

    loss = Loss()

    def one(given, row):
        return torch.func.functional_call(loss, {f"modules_.{name}": given[name] for name in values}, (row,))

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(values, y)
    norms = sum((g.flatten(1) ** 2).sum(1) for g in each.values()).sqrt()
    factor = (CLIP / norms).clamp(max=1.0)
    return torch.cat([torch.einsum("i,i...->...", factor, g).flatten() for g in each.values()])


def main():
    torch.set_num_threads(1)
    y = np.random.default_rng(SEED).standard_normal((BATCH, D))
    rows = torch.from_numpy(y)
    flow = private_flow.start(D, TRAINING, SEED)
    reference = NflowsFlow(flow.layers(), double=True)
    private = PrivateTraining(rate=0.1, noise_multiplier=1.0, steps=1)
    noise, zeros = private_flow.Ahead(seeded_rng(SEED), REPEATS), np.zeros(int(flow.used.sum()))

    def by_nflows():
        for p in reference.modules.parameters():
            p.grad = None
        reference.loss(rows).mean().backward()

    calls = {
        "plain": lambda: flow.differentiate(y[None]),
        "plain by nflows": by_nflows,
        "ghost": lambda: private_flow.clipped_sum(flow, y, CLIP),
        "vmap": lambda: by_vmap(reference, rows),
        "noise": lambda: private_flow.noisy(zeros, private, noise),
    }
    lengths = [np.linalg.norm(calls["ghost"]()[0]), float(calls["vmap"]().norm())]
    times = {name: [] for name in calls}
    for _ in range(REPEATS):  # in turn, so that a busy moment of the machine falls on all of them
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    median = {name: float(np.median(spent)) for name, spent in times.items()}
    median["noise"] = float(np.mean(times["noise"]))  # drawn for several steps at once
    both = median["ghost"] + median["noise"]
    results = {
        "d": D,
        "hidden": 64,
        "layers": 3,
        "flows": 3,
        "batch": BATCH,
        "repeats": REPEATS,
        "weights": zeros.size,
        "unit": "CPU seconds, doubles",
        "seconds": median,
        "ghost_to_plain": median["ghost"] / median["plain"],
        "ghost_to_nflows": median["ghost"] / median["plain by nflows"],
        "ghost_and_noise_to_plain": both / median["plain"],
        "ghost_and_noise_to_nflows": both / median["plain by nflows"],
        "vmap_to_nflows": median["vmap"] / median["plain by nflows"],
        "gap_of_norms": abs(lengths[0] - lengths[1]) / lengths[1],
    }
    print({name: f"{1e3 * s:.2f} ms" for name, s in median.items()})
    print({name: round(value, 2) for name, value in results.items() if "_to_" in name})
    print(record.write("ghost_clipping", results, SEED))


if __name__ == "__main__":
    main()
