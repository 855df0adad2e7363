"""Readers of tables, one per file format; `site_agent.records.source.FORMATS` maps a file's suffix to its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from site_agent.records.readers import columnar, databases, fhir, graphml, statistics, text, workbooks
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    from site_agent.records.source import Edges, TableSource

__all__ = ["READERS", "FormatReader", "reader"]

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
