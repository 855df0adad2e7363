"""Several coefficients in one secure sum: rows within the bound whatever is sent, each coefficient the records' own."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.mechanisms.opened_sum import opened_over
from stage.mechanisms.ring import Ring
from stage.mechanisms.summed import SumStage
from stage.mechanisms.sums import Parts, cohorts, cohorts_plan, hearts

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.synthesis import synthesis
from coordinator.planning.price import cost, prices
from coordinator.planning.review import review
from coordinator.pooling.pool import pool, pool_estimates
from coordinator.pooling.secure_sum import reading
from coordinator.pooling.secure_sum.answer import SummedAnswer
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.reading import read_sum
from coordinator.pooling.secure_sum.vectors import summed_vector
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, IntegrityRefusal, ParameterError, PlanRefusal, SchemaRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.mechanisms.secure_sum.opened import OpenedSum
from shared.mechanisms.secure_sum.sent_look import SentLook, SentVectorLook, is_within, look_sent, read_look
from shared.mechanisms.secure_sum.vectors import VectorBounds, coordinates, products, rows_of
from shared.plans.plan import StudyPlan
from shared.privacy.accountant import epsilon
from shared.releases.receipt import coverage, planned_event
from site_agent.training.secure_sum.consent import waiting_order

TABLES = cohorts(3)
KEYS = {name: SigningKey.generate() for name in TABLES}
UNITS = {"sbp": 10.0, "age": 10.0, "chol": 40.0, "hdl": 15.0}
FURTHER = {name: units for name, units in UNITS.items() if name != "sbp"}
MEMBERS = {f"site-{k}": f"{k:064x}" for k in range(6)}
NUMBERS = st.floats(-1e9, 1e9)


@cache
def world(at):
    """A sum of four coefficients at this ε: plan, pilots, what was opened, and the parts that each site added."""
    plan = cohorts_plan(KEYS, at, further=FURTHER, held="centred")
    pilots, _, opened = opened_over(plan, list(TABLES.values()), list(KEYS.values()), seeded_rng(4))
    return plan, pilots, opened


@cache
def records():
    """The pooled coefficients of the records themselves, in the order of `UNITS`."""
    found = []
    for table in TABLES.values():
        x = table[list(UNITS)].to_numpy(float) / np.array(list(UNITS.values()))
        fitted = cox(
            x - x.mean(axis=0), SurvivalOutcome(time=table["time"].to_numpy(float), event=table["cvd"].to_numpy(float))
        )
        found.append((fitted.beta, np.diag(fitted.cov)))
    yi, vi = (np.array(one) for one in zip(*found, strict=True))
    return [pool(list(yi[:, k]), list(vi[:, k]), method="REML", test="adhoc") for k in range(len(UNITS))]


def look_at(place):
    """A site's look as it was sent, at its own records, with these."""
    plan, _, opened = world(100.0)
    design = plan.release.first(plan.budget.delta).design(plan)
    x, y = design.matrices(plan.dictionary.check(list(TABLES.values())[place]))
    return look_sent(opened.parts[place].look, len(x), plan.release.bounds(plan), design), x, y


# -- the bound -----------------------------------------------------------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(2, 10), st.floats(1e-3, 1e3))
def test_no_two_rows_of_any_vectors_are_further_apart_than_the_bound(data, several, reach):
    one, other = (np.array(data.draw(st.lists(NUMBERS, min_size=several, max_size=several))) for _ in range(2))
    for scale in (1.0, 1e-9, reach / max(float(np.linalg.norm(one)), 1e-9)):
        rows = rows_of(np.array([scale * one, scale * other]), reach)
        assert np.linalg.norm(rows[0] - rows[1]) <= 2 * reach * (1 + 1e-9)


@pytest.mark.parametrize("several", [2, 4, 10])
def test_vectors_at_their_farthest_are_at_the_bound_and_longer_products_would_be_beyond_it(several):
    rng = np.random.default_rng(1)
    u = rng.standard_normal((2000, several))
    u /= np.linalg.norm(u, axis=1)[:, None]
    # The opposite, moved a little along the sphere: where a longer product shows first.
    v = -u + 0.3 * rng.standard_normal(u.shape) / math.sqrt(several)
    v /= np.linalg.norm(v, axis=1)[:, None]
    one, other = rows_of(u, 1.0), rows_of(v, 1.0)
    assert np.linalg.norm(one - other, axis=1).max() <= 2 * (1 + 1e-12)
    assert np.linalg.norm(rows_of(u, 1.0) - rows_of(-u, 1.0), axis=1) == pytest.approx(np.full(2000, 2.0))
    longer = np.r_[np.ones(several), np.full(one.shape[1] - several, 1.1)]
    assert np.linalg.norm(longer * (one - other), axis=1).max() > 2, "b is at its limit"


