"""Several coordinators that serve one store, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from service import Hub

from tests.sources import ROOT

SERVER = """
import os, sys
import grpc, pandas, pyarrow.compute, pyarrow.parquet  # noqa: before the fork, so that each server starts at once
from pathlib import Path
import coordinator.services.compute.tasks
from coordinator.services.collect import server
home, url, bundles, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
for _ in range(count):
    if not (child := os.fork()):
        try:
            ready = lambda port: print(os.getpid(), port, flush=True)
            server.serve(home, "127.0.0.1:0", server.ServerSettings(url=url, bundles=bundles), ready=ready)
        finally:
            os._exit(0)
sys.stdin.read()
"""


class Processes:
    """Real processes that serve one home: (process, port) of each."""

    def __init__(self, hub: Hub, count: int) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}", "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-c", SERVER, f"{hub.home}", hub.url, hub.bundles, f"{count}"]
        pipe = subprocess.PIPE
        self.parent = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)
        self.all = [tuple(map(int, self.parent.stdout.readline().split())) for _ in range(count)]

    def __enter__(self) -> list[tuple[int, int]]:
        return self.all

    def __exit__(self, *_: object) -> None:
        for process, _ in self.all:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.parent.stdin.close()
        self.parent.wait(60)
        self.parent.stdout.close()
