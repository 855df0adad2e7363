r"""DP-SGD for the masked autoregressive flow: every step is a noisy sum of clipped gradients over a Poisson sample.

What a step releases is

.. math:: \tilde g = \frac{1}{q n} \Big( \sum_{i \in B} g_i \min(1, C / \|g_i\|) + N(0, \sigma^2 C^2 I) \Big)

with `B` a Poisson sample at rate `q`, and the divisor the *expected* batch, so that the batch's own size is not
released. Everything after it (Adam, the step sizes, the number of steps) is fixed in advance and reads no record.

**Ghost clipping.** The gradient of one record is never formed. A masked linear map with input `a` (a 1 among it, for
the bias) and output gradient `b` has the squared gradient norm

.. math:: \|\nabla_W\|^2 = b^2 \cdot (M a^2)

with squares taken entry by entry, and the clipped sum is one product of the matrices of all `a` and all `b`, the latter
scaled down record by record. `site_agent.models.fast_flow` has both at hand after a pass.
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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import TrainingRefusal
from shared.flows.affine import MaskedLayer
from shared.plans.plan import PrivateTraining, Training
from shared.privacy.grids import grid_for
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers

__all__ = [
    "Ahead",
    "clipped_sum",
    "noisy",
    "noisy_gradient",
    "private_layers",
    "require_room",
    "seconds_per_step",
    "start",
]

Array = NDArray[np.float64]

ROOM = 2.0**-20
"""Share of the clipping norm that is kept for rounding."""
LARGEST_BATCH = 40_000
"""Records in a step on average. By the usual bound on the error of a sum, twice as many could use up that room."""
_BLOCK = 1 << 17
"""Values of noise drawn in one go, or those of one step if they are more."""
_CHUNK = 1024
"""Records at a time: a large sample needs no more memory than this many."""


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
    Returns: layers from data to noise, as `shared.flows.affine.AffineAutoregressiveFlow` takes them.

    The price is `shared.privacy.accountant.SubsampledGaussian(rate, noise_multiplier, steps)`, replace-one; clip and n
    do not enter it.
    """
    n, d = y.shape
    require_room(n, private.rate)
    flow = start(d, training, int(rng.generator.integers(2**62)))
    optimiser = Adam(flow.theta)
    gradient = np.zeros_like(flow.theta)
    noise = Ahead(rng, private.steps)
    for step in range(private.steps):
        # On every weight that is used and on no masked one.
        gradient[0, flow.used] = noisy_gradient(flow, y, private, rng, noise)
        optimiser.step(gradient, training.learning_rate * _falling(step / private.steps))
        if progress is not None:
            progress((step + 1) / private.steps)
    return flow.layers()


def require_room(n: int, rate: float) -> None:
    """Refuse steps of more records than the room for rounding was calculated for. Raises: TrainingRefusal."""
    if rate * n > LARGEST_BATCH:
        raise TrainingRefusal(
            f"a step of training with noise must take at most {LARGEST_BATCH} records on average",
            given=f"{rate * n:.0f}",
            next_step="Ask the study lead for a plan with a smaller rate.",
        )


def noisy_gradient(flow: FusedFlow, y: Array, private: PrivateTraining, rng: Noise, noise: Lattice) -> Array:
    """One step's release: the noisy mean of clipped gradients over a Poisson sample, one entry per weight in use.

    Args:
        flow: one flow, in doubles.
        y: (n, d) records; n is public.
        rng: draws the sample; noise: draws the noise.
    """
    n = len(y)
    rows = np.flatnonzero(rng.chosen(private.rate, n))
    total = clipped_sum(flow, y[rows], private.clip * (1 - ROOM))[0]
    return noisy(total, private, noise) / (private.rate * n)


def start(d: int, training: Training, seed: int) -> FusedFlow:
    """The masked layers before the first step, in doubles: the identity."""
    generator = np.random.default_rng(seed)
    layers = first_layers(d, flows=training.flows, hidden=training.hidden, layers=training.layers, generator=generator)
    return FusedFlow([layers], dtype=np.float64)


class Lattice(Protocol):
    """A source of lattice noise: `shared.base.randomness.Noise`, or one of these that draws ahead."""

    def lattice_gaussian_steps(self, sigma: float, shape: tuple[int, ...], grid: float) -> NDArray[np.int64]:
        """See `Noise.lattice_gaussian_steps`."""
        ...


