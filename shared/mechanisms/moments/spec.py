"""Settings of a moments release in a plan: its columns, ε, the shares of the blocks, and the noise scale of each.

Why these levels hold is proved in `shared.mechanisms.moments.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from shared.base.canonical import closed
from shared.errors import PlanRefusal
from shared.mechanisms.moments.margins import MarginShape
from shared.plans.dictionary import Column
from shared.privacy import calibration
from shared.privacy.accountant import Composition, Gaussian

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SQUARE",
    "Factor",
    "MomentsSpec",
    "Shares",
    "block_lengths",
    "event",
    "grids_of",
    "sigma_of",
]

Kind = Literal["survival", "binary", "count", "linear"]
Sensitivity = Literal["joint", "blocks"]
ScoreKind = Literal["influence", "residual"]
VERSION = 1
"""Grows whenever the same released numbers would mean something else."""
MOST_COVARIATES = 15
LATTICE = 1024
"""Steps of a unit of block 3's columns."""
SQUARE = 5 / 8
"""Weight of a square beside a product, in block 3."""
STEPS = 2**22
"""Diameter of blocks 2 and 4 in steps of their grid: every record is rounded, and there are many records."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of μ² of the four blocks; they sum to 1.

    >>> Shares(histograms=0.1, moments=0.7, products=0.2).score
    0.0
    """

    histograms: float
    moments: float
    products: float
    score: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0.0 if field.name == "score" else 0.01
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
                raise PlanRefusal(f"the share of {field.name} must be in [{least:g}, 1]", given=repr(value)[:40])
            object.__setattr__(self, field.name, float(value))
        if abs(sum(self.parts) - 1) > 1e-9:
            raise PlanRefusal("the shares of the blocks must sum to 1", given=f"{sum(self.parts):.6g}")

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """In the order of the blocks."""
        return self.histograms, self.moments, self.products, self.score


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A nominal column and the binary ones that stand for its levels but the first, in order.

    >>> import pandas as pd
    >>> stage = Column(name="stage", kind="nominal", levels=("I", "II", "III"))
    >>> one = Factor(column=stage, names=("stage_2", "stage_3"))
    >>> one.coded(pd.DataFrame({"stage": [0.0, 2.0]}))[["stage_2", "stage_3"]].to_numpy().tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """

    column: Column
    names: tuple[str, ...]

    def coded(self, checked: pd.DataFrame) -> pd.DataFrame:
        """A table of level codes, as `Dictionary.check` returns, with the binary columns beside them."""
        if self.column.name not in checked.columns:
            return checked
        code = checked[self.column.name]
        levels = {name: (code == k).astype(float).where(code.notna()) for k, name in enumerate(self.names, start=1)}
        return checked.assign(**levels)


@dataclass(frozen=True, kw_only=True)
class MomentsSpec:
    """One moments release, as the study plan fixes it before any record is read.

    Args:
        outcome: ``survival`` (columns of kinds time and event), ``binary``, ``count`` or ``linear`` (of integers too).
        responses: the outcome's column; for survival the time and its event.
        covariates: 1 to 15 columns: numeric, binary or ordered; of a nominal one the binary ones of its levels.
        exposures: covariates whose effect matters most: measured with more of the noise budget.
        declared: covariates whose coefficient gets a score of its own (block 4).
        epsilon, delta: of the whole release, per patient.
        shares: of the blocks; None takes 10/70/20 %, with a declared coefficient 10/35/15/40 %.
        bins: of a numeric column's histogram. time_bins: of the follow-up.
        horizon: public end of follow-up, in the time's unit; later times count as censored there. None: the bound.
        score_clip: least C of block 4, in standard deviations of a. score: what it sums; ``residual`` is from before.
        sensitivity: how far replacing a person is taken to move the release: in all blocks together (``joint``), or as
            far in each of the ``blocks`` as in that one alone, by which plans were charged before.
        margins: what a numeric column's histogram is read as: `shared.mechanisms.moments.margins.fitted_margin`. The
            later blocks look through it, so site and coordinator must read it alike.
    Raises: PlanRefusal.

    >>> spec = MomentsSpec(outcome="binary", responses=("died",), covariates=("age", "sex"), epsilon=1.0, delta=1e-6)
    >>> MomentsSpec.from_canonical(spec.to_canonical()) == spec
    True
    """

    outcome: Kind
    responses: tuple[str, ...]
    covariates: tuple[str, ...]
    exposures: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    epsilon: float
    delta: float
    shares: Shares | None = None
    bins: int = 32
    time_bins: int = 16
    horizon: float | None = None
    score_clip: float = 1.0
    sensitivity: Sensitivity = "joint"
    margins: MarginShape = "cells"
    score: ScoreKind = "influence"

    def __post_init__(self) -> None:
        def must(holds: bool, rule: str, given: object) -> None:
            if not holds:
                raise PlanRefusal(f"a moments release: {rule}", given=repr(given)[:60])

        def real(value: object, low: float, high: float) -> bool:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and low <= value <= high  # type: ignore[operator]

        for name in ("responses", "covariates", "exposures", "declared"):
            value = getattr(self, name)
            plain = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
            must(plain, f"{name} must be a list of column names", value)
            must(len(set(value)) == len(value), f"{name} must name no column twice", len(value))
        must(self.outcome in get_args(Kind), f"outcome must be one of {', '.join(get_args(Kind))}", self.outcome)
        wanted = 2 if self.outcome == "survival" else 1
        must(len(self.responses) == wanted, f"the outcome {self.outcome} has {wanted} columns", len(self.responses))
        must(1 <= len(self.covariates) <= MOST_COVARIATES, "it must have 1 to 15 covariates", len(self.covariates))
        must(not set(self.covariates) & set(self.responses), "a covariate must not be the outcome", self.responses)
        for name in ("exposures", "declared"):
            must(set(getattr(self, name)) <= set(self.covariates), f"{name} must be covariates", getattr(self, name))
        must(real(self.epsilon, 1e-4, 100), "epsilon must be in [0.0001, 100]", self.epsilon)
        must(real(self.delta, 1e-15, 1e-2), "delta must be in [1e-15, 0.01]", self.delta)
        for name, low, high in (("bins", 8, 128), ("time_bins", 4, 64)):
            value = getattr(self, name)
            must(type(value) is int and low <= value <= high, f"{name} must be a whole number in {low}..{high}", value)
        must(self.horizon is None or self.outcome == "survival", "only survival has a horizon", self.horizon)
        must(self.horizon is None or real(self.horizon, 1e-9, 1e9), "the horizon must be positive", self.horizon)
        known = self.sensitivity in get_args(Sensitivity)
        must(known, "sensitivity must be joint or blocks", self.sensitivity)
        must(self.score in get_args(ScoreKind), "score must be influence or residual", self.score)
        must(self.margins in get_args(MarginShape), "margins must be cells or lognormal", self.margins)
        must(real(self.score_clip, 0.25, 4), "score_clip must be in [0.25, 4]", self.score_clip)
        must(self.shares is None or isinstance(self.shares, Shares), "shares must be those of the blocks", self.shares)
        for name in ("epsilon", "delta", "score_clip", "horizon"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        if self.shares is None:
            usual = Shares(histograms=0.10, moments=0.70, products=0.20)
            scored = Shares(histograms=0.10, moments=0.35, products=0.15, score=0.40)
            object.__setattr__(self, "shares", scored if self.declared else usual)
        must((self.split.score > 0) == bool(self.declared), "a score has a share if and only if one is declared", "")

    @property
    def split(self) -> Shares:
        """The shares, given or usual."""
        assert self.shares is not None
        return self.shares

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        out: dict[str, Any] = {"mechanism": "moments", "version": VERSION}
        for field in fields(self):
            value = getattr(self, field.name)
            out[field.name] = list(value) if isinstance(value, tuple) else value
        out["shares"] = {field.name: getattr(self.split, field.name) for field in fields(Shares)}
        return out

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> MomentsSpec:
        """Read plain values; an unknown key, or another version, is refused."""
        names = {field.name for field in fields(cls)}
        closed(given, {*names, "mechanism", "version"}, where="[moments]", refusal=PlanRefusal)
        if given.get("mechanism", "moments") != "moments" or given.get("version", VERSION) != VERSION:
            raise PlanRefusal(
                f"a moments release must be of version {VERSION}",
                given=repr(given.get("version"))[:40],
                next_step="Use the software that the plan was written for.",
            )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k in names}
        shares = values.get("shares")
        if isinstance(shares, Mapping):
            known = {field.name for field in fields(Shares)}
            closed(shares, known, where="[moments.shares]", refusal=PlanRefusal)
            if not {"histograms", "moments", "products"} <= set(shares):
                raise PlanRefusal("shares must name histograms, moments and products", given=f"{sorted(shares)}"[:60])
            values["shares"] = Shares(**shares)
        try:
            return cls(**values)
        except TypeError:
            raise PlanRefusal("a moments release must have all its fields", given=f"{sorted(given)}"[:60]) from None

    @property
    def tables(self) -> int:
        """Number of histograms."""
        return len(self.covariates) + 1


def event(spec: MomentsSpec) -> Gaussian | Composition:
    """The price, known before anything runs: `epsilon` at `delta`.

    One Gaussian mechanism that is as private as all blocks together; for ``blocks`` one event per block.

    >>> from shared.privacy.accountant import epsilon
    >>> spec = MomentsSpec(outcome="binary", responses=("died",), covariates=("age", "sex"), epsilon=1.0, delta=1e-6)
    >>> round(epsilon(event(spec), 1e-6), 6), event(spec).sensitivity
    (1.0, 1.0)
    """
    if spec.sensitivity == "joint":
        return Gaussian(sigma=1 / _mu(spec.epsilon, spec.delta), sensitivity=1.0)
    return Composition(
        events=tuple(
            Gaussian(sigma=sigma, sensitivity=length)
            for sigma, length, share in zip(_sigmas(spec), block_lengths(spec), spec.split.parts, strict=True)
            if share > 0
        )
    )


@lru_cache(maxsize=64)
def _mu(epsilon: float, delta: float) -> float:
    # A hair less than the whole, so that the sum of the parts is not above it by a rounding error.
    return (1 - 1e-10) / calibration.calibrate(Gaussian, epsilon, delta, sensitivity=1.0).sigma


def block_lengths(spec: MomentsSpec) -> tuple[float, float, float, float]:
    """Sensitivity of each block by itself, in units of its noise."""
    p = len(spec.covariates)
    # Of one column there is no product, and its square alone moves, by SQUARE at most.
    squares = SQUARE**2 if spec.sensitivity == "blocks" or p == 1 else 2.0**-19
    return _up(math.sqrt(2 * spec.tables)), 1.0, _up(math.sqrt(4 * (p * p // 4) + p * squares)), 1.0


def _sigmas(spec: MomentsSpec) -> tuple[float, ...]:
    """The noise of each block: infinite where it has no share."""
    mu, parts = _mu(spec.epsilon, spec.delta), spec.split.parts
    if spec.sensitivity == "joint":
        mu /= math.sqrt(sum(parts))  # the parts sum to 1 but for rounding
    return tuple(
        length / (mu * math.sqrt(share)) if share > 0 else math.inf
        for length, share in zip(block_lengths(spec), parts, strict=True)
    )


def _up(value: float) -> float:
    """A root that was rounded down would be no bound."""
    return value if value == 1 else math.nextafter(value, math.inf)


def grids_of(spec: MomentsSpec) -> tuple[float, ...]:
    """Grid of each block: whole counts, and the steps that the whole numbers of the others stand for."""
    return (1.0, 1 / STEPS, float(LATTICE) ** -2, 1 / STEPS)[: 4 if spec.declared else 3]


def sigma_of(spec: MomentsSpec, block: int) -> float:
    """Standard deviation of a block's noise: of block 1 in persons, of the others in the unit of `grids_of`' steps."""
    return _sigmas(spec)[block]
