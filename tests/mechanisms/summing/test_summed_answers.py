"""What an opened secure sum answers: from the pilots that it was taken over, from no others, and through every door."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from stage.mechanisms.ring import Ring
from stage.mechanisms.summed import stage
from stage.mechanisms.sums import Parts, cohorts, cohorts_plan

from coordinator.analyst.elsewhere import tidy
from coordinator.analyst.show import pooled_text, terms_table
from coordinator.analyst.shown import pooled_line
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.demo.answers import _note, summed
from coordinator.demo.catalogue import play_of
from coordinator.demo.play import STUDIES, DemoOptions
from coordinator.figures.forest import describe, forest_table
from coordinator.planning.price import cost
from coordinator.pooling.pool import Pooling, pool
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.reading import read_sum
from coordinator.pooling.secure_sum.vectors import _left
from coordinator.services.compute.tasks import answer as task_answer
from coordinator.services.compute.tasks import selection_of
from coordinator.web.interface.reading import result_of, words
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, IntegrityRefusal
from shared.estimands.answer import parse_estimand
from shared.plans.plan import StudyPlan
from shared.privacy.stated import shown_epsilon
from shared.terminal import number, plain
from tests.benchmarks.honest import real

__all__ = ["stage"]  # the fixture

PLANNED = "cox(time, cvd) ~ sbp/10 + age"
TABLES = cohorts(3)
KEYS = {name: SigningKey.generate() for name in TABLES}


@cache
def world(epsilon, lost=()):
    plan = cohorts_plan(KEYS, epsilon)
    noise = seeded_rng(4)
    pilots = {
        at: (plan.release.draw(plan, plan.dictionary.check(table), noise), len(table))
        for at, table in enumerate(TABLES.values())
    }
    parts = Parts.of(plan, list(TABLES.values()), pilots, noise)
    ring = Ring(plan.release.terms(plan), keys=list(KEYS.values()), lost=dict.fromkeys(lost, "masked"))
    ring.values = dict(enumerate(parts.values))
    return plan, pilots, parts.opened(plan, ring.until("opening").coordinator, {at: f"{at:064x}" for at in pilots})


def test_with_little_noise_the_sum_is_the_records_own_answer():
    plan, pilots, opened = world(100.0)
    [answer] = read_sum(plan, opened, pilots)
    exact = pool(*zip(*map(real, TABLES.values()), strict=True), method="REML", test="adhoc")
    assert answer.sites == tuple(TABLES)
    assert abs(answer.estimate - exact.beta) < 0.35 * exact.se
    assert answer.noise < 0.05 * answer.variance


def test_of_a_start_that_the_pilots_do_not_know_there_is_no_answer():
    """At a tenth of ε the pilots' own interval is several units wide, and one step's was a hundredth of one."""
    plan, pilots, opened = world(0.1)
    [refusal] = read_sum(plan, opened, pilots)
    assert isinstance(refusal, EstimateRefusal)
    [error] = pilot_places(plan, pilots).start_errors()
    assert f"a standard error of {error:.2g} (at most 0.2)" in str(refusal)
    # The covariate's unit is 10 mmHg, about half its standard deviation.
    own = pilot_places(plan, pilots).pooled(tuple(pilots))
    assert 1.2 < error / own.se < 3


def opened_over(tables, epsilon, seed):
    """A plan of the usual sites over these tables, its pilots and its opened sum."""
    noise, plan = seeded_rng(seed), cohorts_plan(KEYS, epsilon)
    pilots = {
        at: (plan.release.draw(plan, plan.dictionary.check(table), noise), len(table))
        for at, table in enumerate(tables.values())
    }
    parts = Parts.of(plan, list(tables.values()), pilots, noise)
    ring = Ring(plan.release.terms(plan), keys=list(KEYS.values()))
    ring.values = dict(enumerate(parts.values))
    return plan, parts.opened(plan, ring.until("opening").coordinator, {at: f"{at:064x}" for at in pilots}), pilots


def test_models_that_claim_more_than_their_events_can_tell_are_not_believed():
    """A site whose hazards have got out of hand would carry all of the weight, with next to no variance."""
    [refusal] = read_sum(*opened_over(cohorts(107), 0.25, 7 * 107))
    assert isinstance(refusal, EstimateRefusal)
    assert "what their events can tell" in str(refusal)


def test_what_one_site_of_a_wide_spread_tells_is_believed():
    """It has thirty times the others' information of an event: more than all events by a usual site's spread."""
    tables = cohorts(3)
    for table in list(tables.values())[1:]:
        table["sbp"] = (140 + (table["sbp"] - 140) / 6).round()
    [answer] = read_sum(*opened_over(tables, 100.0, 4))
    assert not isinstance(answer, EstimateRefusal)
    exact = pool(*zip(*map(real, tables.values()), strict=True), method="REML", test="adhoc")
    assert abs(answer.estimate - exact.beta) < exact.se


def test_where_sites_truly_differ_the_sum_is_as_unsure_as_the_records_and_no_more():
    """What is not known of the start is no noise."""
    tables = cohorts(5)
    for place, table in enumerate(tables.values()):
        table["sbp"] = (table["sbp"] + (-1) ** place * 12 * table["cvd"]).clip(60, 280)
    plan, opened, pilots = opened_over(tables, 100.0, 4)
    [error] = pilot_places(plan, pilots).start_errors()
    [answer] = read_sum(plan, opened, pilots)
    assert error > 0.2
    assert not isinstance(answer, EstimateRefusal)
    exact = pool(*zip(*map(real, tables.values()), strict=True), method="REML", test="adhoc")
    assert abs(answer.estimate - exact.beta) < exact.se


@pytest.mark.parametrize("lost", [(), (2,)])
def test_what_is_read_is_of_the_survivors_and_told_per_any_unit(lost):
    plan, pilots, opened = world(8.0, lost)
    [answer] = read_sum(plan, opened, pilots)
    assert answer.sites == tuple(name for at, name in enumerate(TABLES) if at not in lost)
    [wide] = read_sum(plan, opened, pilots, level=0.99)
    assert wide.estimate == answer.estimate
    assert wide.ci_ub - wide.ci_lb > answer.ci_ub - answer.ci_lb
    [rows] = plan.release.synthetic(plan, list(pilots.values())[:1], draws=1, rng=np.random.default_rng(1))
    assert len(rows) == pilots[0][1]
    per = answer.per(0.5)
    assert math.isclose(per.zval, answer.zval)
    assert math.isclose(per.ci_ub, 0.5 * answer.ci_ub)


def test_other_pilots_than_those_it_was_taken_over_are_refused():
    plan, pilots, opened = world(8.0)
    fewer = {at: one for at, one in pilots.items() if at}
    with pytest.raises(IntegrityRefusal, match="taken over"):
        read_sum(plan, opened, fewer)
    swapped = pilots | {0: pilots[1], 1: pilots[0]}
    with pytest.raises(IntegrityRefusal, match="pilots give"):
        read_sum(plan, opened, swapped)


def test_a_look_that_the_pilots_do_not_give_is_refused():
    plan, pilots, opened = world(8.0)
    part = opened.parts[0]
    effects = tuple(tuple(one + 0.01 for one in row) for row in part.look.effects)
    moved = replace(part, look=replace(part.look, effects=effects))
    with pytest.raises(IntegrityRefusal, match="pilots give"):
        read_sum(plan, replace(opened, parts=opened.parts | {0: moved}), pilots)


def test_the_noise_told_is_the_noise_that_was_added():
    """Of the same records and looks, over forty sums: the spread of the answers is what the variance says of noise."""
    plan, pilots, opened = world(8.0)
    digests = dict(opened.pilots)
    release = plan.release
    design = release.first(plan.budget.delta).design(plan)
    data = [design.matrices(plan.dictionary.check(table)) for table in TABLES.values()]
    values = [
        opened.parts[at].look.look(len(data[at][0]), release.bounds(plan), design).rows(*data[at]).sum(axis=0)
        for at in digests
    ]
    rng = np.random.default_rng(7)
    answers = [
        read_sum(
            plan, replace(opened, total=tuple(map(float, sum(values) + opened.sigma * rng.standard_normal(2)))), pilots
        )[0]
        for _ in range(40)
    ]
    spread = np.var([one.estimate for one in answers], ddof=1)
    assert 0.5 < spread / answers[0].noise < 1.8
    # What was opened is one of them.
    centre = np.mean([one.estimate for one in answers])
    assert abs(read_sum(plan, opened, pilots)[0].estimate - centre) < 4.5 * math.sqrt(answers[0].noise)


# -- what is stated ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("times", "share"), [(10.0, 0.025), (40.0, 0.0292), (50.0, 0.05), (60.0, 0.1325), (90.0, 1.0), (100.0, 1.0)]
)
def test_what_one_step_leaves_of_the_pilots_noise_is_little_until_there_is_much_of_it(times, share):
    own, weights = np.array([[1.0, 0.04], [4.0, 0.01]]), np.array([[0.6, 0.2], [0.4, 0.8]])
    noise = times * (weights**2 * own).sum(axis=0)
    assert _left(times * own, own, weights) == pytest.approx(share * noise, rel=1e-3)
    # R is of the answer, not of each site: one pilot's noise counts by its weight.
    uneven = np.array([[2.0, 2.0], [0.0, 0.0]]) * times * (weights**2 * own).sum(axis=0) / (2 * weights[0] ** 2)
    assert _left(uneven, own, weights) == pytest.approx(share * noise, rel=1e-3)


# -- through the coordinator ---------------------------------------------------------------------------------------
def told(answer):
    return " ".join(answer.cautions)


def test_a_planned_question_is_the_pilots_until_the_sum_is_opened_and_the_sum_then(stage):
    store = stage.hub.store
    before = ask(store, holding(store, "hearts", 1), PLANNED)
    assert "not opened yet" in told(before)
    assert "summed" not in before.document
    store.close_wave("hearts", 1, expected=tuple(stage.hospitals), today=dt.date(2026, 6, 2))
    held, first = holding(store, "hearts", 1), len(store.plans())
    assert first == 1
    opened = stage.whole()
    after = ask(store, holding(store, "hearts", 1), PLANNED)
    total = after.result.summed
    assert not told(after)
    assert total.sites == tuple(stage.hospitals)
    assert "secure sum of 5 of 5 sites, of which nobody saw a site's part" in after.caption
    # The pilots' rows are as they were, and the numbers that are remembered are the sum's.
    assert after.result.yi == before.result.yi
    assert after.document["pooled"]["beta"] == before.document["pooled"]["beta"]
    assert after.numbers["beta"] == total.estimate == after.document["summed"]["beta"]
    [line] = [row for row in after.table if row["term"] == "sbp/10"]
    assert (line["beta"], line["se"], line["k"]) == (total.estimate, total.se, 5)
    # Each of the two variances between sites says whose it is.
    said = " ".join(pooled_text(after.result).sentences)
    assert f"in the variance of the secure sum: τ² {number(total.tau2)}" in said
    assert f"between the releases of sites (on the log scale): τ² {number(after.result.tau2)}" in said
    assert terms_table([plain(line)], 0.95)[1][0][-2:] == [None, None], "it was the releases', beside the sum"
    assert "between sites" in " ".join(pooled_text(before.result).sentences)
    # It is where the same records' sum without noise leads to, but for the noise that it says.
    exact = replace(opened, total=tuple(map(float, stage.exact(opened))))
    pilots = {at: (store.table(store.by_bundle(one)), 400) for at, one in opened.pilots.items()}
    [quiet] = read_sum(stage.plan, exact, pilots)
    assert 0 < abs(total.estimate - quiet.estimate) < 6 * math.sqrt(total.noise)
    # Per unit and level as asked.
    single = ask(
        store, holding(store, "hearts", 1), "cox(time, cvd) ~ sbp + age", pooling=Pooling(level=0.9)
    ).result.summed
    assert math.isclose(10 * single.estimate, total.estimate)
    assert single.level == 0.9
    # What was closed before it was opened stays what it was; so does what was selected before.
    assert "not opened yet" in told(ask(store, holding(store, "hearts", 1, as_of=0), PLANNED))
    assert "not opened yet" in told(ask(store, held, PLANNED))


def test_other_questions_and_other_terms_say_that_they_are_of_the_releases(stage):
    store = stage.hub.store
    stage.whole()
    other = ask(store, holding(store, "hearts", 1), PLANNED, term="age")
    assert "secure sum is of sbp/10" in told(other)
    assert other.result.summed is None
    assert other.others["sbp/10"].summed is not None
    assert "of another question" in told(ask(store, holding(store, "hearts", 1), "mean(age)"))
    # A worker in another process answers from what it is named, and the answer's document goes to every reader.
    held = holding(store, "hearts", 1)
    given = {"store": store.place, "study": "hearts", "held": selection_of(held), "estimand": PLANNED, "maps": {}}
    how = {"term": "", "method": "REML", "test": "adhoc", "level": 0.95}
    made = task_answer({**given, "estimates": 1 << 20, "result": "r", "rests": held.rests, "how": how})
    sent = json.loads(json.dumps(made["told"]))
    assert sent["provenance"]["sum"]["sha256"] == held.opened.sha256
    assert sent["provenance"]["sum"]["log_index"] == held.opened.log_index
    result = result_of(sent)
    assert (result.beta, result.se) == (sent["summed"]["beta"], sent["summed"]["se"])
    assert "secure sum, t, 5 sites" in pooled_line(sent)
    assert result.pooled.summed == ask(store, holding(store, "hearts", 1), PLANNED).result.summed
    page = words({"document": sent})
    assert [line[0] for line in page["sensitivity"]["rows"][:2]] == ["as answered", "releases alone"]
    assert page["line"] == pooled_line(sent)
    text = pooled_text(result.pooled)
    assert text.models[0][0] == "secure sum, 5 sites"
    assert text.models[1][0].startswith("releases, ")
    assert {"fixed", "random", "sum"} <= set(result.meta().to_frame().index)
    [row] = [row for _, row in tidy(sent).iterrows() if row["term"] == "sbp/10"]
    assert (row["estimate"], row["conf.low"]) == (result.beta, sent["summed"]["ci_lb"])
    assert "secure sum over 5 sites" in result.methods()
    table = forest_table(result.pooled)
    assert table.loc[table["row"] == "sum", "yi"].tolist() == [result.beta]
    assert "Secure sum of 5 sites" in describe(result.pooled)
    # Beside other arms its diamond is the sum's; its rows, and no noise of theirs, are the releases'.
    arm = summed(result.pooled)
    assert (arm.beta, arm.se, arm.ci_ub) == pytest.approx((result.beta, result.se, sent["summed"]["ci_ub"]))
    assert arm.yi == result.pooled.yi
    assert arm.pooled_noise_share == 0
    spread = math.hypot(arm.se, math.sqrt(result.pooled.summed.tau2))
    assert arm.prediction_interval.ub == pytest.approx(arm.beta + arm.critical * spread)
    assert summed(arm) is arm


def test_a_pilot_that_was_taken_back_takes_the_sum_with_it(stage):
    store = stage.hub.store
    stage.whole()
    held = holding(store, "hearts", 1)
    gone = replace(held, parts={site: one for site, one in held.parts.items() if site != "mid"})
    answer = ask(store, gone, PLANNED)
    assert "taken over a release of mid" in told(answer)
    assert answer.result.summed is None


# -- the demo ------------------------------------------------------------------------------------------------------
class Joined:
    """What the demo's play asks of its stage once all hospitals have joined."""

    def __init__(self, folder, keys):
        self.state, self.plans, self.signed = folder, {}, []
        self.listed = [{"site": name, "release_key": key.public.hex} for name, key in keys.items()]

    def coordinator(self, *words):
        if words[0] == "sites":
            return self.listed
        self.signed.append(words)
        return {}

    def step(self, what):
        assert "every hospital's key" in what


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_the_demo_s_plan_of_a_sum_names_who_joined_and_costs_what_was_asked_for(tmp_path, epsilon):
    joined = Joined(tmp_path, KEYS)
    play = play_of(DemoOptions(study="cohorts", epsilon=epsilon))
    assert "the coordinator" not in play.note + play.covers
    study = play._signed(joined)
    plan = StudyPlan.from_toml(joined.plans[study])
    assert joined.signed == [("plan", "sign", str(tmp_path / f"{study}.toml"))]
    assert dict(plan.release.members) == {name: key.public.hex for name, key in sorted(KEYS.items())}
    assert plan.release.epsilon == (epsilon or 1.0)
    # Table and figures say to whom the ε that they state holds, and what it is to everybody else together.
    everybody, worst = list(plan.release.seen_by(plan).items())[-1]
    assert f"while at most 1 site shows the coordinator all it has, and is {shown_epsilon(worst)} to {everybody}" in (
        play.covers
    )
    assert all(f"{who}: ε {shown_epsilon(row)}" in play.note for who, row in plan.release.seen_by(plan).items())
    assert f"is {shown_epsilon(worst)} to {everybody}" in _note("asked", SimpleNamespace(summed=plan), play.covers)
    assert _note("asked", SimpleNamespace(summed=None), play.covers) == "asked"
    assert cost(plan).waves[0].affordable
    # It answers the very question of the demo's other plans.
    shipped = StudyPlan.from_toml((STUDIES / "cohorts.toml").read_text())
    assert set(plan.estimands.values()) <= set(shipped.estimands.values())
    [(label, term)] = plan.release.summed_terms(plan, parse_estimand(plan.estimands["adjusted"])).items()
    assert (label, term.units, term.per) == ("sbp/10", 10.0, 1.0)
