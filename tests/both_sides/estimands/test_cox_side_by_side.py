"""Cox models of many small tables at once: each as it is fitted alone, to the last bit, and as it is written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from shared.errors import EstimateRefusal
from shared.estimands.answer import estimate, estimating, parse_estimand
from shared.estimands.fits import cox as fits
from shared.estimands.fits.cox import CoxRows, SurvivalOutcome, cox, cox_of_each, side_by_side
from shared.estimands.formulas import QuestionRows

PARTS = ("beta", "cov", "converged", "fitted", "loglik", "influence")


def drawn(rng: np.random.Generator, kind: str, p: int) -> CoxRows:
    """Rows of a table, of a size by chance."""
    n = int(rng.integers(40, 400))
    x = rng.standard_normal((n, p))
    time, event = rng.exponential(size=n) * np.exp(0.4 * x[:, 0]), (rng.random(n) < 0.4).astype(float)
    if "ties" in kind:
        time = np.ceil(5 * time)
    if "separated" in kind:
        event = (x[:, 0] > 1.0).astype(float)
        time = np.where(event > 0, 1.0, 2.0)
    if "none" in kind:
        event = np.zeros(n)
    if "singular" in kind:
        x[:, -1] = 0.0
    more = {"weights": rng.uniform(0.5, 2, n), "offset": rng.normal(size=n)} if "weights" in kind else {}
    if "strata" in kind:
        more["strata"] = rng.integers(0, 3, n)
    return CoxRows(x=x, outcome=SurvivalOutcome(time=time, event=event), **more)


def same(one, other) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part), equal_nan=True) for part in PARTS)


def of_each_kind(seed: int, p: int) -> list[CoxRows]:
    rng = np.random.default_rng(seed)
    kinds = ("", "ties", "weights", "weights ties", "strata", "none", "separated", "singular")
    return [drawn(rng, kind, p) for kind in kinds for _ in range(3)]


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_table_is_fitted_to_the_last_bit_alike_whichever_are_beside_it(p):
    tables = of_each_kind(p, p)
    together = cox_of_each(tables)
    for table, fit in zip(tables, together, strict=True):
        assert same(fit, cox_of_each([table])[0])
    rng = np.random.default_rng(0)
    for count in (2, 7, 13):
        some = rng.permutation(len(tables))[:count]
        for place, fit in zip(some, cox_of_each([tables[k] for k in some]), strict=True):
            assert same(fit, together[place])


@pytest.mark.parametrize("p", [1, 2, 5])
def test_small_tables_are_fitted_as_large_ones_are(monkeypatch, p):
    tables = of_each_kind(10 + p, p)
    together = cox_of_each(tables)
    monkeypatch.setattr(fits, "_FEW_ROWS", 0)
    alone = cox_of_each(tables)
    assert [fit.converged for fit in together] == [fit.converged for fit in alone]
    assert 12 <= sum(fit.converged for fit in alone) < len(tables)
    for one, other in zip(together, alone, strict=True):
        if other.converged:
            for part in ("beta", "cov", "fitted", "influence"):
                ends = getattr(one, part), getattr(other, part)
                np.testing.assert_allclose(*ends, rtol=0, atol=1e-12 * np.abs(ends[1]).max())


def test_a_known_order_of_the_rows_is_the_one_that_is_sorted():
    rng = np.random.default_rng(4)
    table = QuestionRows(pd.DataFrame({"time": np.ceil(rng.exponential(size=200) * 9)}))
    inside = rng.random(200) < 0.5
    part = table.part(inside)
    np.testing.assert_array_equal(part.falling("time"), np.argsort(-part.numbers("time"), kind="stable"))
    assert len(np.unique(part.numbers("time"))) < inside.sum() / 2


def test_works_beside_each_other_end_as_they_do_alone_and_a_refusal_is_of_one():
    rng = np.random.default_rng(5)
    question = parse_estimand("cox(time, event, subset = age > -1) ~ age + sbp")
    columns = {name: rng.standard_normal((6, 90)) for name in ("age", "sbp")}
    tables = [
        pd.DataFrame({"age": age, "sbp": sbp, "time": rng.exponential(size=90), "event": rng.integers(0, 2, 90)})
        for age, sbp in zip(*columns.values(), strict=True)
    ]
    tables[3]["event"] = 2
    found = side_by_side(estimating(QuestionRows(table), question) for table in tables)
    assert isinstance(found[3], EstimateRefusal)
    for k in (0, 1, 2, 4, 5):
        assert found[k] == estimate(tables[k], question)
        assert all(row.yi is not None for row in found[k])


def test_late_entry_and_many_columns_are_fitted_alone():
    rng = np.random.default_rng(6)
    time, event = rng.exponential(size=80) + 1, np.ones(80)
    late = SurvivalOutcome(time=time, event=event, entry=time - 1)
    assert not CoxRows(x=rng.standard_normal((80, 1)), outcome=late).small
    wide = CoxRows(x=rng.standard_normal((80, 9)), outcome=SurvivalOutcome(time=time, event=event))
    assert not wide.small
    assert same(cox(wide.x, wide.outcome), cox_of_each([wide])[0])
