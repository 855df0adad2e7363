"""A coordinator's home folder at the command line: after init, and with sites and releases."""

from __future__ import annotations

import json
import shutil
from contextlib import closing

import pytest
from stage.coordinator_side.delivered import STUDIES, TODAY, cohort, cohort_plan, deliver, join, quarantine

from coordinator.cli import main
from coordinator.planning.template import template
from coordinator.store.store import Store
from shared.plans.invitation import Invitation


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
    path.write_text(template("stroke", coordinator="tributary-hub", today=TODAY))
    return path


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Two home folders, made once: after init and plan sign; and with sites and releases."""
    signed, filled = (tmp_path_factory.mktemp(name) / "home" for name in ("signed", "filled"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_PASSPHRASE", "a passphrase")
        assert main(["--home", str(signed), "init", "--address", "localhost:9443", "--san", "10.0.0.7"]) == 0
        assert main(["--home", str(signed), "plan", "sign", str(STUDIES / "cvd.toml")]) == 0
    shutil.copytree(signed, filled)
    with closing(Store.open(filled)) as store:
        for seed, site in enumerate(("alpha", "beta", "gamma", "waiting")):
            path = filled.parent / f"{site}.invitation"
            invite = ["invite", site, "--study", "cvd", "--out", str(path), "--days", "60"]
            assert main(["--home", str(filled), *invite]) == 0
            key = join(store, Invitation.from_bytes(path.read_bytes()), accepted=site != "waiting")
            if site != "waiting":
                (quarantine if site == "gamma" else deliver)(store, cohort_plan(), site, key, cohort(800, seed))
    return signed, filled


@pytest.fixture
def collected(hub, homes):
    """`ready` with two accepted sites and their releases, one whose release is quarantined, and one that waits."""
    shutil.copytree(homes[1], hub.home)
    return hub
