"""People at two `coordinator serve` of one PostgreSQL: who signs in by a provider at one is known at the other.

Both are the command itself, each with its process for analysts; the provider is the certified one of npm. The browser
is sent from one to the other as a balancer would: its cookies are the host's, whatever the port.
"""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
from stage.browser.oidc import provider, signed_in  # noqa: F401
from stage.browser.web_stage import WebStage
from stage.coordinator_side.delivered import cohort_plan
from stage.processes.ports import free_port

from coordinator.config import CoordinatorConfig, WebConfig
from coordinator.web.sign_in.sessions import COOKIE
from tests.stage.house.sources import ROOT

PIPE = subprocess.PIPE


class Servers:
    """`coordinator serve` of one home folder, each on ports of its own."""

    def __init__(self, home, url) -> None:
        self._home, self._env = home, {**os.environ, "TRIBUTARY_STORE": url, "COLUMNS": "200", "PYTHONPATH": f"{ROOT}"}
        self.running: list[subprocess.Popen] = []

    def start(self, *options: str) -> str:
        """Start one; its HTTPS address."""
        argv = [sys.executable, "-m", "coordinator.cli", "--home", f"{self._home}", "serve"]
        argv += ["--address", "127.0.0.1:0", *options]
        server = subprocess.Popen(argv, stdout=PIPE, stderr=subprocess.DEVNULL, text=True, env=self._env)
        self.running.append(server)
        for line in server.stdout:
            if found := re.search(r"over HTTPS on ([0-9.]+:[0-9]+)", line):
                return f"https://{found[1]}"
        raise AssertionError("it does not answer over HTTPS")

    def kill(self, number: int) -> None:
        """End one in the middle of whatever it does, and its process for analysts with it."""
        self.running[number].send_signal(signal.SIGKILL)
        self.running[number].wait(60)

    def end(self) -> None:
        """End all that run."""
        for server in self.running:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
        for server in self.running:
            server.wait(120)
            server.stdout.close()


@pytest.fixture
def home(provider, postgres, tmp_path):
    """(the folder, the database) of a coordinator whose people sign in by the provider; releases in it."""
    url = postgres.database(f"signing{abs(hash(tmp_path)):x}")
    stage = WebStage(tmp_path / "hub", url)
    stage.publish(cohort_plan())
    stage.store.close()
    (stage.home / "secret").write_text("tributary-secret\n")
    address = provider[1].removeprefix("https://").partition("/")[0]  # the balancer's, in earnest
    people = WebConfig(address=address, issuer=provider[0], client_id="tributary", client_secret="secret")
    config = CoordinatorConfig(
        home=stage.home,
        name="tributary-hub",
        address="127.0.0.1:8443",
        names=("127.0.0.1", "localhost"),
        listen="127.0.0.1:0",
        web=people,
    )
    (stage.home / "coordinator.toml").write_text(config.to_toml())
    return stage, url


@pytest.fixture
def servers(home):
    made = Servers(home[0].home, home[1])
    yield made
    made.end()


def test_who_signs_in_at_one_server_goes_on_at_the_other_and_who_leaves_it_has_left_both(provider, home, servers):
    one, other = servers.start(), servers.start("--web", f"127.0.0.1:{free_port()}")
    assert one != other
    with httpx.Client(verify=False, timeout=90) as browser:
        # Begun at one, finished at the other, gone on with at either; the answer of one is found at the other.
        away = browser.get(f"{one}/sign-in/away")
        back = browser.get(f"{other}/sign-in/back", params=signed_in(away.headers["location"], "analyst:cvd"))
        assert back.status_code == 200
        page = browser.get(f"{one}/studies/cvd/ask")
        csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]
        form = {"csrf": csrf, "kind": "mean", "formula": "sbp"}
        sent = browser.post(f"{other}/studies/cvd/ask", data=form)
        assert sent.status_code == 303, sent.text
        answer = [browser.get(f"{server}{sent.headers['location']}") for server in (one, other)]
        assert [found.status_code for found in answer] == [200, 200]
        headlines = [re.search(r'class="headline"><b>(.+?)</b>', found.text)[1] for found in answer]
        assert headlines[0] == headlines[1]
        record = browser.get(f"{one}/studies/cvd/log").text
        assert "mean(sbp)" in record
        assert "analyst.cvd" in record
        # A program's sign-in as well, begun at one and asked for at the other.
        begun = browser.post(f"{one}/v1/sign-in", json={}).json()
        signed_in(begun["verification_uri_complete"], "analyst:cvd")
        given = browser.post(f"{other}/v1/sign-in/ask", json={"sign_in": begun["sign_in"]}).json()
        bearer = {"authorization": f"Bearer {given['token']}"}
        known = [browser.get(f"{server}/v1/studies", headers=bearer).json() for server in (one, other)]
        assert [found["analyst"] for found in known] == ["analyst.cvd"] * 2
        # One is killed: nobody signs in again.
        servers.kill(0)
        assert browser.get(f"{other}/studies/cvd").status_code == 200
        one = servers.start()
        assert browser.get(f"{one}/studies/cvd").status_code == 200
        # What ends it at one ends it at both, for whoever kept the cookie.
        cookie = browser.cookies[COOKIE]
        assert browser.post(f"{other}/sign-out", data={"csrf": csrf}).status_code == 303
        for server in (one, other):
            assert httpx.get(f"{server}/", verify=False, cookies={COOKIE: cookie}).headers["location"] == "/sign-in"


def test_a_port_for_https_is_refused_where_nothing_is_answered_there(tmp_path):
    home = WebStage(tmp_path / "hub").home
    (home / "coordinator.toml").write_text('name = "hub"\naddress = "127.0.0.1:8443"\n')
    argv = [sys.executable, "-m", "coordinator.cli", "--home", f"{home}", "serve", "--web", "127.0.0.1:0"]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "E_PARAMETER" in refused.stderr) == (2, True), refused.stderr
