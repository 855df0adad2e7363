"""The workbench: who is let in, what pages say, that nothing of others runs in them, and how they work in Chromium."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from stage.browser.web_stage import HOSTILE, QUESTION, WebStage, stage, words  # noqa: F401
from stage.browser.windows import axe, barriers, chromium, enter, fits, keep, window  # noqa: F401
from stage.browser.workbench import PAGES, Read, csrf, reader, result, token  # noqa: F401
from stage.coordinator_side.delivered import TODAY, cohort, cohort_plan, join, quarantine, take_back

from coordinator.analyst.show import p_shown
from coordinator.pooling.diagnostics import influence
from coordinator.pooling.further.refits import leave_one_out
from coordinator.store.store import Store
from coordinator.web.interface.reading import result_of
from coordinator.web.sign_in.kept import SignInStore
from coordinator.web.sign_in.sessions import COOKIE, IDLE, LONGEST, OF_ONE, Sessions, SignedIn
from coordinator.web.workbench import forms
from coordinator.web.workbench.pages import PAGE, POLICY, Pages
from shared.base.keys import Envelope
from shared.base.merkle import leaf_hash, verify_inclusion
from shared.errors import SchemaRefusal
from shared.estimands.kinds import KINDS
from shared.terminal import number
from shared.wire.tree_heads import said_head

ROOT = Path(__file__).resolve().parents[3]
FORM = {"planned": "", "kind": "cox", "time": "time", "event": "cvd", "exposure": "sbp", "per": "10", "adjust": ["age"]}
BROKEN = """[...document.querySelectorAll("td.n")].filter(cell => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return new Set([...text.getClientRects()].map(line => Math.round(line.top))).size > 1;
}).map(cell => cell.textContent)"""
"""Numbers that stand on more than one line."""
COLUMNS = {
    "sbp": {"kind": "continuous", "levels": []},
    "age": {"kind": "integer", "levels": []},
    "sex": {"kind": "nominal", "levels": ["female", "male"]},
    "arm": {"kind": "binary", "levels": [0, 1]},
}


# -- who is let in --------------------------------------------------------------------------------------------------
def test_without_a_session_every_page_leads_to_the_sign_in(stage):
    with stage.web() as client:
        for path in ("/", *(f"/studies/cvd{one}" for one in PAGES), "/studies/cvd/results/00", "/jobs/00/events"):
            assert (client.get(path).status_code, client.get(path).headers["location"]) == (303, "/sign-in"), path
        refused = client.post("/sign-in", data={"token": "0123456789abcdef.wrong"})
        assert refused.status_code == 401
        assert "E_ACCESS" in words(refused)
        assert "set-cookie" not in refused.headers


def test_the_session_is_behind_a_cookie_that_no_script_and_no_other_site_reads(stage, token):
    with stage.web() as client:
        given = client.post("/sign-in", data={"token": token}).headers["set-cookie"]
        assert given.startswith(f"{COOKIE}=")
        assert token not in given
        assert {"httponly", "secure", "samesite=strict", "path=/"} <= set(given.lower().split("; "))
        assert "domain" not in given.lower()
        client.post("/sign-out", data={"csrf": csrf(client)})
        assert client.get("/").status_code == 303


@pytest.mark.parametrize("headers", [{"origin": "https://elsewhere.org"}, {"sec-fetch-site": "cross-site"}])
def test_a_form_of_another_site_asks_nothing(stage, token, reader, headers):
    before = reader.get("/studies/cvd/log").text
    for path in ("/studies/cvd/ask", "/studies/cvd/begin", "/sign-out"):
        assert reader.post(path, data={**FORM, "csrf": csrf(reader)}, headers=headers).status_code == 400
    assert reader.post("/studies/cvd/ask", data={**FORM, "csrf": "another"}).status_code == 400
    assert reader.post("/studies/cvd/ask", data=FORM).status_code == 400
    assert reader.get("/studies/cvd/log").text == before
    with stage.web() as client:
        assert client.post("/sign-in", data={"token": token}, headers=headers).status_code == 401


def test_a_token_that_is_taken_back_ends_its_sessions(stage):
    with stage.web() as client:
        client.post("/sign-in", data={"token": stage.admit("gone-too")})
        assert client.get("/studies/cvd").status_code == 200
        stage.analysts.revoke("gone-too", today=TODAY)
        assert client.get("/studies/cvd").status_code == 401
        assert client.get("/studies/cvd").headers["location"] == "/sign-in"


def test_a_session_ends_when_it_is_idle_when_it_is_old_and_when_there_are_too_many(tmp_path):
    now = [0.0]
    sessions = Sessions(SignInStore(Store.open(tmp_path)), lambda: now[0])
    idle = sessions.enter("ada", "analyst", "t")
    now[0] = IDLE + 1
    assert sessions.find(idle) is None
    old = sessions.enter("ada", "analyst", "t")
    while now[0] < IDLE + LONGEST:
        now[0] += IDLE / 2
        assert sessions.find(old) is not None
    now[0] += IDLE / 2 + 2
    assert sessions.find(old) is None
    first = sessions.enter("ada", "analyst", "t")
    others = [sessions.enter("ada", "analyst", "t") for _ in range(OF_ONE)]
    assert sessions.find(first) is None
    assert all(sessions.find(one) for one in others)
    assert sessions.find("") is None


def test_a_first_run_is_explained_on_this_machine_until_somebody_holds_a_token(tmp_path):
    stage = WebStage(tmp_path / "hub")
    stage.publish(cohort_plan(), sites={})
    stage.start()
    try:
        with stage.web() as client:
            assert "coordinator analyst add NAME --study STUDY" in words(client.get("/sign-in"))
            stage.admit()
            assert "coordinator analyst add" not in words(client.get("/sign-in"))
    finally:
        stage.running.stop(0.2)
        stage.store.close()


# -- what they say --------------------------------------------------------------------------------------------------
def test_a_question_is_asked_by_the_form_and_its_answer_is_the_one_of_the_interface(stage, token, reader, result):
    sent = reader.post("/studies/cvd/ask", data={**FORM, "adjust": ["age"], "csrf": csrf(reader)})
    assert sent.status_code == 303
    page = reader.get(sent.headers["location"])
    with stage.web(token) as client:
        asked = client.post(
            "/v1/studies/cvd/queries", json={"kind": "cox", "formula": "Surv(time, cvd) ~ sbp/10 + age"}
        ).json()
        said = client.get(f"/v1/studies/cvd/results/{asked['result']}/words").json()
    assert sent.headers["location"].endswith(asked["result"])
    assert said["line"] in words(page)
    for text in (*said["sentences"], *asked["cautions"], asked["provenance"]["plan"]["hash"]):
        assert " ".join(text.split()) in words(page)
    assert "analyst query cvd" in words(page)
    assert reader.get(sent.headers["location"] + "/forest.svg").headers["content-type"] == "image/svg+xml"


def test_a_question_that_is_refused_stands_in_its_form_again(reader):
    sent = reader.post("/studies/cvd/ask", data={**FORM, "exposure": "", "csrf": csrf(reader)})
    assert sent.status_code == 400
    assert "Choose an exposure" in words(sent)
    assert re.search(r'id="adjust-\d+" name="adjust" value="age" checked', sent.text)


def test_an_analyst_sees_of_a_wave_what_has_arrived_and_a_lead_the_rest(stage, reader):
    assert "quarantined" in words(reader.get("/studies/cvd/waves"))
    with stage.web() as client:
        client.post("/sign-in", data={"token": stage.admit("ann-too")})
        page = words(client.get("/studies/cvd/waves"))
    assert "quarantined" not in page
    assert "delivered" in page


def test_a_lead_sees_who_takes_part_who_waits_and_what_was_set_aside(tmp_path):
    made = WebStage(tmp_path / "hub")
    made.publish(cohort_plan(), sites={"alpha": 300, "beta": 200})
    plan = made.store.plan("cvd").plan
    take_back(made.store, "beta", made.keys["beta"])
    quarantine(made.store, plan, "alpha", made.keys["alpha"], cohort(100, 9), wave=2)
    waits = made.authority.invite("delta", ["cvd"], address="localhost:1", leads=[made.lead.public], days=300)
    made.store.add_invitation(waits)
    key = join(made.store, waits, accepted=False)
    made.start()
    try:
        with made.web() as client:
            client.post("/sign-in", data={"token": made.admit("lea", role="lead")})
            page = client.get("/studies/cvd/sites")
            rows = {
                row[0]: row for row in re.findall(r'<tr>\s*<th scope="row">(\w+)</th>(.*?)</tr>', page.text, re.DOTALL)
            }
            said = {site: " ".join(re.sub(r"<[^>]+>", " ", text).split()) for site, text in rows.values()}
            assert said["alpha"].startswith(
                f"accepted 1 1 E_DICTIONARY {TODAY} – {made.keys['alpha'].public.fingerprint}"
            )
            assert said["beta"].startswith(f"accepted 0 and 1 withdrawn – {TODAY}")
            assert said["delta"] == f"pending 0 – – – {key.public.fingerprint}"
            assert "coordinator accept delta --fingerprint" in words(page)
            assert ">Sites</a>" in page.text
            client.post("/sign-in", data={"token": made.admit("ann")})
            refused = client.get("/studies/cvd/sites")
            assert (refused.status_code, "E_ROLE" in refused.text) == (403, True)
            assert ">Sites</a>" not in client.get("/studies/cvd").text
    finally:
        made.running.stop(0.2)
        made.store.close()


def test_a_lead_sees_for_whom_a_wave_waits_and_when_they_were_reminded(tmp_path):
    made = WebStage(tmp_path / "hub")
    made.publish(cohort_plan(), sites={"alpha": 300})
    for site in ("beta", "delta"):
        given = made.authority.invite(site, ["cvd"], address="localhost:1", leads=[made.lead.public], days=300)
        made.store.add_invitation(given)
        join(made.store, given)
    made.store.remind("cvd", 1, ["beta"], TODAY)
    made.start()
    try:
        with made.web() as client:
            client.post("/sign-in", data={"token": made.admit("lea", role="lead")})
            said = words(client.get("/studies/cvd/waves"))
            assert re.search(r"Wave 1 has been waited for \d+ days: beta, delta\.", said), said
            assert "coordinator wave remind cvd 1" in said
            assert f"waiting reminded {TODAY}" in said
            client.post("/sign-in", data={"token": made.admit("ann")})
            said = words(client.get("/studies/cvd/waves"))
            assert re.search(r"waited for \d+ days?\.", said)
            assert "remind" not in said
    finally:
        made.running.stop(0.2)
        made.store.close()


def test_columns_are_offered_with_their_meaning_unit_and_missing_share():
    column = {"name": "chol", "label": "total cholesterol", "unit": "mg/dL", "kind": "continuous", "levels": []}
    column |= {"missing_share": {"alpha": 0.02, "beta": 0.125}, "lacking": ["gamma"]}
    facts = {"estimands": {}, "delivered": [1], "sites": {"alpha": {}}}
    values = {"facts": facts, "columns": [column], "kinds": KINDS, "options": {}, "statistics": {}}
    values |= {
        "study": "cvd",
        "here": "ask",
        "methods": (),
        "tests": (),
        "chosen": {"planned": "", "adjust": []},
        "comparisons": (),
    }
    session = SignedIn(name="ada", role="analyst", token="", csrf="")
    page = Pages(None, None, None)._draw("ask.html", session, refusal=None, **values).body.decode()
    said = "up to 12.5 % missing; not at gamma"
    assert f"chol – total cholesterol (mg/dL); {said}</option>" in page
    assert f"total cholesterol, mg/dL; {said}</span>" in page


def test_a_sites_row_leads_to_its_parts_its_influence_and_the_others_without_it(stage, token, reader, result):
    place = f"/studies/cvd/results/{result['cvd']}"
    with stage.web(token) as web:
        document = web.get(f"/v1{place}").json()["answer"]
        said = web.get(f"/v1{place}/sites/beta").json()
        assert web.get(f"/v1{place}/sites/omega").json()["code"] == "E_PARAMETER"
    pooled = result_of(document).pooled
    without, found = dict(leave_one_out(pooled))["beta"], influence(pooled)
    at = found.labels.index("beta")
    assert [row[1] for row in said["without"]["rows"]] == [number(math.exp(fit.beta)) for fit in (pooled, without)]
    assert said["without"]["rows"][1][2:] == [
        f"{number(math.exp(without.ci_lb))} to {number(math.exp(without.ci_ub))}",
        p_shown(without.pval),
        number(without.tau2),
    ]
    assert [row[1] for row in said["influence"]["rows"]] == [
        number(values[at]) for values in (found.rstudent, found.cook_d, found.dfbeta, found.cov_r)
    ]
    row = next(one for one in document["rows"] if one["label"] == "beta")
    parts = [number(row[name] ** 0.5) for name in ("vi_sampling", "vi_privacy", "vi_naive")]
    facts = dict(said["facts"])
    assert facts["standard error by its parts"] == (
        f"patients and flow {parts[0]}, noise of the release {parts[1]}; {parts[2]} if released rows were patients"
    )
    link = re.search(r'<a href="([^"]+)">beta</a>', reader.get(place).text)[1]
    page = words(reader.get(link))
    assert link == f"{place}/sites/beta"
    for text in (*facts.values(), *said["sentences"], said["without"]["rows"][1][1], "Wave 1 accepted"):
        assert text in page
    assert "receipt" in page
    assert reader.get(f"{place}/sites/omega").status_code == 422


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"kind": "mean", "outcome": "sbp"}, ("mean", "sbp", {})),
        ({"kind": "difference", "outcome": "sbp", "group": "arm"}, ("difference", "sbp ~ arm", {})),
        ({"kind": "correlation", "outcome": "sbp", "second": "age"}, ("correlation", "~ sbp + age", {})),
        ({"kind": "histogram", "outcome": "age", "second": "sbp"}, ("histogram", "~ age", {})),
        ({"kind": "table_one", "adjust": "age", "by": "sex"}, ("table_one", "~ age", {"by": "sex"})),
        ({"kind": "network", "statistic": "edge", "across": "sex"}, ("network", "edge", {})),
        ({"kind": "network", "statistic": "recovery", "across": "sex"}, ("network", "recovery ~ sex", {})),
        ({"kind": "km", "time": "t", "event": "d", "at": "5"}, ("km", "Surv(t, d) ~ 1", {"at": "5"})),
        ({"kind": "ols", "outcome": "sbp", "exposure": "sex"}, ("ols", "sbp ~ C(sex)", {})),
        ({"kind": "ols", "outcome": "sbp", "exposure": "age", "ties": "efron"}, ("ols", "sbp ~ age", {})),
        (
            {"kind": "mean", "outcome": "sbp", "subset_column": "sex", "subset_is": "==", "subset_value": "male"},
            ("mean", "sbp", {"subset": 'sex == "male"'}),
        ),
        ({"kind": "cox", "formula": "Surv(t, d) ~ sbp*age"}, ("cox", "Surv(t, d) ~ sbp*age", {})),
        ({"planned": "adjusted", "kind": "cox"}, ("", "adjusted", {})),
    ],
)
def test_a_form_is_the_question_that_was_chosen(given, made):
    asked = forms.query_request("cvd", list(given.items()), COLUMNS)
    assert (asked.kind, asked.formula, dict(asked.options)) == made


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "cox", "time": "t"},
        {"kind": "nonsense"},
        {"kind": "network"},
        {"kind": "table_one", "outcome": "sbp"},
        {"kind": "network", "statistic": "recovery"},
        {"kind": "mean", "outcome": "sbp", "level": "high"},
        {"kind": "mean", "outcome": "sbp", "wave": "1.5"},
        {"kind": "mean", "outcome": "sbp", "subset_column": "sex", "subset_is": "==", "subset_value": 'a" | 1 == "1'},
        {"kind": "mean", "outcome": "sbp", "subset_column": "sex", "subset_is": ";", "subset_value": "male"},
        {},
    ],
)
def test_a_form_that_cannot_be_read_is_refused(given):
    with pytest.raises(SchemaRefusal):
        forms.query_request("cvd", list(given.items()), COLUMNS)


def test_fifty_sites_and_forty_waves_are_a_page_of_less_than_a_megabyte(reader):
    cells = [{"site": f"site-{i}", "state": "delivered", "day": "2026-01-05", "reminded": ""} for i in range(PAGE)]
    wave = {
        "opens": "2026-01-01",
        "closes": "2026-03-31",
        "state": "open",
        "quorum": 0,
        "delivered": 500,
        "cells": cells,
    }
    grid = {
        "sites": [one["site"] for one in cells],
        "waves": [{**wave, "number": number} for number in range(1, 41)],
        "waiting_days": None,
        "waiting_for": [],
        "words": {"delivered": "accepted"},
        "of": 500,
        "pages": 10,
    }
    values = {"grid": grid, "page": 1, "study": "cvd", "here": "waves"}
    drawn = Pages(None, None, None)._draw("waves.html", None, **values).body.decode()
    assert len(drawn) < 1 << 20
    assert drawn.count("<tr>") == PAGE + 2
    assert "further sites" in drawn
    assert "500 of 500" in drawn
    assert "delivered 3 of 3" in words(reader.get("/studies/cvd/waves?page=9"))
    assert reader.get("/studies/cvd/releases?page=x²").status_code == 200


# -- texts of others ------------------------------------------------------------------------------------------------


def test_names_and_texts_of_others_are_letters_on_every_page_and_in_every_figure(reader, result):
    assert Read(HOSTILE).acting, "this test could not fail"
    place = f"/studies/odd/results/{result['odd']}"
    seen = ""
    looks = f"/studies/odd/looks?results={result['odd']}&spending=pocock"
    for path in ("/", *(f"/studies/odd{one}" for one in PAGES), place, f"{place}/sites/odd-alpha", looks):
        page = reader.get(path)
        assert page.status_code == 200, path
        assert page.headers["content-security-policy"] == POLICY
        assert Read(page.text).acting == [], path
        assert "\u202e" not in page.text
        seen += words(page)
    assert "<script>alert(1)</script>" in seen
    assert "{{7*7}}" in seen
    for file in (f"{place}/forest.svg", f"{place}/funnel.svg", looks.replace("looks?", "looks.svg?")):
        drawn = reader.get(file)
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn.content).iter()}
        assert not names & {"script", "foreignObject", "image", "a"}
        assert "sandbox" in drawn.headers["content-security-policy"]


def test_a_policy_that_runs_only_this_sites_script_stands_on_every_page(reader):
    assert "unsafe" not in POLICY
    assert "script-src 'self'" in POLICY
    for path in ("/sign-in", "/", "/studies/none"):
        assert reader.get(path).headers["content-security-policy"] == POLICY


# -- in a real browser ----------------------------------------------------------------------------------------------
def test_a_question_is_chosen_spelled_asked_and_answered(window, token):
    enter(window, token)
    window.get_by_role("link", name="Systolic blood pressure and cardiovascular events").first.click()
    window.get_by_role("link", name="Ask a question").click()
    window.get_by_label("Exposure").select_option("sbp")
    window.get_by_label("Per so many of its units").fill("10")
    window.locator("[name=adjust][value=age]").check()
    window.get_by_text("cox(time, cvd) ~ sbp/10 + age – exploratory").wait_for()
    assert window.get_by_label("Outcome").is_hidden()
    assert fits(window)
    window.get_by_role("button", name="Ask", exact=True).click()
    window.wait_for_url("**/results/*")
    assert "pooled hazard ratio" in window.inner_text(".headline")
    forest = window.get_by_alt_text(re.compile("^Forest plot"))
    window.wait_for_function("() => document.querySelector('.figure img').complete")
    assert forest.evaluate("image => image.naturalWidth") > 100
    assert fits(window)


def first_proof(window) -> str:
    """What the page says of the newest release's place in the log, once it is asked to check it."""
    window.goto("/studies/cvd/releases")
    window.locator("summary").first.click()
    said = window.locator(".proof").first
    window.get_by_role("button", name="Check its proof").first.click()
    window.wait_for_function("() => [...document.querySelectorAll('.proof')].some(one => one.textContent)")
    return said.inner_text()


