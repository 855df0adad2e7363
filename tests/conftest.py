"""Small studies that many tests use."""

from __future__ import annotations

import ctypes
import datetime as dt
import faulthandler
import functools
import gc
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

# Before NumPy is loaded: a sum over ten thousand rows has other last digits in two threads than in one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pytest
import typer.main
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hurry import LONG, TURNS, part_number, part_of_today, taking_turns

from shared.base import keys
from shared.base.locked import KeyCost
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, Floors, StudyPlan, Training, Wave

pytest.register_assert_rewrite("stage")  # helpers of several tests say as much as a test where they fail

# Hundreds of processes are started: what the first compiles the others read. A place of its own for what is compiled
# would have every library compiled once more, which takes longer than all else that is imported.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Rewriting the assertions of all tests takes longer than all else before the first. With -B nothing is kept: who edits
# a file twice within a second (tests/mutations.py) would be given what was compiled of it before.
sys.dont_write_bytecode = "-B" in sys.orig_argv
# Tests fork processes that never use gRPC beside servers that do: its own handlers around a fork can crash those.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
os.environ["COLUMNS"] = "100"  # a screen is as wide wherever the tests run: parallel workers believe in 80 columns

# Tests write thousands of small files and flush each to the disk: six milliseconds on a disk, a few microseconds here.
MEMORY = Path("/dev/shm")
IN_MEMORY = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30
if IN_MEMORY:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A guess at a passphrase is meant to be dear; tests open thousands of keys. No setting of the product reaches this.
keys.COST = KeyCost(n=2, r=1)

# Putting a command line together from its functions takes longer than most commands: once for all calls of a process.
typer.main.get_command = functools.cache(typer.main.get_command)

# Who is forked holds the pipe to the process that hands out the tests, which waits until the last holder has ended.
if sys.platform == "linux":
    os.register_at_fork(after_in_child=functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGKILL, 0, 0, 0))

LIMITS: pytest.StashKey[Any] = pytest.StashKey()
SINCE: pytest.StashKey[float] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Let a watchdog that needs no interpreter end the process, a little later than the signal should end the test."""
    item.stash[LIMITS], item.stash[SINCE] = settings, time.monotonic()
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(1.2 * settings.timeout, exit=True, file=stderr)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Give what a test leaves to its fixtures a time of its own: with a failure the test's own is over.

    A watchdog is a thread that begins and ends: where next to nothing of the test's time is gone, it goes on with it.
    """
    if LIMITS in item.stash and time.monotonic() - item.stash[SINCE] > item.stash[LIMITS].timeout / 10:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[LIMITS])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have the collector look at no module: torch, pandas and the tests themselves are a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


