"""`coordinator`: each verb answers, refuses with its code, and changes nothing on a dry run."""

# ruff: noqa: F811  (fixtures are imported by their names)

import datetime as dt
import io
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, redirect_stdout
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.service import anchor_head
from stage.coordinator_side.delivered import STUDIES, TODAY
from stage.coordinator_side.homes import collected, homes, hub, written  # noqa: F401
from stage.processes.theatre import plan_toml

from coordinator.analyst.commands import main as analyst
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.cli import app, main
from coordinator.config import STORE_VARIABLE, CoordinatorConfig
from coordinator.planning import price as pricing
from coordinator.planning import review as planning
from coordinator.planning.attack_limits import linked
from coordinator.planning.template import template
from coordinator.pooling.pool import Pooling
from coordinator.store import engine
from coordinator.store.store import Store
from shared.base.chain import head_fingerprint
from shared.base.keys import Envelope, SigningKey
from shared.base.merkle.tree import verify_inclusion
from shared.base.randomness import seeded_rng
from shared.errors import ConfigRefusal, ParameterError, PlanRefusal, StateRefusal
from shared.flows.base import Identity
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan, Training, open_plan
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation
from site_agent.release.audit.distances import linkage


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


# -- settings -------------------------------------------------------------------------------------------------------
def test_the_settings_file_reads_back(tmp_path):
    config = CoordinatorConfig(
        home=tmp_path, name="hub", address="hub.example:8443", names=("hub.example", "10.0.0.1"), workers=4
    )
    assert CoordinatorConfig.from_toml(config.to_toml(), home=tmp_path) == config


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(ConfigRefusal, match="Did you mean 'address'"):
        CoordinatorConfig.from_toml('name = "hub"\nadress = "hub:8443"\n', home=tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        'address = "hub"',
        'address = "hub:port"',
        'listen = ":1"',
        "workers = 0",
        "workers = true",
        'threshold = "1"',
        "names = 3",
        'store = "store.db"',
        "name = 3",
        'name = "two words"',
        "name = ",
    ],
)
def test_an_impossible_setting_is_refused(tmp_path, line):
    base = {"name": 'name = "hub"', "address": 'address = "hub:8443"'}
    base[line.split(" ")[0]] = line
    with pytest.raises(ConfigRefusal):
        CoordinatorConfig.from_toml("\n".join(base.values()), home=tmp_path)


