"""A site's commands for a training that the sites run together: what a steward sees, does, and can end."""

# ruff: noqa: F811
from __future__ import annotations

import dataclasses
import json
import os
import sys
import time

import pytest
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.base.canonical import sha256_hex
from shared.plans.federated import Federated
from shared.privacy.stated import shown_epsilon
from shared.wire.rounds import RoundOrder, pack, unpack


@pytest.fixture
def desk(hospital, plan, table):
    """A hospital whose approved plan has a training; its coordinator is a Python object."""
    training = dataclasses.replace(plan, federated=Federated(rounds=2, rate=0.2, noise_multiplier=2.0))
    site = hospital.joined("dr-lind").approved(training).with_table(table)
    site.plan = training
    return site


def put(site, number: int) -> None:
    from shared.plans.encoding import Encoder
    from shared.plans.federated import Shape, first_weights

    shape = Shape.of(Encoder(dictionary=site.plan.dictionary).d, site.plan.training)
    content = pack(first_weights(shape, number), {})
    given = {"study": "mini", "plan_hash": site.plan.hash, "kind": "train", "round": number}
    said = RoundOrder(**given, content_sha256=sha256_hex(content), content_bytes=len(content))
    site.hub.asked.append((said, content))


def test_a_steward_sees_the_price_before_and_takes_part_with_one_command(desk):
    page = desk.json("plan", "show", "mini")
    price = desk.plan.federated.epsilon(desk.plan.budget.delta)
    assert page["training"]["epsilon"] == pytest.approx(price)
    assert page["price"]["all_waves"] > price
    shown = " ".join(desk("plan", "show", "mini").split())
    assert f"the training ε = {shown_epsilon(price)}" in shown
    assert "2 times the weights of a flow" in shown
    assert "The number of persons who train" in shown
    dry = desk.json("federate", "mini", "--dry-run")
    assert (dry["state"], dry["approver"], dry["rounds"]) == ("not asked yet", "dr-lind", 2)
    assert desk.json("federate", "mini")["done"] == []  # nothing is asked
    assert desk.json("budget")["lines"] == []
    put(desk, 1)
    said = desk.json("federate", "mini")
    assert said["done"] == [["charged", 0], ["answered", 1]]
    assert (said["state"], said["answered"], said["epsilon"]) == ("training", [1], pytest.approx(price))
    [(_, content)] = desk.hub.answered
    assert unpack(content)[1] == {"n": 300, "steps": 1}
    assert "training" in desk("budget")
    desk("audit", "verify")
    # A person can end it at any time; the charge stays.
    desk("withdraw", said["release_id"], "--as", "dr-lind", "--reason", "policy")
    put(desk, 2)
    refused = desk.json("federate", "mini", expect=2)["refused"]
    assert "ended" in refused["must"]
    assert len(desk.hub.answered) == 1


def test_a_question_without_end_holds_up_no_wave_and_ends(desk, monkeypatch):
    """A broken coordinator, or a hostile one, offers the round that was answered again for ever."""
    monkeypatch.setattr("site_agent.decide.attending.PATIENCE", 0.0)
    put(desk, 1)
    desk.hub.asked *= 50
    said = [json.loads(line) for line in desk("run", "--once", "--json").splitlines() if line.startswith("{")]
    kinds = [line["what"] for line in said]
    assert kinds.index("waits for a person") < kinds.index("training answered")
    assert len(desk.hub.answered) < 5
    assert len({content for _, content in desk.hub.answered}) == 1


def test_the_agent_takes_part_by_itself_and_says_so(desk, monkeypatch):
    monkeypatch.setattr("site_agent.decide.attending.PATIENCE", 0.0)
    put(desk, 1)
    put(desk, 2)
    said = [json.loads(line) for line in desk("run", "--once", "--json").splitlines() if line.startswith("{")]
    trained = [(one["what"], one["detail"]) for one in said if one["what"].startswith("training")]
    assert trained == [
        ("training charged", "all 2 rounds"),
        ("training answered", "round 1"),
        ("training answered", "round 2"),
    ]
    assert len(desk.hub.answered) == 2
    # The wave of the same plan is made as well, by its own charge.
    kinds = [line["what"] for line in said]
    assert "waits for a person" in kinds


def test_an_agent_that_has_worked_waits_as_a_fresh_process_under_its_own_id(desk, monkeypatch):
    began: list[tuple[str, list[str], str]] = []

    def execv(path: str, words: list[str]) -> None:
        began.append((path, words, os.environ["TRIBUTARY_RESTING"]))
        raise SystemExit(0)

    monkeypatch.setattr("site_agent.decide.attending.PATIENCE", 0.0)
    monkeypatch.setenv("TRIBUTARY_RESTING", "")  # so that what the agent leaves for the fresh one ends with the test
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["/opt/bin/site-agent"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "/opt/bin/site-agent", "run"])
    put(desk, 1)
    before = time.monotonic()
    desk("run")
    [(path, words, resting)] = began
    assert (path, words) == (sys.executable, [sys.executable, "/opt/bin/site-agent", "run"])
    assert before + 3600 <= float(resting.split()[0]) <= time.monotonic() + 3600
    assert resting.split()[1] == "0"
    # The fresh one waits first. Its time being over, it makes its round, and gives its place to another.
    os.environ["TRIBUTARY_RESTING"] = f"{time.monotonic()} 0"
    desk("run")
    assert len(began) == 2
    # Who asks for one round now does not wait.
    desk("run", "--once")
    assert "TRIBUTARY_RESTING" not in os.environ


def test_a_plan_without_a_training_has_nothing_to_take_part_in(hospital, plan, table):
    site = hospital.joined("dr-lind").approved(plan).with_table(table)
    refused = site.json("federate", "mini", expect=10)["refused"]
    assert (refused["code"], "federated" in refused["must"]) == ("E_PLAN", True)
