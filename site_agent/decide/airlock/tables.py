"""A study's table at this site: where it lies, which of its columns is which, and whether it holds the dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import Refusal
    from shared.plans.dictionary import Dictionary
    from site_agent.config import TableSource
    from site_agent.desk import Desk
    from site_agent.records.quasi_identifiers import SmallClasses
    from site_agent.records.table import Records

__all__ = ["Matching", "TableFound", "found", "matching", "newer", "persons", "placed"]


@dataclass(frozen=True, kw_only=True)
class Matching:
    """The columns of a file beside those of the dictionary.

    Args:
        trusted: whether the first line is a header of this dictionary; else its names are not shown.
        target: column of the file to its column of the dictionary, blank where it has none yet.
        free: columns of the file that are neither mapped nor ignored.
        missing: columns of the dictionary that nothing gives yet.
        proposed: free column to the one that it looks like.
    """

    trusted: bool
    target: Mapping[str, str]
    free: tuple[str, ...]
    missing: tuple[str, ...]
    proposed: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TableFound:
    """A table as it was read and held against the dictionary; counts are for this site alone.

    Args:
        problems: every one, by column, rule and count; the other figures are of a table without any.
        left_out: incomplete rows that are not released.
        unseen: column to how many of its recoded values never occur.
        network: what a network has how many of; None of another study.
        hospitals: rows of each of several hospitals in one table.
        missing: column to how many rows lack its value, those left out counted too; none of a column that lacks none.
        small: who shares a combination of the plan's quasi-identifiers with few; None where it names none.
    """

    problems: tuple[Refusal, ...]
    rows: int = 0
    left_out: int = 0
    unseen: Mapping[str, int] = field(default_factory=dict)
    network: Mapping[str, int] | None = None
    hospitals: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    small: SmallClasses | None = None


def placed(path: Path, table: str, *, encoding: str | None, delimiter: str | None, database: str) -> dict[str, Any]:
    """Path of a data file and the options to read it with, for `TableSource`; options not given are detected.

    Args:
        path: the file; ``~`` is the home folder.
        table: table or sheet of a database or workbook; blank where there is only one.
        encoding, delimiter: of a text file; detected from its first bytes where None. ``\\t`` is a tab.
        database: address of the database that the statement of an .sql file is run on; dropped for any other file.
    Returns: the fields ``path`` (absolute), ``encoding``, ``delimiter``, ``table`` and ``database``.
    """
    from site_agent.records import table as records
    from site_agent.records.source import FORMATS

    csv = FORMATS.get(path.suffix.lower()) == "csv"
    seen = records.dialect(path.expanduser()) if csv else ("utf-8", ",")
    return {
        "path": path.expanduser().absolute(),
        "encoding": encoding or seen[0],
        "delimiter": (delimiter or seen[1]).replace("\\t", "\t"),
        "table": table,
        "database": database if path.suffix.lower() == ".sql" else "",
    }


def newer(before: TableSource, source: TableSource) -> TableSource:
    """A newer extract, or the same one read otherwise: what was mapped stays mapped where it is still there."""
    from site_agent.records import table as records

    names = records.header(source)
    agreed = source if source.hospital else before
    return replace(
        source,
        columns={name: to for name, to in before.columns.items() if name in names},
        ignore=tuple(name for name in before.ignore if name in names),
        values=before.values,
        steps=before.steps,
        salt=before.salt,
        hospital=agreed.hospital,
        hospitals=agreed.hospitals,
    )


def matching(source: TableSource, dictionary: Dictionary, *, edges: Any = None, header: bool = False) -> Matching:
    """A file's columns beside the dictionary's.

    Args:
        header: whether a person has said that the first line holds names, whatever is known of them.
    Raises: DataFileRefusal; UsageRefusal (edges where none belong).
    """
    from site_agent.records import table as records

    records.require_edges(source, edges)
    dictionary = dictionary.source
    trusted, names = (True, records.header(source)) if header else records.named(source, dictionary)
    known = {column.name for column in dictionary.columns}
    own = {name: name for name in known if name not in source.ignore}
    target = {name: source.columns.get(name, own.get(name, "")) for name in names}
    steps = source.steps
    missing = [
        column.name
        for column in dictionary.columns
        if column.name not in target.values() and column.name not in steps.made
    ]
    free = [
        name
        for name in names
        if not target[name] and name not in source.ignore and source.columns.get(name, name) not in steps.reads
    ]
    proposed = {n: to for n, to in records.suggestions(free, dictionary).items() if to in missing}
    return Matching(trusted=trusted, target=target, free=tuple(free), missing=tuple(missing), proposed=proposed)


def found(desk: Desk, study: str) -> TableFound:
    """Read the table and hold it against the dictionary. Raises: ConfigRefusal (no table), DataFileRefusal."""
    from site_agent.config import Limits
    from site_agent.records import table as records
    from site_agent.records.quasi_identifiers import small_classes

    plan, source = desk.plans.plan(study), desk.config.source(study)
    how: dict[str, Any] = {"rules": plan.release.edges, "as_written": desk.ledger.as_written(study)}
    problems = tuple(
        type(problem)(problem.must, given=problem.given, next_step=problem.next_step.replace(" STUDY", f" {study}"))
        for problem in records.problems(source, plan.dictionary, **how)
    )
    if problems:
        return TableFound(problems=problems)
    table = records.read(source, plan.dictionary, key=desk.snapshot_key(study), **how)
    whole = table.table
    if table.rows > table.n:
        whole = _also_incomplete(desk, study).table
    lacking = {str(name): int(count) for name, count in whole.isna().sum().items() if count}
    named, k = plan.quasi_identifiers, Limits.of(plan.floors, desk.config.floors).class_size
    return TableFound(
        problems=(),
        rows=table.rows,
        left_out=table.rows - table.n,
        unseen=dict(table.unseen),
        network=None if table.contacts is None else table.contacts.counts,
        hospitals=dict(table.hospitals),
        missing=lacking,
        small=small_classes(table.table, named, k) if named else None,
    )


def persons(desk: Desk, study: str) -> frozenset[str] | None:
    """Pseudonyms of everybody in the table as it is now, of incomplete rows too; None where it cannot be read."""
    from shared.errors import Refusal
    from site_agent.records.table import row_pseudonyms

    try:
        found = _also_incomplete(desk, study)
    except Refusal:
        return None
    return frozenset(row_pseudonyms(found, desk.plans.plan(study).dictionary, key=desk.snapshot_key(study)) or ())


# -- inside -----------------------------------------------------------------------------------------------------
def _also_incomplete(desk: Desk, study: str) -> Records:
    """The table with the rows that the plan leaves out because a value is missing."""
    from site_agent.records import table as records

    planned, source = desk.plans.plan(study).dictionary, replace(desk.config.source(study), edges=None)
    columns = tuple(
        replace(column, missing="level") if column.missing == "complete_case" else column for column in planned.columns
    )
    dictionary, as_written = replace(planned, columns=columns), desk.ledger.as_written(study)
    return records.read(source, dictionary, key=desk.snapshot_key(study), as_written=as_written)