def test_the_store_address_may_hold_a_password_and_is_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_STORE", "postgresql://hub:hunter2@db/hub")
    config = CoordinatorConfig.from_toml('name = "hub"\naddress = "hub:8443"\n', home=tmp_path)
    assert config.store == "postgresql://hub:hunter2@db/hub"
    assert "hunter2" not in repr(config)
    with pytest.raises(ConfigRefusal) as refused:
        replace(config, store="hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_home_without_settings_points_at_init(tmp_path):
    with pytest.raises(StateRefusal, match="coordinator init"):
        CoordinatorConfig.load(tmp_path)


# -- plans ----------------------------------------------------------------------------------------------------------
def test_the_template_passes_its_own_check_without_a_warning():
    text = template("stroke", coordinator="hub", today=TODAY)
    plan, checks = planning.review(text, today=TODAY, recipient="hub")
    assert plan is not None
    assert {check.state for check in checks} == {"ok"}
    kinds = {column.kind for column in plan.dictionary.columns}
    assert kinds == {"person", "time", "event", "binary", "integer", "continuous", "ordered", "nominal"}


@pytest.mark.parametrize("name", ["two words", "../up", ""])
def test_a_template_for_a_name_that_is_no_plain_word_is_refused(hub, name, tmp_path):
    code, answer = hub("plan", "new", name, "--out", tmp_path / "x.toml")
    assert (code, answer["refused"]["code"]) == (10, "E_PLAN")
    assert not (tmp_path / "x.toml").exists()


def test_plan_new_never_overwrites(hub, written):
    code, answer = hub("plan", "new", "stroke", "--out", written)
    assert (code, answer["refused"]["code"]) == (2, "E_STATE")


@pytest.mark.parametrize(
    ("before", "after", "line", "fix"),
    [
        ("10 + C(sex)", "10 + sex/2", "estimand treatment", "without units"),
        ('"logistic(died) ~ treated + age/10 + C(sex)"', '"correlation(age, sex)"', "estimand treatment", "of numbers"),
        ('"logistic(died) ~ treated + age/10 + C(sex)"', '"km(time, died)"', "estimand treatment", "at = 5"),
        ("mean(sbp)", "mean(spb)", "estimand pressure", "sbp"),
        ("mean(sbp)", "mean(person)", "estimand pressure", "never leaves"),
        ("mean(sbp)", "sum(sbp)", "estimand pressure", "logistic"),
        ("epsilon = 8.0", "epsilon = 1.0", "budget", "Lower release.w"),
        ("upper = 300", "upper = 10", "column sbp", "dictionary"),
        ("persons = 50", "persons = 5", "[floors]", "tightened"),
        ("w = 0.005", "w = 0.005\nradios = 1", "[release]", "Did you mean"),
        ('coordinator = "tributary-hub"', 'coordinator = "elsewhere"', "recipient", "tributary-hub"),
    ],
)
def test_plan_check_names_the_line_and_its_fix(written, before, after, line, fix):
    edit(written, before, after)
    _, checks = planning.review(written.read_text(), today=TODAY, recipient="tributary-hub")
    red = [check for check in checks if check.state == "fail"]
    assert [check.name for check in red] == [line]
    assert fix in red[0].fix + red[0].detail


@pytest.mark.parametrize(
    ("level", "state"),
    [
        ("=cmd|' /C calc'!A0", "fail"),
        ("@SUM(A1)", "fail"),
        ("-2+3+cmd|x", "fail"),
        ("+A1(", "fail"),
        ("+", "ok"),
        ("-", "ok"),
        ("-1 to 3", "ok"),
        ("a = b", "ok"),
    ],
)
def test_plan_check_refuses_a_level_that_a_spreadsheet_runs(written, level, state):
    text = written.read_text()
    plan = StudyPlan.from_toml(text)
    column = next(c for c in plan.dictionary.columns if c.kind == "nominal" and isinstance(c.levels[0], str))
    changed = replace(column, levels=(level, *column.levels[1:]))
    columns = tuple(changed if c is column else c for c in plan.dictionary.columns)
    plan = replace(plan, dictionary=replace(plan.dictionary, columns=columns))
    found = {c.state for c in planning._dictionary(plan) if c.name == "levels"}
    assert found == ({"fail"} if state == "fail" else set())


def test_plan_check_takes_a_bare_column_of_words_for_a_factor_as_the_sites_do(written):
    edit(written, "10 + C(sex)", "10 + sex")
    _, checks = planning.review(written.read_text(), today=TODAY, recipient="tributary-hub")
    [line] = [check for check in checks if check.name == "estimand treatment"]
    assert (line.state, line.detail) == ("ok", "logistic(died) ~ treated + age/10 + sex")


def test_plan_check_leaves_with_the_code_of_policy_when_a_line_is_red(hub, written):
    assert hub("plan", "check", written)[0] == 0
    edit(written, "epsilon = 8.0", "epsilon = 1.0")
    code, answer = hub("plan", "check", written)
    assert (code, answer["ok"]) == (10, False)


def test_a_plan_that_says_how_large_it_expects_to_be_is_warned_where_the_paper_s_theorem_does_not_reach(hub, written):
    def conditions(sites, persons):
        text = without.replace("[budget]", f"[expected]\nsites = {sites}\npersons = {persons}\n\n[budget]")
        written.write_text(text)
        code, answer = hub("plan", "check", written)
        assert (code, answer["ok"]) == (0, True)  # a warning refuses nothing
        named = [c["name"] for c in hub("plan", "cost", written)[1]["conditions"]]
        lines = [c for c in answer["checks"] if c["name"] == "theorem 3"]
        assert [c["state"] for c in lines] == (["warn"] * len(named) or ["ok"])
        assert all(c["fix"] for c in lines if c["state"] == "warn")
        return named

    without = written.read_text()
    assert conditions(12, 900) == []
    assert conditions(18, 900) == []  # 900 / 50
    assert conditions(19, 900) == ["K against n"]
    assert conditions(3, 900) == ["many sites"]
    assert conditions(4, 100) == ["K against n", "many sites"]
    written.write_text(without)
    before = StudyPlan.from_toml(without)
    assert b"expected" not in before.canonical  # plans that say nothing keep the hash they were approved by
    assert not [c for c in hub("plan", "check", written)[1]["checks"] if c["name"] == "theorem 3"]
    assert hub("plan", "cost", written)[1]["conditions"] == []


@pytest.mark.parametrize("sites", ["0", "true", "1.5"])
def test_an_expected_size_that_is_none_is_refused(hub, written, sites):
    edit(written, "[budget]", f"[expected]\nsites = {sites}\npersons = 900\n\n[budget]")
    assert hub("plan", "cost", written)[0] == 10


def test_an_expired_plan_and_one_that_expires_before_its_last_wave_are_red(written):
    def red(today):
        return [c.name for c in planning.review(written.read_text(), today=today)[1] if c.state == "fail"]

    assert red(TODAY) == []
    assert red(dt.date(2099, 1, 1)) == ["expiry"]
    plan = StudyPlan.from_toml(written.read_text())
    edit(written, f"expires = {plan.expires}", f"expires = {plan.waves[-1].closes - dt.timedelta(days=1)}")
    assert red(TODAY) == ["expiry"]


def test_complete_case_columns_and_loose_floors_are_warnings(written):
    edit(written, 'missing = "level"', 'missing = "complete_case"')
    edit(written, "membership_auc = 0.55", "membership_auc = 0.7")
    states = {c.name: c.state for c in planning.review(written.read_text(), today=TODAY)[1]}
    assert (states["missing"], states["floors"]) == ("warn", "warn")


@pytest.mark.parametrize("name", ["cvd", "heart"])
def test_a_shipped_study_has_no_red_line_and_warns_of_its_guarantee(name):
    plan, checks = planning.review((STUDIES / f"{name}.toml").read_text(), today=TODAY, recipient="tributary-hub")
    states = {check.name: check.state for check in checks}
    assert "fail" not in states.values()
    assert states["guarantee"] == "warn"
    assert pricing.cost(plan).last_affordable >= len(plan.waves)


def test_the_demo_study_encodes_to_six_columns_and_costs_what_the_accountant_says():
    plan = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    price = pricing.cost(replace(plan, returning="refresh"), waves=3)
    radius = default_radius(6)
    event = privacy.Gaussian(sigma=0.2**0.5, sensitivity=2 * radius * 0.8**0.5)
    assert (price.d, price.radius) == (6, radius)
    assert price.epsilon == pytest.approx(privacy.epsilon(event, 1e-6), rel=1e-9)
    for number, wave in enumerate(price.waves, start=1):
        charged = privacy.epsilon_from_rdp(privacy.rdp([event] * number), 1e-6)
        assert wave.total == pytest.approx(charged, rel=1e-9)
        assert wave.affordable == (charged <= plan.budget.epsilon)
    assert price.paper == calibration.theorem2_epsilon(w=0.8, C=2 * radius, delta=1e-6)
    assert price.paper > price.epsilon
    # The plan appends: nobody is drawn twice, and whoever comes later pays for one wave.
    assert {wave.total for wave in pricing.cost(plan, waves=3).waves} == {price.waves[0].total}


@pytest.mark.parametrize("w", [0.001, 0.005, 0.03, 0.2])
def test_the_last_affordable_wave_is_the_last_whose_total_fits(written, w):
    plan = replace(StudyPlan.from_toml(written.read_text()), release=LatentNoisePlan(w=w), returning="refresh")
    price = pricing.cost(plan, waves=60)
    assert price.last_affordable == sum(wave.affordable for wave in price.waves)


def test_a_release_that_uses_no_record_is_affordable_for_ever(written):
    plan = StudyPlan.from_toml(written.read_text())
    joint = replace(plan.training, outcomes="joint")
    plan = replace(plan, release=LatentNoisePlan(w=0.0), posture="public", training=joint)
    assert pricing.cost(plan).last_affordable == pricing.MANY
    assert pricing.cost(plan).waves[-1].total == 0


@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
def test_check_and_cost_of_a_plan_say_its_posture_and_what_training_takes(hub, posture):
    file = STUDIES / f"first-{posture}.toml"
    code, answer = hub("plan", "check", file)
    assert code == 0
    assert next(line["detail"] for line in answer["checks"] if line["name"] == "posture").startswith(posture)
    price = pricing.cost(StudyPlan.from_toml(file.read_text()))
    assert price.posture == posture
    assert (price.rows < price.epsilon - 1) == (posture == "private")
    assert 7.98 < price.epsilon <= 8.0 + 1e-6


def test_plan_cost_has_the_training_by_all_sites_beside_the_waves_and_in_their_totals(hub, tmp_path):
    file = STUDIES / "federated.toml"
    plan = StudyPlan.from_toml(file.read_text())
    price = pricing.cost(plan)
    training, wave = plan.federated.event, plan.release.event(plan)
    assert price.training == pytest.approx(privacy.epsilon(training, plan.budget.delta))
    # What a site's ledger will hold against the budget for somebody who trained and was then drawn.
    ledger = Ledger.create(tmp_path / "ledger.db", SigningKey.generate(), site="north")
    for number, (event, rounds) in enumerate(((training, plan.federated.rounds), (wave, 0))):
        charge = {"event": event.to_canonical(), "delta": plan.budget.delta, "cap_epsilon": plan.budget.epsilon}
        ledger.reserve(
            Reservation(
                study=plan.study,
                plan_hash="a" * 64,
                wave=number,
                release_id=f"r{number}",
                uncovered=(),
                rounds=rounds,
                **charge,
            )
        )
    assert price.waves[0].total == pytest.approx(ledger.study_total(plan.study, plan.budget.delta).epsilon)
    assert price.waves[0].total > max(price.training, price.epsilon)
    assert hub("plan", "cost", file)[1]["training"] == pytest.approx(price.training)
    # Without it the waves alone; and where it leaves nothing for a wave, none is affordable.
    assert pricing.cost(replace(plan, federated=None)).training is None
    tight = replace(plan, budget=replace(plan.budget, epsilon=max(price.training, price.epsilon)))
    assert pricing.cost(tight).last_affordable == 0


def test_plan_cost_refuses_a_delta_too_large_for_the_persons(hub, written):
    assert hub("plan", "cost", written, "--persons", 99_999)[0] == 0
    code, answer = hub("plan", "cost", written, "--persons", 100_000)
    assert (code, answer["refused"]["code"]) == (2, "E_PARAMETER")


def test_plan_cost_refuses_no_waves(written):
    with pytest.raises(ParameterError):
        pricing.cost(StudyPlan.from_toml(written.read_text()), waves=0)


def test_a_file_that_is_not_there_points_at_plan_new(hub):
    code, answer = hub("plan", "check", "absent.toml")
    assert code == 2
    assert "plan new" in answer["refused"]["next_step"]


def test_what_changed_between_versions_is_named_line_by_line(written):
    old = StudyPlan.from_toml(written.read_text())
    edit(written, "version = 1", "version = 2")
    edit(written, "upper = 300", "upper = 280")
    edit(written, "w = 0.005", "w = 0.004")
    new = StudyPlan.from_toml(written.read_text())
    assert set(planning.changes(old, new)) == {
        "release.w: 0.005 → 0.004",
        "dictionary.columns.sbp.upper: 300.0 → 280.0",
    }


# -- a coordinator with sites ------------------------------------------------------------------------------------


@pytest.fixture
def ready(hub, homes):
    """`hub` after init, with the cohort study signed."""
    shutil.copytree(homes[0], hub.home)
    return hub


def test_init_makes_a_home_that_only_its_owner_reads_and_prints_the_fingerprints(hub):
    code, answer = hub("init", "--name", "hub", "--address", "localhost:9443")
    assert code == 0
    assert answer["passphrase"] is True
    assert [len(fingerprint.split()) for fingerprint in answer["leads"].values()] == [8]
    assert CoordinatorConfig.load(hub.home).listen == "0.0.0.0:9443"
    assert hub.home.stat().st_mode & 0o77 == 0
    assert all(path.stat().st_mode & 0o77 == 0 for path in (hub.home / "keys").iterdir())
    assert b"ENCRYPTED" in (hub.home / "keys" / "lead.pem").read_bytes()
    again, refused = hub("init", "--name", "hub", "--address", "localhost:9443")
    assert (again, refused["refused"]["code"]) == (2, "E_STATE")


@pytest.mark.parametrize(
    ("cores", "gigabytes", "places"), [(1, 64, 2), (6, 64, 6), (64, 64, 8), (64, 17, 4), (8, 2, 2)]
)
def test_init_has_as_many_questions_computed_at_a_time_as_the_machine_bears(hub, monkeypatch, cores, gigabytes, places):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr("shared.base.process.available_mb", lambda: 1024.0 * gigabytes)
    assert hub("init")[0] == 0
    assert CoordinatorConfig.load(hub.home).analyst_places == places


def test_a_dry_run_of_init_touches_nothing(hub):
    code, answer = hub("init", "--dry-run")
    assert (code, answer["created"], hub.home.exists()) == (0, False, False)


def test_an_init_that_was_interrupted_is_taken_up_with_the_same_authority(hub):
    _, first = hub("init")
    (hub.home / "coordinator.toml").unlink()
    code, second = hub("init")
    assert code == 0
    assert second["ca_fingerprint"] == first["ca_fingerprint"]


def test_a_plan_is_published_once_and_only_upwards(ready, tmp_path):
    code, answer = ready("plan", "sign", STUDIES / "cvd.toml")
    assert (code, answer["refused"]["code"]) == (10, "E_PLAN_ROLLBACK")
    path = tmp_path / "cvd.toml"
    text = (STUDIES / "cvd.toml").read_text().replace("epsilon = 400.0", "epsilon = 390.0")
    path.write_text(text)
    assert ready("plan", "sign", path)[0] == 10
    path.write_text(text.replace("version = 1", "version = 2", 1))
    code, answer = ready("plan", "sign", path, "--dry-run")
    assert (code, answer["signed"], answer["changes"]) == (0, False, ["budget.epsilon: 400.0 → 390.0"])
    assert ready("plan", "show", "cvd")[1]["plan"]["version"] == 1
    assert ready("plan", "sign", path)[0] == 0
    assert ready("plan", "show", "cvd")[1]["plan"]["budget"]["epsilon"] == 390
    assert ready("plan", "show", "cvd", "--version", 1)[1]["plan"]["budget"]["epsilon"] == 400


RETIRED = {
    "release.vary": ('mechanism = "latent_noise"', 'mechanism = "latent_noise"\nvary = "weight"', "require_same_noise"),
    "training.search": ("[training]", "[training]\nsearch = true", "require_one_network"),
}
"""Settings that no new plan may have: their place in a plan, the place with them, and what refuses them."""


@pytest.mark.parametrize("setting", RETIRED)
def test_a_study_whose_plan_has_what_new_plans_may_not_gets_further_versions_of_it(
    ready, tmp_path, monkeypatch, setting
):
    path, (place, written, refusing) = tmp_path / "retired.toml", RETIRED[setting]
    text = plan_toml("retired").replace(place, written)
    path.write_text(text)
    code, answer = ready("plan", "sign", path)
    assert (code, setting in answer["refused"]["given"]) == (PlanRefusal.exit_code, True)
    with monkeypatch.context() as before:  # as the version that still signed it
        before.setattr(LatentNoisePlan if setting == "release.vary" else Training, refusing, lambda plan: None)
        assert ready("plan", "sign", path)[0] == 0
    following = text.replace("version = 1", "version = 2", 1)
    if setting == "release.vary":
        path.write_text(following.replace('"weight"', '"rotation"'))
        code, answer = ready("plan", "sign", path)
        assert (code, setting in answer["refused"]["given"]) == (PlanRefusal.exit_code, True)
    path.write_text(following)
    assert (ready("plan", "check", path)[0], ready("plan", "cost", path)[1]["refusals"]) == (0, [])
    code, answer = ready("plan", "sign", path)
    warned = [line["detail"] for line in answer["warnings"] if line["name"] == "training"]
    assert (code, any(setting in detail for detail in warned)) == (0, setting == "training.search")
    path.write_text(following.replace(written, place).replace("version = 2", "version = 3", 1))
    assert ready("plan", "sign", path)[0] == 0, "without it"
    path.write_text(text.replace("version = 1", "version = 4", 1))
    assert ready("plan", "sign", path)[0] == PlanRefusal.exit_code, "back again"


def test_check_and_cost_say_what_signing_would_refuse_of_a_plan_and_what_to_do(ready, tmp_path):
    path = tmp_path / "cvd.toml"
    signed, varied = (STUDIES / "cvd.toml").read_text(), 'mechanism = "latent_noise"\nvary = "weight"'
    following = signed.replace("version = 1", "version = 2", 1)
    for text, line in (
        (following.replace("400.0", "4.0"), "budget"),
        (following.replace("tributary-hub", "another-hub"), "recipient"),
        (signed.replace("400.0", "390.0"), "version"),
        (plan_toml("varied").replace('mechanism = "latent_noise"', varied), "guarantee"),
        (plan_toml("searched").replace("[training]", "[training]\nsearch = true"), "training"),
    ):
        path.write_text(text)
        checked = [one for one in ready("plan", "check", path)[1]["checks"] if one["state"] == "fail"]
        code, priced = ready("plan", "cost", path)
        assert (code, priced["refusals"], [one["name"] for one in checked]) == (0, checked, [line])
        assert all(one["fix"] for one in checked)
        assert ready("plan", "sign", path, "--dry-run")[0] == PlanRefusal.exit_code
    path.write_text(following)
    assert (ready("plan", "check", path)[0], ready("plan", "cost", path)[1]["refusals"]) == (0, [])


def said(hub, *words) -> str:
    """What a command of a coordinator shows."""
    out = io.StringIO()
    with redirect_stdout(out):
        main(["--home", str(hub.home), *map(str, words)])
    return " ".join(out.getvalue().split())


def test_check_and_cost_say_of_a_plan_that_is_signed_already_that_it_is_and_not_to_sign_it(ready, tmp_path):
    path = tmp_path / "cvd.toml"
    path.write_text((STUDIES / "cvd.toml").read_text())
    code, checked = ready("plan", "check", path)
    assert (code, [one["state"] for one in checked["checks"] if one["name"] == "signed"]) == (0, ["warn"])
    code, priced = ready("plan", "cost", path)
    assert (code, priced["refusals"], priced["signed"]) == (0, [], True)
    for verb in ("check", "cost"):
        shown = said(ready, "plan", verb, path)
        assert "this very plan is signed already" in shown
        assert "version = 2" in shown
        assert "plan sign" not in shown
    assert ready("plan", "sign", path, "--dry-run")[1]["refused"]["code"] == "E_PLAN_ROLLBACK"
    path.write_text(path.read_text().replace("version = 1", "version = 2", 1))
    assert ready("plan", "cost", path)[1]["signed"] is False
    assert all("plan sign" in said(ready, "plan", verb, path) for verb in ("check", "cost"))


def test_check_and_cost_say_of_a_further_version_that_its_study_has_ended(ready, tmp_path):
    path = tmp_path / "cvd.toml"
    path.write_text((STUDIES / "cvd.toml").read_text().replace("version = 1", "version = 2", 1))
    assert ready("plan", "retire", "cvd", "--reason", "It is published.")[0] == 0
    code, checked = ready("plan", "check", path)
    failed = [one for one in checked["checks"] if one["state"] == "fail"]
    assert (code, [one["name"] for one in failed]) == (PlanRefusal.exit_code, ["study"])
    assert "retired" in failed[0]["detail"]
    assert ready("plan", "cost", path)[1]["refusals"] == failed
    assert "plan sign" not in said(ready, "plan", "cost", path)
    assert ready("plan", "sign", path, "--dry-run")[1]["refused"]["code"] == "E_STATE"


def test_a_plan_is_priced_where_the_store_cannot_be_opened_and_that_signing_was_not_reviewed_is_said(ready, tmp_path):
    path = tmp_path / "cvd.toml"
    path.write_text((STUDIES / "cvd.toml").read_text())
    known = ready("plan", "cost", path)[1]
    (ready.home / "store.db").write_bytes(b"no database" * 99)
    code, priced = ready("plan", "cost", path)
    assert (code, priced["refusals"], priced["waves"]) == (0, None, known["waves"])
    assert priced["unreviewed"]
    shown = said(ready, "plan", "cost", path)
    assert "Signing could not be reviewed: " + priced["unreviewed"] in shown
    assert "plan sign" not in shown


class Waits:
    """A clock that only waiting moves."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        (("studies",), True),
        (("plan", "cost"), True),
        (("log",), True),
        (("plan", "amend", "cvd", "--dry-run"), False),
        (("pool", "cvd", "--formula", "mean(age)"), False),
        (("table-one", "cvd", "age"), False),
        (("harmonise", "cvd", "chol", "--to", "alpha"), False),
    ],
)
def test_a_command_that_only_reads_waits_a_few_seconds_for_a_database_that_is_away_and_says_which(
    ready, tmp_path, monkeypatch, words, reads
):
    pytest.importorskip("psycopg")
    clock = Waits()
    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setenv(STORE_VARIABLE, "postgresql+psycopg://hub:geheim@127.0.0.1:1/heart")
    path = tmp_path / "cvd.toml"
    path.write_text((STUDIES / "cvd.toml").read_text())
    code, answer = ready(*words, *([path] if words[-1] == "cost" else []))
    if words[-1] == "cost":
        assert (code, answer["refusals"]) == (0, None)
    else:
        assert answer["refused"]["code"] == "E_STORE_AWAY"
    said = json.dumps(answer)
    assert "no connection to PostgreSQL at 127.0.0.1:1, database heart" in said
    assert "geheim" not in said
    assert engine.BRIEFLY <= clock.now < engine.BRIEFLY + 1 if reads else clock.now >= engine.RESTART


def test_the_published_plan_carries_the_signature_of_the_key_that_invitations_pin(ready, tmp_path):
    path = tmp_path / "alpha.invitation"
    ready("invite", "alpha", "--study", "cvd", "--out", path)
    invitation = Invitation.from_bytes(path.read_bytes())
    assert path.stat().st_mode & 0o77 == 0
    with closing(Store.open(ready.home)) as store:
        envelope = store.plan("cvd").envelope
    assert open_plan(envelope, invitation.trusted, threshold=invitation.threshold).study == "cvd"


def test_two_leads_sign_together_where_the_settings_ask_for_two(hub, tmp_path):
    assert hub("init", "--lead", "ada", "--threshold", 2)[0] == 2
    code, made = hub("init", "--lead", "ada", "--lead", "ben", "--lead", "eve", "--threshold", 2)
    assert (code, set(made["leads"])) == (0, {"ada", "ben", "eve"})
    assert hub("plan", "sign", STUDIES / "cvd.toml", "--key", "ada")[1]["refused"]["given"] == "1"
    assert hub("plan", "sign", STUDIES / "cvd.toml", "--key", "ada", "--key", "ada")[0] == 10
    assert hub("plan", "sign", STUDIES / "cvd.toml", "--key", "ada", "--key", "eve")[1]["signed_by"] == ["ada", "eve"]
    hub("invite", "alpha", "--study", "cvd", "--out", tmp_path / "invitation")
    invitation = Invitation.from_bytes((tmp_path / "invitation").read_bytes())
    with closing(Store.open(hub.home)) as store:
        assert open_plan(store.plan("cvd").envelope, invitation.trusted, threshold=invitation.threshold).version == 1


def test_signing_repeats_what_plan_check_warned_of(hub):
    hub("init")
    warned = {check["name"] for check in hub("plan", "sign", STUDIES / "cvd.toml", "--dry-run")[1]["warnings"]}
    assert warned == {"guarantee", "floors"}


def test_a_plan_with_a_red_line_is_not_signed(ready, tmp_path):
    path = tmp_path / "cvd.toml"
    path.write_text((STUDIES / "cvd.toml").read_text().replace("version = 1", "version = 2", 1).replace("400.0", "4.0"))
    code, answer = ready("plan", "sign", path)
    assert (code, answer["refused"]["code"]) == (10, "E_PLAN")
    assert "budget" in answer["refused"]["given"]


def test_a_wrong_passphrase_signs_nothing(ready, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "another passphrase")
    path = tmp_path / "stroke.toml"
    path.write_text(template("stroke", coordinator="tributary-hub", today=dt.date.today()))
    code, answer = ready("plan", "sign", path)
    assert (code, answer["refused"]["code"]) == (30, "E_PASSPHRASE")
    assert ready("plan", "show", "stroke")[0] == 10


def test_an_invitation_needs_a_signed_plan_and_a_new_file(ready, tmp_path):
    path = tmp_path / "alpha.invitation"
    assert ready("invite", "alpha", "--study", "other", "--out", path)[0] == 10
    assert ready("invite", "alpha", "--study", "cvd", "--out", path, "--dry-run")[1]["written"] is False
    assert not path.exists()
    assert ready("invite", "alpha", "--study", "cvd", "--out", path)[0] == 0
    assert ready("invite", "alpha", "--study", "cvd", "--out", path)[1]["refused"]["code"] == "E_STATE"


def test_a_site_is_invited_to_a_plan_that_is_signed_later_where_the_lead_says_so(ready, tmp_path):
    """The plan of a secure sum names the keys of all sites, so every site joins before it is signed."""
    path = tmp_path / "beta.invitation"
    code, answer = ready("invite", "beta", "--study", "sum", "--plan-later", "--out", path)
    assert (code, answer["studies"]) == (0, ["sum"])
    assert path.exists()


def test_a_site_is_let_in_only_with_the_fingerprint_of_its_key(collected):
    (waiting,) = [site for site in collected("sites")[1] if site["state"] == "pending"]
    code, answer = collected("accept", "waiting", "--fingerprint", "0000 1111")
    assert (code, answer["refused"]["code"]) == (30, "E_SIGNATURE")
    wrong = collected("accept", "waiting", "--fingerprint", "0000", "--dry-run")
    assert (wrong[1]["matches"], wrong[1]["accepted"]) == (False, False)
    assert collected("accept", "waiting", "--fingerprint", waiting["fingerprint"], "--dry-run")[1]["matches"] is True
    assert {site["state"] for site in collected("sites")[1]} == {"accepted", "pending"}
    assert collected("accept", "waiting", "--fingerprint", waiting["fingerprint"].upper())[0] == 0
    assert {site["state"] for site in collected("sites")[1]} == {"accepted"}


def test_a_site_that_has_not_asked_yet_is_not_taken_for_another_of_nearly_its_name(collected, tmp_path):
    assert collected("invite", "gama", "--study", "cvd", "--out", tmp_path / "gama.invitation")[0] == 0
    steps = [collected("accept", site, "--fingerprint", "0")[1]["refused"]["next_step"] for site in ("gama", "waitng")]
    assert "gama" not in (site["site"] for site in collected("sites")[1])
    assert steps[0].startswith("It runs site-agent join with its invitation. Sites that have asked: alpha, beta, gamma")
    assert steps[1] == "Did you mean 'waiting'?"


def test_an_invitation_of_a_site_that_takes_part_says_that_it_needs_none(collected, tmp_path):
    argv = ("--study", "cvd", "--out", tmp_path / "again.invitation", "--dry-run")
    assert [collected("invite", site, *argv)[1]["takes_part"] for site in ("alpha", "new")] == [True, False]


def test_a_ledger_begins_anew_only_by_this_command_and_the_log_says_so(collected):
    head = anchor_head("alpha", 9)
    spoken = ("reanchor", "alpha", "--fingerprint", head_fingerprint(anchor_head("alpha", 3, branch="restored").head))
    assert collected(*spoken)[1]["refused"]["code"] == "E_STATE", "nothing was ever witnessed"
    with closing(Store.open(collected.home)) as store:
        store.add_anchor(head, Envelope.sign("x", b"y", [SigningKey.generate()]))
        before = len(store.log())
    assert collected(*spoken, "--dry-run")[1]["allowed"] is False
    code, answer = collected(*spoken)
    assert (code, answer["left_seq"], answer["left_head"], answer["log_index"]) == (0, 9, head.head, before)
    assert collected("reanchor", "alpha", "--fingerprint", "0000")[0] == 2
    assert collected("reanchor", "alfa", "--fingerprint", "0000")[0] == 2


def test_sites_does_not_fill_in_the_fingerprint_that_a_person_must_compare(collected, capsys):
    main(["--home", str(collected.home), "sites"])
    assert 'coordinator accept waiting --fingerprint "…"' in capsys.readouterr().out


def test_an_unknown_site_is_refused_with_the_nearest(collected):
    code, answer = collected("revoke", "alfa")
    assert code == 2
    assert "alpha" in answer["refused"]["next_step"]


def test_revoking_keeps_what_was_accepted(collected):
    told = collected("revoke", "alpha", "--dry-run")[1]
    assert told == {"site": "alpha", "revoked": False, "releases_kept": 1, "distrusted": [], "results_stale": []}
    assert collected("revoke", "alpha")[0] == 0
    states = {site["site"]: (site["state"], site["releases"]) for site in collected("sites")[1]}
    assert states["alpha"] == ("revoked", 1)


def test_releases_shows_what_was_quarantined_and_why(collected):
    _, answer = collected("releases")
    assert [row["site"] for row in answer["accepted"]] == ["alpha", "beta"]
    (apart,) = answer["quarantined"]
    assert (apart["site"], apart["code"]) == ("gamma", "E_DICTIONARY")
    assert "sbp" in apart["reason"]
    assert collected("releases", "--wave", 2)[1] == {"accepted": [], "quarantined": []}


def test_an_unknown_study_is_refused_everywhere_with_the_studies_there_are(collected):
    for verb in (
        ("releases", "--study", "cdv"),
        ("results", "--study", "cdv"),
        ("pool", "cdv", "--estimand", "adjusted"),
        ("wave", "status", "cdv"),
        ("plan", "show", "cdv"),
        ("invite", "delta", "--study", "cdv", "--out", collected.home / "x"),
        ("figure", "cdv", "--kind", "budget", "--out", collected.home / "x.svg"),
    ):
        code, answer = collected(*verb)
        assert (code, answer["refused"]["code"]) == (10, "E_PLAN"), verb
        assert answer["refused"]["next_step"] == "Did you mean 'cvd'? Studies here: cvd (coordinator studies).", verb
    assert collected("plan", "show", "cvd", "--version", 7)[1]["refused"]["next_step"] == "Versions of cvd: 1."


def test_studies_lists_what_is_signed_and_what_has_arrived(collected, hub, capsys):
    code, [row] = collected("studies")
    assert (code, row["study"], row["version"], row["releases"], row["newest_wave"]) == (0, "cvd", 1, 2, 1)
    main(["--home", str(collected.home), "studies"])
    assert "newest wave" in capsys.readouterr().out


def test_a_name_that_is_no_plain_word_is_refused_to_the_lead_with_one_that_is(collected):
    code, answer = collected("invite", "St. Mary's Hospital", "--study", "cvd", "--out", collected.home / "x")
    assert (code, answer["refused"]["code"]) == (2, "E_PARAMETER")
    assert "'st-marys-hospital'" in answer["refused"]["next_step"]
    assert "Ask the study lead" not in answer["refused"]["next_step"]


def test_a_waiting_site_can_be_turned_away(collected):
    assert collected("refuse", "waiting", "--dry-run")[1]["refused"] is False
    assert collected("refuse", "waiting", "--reason", "not in the consortium")[1]["reason"] == "not in the consortium"
    assert {site["site"]: site["state"] for site in collected("sites")[1]}["waiting"] == "refused"
    code, answer = collected("refuse", "alpha")
    assert (code, answer["refused"]["code"]) == (2, "E_STATE")
    assert "coordinator revoke alpha" in answer["refused"]["next_step"]


def test_pool_takes_the_newest_wave_where_none_is_named(collected):
    assert collected("pool", "cvd", "--estimand", "adjusted")[1]["wave"] == 1


def test_a_release_is_shown_by_the_first_digits_of_its_id(collected):
    first = collected("releases")[1]["accepted"][0]
    code, answer = collected("release", "show", first["release_id"][:10])
    assert code == 0
    assert answer["receipt"]["translation"].startswith("Given the flow")
    assert collected("release", "show", "ffffffffffff")[0] == 2


def test_pool_answers_the_same_in_the_terminal_in_json_and_from_the_library(collected, capsys):
    _, said = collected("pool", "cvd", "--wave", 1, "--estimand", "adjusted", "--method", "DL", "--test", "z")
    with closing(Store.open(collected.home)) as store:
        expected = ask(store, holding(store, "cvd", 1), "adjusted", pooling=Pooling(method="DL", test="z")).result
    assert said["pooled"]["beta"] == expected.beta
    assert said["tau2_interval"] == {"lb": expected.tau2_interval.lb, "ub": expected.tau2_interval.ub, "reason": ""}
    assert said["planned"] == "adjusted"
    assert len(said["receipts"]) == 2
    main(["--home", str(collected.home), "pool", "cvd", "--wave", "1", "--estimand", "unadjusted"])
    shown = capsys.readouterr().out
    for words in ("alpha", "beta", "posture", "local", "random effects", "plan version 1", "planned analysis"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_question_outside_the_plan_is_called_exploratory(collected, capsys):
    assert collected("pool", "cvd", "--wave", 1, "--formula", "mean(sbp)")[1]["planned"] is None
    main(["--home", str(collected.home), "pool", "cvd", "--wave", "1", "--formula", "mean(sbp)"])
    assert "exploratory" in capsys.readouterr().out


def test_pool_takes_facts_of_receipts_and_of_a_table_as_moderators(collected, tmp_path):
    question = ("pool", "cvd", "--wave", 1, "--estimand", "adjusted")
    sites = [row["label"] for row in collected(*question)[1]["rows"]]
    facts = tmp_path / "facts.csv"
    facts.write_text("site,region\n" + "".join(f"{site},{'north' if i else 'south'}\n" for i, site in enumerate(sites)))
    code, said = collected(
        *question, "--mods", "n", "--subgroup", "region", "--facts", facts, "--bayes", "--diagnostics"
    )
    assert code == 0
    assert "reason" in said["regression"] or said["regression"]["terms"][0] == "intercept"
    assert set(said["subgroups"]["groups"]) == {"south", "north"}
    assert said["bayes"]["mu"]["lb"] < said["bayes"]["mu"]["ub"]
    assert 0 <= said["noise_share"] <= 100
    code, said = collected(*question, "--mods", "beds")
    assert code == 2
    assert "posture" in said["refused"]["next_step"]


def test_figure_draws_its_companions(collected, tmp_path):
    out = tmp_path / "loo.svg"
    code, _ = collected("figure", "cvd", "--wave", 1, "--estimand", "adjusted", "--kind", "leave-one-out", "--out", out)
    assert code == 0
    assert "Without one site" in out.read_text()


def test_figure_draws_subgroups_and_the_sides_of_the_null_line(collected, tmp_path):
    out = tmp_path / "groups.svg"
    question = ("figure", "cvd", "--estimand", "adjusted", "--out", out)
    code, said = collected(*question, "--subgroup", "posture", "--favours", "Favours lower|Favours higher")
    assert (code, said["written"]) == (0, True)
    assert "posture local (2 sites)" in out.read_text()
    assert collected(*question, "--favours", "lower")[0] == 2
    assert collected(*question, "--kind", "funnel", "--subgroup", "posture")[0] == 2
    assert "posture" in collected(*question, "--subgroup", "beds")[1]["refused"]["next_step"]


def test_figure_draws_the_pooled_curve_of_a_spline(collected, tmp_path):
    out = tmp_path / "dose.svg"
    question = ("figure", "cvd", "--kind", "dose-response", "--out", out, "--formula")
    code, said = collected(*question, "logistic(cvd) ~ ns(age, df = 2) + sbp")
    assert (code, said["joint"][0]["curve"]["of"]) == (0, "age")
    assert "2 coefficients pooled together" in out.read_text()
    code, said = collected(*question, "logistic(cvd) ~ age")
    assert code == 2
    assert "ns(age, df = 3)" in said["refused"]["next_step"]


def test_figure_draws_survival_curves_and_remembers_what_they_rest_on(collected, tmp_path):
    out = tmp_path / "km.svg"
    question = ("figure", "cvd", "--kind", "km", "--formula", "km(time, cvd) ~ 1", "--out", out)
    assert collected(*question, "--dry-run")[1]["written"] is False
    assert not out.exists()
    code, said = collected(*question)
    assert code == 0
    assert [curve["label"] for curve in said["curves"]] == ["alpha", "beta"]
    assert "alpha: " in out.read_text()
    (kept,) = [row for row in collected("results")[1] if row["kind"] == "km"]
    assert len(kept["used"]) == 2
    code, said = collected(*question, "--site", "gamma")
    assert code == 2
    assert "alpha, beta" in said["refused"]["next_step"]
    assert collected(*question[:-4], "--formula", "mean(sbp)", "--out", out)[0] == 2


def test_figure_draws_the_estimate_by_wave_and_the_budget_by_wave(collected, tmp_path):
    out = tmp_path / "waves.svg"
    code, said = collected("figure", "cvd", "--kind", "waves", "--estimand", "adjusted", "--out", out)
    assert code == 0
    assert said["waves"]["1"]["beta"] == said["pooled"]["beta"]
    assert "wave 1, 2 sites" in out.read_text()
    looks = tmp_path / "looks.svg"
    code, said = collected("figure", "cvd", "--kind", "monitoring", "--estimand", "adjusted", "--out", looks)
    assert code == 0
    assert said["monitoring"]["looks"][0]["beta"] == said["pooled"]["beta"]
    assert "wave 1: z" in looks.read_text()
    budget = tmp_path / "budget.svg"
    code, said = collected("figure", "cvd", "--kind", "budget", "--out", budget)
    assert code == 0
    assert [site for course in said["courses"] for site in course["sites"]] == ["alpha", "beta"]
    assert f"ε {said['cap']:g} at δ" in budget.read_text()
    assert collected("figure", "cvd", "--kind", "pie", "--estimand", "adjusted", "--out", out)[0] == 2


def test_pool_needs_one_question(collected):
    assert collected("pool", "cvd", "--wave", 1)[0] == 2
    assert "adjusted" in collected("pool", "cvd", "--wave", 1)[1]["refused"]["next_step"]
    assert collected("pool", "cvd", "--wave", 1, "--estimand", "adjusted", "--formula", "mean(sbp)")[0] == 2
    assert collected("pool", "cvd", "--wave", 2, "--estimand", "adjusted")[0] == 40


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_pool_writes_a_table_that_the_analyst_pools_alike(collected, tmp_path, suffix, capsys):
    out = tmp_path / f"table{suffix}"
    _, said = collected("pool", "cvd", "--wave", 1, "--estimand", "unadjusted", "--out", out)
    if suffix == ".json":
        assert json.loads(out.read_text()) == said
    else:
        table = pd.read_csv(out)
        assert list(table["site"]) == ["alpha", "beta"]
        assert analyst(["pool", str(out), "--json"]) == 0
        pooled = json.loads(capsys.readouterr().out)["pooled"]
        assert pooled["beta"] == pytest.approx(said["pooled"]["beta"])


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_figure_draws_the_forest_plot(collected, tmp_path, suffix):
    out = tmp_path / f"forest{suffix}"
    argv = ("figure", "cvd", "--wave", 1, "--estimand", "unadjusted", "--out", out)
    assert collected(*argv, "--dry-run")[1]["written"] is False
    assert not out.exists()
    assert collected(*argv)[1]["written"] is True
    assert out.stat().st_size > 1000


def test_the_log_is_checked_whole_and_proves_each_release(collected):
    code, head = collected("log")
    assert (code, head["size"], head["verified"]) == (0, 2, True)
    for release in collected("releases")[1]["accepted"]:
        code, proof = collected("log", "proof", release["release_id"])
        path = [bytes.fromhex(part) for part in proof["proof"]]
        leaf, root = bytes.fromhex(proof["leaf"]), bytes.fromhex(proof["root"])
        assert proof["root"] == head["root"]
        assert verify_inclusion(leaf, proof["index"], proof["size"], path, root)


def test_an_edited_log_is_found_out(collected):
    database = sqlite3.connect(collected.home / "store.db")
    database.execute('UPDATE log SET entry = ? WHERE "index" = 1', (b"{}",))
    database.commit()
    database.close()
    code, answer = collected("log")
    assert (code, answer["refused"]["code"]) == (30, "E_INTEGRITY")


def test_every_verb_that_reads_offers_json_and_every_verb_that_changes_something_a_dry_run():
    import typer

    group = typer.main.get_command(app)
    verbs = {}
    for name, command in group.commands.items():
        for sub, leaf in getattr(command, "commands", {"": command}).items():
            verbs[f"{name} {sub}".strip()] = {option for item in leaf.params for option in item.opts}
    changing = {
        "init",
        "plan new",
        "plan design",
        "plan amend",
        "plan sign",
        "invite",
        "accept",
        "refuse",
        "revoke",
        "reanchor",
        "figure",
    }
    changing |= {
        "synthetic",
        "backup",
        "restore",
        "log restored",
        "upgrade",
        "store bundles",
        "store copy",
        "store migrate",
    }
    changing |= {"grant", "ungrant", "rekey", "lead add", "lead retire", "plan cosign", "plan retire", "plan delete"}
    changing |= {
        "log list",
        "wave schedule",
        "wave remind",
        "wave close",
        "wave reopen",
        "analyst add",
        "analyst replace",
        "analyst revoke",
        "federate run",
        "passphrase",
        "clock confirm",
        "clock repair",
        "ca rotate",
        "ca replace",
        "plan redcap",
        "renew-late",
        "import",
        "post-box",
        "ig-pack",
    }
    for verb, options in verbs.items():
        assert verb == "serve" or "--json" in options, verb
        assert ("--dry-run" in options) == (verb in changing), verb


def test_a_home_that_is_not_set_up_points_at_init_for_every_verb(hub, tmp_path):
    for argv in (("sites",), ("releases",), ("log",), ("pool", "cvd", "--wave", 1), ("serve",)):
        code = main(["--home", str(hub.home), *map(str, argv)])
        assert code == 2, argv


def test_help_imports_nothing_heavy():
    for argv in ([], ["plan"], ["pool"]):
        run = "import sys; from coordinator.cli import main; main(sys.argv[1:]); print(*sys.modules)"
        made = subprocess.run([sys.executable, "-c", run, *argv, "--help"], capture_output=True, text=True, check=True)
        heavy = {"torch", "grpc", "matplotlib", "pandas", "numpy", "scipy", "sqlalchemy", "statsmodels", "pyarrow"}
        assert not heavy & set(made.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_one_line_and_stops_cleanly_when_told_to(ready, stop):
    argv = [sys.executable, "-m", "coordinator.cli", "--home", str(ready.home), "serve", "--address", "127.0.0.1:0"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        assert "tributary-hub answers on 127.0.0.1:" in line
        assert "127.0.0.1:0;" not in line
        assert ready("sites") == (0, [])
        server.send_signal(stop)
        rest, errors = server.communicate(timeout=120)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, rest, "Traceback" in errors) == (0, "", False)


def test_an_amendment_is_the_next_version_as_a_draft_that_reads_back(ready, tmp_path):
    before = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    path = tmp_path / "next.toml"
    assert ready("plan", "amend", "cvd", "--out", path, "--dry-run")[1] == {
        "study": "cvd",
        "version": 2,
        "file": str(path),
        "written": False,
    }
    assert not path.exists()
    assert ready("plan", "amend", "cvd", "--out", path)[0] == 0
    assert StudyPlan.from_toml(path.read_text()) == replace(before, version=2)
    assert ready("plan", "amend", "cvd", "--out", path)[1]["refused"]["code"] == "E_STATE"


@pytest.mark.parametrize(("w", "d"), [(0.8, 5), (0.3, 8)])
def test_rows_are_foretold_to_be_linked_as_often_as_those_that_a_site_draws(w, d):
    z = np.random.default_rng(1).standard_normal((1000, d))
    drawn = LatentNoise(flow=Identity(d=d), w=w, radius=default_radius(d)).release(z, seeded_rng(2))
    farthest = np.argsort(np.linalg.norm(z, axis=1))[-50:]
    everybody, far = linked(w, d, 1000)
    assert linkage(z, drawn).mean() == pytest.approx(everybody, abs=0.04)
    assert linkage(z, drawn, farthest).mean() == pytest.approx(far, abs=0.2)


def test_a_lead_is_told_where_attacks_may_refuse_a_draw_after_its_charge():
    text = template("hf", coordinator="hub", today=TODAY)
    assert "w = 0.005" in text

    def warned(w: str) -> list[str]:
        written = text.replace("w = 0.005", f"w = {w}")
        return [line.detail + line.fix for line in planning.review(written, today=TODAY)[1] if line.name == "attacks"]

    [said] = warned("0.8")
    assert "may refuse a draw after its charge: at w = 0.8 and" in said
    lower = re.search(r"Lower release\.w \(to about ([\d.]+)", said)[1]
    assert 0.2 < float(lower) < 0.8
    assert warned(lower) == warned("0.005") == []
