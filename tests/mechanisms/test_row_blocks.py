"""Figures are taken of a table block by block: the same to the last bit in whichever blocks, and in little memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from shared.base.randomness import seeded_rng
from shared.errors import MissingRefusal
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.row_blocks import row_blocks
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget

NUMBERS = ("age", "chol", "dose", "sbp")
RELEASES = {
    "tables": TablesPlan(epsilon=1.0),
    "histograms": DensitiesPlan(densities=[["age"], ["chol", "sbp"]], epsilon=1.0, persons=300),
    "smooth": DensitiesPlan(densities=[["age"], ["chol", "sbp"]], epsilon=9.0, persons=3000, basis="daubechies3"),
    "quantiles": DensitiesPlan(densities=[["age"], ["chol"]], epsilon=1.0, persons=300, basis="quantiles"),
    "cross-products": CrossProductsPlan(
        epsilon=1.0, columns=["age", "chol", "died"], typical={"age": (0.5, 0.25), "chol": (0.5, 0.25)}
    ),
    "moments": MomentsPlan(
        epsilon=1.0, outcome="binary", responses=["died"], covariates=[*NUMBERS, "stage"], declared=["age", "chol"]
    ),
}


@pytest.fixture(params=RELEASES)
def study(request, plan):
    """A plan of one mechanism, and checked records as many as are asked for."""
    numbers = [Column(name=name, kind="continuous", lower=0, upper=1) for name in NUMBERS]
    stage = Column(name="stage", kind="nominal", levels=("I", "II", "III"))
    dictionary = Dictionary(name="d", version=1, columns=(*numbers, stage, Column(name="died", kind="binary")))
    budget = Budget(epsilon=20.0, delta=1e-7)
    return replace(plan, dictionary=dictionary, release=RELEASES[request.param], posture="private", budget=budget)


def records(n):
    rng = np.random.default_rng(n)
    made = {name: rng.uniform(size=n) for name in NUMBERS}
    return pd.DataFrame({**made, "stage": rng.integers(0, 3, n) + 0.0, "died": rng.integers(0, 2, n) + 0.0})


def drawn(study, table):
    return study.release.draw(study, table, seeded_rng(3))


def test_blocks_are_the_table_in_order_and_no_copy_of_it():
    table = records(70_001)
    found = list(row_blocks(table))
    pd.testing.assert_frame_equal(pd.concat(found), table)
    assert all(np.shares_memory(block["age"].to_numpy(), table["age"].to_numpy()) for block in found)
    assert [len(block) for block in row_blocks(table[:0])] == [0]


@pytest.mark.parametrize(("n", "sizes"), [(2503, [1000, 2503]), (703, [7, 5000])])
def test_figures_are_the_same_to_the_last_bit_whichever_the_blocks_are(study, n, sizes, monkeypatch):
    table = records(n)
    whole = drawn(study, table)
    for size in sizes:
        monkeypatch.setattr("shared.mechanisms.row_blocks.ROWS", size)
        pd.testing.assert_frame_equal(drawn(study, table), whole, check_exact=True)


def test_what_figures_are_taken_in_does_not_grow_with_the_table(study):
    """Beside the table, which is there already: 200 000 further rows would be 1.6 MB a column."""
    drawn(study, records(20_000))
    peaks = []
    for n in (100_000, 300_000):
        table = records(n)
        tracemalloc.start()
        drawn(study, table)
        peaks.append(tracemalloc.get_traced_memory()[1] / 1e6)
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 0.4, peaks
    assert peaks[1] < 40


@pytest.mark.parametrize("study", ["moments", "cross-products"], indirect=True)
def test_rows_that_lack_something_are_counted_in_the_whole_table_before_anything_is_drawn(study):
    table = records(70_000)
    table.loc[[5, 40_000, 69_999], "chol"] = np.nan
    with pytest.raises(MissingRefusal, match="3 rows that do not"):
        study.release.draw(study, table, None)
