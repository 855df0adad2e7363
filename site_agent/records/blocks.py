"""A table of many rows held against its dictionary block by block: of its text no more is in memory than one block.

Only where nothing is made of several rows, and nothing is wrong: whatever has to be said of a table is said by who
reads it whole (`site_agent.records.table`), in the same words and counts whatever its size.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from site_agent.records.identifiers import compared
from site_agent.records.readers import reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.plans.dictionary import Dictionary
    from site_agent.records.source import TableSource

__all__ = ["checked_in_blocks", "give_back"]


def checked_in_blocks(
    source: TableSource, dictionary: Dictionary, places: Mapping[str, int], *, as_written: bool
) -> tuple[pd.DataFrame, int] | None:
    """A table as `Dictionary.check` returns it, and how many rows were read of it.

    Args:
        places: column of the dictionary to its place in the file.
        as_written: as of `site_agent.records.table.read`.
    Returns: None where a row is made of several or of other columns, or where something is to be refused.
    Raises: DataFileRefusal.
    """
    made = bool(source.values or source.steps or source.hospital or source.edges or dictionary.repeated)
    if made or not reader(source).in_blocks or set(places) != {column.name for column in dictionary.columns}:
        return None
    n, rows, kept = reader(source).count(source), 0, 0
    out: dict[str, Any] = {column.name: np.empty(n) for column in dictionary.released}
    hashes, persons = np.empty(n if dictionary.person else 0, dtype=np.uint64), []
    for block in reader(source).blocks(source, list(places.values())):
        block.columns = pd.Index(list(places))
        if rows + len(block) > n:  # whatever a reader counts otherwise than it reads is no matter of this
            return None
        keep, found = np.ones(len(block), dtype=bool), {}
        for column in dictionary.released:
            values, faults = column.compare(block[column.name].reset_index(drop=True))
            if faults:
                return None
            found[column.name] = values.to_numpy()
            if column.missing == "complete_case":
                keep &= values.notna().to_numpy()
        end = kept + int(keep.sum())
        for name, checked in found.items():
            out[name][kept:end] = checked[keep]
        if dictionary.person is not None:
            who = compared(block[dictionary.person].reset_index(drop=True), as_written=as_written).str.strip()
            if (who.isna() | (who == "")).any():
                return None
            hashes[rows : rows + len(who)] = pd.util.hash_pandas_object(who, index=False)
            persons.append(who[keep])
        rows, kept = rows + len(block), end
        give_back()
    hashes = hashes[:rows]
    hashes.sort()
    # Of one person's rows the hashes are the same; whether rows of one hash are one person's is told from the whole.
    if not rows or (hashes[1:] == hashes[:-1]).any():
        return None
    del hashes
    out = {name: values[:kept] for name, values in out.items()}
    if dictionary.person is not None:
        out[dictionary.person] = pd.concat(persons, ignore_index=True)
    return pd.DataFrame({column.name: out[column.name] for column in dictionary.columns}, copy=False), rows


def give_back() -> None:
    """Give memory back that was used for texts and is no longer: pyarrow keeps a tenth of a gigabyte of it else."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
