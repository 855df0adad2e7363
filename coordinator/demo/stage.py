"""The demo's stage: a coordinator and one agent per hospital, as separate processes under one folder.

Everything goes through the command lines that people use; this module starts processes and reads their answers.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from coordinator.demo.warm import Aside, Launcher, RunningCommand
from shared.errors import ChecksRefusal, NetworkRefusal, StateRefusal, refusal_from_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.demo.play import Play

__all__ = ["STATE_MARK", "DemoStage"]

STATE_MARK = "state"
LEAD = "the lead"
"""Place at which the coordinator's commands are run; no hospital has a name with a space."""


@dataclass(kw_only=True)
class DemoStage:
    """A coordinator and its hospitals, under one folder.

    Args:
        out: folder of the figures, the tables and the state of all processes.
        launcher: starts the command lines.
        aside: does the demo's own work: answers and figures.
        play: the study that is shown: its plans, and what its hospitals do.
        tables: hospital name to its table.
        workers: hospitals at work at the same time.
        report: called with (steps done, all steps, what is happening).
    """

    out: Path
    launcher: Launcher
    aside: Aside
    play: Play
    tables: Mapping[str, Path]
    workers: int = 2
    report: Callable[[int, int, str], None] = lambda done, steps, what: None
    done: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    passphrase: str = field(default_factory=lambda: secrets.token_urlsafe(12), init=False, repr=False)

    def __post_init__(self) -> None:
        self.state = self.out / STATE_MARK
        self.hub = self.state / "coordinator"
        self._counting = Lock()
        self.plans = self.play.plans(dt.date.today())

    # -- processes ------------------------------------------------------------------------------------------------
    def command(self, module: str, *arguments: str, at: str, env: Mapping[str, str] | None = None) -> Any:
        """Run one command line to its end and return its JSON answer. Raises: the Refusal that it reported.

        Args:
            at: the place at which it is run: a hospital, or the lead's desk.
        """
        given_env = {"TRIBUTARY_PASSPHRASE": self.passphrase, **(env or {})}
        made = self.launcher.run(module, [*arguments, "--json"], given_env, at=at)
        answer = json.loads(made.out) if made.out.strip().startswith(("{", "[")) else {}
        if made.code:
            refused = answer.get("refused", {}) if isinstance(answer, dict) else {}
            given = f", got {refused['given']}" if refused.get("given") else ""
            text = f"{refused['must']}{given}. {refused['next_step']}" if refused else made.err[-600:]
            said = f"{module.split('.')[0].replace('_', '-')} {' '.join(arguments[:2])}"
            raise refusal_from_code(refused.get("code", "E_REFUSED"), f"{said}: {text.strip()}")
        return answer

    def coordinator(self, *arguments: str) -> Any:
        """One `coordinator` command."""
        return self.command("coordinator.cli", "--home", str(self.hub), *arguments, at=LEAD)

    def agent(self, site: str, *arguments: str) -> Any:
        """One `site-agent` command at a hospital."""
        return self.command("site_agent.cli", *arguments, at=site, env={"TRIBUTARY_SITE_HOME": str(self.home(site))})

    def home(self, site: str) -> Path:
        """The hospital's state folder."""
        return self.state / "hospitals" / site

    @contextmanager
    def serving(self) -> Iterator[RunningCommand]:
        """The coordinator's server as a process of its own, stopped by its own id."""
        argv = ["--home", str(self.hub), "serve"]
        server = self.launcher.start("coordinator.cli", argv, {}, self.state / "coordinator.log")
        try:
            yield server
        finally:
            server.stop(15)

    # -- the story ------------------------------------------------------------------------------------------------
    def step(self, what: str) -> None:
        """Say that one more step is done."""
        with self._counting:
            self.done += 1
            self.report(self.done, self.steps, what)

    def run(self) -> None:
        """Run the demo from an empty folder to the end of its play; as a rule, every release of wave 1 is accepted."""
        self.done, self.steps = 0, 3 + self.play.steps(self)
        self.report(0, self.steps, "setting up the coordinator")
        self.state.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.coordinator("init", "--address", address, "--listen", address)
        self.step("coordinator ready, keys made")
        with self.serving() as server:  # it starts while the lead signs
            for study, text in self.plans.items():
                path = self.state / f"{study}.toml"
                path.write_text(text, encoding="utf-8")
                self.coordinator("plan", "sign", str(path))
            self.step("plans signed by the lead")
            _await(address, server)
            self.step(f"coordinator serving on {address}")
            self._play()

    def _play(self) -> None:
        with ThreadPoolExecutor(self.workers) as pool:
            self.play.act(self, lambda scene: self._everywhere(pool, scene))

    def _everywhere(self, pool: ThreadPoolExecutor, scene: Callable[[str], None]) -> None:
        """Have every hospital do the same, a few at a time."""
        # The largest hospitals first: the last to finish decides when all are done.
        order = sorted(self.tables, key=lambda site: -self.tables[site].stat().st_size)
        futures = [pool.submit(scene, site) for site in order]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def accounts(self) -> dict[str, Any]:
        """Each hospital's budget for all its releases together, from its own ``budget`` command."""
        with ThreadPoolExecutor(self.workers) as pool:
            return dict(
                zip(self.tables, pool.map(lambda site: self.agent(site, "budget")["site"], self.tables), strict=True)
            )

    # -- scenes ---------------------------------------------------------------------------------------------------
    def join(self, site: str) -> None:
        """A hospital is invited, joins, finds its table and approves the plans: 2 steps."""
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
            self.agent(site, "plan", "fetch", study)
            self.play.add_data(self, site, study)
            posture = next((p for p in ("local", "holdout") if f'posture = "{p}"' in self.plans[study]), "")
            open_questions = ["--understood", posture] if posture else []
            self.agent(site, "plan", "approve", study, "--as", "steward", *open_questions)
        self.step(f"{site}: table found, plans approved by the steward")

    def release(self, site: str, *studies: str) -> None:
        """A hospital releases wave 1 of these plans, or of all, and approves the exact bytes: 2 steps each."""
        for study in studies or self.plans:
            self.report(self.done, self.steps, f"{site}: training, drawing once, attacking the draw ({study})")
            held = self._drawn(site, study)
            self.step(f"{site}: release of {study} waits in the outbox")
            ticks = [part for warning in held.get("warnings", []) for part in ("--tick", warning["name"])]
            self.agent(site, "approve", held["release_id"], "--as", "steward", *ticks)
            self.step(f"{site}: exact bytes approved and delivered ({study})")

    def _drawn(self, site: str, study: str) -> Any:
        """Release wave 1; where the checks refuse the draw, once more, as a steward would: the budget has room for it.

        One harmless release in 2,000 is refused as beyond chance, and the demo makes two dozen.
        """
        try:
            return self.agent(site, "release", study, "--wave", "1")
        except ChecksRefusal:
            self.report(self.done, self.steps, f"{site}: the checks refused the draw of {study}, it is made again")
            return self.agent(site, "release", study, "--wave", "1")


# -- inside -----------------------------------------------------------------------------------------------------
def _await(address: str, server: RunningCommand) -> None:
    """Wait until the server accepts connections."""
    host, port = address.rsplit(":", 1)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if (code := server.poll()) is not None:
            raise StateRefusal(
                "the coordinator must start", given=f"exit code {code}", next_step="See coordinator.log."
            )
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise NetworkRefusal("the coordinator must answer", given="no answer in 30 s", next_step="See coordinator.log.")
