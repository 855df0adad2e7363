"""Seconds that ten analysts wait for an answer when all ask at once, and what an answer costs the server.

python -m tests.benchmarks.analysis_load

Sixteen sites, `coordinator serve` in a process of its own, loopback, real TLS; the analysts share this machine's cores
with it. Four rounds: *cold tables* (the server has just started and has read no release of the study; every question
is another one), *cold* (its tables are in memory; every question is another one again) and *cached* (the questions of
the round before, asked again). *Pooled otherwise* is the same questions by another method: each site's estimate is
kept, so none is fitted again. CPU seconds are those of the server and of its workers: they say what an answer
costs however busy the machine is, which the waiting does not. How many cores' worth of time other programs took
meanwhile stands beside each round: with the two cores of the recorded machine taken by others, waiting says little.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks import record
from tests.benchmarks.sandbox import below

SEED = 5
SITES, PERSONS, ANALYSTS, EACH = record.sized((16, 1000, 10, 12), (2, 200, 2, 4))
COLUMNS = ("sbp/10", "age/10", "chol/40", "hdl/15")
ROOT = Path(__file__).resolve().parents[2]


def questions(analyst: int, start: int = 0) -> list[str]:
    """Different questions of one analyst, and different from the others': filters make them so."""
    out = []
    for k in range(start, start + EACH):
        terms = " + ".join(COLUMNS[: 1 + (analyst + k) % 4])
        out.append(f"cox(time, cvd, subset = age >= {30 + (analyst + ANALYSTS * k) / 40:g}) ~ {terms}")
    return out


def shares(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"median": times[len(times) // 2], "p95": times[int(0.95 * (len(times) - 1))], "max": times[-1]}


@contextmanager
def serving(home: Path) -> Iterator[int]:
    """A running `coordinator serve`; its process id."""
    argv = [sys.executable, "-m", "coordinator.cli", "--home", str(home), "serve"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    try:
        assert server.stdout is not None
        while "analysts are answered" not in server.stdout.readline():
            assert server.poll() is None
        yield server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


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


def main() -> None:
    from delivered import cohort, cohort_plan
    from stage.analysis import Desk

    from coordinator.analyst.commands import connect
    from coordinator.config import FILE_NAME

    rounds: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        desk.publish(cohort_plan())
        desk.publish(cohort_plan(**{'study = "cvd"': 'study = "lungs"'}))
        for k in range(SITES):
            desk.add("cvd", f"site{k:02}", cohort(PERSONS, SEED + k))
        desk.add("lungs", "north", cohort(PERSONS, SEED))
        desk.start()
        desk.running.stop(0)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            desk.address = f"127.0.0.1:{probe.getsockname()[1]}"
        settings = (Path(folder) / FILE_NAME).read_text()
        for name, value in {
            "listen": '"127.0.0.1:0"',
            "analysts": f'"{desk.address}"',
            "analyst_rate": "1000000",
            "analyst_burst": "1000000",
        }.items():
            settings = re.sub(f"^{name} = [^#\n]*", f"{name} = {value} ", settings, flags=re.MULTILINE)
        (Path(folder) / FILE_NAME).write_text(settings)
        with serving(Path(folder)) as pid:
            connections = [connect(desk.admit(f"analyst{k}", studies=("cvd", "lungs"))) for k in range(ANALYSTS)]
            studies = [connection["cvd"] for connection in connections]
            # Imports are the server's start, not an answer's; another study's question leaves these tables unread.
            connections[0]["lungs"].query("", "cox(time, cvd) ~ sbp/10")

            def ask(k: int, asked: list[str], method: str = "REML") -> list[float]:
                times = []
                for question in asked:
                    begun = time.perf_counter()
                    studies[k].query("", question, method=method)
                    times.append(time.perf_counter() - begun)
                return times

            with ThreadPoolExecutor(ANALYSTS) as pool:
                for name, start, method in (
                    ("cold_tables", 0, "REML"),
                    ("cold", EACH, "REML"),
                    ("cached", EACH, "REML"),
                    ("pooled_otherwise", EACH, "DL"),
                ):
                    load, before, others, begun = os.getloadavg()[0], spent(pid), taken(pid), time.perf_counter()
                    asked = [questions(k, start) for k in range(ANALYSTS)]
                    waited = [t for times in pool.map(ask, range(ANALYSTS), asked, [method] * ANALYSTS) for t in times]
                    rounds[name] = {
                        "seconds": shares(waited),
                        "cpu_seconds_each": (spent(pid) - before) / len(waited),
                        "answers_a_second": len(waited) / (time.perf_counter() - begun),
                        "cores_taken_by_others": taken(pid, others) / (time.perf_counter() - begun),
                        "load_average_before": load,
                    }
            load, before, others, begun = os.getloadavg()[0], spent(pid), taken(pid), time.perf_counter()
            waited = ask(0, questions(0, 2 * EACH))
            rounds["cold_one_analyst"] = {
                "seconds": shares(waited),
                "cpu_seconds_each": (spent(pid) - before) / len(waited),
                "cores_taken_by_others": taken(pid, others) / (time.perf_counter() - begun),
                "load_average_before": load,
            }
            for connection in connections:
                connection.close()
        desk.stop()
    results = {"sites": SITES, "persons_each": PERSONS, "analysts_at_once": ANALYSTS, "questions_each": EACH}
    print(record.write("analysis_load", {**results, "rounds": rounds}, SEED))
    for name, measured in rounds.items():
        print(f"{name:18} {measured}")


if __name__ == "__main__":
    main()
