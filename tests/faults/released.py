"""Parsers of the tables that other mechanisms than latent noise release: what a coordinator holds against the plan."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from stage.mechanisms import cross_products, moments_factors, network_counts
from stage.mechanisms.contacts import contacts_plan

from faults.fuzz import CAP, Target
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.randomness import seeded_rng
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.grand.plan import NEIGHBOURS
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import StudyPlan
from shared.releases.bundle import _write_archive, read_bundle
from shared.releases.receipt import LABEL

__all__ = ["released"]

PERSONS = 60


def released(folder: Path, bundle: bytes, small: StudyPlan) -> Iterator[Target]:
    """One target for each mechanism: another table in a bundle whose digests are true, as a site would sign it.

    Args:
        folder: for the bundle. bundle: one of 60 persons, whose receipt all take. small: the plan of that one.
    """
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    place = folder / "released.zip"
    for name, plan, table in _tables(small):

        def read(data: bytes, plan: StudyPlan = plan) -> object:
            place.write_bytes(_bundled(parts, data))
            found = read_bundle(place, cap=CAP, before=lambda said: plan.release.extent(plan, said.n))
            plan.release.validate(plan, found.table, found.receipt.n)
            return found

        yield Target(f"released: {name}", (_parquet(table),), read, "table", apart=True)


def _tables(small: StudyPlan) -> Iterator[tuple[str, StudyPlan, pd.DataFrame]]:
    """A plan of each mechanism, and what a site of sixty persons released under it."""
    rng = np.random.default_rng(5)
    sex = pd.Categorical(rng.choice(["female", "male"], PERSONS), categories=["female", "male"])
    records = small.dictionary.check(pd.DataFrame({"sbp": rng.uniform(80, 200, PERSONS), "sex": sex}))
    for name, release in (
        ("tables", TablesPlan(sigma=5.0)),
        ("slicing", SlicingPlan(sigma=2.0)),
        ("densities", DensitiesPlan(densities=[["sbp"]], epsilon=1.0)),
        ("smooth densities", DensitiesPlan(densities=[["sbp"]], epsilon=1.0, basis="daubechies2")),
        ("quantiles", DensitiesPlan(densities=[["sbp"]], epsilon=1.0, basis="quantiles")),
    ):
        plan = replace(small, release=release, posture="private", estimands={})
        yield name, plan, release.draw(plan, records, seeded_rng(1))
    moments = moments_factors.plan_of()
    table = moments.dictionary.check(moments_factors.records(0).head(PERSONS))
    yield "moments", moments, moments.release.draw(moments, table, seeded_rng(1))
    pressure = cross_products.study()
    people = cross_products.people(PERSONS, 1)
    yield "cross-products", pressure, pressure.release.draw(pressure, people, seeded_rng(1))
    counts = network_counts.counting()
    ties = network_counts.drawn(rng, PERSONS, 0.2)
    exact = network_counts.measured(counts, ties, np.zeros(PERSONS))
    yield "network counts", counts, counts.release.draw(counts, exact, seeded_rng(1))
    network = contacts_plan()
    yield "network", network, _network(network, rng)


def _network(plan: StudyPlan, rng: np.random.Generator) -> pd.DataFrame:
    levels: dict[str, Any] = {}
    for column in (plan.dictionary.column(name) for name in plan.dictionary.names):
        if column.levels:
            levels[column.name] = pd.Categorical(rng.choice(column.levels, PERSONS), list(column.levels))
        else:
            low, high = int(column.lower or 0), int(column.upper or 1)
            levels[column.name] = rng.integers(low, high + 1, PERSONS)
    out = pd.DataFrame(levels)
    after = [np.flatnonzero(rng.random(PERSONS - 1 - i) < 0.2) + i + 1 for i in range(PERSONS)]
    out[NEIGHBOURS] = [places.astype(np.int32) for places in after]
    return out


def _parquet(table: pd.DataFrame) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    pq.write_table(
        arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"label": LABEL.encode()}),
        out,
        compression="zstd",
        write_statistics=False,
    )
    return out.getvalue()


def _bundled(parts: dict[str, bytes], table: bytes) -> bytes:
    """A bundle with this table, and with a manifest that says what it holds wherever that can be told."""
    said = json.loads(parts["manifest.json"])
    try:
        about = pq.read_metadata(io.BytesIO(table))
        said |= {"rows": about.num_rows, "columns": about.schema.to_arrow_schema().names}
    except Exception:  # no Parquet file: it has no rows to tell
        said |= {"rows": 0}
    files = {**parts, "table.parquet": table}
    said["files"] = {one: {"sha256": sha256_hex(files[one]), "bytes": len(files[one])} for one in said["files"]}
    files["manifest.json"] = canonical_json(said)
    out = io.BytesIO()
    _write_archive(out, {name: files[name] for name in parts})
    return out.getvalue()
