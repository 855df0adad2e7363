"""One value of each message."""

from __future__ import annotations

import dataclasses

from shared.wire import site_messages
from shared.wire.site_messages import (
    Acceptance,
    AnchorReceipt,
    Chunk,
    Enrolment,
    EnrolRequest,
    Growth,
    GrowthRequest,
    Holding,
    Holdings,
    Offered,
    OfferRequest,
    Reminder,
    SignedDocument,
    StudyRequest,
    Withdrawn,
)

DIGEST = "0123456789abcdef" * 4
ACCEPTED = Acceptance(
    study="heart",
    wave=2,
    site="north-1",
    release_id="ab" * 16,
    bundle_sha256=DIGEST,
    log_index=0,
    log_root=DIGEST,
    accepted_day="2026-01-31",
)
TAKEN_BACK = Withdrawn(
    study="heart",
    wave=2,
    site="north-1",
    release_id="ab" * 16,
    bundle_sha256=DIGEST,
    log_index=4,
    log_root=DIGEST,
    withdrawn_day="2026-01-31",
    signature=b"s" * 64,
)
KEPT = Holding(study="heart", wave=1, release_id="a", state="accepted", log_index=0)
APART = Holding(study="heart", wave=2, release_id="b", state="quarantined", code="E_RECEIPT", reason="ε is not …")
LOGGED = site_messages.LoggedEntry(index=7, entry=b"{}", proof=(b"p" * 32,))
RESTORED = site_messages.Restoration(entry=LOGGED, growth=(b"g" * 32,))
VALUES = [
    EnrolRequest(token="t" * 43, envelope=b"{}"),
    Enrolment(state="pending", fingerprint="ab cd"),
    Enrolment(state="accepted", certificate_pem="PEM"),
    Enrolment(state="refused", reason="unknown hospital"),
    StudyRequest(study="heart"),
    site_messages.Revoked(standing="ab" * 32),
    SignedDocument(envelope=bytes(range(256))),
    AnchorReceipt(seq=2**52, head=DIGEST, index=7),
    OfferRequest(envelope=b"{}"),
    OfferRequest(envelope=b"{}", standing=b"{}"),
    Offered(offset=0),
    Offered(offset=2**40),
    Offered(acceptance=ACCEPTED),
    Chunk(bundle_sha256=DIGEST, offset=262144, data=b"\x00\xff" * 100),
    ACCEPTED,
    Holdings(),
    Holdings(holdings=(KEPT, APART)),
    Holdings(anchored=AnchorReceipt(seq=3, head=DIGEST, index=0), reanchored=2),
    Holdings(holdings=(dataclasses.replace(KEPT, statement=b"{}"),), reminders=(Reminder(wave=3, day="2026-01-31"),)),
    TAKEN_BACK,
    GrowthRequest(old_size=3, size=9),
    Growth(proof=(b"a" * 32, b"b" * 32)),
    site_messages.WatchRequest(),
    site_messages.WatchRequest(sizes=(1, 2**52), entries=(0, 7)),
    site_messages.LogView(),
    site_messages.LogView(head=b"{}", growth=((b"a" * 32,), ()), entries=(LOGGED,), restored=(RESTORED,)),
    site_messages.GapReport(study="heart", lacking=()),
    site_messages.GapReport(study="heart", lacking=(ACCEPTED, dataclasses.replace(ACCEPTED, wave=2))),
    site_messages.GapNoted(lacking=2),
    site_messages.MembershipRequest(statements=(b"{}", b"[]")),
    site_messages.MembershipReply(grants=(b"{}",), leads=(b"[]",), keys=(b"1", b"2"), taken=("ab" * 32,)),
    site_messages.RoundRequest(study="heart"),
    site_messages.RoundRequest(study="heart", flow="a" * 64),
    site_messages.RoundReply(),
    site_messages.RoundReply(envelope=b"{}", content=b"\x00\xff"),
    site_messages.RoundAnswer(envelope=b"{}", content=b"\x00\xff"),
    site_messages.RoundReceipt(study="heart", round=3, answer=DIGEST),
    site_messages.Renewed(certificate_pem="PEM"),
    site_messages.AuthoritiesRequest(),
    site_messages.LimitsRequest(),
    site_messages.CoordinatorLimits(max_bundle=1, max_table=2),
    site_messages.Authorities(),
    site_messages.Authorities(statements=(b"{}", b"{}")),
]
