"""Collecting releases: exactly once, whole or not at all, and nothing that is not what it says."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import io
import json
import os
import re
import threading
import time
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from hurry import part_of_today, soak
from stage.both_sides.service import LEAD, SMALL, Hub, SiteKeys, anchor_head, rezip, small_table
from stage.coordinator_side.collect import Servers, failpoints, hub, offer, plan, refused, sources  # noqa: F401

from coordinator.cli import main
from coordinator.config import CoordinatorConfig
from coordinator.services.collect import ingest, staging
from coordinator.store.store import Store
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import LINKS_CAP, head_fingerprint
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    CertificateRefusal,
    DictionaryRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    NetworkRefusal,
    ParameterError,
    PausedRefusal,
    PlanChanged,
    PlanExpired,
    PlanRefusal,
    ReceiptRefusal,
    Refusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    SignatureRefusal,
    SmallN,
    StateRefusal,
    StorageRefusal,
    TokenRefusal,
    TooLarge,
)
from shared.plans.dictionary import Column
from shared.plans.plan import Budget, StudyPlan, open_plan, sign_plan
from shared.privacy import accountant as privacy
from shared.releases.receipt import planned_event
from shared.wire.message_limits import CHUNK_BYTES
from shared.wire.signed_messages import ANCHOR_TYPE, ENROLMENT_TYPE, EnrolmentRequest
from shared.wire.site_messages import Chunk, EnrolRequest, Offered, OfferRequest, StudyRequest
from shared.wire.transport import Call, Peer
from site_agent.egress import Egress, new_tls_identity


# -- the simplest use -------------------------------------------------------------------------------------------
def test_a_release_is_delivered_and_read_back(hub):
    sealed = hub.seal("north")
    told = []
    with hub.egress("north") as egress:
        acceptance = egress.send(sealed.envelope, sealed.path, lambda sent, total: told.append((sent, total)))
        assert egress.send(sealed.envelope, sealed.path) == acceptance
        [held] = egress.status("mini")
    assert (held.state, held.release_id, held.log_index) == ("accepted", sealed.statement.release_id, 0)
    assert told[0] == (0, sealed.statement.bundle_bytes)
    assert told[-1] == (sealed.statement.bundle_bytes,) * 2
    assert hub.contents() == {f"bundles/{sealed.statement.bundle_sha256}.zip"}
    [release] = hub.store.releases()
    assert release.acceptance == acceptance
    [(site, receipt, table)] = hub.store.tables("mini", 1)
    assert (site, receipt) == ("north", sealed.receipt)
    pd.testing.assert_frame_equal(table, small_table())
    assert hub.store.verify_log() == 1


def test_a_site_fetches_the_newest_plan_as_its_lead_signed_it(hub, plan):
    with hub.egress("north") as egress:
        assert open_plan(egress.fetch_plan("mini"), {LEAD.public.key_id: LEAD.public}) == plan
        newer = dataclasses.replace(plan, version=2)
        hub.store.add_plan(sign_plan(newer, [LEAD]), newer)
        assert open_plan(egress.fetch_plan("mini"), {LEAD.public.key_id: LEAD.public}) == newer
        refused(RoleRefusal, lambda: egress.fetch_plan("other"))


# -- joining ----------------------------------------------------------------------------------------------------
def join(egress: Egress, token: str, keys: SiteKeys, **changes):
    values = {
        "token": token,
        "site": keys.site,
        "csr_pem": keys.identity[1],
        "signer": keys.release,
        "approvers": {"steward": keys.steward.public},
    }
    return egress.enrol(**{**values, **changes})


def test_a_site_joins_by_invitation_and_comparison_of_fingerprints(hub):
    keys = SiteKeys("west")
    invitation = hub.invite("west")
    with Egress.from_invitation(invitation) as egress:
        asked = join(egress, invitation.token, keys)
        assert (asked.state, asked.fingerprint) == ("pending", keys.release.public.fingerprint)
        assert join(egress, invitation.token, keys) == asked
        refused(SignatureRefusal, lambda: hub.store.accept_site("west", SigningKey.generate().public.fingerprint))
        hub.store.accept_site("west", keys.release.public.fingerprint)
        done = join(egress, invitation.token, keys)
        assert done.state == "accepted"
        assert join(egress, invitation.token, keys) == done
    keys.certificate = done.certificate_pem
    hub.sites["west"] = keys
    with hub.egress("west") as egress:
        assert egress.status("mini") == ()


def test_a_token_is_used_once_by_its_site_until_it_expires(hub):
    keys, invitation = SiteKeys("west"), hub.invite("west")
    other, late = hub.invite("east"), hub.invite("late", days=0)
    with Egress.from_invitation(invitation) as egress:
        refused(TokenRefusal, lambda: join(egress, other.token, keys))
        refused(TokenRefusal, lambda: join(egress, "x" * 43, keys))
        refused(TokenRefusal, lambda: join(egress, invitation.token, SiteKeys("east")))
        join(egress, invitation.token, keys)
        refused(TokenRefusal, lambda: join(egress, invitation.token, SiteKeys("west")))
        refused(
            TokenRefusal, lambda: join(egress, invitation.token, keys, approvers={"x": SigningKey.generate().public})
        )
        refused(TokenRefusal, lambda: join(egress, invitation.token, keys, csr_pem=new_tls_identity("west")[1]))
    tomorrow = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)
    request = EnrolmentRequest(
        site="late",
        csr_pem=keys.identity[1],
        release_key=keys.release.public,
        approvers={"steward": keys.steward.public},
    )
    refused(
        TokenRefusal,
        lambda: hub.store.enrol(token=late.token, site="late", request=request, digest="0" * 64, today=tomorrow),
    )


def test_a_request_to_join_must_be_signed_by_the_key_it_names(hub):
    keys, invitation = SiteKeys("west"), hub.invite("west")
    request = EnrolmentRequest(
        site="west",
        csr_pem=keys.identity[1],
        release_key=keys.release.public,
        approvers={"thief": SigningKey.generate().public},
    )
    payload = canonical_json(request.to_canonical())
    envelope = Envelope.sign(ENROLMENT_TYPE, payload, [SigningKey.generate()])
    asked = EnrolRequest(token=invitation.token, envelope=envelope.to_bytes())
    with Egress.from_invitation(invitation) as egress:
        refused(SignatureRefusal, lambda: egress._ask("Enrol", asked))
        refused(CertificateRefusal, lambda: join(egress, invitation.token, keys, csr_pem="nonsense"))
        assert join(egress, invitation.token, keys).state == "pending"


def test_a_refused_site_is_told_and_a_site_that_takes_part_cannot_be_replaced(hub):
    keys, invitation = SiteKeys("west"), hub.invite("west")
    with Egress.from_invitation(invitation) as egress:
        join(egress, invitation.token, keys)
        hub.store.refuse_site("west", "not in the consortium")
        assert join(egress, invitation.token, keys).reason == "not in the consortium"
    again = hub.invite("north")
    with Egress.from_invitation(again) as egress:
        refused(StateRefusal, lambda: join(egress, again.token, SiteKeys("north")))


@pytest.mark.fault("F10", offered=1)
def test_a_bootstrap_certificate_may_join_and_nothing_else(hub):
    sealed, invitation = hub.seal("north"), hub.invite("north")
    with Egress.from_invitation(invitation) as egress:
        for work in (
            lambda: egress.fetch_plan("mini"),
            lambda: egress.status("mini"),
            lambda: egress.anchor(hub.anchor("north", 1)),
            lambda: egress.send(sealed.envelope, sealed.path),
            lambda: egress._client.call("Upload", [Chunk(bundle_sha256="a" * 64, offset=0, data=b"x")], timeout=60),
        ):
            refused(RoleRefusal, work)
    with hub.egress("north") as egress:
        refused(RoleRefusal, lambda: join(egress, invitation.token, hub.sites["north"]))


@pytest.mark.fault("F10", offered=1)
def test_a_revoked_site_is_turned_away_and_may_join_anew(hub):
    with hub.egress("north") as egress:
        egress.status("mini")
        hub.store.revoke_site("north")
        refused(CertificateRefusal, lambda: egress.status("mini"))
        hub.sites["north"] = SiteKeys("north")
        hub.join("north")
        refused(CertificateRefusal, lambda: egress.status("mini"))
    with hub.egress("north") as egress:
        assert egress.status("mini") == ()


def revoked(hub) -> None:
    hub.store.revoke_site("north")


def replaced(hub) -> None:
    newer = dataclasses.replace(hub.plan, version=2)
    hub.store.add_plan(sign_plan(newer, [LEAD]), newer)


def spent(hub) -> None:
    """Another release of the site takes what the budget had left."""
    other = hub.seal("north", wave=2, release_id="22" * 16, table=small_table(seed=5), plan=hub.store.plan("mini").plan)
    (hub.store.bundles.folder / f"{other.statement.bundle_sha256}.zip").write_bytes(other.path.read_bytes())
    hub.store.accept_release(
        statement=other.statement, envelope=other.envelope, receipt=other.receipt, today=dt.date(2026, 5, 1)
    )


@pytest.mark.parametrize(
    ("meanwhile", "kind"), [(revoked, CertificateRefusal), (replaced, PlanChanged), (spent, BudgetRefusal)]
)
def test_what_changed_during_an_upload_is_decided_again_in_the_commit(hub, monkeypatch, meanwhile, kind):
    """An upload may last an hour; what was true of its site and plan at the offer must be true of the entry."""
    one = tight(hub.plan, 1)
    if meanwhile is spent:
        hub.store.add_plan(sign_plan(one, [LEAD]), one)
    sealed = hub.seal("north", plan=hub.store.plan("mini").plan)
    with monkeypatch.context() as patch, hub.egress("north", sleep=lambda seconds: None) as egress:
        patch.setattr(ingest, "reach", lambda place: meanwhile(hub) if place == "ingest.before_commit" else None)
        refused(kind, lambda: egress.send(sealed.envelope, sealed.path))
    assert hub.store.by_bundle(sealed.statement.bundle_sha256) is None
    assert not (hub.store.bundles.folder / f"{sealed.statement.bundle_sha256}.zip").exists()
    assert hub.store.verify_log() == len(hub.store.log())


def past_midnight(hub) -> None:
    """The day has changed: whoever calls first has what has expired deleted."""
    hub.running.service._tended = None


def seen_by_nobody(hub) -> None:
    """That the certificate has arrived could not be noted, for a full disk."""
    hub.running.service._seen.clear()


@pytest.mark.parametrize("meanwhile", [past_midnight, seen_by_nobody])
def test_a_commit_waits_for_nothing_that_itself_waits_for_the_commit(hub, monkeypatch, meanwhile):
    sealed, done = hub.seal("north"), []

    def send():
        with hub.egress("north", sleep=lambda seconds: None) as egress:
            done.append(egress.send(sealed.envelope, sealed.path))

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "reach", lambda place: meanwhile(hub) if place == "ingest.before_commit" else None)
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        sending.join(30)
    assert len(done) == 1, "the store's one writer waits for itself"
    assert hub.store.by_bundle(sealed.statement.bundle_sha256) is not None


# -- anchors ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("F17")
def test_a_ledger_only_grows_in_the_coordinators_eyes(hub):
    with hub.egress("north") as egress:
        first = egress.anchor(hub.anchor("north", 3))
        assert first.index == 0
        assert egress.anchor(hub.anchor("north", 3)) == first
        assert egress.anchor(hub.anchor("north", 3, after=2)) == first
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 3, branch="edited")))
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 2)))
        assert egress.anchor(hub.anchor("north", 9, after=3)).index == 1
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 3)))
        stranger = SigningKey.generate()
        refused(SignatureRefusal, lambda: egress.anchor(hub.anchor("north", 10, key=stranger)))
        other = hub.anchor("south", 10, key=hub.sites["north"].release)
        refused(ReplayRefusal, lambda: egress.anchor(other))
        refused(SignatureRefusal, lambda: egress.anchor(hub.seal("north").envelope))
    assert hub.store.anchor("north").seq == 9
    assert hub.store.anchor("south") is None


@pytest.mark.fault("F17")
def test_a_ledger_put_back_that_grows_past_the_last_anchor_is_refused(hub):
    """The witnessed head is at 9; the site comes back with entries 1 to 4 as they were and others after them."""
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 4))
        egress.anchor(hub.anchor("north", 9, after=4))
        for history in (
            {"branch": "restored", "since": 4, "after": 4},
            {"branch": "restored", "since": 4, "after": 0},
            {"branch": "edited", "since": 8, "after": 8},
            {"branch": "new", "since": 0},
        ):
            answer = refused(LedgerRefusal, lambda history=history: egress.anchor(hub.anchor("north", 30, **history)))
            assert "site-agent ledger recover" in str(answer)
        assert hub.store.anchor("north").seq == 9
        # The restored ledger may even name the right number, with links that do not lead there.
        forged = dataclasses.replace(
            anchor_head("north", 12, after=9), head=anchor_head("north", 12, branch="restored", since=4).head
        )
        envelope = Envelope.sign(ANCHOR_TYPE, forged.to_bytes(), [hub.sites["north"].release])
        refused(LedgerRefusal, lambda: egress.anchor(envelope))
        assert egress.anchor(hub.anchor("north", 12, after=9)).seq == 12


def test_a_site_that_never_got_a_receipt_proves_from_where_it_knows(hub):
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 2))
        egress.anchor(hub.anchor("north", 9, after=2))  # acknowledged, but the site lost the answer
        assert egress.anchor(hub.anchor("north", 14, after=2)).seq == 14


def test_a_first_anchor_is_proved_from_the_first_entry(hub):
    with hub.egress("north") as egress:
        answer = refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 5, after=3)))
        assert "first" in str(answer)
        assert hub.store.anchor("north") is None
        assert egress.anchor(hub.anchor("north", 5)).seq == 5


def test_links_that_are_too_many_or_not_as_many_as_entries_are_refused(hub):
    key = hub.sites["north"].release
    good = parse_json(anchor_head("north", 5).to_bytes())
    many = {**good, "seq": LINKS_CAP + 1, "links": ["a" * 64] * (LINKS_CAP + 1)}
    with hub.egress("north") as egress:
        for body, kind in (
            ({**good, "links": good["links"][1:]}, SchemaRefusal),
            ({**good, "links": [*good["links"][:-1], "x"]}, SchemaRefusal),
            ({**good, "links": "a" * 64}, SchemaRefusal),
            ({**good, "after": 6}, SchemaRefusal),
            (many, TooLarge),
            ({**good, "links": ["a" * 64] * 20_000}, SchemaRefusal),
        ):
            envelope = Envelope.sign(ANCHOR_TYPE, canonical_json(body), [key])
            refused(kind, lambda envelope=envelope: egress.anchor(envelope))
    assert hub.store.anchor("north") is None


@pytest.mark.fault("F17")
def test_only_the_leads_word_lets_a_ledger_begin_anew_and_only_from_the_head_it_names(hub):
    again = {"branch": "restored", "since": 4, "after": 4}
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 4))
        egress.anchor(hub.anchor("north", 9, after=4))
        hub.store.allow_reanchor("north", head_fingerprint(anchor_head("north", 6, branch="other", since=4).head))
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 6, **again)))
        fingerprint = head_fingerprint(anchor_head("north", 6, branch="restored", since=4).head)
        hub.store.allow_reanchor("north", fingerprint.upper())
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 5, **again)))
        # It may have gone on since the telephone call, and may be shorter than what was witnessed.
        assert egress.anchor(hub.anchor("north", 7, **again)).seq == 7
        assert (egress.witnessed("mini").seq, egress.held("mini").reanchored) == (7, 1)
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 10, after=4)))
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 6, **again)))
        assert egress.anchor(hub.anchor("north", 8, branch="restored", since=4, after=7)).seq == 8
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 6, branch="restored", since=4)))
    kinds = [parse_json(entry.entry)["kind"] for entry in hub.store.log()]
    assert kinds == ["anchor", "anchor", "reanchor_allowed", "reanchor_allowed", "reanchor", "anchor"]


def test_a_permission_is_void_once_the_ledger_was_anchored_after_all(hub):
    again = {"branch": "restored", "since": 4, "after": 4}
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 9))
        hub.store.allow_reanchor("north", head_fingerprint(anchor_head("north", 6, branch="restored", since=4).head))
        egress.anchor(hub.anchor("north", 10, after=9))
        refused(LedgerRefusal, lambda: egress.anchor(hub.anchor("north", 6, **again)))
    with pytest.raises(StateRefusal):
        hub.store.allow_reanchor("south", "0123 4567 89ab cdef 0123 4567 89ab cdef")
    with pytest.raises(ParameterError):
        hub.store.allow_reanchor("north", "0123")


# -- what a signature does not stop -----------------------------------------------------------------------------
@pytest.mark.fault("F8", cases=8, offered=8)
def test_a_statement_is_worth_nothing_in_another_place(hub, plan):
    sealed = hub.seal("north")
    with hub.egress("north") as egress:
        egress.send(sealed.envelope, sealed.path)
        before = hub.contents()
        table = small_table(seed=2)
        # Same study, wave and site, other bytes: with a new id, and with the old one.
        other = hub.seal("north", table=table, release_id="cd" * 16)
        refused(ReplayRefusal, lambda: egress.send(other.envelope, other.path))
        other = hub.seal("north", table=table)
        refused(ReplayRefusal, lambda: egress.send(other.envelope, other.path))
        # The same id in another wave; the same bytes under another id.
        other = hub.seal("north", table=table, wave=2)
        refused(ReplayRefusal, lambda: egress.send(other.envelope, other.path))
        data = sealed.path.read_bytes()
        other = hub.seal("north", data=data, statement_changes={"release_id": "ef" * 16, "wave": 3})
        refused(ReplayRefusal, lambda: egress.send(other.envelope, other.path))
        # Another site's statement, and our own for another site or another coordinator.
        other = hub.seal("south", table=table)
        refused(SignatureRefusal, lambda: egress.send(other.envelope, other.path))
        for changes in ({"site": "south"}, {"recipient": "elsewhere"}):
            other = hub.seal("north", wave=4, release_id="aa" * 16, statement_changes=changes)
            refused(ReplayRefusal, lambda other=other: egress.send(other.envelope, other.path))
        other = hub.seal("north", wave=4, release_id="aa" * 16, statement_changes={"study": "other"})
        refused(RoleRefusal, lambda: egress.send(other.envelope, other.path))
    assert hub.contents() == before
    assert len(hub.store.releases()) == 1
    assert hub.store.quarantined() == ()


def test_a_delivery_asks_the_database_as_often_after_many_waves_as_after_few(hub):
    asked: list[str] = []
    sa.event.listen(hub.running.store._engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    counts = {}
    with hub.egress("north") as egress:
        for wave in range(1, 8):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:032x}")
            asked.clear()
            egress.send(sealed.envelope, sealed.path)
            counts[wave] = len(asked)
    assert counts[3] == counts[7]


@pytest.mark.fault("F9", offered=1)
@pytest.mark.parametrize(
    "changes", [{"wave": 1 << 70}, {"plan_version": 1 << 40}, {"bundle_bytes": 1 << 64}, {"wave": -1}]
)
def test_a_number_that_no_database_holds_is_refused_by_its_form(hub, changes):
    sealed = hub.seal("north", statement_changes=changes)
    with hub.client("north") as client:
        refused(SchemaRefusal, lambda: offer(client, sealed))


@pytest.mark.fault("F8", cases=5, offered=5)
def test_a_release_follows_the_newest_plan_and_an_open_wave(hub, plan):
    with hub.egress("north") as egress:
        for wave in (99, 41):
            sealed = hub.seal("north", wave=wave)
            refused(PlanRefusal, lambda sealed=sealed: egress.send(sealed.envelope, sealed.path))
        stranger = dataclasses.replace(plan, title="Nobody signed this")
        sealed = hub.seal("north", plan=stranger)
        refused(PlanRefusal, lambda: egress.send(sealed.envelope, sealed.path))
        old = hub.seal("north")
        newer = dataclasses.replace(plan, version=2)
        hub.store.add_plan(sign_plan(newer, [LEAD]), newer)
        refused(PlanChanged, lambda: egress.send(old.envelope, old.path))
        new = hub.seal("north", plan=newer)
        acceptance = egress.send(new.envelope, new.path)
        # A release that was accepted stays accepted when the plan moves on.
        newest = dataclasses.replace(plan, version=3, expires=dt.date(2020, 1, 1))
        hub.store.add_plan(sign_plan(newest, [LEAD]), newest)
        assert egress.send(new.envelope, new.path) == acceptance
        late = hub.seal("north", plan=newest, wave=2, release_id="bb" * 16)
        refused(PlanExpired, lambda: egress.send(late.envelope, late.path))
    assert len(hub.contents()) == 1


@pytest.mark.fault("F10", cases=7, offered=7)
def test_signatures_must_be_of_the_pinned_keys_in_their_roles(hub):
    keys, stranger = hub.sites["north"], SigningKey.generate()
    with hub.egress("north") as egress:
        for signers, kind in (
            ([stranger, keys.steward], RoleRefusal),
            ([stranger, SigningKey.generate()], SignatureRefusal),
            ([keys.release, stranger], ApprovalRefusal),
            ([keys.release, hub.sites["south"].steward], ApprovalRefusal),
            ([keys.steward, keys.release], None),
        ):
            sealed = hub.seal("north", signers=signers)
            if kind is None:
                egress.send(sealed.envelope, sealed.path)
            else:
                refused(kind, lambda sealed=sealed: egress.send(sealed.envelope, sealed.path))
                assert hub.contents() == set()
        # One key twice is one approver; the release key approves nothing.
        lone = hub.seal("south", release_id="22" * 16, signers=[hub.sites["south"].release])
        refused(ApprovalRefusal, lambda: egress.send(lone.envelope, lone.path))
        doubled = dataclasses.replace(lone.envelope, signatures=lone.envelope.signatures * 2)
        with hub.client("south") as client:
            document = OfferRequest(envelope=doubled.to_bytes())
            refused(ApprovalRefusal, lambda: client.call("Offer", document, timeout=60))
        # A signature on a document of another kind.
        other = Envelope.sign("text/plain", sealed.envelope.payload, [keys.release, keys.steward])
        with hub.client("north") as client:
            refused(
                SignatureRefusal,
                lambda: client.call("Offer", OfferRequest(envelope=other.to_bytes()), timeout=60),
            )


FLIPPED = (SignatureRefusal, SchemaRefusal, ApprovalRefusal, RoleRefusal)


@pytest.mark.fault("F9")
def test_no_flipped_bit_of_an_envelope_is_accepted(hub, monkeypatch, tally):
    sealed = hub.seal("north")
    data = sealed.envelope.to_bytes()
    asked = Call(peer=Peer(role="site", site="north", serial="0"))
    site = hub.store.enrolment("north")
    monkeypatch.setattr(hub.running.store, "require_site", lambda name, serial: site)
    answers = Counter()
    places = part_of_today(range(8 * len(data)), 15)  # 15 and 8 share no factor: every bit of a byte has its day
    for place in places:
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            hub.running.service.offer(asked, OfferRequest(envelope=bytes(changed)))
            answers["accepted"] += 1
        except FLIPPED as refusal:
            answers[type(refusal)] += 1
    assert answers.total() == len(places) > 450
    tally(cases=answers.total(), offered=answers.total(), accepted=answers["accepted"])
    assert set(answers) <= set(FLIPPED)
    assert hub.contents() == set()
    # The same over the wire, for a few.
    with hub.client("north") as client:
        for place in range(0, len(data), 97):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            with pytest.raises(FLIPPED):
                client.call("Offer", OfferRequest(envelope=changed), timeout=60)


# -- bytes ------------------------------------------------------------------------------------------------------


def chunks_of(data: bytes, digest: str, size: int = 1000, start: int = 0) -> list[Chunk]:
    return [
        Chunk(bundle_sha256=digest, offset=place, data=data[place : place + size])
        for place in range(start, len(data), size)
    ]


@pytest.mark.fault("F9", cases=2, offered=2)
def test_a_tampered_bundle_is_refused_on_either_side(hub):
    sealed = hub.seal("north")
    data, digest = sealed.path.read_bytes(), sealed.statement.bundle_sha256
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    with hub.client("north") as client:
        offer(client, sealed)
        refused(IntegrityRefusal, lambda: client.call("Upload", chunks_of(bytes(changed), digest), timeout=60))
        assert not any(name.endswith((".part", ".zip")) for name in hub.contents())
        assert offer(client, sealed) == Offered(offset=0)
        assert client.call("Upload", chunks_of(data, digest), timeout=60).bundle_sha256 == digest
    sealed.path.write_bytes(changed)
    with hub.egress("north") as egress:
        refused(IntegrityRefusal, lambda: egress.send(sealed.envelope, sealed.path))


def test_a_truncated_upload_is_refused_and_goes_on_where_it_stopped(hub):
    sealed = hub.seal("north")
    data, digest = sealed.path.read_bytes(), sealed.statement.bundle_sha256
    with hub.client("north") as client:
        offer(client, sealed)
        refused(IntegrityRefusal, lambda: client.call("Upload", chunks_of(data, digest)[:3], timeout=60))
        assert offer(client, sealed) == Offered(offset=3000)
        assert hub.store.releases() == ()
        client.call("Upload", chunks_of(data, digest, start=3000), timeout=60)
    assert len(hub.store.releases()) == 1


def test_a_pause_stops_an_upload_under_way_within_a_piece_and_it_goes_on_from_there(hub, monkeypatch, tmp_path):
    """A slow coordinator, a steward who says stop: what was asked for is less than the rest."""
    sealed = hub.seal("north", table=small_table(n=200_000))
    total, pause_file = sealed.statement.bundle_bytes, tmp_path / "paused"
    assert total > 5 * CHUNK_BYTES
    write = staging._write

    def slowly(out, data: bytes) -> None:
        time.sleep(0.05)
        write(out, data)

    monkeypatch.setattr(staging, "_write", slowly)
    places: list[int] = []

    def watched(sent: int, whole: int) -> None:
        places.append(sent)
        if sent >= 2 * CHUNK_BYTES:
            pause_file.touch()

    def no_wait(seconds: float) -> None:
        raise AssertionError("a pause is not retried")

    with hub.egress("north", paused=pause_file.exists, sleep=no_wait) as egress:
        refusal = refused(PausedRefusal, lambda: egress.send(sealed.envelope, sealed.path, watched))
        assert places == [0, CHUNK_BYTES, 2 * CHUNK_BYTES], "no piece is sent after the pause"
        assert f"{2 * CHUNK_BYTES:,} of {total:,}" in str(refusal)
        refused(PausedRefusal, lambda: egress.send(sealed.envelope, sealed.path, watched))
        assert hub.store.releases() == ()
        pause_file.unlink()
        places.clear()
        egress.send(sealed.envelope, sealed.path, lambda sent, whole: places.append(sent))
    assert places[-1] == total
    assert len(hub.store.releases()) == 1


def test_a_connection_lost_while_paused_is_not_tried_again(hub, monkeypatch):
    sealed, paused, tries = hub.seal("north"), [], []

    def lost(name: str, request, *, timeout: float):
        tries.append(name)
        paused.append(True)
        raise NetworkRefusal("the coordinator must answer", given="no answer")

    with hub.egress("north", paused=lambda: bool(paused), sleep=lambda seconds: None) as egress:
        monkeypatch.setattr(egress._client, "call", lost)
        refused(PausedRefusal, lambda: egress.send(sealed.envelope, sealed.path))
    assert tries == ["Offer"]


@pytest.mark.fault("F18", bundles=1, sites=1)
def test_a_delivery_that_was_cut_goes_on_from_there_with_the_same_bytes(hub):
    sealed = hub.seal("north", table=small_table(200_000))
    total = sealed.statement.bundle_bytes
    assert total > 5 * CHUNK_BYTES
    part = hub.home / "staging" / f"north.{sealed.statement.bundle_sha256}.part"

    class Cut(Exception):
        pass

    def cut(sent: int, total: int) -> None:
        if sent >= 3 * CHUNK_BYTES:  # the coordinator has taken something: then the line breaks
            for _ in range(1000):
                if part.exists() and part.stat().st_size:
                    raise Cut
                time.sleep(0.01)
            raise AssertionError("the coordinator took nothing")

    told = []
    with hub.egress("north") as egress:
        with pytest.raises(Cut):
            egress.send(sealed.envelope, sealed.path, cut)
        egress.send(sealed.envelope, sealed.path, lambda sent, total: told.append(sent))
    assert 0 < told[0] < total == told[-1]
    assert hub.store.verify_log() == 1


def test_bytes_that_change_while_they_are_sent_do_not_leave(hub):
    sealed = hub.seal("north", table=small_table(200_000))
    approved = sealed.path.read_bytes()
    planted = b"CANARY-of-a-record" * 1000

    def swap(sent: int, total: int) -> None:
        with sealed.path.open("r+b") as file:  # the same file, so that an open handle sees it as well
            file.seek(4 * CHUNK_BYTES)
            file.write(planted)

    with hub.egress("north") as egress:
        assert "not sent" in refused(StorageRefusal, lambda: egress.send(sealed.envelope, sealed.path, swap)).given
    left = b"".join(path.read_bytes() for path in (hub.home / "staging").iterdir())
    assert b"CANARY" not in left
    sealed.path.write_bytes(approved)
    with hub.egress("north") as egress:
        egress.send(sealed.envelope, sealed.path)
    assert hub.store.verify_log() == 1


@pytest.mark.fault("F3", cases=1, bundles=1, sites=1)
@pytest.mark.parametrize("excess", [None, 0, 9])
def test_a_staged_half_that_a_power_cut_has_damaged_is_sent_anew(hub, excess):
    """The site sends from where the coordinator says; when the whole is wrong, it sends the whole again."""
    sealed = hub.seal("north", table=small_table(100_000))
    assert sealed.statement.bundle_bytes > 2 * CHUNK_BYTES, "what is staged must reach beyond the first piece"
    part = hub.home / "staging" / f"north.{sealed.statement.bundle_sha256}.part"
    part.write_bytes(bytes(CHUNK_BYTES + 300 if excess is None else sealed.statement.bundle_bytes + excess))
    with hub.egress("north", sleep=lambda seconds: None) as egress:
        egress.send(sealed.envelope, sealed.path)
    assert hub.contents() == {f"bundles/{sealed.statement.bundle_sha256}.zip"}
    assert hub.store.verify_log() == 1


@pytest.mark.fault("F7")
@pytest.mark.soak
def test_ten_thousand_deliveries_from_thirty_two_clients_give_one_acceptance(hub, record_property, tally):
    sealed = hub.seal("north")

    def deliver(_: int):
        with hub.egress("north", timeout=120.0) as egress:
            return {egress.send(sealed.envelope, sealed.path) for _ in range(313)}

    with ThreadPoolExecutor(32) as pool:
        answers = set().union(*pool.map(deliver, range(32)))
    record_property("deliveries", 32 * 313)
    record_property("accepted", len(hub.store.releases()))
    tally(cases=32 * 313, bundles=1, sites=1, duplicated=len(hub.store.releases()) - 1)
    assert len(answers) == len(hub.store.releases()) == hub.store.verify_log() == 1


@pytest.mark.fault("F9", cases=7, offered=7)
def test_chunks_in_the_wrong_place_or_of_another_bundle_are_refused(hub):
    sealed = hub.seal("north")
    data, digest = sealed.path.read_bytes(), sealed.statement.bundle_sha256
    pieces = chunks_of(data, digest)
    with hub.client("north") as client:

        def upload(*sent: Chunk) -> None:
            client.call("Upload", list(sent), timeout=60)

        refused(StateRefusal, lambda: upload(pieces[0]))
        offer(client, sealed)
        refused(IntegrityRefusal, lambda: upload())
        refused(IntegrityRefusal, lambda: upload(pieces[1]))
        refused(IntegrityRefusal, lambda: upload(pieces[0], pieces[2]))
        refused(IntegrityRefusal, lambda: upload(pieces[0], dataclasses.replace(pieces[1], bundle_sha256="0" * 64)))
        refused(TooLarge, lambda: upload(*pieces, Chunk(bundle_sha256=digest, offset=len(data), data=b"more")))
    with hub.client("south") as client:
        refused(StateRefusal, lambda: client.call("Upload", pieces, timeout=60))
    assert hub.store.releases() == ()
    assert not any(name.endswith((".part", ".zip")) for name in hub.contents())


@pytest.mark.fault("F11", offered=1)
def test_a_bundle_over_the_cap_is_refused_before_it_is_sent(tmp_path, plan):
    hub = Hub(tmp_path / "hub", plan, "north")
    sealed = hub.seal("north", table=small_table(2000))
    with hub.serve(max_bundle=5000), hub.egress("north") as egress:
        refused(TooLarge, lambda: egress.send(sealed.envelope, sealed.path))
        assert hub.contents() == set()
    hub.store.close()


@pytest.mark.fault("F5", cases=3)
def test_a_full_disk_is_a_refusal_and_leaves_nothing_half_written(hub, monkeypatch):
    sealed = hub.seal("north", table=small_table(5000))
    data, digest = sealed.path.read_bytes(), sealed.statement.bundle_sha256
    written = []

    def full(out, piece):
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(out.write(piece))

    with hub.client("north") as client:
        offer(client, sealed)
        with monkeypatch.context() as patch:
            patch.setattr(staging, "_write", full)
            answer = refused(StorageRefusal, lambda: client.call("Upload", chunks_of(data, digest), timeout=60))
            assert "No space left" in str(answer)
            assert str(hub.home) not in str(answer)
            assert len(written) == 2
        assert not any(name.endswith((".part", ".zip")) for name in hub.contents())
        with monkeypatch.context() as patch:
            patch.setattr(staging.shutil, "disk_usage", lambda path: _Usage(free=1000))
            refused(StorageRefusal, lambda: offer(client, sealed))
        with monkeypatch.context() as patch:
            patch.setattr(ingest, "fsync_folder", _fail_full)
            refused(StorageRefusal, lambda: client.call("Upload", chunks_of(data, digest), timeout=60))
            assert hub.store.releases() == ()
            assert not any(name.startswith("bundles/") for name in hub.contents())
        assert offer(client, sealed) == Offered(offset=len(data))
        client.call("Upload", chunks_of(data, digest, start=len(data) - 1), timeout=60)
    assert len(hub.store.releases()) == 1


@dataclasses.dataclass
class _Usage:
    free: int


def _fail_full(folder) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_unfinished_uploads_of_one_site_are_bounded(hub):
    with hub.client("north") as client:
        for wave in range(1, 13):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave))
            offer(client, sealed)
            some = chunks_of(sealed.path.read_bytes(), sealed.statement.bundle_sha256)[:1]
            with pytest.raises(IntegrityRefusal):
                client.call("Upload", some, timeout=60)
    staged = [name for name in hub.contents() if name.endswith(".part")]
    assert len(staged) == staging.STAGED_PER_SITE


# -- content ----------------------------------------------------------------------------------------------------
def outside(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(sbp=table["sbp"].where(table.index != 3, 9999.0))


def with_nan(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(sbp=table["sbp"].where(table.index != 3))


@pytest.mark.fault("F13", cases=2, offered=2)
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"receipt_changes": {"epsilon": 1.0}}, ReceiptRefusal),
        ({"receipt_changes": {"rdp": (0.0,) * 289}}, ReceiptRefusal),
        ({"receipt_changes": {"neighbours": "add_remove"}}, ReceiptRefusal),
        ({"receipt_changes": {"not_covered": ()}}, ReceiptRefusal),
        ({"receipt_changes": {"study_epsilon": 50.0}}, ReceiptRefusal),
        ({"receipt_changes": {"previous": "an earlier one"}}, ReceiptRefusal),
        ({"receipt_changes": {"site": "south"}}, ReplayRefusal),
        ({"receipt_changes": {"wave": 2}}, ReplayRefusal),
        ({"receipt_changes": {"release_id": "00" * 16}}, ReplayRefusal),
        ({"receipt_changes": {"n": 61}}, ReceiptRefusal),
        ({"receipt_changes": {"n": 61, "drawn": 61}}, SchemaRefusal),
        ({"statement_changes": {"receipt_sha256": "0" * 64}}, ReceiptRefusal),
        ({"table": outside(small_table())}, DictionaryRefusal),
        ({"table": with_nan(small_table())}, DictionaryRefusal),
        ({"table": small_table().assign(extra=1.0)}, DictionaryRefusal),
        ({"table": small_table()[["sex", "sbp"]]}, DictionaryRefusal),
        ({"table": small_table().drop(columns="sex")}, DictionaryRefusal),
        ({"table": small_table().assign(sex="male")}, DictionaryRefusal),
        ({"table": small_table(49)}, SmallN),
        ({"data": b"this is not a zip file"}, IntegrityRefusal),
    ],
    ids=lambda value: str(value)[:50].split("\n")[0] if isinstance(value, dict) else value.__name__,
)
def test_wrong_content_under_valid_signatures_is_kept_apart_and_told(hub, wrong, kind):
    sealed = hub.seal("north", **wrong)
    digest = sealed.statement.bundle_sha256
    with hub.egress("north", sleep=lambda seconds: None) as egress:
        first = refused(kind, lambda: egress.send(sealed.envelope, sealed.path))
        again = refused(kind, lambda: egress.send(sealed.envelope, sealed.path))
        assert str(again) == str(first)
        [held] = egress.status("mini")
        assert (held.state, held.code, held.reason) == ("quarantined", kind.code, str(first))
        assert hub.contents() == {f"quarantine/{digest}.zip"}
        assert hub.store.releases() == ()
        assert list(hub.store.tables("mini", 1)) == []
        assert hub.store.verify_log() == 0
        # The place in the wave is still free for a release that is right.
        right = hub.seal("north", table=small_table(seed=9), release_id="99" * 16)
        egress.send(right.envelope, right.path)
    assert "9999" not in str(first)


def total(plan: StudyPlan, releases: int) -> float:
    event = planned_event(plan)
    return privacy.epsilon_from_rdp(privacy.rdp([event] * releases), plan.budget.delta)


def tight(plan: StudyPlan, releases: int, **changes) -> StudyPlan:
    """The plan with a budget that so many of its releases just fit."""
    return dataclasses.replace(
        plan, version=2, budget=Budget(epsilon=1.001 * total(plan, releases), delta=plan.budget.delta), **changes
    )


@pytest.mark.fault("F13", offered=1)
def test_what_arrived_before_counts_against_the_budget_whatever_became_of_it(hub, plan):
    """A release and a quarantined one are two charges; the third is one too many."""
    two = tight(plan, 2)
    hub.store.add_plan(sign_plan(two, [LEAD]), two)
    with hub.egress("north", sleep=lambda seconds: None) as egress:

        def send(wave: int, kind: type[Refusal] | None = None, **changes) -> None:
            sealed = hub.seal(
                "north",
                wave=wave,
                release_id=f"{wave:02d}" * 16,
                plan=two,
                table=small_table(seed=wave),
                receipt_changes=changes,
            )
            if kind is None:
                egress.send(sealed.envelope, sealed.path)
            else:
                refused(kind, lambda: egress.send(sealed.envelope, sealed.path))

        send(1)
        send(2, ReceiptRefusal, epsilon=1.0)
        send(3, BudgetRefusal)
    # Another site's releases are another ledger's.
    with hub.egress("south") as egress:
        sealed = hub.seal("south", release_id="5" * 32, plan=two)
        egress.send(sealed.envelope, sealed.path)


def test_a_refresh_counts_against_everybody_also_where_persons_are_known(hub, plan, capsys):
    people = Column(name="person", kind="person")
    named = tight(plan, 2, dictionary=dataclasses.replace(SMALL, columns=(people, *SMALL.columns)))
    assert named.returning == "refresh"
    hub.store.add_plan(sign_plan(named, [LEAD]), named)
    with hub.egress("north", sleep=lambda seconds: None) as egress:

        def sealed(wave: int):
            more = {"plan": named, "table": small_table(seed=wave)}
            return hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, **more)

        for wave in (1, 2):
            one = sealed(wave)
            egress.send(one.envelope, one.path)
        beyond = sealed(3)
        refused(BudgetRefusal, lambda: egress.send(beyond.envelope, beyond.path))
        # What two releases took as given their sum with a third does, whatever the third one's flow was fitted on.
        public = dataclasses.replace(named, version=3, posture="public")
        hub.store.add_plan(sign_plan(public, [LEAD]), public)
        last = hub.seal("north", plan=public, table=small_table(seed=3), wave=3, release_id="04" * 16)
        refusal = refused(BudgetRefusal, lambda: egress.send(last.envelope, last.path))
        assert "given the flow for 4 releases" in str(refusal)
    (hub.home / "coordinator.toml").write_text(
        CoordinatorConfig(
            home=hub.home, name=plan.coordinator, address="127.0.0.1:8443", names=("127.0.0.1",)
        ).to_toml()
    )
    notes = []
    for wave in (1, 2):
        assert main(["--home", str(hub.home), "release", "show", f"{wave:02d}" * 16, "--json"]) == 0
        notes.append(json.loads(capsys.readouterr().out)["note"])
    assert notes[0] == ""
    assert "all 2 releases" in notes[1]


def test_releases_of_new_persons_only_are_held_against_one_charge(hub, plan):
    people = Column(name="person", kind="person")
    changes = {"returning": "append", "dictionary": dataclasses.replace(SMALL, columns=(people, *SMALL.columns))}
    appending = tight(plan, 1, **changes)
    hub.store.add_plan(sign_plan(appending, [LEAD]), appending)
    with hub.egress("north", sleep=lambda seconds: None) as egress:
        for wave in (1, 2):
            sealed = hub.seal(
                "north", wave=wave, release_id=f"{wave:02d}" * 16, plan=appending, table=small_table(seed=wave)
            )
            egress.send(sealed.envelope, sealed.path)


@pytest.mark.fault("F8")
def test_two_receipts_that_follow_the_same_one_are_a_fork_unless_the_ledger_began_anew(hub):
    with hub.egress("north", sleep=lambda seconds: None) as egress:

        def sealed(wave: int, previous: str):
            table = small_table(seed=wave)
            more = {"receipt_changes": {"previous": previous}}
            return hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=table, **more)

        egress.anchor(hub.anchor("north", 4))
        first = sealed(1, "0" * 64)
        egress.send(first.envelope, first.path)
        second = sealed(2, first.receipt.hash)
        egress.send(second.envelope, second.path)
        skipped = sealed(4, "e" * 64)  # what it follows was sealed and rejected: it never arrived
        egress.send(skipped.envelope, skipped.path)
        for wave, previous in ((5, "0" * 64), (6, first.receipt.hash)):
            fork = sealed(wave, previous)
            refused(ReceiptRefusal, lambda fork=fork: egress.send(fork.envelope, fork.path))
        again = {"branch": "restored", "since": 4, "after": 4}
        egress.anchor(hub.anchor("north", 9, after=4))
        hub.store.allow_reanchor("north", head_fingerprint(anchor_head("north", 6, **again).head))
        egress.anchor(hub.anchor("north", 6, **again))
        explained = sealed(7, first.receipt.hash)
        egress.send(explained.envelope, explained.path)


@pytest.mark.fault("F13", offered=1)
def test_members_swapped_inside_a_bundle_are_kept_apart(hub):
    good = hub.seal("north").path.read_bytes()
    other = hub.seal("north", table=small_table(seed=5)).path.read_bytes()
    table = zipfile.ZipFile(io.BytesIO(other)).read("table.parquet")
    sealed = hub.seal("north", data=rezip(good, {"table.parquet": table}))
    with hub.egress("north", sleep=lambda seconds: None) as egress:
        refused(IntegrityRefusal, lambda: egress.send(sealed.envelope, sealed.path))
    assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}


# -- exactly once -----------------------------------------------------------------------------------------------
@pytest.mark.fault("F7", cases=32, bundles=1, sites=1)
def test_thirty_two_deliveries_at_once_give_one_acceptance(hub):
    sealed = hub.seal("north", table=small_table(20_000))
    gate = threading.Barrier(32, timeout=300)

    def deliver(_: int):
        with hub.egress("north", timeout=60.0) as egress:
            gate.wait()
            return egress.send(sealed.envelope, sealed.path)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(deliver, range(32)))
    assert len(set(answers)) == 1
    assert len(hub.store.releases()) == 1
    assert hub.store.verify_log() == 1
    assert hub.contents() == {f"bundles/{sealed.statement.bundle_sha256}.zip"}


@pytest.mark.fault("F7", cases=8, bundles=1, sites=1)
def test_different_bytes_for_one_place_at_once_give_one_acceptance(hub):
    rivals = [hub.seal("north", table=small_table(seed=k), release_id=f"{k:02d}" * 16) for k in range(8)]
    gate = threading.Barrier(8, timeout=300)

    def deliver(sealed):
        with hub.egress("north", timeout=60.0) as egress:
            gate.wait()
            try:
                return egress.send(sealed.envelope, sealed.path)
            except ReplayRefusal:
                return None

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for answer in pool.map(deliver, rivals) if answer is not None]
    [release] = hub.store.releases()
    assert answers == [release.acceptance]
    assert {name for name in hub.contents() if name.endswith(".zip")} == {f"bundles/{release.bundle_sha256}.zip"}


@pytest.mark.fault("F2")
def test_a_reader_sees_whole_releases_only(hub, tally):
    """A reader that never stops looking finds, for every release it sees, the whole table."""
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        store = Store.open(hub.home)
        while not done.is_set():
            for wave in range(1, 7):
                for _, receipt, table in store.tables("mini", wave):
                    seen.append(wave)
                    assert len(table) == receipt.n
        store.close()

    with ThreadPoolExecutor(1) as pool, hub.egress("north") as egress:
        reading = pool.submit(read)
        for wave in range(1, 7):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave))
            egress.send(sealed.envelope, sealed.path)
        done.set()
        reading.result()
    assert seen
    tally(reads=len(seen), half_reads=0, bundles=6, sites=1)


# -- crashes ----------------------------------------------------------------------------------------------------


class Onlooker:
    """Reads a coordinator's releases a thousand times a second: each that is seen has its whole bundle, by its digest.

    A bundle is hashed when it is first seen, and whenever its file is another one than then.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.reads, self.halves = home, 0, 0
        self._over, self._thread = threading.Event(), threading.Thread(target=self._look)

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        whole: dict[str, os.stat_result] = {}
        with closing(Store.open(self.home)) as store:
            while not self._over.is_set():
                for release in store.releases():
                    self.reads += 1
                    path = store.bundles.folder / f"{release.bundle_sha256}.zip"
                    try:
                        is_now = path.stat()
                        if whole.get(path.name) != is_now:
                            self.halves += sha256_hex(path.read_bytes()) != release.bundle_sha256
                            whole[path.name] = is_now
                    except FileNotFoundError:
                        self.halves += 1
                time.sleep(0.001)  # who delivers is a thread of the same process


