"""A column's values as the dictionary writes them: levels under other names, decimal commas, other units.

A hospital's extract is often read-only, so what is not as the dictionary says is not corrected at its source but read
otherwise, as the steward wrote down once (`site_agent.records.mapping.declared.Recoding`). Nothing is guessed: a value
that the recoding does not know stays as it is, and is counted by `Dictionary.check` if it is none of the dictionary's.
One that could pass for another value once others are read otherwise is refused (`faults`): 1 where 0 is read as 1, a
converted number that is the code of a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from shared.errors import DataRefusal, DictionaryRefusal
from shared.plans.dictionary import LEVELLED, NUMERIC, Column

if TYPE_CHECKING:
    from shared.plans.dictionary import Dictionary
    from site_agent.records.mapping.declared import Recoding

__all__ = ["converted", "faults", "recoded", "recoded_table", "with_point"]

# 2,3 and 1.234,5 and 1 234,5: a point stands between thousands there. 1.234 alone could be either, and is left to fail.
_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}([. ]\d{3})+)(,\d*)?([eE][-+]?\d+)?")
_DIGITS = re.compile(r"[-+]?\d{1,3}(\.\d{3})+")
_WHOLE = re.compile(r"([-+]?\d+)\.0*")


def recoded_table(
    table: pd.DataFrame,
    values: Mapping[str, Recoding],
    dictionary: Dictionary,
    *,
    helpers: Collection[str] = (),
    found: list[DataRefusal] | None = None,
    unseen: dict[str, int] | None = None,
) -> pd.DataFrame:
    """The table with each column as `values` says.

    Args:
        helpers: columns beyond the dictionary that something is made of; they may hold any number.
        found: takes every fault of the values, where None raises the first.
        unseen: takes how many of a column's named values never occur, where there are some.
    Raises: DictionaryRefusal (a column that is not there, a person; a fault).
    """
    columns = {name: Column(name="helper", kind="continuous", lower=-1e300, upper=1e300) for name in helpers}
    columns |= {column.name: column for column in dictionary.columns}
    for name in values:
        if name not in columns or columns[name].kind == "person":
            raise DictionaryRefusal(
                "values must be recoded of a column of the dictionary, and never of the one that names persons",
                given=repr(name),
                next_step=f"Take it out again: site-agent data map STUDY --as-is {name}.",
            )
    wrong = [
        fault for name, one in values.items() if name in table for fault in faults(table[name], one, columns[name])
    ]
    if found is None and wrong:
        raise wrong[0]
    if found is not None:
        found += wrong
    there = {name: one for name, one in values.items() if name in table}
    if unseen is not None:
        counts = {name: _unseen(table[name], one, columns[name]) for name, one in there.items()}
        unseen.update({name: count for name, count in counts.items() if count})
    return table.assign(**{name: recoded(table[name], one, columns[name]) for name, one in there.items()})


def faults(values: pd.Series, how: Recoding, column: Column) -> tuple[DataRefusal, ...]:
    """Errors that make (n,) values ambiguous once they are recoded; each names a column, a rule and a count."""
    found: list[DataRefusal] = []
    how = converted(how, column)

    def refuse(rule: str, given: str, step: str) -> None:
        found.append(DictionaryRefusal(f"column {column.name!r} {rule}", given=given, next_step=step))

    if how.levels:
        names = [(_canonical(name, column), level) for name, level in how.levels.items()]
        if twice := len(set(names)) - len(dict(names)):
            refuse(
                "must be recoded so that one value is one level; 1 and 1.0 are one value",
                f"{twice} values that are two",
                f"Say it anew: site-agent data map STUDY --as-is {column.name}, then --level for each.",
            )
        if column.kind in LEVELLED:
            # As the dictionary reads them: what it takes for a level may be written in many ways.
            taken = column.compare(pd.Series(list(how.levels.values())))[0].dropna()
            stays = column.compare(values.where(_named(values, how, column).isna()))[0]
            if count := int(stays.isin(taken).sum()):
                refuse(
                    "must have every value named that is a level which others are recoded to",
                    f"{count} rows with one that is not",
                    f"Name it too, also where it stays: site-agent data map STUDY --level {column.name}:VALUE=LEVEL.",
                )
    if how.factor != 1 or how.offset:
        number, kept = _numbers(_read(values, how, column)[1], column)
        if count := int((~kept & _converted(number, how).isin(_codes(column))).sum()):
            refuse(
                "must have no number that is the code of a missing value once it is converted",
                f"{count} rows that do",
                "Ask the lead for a code that no value can have, or convert the column at the source.",
            )
    return tuple(found)


def recoded(values: pd.Series, how: Recoding, column: Column) -> pd.Series:
    """(n,) values, recoded; those that mean "missing" and those that it does not know stay as they are.

    >>> from shared.plans.dictionary import Column
    >>> from site_agent.records.mapping.declared import Recoding
    >>> sex = Column(name="sex", kind="binary")
    >>> recoded(pd.Series(["m", "w", "x"]), Recoding(levels={"m": "1", "w": "0"}), sex).tolist()
    ['1', '0', 'x']
    >>> chol = Column(name="chol", kind="continuous", lower=40, upper=800, missing_codes=(-9.0,))
    >>> recoded(pd.Series(["5,2", "-9", ""]), Recoding(decimal=",", factor=38.67), chol).tolist()
    [201.084, '-9', '']
    """
    how = converted(how, column)
    out, text = _read(values, how, column)
    if how.factor != 1 or how.offset:
        number, kept = _numbers(text, column)
        out = out.where(kept, _converted(number, how).astype(object))
    return out


def converted(how: Recoding, column: Column) -> Recoding:
    """The recoding with a factor and an offset in the place of the file's unit. Raises: UsageRefusal."""
    if not how.unit:
        return how
    from site_agent.records.mapping.units import conversion

    factor, offset = conversion(how.unit, column.unit, how.analyte)
    return replace(how, unit="", analyte="", factor=factor, offset=offset)


