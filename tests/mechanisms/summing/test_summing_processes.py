"""A secure sum by the commands that people type, each a process of its own, some of them ended by SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from stage.coordinator_side.delivered import cohort
from stage.mechanisms.summed import NAMES, text_of
from stage.processes.theatre import Theatre, plan_toml

from shared.errors import LockedRefusal
from site_agent.lock import StateLock

RETENTION = """
[retention]
until = 2999-12-31
keep = "The releases and the answers made of them, so that what was published can be checked."
readers = "The study lead, and analysts with a token of the study."

[release]
"""


@pytest.fixture
def stage(tmp_path):
    made = Theatre(tmp_path)
    yield made
    made.close()


def joined(stage: Theatre) -> None:
    """Five sites that have joined, and then the plan that names their keys; each has delivered its pilot."""
    stage.open(plan_toml("storm"))

    def join(site: str) -> None:
        invitation = stage.invite(site, "storm")
        made = stage.agent(site, "init", "--invitation", invitation, "--approver", "steward").json
        stage.agent(site, "join")
        stage.coordinator("accept", site, "--fingerprint", made["fingerprint"])
        stage.agent(site, "join")

    for site in NAMES:
        join(site)
    keys = {one["site"]: one["release_key"] for one in stage.coordinator("sites").json}
    text = text_of(keys).replace("[release]\n", RETENTION.lstrip(), 1)
    stage.sign(text.replace('coordinator = "hub"', 'coordinator = "tributary-hub"'))

    def pilot(site: str) -> None:
        stage.coordinator("grant", site, "--study", "hearts")
        table = cohort(300, len(site), columns=("time", "cvd", "age", "sbp"))
        table.insert(0, "person", [f"{site}-{k}" for k in range(len(table))])
        path = stage.folder / f"{site}.csv"
        table.to_csv(path, index=False)
        stage.agent(site, "plan", "fetch", "hearts")
        stage.agent(site, "data", "add", path, "--as", "hearts")
        stage.agent(site, "plan", "approve", "hearts", "--as", "steward")
        made = stage.agent(site, "release", "hearts", "--wave", "1").json
        assert stage.approve(site, made["release_id"]).json["state"] == "delivered"
        assert stage.agent(site, "status").json["next"] == ["site-agent federate hearts"]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(pilot, NAMES))


def dial(stage: Theatre, site: str, failpoint: str = ""):
    env = {"TRIBUTARY_SITE_HOME": str(stage.home(site))}
    env |= {"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {}
    return stage.start("site_agent.cli", "federate", "hearts", "--wait", "5", "--json", env=env)


def lead(stage: Theatre, failpoint: str = "", minutes: float = 5.0):
    argv = ("--home", stage.hub, "federate", "run", "hearts", "--timeout", f"{minutes}", "--json")
    return stage.start("coordinator.cli", *argv, env={"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {})


PAGE = {"study", "release_id", "asked", "consents", "needed", "sentences", "sigma", "dry_run"}
PAGE |= {"keys", "compared", "advice", "epsilon_uncompared"}


def consent(stage: Theatre, site: str, *, unattended: bool = False) -> dict:
    """The approver's consent, once the site has put it before them: by its agent's rounds where it is unattended."""
    asking = ("consent", "hearts", "--as", "steward")
    for _ in range(600):
        if unattended:
            stage.agent(site, "run", "--once")
        given = stage.agent(site, *asking, "--dry-run", expect=None)
        if given.code == 0 and site == "east":
            return consent_of_a_person(stage, site, given.json)
        if given.code == 0:
            return consent_beside_another(stage, site) if site == "south" else stage.agent(site, *asking).json
        assert given.refused == "E_STATE", str(given)
        time.sleep(0.2)
    raise AssertionError("nothing to consent to")


def consent_of_a_person(stage: Theatre, site: str, page: dict) -> dict:
    """A consent by what the screens say: the page stands there before the key is opened, and is not shown again."""
    asking = ("consent", "hearts", "--as", "steward", "--compared", "mid")
    read = stage.agent(site, *asking, "--dry-run", as_json=False)
    assert "site-agent consent hearts --as steward --compared mid" in " ".join(read.out.split())
    given = stage.agent(site, *asking, as_json=False)
    for words in (page["sentences"][0], page["advice"], *page["keys"].values()):
        assert words in " ".join(given.err.split())
        assert words not in " ".join(given.out.split())
    return {**page, "consents": ["steward"], "dry_run": False}


def consent_beside_another(stage: Theatre, site: str) -> dict:
    """A consent while another process of the site has its folder, which tidies away what is half written there."""
    with ExitStack() as stack:
        for _ in range(600):
            with suppress(LockedRefusal):
                stack.enter_context(StateLock(stage.home(site)))
                break
            time.sleep(0.01)
        env = {"TRIBUTARY_SITE_HOME": str(stage.home(site))}
        waiting = stage.start("site_agent.cli", "consent", "hearts", "--as", "steward", "--json", env=env)
        time.sleep(4)
        assert "sum_consented" not in [kind for kind, _ in stage.entries(site)]
    assert waiting.wait() == 0, waiting.out.read_text()
    return json.loads(waiting.out.read_text())


def test_five_sites_give_a_sum_by_their_commands_and_killed_processes_end_as_they_must(stage):
    joined(stage)
    dry = stage.coordinator("federate", "run", "hearts", "--dry-run").json
    assert (dry["sites"], dry["opened"], dry["threshold"]) == (sorted(NAMES), None, 4)
    assert stage.coordinator("federate", "status", "hearts").json["step"] == 0
    assert stage.agent("east", "federate", "hearts", "--dry-run").json["answered"] == []
    # The coordinator dies when the level is asked, one site when it has sealed its shares: it is lost to the sum.
    running = lead(stage, "sum.after_ask:1")
    assert running.wait() == -9
    running = lead(stage)
    # West has nobody at its keyboard: its agent takes part in its rounds, and stays from the offer to the opening.
    sites = {site: dial(stage, site, "sum.sealed:3" if site == "north" else "") for site in NAMES if site != "west"}
    shown = [consent(stage, site, unattended=site == "west") for site in ("west", *sites)]
    env = {"TRIBUTARY_SITE_HOME": str(stage.home("west"))}
    sites["west"] = stage.start("site_agent.cli", "run", "--once", "--json", env=env)
    for page in shown:
        # Nothing of the records: whoever consents by what they add would choose by them.
        assert set(page) == PAGE
        assert page["sigma"] > 0
        assert any("look" in sentence for sentence in page["sentences"])
    assert sites["north"].wait() == -9
    sites["north"] = dial(stage, "north")
    assert running.wait() == 0, running.err.read_text()
    said = json.loads(running.out.read_text())
    assert said["survivors"] == [site for site in sorted(NAMES) if site != "north"]
    for site, command in sites.items():
        assert command.wait() == 0, command.err.read_text()
        kinds = [kind for kind, _ in stage.entries(site)]
        assert kinds.count("reserve") == 1
        assert kinds.count("sum_consented") == 1
        assert kinds.count("answer") == (3 if site == "north" else 7)
    status = stage.coordinator("federate", "status", "hearts").json
    assert (status["step"], status["opened"]) == (7, said["opened"])
    assert stage.coordinator("log", "verify").json
    for site in NAMES:
        stage.agent(site, "audit", "verify")
    for site in ("east", "north"):  # a stranger with the record follows it to the end, given or given up
        record = stage.folder / f"record-{site}"
        stage.agent(site, "audit", "export", "hearts", "--out", record)
        found = subprocess.run(
            [sys.executable, "-I", str(record / "verify.py")], capture_output=True, text=True, env={}, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
    refused = stage.agent("east", "consent", "hearts", "--as", "steward", expect=None)
    assert refused.refused == "E_STATE"
