"""The look of a site as it is sent to it: all that decides what its records add, in plain numbers.

What the model expects of the records (`ModelAt.chance`, `SumLook.psi`) stays with whoever pools: a site needs none of
it. Whatever numbers stand here, `SumLook.rows` and `VectorLook.rows` hold the plan's bounds, and are finite: whether a
look is refused is decided by its own numbers, never by a record's, which a site's absence would tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import is_whole
from shared.errors import ParameterError, SchemaRefusal
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.outcomes import Binary, Outcome, Survival
from shared.mechanisms.secure_sum.influences import Bounds, ModelAt, SumLook
from shared.mechanisms.secure_sum.variants import VariantModel
from shared.mechanisms.secure_sum.vectors import VectorBounds, VectorLook

__all__ = ["AnySentLook", "SentLook", "SentModel", "SentVectorLook", "is_within", "look_sent", "read_look", "sent"]

Numbers = tuple[float, ...]
Rows = tuple[Numbers, ...]
_MOST = 1e12
_APART = 1e-100
"""Least distance of two times of a look: far below any study's unit, and the slopes between them are finite."""


@dataclass(frozen=True, kw_only=True)
class SentModel:
    """Parameters of a site's public model, as sent: enough for `ModelAt.level`, and a part of every look.

    Args:
        level: constant added to the linear predictor; 0 before the site has sent its level.
        centre, scale: (p,). effects: (predictors, 1 + p).
        edges, cumulative: (intervals + 1,) of a survival outcome's baseline; empty for a binary outcome.
        base: log odds of a binary outcome where the predictor is 0; 0 for survival.
    """

    level: float
    centre: Numbers
    scale: Numbers
    effects: Rows
    edges: Numbers
    cumulative: Numbers
    base: float
    later: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            rows = value if item.type == "Rows" else (value,) if item.type == "Numbers" else ((value,),)
            if not (isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows)):
                raise SchemaRefusal(f"a look's {item.name} must be numbers", given="another")
            if not all(type(one) is float and abs(one) <= _MOST for row in rows for one in row):
                raise SchemaRefusal(f"a look's {item.name} must be finite numbers", given="others")
        if not all(one > 0 for one in self.scale):
            raise SchemaRefusal("a look's scales must be positive", given="others")

    @staticmethod
    def _sent_form(model: ModelAt, level: float) -> dict[str, Any]:
        outcome = model.outcome
        if not isinstance(outcome, Survival | Binary):
            raise ParameterError("a secure sum's outcome must be survival or yes or no", given="another")
        return {
            "level": float(level),
            "centre": _listed(model.centre),
            "scale": _listed(model.scale),
            "effects": _rows(model.effects),
            "edges": _listed(outcome.edges) if isinstance(outcome, Survival) else (),
            "cumulative": _listed(outcome.cumulative) if isinstance(outcome, Survival) else (),
            "base": float(outcome.level) if isinstance(outcome, Binary) else 0.0,
        }

    def _model(self, n: int, design: Design, along: Rows, means: Rows) -> ModelAt:
        """The model at a site of n records, if it is one at the plan's figures.

        Raises: SchemaRefusal: of another number of columns or intervals, or times that do not ascend.
        """
        survival = design.spec.outcome == "survival"
        predictors = 2 if survival else 1
        shape = [(len(self.centre), design.p), (len(self.scale), design.p), *((len(row), design.p) for row in along)]
        shape += [(len(self.effects), predictors), *((len(row), 1 + design.p) for row in self.effects)]
        shape += [(len(self.cumulative), len(self.edges))]
        shape += [(len(row), max(len(self.edges) - 1, 1)) for row in means]
        if any(have != need for have, need in shape) or (len(self.edges) > 1) is not survival:
            raise SchemaRefusal("a look must have the plan's columns and intervals", given="others")
        edges, cumulative = np.array(self.edges), np.array(self.cumulative)
        steps, rises = np.diff(edges), np.diff(cumulative)
        if survival and not ((steps >= _APART).all() and (rises >= 0).all() and cumulative[0] == 0):
            raise SchemaRefusal("a look's times must ascend, and its hazards add up from 0", given="others")
        outcome: Outcome = Binary(self.base)
        if survival:
            outcome = Survival(edges=edges, cumulative=cumulative, staying=np.zeros(len(edges)), events=0.5)
        return ModelAt(
            n=n,
            outcome=outcome,
            centre=np.array(self.centre),
            scale=np.array(self.scale),
            effects=np.array(self.effects),
            chance=np.zeros((0, 0)),
        )

    def to_canonical(self) -> dict[str, Any]:
        """Plain JSON values."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value if isinstance(value, float) else [list(one) if isinstance(one, tuple) else one for one in value]
            for name, value in body.items()
            if name not in self.later or value
        }

    @classmethod
    def from_canonical(cls, body: Any) -> Self:
        """The reverse of `to_canonical`. Raises: SchemaRefusal."""
        names = {item.name for item in fields(cls)}
        if not (isinstance(body, Mapping) and names - {*cls.later} <= body.keys() <= names):
            raise SchemaRefusal(f"a look must have {', '.join(sorted(names))}", given="others")
        return cls(**{name: _frozen(value) for name, value in body.items()})


@dataclass(frozen=True, kw_only=True)
class SentLook(SentModel):
    """Parameters of a site's look at one coefficient, as sent: enough for `SumLook.rows`.

    Args:
        start: the coefficient at which the influences of all sites are evaluated, per unit of the bounds.
        weight, cut: a and C.
        along: (p,). means: (intervals,).
    """

    start: float
    weight: float
    cut: float
    along: Numbers
    means: Numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.cut >= 0 and 0 <= self.weight <= 1):
            raise SchemaRefusal("a look's cut and weight must not be negative", given="others")

    @staticmethod
    def of(look: SumLook, start: float, level: float) -> SentLook:
        """Parameters of a look to be sent. An infinite cut is sent as the bounds' largest, which is equivalent."""
        return SentLook(
            **SentModel._sent_form(look, level),
            start=float(start),
            weight=float(look.weight),
            cut=min(float(look.cut), look.bounds.most),
            along=_listed(look.along),
            means=_listed(look.means),
        )

    def look(self, n: int, bounds: Bounds, design: Design) -> SumLook:
        """The look at a site of n records, if it is one at the plan's figures.

        Raises: SchemaRefusal: of another number of columns or intervals, or times that do not ascend.
        """
        return SumLook(
            **vars(self._model(n, design, (self.along,), (self.means,))),
            bounds=bounds,
            along=np.array(self.along),
            means=np.array(self.means),
            psi=np.zeros((0, 0)),
            weight=self.weight,
            cut=self.cut,
        )

    def within(self, bounds: Bounds) -> bool:
        """True if weight and cut are within the plan's bounds."""
        return self.cut <= bounds.most and self.weight * self.cut <= bounds.reach * (1 + 1e-9)

    @property
    def common(self) -> tuple[Any, ...]:
        """Parameters that must be the same for all sites of a sum."""
        return (self.start,)


