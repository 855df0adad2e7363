"""Certificates at the edges of their lives, and clocks that jump while releases come in."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from hurry import soak
from stage.both_sides.service import Hub, small_table
from stage.both_sides.transport import authority, dated_credentials

from faults.served import small_plan
from shared.errors import CertificateRefusal, Refusal
from shared.wire import transport
from shared.wire.clocks import utc_now

__all__ = ["authority"]  # the fixture
SECOND, DAY = dt.timedelta(seconds=1), dt.timedelta(days=1)
JUMPS = (
    *(365 * DAY, -365 * DAY, dt.timedelta(minutes=5), dt.timedelta(minutes=-5), DAY, -DAY),
    *(dt.timedelta(hours=1), dt.timedelta(hours=-1), 3650 * DAY, dt.timedelta()),
)


@pytest.mark.fault("F14", cases=100)
def test_a_certificate_serves_from_its_first_second_to_its_last_and_not_one_more(authority):
    """Whatever its length: at 25 certificates, a second before, at and after each end."""
    for days in range(1, 26):
        pem = dated_credentials(authority, -days * DAY, days * DAY).cert_pem.encode()
        made = x509.load_pem_x509_certificate(pem)
        first, last = made.not_valid_before_utc, made.not_valid_after_utc
        for now in (first, last, first + SECOND, last - SECOND):
            assert transport.peer_of(pem, now).site == "north"
        for now in (first - SECOND, last + SECOND, first - 365 * DAY, last + 365 * DAY):
            with pytest.raises(CertificateRefusal):
                transport.peer_of(pem, now)


@pytest.mark.fault("F15")
def test_releases_are_ordered_by_the_log_however_the_coordinators_clock_jumps(tmp_path, plan, tally):
    """Each wave under another clock, ahead and back: taken or refused by type, and never out of order."""
    jumps = JUMPS[: soak(3, len(JUMPS), usual=len(JUMPS))]
    hub = Hub(tmp_path / "hub", small_plan(plan, len(jumps)), "north")
    places = []
    for wave, jump in enumerate(jumps, start=1):

        def now(jump: dt.timedelta = jump) -> dt.datetime:
            return utc_now() + jump

        sealed = hub.seal("north", wave=wave, release_id=f"{wave:032x}", table=small_table(60, seed=wave))
        with hub.serve(now=now, today=lambda now=now: now().date()), hub.egress("north") as egress:
            try:
                places.append(egress.send(sealed.envelope, sealed.path).log_index)
            except Refusal as refusal:  # a wave that is not open by that clock, say: and then it is open again
                places.append(refusal.code)
        if isinstance(places[-1], str):
            with hub.serve(), hub.egress("north") as egress:
                places[-1] = egress.send(sealed.envelope, sealed.path).log_index
    assert places == list(range(len(jumps)))
    assert hub.store.verify_log() == len(jumps)
    assert [release.wave for release in hub.store.releases()] == list(range(1, len(jumps) + 1))
    hub.store.close()
    tally(cases=len(jumps), sites=1, bundles=len(jumps), lost=0, duplicated=0)
