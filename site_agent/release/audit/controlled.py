"""Attacks on a table beside a control group: singling out by predicates, and guessing columns from neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.plans.dictionary import NUMERIC, Column, Dictionary
from site_agent.release.audit.rates import Array, Flags, Rate, binomial_rate, wilson_interval
from site_agent.release.audit.report import Excess
from site_agent.release.audit.view import places_of

__all__ = ["MOST_TARGETS", "sampled_rows", "table_attacks"]


PREDICATES = 500
"""Predicates tried in each singling-out attack."""
PREDICATE_COLUMNS = (3, 6)
"""Fewest and most columns of a predicate on several; which and how many is drawn for each."""
NEIGHBOURS = 5
"""Released rows that either half of a person's columns may lead to."""
NEAR_ENOUGH = 0.05
"""A number is guessed right within this share of its column's public range."""
MOST_TARGETS = 2000
_MOST_PAIRS = 8_000_000
_AT_ONCE = 1 << 19
"""Pairs and columns: their distances stay in a core's own cache."""


def table_attacks(
    *,
    members: pd.DataFrame,
    held_back: pd.DataFrame,
    released: pd.DataFrame,
    dictionary: Dictionary,
    draws: np.random.Generator,
) -> tuple[Excess, ...]:
    """Singling out, linkability and the inference of every column, each against records that were held back.

    Args:
        members: (n1, columns) records whose release is attacked.
        held_back: (n0, columns) records that had no part in it.
        released: (n, columns) the release, in any order.
        dictionary: its released columns are compared, missing values as a value of their own.
        draws: chooses which records, predicates and halves of columns are tried, at most 2,000 of each.
    Returns: one `Excess` per attack; attacks that a table does not allow (one column only, no predicate that singles
        anybody out) are left out. Intervals of the columns' inference hold for all columns together (Bonferroni).
    Source: Giomi, Boenisch, Wehmeyer & Tasnádi (2023), A unified framework for quantifying privacy risk in synthetic
        data. Written from the paper's definitions; sizes are made equal instead of being corrected for.
    """
    columns = dictionary.released
    inside, outside, table = ([places_of(c, part) for c in columns] for part in (members, held_back, released))
    out: list[Excess] = []
    size = min(len(members), len(held_back), MOST_TARGETS)
    # How often a rule fits exactly one record depends on how many there are.
    one = draws.permutation(len(members))[:size], draws.permutation(len(held_back))[:size]
    same = [v[one[0]] for v in inside], [v[one[1]] for v in outside]
    for name, predicates in (
        ("singling out, one column", _univariate(columns, table, draws)),
        ("singling out, several columns", _multivariate(columns, table, draws)),
    ):
        if predicates:
            hit = [np.array([_matches(p, part).sum() == 1 for p in predicates]) for part in same]
            out.append(_excess(name, hit[0], hit[1]))
    if len(columns) < 2:
        return tuple(out)
    most = min(MOST_TARGETS, max(100, _MOST_PAIRS // len(released)))
    flags = []
    for part, n in ((inside, len(members)), (outside, len(held_back))):
        chosen = draws.permutation(n)[:most]
        flags.append(_neighbours(columns, [v[chosen] for v in part], table, draws))
    out.append(_excess("linkability", flags[0][0], flags[1][0]))
    level = 1 - 0.05 / len(columns)
    for k, column in enumerate(columns):
        out.append(_excess(f"inference of {column.name}", flags[0][1][:, k], flags[1][1][:, k], level=level))
    return tuple(out)


_Predicate = tuple[tuple[int, str, float], ...]
"""Conditions (column, how to compare, with what) that must all hold; NaN compares with missing."""


def _univariate(columns: Sequence[Column], table: Sequence[Array], draws: np.random.Generator) -> list[_Predicate]:
    """Values that one released row has, and the ends of numeric columns."""
    found: list[_Predicate] = []
    for j, (column, values) in enumerate(zip(columns, table, strict=True)):
        distinct, count = np.unique(values, return_counts=True, equal_nan=True)
        found += [((j, "=", float(v)),) for v in distinct[count == 1]]
        present = values[~np.isnan(values)]
        if column.kind in NUMERIC and len(present):
            found += [((j, "<=", float(present.min())),), ((j, ">=", float(present.max())),)]
    return [found[i] for i in draws.permutation(len(found))[:PREDICATES]]


def _multivariate(columns: Sequence[Column], table: Sequence[Array], draws: np.random.Generator) -> list[_Predicate]:
    """Predicates that exactly one released row satisfies: levels equal, numbers at least as far from the median."""
    if len(columns) < 2:
        return []
    least, most = (min(width, len(columns)) for width in PREDICATE_COLUMNS)
    middle = [
        float(np.nanmedian(v)) if c.kind in NUMERIC and not np.isnan(v).all() else math.nan
        for c, v in zip(columns, table, strict=True)
    ]
    found: dict[_Predicate, None] = {}
    for _ in range(4 * PREDICATES):
        if len(found) == PREDICATES:
            break
        row = int(draws.integers(len(table[0])))
        chosen = sorted(int(j) for j in draws.permutation(len(columns))[: int(draws.integers(least, most + 1))])
        parts = []
        for j in chosen:
            value = float(table[j][row])
            how = "=" if columns[j].kind not in NUMERIC or math.isnan(value) else ">=" if value > middle[j] else "<="
            parts.append((j, how, value))
        if _matches(tuple(parts), table).sum() == 1:
            found[tuple(parts)] = None
    return list(found)


def _matches(predicate: _Predicate, table: Sequence[Array]) -> Flags:
    out = np.ones(len(table[0]), dtype=bool)
    for j, how, value in predicate:
        v = table[j]
        if math.isnan(value):
            out &= np.isnan(v)
        else:
            out &= v == value if how == "=" else v <= value if how == "<=" else v >= value
    return out


def _neighbours(
    columns: Sequence[Column], targets: Sequence[Array], table: Sequence[Array], draws: np.random.Generator
) -> tuple[Flags, Flags]:
    """For each target: do two halves of its columns lead to one released row, (k,); is each column guessed, (k, c).

    Distances are Gower's: the share of the public range between numbers, 1 between levels and from a missing value.
    """
    n, c, rows = len(targets[0]), len(columns), len(table[0])
    linked, guessed = np.zeros(n, dtype=bool), np.zeros((n, c), dtype=bool)
    k = min(NEIGHBOURS, rows)
    gowers = [_Gower.of(column, values) for column, values in zip(columns, table, strict=True)]
    few = max(1, _AT_ONCE // (c * rows))
    for of_one_half in np.array_split(np.arange(n), max(1, n // 64)):
        half = draws.permutation(c)[: c // 2]
        for at in (of_one_half[i : i + few] for i in range(0, len(of_one_half), few)):
            apart = [gower.apart(v[at]) for gower, v in zip(gowers, targets, strict=True)]
            total, one = apart[0].copy(), np.zeros_like(apart[0])
            for j in range(1, c):
                total += apart[j]
            for j in half:
                one += apart[j]
            near = [np.argpartition(part, k - 1, axis=1)[:, :k] for part in (one, total - one)]
            linked[at] = (near[0][:, :, None] == near[1][:, None, :]).any(axis=(1, 2))
            for j, column in enumerate(columns):
                best = np.argmin(np.subtract(total, apart[j], out=one), axis=1)
                guess, truth = table[j][best], targets[j][at]
                reach = NEAR_ENOUGH * (column.span[1] - column.span[0]) if column.kind in NUMERIC else 0.0
                guessed[at, j] = (np.abs(guess - truth) <= reach) | (np.isnan(guess) & np.isnan(truth))
    return linked, guessed


@dataclass(frozen=True, eq=False)
class _Gower:
    """Distances from one column of a table, as single precision holds them; `width` is 0 where it has levels."""

    values: NDArray[np.float32]
    missing: Flags | None
    width: np.float32

    @classmethod
    def of(cls, column: Column, values: Array) -> _Gower:
        missing = np.isnan(values)
        width = column.span[1] - column.span[0] if column.kind in NUMERIC else 0.0
        return cls(values.astype(np.float32), missing if missing.any() else None, np.float32(width))

    def apart(self, targets: Array) -> NDArray[np.float32]:
        """(k, n)."""
        a = targets.astype(np.float32)[:, None]
        if self.width:
            out = a - self.values
            np.abs(out, out=out)
            out /= self.width
        else:
            out = (a != self.values).astype(np.float32)
        gone = np.isnan(a)
        if self.missing is not None or gone.any():
            there = self.missing if self.missing is not None else np.zeros(len(self.values), dtype=bool)
            out[gone | there] = 1
            out[gone & there] = 0
        return out


def _excess(name: str, attack: Flags, control: Flags, *, level: float = 0.95) -> Excess:
    a, b = int(attack.sum()), int(control.sum())
    n, m = len(attack), len(control)
    p, q = a / n, b / m
    (l1, u1), (l2, u2) = wilson_interval(a, n, level), wilson_interval(b, m, level)
    return Excess(
        name=name,
        attack=binomial_rate(a, n, chance=q, level=level),
        control=binomial_rate(b, m, chance=q, level=level),
        excess=Rate(
            value=p - q,
            low=p - q - math.hypot(p - l1, u2 - q),
            high=p - q + math.hypot(u1 - p, q - l2),
            chance=0.0,
        ),
        n_attack=n,
        n_control=m,
    )


def sampled_rows(rows: Array, most: int, draws: np.random.Generator) -> Array:
    """All rows, or `most` of them drawn without replacement, in their order."""
    return rows if len(rows) <= most else rows[np.sort(draws.permutation(len(rows))[:most])]
