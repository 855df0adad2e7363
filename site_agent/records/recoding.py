"""A column's values as the dictionary writes them: levels under other names, decimal commas, other units.

A hospital's extract is often read-only, so what is not as the dictionary says is not corrected at its source but read
otherwise, as the steward wrote down once (`site_agent.config.Recoding`). Nothing is guessed: a value that the recoding
does not know stays as it is, and is counted by `Dictionary.check` if it is none of the dictionary's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from shared.errors import DictionaryRefusal

if TYPE_CHECKING:
    from shared.plans.dictionary import Column, Dictionary
    from site_agent.config import Recoding

__all__ = ["recoded", "recoded_table", "with_point"]

# 2,3 and 1.234,5 and 1 234,5: a point stands between thousands there. 1.234 alone could be either, and is left to fail.
_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}([. ]\d{3})+)(,\d*)?([eE][-+]?\d+)?")
_DIGITS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+")


def recoded_table(table: pd.DataFrame, values: Mapping[str, Recoding], dictionary: Dictionary) -> pd.DataFrame:
    """The table with each column as `values` says. Raises: DictionaryRefusal (a column that is not there, a person)."""
    columns = {column.name: column for column in dictionary.columns}
    for name in values:
        if name not in columns or columns[name].kind == "person":
            raise DictionaryRefusal(
                "values must be recoded of a column of the dictionary, and never of the one that names persons",
                given=repr(name),
                next_step=f"Take it out again: site-agent data map STUDY --as-is {name}.",
            )
    return table.assign(**{name: recoded(table[name], one, columns[name]) for name, one in values.items()})


def recoded(values: pd.Series, how: Recoding, column: Column) -> pd.Series:
    """(n,) values, recoded; those that mean "missing" and those that it does not know stay as they are.

    >>> from shared.plans.dictionary import Column
    >>> from site_agent.config import Recoding
    >>> sex = Column(name="sex", kind="binary")
    >>> recoded(pd.Series(["m", "w", "x"]), Recoding(levels={"m": "1", "w": "0"}), sex).tolist()
    ['1', '0', 'x']
    >>> chol = Column(name="chol", kind="continuous", lower=40, upper=800, missing_codes=(-9.0,))
    >>> recoded(pd.Series(["5,2", "-9", ""]), Recoding(decimal=",", factor=38.67), chol).tolist()
    [201.084, '-9', '']
    """
    text = values.astype("string").str.strip()
    out = values.astype(object).copy()
    if how.levels:
        found = text.map(lambda value: how.levels.get(value), na_action="ignore")
        out = out.where(found.isna(), found)
        text = out.astype("string").str.strip()
    if how.decimal:
        text = with_point(text)
        out = out.where(text.isna(), text)
    if how.factor != 1 or how.offset:
        number = pd.to_numeric(text, errors="coerce").astype("float64")
        codes = [code for code in column.missing_codes if isinstance(code, float)]
        kept = number.isna() | number.isin(codes)
        # Twelve digits: 5.2 times 38.67 is 201.084, and not what doubles make of it.
        changed = (number * how.factor + how.offset).map(lambda value: float(f"{value:.12g}"), na_action="ignore")
        out = out.where(kept, changed.astype(object))
    return out


def with_point(text: pd.Series) -> pd.Series:
    """Numbers with a decimal comma as numbers with a point; what could be read either way is made no number."""

    def one(value: str) -> str:
        if _DIGITS.fullmatch(value):
            return f"{value}?"
        return value.replace(".", "").replace(" ", "").replace(",", ".") if _COMMA.fullmatch(value) else value

    return text.map(one, na_action="ignore")
