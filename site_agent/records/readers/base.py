"""Interface of a reader of one file format: the names of a table's columns, its rows, and their number.

Values are returned as the format stores them: text stays text, and `Dictionary.check` checks all formats alike. A
parser's own message quotes the value at fault, so none is ever passed on (`FormatReader.unreadable`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from shared.errors import DataFileRefusal

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource

__all__ = ["BLOCK_ROWS", "FormatReader", "encoding"]

BLOCK_ROWS = 1 << 16
"""Rows of a block, where a table is read in blocks."""


class FormatReader(ABC):
    """Reads a table of one format. Its methods raise DataFileRefusal, of a database StateRefusal too.

    Attributes:
        whole: two phrases of the refusal of a damaged file: what it must be, and what it is instead.
        remedy: the next step in that refusal.
        needs: modules that not every site installs (`shared.errors.EXTRAS`).
        in_blocks: whether a part of a table can be read without the rest.
    """

    whole: ClassVar[tuple[str, str]]
    remedy: ClassVar[str] = "Export it again."
    needs: ClassVar[tuple[str, ...]] = ()
    in_blocks: ClassVar[bool] = False

    @abstractmethod
    def columns(self, source: TableSource) -> tuple[str, ...]:
        """The names of its columns, as they stand in it."""

    @abstractmethod
    def count(self, source: TableSource) -> int:
        """Number of its rows; nothing is checked."""

    @abstractmethod
    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        """All rows of some columns, by their places in `columns`, in that order."""

    def blocks(self, source: TableSource, places: Sequence[int]) -> Iterator[pd.DataFrame]:
        """As `table`, `BLOCK_ROWS` after the other; all at once in a format that is not read in blocks."""
        yield self.table(source, places)

    def unreadable(self, source: TableSource, error: Exception) -> DataFileRefusal:
        """Refusal by the kind of a parser's error, without its message, which quotes the file."""
        if isinstance(error, UnicodeError):
            return DataFileRefusal(
                f"the table {source.path.name} must be text in {source.encoding}",
                given="bytes that are not",
                next_step="Export it as UTF-8, or name its encoding: site-agent data add … --encoding cp1252.",
            )
        whole, given = self.whole
        return DataFileRefusal(f"the table {source.path.name} must be {whole}", given=given, next_step=self.remedy)


def encoding(source: TableSource) -> str:
    """The encoding of a text file, a byte order mark allowed for."""
    return "utf-8-sig" if source.encoding == "utf-8" else source.encoding
