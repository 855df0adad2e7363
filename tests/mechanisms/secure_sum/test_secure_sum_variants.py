"""Fewer covariates, subgroups and windows of time in one secure sum: each the records' own, within the plan's bound."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from stage.mechanisms.opened_sum import opened_over
from stage.mechanisms.summed import BINARY, SumStage, planned
from stage.mechanisms.sums import cohorts, cohorts_plan

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.pooling.pool import pool
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.reading import read_sum
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, IntegrityRefusal, PlanRefusal, SchemaRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.mechanisms.moments.cohort import drawn
from shared.mechanisms.secure_sum.influences import model_at
from shared.mechanisms.secure_sum.opened import OpenedSum
from shared.mechanisms.secure_sum.sent_look import is_within, look_sent, read_look
from shared.mechanisms.secure_sum.variants import fitted_variant, pilot_effects
from shared.plans.plan import StudyPlan
from shared.privacy.accountant import epsilon
from shared.releases.receipt import planned_event
from site_agent.training.secure_sum.consent import waiting_order

PLANNED = "cox(time, cvd) ~ sbp/10 + age + chol + hdl"
OLD = 55
"""Age from which on pressure does nothing in this world; half of the events are there."""
VARIANTS = (
    "cox(time, cvd) ~ sbp/10",
    f"cox(time, cvd, subset = age >= {OLD}) ~ sbp/10 + age + chol + hdl",
    f"cox(time, cvd, subset = age < {OLD} & chol > 180) ~ sbp/10 + age",
    "cox(time, cvd, start = 5) ~ sbp/10 + age + chol + hdl",
    "cox(time, cvd, stop = 10.5) ~ sbp/10 + age + chol + hdl",
    "cox(time, cvd, start = 3.3, stop = 13) ~ age/10 + sbp",
    "cox(time, cvd, start = 9.7, stop = 11) ~ sbp/10 + age",
)
OLDER = VARIANTS[1]
NOBODY = "cox(time, cvd, subset = age > 99.5) ~ sbp/10"
HORIZON = 36.0


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """Followed until the plan's horizon."""
    late = table["time"] > HORIZON
    return table.assign(cvd=np.where(late, 0, table["cvd"]), time=np.minimum(table["time"], HORIZON))