@dataclass(frozen=True, kw_only=True)
class SentVectorLook(SentModel):
    """Parameters of a site's look at several coefficients, as sent: enough for `VectorLook.rows`.

    Args:
        start: (coefficients,) at which the influences of all sites are evaluated, each per unit of the bounds.
        weights: (coefficients,) a. whitening: (coefficients, coefficients) M.
        along: (coefficients, p). means: (coefficients, intervals).
        offset: (coefficients,) c; empty for 0, as plans from before `SecureSumPlan.held` have it.
        variant_effects: (variants, 1 + p) of the variants' own models. variant_cumulative: (variants, intervals + 1)
            of their baselines; empty for a binary outcome.
    """

    start: Numbers
    weights: Numbers
    whitening: Rows
    along: Rows
    means: Rows
    offset: Numbers = ()
    variant_effects: Rows = ()
    variant_cumulative: Rows = ()
    later: ClassVar[tuple[str, ...]] = ("offset", "variant_effects", "variant_cumulative")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= one <= 1 for one in self.weights):
            raise SchemaRefusal("a look's weights must be from 0 to 1", given="others")
        sizes = {len(self.start), len(self.whitening), len(self.along), len(self.means), *map(len, self.whitening)}
        sizes |= {len(self.offset)} if self.offset else set()
        if sizes != {len(self.weights)}:
            raise SchemaRefusal("a look must be along as many coefficients in all its parts", given="others")
        even = ({len(row) for row in rows} for rows in (self.along, self.means, self.effects, self.variant_effects))
        baselines = {len(row) for row in self.variant_cumulative}
        if any(len(one) > 1 for one in even) or not baselines <= {len(self.edges)} - {0}:
            raise SchemaRefusal("a look's rows must be of one length", given="others")

    @staticmethod
    def of(look: VectorLook, start: Sequence[float], level: float) -> SentVectorLook:
        """Parameters of a look to be sent."""
        return SentVectorLook(
            **SentModel._sent_form(look, level),
            start=tuple(float(one) for one in start),
            weights=_listed(look.weights),
            whitening=_rows(look.whitening),
            along=_rows(look.along),
            means=_rows(look.means),
            offset=_listed(look.offset) if look.offset.any() else (),
            variant_effects=tuple(_listed(one.effects) for one in look.models),
            variant_cumulative=tuple(_listed(one.cumulative) for one in look.models if one.cumulative.size),
        )

    def look(self, n: int, bounds: VectorBounds, design: Design) -> VectorLook:
        """The look at a site of n records, if it is one at the plan's figures.

        Raises: SchemaRefusal: of another number of coefficients, variants, columns or intervals, times that do not
            ascend, or about a point that the plan does not allow.
        """
        if not self._of_as_many(bounds):
            raise SchemaRefusal("a look must be along the plan's coefficients", given="others")
        if not bounds.allows(self.offset):
            raise SchemaRefusal("a look must draw records in about a point that the plan allows", given="another")
        return VectorLook(
            **vars(self._model(n, design, self.along, self.means)),
            models=self._models(bounds, design),
            bounds=bounds,
            along=np.array(self.along),
            means=np.array(self.means),
            psi=np.zeros((len(self.weights), 0, 0)),
            weights=np.array(self.weights),
            whitening=np.array(self.whitening),
            offset=np.array(self.offset or np.zeros(len(self.weights))),
        )

    def within(self, bounds: VectorBounds) -> bool:
        """True if there is one entry per coefficient, the whitening has full rank, and the plan allows the offset."""
        if not (self._of_as_many(bounds) and bounds.allows(self.offset)):
            return False
        return bool(np.linalg.matrix_rank(np.array(self.whitening)) == bounds.coefficients)

    def _of_as_many(self, bounds: VectorBounds) -> bool:
        return len(self.weights) == bounds.coefficients and len(self.variant_effects) == len(bounds.variants)

    def _models(self, bounds: VectorBounds, design: Design) -> tuple[VariantModel, ...]:
        baselines = self.variant_cumulative or ((),) * len(self.variant_effects)
        shape = [(len(row), 1 + design.p) for row in self.variant_effects]
        shape += [(len(row), len(self.edges)) for row in baselines]
        if len(baselines) != len(self.variant_effects) or any(have != need for have, need in shape):
            raise SchemaRefusal("a look's variants must have the plan's columns and intervals", given="others")
        if any(row[0] != 0 or (np.diff(row) < 0).any() for row in baselines if row):
            raise SchemaRefusal("hazards of a look's variants must add up from 0", given="others")
        given = zip(bounds.variants, self.variant_effects, baselines, strict=True)
        return tuple(
            VariantModel(variant=one, effects=np.array(effects), cumulative=np.array(cumulative))
            for one, effects, cumulative in given
        )

    @property
    def common(self) -> tuple[Any, ...]:
        """Parameters that must be the same for all sites of a sum."""
        return self.start, self.whitening


