"""A study of noisy moments from the hospitals' tables to a pooled effect: plan, site, coordinator, answers."""

from __future__ import annotations

import datetime as dt
import html
import io
import json
import math
import re
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hurry import soak
from rich.console import Console
from stage.coordinator_side.delivered import STUDIES, cohort, deliver, join
from stage.hospital_side.pipeline import release, site, source  # noqa: F401

from coordinator.analyst.result import Result
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.demo.catalogue import play_of
from coordinator.demo.play import DemoOptions
from coordinator.planning.price import prices
from coordinator.planning.review import review
from coordinator.pooling.pool import pool, pool_estimates
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.canonical import canonical_json
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, PlanRefusal, SchemaRefusal
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.mechanisms.moments import together as moments_together
from shared.mechanisms.moments.figures import BLOCKS
from shared.mechanisms.moments.margins import bin_edges, fitted_margin
from shared.mechanisms.moments.plan import COLUMNS, MomentsPlan
from shared.mechanisms.moments.together import shrunk
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, Expected, StudyPlan, Wave, sign_plan
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from shared.terminal import plain

PERSONS = {"alpha": 9000, "beta": 7000, "gamma": 6000}
ADJUSTED = "cox(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15"
SETTINGS = {
    "epsilon": 1.0,
    "outcome": "survival",
    "responses": ["time", "cvd"],
    "covariates": ["age", "chol", "hdl", "sbp"],
    "exposures": ["sbp"],
    "declared": ["sbp"],
    "horizon": 25.0,
}


def study_plan(**changes) -> StudyPlan:
    """The shipped cohort study with moments in place of latent noise."""
    plan = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    prescribed = MomentsPlan(**{**SETTINGS, **changes})
    joint = replace(plan.training, outcomes="joint")
    return replace(plan, release=prescribed, posture="private", training=joint, budget=Budget(epsilon=4.0, delta=1e-6))


@pytest.fixture(scope="module")
def study() -> StudyPlan:
    return study_plan()


def with_persons(table: pd.DataFrame, name: str = "p") -> pd.DataFrame:
    return table.assign(person=[f"{name}{k}" for k in range(len(table))])


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return {name: with_persons(cohort(n, seed)) for seed, (name, n) in enumerate(PERSONS.items())}


@pytest.fixture(scope="module")
def drawn(study, tables) -> dict[str, pd.DataFrame]:
    """What each site released."""
    return {
        name: study.release.draw(study, study.dictionary.check(table), seeded_rng(k))
        for k, (name, table) in enumerate(tables.items())
    }


def answer(plan, table, n, question):
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    return plan.release.answer(
        plan, [(table, n)], parse_estimand(question), levels=levels, study="cvd", site="alpha", wave=1
    )


# -- the plan ----------------------------------------------------------------------------------------------------
def test_the_plan_s_epsilon_is_the_price_and_the_plan_survives_being_written_down(study):
    paid = privacy.epsilon(study.release.event(study), 1e-6)
    assert 0.9999 < paid <= 1.0
    assert StudyPlan.from_bytes(study.canonical) == study
    shares = {"histograms": 0.2, "moments": 0.3, "products": 0.2, "score": 0.3}
    other = study_plan(shares=shares)
    assert StudyPlan.from_bytes(other.canonical) == other
    assert other.release.facts(other).parameters != study.release.facts(study).parameters
    assert 0.9999 < privacy.epsilon(other.release.event(other), 1e-6) <= 1.0


HASH_BEFORE = "9bf1efc06c600b64e9afa9d386deea503deb95e8479f82fac94c774cc0a2f5ac"
"""Of the same plan, signed before all blocks were charged together."""


