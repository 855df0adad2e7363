"""The Parquet file in a bundle: nothing in it is decoded, and no room is made for it, before its size is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shared.errors import SchemaRefusal
from shared.mechanisms.base import Extent
from shared.releases.metadata import require_no_room, require_plain

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_table"]


def read_table(
    data: memoryview, columns: list[str], rows: int, cap: int, extent: Extent | None, forget: Callable[[], None]
) -> pd.DataFrame:
    """The table, read column by column; `forget` drops the file's pages, so that they never add up with the table.

    Nothing is decoded before rows, forms and the bytes that they take are bounded by the file's own index. Words are
    read as a dictionary of them with places in it, which no repetition can blow up, and written out when the longest
    is known.

    Args:
        data: the file's bytes.
        columns: that it must have, in this order.
        rows: that it must have.
        cap: most bytes that the table may take once it is decoded.
        extent: what the plan says of the table; left out for one of our own making.
        forget: called between two columns.
    Raises: SchemaRefusal; MemoryError.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if len(data) < 12 or int.from_bytes(data[-8:-4], "little") > _most_index(len(columns), rows):
            raise SchemaRefusal("table.parquet must have an index of its columns and nothing else", given="a larger")
        buffer = pa.py_buffer(data)
        limits = _thrift_limits(len(columns), rows)
        with pq.ParquetFile(pa.BufferReader(buffer), **limits) as parquet:
            meta, schema = parquet.metadata, parquet.schema_arrow
            kinds = _kinds(meta, schema, columns, rows, extent)
            require_plain(parquet, data)
            if extent is not None:
                require_no_room(parquet)
        # What the words take is added where they are read.
        taken = rows * sum(_width(kinds[name]) for name in columns) + _listed(meta)
        size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        if max(size, taken) > cap:
            raise SchemaRefusal("the table must have the manifest's rows and fit in memory")
        words = [name for name in columns if kinds[name] == "words"]
        parts, waiting = [], None
        with pq.ParquetFile(pa.BufferReader(buffer), metadata=meta, read_dictionary=words, **limits) as parquet:
            for name in columns:
                forget()
                column = parquet.read(columns=[name], use_threads=False)
                if kinds[name] in ("words", "levels"):
                    longest = _longest(column.column(0))
                    most = None if extent is None else extent.texts.get(name, 0)
                    if most is not None and longest > most:
                        raise SchemaRefusal("a word of the table must be no longer than the plan's", given="a longer")
                    taken += rows * longest if kinds[name] == "words" else 0
                    if taken > cap:
                        raise SchemaRefusal("the table must have the manifest's rows and fit in memory")
                    column.validate(full=True)  # words must be UTF-8: nothing later looks before it reads them
                if kinds[name] == "words":
                    column = column.cast(pa.schema([schema.field(name)], metadata=schema.metadata))
                # Small columns become pandas' together, for that takes a millisecond however few rows there are; large
                # ones each by itself, so that the table is never there twice.
                waiting = column if waiting is None else waiting.append_column(column.field(0), column.column(0))
                if waiting.nbytes > TOGETHER or name == columns[-1]:
                    # Whatever dtypes the file claims, `Dictionary.validate_release` decides afterwards.
                    parts.append(waiting.to_pandas(use_threads=False, self_destruct=True))
                    waiting = None
        parts = parts or [pd.DataFrame(index=range(rows))]
        table = parts[0] if len(parts) == 1 else pd.concat(parts, axis=1)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise SchemaRefusal("table.parquet must be readable", given=type(error).__name__) from None
    if len(table) != rows:
        raise SchemaRefusal("the table must have the manifest's rows")
    return table


TOGETHER = 1 << 20
"""Bytes of columns that become pandas' in one go."""
ROW_GROUP = 1 << 16
"""Fewer rows than this are one row group: a file of many small ones is an index and no table."""


