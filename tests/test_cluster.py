"""A Dask cluster computes what this machine's processes compute, to the last bit, and outlives a lost worker."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from delivered import cohort, cohort_plan
from stage.analysis import Desk
from stage.ports import free_port

from coordinator.analyst.commands import connect
from coordinator.config import AnalysisSettings
from coordinator.services.compute import cluster as compute
from coordinator.services.compute.cluster import Cluster, cluster_address
from coordinator.services.compute.workers import Ended, Failed, TaskLimits
from shared.errors import ConfigRefusal, NetworkRefusal, ParameterError

dask = pytest.importorskip("dask")
LIMITS = TaskLimits(memory=512 << 20, cpu=30, wall=60.0)
QUESTIONS = (
    ("cox", "Surv(time, cvd) ~ sbp/10 + age/10", {"term": "sbp"}),
    ("km", "Surv(time, cvd) ~ 1", {"at": 5}),
    ("logistic", "cvd ~ age/10 + sbp/10", {"term": "age"}),
)


def certified(folder: Path) -> dict[str, str]:
    """A key and a certificate for 127.0.0.1 that vouches for itself; Dask's settings that name them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "cluster.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "cluster.key").write_bytes(pem)
    tls = {"CA_FILE": "cluster.pem"}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        tls |= {f"{role}__CERT": "cluster.pem", f"{role}__KEY": "cluster.key"}
    named = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(folder / file) for name, file in tls.items()}
    return {**named, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}


def wait_for(look):
    for _ in range(1200):
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came")


def answers(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


class Machines:
    """A scheduler and workers, each a process of its own, by Dask's own commands."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.port, self.folder, self.workers = port or free_port(), folder, []
        tests = str(Path(__file__).parent)
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tests).parent), tests])}
        self.scheduler = self.begin("scheduler", "--port", str(self.port), "--host", "127.0.0.1", "--protocol", "tls")

    @property
    def compute(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def begin(self, role, *argv) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *argv, "--no-dashboard"]
        return subprocess.Popen(command, env=self.env, cwd=self.folder, stderr=subprocess.DEVNULL)

    def hire(self, count: int) -> None:
        """Workers beside those that live; back when the scheduler knows all of them."""
        from distributed import Client

        wait_for(lambda: answers(self.port))
        for _ in range(count):
            place = ("--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--memory-limit", "0")
            self.workers.append(self.begin("worker", f"tls://127.0.0.1:{self.port}", *place))
        with Client(f"tls://127.0.0.1:{self.port}", set_as_default=False, timeout=60) as client:
            client.wait_for_workers(sum(one.poll() is None for one in self.workers), timeout=120)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextmanager
def settings(given):
    """These in the environment, and in what Dask has read of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        dask.config.refresh()
        yield
    dask.config.refresh()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
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
    return cluster.run(f"workshop:{task}", given, owner="ada", **how)


def test_the_same_answers_to_the_last_bit(machines, tmp_path):
    made = Desk(tmp_path / "hub")
    made.publish(cohort_plan())
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        made.add("cvd", site, cohort(120 + 20 * seed, seed))
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
