"""Parsers of a site's own extract: a stranger may have written the file, though a steward named it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from faults.fuzz import Target
from shared.plans.codebook import from_codebook
from site_agent.config import TableSource
from site_agent.records import table as records
from site_agent.records.mapping import document

__all__ = ["extracts"]

TABLE = pd.DataFrame({"person": ["a", "b"], "age": [50.0, 61.5], "sex": ["male", "female"]})
MAPPING = """\
format = "tributary-mapping/1"
ignore = ["note"]
[columns]
Alter = "age"
[values.sex]
levels = { m = "male", w = "female" }
[dates]
birth = "%d.%m.%Y"
[derive]
age = "completed years between birth and admission"
"""
FHIR = """folder = "."
[cohort]
resource = "Condition"
codes = ["I10"]
from = 2010-01-01
to = 2015-12-31
[covariates.sbp]
resource = "Observation"
codes = ["8480-6"]
take = "last"
"""
RESOURCES: tuple[dict[str, Any], ...] = (
    {"resourceType": "Patient", "id": "1", "birthDate": "1950-01-02", "gender": "male"},
    {
        "resourceType": "Condition",
        "code": {"coding": [{"system": "icd", "code": "I10"}]},
        "subject": {"reference": "Patient/1"},
        "onsetDateTime": "2011-02-03",
    },
    {
        "resourceType": "Observation",
        "status": "final",
        "code": {"coding": [{"code": "85354-9"}]},
        "component": [{"code": {"coding": [{"code": "8480-6"}]}, "valueQuantity": {"value": 140, "code": "mm[Hg]"}}],
        "subject": {"reference": "Patient/1"},
        "effectiveDateTime": "2011-01-03",
    },
)
CODEBOOK = "name,type,label,min,max,values\nage,integer,Age,18,110,\nsex,category,Sex,,,1=male;2=female\n"


def extracts(folder: Path) -> Iterator[Target]:
    """One target for each format of `site_agent.records.source.FORMATS` that is a file, and what is written beside."""
    for ending, seed, form in _seeds(folder):
        # Libraries of other languages read these; the product runs a reader in the steward's own process.
        yield Target(f"extract: {ending}", (seed,), _read(folder, f"extract.{ending}"), form, apart=True)
    ndjson = "".join(json.dumps(one) + "\n" for one in RESOURCES).encode()
    export = folder / "export"
    export.mkdir()
    (export / "ward.fhir").write_text(FHIR)

    def fhir(data: bytes) -> object:
        (export / "all.ndjson").write_bytes(data)
        return records.whole(TableSource(path=export / "ward.fhir"))

    yield Target("extract: fhir", (ndjson,), fhir, "text")

    def mapping(data: bytes) -> object:
        (folder / "m.toml").write_bytes(data)
        return document.read(folder / "m.toml")

    yield Target("mapping's file", (MAPPING.encode(),), mapping, "text")

    def codebook(data: bytes) -> object:
        (folder / "book.csv").write_bytes(data)
        return from_codebook(folder / "book.csv", name="book")

    yield Target("codebook", (CODEBOOK.encode(),), codebook, "text")


def _read(folder: Path, name: str) -> Callable[[bytes], object]:
    path = folder / name

    def run(data: bytes) -> object:
        path.write_bytes(data)
        return records.whole(TableSource(path=path))

    return run


def _seeds(folder: Path) -> Iterator[tuple[str, bytes, str]]:
    """Ending, a table of that format, and how it is best changed."""
    import pyarrow as pa
    import pyreadstat

    lines = "".join(json.dumps(row) + "\n" for row in TABLE.to_dict("records"))
    yield "jsonl", lines.encode(), "text"
    book = io.BytesIO()
    TABLE.to_excel(book, index=False)
    yield "xlsx", book.getvalue(), "bytes"
    arrow = io.BytesIO()
    with pa.ipc.new_file(arrow, pa.Table.from_pandas(TABLE).schema) as file:
        file.write_table(pa.Table.from_pandas(TABLE))
    yield "arrow", arrow.getvalue(), "bytes"
    for ending, write in (
        ("sav", pyreadstat.write_sav),
        ("dta", pyreadstat.write_dta),
        ("xpt", pyreadstat.write_xport),
    ):
        place = folder / f"seed.{ending}"
        write(TABLE, str(place))
        yield ending, place.read_bytes(), "bytes"
