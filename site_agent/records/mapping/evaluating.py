"""Values of a formula on a table; its grammar is `site_agent.records.mapping.formulas`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from shared.errors import DictionaryRefusal, UsageRefusal
from site_agent.records.mapping.formulas import SPANS, FormulaPart, parsed

__all__ = ["blank", "evaluate", "numbers"]

MOST = 1e300
"""No measurement is larger, and a person's values can still be added up."""
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": np.minimum,
    "max": np.maximum,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "log": np.log,
    "exp": np.exp,
    "floor": np.floor,
    "round": np.round,
}


def evaluate(formula: str, table: pd.DataFrame, name: str) -> pd.Series:
    """(n,) float64 values of a formula, NaN where missing; dates where it is a date itself.

    Args:
        table: numbers may be text; dates are datetimes.
        name: of the column that is made, for refusals.
    Raises: UsageRefusal; DictionaryRefusal with column, rule and count.

    >>> evaluate("weight / (height / 100) ^ 2", pd.DataFrame({"weight": ["80"], "height": [200]}), "bmi").tolist()
    [20.0]
    """
    values = _Evaluation(table, name).of(parsed(formula, name))
    out = pd.Series(np.broadcast_to(values, len(table)).copy(), index=table.index)
    if out.dtype.kind == "f" and (wrong := int(np.isinf(out).sum())):
        raise DictionaryRefusal(
            f"the formula of {name!r} must give a number in every row",
            given=f"{wrong} rows where it divides by nothing, or takes the logarithm of it",
            next_step="Correct the formula, or the rows at the source.",
        )
    return out


def blank(values: pd.Series) -> pd.Series:
    """(n,) True where a value is missing: absent, empty, or one of the texts NA, NaN and nan."""
    return values.isna() | values.astype("string").str.strip().fillna("").isin(["", "NA", "NaN", "nan"])


def numbers(values: pd.Series) -> tuple[pd.Series, int]:
    """(n,) values as float64, and how many of them say something that is no number, or one beyond `MOST`."""
    number = pd.to_numeric(values.astype("string").str.strip(), errors="coerce").astype("float64")
    number = number.where(number.abs() <= MOST)
    return number, int((number.isna() & ~blank(values)).sum())


