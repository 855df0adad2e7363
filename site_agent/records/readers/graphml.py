"""The nodes of a network: GraphML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shared.base.process import deferred
from shared.errors import DataFileRefusal
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from site_agent.records.source import TableSource
else:
    pd = deferred("pandas")

__all__ = ["READERS", "declared", "graph"]

GRAPHML_CAP = 256 << 20
"""A GraphML file is held whole, at many times its size."""
_OTHER_ENCODING = re.compile(rb"""encoding\s*=\s*["'](?!utf-8|us-ascii|ascii)""", re.IGNORECASE)


def graph(path: Path) -> Any:
    """A GraphML file as networkx reads it. Raises: DataFileRefusal."""
    import networkx

    if path.stat().st_size > GRAPHML_CAP:
        raise DataFileRefusal(
            f"a GraphML file must have at most {GRAPHML_CAP >> 20} MB",
            given=f"{path.stat().st_size >> 20} MB",
            next_step="Export an edge list and a node table as CSV or Parquet.",
        )
    # Entities can make a small file a large one, and no export of a network declares any. In another encoding they
    # would not be found.
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise DataFileRefusal("a GraphML file must be UTF-8", given=f"{path.name}", next_step="Export it so.") from None
    if (
        b"\0" in text
        or b"<!DOCTYPE" in text
        or b"<!ENTITY" in text
        or _OTHER_ENCODING.search(text[: text.find(b"?>") + 2])
    ):
        raise DataFileRefusal("a GraphML file must be UTF-8 and not declare a document type", given=f"{path.name}")
    del text
    try:
        return networkx.read_graphml(path)
    except Exception as error:  # XML, types and structure fail in a dozen classes, each of which may quote the file
        raise DataFileRefusal(
            f"the file {path.name} must be readable as GraphML",
            given=type(error).__name__,
            next_step="Export it again, or as CSV.",
        ) from None


def declared(path: Path) -> tuple[str, ...]:
    """Names of the node attributes that a GraphML file declares, which `graph` has read before."""
    from xml.etree import ElementTree

    keys = ElementTree.parse(path).getroot().iterfind("{*}key")
    return tuple(key.get("attr.name", "") for key in keys if key.get("for") in ("node", "all"))


class _Graphml(FormatReader):
    """The nodes of a GraphML file: their ids as ``id``, and their attributes."""

    whole = ("a whole GraphML file", "a truncated or damaged one")
    needs = ("networkx",)

    def _nodes(self, source: TableSource) -> pd.DataFrame:
        found = graph(source.path)
        # As they are: beside a gap pandas would make floats of whole numbers.
        table = pd.DataFrame([dict(attributes) for _, attributes in found.nodes(data=True)], dtype=object)
        table = table.reindex(range(found.number_of_nodes()))
        for name in declared(source.path):  # by the file's head, whether or not any node has a value
            if name not in table.columns:
                table[name] = None
        if "id" in table.columns:
            raise DataFileRefusal(
                "a GraphML file's attributes must not be called 'id'",
                given="one that is",
                next_step="Rename it at the source: the node's own id has that name.",
            )
        table.insert(0, "id", [str(node) for node in found.nodes()])
        return table

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(str(name) for name in self._nodes(source).columns)

    def count(self, source: TableSource) -> int:
        return len(self._nodes(source))

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        return self._nodes(source).iloc[:, list(places)]


READERS: Mapping[str, FormatReader] = {"graphml": _Graphml()}
