"""Noisy densities: what is counted, what it costs, the way of such a release, and what it can be asked."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.both_sides.service import Hub
from stage.coordinator_side.delivered import site_estimates
from stage.hospital_side.pipeline import release, site, source  # noqa: F401

from shared.base.canonical import canonical_json
from shared.base.randomness import seeded_rng
from shared.errors import DictionaryRefusal, EstimateRefusal, ParameterError, PlanRefusal, SchemaRefusal
from shared.estimands.questions import parse_estimand
from shared.mechanisms.densities.groups import Histogram
from shared.mechanisms.densities.noise import Grid, rounded_laplace_variance
from shared.mechanisms.densities.plan import DensitiesPlan, level_for, together
from shared.plans.dictionary import Column
from shared.plans.plan import Budget, StudyPlan
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from site_agent.release.outbox import outcomes

DOSE = Column(name="dose", kind="continuous", lower=0, upper=4, missing="level")
YEARS = Column(name="years", kind="time", upper=8)
VISITS = Column(name="visits", kind="integer", lower=0, upper=2)
SEVERAL = (
    Grid(columns=(DOSE,), level=2),
    Grid(columns=(YEARS, VISITS), level=1),
    Grid(columns=(DOSE, YEARS, VISITS), level=1),
)


@pytest.fixture(scope="module")
def study(plan) -> StudyPlan:
    prescribed = DensitiesPlan(densities=[["sbp"], ["chol"], ["sbp", "time"]], epsilon=1.5, persons=300)
    return replace(plan, release=prescribed, posture="private", budget=Budget(epsilon=4.0, delta=1e-6))


def true_counts(plan: StudyPlan, records: pd.DataFrame) -> np.ndarray:
    return np.concatenate([group.grid.counts(records) for group in plan.release.groups(plan)])


def every_record() -> pd.DataFrame:
    """One record for each combination of cells, on edges where there are any."""
    parts = ([0.0, 1.0, 2.0, 4.0, np.nan], [0.0, 4.0, 8.0], [0.0, 1.0, 2.0])
    return pd.DataFrame(list(itertools.product(*parts)), columns=["dose", "years", "visits"])


def test_everybody_is_counted_once_in_every_grid_on_edges_outside_and_missing():
    frame = every_record()
    outside = pd.DataFrame({"dose": [-1.0, 9.0], "years": [-1.0, 99.0], "visits": [-3.0, 7.0]})
    for grid in SEVERAL:
        assert grid.counts(frame).sum() == len(frame)
        assert len(grid.labels) == grid.size == len(set(grid.labels))
        assert set(grid.codes(frame)) == set(range(grid.size)), grid.name
        np.testing.assert_array_equal(grid.codes(outside), [0, np.prod(grid.shape) - 1])
    assert SEVERAL[1].shape == (2, 2)
    np.testing.assert_array_equal(SEVERAL[1].edges[1], [-0.5, 1.5, 2.5])


def test_no_replacement_moves_more_counts_than_are_charged_nor_any_by_more_than_one_and_some_moves_them_all():
    """A search over every pair of records: the charged sensitivity is met exactly, never exceeded."""
    frame = every_record()
    event = together([Histogram(grid=grid, scale=1.0) for grid in SEVERAL])
    rows = [frame.iloc[[i]].reset_index(drop=True) for i in range(len(frame))]
    each = [np.concatenate([grid.counts(row) for grid in SEVERAL]) for row in rows]
    moved = [np.abs(one - other) for one, other in itertools.combinations(each, 2)]
    assert {int(step.max()) for step in moved} <= {0, 1}
    assert isinstance(event, privacy.Laplace)
    assert event.sensitivity == 1
    furthest = max(int(step.sum()) for step in moved)
    assert furthest == event.coordinates == 2 * len(SEVERAL)


FORMS: dict[str, dict[str, Any]] = {
    "smooth": {"basis": "daubechies2", "densities": [["sbp"], ["sbp", "time"]]},
    "smooth, three together": {"basis": "daubechies3", "densities": [["sbp", "time", "visits"]]},
    "quantiles": {"basis": "quantiles", "densities": [["sbp"], ["visits"]]},
    "local, Laplace": {"trust": "local", "densities": [["sbp"], ["sbp", "time"]], "epsilon": 0.5},
    "local, responses": {"trust": "local", "densities": [["sbp"], ["chol"]], "epsilon": 9.0},
}
forms = pytest.mark.parametrize("form", FORMS)


def formed(plan: StudyPlan, form: str, **more: Any) -> StudyPlan:
    prescribed = DensitiesPlan(**{"epsilon": 1.5, "persons": 300, **FORMS[form], **more})
    return replace(plan, release=prescribed, posture="private", budget=Budget(epsilon=20.0, delta=1e-6))


@forms
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 10 / 3, 7.1])
def test_every_way_of_releasing_is_charged_at_most_the_plan_s_epsilon_and_nearly_that(plan, form, epsilon):
    made = formed(plan, form, epsilon=epsilon)
    event = made.release.event(made)
    paid = privacy.pure_epsilon(event)
    assert paid is not None
    assert epsilon * (1 - 1e-3) < paid <= epsilon
    assert privacy.epsilon(event, 1e-6) <= epsilon
    parts = {privacy.pure_epsilon(group.event) for group in made.release.groups(made)}
    assert sum(parts) * len(made.release.densities) / len(parts) == pytest.approx(paid, rel=1e-3), "an equal part each"
    assert StudyPlan.from_bytes(made.canonical) == made
    assert made.hash != formed(plan, "smooth", basis="haar", densities=FORMS[form]["densities"]).hash


def test_a_plan_that_says_nothing_of_basis_and_trust_keeps_its_name(plan):
    made = replace(plan, release=DensitiesPlan(densities=[["sbp"]], epsilon=1.0), posture="private")
    assert not {"basis", "trust"} & set(made.to_canonical()["release"])


CHARGED_BEFORE = {
    "smooth": (
        "34ac6a21e6eb9cf15a633c468f75b3e00294268a9e8d6def22461ab8cd9f1b88",
        [
            privacy.Laplace(scale=116574.0, sensitivity=87430.0),
            privacy.Laplace(scale=1278610000.0, sensitivity=958957218.0),
        ],
    ),
    "smooth, three together": (
        "4e44217cd851d7a13795534682bf6e0ce8326c4ccef35eb5fd426439dd60e865",
        [privacy.Laplace(scale=39759800000.0, sensitivity=59639678602.0)],
    ),
}
"""Hashes and events of plans that were signed before the diameter was known."""


@pytest.mark.parametrize("form", CHARGED_BEFORE)
def test_a_plan_from_before_the_diameter_keeps_its_hash_its_price_and_its_noise(plan, form):
    now = formed(plan, form)
    given = json.loads(now.canonical)
    assert given["release"].pop("sensitivity") == "diameter", "what is written today says so"
    before = StudyPlan.from_bytes(canonical_json(given))
    hash_, events = CHARGED_BEFORE[form]
    assert before.hash == hash_
    event = before.release.event(before)
    assert (list(event.events) if isinstance(event, privacy.Composition) else [event]) == events
    assert [group.coefficients.scale for group in before.release.groups(before)] == [one.scale for one in events]
    for was, group in zip(events, now.release.groups(now), strict=True):
        assert 0.79 < group.coefficients.scale / was.scale < 0.91, "the same ε, with less noise"


WRITTEN = """
study = "mini"
version = 1
title = "Blood pressure"
purpose = "A map."
coordinator = "hub"
expires = 2030-06-30
posture = "private"

