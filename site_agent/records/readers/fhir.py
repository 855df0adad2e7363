"""FHIR Bulk exports: a cohort and what is read of it, from the NDJSON files of Patient, Observation and Condition.

What is named to the agent is a short definition, a TOML file that ends in ``.fhir`` and says where the export lies; the
NDJSON files are read in place, line by line, and only what the definition names is kept. The table has one row per
patient: ``person``, ``index_date``, ``birth_date``, ``gender``, a column for each covariate, ``event_date`` where an
event is defined, and ``end_date`` where follow-up has a last day. It is mapped as any other table.

Where death is the event, a patient who is dead without a day, or died before the index date, is nobody's survivor: the
export is refused, or such patients are left out where the definition says so.

Codes are ``system|code``, or ``code`` for that code of any system. An observation of several components (a blood
pressure) is read by the component that has the code. What was entered in error, cancelled or refuted is not read.
Source of the resources and their elements: HL7 FHIR R4.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import closed, is_day
from shared.errors import DataFileRefusal
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource

__all__ = ["READERS"]

RESOURCES = ("Condition", "Observation")
TAKE = ("last", "first", "max", "min", "mean", "any")
LONGEST = 366 * 120
"""Days before or after the index date."""
_OWN = ("person", "index_date", "birth_date", "gender", "event_date", "end_date")
_STEP = "Correct the definition; docs/first-mile.md shows one."
_WORD = re.compile(r"[a-z][a-z0-9_]{0,62}")
_WRONG = ("entered-in-error", "cancelled", "refuted")
_WHEN = ("effectiveDateTime", "effectiveInstant", "onsetDateTime", "recordedDate", "issued")


@dataclass(frozen=True, kw_only=True)
class ResourcesOfExport:
    """Resources of one kind that a definition names.

    Args:
        resource: one of `RESOURCES`, or ``Patient`` of an event: the day of death.
        codes: ``system|code`` or ``code``.
        take: which value, or whether there is any resource.
        days: first and last day of the window, counted from the index date.
        unit: UCUM code of the values that are read; a value in another unit is not. Blank where all have one.
    """

    resource: str
    codes: frozenset[str]
    take: str = "any"
    days: tuple[int, int] = (-365, 0)
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class ExportDefinition:
    """Cohort and variables read from a FHIR export: patients whose first `entry` lies in `since` … `until` enter.

    Args:
        folder: of the export's NDJSON files.
        entry: resources whose first day is the index date.
        end: end of follow-up, the column ``end_date`` of every patient; None for no such column.
        covariates: column to the resources that it is made of.
        event: resources of the event; of kind ``Patient`` for death; None for no event.
        undated: leave out resources without a day and, where the event is death, patients whose death has none or lies
            before the index date, instead of refusing the export.
    """

    folder: Path
    entry: ResourcesOfExport
    since: dt.date
    until: dt.date
    end: dt.date | None
    covariates: Mapping[str, ResourcesOfExport]
    event: ResourcesOfExport | None
    undated: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its table."""
        event = ("event_date",) if self.event is not None else ()
        end = ("end_date",) if self.end is not None else ()
        return ("person", "index_date", "birth_date", "gender", *self.covariates, *event, *end)