@pytest.mark.fault("F2")
@pytest.mark.parametrize("rounds", [1, pytest.param(27, marks=pytest.mark.soak)])
def test_a_server_killed_at_any_step_ends_with_one_acceptance_when_the_site_asks_again(
    tmp_path, plan, rounds, database, record_property, tally
):
    if rounds > 1:
        if not os.environ.get("TRIBUTARY_SOAK"):
            pytest.skip("set TRIBUTARY_SOAK")
        rounds = soak(1, rounds)
    killed = []
    for number in range(rounds):
        hub = Hub(tmp_path / f"{number}", plan, "north")
        with Onlooker(hub.home) as onlooker:
            killed += killed_at_every_step(hub)
        assert onlooker.halves == 0
        tally(reads=onlooker.reads, half_reads=onlooker.halves)
    record_property("rounds", rounds)
    record_property("killed", len(killed))
    record_property("failpoints", len(set(killed)))
    tally(cases=len(killed), sites=rounds, bundles=len(killed), lost=0, duplicated=0)
    tally(failpoints=killed, failpoints_written=failpoints())
    assert killed == (failpoints() * rounds if rounds > 1 else part_of_today(failpoints(), 11))


def killed_at_every_step(hub: Hub) -> list[str]:
    """Deliver a release to a server that dies at each failpoint of an ingest; where it died."""
    servers = Servers(hub)
    assert len(failpoints()) == len(set(failpoints())) >= 15
    places = part_of_today(failpoints(), 11)
    killed = []
    try:
        for wave, place in enumerate(places, start=1):
            bad = "quarantine" in place
            changes = {"receipt_changes": {"epsilon": 1.0}} if bad else {}
            table = small_table(5000, seed=wave)
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=table, **changes)
            answers = []

            def deliver(sealed=sealed, wave=wave, place=place, answers=answers, retry=False) -> None:
                with hub.egress("north", attempts=3 if retry else 1, sleep=lambda seconds: None) as egress:
                    try:
                        if not retry or "anchor" in place:
                            egress.anchor(hub.anchor("north", wave))
                        answers.append(egress.send(sealed.envelope, sealed.path))
                    except Refusal as refusal:
                        answers.append(refusal)

            if "recover" in place:  # reached only after a crash: kill twice
                assert servers.run("ingest.after_move", deliver) == "killed"
            if servers.run(place, deliver) == "killed":
                killed.append(place)
            if answers and isinstance(answers[-1], Refusal):
                assert type(answers[-1]) in (NetworkRefusal, CertificateRefusal), answers[-1]
            servers.run("none", lambda deliver=deliver: deliver(retry=True))
            if bad:
                assert type(answers[-1]) is ReceiptRefusal
                assert not [release for release in hub.store.releases() if release.wave == wave]
                assert hub.store.quarantined(bundle_sha256=sealed.statement.bundle_sha256)
            else:
                assert not isinstance(answers[-1], Refusal), f"{place}: {answers[-1]}"
                [release] = [release for release in hub.store.releases() if release.wave == wave]
                assert release.acceptance == answers[-1]
                pd.testing.assert_frame_equal(hub.store.table(release), table)
    finally:
        servers.close()
    good = [release.bundle_sha256 for release in hub.store.releases()]
    apart = [found.bundle_sha256 for found in hub.store.quarantined()]
    assert len(good) + len(apart) == len(places)
    assert hub.contents() == {f"bundles/{d}.zip" for d in good} | {f"quarantine/{d}.zip" for d in apart}
    assert hub.store.verify_log() == len(good) + hub.store.anchor("north").seq
    hub.store.close()
    return killed


