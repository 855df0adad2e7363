"""The local page in a real Chromium: a steward signs in, reads, and approves; nothing is loaded and nothing cut off."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from stage.browser.page import (  # noqa: F401
    browser,
    fresh,
    ready,
    released,
    served,
)
from stage.browser.windows import Keys, Mouse, axe, barriers, keep  # noqa: F401
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.errors import AuditRefusal

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: .ci/run installs one where it may")
WIDTHS = {"desk": 1280, "phone": 390, "narrow": 320, "zoomed": 640}
LOOKS = {"narrow": {"color_scheme": "dark"}, "zoomed": {"device_scale_factor": 2}}
"""Of a window of 1,280 pixels at 200 % half as many are there to lay out."""


@pytest.fixture(scope="module")
def started() -> Iterator[sync_api.Browser]:
    """One browser for all; each test has a window of its own in it, without anybody else's cookies."""
    with sync_api.sync_playwright() as playwright:
        # A container's root has no sandbox to give; the page under test runs no script.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        shown = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield shown
        shown.close()


@pytest.fixture(params=["desk", "phone"])
def chromium(request, started) -> Iterator[sync_api.Page]:
    """A window of each width; it fails on any request that leaves the page's own address, and on errors in the page."""
    window = started.new_page(viewport={"width": WIDTHS[request.param], "height": 900}, **LOOKS.get(request.param, {}))
    elsewhere, errors = [], []
    window.on("request", lambda asked: elsewhere.append(asked.url) if "127.0.0.1" not in asked.url else None)
    window.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield window
    window.close()
    assert elsewhere == []
    assert [line for line in errors if not any(code in line for code in ("401", "404", "409"))] == []


def sign_in(chromium: sync_api.Page, browser) -> None:
    chromium.goto(f"http://127.0.0.1:{browser.port}/")
    assert chromium.url.endswith("/login")
    chromium.get_by_label("Password").fill(browser.passwords[-1])
    chromium.get_by_role("button", name="Open the airlock").click()
    assert chromium.url == f"http://127.0.0.1:{browser.port}/"


