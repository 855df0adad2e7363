"""Nominal covariates of a moments release: one binary column for each level but the first.

To the mechanism these are columns like others. That a record has one of a factor's columns at most makes no sum move
further, so what is charged holds for them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shared.base.process import deferred
from shared.plans.dictionary import Column, Dictionary

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["Factor", "coded_dictionary", "coded_names", "columns_of", "factor_of", "factors_of", "folded", "in_words"]


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

    A row that was drawn into several levels is put into one of them, by turns. So the first level has more rows than
    its share; to move some to other levels would give these the outcomes of the first.

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
