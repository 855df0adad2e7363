"""Whoever ends a test's or a benchmark's process ends what it has started."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from stage.processes import stopping
from stage.processes.database_server import database_server, installed
from stage.processes.owned_folder import owned_folder
from stage.processes.stopping import started, stopped

from shared.base.process import owned_folder as temporary
from tests.stage.house.sources import ROOT

SLEEP = [sys.executable, "-c", "import time; print('there', flush=True); time.sleep(300)"]
WAITING = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from stage.processes.stopping import started
with started({sleep}, start_new_session=True) as process, ThreadPoolExecutor(1) as pool:
    print(process.pid, flush=True)
    pool.submit(process.wait).result()  # as sites that deliver: they are through when the server is gone
"""
DATABASE = """
import sys, time
from stage.processes.database_server import database_server
with database_server("ended") as server:
    print((server.folder / "data" / "postmaster.pid").read_text().split()[0], server.folder, flush=True)
    time.sleep(300)
"""

COPY = """
import time
from tests import mutations
mutations.COPIED = ("README.md",)
with mutations.copied() as root:
    print(root, flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def _nothing_to_stop_yet(monkeypatch):
    """A session's server may have been started in this process before: what stops it is set aside, and put back."""
    before = {number: signal.getsignal(number) for number in stopping._SIGNALS}
    for name, empty in {"_STOPS": [], "_BEFORE": {}, "_OWNER": []}.items():
        monkeypatch.setattr(stopping, name, empty)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def runs(pid: int) -> bool:
    """True while a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(program: str, number: signal.Signals) -> tuple[int, list[str]]:
    """The status of a program that a signal ended when it had said a line; and that line's words."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also in the background
    argv = [sys.executable, "-c", heard + program]
    pipe = subprocess.PIPE
    with started(argv, env=environment, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        said = process.stdout.readline().split()
        process.send_signal(number)
        return process.wait(60), said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_is_stopped_although_threads_wait_for_it(number):
    status, [pid] = ended(WAITING.format(sleep=SLEEP), number)
    assert (status, runs(int(pid))) == (-signal.SIGINT, False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_database_is_stopped_and_its_folder_removed(number):
    installed()  # or it is skipped
    status, [pid, folder] = ended(DATABASE, number)
    assert (status, runs(int(pid)), Path(folder).exists()) == (-signal.SIGINT, False, False)


def test_a_failure_stops_a_database_too():
    pids = []
    with suppress(ZeroDivisionError), database_server("failed") as server:
        pids.append(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]))
        assert runs(pids[0]) / 0
    assert not runs(pids[0])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary folders are made, in this process and in those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_copy_of_the_tree_is_removed_on_a_signal(number, folder):
    status, [root] = ended(COPY, number)
    assert (status, Path(root).parent, [*folder.iterdir()]) == (-signal.SIGINT, folder, [])


def test_a_copy_of_the_tree_that_a_kill_left_is_removed_before_the_next_and_none_that_is_in_use(folder):
    with owned_folder("tributary-mutations") as used:
        status, [left] = ended(COPY, signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert {*folder.iterdir()} == {used, Path(left)}
        assert (Path(left) / "README.md").exists()
        _, [after] = ended(COPY, signal.SIGKILL)
        assert {*folder.iterdir()} == {used, Path(after)}
    assert [*folder.iterdir()] == [Path(after)]


SERVING = """
import time
from shared.base.process import owned_folder
with owned_folder("tributary-door") as folder:
    (folder / "server").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_server_s_folder_that_a_kill_left_goes_with_the_next_and_neither_one_in_use_nor_another_s(folder):
    """A coordinator's sockets and counts stayed in /tmp for good after each kill."""
    other = folder / "tributary-figure-1"
    other.mkdir()
    (folder / "tributary-door-link").symlink_to(other)
    with temporary("tributary-door") as used:
        status, [left] = ended(SERVING, signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert (Path(left) / "server").exists()
        with temporary("tributary-door") as after:
            assert {*folder.iterdir()} == {other, folder / "tributary-door-link", used, after}
    assert {*folder.iterdir()} == {other, folder / "tributary-door-link"}


def test_what_was_there_before_is_called_after_the_stop_and_put_back():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        outer, inner = (stopped(lambda name=name: heard.append(name)) for name in ("outer", "inner"))
        with suppress(KeyboardInterrupt), outer, inner:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
            heard.append("not ended")
        assert heard == ["inner", "outer", "before"]
        with stopped(lambda: heard.append("left")):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard[3:] == ["left", "before"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_is_heard_although_a_thread_was_the_first_to_start_something():
    heard, leave = [], threading.Event()

    def first() -> None:
        with stopped(lambda: heard.append("thread")):
            leave.wait(60)

    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    thread = threading.Thread(target=first)
    thread.start()
    try:
        while not stopping._STOPS:
            time.sleep(0.01)
        with suppress(KeyboardInterrupt), stopped(lambda: heard.append("main")):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        assert heard == ["main", "thread", "before"]
    finally:
        leave.set()
        thread.join()
        with stopped(lambda: None):  # the last to leave puts back what was there
            pass
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    try:
        with stopped(lambda: heard.append("left")):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            heard.append("goes on")
        assert heard == ["goes on", "left"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_forked_process_stops_nothing_of_its_parent():
    with started(SLEEP, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        heard, told = os.pipe()
        child = os.fork()
        if not child:
            os.write(told, b".")  # what arrives while it is being forked, Python forgets
            time.sleep(60)
            os._exit(0)
        os.read(heard, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert process.poll() is None


def test_every_benchmark_starts_its_processes_so():
    found = {
        path.name
        for path in (ROOT / "tests" / "benchmarks").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "Popen"
    }
    assert found == {"whole.py"}, "whole stops its steps itself: they keep what they took"
