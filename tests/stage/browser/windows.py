"""Windows of Debian's Chromium for the tests of pages: one browser for a module, a window of its own for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WINDOWS = {"desk": (1280, "light"), "phone": (320, "dark")}


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, from npm; kept in a cache folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tributary-tests"
    source = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed: axe-core checks nothing")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-save", "--prefix", f"{folder}", "axe-core"]
        if subprocess.run(command, timeout=120, capture_output=True).returncode or not source.exists():
            pytest.skip("axe-core could not be installed")
    return source.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """One browser; not for the whole session, since its loop would be in the way of tests that have their own."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: .ci/run installs one where it may")
    with sync_api.sync_playwright() as started:
        # A container's root has no sandbox to give; the pages under test run no script but their own.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        shown = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield shown
        shown.close()


@contextmanager
def opened(chromium, url: str, **settings) -> Iterator:
    """A window; it fails on any request elsewhere, any error of a script and any refused resource."""
    own = chromium.new_context(ignore_https_errors=True, base_url=url, **settings)
    page = own.new_page()
    elsewhere, errors = [], []
    page.on("request", lambda asked: elsewhere.append(asked.url) if not asked.url.startswith(url) else None)
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog {dialog.message}"))
    yield page
    own.close()
    assert elsewhere == []
    assert errors == [], errors


@pytest.fixture(params=WINDOWS)
def window(request, stage, chromium) -> Iterator:
    """A window of each width on the stage's workbench."""
    width, scheme = WINDOWS[request.param]
    with opened(chromium, stage.url, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        yield page


def enter(window, token) -> None:
    """Sign in with a token."""
    window.goto("/sign-in")
    window.get_by_label("Token").fill(token)
    window.get_by_role("button", name="Sign in").click()
    window.wait_for_url("**/")


def keep(window, name: str) -> None:
    """A picture of the whole page in the folder that ``TRIBUTARY_SCREENSHOTS`` names, to be looked at."""
    if folder := os.environ.get("TRIBUTARY_SCREENSHOTS"):
        window.screenshot(path=f"{folder}/{name}-{window.viewport_size['width']}.png", full_page=True)


def fits(window) -> bool:
    """Whether nothing but what scrolls by itself is wider than the window."""
    return bool(window.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def barriers(window, axe, *, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe-core finds on the page; by some of its rules alone."""
    window.evaluate(axe)
    how = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    violations = window.evaluate("how => axe.run(how).then(found => found.violations)", how)
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in violations]


class Mouse:
    """A form as somebody fills it who sees and points."""

    def __init__(self, window: Any) -> None:
        self.window = window

    def fill(self, field: Any, text: str) -> None:
        field.fill(text)

    def check(self, box: Any) -> None:
        box.check()

    def choose(self, field: Any, option: str) -> None:
        field.select_option(option)

    def press(self, button: Any) -> None:
        button.click()


class Keys(Mouse):
    """The same by the keyboard alone, from the top of the page: what no Tab reaches cannot be used."""

    def reach(self, wanted: Any) -> None:
        for _ in range(200):
            if wanted.evaluate("element => element === document.activeElement"):
                assert wanted.evaluate("e => getComputedStyle(e).outlineStyle") != "none", "where one is must be seen"
                return
            self.window.keyboard.press("Tab")
        raise AssertionError(f"no Tab reaches {wanted}")

    def fill(self, field: Any, text: str) -> None:
        self.reach(field)
        self.window.keyboard.press("Control+A")
        self.window.keyboard.type(text)

    def check(self, box: Any) -> None:
        self.reach(box)
        if not box.is_checked():
            self.window.keyboard.press("Space")
        assert box.is_checked()

    def choose(self, field: Any, option: str) -> None:
        self.reach(field)
        self.window.keyboard.type(option)
        assert field.input_value() == option

    def press(self, button: Any) -> None:
        """A button or a link that leads to another page."""
        with self.window.expect_navigation():
            self.act(button)

    def act(self, button: Any) -> None:
        """One that changes this page, or opens a part of it."""
        self.reach(button)
        self.window.keyboard.press("Enter")
