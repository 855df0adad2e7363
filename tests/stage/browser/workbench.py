"""The workbench in a browser, and what a page says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from stage.browser.web_stage import QUESTION

CSRF = re.compile(r'name="csrf" value="([^"]+)"')
PAGES = ("", "/ask", "/waves", "/budgets", "/releases", "/sites", "/log", "/compare")


@pytest.fixture(scope="module")
def token(stage) -> str:
    return stage.admit("lotte", ("cvd", "lungs", "odd"), "lead")


@pytest.fixture
def reader(stage, token):
    """A browser without scripts, signed in."""
    with stage.web() as client:
        assert client.post("/sign-in", data={"token": token}).status_code == 303
        yield client


@pytest.fixture(scope="module")
def result(stage, token) -> dict[str, str]:
    """Study to the id of an answer in it; another, and a Table 1, of the odd one."""
    with stage.web(token) as client:
        asked = {study: client.post(f"/v1/studies/{study}/queries", json=QUESTION) for study in ("cvd", "odd")}
        asked["other"] = client.post("/v1/studies/odd/queries", json=QUESTION | {"method": "DL", "test": "z"})
        asked["table"] = client.post("/v1/studies/odd/queries", json={"formula": "table_one(age, sbp)"})
        return {study: answered.json()["result"] for study, answered in asked.items()}


def csrf(client, path="/studies/cvd/ask") -> str:
    return CSRF.search(client.get(path).text)[1]


class Read(HTMLParser):
    """What a page holds that could act."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.acting: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("iframe", "object", "embed", "base", "style") or (
            tag == "script" and given.get("src") != "/workbench.js"
        ):
            self.acting.append(tag)
        self.acting += [name for name, value in attrs if name.startswith("on") or name == "style"]
        self.acting += [v for n, v in attrs if n in ("href", "src", "action") and not re.match(r"[/?#]", v or "/")]