@pytest.mark.parametrize("weights", [0.0, 0.3, 1.0, 7.0, -3.0, 1e12])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 1e12])
def test_rows_stay_within_the_plan_s_bound_whatever_weights_whitening_and_place_are_sent(weights, size):
    at, x, y = look_at(1)
    rng = np.random.default_rng(2)
    several = len(UNITS)
    at = replace(at, weights=weights * np.ones(several), whitening=size * rng.standard_normal((several, several)))
    aside = replace(at, offset=1e6 * rng.standard_normal(several))
    for sent in (at, aside, replace(at, along=1e9 * at.along), replace(at, effects=at.effects + 3.0)):
        rows = sent.rows(x, y)
        assert rows.shape == (len(x), coordinates(several))
        assert np.linalg.norm(rows[:, :several], axis=1).max() <= at.bounds.reach * (1 + 1e-12)
        far = rows[rng.integers(len(rows), size=4000)] - rows[rng.integers(len(rows), size=4000)]
        assert np.linalg.norm(far, axis=1).max() <= at.bounds.sensitivity * (1 + 1e-12)


def test_a_plan_s_sum_is_charged_for_that_bound_and_costs_what_one_coefficient_costs():
    plan, single = cohorts_plan(KEYS, 1.0, further=FURTHER), cohorts_plan(KEYS, 1.0)
    terms = plan.release.terms(plan)
    assert terms.coordinates == coordinates(4) == 14
    assert terms.sensitivity == plan.release.bounds(plan).sensitivity == 2 * plan.release.reach
    assert terms.sigma == single.release.terms(single).sigma
    assert plan.release.seen_by(plan) == pytest.approx(single.release.seen_by(single), rel=5e-3)
    assert epsilon(planned_event(plan), 1e-6) <= 1.0


def test_the_products_of_a_sum_are_the_sum_of_products():
    u = np.random.default_rng(3).standard_normal((50, 5))
    assert np.allclose(products(rows_of(u, 1e3).sum(axis=0), 5, 1e3), u.T @ u)


def test_bounds_of_no_coefficient_of_too_many_and_of_one_twice_are_refused():
    for columns, units, reach in [((), (), 1.0), ((1, 1), (1.0, 1.0), 1.0), ((0, 1), (1.0, -1.0), 1.0)]:
        with pytest.raises(ParameterError, match="1 to 10 coefficients"):
            VectorBounds(columns=columns, units=units, reach=reach)
    with pytest.raises(ParameterError, match="1 to 10 coefficients"):
        VectorBounds(columns=tuple(range(11)), units=(1.0,) * 11, reach=1.0)


# -- the answers ---------------------------------------------------------------------------------------------------
def test_with_little_noise_every_coefficient_is_the_records_own():
    plan, pilots, opened = world(100.0)
    found = read_sum(plan, opened, pilots)
    assert len(found) == len(plan.release.coefficients) == 4
    # `coefficient` first, the others by their names.
    assert list(plan.release.coefficients) == ["sbp", "age", "chol", "hdl"]
    for answer, exact in zip(found, records(), strict=True):
        assert abs(answer.estimate - exact.beta) < 0.4 * exact.se
        assert answer.noise < 0.05 * answer.variance
        assert answer.sites == tuple(TABLES)


