"""Load: 121 hospitals that deliver, to one, two and four processes, on SQLite and PostgreSQL; one is killed.

python -m tests.benchmarks.load [sites] [--waves N]
python -m tests.benchmarks.load 200 --waves 12 --cut .05 --name load_waves

Each site delivers a bundle of about 100 kB in each wave over mutual TLS, each time to the next process. All begin at
once, so that the last waits for everybody; in the cases `within a minute` each begins when its lot within the first
fifty seconds says, as hospitals do that have a minute to deliver in. The clock begins when the
serving processes have imported what they read bundles with, and rest.
Where several serve, one is killed with SIGKILL when a third of the bundles is acknowledged; its sites go on with the
others. After each case every acknowledgement is
held against the store: its place in the log, its bundle's digest, the log as a whole. Sites are threads of one process,
which share the machine with the coordinator and the database; the database does not flush (``fsync=off``), SQLite does.
With ``--cut`` every site delivers all its waves, to one process on SQLite and on PostgreSQL and to four on PostgreSQL,
through relays that break that share of the connections in the middle of a bundle; each server's memory is looked at
every second, and the slope is of a line through the second half of what was acknowledged. Of four, most and slope are
those of the process that has the most of each. CPU of the coordinator is of its processes and those below them; that of
the sites and of the relays is of the one process that all of them are.
`busy` is the machine's load average when a case began: above the number of cores, others were at work, and the times
are theirs too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.benchmarks.front import study
from tests.benchmarks.processes import resident, spent, watched
from tests.benchmarks.record import sized

ROWS = 9_000  # a bundle of about 100 kB
ATTEMPTS = 60
BEHIND = 50  # sites behind one address


class Delivery:
    """All sites' bundles, and what became of them."""

    def __init__(self, hub, sites, waves):
        from stage.both_sides.service import small_table

        self.hub, self.sites = hub, sites
        self.sealed = {
            (site, wave): hub.seal(
                site,
                wave=wave,
                release_id=hashlib.sha256(f"{site} {wave}".encode()).hexdigest()[:32],
                table=small_table(ROWS, seed=1 + place * waves + wave),
            )
            for place, site in enumerate(sites)
            for wave in range(1, waves + 1)
        }
        self.heard, self.seconds, self.refused = [], [], []
        self.guard = threading.Lock()

    def deliver(self, place, site, wave, ports, acknowledged):
        """Send one bundle until it is acknowledged."""
        from shared.errors import Refusal

        sealed, begun = self.sealed[site, wave], time.monotonic()
        for attempt in range(ATTEMPTS):
            port = ports[(place + wave + attempt) % len(ports)]
            try:
                with self.hub.egress(site, address=f"127.0.0.1:{port}", timeout=60.0) as egress:
                    answer = egress.send(sealed.envelope, sealed.path)
                break
            except Refusal as refusal:
                with self.guard:
                    self.refused.append(refusal.code)
        else:
            raise RuntimeError(f"{site} was never answered: {Counter(self.refused)}")
        with self.guard:
            self.heard.append(answer)
            self.seconds.append(time.monotonic() - begun)
            acknowledged(len(self.heard))

    def run(self, ports, acknowledged, within):
        """Deliver everything, each site one bundle after the other, begun within so many seconds; seconds."""
        waves = sorted({wave for _, wave in self.sealed})
        lots = np.random.default_rng(1).uniform(0, within, len(self.sites))
        begun = time.monotonic()

        def everything(place, site):
            time.sleep(lots[place])
            for wave in waves:
                self.deliver(place, site, wave, ports, acknowledged)

        with ThreadPoolExecutor(len(self.sites)) as pool:
            running = [pool.submit(everything, place, site) for place, site in enumerate(self.sites)]
            for one in running:
                one.result()
        return time.monotonic() - begun

    def stored(self):
        """How many acknowledged bundles are in the store as they were acknowledged, in a log that is whole."""
        from coordinator.store.verify import verify_log

        found = {release.bundle_sha256: release for release in self.hub.store.releases()}
        count = 0
        for one in self.heard:
            release = found[one.bundle_sha256]
            data = self.hub.store.bundles.file(release.bundle_sha256).read_bytes()
            same = (release.log_index, release.release_id) == (one.log_index, one.release_id)
            count += same and hashlib.sha256(data).hexdigest() == one.bundle_sha256
        if verify_log(self.hub.store) != len(found):
            raise RuntimeError("the log has other entries than releases")
        return count, len(found)


