"""Restriction of the metadata in a release's Parquet file to the types of its columns, and the software that wrote it.

The table is read by an approver, checked against its dictionary, and given to analysts; the rest of the file is seen by
nobody. So it must have no room for data: no bytes between the columns, no metadata keys but the known ones, and in a
file from an untrusted source no statistics, no attributes and no free text either.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from shared.base.canonical import parse_json
from shared.errors import SchemaRefusal

__all__ = ["LABEL", "VERSION", "require_no_room", "require_plain"]

LABEL = "synthetic / privatised, not patient records"
PARQUET_KEYS = frozenset({"ARROW:schema", "pandas", "label"})
PANDAS_KEYS = frozenset({"index_columns", "column_indexes", "columns", "attributes", "creator", "pandas_version"})
COLUMN_KEYS = frozenset({"name", "field_name", "pandas_type", "numpy_type", "metadata"})
SLACK = 256  # bytes by which two versions of pyarrow may write one schema longer or shorter
TYPE, VERSION = re.compile(r"[A-Za-z0-9_\[\]-]{1,32}"), re.compile("[A-Za-z0-9_.+ -]{1,64}")


def require_plain(parquet: Any, data: memoryview) -> None:
    """Refuse a Parquet file with room for anything but its columns: unread bytes, or metadata of its own.

    Args:
        parquet: the open `pyarrow.parquet.ParquetFile`.
    Raises: SchemaRefusal.
    """
    meta, names = parquet.metadata, parquet.schema_arrow.names
    metadata = {key.decode(errors="replace"): value for key, value in (meta.metadata or {}).items()}
    footer = int.from_bytes(data[-8:-4], "little")
    chunks = [meta.row_group(i).column(k) for i in range(meta.num_row_groups) for k in range(meta.num_columns)]
    # Header, column chunks, footer: whatever else a file held, no reader of the table would ever see.
    tiled = 4 + sum(chunk.total_compressed_size for chunk in chunks) + footer + 8 == len(data)
    plain = metadata.keys() <= PARQUET_KEYS and metadata.get("label") == LABEL.encode()
    plain = plain and sum(map(len, metadata.values())) <= (8 << 10) + len(names) * (2 << 10)
    plain = plain and len(meta.created_by or "") <= 64 and not any(field.metadata for field in parquet.schema_arrow)
    if plain and "pandas" in metadata:
        pandas = parse_json(metadata["pandas"])
        plain = isinstance(pandas, dict) and pandas.keys() <= PANDAS_KEYS and isinstance(pandas.get("columns"), list)
        columns = pandas["columns"] if plain else []
        plain = plain and [item.get("name") if isinstance(item, dict) else None for item in columns] == names
        plain = plain and all(item.keys() <= COLUMN_KEYS for item in columns)
    if not (tiled and plain):
        raise SchemaRefusal("table.parquet must hold its columns and nothing else", given="further bytes or metadata")


def require_no_room(parquet: Any) -> None:
    """Refuse a stranger's Parquet file whose metadata says more than the types of its columns.

    Statistics of columns, attributes of the table, free words among the types: no reader of the table would ask for
    them, and an agent that meant ill could tell something by them. Raises: SchemaRefusal.
    """
    import pyarrow as pa

    meta = parquet.metadata
    metadata = {key.decode(errors="replace"): value for key, value in (meta.metadata or {}).items()}
    chunks = [meta.row_group(i).column(k) for i in range(meta.num_row_groups) for k in range(meta.num_columns)]
    bare = not any(chunk.is_stats_set for chunk in chunks)
    pandas = parse_json(metadata.get("pandas", b"{}"))
    bare = bare and not pandas.get("attributes") and not pandas.get("index_columns")
    described = [*pandas.get("columns", []), *pandas.get("column_indexes", [])]
    creator = pandas.get("creator") or {}
    bare = bare and all(isinstance(item, dict) for item in [*described, creator])
    described, creator = (described, creator) if bare else ([], {})
    words = [item.get(name) for item in described for name in ("pandas_type", "numpy_type")]
    bare = bare and all(word is None or (isinstance(word, str) and TYPE.fullmatch(word)) for word in words)
    bare = bare and all(_is_type(item.get("metadata")) for item in described)
    made_by = [pandas.get("pandas_version"), *creator.values(), meta.created_by]
    bare = bare and all(word is None or (isinstance(word, str) and VERSION.fullmatch(word)) for word in made_by)
    if bare and "ARROW:schema" in metadata:
        # Its own form has room between its parts; written again by us it has none.
        given = base64.b64decode(metadata["ARROW:schema"], validate=True)
        schema = pa.ipc.read_schema(pa.py_buffer(given))
        again = {key.decode(errors="replace"): value for key, value in (schema.metadata or {}).items()}
        bare = again == {name: metadata[name] for name in again if name in metadata}
        bare = bare and len(given) <= len(schema.serialize()) + SLACK
    if not bare:
        raise SchemaRefusal("table.parquet must say what types its columns have and nothing else", given="more")


def _is_type(metadata: Any) -> bool:
    """True if these are the further words of a column's type: levels and their order, an encoding."""
    if metadata is None:
        return True
    known = {"num_categories": int, "ordered": bool, "encoding": str}
    return isinstance(metadata, dict) and all(
        type(value) is known.get(name) and (type(value) is not str or value == "UTF-8")
        for name, value in metadata.items()
    )
