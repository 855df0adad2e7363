"""kill -9 of the coordinator while who takes part changes."""

from __future__ import annotations

import json
import signal

import pytest
from hurry import part_of_today
from stage.both_sides.joined import Joined
from stage.hospital_side.recovery import PLAN
from stage.processes.theatre import exit_code

from shared.base.keys import Envelope
from shared.membership.key_changes import snapshot_mark
from shared.wire.certificates import LateAnswer
from site_agent.desk import working_site
from site_agent.identity import pinned


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as made:
        yield made


def taken(hub: Joined, said: bytes, place: str = "") -> int:
    """Have a process take a change of keys, and die at `place`; its exit status."""
    (hub.folder / "said").write_bytes(said)
    return exit_code("stage.processes.steps", "change key", hub.home, hub.folder / "said", place=place)


@pytest.mark.sampled
def test_killed_while_it_takes_a_change_of_keys_a_coordinator_has_it_once_or_not_at_all(hub):
    north = hub.site("north")
    hub.server.stop(0)
    north("approver", "add", "dr-okoye", "--as", "dr-lind")
    (said,) = north.desk.ledger.membership().untold
    for place in part_of_today(("keys.before_log", "keys.before_commit"), 2):
        assert taken(hub, said.to_bytes(), place) == -signal.SIGKILL
        assert hub.members().key_changes("north") == ()
        assert set(hub.store.enrolment("north").approvers) == {"dr-lind"}
    assert taken(hub, said.to_bytes(), "keys.committed") == -signal.SIGKILL
    assert set(hub.store.enrolment("north").approvers) == {"dr-lind", "dr-okoye"}
    assert taken(hub, said.to_bytes()) == 0, "the same again changes nothing"
    assert hub.store.verify_log() == hub.store.entries() == 1


@pytest.mark.sampled
def test_killed_while_the_lead_allows_a_replacement_it_is_in_force_once_or_waits(hub):
    north = hub.site("north", "dr-lind", "dr-okoye")
    done = north("approver", "replace", "dr-lind", "--as", "dr-okoye")
    argv = ("--home", hub.home, "rekey", "north", "--fingerprint", done["fingerprint"])
    for place in part_of_today(("keys.before_log", "keys.before_commit"), 2):
        assert exit_code("coordinator.cli", *argv, place=place) == -signal.SIGKILL
        assert [said.name for said, _ in hub.members().waiting("north")] == ["dr-lind"]
    assert exit_code("coordinator.cli", *argv, place="keys.allowed") == -signal.SIGKILL
    assert hub.members().waiting("north") == ()
    hub.lead(*argv[2:], expect=2)
    north("grants")
    assert north.desk.ledger.membership().untold == ()
    assert hub.store.verify_log() == hub.store.entries()


def test_killed_while_it_changes_the_secret_of_persons_a_site_has_the_one_that_its_ledger_names(hub):
    north = hub.site("north")
    argv = ("rotate-key", "snapshot", "--as", "dr-lind")
    secrets = {snapshot_mark(north.desk.config.snapshot_key.read_bytes())}
    for number, place in enumerate(("snapshot.made", "snapshot.noted", "snapshot.replaced"), start=1):
        assert exit_code("site_agent.cli", *argv, "--home", north.home, place=place) == -signal.SIGKILL
        before = [said.new for said, _ in north.desk.ledger.membership().keys]
        assert len(before) == number - (place == "snapshot.made")
        if place == "snapshot.noted":  # a study that begins now begins under the secret that the ledger names
            assert snapshot_mark(working_site(north.desk, None).snapshot_key) == before[-1]
            assert snapshot_mark(north.desk.snapshot_key("mini")) == before[-1]
        if place == "snapshot.made":
            north(*argv)
        named = [said.new for said, _ in north.desk.ledger.membership().keys]
        assert named[: len(before)] == before
        assert len(named) == number, "what was noted is brought to its end, and nothing is noted twice"
        secrets.add(snapshot_mark(north.desk.config.snapshot_key.read_bytes()))
        assert snapshot_mark(north.desk.config.snapshot_key.read_bytes()) == named[-1]
    kept = {snapshot_mark(path.read_bytes()) for path in (north.home / "keys" / "snapshot").iterdir()}
    assert secrets - {named[-1]} <= kept, "studies that had begun go on under theirs"
    north("run", "--once")
    assert len(hub.members().key_changes("north")) == 3
    assert north("audit", "verify")["ok"]


