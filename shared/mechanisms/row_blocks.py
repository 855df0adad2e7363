"""A table gone through a block of rows after the other: whatever is made of it on the way is no larger than a block.

What is counted or added up in whole numbers is the same to the last bit in whichever blocks, so that no sensitivity
hangs on where one ends. Floating-point sums are not: whoever adds a record's part up makes it whole first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ROWS", "row_blocks"]

ROWS = 1 << 15
"""Rows of a block: 256 KB of a column."""


def row_blocks(records: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of a table in order, `ROWS` at a time, without a copy; of an empty table one empty block.

    >>> import pandas as pd
    >>> [len(block) for block in row_blocks(pd.DataFrame({"sbp": range(70_000)}))]
    [32768, 32768, 4464]
    """
    for first in range(0, max(len(records), 1), ROWS):
        yield records.iloc[first : first + ROWS]