def test_every_write_of_an_ingest_stands_between_two_failpoints():
    """A write, rename or flush without a failpoint near it would not be tested by the crashes above."""
    text = sources()
    for step in (
        "_write(out",
        "os.fsync(out",
        "bundles.put(digest, part)",
        "accept_release(",
        "write_private(",
        "add_anchor(",
    ):
        place = text.index(step)
        assert 'reach("ingest.' in text[place - 400 : place], step
        assert 'reach("ingest.' in text[place : place + 500], step


@pytest.mark.fault("F6")
def test_a_second_server_on_one_home_is_refused(hub):
    refused(LockedRefusal, hub.serve)


# -- what is said and what is not -------------------------------------------------------------------------------
def test_an_unexpected_error_says_nothing_about_the_inside(hub, monkeypatch, caplog):
    secret = f"{hub.home}/store.db holds patient 4711"

    def explode(*args):
        raise RuntimeError(secret)

    monkeypatch.setattr(Store, "plan", explode)
    with hub.egress("north") as egress, caplog.at_level("INFO"):
        answer = refused(Refusal, lambda: egress.fetch_plan("mini"))
    assert answer.code == "E_REFUSED"
    assert "4711" not in str(answer)
    assert "RuntimeError" not in str(answer)
    assert "unexpected RuntimeError" in caplog.text
    assert "4711" not in caplog.text


