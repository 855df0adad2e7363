"""A process that has imported once and forks the demo's commands: each stays a process of its own.

A command of a hospital needs a tenth of a second, and Python needs one or two to import what it is made of; a demo has
two hundred of them. So one *warm* process imports and then forks a child per command, with the command's own
arguments, environment and streams, which runs the same `main` as the installed program. What a command leaves in memory
is gone with it. Between the two there may be a process of one place, a hospital or the lead's desk: there a person who
decides four times in one sitting pays once for what a passphrase opens, and every later command finds it open.

The warm process has one thread, opens no connection and reads no file of the study. While the first command works it
releases a made-up table in a sandbox, so that the others find ready what is made at its first use. It ends with the
line to the demo, and its children with it. Where the system cannot fork safely, every command is started anew (`Cold`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NoReturn, Protocol, TypeVar

from shared import software_version
from shared.base.process import keep_freed
from shared.errors import Refusal, StateRefusal
from shared.terminal import reached

__all__ = [
    "Aside",
    "Cold",
    "EndedCommand",
    "Launcher",
    "RunningCommand",
    "Warm",
    "launcher",
    "main",
]

Given = TypeVar("Given")
ORDER_CAP = 1 << 16
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
PRELOADED = (
    "grpc",
    "sqlalchemy.dialects.sqlite",
    "shared.base.passphrases",
    "pyarrow.parquet",
    "rich.progress",
    "google.protobuf.message",
    "shared.wire.messages",
    "shared.releases.bundle",
    "shared.releases.statement",
    "shared.releases.synthetic",
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
    "coordinator.cli",
    "coordinator.services.collect.server",
    "coordinator.services.authority",
    "coordinator.store.store",
    # What some commands import when they need it.
    "google.protobuf.descriptor_pb2",
    "grpc._channel",
    "cryptography.hazmat.backends.openssl",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.kdf.scrypt",
    "pyarrow.pandas_compat",
    "scipy.interpolate",
    "scipy.optimize",
    "scipy.stats",
    "coordinator.planning.review",
    "shared.mechanisms.moments.draw",
    "site_agent.decide.airlock.approval",
    "site_agent.decide.airlock.drawing",
    "site_agent.decide.airlock.overview",
    "site_agent.decide.airlock.plan_approval",
    "site_agent.decide.airlock.tables",
    "site_agent.decide.joining.first_run",
    "site_agent.decide.key_files",
    "site_agent.identity",
    "site_agent.models.outcome_laws.laws",
    "site_agent.release.fitting",
    "site_agent.release.pipeline.before_draw",
    "site_agent.show.screens",
    "encodings.cp437",
    "encodings.utf_8_sig",
    "pyarrow.vendored.version",
    "shared.privacy.meaning",
    "site_agent.decide.waves",
    "site_agent.models.outcome_laws.calibrated",
    "site_agent.release.pipeline.rehearsal",
)
"""Modules that the demo's commands are made of. None of them starts a thread when it is imported."""

LATER = (
    "coordinator.answers.queries",
    "coordinator.figures.forest",
    "coordinator.store.store",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "scipy.stats",
)
"""Modules that the answers and figures at the end are made of."""


@dataclass(frozen=True)
class EndedCommand:
    """A command that has run to its end: its exit code (minus the signal that ended it) and what it wrote.

    `cpu` are CPU seconds of its process and of those that it waited for; None where nobody counted.
    """

    code: int
    out: str
    err: str
    cpu: float | None = None


