"""A Dask cluster computes what this machine's processes compute, to the last bit, and outlives a lost worker."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from stage.coordinator_side.analysis import Desk
from stage.coordinator_side.delivered import cohort, cohort_plan
from stage.processes.cluster import Machines, certified, settings, wait_for
from stage.processes.object_store import object_server, place

from coordinator.analyst.commands import connect
from coordinator.config import AnalysisSettings
from coordinator.services.compute import cluster as compute
from coordinator.services.compute import workers
from coordinator.services.compute.cluster import Cluster, cluster_address
from coordinator.services.compute.workers import Ended, Failed, TaskLimits
from shared.errors import ConfigRefusal, NetworkRefusal, ParameterError

__all__ = ["object_server", "place"]  # the fixtures
LIMITS = TaskLimits(memory=512 << 20, cpu=30, wall=60.0)
QUESTIONS = (
    ("cox", "Surv(time, cvd) ~ sbp/10 + age/10", {"term": "sbp"}),
    ("km", "Surv(time, cvd) ~ 1", {"at": 5}),
    ("logistic", "cvd ~ age/10 + sbp/10", {"term": "age"}),
)


@pytest.fixture(scope="module")
def machines(tmp_path_factory, object_server):
    folder = tmp_path_factory.mktemp("cluster")
    with settings(certified(folder)):
        made = Machines(folder)
        try:
            made.hire(2)
            yield made
        finally:
            made.close()


@pytest.fixture
def cluster(machines):
    made = Cluster(machines.compute, places=2, limits=LIMITS)
    yield made
    made.close()


def run(cluster, task, given, **how):
    return cluster.run(f"stage.processes.workshop:{task}", given, owner="ada", **how)


@pytest.mark.parametrize("objects", [False, True], ids=["bundles in the home", "bundles in an object store"])
def test_the_same_answers_to_the_last_bit(machines, place, tmp_path, objects):
    for server in workers._fork_servers.values():
        server.stop()  # one of earlier tests, whose workers have no keys of the object store
    made = Desk(tmp_path / "hub", bundles=place if objects else "")
    made.publish(cohort_plan())
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        made.add("cvd", site, cohort(120 + 20 * seed, seed))
    # In an object store and nowhere else: a worker of a cluster has them from there.
    digests = [release.bundle_sha256 for release in made.store.releases()]
    assert any(path.name.startswith(digests[0]) for path in made.home.rglob("*")) is not objects
    made.address = "127.0.0.1:1"
    told = made.admit()
    made.store.close()
    shutil.copytree(made.home, tmp_path / "copy")
    documents = []
    for home, where in ((made.home, ""), (tmp_path / "copy", machines.compute)):
        made.home, made.analysis = home, AnalysisSettings(compute=where, rate=600)
        made.start()
        try:
            with connect(replace(told, address=made.address)) as connection:
                asked = [getattr(connection["cvd"], kind)(text, **how) for kind, text, how in QUESTIONS]
                documents.append([answer.document for answer in asked])
        finally:
            made.running.stop(0)
    assert documents[0] == documents[1]
    assert all(document["estimates"] for document in documents[1])


def test_what_a_task_gives_refuses_and_breaks_on_comes_back_as_from_a_process_here(cluster):
    assert run(cluster, "echo", {"a": [1, None, "ü"]}) == {"a": [1, None, "ü"]}
    with pytest.raises(ParameterError, match="w must be in") as refusal:
        run(cluster, "refuse", {})
    assert refusal.value.next_step == "Lower w."
    with pytest.raises(Failed, match="RuntimeError") as failed:
        run(cluster, "broken", {})
    assert "212" not in str(failed.value)


@pytest.mark.parametrize(
    ("task", "why", "wall"),
    [("hoard", "memory", 60.0), ("sleep", "wall", 2.0), ("abort", "crashed", 60.0)],
)
def test_a_task_beyond_its_limits_ends_and_the_next_one_is_answered(cluster, task, why, wall):
    with pytest.raises(Ended) as ended:
        run(cluster, task, {}, limits=TaskLimits(memory=256 << 20, cpu=1, wall=wall))
    assert ended.value.why == why
    assert run(cluster, "echo", {"a": 1}) == {"a": 1}


def test_nobody_waits_for_a_caller_who_has_left(cluster):
    with pytest.raises(Ended, match="left"):
        run(cluster, "sleep", {"seconds": 5}, left=lambda: True)


def test_what_a_caller_who_has_left_had_asked_is_ended_on_the_clusters_machine(cluster, tmp_path):
    """Or whoever asks and leaves again and again would have all its workers at work."""
    file, long = tmp_path / "who", TaskLimits(memory=256 << 20, cpu=600, wall=600.0)
    begun = lambda: file.exists() and bool(file.read_text())  # noqa: E731
    with pytest.raises(Ended, match="left"):
        run(cluster, "sleep", {"seconds": 600, "file": str(file)}, left=begun, limits=long)
    wait_for(lambda: not Path(f"/proc/{file.read_text()}").exists())


def test_a_worker_that_is_killed_loses_no_question(machines, cluster, tmp_path):
    file, found = tmp_path / "who", []
    asking = threading.Thread(
        target=lambda: found.append(run(cluster, "sleep", {"file": str(file), "until": str(tmp_path / "go")}))
    )
    asking.start()
    worker = wait_for(lambda: working(file, [one.pid for one in machines.workers]))
    os.kill(worker, signal.SIGKILL)
    file.unlink()
    other = wait_for(lambda: working(file, [one.pid for one in machines.workers if one.pid != worker]))
    assert other != worker
    (tmp_path / "go").touch()
    asking.join(60)
    assert len(found) == 1
    machines.workers = [one for one in machines.workers if one.pid != worker or one.wait() is None]
    machines.hire(1)


def working(file: Path, workers: list[int]) -> int | None:
    """Of these the one that is above the process that wrote its id to a file."""
    if not file.exists() or not file.read_text():
        return None
    pid = int(file.read_text())
    while pid > 1:
        if pid in workers:
            return pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return None
    return None


def test_what_was_learnt_is_forgotten_everywhere(cluster):
    assert run(cluster, "counted", {}) >= 1
    learnt = [run(cluster, "counted", {}) for _ in range(4)]
    assert max(learnt) > 1
    cluster.forget()
    assert run(cluster, "counted", {}) == 1


def test_without_a_scheduler_a_question_is_refused_and_once_it_is_back_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(compute, "CONNECT", 2.0)
    with settings(certified(tmp_path)):
        first = Machines(tmp_path)
        cluster = Cluster(first.compute, places=2, limits=LIMITS)
        again = None
        try:
            first.close()
            with pytest.raises(NetworkRefusal, match="cluster"):
                run(cluster, "echo", {"a": 1})
            again = Machines(tmp_path, first.port)
            again.hire(1)
            assert run(cluster, "echo", {"a": 1}) == {"a": 1}
            again.close()
            with pytest.raises(NetworkRefusal, match="cluster"):
                run(cluster, "echo", {"a": 1})
        finally:
            cluster.close()
            for one in filter(None, (first, again)):
                one.close()


def test_another_machine_is_spoken_to_by_tls_only():
    with settings({"DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": ""}):
        assert cluster_address("dask://127.0.0.1:8786") == "tcp://127.0.0.1:8786"
        with pytest.raises(ConfigRefusal, match="TLS"):
            cluster_address("dask://scheduler.example.org:8786")
    for odd in ("tcp://127.0.0.1:1", "dask://a b:1", "dask://host", "dask://u:p@host:1"):
        with pytest.raises(ConfigRefusal, match="dask://host:port"):
            cluster_address(odd)
