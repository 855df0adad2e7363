"""Persons are told apart by identifiers that a hospital writes: what happens when it writes them otherwise."""

# ruff: noqa: F811
from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from test_pipeline import deliver, quick, release, site, source  # noqa: F401
from test_waves import grown, several

from shared import privacy
from shared.errors import BudgetRefusal
from shared.plan import Budget, LatentNoisePlan


def rewritten(table: pd.DataFrame, start: str = "x") -> pd.DataFrame:
    """The same persons, each under another identifier."""
    return table.assign(person=[f"{start}{person}" for person in table["person"]])


def charged(site, many: int) -> float:
    """What somebody has been charged who was in so many releases of the price of the first one."""
    return privacy.epsilon_from_rdp(many * pd.Series(site.ledger.holds()[0].rdp).to_numpy(), 1e-6)


def total(site) -> float:
    return site.ledger.study_total("mini", 1e-6).epsilon


# -- a refresh counts against everybody -----------------------------------------------------------------------------
def test_a_refresh_of_rewritten_identifiers_costs_everybody_and_ends_at_the_cap(quick, tmp_path, plan, site):
    """Six refreshes of the same persons, under other identifiers each time, are six draws of everybody."""
    many = several(plan, 6, returning="refresh", posture="public", release=LatentNoisePlan(epsilon=0.5))
    for wave in (1, 2, 3):
        deliver(site, release(many, site, source(tmp_path, rewritten(grown(300), "x" * wave)), wave=wave))
        assert total(site) == pytest.approx(charged(site, wave), rel=1e-12)
    tight = replace(many, version=2, budget=Budget(epsilon=charged(site, 3)))
    with pytest.raises(BudgetRefusal):
        release(tight, site, source(tmp_path, rewritten(grown(300), "y")), wave=4)
