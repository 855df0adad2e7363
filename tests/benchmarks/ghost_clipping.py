"""Time of a ghost-clipped step, alone and with its noise, beside a plain one and beside vmap's gradients, one thread.

python -m tests.benchmarks.ghost_clipping
"""

import time

import numpy as np
import torch

from shared.plan import PrivateTraining, Training
from shared.randomness import seeded_rng
from site_agent.models import private_flow
from site_agent.models.flow import FlowSettings, Trainer
from tests.benchmarks import record

SEED, D, BATCH, CLIP, REPEATS = 4, 10, 256, 1.0, 60
TRAINING = Training(flows=3, hidden=64, layers=3)


def by_vmap(trainer, y):
    """The clipped sum from per-record gradients: what Opacus and torch.func offer."""
    names, modules = [name for name, _ in trainer.modules.named_parameters()], trainer.modules
    values = {name: p.detach() for name, p in modules.named_parameters()}

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.modules_ = modules

        def forward(self, row):
            return trainer.nll(row[None])[0]

    loss = Loss()

    def one(given, row):
        return torch.func.functional_call(loss, {f"modules_.{name}": given[name] for name in names}, (row,))

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(values, y)
    norms = sum((g.flatten(1) ** 2).sum(1) for g in each.values()).sqrt()
    factor = (CLIP / norms).clamp(max=1.0)
    return [torch.einsum("i,i...->...", factor, each[name]) for name in names]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    y = torch.randn(BATCH, D)
    trainer = Trainer(D, FlowSettings.of(TRAINING), SEED)
    results = {"d": D, "hidden": 64, "layers": 3, "flows": 3, "batch": BATCH, "repeats": REPEATS, "unit": "CPU seconds"}
    results["parameters"] = sum(p.numel() for p in trainer.modules.parameters())
    for dtype in (torch.float32, torch.float64):
        trainer.modules.to(dtype)
        rows = y.to(dtype)

        def plain(rows=rows):
            for p in trainer.modules.parameters():
                p.grad = None
            trainer.nll(rows).mean().backward()

        calls = {
            "plain": plain,
            "ghost": lambda rows=rows: private_flow.clipped_sum(trainer, rows, CLIP),
            "vmap": lambda rows=rows: by_vmap(trainer, rows),
        }
        gap = [(a - b).abs().max() for a, b in zip(calls["ghost"]()[0], calls["vmap"](), strict=True)]
        times = {name: [] for name in calls}
        for _ in range(REPEATS):  # in turn, so that a busy moment of the machine falls on all of them
            for name, call in calls.items():
                start = time.process_time()
                call()
                times[name].append(time.process_time() - start)
        median = {name: float(np.median(spent)) for name, spent in times.items()}
        results[str(dtype).removeprefix("torch.")] = {
            "seconds": median,
            "ghost_to_plain": median["ghost"] / median["plain"],
            "vmap_to_plain": median["vmap"] / median["plain"],
            "largest_gradient_gap": float(max(gap)),
        }
        print(dtype, {name: f"{1e3 * s:.2f} ms" for name, s in median.items()}, median["ghost"] / median["plain"])

    shape = private_flow._Shape(trainer)
    private = PrivateTraining(rate=0.1, noise_multiplier=1.0, steps=1)
    rng, zeros = seeded_rng(SEED), np.zeros(sum(int(used.sum()) for used in shape.used))
    spent = []
    for _ in range(REPEATS):
        start = time.process_time()
        private_flow.noisy(zeros, private, rng)
        spent.append(time.process_time() - start)
    results["noise"] = {"entries": zeros.size, "seconds": float(np.median(spent))}
    for dtype in ("float32", "float64"):
        seconds = results[dtype]["seconds"]
        results[dtype]["ghost_and_noise_to_plain"] = (seconds["ghost"] + results["noise"]["seconds"]) / seconds["plain"]
    print("noise", results["noise"])
    print(record.write("ghost_clipping", results, SEED))


if __name__ == "__main__":
    main()
