"""Tables that are text: CSV, and JSON lines."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shared.base.process import deferred
from shared.errors import DataFileRefusal
from site_agent.records.readers.base import BLOCK_ROWS, FormatReader, encoding

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource
else:
    pd = deferred("pandas")

__all__ = ["READERS"]


class _Csv(FormatReader):
    whole = ("readable as CSV", "rows of unequal length or an open quote")
    in_blocks = True
    remedy = "Check the delimiter and the quoting, and that the export is complete."

    def columns(self, source: TableSource) -> tuple[str, ...]:
        try:
            with source.path.open(encoding=encoding(source), newline="") as file:
                first = next(csv.reader(file, delimiter=source.delimiter), [])
        except (UnicodeError, csv.Error) as error:
            raise self.unreadable(source, error) from None
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
            raise self.unreadable(source, error) from None

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        return next(self._parts(source, places, None))

    def blocks(self, source: TableSource, places: Sequence[int]) -> Iterator[pd.DataFrame]:
        return self._parts(source, places, BLOCK_ROWS)

    def _parts(self, source: TableSource, places: Sequence[int], rows: int | None) -> Iterator[pd.DataFrame]:
        """So many rows at a time, or all at once, of some columns."""
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
                    next_step=self.remedy,
                )
            read = sorted(places)
            # Everything stays text: a parser that guesses would turn the identifier 007 into 7.
            with (
                pd.read_csv(
                    source.path,
                    dtype=str,
                    keep_default_na=False,
                    encoding=encoding(source),
                    sep=source.delimiter,
                    skip_blank_lines=wide > 1,
                    usecols=read,
                    iterator=True,
                ) as table,
                suppress(StopIteration),
            ):  # there is no row more
                while True:
                    yield table.read(rows).iloc[:, [read.index(place) for place in places]]
        except (csv.Error, UnicodeError, pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OSError) as error:
            raise self.unreadable(source, error) from None


class _JsonLines(FormatReader):
    """One record in each line. A key that a record leaves out is a missing value of it."""

    whole = ("a record in each line, as JSON without records inside", "lines that are not")
    remedy = "Export it again, one flat object in each line, or as CSV."

    def _records(self, source: TableSource) -> list[dict[str, Any]]:
        try:
            with source.path.open(encoding=encoding(source)) as file:
                found = [json.loads(line, object_pairs_hook=_flat, parse_constant=_no) for line in file if line.strip()]
            if not all(isinstance(record, dict) for record in found):
                raise ValueError
        except (ValueError, RecursionError) as error:
            raise self.unreadable(source, error) from None
        return found

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for record in self._records(source) for name in record))

    def count(self, source: TableSource) -> int:
        return len(self._records(source))

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        every = self.columns(source)
        names = [every[place] for place in places]
        # As they are: beside a gap pandas would make floats of whole numbers.
        rows = [[record.get(name) for name in names] for record in self._records(source)]
        return pd.DataFrame(rows, columns=names, dtype=object)


def _flat(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A record, whose keys must differ and whose values must be plain. Raises: ValueError."""
    record = dict(pairs)
    if len(record) != len(pairs) or any(isinstance(value, dict | list) for value in record.values()):
        raise ValueError
    return record


def _no(constant: str) -> Any:
    """NaN and the infinities, which JSON does not have. Raises: ValueError."""
    raise ValueError


READERS: Mapping[str, FormatReader] = {"csv": _Csv(), "jsonl": _JsonLines()}
