"""What a large table takes, CPU seconds and peak memory: to be read and checked, and to be released from.

Run: ``python -m tests.benchmarks.large_tables [rows ...]``, a million and ten million where none are named. A table
has twenty columns: a person, an event, two of levels, sixteen of numbers. Each case is a process of its own, with what
it imported in its peak, as the kernel counts it. The checked table is what every mechanism begins with; the numbers of
a table of so many rows are `table_mb`.

A release is made whole by the site's own pipeline, from reading the Parquet file to the outbox: noisy tables of all
columns and pairs, densities of the sixteen numbers, moments of as many covariates as these may have (fourteen numbers
and one of levels; the file's other three columns are ignored).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from tests.benchmarks import record

NUMBERS, BLOCK, KEY = 16, 100_000, b"k" * 32
MECHANISMS = record.sized(("tables", "densities", "moments"), ("densities",))
TODAY = dt.date(2026, 1, 5)

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


def study(mechanism):
    """A plan of one wave on that table; of moments, on as many columns as these may have."""
    from shared.mechanisms.densities.plan import DensitiesPlan
    from shared.mechanisms.moments.plan import MomentsPlan
    from shared.mechanisms.tables.plan import TablesPlan
    from shared.plans.plan import Budget, StudyPlan
    from tests.benchmarks import estimates

    numbers, whole = [f"x{k}" for k in range(NUMBERS)], dictionary()
    covariates = [*numbers[:14], "sex"]
    release = {
        "tables": TablesPlan(epsilon=1.0),
        "densities": DensitiesPlan(densities=[[name] for name in numbers], epsilon=2.0),
        "moments": MomentsPlan(epsilon=1.0, outcome="binary", responses=["died"], covariates=covariates),
    }[mechanism]
    if mechanism == "moments":
        read = ("person", "died", *covariates)
        whole = replace(whole, columns=tuple(column for column in whole.columns if column.name in read))
    plan = StudyPlan.from_toml(estimates.study("tables", 2))
    return replace(plan, dictionary=whole, release=release, budget=Budget(epsilon=100.0, delta=1e-9))


def made(mechanism, path, home):
    """A whole release by the pipeline of a site in the folder `home`."""
    from stage.hospital_side.site_desk import Hub

    from shared.base.keys import SigningKey
    from site_agent.config import SiteFloors, TableSource
    from site_agent.ledger.book import Ledger
    from site_agent.release.outbox import Outbox
    from site_agent.release.pipeline.making import make_release
    from site_agent.release.site import WorkingSite

    plan = study(mechanism)
    known = {column.name for column in plan.dictionary.columns}
    left = tuple(column.name for column in dictionary().columns if column.name not in known)
    ledger = Ledger.create(home / "ledger.db", SigningKey.generate(), site="north")
    site = WorkingSite(
        name="north",
        agent_version="0",
        ledger=ledger,
        outbox=Outbox(home, ledger),
        witness=Hub(),
        snapshot_key=KEY,
        floors=SiteFloors(),
        paused=lambda: False,
    )
    return make_release(plan=plan, wave=1, source=TableSource(path=path, ignore=left), site=site, today=TODAY)


def released(mechanism, path):
    """CPU seconds and peak of a release, with those of starting Python."""
    with tempfile.TemporaryDirectory() as home:
        held = made(mechanism, path, Path(home) / "home").hold
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": held.persons, "cpu_s": time.process_time(), "peak_mb": peak}


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
    """Every size, read in both formats, and released from by every mechanism."""
    asked = argparse.ArgumentParser()
    asked.add_argument("rows", type=int, nargs="*", default=record.sized([1_000_000, 10_000_000], [2000]))
    asked.add_argument("--release", nargs=2, metavar=("MECHANISM", "FILE"), help="only this, in this process")
    given = asked.parse_args()
    if given.release:
        sys.stdout.write(json.dumps(released(given.release[0], Path(given.release[1]))))
        return
    results = {}

    def run(name, rows, *argv):
        found = json.loads(subprocess.check_output([sys.executable, *argv]))
        assert found["rows"] == rows
        results[f"{name} {rows}"] = found | {"us_a_row": found["cpu_s"] / rows * 1e6}
        sys.stdout.write(f"{name} {rows:,}: {found['cpu_s']:.1f} CPU s, peak {found['peak_mb']:,.0f} MB\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        for rows in given.rows:
            for kind in ("csv", "parquet"):
                path = Path(folder) / f"table.{kind}"
                written(path, rows)
                run(kind, rows, "-c", READS, str(path))
                results[f"{kind} {rows}"]["file_mb"] = path.stat().st_size / 2**20
                for mechanism in MECHANISMS if kind == "parquet" else ():
                    how = ("-m", "tests.benchmarks.large_tables", "--release", mechanism, str(path))
                    run(f"release of {mechanism}", rows, *how)
                path.unlink()
    record.write("large_tables", results, seed=7)


if __name__ == "__main__":
    main()