def read_definition(path: Path) -> ExportDefinition:
    """A definition from its file. Raises: DataFileRefusal."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
        raise DataFileRefusal(f"the definition {path.name} must be TOML", given=said, next_step=_STEP) from None
    known = {"folder", "cohort", "covariates", "event", "undated"}
    closed(given, known, where=path.name, refusal=DataFileRefusal)
    folder = given.get("folder", "")
    _must(isinstance(folder, str) and bool(folder), "folder must name the folder of the NDJSON files", "none")
    for name in ("cohort", "covariates", "event"):
        _must(isinstance(given.get(name, {}), dict), f"[{name}] must be a table", "something else")
    cohort = given.get("cohort", {})
    closed(cohort, {"resource", "codes", "from", "to", "end"}, where="[cohort]", refusal=DataFileRefusal)
    for name in ("from", "to", *(["end"] if "end" in cohort else [])):
        day = isinstance(cohort.get(name), dt.date) and not isinstance(cohort.get(name), dt.datetime)
        _must(day, f"[cohort] must set {name} to a day", "none, or another form")
    covariates = given.get("covariates", {})
    plain = [name for name in covariates if _WORD.fullmatch(name) and name not in _OWN]
    _must(len(plain) == len(covariates), "a covariate must have a name of its own, in small letters", "another")
    undated = given.get("undated", "refuse")
    _must(undated in ("refuse", "leave_out"), "undated must be refuse or leave_out", repr(undated)[:40])
    event = given.get("event")
    return ExportDefinition(
        folder=path.parent / folder,
        entry=_resources({k: v for k, v in cohort.items() if k in ("resource", "codes")}, "[cohort]"),
        since=cohort["from"],
        until=cohort["to"],
        end=cohort.get("end"),
        covariates={name: _resources(one, f"[covariates.{name}]") for name, one in covariates.items()},
        event=None if event is None else _resources(event, "[event]", event=True),
        undated=undated == "leave_out",
    )


def _must(holds: bool, rule: str, given: object) -> None:
    if not holds:
        raise DataFileRefusal(rule, given=f"{given}", next_step=_STEP)


def _resources(given: Any, where: str, *, event: bool = False) -> ResourcesOfExport:
    _must(isinstance(given, dict), f"{where} must be a table", "something else")
    closed(given, {"resource", "codes", "take", "days", "unit"}, where=where, refusal=DataFileRefusal)
    resource, take, unit = given.get("resource"), given.get("take", "any"), given.get("unit", "")
    known = (*RESOURCES, *(["Patient"] if event else []))
    _must(resource in known, f"{where} resource must be one of {', '.join(known)}", repr(resource)[:40])
    codes = given.get("codes", [])
    listed = isinstance(codes, list) and all(isinstance(code, str) and code.strip() for code in codes)
    _must(listed and bool(codes) == (resource != "Patient"), f"{where} must list codes, as system|code", "another")
    _must(take in TAKE, f"{where} must take one of {', '.join(TAKE)}", repr(take)[:40])
    _must(take == "any" or resource == "Observation", f"{where}: of {resource} only any can be taken", repr(take))
    _must(isinstance(unit, str) and (not unit or resource == "Observation"), f"{where}: {resource} has no unit", "one")
    days: Sequence[Any] = given.get("days", [-365, 0])
    whole = isinstance(days, list) and len(days) == 2 and all(type(day) is int and abs(day) <= LONGEST for day in days)
    _must(whole and days[0] <= days[1], f"{where} days must be a first and a last day from the index date", "another")
    window = (days[0], days[1])
    return ResourcesOfExport(resource=str(resource), codes=frozenset(codes), take=take, days=window, unit=unit)


# -- the export --------------------------------------------------------------------------------------------------
def _lines(definition: ExportDefinition, source: TableSource, refused: DataFileRefusal) -> Iterator[dict[str, Any]]:
    """Resources of the export, one by one. Raises: DataFileRefusal."""
    files = sorted(definition.folder.glob("*.ndjson"))
    if not files:
        raise DataFileRefusal(
            f"the folder that {source.path.name} names must hold the NDJSON files of a Bulk export",
            given="none",
            next_step="Set folder to where they lie, from the definition's own folder.",
        )
    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    if not line.strip():
                        continue
                    found = json.loads(line)
                    if not isinstance(found, dict) or not isinstance(found.get("resourceType"), str):
                        raise ValueError
                    yield found
        except (ValueError, OSError, RecursionError):
            raise refused from None


class _Records:
    """Values and dates of each patient in the export, of the resources that the definition names."""

    def __init__(self, definition: ExportDefinition) -> None:
        self.wanted = {"": definition.entry, **definition.covariates}
        if definition.event is not None and definition.event.resource != "Patient":
            self.wanted["event_date"] = definition.event
        self.patients: dict[str, tuple[str, str, str]] = {}
        self.dead_undated: set[str] = set()
        self.twice = self.undated = self.read = 0
        self.found: dict[str, dict[str, list[tuple[str, float | None]]]] = {name: {} for name in self.wanted}
        self.units: dict[str, set[str]] = {name: set() for name in self.wanted}

    def add(self, resource: Mapping[str, Any]) -> None:
        """Keep what the definition names of one resource."""
        kind = resource["resourceType"]
        if kind == "Patient":
            name = str(resource.get("id", ""))
            self.twice += name in self.patients
            death = _day(resource.get("deceasedDateTime")) or ""
            if not death and (resource.get("deceasedDateTime") or resource.get("deceasedBoolean")):
                self.dead_undated.add(name)
            self.patients[name] = (str(resource.get("birthDate") or ""), str(resource.get("gender") or ""), death)
        elif kind in RESOURCES and not _in_error(resource):
            for name, of in self.wanted.items():
                if of.resource == kind:
                    self._keep(name, of, resource)

    def _keep(self, name: str, of: ResourcesOfExport, resource: Mapping[str, Any]) -> None:
        said = _coded(resource, of.codes)
        if said is None:
            return
        value, unit = _quantity(said)
        if of.take != "any":
            if value is None or (of.unit and unit != of.unit):
                return
            self.units[name].add(unit)
        self.read += 1
        day = next((day for key in _WHEN if (day := _day(resource.get(key)))), None) or _started(resource)
        if day is None:
            self.undated += 1
            return
        person = str(_inside(resource.get("subject"), "reference") or "").rpartition("/")[2].rpartition(":")[2]
        self.found[name].setdefault(person, []).append((day, value))


def _inside(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _codings(concept: Any) -> list[Any]:
    return _listed(_inside(concept, "coding"))


def _in_error(resource: Mapping[str, Any]) -> bool:
    verified = [_inside(coding, "code") for coding in _codings(resource.get("verificationStatus"))]
    return resource.get("status") in _WRONG or any(code in _WRONG for code in verified)


def _coded(resource: Mapping[str, Any], codes: frozenset[str]) -> Mapping[str, Any] | None:
    """The resource, or the component of it, that has one of the codes."""
    for part in (resource, *(one for one in _listed(resource.get("component")) if isinstance(one, dict))):
        for coding in _codings(part.get("code")):
            system, code = _inside(coding, "system"), _inside(coding, "code")
            if isinstance(code, str) and (code in codes or f"{system}|{code}" in codes):
                return part
    return None


def _float(value: float) -> float:
    """The number; infinity for a whole one that no double holds, which no bounds of a plan do either."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _quantity(part: Mapping[str, Any]) -> tuple[float | None, str]:
    """A value and its unit, by UCUM where the export says it."""
    whole = part.get("valueInteger")
    if type(whole) is int:
        return _float(whole), ""
    quantity = part.get("valueQuantity")
    value = _inside(quantity, "value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, ""
    # "< 5" is no value of 5.
    if _inside(quantity, "comparator"):
        return None, ""
    return _float(value), str(_inside(quantity, "code") or _inside(quantity, "unit") or "")


def _day(value: Any) -> str | None:
    """A day of a date or a time; None of a year or a month alone."""
    return value[:10] if isinstance(value, str) and is_day(value[:10]) else None


def _started(resource: Mapping[str, Any]) -> str | None:
    for key in ("effectivePeriod", "onsetPeriod"):
        if day := _day(_inside(resource.get(key), "start")):
            return day
    return None


# -- the table ---------------------------------------------------------------------------------------------------
def _rows(definition: ExportDefinition, seen: _Records) -> list[list[Any]]:
    """A row per patient who enters, by the id. Raises: DataFileRefusal (deaths whose day cannot be right)."""
    rows, of_death, wrong = [], definition.event is not None and definition.event.resource == "Patient", 0
    for person in sorted(seen.patients):
        entries = seen.found[""].get(person)
        index = min((day for day, _ in entries), default=None) if entries else None
        if index is None or not definition.since <= dt.date.fromisoformat(index) <= definition.until:
            continue
        birth, gender, death = seen.patients[person]
        if of_death and (person in seen.dead_undated or (death and death < index)):
            wrong += 1
            continue
        row: list[Any] = [person, index, birth or None, gender or None]
        for name, of in definition.covariates.items():
            row.append(_taken(of, seen.found[name].get(person, []), dt.date.fromisoformat(index)))
        if definition.event is not None:
            days = [day for day, _ in seen.found.get("event_date", {}).get(person, []) if day >= index]
            if of_death:
                days = [death] if death else []
            row.append(min(days, default=None))
        rows.append([*row, *([f"{definition.end}"] if definition.end is not None else [])])
    if wrong and not definition.undated:
        raise DataFileRefusal(
            "a patient who died must have a day of death, on the index date or after it",
            given=f"{wrong} of {wrong + len(rows)} who enter have not",
            next_step='Leave these patients out: write undated = "leave_out" at the top of the definition.',
        )
    return rows


def _taken(of: ResourcesOfExport, found: Sequence[tuple[str, float | None]], index: dt.date) -> float | int | None:
    first, last = (f"{index + dt.timedelta(days=days)}" for days in of.days)
    if of.take == "any":
        return int(any(first <= day <= last for day, _ in found))
    inside = [(day, value) for day, value in found if first <= day <= last and value is not None]
    if not inside:
        return None
    values = [value for _, value in inside]
    if of.take == "mean":
        return math.fsum(values) / len(values)
    if of.take in ("first", "last"):
        # Of several on one day the larger one: the order of the export's lines must not decide.
        at = (min if of.take == "first" else max)(day for day, _ in inside)
        return max(value for day, value in inside if day == at)
    return max(values) if of.take == "max" else min(values)


class _Fhir(FormatReader):
    whole = ("an export of NDJSON, a resource in each line", "lines that are not")
    remedy = "Export it again; each line of a Bulk export is one resource."

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return read_definition(source.path).columns

    def count(self, source: TableSource) -> int:
        return len(self._read(source))

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        import pandas as pd

        every = self.columns(source)
        found = pd.DataFrame(self._read(source), columns=list(every), dtype=object)
        return found.iloc[:, list(places)]

    def _read(self, source: TableSource) -> list[list[Any]]:
        definition = read_definition(source.path)
        seen = _Records(definition)
        for resource in _lines(definition, source, self.unreadable(source, ValueError())):
            seen.add(resource)
        if seen.twice:
            raise DataFileRefusal(
                "every patient of an export must be in it once",
                given=f"{seen.twice} patients again",
                next_step="Keep the files of one export in the folder.",
            )
        if seen.undated and not definition.undated:
            raise DataFileRefusal(
                "a resource that the definition names must be dated to the day",
                given=f"{seen.undated} of {seen.read} are not",
                next_step='Leave them out: write undated = "leave_out" at the top of the definition.',
            )
        for name, units in seen.units.items():
            if len(units) > 1:
                raise DataFileRefusal(
                    f"the values of {name} must be in one unit",
                    given=f"{len(units)} units",
                    next_step=f"Name the unit that is read: unit = … in [covariates.{name}], as UCUM writes it.",
                )
        return _rows(definition, seen)


READERS: Mapping[str, FormatReader] = {"fhir": _Fhir()}
