"""Persons are told apart by identifiers that a hospital writes: what happens when it writes them otherwise."""

# ruff: noqa: F811
from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from test_pipeline import deliver, quick, release, site, source  # noqa: F401
from test_waves import grown, several

from shared import privacy
from shared.errors import BudgetRefusal, SmallN
from shared.plan import Budget, LatentNoisePlan
from site_agent import lasting
from site_agent import ledger as ledger_module
from site_agent.identifiers import normalised
from site_agent.ledger import Ledger
from site_agent.records import pseudonym


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


# -- identifiers are normalised -------------------------------------------------------------------------------------
def numbered(*sizes: int) -> pd.DataFrame:
    """Persons whose identifiers have zeros in front."""
    table = grown(*sizes)
    return table.assign(person=[f"{k:05d}" for k in range(len(table))])


def whose(site, made) -> set[str]:
    return set(lasting.read_rows(site.ledger.folder(made.hold), made.hold).persons)


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_persons_whose_leading_zeros_were_dropped_are_released_once(quick, tmp_path, plan, site, returning):
    many = several(plan, returning=returning)
    first = release(many, site, source(tmp_path, numbered(300)))
    deliver(site, first)
    again = numbered(300, 80)
    again["person"] = [str(int(person)) for person in again["person"]]
    with pytest.raises(SmallN, match="new persons"):
        release(many, site, source(tmp_path, again.iloc[:300]), wave=2)
    second = release(many, site, source(tmp_path, again), wave=2)
    assert second.receipt.drawn == 80


@pytest.fixture
def of_before(monkeypatch):
    """An agent of before identifiers were normalised, until it is updated."""

    def update() -> None:
        monkeypatch.setattr(Ledger, "as_written", now)
        monkeypatch.setattr(ledger_module._Book, "as_written", inside)

    now, inside = Ledger.as_written, ledger_module._Book.as_written
    monkeypatch.setattr(Ledger, "as_written", lambda *_: True)
    monkeypatch.setattr(ledger_module._Book, "as_written", lambda *_: True)
    return update


@pytest.mark.parametrize("returning", ["append", "frozen"])
def test_a_study_goes_on_telling_persons_apart_as_it_began(quick, tmp_path, plan, site, of_before, returning):
    many = several(plan, returning=returning)
    first = release(many, site, source(tmp_path, numbered(300)))
    deliver(site, first)
    of_before()
    assert site.ledger.as_written("mini")
    assert not site.ledger.as_written("another")
    with pytest.raises(SmallN, match="new persons"):
        release(many, site, source(tmp_path, numbered(300)), wave=2)
    second = release(many, site, source(tmp_path, numbered(300, 80)), wave=2)
    assert second.receipt.drawn == 80
    assert second.hold.space == first.hold.space
    assert whose(site, first) == {pseudonym(f"{k:05d}", key=b"k" * 32) for k in range(300)}


def test_who_withdrew_from_a_study_before_the_update_is_not_drawn_after_it(quick, tmp_path, plan, site, of_before):
    """Nothing but the entry of the withdrawal tells by then how its pseudonyms were made."""
    gone = {pseudonym(f"{k:05d}", key=b"k" * 32) for k in range(20)}
    site.ledger.note_persons("mini", gone)
    of_before()
    made = release(several(plan), site, source(tmp_path, numbered(300)))
    assert made.receipt.n == 280
    assert not whose(site, made) & gone


def test_who_withdraws_from_a_new_study_is_known_however_written(quick, tmp_path, plan, site):
    gone = {pseudonym(normalised(name), key=b"k" * 32) for name in (" 00001", "2", "０００３")}
    site.ledger.note_persons("mini", gone)
    made = release(several(plan), site, source(tmp_path, numbered(300)))
    assert made.receipt.n == 297
