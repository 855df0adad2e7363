"""One SELECT for a cohort and its covariates in an OMOP CDM (version 5), from a short definition: nothing is written.

The definition is a TOML file; the SELECT is an ordinary `.sql` file, which whoever answers for the database can read
before it runs, and which is added as any other (`site-agent data add cohort.sql --database VARIABLE`). It gives one
row per person: ``person_id``, ``index_date``, ``age``, ``gender_concept_id``, a column for each covariate,
``event_date`` and ``end_date``. Concepts stand for all that descend from them (``concept_ancestor``).

Source of the tables and columns: the OMOP Common Data Model 5.4.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.base.canonical import closed
from shared.errors import ConfigRefusal, UsageRefusal

__all__ = ["DIALECTS", "CohortDefinition", "read", "select", "source_of"]

DIALECTS = ("sqlite", "postgresql")
TABLES: Mapping[str, tuple[str, str, str]] = {
    "condition_occurrence": ("condition_concept_id", "condition_start_date", ""),
    "procedure_occurrence": ("procedure_concept_id", "procedure_date", ""),
    "drug_exposure": ("drug_concept_id", "drug_exposure_start_date", ""),
    "measurement": ("measurement_concept_id", "measurement_date", "value_as_number"),
    "observation": ("observation_concept_id", "observation_date", "value_as_number"),
    "visit_occurrence": ("visit_concept_id", "visit_start_date", ""),
    "death": ("cause_concept_id", "death_date", ""),
}
"""Table of the CDM to its columns of concept, date and value."""
VERSION = re.compile(r"(?<!\d)(\d{1,2})(?!\d)")
"""Of ``cdm_source.cdm_version``, in which people write it as they like (v5.4, OMOP CDM Version 5.3.1, 5): its first."""
_TOLD_BY = re.compile(r"-- An OMOP CDM of version 5, by (?:(\w+)\.)?cdm_source\.")
TAKE = ("last", "first", "max", "min", "mean", "any")
LONGEST = 366 * 120
"""Days before or after the index date."""
_STEP = "Correct the definition; docs/first-mile.md shows one."
_WORD = re.compile(r"[a-z][a-z0-9_]{0,62}")
_OWN = ("person_id", "index_date", "age", "gender_concept_id", "event_date", "end_date")


@dataclass(frozen=True, kw_only=True)
class RecordsOfCdm:
    """Records of one table of the CDM.

    Args:
        table: one of `TABLES`.
        concepts: ids; with all that descend from them. Of ``death`` none means any cause.
        take: which value, or whether there is any record.
        days: first and last day of the window, counted from the index date.
        units: ``unit_concept_id`` that are read; a record in another unit is left out. Empty reads all.
    """

    table: str
    concepts: tuple[int, ...] = ()
    take: str = "any"
    days: tuple[int, int] = (-365, 0)
    units: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CohortDefinition:
    """A cohort: who enters, when, and what is read of them."""

    entry: RecordsOfCdm
    since: dt.date
    until: dt.date
    prior_days: int
    covariates: Mapping[str, RecordsOfCdm]
    event: RecordsOfCdm | None
    schema: str


def read(path: Path) -> CohortDefinition:
    """A definition from its file. Raises: ConfigRefusal."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
        raise ConfigRefusal(f"the definition {path.name} must be TOML", given=said, next_step=_STEP) from None
    closed(given, {"schema", "cohort", "covariates", "event"}, where=path.name, refusal=ConfigRefusal)
    for name in ("cohort", "covariates", "event"):
        _must(isinstance(given.get(name, {}), dict), f"[{name}] must be a table", "something else")
    cohort, schema = given.get("cohort", {}), given.get("schema", "")
    closed(cohort, {"table", "concepts", "from", "to", "prior_days"}, where="[cohort]", refusal=ConfigRefusal)
    for name in ("from", "to"):
        day = isinstance(cohort.get(name), dt.date) and not isinstance(cohort.get(name), dt.datetime)
        _must(day, f"[cohort] must set {name} to a day", "none, or another form")
    prior = cohort.get("prior_days", 0)
    _must(type(prior) is int and 0 <= prior <= LONGEST, "[cohort] prior_days must be a number of days", "another")
    _must(schema == "" or (isinstance(schema, str) and bool(_WORD.fullmatch(schema))), "schema must be a word", "else")
    entry = {name: value for name, value in cohort.items() if name in ("table", "concepts")}
    covariates = {name: _records(one, f"[covariates.{name}]") for name, one in given.get("covariates", {}).items()}
    plain = [name for name in covariates if _WORD.fullmatch(name) and name not in _OWN]
    _must(len(plain) == len(covariates), "a covariate must have a name of its own, in small letters", "another")
    event = given.get("event")
    return CohortDefinition(
        entry=_records(entry, "[cohort]"),
        since=cohort["from"],
        until=cohort["to"],
        prior_days=prior,
        covariates=covariates,
        event=None if event is None else _records(event, "[event]", death=True),
        schema=schema,
    )


