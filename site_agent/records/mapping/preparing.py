"""From an extract's rows to the study's: dates read, a person's rows made one, columns derived, follow-up counted.

Each step refuses what it would have to guess, by column, rule and count. Nothing here depends on the order of the
rows: the same records give the same table from every format.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from shared.base.clock import utc_now
from shared.errors import DictionaryRefusal, MissingRefusal, UsageRefusal
from site_agent.records.mapping.evaluating import blank, evaluate, numbers
from site_agent.records.mapping.formulas import SPANS
from site_agent.records.mapping.units import known_spelling

if TYPE_CHECKING:
    from shared.plans.dictionary import Dictionary
    from site_agent.records.mapping.declared import Combination, DateForm, FollowUp, Steps

__all__ = ["dates", "one_value", "prepared"]

_AHEAD = 20 * 365.25
"""Days. No hospital plans further: a later date stands for none, as 31.12.9999 does where nobody died."""


def prepared(
    table: pd.DataFrame, steps: Steps, dictionary: Dictionary, *, identify: Callable[[pd.Series], pd.Series]
) -> pd.DataFrame:
    """The table after all steps; columns that were only read for them are still in it.

    Args:
        table: under the dictionary's names, recoded; columns beyond it under the file's.
        identify: identifiers as persons are told apart by them.
    Raises: DictionaryRefusal, MissingRefusal, UsageRefusal.
    """
    table = table.reset_index(drop=True)
    by = [dictionary.person] if steps.persons is not None and dictionary.person else []
    absent = [name for name in (*by, *steps.reads) if name not in table.columns]
    if absent:
        raise DictionaryRefusal(
            "every column that the mapping reads must be in the table",
            given=f"no {', '.join(map(repr, absent))}",
            next_step="Correct the mapping with site-agent data map, or the extract.",
        )
    for name, form in steps.dates.items():
        table[name] = dates(table[name], form, name)
        _require_known_days(table, name)
    if steps.persons is not None:
        table = _combined(table, steps.persons, dictionary, identify)
    for name, formula in steps.derive.items():
        table[name] = evaluate(formula, table, name)
    if steps.follow_up is not None:
        table = _followed(table, steps.follow_up, dictionary)
    return table


def dates(values: pd.Series, how: DateForm, name: str) -> pd.Series:
    """(n,) values as days, NaT where nothing is known. Raises: DictionaryRefusal.

    >>> from site_agent.records.mapping.declared import DateForm
    >>> dates(pd.Series(["31.1.2024", ""]), DateForm(form="%d.%m.%Y"), "birth").dt.strftime("%Y-%m-%d").tolist()
    ['2024-01-31', nan]
    """
    text = values.astype("string").str.strip()
    gone = blank(values) | text.isin(how.missing)
    dated = values.map(lambda value: isinstance(value, dt.date)).astype(bool)  # a datetime is one
    if values.dtype.kind == "M":
        dated = ~gone
    out = pd.Series(pd.NaT, index=values.index, dtype="datetime64[s]")
    # The day as it is written: of times with a zone beside times without one there is no common clock.
    written = values[dated & ~gone].map(lambda value: value.date() if isinstance(value, dt.datetime) else value)
    out[dated & ~gone] = pd.to_datetime(written).astype("datetime64[s]")
    rest = ~dated & ~gone
    if how.form == "excel":
        count = pd.to_numeric(text[rest], errors="coerce")
        count = count.where((count >= 61) & (count < 2958466))  # from March 1900, where its calendar agrees with ours
        out[rest] = pd.Timestamp("1899-12-30") + pd.to_timedelta(count.round(), unit="D")
    elif how.form == "iso":
        day = text[rest].str.extract(r"^(\d{4}-\d\d-\d\d)(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[-+]\d\d:?\d\d)?)?$")
        out[rest] = pd.to_datetime(day[0], format="%Y-%m-%d", errors="coerce").astype("datetime64[s]")
    elif how.form != "file":
        out[rest] = pd.to_datetime(text[rest], format=how.form, errors="coerce").astype("datetime64[s]")
    if wrong := int((out.isna() & ~gone).sum()):
        raise DictionaryRefusal(
            f"column {name!r} must hold dates written as {how.form}",
            given=f"{wrong} rows that do not",
            next_step=f"site-agent data map STUDY --date {name}=FORM, or correct them at the source.",
        )
    return out.dt.normalize()


def _require_known_days(table: pd.DataFrame, name: str, *, ahead: float = _AHEAD) -> None:
    """Refuse dates of a column more than so many days ahead. Raises: DictionaryRefusal."""
    if count := int((_days(table, name) > _tomorrow() + ahead).sum()):
        whole = f"no date more than {ahead / 365.25:.0f} years ahead" if ahead else "no date after today"
        raise DictionaryRefusal(
            f"column {name!r} must hold {whole}{'' if ahead else ': follow-up is counted by it'}",
            given=f"{count} rows with one; by this machine's clock it is {utc_now():%Y-%m-%d}",
            next_step=f"Where it means that there is none, as 31.12.9999 does: site-agent data map STUDY "
            f"--level {name}:TEXT=, with the text as the file has it. Else correct them at the source.",
        )


def _tomorrow() -> float:
    """Days from 1970 to the day after today: where the sun rises first it is tomorrow already."""
    return float(np.datetime64(utc_now().date(), "D").astype("int64")) + 1


# -- a person's rows --------------------------------------------------------------------------------------------
def _combined(
    table: pd.DataFrame, how: Combination, dictionary: Dictionary, identify: Callable[[pd.Series], pd.Series]
) -> pd.DataFrame:
    """One row for each person."""
    person = dictionary.person
    if person is None:
        raise UsageRefusal(
            "rows must have a person to be combined by",
            given="a dictionary without a column of persons",
            next_step="Take [persons] out of the mapping.",
        )
    who = identify(table[person])
    if lacking := int((who.isna() | (who == "")).sum()):
        raise MissingRefusal(
            f"column {person!r} must identify every row", given=f"{lacking} blank", next_step="Correct the extract."
        )
    group = pd.Series(pd.factorize(who)[0], index=table.index)
    place = _ordered(table, how) if how.order else None
    out = {person: table[person].groupby(group).first()}
    for name in table.columns:
        if name == person:
            continue
        taken = how.take.get(name, "")
        if taken in ("first", "last"):
            assert place is not None, "Combination"
            out[name] = _at_an_end(table[name], group, place, name, last=taken == "last")
        elif taken:
            level = dictionary.column(name).levels[-1] if _levelled(dictionary, name) else 1
            out[name] = _taken(table[name], group, taken, name, level)
        else:
            out[name] = one_value(
                table[name],
                group,
                name,
                f"Add {name} = 'first' (or last, max, min, mean, any) under [persons.take] of the mapping.",
            )
    return pd.DataFrame(out).reset_index(drop=True)[list(table.columns)]


def _levelled(dictionary: Dictionary, name: str) -> bool:
    return any(column.name == name and column.levels for column in dictionary.columns)


def _known(values: pd.Series) -> pd.Series:
    return values[~blank(values)]


def _spelled(values: pd.Series) -> pd.Series:
    """Values in a form that is equal for equal ones: numbers by their value, however they are written."""
    text = values.astype("string").str.strip()
    number = pd.to_numeric(text, errors="coerce")
    return text.where(number.isna(), number.astype("string"))


def _ordered(table: pd.DataFrame, how: Combination) -> pd.Series:
    """The column by which rows are ordered, as numbers; it may be blank where a row has nothing that is taken by it."""
    name, values = how.order, table[how.order]
    taken = [column for column, way in how.take.items() if way in ("first", "last") and column in table.columns]
    needed = pd.Series(False, index=table.index)
    for column in taken:
        needed |= ~blank(table[column])
    if values.dtype.kind == "M":
        number, wrong = values.astype("int64").astype("float64").where(values.notna()), 0
    else:
        number, wrong = numbers(values)
    if lacking := int((number.isna() & (needed | ~blank(values))).sum()):
        of = ", ".join(taken) or "anything"
        written = f"Say how it is written: site-agent data map STUDY --date {name}=FORM; or correct the extract."
        raise DictionaryRefusal(
            f"column {name!r} must be a date or a number in every row that has a value of {of}: "
            "it says which of a person's is first",
            given=f"{wrong} rows with something else" if wrong else f"{lacking} rows without one",
            next_step=written if wrong else "Complete them at the source.",
        )
    return number


def one_value(values: pd.Series, group: pd.Series, name: str, step: str) -> pd.Series:
    """(persons,) value of each person, which must be the same in all rows where it is not missing.

    Args:
        values: (rows,). group: (rows,) the persons, numbered from 0.
        step: the next step in the refusal.
    Raises: DictionaryRefusal.
    """
    known = _known(values)
    different = _spelled(known).groupby(group[known.index]).nunique() > 1
    if count := int(different.sum()):
        raise DictionaryRefusal(
            f"column {name!r} must say the same in all rows of a person, or the mapping which counts",
            given=f"{count} persons of whom it does not",
            next_step=step,
        )
    return known.groupby(group[known.index]).first().reindex(range(int(group.max()) + 1))


def _at_an_end(values: pd.Series, group: pd.Series, place: pd.Series, name: str, *, last: bool) -> pd.Series:
    """The first or last value that is known of each person."""
    known = _known(values)
    at, whose = place[known.index], group[known.index]
    end = at.groupby(whose).transform("max" if last else "min")
    there = known[at == end]
    if count := int((_spelled(there).groupby(whose[there.index]).nunique() > 1).sum()):
        raise DictionaryRefusal(
            f"column {name!r} must have one {'last' if last else 'first'} value of a person",
            given=f"{count} persons with several on one day",
            next_step="Order the rows by a column that tells them apart, or take max, min, mean or any.",
        )
    return there.groupby(whose[there.index]).first().reindex(range(int(group.max()) + 1))


def _taken(values: pd.Series, group: pd.Series, how: str, name: str, level: Any) -> pd.Series:
    persons = range(int(group.max()) + 1)
    if how == "any":
        known = _known(values)
        yes = _spelled(known) == _spelled(pd.Series([level]))[0]
        some = yes.groupby(group[known.index]).any().reindex(persons)
        rest = known[~yes].groupby(group[known[~yes].index]).first().reindex(persons)
        return rest.astype(object).where(some.isna() | (some != True), level)  # noqa: E712  (missing is neither)
    if values.dtype.kind == "M":
        if how == "mean":
            raise UsageRefusal(
                "a date must be taken as first, last, max or min", given=f"mean of {name!r}", next_step="Choose one."
            )
        return values.groupby(group).agg(how)
    number, wrong = numbers(values)
    if wrong:
        raise DictionaryRefusal(
            f"column {name!r} must hold numbers, of which the {how} is taken",
            given=f"{wrong} rows that are not",
            next_step=f"site-agent data map STUDY --decimal-comma {name}, or --level {name}:VALUE= for what means that "
            "nothing is known.",
        )
    codes = number.dropna()
    grouped = codes.groupby(group[codes.index])
    # Added up exactly, so that the order of the rows changes no bit.
    found = grouped.agg(lambda part: math.fsum(part) / len(part)) if how == "mean" else grouped.agg(how)
    return found.reindex(persons)


# -- follow-up --------------------------------------------------------------------------------------------------
def _followed(table: pd.DataFrame, how: FollowUp, dictionary: Dictionary) -> pd.DataFrame:
    """The table with time and event."""
    column = dictionary.column(how.time)
    theirs = {"d": "days", "wk": "weeks", "mo": "months", "a": "years"}.get(known_spelling(column.unit), "")
    if theirs and theirs != how.unit:
        raise UsageRefusal(
            f"follow_up.unit must be the dictionary's of {how.time!r}",
            given=f"{how.unit}, not {column.unit}",
            next_step=f'Set unit = "{theirs}" under [follow_up].',
        )
    horizon = column.span[1] if how.horizon is None else how.horizon
    if horizon > column.span[1]:
        raise UsageRefusal(
            f"follow_up.horizon must be within the dictionary's upper bound of {how.time!r}",
            given=f"{horizon:g}, bound {column.span[1]:g}",
            next_step="Lower it, or leave it out.",
        )
    for name in filter(None, (how.start, how.end, how.last)):
        _require_known_days(table, name, ahead=0)
    start, end = _days(table, how.start), _days(table, how.end)
    last = _days(table, how.last) if how.last else np.full(len(table), np.nan)
    until = float(np.datetime64(how.until, "D").astype("int64")) if how.until else math.inf
    for name, day in ((how.end, end), (how.last, last), ("until", np.full(len(table), until))):
        if count := int((day < start).sum()):
            raise DictionaryRefusal(
                f"follow-up must not end before it starts, at {how.start!r}",
                given=f"{count} rows where {name!r} is before",
                next_step="Correct them at the source, or leave those persons out of the extract.",
            )
    span = SPANS[how.unit]
    limit = np.minimum(until, start + horizon * span)
    happened = end <= limit
    censored = np.minimum(last if how.last else math.inf, limit)
    # Whoever has the event after the limit was without it until then.
    censored = np.where(end > limit, limit, censored)
    if count := int((np.where(happened, end, censored) > _tomorrow()).sum()):
        raise DictionaryRefusal(
            "nobody can have been followed beyond today",
            given=f"{count} rows, until {how.until}",
            next_step="Set until under [follow_up] to the day of the extract, or name the last contact: last.",
        )
    time = np.minimum((np.where(happened, end, censored) - start) / span, horizon)
    out = table.assign(**{how.time: time})
    if how.event:
        out[how.event] = np.where(np.isnan(time), np.nan, happened.astype(float))
    return out


def _days(table: pd.DataFrame, name: str) -> Any:
    """(n,) float64 days since 1970, NaN where nothing is known."""
    if table[name].dtype.kind != "M":
        raise UsageRefusal(
            f"column {name!r} must be a date: follow-up is counted by it",
            given="something else",
            next_step=f"Say how it is written: site-agent data map STUDY --date {name}=%d.%m.%Y (or iso, or file).",
        )
    day = table[name].to_numpy().astype("datetime64[D]")
    return np.where(np.isnat(day), np.nan, day.astype("int64").astype("float64"))
