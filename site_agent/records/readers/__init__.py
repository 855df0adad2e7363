"""Readers of tables, one per file format; `site_agent.records.source.FORMATS` maps a file's suffix to its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shared.errors import DataFileRefusal
from site_agent.records.readers import columnar, databases, fhir, graphml, statistics, text, workbooks
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    from site_agent.records.source import Edges, TableSource

__all__ = ["READERS", "FormatReader", "header", "reader"]

READERS: Mapping[str, FormatReader] = {
    **text.READERS,
    **columnar.READERS,
    **workbooks.READERS,
    **statistics.READERS,
    **fhir.READERS,
    **graphml.READERS,
    **databases.READERS,
}
"""Name of a format to its reader."""


def reader(source: TableSource | Edges) -> FormatReader:
    """The reader of a source's format."""
    return READERS[source.format]


def header(source: TableSource) -> tuple[str, ...]:
    """The column names of a table, as they stand in it. Raises: DataFileRefusal; of a database StateRefusal too."""
    if not source.path.is_file():
        raise DataFileRefusal(
            "the table must be a file on this machine",
            given=f"{source.path.name}, which is not there",
            next_step="Run site-agent data add with the right path, or mount the folder.",
        )
    if source.path.stat().st_size == 0:
        raise DataFileRefusal(
            f"the table {source.path.name} must not be empty", given="0 bytes", next_step="Check the export."
        )
    return reader(source).columns(source)
