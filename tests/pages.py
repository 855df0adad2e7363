"""A terminal that runs a page of the documentation as it is written: real processes, one shell for all blocks."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"site-agent": "site_agent.cli", "coordinator": "coordinator.cli", "analyst": "coordinator.client"}
SERVER = "coordinator serve"


class Terminal:
    """One shell for all blocks: folder, exported variables and functions live from one to the next, as they would."""

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
            f'. {here}\n{block}\n{{ export -p; declare -f; printf "cd %q\\n" "$PWD"; }} > {here}',
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
