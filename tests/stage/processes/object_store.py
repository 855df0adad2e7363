"""An object store of the tests' own, in a process on loopback that speaks S3, and that can be stopped and started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}


class ObjectServer:
    """One server, its buckets in its memory."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.endpoint = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"
        self._made = 0

    def client(self) -> Any:
        """What the tests themselves look with: not what the product looks with."""
        import boto3

        return boto3.client("s3", endpoint_url=self.endpoint)

    def bucket(self) -> str:
        """A new bucket as ``bundles`` of the settings."""
        self._made += 1
        self.client().create_bucket(Bucket=f"hub-{self._made}")
        return f"s3://hub-{self._made}/bundles?endpoint={self.endpoint}"

    @contextmanager
    def away(self) -> Iterator[None]:
        """It answers nobody while the block lasts."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def denying(self) -> Iterator[None]:
        """It lets nobody in while the block lasts: it knows none of the access keys."""
        self._allow(0)
        try:
            yield
        finally:
            self._allow(float("inf"))

    def _allow(self, actions: float) -> None:
        plain = {"Content-Type": "text/plain"}
        asked = Request(f"{self.endpoint}/moto-api/reset-auth", f"{actions}".encode(), plain)
        urlopen(asked, timeout=30).close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def object_server() -> Iterator[ObjectServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        server = ObjectServer()
        yield server
        server.close()


@pytest.fixture
def place(object_server: ObjectServer) -> str:
    """An empty place for bundles."""
    return object_server.bucket()