def test_a_plan_from_before_keeps_its_hash_its_event_and_the_variance_of_its_noise(study):
    table = with_persons(cohort(2000, 1))
    given = json.loads(study.canonical)
    assert given["release"].pop("sensitivity") == "joint", "what is written today says so"
    assert given["release"].pop("margins") == "cells"
    assert given["release"].pop("score") == "influence"
    assert given.pop("retention"), "of new plans alone"
    before = StudyPlan.from_bytes(canonical_json(given))
    assert before.hash == HASH_BEFORE
    assert before.release.sensitivity == "blocks"
    assert before.release.margins == "lognormal"
    assert before.release.score == "residual"
    event = before.release.event(before)
    assert isinstance(event, privacy.Composition)
    assert 0.9999 < privacy.epsilon(event, 1e-6) <= 1.0
    noise = before.release.facts(before).parameters
    assert [part.sigma for part in event.events] == [noise[f"sigma_{name}s"] for name in BLOCKS]
    assert noise["sigma_products"] > 1.01 * study.release.facts(study).parameters["sigma_products"]
    drawn = before.release.draw(before, before.dictionary.check(table), seeded_rng(3))
    told = answer(before, drawn, len(table), ADJUSTED)
    now = answer(study, drawn, len(table), ADJUSTED)
    assert [row.vi_privacy for row in told] != [row.vi_privacy for row in now], "each is read by its own plan"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"covariates": "sbp"}, "list of columns"),
        ({"covariates": ["age", "chol", "hdl"], "declared": [], "exposures": []}, "must have a role"),
        ({"declared": ["weight"]}, "must be covariates"),
        ({"horizon": 100.0}, "must reach the horizon"),
        ({"responses": ["time"]}, "has 2 columns"),
        ({"shares": {"histograms": 1.0}}, "shares"),
        ({"shares": {"histograms": 0.5, "moments": 0.3, "products": 0.2}}, "share if and only if"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_plan(changes, words):
    with pytest.raises(PlanRefusal, match=words):
        study_plan(**changes)


def test_the_price_list_names_every_mechanism_with_its_epsilon_and_what_it_covers(study):
    listed = {price.name: price for price in prices(study)}
    assert list(listed) == [
        "latent noise, w = 0.8",
        "latent noise, flow trained with noise",
        "noisy tables",
        "noisy moments",
        "noisy moments, sbp declared",
        "secure sum",
    ]
    latent = listed["latent noise, w = 0.8"]
    assert latent.epsilon > 100
    assert "not covered" in latent.covered
    assert latent.width == pytest.approx(math.sqrt(2 - 0.8**2))
    for name in ("noisy tables", "noisy moments", "noisy moments, sbp declared"):
        assert 0.99 < listed[name].epsilon <= 1.0
        assert listed[name].width is None
    assert 7.9 < listed["latent noise, flow trained with noise"].epsilon <= 8.0
    # What no caution can tell is told with the price.
    assert "no trace in the sums" in listed["noisy moments"].unseen == listed["noisy moments, sbp declared"].unseen
    assert "within their bins" in listed["noisy tables"].unseen
    assert "about fifty large sites hold too seldom" in listed["noisy tables"].unseen
    assert "heavy tails" in latent.unseen
    assert "5 sites must be expected" in listed["secure sum"].covered
    many = replace(study, expected=Expected(sites=12, persons=2000), waves=study.waves[:1])
    summed = prices(many)[-1]
    assert 0.98 < summed.epsilon <= 1.0
    assert "the coordinator and all 11 others ε 2." in summed.covered
    assert "no trace in it" in summed.unseen
    assert "larger than stated" not in summed.unseen
    half = replace(many, release=replace(many.release, epsilon=0.5))
    assert "larger than stated" in prices(half)[-1].unseen
    # A study of latent noise has the same list, by its own model.
    shipped = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    assert [price.name for price in prices(shipped)][:4] == list(listed)[:4]
    assert [price.epsilon is None for price in prices(shipped)][:5] == [False] * 5


def test_the_demo_sets_the_shipped_plan_beside_one_without_a_declared_coefficient_at_the_epsilon_it_was_asked_for():
    plans = play_of(DemoOptions(study="cohorts", epsilon=0.5)).plans(dt.date(2030, 1, 1))
    ours, plain = (StudyPlan.from_toml(text) for text in plans.values())
    assert [*plans] == ["cohorts", "cohorts-plain"] == [plan.study for plan in (ours, plain)]
    assert (ours.release.epsilon, ours.budget.epsilon, ours.posture) == (0.5, 4.0, "private")
    assert ours.release == replace(plain.release, declared=ours.release.covariates)
    assert plain.release.declared == ()
    assert plain.estimands == {"adjusted": ours.estimands["adjusted"]}


# -- the released table ------------------------------------------------------------------------------------------
def test_every_figure_has_a_line_of_its_own_and_reads_back_exactly(study, drawn):
    table = drawn["alpha"]
    assert tuple(table.columns) == COLUMNS
    assert not table.duplicated(["block", "figure"]).any()
    back = study.release.release(study, table, PERSONS["alpha"])
    pd.testing.assert_frame_equal(study.release.lines(study, back), table)
    assert set(table["block"]) == {"histogram", "moment", "product", "score"}
    figures = set(table["figure"])
    assert {"sbp", "event × sbp", "everybody × age", "age squared", "age × sbp"} <= figures
    # Those with the event stand in the lines that say so: far fewer than those without, or the words are wrong.
    seen = {level: int(table["value"][table["figure"].str.endswith(f", cvd = {level}")].sum()) for level in (0, 1)}
    assert abs(sum(seen.values()) - PERSONS["alpha"]) < 600
    events = cohort(PERSONS["alpha"], 0)["cvd"].sum()
    assert abs(seen[1] - events) < 400


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.rename(columns={"value": "n"}), "columns"),
        (lambda t: t.iloc[:-1], "lines"),
        (lambda t: t.assign(value=t["value"].astype(float)), "whole numbers"),
        (lambda t: t.assign(figure="x"), "in order"),
        (lambda t: t.iloc[::-1].reset_index(drop=True), "in order"),
        (lambda t: t.assign(value=t["value"].where(t["block"] != "histogram", 10**9)), "its records can make"),
        (lambda t: t.assign(value=t["value"].where(t["block"] != "score", 2**61)), "its records can make"),
        (lambda t: t.assign(value=t["value"].where(t["block"] != "histogram", -5000)), "possible"),
    ],
)
def test_the_coordinator_takes_no_other_figures_than_the_plan_s(study, drawn, spoil, words):
    study.release.validate(study, drawn["alpha"], PERSONS["alpha"])
    with pytest.raises(SchemaRefusal, match=words):
        study.release.validate(study, spoil(drawn["alpha"]), PERSONS["alpha"])


