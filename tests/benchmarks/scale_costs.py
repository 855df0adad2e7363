"""What a coordinator's steps cost, each measured on the product's own code, in CPU seconds of its process.

Waiting plays no part here, so that a machine that others use as well gives the same figures, or nearly.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks.analysis_load import questions, serving, shares, spent, taken
from tests.benchmarks.processes import below
from tests.stage.processes.stopping import stopped

SEED = 24
COX = "cox(time, cvd, subset = age >= {}) ~ {}"
TERMS = ("sbp/10", "age/10", "chol/40", "hdl/15")
MODELS = {
    "cox": [COX.format(31 + k, " + ".join(TERMS[: k + 1])) for k in range(4)],
    "logistic": [f"logistic(cvd, subset = age >= {41 + k}) ~ {' + '.join(TERMS[: k + 1])}" for k in range(4)],
    "mean": [f"mean({name})" for name in ("sbp", "chol", "hdl", "time")],
}
"""New questions of each kind: four of one to four terms, or of as many columns."""


def other(question: str) -> str:
    """Another question of the same columns."""
    text = re.sub(r">= (\d+)", lambda found: f">= {int(found[1]) + 7}", question)
    return text if text != question else question.replace(")", ", subset = age >= 38)")


def resident(pid: int | str = "self", name: str = "VmHWM") -> float:
    """MB of memory of a process; its peak, if not asked for another line of /proc."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


def used(pid: int) -> float:
    """CPU seconds of the threads that a process has now."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


# -- one site's task --------------------------------------------------------------------------------------------------
def _at_sites(home: str, sites: int, theirs: Any) -> None:
    """In a process of its own, as a worker has it: what questions to these sites cost."""
    from coordinator.answers import release_selection
    from coordinator.answers.queries import ask
    from coordinator.answers.site_answers import EstimateCache
    from coordinator.pooling.pool import Pooling
    from coordinator.store.store import Store

    def timed(work: Callable[[], Any]) -> float:
        begun = time.process_time()
        work()
        return (time.process_time() - begun) / sites

    def opened() -> Store:
        return Store.open(Path(home))

    def answered(store: Store, cache: EstimateCache, question: str, **how: Any) -> float:
        return timed(lambda: ask(store, release_selection.holding(store, "cvd", 1), question, cache=cache, **how))

    answered(opened(), EstimateCache(), "cox(time, cvd) ~ sbp/10")  # imports, and what a first question makes
    before = resident(name="VmRSS")
    store = opened()
    releases = store.releases("cvd")
    read = timed(lambda: [release_selection.rows_of(store, [one], ()) for one in releases])
    table = int(store.table(releases[0]).memory_usage(deep=True).sum())
    cold, lost, fit, cells = {}, {}, {}, []
    for kind, asked in MODELS.items():
        colds, losts = [], []
        for one in asked:
            store, cache = opened(), EstimateCache()
            colds.append(answered(store, cache, one))
            # What is kept of tables is decided by what the first question made of them.
            cells.append(sum(known.cells for known in cache._tables.values()) / sites)
            losts.append(answered(store, EstimateCache(), one))
        cold[kind], lost[kind] = statistics.mean(colds), statistics.mean(losts)
        store, cache = opened(), EstimateCache()
        # What is worked out of each column, and of each set of them, is there when the question comes.
        for one in asked:
            answered(store, cache, other(one))
        fit[kind] = statistics.mean(answered(store, cache, one) for one in asked)
        again = answered(store, cache, asked[-1], pooling=Pooling(method="DL"))
    theirs.send(
        {
            "read_s": read,
            "table_bytes": table,
            "cold_s": cold,
            "lost_s": lost,
            "fit_s": fit,
            "pooled_otherwise_s": again,
            "cells_kept": statistics.mean(cells),
            "memory_before_mb": before,
            "peak_mb": resident(),
        }
    )


def of_site(rows: int, sites: int) -> dict[str, Any]:
    """What one site's part of a question costs, CPU seconds a site: the mean over a few sites of so many rows."""
    from stage.coordinator_side.delivered import cohort, cohort_plan
    from stage.coordinator_side.tables_delivered import hub

    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        hub(Path(folder), cohort_plan(), *(cohort(rows, SEED + k) for k in range(sites))),
    ):
        size = statistics.mean(one.stat().st_size for one in (Path(folder) / "bundles").iterdir())
        mine, theirs = context.Pipe()
        child = context.Process(target=_at_sites, args=(folder, sites, theirs))
        child.start()
        theirs.close()
        found: dict[str, Any] = mine.recv()
        child.join()
    return {"sites": sites, "bundle_bytes": size, **found}


