"""Tables of hospitals as files, and their refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from shared.errors import Refusal
from shared.plans.dictionary import Dictionary
from site_agent.config import TableSource
from site_agent.records.table import read

KEY = b"k" * 32
CANARY = "CANARY-7319"


def write(folder: Path, table: pd.DataFrame, name: str = "cohort.csv", **kind) -> TableSource:
    path = folder / name
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, encoding=kind.get("encoding", "utf-8"), sep=kind.get("delimiter", ","))
    return TableSource(path=path, **kind)


def words(refusal: Refusal) -> str:
    return json.dumps([str(refusal), refusal.must, refusal.given, refusal.next_step])


def refused(kind: type[Refusal], source: TableSource, dictionary: Dictionary) -> Refusal:
    with pytest.raises(kind) as caught:
        read(source, dictionary, key=KEY)
    assert type(caught.value) is kind
    text = words(caught.value)
    assert CANARY not in text
    assert "7319" not in text
    assert caught.value.next_step, "a refusal says what to do next"
    # Nor may a parser's own words, which quote cells, hang on to it for a traceback to print.
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value
