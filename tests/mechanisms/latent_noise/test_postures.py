"""What each posture promises: which records can change the flow, who is released, and that the whole path keeps it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.hospital_side.pipeline import deliver
from stage.mechanisms.postures import PUBLIC, TODAY, cohort, encoded, fitted, released, same, strange, study

from shared.base.randomness import seeded_rng
from shared.errors import PlanRefusal, PolicyRefusal, ReceiptRefusal, SmallN, TrainingRefusal
from shared.mechanisms.latent_noise import plan as latent_noise
from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
from shared.plans.encoding import Encoder
from shared.plans.plan import Budget, Floors, PrivateTraining, Reference, StudyPlan, Training, Wave
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from shared.releases.receipt import planned_event
from shared.simulated import small_hospitals
from site_agent.config import SiteFloors, TableSource
from site_agent.records import table as records
from site_agent.release import fitting
from site_agent.release.fitting import public_flow, released_rows, trains
from site_agent.release.pipeline.making import make_release
from site_agent.release.pipeline.rehearsal import rehearse

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"
POSTURES = ("local", "holdout", "public", "private")


# -- what a record can change -----------------------------------------------------------------------------------
@pytest.mark.parametrize("posture", ["holdout", "public"])
def test_no_released_record_changes_anything_that_is_fitted(posture):
    plan, table = study(posture), cohort()
    before = fitted(plan, table)
    after = fitted(plan, strange(table, before.released))
    assert same(before, after)
    assert (before.mechanism.w, before.mechanism.radius) == (after.mechanism.w, after.mechanism.radius)
    assert np.array_equal(before.released, after.released)
    assert len(before.released) > 200


def test_under_local_a_released_record_does_change_the_flow():
    """The test above can fail."""
    table = cohort()
    assert not same(fitted(study("local"), table), fitted(study("local"), strange(table, [0])))


def test_under_holdout_a_training_record_changes_the_flow_and_nobodys_role():
    plan, table = study("holdout"), cohort()
    before = fitted(plan, table)
    trained = np.setdiff1d(np.arange(len(table)), before.released)
    after = fitted(plan, strange(table, trained[:5]))
    assert not same(before, after)
    assert np.array_equal(before.released, after.released)
    assert before.trained == len(trained) == after.trained


def test_under_private_a_record_reaches_the_flow_through_the_clipped_noisy_sums_alone(monkeypatch):
    """With the sums blanked, any other table of as many rows gives the same flow, noise and all."""
    from site_agent.models import private_flow

    plan, table = study("private"), cohort(200)
    assert not same(fitted(plan, table), fitted(plan, strange(table, [0])))
    real = private_flow.clipped_sum

    def blanked(flow, y, clip):
        total, norms = real(flow, y, clip)
        return total * 0, norms

    monkeypatch.setattr(private_flow, "clipped_sum", blanked)
    assert same(fitted(plan, table), fitted(plan, strange(table, range(200))))


# -- roles ------------------------------------------------------------------------------------------------------
def test_a_role_is_for_life_whoever_else_comes_goes_or_is_reordered():
    plan, table = study("holdout"), cohort(400)
    _, _, persons = encoded(plan, table)
    role = {person: trains(plan, person) for person in persons}
    later = pd.concat([table.sample(frac=0.7, random_state=1), cohort(900).tail(300)], ignore_index=True)
    later_plan = replace(plan, version=2, waves=(*plan.waves, Wave(number=2, opens=TODAY, closes=TODAY)))
    _, _, now = encoded(later_plan, later)
    released = set(released_rows(later_plan, len(now), now))
    known = [i for i, person in enumerate(now) if person in role]
    assert len(known) == 280
    assert all((i not in released) == role[now[i]] for i in known)


def test_roles_are_split_at_the_planned_share_and_a_site_key_reshuffles_them():
    plan, table = study("holdout", holdout=0.3), cohort(4000)
    _, _, persons = encoded(plan, table)
    count = sum(trains(plan, person) for person in persons)
    assert abs(count - 1200) < 5 * np.sqrt(4000 * 0.3 * 0.7)  # false alarm below 1e-6
    other = records.Records(table=plan.dictionary.check(table), rows=4000, snapshot="")
    elsewhere = records.row_pseudonyms(other, plan.dictionary, key=b"another site")
    assert [trains(plan, p) for p in persons] != [trains(plan, p) for p in elsewhere]


def test_more_training_persons_by_a_larger_share_keep_everyone_who_trained():
    _, _, persons = encoded(study("holdout"), cohort(500))
    few, many = ({p for p in persons if trains(study("holdout", holdout=share), p)} for share in (0.3, 0.6))
    assert few < many


def test_too_few_who_train_is_refused_with_the_count():
    with pytest.raises(TrainingRefusal, match="who train") as caught:
        fitted(study("holdout", holdout=0.1), cohort(100))
    assert "holdout" in caught.value.next_step


# -- the public start -------------------------------------------------------------------------------------------
def test_the_public_flow_has_the_reference_moments_and_stays_in_the_public_bounds():
    plan = study("public")
    encoder = Encoder(dictionary=plan.dictionary)
    z = np.random.default_rng(1).standard_normal((40_000, encoder.d))
    drawn = encoder.decode(public_flow(plan, encoder).forward(z))
    for name, known in PUBLIC.items():
        assert drawn[name].mean() == pytest.approx(known.mean, abs=0.12 * (known.sd or 1))
        if known.sd:
            assert drawn[name].std() == pytest.approx(known.sd, rel=0.05)
    at_bounds = ((drawn["age"] == 18) | (drawn["age"] == 100)).mean()
    assert at_bounds < 0.005


def test_without_a_reference_the_public_flow_spreads_over_the_bounds_and_levels(dictionary):
    plan = study("public", reference={}, dictionary=dictionary)
    encoder = Encoder(dictionary=dictionary)
    flow = public_flow(plan, encoder)
    drawn = encoder.decode(flow.forward(np.random.default_rng(1).standard_normal((20_000, encoder.d))))
    dictionary.validate_release(drawn)
    assert drawn["sbp"].mean() == pytest.approx(170, abs=3)
    assert drawn["sbp"].std() == pytest.approx(50, rel=0.05)
    assert drawn["visits"].std() == pytest.approx(10, rel=0.1)
    assert drawn["sex"].eq("male").mean() == pytest.approx(0.5, abs=0.02)
    assert drawn["chol"].isna().mean() == pytest.approx(0.1, abs=0.02)
    assert drawn["time"].mean() == pytest.approx(10, abs=0.3)


def test_every_possible_record_has_a_short_latent_under_the_public_flow(dictionary):
    """Outliers cost no more than 5 standard deviations, however tight the reference is."""
    tight = {"sbp": Reference(mean=120, sd=0.5), "visits": Reference(mean=1, sd=0.5)}
    plan = study("public", reference=tight, dictionary=dictionary)
    encoder = Encoder(dictionary=dictionary)
    flow = public_flow(plan, encoder)
    from site_agent.release.pipeline.rehearsal import made_up_table

    x = encoder.encode(dictionary.check(made_up_table(plan, 500, seeded_rng(1))), seeded_rng(2))
    z = flow.inverse(x)
    assert np.abs(z).max() < 8.01
    assert np.allclose(flow.forward(z), x, atol=1e-6)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ({"sbp": Reference(mean=300, sd=10)}, "within the public bounds"),
        ({"sbp": Reference(mean=130, sd=400)}, "sd"),
        ({"sbp": Reference(mean=130)}, "sd"),
        ({"died": Reference(mean=1.0)}, "share"),
        ({"ward": Reference(mean=1.0)}, "name columns"),
    ],
)
def test_an_impossible_reference_is_refused_when_the_plan_is_read(reference, says):
    with pytest.raises(PlanRefusal, match=says):
        study("public", reference=reference)


def test_a_reference_under_a_posture_that_fits_its_start_to_records_is_refused():
    with pytest.raises(PlanRefusal, match="reference"):
        study("local", reference=PUBLIC)


# -- the price --------------------------------------------------------------------------------------------------
def test_the_private_event_is_training_and_noise_together():
    plan = study("private")
    event = planned_event(plan)
    assert isinstance(event, privacy.Composition)
    training, noise = event.events
    assert training == privacy.SubsampledGaussian(rate=0.2, noise_multiplier=2.0, steps=40)
    assert noise == mechanism(plan).event
    assert privacy.epsilon(event, 1e-6) > max(privacy.epsilon(training, 1e-6), privacy.epsilon(noise, 1e-6))


@pytest.mark.parametrize("posture", POSTURES)
def test_a_target_epsilon_is_met_and_hardly_undercut(posture):
    plan = study(posture, release=LatentNoisePlan(epsilon=9.0))
    spent = privacy.epsilon(planned_event(plan), plan.budget.delta)
    assert 9.0 * (1 - 2e-3) <= spent <= 9.0 * (1 + 1e-9)


@pytest.mark.parametrize("posture", ["public", "private"])
def test_machines_whose_solvers_differ_in_the_last_digits_charge_the_same_event_and_never_more_than_asked(
    posture, monkeypatch
):
    plan = study(posture, release=LatentNoisePlan(epsilon=9.0))
    here, solved = planned_event(plan), latent_noise._solved
    for last_digits in (1 - 1e-12, 1 + 1e-12):
        monkeypatch.setattr(latent_noise, "_solved", lambda *asked, by=last_digits: by * solved(*asked))
        assert planned_event(plan) == here
    assert mechanism(plan).w <= solved(9.0, plan.budget.delta, mechanism(plan).radius, latent_noise._training(plan))


def test_training_that_leaves_nothing_of_the_target_is_refused_with_what_to_change():
    plan = study("private", release=LatentNoisePlan(epsilon=1.0))
    with pytest.raises(PlanRefusal, match="leave something") as caught:
        mechanism(plan)
    assert "noise_multiplier" in caught.value.next_step


@pytest.mark.parametrize("given", [{}, {"w": 0.5, "epsilon": 8.0}])
def test_a_release_gives_either_w_or_epsilon(given):
    with pytest.raises(PlanRefusal, match="either w or epsilon"):
        LatentNoisePlan(**given)


# -- the whole path ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("posture", POSTURES)
def test_a_release_under_each_posture_passes_every_check_of_site_and_coordinator(tmp_path, posture):
    plan, table = study(posture), cohort(500)
    at, made = released(plan, tmp_path, table)
    bundle = read_bundle(at.outbox.bundle(made.hold.release_id), cap=1 << 26)
    bundle.receipt.require_true(plan)
    plan.dictionary.validate_release(bundle.table)
    assert bundle.receipt.posture == posture
    if posture == "holdout":
        assert 180 < bundle.receipt.n < 320
    else:
        assert bundle.receipt.n == 500
    assert len(bundle.table) == bundle.receipt.n == made.audit["n"]
    assert made.audit["n_held_back"] == round(0.2 * bundle.receipt.n)
    charged = at.ledger.study_total("small", plan.budget.delta).epsilon
    assert charged >= bundle.receipt.epsilon * (1 - 1e-9)
    for other in set(POSTURES) - {posture}:
        with pytest.raises(ReceiptRefusal):
            bundle.receipt.require_true(study(other))


@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
def test_the_shipped_example_of_a_posture_runs_from_table_to_sealed_release_at_its_usual_floors(tmp_path, posture):
    plan = StudyPlan.from_toml((STUDIES / f"first-{posture}.toml").read_text(encoding="utf-8"))
    assert plan.posture == posture
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert (plan.floors, plan.release.epsilon) == (Floors(), 8.0)
    table = small_hospitals(np.random.default_rng(4), sites=1, n=1500)["north"]
    _, made = released(plan, tmp_path, table)
    made.receipt.require_true(plan)
    assert 7.98 < made.receipt.epsilon <= 8.0 + 1e-6
    assert made.hold.state == "held"


def test_the_floors_count_those_who_are_released(tmp_path):
    with pytest.raises(SmallN) as caught:
        released(study("holdout", holdout=0.9), tmp_path, cohort(300))
    assert int(caught.value.given) < 50


def test_the_population_of_a_holdout_release_is_those_who_are_released(tmp_path):
    import json

    plan, table = study("holdout"), cohort(400)
    at, made = released(plan, tmp_path, table)
    kept = set(json.loads((at.outbox.folder(made.hold.release_id) / "population.json").read_text()))
    assert len(kept) == made.receipt.n
    assert not any(trains(plan, person) for person in kept)


@pytest.mark.parametrize(
    ("first", "then"),
    [("holdout", {"holdout": 0.3}), ("holdout", {"posture": "local"}), ("local", {"posture": "holdout"})],
)
def test_a_later_version_of_a_plan_cannot_change_who_trains(tmp_path, first, then):
    waves = tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in (1, 2))
    plan = study(first, waves=waves, budget=Budget(epsilon=500.0))
    at, made = released(plan, tmp_path, cohort(500))
    deliver(at, made)
    source = TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(PolicyRefusal, match="who trains"):
        make_release(plan=replace(plan, version=2, **then), wave=2, source=source, site=at, today=TODAY)
    assert [entry.kind for entry in at.ledger.entries()].count("drawing") == 1


def test_a_training_flow_that_ate_part_of_the_charge_cannot_be_left_off_the_receipt(tmp_path):
    plan = study("private")
    _, made = released(plan, tmp_path, cohort(300))
    cheaper = privacy.from_canonical(made.receipt.event).events[1]
    with pytest.raises(ReceiptRefusal, match="event"):
        dataclasses.replace(made.receipt, event=cheaper.to_canonical()).require_true(plan)


@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
def test_a_rehearsal_runs_under_each_posture(tmp_path, posture):
    done = rehearse(
        plan=study(posture),
        folder=tmp_path / "rehearsal",
        name="north",
        agent_version="0.1.0",
        floors=SiteFloors(),
        today=TODAY,
    )
    assert done.release is not None or done.refused is not None


def test_a_flow_trained_with_noise_is_better_than_its_public_start_on_fresh_records():
    """ε about 8 for the training at 2,500 records."""
    private = PrivateTraining(rate=0.1, noise_multiplier=1.6, steps=120)
    plan = study("private", private=private, training=Training(flows=2, hidden=16, learning_rate=0.02))
    assert privacy.epsilon(planned_event(plan).events[0], 1e-6) < 8
    encoder, fresh, _ = encoded(plan, cohort(2500, seed=9))
    gain = fitted(plan, cohort(2500)).mechanism.flow.log_prob(fresh) - public_flow(plan, encoder).log_prob(fresh)
    assert gain.mean() > 0.15  # about 0.34; a flow fitted without noise gains 0.53


@pytest.mark.parametrize("posture", POSTURES)
def test_the_time_of_a_fit_is_estimated_before_it_starts(posture):
    plan = study(posture)
    assert 0 < fitting.estimate_seconds(plan, 500, 4) < 600
    assert (fitting.estimate_megabytes(plan, 500, 4) > 0) == (posture in ("local", "holdout"))
