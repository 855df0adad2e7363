"""The quality of a study's table before its first release: what is possible, and still unlikely to be true.

`Dictionary.check` refuses what the plan rules out. What it lets pass may be wrong all the same: values heaped at a
bound, last digits that people prefer, combinations that nobody has, dates out of order, the same record twice. Each
finding is a column, a rule and a count; the pictures' figures are of single records' columns. All of it stays here.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.errors import DataRefusal, UsageRefusal
from shared.plans.dictionary import NUMERIC
from site_agent.records.mapping.evaluating import evaluate

if TYPE_CHECKING:
    from shared.plans.dictionary import Column, Dictionary

__all__ = ["BUILT_IN", "ColumnPicture", "Finding", "QualityReport", "assess", "drift"]

BINS = 20
PATTERNS = 12
"""Patterns of missing values that are shown, the most frequent first."""
AT_A_BOUND, HEAPED, OUTLYING = 0.05, 0.35, 6.0
"""Share of values at a bound, and of last digits 0 and 5 (a fifth is expected), from which a column is told; distance
from the median in robust standard deviations (1.4826 times the median absolute deviation)."""
FEW = 10
MOVED, BY_CHANCE = 0.1, 0.001
"""Population stability index from which new persons are told to be others, and the p-value from which it is chance."""
_BMI = "{0} / ({1} / 100) ^ 2 >= 10 and {0} / ({1} / 100) ^ 2 <= 100"
BUILT_IN: Sequence[tuple[str, tuple[str, str], tuple[str, str], str]] = (
    ("systolic above diastolic pressure", ("sbp", "LOINC:8480-6"), ("dbp", "LOINC:8462-4"), "{0} > {1}"),
    ("a body mass index of 10 to 100", ("weight", "LOINC:29463-7"), ("height", "LOINC:8302-2"), _BMI),
)
"""Name of a rule, the columns that it needs by name or code, and the formula that every row must satisfy."""
State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Args:
        rule: what was expected, in words.
        column: of which column; blank where of rows.
        count: rows that are otherwise.
        rows: rows that were looked at.
    """

    rule: str
    column: str = ""
    count: int = 0
    rows: int = 0
    state: State = "warn"


@dataclass(frozen=True, kw_only=True)
class ColumnPicture:
    """A column's distribution, for the page that stays here.

    Args:
        labels: of the bars: levels, or the lower ends of the bins.
        heights: rows in each.
        missing: rows without a value.
    """

    column: str
    unit: str
    labels: tuple[str, ...]
    heights: tuple[int, ...]
    missing: int


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """Findings on a table's quality, and a distribution per column. `patterns` counts rows by their missing columns."""

    rows: int
    findings: tuple[Finding, ...]
    pictures: tuple[ColumnPicture, ...] = ()
    patterns: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """The worst of its findings."""
        states = {finding.state for finding in self.findings}
        return "fail" if "fail" in states else "warn" if "warn" in states else "ok"


def assess(
    table: pd.DataFrame | None,
    dictionary: Dictionary,
    *,
    problems: Sequence[DataRefusal] = (),
    dates: Mapping[str, pd.Series] | None = None,
    rules: Mapping[str, str] | None = None,
    today: dt.date | None = None,
    earlier: NDArray[np.bool_] | None = None,
) -> QualityReport:
    """The report of a table.

    Args:
        table: (n, columns) canonical values, as `Dictionary.check` returns them; None where it refuses.
        problems: what `site_agent.records.table.problems` found.
        dates: columns of the extract that are dates, as days.
        rules: name to a formula that must hold in every row, beside those of `BUILT_IN`.
        today: dates after it are counted.
        earlier: (n,) rows of persons who were released before; None where nobody can be told apart.
    Raises: UsageRefusal (a rule that is no formula).
    """
    refused = [Finding(rule=f"{p.must}: {p.given}", state="fail") for p in problems]
    if table is None or table.empty:
        return QualityReport(rows=0, findings=tuple(refused))
    findings = list(refused)
    columns = [column for column in dictionary.released if column.name in table]
    for column in columns:
        findings += _of_column(table[column.name], column)
    findings += _combinations(table, columns, rules or {})
    findings += _repeated(table, columns)
    findings += _in_order(dates or {}, today)
    if earlier is not None:
        found = (drift(table[one.name][earlier], table[one.name][~earlier], one) for one in columns)
        findings += [one for one in found if one is not None]
    if not any(finding.state != "ok" for finding in findings):
        findings.append(Finding(rule="nothing that is unlikely to be true", rows=len(table), state="ok"))
    return QualityReport(
        rows=len(table),
        findings=tuple(findings),
        pictures=tuple(_picture(table[column.name], column) for column in columns),
        patterns=_patterns(table, columns),
    )


