"""A study's dictionary from a REDCap data dictionary (CSV), and back.

REDCap says of a field its type, choices, validation and label: enough for most columns. What it does not have (which
field is a follow-up time, decimals, complete cases, codes of missing values) stands as ``@TRIBUTARY={…}`` in the
field's annotation, where a dictionary is written for REDCap, and is read from there again.

Source of the columns' names and field types: the data dictionary as REDCap 14 exports it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shared.errors import DataFileRefusal, DictionaryRefusal, Refusal
from shared.plans.codebook import FromCodebook
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.terminal import FORMULA

__all__ = ["from_redcap", "to_redcap"]

NAME, FORM, KIND, LABEL = "Variable / Field Name", "Form Name", "Field Type", "Field Label"
CHOICES = "Choices, Calculations, OR Slider Labels"
VALIDATION = "Text Validation Type OR Show Slider Number"
LOWER, UPPER = "Text Validation Min", "Text Validation Max"
IDENTIFIER, BRANCHING = "Identifier?", "Branching Logic (Show field only if...)"
REQUIRED, ANNOTATION = "Required Field?", "Field Annotation"
HEADER = (
    *(NAME, FORM, "Section Header", KIND, LABEL, CHOICES, "Field Note", VALIDATION, LOWER, UPPER, IDENTIFIER),
    *(BRANCHING, REQUIRED, "Custom Alignment", "Question Number (surveys only)", "Matrix Group Name"),
    *("Matrix Ranking?", ANNOTATION),
)
MOST = 10_000
"""Fields of a data dictionary."""
_OWN = re.compile(r"@TRIBUTARY=(\{.*?\})(?=\s|$)")
_CODE = re.compile(r"\b(LOINC|OMOP|SNOMED|UCUM)[:=]\s*'?([\w.\-/\[\]]+)'?")
_UNIT = re.compile(r"\(([^()]{1,16})\)\s*$")
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.]+")


def from_redcap(text: str, *, name: str) -> FromCodebook:
    """A dictionary from a REDCap data dictionary.

    The first field is the record's id, as REDCap has it: it becomes the person. A field that is not required, or that
    is shown only under a condition, may be missing (``missing = "level"``).

    Raises: DataFileRefusal (no data dictionary), DictionaryRefusal (no field that can be read).

    >>> found = from_redcap(to_redcap(Dictionary(name="m", version=1, columns=(
    ...     Column(name="record_id", kind="person"),
    ...     Column(name="age", kind="integer", label="Age", unit="years", lower=18, upper=110)))), name="m")
    >>> found.dictionary.columns[1].unit, dict(found.left_out)
    ('years', {})
    """
    rows = _rows(text)
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for place, row in enumerate(rows):
        field_name = row[NAME].strip()
        try:
            label = "" if row[LABEL] == field_name else row[LABEL].strip()
            columns += _columns(row) if place else [Column(name=field_name, kind="person", label=label)]
        except _Left as why:
            left_out[field_name] = str(why)
        except Refusal as refusal:
            left_out[field_name] = refusal.must
    if len(columns) < 2:
        raise DictionaryRefusal(
            "a data dictionary must have a field that becomes a column",
            given=f"{len(rows)} fields, none but the record's id",
            next_step="Give numbers a least and a greatest value, and categories their choices.",
        )
    return FromCodebook(dictionary=Dictionary(name=name, version=1, columns=tuple(columns)), left_out=left_out)


def to_redcap(dictionary: Dictionary) -> str:
    """A REDCap data dictionary (CSV) of a dictionary; `from_redcap` gives the same columns again.

    Raises: DictionaryRefusal (a level that cannot be a REDCap code).
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADER, lineterminator="\r\n")
    writer.writeheader()
    columns = sorted(dictionary.columns, key=lambda column: column.kind != "person")
    for column in columns:
        writer.writerow({name: "" for name in HEADER} | {FORM: "study"} | _row(column))
    return out.getvalue()


# -- inside -----------------------------------------------------------------------------------------------------
class _Left(Exception):
    """Why a field is no column."""


