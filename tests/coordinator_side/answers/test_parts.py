"""A question of many rows in parts: the same bits, worked out by several workers, and by one where parts fail."""

from __future__ import annotations

import datetime as dt
import json
import threading
from contextlib import closing

import pytest
from stage.coordinator_side.delivered import cohort, cohort_plan
from stage.coordinator_side.tables_delivered import hub

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.config import AnalysisSettings
from coordinator.services import analysis
from coordinator.services.analysis import AnalysisService
from coordinator.services.analysts import Analyst
from coordinator.services.compute import engine, parts
from coordinator.services.compute.parts import deal, dealt
from shared.estimands.questions import parse_estimand
from shared.wire.analyst_messages import QueryRequest
from shared.wire.transport import Call

ADJUSTED = "cox(time, cvd) ~ sbp/10 + age/10"
TODAY = dt.date(2026, 1, 5)
ADA = Analyst(role="analyst", site="ada", serial="1", studies=("cvd",))
SITES = 5
ROOM = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with hub(tmp_path_factory.mktemp("hub"), cohort_plan(), *(cohort(200 + 40 * k, k) for k in range(SITES))) as made:
        yield made[0]


@pytest.fixture
def tasks(monkeypatch):
    """Every question is worth parts, and which tasks workers were given."""
    given, lock, run = [], threading.Lock(), engine.ComputeEngine.run

    def noted(self, task, values, **how):
        with lock:
            given.append((task, tuple(values.get("sites", ()))))
        return run(self, task, values, **how)

    monkeypatch.setattr(parts, "PART", 1e-6)
    monkeypatch.setattr(engine.ComputeEngine, "run", noted)
    return given


def asked(store, formula, **how):
    with closing(AnalysisService(store, AnalysisSettings(at_once=4), today=lambda: TODAY)) as service:
        return json.loads(service.query(Call(peer=ADA), QueryRequest(study="cvd", formula=formula, **how)).json)


def expected(store, formula):
    """Of the answer that one process works out from the sites' tables: sites' and pooled estimates."""
    found = ask(store, holding(store, "cvd", 1), formula)
    return [row.yi for row in found.estimates], found.result.beta, found.result.se


def told(document):
    return [row["yi"] for row in document["estimates"]], document["pooled"]["beta"], document["pooled"]["se"]


def test_parts_work_out_every_site_once_and_the_answer_is_the_same_to_the_last_bit(store, tasks, monkeypatch):
    # All that is left to the question is put together.
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:fit_nothing")
    assert told(asked(store, ADJUSTED)) == expected(store, ADJUSTED)
    *shares, last = tasks
    assert [task for task, _ in shares] == [engine.WORK_OUT] * 3, "one of four places is for other tokens"
    assert sorted(site for _, sites in shares for site in sites) == [f"site-{k}" for k in range(SITES)]
    assert last == ("stage.processes.workshop:fit_nothing", ())


@pytest.mark.parametrize(
    ("broken", "formula"),
    [
        ("stage.processes.workshop:abort", "mean(sbp)"),
        ("stage.processes.workshop:broken", "mean(chol)"),
        ("stage.processes.workshop:refuse", "cox(time, cvd) ~ sbp/10 + chol"),
    ],
)
def test_parts_that_end_without_a_result_leave_their_sites_to_the_question(store, tasks, monkeypatch, broken, formula):
    monkeypatch.setattr(engine, "WORK_OUT", broken)
    assert told(asked(store, formula)) == expected(store, formula)
    assert [task for task, _ in tasks[:-1]] == [broken] * 3


def test_a_question_that_a_site_cannot_answer_says_so_as_ever(store, tasks):
    formula = "cox(time, cvd, subset = age >= 200) ~ sbp"
    with pytest.raises(Exception) as alone:
        ask(store, holding(store, "cvd", 1), formula)
    with pytest.raises(type(alone.value)) as refused:
        asked(store, formula)
    assert str(refused.value) == str(alone.value)
    assert len(tasks) == 4


def test_knots_that_all_sites_decide_are_not_decided_by_a_part(store, tasks):
    formula = "cox(time, cvd) ~ sbp/10 + ns(age, df = 3)"
    assert told(asked(store, formula, term="sbp/10")) == expected(store, formula)
    assert [task for task, _ in tasks] == [analysis.ANSWER]


def test_parts_are_of_large_questions_to_rows_where_there_are_workers_and_room(store, monkeypatch):
    plan, held, question = store.plan("cvd").plan, holding(store, "cvd", 1), parse_estimand(ADJUSTED)
    assert dealt(plan, question, held, workers=8, room=ROOM) == [], "a second of work is worth no part"
    monkeypatch.setattr(parts, "ROW", 1e-3)  # 1,400 rows are more than a second, and less than two
    assert dealt(plan, question, held, workers=8, room=ROOM) == []
    monkeypatch.setattr(parts, "ROW", 2e-3)
    assert len(dealt(plan, question, held, workers=8, room=ROOM)) == 2
    assert dealt(plan, question, held, workers=1, room=ROOM) == []
    assert dealt(plan, question, held, workers=8, room=1000) == []
    unsettled = parse_estimand("cox(time, cvd) ~ ns(age, df = 3)")
    assert unsettled.unsettled
    assert dealt(plan, unsettled, held, workers=8, room=ROOM) == []


def test_no_part_has_half_as_much_again_as_another_where_sites_are_many():
    takes = {f"site-{k:03}": 1.0 + k % 7 for k in range(100)}
    shares = [sum(takes[site] for site in sites) for sites in deal(takes, 9)]
    assert sum(shares) == pytest.approx(sum(takes.values()))
    assert max(shares) < 1.1 * min(shares)
