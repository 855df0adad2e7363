"""A study's dictionary from a codebook: a table (CSV or a workbook), or DDI, the archives' own XML.

A codebook lists variables with their type, label, unit, range and values. What it says of a column is taken; what it
does not say is never guessed: a number without a least and a greatest value, or a category without its values, is left
out, with why.

A table's columns are found by their heads (`HEADS`), in any order; further ones are not read. Values stand as
``0=no; 1=yes`` or ``female; male``. Source of DDI's elements: DDI Codebook 2.5 (``var``, ``labl``, ``valrng``,
``invalrng``, ``catgry``).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from shared.errors import DataFileRefusal, DictionaryRefusal, Refusal, require
from shared.plans.dictionary import LEVELLED, NUMERIC, Column, Dictionary, nearest_kind

__all__ = ["FromCodebook", "from_codebook"]

HEADS: Mapping[str, tuple[str, ...]] = {
    "name": ("name", "variable", "variable name", "field", "column"),
    "kind": ("kind", "type", "data type", "format"),
    "label": ("label", "description", "question", "meaning"),
    "unit": ("unit", "units", "ucum"),
    "lower": ("lower", "min", "minimum", "least"),
    "upper": ("upper", "max", "maximum", "greatest"),
    "levels": ("levels", "values", "categories", "choices", "codes and labels"),
    "missing_codes": ("missing codes", "missing values", "missing_codes", "na"),
    "missing": ("missing", "may be missing"),
    "decimals": ("decimals", "digits"),
    "event": ("event",),
    "codes": ("codes", "loinc", "omop", "concept"),
}
"""Property of a plan's column, to the table heads under which a codebook may list it."""
MOST = 10_000
"""Variables of a codebook."""
CAP = 16 << 20
"""Bytes of one."""
_NEXT = "A codebook is a table with the heads name, type, label, unit, min, max and values, or a DDI file (.xml)."


@dataclass(frozen=True, kw_only=True)
class FromCodebook:
    """Result of importing a codebook: the columns read, and the variables left out.

    Args:
        dictionary: of the variables that could be read.
        left_out: the other variables, each with the reason, in words.
    """

    dictionary: Dictionary
    left_out: Mapping[str, str] = field(default_factory=dict)


