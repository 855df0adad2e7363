"""A site's page, and a browser before it."""

from __future__ import annotations

import html
import http.client
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from stage.hospital_side.site_desk import PASSPHRASE, Hospital

from shared.plans.plan import Budget
from site_agent import cli
from site_agent.show.page import serving

TOKEN = re.compile(r'name="csrf" value="([^"]+)"')
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def words(self) -> str:
        """What a person reads, without mark-up."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.text)).split())


@dataclass
class Browser:
    """One browser: keeps its cookie, and nothing else."""

    port: int
    passwords: list[str]
    cookie: str = ""
    seen: list[Answer] = field(default_factory=list)

    def ask(self, method: str, path: str, fields: object = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        body = None
        if fields is not None:
            body = urllib.parse.urlencode(fields, doseq=True)
            given = {**FORM, **given}
        if self.cookie:
            given.setdefault("Cookie", self.cookie)
        connection.request(method, path, body=body, headers=given)
        got = connection.getresponse()
        answer = Answer(got.status, got.headers, got.read().decode())
        connection.close()
        self.seen.append(answer)
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def login(self) -> Answer:
        answer = self.ask("POST", "/login", {"password": self.passwords[-1]})
        self.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
        return answer

    def post(self, path: str, fields: dict, **headers: str) -> Answer:
        """A form as the page would send it; follows the answer to where it leads."""
        token = TOKEN.search(self.get("/").text).group(1)
        answer = self.ask("POST", path, {"csrf": token, **fields}, **headers)
        return self.get(answer.headers["Location"]) if answer.status == 303 else answer


@pytest.fixture
def ready(hospital, plan, table) -> Hospital:
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2))
    site = hospital.joined("dr-lind", "dr-berg")
    two = replace(plan, waves=waves, budget=Budget(epsilon=5000.0), returning="refresh")
    return site.approved(two).with_table(table)


@contextmanager
def served(home: Path) -> Iterator[Browser]:
    passwords: list[str] = []
    server, bound = serving.prepare(
        lambda: cli.open_desk(home),
        listen="127.0.0.1",
        port=0,
        agent_version=cli.agent_version(),
        today=cli.today,
        announce=lambda address, password: passwords.append(password),
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    limit = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < limit, "the page does not start"
        time.sleep(0.01)
    yield Browser(bound.getsockname()[1], passwords)
    server.should_exit = True
    thread.join(20)
    bound.close()


@pytest.fixture
def browser(ready):
    with served(ready.home) as found:
        yield found


def released(site: Hospital, wave: int = 1) -> str:
    return site.json("release", "mini", "--wave", str(wave))["release_id"]


def decision(site: Hospital, release_id: str, name: str = "dr-lind") -> dict:
    shown = site.json("outbox", "show", release_id)
    return {
        "bundle_sha256": shown["bundle_sha256"],
        "tick": [warning["name"] for warning in shown["warnings"]],
        "name": name,
        "passphrase": PASSPHRASE,
    }


PATHS = ("/", "/budget", "/plans", "/audit")


@pytest.fixture
def fresh(hospital, plan):
    """A page on a folder without a site, its plan published at the coordinator."""
    hospital.publish(replace(plan, budget=Budget(epsilon=5000.0)))
    with served(hospital.home) as browser:
        browser.login()
        yield hospital, browser


def posted(browser, path, fields, at="/start"):
    token = TOKEN.search(browser.get(at).text)[1]
    answer = browser.ask("POST", path, {"csrf": token, **fields})
    return browser.get(answer.headers["Location"]) if answer.status == 303 else answer


def ended(browser):
    limit = time.monotonic() + 60
    while (answer := browser.get("/work")).status == 200 and "Look again" in answer.text:
        assert answer.headers["Refresh"] == "3"
        assert time.monotonic() < limit
        time.sleep(0.05)
    return answer
