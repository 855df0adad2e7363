r"""DP-SGD for the masked autoregressive flow: every step is a noisy sum of clipped gradients over a Poisson sample.

What a step releases is

.. math:: \tilde g = \frac{1}{q n} \Big( \sum_{i \in B} g_i \min(1, C / \|g_i\|) + N(0, \sigma^2 C^2 I) \Big)

with `B` a Poisson sample at rate `q`, and the divisor the *expected* batch, so that the batch's own size is not
released. Everything after it (Adam, the step sizes, the number of steps) is fixed in advance and reads no record.

**Ghost clipping.** The gradient of one record is never formed. A masked linear layer with input `a` and output gradient
`b` (one row per record) has the squared gradient norm

.. math:: \|\nabla_W\|^2 = b^2 \cdot (M a^2), \qquad \|\nabla_{bias}\|^2 = |b|^2

with squares taken entry by entry, and the clipped sum is one product of the same two matrices, rows of `b` scaled down.
That is exact, because every weight is used once in a pass and no row meets another.

**Exact noise.** Gradients are doubles, but what a guarantee rests on is not. The sum is rounded to a grid of at most
`C / (2²¹ √p)`, for `p` weights, and the noise is `Noise.lattice_gaussian_steps`: an exactly rounded Gaussian. Rounding
moves a sum by at most `g √p / 2`, and clipping at `C (1 − 2⁻²⁰)` leaves room for that and for the rounding of the
sums before it, so that exchanging one record moves the rounded sum by at most `2C`.

A record whose gradient overflows contributes nothing. A refusal in its place would be a message about that record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import TrainingRefusal
from shared.flows import MaskedLayer
from shared.plan import PrivateTraining, Training
from shared.randomness import Noise, grid_for
from site_agent.models.flow import Adam, FlowSettings, Trainer, torch_session

__all__ = ["clipped_sum", "private_layers", "seconds_per_step"]

Array = NDArray[np.float64]

ROOM = 2.0**-20
"""Share of the clipping norm that is kept for rounding."""
LARGEST_BATCH = 40_000
"""Records in a step on average. By the usual bound on the error of a sum, twice as many could use up that room."""


def private_layers(
    y: Array,
    training: Training,
    private: PrivateTraining,
    rng: Noise,
    *,
    progress: Callable[[float], None] | None = None,
) -> tuple[MaskedLayer, ...]:
    """Train masked layers on records by DP-SGD, starting from the identity.

    Args:
        y: (n, d) records in the space of a public start, about standard normal there; n is public.
        training: flows, hidden, layers and learning_rate; nothing else of it is used.
        private: rate, noise multiplier, steps and clip.
        rng: draws samples and noise from its keystream, and the first weights from its generator.
        progress: called with the share done.
    Raises: TrainingRefusal, where a step would take more records than the room for rounding was calculated for.
    Returns: layers from data to noise, as `shared.flows.AffineAutoregressiveFlow` takes them.

    The price is `shared.privacy.SubsampledGaussian(rate, noise_multiplier, steps)`, replace-one; clip and n do not
    enter it.
    """
    import torch

    n, d = y.shape
    if private.rate * n > LARGEST_BATCH:
        raise TrainingRefusal(
            f"a step of training with noise must take at most {LARGEST_BATCH} records on average",
            given=f"{private.rate * n:.0f}",
            next_step="Ask the study lead for a plan with a smaller private.rate.",
        )
    with torch_session(1):
        trainer = _trainer(d, training, int(rng.generator.integers(2**62)))
        data = torch.tensor(y, dtype=torch.float64)
        optimiser = Adam(trainer.modules.parameters())
        shape = _Shape(trainer)
        for step in range(private.steps):
            rows = torch.from_numpy(np.flatnonzero(rng.chosen(private.rate, n)))
            total = clipped_sum(trainer, data[rows], private.clip * (1 - ROOM))[0]
            mean = noisy(shape.flat(total), private, rng) / (private.rate * n)
            shape.put(mean)
            optimiser.rate = training.learning_rate * _falling(step / private.steps)
            optimiser.step()
            if progress is not None:
                progress((step + 1) / private.steps)
        return trainer.layers()


def noisy(total: Array, private: PrivateTraining, rng: Noise) -> Array:
    """A clipped sum of p entries plus N(0, (noise_multiplier · clip)²), both on a grid: exact multiples of it."""
    sigma = private.noise_multiplier * private.clip
    finest = private.clip * ROOM / 2 / math.sqrt(max(1, total.size))
    grid = min(grid_for(sigma), math.ldexp(0.5, math.frexp(finest)[1]))
    steps = np.rint(total / grid).astype(np.int64) + rng.lattice_gaussian_steps(sigma, total.shape, grid)
    return np.multiply(steps, grid, dtype=np.float64)


def clipped_sum(trainer: Trainer, y: Any, clip: float) -> tuple[list[Any], Any]:
    """The sum over records of their gradients of the negative log-likelihood, each scaled down to norm `clip`.

    Args:
        trainer: the layers, in the dtype of `y`.
        y: (b, d) tensor; b may be 0.
    Returns: the sum, one tensor per parameter in the order of `trainer.modules.parameters()`, masked entries 0; and
        each record's gradient norm before clipping, (b,).
    """
    import torch

    linears = _linears(trainer)
    inputs: dict[Any, Any] = {}
    outputs: dict[Any, Any] = {}

    def keep(module: Any, given: tuple[Any, ...], out: Any) -> None:
        inputs[module], outputs[module] = given[0].detach(), out

    handles = [linear.register_forward_hook(keep) for linear in linears]
    try:
        loss = trainer.nll(y).sum()
    finally:
        for handle in handles:
            handle.remove()
    backs = list(torch.autograd.grad(loss, [outputs[linear] for linear in linears]))
    with torch.no_grad():
        squares: Any = 0.0
        for linear, b in zip(linears, backs, strict=True):
            a = inputs[linear]
            squares = squares + (((b * b) @ linear.mask) * (a * a)).sum(dim=1) + (b * b).sum(dim=1)
        norms = squares.sqrt()
        sound = torch.isfinite(norms)
        factor = (clip / norms).clamp(max=1.0)[:, None]
        if not bool(sound.all()):
            # Zero times infinity is not zero: rows without a norm are taken out on both sides of the product.
            factor = factor[sound]
            backs = [b[sound] for b in backs]
            inputs = {linear: a[sound] for linear, a in inputs.items()}
        found: dict[Any, Any] = {}
        for linear, b in zip(linears, backs, strict=True):
            weighted = b * factor
            found[linear.weight] = (weighted.T @ inputs[linear]) * linear.mask
            found[linear.bias] = weighted.sum(dim=0)
        return [found[parameter] for parameter in trainer.modules.parameters()], norms


def seconds_per_step(n: int, d: int, training: Training, private: PrivateTraining) -> float:
    """Time of one step on this machine, measured on made-up numbers; for an estimate before a run."""
    import time

    from shared.randomness import secure_rng

    few = PrivateTraining(rate=private.rate, noise_multiplier=private.noise_multiplier, steps=5, clip=private.clip)
    made_up = np.random.default_rng(0).standard_normal((n, d))
    began = time.monotonic()
    private_layers(made_up, training, few, secure_rng())
    return (time.monotonic() - began) / few.steps


# -- inside -----------------------------------------------------------------------------------------------------
def _trainer(d: int, training: Training, seed: int) -> Trainer:
    trainer = Trainer(d, FlowSettings.of(training), seed)
    trainer.modules.double()
    return trainer


def _linears(trainer: Trainer) -> list[Any]:
    out: list[Any] = []
    for module in trainer.modules:
        net: Any = module.autoregressive_net
        out += [net.initial_layer, *(block.linear for block in net.blocks), net.final_layer]
    return out


def _falling(share: float) -> float:
    """Step sizes fall by a cosine to 2 % of the first."""
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))


class _Shape:
    """The weights that are used (masks left out) as one flat vector, and back: noise goes on these and on no other."""

    def __init__(self, trainer: Trainer) -> None:
        import torch

        masks = {linear.weight: linear.mask.bool() for linear in _linears(trainer)}
        self.parameters = list(trainer.modules.parameters())
        self.used = [masks.get(p, torch.ones_like(p, dtype=torch.bool)) for p in self.parameters]

    def flat(self, values: list[Any]) -> Array:
        return np.concatenate([v[used].numpy() for v, used in zip(values, self.used, strict=True)])

    def put(self, gradient: Array) -> None:
        """Set every parameter's gradient."""
        import torch

        at = 0
        for parameter, used in zip(self.parameters, self.used, strict=True):
            size = int(used.sum())
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[used] = torch.from_numpy(gradient[at : at + size])
            at += size
