"""A mapping changed by the options of a command, and held against the dictionary before it is kept."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import DictionaryRefusal, UsageRefusal, meant
from site_agent.records.mapping.declared import DateForm, Recoding, Steps
from site_agent.records.mapping.formulas import columns_of
from site_agent.records.mapping.recoding import converted

if TYPE_CHECKING:
    from shared.plans.dictionary import Column, Dictionary

__all__ = ["require_planned", "split", "steps", "values"]


def require_planned(mapped: Mapping[str, Any], dictionary: Dictionary) -> None:
    """Refuse a mapping of what the dictionary does not have, all at once where names are wrong.

    Args:
        mapped: as `site_agent.records.mapping.document.text` takes it.
    Raises: DictionaryRefusal (a name), UsageRefusal (a level, a unit).
    """
    made: Steps = mapped.get("steps") or Steps()
    known = [column.name for column in dictionary.columns]
    beside = {*made.reads, *made.made}
    named = [*mapped.get("columns", {}).values(), *mapped.get("values", {})]
    absent = [name for name in dict.fromkeys(named) if name not in known and name not in beside]
    follow = made.follow_up
    read = {name for formula_name, formula in made.derive.items() for name in columns_of(formula, formula_name)}
    read |= {follow.start, follow.end, follow.last} if follow else set()
    absent += [name for name in made.derive if name not in known and name not in read]
    absent += [name for name in ((follow.time, follow.event) if follow else ()) if name and name not in known]
    if absent:
        said = [meant(name, known, what="Columns") for name in absent]
        raise DictionaryRefusal(
            "a column of the file must be mapped to one of the plan's dictionary",
            given=", ".join(map(repr, absent)),
            next_step=" ".join(dict.fromkeys(said)),
        )
    for name, how in mapped.get("values", {}).items():
        if name not in known:
            continue
        column = _recodable(name, dictionary)
        for level in how.levels.values():
            _require_level(name, level, column, "")
        converted(how, column)


def split(texts: Sequence[str] | None, form: str) -> dict[str, str]:
    """NAME=WORD options as pairs. Raises: UsageRefusal.

    Args:
        form: how one looks, for the refusal: ``--date NAME=FORM``.
    """
    out = {}
    for text in texts or ():
        name, sign, word = text.partition("=")
        if not (name and sign and word):
            raise UsageRefusal(f"{form.partition(' ')[0]} must be {form.partition(' ')[2]}", given=repr(text))
        out[name] = word
    return out


def steps(
    before: Steps, dates: Mapping[str, str], derive: Mapping[str, str], as_is: Sequence[str], levels: Sequence[str] = ()
) -> tuple[Steps, list[str]]:
    """Steps after the options ``--date``, ``--derive`` and ``--level``, and the levels that are of no column of dates.

    Args:
        before: the steps that these options change.
        dates: column to its date format; texts that mean a missing date stay.
        derive: column to its formula.
        as_is: columns that lose their own step.
        levels: NAME:VALUE=LEVEL options; of a column of dates, NAME:TEXT= for a text that means a missing date.
    Raises: UsageRefusal.
    """
    forms = {name: form for name, form in before.dates.items() if name not in as_is}
    formulas = {name: formula for name, formula in before.derive.items() if name not in as_is}
    for name, form in dates.items():
        forms[name] = replace(forms[name], form=form) if name in forms else DateForm(form=form)
    others = []
    for text in levels:
        name, _, pair = text.partition(":")
        value, sign, to = pair.rpartition("=")
        if name not in forms:
            others.append(text)
        elif to or not (sign and value):
            step = f"As in {name}:31.12.9999="
            raise UsageRefusal("a text of a column of dates can only be missing", given=repr(text), next_step=step)
        else:
            forms[name] = replace(forms[name], missing=tuple(dict.fromkeys((*forms[name].missing, value))))
    return replace(before, dates=forms, derive={**formulas, **derive}), others


def values(
    before: Mapping[str, Recoding],
    dictionary: Dictionary,
    as_is: Sequence[str],
    levels: Sequence[str],
    commas: Sequence[str],
    words: Mapping[str, Sequence[str] | None],
) -> dict[str, Recoding]:
    """Recodings by column, after these options have been applied to those `before`.

    Args:
        as_is: columns whose recoding is dropped.
        levels: NAME:VALUE=LEVEL options.
        commas: columns with decimal commas.
        words: ``factor``, ``offset``, ``unit`` and ``analyte`` to their NAME=WORD options.
    Raises: UsageRefusal; DictionaryRefusal (no such column).
    """

    def numeric(name: str) -> None:
        if _recodable(name, dictionary).lower is None:
            step = f"Its levels are named instead: --level {name}:VALUE=LEVEL."
            given = f"{name!r}, of levels"
            raise UsageRefusal("a number is read otherwise only in a column of numbers", given=given, next_step=step)

    out = {name: how for name, how in before.items() if name not in as_is}
    for text in levels:
        name, colon, pair = text.partition(":")
        value, sign, to = pair.rpartition("=")
        if not (colon and sign and value):
            raise UsageRefusal("a level must be NAME:VALUE=LEVEL", given=repr(text), next_step="As in sex:m=1.")
        _require_level(name, to, _recodable(name, dictionary), value)
        how = out.get(name, Recoding())
        out[name] = replace(how, levels={**how.levels, value: to})
    for name in commas:
        numeric(name)
        out[name] = replace(out.get(name, Recoding()), decimal=",")
    changes: dict[str, dict[str, Any]] = {}
    for what, texts in words.items():
        for text in texts or ():
            name, _, word = text.partition("=")
            numeric(name)
            try:
                changes.setdefault(name, {})[what] = float(word) if what in ("factor", "offset") else word
            except ValueError:
                step = "As in chol=38.67."
                raise UsageRefusal(f"--{what} must be NAME=NUMBER", given=repr(text), next_step=step) from None
    for name, change in changes.items():  # both words of a unit at once: an analyte alone says nothing
        other: dict[str, Any] = {"factor": 1.0, "offset": 0.0} if "unit" in change else {}
        if {"factor", "offset"} & change.keys():
            other = {"unit": "", "analyte": ""}
        out[name] = replace(out.get(name, Recoding()), **{**other, **change})
    return out


# -- inside -----------------------------------------------------------------------------------------------------
def _recodable(name: str, dictionary: Dictionary) -> Column:
    column = dictionary.column(name)
    if column.kind == "person":
        raise UsageRefusal(
            "persons must be told apart as the file names them",
            given=f"a recoding of {name!r}",
            next_step="Correct identifiers where the extract is made.",
        )
    return column


def _require_level(name: str, level: str, column: Column, value: str) -> None:
    known = [str(known) for known in column.levels]
    if level and level not in known:
        near = difflib.get_close_matches(level, known, n=1)
        listed = f"Levels: {', '.join(known) or 'none, it holds numbers'}. None at all: {name}:{value}= is missing."
        step = f"Did you mean {near[0]!r}? {listed}" if near else listed
        raise UsageRefusal(f"{name!r} must have the level", given=repr(level), next_step=step)