def test_the_page_itself_works_out_that_a_release_stands_in_a_log_that_only_grew(window, stage, token):
    enter(window, token)
    with stage.web(token) as web:
        newest = web.get("/v1/studies/cvd/receipts?most=1&newest=true").json()["receipts"][0]
        proof = web.get(f"/v1/studies/cvd/releases/{newest['release_id']}/proof").json()
    head = said_head(Envelope.from_bytes(proof["head"].encode()).payload)
    held = [bytes.fromhex(part) for part in proof["proof"]]
    leaf = leaf_hash(proof["entry"].encode())
    assert verify_inclusion(leaf, proof["index"], head.size, held, bytes.fromhex(head.root))
    expected = f"Holds: entry {proof['index']} leads to the root {head.root[:16]}… of the log of {head.size} entries"
    assert first_proof(window).startswith(expected)
    for back in range(1, head.size):  # every shape of a proof of growth
        root = stage.store.log()[back - 1].root
        window.evaluate("seen => localStorage.setItem('log', JSON.stringify(seen))", {"size": back, "root": root})
        assert f"from the log of {back} entries that this browser saw before" in first_proof(window)
    for seen, said in (
        ({"size": 3, "root": "ab" * 32}, "another one than when this browser last looked"),
        ({"size": head.size, "root": "ab" * 32}, "another one than when this browser last looked"),
        ({"size": head.size + 1, "root": head.root}, f"it had {head.size + 1}"),
    ):
        window.evaluate("seen => localStorage.setItem('log', JSON.stringify(seen))", seen)
        assert said in first_proof(window)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: {"proof": [*said["proof"][:-1], "00" * 32]}, "does not lead to the log's root"),
        (lambda said: {"proof": said["proof"][:-1]}, "does not lead to the log's root"),
        (lambda said: {"index": said["index"] - 1}, "does not lead to the log's root"),
        (lambda said: {"entry": said["entry"].replace('"bundle":"', '"bundle":"0')}, "of another release"),
        (lambda said: {"entry": said["entry"].replace("}", " }")}, "does not lead to the log's root"),
    ],
)
def test_a_proof_that_does_not_hold_is_said_to_be_none(window, stage, token, change, words):
    def altered(route) -> None:
        said = route.fetch().json()
        route.fulfill(json={**said, **change(said)})

    enter(window, token)
    window.route("**/proof?*", altered)
    assert words in first_proof(window)
    assert window.evaluate("localStorage.getItem('log')") is None, "what does not hold is not remembered"


