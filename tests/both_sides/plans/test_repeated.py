"""Several rows of a person: one record, one price, and a table that says again which row was whose."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.plans.repeated import FIRST, HEAD, KEY, VISITS, counted, planned

from coordinator.planning.drafts import faults
from coordinator.planning.price import cost
from coordinator.planning.review import review
from shared.errors import DictionaryRefusal, DuplicatePerson, MissingRefusal, Refusal
from shared.plans.dictionary import Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan
from shared.plans.repeated_rows import RepeatedRows
from shared.privacy.accountant import epsilon
from shared.releases.receipt import coverage, planned_event
from site_agent.config import TableSource
from site_agent.records.table import problems, read
from site_agent.release.pipeline.rehearsal import made_up_table

ROWS = [
    ("a", "drug", 12, 131),
    ("a", "drug", 0, 150),
    ("b", "control", 0, 140),
    ("a", "drug", 6, 139),
    ("c", "drug", 6, 128),
]


def table(rows=ROWS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["person", "arm", "visit", "sbp"])


def at(folder, rows) -> TableSource:
    path = folder / "visits.csv"
    rows.to_csv(path, index=False)
    return TableSource(path=path)


def test_a_plan_is_signed_with_the_columns_that_are_released():
    plan = planned()
    assert plan.dictionary.names == ("arm", "sbp_1", "sbp_2", "sbp_3")
    assert [column.label for column in plan.dictionary.released][1:] == [
        f"systolic pressure, visit {month}" for month in (0, 6, 12)
    ]
    signed = json.loads(plan.canonical)["dictionary"]["repeated"]
    assert signed == {"rows": 3, "columns": ["sbp"], "order": "visit", "visits": [0, 6, 12]}
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert [column.name for column in plan.dictionary.source.columns] == ["person", "visit", "arm", "sbp"]
    again = StudyPlan.from_toml(HEAD.partition("[dictionary]")[0] + plan.dictionary.to_toml())
    assert again.dictionary == plan.dictionary
    assert planned(FIRST).dictionary.names == ("arm", *(f"{one}_{k}" for one in ("visit", "sbp") for k in (1, 2, 3)))


def test_a_dictionary_without_repeated_rows_has_no_word_of_them(dictionary):
    assert "repeated" not in dictionary.to_canonical()
    assert dictionary.source is dictionary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (VISITS.replace("rows = 3", "rows = 1"), "2..12"),
        (VISITS.replace("rows = 3", "rows = 13"), "2..12"),
        (VISITS.replace("rows = 3", "rows = true"), "2..12"),
        (VISITS.replace("rows = 3", "rows = 2"), "one level for each row"),
        (VISITS.replace('order = "visit"', 'order = "visits"'), "Did you mean 'visit'"),
        (VISITS.replace('kind = "ordered"', 'kind = "nominal"'), "planned visit"),
        (VISITS.replace("repeated = true", "repeated = 1"), "true or false"),
        (VISITS.replace("repeated = true", ""), "some column"),
        (VISITS.partition("[dictionary.columns.visit]")[2].partition("\n\n")[2], "must have [dictionary.repeated]"),
        (VISITS.replace("rows = 3", "rows = 3\nmost = 4"), "most"),
        (VISITS + '\n[dictionary.columns.died]\nkind = "event"\nrepeated = true\n', "a number or have levels"),
        (VISITS + '\n[dictionary.columns.sbp_2]\nkind = "binary"\n', "must differ"),
    ],
)
def test_a_plan_of_repeated_rows_that_cannot_be_is_refused(text, words):
    with pytest.raises(Refusal) as refused:
        planned(text)
    assert words in str(refused.value)
    import datetime as dt

    _, lines = faults(HEAD + text, today=dt.date(2026, 1, 1))
    assert lines


def test_signed_bytes_whose_repeated_columns_are_not_alike_are_refused():
    plain = planned().to_canonical()
    for change in (
        lambda columns: columns.pop(),
        lambda columns: columns[-1].update(upper=300),
        lambda columns: [columns.pop() for _ in range(3)],
    ):
        given = json.loads(json.dumps(plain["dictionary"]))
        change(given["columns"])
        with pytest.raises(DictionaryRefusal, match="repeated"):
            Dictionary.from_canonical(given)
    nobody = [one for one in plain["dictionary"]["columns"] if one["kind"] != "person"]
    with pytest.raises(DictionaryRefusal, match="person column"):
        Dictionary.from_canonical({**plain["dictionary"], "columns": nobody})


def test_a_persons_rows_become_one_by_their_visit_whatever_their_order(tmp_path):
    plan = planned()
    found = read(at(tmp_path, table()), plan.dictionary, key=KEY)
    assert (found.rows, found.n) == (3, 3)
    assert found.table.set_index("person")[["sbp_1", "sbp_2", "sbp_3"]].T.to_dict("list") == {
        "a": [150, 139, 131],
        "b": [140, pytest.approx(np.nan, nan_ok=True), pytest.approx(np.nan, nan_ok=True)],
        "c": [pytest.approx(np.nan, nan_ok=True), 128, pytest.approx(np.nan, nan_ok=True)],
    }
    again = read(at(tmp_path, table(ROWS[::-1])), plan.dictionary, key=KEY)
    pd.testing.assert_frame_equal(
        again.table.sort_values("person", ignore_index=True), found.table.sort_values("person", ignore_index=True)
    )
    # The encoded table has a row for each person, and nothing else.
    from shared.base.randomness import seeded_rng

    assert Encoder(dictionary=plan.dictionary).encode(found.table, seeded_rng(1)).shape == (3, 7)


def test_of_an_order_by_number_the_first_rows_are_kept_and_no_outcome_says_which(tmp_path):
    plan = planned(FIRST)
    many = table([("a", "drug", week, 100 + week) for week in (30, 2, 50, 8, 4)] + [("b", "control", 9, 140)])
    found = read(at(tmp_path, many), plan.dictionary, key=KEY).table.set_index("person")
    assert found.loc["a", ["visit_1", "visit_2", "visit_3"]].tolist() == [2, 4, 8]
    assert found.loc["a", ["sbp_1", "sbp_2", "sbp_3"]].tolist() == [102, 104, 108]
    turned = many.assign(sbp=260 - many.sbp)
    other = read(at(tmp_path, turned), plan.dictionary, key=KEY).table.set_index("person")
    assert other.loc["a", ["visit_1", "visit_2", "visit_3"]].tolist() == [2, 4, 8]


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([*ROWS, ("a", "drug", 6, 141)], DuplicatePerson, "one row for each value of 'visit'"),
        ([*ROWS, ("A ", "drug", 6, 141)], DuplicatePerson, "one row for each value"),
        ([*ROWS, ("b", "drug", 6, 141)], DictionaryRefusal, "must say the same in all rows"),
        ([*ROWS, ("b", "control", 7, 141)], DictionaryRefusal, "level of the dictionary"),
        ([*ROWS, ("b", "control", None, 141)], MissingRefusal, "no missing value"),
        ([*ROWS, (None, "control", 6, 141)], MissingRefusal, "identify every row"),
        ([*ROWS, ("b", "control", 6, 999)], DictionaryRefusal, "at most 270"),
    ],
)
def test_rows_that_leave_a_choice_are_refused_and_the_check_says_the_same(tmp_path, rows, kind, words):
    plan, source = planned(), at(tmp_path, table(rows))
    with pytest.raises(kind) as refused:
        read(source, plan.dictionary, key=KEY)
    assert words in str(refused.value)
    found = problems(source, plan.dictionary)
    assert any(type(one) is kind and words in str(one) for one in found)
    assert not problems(at(tmp_path, table()), plan.dictionary)


def test_a_person_without_all_rows_is_refused_where_the_plan_lets_none_be_missing(tmp_path):
    plan = planned(VISITS.replace('missing = "level"', ""))
    with pytest.raises(MissingRefusal, match="sbp_1"):
        read(at(tmp_path, table()), plan.dictionary, key=KEY)
    assert read(at(tmp_path, table(ROWS[:2] + ROWS[3:4])), plan.dictionary, key=KEY).n == 1
    import datetime as dt

    text = HEAD + VISITS.replace('missing = "level"', "")
    _, lines = review(text, today=dt.date(2026, 1, 1))
    assert any(line.name == "repeated rows" and line.state == "warn" for line in lines)


def test_a_proposed_mapping_takes_several_rows_of_a_person_for_granted_where_the_plan_has_them():
    from site_agent.records.mapping.suggesting import proposed

    extract = table().rename(columns={"sbp": "SBP (mmHg)", "person": "person"})
    found = proposed(extract, planned().dictionary, {})
    assert found.mapped["columns"] == {"SBP (mmHg)": "sbp"}
    assert not found.open
    alone = planned().dictionary.source
    assert "several" in proposed(extract, alone, {}).open["person"]


@pytest.mark.parametrize("text", [VISITS, FIRST])
def test_a_rehearsal_makes_up_rows_that_can_be_read(tmp_path, text):
    from shared.base.randomness import seeded_rng

    plan = planned(text)
    made = made_up_table(plan, 40, seeded_rng(3))
    assert len(made) > 60
    assert read(at(tmp_path, made), plan.dictionary, key=KEY).n == 40


# -- the price --------------------------------------------------------------------------------------------------


def test_exchanging_a_person_with_all_rows_moves_the_figures_by_what_is_charged_and_no_less(tmp_path):
    """The worst pair reaches the sensitivity: noise for one row of three, a third of this, could not hold it."""
    plan = counted()
    mechanism = plan.release.tables(plan)
    event = planned_event(plan)
    worlds = []
    for first, second, third in itertools.product((70, 269), repeat=3):
        for arm in ("control", "drug"):
            mine = [("x", arm, month, sbp) for month, sbp in zip((0, 6, 12), (first, second, third), strict=True)]
            records = read(at(tmp_path, table([*ROWS, *mine])), plan.dictionary, key=KEY)
            worlds.append(np.concatenate([np.ravel(one) for one in mechanism.counts(records.table)]))
    worst = max(np.linalg.norm(one - other) for one, other in itertools.combinations(worlds, 2))
    assert worst == pytest.approx(event.sensitivity, rel=1e-12)
    assert mechanism.sigma == event.sigma
    assert epsilon(event, plan.budget.delta) <= 1.0
    # The fault that this would find: rows as records, priced as one. A person then moves three of them.
    alone = Dictionary(name="rows", version=1, columns=plan.dictionary.source.columns[1:])
    by_row = replace(plan, dictionary=alone, estimands={})
    counts = by_row.release.tables(by_row)
    one = [("control", month, 70) for month in (0, 6, 12)]
    other = [("drug", month, 269) for month in (0, 6, 12)]
    moved = [
        np.concatenate(
            [
                np.ravel(part)
                for part in counts.counts(
                    alone.check(pd.DataFrame(rows, columns=["arm", "visit", "sbp"])[[*alone.names]])
                )
            ]
        )
        for rows in (one, other)
    ]
    assert np.linalg.norm(moved[0] - moved[1]) > 1.5 * planned_event(by_row).sensitivity


@pytest.mark.parametrize("plan", [planned(), counted()], ids=["latent noise", "tables"])
def test_receipt_and_price_say_that_a_person_is_all_rows(plan):
    covered, _ = coverage(plan)
    assert "at most 3 rows of a person, one for each level of 'visit'" in covered[-1]
    assert "at most 3 rows of a person" in cost(plan).translation
    bare = replace(plan, dictionary=replace(plan.dictionary, repeated=None))
    assert cost(bare).epsilon == cost(plan).epsilon  # of the same released columns, whosever rows they were
    assert "rows of a person" not in cost(bare).translation


def test_words_and_names():
    first = RepeatedRows(rows=2, columns=("week", "sbp"), order="week")
    assert first.words == "at most 2 rows of a person, the first ones by 'week'"
    assert first.names("sbp") == ("sbp_1", "sbp_2")
