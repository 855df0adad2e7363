"""A store of a small study, and a release accepted as the service does."""

from __future__ import annotations

import datetime as dt

import pytest
from stage.both_sides.service import SMALL, Hub

from coordinator.store.store import Store
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave

TODAY = dt.date(2026, 5, 1)


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    waves = tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in range(1, 101))
    return StudyPlan(
        study="mini",
        version=1,
        title="A small study",
        purpose="To test the store.",
        coordinator="hub",
        expires=dt.date(2999, 1, 1),
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=600.0),
        waves=waves,
        dictionary=SMALL,
        returning="refresh",
    )


def put(hub: Hub, sealed, store: Store | None = None):
    """Accept a release as the service does once its bytes are checked."""
    store = store or hub.store
    (store.bundles.folder / f"{sealed.statement.bundle_sha256}.zip").write_bytes(sealed.path.read_bytes())
    return store.accept_release(
        statement=sealed.statement, envelope=sealed.envelope, receipt=sealed.receipt, today=TODAY
    )