def test_a_coefficient_that_is_refused_takes_none_of_the_others_away_and_none_lets_it_through(monkeypatch):
    """At half of ε = 1 the pilots know where three of four coefficients start from, and not where age's does."""
    plan = cohorts_plan(KEYS, 0.5, further=FURTHER)
    pilots, _, opened = opened_over(plan, list(TABLES.values()), list(KEYS.values()), seeded_rng(4))
    errors = pilot_places(plan, pilots).start_errors()
    found = read_sum(plan, opened, pilots)
    assert [bool(one > 0.2) for one in errors] == [isinstance(one, EstimateRefusal) for one in found]
    assert [isinstance(one, EstimateRefusal) for one in found] == [False, True, False, False]
    assert f"a standard error of {errors[1]:.2g} (at most 0.2)" in str(found[1])
    # Those that are answered say what they say where none is refused.
    monkeypatch.setattr(reading, "_KNOWN", math.inf)
    every = read_sum(plan, opened, pilots)
    assert all(isinstance(one, SummedAnswer) for one in every)
    assert [every[at] for at in (0, 2, 3)] == [found[at] for at in (0, 2, 3)]
    # Nor do those of which the models expect too much.
    monkeypatch.setattr(reading, "_MOST_CLAIMED", 0.6)
    fewer = read_sum(plan, opened, pilots)
    assert [isinstance(one, EstimateRefusal) for one in fewer] == [True, True, False, False]
    assert all("(at most 0.6) what their events can tell" in str(one) for one in fewer[:2])
    assert fewer[2:] == every[2:]


def test_the_noise_told_of_each_coefficient_is_the_noise_that_was_added():
    plan, pilots, opened = world(8.0)
    places, looks = pilot_places(plan, pilots), {}
    design, bounds = plan.release.first(plan.budget.delta).design(plan), plan.release.bounds(plan)
    total = np.zeros(coordinates(4))
    for at, table in enumerate(TABLES.values()):
        x, y = design.matrices(plan.dictionary.check(table))
        total += look_sent(opened.parts[at].look, len(x), bounds, design).rows(x, y).sum(axis=0)
    levels = {at: (part.events, part.charges) for at, part in opened.parts.items()}
    looks, differing = places.weighed(places.looks(levels))
    rng = np.random.default_rng(7)
    drawn = [
        summed_vector(
            list(looks.values()),
            total + opened.sigma * rng.standard_normal(len(total)),
            opened.sigma,
            places.start,
            differing,
            sites=list(TABLES),
        )
        for _ in range(80)
    ]
    for k in range(4):
        spread = np.var([one[k].estimate for one in drawn], ddof=1)
        assert 0.5 < spread / drawn[0][k].noise < 1.7  # four standard errors; half the noise makes 4 or 0.25 of it
        centre = np.mean([one[k].estimate for one in drawn])
        assert abs(read_sum(plan, opened, pilots)[k].estimate - centre) < 4.5 * math.sqrt(drawn[0][k].noise)


def test_several_coefficients_have_little_more_noise_than_each_alone():
    """Of the sums' noise alone, at the same pilots' ε: less than its square root times more for each of four."""
    plan, pilots, opened = world(8.0)
    several = read_sum(plan, opened, pilots)
    single = cohorts_plan(KEYS, 8.0)
    noise = seeded_rng(4)
    own = {
        place: (single.release.draw(single, single.dictionary.check(table), noise), len(table))
        for place, table in enumerate(TABLES.values())
    }
    parts = Parts.of(single, list(TABLES.values()), own, noise)
    ring = Ring(single.release.terms(single), keys=list(KEYS.values()), lost={})
    ring.values = dict(enumerate(parts.values))
    one = parts.opened(single, ring.until("opening").coordinator, {place: f"{place:064x}" for place in own})
    [alone] = read_sum(single, one, own)
    assert math.sqrt((several[0].noise + several[0].cut) / (alone.noise + alone.cut)) < math.sqrt(4)


def test_what_noisy_pilots_have_wrong_is_in_the_interval_and_a_pilot_that_says_nothing_counts_no_more():
    plan, pilots, opened = world(8.0)
    places = pilot_places(plan, pilots)
    levels = {site: (part.events, part.charges) for site, part in opened.parts.items()}
    looks, differing = places.weighed(places.looks(levels))
    total = np.array(opened.total)

    def answer(more):
        given = [replace(one, more=more(one.more)) for one in differing]
        return summed_vector(list(looks.values()), total, 1.0, places.start, given, sites=list(TABLES))[0]

    none, told = answer(np.zeros_like), answer(lambda more: more)
    assert none.pilots == 0
    assert told.variance - none.variance == pytest.approx(told.pilots)
    lost = answer(lambda more: np.where(np.arange(len(more)), more, 1e3))  # the variance of one that settled nowhere
    assert told.pilots < lost.pilots < 0.2 * lost.variance
    # Twice as far, four times the variance; an answer from before it was told has none.
    assert told.per(2.0).pilots == pytest.approx(4 * told.pilots)
    assert SummedAnswer.of(told.data("log")) == told
    older = {name: value for name, value in told.data("log").items() if name != "pilots"}
    assert SummedAnswer.of(older).pilots == 0


