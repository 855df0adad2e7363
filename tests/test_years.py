"""Years of a network in minutes, as whole processes: renewals, absence, kills, a new authority, one turned clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from membership import Clock, Membership

from coordinator.config import CoordinatorConfig
from coordinator.store.store import Store
from shared.base.clock import utc_now
from shared.wire.certificates import CertificateLife

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.environ.get("TRIBUTARY_SOAK"), reason="set TRIBUTARY_SOAK"),
]


class Network:
    """A coordinator that serves as a process of its own, and sites whose agents run one round a process."""

    def __init__(self, folder: Path, monkeypatch, *sites: str) -> None:
        self.clock = Clock(folder, monkeypatch)
        self.member = Membership(folder, self.clock, *sites)
        self.member.close()
        self.home, self.homes = self.member.hub.home, self.member.homes
        config = CoordinatorConfig(home=self.home, name="hub", address="127.0.0.1:8443", names=("127.0.0.1",))
        (self.home / "coordinator.toml").write_text(config.to_toml())
        self.process: subprocess.Popen[str] | None = None
        self.port = self.member.hub.port

    def environment(self, failpoint: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "TRIBUTARY_FAILPOINT"}
        return kept | {"PYTHONPATH": str(ROOT)} | ({"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {})

    def serve(self, failpoint: str = "") -> None:
        argv = [sys.executable, "-m", "coordinator.cli", "--home", str(self.home), "serve"]
        self.process = subprocess.Popen(
            [*argv, "--address", f"127.0.0.1:{self.port}"],
            env=self.environment(failpoint),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        assert "answers on" in self.process.stdout.readline()

    def end(self) -> int:
        """End the coordinator, if it has not ended; how."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def site(self, name: str, *words: str, failpoint: str = "") -> tuple[int, str]:
        argv = [sys.executable, "-m", "site_agent.cli", *words, "--home", str(self.homes[name]), "--json"]
        done = subprocess.run(
            argv, env=self.environment(failpoint), capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
        )
        return done.returncode, done.stdout

    def round(self, name: str, failpoint: str = "") -> dict[str, str]:
        code, out = self.site(name, "run", "--once", failpoint=failpoint)
        if code < 0:
            return {"killed": str(-code)}
        return {line["what"]: line["code"] for line in map(json.loads, out.splitlines())}

    def lead(self, *words: object) -> dict:
        argv = [sys.executable, "-m", "coordinator.cli", "--home", str(self.home), *map(str, words), "--json"]
        done = subprocess.run(
            argv, env=self.environment(""), capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def life(self, name: str) -> CertificateLife:
        return CertificateLife.of((self.homes[name] / "certificates/site.pem").read_text(), utc_now())


@pytest.fixture
def network(tmp_path, monkeypatch):
    made = Network(tmp_path, monkeypatch, "north", "south", "west")
    yield made
    if made.process is not None:
        made.end()


def test_processes_killed_in_the_middle_of_a_renewal_go_on_from_there(network):
    network.clock.turn(210)
    network.serve("renewal.after_commit")
    network.round("north")
    assert network.end() == -signal.SIGKILL
    network.serve()
    assert network.round("north", "renewal.before_key") == {"killed": f"{signal.SIGKILL.value}"}
    said = network.round("north")
    assert not {"not connected", "offline", "certificate not renewed", "no plan"} & said.keys()
    assert network.life("north").days > 390


def test_three_years_pass_with_a_change_of_authority_an_absence_and_a_late_return(network, tmp_path, record_property):
    quarters = 13
    away = range(3, 9)  # of west: 20 months
    network.serve()
    rounds = 0
    for quarter in range(quarters):
        network.clock.turn(91)
        for name in ("north", "south", "west"):
            if name == "west" and quarter in away:
                continue
            if name == "south" and quarter == 1:  # a site has called since, so that the clock is believed
                assert network.lead("ca", "rotate")["rotated"]
            if name == "west" and quarter == away.stop:
                request, answer = tmp_path / "request", tmp_path / "answer"
                shown = json.loads(network.site(name, "renew", "--late", "--out", str(request))[1])["fingerprint"]
                network.lead("renew-late", name, "--request", request, "--out", answer, "--fingerprint", shown)
                assert network.site(name, "renew", "--late", "--answer", str(answer))[0] == 0
            for _ in range(2):
                said = network.round(name)
                rounds += 1
            assert not {"not connected", "offline", "certificate not renewed", "no plan"} & said.keys(), said
            assert network.life(name).days > 100
    assert network.end() == 0
    with closing(Store.open(network.home)) as store:
        store.verify_log()
        assert [one.state for one in store.sites()] == ["accepted"] * 3
    record_property("rounds", rounds)
    record_property("quarters", quarters)
