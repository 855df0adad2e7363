"""Which columns a plan draws last, and in what order; and that plans signed before mean what they meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.errors import PlanRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan, Training
from site_agent.release.lasting import fitted_by
from tests.test_plan import TOML

COLUMNS = Dictionary(
    name="all",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="years", kind="time", upper=10, event="died"),
        Column(name="died", kind="event"),
        Column(name="age", kind="integer", lower=18, upper=100),
        Column(name="sbp", kind="continuous", lower=60, upper=260),
        Column(name="marker", kind="continuous", lower=0, upper=9, missing="level"),
        Column(name="arm", kind="binary"),
        Column(name="visits", kind="integer", lower=0, upper=99),
        Column(name="grade", kind="ordered", levels=(1, 2, 3)),
    ),
)


def named(plan, **questions):
    changed = replace(plan, dictionary=COLUMNS, estimands=questions, training=Training(outcomes="last"))
    found = planned_outcomes(changed)
    names = Encoder(dictionary=COLUMNS).columns
    return None if found is None else [tuple(names[j] for j in group) for group in found.groups], found


def test_a_time_and_its_event_come_last_and_together(plan):
    groups, _ = named(plan, risk="cox(years, died) ~ age + sbp", counted="poisson(visits) ~ arm")
    assert groups == [("visits",), ("years", "died")]


def test_what_one_question_reads_is_drawn_before_its_outcome(plan):
    groups, _ = named(plan, a="poisson(visits) ~ sbp + age", b="ols(sbp) ~ age")
    assert groups == [("sbp",), ("visits",), ("years", "died")]
    groups, _ = named(plan, a="ols(sbp) ~ visits", b="poisson(visits) ~ sbp")
    assert sorted(groups[:2]) == [("sbp",), ("visits",)], "a circle is cut by the dictionary's order"


def test_whether_a_value_is_missing_is_drawn_before_the_value(plan):
    groups, found = named(plan, a="ols(marker) ~ age")
    assert groups[:2] == [("marker missing",), ("marker",)]
    assert found.gates == {4: 5}
    assert found.levels[5] == 2


def test_groups_are_no_outcomes_and_a_comparison_is_of_its_column(plan):
    groups, _ = named(plan, a="two_by_two(grade > 1) ~ arm")
    assert groups == [("grade",), ("years", "died")]


def test_products_and_squares_that_a_question_reads_are_told(plan):
    _, found = named(plan, a="poisson(visits) ~ age * arm + I(sbp^2)")
    assert set(found.products) == {(2, 6), (3, 3)}


def test_columns_that_are_all_outcomes_are_left_to_one_flow(plan):
    both = Dictionary(name="both", version=1, columns=(COLUMNS.column("years"), COLUMNS.column("died")))
    assert planned_outcomes(replace(plan, dictionary=both, estimands={}, training=Training(outcomes="last"))) is None


def test_a_plan_signed_before_keeps_its_bytes_and_its_order(plan):
    assert plan.training.outcomes == "joint"
    assert b"outcomes" not in plan.canonical
    assert planned_outcomes(plan) is None
    assert StudyPlan.from_bytes(plan.to_bytes() if hasattr(plan, "to_bytes") else plan.canonical) == plan


def test_a_plan_written_now_draws_outcomes_last_where_it_can():
    assert StudyPlan.from_toml(TOML).training.outcomes == "last"
    assert StudyPlan.from_toml('training = {outcomes = "joint"}\n' + TOML).training.outcomes == "joint"
    public = TOML.replace("purpose =", 'posture = "public"\npurpose =', 1)
    assert StudyPlan.from_toml(public).training.outcomes == "joint"


@pytest.mark.parametrize(
    "changes",
    [
        {"posture": "public"},
        {"release": LatentNoisePlan(w=0.8, carry="died")},
        {"training": Training(outcomes="last", margins="none")},
    ],
)
def test_where_laws_cannot_be_fitted_the_order_is_refused(plan, changes):
    given = {"dictionary": COLUMNS, "training": Training(outcomes="last")} | changes
    with pytest.raises(PlanRefusal, match=r"training\.outcomes must be 'joint'") as refusal:
        replace(plan, **given)
    assert refusal.value.next_step


def test_a_sealed_flow_serves_no_plan_whose_outcomes_are_others(plan):
    first = replace(plan, dictionary=COLUMNS, training=Training(outcomes="last"), estimands={"a": "ols(sbp) ~ age"})
    assert fitted_by(first) == fitted_by(replace(first, version=2))
    assert fitted_by(first) != fitted_by(replace(first, training=Training()))
    assert fitted_by(first) != fitted_by(replace(first, estimands={"a": "ols(sbp) ~ age", "b": "mean(visits)"}))
