"""How an answer reads: in words of the dictionary, each table once, off the analysis scale, with its cautions."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from stage.coordinator_side.analysis import ADJUSTED, desk, study  # noqa: F401

from coordinator.analyst.commands import main
from coordinator.analyst.show import pooled_text, show_pooled
from coordinator.analyst.shown import LevelAnswers
from coordinator.demo.play import BASELINE
from coordinator.figures.forest import forest
from coordinator.pooling.gaps import Gap
from coordinator.pooling.pool import pool, pool_estimates
from shared.errors import ParameterError
from shared.estimands.answer import Estimate
from shared.estimands.effects import asked_of, in_words
from shared.estimands.questions import parse_estimand
from shared.plans.plan import StudyPlan
from shared.terminal import number

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"


def drawn(show) -> str:
    out = io.StringIO()
    show(Console(width=110, file=out))
    return out.getvalue()


def test_every_term_of_a_model_is_pooled_in_one_table(study):
    answer = study.cox(ADJUSTED, term="sbp")
    rows = {row["term"]: row for row in answer.terms()}
    assert list(rows) == ["sbp/10", "age/10"]
    other = study.cox(ADJUSTED, term="age")
    assert rows["age/10"]["beta"] == other.beta
    assert rows["age/10"]["ci_lb"] == other.document["pooled"]["shown"]["ci_lb"]
    assert list(answer.terms().to_frame()["effect"]) == ["Hazard ratio"] * 2


def test_the_command_line_prints_each_estimate_once_and_no_title_twice(study):
    answer = study.mean("sbp")
    text = drawn(answer.show_whole)
    assert text.startswith("Mean systolic blood pressure (mmHg)")
    assert "mean(sbp) in mean(sbp)" not in text
    for site in ("alpha", "beta", "gamma"):
        assert text.count(f"\n{site} ") == 1
    assert text.count(" weight %") == 1


def test_a_notebook_says_all_that_a_terminal_says(study):
    for answer, whole in ((study.cox(ADJUSTED, term="sbp"), True), (study.cox(ADJUSTED).meta(), False)):
        page = answer._repr_html_()
        result = answer if whole else answer.result
        for words in ("hazard ratio", "95 % CI", "prediction interval", "naive interval", "privacy noise", "τ²"):
            assert words in page, words
        for sentence in (*result.document["cautions"], *result.pooled.notes):
            assert sentence[:60] in page.replace("&#x27;", "'").replace("&gt;", ">")
        assert f"{result.document['pooled']['shown']['estimate']:.3f}" in page
        assert f"<td>{result.beta:.4f}" not in page, "the logarithm stands in no cell"


def test_how_far_the_records_lie_is_told_both_ways_and_on_a_named_scale():
    gap = Gap(bias=0.0, sd=0.05, how="x")
    assert "within a factor of 1.100 of this one, up or down," in gap.sentence(scale="log")
    assert "within 0.095 of this one" in gap.sentence()
    assert "(on the logit scale)" in gap.sentence(scale="logit")


def estimates(yi, vi_sampling, vi_naive):
    return [
        Estimate(study="s", site=f"site {i}", wave=1, term="x", yi=y, vi_sampling=v, vi_privacy=0.0, vi_naive=n, n=100)
        for i, (y, v, n) in enumerate(zip(yi, vi_sampling, vi_naive, strict=True))
    ]


def test_a_naive_interval_that_is_wider_says_why():
    for yi, own, naive, wider in (
        ((-0.07, 0.31, -0.39), (0.02, 0.2, 0.02), (0.018, 0.04, 0.01), True),
        ((0.1, 0.11, 0.12), (0.04, 0.04, 0.04), (0.01, 0.01, 0.01), False),
    ):
        found = pool_estimates(estimates(yi, own, naive))
        assert (found.naive.ci_ub - found.naive.ci_lb > found.ci_ub - found.ci_lb) == wider
        [said] = [line for line in pooled_text(found).sentences if line.startswith("naive")]
        assert ("wider here" in said) == wider


def test_a_share_of_a_few_in_a_hundred_thousand_is_not_printed_as_nothing():
    """Of the triples of a network, or of a rare event: three decimals would print both ends as 0.000."""
    few = [
        Estimate(term="t", study="s", site=f"h{k}", wave=1, yi=y, vi_sampling=0.0, vi_privacy=v, n=800, scale="log")
        for k, (y, v) in enumerate([(-10.03, 0.0119), (-10.07, 0.0038), (-10.07, 0.017)])
    ]
    text = pooled_text(pool_estimates(few))
    assert [row[1:3] for row in text.rows] == [
        ("0.000044", "0.000036 to 0.000055"),
        ("0.000042", "0.000038 to 0.000048"),
        ("0.000042", "0.000033 to 0.000055"),
    ]
    assert text.models[0][1:3] == ("0.000043", "0.000039 to 0.000047")
    # What was printed with three decimals is so still.
    ratios = pooled_text(pool_estimates([replace(one, yi=one.yi + 10) for one in few]))
    assert [row[1] for row in ratios.rows] == ["0.970", "0.932", "0.932"]


def test_no_part_of_the_spread_is_printed_as_minus_nothing():
    spread = [(2.5, 0.04), (2.51, 0.034), (2.4, 0.05)]
    found = pool_estimates(
        [
            Estimate(term="t", study="s", site=f"h{k}", wave=1, yi=y, vi_sampling=0.0, vi_privacy=se**2, n=800)
            for k, (y, se) in enumerate(spread)
        ]
    )
    assert abs(found.spread[2]) < 1e-9
    [said] = [line for line in pooled_text(found).sentences if line.startswith("spread")]
    assert ", 0 % which patients came" in said


def test_an_interval_of_heterogeneity_that_does_not_hold_its_estimate_says_so():
    precise, vague = [0.0005] * 7, [0.3] * 3
    above = pool([0.04, 0.05, 0.0, 0.02, 0.02, 0.02, 0.02, 0.53, -0.04, 0.37], precise + vague, method="SJ")
    below = pool([-0.02, 0.02, 0.03, 0.0, -1.63, -0.3, 1.15, -0.68, -0.4, 0.34], precise[:4] + vague * 2)
    usual = pool([0.1, 0.3, 0.5, 0.2], [0.02, 0.03, 0.04, 0.01])
    for found, out in ((above, True), (below, True), (usual, False)):
        ends = found.tau2_interval
        assert (not ends.lb <= found.tau2 <= ends.ub) == out
        assert any("does not hold its estimate" in note for note in found.notes) == out


@pytest.mark.parametrize(
    ("text", "term", "words"),
    [
        ("cox(time, cvd) ~ sbp/10 + age", "sbp/10", "Hazard ratio for cardiovascular event, per 10 mmHg of systolic"),
        ("cox(time, cvd) ~ sbp/10 + age", "age", "Hazard ratio for cardiovascular event, per year of age at baseline"),
        ("km(time, cvd, at = 5)", "km(time, cvd, at = 5)", "Survival without cardiovascular event at 5 years"),
        ("proportion(age >= 60)", "proportion(age >= 60)", "Share with age at baseline ≥ 60"),
        ("correlation(age, sbp)", "correlation(age, sbp)", "Correlation of age at baseline and systolic blood"),
        ("ols(chol) ~ age/10", "intercept", "Intercept of total cholesterol"),
        ("logistic(cvd) ~ log(chol) + age:sbp", "age:sbp", "Odds ratio for cardiovascular event, age at baseline × sy"),
    ],
)
def test_a_title_says_effect_outcome_and_contrast_as_the_dictionary_calls_them(text, term, words):
    dictionary = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text()).dictionary
    assert in_words(parse_estimand(text), term, dictionary).startswith(words)


def test_what_else_is_in_the_model_and_who_was_asked_stand_below():
    dictionary = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text()).dictionary
    question = parse_estimand("cox(time, cvd, subset = age >= 60) ~ sbp/10 + chol")
    assert asked_of(question, "sbp/10", dictionary) == "Adjusted for total cholesterol; only where age at baseline ≥ 60"
    assert asked_of(parse_estimand("mean(sbp)"), "mean(sbp)", dictionary) == ""


def test_a_pooled_table_prints_no_row_without_its_heading():
    text = drawn(
        lambda out: show_pooled(out, replace(pool([0.1, 0.2], [0.01, 0.02]), scale="log", effect="Risk ratio"))
    )
    assert "risk ratio" in text
    assert "95 % CI" in text


def test_a_column_of_the_patients_divides_a_question_into_its_levels(desk, study, tmp_path, capsys):
    answer = study.mean("sbp")
    found = answer.by("cvd")
    assert [row["level"] for row in found] == ["0", "1"]
    one = study.mean("sbp", subset="cvd == 1")
    assert found[1]["estimate"] == one.document["pooled"]["shown"]["estimate"]
    assert "levels differ by Q" in found.title
    assert [name in found[1] for name in ("estimate", "ci_lb", "beta", "reason")] == [True] * 4, "a program reads these"
    for text in (drawn(found.show), found._repr_html_()):
        assert all(words in text for words in ("95 % CI", "mean", "sites", number(found[1]["ci_lb"])))
        assert not any(raw in text for raw in ("ci_lb", "ci_ub", "beta", "None")), "it printed the names of its keys"
    none = LevelAnswers("x", [{**found[0], "reason": "nobody"}, found[1]], found.document, effect="", level=0.9)
    assert "no answer  0: nobody" in drawn(none.show)
    assert none.text[0] == ["cvd", "estimate", "90 % CI", "sites"]
    narrower = study.mean("sbp", subset="age > 50").by("cvd")
    assert narrower[0]["estimate"] == study.mean("sbp", subset="age > 50 & cvd == 0").document["pooled"]["beta"]
    for wrong, words in (("sex", "Columns with levels: cvd"), ("sbp", "which holds numbers")):
        with pytest.raises(ParameterError, match=words):
            answer.by(wrong)
    with pytest.raises(ParameterError) as refused:
        answer.forest(tmp_path / "a.svg", subgroups="sex")
    assert "->" not in str(refused.value), "a signature of Python is no answer"
    token = desk.save(desk.admit("liv"))
    argv = ["mean", "cvd", "sbp", "--subgroup", "cvd", "--token", str(token)]
    assert main(argv) == 0
    assert "by cvd: levels differ by Q" in " ".join(capsys.readouterr().out.split())
    assert main([*argv[:3], "--subgroup", "posture", *argv[5:]]) == 0
    assert "by posture" in capsys.readouterr().out


def test_the_demo_gives_no_number_to_what_nothing_bounds_and_says_whose_epsilon_a_column_is():
    from coordinator.demo.answers import row

    result = pool([0.1, 0.2], [0.01, 0.02], labels=["a", "b"])
    open_ = {"a": (None, "the flow"), "b": (None, "the flow")}
    assert "0" not in str(row("q", BASELINE, result, None, open_)["epsilon_per_site"])
    figure = forest(
        result, columns={"ε": {"a": "105", "b": "105"}}, compare={BASELINE: result}, name="released, w = 0.5"
    )
    said = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "of 'released, w = 0.5' alone" in " ".join(said.split())
