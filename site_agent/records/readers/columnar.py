"""Tables that lie column by column: Parquet, and Arrow's own files (Feather)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from site_agent.records.readers.base import BLOCK_ROWS, FormatReader

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource

__all__ = ["READERS"]


class _Parquet(FormatReader):
    whole = ("a whole Parquet file", "a truncated or damaged one")
    needs = ("pyarrow",)
    in_blocks = True

    def _file(self, source: TableSource) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found = pq.ParquetFile(source.path)
            _ = found.schema_arrow.names  # a damaged one is no text
            return found
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.unreadable(source, error) from None

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(str(name) for name in self._file(source).schema_arrow.names)

    def count(self, source: TableSource) -> int:
        return int(self._file(source).metadata.num_rows)

    def blocks(self, source: TableSource, places: Sequence[int]) -> Iterator[pd.DataFrame]:
        import pyarrow as pa

        every = self.columns(source)
        names = [every[place] for place in places]
        try:
            file = self._file(source)
            for group in range(file.metadata.num_row_groups):  # of several at once, more stays in memory than is read
                for batch in file.iter_batches(BLOCK_ROWS, columns=names, row_groups=[group]):
                    block = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                    yield block.to_pandas(integer_object_nulls=True, timestamp_as_object=True)[names]
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self.unreadable(source, error) from None

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        import pyarrow as pa

        every = self.columns(source)
        names = [every[place] for place in places]
        try:
            # A whole number stays one beside a gap: as a float, one of 17 digits would be another.
            table = (
                self._file(source)
                .read(columns=names)
                .replace_schema_metadata(None)
                .to_pandas(integer_object_nulls=True, timestamp_as_object=True)
            )
            return table[names].reset_index(drop=True)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise self.unreadable(source, error) from None


class _Arrow(FormatReader):
    """A file of Arrow's, with or without an index of its batches: both are called ``.arrow``."""

    whole = ("a whole Arrow or Feather file", "a truncated or damaged one, or Feather of the first version")
    needs = ("pyarrow",)

    def _read(self, source: TableSource) -> Any:
        import pyarrow as pa

        try:
            with source.path.open("rb") as file:
                indexed = file.read(6) == b"ARROW1"
            with pa.memory_map(str(source.path)) as mapped:
                found = (pa.ipc.open_file if indexed else pa.ipc.open_stream)(mapped).read_all()
            _ = found.column_names  # a damaged one is no text
            return found
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.unreadable(source, error) from None

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(map(str, self._read(source).column_names))

    def count(self, source: TableSource) -> int:
        return int(self._read(source).num_rows)

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        # What pandas writes beside a table says nothing of it that is needed, and may be damaged by itself.
        chosen = self._read(source).select(list(places)).replace_schema_metadata(None)
        found: pd.DataFrame = chosen.to_pandas(integer_object_nulls=True, timestamp_as_object=True)
        return found.reset_index(drop=True)


READERS: Mapping[str, FormatReader] = {"parquet": _Parquet(), "arrow": _Arrow()}
