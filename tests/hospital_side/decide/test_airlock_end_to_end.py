"""A hospital takes a delivered release back from a real coordinator, and hands its record to a stranger."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from stage.processes.theatre import Theatre, plan_toml


@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    yield stage
    stage.close()


def test_a_release_is_withdrawn_from_a_real_coordinator_and_the_record_verifies(theatre, tmp_path):
    rng = np.random.default_rng(7)
    table = tmp_path / "cohort.csv"
    columns = {"sbp": rng.uniform(100, 200, 120), "chol": rng.uniform(150, 300, 120), "died": rng.integers(0, 2, 120)}
    pd.DataFrame({"person": [f"p{i}" for i in range(120)], **columns}).to_csv(table, index=False)
    theatre.open(plan_toml())
    theatre.join("north", table, "storm")
    made = theatre.agent("north", "release", "storm", "--wave", "1", "--by", "steward").json
    release_id = made["release_id"]
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    theatre.agent("north", "approve", release_id, "--as", "steward", *ticks)
    assert [path.name for path in (theatre.hub / "bundles").iterdir()] == [f"{made['bundle_sha256']}.zip"]

    taken = theatre.agent("north", "withdraw", release_id, "--as", "steward", "--reason", "consent").json
    assert (taken["state"], type(taken["log_index"])) == ("withdrawn", int)
    assert list((theatre.hub / "bundles").iterdir()) == []
    again = theatre.agent("north", "withdraw", release_id, "--as", "steward", "--reason", "consent").json
    assert again["log_index"] == taken["log_index"]

    out = tmp_path / "record"
    theatre.agent("north", "audit", "export", "storm", "--out", out)
    listed = tmp_path / "list.json"
    assert theatre.coordinator("log", "list", "north", "storm", "--out", listed, "--dry-run").json["written"] is False
    assert not listed.exists()
    answer = theatre.coordinator("log", "list", "north", "storm", "--out", listed).json
    assert (answer["releases"], answer["written"]) == (1, True)
    argv = [sys.executable, "-I", str(out / "verify.py"), "--coordinator-list", str(listed)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"its {answer['anchors']} heads and 1 releases are told here, and no other" in done.stdout
    assert "1 of 1 deliveries are acknowledged under the coordinator's signature" in done.stdout
