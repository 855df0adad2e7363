"""A person's rows made one row: a column for each planned visit, or for each of the first rows.

No outcome is read for it: which row stands where follows from the plan's order column alone. Whatever is made of one
person's rows here is a function of them alone, so that a mechanism whose record is a row protects a person with all.
"""

from __future__ import annotations

import pandas as pd

from shared.errors import DuplicatePerson, MissingRefusal
from shared.plans.dictionary import Dictionary
from site_agent.records.mapping.evaluating import blank
from site_agent.records.mapping.preparing import one_value

__all__ = ["one_row_each"]


def one_row_each(table: pd.DataFrame, dictionary: Dictionary) -> pd.DataFrame:
    """The table as it is released, one row for each person; itself where the plan has no repeated rows.

    Args:
        table: (rows, …) with the columns of `Dictionary.source`, identifiers as persons are told apart by them.
    Raises: DictionaryRefusal (a visit that is none, a column that says two things of a person), MissingRefusal (a row
        without a person or without its order), DuplicatePerson (two rows in one place).
    """
    repeated, person = dictionary.repeated, dictionary.person
    if repeated is None or person is None:
        return table
    table = table.reset_index(drop=True)
    who = table[person].astype("string").str.strip()
    if lacking := int(blank(who).sum()):
        raise MissingRefusal(
            f"column {person!r} must identify every row", given=f"{lacking} blank", next_step="Correct the extract."
        )
    group = pd.Series(pd.factorize(who)[0], index=table.index)
    row = _row(table, dictionary, group)
    persons = range(int(group.max()) + 1)
    out = {}
    for column in dictionary.source.columns:
        name = column.name
        if name in repeated.columns:
            for k, released in enumerate(repeated.names(name)):
                there = row == k
                out[released] = table[name][there].set_axis(group[there]).reindex(persons)
        elif name == person:
            out[name] = table[name].groupby(group).first()
        elif name != repeated.order:
            out[name] = one_value(table[name], group, name, "Have it with repeated = true, or correct the extract.")
    return pd.DataFrame(out).reset_index(drop=True)[[column.name for column in dictionary.columns]]


def _row(table: pd.DataFrame, dictionary: Dictionary, group: pd.Series) -> pd.Series:
    """(rows,) index of each row among its person's rows: 0, 1, …, or the visit; the caller drops m and above."""
    repeated = dictionary.repeated
    assert repeated is not None, "one_row_each"
    order = dictionary.source.column(repeated.order)
    place = order.check(table[repeated.order])
    if lacking := int(place.isna().sum()):
        raise MissingRefusal(
            f"column {repeated.order!r} must say of every row which of its person's rows it is",
            given=f"{lacking} blank",
            next_step="Complete it at the source, or leave those rows out.",
        )
    if twice := int(pd.DataFrame({"group": group, "place": place}).duplicated().sum()):
        raise DuplicatePerson(
            f"a person must have one row for each value of {repeated.order!r}",
            given=f"{twice} rows more",
            next_step="Combine or leave out the others at the source.",
        )
    if repeated.visits:
        return place.astype("int64")
    return place.groupby(group).rank(method="first").astype("int64") - 1
