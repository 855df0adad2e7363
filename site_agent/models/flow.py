"""Training the site's flow: records in, plain arrays out.

Five decisions, each measured before it was taken.

* **Start at the answer for Gaussian data.** Margins and levels are fitted in closed form, the columns are whitened by
  the Cholesky factor of their covariance, and every masked layer starts as the identity. With no step taken the flow
  is already the Gaussian maximum likelihood. It is left only if held-back records say so: their mean gain must exceed
  twice its paired standard error. On Gaussian data a network that is trained regardless is worse than no network.
* **Refit on everything.** Held-back records choose the number of steps; the released flow takes that many on all of
  them, and then a few at a small rate. Of many records a quarter of a million choose it.
* **Levels are not left to the flow.** A dequantised column (code + U(0, 1)) is a staircase that an affine flow draws
  badly: a rare event becomes too frequent. `shared.flows.levels.Levels` models it by its law given the other
  columns; a column with many levels gets a margin with knots at every integer, so that its frequencies are exact. A
  time is another quantity for those with the event and those without, so it gets a margin and a regression for each
  (`Strata`).
* **Outcomes are drawn last, where a plan asks.** A planned regression is about the law of its outcome given everything
  else, and a near-Gaussian flow behind `Levels` has that law wrong where groups have other variances. So the flow is
  of the covariates, and `site_agent.models.outcome_laws` draws each outcome given them.
* **Plain arrays leave.** The masked layers have nflows' parameters and are trained by `site_agent.models.fast_flow`,
  in numpy; nflows itself (`site_agent.models.reference_flow`, torch) is what that is tested against, and trains what
  it does not know. What is returned is a `shared.flows.chain` that agrees with nflows to 1e-6.

Margins, levels, whitening, stopping point and weights are all fitted on the records given, and no guarantee covers
those: whether they are the released ones (posture `local`) or others (`holdout`) is `site_agent.release.fitting`'s
rule. Training with noise is in `site_agent.models.private_flow`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError, TrainingRefusal
from shared.flows.affine import AffineAutoregressiveFlow, MaskedLayer
from shared.flows.base import Bijection, StoredBijection
from shared.flows.chain import Beside, Composed
from shared.plans.outcomes import PlannedOutcomes
from shared.plans.plan import Training
from site_agent.models.flow_settings import FlowSettings, Progress
from site_agent.models.flow_shape import log_det_of, shape_of, whitening
from site_agent.models.flow_trainer import Engine, FitClock, Trainer, session_of

__all__ = [
    "TRANSFER_BELOW",
    "Engine",
    "FittedFlow",
    "FlowReport",
    "FlowSettings",
    "Progress",
    "Trainer",
    "fit_flow",
    "fit_megabytes",
    "fit_seconds",
    "network_of",
    "refit_flow",
    "smallest_n",
]

Array = NDArray[np.float64]
Records = NDArray[np.floating[Any]]
TRANSFER_BELOW = 1500
"""Records from which a site learns all it can by itself: no shared flow is tried there."""
_SEARCHED = 250_000
"""Records by which, where there are more, it is found how many steps to take on all."""
_DRAWN = 4000
"""Rows drawn from a shared flow, to learn from them what it knows."""


@dataclass(frozen=True, kw_only=True)
class FlowReport:
    """Report of a flow's training; it stays at the site.

    Attributes:
        held_back: records that chose the stopping point; 0 if it was given.
        epochs: passes chosen; 0 means that the Gaussian start was kept.
        epochs_run: passes tried.
        batch: records per step.
        start_nll: mean negative log-likelihood of held-back records at the Gaussian start, nats.
        best_nll: the same at the chosen epoch. Where outcomes are drawn last, both are of the covariates alone.
        gain: mean paired gain over the start, nats per record.
        gain_se: its standard error.
        transferred: True if the layers began at those of a shared flow; `epochs` then counts from there.
        seconds: wall-clock seconds.
    """

    n: int
    d: int
    held_back: int
    epochs: int
    epochs_run: int
    batch: int
    start_nll: float | None
    best_nll: float | None
    gain: float | None
    gain_se: float | None
    seconds: float
    transferred: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedFlow:
    """A flow of plain arrays, and how it came about."""

    flow: Composed
    report: FlowReport

    @property
    def epochs(self) -> int:
        """Passes chosen; 0 means that the Gaussian start was kept."""
        return self.report.epochs


def smallest_n(d: int) -> int:
    """Fewest records from which a flow of d columns is fitted: enough for a covariance and a held-back part.

    >>> smallest_n(6), smallest_n(20)
    (40, 80)
    """
    return max(40, 4 * d)


def fit_flow(
    x: Array,
    settings: FlowSettings | Training,
    rng: Noise,
    *,
    progress: Progress | None = None,
    integer_columns: Sequence[int] = (),
    carried: int | None = None,
    shared: Bijection | None = None,
    outcomes: PlannedOutcomes | None = None,
) -> FittedFlow:
    """Fit a flow to encoded records.

    Args:
        x: (n, d) encoded records, finite; columns in `integer_columns` are codes plus U(0, 1).
        settings: see `FlowSettings`; a plan's `Training` will do.
        rng: draws the split, the shuffles and the first weights, from its generator. No guarantee rests on it. The
            same rng state and records give the same flow; no global generator is read or moved.
        progress: see `Progress`.
        integer_columns: indices of dequantised columns.
        carried: one of these that the flow leaves as it is. All others are then fitted *given* it: a margin in each of
            its levels, so that noise in them takes nothing from what sets its levels apart. Only with normal scores.
        shared: a flow of the same columns, latents to encoded records, that a site may know without a charge. What it
            knows beyond margins, levels and correlations is learnt from rows drawn from it (`FlowSettings.transfer`).
        outcomes: columns that are drawn last, each given all others (`site_agent.models.outcome_laws`); the flow is
            then of the covariates, and each outcome has a latent of its own beside it. None draws all together.
    Returns: the flow (latents to records) and the report.
    Raises: TrainingRefusal: too few records, a value that is not finite, a smooth column that does not vary, columns
        that determine one another, or a likelihood that became NaN. ParameterError: not a matrix.

    >>> from shared.base.randomness import seeded_rng
    >>> x = seeded_rng(1).generator.normal(size=(200, 2)) * [1.0, 3.0] + [0.0, 5.0]
    >>> fitted = fit_flow(x, FlowSettings(epochs=0), seeded_rng(2))
    >>> np.allclose(fitted.flow.forward(fitted.flow.inverse(x)), x)
    True
    """
    settings = FlowSettings.of(settings)
    return _fit(x, settings, rng.generator, None, progress, integer_columns, carried, shared, outcomes)


def _searched(n: int, settings: FlowSettings) -> float:
    """Share of n records by which it is found how long to train: all where nothing is held back to find it."""
    return min(1.0, _SEARCHED / n) if settings.validation else 1.0


def network_of(flow: Any) -> dict[str, Any]:
    """flows, hidden and layers of the masked network in a flow that `fit_flow` gave; empty where it has none."""
    smooth: Any = flow.first.inner if isinstance(flow.first, Beside) else flow.first
    if not smooth.layers:
        return {}
    first = smooth.layers[0]
    return {"flows": len(smooth.layers), "hidden": len(first.biases[0]), "layers": len(first.weights) - 1}


def refit_flow(
    x: Array,
    settings: FlowSettings | Training,
    rng: Noise,
    *,
    epochs: int,
    integer_columns: Sequence[int] = (),
    progress: Progress | None = None,
    carried: int | None = None,
    outcomes: PlannedOutcomes | None = None,
) -> FittedFlow:
    """Fit with the number of passes already chosen: nothing is held back, and it takes half the time.

    Settings of the audit's shadow model. 0 passes keep the Gaussian start.
    Args, Raises: as `fit_flow`.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise ParameterError("epochs must be a whole number of at least 0", given=repr(epochs))
    settings = FlowSettings.of(settings)
    return _fit(x, settings, rng.generator, epochs, progress, integer_columns, carried, None, outcomes)


