"""The look of a site as it is sent to it: all that decides what its records add, in plain numbers.

What the model expects of the records (`SumLook.chance`, `SumLook.psi`) stays with whoever pools: a site needs none of
it. Whatever numbers stand here, `SumLook.rows` holds the plan's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError, SchemaRefusal
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.outcomes import Binary, Outcome, Survival
from shared.mechanisms.secure_sum.influences import Bounds, SumLook

__all__ = ["SentLook"]

Numbers = tuple[float, ...]
_MOST = 1e12


@dataclass(frozen=True, kw_only=True)
class SentLook:
    """What `SumLook.rows` and `SumLook.charges` are made with.

    Args:
        start: the coefficient that all sites are looked at with, per unit of the bounds.
        level: what was added to the linear predictor: 0 before the site has told its level.
        weight, cut: a and C.
        centre, scale, along: (p,). effects: (predictors, 1 + p). means: (intervals,).
        edges, cumulative: (intervals + 1,) of a survival outcome's baseline; empty of yes or no.
        base: log odds of a yes-or-no outcome where the predictor is 0; 0 of survival.
    """

    start: float
    level: float
    weight: float
    cut: float
    centre: Numbers
    scale: Numbers
    effects: tuple[Numbers, ...]
    along: Numbers
    means: Numbers
    edges: Numbers
    cumulative: Numbers
    base: float

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            rows = value if item.name == "effects" else (value,) if item.type == "Numbers" else ((value,),)
            if not (isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows)):
                raise SchemaRefusal(f"a look's {item.name} must be numbers", given="another")
            if not all(type(one) is float and abs(one) <= _MOST for row in rows for one in row):
                raise SchemaRefusal(f"a look's {item.name} must be finite numbers", given="others")
        if not (self.cut >= 0 and 0 <= self.weight <= 1 and all(one > 0 for one in self.scale)):
            raise SchemaRefusal("a look's cut, weight and scales must not be negative", given="others")

    @staticmethod
    def of(look: SumLook, start: float, level: float) -> SentLook:
        """What is sent of a look. A cut without an end is sent as the bounds' most, which is the same."""
        outcome = look.outcome
        if not isinstance(outcome, Survival | Binary):
            raise ParameterError("a secure sum's outcome must be survival or yes or no", given="another")
        return SentLook(
            start=float(start),
            level=float(level),
            weight=float(look.weight),
            cut=min(float(look.cut), look.bounds.most),
            centre=_listed(look.centre),
            scale=_listed(look.scale),
            effects=tuple(_listed(row) for row in look.effects),
            along=_listed(look.along),
            means=_listed(look.means),
            edges=_listed(outcome.edges) if isinstance(outcome, Survival) else (),
            cumulative=_listed(outcome.cumulative) if isinstance(outcome, Survival) else (),
            base=float(outcome.level) if isinstance(outcome, Binary) else 0.0,
        )

    def look(self, n: int, bounds: Bounds, design: Design) -> SumLook:
        """The look at a site of n records, if it is one at the plan's figures.

        Raises: SchemaRefusal: of another number of columns or intervals, or times that do not ascend.
        """
        survival = design.spec.outcome == "survival"
        predictors = 2 if survival else 1
        shape = [(len(self.centre), design.p), (len(self.scale), design.p), (len(self.along), design.p)]
        shape += [(len(self.effects), predictors), *((len(row), 1 + design.p) for row in self.effects)]
        shape += [(len(self.cumulative), len(self.edges)), (len(self.means), max(len(self.edges) - 1, 1))]
        if any(have != need for have, need in shape) or (len(self.edges) > 1) is not survival:
            raise SchemaRefusal("a look must have the plan's columns and intervals", given="others")
        edges, cumulative = np.array(self.edges), np.array(self.cumulative)
        if survival and not ((np.diff(edges) > 0).all() and (np.diff(cumulative) >= 0).all() and cumulative[0] == 0):
            raise SchemaRefusal("a look's times must ascend, and its hazards add up from 0", given="others")
        outcome: Outcome = Binary(self.base)
        if survival:
            outcome = Survival(edges=edges, cumulative=cumulative, staying=np.zeros(len(edges)), events=0.5)
        return SumLook(
            n=n,
            bounds=bounds,
            outcome=outcome,
            centre=np.array(self.centre),
            scale=np.array(self.scale),
            effects=np.array(self.effects),
            along=np.array(self.along),
            means=np.array(self.means),
            chance=np.zeros((0, 0)),
            psi=np.zeros((0, 0)),
            weight=self.weight,
            cut=self.cut,
        )

    def to_canonical(self) -> dict[str, Any]:
        """Plain JSON values."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value if isinstance(value, float) else [list(one) if isinstance(one, tuple) else one for one in value]
            for name, value in body.items()
        }

    @staticmethod
    def from_canonical(body: Any) -> SentLook:
        """The reverse of `to_canonical`. Raises: SchemaRefusal."""
        names = {item.name for item in fields(SentLook)}
        if not isinstance(body, Mapping) or body.keys() != names:
            raise SchemaRefusal(f"a look must have {', '.join(sorted(names))}", given="others")
        return SentLook(**{name: _frozen(value) for name, value in body.items()})


def _listed(values: NDArray[np.float64]) -> Numbers:
    return tuple(float(value) for value in values)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST
    return float(value) if whole or (isinstance(value, float) and math.isfinite(value)) else value
