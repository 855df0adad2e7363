"""What an answer's page gives for a paper, two answers side by side, and budgets; looked at in Chromium as well."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import io
import json
import zipfile
from types import SimpleNamespace

import pytest
from stage.browser.web_stage import HOSTILE, QUESTION, stage, words  # noqa: F401
from stage.browser.windows import chromium, enter, fits, opened, window  # noqa: F401
from stage.browser.workbench import PAGES, Read, csrf, reader, result, token  # noqa: F401
from stage.coordinator_side.doors import SITES as HOUSES
from stage.coordinator_side.doors import House

from coordinator.analyst.elsewhere import methods_text
from coordinator.analyst.shown import pooled_line
from coordinator.planning.plan_form import COLUMN_FIELDS, first_form
from coordinator.planning.price import cost, prices
from coordinator.planning.review import review
from coordinator.web.interface.crate import METADATA
from coordinator.web.interface.receipts import before
from coordinator.web.workbench import forms
from shared.base.canonical import sha256_hex
from shared.errors import SchemaRefusal
from shared.plans.plan import StudyPlan
from shared.privacy.stated import shown_epsilon

KM = {"kind": "km", "formula": "Surv(time, cvd) ~ 1", "options": {"at": "5"}}
CUT = """[...document.querySelectorAll("h1, h2, p, li, dd, dt, label, button, summary, legend")].filter(one => {
  const look = getComputedStyle(one);
  const apart = !one.checkVisibility() || one.closest(".scroll, .sr, .skip, .figure, pre") || look.display === "inline";
  return !apart && look.overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1;
}).length"""
"""How many texts are cut off by a box of their own."""


@pytest.fixture(scope="module")
def web(stage, token):
    with stage.web(token) as client:
        yield client


@pytest.fixture(scope="module")
def other(web) -> str:
    """The id of another answer."""
    asked = web.post("/v1/studies/cvd/queries", json=KM)
    return asked.json()["result"]


# -- for a paper --------------------------------------------------------------------------------------------------
def test_the_methods_paragraph_says_what_was_done_with_each_number_on_its_scale(web, reader, result):
    answer = web.get(f"/v1/studies/cvd/results/{result['cvd']}").json()["answer"]
    said = methods_text(answer)
    text = " ".join(said)
    made = ("restricted maximum likelihood", "log scale", "95 % intervals", "n = 1,200")
    for part in (answer["asked"]["estimand"], *made):
        assert part in text
    assert answer["provenance"]["plan"]["hash"] in text
    assert "it is exploratory" in text
    assert text in words(reader.get(f"/studies/cvd/results/{result['cvd']}"))
    assert "The answer rests on version 1 of the study's signed plan" in text
    newer = {**answer["provenance"], "plan": {**answer["provenance"]["plan"], "version": 2}}
    amended = " ".join(methods_text({**answer, "provenance": newer}))
    assert "The releases were made under version 1, and answered under version 2 of the study's signed plan" in amended
    shorter = {**answer, "planned": "adjusted", "k": 1, "excluded": [{"label": "east", "reason": "no events"}]}
    text = " ".join(methods_text(shorter))
    assert "stands in the plan as 'adjusted'" in text
    assert "east was left out: no events." in text
    assert "Estimates were pooled" not in text


def test_a_crate_holds_the_answer_and_names_every_file_by_its_hash(web, reader, result):
    place = f"/studies/cvd/results/{result['cvd']}/crate.zip"
    found = reader.get(place)
    assert found.headers["content-type"] == "application/zip"
    assert found.content == web.get(f"/v1{place}").content, "the same answer gives the same bytes"
    with zipfile.ZipFile(io.BytesIO(found.content)) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    graph = {one["@id"]: one for one in json.loads(held.pop(METADATA))["@graph"]}
    assert graph[METADATA]["about"] == {"@id": "./"}
    assert {part["@id"] for part in graph["./"]["hasPart"]} == set(held)
    assert {name: graph[name]["sha256"] for name in held} == {name: sha256_hex(data) for name, data in held.items()}
    answer = web.get(f"/v1/studies/cvd/results/{result['cvd']}").json()["answer"]
    assert json.loads(held["answer.json"]) == answer
    assert held["forest.svg"] == web.get(f"/v1/studies/cvd/results/{result['cvd']}/forest.svg").content
    assert held["methods.txt"].decode().strip() == " ".join(methods_text(answer))
    made = graph["#computation"]
    assert {one["@id"] for one in made["object"]} == {f"urn:sha256:{one}" for one in answer["provenance"]["bundles"]}
    assert all(one["@id"] in graph for one in (*made["object"], *made["instrument"], made["result"]))


# -- side by side -------------------------------------------------------------------------------------------------
def test_two_answers_stand_side_by_side_with_what_differs(web, reader, result, other):
    page = reader.get(f"/studies/cvd/compare?a={result['cvd']}&b={other[:12]}")
    said = words(page)
    for result_id in (result["cvd"], other):
        assert pooled_line(web.get(f"/v1/studies/cvd/results/{result_id}").json()["answer"]) in said
        assert f"/studies/cvd/results/{result_id}/forest.svg" in page.text
    assert page.text.count("differs</span>") == 3, "question, term and effect"
    assert "not independent" in said
    chosen = reader.get(f"/studies/cvd/compare?a={other}")
    assert f"?a={other}&amp;b={result['cvd'][:16]}" in chosen.text
    assert "E_STATE" in reader.get("/studies/cvd/compare?a=0000&b=1111").text


def test_an_answer_stands_beside_one_of_another_study_that_its_reader_may_read(stage, web, reader, result):
    beside = web.post("/v1/studies/odd/queries", json={**QUESTION, "formula": "Surv(time, cvd) ~ sbp/10"}).json()
    page = reader.get(f"/studies/cvd/compare?a={result['cvd']}&b=odd/{beside['result'][:16]}")
    said = words(page)
    assert pooled_line(beside) in said
    assert "study cvd odd differs" in said
    assert f"/studies/odd/results/{beside['result']}/forest.svg" in page.text
    with stage.web() as client:
        client.post("/sign-in", data={"token": stage.admit("one-study")})
        assert client.get(f"/studies/cvd/compare?a={result['cvd']}&b=odd/{beside['result']}").status_code == 403


def test_of_more_sites_than_a_page_holds_it_is_said_how_many_are_compared(reader, result, other, monkeypatch):
    monkeypatch.setattr("coordinator.web.workbench.pages.PAGE", 2)
    said = words(reader.get(f"/studies/cvd/compare?a={result['cvd']}&b={other}"))
    assert "The first 2 of 3 sites" in said
    assert "gamma" not in said


def test_curves_stand_on_the_page_of_their_answer(web, reader, other):
    bent = web.post("/v1/studies/cvd/queries", json={"formula": "logistic(cvd) ~ ns(age, df = 2) + sbp/10"}).json()
    for result_id, kind, said in (
        (bent["result"], "dose-response", "Light band: simultaneous"),
        (other, "curve", "Privatised rows at risk"),
    ):
        place = f"/studies/cvd/results/{result_id}"
        assert f'src="{place}/{kind}.svg"' in reader.get(place).text
        assert said in reader.get(f"{place}/{kind}.svg").text
    assert "dose-response" not in reader.get(f"/studies/cvd/results/{other}").text


# -- releases -----------------------------------------------------------------------------------------------------
def test_a_release_says_what_changed_since_the_sites_wave_before(tmp_path):
    house = House(tmp_path / "hub")
    house.second_wave()
    with house.client() as client:
        found = client.get("/v1/studies/cvd/receipts").json()["receipts"]
        paged = client.get("/v1/studies/cvd/receipts?most=3&newest=true").json()["receipts"]
        assert client.post("/sign-in", data={"token": house.token.token}).status_code == 303
        page = client.get("/studies/cvd/releases")
        assert "No wave of the plan is left." in words(client.get("/studies/cvd/budgets"))
        everybody = sum(n + (n + 30) for n in HOUSES.values())
        assert f"persons, each once {everybody:,}" in words(client.get("/studies/cvd")), (
            "of both waves: the plan appends"
        )
    house.running.stop(1)
    assert [one["since"] for one in found if one["wave"] == 1] == [None] * 3
    second = {one["site"]: one["since"] for one in found if one["wave"] == 2}
    assert second == {one["site"]: one["since"] for one in paged}, "a page says what the whole list does"
    for site, n in HOUSES.items():
        assert second[site]["wave"] == 1
        assert second[site]["changes"] == [["persons", f"{n}", f"{n + 30}"]]
        assert second[site]["not_covered"] == second[site]["no_longer_covered"] == []
    assert page.text.count("What changed since wave 1: persons") == 3


def test_receipts_of_a_site_are_read_without_those_of_all_others(tmp_path, monkeypatch):
    house, read = House(tmp_path / "hub"), []
    house.second_wave()
    store = house.running._analysis.web.api.derived._store
    whole = store.releases_of
    monkeypatch.setattr(store, "releases_of", lambda asked: read.extend(some := [*asked]) or whole(some))
    with house.client() as client:
        first, second = client.get(f"/v1/studies/cvd/receipts?site={min(HOUSES)}").json()["receipts"]
    house.running.stop(1)
    assert second["since"]["wave"] == 1
    assert {*read} <= {first["bundle_sha256"], second["bundle_sha256"]}


def test_what_changed_is_against_the_newest_earlier_wave_that_was_not_withdrawn():
    def line(wave, site="north", withdrawn=""):
        facts = {"release_id": f"{site}{wave}", "bundle_sha256": f"b-{site}{wave}", "withdrawn": withdrawn}
        return SimpleNamespace(wave=wave, site=site, **facts)

    lines = [line(1), line(1, "south"), line(2, withdrawn="an error"), line(3), line(3, "south")]
    assert before(lines) == {"north2": "b-north1", "north3": "b-north1", "south3": "b-south1"}


# -- budgets ------------------------------------------------------------------------------------------------------
def test_budgets_say_what_is_spent_the_last_wave_that_the_cap_allows_and_what_no_epsilon_covers(web, reader):
    found = web.get("/v1/studies/cvd/budgets").json()
    (one,) = found["courses"]
    assert one["sites"] == ["alpha", "beta", "gamma"]
    assert one["last_affordable"] == one["planned"][-1][0] == found["waves"][-1]
    page = reader.get("/studies/cvd/budgets")
    said = words(page)
    assert f"wave {one['last_affordable']}" in said
    assert shown_epsilon(found["cap"] - one["spent"][0][1]) in said
    assert 'class="spent"' in page.text
    assert "url(#hatched)" not in page.text
    nothing = web.get("/v1/studies/odd/budgets").json()
    assert nothing["courses"] == []
    assert set(nothing["open"]) == {"odd-alpha", "odd-beta", "odd-gamma"}
    page = reader.get("/studies/odd/budgets")
    assert page.text.count('fill="url(#hatched)"') == 3
    assert "No ε covers it" in words(page)


# -- a plan in the making -----------------------------------------------------------------------------------------
def fields(form) -> dict[str, list[str] | str]:
    cells = {f"column_{name}": [one[name] for one in form["columns"]] for name in COLUMN_FIELDS}
    return {**{name: text for name, text in form.items() if name != "columns"}, **cells}


def test_a_lead_designs_a_plan_whose_file_is_checked_as_the_command_checks_it(stage, reader):
    form = first_form(coordinator="tributary-hub", today=dt.datetime.now(dt.UTC).date())
    given = {**fields(form), "csrf": csrf(reader, "/design")}
    text = reader.post("/design/plan.toml", data=given).text
    plan = StudyPlan.from_toml(text)
    assert all(line.state != "fail" for line in review(text, today=dt.datetime.now(dt.UTC).date())[1])
    said = reader.post("/design", data=given)
    assert "every line holds" in words(said)
    assert plan.hash[:16] in words(said)
    assert shown_epsilon(cost(plan).waves[-1].total) in words(said), "the burn-down is plan cost's"
    assert all(one.name in words(said) for one in prices(plan))
    dearer = reader.post("/design", data={**given, "cap": "1"}, headers={"accept": "text/x-fragment"})
    assert "<html" not in dearer.text
    assert "every line holds" not in words(dearer)
    odd = reader.post("/design", data={**given, "title": HOSTILE, "delta": "small", "first": "soon"})
    assert "not complete" in words(odd)
    assert Read(odd.text).acting == []
    assert "E_SCHEMA" in reader.post("/design", data={**given, "keys": "x"}).text
    taken = words(reader.post("/design", data={**given, "study": "cvd"}))
    assert "1, and version 1 is signed already" in taken
    assert "not complete" in taken
    assert "Burn-down" in taken
    with stage.web() as client:
        client.post("/sign-in", data={"token": stage.admit("annette")})
        assert client.get("/design").status_code == 403
        assert "E_ROLE" in client.post("/design", data={**given, "csrf": csrf(client)}).text
    with stage.web() as client:
        client.post("/sign-in", data={"token": stage.admit("lena", ("lungs",), "lead")})
        own = {**given, "csrf": csrf(client, "/design")}
        assert "signed already" in words(client.post("/design", data={**own, "study": "lungs"}))
        assert "signed" not in words(
            client.post("/design", data={**own, "study": "cvd"}, headers={"accept": "text/x-fragment"})
        )


# -- one site's scale ---------------------------------------------------------------------------------------------
def test_a_column_on_one_sites_scale_is_part_of_the_form():
    given = [("kind", "mean"), ("outcome", "sbp"), ("harmonise", "sbp"), ("to", "alpha"), ("densities", "beside")]
    asked = forms.query_request("cvd", given, {})
    assert (asked.harmonise, asked.to, asked.densities) == ("sbp", "alpha", "beside")
    planned = forms.query_request("cvd", [("planned", "adjusted"), ("harmonise", "sbp"), ("to", "alpha")], {})
    assert (planned.formula, planned.harmonise, planned.to) == ("adjusted", "sbp", "alpha")
    assert forms.query_request("cvd", [("planned", "adjusted"), ("densities", "beside")], {}).densities == ""
    with pytest.raises(SchemaRefusal, match="come with the site"):
        forms.query_request("cvd", [("planned", "adjusted"), ("harmonise", "sbp")], {})


def test_kaplan_meier_curves_are_drawn_over_https_as_over_grpc(stage, token, web, reader, other):
    from shared.wire.analyst_messages import QueryRequest

    answered = web.post("/v1/studies/cvd/queries", json=KM)
    with stage.grpc(token) as client:
        assert client.call("Query", QueryRequest(study="cvd", **KM), timeout=60).json == answered.content
    curves = answered.json()["curves"]
    assert [one["label"] for one in curves["curves"]] == ["alpha", "beta", "gamma"]
    drawn = web.get(f"/v1/studies/cvd/results/{other}/curve.svg")
    assert drawn.status_code == 200
    assert drawn.text.count("alpha") >= 1
    assert f"/results/{other}/curve.svg" in reader.get(f"/studies/cvd/results/{other}").text
    cox = web.post("/v1/studies/cvd/queries", json=QUESTION).json()["result"]
    refused = web.get(f"/v1/studies/cvd/results/{cox}/curve.svg")
    assert refused.json()["code"] == "E_PARAMETER"


# -- in a real browser --------------------------------------------------------------------------------------------
def test_a_paragraph_is_copied_and_two_answers_are_compared_from_the_page(window, token, result, other):
    enter(window, token)
    window.goto(f"/studies/cvd/results/{other}")
    window.get_by_text("Methods paragraph").click()
    assert "normal" in window.inner_text("#methods") or "Knapp" in window.inner_text("#methods")
    window.get_by_role("link", name="Compare with another answer").click()
    window.get_by_role("link", name=result["cvd"][:12]).click()
    window.get_by_role("heading", name="What differs").wait_for()
    # A function: the page's own policy forbids an expression that it would have to evaluate.
    window.wait_for_function("() => [...document.images].every(one => one.complete && one.naturalWidth > 100)")
    assert fits(window)
    window.goto("/studies/cvd/budgets")
    box = window.locator("svg.burn rect.spent").first.bounding_box()
    assert min(box["width"], box["height"]) > 10
    assert fits(window)


def test_a_plan_is_checked_beside_its_form_while_it_is_typed(window, token):
    enter(window, token)
    window.get_by_role("link", name="Design a new study's plan").click()
    window.get_by_text("every line holds").wait_for(timeout=60_000)
    window.get_by_label("Budget ε, all waves").fill("1")
    window.get_by_text("not complete").wait_for(timeout=60_000)
    assert fits(window)


def test_at_twice_the_size_nothing_is_cut_off_and_nothing_is_lost(stage, chromium, token, result, other):
    """WCAG 2.2, 1.4.4 and 1.4.10: a browser's 200 % halves the window in CSS pixels; text alone may double as well."""
    size = {"width": 640, "height": 400}
    with opened(chromium, stage.url, viewport=size, device_scale_factor=2) as page:
        enter(page, token)
        paths = [*(f"/studies/cvd{one}" for one in PAGES), f"/studies/cvd/results/{result['cvd']}", "/design"]
        paths += [
            f"/studies/odd/compare?a={result['odd']}&b={result['other']}",
            f"/studies/odd/results/{result['table']}",
        ]
        for path in paths:
            page.goto(path)
            assert fits(page), path
            page.evaluate("document.documentElement.style.fontSize = '200%'")
            assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") == 32, path
            assert fits(page), path
            cut = page.evaluate(CUT)
            assert cut == 0, path