@pytest.mark.parametrize("place", ["leads.committed", "leads.before_file"])
def test_killed_while_a_lead_joins_or_leaves_the_log_decides_and_the_files_follow(hub, place):
    north = hub.site("north")
    assert exit_code("coordinator.cli", "--home", hub.home, "lead", "add", "b", "--threshold", "2", place=place)
    assert len(hub.members().lead_changes()) == 1
    hub.lead("invite", "west", "--study", "mini", "--out", hub.folder / "west.invitation")
    assert set(hub.lead("lead", "list")["leads"]) == {"lead", "b"}
    assert hub.lead("lead", "list")["threshold"] == 2
    north("grants")
    assert len(north.desk.config.leads) == 2
    hub.lead("lead", "add", "c", "--key", "lead", "--key", "b")
    argv = ("lead", "retire", "b", "--key", "lead", "--key", "c")
    assert exit_code("coordinator.cli", "--home", hub.home, *argv, place=place) == -signal.SIGKILL
    hub.lead(*argv)
    assert set(hub.lead("lead", "list")["leads"]) == {"lead", "c"}
    assert (hub.home / "keys" / "retired" / "b.pem").exists()
    assert hub.store.verify_log() == len(hub.members().lead_changes()) == 3


def test_killed_while_it_issues_a_certificate_and_while_it_is_shown_one_a_coordinator_goes_on_with_one(hub):
    north = hub.site("north")
    request, answer = hub.folder / "request", hub.folder / "answer"
    shown = north("renew", "--late", "--out", request)["fingerprint"]
    argv = ("renew-late", "north", "--request", request, "--out", answer, "--fingerprint", shown)

    def issued() -> int:
        return sum(json.loads(entry.entry)["kind"] == "renewal" for entry in hub.store.log())

    for place, count in (("renewal.before_commit", 0), ("renewal.after_commit", 1)):
        assert exit_code("coordinator.cli", "--home", hub.home, *argv, place=place) == -signal.SIGKILL
        assert (issued(), answer.exists()) == (count, False)
    hub.lead(*argv)
    assert issued() == 1, "the same request again, the same certificate"
    before = hub.store.enrolment("north").certificate_pem
    pem = LateAnswer.from_bytes(Envelope.from_bytes(answer.read_bytes()).payload).certificate_pem
    (hub.folder / "shown.pem").write_text(pem)
    step = ("steps", "be shown a certificate", hub.home, hub.folder / "shown.pem")
    assert exit_code(*step, place="renewal.before_shown") == -signal.SIGKILL
    assert hub.store.enrolment("north").certificate_pem == before
    assert exit_code(*step, place="renewal.after_shown") == -signal.SIGKILL
    assert hub.store.enrolment("north").certificate_pem == pem
    north("renew", "--late", "--answer", answer)
    north("run", "--once")
    assert hub.store.verify_log() == hub.store.entries()


def test_killed_while_it_renews_the_servers_certificate_a_coordinator_shows_the_old_one_or_the_new(hub):
    north, path = hub.site("north"), hub.home / "ca" / "server.pem"
    before = path.read_bytes()
    step = ("steps", "renew the server's certificate", hub.home)
    assert exit_code(*step, place="authority.before_server") == -signal.SIGKILL
    assert path.read_bytes() == before
    assert exit_code(*step, place="authority.after_server") == -signal.SIGKILL
    assert path.read_bytes() != before
    north("run", "--once")


@pytest.mark.parametrize("place", ["before_pin", "after_pin"])
def test_killed_while_it_pins_the_next_authority_a_site_follows_it_at_its_next_round(hub, place):
    north = hub.site("north")
    hub.lead("ca", "rotate")
    argv = ("run", "--once", "--home", north.home)
    assert exit_code("site_agent.cli", *argv, place=f"renewal.{place}") == -signal.SIGKILL
    north("run", "--once")
    assert len(pinned(north.desk.config)) == 2
