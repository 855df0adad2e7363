"""Seconds that analysts wait for an answer when all ask at once, and what an answer costs the server.

python -m tests.benchmarks.analysis_load [--sites 16 --analysts 10 --each 12] [--pause 0] [--name analysis_load]

`coordinator serve` in a process of its own, loopback, real TLS; the analysts share this machine's cores with it. Each
asks a question after the other; with `--pause`, after reading the last answer for so many seconds in the mean
(exponential). A question that is refused is counted, not hidden. Four rounds: *cold tables* (the server has just
started and has read no release of the study; every question is another one), *cold* (its tables are in memory; every
question is another one again) and *cached* (the questions of the round before, asked again). *Pooled otherwise* is the
same questions by another method: each site's estimate is kept, so none is fitted again. CPU seconds are those of the
server and of its workers: they say what an answer costs however busy the machine is, which the waiting does not. How
many cores' worth of time other programs took meanwhile stands beside each round: with the two cores of the recorded
machine taken by others, waiting says little.

The memory is the most that the server and all processes below it held together, looked at each second:
what processes share is counted once for each (RSS), and divided among them (PSS).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks import record
from tests.benchmarks.processes import below, held, watched
from tests.stage.processes.stopping import started

SEED = 5
SITES, PERSONS, ANALYSTS, EACH = record.sized((16, 1000, 10, 12), (2, 200, 2, 4))  # the smallest level that is asked
COLUMNS = ("sbp/10", "age/10", "chol/40", "hdl/15")
ROOT = Path(__file__).resolve().parents[2]


def questions(analyst: int, start: int = 0, each: int = EACH, analysts: int = ANALYSTS) -> list[str]:
    """Different questions of one analyst, and different from the others': filters make them so."""
    out = []
    for k in range(start, start + each):
        terms = " + ".join(COLUMNS[: 1 + (analyst + k) % 4])
        out.append(f"cox(time, cvd, subset = age >= {30 + (analyst + analysts * k) / 40:g}) ~ {terms}")
    return out


