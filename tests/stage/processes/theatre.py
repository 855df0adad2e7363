"""The whole product as real processes on loopback: a coordinator that serves, and hospitals that run their commands.

Starting Python with pandas and SciPy costs two seconds, and these tests start hundreds of processes. One *zygote*
imports the libraries once and forks a child per command; the child gets its own environment, its own standard streams,
calls the same ``main`` as the installed script, and dies as the failpoint or the test wants it to. gRPC does not
survive a fork, so that the zygote never imports it. Run as a script, this module is the zygote.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime as dt
import functools
import gc
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stage.processes.stem import plant

ROOT = Path(__file__).resolve().parents[3]
PASSPHRASE = "correct horse battery"
PATIENCE = 300.0
"""Seconds after which a command that does not end is a failure instead of a hang."""


def plan_toml(
    study: str = "storm",
    *,
    waves: int = 1,
    expires: dt.date = dt.date(2999, 12, 31),
    version: int = 1,
    purpose: str = "To see what a crash leaves behind.",
    returning: str = "refresh",
    radius: float | None = None,
) -> str:
    """A plan that trains in a moment and whose floors never stand in the way; no column is rounded on its way."""
    calendar = "".join(f"[[waves]]\nnumber = {k + 1}\nopens = 2000-01-01\ncloses = 2999-01-01\n" for k in range(waves))
    return f"""
study = "{study}"
version = {version}
title = "A small study"
purpose = "{purpose}"
coordinator = "tributary-hub"
returning = "{returning}"
expires = {expires}

[retention]
until = 2999-12-31
keep = "The releases and the answers made of them, so that what was published can be checked."
readers = "The study lead, and analysts with a token of the study."

[release]
mechanism = "latent_noise"
w = 0.8
{"" if radius is None else f"radius = {radius}"}

[training]
flows = 1
hidden = 8
epochs = 1
patience = 1

[budget]
epsilon = 1e9
delta = 1e-6

[floors]
membership_auc = 1.0
own_row_linkage = 1.0
extreme_linkage = 1.0

{calendar}
[dictionary]
name = "{study}"
version = 1

[dictionary.columns.person]
kind = "person"

[dictionary.columns.sbp]
kind = "continuous"
lower = 50
upper = 300

[dictionary.columns.chol]
kind = "continuous"
lower = 50
upper = 700

[dictionary.columns.died]
kind = "binary"
"""


@dataclass
class Command:
    """One process of the product, running or ended."""

    argv: tuple[str, ...]
    pid: int
    out: Path
    err: Path
    line: Any

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code; minus the signal that ended it."""
        self.line.settimeout(seconds)
        try:
            said = self.line.recv(64)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            raise AssertionError(f"{self.argv} did not end") from None
        self.line.close()
        assert said, f"the zygote lost {self.argv}"
        return int(said)

    def end(self) -> None:
        """Kill it, unless it has ended: then its number may be another's by now."""
        if self.line.fileno() < 0:
            return
        self.line.setblocking(False)
        try:
            self.line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def refused(self) -> str:
        """Code of the refusal; empty where there is none."""
        if self.code <= 0 or not self.out.startswith("{"):
            return ""
        return self.json.get("refused", {}).get("code", "")

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}: {self.code}\n{self.out}\n{self.err}"


