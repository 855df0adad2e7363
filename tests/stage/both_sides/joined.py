"""A coordinator that serves and sites that have joined it, each driven by its own command line, in one process."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from stage.both_sides.service import SMALL, small_table

from coordinator.cli import main as coordinator
from coordinator.services.collect.server import CoordinatorServer
from coordinator.services.membership import Members
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.plans.plan import StudyPlan, sign_plan
from shared.terminal import run
from site_agent import cli
from site_agent.desk import Desk

PASSPHRASE = "correct horse battery"


class Joined:
    """One coordinator, its sites' folders, and both command lines.

    Args:
        plan: of the first study; others are its copies under other names (`publish`).
    """

    def __init__(self, folder: Path, monkeypatch: Any, capsys: Any, plan: StudyPlan, *leads: str) -> None:
        self.folder, self.capsys, self.plan = folder, capsys, plan
        self.home = folder / "hub"
        monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
        names = [word for name in leads for word in ("--lead", name)]
        self.lead("init", "--name", plan.coordinator, "--address", "127.0.0.1:1", *names)
        self.store = Store.open(self.home)
        self.publish(plan.study)
        self.serve()

    def serve(self) -> None:
        """Serve from a free port, which sites dial from then on."""
        self.server = CoordinatorServer(self.home, "127.0.0.1:0")
        address = f'address = "127.0.0.1:{self.server.port}"'
        path = self.home / "coordinator.toml"
        lines = [address if line.startswith("address") else line for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")

    def put_back(self, archive: Path) -> None:
        """Lose the coordinator, and restore it from an archive, at the same address."""
        port = self.server.port
        self.close()
        self.lead("restore", archive, "--as", "lead", "--replace", "--reason", "the disk failed")
        self.store = Store.open(self.home)
        self.server = CoordinatorServer(self.home, f"127.0.0.1:{port}")

    def close(self) -> None:
        self.server.stop(0)
        self.store.close()

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def members(self) -> Members:
        return Members(self.store, self.plan.coordinator)

    def lead_key(self, name: str = "lead") -> SigningKey:
        return SigningKey.load(self.home / "keys" / f"{name}.pem", PASSPHRASE)

    def publish(self, study: str, **changes: Any) -> StudyPlan:
        """Sign a plan of `study` and put it into the store."""
        names = [path.stem for path in sorted((self.home / "keys").glob("*.pub"))]
        plan = dataclasses.replace(self.plan, study=study, **changes)
        self.store.add_plan(sign_plan(plan, [self.lead_key(name) for name in names]), plan)
        return plan

    def lead(self, *argv: Any, expect: int = 0) -> Any:
        """Run `coordinator`; its JSON answer."""
        self.capsys.readouterr()
        code = coordinator(["--home", str(self.home), *map(str, argv), "--json"])
        out, err = self.capsys.readouterr()
        assert code == expect, f"{argv}: {code}\n{out}\n{err}"
        return json.loads(out) if out.strip() else {}

    def site(self, name: str, *approvers: str) -> JoinedSite:
        """A site that joins: invited, accepted, with its certificate."""
        return JoinedSite(self, name, *(approvers or ("dr-lind",)))


class JoinedSite:
    """A site's folder, and its command line."""

    def __init__(self, hub: Joined, name: str, *approvers: str) -> None:
        self.hub, self.name, self.home = hub, name, hub.folder / name
        for left in (self.home, hub.folder / f"{name}.invitation"):  # of a site that joined before and was revoked
            if left.exists():
                left.rename(left.with_name(f"{left.name}.before"))
        invitation = hub.folder / f"{name}.invitation"
        hub.lead("invite", name, "--study", hub.plan.study, "--out", invitation)
        words = [word for one in approvers for word in ("--approver", one)]
        self("init", "--invitation", invitation, *words)
        self("join")
        hub.lead("accept", name, "--fingerprint", self("status")["fingerprint"])
        self("join")

    @property
    def desk(self) -> Desk:
        return Desk(self.home)

    def __call__(self, *argv: Any, expect: int = 0) -> Any:
        """Run `site-agent`; its JSON answer."""
        self.hub.capsys.readouterr()
        code = run(cli.app, name="site-agent", argv=[*map(str, argv), "--home", str(self.home), "--json"])
        out, err = self.hub.capsys.readouterr()
        assert code == expect, f"{argv}: {code}\n{out}\n{err}"
        return json.loads(out) if out.strip() and argv[0] != "run" else {}

    def refused(self, *argv: Any, expect: int) -> dict[str, Any]:
        return self(*argv, expect=expect)["refused"]

    def approve_plan(self, study: str, name: str = "dr-lind") -> None:
        self("plan", "fetch", study)
        self("plan", "approve", study, "--as", name, "--understood", self.hub.plan.posture)

    def with_table(self, study: str, rows: int = 60, seed: int = 1) -> None:
        path = self.home / f"{study}.csv"
        small_table(rows, seed).to_csv(path, index=False)
        self("data", "add", path, "--as", study)


__all__ = ["PASSPHRASE", "SMALL", "Joined", "JoinedSite"]
