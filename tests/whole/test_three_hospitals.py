"""Three hospitals, a proxy, a coordinator of two processes and its database, each in a network of its own.

Six network namespaces: a hospital has one line, to the proxy; the proxy one to the coordinator; and this one to the
database. nginx passes mutual TLS on to haproxy, and that to the process that is ready. The study is one of 0.2.0.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from stage.house.upgrade import FIXTURE, _ticks
from stage.processes.database_server import database_server
from stage.processes.nginx import STREAM
from stage.processes.theatre import PASSPHRASE

from tests.stage.house.sources import ROOT

HOSPITALS = ("north", "south", "east")
WAVES = (1, 2, 3, 4)
FRONT, HUB, STORE = "10.27.100.1", "10.27.8.2", "10.27.9.2"
NODES = {"one": (8443, 9464), "two": (8444, 9465)}
AGAIN = {"E_NETWORK", "E_CERT", "E_STORAGE", "E_STORE_AWAY"}  # asked again; a broken handshake looks like E_CERT
LEAST = 40


class Networks:
    """Network namespaces and the processes in them: each is stopped by its number, and a namespace ends with them."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.holders, self.started = stack, dict[str, subprocess.Popen](), list[subprocess.Popen]()

    def add(self, name: str) -> None:
        """A namespace of that name, held by a process that sleeps."""
        own = os.readlink("/proc/self/ns/net")
        holder = self._started(["unshare", "--net", "setpriv", "--pdeathsig", "KILL", "sleep", "3600"])
        self.holders[name] = holder
        assert until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own), f"no namespace for {name}"
        self.run(name, "ip", "link", "set", "lo", "up")

    def join(self, one: str, other: str, net: str) -> None:
        """A line between two of them, at `net`.1 and `net`.2."""
        near, far = (self.holders[name] for name in (one, other))
        ends = ["type", "veth", "peer", "name", f"to-{one}", "netns", str(far.pid)]
        self.run(one, "ip", "link", "add", f"to-{other}", *ends)
        for end, (name, to) in enumerate([(one, other), (other, one)], start=1):
            self.run(name, "ip", "addr", "add", f"{net}.{end}/30", "dev", f"to-{to}")
            self.run(name, "ip", "link", "set", f"to-{to}", "up")
        assert near.poll() is far.poll() is None

    def inside(self, name: str) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.holders[name].pid), "-n")

    def run(self, name: str, *argv: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        words = [*self.inside(name), *map(str, argv)]
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=600)
        if env is None:
            assert done.returncode == 0, f"{name}: {words}\n{done.stderr}"
        return done

    def start(self, name: str, *argv: object, out: Path, env: dict[str, str] | None = None) -> subprocess.Popen:
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"]
        return self._started([*self.inside(name), *dies_with_us, *map(str, argv)], out, env)

    def _started(self, words: list[str], out: Path | None = None, env: dict[str, str] | None = None):
        with (out or Path(os.devnull)).open("a") as to:
            process = subprocess.Popen(words, stdout=to, stderr=to, env=env)
        self.started.append(process)
        self.stack.callback(self.stop, process)
        return process

    @staticmethod
    def stop(process: subprocess.Popen) -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


