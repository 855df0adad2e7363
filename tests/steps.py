"""Single steps of a coordinator as a command line, so that a test can have one killed (`theatre.exit_code`)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> None:
    """Take one step: its name, the coordinator's home, and what the step is about."""
    from coordinator.services.membership import Members
    from coordinator.services.quotas import delete_due
    from coordinator.store.store import Store
    from shared.base.keys import Envelope

    step, home, *rest = argv
    store = Store.open(Path(home))
    if step == "change key":
        said = Envelope.from_bytes(Path(rest[0]).read_bytes())
        Members(store, "hub").change_key("north", said, dt.date(2026, 5, 1))
    elif step == "end standing approval":
        said = Envelope.from_bytes(Path(rest[0]).read_bytes())
        store.revoke_standing("alpha", "ab" * 32, said, dt.date(2026, 1, 5))
    else:
        assert step == "delete what is due"
        delete_due(store, Path(home), dt.date.fromisoformat(rest[0]))