def _rows(text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        found = [{key: value or "" for key, value in row.items() if isinstance(value, str | None)} for row in reader]
        heads = set(reader.fieldnames or ())
    except csv.Error:  # a line feed or a null where CSV has none
        found, heads = [], set()
    needed = {NAME, KIND, LABEL, CHOICES, VALIDATION, LOWER, UPPER}
    if not needed <= heads or not 1 <= len(found) <= MOST:
        raise DataFileRefusal(
            "a REDCap data dictionary must have the columns that REDCap exports",
            given=f"{len(found)} rows, {len(needed - heads)} columns lacking",
            next_step="In REDCap: Project Setup, Data Dictionary, Download the current data dictionary.",
        )
    return [{name: row.get(name, "") or "" for name in HEADER} for row in found]


def _columns(row: Mapping[str, str]) -> list[Column]:
    """The columns of a field: one, or one for each choice that can be ticked. Raises: _Left, Refusal."""
    annotation = row[ANNOTATION]
    if row[IDENTIFIER].strip().lower() == "y":
        raise _Left("names a person: it never leaves a site")
    optional = row[REQUIRED].strip().lower() != "y" or bool(row[BRANCHING].strip())
    label = re.sub(r"<[^>]*>", "", row[LABEL]).strip()
    unit = _UNIT.search(label)
    common: dict[str, Any] = {"name": row[NAME].strip(), "label": label}
    common |= {"missing": "level"} if optional else {}
    if codes := tuple(f"{system}:{code}" for system, code in _CODE.findall(annotation)):
        common["codes"] = codes
    own = _own(annotation)
    kind, validation = row[KIND].strip(), row[VALIDATION].strip()
    if kind == "checkbox":
        return [
            Column(name=f"{common['name']}___{code.lower()}", kind="binary", label=f"{label}: {said}")
            for code, said in _choices(row[CHOICES])
        ]
    if kind in ("yesno", "truefalse"):
        common |= {"kind": "binary"}
    elif kind in ("radio", "dropdown"):
        levels = tuple(code for code, _ in _choices(row[CHOICES]))
        whole = all(re.fullmatch(r"-?\d+", code) for code in levels)
        common |= {"levels": tuple(map(int, levels)) if whole else levels}
        common |= {"kind": "binary" if len(levels) == 2 else "nominal"}
        common["label"] = f"{label} ({', '.join(f'{code} {said}' for code, said in _choices(row[CHOICES]))})"[:200]
    elif kind == "slider":
        common |= {"kind": "integer", "lower": row[LOWER] or 0, "upper": row[UPPER] or 100}
    elif kind == "text" and validation.startswith(("integer", "number")):
        digits = re.search(r"(\d)dp", validation)
        common |= {"kind": "integer" if validation == "integer" else "continuous"}
        common |= {"decimals": int(digits[1])} if digits else {}
        common |= {"lower": row[LOWER], "upper": row[UPPER]} | ({"unit": unit[1]} if unit else {})
        if unit:
            common["label"] = label[: unit.start()].strip()
    elif kind == "text" and validation.startswith("date"):
        raise _Left("a date: sites make ages and times of it (site-agent data map --derive, [follow_up])")
    else:
        raise _Left(f"{kind or 'a field of no type'}, of which no level and no bound is known")
    for bound in ("lower", "upper"):
        if bound in common:
            try:
                common[bound] = float(common[bound])
            except ValueError:
                raise _Left("a number without a least and a greatest value: set both in its validation") from None
    return [Column.from_canonical(common | own)]


def _own(annotation: str) -> dict[str, Any]:
    """Column settings in the field's ``@TRIBUTARY`` annotation, for which REDCap has no place; empty without one."""
    found = _OWN.search(annotation)
    if not found:
        return {}
    try:
        own = json.loads(found[1])
    except (ValueError, RecursionError):
        raise _Left("its @TRIBUTARY annotation is no JSON") from None
    if not isinstance(own, dict):
        raise _Left("its @TRIBUTARY annotation is no JSON object")
    return own


def _choices(text: str) -> list[tuple[str, str]]:
    """Codes and labels of ``1, Male | 2, Female``."""
    pairs = [part.partition(",") for part in text.split("|") if part.strip()]
    found = [(code.strip(), said.strip()) for code, _, said in pairs]
    if not found or any(not code for code, _ in found):
        raise _Left("its choices cannot be read")
    return found


def _row(column: Column) -> dict[str, str]:
    """A column as a field, and in its annotation what a field does not say."""
    label = column.label or column.name
    # A blank that is taken off where it is read: a spreadsheet runs no text that begins with one.
    row = {NAME: column.name, LABEL: f" {label}" if FORMULA.match(label) else label, KIND: "text"}
    if column.kind == "person":
        return row
    if column.missing != "level":
        row[REQUIRED] = "y"
    plain = column.to_canonical()
    if column.kind in NUMERIC:
        lower, upper = column.span
        row[VALIDATION] = "integer" if column.kind == "integer" else "number"
        if column.kind != "integer" and column.decimals is not None and 1 <= column.decimals <= 4:
            row[VALIDATION] = f"number_{column.decimals}dp"
        row |= {LOWER: f"{lower:.15g}", UPPER: f"{upper:.15g}"}
        if column.unit and len(column.unit) <= 16 and not set("()") & set(column.unit):
            row[LABEL] = f"{row[LABEL]} ({column.unit})"
    elif column.levels == (0, 1):
        row[KIND] = "yesno"
    else:
        row[KIND] = "radio"
        strange = [level for level in column.levels if not _PLAIN_CODE.fullmatch(str(level).lstrip("-"))]
        if strange:
            raise DictionaryRefusal(
                f"column {column.name!r} must have levels that can be codes in REDCap: letters, digits, _ and .",
                given=f"{len(strange)} that are not",
                next_step="Spell them so in the plan, with the words in the label.",
            )
        row[CHOICES] = " | ".join(f"{level}, {level}" for level in column.levels)
    row[ANNOTATION] = " ".join(column.codes)
    # What is read back without an annotation is left out of it.
    try:
        [read] = _columns({name: "" for name in HEADER} | row)
        known = read.to_canonical()
    except (_Left, Refusal):
        known = {}
    own = {name: value for name, value in plain.items() if name != "name" and known.get(name) != value}
    gone = {item.name: item.default for item in fields(Column) if item.name in known and item.name not in plain}
    own |= {name: list(value) if isinstance(value, tuple) else value for name, value in gone.items()}
    if own:
        row[ANNOTATION] = f"{row[ANNOTATION]} @TRIBUTARY={json.dumps(own, separators=(',', ':'))}".strip()
    return row