def fits(chromium: sync_api.Page) -> bool:
    """Whether nothing but what scrolls by itself is wider than the window."""
    return bool(chromium.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_steward_signs_in_and_a_wrong_password_is_said_to_be_wrong(ready: Hospital, browser, chromium):
    chromium.goto(f"http://127.0.0.1:{browser.port}/")
    chromium.get_by_label("Password").fill("aaaa-aaaa-aaaa")
    chromium.get_by_role("button", name="Open the airlock").click()
    assert "not one of this page" not in chromium.inner_text("body")
    assert chromium.url.endswith("/login")
    sign_in(chromium, browser)
    for path in ("/", "/budget", "/plans", "/audit"):
        answer = chromium.goto(f"http://127.0.0.1:{browser.port}{path}")
        assert answer.status == 200
        assert chromium.locator("nav [aria-current]").count() == 1, path
        assert fits(chromium), path


def test_a_release_is_approved_by_its_buttons(ready: Hospital, browser, chromium):
    release_id = released(ready)
    sign_in(chromium, browser)
    chromium.goto(f"http://127.0.0.1:{browser.port}/release/{release_id}")
    assert fits(chromium)
    form = chromium.locator(f"form[action='/release/{release_id}/approve']")
    for box in form.get_by_role("checkbox").all():
        box.check()
    form.locator("[name=name]").select_option("dr-lind")
    form.locator("[name=passphrase]").fill(PASSPHRASE)
    form.get_by_role("button").click()
    assert "The coordinator has accepted these bytes" in chromium.inner_text("body")
    assert ready.json("outbox", "show", release_id)["state"] == "delivered"


@pytest.mark.parametrize("chromium", ["phone"], indirect=True)
def test_on_a_phone_no_price_and_no_approval_is_cut_off(ready: Hospital, browser, chromium):
    released(ready)
    sign_in(chromium, browser)
    for path, heads in (("/", ("Approvals", "ε")), ("/budget", ("Charge ε", "Balance ε"))):
        chromium.goto(f"http://127.0.0.1:{browser.port}{path}")
        for head in heads:
            box = chromium.locator(f"td[data-head='{head}']").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= WIDTHS["phone"], head


def test_an_address_that_names_nothing_leads_back(ready: Hospital, browser, chromium):
    sign_in(chromium, browser)
    assert chromium.goto(f"http://127.0.0.1:{browser.port}/nothing").status == 404
    chromium.get_by_role("main").get_by_role("link", name="outbox").click()
    assert chromium.url == f"http://127.0.0.1:{browser.port}/"


@pytest.mark.parametrize("chromium", ["phone"], indirect=True)
def test_on_a_phone_a_burnt_charge_has_room_for_its_reason_and_a_check_for_its_rule(
    ready: Hospital, browser, chromium, monkeypatch
):
    def too_good(*_: object, **__: object) -> None:
        raise AuditRefusal("own-row linkage must be at most 0.05", given="0.18", next_step="Its charge stays.")

    with monkeypatch.context() as patch:
        patch.setattr("site_agent.release.drawing._attack", too_good)
        ready("release", "mini", expect=10)
    release_id = released(ready)
    sign_in(chromium, browser)
    chromium.goto(f"http://127.0.0.1:{browser.port}/budget")
    assert "E_AUDIT" in chromium.inner_text("main")
    pill, row = (chromium.locator(which).first.bounding_box() for which in (".state.burnt", ".stack tbody tr"))
    assert pill["height"] < 40
    assert pill["x"] + pill["width"] <= row["x"] + row["width"] - 12
    chromium.goto(f"http://127.0.0.1:{browser.port}/release/{release_id}")
    assert chromium.locator(".checks td:nth-child(2)").first.bounding_box()["width"] > WIDTHS["phone"] / 2


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("chromium", "hand"), [("desk", Keys), ("narrow", Mouse), ("zoomed", Mouse)], indirect=["chromium"]
)
def test_a_site_is_made_mapped_and_releases_by_its_forms(fresh, table, chromium, hand, axe, tmp_path):
    """From the invitation to a delivered release: by keys alone, at 320 pixels in the dark, and at twice the size.

    On each page nothing is wider than the window, and axe-core finds no barrier.
    """
    site, browser = fresh
    hand = hand(chromium)

    def see(name: str) -> str:
        chromium.wait_for_load_state()
        keep(chromium, name)
        assert fits(chromium), name
        assert barriers(chromium, axe) == [], name
        return chromium.inner_text("main")

    def go(path: str) -> None:
        chromium.goto(f"http://127.0.0.1:{browser.port}{path}")

    def press(name: str) -> None:
        hand.press(chromium.get_by_role("button", name=name, exact=True).first)
        chromium.wait_for_load_state()

    def sign(form: sync_api.Locator) -> None:
        """As the approver, with all that is to be ticked."""
        for box in form.get_by_role("checkbox").all():
            hand.check(box)
        hand.choose(form.locator("[name=name]"), "dr-lind")
        hand.fill(form.locator("[name=passphrase]"), PASSPHRASE)
        hand.press(form.get_by_role("button"))

    go("/")
    see("sign-in")
    hand.fill(chromium.get_by_label("Password"), browser.passwords[-1])
    chromium.keyboard.press("Enter")
    chromium.wait_for_url("**/start")
    see("first-run")
    hand.fill(chromium.get_by_label("File of the invitation on this machine"), str(site.invitation))
    first = chromium.get_by_role("group", name="Approver 1")
    hand.fill(first.get_by_label("Name"), "dr-lind")
    hand.fill(first.get_by_label("New passphrase"), PASSPHRASE)
    hand.fill(first.get_by_label("Once more"), PASSPHRASE)
    press("Make this site")
    assert "Read the fingerprint to the study lead" in see("made")
    press("Ask to join")
    assert "has joined hub" in see("joined")

    go("/plans")
    hand.press(chromium.locator("form[action='/plans/fetch'] button"))
    chromium.get_by_text("Fetched and verified").wait_for()
    see("plan")
    path = tmp_path / "cohort.csv"
    table.rename(columns={"sbp": "Blutdruck"}).to_csv(path, index=False)
    go("/data/mini")
    hand.fill(chromium.locator("[name=path]"), str(path))
    press("Use this file")
    assert "Nothing gives yet: sbp" in see("mapping")
    hand.choose(chromium.get_by_label("Column in the file for sbp"), "Blutdruck")
    press("Keep this mapping and check the table")
    assert "300 rows within the dictionary" in see("checked")

    go("/plans")
    sign(chromium.locator("form[action='/plans/mini/approve']"))
    chromium.get_by_text("The plan is approved").wait_for()
    see("approved")
    sign(chromium.locator("form[action='/plans/mini/release']"))
    chromium.wait_for_url("**/release/**", timeout=60_000)
    assert "nothing has been sent" in see("held")
    release = chromium.url.partition("?")[0].removeprefix(f"http://127.0.0.1:{browser.port}")
    go(f"{release}/preview")
    words = see("preview")
    assert "300 real records, 300 released rows" in words
    assert "-0.5" not in words.partition("released (synthetic)")[2].split(), (
        "the edge of a bin of whole numbers is no value"
    )
    for other in ("/budget", "/audit", "/"):
        go(other)
        see(other.strip("/") or "outbox")
    go(release)
    sign(chromium.locator(f"form[action='{release}/approve']"))
    chromium.get_by_text("accepted these bytes").wait_for()
    see("delivered")
