"""The dictionary is the only source of bounds, and refuses without telling a value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import make_table

from shared.errors import DictionaryRefusal, DuplicatePerson, MissingRefusal
from shared.plans.dictionary import Column, Dictionary


def test_a_fitting_table_becomes_canonical_values(dictionary, table):
    checked = dictionary.check(table)
    assert list(checked.columns) == ["person", *dictionary.names]
    assert checked["sex"].isin([0.0, 1.0]).all()
    assert checked["chol"].isna().sum() == (table["chol"] == 0).sum() > 0


def test_text_from_a_csv_means_the_same_as_numbers(dictionary, table):
    as_text = table.astype("string").where(table.notna(), "")
    pd.testing.assert_frame_equal(dictionary.check(as_text), dictionary.check(table))


@pytest.mark.parametrize(
    ("column", "value", "rule", "refusal"),
    [
        ("sbp", 999.125, "at most", DictionaryRefusal),
        ("sbp", -999.125, "at least", DictionaryRefusal),
        ("sbp", np.inf, "finite", DictionaryRefusal),
        ("sbp", np.nan, "no missing value", MissingRefusal),
        ("visits", 2.6180339, "whole number", DictionaryRefusal),
        ("visits", "canary", "must be a number", DictionaryRefusal),
        ("grade", "canary", "level of the dictionary", DictionaryRefusal),
        ("cvd", 7919, "level of the dictionary", DictionaryRefusal),
        ("person", "p1-7", "once", DuplicatePerson),
        ("person", None, "identify every row", MissingRefusal),
    ],
)
def test_a_bad_value_is_refused_by_column_rule_and_count_only(dictionary, table, column, value, rule, refusal):
    table[column] = table[column].astype(object)
    table.loc[[3, 5], column] = value
    with pytest.raises(refusal) as caught:
        dictionary.check(table)
    text = str(caught.value)
    count = 3 - (value == "p1-7") if column == "person" and value else 2
    assert repr(column) in text
    assert rule in text
    assert str(count) in text
    assert not any(canary in text for canary in ("999.125", "2.6180339", "canary", "7919", "p1-7"))


def test_unknown_and_absent_columns_are_refused_by_name(dictionary, table):
    with pytest.raises(DictionaryRefusal, match="surprise"):
        dictionary.check(table.assign(surprise=1))
    with pytest.raises(DictionaryRefusal, match="visits"):
        dictionary.check(table.drop(columns="visits"))


def test_complete_case_leaves_rows_out_and_an_empty_column_is_refused():
    d = Dictionary(
        name="m", version=1, columns=(Column(name="a", kind="continuous", lower=0, upper=1, missing="complete_case"),)
    )
    assert len(d.check(pd.DataFrame({"a": [0.5, None, 0.25]}))) == 2
    with pytest.raises(MissingRefusal, match="at least one value"):
        d.check(pd.DataFrame({"a": [None, None]}))


def test_an_empty_column_may_be_a_level():
    column = Column(name="chol", kind="continuous", lower=50, upper=700, missing="level", missing_codes=(0,))
    checked = Dictionary(name="m", version=1, columns=(column,)).check(pd.DataFrame({"chol": [0] * 60}))
    assert checked["chol"].isna().all()


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "a", "kind": "continuous"},
        {"name": "a", "kind": "continuous", "lower": 1, "upper": 1},
        {"name": "a", "kind": "continuous", "lower": 0, "upper": float("inf")},
        {"name": "a b", "kind": "binary"},
        {"name": "a", "kind": "colour"},
        {"name": "a", "kind": "nominal", "levels": ["x"]},
        {"name": "a", "kind": "nominal", "levels": ["x", "x"]},
        {"name": "a", "kind": "nominal", "levels": ["x", 1]},
        {"name": "a", "kind": "event", "levels": [1, 2]},
        {"name": "a", "kind": "time", "lower": 1, "upper": 2},
        {"name": "a", "kind": "integer", "lower": 0.5, "upper": 3},
        {"name": "a", "kind": "binary", "missing": "ignore"},
        {"name": "a", "kind": "binary", "upperr": 3},
        {"kind": "binary"},
    ],
)
def test_an_impossible_column_is_refused(bad):
    with pytest.raises(DictionaryRefusal):
        Column.from_canonical(bad)


def test_the_hash_follows_every_field_and_survives_the_round_trip(dictionary):
    again = Dictionary.from_canonical(dictionary.to_canonical())
    assert again == dictionary
    assert again.hash == dictionary.hash
    changed = dictionary.to_canonical()
    changed["columns"][3]["upper"] = 271.0
    assert Dictionary.from_canonical(changed).hash != dictionary.hash


def test_checking_never_changes_the_source(dictionary):
    table = make_table(50)
    before = table.copy(deep=True)
    dictionary.check(table)
    pd.testing.assert_frame_equal(table, before)


@pytest.mark.parametrize("name", [[None] * 5000, {"a": ["x"] * 5000}, 7])
def test_a_name_that_is_none_is_refused_in_a_line_however_long_it_is(name):
    with pytest.raises(DictionaryRefusal, match="name must be text") as found:
        Column.from_canonical({"name": name, "kind": "binary"})
    assert len(str(found.value)) < 200


def test_a_kind_of_date_is_told_what_to_plan_in_its_place():
    with pytest.raises(DictionaryRefusal) as refused:
        Column(name="born", kind="date")
    assert "data map --derive" in refused.value.next_step
    assert "follow-up (time)" in refused.value.next_step
