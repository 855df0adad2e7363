"""What a screen prints is so: prices of the plan that was given, failures that a timer sees, versions, plain zeros."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_table
from site_desk import hospital  # noqa: F401
from test_network_release import contacts_plan
from test_waves import several

from coordinator import planning
from coordinator.analyst import commands as analyst
from coordinator.cli import main as coordinator
from coordinator.demo import main as tributary
from shared.errors import CertificateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column
from shared.plans.encoding import typed
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy
from site_agent import cli
from site_agent.records.table import dialect

STUDIES = Path(__file__).parents[1] / "deploy" / "studies"


def test_a_plan_that_sets_an_epsilon_is_priced_at_it_and_not_at_the_papers_w():
    plan = replace(StudyPlan.from_toml((STUDIES / "first.toml").read_text()), release=LatentNoisePlan(epsilon=2.0))
    first = planning.prices(plan)[0]
    own = planning.cost(plan)
    assert first.epsilon == pytest.approx(own.epsilon, rel=1e-6) == pytest.approx(2.0, rel=1e-3)
    assert first.name == f"latent noise, w = {own.w:.4g}"
    assert first.width == planning._latent_width(own.w) != planning._latent_width(planning.PAPER_W)


def test_the_lead_composes_waves_as_a_ledger_does_by_whichever_bound_is_smaller():
    plan = contacts_plan(returning="refresh")
    event = plan.release.event(plan)
    pure = privacy.pure_epsilon(event)
    assert pure is not None, "Laplace noise has a pure price"
    totals = [wave.total for wave in planning.cost(plan, waves=4).waves]
    for number, total in enumerate(totals, start=1):
        composed = privacy.epsilon_from_rdp(number * privacy.rdp(event), plan.budget.delta)
        assert total == pytest.approx(min(number * pure, composed))
    assert totals[0] == pytest.approx(pure)


def test_a_timer_sees_that_a_site_is_cut_off_and_not_that_a_person_is_awaited(hospital, plan):
    at = hospital.joined().approved(several(plan, 2)).with_table(make_table(300))
    at.hub.down = True
    at("run", "--once", expect=20)
    at.hub.down = False
    at("run", "--once")
    assert "must be delivered, or rejected" in at("run", "--once")


def test_a_revoked_site_is_not_told_that_it_has_joined(hospital, plan, monkeypatch):
    at = hospital.joined().approved(plan)
    assert "has joined" in at("join")

    def turned_away(*_: object) -> None:
        raise CertificateRefusal("the certificate must be of a site that takes part", given="a revoked one")

    monkeypatch.setattr(type(at.hub), "status", turned_away)
    assert "has joined" not in at("join", expect=21)


def test_approving_what_was_withdrawn_says_that_it_is_over_and_not_to_withdraw_it(hospital, plan):
    at = hospital.joined().approved(plan).with_table(make_table(300))
    short = at.json("release", "mini", "--wave", "1")["release_id"][:8]
    at("approve", short, "--as", "dr-lind")
    at("withdraw", short, "--as", "dr-lind", "--reason", "policy")
    at.publish(replace(plan, version=2))
    at("plan", "fetch", "mini")
    at("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    said = at.refused("approve", short, "--as", "dr-lind", expect=2)
    assert said["given"] == "one that was withdrawn, which is for good"
    assert "site-agent withdraw" not in said["next_step"]


@pytest.mark.parametrize(
    ("name", "main"),
    [("site-agent", cli.main), ("coordinator", coordinator), ("analyst", analyst.main), ("tributary", tributary)],
)
def test_each_command_tells_its_version(name, main, capsys):
    try:
        code = main(["--version"])
    except SystemExit as leave:
        code = leave.code
    assert code == 0
    assert capsys.readouterr().out.startswith(f"{name} 0.")


def test_a_released_zero_has_no_sign():
    column = Column(name="oldpeak", kind="continuous", lower=-2, upper=6, decimals=1)
    values = typed(column, np.array([-0.04, 0.0, -1.0]))
    assert [f"{value:g}" for value in values] == ["0", "0", "-1"]


GERMAN = "Patient;Alter;Größe;Bluthochdruck\np1;61;1,72;ja\n"


@pytest.mark.parametrize(
    ("text", "encoding", "seen"),
    [
        (GERMAN, "cp1252", ("cp1252", ";")),
        (GERMAN, "utf-8", ("utf-8", ";")),
        (GERMAN, "utf-8-sig", ("utf-8", ";")),
        (GERMAN.replace(";", "\t"), "utf-8", ("utf-8", "\t")),
        ("person,age\np1,61\n", "utf-8", ("utf-8", ",")),
        ('"a;b",age,"c|d|e|f"\n', "utf-8", ("utf-8", ",")),
        ("person\n", "utf-8", ("utf-8", ",")),
    ],
)
def test_a_file_is_read_as_its_beginning_says(tmp_path, text, encoding, seen):
    path = tmp_path / "extract.csv"
    path.write_bytes(text.encode(encoding))
    assert dialect(path) == seen
    assert dialect(tmp_path / "none.csv") == ("utf-8", ",")


def test_a_german_extract_is_placed_without_options_and_what_was_mapped_stays(hospital, plan, tmp_path):
    at = hospital.joined().approved(plan)
    table = make_table(300).rename(columns={"sbp": "Blutdruck"})
    path = tmp_path / "auszug.csv"
    table.to_csv(path, index=False, sep=";", encoding="cp1252")
    assert "with a semicolon between fields" in at("data", "add", str(path), "--as", "mini")
    at("data", "map", "mini", "Blutdruck=sbp")
    assert at.json("data", "add", str(path), "--as", "mini", "--delimiter", ";")["columns"]["Blutdruck"] == "sbp"
    refused = at.refused("data", "map", "mini", "Alter=sbp", expect=2)
    assert "'Alter'" in refused["given"]
    assert at.json("data", "add", str(path), "--as", "mini")["columns"]["Blutdruck"] == "sbp"