# -- inside -----------------------------------------------------------------------------------------------------
class _Evaluation:
    """Values of a formula's parts on one table: float64, datetime64 or, of text, an object array."""

    def __init__(self, table: pd.DataFrame, name: str) -> None:
        self.table, self.name = table, name

    def of(self, node: FormulaPart) -> Any:
        if node.kind == "number":
            return np.float64(node.word)
        if node.kind == "text":
            return node.word
        if node.kind == "column":
            return self._column(node.word)
        if node.kind == "not":
            return 1.0 - self._truth(node.parts[0])
        if node.kind == "call":
            return self._call(node)
        if node.kind == "between":
            return self._between(node)
        return self._binary(node)

    def _column(self, name: str) -> Any:
        if name not in self.table.columns:
            raise UsageRefusal(
                f"the formula of {self.name!r} must be of columns that are there",
                given=repr(name),
                next_step="Spell it as the file or the dictionary does; in brackets, if it is no plain word.",
            )
        values = self.table[name]
        return values.to_numpy() if values.dtype.kind == "M" else values

    def _number(self, node: FormulaPart) -> Any:
        values = self.of(node)
        if isinstance(values, str):
            raise self._mixed("a text where a number must stand")
        if not isinstance(values, pd.Series):
            if getattr(values, "dtype", np.dtype(float)).kind == "M":
                raise self._mixed("a date where a number must stand: days between A and B is one")
            return values
        number, wrong = numbers(values)
        if wrong:
            raise DictionaryRefusal(
                f"column {node.word!r} must be a number: the formula of {self.name!r} reads it",
                given=f"{wrong} rows that are not",
                next_step=f"site-agent data map STUDY --decimal-comma {node.word}, or --level {node.word}:VALUE= for "
                "each word that means that nothing is known.",
            )
        return number.to_numpy()

    def _date(self, node: FormulaPart) -> Any:
        values = self.of(node)
        if not isinstance(values, np.ndarray) or values.dtype.kind != "M":
            raise self._mixed(f"{node.word or 'something'!r}, which is no date")
        return values.astype("datetime64[D]")

    def _mixed(self, given: str) -> UsageRefusal:
        return UsageRefusal(
            f"the formula of {self.name!r} must be of dates where it asks for dates, and of numbers elsewhere",
            given=given,
            next_step="Say how a date is written: site-agent data map STUDY --date NAME=%d.%m.%Y (or iso, or file).",
        )

    def _truth(self, node: FormulaPart) -> Any:
        values = self._number(node)
        return np.where(np.isnan(values), np.nan, (values != 0).astype(float))

    def _call(self, node: FormulaPart) -> Any:
        if node.word == "known":
            values = self.of(node.parts[0])
            if isinstance(values, pd.Series):
                return (~blank(values)).to_numpy(dtype=float)
            return (~pd.isna(values)).astype(float)
        with np.errstate(all="ignore"):
            parts = [self._number(part) for part in node.parts]
            out = _FUNCTIONS[node.word](*parts)
        # A root of less than nothing is no missing value.
        known = ~reduce(np.logical_or, [np.isnan(part) for part in parts])
        return np.where(np.isnan(out) & known, np.inf, out)

    def _between(self, node: FormulaPart) -> Any:
        start, end = (self._date(part) for part in node.parts)
        gone = np.isnat(start) | np.isnat(end)
        if node.word in SPANS:
            return np.where(gone, np.nan, (end - start).astype(float) / SPANS[node.word])
        a, b = (pd.DatetimeIndex(values) for values in (start, end))
        months = (b.year - a.year) * 12 + (b.month - a.month) - (b.day < a.day)
        return np.where(gone, np.nan, months if node.word.endswith("months") else np.floor_divide(months, 12))

    def _binary(self, node: FormulaPart) -> Any:
        if node.word in ("and", "or"):
            a, b = (self._truth(part) for part in node.parts)
            decided = 0.0 if node.word == "and" else 1.0
            known = np.fmin(a, b) if node.word == "and" else np.fmax(a, b)
            return np.where((np.isnan(a) | np.isnan(b)) & (known != decided), np.nan, known)
        if node.word in ("=", "!=", "<", "<=", ">", ">="):
            return self._compared(node)
        a, b = (self._number(part) for part in node.parts)
        with np.errstate(all="ignore"):
            out = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "^": np.power}[node.word](a, b)
        return np.where(np.isnan(out) & ~np.isnan(a) & ~np.isnan(b), np.inf, out)

    def _compared(self, node: FormulaPart) -> Any:
        sides = [self.of(part) for part in node.parts]
        if any(isinstance(side, str) for side in sides):
            if node.word not in ("=", "!=") or all(isinstance(side, str) for side in sides):
                raise self._mixed("an order of texts")
            texts = [side if isinstance(side, str) else pd.Series(side).astype("string").str.strip() for side in sides]
            gone = next(side for side in texts if not isinstance(side, str)).isna().to_numpy()
            same = np.asarray(texts[0] == texts[1], dtype=object)
            same = np.where(gone, False, same).astype(bool)
            return np.where(gone, np.nan, (same if node.word == "=" else ~same).astype(float))
        dates = any(getattr(getattr(side, "dtype", None), "kind", "") == "M" for side in sides)
        a, b = (self._date(part) if dates else self._number(part) for part in node.parts)
        gone = np.isnat(a) | np.isnat(b) if dates else np.isnan(a) | np.isnan(b)
        compare = {"=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater}
        return np.where(gone, np.nan, compare.get(node.word, np.greater_equal)(a, b).astype(float))
