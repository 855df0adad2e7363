"""The version before and this one over real connections, each as the agent of the other's coordinator."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from cryptography import x509
from stage.house.version_before import tree_of_before
from stage.processes.theatre import PASSPHRASE

from tests.stage.house.sources import ROOT


@pytest.fixture
def before(tmp_path):
    return tree_of_before(tmp_path)


class Side:
    """Commands of one version."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": str(tree), "TRIBUTARY_PASSPHRASE": PASSPHRASE, "OMP_NUM_THREADS": "1"}

    def run(self, *argv: object, expect: int = 0):
        words = [sys.executable, "-m", *map(str, argv), "--json"]
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def serve(self, home: Path) -> subprocess.Popen:
        words = [sys.executable, "-m", "coordinator.cli", "--home", str(home), "serve"]
        with (self.folder / "served").open("w") as out:
            server = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=out, stderr=out)
        limit = time.monotonic() + 120
        while "answers on" not in (said := (self.folder / "served").read_text()):
            assert server.poll() is None, said
            assert time.monotonic() < limit, said
            time.sleep(0.1)
        return server


@pytest.mark.soak
@pytest.mark.fault("F23", bundles=4, sites=1)
@pytest.mark.parametrize("newer", ["agent", "coordinator"])
def test_a_queue_of_the_version_before_is_delivered_whichever_side_is_updated_first(before, tmp_path, newer):
    with tarfile.open(ROOT / "tests" / "fixtures" / "home-0.2.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    hub, home = tmp_path / "coordinator", tmp_path / "site"
    certificate = x509.load_pem_x509_certificate((home / "certificates" / "site.pem").read_bytes())
    if certificate.not_valid_after_utc < dt.datetime.now(dt.UTC):
        pytest.skip("the fixture's certificates have ended")
    new, old = Side(ROOT, tmp_path), Side(before, tmp_path)
    agent, coordinator = (new, old) if newer == "agent" else (old, new)
    server = coordinator.serve(hub)
    try:
        waiting = agent.run("site_agent.cli", "outbox", "list", "--home", home)["releases"]
        spent = agent.run("site_agent.cli", "budget", "--home", home)["totals"]
        assert [one["state"] for one in waiting] == ["delivered", "delivered", "approved", "held"]
        for one in waiting[2:]:
            agent.run("site_agent.cli", "approve", one["release_id"], "--as", "steward", "--home", home)
        assert agent.run("site_agent.cli", "status", "--home", home)["discrepancies"] == []
        assert agent.run("site_agent.cli", "budget", "--home", home)["totals"] == spent
    finally:
        server.terminate()
        server.wait(60)
    assert coordinator.run("coordinator.cli", "--home", hub, "log", "verify")["verified"]
    # The other side follows, and the one that was updated goes back: the queue has arrived, for both versions.
    for side in (new, old):
        assert len(side.run("coordinator.cli", "--home", hub, "releases")["accepted"]) == 4
        assert side.run("coordinator.cli", "--home", hub, "log", "verify")["verified"]
        assert side.run("site_agent.cli", "ledger", "verify", "--home", home)["ok"]
        if side is new:
            new.run("coordinator.cli", "--home", hub, "upgrade", "--to", "0001")
