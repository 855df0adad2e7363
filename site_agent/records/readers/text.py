"""Tables that are text: CSV."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from shared.errors import DataFileRefusal
from site_agent.records.readers.base import FormatReader, encoding

if TYPE_CHECKING:
    from site_agent.records.source import TableSource

__all__ = ["READERS"]


class _Csv(FormatReader):
    whole = ("readable as CSV", "rows of unequal length or an open quote")
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
            raise self.unreadable(source, error) from None


READERS: Mapping[str, FormatReader] = {"csv": _Csv()}
