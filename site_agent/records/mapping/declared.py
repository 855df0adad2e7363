"""A steward's declarations about an extract: how its values are written, and how columns are made from them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from shared.base.canonical import is_number
from site_agent.records.mapping.formulas import SPANS, columns_of
from site_agent.records.mapping.toml_form import must

__all__ = ["HOW", "Combination", "DateForm", "FollowUp", "Recoding", "Steps"]

HOW = ("first", "last", "max", "min", "mean", "any")
"""Ways to combine the values of a person's rows into one."""
_STEP = "Correct the mapping: docs/operators-manual.md shows one."
_FORM = re.compile(r"(?:[^%]|%[dmYHMS])+")


@dataclass(frozen=True, kw_only=True)
class Recoding:
    """Conversion of a column's values in a file to the dictionary's; `site_agent.records.mapping.recoding` applies it.

    Args:
        levels: value in the file to level of the dictionary, both as text; a blank level means missing.
        decimal: ``,`` where the file writes decimals with a comma; blank for a point.
        factor, offset: a number of the file, times `factor`, plus `offset`, is one in the dictionary's unit.
        unit: the file's unit, instead of a factor; blank where it is the dictionary's.
        analyte: the substance measured, where units convert by its molar mass (`site_agent.records.mapping.units`).
    Raises: ConfigRefusal, at construction.

    >>> Recoding(levels={"m": "1", "w": "0"}).words, Recoding(decimal=",", factor=38.67).words
    ('m is 1, w is 0', 'decimal comma, times 38.67')
    """

    levels: Mapping[str, str] = field(default_factory=dict)
    decimal: Literal["", ","] = ""
    factor: float = 1.0
    offset: float = 0.0
    unit: str = ""
    analyte: str = ""

    def __post_init__(self) -> None:
        texts = isinstance(self.levels, Mapping) and all(isinstance(level, str) for level in self.levels.values())
        must(texts, "levels must map values of the file to levels, both in quotes", "something else")
        must(self.decimal in ("", ","), "decimal must be ',' or left out", repr(self.decimal))
        for name in ("factor", "offset"):
            value = getattr(self, name)
            number = is_number(value) and math.isfinite(value)
            must(number and (name == "offset" or value != 0), f"{name} must be a number, and no factor 0", value)
            object.__setattr__(self, name, float(value))
        for name in ("unit", "analyte"):
            must(isinstance(getattr(self, name), str), f"{name} must be text", type(getattr(self, name)).__name__)
        twice = bool(self.unit) and (self.factor != 1 or self.offset != 0)
        must(not twice, "values must be converted by a unit or by a factor, not by both", "both")
        must(not self.analyte or bool(self.unit), "an analyte must go with the file's unit", "none")
        object.__setattr__(self, "levels", MappingProxyType(dict(self.levels)))

    @property
    def words(self) -> str:
        """It in a few words; blank where values are taken as they stand."""
        parts = [f"{value} is {level or 'missing'}" for value, level in self.levels.items()]
        parts += ["decimal comma"] if self.decimal else []
        parts += [f"times {self.factor:g}"] if self.factor != 1 else []
        parts += [f"plus {self.offset:g}"] if self.offset else []
        parts += [f"from {self.unit}{f' of {self.analyte}' if self.analyte else ''}"] if self.unit else []
        return ", ".join(parts)

    def to_canonical(self) -> dict[str, Any]:
        """Plain values; what is at its default is left out."""
        out: dict[str, Any] = {"levels": dict(self.levels)} if self.levels else {}
        given = {name: getattr(self, name) for name in ("decimal", "factor", "offset", "unit", "analyte")}
        return out | {name: value for name, value in given.items() if value != getattr(Recoding, name)}


