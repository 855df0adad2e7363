"""The data dictionary: names, kinds, units, levels and public bounds of a study's columns.

It is written before anyone looks at a record, and it is the *only* source of bounds and levels. An encoder built
from it therefore depends on no record, and costs no privacy. A value outside it is refused, never stretched to fit.

Missing values are declared per column:

- ``refuse``: none may be missing (the default);
- ``level``: "missing" is a value like any other and is itself released, so the guarantee covers it;
- ``complete_case``: rows with a missing value are left out before encoding. How many that are depends on the
  records, so the receipt names it as not covered.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from shared.base.canonical import canonical_json, closed, sha256_hex
from shared.errors import DataRefusal, DictionaryRefusal, DuplicatePerson, MissingRefusal
from shared.plans.repeated_rows import RepeatedRows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Dictionary", "kind_step", "nearest_kind"]

Kind = Literal["continuous", "integer", "binary", "ordered", "nominal", "time", "event", "person"]
Missing = Literal["refuse", "level", "complete_case"]
Level = str | int

KINDS: tuple[str, ...] = ("continuous", "integer", "binary", "ordered", "nominal", "time", "event", "person")
MISSING: tuple[str, ...] = ("refuse", "level", "complete_case")
NUMERIC = frozenset({"continuous", "integer", "time"})
LEVELLED = frozenset({"binary", "ordered", "nominal", "event"})


_LIKE: Mapping[str, str] = {
    **dict.fromkeys(("categorical", "category", "factor", "string", "text", "character", "enum"), "nominal"),
    **dict.fromkeys(("numeric", "number", "float", "double", "real", "decimal", "metric"), "continuous"),
    **dict.fromkeys(("int", "count", "whole", "year"), "integer"),
    **dict.fromkeys(("bool", "boolean", "dichotomous", "logical", "flag", "yesno"), "binary"),
    **dict.fromkeys(("ordinal", "rank", "scale", "likert"), "ordered"),
    **dict.fromkeys(("id", "identifier", "patient", "subject", "key"), "person"),
    **dict.fromkeys(("duration", "survival", "followup", "days"), "time"),
    **dict.fromkeys(("status", "death", "outcome"), "event"),
}
"""Words of other tools for a column's kind."""
_DATES = ("date", "datetime", "timestamp")


def nearest_kind(given: object) -> str:
    """The kind that somebody may have meant; blank where none is near.

    >>> nearest_kind("categorical"), nearest_kind("continous"), nearest_kind("date")
    ('nominal', 'continuous', '')
    """
    word = str(given).lower().replace("-", "").replace("_", "").replace(" ", "")
    return _LIKE.get(word) or next(iter(difflib.get_close_matches(word, KINDS, n=1)), "")


