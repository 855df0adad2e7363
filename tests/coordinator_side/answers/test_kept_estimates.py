"""Sites' estimates in the store: worked out once, the same bits in every process, bounded, and gone in time."""

from __future__ import annotations

import datetime as dt
import json
import logging
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, site_estimates, take_back
from stage.coordinator_side.tables_delivered import hub

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.site_answers import EstimateCache, answers_of_sites
from coordinator.pooling.pool import Pooling
from coordinator.services.analysis import AnalysisService
from coordinator.services.analysts import Analyst, Analysts
from coordinator.services.compute.kept_estimates import QUESTION, KeptEstimates, estimates_of, packed
from coordinator.store import schema as db
from coordinator.store.schema.revisions import revision_of, taken_back
from coordinator.store.store import Store
from shared.errors import StateRefusal
from shared.estimands.answer import Estimate
from shared.wire.analyst_messages import QueryRequest
from shared.wire.transport import Call

ADJUSTED = "cox(time, cvd) ~ sbp/10 + age/10"
QUESTIONS = (
    *("mean(sbp)", "proportion(sbp > 140)", "correlation(sbp, age)", "ols(chol) ~ sbp*age", "km(time, cvd, at = 5)"),
    *("logistic(cvd) ~ ns(age, knots = c(50, 60), Boundary.knots = c(30, 90))", ADJUSTED, "histogram(chol)"),
    "cox(time, cvd, subset = age >= 200) ~ sbp",  # nobody: every site has a reason and no number
)
MOST = 1 << 20
TODAY = dt.date(2026, 1, 5)
ADA = Analyst(role="analyst", site="ada", serial="1", studies=("cvd",))
ELSEWHERE = """
import sys, json
from pathlib import Path
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.site_answers import EstimateCache
from coordinator.services.compute.kept_estimates import KeptEstimates
from coordinator.store.store import Store
url, home, bundles, question = sys.argv[1:]
store, cache = Store(url, Path(home), bundles), EstimateCache()
cache.kept = KeptEstimates(store, 1 << 20)
answer = ask(store, holding(store, "cvd", 1), question, cache=cache)
print(json.dumps([repr(answer.estimates), repr(answer.result.beta), len(store._tables._tables)]))
"""


def fresh(store, most=MOST):
    """A cache as a process that was just started has it."""
    cache = EstimateCache()
    cache.kept = KeptEstimates(store, most)
    return cache


def again(store):
    """The same store as another process opens it: nothing is read yet."""
    url, home, bundles = store.place
    return closing(Store(url, Path(home), bundles))


def tables_read(store):
    return len(store._tables._tables)


def rows_of(store, table=db.kept_estimates):
    return store.read(lambda c: c.execute(table.select()).mappings().all())


@pytest.fixture
def filled(tmp_path, database):
    """A store with three sites, and their keys."""
    with hub(tmp_path / "hub", cohort_plan(), *(cohort(300 + 50 * k, k) for k in range(3))) as made:
        yield made


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_read_back_is_what_was_worked_out_to_the_last_bit(tmp_path, question):
    with hub(tmp_path, cohort_plan(), *(cohort(300 + 50 * k, k) for k in range(2))) as (store, _):
        worked_out = repr(site_estimates(store, "cvd", 1, question))
        for _ in range(2):
            with again(store) as other:
                held = holding(other, "cvd", 1)
                assert repr(answers_of_sites(other, held, question, fresh(other))[0]) == worked_out
        with again(store) as other:
            answers_of_sites(other, holding(other, "cvd", 1), question, fresh(other))
            assert tables_read(other) == 0


def test_numbers_of_numpy_and_signs_of_nothing_keep_their_bits():
    values = {"vi_privacy": -0.0, "attenuation": float("inf"), "n": np.int64(7), "vi_common": np.float64(0.1) + 0.2}
    row = Estimate(study="s", site="A", wave=1, term="é", yi=5e-324, vi_sampling=1 / 3, **values)
    assert repr(estimates_of(packed([row]))) == repr([Estimate(**{**vars(row), "n": 7, "vi_common": 0.1 + 0.2})])


