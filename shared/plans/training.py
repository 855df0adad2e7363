"""Settings of a site's flow fit, fixed by the plan: the network, DP-SGD, and published figures to start from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from shared.mechanisms.base import must

__all__ = ["PrivateTraining", "Reference", "Training"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a site's flow fit; fixed by the plan so that no site chooses it by looking.

    Args:
        flows: masked autoregressive layers.
        hidden: units of each hidden layer.
        layers: hidden layers in each masked network.
        epochs: most passes over the records.
        learning_rate: Adam's first step size, annealed by a cosine.
        validation: share of records held back for early stopping.
        patience: epochs without improvement before training stops.
        margins: ``normal_scores`` maps every margin to N(0, 1) first; ``none`` leaves it to the flow.
        family: ``affine`` layers, or ``spline``: rational-quadratic ones, slower to train.
        spectral: no weight matrix has a singular value above 1. A restraint on the fit, of which no guarantee is made.
        search: of plans that were signed when a site could try the networks of the paper's grid; it gained nothing on
            cohorts, for 11 times the time (tests/benchmarks/results/lni_search.json). No site fits under it any more.
        transfer: a site of few records begins at what the plan's `flow` knows, and keeps that only where held-back
            records gain by it; with posture ``local`` and a flow that several sites have trained.
        outcomes: ``last`` draws what the plan names as outcomes (`shared.plans.outcomes`) given all other columns, and
            the flow is of those; with postures ``local`` and ``holdout``. ``joint`` leaves all columns to one flow.
        engine: ``auto`` trains affine layers by our own passes in numpy, and splines by nflows; ``nflows`` trains all
            layers by nflows on torch, several times slower. Both take the same steps from the same start; a site needs
            the extra ``torch`` for nflows. With postures ``local`` and ``holdout``.
    """

    flows: int = 4
    hidden: int = 48
    layers: int = 1
    epochs: int = 60
    learning_rate: float = 3e-3
    validation: float = 0.25
    patience: int = 12
    margins: Literal["normal_scores", "none"] = "normal_scores"
    family: Literal["affine", "spline"] = "affine"
    spectral: bool = False
    search: bool = False
    transfer: bool = False
    outcomes: Literal["joint", "last"] = "joint"
    engine: Literal["auto", "nflows"] = "auto"
    later: ClassVar[tuple[str, ...]] = ("search", "transfer", "outcomes", "engine")

    def __post_init__(self) -> None:
        for name, most in (("flows", 20), ("hidden", 1024), ("layers", 4), ("epochs", 10_000), ("patience", 10_000)):
            value = getattr(self, name)
            must(isinstance(value, int) and 1 <= value <= most, f"training.{name} must be in 1..{most}", value)
        must(0 < self.learning_rate <= 1, "training.learning_rate must be in (0, 1]", self.learning_rate)
        must(0 < self.validation < 0.9, "training.validation must be in (0, 0.9)", self.validation)
        must(self.margins in ("normal_scores", "none"), "training.margins is unknown", self.margins)
        must(self.outcomes in ("joint", "last"), "training.outcomes must be 'joint' or 'last'", repr(self.outcomes))
        must(self.family in ("affine", "spline"), "training.family must be 'affine' or 'spline'", self.family)
        must(not self.spectral or self.family == "affine", "training.spectral must go with affine layers", self.family)
        must(self.engine in ("auto", "nflows"), "training.engine must be 'auto' or 'nflows'", repr(self.engine))
        must(not self.spectral or self.engine == "auto", "training.spectral must go with engine 'auto'", self.engine)
        for name in ("spectral", "search", "transfer"):
            must(isinstance(getattr(self, name), bool), f"training.{name} must be true or false", getattr(self, name))

    def require_one_network(self, returning: str = "refresh") -> None:
        """Refuse a plan that lets a site choose among networks: it is read, and nothing is made by it any more.

        Args:
            returning: the plan's waves. Under a version without it, sites whose waves go through an earlier flow could
                not go on: its receipts would say of that flow that it was fitted without a search.
        """
        must(
            not self.search,
            "training.search must be left out: no site tries several networks any more",
            "true",
            "The study lead writes the network into another version of the plan."
            if returning == "refresh"
            else "Ask the study lead for a version of the plan without it, as long as no site has released; after that "
            "for a new study, as those sites go on through the flow that they have, under a plan with it alone.",
        )

    @property
    def by_nflows(self) -> bool:
        """True if nflows takes the training steps, on torch."""
        return self.engine == "nflows" or self.family == "spline"


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """DP-SGD, all of it fixed in advance (posture ``private``).

    Args:
        rate: probability with which each person enters a step's batch (Poisson).
        noise_multiplier: standard deviation of a step's noise, in units of `clip`.
        steps: number of steps; there is no early stopping.
        clip: norm C to which each person's gradient is clipped.
    """

    rate: float
    noise_multiplier: float
    steps: int
    clip: float = 1.0

    def __post_init__(self) -> None:
        must(0 < self.rate <= 1, "private.rate must be in (0, 1]", self.rate)
        for name in ("noise_multiplier", "clip"):
            value = getattr(self, name)
            must(0 < value < math.inf, f"private.{name} must be positive", value)
        # More is no better, and beyond it noise and clip would not fit on one grid.
        must(self.noise_multiplier <= 100, "private.noise_multiplier must be at most 100", self.noise_multiplier)
        must(1 <= self.steps <= 100_000, "private.steps must be in 1..100000", self.steps)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Public knowledge of a column (a published table, a census): the start of postures that may not read records.

    Args:
        mean: in the column's own unit; of a binary or event column, its share of ones.
        sd: standard deviation, in the same unit; not used for binary and event columns.
    """

    mean: float
    sd: float = 0.0

    def __post_init__(self) -> None:
        must(math.isfinite(self.mean), "a reference mean must be finite", self.mean)
        must(0 <= self.sd < math.inf, "a reference sd must be non-negative", self.sd)
