"""Whose clock is believed: what each side signs of its own, and what is not issued on one clock alone."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from stage.both_sides.clocks import DAY, NOW, judged, seen
from stage.both_sides.service import LEAD, SMALL, Hub
from stage.hospital_side.site_desk import hospital  # noqa: F401

from coordinator import cli
from coordinator.config import CoordinatorConfig
from coordinator.services.authority import SERVER_DAYS, Authority, _builder, _name, _pem
from coordinator.services.clocks import REMEMBERED, SeenClocks
from shared.base.canonical import canonical_json
from shared.base.keys import Envelope, SigningKey, write_private
from shared.errors import CertificateRefusal, IntegrityRefusal, ParameterError, ReplayRefusal, SignatureRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.wire.clocks import CLOCK_TYPE, ClockReading, open_reading, utc_now
from shared.wire.signed_messages import ENROLMENT_TYPE, EnrolmentRequest
from shared.wire.site_messages import EnrolRequest, SignedDocument
from shared.wire.transport import Call, Peer
from site_agent.decide import attending
from site_agent.decide.plans import AgentNow
from site_agent.desk import open_desk
from site_agent.egress import AcknowledgedReplies, Egress

YEAR = 390 * DAY


@pytest.fixture
def hub(tmp_path):
    always = dt.date(2000, 1, 1), dt.date(2999, 1, 1)
    study = StudyPlan(
        study="small",
        version=1,
        title="A small study",
        purpose="To tell the time.",
        coordinator="hub",
        expires=always[1],
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1e5),
        waves=(Wave(number=1, opens=always[0], closes=always[1]),),
        dictionary=SMALL,
    )
    made = Hub(tmp_path / "hub", study, "north", "south")
    yield made
    made.store.close()


@pytest.mark.fault("F15")
@pytest.mark.parametrize(
    ("verdict", "believed", "word"),
    [
        (judged(seen("a", 3.0)), True, "1 of 1"),
        (judged(seen("a", 3.0), seen("b", -9e6)), True, "1 of 2"),
        (judged(seen("a", 3.0), seen("b", -9e6), seen("c", -9e6)), False, "b is 104 days behind"),
        (judged(seen("a", 2 * 86400.0)), False, "a is 2 days ahead"),
        (judged(seen("a", 3.0, days=20), seen("b", 3.0, days=-5)), False, "b was heard on"),
        (judged(seen("a", 3.0), seen("b", 3.0, days=-5)), True, "1 of 1"),
        (judged(seen("a", 2 * 86400.0), word=NOW - 3 * DAY), True, "a person"),
        (judged(seen("a", 2 * 86400.0), word=NOW - 9 * DAY), False, "a is 2 days ahead"),
        (judged(seen("a", 0.0), now=NOW + YEAR), False, "nobody else has seen"),
        (judged(seen("a", 0.0, days=-390)), False, "a was heard on 2027-12-18"),  # it went back, or was ahead before
        (judged(seen("a", 0.0, days=-390), seen("b", 1.0)), True, "1 of 1"),
        (judged(seen("a", 0.0, days=-390), vouched=NOW - 9 * DAY), False, "a was heard on"),  # nor lately set up
        (judged(seen("a", 0.0, days=-390), word=NOW - DAY), True, "a person"),
        (judged(vouched=NOW - 9 * DAY, word=NOW + 390 * DAY), True, "set up"),
        (judged(vouched=NOW - REMEMBERED * DAY), True, "set up"),
        (judged(vouched=NOW - (REMEMBERED + 1) * DAY), False, "nobody else has seen"),
        (judged(now=NOW + 4000 * DAY, word=NOW + 4000 * DAY), False, "after the authority's own"),
        (judged(now=NOW - 401 * DAY), False, "before the authority's own"),
    ],
)
def test_a_clock_is_believed_by_what_others_see(verdict, believed, word):
    assert verdict.believed is believed
    assert word in verdict.why


@pytest.mark.fault("F15")
def test_a_persons_word_forgets_what_was_heard_while_this_clock_was_ahead(hub):
    clocks, now = SeenClocks(hub.store, hub.authority.certificate), utc_now()
    clocks.note("north", now - 20 * DAY, now - 20 * DAY)
    clocks.note("south", now + YEAR, now + YEAR)
    assert not clocks.verdict(now).believed, "it went back, for all that is known"
    clocks.confirm(now, now, dry_run=True)
    assert len(clocks.readings()) == 2
    clocks.confirm(now, now)
    assert [one.site for one in clocks.readings()] == ["north"]
    assert clocks.verdict(now + 20 * DAY).believed, "by north, and longer than a word counts"


def test_a_site_measures_its_clock_against_the_time_that_the_coordinator_signs_and_is_measured_itself(hub):
    ahead = 2 * DAY + dt.timedelta(minutes=10)
    with hub.serve() as server, hub.egress("north") as egress:
        right = egress.clock("north", hub.sites["north"].release)
        assert (right.state, round(right.seconds)) == ("agree", 0)
        wrong = egress.clock("north", hub.sites["north"].release, now=lambda: utc_now() + ahead)
        assert (wrong.state, wrong.words) == ("wrong", "2 days ahead")
        (kept,) = server.service.clocks.readings()
    assert (kept.site, kept.state) == ("north", "wrong")
    assert kept.offset == pytest.approx(ahead.total_seconds(), abs=5)


def test_a_reading_of_another_site_key_or_question_is_refused(hub):
    north, south = hub.sites["north"].release, hub.sites["south"].release
    with hub.serve(), hub.client("north") as client:

        def ask(reading: ClockReading, key: SigningKey) -> Envelope:
            reply = client.call("Clock", SignedDocument(envelope=reading.signed(key).to_bytes()), timeout=60)
            return Envelope.from_bytes(reply.envelope)

        first, second = ClockReading.question("north", NOW), ClockReading.question("north", NOW)
        with pytest.raises(SignatureRefusal):
            ask(first, south)
        with pytest.raises(ReplayRefusal):
            ask(ClockReading.question("south", NOW), north)
        answer, witness = ask(first, north), hub.authority.witness.public
        assert open_reading(answer, witness, question=first).site == "north"
        with pytest.raises(IntegrityRefusal, match="question that was asked"):
            open_reading(answer, witness, question=second)
        with pytest.raises(SignatureRefusal):
            open_reading(answer, north.public, question=first)


@pytest.mark.parametrize("time", ["2026-11-23T12:00:00Z", "2026-13-23T12:00:00.000Z", "", "0000-01-01T00:00:00.000Z"])
def test_a_reading_that_is_no_time_is_refused(time):
    with pytest.raises(IntegrityRefusal):
        ClockReading(site="north", nonce="0" * 32, time=time)


def test_an_invitation_is_told_the_time_and_what_it_says_is_not_kept(hub):
    key = SigningKey.generate()
    with hub.serve() as server:
        pinned = AcknowledgedReplies(hub.authority.witness.public, "west", hub.home / "west.jsonl")
        with Egress.from_invitation(hub.invite("west"), witness=pinned) as egress:
            assert egress.clock("west", key, now=lambda: utc_now() + DAY).words == "24 hours ahead"
        assert server.service.clocks.readings() == ()


@pytest.mark.fault("F15")
def test_a_year_ahead_alone_renews_nothing_and_a_clock_set_right_serves_on(hub, caplog):
    before = hub.authority.server_certificate
    hub.store.revoke_site("north")
    hub.join("north")
    hub.store.forget_certificate("north")
    with hub.serve(now=lambda: utc_now() + YEAR) as server:
        for _ in range(3):
            with hub.egress("south") as egress:  # a connection asks for the certificate
                egress.status(hub.plan.study)
        assert hub.authority.server_certificate == before
        assert server.service.may_issue() is False
        with pytest.raises(CertificateRefusal, match="others see"):
            join(hub, server)
        assert caplog.text.count("no certificate is issued or renewed") == 1
    with hub.serve() as server:
        assert join(hub, server)


def join(hub: Hub, server) -> str:
    """What a site that was accepted is answered when it asks for its certificate."""
    keys = hub.sites["north"]
    request = canonical_json(
        EnrolmentRequest(
            site="north",
            csr_pem=keys.identity[1],
            release_key=keys.release.public,
            approvers={"steward": keys.steward.public},
        ).to_canonical()
    )
    asked = Envelope.sign(ENROLMENT_TYPE, request, [keys.release])
    call = Call(peer=Peer(role="enrol", site="north", serial="1"))
    return server.service.enrol(call, EnrolRequest(token=hub.token, envelope=asked.to_bytes())).certificate_pem


def test_what_is_renewed_is_valid_by_the_clock_of_today_as_well(hub):
    """Where the sites' clocks were ahead too, say: the certificate is dated from when the authority was made."""
    later = Authority.load(hub.home, now=lambda: utc_now() + YEAR)
    before = later.server()
    assert later.server(lambda: True).cert_pem == before.cert_pem, "renewed once"
    made = hub.authority.server_certificate
    assert made.not_valid_before_utc == hub.authority.certificate.not_valid_before_utc
    assert made.not_valid_after_utc > utc_now() + YEAR + 300 * DAY
    with hub.serve(), hub.egress("north") as egress:
        assert egress.status(hub.plan.study) == ()
    _, csr = hub.sites["north"].identity
    ahead = x509.load_pem_x509_certificate(later.issue(csr, "north").encode())
    assert ahead.not_valid_before_utc < utc_now()


