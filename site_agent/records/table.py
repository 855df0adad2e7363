"""Reading the hospital's table: in place, never copied, and refused unless it is exactly what the dictionary says.

A file, or what is read from a database (`site_agent.records.readers`), goes through three gates: it must be readable
(`DataFileRefusal`), its columns must be the dictionary's (`DictionaryRefusal`), and its values must be within it
(`Dictionary.check`). Whatever goes wrong, the message names column, rule and count. Two traps make that harder than it
looks. A parser's own message quotes the cell it stumbled over, so none is ever passed on. And in a file without a
header the first patient *is* the header, so column names are repeated only when at least one of them is expected.

Persons are told apart by their identifiers alone, normalised first (`site_agent.records.identifiers`).
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from shared.base.canonical import canonical_json
from shared.errors import (
    DataFileRefusal,
    DataRefusal,
    DictionaryRefusal,
    DuplicatePerson,
    MissingRefusal,
    StateRefusal,
)
from shared.plans.dictionary import Column, Dictionary
from site_agent.records.blocks import checked_in_blocks, give_back
from site_agent.records.identifiers import NORMALISED, compared
from site_agent.records.mapping.preparing import dates, prepared
from site_agent.records.mapping.recoding import recoded_table, with_point
from site_agent.records.mapping.repeated import one_row_each
from site_agent.records.mapping.suggesting import suggestions
from site_agent.records.pseudonyms import Pseudonyms
from site_agent.records.readers import header, reader
from site_agent.records.source import AS_READ, DATABASES, Edges, TableSource

if TYPE_CHECKING:
    from pathlib import Path

    from shared.mechanisms.base import EdgeRules
    from site_agent.records.contacts import Contacts

__all__ = [
    "Records",
    "count",
    "days",
    "dialect",
    "header",
    "named",
    "person_space",
    "problems",
    "read",
    "require_edges",
    "row_pseudonyms",
    "suggestions",
    "whole",
]

BLOCK = 1 << 20
_NOT_SHOWN = "and are not shown: the first line might be a patient"
_DATE = r"\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}-\d\d-\d\d"


@dataclass(frozen=True, kw_only=True, repr=False)
class Records:
    """A checked table. Its text form shows no record.

    Args:
        table: (n, columns), canonical values as `Dictionary.check` returns them.
        rows: rows of the source file, or its persons where one may have several; `rows - n` were left out as
            incomplete.
        snapshot: keyed hash of the bytes of the source file, and of the edge list where there is one; says at this
            site, and only here, which files were read. Of a database, of the rows that were read.
        contacts: of a study of a network, who is connected with whom.
        unseen: column to how many of its values that are recoded never occur.
        hospitals: of a site that speaks for several, the rows of each; shown at the site and nowhere else.
    """

    table: pd.DataFrame
    rows: int
    snapshot: str
    contacts: Contacts | None = None
    unseen: Mapping[str, int] = field(default_factory=dict)
    hospitals: Mapping[str, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of checked rows."""
        return len(self.table)

    def __repr__(self) -> str:
        return f"Records({self.table.shape[1]} columns)"