[release]
mechanism = "densities"
densities = [["sbp"]]
epsilon = 1.0
basis = "daubechies2"

[budget]
epsilon = 3

[[waves]]
number = 1
opens = 2026-01-01
closes = 2026-03-31

[dictionary]
name = "mini"
version = 1
[dictionary.columns.sbp]
kind = "continuous"
lower = 70
upper = 270
"""


def test_a_lead_who_says_nothing_gets_the_diameter_and_a_histogram_has_no_word_of_it(plan):
    written = StudyPlan.from_toml(WRITTEN)
    assert written.to_canonical()["release"]["sensitivity"] == "diameter"
    assert StudyPlan.from_bytes(written.canonical) == written
    histogram = StudyPlan.from_toml(WRITTEN.replace("daubechies2", "haar"))
    assert "sensitivity" not in histogram.to_canonical()["release"]
    with pytest.raises(PlanRefusal, match="diameter or norms"):
        StudyPlan.from_toml(WRITTEN.replace("[budget]", 'sensitivity = "none"\n[budget]'))


@forms
def test_every_way_goes_from_a_file_to_a_sealed_bundle_whose_receipt_is_true_and_says_what_it_is(
    tmp_path,
    plan,
    site,  # noqa: F811
    table,
    form,
):
    made = formed(plan, form)
    done = release(made, site, source(tmp_path, table))
    assert done.hold.state == "held"
    assert {check.outcome for check in done.checks} <= {"passed", "note"}
    bundle = site.outbox.bundle(done.hold.release_id)
    assert bundle.stat().st_size < 13_000
    receipt = read_bundle(bundle, cap=1 << 26).receipt
    receipt.require_true(made)
    assert receipt.model == made.release.trust
    assert receipt.epsilon_pure is not None
    assert receipt.epsilon <= receipt.epsilon_pure <= made.release.epsilon
    spent = site.ledger.study_total(made.study, made.budget.delta).epsilon
    assert spent <= receipt.epsilon_pure, "Rényi's detour costs nothing where the sum is less"
    words = {"smooth": "smooth functions", "quantiles": "4,096 borders", "local": "each report alone"}
    assert words[form.split(",")[0]] in " ".join(receipt.covered)
    assert made.release.details(made).startswith(f"{len(made.release.densities)} densit")


def test_values_beyond_the_bounds_of_a_density_count_at_the_bound_and_the_approver_alone_is_told_how_many(
    tmp_path,
    plan,
    site,  # noqa: F811
    table,
):
    made = formed(plan, "quantiles", basis="haar", bounds={"sbp": [120, 140], "visits": [1, 3]})
    assert StudyPlan.from_bytes(made.canonical) == made
    records = made.dictionary.check(table)
    sbp, visits = records["sbp"], records["visits"]
    beyond = int(((sbp < 120) | (sbp > 140) | (visits < 1) | (visits > 3)).sum())
    assert 0 < beyond < len(records)
    first, second = (group.grid.counts(records) for group in made.release.groups(made))
    assert first[0] >= (sbp < 120).sum()
    assert first[-1] >= (sbp > 140).sum()
    np.testing.assert_array_equal(second, [(visits <= 1).sum(), (visits == 2).sum(), (visits >= 3).sum()])
    done = release(made, site, source(tmp_path, table))
    [said] = [check for check in done.checks if check.name == "beyond_bounds"]
    assert (said.outcome, said.measured) == ("note", beyond)
    told = outcomes(json.loads((site.outbox.folder(done.hold.release_id) / "checks.json").read_text()), {}, "ab")
    assert str(beyond) not in json.dumps([line for line in told["checks"] if line["name"] == "beyond_bounds"])
    question = parse_estimand("mean(sbp)")
    told_of = {"levels": {}, "study": "mini", "site": "north", "wave": 1}
    (found,) = made.release.answer(made, [(done.table, len(records))], question, **told_of)
    assert any("count at the bound" in warning for warning in found.warnings)
    for odd in (np.full(50, 300.0), np.linspace(0, 400, 50)):
        for group in formed(plan, "smooth", bounds={"sbp": [120, 140]}).release.groups(made):
            drawn = group.draw(pd.DataFrame({"sbp": odd, "time": odd / 100}), seeded_rng(1))
            assert group.possible(drawn, 50)


def test_a_value_beyond_the_dictionary_is_refused_by_count_before_anything_is_drawn(
    tmp_path,
    study,
    site,  # noqa: F811
    table,
):
    spoiled = table.assign(sbp=table["sbp"].where(table.index > 2, 999.0))
    with pytest.raises(DictionaryRefusal, match="3") as caught:
        release(study, site, source(tmp_path, spoiled))
    assert "999" not in str(caught.value)
    assert [entry.kind for entry in site.ledger.entries() if entry.kind == "drawing"] == []


@forms
def test_no_figures_but_those_that_the_plan_and_its_noise_can_give_are_taken(plan, table, form):
    made = formed(plan, form)
    n = len(table)
    drawn = made.release.draw(made, made.dictionary.check(table), seeded_rng(1))
    made.release.validate(made, drawn, n)
    last = drawn.columns[-1]
    for spoil, words in (
        (lambda t: t.rename(columns={last: "n"}), "columns"),
        (lambda t: t.iloc[:-1], "lines"),
        (lambda t: t.assign(**{last: t[last].astype(float)}), "whole numbers"),
        (lambda t: t.iloc[::-1].reset_index(drop=True), "in order"),
        (lambda t: t.assign(**{last: t[last].where(t.index > 0, 2**62)}), "possible"),
        (lambda t: t.assign(**{last: t[last].where(t.index > 0, -(2**63))}), "possible"),
    ):
        with pytest.raises(SchemaRefusal, match=words):
            made.release.validate(made, spoil(drawn), n)
    if form == "quantiles":
        with pytest.raises(SchemaRefusal, match="possible"):
            made.release.validate(made, drawn.assign(border=drawn["border"].to_numpy()[::-1]), n)
    if form == "local, responses":
        with pytest.raises(SchemaRefusal, match="possible"):
            made.release.validate(made, drawn.assign(count=drawn["count"] + 1), n)


@pytest.mark.parametrize("form", ["smooth", "local, Laplace", "local, responses"])
def test_a_mean_from_every_linear_way_has_its_whole_variance(plan, form):
    made = formed(plan, form, epsilon=8.0)
    records = made.dictionary.check(make_table(400, seed=3))
    rng, told = seeded_rng(8), {"levels": {}, "study": "mini", "site": "north", "wave": 1}
    question = parse_estimand("mean(chol)" if form == "local, responses" else "mean(sbp)")
    column = records[question.columns[0]].dropna()
    found = [
        made.release.answer(made, [(made.release.draw(made, records, rng), 400)], question, **told)[0]
        for _ in range(60)
    ]
    # Over the draws of the noise alone; a bin's width is a share of what is left.
    slack = 0.0 if form == "smooth" else 6.0
    assert np.mean([row.yi for row in found]) == pytest.approx(
        column.mean(), abs=slack + 5 * (found[0].vi_privacy / 60) ** 0.5
    )
    ratio = np.var([row.yi for row in found], ddof=1) / np.mean([row.vi_privacy for row in found])
    assert ratio == pytest.approx(1, abs=0.9)
    assert {row.vi_sampling > 0 for row in found} == {True}


def test_a_smooth_density_s_mean_is_that_of_the_records_but_for_the_noise(plan):
    """The functions hold x exactly; what is lost is the snapping to 4,096 cells."""
    made = formed(plan, "smooth", epsilon=1e6)
    records = made.dictionary.check(make_table(400, seed=3))
    drawn = made.release.draw(made, records, seeded_rng(1))
    told = {"levels": {}, "study": "mini", "site": "north", "wave": 1}
    (found,) = made.release.answer(made, [(drawn, 400)], parse_estimand("mean(sbp)"), **told)
    assert found.yi == pytest.approx(records["sbp"].mean(), abs=0.05)
    assert found.vi_sampling * 400 == pytest.approx(records["sbp"].var(), rel=0.3)
    with pytest.raises(EstimateRefusal, match="a share has an edge"):
        made.release.answer(made, [(drawn, 400)], parse_estimand("proportion(sbp > 130)"), **told)
    cut = formed(plan, "quantiles")
    drawn = cut.release.draw(cut, records, seeded_rng(1))
    with pytest.raises(EstimateRefusal, match="they are for maps"):
        cut.release.answer(cut, [(drawn, 400)], parse_estimand("mean(sbp)"), **told)


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 1.0, 3.0, 10 / 3])
@pytest.mark.parametrize("groups", [1, 3, 7])
def test_the_plan_s_epsilon_is_the_total_of_all_groups_and_never_less_noise_than_it_asks_for(plan, epsilon, groups):
    columns = [["sbp"], ["chol"], ["time"], ["visits"], ["sbp", "chol"], ["time", "sbp"], ["parity"]][:groups]
    prescribed = DensitiesPlan(densities=columns, epsilon=epsilon)
    made = replace(plan, release=prescribed, posture="private")
    event = prescribed.event(made)
    paid = privacy.pure_epsilon(event)
    assert paid is not None
    assert epsilon * (1 - 1e-4) < paid <= epsilon
    assert privacy.epsilon(event, 1e-6) <= epsilon
    assert StudyPlan.from_bytes(made.canonical) == made
    assert prescribed.facts(made).parameters["scale"] == event.scale
    assert event.coordinates == 2 * groups


def test_the_variance_of_the_noise_that_estimates_are_given_is_that_of_the_noise_that_is_drawn():
    for scale in (0.3, 2.0, 40.0):
        noise = seeded_rng(5).lattice_laplace_steps(scale, 40_000, 1.0)
        # The variance of a Laplace sample of this size is known to 1.2 %: five and a half of them.
        assert noise.var() == pytest.approx(rounded_laplace_variance(scale), rel=0.065)
    k = np.arange(1, 4000)
    exact = 2 * (np.exp(-k / 7.0) * np.sinh(0.5 / 7.0) * k**2).sum()
    assert rounded_laplace_variance(7.0) == pytest.approx(exact, rel=1e-12)


def test_the_level_looks_at_the_plan_alone():
    assert [level_for(d, n, 2.0) for d in (1, 2, 3) for n in (50, 10**6)] == [6, 6, 3, 4, 3, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"densities": [["sbp", "chol", "time", "visits"]]}, "1 to 3 columns"),
        ({"densities": [["sex"]]}, "numeric columns"),
        ({"densities": [["weight"]]}, "must name columns"),
        ({"densities": [["sbp", "sbp"]]}, "different columns"),
        ({"densities": [["sbp"], ["sbp"]]}, "different columns"),
        ({"densities": []}, "groups of columns"),
        ({"densities": ["sbp"]}, "groups of columns"),
        ({"densities": [["sbp"]], "epsilon": 0.0}, "positive and finite"),
        ({"densities": [["sbp"]], "epsilon": float("inf")}, "positive and finite"),
        ({"densities": [["sbp"]], "persons": 0}, "at least 1"),
        ({"densities": [["sbp", "time"]], "alike": ["time"]}, "of their own"),
        ({"densities": [["sbp"]], "level": 9}, "2..8"),
        ({"densities": [["sbp", "chol", "time"]], "level": 5}, "2..4"),
        ({"densities": [["sbp"]], "bounds": {"sbp": [200, 100]}}, "a lower and a higher"),
        ({"densities": [["sbp"]], "bounds": {"chol": [100, 200]}}, "columns that have a density"),
        ({"densities": [["sbp"]], "bounds": {"sbp": [10, 200]}}, "within the dictionary"),
        ({"densities": [["visits"]], "bounds": {"visits": [1.5, 3]}}, "whole numbers"),
        ({"densities": [["sbp"]], "basis": "wavelets"}, "one of haar"),
        ({"densities": [["sbp"]], "trust": "nobody"}, "central or local"),
        ({"densities": [["sbp"]], "basis": "daubechies2", "trust": "local"}, "cells can be reported"),
        ({"densities": [["sbp", "time"]], "basis": "quantiles"}, "single columns"),
        ({"densities": [["chol"]], "basis": "quantiles"}, "without missing values"),
        ({"densities": [["sbp"], ["chol"]], "basis": "daubechies4"}, "without missing values"),
        ({"densities": [["sbp"]], "basis": "daubechies4", "level": 2}, "room for both ends"),
        ({"densities": [["sbp"]], "basis": "quantiles", "epsilon": 1e-9}, "epsilon must be in"),
        ({"densities": [["sbp"]], "trust": "local", "epsilon": 99.0}, "each density 0.0001 to 40"),
        ({"densities": [["sbp"]], "trust": "local", "epsilon": 800.0}, "each density 0.0001 to 40"),
        ({"densities": [["sbp"], ["chol"]], "trust": "local", "epsilon": 1.9e-4}, "each density 0.0001 to 40"),
        ({"densities": [["sbp"]], "trust": "local", "epsilon": 1e-17}, "each density 0.0001 to 40"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_plan(plan, settings, words):
    kinds = PlanRefusal if settings.get("trust") == "local" else (PlanRefusal, ParameterError, DictionaryRefusal)
    with pytest.raises(kinds, match=words):
        replace(plan, release=DensitiesPlan(**{"epsilon": 1.0, **settings}), posture="private")


def test_a_site_releases_densities_in_a_few_kilobytes(tmp_path, study, site, table):  # noqa: F811
    made = release(study, site, source(tmp_path, table))
    assert made.hold.state == "held"
    assert {check.outcome for check in made.checks} == {"passed"}
    bundle = site.outbox.bundle(made.hold.release_id)
    assert bundle.stat().st_size < 13_000
    receipt = read_bundle(bundle, cap=1 << 26).receipt
    receipt.require_true(study)
    assert (receipt.mechanism, receipt.n, receipt.posture, receipt.model) == ("densities", 300, "private", "central")
    assert receipt.epsilon <= 1.5
    real = true_counts(study, study.dictionary.check(table))
    noise = real - made.table["count"].to_numpy()
    assert np.abs(noise).mean() / receipt.parameters["scale"] == pytest.approx(1, abs=0.4)
    study.release.validate(study, made.table, receipt.n)


def test_a_coordinator_over_the_wire_takes_the_plan_s_figures_and_no_others_and_answers_from_them(tmp_path, study):
    hub = Hub(tmp_path / "hub", study, "north")
    n = sum(
        len(group.labels) for group in study.release.groups(study)
    )  # the helper takes a table's lines for its persons
    drawn = study.release.draw(study, study.dictionary.check(make_table(n)), seeded_rng(2))
    with hub.serve():
        with hub.egress("north") as egress:
            wrong = hub.seal("north", table=drawn.assign(cell="x"), release_id="cd" * 16)
            with pytest.raises(SchemaRefusal, match="in order"):
                egress.send(wrong.envelope, wrong.path)
            right = hub.seal("north", table=drawn)
            egress.send(right.envelope, right.path)
        (found,) = site_estimates(hub.store, study.study, 1, "mean(sbp)")
        (other,) = site_estimates(hub.store, study.study, 1, "proportion(sex == 'male')")
    assert found.yi == pytest.approx(130, abs=6 * found.vi**0.5)
    assert found.receipts == (right.receipt.hash,)
    assert "Densities answer" in other.reason
    hub.store.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.rename(columns={"count": "n"}), "columns"),
        (lambda t: t.iloc[:-1], "lines"),
        (lambda t: t.assign(count=t["count"].astype(float)), "whole numbers"),
        (lambda t: t.assign(cell="x"), "in order"),
        (lambda t: t.iloc[::-1].reset_index(drop=True), "in order"),
        (lambda t: t.assign(count=t["count"].where(t.index > 0, 10**6)), "possible"),
        (lambda t: t.assign(count=300), "possible"),
    ],
)
def test_the_coordinator_takes_no_other_figures_than_the_plan_s(study, table, spoil, words):
    drawn = study.release.draw(study, study.dictionary.check(table), seeded_rng(1))
    study.release.validate(study, drawn, len(table))
    with pytest.raises(SchemaRefusal, match=words):
        study.release.validate(study, spoil(drawn), len(table))


def test_a_mean_and_a_share_have_their_whole_variance(plan):
    """Over 80 draws of the noise, errors in units of what the estimate claims of the noise: mean square 1 ± 5 sd."""
    made = replace(plan, release=DensitiesPlan(densities=[["chol"], ["visits"]], epsilon=1.0), posture="private")
    records = made.dictionary.check(make_table(2000, seed=3))
    rng = seeded_rng(8)
    names = made.release.draw(made, records, rng)
    exact = names.assign(count=true_counts(made, records))
    told = {"study": "mini", "site": "north", "wave": 1}
    texts = ("mean(chol)", "proportion(chol > 230)", "proportion(visits >= 3)", "proportion(visits < 3)")
    released = [made.release.draw(made, records, rng) for _ in range(80)]
    for text in texts:
        question = parse_estimand(text)
        (known,) = made.release.answer(made, [(exact, 2000)], question, levels={}, **told)
        found = [made.release.answer(made, [(one, 2000)], question, levels={}, **told)[0] for one in released]
        scores = [(row.yi - known.yi) ** 2 / row.vi_privacy for row in found]
        assert np.mean(scores) == pytest.approx(1, abs=0.8), text
        column = records["chol"].dropna() if "chol" in text else records["visits"]
        plainly = {
            "mean(chol)": column.mean(),
            "proportion(chol > 230)": (column > 230).mean(),
            "proportion(visits >= 3)": (column >= 3).mean(),
            "proportion(visits < 3)": (column < 3).mean(),
        }[text]
        value = known.yi if "mean" in text else 1 / (1 + np.exp(-known.yi))
        exactly = "visits" in text
        assert value == pytest.approx(plainly, abs=1e-12 if exactly else 0.6 if "mean" in text else 0.02)
        assert bool(known.warnings) == (not exactly)
        assert known.n == len(column)


@pytest.mark.parametrize(
    "text",
    [
        "mean(chol, subset = sbp > 3)",
        "ols(sbp) ~ chol",
        "proportion(sex == 'male')",
        "mean(parity)",
        "km(time, cvd, at = 5)",
    ],
)
def test_what_a_density_does_not_hold_is_refused_with_what_it_is_for(study, table, text):
    drawn = study.release.draw(study, study.dictionary.check(table), seeded_rng(1))
    with pytest.raises(EstimateRefusal, match="Densities answer"):
        study.release.answer(study, [(drawn, 300)], parse_estimand(text), levels={}, study="mini", site="north", wave=1)


def test_fifty_persons_at_a_hundredth_of_an_epsilon_get_a_wide_answer_or_a_refusal(plan):
    made = replace(plan, release=DensitiesPlan(densities=[["sbp"]], epsilon=0.01), posture="private")
    drawn = made.release.draw(made, made.dictionary.check(make_table(50)), seeded_rng(4))
    told = {"levels": {}, "study": "mini", "site": "north", "wave": 1}
    (found,) = made.release.answer(made, [(drawn, 50)], parse_estimand("mean(sbp)"), **told)
    assert found.vi_privacy**0.5 > 1000
    with pytest.raises(EstimateRefusal, match="noise"):
        made.release.answer(made, [(drawn, 50)], parse_estimand("proportion(sbp > 130)"), **told)