def test_a_site_releases_figures_and_no_row(tmp_path, study, site, tables):  # noqa: F811
    made = release(study, site, source(tmp_path, tables["gamma"]))
    assert made.hold.state == "held"
    assert tuple(made.table.columns) == COLUMNS
    receipt = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).receipt
    receipt.require_true(study)
    assert (receipt.mechanism, receipt.n, receipt.posture) == ("moments", PERSONS["gamma"], "private")
    assert receipt.parameters["figures"] == len(made.table)
    # The counts alone tell the noise within a third (one in 10⁶ would not): half of it, or twice, is found.
    design = study.release.design(study)
    true = design.counts(*design.matrices(study.dictionary.check(tables["gamma"])))
    counts = made.table["value"][made.table["block"] == "histogram"].to_numpy()
    noise = counts - np.concatenate([np.ravel(part) for part in true])
    assert abs(noise.std() / receipt.parameters["sigma_histograms"] - 1) < 0.33
    assert {check.outcome for check in made.checks} == {"passed"}


def test_a_site_too_small_for_the_price_is_told_of_before_it_leaves(tmp_path, study, site):  # noqa: F811
    made = release(study, site, source(tmp_path, with_persons(cohort(300, 4))), rng=seeded_rng(4))
    (warning,) = made.warnings
    assert warning.name == "too_few_for_the_price"
    assert "interval of sbp" in warning.detail
    assert "300 persons" in warning.detail
    (row,) = answer(study, made.table, 300, "mean(chol)")
    assert not any("times as wide" in said for said in row.warnings), "of that interval, and of no other answer"


# -- the answers -------------------------------------------------------------------------------------------------
def test_a_coefficient_of_the_planned_model_has_the_variance_of_patients_and_of_noise(study, tables, drawn):
    rows = answer(study, drawn["alpha"], PERSONS["alpha"], ADJUSTED)
    real = estimate(tables["alpha"], parse_estimand(ADJUSTED), study="cvd", site="alpha", wave=1)
    assert [row.term for row in rows] == [row.term for row in real] == ["sbp/10", "age/10", "chol/40", "hdl/15"]
    for ours, theirs in zip(rows, real, strict=True):
        # The gap to the site's own table is noise alone: five of its standard deviations are a false alarm in 10⁶.
        assert abs(ours.yi - theirs.yi) < 5 * math.sqrt(ours.vi_privacy) + 0.01, ours.term
        assert 0.8 < math.sqrt(ours.vi_sampling / theirs.vi_sampling) < 1.6
        assert ours.vi_privacy > 0
        assert (ours.scale, ours.n) == ("log", PERSONS["alpha"])
    assert answer(study, drawn["alpha"], PERSONS["alpha"], ADJUSTED) == rows


@pytest.mark.parametrize(
    "question", ["mean(sbp)", "km(time, cvd, at = 10)", "cox(time, cvd) ~ sbp/10", "ols(sbp) ~ age"]
)
def test_another_question_is_answered_from_synthetic_rows_and_says_so(study, tables, drawn, question):
    (row,) = answer(study, drawn["alpha"], PERSONS["alpha"], question)
    (real,) = estimate(tables["alpha"], parse_estimand(question), study="cvd", site="alpha", wave=1)
    assert row.term == real.term
    assert "synthetic tables" in row.how
    assert "Gaussian copula" in row.warnings[-1]
    assert row.vi_privacy > 0
    assert row.vi_sampling == pytest.approx(real.vi_sampling, rel=0.4)
    assert abs(row.yi - real.yi) < 5 * math.sqrt(row.vi)


def test_plan_check_warns_of_a_covariate_that_most_may_have_none_of():
    """Of two real tables no coefficient was answered for cigarettes a day, of which five in six smoke none."""
    column = "[dictionary.columns.cigs]\nkind = 'integer'\nlower = 0\nupper = 60\n\n[dictionary.columns.age]"
    text = (STUDIES / "cohorts.toml").read_text().replace("[dictionary.columns.age]", column)
    some = text.replace('"hdl", "sbp"]', '"hdl", "sbp", "cigs"]')
    for cells, state in ((32, "warn"), (61, "ok")):
        given = some.replace('mechanism = "moments"', f'mechanism = "moments"\nbins = {cells}')
        _, lines = review(given, today=dt.date(2026, 1, 1), recipient="tributary-hub")
        [line] = [line for line in lines if line.name == "declared"]
        assert (line.state, "cigs from 0" in line.detail, "bands" in line.fix) == (
            state,
            state == "warn",
            state == "warn",
        )


SHAPES = [
    "cox(time, cvd) ~ sbp * age",
    "cox(time, cvd) ~ sbp/10 + age/10 + I((age/10)^2)",
    "cox(time, cvd) ~ sbp/10 + poly(age, 2, raw = TRUE)",
    "cox(time, cvd) ~ age/10 + log(age)",
    "cox(time, cvd) ~ age/10 + by_time(sbp, c(2, 5))",
    "schoenfeld(time, cvd) ~ sbp/10",
]
"""Of a real table's count, bent in age by -.45 (-.51 to -.39), rows drawn of the fit said 0 (-.04 to .04)."""