def with_point(text: pd.Series) -> pd.Series:
    """Numbers with a decimal comma as numbers with a point; what could be read either way is made no number."""

    def one(value: str) -> str:
        if _DIGITS.fullmatch(value):
            return f"{value}?"
        return value.replace(".", "").replace(" ", "").replace(",", ".") if _COMMA.fullmatch(value) else value

    return text.map(one, na_action="ignore")


# -- inside -----------------------------------------------------------------------------------------------------
def _canonical(value: object, column: Column) -> str:
    """A value as text, a whole number and a truth value as its integer: 1, 1.0 and True are one value.

    Parquet and databases give a column of 0 and 1 with one gap as floats, or as truth values.
    """
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    text = str(value).strip()
    if column.kind in NUMERIC or (column.levels and isinstance(column.levels[0], int)):
        try:
            number = float(text)
        except ValueError:
            return text
        return str(int(number)) if number.is_integer() else text
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _named(values: pd.Series, how: Recoding, column: Column) -> pd.Series:
    """The level that each of (n,) values is recoded to; missing where it is not named."""
    known = {_canonical(name, column): level for name, level in how.levels.items()}

    def one(value: object) -> str | None:
        exact = how.levels.get(str(value).strip())
        return known.get(_canonical(value, column)) if exact is None else exact

    return values.astype(object).map(one, na_action="ignore")


def _unseen(values: pd.Series, how: Recoding, column: Column) -> int:
    """Number of values named in `how.levels` that never occur: each is misspelt, or rare."""
    if not how.levels:
        return 0
    seen = {_canonical(value, column) for value in values.dropna().astype(object)}
    seen |= set(values.dropna().astype("string").str.strip())
    return sum(name not in seen and _canonical(name, column) not in seen for name in how.levels)


def _read(values: pd.Series, how: Recoding, column: Column) -> tuple[pd.Series, pd.Series]:
    """Values with their levels and decimals recoded, and the same as text."""
    out = values.astype(object).copy()
    if how.levels:
        found = _named(values, how, column)
        out = out.where(found.isna(), found)
    text = out.astype("string").str.strip()
    if how.decimal:
        # A number of a workbook has no comma, however it is shown: only what is text is read by it.
        typed = out.map(lambda value: isinstance(value, str)).astype(bool)
        text = text.where(~typed, with_point(text))
        out = out.where(~typed, text)
    return out, text


def _codes(column: Column) -> list[float]:
    return [code for code in column.missing_codes if isinstance(code, float)]


def _numbers(text: pd.Series, column: Column) -> tuple[pd.Series, pd.Series]:
    """Values as numbers, and where they stay as they are."""
    number = pd.to_numeric(text, errors="coerce").astype("float64")
    return number, number.isna() | number.isin(_codes(column))


def _converted(number: pd.Series, how: Recoding) -> pd.Series:
    """Numbers in the dictionary's unit."""
    # Twelve digits: 5.2 times 38.67 is 201.084, and not what doubles make of it.
    return (number * how.factor + how.offset).map(lambda value: float(f"{value:.12g}"), na_action="ignore")
