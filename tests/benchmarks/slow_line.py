"""A large bundle over a slow line that breaks: whether it arrives, what is sent twice, and the memory of both ends.

python -m tests.benchmarks.slow_line [megabytes [Mbit/s [cuts]]]

200 MB over 1 Mbit/s with ten cuts (half an hour). The line is a relay that hands on no more than its rate, as much as
one packet at a time, in front of the coordinator; at ten places, evenly apart, it breaks every connection. Sent is what
the relay took from the site, TLS and gRPC included. The agent's own attempts are used up first; then the site sends
again, as a person does who reads that the approval is kept. Peaks are the kernel's (`VmHWM`), libraries included, of
the coordinator's serving process, of the one that then opens the bundle, and of the agent's.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmarks.large_bundle import rows_of, sealed, sending, study, taking
from tests.benchmarks.processes import resident
from tests.benchmarks.record import sized

MEGABYTES, MBIT, CUTS = sized((200.0, 1.0, 10), (1.0, 20.0, 2))
SEED = 6
ENOUGH = 50  # times that a person sends again


class Line:
    """What becomes of the site's bytes: so many a second, and a break at certain places."""

    def __init__(self, rate: float, breaks: list[int]) -> None:
        self.rate, self.breaks = rate, breaks
        self.sent, self.broken = 0, 0
        self._free, self._guard = 0.0, threading.Lock()

    def __call__(self, piece: Any, rng: Random) -> bytes:
        if not piece.out:
            return bytes(piece.data)
        with self._guard:
            now = time.monotonic()
            self._free = max(now, self._free) + len(piece.data) / self.rate
            pause, self.sent = self._free - now, self.sent + len(piece.data)
            cut = bool(self.breaks) and self.sent >= self.breaks[0]
            if cut:
                self.breaks.pop(0)
                self.broken += 1
        time.sleep(pause)
        if cut:
            raise ConnectionError
        return bytes(piece.data)


def send(settings: dict[str, Any], envelope: bytes, path: str, pipe: Any) -> None:
    """The site's process."""
    from shared.base.keys import Envelope
    from shared.errors import NetworkRefusal
    from site_agent.egress import Egress

    begun, refused = time.perf_counter(), 0
    for again in itertools.count():
        try:
            with Egress(**settings) as egress:
                egress.send(Envelope.from_bytes(envelope), Path(path))
            break
        except NetworkRefusal:
            refused += 1
            if again == ENOUGH:
                raise
    seconds = time.perf_counter() - begun
    pipe.send({"peak_mb": resident(name="VmHWM"), "seconds": seconds, "sent_again_by_hand": refused})


def measured(megabytes: float, mbit: float, cuts: int) -> dict[str, Any]:
    """One delivery."""
    import numpy as np
    from faults.proxy import through
    from stage.both_sides.service import Hub

    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder) / "hub", study(), "north")
        made = sealed(hub, 1, rows_of(megabytes), np.random.default_rng(SEED))
        size = made.statement.bundle_bytes
        hub.store.close()
        line = Line(mbit * 1e6 / 8, [int(size * (k + 0.5) / cuts) for k in range(cuts)])
        with taking(hub, 1) as coordinator, through(coordinator.port, line, SEED) as relay:
            settings = {**coordinator.settings, "address": f"127.0.0.1:{relay.port}"}
            with (
                coordinator.delivery() as at_hub,
                sending(send, settings, made.envelope.to_bytes(), str(made.path)) as site,
            ):
                at_site = site.recv()
        stored = hub.copied(Path(folder) / "after").store.releases()
        assert [one.bundle_sha256 for one in stored] == [made.statement.bundle_sha256]
    return {
        "bundle_mb": size / 1e6,
        "mbit_per_s": mbit,
        "cuts": line.broken,
        "sent_mb": line.sent / 1e6,
        "sent_over_size": line.sent / size,
        "coordinator_peak_mb": at_hub["before_mb"] + at_hub["increase_mb"],
        "coordinator_before_mb": at_hub["before_mb"],
        "reading": at_hub["reading"],
        "site": at_site,
    }


def main() -> None:
    """Measure, and write the file."""
    from tests.benchmarks import record

    given = [float(text) for text in sys.argv[1:]]
    megabytes, mbit, cuts = (*given, *(MEGABYTES, MBIT, CUTS)[len(given) :])
    results = measured(megabytes, mbit, int(cuts))
    print(json.dumps(results, indent=1))
    if not given:
        print(record.write("slow_line", results, SEED))


if __name__ == "__main__":
    main()