# -- one column -------------------------------------------------------------------------------------------------
def _of_column(values: pd.Series, column: Column) -> list[Finding]:
    known = values.dropna()
    found = []

    def tell(rule: str, count: int) -> None:
        if count:
            found.append(Finding(rule=rule, column=column.name, count=count, rows=len(known)))

    if len(known) == 0:
        return [Finding(rule="at least one value", column=column.name, count=len(values), rows=len(values))]
    if known.nunique() == 1 and len(known) >= FEW:
        tell("more than one value: all are the same", len(known))
        return found
    if column.kind in NUMERIC:
        for bound, name in zip(column.span, ("least", "greatest"), strict=True):
            at = int((known == bound).sum())
            if column.kind != "time" and at >= FEW and at > AT_A_BOUND * len(known):
                tell(f"few values at the {name} possible one, {bound:g}", at)
        middle = known.median()
        spread = 1.4826 * (known - middle).abs().median()
        if spread > 0:
            tell(f"no value further than {OUTLYING:g} robust SDs from the median", _beyond(known, middle, spread))
        if share := _preferred(known, column):
            tell("last digits that are equally frequent: 0 and 5 are preferred", share)
        return found
    counts = known.value_counts()
    never = len(column.levels) - len(counts)
    if never:
        found.append(Finding(rule=f"every level: {never} never occur", column=column.name, count=0, rows=len(known)))
    rare = counts[counts < FEW]
    tell(f"no level of fewer than {FEW} rows: {len(rare)} are", int(rare.sum()))
    return found


def drift(before: pd.Series, new: pd.Series, column: Column) -> Finding | None:
    """Finding that new persons' values differ from those of persons released before; None where alike, or few.

    Measured by the population stability index Σ (q − p) log(q / p) over the levels, or over the deciles of the earlier
    values, with missing values as a class of their own. It is reported only if a χ² test is significant at 0.001. It
    shows a registry that has changed its codes or units, and a hospital whose patients have changed.
    """
    from scipy.stats import chi2

    if min(len(before), len(new)) < 5 * FEW:
        return None
    if column.kind in NUMERIC:
        edges = np.unique(before.dropna().astype(float).quantile(np.arange(11) / 10))
        edges = np.append(edges, np.nextafter(edges[-1:], np.inf))  # what lies beyond all earlier values is apart
        places = [np.searchsorted(edges, part.astype(float).to_numpy(), side="right") for part in (before, new)]
        classes = len(edges) + 1
    else:
        places = [part.fillna(0).to_numpy(dtype=np.int64) for part in (before, new)]
        classes = len(column.levels)
    placed = [np.where(part.isna(), classes, place) for part, place in zip((before, new), places, strict=True)]
    counts = np.array([np.bincount(place, minlength=classes + 1) for place in placed], dtype=float)
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    p, q = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    index = float(((q - p) * np.log(q / p)).sum())
    if index < MOVED or chi2.sf(statistic, counts.shape[1] - 1) > BY_CHANCE:
        return None
    rule = f"new persons are like those released before: their population stability index is {index:.2f}, not below"
    return Finding(rule=f"{rule} {MOVED:g}", column=column.name)


def _beyond(known: pd.Series, middle: float, spread: float) -> int:
    return int(((known - middle).abs() > OUTLYING * spread).sum())


def _preferred(known: pd.Series, column: Column) -> int:
    """Rows whose last digit is 0 or 5, where those are more than chance and rounding to whole numbers explain.

    They must be so without the commonest value too: a heap at one value, as at a detection limit or at the end of
    follow-up, is no preference for a digit.
    """
    digits = column.decimals or 0
    scaled = (known * 10**digits).round()
    if column.kind == "continuous" and column.decimals is None and (known % 1 != 0).any():
        return 0
    if scaled.max() - scaled.min() < 30 or len(known) < 50:
        return 0
    rounded = (scaled.astype("int64").abs() % 10).isin([0, 5])

    def too_many(among: pd.Series) -> bool:
        # The normal approximation to a binomial of a fifth: four standard errors.
        n = len(among)
        return int(among.sum()) > max(HEAPED * n, 0.2 * n + 4 * (0.16 * n) ** 0.5)

    others = rounded[scaled != scaled.mode().iloc[0]]
    return int(rounded.sum()) if too_many(rounded) and too_many(others) else 0