@pytest.mark.parametrize("question", SHAPES)
def test_an_interaction_or_a_curve_is_refused_because_the_figures_hold_none(study, drawn, question):
    with pytest.raises(EstimateRefusal, match="no interaction, no curve and no change with time"):
        answer(study, drawn["alpha"], PERSONS["alpha"], question)


@pytest.mark.parametrize("question", SHAPES)
def test_plan_check_says_that_such_a_planned_analysis_will_be_refused(question):
    text = (STUDIES / "cohorts.toml").read_text().replace("[estimands]", f"[estimands]\nbent = '{question}'")
    _, lines = review(text, today=dt.date(2026, 1, 1), recipient="tributary-hub")
    [line] = [line for line in lines if line.name == "estimand bent"]
    assert line.state == "warn"
    assert "none would be found" in line.detail
    assert "keeps rows" in line.fix


def test_releases_of_different_persons_weigh_by_their_variance_and_their_rows_are_put_together(study, drawn):
    levels = {"cvd": (0, 1)}
    told = {"study": "cvd", "site": "both", "wave": 2, "levels": levels}
    pair = [(drawn[name], PERSONS[name]) for name in ("alpha", "beta")]
    alone = [study.release.answer(study, [one], parse_estimand(ADJUSTED), **told)[0] for one in pair]
    both = study.release.answer(study, pair, parse_estimand(ADJUSTED), **told)[0]
    weights = np.array([1 / row.vi for row in alone])
    assert both.yi == pytest.approx(weights @ [row.yi for row in alone] / weights.sum())
    assert both.vi == pytest.approx(1 / weights.sum())
    assert both.n == PERSONS["alpha"] + PERSONS["beta"]
    mean = study.release.answer(study, pair, parse_estimand("mean(sbp)"), **told)[0]
    assert mean.n == both.n
    assert mean.vi_naive > mean.vi_sampling > 0


def test_synthetic_tables_fit_the_dictionary(study, drawn):
    made = study.release.synthetic(study, [(drawn["gamma"], PERSONS["gamma"])], draws=2, rng=np.random.default_rng(1))
    assert [len(one) for one in made] == [PERSONS["gamma"]] * 2
    for one in made:
        study.dictionary.check(with_persons(one))