def test_another_process_finds_what_this_one_has_worked_out(filled):
    store, _ = filled
    mine = ask(store, holding(store, "cvd", 1), ADJUSTED, cache=fresh(store))
    argv = [sys.executable, "-c", ELSEWHERE, *map(str, store.place)]
    for question, read in ((ADJUSTED, 0), ("mean(age)", 3)):
        said = subprocess.run([*argv, question], capture_output=True, text=True, check=True).stdout
        estimates, beta, count = json.loads(said)
        assert count == read
        if not read:
            assert (estimates, beta) == (repr(mine.estimates), repr(mine.result.beta))
    # And the other way round.
    with again(store) as other:
        assert repr(ask(other, holding(other, "cvd", 1), "mean(age)", cache=fresh(other)).estimates) == estimates
        assert tables_read(other) == 0


def test_another_pooling_a_new_wave_and_one_site_more_fit_only_what_is_new(filled):
    store, keys = filled
    ask(store, holding(store, "cvd", 1), ADJUSTED, cache=fresh(store))
    with again(store) as other:
        ask(
            other,
            holding(other, "cvd", 1),
            ADJUSTED,
            cache=fresh(other),
            pooling=Pooling(method="DL", test="z", level=0.9),
        )
        assert tables_read(other) == 0
    deliver(store, cohort_plan(), "site-1", keys[1], cohort(220, 9), wave=2)
    with again(store) as other:
        late = ask(other, holding(other, "cvd", 2), ADJUSTED, cache=fresh(other))
        assert tables_read(other) == len(holding(store, "cvd", 2).parts["site-1"])
        assert late.estimates == tuple(row for row in site_estimates(store, "cvd", 2, ADJUSTED) if row.term == "sbp/10")
        assert {row.wave for row in late.estimates} == {2}


def test_of_more_questions_than_have_room_some_are_found_and_the_longest_unasked_go_first(filled):
    store, _ = filled
    rows = [Estimate(study="cvd", site="A", wave=1, term="age", yi=1 / 3, vi_sampling=0.1, n=9)]
    place = ("A", "a table")
    KeptEstimates(store, MOST).add(("first",), "cvd", {place: rows}, [])
    kept = KeptEstimates(store, 10 * rows_of(store, db.kept_questions)[0]["bytes"])
    found = []
    for _ in range(2):
        for k in range(25):
            found.append(kept.of((f"{k}",), [place]) == {place: rows})
            if not found[-1]:
                kept.add((f"{k}",), "cvd", {place: rows}, [])
            there = rows_of(store, db.kept_questions)
            assert sum(row["bytes"] for row in there) <= kept.most
            assert sum(row["bytes"] - QUESTION for row in there) >= sum(len(row["estimates"]) for row in rows_of(store))
    assert not any(found[:25])
    assert 2 < sum(found[25:]) < 25, "a round of more than there is room for finds those that stayed"
    # Those that were asked today stay before those that were not.
    left = [k for k in range(25) if kept.of((f"{k}",), [place])]
    store.write(lambda c: c.execute(db.kept_questions.update().values(day="2020-01-01")))
    today = {k for k in left[:5] if kept.of((f"{k}",), [place])}
    for k in range(3):
        kept.add((f"new {k}",), "cvd", {place: rows}, [])
    assert today <= {k for k in left if kept.of((f"{k}",), [place])} < set(left)


def test_a_question_that_would_take_most_of_the_room_is_not_kept(filled):
    store, _ = filled
    ask(store, holding(store, "cvd", 1), ADJUSTED, cache=fresh(store, 1000))
    assert (rows_of(store), rows_of(store, db.kept_questions)) == ([], [])


def test_a_release_that_is_taken_back_takes_its_estimates_with_it(filled):
    store, keys = filled
    held = holding(store, "cvd", 1)
    before = ask(store, holding(store, "cvd", 1), ADJUSTED, cache=fresh(store))
    assert [row["site"] for row in rows_of(store)].count("site-1") == 1
    gone = take_back(store, "site-1", keys[1])
    assert sorted(row["site"] for row in rows_of(store)) == ["site-0", "site-2"]
    with again(store) as other:
        after = ask(other, holding(other, "cvd", 1), ADJUSTED, cache=fresh(other))
        assert tables_read(other) == 0
        assert [row.site for row in after.estimates] == ["site-0", "site-2"]
        with pytest.raises(StateRefusal, match="stay the same"):
            ask(other, held, ADJUSTED, cache=fresh(other))
    # Who worked it out before and comes to keep it afterwards keeps nothing.
    kept, row = KeptEstimates(store, MOST), next(row for row in before.estimates if row.site == "site-1")
    kept.add(("late",), "cvd", {("site-1", gone): [row]}, held.used)
    assert kept.of(("late",), [("site-1", gone)]) == {}
    kept.add(("late",), "cvd", {("site-0", "x"): [before.estimates[0]]}, [])
    assert kept.of(("late",), [("site-0", "x")]) == {("site-0", "x"): [before.estimates[0]]}


