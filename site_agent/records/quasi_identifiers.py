"""Numbers of persons who share a combination of quasi-identifiers, the columns that others may know of a patient.

The plan names the columns, and `StudyPlan.quasi_identifiers` says what the counts may decide. They are read from
records, so they stay at the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from shared.plans.dictionary import NUMERIC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.plans.dictionary import Dictionary

__all__ = ["SmallClasses", "sharing", "small_classes"]


@dataclass(frozen=True, kw_only=True)
class SmallClasses:
    """Classes of fewer than `k` persons, a class being all who share one combination.

    Args:
        persons: number of persons in such a class, of `of`.
        classes: number of such classes.
        kept: number of these persons whose released row still has their combination; None before a draw.
    """

    k: int
    of: int
    persons: int
    classes: int
    kept: int | None = None


def small_classes(
    table: pd.DataFrame,
    widths: Mapping[str, float],
    k: int,
    *,
    released: pd.DataFrame | None = None,
    dictionary: Dictionary | None = None,
) -> SmallClasses:
    """The classes of fewer than `k` persons.

    Args:
        table: (n, columns) canonical values, a row per person.
        widths: `StudyPlan.quasi_identifiers`.
        released: (n, columns) released values, row i drawn from person i; with the `dictionary` that says their levels.

    >>> small_classes(pd.DataFrame({"age": [41, 47, 50.0]}), {"age": 10}, 2)
    SmallClasses(k=2, of=3, persons=1, classes=1, kept=None)
    """
    own = _classes(table, widths)
    size = _sizes(own)
    few = size < k
    kept = None
    if released is not None and dictionary is not None:
        columns = {name: dictionary.column(name) for name in widths}
        coded = pd.DataFrame(
            {
                name: released[name] if column.kind in NUMERIC else column.compare(released[name])[0]
                for name, column in columns.items()
            }
        )
        kept = int((few & (own == _classes(coded, widths)).all(axis=1)).sum())
    return SmallClasses(k=k, of=len(table), persons=int(few.sum()), classes=len(np.unique(own[few], axis=0)), kept=kept)


def sharing(table: pd.DataFrame, widths: Mapping[str, float]) -> NDArray[np.int64]:
    """(n,) how many persons share each one's combination. Args: as of `small_classes`."""
    return _sizes(_classes(table, widths))


# -- inside -----------------------------------------------------------------------------------------------------
def _classes(table: pd.DataFrame, widths: Mapping[str, float]) -> NDArray[np.float64]:
    """(n, columns) the number of each value's band; what is missing is a band of its own."""
    values = table[list(widths)].to_numpy(dtype="float64")
    # What a division leaves short of a whole number is one: 0.3 / 0.1.
    bands = np.floor(np.round(values / np.array(list(widths.values())), 9))
    return np.where(np.isnan(bands), np.inf, bands)


def _sizes(classes: NDArray[np.float64]) -> NDArray[np.int64]:
    _, place, count = np.unique(classes, axis=0, return_inverse=True, return_counts=True)
    sizes: NDArray[Any] = count[place.reshape(-1)]
    return sizes.astype(np.int64)