AnySentLook = SentLook | SentVectorLook


def read_look(body: Any) -> AnySentLook:
    """A look of one coefficient or of several, as `to_canonical` wrote it. Raises: SchemaRefusal."""
    several = isinstance(body, Mapping) and "whitening" in body
    return SentVectorLook.from_canonical(body) if several else SentLook.from_canonical(body)


def sent(look: SumLook | VectorLook, start: Sequence[float], level: float) -> AnySentLook:
    """Parameters of a look, to be sent to its site.

    Args:
        start: the coefficients at which the influences are evaluated, each per unit of the bounds.
        level: constant added to the linear predictor.
    """
    if isinstance(look, VectorLook):
        return SentVectorLook.of(look, start, level)
    return SentLook.of(look, start[0], level)


def look_sent(sent: AnySentLook, n: int, bounds: Bounds | VectorBounds, design: Design) -> SumLook | VectorLook:
    """The look at a site of n records. Raises: SchemaRefusal: another than the plan's."""
    if isinstance(sent, SentVectorLook) and isinstance(bounds, VectorBounds):
        return sent.look(n, bounds, design)
    if isinstance(sent, SentLook) and isinstance(bounds, Bounds):
        return sent.look(n, bounds, design)
    raise SchemaRefusal("a look must be along the plan's coefficients", given="others")


def is_within(sent: AnySentLook, bounds: Bounds | VectorBounds) -> bool:
    """True if a look is of the kind of the plan's bounds and within them."""
    if isinstance(sent, SentVectorLook):
        return isinstance(bounds, VectorBounds) and sent.within(bounds)
    return isinstance(bounds, Bounds) and sent.within(bounds)


def _listed(values: NDArray[np.float64]) -> Numbers:
    return tuple(float(value) for value in values)


def _rows(values: NDArray[np.float64]) -> Rows:
    return tuple(_listed(row) for row in values)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    whole = is_whole(value) and abs(value) <= _MOST
    return float(value) if whole or (isinstance(value, float) and math.isfinite(value)) else value
