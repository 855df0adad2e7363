"""Source of a study's table, as in [data.STUDY] of site.toml: its location, and how columns and values are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Literal

from shared.base.canonical import closed
from shared.errors import ConfigRefusal, DataFileRefusal
from site_agent.records.mapping import document
from site_agent.records.mapping.declared import Recoding, Steps
from site_agent.records.mapping.toml_form import must, quoted, section

__all__ = ["AS_READ", "DATABASES", "FORMATS", "Edges", "Recoding", "TableSource"]
__all__ += ["mapping_path", "source_from_toml", "source_to_toml"]


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1")
FORMATS = {
    **{".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
    **{".parquet": "parquet", ".pq": "parquet", ".feather": "arrow", ".arrow": "arrow", ".ipc": "arrow"},
    **{".xlsx": "excel", ".xlsm": "excel", ".sav": "spss", ".zsav": "spss", ".dta": "stata"},
    **{".sas7bdat": "sas", ".xpt": "xport", ".graphml": "graphml", ".fhir": "fhir"},
    **{".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite", ".sql": "sql"},
}
Format = Literal[
    "csv", "jsonl", "parquet", "arrow", "excel", "spss", "stata", "sas", "xport", "graphml", "fhir", "sqlite", "sql"
]
DATABASES = ("sqlite", "sql")
AS_READ = (*DATABASES, "fhir")
"""Formats of which the named file is not the data: what is hashed is the rows that were read."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _must_be_a_table(path: Path, encoding: str, delimiter: str) -> None:
    """A file of this machine that can be read as a table."""
    text = str(path)
    remote = "://" in text or text.startswith(("\\\\", "//")) or ":/" in text[2:]
    must(not remote, "a table must be a local file", "an address", "Give the path of a file on this machine.")
    must(
        PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute(),
        "the path of a table must be absolute",
        repr(text),
    )
    kinds = ", ".join(FORMATS)
    suffix = path.suffix.lower()
    step = "Export it as CSV or Parquet, or name a database (site-agent data add -h)."
    if suffix in (".xls", ".xlsb", ".ods", ".numbers"):
        step = "In the spreadsheet: File, Save as, .xlsx, or CSV UTF-8."
    elif suffix in (".por", ".rds", ".rdata"):
        step = "Export it from there as CSV or Parquet, with the codes, not with the labels."
    given = repr(path.name) if path.name else "a folder"
    if path.name.startswith("~$"):
        given, step = "the mark of one that is open", "Close it in the spreadsheet, and name the file without ~$."
    if suffix not in FORMATS or path.name.startswith("~$"):
        raise DataFileRefusal(f"a table must end in {kinds}", given=given, next_step=step)
    must(encoding in ENCODINGS, f"encoding must be one of {', '.join(ENCODINGS)}", repr(encoding))
    must(len(delimiter) == 1, "delimiter must be one character", f"{len(delimiter)} characters")


def _must_be_in_a_database(path: Path, table: str, database: str) -> None:
    """A table of a SQLite file, or a query with the variable that holds the database's address."""
    kind = _format(path)
    for name, value, of in (("table", table, "sqlite"), ("database", database, "sql")):
        must(isinstance(value, str), f"{name} must be text", type(value).__name__)
        sheet = kind == "excel" and name == "table"  # a workbook has one sheet, or says which
        must(
            sheet or bool(value) == (kind == of),
            f"{name} must be given with {'a SQLite file' if of == 'sqlite' else 'a .sql file'}, and with nothing else",
            f"{'one' if value else 'none'} with a {path.suffix.lower()} file",
            "Run site-agent data add FILE with --table NAME (SQLite) or --database VARIABLE (.sql).",
        )
    # What was given may be the address itself, with its password: it is not repeated.
    must(
        not database or bool(_VARIABLE.fullmatch(database)),
        "database must be the name of an environment variable that holds the address, never the address itself",
        "something else",
        "Put the address into a variable of the agent's environment, and name the variable.",
    )


