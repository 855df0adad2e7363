"""A new certificate authority, followed without anybody being asked, and every one that must not be followed."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cryptography import x509
from stage.both_sides.membership import Clock, Membership
from stage.both_sides.service import LEAD

from coordinator import cli
from coordinator.config import CoordinatorConfig
from coordinator.services.authority import WARNED_BEFORE_END, Authority, rotate, server_credentials
from shared.base.clock import utc_now
from shared.base.keys import SigningKey
from shared.errors import CertificateRefusal, IntegrityRefusal, SchemaRefusal, SignatureRefusal, StateRefusal
from shared.plans.invitation import certificate_fingerprint
from shared.wire.certificates import AuthorityStatement, authorities_from, require_issued_by, trusted
from site_agent import identity
from site_agent.decide.joining import renewal
from site_agent.show.network_path import walk


@pytest.fixture
def clock(tmp_path, monkeypatch):
    return Clock(tmp_path, monkeypatch)


@pytest.fixture
def member(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("coordinator.services.collect.service.RENEWALS_A_DAY", 1000)
    made = Membership(tmp_path, clock, "north", "south")
    clock.turn(2)  # since they joined
    yield made
    made.close()


def coordinator(capsys, member: Membership, *words: str) -> tuple[int, dict]:
    home = member.hub.home
    if not (home / "coordinator.toml").exists():
        config = CoordinatorConfig(home=home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (home / "coordinator.toml").write_text(config.to_toml())
    capsys.readouterr()
    code = cli.main(["--home", str(home), *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def authority_of(member: Membership) -> Authority:
    return Authority.load(member.hub.home)


def test_a_change_of_authority_passes_while_both_sides_run_and_nobody_does_anything(member, clock, capsys):
    first = member.hub.authority
    config = member.desk().config
    assert coordinator(capsys, member, "ca", "rotate", "--dry-run")[1]["rotated"] is False
    assert authority_of(member).fingerprint == first.fingerprint
    code, answer = coordinator(capsys, member, "ca", "rotate")
    assert (code, answer["rotated"]) == (0, True)
    # The server, which was not started again, shows the new one's certificate; who pins the old one still connects.
    assert member.connects()
    assert walk(config.address, identity.pinned(config), {}).step == "way", "its chain leads to the pinned one"
    assert member.hub.authority.current().fingerprint == answer["fingerprint"] != first.fingerprint
    require_issued_by(server_credentials(member.hub.home).cert_pem, [authority_of(member).ca_pem])
    assert "would pin the coordinator's new authority" in member.round(dry_run=True)
    assert identity.pinned(config) == (first.ca_pem,)
    said = member.round()
    assert "pinned the coordinator's new authority" in said
    assert [certificate_fingerprint(pem) for pem in identity.pinned(config)] == [
        first.fingerprint,
        answer["fingerprint"],
    ]
    assert config.ca.read_text() == first.ca_pem, "the invitation's stays"
    assert "renewed its certificate" in member.round(), "under the new one, at the next round"
    require_issued_by(config.certificate.read_text(), identity.pinned(config)[-1:])
    assert "renewed its certificate" not in member.round()
    # The site that has not followed yet loses nothing, for as long as its certificate lives.
    clock.turn(190)
    assert member.connects("south")
    assert "renewed its certificate" in {**member.round("south"), **member.round("south")}
    ended = [pem for pem in identity.pinned(config) if first.fingerprint == certificate_fingerprint(pem)]
    assert ended
    assert trusted(identity.pinned(config), first.ends + dt.timedelta(days=1)) == authority_of(member).ca_pem


def test_authorities_follow_one_another_past_the_end_of_the_first(tmp_path, clock, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("coordinator.services.authority.CA_DAYS", 900)  # the first one's
        member = Membership(tmp_path, clock, "north")
    first = member.hub.authority
    while utc_now() < first.ends + dt.timedelta(days=60):
        clock.turn(230)
        said = member.round()
        assert "not connected" not in said, said
        here = authority_of(member)
        if (here.ends - utc_now()).days < WARNED_BEFORE_END:
            rotate(here)
            member.round()  # pins it
            member.round()  # is renewed under it
    assert member.connects()
    assert len(identity.pinned(member.desk().config)) == 2
    assert first.ca_pem not in trusted(identity.pinned(member.desk().config), utc_now())
    believed = member.server.service._in_force()
    assert trusted((*believed.before, believed.ca_pem), utc_now()) == authority_of(member).ca_pem
    member.close()


def test_two_changes_are_followed_at_once_by_a_site_that_saw_neither(member):
    for _ in range(2):
        rotate(authority_of(member))
    assert member.connects(), "TLS follows two cross-signatures"
    member.round()
    member.round()
    chain = identity.pinned(member.desk().config)
    assert len(chain) == 3
    require_issued_by(member.desk().config.certificate.read_text(), chain[-1:])
    assert member.connects()


def test_a_newly_invited_site_pins_the_new_authority_alone(member):
    made, _ = rotate(authority_of(member))
    invitation = made.invite("west", ["small"], address="127.0.0.1:1", leads=[SigningKey.generate().public])
    assert invitation.ca_fingerprint == made.fingerprint
    statements = made.statements
    assert authorities_from(invitation.ca_pem, statements, made.witness.public) == (made.ca_pem,)


def test_an_analyst_who_pins_the_first_authority_is_answered_after_two_changes(member):
    from coordinator.services.analysts import Analysts
    from shared.wire.analyst_messages import StudiesRequest
    from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
    from shared.wire.transport import SERVER_NAME, Client, Credentials

    member.server.stop(0)
    member.server = member.hub.serve(analysts="127.0.0.1:0")
    admitted = {"studies": ["small"], "role": "analyst", "days": 9, "today": utc_now().date()}
    _, token = Analysts(member.hub.store).add("ada", **admitted)
    for _ in range(2):
        rotate(authority_of(member))
    here = Credentials(ca_pem=member.hub.authority.ca_pem, token=token)
    address = f"127.0.0.1:{member.server.analysts_port}"
    settings = {"server_name": SERVER_NAME, "service": ANALYSIS_SERVICE, "methods": ANALYSIS}
    with Client(address=address, credentials=here, **settings) as client:
        assert b"small" in client.call("Studies", StudiesRequest(), timeout=60).json


def stranger(member: Membership, folder) -> tuple[Authority, AuthorityStatement]:
    """An authority that nobody has signed, and its own word that it follows the pinned one."""
    other = Authority.create(folder / "other", coordinator="hub", names=["127.0.0.1"])
    said = AuthorityStatement(
        coordinator="hub",
        before=member.hub.authority.fingerprint,
        ca_pem=other.ca_pem,
        cross_pem=other.ca_pem,
        day="2026-01-01",
    )
    return other, said


def test_an_authority_that_the_pinned_one_has_not_signed_is_refused(member, tmp_path):
    config, witness = member.desk().config, member.hub.authority.witness
    other, said = stranger(member, tmp_path)
    made, honest = rotate(authority_of(member))
    assert honest is not None
    for offered in (
        said,
        replace(said, before=other.fingerprint),  # leads nowhere near
        replace(honest, ca_pem=other.ca_pem),
        replace(honest, cross_pem=other.ca_pem),
        replace(honest, cross_pem=made.ca_pem),
        replace(honest, cross_pem=made.issue(identity_request(), "north")),  # a site's certificate is no authority
        replace(honest, ca_pem="nonsense"),
    ):
        with pytest.raises(CertificateRefusal):
            identity.pin(config, [offered.signed(witness).to_bytes()])
    with pytest.raises(SignatureRefusal):
        identity.pin(config, [honest.signed(SigningKey.generate()).to_bytes()])
    with pytest.raises((SchemaRefusal, SignatureRefusal)):
        identity.pin(config, [b"nonsense"])
    assert identity.pinned(config) == (member.hub.authority.ca_pem,)
    assert identity.pin(config, made.statements)
    with pytest.raises(CertificateRefusal, match="another line"):
        identity.pin(config, [replaced_line(member).signed(witness).to_bytes()])


def identity_request() -> str:
    from site_agent.egress import new_tls_identity

    return new_tls_identity("north")[1]


def replaced_line(member: Membership) -> AuthorityStatement:
    """A second authority that the first one's key has signed: whoever stole that key and the witness key."""
    folder = member.folder / "stolen"
    shutil.copytree(member.hub.home / "ca", folder / "ca")
    for path in folder.glob("ca/ca-*"):
        path.unlink()
    _, said = rotate(Authority.load(folder))
    assert said is not None
    return said


