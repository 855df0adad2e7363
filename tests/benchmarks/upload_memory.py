"""How much memory a 50 MB release takes on each side while it is delivered: two processes, peak resident size.

python -m tests.benchmarks.upload_memory

The peak is the kernel's (`VmHWM` of /proc/self/status), reset before the delivery, so that it counts the delivery and
not the imports. The table is random numbers, which do not compress: the most memory that a bundle of a size can take.
"""

import datetime as dt
import json
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks.record import sized

SEED, MEGABYTES, COLUMNS = 5, sized(50, 1), 16
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def resident(name):
    """`name` of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def reset_peak():
    """Let the kernel's high-water mark start from now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def study():
    """A plan whose dictionary has only numbers."""
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.plans.dictionary import Column, Dictionary
    from shared.plans.plan import Budget, StudyPlan, Wave

    columns = tuple(Column(name=f"x{k}", kind="continuous", lower=0, upper=1) for k in range(COLUMNS))
    waves = tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in (1, 2))
    return StudyPlan(
        study="big",
        version=1,
        title="A large release",
        purpose="To measure memory.",
        coordinator="hub",
        expires=dt.date(2999, 1, 1),
        release=LatentNoisePlan(w=0.5),
        budget=Budget(epsilon=1e4),
        waves=waves,
        returning="refresh",
        dictionary=Dictionary(name="big", version=1, columns=columns),
    )


def serve(home, pipe, deliveries=2):
    """The coordinator's process, and what it takes at most for each of some deliveries."""
    from coordinator.services.collect.server import CoordinatorServer

    with CoordinatorServer(Path(home), "127.0.0.1:0") as running:
        pipe.send(running.port)
        for _ in range(deliveries):
            pipe.recv()
            before = reset_peak()
            pipe.send("ready")
            pipe.recv()
            pipe.send({"before_mb": before, "increase_mb": resident("VmHWM") - before})


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
            pipe.send({"before_mb": before, "increase_mb": resident("VmHWM") - before, "seconds": seconds})


def main():
    import numpy as np
    import pandas as pd
    from service import Hub

    from tests.benchmarks import record

    rng = np.random.default_rng(SEED)
    rows = MEGABYTES * 10**6 // 8 // COLUMNS
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        plan = study()
        hub = Hub(Path(folder) / "hub", plan, "north")
        releases = []
        for wave, n in ((1, 100), (2, rows)):  # a small one first: imports and first allocations are not the bundle's
            table = pd.DataFrame(rng.random((n, COLUMNS)), columns=list(plan.dictionary.names))
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=table)
            releases.append((sealed.envelope.to_bytes(), str(sealed.path)))
            size = sealed.statement.bundle_bytes
        hub.store.close()
        hub_end, hub_pipe = context.Pipe()
        site_end, site_pipe = context.Pipe()
        server = context.Process(target=serve, args=(str(hub.home), hub_pipe))
        server.start()
        hub_pipe.close()  # whoever fell over is not waited for
        port = hub_end.recv()
        address = f"127.0.0.1:{port}"
        settings = {"address": address, "server_name": "tributary-coordinator", "credentials": hub.credentials("north")}
        site = context.Process(target=send, args=(settings, releases, site_pipe))
        site.start()
        site_pipe.close()
        for _ in releases:
            hub_end.send("reset")
            hub_end.recv()
            site_end.send("send")
            at_site = site_end.recv()
            hub_end.send("measure")
            at_hub = hub_end.recv()
        for process in (site, server):
            process.join()
            assert process.exitcode == 0
    results = {"bundle_mb": size / 1e6, "rows": rows, "columns": COLUMNS, "coordinator": at_hub, "site": at_site}
    print(json.dumps(results, indent=1))
    print(record.write("upload_memory", results, SEED))


if __name__ == "__main__":
    main()
