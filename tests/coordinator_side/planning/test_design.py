"""`plan design`: from the interval that is wanted to a plan, by the product's own mechanisms on made-up tables."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.cli import main
from coordinator.planning import design, predicted
from coordinator.planning.design import Simulations, Target, designed, written
from coordinator.planning.predicted import Setting, SiteVariance, half_width, plainly, plan_of, power, simulated
from coordinator.planning.published import Published, made_up, margins_template
from coordinator.planning.review import review
from coordinator.planning.template import template
from shared.errors import ParameterError
from shared.estimands.questions import parse_estimand
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import StudyPlan

TODAY = dt.date(2026, 1, 5)
MARGINS = """
between = 0.05
[columns.died]
share = 0.2
[columns.treated]
share = 0.4
[columns.age]
mean = 70
sd = 12
[columns.sex]
share = 0.52
[effects]
treated = -0.3
"age/10" = 0.4
"""


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return StudyPlan.from_toml(template("stroke", coordinator="hub", today=TODAY))


@pytest.fixture(scope="module")
def published(plan) -> Published:
    return Published.read(MARGINS, parse_estimand(plan.estimands["treatment"]), plan.dictionary)


def target(**more) -> Target:
    given = {"question": "treatment", "half_width": 0.35, "sites": 8, "persons": 500, "most": 6.0}
    return Target(**{**given, **more})


# -- what is published --------------------------------------------------------------------------------------------
def test_made_up_tables_have_the_published_margins_and_the_assumed_effects(plan, published):
    from shared.estimands.answer import estimate

    question = parse_estimand(plan.estimands["treatment"])
    table = made_up(replace(published, between=0.0), question, plan.dictionary, 40_000, np.random.default_rng(3))
    assert list(table.columns) == [n for n in plan.dictionary.names if n in question.columns]
    assert table["died"].mean() == pytest.approx(0.2, abs=0.01)
    assert table["age"].mean() == pytest.approx(70, abs=0.5)
    assert table["age"].std() == pytest.approx(12, abs=0.5)
    assert (table["sex"] == "male").mean() == pytest.approx(0.52, abs=0.01)
    rows = {row.term: row for row in estimate(table, question, study="s", site="a", wave=1)}
    assert rows["age/10"].yi == pytest.approx(0.4, abs=4 * rows["age/10"].vi ** 0.5)
    assert rows["treated"].yi == pytest.approx(-0.3, abs=4 * rows["treated"].vi ** 0.5)


OUTCOMES = {
    "cox(time, died) ~ treated + age/10": "[columns.died]\nshare = 0.3\n[columns.time]\nmean = 200",
    "ols(sbp) ~ treated + age/10": "[columns.sbp]\nmean = 150\nsd = 25",
    "poisson(visits) ~ treated + age/10": "[columns.visits]\nmean = 3\nsd = 3.5",
}


@pytest.mark.parametrize("formula", OUTCOMES)
def test_each_type_of_outcome_is_made_up_at_its_published_level(plan, formula):
    from shared.estimands.answer import estimate

    visits = Column(name="visits", kind="integer", lower=0, upper=100)
    sbp = Column(name="sbp", kind="continuous", lower=50, upper=300, decimals=0)
    others = tuple(column for column in plan.dictionary.columns if column.name != "sbp")
    dictionary = replace(plan.dictionary, columns=(*others, sbp, visits))
    question = parse_estimand(formula)
    covariates = "[columns.treated]\nshare = 0.4\n[columns.age]\nmean = 70\nsd = 12\n"
    effects = "[effects]\ntreated = 0.5\n" if "sbp" not in formula else "[effects]\ntreated = 8.0\n"
    found = Published.read(covariates + OUTCOMES[formula] + "\n" + effects, question, dictionary)
    table = made_up(found, question, dictionary, 20_000, np.random.default_rng(5))
    dictionary_ = replace(dictionary, columns=tuple(c for c in dictionary.columns if c.name in question.columns))
    dictionary_.check(table)  # every value is one that the dictionary allows
    for name, margin in found.columns.items():
        if margin.shares:
            assert (table[name] == 1).mean() == pytest.approx(margin.shares[1], abs=0.015)
        elif name != "time":
            assert table[name].mean() == pytest.approx(margin.mean, rel=0.03)
            assert table[name].std() == pytest.approx(margin.sd, rel=0.08)
    row = next(r for r in estimate(table, question, study="s", site="a", wave=1) if r.term == "treated")
    assert row.yi == pytest.approx(found.effects["treated"], abs=4.5 * row.vi**0.5)


WRONG = {
    "no margin of a column": (MARGINS.replace("[columns.sex]\nshare = 0.52\n", ""), "every column of the question"),
    "no such column": (MARGINS + "\n[columns.weight]\nmean = 3\nsd = 1\n", "known names"),
    "a mean outside the bounds": (MARGINS.replace("mean = 70", "mean = 7"), "within the dictionary's bounds"),
    "a share above 1": (MARGINS.replace("share = 0.52", "share = 1.2"), "sum to 1"),
    "an effect of no term": (MARGINS.replace("treated = -0.3", "arm = -0.3"), "terms as the question writes them"),
    "no TOML": ("[columns.died\n", "TOML"),
    "a text for a number": (MARGINS.replace("sd = 12", 'sd = "twelve"'), "must be a number"),
    "an impossible correlation": (MARGINS + '\n[correlations]\n"age, sex" = 1.0\n', "between -1 and 1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_margins_are_refused_with_what_must_hold(plan, what):
    text, rule = WRONG[what]
    with pytest.raises(ParameterError, match=rule):
        Published.read(text, parse_estimand(plan.estimands["treatment"]), plan.dictionary)


MISSING = MARGINS.replace("sd = 12", "sd = 12\nmissing = 0.25").replace("share = 0.52", "share = 0.52\nmissing = 0.1")


def with_gaps(plan: StudyPlan) -> StudyPlan:
    """The plan with age and sex released where they are missing, too."""
    columns = [replace(c, missing="level") if c.name in ("age", "sex") else c for c in plan.dictionary.columns]
    return replace(plan, dictionary=replace(plan.dictionary, columns=tuple(columns)))


def test_a_published_share_of_missing_values_is_missing_from_made_up_tables_and_widens_the_interval(plan, published):
    gaps = with_gaps(plan)
    question = parse_estimand(plan.estimands["treatment"])
    found = Published.read(MISSING, question, gaps.dictionary)
    table = made_up(found, question, gaps.dictionary, 20_000, np.random.default_rng(3))
    assert table["age"].isna().mean() == pytest.approx(0.25, abs=0.015)
    assert table["sex"].isna().mean() == pytest.approx(0.1, abs=0.01)
    assert table["age"].mean() == pytest.approx(70, abs=0.5)  # of those who have one
    assert not table[["died", "treated"]].isna().any().any()
    columns = tuple(c for c in gaps.dictionary.columns if c.name in question.columns)
    replace(gaps.dictionary, columns=columns).check(table)
    questions = {"treatment": plainly(plan.estimands["treatment"], plan.dictionary)}
    for name in ("latent_noise_local", "tables"):
        setting = Setting(name=name, epsilon=4.0)
        full, fewer = (
            simulated(gaps, setting, questions, one, n=800, sites=3, seed=1)["treatment: treated"].at(800)[0]
            for one in (published, found)
        )
        assert fewer > 1.15 * full  # 675 of 1000 have both values


def test_missing_values_that_the_plan_does_not_release_have_no_published_share(plan):
    with pytest.raises(ParameterError, match="releases no missing value") as refused:
        Published.read(MISSING, parse_estimand(plan.estimands["treatment"]), plan.dictionary)
    assert "count as persons" in refused.value.next_step
    wrong = MISSING.replace("missing = 0.25", "missing = 1.0")
    with pytest.raises(ParameterError, match="below 1"):
        Published.read(wrong, parse_estimand(plan.estimands["treatment"]), with_gaps(plan).dictionary)


def test_the_template_asks_for_missing_values_where_the_plan_releases_them(plan):
    question = parse_estimand(plan.estimands["treatment"])
    assert "missing" not in margins_template(question, plan.dictionary)
    assert margins_template(question, with_gaps(plan).dictionary).count("missing =") == 2


def test_the_template_names_every_column_and_guesses_nothing(plan):
    text = margins_template(parse_estimand(plan.estimands["treatment"]), plan.dictionary)
    for name in ("died", "treated", "age", "sex"):
        assert f"[columns.{name}]" in text
    with pytest.raises(ParameterError):  # as it stands it is no answer
        Published.read(text, parse_estimand(plan.estimands["treatment"]), plan.dictionary)


# -- predictions --------------------------------------------------------------------------------------------------
def test_half_width_is_that_of_the_products_own_pooling():
    from coordinator.pooling.pool import pool

    rng = np.random.default_rng(11)
    achieved = []
    for _ in range(200):
        result = pool(math.sqrt(0.02 + 0.01) * rng.standard_normal(6), np.full(6, 0.02))
        achieved.append((result.ci_ub - result.ci_lb) / 2)
    assert half_width(0.02, 0.0, sites=6, between=0.1) == pytest.approx(
        predicted.REAL_SITES * np.median(achieved), rel=0.08
    )


def test_power_agrees_with_the_share_of_simulated_intervals_that_leave_out_no_effect():
    from coordinator.pooling.further.many import pool_many

    rng = np.random.default_rng(12)
    yi = 0.25 + 0.2 * rng.standard_normal((3000, 10))
    found = pool_many(yi, np.full_like(yi, 0.04))
    seen = float((found.ci_lb > 0).mean() + (found.ci_ub < 0).mean())
    assert power(0.25, half_width(0.04, 0.0, sites=10, between=0.0), sites=10) == pytest.approx(seen, abs=0.06)


def test_the_target_of_a_power_is_the_half_width_that_reaches_it():
    wanted = target(half_width=None, effect=0.3, power=0.8).wanted
    assert power(0.3, wanted, sites=8) == pytest.approx(0.8, abs=0.01)


def test_a_setting_is_simulated_by_the_plans_own_mechanism(plan, published):
    questions = {"treatment": plainly(plan.estimands["treatment"], plan.dictionary)}
    found = {
        epsilon: simulated(plan, Setting(name="tables", epsilon=epsilon), questions, published, n=500, sites=2, seed=1)[
            "treatment: treated"
        ]
        for epsilon in (1.0, 4.0)
    }
    assert found[4.0].privacy < found[1.0].privacy / 4  # a quarter of the noise's standard deviation
    assert found[1.0].at(500, 4.0)[0] == pytest.approx(found[4.0].at(500)[0], rel=0.35)


def test_latent_noise_is_as_wide_as_its_interval_says(plan, published):
    questions = {"treatment": plan.estimands["treatment"]}
    local = simulated(
        plan, Setting(name="latent_noise_local", epsilon=0.5), questions, published, n=800, sites=3, seed=1
    )
    alone = predicted.records(plan, questions, published, n=800, seed=1)
    ratio = local["treatment: treated"].at(800)[0] / alone["treatment: treated"]
    assert 1.7 < ratio < 2.3  # at w near 0 rows of a flow fitted on them: twice what the records say
    apart = simulated(
        plan, Setting(name="latent_noise_holdout", epsilon=0.5), questions, published, n=800, sites=3, seed=1
    )
    assert apart["treatment: treated"].at(800)[0] > 1.5 * local["treatment: treated"].at(800)[0]


def test_what_moments_would_answer_from_made_rows_is_not_predicted(plan, published):
    questions = {"treatment": plan.estimands["treatment"], "crude": "logistic(died) ~ treated"}
    found = simulated(
        plan, Setting(name="moments", epsilon=4.0), {k: plainly(v, plan.dictionary) for k, v in questions.items()},
        published, n=300, sites=2, seed=1,
    )  # fmt: skip
    assert not found["treatment: treated"].lost
    assert "planned model alone" in found["crude: treated"].lost


# -- the design ---------------------------------------------------------------------------------------------------
@pytest.fixture
def quick(monkeypatch):
    """Tables and latent noise alone: moments are simulated elsewhere."""
    kept = {name: covered for name, covered in predicted.SETTINGS.items() if name != "moments"}
    monkeypatch.setattr(design, "SETTINGS", kept)


def test_a_design_recommends_the_least_epsilon_of_what_covers_enough(plan, published, quick, tmp_path):
    known = Simulations(tmp_path / "kept.jsonl")
    found = designed(plan, target(), published, known=known, seconds=0)
    assert found.stage == "first"
    assert found.recommended is not None
    assert found.recommended.setting == "tables"
    assert found.recommended.half_width <= 0.35 * 1.01
    tables = [point for point in found.points if point.setting == "tables"]
    assert [p.half_width for p in tables] == sorted(p.half_width for p in tables)  # ε falls, intervals widen
    below = [p for p in tables if p.epsilon < found.recommended.epsilon / 1.5]
    assert below
    assert min(p.half_width for p in below) > 0.35
    made = written(plan, target(), found.recommended)
    _, lines = review(_toml(made), today=TODAY, recipient="hub")
    assert [line for line in lines if line.state == "fail"] == []
    assert made.expected is not None
    assert (made.expected.sites, made.expected.persons) == (8, 500)
    assert set(made.dictionary.names) == {"died", "treated", "age", "sex"}  # what is asked, and nothing else


def _toml(plan: StudyPlan) -> str:
    from coordinator.answers.waves import draft

    return draft(plan)


def test_what_nothing_reaches_has_no_recommendation_and_says_what_the_records_would_give(plan, published, quick):
    found = designed(plan, target(half_width=0.02), published, seconds=0)
    assert found.recommended is None
    assert not found.least
    assert found.best is not None
    assert found.best > 0.02
    assert "even at" in found.without["tables"]


def test_later_waves_that_bring_persons_lower_the_price(plan, published, quick):
    once = designed(plan, target(), published, seconds=0).least["tables"]
    more = designed(plan, target(later=500), published, seconds=0).least["tables"]
    assert more.epsilon < once.epsilon
    assert more.wave > 1


def test_a_run_takes_up_what_an_earlier_one_simulated_and_survives_a_torn_line(
    plan, published, quick, tmp_path, monkeypatch
):
    path = tmp_path / "kept.jsonl"
    before = designed(plan, target(), published, known=Simulations(path), seconds=0)
    path.write_text(path.read_text() + '{"key": "ab')

    def never(*_, **__):
        raise AssertionError("simulated again")

    monkeypatch.setattr(design, "simulated", never)
    after = designed(plan, target(), published, known=Simulations(path), seconds=0)
    assert after == before
    wider = designed(plan, target(half_width=0.5), published, known=Simulations(path), seconds=0)
    assert wider.least["tables"].epsilon < before.least["tables"].epsilon  # another target needs nothing new


def test_refining_ends_where_nothing_moves_and_keeps_to_its_time(plan, published, quick, monkeypatch):
    monkeypatch.setattr(design, "MORE_SITES", 3)
    told: list[str] = []
    found = designed(plan, target(), published, seconds=60, progress=told.append)
    assert found.stage == "refined"
    assert any("3 sites" in words for words in told)
    assert len(told) < 16


# -- the verb -----------------------------------------------------------------------------------------------------
def test_the_verb_writes_a_plan_that_passes_its_check_and_draws_the_frontier(tmp_path, quick, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stroke.toml").write_text(template("stroke", coordinator="hub", today=TODAY))
    assert main(["plan", "design", "stroke.toml", "--template", "margins.toml"]) == 0
    assert "[columns.age]" in (tmp_path / "margins.toml").read_text()
    (tmp_path / "m.toml").write_text(MARGINS)
    capsys.readouterr()
    said = ["plan", "design", "stroke.toml", "--margins", "m.toml", "--effect", "0.55", "--sites", "8"]
    said += ["--persons", "500", "--seconds", "0", "--json"]
    assert main([*said, "--out", "designed.toml", "--picture", "frontier.svg"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recommended"]["setting"] == "tables"
    assert answer["recommended"]["power"] >= 0.79
    assert answer["written"]
    assert answer["file"] == "designed.toml"
    assert "ε charged to a person" in (tmp_path / "frontier.svg").read_text()
    assert StudyPlan.from_toml((tmp_path / "designed.toml").read_text()).release.mechanism == "tables"
    assert main([*said, "--out", "designed.toml"]) != 0  # nothing is written over
    assert "must be new" in capsys.readouterr().out
    assert main(["plan", "design", "stroke.toml", "--half-width", "1.2", "--json"]) != 0
    assert "--template" in json.loads(capsys.readouterr().out)["refused"]["next_step"]
    assert main(["plan", "design", "stroke.toml", "--margins", "m.toml", "--half-width", "0.2", "--sites", "8",
                 "--persons", "500", "--json"]) != 0  # fmt: skip
    assert "must be a factor above 1" in json.loads(capsys.readouterr().out)["refused"]["must"]


def test_a_site_variance_scales_with_persons_and_noise():
    rows = SiteVariance(n=100, epsilon=1.0, sampling=0.02, privacy=0.02, sums=False)
    assert rows.at(200, 5.0)[0] == pytest.approx(0.02)  # of rows ε is not a scale: they are simulated at each


def test_a_plan_of_a_setting_keeps_the_floors_and_the_calendar(plan):
    made = plan_of(plan, Setting(name="moments", epsilon=2.0), {"treatment": "logistic(died) ~ treated + age/10 + sex"})
    assert (made.floors, made.waves, made.posture) == (plan.floors, plan.waves, "private")
    assert made.release.declared == ("treated", "age", "sex")  # type: ignore[attr-defined]
    assert isinstance(made.dictionary, Dictionary)