_soaked: dict[str, dict[str, object]] = {}
_of_soak: set[str] = set()  # by mark: a report's keywords have the names of folders, too


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what a soak test counted (`record_property`), for `make soak`'s file, and how long each test took."""
    _took[_function(report.nodeid)] += report.duration
    if os.environ.get("TRIBUTARY_SOAK") and report.when == "call" and report.nodeid in _of_soak:
        counts = dict(report.user_properties)
        _soaked[report.nodeid.split("/")[-1]] = {"outcome": report.outcome, "seconds": round(report.duration), **counts}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write `tests/benchmarks/results/soak.json`; a test that was not run this time keeps its earlier line.

    And, where that is asked, which tests take longest.
    """
    if os.environ.get("TRIBUTARY_LONG") and not hasattr(session.config, "workerinput"):
        longest = [(name, took) for name, took in _took.most_common() if name not in ALIKE][:LONGEST]
        LONG.write_text(json.dumps(sorted(name for name, _ in longest), indent=1) + "\n")
        print(f"\nthe longest {LONGEST}: {sum(took for _, took in longest):.0f} of {_took.total():.0f} s")
    if not _soaked:
        return
    from benchmarks import record

    path = Path(__file__).parent / "benchmarks" / "results" / "soak.json"
    earlier = json.loads(path.read_text())["results"] if path.exists() else {}
    record.write("soak", {**earlier, **_soaked}, seed=0, command="make soak")


LONGEST, WHOLE = 1200, 4000
ALIKE = {"test_benchmarks_start.py::test_a_benchmark_starts_at_its_smallest_size_and_writes_what_it_found"}
"""Of which each case takes its turn."""
_took: Counter[str] = Counter()
WHOLE_ON_POSTGRES = {"test_store.py", "test_upgrade.py"}
EVERY = 10  # of the tests of other files that ask for `database`, so many are one part: another one each day


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Let a test's report say which faults it makes, and what its mark counts where the test itself counts nothing.

    And give those that repeat much the time for it.
    """
    there = {item for item in items if _on_postgres(item) and item.path.name not in WHOLE_ON_POSTGRES}
    for item in there:
        item.add_marker(pytest.mark.sampled)
    _of_soak.update(item.nodeid for item in items if item.get_closest_marker("soak"))
    for item in items:
        if item.get_closest_marker("soak") or os.environ.get("TRIBUTARY_SOAK"):
            item.add_marker(pytest.mark.timeout(0))
        elif os.environ.get("TRIBUTARY_FAULTS"):
            item.add_marker(pytest.mark.timeout(3600))
        named = [name for mark in item.iter_markers("fault") for name in mark.args]
        if named:
            item.user_properties.append(("faults", named))
            for mark in item.iter_markers("fault"):
                item.user_properties.append(("tally", dict(mark.kwargs)))
    yield
    left = {*_left_out([item for item in items if item in there], EVERY)}
    if len(items) > WHOLE and not os.environ.get("CI"):
        long = taking_turns()
        names = sorted({name for item in items if (name := _function(item.nodeid)) in long})
        later = {*names} - {*part_of_today(names, TURNS, say=False)}
        left |= {item for item in items if _function(item.nodeid) in later}
        for one in ALIKE:
            left |= {*_left_out([item for item in items if _function(item.nodeid) == one], TURNS)}
    alike: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        for mark in item.iter_markers("sampled"):
            if "every" in mark.kwargs:
                alike.setdefault((item.nodeid.split("[")[0], mark.kwargs["every"]), []).append(item)
    for (_, every), cases in alike.items():
        left |= {*_left_out(cases, every)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _function(nodeid: str) -> str:
    """The test that a case is of: ``test_x.py::test_y``."""
    return nodeid.split("[")[0].rpartition("/")[2]


def _left_out(cases: list[pytest.Item], every: int) -> list[pytest.Item]:
    """Which of these are another day's. Who asks for a few by name gets them."""
    today = {*part_of_today(cases, every, say=False)} if len(cases) >= every else {*cases}
    return [case for case in cases if case not in today]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say with a failure which part of the sampled tests it was."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"TRIBUTARY_PART={part_number()} tries today's part of the sampled tests again")


def _on_postgres(item: pytest.Item) -> bool:
    """True if a test that asks for `database` is to run on PostgreSQL."""
    given = getattr(item, "callspec", None)
    return given is not None and given.params.get("database") == "postgresql"


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Add to what this test counted for ``make faults``: the names of `faults.catalogue.COUNTS`.

    ``failpoints`` and ``failpoints_written`` are names: those at which something was killed, and those there are.
    """
    from faults.catalogue import COUNTS

    said: dict[str, Any] = {}
    request.node.user_properties.append(("tally", said))

    def add(**counts: Any) -> None:
        for name, count in counts.items():
            if name in ("failpoints", "failpoints_written"):
                said[name] = sorted({*said.get(name, ()), *count})
            else:
                assert name in COUNTS, name
                said[name] = said.get(name, 0) + int(count)

    return add


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A running PostgreSQL, for all tests of this process: each home's database is three hundred files."""
    from stage.processes.database_server import database_server

    with database_server("tests", place=MEMORY if IN_MEMORY else Path("/tmp")) as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a store lies in that is opened without naming its database: the tests that ask for it run on both."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    from stage.processes.database_server import stores_in

    with stores_in(request.getfixturevalue("postgres")):
        yield "postgresql"


@pytest.fixture(autouse=True)
def _store_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let what does not ask for `database` find its store where the product puts it."""
    if "database" in request.fixturenames or "stage.processes.database_server" not in sys.modules:
        yield
        return
    from stage.processes.database_server import stores_as_they_are

    with stores_as_they_are():
        yield


@pytest.fixture(scope="session")
def dictionary() -> Dictionary:
    """One column of every kind, missing values of every sort."""
    return Dictionary(
        name="mini",
        version=1,
        columns=(
            Column(name="person", kind="person"),
            Column(name="time", kind="time", unit="years", upper=20, event="cvd"),
            Column(name="cvd", kind="event"),
            Column(name="sbp", kind="continuous", unit="mmHg", lower=70, upper=270, decimals=1),
            Column(name="visits", kind="integer", lower=0, upper=40),
            Column(name="sex", kind="binary", levels=("female", "male")),
            Column(name="smoker", kind="binary", missing="level"),
            Column(name="grade", kind="ordered", levels=("low", "middle", "high")),
            Column(name="clinic", kind="nominal", levels=("north", "south", "west"), missing="level"),
            Column(name="stage", kind="ordered", levels=(1, 2, 4)),
            Column(name="thal", kind="nominal", levels=(3, 6, 7), missing="level"),
            Column(name="chol", kind="continuous", lower=50, upper=700, missing="level", missing_codes=(0,)),
            Column(name="parity", kind="integer", lower=0, upper=15, missing="level"),
        ),
    )


def make_table(n: int, seed: int = 1) -> pd.DataFrame:
    """A source table that fits the `dictionary` fixture."""
    rng = np.random.default_rng(seed)
    chol = rng.normal(220, 30, n).round(1)
    chol[rng.random(n) < 0.2] = 0
    parity = rng.poisson(1.5, n).clip(0, 15).astype(float)
    parity[rng.random(n) < 0.3] = np.nan
    smoker = rng.integers(0, 2, n).astype(float)
    smoker[rng.random(n) < 0.1] = np.nan
    clinic = rng.choice(["north", "south", "west", None], n, p=[0.5, 0.2, 0.2, 0.1])
    return pd.DataFrame(
        {
            "person": [f"p{seed}-{i}" for i in range(n)],
            "time": rng.uniform(0.1, 20, n),
            "cvd": rng.integers(0, 2, n),
            "sbp": rng.normal(130, 15, n).clip(71, 269).round(1),
            "visits": rng.poisson(4, n).clip(0, 40),
            "sex": rng.choice(["female", "male"], n),
            "smoker": smoker,
            "grade": rng.choice(["low", "middle", "high"], n),
            "clinic": clinic,
            "stage": rng.choice([1, 2, 4], n, p=[0.6, 0.3, 0.1]),
            "thal": rng.choice([3, 6, 7, np.nan], n, p=[0.4, 0.3, 0.2, 0.1]),
            "chol": chol,
            "parity": parity,
        }
    )


@pytest.fixture
def table() -> pd.DataFrame:
    return make_table(300)


@pytest.fixture(scope="session")
def plan(dictionary: Dictionary) -> StudyPlan:
    """A study that a test can afford: tiny training, one wave that is always open."""
    return StudyPlan(
        study="mini",
        version=1,
        title="A small study",
        purpose="To test the path from a table to a pooled estimate.",
        coordinator="hub",
        expires=dt.date(2999, 12, 31),
        # R beyond the latents of a later wave through a flow of three passes: else one in a thousand asks for a tick.
        release=LatentNoisePlan(w=0.8, radius=6.0),
        training=Training(flows=2, hidden=16, epochs=3, patience=2),
        budget=Budget(epsilon=600.0, delta=1e-6),
        floors=Floors(membership_auc=0.75, own_row_linkage=0.95, extreme_linkage=1.0),
        waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
        dictionary=dictionary,
        estimands={"pressure": "mean(sbp)"},
    )


@pytest.fixture(scope="session")
def heart_data() -> Path:
    """The folder of the four hospitals' real records; never part of the repository."""
    folder = os.environ.get("TRIBUTARY_HEART_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TRIBUTARY_HEART_DATA does not name the folder of the UCI heart records")
    return Path(folder)
