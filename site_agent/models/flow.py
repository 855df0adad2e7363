"""Training the site's flow: records in, plain arrays out.

Five decisions, each measured before it was taken.

* **Start at the answer for Gaussian data.** Margins and levels are fitted in closed form, the columns are whitened by
  the Cholesky factor of their covariance, and every masked layer starts as the identity. With no step taken the flow
  is already the Gaussian maximum likelihood. It is left only if held-back records say so: their mean gain must exceed
  twice its paired standard error. On Gaussian data a network that is trained regardless is worse than no network.
* **Refit on everything.** Held-back records choose the number of steps; the released flow takes that many on all of
  them, and then a few at a small rate.
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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shared.base.randomness import Noise
from shared.errors import ParameterError, TrainingRefusal
from shared.flows.affine import AffineAutoregressiveFlow, MaskedLayer
from shared.flows.base import Bijection
from shared.flows.chain import Beside, Composed
from shared.flows.levels import LevelModel, Levels
from shared.flows.margins import Margins
from shared.flows.strata import Strata, StratumModel
from shared.plans.outcomes import PlannedOutcomes
from shared.plans.plan import Training
from site_agent.models.fast_flow import Adam, FusedFlow, first_layers

__all__ = [
    "PAPERS_GRID",
    "TRANSFER_BELOW",
    "Engine",
    "FittedFlow",
    "FlowReport",
    "FlowSettings",
    "Progress",
    "Trainer",
    "estimate_cost",
    "fit_flow",
    "network_of",
    "refit_flow",
    "smallest_n",
]

Array = NDArray[np.float64]
Records = NDArray[np.floating[Any]]
SPLINE_BINS = 8
PAPERS_GRID: tuple[dict[str, Any], ...] = tuple(
    {"hidden": hidden, "layers": layers, "flows": flows}
    for flows in (2, 3, 4, 5)
    for layers in (1, 2)
    for hidden in (32, 64, 128)
)
"""The networks among which the paper's section 4 chooses."""
TRANSFER_BELOW = 1500
"""Records from which a site learns all it can by itself: no shared flow is tried there."""
_DRAWN = 4000
"""Rows drawn from a shared flow, to learn from them what it knows."""
Progress = Callable[[str, float, float | None], None]
"""(stage, share done in [0, 1], seconds left or None): stages are `search`, `margins`, `train`, `refit`, `done`."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """How a flow is fitted.

    Args:
        flows: masked autoregressive layers.
        hidden: units of each hidden layer.
        layers: hidden layers in each masked network.
        epochs: most passes over the records.
        batch: records per step; None takes n/12, between 64 and 512.
        learning_rate: Adam's first step size, annealed to 2 % of it by a cosine over `epochs`.
        validation: share of records held back for early stopping; 0 takes exactly `epochs` passes, without a gate.
        patience: epochs without improvement before training stops.
        gate: the Gaussian start is left only if the held-back gain exceeds this many standard errors.
        refit: train again on all records, for the chosen number of steps.
        final_steps: steps at `final_rate` after that.
        final_rate: their step size.
        margins: ``normal_scores`` maps every margin to N(0, 1) first; ``none`` leaves it to the flow.
        modelled_levels: a dequantised column with at most so many levels is modelled given the others
            (`shared.flows.levels.Levels`); 0 models none. Only with ``normal_scores``.
        activation: ``tanh`` or ``relu``.
        spectral: every weight matrix is held to a largest singular value of at most 1, after each step (Theorem 2). The
            networks are then 1-Lipschitz; f⁻¹ is not, as whitening alone expands. No guarantee here rests on it.
        family: ``affine`` layers, or ``spline``: rational-quadratic ones with `SPLINE_BINS` bins.
        search: try the networks of `PAPERS_GRID` in the place of flows, hidden and layers, and take the one under which
            held-back records are likeliest. The best of many looks better than it is: the gate is raised for it.
        transfer: begin at what a shared flow knows of how columns depend on one another, where one is given, records
            are fewer than `TRANSFER_BELOW`, and held-back records say so.
        engine: ``auto`` takes `site_agent.models.fast_flow` where it applies (affine) and nflows elsewhere; ``nflows``
            takes the reference always. Both take the same steps.
        threads: torch threads while nflows trains; what was set before is restored.
    Raises: ParameterError.
    """

    flows: int = 4
    hidden: int = 48
    layers: int = 1
    epochs: int = 60
    batch: int | None = None
    learning_rate: float = 3e-3
    validation: float = 0.25
    patience: int = 12
    gate: float = 2.0
    refit: bool = True
    final_steps: int = 60
    final_rate: float = 1e-4
    margins: Literal["normal_scores", "none"] = "normal_scores"
    modelled_levels: int = 12
    activation: Literal["tanh", "relu"] = "tanh"
    spectral: bool = False
    family: Literal["affine", "spline"] = "affine"
    search: bool = False
    transfer: bool = False
    engine: Literal["auto", "nflows"] = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        floors = {"flows": 0, "hidden": 1, "layers": 1, "epochs": 0, "patience": 1, "final_steps": 0, "threads": 1}
        for name, least in (*floors.items(), ("modelled_levels", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ParameterError(f"{name} must be a whole number of at least {least}", given=repr(value))
        if self.batch is not None and (isinstance(self.batch, bool) or self.batch < 1):
            raise ParameterError("batch must be a whole number of at least 1", given=repr(self.batch))
        for name in ("learning_rate", "final_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ParameterError(f"{name} must be in (0, 1]", given=repr(getattr(self, name)))
        if not 0 <= self.validation < 0.9:
            raise ParameterError("validation must be in [0, 0.9)", given=repr(self.validation))
        if not 0 <= self.gate < math.inf:
            raise ParameterError("gate must be non-negative", given=repr(self.gate))
        if self.margins not in ("normal_scores", "none"):
            raise ParameterError("margins must be 'normal_scores' or 'none'", given=repr(self.margins))
        if self.activation not in ("tanh", "relu"):
            raise ParameterError("activation must be 'tanh' or 'relu'", given=repr(self.activation))
        if self.family not in ("affine", "spline"):
            raise ParameterError("family must be 'affine' or 'spline'", given=repr(self.family))
        if self.engine not in ("auto", "nflows"):
            raise ParameterError("engine must be 'auto' or 'nflows'", given=repr(self.engine))
        if self.search and not (self.validation and self.epochs):
            raise ParameterError("validation and epochs must be positive for a search", given="0")
        if self.spectral and not self.by_hand:
            raise ParameterError("spectral must be false where nflows trains", given="true")

    @property
    def by_hand(self) -> bool:
        """Whether the fast path applies."""
        return self.engine == "auto" and self.family == "affine"

    @classmethod
    def of(cls, given: FlowSettings | Training) -> FlowSettings:
        """A plan's `[training]` as settings: every other field of it has the same name here."""
        if isinstance(given, FlowSettings):
            return given
        own = asdict(given)
        own.pop("outcomes")  # which columns those are is told beside: `fit_flow`
        return cls(**own)

    def sizes(self, n: int) -> tuple[int, int]:
        """(records trained on while others are held back, records per step) for n records."""
        train = n - round(self.validation * n)
        return train, min(train, self.batch or int(np.clip(train // 12, 64, 512)))


@dataclass(frozen=True, kw_only=True)
class FlowReport:
    """What happened in training: kept at the site.

    Attributes:
        n: records.
        d: columns.
        held_back: records that chose the stopping point; 0 if it was given.
        epochs: passes chosen; 0 means that the Gaussian start was kept.
        epochs_run: passes tried.
        batch: records per step.
        start_nll: mean negative log-likelihood of held-back records at the Gaussian start, nats.
        best_nll: the same at the chosen epoch. Where outcomes are drawn last, both are of the covariates alone.
        gain: mean paired gain over the start, nats per record.
        gain_se: its standard error.
        transferred: whether the layers began at those of a shared flow; `epochs` then counts from there.
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
    settings, began = FlowSettings.of(settings), time.monotonic()
    seed = int(rng.generator.integers(2**62)) if settings.search else None
    if seed is not None:
        settings = _searched(x, settings, seed, progress, integer_columns, carried, began, outcomes)
    generator = rng.generator if seed is None else np.random.default_rng(seed)
    return _fit(x, settings, generator, None, progress, integer_columns, carried, shared, outcomes)


def _searched(
    x: Array,
    settings: FlowSettings,
    seed: int,
    progress: Progress | None,
    integer_columns: Sequence[int],
    carried: int | None,
    began: float,
    outcomes: PlannedOutcomes | None,
) -> FlowSettings:
    """The settings with the grid's best network: all are tried on one split, and of equal ones the smallest wins."""
    tries = [replace(settings, **one, search=False, gate=0.0, refit=False) for one in PAPERS_GRID]
    sizes = [one.flows * one.layers * one.hidden for one in tries]
    ranked: list[tuple[float, int, int]] = []
    for k, one in enumerate(tries):
        given = (None, None, integer_columns, carried, None, outcomes)
        found = _fit(x, one, np.random.default_rng(seed), *given, laws=False).report
        ranked.append((round(found.best_nll or 0.0, 9), sizes[k], k))
        if progress is not None:
            done = sum(sizes[: k + 1]) / (sum(sizes) + max(sizes))
            progress("search", done, (time.monotonic() - began) * (1 - done) / done)
    # As unlikely to be passed by chance by the best of all as the plain gate is by one.
    gate = -float(special.ndtri(special.ndtr(-settings.gate) / len(tries)))
    return replace(tries[min(ranked)[2]], gate=gate, refit=settings.refit)


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
    laws: bool = True,
) -> FittedFlow:
    """`laws` false leaves the outcomes' latents as they are: what networks are compared by."""
    began = time.monotonic()
    x = np.array(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 1:
        raise ParameterError("records must be a matrix", given=f"shape {x.shape}")
    n, d = x.shape
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
    apart = ((carried,) if carried is not None else ()) if outcomes is None else outcomes.drawn
    own = [j for j in range(d) if j not in apart]
    clock = _FitClock(progress, began)
    clock.tell("margins", 0.0, None)

    seed = int(generator.integers(2**62))
    order = generator.permutation(n)
    size, batch = settings.sizes(n)
    held = n - size if settings.epochs and settings.flows and passes is None else 0
    train, check = order[held:], order[:held]
    per_epoch = max(1, size // batch)

    start_nll = best_nll = gain = gain_se = None
    known: tuple[MaskedLayer, ...] = ()
    epochs = epochs_run = (settings.epochs if passes is None else passes) if settings.flows else 0
    with _session(settings):
        if held:
            shaped = _shape(x[train], settings, integers, carried, outcomes)
            inner_train, inner_check = shaped.inverse(x[train])[:, own], shaped.inverse(x[check])[:, own]
            start = _whitening(inner_train)
            trainer = Trainer(len(own), settings, seed)
            found = trainer.search(start.inverse(inner_train), start.inverse(inner_check), batch, clock)
            # The log-determinant of margins, levels and whitening is the same on both sides of the comparison.
            offset = _log_det(shaped, x[check]) + _log_det(start, inner_check)
            differences = found.start - found.best
            gain = float(differences.mean())
            gain_se = float(differences.std(ddof=1) / math.sqrt(held))
            start_nll = float((found.start - offset).mean())
            best_nll = float((found.best - offset).mean())
            epochs_run, epochs = found.epochs_run, found.epochs
            if gain <= settings.gate * gain_se:
                epochs, best_nll = 0, start_nll
            if settings.transfer and shared is not None and n < TRANSFER_BELOW:
                known = _known(shared, settings, seed, integers, carried, outcomes)
            if known and shared is not None:
                drawn_last = np.zeros(held)
                if outcomes is not None:
                    drawn_last = _last(x[train], outcomes, x[check])
                tuner = Trainer(len(own), settings, seed, known)
                tuned = tuner.search(
                    start.inverse(inner_train), start.inverse(inner_check), batch, _FitClock(None, began)
                )
                value = float((tuned.best - offset).mean())
                over = found.start - tuned.best
                # Better than the shared flow as it is, than what the records say by themselves, and than the Gaussian.
                least = min(best_nll, float(-(shared.log_prob(x[check]) - drawn_last).mean()))
                if value < least and _clear(over, settings.gate):
                    gain, gain_se = float(over.mean()), float(over.std(ddof=1) / math.sqrt(held))
                    epochs_run, epochs, best_nll, trainer = tuned.epochs_run, tuned.epochs, value, tuner
                else:
                    known = ()

        everything = settings.refit or not held
        rows = np.arange(n) if everything else train
        shaped = _shape(x[rows], settings, integers, carried, outcomes)
        inner = shaped.inverse(x[rows])[:, own]
        start = _whitening(inner)
        layers: tuple[MaskedLayer, ...] = ()
        if epochs or known:
            if everything:
                trainer = Trainer(len(own), settings, seed, known)
                # As many steps as the held-back records chose, not as many passes: a pass over all records is longer.
                trainer.run(start.inverse(inner), batch, epochs * per_epoch, per_epoch, clock)
            layers = trainer.layers()
    smooth = AffineAutoregressiveFlow(mean=start.mean, scale=start.scale, layers=layers, activation=settings.activation)
    second = shaped
    if outcomes is not None and laws:
        from site_agent.models.calibrated_laws import calibrated
        from site_agent.models.outcome_laws import fit_laws

        drawn = Composed(first=Beside(columns=apart, inner=smooth), second=shaped)
        generator = np.random.default_rng(seed)
        found_laws = calibrated(
            fit_laws(x[rows], outcomes), x[rows], outcomes, to_covariates=drawn.forward, generator=generator
        )
        second = Composed(first=shaped, second=found_laws)
    flow = Composed(first=Beside(columns=apart, inner=smooth) if apart else smooth, second=second)
    clock.tell("done", 1.0, 0.0)
    return FittedFlow(
        flow=flow,
        report=FlowReport(
            n=n,
            d=d,
            held_back=held,
            epochs=epochs,
            epochs_run=epochs_run,
            batch=batch,
            start_nll=start_nll,
            best_nll=best_nll,
            gain=gain,
            gain_se=gain_se,
            seconds=time.monotonic() - began,
            transferred=bool(known),
        ),
    )


def _last(x: Array, outcomes: PlannedOutcomes, check: Array) -> Array:
    """Log-density of the outcomes of records, given everything else, under laws fitted to others."""
    from site_agent.models.outcome_laws import fit_laws

    z, log_det = fit_laws(x, outcomes).inverse_with_log_det(check)
    b = z[:, list(outcomes.drawn)]
    return np.asarray(log_det - 0.5 * (b**2).sum(axis=1) - 0.5 * b.shape[1] * math.log(2 * math.pi))


def _clear(differences: Array, gate: float) -> bool:
    """Whether paired gains are above zero by more standard errors than chance would make them."""
    return bool(differences.mean() > gate * differences.std(ddof=1) / math.sqrt(len(differences)))


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
        inner = _shape(rows, settings, integers, carried, outcomes).inverse(rows)[:, own]
        y = _whitening(inner).inverse(inner)
        trainer = Trainer(len(own), settings, seed)
        found = trainer.search(y[_DRAWN // 4 :], y[: _DRAWN // 4], 256, _FitClock(None, 0.0))
    except TrainingRefusal:
        return ()  # rows that no flow can be fitted to say nothing about the site's records
    return trainer.layers() if _clear(found.start - found.best, settings.gate) else ()


def estimate_cost(n: int, d: int, settings: FlowSettings | Training) -> tuple[float, float]:
    """What `fit_flow` will need at most on this machine: (seconds, megabytes).

    A few training steps are timed on made-up numbers of the same shape, and multiplied by the steps of a run that
    never stops early. Early stopping makes most runs shorter. Megabytes are this process's peak memory so far, plus
    the arrays of the fit.

    Raises: ParameterError, if n or d is not positive.
    """
    import resource

    if n < 1 or d < 1:
        raise ParameterError("n and d must be at least 1", given=f"n = {n}, d = {d}")
    settings = FlowSettings.of(settings)
    if settings.search:
        plain = replace(settings, search=False)
        tried = [estimate_cost(n, d, replace(plain, refit=False, final_steps=0, **one)) for one in PAPERS_GRID]
        last = estimate_cost(n, d, replace(plain, **PAPERS_GRID[-1]))
        return sum(seconds for seconds, _ in tried) + last[0], max(megabytes for _, megabytes in (*tried, last))
    train, batch = settings.sizes(n)
    seconds = 0.5 + 2e-6 * n * d
    if settings.flows and settings.epochs:
        noise = np.random.default_rng(0).standard_normal((batch, d))
        with _session(settings):
            trainer = Trainer(d, settings, 0)
            trainer.run(noise, batch, 3, 1, None, final=False)
            timed = 10
            began = time.monotonic()
            trainer.run(noise, batch, timed, 1, None, final=False)
            step = (time.monotonic() - began) / timed
        # Reading the held-back records costs about a third of a step per batch of them.
        per_epoch = max(1, train // batch) + (n - train) / batch / 3
        passes = 1 + (settings.refit and settings.validation > 0)
        seconds += step * (per_epoch * settings.epochs * passes + settings.final_steps)
        if settings.transfer and n < TRANSFER_BELOW:
            # Once more on the records, and once on the rows that are drawn from the shared flow.
            seconds += step * settings.epochs * (per_epoch + _DRAWN / batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    arrays = 8e-6 * n * d * 24 + 8e-6 * min(n, 8192) * settings.hidden * (settings.layers + 2)
    return seconds, peak + arrays


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


def _whitening(y: Array) -> AffineAutoregressiveFlow:
    """The Gaussian of maximum likelihood, by Cholesky, with a ridge that only guards the arithmetic."""
    mean = y.mean(axis=0)
    spread = y.std(axis=0)
    covariance = np.atleast_2d(np.cov(y, rowvar=False, ddof=0))
    with np.errstate(all="ignore"):
        correlation = covariance / np.outer(spread, spread)
    if not np.isfinite(correlation).all() or np.linalg.eigvalsh(correlation)[0] < 1e-8:
        raise TrainingRefusal(
            "no column may be a function of the others",
            given="a singular covariance",
            next_step="Ask the study lead to drop a column that repeats another (a sum, a unit conversion, a copy).",
        )
    scale = np.linalg.cholesky(covariance + 1e-10 * np.diag(spread**2))
    return AffineAutoregressiveFlow(mean=mean, scale=np.tril(scale))


def _log_det(part: Any, x: Array) -> Array:
    return np.asarray(part.inverse_with_log_det(x)[1])


# -- margins and levels ---------------------------------------------------------------------------------------------
def _shape(
    x: Array,
    settings: FlowSettings,
    integers: tuple[int, ...],
    carried: int | None = None,
    outcomes: PlannedOutcomes | None = None,
) -> Composed:
    """Everything between the smooth space of the flow and the encoded records: levels, strata, margins.

    Outcomes that are drawn last are left as they are, and nothing reads them.
    """
    d = x.shape[1]
    apart = () if outcomes is None else outcomes.drawn
    integers = tuple(j for j in integers if j not in apart)
    if carried is not None:
        return _shape_given(x, settings, integers, carried)
    if settings.margins == "none":
        return Composed(first=Levels(d=d, models=()), second=Margins(knots=(None,) * d))
    counts = {j: max(1, int(np.floor(x[:, j].max())) + 1) for j in integers}
    modelled = [j for j in integers if counts[j] <= settings.modelled_levels]
    stratified = _stratified(x, modelled, {j: counts[j] for j in modelled}, (*integers, *apart))
    knots: list[tuple[Array, Array] | None] = []
    for j in range(d):
        if j in modelled or j in stratified or j in apart:
            knots.append(None)
        elif j in counts:
            knots.append(_level_knots(x[:, j], counts[j]))
        else:
            knots.append(_score_knots(x[:, j]))
    margins = Margins(knots=tuple(knots))
    y = margins.inverse(x)
    smooth = [j for j in range(d) if j not in modelled and j not in stratified and j not in apart]
    models: list[LevelModel] = []
    # Rarest last: an event is drawn given everything else.
    for j in sorted(modelled, key=lambda j: (-_entropy(y[:, j]), j)):
        given = (*smooth, *(model.column for model in models))
        read = tuple(counts[c] if c in modelled else 0 for c in given)
        models.append(_level_model(y, j, counts[j], given, read))
    strata = [_stratum_model(y, j, level, counts[level], tuple(smooth)) for j, level in stratified.items()]
    return Composed(
        first=Levels(d=d, models=tuple(models)),
        second=Composed(first=Strata(d=d, models=tuple(strata)), second=margins),
    )


def _shape_given(x: Array, settings: FlowSettings, integers: tuple[int, ...], carried: int) -> Composed:
    """The same, of all columns given one that stays as it is: strata of it first, then levels given it and the rest."""
    d = x.shape[1]
    counts = {j: max(1, int(np.floor(x[:, j].max())) + 1) for j in integers}
    modelled = [j for j in integers if counts[j] <= settings.modelled_levels and j != carried]
    smooth = [j for j in range(d) if j not in modelled and j != carried]
    # A column of many levels has its staircase taken away first; what is left is smooth, and another in each stratum.
    knots = tuple(_level_knots(x[:, j], counts[j]) if j in smooth and j in counts else None for j in range(d))
    margins = Margins(knots=knots)
    y = margins.inverse(x)
    strata = Strata(d=d, models=tuple(_stratum_model(y, j, carried, counts[carried], ()) for j in smooth))
    y = strata.inverse(y)
    models: list[LevelModel] = []
    for j in sorted(modelled, key=lambda j: (-_entropy(y[:, j]), j)):
        given = (*smooth, carried, *(model.column for model in models))
        read = tuple(counts[c] if c in (carried, *modelled) else 0 for c in given)
        models.append(_level_model(y, j, counts[j], given, read))
    return Composed(first=Levels(d=d, models=tuple(models)), second=Composed(first=strata, second=margins))


_STRATUM = 30
"""Fewest records of a level that get a margin of their own."""
_APART = 0.25
"""Least Kolmogorov distance between a column within a level and outside it for the level to become a stratum."""


def _stratified(x: Array, modelled: Sequence[int], counts: dict[int, int], integers: tuple[int, ...]) -> dict[int, int]:
    """Smooth column -> the levelled column that changes its law most, where one does: a time by its event."""
    out = {}
    for j in set(range(x.shape[1])) - set(integers):
        far = {level: _apart(x[:, j], np.floor(x[:, level]), counts[level]) for level in modelled}
        if far and max(far.values()) > _APART:
            out[j] = max(far, key=lambda level: (far[level], -level))
    return dict(sorted(out.items()))


def _apart(column: Array, level: Array, count: int) -> float:
    """Largest Kolmogorov distance between the records of one level and all others."""
    order = np.argsort(column, kind="stable")
    most = 0.0
    for k in range(count):
        inside = level[order] == k
        size = int(inside.sum())
        if min(size, inside.size - size) >= _STRATUM:
            distance = np.abs(np.cumsum(inside) / size - np.cumsum(~inside) / (inside.size - size)).max()
            most = max(most, float(distance))
    return most


def _stratum_model(y: Array, column: int, level_column: int, levels: int, given: tuple[int, ...]) -> StratumModel:
    """A margin per level and, where a level has records enough, a ridge regression of its score."""
    stratum = np.clip(np.floor(y[:, level_column]), 0, levels - 1).astype(np.int64)
    features = np.column_stack([np.ones(len(y)), y[:, list(given)]])
    knots: list[tuple[Array, Array]] = []
    coefficients, spread = np.zeros((levels, features.shape[1])), np.ones(levels)
    for k in range(levels):
        rows = stratum == k
        enough = int(rows.sum()) >= _STRATUM and np.unique(y[rows, column]).size >= 8
        knots.append(_score_knots(y[rows, column] if enough else y[:, column]))
        if enough:
            score = Margins(knots=(knots[-1],)).inverse(y[rows, column][:, None])[:, 0]
            gram = features[rows].T @ features[rows] + np.diag([0.0, *(4.0,) * len(given)])
            coefficients[k] = np.linalg.solve(gram, features[rows].T @ score)
            spread[k] = max(0.05, float((score - features[rows] @ coefficients[k]).std()))
        elif not given:
            # A stratum too small for a law of its own has the law of all, moved by as much as its records can say.
            score = Margins(knots=(knots[-1],)).inverse(y[rows, column][:, None])[:, 0]
            coefficients[k, 0] = score.sum() / (len(score) + _STRATUM)
    return StratumModel(
        column=column,
        level_column=level_column,
        given=given,
        knots=tuple(knots),
        coefficients=coefficients,
        spread=spread,
    )


def _entropy(column: Array) -> float:
    share = np.unique(np.floor(column), return_counts=True)[1] / len(column)
    return round(float(-(share * np.log(share)).sum()), 12)


def _score_knots(column: Array) -> tuple[Array, Array]:
    """Normal scores of a smooth column at about n/20 of its values, 128 at most: more would copy records."""
    value, count = np.unique(column, return_counts=True)
    n = len(column)
    middle = (np.cumsum(count) - 0.5 * count) / n
    most = int(np.clip(n // 20, 8, 128))
    grid = special.ndtr(np.linspace(special.ndtri(middle[0]), special.ndtri(middle[-1]), most))
    even = np.linspace(middle[0], middle[-1], most)
    # Half the knots even in probability (the bulk), half even in score (the tails).
    pick = np.unique(np.searchsorted(middle, np.concatenate([grid[::2], even[::2]])).clip(0, value.size - 1))
    pick = np.unique(np.concatenate([[0], pick, [value.size - 1]]))
    scores, values = special.ndtri(middle[pick]), value[pick]
    # The tails go on with the slope of the whole half, not of the last two values: those may nearly be equal, and a
    # later record just outside would get a latent of thousands.
    centre = int(np.searchsorted(middle, 0.5).clip(1, value.size - 2)) if value.size > 2 else 0
    half, middle_score = value[centre], special.ndtri(middle[centre])
    reach = value[-1] - value[0]
    for end, sign in ((0, -1.0), (-1, 1.0)):
        slope = abs(scores[end] - middle_score) / max(abs(values[end] - half), 1e-3 * reach) or 1 / reach
        outer = (scores[end] + sign * slope * reach, values[end] + sign * reach)
        scores = np.concatenate([[outer[0]], scores] if sign < 0 else [scores, [outer[0]]])
        values = np.concatenate([[outer[1]], values] if sign < 0 else [values, [outer[1]]])
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(values) > 0)])
    return scores[keep], values[keep]


def _level_knots(column: Array, count: int) -> tuple[Array, Array]:
    """Knots at every integer, so that each level keeps its frequency, and between them where the score curves."""
    level = np.clip(np.floor(column), 0, count - 1).astype(np.int64)
    mass = np.bincount(level, minlength=count) + 1e-6 * len(column) / count
    share = np.concatenate([[0.0], np.cumsum(mass) / mass.sum()])
    between = special.ndtr(np.linspace(-4.5, 4.5, 73))
    at = np.unique(np.concatenate([share[1:-1], between]))
    at = at[(at > 0) & (at < 1)]
    values = np.concatenate([[0.0], np.interp(at, share, np.arange(count + 1.0)), [float(count)]])
    # Beyond score ±8 there is nothing: every draw falls inside the levels.
    scores = np.concatenate([[-8.0], special.ndtri(at), [8.0]])
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(values) > 1e-12)])
    keep[-1] = True
    # A level that these records lack goes on along a line of slope 1, not along the last, nearly vertical piece.
    scores = np.concatenate([[-9.0], scores[keep], [9.0]])
    return scores, np.concatenate([[-1.0], values[keep], [count + 1.0]])


def _level_model(y: Array, column: int, levels: int, given: tuple[int, ...], counts: tuple[int, ...]) -> LevelModel:
    """Multinomial logistic regression with a small ridge: by Newton's steps, or by L-BFGS where those would be large.

    Lines are hardly penalised, so that the fitted law reproduces the sample's associations; hinges are, so that they
    bend only where records ask for it. Hinges are nearly collinear: L-BFGS needs hundreds of passes for what Newton
    does in ten.
    """
    if levels == 1:
        return LevelModel(column=column, given=(), counts=(), coefficients=np.zeros((1, 1)))
    n = len(y)
    features = LevelModel.features(y, given, counts)
    level = np.clip(np.floor(y[:, column]), 0, levels - 1).astype(np.int64)
    target = np.zeros((n, levels))
    target[np.arange(n), level] = 1.0
    penalty = [1e-3]
    for count in counts:
        penalty += [0.5] * (count - 1) if count else [0.1, *(1.0,) * len(LevelModel.HINGES)]
    ridge = np.array(penalty)[:, None] / n

    def shares(beta: Array) -> tuple[float, Array]:
        """(penalised mean negative log-likelihood, shares of the levels)."""
        logits = features @ beta
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(axis=1)
        value = (np.log(total) - (logits * target).sum(axis=1)).mean() + 0.5 * (ridge * beta**2).sum()
        return float(value), odds / total[:, None]

    def loss(flat: Array) -> tuple[float, Array]:
        beta = flat.reshape(features.shape[1], levels)
        value, share = shares(beta)
        return value, (features.T @ (share - target) / n + ridge * beta).ravel()

    first = np.zeros((features.shape[1], levels))
    first[0] = np.log((target.sum(axis=0) + 0.5) / (n + 0.5 * levels))
    if first.size <= _NEWTON:
        coefficients = _newton(features, target, ridge, first, shares)
    else:
        from scipy import optimize

        found = optimize.minimize(
            loss, first.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-7}
        )
        coefficients = found.x.reshape(first.shape)
    if not np.isfinite(coefficients).all():
        raise TrainingRefusal(
            "the law of a levelled column must have an estimate",
            given=f"none in column {column}",
            next_step="Ask the study lead to merge rare levels.",
        )
    return LevelModel(column=column, given=given, counts=counts, coefficients=coefficients)


_NEWTON = 600
"""Most coefficients for which the matrix of second derivatives is formed."""


def _newton(
    features: Array, target: Array, ridge: Array, beta: Array, shares: Callable[[Array], tuple[float, Array]]
) -> Array:
    """The minimum of a strictly convex loss, by damped Newton steps from `beta`."""
    n, levels = target.shape
    width = features.shape[1]
    curvature = np.empty((levels, width, levels, width))
    value, share = shares(beta)
    for _ in range(100):
        gradient = features.T @ (share - target) / n + ridge * beta
        for k in range(levels):
            for j in range(k + 1):
                weight = share[:, k] * ((k == j) - share[:, j]) / n
                curvature[k, :, j, :] = curvature[j, :, k, :] = features.T @ (features * weight[:, None])
            curvature[k, :, k, :] += np.diag(ridge[:, 0])
        step = np.linalg.solve(curvature.reshape(levels * width, -1), gradient.T.ravel()).reshape(levels, width).T
        fall = float((gradient * step).sum())
        if not fall > 1e-14:
            break
        size = 1.0
        while size > 1e-6:
            now, other = shares(beta - size * step)
            if now <= value - 1e-4 * size * fall:
                break
            size /= 2
        else:
            break
        beta, value, share = beta - size * step, now, other
    return beta


# -- training ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Found:
    start: Array
    best: Array
    epochs: int
    epochs_run: int


class Engine(Protocol):
    """What trains masked layers in single precision: records are (n, d), whitened."""

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


def _engine(layers: tuple[MaskedLayer, ...], settings: FlowSettings) -> Engine:
    if not settings.by_hand:
        from site_agent.models.reference_flow import NflowsFlow

        return NflowsFlow(layers, activation=settings.activation)
    return _Fused(layers, settings.activation, settings.spectral)


def _session(settings: FlowSettings) -> AbstractContextManager[None]:
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
        self.engine = _engine(begin or layers, settings)

    def search(self, train: Array, check: Array, batch: int, clock: _FitClock) -> _Found:
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
        return _Found(start=start, best=best, epochs=chosen, epochs_run=epoch)

    def run(
        self, train: Array, batch: int, steps: int, per_epoch: int, clock: _FitClock | None, *, final: bool = True
    ) -> None:
        """Exactly so many steps along the same schedule, then the final ones."""
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


class _FitClock:
    """Progress of the whole fit from the progress of its parts."""

    SPANS: ClassVar[dict[str, tuple[float, float]]] = {"train": (0.02, 0.6), "refit": (0.6, 1.0)}

    def __init__(self, progress: Progress | None, began: float) -> None:
        self.progress, self.began = progress, began

    def tell(self, stage: str, done: float, left: float | None) -> None:
        if self.progress is not None:
            self.progress(stage, done, left)

    def share(self, stage: str, part: float) -> None:
        low, high = self.SPANS[stage]
        done = low + (high - low) * part
        self.tell(stage, done, (time.monotonic() - self.began) * (1 - done) / done)
