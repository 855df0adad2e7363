"""The edges of released networks, as their tables hold them: read, checked, and put together wave after wave."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shared.errors import EstimateRefusal, SchemaRefusal

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.plan import StudyPlan

__all__ = [
    "MOST_EDGES",
    "NEIGHBOURS",
    "NUMBER",
    "REACHED",
    "adjacency",
    "first_number",
    "flat",
    "held_out",
    "union",
    "unsorted",
]

NEIGHBOURS = "neighbours"
"""The column of a released table that holds the edges."""
NUMBER = "number"
"""Where a frame is kept: each person's number, for life."""
REACHED = "reached_by"
"""Where the frame of a directed network is kept: persons of earlier waves who have an edge to this one."""
MOST_EDGES = 1 << 25
"""Of one release: what a reader with a few gigabytes of memory can count the triangles of."""


def held_out(plan: StudyPlan, n: int) -> int:
    """m: how many persons were held out where n are released, by the plan's share.

    >>> from types import SimpleNamespace
    >>> held_out(SimpleNamespace(holdout=0.25), 300)
    100
    """
    return max(1, round(n * plan.holdout / (1 - plan.holdout)))


def adjacency(table: pd.DataFrame, *, directed: bool, released: bool = True) -> Any:
    """A table with its edges as a sparse matrix: (n, n) csr_array of int8, symmetric where it is undirected.

    Args:
        table: as `shared.mechanisms.grand.plan.GrandPlan.validate` accepts it.
        released: as of `flat`.
    """
    import numpy as np
    from scipy.sparse import csr_array

    _, places, owners = flat(table, released=released)
    places = places - first_number(table)
    n, own = len(table), places >= 0
    row, column = owners[own].astype(np.int32), places[own].astype(np.int32)
    ones = np.ones(len(row), dtype=np.int8)
    made = csr_array((ones, (row, column)), shape=(n, n))
    whole = made if directed else (made + made.T).tocsr()
    whole.sort_indices()
    return whole


def union(tables: Sequence[pd.DataFrame], *, directed: bool) -> Any:
    """Tables of a kept frame as one network: (n, n) csr_array of int8 of all their persons, table after table.

    An edge to a person in none of the tables, whose release was taken back, is left out.

    Args:
        tables: each as `shared.mechanisms.grand.plan.GrandPlan.validate` accepts it.
    Raises: EstimateRefusal, where two of them give one number to two persons.
    """
    import numpy as np
    from scipy.sparse import csr_array

    firsts, sizes = [first_number(table) for table in tables], [len(table) for table in tables]
    order = sorted(range(len(tables)), key=lambda k: firsts[k])
    for one, other in itertools.pairwise(order):
        if firsts[one] + sizes[one] > firsts[other]:
            raise EstimateRefusal("a person's number must be of one person", given="two releases that share some")
    n, starts = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    low, start = np.array(firsts)[order], starts[:-1][order]
    ends = low + np.array(sizes)[order]

    def placed(numbers: Any) -> Any:
        at = np.searchsorted(low, numbers, side="right") - 1
        known = (at >= 0) & (numbers < ends[at])
        return np.where(known, numbers - low[at] + start[at], -1)

    rows, columns = [], []
    for begin, table in zip(starts, tables, strict=False):
        _, places, owners = flat(table)
        rows.append(owners + begin)
        columns.append(placed(places))
        if REACHED in table.columns:
            _, places, owners = flat(table, REACHED)
            rows.append(placed(places))
            columns.append(owners + begin)
    row, column = np.concatenate(rows), np.concatenate(columns)
    both = (row >= 0) & (column >= 0)
    row, column = row[both].astype(np.int32), column[both].astype(np.int32)
    made = csr_array((np.ones(len(row), dtype=np.int8), (row, column)), shape=(n, n))
    whole = made if directed else (made + made.T).tocsr()
    whole.sort_indices()
    return whole


def first_number(table: pd.DataFrame) -> int:
    """The number of a table's first person; 0 where it has none. Raises: SchemaRefusal, where one does not follow."""
    import numpy as np

    if NUMBER not in table.columns:
        return 0
    numbers = table[NUMBER].to_numpy()
    first = int(numbers[0]) if numbers.dtype == np.int32 and len(numbers) else -1
    if first < 0 or not (numbers == first + np.arange(len(numbers))).all():
        raise SchemaRefusal(f"{NUMBER} must be 32-bit whole numbers, each one more than the last", given="other values")
    return first


def unsorted(places: Any, owners: Any) -> int:
    """Places of one row that do not ascend."""
    return int(((owners[1:] == owners[:-1]) & (places[1:] <= places[:-1])).sum())


def flat(table: pd.DataFrame, name: str = NEIGHBOURS, *, released: bool = True) -> tuple[Any, Any, Any]:
    """Where each row's edges start, their places, and the row that each belongs to.

    Args:
        released: whether the table is a released one, which holds `MOST_EDGES` at most; of a hospital's own records a
            refusal would tell how many edges they have.
    Raises: SchemaRefusal.
    """
    import numpy as np

    lists = table[name].tolist()
    plain = all(isinstance(one, np.ndarray) and one.ndim == 1 and one.dtype == np.int32 for one in lists)
    if not plain:
        raise SchemaRefusal(f"{name} must be lists of 32-bit whole numbers", given="other values")
    sizes = np.fromiter((len(one) for one in lists), dtype=np.int64, count=len(lists))
    if released and int(sizes.sum()) > MOST_EDGES:
        raise SchemaRefusal(f"a released network must have at most {MOST_EDGES} edges", given=f"{sizes.sum()}")
    places = np.concatenate(lists).astype(np.int64) if lists else np.empty(0, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(sizes)]), places, np.repeat(np.arange(len(lists)), sizes)