class RunningCommand(Protocol):
    """A command that runs until it is stopped."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def stop(self, patience: float) -> None:
        """Ask it to end; end it if it has not within so many seconds."""
        ...


class Launcher(Protocol):
    """Launcher of the demo's command lines."""

    def run(self, module: str, argv: Sequence[str], env: Mapping[str, str], *, at: str = "") -> EndedCommand:
        """Run it to its end. `at` names the place at which it is run: what a passphrase opened there stays open."""
        ...

    def start(self, module: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> RunningCommand:
        """Start it; what it writes goes to `log`."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def launcher(env: Mapping[str, str]) -> Launcher:
    """A warm process where one may be forked from, else none."""
    return Warm(env) if sys.platform == "linux" else Cold(env)


class Aside:
    """Processes forked from this one for pieces of the demo's own work: answers and figures, while hospitals work.

    They are forked when the first piece is given, which must be before this process has other threads, and have what
    answers and figures are made of imported by then. Where the system cannot fork safely, a piece is done when its
    outcome is asked for.

    Args:
        workers: pieces at work at the same time.
        modules: modules imported meanwhile, for all of them once.

    >>> with contextlib.closing(Aside(2, ())) as aside:
    ...     [ended() for ended in [aside.begin(functools.partial(pow, 2, power)) for power in (3, 4)]]
    [8, 16]
    """

    def __init__(self, workers: int = 2, modules: Sequence[str] = LATER) -> None:
        self._imports = Thread(target=lambda: [importlib.import_module(name) for name in modules], daemon=True)
        self._imports.start()
        context = multiprocessing.get_context("fork") if sys.platform == "linux" else None
        self._pool = context and ProcessPoolExecutor(workers, mp_context=context, initializer=_set_aside)

    def begin(self, work: Callable[[], Given]) -> Callable[[], Given]:
        """Begin a piece of work. Returns: what waits for its outcome, and gives it or raises what it raised."""
        self._imports.join()
        return self._pool.submit(work).result if self._pool else functools.cache(work)

    def close(self) -> None:
        """End the processes; what was not begun is left."""
        self._imports.join()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Cold:
    """Every command is a new interpreter."""

    env: Mapping[str, str]

    def run(self, module: str, argv: Sequence[str], env: Mapping[str, str], *, at: str = "") -> EndedCommand:
        """Run it to its end."""
        done = subprocess.run(
            [sys.executable, "-m", module, *argv],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return EndedCommand(done.returncode, done.stdout, done.stderr)

    def start(self, module: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> RunningCommand:
        """Start it; what it writes goes to `log`."""
        with log.open("wb") as stream:
            return _Process(
                subprocess.Popen(
                    [sys.executable, "-m", module, *argv],
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**self.env, **env},
                )
            )

    def close(self) -> None:
        """Do nothing: there is no process to end."""


@dataclass(frozen=True)
class _Process:
    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, patience: float) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Warm:
    """The demo's end of the line to a warm process.

    Args:
        env: environment of the warm process, and of every command but for what the command is given.
        modules: modules that it imports.
    """

    def __init__(self, env: Mapping[str, str], modules: Sequence[str] = PRELOADED) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from coordinator.demo.warm import main; main({theirs.fileno()}, {list(modules)})",
                ],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._lines = {"": ours}
        self._begun: list[_Forked] = []
        self._lock = Lock()

    def run(self, module: str, argv: Sequence[str], env: Mapping[str, str], *, at: str = "") -> EndedCommand:
        """Run it to its end: forked from the warm process, or from the place that it is `at`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            begun = self._order(at, _command(module, argv, env), out.fileno(), err.fileno())
            code = begun.wait()
            out.seek(0)
            err.seek(0)
            wrote, complained = (stream.read().decode(errors="replace") for stream in (out, err))
            return EndedCommand(code, wrote, complained, cpu=begun.cpu)

    def start(self, module: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> RunningCommand:
        """Start it; what it writes goes to `log`."""
        with log.open("wb") as stream:
            begun = self._order("", _command(module, argv, env), stream.fileno(), stream.fileno())
        self._begun.append(begun)
        return begun

    def close(self) -> None:
        """End the warm process, and all that was forked from it."""
        with self._lock:
            for line in self._lines.values():
                line.close()
            self._lines.clear()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for one in self._begun:
            one.close()

    def _order(self, at: str, order: Mapping[str, Any], *handles: int) -> _Forked:
        with self._lock:
            if at and at not in self._lines:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    _send(self._lines[""], {"place": at}, [theirs.fileno()])
                self._lines[at] = ours
            line = self._lines[at]
            ours, theirs = socket.socketpair()
            with theirs:
                _send(line, order, [theirs.fileno(), *handles])
        return _Forked(ours)


class _Forked:
    """The demo's end of the line about one child: its process id, then its exit code and CPU seconds."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._read = line.makefile("rb")
        self._code: int | None = None
        self.cpu: float | None = None
        self._pid = int(self._next())

    def _next(self) -> bytes:
        line = self._read.readline()
        if not line.endswith(b"\n"):
            self.close()
            raise StateRefusal("the process that the demo's commands are forked from must live", given="it has ended")
        return line

    def wait(self) -> int:
        if self._code is None:
            code, cpu = self._next().split()
            self._code, self.cpu = int(code), float(cpu)
            self.close()
        return self._code

    def close(self) -> None:
        """Ask for no more."""
        self._read.close()
        self._line.close()

    def poll(self) -> int | None:
        if self._code is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self._code

    def stop(self, patience: float) -> None:
        # While no code was told the process is not reaped, so that the number is still its own.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, number)
                select.select([self._line], [], [], patience)
        self.wait()


def _command(module: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    return {"run": module, "argv": list(argv), "env": dict(env)}


def _send(line: socket.socket, order: Mapping[str, Any], handles: list[int]) -> None:
    try:
        socket.send_fds(line, [json.dumps(order).encode()], handles)
    except OSError as error:
        raise StateRefusal(
            "the process that the demo's commands are forked from must live", given=type(error).__name__
        ) from None


# -- the warm process --------------------------------------------------------------------------------------------
def main(line_number: int, modules: Sequence[str]) -> None:
    """Import, then fork what is ordered on the line with this file descriptor, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the demo ends this line
    keep_freed()
    from typer import main as typer

    # Putting a command line together from its functions takes longer than most commands: once for all of them.
    typer.get_command = functools.cache(typer.get_command)
    reached.reached = lambda app, words: app
    for name in modules:
        module = importlib.import_module(name)
        if name.endswith(".cli"):
            typer.get_command(module.app)
    _settle()
    with socket.socket(fileno=line_number) as line:
        _serve(line, meanwhile=_rehearse if "site_agent.release.pipeline.rehearsal" in modules else None)


def _settle() -> None:
    gc.collect()
    gc.freeze()  # what was made so far stays shared with the children


def _rehearse() -> None:
    """Release a made-up table in a sandbox: what libraries make ready when they are first used, every command finds."""
    from coordinator.demo.play import STUDIES, around
    from shared.plans.plan import StudyPlan

    # A site's code by its name, as all commands of a site are run here.
    floors = importlib.import_module("site_agent.config").SiteFloors()
    rehearse = importlib.import_module("site_agent.release.pipeline.rehearsal").rehearse
    today = dt.date.today()
    plan = StudyPlan.from_toml(around((STUDIES / "first.toml").read_text(encoding="utf-8"), today))
    # It saves time and nothing else: where there is no room for it, commands take longer.
    own: dict[str, Any] = {"name": "rehearsal", "agent_version": software_version(), "floors": floors}
    with contextlib.suppress(OSError, Refusal), tempfile.TemporaryDirectory() as folder:
        rehearse(plan=plan, folder=Path(folder) / "sandbox", today=today, **own)
    _settle()


@dataclass(frozen=True)
class _Child:
    """A command at work: the demo's line about it, and the end of a pipe at which it says what it derived."""

    line: socket.socket
    derived: int

    def close(self) -> None:
        self.line.close()
        os.close(self.derived)


def _serve(line: socket.socket, typed: _Typed | None = None, *, meanwhile: Callable[[], None] | None = None) -> None:
    """Fork what is ordered, and say how it ended, until the line closes.

    Args:
        typed: keys derived at this place; None where none are cached.
        meanwhile: done once, while what was ordered first is at work.
    """
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only so that the system tells of it
    signal.set_wakeup_fd(wake.fileno())
    alive: dict[int, _Child] = {}
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(alive, typed)
        if line not in ready:
            continue
        data, handles, _, _ = socket.recv_fds(line, ORDER_CAP, 4)
        if not data:
            _end(alive)
            return
        order = json.loads(data)
        derived, derives = os.pipe()
        os.set_blocking(derived, False)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for end in (line, woken, wake):
                end.close()
            for child in alive.values():
                child.close()
            os.close(derived)
            _become(order, handles, typed, derives)
        os.close(derives)
        if "place" in order:
            os.close(handles.pop())
            os.close(derived)
        else:
            alive[pid] = _Child(socket.socket(fileno=handles.pop(0)), derived)
            alive[pid].line.sendall(b"%d\n" % pid)
            for handle in handles:
                os.close(handle)
        if meanwhile is not None:
            meanwhile()
            meanwhile = None


def _reap(alive: dict[int, _Child], typed: _Typed | None) -> None:
    """Say of every child that has ended how it did, and keep what it derived."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            if pid in alive:
                child = alive.pop(pid)
                if typed is not None:
                    typed.keep(child.derived)
                with contextlib.suppress(OSError):
                    child.line.sendall(
                        b"%d %.6f\n" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
                    )
                child.close()


def _end(alive: Mapping[int, _Child]) -> None:
    """End what is still at work, and wait for it and for the places, whose lines have closed as well."""
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


class _Typed:
    """Cache of the keys derived from passphrases typed at one place, by passphrase, salt and cost.

    A command that meets a new passphrase pays for its derivation, and sends the key to the process of the place before
    it ends.
    """

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def keep(self, pipe: int) -> None:
        """Add the keys that a command which has ended wrote to `pipe`."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(pipe, ORDER_CAP).splitlines():
                self._made |= json.loads(line)

    def work(self, pipe: int) -> None:
        """In a command: take derived keys from the cache, and write newly derived ones to `pipe`."""
        from shared.base import locked

        derive = locked.derive

        def key(passphrase: str, salt: bytes, cost: locked.KeyCost) -> bytes:
            asked = json.dumps([passphrase, salt.hex(), cost.n, cost.r, cost.p])
            if asked not in self._made:
                self._made[asked] = derive(passphrase, salt, cost).hex()
                os.write(pipe, json.dumps({asked: self._made[asked]}).encode() + b"\n")
            return bytes.fromhex(self._made[asked])

        locked.derive = key


def _become(order: Mapping[str, Any], handles: list[int], typed: _Typed | None, derives: int) -> NoReturn:
    """Be a place or a command; never returns."""
    code = 1
    try:
        _die_with_parent()
        if "place" in order:
            os.close(derives)
            with socket.socket(fileno=handles[0]) as line:
                _serve(line, _Typed())
            code = 0
        else:
            if typed is not None:
                typed.work(derives)
            code = _run(order, handles)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(order: Mapping[str, Any], handles: list[int]) -> int:
    """The command, with these as its standard streams."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(order["env"])
    os.close(handles[0])
    for number, handle in zip((1, 2), handles[1:], strict=True):
        os.dup2(handle, number)
    for handle in handles[1:]:
        os.close(handle)
    sys.argv = [order["run"], *order["argv"]]
    importlib.import_module(order["run"]).main(order["argv"])
    return 0


def _set_aside() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the demo ends what it set aside
    _die_with_parent()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
