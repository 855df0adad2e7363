"""What a refusal would tell of one person: two worlds, the same but for a row that nobody else has.

A hospital releases tables of latent noise at ε = 0.5 under posture `public`, so that no part of a release is fitted on
a record. In one world the rarest level belongs to one person; in the other to nobody. A released row has that level
by chance, and equals the row of exactly one person there and of nobody here. `would refuse` counts what the
equal-rows check says where a plan lets it decide (by chance from independent columns, as it stood up to 0.1);
`held` counts the tables that are held for the approver today, where nothing that reads a record decides.

python -m tests.benchmarks.unlike_person [tables]
"""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the stage of the tests

from stage.hospital_side.shipped import Bench, study

from shared.base.randomness import seeded_rng
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from site_agent.release.checks import CHANCE
from site_agent.release.equal_rows import hits_on
from tests.benchmarks import record

DICTIONARY = Dictionary(
    name="two",
    version=1,
    columns=(
        Column(name="sex", kind="binary"),
        Column(name="rare", kind="binary"),
        Column(name="smokes", kind="binary"),
    ),
)
PERSONS = 300


def table(with_person: bool) -> pd.DataFrame:
    """Three hundred persons; with the person, one of them has the level that is rare."""
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"sex": rng.integers(0, 2, PERSONS), "rare": 0, "smokes": rng.integers(0, 2, PERSONS)})
    rows.loc[0, "rare"] = int(with_person)
    return rows


def world(with_person: bool, tables: int) -> dict[str, Any]:
    """Counts over tables that are released in one world."""
    plan = study(LatentNoisePlan(epsilon=0.5), DICTIONARY, posture="public")
    real, person = DICTIONARY.check(table(with_person)), DICTIONARY.check(table(True)).iloc[0]
    held = refused = present = 0
    for number in range(tables):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            made = bench.release(plan, table(with_person), seeded_rng(number))
            with zipfile.ZipFile(bench.site.outbox.bundle(made.hold.release_id)) as archive:
                released = pd.read_parquet(io.BytesIO(archive.read("table.parquet")))
            held += made.hold.state == "held"
            refused += hits_on(real, released, DICTIONARY, CHANCE).beyond_chance
            present += bool((released == person).all(axis=1).any())
    return {"tables": tables, "held": held, "would refuse": refused, "has the row": present}


def main() -> None:
    """Write unlike_person.json."""
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else record.sized(20, 1)
    results = {"with the person": world(True, tables), "without": world(False, tables), "epsilon": 0.5}
    print(results)
    print(record.write("unlike_person", results, seed=0))


if __name__ == "__main__":
    main()