@contextmanager
def networks() -> Iterator[Networks]:
    """The six, and their lines; nothing of them is left afterwards."""
    if os.geteuid():
        pytest.skip("a network namespace wants root")
    for tool in ("ip", "nsenter", "unshare", "setpriv", "haproxy", "nginx"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not STREAM.exists():
        pytest.skip("nginx has no stream module")
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"])
    if tried.returncode:
        pytest.skip("this machine lets nobody make a network")
    with ExitStack() as stack:
        nets = Networks(stack)
        for name in (*HOSPITALS, "proxy", "hub", "store"):
            nets.add(name)
        nets.run("proxy", "ip", "addr", "add", f"{FRONT}/32", "dev", "lo")
        for k, name in enumerate(HOSPITALS, start=1):
            nets.join("proxy", name, f"10.27.{k}")
            nets.run(name, "ip", "route", "add", f"{FRONT}/32", "via", f"10.27.{k}.1")
        nets.join("proxy", "hub", "10.27.8")
        nets.join("hub", "store", "10.27.9")
        yield nets
    assert [one for one in nets.started if one.poll() is None] == [], "a process was left running"
    assert not [one for one in nets.holders.values() if Path(f"/proc/{one.pid}").exists()], "a namespace is left"


class Play:
    """The study: 0.2.0's coordinator and site, two further hospitals, and the commands of all."""

    def __init__(self, folder: Path, nets: Networks) -> None:
        self.folder, self.nets, self.guard = folder, nets, threading.Lock()
        self.home = folder / "coordinator"
        self.ran, self.again, self.refused = 0, 0, list[str]()
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "TRIBUTARY_PASSPHRASE": PASSPHRASE, "OMP_NUM_THREADS": "1"}
        with tarfile.open(FIXTURE) as archive:
            archive.extractall(folder, filter="data")
        (folder / "site").rename(folder / "north")
        self.nodes: dict[str, subprocess.Popen] = {}

    def lead(self, *argv: object):
        return self._said("hub", "coordinator.cli", "--home", self.home, *argv)

    def site(self, name: str, *argv: object):
        return self._said(name, "site_agent.cli", *argv, "--home", self.folder / name)

    def _said(self, name: str, module: str, *argv: object):
        """Run a command until it is answered: what a dying node refuses is asked again, as an agent's timer does."""
        for _ in range(LEAST):
            done = self.nets.run(name, sys.executable, "-m", module, *argv, "--json", env=self.env)
            with self.guard:
                self.ran += 1
                if not done.returncode:
                    return json.loads(done.stdout)
                self.again += 1
            code = json.loads(done.stdout).get("refused", {}).get("code") if done.stdout.strip() else done.stderr
            if code not in AGAIN:
                break
            time.sleep(0.5)
        with self.guard:
            self.refused.append(f"{name} {argv}: {done.stdout} {done.stderr}")
        raise AssertionError(self.refused[-1])

    def set(self, path: Path, **settings: object) -> None:
        text = path.read_text()
        for key, value in settings.items():
            text, found = re.subn(rf"(?m)^{key} = .*$", f"{key} = {json.dumps(value)}", text)
            text = text if found else f"{key} = {json.dumps(value)}\n{text}"
        path.write_text(text)

    def serve(self, node: str, failpoint: str = "") -> None:
        port, health = NODES[node]
        where = ["--address", f"{HUB}:{port}", "--health", f"{HUB}:{health}", "--analysts", "none"]
        env = {**self.env, **({"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {})}
        words = [sys.executable, "-m", "coordinator.cli", "--home", self.home, "serve", *where]
        self.nodes[node] = self.nets.start("hub", *words, out=self.folder / f"{node}.log", env=env)
        assert until(lambda: self.metrics(node).get("tributary_ready") == 1.0), (
            self.folder / f"{node}.log"
        ).read_text()

    def metrics(self, node: str) -> dict[str, float]:
        """What a process shows of itself; nothing, where nobody answers."""
        get = f"import urllib.request as u; print(u.urlopen('http://{HUB}:{NODES[node][1]}/metrics').read().decode())"
        done = self.nets.run("hub", sys.executable, "-c", get, env=self.env)
        lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def balance(self) -> None:
        """Start nginx and haproxy as they are shipped, at these addresses."""
        text = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
        for shipped, here in (
            ("bind 0.0.0.0:8443", "bind 127.0.0.1:8440"),
            ("server one 10.0.0.11:8443", f"server one {HUB}:8443"),
            ("server two 10.0.0.12:8443", f"server two {HUB}:8444 check port {NODES['two'][1]}"),
        ):
            assert shipped in text
            text = text.replace(shipped, here)
        (self.folder / "haproxy.cfg").write_text(text)
        text = (ROOT / "deploy" / "nginx-stream.conf").read_text(encoding="utf-8")
        text = re.sub(r"        server 10.0.0.12:8443.*\n", "", text).replace("10.0.0.11:8443", "127.0.0.1:8440")
        text = text.replace("0.0.0.0:8443", f"{FRONT}:8443").replace("modules/ngx_stream_module.so", f"{STREAM}")
        log = self.folder / "nginx.log"
        text = f"pid {self.folder}/nginx.pid;\nerror_log {log};\ndaemon off;\n{text}"
        (self.folder / "nginx.conf").write_text(text)
        self.nets.start("proxy", "haproxy", "-db", "-f", self.folder / "haproxy.cfg", out=self.folder / "haproxy.log")
        self.nets.start("proxy", "nginx", "-c", self.folder / "nginx.conf", "-e", log, out=log)

    def join(self, name: str) -> None:
        invitation, table = self.folder / f"{name}.invitation", self.folder / f"{name}.csv"
        self.lead("invite", name, "--study", "storm", "--out", invitation)
        self.site(name, "init", "--invitation", invitation, "--approver", "steward")
        self.site(name, "join")
        self.lead("accept", name, "--fingerprint", self.site(name, "status")["fingerprint"])
        self.site(name, "join")
        self.site(name, "plan", "fetch", "storm")
        self.site(name, "plan", "approve", "storm", "--as", "steward", "--understood", "local")
        draw = random.Random(name)
        with table.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["person", "sbp", "chol", "died"])
            for k in range(400):
                lines.writerow(
                    [f"{name}-{k}", round(draw.gauss(130, 15), 3), round(draw.gauss(210, 30), 3), draw.randrange(2)]
                )
        self.site(name, "data", "add", table, "--as", "storm")

    def deliver(self, name: str) -> None:
        """All four waves of a hospital: what waits is approved, what is missing is made."""
        home = self.folder / name
        waits = {one["wave"]: one for one in self.site(name, "outbox", "list")["releases"]}
        for wave in WAVES:
            found = waits.get(wave) or self.site(name, "release", "storm", "--wave", wave)
            if found["state"] != "delivered":
                release = found["release_id"]
                self.site(name, "approve", release, "--as", "steward", *_ticks(home, release))
        left = self.site(name, "outbox", "list")["releases"]
        assert [(one["wave"], one["state"]) for one in left] == [(wave, "delivered") for wave in WAVES]


def until(holds, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def uploads(metrics: dict[str, float]) -> int:
    """Uploads that a process acknowledged."""
    return round(metrics.get('tributary_site_calls_total{code="ok",method="Upload"}', 0.0))


@pytest.mark.soak
@pytest.mark.fault("F23", sites=3, bundles=12)
def test_three_hospitals_deliver_through_two_proxies_while_a_node_dies_after_an_upgrade(tmp_path, record_property):
    with networks() as nets:
        play = Play(tmp_path, nets)
        certificate = x509.load_pem_x509_certificate((tmp_path / "north/certificates/site.pem").read_bytes())
        if certificate.not_valid_after_utc < dt.datetime.now(dt.UTC):
            pytest.skip("the fixture's certificates have ended")
        lines = {"peer": "10.27.9.1", "listen": STORE, "inside": nets.inside("store")}
        url = f"postgresql+psycopg://hub@{STORE}/postgres"
        with database_server("hospitals", **lines):
            upgraded = play.lead("upgrade")
            assert len(play.lead("releases")["accepted"]) == 2
            play.lead("store", "migrate", url)
            play.set(play.home / "coordinator.toml", address=f"{FRONT}:8443", listen=f"{HUB}:8443", health="")
            play.set(tmp_path / "north" / "site.toml", address=f"{FRONT}:8443")
            # A hospital has no way past the proxy: the kernel knows no route to the coordinator.
            straight = nets.run("north", "ip", "route", "get", HUB, env=play.env)
            assert (straight.returncode != 0, "unreachable" in straight.stderr.lower()) == (True, True), straight
            play.serve("one", failpoint="ingest.before_commit")
            play.serve("two")
            play.balance()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(play.join, HOSPITALS[1:]))
            before = {node: play.metrics(node) for node in NODES}
            with ThreadPoolExecutor(len(HOSPITALS)) as pool:
                running = [pool.submit(play.deliver, name) for name in HOSPITALS]
                first = play.nodes["one"]
                assert first.wait(600) == -signal.SIGKILL, "it died between moving a bundle and committing it"
                assert play.metrics("one") == {}
                assert play.metrics("two")["tributary_ready"] == 1.0
                play.serve("one")
                for one in running:
                    one.result()
            after = {node: play.metrics(node) for node in NODES}
            started = "process_start_time_seconds"
            assert after["one"][started] > before["one"][started]
            assert after["two"][started] == before["two"][started]
            assert uploads(after["one"]) > 0, "the node that came back takes part"
            stored = play.lead("releases")["accepted"]
            assert {(one["site"], one["wave"]) for one in stored} == {(name, k) for name in HOSPITALS for k in WAVES}
            assert len(stored) == len(HOSPITALS) * len(WAVES)
            assert play.lead("log", "verify")["verified"]
            for name in HOSPITALS:
                assert play.site(name, "ledger", "verify")["ok"]
                assert play.site(name, "status")["discrepancies"] == []
            for node in NODES:
                nets.stop(play.nodes[node])
                assert play.nodes[node].returncode == 0, "it drained and ended by itself"
    assert play.refused == []
    counts = {"releases": len(stored), "of": len(HOSPITALS) * len(WAVES), "commands": play.ran, "again": play.again}
    counts |= {"refused": len(play.refused), "uploads one": uploads(after["one"]), "uploads two": uploads(after["two"])}
    for what, count in {**counts, "schema": upgraded["revision"], "killed": 1}.items():
        record_property(what, count)