@dataclass(frozen=True, kw_only=True)
class DateForm:
    """Date format of a column.

    Args:
        form: of ``%d %m %Y %H %M %S`` and what stands between them, as ``%d.%m.%Y``; ``iso`` for 2024-01-31, ``excel``
            for Excel's count of days; ``file`` where the file says itself that they are dates.
        missing: texts that mean a missing date, as ``00.00.0000``.
    Raises: ConfigRefusal, at construction.
    """

    form: str
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        form, words = self.form, ("iso", "file", "excel")
        whole = isinstance(form, str) and bool(_FORM.fullmatch(form)) and all(k in form for k in ("%d", "%m", "%Y"))
        rule = f"a date must be {', '.join(words)}, or of %d, %m and %Y: a year of two digits could be of two centuries"
        must(form in words or whole, rule, repr(form), "As in --date birth=%d.%m.%Y.")
        texts = isinstance(self.missing, (list, tuple)) and all(isinstance(text, str) for text in self.missing)
        must(texts, "missing must be a list of texts", type(self.missing).__name__, _STEP)
        object.__setattr__(self, "missing", tuple(self.missing))

    def to_canonical(self) -> Any:
        """Plain values: the form alone, where no text means a missing date."""
        return {"form": self.form, "missing": list(self.missing)} if self.missing else self.form


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Rule that combines the rows of a person into one. A column not in `take` must have one value in all of them.

    Args:
        order: the date or number by which rows are ordered, where a first or last one is taken.
        take: name of a column to one of `HOW`, applied to its values that are not missing.
    Raises: ConfigRefusal, at construction.
    """

    order: str = ""
    take: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        must(isinstance(self.take, Mapping), "persons.take must map columns to how they are taken", "something else")
        wrong = sorted({str(how) for how in self.take.values()} - set(HOW))
        must(not wrong, f"a column must be taken as one of {', '.join(HOW)}", ", ".join(wrong), _STEP)
        ordered = bool(self.order) or not {"first", "last"} & set(self.take.values())
        must(ordered, "persons.order must name the column by which a row is first or last", "none", _STEP)
        object.__setattr__(self, "take", MappingProxyType(dict(self.take)))

    def to_canonical(self) -> dict[str, Any]:
        """Plain values."""
        return ({"order": self.order} if self.order else {}) | {"take": dict(self.take)}


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """Follow-up time and its event, of dates.

    Args:
        time, event: columns of the dictionary that are made; no event where none is asked for.
        start: date from which time counts.
        end: date of the event; nothing where it did not happen.
        last: last date at which the person was known to be without it; nobody is followed beyond.
        until: a day (ISO) beyond which nobody is followed.
        horizon: time at which everybody is censored, in `unit`; None takes the upper bound of `time` in the dictionary.
        unit: days, weeks, months (365.25 / 12 days) or years (365.25 days).
    Raises: ConfigRefusal, at construction.
    """

    time: str
    start: str
    end: str
    unit: str
    event: str = ""
    last: str = ""
    until: str = ""
    horizon: float | None = None

    def __post_init__(self) -> None:
        for name in ("time", "start", "end", "unit", "event", "last", "until"):
            must(isinstance(getattr(self, name), str), f"follow_up.{name} must be text", "something else", _STEP)
        must(self.unit in SPANS, f"follow_up.unit must be one of {', '.join(SPANS)}", repr(self.unit), _STEP)
        rule = "follow_up must name the last date that is known of a person, or a day until which all are followed"
        must(
            bool(self.last or self.until), rule, "neither", "Set last = or until =: else nobody without an event ends."
        )
        if self.until:
            try:
                dt.date.fromisoformat(self.until)
            except ValueError:
                must(False, "follow_up.until must be a day as 2024-12-31", "another form", _STEP)
        number = is_number(self.horizon)
        positive = self.horizon is None or (number and math.isfinite(self.horizon) and self.horizon > 0)
        must(positive, "follow_up.horizon must be a positive number", "another", _STEP)
        object.__setattr__(self, "horizon", None if self.horizon is None else float(self.horizon))

    def to_canonical(self) -> dict[str, Any]:
        """Plain values; what is at its default is left out."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in given.items() if value not in ("", None)}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Preparation of an extract beyond renaming and recoding, in this order: dates, persons, derive, follow_up.

    Args:
        dates: column to its date format.
        persons: rule that combines a person's rows into one; None where each person has one.
        derive: column to the formula it is computed by, in order (`site_agent.records.mapping.formulas`).
        follow_up: times computed from dates; None for none.
    Raises: ConfigRefusal, UsageRefusal (a formula), at construction.

    >>> steps = Steps(dates={"birth": DateForm(form="iso")}, derive={"age": "years between birth and index"})
    >>> steps.made, steps.reads
    (('age',), ('birth', 'index'))
    """

    dates: Mapping[str, DateForm] = field(default_factory=dict)
    persons: Combination | None = None
    derive: Mapping[str, str] = field(default_factory=dict)
    follow_up: FollowUp | None = None

    def __post_init__(self) -> None:
        texts = isinstance(self.derive, Mapping) and all(isinstance(text, str) for text in self.derive.values())
        must(texts, "derive must map columns to formulas, in quotes", "something else", _STEP)
        object.__setattr__(self, "dates", MappingProxyType(dict(self.dates)))
        object.__setattr__(self, "derive", MappingProxyType(dict(self.derive)))
        twice = len(set(self.made)) < len(self.made)
        must(not twice, "a column must be made once, by a formula or as follow-up", "one that is made twice", _STEP)
        object.__setattr__(self, "_reads", self._read())

    @property
    def made(self) -> tuple[str, ...]:
        """Columns that are made, in order."""
        follow = self.follow_up
        return (*self.derive, *((follow.time, *filter(None, (follow.event,))) if follow else ()))

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that must be in the table for what is made."""
        found: tuple[str, ...] = self._reads  # type: ignore[attr-defined]
        return found

    def _read(self) -> tuple[str, ...]:
        read = list(self.dates)
        if self.persons:
            read += [*filter(None, (self.persons.order,)), *self.persons.take]
        for name, formula in self.derive.items():
            read += columns_of(formula, name)
        if self.follow_up:
            read += filter(None, (self.follow_up.start, self.follow_up.end, self.follow_up.last))
        return tuple(name for name in dict.fromkeys(read) if name not in self.made)

    def __bool__(self) -> bool:
        return bool(self.dates or self.persons or self.derive or self.follow_up)

    def to_canonical(self) -> dict[str, Any]:
        """Plain values; what is not declared is left out."""
        out: dict[str, Any] = {}
        if self.dates:
            out["dates"] = {name: form.to_canonical() for name, form in self.dates.items()}
        if self.persons:
            out["persons"] = self.persons.to_canonical()
        if self.derive:
            out["derive"] = dict(self.derive)
        if self.follow_up:
            out["follow_up"] = self.follow_up.to_canonical()
        return out
