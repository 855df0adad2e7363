"""Models of several rows of a person: statsmodels' and R's numbers, influences by person, reasons, a release."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.plans.repeated import HEAD, VISITS, planned

from coordinator.planning.review import review
from coordinator.pooling.intervals import Draw, effective_order, parts, with_release_variance
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand
from shared.estimands.effects import in_words
from shared.estimands.fits.clustered import ClusterSums, estimating_equations, random_intercept
from shared.estimands.formulas import LongRows
from shared.plans.plan import StudyPlan

HERE = Path(__file__).parents[2] / "reference"
MONTHS = (0, 6, 12)
QUESTION = "gee(sbp, repeated = c(sbp, visit = c(0, 6, 12))) ~ visit/6 + arm"


def wide(n: int = 300, seed: int = 1, missing: float = 0.2) -> pd.DataFrame:
    """Three visits of n persons: pressure, whether it is high, and a count; some did not take place."""
    rng = np.random.default_rng(seed)
    drug, own = rng.integers(0, 2, n), rng.normal(0, 9, n)
    out: dict[str, object] = {"arm": pd.Categorical(np.where(drug, "drug", "control"), ["control", "drug"])}
    for k, month in enumerate(MONTHS, start=1):
        sbp = 140 + own - 0.3 * month - 4 * drug + rng.normal(0, 8, n)
        there = rng.random(n) >= missing
        out[f"sbp_{k}"] = np.where(there, sbp.round(), np.nan)
        out[f"high_{k}"] = np.where(there, sbp > 138, np.nan)
        out[f"falls_{k}"] = np.where(there, rng.poisson(np.exp(0.2 + own / 20 - 0.3 * drug)), np.nan)
    return pd.DataFrame(out)


def long(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each visit that took place."""
    columns = {"sbp", "high", "falls"}
    parts_ = [
        table[["arm"]].assign(person=range(len(table)), visit=month, **{one: table[f"{one}_{k}"] for one in columns})
        for k, month in enumerate(MONTHS, start=1)
    ]
    return pd.concat(parts_, ignore_index=True).dropna()


def by_statsmodels(table: pd.DataFrame, outcome: str, family: str, corstr: str):
    import statsmodels.api as sm

    x = np.column_stack([np.ones(len(table)), table.visit, table.arm == "drug"]).astype(float)
    law = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}[family]()
    alike = {"exchangeable": sm.cov_struct.Exchangeable, "independence": sm.cov_struct.Independence}[corstr]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sm.GEE(table[outcome].astype(float), x, groups=table.person, family=law, cov_struct=alike).fit(
            ctol=1e-12, maxiter=500
        )


# -- numbers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("corstr", ["exchangeable", "independence"])
@pytest.mark.parametrize(("outcome", "family"), [("sbp", "gaussian"), ("high", "binomial"), ("falls", "poisson")])
def test_a_marginal_model_is_that_of_statsmodels_on_long_rows_and_on_one_row_each(outcome, family, corstr):
    table = wide()
    rows = long(table).sample(frac=1, random_state=4)  # the order of rows is nothing
    theirs = by_statsmodels(rows.sort_values("person"), outcome, family, corstr)
    how = {"family": family, "corstr": corstr}
    ours = estimate(rows, "gee", f"{outcome} ~ visit + arm", cluster="person", **how)
    repeated = f"c({outcome}, visit = c(0, 6, 12))"
    of_wide = estimate(table, "gee", f"{outcome} ~ visit + arm", repeated=repeated, **how)
    for found in (ours, of_wide):
        np.testing.assert_allclose(found.beta, theirs.params, rtol=1e-6)
        np.testing.assert_allclose(found.se, theirs.bse, rtol=1e-6)
        if corstr == "exchangeable":
            assert found.attrs["correlation"] == pytest.approx(theirs.cov_struct.dep_params, rel=1e-6)
    assert of_wide.n.unique().tolist() == [rows.person.nunique()]  # persons
    assert of_wide.attrs["rows"] == len(rows)
    assert of_wide.attrs["n_missing"] == len(table) - rows.person.nunique()