def _format(path: Path) -> Format:
    found: Format = FORMATS[path.suffix.lower()]  # type: ignore[assignment]
    return found


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Location of the edge list of a study's network; its other columns are not read.

    Args:
        path: a local file, of a format of `FORMATS` by its name; it is read in place and never
            copied.
        encoding, delimiter: of a CSV file.
        table, database: as of `TableSource`.
        start, end: names in the file of the columns that hold the two persons of an edge, as the node table writes
            them; of a directed network the edge goes from `start` to `end`. GraphML has no such columns.
    Raises: ConfigRefusal, at construction.

    >>> Edges(path=Path("/data/contacts.csv"), start="a", end="b").format
    'csv'
    """

    path: Path
    encoding: str = "utf-8"
    delimiter: str = ","
    start: str = "from"
    end: str = "to"
    table: str = ""
    database: str = ""

    def __post_init__(self) -> None:
        _must_be_a_table(self.path, self.encoding, self.delimiter)
        _must_be_in_a_database(self.path, self.table, self.database)
        must(self.format != "fhir", "an edge list must be a table of edges", "a FHIR export")
        must(
            bool(self.start and self.end) and self.start != self.end,
            "an edge must have two columns",
            f"{self.start!r} and {self.end!r}",
        )

    @property
    def format(self) -> Format:
        """File format, by its name."""
        return _format(self.path)


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """Location of a study's table, and the mapping of its columns and values.

    Args:
        path: a local file, of a format of `FORMATS` by its name; it is read in place and never
            copied.
        encoding: of a text file; ``utf-8`` also reads one with a byte order mark. Of a file of a statistics package
            ``utf-8`` stands for what the file says of itself.
        delimiter: of a CSV file, one character.
        columns: name in the file to name in the dictionary, where the two differ.
        values: name in the dictionary to how its values are recoded; a column that is not in it is taken as it stands.
        ignore: columns of the file that the study does not use. They are named one by one, so that a new column in
            the hospital's export is noticed instead of dropped.
        edges: of a study of a network, its edge list; a GraphML file holds its own.
        table: of a SQLite file, the table or view that is read; of a workbook with several sheets, the sheet.
        database: of a query, the environment variable that holds the database's address
            (`site_agent.records.readers.databases`).
        hospital: of several small hospitals in one table, under one steward's agreement: the column that says whose
            row it is. It is among what the study ignores.
        hospitals: their names in it, all that the agreement has.
        steps: what is made of the file beyond that: dates, combined rows, formulas, follow-up.
        salt: what keeps `mapping_hash` from telling what is mapped; blank where an earlier version mapped it.
    Raises: ConfigRefusal, at construction.

    >>> TableSource(path=Path("/data/cohort.csv"), columns={"SBP": "sbp"}).format
    'csv'
    """

    path: Path
    encoding: str = "utf-8"
    delimiter: str = ","
    columns: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Recoding] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    edges: Edges | None = None
    table: str = ""
    database: str = ""
    hospital: str = ""
    hospitals: tuple[str, ...] = ()
    steps: Steps = field(default_factory=Steps)
    salt: str = ""

    def __post_init__(self) -> None:
        self._check_hospitals()
        _must_be_a_table(self.path, self.encoding, self.delimiter)
        _must_be_in_a_database(self.path, self.table, self.database)
        twice = sorted({to for to in self.columns.values() if list(self.columns.values()).count(to) > 1})
        must(not twice, "a dictionary column must come from one source column", ", ".join(twice))
        both = sorted(set(self.columns) & set(self.ignore))
        must(not both, "a source column must be mapped or ignored, not both", ", ".join(both))
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        recoded = {name: one for name, one in self.values.items() if one.words}
        object.__setattr__(self, "values", MappingProxyType(recoded))
        if self.edges is None and self.format == "graphml":
            object.__setattr__(self, "edges", Edges(path=self.path))

    def _check_hospitals(self) -> None:
        names = tuple(self.hospitals)
        object.__setattr__(self, "hospitals", names)
        must(bool(self.hospital) == bool(names), "hospital and hospitals must be given together", f"{len(names)} names")
        if not self.hospital:
            return
        differ = len(set(names)) == len(names) and all(name and name == name.strip() for name in names)
        must(2 <= len(names) <= 1000 and differ, "hospitals must be 2 to 1000 different names", f"{len(names)}")
        must(self.hospital not in self.columns, "the column of hospitals must not be one of the study", self.hospital)
        # It is read to hold the rows against the agreement, and is in nothing that is kept or leaves.
        if self.hospital not in self.ignore:
            object.__setattr__(self, "ignore", (*self.ignore, self.hospital))

    @property
    def format(self) -> Format:
        """File format, by its name."""
        return _format(self.path)

    @property
    def mapped(self) -> dict[str, Any]:
        """Fields of the mapping's file, by name (`site_agent.records.mapping.document`)."""
        return {name: getattr(self, name) for name in document.MAPPED}

    @property
    def is_mapped(self) -> bool:
        """True if any field of the mapping but its salt is set."""
        return any(bool(value) for name, value in self.mapped.items() if name != "salt")

    @property
    def mapping_hash(self) -> str:
        """SHA-256 of the mapping's file, for receipts; blank where nothing is mapped, or without a salt."""
        return document.digest(self.mapped) if self.is_mapped else ""