def read(
    source: TableSource, dictionary: Dictionary, *, key: bytes, rules: EdgeRules | None = None, as_written: bool = False
) -> Records:
    """Read a study's table, and its network, and hold them against the dictionary and the plan.

    Args:
        source: the file and its column mapping, and the edge list.
        dictionary: of the approved plan.
        key: the site's snapshot key.
        rules: what the plan says of edges (`MechanismPlan.edges`); None where it is of no network.
        as_written: whether identifiers are taken as they are written (`Ledger.as_written`), and not normalised.
    Raises: DataFileRefusal (absent, empty, truncated, wrong encoding), DictionaryRefusal (a column, value or edge
        outside the dictionary), MissingRefusal, DuplicatePerson, StateRefusal (no edge list, or one too many).
    """
    require_edges(source, rules)
    digest = hmac.new(key, digestmod=hashlib.sha256)
    if (fast := _in_blocks(source, dictionary, as_written=as_written)) is not None:
        give_back()
        _digested(digest, source, None)
        return Records(table=fast[0], rows=fast[1], snapshot=digest.hexdigest())
    unseen: dict[str, int] = {}
    hospitals: dict[str, int] = {}
    table = _mapped(source, dictionary.source, as_written=as_written, unseen=unseen, hospitals=hospitals)
    size = _digested(digest, source, table)
    if source.values:  # the same file, read otherwise, is another table
        recoding = {name: one.to_canonical() for name, one in sorted(source.values.items())}
        digest.update(b"\0values\0" + canonical_json(recoding))
    if source.steps:
        digest.update(b"\0steps\0" + canonical_json(source.steps.to_canonical()))
    table = one_row_each(_identified(table, dictionary, as_written), dictionary)
    checked = _checked(table, dictionary)
    contacts = None
    if rules is not None and source.edges is not None:
        # Where one file ends and the next begins is part of what was read.
        digest.update(b"\0edges\0" + size.to_bytes(8, "big"))
        contacts = _contacts(source, table, checked, dictionary, rules, as_written, seen=digest.update)
        if source.edges.format not in DATABASES:
            _digested(digest, source.edges, None)
    return Records(
        table=checked,
        rows=len(table),
        snapshot=digest.hexdigest(),
        contacts=contacts,
        unseen=unseen,
        hospitals=hospitals,
    )


def problems(
    source: TableSource, dictionary: Dictionary, *, rules: EdgeRules | None = None, as_written: bool = False
) -> tuple[DataRefusal, ...]:
    """Everything that is wrong with a table, column by column, where `read` would stop at the first.

    Args: as of `read`.
    Returns: refusals, each with its rule and count; empty when `read` would succeed. A network without an edge is one
        of them, though a release would take it.
    """
    require_edges(source, rules)
    if _in_blocks(source, dictionary, as_written=as_written) is not None:
        return ()
    rows = dictionary.source
    columns, table = _column_faults(source, rows), None
    found = list(columns)
    try:
        table = _identified(_mapped(source, rows, as_written=as_written, found=found), dictionary, as_written)
    except DataRefusal as refusal:
        return columns or (refusal,)
    for column in rows.columns:
        if column.name not in table.columns:
            continue
        if column.kind == "person" and dictionary.repeated is None:
            # A dictionary must release something: the person column is checked beside one that cannot fail.
            alone = Dictionary(name=dictionary.name, version=dictionary.version, columns=(column, _ALWAYS))
            try:
                _checked(table[[column.name]].assign(**{_ALWAYS.name: 0}), alone)
            except DataRefusal as refusal:
                found.append(refusal)
        if column.kind == "person":
            continue
        values = table[column.name].reset_index(drop=True)
        found += [_with_hint(refusal, values, column) for refusal in column.compare(values)[1]]
    if dictionary.repeated is not None and not found:
        try:
            table = one_row_each(table, dictionary)
            _checked(table, dictionary)
        except DataRefusal as refusal:
            found.append(refusal)
    if rules is not None and not found:
        from site_agent.records.contacts import require_some

        try:
            assert source.edges is not None, "require_edges"
            made = _contacts(source, table, _checked(table, dictionary), dictionary, rules, as_written)
            require_some(made, source.edges)
        except DataRefusal as refusal:
            found.append(refusal)
    return tuple(found)


