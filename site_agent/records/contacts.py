"""The edge list of a study's network: who is connected with whom, by places in the checked node table.

Two columns of one file are read, a block at a time: a list of ten million lines needs a few hundred megabytes, because
identifiers are looked up block by block and only their places are kept. What is not an edge between two persons of the
table is dealt with by rule, and counted; a count is all that is ever said of it:

- an end that is blank is refused;
- an end that stands in no row of the node table is refused, or left out where the plan says so (`EdgeRules`);
- an end whose row lacks a value that the plan needs has no row in the release: the edge is left out;
- an edge from a person to himself is left out: no mechanism here reads the diagonal;
- an edge that stands in the list twice, or in both directions of an undirected network, is one edge;
- a person without an edge is a person without an edge, and stays.

All of it looks at one edge by itself, so that it belongs to the records of its two ends.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.errors import DataFileRefusal, DictionaryRefusal, MissingRefusal
from site_agent.records.identifiers import compared
from site_agent.records.source import DATABASES, Edges, TableSource

if TYPE_CHECKING:
    from pathlib import Path

    from shared.mechanisms.base import EdgeRules

__all__ = ["Contacts", "read", "require_some"]

BLOCK = 1 << 23
"""Bytes of a CSV file, or lines of a Parquet file, that are looked up at once."""

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Contacts:
    """A network on the checked rows. Its text form shows no edge.

    Args:
        matrix: (n, n) csr_array of int8 without a diagonal: 1 where row i has an edge to column j; symmetric where the
            network is undirected.
        lines: of the list.
        repeated, loops, strangers, incomplete: lines that were left out: already there; from a person to himself; with
            an end outside the node table; with an end whose row was left out as incomplete.
    """

    matrix: Any = field(repr=False)
    directed: bool
    lines: int
    repeated: int = 0
    loops: int = 0
    strangers: int = 0
    incomplete: int = 0

    @property
    def edges(self) -> int:
        """Edges of the network; an undirected one counts once."""
        return int(self.matrix.nnz) if self.directed else int(self.matrix.nnz) // 2

    @property
    def isolates(self) -> int:
        """Persons without an edge."""
        met = np.diff(self.matrix.indptr) + np.bincount(self.matrix.indices, minlength=self.matrix.shape[0])
        return int((met == 0).sum())

    @property
    def counts(self) -> dict[str, int]:
        """Counts of records read and left out, in words; shown at the site and nowhere else."""
        return {
            "edges": self.edges,
            "repeated lines": self.repeated,
            "edges to oneself": self.loops,
            "with a person outside the table": self.strangers,
            "with an incomplete row": self.incomplete,
            "persons without an edge": self.isolates,
        }

    def __repr__(self) -> str:
        return f"Contacts({'directed' if self.directed else 'undirected'})"


def read(
    edges: Edges,
    persons: Sequence[str],
    everyone: Sequence[str],
    rules: EdgeRules,
    *,
    as_written: bool = False,
    seen: Callable[[bytes], None] | None = None,
) -> Contacts:
    """Read an edge list.

    Args:
        edges: the file and its two columns.
        persons: identifiers of the checked rows, in their order: they give the places.
        everyone: identifiers of all rows of the node table, those that were left out as incomplete too.
        rules: what the plan says of the network.
        as_written: whether identifiers are compared as they are written, as those of the rows were.
        seen: is told what was read from a database, to be hashed; a file's bytes are hashed by themselves.
    Raises: DataFileRefusal (absent, truncated), DictionaryRefusal (columns, identifiers outside the node
        table, a direction that is not the plan's), MissingRefusal (blank ends).
    """
    known = pd.Index(persons)
    left_out = pd.Index(everyone).difference(known, sort=False)
    n = len(known)
    keys: list[Places] = []
    lines = loops = strangers = incomplete = blank = 0
    for start, end in _blocks(edges, rules, seen):
        lines += len(start[0])
        (a, a_blank), (b, b_blank) = (_places(*side, known, left_out, as_written) for side in (start, end))
        blank += int((a_blank | b_blank).sum())
        outside = (a == _STRANGER) | (b == _STRANGER)
        without = ((a == _INCOMPLETE) | (b == _INCOMPLETE)) & ~outside
        self_ = (a == b) & ~outside & ~without
        strangers += int((outside & ~a_blank & ~b_blank).sum())
        incomplete += int(without.sum())
        loops += int(self_.sum())
        keep = ~(outside | without | self_)
        a, b = a[keep], b[keep]
        if not rules.directed:
            a, b = np.minimum(a, b), np.maximum(a, b)
        keys.append(np.unique(a * n + b))
    if blank:
        raise MissingRefusal(
            f"columns {edges.start!r} and {edges.end!r} must name both persons of every edge",
            given=f"{blank} lines with a blank",
            next_step="Correct the lines at the source.",
        )
    if strangers and rules.strangers == "refuse":
        raise DictionaryRefusal(
            "every person of an edge must stand in the node table",
            given=f"{strangers} of {lines} lines with a person who does not",
            next_step="Complete the node table, check how identifiers are written, or ask the study lead for "
            'release.strangers = "leave_out".',
        )
    once = np.unique(np.concatenate(keys)) if keys else np.empty(0, dtype=np.int64)
    del keys
    return Contacts(
        matrix=_matrix(once // n, once % n, n, both=not rules.directed),
        directed=rules.directed,
        lines=lines,
        repeated=lines - len(once) - loops - strangers - incomplete,
        loops=loops,
        strangers=strangers,
        incomplete=incomplete,
    )


def require_some(contacts: Contacts, edges: Edges) -> None:
    """Refuse a network without any edge, which is most likely a wrong export. Raises: DataFileRefusal.

    For whoever looks at the data before a release. A release itself must not ask: the only edge of a network may be one
    person's.
    """
    if not contacts.edges:
        raise DataFileRefusal(
            f"the edge list {edges.path.name} must hold an edge between two persons of the table",
            given=f"{contacts.lines} lines, none that is one",
            next_step="Check the export, and how identifiers are written in both files.",
        )


# -- inside -----------------------------------------------------------------------------------------------------
_STRANGER, _INCOMPLETE = -1, -2
_Side = tuple[NDArray[np.int32], pd.Index]
"""Codes of a block's lines, and the identifiers they stand for; -1 is blank."""


def _places(
    codes: NDArray[np.int32],
    names: pd.Index,
    known: pd.Index,
    left_out: pd.Index,
    as_written: bool,
) -> tuple[Places, Any]:
    """The place of each line's person, and which are blank."""
    text = compared(names, as_written=as_written)
    place = known.get_indexer(text).astype(np.int64)
    place[(place < 0) & text.isin(left_out)] = _INCOMPLETE
    empty = np.asarray(text.isna() | (text == ""), dtype=bool)
    # A code of -1 takes the entry that is appended: blank, and nobody.
    place, empty = np.append(place, _STRANGER), np.append(empty, True)
    return place[codes], empty[codes]


def _matrix(a: Places, b: Places, n: int, *, both: bool) -> Any:
    from scipy.sparse import csr_array

    a, b = a.astype(np.int32), b.astype(np.int32)
    if both:
        a, b = np.concatenate([a, b]), np.concatenate([b, a])
    out = csr_array((np.ones(len(a), dtype=np.int8), (a, b)), shape=(n, n))
    out.sort_indices()
    return out


def _blocks(
    edges: Edges, rules: EdgeRules, seen: Callable[[bytes], None] | None = None
) -> Iterator[tuple[_Side, _Side]]:
    if edges.format == "graphml":
        yield from _graphml(edges, rules)
        return
    if edges.format in DATABASES:
        yield from _database(edges, seen)
        return
    must_be_a_file(edges.path)
    if edges.format not in ("csv", "parquet"):
        yield _whole(edges)
        return
    import pyarrow as pa

    try:
        for batch in _parquet(edges) if edges.format == "parquet" else _csv(edges):
            yield _coded(batch.column(0)), _coded(batch.column(1))
    except (pa.ArrowException, UnicodeError, OSError, ValueError, csv.Error):
        # A parser's own words quote the line it stumbled over.
        raise DataFileRefusal(
            f"the edge list {edges.path.name} must be whole, and readable as {edges.format}",
            given="a truncated or damaged file, or lines of unequal length",
            next_step="Check delimiter, quoting and encoding, and that the export is complete.",
        ) from None


def _coded(values: Any) -> _Side:
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, pd.Index(values.dictionary.to_pandas())


def _csv(edges: Edges) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv as reader

    encoding = "utf-8-sig" if edges.encoding == "utf-8" else edges.encoding
    with edges.path.open(encoding=encoding, newline="") as file:
        _must_have(next(csv.reader(file, delimiter=edges.delimiter), []), edges)
    names = [edges.start, edges.end]
    kind = pa.dictionary(pa.int32(), pa.string())
    yield from reader.open_csv(
        edges.path,
        read_options=reader.ReadOptions(use_threads=False, block_size=BLOCK, encoding=edges.encoding),
        parse_options=reader.ParseOptions(delimiter=edges.delimiter),
        # Everything stays text: a parser that guesses would turn the identifier 007 into 7.
        convert_options=reader.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, kind), strings_can_be_null=False
        ),
    )


