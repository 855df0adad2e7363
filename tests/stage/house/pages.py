"""A terminal that runs a page of the documentation as it is written: real processes, one shell for all blocks.

A page has some sixty commands. They are forked from the zygote (`theatre`), which has the libraries imported already;
the shell, its pipes and exit codes are those that a reader would have.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from stage.processes.theatre import zygote

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = {
    "site-agent": "site_agent.cli",
    "coordinator": "coordinator.cli",
    "analyst": "coordinator.analyst.commands",
    "tributary": "coordinator.demo",
}
SERVER = "coordinator serve"
ASK = """
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
order = {"module": sys.argv[2], "argv": sys.argv[3:], "env": dict(os.environ), "cwd": os.getcwd()}
socket.send_fds(line, [json.dumps(order).encode() + b"\\n"], [0, 1, 2])
said = b""
while more := line.recv(64):
    said += more
    if b"\\n" in said:
        pid = int(said.split(b"\\n")[0])
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
code = int(said.split(b"\\n")[1])
sys.exit(code if code >= 0 else 128 - code)
"""
"""In place of a program: have the zygote fork it, with this process's streams; its exit code, and the way to end it."""


class Terminal:
    """One shell for all blocks: folder, exported variables and functions live from one to the next, as they would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.log = folder, folder / "terminal", folder / "serve.log"
        programs, python = folder / "bin", shlex.quote(sys.executable)
        programs.mkdir()
        (folder / "ask.py").write_text(ASK)
        ask = f"{python} -I -S {shlex.quote(str(folder / 'ask.py'))} {shlex.quote(str(zygote(ROOT)))}"
        for name, module in {**PROGRAMS, "python": ""}.items():
            started = f"{ask} {module}" if module else python
            (programs / name).write_text(f'#!/bin/sh\nexec {started} "$@"\n')
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
            self.script(block), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
        )
        if ran.returncode:
            served = self.log.read_text(encoding="utf-8")[-3000:] if self.log.exists() else ""
            raise AssertionError(f"{block}\n{ran.stdout}\n{ran.stderr}\nThe server's last lines:\n{served}")
        print(ran.stdout)
        return ran.stdout

    def start(self, block: str) -> subprocess.Popen[bytes]:
        # exec, so that the process that is stopped at the end is not a shell around it.
        command = ["bash", "-euc", f". {shlex.quote(str(self.state))}\nexec {block.strip()}"]
        with self.log.open("wb") as log:
            return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_for(self, server: subprocess.Popen[bytes], word: str) -> str:
        for _ in range(3000):
            said = self.log.read_text(encoding="utf-8")
            if word in said:
                return said
            assert server.poll() is None, said
            time.sleep(0.1)
        raise AssertionError(f"the server did not say {word!r}")
