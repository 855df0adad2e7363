"""A coordinator that takes deliveries, its servers as processes that die where they are told, and their failpoints."""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest
from stage.both_sides.service import SMALL, Hub

from coordinator.config import Quotas
from shared.errors import Refusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.wire.site_messages import Offered, OfferRequest
from tests.stage.house.sources import ROOT

ALWAYS = (dt.date(2000, 1, 1), dt.date(2999, 1, 1))


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    waves = [Wave(number=k, opens=ALWAYS[0], closes=ALWAYS[1]) for k in range(1, 41)]
    return StudyPlan(
        study="mini",
        version=1,
        title="A small study",
        purpose="To test delivery.",
        coordinator="hub",
        expires=dt.date(2999, 1, 1),
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1e5),
        waves=(*waves, Wave(number=41, opens=dt.date(2998, 1, 1), closes=ALWAYS[1])),
        dictionary=SMALL,
        returning="refresh",
    )


@pytest.fixture
def hub(tmp_path, plan, database):
    hub = Hub.alike(tmp_path / "hub", plan, "north", "south")
    with hub.serve(
        quotas=Quotas(calls=10**7, anchor_calls=10**7, refused_a_day=10**6)
    ):  # tests/coordinator_side/services/test_quotas.py has them
        yield hub
    hub.store.close()


def refused(kind: type[Refusal], work) -> Refusal:
    with pytest.raises(Refusal) as caught:
        work()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"
    return caught.value


def offer(client, sealed) -> Offered:
    return client.call("Offer", OfferRequest(envelope=sealed.envelope.to_bytes()), timeout=60)


SERVER = """
import os, signal, sys
import grpc, pandas, pyarrow.compute, pyarrow.parquet  # noqa: before the fork, so that each server starts at once
from pathlib import Path
import coordinator.services.compute.tasks
from stage.processes.stem import plant
from coordinator.services.collect import server
import shared.releases.bundle, shared.releases.statement
for line in sys.stdin:
    home, failpoint, url, *bundles = line.split()
    started, told = os.pipe()
    child = os.fork()
    if not child:
        os.environ["TRIBUTARY_FAILPOINT"] = failpoint
        plant()
        try:
            ready = lambda port: os.write(told, b"%d\\n" % port)
            settings = server.ServerSettings(url=url, bundles="".join(bundles))
            server.serve(Path(home), "127.0.0.1:0", settings, ready=ready)
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(started) as pipe:
        port = pipe.readline().strip()
    print(child, port or "dead", flush=True)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else "ended", flush=True)
"""


class Servers:
    """Real server processes, one after the other, each told where to die."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
        env["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # as workers have it
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            cwd=ROOT,
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=lambda: [self.lines.put(line) for line in self.process.stdout])
        self.reader.start()

    def run(self, failpoint: str, work) -> str:
        """Start a server that dies at `failpoint`, do `work` with it, end it; how it ended."""
        self.process.stdin.write(f"{self.hub.home} {failpoint} {self.hub.store.place[0]} {self.hub.bundles}\n")
        self.process.stdin.flush()
        child, port = self.line(failpoint).split()
        if port != "dead":
            self.hub.port = int(port)
            try:
                work()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGTERM)
        return self.line(failpoint)

    def line(self, failpoint: str) -> str:
        """What the servers say next; a server that never starts or never ends is a failure, not a hang."""
        try:
            return self.lines.get(timeout=300).strip()
        except queue.Empty:
            raise AssertionError(f"no answer from the server that dies at {failpoint}") from None

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # its server too, or the pipe below would never close
            self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()


def sources() -> str:
    """The files that take a bundle, one after the other."""
    room = ROOT / "coordinator"
    names = ("services/collect/service", "services/collect/staging", "services/collect/ingest", "store/bundles/folder")
    texts = [(room / f"{name}.py").read_text() for name in names]
    return "".join(text.partition("import annotations")[2] for text in texts)


def failpoints(kind: str = "ingest") -> list[str]:
    """Those of an ingest, or of a withdrawal (``withdraw``: test_withdrawal.py)."""
    calls = [
        node
        for node in ast.walk(ast.parse(sources()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reach"
    ]
    names = [ast.literal_eval(call.args[0]) for call in calls]
    assert {name.partition(".")[0] for name in names} == {"ingest", "withdraw"}
    return [name for name in names if name.startswith(f"{kind}.")]