def _with_hint(refusal: DataRefusal, values: pd.Series, column: Column) -> DataRefusal:
    """A refusal of what is no number, with what it is else, decimal comma, date, word: counts, and what to do."""
    if not refusal.must.endswith("must be a number"):
        return refusal
    text = values.astype("string").str.strip()
    other = with_point(text)
    helped = int((pd.to_numeric(text, errors="coerce").isna() & pd.to_numeric(other, errors="coerce").notna()).sum())
    dates = int(text.str.fullmatch(_DATE).fillna(False).sum())
    steps = []
    if helped:
        steps.append(
            f"{helped} of them are numbers with a decimal comma: site-agent data map STUDY --decimal-comma "
            f"{column.name}"
        )
    elif dates:
        steps.append(
            f"{dates} of them are dates, where the study has a number of {column.unit or 'days or years'}: compute it "
            "in a query (site-agent data add FILE.sql), or ask for it at the source."
        )
    else:
        return refusal
    unread = int((pd.to_numeric(text, errors="coerce").isna() & ~_blank(values)).sum())
    if rest := unread - (helped or dates):
        steps.append(f"{rest} {'is' if rest == 1 else 'are'} no number either way: {column.where_unknown}")
    return type(refusal)(refusal.must, given=refusal.given, next_step="; ".join(steps))


def require_edges(source: TableSource, rules: EdgeRules | None) -> None:
    """An edge list for a network, and for nothing else. Raises: StateRefusal."""
    if (source.edges is None) != (rules is None):
        raise StateRefusal(
            "a study of a network must have an edge list" if rules else "a study without a network must have no edges",
            given="none" if rules else "an edge list",
            next_step="Run site-agent data add FILE --edges FILE --as STUDY."
            if rules
            else "Run site-agent data add FILE --as STUDY with the table alone.",
        )


def dialect(path: Path) -> tuple[str, str]:
    """Encoding and delimiter of a CSV file, by its beginning.

    Returns: UTF-8, or where that cannot be, Windows' cp1252; and whichever of comma, semicolon, tab and bar the first
        line has most of. UTF-8 and a comma where there is no such file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(1 << 16)
    except OSError:
        return "utf-8", ","
    encoding = "utf-8"
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data)
    except UnicodeDecodeError:
        encoding, text = "cp1252", data.decode("cp1252", errors="replace")
    first = next(iter(text.splitlines()), "")
    outside = "".join(first.split('"')[::2])  # what stands in quotation marks separates nothing
    return encoding, max(",;\t|", key=outside.count)


def whole(source: TableSource) -> pd.DataFrame:
    """A table with all its columns, as it stands in the file; nothing is checked. Raises: as of `header`."""
    names = header(source)
    return reader(source).table(source, range(len(names))).set_axis(list(names), axis=1)


def days(source: TableSource) -> dict[str, pd.Series]:
    """The columns of dates that a mapping reads, as days; those that cannot be read are left out."""
    names = [source.columns.get(name, name) for name in header(source)]
    read = {name: names.index(name) for name in source.steps.dates if name in names}
    if not read:
        return {}
    table, found = reader(source).table(source, list(read.values())).set_axis(list(read), axis=1), {}
    for name in read:
        try:
            found[name] = dates(table[name], source.steps.dates[name], name)
        except DataRefusal:
            continue
    return found


def named(source: TableSource, dictionary: Dictionary) -> tuple[bool, tuple[str, ...]]:
    """Column names of a file for a screen, if its first line can be a header at all.

    Returns: (True, names), or (False, ()) when fewer than half of the planned columns are there under a name that is
        expected or like it: the line may be the first patient, one of whose values happens to be a column's name.
    """
    names = header(source)
    return (True, names) if _is_header(names, source, dictionary.source) else (False, ())


def count(source: TableSource) -> int:
    """Rows of a table, for an estimate of time; nothing is checked. Raises: as of `header`."""
    header(source)
    return reader(source).count(source)


def row_pseudonyms(records: Records, dictionary: Dictionary, *, key: bytes) -> Pseudonyms | None:
    """The keyed hash of each row's person, in the order of the rows; None without a person column."""
    if dictionary.person is None:
        return None
    return Pseudonyms.of(records.table[dictionary.person], key=key)


