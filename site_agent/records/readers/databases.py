"""Tables that lie in a database: a SQLite file on this machine, or a query of the hospital's own database server.

A SQLite file is named with a table or view of it. For a server, what is named is a local file with one SELECT, which
whoever answers for the hospital's data can read, and an *environment variable* that holds the database's address with
its password: neither is ever written to ``site.toml``, printed or logged. A driver's own words are passed on of a
statement that cannot be run at all, and nowhere else: they may quote the address, or a record. Reading is all that is
done: SQLite files are opened read-only, transactions are declared so where the database knows that, and nothing is
committed. An account that may only read is still the hospital's to give.

Rows come sorted by all their columns, so that the same data are the same table however the database stores them. The
snapshot of a release is of what was read, not of a file's bytes.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.base.process import deferred
from shared.errors import DataFileRefusal, StateRefusal
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    import pandas as pd
    from sqlalchemy.exc import DBAPIError

    from site_agent.records.source import Edges, TableSource
else:
    pd = deferred("pandas")

__all__ = ["READERS", "blocks", "columns", "count", "encoded", "table"]

BLOCK = 1 << 18
"""Rows that are fetched at once."""
_QUERY_CAP = 1 << 16
# What quotes hold is text, whatever it looks like: it is found first, so that no comment begins in it.
_COMMENT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_READS = re.compile(r"(select|with)\b", re.IGNORECASE)


def columns(source: TableSource | Edges) -> tuple[str, ...]:
    """Names of the columns. Raises: DataFileRefusal, StateRefusal."""
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError, ProgrammingError

    with _opened(source) as (connection, query):
        _require_version(source, connection)
        try:
            found = connection.execute(text(f"SELECT * FROM ({query}) AS t WHERE 1 = 0"))
        except (OperationalError, ProgrammingError) as error:  # not DataError: a value that could not be converted
            if error.connection_invalidated:
                raise
            raise _not_understood(source, error) from None
        return tuple(map(str, found.keys()))


def _require_version(source: TableSource | Edges, connection: Any) -> None:
    """Require an OMOP CDM of version 5 for a SELECT written for one, where the database states its version.

    Other versions have other columns under the same table names: a statement may run there and mean something else.
    Raises: DataFileRefusal.
    """
    if source.format != "sql":
        return
    from sqlalchemy import column, inspect, select, table
    from sqlalchemy.exc import OperationalError, ProgrammingError

    from site_agent.records.standards import omop

    schema = omop.source_of(source.path.read_text(encoding="utf-8", errors="replace"))
    if schema is None or not inspect(connection).has_table("cdm_source", schema=schema or None):
        return
    query: Any = select(column("cdm_version")).select_from(table("cdm_source", schema=schema or None))
    try:
        found = [omop.VERSION.search(str(version)) for (version,) in connection.execute(query)]
    except (OperationalError, ProgrammingError) as error:  # no such column, or none for this account: it says nothing
        if error.connection_invalidated:
            raise
        connection.rollback()
        return
    others = [one.string for one in found if one is not None and one[1] != "5"]
    if others:
        raise DataFileRefusal(
            f"the database of {source.path.name} must be an OMOP CDM of version 5",
            given=f"cdm_version {others[0][:20]!r} in its cdm_source",
            next_step="Ask for a database of version 5, or write the SELECT for this one by hand.",
        )


def _not_understood(source: TableSource | Edges, error: DBAPIError) -> DataFileRefusal:
    """Refusal that quotes the database's own message about a statement that it cannot run.

    The message is passed on only here, to the steward whose statement it is: the query returns no row (1 = 0), so that
    it can quote nothing but the statement. A query for rows may fail on a record, and is reported by its kind only.
    """
    said = " ".join(str(error.orig).split())
    address = os.environ.get(source.database, "") if source.database else ""
    if address and any(part in said for part in re.split(r"[:/@]+", address)[1:] if len(part) > 3):
        said = ""  # a user, a password or a host
    return DataFileRefusal(
        f"the table of {source.path.name} must be readable in its database",
        given=said[:300] or type(error.orig).__name__,
        next_step="Correct the statement; a name that is a reserved word stands in double quotes.",
    )


def count(source: TableSource | Edges) -> int:
    """Number of rows. Raises: DataFileRefusal, StateRefusal."""
    from sqlalchemy import text

    with _opened(source) as (connection, query):
        return int(connection.execute(text(f"SELECT count(*) FROM ({query}) AS t")).scalar_one())


def table(source: TableSource | Edges, names: Sequence[str]) -> pd.DataFrame:
    """The rows of some columns, sorted, values as the database has them. Raises: DataFileRefusal, StateRefusal."""
    parts = list(blocks(source, names))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(names), dtype=object)


def blocks(source: TableSource | Edges, names: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Rows of `table`, a block at a time."""
    from sqlalchemy import column, select, text

    with _opened(source) as (connection, query):
        # Names are quoted as the database writes them.
        chosen: list[Any] = [column(name) for name in names]
        statement = select(*chosen).select_from(text(f"({query}) AS t")).order_by(*chosen)
        found = connection.execution_options(yield_per=BLOCK).execute(statement)
        for rows in found.partitions():
            made = np.empty((len(rows), len(names)), dtype=object)
            for place, row in enumerate(rows):
                made[place] = tuple(row)
            yield pd.DataFrame(made, columns=list(names))


