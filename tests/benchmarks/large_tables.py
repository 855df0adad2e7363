"""What reading and checking a large table takes: CPU seconds and peak memory, from CSV and from Parquet.

Run: ``python -m tests.benchmarks.large_tables [rows ...]``, a million and ten million where none are named. A table
has twenty columns: a person, an event, two of levels, sixteen of numbers. Each case is a process of its own, with what
it imported in its peak, as the kernel counts it. The checked table is what every mechanism begins with; the numbers of
a table of so many rows are `table_mb`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from tests.benchmarks import record

NUMBERS, BLOCK, KEY = 16, 100_000, b"k" * 32

READS = """
import json, resource, sys, time
from pathlib import Path
from tests.benchmarks.large_tables import KEY, dictionary
from site_agent.records.source import TableSource
from site_agent.records.table import read
begun = time.process_time()
found = read(TableSource(path=Path(sys.argv[1])), dictionary(), key=KEY)
used = time.process_time() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
table = found.table.memory_usage(deep=True).sum() / 2**20
print(json.dumps({"rows": found.n, "cpu_s": used, "peak_mb": peak, "table_mb": float(table)}))
"""


def dictionary():
    """Of the table's twenty columns."""
    from shared.plans.dictionary import Column, Dictionary

    numbers = [Column(name=f"x{k}", kind="continuous", lower=0, upper=10) for k in range(NUMBERS)]
    return Dictionary(
        name="large",
        version=1,
        columns=(
            Column(name="person", kind="person"),
            *numbers,
            Column(name="sex", kind="binary", levels=("female", "male")),
            Column(name="grade", kind="ordered", levels=("low", "middle", "high")),
            Column(name="died", kind="binary"),
        ),
    )


def blocks(rows):
    """The table, a block of rows after the other."""
    for first in range(0, rows, BLOCK):
        rng, n = np.random.default_rng([7, first]), min(BLOCK, rows - first)
        block = {"person": [f"p{number:08d}" for number in range(first, first + n)]}
        block |= {f"x{k}": rng.uniform(0, 10, n).round(4) for k in range(NUMBERS)}
        block["sex"] = np.array(["female", "male"])[rng.integers(0, 2, n)]
        block["grade"] = np.array(["low", "middle", "high"])[rng.integers(0, 3, n)]
        block["died"] = rng.integers(0, 2, n)
        yield pd.DataFrame(block)


def written(path, rows):
    """Write the table as what the file's name says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for block in blocks(rows):
        if path.suffix == ".csv":
            block.to_csv(path, index=False, mode="a", header=not path.exists())
            continue
        table = pa.Table.from_pandas(block, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def main() -> None:
    """Every size in both formats."""
    asked = argparse.ArgumentParser()
    asked.add_argument("rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in asked.parse_args().rows:
            for kind in ("csv", "parquet"):
                path = Path(folder) / f"table.{kind}"
                written(path, rows)
                found = json.loads(subprocess.check_output([sys.executable, "-c", READS, str(path)]))
                assert found["rows"] == rows
                found |= {"us_a_row": found["cpu_s"] / rows * 1e6, "file_mb": path.stat().st_size / 2**20}
                results[f"{kind} {rows}"] = found
                sys.stdout.write(f"{kind} {rows:,}: {found['cpu_s']:.1f} CPU s, peak {found['peak_mb']:,.0f} MB\n")
                sys.stdout.flush()
                path.unlink()
    record.write("large_tables", results, seed=7)


if __name__ == "__main__":
    main()
