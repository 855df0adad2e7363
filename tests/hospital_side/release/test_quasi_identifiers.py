"""Quasi-identifiers: who shares a combination with few is counted at the site, and decides where no ε covers all."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from hypothesis import given
from hypothesis import strategies as st
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.mechanisms.postures import TODAY, cohort, released, site, study

from shared.base.randomness import seeded_rng
from shared.errors import ConfigRefusal, PlanRefusal, SmallN
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Floors, StudyPlan
from shared.releases.receipt import coverage
from site_agent.config import Limits, SiteFloors, TableSource
from site_agent.records.quasi_identifiers import sharing, small_classes
from site_agent.release.checks import Check
from site_agent.release.pipeline.making import make_release
from site_agent.release.pipeline.rehearsal import rehearse

NAMED = {"age": 20, "died": 1}
LOOSE = {"membership_auc": 1.0, "own_row_linkage": 1.0, "extreme_linkage": 1.0}


def planned(posture: str = "local", k: int = 0, w: float = 0.02, **changes) -> StudyPlan:
    return study(
        posture,
        release=LatentNoisePlan(w=w),
        quasi_identifiers=NAMED,
        floors=Floors(minimum_k=k, **LOOSE),
        **changes,
    )


def with_deaths(deaths: int) -> pd.DataFrame:
    """Of 500 persons in one band of age, so many who share their combination."""
    return cohort(500).assign(age=58.0, died=(np.arange(500) < deaths).astype(int))


def checks(at) -> dict:
    [hold] = at.ledger.holds()
    document = json.loads((at.outbox.folder(hold.release_id) / "checks.json").read_bytes())
    return {check["name"]: Check(**check) for check in document["content"]["checks"]}


# -- what is counted ------------------------------------------------------------------------------------------------
@given(
    st.lists(st.tuples(st.integers(0, 39) | st.none(), st.integers(0, 1)), min_size=1, max_size=60), st.integers(1, 9)
)
def test_a_class_is_all_who_share_their_bands_and_what_is_missing_is_one(rows, k):
    table = pd.DataFrame(rows, columns=["age", "sex"], dtype="float64")
    bands = [(None if age is None else age // 10, sex) for age, sex in rows]
    sizes = Counter(bands)
    widths = {"age": 10, "sex": 1}
    assert sharing(table, widths).tolist() == [sizes[band] for band in bands]
    found = small_classes(table, widths, k)
    assert found.persons == sum(sizes[band] < k for band in bands)
    assert found.classes == sum(size < k for size in sizes.values())
    assert (found.of, found.kept) == (len(rows), None)


def test_a_band_is_not_cut_by_a_division_that_falls_short_of_a_whole_number():
    assert sharing(pd.DataFrame({"x": [0.3, 0.39]}), {"x": 0.1}).tolist() == [2, 2]


def test_of_released_rows_those_are_counted_that_keep_a_rare_combination_of_their_own_person():
    levels = Column(name="sex", kind="nominal", levels=("female", "male"))
    dictionary = Dictionary(
        name="d", version=1, columns=(levels, Column(name="age", kind="integer", lower=18, upper=110))
    )
    real = pd.DataFrame({"sex": [0, 0, 0, 1, 1], "age": [31.0, 32, 33, 45, 52]})
    rows = pd.DataFrame({"sex": ["female", "male", "female", "male", "male"], "age": [31, 32, 33, 49, 45]})
    found = small_classes(real, {"sex": 1, "age": 10}, 3, released=rows, dictionary=dictionary)
    assert (found.persons, found.classes, found.kept) == (2, 2, 1)


# -- what it decides ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("deaths", [9, 491])
def test_a_combination_of_fewer_than_the_plan_asks_for_is_refused_before_the_draw_and_no_figure_is_told(
    tmp_path, deaths
):
    with_deaths(deaths).to_csv(tmp_path / "cohort.csv", index=False)
    at, source = site(tmp_path), TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(SmallN, match="must be shared by at least 10 persons") as refused:
        make_release(plan=planned(k=10), wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))
    assert refused.value.given == "a combination of fewer"
    assert [hold.state for hold in at.ledger.holds()] == ["anchored"], "the reservation is kept, and nothing was drawn"


def test_as_many_as_the_plan_asks_for_are_enough(tmp_path):
    at, _ = released(planned(k=10), tmp_path, with_deaths(10))
    check = checks(at)["quasi-identifiers"]
    assert (check.outcome, check.measured, check.policy) == ("passed", 0, 10)


def test_a_site_may_ask_for_more_and_the_stricter_holds(tmp_path):
    assert Limits.of(Floors(minimum_k=10), SiteFloors(minimum_k=20)).minimum_k == 20
    assert Limits.of(Floors(minimum_k=30), SiteFloors(minimum_k=20)).minimum_k == 30
    with_deaths(19).to_csv(tmp_path / "cohort.csv", index=False)
    source = TableSource(path=tmp_path / "cohort.csv")
    strict = replace(site(tmp_path), floors=SiteFloors(minimum_k=20))
    with pytest.raises(SmallN, match="at least 20 persons"):
        make_release(plan=planned(k=10), wave=1, source=source, site=strict, today=TODAY, rng=seeded_rng(7))


def test_without_a_floor_the_approver_is_told_and_ticks_it(tmp_path):
    at, made = released(planned(w=0.1), tmp_path, with_deaths(9))
    check = checks(at)["quasi-identifiers"]
    assert (check.outcome, check.measured, check.policy) == ("warning", 9, 10)
    assert "9 of 500 persons are in 1 combinations of fewer than 10; " in check.detail
    assert 0 <= int(check.detail.split("; ")[1].split()[0]) <= 9
    assert made.hold.state == "held"


@pytest.mark.parametrize("posture", ["public", "holdout"])
def test_where_everybody_released_is_promised_something_it_is_a_note_and_no_site_makes_more_of_it(tmp_path, posture):
    """Whether somebody shares a combination with nine or ten others is in no ε: the release must not hang on it."""
    states = []
    for deaths in (1, 100):
        folder = tmp_path / str(deaths)
        folder.mkdir()
        with_deaths(deaths).to_csv(folder / "cohort.csv", index=False)
        at = replace(site(folder), floors=SiteFloors(minimum_k=10, membership_auc=1.0))
        source = TableSource(path=folder / "cohort.csv")
        make_release(plan=planned(posture), wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))
        check = checks(at)["quasi-identifiers"]
        states.append((check.outcome, [hold.state for hold in at.ledger.holds()]))
    assert states == [("note", ["held"])] * 2


# -- what is said of it ---------------------------------------------------------------------------------------------
def test_a_receipt_says_what_a_delivery_tells_of_combinations_and_what_a_wave_that_waits():
    said = " ".join(coverage(planned(k=12))[1])
    assert "each combination of age in bands of 20, died among those drawn is of at least 12 persons" in said
    assert "a wave that waits may show that one is not" in said
    told = " ".join(coverage(planned())[1])
    assert "Whether each combination of age in bands of 20, died among those drawn is of at least 10 persons" in told
    assert "combination" not in " ".join(coverage(study("local"))[1])
    assert "combination" not in " ".join(coverage(planned("public"))[1]), "there no outcome depends on it"


def test_a_plan_without_them_is_written_as_before():
    plan = study("local")
    assert b"quasi" not in plan.canonical
    assert b"minimum_k" not in plan.canonical
    named = planned(k=10)
    assert StudyPlan.from_bytes(named.canonical) == named
    assert named.hash != planned().hash != plan.hash


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quasi_identifiers": {"postcode": 1}}, "must name columns of the dictionary"),
        ({"quasi_identifiers": {"person": 1}}, "must name columns of the dictionary"),
        ({"quasi_identifiers": {"age": 0}}, "must be the width of a band"),
        ({"quasi_identifiers": {"age": True}}, "must be the width of a band"),
        ({"quasi_identifiers": {"died": 2}}, "must be 1"),
        ({"quasi_identifiers": NAMED, "release": TablesPlan(epsilon=1), "posture": "private"}, "latent noise"),
        ({"floors": Floors(minimum_k=10)}, r"must go with \[quasi_identifiers\]"),
        ({"quasi_identifiers": NAMED, "floors": Floors(minimum_k=10), "posture": "holdout"}, "decides what leaves"),
    ],
)
def test_what_a_plan_cannot_mean_is_refused(changes, said):
    with pytest.raises(PlanRefusal, match=said):
        study(**{"posture": "local", **changes})


@pytest.mark.parametrize("column", ["age", "visits", "person"])
def test_no_exact_figure_has_a_person_who_adds_more_than_one(column):
    """Floors of dominance bind exact sums: those that leave count persons, ten behind each value or more."""
    with pytest.raises(PlanRefusal, match="event or binary"):
        study("local", release=LatentNoisePlan(w=0.02, carry=column))


def test_floors_only_tighten():
    with pytest.raises(PlanRefusal, match="minimum_k must be at least 10"):
        Floors(minimum_k=9)
    with pytest.raises(ConfigRefusal, match="minimum_k must be a whole number of at least 10"):
        SiteFloors(minimum_k=9)


def test_a_site_that_asks_for_it_takes_no_plan_of_rows_that_names_none(tmp_path):
    cohort(500).to_csv(tmp_path / "cohort.csv", index=False)
    at = replace(site(tmp_path), floors=SiteFloors(minimum_k=10))
    source = TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(PlanRefusal, match="must name its quasi-identifiers"):
        make_release(plan=study("local"), wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))
    assert at.ledger.holds() == [], "nothing was charged"


# -- before anything is charged -------------------------------------------------------------------------------------
def test_the_steward_sees_the_count_when_the_table_is_checked(hospital, plan):
    table = make_table(300)
    at = hospital.joined().approved(replace(plan, quasi_identifiers={"sex": 1}))
    at.with_table(table.assign(sex=np.where(np.arange(300) < 9, "male", "female")))
    assert at.json("data", "check", "mini")["small_classes"] == {"k": 10, "persons": 9, "classes": 1}
    assert "9 of 300 persons are in 1 combinations of fewer than 10" in " ".join(at("data", "check", "mini").split())
    at.with_table(table.assign(sex=np.where(np.arange(300) < 10, "male", "female")))
    assert at.json("data", "check", "mini")["small_classes"] == {"k": 10, "persons": 0, "classes": 0}
    assert "each combination is of at least 10 persons" in " ".join(at("data", "check", "mini").split())


def test_where_epsilon_covers_everybody_the_count_sends_nobody_to_the_lead(hospital, plan):
    table = make_table(300)
    at = hospital.joined().approved(replace(plan, posture="public", quasi_identifiers={"sex": 1}))
    at.with_table(table.assign(sex=np.where(np.arange(300) < 9, "male", "female")))
    said = " ".join(at("data", "check", "mini").split())
    assert "9 of 300 persons are in 1 combinations of fewer than 10" in said
    assert "This decides nothing" in said
    assert "ask the study lead" not in said


@pytest.mark.parametrize("named", [{"age": 1e9}, {"age": 1e-310}])
def test_a_band_that_tells_no_values_apart_is_refused(named):
    with pytest.raises(PlanRefusal, match="tells values within its bounds apart"):
        replace(planned(), quasi_identifiers=named)


def test_a_plan_that_names_none_is_not_approved_where_the_site_asks_for_it(hospital, plan):
    at = hospital.joined()
    settings = at.home / "site.toml"
    settings.write_text(settings.read_text().replace("[floors]\n", "[floors]\nminimum_k = 15\n"))
    at.publish(plan)
    at("plan", "fetch", "mini")
    body = at.refused("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local", expect=10)
    assert "15 persons who share each combination" in body["must"]


def test_a_rehearsal_is_made_up_so_that_the_floor_holds(tmp_path):
    plan = planned(k=10, w=0.02)
    plan = replace(plan, quasi_identifiers={"age": 1, "visits": 1, "died": 1})
    done = rehearse(
        plan=plan,
        folder=tmp_path / "try",
        name="north",
        agent_version="0.1.0",
        floors=SiteFloors(minimum_k=20),
        today=TODAY,
    )
    assert done.refused is None
    assert done.release is not None
