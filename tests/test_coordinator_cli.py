"""`coordinator`: each verb answers, refuses with its code, and changes nothing on a dry run."""

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import planning
from coordinator.cli import main
from coordinator.config import Config
from shared import privacy
from shared.errors import ConfigRefusal, ParameterError, StateRefusal
from shared.mechanisms.latent_noise import default_radius
from shared.plan import LatentNoisePlan, StudyPlan

TODAY = dt.date(2026, 1, 5)
STUDIES = Path(__file__).parents[1] / "deploy" / "studies"


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    """Runs `coordinator --home … --json` and returns (exit code, answer)."""
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "a passphrase")
    home = tmp_path / "home"

    def call(*argv):
        code = main(["--home", str(home), *map(str, argv), "--json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out.strip() else {}

    call.home = home
    return call


@pytest.fixture
def written(tmp_path):
    """A fresh plan file from the template."""
    path = tmp_path / "stroke.toml"
    path.write_text(planning.template("stroke", coordinator="tributary-hub", today=TODAY))
    return path


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


# -- settings -------------------------------------------------------------------------------------------------------
def test_the_settings_file_reads_back(tmp_path):
    config = Config(
        home=tmp_path, name="hub", address="hub.example:8443", names=("hub.example", "10.0.0.1"), workers=4
    )
    assert Config.from_toml(config.to_toml(), home=tmp_path) == config


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(ConfigRefusal, match="Did you mean 'address'"):
        Config.from_toml('name = "hub"\nadress = "hub:8443"\n', home=tmp_path)


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
        Config.from_toml("\n".join(base.values()), home=tmp_path)


def test_the_store_address_may_hold_a_password_and_is_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_STORE", "postgresql://hub:hunter2@db/hub")
    config = Config.from_toml('name = "hub"\naddress = "hub:8443"\n', home=tmp_path)
    assert config.store == "postgresql://hub:hunter2@db/hub"
    assert "hunter2" not in repr(config)
    with pytest.raises(ConfigRefusal) as refused:
        replace(config, store="hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_home_without_settings_points_at_init(tmp_path):
    with pytest.raises(StateRefusal, match="coordinator init"):
        Config.load(tmp_path)


# -- plans ----------------------------------------------------------------------------------------------------------
def test_the_template_passes_its_own_check_without_a_warning():
    text = planning.template("stroke", coordinator="hub", today=TODAY)
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
        ("10 + C(sex)", "10 + sex", "estimand treatment", "C(sex)"),
        ("mean(sbp)", "mean(spb)", "estimand pressure", "sbp"),
        ("mean(sbp)", "mean(person)", "estimand pressure", "never leaves"),
        ("mean(sbp)", "sum(sbp)", "estimand pressure", "logistic"),
        ("epsilon = 8.0", "epsilon = 5.0", "budget", "Lower release.w"),
        ("upper = 300", "upper = 10", "plan", "dictionary"),
        ("persons = 50", "persons = 5", "plan", "tightened"),
        ("w = 0.005", "w = 0.005\nradios = 1", "plan", "Did you mean"),
        ('coordinator = "tributary-hub"', 'coordinator = "elsewhere"', "recipient", "tributary-hub"),
    ],
)
def test_plan_check_names_the_line_and_its_fix(written, before, after, line, fix):
    edit(written, before, after)
    _, checks = planning.review(written.read_text(), today=TODAY, recipient="tributary-hub")
    red = [check for check in checks if check.state == "fail"]
    assert [check.name for check in red] == [line]
    assert fix in red[0].fix + red[0].detail


def test_plan_check_leaves_with_the_code_of_policy_when_a_line_is_red(hub, written):
    assert hub("plan", "check", written)[0] == 0
    edit(written, "epsilon = 8.0", "epsilon = 5.0")
    code, answer = hub("plan", "check", written)
    assert (code, answer["ok"]) == (10, False)


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
    assert planning.cost(plan).last_affordable == len(plan.waves)


def test_the_demo_study_encodes_to_six_columns_and_costs_what_the_accountant_says():
    plan = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    price = planning.cost(plan, waves=3)
    radius = default_radius(6)
    event = privacy.Gaussian(sigma=0.2**0.5, sensitivity=2 * radius * 0.8**0.5)
    assert (price.d, price.radius) == (6, radius)
    assert price.epsilon == pytest.approx(privacy.epsilon(event, 1e-6), rel=1e-9)
    for number, wave in enumerate(price.waves, start=1):
        charged = privacy.epsilon_from_rdp(privacy.rdp([event] * number), 1e-6)
        assert wave.total == pytest.approx(charged, rel=1e-9)
        assert wave.affordable == (charged <= plan.budget.epsilon)
    assert price.paper == privacy.theorem2_epsilon(w=0.8, C=2 * radius, delta=1e-6)
    assert price.paper > price.epsilon


@pytest.mark.parametrize("w", [0.001, 0.005, 0.03, 0.2])
def test_the_last_affordable_wave_is_the_last_whose_total_fits(written, w):
    plan = replace(StudyPlan.from_toml(written.read_text()), release=LatentNoisePlan(w=w))
    price = planning.cost(plan, waves=60)
    assert price.last_affordable == sum(wave.affordable for wave in price.waves)


def test_a_release_that_uses_no_record_is_affordable_for_ever(written):
    plan = replace(StudyPlan.from_toml(written.read_text()), release=LatentNoisePlan(w=0.0))
    assert planning.cost(plan).last_affordable == planning.MANY
    assert planning.cost(plan).waves[-1].total == 0


def test_plan_cost_refuses_a_delta_too_large_for_the_persons(hub, written):
    assert hub("plan", "cost", written, "--persons", 99_999)[0] == 0
    code, answer = hub("plan", "cost", written, "--persons", 100_000)
    assert (code, answer["refused"]["code"]) == (2, "E_PARAMETER")


def test_plan_cost_refuses_no_waves(written):
    with pytest.raises(ParameterError):
        planning.cost(StudyPlan.from_toml(written.read_text()), waves=0)


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
