"""Encoding and decoding: exact on the dictionary's types, levels and bounds; dependent on no other row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.base.randomness import seeded_rng
from shared.errors import SchemaRefusal
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder


def test_decoding_an_encoded_table_gives_it_back(dictionary, table):
    encoder = Encoder(dictionary=dictionary)
    checked = dictionary.check(table)
    out = encoder.decode(encoder.encode(checked, seeded_rng(1)))
    dictionary.validate_release(out)
    assert out["sex"].astype(str).tolist() == table["sex"].tolist()
    assert out["grade"].astype(str).tolist() == table["grade"].tolist()
    assert out["visits"].tolist() == table["visits"].tolist()
    assert out["cvd"].tolist() == table["cvd"].tolist()
    np.testing.assert_array_equal(out["sbp"], table["sbp"])
    np.testing.assert_allclose(out["time"], table["time"], rtol=1e-12)
    np.testing.assert_array_equal(out["chol"].isna(), table["chol"] == 0)
    np.testing.assert_array_equal(out["parity"].isna(), table["parity"].isna())
    np.testing.assert_array_equal(out["clinic"].isna(), table["clinic"].isna())
    assert out["stage"].tolist() == table["stage"].tolist()
    np.testing.assert_array_equal(out["thal"].to_numpy(dtype=float, na_value=np.nan), table["thal"])
    observed = table["parity"].notna()
    assert out["parity"][observed].astype(float).tolist() == table["parity"][observed].tolist()


def test_a_binary_column_is_cut_at_one_not_at_zero():
    encoder = Encoder(dictionary=Dictionary(name="m", version=1, columns=(Column(name="e", kind="event"),)))
    assert encoder.decode(np.array([[0.0], [0.999], [1.0], [1.999], [-3.0], [9.0]]))["e"].tolist() == [
        0,
        0,
        1,
        1,
        0,
        1,
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e12, 1e12), min_size=14, max_size=14))
def test_any_finite_matrix_decodes_to_a_valid_table(row):
    dictionary = _every_kind()
    encoder = Encoder(dictionary=dictionary)
    assert encoder.d == 14
    dictionary.validate_release(encoder.decode(np.array([row])))


def _every_kind() -> Dictionary:
    numeric = {"lower": 0, "upper": 9}
    return Dictionary(
        name="m",
        version=1,
        columns=(
            Column(name="a", kind="continuous", **numeric),
            Column(name="b", kind="continuous", missing="level", decimals=2, **numeric),
            Column(name="c", kind="integer", **numeric),
            Column(name="d", kind="integer", missing="level", **numeric),
            Column(name="e", kind="time", upper=9, event="g"),
            Column(name="f", kind="time", upper=9, missing="level"),
            Column(name="g", kind="event"),
            Column(name="h", kind="binary", levels=("n", "y"), missing="level"),
            Column(name="i", kind="ordered", levels=("lo", "hi", "top")),
            Column(name="j", kind="nominal", levels=(3, 6, 7), missing="level"),
            Column(name="k", kind="binary", missing="level"),
        ),
    )


def test_a_row_is_encoded_without_the_others(dictionary):
    """Replacing one person changes that person's encoded row and no other: the sensitivity rests on it."""
    table, other = make_table(80, seed=1), make_table(80, seed=2)
    swapped = table.copy()
    swapped.loc[7] = other.loc[7]
    encoder = Encoder(dictionary=dictionary)
    one = encoder.encode(dictionary.check(table), seeded_rng(5))
    two = encoder.encode(dictionary.check(swapped), seeded_rng(5))
    changed = np.flatnonzero((one != two).any(axis=1))
    assert changed.tolist() == [7]


def test_a_matrix_of_another_shape_or_with_nan_is_refused(dictionary):
    encoder = Encoder(dictionary=dictionary)
    with pytest.raises(SchemaRefusal):
        encoder.decode(np.zeros((3, encoder.d + 1)))
    with pytest.raises(SchemaRefusal):
        encoder.decode(np.full((3, encoder.d), np.nan))


def test_an_empty_numeric_column_with_missing_as_level_encodes_finitely():
    column = Column(name="chol", kind="continuous", lower=50, upper=700, missing="level", missing_codes=(0,))
    encoder = Encoder(dictionary=Dictionary(name="m", version=1, columns=(column,)))
    x = encoder.encode(encoder.dictionary.check(pd.DataFrame({"chol": [0] * 60})), seeded_rng(1))
    assert np.isfinite(x).all()
    assert encoder.decode(x)["chol"].isna().all()
