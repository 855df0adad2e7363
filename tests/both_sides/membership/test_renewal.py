"""Certificates that follow one another for years, while nobody does anything: renewal, and every way around it."""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import threading
from dataclasses import replace

import pytest
from hurry import part_of_today
from stage.both_sides.membership import Clock, Membership
from stage.processes.theatre import exit_code

from shared.base.clock import utc_now
from shared.base.keys import Envelope, SigningKey
from shared.errors import CertificateRefusal, LedgerRefusal, ReplayRefusal, SignatureRefusal
from shared.wire.certificates import BOTH_GOOD_DAYS, RENEW_DAYS, SITE_DAYS, RenewalRequest, serial_of
from site_agent import identity
from site_agent.decide.joining import renewal
from site_agent.egress import new_tls_identity

HALF = SITE_DAYS - RENEW_DAYS + 1


@pytest.fixture
def clock(tmp_path, monkeypatch):
    return Clock(tmp_path, monkeypatch)


@pytest.fixture
def member(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("coordinator.services.collect.service.RENEWALS_A_DAY", 1000)  # years pass in one of its days
    made = Membership(tmp_path, clock, "north", "south")
    yield made
    made.close()


def certificate(member: Membership, site: str = "north") -> str:
    return member.desk(site).config.certificate.read_text()


def test_nothing_is_asked_for_before_half_of_a_certificates_life(member, clock):
    before = certificate(member)
    clock.turn(HALF - 3)
    said = member.round()
    assert not [what for what in said if "certificate" in what]
    assert certificate(member) == before


def test_from_half_life_on_the_agent_renews_over_its_own_channel_and_both_are_good_for_a_week(member, clock):
    first, key = identity.identity(member.desk().config)
    clock.turn(HALF)
    assert "would renew its certificate" in member.round(dry_run=True)
    assert certificate(member) == first
    assert member.round()["renewed its certificate"].startswith("until ")
    second, new_key = identity.identity(member.desk().config)
    assert serial_of(second) != serial_of(first)
    assert new_key != key
    assert member.connects()
    assert member.hub.store.enrolment("north").certificate_pem == second, "the one that `sites` shows"

    def old_connects() -> bool:
        with member.desk().egress(cert_pem=first, key_pem=key, attempts=1) as egress:
            return egress.status("small") == ()

    clock.turn(BOTH_GOOD_DAYS)
    assert old_connects()
    assert member.connects()
    clock.turn(1)
    with pytest.raises(CertificateRefusal, match="a newer one has followed"):
        old_connects()
    assert member.connects()
    assert "renewed its certificate" not in member.round(), "once"


def test_ten_years_pass_without_anybody_doing_anything(member, clock):
    seen = set()
    for _ in range(14):
        clock.turn(230)
        said = member.round()
        assert not {"certificate not renewed", "authority not followed", "not connected", "offline"} & said.keys()
        seen.add(serial_of(certificate(member)))
        assert member.connects()
    assert len(seen) >= 12
    assert member.hub.authority.server_certificate.not_valid_after_utc > utc_now()
    assert member.hub.authority.current().certificate == member.hub.authority.certificate


def asked(member: Membership, site: str = "north", **changes) -> RenewalRequest:
    """What an honest agent asks, with changes."""
    desk = member.desk(site)
    with desk.egress() as egress:
        egress.clock(site, desk.release_key)
        head = egress.anchor(desk.ledger.anchor_envelope())
    values = {
        "site": site,
        "serial": serial_of(certificate(member, site)),
        "seq": head.seq,
        "head": head.head,
        "csr_pem": new_tls_identity(site)[1],
        "day": utc_now().date().isoformat(),
    }
    return RenewalRequest(**{**values, **changes})


def ask(member: Membership, envelope: Envelope, site: str = "north", **shown: str) -> str:
    with member.desk(site).egress(attempts=1, **shown) as egress:
        return egress.renew(envelope)


def test_what_is_no_request_of_this_site_over_this_certificate_is_refused(member, clock):
    north, south = (member.desk(site).release_key for site in ("north", "south"))
    clock.turn(HALF)
    honest = asked(member)
    with pytest.raises(SignatureRefusal):
        ask(member, honest.signed(SigningKey.generate()))
    with pytest.raises(SignatureRefusal):
        ask(member, honest.signed(south))
    with pytest.raises(SignatureRefusal):
        ask(member, honest.signed(north, late=True))
    with pytest.raises(ReplayRefusal, match="over the certificate that it names"):
        ask(member, replace(honest, serial=serial_of(certificate(member, "south"))).signed(north))
    with pytest.raises(ReplayRefusal):
        ask(member, replace(asked(member, "south"), site="north").signed(south), "south")
    with pytest.raises(SignatureRefusal):
        ask(member, honest.signed(north), "south")
    with pytest.raises(LedgerRefusal, match="head of the ledger"):
        ask(member, replace(honest, head="0" * 64).signed(north))
    with pytest.raises(LedgerRefusal):
        ask(member, replace(honest, seq=honest.seq - 1).signed(north))
    with pytest.raises(CertificateRefusal, match="signed by its own"):
        ask(member, replace(honest, csr_pem="nonsense").signed(north))
    assert member.round()["renewed its certificate"]


def test_a_request_is_answered_once_and_a_lost_answer_is_given_again(member, clock):
    clock.turn(HALF)
    desk = member.desk()
    shown = dict(zip(("cert_pem", "key_pem"), identity.identity(desk.config), strict=True))
    request = asked(member).signed(desk.release_key)
    first = ask(member, request)
    assert ask(member, request) == first, "the answer may have been lost"
    later = asked(member).signed(desk.release_key)
    second = ask(member, later)
    assert second != first
    with pytest.raises(ReplayRefusal, match="served"):
        ask(member, request)
    assert member.round()["renewed its certificate"], "and a third, by the agent"
    with pytest.raises(ReplayRefusal):
        ask(member, later)  # over the new certificate
    with pytest.raises(ReplayRefusal):
        ask(member, later, **shown)  # over the old one, which is good for a week


def test_an_old_certificate_renews_nothing_once_the_new_one_was_shown(member, clock):
    """Whoever stole certificate and key, and even the release key, has a week, and no further certificate."""
    clock.turn(HALF)
    desk = member.desk()
    shown = dict(zip(("cert_pem", "key_pem"), identity.identity(desk.config), strict=True))
    request = asked(member)
    member.round()
    head = asked(member)
    stolen = replace(head, serial=request.serial).signed(desk.release_key)
    with pytest.raises(CertificateRefusal, match="newest certificate"):
        ask(member, stolen, **shown)


def test_a_certificate_that_was_never_shown_and_issued_anew_is_refused(member, clock):
    clock.turn(HALF)
    desk = member.desk()
    key, csr = new_tls_identity("north")
    lost = ask(member, asked(member, csr_pem=csr).signed(desk.release_key))
    member.round()
    with (
        pytest.raises(CertificateRefusal, match="issued anew"),
        member.desk().egress(cert_pem=lost, key_pem=key, attempts=1) as egress,
    ):
        egress.status("small")
    assert member.connects()


def test_a_revoked_site_renews_nothing_and_gets_nothing_back_by_joining_anew(member, clock):
    clock.turn(HALF)
    desk = member.desk()
    old = identity.identity(desk.config)
    member.round()
    request = asked(member).signed(desk.release_key)
    member.hub.store.revoke_site("north")
    with pytest.raises(CertificateRefusal):
        ask(member, request)
    member.hub.join("north")
    assert member.hub.store.enrolment("north").state == "accepted"
    with pytest.raises(CertificateRefusal, match="revoked"):
        member.connects()
    with (
        pytest.raises(CertificateRefusal, match="earlier membership"),
        member.desk().egress(cert_pem=old[0], key_pem=old[1], attempts=1) as egress,
    ):
        egress.renew(request)


def test_a_revocation_between_asking_and_issuing_wins(member, clock, monkeypatch):
    clock.turn(HALF)
    service = member.server.service
    issue = service.certificates._issue

    def revoked_first(*given, **named):
        member.hub.store.revoke_site("north")
        return issue(*given, **named)

    monkeypatch.setattr(service.certificates, "_issue", revoked_first)
    with pytest.raises(CertificateRefusal, match="revoked"):
        ask(member, asked(member).signed(member.desk().release_key))


def test_a_certificate_that_was_issued_before_a_revocation_is_of_no_use_after_it(member, clock):
    clock.turn(HALF)
    key, csr = new_tls_identity("north")
    given = ask(member, asked(member, csr_pem=csr).signed(member.desk().release_key))
    member.hub.store.revoke_site("north")
    with pytest.raises(CertificateRefusal), member.desk().egress(cert_pem=given, key_pem=key, attempts=1) as egress:
        egress.status("small")


def test_a_clock_that_is_not_believed_renews_nothing(member, clock):
    clock.turn(HALF)
    request, before = asked(member).signed(member.desk().release_key), certificate(member)

    def contradict(*sites: str) -> None:
        for site in sites:
            member.server.service.clocks.note(site, utc_now() - dt.timedelta(days=400), utc_now())

    contradict("north", "south")
    with pytest.raises(CertificateRefusal, match="others see"):
        ask(member, request)
    member.hub.join("west")
    contradict("south", "west")
    assert member.round("north")["certificate not renewed"].startswith("E_CERT")
    assert certificate(member) == before
    assert member.connects()
    member.hub.store.revoke_site("west")
    assert member.round("north")["renewed its certificate"], "one for, one against"


def test_a_coordinator_whose_clock_was_rolled_back_renews_nothing(member, clock):
    clock.turn(HALF)
    service = member.server.service
    request = asked(member).signed(member.desk().release_key)  # its clock was compared while both agreed
    service._now = lambda: utc_now() - dt.timedelta(days=150)
    with pytest.raises(CertificateRefusal, match="was heard on"):
        ask(member, request)
    said = member.round()
    assert said["certificate not renewed"].startswith("E_CERT")
    assert said["clock differs"].startswith("E_CERT")


def test_a_certificate_that_would_outlive_its_authority_is_refused(member, clock):
    desk, service = member.desk(), member.server.service
    near = service._authority.ends - dt.timedelta(days=SITE_DAYS - 1)
    service._authority = replace(service._authority, now=lambda: near)
    with pytest.raises(CertificateRefusal, match="before its authority") as caught:
        ask(member, asked(member).signed(desk.release_key))
    assert "coordinator ca rotate" in str(caught.value)


def test_two_agents_that_renew_at_once_leave_a_site_that_connects(member, clock):
    """Two copies of one folder: the second one's certificate replaces the first one's before that was shown."""
    clock.turn(HALF)
    copy = member.folder / "copy"
    shutil.copytree(member.homes["north"], copy)
    first = renewal._requested_identity(member.desk(), utc_now())
    member.homes["copy"] = copy
    renewal.renew(member.desk("copy"))
    assert member.connects("copy")
    said = member.round()
    assert "certificate not renewed" in said
    assert member.connects(), "with the one before, for a week"
    assert first.certificate_pem


def test_renewals_and_a_revocation_at_once_leave_a_site_that_nobody_answers(member, clock):
    clock.turn(HALF)
    requests = [asked(member).signed(member.desk().release_key) for _ in range(3)]
    given: list[object] = []
    together = threading.Barrier(4, timeout=300)

    def renew(request: Envelope) -> None:
        together.wait()
        try:
            given.append(ask(member, request))
        except CertificateRefusal as refusal:
            given.append(refusal)

    def revoke() -> None:
        together.wait()
        member.hub.store.revoke_site("north")

    threads = [threading.Thread(target=renew, args=(one,)) for one in requests] + [threading.Thread(target=revoke)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 3
    assert member.hub.store.enrolment("north").state == "revoked"
    with pytest.raises(CertificateRefusal):
        member.connects()
    assert member.hub.store.verify_log() == member.hub.store.entries()
    member.hub.store.verify_signatures()


class Killed(BaseException):
    """Nothing of ours handles it, as nothing handles a kill."""


SITE_POINTS = (
    "renewal.before_keep",
    "renewal.after_keep",
    "renewal.before_ask",
    "renewal.after_ask",
    "renewal.before_keep:2",
    "renewal.after_keep:2",
    "renewal.before_show",
    "renewal.after_show",
    "renewal.before_certificate",
    "renewal.before_key",
    "renewal.before_forget",
    "renewal.after_forget",
)


@pytest.mark.sampled
def test_a_site_killed_at_any_step_of_a_renewal_connects_and_ends_with_one_certificate(member, clock):
    for point in part_of_today(SITE_POINTS, 3):
        clock.turn(HALF)
        assert exit_code("site_agent.cli", "renew", "--home", member.homes["north"], place=point) == -signal.SIGKILL
        assert member.connects(), point
        if renewal.due(member.desk().config):
            renewal.renew(member.desk())
        assert member.connects(), point
        held = member.desk().config.certificate.read_text()
        assert member.hub.store.enrolment("north").certificate_pem == held, point
        assert not identity.renewals(member.desk().config).given, point
        assert renewal.due(member.desk().config) == "", point


def test_a_request_that_the_ledger_has_outgrown_meanwhile_is_made_anew(member, clock, monkeypatch):
    clock.turn(HALF)

    def reach(name):
        if name == "renewal.before_ask":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("site_agent.decide.joining.renewal.reach", reach)
        with pytest.raises(Killed):
            member.round()
    kept = identity.renewals(member.desk().config).asked
    assert kept is not None
    member.desk().ledger.pause(name="", reason="for a moment", key=None)
    with member.desk().egress() as egress:
        egress.anchor(member.desk().ledger.anchor_envelope())
    renewal.renew(member.desk())
    assert member.connects()
    assert renewal.due(member.desk().config) == ""


def test_a_site_that_is_paused_makes_no_call_and_renews_when_it_goes_on(member, clock):
    clock.turn(HALF)
    config = member.desk().config
    config.pause_file.touch()
    assert member.round().keys() == {"paused"}
    config.pause_file.unlink()
    assert member.round()["renewed its certificate"]


@pytest.mark.parametrize("place", ["before_commit", "after_commit", "before_shown", "after_shown"])
def test_a_coordinator_that_dies_at_any_step_of_a_renewal_is_asked_again(member, clock, monkeypatch, place):
    clock.turn(HALF)

    def reach(name):
        if name == f"renewal.{place}":
            raise RuntimeError("killed")  # its transaction is rolled back, as after a kill

    with monkeypatch.context() as patched:
        patched.setattr("coordinator.store.site_certificates.reach", reach)
        member.round()
    member.serve_anew()
    member.round()
    assert member.connects()
    assert renewal.due(member.desk().config) == ""
    assert member.hub.store.enrolment("north").certificate_pem == certificate(member)


def test_a_coordinator_put_back_from_before_a_renewal_knows_the_certificate_again(member, clock):
    import sqlite3

    member.hub.store.close()
    member.server.stop(0)
    before = member.hub.home / "before.db"
    with sqlite3.connect(member.hub.home / "store.db") as live, sqlite3.connect(before) as copy:
        live.backup(copy)
    # Joined as a served site joins: the number says which request to join it goes back to.
    from coordinator.store.site_certificates import new_serial
    from coordinator.store.store import Store

    member.hub.store = Store.open(member.hub.home)
    member.serve_anew()
    clock.turn(HALF)
    member.round()
    held = certificate(member)
    member.server.stop(0)
    member.hub.store.close()
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (member.hub.home / name).unlink(missing_ok=True)
    before.rename(member.hub.home / "store.db")
    member.hub.store = Store.open(member.hub.home)
    member.serve_anew()
    assert member.connects()
    assert member.hub.store.enrolment("north").certificate_pem == held
    # One of another membership is not known again.
    key, csr = new_tls_identity("north")
    other = member.hub.authority.issue(csr, "north", serial=new_serial("another request"))
    with pytest.raises(CertificateRefusal), member.desk().egress(cert_pem=other, key_pem=key, attempts=1) as egress:
        egress.status("small")