def person_space(source: TableSource, dictionary: Dictionary, *, key: bytes, as_written: bool = False) -> str:
    """By what persons are told apart: a keyed hash of the site's key, both names of the person column and the format.

    Two releases can be compared person by person only where it is the same: under another key, column or way of
    writing identifiers everybody looks new. Empty where the dictionary has no person column. It shows whether
    identifiers were normalised (`as_written`, as of `read`).
    """
    if dictionary.person is None:
        return ""
    mapped = next((theirs for theirs, ours in source.columns.items() if ours == dictionary.person), dictionary.person)
    text = "\0".join(("person space", dictionary.person, mapped, source.format))
    return ("" if as_written else NORMALISED) + hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:32]


# -- inside -----------------------------------------------------------------------------------------------------
def _in_blocks(source: TableSource, dictionary: Dictionary, *, as_written: bool) -> tuple[pd.DataFrame, int] | None:
    """As of `checked_in_blocks`; None too where column names are not as they must be."""
    names = header(source)
    if _column_faults(source, dictionary.source):
        return None
    there = {source.columns.get(name, name): place for place, name in enumerate(names) if name not in source.ignore}
    places = {column.name: there[column.name] for column in dictionary.columns if column.name in there}
    return checked_in_blocks(source, dictionary, places, as_written=as_written)


def _digested(digest: hmac.HMAC, source: TableSource | Edges, table: pd.DataFrame | None) -> int:
    """Add to a hash what was read: a file's bytes, or the rows (`AS_READ`). Returns: how many bytes that was."""
    size = 0
    if source.format in AS_READ and table is not None:
        from site_agent.records.readers import databases

        for row in databases.encoded(table):
            digest.update(row)
            size += len(row)
        return size
    with source.path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return size


def _mapped(
    source: TableSource,
    dictionary: Dictionary,
    *,
    as_written: bool,
    found: list[DataRefusal] | None = None,
    unseen: dict[str, int] | None = None,
    hospitals: dict[str, int] | None = None,
) -> pd.DataFrame:
    """The source table under the dictionary's names, recoded, with what the mapping makes of it; columns as planned.

    Args:
        as_written: as of `read`.
        found: takes the faults of recoded values, and gives those columns that are the dictionary's; None refuses any.
        unseen: as of `recoded_table`.
        hospitals: takes how many rows each hospital has.
    """
    names = header(source)
    renamed = [source.columns.get(name, name) for name in names]
    if found is None and (faults := _column_faults(source, dictionary)):
        raise faults[0]
    steps = source.steps
    planned = [column.name for column in dictionary.columns]
    expected = {*planned, *steps.reads} - set(steps.made)
    wanted = [i for i, name in enumerate(names) if name not in source.ignore and renamed[i] in expected]
    if not wanted or len({renamed[i] for i in wanted}) < len(wanted):
        raise _column_faults(source, dictionary)[0]
    if source.hospital and source.hospital in names:
        wanted.append(names.index(source.hospital))
    elif source.hospital:
        raise _column_faults(source, dictionary)[0]
    table = reader(source).table(source, wanted)
    if source.hospital:
        faults_of, rows_of = _of_hospitals(source, table.pop(source.hospital))
        wanted.remove(names.index(source.hospital))
        if found is None and faults_of:
            raise faults_of[0]
        if found is not None:
            found += faults_of
        if hospitals is not None:
            hospitals.update(rows_of)
    table.columns = pd.Index([renamed[i] for i in wanted])
    before = {name: how for name, how in source.values.items() if name not in steps.made}
    table = recoded_table(table, before, dictionary, helpers=steps.reads, found=found, unseen=unseen)
    if steps:
        identify = partial(compared, as_written=as_written)
        table = prepared(table, steps, dictionary, identify=identify)
        after = {name: how for name, how in source.values.items() if name in steps.made}
        table = recoded_table(table, after, dictionary, helpers=steps.made, found=found, unseen=unseen)
        table = table[[name for name in planned if name in table.columns]]
    if len(table) == 0:
        raise DataFileRefusal("the table must hold records", given="0 rows", next_step="Check the export.")
    there = [column for column in dictionary.columns if column.name in table.columns]
    empty = [column.name for column in there if column.missing != "level" and _blank(table[column.name]).all()]
    if empty and found is None:  # else each column says it itself
        raise MissingRefusal(
            f"column {', '.join(map(repr, empty))} must hold at least one value",
            given=f"{len(table)} rows, all missing",
            next_step="Check the export and the mapping (site-agent data map).",
        )
    return table