def _fit(
    x: Array,
    settings: FlowSettings,
    generator: np.random.Generator,
    passes: int | None,
    progress: Progress | None,
    integer_columns: Sequence[int],
    carried: int | None,
    shared: Bijection | None = None,
    outcomes: PlannedOutcomes | None = None,
) -> FittedFlow:
    began = time.monotonic()
    x, integers = _checked(x, settings, integer_columns, carried, outcomes)
    n, d = x.shape
    clock = FitClock(progress, began)
    clock.tell("margins", 0.0, None)

    seed = int(generator.integers(2**62))
    order = generator.permutation(n)
    size, batch = settings.sizes(n)
    held = n - size if settings.epochs and settings.flows and passes is None else 0
    if settings.refit:
        size = round(size * _searched(n, settings))
    train, check = order[held:][:size], order[:held][: size * held // (n - held)]
    task = _Task(x, settings, integers, carried, outcomes, seed, batch)

    epochs = (settings.epochs if passes is None else passes) if settings.flows else 0
    stop = _Stop(epochs=epochs, epochs_run=epochs)
    with session_of(settings):
        if held:
            stop = task.stop(train, check, shared, clock)
        everything = settings.refit or not held
        rows = np.arange(n) if everything else train
        shaped = task.shape(rows)
        inner = shaped.inverse(x[rows])[:, task.own]
        start = whitening(inner)
        layers: tuple[MaskedLayer, ...] = ()
        if stop.epochs or stop.known:
            trainer = stop.trainer
            if everything or trainer is None:
                trainer = task.trainer(stop.known)
                # As many steps as the held-back records chose, not as many passes: a pass over all records is longer.
                per_epoch = max(1, size // batch)
                trainer.run(start.inverse(inner), batch, stop.epochs * per_epoch, per_epoch, clock)
            layers = trainer.layers()
    smooth = AffineAutoregressiveFlow(mean=start.mean, scale=start.scale, layers=layers, activation=settings.activation)
    second = shaped if outcomes is None else _with_laws(x[rows], outcomes, task.apart, smooth, shaped, seed)
    flow = Composed(first=Beside(columns=task.apart, inner=smooth) if task.apart else smooth, second=second)
    clock.tell("done", 1.0, 0.0)
    return FittedFlow(
        flow=flow,
        report=FlowReport(
            n=n,
            d=d,
            held_back=len(check),
            epochs=stop.epochs,
            epochs_run=stop.epochs_run,
            batch=batch,
            start_nll=stop.start_nll,
            best_nll=stop.best_nll,
            gain=stop.gain,
            gain_se=stop.gain_se,
            seconds=time.monotonic() - began,
            transferred=bool(stop.known),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Stop:
    """After how many passes training stops, and what held-back records said of it (as in `FlowReport`).

    Attributes:
        known: layers of a shared flow from which training starts; empty where it starts at the Gaussian.
        trainer: who found it, its layers those of the best pass; None where nothing was held back.
    """

    epochs: int
    epochs_run: int
    start_nll: float | None = None
    best_nll: float | None = None
    gain: float | None = None
    gain_se: float | None = None
    known: tuple[MaskedLayer, ...] = ()
    trainer: Trainer | None = None


@dataclass(frozen=True)
class _Task:
    """Records (n, d) and how they are to be fitted, the same for held-back records and for all."""

    x: Array
    settings: FlowSettings
    integers: tuple[int, ...]
    carried: int | None
    outcomes: PlannedOutcomes | None
    seed: int
    batch: int

    @property
    def apart(self) -> tuple[int, ...]:
        """Columns that are no part of the masked layers: a carried one, or the outcomes."""
        if self.outcomes is not None:
            return self.outcomes.drawn
        return () if self.carried is None else (self.carried,)

    @property
    def own(self) -> list[int]:
        return [j for j in range(self.x.shape[1]) if j not in self.apart]

    def shape(self, rows: NDArray[np.integer[Any]]) -> StoredBijection:
        return shape_of(self.x[rows], self.settings, self.integers, self.carried, self.outcomes)

    def trainer(self, known: tuple[MaskedLayer, ...] = ()) -> Trainer:
        return Trainer(len(self.own), self.settings, self.seed, known)

    def stop(
        self,
        train: NDArray[np.integer[Any]],
        check: NDArray[np.integer[Any]],
        shared: Bijection | None,
        clock: FitClock,
    ) -> _Stop:
        """Fit to `train` until the records of `check` get no better; from a shared flow where that is better."""
        x = self.x
        shaped = self.shape(train)
        inner_train, inner_check = shaped.inverse(x[train])[:, self.own], shaped.inverse(x[check])[:, self.own]
        start = whitening(inner_train)
        y_train, y_check = start.inverse(inner_train), start.inverse(inner_check)
        trainer = self.trainer()
        found = trainer.search(y_train, y_check, self.batch, clock)
        # The log-determinant of margins, levels and whitening is the same on both sides of the comparison.
        offset = log_det_of(shaped, x[check]) + log_det_of(start, inner_check)
        gain, gain_se = _paired(found.start - found.best)
        start_nll, best_nll = float((found.start - offset).mean()), float((found.best - offset).mean())
        epochs = found.epochs
        if gain <= self.settings.gate * gain_se:
            epochs, best_nll = 0, start_nll
        stop = _Stop(
            epochs=epochs,
            epochs_run=found.epochs_run,
            start_nll=start_nll,
            best_nll=best_nll,
            gain=gain,
            gain_se=gain_se,
            trainer=trainer,
        )
        if not self.settings.transfer or shared is None or len(x) >= TRANSFER_BELOW:
            return stop
        known = _known(shared, self.settings, self.seed, self.integers, self.carried, self.outcomes)
        if not known:
            return stop
        last = np.zeros(len(check)) if self.outcomes is None else _last(x[train], self.outcomes, x[check])
        tuner = self.trainer(known)
        tuned = tuner.search(y_train, y_check, self.batch, FitClock(None, clock.began))
        value = float((tuned.best - offset).mean())
        over = found.start - tuned.best
        # Better than the shared flow as it is, than what the records say by themselves, and than the Gaussian.
        least = min(best_nll, float(-(shared.log_prob(x[check]) - last).mean()))
        if not (value < least and _clear(over, self.settings.gate)):
            return stop
        gain, gain_se = _paired(over)
        return _Stop(
            epochs=tuned.epochs,
            epochs_run=tuned.epochs_run,
            start_nll=start_nll,
            best_nll=value,
            gain=gain,
            gain_se=gain_se,
            known=known,
            trainer=tuner,
        )


def _checked(
    x: Array,
    settings: FlowSettings,
    integer_columns: Sequence[int],
    carried: int | None,
    outcomes: PlannedOutcomes | None,
) -> tuple[Array, tuple[int, ...]]:
    """Records as doubles, and which columns hold whole numbers. Raises: ParameterError, TrainingRefusal."""
    x = np.array(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 1:
        raise ParameterError("records must be a matrix", given=f"shape {x.shape}")
    d = x.shape[1]
    integers = tuple(sorted({int(j) for j in integer_columns}))
    if any(not 0 <= j < d for j in integers):
        raise ParameterError(f"integer_columns must be in 0..{d - 1}", given=str(integers))
    if carried is not None and (carried not in integers or d < 2 or settings.margins == "none"):
        raise ParameterError(
            "a carried column must be a dequantised one beside others, and margins 'normal_scores'",
            given=f"column {carried} of {d}, margins {settings.margins!r}",
        )
    if outcomes is not None and (outcomes.d != d or carried is not None or settings.margins == "none"):
        raise ParameterError(
            "outcomes that are drawn last must be of these columns, without a carried one, and margins 'normal_scores'",
            given=f"{outcomes.d} columns for {d}, margins {settings.margins!r}",
        )
    _require_trainable(x, integers)
    return x, integers


def _with_laws(
    x: Array,
    outcomes: PlannedOutcomes,
    apart: Sequence[int],
    smooth: StoredBijection,
    shaped: StoredBijection,
    seed: int,
) -> Composed:
    """The shape of the covariates, then the outcomes' laws, put right for the covariates that the flow draws."""
    from site_agent.models.outcome_laws.calibrated import calibrated
    from site_agent.models.outcome_laws.laws import fit_laws

    drawn = Composed(first=Beside(columns=tuple(apart), inner=smooth), second=shaped)
    generator = np.random.default_rng(seed)
    laws = calibrated(fit_laws(x, outcomes), x, outcomes, to_covariates=drawn.forward, generator=generator)
    return Composed(first=shaped, second=laws)


def _last(x: Array, outcomes: PlannedOutcomes, check: Array) -> Array:
    """Log-density of the outcomes of records, given everything else, under laws fitted to others."""
    from site_agent.models.outcome_laws.laws import fit_laws

    z, log_det = fit_laws(x, outcomes).inverse_with_log_det(check)
    b = z[:, list(outcomes.drawn)]
    return np.asarray(log_det - 0.5 * (b**2).sum(axis=1) - 0.5 * b.shape[1] * math.log(2 * math.pi))


def _paired(differences: Array) -> tuple[float, float]:
    """Mean of paired gains, nats, and its standard error."""
    return float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))


def _clear(differences: Array, gate: float) -> bool:
    """True if the mean paired gain exceeds zero by more than `gate` standard errors."""
    gain, se = _paired(differences)
    return gain > gate * se


def _known(
    shared: Bijection,
    settings: FlowSettings,
    seed: int,
    integers: tuple[int, ...],
    carried: int | None,
    outcomes: PlannedOutcomes | None,
) -> tuple[MaskedLayer, ...]:
    """Masked layers with what a shared flow knows beyond margins, levels and correlations; none if it knows nothing.

    Its layers cannot be taken as they are: they stand behind other margins than a site's own. So rows are drawn from
    it, and layers are trained on these, with margins, levels and whitening of the rows' own. Those of the site's
    records then take their place.
    """
    generator = np.random.default_rng(seed)
    rows = shared.forward(generator.standard_normal((_DRAWN, shared.d)))
    apart = (carried,) if outcomes is None else outcomes.drawn
    own = [j for j in range(shared.d) if j not in apart]
    try:
        _require_trainable(rows, integers)
        inner = shape_of(rows, settings, integers, carried, outcomes).inverse(rows)[:, own]
        y = whitening(inner).inverse(inner)
        trainer = Trainer(len(own), settings, seed)
        found = trainer.search(y[_DRAWN // 4 :], y[: _DRAWN // 4], 256, FitClock(None, 0.0))
    except TrainingRefusal:
        return ()  # rows that no flow can be fitted to say nothing about the site's records
    return trainer.layers() if _clear(found.start - found.best, settings.gate) else ()


def fit_seconds(n: int, d: int, settings: FlowSettings | Training) -> float:
    """Upper bound of the time of `fit_flow` on this machine.

    A few training steps are timed on made-up numbers of the same shape, and multiplied by the steps of a run that
    never stops early. Early stopping makes most runs shorter.

    Raises: ParameterError, if n or d is not positive.
    """
    _require_positive(n, d)
    settings = FlowSettings.of(settings)
    train, batch = settings.sizes(n)
    seconds = 0.5 + 2e-6 * n * d
    if settings.flows and settings.epochs:
        noise = np.random.default_rng(0).standard_normal((batch, d))
        step = math.inf
        with session_of(settings):
            trainer = Trainer(d, settings, 0)
            trainer.run(noise, batch, 3, 1, None, final=False)
            for _ in range(5):  # the fastest: other programs do not take part in each
                began = time.monotonic()
                trainer.run(noise, batch, 2, 1, None, final=False)
                step = min(step, (time.monotonic() - began) / 2)
        # Reading the held-back records costs about a third of a step per batch of them.
        per_epoch = (max(1, train // batch) + (n - train) / batch / 3) * (
            _searched(n, settings) if settings.refit else 1.0
        )
        passes = 1 + (settings.refit and settings.validation > 0)
        seconds += step * (per_epoch * settings.epochs * passes + settings.final_steps)
        if settings.transfer and n < TRANSFER_BELOW:
            # Once more on the records, and once on the rows that are drawn from the shared flow.
            seconds += step * settings.epochs * (per_epoch + _DRAWN / batch)
    return seconds


def fit_megabytes(n: int, d: int, settings: FlowSettings | Training) -> float:
    """Upper bound of the arrays of `fit_flow`, beside what a process takes that has none.

    Raises: ParameterError, if n or d is not positive.
    """
    _require_positive(n, d)
    return 8e-6 * n * d * 20 + 8e-6 * min(n, 8192) * settings.hidden * (settings.layers + 2)


def _require_positive(n: int, d: int) -> None:
    if n < 1 or d < 1:
        raise ParameterError("n and d must be at least 1", given=f"n = {n}, d = {d}")


# -- what cannot be fitted ----------------------------------------------------------------------------------------
def _require_trainable(x: Array, integers: tuple[int, ...]) -> None:
    n, d = x.shape
    if n < smallest_n(d):
        raise TrainingRefusal(
            f"a flow of {d} columns needs at least {smallest_n(d)} records",
            given=f"{n}",
            next_step="Wait for more records, or ask the study lead for a plan with fewer columns.",
        )
    bad = np.flatnonzero(~np.isfinite(x).all(axis=0))
    if bad.size:
        raise TrainingRefusal(
            "encoded records must be finite",
            given=f"{np.count_nonzero(~np.isfinite(x[:, bad[0]]))} that are not, in column {bad[0]}",
            next_step="Run `site-agent data check`.",
        )
    for j in set(range(d)) - set(integers):
        if np.ptp(x[:, j]) <= 1e-12 * max(1.0, float(np.abs(x[:, j]).max())):
            # A levelled column that has one level is fine: its fractions vary. A smooth one has no density.
            raise TrainingRefusal(
                "every continuous column must vary",
                given=f"one value throughout in column {j}",
                next_step="Ask the study lead to leave the column out, or to declare its levels.",
            )