@functools.cache
def zygote(tree: Path) -> Path:
    """The socket of this process's zygote of a source tree, started for its first command, ended with the last test."""
    # A socket's path must be short, and pytest's folders are not.
    place = Path(tempfile.mkdtemp(prefix="zygote-"))
    process = subprocess.Popen(
        [sys.executable, str(next((tree / "tests").rglob("theatre.py"))), str(place / "s")],
        cwd=tree,
        # As the coordinator's fork servers are started, which are forked from this one.
        env={
            **os.environ,
            "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )

    @atexit.register
    def end() -> None:
        process.kill()
        process.wait()
        process.stdout.close()
        shutil.rmtree(place)

    assert process.stdout.readline() == b"ready\n"
    return place / "s"


def _forked(order: dict[str, Any], tree: Path = ROOT) -> tuple[int, socket.socket]:
    """Have the zygote of a tree fork a command; its process, and the line on which its exit code comes."""
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(PATIENCE)
    line.connect(str(zygote(tree)))
    line.sendall(json.dumps(order).encode() + b"\n")
    pid = b""
    while not pid.endswith(b"\n"):  # byte by byte, so that the exit code is left for `Command.wait`
        got = line.recv(1)
        assert got, f"the zygote did not start {order['argv']}"
        pid += got
    return int(pid), line


def exit_code(module: str, *argv: object, place: str = "") -> int:
    """Of a command in this environment that nobody hears, and that dies at the failpoint `place`."""
    words, nowhere = tuple(map(str, argv)), Path(os.devnull)
    env = {**os.environ, "TRIBUTARY_FAILPOINT": place}
    order = {"module": module, "argv": words, "env": env, "cwd": str(ROOT), "out": os.devnull, "err": os.devnull}
    pid, line = _forked(order)
    return Command(words, pid, nowhere, nowhere, line).wait()


@dataclass
class Theatre:
    """A coordinator and its hospitals under one folder."""

    folder: Path
    relay: int = 0
    """Port that sites dial, when it is not the coordinator's own."""
    plaintext: bool = False
    """Keep what the sites' processes hand to, and get from, the encrypted connection."""
    versions: dict[str, Path] = field(default_factory=dict)
    """Source trees of those who run another version: sites by name, ``coordinator``."""
    server: Command | None = field(default=None, init=False)
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.hub = self.folder / "coordinator"
        self.captured = self.folder / "captured"
        self.notes = self.folder / "notes"
        for folder in (self.captured, self.notes):
            folder.mkdir(parents=True)
        self._counting = threading.Lock()
        self._running: list[Command] = []
        zygote(ROOT)  # from this thread: it dies with the thread that started it
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def close(self) -> None:
        self.stop()
        for command in self._running:
            command.end()

    # -- processes --------------------------------------------------------------------------------------------------
    def start(
        self, module: str, *argv: object, env: dict[str, str] | None = None, tree: Path = ROOT, **order: Any
    ) -> Command:
        """Start a command line. `order`: hooks (names in `HOOKS`), file_size (bytes a file may have)."""
        with self._counting:
            self.count += 1
            number = self.count
        words = tuple(map(str, argv))
        name = f"{number:05d}-{module.partition('.')[0]}"
        out, err = self.captured / f"{name}.out", self.captured / f"{name}.err"
        out.touch()
        err.touch()
        order |= {
            "module": module,
            "argv": words,
            "env": {**_environment(), "TRIBUTARY_PASSPHRASE": PASSPHRASE, **(env or {})},
            "cwd": str(self.folder),
            "out": str(out),
            "err": str(err),
        }
        pid, line = _forked(order, tree)
        command = Command(words, pid, out, err, line)
        with self._counting:
            self._running = [other for other in self._running if other.line.fileno() >= 0] + [command]
        return command

    def run(self, module: str, *argv: object, expect: int | None = 0, **settings: Any) -> Answer:
        """Run a command line to its end."""
        command = self.start(module, *argv, **settings)
        code = command.wait()
        answer = Answer(command.argv, code, command.out.read_text(), command.err.read_text())
        assert expect is None or code == expect, str(answer)
        return answer

    def coordinator(self, *argv: object, **settings: Any) -> Answer:
        tree = self.versions.get("coordinator", ROOT)
        return self.run("coordinator.cli", "--home", self.hub, *argv, "--json", tree=tree, **settings)

    def agent(self, site: str, *argv: object, expect: int | None = 0, as_json: bool = True, **settings: Any) -> Answer:
        """One ``site-agent`` command; its draws are noted where no crash can undo it."""
        env = {
            "TRIBUTARY_SITE_HOME": str(self.home(site)),
            "THEATRE_NOTES": str(self.notes / site),
            **settings.pop("env", {}),
        }
        hooks = ["draws", *settings.pop("hooks", ())]
        if self.plaintext:
            hooks.append("plaintext")
            env["THEATRE_PLAINTEXT"] = str(self.notes / "plaintext")
        tail = ("--json",) if as_json else ()
        settings["tree"] = self.versions.get(site, ROOT)
        return self.run("site_agent.cli", *argv, *tail, expect=expect, env=env, hooks=hooks, **settings)

    def home(self, site: str) -> Path:
        return self.folder / "sites" / site

    def noted(self, site: str) -> list[dict[str, Any]]:
        """What hooks wrote down at a site, in order."""
        path = self.notes / site
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # -- the coordinator ---------------------------------------------------------------------------------------------
    def open(self, *plans: str) -> None:
        """Set the coordinator up, sign the plans, and serve."""
        dialled = f"127.0.0.1:{self.relay or self.port}"
        self.coordinator("init", "--address", dialled, "--listen", f"127.0.0.1:{self.port}")
        for text in plans:
            self.sign(text)
        self.serve()

    def sign(self, text: str) -> None:
        path = self.folder / f"plan-{self.count}.toml"
        path.write_text(text)
        self.coordinator("plan", "sign", path)

    def serve(self, failpoint: str = "") -> Command:
        """Start the server; it dies at `failpoint`."""
        env = {"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {}
        tree = self.versions.get("coordinator", ROOT)
        server = self.start("coordinator.cli", "--home", self.hub, "serve", env=env, tree=tree)
        limit = time.monotonic() + PATIENCE
        while "answers on" not in server.out.read_text():
            with contextlib.suppress(TimeoutError, BlockingIOError):
                server.line.settimeout(0.02)
                code = server.line.recv(64)
                raise AssertionError(f"the coordinator ended: {code}\n{server.err.read_text()}")
            assert time.monotonic() < limit, "the coordinator does not answer"
        self.server = server
        return server

    def stop(self) -> int | None:
        """End the server, by its own id."""
        server, self.server = self.server, None
        if server is None:
            return None
        server.signal(signal.SIGTERM)
        return server.wait()

    # -- a hospital --------------------------------------------------------------------------------------------------
    def invite(self, site: str, *studies: str) -> Path:
        path = self.folder / f"invitation-{site}-{self.count}.json"
        self.coordinator("invite", site, *(part for study in studies for part in ("--study", study)), "--out", path)
        return path

    def join(self, site: str, table: Path, *studies: str) -> None:
        """A hospital from nothing to approved plans."""
        invitation = self.invite(site, *studies)
        made = self.agent(site, "init", "--invitation", invitation, "--approver", "steward").json
        self.agent(site, "join")
        self.coordinator("accept", site, "--fingerprint", made["fingerprint"])
        self.agent(site, "join")
        for study in studies:
            self.adopt(site, table, study)

    def adopt(self, site: str, table: Path, study: str) -> None:
        self.agent(site, "plan", "fetch", study)
        self.agent(site, "data", "add", table, "--as", study)
        self.agent(site, "data", "map", study, "--ignore-rest")
        self.agent(site, "plan", "approve", study, "--as", "steward", "--understood", "local")

    def waiting(self, site: str, wave: int, study: str = "storm") -> str:
        """The release of a wave that waits for a person, or is on its way."""
        for row in self.agent(site, "outbox", "list").json["releases"]:
            if (row["study"], row["wave"]) == (study, wave) and row["state"] in ("held", "approved", "delivered"):
                return row["release_id"]
        return ""

    def approve(self, site: str, release_id: str, **settings: Any) -> Answer:
        return self.agent(site, "approve", release_id, "--as", "steward", **settings)

    def entries(self, site: str) -> list[tuple[str, dict[str, Any]]]:
        """Kinds and bodies of a ledger as it lies on disk, read from a copy without the product's code."""
        with tempfile.TemporaryDirectory() as name:
            for path in self.home(site).glob("ledger.db*"):
                shutil.copy(path, name)
            with contextlib.closing(sqlite3.connect(Path(name) / "ledger.db")) as database:
                rows = database.execute("SELECT kind, body FROM entries ORDER BY seq").fetchall()
        return [(kind, json.loads(body)) for kind, body in rows]


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPYCACHEPREFIX")
    kept += ("TRIBUTARY_CLOCK", "TRIBUTARY_KEY_FILE")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"OMP_NUM_THREADS": "1"}


# -- the zygote ------------------------------------------------------------------------------------------------------
# Without torch: no plan of these tests trains by nflows, and a small process is forked in half the time.
PRELOADED = [
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "scipy.spatial",
    "sqlalchemy",
    "typer",
    "rich.progress",
    "rich.panel",
    "rich.table",
    "cryptography.x509",
    "google.protobuf.message",
    "dp_accounting",
    "shared.wire.messages",
    "shared.releases.bundle",
    "shared.releases.statement",
    "shared.flows.chain",
    "shared.mechanisms.latent_noise.noise",
    "site_agent.cli",
    "site_agent.egress",
    "site_agent.release.drawing",
    "site_agent.release.pipeline.making",
    "site_agent.models.flow",
    "site_agent.release.audit.attacks",
    "site_agent.release.checks",
    "site_agent.records.table",
    "site_agent.ledger.book",
    "site_agent.release.outbox",
    "site_agent.decide.plans",
    "site_agent.decide.airlock",
    "site_agent.decide.attending",
    "site_agent.decide.key_files",
    "site_agent.decide.membership",
    "site_agent.decide.joining.renewal",
    "site_agent.decide.waves",
    "site_agent.identity",
    "site_agent.lock",
    "shared.base.passphrases",
    "pyarrow.pandas_compat",
    "site_agent.show.screens",
    "site_agent.show.health",
    "coordinator.cli",
    "coordinator.services.collect.server",
    "coordinator.services.authority",
    "coordinator.store.store",
    "pyarrow.compute",
    "sqlalchemy.dialects.sqlite",
    "coordinator.services.compute.tasks",
    "coordinator.answers.curves",
    "coordinator.answers.harmonise",
    "shared.releases.synthetic",
]


def _note(kind: str, **body: object) -> None:
    handle = os.open(os.environ["THEATRE_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, json.dumps({"kind": kind, **body}).encode() + b"\n")
    os.close(handle)


def _draws() -> None:
    """Note every noisy output of this process outside of the attacks, and every bundle on its way to the disk.

    What the membership attack releases is a stand-in, which never leaves memory.
    """
    from shared.mechanisms.latent_noise.noise import LatentNoise
    from site_agent.release import drawing
    from site_agent.release.outbox import Outbox

    drawn, sealed, attacked = LatentNoise.release, Outbox.seal, drawing._attack
    attacking: list[bool] = []

    def release(self: Any, *given: Any, **named: Any) -> Any:
        noisy = drawn(self, *given, **named)
        if not attacking:
            # Whose rows they are, without asking the product: no two persons here share the value of a first column.
            rows = [round(float(row[0]), 9) for row in given[0]]
            _note("draw", digest=hashlib.sha256(noisy.tobytes()).hexdigest(), rows=rows)
        return noisy

    def attack(**named: Any) -> Any:
        attacking.append(True)
        try:
            return attacked(**named)
        finally:  # one round of the agent makes the releases of several studies
            attacking.pop()

    def seal(self: Any, hold: Any, bundle: bytes, *given: Any, **named: Any) -> Any:
        _note("seal", release_id=hold.release_id, wave=hold.wave, digest=hashlib.sha256(bundle).hexdigest())
        return sealed(self, hold, bundle, *given, **named)

    LatentNoise.release, Outbox.seal = release, seal  # type: ignore[method-assign]
    drawing._attack = attack


def _trace() -> None:
    """Note every failpoint that is passed."""
    from shared.base import failpoints

    old = failpoints.reach

    def reach(name: str) -> None:
        _note("reach", name=name)

    for module in list(sys.modules.values()):
        if getattr(module, "reach", None) is old:
            module.reach = reach  # type: ignore[attr-defined]


def _plaintext() -> None:
    """Keep every message on its way into the encrypted connection, and out of it."""
    from shared.wire import messages as wire

    encode, decode = wire.encode, wire.decode

    def keep(data: bytes) -> None:
        handle = os.open(os.environ["THEATRE_PLAINTEXT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(handle, data)
        os.close(handle)

    def encoded(message: Any) -> bytes:
        data = encode(message)
        keep(data)
        return data

    def decoded(kind: Any, data: bytes) -> Any:
        keep(data)
        return decode(kind, data)

    wire.encode, wire.decode = encoded, decoded  # type: ignore[assignment]


def _stumble() -> None:
    """A fault that nobody foresaw, in the words of a library that quotes the cell it stumbled over."""
    import pandas as pd

    from site_agent.release import drawing

    def fit(*_: Any) -> Any:
        from shared.base.randomness import secure_rng  # noqa: F401

        frame = pd.read_csv(os.environ["THEATRE_TABLE"], dtype=str)
        return frame["person"].astype(float)

    drawing._fit = fit


HOOKS = {"draws": _draws, "trace": _trace, "plaintext": _plaintext, "stumble": _stumble}


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _perform(order: dict[str, Any], handles: list[int]) -> None:
    """Be the command, with these as its standard streams where there are any."""
    import importlib

    _die_with_parent()
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    if not handles:
        written = os.O_WRONLY | os.O_CREAT
        opened = ((os.devnull, os.O_RDONLY), (order["out"], written), (order["err"], written))
        handles = [os.open(name, flags, 0o600) for name, flags in opened]
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    if order.get("file_size"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"], order["file_size"]))
    for name in order.get("hooks", ()):
        HOOKS[name]()
    if order["module"] == "coordinator.cli" and "serve" in order["argv"]:
        plant()
    code = 1
    try:
        code = importlib.import_module(order["module"]).main(order["argv"]) or 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _reap(alive: dict[int, socket.socket]) -> None:
    """Say of every command that has ended how it did."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in alive:
                with alive.pop(pid) as line, contextlib.suppress(OSError):
                    line.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _zygote(path: str) -> None:
    import importlib

    from typer import main as typer

    from shared.base import keys
    from shared.base.locked import KeyCost

    _die_with_parent()
    for name in PRELOADED:
        importlib.import_module(name)
    keys.COST = KeyCost(n=2, r=1)  # as in conftest.py, of which this process knows nothing
    typer.get_command = functools.cache(typer.get_command)  # likewise
    for name in ("site_agent.cli", "coordinator.cli", "coordinator.analyst.commands"):
        typer.get_command(importlib.import_module(name).app)
    assert "grpc" not in sys.modules, "gRPC does not survive a fork"
    gc.collect()
    gc.freeze()  # what was imported stays shared with the children
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that the system tells of it
    signal.set_wakeup_fd(wake.fileno())
    alive: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([server, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(alive)
        if server not in ready:
            continue
        line, _ = server.accept()
        order, handles, _, _ = socket.recv_fds(line, 1 << 16, 3)
        while not order.endswith(b"\n") and (more := line.recv(1 << 16)):
            order += more
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (server, woken, wake, line, *alive.values()):
                end.close()
            _perform(json.loads(order), handles)
        for handle in handles:
            os.close(handle)
        alive[child] = line
        with contextlib.suppress(OSError):
            line.sendall(b"%d\n" % child)


if __name__ == "__main__":
    _zygote(sys.argv[1])