def test_the_log_has_one_line_per_decision_and_no_values(hub, caplog):
    sealed = hub.seal("north", table=outside(small_table()))
    with caplog.at_level("INFO", logger="tributary.transport"), hub.egress("north", sleep=lambda s: None) as egress:
        egress.status("mini")
        refused(DictionaryRefusal, lambda: egress.send(sealed.envelope, sealed.path))
    lines = [record.getMessage() for record in caplog.records if record.name == "tributary.transport"]
    digest = sealed.statement.bundle_sha256[:12]
    expected = ["north Status ok -", f"north Offer ok {digest}", f"north Upload E_DICTIONARY {digest}"]
    assert [line.split(" ", 1)[1] for line in lines] == expected
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 ", line) for line in lines)


@pytest.mark.fault("F8", offered=1)
def test_a_hand_made_request_about_another_study_is_refused(hub):
    with hub.client("north") as client:
        for name in ("FetchPlan", "Status"):
            refused(RoleRefusal, lambda name=name: client.call(name, StudyRequest(study="secret"), timeout=60))


def test_digests_are_of_the_bytes(hub):
    sealed = hub.seal("north")
    assert sealed.statement.bundle_sha256 == sha256_hex(sealed.path.read_bytes())


# -- author and approver --------------------------------------------------------------------------------------------
@pytest.mark.fault("F10", "I7", offered=1)
def test_the_author_of_a_release_is_not_its_approver_where_the_plan_says_so(tmp_path, plan):
    apart = dataclasses.replace(plan, floors=dataclasses.replace(plan.floors, author_apart=True))
    hub = Hub(tmp_path / "hub", apart, "north")
    with hub.serve(), hub.egress("north") as egress:
        for author in ("steward", "somebody"):
            sealed = hub.seal("north", statement_changes={"author": author})
            refusal = refused(ApprovalRefusal, lambda sealed=sealed: egress.send(sealed.envelope, sealed.path))
            assert "must not approve it" in refusal.must
        sealed = hub.seal("north")
        assert egress.send(sealed.envelope, sealed.path).log_index == 0, "the calendar asked for it"
    hub.store.close()