def test_a_random_intercept_is_that_of_nlme_and_statsmodels():
    import statsmodels.api as sm

    answers = json.loads((HERE / "clustered.json").read_text(encoding="utf-8"))
    table = pd.DataFrame(answers["rows"])
    ours = estimate(table, "mixed", "distance ~ age + sex", cluster="child", levels={"sex": ["Female", "Male"]})
    assert ours.beta.to_numpy() == pytest.approx(list(answers["beta"].values()), rel=1e-6)
    assert ours.se.to_numpy() == pytest.approx(list(answers["se"].values()), rel=1e-6)
    assert ours.attrs["correlation"] == pytest.approx(answers["correlation"], rel=1e-5)
    table = long(wide())
    x = np.column_stack([np.ones(len(table)), table.visit, table.arm == "drug"]).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sm.MixedLM(table.sbp, x, groups=table.person).fit(reml=True, gtol=1e-10, method="bfgs")
    ours = estimate(table, "mixed", "sbp ~ visit + arm", cluster="person")
    np.testing.assert_allclose(ours.beta, theirs.fe_params, rtol=1e-6)


def test_persons_that_are_no_more_alike_than_others_have_the_answer_of_least_squares():
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"person": np.arange(400) // 4, "x": rng.normal(size=400)})
    table["y"] = table.x + rng.normal(size=400) - table.person % 2 * 0
    table["y"] -= table.groupby("person").y.transform("mean") - table.x
    mixed = estimate(table, "mixed", "y ~ x", cluster="person")
    plain = estimate(table, "ols", "y ~ x")
    np.testing.assert_allclose(mixed[["beta", "se"]], plain[["beta", "se"]], rtol=1e-6)
    assert mixed.attrs["correlation"] == 0


@pytest.mark.parametrize("text", [QUESTION, QUESTION.replace("gee(", "mixed(")])
def test_leaving_a_person_out_moves_an_answer_by_the_persons_influence(text):
    table, question = wide(200, 3), parse_estimand(text)
    whole = {row.term: row.yi for row in estimate(table, question)}
    pushes = influence(table, question)
    assert set(pushes) == {"intercept", "visit/6", "arm[drug]"}
    for term in ("visit/6", "arm[drug]"):
        left = [next(row.yi for row in estimate(table.drop(index=i), question) if row.term == term) for i in range(40)]
        np.testing.assert_allclose(whole[term] - np.array(left), pushes[term][:40], atol=0.1 * pushes[term].std())
        assert abs(pushes[term].sum()) < 1e-8
    if question.kind == "gee":
        (row,) = [row for row in estimate(table, question) if row.term == "visit/6"]
        assert row.vi == pytest.approx(pushes["visit/6"] @ pushes["visit/6"], rel=1e-9)
    robust = estimate(table, replace(question, robust="HC0")) if question.kind == "mixed" else []
    assert all(row.vi == pytest.approx(pushes[row.term] @ pushes[row.term], rel=1e-9) for row in robust)


def test_a_baseline_value_is_a_covariate_and_a_subset_is_of_rows():
    table = wide()
    adjusted = parse_estimand(QUESTION.replace("~ visit/6", "~ sbp_1 + visit/6"))
    assert adjusted.columns == ("sbp_1", "sbp_2", "sbp_3", "arm")
    assert next(iter(estimate(table, adjusted))).yi > 0.3
    later = estimate(table, parse_estimand(QUESTION.replace("sbp,", "sbp, subset = visit > 0,", 1)))
    rows = long(table)
    kept = rows[rows.visit > 0]
    plain = estimate(kept, "gee", "sbp ~ visit/6 + arm", cluster="person")
    assert [row.yi for row in later] == pytest.approx(plain.beta.iloc[1:].tolist(), rel=1e-9)
    assert later[0].n == kept.person.nunique()
    assert later[0].n_outside + later[0].n + later[0].n_missing == len(table)
    words = [in_words(parse_estimand(QUESTION), row.term, planned().dictionary) for row in later]
    assert words[1] == "Difference in systolic pressure (mmHg), treatment: drug against control"