def test_a_refusal_is_said_beside_the_form(window, token):
    enter(window, token)
    window.goto("/studies/cvd/ask")
    window.get_by_text("Write the formula yourself").click()
    window.get_by_label("Formula, as in R").fill("Surv(time, cvd) ~ weight")
    window.get_by_text("study cvd must have the column").wait_for()
    window.get_by_role("button", name="Ask", exact=True).click()
    window.locator("#problem .notice").wait_for()
    assert "weight" in window.inner_text("#problem")
    assert window.get_by_role("button", name="Ask", exact=True).is_enabled()


def test_a_planned_analysis_is_asked_by_keys_alone(window, token):
    enter(window, token)
    window.goto("/studies/cvd/ask")
    window.keyboard.press("Tab")
    assert window.evaluate("document.activeElement.className") == "skip"
    window.keyboard.press("Enter")
    for _ in range(4):
        window.keyboard.press("Tab")
        if window.evaluate("document.activeElement.name") == "planned":
            break
    window.keyboard.press("ArrowUp")  # from one's own question to the last planned one
    window.get_by_text("cox(time, cvd) ~ sbp/10 – planned: unadjusted").wait_for()
    window.keyboard.press("Enter")
    window.wait_for_url("**/results/*")
    assert "confirmatory" in window.inner_text("main")


