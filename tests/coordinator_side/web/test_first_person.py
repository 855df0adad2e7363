"""The first person is let in by a browser: what `coordinator serve` prints on a terminal is all that is read there."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from stage.browser.web_stage import WEB, WebStage, words
from stage.browser.windows import axe, barriers, chromium, fits, keep, opened  # noqa: F401
from stage.coordinator_side.delivered import cohort_plan
from stage.processes.ports import free_ports

from coordinator.analyst.remote import Pass
from coordinator.cli import main
from coordinator.services.analysts import Analysts
from coordinator.store.store import Store
from shared.base.canonical import sha256_hex

CODE = re.compile(r"In a browser on this machine: (https://\S+)/sign-in with the code ((?:[0-9a-f]{4}-){3}[0-9a-f]{4})")
FORM = {"code": "0123-4567-89ab-cdef", "name": "ada"}
WEB_WITH_CODE = {**WEB, "first_code": sha256_hex(FORM["code"].encode())}


def made(home, web: int, analysts: int, sites: int) -> None:
    """A coordinator as its operator makes it, with a study in it that three hospitals have delivered to."""
    ports = ("--address", f"127.0.0.1:{sites}", "--analysts", f"127.0.0.1:{analysts}", "--web", f"127.0.0.1:{web}")
    assert main(["--home", str(home), "init", *ports, "--listen", f"127.0.0.1:{sites}"]) == 0
    stage = WebStage(home)
    stage.publish(cohort_plan())
    stage.store.close()


class Terminal:
    """A program that is run at a terminal, and what it has printed there."""

    def __init__(self, *argv: str) -> None:
        self._shown, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self._process = subprocess.Popen(argv, stdin=inside, stdout=inside, stderr=inside, env=environment)
        os.close(inside)
        self.text = ""

    def until(self, wanted: re.Pattern[str], seconds: float = 90.0) -> re.Match[str]:
        end = time.monotonic() + seconds
        while (found := wanted.search(self.text)) is None:
            assert time.monotonic() < end, self.text
            if select.select([self._shown], [], [], 0.2)[0]:
                self.text += re.sub(r"\x1b\[[0-9;]*m|\s+", " ", os.read(self._shown, 65_536).decode())
                self.text = re.sub(r" +", " ", self.text)
        return found

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._shown)


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[Terminal, Store]]:
    home = tmp_path / "hub"
    made(home, *free_ports(3))
    terminal = Terminal(sys.executable, "-m", "coordinator.cli", "--home", str(home), "serve")
    store = Store.open(home)
    yield terminal, store
    store.close()
    terminal.close()


def test_who_serves_reads_a_code_and_has_a_studys_answer_in_a_browser_without_another_command(
    served, chromium, axe, tmp_path
):
    terminal, store = served
    url, code = terminal.until(CODE).groups()
    with opened(chromium, url, viewport={"width": 1280, "height": 900}) as window:

        def see(name: str) -> None:
            keep(window, name)
            assert fits(window), name
            assert barriers(window, axe) == [], name

        window.goto("/")
        window.wait_for_url("**/sign-in")
        see("first-person")
        window.get_by_label("Code").fill(code.upper())
        window.get_by_label("Your name").fill("ada")
        window.get_by_role("button", name="Let me in as lead").click()
        window.get_by_text("You are in, ada").wait_for()
        see("first-token")
        file = json.loads(window.get_by_role("region", name="Your token").inner_text())
        window.get_by_role("link", name="Go on to your studies").click()
        window.locator('main a[href="/studies/cvd"]').first.click()
        window.get_by_role("link", name="Ask", exact=True).click()
        window.locator("[name=planned][value=adjusted]").check()
        window.get_by_role("button", name="Ask", exact=True).click()
        window.wait_for_url("**/results/*")
        assert window.locator(".headline").inner_text().count("95 %") == 1
        assert window.locator("main img").first.evaluate("picture => picture.naturalWidth") > 300
        see("first-answer")
        window.get_by_role("button", name="Sign out").click()
        window.wait_for_url("**/sign-in")
        assert "Code" not in window.inner_text("main")
    path = tmp_path / "ada.token.json"
    path.write_text(json.dumps(file))
    path.chmod(0o600)
    assert (Pass.load(path).name, Pass.load(path).studies) == ("ada", ("cvd",))
    (account,) = Analysts(store).accounts()
    assert (account.name, account.role, account.studies) == ("ada", "lead", ("cvd",))


# -- what lets nobody in ------------------------------------------------------------------------------------------
@pytest.fixture
def stage(tmp_path) -> Iterator[WebStage]:
    stage = WebStage(tmp_path / "hub")
    stage.publish(cohort_plan(), sites={})
    stage.start(web=WEB_WITH_CODE)
    yield stage
    stage.running.stop(0.2)
    stage.store.close()


def test_a_wrong_code_a_wrong_name_and_a_form_of_another_site_make_no_token(stage):
    with stage.web() as client:
        wrong = client.post("/sign-in/first", data={**FORM, "code": "0123-4567-89ab-cdee"})
        assert (wrong.status_code, "the one that coordinator serve printed" in words(wrong)) == (422, True)
        assert 'name="name" value="ada"' in wrong.text
        assert client.post("/sign-in/first", data={"name": "ada"}).status_code == 422
        long = client.post("/sign-in/first", data={**FORM, "name": "<zz>" * 3000}).text
        assert "<zz" not in long
        assert long.count("zz") < 100
        assert client.post("/sign-in/first", data={**FORM, "name": "<b>"}).status_code == 422
        assert client.post("/sign-in/first", data=FORM, headers={"origin": "https://elsewhere.org"}).status_code == 400
        assert client.get("/sign-in/first").status_code in (404, 405)
    assert Analysts(stage.store).nobody()


def test_the_code_serves_once(stage):
    with stage.web() as client:
        page = client.post("/sign-in/first", data=FORM)
        assert "You are in, ada" in words(page)
        given = page.headers["set-cookie"]
        assert {"httponly", "secure", "samesite=strict", "path=/"} <= set(given.lower().split("; "))
        assert client.get("/").status_code == 200
    with stage.web() as other:
        assert other.post("/sign-in/first", data={**FORM, "name": "eve"}).headers["location"] == "/sign-in"
        assert other.get("/").headers["location"] == "/sign-in"
    assert [one.name for one in Analysts(stage.store).accounts()] == ["ada"]


def test_whoever_once_held_a_token_leaves_no_code_behind(stage):
    stage.admit("gone")
    stage.analysts.revoke("gone", today=stage.analysts.accounts()[0].made)
    with stage.web() as client:
        assert client.post("/sign-in/first", data=FORM).headers["location"] == "/sign-in"
        assert "Let me in" not in client.get("/sign-in").text


def test_without_a_terminal_no_code_is_made(tmp_path, capfd):
    from coordinator.cli.setting_up import _first_code
    from coordinator.config import CoordinatorConfig

    made(tmp_path / "hub", *free_ports(3))
    config = CoordinatorConfig.load(tmp_path / "hub")
    assert _first_code(config, config.web_settings) == ""


def test_without_an_address_for_analysts_no_code_is_made(tmp_path, monkeypatch):
    from coordinator.cli.setting_up import _first_code
    from coordinator.config import CoordinatorConfig

    web, analysts, sites = free_ports(3)
    made(tmp_path / "hub", web, analysts, sites)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    config = CoordinatorConfig.load(tmp_path / "hub")
    assert re.fullmatch(r"([0-9a-f]{4}-){3}[0-9a-f]{4}", _first_code(config, config.web_settings))
    assert _first_code(replace(config, analysts=""), config.web_settings) == ""
    assert _first_code(config, config.web_settings | {"listen": f"[::1]:{web}"}) == ""


def test_a_study_must_be_there_before_somebody_is_let_in_to_it(tmp_path):
    stage = WebStage(tmp_path / "hub")
    stage.start(web=WEB_WITH_CODE)
    try:
        with stage.web() as client:
            assert "Let me in" not in client.get("/sign-in").text
            refused = client.post("/sign-in/first", data=FORM)
            assert "There must be a study" in words(refused)
    finally:
        stage.running.stop(0.2)
        stage.store.close()
