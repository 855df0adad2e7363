"""A release of very many persons: what is held beside the table is small, and what is written is what was written."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from shared.base.canonical import canonical_json, sha256_hex
from shared.errors import DifferencingRefusal
from shared.plans.encoding import Encoder
from shared.plans.plan import Floors
from site_agent.config import Limits, SiteFloors
from site_agent.ledger import files
from site_agent.records.pseudonyms import Pseudonyms, in_order, pseudonym
from site_agent.release.drawing import _found_now
from site_agent.release.pipeline.before_draw import require_apart
from site_agent.release.sealed_state import ReleasedRows
from tests.benchmarks import large_tables
from tests.benchmarks.record import RESULTS

KEY = b"k" * 32


def persons(n):
    return pd.Series([f"p{k}" for k in range(n)], dtype="string")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr("site_agent.records.pseudonyms.PERSONS", 64)
    monkeypatch.setattr("site_agent.release.sealed_state._PART", 50)


def test_pseudonyms_read_as_the_texts_they_stand_for():
    named = persons(1000)
    made, texts = Pseudonyms.of(named, key=KEY), [pseudonym(one, key=KEY) for one in named]
    assert list(made) == texts
    assert (len(made), made[3], made[np.int64(-1)], list(made[10:13])) == (1000, texts[3], texts[-1], texts[10:13])
    assert texts[7] in made
    assert "p7" not in made
    with pytest.raises(IndexError):
        made[1000]
    assert not Pseudonyms.of(named[:0], key=KEY)


def test_a_pseudonym_that_ends_in_zeros_keeps_them():
    made = Pseudonyms(np.array([b"\x01" + bytes(15), bytes(16)], dtype="S16"))
    assert list(made) == [made[0], made[1]] == ["01" + "0" * 30, "0" * 32]
    assert [one for part in in_order(made) for one in part] == ["0" * 32, "01" + "0" * 30]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 1000])
def test_pseudonyms_are_listed_in_the_order_of_their_texts_each_once(n):
    made = Pseudonyms.of(pd.concat([persons(n), persons(n // 2)]), key=KEY)
    found = list(in_order(made))
    assert [one for part in found for one in part] == sorted(set(made))
    assert len(found) == len(made) // 64 + 1


def test_a_list_of_persons_is_the_file_that_it_was_and_is_read_as_it(tmp_path):
    made = Pseudonyms.of(persons(1000), key=KEY)
    for given in (made, list(made), set(made), ()):
        digest, count = files.write_list(tmp_path / "population.json", given, "ledger.population")
        data = canonical_json(sorted(set(given)))
        assert ((tmp_path / "population.json").read_bytes(), digest, count) == (data, sha256_hex(data), len(given))
        assert files.listed(tmp_path / "population.json", digest, "a list") == frozenset(given)


def test_a_list_of_ten_million_persons_can_be_read_again():
    assert 10_000_000 * len('"93b337ea8101b344f7978b7cd5fe885f",') < files.LIST_CAP


def test_the_rows_of_a_release_are_written_as_they_were():
    made = Pseudonyms.of(persons(333), key=KEY)
    for source, whose in ((range(333), made), ((4, 2, -1), ("a", "b", "c")), (range(3), ())):
        rows = ReleasedRows(snapshot="s", source=source, persons=whose)
        assert rows.to_bytes() == canonical_json({"snapshot": "s", "source": list(source), "persons": list(whose)})


def test_populations_are_compared_whatever_holds_them():
    made = Pseudonyms.of(persons(200), key=KEY)
    known = {"n": 200, "limits": Limits.of(Floors(), SiteFloors()), "persons": made}
    require_apart(**known, earlier={"before": frozenset(made)})
    with pytest.raises(DifferencingRefusal, match="3 beside release before"):
        require_apart(**known, earlier={"before": frozenset(made[3:])})


def test_what_cannot_be_counted_is_told_when_it_is_asked():
    assert _found_now(lambda: 3)() == 3
    asked = _found_now(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asked()


def test_a_release_holds_its_table_once_and_a_few_bytes_of_each_person(tmp_path, monkeypatch):
    """By Python's and numpy's memory, between two sizes: identifiers are pyarrow's, and not among it."""
    for block in (
        "shared.mechanisms.row_blocks.ROWS",
        "site_agent.records.pseudonyms.PERSONS",
        "site_agent.records.readers.columnar.BLOCK_ROWS",
        "site_agent.release.sealed_state._PART",
    ):
        monkeypatch.setattr(block, 1024)
    peaks = []
    for n in (1000, 4000, 12_000):  # the first one pays for what is imported and kept
        large_tables.written(tmp_path / f"{n}.parquet", n)
        tracemalloc.start()
        made = large_tables.made("densities", tmp_path / f"{n}.parquet", tmp_path / f"{n}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made.hold.persons == n
    a_person = (peaks[2] - peaks[1]) / 8000
    columns = len(large_tables.dictionary().released)
    assert 8 * columns <= a_person < 8 * columns + 60


@pytest.mark.parametrize("mechanism", large_tables.MECHANISMS)
@pytest.mark.parametrize("n", [1_000_000, 10_000_000])
def test_the_memory_that_a_dry_run_tells_of_a_large_release_is_what_it_was_measured_to_take(mechanism, n):
    measured = json.loads((RESULTS / "large_tables.json").read_text())["results"][f"release of {mechanism} {n}"]
    plan = large_tables.study(mechanism)
    told = plan.release.effort(plan, n, Encoder(dictionary=plan.dictionary).d)
    assert 1 / 1.5 < measured["peak_mb"] / told.memory_mb < 1.5
