"""Seconds that ten analysts wait for an answer when all ask at once: first questions, and the same ones again.

python -m tests.benchmarks.analysis_load

Sixteen sites, one running server, loopback, real TLS. Client and server share this machine's cores and one process,
so what is measured is an upper bound of what analysts on their own machines would see.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks import record

SEED, SITES, PERSONS, ANALYSTS, EACH = 5, 16, 1000, 10, 6
COLUMNS = ("sbp/10", "age/10", "chol/40", "hdl/15")


def questions(analyst: int) -> list[str]:
    """Different questions of one analyst, and different from the others': filters make them so."""
    out = []
    for k in range(EACH):
        terms = " + ".join(COLUMNS[: 1 + (analyst + k) % 4])
        out.append(f"cox(time, cvd, subset = age >= {30 + analyst + ANALYSTS * k / 4:g}) ~ {terms}")
    return out


def shares(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {"median": times[len(times) // 2], "p95": times[int(0.95 * (len(times) - 1))], "max": times[-1]}


def main() -> None:
    from delivered import cohort, cohort_plan
    from test_analysis import Desk

    from coordinator.client import connect

    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder), rate=0)
        desk.publish(cohort_plan())
        for k in range(SITES):
            desk.add("cvd", f"site{k:02}", cohort(PERSONS, SEED + k))
        desk.start()
        connections = [connect(desk.admit(f"analyst{k}")) for k in range(ANALYSTS)]
        studies = [connection["cvd"] for connection in connections]
        studies[0].mean("sbp")  # imports and the first connection are the server's start, not an answer's

        def ask(k: int) -> list[float]:
            times = []
            for question in questions(k):
                begun = time.perf_counter()
                studies[k].query("", question)
                times.append(time.perf_counter() - begun)
            return times

        waited, cpu = [], []
        with ThreadPoolExecutor(ANALYSTS) as pool:
            for _ in range(2):
                begun = time.process_time()
                waited.append([seconds for times in pool.map(ask, range(ANALYSTS)) for seconds in times])
                cpu.append((time.process_time() - begun) / len(waited[-1]))
        alone = []
        for question in ("cox(time, cvd) ~ sbp/10 + age/10 + hdl/15", "logistic(cvd) ~ age/10 + sbp/10", "mean(chol)"):
            begun = time.perf_counter()
            studies[0].query("", question)
            alone.append(time.perf_counter() - begun)
        for connection in connections:
            connection.close()
        desk.stop()
    results = {
        "sites": SITES,
        "persons_each": PERSONS,
        "analysts_at_once": ANALYSTS,
        "questions_each": EACH,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "seconds_cold": shares(waited[0]),
        "seconds_cached": shares(waited[1]),
        "seconds_cold_one_analyst": shares(alone),
        "cpu_seconds_each_cold": cpu[0],
        "cpu_seconds_each_cached": cpu[1],
    }
    print(record.write("analysis_load", results, SEED))
    for name, value in results.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
