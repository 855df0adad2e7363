"""Settings of a flow fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.plans.plan import Training

__all__ = ["FlowSettings", "Progress"]

Array = NDArray[np.float64]
Progress = Callable[[str, float, float | None], None]
"""(stage, share done in [0, 1], seconds left or None): stages are `margins`, `train`, `refit`, `done`."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """Settings of a flow fit.

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
        if self.spectral and not self.by_hand:
            raise ParameterError("spectral must be false where nflows trains", given="true")

    @property
    def by_hand(self) -> bool:
        """True if the fast path (`site_agent.models.fast_flow`) applies."""
        return self.engine == "auto" and self.family == "affine"

    @classmethod
    def of(cls, given: FlowSettings | Training) -> FlowSettings:
        """A plan's `[training]` as settings: every other field of it has the same name here.

        Raises: PlanRefusal: it was signed when a site could try several networks, which none does any more.
        """
        if isinstance(given, FlowSettings):
            return given
        given.require_one_network()
        own = asdict(given)
        own.pop("search")
        own.pop("outcomes")  # which columns those are is told beside: `fit_flow`
        return cls(**own)

    def sizes(self, n: int) -> tuple[int, int]:
        """(records trained on while others are held back, records per step) for n records."""
        train = n - round(self.validation * n)
        return train, min(train, self.batch or int(np.clip(train // 12, 64, 512)))