def _of_hospitals(source: TableSource, whose: pd.Series) -> tuple[list[DataRefusal], dict[str, int]]:
    """Violations of the agreement by the hospital column (rows,), and number of rows of each hospital."""
    names = whose.astype("string").str.strip().fillna("")
    rows = {name: int((names == name).sum()) for name in source.hospitals}
    blank, other = int((names == "").sum()), int((~names.isin(["", *source.hospitals])).sum())
    none = sum(count == 0 for count in rows.values())
    agreed = "Correct the extract, or the agreement: site-agent data add FILE --as STUDY --hospitals COLUMN --of NAME …"
    found: list[DataRefusal] = []
    if blank:
        rule = f"column {source.hospital!r} must name the hospital of every row"
        found.append(MissingRefusal(rule, given=f"{blank} blank", next_step=agreed))
    if other:
        rule = f"column {source.hospital!r} must name one of the {len(rows)} hospitals of the agreement"
        found.append(DictionaryRefusal(rule, given=f"{other} rows that do not", next_step=agreed))
    if none:
        rule = (
            f"each of the {len(rows)} hospitals of the agreement must have rows: the receipt says that it stands behind"
        )
        found.append(DictionaryRefusal(rule, given=f"{none} without", next_step=agreed))
    return found, rows


def _is_header(names: Sequence[str], source: TableSource, dictionary: Dictionary) -> bool:
    """True if a file's first line is a header: expected or similar names for at least half of the planned columns."""
    expected = {column.name for column in dictionary.columns} | set(source.columns) | set(source.steps.reads)
    known = set(names) & expected
    known |= set(suggestions([name for name in names if name not in known], dictionary))
    return 2 * len(known) >= len(dictionary.columns)


def _column_faults(source: TableSource, dictionary: Dictionary) -> tuple[DataRefusal, ...]:
    """Everything that is wrong with a table's column names and their mapping. Raises: DataFileRefusal (no file)."""
    names = header(source)
    renamed = [source.columns.get(name, name) for name in names]
    made = source.steps.made
    expected = [column.name for column in dictionary.columns if column.name not in made]
    expected += [name for name in source.steps.reads if name not in expected]
    if not set(renamed) & set(expected):
        return (
            DictionaryRefusal(
                "the first line must hold column names of the dictionary or of the mapping",
                given=f"none among {len(names)}",
                next_step="Check that the file has a header and which delimiter it uses, then site-agent data map.",
            ),
        )
    found: list[DataRefusal] = _hidden(expected, source, names)
    used = [name for name in names if name not in source.ignore]
    if len(set(used)) != len(used):
        found.append(
            DataFileRefusal(
                "column names of the table must differ",
                given=f"{len(used) - len(set(used))} repeated",
                next_step="Rename them at the source.",
            )
        )
    absent = [name for name in (*source.columns, *source.ignore) if name not in names]
    if absent:
        found.append(
            DictionaryRefusal(
                "every mapped or ignored column must be in the table",
                given=f"no {', '.join(map(repr, absent))}",
                next_step="Correct the mapping with site-agent data map.",
            )
        )
    targets = [to for name, to in zip(names, renamed, strict=True) if name not in source.ignore]
    if both := [name for name in made if name in targets]:
        found.append(
            DictionaryRefusal(
                "a column must come from the file or be made by the mapping, not both",
                given=", ".join(map(repr, both)),
                next_step="Ignore the file's with site-agent data map --ignore, or take it out of the mapping.",
            )
        )
    # Others that a line repeats are no names that may be shown: a patient's.
    twice = sorted({to for to in targets if to in {*expected, *made} and targets.count(to) > 1})
    if twice:
        found.append(
            DictionaryRefusal(
                "a dictionary column must come from one source column",
                given=f"several for {', '.join(map(repr, twice))}",
                next_step="Ignore the others with site-agent data map --ignore.",
            )
        )
    known = {*expected, *made}
    unknown = [name for name, to in zip(names, renamed, strict=True) if name in used and to not in known]
    lacking = [name for name in expected if name not in targets and name not in source.ignore]
    shown = _is_header(names, source, dictionary)
    if lacking:
        near = {to: name for name, to in suggestions(unknown, dictionary).items() if to in lacking and shown}
        meant = "".join(f" {name}={to}" for to, name in near.items())
        step = f"Did you mean site-agent data map STUDY{meant}?" if near else "Map the names with site-agent data map."
        found.append(
            DictionaryRefusal(
                "every column of the dictionary must be in the table",
                given=f"no {', '.join(map(repr, lacking))}",
                next_step=step,
            )
        )
    if unknown:
        found.append(
            DictionaryRefusal(
                "every column of the table must be in the dictionary, mapped, or ignored by name",
                given=", ".join(map(repr, unknown)) if shown else f"{len(unknown)} that are not, {_NOT_SHOWN}",
                next_step="Map it, or site-agent data map STUDY --ignore NAME (or --ignore-rest)."
                if shown
                else "Check that it has a header and which delimiter it uses, then site-agent data map STUDY --guide.",
            )
        )
    return tuple(found)


