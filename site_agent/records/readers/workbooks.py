"""Tables in spreadsheets: Excel workbooks."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shared.base.canonical import is_number
from shared.errors import DataFileRefusal, DictionaryRefusal, UsageRefusal, require
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource

__all__ = ["READERS"]

DIGITS = 10**15
"""Excel keeps fifteen digits of a number: one from here on is no longer what was typed."""
_OLD = b"\xd0\xcf\x11\xe0"
"""First bytes of a workbook that is encrypted, or of Excel before 2007."""


class _Excel(FormatReader):
    whole = ("an Excel workbook that can be opened", "a damaged one, or another file under that name")
    remedy = "Open it in the spreadsheet and save it anew as .xlsx, or save the sheet as CSV UTF-8."
    needs = ("openpyxl",)

    def columns(self, source: TableSource) -> tuple[str, ...]:
        first = next(self._rows(source), ())
        names = tuple("" if cell is None else str(cell).strip() for cell in first)
        while names and not names[-1]:
            names = names[:-1]
        if not names:
            raise DataFileRefusal(
                "the first row of the sheet must hold column names",
                given="an empty row",
                next_step="Delete what stands above the table, and save the workbook.",
            )
        if nameless := sum(not name for name in names):
            raise DataFileRefusal(
                "every column of the sheet must have a name in the first row",
                given=f"{nameless} of {len(names)} without",
                next_step="Name them, or delete what stands above or beside the table; then save the workbook.",
            )
        return names

    def count(self, source: TableSource) -> int:
        return len(self._records(source, len(self.columns(source))))

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        import pandas as pd

        names = self.columns(source)
        records = self._records(source, len(names))
        self._require_computed(source, places)
        # As they are: beside a gap pandas would make floats of whole numbers.
        table = pd.DataFrame([[row[k] for k in places] for row in records], dtype=object)
        table = table.reindex(columns=range(len(places)))
        for k, place in enumerate(places):
            long = sum(is_number(cell) and abs(cell) >= DIGITS for cell in table[k])
            if long:
                raise DictionaryRefusal(
                    f"column {names[place]!r} must hold no number of more than 15 digits: Excel keeps no more of one",
                    given=f"{long} rows that do",
                    next_step="Format the column as text where the extract is made, and export it again.",
                )
        return table.set_axis([names[place] for place in places], axis=1)

    # -- inside -------------------------------------------------------------------------------------------------
    @contextmanager
    def _sheet(self, source: TableSource, *, formulas: bool = False) -> Iterator[Any]:
        """The one sheet that is read, with what its formulas gave when it was saved, or with the formulas."""
        require(*self.needs, part="site")
        from openpyxl import load_workbook

        with _opened(source) as file:
            if file.read(4) == _OLD:
                raise DataFileRefusal(
                    f"the table {source.path.name} must be {self.whole[0]}",
                    given="one with a password, or of a form older than 2007",
                    next_step="Save it as .xlsx without a password, or save the sheet as CSV UTF-8.",
                )
        try:
            book = load_workbook(source.path, read_only=True, data_only=not formulas, keep_links=False)
        except Exception as error:  # a zip, its XML and its types fail in a dozen classes, which may quote the file
            raise self.unreadable(source, error) from None
        try:
            names = book.sheetnames
            if not source.table and len(names) != 1:
                raise UsageRefusal(
                    "of a workbook of several sheets one must be named",
                    given=f"{len(names)} sheets",
                    next_step="Run site-agent data add FILE --as STUDY --table SHEET.",
                )
            if source.table and source.table not in names:
                raise UsageRefusal(
                    "the workbook must have the sheet that is named",
                    given=f"{len(names)} sheets, none of that name",
                    next_step="Run site-agent data add FILE --as STUDY --table SHEET, as its tab spells it.",
                )
            sheet = book[source.table or names[0]]
            if not hasattr(sheet, "iter_rows"):
                raise DataFileRefusal(
                    "the sheet must hold a table", given="a chart", next_step="Name another: data add … --table SHEET."
                )
            sheet.reset_dimensions()  # some programs write a size that is too small, and the rest would not be read
            yield sheet
        finally:
            book.close()

    def _rows(self, source: TableSource, *, formulas: bool = False) -> Iterator[tuple[Any, ...]]:
        """Rows of the sheet, the first with the names; cells instead of values where formulas are asked for."""
        with self._sheet(source, formulas=formulas) as sheet:
            rows = sheet.iter_rows(values_only=not formulas)
            while True:
                try:
                    row = next(rows, None)
                except Exception as error:  # as above: what is damaged shows only where it is read
                    raise self.unreadable(source, error) from None
                if row is None:
                    return
                yield row

    def _records(self, source: TableSource, wide: int) -> list[tuple[Any, ...]]:
        """The rows below the names, as wide as they are; blank ones are none, as in CSV."""
        rows = self._rows(source)
        next(rows, None)
        found, beyond = [], 0
        for row in rows:
            if all(cell is None for cell in row):
                continue
            beyond += any(cell is not None for cell in row[wide:])
            found.append((*row[:wide], *[None] * (wide - len(row))))
        if beyond:
            raise DataFileRefusal(
                f"every row must have {wide} cells, as the first row has names",
                given=f"{beyond} rows with more",
                next_step="Name every column, or delete what stands beside the table; then save the workbook.",
            )
        return found

    def _require_computed(self, source: TableSource, places: Sequence[int]) -> None:
        """Refuse formulas whose result no spreadsheet has saved: they would look like missing values."""
        with zipfile.ZipFile(source.path) as parts:
            sheets = [name for name in parts.namelist() if name.startswith("xl/worksheets/")]
            if not any(b"<f" in parts.read(name) for name in sheets):
                return
        lacking = sum(
            place < len(cells)
            and getattr(cells[place], "data_type", "") == "f"
            and (place >= len(values) or values[place] is None)
            for cells, values in zip(self._rows(source, formulas=True), self._rows(source), strict=False)
            for place in places
        )
        if lacking:
            raise DataFileRefusal(
                "every formula of the sheet must have been computed when it was saved",
                given=f"{lacking} cells without a result",
                next_step="Open the workbook in the spreadsheet and save it, or paste the column as values.",
            )


@contextmanager
def _opened(source: TableSource) -> Iterator[Any]:
    try:
        file = source.path.open("rb")
    except OSError as error:
        raise DataFileRefusal(
            f"the table {source.path.name} must be readable by the agent",
            given=type(error).__name__,
            next_step="Close it in the spreadsheet, or let the agent's account read it.",
        ) from None
    with file:
        yield file


READERS: Mapping[str, FormatReader] = {"excel": _Excel()}
