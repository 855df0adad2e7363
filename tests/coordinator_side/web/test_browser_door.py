"""The browser as a door: every question of the table of doors, asked by the workbench's form in Chromium.

What is compared is what a person reads: the sentence of the pooled result, the tables of models and sites, and what is
said of heterogeneity and noise, to the last printed digit, beside what Python prints of its own answer.
"""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import pytest
from stage.browser.windows import chromium, enter, opened  # noqa: F401
from stage.coordinator_side.doors_asked import NETWORKS, QUESTIONS, TABLES, house  # noqa: F401

from coordinator.analyst.remote import connect
from coordinator.analyst.show import pooled_text
from coordinator.analyst.shown import pooled_line
from coordinator.analyst.table_one import TableOne
from shared.estimands.kinds import OPTIONS

CHOSEN = {
    "mean(cvd, ~ sbp)": {"kind": "mean", "outcome": "sbp"},
    "difference(cvd, sbp ~ arm)": {"kind": "difference", "outcome": "sbp", "group": "arm"},
    "ratio(cvd, chol ~ arm)": {"kind": "ratio", "outcome": "chol", "group": "arm"},
    "correlation(cvd, ~ sbp + age)": {"kind": "correlation", "outcome": "sbp", "second": "age"},
    "two_by_two(cvd, cvd ~ arm)": {"kind": "two_by_two", "outcome": "cvd", "group": "arm"},
    "probit(cvd, cvd ~ age/10)": {"kind": "probit", "outcome": "cvd", "exposure": "age", "per": "10"},
    "ordinal(cvd, smoking ~ age/10)": {"kind": "ordinal", "outcome": "smoking", "exposure": "age", "per": "10"},
    "gee(cvd, sbp ~ age/10, corstr = 'independence', cluster = 'chol')": {
        "kind": "gee",
        "outcome": "sbp",
        "exposure": "age",
        "per": "10",
        "corstr": "independence",
        "cluster": "chol",
    },
    "multinomial(cvd, smoking ~ age/10)": {"kind": "multinomial", "outcome": "smoking", "exposure": "age", "per": "10"},
    "km(cvd, Surv(time, cvd) ~ arm, at = 5)": {"kind": "km", "group": "arm", "at": "5"},
    "rmst(cvd, Surv(time, cvd) ~ arm, tau = 8)": {"kind": "rmst", "group": "arm", "tau": "8"},
    "planned(cvd, 'adjusted')": {"planned": "adjusted"},
}
"""Questions that the form's own controls say, without a formula; by what R asks."""


@pytest.fixture(scope="module")
def window(house, chromium):
    """One window, signed in, for all questions."""
    with opened(chromium, house.url, viewport={"width": 1280, "height": 900}) as page:
        enter(page, house.token.token)
        yield page


def fill(window, name: str, value: str) -> None:
    """A field of the form, as a person fills it: what lies behind a summary is opened first."""
    field = window.locator(f"#ask [name={name}]")
    for summary in window.locator(f"#ask details:not([open]):has([name={name}]) > summary").all():
        summary.click()
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)


def asked(window, fields: dict[str, str], study: str = "cvd") -> None:
    """Ask with these fields of the form, and wait for the answer's page."""
    window.goto(f"/studies/{study}/ask")
    if planned := fields.get("planned"):
        window.locator(f"[name=planned][value={planned}]").check()
    if kind := fields.get("kind"):
        fill(window, "kind", kind)
    for name in fields.get("adjust", "").split():
        window.locator(f"[name=adjust][value={name}]").check()
    for name, value in fields.items():
        if name not in ("planned", "adjust"):
            fill(window, name, value)
    window.get_by_role("button", name="Ask", exact=True).click()
    window.wait_for_url("**/results/*")


def cells(window, table: str) -> list[list[str]]:
    """The rows of a table, their heads first."""
    rows = window.locator(f"[aria-label='{table}'] tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def compared(window, result) -> None:
    """That the answer's page says what Python prints of its answer, row by row."""
    assert window.url.endswith(result.id)
    assert window.inner_text(".headline") == pooled_line(result.document)
    text = pooled_text(result.pooled)
    assert cells(window, "Models") == [list(row) for row in text.models]
    assert [row[:4] for row in cells(window, "Estimates of the sites")] == [list(row) for row in text.rows]
    on_the_page = window.inner_text("main")
    assert [sentence for sentence in text.sentences if sentence not in on_the_page] == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: one.r)
def test_a_question_asked_by_the_form_prints_what_python_prints(house, window, one):
    fields = {"kind": one.kind, "formula": one.formula} if one.kind else {"planned": one.formula}
    fields |= {name: f"{value}" for name, value in one.options.items()}
    assert set(fields) <= {"kind", "formula", "planned", "subset", *OPTIONS}
    asked(window, fields)
    with connect(house.token) as connection:
        compared(window, connection["cvd"].query(one.kind, one.formula, **one.options))


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_question_asked_by_choosing_alone_is_the_same(house, window, name):
    (one,) = (one for one in QUESTIONS if one.r == name)
    asked(window, CHOSEN[name])
    with connect(house.token) as connection:
        compared(window, connection["cvd"].query(one.kind, one.formula, **one.options))


CHOSEN_TABLES = {
    "table_one": {"adjust": "age smoking", "by": "arm"},
    "crosstab": {"outcome": "smoking", "second": "arm"},
    "histogram": {"outcome": "age", "breaks": "6"},
}


@pytest.mark.parametrize("one", TABLES, ids=lambda one: one.r)
def test_a_table_asked_by_the_form_prints_the_cells_that_python_prints(house, window, one):
    asked(window, {"kind": one.kind, **CHOSEN_TABLES[one.kind]})
    with connect(house.token) as connection:
        found = TableOne(connection["cvd"].query(one.kind, one.formula, **one.options).document)
    assert window.url.endswith(found.id)
    heads, rows = found.wide()
    assert window.locator("[aria-label='All sites'] thead th").all_inner_texts() == heads
    assert cells(window, "All sites") == rows
    assert found.heading in window.inner_text("main")
    with window.expect_download() as saved:
        window.get_by_role("link", name="each site as CSV").click()
    saved = saved.value.path().read_text(encoding="utf-8")
    assert all(site in saved for site in (*house.sites, "all sites"))


def test_a_network_is_asked_by_choosing(house, chromium, tmp_path):
    token, _ = house.networks(tmp_path)
    with opened(chromium, house.url, viewport={"width": 1280, "height": 900}) as page:
        enter(page, token.token)
        for path in ("", "/waves", "/budgets", "/releases", "/log"):
            assert page.goto(f"/studies/contacts{path}").status == 200, path
        asked(page, {"kind": "network", "statistic": "edge"}, "contacts")
        with connect(token) as connection:
            compared(page, connection["contacts"].query(NETWORKS[0].kind, NETWORKS[0].formula))
