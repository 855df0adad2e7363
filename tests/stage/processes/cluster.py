"""A Dask cluster on this machine: a scheduler and workers, each a process, which speak TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stage.processes.ports import free_port

dask = pytest.importorskip("dask")


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
        tests = str(Path(__file__).parents[2])
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