def _hidden(expected: Sequence[str], source: TableSource, names: Sequence[str]) -> list[DataRefusal]:
    """A refusal of columns of the table that are needed and ignored, where there are any."""
    both = [
        name for name in expected if name in source.ignore and name in names and name not in source.columns.values()
    ]
    step = "Take it out of ignore in a copy of the mapping's file, then site-agent data map STUDY --file with it."
    if not set(both) & set(source.steps.reads):  # a planned one, which an earlier version of the plan may have lacked
        step = f"Take it: site-agent data map STUDY {' '.join(f'{name}={name}' for name in both)}"
    rule = "a column that the mapping or the plan reads must not be ignored"
    return [DictionaryRefusal(rule, given=", ".join(map(repr, both)), next_step=step)] if both else []


def _identified(table: pd.DataFrame, dictionary: Dictionary, as_written: bool) -> pd.DataFrame:
    """The table with its identifiers as persons are told apart by them."""
    if dictionary.person is None or dictionary.person not in table.columns:
        return table
    return table.assign(**{dictionary.person: compared(table[dictionary.person], as_written=as_written)})


def _checked(table: pd.DataFrame, dictionary: Dictionary) -> pd.DataFrame:
    try:
        return dictionary.check(table)
    except DuplicatePerson as refusal:
        raise DuplicatePerson(
            refusal.must,
            given=refusal.given,
            next_step=f"{refusal.next_step} Identifiers that differ in case, white space, unseen characters, "
            "Unicode form or leading zeros alone are one person's.",
        ) from None
    except DataRefusal as refusal:
        step = refusal.next_step or "Correct the rows at the source, then site-agent data check."
        raise type(refusal)(refusal.must, given=refusal.given, next_step=step) from None


def _contacts(
    source: TableSource,
    table: pd.DataFrame,
    checked: pd.DataFrame,
    dictionary: Dictionary,
    rules: EdgeRules,
    as_written: bool,
    seen: Callable[[bytes], None] | None = None,
) -> Contacts:
    from site_agent.records import contacts

    assert source.edges is not None, "require_edges"
    assert dictionary.person is not None, "a plan of a network has a person column"
    persons, everyone = list(checked[dictionary.person]), list(table[dictionary.person])
    return contacts.read(source.edges, persons, everyone, rules, as_written=as_written, seen=seen)


def _blank(values: pd.Series) -> pd.Series:
    return values.isna() | values.astype("string").str.strip().fillna("").isin(["", "NA", "NaN", "nan"])


_ALWAYS = Column(name="always_", kind="binary")
