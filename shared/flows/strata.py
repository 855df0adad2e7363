"""Columns that are another one in each level of a third: a margin and a regression per level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.base import Array, ArrayBijection, Arrays, as_matrix, frozen_array, require_arrays
from shared.flows.margins import Margins, piecewise

__all__ = ["Strata", "StratumModel"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StratumModel:
    """The law of one smooth column in each level of another: a margin, and a regression of its score.

    Args:
        level_column: the dequantised column whose floor is the stratum.
        given: smooth columns that the regression reads.
        knots: per level (scores, values), as in `Margins`.
        coefficients: (levels, 1 + columns of `given`): intercept and slopes of the score.
        spread: (levels,), positive: standard deviation about the regression.
    """

    column: int
    level_column: int
    given: tuple[int, ...]
    knots: tuple[tuple[Array, Array], ...]
    coefficients: Array
    spread: Array

    def __post_init__(self) -> None:
        coefficients, spread = (
            frozen_array(self.coefficients, "coefficients", 2),
            frozen_array(self.spread, "spread", 1),
        )
        levels = len(self.knots)
        if not levels or coefficients.shape != (levels, 1 + len(self.given)) or spread.shape != (levels,):
            raise SchemaRefusal("a stratum model must have knots, coefficients and a spread per level")
        if (spread <= 0).any() or self.column in (*self.given, self.level_column):
            raise SchemaRefusal("a stratum model must have a positive spread and read other columns only")
        object.__setattr__(self, "knots", Margins(knots=self.knots).knots)
        object.__setattr__(self, "coefficients", coefficients)
        object.__setattr__(self, "spread", spread)

    def stratum(self, y: Array) -> NDArray[np.int64]:
        """(n,): each row's level, codes beyond the known ones taken for the nearest."""
        return np.clip(np.floor(y[:, self.level_column]), 0, len(self.knots) - 1).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Strata(ArrayBijection):
    r"""Columns whose law changes with the level of another: residual scores (latent side) to values.

    .. math:: r = ( s_k(x_j) - \alpha_k - \gamma_k^\top y_{given} ) / \sigma_k

    with `k` the level and `s_k` that level's margin. Every model reads columns that no model changes, so the
    Jacobian is triangular.

    Args:
        d: number of columns; those without a model are left as they are.
        models: in any order.
    Raises: SchemaRefusal, if a model reads a column that a model changes.
    """

    kind: ClassVar[str] = "strata"
    d: int
    models: tuple[StratumModel, ...]

    def __post_init__(self) -> None:
        changed = [model.column for model in self.models]
        read = {c for model in self.models for c in (model.level_column, *model.given)}
        if self.d < 1 or len(set(changed)) != len(changed) or read & set(changed):
            raise SchemaRefusal("a stratum model must read columns that no stratum model changes")
        if any(not 0 <= c < self.d for c in (*changed, *read)):
            raise SchemaRefusal(f"the columns of strata must be in 0..{self.d - 1}")

    def forward(self, z: Array) -> Array:
        """Residual scores to values, (n, d) to (n, d)."""
        y = as_matrix(z, self.d)
        for model in self.models:
            stratum = model.stratum(y)
            mean = self._mean(model, y, stratum)
            score = y[:, model.column] * model.spread[stratum] + mean
            for k, pair in enumerate(model.knots):
                rows = stratum == k
                y[rows, model.column] = piecewise(score[rows], *pair)[0]
        return y

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(residual scores, log |det|): (n, d) and (n,)."""
        y = as_matrix(x, self.d)
        log_det = np.zeros(len(y))
        for model in self.models:
            stratum = model.stratum(y)
            score = np.empty(len(y))
            for k, (scores, values) in enumerate(model.knots):
                rows = stratum == k
                score[rows], slope = piecewise(y[rows, model.column], values, scores)
                log_det[rows] += np.log(slope)
            y[:, model.column] = (score - self._mean(model, y, stratum)) / model.spread[stratum]
            log_det -= np.log(model.spread[stratum])
        return y, log_det

    @staticmethod
    def _mean(model: StratumModel, y: Array, stratum: NDArray[np.int64]) -> Array:
        slopes = model.coefficients[stratum]
        return slopes[:, 0] + (slopes[:, 1:] * y[:, list(model.given)]).sum(axis=1)

    def to_arrays(self) -> Arrays:
        """Per model what it reads, its knots, coefficients and spreads."""
        out: Arrays = {"d": np.array(self.d, dtype=np.int64), "models": np.array(len(self.models), dtype=np.int64)}
        for k, model in enumerate(self.models):
            out[f"columns{k}"] = np.array([model.column, model.level_column, *model.given], dtype=np.int64)
            out[f"coefficients{k}"], out[f"spread{k}"] = model.coefficients, model.spread
            out |= {f"{name}{k}": value for name, value in Margins(knots=model.knots).to_arrays().items()}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Strata:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if any(np.asarray(arrays.get(name, np.zeros(0))).size != 1 for name in ("d", "models")):
            raise SchemaRefusal("strata must say how many models they have")
        count = int(np.asarray(arrays["models"]).reshape(-1)[0])
        parts = ("columns", "coefficients", "spread", "counts", "scores", "values")
        if not 0 <= count <= 4096:
            raise SchemaRefusal("strata must have at most 4096 models")
        require_arrays(arrays, {"d", "models"} | {f"{part}{k}" for k in range(count) for part in parts}, cls.kind)
        models = []
        for k in range(count):
            columns = [int(c) for c in np.asarray(arrays[f"columns{k}"]).reshape(-1)]
            margins = Margins.from_arrays({name: arrays[f"{name}{k}"] for name in parts[3:]})
            if len(columns) < 2 or any(pair is None for pair in margins.knots):
                raise SchemaRefusal("a stratum model must name its columns and have knots in every level")
            models.append(
                StratumModel(
                    column=columns[0],
                    level_column=columns[1],
                    given=tuple(columns[2:]),
                    knots=tuple(pair for pair in margins.knots if pair is not None),
                    coefficients=arrays[f"coefficients{k}"],
                    spread=arrays[f"spread{k}"],
                )
            )
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), models=tuple(models))
