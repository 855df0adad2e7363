"""How much memory a 50 MB release takes on each side while it is delivered: of each process, peak resident size.

python -m tests.benchmarks.upload_memory [megabytes [name]]

The peak is the kernel's (`VmHWM`), reset before the delivery, so that it counts the delivery and not the imports. That
of the process which opens the bundle is sampled, and counts what it was forked with; without what files back
(`RssAnon`) it counts no libraries, and not the bundle itself, which is mapped. The table is random numbers, which do
not compress: the most memory that a bundle of a size can take.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.large_bundle import COLUMNS, rows_of, sealed, sending, study, taking
from tests.benchmarks.processes import reset_peak, resident
from tests.benchmarks.record import sized

SEED, MEGABYTES = 5, sized(50, 1)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def send(settings, releases, pipe):
    """The site's process."""
    from shared.base.keys import Envelope
    from site_agent.egress import Egress

    with Egress(**settings) as egress:
        for envelope, path in releases:
            pipe.recv()
            before = reset_peak()
            start = time.perf_counter()
            egress.send(Envelope.from_bytes(envelope), Path(path))
            seconds = time.perf_counter() - start
            pipe.send({"before_mb": before, "increase_mb": resident(name="VmHWM") - before, "seconds": seconds})


def main(megabytes=MEGABYTES, name="upload_memory"):
    import numpy as np
    from stage.both_sides.service import Hub

    from tests.benchmarks import record

    rng, rows = np.random.default_rng(SEED), rows_of(float(megabytes))
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder) / "hub", study(), "north")
        # A small one first: imports and first allocations are not the bundle's.
        made = [sealed(hub, wave, n, rng) for wave, n in ((1, 100), (2, rows))]
        hub.store.close()
        releases = [(one.envelope.to_bytes(), str(one.path)) for one in made]
        with taking(hub, len(made)) as coordinator, sending(send, coordinator.settings, releases) as site:
            for _ in made:
                with coordinator.delivery() as at_hub:
                    site.send("send")
                    at_site = site.recv()
    size = made[-1].statement.bundle_bytes / 1e6
    results = {"bundle_mb": size, "rows": rows, "columns": COLUMNS, "coordinator": at_hub, "site": at_site}
    print(json.dumps(results, indent=1))
    print(record.write(name, results, SEED))


if __name__ == "__main__":
    main(*sys.argv[1:])