def at_rest(running):
    """Wait until the serving processes have imported, each for the processes that it reads bundles in."""
    before, until = -1.0, time.monotonic() + 60
    while (now := sum(spent(process) for process, _ in running)) > before + 0.02 and time.monotonic() < until:
        before = now
        time.sleep(1.0)


class Cutter:
    """A share of the connections breaks when about half a bundle has passed."""

    def __init__(self, share, size):
        self.share, self.size, self.count = share, size, 0
        self.guard = threading.Lock()

    def __call__(self, piece, rng):
        reached = piece.out and piece.before < self.size / 2 <= piece.before + len(piece.data)
        with self.guard:
            if reached and rng.random() < self.share:
                self.count += 1
                raise ConnectionError
        return piece.data


def waves_through_cuts(folder, url, processes, sites, waves, cut):
    """All waves of all sites, one after the other at each, through a line that breaks."""
    from faults.proxy import through
    from stage.both_sides.service import Hub
    from stage.coordinator_side.several_servers import Processes

    names = [f"site-{k:03d}" for k in range(sites)]
    hub = Hub(folder, study(waves), *names, url=url)
    delivery, busy = Delivery(hub, names, waves), os.getloadavg()[0]
    size = np.mean([sealed.path.stat().st_size for sealed in delivery.sealed.values()])
    cutter = Cutter(cut, size)
    with Processes(hub, processes) as running, contextlib.ExitStack() as closing:
        at_rest(running)
        # One address may hold 128 connections: hospitals have addresses of their own.
        relays = [
            closing.enter_context(through(port, cutter, seed=k, source=f"127.0.0.{k}"))
            for k in range(2, 3 + sites // BEHIND)
            for _, port in running
        ]
        seen = closing.enter_context(
            watched(lambda: (len(delivery.heard), *(resident(process) for process, _ in running)))
        )
        before, own = sum(spent(process) for process, _ in running), time.process_time()
        took = delivery.run([relay.port for relay in relays], lambda count: None, 0.0)
        own = time.process_time() - own
        serving = sum(spent(process) for process, _ in running) - before
        time.sleep(2.0)
    right, stored = delivery.stored()
    hub.store.close()
    later = np.array([one for one in seen if one[0] >= len(delivery.sealed) / 2], dtype=float)
    slopes = np.polyfit(later[:, 0], later[:, 1:], 1)[0] if len({*later[:, 0]}) > 1 else [0.0]
    return {
        "processes": processes,
        "sent": len(delivery.sealed),
        "acknowledged": len(delivery.heard),
        "acknowledged_and_stored": int(right),
        "stored": stored,
        "connections_cut": cutter.count,
        "answers_that_made_a_site_try_again": len(delivery.refused),
        "bundle_kb": float(size / 1000),
        "seconds": took,
        "bundles_per_s": len(delivery.heard) / took,
        "serving_cpu_ms_per_bundle": 1000 * serving / len(delivery.heard),
        "sending_cpu_ms_per_bundle": 1000 * own / len(delivery.heard),
        "p99_s": float(np.quantile(delivery.seconds, 0.99)),
        "first_mb": max(seen[0][1:]) if seen else 0.0,
        "most_mb": max((max(sizes) for _, *sizes in seen), default=0.0),
        "second_half_mb_per_100_bundles": float(100 * max(slopes)),
        "busy": busy,
    }


def measured(folder, url, processes, killed, sites, waves, within=0.0):
    """One case: what was sent, how fast, and what is there afterwards."""
    from stage.both_sides.service import Hub
    from stage.coordinator_side.several_servers import Processes

    names = [f"site-{k:03d}" for k in range(sites)]
    hub = Hub(folder, study(waves), *names, url=url)
    delivery = Delivery(hub, names, waves)
    busy = os.getloadavg()[0]
    with Processes(hub, processes) as running:
        at_rest(running)
        victim, _ = running[0]

        def acknowledged(count):
            if killed and count == len(delivery.sealed) // 3:
                os.kill(victim, signal.SIGKILL)

        took = delivery.run([port for _, port in running], acknowledged, within)
    right, stored = delivery.stored()
    hub.store.close()
    size = np.mean([sealed.path.stat().st_size for sealed in delivery.sealed.values()])
    return {
        "processes": processes,
        "killed": int(killed),
        "begun_within_s": within,
        "sent": len(delivery.sealed),
        "acknowledged": len(delivery.heard),
        "acknowledged_and_stored": int(right),
        "stored": stored,
        "answers_that_made_a_site_try_again": len(delivery.refused),
        "bundle_kb": float(size / 1000),
        "seconds": took,
        "bundles_per_s": len(delivery.heard) / took,
        "p50_s": float(np.quantile(delivery.seconds, 0.5)),
        "p99_s": float(np.quantile(delivery.seconds, 0.99)),
        "busy": busy,
    }


def main() -> None:
    """Every case, one after the other, each with a home and a database of its own."""
    from benchmarks import record
    from stage.processes.database_server import database_server

    asked = argparse.ArgumentParser()
    asked.add_argument("sites", type=int, nargs="?", default=sized(121, 3))
    asked.add_argument("--waves", type=int, default=1)
    asked.add_argument("--cut", type=float, default=0.0)
    asked.add_argument("--name", default="load")
    given = asked.parse_args()
    if given.cut:
        sites, waves = sized((given.sites, given.waves), (3, 2))
        with tempfile.TemporaryDirectory() as place, database_server("load") as server:
            results = {
                name: waves_through_cuts(Path(place) / name, url, processes, sites, waves, given.cut)
                for name, url, processes in (
                    ("sqlite", "", 1),
                    ("postgresql", server.database("waves"), 1),
                    ("postgresql_4", server.database("waves_4"), 4),
                )
            }
        for name, found in results.items():
            sys.stdout.write(f"{name}: {found}\n")
        record.write(given.name, {"sites": sites, "waves": waves, "cut": given.cut, "cases": results}, seed=1)
        return
    results = {}
    with tempfile.TemporaryDirectory() as place, database_server("load") as server:
        for name, processes, killed, within in (
            ("sqlite 1", 1, False, 0.0),
            ("sqlite 1 within a minute", 1, False, 50.0),
            ("postgresql 1", 1, False, 0.0),
            ("postgresql 1 within a minute", 1, False, 50.0),
            ("postgresql 2", 2, False, 0.0),
            ("postgresql 2 killed", 2, True, 0.0),
            ("postgresql 4", 4, False, 0.0),
            ("postgresql 4 killed", 4, True, 0.0),
        ):
            key = name.replace(" ", "_")
            url = server.database(key) if name.startswith("postgresql") else ""
            results[key] = found = measured(Path(place) / key, url, processes, killed, given.sites, given.waves, within)
            sys.stdout.write(
                f"{name}: {found['acknowledged_and_stored']} of {found['acknowledged']} acknowledged are stored, "
                f"{found['bundles_per_s']:.1f} bundles/s, p99 {found['p99_s']:.1f} s\n"
            )
            sys.stdout.flush()
    record.write(given.name, {"sites": given.sites, "waves": given.waves, "cases": results}, seed=1)


if __name__ == "__main__":
    main()
