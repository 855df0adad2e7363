"""Columns whose bins hide how they are spread: a regression with one of them is not answered.

Within a bin synthetic values are drawn evenly, whatever decides where a person lies in it. Where most persons lie in
one bin, the column's coefficient is drawn towards zero by more than any interval of ours, and of a count or measurement
that is itself so no coefficient is right. The released counts alone show it, and more or narrower bins mend it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import EstimateRefusal
from shared.estimands.questions import MODELS
from shared.mechanisms.tables.noise import CountTables, bin_edges

if TYPE_CHECKING:
    from shared.estimands.answer import Estimand

__all__ = ["COARSE", "MORE_BINS", "coarse", "unspread"]

COARSE = 0.7
"""A bin of several values with more than this share of the persons hides how they are spread."""
MORE_BINS = "Plan its logarithm, more bins for it ([release] bins), or narrower bounds."


def coarse(tables: CountTables, counts: Sequence[NDArray[np.int64]], n: int, noise: float) -> dict[str, str]:
    """Column to how much one of its bins hides, in words; of the columns of which one does.

    Args:
        tables, counts: what was released. n: persons.
        noise: variance of the noise on each count; twice its standard deviation is allowed for.
    """
    found = {}
    # The one-way tables come first, in the order of the attributes.
    for attribute, count in zip(tables.attributes, counts, strict=False):
        by_cell = np.reshape(count, attribute.shape)
        for axis, (column, bins) in enumerate(zip(attribute.columns, attribute.bins, strict=True)):
            if not bins:
                continue
            others = tuple(k for k in range(by_cell.ndim) if k != axis)
            inside = by_cell.sum(axis=others)[:bins]
            width = float(np.diff(bin_edges(column, bins))[int(np.argmax(inside))])
            most = float(inside.max()) - 2 * math.sqrt(noise * by_cell.size / by_cell.shape[axis])
            if most > COARSE * n and not (column.kind == "integer" and width <= 1):
                share = min(1.0, float(inside.max()) / n)
                in_units = f"{width:.3g} {column.unit}".strip()
                found[column.name] = f"{100 * share:.0f} % of the persons in one bin of {in_units}"
    return found


def unspread(question: Estimand, hidden: dict[str, str]) -> dict[str, str]:
    """Covariates of a model whose bins hide them; of other questions none.

    Raises: EstimateRefusal: its outcome is such a column.
    """
    if question.kind not in MODELS:
        return {}
    outcome = [name for name in (question.outcome, question.duration) if name in hidden]
    if outcome:
        raise EstimateRefusal(
            "the released bins must show how the outcome of a model is spread",
            given=f"{outcome[0]}: {hidden[outcome[0]]}",
            next_step=MORE_BINS,
        )
    return {name: hidden[name] for name in question.columns if name in hidden}
