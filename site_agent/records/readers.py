"""How a table of each format is read: the names of its columns, its rows, and how many there are.

A format is a `FormatReader` in `READERS`, under the name that `site_agent.config.FORMATS` gives to its endings. Values
come as the format has them: what is text stays text, and `Dictionary.check` judges all of them alike. A parser's own
message quotes what it stumbled over, so none is ever passed on (`unreadable`).
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from shared.errors import DataFileRefusal

if TYPE_CHECKING:
    from site_agent.config import TableSource

__all__ = ["READERS", "FormatReader", "encoding", "reader", "unreadable"]


class FormatReader(ABC):
    """Reads a table of one format. Its methods raise DataFileRefusal, of a database StateRefusal too.

    Attributes:
        whole: what a table of this format must be, and what was given instead where it is damaged, in words.
    """

    whole: ClassVar[tuple[str, str]]

    @abstractmethod
    def columns(self, source: TableSource) -> tuple[str, ...]:
        """The names of its columns, as they stand in it."""

    @abstractmethod
    def count(self, source: TableSource) -> int:
        """Number of its rows; nothing is checked."""

    @abstractmethod
    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        """All rows of some columns, by their places in `columns`, in that order."""


def reader(source: TableSource) -> FormatReader:
    """The reader of a source's format."""
    return READERS[source.format]


def encoding(source: TableSource) -> str:
    """The encoding of a text file, a byte order mark allowed for."""
    return "utf-8-sig" if source.encoding == "utf-8" else source.encoding


def unreadable(source: TableSource, error: Exception) -> DataFileRefusal:
    """Kind of a parser's error, without its message, which quotes the file."""
    if isinstance(error, UnicodeError):
        return DataFileRefusal(
            f"the table {source.path.name} must be text in {source.encoding}",
            given="bytes that are not",
            next_step="Export it as UTF-8, or name its encoding: site-agent data add … --encoding cp1252.",
        )
    whole, given = reader(source).whole
    step = "Check the delimiter and the quoting, and that the export is complete."
    return DataFileRefusal(
        f"the table {source.path.name} must be {whole}",
        given=given,
        next_step=step if source.format == "csv" else "Export it again.",
    )


class _Csv(FormatReader):
    whole = ("readable as CSV", "rows of unequal length or an open quote")

    def columns(self, source: TableSource) -> tuple[str, ...]:
        try:
            with source.path.open(encoding=encoding(source), newline="") as file:
                first = next(csv.reader(file, delimiter=source.delimiter), [])
        except (UnicodeError, csv.Error) as error:
            raise unreadable(source, error) from None
        names = tuple(name.strip() for name in first)
        if not any(names):
            raise DataFileRefusal("the table must have a first line with column names", given="an empty line")
        return names

    def count(self, source: TableSource) -> int:
        try:
            with source.path.open(encoding=encoding(source), newline="") as file:
                lines = csv.reader(file, delimiter=source.delimiter)
                wide = len(next(lines, []))
                return sum(1 for line in lines if line or wide == 1)
        except (csv.Error, UnicodeError) as error:
            raise unreadable(source, error) from None

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        try:
            # pandas pads a line that was cut off and makes an index of fields that are too many: counted first.
            with source.path.open(encoding=encoding(source), newline="") as file:
                lines = csv.reader(file, delimiter=source.delimiter, strict=True)
                wide = len(next(lines))
                # A blank line is no row, but in a table of one column, where it is one with a missing value.
                widths = Counter(len(line) or 1 for line in lines if line or wide == 1)
            short, long = (
                sum(c for w, c in widths.items() if (w < wide) == less and w != wide) for less in (True, False)
            )
            if short or long:
                raise DataFileRefusal(
                    f"every row must have {wide} fields, as the first line has",
                    given=f"{short} rows with fewer, {long} with more",
                    next_step="Check the delimiter and the quoting, and that the export is complete.",
                )
            # Everything stays text: a parser that guesses would turn the identifier 007 into 7.
            return pd.read_csv(
                source.path,
                dtype=str,
                keep_default_na=False,
                encoding=encoding(source),
                sep=source.delimiter,
                skip_blank_lines=wide > 1,
            ).iloc[:, list(places)]
        except (csv.Error, UnicodeError, pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OSError) as error:
            raise unreadable(source, error) from None


class _Parquet(FormatReader):
    whole = ("a whole Parquet file", "a truncated or damaged one")

    def _file(self, source: TableSource) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(source.path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(source, error) from None

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(str(name) for name in self._file(source).schema_arrow.names)

    def count(self, source: TableSource) -> int:
        return int(self._file(source).metadata.num_rows)

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        import pyarrow as pa

        every = self.columns(source)
        names = [every[place] for place in places]
        try:
            # A whole number stays one beside a gap: as a float, one of 17 digits would be another.
            table = self._file(source).read(columns=names).to_pandas(integer_object_nulls=True)
            return table[names].reset_index(drop=True)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise unreadable(source, error) from None


class _Graphml(FormatReader):
    """The nodes of a GraphML file: their ids as ``id``, and their attributes."""

    whole = ("a whole GraphML file", "a truncated or damaged one")

    def _nodes(self, source: TableSource) -> pd.DataFrame:
        from site_agent.records import contacts

        found = contacts.graph(source.path)
        # As they are: beside a gap pandas would make floats of whole numbers.
        table = pd.DataFrame([dict(attributes) for _, attributes in found.nodes(data=True)], dtype=object)
        table = table.reindex(range(found.number_of_nodes()))
        for name in contacts.declared(source.path):  # by the file's head, whether or not any node has a value
            if name not in table.columns:
                table[name] = None
        if "id" in table.columns:
            raise DataFileRefusal(
                "a GraphML file's attributes must not be called 'id'",
                given="one that is",
                next_step="Rename it at the source: the node's own id has that name.",
            )
        table.insert(0, "id", [str(node) for node in found.nodes()])
        return table

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(str(name) for name in self._nodes(source).columns)

    def count(self, source: TableSource) -> int:
        return len(self._nodes(source))

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        return self._nodes(source).iloc[:, list(places)]


class _Database(FormatReader):
    whole = ("a table or query of the database", "another")

    def columns(self, source: TableSource) -> tuple[str, ...]:
        from site_agent.records import databases

        return databases.columns(source)

    def count(self, source: TableSource) -> int:
        from site_agent.records import databases

        return databases.count(source)

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        from site_agent.records import databases

        every = databases.columns(source)
        return databases.table(source, [every[place] for place in places])


READERS: Mapping[str, FormatReader] = {
    "csv": _Csv(),
    "parquet": _Parquet(),
    "graphml": _Graphml(),
    "sqlite": _Database(),
    "sql": _Database(),
}
"""Name of a format to its reader."""
