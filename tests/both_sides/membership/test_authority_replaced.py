"""A certificate authority whose key is in other hands: another takes its place, and nothing that it signs counts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from stage.both_sides.joined import Joined, JoinedSite
from stage.hospital_side.recovery import PLAN
from stage.processes.theatre import exit_code

from coordinator.services.authority import Authority, replace_authority, rotate
from coordinator.services.collect.server import CoordinatorServer
from shared.base.keys import Envelope, SigningKey
from shared.errors import CertificateRefusal, Refusal, SignatureRefusal, StateRefusal
from shared.membership.authorities import AUTHORITY_REPLACEMENT_TYPE, AuthorityReplacement
from shared.membership.leads import Leads
from shared.wire.certificates import LateAnswer, trusted
from site_agent import identity
from site_agent.decide.joining import renewal
from site_agent.egress import new_tls_identity
from site_agent.show.network_path import walk

REASON = "the server was broken into"


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as made:
        yield made


def replaced(hub: Joined, *more: object) -> str:
    """The fingerprint of the authority that the leads have put in the place of the one before."""
    return hub.lead("ca", "replace", "--reason", REASON, *more)["fingerprint"]


def answered(hub: Joined, north: JoinedSite, name: str = "answer") -> Path:
    """The lead's answer to a site's request for its next certificate, both by hand."""
    request, answer = hub.folder / f"{name}.request", hub.folder / name
    shown = north("renew", "--late", "--out", request)["fingerprint"]
    hub.lead("renew-late", north.name, "--request", request, "--out", answer, "--fingerprint", shown)
    return answer


def taken(north: JoinedSite, answer: Path, fingerprint: str, **how: int) -> dict:
    return north("renew", "--late", "--answer", answer, "--authority", fingerprint, **how)


def replaced_for(hub: Joined, north: JoinedSite) -> str:
    """Replace the authority, and have a site pin the new one; its fingerprint."""
    fingerprint = replaced(hub)
    taken(north, answered(hub, north), fingerprint)
    return fingerprint


def connects(north: JoinedSite) -> bool:
    try:
        with north.desk.egress(attempts=1) as egress:
            return egress.status("mini") == ()
    except CertificateRefusal:
        return False


def chained(hub: Joined) -> Authority:
    return Authority.load(hub.home)


def pins(north: JoinedSite) -> tuple[str, ...]:
    return identity.pinned(north.desk.config)


def test_a_site_comes_back_by_a_fingerprint_on_the_telephone_and_everybody_reads_of_it_later(hub):
    north, south = hub.site("north"), hub.site("south")
    north.approve_plan("mini")
    old = chained(hub)
    assert connects(north)
    assert hub.lead("ca", "replace", "--reason", REASON, "--dry-run") == {
        "before": old.fingerprint, "fingerprint": None, "ends": None, "sites": ["north", "south"], "replaced": False,
    }  # fmt: skip
    fingerprint = replaced(hub)
    assert not connects(north), "the server, which was not started again, shows and believes the new one alone"
    told = walk(north.desk.config.address, pins(north), {})
    assert (told.step, "authority was replaced (site-agent renew --late" in told.ask) == ("authority", True)
    chain = chained(hub)
    assert trusted((*chain.before, chain.ca_pem), chain.now()) == chain.ca_pem != old.ca_pem
    answer = answered(hub, north)
    assert taken(north, answer, fingerprint, expect=0)["renewed"]
    assert connects(north)
    assert pins(north) == (chained(hub).ca_pem,)
    assert north("doctor")["ok"]
    assert not connects(south), "each site for itself"
    assert hub.lead("ca")["to_come"] == ["south"]
    hub.site("west")  # whoever is invited from now on pins the new one
    # The log, `ca`, and every export of the site say so.
    (entry,) = [one for one in map(json.loads, (e.entry for e in hub.store.log())) if "authority" in one["kind"]]
    assert (entry["before"], entry["after"], entry["reason"]) == (old.fingerprint, fingerprint, REASON)
    assert hub.store.verify_log() == hub.store.entries()
    (said,) = hub.lead("ca")["replaced"]
    assert (said["before"], said["reason"]) == (old.fingerprint, REASON)
    north("audit", "export", "mini", "--out", hub.folder / "export")
    told = subprocess.run(
        [sys.executable, "-I", "verify.py"], cwd=hub.folder / "export", capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout
    assert f"the coordinator's authority was replaced on {said['day']}" in told.stdout
    assert REASON in told.stdout


def test_what_the_stolen_key_signs_afterwards_counts_for_nothing(hub):
    """Its thief has the old authority whole, the witness key too: certificates, a server, a word that follows it."""
    north, south = hub.site("north"), hub.site("south")
    thief = replace(chained(hub), folder=hub.folder / "thief" / "ca")
    shutil.copytree(hub.home / "ca", thief.folder)
    before, key = north.desk.config.certificate.read_text(), north.desk.config.tls_key.read_text()
    with south.desk.egress(attempts=1) as open_before:
        assert open_before.status("mini") == ()
        replaced_for(hub, north)
        with pytest.raises(CertificateRefusal):
            open_before.status("mini")
    # As a site, over the certificate of before and over one that it makes for itself.
    serial = hub.store.enrolment("north").certificate_pem
    own_key, csr = new_tls_identity("north")
    for pem, by in ((before, key), (thief.issue(csr, "north"), own_key)):
        with pytest.raises(CertificateRefusal), north.desk.egress(cert_pem=pem, key_pem=by, attempts=1) as egress:
            egress.status("mini")
    assert hub.store.enrolment("north").certificate_pem == serial
    # As the coordinator, on its port: with the old folder, which never heard of a replacement.
    port = hub.server.port
    hub.server.stop(0)
    hub.home.joinpath("ca").rename(hub.home / "ca.away")
    shutil.copytree(thief.folder, hub.home / "ca")
    hub.server = CoordinatorServer(hub.home, f"127.0.0.1:{port}")
    assert not connects(north)
    assert connects(south), "a site to which nobody has telephoned believes it still"
    hub.server.stop(0)
    shutil.rmtree(hub.home / "ca")
    hub.home.joinpath("ca.away").rename(hub.home / "ca")
    hub.server = CoordinatorServer(hub.home, f"127.0.0.1:{port}")
    assert connects(north)
    # A planned change that the old one signs leads nowhere from what the site pins now, nor does what was pinned.
    stolen, said = rotate(Authority.load(thief.folder.parent))
    assert said is not None
    with pytest.raises(CertificateRefusal):
        identity.pin(north.desk.config, stolen.statements)
    assert pins(north) == (chained(hub).ca_pem,)


def test_a_planned_change_goes_on_from_the_new_authority(hub):
    north, south = hub.site("north"), hub.site("south")
    fingerprint = replaced_for(hub, north)
    assert hub.lead("ca", "rotate")["rotated"]
    north("run", "--once")
    assert len(pins(north)) == 2
    assert connects(north)
    assert len(hub.lead("ca")["before"]) == 1
    # A site that was away over both hears the fingerprint of the one that began anew, and follows from there.
    request, answer = hub.folder / "south.request", hub.folder / "south.answer"
    shown = south("renew", "--late", "--out", request)["fingerprint"]
    words = ("--request", request, "--out", answer, "--fingerprint", shown)
    assert hub.lead("renew-late", "south", *words)["authority"] == fingerprint != chained(hub).fingerprint
    assert taken(south, answer, chained(hub).fingerprint, expect=2)["refused"]["given"] == "another fingerprint"
    taken(south, answer, fingerprint)
    assert (len(pins(south)), connects(south)) == (2, True)


def forged(hub: Joined, answer: Path, **changes: object) -> list[bytes]:
    """Answers that the witness key signs (the coordinator is hostile, or broken into) and that no site may take."""
    authority, lead = chained(hub), hub.lead_key()
    said = LateAnswer.from_bytes(Envelope.from_bytes(answer.read_bytes()).payload)
    (honest,) = [Envelope.from_bytes(one.encode()) for one in said.statements]
    word, stranger = AuthorityReplacement.said(honest), SigningKey.generate()
    own = Authority.create(hub.folder / "own", coordinator="hub", names=["127.0.0.1"])
    envelopes = [
        word.signed([authority.witness]),  # no lead
        word.signed([stranger, authority.witness]),
        word.signed([lead]),  # the leads' files alone
        word.signed([lead, stranger]),
        replace(word, coordinator="other").signed([lead, authority.witness]),
        replace(word, ca_pem=own.ca_pem).signed([lead, authority.witness]),  # another than is read out
        replace(honest, payload=replace(word, reason="none").to_bytes()),
    ]
    made = [replace(said, statements=(one.to_bytes().decode(),)).signed(authority.witness) for one in envelopes]
    made.append(said.signed(stranger))
    return [one.to_bytes() for one in made]


def test_another_authority_is_pinned_by_nobody_who_did_not_hear_its_fingerprint(hub):
    north, south = hub.site("north"), hub.site("south")
    old, stale = pins(north), answered(hub, north, "stale")
    fingerprint = replaced(hub)
    told = taken(north, stale, fingerprint, expect=2)["refused"]
    assert told["given"] == "an answer that knows of no other than the pinned one"
    answer, other = answered(hub, north), answered(hub, south, "other")
    seq = len(north.desk.ledger.entries())
    assert north.refused("renew", "--late", "--answer", answer, expect=2)["given"] == "no fingerprint"
    wrong = fingerprint.replace(fingerprint[0], "f" if fingerprint[0] != "f" else "0")
    assert taken(north, answer, wrong, expect=2)["refused"]["given"] == "another fingerprint"
    assert "another" in taken(north, other, fingerprint, expect=30)["refused"]["given"]
    for data in forged(hub, answer):
        with pytest.raises(Refusal):
            renewal.take_late(north.desk, data, authority=fingerprint)
        assert pins(north) == old
    assert len(north.desk.ledger.entries()) == seq, "nothing is noted of what was refused"
    # Over the channel no such word is taken at all.
    (word,) = chained(hub).replaced
    with pytest.raises(Refusal):
        identity.pin(north.desk.config, [word])
    assert taken(north, answer, fingerprint)["renewed"]
    with pytest.raises(Refusal):
        identity.pin(north.desk.config, [word])


def test_as_many_leads_must_sign_as_sites_ask_for_and_a_site_that_was_away_follows_those_who_came_since(
    tmp_path, monkeypatch, capsys
):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as hub:
        north = hub.site("north")
        hub.lead("lead", "add", "b", "--threshold", "2")  # north is away, and hears of it with the authority
        hub.lead("ca", "replace", "--reason", REASON, "--key", "lead", expect=10)
        assert chained(hub).replaced == ()
        fingerprint = replaced(hub, "--key", "lead", "--key", "b")
        (word,) = chained(hub).replaced
        assert len(Envelope.from_bytes(word).signatures) == 3
        leads = Leads(keys=hub.members().leads(hub.home).keys, threshold=2)
        with pytest.raises(SignatureRefusal):
            replace_authority(chained(hub), reason=REASON, leads=leads, keys=[hub.lead_key()])
        taken(north, answered(hub, north), fingerprint)
        assert len(north.desk.config.leads) == 2
        assert connects(north)
        hub.lead("plan", "cosign", "mini", "--key", "b")
        north.approve_plan("mini")
        assert north("audit", "verify")["ok"]


def test_an_authority_that_was_replaced_never_comes_back(hub):
    north = hub.site("north")
    first = replaced(hub)
    early = chained(hub).replaced
    taken(north, answered(hub, north), first)
    second = replaced(hub)
    taken(north, answered(hub, north, "second"), second)
    assert hub.lead("ca")["fingerprint"] == second
    # Whoever stole the second one's key, and the witness key, shows the word by which it once was pinned.
    request = hub.folder / "again.request"
    north("renew", "--late", "--out", request)
    asked = Envelope.from_bytes(request.read_bytes())
    answer = LateAnswer(
        site="north", request=asked.digest, certificate_pem="-", statements=(early[0].decode(),)
    ).signed(chained(hub).witness)
    (hub.folder / "again").write_bytes(answer.to_bytes())
    told = taken(north, hub.folder / "again", first, expect=30)["refused"]
    assert "must not come back" in told["must"]
    assert [one.after for one, _ in north.desk.ledger.membership().authorities] == [first, second]


@pytest.mark.parametrize("place", ["before_key", "before_statement", "after_statement", "before_commit", "logged"])
def test_killed_while_it_replaces_the_authority_a_coordinator_has_one_and_its_log_says_which(hub, place):
    north, old = hub.site("north"), chained(hub)
    argv = ("--home", hub.home, "ca", "replace", "--reason", REASON)
    assert exit_code("coordinator.cli", *argv, place=f"authority.{place}") == -signal.SIGKILL
    done = place in ("after_statement", "before_commit", "logged")
    assert (chained(hub).fingerprint != old.fingerprint) == done
    assert connects(north) == (not done), "the server that runs goes by what is in force, and logs it"
    fingerprint = chained(hub).fingerprint if done else replaced(hub)
    kinds = [json.loads(entry.entry)["kind"] for entry in hub.store.log()]
    if place not in ("after_statement", "before_commit"):
        assert kinds.count("authority_replaced") == 1
    taken(north, answered(hub, north), fingerprint)
    kinds = [json.loads(entry.entry)["kind"] for entry in hub.store.log()]
    assert kinds.count("authority_replaced") == 1
    assert connects(north)
    assert hub.store.verify_log() == hub.store.entries()


@pytest.mark.parametrize("place", ["noted", "before_pin", "pinned"])
def test_killed_while_it_pins_another_authority_a_site_pins_it_when_asked_again(hub, place):
    north = hub.site("north")
    fingerprint = replaced(hub)
    answer = answered(hub, north)
    argv = ("renew", "--late", "--answer", answer, "--authority", fingerprint, "--home", north.home)
    assert exit_code("site_agent.cli", *argv, place=f"authority.{place}") == -signal.SIGKILL
    taken(north, answer, fingerprint)
    assert connects(north)
    assert len(north.desk.ledger.membership().authorities) == 1, "noted once"
    assert north.desk.config.ca_fingerprint == fingerprint
    assert north.desk.ledger.membership().authorities[0][1].payload_type == AUTHORITY_REPLACEMENT_TYPE


def test_of_four_who_replace_the_authority_at_once_one_does(hub):
    here, key, leads = chained(hub), hub.lead_key(), hub.members().leads(hub.home)

    def done(_: int) -> bool:
        try:
            replace_authority(here, reason=REASON, leads=leads, keys=[key])
        except StateRefusal:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(done, range(4))) == [False, False, False, True]
    assert len(chained(hub).replaced) == 1
    # What was made is logged by the server, or by whatever verb comes next, once.
    replaced(hub)
    assert hub.store.verify_log() == hub.store.entries()
    kinds = [json.loads(entry.entry)["kind"] for entry in hub.store.log()]
    assert kinds.count("authority_replaced") == 2


def test_a_coordinator_put_back_from_before_the_replacement_keeps_it_and_logs_it_again(hub):
    archive = hub.folder / "backup"
    hub.lead("backup", archive)
    north = hub.site("north")
    hub.server.stop(0)
    fingerprint = replaced(hub)
    hub.put_back(archive)
    assert chained(hub).fingerprint == fingerprint
    kinds = [json.loads(entry.entry)["kind"] for entry in hub.store.log()]
    assert kinds.count("authority_replaced") == 1
    assert not connects(north)