def test_a_coordinator_that_offers_its_own_authority_is_refused_at_the_round_and_at_the_door(member, tmp_path):
    _, said = stranger(member, tmp_path)
    service = member.server.service
    offered = (said.signed(member.hub.authority.witness).to_bytes(),)
    service._authority = replace(service._authority, statements=offered)
    told = member.round()
    assert told["authority not followed"].startswith("E_CERT")
    assert member.connects()
    assert identity.pinned(member.desk().config) == (member.hub.authority.ca_pem,)
    # The same name, key and port, and a certificate of another authority: TLS itself refuses.
    foreign = Authority.create(tmp_path / "foreign", coordinator="hub", names=["127.0.0.1"])
    member.server.stop(0)
    for name in ("ca.pem", "ca.key", "server.pem"):
        (member.hub.home / "ca" / name).write_bytes((foreign.folder / name).read_bytes())
    member.serve_anew()
    with pytest.raises(CertificateRefusal):
        member.connects()


@pytest.mark.parametrize(
    "place", ["before_key", "before_statement", "after_statement", "before_server", "after_server"]
)
def test_a_change_that_was_interrupted_has_happened_or_not(member, monkeypatch, place):
    class Killed(BaseException):
        pass

    def reach(name):
        if name == f"authority.{place}":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("coordinator.services.authority.reach", reach)
        with pytest.raises(Killed):
            rotate(authority_of(member))[0].server()
    assert member.connects()
    here = authority_of(member)
    assert bool(here.before) == (place not in ("before_key", "before_statement"))
    made = here if here.before else rotate(here)[0]
    member.round()
    member.round()
    require_issued_by(member.desk().config.certificate.read_text(), [made.ca_pem])
    assert member.connects()


