"""What the next waves will make of a study's answers, from what its sites have released and nothing else."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from stage.coordinator_side.delivered import STUDIES, cohort, cohort_plan, deliver
from stage.coordinator_side.wave_grid import Study, monthly

import coordinator.cli as cli
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.planning.forecast import forecast, grown
from shared.errors import ParameterError, StateRefusal
from shared.estimands.answer import Estimate
from shared.plans.plan import StudyPlan, sign_plan

SITES = tuple(f"site{k}" for k in range(6))
QUESTION = "unadjusted"


@pytest.fixture(scope="module", params=["refresh", "append"])
def grown_study(request, tmp_path_factory):
    made = Study(tmp_path_factory.mktemp("hub") / "home", returning=request.param, sites=SITES)
    for site in SITES:
        made.deliver(site, 1, n=400)
    yield made
    made.store.close()


def half(store, wave):
    answer = ask(store, holding(store, "cvd", wave), cohort_question(store))
    return answer.result.critical * answer.result.se


def cohort_question(store):
    return store.plan("cvd").plan.estimands[QUESTION]


def test_the_next_wave_is_as_narrow_as_was_forecast(grown_study):
    study, refresh = grown_study, grown_study.plan.redraws
    before = half(study.store, 1)
    told = forecast(study.store, "cvd", later=400, question=QUESTION, wanted=math.log(1.08))
    (term,) = told.terms
    assert (told.persons, told.measured, term.sites) == (6 * 401, False, 6)
    assert term.now == pytest.approx(before)
    assert [one.number for one in term.waves] == [2, 3, 4]
    widths = [one.half_width for one in term.waves]
    assert before > widths[0] > widths[1] > widths[2] > term.least
    for site in SITES:
        study.deliver(site, 2, n=800 if refresh else 400)
    after = half(study.store, 2)
    assert term.waves[0].alike / 1.15 < after < widths[0] * 1.15, "the forecast of wave 2, from wave 1 alone"
    assert after < before / 1.15, "which is not what it was before"
    later = forecast(study.store, "cvd", question=QUESTION)
    assert later.measured
    assert later.later == pytest.approx(401, abs=1.5), "learnt from two waves"


@pytest.mark.parametrize(
    ("returning", "release", "becomes"),
    [
        ("refresh", None, 0.02),  # rows, all drawn anew: both parts by n / N
        ("append", None, 0.02),
        ("refresh", "tables", 0.0175),  # sums of twice the persons: noise falls as its square
        ("append", "tables", 0.02),  # a second table like the first
    ],
)
def test_a_variance_falls_as_the_release_has_it(returning, release, becomes):
    shipped = StudyPlan.from_toml((STUDIES / "registries.toml").read_text()) if release else cohort_plan()
    made = dataclasses.replace(shipped, returning=returning, waves=monthly())
    row = Estimate(study="s", site="A", wave=1, term="age", yi=0.2, vi_sampling=0.03, vi_privacy=0.01, n=100)
    assert grown(row, 100, 1, made) == pytest.approx(becomes)
    assert grown(row, 0, 3, made) == pytest.approx(0.04)
    women = dataclasses.replace(row, n=40, n_outside=50, n_missing=10)
    assert grown(women, 100, 1, made) == pytest.approx(becomes), "of new persons as many are women"


@pytest.mark.parametrize("returning", ["append", "refresh", "refit"])
def test_rows_through_the_flow_of_the_first_wave_keep_its_error(tmp_path, returning):
    """Which no number of rows brings down, but a flow that a wave fits anew."""
    study = Study(tmp_path / "home", returning="append" if returning == "append" else "refresh", sites=SITES)
    waves = [dataclasses.replace(one, refit=returning == "refit" and one.number > 1) for one in study.plan.waves]
    noisy = dataclasses.replace(study.plan.release, w=0.05)
    study.plan = dataclasses.replace(study.plan, waves=tuple(waves), release=noisy, version=2)
    study.store.add_plan(sign_plan(study.plan, [study.lead]), study.plan)
    first = {site: study.deliver(site, 1, n=400) for site in SITES}
    (told,) = forecast(study.store, "cvd", later=400, question=QUESTION).terms
    (row, *_) = ask(study.store, holding(study.store, "cvd", 1), cohort_question(study.store)).result.estimates
    ahead = [grown(row, row.n, k, study.plan) / row.vi for k in (1, 2, 3)]
    for site in SITES:
        for wave in (2, 3, 4):
            n = 400 * (1 if returning == "append" else wave)
            table = cohort(n, 100 * wave + sum(map(ord, site)))
            flow = "" if returning == "refit" else first[site]
            deliver(study.store, study.plan, site, study.keys[site], table, wave=wave, flow_of=flow)
    found = [
        ask(study.store, holding(study.store, "cvd", wave), cohort_question(study.store)).result.estimates
        for wave in (1, 2, 3, 4)
    ]
    came = [sum(1 / one.vi for one in rows) for rows in found]
    assert ahead == pytest.approx([came[0] / one for one in came[1:]], rel=0.1)
    assert ahead[0] == pytest.approx(0.5 if returning == "refit" else 0.75, abs=0.02)
    assert told.least > 0 or returning == "refit"
    study.store.close()


def test_the_noise_of_several_releases_is_that_of_each(tmp_path):
    """Five tables of 100 persons each: five more halve the variance, whatever share of it the noise has."""
    shipped = StudyPlan.from_toml((STUDIES / "registries.toml").read_text())
    plan = dataclasses.replace(shipped, returning="append", waves=monthly(10))
    parts = {"yi": 0.2, "vi_sampling": 0.001, "vi_privacy": 0.01, "n": 500}
    row = Estimate(study="s", site="A", wave=5, term="age", receipts=tuple("abcde"), **parts)
    assert grown(row, 100, 5, plan) == pytest.approx(0.0055)


def test_who_trains_is_in_no_answer(tmp_path):
    study = Study(tmp_path / "home")
    study.deliver("alpha", 1)
    told = forecast(study.store, "cvd", later=100)
    held = dataclasses.replace(study.plan, posture="holdout", holdout=0.25, version=2)
    study.store.add_plan(sign_plan(held, [study.lead]), held)
    assert (told.later, forecast(study.store, "cvd", later=100).later) == (100, 75)
    study.store.close()


def test_what_nobody_can_forecast_is_refused_in_words(tmp_path):
    study = Study(tmp_path / "home")
    with pytest.raises(StateRefusal, match="must begin from released figures"):
        forecast(study.store, "cvd", later=100)
    study.deliver("alpha", 1)
    with pytest.raises(ParameterError, match="how many new persons"):
        forecast(study.store, "cvd")
    with pytest.raises(ParameterError, match="must be planned"):
        forecast(study.store, "cvd", later=1, question="adjusted2")
    with pytest.raises(ParameterError, match="0 or more"):
        forecast(study.store, "cvd", later=-1)
    study.deliver("alpha", 4)
    with pytest.raises(StateRefusal, match="must have a wave to come"):
        forecast(study.store, "cvd", later=100)
    study.store.close()


def test_the_command_says_which_wave_reaches_what_is_wanted(tmp_path, monkeypatch, capsys):
    study = Study(tmp_path / "home", sites=SITES)
    for site in SITES:
        deliver(study.store, study.plan, site, study.keys[site], cohort(300, sum(map(ord, site))), wave=1)
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "a passphrase")
    (study.home / "coordinator.toml").write_text('name = "tributary-hub"\naddress = "localhost:8443"\n')
    argv = ["--home", str(study.home), "wave", "forecast", "cvd", "--later", "300", "--question", QUESTION]
    assert cli.main([*argv, "--half-width", "1.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (term,) = found["terms"]
    reached = [one["number"] for one in term["waves"] if one["half_width"] <= math.log(1.2)]
    assert term["reached"] == (reached[0] if reached else 0)
    assert term["now"] > term["waves"][0]["half_width"]
    assert [one["total"] for one in term["waves"]] == sorted(one["total"] for one in term["waves"])
    assert cli.main([*argv, "--half-width", "1.0001"]) == 0
    shown = capsys.readouterr().out
    assert "is not reached by the planned waves" in shown
    assert "× 1." in shown
    assert cli.main([*argv[:-2], "--half-width", "1.2"]) == 2
    study.store.close()