def _most_index(columns: int, rows: int) -> int:
    """Most bytes of the index (footer) of a Parquet file: it is parsed whole before anything in it can be checked."""
    return (64 << 10) + columns * ((4 << 10) + (1 << 10) * (1 + rows // ROW_GROUP))


def _thrift_limits(columns: int, rows: int) -> dict[str, int]:
    """Most bytes of a text and most entries of a list in a Parquet file's index and headers.

    Their reader makes room for as many entries as a list claims to have, a kilobyte and more for each, before it looks
    for the first: by its own limits an index of 300 bytes takes 1.4 GB.
    """
    return {
        "thrift_string_size_limit": _most_index(columns, rows),
        "thrift_container_size_limit": 64 + 4 * columns + rows // ROW_GROUP,
    }


def _kinds(meta: Any, schema: Any, columns: list[str], rows: int, extent: Extent | None) -> dict[str, str]:
    """Content of each column of a Parquet file: ``number``, ``words``, ``levels`` (dictionary-encoded) or ``list``.

    Raises: SchemaRefusal: other rows or columns than the manifest's, anything nested but the lists of `extent`, or a
        form whose decoded size the index does not tell.
    """
    import pyarrow as pa

    if meta.num_rows != rows or (extent is not None and extent.rows != rows) or not 0 <= rows < 1 << 31:
        raise SchemaRefusal(
            "the table must have the manifest's rows and fit in memory",
            given=f"{rows} rows" if extent is None else f"{rows} rows for {extent.rows}",
        )
    if list(schema.names) != columns or len(set(columns)) != len(columns):
        raise SchemaRefusal("a manifest must name the table's columns", given="others")
    groups = [meta.row_group(i) for i in range(min(meta.num_row_groups, 2 + rows // ROW_GROUP))]
    counted = sum(group.num_rows for group in groups) == rows and all(group.num_rows >= 0 for group in groups)
    if meta.num_columns > 4096 or meta.num_columns != len(columns) or len(groups) > 1 + rows // ROW_GROUP:
        raise SchemaRefusal("a table must have flat columns in few row groups, and fit in memory", given="others")
    kinds: dict[str, str] = {}
    for k, name in enumerate(columns):
        kind, column = schema.field(k).type, meta.schema.column(k)
        # What is read is what each column says it has, whatever its row group says.
        values = [group.column(k).num_values for group in groups]
        flat = column.max_repetition_level == 0 and column.max_definition_level <= 1
        flat = flat and values == [group.num_rows for group in groups]
        if flat and column.physical_type in ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"):
            number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
            kinds[name] = "number" if number else ""
        elif flat and column.physical_type == "BYTE_ARRAY":
            levels = pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)
            words = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            kinds[name] = "levels" if levels else "words" if words else ""
        elif column.max_repetition_level == 1 and (extent is None or name in extent.lists):
            kinds[name] = "list" if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type) else ""
        else:
            kinds[name] = ""
    if not counted or not all(kinds.values()):
        raise SchemaRefusal("a table's columns must be numbers, words or the plan's lists", given="another form")
    return kinds


def _width(kind: str) -> int:
    """Bytes that a value takes in memory: of words what points to them, of lists nothing (`_listed`)."""
    return {"number": 9, "levels": 8, "words": 24, "list": 0}[kind]


def _longest(column: Any) -> int:
    """Bytes of the longest word of a column that was read as a dictionary of words."""
    import pyarrow.compute as pc

    most = [pc.max(pc.binary_length(chunk.dictionary)).as_py() for chunk in column.chunks]
    return max((length for length in most if length is not None), default=0)


def _listed(meta: Any) -> int:
    """Bytes that the list columns of a Parquet file take in memory: 8 for each value, 120 for each list.

    A list's values can be packed a hundred thousand to a byte: what counts is what they take when decoded.
    """
    lists = [k for k in range(meta.num_columns) if meta.schema.column(k).max_repetition_level > 0]
    values = sum(meta.row_group(i).column(k).num_values for i in range(meta.num_row_groups) for k in lists)
    return 8 * values + 120 * meta.num_rows * len(lists)