def _parquet(edges: Edges) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(edges.path) as file:
        _must_have([str(name) for name in file.schema_arrow.names], edges)
        for batch in file.iter_batches(batch_size=BLOCK >> 3, columns=[edges.start, edges.end], use_threads=False):
            yield batch.select([edges.start, edges.end])


def _whole(edges: Edges) -> tuple[_Side, _Side]:
    """Both columns at once, of a format that is not read in blocks."""
    from site_agent.records.readers import reader

    source = TableSource(path=edges.path, encoding=edges.encoding, table=edges.table)
    names = reader(source).columns(source)
    _must_have(names, edges)
    return _sides(reader(source).table(source, [names.index(edges.start), names.index(edges.end)]))


def _sides(rows: pd.DataFrame) -> tuple[_Side, _Side]:
    (a, starts), (b, ends) = (pd.factorize(rows.iloc[:, k].to_numpy(dtype=object)) for k in (0, 1))
    return (a.astype(np.int32), pd.Index(starts, dtype=object)), (b.astype(np.int32), pd.Index(ends, dtype=object))


def _database(edges: Edges, seen: Callable[[bytes], None] | None) -> Iterator[tuple[_Side, _Side]]:
    from site_agent.records.readers import databases

    _must_have(databases.columns(edges), edges)
    for rows in databases.blocks(edges, [edges.start, edges.end]):
        if seen is not None:
            for row in databases.encoded(rows):
                seen(row)
        yield _sides(rows)


