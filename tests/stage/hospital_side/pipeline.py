"""A hospital with a home, a table and a small study, whose releases a test makes in process."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pytest
from stage.hospital_side.ledger import Accepted
from stage.hospital_side.site_desk import quick_fit
from stage.mechanisms import postures

from shared.base.keys import SigningKey
from site_agent.config import TableSource
from site_agent.release import drawing
from site_agent.release.pipeline.making import make_release
from site_agent.release.site import WorkingSite

TODAY = dt.date(2026, 1, 5)


@pytest.fixture
def quick(monkeypatch):
    """Training and attacks replaced by something quick; what is tested here is the order around them."""
    monkeypatch.setattr(drawing, "_fit", quick_fit)
    monkeypatch.setattr(drawing, "_attack", lambda *_, **__: {"membership_auc": 0.5})


@pytest.fixture
def site(tmp_path) -> WorkingSite:
    return postures.site(tmp_path)


def source(tmp_path, table: pd.DataFrame) -> TableSource:
    path = tmp_path / "cohort.csv"
    table.to_csv(path, index=False)
    return TableSource(path=path)


def release(plan, site, where, wave=1, today=TODAY, **more):
    return make_release(plan=plan, wave=wave, source=where, site=site, today=today, **more)


def deliver(site: WorkingSite, made) -> None:
    """Approved by a person and accepted by the coordinator, as far as the ledger can tell."""
    hold, ledger = made.hold, site.ledger
    person = SigningKey.generate()
    ledger.approve(hold, name="ada", key=person.public, signature=b"s" * 64, bundle_sha256=hold.bundle_sha256)
    ledger.commit(hold, Accepted(hold.release_id, hold.bundle_sha256))


def kinds(site: WorkingSite) -> list[str]:
    return [entry.kind for entry in site.ledger.entries()]
