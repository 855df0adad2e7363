"""Survival beyond the plain Cox model: late entry, robust and clustered errors, effects that change with time.

tests/reference/survival_make.R writes the reference; `python -m tests.both_sides.estimands.test_survival_models` the
table that it reads.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special

from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import joint_of_terms
from coordinator.pooling.pool import Pooling
from shared.errors import ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand, parse_formula
from shared.estimands.fits.accelerated import LAWS, accelerated
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.estimands.fits.subdistribution import fine_gray
from shared.estimands.fits.survival import kaplan_meier

HERE = Path(__file__).parents[2] / "reference"
LATE, PLAIN = "Surv(entry, time, event) ~ age + arm", "Surv(time, event) ~ age + arm"
STEPS = "Surv(entry, time, event) ~ age + by_time(arm, c(2, 5))"
ASKED = {
    "truncated": (LATE, {}),
    "truncated_breslow": (LATE, {"ties": "breslow"}),
    "truncated_strata": (f"{LATE} + strata(stage)", {}),
    "truncated_weights": (LATE, {"weights": "w"}),
    "robust": (PLAIN, {"robust": "HC0"}),
    "robust_truncated": (LATE, {"robust": "HC0"}),
    "cluster": (f"{PLAIN} + strata(stage)", {"cluster": "hospital"}),
    "steps": (STEPS, {}),
    "steps_cluster": (STEPS, {"cluster": "hospital"}),
}
CLUSTERED = {
    "logistic": "died ~ age + arm",
    "poisson": "k ~ age + arm + offset(log(years))",
    "ols": "cost ~ age + arm",
}


def made(n: int = 300, seed: int = 11) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 9, n).round(1), rng.integers(0, 2, n)
    stage, hospital = rng.integers(1, 4, n), rng.integers(0, 25, n)
    frailty = np.exp(0.4 * rng.normal(size=25))[hospital]
    rate = 0.12 * np.exp(0.03 * (age - 60) - 0.5 * arm) * frailty
    first, second = rng.weibull(1.3, n) / rate, rng.exponential(1 / 0.06, n)
    censored = rng.uniform(2, 12, n)
    time = np.minimum(np.minimum(first, second), censored).round(1).clip(0.1)
    event, other = (first <= second) & (first <= censored), (second < first) & (second <= censored)
    entry = np.where(rng.random(n) < 0.5, 0.0, time * rng.uniform(0, 0.9, n)).round(1)
    return pd.DataFrame(
        {
            "id": range(n),
            "entry": np.minimum(entry, (time - 0.1).round(1)).clip(0),
            "time": time,
            "event": event.astype(int),
            "other": other.astype(int),
            "age": age,
            "arm": arm,
            "stage": stage,
            "hospital": hospital,
            "w": rng.integers(1, 4, n),
        }
    )


@functools.cache
def reference() -> tuple[pd.DataFrame, dict]:
    return pd.read_csv(HERE / "survival.csv"), json.loads((HERE / "survival.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("strata", ["plain", "strata"])
def test_log_rank_of_each_level_is_survdiff_of_it_and_the_first_alone(strata):
    """Not of it and all other rows, whose hazards the mix of levels at a site would move."""
    table, numbers = reference()[0], json.loads((HERE / "logrank.json").read_text(encoding="utf-8"))
    question = "Surv(time, event) ~ stage" + (" + strata(arm)" if strata == "strata" else "")
    for level in ("2", "3"):
        row = estimate(table, "logrank", question, term=f"stage[{level}]")
        expected = numbers["pairs"][level][strata]
        assert (row.yi, row.vi) == (pytest.approx(expected["yi"], rel=1e-9), pytest.approx(expected["vi"], rel=1e-9))
    two = estimate(table, "logrank", PLAIN.replace("age + ", ""), term="arm[1]")
    assert (two.yi, two.vi) == tuple(pytest.approx(numbers["arm"][name], rel=1e-9) for name in ("yi", "vi"))
    test = estimate(table, "logrank", PLAIN.replace("age + arm", "stage"))
    assert test.attrs["chisq"] == pytest.approx(numbers["chisq"], rel=1e-9)
    assert test.observed.tolist() == numbers["observed"][1:]
    assert test.expected.tolist() == pytest.approx(numbers["expected"][1:], rel=1e-9)


def test_a_log_rank_needs_rows_of_the_first_level_and_events_of_each_pair():
    table, levels = reference()[0], {"stage": (1, 2, 3)}
    asked = parse_estimand("logrank(time, event) ~ stage")

    def reasons(rows: pd.DataFrame) -> dict[str, str]:
        return {row.term: row.reason for row in estimate(rows, asked, levels=levels, study="s", site="h", wave=1)}

    first = "stage has no rows at its reference level at this site"
    assert reasons(table[table.stage > 1]) == {"stage[2]": first, "stage[3]": first}
    assert reasons(table[table.stage != 2]) == {"stage[2]": "the level has no rows at this site", "stage[3]": ""}
    quiet = table.assign(event=np.where(table.stage < 3, 0, table.event))
    assert reasons(quiet)["stage[2]"] == "0 events in the level and the reference: too few"


def agrees(ours: pd.DataFrame, theirs: dict) -> None:
    np.testing.assert_allclose(ours.beta, list(theirs["beta"].values()), rtol=1e-6)
    np.testing.assert_allclose(ours.se, list(theirs["se"].values()), rtol=1e-6)


def test_the_table_is_the_one_that_r_read():
    pd.testing.assert_frame_equal(made(), reference()[0], check_dtype=False)


@pytest.mark.parametrize("name", ASKED)
def test_cox_models_are_those_of_r(name):
    table, answers = reference()
    formula, options = ASKED[name]
    agrees(estimate(table, "cox", formula, **options), answers["cox"][name])


@pytest.mark.parametrize("dist", LAWS)
def test_accelerated_failure_times_are_those_of_survreg(dist):
    table, answers = reference()
    theirs = answers["aft"][dist]
    names = ["(Intercept)", "age", "arm"]
    for options, known in (({}, theirs), ({"weights": "w"}, theirs["weighted"])):
        known = {part: {name: known[part][name] for name in names} for part in ("beta", "se")}
        agrees(estimate(table, "aft", PLAIN, dist=dist, **options), known)
    matrix = np.column_stack([np.ones(len(table)), table.age - 60, table.arm]).astype(float)
    fit = accelerated(matrix, table.time.to_numpy(float), table.event.to_numpy(float), dist)
    assert np.exp(fit.log_scale) == pytest.approx(theirs["scale"], rel=1e-6)
    if "Log(scale)" in theirs["se"]:
        assert fit.log_scale_se == pytest.approx(theirs["se"]["Log(scale)"], rel=1e-6)


@pytest.mark.parametrize("name", ["df2", "df3", "df4", "df3_weights", "df3_entry"])
def test_a_flexible_baseline_is_that_of_lifelines_likelihood(name):
    table, theirs = reference()[0], json.loads((HERE / "flexible.json").read_text(encoding="utf-8"))[name]
    df, _, more = name.removeprefix("df").partition("_")
    options = {"": {}, "weights": {"weights": "w"}, "entry": {"entry": "entry"}}[more]
    agrees(estimate(table, "flexible", PLAIN, df=df, **options), theirs)


def test_of_one_degree_of_freedom_a_flexible_baseline_is_survregs_weibull_law():
    table, answers = reference()
    weibull, ours = answers["weibull"], estimate(table, "flexible", PLAIN, df="1")
    for term in ("age", "arm"):
        assert ours.beta[term] == pytest.approx(-weibull["beta"][term] / weibull["scale"], rel=1e-6)
    later = table.assign(time=table.time * 365.25)  # in days
    in_days = estimate(later, "flexible", PLAIN, df="4")
    np.testing.assert_allclose(in_days.beta, estimate(table, "flexible", PLAIN, df="4").beta, rtol=1e-7)
    few = table.assign(time=np.ceil(table.time / 8) * 8)
    assert (
        "distinct event times for 5 degrees of freedom: too few"
        in estimate(few, "flexible", PLAIN, df="5").reason["age"]
    )


def test_a_subdistribution_hazard_is_that_of_finegray_and_without_ties_that_of_crr():
    table, answers = reference()
    ours = estimate(table, "finegray", PLAIN, competing="other")
    np.testing.assert_allclose(ours.beta, list(answers["finegray_breslow"]["beta"].values()), rtol=1e-6)
    apart = table.assign(time=table.time + table.id * 1e-6)
    agrees(estimate(apart, "finegray", PLAIN, competing="other"), answers["crr"])


def test_a_cause_specific_hazard_is_a_cox_model_of_the_one_cause():
    table, answers = reference()
    cause = np.where(table.event == 1, "relapse", np.where(table.other == 1, "death", "none"))
    formula = 'Surv(time, cause == "death") ~ age + arm'
    agrees(estimate(table.assign(cause=cause), "cox", formula), answers["cause_specific"])


def test_a_regression_of_restricted_means_is_that_of_rs_pseudo_values():
    table, answers = reference()
    agrees(estimate(table, "rmst_regression", PLAIN, tau=6), answers["rmst"])


@pytest.mark.parametrize("transform", ["identity", "log"])
def test_the_test_of_proportional_hazards_is_that_of_cox_zph(transform):
    table, answers = reference()
    ours = estimate(table, "schoenfeld", PLAIN, transform=transform)
    theirs = dict(answers["zph"][transform]["chisq"])
    assert ours.attrs["chisq"] == pytest.approx(theirs.pop("GLOBAL"), rel=1e-6)
    np.testing.assert_allclose((ours.beta / ours.se) ** 2, list(theirs.values()), rtol=1e-6)
    assert ours.attrs["p"] == pytest.approx(answers["zph"][transform]["p"]["GLOBAL"], rel=1e-6)


def test_the_test_of_proportional_hazards_knows_strata_late_entry_and_factors_and_pools_them_together():
    table, answers = reference()
    question = parse_formula("schoenfeld", f"{LATE.replace('arm', 'C(stage)')} + strata(arm)")
    theirs = answers["zph_truncated"]["chisq"]
    rows = estimate(table, question, site="A")
    assert [row.yi**2 / row.vi for row in rows] == pytest.approx(list(theirs.values())[:3], rel=1e-6)
    joint = {one["term"]: one for one in joint_of_terms(rows, question, Pooling(method="FE", test="z"))}
    assert list(joint) == ["C(stage)", "GLOBAL"]
    assert joint["GLOBAL"]["statistic"] == pytest.approx(theirs["GLOBAL"], rel=1e-6)


def test_a_landmark_analysis_is_of_those_still_followed_then():
    table, answers = reference()
    ours = estimate(table, "km", "Surv(time, event) ~ arm", at=4, subset="time > 2")
    known = np.array(answers["landmark"]["surv"])
    slope = 1 / (known * (1 - known))
    spread = slope * answers["landmark"]["se"]
    agrees(ours, {"beta": dict(enumerate(special.logit(known))), "se": dict(enumerate(spread))})
    started = estimate(table, "cox", PLAIN, start=2)
    agrees(estimate(table, "cox", PLAIN, subset="time > 2"), {"beta": dict(started.beta), "se": dict(started.se)})


def test_hazards_that_cross_are_found_by_the_test_and_the_change_is_the_one_that_was_made():
    rng = np.random.default_rng(5)
    arm, change = rng.integers(0, 2, 4000), 0.5
    # A hazard of t^0 in one arm and of t^change in the other has a log ratio of change × log t.
    draws = rng.exponential(size=4000)
    time = np.where(arm == 1, (draws * (1 + change)) ** (1 / (1 + change)), draws)
    table = pd.DataFrame({"time": np.minimum(time, 3), "event": (time < 3).astype(int), "arm": arm})
    row = estimate(table, "schoenfeld", "Surv(time, event) ~ arm", term="arm")
    assert row.yi / np.sqrt(row.vi) > 5
    assert row.yi == pytest.approx(change, abs=0.15)
    assert row.scale == "identity"


MOVED = {
    "finegray": ({"competing": "other"}, 0.1),
    "aft": ({}, 0.1),
    "flexible": ({}, 0.1),
    "rmst_regression": ({"tau": 6}, 0.1),
    "schoenfeld": ({}, 0.7),  # of a test's one step what a row does to the information is shared out
}


@pytest.mark.parametrize("kind", MOVED)
def test_what_a_row_moves_these_models_by_is_what_leaving_it_out_shows(kind):
    table, (options, near) = reference()[0], MOVED[kind]
    question = parse_formula(kind, PLAIN, **options)
    pushes = influence(table, question)
    whole = {row.term: row.yi for row in estimate(table, question)}
    left = {term: [] for term in whole}
    for i in range(0, 300, 12):
        for row in estimate(table.drop(i), question):
            left[row.term].append(whole[row.term] - row.yi)
    for term, shown in left.items():
        push = pushes[term][::12]
        assert np.corrcoef(push, shown)[0, 1] > 0.97
        np.testing.assert_allclose(push, shown, rtol=near, atol=0.12 * np.abs(shown).max())


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("aft(time, event) ~ age", "durations are 0: they have no logarithm"),
        ("flexible(time, event) ~ age", "durations are 0: they have no logarithm"),
        ("flexible(time, event, subset = time > 0) ~ safe", "no maximum"),
        ("schoenfeld(time, event) ~ age", "durations are 0: they have no logarithm"),
        ("rmst_regression(time, event, tau = 40) ~ age", "follow-up ends before 40 at this site"),
        ("rmst_regression(time, event, tau = 0.05) ~ age", "fewer than 5 events before 0.05"),
        ("finegray(time, event, competing = other, subset = event == 0) ~ age", "0 events for 1 terms: too few"),
        ("finegray(time, event, competing = other) ~ safe", "all events lie on one side"),
    ],
)
def test_a_model_that_has_no_answer_says_why_and_no_number(question, said):
    table = reference()[0]
    table = table.assign(time=table.time.where(table.id > 3, 0.0), event=table.event.where(table.id > 0, 1))
    table = table.assign(safe=((table.event == 0) & (table.id % 2 == 0)).astype(int))
    for row in estimate(table, parse_estimand(question)):
        assert row.yi is None
        assert said in row.reason


def test_an_incidence_that_rounding_keeps_from_1_has_no_logit():
    """Of 200 rows with an event each 200 terms are added: 1 less a rounding, whose logit would be 35."""
    n = 200
    table = pd.DataFrame({"time": np.arange(1.0, n + 1) / n, "event": np.ones(n), "other": np.zeros(n)})
    (row,) = estimate(table, parse_estimand("cuminc(time, event, competing = other, at = 1)"))
    assert row.yi is None
    assert row.reason == "incidence at 1 is 1 at this site: its logit is not finite"


READ_OFF = {"cumhaz": ({}, "cumhaz", np.log), "cuminc": ({"competing": "other"}, "aj", special.logit)}


@pytest.mark.parametrize("kind", READ_OFF)
def test_curves_read_off_at_a_time_are_those_of_r_with_their_errors(kind):
    table, answers = reference()
    options, name, scale = READ_OFF[kind]
    ours = estimate(table, kind, "Surv(time, event) ~ arm", at=4, **options)
    value = np.array(answers[name]["cumhaz" if kind == "cumhaz" else "pstate"])
    slope = 1 / value if kind == "cumhaz" else 1 / (value * (1 - value))
    agrees(ours, {"beta": dict(enumerate(scale(value))), "se": dict(enumerate(slope * answers[name]["se"]))})


@pytest.mark.parametrize("kind", READ_OFF)
def test_what_a_row_moves_a_curve_by_is_what_leaving_it_out_shows(kind):
    table = reference()[0]
    question = parse_formula(kind, "Surv(time, event) ~ arm", at=4, **READ_OFF[kind][0])
    pushes = influence(table, question)
    whole = {row.term: row.yi for row in estimate(table, question)}
    for i in (0, 3, 40, 171, 250):
        without = {row.term: row.yi for row in estimate(table.drop(i), question)}
        for term, push in pushes.items():
            assert whole[term] - without[term] == pytest.approx(push[i], rel=0.1, abs=2e-4)


def test_one_column_of_causes_says_the_same_as_a_column_for_each():
    table = reference()[0]
    cause = np.where(table.event == 1, "relapse", np.where(table.other == 1, "death", "none"))
    two = estimate(table, parse_estimand("cuminc(time, event, competing = other, at = 4) ~ arm"))
    question = parse_estimand('cuminc(time, cause == "relapse", competing = cause == "death", at = 4) ~ arm')
    one = estimate(table.assign(cause=cause), question)
    assert [(row.yi, row.vi) for row in one] == [(row.yi, row.vi) for row in two]
    both = estimate(table.assign(other=np.maximum(table.other, table.event)), parse_estimand(TWO_CAUSES))
    assert [row.yi for row in both] == [row.yi for row in two]


TWO_CAUSES = "cuminc(time, event, competing = other, at = 4) ~ arm"


def test_without_a_competing_event_incidence_is_what_survival_leaves_over():
    table = reference()[0].assign(other=0)
    incidence = estimate(table, parse_estimand(TWO_CAUSES))
    survival = estimate(table, parse_estimand("km(time, event, at = 4) ~ arm"))
    assert [row.yi for row in incidence] == pytest.approx([-row.yi for row in survival])
    assert [row.vi for row in incidence] == pytest.approx([row.vi for row in survival])


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("cuminc(time, event, competing = other, at = 40)", "follow-up ends before 40 at this site"),
        ("cumhaz(time, event, at = 0.2)", "fewer than 5 events up to 0.2 at this site"),
        ("cuminc(time, event, competing = other, at = 4, subset = age > 200)", "no complete rows at this site"),
    ],
)
def test_a_curve_that_says_nothing_at_a_time_has_its_reason(question, said):
    assert estimate(reference()[0], parse_estimand(question))[0].reason == said


def test_a_release_keeps_a_curve_by_its_own_order_and_counts_its_noise():
    table = reference()[0]
    question = parse_estimand(TWO_CAUSES)
    own = estimate(table, question, site="A")
    told = with_release_variance(own, table, question, [Draw(rows=300, w=0.8, fitted_on=300)])
    for before, after in zip(own, told, strict=True):
        assert before.vi < after.vi < 2 * before.vi
        assert after.attenuation == 0
        assert "bootstrap" in after.how


@pytest.mark.parametrize(
    ("question", "w", "said"),
    [
        ("schoenfeld(time, event) ~ arm", 0.8, "changes with time"),
        ("aft(time, event) ~ arm", 0.0, "10 % too far"),
        ("aft(time, event) ~ arm", 0.8, ""),
        ("rmst_regression(time, event, tau = 6) ~ arm", 0.0, ""),
    ],
)
def test_what_rows_may_not_hold_of_times_is_said_before_the_number(question, w, said):
    table = reference()[0]
    own = estimate(table, parse_estimand(question))
    [told] = with_release_variance(own, table, parse_estimand(question), [Draw(rows=300, w=w, fitted_on=300)])
    assert told.vi > own[0].vi
    assert bool(told.warnings) == bool(said)
    assert said in " ".join(told.warnings)


def test_an_effect_by_stretches_of_time_says_that_rows_may_not_hold_its_change():
    """Of a real trial, half a year before and after, flows without the records drew both ends to their mean."""
    table, question = reference()[0], parse_estimand("cox(time, event) ~ by_time(arm, c(3)) + age")
    own = estimate(table, question)
    told = with_release_variance(own, table, question, [Draw(rows=300, w=0.8, fitted_on=300)])
    said = ["changes with time" in " ".join(row.warnings) for row in told]
    assert said == [row.term.startswith("by_time(") for row in own]
    assert sum(said) == 2


@pytest.mark.parametrize("kind", CLUSTERED)
def test_errors_by_cluster_are_those_of_r(kind):
    table = pd.read_csv(HERE / "generalised.csv")
    agrees(estimate(table, kind, CLUSTERED[kind], cluster="k"), reference()[1]["clustered"][kind])


@pytest.mark.parametrize(("formula", "options"), [(LATE, {}), (STEPS, {"cluster": "hospital"})])
def test_what_a_late_row_moves_is_what_leaving_it_out_shows(formula, options):
    table = reference()[0]
    question = parse_formula("cox", formula, **options)
    pushes = influence(table, question)
    whole = {row.term: row.yi for row in estimate(table, question)}
    for i in (3, 40, 171, 250):
        without = {row.term: row.yi for row in estimate(table.drop(i), question)}
        for term, push in pushes.items():
            assert whole[term] - without[term] == pytest.approx(push[i], rel=0.25, abs=3e-3)


def test_a_release_of_late_rows_counts_fit_and_noise():
    table = reference()[0]
    question = parse_estimand("cox(time, event, entry = entry, cluster = hospital) ~ age + by_time(arm, c(2, 5))")
    assert str(question) == "cox(time, event, cluster = hospital, entry = entry) ~ age + by_time(arm, c(2, 5))"
    own = estimate(table, question, site="A")
    told = with_release_variance(own, table, question, [Draw(rows=300, w=0.8, fitted_on=300)])
    for before, after in zip(own, told, strict=True):
        assert after.vi > before.vi
        assert after.vi_privacy > 0
        assert any("errors by cluster" in one for one in after.warnings)
    [joint] = joint_of_terms(told, question, Pooling(method="FE", test="z"))
    assert joint["terms"] == [f"by_time(arm, c(2, 5))[{name}]" for name in ("0 to 2", "2 to 5", "after 5")]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("cox(time, event, robust = HC3) ~ age", "robust errors of a Cox model must be HC0"),
        ("logistic(died) ~ by_time(arm, c(2, 5))", "by_time must be a term of a Cox model"),
        ("cox(time, event) ~ by_time(arm, c(2, 5)):age", "by_time must be a term of a Cox model, by itself"),
        ("cox(time, event) ~ by_time(arm)", "by_time must be of a column and the times"),
        ("cox(time, event) ~ by_time(arm, 0)", "times of steps must be above 0"),
        ("cox(time, event, cluster = log(w)) ~ age", "must be columns"),
        ("km(time, event, at = 2, cluster = w) ~ arm", "takes the options"),
        ("cuminc(time, event, at = 4)", "must name the competing event"),
        ("finegray(time, event) ~ age", "must name the competing event"),
        ("finegray(time, event, competing = other) ~ age + offset(w)", "takes neither an offset"),
        ("finegray(time, event, competing = other) ~ age + strata(arm)", "takes no strata"),
        ("finegray(time, event, competing = other) ~ 1", "must have at least one term"),
        ("schoenfeld(time, event) ~ 1", "must have at least one term"),
        ("schoenfeld(time, event, transform = km) ~ age", "transform must be one of log, identity"),
        ("aft(time, event, dist = gompertz) ~ age", "dist must be one of weibull"),
        ("aft(time + 1, event) ~ age", "must be columns"),
        ("flexible(time, event, df = 6) ~ age", "df must be one of 1, 2, 3, 4, 5"),
        ("flexible(time, event) ~ age + strata(arm)", "takes no strata"),
        ("rmst_regression(time, event) ~ age", "must have a horizon tau > 0"),
        ("cumhaz(time, event, competing = other, at = 4)", "takes the options"),
        ("cumhaz(time, event, at = 4) ~ age + arm", "must compare the groups of one column"),
    ],
)
def test_what_no_model_has_is_refused_when_it_is_read(question, said):
    with pytest.raises(ParameterError, match=said):
        parse_estimand(question)


def test_rows_that_enter_after_their_time_are_not_used_and_few_clusters_tell_no_error():
    table = reference()[0]
    late = table.assign(entry=np.where(table.id < 20, table.time + 1, table.entry))
    rows = estimate(late, parse_formula("cox", LATE))
    assert {row.n_missing for row in rows} == {20}
    agree = estimate(table.iloc[20:], parse_formula("cox", LATE))
    assert [row.yi for row in rows] == pytest.approx([row.yi for row in agree])
    few = estimate(table, parse_estimand("cox(time, event, cluster = stage) ~ age"))
    assert few[0].reason == "3 clusters: fewer than 10 tell no error"


def test_steps_of_a_factor_have_its_levels_and_a_stretch_without_events_has_its_reason():
    table = reference()[0].assign(stage=lambda t: t.stage.map({1: "a", 2: "b", 3: "c"}))
    rows = estimate(
        table, parse_estimand("cox(time, event) ~ by_time(stage, 4) + age"), levels={"stage": ["a", "b", "c"]}
    )
    labels = [f"by_time(stage, 4)[{level}, {when}]" for level in "bc" for when in ("0 to 4", "after 4")]
    assert [row.term for row in rows] == [*labels, "age"]
    assert all(row.yi is not None for row in rows)
    empty = estimate(table, parse_estimand("cox(time, event) ~ by_time(arm, 100) + age"))
    assert {row.term: bool(row.reason) for row in empty} == {
        "by_time(arm, 100)[0 to 100]": False,
        "by_time(arm, 100)[after 100]": True,
        "age": False,
    }


@pytest.mark.parametrize("digits", [0, 1, 17])
def test_a_curve_counts_who_leaves_at_each_time_with_an_event_or_without(digits):
    rng = np.random.default_rng(digits)
    time = rng.exponential(size=200).round(digits)
    time[:3] = 0.0, -0.0, 1e-310
    event = rng.integers(0, 2, 200).astype(float)
    curve = kaplan_meier(time, event)
    assert curve.time.tolist() == sorted({*time.tolist()})
    left = 1.0
    for k, at in enumerate(curve.time):
        dead, risk = ((time == at) & (event == 1)).sum(), (time >= at).sum()
        assert (curve.events[k], curve.at_risk[k]) == (dead, risk)
        assert curve.censored[k] == ((time == at) & (event == 0)).sum()
        left *= 1 - dead / risk
        assert curve.survival[k] == left


if __name__ == "__main__":
    made().to_csv(HERE / "survival.csv", index=False)


def test_a_regression_on_nothing_is_the_baseline():
    rng = np.random.default_rng(1)
    time, kind, nothing = rng.exponential(size=20), rng.integers(0, 3, 20), np.empty((20, 0))
    for fit in (
        cox(nothing, SurvivalOutcome(time=time, event=kind == 1)),
        fine_gray(nothing, time, kind == 1, kind == 2),
    ):
        assert (fit.beta.shape, fit.cov.shape, fit.influence.shape) == ((0,), (0, 0), (20, 0))