def kind_step(given: object) -> str:
    """What to do about a kind that there is not.

    >>> kind_step("categorical")
    "Did you mean 'nominal'?"
    """
    if str(given).lower() in _DATES:
        return (
            "Dates are not released: plan what is counted between two, as age (integer) or follow-up (time), which "
            "each hospital derives (site-agent data map --derive)."
        )
    near = nearest_kind(given)
    return f"Did you mean {near!r}?" if near else "Set one of them."


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the study, as agreed before any record is read.

    Args:
        name: name in the released table.
        kind: one of `KINDS`. ``time`` is a follow-up time on [0, upper]; ``event`` its 0/1 indicator; ``person`` the
            identifier, which never leaves the site.
        label: a few words for people.
        unit: unit of the values, e.g. ``mmHg``.
        lower: lowest possible value (numeric kinds); 0 for ``time``.
        upper: highest possible value; for ``time`` the longest possible follow-up.
        levels: possible values, in order (``ordered``) or in a public order (``nominal``); 0 and 1 for ``event``.
        missing: what a missing value is (see the module's text).
        missing_codes: source values that mean "missing", such as 0 for a cholesterol that was not measured.
        decimals: decimals of the released value (``continuous`` and ``time``); None leaves it unrounded.
        event: for ``time``: the name of its event column.
        codes: what the column is in public vocabularies, each as ``LOINC:8480-6`` or ``OMOP:3004249``.
    Raises: DictionaryRefusal, at construction.

    >>> Column(name="sbp", kind="continuous", unit="mmHg", lower=70, upper=260).released
    True
    """

    name: str
    kind: Kind
    label: str = ""
    unit: str = ""
    lower: float | None = None
    upper: float | None = None
    levels: tuple[Level, ...] = ()
    missing: Missing = "refuse"
    missing_codes: tuple[float | str, ...] = ()
    decimals: int | None = None
    event: str = ""
    codes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        def must(holds: bool, rule: str, given: str, step: str = "Correct the dictionary of the plan.") -> None:
            if not holds:
                raise DictionaryRefusal(f"column {self.name!r}: {rule}", given=given, next_step=step)

        must(self.decimals is None or 0 <= self.decimals <= 12, "decimals must be in 0..12", f"{self.decimals}")
        must(bool(self.name) and self.name.isidentifier(), "its name must be a plain word", repr(self.name))
        must(self.kind in KINDS, f"kind must be one of {', '.join(KINDS)}", repr(self.kind), kind_step(self.kind))
        coded = all(isinstance(code, str) and _CODE.fullmatch(code) for code in self.codes)
        must(coded, "codes must each be VOCABULARY:CODE, as LOINC:8480-6", f"{len(self.codes)} codes")
        must(self.missing in MISSING, f"missing must be one of {', '.join(MISSING)}", repr(self.missing))
        # One number has one form, so that 70 and 70.0 give the same hash.
        for bound in ("lower", "upper"):
            if getattr(self, bound) is not None:
                object.__setattr__(self, bound, float(getattr(self, bound)))
        codes = tuple(code if isinstance(code, str) else float(code) for code in self.missing_codes)
        object.__setattr__(self, "missing_codes", codes)
        if self.kind in ("binary", "event") and not self.levels:
            object.__setattr__(self, "levels", (0, 1))
        if self.kind == "time" and self.lower is None:
            object.__setattr__(self, "lower", 0.0)
        if self.kind in NUMERIC:
            finite = all(bound is not None and math.isfinite(bound) for bound in (self.lower, self.upper))
            step = "Write lower = … and upper = …: what is possible by the protocol, never a look at the records."
            must(finite, "a numeric column must have finite public bounds lower and upper", "none", step)
            lower, upper = self.span
            step = "Set lower to the least value that is possible by the dictionary's unit, upper to the greatest."
            must(lower < upper, "lower must be below upper", f"{lower:g} and {upper:g}", step)
            step = "Leave levels out, or set kind = 'nominal' or 'ordered'."
            must(not self.levels, "a numeric column has bounds, not levels", f"{len(self.levels)} levels", step)
        if self.kind == "time":
            must(self.lower == 0, "follow-up must start at 0", f"{self.lower}")
        if self.kind == "integer":
            whole = float(self.lower or 0).is_integer() and float(self.upper or 0).is_integer()
            must(whole, "the bounds of an integer column must be whole numbers", f"{self.lower} and {self.upper}")
        if self.kind in LEVELLED:
            step = 'Write levels = ["low", "high"], as the released table spells them.'
            must(len(self.levels) >= 2, "it must list at least two levels", f"{len(self.levels)}", step)
            must(len(set(self.levels)) == len(self.levels), "its levels must differ", f"{len(self.levels)} levels")
            must(len({type(level) for level in self.levels}) == 1, "levels must be all text or all integers", "a mix")
        if self.kind in ("binary", "event"):
            step = "Set kind = 'nominal' or 'ordered'."
            must(len(self.levels) == 2, "it must have exactly two levels", f"{len(self.levels)}", step)
        if self.kind == "event":
            step = "Leave levels out, or set kind = 'binary'."
            must(self.levels == (0, 1), "an event must be coded 0 and 1", f"{self.levels}", step)
        if self.kind == "person":
            must(self.missing == "refuse", "a person must have an identifier", self.missing)

    @property
    def where_unknown(self) -> str:
        """Instruction to a steward for values that mean "unknown"."""
        if self.missing == "refuse":
            return "the plan lets none be missing here, so leave those rows out, or complete them, at the source."
        return f"site-agent data map STUDY --level {self.name}:VALUE=, once for each that means that nothing is known."

    @property
    def released(self) -> bool:
        """True if the column may leave the site at all (privatised)."""
        return self.kind != "person"

    @property
    def span(self) -> tuple[float, float]:
        """The public bounds of a numeric column."""
        if self.lower is None or self.upper is None:
            raise DictionaryRefusal(f"column {self.name!r} must be numeric to have bounds", given=self.kind)
        return float(self.lower), float(self.upper)

    @cached_property
    def dtype(self) -> Any:
        """The pandas dtype of the released column: levels in words are categories, levels in numbers integers.

        (Parquet keeps categories of words and loses categories of numbers.)
        """
        import numpy as np
        import pandas as pd

        if self.kind in ("continuous", "time"):
            return np.dtype("float64")
        if self.levels and isinstance(self.levels[0], str):
            return pd.CategoricalDtype(list(self.levels), ordered=self.kind == "ordered")
        return pd.Int64Dtype() if self.missing == "level" else np.dtype("int64")

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON; defaults are left out, so a new field changes no old hash."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                out[field.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> Column:
        """Read plain values; an unknown key is refused."""
        known = {field.name for field in fields(cls)}
        where = f"column {str(given.get('name', '?'))[:60]!r}"  # which may be anything, and as long
        closed(given, known, where=where, refusal=DictionaryRefusal)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        for name, value in values.items():
            if not isinstance(value, _PLAIN[name]) or isinstance(value, bool):
                raise DictionaryRefusal(f"{where}: {name} must be {_PLAIN_WORDS[name]}")
        try:
            return cls(**values)
        except TypeError:
            raise DictionaryRefusal("a column must have a name and a kind", given=f"{sorted(given)}") from None

    def check(self, values: pd.Series) -> pd.Series:
        """One source column as canonical values: float64 (numeric) or level codes, NaN where missing.

        Args:
            values: (n,) source values of any dtype; numbers may come as text.
        Returns: (n,) float64; for levelled kinds the index of the level in `levels`.
        Raises: DictionaryRefusal or MissingRefusal with the column, the rule and the count, never a value.
        """
        out, found = self.compare(values)
        if found:
            raise found[0]
        return out

    def compare(self, values: pd.Series) -> tuple[pd.Series, tuple[DataRefusal, ...]]:
        """The checked values, as of `check`, and a refusal for every broken rule, of which `check` raises the first."""
        import pandas as pd

        found: list[DataRefusal] = []

        def refuse(rule: str, wrong: pd.Series, step: str) -> None:
            if count := int(wrong.sum()):
                known = f"{count} row{'s that do' if count > 1 else ' that does'} not"
                if rule.startswith("must be a level"):
                    different = values[wrong].astype("string").str.strip().nunique()
                    known += f", with {different} different value{'s' if different > 1 else ''}"
                found.append(DictionaryRefusal(f"column {self.name!r} {rule}", given=known, next_step=step))

        recode = f"Correct them at the source, or recode them: site-agent data map STUDY --{{}} {self.name}"
        # No text of a number is blank, and to write out each number would take longer than all else.
        numbers = values.dtype.kind in "iuf"
        text = values if numbers else values.astype("string").str.strip()
        blank = values.isna() if numbers else values.isna() | text.fillna("").isin(["", "NA", "NaN", "nan"])
        if self.kind in NUMERIC:
            out = pd.to_numeric(values.where(~blank), errors="coerce").astype("float64")
            unreadable = out.isna() & ~blank
            refuse("must be a number", unreadable, f"Correct them at the source; {self.where_unknown}")
            out = out.where(~out.isin([code for code in self.missing_codes if isinstance(code, float)]))
            lower, upper = self.span
            unit = f"{recode.format('factor')}=NUMBER, if the file has another unit than {self.unit or 'the plan'}. "
            unit += f"For a number that means that nothing is known: {self.where_unknown}"
            infinite = out.isin([math.inf, -math.inf])
            refuse("must be finite", infinite, "Correct them at the source.")
            refuse(f"must be at least {lower:g}", (out < lower) & ~infinite, unit)
            refuse(f"must be at most {upper:g}", (out > upper) & ~infinite, unit)
            if self.kind == "integer":
                broken = (out % 1 != 0) & out.notna() & ~infinite
                refuse("must be a whole number", broken, "Correct them at the source.")
        else:
            if isinstance(self.levels[0], int):  # 1, 1.0 and "1" are the same level
                number = pd.to_numeric(text.where(~blank), errors="coerce")
                index: dict[Any, int] = {level: i for i, level in enumerate(self.levels)}
                coded_missing = number.isin([code for code in self.missing_codes if isinstance(code, float)])
                out = number.map(index).astype("float64")
            else:
                text = text.astype("string")
                index = {str(level): i for i, level in enumerate(self.levels)}
                codes = [code for code in self.missing_codes if isinstance(code, str)]
                # Many tools write 1.0 for everybody's 1 once somebody's is missing: how one is read hangs on no other.
                if not (known := blank | text.isin([*index, *codes])).all():
                    text = text.where(known, text.str.replace(_POINT, r"\1", regex=True))
                coded_missing = text.isin(codes)
                out = text.where(~blank).map(index).astype("float64")
            coded_missing = coded_missing.fillna(False).astype(bool)
            out = out.where(~coded_missing)
            listed = ", ".join(map(str, self.levels))
            step = f"{recode.format('level')}:VALUE={self.levels[-1]}, once for each. Levels: {listed}."
            if self.missing != "refuse":
                step += f" One that means that nothing is known: --level {self.name}:VALUE=."
            unreadable = out.isna() & ~blank & ~coded_missing
            refuse("must be a level of the dictionary", unreadable, step)
        missing = int((out.isna() & ~unreadable).sum())
        if missing and self.missing == "refuse":
            found.append(
                MissingRefusal(
                    f"column {self.name!r} must have no missing value",
                    given=f"{missing} missing",
                    next_step="Complete them, or ask the lead to declare missing = 'level' or 'complete_case'.",
                )
            )
        if missing == len(out) and self.missing == "complete_case":
            found.append(
                MissingRefusal(
                    f"column {self.name!r} must hold at least one value",
                    given=f"{missing} missing",
                    next_step="Check the column mapping (site-agent data map).",
                )
            )
        return out, tuple(found)


_CODE = re.compile(r"[A-Z][A-Z0-9]*:[\w.\-/\[\]]{1,64}")
_POINT = re.compile(r"^([-+]?\d+)\.0*$")
_PLAIN: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "kind", "label", "unit", "missing", "event"), str),
    **dict.fromkeys(("lower", "upper"), (int, float)),
    **dict.fromkeys(("levels", "missing_codes", "codes"), tuple),
    "decimals": int,
}
_PLAIN_WORDS = {
    name: {str: "text", tuple: "a list", int: "a whole number"}.get(kind, "a number")  # type: ignore[arg-type]
    for name, kind in _PLAIN.items()
}


@dataclass(frozen=True, kw_only=True)
class Dictionary:
    """The columns of a study, in order, as they are released.

    Where a person may have several rows in the source, `repeated` says which columns these are; a row of the release,
    and of all that is worked out of it, is a person with all of them.

    >>> d = Dictionary(name="mini", version=1, columns=(
    ...     Column(name="person", kind="person"), Column(name="sex", kind="binary")))
    >>> d.names, len(d.hash)
    (('sex',), 64)
    """

    name: str
    version: int
    columns: tuple[Column, ...]
    repeated: RepeatedRows | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise DictionaryRefusal("column names must differ", given=f"{len(names) - len(set(names))} repeated")
        if not self.columns:
            raise DictionaryRefusal("a dictionary must have at least one column", given="none")
        if sum(column.kind == "person" for column in self.columns) > 1:
            raise DictionaryRefusal("a dictionary must have at most one person column", given="several")
        for column in self.columns:
            if column.kind == "time" and column.event and column.event not in names:
                raise DictionaryRefusal(f"column {column.name!r}: its event must be a column", given=repr(column.event))
        if self.repeated is not None:
            self._require_repeated(self.repeated)

    def _require_repeated(self, repeated: RepeatedRows) -> None:
        if self.person is None:
            raise DictionaryRefusal("repeated: there must be a person column, whose rows they are", given="none")
        known = {column.name: column for column in self.columns}
        for name in repeated.columns:
            there = [known[one] for one in repeated.names(name) if one in known]
            if not there:  # of the columns of one question alone
                continue
            source = replace(there[0], name=name, label="")
            same = all(replace(one, name=name, label="") == source for one in there)
            number = source.kind in ("continuous", "integer")
            fits = number or (source.levels and source.kind != "event" and name != repeated.order)
            if len(there) < repeated.rows or not same or not fits:
                raise DictionaryRefusal(
                    f"repeated: column {name!r} must be a number or have levels, the same in all {repeated.rows} rows",
                    given=f"{len(there)} columns of kind {source.kind}",
                )
        if taken := [name for name in (*repeated.columns, repeated.order) if name in known]:
            raise DictionaryRefusal("repeated: a column must be repeated or not", given=", ".join(taken))

    @cached_property
    def source(self) -> Dictionary:
        """The columns of a site's table, where a person may have several rows; itself where none may.

        >>> repeated = RepeatedRows(rows=2, columns=("sbp",), order="visit", visits=(0, 6))
        >>> sbp = [Column(name=f"sbp_{k}", kind="continuous", lower=70, upper=260, missing="level") for k in (1, 2)]
        >>> columns = (Column(name="person", kind="person"), *sbp)
        >>> [one.name for one in Dictionary(name="d", version=1, columns=columns, repeated=repeated).source.columns]
        ['person', 'visit', 'sbp']
        """
        repeated = self.repeated
        if repeated is None:
            return self
        ends = {name: one for one in repeated.columns for name in repeated.names(one)}
        out = []
        for column in self.columns:
            one = ends.get(column.name)
            if one is None:
                out.append(column)
            elif column.name == repeated.names(one)[0]:
                out.append(replace(column, name=one, label=column.label.rpartition(", ")[0]))
        if repeated.visits:
            out.insert(1, Column(name=repeated.order, kind="ordered", levels=repeated.visits))
        return Dictionary(name=self.name, version=self.version, columns=tuple(out))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the released columns, in order."""
        return tuple(column.name for column in self.columns if column.released)

    @property
    def released(self) -> tuple[Column, ...]:
        """The columns that are released."""
        return tuple(column for column in self.columns if column.released)

    @property
    def widths(self) -> dict[str, int]:
        """Released column of levels in words to the bytes (UTF-8) of its longest level."""
        return {
            column.name: max(len(level.encode()) for level in column.levels if isinstance(level, str))
            for column in self.released
            if column.levels and isinstance(column.levels[0], str)
        }

    @property
    def person(self) -> str | None:
        """Name of the person column, or None when every row is its own person."""
        return next((column.name for column in self.columns if column.kind == "person"), None)

    def column(self, name: str) -> Column:
        """The column called `name`. Raises: DictionaryRefusal, naming the known ones."""
        for column in self.columns:
            if column.name == name:
                return column
        near = difflib.get_close_matches(name, [column.name for column in self.columns], n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise DictionaryRefusal(
            "the column must be in the dictionary",
            given=repr(name),
            next_step=f"{meant}Columns: {', '.join(c.name for c in self.columns)}.",
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical form."""
        return sha256_hex(canonical_json(self.to_canonical()))

    def to_toml(self) -> str:
        """The ``[dictionary]`` section of a plan.

        >>> print(Dictionary(name="m", version=1, columns=(Column(name="sex", kind="binary"),)).to_toml())
        [dictionary]
        name = "m"
        version = 1
        <BLANKLINE>
        [dictionary.columns.sex]
        kind = "binary"
        levels = [0, 1]
        """
        lines = ["[dictionary]", f"name = {json.dumps(self.name)}", f"version = {self.version}"]
        repeated = self.repeated
        if repeated is not None:
            lines += ["", "[dictionary.repeated]", f"rows = {repeated.rows}", f"order = {json.dumps(repeated.order)}"]
        for column in self.source.columns:
            lines += ["", f"[dictionary.columns.{column.name}]"]
            lines += ["repeated = true"] if repeated is not None and column.name in repeated.columns else []
            # JSON's texts, numbers and lists are TOML's.
            plain = column.to_canonical().items()
            lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain if key != "name"]
        return "\n".join(lines)

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        out = {"name": self.name, "version": self.version, "columns": [c.to_canonical() for c in self.columns]}
        return out if self.repeated is None else {**out, "repeated": self.repeated.to_canonical()}

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> Dictionary:
        """Read plain values; an unknown key is refused."""
        closed(given, {"name", "version", "columns", "repeated"}, where="the dictionary", refusal=DictionaryRefusal)
        if not isinstance(given.get("columns"), list) or not all(isinstance(c, Mapping) for c in given["columns"]):
            raise DictionaryRefusal("a dictionary must have a list of columns", given="none")
        version = given.get("version", 1)
        if type(version) is not int:
            raise DictionaryRefusal("a dictionary's version must be a whole number", given=type(version).__name__)
        out = cls(
            name=str(given.get("name", "")),
            version=version,
            columns=tuple(Column.from_canonical(column) for column in given["columns"]),
            repeated=RepeatedRows.from_canonical(given["repeated"]) if "repeated" in given else None,
        )
        repeated = out.repeated
        lacking = [name for name in repeated.columns if repeated.names(name)[0] not in out.names] if repeated else []
        if lacking:
            raise DictionaryRefusal("repeated must name columns that are released", given=", ".join(lacking))
        return out

    def check(self, table: pd.DataFrame) -> pd.DataFrame:
        """Hold a source table against the dictionary.

        Returns: (n, columns) float64 frame of canonical values (`Column.check`), plus the person column as text;
            rows with a missing ``complete_case`` value are left out.
        Raises: DictionaryRefusal (unknown or absent column, value outside), MissingRefusal, DuplicatePerson.
        """
        import numpy as np
        import pandas as pd

        expected = [column.name for column in self.columns]
        for rule, names in (
            ("every column of the dictionary must be in the table", [n for n in expected if n not in table.columns]),
            ("every column of the table must be in the dictionary", [n for n in table.columns if n not in expected]),
        ):
            if names:
                raise DictionaryRefusal(
                    rule, given=f"{', '.join(map(str, names))}", next_step="Map the names with site-agent data map."
                )
        out = pd.DataFrame(index=pd.RangeIndex(len(table)))
        keep = np.ones(len(table), dtype=bool)
        for column in self.columns:
            values = table[column.name].reset_index(drop=True)
            if column.kind == "person":
                persons = values.astype("string").str.strip()
                absent = int((persons.isna() | (persons == "")).sum())
                if absent:
                    raise MissingRefusal(f"column {column.name!r} must identify every row", given=f"{absent} blank")
                repeated = int(persons.duplicated().sum())
                if repeated:
                    raise DuplicatePerson(
                        f"column {column.name!r}: a person must stand in the table once",
                        given=f"{repeated} repeated rows",
                        next_step="Keep one row per person, as the plan's eligibility rule says: at the source, or by "
                        "[persons] in the mapping's file; a plan for several has [dictionary.repeated].",
                    )
                out[column.name] = persons
                continue
            out[column.name] = column.check(values)
            if column.missing == "complete_case":
                keep &= out[column.name].notna().to_numpy()
        return out.loc[keep].reset_index(drop=True)

    def validate_release(self, table: pd.DataFrame) -> None:
        """Hold a *released* table against the dictionary: names, order, dtypes, bounds, levels.

        Raises: DictionaryRefusal. Used by the coordinator on every bundle and by the agent before it seals one.
        """
        import numpy as np

        if tuple(table.columns) != self.names:
            raise DictionaryRefusal("a release must have exactly the dictionary's columns, in order")
        for column in self.released:
            values = table[column.name]
            if values.dtype != column.dtype:
                raise DictionaryRefusal(
                    f"column {column.name!r} must have dtype {column.dtype}", given=f"{values.dtype}"
                )
            missing = int(values.isna().sum())
            if missing and column.missing != "level":
                raise DictionaryRefusal(f"column {column.name!r} must have no missing value", given=f"{missing}")
            present = values.dropna()
            if column.kind in NUMERIC:
                lower, upper = column.span
                number = present.astype("float64")
                outside = int((~np.isfinite(number) | (number < lower) | (number > upper)).sum())
            else:
                outside = int((~present.isin(list(column.levels))).sum())
            if outside:
                raise DictionaryRefusal(
                    f"column {column.name!r} must lie within the dictionary", given=f"{outside} outside"
                )
