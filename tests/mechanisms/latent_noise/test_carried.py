"""A true column carried over: every row has its own, nothing promises anything of it, and everybody is told."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
from stage.mechanisms.postures import TODAY, cohort, encoded, fitted, released, site, study

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError, PlanChanged, PlanRefusal, SmallN
from shared.flows.chain import from_arrays, to_arrays
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
from shared.plans.plan import StudyPlan, Training, Wave
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from shared.releases.receipt import coverage, in_words, planned_event
from site_agent.config import Limits, SiteFloors, TableSource
from site_agent.models.flow import FlowSettings, fit_flow
from site_agent.release.audit.likelihood import weighed
from site_agent.release.checks import check_rows
from site_agent.release.equal_rows import ChanceHits
from site_agent.release.pipeline.making import make_release
from site_agent.release.sealed_state import SealedFlow, fitted_by

EVENT = 3


def carrying(w: float = 0.02, **changes) -> StudyPlan:
    return study("local", release=LatentNoisePlan(w=w, carry="died"), **changes)


@pytest.fixture(scope="module")
def fit():
    """(plan, table, encoder, encoded records, fitted flow) at a weight at which noise would take much away."""
    plan, table = carrying(w=0.5), cohort(2000)
    encoder, x, _ = encoded(plan, table)
    return plan, table, encoder, x, fitted(plan, table)


def test_every_row_keeps_its_own_true_value_and_all_else_is_noised(fit):
    _, table, encoder, x, made = fit
    rows = encoder.decode(made.mechanism.release(x, seeded_rng(1)))
    np.testing.assert_array_equal(rows["died"], table["died"])
    for name in ("age", "sbp", "visits"):
        assert (rows[name].to_numpy() == table[name].to_numpy()).mean() < 0.35


def test_noise_takes_nothing_from_what_sets_those_with_the_event_apart(fit):
    """A flow that did not know the event would leave √w of the difference: 0.7 of it here."""
    _, table, encoder, x, made = fit
    rows = np.concatenate([encoder.decode(made.mechanism.release(x, seeded_rng(k)))[["age", "sbp"]] for k in range(20)])
    died = table["died"].to_numpy(dtype=bool)
    real = table[["age", "sbp"]][died].mean() - table[["age", "sbp"]][~died].mean()
    again = np.tile(died, 20)
    kept = rows[again].mean(axis=0) - rows[~again].mean(axis=0)
    np.testing.assert_allclose(kept, real, rtol=0.15)


def test_the_price_is_that_of_the_noise_on_the_other_columns(fit):
    plan, _, encoder, x, made = fit
    planned = mechanism(plan)
    assert planned.radius == made.mechanism.radius == default_radius(encoder.d - 1)
    assert planned.event == made.mechanism.event == planned_event(plan)
    assert plan.release.facts(plan).d == made.mechanism.d == encoder.d - 1
    z, y = made.mechanism.latents(x), made.mechanism.latents(made.mechanism.release(x, seeded_rng(2)))
    inside = np.linalg.norm(z, axis=1) < planned.radius
    # Of columns that are not levels, whose fractions come back exactly: what was added is the event's noise.
    noise = (y - np.sqrt(planned.w) * z)[inside][:, :2]
    assert noise.std() == pytest.approx(planned.event.sigma, rel=0.05)


def test_changing_a_row_changes_no_other_row(fit):
    _, _, _, x, made = fit
    other = x.copy()
    other[7] = x[8]
    a, b = (made.mechanism.release(v, seeded_rng(3)) for v in (x, other))
    np.testing.assert_array_equal(np.delete(a, 7, axis=0), np.delete(b, 7, axis=0))


@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
def test_it_is_refused_where_everybody_is_promised_something(posture):
    with pytest.raises(PlanRefusal, match=r"posture 'local' only.*without noise"):
        study(posture, release=LatentNoisePlan(w=0.02, carry="died"))


def test_waves_that_draw_the_same_persons_again_are_refused_with_it():
    """Two waves of the same persons would tell by their exact counts who changed, and no price would count it."""
    first, second = dt.date(2000, 1, 1), dt.date(2001, 1, 1)
    waves = (Wave(number=1, opens=first, closes=second), Wave(number=2, opens=second, closes=dt.date(2999, 1, 1)))
    for returning in ("frozen", "append"):
        assert carrying(waves=waves, returning=returning).release.carry == "died"
    with pytest.raises(PlanRefusal, match="draw nobody again"):
        carrying(waves=waves, returning="refresh")


def test_true_values_in_rows_that_cost_nothing_are_refused():
    with pytest.raises(PlanRefusal, match="w above 0"):
        carrying(w=0.0)


@pytest.mark.parametrize("deaths", [0, 9, 491, 500])
def test_an_exact_count_below_the_floor_is_refused_before_the_draw_and_its_figure_is_not_told(tmp_path, deaths):
    """Rows with true values hold exact counts: a value that nobody has is as exact as one that three persons have."""
    cohort(500).assign(died=(np.arange(500) < deaths).astype(int)).to_csv(tmp_path / "cohort.csv", index=False)
    at, source = site(tmp_path), TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(SmallN, match="each value of a column that is carried over") as refused:
        make_release(plan=carrying(), wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))
    assert refused.value.given == "a value with fewer"
    assert [hold.state for hold in at.ledger.holds()] == ["anchored"]


def test_a_sealed_table_with_an_exact_count_below_the_floor_fails(fit):
    plan, table, encoder, x, _ = fit
    limits = Limits.of(plan.floors, SiteFloors())
    for deaths, outcome in ((limits.rare_level - 1, "failed"), (0, "failed"), (limits.rare_level, "passed")):
        rows = encoder.decode(x).assign(died=(np.arange(len(x)) < deaths).astype("int64"))
        found = check_rows(
            plan,
            rows,
            real=table,
            limits=limits,
            clipped=lambda: 0,
            chance=lambda _, __, rows=rows: ChanceHits.simulated(
                table, np.zeros(len(table)), plan.dictionary, lambda places: rows, tables=1
            ),
        )
        [counts] = [check for check in found if check.name == "carried-counts"]
        assert (counts.outcome, counts.measured) == (outcome, None)


@pytest.mark.parametrize("name", ["age", "visits", "person", "nobody"])
def test_a_column_that_is_no_event_is_refused(name):
    with pytest.raises(PlanRefusal, match="event or binary"):
        study("local", release=LatentNoisePlan(w=0.02, carry=name))


def test_margins_left_to_the_flow_are_refused():
    with pytest.raises(PlanRefusal, match="normal_scores"):
        carrying(training=Training(margins="none"))
    with pytest.raises(ParameterError, match="carried"):
        fit_flow(np.random.default_rng(1).normal(size=(90, 2)), FlowSettings(), seeded_rng(1), carried=0)


def test_the_receipt_says_that_no_guarantee_covers_it_before_any_figure():
    plan = carrying()
    covered, not_covered = coverage(plan)
    assert not_covered[0].startswith("The column died: no formal guarantee.")
    assert "any other with the same died" in covered[0]
    assert not_covered[1] == "The number of persons with each value of died is released exactly, of each wave."
    said = in_words(plan, planned_event(plan))
    assert "and everybody's true died, which this does not cover" in said
    # The sentence that people quote bounds nobody's recognition here.
    assert "at most" not in said
    assert "no figure bounds" in said
    assert "died carried over as it is" in plan.release.details(plan)
    plain = study("local")
    assert not any("guarantee. " in sentence for sentence in coverage(plain)[1])
    # Plans that carry nothing keep the hash they were approved by.
    assert {"carry", "shrink"}.isdisjoint(plain.to_canonical()["release"])
    assert StudyPlan.from_bytes(plan.canonical) == plan


def test_the_whole_path_takes_it_and_asks_an_approver_to_tick_it(tmp_path):
    plan, table = carrying(), cohort(500)
    at, made = released(plan, tmp_path, table)
    bundle = read_bundle(at.outbox.bundle(made.hold.release_id), cap=1 << 26)
    bundle.receipt.require_true(plan)
    assert bundle.table["died"].sum() == table["died"].sum()
    (warned,) = [check for check in made.checks if check.name == "carried"]
    assert warned.outcome == "warning"
    assert "died" in warned.detail
    assert bundle.receipt.epsilon == pytest.approx(privacy.epsilon(planned_event(plan), plan.budget.delta))


def test_a_later_wave_that_carries_something_else_cannot_use_the_sealed_flow(fit):
    plan, _, _, x, made = fit
    m = made.mechanism
    kept = SealedFlow(
        flow=m.flow,
        epochs=0,
        w=m.w,
        radius=m.radius,
        dictionary=plan.dictionary.hash,
        fitted_by=fitted_by(plan),
        flow_of="a",
        noisy=x[:2],
    )
    again = SealedFlow.from_bytes(kept.to_bytes())
    again.require_fits(plan, w=m.w, radius=m.radius, noise=True)
    np.testing.assert_array_equal(again.flow.inverse(x[:5]), m.flow.inverse(x[:5]))
    with pytest.raises(PlanChanged):
        again.require_fits(replace(plan, release=LatentNoisePlan(w=0.5)), w=m.w, radius=m.radius, noise=True)
    with pytest.raises(Exception, match="beside"):
        from_arrays({**to_arrays(m.flow.first), "more": np.zeros(1)})


def test_an_attacker_who_holds_the_flow_weighs_rows_of_the_same_event_alone(fit):
    _, table, _, x, made = fit
    rows = made.mechanism.release(x, seeded_rng(4))
    strangers = x.copy()
    strangers[:, EVENT] = 1.5 - np.floor(x[:, EVENT]) + 0.0
    knows = weighed(made.mechanism, members=x, held_back=strangers, released=rows)
    assert knows.bound == 1.0  # the price bounds nobody who looks at what is carried
    only_deaths = rows[table["died"].to_numpy() == 1]
    none = weighed(made.mechanism, members=x[table["died"].to_numpy() == 0], held_back=x[:50], released=only_deaths)
    assert none.hits.value == 0.0


@pytest.mark.parametrize("events", [0, 1, 12])
def test_an_event_too_rare_for_a_law_of_its_own_is_carried_all_the_same(events):
    draws = np.random.default_rng(5)
    x = np.column_stack([draws.normal(size=(300, 2)), (np.arange(300) < events) + draws.random(300)])
    flow = fit_flow(x, FlowSettings(epochs=0), seeded_rng(6), integer_columns=[2], carried=2).flow
    m = LatentNoise(flow=flow, w=0.5, radius=3.0, carried=(2,))
    rows = m.release(x, seeded_rng(7))
    assert np.isfinite(rows).all()
    assert np.floor(rows[:, 2]).sum() == events
    np.testing.assert_allclose(flow.forward(flow.inverse(x)), x, atol=1e-8)


@pytest.mark.parametrize("carried", [(3,), (-1,), (0, 1, 2)])
def test_columns_that_are_not_there_or_leave_none_are_refused(carried):
    from shared.flows.base import Identity

    with pytest.raises(ParameterError, match="carried columns"):
        LatentNoise(flow=Identity(d=3), w=0.5, radius=1.0, carried=carried)
