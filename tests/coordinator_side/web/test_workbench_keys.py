"""The workbench by the keyboard alone: what each page is for, from its top, where one sees at which part one is."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import re

import pytest
from stage.browser.web_stage import QUESTION, stage  # noqa: F401
from stage.browser.windows import Keys, chromium, opened  # noqa: F401


@pytest.fixture
def keys(stage, chromium):
    """Somebody's hands on the keyboard, who has signed in by them."""
    with opened(chromium, stage.url, viewport={"width": 1280, "height": 900}) as window:
        hand = Keys(window)
        window.goto("/sign-in")
        hand.fill(window.get_by_label("Token"), stage.admit("kay", ("cvd",), "lead"))
        hand.press(window.get_by_role("button", name="Sign in"))
        window.wait_for_url("**/")
        yield hand
        hand.press(window.get_by_role("button", name="Sign out"))
        assert window.url == f"{stage.url}/sign-in"


def follow(keys: Keys, name: str) -> str:
    """Go by a link; what stands there."""
    keys.press(keys.window.get_by_role("link", name=name).first)
    return keys.window.inner_text("main")


def test_a_question_is_chosen_asked_drilled_into_compared_and_looked_at_by_wave(keys, stage):
    window = keys.window
    with stage.web(stage.admit("kim", ("cvd",), "lead")) as web:
        other = web.post("/v1/studies/cvd/queries", json=QUESTION | {"method": "DL", "test": "z"}).json()["result"]
    follow(keys, "Systolic blood pressure and cardiovascular events")
    follow(keys, "Ask a question")
    keys.choose(window.get_by_label("Exposure"), "sbp")
    keys.fill(window.get_by_label("Per so many of its units"), "10")
    keys.check(window.locator("[name=adjust][value=age]"))
    window.get_by_text("cox(time, cvd) ~ sbp/10 + age – exploratory").wait_for()
    keys.press(window.get_by_role("button", name="Ask", exact=True))
    window.wait_for_url("**/results/*")
    keys.act(window.locator("summary", has_text="Leave one site out"))
    window.get_by_alt_text("The pooled estimate with each site left out in turn").wait_for()
    keys.act(window.locator("summary", has_text="Python"))
    keys.reach(window.locator("[data-copy=copy-1]"))
    keys.reach(window.get_by_role("link", name="PDF"))
    assert "How much it moves the answer" in follow(keys, "beta")
    keys.press(window.locator(".crumb a"))
    follow(keys, "Compare with another answer")
    keys.fill(window.get_by_label("The other"), other)
    keys.press(window.get_by_role("button", name="Compare"))
    assert "What differs" in window.inner_text("main")
    keys.press(window.locator(".pair h2 a").first)
    keys.press(window.get_by_role("button", name="Look as of each wave"))
    assert "/looks?" in window.url


def test_waves_budgets_releases_log_and_sites_are_read(keys):
    window = keys.window
    follow(keys, "Systolic blood pressure and cardiovascular events")
    assert "Nobody is waited for" in follow(keys, "Waves") or "waited for" in window.inner_text("main")
    keys.reach(window.get_by_role("region", name="Sites by waves"))
    follow(keys, "Budgets")
    keys.act(window.locator("summary", has_text="Numbers of").first)
    assert window.get_by_role("region", name=re.compile("^Budget of")).first.is_visible()
    follow(keys, "Releases")
    keys.choose(window.get_by_label("Site"), "beta")
    keys.press(window.get_by_role("button", name="Show"))
    keys.act(window.locator("summary", has_text="Receipt of beta"))
    keys.act(window.get_by_role("button", name="Check its proof"))
    window.get_by_text("Holds: entry").wait_for()
    assert "question" in follow(keys, "Log")
    assert "fingerprint" in follow(keys, "Sites").lower()


def test_a_plan_is_designed_and_checked(keys):
    window = keys.window
    follow(keys, "Design a new study's plan")
    keys.fill(window.get_by_label("Title"), "Typed by hand")
    keys.choose(window.get_by_label("What leaves a site (mechanism)"), "tables")
    keys.press(window.get_by_role("button", name="Check"))
    keys.act(window.locator("summary", has_text="The plan as TOML"))
    assert 'title = "Typed by hand"' in window.inner_text("#toml")
    keys.reach(window.get_by_role("button", name="Save the file"))
