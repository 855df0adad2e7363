"""Normal scores, column by column, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.base import Array, ArrayBijection, Arrays, as_matrix, frozen_array, require_arrays

__all__ = ["Margins", "piecewise"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins(ArrayBijection):
    """A monotone piecewise-linear map per column, with linear tails: scores (latent side) to records.

    Args:
        knots: per column None (the column is left as it is) or a pair (scores, values), both increasing, of two
            points or more; the first and last piece go on as straight lines.
    Raises: SchemaRefusal, if a column's knots do not increase.

    >>> margins = Margins(knots=((np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.0, 5.0])), None))
    >>> margins.forward(np.array([[0.5, 7.0], [2.0, 7.0]]))
    array([[3., 7.],
           [9., 7.]])
    """

    kind: ClassVar[str] = "margins"
    knots: tuple[tuple[Array, Array] | None, ...]

    def __post_init__(self) -> None:
        if not self.knots:
            raise SchemaRefusal("margins must have at least one column")
        checked: list[tuple[Array, Array] | None] = []
        for pair in self.knots:
            if pair is None:
                checked.append(None)
                continue
            scores, values = frozen_array(pair[0], "scores", 1), frozen_array(pair[1], "values", 1)
            if scores.size < 2 or scores.size != values.size:
                raise SchemaRefusal("a margin must have two knots or more, as many scores as values")
            if (np.diff(scores) <= 0).any() or (np.diff(values) <= 0).any():
                raise SchemaRefusal("the knots of a margin must increase")
            checked.append((scores, values))
        object.__setattr__(self, "knots", tuple(checked))

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.knots)

    def forward(self, z: Array) -> Array:
        """Scores to records, (n, d) to (n, d)."""
        x = as_matrix(z, self.d)
        for j, pair in enumerate(self.knots):
            if pair is not None:
                x[:, j] = piecewise(x[:, j], *pair)[0]
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(scores, log |det|): (n, d) and (n,)."""
        z = as_matrix(x, self.d)
        log_det = np.zeros(len(z))
        for j, pair in enumerate(self.knots):
            if pair is not None:
                z[:, j], slope = piecewise(z[:, j], pair[1], pair[0])
                log_det += np.log(slope)
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Knots of all columns end to end, and how many each column has."""
        pairs = [pair for pair in self.knots if pair is not None]
        empty = [np.zeros(0)]
        return {
            "counts": np.array([0 if pair is None else pair[0].size for pair in self.knots], dtype=np.int64),
            "scores": np.concatenate([pair[0] for pair in pairs] or empty),
            "values": np.concatenate([pair[1] for pair in pairs] or empty),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Margins:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        require_arrays(arrays, {"counts", "scores", "values"}, cls.kind)
        counts, scores, values = (np.asarray(arrays[name]) for name in ("counts", "scores", "values"))
        if counts.ndim != 1 or (counts < 0).any() or scores.shape != (counts.sum(),) or values.shape != scores.shape:
            raise SchemaRefusal("margins must have as many scores and values as their counts say")
        ends = np.cumsum(counts)
        pieces = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        pairs = tuple((scores[p], values[p]) if p.stop > p.start else None for p in pieces)
        return cls(knots=pairs)


def piecewise(x: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Piecewise-linear map through (start, end) with linear tails: values and slopes."""
    piece = np.clip(np.searchsorted(start, x, side="right") - 1, 0, start.size - 2)
    slope = np.diff(end) / np.diff(start)
    return end[piece] + (x - start[piece]) * slope[piece], slope[piece]