def from_codebook(path: Path, *, name: str) -> FromCodebook:
    """A dictionary from a codebook's file: ``.csv``, ``.xlsx`` or ``.xml`` (DDI).

    Raises: DataFileRefusal (no codebook), DictionaryRefusal (no variable that can be read), PackageRefusal.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".xlsx", ".xml"):
        raise _no("a file that ends in .csv, .tsv, .xlsx or .xml", repr(suffix))
    if path.stat().st_size > CAP:
        raise _no(f"of at most {CAP >> 20} MB", f"{path.stat().st_size >> 20} MB")
    variables = _ddi(path) if suffix == ".xml" else _tabular(_cells(path, suffix))
    if not 1 <= len(variables) <= MOST:
        raise _no(f"with 1 to {MOST:,} variables", f"{len(variables):,}")
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for said in variables:
        variable = said.get("name", "") or "a variable without a name"
        try:
            column = _column(said)
            if any(column.name == known.name for known in columns):
                raise DictionaryRefusal("its name stands twice")
            columns.append(column)
        except Refusal as refusal:
            left_out[variable] = refusal.must.partition("': ")[2] or refusal.must
    if not any(column.released for column in columns):
        raise DictionaryRefusal(
            "a codebook must have a variable that becomes a column",
            given=f"{len(variables)} variables, none that does",
            next_step="Give numbers a least and a greatest value, and categories their values.",
        )
    return FromCodebook(dictionary=Dictionary(name=name, version=1, columns=tuple(columns)), left_out=left_out)


def _no(rule: str, given: str) -> DataFileRefusal:
    return DataFileRefusal(f"a codebook must be {rule}", given=given, next_step=_NEXT)


# -- tables ------------------------------------------------------------------------------------------------------
def _cells(path: Path, suffix: str) -> list[list[str]]:
    """The rows of a table, as texts."""
    if suffix == ".xlsx":
        require("openpyxl")
        import openpyxl

        try:
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            found = [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]
            book.close()
        except Exception as error:  # a damaged workbook fails in a dozen classes
            raise _no("a whole workbook", type(error).__name__) from None
        return [
            ["" if cell is None else f"{cell:g}" if isinstance(cell, float) else f"{cell}" for cell in row]
            for row in found
        ]
    try:
        text = path.read_text(encoding="utf-8-sig")
        first = text.partition("\n")[0]
        between = "\t" if suffix == ".tsv" else max(",;\t|", key=first.count)
        return list(csv.reader(io.StringIO(text), delimiter=between))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no("text in UTF-8", type(error).__name__) from None


def _tabular(rows: list[list[str]]) -> list[dict[str, str]]:
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    heads = [re.sub(r"[\s_]+", " ", cell.strip().lower()) for cell in rows[0]] if rows else []
    known = {alias.replace("_", " "): to for to, aliases in HEADS.items() for alias in aliases}
    places = {known[head]: place for place, head in reversed(list(enumerate(heads))) if head in known}
    if "name" not in places or not {"kind", "levels", "lower"} & places.keys():
        raise _no("a table whose first line has heads", f"{len(places)} that are known")
    return [
        {to: row[place].strip() if place < len(row) else "" for to, place in places.items()}
        for row in rows[1 : MOST + 2]
    ]


# -- DDI ---------------------------------------------------------------------------------------------------------
def _ddi(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    # Entities can make a small file a large one; no codebook declares any. In another encoding they are not found.
    head = data[:512].lower()
    if b"<!doctype" in data.lower() or b"<!entity" in data.lower() or b"\0" in head:
        raise _no("XML in UTF-8 without a document type", "another")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise _no("whole XML", type(error).__name__) from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
    return [_variable(one) for one in root.iter("var")]


def _variable(one: ElementTree.Element) -> dict[str, str]:
    said = {"name": one.get("name", ""), "label": _text(one, "labl")}
    categories = [
        (_text(category, "catValu"), _text(category, "labl"))
        for category in one.iter("catgry")
        if category.get("missing", "N").upper() != "Y"
    ]
    gone = [
        _text(category, "catValu") for category in one.iter("catgry") if category.get("missing", "N").upper() == "Y"
    ]
    gone += [item.get("VALUE", "") for block in one.iter("invalrng") for item in block.iter("item")]
    said["missing_codes"] = "; ".join(dict.fromkeys(code for code in gone if code))
    ranges = [item for block in one.iter("valrng") for item in block.iter("range")]
    numbers = one.get("intrvl") == "contin" or (ranges and not categories)
    if categories and not numbers:
        said["levels"] = "; ".join(f"{code}={label}" if label else code for code, label in categories)
        return said
    said["kind"] = "continuous" if one.get("dcml", "0") not in ("", "0") else "integer"
    if one.get("intrvl") == "contin":
        said["kind"] = "continuous"
    said["decimals"] = one.get("dcml", "")
    if ranges:
        said["lower"], said["upper"] = ranges[0].get("min", ""), ranges[0].get("max", "")
        said["unit"] = ranges[0].get("UNITS", "") if ranges[0].get("UNITS", "") not in ("INT", "REAL") else ""
    return said


def _text(element: ElementTree.Element, name: str) -> str:
    found = element.find(name)
    return " ".join("".join(found.itertext()).split()) if found is not None else ""


# -- columns -----------------------------------------------------------------------------------------------------
def _column(said: Mapping[str, str]) -> Column:
    """A variable as a column. Raises: Refusal, with what it lacks."""
    given: dict[str, Any] = {"name": said.get("name", ""), "label": said.get("label", "")[:200]}
    pairs = [part.partition("=") for part in re.split(r"[;|]", said.get("levels", "")) if part.strip()]
    codes = [code.strip() for code, _, _ in pairs]
    words = [label.strip() for _, _, label in pairs]
    kind = said.get("kind", "").strip()
    kind = nearest_kind(kind) if kind else ""
    if not kind and said.get("kind", "").strip() and not codes:
        raise DictionaryRefusal("its type is none that a plan knows, as number, integer, category or time")
    if codes and (not kind or kind in NUMERIC or (kind == "nominal" and len(codes) == 2)):
        kind = "binary" if len(codes) == 2 else "nominal"
    given["kind"] = kind or "continuous"
    if kind in LEVELLED:
        whole = bool(codes) and all(re.fullmatch(r"-?\d+", code) for code in codes)
        if codes:
            given["levels"] = tuple(map(int, codes)) if whole else tuple(codes)
        elif kind not in ("binary", "event"):
            raise DictionaryRefusal("a category without its values")
        if any(words):
            given["label"] = (
                f"{given['label']} ({', '.join(f'{c} {w}' for c, w in zip(codes, words, strict=True) if w)})"
            )
            given["label"] = given["label"].strip()[:200]
    elif kind != "person":
        for bound in ("lower", "upper"):
            text = said.get(bound, "")
            if not (bound == "lower" and kind == "time" and not text):
                given[bound] = _number(text, "a number without a least and a greatest value")
        if said.get("unit"):
            given["unit"] = said["unit"]
        if said.get("decimals", "").isdigit() and kind in ("continuous", "time", ""):
            given["decimals"] = int(said["decimals"])
        if kind == "time" and said.get("event"):
            given["event"] = said["event"]
    gone = [code.strip() for code in re.split(r"[;|]", said.get("missing_codes", "")) if code.strip()]
    if gone:
        given["missing_codes"] = tuple(_coded(code) for code in gone)
    if kind != "person" and (gone or said.get("missing", "").lower() in ("y", "yes", "1", "true", "level")):
        given["missing"] = "level"
    public = tuple(re.findall(r"\b[A-Z][A-Za-z]*:[\w.\-]+", said.get("codes", "")))
    if public:
        given["codes"] = public
    return Column(**given)


def _number(text: str, lacking: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DictionaryRefusal(lacking) from None


def _coded(code: str) -> float | str:
    try:
        return float(code)
    except ValueError:
        return code