def encoded(rows: pd.DataFrame) -> Iterator[bytes]:
    """Bytes of the values read, to be hashed: equal where values and their types are."""
    for row in rows.itertuples(index=False, name=None):
        yield repr(row).encode() + b"\n"


class _Database(FormatReader):
    whole = ("a table or query of the database", "another")
    needs = ("sqlalchemy",)

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return columns(source)

    def count(self, source: TableSource) -> int:
        return count(source)

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        every = columns(source)
        return table(source, [every[place] for place in places])


READERS: Mapping[str, FormatReader] = {"sqlite": _Database(), "sql": _Database()}


# -- inside -----------------------------------------------------------------------------------------------------
@contextmanager
def _opened(source: TableSource | Edges) -> Iterator[tuple[Any, str]]:
    """A connection that only reads, and the query of the source as SQLAlchemy takes it."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    where = source.path.name
    if not source.path.is_file() or source.path.stat().st_size == 0:
        raise DataFileRefusal(
            "a database, or a query of one, must be a file on this machine that is not empty",
            given=f"{where}, which is not there or empty",
            next_step="Run site-agent data add with the right path, or mount the folder.",
        )
    if source.format == "sqlite":
        query = 'SELECT * FROM "{}"'.format(source.table.replace('"', '""'))
        engine = create_engine("sqlite://", creator=lambda: _read_only(source.path))
    else:
        query, engine = _query(source.path), _engine(source.database)
    try:
        # A colon would else be taken for a parameter. A backslash is none to SQLAlchemy unless a colon follows.
        with engine.connect() as connection:
            backend = connection.dialect.name
            if backend == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            elif backend in ("mysql", "mariadb"):
                connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
                connection.rollback()
            yield connection, query.replace(":", "\\:")
            connection.rollback()
    except (SQLAlchemyError, sqlite3.Error, UnicodeError, OSError) as error:
        # Their words quote the statement, the address and the record they stumbled over.
        raise DataFileRefusal(
            f"the table of {where} must be readable in its database",
            given=type(getattr(error, "orig", None) or error).__name__,
            next_step="Check the table's name or the query, the address in the variable, and that the account may "
            "read it.",
        ) from None
    finally:
        engine.dispose()


def _read_only(path: Path) -> sqlite3.Connection:
    """A SQLite file, opened so that nothing can be written."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _engine(variable: str) -> Any:
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    given = os.environ.get(variable, "")
    if not given:
        raise StateRefusal(
            f"the environment variable {variable} must hold the database's address",
            given="nothing",
            next_step=f"Set {variable}=dialect://user:password@host/name for the agent alone; it is never stored.",
        )
    try:
        address = make_url(given)
        if address.get_backend_name() == "sqlite":
            path = Path(address.database or "")
            return create_engine("sqlite://", creator=lambda: _read_only(path))
        return create_engine(address, hide_parameters=True)
    except NoSuchModuleError:
        problem = "a kind of database that SQLAlchemy does not know"
    except ModuleNotFoundError as error:
        problem = f"no driver {error.name}"
    except (ArgumentError, ValueError):
        problem = "something else"
    raise StateRefusal(
        f"the environment variable {variable} must hold an address that SQLAlchemy can open",
        given=problem,
        next_step="Install the database's driver beside the agent, or correct the address.",
    )


def _query(path: Path) -> str:
    """The one SELECT of a file, as it stands there: without comments it is only looked at. Raises: DataFileRefusal."""
    data = path.read_bytes()
    try:
        text = data[: _QUERY_CAP + 1].decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    # As long as the text, so that what is left of it says where the statement begins and ends.
    bare = _COMMENT.sub(lambda found: found[0] if found[0][0] in "'\"" else " " * len(found[0]), text)
    query = bare.strip().removesuffix(";").strip()
    if len(data) > _QUERY_CAP or not _READS.match(query) or ";" in query:
        raise DataFileRefusal(
            f"the file {path.name} must hold one SELECT, in UTF-8, of at most {_QUERY_CAP >> 10} KB",
            given="something else",
            next_step="Write one statement that starts with SELECT or WITH, without another after it.",
        )
    start = len(bare) - len(bare.lstrip())
    return text[start : start + len(query)]
