"""A network that loses and lies delivers once, or says that it did not; nothing that it changed is taken."""

from __future__ import annotations

import pytest
from hurry import soak
from stage.both_sides.service import Hub, small_table
from stage.coordinator_side.collect import plan

from faults.proxy import LIES, through
from shared.errors import CertificateRefusal, NetworkRefusal
from shared.wire.site_messages import Acceptance

__all__ = ["plan"]  # the fixture
PATIENT = {"attempts": 6, "timeout": 1.5, "sleep": lambda seconds: None}
HOPELESS = ("asks for a password", "swallows everything")


@pytest.fixture
def hub(tmp_path, plan):
    hub = Hub(tmp_path / "hub", plan, "north")
    with hub.serve():
        yield hub
    hub.store.close()


@pytest.mark.fault("F18")
@pytest.mark.parametrize("lie", LIES)
def test_whatever_the_network_does_a_release_arrives_once_as_it_was_signed(hub, lie, tally):
    """Through a liar it arrives, or is refused by type; through an honest line it then is there, once."""
    honest = hub.port
    times = soak(1, 20, usual=3 if lie in HOPELESS else 6)
    arrived, steps = 0, []
    for turn in range(times):
        # Larger than one chunk, so that there is a middle to cut.
        table = small_table(20_000, seed=turn)
        sealed = hub.seal("north", wave=turn + 1, release_id=f"{turn + 1:032x}", table=table)
        with through(honest, LIES[lie], seed=turn) as proxy:
            hub.port = proxy.port
            patience = {**PATIENT, "attempts": 1} if lie in HOPELESS else PATIENT
            with hub.egress("north", **patience) as egress:
                try:
                    first = egress.send(sealed.envelope, sealed.path)
                    arrived += 1
                except (NetworkRefusal, CertificateRefusal) as refusal:
                    first, steps = None, [*steps, refusal.next_step]
        hub.port = honest
        with hub.egress("north") as egress:
            answer = egress.send(sealed.envelope, sealed.path)
        assert isinstance(answer, Acceptance)
        assert first in (None, answer)
    assert arrived == 0 if lie in HOPELESS else arrived or times == 1
    assert all(steps), "what is refused says what to do"
    releases = hub.store.releases()
    assert [release.wave for release in releases] == list(range(1, times + 1))
    assert hub.store.verify_log() == times
    for release in releases:
        assert len(hub.store.table(release)) == 20_000
    assert {name.split("/")[0] for name in hub.contents()} == {"bundles"}
    tally(cases=times, bundles=times, sites=1, lost=times - len(releases), duplicated=0)