def select(cohort: CohortDefinition, dialect: str) -> str:
    """The SELECT of a cohort.

    Args:
        dialect: one of `DIALECTS`.
    Raises: UsageRefusal.
    """
    if dialect not in DIALECTS:
        raise UsageRefusal(
            f"the dialect must be one of {', '.join(DIALECTS)}", given=repr(dialect), next_step="Choose."
        )
    at = f"{cohort.schema}." if cohort.schema else ""
    writer = _Writer(at, dialect)
    columns = [
        "e.person_id",
        "e.index_date",
        f"{writer.year('e.index_date')} - p.year_of_birth AS age",
        "p.gender_concept_id",
        *(f"{writer.value(records)} AS {name}" for name, records in cohort.covariates.items()),
    ]
    if cohort.event is not None:
        columns.append(f"{writer.first_after(cohort.event)} AS event_date")
    columns.append("e.end_date")
    _, date, _ = TABLES[cohort.entry.table]
    lines = [
        f"-- An OMOP CDM of version 5, by {at}cdm_source.",
        "-- Persons by their first record of the entry's concepts, and what is read of them; written by",
        "-- site-agent data omop. It reads and writes nothing.",
        "WITH first_record AS (",
        f"  SELECT r.person_id, min(r.{date}) AS index_date",
        f"  FROM {at}{cohort.entry.table} r WHERE {writer.concepts(cohort.entry)}",
        "  GROUP BY r.person_id",
        "),",
        "entered AS (",
        "  SELECT f.person_id, f.index_date, max(o.observation_period_end_date) AS end_date",
        f"  FROM first_record f JOIN {at}observation_period o ON o.person_id = f.person_id",
        f"    AND {writer.shifted('o.observation_period_start_date', cohort.prior_days)} <= f.index_date",
        "    AND o.observation_period_end_date >= f.index_date",
        f"  WHERE f.index_date BETWEEN {writer.day(cohort.since)} AND {writer.day(cohort.until)}",
        "  GROUP BY f.person_id, f.index_date",
        ")",
        "SELECT",
        "  " + ",\n  ".join(columns),
        f"FROM entered e JOIN {at}person p ON p.person_id = e.person_id",
    ]
    return "\n".join(lines) + "\n"


def source_of(query: str) -> str | None:
    """The schema whose ``cdm_source`` says which version the database of a written SELECT is; None of any other query.

    >>> source_of("-- An OMOP CDM of version 5, by cdm.cdm_source.\\nSELECT 1"), source_of("SELECT 1")
    ('cdm', None)
    """
    found = _TOLD_BY.match(query)
    return None if found is None else found[1] or ""


