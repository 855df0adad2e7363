"""Noisy tables: what is counted, what it costs, and the way of such a release through a site."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.pipeline import deliver, release, site, source  # noqa: F401

from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError, PlanRefusal, SchemaRefusal
from shared.estimands.answer import parse_estimand
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from tests.benchmarks import worlds, zoo_moments

TINY = Dictionary(
    name="tiny",
    version=1,
    columns=(
        Column(name="years", kind="time", upper=4, event="died"),
        Column(name="died", kind="event"),
        Column(name="dose", kind="continuous", lower=0, upper=3, missing="level"),
        Column(name="visits", kind="integer", lower=0, upper=2),
    ),
)


@pytest.fixture(scope="module")
def study(plan) -> StudyPlan:
    prescribed = TablesPlan(epsilon=1.0, bins={"sbp": 8}, pairs=[["sbp", "sex"], ["time", "sbp"]])
    return replace(plan, release=prescribed, posture="private", budget=Budget(epsilon=4.0, delta=1e-6))


def every_record() -> list[dict[str, float]]:
    """One record for each combination of cells of `TINY` at two bins a column, on edges where there are any."""
    parts = ([0.0, 2.0, 4.0], [0.0, 1.0], [0.0, 1.5, 3.0, np.nan], [0.0, 1.0, 2.0])
    return [dict(zip(("years", "died", "dose", "visits"), one, strict=True)) for one in itertools.product(*parts)]


def test_a_time_stands_with_its_event_and_a_missing_number_has_a_cell_of_its_own():
    found = attributes(TINY, 2)
    assert [(a.name, a.size) for a in found] == [("years and died", 4), ("dose", 3), ("visits", 2)]
    assert found[1].labels == ("dose 0 to 1.5", "dose 1.5 to 3", "dose missing")
    assert found[2].labels == ("visits 0 to 1", "visits 2")
    frame = pd.DataFrame(every_record())
    for one in found:
        codes = one.codes(frame)
        assert set(codes) == set(range(one.size)), one.name
        # What a cell decodes to lies in that cell again.
        again = pd.DataFrame(one.values(codes, np.random.default_rng(1)))
        np.testing.assert_array_equal(one.codes(again), codes)


def test_no_replacement_of_one_record_moves_the_counts_by_more_than_the_sensitivity_and_some_does():
    mechanism = CountTables(attributes=attributes(TINY, 2), sigma=1.0)
    frame = pd.DataFrame(every_record())
    each = [
        np.concatenate([np.ravel(c) for c in mechanism.counts(frame.iloc[[i]].reset_index(drop=True))])
        for i in range(len(frame))
    ]
    furthest = max(np.linalg.norm(one - other) for one, other in itertools.combinations(each, 2))
    assert furthest == pytest.approx(sensitivity(len(mechanism.tables)), rel=1e-12)
    assert mechanism.event.sensitivity >= furthest


def test_every_table_adds_up_to_all_persons_before_the_noise():
    mechanism = CountTables(attributes=attributes(TINY, 3), sigma=1.0)
    frame = pd.DataFrame(every_record())
    assert {int(count.sum()) for count in mechanism.counts(frame)} == {len(frame)}


def test_the_noise_on_a_count_has_the_size_that_is_charged():
    """The spread of 8,000 draws: the chance of a false alarm is below 1e-6, and half the noise is far outside."""
    mechanism = CountTables(attributes=attributes(TINY, 2), sigma=5.0)
    frame = pd.DataFrame(every_record())
    true = np.concatenate([np.ravel(c) for c in mechanism.counts(frame)])
    rng = seeded_rng(11)
    noise = []
    while sum(map(len, noise)) < 8_000:
        noise.append(np.concatenate([np.ravel(c) for c in mechanism.release(frame, rng)]) - true)
    spread = np.concatenate(noise).std()
    assert spread == pytest.approx(np.sqrt(25 + 1 / 12), rel=0.05)


def test_the_plan_s_epsilon_is_the_price_and_the_noise_is_rounded_up(study):
    event = study.release.event(study)
    paid = privacy.epsilon(event, 1e-6)
    assert 0.9999 < paid <= 1.0
    assert study.release.facts(study).parameters["sigma"] == event.sigma
    assert event.sensitivity == sensitivity(len(study.release.tables(study).tables))
    assert StudyPlan.from_bytes(study.canonical) == study


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 1.0, "sigma": 2.0}, "either epsilon or sigma"),
        ({}, "either epsilon or sigma"),
        ({"epsilon": 0.0}, "positive and finite"),
        ({"epsilon": 1.0, "bins": {"weight": 8}}, "must name columns"),
        ({"epsilon": 1.0, "bins": {"sbp": 1}}, "2..1000"),
        ({"epsilon": 1.0, "bins": {"sbp": 1000, "chol": 1000, "time": 1000}}, "cells"),
        ({"epsilon": 1.0, "pairs": [["sbp", "weight"]]}, "must name columns"),
        ({"epsilon": 1.0, "pairs": [["time", "cvd"]]}, "different columns"),
        ({"epsilon": 1.0, "pairs": [["sbp", "sex"], ["sex", "sbp"]]}, "different pairs"),
        ({"epsilon": 1.0, "pairs": ["sbp"]}, "pairs of columns"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [100, 200]}]}, "two columns"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [100, 200], "sex": "male"}]}, "two columns"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [100, 200], "weight": [1]}]}, "must name columns"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [100, 200], "sex": ["neither"]}]}, "of its levels"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [100, 101], "sex": ["male"]}]}, "at least one of its cells"),
        ({"epsilon": 1.0, "zeros": [{"sbp": ["low", "high"], "sex": ["male"]}]}, "least and its largest"),
        ({"epsilon": 1.0, "zeros": [{"sbp": [0, 999], "sex": ["male"]}]}, "every level possible"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_plan(plan, settings, words):
    with pytest.raises((PlanRefusal, ParameterError), match=words):
        replace(plan, release=TablesPlan(**settings), posture="private")


def test_figures_need_posture_private_and_waves_that_can_be_added_up(plan):
    with pytest.raises(PlanRefusal, match="posture 'private'"):
        replace(plan, release=TablesPlan(epsilon=1.0))
    two = (*plan.waves, Wave(number=2, opens=plan.waves[0].opens, closes=plan.waves[0].closes))
    with pytest.raises(PlanRefusal, match="append or refresh"):
        replace(plan, release=TablesPlan(epsilon=1.0), posture="private", returning="frozen", waves=two)


def test_the_lead_reads_how_wide_bins_are_before_the_plan_is_signed(study):
    (line,) = study.release.review(study)
    columns = {column.name: column for column in study.dictionary.released}
    width = (columns["sbp"].upper - columns["sbp"].lower) / 8
    assert line.state == "ok"
    assert f"sbp {width:.3g} mmHg" in line.detail
    narrow = replace(study, release=replace(study.release, bins={"sbp": 100}))
    assert f"sbp {8 * width / 100:.3g} mmHg" in narrow.release.review(narrow)[0].detail


def test_a_site_releases_tables_and_no_row(tmp_path, study, site, table):  # noqa: F811
    made = release(study, site, source(tmp_path, table))
    assert made.hold.state == "held"
    assert list(made.table.columns) == ["table", "cell", "count"]
    receipt = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).receipt
    receipt.require_true(study)
    assert (receipt.mechanism, receipt.n, receipt.drawn, receipt.posture) == ("tables", 300, 300, "private")
    assert receipt.epsilon == site.ledger.study_total(study.study, 1e-6).epsilon or receipt.epsilon <= 1.0
    real = study.release.tables(study).counts(study.dictionary.check(table))
    noise = np.concatenate([np.ravel(c) for c in real]) - made.table["count"].to_numpy()
    assert abs(noise.std() / receipt.parameters["sigma"] - 1) < 0.35
    assert {check.outcome for check in made.checks} == {"passed"}
    assert not (site.outbox.folder(made.hold.release_id) / "fit.npz").exists()


def test_a_second_wave_takes_the_new_persons_only(tmp_path, study, site, table):  # noqa: F811
    two = (*study.waves, Wave(number=2, opens=study.waves[0].opens, closes=study.waves[0].closes))
    study = replace(study, waves=two)
    deliver(site, release(study, site, source(tmp_path, table)))
    more = pd.concat([table, make_table(120, seed=9)], ignore_index=True)
    made = release(study, site, source(tmp_path, more), wave=2)
    assert made.receipt.n == 120
    # Nobody is in both: the worst-off person has paid for one of them.
    assert site.ledger.study_total(study.study, 1e-6).epsilon < 1.2


def test_what_the_plan_says_nobody_is_leaves_as_zero_whatever_the_records_say(plan, study, table):
    """Even where every record contradicts it: the counts that leave are the same functions of the same noise."""
    declared = ({"sex": ["male"], "sbp": [70, 170]},)
    study = replace(study, release=replace(study.release, zeros=declared))
    mechanism = study.release.tables(study)
    [(of, cells)] = mechanism.impossible.items()
    # Bins of 25 from 70 to 270: four of them end at 170 or below.
    assert sorted(cells.sum(axis=axis).max() for axis in (0, 1)) == [1, 4]
    assert cells.sum() == 4
    place = [one.of for one in mechanism.tables].index(of)
    plain = replace(study, release=replace(study.release, zeros=()))
    for records in (table, table.assign(sex="male", sbp=100.0), table.assign(sex="female")):
        checked = study.dictionary.check(records)
        drawn = study.release.draw(study, checked, seeded_rng(1))
        study.release.validate(study, drawn, len(records))
        counts = study.release.counts(study, drawn)
        assert not counts[place][cells].any()
        # Everything else is as without the declaration, at the same price.
        others = plain.release.counts(plain, plain.release.draw(plain, checked, seeded_rng(1)))
        np.testing.assert_array_equal(counts[place][~cells], others[place][~cells])
        rest = [k for k in range(len(counts)) if k != place]
        assert all(np.array_equal(counts[k], others[k]) for k in rest)
        with pytest.raises(SchemaRefusal, match="nobody can be"):
            study.release.validate(study, plain.release.draw(plain, checked, seeded_rng(1)), len(records))
        [rows] = study.release.synthetic(study, [(drawn, len(records))], draws=1, rng=np.random.default_rng(1))
        assert not ((rows["sex"] == "male") & (rows["sbp"] < 170)).any()
    assert study.release.event(study) == plain.release.event(plain)
    assert StudyPlan.from_bytes(study.canonical) == study
    assert "declared impossible" in study.release.details(study)
    assert "4 cells" in study.release.details(study)
    assert any("declares impossible" in one for one in study.release.covered(study))
    assert b"zeros" not in plain.canonical  # plans that declare none keep the hash they were approved by


def test_cells_are_named_by_levels_bounds_and_missing():
    dose, visits = attributes(TINY, {"dose": 3})[1:]
    assert dose.within("dose", [0, 2]) == (0, 1)
    assert dose.within("dose", ["missing", 1, 3]) == (1, 2, 3)
    assert dose.within("dose", ["missing"]) == (3,)
    assert visits.within("visits", [1, 2]) == (1, 2)
    years = attributes(TINY, {"years": 2})[0]
    assert years.within("died", [1]) == (1, 3)
    with pytest.raises(ParameterError, match="least and its largest"):
        dose.within("dose", [1])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.rename(columns={"count": "n"}), "columns"),
        (lambda t: t.iloc[:-1], "lines"),
        (lambda t: t.assign(count=t["count"].astype(float)), "whole numbers"),
        (lambda t: t.assign(cell="x"), "in order"),
        (lambda t: t.iloc[::-1].reset_index(drop=True), "in order"),
        (lambda t: t.assign(count=t["count"] + 10**9), "possible"),
    ],
)
def test_the_coordinator_takes_no_other_figures_than_the_plan_s(study, table, spoil, words):
    drawn = study.release.draw(study, study.dictionary.check(table), seeded_rng(1))
    study.release.validate(study, drawn, len(table))
    with pytest.raises(SchemaRefusal, match=words):
        study.release.validate(study, spoil(drawn), len(table))


# -- what bins hide ------------------------------------------------------------------------------------------------
def test_a_coefficient_of_a_column_that_lies_in_one_bin_is_not_answered_and_who_asks_for_others_is_told():
    world = worlds.world("late_effects")
    records = world(1500, np.random.default_rng(3), 0)

    def asked(kind, **bins):
        plan = zoo_moments.plan_of(world, kind, 3.0, "tables")
        plan = replace(plan, release=replace(plan.release, bins=bins))
        checked = plan.dictionary.check(records[list(plan.dictionary.names)])
        lines = plan.release.draw(plan, checked, seeded_rng(5))
        question = parse_estimand(world.question(kind))
        origin = {"study": "s", "site": "a", "wave": 1, "levels": {}}
        return plan.release.doubt(plan, lines, 1500), lambda: plan.release.answer(
            plan, [(lines, 1500)], question, **origin
        )

    doubt, answer = asked("binary")
    told = answer()
    reasons = {row.term: row.reason for row in told}
    assert "% of the persons in one bin of 3.75" in reasons.pop("marker")
    assert set(reasons.values()) == {""}
    unadjusted = {row.term for row in told if row.warnings and "is not adjusted for marker" in row.warnings[0]}
    assert unadjusted == set(reasons), "what it would explain is left in the others"
    assert doubt.startswith("A planned model will have no answer about marker: ")
    assert "bins" in doubt
    # Counts of 0 to 200 in sixteen bins: nearly all in the first.
    with pytest.raises(EstimateRefusal, match=r"outcome of a model is spread, got visits: \d+ %"):
        asked("count", marker=128)[1]()
    assert asked("binary", marker=128)[0] == ""


def test_a_bin_of_one_whole_number_hides_nothing_beside_wider_ones():
    """Ten whole numbers in seven bins: most persons at 0 are where the bin says, though others are not."""
    from types import SimpleNamespace

    from shared.mechanisms.tables.coarse import coarse
    from shared.mechanisms.tables.noise import Attribute, bin_edges

    column = Column(name="visits", kind="integer", lower=0, upper=9)
    widths = np.diff(bin_edges(column, 7))
    assert set(widths) == {1, 2}
    tables = SimpleNamespace(attributes=[Attribute(columns=(column,), bins=(7,))])
    for width, said in ((1, []), (2, ["visits"])):
        counts = np.where(np.arange(7) == int(np.argmax(widths == width)), 900, 16)
        assert list(coarse(tables, [counts], 996, 1.0)) == said
