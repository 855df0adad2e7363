"""Whatever prints an estimate says what it is, and prints it as people read it: never log odds under "proportion"."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import get_args

import pandas as pd
import pytest
from rich.console import Console

from coordinator.analyst.show import pooled_text, show_pooled, terms_table
from coordinator.answers.queries import term_line
from coordinator.figures.wording import view_of
from coordinator.pooling.document import pooled_data
from coordinator.pooling.further import analyses
from coordinator.pooling.further.sequential import monitored
from coordinator.pooling.pool import pool
from shared.errors import EstimateRefusal
from shared.estimands.answer import parse_estimand
from shared.estimands.effects import SCALES, effect_name, in_words, shown
from shared.estimands.kinds import Kind, Scale
from shared.plans.dictionary import Column, Dictionary
from shared.terminal import plain

QUESTIONS = {
    "mean(sbp)": "Mean",
    "difference(sbp) ~ arm": "Mean difference",
    "ratio(sbp) ~ arm": "Ratio of means",
    "proportion(num > 0)": "Proportion",
    "two_by_two(died) ~ arm": "Odds ratio",
    "two_by_two(died, measure = RR) ~ arm": "Risk ratio",
    "two_by_two(died, measure = RD) ~ arm": "Risk difference",
    "correlation(age, sbp)": "Correlation",
    "table_one(age, sex, by = arm)": "Table 1",
    "crosstab(sex, arm)": "Cross-table",
    "histogram(age, breaks = c(0, 50, 100))": "Share",
    "ols(sbp) ~ age": "Coefficient",
    "logistic(died) ~ age": "Odds ratio",
    "poisson(visits) ~ age": "Rate ratio",
    "risk_ratio(died) ~ age": "Risk ratio",
    "log_binomial(died) ~ age": "Risk ratio",
    "quasipoisson(visits) ~ age": "Rate ratio",
    "negbin(visits) ~ age": "Rate ratio",
    "probit(died) ~ age": "Probit coefficient",
    "cloglog(died) ~ age": "Hazard ratio",
    "gamma(cost) ~ age": "Ratio of means",
    "ordinal(stage) ~ age": "Odds ratio",
    "multinomial(stage) ~ age": "Relative odds ratio",
    "quantile(cost, tau = 0.5) ~ age": "Difference in median",
    "gee(sbp, cluster = ward) ~ age": "Coefficient",
    "gee(died, family = binomial, cluster = ward) ~ age": "Odds ratio",
    "mixed(sbp, cluster = ward) ~ age": "Coefficient",
    "standardised(died, of = arm) ~ arm + age": "Risk difference",
    "standardised(died, of = arm, contrast = OR) ~ arm + age": "Marginal odds ratio",
    "standardised(cost, of = arm, contrast = RR, model = gamma) ~ arm + age": "Ratio of means",
    "standardised(died, of = age, contrast = slope) ~ arm + age": "Average marginal effect",
    "cox(time, died) ~ age": "Hazard ratio",
    "km(time, died, at = 5)": "Survival at 5",
    "cumhaz(time, died, at = 5)": "Cumulative hazard to 5",
    "cuminc(time, died, competing = moved, at = 5)": "Cumulative incidence to 5",
    "rmst(time, died, tau = 5)": "Restricted mean survival time to 5",
    "rmst(time, died, tau = 5) ~ arm": "Difference in restricted mean survival time to 5",
    "rmst_regression(time, died, tau = 5) ~ arm": "Difference in restricted mean survival time to 5",
    "schoenfeld(time, died) ~ age": "Change of the log hazard ratio per log time",
    "schoenfeld(time, died, transform = identity) ~ age": "Change of the log hazard ratio per unit of time",
    "finegray(time, died, competing = moved) ~ age": "Subdistribution hazard ratio",
    "aft(time, died) ~ age": "Time ratio",
    "flexible(time, died) ~ age": "Hazard ratio",
    "logrank(time, died) ~ arm": "Hazard ratio",
    "network(transitivity)": "Transitivity",
}


@pytest.mark.parametrize("text", QUESTIONS)
def test_each_question_names_its_effect_measure(text):
    assert effect_name(parse_estimand(text)) == QUESTIONS[text]


def test_every_kind_of_question_has_a_name_and_every_scale_a_way_back():
    assert {parse_estimand(text).kind for text in QUESTIONS} == set(get_args(Kind))
    assert set(SCALES) == set(get_args(Scale))
    assert effect_name(parse_estimand("logistic(died) ~ age"), "intercept") == "Odds"


def result(scale: Scale, effect: str):
    found = pool([-0.4, 0.6, 0.9], [0.04, 0.05, 0.06], labels=["berlin", "lyon", "porto"])
    return replace(found, scale=scale, effect=effect)


def printed(found) -> str:
    out = io.StringIO()
    show_pooled(Console(width=200, file=out), found)
    analyses.show(Console(width=200, file=out), found, analyses.analyse(found, analyses.AnalysisRequest(bayes=True)))
    return out.getvalue()


@pytest.mark.parametrize(
    ("scale", "effect"),
    [("logit", "Proportion"), ("fisher_z", "Correlation"), ("log", "Odds ratio"), ("logit", "Survival at 60")],
)
def test_a_table_shows_the_effect_off_its_scale_under_its_name(scale, effect):
    found = result(scale, effect)
    text = printed(found)
    assert effect.lower() in text.lower()
    for y in (*found.yi, found.beta, found.ci_lb, found.ci_ub):
        assert f"{shown(y, scale):.3f}" in text
        assert f" {y:.3f} " not in text, "a number on the analysis scale"
    assert f"(on the {SCALES[scale]} scale)" in text
    assert view_of([found], None, "auto").name == f"{effect} ({SCALES[scale]} scale)"


def test_as_plain_values_each_interval_stands_on_both_scales():
    told = pooled_data(result("logit", "Proportion"))
    assert (told["effect"], told["scale"]) == ("Proportion", "logit")
    for row in (*told["rows"], told["pooled"], told["fixed"]):
        low, value, high = (row["shown"][name] for name in ("ci_lb", "estimate", "ci_ub"))
        assert 0 < low < value < high < 1
        assert low == pytest.approx(shown(row["ci_lb"], "logit"))


def test_what_compares_nothing_has_no_p_value_in_any_output_and_what_compares_has_one_in_each():
    """Shares of networks were tested against 1, survival against one half and means against 0."""
    share = replace(result("log", "Transitivity"), term="network(transitivity)")
    alone = (
        share,
        replace(result("logit", "Survival at 5 years"), term="arm[drug]"),
        replace(result("logit", "Proportion"), term="proportion(died)"),
        replace(result("identity", "Mean"), term="mean(age)"),
        replace(result("log", "Cumulative hazard to 5 years"), term="arm[drug]"),
        replace(result("identity", "Restricted mean survival time to 5 years"), term="rmst(time, died, tau = 5)"),
    )
    compared = (
        replace(result("fisher_z", "Assortativity"), term="network(assortativity) ~ ward"),
        replace(result("identity", "Difference in restricted mean survival time to 5 years"), term="arm[drug]"),
        replace(result("identity", "Mean difference"), term="arm[drug]"),
    )
    for found, told in (*((one, False) for one in alone), *((one, True) for one in compared)):
        assert math.isfinite(found.pval) == told
        data = plain(pooled_data(found))
        assert {data[fit]["pval"] is not None for fit in ("pooled", "fixed")} == {told}
        assert {data[fit]["zval"] is not None for fit in ("pooled", "fixed")} == {told}
        text = pooled_text(found)
        assert [line[-1] != "" for line in text.models[:2]] == [told, told]
        line = plain(term_line(found.term, found))
        assert (line["pval"] is not None) == told
        _, (cells,) = terms_table([line], 0.95)
        assert (cells[3] == "–") == (not told)
        frame = write_csv([line])
        assert (frame["pval"].notna().all()) == told
    with pytest.raises(EstimateRefusal, match="a value of no effect"):
        monitored([("wave 1", 0.5, share), ("wave 2", 1.0, share)], spending="pocock")


def write_csv(lines: list) -> pd.DataFrame:
    """Lines of a table as a file of commas holds them."""
    return pd.read_csv(io.StringIO(pd.DataFrame(lines).to_csv(index=False)))


@pytest.mark.parametrize(
    ("question", "term", "words"),
    [
        ("cox(time, died) ~ arm * C(sex)", "arm", "Hazard ratio for death, arm: 1 against 0, at sex female"),
        (
            "cox(time, died) ~ arm * C(sex)",
            "C(sex)[male]",
            "Hazard ratio for death, sex: male against female, at arm 0",
        ),
        ("cox(time, died) ~ arm * C(sex)", "arm:C(sex)[male]", "Hazard ratio for death, arm × sex male"),
        ("logistic(died) ~ sbp + arm:sbp", "sbp", "Odds ratio for death, per 1 mmHg of pressure, at arm 0"),
        ("logistic(died) ~ arm * sbp", "arm", "Odds ratio for death, arm: 1 against 0, at pressure 0"),
        ("logistic(died) ~ arm * log(sbp)", "arm", "Odds ratio for death, arm: 1 against 0, at log(sbp) = 0"),
        (
            "logistic(died) ~ arm * C(g) * C(sex)",
            "arm:C(g)[b]",
            "Odds ratio for death, arm × grade b, at sex female",
        ),
        (
            "multinomial(g) ~ arm * C(sex)",
            "arm | b",
            "Relative odds ratio for grade b against a, arm: 1 against 0, at sex female",
        ),
        ("logistic(died) ~ arm * g", "arm", "Odds ratio for death, arm: 1 against 0, at grade a"),
        ("logistic(died) ~ arm * stage", "arm", "Odds ratio for death, arm: 1 against 0, at stage 0"),
        ("logistic(died) ~ arm * ward", "arm", "Odds ratio for death, arm: 1 against 0, at ward 0"),
        ("logistic(died) ~ arm * C(stage)", "arm", "Odds ratio for death, arm: 1 against 0, at stage 1"),
        ("logistic(died) ~ arm + C(sex)", "arm", "Odds ratio for death, arm: 1 against 0"),
        ("logistic(died) ~ arm * sex", "intercept", "Odds for death"),
        (
            "standardised(died ~ arm * sex, of = arm, contrast = RD)",
            "arm",
            "Standardised risk difference for death, arm: 1 against 0",
        ),
    ],
)
def test_a_coefficient_that_others_modify_says_where_it_holds(question, term, words):
    """Of `arm * C(sex)` the coefficient of arm is of women alone; its title was that of everybody."""
    columns = (
        Column(name="sbp", kind="continuous", label="pressure", unit="mmHg", lower=50, upper=300),
        Column(name="sex", kind="binary", levels=("female", "male")),
        Column(name="arm", kind="binary", levels=("0", "1")),
        Column(name="g", kind="nominal", label="grade", levels=("a", "b", "c")),
        Column(name="stage", kind="ordered", levels=(1, 2, 3)),
        Column(name="ward", kind="binary", levels=(1, 2)),
        Column(name="died", kind="event", label="death"),
        Column(name="time", kind="continuous", unit="years", lower=0, upper=9),
    )
    known = Dictionary(name="d", version=1, columns=columns)
    assert in_words(parse_estimand(question), term, known) == words