# -- reasons -----------------------------------------------------------------------------------------------------
def test_what_has_no_answer_has_a_reason_and_never_a_number():
    table = wide(60, 5)

    def reasons(changed: pd.DataFrame, text: str = QUESTION, **more) -> set[str]:
        rows = estimate(changed, parse_estimand(text), **more)
        assert all(row.yi is None for row in rows)
        return {row.reason for row in rows}

    assert reasons(table.head(11)) == {"11 clusters for 3 parameters: fewer than 10 more tell no error"}
    alone = table.assign(sbp_2=np.nan, sbp_3=np.nan)
    assert any("pairs of rows of one person" in one for one in reasons(alone))
    assert reasons(table.assign(sbp_1=120, sbp_2=120, sbp_3=120)) == {"the outcome is constant at this site"}
    own = 120 + np.arange(60.0) % 7
    alike = table.assign(sbp_1=own, sbp_2=own, sbp_3=own)
    assert any("no solution that was found" in one for one in reasons(alike))
    drug = (table.arm == "drug") * 2.0
    for kind in ("gee(sbp", "mixed(sbp", "gee(sbp, family = poisson"):
        told = table.assign(sbp_1=2 + drug, sbp_2=2 + drug, sbp_3=2 + drug)
        text = QUESTION.replace("gee(sbp", kind).replace("visit/6 + ", "")
        assert reasons(told, text) == {"the terms determine the outcome: there is no residual variance"}
    nobody = table.assign(sbp_1=np.nan, sbp_2=np.nan, sbp_3=np.nan)
    assert "no complete rows at this site" in reasons(nobody)
    split = table.assign(**{f"high_{k}": (table.arm == "drug").astype(float) for k in (1, 2, 3)})
    high = "gee(high, family = binomial, repeated = c(high, visit = c(0, 6, 12))) ~ arm"
    assert any("no finite estimate" in one for one in reasons(split, high))
    same = estimate(table.assign(copy=(table.arm == "drug") * 2.0), parse_estimand(QUESTION + " + copy"))
    assert [row.reason for row in same if row.yi is None] == [
        "collinear with copy at this site",
        "collinear with arm[drug] at this site",
    ]
    worse = table.assign(sbp_1=100, sbp_2=table.sbp_2 + 500 * (np.arange(60) % 2), sbp_3=np.nan)
    assert any(
        "no solution that was found" in one for one in reasons(worse.assign(sbp_1=worse.sbp_2.max() * 2 - worse.sbp_2))
    )
    with pytest.raises(EstimateRefusal, match="whose rows are one person's"):
        estimate(long(table), "gee", "sbp ~ visit")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gee(sbp, family = gamma, cluster = person) ~ visit", "family must be one of"),
        ("gee(sbp, corstr = ar1, cluster = person) ~ visit", "corstr must be one of"),
        ("gee(sbp, cluster = person, repeated = c(sbp, 3)) ~ visit", "a person's, or a cluster's"),
        ("gee(sbp, repeated = c(sbp)) ~ visit", "repeated must be"),
        ("gee(sbp, repeated = sbp) ~ visit", "repeated must be"),
        ("gee(sbp, repeated = c(sbp, visit = c(0, 0.5))) ~ visit", "a visit must be a level"),
        ("mixed(sbp, cluster = person, robust = HC3) ~ visit", "must be HC0"),
        ("ols(sbp, repeated = c(sbp, 3)) ~ visit", "takes the options"),
    ],
)
def test_a_question_that_cannot_be_is_refused_when_it_is_made(text, words):
    with pytest.raises(ParameterError) as refused:
        parse_estimand(text)
    assert words in str(refused.value)


def test_visits_in_words_are_a_factor_and_a_text_reads_itself():
    found = LongRows.read('c(sbp, visit = c("first", "last"))')
    assert LongRows.read(found.text) == found
    table = wide().rename(columns={"sbp_3": "sbp_2", "sbp_2": "gone"})
    rows = estimate(table, parse_estimand(f"gee(sbp, repeated = {found.text}) ~ visit + arm"))
    assert [row.term for row in rows] == ["visit[last]", "arm[drug]"]
    assert LongRows.read("c(sbp, visit = c(-1, 0))").levels == (-1, 0)


