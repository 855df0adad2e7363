"""Which columns a plan draws last, and in what order; and that plans signed before mean what they meant."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from stage.hospital_side import shipped
from stage.mechanisms import postures
from stage.mechanisms.postures import DICTIONARY
from stage.plans.plan_text import TOML

from shared.base.randomness import seeded_rng
from shared.errors import PlanRefusal
from shared.flows.outcomes_last import OutcomesLast
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import Floors, StudyPlan, Training
from shared.plans.repeated_rows import RepeatedRows
from shared.releases.receipt import planned_event
from site_agent.release import fitting, sealed_state
from site_agent.release.sealed_state import fitted_by
from tests.benchmarks import missing_confounder as lacking

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
    return None if found is None else [tuple(names[j] for j in group) for group in found.outcomes], found


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


def test_rows_of_a_person_are_drawn_one_after_the_other_what_is_no_outcome_first(plan):
    number = Column(name="x", kind="continuous", lower=0, upper=1, missing="level")
    columns = [Column(name="person", kind="person"), Column(name="arm", kind="binary"), Column(name="z", kind="binary")]
    columns += [replace(number, name=f"{name}_{k}") for name in ("y", "dose") for k in (1, 2)]
    repeated = RepeatedRows(rows=2, columns=("y", "dose"), order="visit", visits=(0, 6))
    dictionary = Dictionary(name="rows", version=1, columns=tuple(columns), repeated=repeated)
    asked = {"slope": "gee(y) ~ visit + arm + dose"}
    changed = replace(plan, dictionary=dictionary, estimands=asked, training=Training(outcomes="last"))
    found, names = planned_outcomes(changed), Encoder(dictionary=dictionary).columns
    drawn = [names[j] for group in found.groups for j in group]
    values = [f"{name}_{k}" for k in (1, 2) for name in ("dose", "y")]
    assert drawn == [piece for name in values for piece in (f"{name} missing", name)]
    assert set(found.gates) == {names.index(name) for name in values}
    plain = replace(changed, estimands={"last": "ols(y_2) ~ y_1 + arm"})
    assert [names[j] for group in planned_outcomes(plain).outcomes for j in group] == ["y_2 missing", "y_2"]


def test_groups_are_no_outcomes_and_a_comparison_is_of_its_column(plan):
    groups, _ = named(plan, a="two_by_two(grade > 1) ~ arm")
    assert groups == [("grade",), ("years", "died")]


def test_products_and_squares_that_a_question_reads_are_told(plan):
    _, found = named(plan, a="poisson(visits) ~ age * arm + I(sbp^2)")
    assert set(found.products) == {(2, 6), (3, 3)}


def test_a_column_of_which_a_question_reads_a_curve_is_told_and_is_in_no_digest(plan):
    """A flow that was sealed before curves were read is still its plan's: later waves draw through it."""
    bent = {"a": "poisson(visits) ~ ns(age, df = 3) + poly(sbp, 2, raw = TRUE) + arm"}
    _, found = named(plan, **bent)
    assert (found.products, found.curves) == ((), (2, 3))
    straight, curved = (
        replace(plan, dictionary=COLUMNS, estimands=asked, training=Training(outcomes="last"))
        for asked in ({"a": "poisson(visits) ~ age + sbp + arm"}, bent)
    )
    assert fitted_by(curved) == fitted_by(straight)


def test_numbers_that_may_be_missing_are_drawn_after_what_has_no_stand_in(plan):
    _, found = named(plan, a="ols(sbp) ~ age")
    names = Encoder(dictionary=COLUMNS).columns
    assert [names[j] for group in found.groups[: found.covariates] for j in group] == ["marker missing", "marker"]
    assert found.groups[found.covariates :] == found.outcomes
    alone = Dictionary(name="two", version=1, columns=(COLUMNS.column("marker"), COLUMNS.column("grade")))
    changed = replace(plan, dictionary=alone, estimands={"a": "ordinal(grade) ~ marker"})
    found = planned_outcomes(replace(changed, training=Training(outcomes="last")))
    assert (found.covariates, found.groups) == (0, ((2,),)), "laws must have something to read"


