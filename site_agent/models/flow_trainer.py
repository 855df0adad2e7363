"""Steps on the layers of a flow: by our own closed form or by torch, stopped where held-back records get no better."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.errors import TrainingRefusal
from shared.flows.affine import MaskedLayer
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers
from site_agent.models.flow_settings import FlowSettings, Progress

__all__ = ["SPLINE_BINS", "Engine", "FitClock", "FoundWeights", "Trainer", "engine_of", "session_of"]

Array = NDArray[np.float64]
Records = NDArray[np.floating[Any]]
SPLINE_BINS = 8


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """Log-likelihoods (n,) of held-back records at the start and at the best weights, and after how many epochs."""

    start: Array
    best: Array
    epochs: int
    epochs_run: int


class Engine(Protocol):
    """Trainer of masked layers in single precision: records are (n, d), whitened."""

    def nll(self, y: Records) -> Array:
        """Negative log-likelihood in nats, (n,)."""
        ...

    def begin(self) -> None:
        """Start Adam anew."""
        ...

    def step(self, y: Records, rate: float) -> None:
        """One step of Adam along the mean gradient of these records."""
        ...

    def copy(self) -> Any:
        """The weights as they are, for `restore`."""
        ...

    def restore(self, state: Any) -> None:
        """Put weights back."""
        ...

    def layers(self) -> tuple[MaskedLayer, ...]:
        """The layers as plain arrays."""
        ...


class _Fused:
    """One flow of `site_agent.models.fast_flow` with its optimiser."""

    def __init__(self, layers: tuple[MaskedLayer, ...], activation: str, spectral: bool) -> None:
        self.flow, self.spectral = FusedFlow([layers], activation=activation), spectral
        if spectral:
            self.flow.normalise()
        self.begin()

    def nll(self, y: Records) -> Array:
        with np.errstate(all="ignore"):
            return self.flow.nll(y[None])[0].astype(np.float64)

    def begin(self) -> None:
        self.adam = Adam(self.flow.theta)

    def step(self, y: Records, rate: float) -> None:
        self.adam.step(self.flow.differentiate(y[None]), rate)
        if self.spectral:
            self.flow.normalise()

    def copy(self) -> Any:
        return self.flow.theta.copy()

    def restore(self, state: Any) -> None:
        self.flow.theta[:] = state

    def layers(self) -> tuple[MaskedLayer, ...]:
        return self.flow.layers()


def engine_of(layers: tuple[MaskedLayer, ...], settings: FlowSettings) -> Engine:
    """Trainer of these layers: closed-form passes in numpy where they exist, torch elsewhere."""
    if not settings.by_hand:
        from site_agent.models.reference_flow import NflowsFlow

        return NflowsFlow(layers, activation=settings.activation)
    return _Fused(layers, settings.activation, settings.spectral)


def session_of(settings: FlowSettings) -> AbstractContextManager[None]:
    """Context in which the training steps run: deterministic torch, or no context."""
    if settings.by_hand:
        return nullcontext()
    from site_agent.models.reference_flow import torch_session

    return torch_session(settings.threads)


class Trainer:
    """Training in single precision on whitened records: a schedule, and an engine that takes its steps.

    First weights and mini-batches come from the seed and not from the engine, so that two engines take the same steps.
    """

    def __init__(self, d: int, settings: FlowSettings, seed: int, begin: tuple[MaskedLayer, ...] = ()) -> None:
        self.generator = np.random.default_rng(seed)
        self.settings, self.d = settings, d
        layers = first_layers(
            d,
            flows=settings.flows,
            hidden=settings.hidden,
            layers=settings.layers,
            generator=self.generator,
            bins=SPLINE_BINS if settings.family == "spline" else 0,
        )
        self.engine = engine_of(begin or layers, settings)

    def search(self, train: Array, check: Array, batch: int, clock: FitClock) -> FoundWeights:
        """Train until the held-back records stop improving; leaves the best weights in place."""
        settings, engine = self.settings, self.engine
        data, held = train.astype(np.float32), check.astype(np.float32)
        steps = max(1, len(train) // batch)
        engine.begin()
        start = best = engine.nll(held)
        state, chosen, epoch = engine.copy(), 0, 0
        for epoch in range(1, settings.epochs + 1):
            self._pass(data, batch, steps, self._cosine(epoch - 1))
            now = engine.nll(held)
            value = float(now.mean())
            if not math.isfinite(value):
                _refuse_divergence()
            if value < float(best.mean()) - 1e-5:
                best, chosen, state = now, epoch, engine.copy()
            elif epoch - chosen >= settings.patience:
                break
            clock.share("train", epoch / settings.epochs)
        engine.restore(state)
        return FoundWeights(start=start, best=best, epochs=chosen, epochs_run=epoch)

    def run(
        self, train: Array, batch: int, steps: int, per_epoch: int, clock: FitClock | None, *, final: bool = True
    ) -> None:
        """Exactly so many steps along the same schedule, then the final ones.

        Args:
            train: (n, d) records in the smooth space of the flow.
            batch: records of one step.
            steps: how many in all, without the final ones.
            per_epoch: steps after which the learning rate falls, 1 at least.
            clock: hears how far it is; None for nobody.
            final: take the settings' final steps at their slow rate as well.
        Raises: TrainingRefusal: the likelihood diverged.
        """
        settings = self.settings
        data = train.astype(np.float32)
        per_epoch = max(1, per_epoch)
        self.engine.begin()
        after = settings.final_steps if final else 0
        for done in range(0, steps, per_epoch):
            self._pass(data, batch, min(per_epoch, steps - done), self._cosine(done // per_epoch))
            if clock is not None:
                clock.share("refit", min(1.0, (done + per_epoch) / (steps + after)))
        if after:
            self._pass(data, batch, after, min(settings.final_rate, self._cosine(steps // per_epoch)))
        if not np.isfinite(self.engine.nll(data)).all():
            _refuse_divergence()

    def _pass(self, data: NDArray[np.float32], batch: int, steps: int, rate: float) -> None:
        rows = np.empty(0, dtype=np.int64)
        # A likelihood that diverges is refused by whoever called, and says nothing on the way there.
        with np.errstate(all="ignore"):
            for _ in range(steps):
                if len(rows) < batch:
                    rows = np.concatenate([rows, self.generator.permutation(len(data))])
                now, rows = rows[:batch], rows[batch:]
                self.engine.step(data[now], rate)

    def _cosine(self, epoch: int) -> float:
        share = min(1.0, epoch / max(1, self.settings.epochs))
        return self.settings.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))

    def layers(self) -> tuple[MaskedLayer, ...]:
        """The trained layers as plain arrays."""
        return self.engine.layers()


def _refuse_divergence() -> None:
    raise TrainingRefusal(
        "the likelihood must stay finite while training",
        given="NaN or infinity",
        next_step="Ask the study lead for a smaller learning_rate, or for margins = 'normal_scores'.",
    )


class FitClock:
    """Progress of the whole fit from the progress of its parts."""

    SPANS: ClassVar[dict[str, tuple[float, float]]] = {"train": (0.02, 0.6), "refit": (0.6, 1.0)}

    def __init__(self, progress: Progress | None, began: float) -> None:
        self.progress, self.began = progress, began

    def tell(self, stage: str, done: float, left: float | None) -> None:
        """Report a share done in [0, 1], and the seconds left."""
        if self.progress is not None:
            self.progress(stage, done, left)

    def share(self, stage: str, part: float) -> None:
        """Report the part of a stage that is done, in [0, 1]."""
        low, high = self.SPANS[stage]
        done = low + (high - low) * part
        self.tell(stage, done, (time.monotonic() - self.began) * (1 - done) / done)