def test_no_number_is_broken_over_lines_and_the_question_of_a_line_can_be_read(window, token, result):
    enter(window, token)
    window.goto(f"/studies/cvd/results/{result['cvd']}")
    assert window.locator("td.n").count() > 10
    assert window.evaluate(BROKEN) == []
    sentence = window.locator(".figured li").first.inner_text()
    assert re.search(r"τ² .+   Q .+   I² ", sentence), "its parts stand apart, as on a terminal"
    window.goto("/studies/cvd/log")
    assert window.locator("td.question").first.bounding_box()["width"] > 200


def test_no_page_has_a_barrier_that_axe_finds_and_none_is_wider_than_its_window(window, token, result, axe):
    # The mark-up is the same in both windows; only what colours and sizes decide is looked at twice.
    rules = () if window.viewport_size["width"] < 400 else ("color-contrast", "scrollable-region-focusable")
    window.goto("/sign-in")
    found = {"/sign-in": barriers(window, axe, rules=rules)}
    enter(window, token)
    answer = f"/studies/odd/results/{result['odd']}"
    paths = ["/", "/design", *(f"/studies/odd{one}" for one in PAGES), answer, f"{answer}/sites/odd-alpha"]
    paths += [f"/studies/odd/compare?a={result['odd']}&b={result['other']}"]
    paths += [f"/studies/odd/looks?results={result['odd']}&spending=pocock", f"/studies/odd/results/{result['table']}"]
    for path in paths:
        window.goto(path)
        for closed in window.locator("details:not([open]) > summary").all():
            if closed.is_visible():
                closed.click()
        found[path] = barriers(window, axe, rules=rules)
        assert fits(window), path
        keep(window, re.sub(r"\W+", "-", path.partition("?")[0].replace(result["odd"], "odd")).strip("-") or "studies")
    assert {path: names for path, names in found.items() if names} == {}