def coordinator(capsys, hub: Hub, *words: str) -> tuple[int, dict]:
    config = CoordinatorConfig(home=hub.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
    (hub.home / "coordinator.toml").write_text(config.to_toml())
    (hub.home / "keys").mkdir(exist_ok=True)
    (hub.home / "keys/lead.pub").write_text(LEAD.public.hex)
    capsys.readouterr()
    code = cli.main(["--home", str(hub.home), *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def false_year(hub: Hub) -> None:
    """A server's certificate as an earlier version made it with its clock a year ahead."""
    key, now = ec.generate_private_key(ec.SECP256R1()), utc_now()
    made = _builder(_name("hub"), hub.authority.certificate.subject, key.public_key(), now + YEAR, now + 2 * YEAR)
    places = hub.authority.server_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    made = made.add_extension(places.value, critical=False).sign(hub.authority.key, hashes.SHA256())
    pem = made.public_bytes(Encoding.PEM)
    write_private(hub.home / "ca/server.pem", _pem(key) + pem)


@pytest.mark.fault("F14", "F15")
def test_a_certificate_of_a_false_year_is_found_and_made_anew(hub, capsys):
    false_year(hub)
    code, answer = coordinator(capsys, hub, "doctor")
    assert code == 21
    (line,) = [one for one in answer["checks"] if one["state"] == "fail"]
    assert "made by a clock that was ahead" in line["detail"]
    assert "clock repair" in line["fix"]
    assert coordinator(capsys, hub, "clock", "repair", "--dry-run")[1]["certificates"][0]["made_anew"] is False
    assert hub.authority.server_certificate.not_valid_before_utc > utc_now()
    assert coordinator(capsys, hub, "clock", "repair")[1]["certificates"][0]["made_anew"] is True
    made = hub.authority.server_certificate
    assert made.not_valid_before_utc < utc_now() < made.not_valid_after_utc < utc_now() + (SERVER_DAYS + 1) * DAY
    assert hub.authority.server_names == ["127.0.0.1"]
    assert coordinator(capsys, hub, "doctor")[0] == 0
    assert coordinator(capsys, hub, "clock", "repair")[1]["certificates"] == []


def test_a_certificate_that_its_site_could_not_use_yet_is_issued_anew_and_one_in_use_is_named(hub, capsys):
    long = Authority.load(hub.home, now=lambda: utc_now() + YEAR)
    for name in ("north", "south"):
        request = hub.store.enrolment(name).csr_pem
        assert hub.store.forget_certificate(name)
        hub.store.set_certificate(name, request, long.issue(request, name))
    shown = x509.load_pem_x509_certificate(hub.store.enrolment("south").certificate_pem.encode())
    hub.store.arrived("south", f"{shown.serial_number:x}")
    said = {one["whose"]: one["made_anew"] for one in coordinator(capsys, hub, "clock", "repair")[1]["certificates"]}
    assert said == {"north": True, "south": False}
    assert hub.store.enrolment("north").certificate_pem == ""
    assert hub.store.enrolment("south").certificate_pem


@pytest.mark.fault("F15")
def test_nothing_is_issued_until_a_person_confirms_a_clock_that_others_contradict(hub, capsys):
    clocks = SeenClocks(hub.store, hub.authority.certificate)
    clocks.note("north", utc_now() - YEAR, utc_now())
    words = ("invite", "west", "--study", hub.plan.study, "--out", str(hub.home / "west.invitation"))
    code, answer = coordinator(capsys, hub, *words)
    assert (code, answer["refused"]["code"]) == (21, "E_CERT")
    assert "north is 390 days behind" in answer["refused"]["given"]
    assert coordinator(capsys, hub, "clock")[1]["believed"] is False
    assert coordinator(capsys, hub, "clock", "confirm", "--utc", "yesterday")[0] == 2
    code, answer = coordinator(capsys, hub, "clock", "confirm", "--utc", f"{utc_now() - YEAR:%Y-%m-%d %H:%M}")
    assert (code, answer["refused"]["code"]) == (2, "E_PARAMETER")
    now = f"{utc_now():%Y-%m-%d %H:%M}"
    assert coordinator(capsys, hub, "clock", "confirm", "--utc", now, "--dry-run")[1]["confirmed"] is False
    assert coordinator(capsys, hub, "clock")[1]["believed"] is False
    assert coordinator(capsys, hub, "clock", "confirm", "--utc", now)[1]["confirmed"] is True
    assert coordinator(capsys, hub, *words)[0] == 0
    (line,) = [
        one
        for one in coordinator(capsys, hub, "doctor")[1]["checks"]
        if one["state"] == "warn" and "north" in one["detail"]
    ]
    assert "north is 390 days behind this clock" in line["detail"]


def test_a_site_that_was_revoked_has_no_voice_about_the_clock(hub):
    clocks, now = SeenClocks(hub.store, hub.authority.certificate), utc_now()
    clocks.note("north", now - YEAR, now)
    assert not clocks.verdict(now).believed
    hub.store.revoke_site("north")
    clocks.note("south", now, now)
    assert [one.site for one in clocks.readings()] == ["south"]
    assert clocks.verdict(now).why == "1 of 1 sites agreed with it lately"


def test_a_person_cannot_confirm_a_time_that_the_authority_never_has(hub):
    clocks = SeenClocks(hub.store, hub.authority.certificate)
    with pytest.raises(CertificateRefusal):
        clocks.confirm(utc_now() + 11 * YEAR, utc_now() + 11 * YEAR)
    with pytest.raises(ParameterError):
        clocks.confirm(utc_now(), utc_now() + 2 * dt.timedelta(hours=1))


@pytest.mark.fault("F15")
def test_doctor_of_a_site_two_days_ahead_is_red_and_run_says_so(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    assert "✓ clock" in hospital("doctor")
    hospital.hub.ahead = 300.0
    assert "! clock" in hospital("doctor")
    hospital.hub.ahead = 2 * 86400.0
    text = hospital("doctor", expect=21)
    assert "2 days ahead of the time that the coordinator signs" in " ".join(text.split())
    assert "clock differs" in hospital("run", "--once", "--dry-run", expect=21)
    told = []
    settings = {"site": None, "now": AgentNow(version="1", today=dt.date(2026, 1, 5)), "dry_run": True}
    attending.attend(open_desk(hospital.home), say=told.append, **settings)
    assert [(one.what, one.code) for one in told if one.what == "clock differs"] == [("clock differs", "E_CERT")]


def test_doctor_says_that_a_clock_was_compared_with_nobodys(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    hospital.hub.down = True
    text = " ".join(hospital("doctor", expect=20).split())
    assert "! clock" in text
    assert "compared with nobody's: it does not answer" in text


def test_a_signed_reading_is_nothing_else(hub):
    reading = ClockReading.question("north", NOW)
    envelope = reading.signed(LEAD)
    assert envelope.payload_type == CLOCK_TYPE
    assert open_reading(envelope, LEAD.public).when == NOW


def test_a_sites_certificate_that_has_ended_is_renewed_late_and_no_site_is_to_be_revoked_for_it(hub, capsys):
    key, now = ec.generate_private_key(ec.SECP256R1()), utc_now()
    subject, made = hub.authority.certificate.subject, _name("north")
    ended = _builder(made, subject, key.public_key(), now - YEAR, now - DAY).sign(hub.authority.key, hashes.SHA256())
    request = hub.store.enrolment("north").csr_pem
    assert hub.store.forget_certificate("north")
    hub.store.set_certificate("north", request, ended.public_bytes(Encoding.PEM).decode())
    code, answer = coordinator(capsys, hub, "doctor")
    lines = [one for one in answer["checks"] if "north" in one["detail"]]
    assert code == 0
    assert [one["fix"].partition(";")[0] for one in lines] == ["north runs site-agent renew --late"]
    assert not [one for one in answer["checks"] if "revoke" in one["fix"]]
    assert coordinator(capsys, hub, "clock")[1]["misdated"] == []
    assert coordinator(capsys, hub, "clock", "repair")[1]["certificates"] == []