def test_three_sites_are_pooled_by_the_coordinator_from_their_figures_alone(tmp_path, study, tables, drawn):
    lead = SigningKey.generate()
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(study, [lead]), study)
        for name, table in drawn.items():
            invitation = authority.invite(name, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            deliver(store, study, name, join(store, invitation), table, n=PERSONS[name])
        told, undeclared = (ask(store, holding(store, "cvd", 1), ADJUSTED, term=term) for term in ("sbp", "age"))
    assert told.result.k == 3
    assert told.result.method == "REML"
    assert [row.n for row in told.estimates] == [PERSONS[name] for name in sorted(PERSONS)]
    assert all(row.vi == row.vi_sampling + row.vi_privacy for row in told.estimates)
    assert all("all sites have in common" in row.how and row.vi_common > 0 for row in told.estimates)
    # 0.15 is the truth behind all three tables.
    assert told.result.ci_lb < 0.15 < told.result.ci_ub
    assert told.result.se < 0.05
    cautioned_before_the_number(told, undeclared)


def cautioned_before_the_number(declared, undeclared):
    """Of a declared and an undeclared coefficient of one study, in text, JSON and a notebook, alone and in a table."""
    assert declared.result.doubts == ()
    (caution,) = undeclared.result.doubts
    assert caution.startswith("The coefficient of age is not declared")
    assert "release.declared names age" in caution
    assert not re.search(r"\d", caution), "figures stand in the document, which a new measurement writes"
    for asked, said in ((declared, False), (undeclared, True)):
        document = json.loads(json.dumps(plain(asked.document)))
        assert (caution in document["doubts"]) == said
        assert {row["term"] for row in document["table"] if row["cautions"]} == {"age/10", "chol/40", "hdl/15"}
        how = {name: getattr(asked.result, name) for name in ("method", "test", "level")}
        result = Result(None, document | {"result": "r", "asked": how}, None)
        for show in (result.show, result.show_whole):
            shown = io.StringIO()
            show(Console(width=999, file=shown))
            # Whoever asked for another coefficient reads this one in the table of all terms, with its caution above.
            first, _, rest = shown.getvalue().partition("\nsite ")
            assert (f"caution  {caution}\n" in first) == said
        assert shown.getvalue().count(caution) == 1
        assert said or caution in rest.partition("all terms")[2].partition("\nterm ")[0]
        page = html.unescape(result._repr_html_())
        assert page.count(caution) == 1
        assert (page.index(caution) < page.index("pooled hazard ratio")) == said
        terms = result.terms()
        assert caution in html.unescape(terms._repr_html_()).split("<table")[0]
        assert list(terms.to_frame()["cautions"] != "") == [False, True, True, True]


# -- sites beside each other ---------------------------------------------------------------------------------------
TRIAL = "logistic(died) ~ age/10 + sbp/10 + male"


def trial(n: int, seed: int) -> pd.DataFrame:
    """Patients of one hospital, as `Dictionary.check` returns them: 0.6 per ten years of age is the truth."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(60, 12, n), 20, 100).round()
    sbp = np.clip(rng.normal(130, 18, n) + 0.3 * (age - 60), 60, 220).round()
    male = (rng.random(n) < 0.5).astype(float)
    eta = -1.8 + 0.06 * (age - 60) - 0.01 * (sbp - 130) + 0.3 * male
    died = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    return pd.DataFrame({"age": age, "sbp": sbp, "male": male, "died": died})


def trial_plan(upper: float = 100.0) -> StudyPlan:
    dictionary = Dictionary(
        name="trial",
        version=1,
        columns=(
            Column(name="age", kind="continuous", lower=20, upper=upper, decimals=0),
            Column(name="sbp", kind="continuous", lower=60, upper=220, decimals=0),
            Column(name="male", kind="binary"),
            Column(name="died", kind="binary"),
        ),
    )
    release = MomentsPlan(epsilon=1.0, outcome="binary", responses=["died"], covariates=["age", "sbp", "male"])
    return replace(
        study_plan(), release=release, dictionary=dictionary, returning="refresh", estimands={"planned": TRIAL}
    )


def test_sites_beside_each_other_find_an_effect_that_each_alone_draws_towards_zero():
    """Sixteen hospitals of 700 at ε = 1: pooled, the weak prior of each is a bias that no further site lowers."""
    plan = trial_plan()
    sites = {f"s{k}": [(plan.release.draw(plan, trial(700, k), seeded_rng(k)), 700)] for k in range(100, 116)}
    alone = [plan.release.cohort(plan, *tables[0], bootstrap=False) for tables in sites.values()]
    by_prior = pool([10 * one.effects[0] for one in alone], [100 * (one.sampling + one.privacy)[0, 0] for one in alone])
    beside = together_of(plan, sites)
    found = pool_estimates([row for rows in beside.values() for row in rows if row.term == "age/10"])
    assert found.ci_lb < 0.6 < found.ci_ub
    assert by_prior.ci_ub < 0.6
    assert abs(found.beta - 0.6) < 1.5 * found.se
    # What the planned model may lack is common to all sites, and in the pooled interval.
    assert 0 < found.shared < found.se**2
    assert all(row.vi_common > 0 for rows in beside.values() for row in rows)
    # The answer does not hang on the order of the sites.
    again = together_of(plan, dict(reversed(sites.items())))
    assert [row.yi for row in again["s103"]] == pytest.approx([row.yi for row in beside["s103"]], rel=1e-7)


def together_of(plan, sites):
    origins = {name: {"study": "trial", "site": name, "wave": 1} for name in sites}
    return plan.release.together(plan, sites, parse_estimand(TRIAL), origins=origins)


def test_a_site_that_says_it_has_more_persons_than_all_others_moves_none_of_their_answers():
    """What a site says of its persons nobody can check: the others' figures were looked at from its effects."""
    plan = trial_plan()
    given = {f"s{k}": [(plan.release.draw(plan, trial(700, k), seeded_rng(k)), 700)] for k in range(4)}
    turned = trial(30_000, 9)
    turned["died"] = 1 - turned["died"]
    claimed = [(plan.release.draw(plan, turned, seeded_rng(9)), 30_000)]
    found = together_of(plan, {"s9": claimed, **given})
    assert found.keys() == {"s9", *given}
    assert {name: found[name] for name in given} == together_of(plan, given)
    one = {"s9": claimed, "s0": given["s0"]}
    assert together_of(plan, one).keys() == {"s9"}, "the smaller of two answers for itself"


def test_a_covariate_whose_histogram_hides_its_spread_has_no_answer():
    wide = trial_plan(upper=4000.0)
    table = trial(2000, 1)
    drawn = wide.release.draw(wide, table, seeded_rng(1))
    with pytest.raises(EstimateRefusal, match="one cell") as refused:
        wide.release.answer(wide, [(drawn, 2000)], parse_estimand(TRIAL), levels={}, study="t", site="a", wave=1)
    assert "narrower bounds" in refused.value.next_step
    assert "bounds are too wide for age" in wide.release.doubt(wide, drawn, 2000)


def test_of_a_laboratory_value_within_wide_bounds_the_logarithm_is_advised_and_answered():
    """A covariate whose middle is 1.1 within 0 to 60, of which its logarithm has an effect of .5."""
    rng = np.random.default_rng(5)
    log = rng.normal(0.1, 0.6, 4000)
    died = (rng.random(4000) < 1 / (1 + np.exp(1.5 - 0.5 * log))).astype(float)
    table = trial(4000, 3).assign(died=died, crp=np.clip(np.exp(log), 0, 60).round(2), log_crp=np.clip(log, -3, 4.1))
    plain = trial_plan()

    def plan(column: Column) -> StudyPlan:
        columns = (column, *plain.dictionary.columns[2:])
        release = replace(plain.release, covariates=[column.name, "male"])
        question = f"logistic(died) ~ {column.name} + male"
        dictionary = replace(plain.dictionary, columns=columns)
        return replace(plain, release=release, dictionary=dictionary, estimands={"planned": question})

    def answer(plan: StudyPlan, name: str) -> Estimate:
        drawn = plan.release.draw(plan, table, seeded_rng(1))
        question = parse_estimand(plan.estimands["planned"])
        rows = plan.release.answer(plan, [(drawn, 4000)], question, levels={}, study="t", site="a", wave=1)
        return next(row for row in rows if row.term == name)

    raw = plan(Column(name="crp", kind="continuous", lower=0, upper=60, decimals=2))
    with pytest.raises(EstimateRefusal, match="one cell") as refused:
        answer(raw, "crp")
    assert "logarithm" in refused.value.next_step
    (fix,) = [fix for detail, fix in raw.release.doubtful(raw) if detail.startswith("crp from 0")]
    assert refused.value.next_step.startswith(fix)
    logged = plan(Column(name="log_crp", kind="continuous", lower=-3, upper=4.1, decimals=2))
    assert not any("from 0" in detail for detail, _ in logged.release.doubtful(logged))
    found = answer(logged, "log_crp")
    assert abs(found.yi - 0.5) < 2 * math.sqrt(found.vi)
    assert found.vi < 0.2**2


def test_a_trial_of_two_arms_needs_no_further_covariate():
    plan = trial_plan()
    arm = Dictionary(name="arms", version=1, columns=tuple(plan.dictionary.column(name) for name in ("male", "died")))
    release = MomentsPlan(epsilon=1.0, outcome="binary", responses=["died"], covariates=["male"])
    plan = replace(plan, release=release, dictionary=arm, estimands={"planned": "logistic(died) ~ male"})
    assert privacy.epsilon(release.event(plan), plan.budget.delta) == pytest.approx(1.0, rel=1e-6)
    tables = {f"s{k}": trial(3000, k)[["male", "died"]] for k in range(4)}
    question = parse_estimand("logistic(died) ~ male")
    figures = {
        name: [(release.draw(plan, table, seeded_rng(k)), 3000)] for k, (name, table) in enumerate(tables.items())
    }
    release.validate(plan, figures["s0"][0][0], 3000)
    origins = {name: {"study": "trial", "site": name, "wave": 1} for name in tables}
    beside = release.together(plan, figures, question, origins=origins)
    whole = pd.concat(tables.values()).astype({"died": int})
    (real,) = estimate(whole, question, study="trial", site="all", wave=1)
    found = pool_estimates([row for rows in beside.values() for row in rows])
    assert abs(found.beta - real.yi) < 2 * found.se
    assert found.se < 3 * math.sqrt(real.vi)
    (alone,) = release.answer(plan, figures["s0"], question, levels={}, **origins["s0"])
    assert abs(alone.yi - real.yi) < 3 * math.sqrt(alone.vi)


def test_hospitals_that_differ_are_each_told_their_own_effect_and_move_no_covariate_beside_it():
    """Looked at from the mean of all, x1 of the last site was 0.15 too small, and x2 of all of them off by as much."""
    day, covariates = dt.date(2026, 1, 1), ("x1", "x2")
    numeric = tuple(Column(name=name, kind="continuous", lower=-5, upper=5) for name in covariates)
    plan = StudyPlan(
        study="apart",
        version=1,
        title="Hospitals that differ",
        purpose="To see each as it is.",
        coordinator="hub",
        expires=day,
        release=MomentsPlan(epsilon=30.0, outcome="binary", responses=("y",), covariates=covariates),
        posture="private",
        budget=Budget(epsilon=1e4, delta=1e-6),
        waves=(Wave(number=1, opens=day, closes=day),),
        dictionary=Dictionary(name="apart", version=1, columns=(*numeric, Column(name="y", kind="binary"))),
        estimands={"planned": "logistic(y) ~ x1 + x2"},
    )
    rng, figures, origins = np.random.default_rng(5), {}, {}
    effects = {"a": -0.5, "b": 0.0, "c": 0.5, "d": 1.0, "e": 1.5}
    for name, effect in effects.items():
        x1 = rng.standard_normal(20_000)
        x2 = 0.3 * x1 + np.sqrt(0.91) * rng.standard_normal(20_000)
        y = (rng.random(20_000) < 1 / (1 + np.exp(1 - effect * x1 - 0.5 * x2))).astype(int)
        table = pd.DataFrame({"x1": x1.clip(-5, 5), "x2": x2.clip(-5, 5), "y": y.astype(str)})
        drawn = plan.release.draw(plan, plan.dictionary.check(table), seeded_rng(7 + len(figures)))
        figures[name] = [(drawn, 20_000)]
        origins[name] = {"study": "apart", "site": name, "wave": 1}
    found = plan.release.together(plan, figures, parse_estimand("logistic(y) ~ x1 + x2"), origins=origins)
    for name, effect in effects.items():
        own = {row.term: row.yi for row in found[name]}
        assert own["x1"] == pytest.approx(effect, abs=0.08)
        assert own["x2"] == pytest.approx(0.5, abs=0.08)
    assert np.mean([row.yi for rows in found.values() for row in rows if row.term == "x2"]) == pytest.approx(
        0.5, abs=0.03
    )


def test_few_small_hospitals_beside_each_other_do_not_run_away():
    """Where a place says little a step from it is wild: without a bound on its move the next one was at 40,000."""
    rng, wild = np.random.default_rng(3), np.array([[0.2, 0.4], [25.0, -30.0]])
    towards = shrunk(wild, np.full((2, 2), 0.5))
    assert np.abs(towards - wild).max() < 1, "two that differ so much are each left where they are"
    assert np.isfinite(shrunk(rng.normal(size=(3, 2)), np.array([[0.0, 1], [1e-2, 1e16], [1, 1e-2]]))).all()
    assert shrunk(np.array([[0.3], [1e10]]), np.array([[0.01], [1e16]]))[0, 0] == pytest.approx(0.3)


def test_a_hospital_whose_figures_say_nothing_stays_within_reach_and_says_so():
    """Where noise left no slope a step without a prior was at -14,878 per ten years."""
    plan = trial_plan()
    plan = replace(plan, release=replace(plan.release, epsilon=0.5))
    sizes = {"a": (1500, 90), "b": (1400, 92), "c": (1000, 91), "small": (150, 3)}
    sites = {
        name: [(plan.release.draw(plan, trial(n, seed), seeded_rng(seed)), n)] for name, (n, seed) in sizes.items()
    }
    beside = together_of(plan, sites)
    for row in beside["small"]:
        assert abs(row.yi) < 20
        assert row.yi**2 < 9 * row.vi
    age = {name: rows[0] for name, rows in beside.items()}
    assert age["small"].vi > 50 * max(age[name].vi for name in "abc"), "it weighs next to nothing"
    without = together_of(plan, {name: sites[name] for name in "abc"})
    assert all(abs(without[name][0].yi - age[name].yi) < 0.5 * age[name].vi ** 0.5 for name in "abc")


def test_a_site_whose_steps_do_not_agree_has_no_answer_and_says_why(monkeypatch):
    plan = trial_plan()

    def drawn(seed):
        return {
            name: [(plan.release.draw(plan, trial(900, k), seeded_rng(seed + k)), 900)] for k, name in enumerate("abc")
        }

    assert all(row.yi is not None for rows in together_of(plan, drawn(0)).values() for row in rows)
    monkeypatch.setattr(moments_together, "UNSETTLED", -1.0)
    for rows in together_of(plan, drawn(3)).values():  # others: what was once placed is kept
        assert all(row.yi is None and row.reason.startswith("its figures settle on no effects") for row in rows)


class Loud:
    """Noise as it is drawn, and in one cell of one histogram so many standard deviations of it."""

    def __init__(self, noise, histogram, cell, sds):
        self.noise, self.left, self.cell, self.sds = noise, histogram, cell, sds

    def lattice_gaussian_steps(self, sigma, shape, grid):
        drawn = self.noise.lattice_gaussian_steps(sigma, shape, grid)
        if self.left == 0:
            drawn[self.cell] = round(self.sds * sigma / grid)
        self.left -= 1
        return drawn


def tailed(n: int, seed: int) -> pd.DataFrame:
    """The trial with a marker whose values are below 10 of 60, all but one in a hundred; 0.3 of it is the truth."""
    table = trial(n, seed)
    rng = np.random.default_rng((seed, 1))
    marker = np.clip(np.exp(rng.normal(0.4, 0.8, n)), 0, 60).round(2)
    eta = -1.8 + 0.06 * (table["age"] - 60) - 0.01 * (table["sbp"] - 130) + 0.3 * (marker - 2)
    died = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    return table.drop(columns="male").assign(marker=marker, died=died)[["age", "sbp", "marker", "died"]]


@pytest.mark.parametrize("sds", [4.2, 5.5])
def test_a_cell_that_noise_made_runs_away_with_no_hospital(sds):
    """At 4.2 standard deviations, as in one of a hundred columns, a hospital told 5 times the effect, surely."""
    plan = trial_plan()
    columns = (*plan.dictionary.columns[:2], Column(name="marker", kind="continuous", lower=0, upper=60, decimals=2))
    release = replace(plan.release, covariates=["age", "sbp", "marker"], declared=["age", "sbp", "marker"])
    dictionary = replace(plan.dictionary, columns=(*columns, plan.dictionary.columns[3]))
    plan = replace(plan, release=release, dictionary=dictionary)
    question = parse_estimand("logistic(died) ~ age/10 + sbp/10 + marker")
    origins = {f"s{k}": {"study": "trial", "site": f"s{k}", "wave": 1} for k in range(8)}
    noises = [seeded_rng(k) if k else Loud(seeded_rng(0), 2, 23, sds) for k in range(8)]
    sites = {f"s{k}": [(plan.release.draw(plan, tailed(1500, k), noise), 1500)] for k, noise in enumerate(noises)}
    found = plan.release.together(plan, sites, question, origins=origins)
    for told in found["s0"]:
        real = next(
            row
            for row in estimate(tailed(1500, 0), question, study="trial", site="s0", wave=1)
            if row.term == told.term
        )
        assert (
            told.reason.startswith("its histogram of marker and its sums deny each other")
            if told.yi is None
            else (abs(told.yi - real.yi) < 4 * told.vi**0.5 and told.vi**0.5 < 10 * real.vi**0.5)
        )
    assert all(row.yi is not None for name in list(found)[1:] for row in found[name])


@pytest.mark.sampled
def test_a_margin_of_noise_is_no_margin_of_persons():
    """By 3.5 standard deviations 1 of 70 histograms had persons where nobody is, and a spread several times its own."""
    rng = np.random.default_rng(20261129)
    column, sigma, n = Column(name="marker", kind="continuous", lower=0, upper=60), 42.0, 2000
    edges = bin_edges(column, 32)
    values = np.clip(np.exp(rng.normal(0.4, 0.8, n)), 0, 60)
    counts = np.histogram(values, edges)[0]
    draws = (counts + rng.normal(0, sigma, 32) for _ in range(soak(300, 1500)))
    assert max(fitted_margin(drawn, n, sigma, edges, column).sd for drawn in draws) < 4 * values.std()


@pytest.mark.parametrize(
    ("declared", "state", "words"),
    [
        ('["sbp"]', "warn", "age, chol, hdl not declared"),
        ("[]", "warn", "age, chol, hdl, sbp not declared"),
        (None, "ok", "every coefficient"),
    ],
)
def test_plan_check_warns_of_each_coefficient_that_rests_on_the_planned_model(declared, state, words):
    given = "" if declared is None else f"declared = {declared}"
    text = re.sub("declared = .*", given, (STUDIES / "cohorts.toml").read_text())
    _, lines = review(text, today=dt.date(2026, 1, 1), recipient="tributary-hub")
    said = next(line for line in lines if line.name == "declared")
    assert said.state == state
    assert words in said.detail


def test_plan_check_warns_of_a_factor_which_the_planned_model_reads_as_steps():
    """Its questions are answered from rows drawn of the fit, whatever is declared; nothing said so before a release."""
    text = (STUDIES / "cohorts.toml").read_text()
    stage = '\n[dictionary.columns.stage]\nkind = "ordered"\nlevels = {}\n'
    for levels, warned in (('["I", "II", "III"]', True), ("[1, 2, 3]", False), ('["early", "late"]', False)):
        changed = re.sub("declared = .*", "", text).replace('"hdl", "sbp"]\n', '"hdl", "sbp", "stage"]\n')
        changed += stage.format(levels)
        _, lines = review(changed, today=dt.date(2026, 1, 1), recipient="tributary-hub")
        said = [line for line in lines if line.name == "declared"]
        assert any("stage with named levels" in line.detail for line in said) == warned, said


def test_plan_check_warns_of_whole_numbers_as_a_measurement():
    """Days in hospital were told too near to no effect, in intervals narrower than the records' own."""
    plan = trial_plan()
    nights = Column(name="nights", kind="integer", lower=0, upper=60)
    for column, warned in ((nights, True), (replace(nights, kind="continuous"), False)):
        columns = (*plan.dictionary.columns[:3], column)
        names = [one.name for one in columns[:3]]
        release = MomentsPlan(epsilon=1.0, outcome="linear", responses=["nights"], covariates=names, declared=names)
        stays = replace(
            plan,
            release=release,
            dictionary=Dictionary(name="stays", version=1, columns=columns),
            estimands={"planned": "ols(nights) ~ age + sbp + male"},
        )
        assert ["nights as a measurement" in detail for detail, _ in release.doubtful(stays)] == [True] * warned


def test_plan_check_names_cross_products_where_a_histogram_drowns():
    """Of 300 patients at ε = 1 the interval of a linear model held the truth in fewer than four cases of five."""
    plan = trial_plan()
    names = [one.name for one in plan.dictionary.columns[:3]]
    score = Column(name="score", kind="continuous", lower=0, upper=60)
    scores = Dictionary(name="scores", version=1, columns=(*plan.dictionary.columns[:3], score))
    asked = {"planned": f"ols(score) ~ {names[0]}"}

    def warned(persons, epsilon=1.0):
        release = MomentsPlan(epsilon=epsilon, outcome="linear", responses=["score"], covariates=names, declared=names)
        size = None if persons is None else Expected(sites=12, persons=persons)
        study = replace(plan, release=release, dictionary=scores, estimands=asked, expected=size)
        found = release.doubtful(study)
        return [fix for detail, fix in found if "on each cell" in detail]

    [fix] = warned(300)
    assert "cross_products" in fix
    assert warned(None) == warned(3000) == warned(300, epsilon=20.0) == []


def test_a_plan_written_without_the_word_declares_every_coefficient_and_a_signed_one_none():
    text = (STUDIES / "cohorts.toml").read_text()
    shipped, plan = StudyPlan.from_toml(text), StudyPlan.from_toml(re.sub("declared = .*\n", "", text))
    assert plan.release.declared == plan.release.covariates
    assert plan == shipped, "the shipped plan is what a new one would be"
    assert StudyPlan.from_bytes(plan.canonical) == plan
    signed = json.loads(plan.canonical)
    del signed["release"]["declared"]
    assert StudyPlan.from_canonical(signed).release.declared == ()