def test_nothing_is_expected_to_be_taken_where_vectors_are_drawn_in_about_their_own_point():
    plan, pilots, opened = world(1.0)
    levels = {site: (part.events, part.charges) for site, part in opened.parts.items()}
    looks, _ = pilot_places(plan, pilots).weighed(pilot_places(plan, pilots).looks(levels))
    for look in looks.values():
        about_0, own = replace(look, offset=np.zeros(4)), replace(look, offset=np.zeros(4)).centred()
        assert own.offset == pytest.approx(look.offset)
        assert np.linalg.norm(own.offset) <= look.bounds.reach
        taken = [one.whitening @ (one.weights * one.drawn_in().beyond) for one in (about_0, own)]
        assert np.linalg.norm(taken[1]) < 0.1 * np.linalg.norm(taken[0])


@pytest.mark.parametrize("held", ["centred", "zero"])
def test_records_that_follow_the_models_are_answered_where_they_are_looked_at_from_however_much_is_drawn_in(held):
    plan, pilots, opened = world(1.0)
    places = pilot_places(plan, pilots)
    levels = {site: (part.events, part.charges) for site, part in opened.parts.items()}
    found, differing = places.weighed(places.looks(levels))
    looks = [replace(look, whitening=4 * look.whitening, offset=np.zeros(4)) for look in found.values()]
    looks = [look.centred() for look in looks] if held == "centred" else looks
    total = np.zeros(coordinates(4))
    for look in looks:
        vectors = np.tensordot(look.whitening * look.weights, look.psi, 1).reshape(4, -1).T
        chance = look.n * look.chance.ravel() / len(look.chance)
        total += chance @ rows_of(vectors - look.offset, look.bounds.reach)
        # Whom a noisy model has stay beyond the last interval are in none of its cases: here without an influence.
        total += (look.n - chance.sum()) * rows_of(-look.offset[None], look.bounds.reach)[0]
        total[:4] -= chance @ vectors  # by its intervals a model has not quite the mean of 0 that records have
    for answer, start in zip(
        summed_vector(looks, total, 0.0, places.start, differing, sites=list(TABLES)), places.start, strict=True
    ):
        assert answer.estimate == pytest.approx(start, abs=1e-9)


# -- what is sent and opened ---------------------------------------------------------------------------------------
def test_a_look_of_several_is_the_same_read_back_and_no_look_of_one():
    _, _, opened = world(8.0)
    look = opened.parts[0].look
    assert isinstance(look, SentVectorLook)
    assert read_look(json.loads(json.dumps(look.to_canonical()))) == look
    assert any(look.offset)
    about_0 = replace(look, offset=())
    assert "offset" not in about_0.to_canonical(), "as looks were sent before there was one"
    assert read_look(json.loads(json.dumps(about_0.to_canonical()))) == about_0
    assert OpenedSum.from_bytes(opened.to_bytes()) == opened
    single = cohorts_plan(KEYS, 8.0)
    with pytest.raises(SchemaRefusal, match="the plan's coefficients"):
        look_sent(look, 100, single.release.bounds(single), single.release.first(1e-6).design(single))
    with pytest.raises(SchemaRefusal):
        SentLook.from_canonical(look.to_canonical())
    for changed in (
        {"weights": look.weights[:2]},
        {"weights": (2.0, *look.weights[1:])},
        {"whitening": look.whitening[:2]},
        {"along": look.along[0]},
        {"means": (*look.means[:3], (math.nan,))},
        {"offset": look.offset[:2]},
        {"offset": (math.inf, *look.offset[1:])},
    ):
        with pytest.raises(SchemaRefusal):
            replace(look, **changed)


def test_a_look_about_a_point_that_the_plan_does_not_allow_is_refused_by_the_site_and_by_whoever_reads_the_sum():
    plan, _, opened = world(8.0)
    design, look = plan.release.first(plan.budget.delta).design(plan), opened.parts[0].look
    about_0 = cohorts_plan(KEYS, 8.0, further=FURTHER, held="zero")
    bounds, own = about_0.release.bounds(about_0), plan.release.bounds(plan)
    further = replace(look, offset=(0.0, 0.0, 0.0, -1.01 * own.reach))
    for sent, of in ((look, bounds), (further, own)):
        with pytest.raises(SchemaRefusal, match="about a point that the plan allows"):
            look_sent(sent, 100, of, design)
        assert not is_within(sent, of)
    for sent, of in ((replace(look, offset=()), bounds), (look, own), (replace(look, offset=()), own)):
        assert is_within(sent, of)
        assert look_sent(sent, 100, of, design).n == 100