# -- a coordinator that serves ----------------------------------------------------------------------------------------
@dataclass
class Running:
    """A coordinator that serves analysts.

    Args:
        pid: its first process. studies: the study, as each analyst sees it. commit_s: CPU of accepting a release.
    """

    pid: int
    studies: list[Any]
    commit_s: float

    @property
    def answering(self) -> int:
        """The process that answers analysts."""
        [found] = [one for one in below(self.pid) if b"analysts_port" in Path(f"/proc/{one}/cmdline").read_bytes()]
        return found

    def spent(self) -> dict[str, float]:
        """CPU seconds so far of who answers, of the workers that compute, and of this program, which asks."""
        answering = self.answering
        workers = [one for one in below(answering)]
        return {
            "serving": used(answering),
            "worker": sum(used(one) for one in workers),
            "client": time.process_time(),
        }


@contextmanager
def running(sites: int, rows: int, analysts: int) -> Iterator[Running]:
    """A coordinator with so many sites, in a process of its own, over loopback and TLS."""
    from stage.coordinator_side.analysis import Desk
    from stage.coordinator_side.delivered import cohort, cohort_plan

    from coordinator.analyst.commands import connect
    from coordinator.config import FILE_NAME

    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        desk.publish(cohort_plan())
        desk.publish(cohort_plan(**{'study = "cvd"': 'study = "lungs"'}))
        commits, accept = [], desk.store.accept_release

        def timed(**given: Any) -> Any:
            begun = time.process_time()
            found = accept(**given)
            commits.append(time.process_time() - begun)
            return found

        desk.store.accept_release = timed
        for k in range(sites):
            desk.add("cvd", f"site{k:03}", cohort(rows, SEED + k))
        desk.add("lungs", "north", cohort(1000, SEED))
        desk.start()
        desk.running.stop(0)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            desk.address = f"127.0.0.1:{probe.getsockname()[1]}"
        settings = (Path(folder) / FILE_NAME).read_text()
        changed = {"listen": '"127.0.0.1:0"', "analysts": f'"{desk.address}"', "analyst_rate": 1_000_000}
        for name, value in {**changed, "analyst_burst": 1_000_000}.items():
            settings = re.sub(f"^{name} = [^#\n]*", f"{name} = {value} ", settings, flags=re.MULTILINE)
        (Path(folder) / FILE_NAME).write_text(settings)
        with serving(Path(folder)) as pid:
            passes = [desk.admit(f"analyst{k}", studies=("cvd", "lungs")) for k in range(analysts)]
            connections = [connect(one) for one in passes]
            connections[0]["lungs"].query("", "cox(time, cvd) ~ sbp/10")  # what was imported is no part of an answer
            yield Running(pid, [one["cvd"] for one in connections], statistics.median(commits))
            for connection in connections:
                connection.close()
        desk.stop()


def one_after_the_other(at: Running, asked: list[str], method: str = "REML") -> dict[str, float]:
    """CPU seconds of each process for each of these questions of one analyst, and seconds that they waited."""
    before, waited = at.spent(), []
    for question in asked:
        begun = time.perf_counter()
        at.studies[0].query("", question, method=method)
        waited.append(time.perf_counter() - begun)
    after = at.spent()
    each = {f"{name}_s": (after[name] - before[name]) / len(asked) for name in after}
    return {**each, "waited_s": statistics.median(waited)}


def of_serving(sites: int, rows: int = 1000) -> dict[str, Any]:
    """What an answer costs the process that answers, the worker and the asker, one question after the other."""
    with running(sites, rows, 1) as at:
        first = one_after_the_other(at, [questions(0, 60)[3]])  # of all columns
        one_after_the_other(at, questions(0, 60)[:3])
        asked = questions(0, 1)
        found = {
            "first": first,
            "new": one_after_the_other(at, asked),
            "repeated": one_after_the_other(at, asked),
            "pooled otherwise": one_after_the_other(at, asked, "DL"),
        }
        memory = {"serving": resident(at.answering), "workers": max(resident(one) for one in below(at.answering))}
        return {"questions": len(asked), "commit_s": at.commit_s, "peak_mb": memory, **found}


# -- bundles ----------------------------------------------------------------------------------------------------------
def written(pid: int) -> int:
    """Bytes that a process has had written to disks."""
    found = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), flags=re.MULTILINE)
    return int(found[1]) if found else 0


