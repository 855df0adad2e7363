"""A table that is read in blocks is the table that is read whole: the same records, or the same refusals."""

from __future__ import annotations

import pandas as pd
import pytest
from conftest import make_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stage.hospital_side.records import KEY, write

from shared.errors import DataRefusal
from shared.plans.dictionary import Column, Dictionary
from site_agent.records import table as records
from site_agent.records.readers import columnar, reader, text

STUDY = Dictionary(
    name="b",
    version=1,
    columns=(
        Column(name="age", kind="integer", lower=18, upper=110, missing="complete_case", missing_codes=(-9.0,)),
        Column(name="person", kind="person"),
        Column(name="chol", kind="continuous", lower=40, upper=800, missing="level"),
        Column(name="sex", kind="nominal", levels=("female", "male")),
        Column(name="stage", kind="ordered", levels=(1, 2, 3), missing="complete_case"),
    ),
)
ALONE = Dictionary(name="a", version=1, columns=STUDY.columns[:1])


def seen(source, dictionary):
    """All that is told of a table: its records, or each refusal."""
    found = [(type(one), one.must, one.given, one.next_step) for one in records.problems(source, dictionary)]
    try:
        read = records.read(source, dictionary, key=KEY)
    except DataRefusal as refusal:
        return found, (type(refusal), refusal.must, refusal.given, refusal.next_step), None
    return found, (read.rows, read.snapshot), read.table


def both(source, dictionary, rows):
    """What is told where the file is read in blocks of so many rows, and where it is read whole."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (text, columnar):
            patch.setattr(module, "BLOCK_ROWS", rows)
        part = seen(source, dictionary)
        patch.setattr(records, "checked_in_blocks", lambda *_, **__: None)
        return part, seen(source, dictionary)


def the_same(part, whole):
    assert part[:2] == whole[:2]
    assert (part[2] is None) == (whole[2] is None)
    if part[2] is not None:
        pd.testing.assert_frame_equal(part[2], whole[2])


ages = st.sampled_from(["40", "61.0", " 18 ", "-9", "", "NA"])
rows = st.tuples(
    ages, st.sampled_from(["180.5", "", "220"]), st.sampled_from(["female", "male "]), st.sampled_from("123")
)
odd = st.tuples(
    ages | st.sampled_from(["17", "x"]),
    st.just("1e9"),
    st.sampled_from(["f", "male"]),
    st.sampled_from(["4", "1.0", ""]),
)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(rows | rows | rows | odd, min_size=1, max_size=25),
    st.sampled_from([1, 2, 7, 100]),
    st.sampled_from([None, 0, 5]),
    st.sampled_from(["", "P0", "p1 "]),
)
def test_in_blocks_and_whole_the_same_is_told(tmp_path, ending, given_rows, size, where, who):
    table = pd.DataFrame(given_rows, columns=["age", "chol", "sex", "stage"])
    table.insert(2, "person", [f"P{k}" for k in range(len(table))])
    if where is not None and where < len(table):
        table.loc[where, "person"] = who
    source = write(
        tmp_path,
        table.assign(ward="x"),
        f"t.{ending}",
        ignore=("ward",),
    )
    the_same(*both(source, STUDY, size))


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_table_of_one_column_without_persons_and_with_blank_lines(tmp_path, rows):
    for lines in ("age\n40\n\n50\n", "age\n\n\n", "age\n", "age\n40\n17\n"):
        (tmp_path / "t.csv").write_text(lines)
        source = records.TableSource(path=tmp_path / "t.csv")
        the_same(*both(source, ALONE, rows))


def test_of_a_large_table_no_more_text_is_in_memory_than_one_block(tmp_path, dictionary, monkeypatch):
    table = make_table(300)
    table.insert(0, "ward", "x")
    source = write(tmp_path, table, ignore=("ward",))
    monkeypatch.setattr(text, "BLOCK_ROWS", 64)
    monkeypatch.setattr(text._Csv, "table", lambda *_: pytest.fail("the whole table was read"))
    assert records.read(source, dictionary, key=KEY).n == 300
    assert records.problems(source, dictionary) == ()
    sizes = [block.shape for block in reader(source).blocks(source, [3, 1])]
    assert sizes == [(64, 2)] * 4 + [(44, 2)]


def test_a_reader_that_counts_otherwise_than_it_reads_has_the_table_read_whole(tmp_path, dictionary, monkeypatch):
    source = write(tmp_path, make_table(300))
    whole = seen(source, dictionary)
    for count in (299, 301):
        monkeypatch.setattr(text._Csv, "count", lambda *_, count=count: count)
        the_same(seen(source, dictionary), whole)