# -- the file ---------------------------------------------------------------------------------------------------------
def mapping_path(home: Path, study: str) -> Path:
    """Path of a study's mapping file."""
    return home / document.FOLDER / f"{study}.toml"


def source_from_toml(study: str, given: Any, home: Path = Path()) -> TableSource:
    """The table of a study, from the plain values of its section.

    Args:
        home: the folder that holds the mapping. Versions before 0.3 wrote it into the section itself.
    Raises: ConfigRefusal, DataFileRefusal.
    """
    where = f"[data.{study}]"
    must(isinstance(given, dict), f"{where} must be a table of settings", type(given).__name__)
    must(isinstance(given.get("path"), str), f"{where} must set path", "none")
    inline = {name: given[name] for name in ("columns", "values", "ignore") if name in given}
    values = {name: value for name, value in given.items() if name not in (*inline, "mapping")}
    values["path"] = Path(given["path"])
    if "mapping" in given:
        path = mapping_path(home, study)
        written = f"{document.FOLDER}/{study}.toml"
        must(
            given["mapping"] == written and not inline, f"{where} must be mapped in {written} alone", "more, or another"
        )
        values |= document.read(path)
    else:
        values |= document.from_plain(inline, where)
    for name in ("encoding", "delimiter", "table", "database", "hospital"):
        must(isinstance(values.get(name, ""), str), f"{where}.{name} must be text", type(values.get(name)).__name__)
    named = values.get("hospitals", [])
    listed = isinstance(named, list) and all(isinstance(name, str) for name in named)
    must(listed, f"{where}.hospitals must be a list of names", type(named).__name__)
    values["hospitals"] = tuple(named)
    if "edges" in values:
        values["edges"] = _edges(where, values["edges"])
    source = section(TableSource, values, where)
    assert isinstance(source, TableSource)
    return source


def _edges(where: str, given: Any) -> Edges:
    where = f"{where}.edges"
    must(isinstance(given, dict), f"{where} must be a table of settings", type(given).__name__)
    known = {"path", "encoding", "delimiter", "from", "to", "table", "database"}
    closed(given, known, where=where, refusal=ConfigRefusal)
    must(isinstance(given.get("path"), str), f"{where} must set path", "none")
    for name, value in given.items():
        must(isinstance(value, str), f"{where}.{name} must be text", type(value).__name__)
    names = {"from": "start", "to": "end"}
    values: dict[str, Any] = {names.get(name, name): value for name, value in given.items()}
    return Edges(**{**values, "path": Path(given["path"])})


def source_to_toml(study: str, source: TableSource) -> list[str]:
    """Lines of site.toml that `source_from_toml` reads back."""
    lines: list[str] = []
    lines += ["", f"[data.{quoted(study)}]", f"path = {quoted(str(source.path))}"]
    lines += _in_a_text(source)
    lines += _in_a_database(source)
    if source.hospital:
        lines.append(f"hospital = {quoted(source.hospital)}        # the column that says whose row it is")
        lines.append(f"hospitals = [{', '.join(map(quoted, source.hospitals))}]")
    if source.is_mapped:
        lines.append(f"mapping = {quoted(f'{document.FOLDER}/{study}.toml')}        # which column is which")
    edges = source.edges
    own = edges is not None and source.format == "graphml" and edges == Edges(path=source.path)
    if edges is not None and not own:
        lines += ["", f"[data.{quoted(study)}.edges]        # who is connected with whom: two of its columns"]
        lines += [f"path = {quoted(str(edges.path))}"]
        lines += _in_a_text(edges)
        lines += _in_a_database(edges)
        lines += [f"from = {quoted(edges.start)}", f"to = {quoted(edges.end)}"]
    return lines


def _in_a_text(source: TableSource | Edges) -> list[str]:
    lines = [f"encoding = {quoted(source.encoding)}"]
    if source.format == "csv":
        return [*lines, f"delimiter = {quoted(source.delimiter)}"]
    return lines if source.encoding != "utf-8" else []


def _in_a_database(source: TableSource | Edges) -> list[str]:
    return [f"{name} = {quoted(value)}" for name in ("table", "database") if (value := getattr(source, name))]
