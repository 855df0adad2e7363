"""`tributary demo`: the whole product on one machine, as separate processes, with real keys and real budgets.

A coordinator and one agent per hospital run on loopback and talk mutual TLS, exactly as they would across a city.
Everything goes through the command lines that people use; this module starts processes and reads their answers,
and knows neither side's inside. What only a demo may do is pool the *real* tables too, because here they are simulated
(or public), so that the released answer can be held against the true one.

The studies: ``cvd``, twelve simulated cohorts with the sizes, means, standard deviations and event rates of Table 3 of
the Latent Noise Injection paper; ``heart``, the four hospitals of the UCI heart disease records (`--data`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import NetworkRefusal, StateRefusal, refusal_from_code

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Demo", "app", "main"]

STUDIES = Path(__file__).resolve().parent.parent / "deploy" / "studies"
SITE_STEPS = ("init", "join", "data", "approve plan", "release", "approve")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of looking at the study: a label for people, and the study id whose releases it pools (None: real)."""

    label: str
    study: str | None


@dataclass(kw_only=True)
class Demo:
    """A coordinator and its hospitals, under one folder.

    Args:
        out: where figures, tables and the state of all processes go.
        plan: path of the study plan (TOML).
        tables: hospital name to its CSV.
        report: called with (done steps, all steps, what is happening).
    """

    out: Path
    plan: Path
    tables: Mapping[str, Path]
    workers: int = 2
    report: Callable[[int, int, str], None] = lambda done, steps, what: None
    done: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    passphrase: str = field(default_factory=lambda: secrets.token_urlsafe(12), init=False, repr=False)

    def __post_init__(self) -> None:
        self.state = self.out / "state"
        self.hub = self.state / "coordinator"
        text = self.plan.read_text()
        self.study = re.search(r'^study = "(.+)"$', text, flags=re.MULTILINE)[1]  # type: ignore[index]
        self.baseline = f"{self.study}-w0"
        self.plans = {
            self.study: text,
            self.baseline: re.sub(r"^w = .*$", "w = 0.0", text, count=1, flags=re.MULTILINE).replace(
                f'study = "{self.study}"', f'study = "{self.baseline}"', 1
            ),
        }

    # -- processes ------------------------------------------------------------------------------------------------
    def command(self, module: str, *arguments: str) -> dict[str, Any]:
        """Run one command line to its end and return its JSON answer. Raises: the Refusal that it reported."""
        env = {**os.environ, "TRIBUTARY_PASSPHRASE": self.passphrase, "OMP_NUM_THREADS": "1"}
        made = subprocess.run(
            [sys.executable, "-m", module, *arguments, "--json"], capture_output=True, text=True, env=env, check=False
        )
        try:
            answer = json.loads(made.stdout) if made.stdout.strip() else {}
        except json.JSONDecodeError:
            answer = {}
        if made.returncode:
            refused = answer.get("refused", {})
            text = " ".join(refused.get(key, "") for key in ("must", "given", "next_step")) or made.stderr[-400:]
            raise refusal_from_code(refused.get("code", "E_REFUSED"), f"{module} {arguments[0]}: {text}")
        return answer if isinstance(answer, dict) else {"items": answer}

    def coordinator(self, *arguments: str) -> dict[str, Any]:
        """One `coordinator` command."""
        return self.command("coordinator.cli", "--home", str(self.hub), *arguments)

    def agent(self, site: str, *arguments: str) -> dict[str, Any]:
        """One `site-agent` command at a hospital."""
        return self.command("site_agent.cli", "--home", str(self.home(site)), *arguments)

    def home(self, site: str) -> Path:
        """The hospital's state folder."""
        return self.state / "hospitals" / site

    @contextmanager
    def serving(self, address: str) -> Iterator[None]:
        """The coordinator's server as a process of its own, stopped by its own id."""
        with (self.state / "coordinator.log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "--home", str(self.hub), "serve", "--address", address],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            host, port = address.rsplit(":", 1)
            for _ in range(200):
                if server.poll() is not None:
                    raise StateRefusal(
                        "the coordinator must start",
                        given=f"exit {server.returncode}",
                        next_step="See coordinator.log.",
                    )
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                raise NetworkRefusal("the coordinator must answer", given="no answer", next_step="See coordinator.log.")
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    # -- the story ------------------------------------------------------------------------------------------------
    def step(self, what: str) -> None:
        """Say that one more step is done."""
        self.done += 1
        self.report(self.done, self.steps, what)

    def run(self) -> None:
        """From nothing to every release of wave 1 accepted."""
        self.steps = 3 + len(self.tables) * (3 + 3 * len(self.plans))
        self.done = 0
        self.report(0, self.steps, "setting up the coordinator")
        self.state.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.coordinator("init", "--name", "demo-hub", "--address", address)
        self.step("coordinator ready")
        for study, text in self.plans.items():
            path = self.state / f"{study}.toml"
            path.write_text(text.replace('coordinator = "tributary-hub"', 'coordinator = "demo-hub"'))
            self.coordinator("plan", "sign", str(path))
        self.step("plans signed")
        with self.serving(address), ThreadPoolExecutor(self.workers) as pool:
            self.step("coordinator serving")
            # The largest hospitals first: the last to finish decides when all are done.
            order = sorted(self.tables, key=lambda site: -self.tables[site].stat().st_size)
            for future in [pool.submit(self.hospital, site) for site in order]:
                future.result()

    def hospital(self, site: str) -> None:
        """One hospital: joins, approves the plans, releases, approves the exact bytes."""
        invitation = self.state / "invitations" / f"{site}.json"
        invitation.parent.mkdir(exist_ok=True)
        studies = [part for study in self.plans for part in ("--study", study)]
        self.coordinator("invite", site, *studies, "--out", str(invitation))
        made = self.agent(site, "init", "--invitation", str(invitation), "--approver", "steward")
        self.agent(site, "join")
        self.coordinator("accept", site, "--fingerprint", made["fingerprint"])
        self.agent(site, "join")
        self.step(f"{site}: joined")
        for study in self.plans:
            self.agent(site, "data", "add", str(self.tables[site]), "--as", study)
        self.step(f"{site}: table found, dictionary checked")
        for study in self.plans:
            self.agent(site, "plan", "approve", study, "--as", "steward", "--understood", "local")
            self.step(f"{site}: steward approved the plan {study}")
            self.report(self.done, self.steps, f"{site}: training, drawing once, checking ({study})")
            held = self.agent(site, "release", study, "--wave", "1")
            self.step(f"{site}: release of {study} held in the outbox")
            self.agent(site, "approve", held["release_id"], "--as", "steward")
            self.step(f"{site}: approved, delivered")
        self.step(f"{site}: done")

    # -- the answer -----------------------------------------------------------------------------------------------
    def arms(self, w: str) -> tuple[Arm, ...]:
        """Released, the w = 0 baseline, and (only here) the real tables."""
        return (
            Arm(label="real records", study=None),
            Arm(label=f"released, w = {w}", study=self.study),
            Arm(label="released, w = 0", study=self.baseline),
        )