def test_looks_that_no_one_answer_can_be_read_from_are_refused():
    plan, pilots, opened = world(8.0)
    opened.verify(plan)

    def with_look(at=2, **changed):
        part = opened.parts[at]
        return replace(opened, parts=opened.parts | {at: replace(part, look=replace(part.look, **changed))})

    look = opened.parts[2].look
    doubled = tuple(tuple(2 * one for one in row) for row in look.whitening)
    with pytest.raises(IntegrityRefusal, match="from one place"):
        with_look(whitening=doubled).verify(plan)
    with pytest.raises(IntegrityRefusal, match="from one place"):
        with_look(start=(0.9, *look.start[1:])).verify(plan)
    flat = tuple(tuple(1.0 for _ in row) for row in look.whitening)
    singular = {at: replace(part, look=replace(part.look, whitening=flat)) for at, part in opened.parts.items()}
    with pytest.raises(IntegrityRefusal, match="within the plan's bounds"):
        replace(opened, parts=singular).verify(plan)
    with pytest.raises(IntegrityRefusal, match="pilots give"):
        read_sum(plan, with_look(along=tuple(tuple(one + 0.1 for one in row) for row in look.along)), pilots)
    moved = tuple(one + 0.05 * plan.release.reach for one in look.offset)
    for offset in (moved, ()):
        elsewhere = with_look(offset=offset)
        elsewhere.verify(plan)
        with pytest.raises(IntegrityRefusal, match="about the point that the pilots give"):
            read_sum(plan, elsewhere, pilots)
    with pytest.raises(IntegrityRefusal, match="the plan's terms"):
        opened.verify(cohorts_plan(KEYS, 8.0))


# -- the plan ------------------------------------------------------------------------------------------------------
def planned(**release):
    plan = StudyPlan.from_toml(hearts(MEMBERS, epsilon=1.0, budget=1.2))
    body = plan.to_canonical()
    return StudyPlan.from_canonical(body | {"release": body["release"] | release})


def test_a_plan_of_one_coefficient_says_nothing_of_several_and_one_of_several_is_read_back():
    assert "further" not in planned().to_canonical()["release"]
    plan = planned(further={"age": 5})
    assert plan.to_canonical()["release"]["further"] == {"age": 5.0}
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert plan.hash != planned().hash
    text = hearts(MEMBERS, epsilon=1.0, budget=1.2, further="further = {age = 5.0}\n")
    assert StudyPlan.from_toml(text).hash == plan.hash


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"further": {"weight": 1.0}}, "further must be of at most 9 of release.covariates"),
        ({"further": {"sbp": 1.0}}, "other than release.coefficient"),
        ({"further": {"age": 0.0}}, "each with its units"),
        ({"further": {"age": "1"}}, "each with its units"),
        ({"further": ["age"]}, "each with its units"),
        ({"further": {"age": 1.0}, "least": 3.0}, "least and release.most must be left out"),
    ],
)
def test_further_coefficients_that_no_sum_can_have_are_refused(more, rule):
    with pytest.raises(PlanRefusal, match=rule):
        planned(**more)


def test_price_and_checklist_and_receipt_name_every_coefficient():
    plan = planned(further={"age": 5.0})
    assert "sbp and age in one sum of 6 sites" in plan.release.details(plan)
    assert cost(plan).seen_by == plan.release.seen_by(plan)
    assert {price.name: price for price in prices(plan)}["secure sum"].epsilon == epsilon(planned_event(plan), 1e-6)
    assert all(who in coverage(plan)[0][0] for who in plan.release.seen_by(plan))
    text = hearts(MEMBERS, epsilon=1.0, budget=1.2, further="further = {age = 5.0}\n")
    named = {line.name: line for line in review(text, today=plan.waves[0].opens)[1]}
    assert "sbp/10 and age/5" in named["secure sum"].fix


# -- through the coordinator and five sites ------------------------------------------------------------------------
@pytest.fixture
def stage(tmp_path):
    several = {"units = 10.0": 'units = 10.0\nheld = "centred"\nfurther = {age = 5.0}'}
    made = SumStage(tmp_path, **several, **{'posture = "private"': 'posture = "private"\nrow_download = true'})
    yield made
    made.close()


