"""Memory of a coordinator that is sent bundles which decode to much, and how long others wait for a dear question.

python -m tests.benchmarks.sandbox

`Coordinator` in a process of its own, loopback, real TLS, default limits. *Bundles*: each kind that
`test_sandbox.py` knows, at a size that once took gigabytes, signed for as many persons as it has rows, then an
honest one of 49 MB; the peak is the kernel's for the serving process (`VmHWM`, imports included), that of the processes
that read is sampled. *Questions*: one analyst asks a logistic model of 38 polynomial terms of sixteen sites (it has no
maximum, and every site is tried), another asks new means meanwhile, one after the other.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import peaks, resident
from tests.benchmarks.record import sized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SEED = 5
SITES, PERSONS = sized((16, 3000), (2, 200))
SIZES = {
    "a long word, repeated": 3_000_000,
    "a long level, repeated": 3_000_000,
    "equal numbers": 100_000_000,
    "lists of long words": 200_000,
    "rows that only the index has": 1 << 26,
    "columns that only the index has": 1 << 26,
    "many row groups": 20_000,
    "wide values": 3_000_000,
}
POWERS = [f"I({name}^{k})" for k in range(1, 11) for name in ("age", "sbp", "chol", "hdl")][:38]


def serve(home: str, analysts: str, pipe: Any) -> None:
    """The coordinator's process."""
    from coordinator.config import AnalysisSettings
    from coordinator.services.collect.server import CoordinatorServer, ServerSettings

    settings = ServerSettings(analysts=analysts, analysis=AnalysisSettings(rate=0))
    with CoordinatorServer(Path(home), "127.0.0.1:0", settings) as running:
        pipe.send((os.getpid(), running.port, running.analysts_port))
        pipe.recv()


def bundles(folder: Path, context: Any) -> dict[str, Any]:
    """Kind of bundle to what it took."""
    from stage.both_sides.service import Hub, small_table
    from stage.coordinator_side.sandbox import BOMBS, PLAN, sealed_around

    from shared.errors import Refusal

    told: dict[str, Any] = {}
    hub = Hub(folder / "hub", PLAN, "north")
    end, theirs = context.Pipe()
    server = context.Process(target=serve, args=(str(hub.home), "", theirs))
    server.start()
    pid, hub.port, _ = end.recv()
    sealed = {}
    for kind, rows in SIZES.items():
        table, rows = BOMBS[kind][0](rows)
        sealed[kind] = sealed_around(hub, table, rows, n=rows)
    sealed["honest"] = hub.seal("north", release_id="99" * 16, table=small_table(sized(6_200_000, 1000)))
    with hub.egress("north", timeout=120.0, sleep=lambda seconds: None) as egress:
        for kind, one in sealed.items():
            begun, said = time.perf_counter(), "accepted"
            with peaks(pid) as most:
                try:
                    egress.send(one.envelope, one.path)
                except Refusal as refusal:
                    said = refusal.code
            told[kind] = {
                "bytes": one.statement.bundle_bytes,
                "seconds": time.perf_counter() - begun,
                "said": said,
                "serving_peak_mb": resident(pid, "VmHWM"),
                "reading_peak_mb": most["resident_mb"],
            }
            print(kind, told[kind], flush=True)
    end.send("stop")
    server.join()
    hub.store.close()
    return told


def questions(folder: Path, context: Any) -> dict[str, Any]:
    """How long an analyst waits beside another's dear question."""
    from stage.coordinator_side.analysis import Desk
    from stage.coordinator_side.delivered import cohort, cohort_plan

    from coordinator.analyst.commands import connect
    from shared.errors import Refusal

    desk = Desk(folder / "desk")
    desk.publish(cohort_plan())
    for k in range(SITES):
        desk.add("cvd", f"site{k:02}", cohort(PERSONS, SEED + k))
    end, theirs = context.Pipe()
    server = context.Process(target=serve, args=(str(desk.home), "127.0.0.1:0", theirs))
    server.start()
    pid, _, port = end.recv()
    desk.address = f"127.0.0.1:{port}"
    ada, ben = (connect(desk.admit(name)) for name in ("ada", "ben"))
    told: dict[str, Any] = {}
    done = threading.Event()

    def dear() -> None:
        begun = time.perf_counter()
        try:
            ada["cvd"].logistic("cvd ~ " + " + ".join(POWERS))
            told["dear_said"] = "answered"
        except Refusal as refusal:
            told["dear_said"] = refusal.code
        told["dear_seconds"] = time.perf_counter() - begun
        done.set()

    waits = []
    begun = time.perf_counter()
    ben["cvd"].mean("age")
    told["first_seconds"] = time.perf_counter() - begun  # the server has just started: it still imports
    asking = threading.Thread(target=dear)
    asking.start()
    while not done.is_set():
        begun = time.perf_counter()
        ben["cvd"].mean("sbp", subset=f"age >= {40 + len(waits) / 1000:g}")
        waits.append(time.perf_counter() - begun)
    asking.join()
    for connection in (ada, ben):
        connection.close()
    told |= {"others_asked": len(waits), "others_waited_at_most": max(waits), "median": sorted(waits)[len(waits) // 2]}
    told |= {"serving_peak_mb": resident(pid, "VmHWM")}
    end.send("stop")
    server.join()
    desk.store.close()
    return told


def main() -> None:
    from tests.benchmarks import record

    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        sent = bundles(Path(folder), context)
        asked = questions(Path(folder), context)
    worst = max(one["serving_peak_mb"] for one in sent.values())
    bombs = [one for kind, one in sent.items() if kind != "honest"]
    results = {
        "bundles": sent,
        "serving_peak_mb": max(worst, asked["serving_peak_mb"]),
        "slowest_refusal_seconds": max(one["seconds"] for one in bombs),
        "reading_peak_mb": max(one["reading_peak_mb"] for one in bombs),
        "questions": {"sites": SITES, "persons_each": PERSONS, "terms": len(POWERS), **asked},
        "load_average": os.getloadavg()[0],
    }
    print(record.write("sandbox", results, SEED))
    print(asked)


if __name__ == "__main__":
    main()