@pytest.mark.parametrize("place", ["before_pin", "after_pin"])
def test_a_site_killed_while_it_pins_an_authority_pins_it_at_the_next_round(member, monkeypatch, place):
    class Killed(BaseException):
        pass

    def reach(name):
        if name == f"renewal.{place}":
            raise Killed

    rotate(authority_of(member))
    with monkeypatch.context() as patched:
        patched.setattr("site_agent.identity.reach", reach)
        with pytest.raises(Killed):
            member.round()
    assert member.connects()
    member.round()
    assert len(identity.pinned(member.desk().config)) == 2


def test_pins_that_somebody_edited_are_told_and_the_invitations_own_stands(member):
    rotate(authority_of(member))
    config = member.desk().config
    member.round()
    path = config.ca.with_name("authorities.json")
    path.write_text('["nonsense"]')
    with pytest.raises((IntegrityRefusal, SchemaRefusal, SignatureRefusal)):
        identity.pinned(config)
    assert member.connects()
    member.round()
    assert len(identity.pinned(config)) == 2, "fetched again, and checked"


def test_an_authority_is_followed_once_and_never_after_its_end(member, clock):
    here = authority_of(member)
    rotate(here)
    with pytest.raises(StateRefusal, match="newest"):
        rotate(here)
    over = replace(authority_of(member), now=lambda: authority_of(member).ends + dt.timedelta(days=1))
    with pytest.raises(CertificateRefusal, match="still last"):
        rotate(over)


