"""Base of mechanism specs whose release is a table of whole numbers, a line each, which two columns of words name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.mechanisms.base import Aggregates, Extent, widest

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan

__all__ = ["LabelledFigures", "Layout", "arrays_of"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns of a release, and the words of its lines in order: public, from the plan alone.

    Args:
        columns: names of the three columns. first, second: words of every line. The third column's are whole numbers.
    """

    columns: tuple[str, str, str]
    first: Sequence[str]
    second: Sequence[str]

    def table(self, figures: Sequence[NDArray[np.integer]]) -> pd.DataFrame:
        """The released table of figures that are as many, in order, as there are lines."""
        import pandas as pd

        flat = np.concatenate([np.ravel(one) for one in figures]).astype(np.int64)
        return pd.DataFrame(dict(zip(self.columns, (list(self.first), list(self.second), flat), strict=True)))


class LabelledFigures(Aggregates):
    """A mechanism that releases whole numbers in a public order, each named by two words."""

    @abstractmethod
    def layout(self, plan: StudyPlan) -> Layout:
        """The lines of a release."""

    @abstractmethod
    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """Refuse a table of the plan's lines whose figures no n persons and no noise of the plan give.

        Raises: SchemaRefusal.
        """

    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """A line per figure."""
        lines = self.layout(plan)
        words = dict(zip(lines.columns, (widest(lines.first), widest(lines.second)), strict=False))
        return Extent(rows=len(lines.first), texts=words, numbers=1)

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """Exactly the plan's lines, in order; whole numbers that n persons and this noise can give."""
        lines = self.layout(plan)
        if tuple(table.columns) != lines.columns or len(table) != len(lines.first):
            raise SchemaRefusal(
                f"released {self.title} must have columns {', '.join(lines.columns)} and {len(lines.first)} lines",
                given=f"{len(table)} lines",
            )
        first, second, value = lines.columns
        if table[value].dtype != np.dtype("int64"):
            raise SchemaRefusal(f"released {self.title} must be whole numbers", given=f"{table[value].dtype}")
        if table[first].tolist() != list(lines.first) or table[second].tolist() != list(lines.second):
            raise SchemaRefusal(f"released {self.title} must name the plan's lines, in order", given="others")
        self.require_possible(plan, table, n)


def arrays_of(table: pd.DataFrame, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.int64]]:
    """The whole numbers of a released table, as arrays of these shapes that lie one after the other.

    >>> import pandas as pd
    >>> [one.tolist() for one in arrays_of(pd.DataFrame({"value": range(6)}), [(2,), (2, 2)])]
    [[0, 1], [[2, 3], [4, 5]]]
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(table.iloc[:, -1].to_numpy(dtype=np.int64), ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
