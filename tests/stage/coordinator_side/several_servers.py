"""Several coordinators that serve one store, as processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from stage.both_sides.service import Hub, small_table
from stage.processes.stopping import stopped

from coordinator.store.verify import verify_log
from shared.errors import Refusal
from shared.wire.site_messages import Acceptance
from tests.stage.house.sources import ROOT

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
        self.ending = stopped(self.end)
        self.ending.__enter__()
        return self.all

    def __exit__(self, *error: Any) -> None:
        self.ending.__exit__(*error)
        self.parent.stdin.close()
        self.parent.wait(60)
        self.parent.stdout.close()

    def end(self) -> None:
        """Kill those that still run."""
        for process, _ in self.all:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


SITES = ("north", "south", "east")


WAVES = range(1, 4)


def deliver(hub: Hub, site: str, ports: list[int], heard: Callable[[Acceptance], None]) -> list[str]:
    """A site delivers all its waves, each time to the next port, until it has an answer; what it was refused."""
    refused = []
    for wave in WAVES:
        name = hashlib.sha256(f"{site} {wave}".encode()).hexdigest()[:32]
        sealed = hub.seal(site, wave=wave, release_id=name, table=small_table(seed=wave))
        for attempt in range(40):
            hub_port = ports[(wave + attempt) % len(ports)]
            try:
                with hub.egress(site, address=f"127.0.0.1:{hub_port}") as egress:
                    heard(egress.send(sealed.envelope, sealed.path))
                break
            except Refusal as refusal:
                refused.append(refusal.code)
        else:
            raise AssertionError(f"{site} never had wave {wave} acknowledged: {refused}")
    return refused


def require_stored(hub: Hub, heard: list[Acceptance]) -> None:
    """What was acknowledged is there, once, with its bytes, in a log that is whole."""
    found = {release.bundle_sha256: release for release in hub.store.releases()}
    assert len(heard) == len(found) == len(SITES) * len(WAVES)
    for one in heard:
        release = found[one.bundle_sha256]
        assert (release.log_index, release.release_id) == (one.log_index, one.release_id)
        with hub.store.bundles.read(one.bundle_sha256) as path:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == one.bundle_sha256
    assert hub.store.bundles.names() == found.keys()
    assert len({one.log_index for one in heard}) == len(heard)
    assert verify_log(hub.store) == hub.store.entries()


def delivered(hub: Hub, ports: list[int], meanwhile: Callable[[int], None]) -> tuple[list[Acceptance], list[str]]:
    """All sites deliver at once; `meanwhile` is called with the number of acknowledgements after each."""
    heard: list[Acceptance] = []
    guard = threading.Lock()

    def note(one: Acceptance) -> None:
        with guard:
            heard.append(one)
            meanwhile(len(heard))

    with ThreadPoolExecutor(len(SITES)) as pool:
        running = [pool.submit(deliver, hub, site, ports, note) for site in SITES]
        return heard, [code for one in running for code in one.result()]