def _graphml(edges: Edges, rules: EdgeRules) -> Iterator[tuple[_Side, _Side]]:
    from site_agent.records.readers.graphml import graph

    must_be_a_file(edges.path)
    found = graph(edges.path)
    if bool(found.is_directed()) != rules.directed:
        planned, other = ("directed", "undirected") if rules.directed else ("undirected", "directed")
        raise DictionaryRefusal(
            f"the network of {edges.path.name} must be {planned}, as the plan says",
            given=f"one that is {other}",
            next_step="Export it so, or ask the study lead.",
        )
    pairs = [(str(a), str(b)) for a, b, *_ in found.edges()]
    del found
    sides = []
    for k in (0, 1):
        codes, names = pd.factorize(np.array([pair[k] for pair in pairs], dtype=object))
        sides.append((codes.astype(np.int32), pd.Index(names)))
    yield sides[0], sides[1]


def _must_have(names: Sequence[str], edges: Edges) -> None:
    """Both columns, once each. In a file without a header the first edge is the header: no name is repeated."""
    counts = [names.count(name) for name in (edges.start, edges.end)]
    if counts != [1, 1]:
        raise DictionaryRefusal(
            f"the edge list must have one column {edges.start!r} and one {edges.end!r}",
            given=f"{counts[0]} and {counts[1]} among {len(names)}",
            next_step="Name them with site-agent data add FILE --edges FILE --from NAME --to NAME.",
        )


def must_be_a_file(path: Path) -> None:
    """Refuse an edge list that is not there, or empty. Raises: DataFileRefusal."""
    if not path.is_file():
        raise DataFileRefusal(
            "the edge list must be a file on this machine",
            given=f"{path.name}, which is not there",
            next_step="Run site-agent data add with the right path, or mount the folder.",
        )
    if path.stat().st_size == 0:
        raise DataFileRefusal(
            f"the edge list {path.name} must not be empty", given="0 bytes", next_step="Check the export."
        )