def of_delivery(plan: Any, tables: list[Any]) -> dict[str, float]:
    """What taking a bundle costs: one hospital after the other delivers a table to a coordinator that serves."""
    from stage.both_sides.service import Hub
    from stage.coordinator_side.several_servers import Processes

    names = [f"site-{k:03d}" for k in range(len(tables) + 1)]
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder) / "hub", plan, *names)
        sealed = {
            name: hub.seal(name, table=table, release_id=hashlib.sha256(name.encode()).hexdigest()[:32])
            for name, table in zip(names, [*tables, tables[0]], strict=True)
        }

        def deliver(name: str, port: int) -> None:
            with hub.egress(name, address=f"127.0.0.1:{port}", timeout=120.0) as egress:
                egress.send(sealed[name].envelope, sealed[name].path)

        with Processes(hub, 1) as [(pid, port)]:
            deliver(names[-1], port)  # what is imported at the first
            first, own, everything, wrote = time.process_time(), used(pid), spent(pid), written(pid)
            begun = time.perf_counter()
            for name in names[:-1]:
                deliver(name, port)
            waited = (time.perf_counter() - begun) / len(tables)
            client, server = time.process_time() - first, used(pid) - own
            whole = spent(pid) - everything
            wrote = written(pid) - wrote
        size = statistics.mean(one.path.stat().st_size for one in sealed.values())
        hub.store.close()
    count = len(tables)
    return {
        "bundles": count,
        "bundle_bytes": size,
        "serving_s": server / count,
        "opening_s": max(0.0, whole - server) / count,
        "hospital_s": client / count,
        "written_bytes": wrote / count,
        "waited_s": waited,
    }


# -- other machines ---------------------------------------------------------------------------------------------------
def of_tasks(count: int = 200) -> dict[str, float]:
    """What a task that does nothing costs in a process here, and by a Dask cluster of one worker on this machine."""
    from stage.processes.cluster import Machines, certified, settings

    from coordinator.services.compute.cluster import Cluster
    from coordinator.services.compute.workers import TaskLimits, Workers

    limits = TaskLimits(memory=512 << 20, cpu=30, wall=60.0)

    def measured(workers: Workers, others: list[int]) -> tuple[float, float]:
        for _ in range(5):
            workers.run("stage.processes.workshop:echo", {}, owner="ada")
        begun, cpu = time.perf_counter(), time.process_time() + sum(map(spent, others))
        for _ in range(count):
            workers.run("stage.processes.workshop:echo", {}, owner="ada")
        used = time.process_time() + sum(map(spent, others)) - cpu
        return (time.perf_counter() - begun) / count, used / count

    here = Workers(imports=("stage.processes.workshop",), places=1, limits=limits)
    here.start()
    seconds, cpu = measured(here, below(os.getpid()))
    here.close()
    with tempfile.TemporaryDirectory() as folder, settings(certified(Path(folder))):
        machines = Machines(Path(folder))
        with stopped(machines.close):
            machines.hire(1)
            cluster = Cluster(machines.compute, places=1, limits=limits)
            far_seconds, far_cpu = measured(cluster, [one.pid for one in (machines.scheduler, *machines.workers)])
            cluster.close()
    return {"tasks": count, "here_s": seconds, "here_cpu_s": cpu, "dask_s": far_seconds, "dask_cpu_s": far_cpu}


def of_objects(sizes: dict[str, int], count: int = 20) -> dict[str, dict[str, float]]:
    """What reading an object of so many bytes from an object store on this machine costs the reader."""
    from stage.processes.object_store import KEYS, ObjectServer

    from coordinator.store.bundles.objects import BundleObjects

    found = {}
    os.environ.update(KEYS)
    server = ObjectServer()
    try:
        store = BundleObjects(server.bucket())
        for name, size in sizes.items():
            with tempfile.NamedTemporaryFile() as file:
                file.write(os.urandom(size))
                file.flush()
                digest = f"{len(found):064x}"
                store.put(digest, Path(file.name))
            begun = time.process_time()
            for _ in range(count):
                with store.read(digest):
                    pass
            found[name] = {"bytes": size, "cpu_s": (time.process_time() - begun) / count}
    finally:
        server.close()
    return found


# -- many at once -----------------------------------------------------------------------------------------------------
def at_once(at: Running, each: int, start: int = 20) -> dict[str, Any]:
    """What analysts wait when all ask new questions at once, one after the other."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(k: int) -> list[float]:
        times = []
        for question in questions(k, start)[:each]:
            begun = time.perf_counter()
            at.studies[k].query("", question)
            times.append(time.perf_counter() - begun)
        return times

    load, begun = os.getloadavg()[0], time.perf_counter()
    before, others = at.spent(), taken(at.pid)
    with ThreadPoolExecutor(len(at.studies)) as pool:
        waited = [seconds for times in pool.map(ask, range(len(at.studies))) for seconds in times]
    after, took = at.spent(), time.perf_counter() - begun
    cpu = {name: (after[name] - before[name]) / len(waited) for name in after}
    others = taken(at.pid, others) / took
    return {
        "load_average_before": load,
        "cores_taken_by_others": others,
        "took_s": took,
        "cpu_s": cpu,
        "questions": len(waited),
        **shares(waited),
    }
