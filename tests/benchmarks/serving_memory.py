"""Whether a coordinator grows by being called: a day's calls in minutes, and its memory after each thousand.

python -m tests.benchmarks.serving_memory [calls]

Four sites over mutual TLS, each on a connection that is made anew every hundred calls: status, plan, clock, a ledger's
head, the same release again, a look at the log. Sizes are of the serving process, in megabytes; the slope is of a line
through the second half, in MB for ten thousand calls.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.processes import resident
from tests.benchmarks.record import sized
from tests.stage.processes.stopping import started

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SERVING = """
import pathlib, sys
from coordinator.config import Quotas
from coordinator.services.collect.server import ServerSettings, serve
settings = ServerSettings(quotas=Quotas(calls=10**7, anchor_calls=10**7))
ready = lambda port: print(port, flush=True)
serve(pathlib.Path(sys.argv[1]), "127.0.0.1:0", settings, ready=ready)
"""
SITES = ("north", "south", "west", "east")
EACH = sized(1000, 8)  # calls between two looks at the memory


def calls_of(hub: Any, site: str, sealed: Any, count: int) -> None:
    """So many calls of one site, a hundred on each connection."""
    key = hub.sites[site].release
    for begun in range(0, count, 100):
        with hub.egress(site) as egress:
            for number in range(begun, min(count, begun + 100)):
                kind = number % 6
                if kind == 0:
                    egress.status("mini")
                elif kind == 1:
                    egress.fetch_plan("mini")
                elif kind == 2:
                    egress.clock(site, key)
                elif kind == 3:
                    egress.anchor(hub.anchor(site, 1))
                elif kind == 4:
                    egress.send(sealed.envelope, sealed.path)
                else:
                    egress.watch()


def main() -> None:
    """Measure, print, and write the file."""
    from benchmarks.front import study
    from stage.both_sides.service import Hub, small_table

    from tests.benchmarks import record

    calls = int(sys.argv[1]) if len(sys.argv) > 1 else sized(20_000, 32)
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder) / "hub", study(), *SITES)
        sealed = {
            site: hub.seal(site, table=small_table(seed=k), release_id=f"{k:032x}") for k, site in enumerate(SITES)
        }
        hub.store.close()
        argv = [sys.executable, "-c", SERVING, str(hub.home)]
        with started(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            hub.port = int(server.stdout.readline())
            sizes, begun = [resident(server.pid)], time.monotonic()
            done = 0

            def work(site: str) -> None:
                calls_of(hub, site, sealed[site], EACH // len(SITES))

            while done < calls:
                with ThreadPoolExecutor(len(SITES)) as pool:
                    list(pool.map(work, SITES))
                done += EACH
                sizes.append(resident(server.pid))
                print(f"{done:>7} calls, {sizes[-1]:.1f} MB", flush=True)
                gc.collect()
    half = len(sizes) // 2
    slope = float(np.polyfit(np.arange(half, len(sizes)), sizes[half:], 1)[0]) * 10_000 / EACH
    results = {
        "calls": done,
        "seconds": round(time.monotonic() - begun),
        "first_mb": round(sizes[0], 1),
        "after_mb": [round(size, 1) for size in sizes[1:]],
        "second_half_mb_per_10000_calls": round(slope, 2),
    }
    print(results)
    record.write("serving_memory", results, seed=0)


if __name__ == "__main__":
    main()