def test_the_servers_certificate_renews_itself_and_no_connection_is_lost(member, clock):
    """A call that runs goes on over the connection it has; the next connection gets the new certificate."""
    shown = x509.load_pem_x509_certificate(server_credentials(member.hub.home).cert_pem.encode())
    with member.desk().egress(attempts=1) as egress:
        assert egress.status("small") == ()
        clock.turn(210)
        with member.desk("south").egress() as other:
            other.clock("south", member.desk("south").release_key)
        assert member.connects("south")
        assert egress.status("small") == ()
    after = x509.load_pem_x509_certificate(server_credentials(member.hub.home).cert_pem.encode())
    assert after.serial_number != shown.serial_number
    assert after.not_valid_after_utc - utc_now() > dt.timedelta(days=390)
    context = ssl.create_default_context(cadata=member.hub.authority.ca_pem)
    context.check_hostname = False
    pem = ssl.get_server_certificate(("127.0.0.1", member.hub.port), ca_certs=None)
    assert x509.load_pem_x509_certificate(pem.encode()).serial_number == after.serial_number


def test_connections_that_find_the_servers_certificate_due_at_once_renew_it_once(member, clock):
    clock.turn(210)
    made, here = [], authority_of(member)

    def reach(name):
        made.append(name)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(8) as pool:
        patched.setattr("coordinator.services.authority.reach", reach)
        shown = {one.cert_pem for one in pool.map(lambda _: here.server(), range(8))}
    assert made == ["authority.before_server", "authority.after_server"]
    assert len(shown) == 1


def test_two_leads_who_change_the_authority_at_once_change_it_once(member):
    here = authority_of(member)

    def changed(_) -> bool:
        try:
            rotate(here)
        except StateRefusal:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(changed, range(4))) == [False, False, False, True]
    assert len(authority_of(member).before) == 1


def test_a_backup_holds_every_authority_and_one_from_before_the_newest_takes_that_from_the_home(member, tmp_path):
    from coordinator.services import backup

    config = CoordinatorConfig(home=member.hub.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
    (member.hub.home / "coordinator.toml").write_text(config.to_toml())
    how = {"leads": {"lead": LEAD.public}, "software": "0.2.0", "today": utc_now().date()}
    backup.back_up(config, tmp_path / "before", **how)
    rotate(authority_of(member))
    backup.back_up(config, tmp_path / "after", **how)
    settings = {"key": LEAD, "reason": "the disk failed", "day": lambda clocks: utc_now().date()}
    backup.restore(tmp_path / "after", tmp_path / "new", **settings)
    assert Authority.load(tmp_path / "new").fingerprint == authority_of(member).fingerprint
    # Sites have certificates of the newest: a backup from before it, put in the place of a home that has it, keeps it.
    backup.restore(tmp_path / "before", tmp_path / "new", replace=True, **settings)
    assert Authority.load(tmp_path / "new").fingerprint == authority_of(member).fingerprint


def test_a_coordinator_that_lost_its_new_authoritys_key_is_not_asked_for_ever(member, clock):
    """It was put back from before the change: the site pins both, and what the older one issues is believed."""
    rotate(authority_of(member))
    member.round()
    for path in (member.hub.home / "ca").glob("ca-2.*"):
        path.unlink()
    authority_of(member).renew_server(["127.0.0.1"])
    member.serve_anew()
    assert "renewed its certificate" in member.round(), "once: its day is that of the change, or later"
    assert renewal.due(member.desk().config) == ""
    assert member.connects()
    assert len(identity.pinned(member.desk().config)) == 2


def test_a_site_that_renews_before_it_has_seen_a_change_of_authority_follows_it_first(member):
    rotate(authority_of(member))
    renewal.renew(member.desk())
    assert member.connects()


def test_a_renewal_is_asked_at_once_under_the_new_authority(member):
    assert renewal.due(member.desk().config) == ""
    rotate(authority_of(member))
    member.round()
    assert renewal.due(member.desk().config) == "the coordinator's authority has changed"