def shares(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"median": times[len(times) // 2], "p95": times[int(0.95 * (len(times) - 1))], "max": times[-1]}


@contextmanager
def serving(home: Path) -> Iterator[int]:
    """A running `coordinator serve`; its process id."""
    argv = [sys.executable, "-m", "coordinator.cli", "--home", str(home), "serve"]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as server:
        while "analysts are answered" not in server.stdout.readline():
            assert server.poll() is None
        yield server.pid


def spent(pid: int) -> float:
    """CPU seconds so far of a process and of those below it, with those that it has waited for."""
    ticks = 0
    for one in (pid, *below(pid)):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def taken(pid: int, since: float = 0.0) -> float:
    """CPU seconds that other programs than this one and `pid` have used on the machine."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    every = (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return every - spent(pid) - time.process_time() - since


class Analysts:
    """So many analysts on connections of their own, who ask a running server.

    Args:
        pid: the server's process.
        pause: seconds that an analyst reads an answer, in the mean.
    """

    def __init__(self, pid: int, studies: list[Any], pause: float) -> None:
        self.pid, self.studies, self.pause = pid, studies, pause
        self.failed: Counter[str] = Counter()

    def ask(self, k: int, asked: list[str], method: str) -> list[float]:
        """Seconds that analyst `k` waits for each answer."""
        from shared.errors import Refusal

        rng, times = np.random.default_rng((SEED, k)), []
        for question in asked:
            time.sleep(rng.exponential(self.pause) if self.pause else 0)
            begun = time.perf_counter()
            try:
                self.studies[k].query("", question, method=method)
            except Refusal as refusal:
                self.failed[refusal.code] += 1
                continue
            times.append(time.perf_counter() - begun)
        return times

    def round(self, asked: list[list[str]], method: str = "REML") -> dict[str, Any]:
        """What it takes that as many analysts as there are lists ask theirs, all at once."""
        load, before, others, begun = os.getloadavg()[0], spent(self.pid), taken(self.pid), time.perf_counter()
        self.failed.clear()
        with ThreadPoolExecutor(len(asked)) as pool:
            every = pool.map(self.ask, range(len(asked)), asked, [method] * len(asked))
            waited = [seconds for times in every for seconds in times]
        lasted = time.perf_counter() - begun
        return {
            "seconds": shares(waited),
            "cpu_seconds_each": (spent(self.pid) - before) / len(waited),
            "answers_a_second": len(waited) / lasted,
            "asked": len(waited) + self.failed.total(),
            "failed": self.failed.total(),
            "refusals": dict(self.failed),
            "cores_taken_by_others": taken(self.pid, others) / lasted,
            "load_average_before": load,
        }


def published(folder: Path, sites: int) -> Any:
    """A coordinator's home with the releases of so many sites, and a study of one beside it."""
    from stage.coordinator_side.analysis import Desk
    from stage.coordinator_side.delivered import cohort, cohort_plan

    from coordinator.config import FILE_NAME

    desk = Desk(folder)
    desk.publish(cohort_plan())
    desk.publish(cohort_plan(**{'study = "cvd"': 'study = "lungs"'}))
    for k in range(sites):
        desk.add("cvd", f"site{k:02}", cohort(PERSONS, SEED + k))
    desk.add("lungs", "north", cohort(PERSONS, SEED))
    desk.start()
    desk.running.stop(0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        desk.address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = (folder / FILE_NAME).read_text()
    for name, value in {
        "listen": '"127.0.0.1:0"',
        "analysts": f'"{desk.address}"',
        "analyst_rate": "1000000",
        "analyst_burst": "1000000",
    }.items():
        settings = re.sub(f"^{name} = [^#\n]*", f"{name} = {value} ", settings, flags=re.MULTILINE)
    (folder / FILE_NAME).write_text(settings)
    return desk


def measured(sites: int, analysts: int, each: int, pause: float) -> dict[str, Any]:
    """All rounds of one size."""
    from coordinator.analyst.commands import connect

    rounds: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        desk = published(Path(folder), sites)
        with serving(Path(folder)) as pid, watched(lambda: held(pid)) as seen:
            connections = [connect(desk.admit(f"analyst{k}", studies=("cvd", "lungs"))) for k in range(analysts)]
            # Imports are the server's start, not an answer's; another study's question leaves these tables unread.
            connections[0]["lungs"].query("", "cox(time, cvd) ~ sbp/10")
            those = Analysts(pid, [connection["cvd"] for connection in connections], pause)
            for name, start, method in (
                ("cold_tables", 0, "REML"),
                ("cold", each, "REML"),
                ("cached", each, "REML"),
                ("pooled_otherwise", each, "DL"),
            ):
                rounds[name] = those.round([questions(k, start, each, analysts) for k in range(analysts)], method)
            rounds["cold_one_analyst"] = those.round([questions(0, 2 * each, each, analysts)])
            for connection in connections:
                connection.close()
        desk.stop()
    sizes = {"sites": sites, "persons_each": PERSONS, "analysts_at_once": analysts, "questions_each": each}
    rss, pss = (max(sizes_then) for sizes_then in zip((0.0, 0.0), *seen, strict=True))
    return {**sizes, "pause_s": pause, "most": {"rss_mb": rss, "pss_mb": pss}, "rounds": rounds}


def main() -> None:
    """Measure one size, and write its file."""
    given = argparse.ArgumentParser()
    given.add_argument("--sites", type=int, default=SITES)
    given.add_argument("--analysts", type=int, default=ANALYSTS)
    given.add_argument("--each", type=int, default=EACH)
    given.add_argument("--pause", type=float, default=0.0)
    given.add_argument("--name", default="analysis_load")
    asked = given.parse_args()
    sizes = (asked.sites, asked.analysts, asked.each)
    found = measured(*record.sized(sizes, (SITES, ANALYSTS, EACH)), record.sized(asked.pause, 0.0))
    print(record.write(asked.name, found, SEED), found["most"])
    for name, one in found["rounds"].items():
        print(f"{name:18} {one}")


if __name__ == "__main__":
    main()