def _picture(values: pd.Series, column: Column) -> ColumnPicture:
    known = values.dropna()
    if column.kind in NUMERIC:
        lower, upper = (float(known.min()), float(known.max())) if len(known) else column.span
        edges = np.linspace(lower, upper if upper > lower else lower + 1, BINS + 1)
        heights = np.histogram(known, bins=edges)[0]
        labels = tuple(f"{edge:.4g}" for edge in edges[:-1])
    else:
        heights = np.bincount(known.astype(int), minlength=len(column.levels))
        labels = tuple(map(str, column.levels))
    return ColumnPicture(
        column=column.name,
        unit=column.unit,
        labels=labels,
        heights=tuple(int(height) for height in heights),
        missing=len(values) - len(known),
    )


# -- several columns --------------------------------------------------------------------------------------------
def _combinations(table: pd.DataFrame, columns: Sequence[Column], rules: Mapping[str, str]) -> list[Finding]:
    """Rules that hold of every row; a row that lacks a value of one is not judged by it."""
    found = []
    words = pd.DataFrame({column.name: _said(table[column.name], column) for column in columns})
    for name, formula in {**_built_in(columns), **rules}.items():
        holds = evaluate(formula, words, name)
        if holds.dtype.kind != "f":
            raise UsageRefusal("a rule must be true or false", given=repr(name), next_step="As in 'sbp > dbp'.")
        count, judged = int((holds == 0).sum()), int(holds.notna().sum())
        found.append(Finding(rule=name, count=count, rows=judged, state="fail" if count else "ok"))
    return found


def _said(values: pd.Series, column: Column) -> pd.Series:
    """Values as the dictionary spells them."""
    if column.kind in NUMERIC:
        return values
    return values.map(dict(enumerate(map(str, column.levels))))


def _built_in(columns: Sequence[Column]) -> dict[str, str]:
    def named(name: str, code: str) -> str:
        return next((c.name for c in columns if code in c.codes or c.name.lower() == name), "")

    found = {}
    for rule, first, second, formula in BUILT_IN:
        one, two = named(*first), named(*second)
        if one and two:
            found[rule] = formula.format(one, two)
    return found


def _repeated(table: pd.DataFrame, columns: Sequence[Column]) -> list[Finding]:
    """Rows that agree in everything, where there is enough in a row to tell persons by."""
    names = [column.name for column in columns]
    distinct = np.prod([min(table[name].nunique(), 10**6) for name in names], dtype=float)
    if distinct < 100 * len(table) ** 2:
        return []
    count = int(table.duplicated(names, keep="first").sum())
    return [Finding(rule="no two persons who agree in every column", count=count, rows=len(table))] if count else []


def _in_order(dates: Mapping[str, pd.Series], today: dt.date | None) -> list[Finding]:
    found = []
    births = [name for name in dates if re.search(r"birth|geb|dob|naiss|nacim|^né", name.lower())]
    for name, days in dates.items():
        if today is not None and (count := int((days > pd.Timestamp(today)).sum())):
            found.append(Finding(rule="no date after today", column=name, count=count, rows=int(days.notna().sum())))
        for birth in births:
            if name != birth and (count := int((days < dates[birth]).sum())):
                rule = f"no date before {birth}"
                found.append(Finding(rule=rule, column=name, count=count, rows=int(days.notna().sum()), state="fail"))
    return found


def _patterns(table: pd.DataFrame, columns: Sequence[Column]) -> dict[tuple[str, ...], int]:
    names = [column.name for column in columns]
    gone = table[names].isna()
    counts: dict[tuple[str, ...], Any] = {}
    for row, count in gone.value_counts().items():
        lacking = row if isinstance(row, tuple) else (row,)
        counts[tuple(name for name, absent in zip(names, lacking, strict=True) if absent)] = int(count)
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:PATTERNS])
