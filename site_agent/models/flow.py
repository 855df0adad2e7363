"""Fit a masked autoregressive flow to one site's encoded records, and leave plain arrays behind.

The fitted bijection is `margins ∘ whitening ∘ masked layers`. Margins map every column to normal scores, the
whitening is the Gaussian maximum likelihood, and the masked layers start as the identity: step 0 *is* the Gaussian
fit, and the layers are kept only if records held back say that they explain more. After early stopping everything is
fitted again on all records for the number of epochs found.

The posture is `local`: all of this looks at the records that are released, and the receipt says so.

Training uses nflows and torch, both imported here and nowhere else; what it returns is `shared.flows`, which needs
neither. Steps are float32; the arrays are evaluated in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from shared.errors import ParameterError, TrainingRefusal
from shared.flows import Composed, Margins, MaskedAffine, Whitening
from shared.plan import Training
from shared.randomness import Noise

if TYPE_CHECKING:
    import torch

__all__ = ["FittedFlow", "Progress", "estimate_cost", "fit_flow", "refit_flow"]

Array = NDArray[np.float64]
Progress = Callable[[str, float, float | None], None]
"""Called with the stage, the share done in [0, 1] and the seconds left (None: not known yet)."""

GAIN_IN_STANDARD_ERRORS = 2.0
"""The masked layers are kept when their gain on records held back exceeds this many standard errors."""
FINAL_STEPS, FINAL_RATE = 100, 1e-4
SMALLEST_SAMPLE = 20


@dataclass(frozen=True, kw_only=True)
class FittedFlow:
    """A fitted bijection, and how it was found.

    Attributes:
        flow: latents to encoded records, plain arrays.
        epochs: epochs after which records held back were explained best; 0 when the Gaussian start was kept.
        validation: mean log-density of records held back, in nats (None after `refit_flow`).
        seconds: wall time of the fit.
    """

    flow: Composed
    epochs: int
    validation: float | None
    seconds: float


def fit_flow(
    x: Array,
    settings: Training,
    rng: Noise,
    *,
    integer_columns: Sequence[int] = (),
    progress: Progress | None = None,
) -> FittedFlow:
    """Fit with a validation split and early stopping, then fit again on all of x.

    Args:
        x: (n, d) encoded records, finite.
        settings: the plan's `[training]`.
        rng: splits, batches and starting weights come from `rng.generator`.
        integer_columns: columns that hold level + U(0, 1); their margins get knots at every level's edge, so that the
            frequency of a rare level survives.
        progress: told the stage, the share done and the seconds left.
    Raises: TrainingRefusal: too few rows, values that are not finite, or a loss that is not.
    Source: latent-noise-injection, 3.1.2 and 4.2.
    """
    started = time.monotonic()
    x = _usable(x)
    tell = progress or (lambda stage, share, left: None)
    draws = rng.generator
    mixed = draws.permutation(len(x))
    held_back = max(1, round(settings.validation * len(x)))
    validation, training = x[mixed[:held_back]], x[mixed[held_back:]]
    base = _base(training, settings, integer_columns)
    found = _train(
        _latents(base, training),
        settings,
        draws,
        epochs=settings.epochs,
        held_back=_latents(base, validation),
        tell=lambda share, left: tell("training", share, left),
    )
    gain = found.gain
    kept = len(gain) > 1 and gain.mean() > GAIN_IN_STANDARD_ERRORS * gain.std(ddof=1) / math.sqrt(len(gain))
    epochs = found.epochs if kept else 0
    score = float(base.log_prob(validation).mean() + (gain.mean() if kept else 0.0))
    again = refit_flow(x, settings, rng, epochs=epochs, integer_columns=integer_columns, progress=progress)
    return FittedFlow(flow=again.flow, epochs=epochs, validation=score, seconds=time.monotonic() - started)


def refit_flow(
    x: Array,
    settings: Training,
    rng: Noise,
    *,
    epochs: int,
    integer_columns: Sequence[int] = (),
    progress: Progress | None = None,
) -> FittedFlow:
    """Fit on all of x for a number of epochs found earlier; 0 keeps the Gaussian fit.

    Args, Raises: as `fit_flow`.
    """
    started = time.monotonic()
    x = _usable(x)
    tell = progress or (lambda stage, share, left: None)
    base = _base(x, settings, integer_columns)
    layers: tuple[MaskedAffine, ...] = ()
    if epochs:
        found = _train(
            _latents(base, x),
            settings,
            rng.generator,
            epochs=epochs,
            held_back=None,
            tell=lambda share, left: tell("fitting on all records", share, left),
        )
        layers = found.layers
    flow = Composed(steps=(*base.steps, *layers))
    if not np.isfinite(flow.log_prob(x)).all():
        raise TrainingRefusal(
            "the fitted flow must give every record a finite density",
            given="one that does not",
            next_step="Lower training.learning_rate in the plan, or use fewer flows.",
        )
    return FittedFlow(flow=flow, epochs=epochs, validation=None, seconds=time.monotonic() - started)


def estimate_cost(n: int, d: int, settings: Training) -> tuple[float, float]:
    """What a fit may take at most, before it starts: (seconds of one core, megabytes).

    From a count of multiplications, at a rate of 2e9 a second for these small matrices and 4 ms of overhead a step;
    early stopping usually takes a third of it.

    >>> seconds, megabytes = estimate_cost(2000, 6, Training())
    >>> seconds > 1 and megabytes > 100
    True
    """
    batch = _batch(n)
    steps = 2 * settings.epochs * math.ceil(n / batch) + FINAL_STEPS
    weights = settings.hidden * (3 * d + (settings.layers - 1) * settings.hidden)
    seconds = steps * (settings.flows * 3 * batch * weights / 2e9 + 1e-3 * settings.flows)
    values = batch * settings.flows * (settings.hidden * settings.layers * 4 + 8 * d)
    return seconds, 350 + 8e-6 * (values + 12 * n * d)


def _usable(x: Array) -> Array:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ParameterError("encoded records must be a finite (n, d) matrix", given=f"shape {x.shape}")
    if len(x) < SMALLEST_SAMPLE:
        raise TrainingRefusal(
            f"a flow must be fitted on at least {SMALLEST_SAMPLE} rows",
            given=f"{len(x)}",
            next_step="Wait for more persons, or ask the lead for another mechanism.",
        )
    return x


def _batch(n: int) -> int:
    """Rows a step: larger tables take larger batches, so that the number of steps grows slowly."""
    return int(np.clip(n // 12, 64, 512))


# -- margins and whitening ----------------------------------------------------------------------------------------
def _base(x: Array, settings: Training, integer_columns: Sequence[int]) -> Composed:
    """Margins and the Gaussian maximum likelihood after them."""
    steps: list[Margins | Whitening] = []
    y = x
    if settings.margins == "normal_scores":
        pairs = [_normal_scores(x[:, j], integer=j in integer_columns) for j in range(x.shape[1])]
        margins = Margins(knots=tuple(knots for knots, _ in pairs), scores=tuple(scores for _, scores in pairs))
        steps.append(margins)
        y = margins.inverse(x)
    covariance = np.atleast_2d(np.cov(y, rowvar=False, bias=True))
    # The ridge also gives a constant column a positive variance: it is released as the constant.
    variances = np.diag(covariance)
    ridge = 1e-6 * np.where(variances > 0, variances, 1.0)
    steps.append(
        Whitening(mean=y.mean(axis=0), factor=np.linalg.cholesky(covariance + np.diag(ridge)).astype(np.float64))
    )
    return Composed(steps=tuple(steps))


def _normal_scores(x: Array, *, integer: bool) -> tuple[Array, Array]:
    """Knots and scores of one column: the empirical distribution, smoothed to about n/20 pieces.

    An integer column has the exact distribution of its levels, uniform within each: knots at every edge of an
    occupied level, and inside, so that the score is smooth. Without them a rare event's rate is distorted several-fold.
    """
    n = len(x)
    low, high = 0.5 / n, 1 - 0.5 / n
    if integer:
        levels, counts = np.unique(np.floor(x), return_counts=True)
        share = counts / n
        inside = max(1, min(16, 96 // len(levels)))
        ends = np.cumsum(share)
        knots = [levels[0]]
        probabilities = [0.0]
        for level, end, mass in zip(levels, ends, share, strict=True):
            if level > knots[-1]:  # an empty gap between occupied levels keeps a sliver of probability
                knots.append(level)
                probabilities.append(probabilities[-1])
            steps = np.arange(1, inside + 1) / inside
            knots.extend(level + steps)
            probabilities.extend(end - mass + mass * steps)
        at, p = np.asarray(knots), np.asarray(probabilities)
        # Strictly increasing, also over gaps: mix in a sliver of the uniform distribution.
        sliver = min(0.01, 1 / n)
        p = (1 - sliver) * p + sliver * (at - at[0]) / (at[-1] - at[0])
    else:
        values, counts = np.unique(x, return_counts=True)
        if len(values) == 1:
            return np.array([values[0] - 1e-6, values[0] + 1e-6]), np.array([-4.0, 4.0])
        middle = (np.cumsum(counts) - 0.5 * counts) / n
        pieces = int(np.clip(n // 20, 8, 100))
        wanted = np.linspace(0, 1, pieces + 1)
        chosen = np.unique(np.clip(np.searchsorted(middle, wanted), 0, len(values) - 1))
        chosen = np.unique(np.concatenate([[0], chosen, [len(values) - 1]]))
        at, p = values[chosen], middle[chosen]
    scores = ndtri(low + (high - low) * p)
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(at) > 1e-12)])
    at, scores = at[keep], scores[keep]
    if len(at) < 2:
        return np.array([at[0] - 1e-6, at[0] + 1e-6]), np.array([-4.0, 4.0])
    return at, scores


def _latents(base: Composed, x: Array) -> NDArray[np.float32]:
    return base.inverse(x).astype(np.float32)


# -- the masked layers ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Found:
    layers: tuple[MaskedAffine, ...]
    epochs: int
    gain: Array


def _train(
    y: NDArray[np.float32],
    settings: Training,
    draws: np.random.Generator,
    *,
    epochs: int,
    held_back: NDArray[np.float32] | None,
    tell: Callable[[float, float | None], None],
) -> _Found:
    """Adam on mini-batches with a cosine schedule over `settings.epochs`.

    With `held_back`: early stopping, and `gain` is each such record's log-density over the Gaussian start. Without:
    just `epochs` epochs of the same schedule, then some small steps at a fixed rate.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # nflows draws its weights from torch's global generator; leave that as it was found.
    state = torch.random.get_rng_state()
    torch.manual_seed(int(draws.integers(2**63)))
    try:
        return _steps(torch, y, settings, draws, epochs=epochs, held_back=held_back, tell=tell)
    finally:
        torch.random.set_rng_state(state)
        torch.set_num_threads(threads)


