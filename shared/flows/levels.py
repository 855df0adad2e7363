"""Columns with few levels: each has a law of its own given the other columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.base import HALF_LOG_2PI, Array, ArrayBijection, Arrays, as_matrix, frozen_array, require_arrays

__all__ = ["LevelModel", "Levels"]


_AT_ONCE = 8192
_EDGE = 8.0
"""Normal score at which the outermost level begins: Φ(−8) = 6e-16, so no draw falls outside the levels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelModel:
    """The law of one dequantised column given others: a multinomial logistic regression.

    Args:
        given: the other columns it reads: smooth ones as they are, levelled ones by their level.
        counts: per column of `given`, 0 for a smooth column, else its number of levels.
        coefficients: (features, levels), in the order of `features`; logits are features @ coefficients.
    """

    HINGES: ClassVar[tuple[float, ...]] = (-1.5, -0.75, 0.0, 0.75, 1.5)
    REACH: ClassVar[float] = 4.0

    column: int
    given: tuple[int, ...]
    counts: tuple[int, ...]
    coefficients: Array

    def __post_init__(self) -> None:
        coefficients = frozen_array(self.coefficients, "coefficients", 2)
        if coefficients.shape[1] < 1 or coefficients.shape[0] != self.width(self.counts):
            raise SchemaRefusal("a level model must have one coefficient per feature and level")
        if len(self.given) != len(self.counts) or self.column in self.given or min(self.counts, default=0) < 0:
            raise SchemaRefusal("a level model must read other columns only")
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def levels(self) -> int:
        """Number of levels of the column."""
        return int(self.coefficients.shape[1])

    @classmethod
    def width(cls, counts: tuple[int, ...]) -> int:
        """Number of features: an intercept, a line and hinges per smooth column, all levels but one per levelled."""
        return 1 + sum(count - 1 if count else 1 + len(cls.HINGES) for count in counts)

    @classmethod
    def features(cls, y: Array, given: tuple[int, ...], counts: tuple[int, ...]) -> Array:
        """(n, width): what the regression reads. Smooth columns are held within ±4 so that no tail extrapolates."""
        out = np.empty((len(y), cls.width(counts)), order="F")  # a column is written at once
        out[:, 0], place = 1.0, 1
        for column, count in zip(given, counts, strict=True):
            value = y[:, column]
            if count:
                level = np.clip(np.floor(value), 0, count - 1)
                for k in range(1, count):
                    out[:, place + k - 1] = level == k
                place += count - 1
            else:
                value = np.clip(value, -cls.REACH, cls.REACH)
                out[:, place] = value
                for k, knot in enumerate(cls.HINGES, start=place + 1):
                    np.maximum(value - knot, 0.0, out=out[:, k])
                place += 1 + len(cls.HINGES)
        return out

    def cumulative(self, y: Array) -> Array:
        """(n, levels + 1): P(level < k | given), k = 0 … levels."""
        if len(y) > 2 * _AT_ONCE:  # what many rows are predicted from is several times as large as they are
            return np.concatenate([self.cumulative(y[k : k + _AT_ONCE]) for k in range(0, len(y), _AT_ONCE)])
        logits = self.features(y, self.given, self.counts) @ self.coefficients
        from scipy import special

        share = special.softmax(logits, axis=1)
        # No level vanishes: a width of 1e-12 keeps the map strictly increasing.
        share = np.maximum(share, 1e-12)
        share /= share.sum(axis=1, keepdims=True)
        out = np.zeros((len(y), self.levels + 1))
        np.cumsum(share, axis=1, out=out[:, 1:])
        out[:, -1] = 1.0
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Levels(ArrayBijection):
    r"""Dequantised columns by their law given the others: y_j = level + fraction, and v_j its normal score.

    .. math:: v_j = \Phi^{-1}( F(k - 1 \mid y_{-j}) + p(k \mid y_{-j}) u ),
              \quad k = \lfloor y_j \rfloor, \; u = y_j - k

    If the fitted law is right, v_j is standard normal *and independent of the other columns*: nothing about the
    column is left for the flow to learn. Columns are taken in turn, each given the smooth columns and the levelled
    ones before it, so the Jacobian is triangular. Beyond score ±8 (outside the levels) the map goes on as a line.

    Args:
        d: number of columns; those without a model are left as they are.
        models: in the order in which the columns are drawn.
    Raises: SchemaRefusal, if a model reads a levelled column that comes later.
    Source: ours; the handbook's "conditional of the event", made a bijection.

    >>> half = LevelModel(column=1, given=(), counts=(), coefficients=np.zeros((1, 2)))
    >>> Levels(d=2, models=(half,)).forward(np.array([[0.3, 0.0], [0.3, -9.0]]))
    array([[ 0.3,  1. ],
           [ 0.3, -1. ]])
    """

    kind: ClassVar[str] = "levels"
    d: int
    models: tuple[LevelModel, ...]

    def __post_init__(self) -> None:
        columns = [model.column for model in self.models]
        if self.d < 1 or len(set(columns)) != len(columns) or any(not 0 <= c < self.d for c in columns):
            raise SchemaRefusal("each level model must have a column of its own")
        for place, model in enumerate(self.models):
            if any(not 0 <= c < self.d or c in columns[place:] for c in model.given):
                raise SchemaRefusal("a level model must read smooth columns and earlier levelled ones only")

    def forward(self, z: Array) -> Array:
        """Scores to levels plus fractions, (n, d) to (n, d)."""
        from scipy import special

        y = as_matrix(z, self.d)
        rows = np.arange(len(y))
        for model in self.models:
            v = y[:, model.column].copy()
            inside = np.abs(v) < _EDGE
            cumulative = model.cumulative(y)
            u = special.ndtr(np.where(inside, v, 0.0))
            level = (u[:, None] >= cumulative[:, 1:-1]).sum(axis=1)
            low, high = cumulative[rows, level], cumulative[rows, level + 1]
            fraction = np.clip((u - low) / (high - low), 0.0, np.nextafter(1.0, 0.0))
            # In doubles 2 + 0.99…9 is 3: hold the value below the next level.
            value = np.minimum(level + fraction, np.nextafter(level + 1.0, 0.0))
            y[:, model.column] = np.where(inside, value, np.where(v < 0, v + _EDGE, v - _EDGE + model.levels))
        return y

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(scores, log |det|): (n, d) and (n,)."""
        from scipy import special

        y = as_matrix(x, self.d)
        z = y.copy()
        log_det = np.zeros(len(y))
        rows = np.arange(len(y))
        for model in self.models:
            value = y[:, model.column]
            inside = (value >= 0) & (value < model.levels)
            level = np.clip(np.floor(np.where(inside, value, 0.0)), 0, model.levels - 1).astype(np.int64)
            cumulative = model.cumulative(y)
            low, high = cumulative[rows, level], cumulative[rows, level + 1]
            v = special.ndtri(low + (high - low) * np.clip(value - level, 0.0, 1.0))
            v = np.clip(v, -_EDGE, _EDGE)
            log_det += np.where(inside, np.log(high - low) + 0.5 * v**2 + HALF_LOG_2PI, 0.0)
            z[:, model.column] = np.where(inside, v, np.where(value < 0, value - _EDGE, value - model.levels + _EDGE))
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Per model its column, what it reads and its coefficients."""
        out: Arrays = {
            "d": np.array(self.d, dtype=np.int64),
            "columns": np.array([model.column for model in self.models], dtype=np.int64),
        }
        for k, model in enumerate(self.models):
            out[f"given{k}"] = np.array([model.given, model.counts], dtype=np.int64).reshape(2, -1)
            out[f"coefficients{k}"] = model.coefficients
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Levels:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if not {"d", "columns"} <= set(arrays) or np.asarray(arrays["d"]).size != 1:
            raise SchemaRefusal("levels must name their columns")
        columns = [int(c) for c in np.asarray(arrays["columns"]).reshape(-1)]
        names = {"d", "columns"} | {f"{part}{k}" for k in range(len(columns)) for part in ("given", "coefficients")}
        require_arrays(arrays, names, cls.kind)
        models = []
        for k, column in enumerate(columns):
            given = np.asarray(arrays[f"given{k}"])
            if given.ndim != 2 or given.shape[0] != 2:
                raise SchemaRefusal("a level model must say what it reads")
            read, counts = (tuple(int(v) for v in row) for row in given)
            models.append(LevelModel(column=column, given=read, counts=counts, coefficients=arrays[f"coefficients{k}"]))
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), models=tuple(models))
