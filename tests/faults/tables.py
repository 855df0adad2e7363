"""Tables that nobody released, as Parquet files that are well formed: other columns, types, values, pages."""

from __future__ import annotations

import io
import random
from functools import cache
from typing import Any

__all__ = ["other_table"]

TYPES = ("int8", "int64", "uint64", "float32", "float64", "string", "large_string", "binary", "bool", "null")
WORDS = ("", "a", "\x00", "‮", "=1+1", "x" * 70_000, "nan", "female", "1e999")
MOST = 256 << 20
"""Bytes of a table that is made here: four times what may be read."""
NUMBERS = (float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7e308, -1.0, 1e18, None)
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")


@cache
def _read(data: bytes) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(data))


def other_table(data: bytes, rng: random.Random) -> bytes:
    """Another table, made of one that is sound, and written in another way."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, out = _read(data), io.BytesIO()
    try:
        for _ in range(rng.choice((0, 1, 1, 2))):
            table = _changed(table, rng)
        pq.write_table(
            table,
            out,
            compression=rng.choice(COMPRESSIONS),
            use_dictionary=rng.random() < 0.5,
            write_statistics=rng.random() < 0.5,
            data_page_version=rng.choice(("1.0", "2.0")),
            version=rng.choice(("1.0", "2.4", "2.6")),
            row_group_size=rng.choice((1, 7, 1000, 1 << 20)) if table.num_rows < 1000 else None,
            store_schema=rng.random() < 0.7,
        )
    except (pa.ArrowException, ValueError, TypeError):  # it has no place in such a file
        return data
    finally:  # what is forked from here is measured: it must not find room that this has left
        del table
        pa.default_memory_pool().release_unused()
    return out.getvalue()


def _changed(table: Any, rng: random.Random) -> Any:
    import pyarrow as pa

    count, rows = table.num_columns, table.num_rows
    if not count:
        return table
    place, kind = rng.randrange(count), rng.randrange(10)
    name, column = table.column_names[place], table.column(place)
    if kind == 0:
        return table.remove_column(place)
    if kind == 1:
        return table.append_column(rng.choice((name, "extra", "", "x" * 2000)), column)
    if kind == 2:
        other = rng.choice(WORDS[:5])
        return table.rename_columns([other if k == place else each for k, each in enumerate(table.column_names)])
    if kind == 3:
        return table.select(rng.sample(range(count), count))
    if kind == 4:
        return table.slice(0, rng.choice((0, 1, max(rows - 1, 0))))
    if kind == 5:  # little on the disk, much in memory
        times = min(rng.choice((2, 1000, 20_000)), MOST // max(1, table.slice(0, 1).nbytes))
        return pa.concat_tables([table.slice(0, 1)] * max(2, times)).combine_chunks()
    if kind == 6:
        return table.replace_schema_metadata({rng.choice(("pandas", "ARROW:schema", "x")): rng.choice(WORDS)})
    if kind == 7:
        odd = rng.choice((WORDS, NUMBERS))
        made = pa.array([rng.choice(odd) for _ in range(rows)])
    elif kind == 8:
        nested = rng.choice(([[]], [[[1]]], [{"a": 1}], [b"\xff"], [10**15]))
        made = pa.array(nested * rows)
    else:
        try:
            made = column.cast(rng.choice(TYPES), safe=False)
        except pa.ArrowException:
            made = pa.nulls(rows)
    return table.set_column(place, pa.field(name, made.type, nullable=rng.random() < 0.8 or made.null_count > 0), made)
