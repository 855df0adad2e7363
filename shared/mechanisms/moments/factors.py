"""Nominal covariates of a moments release: one binary column for each level but the first.

To the mechanism these are columns like others. That a record has one of a factor's columns at most makes no sum move
further, so what is charged holds for them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.plans.dictionary import Column, Dictionary

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")
special = deferred("scipy.special")

__all__ = [
    "Factor",
    "coded_dictionary",
    "coded_names",
    "columns_of",
    "factor_of",
    "factors_of",
    "folded",
    "in_words",
    "level_chances",
    "level_coefficients",
]

Array = NDArray[np.float64]

_STEPS, _HALVES, _SETTLED, _FARTHEST, _LEAST_RIDGE = 60, 12, 1e-9, 3.0, 1e-12
"""Newton's steps for the coefficients of levels, how often one is halved, how near is near, the longest step, and what
holds a constant, so that levels nobody has can be solved for."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A nominal column and the binary ones that stand for its levels but the first, in order.

    >>> stage = Column(name="stage", kind="nominal", levels=("I", "II", "III"))
    >>> one = Factor(column=stage, names=("stage_2", "stage_3"))
    >>> one.coded(pd.DataFrame({"stage": [0.0, 2.0]}))[["stage_2", "stage_3"]].to_numpy().tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """

    column: Column
    names: tuple[str, ...]

    def coded(self, checked: pd.DataFrame) -> pd.DataFrame:
        """A table of level codes, as `Dictionary.check` returns, with the binary columns beside them."""
        if self.column.name not in checked.columns:
            return checked
        code = checked[self.column.name]
        levels = {name: (code == k).astype(float).where(code.notna()) for k, name in enumerate(self.names, start=1)}
        return checked.assign(**levels)


def factors_of(covariates: Sequence[str], dictionary: Dictionary) -> tuple[Factor, ...]:
    """The nominal ones of the covariates; their binary columns have names that nothing else has."""
    known = {column.name: column for column in dictionary.columns}
    found = []
    for name in covariates:
        column = known.get(name)
        if column is not None and column.kind == "nominal":
            names = [f"{name}_{level}" for level in range(2, len(column.levels) + 1)]
            while taken := known.keys() & set(names):
                names = [f"{one}_" if one in taken else one for one in names]
            found.append(Factor(column=column, names=tuple(names)))
    return tuple(found)


def coded_names(names: Sequence[str], factors: Sequence[Factor]) -> tuple[str, ...]:
    """Names of columns, the binary ones in place of a nominal one."""
    by_name = {factor.column.name: factor.names for factor in factors}
    return tuple(one for name in names for one in by_name.get(name, (name,)))


def coded_dictionary(dictionary: Dictionary, factors: Sequence[Factor]) -> Dictionary:
    """The dictionary with the binary columns in place of the nominal ones."""
    columns = [
        column if one == column.name else Column(name=one, kind="binary", missing=column.missing)
        for column in dictionary.columns
        for one in coded_names((column.name,), factors)
    ]
    return replace(dictionary, columns=tuple(columns))


def factor_of(name: str, factors: Sequence[Factor]) -> Factor | None:
    """The factor that a binary column belongs to; None for any other column."""
    return next((factor for factor in factors if name in factor.names), None)


def columns_of(term: str, factors: Sequence[Factor]) -> tuple[str, ...]:
    """Columns that a term of a question asks of: of a nominal one, ``stage`` or ``C(stage)``, all its binary ones.

    Levels that are numbers are a factor as ``C(stage)`` alone.
    """
    inside = term[2:-1] if term.startswith("C(") else term
    found = next((factor for factor in factors if factor.column.name == inside), None)
    if found is None or (inside == term and not isinstance(found.column.levels[0], str)):
        return (term,)
    return found.names


def in_words(name: str, factors: Sequence[Factor]) -> str:
    """A column in words: ``stage = II`` of a binary column that stands for a level, else its name."""
    factor = factor_of(name, factors)
    return f"{factor.column.name} = {factor.column.levels[1 + factor.names.index(name)]}" if factor else name


def folded(table: pd.DataFrame, factors: Sequence[Factor]) -> pd.DataFrame:
    """A table of rows with the nominal columns in place of their binary ones.

    Points of the planned model may be at several levels, and are put into one of them, by turns; then the first level
    has more than its share. Rows that are drawn have one level each (`shared.mechanisms.moments.cohort`).

    >>> stage = Factor(column=Column(name="s", kind="nominal", levels=("a", "b", "c")), names=("s_2", "s_3"))
    >>> list(folded(pd.DataFrame({"s_2": [0, 1, 1, 1], "s_3": [0, 0, 1, 1]}), (stage,))["s"])
    ['a', 'b', 'c', 'b']
    """
    if not factors:
        return table
    out: dict[str, pd.Series] = {}
    for name in map(str, table.columns):
        factor = factor_of(name, factors)
        if factor is None:
            out[name] = table[name]
        elif name == factor.names[0]:
            has = table[list(factor.names)].to_numpy(dtype=np.int64)
            count = len(factor.names)
            turns = 1 + (np.arange(count) + np.arange(len(has))[:, None]) % count
            level = np.where(has.any(axis=1), 1 + np.argmax(has * turns, axis=1), 0)
            levels = [factor.column.levels[k] for k in level]
            out[factor.column.name] = pd.Series(levels, index=table.index).astype(factor.column.dtype)
    return pd.DataFrame(out)


def level_chances(coefficients: Array, z: Array) -> Array:
    """(n, 1 + levels) probabilities of all levels given covariates (n, m), by the logits of all but the first.

    Args:
        coefficients: (levels, 1 + m), of a constant and of the covariates.
        z: (n, m).
    """
    logits = np.column_stack([np.zeros(len(z)), coefficients[:, 0] + z @ coefficients[:, 1:].T])
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def level_coefficients(z: Array, wide: Array, shares: Array, products: Array, ridge: Array) -> Array:
    r"""(levels, 1 + m) logits under which all levels but the first have these shares, and products with covariates.

    By Newton's steps, halved where one leads further away, on :math:`E[p_k(z) (1, w)] + \Lambda_k c_k = t_k`: linear
    logits, as of covariates that are normal with one spread in every level, told by sums that were cut.

    Args:
        z: (n, m) points of the covariates, in scales.
        wide: (n, m) w, the same as the sums have them.
        shares: (levels,) positive, with a sum below 1.
        products: (levels, m) means of w where a row has the level, and of 0 where it has not.
        ridge: (levels, m) positive; how much holds a coefficient to 0, where no logits have such products.

    >>> z = np.array([[-1.0], [1.0]])
    >>> found = level_coefficients(z, z, np.array([0.4]), np.array([[0.2]]), np.array([[1e-9]]))
    >>> level_chances(found, z).round(3).tolist()
    [[0.8, 0.2], [0.4, 0.6]]
    """
    one, also = (np.column_stack([np.ones(len(z)), part]) for part in (z, wide))
    levels, width = len(shares), one.shape[1]
    target, held = np.column_stack([shares, products]), np.column_stack([np.full(levels, _LEAST_RIDGE), ridge])
    found = np.zeros((levels, width))
    found[:, 0] = np.log(shares / max(1 - float(shares.sum()), 1e-12))
    scale = 1 / np.column_stack([shares, np.outer(shares, np.maximum(wide.std(axis=0), 1e-6))])

    def gap(at: Array) -> tuple[Array, Array]:
        chances = level_chances(at, z)[:, 1:]
        return chances, chances.T @ also / len(z) - target + held * at

    chances, left = gap(found)
    for _ in range(_STEPS):
        size = float(np.square(left * scale).sum())
        if size < _SETTLED**2:
            break
        curve = np.diag(held.ravel())
        for k in range(levels):
            for other in range(levels):
                weight = chances[:, k] * ((k == other) - chances[:, other]) / len(z)
                rows, columns = slice(k * width, (k + 1) * width), slice(other * width, (other + 1) * width)
                curve[rows, columns] += (also * weight[:, None]).T @ one
        step = -np.linalg.solve(curve, left.ravel()).reshape(found.shape)
        step *= min(1.0, _FARTHEST / float(np.abs(step).max()))
        for _ in range(_HALVES):
            there = gap(found + step)
            if float(np.square(there[1] * scale).sum()) < size:
                break
            step = step / 2
        else:
            break
        found, (chances, left) = found + step, there
    # Where no logits have such products, those that come near have the shares all the same.
    for _ in range(_STEPS):
        chances = level_chances(found, z)[:, 1:]
        away = shares - chances.mean(axis=0)
        if float(np.abs(away).max()) < _SETTLED:
            break
        curve = np.diag(chances.mean(axis=0) + _LEAST_RIDGE) - chances.T @ chances / len(z)
        found[:, 0] += np.clip(np.linalg.solve(curve, away), -1, 1)
    return found
