"""Single steps of a coordinator as a command line, so that a test can have one killed (`theatre.exit_code`)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> None:
    """Take one step: its name, the coordinator's home, and what the step is about."""
    from coordinator.services.authority import Authority
    from coordinator.services.membership import Members
    from coordinator.services.quotas import delete_due
    from coordinator.store.site_certificates import SiteCertificates
    from coordinator.store.store import Store
    from shared.base.clock import utc_now
    from shared.base.keys import Envelope
    from shared.wire.transport import peer_of

    step, home, *rest = argv
    store = Store.open(Path(home))
    if step == "change key":
        said = Envelope.from_bytes(Path(rest[0]).read_bytes())
        Members(store, "hub").change_key("north", said, dt.date(2026, 5, 1))
    elif step == "end standing approval":
        said = Envelope.from_bytes(Path(rest[0]).read_bytes())
        store.revoke_standing("alpha", "ab" * 32, said, dt.date(2026, 1, 5))
    elif step == "renew the server's certificate":
        Authority.load(Path(home)).renew_server(["127.0.0.1"])
    elif step == "be shown a certificate":
        peer = peer_of(Path(rest[0]).read_bytes(), utc_now())
        SiteCertificates(store).arrived(peer, utc_now().date())
    else:
        assert step == "delete what is due"
        delete_due(store, Path(home), dt.date.fromisoformat(rest[0]))