def test_what_leaves_a_record_out_of_a_question_is_told_with_what_else_it_reads(plan):
    lacking = (replace(one, missing="level") if one.name == "arm" else one for one in COLUMNS.columns)
    dictionary = replace(COLUMNS, columns=tuple(lacking))
    asked = replace(plan, dictionary=dictionary, estimands={"a": "poisson(visits) ~ age + marker + arm"})
    asked = replace(asked, training=Training(outcomes="last"))
    found, names = planned_outcomes(asked), Encoder(dictionary=dictionary).columns
    gates = {(names[one], names[other]) for one, other in found.left_out}
    assert gates == {
        (gate, other)
        for gate, own in (("marker missing", "marker"), ("arm", "arm"))
        for other in ("age", "marker", "arm")
        if other != own
    }
    # A flow that was sealed before there were any of these is still the plan's.
    without = replace(found, left_out=())
    assert (without.groups, without.products) == (found.groups, found.products)
    assert b"left_out" not in asked.canonical
    assert named(plan, a="poisson(visits) ~ age + sbp")[1].left_out == ()


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
    assert fitted_by(first) == "d2cae27938994eba38e7be682f183888ee65724afd75eb72ff294e601d9ae679", (
        "as it was before covariates were drawn last"
    )


# -- from the table to the sealed release -----------------------------------------------------------------------------
LAST = {
    "training": Training(flows=2, hidden=16, epochs=3, patience=2, outcomes="last"),
    "estimands": {"risk": "logistic(died) ~ age + sbp", "seen": "poisson(visits) ~ age", "pressure": "ols(sbp) ~ age"},
}


def test_under_holdout_no_released_record_changes_a_law_and_a_training_record_does():
    plan, table = postures.study("holdout", **LAST), postures.cohort()
    before = postures.fitted(plan, table)
    assert isinstance(before.mechanism.flow.second.second, OutcomesLast)
    assert postures.same(before, postures.fitted(plan, postures.strange(table, before.released)))
    trained = [i for i in range(len(table)) if i not in set(before.released)][:1]
    assert not postures.same(before, postures.fitted(plan, postures.strange(table, trained)))


def test_laws_change_no_price_no_width_and_no_radius():
    last, joint = postures.study("local", **LAST), postures.study("local", estimands=LAST["estimands"])
    one, other = (postures.fitted(plan, postures.cohort()).mechanism for plan in (last, joint))
    assert (one.d, one.w, one.radius, one.event) == (other.d, other.w, other.radius, other.event)
    assert planned_event(last) == planned_event(joint)


def test_noise_of_one_record_moves_that_records_row_alone():
    plan, table = postures.study("local", **LAST), postures.cohort()
    _, x, _ = postures.encoded(plan, table)
    noise = postures.fitted(plan, table).mechanism
    changed = x.copy()
    changed[7] = x[8]
    one, other = (noise.release(rows, seeded_rng(4)) for rows in (x, changed))
    assert np.array_equal(np.delete(one, 7, axis=0), np.delete(other, 7, axis=0))


def test_who_lacks_a_number_takes_nothing_from_how_it_differs_between_groups():
    plan = StudyPlan.from_toml(
        lacking.PLAN.format(w=0.0, question=lacking.QUESTIONS["event"]) + lacking.OUTCOMES["event"]
    )
    now, before = [], []
    for seed in (1, 2, 3):
        records = plan.dictionary.check(lacking.hospital("event", seed))
        real, error = lacking.apart(records)
        now.append((lacking.apart(lacking.released(plan, records, seed))[0] - real) / error)
        with mock.patch.object(fitting, "planned_outcomes", lacking.mixed):
            before.append((lacking.apart(lacking.released(plan, records, seed))[0] - real) / error)
    assert np.mean(before) < -1.5, "a world in which it matters"
    assert abs(np.mean(now)) < 1


def test_a_release_with_outcomes_last_is_sealed_appended_to_and_audited(tmp_path):
    release = LatentNoisePlan(w=0.02)
    plan = shipped.study(
        release,
        DICTIONARY,
        waves=2,
        floors=Floors(membership_auc=1.0, own_row_linkage=1.0, extreme_linkage=1.0),
        **LAST,
    )
    bench = shipped.Bench(tmp_path)
    first = bench.release(plan, postures.cohort(300), seeded_rng(1))
    bench.deliver(first)
    second = bench.release(plan, postures.cohort(400), seeded_rng(2), wave=2)
    assert second.receipt.n == 100
    fits = [sealed_state.read_fit(bench.site.ledger.folder(made.hold), made.hold) for made in (first, second)]
    assert isinstance(fits[0].flow.second.second, OutcomesLast)
    assert fits[1].flow_of == first.hold.release_id
    assert np.array_equal(fits[0].flow.inverse(fits[0].noisy), fits[1].flow.inverse(fits[0].noisy))
