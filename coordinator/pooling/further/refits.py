"""A pooled result again with its rows left out one by one, as they arrived, or in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coordinator.pooling.pool import PooledResult, alike, refit
from shared.errors import ParameterError

__all__ = ["cumulative", "leave_one_out", "ordered"]


def leave_one_out(result: PooledResult) -> tuple[tuple[str, PooledResult], ...]:
    """Refit without each row in turn: ``(label left out, result)``, K pairs; none when K = 1.

    >>> from coordinator.pooling.pool import pool
    >>> rows = leave_one_out(pool([0.1, 0.3, 0.6], [0.03, 0.03, 0.01], method="DL", labels=["A", "B", "C"]))
    >>> [(label, round(row.beta, 2)) for label, row in rows]
    [('A', 0.48), ('B', 0.37), ('C', 0.2)]
    """
    if result.k == 1:
        return ()
    everyone = range(result.k)
    return tuple((result.labels[i], _subset(result, [j for j in everyone if j != i])) for i in everyone)


def ordered(result: PooledResult, by: str, *, values: Mapping[str, Any] | None = None) -> PooledResult:
    """The same result with its rows by ``name``, ``estimate`` (lowest first) or ``weight`` (heaviest first).

    Args:
        values: label -> what the rows are sorted by instead, lowest first; those without a value come last.
    Raises: ParameterError: another order, or values that cannot be compared.

    >>> from coordinator.pooling.pool import pool
    >>> ordered(pool([0.5, 0.1, 0.3], [0.1, 0.2, 0.3], labels=["B", "C", "A"]), "estimate").labels
    ('C', 'A', 'B')
    """
    keys: dict[str, Sequence[Any]] = {"name": result.labels, "estimate": result.yi}
    keys["weight"] = [-weight for weight in result.weights]
    if values is not None:
        keys[by] = [(values.get(label) is None, values.get(label)) for label in result.labels]
    if by not in keys:
        raise ParameterError(f"rows must be sorted by one of {', '.join(keys)}, or a column", given=repr(by))
    try:
        rows = sorted(range(result.k), key=lambda i: keys[by][i])
    except TypeError:
        raise ParameterError("rows must be sorted by values of one kind", given=f"a mix in {by!r}") from None
    return _of_rows(result, rows)


def cumulative(result: PooledResult, order: Sequence[int] | None = None) -> tuple[tuple[str, PooledResult], ...]:
    """Refit as rows arrive: ``(label added, result so far)``, K pairs.

    Args:
        result: any pooled result; its method, test and level are kept.
        order: (K,) row positions from 0; by default the order of the result.
    Raises: ParameterError: order is not a permutation of the rows.
    """
    arrival = list(range(result.k)) if order is None else [int(i) for i in order]
    if sorted(arrival) != list(range(result.k)):
        raise ParameterError("order must name every row once", given=f"{arrival}")
    return tuple((result.labels[row], _subset(result, arrival[: i + 1])) for i, row in enumerate(arrival))


def _subset(result: PooledResult, rows: list[int]) -> PooledResult:
    chosen = _of_rows(result, rows)
    chosen = replace(chosen, excluded=(), shared=alike(chosen) + max(result.shared - alike(result), 0.0))
    return refit(chosen, method=result.method, test=result.test)


def _of_rows(result: PooledResult, rows: Sequence[int]) -> PooledResult:
    """The same result with these of its rows, in this order; nothing is fitted anew."""
    names = ("labels", "yi", "vi", "weights", *(["estimates"] if result.estimates else []))
    own: dict[str, Any] = {name: tuple(getattr(result, name)[i] for i in rows) for name in names}
    return replace(result, **own)
