"""The local page: who gets in, what it shows, and that its buttons are the commands' own functions."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from conftest import make_table
from stage.browser.page import PATHS, TOKEN, browser, decision, ready, released, served  # noqa: F401
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.errors import UsageRefusal
from shared.plans.plan import Budget
from shared.privacy.stated import shown_price
from site_agent import cli
from site_agent.show.page import access, frame, serving


# -- who gets in ----------------------------------------------------------------------------------------------------
def test_nothing_is_shown_before_the_password(ready, browser):
    release_id = released(ready)
    for path in (*PATHS, f"/release/{release_id}"):
        answer = browser.get(path)
        assert (answer.status, answer.headers["Location"]) == (303, "/login"), path
        assert answer.text == ""
    assert "mini" not in browser.get("/login").text
    for path in ("/pause", "/resume", f"/release/{release_id}/approve"):
        assert browser.ask("POST", path, {"csrf": "x"}).headers["Location"] == "/login"
    assert ready.json("status")["paused"] is False


def test_a_password_works_once_and_the_terminal_shows_the_next(browser):
    first = browser.passwords[-1]
    answer = browser.login()
    assert answer.status == 303
    assert "httponly" in answer.headers["Set-Cookie"].lower()
    assert "samesite=strict" in answer.headers["Set-Cookie"].lower()
    assert re.match(rf"tributary-airlock-{browser.port}-[0-9a-f]{{16}}=", answer.headers["Set-Cookie"])
    assert browser.get("/").status == 200
    assert browser.passwords[-1] != first
    assert browser.ask("POST", "/login", {"password": first}).status == 401
    browser.cookie = browser.cookie.partition("=")[0] + "=guessed"
    assert browser.get("/").status == 303


def test_wrong_passwords_use_the_shown_one_up(browser):
    shown = browser.passwords[-1]
    for _ in range(access.TRIES):
        assert browser.ask("POST", "/login", {"password": "aaaa-aaaa-aaaa"}).status == 401
    assert browser.passwords[-1] != shown
    assert browser.ask("POST", "/login", {"password": shown}).status == 401
    assert browser.login().status == 303


def test_an_idle_session_ends():
    now = [0.0]
    gate = access.Gate(announce=lambda password: None, clock=lambda: now[0])
    cookie = gate.enter(gate.password)
    now[0] = access.IDLE_SECONDS
    assert gate.session(cookie) is not None
    now[0] = 2 * access.IDLE_SECONDS + 1
    assert gate.session(cookie) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}", ""])
def test_another_host_name_is_not_answered(browser, host):
    browser.login()
    answer = browser.get("/", Host=host.replace("{port}", str(browser.port)))
    assert answer.status == 421
    assert "north" not in answer.text
    assert browser.get("/", Host=f"localhost:{browser.port}").status == 200


def test_a_form_without_its_token_or_from_elsewhere_changes_nothing(ready, browser):
    browser.login()
    token = TOKEN.search(browser.get("/").text).group(1)
    for fields, headers in (
        ({}, {}),
        ({"csrf": "guessed"}, {}),
        ({"csrf": token}, {"Origin": "http://evil.example"}),
        ({"csrf": token}, {"Origin": "null"}),
        ({"csrf": token}, {"Sec_Fetch_Site": "cross-site"}),
        ({"csrf": token}, {"Content_Type": "text/plain"}),
        ({"csrf": token, "fill": "x" * frame.FORM_CAP}, {}),
    ):
        assert browser.ask("POST", "/pause", fields, **headers).status == 403, (fields, headers)
    assert browser.get("/pause").status == 405, "nothing changes by a link"
    assert ready.json("status")["paused"] is False
    assert browser.ask("POST", "/pause", {"csrf": token}, Origin=f"http://127.0.0.1:{browser.port}").status == 303
    assert ready.json("status")["paused"] is True


def test_it_is_served_to_this_machine_only(ready):
    for address in ("0.0.0.0", "::", "192.168.1.5", "localhost.evil.example"):
        ready.refused("page", "--listen", address, expect=2)
    with pytest.raises(UsageRefusal, match="this machine only"):
        serving.prepare(
            lambda: cli.open_desk(ready.home),
            listen="0.0.0.0",
            port=0,
            agent_version="",
            today=cli.today,
            announce=lambda *_: None,
        )


def test_every_page_loads_nothing_from_anywhere_and_runs_no_script(ready, browser):
    release_id = released(ready)
    browser.login()
    for path in ("/login", "/style.css", *PATHS, f"/release/{release_id}"):
        answer = browser.get(path)
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        links = re.findall(r"""(?:href|src|action|url\()\s*=?\s*["']?([^"'\s>)]+)""", answer.text)
        assert all(link.startswith(("/", "?page=", "#")) and not link.startswith("//") for link in links), links
        assert not re.search(r"https?://|<script|\son\w+=|style=|@import", answer.text), path


def test_text_of_others_is_shown_as_text(ready, browser, plan):
    ready.publish(replace(plan, version=2, title='<script>alert("x")</script>', purpose="<img src=x onerror=y>"))
    ready("plan", "fetch", "mini")
    browser.login()
    text = browser.get("/plans").text
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


# -- what it shows --------------------------------------------------------------------------------------------------
def test_the_page_of_plans_says_what_is_covered_and_the_floors(ready, browser):
    browser.login()
    words, page = " ".join(browser.get("/plans").words.split()), ready.json("plan", "show", "mini")
    for said in (*page["covered"], *page["not_covered"], page["hash"], page["dictionary_hash"], "attack AUC at most"):
        assert said in words


def test_what_turns_the_direction_of_text_or_is_no_letter_does_not_reach_the_page_or_the_summary(ready, plan):
    title, purpose = "safe \u202egnihton\u2066", "to \x1b]0;owned\x07 test"
    ready.approved(replace(plan, version=2, title=title, purpose=purpose, waves=plan.waves, budget=Budget(epsilon=1e4)))
    with served(ready.home) as browser:
        browser.login()
        text = browser.get("/plans").text
    assert "safe gnihton" in text
    ready("audit", "export", "mini", "--out", str(ready.folder / "record"))
    summary = (ready.folder / "record" / "summary.html").read_text()
    assert "gnihton" in summary
    for shown in (text, summary):
        assert not set(shown) & set("\u202e\u2066\x1b\x07")


def test_a_release_page_shows_what_an_approver_must_see(ready, browser):
    release_id = released(ready)
    shown = ready.json("outbox", "show", release_id)
    browser.login()
    assert release_id[:8] in browser.get("/").text
    words = browser.get(f"/release/{release_id}").words
    for part in (
        "300 rows",
        shown["bundle_sha256"],
        shown["translation"],
        *shown["not_covered"],
        *shown["columns"],
        *[check["rule"] for check in shown["checks"]],
        *shown["audit"]["sentences"],
        "1 to 50 of 300",
        "exactly the 12 planned columns",
    ):
        assert " ".join(str(part).split()) in words, part
    row = ready.json("outbox", "show", release_id, "--rows", "60")["first_rows"]
    assert f"{row[0]['sbp']:.6g}" in words
    assert f"{row[55]['sbp']:.6g}" in browser.get(f"/release/{release_id}?page=2").words
    for number in ("0", "999", "-1", "x"):
        assert browser.get(f"/release/{release_id}?page={number}").status == 200


def test_the_budget_is_a_statement_and_the_audit_verifies(ready, browser):
    released(ready)
    browser.login()
    total = ready.json("budget")["totals"][0]
    words = browser.get("/budget").words
    assert f"ε = {shown_price(total['epsilon'], 'the flow')}" in words
    assert "no ε covers it" in words
    words = browser.get("/audit").words
    assert ready.json("audit", "verify")["head"] in words
    assert "plan approved" in words


def test_a_new_plan_shows_its_difference_before_anything_else(ready, browser, plan):
    ready.publish(replace(plan, version=2, title="A larger study"))
    ready("plan", "fetch", "mini")
    browser.login()
    words = browser.get("/plans").words
    assert "not approved here" in words
    assert words.index("Changed since the version that was approved here") < words.index("What leaves")


def test_an_unknown_or_damaged_release_is_a_refusal_in_words(ready, browser):
    release_id = released(ready)
    browser.login()
    assert browser.get("/release/0000").status == 409
    assert browser.get("/release/..%2f..%2fsite.toml").status == 404
    path = ready.home / "sealed" / release_id / "bundle.zip"
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    answer = browser.get(f"/release/{release_id}")
    assert answer.status == 409
    assert "E_INTEGRITY" in answer.words


# -- decisions ------------------------------------------------------------------------------------------------------
def test_approving_on_the_page_sends_the_same_envelope_as_the_command(ready, browser):
    release_id = released(ready)
    shutil.copytree(ready.home, ready.folder / "copy")
    browser.login()
    words = browser.post(f"/release/{release_id}/approve", decision(ready, release_id)).words
    assert "accepted these bytes" in words
    ((envelope, data),) = ready.hub.sent
    shutil.rmtree(ready.home)
    shutil.copytree(ready.folder / "copy", ready.home)
    ticks = [word for name in decision(ready, release_id)["tick"] for word in ("--tick", name)]
    ready("approve", release_id, "--as", "dr-lind", *ticks)
    assert ready.hub.sent[1] == (envelope, data)
    stated = (ready.home / "sealed" / release_id / "statement.json").read_bytes()
    assert stated == envelope.to_bytes()


def test_the_page_asks_for_the_passphrase_the_bytes_shown_and_every_tick(ready, browser, monkeypatch, table):
    table["grade"] = ["low"] * 220 + ["middle"] * 78 + ["high"] * 2
    table["clinic"] = ["north"] * 220 + ["south"] * 78 + ["west"] * 2
    ready.with_table(table)
    release_id = released(ready)
    browser.login()
    right = decision(ready, release_id)
    assert right["tick"] == ["rare-levels"]
    assert "I have looked at the warning" in browser.get(f"/release/{release_id}").words
    for change, code in (
        ({"passphrase": ""}, "E_PASSPHRASE"),  # the environment has one, and the page never asks it
        ({"passphrase": "not the passphrase"}, "E_PASSPHRASE"),
        ({"name": "mallory"}, "E_CONFIG"),
        ({"bundle_sha256": "0" * 64}, "E_NOT_APPROVED"),
        ({"tick": []}, "E_NOT_APPROVED"),
        ({"tick": ["nonsense", "rare-levels"]}, "E_PARAMETER|E_USAGE"),
    ):
        answer = browser.post(f"/release/{release_id}/approve", {**right, **change})
        assert answer.status == 409, change
        assert re.search(code, answer.text), change
    assert ready.hub.sent == []
    assert "accepted these bytes" in browser.post(f"/release/{release_id}/approve", right).words


def test_two_people_decide_one_after_the_other(ready, browser):
    toml = ready.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", "[floors]\napprovals = 2\n"))
    release_id = released(ready)
    browser.login()
    right = decision(ready, release_id)
    assert "waits for another approver" in browser.post(f"/release/{release_id}/approve", right).words
    assert browser.post(f"/release/{release_id}/approve", right).status == 409
    other = {**right, "name": "dr-berg"}
    assert "accepted these bytes" in browser.post(f"/release/{release_id}/approve", other).words


def test_reject_send_back_withdraw_and_pause(ready, browser):
    first = released(ready)
    browser.login()
    who = {"name": "dr-berg", "passphrase": PASSPHRASE}
    assert browser.post(f"/release/{first}/decline", {**who, "verb": "send-back", "reason": " "}).status == 409
    browser.post(f"/release/{first}/decline", {**who, "verb": "send-back", "reason": "why?"})
    assert ready.json("outbox", "list")["releases"][0]["state"] == "sent_back"
    browser.post("/pause", {})
    assert "E_CONFIG" in browser.post("/resume", {}).text
    assert "E_PASSPHRASE" in browser.post("/resume", {**who, "passphrase": "a guess"}).text
    answer = browser.post(f"/release/{first}/approve", decision(ready, first))
    assert "E_PAUSED" in answer.text
    assert "This site is paused" in browser.get("/").words
    browser.post("/resume", who)
    browser.post(f"/release/{first}/approve", decision(ready, first))
    answer = browser.post(f"/release/{first}/withdraw", {**who, "reason": "consent", "note": "one person"})
    assert "Withdrawn" in answer.words
    assert len(ready.hub.buried) == 1
    ready.with_table(make_table(300, seed=3))
    second = released(ready, wave=2)
    browser.post(f"/release/{second}/decline", {**who, "verb": "reject", "reason": "too soon"})
    assert [row["state"] for row in ready.json("outbox", "list")["releases"]] == ["withdrawn", "rejected"]


def test_after_leaving_the_page_the_cookie_is_worth_nothing(browser):
    browser.login()
    browser.post("/logout", {})
    assert browser.get("/").status == 303


def test_a_certificate_that_did_not_renew_is_told_on_every_page(ready, browser, monkeypatch, tmp_path):
    browser.login()
    assert "The certificate of this site" not in browser.get("/").words
    clock = tmp_path / "seconds"
    clock.write_text(f"{340 * 86_400}")  # it lasts 365 days here
    monkeypatch.setenv("TRIBUTARY_CLOCK", str(clock))
    for path in PATHS:
        assert "days left: it ends on" in browser.get(path).words, path
