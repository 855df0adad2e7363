"""The first ten minutes run as they are written: each block of the page, in order, as real processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "first-ten-minutes.md").read_text(encoding="utf-8")
PROGRAMS = {"site-agent": "site_agent.cli", "coordinator": "coordinator.cli", "analyst": "coordinator.client"}
SERVER = "coordinator serve"

# What a block must say, by a line of it. Words that no draw and no date changes.
SAYS = {
    "cp ../deploy": (),
    "coordinator init": ("tributary-hub is set up", "CA fingerprint"),
    "coordinator plan check": ("✓ estimand adjusted", "! guarantee", "next: coordinator plan cost first.toml"),
    "coordinator plan cost": ("180.6   119.4   yes", "not a meaningful formal guarantee", "take w = 0.042"),
    "coordinator plan sign": ("signed and published first, version 1",),
    "coordinator invite": ("wrote north.invitation", "wrote south.invitation", "wrote east.invitation"),
    SERVER: ("tributary-hub answers on",),
    "site-agent init --invitation north": ("Site north", "Read the fingerprint to the study lead"),
    "site-agent doctor": ("→ site-agent join", "answers", "allow outbound TCP", "nothing inbound"),
    "site-agent join": ("waiting for the study lead",),
    "coordinator accept north": ("north is accepted", "Site north has joined tributary-hub"),
    "site-agent plan show": ("4 columns of privatised rows", "Not covered by this price", "posture local"),
    "site-agent data check": ("column in the file", "1000 rows, 0 incomplete left out"),
    "site-agent try": ("made-up data, cost 0, nothing sent", "It shows that the steps work here."),
    "site-agent plan approve first --as ines --understood": ("approved by ines",),
    "site-agent release": ("Attacks we tried", "Not covered", "It is held here. Nothing has been sent."),
    "site-agent outbox show": ("not patient records", "age   sex", "Not covered", "site-agent approve"),
    "site-agent approve $id": ("delivered", "of the coordinator's log", "ε = 180.6 of 300"),
    "for site in south east": ("Site south has joined", "Site east has joined", "delivered"),
    "coordinator releases": ("east    accepted", "Accepted", "north", "1000"),
    "coordinator pool": ("planned analysis adjusted", "random effects (REML, adhoc)", "Shown as ratios"),
    "coordinator figure": ("wrote forest.svg",),
    "analyst pool": ("east", "north", "south", "random effects (DL, knha)"),
}


def test_every_block_of_the_first_ten_minutes_does_what_the_page_says(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(SAYS)
    terminal = Terminal(tmp_path)
    server = None
    try:
        for block, (command, words) in zip(blocks, SAYS.items(), strict=True):
            assert command in block
            if block.strip() == SERVER:
                server = terminal.start(block)
                said = terminal.wait_for(server, words[0])
            else:
                said = terminal.run(block)
            for word in words:
                assert word in said, f"{word!r} is not in what this block says:\n{block}\n{said}"
        assert server is not None
        assert server.poll() is None
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=20)
    assert "<svg" in (tmp_path / "first" / "forest.svg").read_text(encoding="utf-8")


class Terminal:
    """One shell for all blocks: folder and exported variables live from one to the next, as they would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.log = folder, folder / "terminal", folder / "serve.log"
        (folder / "deploy").symlink_to(ROOT / "deploy")
        programs = folder / "bin"
        programs.mkdir()
        for name, module in {**PROGRAMS, "python": ""}.items():
            started = f"{shlex.quote(sys.executable)} {f'-m {module} ' if module else ''}"
            (programs / name).write_text(f'#!/bin/sh\nexec {started}"$@"\n')
            (programs / name).chmod(0o755)
        self.state.write_text(f"cd {shlex.quote(str(folder))}\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIBUTARY_")}
        self.env = kept | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }

    def script(self, block: str) -> list[str]:
        # 8443 may be taken where this runs; the blocks are otherwise run as they stand.
        block = block.replace("8443", self.port)
        here = shlex.quote(str(self.state))
        return [
            "bash",
            "-euo",
            "pipefail",
            "-c",
            f'. {here}\n{block}\n{{ export -p; printf "cd %q\\n" "$PWD"; }} > {here}',
        ]

    def run(self, block: str) -> str:
        print(f"$ {block}")
        ran = subprocess.run(
            self.script(block), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        print(ran.stdout)
        return ran.stdout

    def start(self, block: str) -> subprocess.Popen[bytes]:
        # exec, so that the process that is stopped at the end is the server and not a shell around it.
        command = ["bash", "-euc", f". {shlex.quote(str(self.state))}\nexec {block}"]
        with self.log.open("wb") as log:
            return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_for(self, server: subprocess.Popen[bytes], word: str) -> str:
        for _ in range(600):
            said = self.log.read_text(encoding="utf-8")
            if word in said:
                return said
            assert server.poll() is None, said
            time.sleep(0.1)
        raise AssertionError(f"the server did not say {word!r}")