def test_every_coefficient_of_the_planned_question_is_the_sum_s_and_an_approver_is_told_of_all(stage, monkeypatch):
    store, question = stage.hub.store, "cox(time, cvd) ~ sbp/10 + age"
    first, said = next(iter(stage.hospitals.values())), []
    consent = first.consent
    first.consent = lambda: (said.extend(waiting_order(first.ledger, first.name, stage.plan).sentences), consent())
    opened = stage.whole()
    assert said[0].startswith("5 sites add up 5 numbers each, about the coefficients of sbp per 10, age per 5")
    assert "A record counts for 1.2 at most" in said[2]
    assert re.search(r"level [+-][0-9.]+, records drawn in about a point [0-9.e-]+ from 0\.$", said[5])
    assert (np.abs(np.array(opened.total) - stage.exact(opened)) <= 6 * opened.sigma).all()
    answer = ask(store, holding(store, "hearts", 1), question)
    both = {"sbp/10": answer.result.summed, "age": answer.others["age"].summed}
    assert not answer.unsummed
    monkeypatch.setattr("shared.mechanisms.secure_sum.plan.MEASURED_FROM", 1000.0)
    assert "At an ε below 1000 a secure sum" in ask(store, holding(store, "hearts", 1), question).cautions[0]
    assert all(one.sites == tuple(stage.hospitals) for one in both.values())
    pilots = {at: (store.table(store.by_bundle(one)), 400) for at, one in opened.pilots.items()}
    pressure, age = read_sum(stage.plan, opened, pilots)
    assert both["sbp/10"].estimate == pressure.estimate
    assert math.isclose(5 * both["age"].estimate, age.estimate)
    assert ask(store, holding(store, "hearts", 1), question, term="age").result.summed == both["age"]
    assert "of another question" in ask(store, holding(store, "hearts", 1), "mean(age)").unsummed
    # Rows are drawn at both.
    drawn = {site: synthesis(store, "hearts", site).draw() for site in stage.hospitals}
    for at, term in enumerate(("age", "sbp")):
        rows = [
            row
            for site, one in drawn.items()
            for row in estimate(one.tables[0], parse_estimand(question), study="hearts", site=site, wave=1)
            if row.term.split("/")[0] == term
        ]
        after, total = pool_estimates(rows, method="REML", test="adhoc"), both[rows[0].term]
        assert abs(after.beta - total.estimate) < 0.4 * total.se
        assert {one.record["effects"][at]["term"] for one in drawn.values()} == {term}


def test_beside_a_term_that_the_sum_answers_one_that_it_refuses_is_the_releases_and_says_why(stage, monkeypatch):
    store, question = stage.hub.store, "cox(time, cvd) ~ sbp/10 + age"
    opened = stage.whole()
    pilots = {at: (store.table(store.by_bundle(one)), 400) for at, one in opened.pilots.items()}
    errors = pilot_places(stage.plan, pilots).start_errors()
    monkeypatch.setattr(reading, "_NOISY", 0.0)
    monkeypatch.setattr(reading, "_KNOWN", float(errors.mean()))
    answers = dict(zip(("sbp/10", "age"), read_sum(stage.plan, opened, pilots), strict=True))
    [answered] = [term for term, one in answers.items() if isinstance(one, SummedAnswer)]
    [refused] = answers.keys() - {answered}
    why = str(answers[refused])
    assert "the pilots must know the effect that a sum starts from" in why
    for chosen, other in ((answered, refused), (refused, answered)):
        answer = ask(store, holding(store, "hearts", 1), question, term=chosen)
        found = {chosen: answer.result, other: answer.others[other]}
        assert found[answered].summed is not None
        assert found[refused].summed is None
        # Both have the releases' answer too; only of the refused one is that what is told, and the reason beside it.
        assert found[refused].k == found[answered].k == len(stage.hospitals)
        assert (why in answer.unsummed) == (why in " ".join(answer.cautions)) == (chosen == refused)
        lines = {row["term"]: row for row in answer.table}
        assert lines[answered]["beta"] == found[answered].summed.estimate
        assert lines[refused]["beta"] == found[refused].beta
        assert (why in " ".join(lines[refused]["cautions"])) == (other == refused)
        assert not any("secure sum does not answer" in one for one in lines[answered]["cautions"])