def differing(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The same persons, of whom the old have a pressure that is somebody else's of their age."""
    rng, out = np.random.default_rng(seed), table.copy()
    old = np.flatnonzero((table["age"] >= OLD).to_numpy())
    by_age = old[np.argsort(table["age"].to_numpy()[old], kind="stable")]
    for part in np.array_split(by_age, max(len(by_age) // 25, 1)):
        out.iloc[part, out.columns.get_loc("sbp")] = table["sbp"].to_numpy()[rng.permutation(part)]
    return out


TABLES = {name: differing(ends(table), k) for k, (name, table) in enumerate(cohorts(3, 0.6).items())}
KEYS = {name: SigningKey.generate() for name in TABLES}


@cache
def world():
    """A sum of two coefficients of the planned model and one of each variant: plan, pilots, what was opened."""
    plan = cohorts_plan(KEYS, 100.0, further={"age": 10.0}, variants=[*VARIANTS, NOBODY])
    pilots, _, opened = opened_over(plan, list(TABLES.values()), list(KEYS.values()), seeded_rng(4))
    return plan, pilots, opened


def of_records(question: str):
    """The pooled first coefficient of the records themselves, of those sites where it can be told."""
    rows = [
        estimate(table, parse_estimand(question), study="cvd", site=name, wave=1)[0] for name, table in TABLES.items()
    ]
    there = [row for row in rows if row.yi is not None]
    return pool([row.yi for row in there], [row.vi_sampling for row in there], method="REML", test="adhoc")


def look_at(place: int):
    plan, _, opened = world()
    design = plan.release.first(plan.budget.delta).design(plan)
    x, y = design.matrices(plan.dictionary.check(list(TABLES.values())[place]))
    return look_sent(opened.parts[place].look, len(x), plan.release.bounds(plan), design), x, y


# -- what they are ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", range(len(VARIANTS)), ids=VARIANTS)
def test_with_little_noise_every_variant_is_the_records_own(at):
    plan, pilots, opened = world()
    answer, theirs = read_sum(plan, opened, pilots)[2 + at], of_records(VARIANTS[at])
    assert abs(answer.estimate - theirs.beta) < 0.3 * max(theirs.se, answer.se)
    # Of four sites τ² is little known: its mean is in the variance, and the records' own estimate of it may be 0.
    assert answer.se < 3 * theirs.se
    assert len(answer.sites) <= theirs.k


def test_a_subgroup_that_differs_is_answered_by_its_records_and_not_by_the_model_of_everybody():
    plan, pilots, opened = world()
    at = 2 + VARIANTS.index(OLDER)
    answer, theirs = read_sum(plan, opened, pilots)[at], of_records(VARIANTS[at - 2])
    started = opened.start[at]
    assert abs(started - theirs.beta) > 3 * abs(answer.estimate - theirs.beta)
    assert started - theirs.beta > 2 * theirs.se


def test_a_variant_s_regression_is_cox_s_on_rows_that_follow_the_planned_model():
    plan, pilots, _ = world()
    place = pilot_places(plan, pilots).places[0]
    at, points, cases = model_at(place, place.theta.effects)
    rng = np.random.default_rng(5)
    x, y = drawn(place.model, place.theta, rng.random((60_000, place.model.p + 3)))
    for variant in plan.release.questions(plan)[:-1]:
        fit = fitted_variant(at, points, cases, variant)
        start, stop = variant.window
        inside = variant.among(x) & (y[:, 0] > start)
        chosen = x[inside][:, variant.columns] / np.where(np.array(variant.columns) == variant.column, variant.unit, 1)
        event = np.where(y[inside, 0] <= stop, y[inside, 1], 0.0)
        found = cox(chosen - chosen.mean(axis=0), SurvivalOutcome(time=np.minimum(y[inside, 0], stop), event=event))
        k = variant.columns.index(variant.column)
        assert abs(found.beta[k] - fit.coefficient) < 3.5 * np.sqrt(found.cov[k, k]) + 0.02 * abs(found.beta[k])


def test_whoever_is_not_of_a_variant_adds_nothing_to_it():
    look, x, y = look_at(0)
    own = len(look.bounds.columns)
    for k, model in enumerate(look.models, start=own):
        found = model.influences(look, x, y, look.along[k], look.means[k])
        start, _ = model.variant.window
        outside = ~model.variant.among(x) | (y[:, 0] <= start)
        assert (found[outside] == 0).all()
        assert (found[~outside] != 0).all()
    by_age = x[:, 0] >= OLD
    assert (look.models[VARIANTS.index(OLDER)].variant.among(x) == by_age).all()


def test_an_event_at_the_end_of_a_window_has_the_risk_set_mean_before_it():
    look, x, y = look_at(0)
    k = VARIANTS.index("cox(time, cvd, start = 3.3, stop = 13) ~ age/10 + sbp")
    model, own = look.models[k], len(look.bounds.columns) + k
    at = np.column_stack([np.full(len(y), 13.0), np.ones(len(y))])
    before = np.column_stack([np.full(len(y), 13 - 1e-9), np.ones(len(y))])
    found = [model.influences(look, x, one, look.along[own], look.means[own]) for one in (at, before)]
    assert np.allclose(*found, rtol=1e-6, atol=1e-6)
    after = np.column_stack([np.full(len(y), 13 + 1e-9), np.ones(len(y))])
    assert (model.influences(look, x, after, look.along[own], look.means[own]) != found[0]).all()


def test_a_site_with_nobody_in_a_subgroup_is_not_among_the_sites_of_its_answer():
    plan, pilots, opened = world()
    found = read_sum(plan, opened, pilots)
    old = found[2 + VARIANTS.index(OLDER)]
    young = {name for name, table in TABLES.items() if not (table["age"] >= OLD).any()}
    assert young == {"cardia-f", "cardia-m"}
    assert set(old.sites) == set(TABLES) - young
    assert found[0].sites == tuple(plan.release.members)
    assert np.isfinite([old.estimate, old.se, old.weights, old.pilots, old.cut]).all()
    # As many degrees of freedom as there are such sites, less one.
    assert np.isclose(old.ci_ub - old.estimate, stats.t.ppf(0.975, len(old.sites) - 1) * old.se)


def test_a_subgroup_that_nobody_is_in_has_no_answer_and_takes_none_of_the_others_away():
    plan, pilots, opened = world()
    found = read_sum(plan, opened, pilots)
    assert isinstance(found[-1], EstimateRefusal)
    assert "age > 99.5" in found[-1].must
    assert found[-1].given.startswith("0 of 6 sites")
    assert not any(isinstance(one, EstimateRefusal) for one in found[:-1])


def test_what_pilots_make_of_a_variant_follows_their_own_effects_and_is_less_sure_of_fewer_patients():
    plan, pilots, _ = world()
    place = pilot_places(plan, pilots).places[0]
    variants = plan.release.questions(plan)
    raised = replace(place, effects=replace(place.effects, effects=place.effects.effects + np.array([0, 0, 0, 0.01])))
    before, after = (pilot_effects(one, variants) for one in (place, raised))
    # 0.01 a mmHg more is 0.1 more per 10 of it: where everybody is in, and where all covariates are, nothing else.
    stop = VARIANTS.index("cox(time, cvd, stop = 10.5) ~ sbp/10 + age + chol + hdl")
    assert np.isclose(after[stop][0] - before[stop][0], 0.1)
    crude, older = before[0], before[VARIANTS.index(OLDER)]
    sampling = place.effects.sampling[3] * 100
    assert older[1] > sampling + place.effects.privacy[3] * 100
    at, points, cases = model_at(place, place.theta.effects)
    fit = fitted_variant(at, points, cases, variants[VARIANTS.index(OLDER)])
    own = 1 / (at.n / len(points) * float((at.chance * fit.psi**2).sum()))
    moved = fit.moved * at.scale
    expected = own + (own - float(moved**2 @ place.effects.sampling)) + float(moved**2 @ place.effects.privacy)
    assert np.isclose(older[1], expected)
    assert crude[0] > before[stop][0]


def test_logistic_variants_are_the_records_own_too():
    rng = np.random.default_rng(8)
    keys = {name: SigningKey.generate() for name in ("east", "mid", "north", "south", "west")}
    asked = (
        "logistic(cvd) ~ sbp/10",
        "logistic(cvd, subset = ward == 'b') ~ sbp/10 + age",
        "logistic(cvd, subset = age < 60) ~ sbp/10 + age + ward",
    )
    plan = planned(keys, **BINARY, **{"units = 10.0": f"units = 10.0\nvariants = {list(asked)}"})
    tables = []
    for name in plan.release.members:
        age = np.clip(rng.normal(58, 9, 2000), 20, 100).round(1)
        sbp = np.clip(120 + 0.8 * (age - 58) + rng.normal(0, 15, 2000), 60, 280).round()
        ward = rng.choice(list("abc"), 2000, p=[0.5, 0.3, 0.2])
        effect = np.where(ward == "b", 0.045, 0.015)
        risk = -1.2 + 0.05 * (age - 58) + effect * (sbp - 120) + 0.4 * (ward == "c")
        cvd = (rng.random(2000) < 1 / (1 + np.exp(-risk))).astype(int)
        person = [f"{name}-{k}" for k in range(2000)]
        tables.append(pd.DataFrame({"person": person, "age": age, "sbp": sbp, "ward": ward, "cvd": cvd}))
    signing = [keys[name] for name in plan.release.members]
    pilots, _, opened = opened_over(plan, tables, signing, seeded_rng(4))
    for question, answer in zip(asked, read_sum(plan, opened, pilots)[1:], strict=True):
        rows = [
            estimate(table, parse_estimand(question), study="hearts", site=name, wave=1)[0]
            for name, table in zip(plan.release.members, tables, strict=True)
        ]
        theirs = pool([row.yi for row in rows], [row.vi_sampling for row in rows], method="REML", test="adhoc")
        assert abs(answer.estimate - theirs.beta) < 0.5 * theirs.se
        assert answer.sites == tuple(plan.release.members)


def test_levels_and_nominal_columns_filter_as_they_do_in_a_question():
    keys = {f"site-{k}": SigningKey.generate() for k in range(6)}
    filters = ("ward == 'b'", "ward != 'a' & age > 50", "!(ward == 'c')")

    def plan_of(*given):
        listed = [f"logistic(cvd, subset = {one}) ~ sbp/10 + age" for one in given]
        return planned(keys, **BINARY, **{"units = 10.0": f"units = 10.0\nvariants = {listed}"})

    wards = ["logistic(cvd) ~ sbp + ward", "logistic(cvd) ~ sbp + C(ward)"]
    [one] = planned(keys, **BINARY, **{"units = 10.0": f"units = 10.0\nvariants = {wards[1:]}"}).release.variants
    assert one == wards[1]
    with pytest.raises(PlanRefusal, match="each question once"):
        planned(keys, **BINARY, **{"units = 10.0": f"units = 10.0\nvariants = {wards}"})
    with pytest.raises(PlanRefusal, match=r"columns of release\.variants must be of"):
        planned(keys, **BINARY, **{"units = 10.0": 'units = 10.0\nvariants = ["logistic(cvd) ~ sbp + ward_2"]'})
    plan = plan_of(*filters)
    with pytest.raises(PlanRefusal, match=r"a subset of release\.variants"):
        plan_of("ward == 'z'")
    variants = plan.release.questions(plan)
    table = pd.DataFrame({"ward": list("abcabc"), "age": [40.0, 60, 60, 40, 40, 70]})
    design = variants[0].design
    x = np.column_stack([table["age"], table["ward"] == "b", table["ward"] == "c", np.full(6, 120.0)])
    assert design.spec.covariates == ("age", "ward_2", "ward_3", "sbp")
    wanted = [table["ward"] == "b", (table["ward"] != "a") & (table["age"] > 50), table["ward"] != "c"]
    for variant, one in zip(variants, wanted, strict=True):
        assert (variant.among(x) == one.to_numpy()).all()


# -- the bound, and what is sent ---------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e9, 1e9), min_size=5 * (1 + len(VARIANTS)), max_size=5 * (1 + len(VARIANTS))),
    st.floats(0, 1e9),
    st.floats(-1e9, 1e9),
)
def test_rows_stay_within_the_plan_s_bound_whatever_models_of_variants_are_sent(effects, rise, along):
    plan, _, opened = world()
    part = opened.parts[0].look
    design = plan.release.first(plan.budget.delta).design(plan)
    sent = replace(
        part,
        variant_effects=tuple(map(tuple, np.reshape(effects, (1 + len(VARIANTS), 5)).tolist())),
        variant_cumulative=tuple(tuple((rise * np.arange(len(row))).tolist()) for row in part.variant_cumulative),
        along=tuple(tuple(along * one for one in row) for row in part.along),
    )
    look, (_, x, y) = look_sent(sent, 400, plan.release.bounds(plan), design), look_at(0)
    rows = look.rows(x[:200], y[:200])
    assert np.isfinite(rows).all()
    apart = rows[:, None] - rows[None]
    assert np.sqrt(np.square(apart).sum(axis=2)).max() <= look.bounds.sensitivity * (1 + 1e-9)


def test_a_look_with_variants_is_the_same_read_back_and_one_with_others_is_refused():
    plan, pilots, opened = world()
    bounds, design = plan.release.bounds(plan), plan.release.first(plan.budget.delta).design(plan)
    sent = opened.parts[0].look
    assert read_look(sent.to_canonical()) == sent
    assert OpenedSum.from_bytes(opened.to_bytes()) == opened
    assert is_within(sent, bounds)
    fewer = replace(sent, variant_effects=sent.variant_effects[:-1], variant_cumulative=sent.variant_cumulative[:-1])
    assert not is_within(fewer, bounds)
    falling = (0.0, 2.0, *sent.variant_cumulative[0][2:])
    raised = (1.0, *sent.variant_cumulative[0][1:])
    for other in (
        fewer,
        replace(sent, variant_cumulative=sent.variant_cumulative[:-1]),
        replace(sent, variant_cumulative=(falling, *sent.variant_cumulative[1:])),
        replace(sent, variant_cumulative=(raised, *sent.variant_cumulative[1:])),
        replace(sent, variant_effects=tuple(row[:-1] for row in sent.variant_effects)),
    ):
        with pytest.raises(SchemaRefusal):
            look_sent(other, 400, bounds, design)
    for ragged in (
        {"variant_effects": (sent.variant_effects[0][:-1], *sent.variant_effects[1:])},
        {"variant_cumulative": (sent.variant_cumulative[0][:-1], *sent.variant_cumulative[1:])},
        {"variant_cumulative": ((),) * len(sent.variant_effects)},
        {"along": (sent.along[0][:-1], *sent.along[1:])},
    ):
        with pytest.raises(SchemaRefusal, match="of one length"):
            replace(sent, **ragged)
    moved = tuple(tuple(2 * one for one in row) for row in sent.variant_effects)
    forged = replace(
        opened, parts=dict(opened.parts) | {0: replace(opened.parts[0], look=replace(sent, variant_effects=moved))}
    )
    with pytest.raises(IntegrityRefusal, match="the one that the pilots give"):
        read_sum(plan, forged, pilots)


# -- a plan ------------------------------------------------------------------------------------------------------------
def test_a_plan_with_variants_is_read_back_and_costs_what_it_costs_without():
    plan = cohorts_plan(KEYS, 1.0, variants=list(VARIANTS[:2]))
    without = cohorts_plan(KEYS, 1.0)
    assert StudyPlan.from_canonical(plan.to_canonical()) == plan
    assert "variants" not in without.to_canonical()["release"]
    prices = [list(one.release.seen_by(one).values()) for one in (plan, without)]
    assert np.allclose(*prices, rtol=5e-3)
    assert epsilon(planned_event(plan), 1e-6) <= 1.0
    assert [event.sigma for event in plan.release.event(plan).events] == [
        event.sigma for event in without.release.event(without).events
    ]
    assert plan.release.terms(plan).coordinates == 3 + 3 * 4 // 2
    assert plan.release.details(plan).startswith("sbp and 2 variants of the model in one sum of 6 sites")


@pytest.mark.parametrize(
    ("variants", "rule"),
    [
        (["cox(time, cvd) ~ sbp + age + chol + hdl"], "another than the planned"),
        (["logistic(cvd) ~ sbp"], "must be cox\\(time, cvd\\)"),
        (["cox(time, cvd, ties = breslow) ~ sbp"], "no option but subset"),
        (["cox(time, cvd) ~ sbp + strata(age)"], "no option but subset"),
        (["cox(time, cvd) ~ log(sbp)"], "must be release.covariates"),
        (["cox(time, cvd) ~ sbp + sex"], "must be of release.covariates"),
        (["cox(time, cvd) ~ age + sbp"], "first term"),
        (["cox(time, cvd, subset = cvd == 1) ~ sbp"], "columns of release.variants"),
        (["cox(time, cvd, subset = time > 3) ~ sbp"], "columns of release.variants"),
        (["cox(time, cvd, subset = 1 == 1) ~ sbp"], "some of the persons"),
        (["cox(time, cvd, subset = age > 120) ~ sbp"], "some of the persons"),
        (["cox(time, cvd, start = 0, stop = 36) ~ sbp + age + chol + hdl"], "another than the planned"),
        (["cox(time, cvd, stop = 40) ~ sbp"], "before the horizon"),
        (["cox(time, cvd, start = 36) ~ sbp"], "before the horizon"),
        (["cox(time, cvd, start = 5, stop = 6) ~ sbp"], "1.12 long or more"),
        (["cox(time, cvd) ~ sbp/1e300"], "units of release.variants"),
        (["cox(time, cvd) ~ sbp", "cox(time, cvd) ~ sbp/10"], "each question once"),
        (["cox(time, cvd) ~ sbp + age", "cox(time, cvd) ~ sbp/5 + age"], "each question once"),
        (["cox(time, cvd, start = 0) ~ sbp", "cox(time, cvd, stop = 36) ~ sbp"], "each question once"),
        (["nonsense"], "a question of release.variants"),
        ("cox(time, cvd) ~ sbp", "list of questions"),
        ([f"cox(time, cvd, stop = {k}) ~ sbp" for k in range(1, 11)], "at most 10 coefficients"),
    ],
)
def test_variants_that_no_sum_can_have_are_refused(variants, rule):
    with pytest.raises(PlanRefusal, match=rule):
        cohorts_plan(KEYS, 1.0, variants=variants)


def test_filters_far_in_a_corner_of_wide_bounds_are_subgroups():
    given = cohorts_plan(KEYS, 1.0, variants=list(VARIANTS[:1])).to_canonical()
    columns = [{**one, "upper": 35_000.0} if one["name"] == "chol" else one for one in given["dictionary"]["columns"]]
    for subset in ("chol < 61 & hdl < 12", "!(chol > 34900 & hdl > 199 & age > 99)", "age >= 99 & chol <= 62"):
        variants = [f"cox(time, cvd, subset = {subset}) ~ sbp"]
        made = given | {
            "dictionary": given["dictionary"] | {"columns": columns},
            "release": given["release"] | {"variants": variants},
        }
        assert StudyPlan.from_canonical(made).release.variants == tuple(variants)


def test_the_planned_question_is_the_same_with_a_window_that_says_nothing():
    plan = cohorts_plan(KEYS, 1.0, variants=list(VARIANTS[:1]))
    terms = plan.release.summed_terms(plan, parse_estimand(PLANNED))
    assert terms
    for window in ("start = 0", "stop = 36", "start = 0, stop = 36"):
        question = PLANNED.replace("cvd)", f"cvd, {window})")
        assert plan.release.summed_terms(plan, parse_estimand(question)) == terms


def test_variants_of_a_plan_that_reads_its_pilots_apart_are_refused():
    with pytest.raises(PlanRefusal, match=r"must go with release\.places"):
        cohorts_plan(KEYS, 1.0, variants=list(VARIANTS[:1]), places="apart")


def test_the_checklist_names_planned_analyses_that_the_sum_could_answer():
    plan = cohorts_plan(KEYS, 1.0, variants=list(VARIANTS[:1])).to_canonical()
    given = {"main": PLANNED, "crude": VARIANTS[0], "old": OLDER, "mean": "mean(age)"}
    planned_so = StudyPlan.from_canonical(plan | {"estimands": given})
    lines = {line.name: line for line in planned_so.release.review(planned_so)}
    assert lines["variants"].state == "warn"
    assert OLDER in lines["variants"].detail
    assert VARIANTS[0] not in lines["variants"].detail
    assert "mean" not in lines["variants"].detail
    assert "secure sum" not in lines
    # A variant's coefficient is summed, so its analysis is answered as the planned model's is.
    answered = [planned_so.release.plans(planned_so, parse_estimand(one)) for one in given.values()]
    assert answered == [True, True, False, False]
    done = StudyPlan.from_canonical(plan | {"estimands": given | {"old": PLANNED, "mean": PLANNED}})
    assert "variants" not in {line.name for line in done.release.review(done)}


# -- through the coordinator and five sites ----------------------------------------------------------------------------
ASKED = ("cox(time, cvd) ~ sbp/10", "cox(time, cvd, subset = age >= 60, stop = 12) ~ sbp/10 + age")


@pytest.fixture
def stage(tmp_path):
    made = SumStage(tmp_path, **{"units = 10.0": f"units = 10.0\nvariants = {list(ASKED)}"})
    yield made
    made.close()


def test_a_variant_s_question_is_answered_by_the_sum_and_an_approver_is_told_of_it(stage):
    store, first, said = stage.hub.store, next(iter(stage.hospitals.values())), []
    consent = first.consent
    first.consent = lambda: (said.extend(waiting_order(first.ledger, first.name, stage.plan).sentences), consent())
    opened = stage.whole()
    assert f"of the first coefficient of each of: {ASKED[0]}; {ASKED[1]}." in said[0]
    assert all(f"{name} " in said[5] for name in ("sbp", *ASKED))
    assert (np.abs(np.array(opened.total) - stage.exact(opened)) <= 6 * opened.sigma).all()
    pilots = {at: (store.table(store.by_bundle(one)), 400) for at, one in opened.pilots.items()}
    _, crude, older = read_sum(stage.plan, opened, pilots)
    answer = ask(store, holding(store, "hearts", 1), "cox(time, cvd) ~ sbp/5")
    assert not answer.unsummed
    assert np.isclose(2 * answer.result.summed.estimate, crude.estimate)
    turned = "cox(time, cvd, stop = 12, subset = (age >= 60)) ~ age + sbp/10"
    answer = ask(store, holding(store, "hearts", 1), turned, term="sbp/10")
    assert answer.result.summed.estimate == older.estimate
    assert answer.others["age"].summed is None
    other = ask(store, holding(store, "hearts", 1), "cox(time, cvd, subset = age >= 61, stop = 12) ~ sbp/10 + age")
    assert "of another question" in other.unsummed
