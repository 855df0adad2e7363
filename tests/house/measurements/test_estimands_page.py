"""The page that says what each answer is checked against is what its command writes, and names what is there."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from stage.coordinator_side.doors import COLUMNS, STUDIES
from stage.coordinator_side.doors_asked import QUESTIONS

from coordinator.planning.price import cost, prices
from coordinator.planning.review import review
from shared.estimands.kinds import KINDS
from tests.benchmarks import estimands_page
from tests.stage.house.sources import located


def test_the_page_is_what_the_command_writes():
    written = estimands_page.PAGE.read_text(encoding="utf-8")
    assert written == estimands_page.page(), "run python -m tests.benchmarks.estimands_page"


def test_every_kind_of_question_is_on_it_and_every_test_that_it_names_is_there():
    rows = estimands_page.rows()
    assert {row.kind for row in rows} == set(KINDS)
    assert len({row.model for row in rows}) == len(rows)
    for row in rows:
        file, _, name = row.test.partition("::")
        text = (estimands_page.ROOT / located(file)).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, flags=re.MULTILINE), row.test


@pytest.mark.parametrize("text", [one.text for one in QUESTIONS if one.kind])
def test_a_plan_that_names_any_of_them_is_read_checked_and_priced(text):
    draft = (STUDIES / "cvd.toml").read_text(encoding="utf-8") + COLUMNS
    plain, _ = review(draft, today=dt.date(2026, 1, 1))
    plan, lines = review(draft.replace("[estimands]", f"[estimands]\nasked = '''{text}'''"), today=dt.date(2026, 1, 1))
    assert [line.state for line in lines if line.name == "estimand asked"] == ["ok"]
    assert plan.estimands["asked"] == text
    assert cost(plan) == cost(plain), "rows cost the same, whatever is asked of them"
    assert prices(plan)


def test_coverage_that_was_not_measured_or_lies_outside_is_never_a_plain_number():
    assert estimands_page.covered("", []) is None
    with pytest.raises(ValueError, match="no cells"):
        estimands_page.covered("survival_coverage:no such question", [])
    known = estimands_page.covered("survival_coverage:schoenfeld(", [])
    assert [one.outside for one in known] == [False, False, True]
    assert known[2].text == "**99.5 to 100.0**"
    plain = "survival_coverage:cox(years, died) ~ x"
    assert estimands_page.covered(plain, [plain])[0].text == "93.5 to 94.5"