def _steps(
    torch: Any,
    y: NDArray[np.float32],
    settings: Training,
    draws: np.random.Generator,
    *,
    epochs: int,
    held_back: NDArray[np.float32] | None,
    tell: Callable[[float, float | None], None],
) -> _Found:
    n, d = y.shape
    flow = _identity_layers(torch, d, settings)
    optimiser = torch.optim.Adam(flow.parameters(), lr=settings.learning_rate)
    rows = torch.from_numpy(y)
    watched = None if held_back is None else torch.from_numpy(held_back)
    start = None if watched is None else _log_prob(torch, flow, watched)
    best, best_epoch, best_gain, best_weights = 0.0, 0, np.zeros(0), None
    batch = _batch(n)
    began = time.monotonic()
    for epoch in range(1, epochs + 1):
        rate = settings.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / settings.epochs)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        mixed = torch.from_numpy(draws.permutation(n))
        for begin in range(0, max(1, n - batch // 2), batch):
            _one_step(torch, flow, optimiser, rows[mixed[begin : begin + batch]])
        if watched is not None and start is not None:
            gain = (_log_prob(torch, flow, watched) - start).double().numpy()
            if gain.mean() > best + 1e-5:
                best, best_epoch, best_gain = float(gain.mean()), epoch, gain
                best_weights = {name: value.clone() for name, value in flow.state_dict().items()}
            if epoch - best_epoch >= settings.patience:
                break
        spent = time.monotonic() - began
        tell(epoch / epochs, spent / epoch * (epochs - epoch))
    tell(1.0, 0.0)
    if watched is None:
        for group in optimiser.param_groups:
            group["lr"] = FINAL_RATE
        for _ in range(FINAL_STEPS):
            _one_step(torch, flow, optimiser, rows[torch.from_numpy(draws.integers(n, size=min(n, batch)))])
    elif best_weights is not None:
        flow.load_state_dict(best_weights)
    return _Found(layers=_plain(flow, settings), epochs=best_epoch or epochs, gain=best_gain)


def _one_step(torch: Any, flow: Any, optimiser: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss = -flow.log_prob(rows).mean()
    if not bool(torch.isfinite(loss)):
        raise TrainingRefusal(
            "the training loss must stay finite",
            given="one that did not",
            next_step="Lower training.learning_rate in the plan.",
        )
    loss.backward()
    optimiser.step()


def _log_prob(torch: Any, flow: Any, rows: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return flow.log_prob(rows)


def _identity_layers(torch: Any, d: int, settings: Training) -> torch.nn.Module:
    """nflows' masked autoregressive flow whose last layers make it the identity at the start."""
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    steps: list[torch.nn.Module] = []
    for i in range(settings.flows):
        if i:
            steps.append(ReversePermutation(features=d))
        layer = MaskedAffineAutoregressiveTransform(
            features=d,
            hidden_features=settings.hidden,
            num_blocks=settings.layers - 1,
            use_residual_blocks=False,
            activation=torch.tanh,
        )
        last = layer.autoregressive_net.final_layer
        with torch.no_grad():
            last.weight.zero_()
            last.bias.zero_()
            last.bias[0::2] = math.log(math.expm1(1 - 1e-3))  # softplus of it, plus nflows' 0.001, is 1
        steps.append(layer)
    return Flow(CompositeTransform(steps), StandardNormal([d]))


def _plain(flow: Any, settings: Training) -> tuple[MaskedAffine, ...]:
    """The layers as plain float64 arrays, masks applied."""

    def array(tensor: torch.Tensor) -> Array:
        return tensor.detach().double().numpy().copy()

    layers: list[MaskedAffine] = []
    for module in flow._transform._transforms:
        net = getattr(module, "autoregressive_net", None)
        if net is None:
            continue
        hidden = [net.initial_layer, *(block.linear for block in net.blocks)]
        linear = [*hidden, net.final_layer]
        d = net.initial_layer.in_features
        layers.append(
            MaskedAffine(
                order=np.arange(d) if not layers else np.arange(d)[::-1].copy(),
                weights=tuple(array(layer.weight * layer.mask) for layer in linear),
                biases=tuple(array(layer.bias) for layer in linear),
                degrees=tuple(layer.degrees.numpy().astype(np.int64) for layer in hidden),
            )
        )
    return tuple(layers)