# -- a plan, and its releases --------------------------------------------------------------------------------------
def test_a_plan_says_which_columns_are_repeated():
    repeated = planned().dictionary.repeated
    question = parse_estimand("gee(sbp) ~ visit/6 + arm").with_rows(repeated)
    assert str(question) == QUESTION
    assert question.with_rows(repeated) == question
    assert str(parse_estimand("mixed(sbp) ~ arm").with_rows(repeated)) == "mixed(sbp, repeated = c(sbp, 3)) ~ arm"
    assert parse_estimand("ols(sbp_1) ~ arm").with_rows(repeated) == parse_estimand("ols(sbp_1) ~ arm")
    for visits in ("0, 12", "12, 6, 0"):  # row 2 is of month 6, whatever a question calls it
        with pytest.raises(ParameterError, match="the plan's levels"):
            parse_estimand(QUESTION.replace("0, 6, 12", visits)).with_rows(repeated)
    first = parse_estimand(QUESTION.replace("0, 6, 12", "0, 6"))
    assert first.with_rows(repeated) == first
    with pytest.raises(ParameterError, match="an outcome that is repeated"):
        parse_estimand("gee(arm) ~ visit").with_rows(repeated)
    import datetime as dt

    text = HEAD.replace("[budget]", '[estimands]\nslope = "gee(sbp) ~ visit/6 + arm"\n\n[budget]') + VISITS
    _, lines = review(text, today=dt.date(2026, 1, 1))
    assert [line.state for line in lines if line.name == "estimand slope"] == ["ok"]
    _, lines = review(text.replace("gee(sbp)", "gee(arm)"), today=dt.date(2026, 1, 1))
    assert [line.state for line in lines if line.name == "estimand slope"] == ["fail"]


@pytest.mark.parametrize("kind", ["gee", "mixed"])
def test_the_noise_of_a_release_is_that_of_persons_and_its_order_is_found(kind):
    table, question = wide(600, 7), parse_estimand(QUESTION.replace("gee(", f"{kind}("))
    rows = estimate(table, question)
    drawn = with_release_variance(rows, table, question, [Draw(rows=600, w=0.0, fitted_on=600)])
    for before, after in zip(rows, drawn, strict=True):
        assert after.vi_sampling == pytest.approx(before.vi, rel=1e-9)
        assert after.vi_privacy == pytest.approx(before.vi * before.sandwich_ratio, rel=1e-9)
        assert not after.warnings
    orders = effective_order(table, question, 0.8)
    assert set(orders) == {"intercept", "visit/6", "arm[drug]"}
    assert all(0.9 < order < 6 for order in orders.values())
    whole = effective_order(wide(600, 7, missing=0), question, 0.8)
    assert whole["visit/6"] == pytest.approx(1, abs=0.1)  # differences between visits are linear in the latents
    kept = with_release_variance(rows, table, question, [Draw(rows=600, w=0.8, fitted_on=600)])
    for before, after in zip(rows, kept, strict=True):
        sampling, privacy = parts(before.vi, [Draw(rows=600, w=0.8, fitted_on=600)], orders[before.term])
        assert (after.vi_sampling, after.vi_privacy) == (
            pytest.approx(sampling),
            pytest.approx(privacy * before.sandwich_ratio),
        )


def test_solvers_say_when_there_is_no_answer():
    x = np.column_stack([np.ones(40), np.tile([0.0, 1.0], 20)])
    clusters = ClusterSums.of_labels(np.repeat(np.arange(20), 2))
    # Two rows of one sum: a correlation of -1.
    y = np.tile([1.0, -1.0], 20) * np.repeat(np.arange(1.0, 21.0), 2)
    fit, alpha = estimating_equations(x, y, clusters)
    assert alpha <= -1
    assert not fit.converged
    assert random_intercept(x, y, clusters)[1] == 0