def test_a_damaged_row_is_not_believed_and_made_again_and_the_log_says_so(filled, caplog):
    store, _ = filled
    service = AnalysisService(store, today=lambda: TODAY)
    try:
        first = json.loads(service.query(Call(peer=ADA), QueryRequest(study="cvd", formula=ADJUSTED)).json)
        victim = next(row for row in rows_of(store) if row["site"] == "site-1")
        broken = bytearray(victim["estimates"])
        broken[len(broken) // 2] ^= 1
        where = (db.kept_estimates.c.site == "site-1",)
        store.write(lambda c: c.execute(db.kept_estimates.update().where(*where).values(estimates=bytes(broken))))
        service.forget()  # workers that remember it
        with caplog.at_level(logging.WARNING, "tributary"):
            asked = QueryRequest(study="cvd", formula=ADJUSTED, method="DL")
            second = json.loads(service.query(Call(peer=ADA), asked).json)
        assert "1 kept estimates of cvd were damaged" in caplog.text
        assert second["estimates"] == first["estimates"]
        assert {bytes(row["estimates"]) for row in rows_of(store) if row["site"] == "site-1"} == {victim["estimates"]}
    finally:
        service.close()


def test_a_service_that_was_started_again_fits_no_site_for_a_question_that_was_asked_before(filled, monkeypatch):
    from coordinator.services import analysis

    store, _ = filled
    with closing(AnalysisService(store, today=lambda: TODAY)) as service:
        first = json.loads(service.query(Call(peer=ADA), QueryRequest(study="cvd", formula=ADJUSTED)).json)
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:fit_nothing")
    with closing(AnalysisService(store, today=lambda: TODAY)) as service:
        asked = QueryRequest(study="cvd", formula=ADJUSTED, method="FE")
        second = json.loads(service.query(Call(peer=ADA), asked).json)
    assert second["estimates"] == first["estimates"]
    assert second["result"] != first["result"]
    assert len(Analysts(store).record("cvd")) == 2


def test_two_that_write_at_once_lose_nothing_of_each_other(filled):
    store, _ = filled
    rows = {row.site: row for row in ask(store, holding(store, "cvd", 1), ADJUSTED).estimates}
    with again(store) as one, again(store) as two:
        ready = threading.Barrier(2)

        def write(mine):
            kept = KeptEstimates(mine, MOST)
            for k in range(12):
                ready.wait(60)
                own = ("site-0", "site-1") if mine is one else ("site-1", "site-2")
                kept.add((f"{k}",), "cvd", {(name, "t"): [rows[name]] for name in own}, [])

        threads = [threading.Thread(target=write, args=(mine,)) for mine in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    kept = KeptEstimates(store, MOST)
    for k in range(12):
        found = kept.of((f"{k}",), [(name, "t") for name in rows])
        assert found == {(name, "t"): [row] for name, row in rows.items()}
    assert len(rows_of(store, db.kept_questions)) == 12


def test_the_version_before_gets_a_store_without_them_back_and_this_one_keeps_them_again(filled):
    store, _ = filled
    ask(store, holding(store, "cvd", 1), ADJUSTED, cache=fresh(store))
    assert len(rows_of(store)) == 3
    store.write(lambda c: taken_back(c, "0002"))
    assert (rows_of(store), rows_of(store, db.kept_questions)) == ([], [])
    store.write(lambda c: [c.execute(sa.text(f"DROP TABLE {name}")) for name in ("kept_estimates", "kept_questions")])
    with again(store) as other:  # as one of 0002 that never had them
        assert other.read(revision_of) == "0003"
        ask(other, holding(other, "cvd", 1), ADJUSTED, cache=fresh(other))
        assert len(rows_of(other)) == 3