# -- inside -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Writer:
    """Parts of the SELECT in one dialect."""

    at: str
    dialect: str

    def day(self, day: dt.date) -> str:
        return f"'{day}'" if self.dialect == "sqlite" else f"DATE '{day}'"

    def year(self, date: str) -> str:
        if self.dialect == "sqlite":
            return f"CAST(strftime('%Y', {date}) AS INTEGER)"
        return f"CAST(extract(year FROM {date}) AS INTEGER)"

    def shifted(self, date: str, days: int) -> str:
        return f"date({date}, '{days:+d} days')" if self.dialect == "sqlite" else f"({date} + ({days}))"

    def concepts(self, records: RecordsOfCdm) -> str:
        if not records.concepts:
            return "1 = 1"
        ids = ", ".join(map(str, records.concepts))
        return (
            f"r.{TABLES[records.table][0]} IN (SELECT a.descendant_concept_id FROM {self.at}concept_ancestor a "
            f"WHERE a.ancestor_concept_id IN ({ids}))"
        )

    def _where(self, records: RecordsOfCdm, *, value: bool) -> str:
        _, date, number = TABLES[records.table]
        first, last = records.days
        parts = ["r.person_id = e.person_id", self.concepts(records)]
        parts.append(f"r.{date} BETWEEN {self.shifted('e.index_date', first)} AND {self.shifted('e.index_date', last)}")
        if records.units:
            parts.append(f"r.unit_concept_id IN ({', '.join(map(str, records.units))})")
        if value:
            parts.append(f"r.{number} IS NOT NULL")
        return " AND ".join(parts)

    def value(self, records: RecordsOfCdm) -> str:
        _, date, number = TABLES[records.table]
        table = f"FROM {self.at}{records.table} r WHERE "
        if records.take == "any":
            return f"CASE WHEN EXISTS (SELECT 1 {table}{self._where(records, value=False)}) THEN 1 ELSE 0 END"
        where = self._where(records, value=True)
        if records.take in ("first", "last"):
            way = "DESC" if records.take == "last" else "ASC"
            order = f"ORDER BY r.{date} {way}, r.{records.table}_id {way} LIMIT 1"
            return f"(SELECT r.{number} {table}{where} {order})"
        function = {"mean": "avg"}.get(records.take, records.take)
        return f"(SELECT {function}(r.{number}) {table}{where})"

    def first_after(self, records: RecordsOfCdm) -> str:
        date = TABLES[records.table][1]
        where = f"r.person_id = e.person_id AND {self.concepts(records)} AND r.{date} >= e.index_date"
        return f"(SELECT min(r.{date}) FROM {self.at}{records.table} r WHERE {where})"


def _must(holds: bool, rule: str, given: object) -> None:
    if not holds:
        raise ConfigRefusal(rule, given=f"{given}", next_step=_STEP)


def _ids(given: Any, where: str) -> tuple[int, ...]:
    whole = isinstance(given, list) and all(type(one) is int and 0 < one < 2**31 for one in given)
    _must(whole, f"{where} must list concept ids", "something else")
    return tuple(given)


def _records(given: Any, where: str, *, death: bool = False) -> RecordsOfCdm:
    _must(isinstance(given, dict), f"{where} must be a table", "something else")
    closed(given, {"table", "concepts", "take", "days", "units"}, where=where, refusal=ConfigRefusal)
    table, take = given.get("table"), given.get("take", "any")
    _must(table in TABLES, f"{where} must name one of {', '.join(TABLES)}", repr(table))
    _must(take in TAKE, f"{where} must take one of {', '.join(TAKE)}", repr(take))
    _must(take == "any" or bool(TABLES[table][2]), f"{where}: of {table} only any can be taken", repr(take))
    concepts = _ids(given.get("concepts", []), where)
    _must(bool(concepts) or (death and table == "death"), f"{where} must list concepts", "none")
    days: Sequence[Any] = given.get("days", [-365, 0])
    whole = isinstance(days, list) and len(days) == 2 and all(type(day) is int and abs(day) <= LONGEST for day in days)
    _must(whole and days[0] <= days[1], f"{where} days must be a first and a last day from the index date", "another")
    units = _ids(given.get("units", []), where)
    _must(not units or table in ("measurement", "observation"), f"{where}: {table} has no units", len(units))
    return RecordsOfCdm(table=table, concepts=concepts, take=take, days=(days[0], days[1]), units=units)