# -- the doors -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def hub(tmp_path_factory, database):
    """Three sites of a study with three visits, asked over the wire."""
    from stage.coordinator_side.analysis import Desk

    made = Desk(tmp_path_factory.mktemp("hub"))
    text = HEAD.replace('coordinator = "hub"', 'coordinator = "tributary-hub"')
    text = text.replace("[budget]", '[estimands]\nslope = "gee(sbp) ~ visit/6 + arm"\n\n[budget]')
    plan = StudyPlan.from_toml(text + VISITS)
    made.publish(plan)
    for seed, site in enumerate(("north", "south", "west")):
        made.add("pressure", site, wide(300, seed)[list(plan.dictionary.names)])
    made.start()
    yield made
    made.stop()


def test_python_and_the_command_lines_ask_of_a_persons_rows_what_the_plan_calls_repeated(hub, capsys):
    from coordinator import cli
    from coordinator.analyst import commands
    from coordinator.analyst.commands import connect

    given = hub.admit(studies=("pressure",))
    file = str(hub.save(given))
    with connect(given) as connection:
        study = connection["pressure"]
        asked = {
            ("gee", "sbp ~ visit/6 + arm"): study.gee("sbp ~ visit/6 + arm"),
            ("gee", "sbp ~ C(visit) + arm", "--corstr", "independence"): study.gee(
                "sbp ~ C(visit) + arm", corstr="independence"
            ),
            ("mixed", "sbp ~ visit/6 + arm"): study.mixed("sbp ~ visit/6 + arm"),
            ("gee", "I(sbp > 140) ~ arm", "--family", "binomial"): study.gee("I(sbp > 140) ~ arm", family="binomial"),
            ("ols", "sbp_3 ~ sbp_1 + arm"): study.ols("sbp_3 ~ sbp_1 + arm"),
        }
        for (kind, *rest), answer in asked.items():
            assert commands.main([kind, "pressure", *rest, "--token", file, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == answer.document
            assert answer.document["k"] == 3
        first = asked["gee", "sbp ~ visit/6 + arm"].document
        assert first["estimand"] == QUESTION
        assert {row["n"] for row in first["estimates"]} < set(range(200, 301))  # persons
        [joint] = asked["gee", "sbp ~ C(visit) + arm", "--corstr", "independence"].document["joint"]
        assert joint["terms"] == ["C(visit)[6]", "C(visit)[12]"]
        assert study.query("", "slope").document["estimates"] == first["estimates"]
        assert (
            cli.main(["--home", str(hub.home), "pool", "pressure", "--estimand", "slope", "--wave", "1", "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out)["estimates"] == first["estimates"]
        with pytest.raises(ParameterError, match="repeated column") as refused:
            study.ols("sbp ~ arm")
        assert "gee(sbp)" in str(refused.value)
        curve = study.gee("sbp ~ ns(visit, df = 2) + arm")
        assert "knots" in curve.document["estimand"]


def _figures_of(name: str) -> StudyPlan:
    from stage.plans.repeated import counted

    from shared.mechanisms.moments.plan import MomentsPlan
    from shared.mechanisms.slicing.plan import SlicingPlan

    plan = counted(VISITS.replace("270", "200").replace('missing = "level"', ""))
    if name == "moments":
        roles = {"responses": ("sbp_3",), "covariates": ["sbp_1", "sbp_2", "arm"], "declared": ["arm"]}
        return replace(plan, release=MomentsPlan(epsilon=3.0, outcome="linear", **roles))
    return plan if name == "tables" else replace(plan, release=SlicingPlan(epsilon=3.0))


@pytest.mark.parametrize("name", ["tables", "moments", "slicing"])
def test_noisy_figures_answer_with_their_noise_or_say_why_not(name):
    from shared.base.randomness import seeded_rng

    plan = _figures_of(name)
    table = wide(800, 9, missing=0)[list(plan.dictionary.names)]
    table = table.assign(**{f"sbp_{k}": table[f"sbp_{k}"].clip(upper=199) for k in (1, 2, 3)})
    records = replace(plan.dictionary, repeated=None).check(table.assign(person=[f"{i}" for i in range(len(table))]))
    noise = seeded_rng(5)
    figures = [(plan.release.draw(plan, plan.release.measure(plan, records, noise), noise), len(table))]
    question = parse_estimand("gee(sbp) ~ visit/6 + arm").with_rows(plan.dictionary.repeated)
    origin = {"study": "pressure", "site": "north", "wave": 1, "levels": {"arm": ("control", "drug")}}
    rows = plan.release.answer(plan, figures, question, **origin)
    assert {row.term for row in rows} == {"visit/6", "arm[drug]"}
    plain = {row.term: row for row in estimate(table, question)}
    for row in rows:
        assert (row.yi is None) == bool(row.reason)
        if row.yi is not None:
            assert row.vi + row.vi_common > 1.2 * plain[row.term].vi
            assert abs(row.yi - plain[row.term].yi) < 4 * (row.vi + row.vi_common) ** 0.5


@pytest.mark.parametrize("planned_", ["gee(arm) ~ visit", "Mean pressure, in words."])
def test_a_planned_analysis_that_is_no_question_stops_no_check_of_a_sealed_release(planned_):
    from shared.base.randomness import seeded_rng
    from site_agent.show import preview

    plan = replace(_figures_of("tables"), estimands={"slope": planned_})
    table = wide(800, 9, missing=0)[list(plan.dictionary.names)]
    table = table.assign(**{f"sbp_{k}": table[f"sbp_{k}"].clip(upper=199) for k in (1, 2, 3)})
    records = replace(plan.dictionary, repeated=None).check(table.assign(person=[f"{i}" for i in range(len(table))]))
    released = plan.release.draw(plan, plan.release.measure(plan, records, seeded_rng(5)), seeded_rng(6))
    assert plan.release.doubt(plan, released, len(table)) == ""
    [why] = preview.answers(plan, table).values()
    assert isinstance(why, str)


def test_a_release_of_a_site_answers_as_its_records_do(tmp_path):
    """From a file with a row for each visit to the answer: rows are persons, and half of the records is kept."""
    from stage.hospital_side.pipeline import TODAY, source
    from stage.mechanisms import postures
    from stage.plans.repeated import KEY

    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.plans.plan import Floors, Training
    from site_agent.records.table import read
    from site_agent.release.pipeline.making import make_release

    plan = replace(
        planned(),
        estimands={"slope": "gee(sbp) ~ visit/6 + arm"},
        release=LatentNoisePlan(w=0.5),
        training=Training(flows=1, hidden=8, epochs=1, outcomes="last"),
        floors=Floors(membership_auc=0.9, own_row_linkage=1.0, extreme_linkage=1.0),
    )
    rows = (
        long(wide(500, 11)).drop(columns=["high", "falls"]).assign(person=lambda table: "p" + table.person.astype(str))
    )
    file = source(tmp_path, rows)
    made = make_release(plan=plan, wave=1, source=file, site=postures.site(tmp_path), today=TODAY)
    assert made.receipt.n == len(made.table) == rows.person.nunique()
    assert tuple(made.table.columns) == plan.dictionary.names
    assert made.receipt.covered[-1].startswith("A person's record is all of their rows")
    question = parse_estimand("gee(sbp) ~ visit/6 + arm").with_rows(plan.dictionary.repeated)
    levels = {"arm": ["control", "drug"]}
    records = read(file, plan.dictionary, key=KEY).table
    records = records.assign(arm=pd.Categorical.from_codes(records.arm.astype(int), ["control", "drug"]))
    real = {row.term: row for row in estimate(records, question, levels=levels)}
    drawn = [Draw(rows=len(made.table), w=0.5, fitted_on=len(made.table), outcomes_last=True)]
    found = estimate(made.table, question, levels=levels)
    for row in with_release_variance(found, made.table, question, drawn, levels=levels):
        assert abs(row.yi - real[row.term].yi) < 4 * row.vi**0.5
    missing = made.table[["sbp_1", "sbp_2", "sbp_3"]].isna().mean().to_numpy()
    assert missing == pytest.approx(records[["sbp_1", "sbp_2", "sbp_3"]].isna().mean().to_numpy(), abs=0.06)
