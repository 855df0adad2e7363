"""A store with one site per table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pandas as pd
from stage.coordinator_side.delivered import deliver, join

from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.plans.plan import StudyPlan, sign_plan


@contextmanager
def hub(home: Path, plan: StudyPlan, *tables: pd.DataFrame) -> Iterator[tuple[Store, list[SigningKey]]]:
    """A store with one site per table, and the sites' keys."""
    lead = SigningKey.generate()
    authority = Authority.create(home, coordinator="tributary-hub", names=("localhost",))
    with closing(Store.open(home)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        keys = []
        for i, table in enumerate(tables):
            invitation = authority.invite(f"site-{i}", [plan.study], address="localhost:1", leads=[lead.public], days=9)
            store.add_invitation(invitation)
            keys.append(join(store, invitation))
            deliver(store, plan, f"site-{i}", keys[-1], table)
        yield store, keys