class Ahead:
    """The noise of several steps, drawn in one go: each value is handed out once.

    In portions of a few thousand most of the time goes on the last few values of each, whose digits take longest.

    Args:
        rng: draws it.
        portions: how many will be asked for; no more are drawn. All have one sigma, shape and grid.
    """

    def __init__(self, rng: Noise, portions: int) -> None:
        self._rng, self._left = rng, portions
        self._drawn: list[NDArray[np.int64]] = []

    def lattice_gaussian_steps(self, sigma: float, shape: tuple[int, ...], grid: float) -> NDArray[np.int64]:
        """The next portion. Its law is that of `Noise.lattice_gaussian_steps`."""
        if not self._drawn:
            portions = max(1, min(self._left, _BLOCK // max(1, math.prod(shape))))
            self._drawn = list(self._rng.lattice_gaussian_steps(sigma, (portions, *shape), grid))
            self._left -= portions
        return self._drawn.pop()


def noisy(total: Array, private: PrivateTraining, rng: Lattice) -> Array:
    """A clipped sum of p entries plus N(0, (noise_multiplier · clip)²), both on a grid: exact multiples of it."""
    sigma = private.noise_multiplier * private.clip
    finest = private.clip * ROOM / 2 / math.sqrt(max(1, total.size))
    grid = min(grid_for(sigma), math.ldexp(0.5, math.frexp(finest)[1]))
    steps = np.rint(total / grid).astype(np.int64) + rng.lattice_gaussian_steps(sigma, total.shape, grid)
    return np.multiply(steps, grid, dtype=np.float64)


def clipped_sum(flow: FusedFlow, y: Array, clip: float) -> tuple[Array, Array]:
    """The sum over records of their gradients of the negative log-likelihood, each scaled down to norm `clip`.

    Args:
        flow: one flow, in doubles.
        y: (b, d); b may be 0.
    Returns: the sum, one entry per weight that is used (`flow.used`); and the gradient norms before clipping, (b,).
    """
    total, norms = np.zeros(int(flow.used.sum())), np.zeros(len(y))
    with np.errstate(all="ignore"):
        for first in range(0, len(y), _CHUNK):
            part = y[first : first + _CHUNK]
            size = len(part)
            # Samples have a size of their own in every step. Rows of zeros make a few sizes of them, of which the flow
            # keeps its work space; their factor is 0.
            padded = np.zeros((1, -(-size // 64) * 64, flow.d))
            padded[0, :size] = part
            linears = flow.linears(padded)
            norm = np.sqrt(sum(((one.mask.T @ one.back[0] ** 2) * one.given[0] ** 2).sum(axis=0) for one in linears))
            norms[first : first + size] = norm[:size]
            factor = np.minimum(clip / norm, 1.0)
            factor[size:] = 0.0
            broken = ~np.isfinite(norm)
            for one in linears:
                weighted, given = one.back[0] * factor, one.given[0]
                if broken.any():
                    # Zero times infinity is not zero: records without a norm are taken out on both sides.
                    weighted, given = (np.where(broken, 0.0, side) for side in (weighted, given))
                np.matmul(weighted, given.T, out=one.gradient[0])
            total += flow.gradient[0, flow.used]
    return total, norms


def seconds_per_step(n: int, d: int, training: Training, private: PrivateTraining) -> float:
    """Time of one step on this machine, measured on made-up numbers; for an estimate before a run."""
    import time

    from shared.base.randomness import secure_rng

    # In so many steps the weights and the first noise, which are drawn once, are no longer most of the time; the
    # fastest of three runs, as other programs do not take part in each.
    few = PrivateTraining(rate=private.rate, noise_multiplier=private.noise_multiplier, steps=10, clip=private.clip)
    made_up = np.random.default_rng(0).standard_normal((n, d))
    took = []
    for _ in range(3):
        began = time.monotonic()
        private_layers(made_up, training, few, secure_rng())
        took.append(time.monotonic() - began)
    return min(took) / few.steps


# -- inside -----------------------------------------------------------------------------------------------------
def _falling(share: float) -> float:
    """Step sizes fall by a cosine to 2 % of the first."""
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))
